"""What many small queries ask of a cluster of three servers, and small reads of which several run at once."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.environment import Server, connect, cpu_seconds, publisher_to
from benchmarks.measure import Comparison, Contender, Grid, LeftOut, Sample, Table, compare, progress, timed
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.small import read_again
from benchmarks.spark import percentile
from tests.nats_py import NatsPy
from tests.servers import Cluster

_SIZE = 128
_PATIENCE = 120.0
_RANGE = 10  # messages
_READERS = 8
_PARTITIONS = 4
_RATE = 5.0  # messages a second, when busy
_PAUSE = 3.0  # seconds between two messages, when one comes now and then
_STREAMS: dict[str, dict[str, Any]] = {
    "3 replicas": {"num_replicas": 3, "allow_direct": True},
    "3 replicas, allow_direct false": {"num_replicas": 3, "allow_direct": False},
}
_COLUMNS = [
    "requests/s",
    "of those API/s",
    "consumers made/s",
    "deleted/s",
    "meta proposals/s",
    "server CPU ms/s",
    "micro-batches/s",
    "latency p50 ms",
    "p99 ms",
]


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything."""
    if settings.servers:
        yield LeftOut("cluster", "it looks at all servers of a cluster of its own")
        return
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
        servers = [Server(cluster.urls, each.monitoring_url, each.pid) for each in cluster.servers]
        with multiprocessing.get_context("spawn").Pool(_READERS) as pool:
            for name in _STREAMS:
                yield _ranges(settings, servers, pool, name)
        with start_spark({"spark.sql.streaming.numRecentProgressUpdates": 10_000}) as session:
            for name in _STREAMS:
                yield _queries(settings, servers, session, name)


# Without Spark


def _ranges(settings: Settings, servers: list[Server], pool: Any, name: str) -> Comparison:
    server, times = servers[0], 50 if settings.quick else 200
    small = _STREAMS[name]["allow_direct"]  # as a query chooses
    with server.stream("read.>", **_STREAMS[name]) as stream:
        server.fill(stream, "read.", _RANGE, _SIZE)

        def read(readers: int) -> Sample:
            before = _counts(servers)
            arguments = [(server.url, stream, _RANGE, times, small)] * readers
            found = pool.starmap(read_again, arguments, chunksize=1)
            asked = {what: value - before[what] for what, value in _counts(servers).items()}
            seconds = max(each[-1] for each in found) - min(each[0] for each in found)
            taken = [(end - start) * 1000 for each in found for start, end in pairwise(each)]
            ranges = readers * times
            extra = {
                "p50 ms": percentile(taken, 0.5),
                "p99 ms": percentile(taken, 0.99),
                "requests a range": asked["requests"] / ranges,
                "meta proposals a range": asked["proposals"] / ranges,
                "servers \u00b5s": asked["cpu"] / ranges * 1e6,
            }
            return Sample(ranges, seconds, extra=extra)

        contenders = [
            Contender("1 reader", lambda: read(1)),
            Contender(f"{_READERS} readers", lambda: read(_READERS)),
        ]
        how = "one direct get each" if small else "a consumer each"
        remarks = [f"a row is a range, not a message; {how}; a process for each reader, {times} ranges one by one"]
        title = f"cluster: ranges of {_RANGE} messages, {name}"
        return compare(title, "1 reader", contenders, settings.rounds, remarks)


def _counts(servers: list[Server]) -> dict[str, float]:
    """Return what the servers have counted so far, all together."""
    pages = [server.monitoring("jsz") for server in servers]
    groups = [server.monitoring("raftz?acc=$SYS&group=_meta_")["$SYS"]["_meta_"] for server in servers]
    return {
        "requests": float(sum(server.monitoring("varz")["in_client_msgs"] for server in servers)),
        "api": float(sum(page["api"]["total"] for page in pages)),
        "proposals": float(max(group["committed"] for group in groups)),
        "cpu": cpu_seconds(server.pid for server in servers),
    }


# With Spark


