"""What it means that messages of a range are missing: cases as tables."""

from __future__ import annotations

import numpy as np
import pytest

from spark_nats.jetstream.reading.cursor import Cursor, Gaps, gap
from spark_nats.jetstream.reading.judging import Removed, decide_where_to_resume, judge_gaps, replica_surely_lacks
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


HEAD_MAY_GO, SHARED = Removed.NO_LOSS_AT_FIRST, Removed.NO_LOSS


@pytest.mark.parametrize(
    ("gaps", "first", "begins", "removed", "head", "lost"),
    [
        # Behind the stream's first sequence messages were deleted one by one.
        ([(5, 9), (20, 30)], 1, 1, Removed.LOSS, "", "[]"),
        ([(5, 9), (20, 30)], 1, 5, Removed.LOSS, "", "[]"),
        # Before it, limits or a purge have removed them.
        ([(5, 9), (20, 30)], 1, 9, Removed.LOSS, "", "[(5, 9)]"),
        ([(5, 9), (20, 30)], 1, 25, Removed.LOSS, "", "[(5, 9), (20, 25)]"),
        ([(5, 9), (20, 30)], 1, 90, Removed.LOSS, "", "[(5, 9), (20, 30)]"),
        # What was met twice is one loss.
        ([(20, 30), (5, 9), (22, 33)], 1, 90, Removed.LOSS, "", "[(5, 9), (20, 33)]"),
        # Others may remove messages.
        ([(5, 9), (20, 30)], 1, 90, SHARED, "", "[]"),
        # The head may go, as long as nothing has arrived.
        ([(1, 9)], None, 9, HEAD_MAY_GO, "[(1, 9)]", "[]"),
        ([(1, 9)], None, 5, HEAD_MAY_GO, "[(1, 5)]", "[]"),
        ([(1, 9)], 9, 9, HEAD_MAY_GO, "[(1, 9)]", "[]"),
        ([(1, 9), (20, 30)], 9, 90, HEAD_MAY_GO, "[(1, 9)]", "[(20, 30)]"),
        ([(20, 30)], 1, 90, HEAD_MAY_GO, "[]", "[(20, 30)]"),
        ([(1, 9)], None, 9, Removed.LOSS, "", "[(1, 9)]"),
        ([(1, 9)], None, 9, SHARED, "", "[]"),
    ],
)
def test_which_gaps_the_limits_have_made(
    gaps: list[tuple[int, int]], first: int | None, begins: int, removed: Removed, head: str, lost: str
) -> None:
    found = judge_gaps(cursor(gaps, first), begins, removed)
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
    assert replica_surely_lacks(cursor([(5, 9), (20, 30)], 1), info) is lacks


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
    assert decide_where_to_resume(cursor([(5, 9)], 1), following, info, filtered) == to


def test_a_gap_is_judged_where_the_range_began_behind_the_streams_first_message() -> None:
    skipped = Cursor.of(5, 10).skip(10)
    assert str(judge_gaps(skipped, 8, Removed.LOSS).lost) == str(gap(5, 8))
