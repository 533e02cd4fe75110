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

CONFLICT = 409
"""A pull request cannot be fulfilled; the words behind it say why."""
LOCKED = 423
"""Another client is pinned to the consumer."""
TOO_MANY_REQUESTS = 429
"""A stream was given more than it takes at once. Also a ``code`` of the API's errors."""
NO_RESPONDERS = 503
"""Nobody listens there; as a ``code`` of the API's errors: no leader, or JetStream is not ready."""

_STATUS_LINE = re.compile(rb"%b[ \t]+([0-9]{3})(?:[ \t]+(.*))?" % re.escape(VERSION), re.DOTALL)


class Status(NamedTuple):
    """The inline status of a header block.

    Attributes:
        code: such as 100 (heartbeat), 404, 408, 409, 503 (no responders).
        description: the server's words; may be empty.
        headers: the block's headers, one value each.
    """

    code: int
    description: str
    headers: dict[str, str]

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
    """There is nothing to deliver.

    Attributes:
        delivered: consumer sequence of the last delivery; None when the server does not say.
    """

    delivered: int | None


class RequestEnded(NamedTuple):
    """The oldest request has ended before it was fulfilled.

    Attributes:
        bytes_left: how many of its bytes were not used; None when the server does not say.
        too_large: whether it ended because the next message has more bytes than were left.
    """

    bytes_left: int | None
    too_large: bool


class RequestsForgotten(NamedTuple):
    """The server knows of no open request any more, since the consumer has another leader."""


class BatchTooLarge(NamedTuple):
    """A request asked for more messages than the server allows.

    Attributes:
        most: how many it allows.
    """

    most: int


class ConsumerGone(NamedTuple):
    """The consumer does not exist any more, or nobody answers for it.

    Attributes:
        reason: the server's words.
    """

    reason: str


class RequestRefused(NamedTuple):
    """The server does not take such a request, now or later.

    Attributes:
        status: what it said.
    """

    status: Status


PullEvent = Heartbeat | RequestEnded | RequestsForgotten | BatchTooLarge | ConsumerGone | RequestRefused

_PENDING_MESSAGES, _PENDING_BYTES = "Nats-Pending-Messages", "Nats-Pending-Bytes"
_LAST_CONSUMER = "Nats-Last-Consumer"
_BATCH_TOO_LARGE = re.compile(r"Exceeded MaxRequestBatch of ([0-9]{1,9})")
_TOO_LARGE = "message size exceeds maxbytes"
# None of our consumers pushes: one that is being deleted says so because its queue of requests is gone already.
_GONE = {"consumer deleted", "server shutdown", "consumer is push based", "exceeded maxwaiting"}


def pull_event(status: Status) -> PullEvent:
    """Return what a status means for a pull request.

    =======================================  ==========================================================
    100                                      heartbeat
    409 Consumer Deleted, Server Shutdown,   the consumer is gone
    Consumer is push based
    409 Exceeded MaxWaiting                  likewise: it takes no more requests, another one does
    404, 503                                 likewise: nobody answers for it
    any with ``Nats-Pending-Messages``       this request has ended: 408 Request Timeout, Interest
                                             Expired; 409 Message Size Exceeds MaxBytes, Batch
                                             Completed; 423 Nats-Wrong-Pin-Id
    408, 423 without it                      likewise
    409 Leadership Change                    all requests are forgotten: none is pending any more
    409 Exceeded MaxRequestBatch             ask for fewer
    400, 412, any other                      refused: no later request would fare better
    =======================================  ==========================================================
    """
    if status.code == 100:
        return Heartbeat(status.number(_LAST_CONSUMER))
    said = status.description.lower()
    if status.code in (404, NO_RESPONDERS) or (status.code == CONFLICT and said in _GONE):
        return ConsumerGone(status.description or f"status {status.code}")
    if _PENDING_MESSAGES in status.headers:
        return RequestEnded(status.number(_PENDING_BYTES), too_large=said == _TOO_LARGE)
    if status.code in (408, LOCKED):
        return RequestEnded(None, too_large=False)
    if status.code == CONFLICT and said == "leadership change":
        return RequestsForgotten()
    if found := _BATCH_TOO_LARGE.match(status.description):
        return BatchTooLarge(max(1, int(found[1])))
    return RequestRefused(status)


# What a status means for a batched direct get


class BatchEnded(NamedTuple):
    """The server has sent what it sends for a request.

    Attributes:
        last: sequence of the last message that it has sent, 0 when it has sent none.
        pending: how many messages its replica has behind it that match.
    """

    last: int
    pending: int


class NobodyAnswers(NamedTuple):
    """No server answers direct gets of the stream at the moment."""


DirectEvent = BatchEnded | NobodyAnswers | RequestRefused

_NUM_PENDING, _LAST_SEQUENCE = "Nats-Num-Pending", "Nats-Last-Sequence"


def direct_event(status: Status) -> DirectEvent:
    """Return what a status means for a batched direct get.

    ============  ===========================================================
    204           the end of a batch
    404           likewise: the replica has nothing that matches
    503           nobody answers
    408, other    refused: no later request would fare better
    ============  ===========================================================
    """
    if status.code == 204:
        last, pending = status.number(_LAST_SEQUENCE), status.number(_NUM_PENDING)
        return RequestRefused(status) if last is None or pending is None else BatchEnded(last, pending)
    if status.code == 404:
        return BatchEnded(0, 0)
    return NobodyAnswers() if status.code == NO_RESPONDERS else RequestRefused(status)
