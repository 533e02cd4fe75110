"""Spark does not find it."""

from spark_nats.conditions import Condition

PYSPARK_NEEDED = Condition(
    'PySpark 4.0 or newer is needed ({reason}): pip install "spark-nats[spark]"',
    '`pip install "spark-nats[spark]"`, or use a cluster with Spark 4',
)
OTEL_NEEDED = Condition(
    'MetricsListener needs OpenTelemetry ({reason}): pip install "spark-nats[otel]"',
    'where the program runs that starts the query: `pip install "spark-nats[otel]"`',
)
WRITES_NO_TABLE = Condition(
    "a statement that creates a table cannot write rows (saveAsTable, writeTo, CREATE TABLE ... AS), because "
    "Spark does not pass on a table's options when the table is read; use save(), and for reading {instead}",
    "write with `save()`; for SQL, create a temporary view. Nothing was sent, and Spark drops the table. (We "
    "recognize such a write because Spark runs it within another statement)",
)
NOWHERE_TO_WRITE = Condition(
    "the options do not say where to write: set the option 'stream' or 'bucket' or, for core NATS, 'subject' or "
    "'servers'; if this is a table, Spark has not passed on its options: {instead}",
    "the same for rows inserted into a table; or no option is set at all",
)
PATH_UNUSED = Condition(
    "the path {path!r} has no meaning here; use the option 'stream' for the name of a stream, or 'bucket', or "
    "'subject' for core NATS{hint}",
    "`load`, `save` and `start` take no path: name the stream in the option `stream`",
)
