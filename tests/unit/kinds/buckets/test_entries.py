"""What of a bucket is read next, when a part of it was read."""

from __future__ import annotations

import pytest

from spark_nats.kinds.buckets.entries import MOST_FILTERS, Phase, State

ALL = ("$KV.B.>",)
FEW = [f"$KV.B.{i}" for i in range(MOST_FILTERS)]
MANY = [f"$KV.B.{i}" for i in range(3 * MOST_FILTERS)]


def some(missing: list[str], left: int) -> Phase:
    """The phase in which the first of these keys are looked for."""
    return Phase(State.MOVED, tuple(missing[:MOST_FILTERS]), 1, 1, tuple(missing[MOST_FILTERS:]), left)


FIRST = Phase(State.EVERYTHING, ALL, repeats_from=50)
NEWER = Phase(State.NEWER, ALL, 50, 50, (), 500)


@pytest.mark.parametrize(
    ("phase", "missing", "then"),
    [
        (FIRST, [], Phase(State.DONE, ())),
        (FIRST, FEW, some(FEW, 100)),
        (FIRST, MANY, Phase(State.NEWER, ALL, 70, 70, (), 300)),
        (NEWER, [], Phase(State.DONE, ())),
        (NEWER, FEW, some(FEW, 100)),
        (NEWER, MANY[:240], Phase(State.NEWER, ALL, 70, 70, (), 240)),  # that has found more than half
        (NEWER, MANY[:250], some(MANY[:250], 250)),  # it has not: they are moved faster than they are read
        (some(MANY, 300), MANY, some(MANY, 300)),
        (some(MANY, 300), MANY[MOST_FILTERS:], some(MANY[MOST_FILTERS:], 200)),
        (some(FEW, 100), [], Phase(State.DONE, ())),
        (FIRST, ["$KV.B.\ufffd"], Phase(State.NEWER, ALL, 70, 70, (), 1)),  # it may be several, which no filter names
    ],
)
def test_what_is_read_next(phase: Phase, missing: list[str], then: Phase) -> None:
    assert phase.followed_by(missing, ALL, 70) == then
