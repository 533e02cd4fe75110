"""Many streams read by one query, or by as many queries on one driver: what each asks of machines and of the server.

A data source that does nothing, ``trivial``, tells what of it is Spark's own.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.environment import Server, connect, cpu_seconds, spark_cpu_seconds, spark_processes
from benchmarks.measure import Grid, LeftOut, progress
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import named, percentile
from benchmarks.trivial import Trivial
from spark_nats.embedded import NatsServer
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.creating import create_stream_if_missing

_COUNTS = (1, 10, 30, 100)
_QUICK_COUNTS = (1, 10)
_SPREAD = 5.0  # seconds over which a message comes to every stream
_SIZE = 128
_PATIENCE = 300.0
_AT_ONCE = 1  # queries that start at the same time: Spark gives a Python process 10 s to start
_NO_PROGRESS = "spark.sql.streaming.noDataProgressEventInterval"  # the progress of idle queries would be in our way
_SOURCE = "python_streaming_source_runner"  # the program of a query's Python process
_IDLE_COLUMNS = [
    "source processes",
    "USS MB each",
    "PSS MB each",
    "JVM MB",
    "connections",
    "consumers",
    "API requests/s",
    "messages/s",
    "JVM ms/s",
    "Python ms/s",
    "server ms/s",
    "start s",
]
_BUSY_COLUMNS = [
    "latency p50 ms",
    "p99 ms",
    "seconds a round",
    "micro-batches a round",
    "connections",
    "JVM ms a message",
    "Python ms",
    "server ms",
]


def run(settings: Settings) -> Iterator[Grid | LeftOut]:
    """Measure everything."""
    if settings.servers:
        yield LeftOut("queries", "it counts the connections and messages of a server of its own")
        return
    idle = Grid("queries: idle", _IDLE_COLUMNS)
    busy = Grid(f"queries: a message to every stream within {_SPREAD:g} s", _BUSY_COLUMNS)
    with start_spark({"spark.sql.streaming.numRecentProgressUpdates": 10_000, _NO_PROGRESS: "1h"}) as session:
        session.spark.dataSource.register(Trivial)
        for count in _QUICK_COUNTS if settings.quick else _COUNTS:
            for name, watched in (
                (f"{named(count, 'stream')}, one query", _Pattern),
                (f"{named(count, 'stream')}, a query each", _Each),
                (f"{named(count, 'file')}, a trivial query each", _Trivial),
            ):
                with NatsServer() as embedded:
                    server = Server(embedded.url, embedded.monitoring_url, embedded.pid)
                    with watched(server, session, count) as queries:
                        progress(f"{idle.title}: {name}")
                        idle.rows[name] = _idle(settings, server, queries)
                        progress(f"{busy.title}: {name}")
                        busy.rows[name] = _busy(settings, server, queries)
    idle.remarks = [
        "trigger every second, noop sink; source processes: those that Spark starts for the source of a query; USS: "
        "memory that only it has; PSS: with its share of what several have; JVM: by how much it has grown, coarse",
        "API requests: JetStream's; messages: all that the server receives and sends; ms: CPU time",
        "start: from the first start() until the last query has had a micro-batch",
    ]
    busy.remarks = [
        "latency: from before a message is published until its micro-batch has ended; a round ends with the last"
    ]
    yield idle
    yield busy


class _Queries:
    """Running queries that read ``count`` streams, started with ``with``, and ended after it.

    Attributes:
        count: the number of streams.
        grown: MB by which the JVM has grown until all queries had a micro-batch.
        started: seconds that this took.
    """

    uses_server = True

    def __init__(self, server: Server, session: Session, count: int) -> None:
        self.count = count
        self.started = 0.0
        self.grown = 0.0
        self._names = [f"QUERIES_{i:03}" for i in range(count)]
        self._server = server
        self._session = session
        self._stack = ExitStack()
        self._queries: list[Any] = []

    def __enter__(self) -> Self:
        with self._stack:
            self._prepare()
            before, began = _jvm_megabytes(), time.monotonic()
            for options in self._sources():
                self._wait_for_beginning(len(self._queries) - _AT_ONCE + 1)
                self._begin(options)
            self._wait_for_beginning(len(self._queries))
            self.started, self.grown = time.monotonic() - began, _jvm_megabytes() - before
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _prepare(self) -> None:
        with connect(self._server.url) as connection:
            for name in self._names:
                create_stream_if_missing(
                    JetStream(connection), {"name": name, "subjects": [f"{name}.>"], "storage": "memory"}
                )
        for i, _ in enumerate(self._names):
            self.publish(i)

    @abstractmethod
    def _sources(self) -> Iterator[dict[str, str]]:
        """Yield the options of each query."""

    def _begin(self, options: dict[str, str]) -> None:
        frame = self._session.spark.readStream.format(options.pop("format")).options(**options).load()
        checkpoint = f"{self._session.directory}/queries-{time.time_ns()}"
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="1 second").start()
        self._stack.callback(query.stop)
        self._queries.append(query)

    def _wait_for_beginning(self, count: int) -> None:
        """Wait until the first ``count`` queries have had a micro-batch."""
        for query in self._queries[: max(0, count)]:
            _wait_for(partial(_end_of_row, query, 0))

    def publish(self, i: int) -> None:
        """Store a message in a stream."""
        with connect(self._server.url) as connection:  # one that stays would be idle for minutes, and be closed
            connection.publish(f"{self._names[i]}.x", b"x" * _SIZE)
            connection.flush()

    @abstractmethod
    def ends_of(self, round_: int) -> list[float]:
        """Wait until the query has had a message of each stream, and return when that was, in their order."""

    def micro_batches(self) -> int:
        """Return how many micro-batches with rows there were."""
        return sum(len(_rows(query)) for query in self._queries)


class _Each(_Queries):
    """A query for each stream."""

    def _sources(self) -> Iterator[dict[str, str]]:
        for name in self._names:
            yield {**self._server.options, "format": "nats", "stream": name, "startingOffsets": "earliest"}

    def ends_of(self, round_: int) -> list[float]:
        """Wait for one query after the other."""
        return [_wait_for(partial(_end_of_row, query, 1 + round_)) for query in self._queries]


class _Trivial(_Each):
    """As many queries of a source that does nothing."""

    uses_server = False

    def _prepare(self) -> None:
        for i, _ in enumerate(self._names):
            self._file(i).write_bytes(b"x")

    def _file(self, i: int) -> Path:
        return Path(self._session.directory, f"queries-{self.count}-{i}")

    def _sources(self) -> Iterator[dict[str, str]]:
        for i, _ in enumerate(self._names):
            yield {"format": "bench_trivial", "rows": str(self._file(i))}

    def publish(self, i: int) -> None:
        """Add a row to what a query reads."""
        with self._file(i).open("ab") as file:
            file.write(b"x")


class _Pattern(_Queries):
    """One query for all streams."""

    def _sources(self) -> Iterator[dict[str, str]]:
        options = {"format": "nats", "streamPattern": "QUERIES_.*", "startingOffsets": "earliest"}
        yield self._server.options | options

    def ends_of(self, round_: int) -> list[float]:
        """Wait for the last row: the query takes the rows as they were stored."""
        (query,), first = self._queries, self.count * (1 + round_)
        _wait_for(partial(_end_of_row, query, first + self.count - 1))
        taken = _rows(query)
        return [_end_of(taken, first + i) or 0.0 for i in range(self.count)]


def _end_of_row(query: Any, n: int) -> float | None:
    return _end_of(_rows(query), n)


def _end_of(taken: list[tuple[float, int]], n: int) -> float | None:
    """Return the end of the micro-batch that has row ``n``, counted from 0."""
    for end, rows in taken:
        if n < rows:
            return end
        n -= rows
    return None


def _rows(query: Any) -> list[tuple[float, int]]:
    """Return when the micro-batches with rows have ended, and how many these were; raises why the query failed."""
    if error := query.exception():
        raise error
    found = []
    for each in query.recentProgress:
        if each.numInputRows:
            began = datetime.fromisoformat(each.timestamp).timestamp()
            found.append((began + each.durationMs["triggerExecution"] / 1000, each.numInputRows))
    return found


def _wait_for(look: Callable[[], float | None]) -> float:
    deadline = time.monotonic() + _PATIENCE
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the queries had not all rows")
        time.sleep(0.5)
    return found


def _idle(settings: Settings, server: Server, queries: _Queries) -> list[float | None]:
    seconds = 20.0 if settings.quick else 60.0
    time.sleep(35.0)  # tasks' connections are closed after 30 s, and what happens once after a start has happened
    before, began = _counts(server), time.monotonic()
    time.sleep(seconds)
    taken = time.monotonic() - began
    asked = {what: (value - before[what]) / taken for what, value in _counts(server).items()}
    sources = _source_processes()
    memory = [process.memory_full_info() for process in sources]
    return [
        float(len(sources)),
        sum(each.uss for each in memory) / len(memory) / 1e6,
        sum(each.pss for each in memory) / len(memory) / 1e6,
        queries.grown,
        _connections(server) if queries.uses_server else None,
        float(server.monitoring("jsz")["consumers"]) if queries.uses_server else None,
        asked["api"] if queries.uses_server else None,
        asked["messages"] if queries.uses_server else None,
        asked["java"] * 1000,
        asked["python"] * 1000,
        asked["server"] * 1000 if queries.uses_server else None,
        queries.started,
    ]


def _busy(settings: Settings, server: Server, queries: _Queries) -> list[float | None]:
    rounds, count = 2 if settings.quick else 3, queries.count
    waited: list[float] = []
    connections = 0.0
    had = queries.micro_batches()
    before, began = _counts(server), time.monotonic()
    for round_ in range(rounds):
        due, sent = time.monotonic(), []
        for i in range(count):
            time.sleep(max(0.0, due - time.monotonic()))
            sent.append(time.time())
            queries.publish(i)
            due += _SPREAD / count
        waited += [(end - since) * 1000 for end, since in zip(queries.ends_of(round_), sent, strict=True)]
        connections = max(connections, _connections(server))
    seconds = time.monotonic() - began
    used = {what: (value - before[what]) * 1000 / rounds / count for what, value in _counts(server).items()}
    return [
        percentile(waited, 0.5),
        percentile(waited, 0.99),
        seconds / rounds,
        (queries.micro_batches() - had) / rounds,
        connections if queries.uses_server else None,
        used["java"],
        used["python"],
        used["server"] if queries.uses_server else None,
    ]


def _counts(server: Server) -> dict[str, float]:
    """Return what was counted so far: the server's messages and requests, and CPU seconds."""
    page = server.monitoring("varz")
    return {
        **spark_cpu_seconds(),
        "server": cpu_seconds([server.pid]),
        "api": float(server.monitoring("jsz")["api"]["total"]),
        "messages": float(page["in_msgs"] + page["out_msgs"]),
    }


def _connections(server: Server) -> float:
    return float(server.monitoring("connz")["num_connections"])


def _source_processes() -> list[psutil.Process]:
    found = []
    for process in spark_processes():
        with suppress(psutil.NoSuchProcess):
            if any(_SOURCE in argument for argument in process.cmdline()):
                found.append(process)
    return found


def _jvm_megabytes() -> float:
    return sum(float(p.memory_info().rss) for p in spark_processes() if "java" in p.name()) / 1e6
