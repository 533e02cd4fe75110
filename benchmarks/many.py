"""Queries that read many streams with few messages each: batches, micro-batches, and what is asked while idle."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructType

from benchmarks.cost import cost_of
from benchmarks.environment import Server, connect, cpu_seconds, cpu_seconds_below, python_megabytes
from benchmarks.measure import Grid, LeftOut, progress, timed
from benchmarks.peers import kafka
from benchmarks.peers.kafka import Broker, KafkaMissingError
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import named
from spark_nats.client import Connection
from spark_nats.datasource import NatsDataSource
from spark_nats.embedded import NatsServer
from spark_nats.errors import NatsError, NatsTimeoutError, NoRespondersError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.api import Request
from spark_nats.kinds.streams.read.readers import NatsStreamReader
from spark_nats.protocol.api import Api
from tests.servers import Cluster

_COUNTS = (1, 100, 1000, 5000)
_MANY = 100  # streams; with more of them, one round is long enough
_SETTLES = 12.0  # seconds after which an idle query has its consumers, or lists its streams less often
_IDLE = 20.0  # seconds for which it is watched then
_FEW = 3  # messages that come one by one
_PAUSES = (0.1, 0.3, 0.5)  # seconds between messages that come while a query is busy, in turn
_BUSY = 20  # of them
_AT_ONCE = 100  # streams that are made at once
_PATIENCE = 600.0
_PATIENCE_WITH_A_LEADER = 10.0
_FETCH_MS = "10"  # by default it is 500, for which each task waits
_RUNS = itertools.count()  # a topic that is deleted goes later, so the next ones have other names
_STREAM = {"storage": "memory", "allow_direct": True}
_COLUMNS = [
    "plan ms",
    "process MB",
    "partitions",
    "read ms",
    "idle requests/s",
    "new message ms",
    "further ones ms",
    "90% ms",
    "requests",
    "offset kB",
]
_SPARK_COLUMNS = [
    "batch s",
    "first s",
    "its trigger s",
    "new message ms",
    "idle requests/s",
    "idle server ms/s",
    "idle Spark ms/s",
    "offset kB",
    "JVM MB",
    "Python MB",
]


def run(settings: Settings) -> Iterator[Grid | LeftOut]:
    """Measure everything, each number of streams on servers of its own; Kafka where it can be had."""
    if settings.servers:
        yield LeftOut("many", "it counts the requests of servers of its own")
        return
    for clustered in (False, True):
        yield _without_spark(_counts(settings, clustered), clustered)
    try:
        progress("many: Maven looks for Spark's connector for Kafka and a broker")
        jars, version = kafka.connector()
        broker_jars = kafka.broker_jars()
    except KafkaMissingError as error:
        yield LeftOut("many: Kafka", str(error))
        with start_spark() as session:
            yield _with_spark(settings, session, None)
        return
    with kafka.start_broker(broker_jars) as broker, start_spark(jars=jars) as session:
        table = _with_spark(settings, session, broker)
    table.remarks.append(
        f"Kafka {broker.version}, connector {version}; a topic has one partition; kafka.fetch.max.wait.ms {_FETCH_MS}: "
        "by default, each task that reads a message waits half a second for another"
    )
    yield table


def _counts(settings: Settings, clustered: bool) -> tuple[int, ...]:
    """Return how many streams are looked at."""
    return _COUNTS[: None if not settings.quick else 2 if clustered else 3]


# Streams and topics


def _names(count: int) -> list[str]:
    """Return new names, as long for streams as for topics: an offset has them all."""
    run = next(_RUNS)
    return [f"MANY{run}_{i:05}" for i in range(count)]


def _pattern(names: list[str]) -> str:
    return f"{names[0].partition('_')[0]}_.*"


class _Streams:
    """Streams with one message each.

    Attributes:
        count: how many.
        stored: how many messages they hold.
        options: what Spark needs to read them all.
        pids: the processes of the servers.
    """

    form = "nats"

    def __init__(self, servers: list[Server], connection: Connection, count: int) -> None:
        self.count = self.stored = count
        self.pids = [server.pid for server in servers]
        self._names = names = _names(count)
        self.options = {**servers[0].options, "streamPattern": _pattern(names), "startingOffsets": "earliest"}
        self._servers = servers
        self._connection = connection
        for start in range(0, count, _AT_ONCE):
            self._make(names[start : start + _AT_ONCE])
        self._store(names)

    def store(self, number: int) -> None:
        """Store one message more."""
        self._store([self._names[number]])
        self.stored += 1

    def _make(self, names: list[str]) -> None:
        while names:
            requests = [
                Request(Api.STREAM_CREATE, (name,), {"name": name, "subjects": [f"{name}.>"], **_STREAM})
                for name in names
            ]
            answers = JetStream(self._connection).request_all(requests, _PATIENCE_WITH_A_LEADER)
            if errors := [a for a in answers if isinstance(a, NatsError) and not isinstance(a, NatsTimeoutError)]:
                raise errors[0]
            # A leader of a cluster that has just begun may leave requests without an answer.
            names = [name for name, answer in zip(names, answers, strict=True) if isinstance(answer, NatsError)]

    def _store(self, names: list[str]) -> None:
        while names:
            replies = self._connection.request_all([(f"{name}.x", b"", None) for name in names])
            if errors := [r for r in replies if isinstance(r, NatsError) and not isinstance(r, NoRespondersError)]:
                raise errors[0]
            # A server of a cluster may not have heard of a new stream's subjects yet.
            names = [name for name, reply in zip(names, replies, strict=True) if isinstance(reply, NatsError)]

    def requests(self) -> int:
        """Return how many requests JetStream's API has had."""
        return sum(int(server.monitoring("jsz")["api"]["total"]) for server in self._servers)


