"""What has become of a stream since somebody was there: the decision, over all orders of what can happen to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats import clock
from spark_nats.client import Connection
from spark_nats.errors import JetStreamError, NatsError
from spark_nats.jetstream.api import JetStream, Request
from spark_nats.jetstream.judgement import SKEW, Judgement, describe_loss, judge, try_judge_by_message
from spark_nats.jetstream.messages import Answers, FirstSince, MessageAt, Questions, StoredMessage, run_decision
from spark_nats.jetstream.positions import Fingerprint, Position, end_position_of
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import StreamView, ask_and_judge, ask_first_new
from spark_nats.protocol.api import Api, ErrCode
from spark_nats.protocol.documents import format_time, time_at
from tests.unit.jetstream.connected import Connected

SECOND = 10**9


def state(first: int, last: int, last_time: int = 0, **more: Any) -> StreamInfo:
    return StreamInfo(
        "S", "C", first, last, last + 1 - first, 0, 0, "limits", ("s",), {}, last_time=last_time * SECOND, **more
    )


AT = Position("C", 201, 20 * SECOND)  # behind message 200
OF_BEFORE = AT._replace(time=None)
AT_FIRST = Position("C", 1)
STEPPED = AT._replace(latest=25 * SECOND)  # a clock was set back before message 200 was stored
ASKED = MessageAt("S", 200)
SEARCHED = FirstSince("S", 20 * SECOND + SKEW + 1, 1, 201)
SEARCHED_LATER = FirstSince("S", 25 * SECOND + SKEW + 1, 1, 201)
EARLIER = MessageAt("S", 150)
INTACT, TRUNCATED, REWRITTEN = Judgement.INTACT, Judgement.TRUNCATED, Judgement.REWRITTEN
RECREATED = Judgement.RECREATED


def there(sequence: int, seconds: int) -> StoredMessage:
    return StoredMessage(sequence, seconds * SECOND)


def judgement_or_question(position: Position, info: StreamInfo | None, answers: Answers) -> object:
    asked = list[object]()

    def ask(questions: Questions) -> Answers:
        asked.extend(questions)
        raise LookupError

    try:
        return run_decision(judge(position, info), ask, answers)
    except LookupError:
        return asked[0]


def renamed(created: int, first_time: int, info: StreamInfo) -> StreamInfo:
    """A stream that says that it was created at a time, and whose first message was stored at another one."""
    return replace(info, created=format_time(created * SECOND), first_time=first_time * SECOND)


@pytest.mark.parametrize(
    ("position", "info", "answers", "expected"),
    [
        (AT, None, {}, Judgement.MISSING),
        (OF_BEFORE, replace(state(1, 0), created="since"), {}, RECREATED),
        (AT, state(1, 199, 19), {}, TRUNCATED),
        (AT, state(1, 0), {}, TRUNCATED),
        (OF_BEFORE, state(1, 199, 19), {}, TRUNCATED),
        (AT, state(1, 200, 20), {}, INTACT),  # its state says it, and nothing has to be asked
        (OF_BEFORE, state(1, 200, 21), {}, INTACT),
        (AT, state(201, 300, 30), {}, INTACT),  # removed by the stream's limits
        (AT, state(201, 200, 20), {}, INTACT),
        (AT, state(1, 300, 30), {}, ASKED),
        (AT, state(1, 200, 21), {ASKED: there(200, 21)}, REWRITTEN),
        # each replica of an interest stream notes a time of its own for a message that nobody wants
        (AT, replace(state(201, 200, 21), retention="interest"), {}, INTACT),
        (AT, replace(state(1, 200, 21), retention="interest"), {ASKED: None, SEARCHED: 201}, INTACT),
        (AT, replace(state(1, 200, 21), retention="interest"), {ASKED: there(200, 21)}, REWRITTEN),
        (AT, replace(renamed(30, 31, state(1, 200, 40)), retention="interest"), {}, RECREATED),
        (AT, state(201, 200, 21), {}, REWRITTEN),
        (AT, state(1, 300, 30), {ASKED: there(200, 20)}, INTACT),
        (AT, state(1, 300, 30), {ASKED: there(200, 21)}, REWRITTEN),
        (AT, state(1, 300, 30), {ASKED: there(200, 19)}, REWRITTEN),  # by a server whose clock is slow
        (AT, state(1, 300, 30), {ASKED: there(205, 21)}, SEARCHED),
        (AT, state(1, 300, 30), {ASKED: None}, SEARCHED),
        (AT, state(1, 300, 30), {ASKED: None, SEARCHED: 201}, INTACT),  # whatever was stored since is later
        (AT, state(1, 300, 30), {ASKED: None, SEARCHED: 150}, EARLIER),
        (AT, state(1, 300, 30), {ASKED: None, SEARCHED: 150, EARLIER: there(150, 25)}, REWRITTEN),
        (AT, state(1, 300, 30), {ASKED: None, SEARCHED: 150, EARLIER: None}, REWRITTEN),  # it has just gone
        # a clock was set back: what was stored later has an earlier time, or the latest time was noted
        (AT, state(1, 300, 30), {ASKED: there(205, 21), SEARCHED: 150, EARLIER: there(150, 25)}, INTACT),
        (AT, state(1, 300, 24), {ASKED: None, SEARCHED: 150, EARLIER: there(150, 25)}, INTACT),
        (STEPPED, state(1, 300, 30), {ASKED: None}, SEARCHED_LATER),
        (STEPPED, state(1, 300, 30), {ASKED: None, SEARCHED_LATER: 201}, INTACT),
        (STEPPED, state(1, 300, 30), {ASKED: None, SEARCHED_LATER: 150, EARLIER: there(150, 26)}, REWRITTEN),
        # it says that it was created at another time, and the message is there
        (AT, renamed(30, 1, state(1, 200, 20)), {}, INTACT),
        (AT, renamed(30, 1, state(1, 300, 30)), {ASKED: there(200, 20)}, INTACT),
        (AT, replace(state(1, 300, 30), created="since"), {ASKED: there(200, 20)}, INTACT),
        # a backup was restored that reaches less far, and was filled again; a mirror lags
        (AT, renamed(30, 1, state(1, 199, 19)), {}, TRUNCATED),
        (AT, renamed(30, 1, state(1, 300, 40)), {ASKED: there(200, 31)}, REWRITTEN),
        (AT, renamed(0, 1, state(1, 199, 19)), {}, TRUNCATED),
        (AT, renamed(30, 0, state(200, 199, 19)), {}, TRUNCATED),  # and it holds nothing
        # it was made again: it has later messages only
        (AT, renamed(30, 31, state(1, 199, 40)), {}, RECREATED),
        (AT, renamed(30, 31, state(1, 300, 40)), {ASKED: there(200, 35)}, RECREATED),
        (AT, renamed(30, 31, state(1, 300, 40)), {ASKED: there(205, 35)}, RECREATED),
        (AT, renamed(30, 31, state(202, 300, 40)), {}, RECREATED),
        (AT, renamed(30, 0, state(1, 0)), {}, RECREATED),
        (AT, replace(state(1, 0), created="since"), {}, RECREATED),
        # the message is gone, and so are all before it
        (AT, renamed(30, 25, state(202, 300, 40)), {}, INTACT),  # it has a message from before its creation
        (AT, renamed(19, 31, state(202, 300, 40)), {}, INTACT),  # it was created before the message was stored
        (AT, renamed(30, 31, state(201, 300, 40)), {}, INTACT),  # nothing is left out, whatever it is
        # the message was replaced
        (AT, renamed(30, 1, state(1, 300, 40)), {ASKED: there(205, 35)}, SEARCHED),
        (AT, renamed(30, 1, state(1, 300, 40)), {ASKED: there(205, 35), SEARCHED: 201}, INTACT),
        # nothing was read, and nothing can be compared
        (AT_FIRST, renamed(30, 31, state(1, 5, 40)), {}, RECREATED),
        (AT_FIRST, renamed(30, 29, state(1, 5, 40)), {}, INTACT),
    ],
)
def test_what_has_become_of_a_stream(
    position: Position, info: StreamInfo | None, answers: dict[Any, Any], expected: object
) -> None:
    assert judgement_or_question(position, info, answers) == expected


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
    assert try_judge_by_message(Fingerprint(50, 1000), sequence, time) is met


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        (None, "the stream 'S' does not exist any more"),
        (state(1, 199, 19), "stream 'S' ends at sequence 199, before 200"),
        (state(1, 300, 30), "stream 'S' no longer has the message that it had at sequence 200"),
    ],
)
def test_what_is_doubted_is_a_sentence(info: StreamInfo | None, sentence: str) -> None:
    assert describe_loss(AT, info, "S") == sentence


@dataclass
class Stream:
    """What a stream holds, by sequence: when it was stored, and which of all messages it is; and what it ever held."""

    messages: dict[int, tuple[int, int]] = field(default_factory=dict)
    ever: dict[int, tuple[int, int]] = field(default_factory=dict)
    last: tuple[int, int] = (0, 0)  # the last sequence, and when that was stored
    created: int = 0

    def copy(self) -> Stream:
        return Stream(dict(self.messages), dict(self.ever), self.last, self.created)

    @property
    def info(self) -> StreamInfo:
        sequence, time = self.last
        first = min(self.messages, default=sequence + 1)
        gone = sequence + 1 - first - len(self.messages)
        return StreamInfo(
            "S",
            format_time(self.created),
            first,
            sequence,
            len(self.messages),
            0,
            gone,
            "limits",
            ("s",),
            {"max_msgs_per_subject": 1},
            first_time=self.messages[first][0] if self.messages else 0,
            last_time=time if sequence else 0,
        )


class Clocks:
    """The time that passes, and the clock of the server, which may be behind."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.behind = 0

    @property
    def server(self) -> int:
        return self.now - self.behind


