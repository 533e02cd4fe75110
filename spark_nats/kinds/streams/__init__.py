"""Streams: exact, replayable, parallel."""

from spark_nats.kinds.kind import Kind, Operation
from spark_nats.kinds.streams.conditions import OPTION_FOR_CORE, OPTION_NEEDS_STREAM
from spark_nats.kinds.streams.options import ReadOptions, WriteOptions
from spark_nats.kinds.streams.progress import ShownReadOptions
from spark_nats.kinds.streams.read.schema import SCHEMA

STREAMS = Kind(
    precedence=1,
    named_by=("stream", "streamPattern"),
    called="",
    columns=lambda given: ("a message", SCHEMA),
    read=Operation(ReadOptions, "streams.read.readers:NatsReader"),
    read_stream=Operation(ShownReadOptions, "streams.progress:stream_reader"),
    write=Operation(WriteOptions, "streams.write.writers:prepare_and_make_writer"),
    write_stream=Operation(WriteOptions, "streams.write.writers:prepare_and_make_stream_writer"),
    needed=lambda option, writing: OPTION_NEEDS_STREAM(
        option=option, otherwise="rows go to core NATS" if writing else "the subjects of core NATS are read"
    ),
    unsuited=lambda option, writing: OPTION_FOR_CORE(option=option, doing="writing to" if writing else "reading"),
)
