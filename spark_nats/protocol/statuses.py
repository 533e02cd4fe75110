"""Inline statuses, which are the server's own answers: ``NATS/1.0 503`` in place of a publisher's headers (ADR-4).

JetStream reports about a pull request by such a status too (ADR-13, ADR-37); :func:`pull_event` returns what it means
for the reader. A status that carries ``Nats-Pending-Messages`` ends one request, unless the consumer is gone.
:func:`direct_event` returns what a status means for a batched direct get (ADR-31).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from spark_nats.protocol.documents import printable
from spark_nats.protocol.headers import VERSION, parse_block

CONFLICT = 409  # a pull request cannot be fulfilled; the description says why
LOCKED = 423  # another client is pinned to the consumer
TOO_MANY_REQUESTS = 429  # a stream is overloaded; also a ``code`` of the API's errors
NO_RESPONDERS = 503  # nobody listens on the subject

_STATUS_LINE = re.compile(rb"%b[ \t]+([0-9]{3})(?:[ \t]+(.*))?" % re.escape(VERSION), re.DOTALL)


class Status(NamedTuple):
    """The inline status of a header block."""

    code: int  # such as 100 (heartbeat), 404, 408, 409, 503 (no responders)
    description: str  # the server's text; may be empty
    headers: dict[str, str]  # the first value of each

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


class RequestRefused(NamedTuple):
    """The server does not accept such a request, now or later."""

    status: Status


PullEvent = Heartbeat | RequestEnded | RequestsForgotten | BatchTooLarge | ConsumerGone | RequestRefused

_BATCH_TOO_LARGE = re.compile(r"Exceeded MaxRequestBatch of ([0-9]{1,9})")
_TOO_LARGE = "message size exceeds maxbytes"
# Our consumers never push: the server says "push based" of a consumer that is being deleted, whose request queue has
# already gone.
_GONE = {"consumer deleted", "server shutdown", "consumer is push based", "exceeded maxwaiting"}


def pull_event(status: Status) -> PullEvent:
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


# What a status means for a batched direct get


class BatchEnded(NamedTuple):
    """The server has sent its whole answer to a request."""

    last: int  # sequence of the last message that it has sent, 0 when it has sent none
    pending: int  # matching messages that its replica has after that one


class NobodyAnswers(NamedTuple):
    """No server answers direct gets of the stream at the moment."""


DirectEvent = BatchEnded | NobodyAnswers | RequestRefused


def direct_event(status: Status) -> DirectEvent:
    """Return what a status means for a batched direct get; an unknown one, such as 408, refuses later ones too."""
    if status.code == 204:
        last, pending = status.number("Nats-Last-Sequence"), status.number("Nats-Num-Pending")
        return RequestRefused(status) if last is None or pending is None else BatchEnded(last, pending)
    if status.code == 404:
        return BatchEnded(0, 0)  # the replica has nothing that matches
    return NobodyAnswers() if status.code == NO_RESPONDERS else RequestRefused(status)
