"""Bytes that a hostile server might send: ``make fuzz``, see :mod:`tests.fuzz.__main__`."""
