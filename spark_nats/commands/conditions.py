"""The conditions of the command line."""

from spark_nats.conditions import Condition

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
