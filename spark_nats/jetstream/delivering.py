"""Taking what ephemeral pull consumers deliver, one consumer after another: what all reading has in common.

The server sends what was asked for and no more: pull requests are bounded in messages and in bytes, and never more is
in flight than the socket can hold, since the server closes connections that cannot keep up. The consumer counts its
deliveries, so a missing one is noticed: then, and when it falls silent, a new consumer goes on behind the last message
that arrived. Nothing is acknowledged and nothing is left behind: all can be read again any number of times.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import Retries, may_pass
from spark_nats.client.subscriptions import Subscription
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    ProtocolError,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consumers import Consumer, delete_consumer
from spark_nats.jetstream.doubts import Doubts
from spark_nats.jetstream.pulling import PullRequests, sizes_of
from spark_nats.jetstream.streams import next_sequence
from spark_nats.protocol.api import Api, encode_pull
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import Gotten
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.statuses import (
    CONFLICT,
    NO_RESPONDERS,
    BatchTooLarge,
    ConsumerGone,
    Heartbeat,
    RequestEnded,
    RequestRefused,
    RequestsForgotten,
    parse_status,
    pull_event,
)

logger = logging.getLogger(__name__)

PULL_MESSAGES = 16384
"""Messages asked for by one pull request."""
PULL_BYTES = 2 << 20
"""Bytes allowed to one pull request; raised for a stream with larger messages. Two requests are in flight, which is
what the two socket buffers of a connection hold by Linux's defaults."""
HEADROOM = 64 << 10
"""Bytes of a pull request for what a message takes beside payload and headers, which are ``max_payload`` at most."""
HEARTBEAT = 5.0
"""Seconds after which the server sends a sign of life when it has nothing to send."""
PULL_EXPIRES = 30.0
"""Seconds that a pull request lives."""
PATIENCE = 0.5
"""Seconds without a message after which the stream is looked at, and the server is asked again, in case it takes a
request for fulfilled."""
SLOW = 2.0
"""Seconds for which a batch of rows may be taken before nothing more is left in flight meanwhile: a server closes a
connection that does not take its bytes for ten."""
CALM = 30.0
"""Seconds without such a slow batch after which the server works ahead again."""
_CALM_EXPIRES = 1.0  # seconds that a pull request lives while rows are taken slowly
_REFUSALS = 2  # errors of the API in a row after which another server is to be asked: this one may be cut off
_LAST_WORD = 1.0  # seconds for a server to say that a consumer may not be deleted
_ONCE = RetryOptions(timeout=0.0, wait=0.0, jitter=0.0, attempts=None)
_LARGEST_PULL_BYTES = 128 << 20


class Delivered(NamedTuple):
    """A batch of messages of a stream, in sequence order, and their metadata row by row."""

    messages: Messages
    deliveries: Deliveries | Gotten


class Restart(Exception):  # noqa: N818 - it never leaves the readers
    """What is read through is of no more use; another one has to go on."""


class Opened(NamedTuple):
    """What is read through over one connection.

    Attributes:
        deliveries: what it brings, until all is read or its replica has no more.
        close: gives it up.
    """

    deliveries: Iterator[Delivered]
    close: Callable[[], None]


