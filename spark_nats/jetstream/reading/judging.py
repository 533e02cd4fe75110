"""What it means that messages of a range are missing: decided from what is known, nothing is asked.

The stream's first sequence decides what is a loss: what was skipped behind it was deleted one by one, which is none;
what was skipped before it the stream's limits, or a purge, have removed before the reader came to it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from spark_nats.conditions import ConditionText
from spark_nats.errors import DataLossError
from spark_nats.jetstream.reading.cursor import NO_GAPS, Cursor, Gaps
from spark_nats.jetstream.streams import StreamInfo


class Removed(Enum):
    """What it means that messages of a range were removed before they were read."""

    LOSS = auto()
    NO_LOSS_AT_FIRST = auto()  # before the first one has arrived, it is none: the range begins with whatever there is
    NO_LOSS = auto()  # others may acknowledge them, or it is of a KV bucket, where a later one takes the place

    @classmethod
    def from_start(cls, earliest: bool) -> Removed:
        """Return what it means in a stream, where the range begins with whatever there is if that is ``earliest``."""
        return cls.NO_LOSS_AT_FIRST if earliest else cls.LOSS


def fail_on_loss(what: ConditionText) -> None:
    """Report messages that are gone as a :class:`DataLossError`."""
    raise DataLossError(what)


class Missing(NamedTuple):
    """Sequences that the stream's limits, or a purge, have removed."""

    head: Gaps  # before the first message that has arrived, where the range begins with whatever there is: no loss
    lost: Gaps  # all others


def missing(cursor: Cursor, first_sequence: int, removed: Removed) -> Missing:
    """Decide which of a cursor's gaps the limits of its stream have made, and whether that is a loss.

    Its first sequence is as it was after what was skipped had been found missing.
    """
    gone = NO_GAPS if removed is Removed.NO_LOSS else cursor.gaps.united().before(first_sequence)
    if removed is not Removed.NO_LOSS_AT_FIRST:
        return Missing(NO_GAPS, gone)
    in_head = gone.starts < (cursor.end if cursor.first is None else cursor.first)
    return Missing(gone.chosen(in_head), gone.chosen(~in_head))


def replica_lacks(cursor: Cursor, info: StreamInfo) -> bool:
    """Tell whether a replica that leaves nothing out has skipped, last of all, what the stream's leader has."""
    return not info.deleted and int(cursor.gaps.ends[-1]) > info.first_sequence


def resume_sequence(cursor: Cursor, following: int | None, info: StreamInfo, filtered: bool) -> int | None:
    """Decide where a range goes on when what it was read through has no more; None when servers disagree about it.

    ``following`` is the sequence of the next message of the range, by its leader, or None; the state was asked
    for after that.
    """
    exists = cursor.end > max(cursor.received, info.first_sequence) and not info.deleted and not filtered
    if following is None and exists:  # a leader that was stopped for a while does not know it yet
        return None
    return cursor.end if following is None else following
