"""Lets Spark find the ``nats`` format by itself.

Spark imports installed top-level modules whose name begins with ``pyspark_`` and registers the class
that they call ``DefaultSource``, so ``format("nats")`` needs no ``spark.dataSource.register``.
"""

from spark_nats.datasource import NatsDataSource as DefaultSource

__all__ = ["DefaultSource"]
