"""Offsets as values, and as the JSON in which Spark keeps them. This module does not need PySpark.

An offset holds for each stream the next sequence to read, when the stream was created, and when the message before that
sequence was stored: ``{"ORDERS": {"created": "2026-11-01T08:00:00Z", "next": 1201, "timestamp": "2026-11-02T…Z"}}``.
:mod:`~spark_nats.jetstream.positions` explains why it holds all three. An offset where a query begins may also hold
``earliest``. Where single messages of the stream may go, it holds ``latest`` too: no message before ``next`` was stored
later.

The offset that ends a micro-batch also holds where that micro-batch begins: ``since``, where the query was, and
``first``, the first sequence to read. Between the two there is nothing for the query. So a micro-batch that runs again,
after any restart, is planned from Spark's checkpoint alone, and has the same partitions. Earlier versions wrote
``from`` instead of ``first``, and planned a partition for each range. ``before`` is when the message before ``since``
was stored, so that a stream that has lost its end can be compared there too.

``subjects`` are the filters under which the position was reached. It says nothing of messages of other subjects.

This is version 1, which is not written: a later form of offsets has its number as ``version``, where this one has
streams. An offset with such a number, or with a field that this version does not know, was written by a later version
of the package. It is refused, because what is unknown may be what keeps rows from being lost.

Spark writes whole offsets, several for each micro-batch. So an offset of many streams has short entries
(:mod:`~spark_nats.options.short_forms`): a third as many bytes, and less time to parse. One of its
entries is long, to note the subjects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

from spark_nats.errors import NatsError
from spark_nats.jetstream.positions import Fingerprint, Position
from spark_nats.kinds.streams.read.conditions import OFFSET_OF_ANOTHER, OFFSET_OF_LATER_VERSION
from spark_nats.options.short_forms import ShortEntry, encode_short_entry, parse_short_entry
from spark_nats.options.values import FIELDS_OF_OFFSETS
from spark_nats.protocol.documents import (
    format_time,
    printable,
    sequence_at,
    string_at,
    strings_at,
    time_at,
    value_or_none_at,
)
from spark_nats.protocol.subjects import name_violation

VERSION = "version"
"""What a later form of offsets calls its number, in the place of a stream's name."""
SUBJECTS = "subjects"
"""What an entry calls the filters under which its position was reached; it has none if all subjects were read."""
_MAX_NOTED = 2_000  # characters of filters; more are not noted in each offset
SHORT_FROM = 32
"""Minimum number of streams in an offset with short entries; the entries of fewer are easier to read."""
_KNOWN = 1 << 14  # short entries that are not parsed again: most streams have the same one in the next offset


class OffsetEntry(NamedTuple):
    """One stream's part of a micro-batch, as an offset's entry for the stream; empty where a query begins.

    Attributes:
        since: sequence where the query was before, or ``first`` if the stream is new to it; None where it begins.
        first: the first sequence to read.
        end: where the query continues after the micro-batch.
    """

    since: int | None
    first: int
    end: Position

    @property
    def size(self) -> int:
        """Number of sequences to read."""
        return self.end.next - self.first

    def shortened_to(self, end: Position) -> OffsetEntry:
        """Return the part, shortened to end at ``end``."""
        return self._replace(first=min(self.first, end.next), end=end)

    def to_json(self, short: bool = False) -> dict[str, Any] | str:
        """Return the JSON entry that Spark keeps, in its short form if it has one and that is asked for."""
        end, before = self.end, self._time_before
        if short and not end.earliest:
            numbers = ShortEntry(end.created, end.next, end.time, self.since, self.first, end.latest, before)
            if (text := encode_short_entry(numbers)) is not None:
                return text
        entry: dict[str, Any] = {"created": end.created, "next": end.next}
        if end.time is not None:
            entry["timestamp"] = format_time(end.time)
        if self.since is not None:
            entry |= {"since": self.since, "first": self.first}
        times = {"latest": end.latest, "before": before}
        entry |= {name: format_time(time) for name, time in times.items() if time is not None}
        if end.earliest:
            entry["earliest"] = True
        return entry

    @property
    def _time_before(self) -> int | None:
        """When the message before ``since`` was stored; None where it is not noted."""
        before = self.end.before
        return before.time if before is not None and before.sequence + 1 == self.since else None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any] | str) -> OffsetEntry:
        """Return the part of a micro-batch in a JSON entry that Spark kept.

        Raises:
            AttributeError, TypeError, ValueError: this package has not written the entry.
        """
        if isinstance(entry, str):
            return _parse_short_entry(entry)
        since = first = None
        if "since" in entry:
            since, first = sequence_at(entry, "since"), sequence_at(entry, "from" if "from" in entry else "first")
        time, latest, before = (
            time_at(entry, name) if name in entry else None for name in ("timestamp", "latest", "before")
        )
        end = Position(string_at(entry, "created"), sequence_at(entry, "next"), time, entry.get("earliest") is True)
        strings_at(entry, SUBJECTS)
        end = end._replace(latest=latest, before=_fingerprint_before(since, before))
        return cls(since, end.next if first is None else first, end)