def _queries(settings: Settings, servers: list[Server], session: Session, name: str) -> Grid:
    count = 4 if settings.quick else 10
    phases = {  # seconds, and messages a second
        "idle": (10.0 if settings.quick else 60.0, 0.0),
        f"a message every {_PAUSE:g} s": (20.0 if settings.quick else 120.0, 1 / _PAUSE),
        f"{_RATE:g} messages a second": (10.0 if settings.quick else 60.0, _RATE),
    }
    table = Grid(f"cluster: {count} queries of {_PARTITIONS} partitions, {name}", _COLUMNS)
    server = servers[0]
    with ExitStack() as stack:
        stream = stack.enter_context(server.stream("many.>", **_STREAMS[name]))
        publisher = publisher_to(stack.enter_context(connect(server.url)), stream)
        client = stack.enter_context(NatsPy(server.url.split(",")))
        made, deleted = (
            stack.enter_context(client.collect(f"$JS.EVENT.ADVISORY.CONSUMER.{what}.{stream}.>"))
            for what in ("CREATED", "DELETED")
        )

        def publish() -> None:
            publisher.publish(pa.array(["many.now"]), pa.array([str(time.time_ns()).encode()]))
            publisher.wait_for_sent_rows()

        progress(f"{table.title}: start")
        publish()  # so that each query has a micro-batch to begin with
        queries = stack.enter_context(_Queries(session, server, stream, count))
        stored = 1
        for phase, (seconds, rate) in phases.items():
            progress(f"{table.title}: {phase}")
            batches, before = queries.micro_batches, _counts(servers)
            made.clear()
            deleted.clear()
            queries.seen.clear()
            with timed() as taken:
                published = _publish(publish, seconds, rate)
                stored += published
                queries.wait_for(stored)
            asked = {what: value - before[what] for what, value in _counts(servers).items()}
            waited = [(now - sent) / 1e6 for sent, now in queries.seen]
            figures = [
                asked["requests"] - published,
                asked["api"],
                len(made.messages),
                len(deleted.messages),
                asked["proposals"],
                asked["cpu"] * 1000,
                queries.micro_batches - batches,
            ]
            table.rows[phase] = [
                *(figure / taken() for figure in figures),
                percentile(waited, 0.5) if waited else None,
                percentile(waited, 0.99) if waited else None,
            ]
    table.remarks = [
        "trigger every second; one query has a foreachBatch, which tells the latency, the others the noop sink",
        "requests: what clients publish to the servers, pull requests and direct gets too, the messages left out",
        "latency: from before a message is published to when foreachBatch has its row",
        "rates are of the time until all queries have had the last message",
    ]
    return table


def _publish(publish: Callable[[], None], seconds: float, rate: float) -> int:
    """Publish for some seconds, not in step with any trigger; return how many messages that were."""
    draw = random.Random(7)
    began = time.monotonic()
    due, published = began, 0
    while (now := time.monotonic()) < began + seconds:
        if rate and now >= due:
            publish()
            published += 1
            due += draw.uniform(0.5, 1.5) / rate
        time.sleep(0.02)
    return published


class _Queries:
    """Streaming queries of one stream, each with a trigger every second, started with ``with``.

    Attributes:
        seen: when each message was published, and when the first query had its row, in nanoseconds.
    """

    def __init__(self, session: Session, server: Server, stream: str, count: int) -> None:
        self.seen: list[tuple[int, int]] = []
        self._session = session
        self._options = {
            **server.options,
            "stream": stream,
            "startingOffsets": "earliest",
            "minPartitions": str(_PARTITIONS),
        }
        self._count = count
        self._queries: list[Any] = []

    def __enter__(self) -> _Queries:
        try:
            for _ in range(self._count):
                self._start()
        except BaseException:
            self.__exit__()
            raise
        time.sleep(5)  # so that what happens once in a while after a start has happened
        return self

    def __exit__(self, *_: object) -> None:
        for query in self._queries:
            query.stop()

    def _start(self) -> None:
        """Start one more, and wait until it has had a micro-batch: Spark gives a Python process 10 s to start."""
        writer = self._session.spark.readStream.format("nats").options(**self._options).load().writeStream
        writer = writer.format("noop") if self._queries else writer.foreachBatch(self._take)
        checkpoint = f"{self._session.directory}/cluster-{time.time_ns()}"
        query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="1 second").start()
        self._queries.append(query)
        self.wait_for(1)

    def wait_for(self, rows: int) -> None:
        """Wait until each query has had so many rows."""
        deadline = time.monotonic() + _PATIENCE
        while any(sum(p.numInputRows for p in _with_rows(query)) < rows for query in self._queries):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all queries had {rows} rows")
            time.sleep(0.2)

    @property
    def micro_batches(self) -> int:
        """How many there were so far, of all queries."""
        return sum(len(_with_rows(query)) for query in self._queries)

    def _take(self, frame: Any, _: int) -> None:
        sent = frame.select("payload").toArrow().column(0).to_pylist()
        now = time.time_ns()
        self.seen.extend((int(text), now) for text in sent)


def _with_rows(query: Any) -> list[Any]:
    """Return the progress of all micro-batches that had rows; raises what the query has failed with."""
    if error := query.exception():
        raise error
    return [p for p in query.recentProgress if p.numInputRows]
