"""Spark does not find it."""

from spark_nats.conditions import Condition

PYSPARK_NEEDED = Condition(
    'PySpark 4.0 or newer is needed ({reason}): pip install "spark-nats[spark]"',
    '`pip install "spark-nats[spark]"`, or a cluster with Spark 4',
)
OTEL_NEEDED = Condition(
    'MetricsListener needs OpenTelemetry ({reason}): pip install "spark-nats[otel]"',
    'where the program runs that starts the query: `pip install "spark-nats[otel]"`',
)
WRITES_NO_TABLE = Condition(
    "rows are not written where a table is made (saveAsTable, writeTo, CREATE TABLE ... AS), since Spark does not hand "
    "on a table's options when it is read; use save(), and for reading {instead}",
    "write with `save()`; for SQL make a temporary view. Nothing was sent, and Spark drops the table. (Spark runs "
    "such a write within another statement, which is how it is known)",
)
NOWHERE_TO_WRITE = Condition(
    "it is not said where to write: set the option 'stream' or 'bucket', or, for core NATS, 'subject' or 'servers'; if "
    "this is a table, Spark has not handed on its options: {instead}",
    "the same for rows that are inserted into a table; or no option is set at all",
)
PATH_UNUSED = Condition(
    "the path {path!r} means nothing here; use the option 'stream' for the name of a stream, or 'bucket', or 'subject' "
    "for core NATS{hint}",
    "`load`, `save` and `start` take no path: name the stream in the option `stream`",
)
