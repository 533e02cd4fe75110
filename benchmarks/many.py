"""Queries that read many streams with few messages each: the first micro-batch, and what is asked while idle."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import LongType, StructType

from benchmarks.environment import Server, connect
from benchmarks.measure import Grid, LeftOut, progress
from benchmarks.settings import Settings
from spark_nats.datasource import NatsDataSource
from spark_nats.embedded import NatsServer
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.creating import create_stream
from spark_nats.kinds.streams.read.readers import NatsStreamReader

_COUNTS = (1, 100, 1000, 5000)
_IDLE = 20.0  # seconds for which an idle query is watched
_COLUMNS = [
    "plan ms",
    "partitions",
    "read ms",
    "idle requests/s",
    "new message ms",
    "requests",
    "offset kB",
]


def run(settings: Settings) -> Iterator[Grid | LeftOut]:
    """Measure everything, each number of streams on a server of its own."""
    if settings.servers:
        yield LeftOut("many", "it counts the requests of servers of its own")
        return
    grid = Grid("many: a query over so many streams with one message each", _COLUMNS)
    for count in _COUNTS[: 3 if settings.quick else None]:
        progress(f"{grid.title}: {count}")
        with NatsServer() as embedded:
            server = Server(embedded.url, embedded.monitoring_url, embedded.pid)
            grid.rows[f"{count:,} streams"] = _figures(server, count)
    grid.remarks.append(
        "Spark's questions without Spark: the micro-batch is planned, and its partitions are read one after the other; "
        "then nothing is stored for a while; then one message at a time, until the query knows of it"
    )
    yield grid


def _figures(server: Server, count: int) -> list[float | None]:
    names = [f"MANY_{i:05}" for i in range(count)]
    with connect(server.url) as connection:
        for name in names:
            create_stream(JetStream(connection), {"name": name, "subjects": [f"{name}.>"], "storage": "memory"})
            connection.publish(f"{name}.x", b"")
        connection.flush()
        options = {**server.options, "streamPattern": "MANY_.*", "startingOffsets": "earliest", "minPartitions": "4"}
        schema = StructType().add("sequence", LongType())
        reader = NatsDataSource(options).streamReader(schema)
        assert isinstance(reader, NatsStreamReader)
        tasks = pickle.dumps(reader)
        began = time.monotonic()
        end = _latest(reader, reader.initialOffset())
        partitions = reader.partitions({}, end)
        planned = time.monotonic()
        rows = sum(batch.num_rows for each in partitions for batch in pickle.loads(tasks).read(each))
        read = time.monotonic()
        assert rows == count
        quiet = _requests(server)
        while time.monotonic() < read + _IDLE:
            assert _latest(reader, end) == end
        asked = _requests(server) - quiet
        waits, requests = [], []
        for name in (names * 3)[:3]:
            before = _requests(server)
            connection.publish(f"{name}.x", b"")
            connection.flush()
            stored = time.monotonic()
            while (following := _latest(reader, end)) == end:
                pass
            waits.append(time.monotonic() - stored)
            requests.append(_requests(server) - before)
            end = following
        reader.stop()
    kilobytes = len(json.dumps(end)) / 1000
    return [
        (planned - began) * 1000,
        float(len(partitions)),
        (read - planned) * 1000,
        asked / _IDLE,
        sorted(waits)[1] * 1000,
        float(sorted(requests)[1]),
        kilobytes,
    ]


def _latest(reader: NatsStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """Return the next offset as Spark gets it: by way of the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    return found


def _requests(server: Server) -> int:
    """Return how many requests JetStream's API has had."""
    return int(server.monitoring("jsz")["api"]["total"])
