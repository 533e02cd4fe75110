"""Batches are published in parts of a bounded size."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.client import publishing
from spark_nats.client.publishing import cut_into_parts


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 40))), max_size=12),
    st.integers(1, 5),
    st.booleans(),
)
@example([(100, None)] * 3, 5, True)
@example([(0, None)] * 12, 5, False)
def test_parts_cover_the_batch_in_order_and_keep_their_limits(
    sizes: list[tuple[int, int | None]], max_rows: int, with_headers: bool
) -> None:
    limit = 50
    bodies = pa.array([b"x" * size for size, _ in sizes], pa.binary())
    blocks = pa.array([None if h is None else b"h" * h for _, h in sizes], pa.binary()) if with_headers else None
    whole = [size + ((h or 0) if with_headers else 0) for size, h in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "PART_BYTES", limit)
        parts = list(cut_into_parts(bodies, blocks, max_rows))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(sizes)))
    for k, part in enumerate(parts):
        rows_in_part = part.stop - part.start
        assert 1 <= rows_in_part <= max_rows
        assert sum(whole[part]) <= limit or rows_in_part == 1
        if k + 1 < len(parts):  # no part is smaller than it has to be
            assert rows_in_part == max_rows or sum(whole[part.start : part.stop + 1]) > limit
