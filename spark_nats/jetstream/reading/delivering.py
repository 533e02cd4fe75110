"""One loop reads everything: it opens a source, yields its chunks in sequence order, and replaces a failed source.

:func:`decide_move` chooses the loop's next move. Only the loop stores the cursor; :class:`ReadRules` return what they
find out as a value. The loop asks them twice which messages of a chunk are wanted: on arrival, and on delivery.

A source is a consumer or direct gets, over one connection. When a source skips messages, falls silent or is deleted,
the loop opens another one after the last message that it yielded. Reading acknowledges nothing and changes nothing in
the stream, so everything can be read again any number of times.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple, Protocol

import pyarrow as pa

from spark_nats import clock
from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import Retries
from spark_nats.conditions import ConditionText, Transient
from spark_nats.conditions.client import SERVER_SHUTTING_DOWN
from spark_nats.conditions.jetstream import ANSWER_FROM_ELSEWHERE, READS_ANEW, STOPPED_DELIVERING
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsTimeoutError,
    ProtocolError,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.reading.cursor import NO_END, Cursor
from spark_nats.jetstream.reading.judging import raise_data_loss
from spark_nats.protocol.bytecolumns import Mask
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import DirectGetReplies
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

PATIENCE = 0.5
"""Seconds without a message after which the reader requests the stream's state, and requests messages again, in case
the server takes an earlier request for fulfilled."""
SLOW = 2.0
"""Seconds that the caller may take for a batch of rows before the reader stops requesting ahead: a server closes a
connection that accepts no bytes for ten seconds."""
THROTTLED = 30.0  # seconds after a slow batch until the reader requests ahead again
_REFUSALS = 2  # API errors in a row; at one more, the reader asks another server, as this one may be cut off
_LAST_WORD = 1.0  # seconds for a server to report that a consumer may not be deleted
_ONCE = RetryOptions(timeout=0.0, wait=0.0, jitter=0.0, attempts=None)


class Delivered(NamedTuple):
    """A batch of messages of a stream, in sequence order, and their metadata row by row."""

    messages: Messages
    deliveries: Deliveries | DirectGetReplies

    @property
    def subjects(self) -> pa.BinaryArray:
        """The subjects as raw bytes."""
        return self.messages.gather(self.messages.subject)

    def take(self, chosen: slice | Mask) -> Delivered:
        """Return the chosen messages."""
        if not isinstance(chosen, slice) and chosen.all():
            return self
        return Delivered(self.messages.take(chosen), self.deliveries.take(chosen))


class Chunk(NamedTuple):
    """Messages that arrived together, with the sequences of the first and the last one."""

    delivered: Delivered
    first: int
    last: int

    def out_of_order_error(self, stream: str, asked: int) -> ProtocolError:
        """Return the error for messages that are out of order, or before the first sequence ``asked`` for."""
        count, first, last = len(self.delivered.messages), self.first, self.last
        return ProtocolError(ANSWER_FROM_ELSEWHERE(stream=stream, start=asked, messages=count, first=first, last=last))


class Restart(Exception):  # noqa: N818 - it never leaves the readers
    """A source is unusable, and another one has to continue."""


_Trouble = Restart | NatsTimeoutError | JetStreamError


class Source(Protocol):
    """Delivers chunks over one connection, and checks that no message between them is missing."""

    exhausted: bool  # its replica has no more messages
    idle: bool  # the server has just reported that it has nothing to send
    silence: float  # seconds waited since the last message
    close_may_be_refused: bool  # whether the server may refuse a close that is to come or was sent

    @property
    def in_flight(self) -> bool:
        """Whether requested messages may still arrive."""

    def request_more(self, cursor: Cursor, throttled: bool) -> None:
        """Request what is still to arrive, ahead of the caller; hardly ahead when ``throttled``."""

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None when what arrives is no message, or nothing arrives.

        It raises :class:`Restart` when messages are missing, or after too long a silence.
        """

    def close(self) -> None:
        """Give up the source."""

    def close_or_keep(self) -> None:
        """Give up the source, or keep it for the next range: the loop needs nothing more from it."""


