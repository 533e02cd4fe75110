"""What readers and writers of object stores say."""

from spark_nats.conditions import Condition, Transient

OBJECT_TOO_LARGE = Condition(
    "the object {name!r} of the object store {store!r} has {bytes} bytes, which is more than the option "
    "'maxObjectBytes', {most}",
    "raise `maxObjectBytes`, and the memory of executors with it; or leave such objects out with `objectPattern`, or "
    "`content` with the schema",
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
OBJECT_REFUSED = Condition(
    "the object store {store!r} does not take the object {name!r}: {reason} ({code}, {err_code})",
    "the store is sealed, or full (`max_bytes`), or has other limits that are too small",
)
OBJECT_UNFIT = Condition(
    "the object {name!r} cannot be put: {problem}",
    "correct or leave out the row; the objects of rows before it, and of other tasks, are put",
)
OBJECT_STORE_UNAVAILABLE = Condition(
    "nobody listens on {subject}: the object store {store!r} does not exist, has no leader, or is not shared with this "
    "account",
    "create it, or let us do it with `createObjectStore`; look at the servers of the cluster",
    transient=Transient.ONCE_ESTABLISHED,
)
