"""Where a micro-batch stands by what the state bucket holds, whatever partitions there were and whatever is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.sink.settling import Standing, standing
from tests.unit.strategies import property_settings

Splits = list[int]
"""How many partitions each micro-batch has."""


def notes_of(splits: Splits, order: int) -> list[tuple[int, int]]:
    """Micro-batch and partition of each note, as they are written: tasks of a micro-batch in any order."""
    return [
        (batch, partition)
        for batch, count in enumerate(splits)
        for partition in sorted(range(count), key=lambda each: (each * 31 + order) % 7)
    ]


def noted(notes: list[tuple[int, int]], partition: int) -> int | None:
    """The micro-batch that the key of a partition holds."""
    return max((batch for batch, each in notes if each == partition), default=None)


def look(notes: list[tuple[int, int]], batch: int, partition: int) -> Standing:
    return standing(batch, noted(notes, partition), noted(notes, 0))


SPLITS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@property_settings(300)
@given(SPLITS, st.integers(0, 6), st.data())
def test_a_bucket_that_has_lost_nothing_raises_no_alarm(splits: Splits, order: int, data: st.DataObject) -> None:
    notes = notes_of(splits, order)
    last = len(splits) - 1
    partition = data.draw(st.integers(0, 5))
    assert look(notes, len(splits), partition) is Standing.FIRST  # the next one, however it is split
    stopped = data.draw(st.integers(sum(splits[:-1]), len(notes)))  # in the middle of the last one, which is replayed
    begun = (last, partition) in notes[:stopped]
    assert look(notes[:stopped], last, partition) is (Standing.BEGUN if begun else Standing.FIRST)


@property_settings(300)
@given(SPLITS, st.integers(0, 6), st.data())
def test_a_bucket_that_has_lost_a_micro_batch_is_never_taken_for_a_whole_one(
    splits: Splits, order: int, data: st.DataObject
) -> None:
    notes = notes_of(splits, order)
    batch = data.draw(st.integers(1, len(splits)))
    kept = notes[: data.draw(st.integers(0, sum(splits[: batch - 1])))]  # nothing of the one before it
    found = look(kept, batch, data.draw(st.integers(0, 5)))
    assert found in (Standing.OLDER, Standing.NOTHING)


@property_settings(200)
@given(st.integers(0, 9), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_what_is_noted_of_the_task_itself_comes_first(batch: int, own: int | None, first: int | None) -> None:
    found = standing(batch, own, first)
    assert (found is Standing.BEGUN) == (own == batch)
    assert (found is Standing.AHEAD) == (own is not None and own > batch)
    if batch == 0:
        assert found in (Standing.FIRST, Standing.BEGUN, Standing.AHEAD)


@pytest.mark.parametrize(
    ("batch", "own", "first", "found"),
    [
        (7, 6, 6, Standing.FIRST),
        (7, 7, 7, Standing.BEGUN),
        (7, 8, 8, Standing.AHEAD),
        (7, 2, 6, Standing.FIRST),  # the partition was not there for a while
        (7, None, 7, Standing.FIRST),  # it is a new one, and partition 0 was faster
        (7, 5, 5, Standing.OLDER),
        (7, None, 5, Standing.OLDER),
        (7, None, None, Standing.NOTHING),
        (0, None, None, Standing.FIRST),
    ],
)
def test_where_a_micro_batch_stands(batch: int, own: int | None, first: int | None, found: Standing) -> None:
    assert standing(batch, own, first) is found
