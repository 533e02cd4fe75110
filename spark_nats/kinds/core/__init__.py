"""Core NATS: what is published while it is listened to. Rows are written to it as to streams.

=====================  ======================================================================
:mod:`.read`           the batch and the streaming reader, and its offsets: messages counted by their receiver
:mod:`.slices`         what was received cut into partitions
:mod:`.spool`          micro-batches kept until they are processed
:mod:`.receiver`       what listens while the query runs
:mod:`.backlog`        what has been received and not been read yet
=====================  ======================================================================
"""

from spark_nats.kinds.core.options import CoreReadOptions, CoreWriteOptions
from spark_nats.kinds.kind import Kind, Operation
from spark_nats.kinds.streams import STREAMS

CORE = Kind(
    named_by=(),  # it is what is read and written where nothing else is named
    called=" of core NATS",
    columns=STREAMS.columns,
    read=Operation(CoreReadOptions, "core.read:NatsCoreReader"),
    read_stream=Operation(CoreReadOptions, "core.read:NatsCoreStreamReader"),
    write=Operation(CoreWriteOptions, "streams.write.writers:writer"),
    write_stream=Operation(CoreWriteOptions, "streams.write.writers:stream_writer"),
    needed=STREAMS.unsuited,
    unsuited=STREAMS.needed,
)
