"""The paths of ours that are measured, each as one function. When the core's interfaces change, this changes."""

from __future__ import annotations

import time
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

from benchmarks import data, environment, raw
from spark_nats.client.publishing import CorePublisher, cut_into_parts
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod
from spark_nats.jetstream.reading.searching import FilterPlacement
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.read.columns import RowBuilder
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import separate_stored_messages
from spark_nats.protocol.encoder import encode_messages
from spark_nats.protocol.headers import MSG_ID, encode_blocks, flatten_headers, wrap_lines_into_blocks
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.subject_columns import SubjectMatcher

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
_ROWS_AT_ONCE = 65536  # as a publisher does
_QUERY = "3f81c09a-6f2e-4b6c-9d55-0a1b2c3d4e5f"


def decode(chunks: Iterable[bytes]) -> Iterator[Messages]:
    """Decode what was received."""
    decoder = Decoder()
    for chunk in chunks:
        yield decoder.feed(chunk).messages


def core_columns(messages: Messages) -> list[pa.Array]:
    """Return all columns that core messages have."""
    return [
        messages.subjects(),
        messages.decoded(messages.reply).values,
        messages.headers().values,
        messages.payloads(),
    ]


def delivered_columns(messages: Messages, rows: RowBuilder, stream: str) -> pa.RecordBatch:
    """Return all seven columns of JetStream deliveries."""
    delivered = Delivered(messages, Deliveries(messages.gather(messages.reply)))
    return rows.build(delivered, stream)


def gotten_columns(messages: Messages, rows: RowBuilder, stream: str) -> pa.RecordBatch:
    """Return all seven columns of what direct gets have brought."""
    stored, gotten, _ = separate_stored_messages(messages)
    return rows.build(Delivered(stored, gotten), stream)


def encode(subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None = None) -> int:
    """Encode messages in parts, as the sink does, and return the bytes. ``headers`` is a map column."""
    return encode_with_blocks(subjects, payloads, None if headers is None else encode_blocks(flatten_headers(headers)))


def encode_with_blocks(subjects: pa.Array, payloads: pa.Array, blocks: pa.Array | None) -> int:
    """Encode messages whose headers are encoded already."""
    size = 0
    for part in cut_into_parts(payloads, blocks, _ROWS_AT_ONCE):
        wire = encode_messages(subjects[part], payloads[part], None, None if blocks is None else blocks[part])
        size += wire.size
    return size


def match(matcher: SubjectMatcher, subjects: pa.BinaryArray) -> int:
    """Match a batch of subjects and return how many match."""
    return int(np.count_nonzero(matcher.match(subjects)))


def copy(chunks: Iterable[bytes]) -> None:
    """Copy the bytes into a buffer that stays: what the memory allows."""
    target = np.empty(max(map(len, chunks)), np.uint8)
    for chunk in chunks:
        target[: len(chunk)] = np.frombuffer(chunk, np.uint8)


def read_stream(url: str, stream: str, start: int, end: int, direct: bool = False) -> int:
    """Read a range of a stream to all seven columns and return the rows."""
    rows = RowBuilder(SCHEMA)
    count = 0
    with environment.connect(url) as connection:
        reader = RangeReader(Range(stream, None, start, end), ReadMethod.GETS if direct else ReadMethod.CONSUMER)
        for delivered in reader.read(JetStream(connection)):
            count += rows.build(delivered, stream).num_rows
    return count


class _Fixed(FilterPlacement):
    """A search that stays on one side, to compare with one that chooses."""

    def __init__(self, by_server: bool) -> None:
        super().__init__(filtered=True)
        self.by_server = by_server

    def begin(self, share: float, average_size: float) -> None:
        """Change nothing."""

    def change(self, seconds: float, passed: int, remaining: int) -> bool:
        """Change nothing."""
        return False


