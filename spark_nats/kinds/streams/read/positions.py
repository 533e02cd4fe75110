"""Offsets, as values and as the JSON in which Spark keeps them. PySpark is not needed for them.

An offset holds for each stream the next sequence to read, when the stream was made, and when the message before that
sequence was stored: ``{"ORDERS": {"created": "2026-11-01T08:00:00Z", "next": 1201, "timestamp": "2026-11-02T…Z"}}``.
Why it has all three, :mod:`~spark_nats.jetstream.positions` says.

The offset that ends a micro-batch also says where that one begins: ``since``, where the query had come to, and
``from``, the first sequence to be read; what lies between has nothing for the query. So a micro-batch that is run
again, after whatever restart, is planned from what Spark's checkpoint holds and from nothing else, and has the same
partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_nats.errors import NatsError
from spark_nats.jetstream.positions import Position
from spark_nats.kinds.streams.read.conditions import OFFSET_OF_ANOTHER
from spark_nats.protocol.documents import printable, sequence_at, string_at, text_of, time_at
from spark_nats.protocol.subjects import name_violation


class Batch(NamedTuple):
    """What a micro-batch has of a stream; nothing where a query begins.

    Attributes:
        since: where the query had come to before; None where it begins.
        first: first sequence that is read.
        end: where the query goes on behind it.
    """

    since: int | None
    first: int
    end: Position

    @property
    def size(self) -> int:
        """How many sequences it has."""
        return self.end.next - self.first

    def up_to(self, end: Position) -> Batch:
        """Return the micro-batch that goes no further."""
        return self._replace(first=min(self.first, end.next), end=end)

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        entry: dict[str, Any] = {"created": self.end.created, "next": self.end.next}
        if self.end.time is not None:
            entry["timestamp"] = text_of(self.end.time)
        if self.since is not None:
            entry |= {"since": self.since, "from": self.first}
        if self.end.earliest:
            entry["earliest"] = True
        return entry

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Batch:
        """Return what Spark kept.

        Raises:
            AttributeError, TypeError, ValueError: this source has not written it.
        """
        since, first = (sequence_at(entry, "since"), sequence_at(entry, "from")) if "since" in entry else (None, None)
        time = time_at(entry, "timestamp") if "timestamp" in entry else None
        end = Position(string_at(entry, "created"), sequence_at(entry, "next"), time, entry.get("earliest") is True)
        return cls(since, end.next if first is None else first, end)


def beginning_at(place: Position) -> Batch:
    """Return a place as one where a query begins."""
    return Batch(None, place.next, place)


QueryOffset = dict[str, Batch]
"""The offset of a query: one entry for each stream."""


def to_json(offset: QueryOffset) -> dict[str, Any]:
    """Return an offset as Spark keeps it. The order is fixed: Spark compares offsets as text."""
    return {name: offset[name].to_json() for name in sorted(offset)}


def from_json(document: Mapping[str, Any]) -> QueryOffset:
    """Return an offset that Spark kept.

    Raises:
        NatsError: it was not written by this source.
    """
    try:
        for name in document:
            if violation := name_violation(name):
                raise ValueError(f"{name!r} cannot name a stream: it {violation}")
        return {name: Batch.from_json(entry) for name, entry in document.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise NatsError(OFFSET_OF_ANOTHER(offset=printable(repr(document)), reason=error)) from None
