"""What tests share: queries in few words, with and without Spark, and errors as their reader sees them."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, BinaryType, LongType, MapType, StringType, StructType, TimestampType

from spark_nats import NatsDataSource
from spark_nats.embedded import NatsServer
from spark_nats.errors import NatsError
from spark_nats.kinds.streams.write.checks import prepare_write_and_make_marks
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask, Written
from tests.connections import write_options
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

NATS_CLI = Path(__file__).parents[2] / ".tools" / "natscli"
ReaderOrWriter = TypeVar("ReaderOrWriter")

# As Python prints an exception; Spark hands the text on, inside its own.
_ERROR = re.compile(r"^spark_nats\.errors\.(\w+): (.+)$", re.MULTILINE)


def nats(builder: ReaderOrWriter, server: Server, **options: Any) -> ReaderOrWriter:
    """`spark.read`, `spark.readStream`, `df.write` or `df.writeStream`, set to a server with these options."""
    configured: Any = builder
    return configured.format("nats").options(**{"servers": server.url, **options})


def save(frame: DataFrame, server: Server, **options: Any) -> None:
    """Write a DataFrame to NATS."""
    nats(frame.write, server, **options).mode("append").save()


def run_nats(server: Server, *words: str, cwd: Path | None = None) -> str:
    """What the nats command line prints, which must end well; the test is skipped where it is not there."""
    found = shutil.which("nats", path=NATS_CLI)
    if not found:
        pytest.skip("needs the nats command line: scripts/nats-cli brings it")
    command = [found, "--server", server.url, *words]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, f"nats {' '.join(words)}: {ended.stderr}{ended.stdout}"
    return ended.stdout


@contextmanager
def running(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end of the block, and fail if it failed."""
    try:
        yield query
        failed = query.exception()
        assert failed is None, failed
    finally:
        query.stop()


@contextmanager
def collecting(frame: DataFrame, name: str) -> Iterator[tuple[StreamingQuery, Callable[[], list[Row]]]]:
    """Run a query while the block runs; also what returns the rows that it has read so far."""
    spark = frame.sparkSession
    query = frame.writeStream.format("memory").queryName(name).start()
    try:
        with running(query):
            yield query, lambda: spark.table(name).collect()
    finally:
        spark.catalog.dropTempView(name)


def finish(query: StreamingQuery, timeout: int = 240) -> StreamingQuery:
    """Wait for the end of a query that ends by itself. Raises what made it fail."""
    with running(query):
        assert query.awaitTermination(timeout), f"the query still runs after {timeout} s"
    return query


def forget_last_commit(checkpoint: Path) -> None:
    """Make the last micro-batch one that Spark is not sure to have finished, as after a crash."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()


def error_of(action: Callable[[], object]) -> str:
    """The one sentence of ours in the error that an action ends with, such as `OptionError: option ...`, uncoded."""
    with pytest.raises(PySparkException) as raised:
        action()
    sentences = {f"{kind}: {uncoded(text)}" for kind, text in _ERROR.findall(str(raised.value))}
    assert len(sentences) == 1, f"not one sentence of ours but {sentences or 'none'} in: {raised.value}"
    return sentences.pop()


def uncoded(said: str) -> str:
    """A sentence without the code before it, which errors have where they leave us for Spark, and lines of the log."""
    return re.sub(r"^\[NATS_[A-Z_]+\] ", "", said)


def first_lines_of(action: Callable[[], object]) -> str:
    """The first three lines of what Spark shows of the error that an action ends with."""
    with pytest.raises(PySparkException) as raised:
        action()
    return "\n".join(str(raised.value).splitlines()[:3])


def monitoring(server: Server, page: str) -> dict[str, Any]:
    """A page of the server's monitoring, such as `varz` or `connz?subs=1`."""
    with urllib.request.urlopen(f"{server.monitoring_url}/{page}", timeout=30) as answer:
        decoded: dict[str, Any] = json.load(answer)
    return decoded


