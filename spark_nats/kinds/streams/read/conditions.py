"""Errors, warnings and log lines of the readers of streams."""

from spark_nats.conditions import Condition, set_codes

NOTHING_SINCE_TIME = Condition(
    "{what} has nothing from {time} or later for the query, and the option 'startingOffsetsByTimestampStrategy' is "
    "error; set it to latest to begin with new messages, or 'startingTimestamp' to an earlier time"
)
CONSUMER_MISSING = Condition(
    "stream {stream!r} has no consumer {consumer!r}, where the query is to begin or end; 'nats consumer ls {stream}' "
    "lists those there are"
)
CONSUMER_OF_OTHER_SUBJECTS = Condition(
    "the consumer {consumer!r} of stream {stream!r} has come to sequence {sequence}, but reads only {theirs}; the "
    "query reads {ours} too, of which that position says nothing: set 'subject' to what the consumer reads, or name "
    'the sequence, as in {{"{stream}": {sequence}}}, to begin or end there all the same'
)
ENDS_BEFORE_IT_BEGINS = Condition(
    "the read of stream {stream!r} ends before sequence {end} but begins at {start}; check the starting and ending "
    "offsets and times"
)
COLUMN_TYPE_OF_SOURCE = Condition("column '{column}' is {expected}, not {type}; the columns are {columns}")
COLUMN_NAMED_TWICE = Condition("the schema names the column '{column}' twice; name each column once")
COLUMN_NOT_NULL = Condition(
    "column '{column}' is NOT NULL in the schema, and Spark would believe that without looking; leave NOT NULL out"
)
NO_SUCH_COLUMN = Condition("{what} has no column '{column}'; its columns are {columns}")
TOO_MANY_PARTITIONS = Condition(
    "{sequences} sequences would be read in {partitions} partitions, too many for Spark (at most {most}); raise the "
    "option 'maxRecordsPerPartition', lower 'minPartitions', or read less at once"
)
RETENTION_UNSUPPORTED = Condition(
    "stream {stream!r} has {retention} retention: its messages are removed when they are acknowledged; {instead}, or "
    "read a stream with limits retention that sources it"
)
PATTERN_MATCHES_QUEUES = Condition(
    "the option 'streamPattern' matches {streams}, whose messages are removed when they are acknowledged (workqueue or "
    "interest retention); begin it with {begin} to leave them out{instead}"
)
PATTERN_MISSES_OFFSETS = Condition(
    "the starting or ending offsets name {streams}, but no such stream matches the option 'streamPattern'"
)
BEGINNING_LOST = Condition(
    "stream {stream!r} begins at sequence {first}: sequences {start} to {end}, which the query had not read yet, are "
    "lost (purged, or removed by the stream's limits)"
)
BEGINS_AFTER_END = Condition(
    "option 'startingOffsets' begins at {next}, but stream {stream!r} ends at {last}; begin at {end} at most, or leave "
    "it out"
)
END_LOST = Condition(
    "stream {stream!r} ends at sequence {last}, but the query is to resume at {next}; the sequences in between do not "
    "exist (was the stream restored from an old backup?){more}"
)
END_REWRITTEN = Condition(
    "stream {stream!r} has lost its end, and other messages have its sequences (was the stream restored from an old "
    "backup?): {more}"
)
OFFSET_OF_OLD_STREAM = Condition(
    "stream {stream!r} was deleted and created again: sequence {sequence} belongs to the stream created at {old}, and "
    "the present one was created at {created}; the messages of the old one are lost"
)
STREAM_MADE_AGAIN = Condition(
    "stream {stream!r} was deleted and created again: the query had read the stream created at {old} up to sequence "
    "{sequence}, and the present one was created at {created}; the later messages of the old one are lost"
)
STREAM_DELETED = Condition(
    "the stream {stream!r} does not exist any more: whatever it held{where} is lost (if nobody has deleted it, a "
    "stricter limit may hide it since its server has started: see the server's log)"
)
PATTERN_CHANGED = Condition(
    "the query has read the stream {stream!r} up to sequence {sequence}, but the option 'streamPattern' does not match "
    "it any more: its later messages are not read"
)
SUBJECTS_ADDED = Condition(
    "the checkpoint has read the stream {stream!r} up to sequence {sequence}, but only {read}; the query reads {added} "
    "too, and leaves out what of that came before: read it by a batch that ends there, or begin with a new checkpoint"
)
WOULD_RELEASE_UNREAD = Condition(
    "the query is to begin at sequence {start} of the work queue {stream!r}, and would remove the messages before it, "
    "from {first} on, unread; leave 'startingOffsets' and 'startingTimestamp' out"
)
OFFSET_OF_ANOTHER = Condition(
    "the checkpoint's offset {offset} is not one of this source ({reason}); does the checkpoint belong to another "
    "query?"
)
BEGINNING_REMOVED = Condition(
    "stream {stream!r} begins at sequence {first}: sequences {start} to {end} were removed before the query began to "
    "read; it begins after them"
)
OFFSET_OF_LATER_VERSION = Condition(
    "the checkpoint's offset {offset} has {what}, which this version of spark-nats does not know: a later one has "
    "written it; go on with that version, or begin with a new checkpoint"
)
HEADERS_MALFORMED = Condition("{source}: {lines} header lines are not 'Name: value' and are left out")
BYTES_REPLACED = Condition(
    "{source}: bytes that are not UTF-8 became U+FFFD in {columns}, first at {place}, in {messages} of {of} messages "
    "read together; different values may look the same there: do not tell rows apart by them, and have them published "
    "in UTF-8"
)
FEEDS_ITSELF = Condition(
    "stream {stream}: the query reads rows that it has itself written (message id {message_id}), so it feeds itself "
    "and never catches up; write to another stream, or read only subjects that it does not write"
)
CLOCK_WRONG = Condition(
    "stream {stream}: its last message is stamped {last}, but its server's clock says {now}: a clock is or was wrong; "
    "watermarks on the column 'timestamp' drop rows with the right time, and starting and ending times find other "
    "messages than they should"
)
BEGINS_BEFORE_TIME = Condition(
    "stream {stream}: messages after sequence {sequence}, stored at {time}, have earlier times, as where a clock was "
    "set back: the query begins early enough to leave out nothing stored at or after its starting time, and also reads "
    "messages stored before it"
)
ENDS_AFTER_TIME = Condition(
    "stream {stream}: messages before sequence {sequence}, stored at {time}, have later times, as where a clock was "
    "set back: the query ends late enough to leave out nothing stored before its ending time, and also reads messages "
    "stored after it"
)
STREAM_NOT_NAMED = Condition(
    "the query has read the stream {stream!r} up to sequence {last}, but the option 'stream' no longer names it: it is "
    "not read now; if you name it again, the query resumes at sequence {next}"
)
CHECKPOINT_OF_OTHERS = Condition(
    "the checkpoint names {others}, and none of the streams that this source reads now: it reads {stream!r} from its "
    "first message, at sequence {first}. If sources of the query have changed places, as in a union, put them back: "
    "each then resumes where it was"
)
NOT_WATCHED = Condition(
    "{streams}: the query cannot have a consumer that reports new messages, and asks up to ten times a second instead: "
    "{reason}"
)
STREAM_NOT_READY = Condition("the stream {stream!r} matches, but cannot be read yet: {reason}")
BATCH_PLANNED = Condition("{what}: {ranges}; {sequences:,} sequences{left}, tasks: {tasks}")
STILL_READING = Condition(
    "reading {stream}, sequences {start} to {last}: {rows:,} rows so far, {left:,} sequences left, {rate:,.0f} a "
    "second{time}"
)

set_codes(globals())
