"""What has become of a stream since somebody was there: the decision, over all orders of what can happen to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.client import Connection
from spark_nats.errors import JetStreamError, NatsError
from spark_nats.jetstream.api import JetStream, Request
from spark_nats.jetstream.judgement import SKEW, Judgement, contradiction, judge, match_message
from spark_nats.jetstream.messages import FirstSince, MessageAt, StoredMessage
from spark_nats.jetstream.positions import Fingerprint, Position, end_of
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import StreamView, first_new, judged
from spark_nats.protocol.api import ErrCode
from spark_nats.protocol.documents import text_of, time_at
from tests.unit.jetstream.connected import Connected

SECOND = 10**9


def state(first: int, last: int, last_time: int = 0, **more: Any) -> StreamInfo:
    return StreamInfo(
        "S", "C", first, last, last + 1 - first, 0, 0, "limits", ("s",), {}, last_time=last_time * SECOND, **more
    )


AT = Position("C", 201, 20 * SECOND)  # behind message 200
OF_BEFORE = AT._replace(time=None)
ASKED = MessageAt("S", 200)
SEARCHED = FirstSince("S", 20 * SECOND + SKEW + 1, 1, 201)
INTACT, TRUNCATED, REWRITTEN = Judgement.INTACT, Judgement.TRUNCATED, Judgement.REWRITTEN


def there(sequence: int, seconds: int) -> StoredMessage:
    return StoredMessage(sequence, seconds * SECOND)


@pytest.mark.parametrize(
    ("position", "info", "answers", "expected"),
    [
        (AT, None, {}, Judgement.MISSING),
        (AT, replace(state(1, 300, 30), created="since"), {}, Judgement.RECREATED),
        (OF_BEFORE, replace(state(1, 0), created="since"), {}, Judgement.RECREATED),
        (AT, state(1, 199, 19), {}, TRUNCATED),
        (AT, state(1, 0), {}, TRUNCATED),
        (OF_BEFORE, state(1, 199, 19), {}, TRUNCATED),
        (AT, state(1, 200, 20), {}, INTACT),  # its state says it, and nothing has to be asked
        (OF_BEFORE, state(1, 200, 21), {}, INTACT),
        (AT, state(201, 300, 30), {}, INTACT),  # removed by the stream's limits
        (AT, state(201, 200, 20), {}, INTACT),
        (AT, state(1, 300, 30), {}, ASKED),
        (AT, state(1, 200, 21), {ASKED: there(200, 21)}, REWRITTEN),
        (AT, state(1, 300, 30), {ASKED: there(200, 20)}, INTACT),
        (AT, state(1, 300, 30), {ASKED: there(200, 21)}, REWRITTEN),
        (AT, state(1, 300, 30), {ASKED: there(200, 19)}, REWRITTEN),  # by a server whose clock is slow
        (AT, state(1, 300, 30), {ASKED: there(205, 21)}, SEARCHED),
        (AT, state(1, 300, 30), {ASKED: None}, SEARCHED),
        (AT, state(1, 300, 30), {ASKED: None, SEARCHED: 201}, INTACT),  # whatever was stored since is later
        (AT, state(1, 300, 30), {ASKED: None, SEARCHED: 200}, REWRITTEN),
        (AT, state(1, 300, 30), {ASKED: there(205, 21), SEARCHED: 1}, REWRITTEN),
    ],
)
def test_what_has_become_of_a_stream(
    position: Position, info: StreamInfo | None, answers: dict[Any, Any], expected: object
) -> None:
    assert judge(position, info, answers) == expected


@pytest.mark.parametrize(
    ("sequence", "time", "met"),
    [
        (50, 1000, INTACT),
        (50, 1001, REWRITTEN),
        (50, 999, REWRITTEN),
        (49, 999, INTACT),
        (49, 1000, INTACT),
        (49, 1001, None),
        (51, 1001, None),
    ],
)
def test_what_a_message_that_arrives_says_of_a_history(sequence: int, time: int, met: Judgement | None) -> None:
    assert match_message(Fingerprint(50, 1000), sequence, time) is met


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        (None, "the stream 'S' does not exist any more"),
        (state(1, 199, 19), "stream 'S' ends at sequence 199, before 200"),
        (state(1, 300, 30), "stream 'S' no longer has the message that it had at sequence 200"),
    ],
)
def test_what_is_doubted_is_a_sentence(info: StreamInfo | None, sentence: str) -> None:
    assert contradiction(AT, info, "S") == sentence


@dataclass
class Stream:
    """What a stream holds, by sequence: when it was stored, and which of all messages it is; and what it ever held."""

    messages: dict[int, tuple[int, int]] = field(default_factory=dict)
    ever: dict[int, tuple[int, int]] = field(default_factory=dict)
    last: tuple[int, int] = (0, 0)  # the last sequence, and when that was stored

    def copy(self) -> Stream:
        return Stream(dict(self.messages), dict(self.ever), self.last)

    @property
    def info(self) -> StreamInfo:
        sequence, time = self.last
        first = min(self.messages, default=sequence + 1)
        return StreamInfo(
            "S", "C", first, sequence, len(self.messages), 0, 0, "limits", ("s",), {}, last_time=time if sequence else 0
        )


class Leader(JetStream):
    """Answers for a stream as its leader does."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(cast(Connection, Connected()))
        object.__setattr__(self, "stream", stream)

    def request_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | NatsError]:
        return [self._answer(each.body or {}) for each in requests]

    def _answer(self, body: dict[str, Any]) -> dict[str, Any] | JetStreamError:
        messages: dict[int, tuple[int, int]] = self.stream.messages
        found = min((sequence for sequence in messages if sequence >= body["seq"]), default=None)
        if found is None:
            return JetStreamError("none", 404, ErrCode.NO_MESSAGE_FOUND, "no message found")
        return {"message": {"subject": "s", "seq": found, "time": text_of(messages[found][0])}}


