"""The paths of ours that are measured, each as one function. When the core's interfaces change, this changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from spark_nats.jetstream.reading import Delivered
from spark_nats.protocol.acks import Deliveries
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.encoder import cut_into_parts, encode_messages
from spark_nats.protocol.headers import encode_blocks, flatten
from spark_nats.protocol.messages import Messages
from spark_nats.source.columns import RowBuilder

SCHEMA = (
    StructType()
    .add("subject", StringType())
    .add("reply", StringType())
    .add("headers", MapType(StringType(), ArrayType(StringType())))
    .add("payload", BinaryType())
    .add("stream", StringType())
    .add("sequence", LongType())
    .add("timestamp", TimestampType())
)
_ROWS_AT_ONCE = 65536  # as in spark_nats/sink


def decode(chunks: Iterable[bytes]) -> Iterator[Messages]:
    """Decode what was received."""
    decoder = Decoder()
    for chunk in chunks:
        yield decoder.feed(chunk).messages


def core_columns(messages: Messages) -> list[pa.Array]:
    """Return all columns that core messages have."""
    return [messages.subjects(), messages.replies(), messages.headers().values, messages.payloads()]


def delivered_columns(messages: Messages, rows: RowBuilder, stream: str) -> pa.RecordBatch:
    """Return all seven columns of JetStream deliveries."""
    delivered = Delivered(messages, Deliveries(messages.gather(messages.reply)))
    return rows.build(delivered, stream)


def encode(subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None = None) -> int:
    """Encode messages in parts, as the sink does, and return the bytes. ``headers`` is a map column."""
    return encode_with_blocks(subjects, payloads, None if headers is None else encode_blocks(flatten(headers)))


def encode_with_blocks(subjects: pa.Array, payloads: pa.Array, blocks: pa.Array | None) -> int:
    """Encode messages whose headers are encoded already."""
    size = 0
    for part in cut_into_parts(payloads, blocks, _ROWS_AT_ONCE):
        wire = encode_messages(subjects[part], payloads[part], None, None if blocks is None else blocks[part])
        size += wire.size
    return size


def copy(chunks: Iterable[bytes]) -> None:
    """Copy the bytes into a buffer that stays: what the memory allows."""
    target = np.empty(max(map(len, chunks)), np.uint8)
    for chunk in chunks:
        target[: len(chunk)] = np.frombuffer(chunk, np.uint8)
