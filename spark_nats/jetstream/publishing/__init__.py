"""Publishing to a stream, which acknowledges each row."""
