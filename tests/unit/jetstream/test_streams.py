"""Searching a stream for a time, against a model of what the server answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.client import Connection
from spark_nats.errors import JetStreamError, NatsError, ProtocolError
from spark_nats.jetstream.api import JetStream, Request
from spark_nats.jetstream.id_memory import IdMemory
from spark_nats.jetstream.messages import ask_first_since
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.api import Api, ErrCode
from tests.unit.jetstream.connected import Connected


def written(nanoseconds: int) -> str:
    """A time as the server writes it, on the first of January 1970."""
    return f"1970-01-01T00:00:{nanoseconds // 10**9:02}.{nanoseconds % 10**9:09}".rstrip("0").rstrip(".") + "Z"


class Stream(JetStream):
    """Answers as a stream's leader does, and counts. Keys are sequences, values the times they were stored at."""

    def __init__(self, messages: dict[int, int]) -> None:
        super().__init__(cast(Connection, Connected()))
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "asked", [])

    def request_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | NatsError]:
        found: list[dict[str, Any] | JetStreamError] = []
        for each in requests:
            try:
                found.append(self.request(each.operation, *each.names, body=each.body))
            except JetStreamError as error:
                found.append(error)
        return found

    def request(
        self, operation: Api, *names: str, body: dict[str, Any] | None = None, level: int | None = None
    ) -> dict[str, Any]:
        assert (operation, names) == (Api.MESSAGE_GET, ("S",))
        assert body == {"seq": body and body["seq"], "next_by_subj": ">", "no_hdr": True}
        self.asked.append(body["seq"])
        found = min((sequence for sequence in self.messages if sequence >= body["seq"]), default=None)
        if found is None:
            raise JetStreamError("none", 404, ErrCode.NO_MESSAGE_FOUND, "no message found")
        return {"message": {"subject": "s", "seq": found, "time": written(self.messages[found])}}


@st.composite
def histories(draw: st.DrawFn) -> dict[int, int]:
    """Sequences with holes, stored at times that rise but may be equal."""
    sequences = sorted(draw(st.sets(st.integers(1, 60), max_size=30)))
    times = sorted(draw(st.lists(st.integers(0, 20), min_size=len(sequences), max_size=len(sequences))))
    return dict(zip(sequences, times, strict=True))


@settings(max_examples=250)
@given(histories(), st.integers(-1, 21), st.integers(1, 62), st.integers(0, 62))
@example({}, 0, 1, 0)
@example({7: 3}, 3, 1, 6)
@example({1: 3, 60: 3}, 3, 2, 60)
def test_the_first_message_at_or_after_a_time_is_found(
    messages: dict[int, int], time: int, start: int, size: int
) -> None:
    js = Stream(messages)
    end = start + size
    expected = min((s for s, stored in messages.items() if start <= s < end and stored >= time), default=end)
    assert ask_first_since(js, "S", time, start, end) == expected
    assert len(js.asked) <= size.bit_length()


@pytest.mark.parametrize("time", [-(10**30), -(2**63) - 1, 2**63, 10**30])
def test_times_that_the_server_cannot_count_in_are_before_or_after_every_message(time: int) -> None:
    messages = {sequence: sequence for sequence in range(3, 10)}
    assert ask_first_since(Stream(messages), "S", time, 1, 10) == (3 if time < 0 else 10)


def test_a_purge_during_the_search_is_no_error() -> None:
    class Purged(Stream):
        def request(
            self, operation: Api, *names: str, body: dict[str, Any] | None = None, level: int | None = None
        ) -> dict[str, Any]:
            answer = super().request(operation, *names, body=body)
            if len(self.asked) == 2:
                self.messages.clear()
            return answer

    for time in range(102):
        found = ask_first_since(Purged({i: i for i in range(1, 101)}), "S", time, 1, 101)
        assert max(time, 1) <= found <= 101


@pytest.mark.parametrize(
    "message",
    [
        {"seq": 1, "time": "1970-01-01T00:00:00Z"},  # less than was asked for
        {"seq": 60, "time": "yesterday"},
        {"seq": 60},
        {"seq": "60", "time": "1970-01-01T00:00:00Z"},
        None,
    ],
)
def test_an_answer_that_is_none_is_a_protocol_error(message: Any) -> None:
    class Wrong(Stream):
        def request(
            self, operation: Api, *names: str, body: dict[str, Any] | None = None, level: int | None = None
        ) -> dict[str, Any]:
            return {"message": message}

    with pytest.raises(ProtocolError):
        ask_first_since(Wrong({}), "S", 5, 1, 101)


@pytest.mark.parametrize(("seconds", "certainly"), [(-1.0, False), (0.0, True), (59.0, True), (60.0, False)])
def test_half_of_the_time_for_which_a_stream_knows_ids_is_left_to_messages_on_their_way(
    seconds: float, certainly: bool
) -> None:
    stream = StreamInfo("S", "then", 1, 0, 0, 0, 0, "limits", ("S",), {"duplicate_window": 120 * 10**9})
    held = IdMemory(stream.created, "process", stream.id_lifetime)
    assert held.knows_all_ids(held, seconds) is certainly
    for changed in ({"process": "another"}, {"created": "later"}, {"lifetime": 0.0}):
        assert not held.knows_all_ids(held._replace(**changed), seconds)
    assert held.knows_ids_of_kept_messages(held._replace(process="another"), seconds) is certainly
    unknown = held._replace(process="")
    assert not unknown.knows_all_ids(unknown, seconds)
