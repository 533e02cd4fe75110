"""The conditions of the demonstration."""

from spark_nats.conditions import Condition

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
