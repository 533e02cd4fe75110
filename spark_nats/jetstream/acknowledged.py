"""What a stream has acknowledged to a publisher: how far its sequences have risen, and how many rows lie where.

A stream gives every message that it stores a higher sequence than all before. So where an acknowledgement names one
that is not higher, the stream has lost its end meanwhile, with what it had acknowledged; and one that ends before the
highest sequence has too. The sequences of all rows are not kept, only runs of them.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from spark_nats.protocol.bytecolumns import Mask, Positions
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks

_MOST_RUNS = 4096


class _Run(NamedTuple):
    """So many rows have sequences from the first to the last one."""

    first: int
    last: int
    rows: int

    def from_on(self, sequence: int) -> tuple[int, int]:
        """Return how many rows lie there at least, and at most."""
        if self.first >= sequence:
            return self.rows, self.rows
        there, before = max(0, self.last + 1 - sequence), sequence - self.first
        return min(max(0, self.rows - before), there), min(self.rows, there)


class Acknowledged:
    """What a stream has acknowledged.

    Args:
        acks: reads its answers.

    Attributes:
        highest: the highest sequence that it has named, 0 before there is one.
        since: when that was, by the monotonic clock.
        message: for which message, by how many were sent before it; None where that is not known.
    """

    def __init__(self, acks: PublishAcks) -> None:
        self._acks = acks
        self._runs: list[_Run] = []
        self._behind = 0  # rows whose sequences were not the highest
        self.highest = 0
        self.since = 0.0
        self.message: int | None = None

    def rises(self, answers: Messages, duplicates: Mask, again: bool, sent: int) -> int | None:
        """Note answers that have come in the order of their rows.

        Only the first and the last one are looked at while nobody else writes in between and no row is a duplicate.
        The benchmark's row "client: Arrow to acknowledged JetStream publish" guards the cost.

        Args:
            answers: acknowledgements; at least one.
            duplicates: which of them name the sequence of a message that was there before.
            again: whether their rows were sent before, so that duplicates may have been counted.
            sent: how many messages were sent before that of the first answer.

        Returns:
            The first sequence of a row that is not higher than all before; None when there is none.
        """
        count = len(answers)
        if not duplicates.any():
            first, last = self._acks.sequence(answers, 0), self._acks.sequence(answers, count - 1)
            if first > self.highest and last - first == count - 1:
                self._raise_to(last, sent + count - 1)
                self._add(_Run(first, last, count))
                return None
            sequences = self._acks.sequences(answers)
            if sequences[0] > self.highest and (sequences[1:] > sequences[:-1]).all():
                self._raise_to(last, sent + count - 1)
                self._add(_Run(first, last, count))
                return None
        else:
            sequences = self._acks.sequences(answers)
        new = np.flatnonzero(~duplicates)
        before = np.concatenate([[self.highest], sequences[new][:-1]])
        fallen = new[sequences[new] <= before]
        rising = int(fallen[0]) if len(fallen) else count
        if rising:
            highest = int(np.argmax(sequences[:rising]))
            self._raise_to(int(sequences[highest]), sent + highest)
            self._add_all(sequences[:rising][~duplicates[:rising]])
            if not again:
                self._add_all(sequences[:rising][duplicates[:rising]])
        self._behind += count - rising
        return int(sequences[rising]) if len(fallen) else None

    def note(self, answers: Messages) -> None:
        """Note acknowledgements of which it is not known which rows they are for."""
        if len(answers):
            self._raise_to(int(self._acks.sequences(answers).max()), None)

    def lost(self, sequence: int, rows: int) -> tuple[int, int]:
        """Return how many rows are lost with all that had a sequence or a higher one.

        Args:
            sequence: the first one.
            rows: how many were acknowledged in all.

        Returns:
            At least so many, and at most so many.
        """
        found = [run.from_on(sequence) for run in self._runs]
        kept = sum(run.rows - most for run, (_, most) in zip(self._runs, found, strict=True))
        return sum(least for least, _ in found), max(0, rows - self._behind - kept)

    def _raise_to(self, sequence: int, message: int | None) -> None:
        if sequence > self.highest:
            self.highest, self.message = sequence, message
            self.since = time.monotonic()

    def _add_all(self, sequences: Positions) -> None:
        if len(sequences):
            self._add(_Run(int(sequences.min()), int(sequences.max()), len(sequences)))

    def _add(self, run: _Run) -> None:
        """Add a run; where there are too many of them, each two become one, which says less."""
        if self._runs and self._runs[-1].last + 1 == run.first:
            last = self._runs[-1]
            if last.last - last.first == last.rows - 1 and run.last - run.first == run.rows - 1:
                self._runs[-1] = _Run(last.first, run.last, last.rows + run.rows)
                return
        self._runs.append(run)
        if len(self._runs) > _MOST_RUNS:
            pairs = zip(self._runs[::2], self._runs[1::2], strict=False)
            joined = [_Run(min(a.first, b.first), max(a.last, b.last), a.rows + b.rows) for a, b in pairs]
            self._runs = joined + self._runs[len(joined) * 2 :]
