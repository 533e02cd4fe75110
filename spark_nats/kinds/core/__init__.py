"""Core NATS: what is published while a query listens; rows are written to it as to streams.

=====================  ======================================================================
:mod:`.read`           the batch and the streaming reader, and its offsets, which count received messages
:mod:`.spool`          micro-batches kept until they are processed
:mod:`.receiver`       the thread that listens while the query runs
:mod:`.backlog`        messages that were received and not read yet, and how they are cut into partitions
=====================  ======================================================================
"""

from spark_nats.kinds.core.options import CoreReadOptions, CoreWriteOptions
from spark_nats.kinds.kind import Kind, Operation
from spark_nats.kinds.streams import STREAMS

CORE = Kind(
    precedence=0,  # the kind of a query that names no other
    named_by=(),
    called=" of core NATS",
    columns=STREAMS.columns,
    read=Operation(CoreReadOptions, "core.read:NatsCoreReader"),
    read_stream=Operation(CoreReadOptions, "core.read:NatsCoreStreamReader"),
    write=Operation(CoreWriteOptions, "streams.write.writers:prepare_and_make_writer"),
    write_stream=Operation(CoreWriteOptions, "streams.write.writers:prepare_and_make_stream_writer"),
    needed=STREAMS.unsuited,
    unsuited=STREAMS.needed,
)
