"""Much more than anybody has: what grows, what a restart costs, and how long a first micro-batch takes.

There are five grounds: a bucket of many keys, many streams, many consumers of one stream, a stream of many bytes, and a
query that copies a stream while its server restarts again and again.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import pyarrow as pa

from benchmarks.environment import (
    Server,
    connect,
    cpu_seconds,
    publisher_to,
    python_megabytes,
    spark_cpu_seconds,
    spark_processes,
)
from benchmarks.measure import Facts, Grid, LeftOut, progress, timed
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from spark_nats.embedded import NatsServer
from spark_nats.errors import NatsError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.api import Request
from spark_nats.jetstream.messages import ask_first_message_from
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.api import Api
from spark_nats.protocol.headers import MSG_ID, encode_block
from tests.servers import end

_STREAM = "LARGE"
_BUCKET = "LARGE"
_VALUE = b"x" * 16
_GROUPS = 100  # of keys, by their first token
_BLOCK = 100_000  # rows that are made and sent at once
_AT_ONCE = 100  # streams or consumers that are made at once
_MESSAGE = b"y" * 4096
_FEW = 10  # messages that the filter matches
_LAST = 1000  # messages at the end, and at the most in a first micro-batch
_RATE = 1000  # rows a second that are copied
_TICK = 0.1  # seconds between those that are published together
_IDLE = 20.0
_SETTLES = 12.0
_PATIENCE = 900.0
_LOOKS = 0.2  # seconds between looks at memory
_ROOM = 1.3  # times the bytes of a stream that the disk must have left
_COLUMNS = ["s", "rows", "server CPU s", "Python CPU s", "JVM CPU s", "Python MB", "JVM MB", "server MB", "requests"]


@dataclass(frozen=True)
class _Sizes:
    keys: int
    streams: int
    consumers: int
    messages: int  # of the stream with many bytes
    seconds: float  # of copying
    restarts_after: float  # seconds of copying between two restarts


_WHOLE = _Sizes(10_000_000, 5000, 10_000, 7_300_000, 7200.0, 600.0)
_QUICK = _Sizes(100_000, 100, 200, 50_000, 20.0, 7.0)


def run(settings: Settings) -> Iterator[Facts | Grid | LeftOut]:
    """Measure each ground, on a server of its own."""
    if settings.servers:
        yield LeftOut("large", "it restarts a server of its own")
        return
    sizes = _QUICK if settings.quick else _WHOLE
    with start_spark() as session:
        with _large_server() as small:
            _warm(session, small)
        for ground in settings.grounds or MEASURES:
            with _large_server() as large:
                yield from MEASURES[ground](session, large, sizes)


def _warm(session: Session, small: _LargeServer) -> None:
    """Let Spark read a little, as a batch and by a query: what it does for the first time takes seconds."""
    _make_stream(small, _STREAM, "large.>")
    _fill(small, _STREAM, _LAST, lambda i: f"large.{i}", _VALUE)
    options = {"stream": _STREAM, "startingOffsets": "earliest"}
    _batch(session, small, _LAST, options)
    with _Query(session, small, options) as query:
        query.wait_for(_LAST)


class _LargeServer(Server):
    """A server with a store of its own, which can begin anew."""

    def __init__(self, embedded: NatsServer, store: Path) -> None:
        super().__init__(embedded.url, embedded.monitoring_url, embedded.pid)
        self.store = store
        self._embedded = embedded

    def restart(self, how: signal.Signals) -> list[float | None]:
        """End the server and start it, and return what stands in a row of :func:`_restarts`."""
        with timed() as ends:
            end(self._embedded, how, _PATIENCE)
        with timed() as starts:
            self._embedded.start()
        self.pid, self._monitoring_url = self._embedded.pid, self._embedded.monitoring_url
        return [ends(), starts(), cpu_seconds([self.pid]), self.megabytes("VmRSS"), self.megabytes("VmHWM")]

    def megabytes(self, field: str = "VmRSS") -> float:
        """Return a line of the kernel's status page."""
        return _megabytes(self.pid, field)

    def stored(self) -> tuple[float, int]:
        """Return the MB that its store takes of the disk, and in how many files."""
        found = [each.stat().st_blocks * 512 for each in self.store.rglob("*") if each.is_file()]
        return sum(found) / 1e6, len(found)

    def requests(self) -> int:
        """Return how many requests JetStream's API has had since the server began."""
        return int(self.monitoring("jsz")["api"]["total"])


