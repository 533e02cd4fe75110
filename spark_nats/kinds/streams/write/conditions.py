"""Errors, warnings and log lines of the writers of streams, buckets and core NATS."""

from spark_nats.conditions import Condition, Topic, set_codes

FOREACH_IS_NOT_EXACT = Condition(
    "option 'deduplicate' is exact, which needs the driver, and NatsForeachWriter does not run there; use window, or "
    "the sink (writeStream.format('nats'))"
)
COLUMN_NOT_FOR_CORE = Condition(
    "column '{column}' cannot be written to core NATS, and would be lost; rename or drop it, or name a stream to write "
    "to in the option 'stream'"
)
NO_SUBJECT = Condition(
    "the options do not say where to publish: add the column 'subject' (STRING) or set the option 'subject'"
)
COLUMN_FOR_STREAMS = Condition(
    "column '{column}' is for streams, and core NATS does not act on it; set the option 'stream', or drop the column"
)
STATE_BUCKET_OLDER = Condition(
    "the state bucket {bucket!r} is older than the query's checkpoint, which is at micro-batch {batch}: {reason} (was "
    "it restored from a copy, do its values expire (max_age), has the query run without deduplicate=exact meanwhile, "
    "or has another query run with a copy of this checkpoint?)"
)
BATCHES_SKIPPED = Condition(
    "{task} follows micro-batch {batch}, as where state was repartitioned between two runs of the query: stream "
    "{stream!r} has nothing that this could store twice"
)
STORED_BEFORE_UNKNOWN = Condition("{task} was begun before, and it is unknown what it stored then: {reason}")
ROW_CANNOT_BE_SENT = Condition("row {row} of the task cannot be sent: column '{column}' {rule}; {sent}")
STATE_BUCKET_UNUSABLE = Condition(
    "the state bucket {bucket!r}, in which tasks note what they begin, cannot be used: {reason}", Topic.STATE_BUCKET
)
CANNOT_READ_BACK = Condition(
    "if a task were tried again, its stored rows could not be read back from stream {stream!r}: {reason}",
    Topic.READING_BACK,
)
NOTE_INVALID = Condition(
    "the key {key!r} of the state bucket does not hold the state of a query: {reason}; has another program written "
    "there?"
)
ATTEMPT_TOO_LATE = Condition(
    "{task} comes too late: {other} has begun since, so another attempt writes these rows or has written them; this "
    "one writes no more"
)
OTHER_PARTITIONS = Condition(
    "{task} was begun before, and its rows are split into other partitions now, or have other contents: rows {which} "
    "are now stored a second time; run it again with the settings (such as 'minPartitions', "
    "'maxRecordsPerPartition', spark.sql.shuffle.partitions) and with as many cores as it was begun with, by which "
    "Spark cuts files, and adaptive execution a shuffle, and let it read the same, with the same columns; or set the "
    "option 'deduplicate' to window to continue"
)
BATCH_UNKNOWN = Condition(
    "Spark does not say which query and micro-batch this is, so rows cannot have message ids that a replay repeats; "
    "set the option 'deduplicate' to false"
)
NOT_RUN = Condition(
    "{what} is not written: Spark has not run the write of {count} of its {tasks} partitions, whose rows are not in "
    "{target}; with trigger(continuous=...), Spark never runs a sink that is written in Python: stop the query, remove "
    "from its checkpoint the files of 'offsets' after the last one of 'commits', because Spark would leave their rows "
    "out, and start it with a trigger for micro-batches, such as trigger(processingTime='1 second')"
)
NO_WINDOW = Condition(
    "{target} recognizes no message ids, because its duplicate_window is 0 (from nats-server 2.14 on, a stream with "
    "sources has none unless it is given one), so that it would store rows of a replay twice; nothing was sent; give "
    "it a duplicate_window, or set the option 'deduplicate' to {instead}"
)
IDS_NOT_RECOGNIZED = Condition(
    "{target} recognizes no message ids, because its duplicate_window is 0 (from nats-server 2.14 on, a stream with "
    "sources has none unless it is given one): rows that Spark writes again after a task has failed, or with a "
    "'msg_id' that it has already, are stored again; give it a duplicate_window"
)
COUNTERS_FIRE_NOTHING = Condition(
    "stream {stream!r} has counters and allows schedules (its allow_msg_counter and allow_msg_schedules are true), and "
    "would add the increments of rows with schedules, but never publish them; drop the column 'headers' or the option "
    "'controlHeaders', and write schedules to another stream"
)
NO_ACKNOWLEDGEMENTS = Condition(
    "stream {stream!r} does not acknowledge what it stores (its no_ack is true), so no row would be known to be "
    "stored; nothing was sent; set no_ack to false, or use another stream, or core NATS (without the option 'stream')"
)
MIRRORS_ANOTHER = Condition(
    "{target} is a mirror of {origin}, and stores only messages from there; nothing was sent; write to {origin} instead"
)
TARGET_HEARS_NOTHING = Condition(
    "stream {stream!r} listens on no subject, so that no row would go there; nothing was sent; give the stream "
    "subjects, or leave it out"
)
TARGETS_SHARE_SUBJECT = Condition(
    "the streams {one} and {other} both listen on the subject {subject!r} (the other one as {wider!r}), so that a row "
    "has two places to go to; nothing was sent; leave one of them out"
)
TARGET_COPIES_TARGET = Condition(
    "stream {stream!r} copies what stream {source!r} stores (it is one of its sources), so that its copies would be "
    "taken for rows that were written to it; nothing was sent; leave one of them out"
)
PATTERN_WITHOUT_TARGET = Condition(
    "no stream that listens on a subject has a name that matches {pattern!r}; nothing was sent; create the streams "
    "first, or correct the option 'streamPattern'"
)
STATE_BUCKET_MIRRORS = Condition(
    "the state bucket {bucket!r}, in which tasks note what they begin, is a mirror of {origin}, and stores only "
    "messages from there; nothing was sent; name another bucket with the option 'stateBucket'"
)
NO_LIFETIMES = Condition(
    "stream {stream!r} does not allow lifetimes of single messages (its allow_msg_ttl is not true), but there is a "
    "column 'ttl'; set allow_msg_ttl to true, or drop the column"
)
NO_LIFETIMES_OF_KEYS = Condition(
    "bucket {bucket!r} does not allow lifetimes of single keys, but there is a column 'ttl'; create it with a "
    "limit_marker_ttl, set its allow_msg_ttl to true, or drop the column"
)
NO_COUNTERS = Condition(
    "stream {stream!r} has no counters (its allow_msg_counter is not true), but there is a column 'increment'; create "
    "a stream with allow_msg_counter, or drop the column"
)
INCREMENTS_ONLY = Condition(
    "stream {stream!r} has counters (its allow_msg_counter is true), and accepts only increments; add the column "
    "'increment'"
)
COUNTERS_EXPECT_NOTHING = Condition(
    "stream {stream!r} has counters (its allow_msg_counter is true), which are incremented in any case; drop the "
    "column 'expected_last_subject_sequence'"
)
CONTROL_HEADERS_LEFT_OUT = Condition(
    "rows have headers that would control the server, and these are not sent: {headers}; set the option "
    "'controlHeaders' to true to send them"
)
REPUBLISHED_ROWS_REFUSED = Condition(
    "{target} sends its messages on to {dest!r}, where {others} listens; headers go along, and so it drops, without "
    "telling anybody, rows with {what} unless it takes these too; let it have {target} as its source instead"
)
ROWS_STORED_ALREADY = Condition(
    "stream {stream} already had {duplicates} of the {rows} rows of this task, by their message ids, and did not store "
    "them again: the micro-batch is a replay, or rows have the same 'msg_id'"
)
SUBJECT_OF_STREAM = Condition(
    "the subject {subject!r} belongs to the stream {streams}, but rows are published to it without the option "
    "'stream': nothing is acknowledged, and the stream may drop messages without an error; set the option 'stream' to "
    "{stream!r}"
)
CONFLICTS_SKIPPED = Condition(
    "bucket {bucket}: {skipped} of the {rows} rows of this task were skipped, because their keys do not have the "
    "revisions that the rows expect"
)
TARGET_LOST_MESSAGES = Condition(
    "stream {stream} has lost {messages} acknowledged messages: it ended at sequence {last}{stored} when {task} first "
    "began, and everything after sequence {kept} is lost; lost rows of {task} are stored again, lost rows of {others} "
    "are not"
)
TARGET_LOST_END = Condition(
    "stream {stream} has lost acknowledged messages: it ended at sequence {last}{stored} when {task} began, and now "
    "ends at {now}; lost rows of {others} are not stored again"
)
CHECKPOINT_OLDER = Condition(
    "{task} comes after micro-batch {batch}, as if an older checkpoint were in use, or another query with a copy of it "
    "had gone further: its rows may already be stored, and are then stored twice"
)
TARGET_CHANGED = Condition(
    "{task} was begun before, and written to the stream {old} created at {created}; its rows now go to the present "
    "stream {stream}"
)
BEGUN_BEFORE = Condition("{task} was begun before: {stored} of its {rows} rows were stored then")
FIRST_TIME = Condition(
    "the state bucket {bucket} has no entry for this query; stream {stream} shows that {task} is written for the first "
    "time"
)
STILL_WRITING = Condition(
    "writing to {stream}, {task}: {rows:,} rows stored so far, {rate:,.0f} a second; {in_flight:,} of at most "
    "{window:,} in flight, {resent:,} sent again"
)
STILL_SENDING = Condition(
    "writing to core NATS, {task}: {rows:,} rows processed by the server so far, {rate:,.0f} a second"
)

set_codes(globals())
