"""Atomic batches: the rows of a partition are stored together or not at all."""
