"""Reading what streams hold, as columns."""
