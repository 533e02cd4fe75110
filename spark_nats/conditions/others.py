"""The rest."""

from spark_nats.conditions import Condition, Transient

OFFSET_OF_ANOTHER = Condition(
    "the checkpoint's offset {offset} is not one of this source ({reason}); does the checkpoint belong to "
    "another query?",
    "the checkpoint belongs to another query, or the query read something else before: use another "
    "`checkpointLocation`",
)
OFFSET_NOT_OF_CORE = Condition(
    "the checkpoint's offset {offset} is not one of core NATS; does the checkpoint belong to another query?",
)
SPOOL_FAILED = Condition(
    "the spool of the option 'spoolLocation' ({location!r}) cannot be {done}: {reason}; it must be a directory "
    "or a URI that the driver can write to",
    "the driver must be able to write there",
)
ANSWERED_BY_ANOTHER = Condition(
    "something other than JetStream answered on {subject}: {answer}",
    "another client subscribes to this subject, perhaps with a wildcard such as `>`, and answers each message, as a "
    "worker does that acknowledges its tasks (`+ACK`). Subscribe to its own subjects there; `nats-server`'s `/subsz` "
    "shows who listens",
    transient=Transient.ALWAYS,
)
ANSWER_INVALID = Condition(
    "the server's answer to {request} is invalid: {reason}",
    "something other than nats-server answers: check what is in between",
)
ANSWER_FROM_BEFORE = Condition(
    "the server was asked for sequence {start} of stream {stream!r} or later, and found {sequence}"
)
ANSWER_FROM_ELSEWHERE = Condition(
    "stream {stream!r} was asked for what begins at sequence {start}, and sent {messages} messages from {first} to "
    "{last}"
)
REPLY_INVALID = Condition(
    "the reply subject of a delivery is not a JetStream acknowledgement subject: {reply!r}",
)
DIRECT_GET_INVALID = Condition(
    "the answer to a direct get is not valid: {header!r}",
)
DIRECT_GET_WITHOUT_SEQUENCE = Condition(
    "the answer to a direct get has a sequence that is not a number",
)
DIRECT_GET_WITHOUT_TIME = Condition(
    "the answer to a direct get has an invalid time: {time!r}",
)
PAYLOADS_LEFT_OUT = Condition("the server has left out payloads without saying how large they are")
NOT_BEHIND = Condition(
    "the query {query} reads no NATS stream, so it cannot be behind one",
    "use `spark_nats.progress` or `spark-nats lag` for another query",
)
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
