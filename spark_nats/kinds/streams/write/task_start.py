"""How a task of a micro-batch begins: a decision from what is known then. It asks no server and changes nothing.

A state bucket restored from an old backup has forgotten later notes. Spark numbers micro-batches without gaps, and each
has a partition 0, though not necessarily others. So the bucket is older than the query's checkpoint if it lacks the
previous micro-batch. A stream with rows of a micro-batch that the bucket does not know shows the same.

Spark skips a number where state is repartitioned between two runs of a query: that plans a micro-batch without rows. No
sink sees the checkpoint, but the stream tells: if it has nothing of the task, nor of the micro-batches after the last
one that is noted, nothing can be stored twice, whatever the bucket lacks.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_nats.conditions import ConditionText
from spark_nats.errors import PublishError
from spark_nats.jetstream.messages import Decision, Question, ask_in_decision
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.write import conditions
from spark_nats.kinds.streams.write.notes import Note
from spark_nats.kinds.streams.write.tasks import StartMark, WriteTask


class StreamTail(NamedTuple):
    """What the last messages of a stream show about a task.

    Attributes:
        since: the sequence after which the messages were searched.
        rows: how many of the messages are rows of the task.
        new: whether the messages show that the task has stored nothing.
        skipped: whether the messages show that the query has stored nothing between the last micro-batch that is noted
            and this one, and the task nothing at all.
        aside: the dead-letter stream, if it has the rows.
    """

    since: int
    rows: int = 0
    new: bool = False
    skipped: bool = False
    aside: str = ""


TAIL = Question[StreamTail]()
"""Asks what the last messages of the stream show about the task that begins."""


class Inputs(NamedTuple):
    """What is known when a task begins; -1 stands for no micro-batch.

    Attributes:
        note: the note under the task's key of the state bucket; None where there is none.
        batch_of_partition_0: the last micro-batch that is noted for partition 0, where that key was read.
        noted: the last micro-batch that a task of this process has noted under the key in this run of the query.
        earlier_in_run: whether a note shows that this run of the query has begun an earlier micro-batch. Then no
            earlier run has begun this one.
        newest: the note of the last micro-batch that is noted, of this partition or of partition 0.
    """

    note: Note | None
    batch_of_partition_0: int = -1
    noted: int = -1
    earlier_in_run: bool = False
    newest: Note | None = None


class Start(NamedTuple):
    """How a task begins.

    Attributes:
        mark: the end of the stream when an earlier attempt began, to read the stream back from there; None where it is
            not read back.
        older: why the bucket must be older than the query's checkpoint; ``mark`` then stands for the forgotten note.
            Empty where the bucket need not be older.
        warning: the warning about the existing note; None where there is nothing to warn of.
        is_first_time: whether only the stream shows that the task is new.
    """

    mark: StartMark | None = None
    older: str = ""
    warning: ConditionText | None = None
    is_first_time: bool = False


def decide_task_start(task: WriteTask, stream: StreamInfo, known: Inputs) -> Decision[Start]:
    """Decide how a task of a micro-batch begins, from its stream's state before the first row and from what is known.

    Raises:
        PublishError: the query has begun a later micro-batch since, so this attempt comes too late. This run has begun
            the later one, or a newer run has, while an executor of this run lives on.
    """
    batch, note = int(task.batch or 0), known.note
    if note is not None and note.batch > batch:
        if (note.run and note.run == task.run) or 0 < task.planned_at < note.planned_at:
            raise PublishError(conditions.ATTEMPT_TOO_LATE(task=task.name, other=f"micro-batch {note.batch}"))
        return Start(warning=conditions.CHECKPOINT_OLDER(task=task.name, batch=note.batch))
    if note is not None and note.batch == batch:
        if note.mark.stream == stream.name:
            return Start(note.mark)
        old, created = note.mark.stream, note.mark.end.created
        return Start(warning=conditions.TARGET_CHANGED(task=task.name, old=old, created=created, stream=stream.name))

    own = note.batch if note is not None else -1
    last, older = max(own, known.batch_of_partition_0), ""
    if known.noted > own:
        older = f"it does not know micro-batch {known.noted}, which this process has noted there"
    elif 0 <= last < batch - 1:
        older = f"the last micro-batch that it knows is {last}"
    elif last >= batch - 1 and known.earlier_in_run and not task.attempt:
        return Start()
    tail = yield from ask_in_decision(TAIL)
    if older and known.noted <= own and tail.skipped:
        return Start(warning=conditions.BATCHES_SKIPPED(task=task.name, batch=last, stream=stream.name))
    if not older and tail.rows:
        older = f"it does not know {task.name}, of which stream {tail.aside or stream.name!r} has {tail.rows} rows"
    elif not older and last < batch - 1:
        if tail.new:
            return Start(is_first_time=True)
        older = "it has no entry for this query"
    return Start(StartMark(stream.name, Position(stream.created, tail.since + 1), 0), older) if older else Start()
