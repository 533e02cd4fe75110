"""The option `limit`: the first messages of a batch, and what reading them costs the server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_nats.embedded import NatsServer
from spark_nats.jetstream.reading import delivering, direct, pulls, searching
from tests.integration.support import (
    batch_reader,
    monitoring,
    nats,
    numbers_of,
    read,
    read_partitions,
    read_sequences,
    sentence_of,
    sequences_of,
    stream_reader,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

ASKED = 2000  # messages that one request asks for here
MESSAGES = 5000  # more than two of them ask for
RARE = 1000  # one in so many is of another subject
OVERHEAD = 60  # messages that a server sends besides: answers of its API, and those of whoever else asks it


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no reason to ask for the same again, or to search on this side."""
    monkeypatch.setattr(pulls, "PULL_MESSAGES", ASKED)
    monkeypatch.setattr(direct, "BATCH_MESSAGES", ASKED)
    monkeypatch.setattr(delivering, "PATIENCE", 30.0)
    monkeypatch.setattr(searching, "TRIAL", 60.0)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server of which nobody else asks anything."""
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: NatsServer) -> Iterator[NatsPy]:
    with NatsPy(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def stream(client: NatsPy) -> str:
    """A stream of which every tenth message is deleted, and the first hundred."""
    client.create_stream("FIRST")
    client.publish_acked((f"FIRST.{'rare' if i % RARE == 0 else 'a'}", b"%d" % i) for i in range(1, MESSAGES + 1))
    client.purge_stream("FIRST", seq=101)
    for sequence in range(105, 300, 10):
        client.delete_message("FIRST", sequence)
    return "FIRST"


def kept(start: int = 101, end: int = MESSAGES + 1) -> list[int]:
    """The sequences that the stream has of a range."""
    return [s for s in range(max(start, 101), end) if s >= 300 or s % 10 != 5]


def sent_by(server: Server) -> int:
    count: int = monitoring(server, "varz")["out_msgs"]
    return count


@pytest.mark.parametrize("limit", [1, 10, ASKED, ASKED + 1, MESSAGES, 10 * MESSAGES])
@pytest.mark.parametrize("direct", [False, True], ids=["consumer", "direct gets allowed"])
def test_the_first_messages_are_read_and_no_more_are_sent(
    server: NatsServer, client: NatsPy, stream: str, limit: int, direct: bool
) -> None:
    config = client.stream_info(stream)["config"]
    client.api(f"STREAM.UPDATE.{stream}", {**config, "allow_direct": direct})
    before = sent_by(server)
    assert read_sequences(server, stream=stream, limit=limit) == kept()[:limit]
    assert sent_by(server) - before <= min(limit, MESSAGES) + OVERHEAD
    wait_until(lambda: len(client.consumers(stream)) <= 1)  # that the connection keeps


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 100])
def test_the_server_looks_for_the_first_messages_that_match(server: NatsServer, stream: str, limit: int) -> None:
    before = sent_by(server)
    found = read_sequences(server, stream=stream, subject=f"{stream}.rare", limit=limit)
    assert found == [RARE * i for i in range(1, 6)][:limit]
    assert sent_by(server) - before <= 5 + OVERHEAD


def test_where_most_messages_match_no_more_are_sent_either(server: NatsServer, stream: str) -> None:
    before = sent_by(server)
    assert read_sequences(server, stream=stream, subject=f"{stream}.a", limit=150) == kept()[:150]
    assert sent_by(server) - before <= 150 + OVERHEAD


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"FIRST": 290}'}, kept(290)[:20]),
        ({"startingOffsets": '{"FIRST": 290}', "endingOffsets": '{"FIRST": 300}'}, kept(290, 300)),
        ({"endingOffsets": '{"FIRST": 110}'}, kept(101, 110)),
        ({"endingTimestamp": "2020-01-01"}, []),
        ({"subject": "FIRST.rare,FIRST.none"}, [RARE * i for i in range(1, 6)]),
        ({"subject": "FIRST.none"}, []),
        ({"maxRecordsPerPartition": 7}, kept()[:20]),
    ],
    ids=str,
)
def test_a_limit_is_one_of_what_other_options_say(
    server: NatsServer, stream: str, options: dict[str, Any], expected: list[int]
) -> None:
    reader = batch_reader(server, stream=stream, limit=20, **options)
    partitions = reader.partitions()
    assert len(partitions) <= 1
    assert sequences_of(read_partitions(pickle.dumps(reader), partitions)) == expected


def test_several_streams_have_the_limit_together_and_come_one_after_another(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    names = [f"{unique}_{i}" for i in (2, 1, 3)]
    for name in names:
        nats_py.create_stream(name)
        nats_py.store(f"{name}.x", range(5))
    for limit, expected in ((3, [3, 0, 0]), (5, [5, 0, 0]), (7, [5, 2, 0]), (99, [5, 5, 5])):
        rows = read(nats_server, stream=",".join(names), limit=limit)
        assert [row["stream"] for row in rows] == [n for n, k in zip(names, expected, strict=True) for _ in range(k)]
    rows = read(nats_server, streamPattern=f"{unique}_.*", limit=7)
    assert [row["stream"] for row in rows] == [f"{unique}_1"] * 5 + [f"{unique}_2"] * 2


@pytest.mark.needs("work queues")
def test_a_peek_at_a_work_queue_has_a_limit(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, retention="workqueue", allow_direct=True)
    for i in range(0, 40, 2):
        nats_py.store(f"{unique}.a", [i])
        nats_py.store(f"{unique}.b", [i + 1])
    options = {"stream": unique, "peek": True, "limit": 7}
    assert numbers_of(read(nats_server, **options)) == list(range(7))
    assert numbers_of(read(nats_server, subject=f"{unique}.b", **options)) == list(range(1, 14, 2))
    rows = read(nats_server, subject=f"{unique}.b,{unique}.a", **{**options, "limit": 22})
    assert numbers_of(rows) == [*range(1, 40, 2), 0, 2]
    assert nats_py.held(unique) == 40


def test_a_limit_is_refused_where_it_can_have_no_meaning(nats_server: Server) -> None:
    at = {"server": nats_server, "stream": "S", "limit": 10}
    for wrong in (0, -1, "ten", 1.5):
        said = sentence_of(lambda wrong=wrong: batch_reader(**{**at, "limit": wrong}))
        assert said == f"OptionError: option 'limit' is '{wrong}'; it must be a whole number of at least 1"
    said = sentence_of(lambda: stream_reader(**at))
    assert "option 'limit' is for batch reads (spark.read), not for streaming" in said
    key = StructType().add("key", "string")
    assert "is not for KV buckets" in sentence_of(lambda: batch_reader(nats_server, key, bucket="B", limit=10))
    assert "needs the option 'stream'" in sentence_of(lambda: batch_reader(nats_server, subject="s", limit=10))
    assert "'limit' and 'minPartitions' contradict" in sentence_of(lambda: batch_reader(**at, minPartitions=2))


def test_filters_of_spark_come_after_the_limit(spark: SparkSession, server: NatsServer, stream: str) -> None:
    frame = nats(spark.read, server, stream=stream, limit=30).load()
    before = sent_by(server)
    assert sequences_of(frame.where("sequence % 10 = 6").select("sequence").collect()) == [106, 116, 126]
    assert sent_by(server) - before <= 30 + OVERHEAD
    assert frame.rdd.getNumPartitions() == 1
