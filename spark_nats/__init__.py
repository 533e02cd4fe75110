"""The PySpark connector for NATS.

With Spark: ``spark.readStream.format("nats")``; the README shows how. Without Spark: ``spark_nats.client`` is a
NATS connection that reads and writes whole Arrow columns, ``spark_nats.jetstream`` reads and publishes streams.
"""

from typing import TYPE_CHECKING, Any

from spark_nats.errors import NatsError
from spark_nats.version import __version__

if TYPE_CHECKING:
    from spark_nats.datasource import NatsDataSource

__all__ = ["NatsDataSource", "NatsError", "__version__"]


def __getattr__(name: str) -> Any:
    # PySpark is an extra: whoever only wants the client must be able to import this package without it.
    if name == "NatsDataSource":
        from spark_nats.datasource import NatsDataSource

        return NatsDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
