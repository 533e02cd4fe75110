"""Offsets, and what the server says about them.

An offset holds for each stream the next sequence to read and when the stream was made:
``{"ORDERS": {"created": "2026-11-01T08:00:00Z", "next": 1201}}``. A stream that was deleted and made again has another
``created``, so it is not read from a place that means nothing in it.

The offset that ends a micro-batch also says where that one begins: ``since``, where the query had come to, and
``from``, the first sequence to be read; what lies between has nothing for the query. So a micro-batch that is run
again, after whatever restart, is planned from what Spark's checkpoint holds and from nothing else, and has the same
partitions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from spark_nats.client.retrying import may_pass
from spark_nats.errors import (
    JetStreamError,
    NatsError,
    NatsTimeoutError,
    OptionError,
    StreamNotFoundError,
    UnsupportedStreamError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.doubts import Doubts
from spark_nats.jetstream.holding import Hold, check_direct
from spark_nats.jetstream.keyvalue import naming_bucket
from spark_nats.jetstream.matching import Selection, matches
from spark_nats.jetstream.measuring import measure
from spark_nats.jetstream.streams import (
    LIMITS,
    WORK_QUEUE,
    StreamInfo,
    create_stream,
    first_sequence_at,
    last_sequence,
    next_sequence,
    stream_info,
)
from spark_nats.options.losses import report_loss
from spark_nats.options.read import ReadOptions
from spark_nats.options.values import EARLIEST, LATEST, Offsets
from spark_nats.source.stream.planning import StreamRange, of_queue, share

logger = logging.getLogger(__name__)


class StreamOffset(NamedTuple):
    """Where to go on in one stream.

    Attributes:
        created: when the stream was made.
        next: the next sequence to read.
        since: where the query had come to before the micro-batch that ends here; None where none does.
        first: first sequence of that micro-batch.
        earliest: whether a query begins here with whatever there is, so that what is removed before it was read is no
            loss.
        waits_for: where a query's progress shows how far a stream reaches: how many new sequences the query waits for
            between two micro-batches; None where it waits for none.
    """

    created: str
    next: int
    since: int | None = None
    first: int | None = None
    earliest: bool = False
    waits_for: int | None = None

    @property
    def size(self) -> int:
        """How many sequences the micro-batch has that ends here."""
        return 0 if self.first is None else self.next - self.first

    def up_to(self, end: int) -> StreamOffset:
        """Return the offset of a micro-batch that goes no further than ``end``."""
        first = None if self.first is None else min(self.first, end)
        return self._replace(next=end, first=first)

    def as_reported(self, waits_for: int | None) -> StreamOffset:
        """Return it as a query's progress shows how far a stream reaches."""
        return StreamOffset(self.created, self.next, waits_for=waits_for)

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        entry: dict[str, Any] = {"created": self.created, "next": self.next}
        if self.since is not None:
            entry |= {"since": self.since, "from": self.first}
        if self.earliest:
            entry["earliest"] = True
        if self.waits_for is not None:
            entry["waits_for"] = self.waits_for
        return entry

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> StreamOffset:
        """Return what Spark kept.

        Raises:
            KeyError, TypeError, ValueError: this source has not written it.
        """
        since, first = (int(entry["since"]), int(entry["from"])) if "since" in entry else (None, None)
        waits_for = int(entry["waits_for"]) if "waits_for" in entry else None
        return cls(str(entry["created"]), int(entry["next"]), since, first, entry.get("earliest") is True, waits_for)


QueryOffset = dict[str, StreamOffset]
"""The offset of a query: one entry for each stream."""


def to_json(position: QueryOffset) -> dict[str, Any]:
    """Return an offset as Spark keeps it. The order is fixed: Spark compares offsets as text."""
    return {name: position[name].to_json() for name in sorted(position)}