class DeliveryReader(ABC):
    """Reads what consumers deliver, each message exactly once and in order.

    A consumer that leaves something out, falls silent or is gone is followed by another one behind the last message
    that was handed on (ADR-17): at once where there was progress, or the first time that there was none, else in the
    rhythm of ``retries``, as one that cannot be made. When a connection is lost, :meth:`read` goes on over another one.

    Args:
        stream: which stream.
        start: first sequence.
        filters: only subjects that match one of these; all when empty.
        created: when the stream was made, which tells it from a later one of its name; None for the one there is.
        retries: how long to go on without progress; what does not work at once is an error when None.

    Attributes:
        position: everything before it has been handed on, or does not exist.
    """

    def __init__(
        self, stream: str, start: int, filters: Sequence[str], created: str | None, retries: Retries | None
    ) -> None:
        self.position = start
        self._stream = stream
        self._filters = tuple(filters)
        self._created = created
        self._retries = retries or Retries(_ONCE, f"reading {stream}", known=False)
        self._doubts = Doubts(self._retries.timeout)
        self._fruitless = 0  # consumers in a row that have brought nothing
        self._refusals = 0  # errors of the API in a row
        self._calm_until = 0.0
        self._max_bytes: int | None = 0  # of a pull request; None where it is bounded in messages only

    # What is read

    @abstractmethod
    def _at_end(self) -> bool:
        """Tell whether all has been read."""

    @abstractmethod
    def _open(self, js: JetStream) -> Opened | None:
        """Begin to read the stream that was planned; None when there is nothing left to read."""

    @abstractmethod
    def _accept(self, consumer: PullConsumer, messages: Messages) -> Delivered | None:
        """Move the position behind messages that a consumer has delivered; return those that are wanted."""

    @abstractmethod
    def _nothing_left(self, consumer: PullConsumer, silence: float) -> bool:
        """Look at the stream when nothing has arrived for so many seconds: what was to come may have been removed."""

    @abstractmethod
    def _ended(self, js: JetStream) -> bool:
        """Tell whether all has been read, when a consumer has no more."""

    @abstractmethod
    def _wanted(self, requested: int) -> int:
        """Return how many messages to ask for beside so many for which requests are open."""

    def _go_back(self, position: int) -> None:
        """Have everything from a position on read again, because it was not handed on."""
        self.position = position

    def _change(self, seconds: float, passed: int) -> bool:
        """Tell whether another consumer could do it faster than this one, which has passed so many sequences."""
        return False

    # How it is read

    def read(self, js: JetStream) -> Iterator[Delivered]:
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
        while not self._at_end():
            if self._leaves(js):
                raise NatsConnectionError(f"{js.connection.server} is shutting down (lame duck mode)")
            opened: Opened | None = None
            before = self.position
            trouble: Restart | NatsTimeoutError | JetStreamError | None = None
            try:
                opened = self._open(js)
                if opened is not None:
                    for delivered in opened.deliveries:
                        self._retries.succeeded()
                        handed = time.monotonic()
                        yield delivered
                        now = time.monotonic()
                        if now - handed > SLOW:
                            self._calm_until = now + CALM
                    if not (self._leaves(js) or self._ended(js)):
                        raise Restart("its replica has no more messages, but the stream's leader has")
            except (Restart, NatsTimeoutError, JetStreamError) as error:
                trouble = error
            finally:
                if opened is not None:
                    opened.close()
            if trouble is not None:
                self._recover(js, trouble, self.position > before)
        self._retries.succeeded()
        with contextlib.suppress(NatsConnectionError, NatsTimeoutError):  # of no more concern
            js.connection.flush(_LAST_WORD)

    def _leaves(self, js: JetStream) -> bool:
        """Tell whether the rest has to be read elsewhere, because the server is shutting down (lame duck mode)."""
        return js.connection.retiring and not self._at_end()

    def _recover(self, js: JetStream, trouble: Restart | NatsTimeoutError | JetStreamError, progress: bool) -> None:
        """Get ready for another consumer: wait, where the last ones have brought nothing.

        Raises:
            NatsError: it does not pass, or has not passed in time.
        """
        if isinstance(trouble, NatsTimeoutError):
            if js.connection.closed:
                raise trouble
            js.connection.flush()  # a server that does not answer this either is left
        # Whoever takes rows slowly finds its consumer deleted, which is normal.
        logger.info(
            "stream %s: what reads it is given up (%s); another one goes on at sequence %d",
            self._stream,
            trouble,
            self.position,
        )
        if progress:
            self._retries.succeeded()
        self._fruitless = 0 if progress else self._fruitless + 1
        self._refusals = 0 if progress or not isinstance(trouble, JetStreamError) else self._refusals + 1
        if isinstance(trouble, JetStreamError) and not (isinstance(trouble, StreamNotFoundError) and self._created):
            if isinstance(trouble, JetStreamUnavailableError):
                raise trouble
            if self._refusals > _REFUSALS and may_pass(trouble, known=True):
                self._refusals = 0
                raise JetStreamUnavailableError(str(trouble), trouble.code, trouble.err_code, trouble.description)
            self._retries.failed(trouble)
        elif self._fruitless > 1:
            self._retries.failed(
                JetStreamError(
                    f"stream {self._stream!r} stopped delivering at sequence {self.position}{self._before_what()}: "
                    f"{trouble}",
                    NO_RESPONDERS,
                )
            )

    def _before_what(self) -> str:
        """Say what was still to be read, as the end of a sentence."""
        return ""

    def _use(self, js: JetStream, made: Consumer) -> PullConsumer:
        """Begin to use a consumer that was made."""
        self._max_bytes = max(self._max_bytes or 0, PULL_BYTES, js.connection.info.max_payload + HEADROOM)
        return PullConsumer(js, self._stream, made.name, made.max_batch)

    def _opened(self, consumer: PullConsumer) -> Opened:
        """Return a consumer as what is read through."""
        return Opened(self._deliveries(consumer), consumer.close)

    def _deliveries(self, consumer: PullConsumer) -> Iterator[Delivered]:
        """Yield what matches until all is read or the consumer's replica has no more."""
        held: deque[tuple[int, Delivered]] = deque()  # with the position before; may be several while rows go slowly
        try:
            yield from self._receive(consumer, held)
        finally:
            if held:  # what was not handed on has to be read again
                self._go_back(held[0][0])

    def _receive(self, consumer: PullConsumer, held: deque[tuple[int, Delivered]]) -> Iterator[Delivered]:
        connection = consumer.js.connection
        began = last_arrival = last_look = time.monotonic()
        first = self.position
        while not (self._at_end() or consumer.exhausted):
            self._ask(consumer)
            if self._leaves(consumer.js) and not len(consumer.requests):
                break
            arrived = connection.next(consumer.inbox, PATIENCE)
            now = time.monotonic()
            if arrived is None:
                if now - max(last_arrival, consumer.last_heartbeat) > 2 * HEARTBEAT:
                    raise Restart(f"no message and no heartbeat for {now - last_arrival:.0f} s")
                consumer.requests.forget()
            else:
                from_server = arrived.reply.start == arrived.reply.end  # a delivery always has a reply
                statuses = [arrived.header_at(int(i)) for i in np.flatnonzero(from_server)]
                messages = arrived.take(~from_server) if statuses else arrived
                if len(messages):
                    last_arrival = last_look = now
                    before = self.position
                    delivered = self._accept(consumer, messages)
                    if delivered is not None:
                        held.append((before, delivered))
                for header in statuses:
                    self._heed(consumer, header)
            if now - last_look > PATIENCE:
                last_look = now
                if self._nothing_left(consumer, now - last_arrival):
                    break
            change = self._change(time.monotonic() - began, self.position - first)
            calm = now < self._calm_until
            if held and not (calm and len(consumer.requests)):
                if not calm and not change:
                    self._ask(consumer)  # so that the server works while the messages are being used
                handed = time.monotonic()
                while held:
                    yield held.popleft()[1]
                last_arrival = last_look = time.monotonic()
                began += last_arrival - handed
            if change:
                raise Restart("the other side searches faster")
        while held:
            yield held.popleft()[1]

    def _ask(self, consumer: PullConsumer) -> None:
        """Keep one pull request working while another one waits behind it; while rows are taken slowly, just one.

        Of a server that is shutting down nothing more is asked for.
        """
        if self._leaves(consumer.js):
            return
        calm = time.monotonic() < self._calm_until
        while len(consumer.requests) < (1 if calm else 2):
            wanted = min(PULL_MESSAGES, consumer.max_batch, self._wanted(consumer.requests.messages))
            if wanted <= 0:
                return
            consumer.ask(wanted, self._max_bytes, _CALM_EXPIRES if calm else PULL_EXPIRES)
            if calm:
                return

    def _count(self, consumer: PullConsumer, messages: Messages) -> Deliveries:
        """Check that no delivery is missing, and take them off the requests."""
        deliveries = Deliveries(messages.gather(messages.reply))
        count = len(messages)
        first, last = deliveries.at(0), deliveries.at(count - 1)
        expected = consumer.sequence
        if first.consumer_sequence != expected or last.consumer_sequence != expected + count - 1:
            raise Restart(
                f"delivery {expected} is missing (got {first.consumer_sequence} to {last.consumer_sequence} in {count} "
                "messages)"
            )
        consumer.sequence += count
        consumer.requests.count(sizes_of(messages))
        return deliveries

    def _heed(self, consumer: PullConsumer, header: bytes) -> None:
        """Act on a status: the server's own words about a pull request (ADR-13, ADR-37)."""
        status = parse_status(header)
        if status is None:
            raise ProtocolError(f"a message without reply came from consumer {consumer.name!r}: {header[:80]!r}")
        match pull_event(status):
            case Heartbeat(delivered):
                consumer.last_heartbeat = time.monotonic()
                if delivered is not None and delivered >= consumer.sequence:
                    raise Restart(f"deliveries {consumer.sequence} to {delivered} are missing")
            case RequestEnded(bytes_left, too_large):
                consumer.requests.end()
                if too_large and bytes_left == self._max_bytes:
                    self._allow_larger_message()
            case RequestsForgotten():
                consumer.requests.forget()
            case BatchTooLarge(most):
                consumer.max_batch = most
                consumer.requests.forget()
            case ConsumerGone(reason):
                raise Restart(reason)
            case RequestRefused(refused):
                raise JetStreamError(
                    f"reading stream {self._stream!r} failed: {refused.description} ({refused.code})", refused.code
                )

    def _allow_larger_message(self) -> None:
        """Double the bytes of a pull request of which none were used: the next message is larger than all of them."""
        if self._max_bytes is None or self._max_bytes >= _LARGEST_PULL_BYTES:
            raise JetStreamError(
                f"a message of stream {self._stream!r} behind sequence {self.position - 1} is larger than "
                f"{self._max_bytes} bytes",
                CONFLICT,
            )
        self._max_bytes *= 2

    def _next(self, js: JetStream, end: int | None = None, filters: Sequence[str] | None = None) -> int | None:
        """Ask the stream's leader for the next message that matches, before ``end``; None when there is none."""
        filters = self._filters if filters is None else filters
        found = next_sequence(js, self._stream, self.position, filters or (">",))
        return found if found is not None and (end is None or found < end) else None


