"""Deliveries of a consumer: how they are requested, and what statuses and reply subjects tell of them.

JetStream reports about a pull request by a status (ADR-13, ADR-37); :func:`interpret_pull_status` returns what it means
for the reader. A status that carries ``Nats-Pending-Messages`` ends one request, unless the consumer is gone. The reply
subject of a delivery carries the message's metadata, in two forms (ADR-15)::

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time ns>.<pending>
    $JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<delivered>.….<pending>[.<token>]

Names have no dots, so the number of tokens distinguishes the forms. The benchmark's row "codec: decode JetStream
deliveries" guards the cost.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.conditions.jetstream import REPLY_INVALID
from spark_nats.errors import ProtocolError
from spark_nats.protocol.bytecolumns import (
    Mask,
    Positions,
    booleans,
    bytes_and_offsets_of,
    find_separators,
    flags_of,
    load_words,
    parse_ints,
)
from spark_nats.protocol.documents import quoted
from spark_nats.protocol.headers import CONFLICT, LOCKED, NO_RESPONDERS, RequestRefused, Status

_DOT = ord(".")
_PREFIX = np.uint64(int.from_bytes(b"$JS.ACK.", "little"))  # eight bytes: one word
_MAX_DIGITS = 19  # of a signed 64-bit number
_SHORT_FORM_DOTS = 8  # nine tokens
_LONG_FORM_DOTS = 10  # eleven tokens, twelve with the trailing one


class Delivery(NamedTuple):
    """Metadata of one JetStream delivery."""

    stream_sequence: int
    consumer_sequence: int  # rises by one from message to message
    timestamp: int  # when the server stored the message, in nanoseconds since 1970 UTC
    pending: int  # messages that the consumer still had to deliver


class Deliveries:
    """Metadata of a batch of JetStream deliveries from their reply subjects, each column parsed on request.

    The constructor and the methods raise ProtocolError when a reply subject is not an acknowledgement subject.
    """

    def __init__(self, replies: pa.BinaryArray) -> None:
        self._replies = replies
        self._data, self._offsets = bytes_and_offsets_of(replies)
        self._dots = find_separators(self._data == _DOT, self._offsets)
        count = self._dots.per_row
        is_short = count == _SHORT_FORM_DOTS
        self._raise_unless(is_short | (count == _LONG_FORM_DOTS) | (count == _LONG_FORM_DOTS + 1))
        if len(replies):  # the dots imply at least eight bytes in each row
            self._raise_unless(load_words(self._data, self._offsets[:-1]) == _PREFIX)
        # Index of the dot before the five numbers: after $JS, ACK, [domain, hash,] stream and consumer.
        self._before = np.where(is_short, 3, 5)

    def __len__(self) -> int:
        return len(self._replies)

    def take(self, chosen: slice | Mask) -> Deliveries:
        """Return the chosen deliveries."""
        found = self._replies[chosen] if isinstance(chosen, slice) else self._replies.filter(booleans(chosen))
        return Deliveries(found)

    def find_reply_of_other(self, stream: str, consumer: str) -> str | None:
        """Return the first reply subject from another stream or consumer, quoted; None when there is none."""
        if not len(self):
            return None
        beginning = b".".join([*self._first_tokens(0), b""])
        alike = flags_of(pc.starts_with(self._replies, beginning)) & (self._before == self._before[0])
        for i in (0, *np.flatnonzero(~alike).tolist()):  # deliveries of one consumer begin alike
            if self._first_tokens(i)[-2:] != [stream.encode(), consumer.encode()]:
                return quoted(self._replies[i].as_py())
        return None

    def _first_tokens(self, i: int) -> list[bytes]:
        """Return the tokens of a reply subject up to the consumer's name."""
        tokens: list[bytes] = self._replies[i].as_py().split(b".")
        return tokens[: self._before[i] + 1]

    def at(self, i: int) -> Delivery:
        """Return the metadata of delivery ``i``."""
        numbers = self._replies[i].as_py().split(b".")[self._before[i] + 2 :][:4]
        if not all(number.isdigit() and len(number) <= _MAX_DIGITS for number in numbers):
            raise self._error(i)
        return Delivery(*map(int, numbers))

    def last_sequence_and_time(self) -> tuple[int, int]:
        """Return the stream sequence and the timestamp of the last delivery."""
        delivery = self.at(len(self) - 1)
        return delivery.stream_sequence, delivery.timestamp

    def stream_sequences(self) -> Positions:
        """Return the stream sequences."""
        return self._parse_numbers(1)

    def timestamps(self) -> Positions:
        """Return when the messages were stored, in nanoseconds since 1970 UTC."""
        return self._parse_numbers(3)

    def _parse_numbers(self, k: int) -> Positions:
        start, end = self._dots.positions_of(self._before + k) + 1, self._dots.positions_of(self._before + k + 1)
        value, valid = parse_ints(self._data, start, end)
        self._raise_unless(valid)
        return value

    def _raise_unless(self, valid: Mask) -> None:
        if not valid.all():
            raise self._error(int(np.argmin(valid)))

    def _error(self, i: int) -> ProtocolError:
        return ProtocolError(REPLY_INVALID(reply=self._replies[i].as_py()[:100]))


