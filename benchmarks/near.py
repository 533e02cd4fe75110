"""What reading and writing cost three servers, beside raw bytes at the right server and at a wrong one."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StructType

from benchmarks import data, raw
from benchmarks.environment import Server, connect, cpu_seconds
from benchmarks.measure import Comparison, Contender, LeftOut, Sample, Table, compare
from benchmarks.settings import Settings
from spark_nats import NatsDataSource
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming.consumers import create_ephemeral, delete_consumer_without_waiting
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.headers import EXPECTED_STREAM, MSG_ID, encode_block
from tests.nats_py import NatsPy
from tests.servers import Cluster

_SIZE = 128
_TASKS = 3
_BATCH = 10_000
_SETTLED = 0.5  # seconds after which the servers have nothing to do any more


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything."""
    if settings.servers:
        yield LeftOut("near", "it looks at all servers of a cluster of its own")
        return
    count = 60_000 if settings.quick else 300_000
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory)) as cluster:
        servers = [Server(cluster.urls, each.monitoring_url, each.pid) for each in cluster.servers]
        with NatsPy(cluster.urls.split(",")) as client:
            client.create_in_cluster("PLACED", num_replicas=3)  # from now on, what is asked is answered
        with multiprocessing.get_context("spawn").Pool(_TASKS) as pool:
            with servers[0].stream("read.>", num_replicas=3) as stream:
                _send(cluster, stream, lambda _: _wire("read."), count)
                yield _reads(settings, cluster, servers, pool, stream, count)
            yield _writes(settings, cluster, servers, pool, max(_BATCH, count // 10))


def sample(servers: list[Server], count: int, job: Callable[[], object]) -> Sample:
    """Do a job, and return what it cost all servers together."""
    time.sleep(_SETTLED)
    before, began = cpu_seconds(each.pid for each in servers), time.perf_counter()
    job()
    taken = time.perf_counter() - began
    time.sleep(_SETTLED)
    used = cpu_seconds(each.pid for each in servers) - before
    return Sample(count, taken, extra={"servers \u00b5s": used / count * 1e6})


def _wire(prefix: str, stream: str = "", part: int = 0) -> bytes:
    """Return messages as they are sent; with the ``stream`` to write to, with the reply and the headers of a write."""
    subjects, payloads = data.columns(_BATCH, _SIZE, prefix)
    messages = zip(subjects.to_pylist(), payloads.to_pylist(), strict=True)
    if not stream:
        return b"".join(b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(payload), payload) for to, payload in messages)
    lines = []
    for number, (to, payload) in enumerate(messages):
        own = {EXPECTED_STREAM: stream, MSG_ID: f"like-an-id-{part:016d}-{number:09d}"}
        block, reply = encode_block(own), b"_INBOX.%022d.%d" % (part, number)
        sizes = len(block), len(block) + len(payload)
        lines.append(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (to.encode(), reply, *sizes, block, payload))
    return b"".join(lines)


def _send(cluster: Cluster, stream: str, wire: Callable[[int], bytes], count: int, to_leader: bool = True) -> None:
    """Send encoded messages without waiting for acknowledgements, until the stream has ``count`` of them."""
    with connect(cluster.urls) as connection:
        js = JetStream(connection)
        leader = ask_stream_info(js, stream).leader
        url = next(each.url for each in cluster.servers if (each is cluster.of(leader)) == to_leader)
        for part, sent in enumerate(range(_BATCH, count + 1, _BATCH)):
            raw.send_all(url, wire(part), 1)
            while ask_stream_info(js, stream).messages < sent - _BATCH:  # its queue takes no more than some at once
                time.sleep(0.005)
        while ask_stream_info(js, stream).messages < count:
            time.sleep(0.005)


def _reads(
    settings: Settings, cluster: Cluster, servers: list[Server], pool: Any, stream: str, count: int
) -> Comparison:
    def drained(at_hand: bool) -> Sample:
        return sample(servers, count, partial(drain, cluster.urls, stream, count, at_hand))

    def read() -> Sample:
        schema = StructType().add("payload", BinaryType())
        options = {"servers": cluster.urls, "stream": stream, "minPartitions": str(_TASKS)}

        def job() -> None:
            reader = NatsDataSource(options).reader(schema)
            tasks = [(pickle.dumps(reader), pickle.dumps(each)) for each in reader.partitions()]
            if sum(pool.starmap(_read, tasks, chunksize=1)) != count:
                raise AssertionError("not all messages were read")

        return sample(servers, count, job)

    contenders = [
        Contender("raw drain at hand", partial(drained, True)),
        Contender("raw drain elsewhere", partial(drained, False)),
        Contender(f"read, {_TASKS} partitions", read),
    ]
    remarks = ["at hand: the consumer lives on the server that the client is connected to; servers: all three together"]
    return compare("near: read, 3 replicas", "raw drain at hand", contenders, settings.rounds, remarks)


def drain(urls: str, stream: str, count: int, at_hand: bool) -> None:
    """Drain a stream over a connection to the server of its consumer, or to another one; a lone server has it."""
    with connect(urls) as connection:
        js = JetStream(connection)
        while ((made := create_ephemeral(js, stream, 1)).leader in ("", connection.info.server_name)) != at_hand:
            delete_consumer_without_waiting(js, stream, made.name)
        raw.drain_consumer(connection, str(connection.server), stream, made.name, count)


def _read(reader: bytes, partition: bytes) -> int:
    return sum(batch.num_rows for batch in pickle.loads(reader).read(pickle.loads(partition)))


def _writes(settings: Settings, cluster: Cluster, servers: list[Server], pool: Any, count: int) -> Comparison:
    def once(job: Callable[[str], object]) -> Sample:
        with servers[0].stream("w.>", num_replicas=3) as stream:
            return sample(servers, count, partial(job, stream))

    def send(to_leader: bool, stream: str, like_rows: bool = False) -> None:
        _send(cluster, stream, lambda part: _wire("w.", stream if like_rows else "", part), count, to_leader)

    def write(stream: str, **more: str) -> None:
        table = pa.table(dict(zip(("subject", "payload"), data.columns(_BATCH, _SIZE, "w."), strict=True)))
        options = {"servers": cluster.urls, "stream": stream, **more}
        writer = NatsDataSource(options).writer(from_arrow_schema(table.schema), overwrite=False)
        pool.apply(_write, (pickle.dumps(writer), table, count // _BATCH))
        servers[0].check(stream, count)

    contenders = [
        Contender("raw bytes to the leader", lambda: once(partial(send, True))),
        Contender("raw bytes elsewhere", lambda: once(partial(send, False))),
        Contender("the same with a write's headers", lambda: once(partial(send, True, like_rows=True))),
        Contender("write, 1 task", lambda: once(write)),
        Contender("write without message ids", lambda: once(partial(write, deduplicate="false"))),
    ]
    remarks = ["raw bytes: nobody waits for an acknowledgement; the time is that until the stream has all"]
    return compare("near: written, 3 replicas", "raw bytes to the leader", contenders, settings.rounds, remarks)


def _write(writer: bytes, table: pa.Table, times: int) -> None:
    pickle.loads(writer).write(batch for _ in range(times) for batch in table.to_batches())
