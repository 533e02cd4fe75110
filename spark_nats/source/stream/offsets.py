"""Offsets, and what the server says about them.

An offset holds for each stream the next sequence to read, when the stream was made, and when the message before that
sequence was stored: ``{"ORDERS": {"created": "2026-11-01T08:00:00Z", "next": 1201, "timestamp": "2026-11-02T…Z"}}``. A
stream that was deleted and made again has another ``created``, so it is not read from a place that means nothing in it.
One that has lost its end and was filled again has another message there, with another ``timestamp``
(:mod:`~spark_nats.jetstream.fingerprints`).

The offset that ends a micro-batch also says where that one begins: ``since``, where the query had come to, and
``from``, the first sequence to be read; what lies between has nothing for the query. So a micro-batch that is run
again, after whatever restart, is planned from what Spark's checkpoint holds and from nothing else, and has the same
partitions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
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
from spark_nats.jetstream.fingerprints import (
    Fingerprint,
    History,
    Witness,
    compare,
    first_after,
    judge,
    unhide,
)
from spark_nats.jetstream.holding import Hold, check_direct
from spark_nats.jetstream.keyvalue import naming_bucket
from spark_nats.jetstream.matching import Selection, matches
from spark_nats.jetstream.measuring import measure
from spark_nats.jetstream.streams import (
    LIMITS,
    WORK_QUEUE,
    StoredMessage,
    StreamInfo,
    create_stream,
    first_sequence_at,
    last_matching,
    messages_from,
    next_sequence,
    stream_info,
    stream_info_and_message,
)
from spark_nats.options.losses import GO_ON, report_loss
from spark_nats.options.read import ReadOptions
from spark_nats.options.values import EARLIEST, LATEST, Offsets, Place
from spark_nats.protocol.documents import printable, sequence_at, string_at, text_of, time_at
from spark_nats.protocol.subjects import name_violation
from spark_nats.source.stream.noticing import notice_times_ahead
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
        timestamp: when the message before ``next`` was stored, in nanoseconds since 1970; None when there is none, or
            when it is not known, as in checkpoints of before.
    """

    created: str
    next: int
    since: int | None = None
    first: int | None = None
    earliest: bool = False
    waits_for: int | None = None
    timestamp: int | None = None

    @property
    def size(self) -> int:
        """How many sequences the micro-batch has that ends here."""
        return 0 if self.first is None else self.next - self.first

    @property
    def fingerprint(self) -> Fingerprint | None:
        """That of the message before ``next``."""
        return None if self.timestamp is None else Fingerprint(self.next - 1, self.timestamp)

    def up_to(self, end: int, timestamp: int | None) -> StreamOffset:
        """Return the offset of a micro-batch that goes no further than ``end``, before which that was stored."""
        first = None if self.first is None else min(self.first, end)
        return self._replace(next=end, first=first, timestamp=timestamp)

    def as_reported(self, waits_for: int | None) -> StreamOffset:
        """Return it as a query's progress shows how far a stream reaches."""
        return StreamOffset(self.created, self.next, waits_for=waits_for)

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        entry: dict[str, Any] = {"created": self.created, "next": self.next}
        if self.timestamp is not None:
            entry["timestamp"] = text_of(self.timestamp)
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
            AttributeError, TypeError, ValueError: this source has not written it.
        """
        since, first = (sequence_at(entry, "since"), sequence_at(entry, "from")) if "since" in entry else (None, None)
        waits_for = sequence_at(entry, "waits_for") if "waits_for" in entry else None
        timestamp = time_at(entry, "timestamp") if "timestamp" in entry else None
        created, following = string_at(entry, "created"), sequence_at(entry, "next")
        return cls(created, following, since, first, entry.get("earliest") is True, waits_for, timestamp)


QueryOffset = dict[str, StreamOffset]
"""The offset of a query: one entry for each stream."""


def to_json(position: QueryOffset) -> dict[str, Any]:
    """Return an offset as Spark keeps it. The order is fixed: Spark compares offsets as text."""
    return {name: position[name].to_json() for name in sorted(position)}


def _end_of(info: StreamInfo) -> StreamOffset:
    """Return the offset behind all that a stream has."""
    return StreamOffset(info.created, info.last_sequence + 1, timestamp=info.last_time or None)


def _shared(ends: QueryOffset, limit: int) -> dict[str, int]:
    """Return where micro-batches end that have ``limit`` sequences together."""
    shares = share({name: end.size for name, end in ends.items()}, limit)
    return {name: end.next - end.size + shares[name] for name, end in ends.items()}


def _cut(end: StreamOffset, last: StoredMessage | None) -> StreamOffset:
    """Return the offset behind a message, or ``end`` if there is no other one before it.

    A micro-batch ends behind a message that exists, so that it can be compared. If it has to go on for that, it passes
    a hole, and this one message.
    """
    if last is None or last.sequence + 1 >= end.next:
        return end
    return end.up_to(last.sequence + 1, last.time)


def _what_it_has(info: StreamInfo, begin: StreamOffset) -> str:
    """Say what contradicts what the query has read."""
    if begin.next > info.last_sequence + 1:
        return f"stream {info.name!r} ends at sequence {info.last_sequence}, before {begin.next - 1}"
    return f"stream {info.name!r} has another message at sequence {begin.next - 1} than the query has read"


def from_json(document: Mapping[str, Any]) -> QueryOffset:
    """Return an offset that Spark kept.

    Raises:
        NatsError: it was not written by this source.
    """
    try:
        for name in document:
            if violation := name_violation(name):
                raise ValueError(f"{name!r} cannot name a stream: it {violation}")
        return {name: StreamOffset.from_json(entry) for name, entry in document.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise NatsError(
            f"the checkpoint's offset {printable(repr(document))} is not one of this source ({error}); was the "
            "checkpoint another query's?"
        ) from None


def new_in(start: QueryOffset, end: QueryOffset) -> int:
    """Return how many sequences a micro-batch has."""
    return sum(stop.size for name, stop in end.items() if stop != start.get(name))


def planned(
    start: QueryOffset, end: QueryOffset, filters: tuple[str, ...], rewritten: Collection[str] = ()
) -> list[StreamRange]:
    """Return what a micro-batch reads: a function of its two offsets, and of nothing that a restart forgets.

    Args:
        start: where the query had come to.
        end: where the micro-batch ends.
        filters: which subjects are read.
        rewritten: streams that have lost messages of the micro-batch, which is run again; what was stored in their
            place is left to the next one.
    """
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
        last, others = stop.fingerprint, name in rewritten
        found.append(StreamRange(name, stop.created, first, stop.next, filters, head_may_go, last=last, others=others))
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
        witness: what earlier calls have seen of their histories.

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
        witness: Witness | None = None,
    ) -> None:
        self._js = js
        self._options = options
        self._doubts = doubts
        self._holds = holds
        self._infos: dict[str, StreamInfo] = {}
        self._begins: QueryOffset = {}  # where the query has come to, which the streams are asked about
        self._there: dict[str, StoredMessage | None] = {}  # what stands at the last message before that
        self._witness = witness or Witness()
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
                info = create_stream(self._js, config) if config else self._ask(name)
            if name in self._holds:
                self._holds[name].take(self._js, info)
            elif info.retention != LIMITS:
                self._check_may_be_read(info)
            self._selection.see(self._js, info, self._options.filters)
            self._infos[name] = info
            notice_times_ahead(info)
        return self._infos[name]

    def _ask(self, name: str) -> StreamInfo:
        """Ask for the state of a stream, and with it, where it is due, for the last message that the query has read."""
        begin = self._begins.get(name)
        if begin is None or begin.fingerprint is None:
            return stream_info(self._js, name)
        if not self._releases(name, begin) and not self._witness.expects(self._js, name):
            return stream_info(self._js, name)
        info, self._there[name] = stream_info_and_message(self._js, name, begin.next - 1)
        return info

    def _releases(self, name: str, begin: StreamOffset) -> bool:
        """Tell whether what the query has read of a stream is to be released."""
        hold = self._holds.get(name)
        return hold is not None and not hold.released(begin.created, begin.next)

    def _history(self, info: StreamInfo, begin: StreamOffset, at_once: bool = False) -> History:
        """Return what has become of what the query has read of a stream, which is the one that it has read.

        Args:
            info: the stream's state.
            begin: where the query has come to.
            at_once: whether it is compared even if nothing tells that it is due.

        Raises:
            JetStreamError: something else than a moment ago, which has to be said for a while (503).
            NatsError: a request failed.
        """
        seen = begin.fingerprint
        if seen is None:
            found = History.SHORTER if begin.next > info.last_sequence + 1 else History.KEPT
        elif info.name in self._there:
            found = unhide(self._js, seen, info, judge(seen, info, self._there[info.name]))
        elif at_once or self._releases(info.name, begin) or self._witness.doubts(self._js, info):
            found = compare(self._js, seen, info)
        else:
            found = judge(seen, info, None)
            found = History.KEPT if found is History.HIDDEN else found
        if found is History.KEPT:
            self._doubts.settle(info.name)
            self._witness.saw(self._js, info)
        else:
            self._doubts.confirm(self._js, info.name, _what_it_has(info, begin))
        return found

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
        return {name: _end_of(info) for name, info in found.items() if info}

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
            elif isinstance(place, Place):
                position[name] = self._place(info, place, otherwise)
                continue
            position[name] = StreamOffset(
                info.created, sequence, earliest=earliest, timestamp=self._time_before(info, sequence)
            )
        return position

    def _place(self, info: StreamInfo, place: Place, otherwise: str) -> StreamOffset:
        """Return a place that was given, if it is one in the stream that there is; else where that has what is new.

        Of a stream that was made again, that is its beginning or its end, as ``otherwise`` says.
        """
        if place.created and place.created != info.created:
            self._lost(
                f"stream {info.name!r} was deleted and made again: sequence {place.next} is of the stream created at "
                f"{place.created}, and the present one was created at {info.created}; what the old one held is gone"
            )
            if otherwise == LATEST:
                return _end_of(info)
            return StreamOffset(info.created, info.first_sequence, earliest=True)
        given = StreamOffset(info.created, place.next, timestamp=place.timestamp)
        if (seen := given.fingerprint) is None:
            return given._replace(timestamp=self._time_before(info, place.next))
        if (history := self._history(info, given, at_once=True)) is History.KEPT:
            return given
        first = first_after(self._js, seen, info)
        self._lost_the_history(info, seen, history, first)
        return StreamOffset(info.created, first, timestamp=self._time_before(info, first))

    def _time_before(self, info: StreamInfo, sequence: int) -> int | None:
        """Return when the message before a sequence was stored; None when there is none."""
        if sequence == info.last_sequence + 1:
            return info.last_time or None
        if not info.first_sequence < sequence <= info.last_sequence:
            return None
        (message,) = messages_from(self._js, [(info.name, sequence - 1, ">")])
        return message.time if message and message.sequence == sequence - 1 else None

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
            position = dict(start)
            self._warn_of_others(start)
        else:
            names = self._matching(self._options.pattern, start)
            position = {}  # a stream that was deleted is not waited for
        self._begins = start
        for name in names:
            begin = start.get(name)
            if info := self._info_when_ready(name, begin):
                is_same = begin is not None and begin.created == info.created
                history = self._history(info, begin) if begin is not None and is_same else History.KEPT
                if hold := self._holds.get(name):
                    self._resume(hold, info, begin)
                    if begin is not None and is_same and history is History.KEPT:
                        # Spark asks how to go on when all before is in its checkpoint.
                        hold.release(self._js, info, begin.next)
                        hold.look(self._js)
                if begin is not None and history is not History.KEPT:
                    end = self._after_lost_end(begin, info, history)
                else:
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

    def _warn_of_others(self, start: QueryOffset) -> None:
        """Say once that the query does not read streams any more that it has read. Their places stay in the offset."""
        for name in start:
            if name not in self._selection.names and self._doubts.is_news(name):
                logger.warning(
                    "the query has read the stream %r up to sequence %d, and the option 'stream' does not name it any "
                    "more: it is not read now, and if it is named again, the query goes on with sequence %d",
                    name,
                    start[name].next - 1,
                    start[name].next,
                )

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
        """Release all before ``end``, of streams that have it: what others have is not what the query has read."""
        self._begins = end
        for name, hold in self._holds.items():
            if name in end and self._releases(name, end[name]):
                try:
                    info = self._ask(name)
                except StreamNotFoundError:
                    continue  # as the next look will find
                if info.created == end[name].created and self._history(info, end[name]) is History.KEPT:
                    hold.release(self._js, info, end[name].next)

    def rewritten(self, start: QueryOffset, end: QueryOffset) -> set[str]:
        """Return of which streams a micro-batch that is run again cannot be the same, since they have lost its end.

        Raises:
            DataLossError: there is one, and ``failOnDataLoss`` is set.
        """
        self._begins = end
        found = set()
        for name, stop in end.items():
            seen = stop.fingerprint
            if stop == start.get(name) or seen is None:
                continue
            info = self._info_unless_deleted(name, stop)
            if info is None or info.created != stop.created:
                continue  # as its tasks will report
            if (history := self._history(info, stop, at_once=True)) is not History.KEPT:
                self._lost_the_history(info, seen, history, first_after(self._js, seen, info), planned=True)
                found.add(name)
        return found

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
            return self._offset(info, first, first, first)
        first = begin.next
        if searched is not None and searched.created == info.created:
            first = max(first, searched.next)
        if first < info.first_sequence:
            self._lost_the_beginning(info, first, info.first_sequence, begin.earliest)
            first = info.first_sequence
        end = self._offset(info, first, begin.next, first)
        if end.size:
            return end
        if begin.next < info.first_sequence and not self._is_shared(info):
            # The stream's limits have passed the offset without taking anything that matches. The offset follows, or a
            # restart would not know that nothing was lost.
            return self._offset(info, info.last_sequence + 1, begin.next, info.last_sequence + 1)
        return begin

    def _after_lost_end(self, begin: StreamOffset, info: StreamInfo, history: History) -> StreamOffset:
        """Return the end of a micro-batch that begins with what was stored after all that the query has read."""
        seen = begin.fingerprint
        if seen is None:
            first = info.last_sequence + 1
            self._lost_the_end(info, begin.next)
        else:
            first = first_after(self._js, seen, info)
            self._lost_the_history(info, seen, history, first)
        if hold := self._holds.get(info.name):
            hold.rewind()
        return self._offset(info, first, begin.next, first)

    def _offset(self, info: StreamInfo, start: int, since: int, first: int) -> StreamOffset:
        """Return the offset behind the last message of the query, if that is ``start`` or later; else ``start``."""
        sequence, time = info.last_sequence, info.last_time
        if self._options.filters and sequence >= start:
            last = last_matching(self._js, info.name, self._options.filters)
            sequence, time = (last.sequence, last.time) if last else (0, 0)
        if sequence >= start:
            return StreamOffset(info.created, sequence + 1, since, first, timestamp=time or None)
        time = info.last_time if start == info.last_sequence + 1 else 0
        return StreamOffset(info.created, start, since, first, timestamp=time or None)

    def searched(self, start: QueryOffset, latest: QueryOffset) -> QueryOffset:
        """Return up to where streams have now been searched in vain, for the next call of :meth:`latest`."""
        return {name: _end_of(info) for name, info in self._infos.items() if latest.get(name) == start.get(name)}

    def limited(self, start: QueryOffset, latest: QueryOffset, limit: int) -> QueryOffset:
        """Return an offset between ``start`` and ``latest`` with at most ``limit`` sequences more than ``start``.

        The count begins at the first message that there is to read: neither a rare subject nor a hole is passed in
        micro-batches that have no rows.
        """
        wanted = {name: end for name, end in latest.items() if end != start.get(name)}
        if sum(end.size for end in wanted.values()) > limit:
            whole = wanted
            # Mostly there is no hole, and then the same round trip tells where to end.
            wanted, at_ends = self._without_holes(whole, start, _shared(whole, limit))
            if wanted != whole:
                at_ends = self._at_ends(_shared(wanted, limit), wanted)
            wanted = {name: _cut(end, at_ends[name]) for name, end in wanted.items()}
        return {**latest, **wanted}

    def within(self, start: QueryOffset, latest: QueryOffset, limit: int) -> QueryOffset:
        """Return an offset between ``start`` and ``latest`` with ``limit`` bytes more than ``start``, or about so many.

        Of each stream that has something new it has one message at least.
        """
        wanted = {name: end for name, end in latest.items() if end != start.get(name) and end.size}
        if sum(self._info(name).bytes for name in wanted) <= limit:
            return latest  # all that the streams hold is less
        wanted, _ = self._without_holes(wanted, start, {})
        sizes = {
            name: measure(self._js, self._info(name), end.next - end.size, end.next, self._options.filters)
            for name, end in wanted.items()
        }
        shares = share({name: sizes[name].before(end.next) for name, end in wanted.items()}, limit)
        at_ends = self._at_ends(
            {name: sizes[name].end_within(shares[name], end.next) for name, end in wanted.items()}, wanted
        )
        return {**latest, **{name: _cut(end, at_ends[name]) for name, end in wanted.items()}}

    def _at_ends(self, ends: Mapping[str, int], latest: QueryOffset) -> dict[str, StoredMessage | None]:
        """Return what stands at the last sequences before ends, or behind them; None where all of a stream is read."""
        asked = {name: end for name, end in ends.items() if end < latest[name].next}
        found = messages_from(self._js, self._places(asked))
        return dict.fromkeys(ends) | dict(zip(asked, found, strict=True))

    def _places(self, ends: Mapping[str, int]) -> list[tuple[str, int, str]]:
        """Return where to ask for a last message. One that the query holds is not removed by others."""
        filters = self._options.filters
        subject = filters[0] if self._options.consume and len(filters) == 1 else ">"
        return [(name, end - 1, subject) for name, end in ends.items()]

    def _without_holes(
        self, latest: QueryOffset, start: QueryOffset, ends: Mapping[str, int]
    ) -> tuple[QueryOffset, dict[str, StoredMessage | None]]:
        """Let micro-batches begin with the first messages that there are; return also what stands at their ends.

        Args:
            latest: how far they could go.
            start: where the query has come to.
            ends: where they end if there is no hole, as far as that is of interest.
        """
        filters = self._options.filters or (">",)
        places = [(name, end.first or 0, subject) for name, end in latest.items() for subject in filters]
        cut = {name: end for name, end in ends.items() if end < latest[name].next}
        answers = messages_from(self._js, [*places, *self._places(cut)])
        firsts: dict[str, int] = {}
        for (name, *_), message in zip(places, answers[: len(places)], strict=True):
            if message is not None:
                firsts[name] = min(message.sequence, firsts.get(name, message.sequence))
        found = {}
        for name, end in latest.items():
            wanted = end.first or 0
            first = min(firsts.get(name, end.next), end.next)
            if first > wanted:
                info = stream_info(self._js, name)
                # the limits have made that hole just now
                if info.created == end.created and info.first_sequence > wanted:
                    begin = start.get(name)
                    may_go = begin is None or begin.earliest
                    self._lost_the_beginning(info, wanted, min(first, info.first_sequence), may_go)
            found[name] = end._replace(first=first)
        return found, dict.fromkeys(latest) | dict(zip(cut, answers[len(places) :], strict=True))

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
            filters, last = self._options.filters, stop.fingerprint
            whole = StreamRange(name, info.created, first, stop.next, filters, begin.earliest, last=last)
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

    def _lost_the_history(
        self, info: StreamInfo, seen: Fingerprint, history: History, first: int, planned: bool = False
    ) -> None:
        """Report that the end of a stream is lost which the query has read.

        Args:
            info: the stream's state.
            seen: the last message that the query has read.
            history: what has become of it.
            first: where it has what was stored after that.
            planned: whether the query was about to read that again, in a micro-batch that was begun before.
        """
        if history is History.SHORTER:
            what = (
                f"stream {info.name!r} ends at sequence {info.last_sequence}, but the query is to go on at "
                f"{seen.sequence + 1}; the sequences in between do not exist"
            )
        else:
            what = f"stream {info.name!r} has lost its end, and other messages have its sequences"
        before = "a micro-batch that was begun reaches up to" if planned else "the query had read it up to"
        there = f"and it has nothing that was stored later, its last sequence being {info.last_sequence}"
        if first <= info.last_sequence:
            there = f"and what it has from sequence {first} on was stored later"
        self.has_lost = True
        go_on = f"what was stored since, from sequence {first} on"
        report_loss(
            f"{what} (was the stream restored from an old backup?): {before} sequence "
            f"{seen.sequence}, stored at {text_of(seen.time)}, {there}",
            self._options.fail_on_data_loss,
            go_on,
            f"begin with a new checkpoint to read all that it has, or {GO_ON} {go_on}",
        )

    def _lost_the_end(self, info: StreamInfo, wanted: int) -> None:
        self._lost(
            f"stream {info.name!r} ends at sequence {info.last_sequence}, but the query is to go on at {wanted}; "
            "the sequences in between do not exist (was the stream restored from an old backup?)"
        )

    def _lost(self, what: str) -> None:
        self.has_lost = True
        report_loss(what, self._options.fail_on_data_loss)
