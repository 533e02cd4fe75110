"""The conditions of streams, consumers and messages, and of the servers' answers."""

from spark_nats.conditions import Condition, Topic, once_established, passing, set_codes

STREAM_NOT_FOUND = Condition("the stream {stream!r} does not exist", Topic.MISSING_STREAM)
STREAM_CANNOT_BE_MADE = Condition("the stream {stream!r} cannot be created: {reason}")
BUCKET_NOT_FOUND = Condition("the bucket {bucket!r} does not exist{hint}", Topic.MISSING_BUCKET)
JETSTREAM_UNAVAILABLE = once_established(
    "JetStream does not answer on {prefix} at {server}: it is not enabled there (nats-server -js), or its API has "
    "another prefix",
    Topic.API_PREFIX,
)
API_ERROR = Condition("{request} failed: {reason} ({code}, {err_code})")
BUCKET_UNAVAILABLE = once_established(
    "nobody listens on {subject}: the bucket {bucket!r} does not exist, has no leader, or is not shared with this "
    "account"
)
NO_LEADER = passing("stream {stream!r} has no leader at the moment")
LEADER_ALONE = passing(
    "the leader of stream {stream!r} has not heard from most of the others for {seconds:g} s, and may not be the "
    "leader any more"
)
LOSS_DOUBTFUL = passing("{what}, according to a server that may not be up to date")
CREATED_OTHERWISE = Condition(
    "stream {stream!r} says that it was created at {created}, and said {old} before; its messages show that it is the "
    "same stream, and it is read on"
)
CLOCK_BEHIND = Condition(
    "the clock of the server that leads stream {stream!r} is {seconds:.1f} s behind, so of its messages from sequence "
    "{first} to {last} it is not known whether they were stored after the stream lost its end; they are read, perhaps "
    "again"
)
NO_PLACE_FOR_CONSUMER = Condition(
    "stream {stream!r} has had its maximum number of consumers for {seconds:g} s ({limit}); each task that reads needs "
    "one while it runs: raise the limit, or run fewer tasks at once ({reason}, {err_code})"
)
STOPPED_DELIVERING = passing("stream {stream!r} stopped delivering at sequence {sequence}{before}: {reason}")
READING_FAILED = Condition("reading stream {stream!r} failed: {reason} ({code})")
MESSAGE_TOO_LARGE = Condition("a message of stream {stream!r} after sequence {sequence} is larger than {bytes} bytes")
LISTING_CHANGES = passing("{what} change faster than they can be listed")
STREAM_NAME_UNSUPPORTED = Condition(
    "the stream {stream!r} cannot be read: its name {violation}; exclude it from the pattern"
)
NOBODY_TAKES_ROWS = Condition(
    "stream {stream!r} is there and has a leader, but for {seconds:g} s nobody answers on {subject!r}, as when that is "
    "not imported from its account"
)
REMOVED_WHILE_READ = Condition(
    "stream {stream!r} now begins at sequence {first}; {sequences}, which were about to be read, are lost (purged, or "
    "removed by the stream's limits)"
)
RANGE_REWRITTEN = Condition(
    "stream {stream!r} has lost its end, and other messages have its sequences (was it restored from an old backup?): "
    "sequence {sequence}, which is about to be read, was stored at {time}, after sequence {last}, which was stored at "
    "{last_time} when that was planned"
)
LAST_REWRITTEN = Condition(
    "stream {stream!r} has lost its end, and other messages have its sequences (was it restored from an old backup?): "
    "sequence {sequence}, which is about to be read, was stored at {planned} when that was planned, and at {time} now"
)
RANGE_LOST = Condition(
    "stream {stream!r} ends at sequence {last}; {sequences}, which were about to be read, do not exist (was it "
    "restored from an old backup?)"
)
RANGE_DELETED = Condition("the stream {stream!r} {how}; {sequences}, which were about to be read, are lost")
DURABLE_DELETED = Condition(
    "{what}, which keeps messages until they are read, was deleted; messages published since then may be lost"
)
DURABLE_TAKEN = Condition(
    "another query, or another run of this one, has taken over {what}; this one ends, so that nothing is lost",
    Topic.DURABLE,
)
DURABLE_NOT_OURS = Condition("{what} exists and {problem}; delete it if nobody needs it", Topic.DURABLE)
DURABLE_PULLED = Condition(
    "somebody else pulls from {what}, which only holds messages for Spark, and takes them away; delete it, and make "
    "sure that only Spark uses it",
    Topic.DURABLE,
)
QUEUE_HAS_CONSUMER = Condition(
    "{what} cannot be created: a work queue has one consumer for each subject, and {subjects} belong to {rivals} "
    "({reason}, {err_code}); read other subjects, or delete the other consumer"
)
RELEASE_WAITS = Condition(
    "work queue {stream!r}: the query has processed the messages before sequence {end}, but those from {first} on stay "
    "until {whom} has them too; if it never comes back, delete it (nats consumer rm {stream} {consumer})"
)
RELEASE_NEEDS_UPGRADE = Condition(
    "stream {stream!r}: the query has processed the messages before sequence {end}, but they stay: the server {leader} "
    "leads the consumer {consumer!r}, is {version}, and releases none; nats-server 2.14 or newer does"
)
CONSUMERS_NOT_LISTED = passing(
    "stream {stream!r} has {consumers} consumers, of which {listed} are listed: what the others still need is unknown"
)
NO_PLACE_FOR_DURABLE = Condition(
    "{what} cannot be created: the stream already has its maximum number of consumers ({limit}) ({reason}, "
    "{err_code}); raise the limit, or delete one"
)
NO_DIRECT_GETS = Condition(
    "stream {stream!r} does not allow direct gets, the only way to read a work queue without taking messages away: set "
    "allow_direct in its configuration (nats stream edit {stream} --allow-direct)"
)
NO_DIRECT_GETS_NOW = Condition(
    "stream {stream!r} does not allow direct gets any more; set allow_direct in its configuration"
)
NO_PURGES = Condition(
    "stream {stream!r} does not allow purges ({field}), which release the processed messages of a work queue; consume "
    "a queue that does, or a stream with limits that sources this one"
)
SEVERAL_SUBJECTS_NOT_HELD = Condition(
    "stream {stream!r} has interest retention, and its server ({version}) would let others remove messages unread when "
    "one of several subjects is purged: consume one subject, which may have wildcards, or upgrade to nats-server 2.14.7"
)
DURABLE_WOULD_EXPIRE = Condition(
    "stream {stream!r} deletes consumers from which nobody pulls (consumer_limits, inactive_threshold); it would "
    "delete the durable one that holds messages for a query: remove that limit from the stream's configuration"
)
PROGRESS_NEEDS_LIMITS = Condition(
    "stream {stream!r} has {retention} retention, where a consumer that only shows progress would hold messages, or "
    "keep others from them",
    Topic.PROGRESS,
)
PROGRESS_WOULD_EXPIRE = Condition(
    "stream {stream!r} deletes consumers from which nobody pulls (consumer_limits, inactive_threshold), and with them "
    "the one that is to show progress: remove that limit from the stream's configuration",
    Topic.PROGRESS,
)
SERVER_TOO_OLD = Condition(
    "{what} needs nats-server {wanted} or newer, but {server} of stream {stream!r} is {version}; upgrade the servers"
)
LEFT_BEFORE_CHECKPOINT = Condition(
    "stream {stream!r} has messages before sequence {start}, where the checkpoint resumes, such as {sequence}, and "
    "{what}, which would tell that they are processed, does not exist: was it deleted, or have the subjects changed? "
    "Begin with a new checkpoint to read them, or purge them if they are processed"
)
DURABLE_JUST_MADE = passing("{what} was just created by somebody else")
DURABLE_JUST_DELETED = passing("{what} was just deleted")
ROW_REFUSED = Condition("stream {stream!r} refused row {row} (subject {subject!r}): {reason}")
EVERY_ROW_REFUSED = Condition("stream {stream!r} has refused every row for {seconds:g} s: {reason}")
ACKNOWLEDGED_LOST = Condition(
    "stream {stream!r} has lost {rows} rows that it had acknowledged to this task: it ended at sequence {last}, and "
    "now {now} (has a server come back with an older copy of its store?); {then}"
)
NOBODY_STORES = Condition(
    "stream {stream!r} has had no leader, or JetStream is not ready or disabled, as with a full disk, for {seconds:g} "
    "s ({reason}); see the server's log"
)
NO_ACKNOWLEDGEMENT = Condition("stream {stream!r} sent no acknowledgement for {seconds:g} s{reason}")
STORED_UNKNOWN = Condition("it is unknown whether unacknowledged rows are stored, since {reason}")
ANSWER_TO_NO_ROW = Condition("an acknowledgement came that belongs to none of the rows that were sent")
BATCH_ANSWER_TO_NO_ROW = Condition(
    "stream {stream!r} was sent a batch, and an answer came that belongs to none of its rows"
)
IDS_NOT_SAID = passing("{server} did not say which message ids stream {stream!r} knows")
IDS_NOT_SAID_NOW = passing("stream {stream!r} does not say at the moment which message ids it knows")
BATCH_IDS_NOT_SAID = Condition("stream {stream!r} has not said for {seconds:g} s which message ids it knows: {reason}")
BATCH_NOT_ANSWERED = passing("{server} has not answered a batch for {seconds:g} s")
TARGET_MADE_AGAIN = Condition("stream {stream!r} was deleted and created again at {created}")
VALUE_REFUSED = Condition("bucket {bucket!r} does not accept a value of {bytes} bytes: {reason} ({code}, {err_code})")
PARTLY_STORED = Condition(
    "stream {stream!r} has {stored} of the {rows} rows of this task already, by their message ids, so that they cannot "
    "be stored together: rows {which}; none was stored now"
)
BATCH_REFUSED = Condition("stream {stream!r} refused the batch: {reason}")
BATCH_NOT_TAKEN = Condition("stream {stream!r} has not accepted the batch for {seconds:g} s: {reason}")
BATCH_STORED_UNKNOWN = Condition("stream {stream!r} may have stored the batch, but this is unknown, since {reason}")
ANSWERED_BY_ANOTHER = passing("something other than JetStream answered on {subject}: {answer}")
ANSWERED_ELSEWHERE = passing(
    "a message on {subject} was acknowledged in another JetStream domain, and not by the stream {stream!r} that was "
    "asked: {answer}"
)
ANSWER_INVALID = Condition("the server's answer to {request} is invalid: {reason}")
ANSWER_FROM_BEFORE = Condition(
    "the server was asked for sequence {start} of stream {stream!r} or later, and found {sequence}"
)
ANSWER_FROM_ELSEWHERE = Condition(
    "stream {stream!r} was asked for what begins at sequence {start}, and sent {messages} messages from {first} to "
    "{last}"
)
REPLY_INVALID = Condition("the reply subject of a delivery is not a JetStream acknowledgement subject: {reply!r}")
DIRECT_GET_WITHOUT_SEQUENCE = Condition("the answer to a direct get has a sequence that is not a number")
DIRECT_GET_WITHOUT_TIME = Condition("the answer to a direct get has an invalid time: {time!r}")
PAYLOADS_LEFT_OUT = Condition("the server has left out payloads without saying how large they are")
HEAD_REMOVED = Condition(
    "stream {stream}: {sequences} were removed before the first message was read; the read begins after them"
)
SUBJECTS_REPLACED = Condition(
    "stream {stream}: the server lists {names} subjects with U+FFFD, such as {subject!r}; unless they were published "
    "so, these are bytes that are not UTF-8, and several subjects may have one such name; {so}"
)
IDS_IN_PROCESS = Condition(
    "stream {stream} has reported message ids of rows as in process for {seconds:g} s without storing them; waiting "
    "until it forgets them, after its duplicate_window of {window:g} s"
)
PROGRESS_NOT_SHOWN = Condition(
    "stream {stream}: the consumer {consumer} does not show how far the query is: {reason}; the query goes on, and "
    "tries again every minute"
)
PROGRESS_TAKEN = Condition(
    "stream {stream}: the consumer {consumer} belongs to another query now, or to another run of this one or another "
    "program, and no longer shows how far this query is; give each query one of its own"
)
FILTER_MATCHES_NONE = Condition(
    "no new message can match the subject {filters}: the subjects of {streams} are {subjects}; read other subjects, or "
    "add these to a stream"
)
STREAM_DIFFERS = Condition(
    "{stream} exists, but differs from the requested configuration in {fields}; it is not changed"
)
STREAM_MADE_OTHERWISE = Condition(
    "{stream} was created, but the server left out or changed what it does not know: {fields}; it is not changed "
    "further"
)
PATTERN_MATCHES_NOTHING = Condition(
    "no stream name matches the regular expression {pattern!r}, so there is nothing to read yet (.* stands for any "
    "characters, * alone does not)"
)
READS_ANEW = Condition("stream {stream}: gave up a consumer ({reason}); another one resumes at sequence {sequence}")
WAITS_FOR_PLACE = Condition("stream {stream}: waiting for a place among its consumers (max_consumers)")
DURABLE_MADE = Condition("stream {stream}: created the durable consumer {consumer}")
ROWS_NOT_TAKEN = Condition("stream {stream} does not accept rows at the moment: {reason}")
ROWS_SENT_AGAIN = Condition("stream {stream}: it is unknown which of {rows} rows are stored; they are sent again")
ROWS_REPLACED = Condition(
    "stream {stream} keeps the last messages of each subject: {rows} rows that it may not have stored are not sent "
    "again, because it has later rows of their subjects"
)
LAST_ROWS_STORED_AGAIN = Condition(
    "stream {stream} had {rows} rows already, but may now have stored earlier rows of their subjects, whose message "
    "ids it had forgotten; these rows are stored again, to be the last of their subjects"
)
IDS_READ_BACK = Condition(
    "stream {stream}: of {messages} messages after sequence {sequence}, {ids} have relevant message ids"
)
NOT_MEASURED = Condition("stream {stream}: its messages cannot be measured, so their average size counts: {reason}")

set_codes(globals())