@contextmanager
def _large_server() -> Iterator[_LargeServer]:
    with tempfile.TemporaryDirectory(prefix="spark-nats-large-") as directory:
        store = Path(directory)
        with NatsServer(store_dir=store, ready_timeout=_PATIENCE) as embedded:
            large = _LargeServer(embedded, store)
            try:
                yield large
            finally:
                if embedded.running:
                    end(embedded, signal.SIGKILL)  # what it would write is removed anyway


def _megabytes(pid: int | None, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(f"{field}:")), 0.0)


def _filled(facts: Facts, large: _LargeServer, seconds: float) -> None:
    megabytes, files = large.stored()
    facts.add("filled in", seconds, "s")
    facts.add("memory of the server then", large.megabytes(), "MB")
    facts.add("the store on the disk", megabytes, "MB")
    facts.add("files of the store", files, "")


def _restarts(title: str, large: _LargeServer) -> Grid:
    """Kill the server and let it begin anew, and once more in order."""
    columns = ["ends in s", "ready in s", "CPU s until ready", "MB when ready", "MB at the most"]
    grid = Grid(f"{title}: the server begins anew", columns)
    for name, how in (("killed", signal.SIGKILL), ("ended in order", signal.SIGTERM)):
        progress(f"{grid.title}: {name}")
        grid.rows[name] = large.restart(how)
    grid.remarks = ["ready: it serves clients, and has all streams; its files may be in the machine's memory"]
    return grid


class _Peak:
    """Looks at the memory of Spark's processes again and again while a block runs, and keeps the most.

    Attributes:
        python: MB of all Python processes together.
        java: MB of the JVM.
        server: MB of the server.
    """

    def __init__(self, large: _LargeServer) -> None:
        self.python = self.java = self.server = 0.0
        self._large = large
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOKS):
            self.python = max(self.python, _spark_megabytes("python"))
            self.java = max(self.java, _spark_megabytes("java"))
            self.server = max(self.server, self._large.megabytes())


def _spark_megabytes(name: str) -> float:
    """Return the MB of the largest of Spark's processes whose name has this in it."""
    found = [0.0]
    for process in spark_processes():
        with suppress(psutil.Error):
            if name in process.name():
                found.append(process.memory_info().rss / 1e6)
    return max(found)


def _row(large: _LargeServer, job: Callable[[], int | None]) -> list[float | None]:
    """Do a job, and return what it cost."""
    before, asked, used = spark_cpu_seconds(), large.requests(), cpu_seconds([large.pid])
    with _Peak(large) as peak, timed() as seconds:
        rows = job()
    after = spark_cpu_seconds()
    return [
        seconds(),
        rows,
        cpu_seconds([large.pid]) - used,
        after["python"] - before["python"],
        after["java"] - before["java"],
        peak.python,
        peak.java,
        peak.server,
        large.requests() - asked,
    ]


def _command(large: _LargeServer, *arguments: str) -> list[float | None]:
    """Run ``spark-nats`` and return what it cost."""
    asked, used = large.requests(), cpu_seconds([large.pid])
    command = [sys.executable, "-m", "spark_nats.cli", *arguments, "--servers", large.url]
    peak = python = 0.0
    with timed() as seconds, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        while process.poll() is None:
            peak = max(peak, _megabytes(process.pid, "VmHWM"))
            with suppress(psutil.Error):
                python = cpu_seconds([process.pid])
            time.sleep(0.02)
        if process.returncode:
            said.seek(0)
            raise AssertionError(f"{' '.join(arguments)}: {said.read().decode()[-500:]}")
    server = cpu_seconds([large.pid]) - used
    return [seconds(), None, server, python, None, peak, None, large.megabytes(), large.requests() - asked]


def _add(grid: Grid, name: str, values: list[float | None]) -> None:
    """Add a row, and say so: the whole table may take an hour."""
    grid.rows[name] = values
    figures = zip(grid.columns, values, strict=True)
    said = ", ".join(f"{column} {value:,.1f}" for column, value in figures if value is not None)
    print(f"{grid.title}: {name}: {said}", file=sys.stderr, flush=True)


def _batch(
    session: Session, large: _LargeServer, expected: int | None, options: dict[str, Any], schema: str = ""
) -> int:
    """Read a batch and count its rows: so many, unless that is None."""
    reader = session.spark.read.format("nats").options(**large.options, **options)
    rows = int((reader.schema(schema) if schema else reader).load().count())
    if expected not in (None, rows):
        raise AssertionError(f"{rows} rows were read instead of {expected}: {options}")
    return rows