def read_filtered(url: str, stream: str, end: int, filters: list[str], by_server: bool | None) -> int:
    """Read what matches to Arrow and return the rows; None lets the reader choose who searches."""
    rows = RowBuilder(SCHEMA)
    count = 0
    with environment.connect(url) as connection:
        reader = RangeReader(Range(stream, None, 1, end, tuple(filters)))
        if by_server is not None:
            reader._placement = _Fixed(by_server)
        for delivered in reader.read(JetStream(connection)):
            count += rows.build(delivered, stream).num_rows
    return count


def subscribe(url: str, subject: str, count: int, part: int) -> float:
    """Receive ``count`` messages of the feeder as columns and return the seconds."""
    received = credited = 0
    with environment.connect(url) as connection:
        subscription = connection.subscribe(subject)
        connection.flush()
        began = time.perf_counter()
        connection.publish(raw.GO, str(count).encode())
        while received < count:
            messages = connection.next(subscription, 60.0)
            if messages is None:
                raise TimeoutError(f"{received} of {count} messages arrived")
            core_columns(messages)
            received += len(messages)
            while received - credited >= part:
                credited += part
                connection.publish(raw.CREDIT, b"")
        return time.perf_counter() - began


def publish(url: str, subjects: pa.Array, payloads: pa.Array, batch: int) -> float:
    """Publish to core NATS as the sink does, flush, and return the seconds."""
    with environment.connect(url) as connection:
        began = time.perf_counter()
        publisher = CorePublisher(environment.lease_of(connection))
        for rows in data.slices(len(subjects), batch):
            publisher.publish(subjects[rows], payloads[rows])
        publisher.wait_for_sent_rows()
        return time.perf_counter() - began


def publish_stream(
    url: str, stream: str, subjects: pa.Array, payloads: pa.Array, batch: int, with_ids: bool = False
) -> float:
    """Publish to a stream as the sink does, wait for all acknowledgements, and return the seconds."""
    ids = MessageIds(_QUERY, "0", 0)
    with environment.connect(url) as connection:
        began = time.perf_counter()
        publisher = environment.publisher_to(connection, stream)
        for rows in data.slices(len(subjects), batch):
            headers = given = None
            if with_ids:
                lines = _no_lines(rows.stop - rows.start)
                given = ids.generate_distinct_ids(subjects[rows], lines, payloads[rows])
                headers = wrap_lines_into_blocks(lines, [(MSG_ID, given)])
            publisher.publish(subjects[rows], payloads[rows], headers, None, given)
        publisher.wait_for_sent_rows()
        return time.perf_counter() - began


def message_ids(subjects: pa.Array, payloads: pa.Array, batch: int) -> int:
    """Give the rows of one task their message ids, and return how many there are."""
    ids = MessageIds(_QUERY, "0", 0)
    return sum(
        len(ids.generate_distinct_ids(subjects[rows], _no_lines(rows.stop - rows.start), payloads[rows]))
        for rows in data.slices(len(subjects), batch)
    )


def _no_lines(rows: int) -> pa.StringArray:
    return pa.repeat("", rows)


def write_checked(options: dict[str, str], columns: dict[str, pa.Array], batch: int) -> float:
    """Write rows as a Spark task does, with all its checks, and return the seconds."""
    table = pa.RecordBatch.from_pydict(columns)
    began = time.perf_counter()
    parsed = parse_write_options(options, streaming=False)
    batches = (table.slice(rows.start, rows.stop - rows.start) for rows in data.slices(table.num_rows, batch))
    written = write_partition(parsed, WriteTask("", None, 0), batches)
    if written.counts.rows != table.num_rows:
        raise AssertionError(f"{written.counts.rows} of {table.num_rows} rows were written")
    return time.perf_counter() - began


def publish_generated(url: str, stream: str, prefix: str, count: int, size: int, batch: int) -> tuple[float, float]:
    """Make messages, then publish them to a stream; return when that began and ended."""
    subjects, payloads = data.columns(count, size, prefix)
    began = time.monotonic()
    publish_stream(url, stream, subjects, payloads, batch)
    return began, time.monotonic()
