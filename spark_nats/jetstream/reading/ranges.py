"""Reads a range of sequences through ephemeral pull consumers (:mod:`.pulls`) or direct gets (:mod:`.direct`).

The reader does not believe what a source reports about the end, because its one replica may lag. A range ends with its
last message, or when the stream's leader reports that nothing more of the range exists. A leader that knows less than
the range was planned from has to report that for several seconds (:mod:`spark_nats.jetstream.views`). This module asks
the server about missing messages; :mod:`.judging` decides what they mean. Losses are returned in the cursor.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from spark_nats import clock
from spark_nats.client.retrying import Retries
from spark_nats.conditions import ConditionText
from spark_nats.conditions import jetstream as conditions
from spark_nats.errors import PermissionsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.consuming.placing import needs_nearer_consumer
from spark_nats.jetstream.judgement import Judgement, try_judge_by_message
from spark_nats.jetstream.messages import ask_first_sequence_from, may_be_former_leader
from spark_nats.jetstream.positions import Fingerprint, Position
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.cursor import NO_END, Cursor, gap
from spark_nats.jetstream.reading.delivering import Arrived, Chunk, Delivered, Move, Reading, Restart, Source, Step
from spark_nats.jetstream.reading.direct import DirectGets, may_use_direct_gets
from spark_nats.jetstream.reading.judging import (
    Removed,
    decide_where_to_resume,
    judge_gaps,
    raise_data_loss,
    replica_surely_lacks,
)
from spark_nats.jetstream.reading.pulls import PullConsumer
from spark_nats.jetstream.reading.searching import FilterPlacement
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import (
    StreamView,
    ask_and_judge,
    ask_if_recreated,
    ask_stream_info,
    log_created_otherwise,
)
from spark_nats.protocol.documents import format_time
from spark_nats.protocol.subject_columns import SubjectMatcher

logger = logging.getLogger(__name__)

_LACKS = "its replica lacks what the stream's leader has"
_RECREATED = "the stream was deleted and created again"
_JUDGE_INTERVAL = 0.1  # seconds between two requests for the stream's state where skipped sequences are normal


class ReadMethod(Enum):
    """How a range is read."""

    CONSUMER = auto()
    HEADERS = auto()
    """Through a consumer, without payloads: the header ``Nats-Msg-Size`` of a message has its payload's size."""
    ONE_GET_FIRST = auto()
    """Direct gets first, mostly a single one, of all messages whatever the filters are: it takes one round trip and
    leaves no consumer on the server. A consumer reads what they leave open, or everything if they are unavailable."""
    GETS = auto()  # direct gets with payloads, of one filter at most


@dataclass(frozen=True)
class Range:
    """The messages of a stream with ``start <= sequence < end``.

    Attributes:
        stream: name of the stream.
        created: when the stream was created; None if unknown.
        start: first sequence.
        end: sequence before which to stop; must not lie beyond the stream's next sequence.
        filters: only subjects that match one of these; all when empty.
        removed: what removed messages of the range mean. A deleted stream or a lost end is always a loss.
        last: the last message, at planning time, of the range or of a larger one that contains the range; None when
            unknown. Another message in its place means that the stream has lost its history.
        latest: the latest time of any message up to ``last``, in nanoseconds since 1970; None where it is not noted.
        rewritten: whether another message is known to be in that place; messages with a later time than that of
            ``last`` are then left out.
    """

    stream: str
    created: str | None
    start: int
    end: int
    filters: tuple[str, ...] = ()
    removed: Removed = field(default=Removed.LOSS, kw_only=True)
    last: Fingerprint | None = field(default=None, kw_only=True)
    latest: int | None = field(default=None, kw_only=True)
    rewritten: bool = field(default=False, kw_only=True)


