"""What is kept of acknowledgements: which row was the last one at a time, and how many rows lie between sequences."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.jetstream.publishing.flight import Rows, Stored
from spark_nats.jetstream.publishing.recovery import Acknowledged, digest_of
from spark_nats.protocol.publish_acks import PublishAcks
from tests.unit.protocol.test_publish_acks import answers


def note(acknowledged: Acknowledged, sequences: list[int], now: float) -> None:
    """Have a stream acknowledge rows at once; what each holds is its sequence."""

    def row(message: int) -> Rows:
        text = pa.array([str(sequences[message])])
        return Rows(np.array([message]), pa.array(["S.x"]), text, None, None)

    said = answers(*(b'{"stream":"S","seq":%d}' % sequence for sequence in sequences))
    acknowledged.note_and_find_duplicates(Stored(np.arange(len(sequences)), said, True), row, False, now)


@pytest.mark.parametrize(
    ("during", "found"),
    [
        (None, [9]),
        ((0.5, 0.9), [9]),  # none was acknowledged before
        ((1.5, 1.6), [9, 3]),
        ((2.5, 2.6), [9, 6]),
        ((2.5, 4.5), [9, 8, 6]),
        ((9.0, 9.0), [9, 8]),
    ],
)
def test_the_last_row_before_each_pause_is_known(during: tuple[float, float] | None, found: list[int]) -> None:
    acknowledged = Acknowledged(PublishAcks("S"), 0)
    note(acknowledged, [2, 3], 1.0)
    note(acknowledged, [5], 2.0)
    note(acknowledged, [6], 2.01)  # no pause
    note(acknowledged, [7, 8], 4.0)
    note(acknowledged, [9], 5.0)
    rows = acknowledged.last_rows(during)
    assert [row.sequence for row in rows] == found
    assert all(row.digest == digest_of(str(row.sequence)) for row in rows)


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=20), st.data())
def test_what_is_lost_between_two_sequences_is_neither_more_nor_less_than_is_said(
    steps: list[list[int]], data: st.DataObject
) -> None:
    acknowledged, end = Acknowledged(PublishAcks("S"), 0), 0
    there: list[int] = []
    for each in steps:
        sequences = (end + np.cumsum(each)).tolist()
        note(acknowledged, sequences, float(len(there)))
        there, end = there + sequences, sequences[-1]
    first = data.draw(st.integers(0, end + 1))
    last = data.draw(st.integers(first, end + 1))
    least, most = acknowledged.least_and_most_lost(first, last, len(there))
    assert least <= sum(first <= sequence <= last for sequence in there) <= most


def test_a_pause_keeps_one_message_id_and_not_its_batch() -> None:
    ids = pa.array([f"{i:064d}" for i in range(10_000)])
    batch = Rows(np.arange(10_000), pa.array(["S.x"] * 10_000), ids, None, ids)
    acknowledged = Acknowledged(PublishAcks("S"), 0)
    said = answers(b'{"stream":"S","seq":1}')
    acknowledged.note_and_find_duplicates(
        Stored(np.array([7]), said, True), lambda i: batch.take(slice(i, i + 1)), False, 1.0
    )
    (row,) = acknowledged.last_rows()
    assert row.ids is not None
    assert row.ids.to_pylist() == [ids[7].as_py()]
    assert row.ids.get_total_buffer_size() < 1000
