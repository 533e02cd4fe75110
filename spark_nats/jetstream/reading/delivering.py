"""One loop in which all reading is done, over one source of chunks after another: what arrives is handed on in order.

A source is a consumer or direct gets, over one connection. One that leaves something out, falls silent or is gone is
followed by another, behind the last message that was handed on. Nothing is acknowledged and nothing is left behind: all
can be read again any number of times.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from spark_nats import clock
from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import Retries
from spark_nats.conditions import Transient
from spark_nats.conditions.connecting import SERVER_SHUTTING_DOWN
from spark_nats.conditions.notices import READS_ANEW
from spark_nats.conditions.others import ANSWER_FROM_ELSEWHERE
from spark_nats.conditions.streams import STOPPED_DELIVERING
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

    def take(self, chosen: Mask) -> Delivered:
        """Return the chosen messages."""
        if chosen.all():
            return self
        return Delivered(self.messages.take(chosen), self.deliveries.take(chosen))

    def head(self, count: int) -> Delivered:
        """Return the first messages."""
        return Delivered(self.messages.take(slice(count)), self.deliveries.head(count))


class Chunk(NamedTuple):
    """What has arrived at once, with the sequences of its first and its last message."""

    messages: Messages
    deliveries: Deliveries | DirectGetReplies
    first: int
    last: int


def out_of_order(stream: str, asked: int, chunk: Chunk) -> ProtocolError:
    """Return the error that a server has sent what was not asked for."""
    first, last, messages = chunk.first, chunk.last, len(chunk.messages)
    return ProtocolError(ANSWER_FROM_ELSEWHERE(stream=stream, start=asked, messages=messages, first=first, last=last))


class Restart(Exception):  # noqa: N818 - it never leaves the readers
    """A source is of no more use; another one has to go on."""


class Source(Protocol):
    """What brings chunks over one connection, and sees to it that nothing is left out between them."""

    exhausted: bool  # its replica has no more
    idle: bool  # it has just said that it has nothing to send
    silence: float  # seconds waited since the last message
    may_not_close: bool  # whether a server may refuse that it is given up, or was
    wanted: int  # how many messages it may ask for at most, besides those that have arrived

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


class Task(Protocol):
    """What is read: the loop asks it what to do with what arrives, and what it means when nothing does."""

    cursor: Cursor  # how far it was read
    created: str | None  # when the stream was made, once that is known

    @property
    def complete(self) -> bool:
        """Whether all was handed on, and nothing is left to be found out about it."""

    def open(self, js: JetStream, fruitless: int) -> Source | None:
        """Begin to read on through a source, when so many in a row have brought nothing; None when nothing is left."""

    def accept(self, js: JetStream, chunk: Chunk) -> Delivered | None:
        """Move the cursor behind what has arrived; return what of it is wanted."""

    def hand_on(self, delivered: Delivered) -> Delivered | None:
        """Return what of a chunk is still wanted in the moment when it is handed on."""

    def is_over(self, js: JetStream, silence: float) -> bool:
        """Look at the stream when a source is silent: what was to come may have been removed."""

    def is_better_elsewhere(self, seconds: float, passed: int) -> bool:
        """Tell whether another source could do it faster than this one, which has passed so many sequences."""

    def ended(self, js: JetStream) -> bool:
        """Tell, when a source has no more, whether it has brought all; if not, move behind what does not exist."""


class Reading:
    """Reads what tasks want of one stream, each message once and in order.

    A source that is of no more use is followed by another one (ADR-17): at once where there was progress, or the first
    time that there was none, else in the rhythm of ``retries``, as one that cannot be made. When a connection is lost,
    :meth:`read` goes on over another one.

    Args:
        stream: which stream.
        retries: how long to go on without progress; what does not work at once is an error when None.

    Attributes:
        retries: as given.
    """

    def __init__(self, stream: str, retries: Retries | None) -> None:
        self.retries = retries or Retries(_ONCE, f"reading {stream}", established=False)
        self._stream = stream
        self._fruitless = 0  # sources in a row that have brought nothing
        self._refusals = 0  # errors of the API in a row
        self._throttled_until = 0.0

    def read(self, js: JetStream, task: Task) -> Iterator[Delivered]:
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
        while not task.complete:
            task.cursor = task.cursor.restart()
            if _leaves(js, task):
                raise NatsConnectionError(SERVER_SHUTTING_DOWN(server=js.connection.server))
            source: Source | None = None
            before = task.cursor.handed_on
            finished = False
            trouble: Restart | NatsTimeoutError | JetStreamError | None = None
            try:
                source = None if task.cursor.at_end else task.open(js, self._fruitless)
                if source is not None:
                    yield from self._drain(js, task, source)
                if not (_leaves(js, task) or task.ended(js)):
                    raise Restart("its replica has no more messages, but the stream's leader has")
                finished = True
            except (Restart, NatsTimeoutError, JetStreamError) as error:
                trouble = error
            finally:
                if source is not None:
                    (source.finish if finished else source.close)()
                    asks |= source.may_not_close
            if trouble is not None:
                self._recover(js, task, trouble, task.cursor.handed_on > before)
        self.retries.succeeded()
        if asks:
            with contextlib.suppress(NatsConnectionError, NatsTimeoutError):  # of no more concern
                js.connection.flush(_LAST_WORD)

    def _drain(self, js: JetStream, task: Task, source: Source) -> Iterator[Delivered]:
        """Yield what a source brings until all has arrived or its replica has no more."""
        held: deque[tuple[int, Delivered]] = deque()  # with the sequence behind it; several while rows go slowly
        began, start = clock.monotonic(), task.cursor.received
        looked = 0.0  # so long was the silence when the stream was looked at
        while not (task.cursor.at_end or source.exhausted):
            leaving, throttled = _leaves(js, task), clock.monotonic() < self._throttled_until
            if not leaving:
                source.ask(task.cursor, throttled)
            elif not source.in_flight:
                break
            chunk = source.receive()
            if chunk is not None:
                looked = 0.0
                delivered = task.accept(js, chunk)
                if delivered is not None:
                    held.append((task.cursor.received, delivered))
            if source.idle or source.silence - looked > PATIENCE:
                looked = source.silence
                if task.is_over(js, source.silence):
                    break
            better = task.is_better_elsewhere(clock.monotonic() - began, task.cursor.received - start)
            if not (held and throttled and source.in_flight):
                if held and not (throttled or better or leaving):
                    source.ask(task.cursor, throttled)  # so that the server works while the messages are being used
                handed = clock.monotonic()
                yield from self._hand_on(task, held)
                began += clock.monotonic() - handed
            if better:
                raise Restart("the other side searches faster")
        yield from self._hand_on(task, held)

    def _hand_on(self, task: Task, held: deque[tuple[int, Delivered]]) -> Iterator[Delivered]:
        while held:
            until, delivered = held.popleft()
            task.cursor = task.cursor.hand_on(until)
            wanted = task.hand_on(delivered)
            if wanted is None:
                continue
            self.retries.succeeded()
            handed = clock.monotonic()
            yield wanted
            now = clock.monotonic()
            if now - handed > SLOW:
                self._throttled_until = now + THROTTLED
        task.cursor = task.cursor.hand_on(task.cursor.received)

    def _recover(
        self, js: JetStream, task: Task, trouble: Restart | NatsTimeoutError | JetStreamError, progress: bool
    ) -> None:
        """Get ready for another source: wait, where the last ones have brought nothing."""
        if isinstance(trouble, NatsTimeoutError):
            if js.connection.closed:
                raise trouble
            js.connection.flush()  # a server that does not answer this either is left
        position, end = task.cursor.handed_on, task.cursor.end
        # Whoever takes rows slowly finds its consumer deleted, which is normal.
        logger.info(READS_ANEW(stream=self._stream, reason=trouble, sequence=position).coded)
        if progress:
            self.retries.succeeded()
        self._fruitless = 0 if progress else self._fruitless + 1
        self._refusals = 0 if progress or not isinstance(trouble, JetStreamError) else self._refusals + 1
        if isinstance(trouble, JetStreamError) and not (isinstance(trouble, StreamNotFoundError) and task.created):
            if isinstance(trouble, JetStreamUnavailableError):
                raise trouble
            if self._refusals > _REFUSALS and trouble.passes(established=True):
                self._refusals = 0
                raise JetStreamUnavailableError(
                    trouble.args[0],
                    trouble.code,
                    trouble.err_code,
                    trouble.description,
                    transient=Transient.ONCE_ESTABLISHED,
                )
            self.retries.failed(trouble)
        elif self._fruitless > 1:
            before = "" if end == NO_END else f", before {end}"
            stopped = STOPPED_DELIVERING(stream=self._stream, sequence=position, before=before, reason=trouble)
            self.retries.failed(JetStreamError(stopped))


def _leaves(js: JetStream, task: Task) -> bool:
    """Tell whether the rest has to be read elsewhere, because the server is shutting down (lame duck mode)."""
    return js.connection.lame_duck and not task.cursor.at_end
