"""Records what a stream has acknowledged to a publisher, so that a later loss is noticed and counted.

A stream gives every message that it stores a higher sequence than all before. So the stream has lost its end, with
acknowledged rows, when an acknowledgement names a sequence that is not higher, or when the stream ends before the
highest one. The module keeps runs of sequences instead of each one, and the last row before each pause in the answers:
in a pause the stream may lose its end, and others may fill it before its next answer.

In a stream that keeps the last messages of each subject, such as a KV bucket, what counts is the last message of a
subject. Such a stream may recognize a row by its message id and say that it has the row already, but only after it has
stored earlier rows of the same subject again, whose ids it has forgotten. Then an older value is the last one.
:class:`Behind` collects such rows, to be stored again under other ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats import clock
from spark_nats.jetstream.publishing.flight import Flight, Rows, Stored, codes_of, count_of
from spark_nats.protocol.bytecolumns import Mask, Positions, byte_strings, integers, texts
from spark_nats.protocol.headers import with_id
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, are_duplicates

_MAX_RUNS = 4096
_MAX_PAUSES = 4096
_PAUSE = 0.05  # seconds without an answer after which the stream may have another leader


class LastRow(NamedTuple):
    """The row with the highest sequence that a stream had acknowledged at a time."""

    sequence: int
    since: float  # when it was acknowledged, by :func:`clock.monotonic`
    ids: pa.Array | None  # its message id; None when it has none
    digest: bytes  # of its payload


def digest_of(payload: bytes | str) -> bytes:
    """Return a digest that distinguishes payloads."""
    return blake2b(payload.encode() if isinstance(payload, str) else payload, digest_size=16).digest()


class _Run(NamedTuple):
    """A run of rows with sequences from the first to the last one."""

    first: int
    last: int
    rows: int

    def from_on(self, sequence: int) -> tuple[int, int]:
        """Return how many rows of the run lie from a sequence on, at least and at most."""
        if self.first >= sequence:
            return self.rows, self.rows
        there, before = max(0, self.last + 1 - sequence), sequence - self.first
        return min(max(0, self.rows - before), there), min(self.rows, there)


class Acknowledged:
    """What a stream has acknowledged; ``before`` was its last sequence when the first row was sent."""

    def __init__(self, acks: PublishAcks, before: int) -> None:
        self._acks = acks
        self._before = before
        self._runs: list[_Run] = []
        self._pauses: list[LastRow] = []  # the last row before each pause
        self._in_no_run = 0  # rows in no run: one whose sequence was not higher, and those noted together after it
        self.highest = 0  # the highest acknowledged sequence, 0 before there is one
        self.since = 0.0  # when it was acknowledged
        self._row: Rows | None = None  # its row; None before there is one
        # The first sequence of a new row that was not higher than all before; None while there is none to check.
        self.fallen: int | None = None
        self.duplicates = 0  # rows that the stream had before they were first sent, by their message ids

    def note(self, stored: Stored, row_of: Callable[[int], Rows], again: bool, now: float) -> Mask:
        """Note acknowledgements; return a mask of those of rows that the stream had before they were sent.

        ``row_of`` returns the row of a message.

        The method checks only the first and the last one while nobody else writes in between and no row is a duplicate.
        The benchmark's row "client: Arrow to acknowledged JetStream publish" guards the cost. Where an earlier send
        may have stored the rows (``again``), only duplicates that the stream had at the beginning count.
        """
        messages, answers, in_order = stored
        duplicates = are_duplicates(answers)
        if in_order and not duplicates.any():
            first, last = self._acks.sequence(answers, 0), self._acks.sequence(answers, len(answers) - 1)
            if first > self.highest and last - first == len(answers) - 1:
                self._raise_to(last, row_of(int(messages[-1])), now)
                self._add(_Run(first, last, len(answers)))
                return duplicates
        sequences = self._acks.sequences(answers)
        had = duplicates & (sequences <= self._before) if again else duplicates
        self.duplicates += int(np.count_nonzero(had))
        rising = self._rising(sequences, duplicates) if in_order else len(sequences)
        if rising:
            highest = int(np.argmax(sequences[:rising]))
            if sequences[highest] > self.highest:
                self._raise_to(int(sequences[highest]), row_of(int(messages[highest])), now)
            for chosen in (~duplicates[:rising], duplicates[:rising]):
                if chosen.any():
                    found = sequences[:rising][chosen]
                    self._add(_Run(int(found.min()), int(found.max()), len(found)))
        if rising < len(sequences):
            self._in_no_run += len(sequences) - rising
            self.fallen = int(sequences[rising]) if self.fallen is None else self.fallen
        return duplicates

    def _rising(self, sequences: Positions, duplicates: Mask) -> int:
        """Return how many answers come before the first new row whose sequence is not higher than all before."""
        new = np.flatnonzero(~duplicates)
        before = np.concatenate([[self.highest], sequences[new][:-1]])
        fallen = new[sequences[new] <= before]
        return int(fallen[0]) if len(fallen) else len(sequences)

    def lost(self, first: int, last: int, rows: int) -> tuple[int, int]:
        """Return how many rows, at least and at most, are lost with all sequences from the first to the last.

        ``rows`` are stored in all: acknowledged, or found in the stream.
        """
        found = [(run.rows, *run.from_on(first), *run.from_on(last + 1)) for run in self._runs]
        kept = sum(of - most + later for of, _, most, later, _ in found)
        least = sum(max(0, least - later) for _, least, _, _, later in found)
        return least, max(0, rows - self._in_no_run - kept)

    def sequences(self, answers: Messages) -> Positions:
        """Return the sequences in acknowledgements."""
        return self._acks.sequences(answers)

    def may_have(self, sequence: int) -> bool:
        """Tell whether a sequence may be one of these rows'; where others write in between, it may be theirs."""
        return any(run.first <= sequence <= run.last for run in self._runs)

    def last_rows(self, during: tuple[float, float] | None = None) -> list[LastRow]:
        """Return the last row, if any; also the last before each pause ``during`` a time, and one earlier."""
        found = [] if self._row is None else [self._last(self._row)]
        if during is not None:
            began, ended = during
            for each in reversed(self._pauses):
                if each.since < ended:
                    found.append(each)
                if each.since < began:
                    break
        return found

    def _last(self, row: Rows) -> LastRow:
        ids = None if row.ids is None else pa.array(row.ids.to_pylist())  # a slice would keep its whole batch in memory
        return LastRow(self.highest, self.since, ids, digest_of(row.payloads[0].as_py()))

    def _raise_to(self, sequence: int, row: Rows, now: float) -> None:
        if self._row is not None and now - self.since >= _PAUSE:
            self._pauses.append(self._last(self._row))
            if len(self._pauses) > _MAX_PAUSES:
                del self._pauses[::2]
        self.highest, self._row, self.since = sequence, row, now

    def _add(self, run: _Run) -> None:
        """Add a run; where there are too many, join pairs of them, which is less exact."""
        if self._runs and self._runs[-1].last + 1 == run.first:
            last = self._runs[-1]
            if last.last - last.first == last.rows - 1 and run.last - run.first == run.rows - 1:
                self._runs[-1] = _Run(last.first, run.last, last.rows + run.rows)
                return
        self._runs.append(run)
        if len(self._runs) > _MAX_RUNS:
            pairs = zip(self._runs[::2], self._runs[1::2], strict=False)
            joined = [_Run(min(a.first, b.first), max(a.last, b.last), a.rows + b.rows) for a, b in pairs]
            self._runs = joined + self._runs[len(joined) * 2 :]


