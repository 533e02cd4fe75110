"""Filters and limits that narrow what a batch reads: fewer subjects asked for, fewer sequences planned, fewer read.

Spark evaluates every filter again afterwards, so one that is used here only in part, or not at all, is still exact. A
limit it pushes down only where it evaluates none; and it applies that again, too.

Spark refuses a reader with ``pushFilters`` unless ``spark.sql.python.filterPushdown.enabled`` is set, and one with
``pushLimit`` unless ``spark.sql.python.limitPushdown.enabled`` is. So there is a class for each choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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
from spark_nats.jetstream.messages import first_sequence_since
from spark_nats.jetstream.streams import stream_info
from spark_nats.options.read import ReadOptions
from spark_nats.protocol.documents import EPOCH
from spark_nats.protocol.subjects import filter_violation, matches, overlap, subject_violation
from spark_nats.source.stream.looks import Memory
from spark_nats.source.stream.planning import StreamRange
from spark_nats.source.stream.readers import NatsReader

_ENDLESS = 1 << 64
# By filter, how far behind its value that begins which it lets through, and how far behind it ends.
_BOUNDS: dict[type[Filter], tuple[int | None, int | None]] = {
    EqualTo: (0, 1),
    GreaterThan: (1, None),
    GreaterThanOrEqual: (0, None),
    LessThan: (None, 0),
    LessThanOrEqual: (None, 1),
}


@dataclass
class _Span:
    """Numbers that filters let through, from ``first`` up to before ``end``."""

    first: int = -_ENDLESS
    end: int = _ENDLESS

    def narrow(self, by: Filter, value: int) -> None:
        first, end = _BOUNDS[type(by)]
        if first is not None:
            self.first = max(self.first, value + first)
        if end is not None:
            self.end = min(self.end, value + end)


class NatsPushdownReader(NatsReader):
    """A batch reader that uses filters on ``subject``, ``sequence`` and ``timestamp``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._nothing = False
        self._sequences = _Span()
        self._times = _Span()  # in microseconds since 1970, the resolution of Spark's timestamps

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
                case EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
                    match each.attribute, each.value:
                        case ("sequence",), int(value):
                            self._sequences.narrow(each, value)
                        case ("timestamp",), datetime() as value:
                            time = (value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH
                            self._times.narrow(each, time // timedelta(microseconds=1))
        return filters

    def _only_subjects(self, subjects: list[str]) -> None:
        if any(subject_violation(subject) for subject in subjects):
            return  # no subject to ask the server for; Spark will find that nothing equals it
        wanted = self._options.filters
        self._narrow(tuple(sorted({s for s in subjects if not wanted or any(matches(w, s) for w in wanted)})))

    def _only_below(self, prefix: str) -> None:
        """Narrow to the tokens that a prefix has whole."""
        tokens, dot, _ = prefix.rpartition(".")
        below = f"{tokens}.>"
        if not dot or filter_violation(below) or subject_violation(tokens):
            return
        wanted = self._options.filters
        self._narrow(tuple(w for w in wanted if overlap(w, below)) if wanted else (below,))

    def _narrow(self, filters: tuple[str, ...]) -> None:
        self._nothing |= not filters
        if filters:
            self._options = replace(self._options, filters=filters)

    def partitions(self) -> list[InputPartition]:
        """Plan the read: only the sequences that the filters let through."""
        return [] if self._nothing else super().partitions()

    def _ranges(self, memory: Memory) -> list[StreamRange]:
        return [self._clip(each) for each in super()._ranges(memory)]

    def _clip(self, whole: StreamRange) -> StreamRange:
        start = min(max(whole.start, self._sequences.first), whole.end)
        end = max(start, min(whole.end, self._sequences.end))
        since, until = self._times.first, self._times.end
        if since > -_ENDLESS or until < _ENDLESS:
            with borrow(self._options.connection) as connection:
                js = JetStream(connection, self._options.api_prefix)
                if since > -_ENDLESS:
                    first = first_sequence_since(js, whole.stream, since * 1000, start, end)
                    # What limits have removed during the search is for the reader to find missing.
                    if stream_info(js, whole.stream).first_sequence <= start:
                        start = first
                if until < _ENDLESS:
                    end = first_sequence_since(js, whole.stream, until * 1000, start, end)
        return replace(whole, start=start, end=end)


class NatsLimitReader(NatsReader):
    """A batch reader that uses a limit."""

    def pushLimit(self, limit: int) -> bool:
        """Take note of a limit; tell whether it is used. One task reads it, so where it is large all are read."""
        most = self._options.max_records_per_partition if self._options.limit is None else self._options.limit
        if limit > most:
            return False
        self._options = replace(self._options, limit=limit)
        return True


class NatsPushdownLimitReader(NatsLimitReader, NatsPushdownReader):
    """A batch reader that uses both filters and a limit."""


def pushdown_reader(options: ReadOptions, schema: StructType) -> NatsReader:
    """Return the reader that uses what the options choose."""
    if not options.limit_pushdown:
        return NatsPushdownReader(options, schema)
    return (NatsPushdownLimitReader if options.filter_pushdown else NatsLimitReader)(options, schema)