class Leader(JetStream):
    """Answers for a stream as its leader does."""

    def __init__(self, stream: Stream, clocks: Clocks) -> None:
        super().__init__(cast(Connection, Connected()))
        object.__setattr__(self, "stream", stream)
        object.__setattr__(self, "clocks", clocks)

    def request_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | NatsError]:
        return [self._answer(each) for each in requests]

    def _answer(self, asked: Request) -> dict[str, Any] | JetStreamError:
        if asked.operation is Api.STREAM_INFO:
            state = {"first_seq": 1, "last_seq": 1, "messages": 1, "bytes": 1}
            config = {"name": "S", "retention": "limits", "subjects": ["s"]}
            clocks: Clocks = self.clocks
            return {
                "created": "2026-11-01T08:00:00Z",
                "config": config,
                "state": state,
                "ts": format_time(clocks.server),
            }
        messages: dict[int, tuple[int, int]] = self.stream.messages
        found = min((sequence for sequence in messages if sequence >= (asked.body or {})["seq"]), default=None)
        if found is None:
            return JetStreamError("none", 404, ErrCode.NO_MESSAGE_FOUND, "no message found")
        return {"message": {"subject": "s", "seq": found, "time": format_time(messages[found][0])}}


EVENTS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("trim"), st.integers(1, 6)),
    st.tuples(st.just("purge"), st.just(0)),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("restore"), st.integers(0, 3)),
    st.tuples(st.just("restore as new"), st.integers(0, 3)),
    st.tuples(st.just("rename"), st.integers(0, 9)),
    st.tuples(st.just("make again"), st.integers(0, 3)),
    st.tuples(st.just("step"), st.integers(0, 30)),
    st.tuples(st.just("read"), st.integers(1, 8)),
)


