"""What readers of core NATS say."""

from spark_nats.conditions import Condition

RECEIVED_LOST = Condition(
    "{messages} messages of {subjects}, which a micro-batch was about to process when the query ended, were lost "
    "with the process that had received them",
    "a query of core NATS ended in the middle of a micro-batch; `spoolLocation` keeps such messages",
)
SPOOL_DAMAGED = Condition(
    "messages {first} to {last} of {subjects} in epoch {epoch}, which a micro-batch was about to process when "
    "the query ended, are lost: {damage}",
    "a file below `spoolLocation` was truncated or changed; restore a good copy",
)
OFFSET_NOT_OF_CORE = Condition(
    "the checkpoint's offset {offset} is not one of core NATS; does the checkpoint belong to another query?",
)
SPOOL_FAILED = Condition(
    "the spool of the option 'spoolLocation' ({location!r}) cannot be {done}: {reason}; it must be a directory "
    "or a URI that the driver can write to",
    "the driver must be able to write there",
)
MESSAGES_DROPPED = Condition(
    "core NATS, {subjects}: {messages} messages since {since} were dropped, because {bytes} bytes were waiting already",
    "more messages arrive than the query can process: raise `maxBufferedBytes`, or use a stream",
)
MESSAGES_MISSED = Condition(
    "core NATS, {subjects}: messages published from {since} to {until} were missed, because {reason}",
    "there was no connection, and core NATS stores nothing",
)