def from_json(document: Mapping[str, Any]) -> QueryOffset:
    """Return an offset that Spark kept.

    Raises:
        NatsError: it was not written by this source.
    """
    try:
        return {name: StreamOffset.from_json(entry) for name, entry in document.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NatsError(
            f"the checkpoint's offset {dict(document)!r} is not one of this source; was the checkpoint another query's?"
        ) from None


def new_in(start: QueryOffset, end: QueryOffset) -> int:
    """Return how many sequences a micro-batch has."""
    return sum(stop.size for name, stop in end.items() if stop != start.get(name))


def planned(start: QueryOffset, end: QueryOffset, filters: tuple[str, ...]) -> list[StreamRange]:
    """Return what a micro-batch reads: a function of its two offsets, and of nothing that a restart forgets."""
    found = []
    for name, stop in end.items():
        begin = start.get(name)
        if begin == stop:
            continue
        first = stop.next if stop.first is None else stop.first
        head_may_go = begin is None or begin.earliest
        # A start beyond ``since`` is that of a new query, which Spark looks up again when the first micro-batch is run
        # again; one before it is that of a query whose offsets were not all kept.
        if begin is not None and begin.created == stop.created and (stop.since is None or begin.next < stop.since):
            first = begin.next
        found.append(StreamRange(name, stop.created, first, stop.next, filters, head_may_go))
    return [r for r in found if r.size > 0]


def as_kept(whole: StreamRange, retention: str | None, peek: bool = False) -> list[StreamRange]:
    """Return how a range is read of a stream with such a retention, or of one with limits if that is not known.

    Without filters nothing leaves it that the query's durable consumer holds. With filters the removal of a single
    message cannot be told from that of one which only others are interested in; and who only peeks holds nothing.
    """
    whole = replace(whole, shared=_is_shared(retention, whole.filters, peek))
    return of_queue(whole) if retention == WORK_QUEUE else [whole]


def _is_shared(retention: str | None, filters: tuple[str, ...], peek: bool) -> bool:
    return retention not in (LIMITS, None) and (peek or bool(filters))


class OffsetReader:
    """Answers, on the driver, where streams begin and end. It asks the server once and serves one call of Spark's.

    Args:
        js: the JetStream API.
        options: what is read.
        doubts: what earlier calls were told to be gone.
        holds: by stream the durable consumers that hold messages for the query; none where it does not consume.
        selection: which streams are read, as far as earlier calls have found out.

    Attributes:
        has_lost: whether it has said that something is gone.

    Raises:
        NatsError: it could not be asked which streams match.
    """

    def __init__(
        self,
        js: JetStream,
        options: ReadOptions,
        doubts: Doubts,
        holds: Mapping[str, Hold] = {},
        selection: Selection | None = None,
    ) -> None:
        self._js = js
        self._options = options
        self._doubts = doubts
        self._holds = holds
        self._infos: dict[str, StreamInfo] = {}
        self._selection = selection or Selection(options.streams, options.pattern)
        self._selection.look(js)
        self.has_lost = False

    def _info(self, name: str) -> StreamInfo:
        """Return the state of a stream.

        Raises:
            StreamNotFoundError: it does not exist.
            UnsupportedStreamError: it cannot be read by sequence, or not like this.
            ConsumerConflictError: the query cannot have its durable consumer.
        """
        if name not in self._infos:
            config, bucket = self._options.create_stream, self._options.bucket
            with naming_bucket(self._js, bucket) if bucket else nullcontext():
                info = create_stream(self._js, config) if config else stream_info(self._js, name)
            if name in self._holds:
                self._holds[name].take(self._js, info)
            elif info.retention != LIMITS:
                self._check_may_be_read(info)
            self._infos[name] = info
        return self._infos[name]

    def _check_may_be_read(self, info: StreamInfo) -> None:
        """Check that a stream whose messages go when they are acknowledged may be read without doing so."""
        if not self._options.peek:
            if self._options.pattern is not None:
                self._refuse_matches(info)
            way = (
                "set the option 'consume' to true, and what the query has processed is removed"
                if self._options.ending is None
                else "set the option 'peek' to true to read what it holds and remove nothing"
            )
            raise UnsupportedStreamError(
                f"stream {info.name!r} has {info.retention} retention: its messages are removed when they are "
                f"acknowledged; {way}, or read a stream with limits retention that sources it"
            )
        if info.retention == WORK_QUEUE:
            check_direct(self._js, info)

    def _refuse_matches(self, info: StreamInfo) -> NoReturn:
        """Name all streams at once that match and cannot be read."""
        refused = {info.name}
        for name in self._selection.names:
            with suppress(NatsError):
                if stream_info(self._js, name).retention != LIMITS:
                    refused.add(name)
        names = sorted(refused)
        way = "" if self._options.ending is None else "; set the option 'peek' to true to read what they hold"
        raise UnsupportedStreamError(
            f"the option 'streamPattern' matches {', '.join(names)}, whose messages are removed when they are "
            f"acknowledged (workqueue or interest retention); begin it with (?!({'|'.join(map(re.escape, names))})$) "
            f"to leave them out{way}"
        )

    def _info_if_there(self, name: str) -> StreamInfo | None:
        """Return the state of a stream; None when it has gone since it was found to match.

        Raises:
            StreamNotFoundError: it was named, and does not exist.
        """
        try:
            return self._info(name)
        except StreamNotFoundError:
            if self._options.pattern is None:
                raise
            self._selection.leave_out(name)
            return None

    def _info_unless_deleted(self, name: str, begin: StreamOffset | None) -> StreamInfo | None:
        """Return the state of a stream that the query reads already; None when it is gone and may be."""
        try:
            return self._info(name) if begin is not None else self._info_if_there(name)
        except StreamNotFoundError:
            if begin is None and self._options.fail_on_data_loss:
                raise
        if begin is not None:
            self._doubts.confirm(self._js, name, f"the stream {name!r} does not exist any more")
        # A stream that is named is looked for again and again; one that was found leaves the query.
        if self._options.fail_on_data_loss or self._options.pattern is not None or self._doubts.is_news(name):
            where = f" from sequence {begin.next} on" if begin else ""
            self._lost(f"the stream {name!r} does not exist any more: whatever it held{where} is gone")
        return None

    def starting(self) -> QueryOffset:
        """Return where a new query begins.

        Raises:
            OptionError: a work queue is to be consumed from elsewhere than its beginning; or a stream has nothing since
                the time at which the query is to begin, and that is an error.
        """
        position = self._resolve(self._options.starting, EARLIEST)
        if self._options.starting_must_exist:
            self._check_exists(position)
        for name, hold in self._holds.items():
            hold.begins(self._js)
            first = self._info(name).first_sequence
            if hold.retention == WORK_QUEUE and position[name].next > first:
                raise OptionError(
                    f"the query is to begin with sequence {position[name].next} of the work queue {name!r}, and what "
                    f"lies before it, from {first} on, would be removed unread; leave 'startingOffsets' and "
                    "'startingTimestamp' out"
                )
        return position

    def _check_exists(self, position: QueryOffset) -> None:
        for name, offset in position.items():
            if next_sequence(self._js, name, offset.next, self._options.filters or (">",)) is None:
                what = f"bucket {self._options.bucket!r}" if self._options.bucket else f"stream {name!r}"
                raise OptionError(
                    f"{what} has nothing for the query that was stored at {self._options.starting} or later, and the "
                    "option 'startingOffsetsByTimestampStrategy' is error; set it to latest to begin with what comes, "
                    "or 'startingTimestamp' to an earlier time"
                )

    def ending(self) -> QueryOffset:
        """Return where a batch ends: behind the last message that there is now, or earlier."""
        if self._options.ending is None:
            return self.now()
        wanted = self._resolve(self._options.ending, LATEST)
        return {name: min(wanted[name], offset, key=lambda o: o.next) for name, offset in self.now().items()}

    def now(self) -> QueryOffset:
        """Return where every stream ends now. A missing stream is left out if that may be."""
        found = {name: self._info_unless_deleted(name, None) for name in self._selection.names}
        return {name: StreamOffset(info.created, info.last_sequence + 1) for name, info in found.items() if info}

    def _resolve(self, what: Offsets | datetime, otherwise: str) -> QueryOffset:
        """Return places in the streams, ``otherwise`` in those that match a pattern and that ``what`` does not name."""
        position = {}
        infos = [info for name in self._selection.names if (info := self._info_if_there(name))]
        if isinstance(what, dict) and (missing := sorted(set(what) - set(self._selection.names))):
            raise OptionError(
                f"the starting or ending offsets name {', '.join(missing)}, but no such stream matches the option "
                "'streamPattern'"
            )
        for info in infos:
            name = info.name
            place = what.get(name, otherwise) if isinstance(what, dict) else what
            earliest = place == EARLIEST
            if isinstance(place, datetime):
                sequence = first_sequence_at(self._js, info, place)
                # Looked at again, since limits may have removed what was there when the search began.
                earliest = sequence <= stream_info(self._js, name).first_sequence
            elif place == EARLIEST:
                sequence = info.first_sequence
            elif place == LATEST:
                sequence = info.last_sequence + 1
            else:
                sequence = int(place)
            position[name] = StreamOffset(info.created, sequence, earliest=earliest)
        return position

    # Streaming

    def latest(self, start: QueryOffset, searched: QueryOffset) -> QueryOffset:
        """Return where a query that has come to ``start`` could go on to.

        With a filter that is behind the last message that matches it, so that messages of other subjects do not make
        empty micro-batches.

        Args:
            start: where the query has come to.
            searched: up to where earlier calls have searched the streams without a match: what is removed there is
                not a data loss.

        Raises:
            DataLossError: some of what comes next is gone, and ``failOnDataLoss`` is set.
        """
        if self._options.pattern is None:
            names = self._selection.names
            position = {name: start[name] for name in names if name in start}
        else:
            names = self._matching(self._options.pattern, start)
            position = {}  # a stream that was deleted is not waited for
        for name in names:
            begin = start.get(name)
            if info := self._info_when_ready(name, begin):
                if hold := self._holds.get(name):
                    self._resume(hold, info, begin)
                    if begin is not None and begin.created == info.created:
                        # Spark asks how to go on when all before is in its checkpoint.
                        hold.release(self._js, info, begin.next)
                        hold.look(self._js)
                end = self._latest_after(begin, info, searched.get(name))
                if begin is not None or end.size or self._options.pattern is None:
                    position[name] = end  # one that is found begins when it has something to read
        return position

    def _matching(self, pattern: re.Pattern[str], start: QueryOffset) -> tuple[str, ...]:
        """Return the streams that match the query's pattern, and those where it is already."""
        found = set(self._selection.names)
        for name, begin in start.items():
            if matches(pattern, name):
                found.add(name)  # that it was not listed may be the word of a server which is not up to date
            else:
                self._lost(
                    f"the query has read the stream {name!r} up to sequence {begin.next - 1}, and the option "
                    "'streamPattern' does not match it any more: what it holds behind that is not read"
                )
        return tuple(sorted(found))

    def _info_when_ready(self, name: str, begin: StreamOffset | None) -> StreamInfo | None:
        """Return the state of a stream; None when it is gone and may be, or is not ready to be begun with.

        A stream that has just been made may have no leader yet, and keeps a query from no other one.
        """
        try:
            return self._info_unless_deleted(name, begin)
        except (JetStreamError, NatsTimeoutError) as error:
            if self._options.pattern is None or begin is not None or not may_pass(error, known=True):
                raise
            logger.warning("the stream %r matches, and cannot be read yet: %s", name, error)
            self._selection.leave_out(name)
            return None

    def _resume(self, hold: Hold, info: StreamInfo, begin: StreamOffset | None) -> None:
        """Let a query go on at ``begin``, if that is in the stream that there is."""
        if begin is None or begin.created != info.created:
            hold.begins(self._js)
        elif what := hold.resumes(self._js, begin.next):
            self._lost(what)
            hold.begins(self._js)

    def hold(self, start: QueryOffset) -> None:
        """See to it that the durable consumers of a query are there that goes on at ``start``."""
        for name, hold in self._holds.items():
            begin = start.get(name)
            if info := self._info_unless_deleted(name, begin):
                self._resume(hold, info, begin)

    def release(self, end: QueryOffset) -> None:
        """Release all before ``end``."""
        for name, hold in self._holds.items():
            if name in end and not hold.released(end[name].created, end[name].next):
                try:
                    hold.release(self._js, stream_info(self._js, name), end[name].next)
                except StreamNotFoundError:
                    continue  # as the next look will find

    def _latest_after(
        self, begin: StreamOffset | None, info: StreamInfo, searched: StreamOffset | None
    ) -> StreamOffset:
        if begin is None or begin.created != info.created:
            if begin is not None:
                self._lost(
                    f"stream {info.name!r} was deleted and made again: the query had read it up to sequence "
                    f"{begin.next - 1} when it was the stream created at {begin.created}, and the present one was "
                    f"created at {info.created}; what the old one held behind that is gone"
                )
            first = info.first_sequence
            if begin is None and searched is not None and searched.created == info.created:
                first = max(first, searched.next)
            return StreamOffset(info.created, max(first, self._last(info, first) + 1), first, first)
        if begin.next > info.last_sequence + 1:
            what = f"stream {info.name!r} ends at sequence {info.last_sequence}, before {begin.next - 1}"
            self._doubts.confirm(self._js, info.name, what)
            self._lost_the_end(info, begin.next)
            end = info.last_sequence + 1
            return StreamOffset(info.created, end, end, end)
        self._doubts.settle(info.name)
        first = begin.next
        if searched is not None and searched.created == info.created:
            first = max(first, searched.next)
        if first < info.first_sequence:
            self._lost_the_beginning(info, first, info.first_sequence, begin.earliest)
            first = info.first_sequence
        last = self._last(info, first)
        if last >= first:
            return StreamOffset(info.created, last + 1, begin.next, first)
        if begin.next < info.first_sequence and not self._is_shared(info):
            # The stream's limits have passed the offset without taking anything that matches. The offset follows, or a
            # restart would not know that nothing was lost.
            end = info.last_sequence + 1
            return StreamOffset(info.created, end, begin.next, end)
        return begin

    def searched(self, start: QueryOffset, latest: QueryOffset) -> QueryOffset:
        """Return up to where streams have now been searched in vain, for the next call of :meth:`latest`."""
        return {
            name: StreamOffset(info.created, info.last_sequence + 1)
            for name, info in self._infos.items()
            if latest.get(name) == start.get(name)
        }

    def _last(self, info: StreamInfo, first: int) -> int:
        """Return the sequence of the last message of the query, if it is ``first`` or later."""
        if self._options.filters and info.last_sequence >= first:
            return last_sequence(self._js, info.name, self._options.filters)
        return info.last_sequence

    def limited(self, start: QueryOffset, latest: QueryOffset, limit: int) -> QueryOffset:
        """Return an offset between ``start`` and ``latest`` with at most ``limit`` sequences more than ``start``.

        The count begins at the first message that there is to read: neither a rare subject nor a hole is passed in
        micro-batches that have no rows.
        """
        wanted = {name: end for name, end in latest.items() if end != start.get(name)}
        if sum(end.size for end in wanted.values()) > limit:
            wanted = {name: self._without_hole(name, end, start.get(name)) for name, end in wanted.items()}
            shares = share({name: end.size for name, end in wanted.items()}, limit)
            wanted = {name: end._replace(next=end.next - end.size + shares[name]) for name, end in wanted.items()}
        return {**latest, **wanted}

    def within(self, start: QueryOffset, latest: QueryOffset, limit: int) -> QueryOffset:
        """Return an offset between ``start`` and ``latest`` with ``limit`` bytes more than ``start``, or about so many.

        Of each stream that has something new it has one message at least.
        """
        wanted = {name: end for name, end in latest.items() if end != start.get(name) and end.size}
        if sum(self._info(name).bytes for name in wanted) <= limit:
            return latest  # all that the streams hold is less
        wanted = {name: self._without_hole(name, end, start.get(name)) for name, end in wanted.items()}
        sizes = {
            name: measure(self._js, self._info(name), end.next - end.size, end.next, self._options.filters)
            for name, end in wanted.items()
        }
        shares = share({name: sizes[name].before(end.next) for name, end in wanted.items()}, limit)
        ends = {name: end.up_to(sizes[name].end_within(shares[name], end.next)) for name, end in wanted.items()}
        return {**latest, **ends}

    def _without_hole(self, name: str, end: StreamOffset, begin: StreamOffset | None) -> StreamOffset:
        """Let a micro-batch begin with the first message that there is."""
        wanted = end.first or 0
        first = min(next_sequence(self._js, name, wanted, self._options.filters or (">",)) or end.next, end.next)
        if first > wanted:
            info = stream_info(self._js, name)
            if info.created == end.created and info.first_sequence > wanted:  # the limits have made that hole just now
                may_go = begin is None or begin.earliest
                self._lost_the_beginning(info, wanted, min(first, info.first_sequence), may_go)
        return end._replace(first=first)

    # Batch

    def ranges(self, start: QueryOffset, end: QueryOffset) -> list[StreamRange]:
        """Return what a batch reads from ``start`` to ``end``, checked against what there is.

        Raises:
            OptionError: it ends before it starts.
            DataLossError: some of it is gone, and ``failOnDataLoss`` is set.
        """
        found = []
        for name, stop in end.items():
            begin, info = start[name], self._info(name)
            first = begin.next
            if first > info.last_sequence + 1:
                self._lost_the_end(info, first)
            elif first > stop.next and isinstance(self._options.starting, dict):
                raise OptionError(
                    f"the read of stream {name!r} ends before sequence {stop.next} and is to begin at {first}; check "
                    "the starting and ending offsets and times"
                )
            elif first < info.first_sequence:
                self._lost_the_beginning(info, first, min(info.first_sequence, stop.next), False)
                first = info.first_sequence
            whole = StreamRange(name, info.created, first, stop.next, self._options.filters, begin.earliest)
            found += as_kept(whole, info.retention, peek=True)
        return [r for r in found if r.size > 0]

    def _lost_the_beginning(self, info: StreamInfo, start: int, end: int, may_go: bool) -> None:
        what = f"stream {info.name!r} begins at sequence {info.first_sequence}: sequences {start} to {end - 1}"
        if self._is_shared(info):
            return
        if may_go:
            self.has_lost = True
            logger.warning("%s were removed before the query began to read; it begins behind them", what)
        elif start < end:
            self._lost(
                f"{what}, which the query had still to read, are gone (purged, or removed by the stream's limits)"
            )

    def _is_shared(self, info: StreamInfo) -> bool:
        """Tell whether no message that is removed is a data loss; in a KV bucket a later one takes its place."""
        return self._options.bucket is not None or _is_shared(
            info.retention, self._options.filters, bool(self._options.peek)
        )

    def _lost_the_end(self, info: StreamInfo, wanted: int) -> None:
        self._lost(
            f"stream {info.name!r} ends at sequence {info.last_sequence}, but the query is to go on at {wanted}; "
            "the sequences in between do not exist (was the stream restored from an old backup?)"
        )

    def _lost(self, what: str) -> None:
        self.has_lost = True
        report_loss(what, self._options.fail_on_data_loss)
