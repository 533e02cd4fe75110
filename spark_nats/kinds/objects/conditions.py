"""The conditions of readers and writers of object stores."""

from spark_nats.conditions import Condition, Transient, set_codes

OBJECT_TOO_LARGE = Condition(
    "the object {name!r} of the object store {store!r} has {bytes} bytes, which is more than the option "
    "'maxObjectBytes', {most}"
)
OBJECT_STORE_NOT_FOUND = Condition("the object store {store!r} does not exist{hint}")
OBJECT_NOT_DESCRIBED = Condition(
    "the object {name!r} of the object store {store!r} is not described as object stores do it (ADR-20): {reason}"
)
OBJECT_MOVES_ON = Condition(
    "the object {name!r} of the object store {store!r} was replaced {times} times while it was read"
)
OBJECT_DAMAGED = Condition("the object {name!r} of the object store {store!r} is damaged: {reason}")
LINK_BROKEN = Condition("the object {name!r} of the object store {store!r} is a link that leads nowhere: {reason}")
OBJECT_REFUSED = Condition(
    "the object store {store!r} does not take the object {name!r}: {reason} ({code}, {err_code})"
)
OBJECT_UNFIT = Condition("the object {name!r} cannot be put: {problem}")
OBJECT_STORE_UNAVAILABLE = Condition(
    "nobody listens on {subject}: the object store {store!r} does not exist, has no leader, or is not shared with this "
    "account",
    transient=Transient.ONCE_ESTABLISHED,
)
OPTION_NOT_FOR_OBJECTS = Condition(
    "option '{option}' is not for object stores, and contradicts the option 'objectStore'"
)
OPTION_NEEDS_OBJECT_STORE = Condition("option '{option}' needs the option 'objectStore'; it is for object stores")
FOREACH_WRITES_NO_OBJECTS = Condition(
    "option 'objectStore' is not for NatsForeachWriter, which writes messages; use the sink "
    "(writeStream.format('nats'))"
)

set_codes(globals())
