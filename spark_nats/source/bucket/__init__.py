"""Reading what a KV bucket holds, in batches.

Its changes are read as those of its stream, by :mod:`spark_nats.source.stream`.

=====================  ======================================================================
:mod:`.readers`        the batch reader
=====================  ======================================================================
"""
