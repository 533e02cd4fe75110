"""Where a query ends that reads what there was at its start (``Trigger.AvailableNow``)."""

from __future__ import annotations

from spark_nats.jetstream.positions import Position
from spark_nats.kinds.streams.read.advance import entry_within_bound
from spark_nats.kinds.streams.read.positions import OffsetEntry

OLD = OffsetEntry(since=90, first=100, end=Position("then", 150, time=1))
"""Where a query has come to, by a micro-batch that began at 100."""


def at(sequence: int) -> Position:
    """As much of a stream as there was up to a sequence."""
    return Position("then", sequence + 1, time=2)


def test_a_query_goes_no_further_than_its_target() -> None:
    latest = OffsetEntry(since=150, first=150, end=Position("then", 301, time=3))
    bounded = entry_within_bound(latest, at(200), OLD)
    assert bounded is not None
    assert bounded.end.next == 201


def test_a_query_that_has_nothing_to_read_stays_where_it_is_though_its_target_lies_before() -> None:
    """As where a leader has set it that did not know yet what the query had read."""
    assert entry_within_bound(OLD, at(120), OLD) == OLD


def test_a_query_that_has_more_to_read_does_not_go_back_to_a_target_before() -> None:
    latest = OffsetEntry(since=150, first=150, end=Position("then", 301, time=3))
    assert entry_within_bound(latest, at(120), OLD) == OLD