def encode_pull(messages: int, max_bytes: int | None, expires: float, heartbeat: float) -> bytes:
    """Return the body of a pull request (ADR-13).

    Args:
        messages: maximum number of messages.
        max_bytes: maximum bytes, counted as by :func:`~spark_nats.jetstream.reading.pulls.pull_sizes_of`; None for no
            limit.
        expires: seconds until the request expires.
        heartbeat: seconds without a message after which the server sends a heartbeat; at most half of ``expires``.
    """
    body = {"batch": messages, "expires": int(expires * 10**9), "idle_heartbeat": int(heartbeat * 10**9)}  # nanoseconds
    if max_bytes is not None:
        body["max_bytes"] = max_bytes
    return json.dumps(body).encode()


class Heartbeat(NamedTuple):
    """There is nothing to deliver."""

    delivered: int | None  # consumer sequence of the last delivery; None when the server omits it


class RequestEnded(NamedTuple):
    """A request has ended; the status does not say which one."""

    bytes_left: int | None  # unused bytes of the request; None when the server omits them
    too_large: bool  # whether the next message has more bytes than were left


class RequestsForgotten(NamedTuple):
    """The server has forgotten all open requests, because the consumer has another leader."""


class BatchTooLarge(NamedTuple):
    """A request asked for more messages than ``most``, which is what the server allows."""

    most: int


class ConsumerGone(NamedTuple):
    """The consumer no longer exists, or accepts no more requests; ``reason`` is the server's text, or the code."""

    reason: str


PullEvent = Heartbeat | RequestEnded | RequestsForgotten | BatchTooLarge | ConsumerGone | RequestRefused

_BATCH_TOO_LARGE = re.compile(r"Exceeded MaxRequestBatch of ([0-9]{1,9})")
_TOO_LARGE = "message size exceeds maxbytes"
# Our consumers never push: the server says "push based" of a consumer that is being deleted, whose request queue has
# already gone.
_GONE = {"consumer deleted", "server shutdown", "consumer is push based", "exceeded maxwaiting"}


def interpret_pull_status(status: Status) -> PullEvent:
    """Return what a status means for a pull request; an unknown one, such as 400 or 412, refuses later ones too.

    ``Nats-Pending-Messages`` is in 408 Request Timeout and Interest Expired, 409 Message Size Exceeds MaxBytes and
    Batch Completed, and 423 Nats-Wrong-Pin-Id. A consumer that accepts no more requests (MaxWaiting) is replaced.
    """
    if status.code == 100:
        return Heartbeat(status.number("Nats-Last-Consumer"))
    said = status.description.lower()
    if status.code in (404, NO_RESPONDERS) or (status.code == CONFLICT and said in _GONE):
        return ConsumerGone(status.description or f"status {status.code}")
    if "Nats-Pending-Messages" in status.headers:
        return RequestEnded(status.number("Nats-Pending-Bytes"), too_large=said == _TOO_LARGE)
    if status.code in (408, LOCKED):
        return RequestEnded(None, too_large=False)
    if status.code == CONFLICT and said == "leadership change":
        return RequestsForgotten()
    if found := _BATCH_TOO_LARGE.match(status.description):
        return BatchTooLarge(max(1, int(found[1])))
    return RequestRefused(status)
