"""What is wrong with options."""

from spark_nats.conditions import Condition

PATH_UNUSED = Condition(
    "[NATS_PATH_UNUSED] the path {path!r} has no meaning here; use the option 'stream' for the name of a stream, or "
    "'bucket', or 'subject' for core NATS{hint}"
)
UNKNOWN_OPTION = Condition("[NATS_UNKNOWN_OPTION] unknown option '{option}'; {hint}")
INVALID_OPTION = Condition("[NATS_INVALID_OPTION] option '{option}' {problem}")
INVALID_CONTEXT = Condition("[NATS_INVALID_CONTEXT] option 'context' sets '{option}', which {problem}")
OPTION_FOR_OTHERS = Condition("[NATS_OPTION_FOR_OTHERS] option '{option}' is only for {doing}")
OPTION_FOR_OTHER_MODE = Condition("[NATS_OPTION_FOR_OTHER_MODE] option '{option}' is for {wanted}, not for {found}")
OPTION_NOT_FOR_BUCKETS = Condition(
    "[NATS_OPTION_NOT_FOR_BUCKETS] option '{option}' is not for KV buckets, and contradicts the option 'bucket'"
)
OPTION_FOR_CORE = Condition(
    "[NATS_OPTION_FOR_CORE] option '{option}' is for {doing} core NATS, and contradicts the option 'stream'"
)
OPTION_NEEDS_BUCKET = Condition(
    "[NATS_OPTION_NEEDS_BUCKET] option '{option}' needs the option 'bucket'; it is for KV buckets"
)
OPTION_NEEDS_STREAM = Condition(
    "[NATS_OPTION_NEEDS_STREAM] option '{option}' needs the option 'stream'; without it {otherwise}"
)
OPTION_NEEDS_OPTION = Condition("[NATS_OPTION_NEEDS_OPTION] option '{option}' needs the option {needed}")
PROGRESS_WITH_CONSUME = Condition(
    "[NATS_PROGRESS_WITH_CONSUME] options 'progressConsumer' and 'consume' cannot both be set: the durable consumer of "
    "a query that consumes shows its progress already; its name is the option 'consumer'"
)
CONSUMER_NEEDS_CONSUME = Condition(
    "[NATS_CONSUMER_NEEDS_CONSUME] option 'consumer' needs the option 'consume' to be true; without it there is no "
    "consumer"
)
OPTION_NOT_FOR_TABLES = Condition(
    "[NATS_OPTION_NOT_FOR_TABLES] option '{option}' is not for tables of what an account holds, and contradicts the "
    "option 'table'"
)
TABLE_IS_FOR_BATCHES = Condition(
    "[NATS_TABLE_IS_FOR_BATCHES] option 'table' is {table}, which is read in batches (spark.read), not in streaming: "
    "it says what an account holds at one time"
)
SUBJECT_NEEDS_SUBJECTS = Condition(
    "[NATS_SUBJECT_NEEDS_SUBJECTS] option 'subject' is for the table of subjects, and the option 'table' is {table}; "
    "drop it, or set 'table' to subjects"
)
OPTIONS_CONTRADICT = Condition(
    "[NATS_OPTIONS_CONTRADICT] options '{option}' and '{other}' contradict each other; set one of them"
)
OPTION_NOT_FOR_OBJECTS = Condition(
    "[NATS_OPTION_NOT_FOR_OBJECTS] option '{option}' is not for object stores, and contradicts the option 'objectStore'"
)
OPTION_NEEDS_OBJECT_STORE = Condition(
    "[NATS_OPTION_NEEDS_OBJECT_STORE] option '{option}' needs the option 'objectStore'; it is for object stores"
)
FOREACH_WRITES_NO_OBJECTS = Condition(
    "[NATS_FOREACH_WRITES_NO_OBJECTS] option 'objectStore' is not for NatsForeachWriter, which writes messages; use "
    "the sink (writeStream.format('nats'))"
)
PATTERN_CANNOT_CREATE = Condition(
    "[NATS_PATTERN_CANNOT_CREATE] options 'streamPattern' and 'createStream' contradict each other: a pattern does not "
    "say what to create; name the stream in the option 'stream'"
)
PATTERN_CANNOT_CONSUME = Condition(
    "[NATS_PATTERN_CANNOT_CONSUME] options 'streamPattern' and 'consume' contradict each other: no durable consumer of "
    "the query would hold messages that a stream receives before the query finds it; name the streams in the option "
    "'stream'"
)
NOTHING_AFTER_LATEST = Condition(
    "[NATS_NOTHING_AFTER_LATEST] option 'startingOffsets' is latest, so a batch has nothing to read; use earliest"
)
NOTHING_BEFORE_EARLIEST = Condition(
    "[NATS_NOTHING_BEFORE_EARLIEST] option 'endingOffsets' is earliest, so a batch has nothing to read; use latest"
)
ONE_STREAM_TO_WRITE = Condition(
    "[NATS_ONE_STREAM_TO_WRITE] option 'stream' names {streams} streams; a query writes to one"
)
ONE_SUBJECT_TO_WRITE = Condition(
    "[NATS_ONE_SUBJECT_TO_WRITE] option 'subject' is {subject!r}; for writing it must be one subject, but it "
    "{violation}"
)
ONE_STREAM_TO_CREATE = Condition(
    "[NATS_ONE_STREAM_TO_CREATE] option 'createStream' creates one stream, but 'stream' names {streams}"
)
NO_SUBJECTS_TO_CREATE = Condition(
    "[NATS_NO_SUBJECTS_TO_CREATE] option 'createStream' is true, but the subjects of the stream are unknown: set the "
    'option \'subject\', or give the stream\'s configuration, such as {{"subjects": ["orders.>"]}}'
)
OTHER_STREAM_TO_CREATE = Condition(
    "[NATS_OTHER_STREAM_TO_CREATE] option 'createStream' has the name {name!r}, but 'stream' is {stream!r}"
)
BAD_ROWS_NEED_STREAM = Condition(
    "[NATS_BAD_ROWS_NEED_STREAM] option 'badRows' is stream, but 'badRowsStream' is not set: name the stream that gets "
    "rows that cannot be sent"
)
BAD_ROWS_GO_NOWHERE = Condition(
    "[NATS_BAD_ROWS_GO_NOWHERE] option 'badRowsStream' is {stream!r}, but 'badRows' is {what}; set 'badRows' to "
    "stream, or leave 'badRowsStream' out"
)
BAD_ROWS_STREAM_IS_TARGET = Condition(
    "[NATS_BAD_ROWS_STREAM_IS_TARGET] option 'badRowsStream' is {stream!r}, which the other rows are written to; name "
    "another stream"
)
BAD_ROWS_WITH_ATOMIC = Condition(
    "[NATS_BAD_ROWS_WITH_ATOMIC] option 'badRows' is {what}, but with 'atomic' all rows of a partition are stored or "
    "none; leave one of them out"
)
EXACT_NEEDS_STREAM = Condition(
    "[NATS_EXACT_NEEDS_STREAM] option 'deduplicate' is exact, which is not possible for a KV bucket, because later "
    "revisions replace stored ones; set it to window"
)
INVALID_TLS_OPTIONS = Condition("[NATS_INVALID_TLS_OPTIONS] the options for TLS ({options}) cannot be used: {reason}")
NOTHING_TO_READ = Condition(
    "[NATS_NOTHING_TO_READ] the options do not say what to read: set the option 'stream', 'streamPattern' or 'bucket', "
    "or 'subject' alone to read core NATS as it is published, or 'objectStore' for objects, or 'table' for what the "
    "account holds{hint}"
)
OFFSETS_FOR_OTHERS = Condition(
    "[NATS_OFFSETS_FOR_OTHERS] option '{option}' has offsets for {offsets}, but the streams to read are {streams}"
)
ENDS_BEFORE_OFFSET = Condition(
    "[NATS_ENDS_BEFORE_OFFSET] option 'endingOffsets' has {end} for the stream {stream!r}, which is below its {start} "
    "in 'startingOffsets'; nothing can be read, so swap or correct them"
)
ENDS_BEFORE_TIME = Condition(
    "[NATS_ENDS_BEFORE_TIME] option 'endingTimestamp' is {end}, which is before 'startingTimestamp', {start}; nothing "
    "can be read, so swap or correct them"
)
MORE_THAN_MOST = Condition(
    "[NATS_MORE_THAN_MOST] option 'minOffsetsPerTrigger' is {least}, which is more than 'maxOffsetsPerTrigger', "
    "{most}; no micro-batch can satisfy both, so swap or correct them"
)
PUSHDOWN_OF_OTHER_SCANS = Condition(
    "[NATS_PUSHDOWN_OF_OTHER_SCANS] option '{option}' is refused: Spark lets every scan of a DataFrame or view use "
    "what was pushed down for the last one, so rows would be missing; say what to read in 'subject', "
    "'startingOffsets', 'endingOffsets' or 'limit', and leave '{option}' out"
)
LOSS_ACCEPTED = Condition("[NATS_LOSS_ACCEPTED] {loss}; the query continues with {rest}")
