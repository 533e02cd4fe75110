"""A cursor hands on each message once, skips nothing unjudged, and is complete only when all that is so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.jetstream.reading.cursor import NO_GAPS, Cursor, Gaps, gap
from tests.unit.strategies import Sequences

START, LENGTH = 3, 40


def gaps_of(*ranges: tuple[int, int]) -> Gaps:
    return Gaps(np.array([a for a, _ in ranges], np.int64), np.array([b for _, b in ranges], np.int64))


def named(gaps: Gaps) -> list[int]:
    """The sequences in gaps."""
    return [s for a, b in zip(gaps.starts.tolist(), gaps.ends.tolist(), strict=True) for s in range(a, b)]


def arrive(cursor: Cursor, sequences: list[int]) -> tuple[Cursor, list[int]]:
    """Let messages arrive; return the cursor and those of them that are in the range."""
    after, inside = cursor.receive(Sequences(sequences), sequences[0], sequences[-1])
    return after, sequences[:inside]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 12)),
        st.tuples(st.just("hand on"), st.integers(1, 4)),
        st.tuples(st.sampled_from(["restart", "judge", "skip", "delete"]), st.integers(0, 50)),
    ),
    max_size=40,
)


@settings(max_examples=250)
@given(st.sets(st.integers(START, START + LENGTH + 5)), st.integers(0, LENGTH), STEPS)
def test_nothing_is_handed_on_twice_and_nothing_is_skipped_that_is_not_judged(
    stored: set[int], length: int, steps: list[tuple[str, int]]
) -> None:
    """However messages arrive, sources restart, and messages are deleted while the range is read."""
    end = START + length
    cursor = Cursor.of(START, end)
    held: list[tuple[int, list[int]]] = []  # what has arrived and waits, with the sequence behind it
    handed: list[int] = []
    judged: set[int] = set()

    def deliver(count: int) -> None:
        nonlocal cursor
        for until, rows in held[:count]:
            cursor = cursor.deliver(until)
            handed.extend(rows)
        del held[:count]

    def finish() -> None:
        """What is done when a source has no more."""
        nonlocal cursor
        deliver(len(held))
        if not cursor.all_received and not [s for s in stored if cursor.received <= s < end]:
            cursor = cursor.skip(end)

    for step, n in [*steps, ("arrive", 99), ("finish", 0)]:
        if step == "arrive" and not cursor.all_received:
            coming = sorted(s for s in stored if s >= cursor.received)[:n]
            if coming:
                cursor, rows = arrive(cursor, coming)
                held.append((cursor.received, rows))
        elif step == "hand on":
            deliver(n)
        elif step == "restart":
            cursor = cursor.back_to_delivered()
            held.clear()
        elif step == "judge":
            judged.update(named(cursor.gaps))
            cursor = cursor.without_gaps()
        elif step == "skip" and not held:  # to what the stream's leader has next
            following = min((s for s in stored if s >= cursor.received), default=end)
            cursor = cursor.skip(following)
        elif step == "delete":
            stored = stored - {s for s in stored if s >= cursor.delivered and s % 7 == n % 7}
        elif step == "finish":
            finish()
        assert START <= cursor.delivered <= cursor.received <= max(end, START)
        assert handed == sorted(set(handed))
        known = judged | set(named(cursor.gaps)) | set(handed)
        assert set(range(START, cursor.delivered)) <= known, "what is behind it was handed on, or is to be judged"
        assert not (cursor.all_delivered_and_judged and len(cursor.gaps))
    assert cursor.delivered == end
    assert cursor.all_delivered_and_judged == (not len(cursor.gaps))
    assert cursor.without_gaps().all_delivered_and_judged
    assert all(START <= s < end for s in handed)


@settings(max_examples=150)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), max_size=6), st.integers(0, 6))
def test_what_was_not_handed_on_arrives_again_after_a_restart(chunks: list[list[int]], handed: int) -> None:
    cursor = Cursor.of(1, 200)
    after: list[Cursor] = [cursor]
    for steps in chunks:
        sequences = np.cumsum([cursor.received - 1 + steps[0], *steps[1:]]).tolist()
        cursor, _ = arrive(cursor, sequences)
        after.append(cursor)
    there = after[min(handed, len(chunks))]
    again = cursor.deliver(there.received).back_to_delivered()
    assert (again.delivered, again.received, again.end) == (there.received, there.received, 200)
    assert named(again.gaps) == named(there.gaps)
    assert again.first == there.first


def test_only_what_is_in_the_range_counts() -> None:
    cursor, inside = arrive(Cursor.of(5, 10), [5, 6, 9, 12])
    assert (inside, cursor.received, named(cursor.gaps)) == ([5, 6, 9], 10, [7, 8])
    cursor, inside = arrive(Cursor.of(5, 10), [12])
    assert (inside, cursor.received, cursor.first, named(cursor.gaps)) == ([], 10, None, [5, 6, 7, 8, 9])
    cursor, inside = arrive(Cursor.of(5, 10), [5, 6, 7, 8, 9, 10])
    assert (inside, cursor.received, len(cursor.gaps)) == ([5, 6, 7, 8, 9], 10, 0)


def test_a_range_without_messages_is_complete_when_it_was_judged_why() -> None:
    cursor = Cursor.of(5, 10).skip(10)
    assert cursor.all_received
    assert not cursor.all_delivered_and_judged
    assert cursor.without_gaps().all_delivered_and_judged
    assert Cursor.of(5, 5).all_delivered_and_judged


def test_what_waits_keeps_its_place_when_what_lies_behind_it_is_skipped() -> None:
    cursor, _ = arrive(Cursor.of(1, 10), [1, 2])
    assert cursor.skip(8).delivered == 1
    assert cursor.deliver(3).skip(8).delivered == 8
    assert cursor.receive_until(8).delivered == 1
    assert cursor.deliver(3).receive_until(8).back_to_delivered().received == 3


def test_a_range_is_not_cut_off_before_what_has_arrived() -> None:
    cursor, _ = arrive(Cursor.of(1, 10), [1, 2, 3])
    assert [cursor.cut(end).end for end in (2, 4, 7, 12)] == [4, 4, 7, 10]
    assert cursor.with_none_left().all_delivered_and_judged


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), max_size=12))
def test_sequences_that_are_missing_are_counted_once(ranges: list[tuple[int, int]]) -> None:
    assert named(gaps_of(*((a, a + n) for a, n in ranges)).united()) == sorted(
        {sequence for a, n in ranges for sequence in range(a, a + n)}
    )


@pytest.mark.parametrize(
    ("gaps", "text"),
    [
        (gap(3, 4), "sequence 3"),
        (gap(3, 6), "sequences 3 to 5"),
        (gaps_of((3, 4), (6, 9)), "sequences 3 and 6 to 8"),
        (gaps_of((3, 4), (6, 9), (11, 12)), "sequences 3, 6 to 8 and 11"),
        (
            gaps_of(*((n, n + 2) for n in range(10, 80, 10))),
            "sequences 10 to 11, 20 to 21, 30 to 31, 40 to 41 and 50 to 51 and 2 more gaps, 14 sequences in all",
        ),
    ],
)
def test_gaps_are_named(gaps: Gaps, text: str) -> None:
    assert str(gaps) == text


def test_what_lies_before_a_sequence_is_cut_off_there() -> None:
    assert named(gaps_of((1, 4), (6, 9)).before(8)) == [1, 2, 3, 6, 7]
    assert not len(NO_GAPS.before(8))
