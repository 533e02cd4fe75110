"""What a replay stores again, by what its stream still has of the rows that an earlier attempt has stored."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from spark_nats.jetstream.reading.stored import StoredIds
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.write.notes import AlreadyStored
from spark_nats.protocol.bytecolumns import booleans, byte_strings

STREAM = StreamInfo("S", "then", 1, 0, 0, 0, 0, "limits", ("S.>",), {})
Message = tuple[str, str]
"""Subject and id."""


def store(messages: list[Message], kept: int, more: list[Message]) -> list[Message]:
    """What a stream has that keeps so many messages of each subject, once it has stored more."""
    found = [*messages, *more]
    left = Counter(subject for subject, _ in found)
    there = []
    for subject, row in found:
        if left[subject] <= kept:
            there.append((subject, row))
        left[subject] -= 1
    return there


def read_back(messages: list[Message], kept: int, prefix: str = "t-") -> StoredIds:
    own = [(subject, row) for subject, row in messages if row.startswith(prefix)]
    counts = Counter(subject for subject, _ in messages)
    full = pa.array([subject for subject, count in counts.items() if count >= kept], pa.string())
    subjects = pa.array([subject for subject, _ in own], pa.string())
    ends = dict(messages)
    return StoredIds(
        byte_strings([row.encode() for _, row in own]),
        "messages are lost",
        subjects,
        full,
        only_by_subject=True,
        are_ends=np.array([ends[subject] == row for subject, row in own], np.bool_),
    )


def replayed(found: StoredIds, rows: list[Message], size: int, report: list[str]) -> list[Message]:
    """The rows that a replay sends."""
    already = AlreadyStored(found, "t-", STREAM, False, keeps_last_values=True, report=report.append)
    already.raise_or_warn_forgotten_or_defer()
    sent: list[Message] = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        subjects, ids = (pa.array(column, pa.string()) for column in zip(*part, strict=True))
        missing = already.note_and_find_missing(ids, subjects)
        sent += [row for row, chosen in zip(part, missing.tolist(), strict=True) if chosen]
    return sent


ROWS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(ROWS, st.integers(0, 30), st.integers(1, 3), st.integers(1, 7), st.booleans())
@example([0, 0, 0], 3, 1, 3, False)
@example([0, 0], 2, 2, 1, True)
def test_the_last_row_of_each_subject_is_the_last_and_what_was_stored_in_order_is_not_stored_again(
    subjects: list[int], stored: int, kept: int, size: int, is_disturbed: bool
) -> None:
    rows = [(f"S.{subject}", f"t-{row}") for row, subject in enumerate(subjects)]
    first = rows[:stored]
    if is_disturbed:  # an attempt that ended before it had put the last rows last
        first = [*first[1:], *first[:1]]
    there = store([], kept, first)
    report: list[str] = []
    sent = replayed(read_back(there, kept), rows, size, report)
    values = dict(store(there, kept, sent))
    assert values == dict(rows)
    assert not report
    if not is_disturbed:
        assert sent == rows[stored:]


def test_what_somebody_else_has_stored_behind_the_rows_of_a_subject_is_newer_and_stays() -> None:
    rows = [("S.a", "t-0"), ("S.a", "t-1")]
    disturbed = [*rows[::-1]]
    assert replayed(read_back(disturbed, 5), rows, 10, []) == rows[1:]
    assert replayed(read_back([*disturbed, ("S.a", "another")], 5), rows, 10, []) == []


def test_rows_on_a_subject_that_only_has_messages_of_others_are_in_doubt() -> None:
    rows = [("S.a", "t-0"), ("S.b", "t-1")]
    there = store([], 1, [*rows, ("S.a", "another")])
    report: list[str] = []
    replayed(read_back(there, 1), rows, 10, report)
    assert report == ["messages are lost"]


def test_without_last_values_what_is_not_found_is_stored() -> None:
    already = AlreadyStored(read_back([("S.a", "t-1")], 1), "t-", STREAM, own_ids=False)
    ids = pa.array(["t-0", "t-1", "t-2"])
    assert ids.filter(booleans(already.note_and_find_missing(ids))).to_pylist() == ["t-0", "t-2"]
    assert (already.rows, already.unexpected_earlier_rows) == (1, 0)


def test_what_is_found_when_the_stream_is_read_on_is_not_stored_either() -> None:
    rows = [("S.a", "t-0"), ("S.b", "t-1")]
    already = AlreadyStored(read_back(rows[:1], 1), "t-", STREAM, False, keeps_last_values=True)
    already._ids = pa.concat_arrays([already._ids, byte_strings([b"t-1"])])
    already._met = np.zeros(2, np.bool_)
    subjects, ids = (pa.array(column, pa.string()) for column in zip(*rows, strict=True))
    assert not already.note_and_find_missing(ids, subjects).any()
