"""The PySpark connector for NATS.

Spark users read and write ``format("nats")``; the README has examples. Without Spark, ``spark_nats.client`` is a NATS
connection that reads and writes whole Arrow columns, and ``spark_nats.jetstream`` reads and writes streams.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_nats import logs
from spark_nats.errors import NatsError
from spark_nats.version import __version__

if TYPE_CHECKING:
    from spark_nats.datasource import NatsDataSource as NatsDataSource
    from spark_nats.kinds.foreach import NatsForeachWriter as NatsForeachWriter
    from spark_nats.lag import QueryLag as QueryLag
    from spark_nats.lag import StreamLag as StreamLag
    from spark_nats.lag import progress as progress
    from spark_nats.listener import LagListener as LagListener
    from spark_nats.otel import MetricsListener as MetricsListener
    from spark_nats.partitioning import partition as partition

_MODULES = {
    "LagListener": "listener",
    "MetricsListener": "otel",
    "NatsDataSource": "datasource",
    "NatsForeachWriter": "kinds.foreach",
    "QueryLag": "lag",
    "StreamLag": "lag",
    "partition": "partitioning",
    "progress": "lag",
}
__all__ = ["NatsError", "__version__", *_MODULES]


logs.configure_from_environment()


def __getattr__(name: str) -> Any:
    # PySpark is an optional dependency: a program that uses only the client imports this package without it.
    if name in _MODULES:
        try:
            module = import_module(f"{__name__}.{_MODULES[name]}")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("pyspark"):
                raise
            from spark_nats.conditions.others import PYSPARK_NEEDED

            raise ImportError(PYSPARK_NEEDED(reason=error).with_code) from None
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