class Behind:
    """The rows of a task that a stream had already, while an earlier row of their subject may have been stored later.

    Args:
        is_replay: whether rows may have been stored in any order before.
    """

    def __init__(self, is_replay: bool) -> None:
        self._is_mixed = is_replay  # whether rows may have been stored after what the stream had already
        self._rows: Rows | None = None  # rows that the stream had, the last of each subject
        self._sequences: Positions = np.zeros(0, np.int64)
        self._overtaking: Positions = np.zeros(0, np.int64)  # see :func:`overtaking`

    def counts(self, had: Mask, is_mixed: bool) -> bool:
        """Tell whether answers have to be noted, from a mask of those to rows that the stream had.

        What it had before it stored anything is in order, unless this ``is_mixed``: an earlier send may have stored the
        rows, or rows before them have no answer yet. A cluster says at once what it had, and later what it has stored.
        """
        self._is_mixed |= is_mixed
        if self._rows is not None:
            return True
        if self._is_mixed:
            return bool(had.any())
        self._is_mixed = not had.all()
        return bool(had.any()) and self._is_mixed

    def note(self, answered: Rows, had: Mask, sequences: Positions, overtaking: Positions | None = None) -> None:
        """Note answered rows: which of them the stream ``had``, their sequences, and which overtake them if known."""
        if answered.conditional:  # the row itself says what it may replace
            had = np.zeros(answered.size, np.bool_)
        overtaking = np.zeros(answered.size, np.int64) if overtaking is None else overtaking
        if self._rows is not None:
            answered = Rows.together([self._rows, answered])
            had = np.concatenate([np.ones(self._rows.size, np.bool_), had])
            sequences = np.concatenate([self._sequences, sequences])
            overtaking = np.concatenate([self._overtaking, overtaking])
        codes, is_last = codes_of(answered.subjects), np.zeros(answered.size, np.bool_)
        order = np.argsort(answered.numbers, kind="stable")[::-1]
        is_last[order[np.unique(codes[order], return_index=True)[1]]] = True
        chosen = is_last & had
        self._rows = answered.take(chosen) if chosen.any() else None
        self._sequences, self._overtaking = sequences[chosen], overtaking[chosen]

    def note_found(self, rows: Rows, sequences: Positions) -> None:
        """Note rows that were found in the stream, unless all that it is known to have is in the order of the rows."""
        known = 0 if self._rows is None else self._rows.size
        together = rows if self._rows is None else Rows.together([self._rows, rows])
        places = np.concatenate([self._sequences[:known], sequences])
        order, later = np.argsort(together.numbers, kind="stable"), np.zeros(together.size, np.int64)
        later[order] = overtaking(together.subjects.take(integers(order)), places[order])
        if known or later.any():
            self._overtaking = np.maximum(self._overtaking[:known], later[:known])
            self.note(rows, np.ones(rows.size, np.bool_), sequences, later[known:])

    def take(self) -> tuple[Rows, Positions, Positions] | None:
        """Return these rows, their sequences and those that overtake them; note that they are taken care of."""
        rows, self._rows = self._rows, None
        return None if rows is None else (rows, self._sequences, self._overtaking)