class Move(Enum):
    """What the loop does next."""

    OPEN = auto()  # open a source at the cursor
    RECEIVE = auto()  # wait for the source's next chunk
    DELIVER = auto()  # yield what has arrived
    END = auto()  # ask the rules whether everything has arrived
    CHANGE = auto()  # replace the source by a faster one
    LEAVE = auto()  # read the rest from another server, because this one is shutting down (lame duck mode)
    FINISH = auto()


def decide_move(cursor: Cursor, then: Move, *, in_flight: bool, held: bool, lame_duck: bool, throttled: bool) -> Move:
    """Decide the loop's next move.

    ``then`` is the move that the source and the rules suggest; without a source, it is to open one. Requested messages
    may still arrive when ``in_flight``. Arrived chunks are ``held`` until the loop yields them. The caller is slow when
    ``throttled``. The server is shutting down when ``lame_duck``.
    """
    leaves = lame_duck and not cursor.all_received
    if then is Move.OPEN:
        if cursor.all_delivered_and_judged:
            return Move.FINISH
        then = Move.END if cursor.all_received or leaves else then
    elif then is Move.RECEIVE and (cursor.all_received or (leaves and not in_flight)):
        then = Move.END
    waits = held and throttled and in_flight and then is not Move.END
    if cursor.delivered < cursor.received and not waits:
        return Move.DELIVER
    return Move.LEAVE if leaves and then is Move.END else then


class Arrived(NamedTuple):
    """What a source has delivered last, and since when it has been in use."""

    chunk: Chunk | None
    silence: float | None  # seconds without a message, when they are a reason to request the stream's state
    began: float  # when the wait for its first chunk began, moved forward by the time that the caller took
    start: int  # the first sequence that the source was to deliver


class Step(NamedTuple):
    """What the rules conclude from what has happened."""

    cursor: Cursor  # how far the range is read now
    then: Move  # the next move
    delivered: Delivered | None = None  # the wanted messages of a chunk


class ReadRules(Protocol):
    """Tell the loop what to do with what arrives, and what silence means."""

    created: str | None  # when the stream was created, once that is known

    def open(self, js: JetStream, cursor: Cursor, empty_attempts: int) -> tuple[Source | None, Cursor]:
        """Open a source at the cursor, after ``empty_attempts`` sources in a row brought nothing; None at the end."""

    def interpret_or_raise_restart(self, js: JetStream, cursor: Cursor, arrived: Arrived) -> Step:
        """Move past what has arrived; after a silence, check the stream's state, as messages may have been removed."""

    def drop_unwanted(self, delivered: Delivered) -> Delivered | None:
        """Return the messages of a chunk that are still wanted when the loop yields it; None when none are."""

    def finish_or_resume(self, js: JetStream, cursor: Cursor) -> Step:
        """Tell whether an exhausted source has delivered everything; if not, move past sequences that do not exist."""


@dataclass(slots=True)
class _OpenSource:
    source: Source
    start: int  # as in :class:`Arrived`
    began: float  # as in :class:`Arrived`
    silence_at_look: float = 0.0  # the silence in seconds at the last request for the stream's state
    then: Move = Move.RECEIVE
    # Chunks to yield, each with the sequence after it; several while the caller is slow.
    held: deque[tuple[int, Delivered]] = field(default_factory=deque)


