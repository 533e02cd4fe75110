"""Streams and buckets."""

from spark_nats.conditions import Condition

STREAM_NOT_FOUND = Condition(
    "the stream {stream!r} does not exist",
    "names are case-sensitive; the streams that there are stand behind it, the one first that was probably meant. "
    "Without that (there is none, or no permission for `$JS.API.STREAM.NAMES`): create it, or let us do it with "
    "`createStream`",
)
STREAM_CANNOT_BE_MADE = Condition(
    "the stream {stream!r} cannot be made: {reason}",
    "the server does not know a field of `createStream`, or does not take its value: correct it, or update the server",
)
BUCKET_NOT_FOUND = Condition(
    "the bucket {bucket!r} does not exist{hint}",
    "create it, or let us do it with `createBucket`; names are case-sensitive",
)
JETSTREAM_UNAVAILABLE = Condition(
    "JetStream does not answer on {prefix} at {server}: it is not enabled there (nats-server -js), or its API has "
    "another prefix",
    "enable it, for the account too; or `domain`, `apiPrefix`",
)
API_ERROR = Condition(
    "{request} failed: {reason} ({code}, {err_code})",
    "the server's own words about a request of the JetStream API, with its codes",
)
BUCKET_UNAVAILABLE = Condition(
    "nobody listens on {subject}: the bucket {bucket!r} does not exist, has no leader, or is not shared with this "
    "account",
    "the same for the state bucket",
)
NO_LEADER = Condition("stream {stream!r} has no leader at the moment", "most of its servers are away: look at them")
LEADER_ALONE = Condition(
    "the leader of stream {stream!r} has not heard of most of the others for {seconds:g} s, and may lead no more",
    "it is cut off from the other servers, or was stopped for a while: another one is elected in a few seconds; look "
    "at the routes between the servers if it stays so",
)
LOSS_DOUBTFUL = Condition(
    "{what}, says a server that may not be up to date",
    "a stream, or its end, is gone, and it was not asked for long enough to be sure (`retryTimeout` below 12 s)",
)
RETENTION_UNSUPPORTED = Condition(
    "stream {stream!r} has {retention} retention: its messages are removed when they are acknowledged; {instead}, or "
    "read a stream with limits retention that sources it",
    "`consume`, `peek`, or a stream that sources it; see [queues](queues.md)",
)
NO_PLACE_FOR_CONSUMER = Condition(
    "stream {stream!r} has had as many consumers as it may have for {seconds:g} s ({limit}); each task that reads "
    "needs one while it runs: raise the limit, or run fewer tasks at once ({reason}, {err_code})",
    "each task that reads needs one consumer of each stream while it runs, and no other; so the limit must be at least "
    "the number of tasks that run at once, beside the consumers of others. It is `max_consumers` of the stream or of "
    "the account, or else the server's [`default_max_consumers`](sizing.md#connections-and-consumers). Raise it, or "
    "run fewer tasks at once (`minPartitions`, `maxRecordsPerPartition`, fewer cores)",
)
STOPPED_DELIVERING = Condition(
    "stream {stream!r} stopped delivering at sequence {sequence}{before}: {reason}",
    "for all of `retryTimeout` no replica had what the stream's leader has; look at the servers of the cluster",
)
READING_FAILED = Condition("reading stream {stream!r} failed: {reason} ({code})", "the server's own words")
MESSAGE_TOO_LARGE = Condition(
    "a message of stream {stream!r} behind sequence {sequence} is larger than {bytes} bytes",
    "larger than any server sends: look at that message (`nats stream get`)",
)
NO_CONSUMER_AT_LEADER = Condition(
    "of {consumers} consumers of stream {stream!r} none was placed at its leader, {leader}",
    "the servers of the cluster do not let a consumer live where the bucket is led; look at them",
)
DELETED_WHILE_READ = Condition("the stream {stream!r} was deleted while it was read", "read the bucket again")
MADE_AGAIN_WHILE_READ = Condition("the stream {stream!r} was deleted and made again at {created} while it was read")
LISTING_CHANGES = Condition(
    "{what} change faster than they can be listed",
    "read a bucket by parts, with `keys`; a table of what the account holds again, or of some streams, with `stream`",
)
KEYS_MOVE_ON = Condition(
    "{keys} keys of {stream!r} move on",
    "they are written to faster than they can be read, for all of `retryTimeout`: read the bucket by parts",
)
NO_MOMENT = Condition(
    "the bucket {bucket!r} is written to faster than it can be read at one moment, after {parts} attempts",
    "`asOf` is `latest`: read fewer keys, with `keys`; give the bucket a longer `history`; or allow direct gets in its "
    "configuration (`allow_direct`)",
)
PATTERN_MATCHES_QUEUES = Condition(
    "the option 'streamPattern' matches {streams}, whose messages are removed when they are acknowledged (workqueue or "
    "interest retention); begin it with {begin} to leave them out{instead}",
    "begin the pattern as it says, to leave them out; or name the stream, with `consume`",
)
PATTERN_MISSES_OFFSETS = Condition(
    "the starting or ending offsets name {streams}, but no such stream matches the option 'streamPattern'",
    "name streams that match, or none",
)
STREAM_NAME_UNSUPPORTED = Condition(
    "the stream {stream!r} cannot be read: its name {violation}; have the pattern leave it out",
    "rename it, or leave it out",
)
NOBODY_TAKES_ROWS = Condition(
    "stream {stream!r} is there and has a leader, but for {seconds:g} s nobody answers on {subject!r}, as when that is "
    "not imported from its account",
    "the stream is another account's, and the subject is not imported from it; see [Permissions](login.md#permissions)",
)
