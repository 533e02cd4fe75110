"""Many filters, which must be disjoint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import combinations
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.protocol.subjects import find_overlap, overlap

TraceFunction = Callable[[FrameType, str, Any], Any]

tokens = st.lists(st.sampled_from(["a", "b", "*"]), max_size=4)
filters = st.builds(lambda start, end: ".".join([*start, end]), tokens, st.sampled_from(["a", "b", "*", ">"]))


@given(st.lists(filters, max_size=8))
def test_two_filters_that_overlap_are_found_where_there_are_any(several: list[str]) -> None:
    found = find_overlap(several)
    if found is None:
        assert not any(overlap(one, other) for one, other in combinations(several, 2))
    else:
        assert overlap(*found)
        assert set(found) <= set(several)


def test_a_filter_may_have_many_tokens() -> None:
    long = ".".join(["a"] * 5000)
    assert find_overlap([long, f"{long}.b", f"{long}.*"]) == (f"{long}.b", f"{long}.*")


@pytest.mark.parametrize(
    "several",
    [
        lambda n: [f"device.{i}.{i % 7}.>" for i in range(n)],
        lambda n: [*(f"a{i}.x" for i in range(n // 2)), *(f"*.y{i}" for i in range(n // 2))],
        lambda n: [*(f"a.{i}.x.*" for i in range(n // 2)), *(f"a.*.y.{i}" for i in range(n // 2))],
        lambda n: [text for i in range(n // 3) for text in (f"a.{i}.b", f"*.{i}.c.>", f"*.*.d.{i}")],
    ],
    ids=["of one shape", "that begin with a wildcard", "with wildcards in different places", "of three lengths"],
)
def test_twice_as_many_filters_take_twice_the_work(several: Callable[[int], list[str]]) -> None:
    assert steps(several(1200)) < 2.2 * steps(several(600))


def steps(filters: list[str]) -> int:
    """How many lines the search runs, when all filters are disjoint."""
    count = 0

    def see(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        found = find_overlap(filters)
    finally:
        sys.settrace(before)
    assert found is None
    return count
