"""Which leader's word on its stream is believed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_nats.client import Connection
from spark_nats.conditions import Transient
from spark_nats.errors import JetStreamError, NatsError
from spark_nats.jetstream.api import JetStream, Request
from spark_nats.jetstream.streams import StreamInfo, check_leader
from spark_nats.jetstream.views import Trust, ask_all_again_if_doubted, ask_stream_info
from tests.unit.jetstream.connected import Connected

HEARD = {"current": True, "active": 400_000_000}
SILENT = {"current": True, "active": 4_500_000_000}
BEHIND = {"current": False, "active": 400_000_000}
OFFLINE = {"current": False, "offline": True, "active": 90_000_000_000}


class Leaders(JetStream):
    """Answers as one leader after the other, of which each has heard of the others like this."""

    def __init__(self, *others: list[dict[str, Any]]) -> None:
        super().__init__(cast(Connection, Connected()))
        object.__setattr__(self, "others", list(others))
        object.__setattr__(self, "ends", [])

    def request_all(self, requests: Any) -> list[dict[str, Any] | NatsError]:
        others = self.others.pop(0) if len(self.others) > 1 else self.others[0]
        assert requests == [Request(requests[0].operation, ("S",))]
        end = self.ends.pop(0) if self.ends else 10 - len(self.others)
        state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": end, "consumer_count": 0}
        config = {"name": "S", "subjects": ["s"], "retention": "limits"}
        replicas = [{"name": f"n{i}", **each} for i, each in enumerate(others)]
        return [{"config": config, "created": "x", "state": state, "cluster": {"leader": "n9", "replicas": replicas}}]


def looked_at(js: JetStream) -> StreamInfo:
    found = ask_all_again_if_doubted(js, {"S": ask_stream_info(js, "S")}, Trust.TWICE)["S"]
    assert isinstance(found, StreamInfo)
    return found


@pytest.mark.parametrize(
    ("others", "believed", "undisputed"),
    [
        ([], True, True),
        ([HEARD, HEARD], True, True),
        ([HEARD, BEHIND], True, False),
        ([HEARD, OFFLINE], True, False),
        ([HEARD, SILENT], True, False),
        ([SILENT, SILENT], False, False),
        ([OFFLINE, SILENT], False, False),
        ([{}, {}], True, False),
        ([HEARD, HEARD, SILENT, OFFLINE], True, False),
        ([HEARD, SILENT, SILENT, OFFLINE], False, False),
    ],
)
def test_a_leader_is_believed_that_has_heard_of_most_of_the_others_lately(
    others: list[dict[str, Any]], believed: bool, undisputed: bool
) -> None:
    if believed:
        assert ask_stream_info(Leaders(others), "S").undisputed is undisputed
    else:
        with pytest.raises(JetStreamError, match="has not heard from most of the others") as raised:
            ask_stream_info(Leaders(others), "S")
        assert raised.value.transient is Transient.ALWAYS


def test_a_leader_that_may_have_been_stopped_is_asked_a_second_time_a_moment_later() -> None:
    js = Leaders([HEARD, SILENT], [HEARD, HEARD])
    assert looked_at(js).last_sequence == 9
    assert len(cast(Connected, js.connection).waits) == 1


def test_of_two_leaders_the_one_that_knows_more_is_believed() -> None:
    js = Leaders([HEARD, SILENT], [HEARD, SILENT], [HEARD, SILENT])
    object.__setattr__(js, "ends", [160, 40])
    assert looked_at(js).last_sequence == 160


def test_a_server_that_stays_away_costs_no_more_than_that() -> None:
    js = Leaders([HEARD, OFFLINE])
    looked_at(js)
    assert len(cast(Connected, js.connection).waits) == 1


def test_a_leader_of_whom_all_others_were_heard_is_asked_once() -> None:
    js = Leaders([HEARD, HEARD])
    looked_at(js)
    assert not cast(Connected, js.connection).waits


def test_a_server_that_knows_no_leader_is_not_believed() -> None:
    with pytest.raises(JetStreamError, match="has no leader at the moment") as raised:
        check_leader({"cluster": {"name": "C", "replicas": []}}, "S")
    assert raised.value.may_pass(established=False)
    check_leader({"cluster": {"name": "C", "leader": "n1", "replicas": []}}, "S")
    check_leader({}, "S")