def reload(server: NatsServer, config: str) -> None:
    """Have a server take another configuration while it runs.

    The file repeats what a flag has said of JetStream, since servers 2.10 forget that, and would end JetStream.
    """
    file = server.log_path.parent / "server.conf"
    if (store := file.parent / "store").exists() and str(store) not in config:
        config += f"\njetstream {{ store_dir: {json.dumps(str(store))} }}\n"
    file.write_text(config)
    assert server.pid
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: "Reloaded server configuration" in server.log_path.read_text())


def wait_for_subscriptions(server: Server, *subjects: str, count: int = 1) -> None:
    """Wait until there are so many subscriptions to each of these subjects or wildcards."""

    def known() -> bool:
        page = monitoring(server, "subsz?subs=1&limit=10000")
        listed = [entry["subject"] for entry in page.get("subscriptions_list") or []]
        return all(listed.count(subject) >= count for subject in subjects)

    wait_until(known, timeout=120)


# Without Spark: what the data source does when Spark asks it, in this process


MESSAGE = (
    StructType()
    .add("subject", StringType())
    .add("reply", StringType())
    .add("headers", MapType(StringType(), ArrayType(StringType())))
    .add("payload", BinaryType())
    .add("stream", StringType())
    .add("sequence", LongType())
    .add("timestamp", TimestampType())
)
"""All columns of a message."""
SEQUENCE = StructType().add("sequence", LongType())
PAYLOAD = StructType().add("payload", BinaryType())


def source(server: Server | str, **options: Any) -> NatsDataSource:
    """The data source for a server, or its URL, with options as Spark hands them on: as text."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return NatsDataSource({"servers": server if isinstance(server, str) else server.url, **texts})


def batch_reader(server: Server | str, schema: StructType = SEQUENCE, **options: Any) -> Any:
    """What reads a batch."""
    return source(server, **options).reader(schema)


def stream_reader(server: Server | str, schema: StructType = SEQUENCE, **options: Any) -> Any:
    """What reads for a streaming query."""
    return source(server, **options).streamReader(schema)


def read_partitions(pickled: bytes, partitions: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows of partitions, each read as its task does it: by a reader that came pickled, as its partition did."""
    tasks = [(pickle.loads(pickled), pickle.loads(pickle.dumps(partition))) for partition in partitions]
    return [row for task, partition in tasks for batch in task.read(partition) for row in batch.to_pylist()]


def read(server: Server | str, schema: StructType = MESSAGE, **options: Any) -> list[dict[str, Any]]:
    """The rows of a batch, in the order of its partitions."""
    reader = batch_reader(server, schema, **options)
    return read_partitions(pickle.dumps(reader), reader.partitions())


def read_sequences(server: Server | str, **options: Any) -> list[int]:
    return sequences_of(read(server, SEQUENCE, **options))


def read_payloads(server: Server | str, **options: Any) -> list[bytes]:
    return [row["payload"] for row in read(server, PAYLOAD, **options)]


def numbers_of(rows: Iterable[Any]) -> list[int]:
    """The payloads of rows, Spark's or those of a read without it, as numbers."""
    return [int(row["payload"]) for row in rows]


def texts_of(rows: Iterable[Any]) -> list[str]:
    """The payloads of such rows as texts."""
    return [row["payload"].decode() for row in rows]


def sequences_of(rows: Iterable[Any]) -> list[int]:
    """The sequences of such rows."""
    return [row["sequence"] for row in rows]


