"""Many filters, which must be disjoint."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from spark_nats.protocol.subjects import first_overlap, overlap

tokens = st.lists(st.sampled_from(["a", "b", "*"]), max_size=4)
filters = st.builds(lambda start, end: ".".join([*start, end]), tokens, st.sampled_from(["a", "b", "*", ">"]))


@given(st.lists(filters, max_size=6))
def test_two_filters_that_overlap_are_found_where_there_are_any(several: list[str]) -> None:
    found = first_overlap(several)
    if found is None:
        assert not any(overlap(one, other) for one, other in combinations(several, 2))
    else:
        assert overlap(*found)
        assert set(found) <= set(several)


def test_a_filter_may_have_many_tokens() -> None:
    long = ".".join(["a"] * 5000)
    assert first_overlap([long, f"{long}.b", f"{long}.*"]) == (f"{long}.b", f"{long}.*")


def test_each_filter_meets_only_those_that_begin_as_it_does() -> None:
    assert first_overlap(f"device.{i}.{i % 7}.>" for i in range(20_000)) is None
