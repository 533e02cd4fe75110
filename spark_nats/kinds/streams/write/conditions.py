"""What writers of streams say, and what they look at before they begin."""

from spark_nats.conditions import Condition

FOREACH_IS_NOT_EXACT = Condition(
    "option 'deduplicate' is exact, which needs the driver, and NatsForeachWriter does not run there; use "
    "window, or the sink (writeStream.format('nats'))",
    "with `window`, `NatsForeachWriter` stores no row twice within the stream's `duplicate_window`",
)
COLUMN_NOT_FOR_CORE = Condition(
    "column '{column}' cannot be written to core NATS, and would be lost; rename or drop it, or name a stream to "
    "write to in the option 'stream'",
)
NO_SUBJECT = Condition(
    "the options do not say where to publish: add the column 'subject' (STRING) or set the option 'subject'",
    "add a column or set the option `subject`",
)
COLUMN_FOR_STREAMS = Condition(
    "column '{column}' is for streams, and core NATS does not act on it; set the option 'stream', or drop the column",
    "set `stream`",
)
STATE_BUCKET_OLDER = Condition(
    "the state bucket {bucket!r} is older than the query's checkpoint, which is at micro-batch {batch}: {reason} "
    "(was it restored from a copy, has the query run without deduplicate=exact meanwhile, or has another query run "
    "with a copy of this checkpoint?)",
    "the bucket was restored to an older copy, or `deduplicate` was not `exact` for a while: see "
    "[de-duplication](writing.md#de-duplication). Restore the right copy; or set `failOnDataLoss` to false for "
    "one micro-batch, which leaves out rows that are among the stream's last 4,096 messages. If queries run with "
    "copies of one checkpoint, see [copies](writing.md#copies-of-a-checkpoint)",
)
STORED_BEFORE_UNKNOWN = Condition(
    "{task} was begun before, and it is unknown what it stored then: {reason}",
    "the target stream has removed messages since, so a replay may store rows twice: see "
    "[de-duplication](writing.md#de-duplication)",
)
ROW_CANNOT_BE_SENT = Condition(
    "row {row} of the task cannot be sent: column '{column}' {rule}; {sent}",
    "nothing of its batch was sent. [Rows that cannot be sent](writing.md#rows-that-cannot-be-sent) says how to "
    "separate such rows",
)
BAD_ROWS_NOT_STORED = Condition(
    "rows that cannot be sent could not be stored in stream {stream!r}, the option 'badRowsStream', either: {reason}",
    "see the reason. The task fails, so that no row is lost",
)
BAD_ROWS_STREAM_MISSING = Condition(
    "there is no stream for rows that cannot be sent: {reason}; create it, or name another one with the option "
    "'badRowsStream'",
)
BAD_ROWS_NEED_SUBJECT = Condition(
    "stream {stream!r} listens on no subject of its own, so it cannot take rows that cannot be sent; name another "
    "stream with the option 'badRowsStream'",
    "the stream is a mirror, has sources only, or is a bucket",
)
BAD_ROWS_NEED_ROOM = Condition(
    "stream {stream!r} takes messages of {size} bytes at most (max_msg_size), and rows that cannot be sent need "
    "{least}, for the headers that say why; raise it, or name another stream with the option 'badRowsStream'",
)
BAD_ROWS_ARE_NO_INCREMENTS = Condition(
    "stream {stream!r} takes only increments of counters, so it cannot take rows that cannot be sent; name another "
    "stream with the option 'badRowsStream'",
)
SAME_ID_TOGETHER = Condition(
    "row {row} of the task cannot be sent: an earlier row has the same message id, and each row of a batch that "
    "is stored together is stored once; nothing was sent",
)
SAME_SUBJECT_TOGETHER = Condition(
    "row {row} of the task cannot be sent: an earlier row has the same subject, and the expected last message of "
    "a subject is compared before any row is stored; nothing was sent",
)
STATE_BUCKET_UNUSABLE = Condition(
    "the state bucket {bucket!r}, in which tasks note what they begin, cannot be used: {reason}",
    "see [permissions](login.md#permissions); or set `deduplicate` to `window`, which needs no bucket",
)
CANNOT_READ_BACK = Condition(
    "if a task were tried again, its stored rows could not be read back from stream {stream!r}: {reason}",
    "allow the user to read the stream too, or set `deduplicate` = `window`",
)
NOTE_INVALID = Condition(
    "the key {key!r} of the state bucket does not hold the state of a query: {reason}; has another program "
    "written there?",
    "another program writes there: set another `stateBucket`",
)
ATTEMPT_TOO_LATE = Condition(
    "{task} comes too late: the query has begun micro-batch {batch} since, so another attempt has written these "
    "rows; nothing was written now",
    "nothing to do: this attempt was stopped for long, or its driver has died; another attempt has written its rows. "
    "If another query runs with a [copy](writing.md#copies-of-a-checkpoint) of the checkpoint, stop one of them",
)
OTHER_PARTITIONS = Condition(
    "{task} was begun before, and is split into other partitions now: rows were stored by {partition}, and are "
    "now stored a second time; run it again with the settings it was begun with (such as 'minPartitions', "
    "'maxRecordsPerPartition', spark.sql.shuffle.partitions), and let it read the same; or set the option "
    "'deduplicate' to window to continue",
    "run it once more with the settings it was begun with, or with `deduplicate` = `window`",
)
BATCH_UNKNOWN = Condition(
    "Spark does not say which query and micro-batch this is, so rows cannot have message ids that a replay "
    "repeats; set the option 'deduplicate' to false",
    "set `deduplicate` = `false`",
)
NO_ACKNOWLEDGEMENTS = Condition(
    "stream {stream!r} does not acknowledge what it stores (its no_ack is true), so no row would be known to be "
    "stored; nothing was sent; set no_ack to false, or write to core NATS by leaving out the option 'stream'",
    "set `no_ack` to false, or write to core NATS",
)
MIRRORS_ANOTHER = Condition(
    "{target} is a mirror of {origin}, and stores only what that has; nothing was sent; write to that one instead",
    "rows come into a mirror from its origin: write to that. If the origin is in another domain, set `domain` to its "
    "name; if it is behind another API, set `apiPrefix`",
)
STATE_BUCKET_MIRRORS = Condition(
    "the state bucket {bucket!r}, in which tasks note what they begin, is a mirror of {origin}, and stores only what "
    "that has; nothing was sent; name another bucket with the option 'stateBucket'",
    "set `stateBucket` to a bucket that is no mirror; one that does not exist is created",
)
NO_LIFETIMES = Condition(
    "stream {stream!r} does not allow lifetimes of single messages (its allow_msg_ttl is not true), but there is "
    "a column 'ttl'; set allow_msg_ttl to true, or drop the column",
    "allow it, or drop the column `ttl`",
)
NO_LIFETIMES_OF_KEYS = Condition(
    "bucket {bucket!r} does not allow lifetimes of single keys, but there is a column 'ttl'; create it with a "
    "limit_marker_ttl, set its allow_msg_ttl to true, or drop the column",
)
NO_COUNTERS = Condition(
    "stream {stream!r} has no counters (its allow_msg_counter is not true), but there is a column 'increment'; "
    "create a stream with allow_msg_counter, or drop the column",
    "use the column `increment` for streams with `allow_msg_counter`, and only for these",
)
INCREMENTS_ONLY = Condition(
    "stream {stream!r} has counters (its allow_msg_counter is true), and accepts only increments; add the column "
    "'increment'",
)
COUNTERS_EXPECT_NOTHING = Condition(
    "stream {stream!r} has counters (its allow_msg_counter is true), which are incremented in any case; drop the "
    "column 'expected_last_subject_sequence'"
)
TOO_MANY_ROWS_TOGETHER = Condition(
    "the partition has more than {rows} rows, which cannot be stored together; nothing was sent; make the "
    "partitions smaller (repartition, or 'maxOffsetsPerTrigger' of what is read), or drop the option 'atomic'",
    "use `repartition`, or read less at a time; or remove `atomic`",
)
TOO_MANY_BYTES_TOGETHER = Condition(
    "the partition has more than {mebibytes} MiB, which cannot be stored together; nothing was sent; make the "
    "partitions smaller, or drop the option 'atomic'",
)
SERVER_STORES_SINGLY = Condition(
    "storing rows together needs nats-server 2.12 or newer, and this is {version}; nothing was sent; upgrade the "
    "servers, or drop the option 'atomic'",
    "upgrade, or set `allow_atomic`; or remove `atomic`",
)
STREAM_STORES_SINGLY = Condition(
    "stream {stream!r} does not store rows together (its allow_atomic is not true); nothing was sent; set allow_atomic "
    "to true, or drop the option 'atomic'"
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
BEGUN_BEFORE = Condition(
    "{task} was begun before: {stored} of its {rows} rows were stored then",
    "a replay, and how many rows it left out",
)
FIRST_TIME = Condition(
    "the state bucket {bucket} has no entry for this query; stream {stream} shows that {task} is written for the "
    "first time",
    "`deduplicate` was not `exact` before, or the bucket is new",
)
STILL_WRITING = Condition(
    "writing to {stream}, {task}: {rows:,} rows stored so far, {rate:,.0f} a second; {in_flight:,} of at most "
    "{window:,} in flight, {resent:,} sent again",
    "a task that writes for long; every 10 s. If *at most* is far below `maxInFlight`, or many rows are sent "
    "again, the stream cannot accept more",
)
STILL_SENDING = Condition(
    "writing to core NATS, {task}: {rows:,} rows processed by the server so far, {rate:,.0f} a second",
    "the same for core NATS, without acknowledgements",
)
