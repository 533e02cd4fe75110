"""How a task of a micro-batch begins by what is known, whatever partitions there were and whatever is lost."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.errors import PublishError
from spark_nats.jetstream.messages import Answers, Questions, run_decision
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.write.notes import Note
from spark_nats.kinds.streams.write.task_start import TAIL, Inputs, Start, StreamTail, decide_task_start
from spark_nats.kinds.streams.write.tasks import StartMark, WriteTask

BEGAN = StartMark("S", Position("then", 41, time=1), time=1)
STREAM = StreamInfo("S", "then", 1, 100, 100, 1000, 0, "limits", (), {})
SILENT = StreamTail(60)
"""Last messages of a stream that neither are of the task nor show that it has stored nothing."""
Splits = list[int]
"""How many partitions each micro-batch has."""


def of(batch: int, run: str = "run", planned: int = 50, partition: int = 1) -> WriteTask:
    return WriteTask("query", str(batch), partition, run=run, planned_at=planned)


def note(batch: int | None, mark: StartMark = BEGAN, run: str = "before", planned: int = 40) -> Note | None:
    return None if batch is None else Note(batch, mark, run, planned)


class LacksTailError(Exception):
    """The last messages of the stream are needed."""


def start(task: WriteTask, known: Inputs, tail: StreamTail | None = None) -> Start:
    """How a task begins, where its stream has that tail; an error if that is asked for and not given."""

    def answers(questions: Questions) -> Answers:
        assert questions == [TAIL]
        if tail is None:
            raise LacksTailError
        return dict.fromkeys(questions, tail)

    return run_decision(decide_task_start(task, STREAM, known), answers)


def notes_of(splits: Splits, order: int) -> list[tuple[int, int]]:
    """Micro-batch and partition of each note, as they are written: tasks of a micro-batch in any order."""
    return [
        (batch, partition)
        for batch, count in enumerate(splits)
        for partition in sorted(range(count), key=lambda each: (each * 31 + order) % 7)
    ]


def look(notes: list[tuple[int, int]], batch: int, partition: int) -> Start:
    def noted(key: int) -> int | None:
        return max((batch for batch, each in notes if each == key), default=None)

    first = noted(0)
    known = Inputs(note(noted(partition)), -1 if first is None else first)
    return start(of(batch, partition=partition), known, SILENT)


SPLITS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@settings(max_examples=150)
@given(SPLITS, st.integers(0, 6), st.data())
def test_a_bucket_that_has_lost_nothing_raises_no_alarm(splits: Splits, order: int, data: st.DataObject) -> None:
    notes = notes_of(splits, order)
    last = len(splits) - 1
    partition = data.draw(st.integers(0, 5))
    assert look(notes, len(splits), partition) == Start()  # the next one, however it is split
    stopped = data.draw(st.integers(sum(splits[:-1]), len(notes)))  # in the middle of the last one, which is replayed
    begun = (last, partition) in notes[:stopped]
    assert look(notes[:stopped], last, partition) == Start(BEGAN if begun else None)


@settings(max_examples=150)
@given(SPLITS, st.integers(0, 6), st.data())
def test_a_bucket_that_has_lost_a_micro_batch_is_never_taken_for_a_whole_one(
    splits: Splits, order: int, data: st.DataObject
) -> None:
    notes = notes_of(splits, order)
    batch = data.draw(st.integers(1, len(splits)))
    kept = notes[: data.draw(st.integers(0, sum(splits[: batch - 1])))]  # nothing of the one before it
    assert look(kept, batch, data.draw(st.integers(0, 5))).older


@settings(max_examples=100)
@given(st.integers(0, 9), st.none() | st.integers(0, 9), st.integers(-1, 9))
def test_what_is_noted_of_the_task_itself_comes_first(batch: int, own: int | None, first: int) -> None:
    found = start(of(batch), Inputs(note(own), first), SILENT)
    assert (found.mark == BEGAN) == (own == batch)
    assert (found.warning is not None) == (own is not None and own > batch)
    if batch == 0:
        assert not found.older


LACKS = None
NEW = Start()


@pytest.mark.parametrize(
    ("batch", "known", "tail", "found"),
    [
        (7, Inputs(note(7)), None, Start(BEGAN)),
        (7, Inputs(note(7), noted=9), None, Start(BEGAN)),
        (7, Inputs(note(6), earlier_in_run=True), None, NEW),  # this run has begun the micro-batch before
        # The partition was away for a while:
        (7, Inputs(note(2), batch_of_partition_0=6, earlier_in_run=True), None, NEW),
        # It is new, and partition 0 was faster:
        (7, Inputs(None, batch_of_partition_0=7, earlier_in_run=True), None, NEW),
        (0, Inputs(None), None, LACKS),
        (7, Inputs(note(6)), None, LACKS),  # the first micro-batch of a run may have been begun by another one
        (7, Inputs(note(6), earlier_in_run=True, noted=7), None, LACKS),
        (7, Inputs(note(5)), None, LACKS),
        (7, Inputs(None), None, LACKS),
        (0, Inputs(None), SILENT, NEW),
        (7, Inputs(note(6)), SILENT, NEW),
        (7, Inputs(None), StreamTail(60, new=True), Start(is_first_time=True)),
    ],
)
def test_how_a_task_begins(batch: int, known: Inputs, tail: StreamTail | None, found: Start | None) -> None:
    with contextlib.nullcontext() if found else pytest.raises(LacksTailError):
        assert start(of(batch), known, tail) == found


def test_a_task_that_is_tried_again_is_not_new_because_the_bucket_says_so() -> None:
    task = replace(of(7), attempt=1)
    known = Inputs(note(6), earlier_in_run=True)
    with pytest.raises(LacksTailError):
        start(task, known)
    assert start(task, known, SILENT) == NEW
    assert start(task, known, StreamTail(60, rows=3)).older


@pytest.mark.parametrize(
    ("known", "tail", "why"),
    [
        (Inputs(note(5), batch_of_partition_0=4), SILENT, "the last micro-batch that it knows is 5"),
        (Inputs(None, batch_of_partition_0=5), SILENT, "the last micro-batch that it knows is 5"),
        (Inputs(None), SILENT, "it has no entry for this query"),
        (
            Inputs(None),
            StreamTail(60, rows=3),
            "it does not know partition 1 of micro-batch 7, of which stream 'S' has 3 ",
        ),
        (
            Inputs(note(6)),
            StreamTail(60, rows=3),
            "it does not know partition 1 of micro-batch 7, of which stream 'S'",
        ),
        (
            Inputs(note(6), noted=7, earlier_in_run=True),
            SILENT,
            "it does not know micro-batch 7, which this process has noted",
        ),
        (
            Inputs(None, noted=6),
            StreamTail(60, new=True),
            "it does not know micro-batch 6, which this process has noted",
        ),
    ],
)
def test_a_bucket_that_lacks_what_there_was_is_older_than_the_checkpoint(
    known: Inputs, tail: StreamTail, why: str
) -> None:
    found = start(of(7), known, tail)
    assert found.older.startswith(why)
    assert found == Start(StartMark("S", Position("then", 61), 0), found.older)


def test_a_note_of_a_later_micro_batch_is_a_checkpoint_that_was_put_back() -> None:
    said = start(of(7), Inputs(note(9))).warning
    assert said is not None
    assert said.condition == "NATS_CHECKPOINT_OLDER"


@pytest.mark.parametrize(("run", "planned"), [("run", 0), ("another", 60)])
def test_an_attempt_comes_too_late_when_its_run_or_a_later_one_has_gone_on(run: str, planned: int) -> None:
    with pytest.raises(PublishError, match="micro-batch 9"):
        start(of(7), Inputs(note(9, run=run, planned=planned)))


def test_a_note_about_another_stream_is_said_and_one_about_this_stream_is_compared_later() -> None:
    found = start(of(7), Inputs(note(7, replace(BEGAN, stream="T"))))
    assert found.mark is None
    assert found.warning is not None
    assert found.warning.condition == "NATS_TARGET_CHANGED"
    mark = replace(BEGAN, end=Position("before", 41, time=1))
    assert start(of(7), Inputs(note(7, mark))) == Start(mark)
