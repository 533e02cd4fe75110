"""Whether a consumer is made again, decided by where it lives and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_nats.jetstream.consuming.placing import MAX_AGAIN, SAVED, needs_nearer_consumer, peers_in_connected_cluster
from spark_nats.jetstream.streams import StreamInfo, parse_stream, peers_in
from spark_nats.protocol.consumers import ConsumerInfo
from spark_nats.protocol.control import ServerInfo

HERE = ServerInfo(server_name="n0", cluster="C")
MADE = ConsumerInfo("E", {}, 1, 0, 1, 1_000_000, None, "n1")
REPLICAS = [{"name": "n1", "current": True, "active": 10**8}, {"name": "n2", "current": True, "active": 10**8}]


def stream(**cluster: Any) -> StreamInfo:
    answer: dict[str, Any] = {
        "config": {"name": "S", "retention": "limits", "subjects": ["s"], "num_replicas": 3},
        "created": "2026-01-01T00:00:00Z",
        "state": {"first_seq": 1, "last_seq": 9, "messages": 9, "bytes": 9},
        "cluster": {"name": "C", "leader": "n0", "replicas": REPLICAS, **cluster},
    }
    return parse_stream(answer, "S")


STREAM = stream()


def again(stream: StreamInfo = STREAM, here: ServerInfo = HERE, made: ConsumerInfo = MADE, **more: float) -> bool:
    given = {"again": 0, "seconds": 0.001, "left": 1e6, **more}
    return needs_nearer_consumer(made, stream, here, int(given["again"]), given["seconds"], given["left"])


def test_a_consumer_that_lives_elsewhere_is_made_again() -> None:
    assert again()


def test_a_consumer_is_not_made_again_for_ever() -> None:
    assert [again(again=count) for count in range(MAX_AGAIN + 2)] == [True] * MAX_AGAIN + [False] * 2


@pytest.mark.parametrize("seconds", [0.001, 0.1])
def test_it_may_take_as_long_as_its_messages_are_worth(seconds: float) -> None:
    worth = seconds / SAVED
    assert again(seconds=seconds, left=1.01 * worth)
    assert not again(seconds=seconds, left=0.99 * worth)
    assert not again(seconds=seconds, made=replace(MADE, pending=int(0.99 * worth)))


@pytest.mark.parametrize(
    "more",
    [
        {"made": replace(MADE, leader="n0")},
        {"made": replace(MADE, leader="")},
        {"here": replace(HERE, server_name="n7")},
        {"here": replace(HERE, domain="leaf")},
        {"here": replace(HERE, cluster="")},
        {"stream": replace(STREAM, config={**STREAM.config, "max_consumers": 10})},
        {"stream": replace(STREAM, retention="interest")},
        {"stream": stream(leader="n1", replicas=[{**REPLICAS[0], "name": "n0", "current": False}])},
        {"stream": stream(leader="n1", replicas=[{**REPLICAS[0], "name": "n0", "offline": True}])},
        {"stream": stream(leader="n1", replicas=[{**REPLICAS[0], "name": "n0", "active": 10**11}])},
    ],
    ids=str,
)
def test_it_is_kept_where_no_other_place_is_at_hand(more: dict[str, Any]) -> None:
    assert not again(**more)


def test_the_servers_at_hand_are_those_of_the_stream_that_are_up_to_date_its_leader_first() -> None:
    assert peers_in_connected_cluster(STREAM, HERE) == ("n0", "n1", "n2")
    lagging = [REPLICAS[0], {**REPLICAS[1], "current": False}]
    assert peers_in_connected_cluster(stream(replicas=lagging), HERE) == ("n0", "n1")
    assert peers_in_connected_cluster(STREAM, replace(HERE, domain="leaf")) == ()
    assert peers_in({}) == ()