@contextmanager
def _streams(count: int, clustered: bool) -> Iterator[_Streams]:
    with ExitStack() as stack:
        if clustered:
            cluster = stack.enter_context(Cluster(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            nodes, urls = cluster.servers, cluster.urls
        else:
            nodes = [stack.enter_context(NatsServer())]
            urls = nodes[0].url
        servers = [Server(urls, node.monitoring_url, node.pid) for node in nodes]
        yield _Streams(servers, stack.enter_context(connect(urls)), count)


class _Topics:
    """The same of Kafka: topics of one partition with one message each."""

    form = "kafka"

    def __init__(self, session: Session, broker: Broker, names: list[str]) -> None:
        self.count = self.stored = len(names)
        self.pids = [broker.pid]
        servers = {"kafka.bootstrap.servers": broker.address, "kafka.fetch.max.wait.ms": _FETCH_MS}
        self.options = {**servers, "subscribePattern": _pattern(names), "startingOffsets": "earliest"}
        self._jvm = _jvm(session)
        self._broker = broker
        self._names = names
        rows = session.spark.createDataFrame([(name, b"") for name in names], "topic string, value binary")
        rows.write.format("kafka").options(**servers).save()

    def store(self, number: int) -> None:
        """Store one message more."""
        with self._broker.sender(self._jvm, self._names[number]) as send:
            send()
        self.stored += 1

    def requests(self) -> int:
        """Return how many requests the client has made by which Spark's connector plans."""
        name = self._jvm.javax.management.ObjectName("kafka.admin.client:type=admin-client-metrics,client-id=*")
        return int(self._jvm.com.codahale.metrics.jvm.JmxAttributeGauge(name, "request-total").getValue())


@contextmanager
def _topics(session: Session, broker: Broker, count: int) -> Iterator[_Topics]:
    names = _names(count)
    with broker.topics(_jvm(session), names, 1):
        yield _Topics(session, broker, names)


class _Bytes:
    """What any source in Python takes: the bytes of a local file, and nobody is asked."""

    form = "bench_bytes"

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"1")
        self.count = self.stored = 1
        self.pids: list[int] = []
        self.options = {"path": str(path)}

    def store(self, _: int) -> None:
        """Store one byte more."""
        with Path(self.options["path"]).open("ab") as file:
            file.write(b"1")
        self.stored += 1

    def requests(self) -> int:
        """Return how many requests were made: none."""
        return 0


@contextmanager
def _bytes(session: Session) -> Iterator[_Bytes]:
    yield _Bytes(Path(session.directory, f"bytes-{time.time_ns()}"))


# Without Spark


def _without_spark(counts: tuple[int, ...], clustered: bool) -> Grid:
    where = "in a cluster of three" if clustered else "on one server"
    grid = Grid(f"many: a query over so many streams {where}, with one message each", _COLUMNS)
    for count in counts:
        progress(f"{grid.title}: {count}")
        with _streams(count, clustered) as streams:
            grid.rows[named(count, "stream")] = _questions(streams)
    grid.remarks = [
        "Spark's questions without Spark: the micro-batch is planned, and its partitions are read one after the other; "
        "then nothing is stored for a while; then one message at a time, until the query knows of it",
        "requests: for each of the further messages",
        "process MB: the most memory of a process that only plans, imports included",
    ]
    return grid


def _questions(streams: _Streams) -> list[float | None]:
    options = {**streams.options, "minPartitions": "4"}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        *_, megabytes = pool.apply(cost_of, (_plan, options))
    reader = _reader(options)
    tasks = pickle.dumps(reader)
    began = time.monotonic()
    end = _latest(reader, reader.initialOffset())
    partitions = reader.partitions({}, end)
    planned = time.monotonic()
    rows = sum(batch.num_rows for each in partitions for batch in pickle.loads(tasks).read(each))
    read = time.monotonic()
    assert rows == streams.count
    quiet = 0
    for seconds in (_SETTLES, _IDLE):
        quiet, until = streams.requests(), time.monotonic() + seconds
        while time.monotonic() < until:
            assert _latest(reader, end) == end
    asked = streams.requests() - quiet
    waits, requests = [], []
    for i in range(1 + _BUSY):
        before, until = streams.requests(), time.monotonic() + (_PAUSES[i % len(_PAUSES)] if i else 0.0)
        while time.monotonic() < until:
            assert _latest(reader, end) == end
        streams.store(i * streams.count // _BUSY % streams.count)
        stored = time.monotonic()
        while (following := _latest(reader, end)) == end:
            pass
        waits.append((time.monotonic() - stored) * 1000)
        requests.append(streams.requests() - before)
        end = following
    reader.stop()
    return [
        (planned - began) * 1000,
        megabytes,
        float(len(partitions)),
        (read - planned) * 1000,
        asked / _IDLE,
        waits[0],
        statistics.median(waits[1:]),
        statistics.quantiles(waits[1:], n=10)[-1],
        statistics.mean(requests[1:]),
        len(json.dumps(end)) / 1000,
    ]


def _reader(options: dict[str, str]) -> NatsStreamReader:
    reader = NatsDataSource(options).streamReader(StructType().add("sequence", LongType()))
    assert isinstance(reader, NatsStreamReader)
    return reader


def _plan(options: dict[str, str]) -> None:
    """Plan the first micro-batch."""
    reader = _reader(options)
    reader.partitions({}, _latest(reader, reader.initialOffset()))
    reader.stop()


def _latest(reader: NatsStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Return the next offset as Spark gets it: by way of the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    return found


# With Spark


def _with_spark(settings: Settings, session: Session, broker: Broker | None) -> Grid:
    grid = Grid("many: a query over so many streams, in Spark, beside Kafka", _SPARK_COLUMNS)
    for count in _counts(settings, clustered=False):
        ways: dict[str, Callable[[], Any]] = {named(count, "stream"): partial(_streams, count, False)}
        if count in _counts(settings, clustered=True):
            ways[f"{named(count, 'stream')} in a cluster of three"] = partial(_streams, count, True)
        if count == 1:
            ways["a source in Python that asks nobody"] = partial(_bytes, session)
        if broker:
            ways[f"{named(count, 'topic')} of Kafka"] = partial(_topics, session, broker, count)
        for name, way in ways.items():
            progress(f"{grid.title}: {name}")
            with way() as side:
                if count == 1:
                    _queries(session, side, 1)  # for warmth
                grid.rows[name] = _queries(session, side, 1 if settings.quick or count > _MANY else settings.rounds)
    grid.remarks = [
        "medians; no trigger interval; batch: load() and count(); first: from start() until foreachBatch has counted "
        "all rows; its trigger: durationMs.triggerExecution",
        "new message: from when it is stored until foreachBatch has counted its row",
        "idle requests: JetStream's API, or the client by which Kafka's connector plans; server and Spark: their CPU "
        "time",
        "offset: in the checkpoint; JVM: what the live heap has grown by; Python: the process that plans",
    ]
    return grid


def _queries(session: Session, side: _Streams | _Topics | _Bytes, rounds: int) -> list[float | None]:
    """Run a batch and a query, again and again; the last query is then left alone for a while."""
    batches, firsts, triggers, waits = [], [], [], []
    for number in range(-1, rounds):
        with timed() as seconds:
            rows = session.spark.read.format(side.form).options(**side.options).load().count()
        assert rows == side.stored
        if number < 0:
            continue  # Spark has ended Python processes that had nothing to do for a minute
        batches.append(seconds())
        live = _live_megabytes(session)
        with _Query(session, side) as query:
            firsts.append(query.wait_for(side.stored) - query.began)
            triggers.append(query.first_trigger())
            for i in range(_FEW):
                side.store(i % side.count)
                stored = time.monotonic()
                waits.append(query.wait_for(side.stored) - stored)
            idle = _idle(session, side) if number == rounds - 1 else []
            live = _live_megabytes(session) - live
            python = python_megabytes("python_streaming_source_runner")
    return [
        statistics.median(batches),
        statistics.median(firsts),
        statistics.median(triggers),
        statistics.median(waits) * 1000,
        *idle,
        query.offset_bytes() / 1000,
        live,
        python or None,
    ]


class _Query:
    """A streaming query that counts its rows, started with ``with``.

    Attributes:
        began: when it was started.
    """

    def __init__(self, session: Session, side: _Streams | _Topics | _Bytes) -> None:
        self._checkpoint = Path(session.directory, f"many-{time.time_ns()}")
        frame = session.spark.readStream.format(side.form).options(**side.options).load()
        self._writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        self._rows = 0
        self._at = 0.0

    def __enter__(self) -> _Query:
        self.began = time.monotonic()
        self._query = self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def _take(self, frame: Any, _: int) -> None:
        rows = frame.count()
        self._at = time.monotonic()
        self._rows += rows

    def wait_for(self, rows: int) -> float:
        """Wait until there were so many rows, and return when that was."""
        deadline = time.monotonic() + _PATIENCE
        while self._rows < rows:
            if error := self._query.exception():
                raise error
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._rows} rows came of {rows}")
            time.sleep(0.02)
        return self._at

    def first_trigger(self) -> float:
        """Return the seconds that Spark says its first micro-batch took."""
        while not (found := self._query.recentProgress):
            time.sleep(0.02)
        return float(found[0].durationMs["triggerExecution"]) / 1000

    def offset_bytes(self) -> int:
        """Return the size of an offset in the checkpoint."""
        return len(Path(self._checkpoint, "offsets", "0").read_bytes().splitlines()[-1])


def _idle(session: Session, side: _Streams | _Topics | _Bytes) -> list[float]:
    """Return what a query that has nothing to do asks and takes in a second."""
    time.sleep(_SETTLES)
    spark = int(_jvm(session).java.lang.ProcessHandle.current().pid())

    def used() -> list[float]:
        return [side.requests(), cpu_seconds(side.pids) * 1000, cpu_seconds_below(spark) * 1000]

    with timed() as seconds:
        before = used()
        time.sleep(_IDLE)
        after = used()
    return [(now - then) / seconds() for then, now in zip(before, after, strict=True)]


def _live_megabytes(session: Session) -> float:
    """Return what the JVM's objects take, without garbage."""
    _jvm(session).java.lang.System.gc()
    runtime = _jvm(session).java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6


def _jvm(session: Session) -> Any:
    return session.spark.sparkContext._jvm
