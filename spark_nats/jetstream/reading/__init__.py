"""Reading the messages of streams, as columns."""