class _Query:
    """A streaming query that counts its rows, started with ``with``.

    Attributes:
        checkpoint: its directory.
    """

    def __init__(self, session: Session, large: _LargeServer, options: dict[str, Any]) -> None:
        self.checkpoint = Path(session.directory, f"large-{time.time_ns()}")
        frame = session.spark.readStream.format("nats").options(**large.options, **options).load()
        self._writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        self._rows = 0

    def __enter__(self) -> Self:
        self._query = self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def _take(self, frame: Any, _: int) -> None:
        self._rows += frame.count()

    def wait_for(self, rows: int) -> int:
        """Wait until there were so many rows; for none, until the query looks for some."""
        deadline = time.monotonic() + _PATIENCE
        while self._rows < rows or not list(self.checkpoint.glob("offsets/[0-9]*")):
            if error := self._query.exception():
                raise error
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._rows} rows came of {rows}")
            time.sleep(0.02)
        return self._rows

    def offset_kilobytes(self) -> float:
        """Return the size of the first offset in the checkpoint."""
        return len(Path(self.checkpoint, "offsets", "0").read_bytes().splitlines()[-1]) / 1000


def _start_and_wait(stack: ExitStack, query: _Query, rows: int) -> int:
    stack.enter_context(query)
    return min(query.wait_for(rows), rows)


def _store(large: _LargeServer, subject: str) -> None:
    with connect(large.url) as connection:
        connection.request(subject, b"")


def _make(large: _LargeServer, requests: Sequence[Request]) -> None:
    with connect(large.url) as connection:
        for start in range(0, len(requests), _AT_ONCE):
            answers = JetStream(connection).request_all(requests[start : start + _AT_ONCE], 60.0)
            if errors := [each for each in answers if isinstance(each, NatsError)]:
                raise errors[0]


def _make_stream(large: _LargeServer, name: str, subjects: str, **config: Any) -> None:
    body = {"name": name, "subjects": [subjects], "storage": "file", "allow_direct": True, **config}
    _make(large, [Request(Api.STREAM_CREATE, (name,), body)])


