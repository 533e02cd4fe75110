"""How many round trips a job takes, counted in the simulated world: there a round trip is all that takes time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_nats.client import connect
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.jetstream.reading.ranges import Range, RangeReader
from spark_nats.kinds.queries import parse_options, parse_read_options, parse_write_options
from spark_nats.kinds.streams.read.readers import NatsReader, NatsStreamReader
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask
from tests.simulation.history import History, Plan
from tests.simulation.network import Transport
from tests.simulation.world import Process

ONE_WAY = 0.05
SERVERS = {"servers": "nats://127.0.0.1:4222"}


class Trips:
    """Counts the round trips of what is done, each in a process of the world that has a connection already."""

    def __init__(self, version: str = "2.15.1") -> None:
        self.history = History(Plan(1, servers=1, version=version, latency=(ONE_WAY, ONE_WAY), torn=0.0))
        self.cluster, self.world = self.history.cluster, self.history.world

    def play(self, body: Callable[[], None]) -> None:
        """Run it in the world."""
        transport = type("SimulatedTransport", (Transport,), {"world": self.world, "net": self.history.net})
        with self.world.held(transport):
            actor = self.world.spawn(Process(self.world, "worker"), "worker", body)
            self.world.run(lambda: actor.done, 1000.0)
        if actor.error is not None:
            raise actor.error

    def of(self, job: Callable[[], Any]) -> float:
        """Return how many a job takes."""
        before = self.world.now
        job()
        return round((self.world.now - before) / (2 * ONE_WAY), 2)


@pytest.fixture
def trips() -> Trips:
    return Trips()


def rows(count: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"subject": ["out.a"] * count, "payload": [b"%d" % i for i in range(count)]})


@pytest.mark.parametrize(("more", "reading"), [({}, 1), ({"subject": "in.a"}, 1), ({"minPartitions": "2"}, 1)], ids=str)
def test_a_small_micro_batch_is_planned_in_one_round_trip_and_each_task_reads_in_one(
    trips: Trips, more: dict[str, str], reading: int
) -> None:
    found: list[float] = []

    def body() -> None:
        options = {**SERVERS, "stream": "IN", "startingOffsets": "earliest", **more}
        reader = NatsStreamReader(
            parse_read_options(parse_options(options), streaming=True), StructType().add("payload", BinaryType())
        )
        place = reader.initialOffset()
        for number in range(3):
            for i in range(10):
                trips.cluster.offer("in.a", b"%d" % i)
            trips.world.current.block(trips.world.now + 1)
            end: dict[str, Any] = {}
            planning = trips.of(lambda: end.update(reader.latestOffset(place, reader.getDefaultReadLimit())))  # noqa: B023
            partitions = reader.partitions(place, end)
            assert not any(trips.of(lambda: reader.partitions(place, end)) for _ in range(2))  # noqa: B023
            read: list[pa.RecordBatch] = []
            for each in partitions:
                found.append(trips.of(lambda: read.extend(reader.read(each))))  # noqa: B023
            assert sum(batch.num_rows for batch in read) == 10
            if number:
                assert planning == 1
            place = end

    trips.cluster.create_stream("IN", ["in.>"], allow_direct=True)
    trips.play(body)
    assert found == [reading] * len(found)


@pytest.mark.parametrize(("more", "reading"), [({"minPartitions": "1"}, 3), ({"limit": "40"}, 40)], ids=str)
def test_a_task_reads_sixteen_small_ranges_in_one_round_trip_unless_it_may_not_need_them_all(
    trips: Trips, more: dict[str, str], reading: int
) -> None:
    found: list[float] = []
    read: list[pa.RecordBatch] = []

    def body() -> None:
        options = {**SERVERS, "streamPattern": "S.*", **more}
        reader = NatsReader(
            parse_read_options(parse_options(options), streaming=False), StructType().add("stream", StringType())
        )
        (partition,) = reader.partitions()
        found.append(trips.of(lambda: read.extend(reader.read(partition))))

    names = [f"S{i:02}" for i in range(40)]
    for name in names:
        trips.cluster.create_stream(name, [f"{name}.*"], allow_direct=True)
        trips.cluster.offer(f"{name}.a", b"")
    trips.play(body)
    assert pa.Table.from_batches(read)["stream"].to_pylist() == names
    assert found == [reading]


# For its first range a connection asks too whether its consumer may be deleted, and hears the answer.
@pytest.mark.parametrize(("version", "reading"), [("2.15.1", [4, 2, 2, 2]), ("2.12.1", [4, 4, 4, 4])])
def test_a_range_through_a_consumer_that_was_kept_takes_two_round_trips(version: str, reading: list[int]) -> None:
    trips, found, read = Trips(version), [], list[int]()

    def body() -> None:
        with connect(
            parse_read_options(parse_options({**SERVERS, "stream": "IN"}), streaming=False).connection
        ) as connection:
            for start in range(1, 41, 10):
                one = RangeReader(Range("IN", None, start, start + 10), keeps_consumer=True)
                reading = one.read(JetStream(connection))
                batches: list[Delivered] = []
                found.append(trips.of(lambda: batches.extend(reading)))  # noqa: B023
                read.extend(sequence for _, each in batches for sequence in each.stream_sequences().tolist())

    trips.cluster.create_stream("IN", ["in.>"])
    for _ in range(40):
        trips.cluster.offer("in.a", b"")
    trips.play(body)
    assert found == reading
    assert read == list(range(1, 41))
    trips.world.run(lambda: not trips.cluster.left(), trips.world.now + 1)


def test_a_task_of_a_micro_batch_that_writes_takes_three_round_trips(trips: Trips) -> None:
    found: list[float] = []

    def body() -> None:
        options = parse_write_options(parse_options({**SERVERS, "stream": "OUT"}), streaming=True)
        for batch in range(4):
            task = WriteTask("query", str(batch), 0, run="run", planned_at=batch + 1)
            found.append(trips.of(lambda: write_partition(options, task, rows(10))))  # noqa: B023

    trips.cluster.create_stream("OUT", ["out.>"])
    trips.cluster.create_stream("KV_SPARK_NATS", ["$KV.SPARK_NATS.>"], max_msgs_per_subject=1)
    trips.play(body)
    assert found[2:] == [3, 3]


@pytest.mark.parametrize("more", [{}, {"subject": "in.a"}], ids=str)
def test_an_idle_query_asks_once_a_minute_and_hears_of_a_message_as_it_is_stored(
    trips: Trips, more: dict[str, str]
) -> None:
    asked: list[str] = []
    answer = trips.cluster.api

    def counted(server: Any, operation: str, *rest: Any) -> bool:
        asked.append(operation)
        return answer(server, operation, *rest)

    def body() -> None:
        options = {**SERVERS, "stream": "IN", "startingOffsets": "earliest", **more}
        reader = NatsStreamReader(
            parse_read_options(parse_options(options), streaming=True), StructType().add("payload", BinaryType())
        )
        place, limit, world = reader.initialOffset(), reader.getDefaultReadLimit(), trips.world
        while world.now < 30:
            assert reader.latestOffset(place, limit) == place
        asked.clear()
        while world.now < 630:
            assert reader.latestOffset(place, limit) == place
        looks = [each for each in asked if each == "STREAM.INFO.IN"]
        assert len(looks) <= 10
        assert len(asked) <= 15  # with the pull requests, which live for two and a half minutes
        stored = world.now
        trips.cluster.offer("in.a", b"1")
        while reader.latestOffset(place, limit) == place:
            pass
        assert world.now - stored <= 3 * ONE_WAY  # it comes by itself, and then there is a look of one round trip

    trips.cluster.api = counted  # type: ignore[method-assign]
    trips.cluster.create_stream("IN", ["in.>"])
    trips.play(body)