class Reading:
    """Reads the messages of a stream that :class:`ReadRules` want, each exactly once and in order.

    The loop replaces an unusable source (ADR-17): at once after progress, and after the first attempt without progress.
    After further attempts without progress, and after errors of the API, it first waits as ``retries`` sets. After a
    lost connection, :meth:`read` continues over another one.

    Args:
        stream: name of the stream.
        cursor: where to begin.
        retries: how long to retry without progress; None for no retries.
        lost: called with a sentence about what the cursor has lost; when it returns, reading continues.
        on_arrival: called whenever messages have arrived, wanted or not.

    Attributes:
        cursor: how far the stream is read.
        retries: the argument; when that is None, a :class:`Retries` that fails at once.
    """

    def __init__(
        self,
        stream: str,
        cursor: Cursor,
        retries: Retries | None,
        lost: Callable[[ConditionText], None] = raise_data_loss,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        self.cursor = cursor
        self.retries = retries or Retries(_ONCE, f"reading {stream}", established=False)
        self._stream = stream
        self._lost = lost
        self._on_arrival = on_arrival
        self._empty_attempts = 0  # sources in a row that brought nothing
        self._refusals = 0  # API errors in a row
        self._throttled_until = 0.0
        self._throttled = False

    def read(self, js: JetStream, rules: ReadRules) -> Iterator[Delivered]:
        """Continue reading over a connection.

        Raises:
            StreamNotFoundError: the stream does not exist, and the rules do not know that it ever did.
            JetStreamUnavailableError: JetStream does not answer, or fails repeatedly; it may work on another server.
            JetStreamError: the server refuses the consumer or has stopped delivering, for good or for longer than the
                retries last.
            NatsTimeoutError: the server does not answer at all.
            NatsConnectionError: the connection was lost, or its server is shutting down.
            DataLossError: messages are lost, and ``lost`` raises it.
            NatsError: the server has reported an error, or an answer is invalid.
        """
        awaits_refusal = False  # whether to wait for a report that a close was refused
        use: _OpenSource | None = None
        self.cursor = self.cursor.back_to_delivered()
        before = self.cursor.delivered
        try:
            while (move := self._decide(js, use)) is not Move.FINISH:
                trouble: _Trouble | None = None
                try:
                    match move:
                        case Move.OPEN:
                            source, cursor = rules.open(js, self.cursor, self._empty_attempts)
                            if source is not None:
                                use = _OpenSource(source, cursor.received, clock.monotonic())
                            self._store_cursor_and_report_losses(cursor)
                            continue
                        case Move.RECEIVE if use is not None:
                            self._receive(js, rules, use)
                            continue
                        case Move.DELIVER if use is not None:
                            yield from self._deliver(js, rules, use)
                            continue
                        case Move.END:
                            cursor, then, _ = rules.finish_or_resume(js, self.cursor)
                            self._store_cursor_and_report_losses(cursor)
                            if then is Move.RECEIVE:
                                raise Restart("its replica has no more messages, but the stream's leader has")
                        case Move.CHANGE:
                            raise Restart("the filters would be faster on the other side, server or reader")
                except (Restart, NatsTimeoutError, JetStreamError) as error:
                    trouble = error
                if use is not None:
                    source, use = use.source, None
                    (source.close_or_keep if trouble is None else source.close)()
                    awaits_refusal |= source.close_may_be_refused
                if move is Move.LEAVE:
                    raise NatsConnectionError(SERVER_SHUTTING_DOWN(server=js.connection.server))
                if trouble is not None:
                    self._wait_or_raise(js, rules, trouble, self.cursor.delivered > before)
                self.cursor = self.cursor.back_to_delivered()
                before = self.cursor.delivered
        finally:
            if use is not None:
                use.source.close()
        self.retries.note_success()
        if awaits_refusal:
            with contextlib.suppress(NatsConnectionError, NatsTimeoutError):  # it no longer matters
                js.connection.flush(_LAST_WORD)

    def _decide(self, js: JetStream, use: _OpenSource | None) -> Move:
        then, in_flight, held = Move.OPEN, False, False
        if use is not None:
            then, in_flight, held = use.then, use.source.in_flight, bool(use.held)
            if use.source.exhausted and then is Move.RECEIVE:
                then = Move.END
        self._throttled = clock.monotonic() < self._throttled_until
        lame_duck, throttled = js.connection.lame_duck, self._throttled
        return decide_move(self.cursor, then, in_flight=in_flight, held=held, lame_duck=lame_duck, throttled=throttled)

    def _store_cursor_and_report_losses(self, cursor: Cursor) -> None:
        """Store the cursor that the rules return, and report what it has lost."""
        self.cursor = replace(cursor, lost=())
        for what in cursor.lost:
            self._lost(what)

    def _receive(self, js: JetStream, rules: ReadRules, use: _OpenSource) -> None:
        """Wait for what a source delivers next, and have the rules interpret it."""
        source, silence = use.source, None
        if not js.connection.lame_duck:
            source.request_more(self.cursor, self._throttled)
        chunk = source.receive()
        if chunk is not None:
            use.silence_at_look = 0.0
        if source.idle or source.silence - use.silence_at_look > PATIENCE:
            use.silence_at_look = silence = source.silence
        arrived = Arrived(chunk, silence, use.began, use.start)
        cursor, use.then, delivered = rules.interpret_or_raise_restart(js, self.cursor, arrived)
        self._store_cursor_and_report_losses(cursor)
        if chunk is not None and self._on_arrival is not None:
            self._on_arrival()
        if delivered is not None:
            use.held.append((cursor.received, delivered))

    def _deliver(self, js: JetStream, rules: ReadRules, use: _OpenSource) -> Iterator[Delivered]:
        """Yield what has arrived, up to the limit if there is one: there the range ends."""
        if use.held and use.then is Move.RECEIVE and not (self._throttled or js.connection.lame_duck):
            # So that the server works while the caller uses the messages.
            use.source.request_more(self.cursor, throttled=False)
        began = clock.monotonic()
        while use.held:
            until, delivered = use.held.popleft()
            wanted = rules.drop_unwanted(delivered)
            count = 0 if wanted is None else len(wanted.messages)
            self.cursor = self.cursor.deliver(until, count)
            if wanted is None:
                continue
            if self.cursor.left <= 0:
                wanted = wanted.take(slice(count + int(self.cursor.left)))
                self.cursor = self.cursor.finish(int(wanted.deliveries.stream_sequences()[-1]) + 1)
                use.held.clear()
            self.retries.note_success()
            yielded = clock.monotonic()
            yield wanted
            now = clock.monotonic()
            if now - yielded > SLOW:
                self._throttled_until = now + THROTTLED
        self.cursor = self.cursor.deliver(self.cursor.received)
        use.began += clock.monotonic() - began

    def _wait_or_raise(self, js: JetStream, rules: ReadRules, trouble: _Trouble, progress: bool) -> None:
        """Prepare for another source: wait after an API error, or if the last ones brought nothing; or raise."""
        if isinstance(trouble, NatsTimeoutError):
            if js.connection.closed:
                raise trouble
            js.connection.flush()  # a server that does not answer this either is given up
        position, end = self.cursor.delivered, self.cursor.end
        # A slow caller finds its consumer deleted, which is normal.
        logger.info(READS_ANEW(stream=self._stream, reason=trouble, sequence=position).with_code)
        if progress:
            self.retries.note_success()
        self._empty_attempts = 0 if progress else self._empty_attempts + 1
        self._refusals = 0 if progress or not isinstance(trouble, JetStreamError) else self._refusals + 1
        if isinstance(trouble, JetStreamError) and not (isinstance(trouble, StreamNotFoundError) and rules.created):
            if isinstance(trouble, JetStreamUnavailableError):
                raise trouble
            if self._refusals > _REFUSALS and trouble.may_pass(established=True):
                self._refusals = 0
                said = trouble.args[0], trouble.code, trouble.err_code, trouble.description
                raise JetStreamUnavailableError(*said, transient=Transient.ONCE_ESTABLISHED)
            self.retries.wait_or_raise(trouble)
        elif self._empty_attempts > 1:
            before = "" if end == NO_END else f", before {end}"
            stopped = STOPPED_DELIVERING(stream=self._stream, sequence=position, before=before, reason=trouble)
            self.retries.wait_or_raise(JetStreamError(stopped))