LOST = [("publish", 5), ("snapshot", 0), ("publish", 3), ("read", 8), ("restore", 1)]
SET_BACK = [("publish", 6), ("step", 30), ("publish", 1), ("read", 8), ("delete", 6), ("publish", 1)]


@settings(max_examples=1000)
@given(st.lists(EVENTS, max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=5))
@example([*LOST, ("publish", 3)], [1])
@example([*LOST, ("publish", 6)], [1])
@example([*LOST, ("publish", 6), ("delete", 7)], [1])
@example([("publish", 3), ("snapshot", 0), ("purge", 0), ("read", 1), ("restore", 1), ("publish", 1)], [1])
@example([*LOST[:-1], ("restore as new", 1), ("publish", 3)], [1])
@example([*LOST[:-1], ("step", 30), *LOST[-1:], ("publish", 6)], [1])
@example(SET_BACK, [1])
@example([("publish", 3), ("read", 8), ("rename", 1), ("publish", 1)], [1])
def test_all_that_is_new_is_read_whatever_happens_to_a_stream(events: list[tuple[str, int]], steps: list[int]) -> None:
    """A reader that looks before each read, and goes on as the decision says, against who knows every message.

    All is read once, but what may be read twice where the server's clock was behind.
    """
    clocks = Clocks()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clock, "time_ns", lambda: clocks.now)
        _play(events, steps, clocks)


