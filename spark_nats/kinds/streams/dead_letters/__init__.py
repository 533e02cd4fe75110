"""Dead letters: rows that cannot be sent are dropped, or stored in a stream of their own."""
