"""Acknowledged publishing: one, two and four writers, one and three replicas, with message ids and without."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa

from benchmarks import data, paths
from benchmarks.client import sample
from benchmarks.environment import Server, start_server
from benchmarks.measure import Comparison, Contender, Sample, compare
from benchmarks.settings import Settings
from tests.servers import Cluster

_SIZE = 128
_BATCH = 10_000
_IDS = "message ids"
_FORK = multiprocessing.get_context("fork")
Columns = tuple[pa.Array, pa.Array]
"""Subjects and payloads."""


def run(settings: Settings) -> Iterator[Comparison]:
    """Measure everything; a server that is given takes the place of the one, and of the cluster too."""
    with start_server(settings) as server:
        for writers in (1, 2, 4):
            yield _compare(settings, server, writers, replicas=1)
    if settings.servers:
        return
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
        first = cluster.servers[0]
        server = Server(cluster.urls, first.monitoring_url, first.pid)
        for writers in (1, 2, 4):
            yield _compare(settings, server, writers, replicas=3)


def _compare(settings: Settings, server: Server, writers: int, replicas: int) -> Comparison:
    each = settings.published // writers // (1 if replicas == 1 else 3)
    columns = [data.columns(each, _SIZE, f"keep.{number}.") for number in range(writers)]

    def once(with_ids: bool) -> Sample:
        with server.stream("keep.>", num_replicas=replicas) as stream:
            taken = sample(server, each * writers, partial(_write, server.url, stream, columns, with_ids))
            server.check(stream, each * writers)
        return taken

    contenders = [Contender(_IDS, partial(once, True)), Contender("no message ids", partial(once, False))]
    title = f"publishing: {writers} writer{'s' * (writers > 1)}, replicas: {replicas}"
    return compare(title, _IDS, contenders, settings.rounds, ["1,000 subjects; a new stream in files for each run"])


def _write(url: str, stream: str, columns: list[Columns], with_ids: bool) -> float:
    """Publish by a process for each pair of columns; return the seconds that all took."""
    may_begin = _FORK.Barrier(len(columns) + 1)
    processes = [_FORK.Process(target=_one, args=(may_begin, url, stream, each, with_ids)) for each in columns]
    for process in processes:
        process.start()
    may_begin.wait(60)
    began = time.perf_counter()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - began
    if any(process.exitcode for process in processes):
        raise AssertionError("a writer failed")
    return seconds


def _one(may_begin: Barrier, url: str, stream: str, columns: Columns, with_ids: bool) -> None:
    may_begin.wait(60)
    paths.publish_stream(url, stream, *columns, _BATCH, with_ids)
