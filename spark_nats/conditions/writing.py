"""Writing."""

from spark_nats.conditions import Condition, Transient

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
ROW_REFUSED = Condition(
    "stream {stream!r} refused row {row} (subject {subject!r}): {reason}",
    "for the reason, see [below](#why-a-row-is-refused). The error ends with the number of refused rows",
)
ENTRY_REFUSED = Condition("row {row} was refused: {reason}")
ENTRY_CONFLICTS = Condition(
    "row {row} conflicts: the key {key!r} of the bucket {bucket!r} {has}, and {wants}",
    "somebody else has written the key since: read it again and decide anew; or set `onConflict` = `skip`",
)
EVERY_ROW_REFUSED = Condition(
    "stream {stream!r} has refused every row for {seconds:g} s: {reason}",
    "the stream cannot keep up with all that is written to it: run fewer tasks, or raise `ackTimeout`. With code "
    "10158, the stream's leader has considered a row as about to be stored for longer than the stream's "
    "`duplicate_window`",
)
ACKNOWLEDGED_LOST = Condition(
    "stream {stream!r} has lost {rows} rows that it had acknowledged to this task: it ended at sequence {last}, "
    "and now {now} (has a server come back with an older copy of its store?); {then}",
    "a server came back with an older copy of its store, or without what was not on its disk yet. With message "
    "ids, the next attempt of the task stores what is missing, or the micro-batch does when you start the query "
    "again. Without them, check which rows are stored before you write again. See [When servers go "
    "away](writing.md#when-servers-go-away)",
)
NOBODY_STORES = Condition(
    "stream {stream!r} has had no leader, or JetStream is not ready or disabled, as with a full disk, for "
    "{seconds:g} s ({reason}); see the server's log",
    "nobody accepted a row for `ackTimeout`; check the servers of the cluster and their logs",
)
NO_ACKNOWLEDGEMENT = Condition(
    "stream {stream!r} sent no acknowledgement for {seconds:g} s{reason}",
    "the same; a server with a full disk (seen on 2.15) does not answer",
)
IDS_FORGOTTEN = Condition(
    "the connection was lost for longer than stream {stream!r} remembers message ids (its duplicate_window is "
    "{window:g} s)",
    "start the query again, with `deduplicate` = `exact` to find out what is stored; raise the stream's "
    "`duplicate_window`",
)
STORED_UNKNOWN = Condition(
    "it is unknown whether unacknowledged rows are stored, since {reason}",
)
ANSWER_TO_NO_ROW = Condition(
    "an acknowledgement came that belongs to none of the rows that were sent",
    "somebody else publishes to our inbox: set your own `inboxPrefix`, with permissions for it",
)
BATCH_ANSWER_TO_NO_ROW = Condition(
    "stream {stream!r} was sent a batch, and an answer came that belongs to none of its rows",
)
IDS_NOT_SAID = Condition(
    "{server} did not say which message ids stream {stream!r} knows",
    "a server hangs; this was the last attempt",
    transient=Transient.ALWAYS,
)
IDS_NOT_SAID_NOW = Condition(
    "stream {stream!r} does not say at the moment which message ids it knows", transient=Transient.ALWAYS
)
BATCH_IDS_NOT_SAID = Condition(
    "stream {stream!r} has not said for {seconds:g} s which message ids it knows: {reason}",
)
BATCH_NOT_ANSWERED = Condition("{server} has not answered a batch for {seconds:g} s", transient=Transient.ALWAYS)
TARGET_MADE_AGAIN = Condition(
    "stream {stream!r} was deleted and created again at {created}",
    "this happened while the task was writing: start the query again",
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
OBJECT_REFUSED = Condition(
    "the object store {store!r} does not take the object {name!r}: {reason} ({code}, {err_code})",
    "the store is sealed, or full (`max_bytes`), or has other limits that are too small",
)
OBJECT_UNFIT = Condition(
    "the object {name!r} cannot be put: {problem}",
    "correct or leave out the row; the objects of rows before it, and of other tasks, are put",
)
OBJECT_STORE_UNAVAILABLE = Condition(
    "nobody listens on {subject}: the object store {store!r} does not exist, has no leader, or is not shared with this "
    "account",
    "create it, or let us do it with `createObjectStore`; look at the servers of the cluster",
    transient=Transient.ONCE_ESTABLISHED,
)
VALUE_REFUSED = Condition(
    "bucket {bucket!r} does not accept a value of {bytes} bytes: {reason} ({code}, {err_code})",
    "the limits of the state bucket are too small, or it is full",
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
PARTLY_STORED = Condition(
    "stream {stream!r} has {stored} of the {rows} rows of this task already, by their message ids, so that they cannot "
    "be stored together: rows {which}; none was stored now",
    "see [all or nothing](writing.md#all-or-nothing)",
)
BATCH_REFUSED = Condition(
    "stream {stream!r} refused the batch: {reason}", "the server's own words; none of its rows was stored"
)
BATCH_NOT_TAKEN = Condition(
    "stream {stream!r} has not accepted the batch for {seconds:g} s: {reason}",
)
BATCH_STORED_UNKNOWN = Condition(
    "stream {stream!r} may have stored the batch, but this is unknown, since {reason}",
    "check whether the rows are stored before you write them again; or set `deduplicate` = `exact`",
)