def read_range(
    js: JetStream, stream: str, start: int, end: int, filters: Sequence[str] = (), *, retries: Retries | None = None
) -> Iterator[Delivered]:
    """Read the existing messages with ``start <= sequence < end``, each exactly once and in order.

    Arguments are those of :class:`Range` and :class:`RangeReader`. The range begins with the first message that exists,
    so the removal of messages before the first arrival is no loss.

    Raises:
        StreamNotFoundError: there is no such stream.
        DataLossError: while the range was read, messages of it were removed by the stream's limits or a purge, or the
            stream lost its end, was deleted, or was created again.
        JetStreamError: the server refuses the consumer, or has stopped delivering.
        NatsError: the connection failed.
    """
    what = Range(stream, None, start, end, tuple(filters), removed=Removed.NO_LOSS_AT_FIRST)
    return RangeReader(what, retries=retries).read(js)


class RangeReader:
    """Reads a range, each message exactly once and in order.

    Args:
        what: the range.
        way: how to read it.
        limit: how many messages are wanted, from the start of the range; None for all. The reader requests no more,
            except where it filters messages itself: then at most two requests more.
        lost: called with a sentence about lost messages of the range; when it returns, reading continues.
        retries: how long to retry without progress; None for no retries.
        on_arrival: called whenever messages have arrived, wanted or not.
        ahead: direct gets that have requested the range already, together with others.
        keeps_consumer: whether its consumer is kept for the next range that the connection reads. Spark may end the
            process of a read whose rows it no longer wants, and whatever is kept would then stay on the server.

    Attributes:
        created: when the stream was created, as the range has it or as the reader first saw it.
    """

    def __init__(
        self,
        what: Range,
        way: ReadMethod = ReadMethod.CONSUMER,
        *,
        limit: int | None = None,
        lost: Callable[[ConditionText], None] = raise_data_loss,
        retries: Retries | None = None,
        on_arrival: Callable[[], None] | None = None,
        ahead: DirectGets | None = None,
        keeps_consumer: bool = False,
    ) -> None:
        self.created = what.created
        self._keeps_consumer = keeps_consumer
        self._met = what.last  # a message of the planned stream
        self._ahead = ahead
        self._range = what
        self._way = way
        self._matcher = SubjectMatcher(what.filters) if what.filters else None
        self._placement = FilterPlacement(bool(what.filters))
        # With a limit the server filters, or the reader might fetch a whole stream for one row; one get fetches little.
        if way in (ReadMethod.ONE_GET_FIRST, ReadMethod.GETS) or limit is not None:
            self._placement.fix_filtering_side(by_server=way is not ReadMethod.ONE_GET_FIRST)
        self._judged_at = 0.0
        self._lost_from = NO_END  # first sequence of the end that the stream has lost, once that is confirmed
        self._replica_unverified = False  # whether the source's replica may lack the first messages to come
        begin = Cursor.of(what.start, what.end, rewritten=what.rewritten, limit=limit)
        self._reading = Reading(what.stream, begin, retries, lost, on_arrival)
        self._view = StreamView(self._reading.retries.timeout)

    @property
    def cursor(self) -> Cursor:
        """How far the range is read."""
        return self._reading.cursor

    def read(self, js: JetStream) -> Iterator[Delivered]:
        """Continue reading over a connection.

        Raises:
            DataLossError: messages of the range are lost, and ``lost`` raises it.
            NatsError: as :meth:`~.delivering.Reading.read`.
        """
        return self._reading.read(js, self)

    def open(self, js: JetStream, cursor: Cursor, empty_attempts: int) -> tuple[Source | None, Cursor]:
        """Open a source on the planned stream; return None as the source when nothing is left to read."""
        stream, ahead, self._ahead = self._range.stream, self._ahead, None
        try:
            if self._way is ReadMethod.ONE_GET_FIRST and may_use_direct_gets(js, stream):
                self._way = ReadMethod.CONSUMER
                return self._open_one_get(js, cursor, ahead)
            if ahead is not None:
                ahead.close()
            return (self._open_gets if self._way is ReadMethod.GETS else self._open_pulls)(js, cursor, empty_attempts)
        except StreamNotFoundError:
            if self.created is None:
                raise
            self._view.check_loss_confirmed(js, stream, f"the stream {stream!r} does not exist")
            return None, self._lose_rest(cursor, "was deleted")

    def interpret_or_raise_restart(self, js: JetStream, cursor: Cursor, arrived: Arrived) -> Step:
        """Take in what has arrived; after a silence check the stream's state, as messages may have been removed."""
        delivered = None
        if arrived.chunk is not None:
            cursor, delivered = self._check_and_filter(js, cursor, arrived.chunk)
        if (silence := arrived.silence) is not None:
            info, cursor = self._ask_state_and_cut(js, cursor)
            if info.first_sequence > cursor.received:
                raise Restart("the stream's limits, or a purge, have removed what it was to deliver")
            if silence >= pulls.HEARTBEAT:
                if self._ask_next(js, cursor, cursor.end) is None:
                    return Step(cursor, Move.END, delivered)
                if silence > 2 * pulls.HEARTBEAT:
                    raise Restart(f"nothing but heartbeats for {silence:.0f} s, but the stream's leader has messages")
        seconds, left = clock.monotonic() - arrived.began, cursor.end - cursor.received
        slow = self._placement.change_if_slow(seconds, cursor.received - arrived.start, left)
        return Step(cursor, Move.CHANGE if slow else Move.RECEIVE, delivered)

    def drop_unwanted(self, delivered: Delivered) -> Delivered | None:
        """Return the whole chunk, because what is wanted of a range does not change."""
        return delivered

    def finish_or_resume(self, js: JetStream, cursor: Cursor) -> Step:
        """Tell whether the range is read once a source is exhausted; if not, move to the next message that exists.

        A leader that was paused may not know that message. So where the leader has not heard from a follower lately,
        the reader believes that there is none only when the leader repeats it a moment later.
        """
        if not cursor.all_received:
            is_doubtful = may_be_former_leader(js)
            if is_doubtful:
                info, cursor = self._ask_state_and_cut(js, cursor)
                is_doubtful = may_be_former_leader(js, info)
            following = self._ask_next(js, cursor, cursor.end, is_doubtful=is_doubtful)
            # After the search, so that it includes what was removed since.
            info, cursor = self._ask_state_and_cut(js, cursor)
            to = decide_where_to_resume(cursor, following, info, bool(self._range.filters))
            if to is None:
                raise Restart("one server says that there is nothing more, and another one that there is")
            cursor = self._judge_and_clear_gaps(js, cursor.skip(to), info)
        elif len(cursor.gaps):
            info, cursor = self._ask_state_and_cut(js, cursor)
            cursor = self._judge_and_clear_gaps(js, cursor, info)
        return Step(cursor, Move.FINISH if cursor.all_received else Move.RECEIVE)

    # Opening a source

    def _open_pulls(
        self, js: JetStream, cursor: Cursor, empty_attempts: int, again: int = 0, seconds: float = 0.0
    ) -> tuple[Source | None, Cursor]:
        """Create a consumer on the planned stream, or move a kept one.

        One that lives on another server than it could was made ``again`` times already, which took ``seconds``.
        """
        stream = self._range.stream
        if not consumers.delivers_all_despite_purges(
            js.connection.info.version, self._range.filters
        ):  # nor does the host, mostly
            self._placement.fix_filtering_side(by_server=False)
        filters = self._range.filters if self._placement.by_server else ()
        position = cursor.received
        key = consumers.ConsumerKey(js.prefix, stream, filters, self._way is ReadMethod.HEADERS)
        began = clock.monotonic()
        moved = consumers.take_and_move_kept(js, key, position) if self._keeps_consumer else None
        used = clock.monotonic() if moved is None else moved.used
        made = consumers.create_making_room(js, key, position) if moved is None else moved.made
        consumer = PullConsumer(js, stream, made, empty_attempts=empty_attempts)
        try:
            # The state is requested after creating the consumer, which proves that the consumer is on this stream.
            info, cursor = self._ask_state_or_lose_rest(js, cursor, None if moved is None else moved.info)
            if cursor.all_received:
                consumer.close()
                return None, cursor
            if made.begins < position:
                raise Restart("its replica lags behind the stream's leader")
            if made.begins > position:
                if self._ask_next(js, cursor, made.begins, (">",)) is not None:
                    raise Restart(_LACKS)
                now, cursor = self._ask_state_and_cut(js, cursor)  # the report includes what was removed since
                cursor = self._judge_and_clear_gaps(js, cursor.skip(made.begins), now)
            if self._placement.by_server:
                matching = made.pending / max(1, info.count_sequences_from(cursor.received))
                self._placement.filter_here_if_most_match(matching, info.average_size)
                if not consumers.delivers_all_despite_purges(made.server_version, filters):
                    self._placement.fix_filtering_side(by_server=False)
            if self._keeps_consumer and consumers.may_keep_consumers(js, info):
                consumer.keep = lambda asked: consumers.keep_or_delete(js, key, made, info.created, max(asked, used))
        except BaseException:
            consumer.close()
            raise
        if filters and not self._placement.by_server:
            consumer.close_or_keep()
            return self._open_pulls(js, cursor, empty_attempts)
        seconds += clock.monotonic() - began
        left = min(cursor.end - cursor.received, cursor.left)
        if needs_nearer_consumer(made, info, js.connection.info, again, seconds, left):
            consumer.close()
            return self._open_pulls(js, cursor, empty_attempts, again + 1, seconds)
        # A moved consumer does not report the first sequence that its replica has.
        self._replica_unverified = moved is not None and made.leader not in ("", moved.info.leader)
        if self._range.filters:
            side = "the server searches" if self._placement.by_server else "all is sent and searched here"
            logger.debug("stream %s, sequences %d to %d: %s", stream, cursor.received, cursor.end - 1, side)
        return consumer, self._limit_requests(cursor)

    def _open_gets(self, js: JetStream, cursor: Cursor, empty_attempts: int) -> tuple[Source | None, Cursor]:
        stream, filters = self._range.stream, self._range.filters
        info, cursor = self._ask_state_or_lose_rest(js, cursor)
        if cursor.all_received:
            return None, cursor
        if not info.allows_direct_gets:
            raise UnsupportedStreamError(conditions.NO_DIRECT_GETS_NOW(stream=stream))
        if info.first_sequence > cursor.received:
            cursor = self._judge_and_clear_gaps(js, cursor.skip(info.first_sequence), info)
        return DirectGets(js, stream, filters[0] if filters else None, empty_attempts), self._limit_requests(cursor)

    def _open_one_get(self, js: JetStream, cursor: Cursor, ahead: DirectGets | None) -> tuple[Source | None, Cursor]:
        """Open direct gets and send the first, unless that was done ahead; it mostly brings the whole range.

        The message at the end of the range, if it is known, proves that the planned stream answers. Where the range
        ends elsewhere, or is limited, the reader requests the stream's state from its leader in the same round trip.
        """
        gets, last = ahead, self._range.last
        if gets is None or not gets.is_on_connection(js):
            gets = DirectGets(js, self._range.stream, None, 0, optional=True)
        cursor = self._limit_requests(cursor)
        gets.request_more(cursor, throttled=False)
        if cursor.left == math.inf and last is not None and last.sequence == cursor.end - 1:
            return gets, cursor
        try:
            _, cursor = self._ask_state_or_lose_rest(js, cursor)
        except BaseException as error:
            gets.close()
            if isinstance(error, PermissionsError):  # of either request; the other methods need the stream's state too
                raise gets.note_unavailable_as_restart(error) from None
            raise
        if cursor.all_received:
            gets.close()
            return None, cursor
        return gets, cursor

    def _limit_requests(self, cursor: Cursor) -> Cursor:
        """Limit the requests to what is still wanted, where every message of the source is wanted."""
        all_wanted = self._placement.by_server or not self._range.filters
        return replace(cursor, wanted=cursor.left if all_wanted else math.inf)

    # Questions to the stream

    def _ask_state_and_cut(
        self, js: JetStream, cursor: Cursor, said: StreamInfo | None = None
    ) -> tuple[StreamInfo, Cursor]:
        """Return the stream's state, and the cursor, cut where the stream has lost its end.

        A state that the leader has just ``said`` is not requested again.
        """
        stream, last = self._range.stream, self._range.last
        info = said or ask_stream_info(js, stream)
        self.created = self.created or info.created
        end = Position(info.created, cursor.end)  # whether it is another stream is not asked here
        if ask_and_judge(js, end, info) is Judgement.TRUNCATED and not self._ask_if_recreated_else_note(js, info):
            self._view.check_loss_before_confirmed(js, end, info, stream)
            self._lost_from = min(self._lost_from, info.last_sequence + 1)
        elif last is None or info.last_sequence >= last.sequence:
            self._view.note_nothing_lost(stream)
        if max(self._lost_from, cursor.received) < cursor.end:
            # Messages stored since then reuse the lost sequences.
            cursor = replace(cursor.cut(self._lost_from), rewritten=True)
            gone = gap(cursor.end, end.next)
            cursor = cursor.lose(conditions.RANGE_LOST(stream=stream, last=self._lost_from - 1, sequences=gone))
        return info, cursor

    def _ask_state_or_lose_rest(
        self, js: JetStream, cursor: Cursor, said: StreamInfo | None = None
    ) -> tuple[StreamInfo, Cursor]:
        """Return the stream's state, and the cursor: at its end, with a loss, when this is not the planned stream."""
        info, cursor = self._ask_state_and_cut(js, cursor, said)
        if self._ask_if_recreated_else_note(js, info):
            cursor = self._lose_rest(cursor, f"was deleted and created again at {info.created}")
        return info, cursor

    def _ask_if_recreated_else_note(self, js: JetStream, info: StreamInfo) -> bool:
        """Tell whether the stream is another one than was planned, or has been read up to now."""
        if self.created is None or info.created == self.created:
            return False
        known = Position(self.created, NO_END)
        if (met := self._met) is not None:
            known = Position(self.created, met.sequence + 1, met.time, latest=self._range.latest)
        if ask_if_recreated(js, known, info):
            return True
        log_created_otherwise(known, info)
        self.created = info.created
        return False

    def _ask_next(
        self, js: JetStream, cursor: Cursor, end: int, filters: Sequence[str] = (), is_doubtful: bool = False
    ) -> int | None:
        """Ask the stream's leader for the next matching sequence before ``end``; None when there is none."""
        filters = filters or self._range.filters or (">",)
        found = ask_first_sequence_from(js, self._range.stream, cursor.received, filters, is_doubtful)
        return found if found is not None and found < end else None

    # Arrivals, gaps, and other histories

    def _check_and_filter(self, js: JetStream, before: Cursor, chunk: Chunk) -> tuple[Cursor, Delivered | None]:
        """Drop messages that lie after the range, belong to another history or match no filter."""
        delivered, first, last = chunk
        count = len(delivered.messages)
        if first < before.received or last < first + count - 1:
            raise chunk.out_of_order_error(self._range.stream, before.received)
        if self._replica_unverified:
            self._replica_unverified = False
            sought = self._range.filters if self._placement.by_server else (">",)
            if first > before.received and self._ask_next(js, before, first, sought, is_doubtful=True) is not None:
                raise Restart(_LACKS)
        cursor, inside = before.receive(delivered.deliveries, first, last)
        if inside < count:
            delivered = delivered.take(slice(inside))
        # Where the server filters, gaps are normal, and the reader does not judge each one at once.
        may_wait = self._placement.by_server or self._range.removed is Removed.NO_LOSS
        at_once = not may_wait or clock.monotonic() - self._judged_at >= _JUDGE_INTERVAL
        if len(cursor.gaps) > len(before.gaps) and at_once:
            info, before = self._ask_state_and_cut(js, before)
            # Where the server does not filter, and the leader has no gaps, the source's replica lacks messages.
            if not self._placement.by_server and replica_surely_lacks(cursor, info):
                raise Restart(_LACKS)
            cursor = self._judge_and_clear_gaps(js, replace(cursor, lost=before.lost), info)
            before = replace(before, lost=cursor.lost)
        before, delivered = self._drop_other_histories(js, before, delivered)
        if self._matcher is not None and not self._placement.by_server and len(delivered.messages):
            delivered = delivered.take(self._matcher.match(delivered.subjects))
        cursor = replace(
            cursor.cut(before.end),  # the stream may have turned out to be shorter meanwhile
            lost=before.lost,
            rewritten=before.rewritten,
            wanted=cursor.wanted - len(delivered.messages),
        )
        return cursor, delivered if len(delivered.messages) else None

    def _judge_and_clear_gaps(self, js: JetStream, cursor: Cursor, info: StreamInfo) -> Cursor:
        """Judge the skipped sequences, report those that the stream's limits have removed, and clear the gaps.

        ``info`` must be requested after the gaps were found.
        """
        self._judged_at = clock.monotonic()
        if self._ask_if_recreated_else_note(js, info):
            raise Restart(_RECREATED)
        stream = self._range.stream
        head, lost = judge_gaps(cursor, info.first_sequence, self._range.removed)
        if len(head):
            logger.warning(conditions.HEAD_REMOVED(stream=stream, sequences=head).with_code)
        if len(lost):
            said = conditions.REMOVED_WHILE_READ(stream=stream, first=info.first_sequence, sequences=lost)
            cursor = cursor.lose(said)
        return cursor.without_gaps()

    def _lose_rest(self, cursor: Cursor, how: str) -> Cursor:
        rest = gap(cursor.received, cursor.end)
        return cursor.with_none_left().lose(
            conditions.RANGE_DELETED(stream=self._range.stream, how=how, sequences=rest)
        )

    def _drop_other_histories(self, js: JetStream, cursor: Cursor, delivered: Delivered) -> tuple[Cursor, Delivered]:
        """Return the cursor, and the messages of the history from which the range was planned.

        The planned last message may be another partition's, or of a subject that is not read now, and never arrive.
        """
        stream, last = self._range.stream, self._range.last
        if not len(delivered.messages):
            return cursor, delivered
        sequence, time = delivered.deliveries.last_sequence_and_time()
        if last is None:
            self._met = Fingerprint(sequence, time)
            return cursor, delivered
        if not cursor.rewritten:
            met = try_judge_by_message(last, sequence, time)
            if met is not Judgement.INTACT:
                info, cursor = self._ask_state_and_cut(js, cursor)  # which may report the end as lost
                if self._ask_if_recreated_else_note(js, info):
                    raise Restart(_RECREATED)
                end = Position(info.created, last.sequence + 1, last.time, latest=self._range.latest)
                if met is None:
                    met = ask_and_judge(js, end, info)
                    if met is Judgement.TRUNCATED and not cursor.rewritten:
                        self._view.check_loss_before_confirmed(js, end, info, stream)
            if met is not Judgement.INTACT and not cursor.rewritten:
                cursor = replace(cursor, rewritten=True).lose(_describe_rewritten(stream, sequence, time, last))
        if cursor.rewritten:
            delivered = delivered.take(delivered.deliveries.timestamps() <= last.time)
        return cursor, delivered


def _describe_rewritten(stream: str, sequence: int, time: int, last: Fingerprint) -> ConditionText:
    """Return the text which says that the planned last message was replaced, and names the message that shows this."""
    now, then = format_time(time), format_time(last.time)
    if sequence == last.sequence:
        return conditions.LAST_REWRITTEN(stream=stream, sequence=sequence, planned=then, time=now)
    return conditions.RANGE_REWRITTEN(stream=stream, sequence=sequence, time=now, last=last.sequence, last_time=then)
