"""Reading a range of sequences through an ephemeral pull consumer.

The server sends what was asked for and no more: pull requests are bounded in messages and in bytes, and never more is
in flight than the socket can hold, since the server closes connections that cannot keep up. The consumer counts its
deliveries, so a missing one is noticed: then, and when it falls silent, a new consumer goes on behind the last message
that arrived. Nothing is acknowledged and nothing is left behind: a range can be read again any number of times.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from spark_nats.client.connection import Subscription
from spark_nats.errors import JetStreamError, NatsError, NatsTimeoutError, ProtocolError
from spark_nats.jetstream.api import JetStream, interpreting
from spark_nats.jetstream.streams import create_consumer, delete_consumer
from spark_nats.protocol.acks import Deliveries
from spark_nats.protocol.documents import number
from spark_nats.protocol.encoder import encode_message
from spark_nats.protocol.headers import Status, parse_status
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

PULL_MESSAGES = 16384
"""Messages asked for by one pull request."""
PULL_BYTES = 2 << 20
"""Bytes allowed to one pull request; raised for a stream with larger messages. Two requests are in flight, which is
what the two socket buffers of a connection hold by Linux's defaults."""
HEARTBEAT = 5.0
"""Seconds after which the server sends a sign of life when it has nothing to send."""
PULL_EXPIRES = 30.0
"""Seconds that a pull request lives."""
PATIENCE = 0.5
"""Seconds without a message after which the server is asked again, in case it takes a request for fulfilled."""
STALL_LIMIT = 60.0
"""Seconds without a message, though some are pending, after which reading is given up."""
_LARGEST_PULL_BYTES = 128 << 20
_NANOSECONDS = 1_000_000_000


class Delivered(NamedTuple):
    """A batch of messages of a stream, in sequence order, and their metadata row by row."""

    messages: Messages
    deliveries: Deliveries


class _Restart(Exception):  # noqa: N818 - it never leaves this module
    """The consumer is of no more use; another one has to go on."""


def read_range(js: JetStream, stream: str, start: int, end: int, filters: Sequence[str] = ()) -> Iterator[Delivered]:
    """Read the messages with ``start <= sequence < end``, each exactly once and in order.

    Args:
        js: where.
        stream: which stream.
        start: first sequence.
        end: sequence before which to stop; must not lie beyond the stream's next sequence.
        filters: only subjects that match one of these; all when empty.

    Raises:
        JetStreamError: the server refuses the consumer.
        NatsTimeoutError: the server stopped delivering.
        NatsError: the connection failed.
    """
    position = start
    failures = 0
    last_arrival = time.monotonic()
    while position < end:
        reader = _ConsumerReader(js, stream, position, end, filters)
        try:
            for delivered, last in reader.read():
                position = last + 1
                yield delivered
                failures, last_arrival = 0, time.monotonic()  # from now: whoever takes the rows may take long
            return
        except _Restart as reason:
            failures += 1
            logger.warning("stream %s: %s; reading goes on at sequence %d", stream, reason, position)
            if failures > 3 or time.monotonic() - last_arrival > STALL_LIMIT:
                raise NatsTimeoutError(
                    f"stream {stream!r} stopped delivering at sequence {position}, before {end}: {reason}"
                ) from None
        finally:
            reader.close()


@dataclass(slots=True)
class _PullRequest:
    """What the server may still send for a pull request."""

    messages: int
    bytes: int


