"""Tables of what an account holds."""
