"""Beginning, or ending, where a consumer that somebody else uses has come to."""

from __future__ import annotations

import json

import pytest

from spark_nats.errors import OptionError
from tests.integration.support import Query, read_sequences, sentence_of, sequences_of, stream_reader
from tests.nats_py import NatsPy
from tests.servers import BINARY_2_12, Server, ServerFactory


def at(stream: str, consumer: str = "billing") -> str:
    return json.dumps({stream: f"consumer:{consumer}"})


def consume(nats_py: NatsPy, stream: str, take: int, acknowledge: tuple[int, ...], **config: object) -> None:
    """Take messages with a durable consumer `billing`, and acknowledge some of them, counted from 0."""
    requested = {"durable_name": "billing", "ack_policy": "explicit", **config}
    nats_py.api(f"CONSUMER.DURABLE.CREATE.{stream}.billing", {"stream_name": stream, "config": requested})
    if take:
        pulled = nats_py.run(nats_py.nats.jetstream().pull_subscribe_bind(stream=stream, consumer="billing"))
        messages = nats_py.run(pulled.fetch(take, timeout=60))
        for i in acknowledge:
            nats_py.run(messages[i].ack_sync())


@pytest.fixture
def stream(nats_py: NatsPy, unique: str) -> str:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.a", range(10))
    return unique


@pytest.mark.parametrize(
    ("take", "acknowledge", "config", "first"),
    [
        (0, (), {}, 1),
        (4, (0, 1, 2), {}, 4),
        (4, (0, 1, 3), {}, 3),
        (4, (3,), {"ack_policy": "all"}, 5),
        (4, (), {"ack_policy": "none"}, 5),
        (0, (), {"deliver_policy": "by_start_sequence", "opt_start_seq": 7}, 7),
        (0, (), {"deliver_policy": "new"}, 11),
        (10, tuple(range(10)), {}, 11),
    ],
    ids=["nothing yet", "some", "out of order", "all up to one", "none needed", "from 7", "new ones", "all"],
)
def test_a_read_begins_behind_what_a_consumer_has_had_acknowledged(
    nats_server: Server,
    nats_py: NatsPy,
    stream: str,
    take: int,
    acknowledge: tuple[int, ...],
    config: dict[str, object],
    first: int,
) -> None:
    consume(nats_py, stream, take, acknowledge, **config)
    assert read_sequences(nats_server, stream=stream, startingOffsets=at(stream)) == list(range(first, 11))
    query = Query(stream_reader(nats_server, stream=stream, startingOffsets=at(stream)))
    nats_py.store(f"{stream}.a", range(1))
    assert sequences_of(query.rows(12 - first)) == list(range(first, 12))


@pytest.mark.promise("reading#consumer-began-later")
@pytest.mark.parametrize(
    ("take", "config", "first"),
    [
        (0, {}, 1),
        (3, {}, 1),
        (0, {"deliver_policy": "new"}, 11),
        (0, {"deliver_policy": "by_start_sequence", "opt_start_seq": 7}, 7),
        (3, {"deliver_policy": "by_start_sequence", "opt_start_seq": 7}, 7),
    ],
)
def test_it_is_where_it_began_until_something_is_acknowledged(
    server_factory: ServerFactory, take: int, config: dict[str, object], first: int
) -> None:
    """Servers before 2.14 report no floor until then."""
    server = server_factory(binary=BINARY_2_12)
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.store("S.a", range(10))
        consume(client, "S", take, (), **config)
    assert read_sequences(server, stream="S", startingOffsets=at("S")) == list(range(first, 11))


def test_a_batch_may_end_there(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    consume(nats_py, stream, 4, (0, 1, 2))
    assert read_sequences(nats_server, stream=stream, endingOffsets=at(stream)) == [1, 2, 3]


def test_what_limits_have_taken_from_the_consumer_is_lost_to_the_query_too(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, max_msgs=5)
    nats_py.store(f"{unique}.a", range(3))
    consume(nats_py, unique, 1, (0,))
    nats_py.store(f"{unique}.a", range(7))
    said = sentence_of(lambda: read_sequences(nats_server, stream=unique, startingOffsets=at(unique)))
    assert said.startswith("DataLossError")
    assert "2 to 5" in said
    going_on = {"stream": unique, "startingOffsets": at(unique), "failOnDataLoss": False}
    assert read_sequences(nats_server, **going_on) == [6, 7, 8, 9, 10]


def test_what_a_purge_has_taken_was_meant_to_go(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    consume(nats_py, stream, 0, ())
    nats_py.purge_stream(stream, seq=6)
    assert read_sequences(nats_server, stream=stream, startingOffsets=at(stream)) == [6, 7, 8, 9, 10]


def test_a_consumer_that_does_not_exist_is_named(nats_server: Server, stream: str) -> None:
    said = sentence_of(lambda: read_sequences(nats_server, stream=stream, startingOffsets=at(stream, "biling")))
    assert said.startswith(f"{OptionError.__name__}: stream '{stream}' has no consumer 'biling'")


@pytest.mark.parametrize("place", ["consumer:", "consumer:a.b", "durable:a"])
def test_a_name_that_no_consumer_has_is_refused(nats_server: Server, place: str) -> None:
    said = sentence_of(
        lambda: read_sequences(nats_server, stream="ORDERS", startingOffsets=json.dumps({"ORDERS": place}))
    )
    assert "it must be earliest, latest, or JSON" in said