def batch_sequences(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """The sequences in what a task has read."""
    return [sequence for batch in batches for sequence in batch.column("sequence").to_pylist()]


def numbered_rows(prefix: str, numbers: range) -> pa.Table:
    """Rows with numbers as payloads, on the subjects `<prefix>.<number>`."""
    return pa.table({"subject": [f"{prefix}.{i}" for i in numbers], "payload": [str(i) for i in numbers]})


class Query:
    """A streaming query: what Spark asks of a reader, one micro-batch after the other.

    Args:
        checkpoint: where a query before it stopped; None begins a new one.
    """

    def __init__(self, reader: Any, checkpoint: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self._pickled = pickle.dumps(reader)
        self.offset: dict[str, Any] = reader.initialOffset() if checkpoint is None else checkpoint

    def micro_batch(self) -> list[dict[str, Any]]:
        """The rows of the next micro-batch; none if there is nothing new."""
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if end == self.offset:
            return []
        rows = read_partitions(self._pickled, self.reader.partitions(self.offset, end))
        self.offset = json.loads(json.dumps(end))  # by way of the checkpoint
        self.reader.commit(end)
        return rows

    def rows(self, count: int) -> list[dict[str, Any]]:
        """The next rows, at least so many, however many micro-batches they take."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            found.extend(self.micro_batch())
            return len(found) >= count

        wait_until(enough)
        return found

    def look(self, client: NatsPy, what: str = "STREAM.INFO.>") -> None:
        """Ask the server for something new, which is not there."""
        with client.collect(f"$JS.API.{what}") as asked:

            def has_asked() -> bool:
                self.reader._query.idling.forget()
                assert self.micro_batch() == []
                return bool(asked.messages)

            wait_until(has_asked)

    def available(self) -> list[list[dict[str, Any]]]:
        """The micro-batches up to what there is now."""
        self.reader.prepareForTriggerAvailableNow()
        found: list[list[dict[str, Any]]] = []
        before = None
        while before != self.offset:
            before = self.offset
            rows = self.micro_batch()
            if before != self.offset:
                found.append(rows)
        return found


def write(server: Server | str, rows: pa.Table, **options: Any) -> None:
    """Write rows as a task does it, in batches of the size that Spark makes, after what the driver does before it."""
    writer = source(server, **options).writer(from_arrow_schema(rows.schema), overwrite=False)
    task = pickle.loads(pickle.dumps(writer))
    writer.commit([task.write(iter(rows.to_batches(10_000)))])


@contextmanager
def repeating(action: Callable[[], object], pause: float) -> Iterator[None]:
    """Do something again and again in another thread, with pauses, while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause):
            action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def storing_numbers(server: Server, subject: str, at_once: int, pause: float) -> Iterator[list[int]]:
    """Store 0, 1, … in a stream while the block runs; yields a list with their count so far."""
    count = [0]
    with NatsPy(server.url) as client:

        def store() -> None:
            client.store(subject, range(count[0], count[0] + at_once))
            count[0] += at_once

        with repeating(store, pause):
            yield count


TYPES = {
    "subject": pa.string(),
    "payload": pa.binary(),
    "headers": pa.map_(pa.string(), pa.string()),
    "msg_id": pa.string(),
    "expected_last_subject_sequence": pa.int64(),
}


def table(**columns: list[Any]) -> pa.Table:
    """Rows with these columns; headers are dicts with one value for each name."""
    if "headers" in columns:
        columns["headers"] = [list(each.items()) for each in columns["headers"]]
    return pa.table({name: pa.array(values, TYPES.get(name)) for name, values in columns.items()})


def run_task(
    servers: str, rows: pa.Table, batch: str = "0", partition: int = 0, prepared: bool = True, **options: Any
) -> Written:
    """What a task of a micro-batch does, after the driver; the same micro-batch again is a replay."""
    parsed = write_options(servers, **options)
    if prepared:
        prepare_write_and_make_marks(parsed, streaming=True, columns=rows.schema.names)
    return write_partition(parsed, WriteTask(options["stream"], batch, partition), iter(rows.to_batches(100)))


MENDING = "; mend the row, or set the option 'badRows' to stream or drop, so that the other rows are stored"
"""What errors about one row end with."""


def sentence_of(action: Callable[[], object]) -> str:
    """The error that an action without Spark ends with, such as `OptionError: option ...`, uncoded."""
    with pytest.raises(NatsError) as raised:
        action()
    return f"{type(raised.value).__name__}: {uncoded(str(raised.value))}"
