"""Delivers chunks through a pull consumer, by bounded requests, and counts what they may still bring.

The server sends what was requested and no more. Requests are bounded in messages and in bytes, and the reader never has
more in flight than the socket can hold, because the server closes connections that cannot keep up. The server announces
the end of a request whose bytes did not suffice, whose time is over, or whose messages were used up before its bytes,
but not the end of one whose bytes were used up, or that was bounded in messages only; so both sides count. The
consumer numbers its deliveries, so the reader notices a missing one.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spark_nats import clock
from spark_nats.client.subscriptions import Subscription
from spark_nats.conditions.jetstream import MESSAGE_TOO_LARGE, READING_FAILED
from spark_nats.errors import JetStreamError, NatsError, PermissionsError
from spark_nats.jetstream.api import JetStream, answered_by_another_error
from spark_nats.jetstream.consuming.consumers import delete_consumer_without_waiting
from spark_nats.jetstream.reading import delivering
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Chunk, Delivered, Restart
from spark_nats.protocol import deliveries
from spark_nats.protocol.api import Api
from spark_nats.protocol.bytecolumns import Positions
from spark_nats.protocol.consumers import ConsumerInfo
from spark_nats.protocol.headers import CONFLICT, RequestRefused, parse_status
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

PULL_MESSAGES = 16384  # messages per pull request
PULL_BYTES = 2 << 20
"""Bytes allowed to one pull request; more where the server's ``max_payload`` or a message is larger. Two requests are
in flight, which is what the two socket buffers of a connection hold by Linux's defaults."""
HEADROOM = 64 << 10
"""Bytes of a pull request for what a message has beside payload and headers, which take ``max_payload`` at most."""
HEARTBEAT = 5.0  # seconds after which the server sends a heartbeat when it has nothing to send
PULL_EXPIRES = 30.0  # seconds that a pull request lives
_THROTTLED_EXPIRES = 1.0  # the same while the caller is slow
_MAX_PULL_BYTES = 128 << 20


@dataclass(slots=True)
class _Request:
    """What an open pull request may still bring."""

    messages: int
    bytes: float  # infinite where it is bounded in messages only


class PullRequests:
    """The open pull requests of one consumer, oldest first."""

    def __init__(self) -> None:
        self._open: deque[_Request] = deque()
        self._ended = 0  # requests whose end was counted and is still to be announced

    def __len__(self) -> int:
        return len(self._open)

    @property
    def messages(self) -> int:
        """How many messages the open requests may still bring."""
        return sum(request.messages for request in self._open)

    def note_sent(self, messages: int, max_bytes: int | None) -> None:
        """Note a sent request; ``max_bytes`` is None where it is bounded in messages only."""
        self._open.append(_Request(messages, math.inf if max_bytes is None else max_bytes))

    def subtract_delivered(self, sizes: Positions) -> None:
        """Take delivered messages off the oldest requests, by their ``sizes`` in bytes (:func:`pull_sizes_of`)."""
        total = np.append(0, np.cumsum(sizes))  # bytes before each message, and of all
        done = 0
        while done < len(sizes) and self._open:
            request = self._open[0]
            fitting = int(np.searchsorted(total, total[done] + request.bytes, "right")) - 1 - done
            taken = min(fitting, request.messages)
            request.messages -= taken
            request.bytes -= int(total[done + taken] - total[done])
            done += taken
            if request.messages == 0 or request.bytes == 0 or done < len(sizes):
                self._open.popleft()
                self._ended += 0 < request.bytes < math.inf

    def note_request_ended(self) -> None:
        """Note that the server has announced the end of a request."""
        if self._ended:
            self._ended -= 1
        elif self._open:
            self._open.popleft()

    def forget(self) -> None:
        """Forget all requests, as when the server is silent and takes them for fulfilled."""
        self._open.clear()
        self._ended = 0


