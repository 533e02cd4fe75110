"""Holds how far a range is read, as an immutable value whose methods request and send nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from spark_nats.conditions import ConditionText
from spark_nats.protocol.bytecolumns import Mask, Positions
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import DirectGetReplies

NO_END = 1 << 64  # the end of a read without a last sequence
_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Ranges of sequences, each without its end; their text is ``sequences 3 to 5 and 9``."""

    starts: Positions
    ends: Positions

    def __len__(self) -> int:
        return len(self.starts)

    def __add__(self, other: Gaps) -> Gaps:
        return Gaps(np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends]))

    def chosen(self, chosen: Mask) -> Gaps:
        """Return the chosen ranges."""
        return Gaps(self.starts[chosen], self.ends[chosen])

    def before(self, sequence: int) -> Gaps:
        """Return the part of the ranges before a sequence."""
        some = self.chosen(self.starts < sequence)
        return Gaps(some.starts, np.minimum(some.ends, sequence))

    def united(self) -> Gaps:
        """Return the same sequences in order, each once."""
        if not len(self):
            return self
        order = np.argsort(self.starts, kind="stable")
        starts, ends = self.starts[order], np.maximum.accumulate(self.ends[order])
        apart = starts[1:] > ends[:-1]
        return Gaps(starts[np.append(True, apart)], ends[np.append(apart, True)])

    def __str__(self) -> str:
        pairs = list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))
        shown = [f"{start} to {end - 1}" if end - start > 1 else str(start) for start, end in pairs[:_MAX_SHOWN]]
        text = (", ".join(shown[:-1]) + " and " if len(shown) > 1 else "") + shown[-1]
        if len(pairs) > _MAX_SHOWN:
            total = sum(end - start for start, end in pairs)
            text += f" and {len(pairs) - _MAX_SHOWN} more gaps, {total} sequences in all"
        return ("sequence " if len(pairs) == 1 and shown == [str(pairs[0][0])] else "sequences ") + text


def gap(start: int, end: int) -> Gaps:
    """Return one range of sequences."""
    return Gaps(np.array([start]), np.array([end]))


NO_GAPS = Gaps(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """How far a range of sequences is read, and what was found out about it.

    Messages between ``delivered`` and ``received`` have arrived and are not yielded yet; a restart requests them again.
    """

    delivered: int  # everything before it was yielded, or is not to be
    received: int  # everything before it has arrived, or does not exist
    end: int  # sequence before which the range ends
    first: int | None = None  # sequence of the first message that has arrived; None before
    gaps: Gaps = NO_GAPS  # skipped sequences before ``received`` whose reason is not judged yet
    lost: tuple[ConditionText, ...] = ()  # losses of the range that are not reported yet, in sentences
    rewritten: bool = False  # whether messages of another history have taken sequences of the range
    left: float = math.inf  # how many messages are still to be yielded; infinite without a limit
    wanted: float = math.inf  # how many more messages may be requested, besides those that have arrived

    @classmethod
    def of(cls, start: int, end: int = NO_END, *, rewritten: bool = False, limit: int | None = None) -> Cursor:
        """Return the cursor of an unread range, of all its messages when ``limit`` is None."""
        return cls(start, start, end, rewritten=rewritten, left=math.inf if limit is None else limit)

    @property
    def all_received(self) -> bool:
        """Whether everything has arrived."""
        return self.received >= self.end

    @property
    def all_delivered_and_judged(self) -> bool:
        """Whether everything was yielded, and every skipped sequence was judged."""
        return self.delivered >= self.end and not len(self.gaps)

    def receive(self, messages: Deliveries | DirectGetReplies, first: int, last: int) -> tuple[Cursor, int]:
        """Return the cursor after messages that have arrived, and how many of them are in the range.

        There is at least one message. The messages are in order, from sequence ``first`` to ``last``, and none lies
        before ``received``.
        """
        count, gaps = len(messages), self.gaps
        if last - self.received == count - 1:
            inside = min(count, self.end - self.received)
        else:  # some were skipped
            sequences = messages.stream_sequences()
            inside = int(np.searchsorted(sequences, self.end))
            before = np.concatenate([[self.received - 1], sequences[:inside]])
            after = np.concatenate([sequences[:inside], [self.end if inside < count else last + 1]])
            skipped = np.flatnonzero(after - before > 1)
            gaps = gaps + Gaps(before[skipped] + 1, after[skipped])
        found = first if self.first is None and inside else self.first
        return replace(self, received=min(last + 1, self.end), first=found, gaps=gaps), inside

    def receive_until(self, to: int) -> Cursor:
        """Return the cursor when everything before a sequence has arrived; no gap is added."""
        return replace(self, received=max(self.received, min(to, self.end)))

    def skip(self, to: int) -> Cursor:
        """Return the cursor after sequences that do not exist."""
        reached = self.receive_until(to)
        delivered = self.delivered if self.delivered < self.received else reached.received
        return replace(reached, delivered=delivered, gaps=self.gaps + gap(self.received, reached.received))

    def deliver(self, until: int, messages: int = 0) -> Cursor:
        """Return the cursor when everything before ``until`` was yielded, with ``messages`` counted off the limit."""
        return replace(self, delivered=until, left=self.left - messages)

    def back_to_delivered(self) -> Cursor:
        """Return the cursor when messages that arrived, but were not yielded, are to arrive again."""
        if self.delivered == self.received:
            return self
        first = self.first if self.first is not None and self.first < self.delivered else None
        return replace(self, received=self.delivered, first=first, gaps=self.gaps.before(self.delivered))

    def without_gaps(self) -> Cursor:
        """Return the cursor when the reasons of all gaps were judged."""
        return replace(self, gaps=NO_GAPS)

    def lose(self, *what: ConditionText) -> Cursor:
        """Return the cursor with further losses."""
        return replace(self, lost=(*self.lost, *what))

    def cut(self, end: int) -> Cursor:
        """Return the cursor of a range that ends earlier, but not before what has arrived."""
        return replace(self, end=min(self.end, max(end, self.received)))

    def finish(self, end: int) -> Cursor:
        """Return the cursor of a range that ends before ``end`` and is all yielded, whatever has arrived after it."""
        return replace(self, delivered=end, received=end, end=end, gaps=self.gaps.before(end))

    def with_none_left(self) -> Cursor:
        """Return the cursor when nothing is left of the range."""
        return replace(Cursor.of(self.end, self.end), lost=self.lost)
