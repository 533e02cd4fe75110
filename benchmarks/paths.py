"""The paths of ours that are measured, each as one function. When the core's interfaces change, this changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from benchmarks import data, environment, raw
from spark_nats.jetstream import JetStream, Publisher
from spark_nats.jetstream.reading import Delivered, read_range
from spark_nats.options import parse_write
from spark_nats.protocol.acks import Deliveries
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.encoder import cut_into_parts, encode_message, encode_messages
from spark_nats.protocol.headers import HEADERS_TYPE, HeaderLines, encode_blocks, flatten
from spark_nats.protocol.messages import Messages
from spark_nats.sink.writers import write_partition
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
_MAX_IN_FLIGHT = parse_write({"stream": "ANY", "subject": "any"}, streaming=False).max_in_flight


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


def read_stream(url: str, stream: str, start: int, end: int) -> int:
    """Read a range of a stream to all seven columns and return the rows."""
    rows = RowBuilder(SCHEMA)
    count = 0
    with environment.connect(url) as connection:
        for delivered in read_range(JetStream(connection), stream, start, end):
            count += rows.build(delivered, stream).num_rows
    return count


def subscribe(url: str, subject: str, count: int, part: int) -> float:
    """Receive ``count`` messages of the feeder as columns and return the seconds."""
    received = credited = 0
    with environment.connect(url) as connection:
        subscription = connection.subscribe(subject)
        connection.flush()
        began = time.perf_counter()
        connection.send(encode_message(raw.GO, str(count).encode()))
        while received < count:
            messages = connection.next(subscription, 60.0)
            if messages is None:
                raise TimeoutError(f"{received} of {count} messages arrived")
            core_columns(messages)
            received += len(messages)
            while received - credited >= part:
                credited += part
                connection.send(encode_message(raw.CREDIT, b""))
        return time.perf_counter() - began


def publish(url: str, subjects: pa.Array, payloads: pa.Array, batch: int) -> float:
    """Publish to core NATS as the sink does, flush, and return the seconds."""
    with environment.connect(url) as connection:
        began = time.perf_counter()
        for rows in data.slices(len(subjects), batch):
            for part in cut_into_parts(payloads[rows], None, _ROWS_AT_ONCE):
                connection.send(encode_messages(subjects[rows][part], payloads[rows][part]))
        connection.flush()
        return time.perf_counter() - began


def publish_stream(
    url: str, stream: str, subjects: pa.Array, payloads: pa.Array, batch: int, id_prefix: str | None = None
) -> float:
    """Publish to a stream as the sink does, wait for all acknowledgements, and return the seconds."""
    with environment.connect(url) as connection:
        began = time.perf_counter()
        publisher = Publisher(connection, stream, _MAX_IN_FLIGHT, 60.0)
        for rows in data.slices(len(subjects), batch):
            headers = None
            if id_prefix is not None:
                numbers = pa.array(np.arange(rows.start, rows.stop)).cast(pa.string())
                ids = pc.binary_join_element_wise(id_prefix, numbers, "")
                headers = encode_blocks(_no_headers(len(ids)), [("Nats-Msg-Id", ids)])
            publisher.publish(subjects[rows], payloads[rows], headers)
        publisher.drain()
        return time.perf_counter() - began


def _no_headers(rows: int) -> HeaderLines:
    return flatten(pa.array([], HEADERS_TYPE))._replace(rows=rows)


def write_checked(options: dict[str, str], columns: dict[str, pa.Array], batch: int) -> float:
    """Write rows as a Spark task does, with all its checks, and return the seconds."""
    table = pa.RecordBatch.from_pydict(columns)
    began = time.perf_counter()
    parsed = parse_write(options, streaming=False)
    batches = (table.slice(rows.start, rows.stop - rows.start) for rows in data.slices(table.num_rows, batch))
    written = write_partition(parsed, None, batches)
    if written.rows != table.num_rows:
        raise AssertionError(f"{written.rows} of {table.num_rows} rows were written")
    return time.perf_counter() - began


def publish_generated(url: str, stream: str, prefix: str, count: int, size: int, batch: int) -> tuple[float, float]:
    """Make messages, then publish them to a stream; return when that began and ended."""
    subjects, payloads = data.columns(count, size, prefix)
    began = time.monotonic()
    publish_stream(url, stream, subjects, payloads, batch)
    return began, time.monotonic()
