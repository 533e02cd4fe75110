"""Queues."""

from spark_nats.conditions import Condition, Transient

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
WOULD_RELEASE_UNREAD = Condition(
    "the query is to begin at sequence {start} of the work queue {stream!r}, and would remove the messages "
    "before it, from {first} on, unread; leave 'startingOffsets' and 'startingTimestamp' out",
    "remove the options that say where to begin",
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
