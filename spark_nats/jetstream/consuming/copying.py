"""Finds out what a stream that sources or mirrors a work queue has still to copy, because a purge would take it away.

Since nats-server 2.14, such a stream has a durable consumer, which the server accepts beside that of a worker, with the
same subjects: a message leaves the queue when both have it. Older servers neither list nor count it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from spark_nats.conditions.jetstream import CONSUMERS_NOT_LISTED
from spark_nats.errors import JetStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.listing import Listed
from spark_nats.jetstream.messages import next_sequence
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.consumers import consumer_in, copier_of, filters_of
from spark_nats.protocol.documents import integer_at, value_at
from spark_nats.protocol.subjects import overlap


class Needed(NamedTuple):
    """The first message that another consumer of a stream still needs."""

    sequence: int
    consumer: str  # name of that consumer
    whom: str  # the same in words, with the stream that copies


def still_needed(
    js: JetStream, info: StreamInfo, listed: Sequence[Listed], name: str, filters: Sequence[str], end: int
) -> Needed | None:
    """Return the first message before ``end`` that another consumer still needs; None when there is none.

    A consumer whose place is unknown at the moment needs all. Only consumers whose subjects overlap with ours count.

    Args:
        js: the JetStream API over the connection to use.
        info: the stream's state.
        listed: all consumers of the stream.
        name: our own consumer.
        filters: our subjects; all when empty.
        end: the sequence before which messages are to be removed.

    Raises:
        JetStreamError: fewer consumers are listed than the stream has.
        NatsError: a request failed.
    """
    if len(listed) < info.consumers:
        raise JetStreamError(CONSUMERS_NOT_LISTED(stream=info.name, listed=len(listed), consumers=info.consumers))
    found = []
    for each in overlapping(listed, name, filters):
        after, first = _place(each, info.name), info.first_sequence
        if after < end:
            wanted = _filters(each) or (">",)
            needed = next_sequence(js, info.name, max(after, first), wanted, not info.undisputed) if after else first
            if needed is not None and needed < end:
                found.append(Needed(needed, each.name, in_words(each)))
    return min(found, default=None)


def overlapping(listed: Sequence[Listed], name: str, filters: Sequence[str]) -> Iterator[Listed]:
    """Yield the consumers except our own whose subjects overlap with ours, or are unknown."""
    for each in listed:
        if each.name != name and any(
            overlap(one, other) for one in filters or (">",) for other in _filters(each) or (">",)
        ):
            yield each


def copies(listed: Listed) -> bool:
    """Tell whether a consumer copies for a stream that sources or mirrors its stream."""
    return _config(listed).get("sourcing") is True


def _config(listed: Listed) -> dict[str, Any]:
    config = value_at(listed.entry, "config")
    return config if isinstance(config, dict) else {}


def _filters(listed: Listed) -> tuple[str, ...]:
    return filters_of(_config(listed))


def _place(listed: Listed, stream: str) -> int:
    """Return the sequence before which a consumer needs nothing any more; 0 where that is unknown."""
    try:
        return consumer_in(listed.entry or {}, stream, listed.name).acknowledged
    except ValueError:  # it is offline, or has no leader
        return 0


def not_copied(listed: Listed) -> int | None:
    """Return how many messages of its stream a consumer has not acknowledged; None where that is unknown."""
    try:
        return integer_at(listed.entry, "num_pending") + integer_at(listed.entry, "num_ack_pending")
    except ValueError:
        return None


def in_words(listed: Listed) -> str:
    """Describe a consumer, and the stream for which it copies."""
    copier = copier_of(_config(listed))
    return f"consumer {listed.name!r}" + (f" of {copier}" if copier else "")