class _ConsumerReader:
    """One consumer, from its creation to its end.

    The server serves pull requests one after another. Of each it is known here what is left, because the end of one is
    not always announced: a request whose bytes are used up to the last one ends in silence.
    """

    def __init__(self, js: JetStream, stream: str, start: int, end: int, filters: Sequence[str]) -> None:
        self._js = js
        self._stream = stream
        self._end = end
        self._filtered = bool(filters)
        self._position = start
        self._sequence = 1  # of the next delivery
        self._last_heartbeat = 0.0
        self._requests: deque[_PullRequest] = deque()
        self._ended = 0  # requests of which the end was counted, and is still to be announced
        self._max_bytes = max(PULL_BYTES, js.connection.info.max_payload + 64 * 1024)
        config: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        if filters:
            config["filter_subjects"] = list(filters)
        description = create_consumer(js, stream, config)
        self._name: str = description["name"]
        with interpreting("CONSUMER.CREATE"):
            self._nothing_to_read = number(description, "num_pending") == 0
        self._inbox: Subscription = js.connection.subscribe(js.connection.new_inbox())

    def close(self) -> None:
        """Delete the consumer. Should that fail, the server does it after its inactivity threshold."""
        if self._js.connection.closed:
            return
        with contextlib.suppress(NatsError):
            self._js.connection.unsubscribe(self._inbox)
            delete_consumer(self._js, self._stream, self._name)

    def read(self) -> Iterator[tuple[Delivered, int]]:
        """Yield batches with the sequence of their last message."""
        if self._nothing_to_read:
            return
        last_arrival = time.monotonic()
        while True:
            self._ask()
            arrived = self._js.connection.next(self._inbox, PATIENCE)
            if arrived is None:
                silence = time.monotonic() - max(last_arrival, self._last_heartbeat)
                if silence > 2 * HEARTBEAT:
                    raise _Restart(f"no message and no heartbeat for {silence:.0f} s")
                self._requests.clear()
                self._ended = 0
                continue
            from_server = arrived.reply.start == arrived.reply.end  # a delivery always has a reply
            statuses = [arrived.header_at(int(i)) for i in np.flatnonzero(from_server)]
            messages = arrived.take(~from_server) if statuses else arrived
            if len(messages):
                last_arrival = time.monotonic()
                delivered, last, pending = self._accept(messages)
                done = last >= self._end - 1 or pending == 0
                if not done:
                    self._ask()  # so that the server works while the messages are being used
                if delivered is not None:
                    yield delivered, min(last, self._end - 1)
                    last_arrival = time.monotonic()
                if done:
                    return
            elif time.monotonic() - last_arrival > STALL_LIMIT:
                raise _Restart(f"nothing but heartbeats for {STALL_LIMIT:g} s")
            for header in statuses:
                self._heed(header)

    def _ask(self) -> None:
        """Keep one pull request working while another one waits behind it."""
        while len(self._requests) < 2:
            wanted = PULL_MESSAGES
            if not self._filtered:
                wanted = min(wanted, self._end - self._position - sum(r.messages for r in self._requests))
            if wanted <= 0:
                return
            body = {
                "batch": wanted,
                "max_bytes": self._max_bytes,
                "expires": int(PULL_EXPIRES * _NANOSECONDS),
                "idle_heartbeat": int(HEARTBEAT * _NANOSECONDS),
            }
            subject = f"{self._js.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
            self._js.connection.send(encode_message(subject, json.dumps(body).encode(), self._inbox.subject))
            self._requests.append(_PullRequest(wanted, self._max_bytes))

    def _count_off(self, messages: Messages) -> None:
        """Take messages off the requests that asked for them, as the server does."""
        subject, reply = messages.subject, messages.reply
        total = np.cumsum(
            subject.end - subject.start + reply.end - reply.start + messages.payload.end - messages.header.start
        )
        done, used = 0, 0
        while done < len(total) and self._requests:
            request = self._requests[0]
            fitting = int(np.searchsorted(total, used + request.bytes, "right")) - done
            taken = min(fitting, request.messages)
            done += taken
            request.messages -= taken
            if taken:
                request.bytes -= int(total[done - 1]) - used
                used = int(total[done - 1])
            if request.messages == 0 or request.bytes == 0 or done < len(total):
                self._requests.popleft()
                self._ended += request.bytes > 0

    def _accept(self, messages: Messages) -> tuple[Delivered | None, int, int]:
        """Check that no delivery is missing and cut off what lies behind the range."""
        deliveries = Deliveries(messages.gather(messages.reply))
        first, last = deliveries.at(0), deliveries.at(len(messages) - 1)
        count = len(messages)
        if first.consumer_sequence != self._sequence or last.consumer_sequence != self._sequence + count - 1:
            raise _Restart(
                f"delivery {self._sequence} is missing (got {first.consumer_sequence} to "
                f"{last.consumer_sequence} in {count} messages)"
            )
        if first.stream_sequence < self._position or last.stream_sequence < first.stream_sequence + count - 1:
            raise ProtocolError(
                f"stream {self._stream!r} was asked for what begins at sequence {self._position}, and sent {count} "
                f"messages from {first.stream_sequence} to {last.stream_sequence}"
            )
        self._sequence += count
        self._count_off(messages)
        self._position = last.stream_sequence + 1
        if last.stream_sequence >= self._end:
            inside = int(np.searchsorted(deliveries.stream_sequences(), self._end))
            if inside == 0:
                return None, last.stream_sequence, last.pending
            messages, deliveries = messages.take(slice(inside)), deliveries.head(inside)
        return Delivered(messages, deliveries), last.stream_sequence, last.pending

    def _heed(self, header: bytes) -> None:
        """Act on a status: the server's own words about a pull request (ADR-13)."""
        status = parse_status(header)
        if status is None:
            raise ProtocolError(f"a message without reply came from consumer {self._name!r}: {header[:80]!r}")
        if status.code == 100:
            self._last_heartbeat = time.monotonic()
            delivered = status.number("Nats-Last-Consumer")
            if delivered is not None and delivered >= self._sequence:
                raise _Restart(f"deliveries {self._sequence} to {delivered} are missing")
            return
        if status.code in (408, 409) and "Nats-Pending-Messages" in status.headers:  # a pull request has ended
            if self._ended:
                self._ended -= 1
            elif self._requests:
                self._requests.popleft()
            if status.number("Nats-Pending-Bytes") == self._max_bytes:
                self._allow_larger_message(status)
        elif status.code in (404, 408, 409, 503):  # the consumer was deleted, or its leader has changed
            raise _Restart(status.description or f"status {status.code}")
        else:
            raise JetStreamError(
                f"reading stream {self._stream!r} failed: {status.description} ({status.code})", status.code
            )

    def _allow_larger_message(self, status: Status) -> None:
        """Double the bytes of a pull request of which none were used: the next message is larger than all of them."""
        if status.code == 409:
            if self._max_bytes >= _LARGEST_PULL_BYTES:
                raise JetStreamError(
                    f"a message of stream {self._stream!r} behind sequence {self._position - 1} is larger than "
                    f"{self._max_bytes} bytes",
                    status.code,
                )
            self._max_bytes *= 2
