"""Ranges cut into partitions, and limits shared among streams: pure arithmetic."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_nats.errors import NatsError
from spark_nats.jetstream.reading.direct import BATCH_BYTES
from spark_nats.jetstream.reading.ranges import ReadMethod
from spark_nats.kinds.streams.read.advance import share_limit_by_backlog
from spark_nats.kinds.streams.read.planning import (
    MAX_PACKED,
    MAX_SMALL,
    RANGE_COST,
    SeveralRanges,
    StreamRange,
    alternate_streams,
    cut_into_partitions,
    mark_small_for_gets,
    pack_into_partitions,
)


def ranges(*sizes, start=1):
    return [StreamRange(f"S{i}", "now", start, start + size) for i, size in enumerate(sizes)]


def sizes(partitions):
    return [partition.size for partition in partitions]


def test_a_small_stream_is_one_partition():
    assert cut_into_partitions(ranges(10), 1, 500) == ranges(10)


def test_no_partition_is_larger_than_the_limit():
    assert sizes(cut_into_partitions(ranges(1001), 1, 500)) == [333, 334, 334]


def test_there_are_at_least_as_many_partitions_as_asked_for():
    assert len(cut_into_partitions(ranges(10), 7, 500)) == 7
    assert len(cut_into_partitions(ranges(100, 1), 7, 500)) == 7


def test_there_are_never_more_partitions_than_sequences():
    assert sizes(cut_into_partitions(ranges(3), 7, 500)) == [1, 1, 1]


@pytest.mark.parametrize(
    ("size", "bytes_each", "small"),
    [
        (MAX_SMALL, 100.0, True),
        (MAX_SMALL + 1, 100.0, False),
        (10, BATCH_BYTES / 10, True),
        (11, BATCH_BYTES / 10, False),
        (10, None, False),
    ],
)
def test_a_partition_is_small_if_one_direct_get_brings_it(size, bytes_each, small):
    (found,) = mark_small_for_gets(ranges(size), {} if bytes_each is None else {"S0": bytes_each})
    assert (found.way is ReadMethod.ONE_GET_FIRST) is small


@pytest.mark.parametrize(
    ("limit", "filters", "small"),
    [(10, (), True), (1024, (), True), (1025, (), False), (10, ("a",), False)],
)
def test_the_first_messages_of_a_large_range_are_small_where_none_is_left_out(limit, filters, small):
    (whole,) = ranges(10**9)
    (found,) = mark_small_for_gets([replace(whole, filters=filters)], {"S0": 100.0}, limit)
    assert (found.way is ReadMethod.ONE_GET_FIRST) is small


def test_what_is_read_by_direct_gets_anyway_is_not_called_small():
    queue = StreamRange("Q", "now", 1, 11, way=ReadMethod.GETS)
    assert mark_small_for_gets([queue], {"Q": 1.0}) == [queue]


@pytest.mark.parametrize(
    ("ranges_", "min_new"), [(ranges(2**63), 1), (ranges(10**6), 10**6), (ranges(60_001, 40_000), 1)]
)
def test_more_partitions_than_spark_can_plan_are_refused_at_once(ranges_, min_new):
    with pytest.raises(NatsError, match="too many for Spark .* raise the option 'maxRecordsPerPartition'"):
        cut_into_partitions(ranges_, min_new, 1)


def test_the_larger_stream_gets_the_more_partitions():
    parts = cut_into_partitions(ranges(900, 100), 10, 10_000)
    assert [sum(part.stream == name for part in parts) for name in ("S0", "S1")] == [9, 1]


def test_tasks_begin_with_a_partition_of_each_stream():
    parts = cut_into_partitions(ranges(300, 100, 200), 1, 100)
    turns = alternate_streams([*parts, SeveralRanges(tuple(ranges(1, 2)))])
    assert [getattr(part, "stream", "") for part in turns] == ["S0", "S1", "S2", "", "S0", "S2", "S0"]
    assert [part for part in turns if getattr(part, "stream", "") == "S0"] == parts[:3]


def test_an_empty_range_has_no_partition():
    assert cut_into_partitions(ranges(0, 5, 0), 1, 500) == ranges(0, 5, 0)[1:2]
    assert cut_into_partitions([], 5, 500) == []


def test_a_partition_keeps_what_it_needs_of_its_stream():
    whole = StreamRange("S", "then", 5, 9, ("a.>",))
    assert cut_into_partitions([whole], 2, 500) == [
        StreamRange("S", "then", 5, 7, ("a.>",)),
        StreamRange("S", "then", 7, 9, ("a.>",)),
    ]


@given(
    st.lists(st.integers(0, 10_000), max_size=5),
    st.integers(1, 60),
    st.integers(1, 3000),
    st.integers(1, 10**12),
)
def test_partitions_cover_every_sequence_exactly_once(lengths, min_partitions, max_size, start):
    whole = ranges(*lengths, start=start)
    parts = cut_into_partitions(whole, min_partitions, max_size)
    for each in whole:
        own = [part for part in parts if part.stream == each.stream]
        if each.size:
            assert (own[0].start, own[-1].end) == (each.start, each.end)
            assert all(a.end == b.start for a, b in itertools.pairwise(own))
        else:
            assert own == []
    assert all(0 < part.size <= max_size for part in parts)
    assert len(parts) >= min(min_partitions, sum(lengths))


def test_a_limit_above_all_backlogs_changes_nothing():
    assert share_limit_by_backlog({"A": 5, "B": 0}, 5) == {"A": 5, "B": 0}


def test_a_limit_is_shared_in_proportion():
    assert share_limit_by_backlog({"A": 900, "B": 100}, 100) == {"A": 90, "B": 10}


def test_a_small_backlog_is_not_starved():
    assert share_limit_by_backlog({"A": 1_000_000, "B": 1}, 100)["B"] == 1


@given(st.dictionaries(st.sampled_from("ABCDE"), st.integers(0, 10**9)), st.integers(1, 10**6))
def test_shares_add_up_to_the_limit_and_leave_nobody_out(backlogs, limit):
    shares = share_limit_by_backlog(backlogs, limit)
    waiting = [name for name, size in backlogs.items() if size]
    assert all(shares[name] <= backlogs[name] for name in backlogs)
    assert all(shares[name] >= 1 for name in waiting)
    assert sum(shares.values()) == max(min(limit, sum(backlogs.values())), len(waiting))


def packs(partitions):
    return [each.ranges if isinstance(each, SeveralRanges) else (each,) for each in partitions]


def test_small_ranges_share_a_partition():
    many = ranges(*[1] * 1000)
    assert len(pack_into_partitions(many, 1, 500_000)) == -(-1000 // (MAX_PACKED // (1 + RANGE_COST)))
    assert pack_into_partitions(ranges(1), 1, 500_000) == ranges(1)


def test_ranges_of_a_stream_share_a_partition_only_in_the_order_of_their_sequences():
    queue = [StreamRange("Q", "now", 1, 11, (each,), way=ReadMethod.GETS) for each in ("a", "b")]
    other = StreamRange("S", "now", 1, 11)
    assert packs(pack_into_partitions([*queue, other], 1, 500_000)) == [(queue[0],), (queue[1], other)]
    pieces = [StreamRange("S", "now", 1, 11), StreamRange("S", "now", 11, 21)]
    assert packs(pack_into_partitions(pieces, 1, 500_000)) == [tuple(pieces)]


def test_a_large_range_has_a_partition_for_itself():
    small, large, last = ranges(10, MAX_PACKED, 10)
    assert pack_into_partitions([small, large, last], 1, 500_000) == [small, large, last]


@given(st.lists(st.integers(1, 100_000), max_size=40), st.integers(1, 40), st.integers(5_000, 200_000))
@example([1] * 60, 4, 500_000)
@example([100] * 10, 10, 500_000)
def test_packed_ranges_are_read_once_in_their_order_by_as_many_partitions_as_are_wanted(lengths, fewest, max_size):
    whole = cut_into_partitions(ranges(*lengths), 1, max_size)
    found = packs(pack_into_partitions(whole, fewest, max_size))
    assert [each for pack in found for each in pack] == whole
    assert len(found) >= min(fewest, len(whole))
    for pack in found:
        size = sum(each.size for each in pack)
        assert len(pack) == 1 or (size <= max_size and size + RANGE_COST * len(pack) <= MAX_PACKED)
