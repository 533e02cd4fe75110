"""What of a bucket is read next, when a part of it was read."""

from __future__ import annotations

import pytest

from spark_nats.kinds.buckets.entries import MAX_FILTERS, Phase, Scope

ALL = ("$KV.B.>",)
FEW = [f"$KV.B.{i}" for i in range(MAX_FILTERS)]
MANY = [f"$KV.B.{i}" for i in range(3 * MAX_FILTERS)]


def some(missing: list[str], left: int) -> Phase:
    """The phase in which the first of these keys are looked for."""
    return Phase(Scope.MOVED, tuple(missing[:MAX_FILTERS]), 1, 1, tuple(missing[MAX_FILTERS:]), left)


FIRST = Phase(Scope.EVERYTHING, ALL, repeats_from=50)
NEWER = Phase(Scope.NEWER, ALL, 50, 50, (), 500)


@pytest.mark.parametrize(
    ("phase", "missing", "then"),
    [
        (FIRST, [], Phase(Scope.DONE, ())),
        (FIRST, FEW, some(FEW, 100)),
        (FIRST, MANY, Phase(Scope.NEWER, ALL, 70, 70, (), 300)),
        (NEWER, [], Phase(Scope.DONE, ())),
        (NEWER, FEW, some(FEW, 100)),
        (NEWER, MANY[:240], Phase(Scope.NEWER, ALL, 70, 70, (), 240)),  # that has found more than half
        (NEWER, MANY[:250], some(MANY[:250], 250)),  # it has not: they are moved faster than they are read
        (some(MANY, 300), MANY, some(MANY, 300)),
        (some(MANY, 300), MANY[MAX_FILTERS:], some(MANY[MAX_FILTERS:], 200)),
        (some(FEW, 100), [], Phase(Scope.DONE, ())),
        (
            FIRST,
            ["$KV.B.\ufffd"],
            Phase(Scope.NEWER, ALL, 70, 70, (), 1),
        ),  # it may be several, which no filter names
    ],
)
def test_what_is_read_next(phase: Phase, missing: list[str], then: Phase) -> None:
    assert phase.decide_next_phase(missing, ALL, 70) == then
