"""What is said about streams, consumers and messages, and about what servers answer."""

from spark_nats.conditions import Condition, Transient

STREAM_NOT_FOUND = Condition(
    "the stream {stream!r} does not exist",
    "names are case-sensitive. The error ends with the existing streams, the most similar one first. If it does "
    "not (there are none, or the permission for `$JS.API.STREAM.NAMES` is missing): create it, or set "
    "`createStream`",
)
STREAM_CANNOT_BE_MADE = Condition(
    "the stream {stream!r} cannot be created: {reason}",
    "the server does not know a field of `createStream`, or does not accept its value: correct it, or upgrade "
    "the server",
)
BUCKET_NOT_FOUND = Condition(
    "the bucket {bucket!r} does not exist{hint}",
    "create it, or set `createBucket`; names are case-sensitive",
)
JETSTREAM_UNAVAILABLE = Condition(
    "JetStream does not answer on {prefix} at {server}: it is not enabled there (nats-server -js), or its API "
    "has another prefix",
    "enable JetStream, for the account too; or set `domain` or `apiPrefix`",
    transient=Transient.ONCE_ESTABLISHED,
)
API_ERROR = Condition(
    "{request} failed: {reason} ({code}, {err_code})",
    "the server's own words about a JetStream API request, with its codes",
)
BUCKET_UNAVAILABLE = Condition(
    "nobody listens on {subject}: the bucket {bucket!r} does not exist, has no leader, or is not shared with this "
    "account",
    "the same for the state bucket",
    transient=Transient.ONCE_ESTABLISHED,
)
NO_LEADER = Condition(
    "stream {stream!r} has no leader at the moment",
    "most of its servers are away: check them",
    transient=Transient.ALWAYS,
)
LEADER_ALONE = Condition(
    "the leader of stream {stream!r} has not heard from most of the others for {seconds:g} s, and may not be the "
    "leader any more",
    "it is cut off from the other servers, or was stopped for a while. The others elect a new leader within "
    "seconds; if not, check the routes between the servers",
    transient=Transient.ALWAYS,
)
LOSS_DOUBTFUL = Condition(
    "{what}, according to a server that may not be up to date",
    "a stream, or its end, seems to be lost, but there was not enough time to be sure (`retryTimeout` below 12 s)",
    transient=Transient.ALWAYS,
)
NO_PLACE_FOR_CONSUMER = Condition(
    "stream {stream!r} has had its maximum number of consumers for {seconds:g} s ({limit}); each task that reads "
    "needs one while it runs: raise the limit, or run fewer tasks at once ({reason}, {err_code})",
    "each running task that reads needs one consumer of its stream, so the limit must be at least the number of "
    "tasks that run at once, plus the consumers of others. The limit is `max_consumers` of the stream or of the "
    "account, or else the server's [`default_max_consumers`](sizing.md#connections-and-consumers). Raise it, or "
    "run fewer tasks at once (`minPartitions`, `maxRecordsPerPartition`, fewer cores)",
)
STOPPED_DELIVERING = Condition(
    "stream {stream!r} stopped delivering at sequence {sequence}{before}: {reason}",
    "for all of `retryTimeout`, no replica had the messages that the stream's leader has; check the servers of "
    "the cluster",
    transient=Transient.ALWAYS,
)
READING_FAILED = Condition("reading stream {stream!r} failed: {reason} ({code})", "the server's own words")
MESSAGE_TOO_LARGE = Condition(
    "a message of stream {stream!r} after sequence {sequence} is larger than {bytes} bytes",
    "larger than any server sends: inspect that message (`nats stream get`)",
)
LISTING_CHANGES = Condition(
    "{what} change faster than they can be listed",
    "read a bucket in parts, with `keys`; read a table of what the account holds again, or only for some streams, with "
    "`stream`",
    transient=Transient.ALWAYS,
)
STREAM_NAME_UNSUPPORTED = Condition(
    "the stream {stream!r} cannot be read: its name {violation}; exclude it from the pattern",
    "rename it, or exclude it",
)
NOBODY_TAKES_ROWS = Condition(
    "stream {stream!r} is there and has a leader, but for {seconds:g} s nobody answers on {subject!r}, as when "
    "that is not imported from its account",
    "the stream belongs to another account, and the subject is not imported from it; see "
    "[Permissions](login.md#permissions)",
)
REMOVED_WHILE_READ = Condition(
    "stream {stream!r} now begins at sequence {first}; {sequences}, which were about to be read, are lost "
    "(purged, or removed by the stream's limits)",
    "the same, while a task was reading",
)
RANGE_REWRITTEN = Condition(
    "stream {stream!r} has lost its end, and other messages have its sequences (was it restored from an old "
    "backup?): sequence {sequence}, which is about to be read, was stored at {time}, after sequence {last}, "
    "which was stored at {last_time} when that was planned",
    "the same, detected by a task",
)
LAST_REWRITTEN = Condition(
    "stream {stream!r} has lost its end, and other messages have its sequences (was it restored from an old backup?): "
    "sequence {sequence}, which is about to be read, was stored at {planned} when that was planned, and at {time} now"
)
RANGE_LOST = Condition(
    "stream {stream!r} ends at sequence {last}; {sequences}, which were about to be read, do not exist (was it "
    "restored from an old backup?)",
    "the same, while a task was reading",
)
RANGE_DELETED = Condition(
    "the stream {stream!r} {how}; {sequences}, which were about to be read, are lost",
    "the stream was deleted, or deleted and created again, while a task was reading",
)
DURABLE_DELETED = Condition(
    "{what}, which keeps messages until they are read, was deleted; messages published since then may be lost",
    "messages that others acknowledged since then may be lost",
)
DURABLE_TAKEN = Condition(
    "another query, or another run of this one, has taken over {what}; this one ends, so that nothing is lost",
    "two queries use the same durable consumer: give each its own `consumer`, and make sure that the old run has ended",
)
DURABLE_NOT_OURS = Condition(
    "{what} exists and {problem}; delete it if nobody needs it",
    "the durable consumer belongs to somebody else: set another `consumer`",
)
DURABLE_PULLED = Condition(
    "somebody else pulls from {what}, which only holds messages for Spark, and takes them away; delete it, and "
    "make sure that only Spark uses it",
    "another client takes its messages away; give that client its own consumer",
)
QUEUE_HAS_CONSUMER = Condition(
    "{what} cannot be created: a work queue has one consumer for each subject, and {subjects} belong to {rivals} "
    "({reason}, {err_code}); read other subjects, or delete the other consumer",
    "read other subjects, or delete the other consumer",
)
NO_PLACE_FOR_DURABLE = Condition(
    "{what} cannot be created: the stream already has its maximum number of consumers ({limit}) ({reason}, "
    "{err_code}); raise the limit, or delete one",
    "raise `max_consumers` or, if that is not set, the server's `default_max_consumers`; or delete a consumer",
)
NO_DIRECT_GETS = Condition(
    "stream {stream!r} does not allow direct gets, the only way to read a work queue without taking messages "
    "away: set allow_direct in its configuration (nats stream edit {stream} --allow-direct)",
    "run `nats stream edit JOBS --allow-direct`",
)
NO_DIRECT_GETS_NOW = Condition(
    "stream {stream!r} does not allow direct gets any more; set allow_direct in its configuration"
)
NO_PURGES = Condition(
    "stream {stream!r} does not allow purges ({field}), which release the processed messages of a work queue; "
    "consume a queue that does, or a stream with limits that sources this one",
    "purges release the messages of a work queue: allow them, or source it into a stream with limits",
)
DURABLE_WOULD_EXPIRE = Condition(
    "stream {stream!r} deletes consumers from which nobody pulls (consumer_limits, inactive_threshold); it would "
    "delete the durable one that holds messages for a query: remove that limit from the stream's configuration",
    "remove that limit from the stream's configuration",
)
PROGRESS_NEEDS_LIMITS = Condition(
    "stream {stream!r} has {retention} retention, where a consumer that only shows progress would hold messages, or "
    "keep others from them",
    "`consume` has a durable consumer on such a stream, which shows the progress too",
)
PROGRESS_WOULD_EXPIRE = Condition(
    "stream {stream!r} deletes consumers from which nobody pulls (consumer_limits, inactive_threshold), and with them "
    "the one that is to show progress: remove that limit from the stream's configuration",
)
SERVER_TOO_OLD = Condition(
    "{what} needs nats-server {wanted} or newer, but {server} is {version}; upgrade the servers",
    "upgrade them, or source the stream into one with limits",
)
LEFT_BEFORE_CHECKPOINT = Condition(
    "stream {stream!r} has messages before sequence {start}, where the checkpoint resumes, such as {sequence}, "
    "and {what}, which would tell that they are processed, does not exist: was it deleted, or have the subjects "
    "changed? Begin with a new checkpoint to read them, or purge them if they are processed",
    "the durable was deleted, or the subjects have changed: use a new checkpoint, or purge",
)
DURABLE_JUST_MADE = Condition(
    "{what} was just created by somebody else",
    "two runs start or end at the same time; it is tried again, and becomes an error if it continues",
    transient=Transient.ALWAYS,
)
DURABLE_JUST_DELETED = Condition("{what} was just deleted", transient=Transient.ALWAYS)
ROW_REFUSED = Condition(
    "stream {stream!r} refused row {row} (subject {subject!r}): {reason}",
    "for the reason, see [below](#why-a-row-is-refused). The error ends with the number of refused rows",
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
VALUE_REFUSED = Condition(
    "bucket {bucket!r} does not accept a value of {bytes} bytes: {reason} ({code}, {err_code})",
    "the limits of the state bucket are too small, or it is full",
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
HEAD_REMOVED = Condition(
    "stream {stream}: {sequences} were removed before the first message was read; the read begins after them",
    "the same, while the first task began",
)
SUBJECTS_REPLACED = Condition(
    "stream {stream}: the server lists {names} subjects with U+FFFD, such as {subject!r}; unless they were published "
    "so, these are bytes that are not UTF-8, and several subjects may have one such name; {so}",
    "the table of subjects, and object stores, ask servers for lists, which have U+FFFD in place of such bytes",
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
READS_ANEW = Condition(
    "stream {stream}: gave up a consumer ({reason}); another one resumes at sequence {sequence}",
    "a consumer was lost: a server has restarted, a replica lags, or rows are consumed slowly. Normal, unless "
    "the log has nothing else",
)
WAITS_FOR_PLACE = Condition(
    "stream {stream}: waiting for a place among its consumers (max_consumers)",
    "to read faster, run fewer tasks at once or raise the limit",
)
DURABLE_MADE = Condition(
    "stream {stream}: created the durable consumer {consumer}",
    "the first start of a query that consumes",
)
ROWS_NOT_TAKEN = Condition(
    "stream {stream} does not accept rows at the moment: {reason}",
    "a leader is being elected",
)
ROWS_SENT_AGAIN = Condition(
    "stream {stream}: it is unknown which of {rows} rows are stored; they are sent again",
    "acknowledgements were lost, with a leader or on the way; message ids prevent storing the rows twice",
)
IDS_READ_BACK = Condition(
    "stream {stream}: of {messages} messages after sequence {sequence}, {ids} have relevant message ids",
    "the same: what was read back for it",
)
NOT_MEASURED = Condition(
    "stream {stream}: its messages cannot be measured, so their average size counts: {reason}",
    "`maxBytesPerTrigger` uses the stream's average message size",
)
