"""The conditions of readers and writers of object stores."""

from spark_nats.conditions import Condition, Transient

OBJECT_TOO_LARGE = Condition(
    "[NATS_OBJECT_TOO_LARGE] the object {name!r} of the object store {store!r} has {bytes} bytes, which is more than "
    "the option 'maxObjectBytes', {most}"
)
OBJECT_STORE_NOT_FOUND = Condition("[NATS_OBJECT_STORE_NOT_FOUND] the object store {store!r} does not exist{hint}")
OBJECT_NOT_DESCRIBED = Condition(
    "[NATS_OBJECT_NOT_DESCRIBED] the object {name!r} of the object store {store!r} is not described as object stores "
    "do it (ADR-20): {reason}"
)
OBJECT_MOVES_ON = Condition(
    "[NATS_OBJECT_MOVES_ON] the object {name!r} of the object store {store!r} was replaced {times} times while it was "
    "read"
)
OBJECT_DAMAGED = Condition(
    "[NATS_OBJECT_DAMAGED] the object {name!r} of the object store {store!r} is damaged: {reason}"
)
LINK_BROKEN = Condition(
    "[NATS_LINK_BROKEN] the object {name!r} of the object store {store!r} is a link that leads nowhere: {reason}"
)
OBJECT_REFUSED = Condition(
    "[NATS_OBJECT_REFUSED] the object store {store!r} does not take the object {name!r}: {reason} ({code}, {err_code})"
)
OBJECT_UNFIT = Condition("[NATS_OBJECT_UNFIT] the object {name!r} cannot be put: {problem}")
OBJECT_STORE_UNAVAILABLE = Condition(
    "[NATS_OBJECT_STORE_UNAVAILABLE] nobody listens on {subject}: the object store {store!r} does not exist, has no "
    "leader, or is not shared with this account",
    transient=Transient.ONCE_ESTABLISHED,
)
OPTION_NOT_FOR_OBJECTS = Condition(
    "[NATS_OPTION_NOT_FOR_OBJECTS] option '{option}' is not for object stores, and contradicts the option 'objectStore'"
)
OPTION_NEEDS_OBJECT_STORE = Condition(
    "[NATS_OPTION_NEEDS_OBJECT_STORE] option '{option}' needs the option 'objectStore'; it is for object stores"
)
FOREACH_WRITES_NO_OBJECTS = Condition(
    "[NATS_FOREACH_WRITES_NO_OBJECTS] option 'objectStore' is not for NatsForeachWriter, which writes messages; use "
    "the sink (writeStream.format('nats'))"
)
