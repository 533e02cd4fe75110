"""The conditions of streams, consumers and messages, and of the servers' answers."""

from spark_nats.conditions import Condition, Topic, Transient, passing

STREAM_NOT_FOUND = Condition("[NATS_STREAM_NOT_FOUND] the stream {stream!r} does not exist", Topic.MISSING_STREAM)
STREAM_CANNOT_BE_MADE = Condition("[NATS_STREAM_CANNOT_BE_MADE] the stream {stream!r} cannot be created: {reason}")
BUCKET_NOT_FOUND = Condition("[NATS_BUCKET_NOT_FOUND] the bucket {bucket!r} does not exist{hint}", Topic.MISSING_BUCKET)
JETSTREAM_UNAVAILABLE = Condition(
    "[NATS_JETSTREAM_UNAVAILABLE] JetStream does not answer on {prefix} at {server}: it is not enabled there "
    "(nats-server -js), or its API has another prefix",
    Topic.API_PREFIX,
    transient=Transient.ONCE_ESTABLISHED,
)
API_ERROR = Condition("[NATS_API_ERROR] {request} failed: {reason} ({code}, {err_code})")
BUCKET_UNAVAILABLE = Condition(
    "[NATS_BUCKET_UNAVAILABLE] nobody listens on {subject}: the bucket {bucket!r} does not exist, has no leader, or is "
    "not shared with this account",
    transient=Transient.ONCE_ESTABLISHED,
)
NO_LEADER = passing("[NATS_NO_LEADER] stream {stream!r} has no leader at the moment")
LEADER_ALONE = passing(
    "[NATS_LEADER_ALONE] the leader of stream {stream!r} has not heard from most of the others for {seconds:g} s, and "
    "may not be the leader any more"
)
LOSS_DOUBTFUL = passing("[NATS_LOSS_DOUBTFUL] {what}, according to a server that may not be up to date")
CREATED_OTHERWISE = Condition(
    "[NATS_CREATED_OTHERWISE] stream {stream!r} says that it was created at {created}, and said {old} before; its "
    "messages show that it is the same stream, and it is read on"
)
CLOCK_BEHIND = Condition(
    "[NATS_CLOCK_BEHIND] the clock of the server that leads stream {stream!r} is {seconds:.1f} s behind, so of its "
    "messages from sequence {first} to {last} it is not known whether they were stored after the stream lost its end; "
    "they are read, perhaps again"
)
NO_PLACE_FOR_CONSUMER = Condition(
    "[NATS_NO_PLACE_FOR_CONSUMER] stream {stream!r} has had its maximum number of consumers for {seconds:g} s "
    "({limit}); each task that reads needs one while it runs: raise the limit, or run fewer tasks at once ({reason}, "
    "{err_code})"
)
STOPPED_DELIVERING = passing(
    "[NATS_STOPPED_DELIVERING] stream {stream!r} stopped delivering at sequence {sequence}{before}: {reason}"
)
READING_FAILED = Condition("[NATS_READING_FAILED] reading stream {stream!r} failed: {reason} ({code})")
MESSAGE_TOO_LARGE = Condition(
    "[NATS_MESSAGE_TOO_LARGE] a message of stream {stream!r} after sequence {sequence} is larger than {bytes} bytes"
)
LISTING_CHANGES = passing("[NATS_LISTING_CHANGES] {what} change faster than they can be listed")
STREAM_NAME_UNSUPPORTED = Condition(
    "[NATS_STREAM_NAME_UNSUPPORTED] the stream {stream!r} cannot be read: its name {violation}; exclude it from the "
    "pattern"
)
NOBODY_TAKES_ROWS = Condition(
    "[NATS_NOBODY_TAKES_ROWS] stream {stream!r} is there and has a leader, but for {seconds:g} s nobody answers on "
    "{subject!r}, as when that is not imported from its account"
)
REMOVED_WHILE_READ = Condition(
    "[NATS_REMOVED_WHILE_READ] stream {stream!r} now begins at sequence {first}; {sequences}, which were about to be "
    "read, are lost (purged, or removed by the stream's limits)"
)
RANGE_REWRITTEN = Condition(
    "[NATS_RANGE_REWRITTEN] stream {stream!r} has lost its end, and other messages have its sequences (was it restored "
    "from an old backup?): sequence {sequence}, which is about to be read, was stored at {time}, after sequence "
    "{last}, which was stored at {last_time} when that was planned"
)
LAST_REWRITTEN = Condition(
    "[NATS_LAST_REWRITTEN] stream {stream!r} has lost its end, and other messages have its sequences (was it restored "
    "from an old backup?): sequence {sequence}, which is about to be read, was stored at {planned} when that was "
    "planned, and at {time} now"
)
RANGE_LOST = Condition(
    "[NATS_RANGE_LOST] stream {stream!r} ends at sequence {last}; {sequences}, which were about to be read, do not "
    "exist (was it restored from an old backup?)"
)
RANGE_DELETED = Condition(
    "[NATS_RANGE_DELETED] the stream {stream!r} {how}; {sequences}, which were about to be read, are lost"
)
DURABLE_DELETED = Condition(
    "[NATS_DURABLE_DELETED] {what}, which keeps messages until they are read, was deleted; messages published since "
    "then may be lost"
)
DURABLE_TAKEN = Condition(
    "[NATS_DURABLE_TAKEN] another query, or another run of this one, has taken over {what}; this one ends, so that "
    "nothing is lost",
    Topic.DURABLE,
)
DURABLE_NOT_OURS = Condition(
    "[NATS_DURABLE_NOT_OURS] {what} exists and {problem}; delete it if nobody needs it", Topic.DURABLE
)
DURABLE_PULLED = Condition(
    "[NATS_DURABLE_PULLED] somebody else pulls from {what}, which only holds messages for Spark, and takes them away; "
    "delete it, and make sure that only Spark uses it",
    Topic.DURABLE,
)
QUEUE_HAS_CONSUMER = Condition(
    "[NATS_QUEUE_HAS_CONSUMER] {what} cannot be created: a work queue has one consumer for each subject, and "
    "{subjects} belong to {rivals} ({reason}, {err_code}); read other subjects, or delete the other consumer"
)
RELEASE_WAITS = Condition(
    "[NATS_RELEASE_WAITS] work queue {stream!r}: the query has processed the messages before sequence {end}, but those "
    "from {first} on stay until {whom} has them too; if it never comes back, delete it (nats consumer rm {stream} "
    "{consumer})"
)
CONSUMERS_NOT_LISTED = passing(
    "[NATS_CONSUMERS_NOT_LISTED] stream {stream!r} has {consumers} consumers, of which {listed} are listed: what the "
    "others still need is unknown"
)
NO_PLACE_FOR_DURABLE = Condition(
    "[NATS_NO_PLACE_FOR_DURABLE] {what} cannot be created: the stream already has its maximum number of consumers "
    "({limit}) ({reason}, {err_code}); raise the limit, or delete one"
)
NO_DIRECT_GETS = Condition(
    "[NATS_NO_DIRECT_GETS] stream {stream!r} does not allow direct gets, the only way to read a work queue without "
    "taking messages away: set allow_direct in its configuration (nats stream edit {stream} --allow-direct)"
)
NO_DIRECT_GETS_NOW = Condition(
    "[NATS_NO_DIRECT_GETS_NOW] stream {stream!r} does not allow direct gets any more; set allow_direct in its "
    "configuration"
)
NO_PURGES = Condition(
    "[NATS_NO_PURGES] stream {stream!r} does not allow purges ({field}), which release the processed messages of a "
    "work queue; consume a queue that does, or a stream with limits that sources this one"
)
DURABLE_WOULD_EXPIRE = Condition(
    "[NATS_DURABLE_WOULD_EXPIRE] stream {stream!r} deletes consumers from which nobody pulls (consumer_limits, "
    "inactive_threshold); it would delete the durable one that holds messages for a query: remove that limit from the "
    "stream's configuration"
)
PROGRESS_NEEDS_LIMITS = Condition(
    "[NATS_PROGRESS_NEEDS_LIMITS] stream {stream!r} has {retention} retention, where a consumer that only shows "
    "progress would hold messages, or keep others from them",
    Topic.PROGRESS,
)
PROGRESS_WOULD_EXPIRE = Condition(
    "[NATS_PROGRESS_WOULD_EXPIRE] stream {stream!r} deletes consumers from which nobody pulls (consumer_limits, "
    "inactive_threshold), and with them the one that is to show progress: remove that limit from the stream's "
    "configuration",
    Topic.PROGRESS,
)
SERVER_TOO_OLD = Condition(
    "[NATS_SERVER_TOO_OLD] {what} needs nats-server {wanted} or newer, but {server} is {version}; upgrade the servers"
)
LEFT_BEFORE_CHECKPOINT = Condition(
    "[NATS_LEFT_BEFORE_CHECKPOINT] stream {stream!r} has messages before sequence {start}, where the checkpoint "
    "resumes, such as {sequence}, and {what}, which would tell that they are processed, does not exist: was it "
    "deleted, or have the subjects changed? Begin with a new checkpoint to read them, or purge them if they are "
    "processed"
)
DURABLE_JUST_MADE = passing("[NATS_DURABLE_JUST_MADE] {what} was just created by somebody else")
DURABLE_JUST_DELETED = passing("[NATS_DURABLE_JUST_DELETED] {what} was just deleted")
ROW_REFUSED = Condition("[NATS_ROW_REFUSED] stream {stream!r} refused row {row} (subject {subject!r}): {reason}")
EVERY_ROW_REFUSED = Condition(
    "[NATS_EVERY_ROW_REFUSED] stream {stream!r} has refused every row for {seconds:g} s: {reason}"
)
ACKNOWLEDGED_LOST = Condition(
    "[NATS_ACKNOWLEDGED_LOST] stream {stream!r} has lost {rows} rows that it had acknowledged to this task: it ended "
    "at sequence {last}, and now {now} (has a server come back with an older copy of its store?); {then}"
)
NOBODY_STORES = Condition(
    "[NATS_NOBODY_STORES] stream {stream!r} has had no leader, or JetStream is not ready or disabled, as with a full "
    "disk, for {seconds:g} s ({reason}); see the server's log"
)
NO_ACKNOWLEDGEMENT = Condition(
    "[NATS_NO_ACKNOWLEDGEMENT] stream {stream!r} sent no acknowledgement for {seconds:g} s{reason}"
)
STORED_UNKNOWN = Condition("[NATS_STORED_UNKNOWN] it is unknown whether unacknowledged rows are stored, since {reason}")
ANSWER_TO_NO_ROW = Condition(
    "[NATS_ANSWER_TO_NO_ROW] an acknowledgement came that belongs to none of the rows that were sent"
)
BATCH_ANSWER_TO_NO_ROW = Condition(
    "[NATS_BATCH_ANSWER_TO_NO_ROW] stream {stream!r} was sent a batch, and an answer came that belongs to none of its "
    "rows"
)
IDS_NOT_SAID = passing("[NATS_IDS_NOT_SAID] {server} did not say which message ids stream {stream!r} knows")
IDS_NOT_SAID_NOW = passing(
    "[NATS_IDS_NOT_SAID_NOW] stream {stream!r} does not say at the moment which message ids it knows"
)
BATCH_IDS_NOT_SAID = Condition(
    "[NATS_BATCH_IDS_NOT_SAID] stream {stream!r} has not said for {seconds:g} s which message ids it knows: {reason}"
)
BATCH_NOT_ANSWERED = passing("[NATS_BATCH_NOT_ANSWERED] {server} has not answered a batch for {seconds:g} s")
TARGET_MADE_AGAIN = Condition("[NATS_TARGET_MADE_AGAIN] stream {stream!r} was deleted and created again at {created}")
VALUE_REFUSED = Condition(
    "[NATS_VALUE_REFUSED] bucket {bucket!r} does not accept a value of {bytes} bytes: {reason} ({code}, {err_code})"
)
PARTLY_STORED = Condition(
    "[NATS_PARTLY_STORED] stream {stream!r} has {stored} of the {rows} rows of this task already, by their message "
    "ids, so that they cannot be stored together: rows {which}; none was stored now"
)
BATCH_REFUSED = Condition("[NATS_BATCH_REFUSED] stream {stream!r} refused the batch: {reason}")
BATCH_NOT_TAKEN = Condition(
    "[NATS_BATCH_NOT_TAKEN] stream {stream!r} has not accepted the batch for {seconds:g} s: {reason}"
)
BATCH_STORED_UNKNOWN = Condition(
    "[NATS_BATCH_STORED_UNKNOWN] stream {stream!r} may have stored the batch, but this is unknown, since {reason}"
)
ANSWERED_BY_ANOTHER = passing(
    "[NATS_ANSWERED_BY_ANOTHER] something other than JetStream answered on {subject}: {answer}"
)
ANSWERED_ELSEWHERE = passing(
    "[NATS_ANSWERED_ELSEWHERE] a message on {subject} was acknowledged in another JetStream domain, and not by the "
    "stream {stream!r} that was asked: {answer}"
)
ANSWER_INVALID = Condition("[NATS_ANSWER_INVALID] the server's answer to {request} is invalid: {reason}")
ANSWER_FROM_BEFORE = Condition(
    "[NATS_ANSWER_FROM_BEFORE] the server was asked for sequence {start} of stream {stream!r} or later, and found "
    "{sequence}"
)
ANSWER_FROM_ELSEWHERE = Condition(
    "[NATS_ANSWER_FROM_ELSEWHERE] stream {stream!r} was asked for what begins at sequence {start}, and sent {messages} "
    "messages from {first} to {last}"
)
REPLY_INVALID = Condition(
    "[NATS_REPLY_INVALID] the reply subject of a delivery is not a JetStream acknowledgement subject: {reply!r}"
)
DIRECT_GET_INVALID = Condition("[NATS_DIRECT_GET_INVALID] the answer to a direct get is not valid: {header!r}")
DIRECT_GET_WITHOUT_SEQUENCE = Condition(
    "[NATS_DIRECT_GET_WITHOUT_SEQUENCE] the answer to a direct get has a sequence that is not a number"
)
DIRECT_GET_WITHOUT_TIME = Condition(
    "[NATS_DIRECT_GET_WITHOUT_TIME] the answer to a direct get has an invalid time: {time!r}"
)
PAYLOADS_LEFT_OUT = Condition(
    "[NATS_PAYLOADS_LEFT_OUT] the server has left out payloads without saying how large they are"
)
HEAD_REMOVED = Condition(
    "[NATS_HEAD_REMOVED] stream {stream}: {sequences} were removed before the first message was read; the read begins "
    "after them"
)
SUBJECTS_REPLACED = Condition(
    "[NATS_SUBJECTS_REPLACED] stream {stream}: the server lists {names} subjects with U+FFFD, such as {subject!r}; "
    "unless they were published so, these are bytes that are not UTF-8, and several subjects may have one such name; "
    "{so}"
)
IDS_IN_PROCESS = Condition(
    "[NATS_IDS_IN_PROCESS] stream {stream} has reported message ids of rows as in process for {seconds:g} s without "
    "storing them; waiting until it forgets them, after its duplicate_window of {window:g} s"
)
PROGRESS_NOT_SHOWN = Condition(
    "[NATS_PROGRESS_NOT_SHOWN] stream {stream}: the consumer {consumer} does not show how far the query is: {reason}; "
    "the query goes on, and tries again every minute"
)
PROGRESS_TAKEN = Condition(
    "[NATS_PROGRESS_TAKEN] stream {stream}: the consumer {consumer} belongs to another query now, or to another run of "
    "this one or another program, and no longer shows how far this query is; give each query one of its own"
)
FILTER_MATCHES_NONE = Condition(
    "[NATS_FILTER_MATCHES_NONE] no message can match the subject {filters}: the messages in {streams} have subjects "
    "{subjects}"
)
STREAM_DIFFERS = Condition(
    "[NATS_STREAM_DIFFERS] {stream} exists, but differs from the requested configuration in {fields}; it is not changed"
)
STREAM_MADE_OTHERWISE = Condition(
    "[NATS_STREAM_MADE_OTHERWISE] {stream} was created, but the server left out or changed what it does not know: "
    "{fields}; it is not changed further"
)
PATTERN_MATCHES_NOTHING = Condition(
    "[NATS_PATTERN_MATCHES_NOTHING] no stream name matches the regular expression {pattern!r}, so there is nothing to "
    "read yet (.* stands for any characters, * alone does not)"
)
READS_ANEW = Condition(
    "[NATS_READS_ANEW] stream {stream}: gave up a consumer ({reason}); another one resumes at sequence {sequence}"
)
WAITS_FOR_PLACE = Condition(
    "[NATS_WAITS_FOR_PLACE] stream {stream}: waiting for a place among its consumers (max_consumers)"
)
DURABLE_MADE = Condition("[NATS_DURABLE_MADE] stream {stream}: created the durable consumer {consumer}")
ROWS_NOT_TAKEN = Condition("[NATS_ROWS_NOT_TAKEN] stream {stream} does not accept rows at the moment: {reason}")
ROWS_SENT_AGAIN = Condition(
    "[NATS_ROWS_SENT_AGAIN] stream {stream}: it is unknown which of {rows} rows are stored; they are sent again"
)
ROWS_REPLACED = Condition(
    "[NATS_ROWS_REPLACED] stream {stream} keeps the last messages of each subject: {rows} rows that it may not have "
    "stored are not sent again, because it has later rows of their subjects"
)
LAST_ROWS_STORED_AGAIN = Condition(
    "[NATS_LAST_ROWS_STORED_AGAIN] stream {stream} had {rows} rows already, but may now have stored earlier rows of "
    "their subjects, whose message ids it had forgotten; these rows are stored again, to be the last of their subjects"
)
IDS_READ_BACK = Condition(
    "[NATS_IDS_READ_BACK] stream {stream}: of {messages} messages after sequence {sequence}, {ids} have relevant "
    "message ids"
)
NOT_MEASURED = Condition(
    "[NATS_NOT_MEASURED] stream {stream}: its messages cannot be measured, so their average size counts: {reason}"
)
