"""The loop hands on each message once and in order, whatever its sources do and whenever its caller stops."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats import clock
from spark_nats.conditions import Transient
from spark_nats.errors import JetStreamError, NatsConnectionError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.reading import delivering
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Arrived, Chunk, Delivered, Move, Reading, Restart, Step
from tests.connections import patience
from tests.unit.strategies import Sequences

END = 60


def connection() -> Any:
    return SimpleNamespace(lame_duck=False, closed=False, server="nats://there", flush=lambda *_: None)


class Source:
    """Brings what is asked for, and does in between what a script says."""

    idle = False
    silence = 0.0
    close_may_be_refused = False

    def __init__(self, rules: Rules, start: int) -> None:
        self.exhausted = self.in_flight = self.closed = False
        self._rules = rules
        self._next = start

    def request_more(self, cursor: Cursor, throttled: bool) -> None:
        self.in_flight = True

    def receive(self) -> Chunk | None:
        step = self._rules.script.pop(0) if self._rules.script else 9
        if step == "restart":
            raise Restart("it is of no more use")
        if step == "lost":
            raise NatsConnectionError("the connection was lost", transient=Transient.ALWAYS)
        if step == "answered":  # all that was asked for has come
            self.in_flight = False
            return None
        if step == "more":
            self.exhausted = True
            return None
        there = [s for s in sorted(self._rules.stored) if s >= self._next][: int(step)]
        if not there:
            self.exhausted = True
            return None
        self._next = there[-1] + 1
        rows = cast(Any, Sequences(there))
        return Chunk(Delivered(rows, rows), there[0], there[-1])

    def close(self) -> None:
        self.closed = True

    close_or_keep = close


class Rules:
    """A range of a stream whose rows with odd sequences nobody wants."""

    created = "then"

    def __init__(self, stored: set[int], script: list[Any]) -> None:
        self.stored = stored
        self.script = script
        self.sources: list[Source] = []

    def open(self, js: JetStream, cursor: Cursor, empty_attempts: int) -> tuple[Source, Cursor]:
        self.sources.append(Source(self, cursor.received))
        return self.sources[-1], cursor

    def interpret_or_raise_restart(self, js: JetStream, cursor: Cursor, arrived: Arrived) -> Step:
        if arrived.chunk is None:
            return Step(cursor, Move.RECEIVE)
        rows = cast(Sequences, arrived.chunk.delivered.messages)
        cursor, inside = cursor.receive(rows, arrived.chunk.first, arrived.chunk.last)
        wanted = cast(Any, Sequences([s for s in rows.sequences[:inside] if s % 2 == 0]))
        return Step(cursor, Move.RECEIVE, Delivered(wanted, wanted) if len(wanted) else None)

    def drop_unwanted(self, delivered: Delivered) -> Delivered:
        return delivered

    def finish_or_resume(self, js: JetStream, cursor: Cursor) -> Step:
        if not cursor.all_received:
            cursor = cursor.skip(min((s for s in self.stored if s >= cursor.received), default=END))
        return Step(cursor.without_gaps(), Move.FINISH if cursor.all_received else Move.RECEIVE)


def read_on(rules: Rules, reading: Reading, stops: Iterator[int]) -> list[int]:
    """Read over one connection after another, and stop and go on where it is said."""
    found: list[int] = []
    while not reading.cursor.all_delivered_and_judged:
        read = reading.read(cast(JetStream, SimpleNamespace(connection=connection())), rules)
        most = next(stops, 10**6)
        try:
            for delivered in read:
                found += cast(Sequences, delivered.messages).sequences
                most -= 1
                if most < 0:
                    break
        except NatsConnectionError:
            pass
        finally:
            cast(Any, read).close()
        assert all(source.closed for source in rules.sources)
    return found


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "slowly"])
@settings(max_examples=150)
@given(
    st.sets(st.integers(1, END + 5)),
    st.lists(st.one_of(st.integers(1, 8), st.sampled_from(["restart", "lost", "answered", "more"])), max_size=25),
    st.lists(st.integers(0, 5), max_size=4),
)
def test_each_row_is_handed_on_once(slowly: bool, stored: set[int], script: list[Any], stops: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "sleep", lambda _: None)
        patch.setattr(delivering, "SLOW", -1.0 if slowly else 1e9)
        rules = Rules(stored, [*script])
        found = read_on(rules, Reading("S", Cursor.of(1, END), patience(60.0)), iter(stops))
    assert found == [s for s in sorted(stored) if s < END and s % 2 == 0]


def test_a_source_that_brings_nothing_again_and_again_is_an_error() -> None:
    rules = Rules(set(range(1, END)), ["restart"] * 3)
    with pytest.raises(JetStreamError, match="stopped delivering at sequence 1, before 60: it is of no more use"):
        list(
            Reading("S", Cursor.of(1, END), None).read(cast(JetStream, SimpleNamespace(connection=connection())), rules)
        )


def test_a_server_that_shuts_down_is_left_when_it_has_brought_what_was_asked_for() -> None:
    rules = Rules(set(range(1, END)), [5, "answered"])
    server = connection()
    reading = Reading("S", Cursor.of(1, END), None)
    read = reading.read(cast(JetStream, SimpleNamespace(connection=server)), rules)
    assert cast(Sequences, next(read).messages).sequences == [2, 4]
    server.lame_duck = True
    with pytest.raises(NatsConnectionError, match="lame duck mode"):
        list(read)
    assert reading.cursor.delivered == 6
