"""The conditions of options."""

from spark_nats.conditions import Condition

PATH_UNUSED = Condition(
    "[NATS_PATH_UNUSED] the path {path!r} has no meaning here; use the option 'stream' for the name of a stream, or "
    "'bucket', or 'subject' for core NATS{hint}"
)
UNKNOWN_OPTION = Condition("[NATS_UNKNOWN_OPTION] unknown option '{option}'; {hint}")
INVALID_OPTION = Condition("[NATS_INVALID_OPTION] option '{option}' {problem}")
INVALID_CONTEXT = Condition("[NATS_INVALID_CONTEXT] option 'context' sets '{option}', which {problem}")
OPTION_NEEDS_OPTION = Condition("[NATS_OPTION_NEEDS_OPTION] option '{option}' needs the option {needed}")
OPTIONS_CONTRADICT = Condition(
    "[NATS_OPTIONS_CONTRADICT] options '{option}' and '{other}' contradict each other; set one of them"
)
INVALID_TLS_OPTIONS = Condition("[NATS_INVALID_TLS_OPTIONS] the options for TLS ({options}) cannot be used: {reason}")
OFFSETS_FOR_OTHERS = Condition(
    "[NATS_OFFSETS_FOR_OTHERS] option '{option}' has offsets for {offsets}, but the streams to read are {streams}"
)
MORE_THAN_MOST = Condition(
    "[NATS_MORE_THAN_MOST] option 'minOffsetsPerTrigger' is {least}, which is more than 'maxOffsetsPerTrigger', "
    "{most}; no micro-batch can satisfy both, so swap or correct them"
)
LOSS_ACCEPTED = Condition("[NATS_LOSS_ACCEPTED] {loss}; the query continues with {rest}")
