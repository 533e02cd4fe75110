"""One loop in which all reading is done, over one source of chunks after another: what arrives is handed on in order.

What to do next, :func:`decide` says. How far reading has come only the loop writes down: what a task finds out, it
returns as a value. A task is asked twice about a chunk: what of it is wanted, and again when it is handed on.

A source is a consumer or direct gets, over one connection. One that leaves something out, falls silent or is gone is
followed by another, behind the last message that was handed on. Nothing is acknowledged and nothing is left behind: all
can be read again any number of times.
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
from spark_nats.jetstream.reading.judging import fail_on_loss
from spark_nats.protocol.bytecolumns import Mask
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import DirectGetReplies
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

PATIENCE = 0.5
"""Seconds without a message after which the stream is looked at, and the server is asked again, in case it takes a
request for fulfilled."""
SLOW = 2.0
"""Seconds for which a batch of rows may be taken before nothing more is left in flight meanwhile: a server closes a
connection that does not take its bytes for ten."""
THROTTLED = 30.0  # seconds without such a slow batch after which the server works ahead again
_REFUSALS = 2  # errors of the API in a row after which another server is to be asked: this one may be cut off
_LAST_WORD = 1.0  # seconds for a server to say that a consumer may not be deleted
_ONCE = RetryOptions(timeout=0.0, wait=0.0, jitter=0.0, attempts=None)


class Delivered(NamedTuple):
    """A batch of messages of a stream, in sequence order, and their metadata row by row."""

    messages: Messages
    deliveries: Deliveries | DirectGetReplies

    @property
    def subjects(self) -> pa.BinaryArray:
        """The subjects, as they are."""
        return self.messages.gather(self.messages.subject)

    def take(self, chosen: slice | Mask) -> Delivered:
        """Return the chosen messages."""
        if not isinstance(chosen, slice) and chosen.all():
            return self
        return Delivered(self.messages.take(chosen), self.deliveries.take(chosen))


class Chunk(NamedTuple):
    """What has arrived at once, with the sequences of its first and its last message."""

    delivered: Delivered
    first: int
    last: int

    def out_of_order(self, stream: str, asked: int) -> ProtocolError:
        """Return the error that a server has sent what was not asked for."""
        count, first, last = len(self.delivered.messages), self.first, self.last
        return ProtocolError(ANSWER_FROM_ELSEWHERE(stream=stream, start=asked, messages=count, first=first, last=last))


class Restart(Exception):  # noqa: N818 - it never leaves the readers
    """A source is of no more use; another one has to go on."""


_Trouble = Restart | NatsTimeoutError | JetStreamError


class Source(Protocol):
    """What brings chunks over one connection, and sees to it that nothing is left out between them."""

    exhausted: bool  # its replica has no more
    idle: bool  # it has just said that it has nothing to send
    silence: float  # seconds waited since the last message
    close_may_be_refused: bool  # whether a server may refuse that it is given up, or was

    @property
    def in_flight(self) -> bool:
        """Whether something was asked for that may still come."""

    def ask(self, cursor: Cursor, throttled: bool) -> None:
        """Keep the server at work on what is still to arrive; hardly ahead of what is taken when ``throttled``."""

    def receive(self) -> Chunk | None:
        """Wait for what arrives next; None when it is no message, or nothing.

        That something is missing, or nothing comes any more, is a :class:`Restart`.
        """

    def close(self) -> None:
        """Give it up."""

    def finish(self) -> None:
        """Give it up, or keep it for the next range: it has brought all that it was to bring."""


class Move(Enum):
    """What the loop does next."""

    OPEN = auto()  # begin to read on through a source
    RECEIVE = auto()  # wait for what it brings next
    DELIVER = auto()  # hand on what has arrived
    END = auto()  # see whether it has brought all
    CHANGE = auto()  # give it up for one that is faster
    LEAVE = auto()  # have the rest read elsewhere, because the server is shutting down (lame duck mode)
    FINISH = auto()


def decide(cursor: Cursor, then: Move, *, asked: bool, held: bool, lame_duck: bool, throttled: bool) -> Move:
    """Decide what to do next, where source and task say what is ``then`` to come: to open one where there is none.

    Something may still come that was ``asked`` for. What has arrived is ``held`` until it is handed on, which goes
    slowly when ``throttled``. A ``lame_duck`` is a server that is shutting down.
    """
    leaves = lame_duck and not cursor.at_end
    if then is Move.OPEN:
        if cursor.complete:
            return Move.FINISH
        then = Move.END if cursor.at_end or leaves else then
    elif then is Move.RECEIVE and (cursor.at_end or (leaves and not asked)):
        then = Move.END
    waits = held and throttled and asked and then is not Move.END
    if cursor.delivered < cursor.received and not waits:
        return Move.DELIVER
    return Move.LEAVE if leaves and then is Move.END else then


class Arrived(NamedTuple):
    """What a source has brought last, and since when it is in use."""

    chunk: Chunk | None
    silence: float | None  # seconds without a message, when they are a reason to look at the stream
    began: float  # when its first chunk was waited for, later by the time in which rows were taken
    start: int  # the first sequence that it was to bring


class Step(NamedTuple):
    """What a task makes of what has happened."""

    cursor: Cursor  # how far it was read now
    then: Move  # what is to come
    delivered: Delivered | None = None  # what is wanted of what has arrived


class ReadTask(Protocol):
    """What is read: the loop asks it what to do with what arrives, and what it means when nothing does."""

    created: str | None  # when the stream was made, once that is known

    def open(self, js: JetStream, cursor: Cursor, empty_attempts: int) -> tuple[Source | None, Cursor]:
        """Begin to read on through a source, when so many in a row have brought nothing; None when nothing is left."""

    def receive(self, js: JetStream, cursor: Cursor, arrived: Arrived) -> Step:
        """Move behind what has arrived; look at the stream when that is silent: what was to come may be removed."""

    def deliver(self, delivered: Delivered) -> Delivered | None:
        """Return what of a chunk is still wanted in the moment when it is handed on."""

    def finish_or_resume(self, js: JetStream, cursor: Cursor) -> Step:
        """Tell, when a source has no more, whether it has brought all; if not, move behind what does not exist."""


@dataclass(slots=True)
class _OpenSource:
    """A source in use."""

    source: Source
    start: int  # as of :class:`Arrived`
    began: float
    looked: float = 0.0  # so long was the silence when the stream was looked at
    then: Move = Move.RECEIVE
    # What is to be handed on, with the sequence behind it; several while rows go slowly.
    held: deque[tuple[int, Delivered]] = field(default_factory=deque)


class Reading:
    """Reads what a task wants of a stream, each message once and in order.

    A source that is of no more use is followed by another one (ADR-17): at once where there was progress, or the first
    time that there was none, else in the rhythm of ``retries``, as one that cannot be made. When a connection is lost,
    :meth:`read` goes on over another one.

    Args:
        stream: which stream.
        cursor: where to begin.
        retries: how long to go on without progress; what does not work at once is an error when None.
        lost: called with a sentence about what the cursor has lost; when it returns, reading goes on.
        on_arrival: called each time that messages have arrived, wanted ones or not.

    Attributes:
        cursor: how far it was read.
        retries: as given.
    """

    def __init__(
        self,
        stream: str,
        cursor: Cursor,
        retries: Retries | None,
        lost: Callable[[ConditionText], None] = fail_on_loss,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        self.cursor = cursor
        self.retries = retries or Retries(_ONCE, f"reading {stream}", established=False)
        self._stream = stream
        self._lost = lost
        self._on_arrival = on_arrival
        self._empty_attempts = 0  # sources in a row that have brought nothing
        self._refusals = 0  # errors of the API in a row
        self._throttled_until = 0.0
        self._throttled = False

    def read(self, js: JetStream, task: ReadTask) -> Iterator[Delivered]:
        """Read on over a connection.

        Raises:
            StreamNotFoundError: there is no such stream, and it is not known that there was.
            JetStreamUnavailableError: JetStream does not answer there, or was not ready several times; it may be at
                another server.
            JetStreamError: the server refuses the consumer, or has stopped delivering, and that does not pass or has
                not passed in time.
            NatsTimeoutError: the server does not answer at all.
            NatsConnectionError: the connection was lost, or its server is shutting down.
            NatsError: the server has reported an error.
        """
        asks = False  # whether it is to be heard that nothing was refused
        use: _OpenSource | None = None
        self.cursor = self.cursor.restart()
        before = self.cursor.delivered
        try:
            while (move := self._decide(js, use)) is not Move.FINISH:
                trouble: _Trouble | None = None
                try:
                    match move:
                        case Move.OPEN:
                            source, cursor = task.open(js, self.cursor, self._empty_attempts)
                            if source is not None:
                                use = _OpenSource(source, cursor.received, clock.monotonic())
                            self._learn(cursor)
                            continue
                        case Move.RECEIVE if use is not None:
                            self._receive(js, task, use)
                            continue
                        case Move.DELIVER if use is not None:
                            yield from self._deliver(js, task, use)
                            continue
                        case Move.END:
                            cursor, then, _ = task.finish_or_resume(js, self.cursor)
                            self._learn(cursor)
                            if then is Move.RECEIVE:
                                raise Restart("its replica has no more messages, but the stream's leader has")
                        case Move.CHANGE:
                            raise Restart("the other side searches faster")
                except (Restart, NatsTimeoutError, JetStreamError) as error:
                    trouble = error
                if use is not None:
                    source, use = use.source, None
                    (source.finish if trouble is None else source.close)()
                    asks |= source.close_may_be_refused
                if move is Move.LEAVE:
                    raise NatsConnectionError(SERVER_SHUTTING_DOWN(server=js.connection.server))
                if trouble is not None:
                    self._recover(js, task, trouble, self.cursor.delivered > before)
                self.cursor = self.cursor.restart()
                before = self.cursor.delivered
        finally:
            if use is not None:
                use.source.close()
        self.retries.succeeded()
        if asks:
            with contextlib.suppress(NatsConnectionError, NatsTimeoutError):  # of no more concern
                js.connection.flush(_LAST_WORD)

    def _decide(self, js: JetStream, use: _OpenSource | None) -> Move:
        then, asked, held = Move.OPEN, False, False
        if use is not None:
            then, asked, held = use.then, use.source.in_flight, bool(use.held)
            if use.source.exhausted and then is Move.RECEIVE:
                then = Move.END
        self._throttled = clock.monotonic() < self._throttled_until
        lame_duck, throttled = js.connection.lame_duck, self._throttled
        return decide(self.cursor, then, asked=asked, held=held, lame_duck=lame_duck, throttled=throttled)

    def _learn(self, cursor: Cursor) -> None:
        """Take over what a task has found out, and say what is lost."""
        self.cursor = cursor
        if cursor.lost:
            self.cursor = replace(cursor, lost=())
            for what in cursor.lost:
                self._lost(what)

    def _receive(self, js: JetStream, task: ReadTask, use: _OpenSource) -> None:
        """Wait for what a source brings next, and see what it means."""
        source, silence = use.source, None
        if not js.connection.lame_duck:
            source.ask(self.cursor, self._throttled)
        chunk = source.receive()
        if chunk is not None:
            use.looked = 0.0
        if source.idle or source.silence - use.looked > PATIENCE:
            use.looked = silence = source.silence
        arrived = Arrived(chunk, silence, use.began, use.start)
        cursor, use.then, delivered = task.receive(js, self.cursor, arrived)
        self._learn(cursor)
        if chunk is not None and self._on_arrival is not None:
            self._on_arrival()
        if delivered is not None:
            use.held.append((cursor.received, delivered))

    def _deliver(self, js: JetStream, task: ReadTask, use: _OpenSource) -> Iterator[Delivered]:
        """Yield what has arrived, up to the limit if there is one: there the range ends."""
        if use.held and use.then is Move.RECEIVE and not (self._throttled or js.connection.lame_duck):
            use.source.ask(self.cursor, throttled=False)  # so that the server works while the messages are being used
        began = clock.monotonic()
        while use.held:
            until, delivered = use.held.popleft()
            wanted = task.deliver(delivered)
            count = 0 if wanted is None else len(wanted.messages)
            self.cursor = self.cursor.deliver(until, count)
            if wanted is None:
                continue
            if self.cursor.left <= 0:
                wanted = wanted.take(slice(count + int(self.cursor.left)))
                self.cursor = self.cursor.finish(int(wanted.deliveries.stream_sequences()[-1]) + 1)
                use.held.clear()
            self.retries.succeeded()
            handed = clock.monotonic()
            yield wanted
            now = clock.monotonic()
            if now - handed > SLOW:
                self._throttled_until = now + THROTTLED
        self.cursor = self.cursor.deliver(self.cursor.received)
        use.began += clock.monotonic() - began

    def _recover(self, js: JetStream, task: ReadTask, trouble: _Trouble, progress: bool) -> None:
        """Get ready for another source: wait, where the last ones have brought nothing."""
        if isinstance(trouble, NatsTimeoutError):
            if js.connection.closed:
                raise trouble
            js.connection.flush()  # a server that does not answer this either is left
        position, end = self.cursor.delivered, self.cursor.end
        # Whoever takes rows slowly finds its consumer deleted, which is normal.
        logger.info(READS_ANEW(stream=self._stream, reason=trouble, sequence=position).with_code)
        if progress:
            self.retries.succeeded()
        self._empty_attempts = 0 if progress else self._empty_attempts + 1
        self._refusals = 0 if progress or not isinstance(trouble, JetStreamError) else self._refusals + 1
        if isinstance(trouble, JetStreamError) and not (isinstance(trouble, StreamNotFoundError) and task.created):
            if isinstance(trouble, JetStreamUnavailableError):
                raise trouble
            if self._refusals > _REFUSALS and trouble.may_pass(established=True):
                self._refusals = 0
                said = trouble.args[0], trouble.code, trouble.err_code, trouble.description
                raise JetStreamUnavailableError(*said, transient=Transient.ONCE_ESTABLISHED)
            self.retries.failed(trouble)
        elif self._empty_attempts > 1:
            before = "" if end == NO_END else f", before {end}"
            stopped = STOPPED_DELIVERING(stream=self._stream, sequence=position, before=before, reason=trouble)
            self.retries.failed(JetStreamError(stopped))
