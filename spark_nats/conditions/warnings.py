"""What the log says at WARNING."""

from spark_nats.conditions import Condition

TRYING_AGAIN = Condition(
    "{what}: {reason}; trying again{limit}",
    "a server is away, or a stream has no leader: the query waits for up to `retryTimeout`. The line begins with "
    "`reading ORDERS`, `writing to ORDERS`, `listening to …` or, in a task, `reading ORDERS, sequences 1 to 500`",
)
GOES_ON = Condition(
    "{what}: resumed after {seconds:.1f} s",
    "the server is back. A `NATS_TRYING_AGAIN` without this line is a query that still waits",
)
LAME_DUCK = Condition(
    "{server} is shutting down (lame duck mode)",
    "a server is about to restart; the query moves to another one",
)
LOSS_ACCEPTED = Condition(
    "{loss}; the query continues with {rest}",
    "messages are lost, and `failOnDataLoss` is false. The text is that of the error",
)
BEGINNING_REMOVED = Condition(
    "stream {stream!r} begins at sequence {first}: sequences {start} to {end} were removed before the query "
    "began to read; it begins after them",
    "the stream's limits removed them before the first micro-batch from `earliest`",
)
HEAD_REMOVED = Condition(
    "stream {stream}: {sequences} were removed before the first message was read; the read begins after them",
    "the same, while the first task began",
)
MESSAGES_DROPPED = Condition(
    "core NATS, {subjects}: {messages} messages since {since} were dropped, because {bytes} bytes were waiting already",
    "more messages arrive than the query can process: raise `maxBufferedBytes`, or use a stream",
)
MESSAGES_MISSED = Condition(
    "core NATS, {subjects}: messages published from {since} to {until} were missed, because {reason}",
    "there was no connection, and core NATS stores nothing",
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
SUBJECTS_REPLACED = Condition(
    "stream {stream}: the server lists {names} subjects with U+FFFD, such as {subject!r}; unless they were published "
    "so, these are bytes that are not UTF-8, and several subjects may have one such name; {so}",
    "the table of subjects, and object stores, ask servers for lists, which have U+FFFD in place of such bytes",
)
CONTROL_HEADERS_LEFT_OUT = Condition(
    "rows have headers that would control the server, and these are not sent: {headers}; set the option "
    "'controlHeaders' to true to send them",
    "see `controlHeaders`; once per task",
)
ROWS_STORED_ALREADY = Condition(
    "stream {stream} already had {duplicates} of the {rows} rows of this task, by their message ids, and did not "
    "store them again: the micro-batch is a replay, or rows have the same 'msg_id'",
    "a replay within the duplicate window, which is what message ids are for; or rows with the same `msg_id`",
)
SUBJECT_OF_STREAM = Condition(
    "the subject {subject!r} belongs to the stream {streams}, but is written without the option 'stream': "
    "nothing is acknowledged, and the stream may drop messages without an error; set the option 'stream' to "
    "{stream!r}",
    "such rows are not acknowledged: set `stream`",
)
IDS_IN_PROCESS = Condition(
    "stream {stream} has reported message ids of rows as in process for {seconds:g} s without storing them; "
    "waiting until it forgets them, after its duplicate_window of {window:g} s",
    "a leader has lost rows while it stepped down and does not know it (seen on 2.15.1). The task resumes after "
    "the window; another step-down ends the wait sooner",
)
PROGRESS_NOT_SHOWN = Condition(
    "stream {stream}: the consumer {consumer} does not show how far the query is: {reason}; the query goes on, and "
    "tries again every minute",
    "the option `progressConsumer`: what tools show of that consumer is old until then",
)
PROGRESS_TAKEN = Condition(
    "stream {stream}: the consumer {consumer} belongs to another query now, or to another run of this one or another "
    "program, and no longer shows how far this query is; give each query one of its own",
    "two queries have the same `progressConsumer`, or somebody has made a consumer of its name",
)
CONFLICTS_SKIPPED = Condition(
    "bucket {bucket}: {skipped} of the {rows} rows of this task were skipped, because their keys do not have the "
    "revisions that the rows expect",
    "`onConflict` is `skip`",
)
BAD_ROWS_SET_ASIDE = Condition(
    "{bad} of the {rows} rows of {task} could not be sent and are in stream {stream}; the first: {reason}",
    "`badRows` is `stream`: look at these rows with `nats stream view`",
)
BAD_ROWS_DROPPED = Condition(
    "{bad} of the {rows} rows of {task} could not be sent and were left out; the first: {reason}",
    "`badRows` is `drop`. Set it to `stream` to keep such rows",
)
TARGET_LOST_MESSAGES = Condition(
    "stream {stream} has lost {messages} acknowledged messages: it ended at sequence {last}{stored} when {task} first "
    "began, and everything after sequence {kept} is lost; lost rows of {task} are stored again, lost rows of {others} "
    "are not",
    "the target stream was restored to an older copy. The rows of the current micro-batch are stored. You must write "
    "those of earlier ones again, with a new checkpoint or by hand",
)
TARGET_LOST_END = Condition(
    "stream {stream} has lost acknowledged messages: it ended at sequence {last}{stored} when {task} began, and "
    "now ends at {now}; lost rows of {others} are not stored again",
)
CHECKPOINT_OLDER = Condition(
    "{task} comes after micro-batch {batch}, as if an older checkpoint were in use, or another query with a copy of it "
    "had gone further: its rows may already be stored, and are then stored twice",
    "a checkpoint was restored or deleted, or queries run with [copies](writing.md#copies-of-a-checkpoint) of one, so "
    "rows may be stored twice",
)
TARGET_CHANGED = Condition(
    "{task} was begun before, and written to the stream {old} created at {created}; now all of it is written to "
    "{stream}",
    "the option `stream` changed in the middle of a micro-batch, or the stream was deleted and created again",
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
ENDS_AFTER_LIMIT = Condition(
    "the option '{option}' is {limit}: with Trigger.AvailableNow, the query ends after this many, because "
    "PySpark {version} then runs only one micro-batch; start it again for the rest, leave the option out, or use "
    "PySpark 4.2 or newer",
    "PySpark 4.0 and 4.1",
)
LAG_UNKNOWN = Condition(
    "query {query}: it is unknown how far behind it is: {reason}",
    "`LagListener` or `MetricsListener` has options, but the server could not be asked",
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
FILTER_MATCHES_NONE = Condition(
    "no message can match the subject {filters}: the messages in {streams} have subjects {subjects}",
    "the option `subject` matches none of the streams' subjects, so there are no rows: correct it, see "
    "[filters](reading.md#filters)",
)
STREAM_DIFFERS = Condition(
    "{stream} exists, but differs from the requested configuration in {fields}; it is not changed",
    "`createStream` or `createBucket` asks for a different configuration: change the stream (`nats stream edit`) "
    "or the option",
)
STREAM_MADE_OTHERWISE = Condition(
    "{stream} was created, but the server left out or changed what it does not know: {fields}; it is not changed "
    "further",
    "a server before 2.12 does this with fields of `createStream` that it does not know",
)
PATTERN_MATCHES_NOTHING = Condition(
    "no stream name matches the regular expression {pattern!r}, so there is nothing to read yet (.* stands for "
    "any characters, * alone does not)",
    "`streamPattern`: wait, or correct it; `.*` stands for any characters, `*` alone does not",
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
LOG_LEVEL_UNKNOWN = Condition(
    "the environment variable {variable} is {level}, which is not a level; use one of {levels}",
    "the log works as without the variable",
)
