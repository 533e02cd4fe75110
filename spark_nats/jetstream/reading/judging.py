"""Decides what missing messages of a range mean, from what is known; it requests nothing.

The stream's first sequence decides what is a loss. Skipped sequences after it were removed one by one, for example by
a deletion or by ``max_msgs_per_subject``: that is no loss. Skipped sequences before it count as removed by the stream's
limits, or a purge, before the reader reached them: a single deletion at the beginning of the stream looks the same.
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
    NO_LOSS_AT_FIRST = auto()  # no loss before the first arrival: the range begins with the first message that exists
    NO_LOSS = auto()  # others may acknowledge messages, or a KV bucket has replaced them by later ones


def raise_data_loss(what: ConditionText) -> None:
    """Raise a :class:`DataLossError` for lost messages."""
    raise DataLossError(what)


class JudgedGaps(NamedTuple):
    """Skipped sequences before the stream's first one, which count as removed by its limits or a purge."""

    head: Gaps  # before the first arrival, where the range begins with the first message that exists: no loss
    lost: Gaps  # all others


def judge_gaps(cursor: Cursor, first_sequence: int, removed: Removed) -> JudgedGaps:
    """Decide which of a cursor's gaps count as made by the stream's limits or a purge, and which of these are a loss.

    ``first_sequence`` must be requested after the gaps were found.
    """
    gone = NO_GAPS if removed is Removed.NO_LOSS else cursor.gaps.united().before(first_sequence)
    if removed is not Removed.NO_LOSS_AT_FIRST:
        return JudgedGaps(NO_GAPS, gone)
    in_head = gone.starts < (cursor.end if cursor.first is None else cursor.first)
    return JudgedGaps(gone.chosen(in_head), gone.chosen(~in_head))


def replica_surely_lacks(cursor: Cursor, info: StreamInfo) -> bool:
    """Tell whether the replica of an unfiltered source has skipped, in the last gap, messages that the leader has.

    That is not known, and the result is False, when the stream's leader lacks single messages itself.
    """
    return not info.deleted and int(cursor.gaps.ends[-1]) > info.first_sequence


def decide_where_to_resume(cursor: Cursor, following: int | None, info: StreamInfo, filtered: bool) -> int | None:
    """Decide where a range continues once its source is exhausted; None when servers contradict each other.

    ``following`` is the sequence of the range's next message as the leader reports it, or None: then the range
    continues at its end. ``info`` must be requested after ``following``.
    """
    exists = cursor.end > max(cursor.received, info.first_sequence) and not info.deleted and not filtered
    if following is None and exists:  # a leader that was paused does not know all messages yet
        return None
    return cursor.end if following is None else following
