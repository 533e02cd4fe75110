"""Filters that narrow what a batch reads: fewer subjects asked for, fewer sequences planned.

Spark evaluates every filter again afterwards, so one that is used here only in part, or not at all, is still exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from spark_nats.client.pool import borrow
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import first_sequence_since, stream_info
from spark_nats.options.read import ReadOptions
from spark_nats.protocol.documents import EPOCH
from spark_nats.protocol.subjects import filter_violation, matches, overlap, subject_violation
from spark_nats.source.stream.planning import StreamRange
from spark_nats.source.stream.readers import NatsReader


class NatsPushdownReader(NatsReader):
    """A batch reader that uses filters on ``subject``, ``sequence`` and ``timestamp``.

    A class of its own because Spark refuses a reader with ``pushFilters`` unless
    ``spark.sql.python.filterPushdown.enabled`` is set.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._nothing = False
        self._first: int | None = None  # lowest sequence that a filter lets through
        self._end: int | None = None  # first sequence above all that filters let through
        # Microseconds since 1970, the resolution of Spark's timestamps. As times they could not go one beyond the last.
        self._since: int | None = None
        self._until: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take note of the filters. All are returned, for Spark to evaluate them too."""
        for each in filters:
            match each:
                case EqualTo(("subject",), str(subject)):
                    self._only_subjects([subject])
                case In(("subject",), values):
                    self._only_subjects([value for value in values if isinstance(value, str)])
                case StringStartsWith(("subject",), str(prefix)):
                    self._only_below(prefix)
                case EqualTo(("sequence",), int(value)):
                    self._sequences(value, value + 1)
                case GreaterThan(("sequence",), int(value)):
                    self._sequences(value + 1, None)
                case GreaterThanOrEqual(("sequence",), int(value)):
                    self._sequences(value, None)
                case LessThan(("sequence",), int(value)):
                    self._sequences(None, value)
                case LessThanOrEqual(("sequence",), int(value)):
                    self._sequences(None, value + 1)
                case EqualTo(("timestamp",), datetime() as value):
                    self._times(_microseconds(value), _microseconds(value) + 1)
                case GreaterThan(("timestamp",), datetime() as value):
                    self._times(_microseconds(value) + 1, None)
                case GreaterThanOrEqual(("timestamp",), datetime() as value):
                    self._times(_microseconds(value), None)
                case LessThan(("timestamp",), datetime() as value):
                    self._times(None, _microseconds(value))
                case LessThanOrEqual(("timestamp",), datetime() as value):
                    self._times(None, _microseconds(value) + 1)
        return filters

    def _only_subjects(self, subjects: list[str]) -> None:
        if any(subject_violation(subject) for subject in subjects):
            return  # no subject to ask the server for; Spark will find that nothing equals it
        wanted = self._options.filters
        chosen = tuple(sorted({s for s in subjects if not wanted or any(matches(w, s) for w in wanted)}))
        self._nothing |= not chosen
        self._narrow(chosen)

    def _only_below(self, prefix: str) -> None:
        """Narrow to the tokens that a prefix has whole."""
        tokens, dot, _ = prefix.rpartition(".")
        below = f"{tokens}.>"
        if not dot or filter_violation(below) or subject_violation(tokens):
            return
        if not self._options.filters:
            self._narrow((below,))
        else:
            chosen = tuple(w for w in self._options.filters if overlap(w, below))
            self._nothing |= not chosen
            self._narrow(chosen)

    def _narrow(self, filters: tuple[str, ...]) -> None:
        if filters:
            self._options = replace(self._options, filters=filters)

    def _sequences(self, first: int | None, end: int | None) -> None:
        self._first = _largest(self._first, first)
        self._end = _smallest(self._end, end)

    def _times(self, since: int | None, until: int | None) -> None:
        self._since = _largest(self._since, since)
        self._until = _smallest(self._until, until)

    def partitions(self) -> list[InputPartition]:
        """Plan the read: only the sequences that the filters let through."""
        return [] if self._nothing else super().partitions()

    def _ranges(self) -> list[StreamRange]:
        return [self._clip(each) for each in super()._ranges()]

    def _clip(self, whole: StreamRange) -> StreamRange:
        start = min(max(whole.start, self._first or 0), whole.end)
        end = max(start, min(whole.end, self._end if self._end is not None else whole.end))
        if self._since is not None or self._until is not None:
            with borrow(self._options.connection) as connection:
                js = JetStream(connection, self._options.api_prefix)
                if self._since is not None:
                    since = first_sequence_since(js, whole.stream, self._since * 1000, start, end)
                    # What limits have removed during the search is for the reader to find missing.
                    if stream_info(js, whole.stream).first_sequence <= start:
                        start = since
                if self._until is not None:
                    end = first_sequence_since(js, whole.stream, self._until * 1000, start, end)
        return replace(whole, start=start, end=end)


def _microseconds(time: datetime) -> int:
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def _largest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _smallest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
