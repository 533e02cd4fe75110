"""What a query takes of machines: memory of its processes, and of the server connections, consumers and memory."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from benchmarks import paths, raw
from benchmarks.cost import cost_of, worker_megabytes
from benchmarks.environment import Server, connect, cpu_seconds, publisher_to, python_megabytes, start_server
from benchmarks.measure import Facts, progress
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import finish
from spark_nats.client.options import RetryOptions
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming.consumers import create_ephemeral
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.kinds.core.receiver import Receiver
from spark_nats.options import connection_options, options_of_urls
from spark_nats.protocol.keyvalue import stream_of

_SIZES = (128, 1024, 16 << 10, 256 << 10)  # bytes of payload
_BATCH = 10_000  # Spark's maxRecordsPerBatch
_SUBJECT = "size.orders.eu.00000.created"


def run(settings: Settings) -> Iterator[Facts]:
    """Measure everything."""
    with start_server(settings) as server:
        yield _reading(settings, server)
        yield _writing(settings, server)
        yield _receiving(settings, server)
        yield _things(settings, server)
        yield _ids(settings)
        with start_spark() as session:
            yield _query(settings, server, session)


class _Cost(NamedTuple):
    """What running a path took: CPU seconds of its process, and MB by which that has grown."""

    seconds: float
    grown: float


def _cost(path: Callable[..., object], *arguments: Any) -> _Cost:
    """Run a path in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, before, peak = pool.apply(cost_of, (path, *arguments))
    return _Cost(seconds, peak - before)


def _columns(count: int, size: int) -> tuple[pa.Array, pa.Array]:
    return pa.repeat(_SUBJECT, count), pa.repeat(b"x" * size, count)


