"""What readers of streams say."""

from spark_nats.conditions import Condition

NOTHING_SINCE_TIME = Condition(
    "{what} has nothing for the query that was stored at {time} or later, and the option "
    "'startingOffsetsByTimestampStrategy' is error; set it to latest to begin with new messages, or "
    "'startingTimestamp' to an earlier time",
    "set `latest` to begin with new messages, or an earlier `startingTimestamp`",
)
CONSUMER_MISSING = Condition(
    "stream {stream!r} has no consumer {consumer!r}, where the query is to begin or end; 'nats consumer ls {stream}' "
    "lists those there are",
    "name one that exists, or a sequence",
)
ENDS_BEFORE_IT_BEGINS = Condition(
    "the read of stream {stream!r} ends before sequence {end} but begins at {start}; check the starting and "
    "ending offsets and times",
    "the end is before the beginning, for a time that only the server could resolve",
)
COLUMN_TYPE_OF_SOURCE = Condition("column '{column}' is {expected}, not {type}; the columns are {columns}")
COLUMN_NAMED_TWICE = Condition("the schema names the column '{column}' twice; name each column once")
COLUMN_NOT_NULL = Condition(
    "column '{column}' is NOT NULL in the schema, and Spark would believe that without looking; leave NOT NULL out",
    "name each column once, and leave NOT NULL out",
)
NO_SUCH_COLUMN = Condition("{what} has no column '{column}'; its columns are {columns}")
TOO_MANY_PARTITIONS = Condition(
    "{sequences} sequences would be read in {partitions} partitions, too many for Spark (at most {most}); raise "
    "the option 'maxRecordsPerPartition', or read less at once",
    "raise `maxRecordsPerPartition`, or read less at once",
)
RETENTION_UNSUPPORTED = Condition(
    "stream {stream!r} has {retention} retention: its messages are removed when they are acknowledged; "
    "{instead}, or read a stream with limits retention that sources it",
    "use `consume`, `peek`, or a stream that sources it; see [queues](queues.md)",
)
PATTERN_MATCHES_QUEUES = Condition(
    "the option 'streamPattern' matches {streams}, whose messages are removed when they are acknowledged "
    "(workqueue or interest retention); begin it with {begin} to leave them out{instead}",
    "begin the pattern as the error says, to exclude them; or name the stream and set `consume`",
)
PATTERN_MISSES_OFFSETS = Condition(
    "the starting or ending offsets name {streams}, but no such stream matches the option 'streamPattern'",
    "name streams that match, or none",
)
BEGINNING_LOST = Condition(
    "stream {stream!r} begins at sequence {first}: sequences {start} to {end}, which the query had not read yet, "
    "are lost (purged, or removed by the stream's limits)",
    "the limits removed messages faster than the query read them, or somebody purged the stream",
)
END_LOST = Condition(
    "stream {stream!r} ends at sequence {last}, but the query is to resume at {next}; the sequences in between "
    "do not exist (was the stream restored from an old backup?){more}",
    "the stream was restored from a backup, or its server lost [messages that were not on disk yet](durability.md)",
)
END_REWRITTEN = Condition(
    "stream {stream!r} has lost its end, and other messages have its sequences (was the stream restored from an "
    "old backup?): {more}",
    "the same, and new messages were stored since, past the query's position. Nothing was read or removed. The "
    "error says where the new messages begin. With `failOnDataLoss` set to `false`, the query resumes there and "
    "reads each message once. A micro-batch that was under way cannot be replayed with the same rows: it has "
    "those that are left, and the next one has the new ones. This error can be wrong if the clock of a server "
    "was set back and the last message that the query had read is deleted: then only the times can tell",
)
OFFSET_OF_OLD_STREAM = Condition(
    "stream {stream!r} was deleted and created again: sequence {sequence} belongs to the stream created at "
    "{old}, and the present one was created at {created}; the messages of the old one are lost",
    "the option `startingOffsets` or `endingOffsets` names a sequence of a deleted stream",
)
STREAM_MADE_AGAIN = Condition(
    "stream {stream!r} was deleted and created again: the query had read the stream created at {old} up to "
    "sequence {sequence}, and the present one was created at {created}; the later messages of the old one are "
    "lost",
    "it is another stream now. To read it from its beginning, start with a new checkpoint",
)
STREAM_DELETED = Condition(
    "the stream {stream!r} does not exist any more: whatever it held{where} is lost",
    "the stream was deleted",
)
PATTERN_CHANGED = Condition(
    "the query has read the stream {stream!r} up to sequence {sequence}, but the option 'streamPattern' does not "
    "match it any more: its later messages are not read",
    "the pattern has changed; the remaining messages of the stream are not read",
)
WOULD_RELEASE_UNREAD = Condition(
    "the query is to begin at sequence {start} of the work queue {stream!r}, and would remove the messages "
    "before it, from {first} on, unread; leave 'startingOffsets' and 'startingTimestamp' out",
    "remove the options that say where to begin",
)
OFFSET_OF_ANOTHER = Condition(
    "the checkpoint's offset {offset} is not one of this source ({reason}); does the checkpoint belong to "
    "another query?",
    "the checkpoint belongs to another query, or the query read something else before: use another "
    "`checkpointLocation`",
)
BEGINNING_REMOVED = Condition(
    "stream {stream!r} begins at sequence {first}: sequences {start} to {end} were removed before the query "
    "began to read; it begins after them",
    "the stream's limits removed them before the first micro-batch from `earliest`",
)
HEADERS_MALFORMED = Condition(
    "{source}: {lines} header lines are not 'Name: value' and are left out",
    "somebody publishes malformed headers",
)
BYTES_REPLACED = Condition(
    "{source}: bytes that are not UTF-8 became U+FFFD in {columns}, first at {place}, in {messages} of {of} messages "
    "read together; different values may look the same there: do not tell rows apart by them, and have them published "
    "in UTF-8",
    "NATS allows any bytes in subjects, headers and keys, strings of Spark do not: see "
    "[bytes that are not UTF-8](reading.md#bytes-that-are-not-utf-8). Once per task",
)
FEEDS_ITSELF = Condition(
    "stream {stream}: the query reads rows that it has itself written (message id {message_id}), so it feeds "
    "itself and never catches up; write to another stream, or read only subjects that it does not write",
    "source and target are the same stream: set another `stream`, or for reading a `subject` that excludes what "
    "is written. Detected by the message ids of `deduplicate`; logged once an hour on each machine",
)
CLOCK_WRONG = Condition(
    "stream {stream}: its last message is stamped {last}, but its server's clock says {now}: a clock is or was "
    "wrong; watermarks on the column 'timestamp' drop rows with the right time, and starting and ending times "
    "find other messages than they should",
    "the clocks differ by more than a day: the clock of the leader is or was wrong, or of the stream that this "
    "one mirrors. Correct the clocks. A watermark on `timestamp` moves ahead as far, and drops rows with the "
    "right time",
)
STREAM_NOT_NAMED = Condition(
    "the query has read the stream {stream!r} up to sequence {last}, but the option 'stream' no longer names it: "
    "it is not read now; if you name it again, the query resumes at sequence {next}",
    "the checkpoint keeps its position: name the stream again, and the query resumes there",
)
CHECKPOINT_OF_OTHERS = Condition(
    "the checkpoint names {others}, and none of the streams that this source reads now: it reads {stream!r} from its "
    "first message, at sequence {first}. If sources of the query have changed places, as in a union, put them back: "
    "each then resumes where it was",
    "if you replaced all streams on purpose, do nothing. If not, the order of the query's sources has changed: Spark "
    "gives each source the offset of the one that had its place, so streams are read again. Stop the query and put "
    "the sources back",
)
NOT_WATCHED = Condition(
    "{streams}: the query cannot have a consumer that reports new messages, and asks about ten times a second "
    "instead: {reason}",
    "the idle query sends more requests to the servers, nothing else. To end that, grant the permissions for "
    "consumers or raise `max_consumers`. Logged once",
)
STREAM_NOT_READY = Condition(
    "the stream {stream!r} matches, but cannot be read yet: {reason}",
    "it was just created and has no leader yet. It is checked again; the other streams are read meanwhile",
)
BATCH_PLANNED = Condition(
    "{what}: {ranges}; {sequences:,} sequences{left}, tasks: {tasks}",
    "on the driver, before a batch or a micro-batch is read; *left* is what remains in the streams after it",
)
STILL_READING = Condition(
    "reading {stream}, sequences {start} to {last}: {rows:,} rows so far, {left:,} sequences left, {rate:,.0f} a "
    "second{time}",
    "a task that reads for long; every 10 s",
)
