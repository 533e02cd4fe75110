"""How a task of a micro-batch begins: a function of what is known then. No server is asked here, and nothing is done.

A bucket that was put back to an older copy denies what it had. Micro-batches are counted without gaps, and each has a
partition 0, though it need not have the others: so the bucket is older than the query's checkpoint if it lacks the
micro-batch before. A stream that has rows of a micro-batch which the bucket does not know shows that too.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_nats.conditions import ConditionText
from spark_nats.errors import PublishError
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.kinds.streams.write.conditions import ATTEMPT_TOO_LATE, CHECKPOINT_OLDER, TARGET_CHANGED
from spark_nats.kinds.streams.write.notes import Note, is_about
from spark_nats.kinds.streams.write.tasks import Began, WriteTask


class StreamTail(NamedTuple):
    """What the last messages of a stream say of a task.

    Attributes:
        since: the sequence behind which they were looked at.
        rows: how many of them are the task's.
        new: whether they show that the task has stored nothing.
    """

    since: int
    rows: int = 0
    new: bool = False


class Inputs(NamedTuple):
    """What is known when a task begins. Of micro-batches -1 is none.

    Attributes:
        note: what its key of the state bucket holds.
        first: the last micro-batch that is noted for partition 0, where that was asked for.
        noted: the last one that a task of this process has noted under the key in this run of the query.
        later: whether a note shows that this run of the query has begun an earlier one: then no run before has begun
            this one.
        tail: what the stream's last messages say; None where they were not looked at.
    """

    note: Note | None
    first: int = -1
    noted: int = -1
    later: bool = False
    tail: StreamTail | None = None


class Decision(NamedTuple):
    """How a task begins.

    Attributes:
        began: where it was begun before, from where it is read back; None where it is new.
        older: why the bucket must be older than the query's checkpoint, so that ``began`` is what it would say.
        warning: what is to be said of the note that is there.
        first: whether only the stream shows that the task is new.
        lacks_tail: whether the stream's last messages are to be looked at, to decide anew.
    """

    began: Began | None = None
    older: str = ""
    warning: ConditionText | None = None
    first: bool = False
    lacks_tail: bool = False


def first_of(stream: StreamInfo, time: int) -> Began | None:
    """Return from where to read back a stream that was made again since a task began, which was at this time.

    An attempt that was under way then may have stored rows in the new one before it noticed. None where the stream
    cannot be read back: what is in it then is not looked at.
    """
    return Began(stream.name, Position(stream.created, 1), time) if stream.retention == LIMITS else None


def begin(task: WriteTask, stream: StreamInfo, known: Inputs) -> Decision:
    """Decide how a task of a micro-batch begins, by its stream's state before it stores anything and by what is known.

    Raises:
        PublishError: the query has begun a later micro-batch since, so that this attempt comes too late: the same run
            of it has, or a later run has while an executor of the former one lives on.
    """
    batch, note, tail = int(task.batch or 0), known.note, known.tail
    if note is not None and note.batch > batch:
        if (note.run and note.run == task.run) or 0 < task.planned < note.planned:
            raise PublishError(ATTEMPT_TOO_LATE(task=task.name, batch=note.batch))
        return Decision(warning=CHECKPOINT_OLDER(task=task.name, batch=note.batch))
    if note is not None and note.batch == batch:
        if is_about(note, stream):
            return Decision(note.began)
        old, created = note.began.stream, note.began.end.created
        warning = TARGET_CHANGED(task=task.name, old=old, created=created, stream=stream.name)
        return Decision(first_of(stream, note.began.time) if old == stream.name else None, warning=warning)

    own = note.batch if note is not None else -1
    last, older = max(own, known.first), ""
    if known.noted > own:
        older = f"it does not know micro-batch {known.noted}, which this process has noted there"
    elif 0 <= last < batch - 1:
        older = f"the last micro-batch that it knows is {last}"
    elif last >= batch - 1 and known.later and not task.attempt:
        return Decision()
    if tail is None:
        return Decision(lacks_tail=True)
    if not older and tail.rows:
        older = f"it does not know {task.name}, of which stream {stream.name!r} has {tail.rows} rows"
    elif not older and last < batch - 1:
        if tail.new:
            return Decision(first=True)
        older = "it has no entry for this query"
    seen = Position(stream.created, tail.since + 1)
    return Decision(Began(stream.name, seen, 0), older) if older else Decision()
