"""The border between the loop that reads and what is read: how wide it is, and who writes down how far it has come."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_nats.client import connect
from spark_nats.jetstream import JetStream, Range, RangeReader, ReadMethod
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Move, Reading, decide_move
from tests.connections import options_for, patience
from tests.scripted_server import scripted_server
from tests.unit.jetstream.reading.test_reading import A, Stream

PACKAGE = Path(__file__).parents[4] / "spark_nats"
LOOP = PACKAGE / "jetstream/reading/delivering.py"


def test_a_range_reader_is_given_few_things_and_keeps_few() -> None:
    assert len(inspect.signature(RangeReader).parameters) <= 8
    assert len(vars(RangeReader(Range("S", None, 1, 2)))) <= 13


def assigned(path: Path) -> Iterator[ast.expr]:
    """Whatever the statements of a module assign to."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign | ast.Delete):
            yield from node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
            yield node.target


def test_only_the_loop_writes_down_how_far_reading_has_come() -> None:
    writers = {
        path
        for path in PACKAGE.rglob("*.py")
        for target in assigned(path)
        for each in ast.walk(target)
        if isinstance(each, ast.Attribute) and each.attr == "cursor"
    }
    assert writers == {LOOP}


class Counted:
    """What is read, of which each call is written down with its arguments."""

    def __init__(self, rules: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._rules = rules

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._rules, name)
        return self._counted(name, value) if callable(value) else value

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return method(*arguments)

        return call


@pytest.mark.parametrize("way", ReadMethod)
@pytest.mark.parametrize("filters", [(), (A,)], ids=["all", "one subject"])
def test_a_range_is_asked_twice_for_each_chunk(
    monkeypatch: pytest.MonkeyPatch, way: ReadMethod, filters: tuple[str, ...]
) -> None:
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 10)
    stream = Stream(dict.fromkeys(range(1, 301), A))
    with scripted_server(stream.serve) as url, connect(options_for(url)) as connection:
        reader = RangeReader(Range("S", None, 1, 301, filters), way, retries=patience())
        counted = Counted(reader)
        loop: Reading = vars(reader)["_reading"]
        chunks = list(loop.read(JetStream(connection), counted))
    # What is no message, such as the end of a request, may arrive between chunks.
    calls = [
        name for name, given in counted.calls if name != "interpret_or_raise_restart" or given[-1].chunk is not None
    ]
    assert calls == ["open", *["interpret_or_raise_restart", "drop_unwanted"] * len(chunks), "finish_or_resume"]
    assert reader.cursor.all_delivered_and_judged


NEW = Cursor.of(1, 9)
ARRIVED, ALL_ARRIVED = NEW.receive_until(5), NEW.receive_until(9)
HANDED_ON, DONE = ARRIVED.deliver(5), ALL_ARRIVED.deliver(9)
UNJUDGED = NEW.skip(9)


@pytest.mark.parametrize(
    ("cursor", "then", "how", "move"),
    [
        # Without a source
        (NEW, Move.OPEN, "", Move.OPEN),
        (HANDED_ON, Move.OPEN, "", Move.OPEN),
        (UNJUDGED, Move.OPEN, "", Move.END),
        (DONE, Move.OPEN, "", Move.FINISH),
        (NEW, Move.OPEN, "lame_duck", Move.LEAVE),
        (UNJUDGED, Move.OPEN, "lame_duck", Move.END),
        (DONE, Move.OPEN, "lame_duck", Move.FINISH),
        # With one that goes on
        (NEW, Move.RECEIVE, "in_flight", Move.RECEIVE),
        (HANDED_ON, Move.RECEIVE, "", Move.RECEIVE),
        (ARRIVED, Move.RECEIVE, "in_flight held", Move.DELIVER),
        (ARRIVED, Move.RECEIVE, "in_flight held throttled", Move.RECEIVE),
        (ARRIVED, Move.RECEIVE, "held throttled", Move.DELIVER),
        (ARRIVED, Move.RECEIVE, "in_flight throttled", Move.DELIVER),  # nothing of it is wanted
        # With one that has brought all
        (ALL_ARRIVED, Move.RECEIVE, "in_flight held throttled", Move.DELIVER),
        (DONE, Move.RECEIVE, "in_flight", Move.END),
        (HANDED_ON, Move.END, "in_flight", Move.END),
        (ARRIVED, Move.END, "in_flight held throttled", Move.DELIVER),
        (DONE, Move.RECEIVE, "in_flight lame_duck", Move.END),
        # With one that is slow
        (ARRIVED, Move.CHANGE, "in_flight held", Move.DELIVER),
        (ARRIVED, Move.CHANGE, "in_flight held throttled", Move.CHANGE),
        (HANDED_ON, Move.CHANGE, "in_flight", Move.CHANGE),
        # With one whose server shuts down
        (HANDED_ON, Move.RECEIVE, "in_flight lame_duck", Move.RECEIVE),
        (ARRIVED, Move.RECEIVE, "held throttled lame_duck", Move.DELIVER),
        (HANDED_ON, Move.RECEIVE, "lame_duck", Move.LEAVE),
        (HANDED_ON, Move.END, "in_flight lame_duck", Move.LEAVE),
    ],
)
def test_what_is_done_next(cursor: Cursor, then: Move, how: str, move: Move) -> None:
    flags = {name: name in how.split() for name in ("in_flight", "held", "lame_duck", "throttled")}
    assert decide_move(cursor, then, **flags) is move
