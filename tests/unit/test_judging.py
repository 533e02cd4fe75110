"""What it means that messages of a range are missing, or are others: cases as tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spark_nats.jetstream.positions import Fingerprint
from spark_nats.jetstream.reading.cursor import Cursor, Gaps, gap
from spark_nats.jetstream.reading.judging import (
    Met,
    Standing,
    goes_on,
    meets,
    missing,
    replica_lacks,
    standing,
)
from spark_nats.jetstream.streams import StreamInfo


def stream(first: int, last: int, *, deleted: int = 0, created: str = "then") -> StreamInfo:
    return StreamInfo(
        name="S",
        created=created,
        first_sequence=first,
        last_sequence=last,
        messages=last + 1 - first - deleted,
        bytes=0,
        deleted=deleted,
        retention="limits",
        subjects=("S.>",),
        config={},
    )


def cursor(gaps: list[tuple[int, int]], first: int | None) -> Cursor:
    """The cursor of a range from 1 to 100 which has come to 60."""
    columns = [np.array(column, np.int64) for column in zip(*gaps, strict=True)]
    return Cursor(60, 60, 100, first, Gaps(*columns))


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (stream(1, 99), Standing.PLANNED),
        (stream(1, 500), Standing.PLANNED),
        (stream(100, 99), Standing.PLANNED),  # it has nothing any more, and has not lost its end
        (stream(1, 98), Standing.SHORTER),
        (stream(1, 0), Standing.SHORTER),
        (stream(1, 500, created="since"), Standing.MADE_AGAIN),
        (stream(1, 3, created="since"), Standing.MADE_AGAIN),
    ],
)
def test_what_a_stream_is_to_a_range_that_was_planned_of_it(info: StreamInfo, found: Standing) -> None:
    assert standing(info, "then", 100) is found


HEAD_MAY_GO: dict[str, Any] = {"head_may_go": True}
SHARED: dict[str, Any] = {"shared": True}


@pytest.mark.parametrize(
    ("gaps", "first", "begins", "how", "head", "lost"),
    [
        # Behind the stream's first sequence messages were deleted one by one.
        ([(5, 9), (20, 30)], 1, 1, {}, "", "[]"),
        ([(5, 9), (20, 30)], 1, 5, {}, "", "[]"),
        # Before it, limits or a purge have removed them.
        ([(5, 9), (20, 30)], 1, 9, {}, "", "[(5, 9)]"),
        ([(5, 9), (20, 30)], 1, 25, {}, "", "[(5, 9), (20, 25)]"),
        ([(5, 9), (20, 30)], 1, 90, {}, "", "[(5, 9), (20, 30)]"),
        # What was met twice is one loss.
        ([(20, 30), (5, 9), (22, 33)], 1, 90, {}, "", "[(5, 9), (20, 33)]"),
        # Others may remove messages.
        ([(5, 9), (20, 30)], 1, 90, SHARED, "", "[]"),
        # The head may go, as long as nothing has arrived.
        ([(1, 9)], None, 9, HEAD_MAY_GO, "[(1, 9)]", "[]"),
        ([(1, 9)], None, 5, HEAD_MAY_GO, "[(1, 5)]", "[]"),
        ([(1, 9)], 9, 9, HEAD_MAY_GO, "[(1, 9)]", "[]"),
        ([(1, 9), (20, 30)], 9, 90, HEAD_MAY_GO, "[(1, 9)]", "[(20, 30)]"),
        ([(20, 30)], 1, 90, HEAD_MAY_GO, "[]", "[(20, 30)]"),
        ([(1, 9)], None, 9, {}, "", "[(1, 9)]"),
        ([(1, 9)], None, 9, HEAD_MAY_GO | SHARED, "", "[]"),
    ],
)
def test_which_gaps_the_limits_have_made(
    gaps: list[tuple[int, int]], first: int | None, begins: int, how: dict[str, bool], head: str, lost: str
) -> None:
    found = missing(cursor(gaps, first), begins, **{"head_may_go": False, "shared": False, **how})
    shown = [str(list(zip(each.starts.tolist(), each.ends.tolist(), strict=True))) for each in found]
    assert shown == [head or "[]", lost]


@pytest.mark.parametrize(
    ("info", "lacks"),
    [
        (stream(1, 99), True),  # the leader has everything
        (stream(25, 99), True),  # some of it
        (stream(30, 99), False),  # the limits have passed
        (stream(1, 99, deleted=3), False),  # which may be these
    ],
)
def test_when_a_replica_lacks_what_the_leader_has(info: StreamInfo, lacks: bool) -> None:
    assert replica_lacks(cursor([(5, 9), (20, 30)], 1), info) is lacks


@pytest.mark.parametrize(
    ("following", "info", "filtered", "to"),
    [
        (75, stream(1, 99), False, 75),
        (75, stream(1, 99), True, 75),
        (None, stream(1, 99), True, 100),  # nothing more matches
        (None, stream(1, 99, deleted=7), False, 100),  # the last ones were deleted
        (None, stream(100, 99), False, 100),  # everything was removed
        (None, stream(1, 99), False, None),  # one says that there is nothing, and another one that nothing is missing
        (None, stream(80, 99), False, None),
    ],
)
def test_where_a_range_goes_on_when_a_source_has_no_more(
    following: int | None, info: StreamInfo, filtered: bool, to: int | None
) -> None:
    assert goes_on(cursor([(5, 9)], 1), following, info, filtered) == to


@pytest.mark.parametrize(
    ("sequence", "time", "met"),
    [
        (50, 1000, Met.PLANNED),
        (50, 1001, Met.OTHER),
        (50, 999, Met.OTHER),
        (49, 999, Met.PLANNED),
        (49, 1000, Met.PLANNED),
        (49, 1001, Met.LATER),
        (51, 1001, Met.LATER),
    ],
)
def test_what_a_message_is_to_the_history_of_which_a_range_was_planned(sequence: int, time: int, met: Met) -> None:
    assert meets(Fingerprint(50, 1000), sequence, time) is met


def test_a_gap_is_judged_where_the_range_began_behind_the_streams_first_message() -> None:
    skipped = Cursor.of(5, 10).skip(10)
    assert str(missing(skipped, 8, head_may_go=False, shared=False).lost) == str(gap(5, 8))
