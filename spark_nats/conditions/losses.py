"""Lost messages."""

from spark_nats.conditions import Condition

BEGINNING_LOST = Condition(
    "stream {stream!r} begins at sequence {first}: sequences {start} to {end}, which the query had not read yet, "
    "are lost (purged, or removed by the stream's limits)",
    "the limits removed messages faster than the query read them, or somebody purged the stream",
)
REMOVED_WHILE_READ = Condition(
    "stream {stream!r} now begins at sequence {first}; {sequences}, which were about to be read, are lost "
    "(purged, or removed by the stream's limits)",
    "the same, while a task was reading",
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
RANGE_DELETED = Condition(
    "the stream {stream!r} {how}; {sequences}, which were about to be read, are lost",
    "the stream was deleted, or deleted and created again, while a task was reading",
)
REVISION_NOT_KEPT = Condition(
    "the bucket {bucket!r} no longer keeps revision {revision}, so it is not known what its key held then",
    "`asOf` is before the oldest revisions of the bucket: set a later moment, or give the bucket a longer "
    "`history`. With `failOnDataLoss` set to `false`, the read leaves out keys whose values are unknown",
)
KEYS_NOT_KEPT = Condition(
    "it is not known what {keys} keys of the bucket {bucket!r} held at revision {revision}, such as {key!r}: "
    "older revisions of them than those that the bucket keeps may have been removed (its history is {history})",
    "the same. The key may also have been created after that moment: with a full history, or after a purge, "
    "nothing tells",
)
ENTRIES_EXPIRED = Condition(
    "the values of the bucket {bucket!r} expire, and it does not keep all revisions up to {revision}: what has "
    "expired since then is missing",
    "the bucket has a `max_age` or a `limit_marker_ttl`, so values that existed at the moment of `asOf` may have "
    "expired since. With `failOnDataLoss` set to `false`, the read leaves such values out",
)
RECEIVED_LOST = Condition(
    "{messages} messages of {subjects}, which a micro-batch was about to process when the query ended, were lost "
    "with the process that had received them",
    "a query of core NATS ended in the middle of a micro-batch; `spoolLocation` keeps such messages",
)
SPOOL_DAMAGED = Condition(
    "messages {first} to {last} of {subjects} in epoch {epoch}, which a micro-batch was about to process when "
    "the query ended, are lost: {damage}",
    "a file below `spoolLocation` was truncated or changed; restore a good copy",
)
DURABLE_DELETED = Condition(
    "{what}, which keeps messages until they are read, was deleted; messages published since then may be lost",
    "messages that others acknowledged since then may be lost",
)
PATTERN_CHANGED = Condition(
    "the query has read the stream {stream!r} up to sequence {sequence}, but the option 'streamPattern' does not "
    "match it any more: its later messages are not read",
    "the pattern has changed; the remaining messages of the stream are not read",
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
OBJECT_DAMAGED = Condition(
    "the object {name!r} of the object store {store!r} is damaged: {reason}",
    "chunks are missing or are others: the stream's limits or somebody has removed them, or a client was stopped while "
    "it replaced the object. Put the object again. With `failOnDataLoss` set to `false` its `content` is null",
)
LINK_BROKEN = Condition(
    "the object {name!r} of the object store {store!r} is a link that leads nowhere: {reason}",
    "its target was deleted: delete the link, or put the target again. With `failOnDataLoss` set to `false` its "
    "`content` is null",
)
