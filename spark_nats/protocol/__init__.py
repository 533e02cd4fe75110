"""The NATS client protocol without a socket: wire bytes to Arrow columns and back.

Every rule of the protocol is stated here and nowhere else. Nothing here does I/O or knows Spark, so each part is
bytes in, values out.
"""