def pull_sizes_of(messages: Messages) -> Positions:
    """Return the bytes that each message takes of a pull request: subject, reply, header and payload."""
    subject, reply = messages.subject, messages.reply
    of_line = subject.end - subject.start + reply.end - reply.start
    sizes: Positions = of_line + messages.payload.end - messages.header.start
    return sizes


class PullConsumer:
    """A consumer in use, as a :class:`~.delivering.Source`: its inbox, its requests and its deliveries.

    After ``heartbeat`` seconds, :data:`HEARTBEAT` when None, the server reports that it has nothing to send. Requests
    are ``bounded`` in bytes too, or in messages alone. After ``empty_attempts`` consumers in a row that brought
    nothing, this one requests fewer messages at first, so that on a slow network the answer to another request, which
    arrives after these messages, does not time out.

    Attributes:
        keep: keeps the consumer when it is no longer needed, and tells whether the server may still refuse a deletion;
            its argument is when messages were last requested, by ``clock.monotonic()``, 0 for never. None to delete the
            consumer.
    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        made: ConsumerInfo,
        *,
        heartbeat: float | None = None,
        bounded: bool = True,
        empty_attempts: int = 0,
    ) -> None:
        self.keep: Callable[[float], bool] | None = None
        self.close_may_be_refused = True
        self.exhausted = made.pending == 0
        self.idle = False
        self.silence = 0.0
        # Messages per request, unless the server allows fewer.
        self.most = max(1, PULL_MESSAGES >> min(4 * empty_attempts, 64))
        self._js = js
        self._stream = stream
        self._name = made.name
        self._subject = f"{js.prefix}.{Api.CONSUMER_NEXT.with_names(stream, made.name)}"
        self._stranger = ""  # another responder's answer to a pull request, in words
        self._max_batch = made.max_batch or PULL_MESSAGES
        self._heartbeat = HEARTBEAT if heartbeat is None else heartbeat
        self._max_bytes = max(PULL_BYTES, js.connection.info.max_payload + HEADROOM) if bounded else None
        self._requests = PullRequests()
        self._sequence = 1  # of the next delivery
        self._last = made.begins - 1  # stream sequence of the last delivery
        self._lifeless = 0.0  # seconds waited since the last message or heartbeat
        self._asked = 0.0  # when the last pull request was sent, by clock.monotonic()
        self._inbox: Subscription = js.connection.subscribe(js.connection.new_inbox())

    @property
    def in_flight(self) -> bool:
        """Whether pull requests are open."""
        return len(self._requests) > 0

    def request_more(self, cursor: Cursor, throttled: bool) -> None:
        """Keep one pull request working while another one waits after it; only one when ``throttled``.

        A limited read has only one, too: the server serves two by turns, and its announcement of an end does not name
        the request.
        """
        most_open = 1 if throttled or cursor.wanted < math.inf else 2
        while not self.exhausted and len(self._requests) < most_open:
            left = min(cursor.wanted, cursor.end - cursor.received) - self._requests.messages
            wanted = int(min(self.most, self._max_batch, left))
            if wanted <= 0:
                return
            self.send_pull_request(wanted, _THROTTLED_EXPIRES if throttled else PULL_EXPIRES)

    def send_pull_request(self, messages: int, expires: float) -> None:
        """Send a pull request (ADR-13) that lives for ``expires`` seconds."""
        body = deliveries.encode_pull(messages, self._max_bytes, expires, min(self._heartbeat, expires / 2))
        self._js.connection.publish(self._subject, body, self._inbox.subject)
        self._requests.note_sent(messages, self._max_bytes)
        self._asked = clock.monotonic()

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None when what arrives is no message, or nothing arrives."""
        self.idle = False
        began = clock.monotonic()
        arrived = self._js.connection.next(self._inbox, delivering.PATIENCE)
        waited = clock.monotonic() - began
        self.silence += waited
        self._lifeless += waited
        if arrived is None:
            if self._lifeless > 2 * HEARTBEAT:
                raise Restart(f"no message and no heartbeat for {self._lifeless:.0f} s{self._stranger}")
            self._requests.forget()
            return None
        from_server = arrived.reply.start == arrived.reply.end  # a delivery always has a reply
        others = [(arrived.header_at(i), arrived.payload_at(i)) for i in np.flatnonzero(from_server).tolist()]
        messages = arrived.take(~from_server) if others else arrived
        chunk = self._check_and_note_deliveries(messages) if len(messages) else None
        for header, payload in others:
            self._on_status(header, payload)
        return chunk

    def _check_and_note_deliveries(self, messages: Messages) -> Chunk:
        """Check that all deliveries are this consumer's and none is missing, and take them off the requests."""
        replies = deliveries.Deliveries(messages.gather(messages.reply))
        if (other := replies.find_reply_of_other(self._stream, self._name)) is not None:
            raise Restart(f"a delivery is not of consumer {self._name!r}: {other}")
        count = len(messages)
        first, last = replies.at(0), replies.at(count - 1)
        expected = self._sequence
        if first.consumer_sequence != expected or last.consumer_sequence != expected + count - 1:
            raise Restart(
                f"delivery {expected} is missing (got {first.consumer_sequence} to {last.consumer_sequence} in {count} "
                "messages)"
            )
        self._sequence += count
        self.most = min(2 * self.most, PULL_MESSAGES)
        self._last = last.stream_sequence
        self._requests.subtract_delivered(pull_sizes_of(messages))
        self.silence = self._lifeless = 0.0
        self.exhausted = last.pending == 0
        return Chunk(Delivered(messages, replies), first.stream_sequence, last.stream_sequence)

    def _on_status(self, header: bytes, payload: bytes) -> None:
        """Act on a status, which the server sends about a pull request (ADR-13, ADR-37).

        A message without a status is another responder's; the server answers all the same, if the consumer exists.
        """
        status = parse_status(header)
        if status is None:
            self._stranger = f"; {answered_by_another_error(self._subject, payload)}"
            return
        match deliveries.interpret_pull_status(status):
            case deliveries.Heartbeat(delivered):
                self.idle, self._lifeless = True, 0.0
                if delivered is not None and delivered >= self._sequence:
                    raise Restart(f"deliveries {self._sequence} to {delivered} are missing")
            case deliveries.RequestEnded(bytes_left, too_large):
                self._requests.note_request_ended()
                if too_large and bytes_left == self._max_bytes:
                    self._double_bytes_or_raise()
            case deliveries.RequestsForgotten():
                self._requests.forget()
            case deliveries.BatchTooLarge(most):
                self._max_batch = most
                self._requests.forget()
            case deliveries.ConsumerGone(reason):
                raise Restart(reason)
            case RequestRefused(refused):
                failed = READING_FAILED(stream=self._stream, reason=refused.description, code=refused.code)
                raise JetStreamError(failed, refused.code)

    def _double_bytes_or_raise(self) -> None:
        """Double the bytes of a pull request, as the next message is larger; raise an error from 128 MiB on."""
        if self._max_bytes is None or self._max_bytes >= _MAX_PULL_BYTES:
            large = MESSAGE_TOO_LARGE(stream=self._stream, sequence=self._last, bytes=self._max_bytes)
            raise JetStreamError(large, CONFLICT)
        self._max_bytes *= 2

    def close(self) -> None:
        """Have the consumer deleted, without waiting; raise nothing but a refusal that the server has reported."""
        self.keep = None
        self.close_or_keep()

    def close_or_keep(self) -> None:
        """Keep the consumer, or have it deleted as :meth:`close` does.

        Its open pull requests end by themselves, because nothing listens on its inbox any more.
        """
        if self._js.connection.closed:
            return
        try:
            self._js.connection.unsubscribe(self._inbox)
            if self.keep is not None:
                self.close_may_be_refused = self.keep(self._asked)
            else:
                delete_consumer_without_waiting(self._js, self._stream, self._name)
        except PermissionsError:
            raise
        except NatsError as error:
            logger.debug("stream %s: consumer %s is left to the server: %s", self._stream, self._name, error)
