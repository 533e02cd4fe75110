"""What the command line says."""

from spark_nats.conditions import Condition

NO_CHECKPOINT = Condition(
    "{location!r} is not a checkpoint, or belongs to a query that has never begun a micro-batch",
    "`spark-nats lag` needs the `checkpointLocation` of the query itself",
)
CHECKPOINT_NO_DIRECTORY = Condition(
    "{location!r} is not a directory, so it is not a checkpoint",
)
CHECKPOINT_UNREADABLE = Condition("the checkpoint {location!r} cannot be read: {reason}")
CHECKPOINT_INCOMPLETE = Condition(
    "{location!r} has no offsets for its last micro-batch, {batch}; files are missing",
    "the checkpoint is damaged, or from another version of Spark",
)
CHECKPOINT_VERSION = Condition(
    "the checkpoint {location!r} has offsets of version {version!r}, which is unknown",
)
CHECKPOINT_NOT_OF_SPARK = Condition(
    "'offsets/{batch}' of the checkpoint {location!r} is not in Spark's format",
)
CHECKPOINT_DAMAGED = Condition("'offsets/{batch}' of the checkpoint {location!r} is damaged: {reason}")
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
