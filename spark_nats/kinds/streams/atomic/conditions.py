"""Errors of rows that are stored together or not at all."""

from spark_nats.conditions import Condition, set_codes

SAME_ID_TOGETHER = Condition(
    "row {row} of the task cannot be sent: an earlier row has the same message id, and rows that are stored together "
    "must have different ones; nothing was sent"
)
SAME_SUBJECT_TOGETHER = Condition(
    "row {row} of the task cannot be sent: an earlier row has the same subject{made} (this one's is {subject!r}), and "
    "the expected last message of a subject is compared before any row is stored; nothing was sent"
)
LAST_MESSAGE_TOGETHER = Condition(
    "row {row} of the task cannot be sent: it has the header {header}, which only the first of rows that are stored "
    "together may have; nothing was sent"
)
TOO_MANY_ROWS_TOGETHER = Condition(
    "the partition has more than {rows} rows, which cannot be stored together; nothing was sent; make the partitions "
    "smaller (repartition, or 'maxOffsetsPerTrigger' of the source), or drop the option 'atomic'"
)
TOO_MANY_BYTES_TOGETHER = Condition(
    "the partition has more than {mebibytes} MiB, which cannot be stored together; nothing was sent; make the "
    "partitions smaller, or drop the option 'atomic'"
)
SERVER_STORES_SINGLY = Condition(
    "storing rows together needs nats-server 2.12 or newer, and this is {version}; nothing was sent; upgrade the "
    "servers, or drop the option 'atomic'"
)
STREAM_STORES_SINGLY = Condition(
    "stream {stream!r} does not store rows together (its allow_atomic is not true); nothing was sent; set allow_atomic "
    "to true, or drop the option 'atomic'"
)
INCREMENTS_LOST_TOGETHER = Condition(
    "stream {stream!r} has counters, and the nats-server that leads it, {version}, would store rows of increments "
    "together as empty messages, and refuse every later increment of their subjects; nothing was sent; upgrade the "
    "servers to 2.14.3 or newer, or drop the option 'atomic'"
)
ONE_STREAM_TOGETHER = Condition(
    "option 'atomic' stores the rows of a partition together, which a server does in one stream only; name one in the "
    "option 'stream'"
)

set_codes(globals())
