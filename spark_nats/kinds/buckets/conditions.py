"""The conditions of readers and writers of KV buckets."""

from spark_nats.conditions import Condition, Topic, passing, set_codes

NO_SUCH_REVISION = Condition("option 'asOf' is {revision}, but the last revision of the bucket {bucket!r} is {last}")
MOMENT_TO_COME = Condition(
    "option 'asOf' is {time}, which is still to come: for the bucket {bucket!r}, it is now {now}"
)
MOMENT_BEFORE_BUCKET = Condition("option 'asOf' is {time}, before the bucket {bucket!r} was made at {created}")
NO_CONSUMER_AT_LEADER = passing("none of {consumers} consumers of stream {stream!r} was placed at its leader, {leader}")
DELETED_WHILE_READ = Condition("the stream {stream!r} was deleted while it was read")
MADE_AGAIN_WHILE_READ = Condition("the stream {stream!r} was deleted and created again at {created} while it was read")
KEYS_MOVE_ON = passing("{keys} keys of {stream!r} keep changing")
NO_MOMENT = passing(
    "{parts} attempts to read the bucket {bucket!r} at one moment failed: it is written to faster than it can be read"
)
REVISION_NOT_KEPT = Condition(
    "the bucket {bucket!r} no longer keeps revision {revision}, so it is not known what its key held then"
)
KEYS_NOT_KEPT = Condition(
    "it is not known what {keys} keys of the bucket {bucket!r}, such as {key!r}, held at revision {revision}: their "
    "older revisions may have been removed (the bucket's history is {history})"
)
ENTRIES_EXPIRED = Condition(
    "the values of the bucket {bucket!r} expire, and it does not keep all revisions up to {revision}: what has expired "
    "since then is missing"
)
ENTRY_REFUSED = Condition("row {row} was refused: {reason}")
ENTRY_CONFLICTS = Condition(
    "row {row} conflicts: the key {key!r} of the bucket {bucket!r} {has}, and {wants}", Topic.CONFLICT
)
OPTION_NOT_FOR_BUCKETS = Condition("option '{option}' is not for KV buckets, and contradicts the option 'bucket'")
OPTION_NEEDS_BUCKET = Condition("option '{option}' needs the option 'bucket'; it is for KV buckets")
EXACT_NEEDS_STREAM = Condition(
    "option 'deduplicate' is exact, which is not possible for a KV bucket, because later revisions replace stored "
    "ones; set it to window"
)

set_codes(globals())
