"""How rates grow with tasks, streams and replicas, through Spark, beside raw drains of the same stream."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.environment import Server, connect
from benchmarks.measure import Grid, LeftOut, Table
from benchmarks.near import drain, sample
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import message_frame, named, noop
from spark_nats.embedded import NatsServer
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.api import Api
from tests.nats_py import NatsPy
from tests.servers import Cluster

_STREAMS = 4
_MAX_TASKS = 16
_WARM = 2_000  # rows for each task
_COLUMNS = ["k rows/s", "servers \u00b5s", "servers' cores"]


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything that the budget allows."""
    if settings.servers:
        yield LeftOut("scale", "it looks at all servers of a cluster of its own")
        return
    budget, cores = _Budget(settings.budget), len(os.sched_getaffinity(0))
    tasks = [number for number in (1, 2, 4, 8, _MAX_TASKS) if number <= cores]
    count = 40_000 if settings.quick else 1_000_000
    with start_spark({"spark.master": f"local[{cores}]"}) as session:
        with NatsServer() as one:
            servers = [Server(one.url, one.monitoring_url, one.pid)]
            yield from _tables(_Scene("one server", servers, session, tasks, count), budget, 1)
        with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
            servers = [Server(cluster.urls, each.monitoring_url, each.pid) for each in cluster.servers]
            with NatsPy(cluster.urls.split(",")) as client:
                client.create_in_cluster("PLACED", num_replicas=3)  # from now on, what is asked is answered
            yield from _tables(_Scene("three servers, 3 replicas", servers, session, tasks, count), budget, 3)


@dataclass(frozen=True)
class _Scene:
    """Where something is measured, and how much."""

    title: str
    servers: list[Server]
    session: Session
    tasks: list[int]
    count: int


class _Budget:
    """Fills tables as long as there is time for it, and says on the standard error what came out.

    Args:
        seconds: how long everything may take; None for any time.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._last = 0.0  # seconds that the last row took

    def allows(self, table: Grid, name: str) -> bool:
        """Tell whether there is time for a row, and say so in a remark if there is none."""
        allows = self._end is None or time.monotonic() + self._last < self._end
        if not allows:
            table.remarks.append(f"{name}: left out, since the budget is spent")
        return allows

    def add(self, table: Grid, name: str, scene: _Scene, job: Callable[[], object]) -> None:
        """Do what a row is about."""
        began = time.monotonic()
        found = sample(scene.servers, scene.count, job)
        rate, micros = found.messages / found.seconds, found.extra["servers \u00b5s"]
        table.rows[name] = [rate / 1000, micros, micros * rate / 1e6]
        self._last = time.monotonic() - began
        print(f"{table.title}: {name}: {rate:,.0f} rows/s, servers {micros:.2f} \u00b5s", file=sys.stderr, flush=True)


def _tables(scene: _Scene, budget: _Budget, replicas: int) -> Iterator[Table]:
    subjects = {"one": ["one.>"], "several": [f"several.{i}.>" for i in range(_STREAMS)]}
    most, server = scene.tasks[-1], scene.servers[0]
    with ExitStack() as stack:
        targets = {
            prefix: [stack.enter_context(server.stream(each, num_replicas=replicas)) for each in heard]
            for prefix, heard in subjects.items()
        }
        for prefix, streams in targets.items():  # from now on, Spark's processes are warm
            _write(scene, prefix, streams, most, _WARM * most)
            _read(scene, streams, most)
        written = Grid(
            f"scale: {scene.title}, written", _COLUMNS, remarks=["acknowledged; several streams: one save()"]
        )
        for prefix, streams in targets.items():
            for tasks in scene.tasks:
                if budget.allows(written, name := _name(streams, tasks)):
                    _purge(server, streams)
                    budget.add(written, name, scene, partial(_write, scene, prefix, streams, tasks, scene.count))
                    _check(server, streams, scene.count)
        yield written
        read = Grid(f"scale: {scene.title}, read", _COLUMNS, remarks=["all columns, into the noop sink"])
        for at_hand, name in [(True, "raw drain at hand"), (False, "raw drain elsewhere")][: len(scene.servers)]:
            if budget.allows(read, name):
                budget.add(read, name, scene, partial(drain, server.url, targets["one"][0], scene.count, at_hand))
        for streams in targets.values():
            for tasks in sorted({max(each, len(streams)) for each in scene.tasks}):  # each stream is a task at least
                if budget.allows(read, name := _name(streams, tasks)):
                    budget.add(read, name, scene, partial(_read, scene, streams, tasks))
        yield read


def _name(streams: list[str], tasks: int) -> str:
    return f"{named(len(streams), 'stream')}, {named(tasks, 'task')}"


def _write(scene: _Scene, prefix: str, streams: list[str], tasks: int, count: int) -> None:
    """Write rows in about equal shares to streams, each to the one that listens on its subject."""
    to = f"concat('{prefix}.', pmod(hash(subject), {len(streams)}), '.', subject)"
    frame = message_frame(scene.session, count, "", tasks).selectExpr(f"{to} AS subject", "payload")
    options = {**scene.servers[0].options, "stream": ",".join(streams)}
    frame.write.format("nats").options(**options).mode("append").save()


def _read(scene: _Scene, streams: list[str], tasks: int) -> None:
    """Read streams whole, in so many partitions of about the same size."""
    options = {**scene.servers[0].options, "stream": ",".join(streams)}
    sizes = {"minPartitions": tasks, "maxRecordsPerPartition": 10 * scene.count}
    noop(scene.session.spark.read.format("nats").options(**options, **sizes).load())


def _purge(server: Server, streams: list[str]) -> None:
    with connect(server.url) as connection:
        for each in streams:
            JetStream(connection).request(Api.STREAM_PURGE, each)


def _check(server: Server, streams: list[str], count: int) -> None:
    with connect(server.url) as connection:
        found = sum(ask_stream_info(JetStream(connection), each).messages for each in streams)
    if found != count:
        raise AssertionError(f"the streams hold {found} messages instead of {count}")