def overtaking(subjects: pa.Array, sequences: Positions) -> Positions:
    """Return for each row, in their order, the highest sequence of an earlier row of its subject; 0 if not higher."""
    codes = codes_of(subjects)
    order = np.lexsort((np.arange(len(codes)), codes))
    of_subject, highest = codes[order], sequences[order].copy()
    for part in np.split(np.arange(len(codes)), np.flatnonzero(np.diff(of_subject)) + 1):
        highest[part] = np.maximum.accumulate(highest[part])
    found = np.zeros(len(codes), np.int64)
    found[order] = np.where(highest > sequences[order], highest, 0)
    return found


def with_other_ids(rows: Rows) -> Rows:
    """Return rows with message ids that the stream does not know, as rows that were never sent."""
    assert rows.ids is not None  # noqa: S101 - a stream knows rows by their ids only
    ids = [f"again-{clock.token(8)}-{each}" for each in rows.ids.to_pylist()]
    blocks = [with_id(rows.header(i), each) for i, each in enumerate(ids)]
    return rows._replace(headers=byte_strings(blocks), ids=texts(ids), since=0.0, after=0, again=False)


@dataclass
class PublishLedger:
    """Counts the rows of a publisher by their fate."""

    acknowledged: Acknowledged  # what the stream has acknowledged
    queue: list[Rows] = field(default_factory=list)  # the rows to be sent, in order
    flight: Flight = field(init=False)  # the rows in flight
    given: int = 0  # how many rows there are in all
    skipped: int = 0  # how many are not stored, for their conflicts
    set_aside: int = 0  # how many are not stored, because the stream refuses their content
    lost: int = 0  # how many, at most, the stream had stored and has lost
    resent: int = 0  # how many were sent again, counted each time
    all_ids: bool = True  # whether every row has a message id
    whose: str = "this task's rows"  # how errors name the rows

    @property
    def stored(self) -> int:
        """How many rows are stored: acknowledged or found in the stream, without those that are lost."""
        return self.given - self.skipped - self.set_aside - self.lost - self.pending

    @property
    def pending(self) -> int:
        """How many rows are queued, or in flight and not known to be stored."""
        return count_of(self.queue) + self.flight.unstored

    def __str__(self) -> str:
        """Describe what became of the rows that were sent."""
        flight = self.flight
        unsure = flight.unsure + count_of(rows for rows in self.queue if rows.again)
        ledger = f"of {self.whose} {self.stored} were stored"
        if self.skipped:
            ledger += f", {self.skipped} were skipped for their conflicts"
        if self.set_aside:
            ledger += f", {self.set_aside} were set aside as bad rows"
        if unsure:
            ledger += f" and {flight.in_flight + unsure} were sent and not answered for certain (they may be stored)"
        elif flight.in_flight:
            ledger += f" and {flight.in_flight} were sent and not answered (they may be stored)"
        return ledger + ", and none of the others was stored"