def _fill(server: Server, stream: str, count: int, size: int) -> None:
    """Store messages, so many at a time that the process stays small."""
    block = max(1, (16 << 20) // size)
    with connect(server.url) as connection:
        publisher = publisher_to(connection, stream)
        for start in range(0, count, block):
            publisher.publish(*_columns(min(block, count - start), size))
        publisher.wait_for_sent_rows()


def _reading(settings: Settings, server: Server) -> Facts:
    facts = Facts("sizing: what reading a partition takes, by the size of messages")
    total = (64 if settings.quick else 512) << 20
    for size in _SIZES:
        count = total // size
        progress(f"{facts.title}: {size}")
        with server.stream("size.>") as stream:
            _fill(server, stream, count, size)
            with connect(server.url) as connection:
                stored = ask_stream_info(JetStream(connection), stream).bytes
            before = cpu_seconds([server.pid])
            cost = _cost(paths.read_stream, server.url, stream, 1, count + 1)
            taken = cpu_seconds([server.pid]) - before
        facts.add(f"payloads of {size} bytes: memory that the process grows by", cost.grown, "MB")
        facts.add(f"payloads of {size} bytes: CPU of the client", cost.seconds / count * 1e6, "\u00b5s a message")
        facts.add(f"payloads of {size} bytes: CPU of the server", taken / count * 1e6, "\u00b5s a message")
        facts.add(
            f"payloads of {size} bytes: stored beside payload and subject",
            stored / count - size - len(_SUBJECT),
            "bytes a message",
        )
    facts.remarks.append(f"{total >> 20} MiB of payloads to Arrow, all columns, in one partition; imports included")
    return facts


def _store(url: str, stream: str, count: int, size: int, with_ids: bool) -> float:
    batch = max(1, min(_BATCH, count))
    return paths.publish_stream(url, stream, *_columns(count, size), batch, with_ids)


def _writing(settings: Settings, server: Server) -> Facts:
    facts = Facts("sizing: what a process grows by while it writes a partition")
    total = (32 if settings.quick else 128) << 20
    for size in _SIZES:
        progress(f"{facts.title}: {size}")
        count = total // size
        with server.stream("size.>") as stream:
            cost = _cost(_store, server.url, stream, count, size, True)
            server.check(stream, count)
        given = sum(column.nbytes for column in _columns(count, size)) / 1e6
        rows = min(count, _BATCH)
        facts.add(f"payloads of {size} bytes, Arrow batches of {rows} rows", cost.grown - given, "MB")
    facts.remarks.append("beside the rows themselves; with message ids; imports included")
    return facts


def _receive(url: str, count: int) -> None:
    """DurableHandle what was received, as the driver does for a query of core NATS that has not come for it."""
    backlog = Backlog(1 << 40)
    options = connection_options(**options_of_urls(url))
    receiver = Receiver(options, RetryOptions(0.0, 0.0, 0.0, None), [raw.Feeder.subject], None, backlog)
    with connect(url) as connection:
        raw.fill(connection, backlog, count)
    receiver.unsubscribe_drain_and_close()


def _receiving(settings: Settings, server: Server) -> Facts:
    facts = Facts("sizing: what the driver's process grows by while messages of core NATS wait")
    for size in (128, 1024):
        count = settings.messages * 128 // size // raw.PART_MESSAGES * raw.PART_MESSAGES
        progress(f"{facts.title}: {size}")
        with raw.Feeder(server.url, size) as feeder:
            wire = feeder.wire_size * count // raw.PART_MESSAGES / 1e6
            cost = _cost(_receive, server.url, count)
        facts.add(f"payloads of {size} bytes: {wire:.0f} MB of wire wait", cost.grown, "MB")
    facts.remarks.append("imports included; wire is what maxBufferedBytes counts")
    return facts


def _things(settings: Settings, server: Server) -> Facts:
    facts = Facts("sizing: what connections and consumers take of the server")
    connections, consumers = 300, 1000
    with server.stream("size.>") as stream, ExitStack() as stack:
        _fill(server, stream, 10_000, 128)
        before = _settled_memory(server)
        for _ in range(connections):
            stack.enter_context(connect(server.url))
        between = _settled_memory(server)
        js = JetStream(stack.enter_context(connect(server.url)))
        for i in range(consumers):
            create_ephemeral(js, stream, i + 1)
        after = _settled_memory(server)
    facts.add("an idle connection", (between - before) / connections * 1000, "kB")
    facts.add("a consumer", (after - between) / consumers * 1000, "kB")
    facts.remarks.append(f"of {connections} and {consumers}, by the server's resident memory, which is coarse")
    return facts


def _settled_memory(server: Server) -> float:
    """Return the server's memory in MB when it has come to rest."""
    found = [server.memory() or 0.0]
    while len(found) < 20 and (len(found) < 3 or max(found[-3:]) - min(found[-3:]) > 0.2):
        time.sleep(0.5)
        found.append(server.memory() or 0.0)
    return found[-1]


def _ids(settings: Settings) -> Facts:
    facts = Facts("sizing: what message ids take of the server")
    count = 600_000  # with fewer ones the server's memory is too coarse
    found = []
    for with_ids in (False, True):
        progress(facts.title)
        with start_server(settings) as server, server.stream("size.>") as stream:
            before = _settled_memory(server)
            _store(server.url, stream, count, 128, with_ids)
            found.append(_settled_memory(server) - before)
    facts.add("an id within the duplicate window", (found[1] - found[0]) / count * 1e6, "bytes")
    facts.remarks.append(f"{count} rows with ids, and as many without, each to a new server")
    return facts


class _Watch:
    """Looks at the server, and at our processes, again and again while a block runs, and keeps the most of each."""

    def __init__(self, server: Server) -> None:
        self.most: dict[str, float] = {}
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            seen = {
                "connections": float(self._server.monitoring("varz")["connections"]),
                "consumers": float(self._server.monitoring("jsz")["consumers"]),
                "largest": max(worker_megabytes(), default=0.0),
                "together": python_megabytes(),
            }
            for name, value in seen.items():
                self.most[name] = max(self.most.get(name, 0.0), value)


def _query(settings: Settings, server: Server, session: Session) -> Facts:
    facts = Facts("sizing: a query from stream to stream, 8 partitions, two of them at once")
    count, micro_batches, partitions = settings.published, 20, 8
    checkpoint = f"{session.directory}/sizing"
    with server.stream("from.>") as source, server.stream("to.>") as target:
        server.fill(source, "from.", count, 128)
        options = {
            **server.options,
            "stream": source,
            "startingOffsets": "earliest",
            "minPartitions": str(partitions),
            "maxOffsetsPerTrigger": str(count // micro_batches),
        }
        frame = session.spark.readStream.format("nats").options(**options).load()
        moved = frame.selectExpr("concat('to.', subject) AS subject", "payload")
        with _Watch(server) as watch:
            finish(moved, "nats", checkpoint, {**server.options, "stream": target})
        server.check(target, count)
        with connect(server.url) as connection:
            state = ask_stream_info(JetStream(connection), stream_of("SPARK_NATS"))
    facts.add("connections at the most", watch.most["connections"], "")
    facts.add("consumers at the most", watch.most["consumers"], "")
    facts.add("memory of the largest Python process", watch.most["largest"], "MB")
    facts.add("memory of all Python processes together", watch.most["together"], "MB")
    facts.add("keys in the state bucket", state.messages, "")
    facts.add("bytes of the state bucket for each", state.bytes / state.messages, "bytes")
    written = sum(f.stat().st_size for f in Path(checkpoint).rglob("*") if f.is_file()) / micro_batches
    facts.add("bytes of the checkpoint for each micro-batch", written, "bytes")
    facts.add("files of the checkpoint for each micro-batch", _files(checkpoint) / micro_batches, "")
    facts.remarks.append(f"{count} messages of 128 bytes in {micro_batches} micro-batches; seen every 20 ms or so")
    return facts


def _files(directory: str) -> int:
    return sum(f.is_file() for f in Path(directory).rglob("*"))
