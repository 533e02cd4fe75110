"""Reading a range of sequences through ephemeral pull consumers (:mod:`.pulls`) or direct gets (:mod:`.direct`).

What either says of the end is not believed, because its one replica may lag behind: a range ends with its last message,
or when the stream's leader says that nothing more of it exists; and a leader that knows less than the range was planned
from has to say so for a while (:mod:`.views`). What it means that messages are missing, :mod:`.judging` decides;
here it is asked for and acted on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from spark_nats import clock
from spark_nats.client.retrying import Retries
from spark_nats.conditions import Said
from spark_nats.conditions.losses import LAST_REWRITTEN, RANGE_DELETED, RANGE_LOST, RANGE_REWRITTEN, REMOVED_WHILE_READ
from spark_nats.conditions.queues import NO_DIRECT_GETS_NOW
from spark_nats.conditions.warnings import HEAD_REMOVED
from spark_nats.errors import DataLossError, PermissionsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import finds_all
from spark_nats.jetstream.consuming.kept import Use, keep, make_consumer, may_be_kept, move_kept
from spark_nats.jetstream.judgement import Judgement, contradiction, judge, meets
from spark_nats.jetstream.messages import next_sequence
from spark_nats.jetstream.positions import Fingerprint, Position
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.cursor import Cursor, gap
from spark_nats.jetstream.reading.delivering import Chunk, Delivered, Reading, Restart, Source, out_of_order
from spark_nats.jetstream.reading.direct import DirectGets, are_available
from spark_nats.jetstream.reading.judging import Removed, goes_on, missing, replica_lacks
from spark_nats.jetstream.reading.pulls import PullConsumer
from spark_nats.jetstream.reading.searching import Search
from spark_nats.jetstream.streams import MOMENT, StreamInfo, stream_info
from spark_nats.jetstream.views import StaleReadGuard, judged
from spark_nats.protocol.documents import text_of
from spark_nats.protocol.subject_columns import SubjectMatcher

logger = logging.getLogger(__name__)

_LACKS = "its replica lacks what the stream's leader has"
_JUDGE_INTERVAL = 0.1  # seconds between two looks at the stream where skipped sequences are normal


def fail_on_loss(what: Said) -> None:
    """Report messages that are gone as a :class:`DataLossError`."""
    raise DataLossError(what)


class Way(Enum):
    """How a range is read."""

    CONSUMER = auto()
    ONE_GET_FIRST = auto()
    """One direct get first, of all messages whatever the filters are: that takes one round trip and leaves no consumer
    behind. What it leaves open is read through a consumer."""
    GETS = auto()  # direct gets, of one filter at most, and with payloads


@dataclass(frozen=True)
class Range:
    """The messages of a stream with ``start <= sequence < end``.

    Attributes:
        stream: which stream.
        created: when it was made, which tells it from a later one of its name; None for the one there is.
        start: first sequence.
        end: sequence before which to stop; must not lie beyond the stream's next sequence.
        filters: only subjects that match one of these; all when empty.
        removed: what it means that messages of it are removed. That the stream is gone, or its end, is always a loss.
        last: the last message of the range, or of what it is a part of, as it was when that was planned; None when it
            is not known. Another message in its place is one whose history is lost.
        others: whether that is known to be so: what was stored after ``last`` is then left out.
    """

    stream: str
    created: str | None
    start: int
    end: int
    filters: tuple[str, ...] = ()
    removed: Removed = field(default=Removed.LOSS, kw_only=True)
    last: Fingerprint | None = field(default=None, kw_only=True)
    others: bool = field(default=False, kw_only=True)


def read_range(
    js: JetStream, stream: str, start: int, end: int, filters: Sequence[str] = (), *, retries: Retries | None = None
) -> Iterator[Delivered]:
    """Read the messages with ``start <= sequence < end`` that there are, each exactly once and in order.

    Arguments are those of :class:`Range` and :class:`RangeReader`; the range begins with whatever there is.

    Raises:
        StreamNotFoundError: there is no such stream.
        DataLossError: messages of the range were removed by the stream's limits while it was read.
        JetStreamError: the server refuses the consumer, or has stopped delivering.
        NatsError: the connection failed.
    """
    what = Range(stream, None, start, end, tuple(filters), removed=Removed.NO_LOSS_AT_FIRST)
    return RangeReader(what, retries=retries).read(js)


class RangeReader:
    """Reads a range, each message exactly once and in order.

    Args:
        what: which range.
        way: how.
        headers_only: whether the server leaves the payloads out; each message then has its payload's size in bytes in
            the header ``Nats-Msg-Size``. Not by direct gets.
        limit: how many messages are wanted, from the beginning of the range on; None for all. No more are asked for,
            except where they are searched on this side: then two requests more at most.
        lost: called with a sentence about messages of the range that are gone; when it returns, reading goes on.
        retries: how long to go on without progress; what does not work at once is an error when None.
        on_arrival: called each time that messages have arrived, wanted ones or not.

    Attributes:
        cursor: how far it was read.
        created: as the range has it; once the stream was seen, when that was made.
    """

    def __init__(
        self,
        what: Range,
        way: Way = Way.CONSUMER,
        *,
        headers_only: bool = False,
        limit: int | None = None,
        lost: Callable[[Said], None] = fail_on_loss,
        retries: Retries | None = None,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        self.cursor = Cursor.of(what.start, what.end)
        self.created = what.created
        self._stream = what.stream
        self._filters = what.filters
        self._matcher = SubjectMatcher(self._filters) if self._filters else None
        self._search = Search(bool(self._filters))
        if way is not Way.CONSUMER:
            self._search.stay(by_server=way is Way.GETS)
        elif limit is not None:  # or a rare message would be looked for among all of a range that may be a whole stream
            self._search.stay(by_server=True)
        self._way = way
        self._headers_only = headers_only
        self._removed = what.removed
        self._last = what.last
        self._others = what.others
        self._limit = limit
        self._handed = 0  # messages that were handed on
        self._arrived = 0  # those that have arrived besides
        self._source: Source | None = None
        self._lost = lost
        self._on_arrival = on_arrival
        self._judged = 0.0
        self._unproven = False  # whether it is not known that the source's replica has what is to come first
        self._reading = Reading(what.stream, retries)
        self._guard = StaleReadGuard(self._reading.retries.timeout)

    @property
    def position(self) -> int:
        """Everything before it has been handed on, or does not exist."""
        return self.cursor.handed_on

    def read(self, js: JetStream) -> Iterator[Delivered]:
        """Read on over a connection.

        Raises:
            DataLossError: messages of the range are gone, and ``lost`` says so.
            NatsError: as :meth:`~.delivering.Reading.read`.
        """
        return self._reading.read(js, self)

    @property
    def complete(self) -> bool:
        """Whether all was handed on, and it was judged what was skipped."""
        return self.cursor.complete

    def open(self, js: JetStream, fruitless: int) -> Source | None:
        """Begin to read the stream that was planned; None when there is nothing left to read."""
        self._arrived = self._handed
        try:
            if self._way is Way.ONE_GET_FIRST and are_available(js, self._stream):
                self._way = Way.CONSUMER
                self._source = self._begin_one_get(js)
            else:
                self._source = (self._begin_gets if self._way is Way.GETS else self._begin_pulls)(js, fruitless)
                self._want(self._source)
            return self._source
        except StreamNotFoundError:
            if self.created is None:
                raise
            self._guard.confirm(js, self._stream, f"the stream {self._stream!r} does not exist")
            self._lose_the_rest("was deleted")
            return None

    def accept(self, js: JetStream, chunk: Chunk) -> Delivered | None:
        """Cut off what lies behind the range, and leave out what is of another history or does not match."""
        messages, deliveries, first, last = chunk
        count = len(messages)
        if first < self.cursor.received or last < first + count - 1:
            raise out_of_order(self._stream, self.cursor.received, chunk)
        if self._unproven:
            self._unproven = False
            if first > self.cursor.received and self._next(js, first, self._sought or (">",)) is not None:
                raise Restart(_LACKS)
        cursor, inside = self.cursor.receive(deliveries, first, last)
        if inside < count:
            messages, deliveries = Delivered(messages, deliveries).head(inside)
        if len(cursor.gaps) > len(self.cursor.gaps):
            cursor = self._look_at_gaps(js, cursor)
        delivered = self._of_this_history(js, Delivered(messages, deliveries))
        self.cursor = cursor.cut(self.cursor.end)  # where it was seen meanwhile that the stream is shorter
        if self._matcher is not None and not self._search.by_server and len(delivered.messages):
            subjects = delivered.messages.gather(delivered.messages.subject)
            delivered = delivered.take(self._matcher.match(subjects))
        self._arrived += len(delivered.messages)
        self._want(self._source)
        if self._on_arrival is not None:
            self._on_arrival()
        return delivered if len(delivered.messages) else None

    def hand_on(self, delivered: Delivered) -> Delivered | None:
        """Return all of it, up to the limit if there is one: there the range ends."""
        if self._limit is None:
            return delivered
        left = self._limit - self._handed
        if left <= len(delivered.messages):
            if not left:
                return None
            delivered = delivered.head(left)
            self.cursor = self.cursor.finish(int(delivered.deliveries.stream_sequences()[-1]) + 1)
        self._handed += len(delivered.messages)
        return delivered

    def is_over(self, js: JetStream, silence: float) -> bool:
        """Look at the stream when nothing has arrived for so many seconds: what was to come may have been removed."""
        if self._state(js).first_sequence > self.cursor.received:
            raise Restart("the stream's limits, or a purge, have removed what it was to deliver")
        if silence < pulls.HEARTBEAT:
            return False
        left = self._next(js, self.cursor.end) is not None
        if left and silence > 2 * pulls.HEARTBEAT:
            raise Restart(f"nothing but heartbeats for {silence:.0f} s, but the stream's leader has messages")
        return not left

    def is_better_elsewhere(self, seconds: float, passed: int) -> bool:
        """Tell whether to search on the other side, which would be faster."""
        return self._search.change(seconds, passed, self.cursor.end - self.cursor.received)

    def ended(self, js: JetStream) -> bool:
        """Tell whether the range is read, when a source has no more; if not, move to the next message that exists."""
        if not self.cursor.at_end:
            following = self._following(js)
            info = self._state(js)  # after it, so that what is gone since is named too
            to = goes_on(self.cursor, following, info, bool(self._filters))
            if to is None:
                raise Restart("one server says that there is nothing more, and another one that there is")
            self._skip(to, info)
        elif len(self.cursor.gaps):
            self.cursor = self._judge(self.cursor, self._state(js))
        return self.cursor.at_end

    def _begin_pulls(self, js: JetStream, fruitless: int) -> Source | None:
        """Make a consumer that belongs to the stream, or move one that is kept."""
        if not finds_all(js, self._filters):
            self._search.stay(by_server=False)
        filters = self._sought
        position = self.cursor.received
        use = Use(js.prefix, self._stream, filters, self._headers_only)
        moved = move_kept(js, use, position)
        used = clock.monotonic() if moved is None else moved.used
        made = make_consumer(js, use, position) if moved is None else moved.made
        consumer = PullConsumer(js, self._stream, made, fruitless=fruitless)
        try:
            # It is asked for after a new consumer is made: so that is known to be this stream's.
            info = self._planned_state(js, None if moved is None else moved.info)
            if info is None:
                consumer.close()
                return None
            if made.begins < position:
                raise Restart("its replica lags behind the stream's leader")
            if made.begins > position:
                if self._next(js, made.begins, (">",)) is not None:
                    raise Restart(_LACKS)
                self._skip(made.begins, self._state(js))  # what is gone since is named too
            if self._search.by_server:
                matching = made.pending / max(1, info.messages_from(self.cursor.received))
                self._search.begin(matching, info.average_size)
            if may_be_kept(js, info):
                consumer.keep = lambda asked: keep(js, use, made, info.created, max(asked, used))
        except BaseException:
            consumer.close()
            raise
        if filters and not self._search.by_server:
            consumer.finish()
            return self._begin_pulls(js, fruitless)
        # One that was moved does not say from where on its replica has something.
        self._unproven = moved is not None and made.leader not in ("", moved.info.leader)
        if self._filters:
            side = "the server searches" if self._search.by_server else "all is sent and searched here"
            begin, end = self.cursor.received, self.cursor.end
            logger.debug("stream %s, sequences %d to %d: %s", self._stream, begin, end - 1, side)
        return consumer

    def _begin_gets(self, js: JetStream, fruitless: int) -> Source | None:
        """Begin to read by direct gets."""
        info = self._planned_state(js)
        if info is None:
            return None
        if not info.allows_direct_gets:
            raise UnsupportedStreamError(NO_DIRECT_GETS_NOW(stream=self._stream))
        if info.first_sequence > self.cursor.received:
            self._skip(info.first_sequence, info)
        return DirectGets(js, self._stream, self._filters[0] if self._filters else None, fruitless)

    def _begin_one_get(self, js: JetStream) -> Source | None:
        """Ask for the whole range at once.

        The message at its end, if that is known, tells whether it is of the stream that was planned. Where the range
        ends before it, the stream's leader is asked in the same flight.
        """
        gets = DirectGets(js, self._stream, None, 0, optional=True)
        self._want(gets)
        gets.ask(self.cursor, throttled=False)
        if self._limit is None and self._last is not None and self._last.sequence == self.cursor.end - 1:
            return gets
        try:
            info = self._planned_state(js)
        except BaseException as error:
            gets.close()
            if isinstance(error, PermissionsError):  # of either request; whoever reads otherwise needs this one too
                raise gets.unavailable(error) from None
            raise
        if info is None:
            gets.close()
            return None
        return gets

    def _planned_state(self, js: JetStream, said: StreamInfo | None = None) -> StreamInfo | None:
        """Return the state of the stream that was planned; None when nothing of the range is left in it.

        What was just ``said`` of it is not asked for.
        """
        info = self._state(js, said)
        if self._is_recreated(info):
            self._lose_the_rest(f"was deleted and created again at {info.created}")
        return None if self.cursor.at_end else info

    def _want(self, source: Source | None) -> None:
        """Have a source ask for no more than is still wanted, where all that it brings is."""
        if self._limit is not None and source is not None and (self._search.by_server or not self._filters):
            source.wanted = self._limit - self._arrived

    # What the stream is asked

    @property
    def _sought(self) -> tuple[str, ...]:
        """What the server searches for; all when it is nothing."""
        return self._filters if self._search.by_server else ()

    def _end_in(self, info: StreamInfo) -> Position:
        self.created = self.created or info.created
        return Position(self.created, self.cursor.end)

    def _is_recreated(self, info: StreamInfo) -> bool:
        return judge(self._end_in(info), info) is Judgement.RECREATED

    def _state(self, js: JetStream, said: StreamInfo | None = None) -> StreamInfo:
        """Return the stream's state; the range is cut off where its end does not exist any more."""
        info = said or stream_info(js, self._stream)
        end = self._end_in(info)
        if judge(end, info) is Judgement.TRUNCATED:
            gone, last = self.cursor.end, info.last_sequence
            self._guard.confirm(js, self._stream, contradiction(end, info, self._stream))
            self.cursor = self.cursor.cut(last + 1)
            self._others = True  # what was stored since has the sequences of what is lost
            self._lost(RANGE_LOST(stream=self._stream, last=last, sequences=gap(self.cursor.end, gone)))
        if self._last is None or info.last_sequence >= self._last.sequence:
            self._guard.clear(self._stream)
        return info

    def _next(self, js: JetStream, end: int, filters: Sequence[str] | None = None) -> int | None:
        """Ask the stream's leader for the next message that matches, before ``end``; None when there is none."""
        filters = self._filters if filters is None else filters
        found = next_sequence(js, self._stream, self.cursor.received, filters or (">",))
        return found if found is not None and found < end else None

    def _following(self, js: JetStream) -> int | None:
        """Return the next message of the range that exists; None when there is none.

        A leader that was stopped for a while may not know of it. So where a server has not been heard of lately,
        nothing is believed until it is said a second time, a moment later.
        """
        disputed = bool(js.connection.info.cluster) and not self._state(js).undisputed
        following = self._next(js, self.cursor.end)
        if following is None and disputed:
            js.connection.wait(MOMENT)
            following = self._next(js, self.cursor.end)
        return following

    # What is missing, and what is another

    def _look_at_gaps(self, js: JetStream, cursor: Cursor) -> Cursor:
        """Judge gaps; not at once where the server leaves out what does not match, so that there are always some.

        Where it leaves out nothing, and the stream's leader has no gaps, the source's replica lacks messages.
        """
        may_wait = self._search.by_server or self._removed is Removed.NO_LOSS
        if may_wait and clock.monotonic() - self._judged < _JUDGE_INTERVAL:
            return cursor
        info = self._state(js)
        if not self._search.by_server and replica_lacks(cursor, info):
            raise Restart(_LACKS)
        return self._judge(cursor, info)

    def _skip(self, to: int, info: StreamInfo) -> None:
        """Move behind sequences that the stream's leader does not have, as its state says that was asked for after."""
        self.cursor = self._judge(self.cursor.skip(to), info)

    def _judge(self, cursor: Cursor, info: StreamInfo) -> Cursor:
        """Name what the stream's limits have removed of what a cursor has skipped; return it when that is done."""
        self._judged = clock.monotonic()
        if self._is_recreated(info):
            raise Restart("the stream was deleted and created again")
        head, lost = missing(cursor, info.first_sequence, self._removed)
        if len(head):
            logger.warning(HEAD_REMOVED(stream=self._stream, sequences=head).coded)
        if len(lost):
            self._lost(REMOVED_WHILE_READ(stream=self._stream, first=info.first_sequence, sequences=lost))
        return cursor.judged()

    def _lose_the_rest(self, how: str) -> None:
        rest = gap(self.cursor.received, self.cursor.end)
        self.cursor = self.cursor.give_up()
        self._lost(RANGE_DELETED(stream=self._stream, how=how, sequences=rest))

    def _of_this_history(self, js: JetStream, delivered: Delivered) -> Delivered:
        """Return the messages that are of the history of which the range was planned.

        The message at its end may be another partition's, or of a subject that is not read now, and not be seen here.
        """
        messages, deliveries = delivered
        if self._last is None or not len(messages):
            return delivered
        if not self._others:
            sequence, time = deliveries.last()
            met = meets(self._last, sequence, time)
            if met is not Judgement.INTACT and self._is_rewritten(js, self._last, met):
                self._others = True
                self._lost(_rewritten(self._stream, sequence, time, self._last))
        if not self._others:
            return delivered
        return delivered.take(deliveries.timestamps() <= self._last.time)

    def _is_rewritten(self, js: JetStream, last: Fingerprint, met: Judgement | None) -> bool:
        """Ask whether the history is lost of which the range was planned; it may be said meanwhile that it is."""
        info = self._state(js)
        if self._is_recreated(info):
            raise Restart("the stream was deleted and created again")
        if met is None:
            planned = Position(info.created, last.sequence + 1, last.time)
            met = judged(js, planned, info)
            if met is Judgement.TRUNCATED and not self._others:
                self._guard.confirm(js, self._stream, contradiction(planned, info, self._stream))
        return met is not Judgement.INTACT and not self._others


def _rewritten(stream: str, sequence: int, time: int, last: Fingerprint) -> Said:
    """Say that a history is lost whose last message was another one, and by which message that was noticed."""
    now, planned = text_of(time), text_of(last.time)
    if sequence == last.sequence:
        return LAST_REWRITTEN(stream=stream, sequence=sequence, planned=planned, time=now)
    return RANGE_REWRITTEN(stream=stream, sequence=sequence, time=now, last=last.sequence, last_time=planned)