def _fill(large: _LargeServer, stream: str, count: int, subject: Callable[[int], str], payload: bytes) -> None:
    """Store messages, so many at a time that the process stays small."""
    block = max(1, min(_BLOCK, (64 << 20) // len(payload)))
    with connect(large.url) as connection:
        publisher = publisher_to(connection, stream)
        for start in range(0, count, block):
            progress(f"large: filling {stream}, {start:,} of {count:,}")
            subjects = [subject(i) for i in range(start, min(count, start + block))]
            publisher.publish(pa.array(subjects, pa.string()), pa.repeat(payload, len(subjects)))
        publisher.wait_for_sent_rows()


# Many keys


def _keys(session: Session, large: _LargeServer, sizes: _Sizes) -> Iterator[Facts | Grid]:
    count, title = sizes.keys, f"large: a bucket of {sizes.keys:,} keys"
    config = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "deny_delete": True, "discard": "new"}
    _make_stream(large, f"KV_{_BUCKET}", f"$KV.{_BUCKET}.>", **config)
    facts = Facts(title)
    with timed() as seconds:
        _fill(large, f"KV_{_BUCKET}", count, lambda i: f"$KV.{_BUCKET}.{i % _GROUPS:02}.key-{i:08}", _VALUE)
    _filled(facts, large, seconds())
    yield facts
    yield _restarts(title, large)
    grid = Grid(f"{title}: reads", _COLUMNS)
    bucket, group = {"bucket": _BUCKET}, count // _GROUPS
    reads: dict[str, tuple[int | None, dict[str, Any]]] = {
        "keys of one group": (group, {"keys": "07.>"}),
        "keys of one group, asOf=latest": (group, {"asOf": "latest", "keys": "07.>"}),
        "keys of ten groups, a task each": (10 * group, {"keys": ",".join(f"0{i}.>" for i in range(10))}),
        "all keys": (count, {}),
        f"asOf={count} (the last revision)": (count, {"asOf": count}),
        "asOf=latest": (count, {"asOf": "latest"}),
    }
    for name, (expected, options) in reads.items():
        progress(f"{grid.title}: {name}")
        _add(grid, name, _row(large, partial(_batch, session, large, expected, {**bucket, **options})))
    with ExitStack() as stack:
        query = _Query(session, large, bucket)
        _add(grid, "changes, from the latest", _row(large, partial(_start_and_wait, stack, query, 0)))
    _add(grid, "spark-nats check --bucket", _command(large, "check", "--bucket", _BUCKET))
    grid.remarks = _REMARKS
    yield grid


_REMARKS = [
    "rows: read and counted; requests: JetStream's API; MB: the most; of Python, its largest process",
    "changes, and queries from the latest: until the first offset is in the checkpoint",
    "commands: Python is the process of the command",
]


# Many streams


def _streams(session: Session, large: _LargeServer, sizes: _Sizes) -> Iterator[Facts | Grid]:
    count, title = sizes.streams, f"large: {sizes.streams:,} streams"
    names = [f"LARGE_{i:05}" for i in range(count)]
    facts = Facts(title)
    with timed() as seconds:
        config = {"storage": "file", "allow_direct": True}
        _make(
            large,
            [
                Request(Api.STREAM_CREATE, (name,), {"name": name, "subjects": [f"{name}.>"], **config})
                for name in names
            ],
        )
        with connect(large.url) as connection:
            for start in range(0, count, _AT_ONCE):
                connection.request_all([(f"{name}.x", b"", None) for name in names[start : start + _AT_ONCE]])
    _filled(facts, large, seconds())
    pattern: dict[str, Any] = {"streamPattern": "LARGE_.*"}
    grid = Grid(f"{title}: reads", _COLUMNS)
    _add(grid, "batch", _row(large, partial(_batch, session, large, count, pattern)))
    with ExitStack() as stack:
        query = _Query(session, large, {**pattern, "startingOffsets": "earliest"})
        _add(grid, "first micro-batch", _row(large, partial(_start_and_wait, stack, query, count)))
        _store(large, f"{names[0]}.x")
        _add(grid, "a new message", _row(large, partial(query.wait_for, count + 1)))
        time.sleep(_SETTLES)
        _add(grid, f"idle for {_IDLE:g} s", _row(large, partial(time.sleep, _IDLE)))
        _store(large, f"{names[-1]}.x")
        _add(grid, "a new message after that", _row(large, partial(query.wait_for, count + 2)))
        _add(grid, "spark-nats lag", _command(large, "lag", "--checkpoint", str(query.checkpoint)))
        facts.add("an offset in the checkpoint", query.offset_kilobytes(), "kB")
    _add(grid, "spark-nats check", _command(large, "check"))
    _add(grid, "spark-nats check --streamPattern", _command(large, "check", "--streamPattern", "LARGE_.*"))
    _add(grid, "table streams", _row(large, partial(_batch, session, large, count, {"table": "streams"})))
    grid.remarks = _REMARKS
    yield facts
    yield grid
    yield _restarts(title, large)


# Many consumers


def _consumers(session: Session, large: _LargeServer, sizes: _Sizes) -> Iterator[Facts | Grid]:
    count, title = sizes.consumers, f"large: {sizes.consumers:,} durable consumers of a stream"
    _make_stream(large, _STREAM, "large.>", max_consumers=4 * count)
    stream, messages = {"stream": _STREAM}, 10 * count
    facts, grid = Facts(title), Grid(f"{title}: reads", _COLUMNS)

    def store() -> int:
        _fill(large, _STREAM, messages, lambda i: f"large.{i % count}", _VALUE)
        return messages

    _add(grid, "stored, without consumers", _row(large, store))
    _add(grid, "batch, without consumers", _row(large, partial(_batch, session, large, messages, stream)))
    before = large.megabytes()
    requests = []
    for i in range(count):
        config = {"durable_name": f"DEVICE_{i:05}", "ack_policy": "explicit", "filter_subject": f"large.{i}"}
        body = {"stream_name": _STREAM, "config": config, "action": "create"}
        requests.append(Request(Api.CONSUMER_CREATE, (_STREAM, f"DEVICE_{i:05}", f"large.{i}"), body))
    with timed() as seconds:
        _make(large, requests)
    _filled(facts, large, seconds())
    facts.add("of that for each consumer", (large.megabytes() - before) / count * 1000, "kB")
    _add(grid, "stored, with consumers", _row(large, store))
    _add(grid, "batch", _row(large, partial(_batch, session, large, 2 * messages, stream)))
    with ExitStack() as stack:
        query = _Query(session, large, {**stream, "startingOffsets": "earliest"})
        _add(grid, "first micro-batch", _row(large, partial(_start_and_wait, stack, query, 2 * messages)))
        _store(large, "large.0")
        _add(grid, "a new message", _row(large, partial(query.wait_for, 2 * messages + 1)))
        _add(grid, "spark-nats lag", _command(large, "lag", "--checkpoint", str(query.checkpoint)))
    table = {"table": "consumers"}
    for name in ("table consumers", "table consumers, again"):
        _add(grid, name, _row(large, partial(_batch, session, large, None, table)))
    _add(grid, "spark-nats check --stream", _command(large, "check", "--stream", _STREAM))
    grid.remarks = _REMARKS
    yield facts
    yield grid
    yield _restarts(title, large)


# Many bytes


def _bytes(session: Session, large: _LargeServer, sizes: _Sizes) -> Iterator[Facts | Grid | LeftOut]:
    count, size = sizes.messages, len(_MESSAGE)
    title = f"large: a stream of {count * size / 1e9:,.1f} GB"
    if shutil.disk_usage(large.store).free < _ROOM * count * size:
        yield LeftOut(title, f"{large.store.parent} has no room for it")
        return
    _make_stream(large, _STREAM, "large.>")
    facts, seldom = Facts(title), count // _FEW
    with timed() as seconds:
        fill = partial(_fill, subject=lambda i: "large.seldom" if i % seldom == seldom // 2 else "large.often")
        fill(large, _STREAM, count, payload=_MESSAGE)
    _filled(facts, large, seconds())
    facts.add("messages", count / 1e6, "million")
    yield facts
    yield _restarts(title, large)
    with connect(large.url) as connection:
        middle = ask_first_message_from(JetStream(connection), _STREAM, count // 2, (">",))
    assert middle
    at = datetime.fromtimestamp(middle.time / 1e9, UTC).isoformat()
    stream: dict[str, Any] = {"stream": _STREAM}
    few = {"maxOffsetsPerTrigger": _LAST}
    grid = Grid(f"{title}: reads", _COLUMNS)
    queries: dict[str, tuple[int, dict[str, Any]]] = {
        "first micro-batch from the latest": (0, {"startingOffsets": "latest"}),
        "first micro-batch from a time in the middle": (_LAST, {"startingTimestamp": at, **few}),
        "first micro-batch from the earliest": (_LAST, {"startingOffsets": "earliest", **few}),
    }
    for name, (rows, options) in queries.items():
        progress(f"{grid.title}: {name}")
        with ExitStack() as stack:
            query = _Query(session, large, {**stream, **options})
            _add(grid, name, _row(large, partial(_start_and_wait, stack, query, rows)))
    with _Query(session, large, stream) as query:
        query.wait_for(0)
        _store(large, "large.often")
        _add(grid, "a new message", _row(large, partial(query.wait_for, 1)))
    last = count + 1
    batches: dict[str, tuple[int, dict[str, Any], str]] = {
        f"batch of the last {_LAST:,}": (_LAST, {"startingOffsets": json.dumps({_STREAM: last - _LAST + 1})}, ""),
        f"batch of the first {_LAST:,}, by limit": (_LAST, {"limit": _LAST}, ""),
        f"batch with a subject that {_FEW} have": (_FEW, {"subject": "large.seldom"}, ""),
        "batch of all, without payloads": (last, {"minPartitions": 2}, "sequence BIGINT"),
    }
    for name, (rows, options, schema) in batches.items():
        progress(f"{grid.title}: {name}")
        _add(grid, name, _row(large, partial(_batch, session, large, rows, {**stream, **options}, schema)))
    _add(grid, "spark-nats check --stream", _command(large, "check", "--stream", _STREAM))
    grid.remarks = _REMARKS
    yield grid


# Copying


def _copying(session: Session, large: _LargeServer, sizes: _Sizes) -> Iterator[Facts | Grid]:
    _make_stream(large, "FROM", "from")
    _make_stream(large, "TO", "to")
    columns = ["after s", "rows", "Python MB", "JVM MB", "server MB", "files", "kB", "notes", "micro-batch"]
    grid = Grid(f"large: {_RATE:,} rows a second from stream to stream, and restarts", columns)
    checkpoint = Path(session.directory, f"large-{time.time_ns()}")
    options = {**large.options, "stream": "FROM", "startingOffsets": "earliest"}
    frame = session.spark.readStream.format("nats").options(**options).load()
    writer = frame.selectExpr("'to' AS subject", "payload").writeStream.format("nats")
    writer = writer.options(**large.options, stream="TO", checkpointLocation=str(checkpoint))
    query = writer.trigger(processingTime="1 second").start()
    restarts, longest = 0, 0.0
    with _Feed(large.url) as feed:
        _wait_for_rows(query, large, 1)
        began = last = moved = time.monotonic()
        seen = -1
        while (now := time.monotonic()) < began + sizes.seconds:
            if error := query.exception():
                raise error
            if (batch := query.lastProgress["batchId"] if query.lastProgress else -1) != seen:
                longest, moved, seen = max(longest, now - moved), now, batch
            if now > last + sizes.restarts_after:
                _add_state(grid, f"before restart {restarts + 1}", session, large, checkpoint, now - began, seen)
                large.restart((signal.SIGTERM, signal.SIGKILL)[restarts % 2])
                restarts, last = restarts + 1, time.monotonic()
            time.sleep(0.05)
    with timed() as seconds:
        _wait_for_rows(query, large, feed.stored)
    _add_state(grid, "at the end", session, large, checkpoint, time.monotonic() - began, seen)
    query.stop()
    copied = session.spark.read.format("nats").options(**large.options, stream="TO").load()
    sent = copied.selectExpr("cast(string(payload) AS BIGINT) AS i")
    rows, different, most = sent.selectExpr("count(i)", "count(DISTINCT i)", "max(i)").first() or (0, 0, 0)
    if (rows, different, most + 1) != (feed.stored, feed.stored, feed.stored):
        raise AssertionError(f"{rows} rows, {different} different ones up to {most}, instead of {feed.stored}")
    grid.remarks = [
        f"{restarts} restarts, in order and by a kill in turn; {feed.stored:,} rows, each of them exactly once; "
        f"{longest:.1f} s at the most without the end of a micro-batch; caught up after {seconds():.1f} s",
        "Python: all of Spark's processes together; files and kB: of the checkpoint; notes: keys of the state bucket",
    ]
    yield grid


def _add_state(
    grid: Grid, name: str, session: Session, large: _LargeServer, checkpoint: Path, after: float, batch: int
) -> None:
    files = [each.stat().st_size for each in checkpoint.rglob("*") if each.is_file()]
    values: list[float | None] = [
        after,
        float(_messages(large, "TO")),
        python_megabytes(),
        _spark_megabytes("java"),
        large.megabytes(),
        float(len(files)),
        sum(files) / 1000,
        float(_messages(large, "KV_SPARK_NATS")),
        float(batch),
    ]
    _add(grid, name, values)


def _wait_for_rows(query: Any, large: _LargeServer, rows: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while _messages(large, "TO") < rows:
        if error := query.exception():
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query has not copied {rows} rows")
        time.sleep(0.1)


def _messages(large: _LargeServer, stream: str) -> int:
    with connect(large.url) as connection:
        return ask_stream_info(JetStream(connection), stream).messages


class _Feed:
    """Stores rows at a steady rate, each once, whatever becomes of the server; started with ``with``.

    Attributes:
        stored: how many.
    """

    def __init__(self, url: str) -> None:
        self.stored = 0
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._store_rows, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _store_rows(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            try:
                with connect(self._url) as connection:
                    while not self._ended.is_set():
                        self._store_next(connection)
                        due += _TICK
                        time.sleep(max(0.0, due - time.monotonic()))
            except (NatsError, OSError):
                time.sleep(_TICK)  # until the server is back; the ids tell it which rows it has

    def _store_next(self, connection: Any) -> None:
        numbers = range(self.stored, self.stored + int(_RATE * _TICK))
        replies = connection.request_all(
            [("from", b"%d" % i, encode_block({MSG_ID: str(i)})) for i in numbers], timeout=5.0
        )
        if refused := [each for each in replies if isinstance(each, NatsError) or b'"seq"' not in each.payload]:
            raise refused[0] if isinstance(refused[0], NatsError) else NatsError(f"not stored: {refused[0]}")
        self.stored = numbers.stop


MEASURES: dict[str, Callable[[Session, _LargeServer, _Sizes], Iterator[Facts | Grid | LeftOut]]] = {
    "keys": _keys,
    "streams": _streams,
    "consumers": _consumers,
    "bytes": _bytes,
    "copying": _copying,
}