def _play(events: list[tuple[str, int]], steps: list[int], clocks: Clocks) -> None:
    stream = Stream(created=clocks.server)
    copies = [stream.copy()]
    count = 0
    at: Position | None = None
    past: set[int] = set()  # all messages that were stored before the place to which the reader has come
    lost = remade = was_behind = renamed = False

    for event, number in [*events, ("read", len(events) * 6 + 1)]:
        clocks.now += SECOND // 100
        if event == "publish":
            for i in range(number):
                clocks.now += steps[i % len(steps)] * SECOND // 10
                count += 1
                stream.last = (stream.last[0] + 1, clocks.server)
                stream.messages[stream.last[0]] = stream.ever[stream.last[0]] = (clocks.server, count)
        elif event == "delete" and stream.messages:
            del stream.messages[sorted(stream.messages)[number % len(stream.messages)]]
        elif event == "trim":
            for sequence in sorted(stream.messages)[:number]:
                del stream.messages[sequence]
        elif event == "purge":
            stream.messages.clear()
        elif event == "snapshot":
            copies.append(stream.copy())
        elif event.startswith("restore"):
            del copies[number % len(copies) + 1 :]  # those of the history that is abandoned, see docs/durability.md
            stream = copies[-1].copy()
            clocks.now += 2 * SKEW
            if event == "restore as new":
                stream.created = clocks.server
                renamed = True
            lost = True
        elif event == "rename":
            stream.created = clocks.server  # as of a restart, which an edit and another restart then show
            renamed = True
        elif event == "make again":
            clocks.now += 2 * SKEW
            stream = Stream(created=clocks.server)
            copies = [stream.copy()]
            lost = remade = True
        elif event == "step" and not (lost and clocks.behind):  # else it is less behind than it was at the loss
            clocks.behind = number * SECOND
            was_behind |= number > 0
        elif event == "read":
            js, info = Leader(stream, clocks), stream.info
            found = INTACT if at is None else ask_and_judge(js, at, info)
            start = 1 if at is None else at.next
            seen = at.fingerprint if at else None
            if at is not None and found is not INTACT:
                is_tie = renamed and seen is not None and seen.sequence < info.first_sequence
                assert lost or is_tie or seen is None, "a false alarm"
                start = ask_first_new(js, at, info) if found is not RECREATED else info.first_sequence
            same = seen is not None and stream.ever.get(seen.sequence, (None, 0))[0] == seen.time
            if seen is not None and seen.sequence in stream.messages:
                assert (found is INTACT) == same, "what can be compared is compared"
            new = {message[1] for message in stream.messages.values()} - past
            reads = {stream.messages[s][1] for s in stream.messages if s >= start}
            if seen is not None and (found is not INTACT or not was_behind):
                assert new <= reads, "something is lost"
            if seen is not None and not was_behind and not remade:
                assert reads == new, "something is read twice"
            end = min([s for s in sorted(stream.messages) if s >= start][:number][-1:] or [info.last_sequence]) + 1
            if found is not INTACT:  # a copy of what is abandoned then may bring it back, as docs/durability.md says
                past.clear()
            past |= {message for sequence, (_, message) in stream.ever.items() if sequence < end}
            last = stream.ever.get(end - 1)
            latest = max(clocks.now, (at and at.latest) or 0)
            before = seen if found is INTACT else None
            at = Position(info.created, end, last[0] if last else None, latest=latest, before=before)
            lost = remade = renamed = False


def test_the_end_of_a_stream_is_a_fingerprint_unless_it_never_had_a_message() -> None:
    assert end_position_of(state(1, 7, 5)).fingerprint == (7, 5 * SECOND)
    assert end_position_of(state(8, 7, 5)).fingerprint == (7, 5 * SECOND)  # purged
    assert end_position_of(state(1, 0)).fingerprint is None


@given(st.integers(0, 2**63 - 1))
def test_a_time_is_written_as_it_is_read(time: int) -> None:
    assert time_at({"time": format_time(time)}, "time") == time


def js_of(**info: Any) -> JetStream:
    return JetStream(cast(Connection, Connected(**info)))


def test_a_history_is_compared_when_something_has_happened_that_could_change_it() -> None:
    witness, js = StreamView(0.0), js_of()
    before = state(1, 200, 20, leader="A", led_since=1)
    assert witness.needs_history_request(js, "S")
    assert witness.needs_comparison(js, before)
    witness.note_intact(js, before)
    witness.note_intact(js, before)
    assert not witness.needs_history_request(js, "S")
    assert not witness.needs_comparison(js, before)
    assert not witness.needs_comparison(js, state(1, 201, 21, leader="A", led_since=1))
    for changed in (
        state(1, 199, 19, leader="A", led_since=1),
        state(1, 200, 19, leader="A", led_since=1),
        state(1, 200, 20, leader="B", led_since=1),
        state(1, 200, 20, leader="A", led_since=2),
    ):
        assert witness.needs_comparison(js, changed)
    assert witness.needs_history_request(js_of(client_id=2), "S")
    assert witness.needs_comparison(js_of(client_id=2), before)


def test_a_stream_of_another_server_is_compared_whenever_it_has_something_new() -> None:
    witness, js = StreamView(0.0), js_of(cluster="C")
    witness.note_intact(js, state(1, 200, 20, leader="A"))
    assert witness.needs_history_request(js, "S")  # it was busy, and may be again
    witness.note_intact(js, state(1, 200, 20, leader="A"))
    assert not witness.needs_history_request(js, "S")
    assert not witness.needs_comparison(js, state(1, 200, 20, leader="A"))
    assert witness.needs_comparison(js, state(1, 201, 21, leader="A"))
