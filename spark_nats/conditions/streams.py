"""Streams and buckets."""

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
OBJECT_STORE_NOT_FOUND = Condition(
    "the object store {store!r} does not exist{hint}",
    "create it (`nats object add`), or, for writing, let us do it with `createObjectStore`; names are case-sensitive",
)
OBJECT_NOT_DESCRIBED = Condition(
    "the object {name!r} of the object store {store!r} is not described as object stores do it (ADR-20): {reason}",
    "somebody has published to the store's subjects (`$O.…`) by hand: put the object again, or leave it out with "
    "`objectPattern`",
)
OBJECT_MOVES_ON = Condition(
    "the object {name!r} of the object store {store!r} was replaced {times} times while it was read",
    "it is replaced faster than it can be read: read it later, or leave it out with `objectPattern`",
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
RETENTION_UNSUPPORTED = Condition(
    "stream {stream!r} has {retention} retention: its messages are removed when they are acknowledged; "
    "{instead}, or read a stream with limits retention that sources it",
    "use `consume`, `peek`, or a stream that sources it; see [queues](queues.md)",
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
NO_CONSUMER_AT_LEADER = Condition(
    "of {consumers} consumers of stream {stream!r} none was placed at its leader, {leader}",
    "the servers of the cluster placed no consumer on the leader of the bucket; check them",
    transient=Transient.ALWAYS,
)
DELETED_WHILE_READ = Condition("the stream {stream!r} was deleted while it was read", "read the bucket again")
MADE_AGAIN_WHILE_READ = Condition(
    "the stream {stream!r} was deleted and created again at {created} while it was read",
)
LISTING_CHANGES = Condition(
    "{what} change faster than they can be listed",
    "read a bucket in parts, with `keys`; read a table of what the account holds again, or only for some streams, with "
    "`stream`",
    transient=Transient.ALWAYS,
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
PATTERN_MATCHES_QUEUES = Condition(
    "the option 'streamPattern' matches {streams}, whose messages are removed when they are acknowledged "
    "(workqueue or interest retention); begin it with {begin} to leave them out{instead}",
    "begin the pattern as the error says, to exclude them; or name the stream and set `consume`",
)
PATTERN_MISSES_OFFSETS = Condition(
    "the starting or ending offsets name {streams}, but no such stream matches the option 'streamPattern'",
    "name streams that match, or none",
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