EVENTS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("trim"), st.integers(1, 6)),
    st.tuples(st.just("purge"), st.just(0)),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("restore"), st.integers(0, 3)),
    st.tuples(st.just("read"), st.integers(1, 8)),
)


LOST = [("publish", 5), ("snapshot", 0), ("publish", 3), ("read", 8), ("restore", 1)]


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=5))
@example([*LOST, ("publish", 3)], [1])
@example([*LOST, ("publish", 6)], [1])
@example([*LOST, ("publish", 6), ("delete", 7)], [1])
@example([("publish", 3), ("snapshot", 0), ("purge", 0), ("read", 1), ("restore", 1), ("publish", 1)], [1])
def test_all_that_is_new_is_read_once_whatever_happens_to_a_stream(
    events: list[tuple[str, int]], steps: list[int]
) -> None:
    """A reader that looks before each read, and goes on as the decision says, against who knows every message."""
    stream = Stream()
    copies = [stream.copy()]
    clock, count = SECOND, 0
    following, seen = 1, None
    past: set[int] = set()  # all messages that were stored before the place to which the reader has come
    restored = False

    for event, number in [*events, ("read", len(events) * 6 + 1)]:
        if event == "publish":
            for i in range(number):
                clock += steps[i % len(steps)]
                count += 1
                stream.last = (stream.last[0] + 1, clock)
                stream.messages[stream.last[0]] = stream.ever[stream.last[0]] = (clock, count)
        elif event == "delete" and stream.messages:
            del stream.messages[sorted(stream.messages)[number % len(stream.messages)]]
        elif event == "trim":
            for sequence in sorted(stream.messages)[:number]:
                del stream.messages[sequence]
        elif event == "purge":
            stream.messages.clear()
        elif event == "snapshot":
            copies.append(stream.copy())
        elif event == "restore":
            del copies[number % len(copies) + 1 :]  # those of the history that is abandoned, see docs/durability.md
            stream = copies[-1].copy()
            clock += 2 * SKEW
            restored = True
        elif event == "read":
            js, info = Leader(stream), stream.info
            position = Position("C", following, None if seen is None else seen.time)
            found = INTACT if seen is None else judged(js, position, info)
            start = following
            if found is not INTACT:
                assert restored, "a false alarm"
                start = first_new(js, position, info)
            new = {message[1] for message in stream.messages.values()} - past
            if seen is not None:
                assert {stream.messages[s][1] for s in stream.messages if s >= start} == new
            end = min([s for s in sorted(stream.messages) if s >= start][:number][-1:] or [info.last_sequence]) + 1
            following = end
            if found is not INTACT:  # a copy of what is abandoned then may bring it back, as docs/durability.md says
                past.clear()
            past |= {message for sequence, (_, message) in stream.ever.items() if sequence < end}
            last = stream.ever.get(end - 1)
            seen = Fingerprint(end - 1, last[0]) if last else None
            restored = False


def test_the_end_of_a_stream_is_a_fingerprint_unless_it_never_had_a_message() -> None:
    assert end_of(state(1, 7, 5)).fingerprint == (7, 5 * SECOND)
    assert end_of(state(8, 7, 5)).fingerprint == (7, 5 * SECOND)  # purged
    assert end_of(state(1, 0)).fingerprint is None


@given(st.integers(0, 2**63 - 1))
def test_a_time_is_written_as_it_is_read(time: int) -> None:
    assert time_at({"time": text_of(time)}, "time") == time


def js_of(**info: Any) -> JetStream:
    return JetStream(cast(Connection, Connected(**info)))


def test_a_history_is_compared_when_something_has_happened_that_could_change_it() -> None:
    witness, js = StreamView(0.0), js_of()
    before = state(1, 200, 20, leader="A", led_since=1)
    assert witness.expects(js, "S")
    assert witness.doubts(js, before)
    witness.saw(js, before)
    witness.saw(js, before)
    assert not witness.expects(js, "S")
    assert not witness.doubts(js, before)
    assert not witness.doubts(js, state(1, 201, 21, leader="A", led_since=1))
    for changed in (
        state(1, 199, 19, leader="A", led_since=1),
        state(1, 200, 19, leader="A", led_since=1),
        state(1, 200, 20, leader="B", led_since=1),
        state(1, 200, 20, leader="A", led_since=2),
    ):
        assert witness.doubts(js, changed)
    assert witness.expects(js_of(client_id=2), "S")
    assert witness.doubts(js_of(client_id=2), before)


def test_a_stream_of_another_server_is_compared_whenever_it_has_something_new() -> None:
    witness, js = StreamView(0.0), js_of(cluster="C")
    witness.saw(js, state(1, 200, 20, leader="A"))
    assert witness.expects(js, "S")  # it was busy, and may be again
    witness.saw(js, state(1, 200, 20, leader="A"))
    assert not witness.expects(js, "S")
    assert not witness.doubts(js, state(1, 200, 20, leader="A"))
    assert witness.doubts(js, state(1, 201, 21, leader="A"))
