"""What is wrong with options."""

from spark_nats.conditions import Condition

PATH_UNUSED = Condition(
    "the path {path!r} has no meaning here; use the option 'stream' for the name of a stream, or 'bucket', or "
    "'subject' for core NATS{hint}",
    "`load`, `save` and `start` take no path: name the stream in the option `stream`",
)
UNKNOWN_OPTION = Condition(
    "unknown option '{option}'; {hint}",
    "the name is misspelt, or it is an option of Kafka or another client, or one that Spark sets for tables: the "
    "error ends with what to set instead",
)
INVALID_OPTION = Condition(
    "option '{option}' {problem}",
    "correct the value as the error says; see [below](#what-is-wrong-with-a-value)",
)
INVALID_CONTEXT = Condition(
    "option 'context' sets '{option}', which {problem}",
    "correct the context, or set that option, which overrides it",
)
OPTION_FOR_OTHERS = Condition(
    "option '{option}' is only for {doing}",
    "the option means nothing there: remove it, or set it on the other side",
)
OPTION_FOR_OTHER_MODE = Condition("option '{option}' is for {wanted}, not for {found}")
OPTION_NOT_FOR_BUCKETS = Condition("option '{option}' is not for KV buckets, and contradicts the option 'bucket'")
OPTION_FOR_CORE = Condition("option '{option}' is for {doing} core NATS, and contradicts the option 'stream'")
OPTION_NEEDS_BUCKET = Condition(
    "option '{option}' needs the option 'bucket'; it is for KV buckets",
    "set both, or neither",
)
OPTION_NEEDS_STREAM = Condition("option '{option}' needs the option 'stream'; without it {otherwise}")
OPTION_NEEDS_OPTION = Condition("option '{option}' needs the option {needed}")
PROGRESS_WITH_CONSUME = Condition(
    "options 'progressConsumer' and 'consume' cannot both be set: the durable consumer of a query that consumes shows "
    "its progress already; its name is the option 'consumer'",
)
CONSUMER_NEEDS_CONSUME = Condition(
    "option 'consumer' needs the option 'consume' to be true; without it there is no consumer"
)
OPTION_NOT_FOR_TABLES = Condition(
    "option '{option}' is not for tables of what an account holds, and contradicts the option 'table'",
    "remove one; to limit such a table, use `stream`, `streamPattern`, `subject` or `where()`",
)
TABLE_IS_FOR_BATCHES = Condition(
    "option 'table' is {table}, which is read in batches (spark.read), not in streaming: it says what an account holds "
    "at one time",
    "read it with `spark.read`, as often as you like, or in `foreachBatch` of a query with a trigger",
)
SUBJECT_NEEDS_SUBJECTS = Condition(
    "option 'subject' is for the table of subjects, and the option 'table' is {table}; drop it, or set 'table' to "
    "subjects",
    "to limit the other tables, use `stream`, `streamPattern` or `where()`",
)
OPTIONS_CONTRADICT = Condition(
    "options '{option}' and '{other}' contradict each other; set one of them",
    "remove one",
)
OPTION_NOT_FOR_OBJECTS = Condition(
    "option '{option}' is not for object stores, and contradicts the option 'objectStore'",
    "remove it; `objectPattern` says which objects are read",
)
OPTION_NEEDS_OBJECT_STORE = Condition(
    "option '{option}' needs the option 'objectStore'; it is for object stores", "set both, or none"
)
FOREACH_WRITES_NO_OBJECTS = Condition(
    "option 'objectStore' is not for NatsForeachWriter, which writes messages; use the sink "
    "(writeStream.format('nats'))",
    "the sink takes a row as an object",
)
PATTERN_CANNOT_CREATE = Condition(
    "options 'streamPattern' and 'createStream' contradict each other: a pattern does not say what to create; "
    "name the stream in the option 'stream'",
)
PATTERN_CANNOT_CONSUME = Condition(
    "options 'streamPattern' and 'consume' contradict each other: no durable consumer of the query would hold "
    "messages that a stream receives before the query finds it; name the streams in the option 'stream'",
)
NOTHING_AFTER_LATEST = Condition(
    "option 'startingOffsets' is latest, so a batch has nothing to read; use earliest",
    "a batch reads from `earliest` to `latest`",
)
NOTHING_BEFORE_EARLIEST = Condition(
    "option 'endingOffsets' is earliest, so a batch has nothing to read; use latest",
)
ONE_STREAM_TO_WRITE = Condition(
    "option 'stream' names {streams} streams; a query writes to one",
    "use one query for each; the column `subject` chooses within a stream",
)
ONE_SUBJECT_TO_WRITE = Condition(
    "option 'subject' is {subject!r}; for writing it must be one subject, but it {violation}",
    "set one subject; for several, use the column `subject`",
)
ONE_STREAM_TO_CREATE = Condition(
    "option 'createStream' creates one stream, but 'stream' names {streams}",
    "it creates one stream, with the name in `stream` and the subjects in `subject` or in its configuration",
)
NO_SUBJECTS_TO_CREATE = Condition(
    "option 'createStream' is true, but the subjects of the stream are unknown: set the option 'subject', or "
    'give the stream\'s configuration, such as {{"subjects": ["orders.>"]}}',
)
OTHER_STREAM_TO_CREATE = Condition("option 'createStream' has the name {name!r}, but 'stream' is {stream!r}")
BAD_ROWS_NEED_STREAM = Condition(
    "option 'badRows' is stream, but 'badRowsStream' is not set: name the stream that gets rows that cannot be sent",
    "make a stream for such rows, and name it: [Rows that cannot be sent](writing.md#rows-that-cannot-be-sent)",
)
BAD_ROWS_GO_NOWHERE = Condition(
    "option 'badRowsStream' is {stream!r}, but 'badRows' is {what}; set 'badRows' to stream, or leave "
    "'badRowsStream' out",
)
BAD_ROWS_STREAM_IS_TARGET = Condition(
    "option 'badRowsStream' is {stream!r}, which the other rows are written to; name another stream",
)
BAD_ROWS_WITH_ATOMIC = Condition(
    "option 'badRows' is {what}, but with 'atomic' all rows of a partition are stored or none; leave one of them out",
)
EXACT_NEEDS_STREAM = Condition(
    "option 'deduplicate' is exact, which is not possible for a KV bucket, because later revisions replace "
    "stored ones; set it to window",
    "set `window`",
)
INVALID_TLS_OPTIONS = Condition(
    "the options for TLS ({options}) cannot be used: {reason}",
    "certificate and key do not belong together, the key is encrypted, or the PEM text is not a certificate",
)
NOTHING_TO_READ = Condition(
    "the options do not say what to read: set the option 'stream', 'streamPattern' or 'bucket', or 'subject' "
    "alone to read core NATS as it is published, or 'objectStore' for objects, or 'table' for what the account "
    "holds{hint}",
    "set `stream`, `bucket`, `subject`, `objectStore` or `table`",
)
OFFSETS_FOR_OTHERS = Condition(
    "option '{option}' has offsets for {offsets}, but the streams to read are {streams}",
    "name each stream of `stream` in the JSON, and no other",
)
ENDS_BEFORE_OFFSET = Condition(
    "option 'endingOffsets' has {end} for the stream {stream!r}, which is below its {start} in "
    "'startingOffsets'; nothing can be read, so swap or correct them",
    "the end is before the beginning",
)
ENDS_BEFORE_TIME = Condition(
    "option 'endingTimestamp' is {end}, which is before 'startingTimestamp', {start}; nothing can be read, so "
    "swap or correct them",
)
MORE_THAN_MOST = Condition(
    "option 'minOffsetsPerTrigger' is {least}, which is more than 'maxOffsetsPerTrigger', {most}; no micro-batch "
    "can satisfy both, so swap or correct them",
    "no micro-batch can satisfy both: swap them",
)
PUSHDOWN_OF_OTHER_SCANS = Condition(
    "option '{option}' is refused: Spark lets every scan of a DataFrame or view use what was pushed down for the "
    "last one, so rows would be missing; say what to read in 'subject', 'startingOffsets', 'endingOffsets' or 'limit', "
    "and leave '{option}' out",
    "remove it; the option `subject` filters too, and the option `limit` limits",
)
LOSS_ACCEPTED = Condition(
    "{loss}; the query continues with {rest}",
    "messages are lost, and `failOnDataLoss` is false. The text is that of the error",
)
