"""Offsets, and what the server says about them.

An offset holds for each stream the next sequence to read and when the stream was made:
``{"ORDERS": {"created": "2026-11-01T08:00:00Z", "next": 1201}}``. A stream that was deleted and made again has another
``created``, so it is not read from a place that means nothing in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from spark_nats.errors import DataLossError, NatsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import (
    StreamInfo,
    create_stream,
    first_sequence_at,
    last_sequence,
    next_sequence,
    stream_info,
)
from spark_nats.options import EARLIEST, LATEST, Offsets, ReadOptions
from spark_nats.source.planning import StreamRange, share

logger = logging.getLogger(__name__)

_GO_ON = "set the option 'failOnDataLoss' to false to go on with what there is"


class StreamOffset(NamedTuple):
    """Where to go on in one stream."""

    created: str
    next: int


Position = dict[str, StreamOffset]
"""The offset of a query: one entry for each stream."""


def to_json(position: Position) -> dict[str, Any]:
    """Return an offset as Spark keeps it. The order is fixed: Spark compares offsets as text."""
    return {name: {"created": position[name].created, "next": position[name].next} for name in sorted(position)}


def from_json(document: Mapping[str, Any]) -> Position:
    """Return an offset that Spark kept.

    Raises:
        NatsError: it was not written by this source.
    """
    try:
        return {name: StreamOffset(str(entry["created"]), int(entry["next"])) for name, entry in document.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NatsError(
            f"the checkpoint's offset {dict(document)!r} is not one of this source; was the checkpoint another query's?"
        ) from None


class OffsetReader:
    """Answers, on the driver, where streams begin and end. It asks the server once and serves one call of Spark's.

    Args:
        js: the JetStream API.
        options: what is read.
        searched: up to where streams were searched for messages that match the filters, after the query's offset, and
            had none. It is kept up to date. Whatever a stream loses there is no loss to the query.
    """

    def __init__(self, js: JetStream, options: ReadOptions, searched: Position | None = None) -> None:
        self._js = js
        self._options = options
        self._searched: Position = {} if searched is None else searched
        self._infos: dict[str, StreamInfo] = {}

    def _info(self, name: str) -> StreamInfo:
        """Return the state of a stream.

        Raises:
            StreamNotFoundError: it does not exist.
            UnsupportedStreamError: it cannot be read by sequence.
        """
        if name not in self._infos:
            config = self._options.create_stream
            info = create_stream(self._js, config) if config else stream_info(self._js, name)
            if info.retention != "limits":
                raise UnsupportedStreamError(
                    f"stream {name!r} has {info.retention} retention: its messages are removed when they are "
                    "acknowledged, so it cannot be read by sequence and replayed; read a stream with limits retention "
                    "that sources it"
                )
            self._infos[name] = info
        return self._infos[name]

    def _info_unless_deleted(self, name: str, begin: StreamOffset | None) -> StreamInfo | None:
        """Return the state of a stream that the query reads already; None when it is gone and may be."""
        try:
            return self._info(name)
        except StreamNotFoundError:
            if begin is None and self._options.fail_on_data_loss:
                raise
        where = f" from sequence {begin.next} on" if begin else ""
        self._lost(f"the stream {name!r} does not exist any more: whatever it held{where} is gone")
        return None

    def starting(self) -> Position:
        """Return where a new query begins."""
        return self._resolve(self._options.starting)

    def ending(self) -> Position:
        """Return where a batch ends: behind the last message that there is now, or earlier."""
        wanted = self._resolve(self._options.ending)
        return {name: min(wanted[name], offset) for name, offset in self.now().items()}

    def now(self) -> Position:
        """Return where every stream ends now. A missing stream is left out if that may be."""
        found = {name: self._info_unless_deleted(name, None) for name in self._options.streams}
        return {name: StreamOffset(info.created, info.last_sequence + 1) for name, info in found.items() if info}

    def _resolve(self, what: Offsets | datetime) -> Position:
        position = {}
        for name in self._options.streams:
            info = self._info(name)
            place = what[name] if isinstance(what, dict) else what
            if isinstance(place, datetime):
                sequence = first_sequence_at(self._js, name, place)
            elif place == EARLIEST:
                sequence = info.first_sequence
            elif place == LATEST:
                sequence = info.last_sequence + 1
            else:
                sequence = int(place)
            position[name] = StreamOffset(info.created, sequence)
        return position

    def latest(self, start: Position) -> Position:
        """Return where a query that has come to ``start`` could go on to.

        With a filter that is behind the last message that matches it, so that messages of other subjects do not make
        empty micro-batches.
        """
        position = {name: start[name] for name in self._options.streams if name in start}
        for name in self._options.streams:
            begin = start.get(name)
            info = self._info_unless_deleted(name, begin)
            if info is None:
                continue
            if begin is None or begin.created != info.created:
                position[name] = StreamOffset(info.created, self._last(info, info.first_sequence) + 1)
            else:
                position[name] = self._latest_after(begin, info)
        return position

    def _latest_after(self, begin: StreamOffset, info: StreamInfo) -> StreamOffset:
        if begin.next > info.last_sequence + 1:
            self._lost_the_end(info, begin.next)
            return begin._replace(next=info.last_sequence + 1)
        last = self._last(info, begin.next)
        if last >= begin.next:
            return begin._replace(next=last + 1)
        before = self._searched.get(info.name, begin)
        after = self._searched[info.name] = begin._replace(next=info.last_sequence + 1)
        if begin.next < info.first_sequence <= before.next:
            # The stream's limits have passed the offset without taking anything that matches. The offset follows, or a
            # restart would not know that nothing was lost.
            return after
        return begin

    def _last(self, info: StreamInfo, first: int) -> int:
        """Return the sequence of the last message of the query, if it is ``first`` or later."""
        if self._options.filters and info.last_sequence >= first:
            return last_sequence(self._js, info.name, self._options.filters)
        return info.last_sequence

    def limited(self, start: Position, latest: Position, limit: int) -> Position:
        """Return an offset between ``start`` and ``latest`` with at most ``limit`` sequences more than ``start``.

        With a filter the count begins at the first message that matches it: a rare subject is not searched for in
        micro-batches that have no rows.
        """
        begin = {name: self._first_to_read(name, start.get(name), end) for name, end in latest.items()}
        shares = share({name: max(0, end.next - begin[name]) for name, end in latest.items()}, limit)
        return {name: end._replace(next=min(end.next, begin[name] + shares[name])) for name, end in latest.items()}

    def _first_to_read(self, name: str, begin: StreamOffset | None, end: StreamOffset) -> int:
        info = self._infos.get(name)
        first = info.first_sequence if info else 1
        if begin is not None and begin.created == end.created:
            first = max(first, begin.next)
        if self._options.filters and first < end.next:
            first = next_sequence(self._js, name, first, self._options.filters) or end.next
        return first

    def ranges(self, start: Position, end: Position) -> list[StreamRange]:
        """Return what is to be read on the way from ``start`` to ``end``, checked against what there still is.

        Raises:
            DataLossError: some of it is gone, and ``failOnDataLoss`` is set.
        """
        found = []
        for name, stop in end.items():
            begin = start.get(name)
            if begin == stop:
                continue
            if info := self._info_unless_deleted(name, begin or stop):
                found.append(self._range(info, begin, stop))
        return [r for r in found if r.size > 0]

    def _range(self, info: StreamInfo, begin: StreamOffset | None, stop: StreamOffset) -> StreamRange:
        first, last = info.first_sequence, info.last_sequence
        if begin is not None and begin.created != info.created:
            self._lost(
                f"stream {info.name!r} was deleted and made again: the query had read it up to sequence "
                f"{begin.next - 1} when it was the stream created at {begin.created}, and the present one was created "
                f"at {info.created}; what the old one held behind that is gone"
            )
            begin = None
        wanted = first
        if begin is not None:
            searched = self._searched.get(info.name, begin)
            wanted = max(begin.next, searched.next if searched.created == begin.created else 0)
        end = stop.next if stop.created == info.created else last + 1
        if wanted > last + 1:
            self._lost_the_end(info, wanted)
            wanted = last + 1
        if wanted < min(first, end):
            self._lost(
                f"stream {info.name!r} begins at sequence {first}: sequences {wanted} to {min(first, end) - 1}, "
                "which the query had still to read, are gone (purged, or removed by the stream's limits)"
            )
        return StreamRange(info.name, info.created, max(wanted, min(first, end)), end, self._options.filters)

    def _lost_the_end(self, info: StreamInfo, wanted: int) -> None:
        self._lost(
            f"stream {info.name!r} ends at sequence {info.last_sequence}, but the query is to go on at {wanted}; "
            "the sequences in between do not exist (was the stream restored from an old backup?)"
        )

    def _lost(self, what: str) -> None:
        report_loss(what, self._options.fail_on_data_loss)


def still_there(js: JetStream, planned: StreamRange, fail_on_data_loss: bool) -> StreamRange | None:
    """Return what is left of a range that was planned a moment ago; None when nothing is.

    Raises:
        DataLossError: some of it is gone, and that is to be an error.
    """

    def lost(what: str) -> None:
        report_loss(what, fail_on_data_loss)

    wanted = f"sequences {planned.start} to {planned.end - 1}, which were about to be read, are gone"
    try:
        info = stream_info(js, planned.stream)
    except StreamNotFoundError:
        info = None
    if info is None:
        lost(f"the stream {planned.stream!r} was deleted; {wanted}")
        return None
    if info.created != planned.created:
        lost(f"the stream {planned.stream!r} was deleted and made again at {info.created}; {wanted}")
        return None
    if info.first_sequence > planned.start:
        first = min(info.first_sequence, planned.end)
        lost(
            f"stream {planned.stream!r} now begins at sequence {info.first_sequence}; sequences {planned.start} to "
            f"{first - 1}, which were about to be read, are gone (purged, or removed by the stream's limits)"
        )
        return replace(planned, start=first) if first < planned.end else None
    return planned


def report_loss(what: str, fail: bool) -> None:
    """Fail or warn, as the option ``failOnDataLoss`` says, about messages that are gone."""
    if fail:
        raise DataLossError(f"{what}; {_GO_ON}")
    logger.warning("%s; the query goes on with what there is", what)
