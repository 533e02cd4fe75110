"""Reading from and up to a time where a server's clock was set back, so that times do not rise with sequences."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructType

from spark_nats.client import connect
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.times import ask_end_at, ask_first_at
from spark_nats.jetstream.views import ask_stream_info
from tests.connections import options_for
from tests.integration.support import Query, read, read_sequences, sequences_of, stream_reader
from tests.nats_py import NatsPy
from tests.servers import ClockServer, Cluster

KEY = StructType().add("key", StringType())
Stored = Callable[[int], datetime]
"""Stores so many messages, one by one, and returns when the last one was stored."""


@pytest.fixture
def server(clock_server_factory: Callable[..., ClockServer]) -> ClockServer:
    return clock_server_factory()


@pytest.fixture
def client(server: ClockServer) -> Iterator[NatsPy]:
    with NatsPy(server.url) as connected:
        yield connected


@pytest.fixture
def stored(client: NatsPy, unique: str) -> Stored:
    client.create_stream(unique)

    def store(count: int) -> datetime:
        for _ in range(count):
            (last,) = client.publish_acked([(f"{unique}.a", b"x")])
        answer = client.api(f"STREAM.MSG.GET.{unique}", {"seq": last})
        return datetime.fromisoformat(answer["message"]["time"])

    return store


@pytest.mark.promise("reading#starting-time-that-falls")
def test_what_begins_at_a_time_leaves_out_nothing_that_was_stored_before_the_clock_was_set_back(
    server: ClockServer, stored: Stored, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored(5)
    sixth = stored(1)
    stored(4)
    server.step(-60)
    stored(10)
    given = {"stream": unique, "startingTimestamp": sixth.isoformat()}
    assert read_sequences(server, **given) == [*range(6, 21)]
    (said,) = caplog.messages
    assert said.startswith(
        f"[NATS_BEGINS_BEFORE_TIME] stream {unique}: messages after sequence 6, stored at {sixth:%F}"
    )
    query = Query(stream_reader(server, **given))
    assert sequences_of(query.rows(15)) == [*range(6, 21)]
    stored(2)
    assert sequences_of(query.rows(2)) == [21, 22]


@pytest.mark.promise("reading#ending-time-that-falls")
def test_what_ends_at_a_time_leaves_out_nothing_that_was_stored_after_the_clock_was_set_back(
    server: ClockServer, stored: Stored, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored(20)
    server.step(-60)
    back = stored(3)
    server.step(60)
    stored(2)
    end = back + timedelta(seconds=30)
    assert read_sequences(server, stream=unique, endingTimestamp=end.isoformat()) == [*range(1, 24)]
    (said,) = caplog.messages
    assert said.startswith(f"[NATS_ENDS_AFTER_TIME] stream {unique}: messages before sequence 23, stored at {back:%F}")


def test_what_begins_at_a_time_leaves_out_nothing_where_the_next_leaders_clock_is_behind(
    tmp_path: Path, unique: str
) -> None:
    with Cluster(tmp_path, clocks=True) as cluster, NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3)
        leader = cluster.of(client.stream_info(unique)["cluster"]["leader"])
        for count in (5, 1, 4):  # the sixth alone: in a cluster, messages of one write may share a microsecond
            client.store_empty(unique, count)
        sixth = client.api(f"STREAM.MSG.GET.{unique}", {"seq": 6})["message"]["time"]
        behind = next(server for server in cluster.servers if server is not leader)
        cluster.step(behind, -100)
        client.hand_over(unique, f"n{cluster.servers.index(behind)}")
        client.store_empty(unique, 10)
        assert read_sequences(cluster.urls, stream=unique, startingTimestamp=sixth) == [*range(6, 21)]


def test_a_clock_that_was_set_back_elsewhere_in_the_stream_changes_nothing(
    server: ClockServer, stored: Stored, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored(10)
    server.step(-60)
    stored(10)
    server.step(3600)
    middle = stored(1)
    stored(9)
    assert read_sequences(server, stream=unique, startingTimestamp=middle.isoformat()) == [*range(21, 31)]
    assert read_sequences(server, stream=unique, endingTimestamp=middle.isoformat()) == [*range(1, 21)]
    assert caplog.messages == []


def test_the_first_and_the_last_of_each_time_are_found_wherever_the_clock_was_set_back(
    server: ClockServer, stored: Stored, client: NatsPy, unique: str
) -> None:
    dice = random.Random(50)
    back = {dice.randrange(200): dice.choice([3, 10, 50, 150]) for _ in range(5)}
    times = []
    for number in range(200):  # a message a second, by this clock
        server.step(1 - back.get(number, 0))
        times.append(stored(1))
    for hole in dice.sample(range(200), 20):
        client.delete_message(unique, hole + 1)
        times[hole] = datetime.max.replace(tzinfo=times[0].tzinfo)
    there = [(number + 1, time) for number, time in enumerate(times) if time.year < 9999]
    with connect(options_for(server.url)) as connection:
        js = JetStream(connection)
        info = ask_stream_info(js, unique)
        for _, time in there[::4]:
            first = min(sequence for sequence, each in there if each >= time)
            last = max((sequence for sequence, each in there if each < time), default=0)
            assert ask_first_at(js, info, time).sequence == first
            end = ask_end_at(js, info, time).sequence
            assert max((sequence for sequence, _ in there if sequence < end), default=0) == last


@pytest.mark.promise("reading#moment-that-falls")
def test_a_bucket_at_a_time_has_all_that_was_put_by_then(server: ClockServer, client: NatsPy, unique: str) -> None:
    client.run(client.nats.jetstream().create_key_value(bucket=unique, history=9))
    server.step(120)
    for number in range(20):
        client.put(unique, {"early": b"%d" % number})
    server.step(-60)
    (revision,) = client.put(unique, {"late": b"x"})
    put = client.api(f"STREAM.MSG.GET.KV_{unique}", {"seq": revision})["message"]["time"]
    server.step(60)
    client.put(unique, {"later": b"x"})
    at = (datetime.fromisoformat(put) + timedelta(seconds=1)).isoformat()
    assert {row["key"] for row in read(server, KEY, bucket=unique, asOf=at)} == {"early", "late"}
