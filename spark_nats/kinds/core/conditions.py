"""The conditions of readers of core NATS."""

from spark_nats.conditions import Condition, set_codes

RECEIVED_LOST = Condition(
    "{messages} messages of {subjects}, which a micro-batch was about to process when the query ended, were lost with "
    "the process that had received them"
)
LISTENING = Condition("core NATS, {subjects}: listening since {since}, connections: {connections}")
RECEIVED_DROPPED = Condition(
    "core NATS, {subjects}: {messages} messages that were received before the query ended, and that no micro-batch was "
    "to process yet, are dropped, {reason}"
)
RECEIVED_KEPT = Condition(
    "core NATS, {subjects}: {messages} messages that were received before the query ended, and that no micro-batch was "
    "to process yet, are in the spool, for the next start"
)
SPOOL_DAMAGED = Condition(
    "messages {first} to {last} of {subjects} in epoch {epoch}, which a micro-batch was about to process when the "
    "query ended, are lost: {damage}"
)
OFFSET_NOT_OF_CORE = Condition(
    "the checkpoint's offset {offset} is not one of core NATS; does the checkpoint belong to another query?"
)
SPOOL_FAILED = Condition(
    "the spool of the option 'spoolLocation' ({location!r}) cannot be {done}: {reason}; it must be a directory or a "
    "URI that the driver can write to"
)
MESSAGES_DROPPED = Condition(
    "core NATS, {subjects}: {messages} messages since {since} were dropped, because {bytes} bytes were waiting already"
)
MESSAGES_MISSED = Condition(
    "core NATS, {subjects}: messages published from {since} to {until} were missed, because {reason}"
)

set_codes(globals())
