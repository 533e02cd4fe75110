"""Inline statuses, with which the server answers by itself: ``NATS/1.0 503`` in place of a publisher's headers (ADR-4).

What JetStream says about a pull request is such a status too (ADR-13, ADR-37); :func:`pull_event` tells what it means
for whoever reads. A status that carries ``Nats-Pending-Messages`` ends one request, whatever else it is. What it says
about a batched direct get (ADR-31) is told by :func:`direct_event`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from spark_nats.protocol.documents import printable
from spark_nats.protocol.headers import VERSION, parse_block

CONFLICT = 409  # a pull request cannot be fulfilled; the words behind it say why
LOCKED = 423  # another client is pinned to the consumer
TOO_MANY_REQUESTS = 429  # a stream was given more than it takes at once. Also a ``code`` of the API's errors
NO_RESPONDERS = 503  # nobody listens there

_STATUS_LINE = re.compile(rb"%b[ \t]+([0-9]{3})(?:[ \t]+(.*))?" % re.escape(VERSION), re.DOTALL)


class Status(NamedTuple):
    """The inline status of a header block."""

    code: int  # such as 100 (heartbeat), 404, 408, 409, 503 (no responders)
    description: str  # the server's words; may be empty
    headers: dict[str, str]  # one value each

    def number(self, name: str) -> int | None:
        """Return the number that a header holds; None when there is none."""
        value = self.headers.get(name, "")
        return int(value) if re.fullmatch("[0-9]{1,19}", value) else None


def parse_status(block: bytes) -> Status | None:
    """Return the inline status of a header block, None when it has none."""
    found = _STATUS_LINE.fullmatch(block.split(b"\r\n", 1)[0])
    if found is None:
        return None
    headers = {name: values[0] for name, values in parse_block(block).items()}
    return Status(int(found[1]), printable((found[2] or b"").strip().decode("utf-8", "replace")), headers)


# What a status means for a pull request


class Heartbeat(NamedTuple):
    """There is nothing to deliver."""

    delivered: int | None  # consumer sequence of the last delivery, if the server says it


class RequestEnded(NamedTuple):
    """The oldest request has ended before it was fulfilled."""

    bytes_left: int | None  # how many of its bytes were not used, if the server says it
    too_large: bool  # whether the next message has more bytes than were left


class RequestsForgotten(NamedTuple):
    """The server knows of no open request any more, since the consumer has another leader."""


class BatchTooLarge(NamedTuple):
    """A request asked for more messages than the server allows, which is ``most``."""

    most: int


class ConsumerGone(NamedTuple):
    """The consumer does not exist any more, or nobody answers for it, for a ``reason`` in the server's words."""

    reason: str


class RequestRefused(NamedTuple):
    """The server does not take such a request, now or later."""

    status: Status


PullEvent = Heartbeat | RequestEnded | RequestsForgotten | BatchTooLarge | ConsumerGone | RequestRefused

_BATCH_TOO_LARGE = re.compile(r"Exceeded MaxRequestBatch of ([0-9]{1,9})")
_TOO_LARGE = "message size exceeds maxbytes"
# None of our consumers pushes: one that is being deleted says so because its queue of requests is gone already.
_GONE = {"consumer deleted", "server shutdown", "consumer is push based", "exceeded maxwaiting"}


def pull_event(status: Status) -> PullEvent:
    """Return what a status means for a pull request: with others, as 400 or 412, no later one would fare better.

    ``Nats-Pending-Messages`` is in 408 Request Timeout, Interest Expired, 409 Message Size Exceeds MaxBytes and Batch
    Completed, and 423 Nats-Wrong-Pin-Id. A consumer that takes no more requests (MaxWaiting) is left for another one.
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


# What a status means for a batched direct get


class BatchEnded(NamedTuple):
    """The server has sent what it sends for a request."""

    last: int  # sequence of the last message that it has sent, 0 when it has sent none
    pending: int  # how many messages its replica has behind it that match


class NobodyAnswers(NamedTuple):
    """No server answers direct gets of the stream at the moment."""


DirectEvent = BatchEnded | NobodyAnswers | RequestRefused


def direct_event(status: Status) -> DirectEvent:
    """Return what a status means for a batched direct get: with others, as 408, no later request would fare better."""
    if status.code == 204:
        last, pending = status.number("Nats-Last-Sequence"), status.number("Nats-Num-Pending")
        return RequestRefused(status) if last is None or pending is None else BatchEnded(last, pending)
    if status.code == 404:
        return BatchEnded(0, 0)  # the replica has nothing that matches
    return NobodyAnswers() if status.code == NO_RESPONDERS else RequestRefused(status)
