"""Small ranges of a stream, one after the other as a task reads each: by one direct get, and through a consumer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import paths
from benchmarks.client import sample
from benchmarks.environment import Server, start_server
from benchmarks.measure import Comparison, Contender, Sample, compare
from benchmarks.settings import Settings
from spark_nats.client.options import RetryOptions
from spark_nats.client.pool import borrow, leased
from spark_nats.jetstream import JetStream, Range, RangeReader, ReadMethod
from spark_nats.jetstream.messages import ask_first_message_from
from spark_nats.jetstream.positions import Fingerprint
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.streams.read.columns import RowBuilder
from spark_nats.options import connection_options, options_of_urls
from tests.servers import Cluster

_SIZE = 128
_RANGES = {10: 200, 256: 100, 4096: 30, 16_384: 10}
"""How many ranges of how many messages."""
_RETRIES = RetryOptions(timeout=0.0, wait=0.0, jitter=0.0, attempts=None)


def run(settings: Settings) -> Iterator[Comparison]:
    """Measure everything; a server that is given takes the place of the one, and of the cluster too."""
    with start_server(settings) as server:
        yield from (_compare(settings, server, size, replicas=1) for size in _RANGES)
    if settings.servers:
        return
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
        first = cluster.servers[0]
        server = Server(cluster.urls, first.monitoring_url, first.pid)
        yield from (_compare(settings, server, size, replicas=3) for size in _RANGES)


def _compare(settings: Settings, server: Server, size: int, replicas: int) -> Comparison:
    count = _RANGES[size] // (4 if settings.quick else 1)
    with server.stream("read.>", num_replicas=replicas, allow_direct=True) as stream:
        server.fill(stream, "read.", size, _SIZE)

        def read(small: bool) -> Sample:
            def seconds() -> float:
                times = read_again(server.url, stream, size, count, small)
                return times[-1] - times[0]

            return sample(server, count, seconds)

        contenders = [
            Contender("through a consumer", partial(read, False)),
            Contender("by one direct get", partial(read, True)),
        ]
        title = f"small: {count} ranges of {size:,} messages, replicas: {replicas}"
        return compare(title, "through a consumer", contenders, settings.rounds, ["a row is a range, not a message"])


def read_again(url: str, stream: str, size: int, count: int, small: bool) -> list[float]:
    """Read the first ``size`` messages ``count`` times; return when each time began, and when the last one ended."""
    options = connection_options(**options_of_urls(url))
    with borrow(options) as connection:
        js = JetStream(connection)
        created, last = ask_stream_info(js, stream).created, ask_first_message_from(js, stream, size, (">",))
    if last is None:
        raise AssertionError(f"{stream} has no message {size}")
    times = [time.monotonic()]
    for _ in range(count):
        rows = RowBuilder(paths.SCHEMA)
        with leased(options, _RETRIES, "reading", waits=False) as lease:
            end = Fingerprint(size, last.time)
            whole = Range(stream, created, 1, size + 1, last=end)
            reader = RangeReader(
                whole, ReadMethod.ONE_GET_FIRST if small else ReadMethod.CONSUMER, retries=lease.retries
            )
            read = sum(rows.build(delivered, stream).num_rows for delivered in reader.read(JetStream(lease.connection)))
        if read != size:
            raise AssertionError(f"{read} rows were read instead of {size}")
        times.append(time.monotonic())
    return times