@lru_cache(_KNOWN)
def _parse_short_entry(text: str) -> OffsetEntry:
    created, following, time, since, first, latest, before = parse_short_entry(text)
    end = Position(created, following, time, latest=latest, before=_fingerprint_before(since, before))
    return OffsetEntry(since, following if first is None else first, end)


def _fingerprint_before(since: int | None, time: int | None) -> Fingerprint | None:
    return None if since is None or time is None else Fingerprint(since - 1, time)


def entry_beginning_at(place: Position) -> OffsetEntry:
    """Return the entry of a query that begins at a position."""
    return OffsetEntry(None, place.next, place)


QueryOffset = dict[str, OffsetEntry]
"""The offset of a query: one entry for each stream."""


def to_json(
    offset: QueryOffset,
    filters: Sequence[str] = (),
    start: Mapping[str, Any] = {},
    begin: Mapping[str, OffsetEntry] = {},
) -> dict[str, Any]:
    """Return the JSON of an offset. The order of streams is fixed, because Spark compares offsets as text.

    Args:
        offset: the offset.
        filters: those under which the query reads. They are noted in entries; of many streams, in one of them.
        start: JSON of the offset from which the query advances. Its notes stay where a stream has nothing new.
        begin: the offset in ``start``.
    """
    found = dict[str, Any]()
    note = list(filters) if sum(map(len, filters)) <= _MAX_NOTED else []
    is_short = len(offset) >= SHORT_FROM
    for name in sorted(offset):
        is_same = offset[name] == begin.get(name)
        noted = value_or_none_at(start, name, SUBJECTS) if is_same else note
        found[name] = offset[name].to_json(short=is_short and not noted)
        if noted:
            found[name][SUBJECTS] = noted
        if is_short and not is_same:
            note = []
    return found


def from_json(document: Mapping[str, Any]) -> QueryOffset:
    """Return the offset of a JSON document that Spark kept.

    Raises:
        NatsError: this package has not written the document, or a later version of it.
    """
    fields = {field for entry in document.values() if isinstance(entry, Mapping) for field in entry}
    # What has none of our fields is of another source.
    check_not_later_version(document, fields - FIELDS_OF_OFFSETS if fields & FIELDS_OF_OFFSETS else set())
    try:
        for name in document:
            if violation := name_violation(name):
                raise ValueError(f"{name!r} cannot name a stream: it {violation}")
        return {name: OffsetEntry.from_json(entry) for name, entry in document.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise NatsError(OFFSET_OF_ANOTHER(offset=printable(repr(document)), reason=error)) from None


def differing_noted_subjects(offset: Mapping[str, Any], filters: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return under which subjects the streams of an offset were read, if it notes others than the query's now.

    In an offset of many streams, one entry notes them for those that have short ones.
    """
    found = {name: tuple(entry[SUBJECTS]) for name, entry in offset.items() if SUBJECTS in entry}
    found = {name: read for name, read in found.items() if sorted(read) != sorted(filters)}
    others = next(iter(found.values()), ())
    return {name: found.get(name, others) for name, entry in offset.items() if name in found or isinstance(entry, str)}


def check_not_later_version(document: Mapping[str, Any], unknown: Set[str]) -> None:
    """Refuse an offset that a later version of this package has written, of streams or of core NATS.

    Args:
        document: the offset in JSON.
        unknown: the fields that this version does not know.

    Raises:
        NatsError: the offset has the number of another form, or an unknown field.
    """
    what = [f"'{VERSION}' {document[VERSION]}"] if isinstance(document.get(VERSION), int) else []
    what += sorted(map(repr, unknown - {VERSION}))
    if what:
        shown = printable(repr(dict(document)))
        raise NatsError(OFFSET_OF_LATER_VERSION(offset=shown, what=", ".join(what)))