class PullConsumer:
    """A consumer in use: its inbox, its open pull requests and what is known of its deliveries."""

    def __init__(self, js: JetStream, stream: str, name: str, max_batch: int | None) -> None:
        self.js = js
        self.name = name
        self.max_batch = max_batch or PULL_MESSAGES
        self.requests = PullRequests()
        self.sequence = 1  # of the next delivery
        self.exhausted = False  # its replica has no more messages for it
        self.heartbeat = HEARTBEAT
        self.last_heartbeat = 0.0
        self._stream = stream
        self.inbox: Subscription = js.connection.subscribe(js.connection.new_inbox())

    def ask(self, messages: int, max_bytes: int | None, expires: float) -> None:
        """Send a pull request (ADR-13)."""
        body = encode_pull(messages, max_bytes, expires, min(self.heartbeat, expires / 2))
        subject = f"{self.js.prefix}.{Api.CONSUMER_NEXT.about(self._stream, self.name)}"
        self.js.connection.publish(subject, body, self.inbox.subject)
        self.requests.add(messages, max_bytes)

    def close(self) -> None:
        """Have the consumer deleted, without waiting for it.

        Raises:
            PermissionsError: the server has refused something.
        """
        if self.js.connection.closed:
            return
        try:
            self.js.connection.unsubscribe(self.inbox)
            delete_consumer(self.js, self._stream, self.name)
        except PermissionsError:
            raise
        except NatsError as error:
            logger.debug("stream %s: consumer %s is left to the server: %s", self._stream, self.name, error)
