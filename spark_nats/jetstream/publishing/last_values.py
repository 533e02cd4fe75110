"""Keeps the order of rows in streams that keep the last messages of each subject, such as KV buckets.

There, what counts is the last message of a subject. A row that is sent again must not be stored after a later one of
its subject: the older value would replace the newer one. So a row that may not be stored, but has a later row of its
subject that is, counts as replaced by that one (:func:`replaced`), and is not sent again.

A stream may also recognize a row by its message id and say that it has the row already, but only after it has stored
earlier rows of the same subject again, whose ids it has forgotten. Then an older value is the last one. :class:`Behind`
collects such rows, to be stored again under other ids.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_nats import clock
from spark_nats.jetstream.publishing.rows import Rows
from spark_nats.protocol.bytecolumns import Mask, Positions, byte_strings, texts, values_of
from spark_nats.protocol.headers import with_id


def replaced(subjects: pa.Array, stored: Mask) -> Mask:
    """Return a mask of the rows that are not stored and come before a stored one of their subject."""
    if not stored.any() or stored.all():
        return np.zeros(len(subjects), np.bool_)
    codes, places = _codes(subjects), np.arange(len(subjects))
    last = np.full(int(codes.max()) + 1, -1)
    np.maximum.at(last, codes[stored], places[stored])
    found: Mask = ~stored & (places < last[codes])
    return found


def _codes(subjects: pa.Array) -> Positions:
    return values_of(subjects.dictionary_encode().indices.cast(pa.int64()))


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
        codes, is_last = _codes(answered.subjects), np.zeros(answered.size, np.bool_)
        order = np.argsort(answered.numbers, kind="stable")[::-1]
        is_last[order[np.unique(codes[order], return_index=True)[1]]] = True
        chosen = is_last & had
        self._rows = answered.take(chosen) if chosen.any() else None
        self._sequences, self._overtaking = sequences[chosen], overtaking[chosen]

    def take(self) -> tuple[Rows, Positions, Positions] | None:
        """Return these rows, their sequences and those that overtake them; note that they are taken care of."""
        rows, self._rows = self._rows, None
        return None if rows is None else (rows, self._sequences, self._overtaking)


def overtaking(subjects: pa.Array, sequences: Positions) -> Positions:
    """Return for each row, in their order, the highest sequence of an earlier row of its subject; 0 if not higher."""
    codes = _codes(subjects)
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
