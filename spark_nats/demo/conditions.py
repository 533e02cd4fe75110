"""What the demonstration says."""

from spark_nats.conditions import Condition

DEMO_NEEDS_PYSPARK = Condition(
    "the demonstration needs PySpark 4.2 or newer, for several micro-batches with Trigger.AvailableNow, and this is "
    '{version}: pip install "pyspark[sql]>=4.2"',
    "install what it names",
)
JAVA_MISSING = Condition("Spark needs Java {oldest} or newer, and there is none {where}: install it")
JAVA_TOO_OLD = Condition("Spark needs Java {oldest} or newer, and {java} is {version}: install it, or set JAVA_HOME")
SPARK_FAILED = Condition(
    "Spark failed: {reason}",
    "the demonstration's query failed, with one of our errors or one of Spark's",
)
SERVER_ENDED = Condition(
    "nats-server stopped by itself",
    "check its log",
)
