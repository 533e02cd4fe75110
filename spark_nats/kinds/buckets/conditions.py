"""What readers and writers of KV buckets say."""

from spark_nats.conditions import Condition, Transient

NO_SUCH_REVISION = Condition(
    "option 'asOf' is {revision}, but the last revision of the bucket {bucket!r} is {last}",
    "set a revision that the bucket has reached, or a time in ISO 8601, such as `2026-11-01T00:00:00Z`",
)
MOMENT_TO_COME = Condition(
    "option 'asOf' is {time}, which is still to come: the bucket {bucket!r} said that it is {now}",
    "set a time that has passed by the server's clock, or `latest`",
)
MOMENT_BEFORE_BUCKET = Condition(
    "option 'asOf' is {time}, before the bucket {bucket!r} was made at {created}",
    "set a later time",
)
NO_CONSUMER_AT_LEADER = Condition(
    "of {consumers} consumers of stream {stream!r} none was placed at its leader, {leader}",
    "the servers of the cluster placed no consumer on the leader of the bucket; check them",
    transient=Transient.ALWAYS,
)
DELETED_WHILE_READ = Condition("the stream {stream!r} was deleted while it was read", "read the bucket again")
MADE_AGAIN_WHILE_READ = Condition(
    "the stream {stream!r} was deleted and created again at {created} while it was read",
)
KEYS_MOVE_ON = Condition(
    "{keys} keys of {stream!r} keep changing",
    "for all of `retryTimeout`, they were written faster than they can be read: read the bucket in parts",
    transient=Transient.ALWAYS,
)
NO_MOMENT = Condition(
    "the bucket {bucket!r} is written to faster than it can be read at one moment, after {parts} attempts",
    "`asOf` is `latest`: read fewer keys, with `keys`, give the bucket a longer `history`, or allow direct gets "
    "in its configuration (`allow_direct`)",
    transient=Transient.ALWAYS,
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
ENTRY_REFUSED = Condition("row {row} was refused: {reason}")
ENTRY_CONFLICTS = Condition(
    "row {row} conflicts: the key {key!r} of the bucket {bucket!r} {has}, and {wants}",
    "somebody else has written the key since: read it again and decide anew; or set `onConflict` = `skip`",
)
