"""Keeps ephemeral consumers of a connection from one range to the next, and moves them there.

In a cluster, creating and deleting a consumer takes one proposal each to the meta group, which decides for all servers.
Moving a consumer takes none (ADR-60 and the server's CONSUMER.RESET, 2.14): the server that hosts it moves it alone,
and the reader requests the stream's state in the same round trip.

A consumer lives no longer than its stream, and its name is random. So whatever answers for it belongs to the stream on
which it was created, and that stream's creation time tells whether the stream still exists. A server is silent where
the consumer does not exist, where the server is older, or where the consumer lives on an older one. When the answer is
missing or odd, the reader gives up the consumer and creates a new one, as for the first range.

No consumer is kept on a stream that limits the number of its consumers, or from which anything but its limits removes
messages: there another client may wait for the consumer's place, or for its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.errors import JetStreamError, NatsError, NatsTimeoutError, PermissionsError, ProtocolError
from spark_nats.jetstream.api import JetStream, RefusalMemory, Request, bad_answer_is_protocol_error
from spark_nats.jetstream.consuming.consumers import create_consumer, delete_consumer
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import StateOf
from spark_nats.protocol.api import Api, ErrCode
from spark_nats.protocol.consumers import ConsumerInfo, moved_consumer_in

MAX_KEPT = 8  # consumers that one connection keeps; beyond that it deletes the least recently used one
PATIENCE = 1.0
"""Maximum seconds to wait until a consumer has moved: a server that has no consumer of that name does not answer."""
_FRESH = 0.5  # share of its inactive_threshold for which a consumer may be reused: later the server may delete it


class ConsumerKey(NamedTuple):
    """What a consumer delivers, apart from the sequence where it begins."""

    prefix: str  # first tokens of the API's subjects
    stream: str
    filters: tuple[str, ...]
    headers_only: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    """A consumer that is not in use."""

    name: str
    created: str  # when its stream was created
    start: int  # sequence before which the server does not let it move
    used: float  # when it was created or last asked for messages, by clock.monotonic(); moving it does not count
    until: float  # when it must not be reused any more


class Moved(NamedTuple):
    """A kept consumer that is in use again."""

    made: ConsumerInfo  # as if it had just been created
    info: StreamInfo  # of its stream
    used: float  # when, by ``clock.monotonic()``, it was created or last asked for messages


@dataclass(slots=True)
class _Keeping:
    """The consumers that one connection keeps, the last used one at the end."""

    consumers: dict[ConsumerKey, _Kept] = field(default_factory=dict)
    delete_tested: set[tuple[str, str]] = field(default_factory=set)  # prefixes and streams where deleting was tested


_keeping: WeakKeyDictionary[Connection, _Keeping] = WeakKeyDictionary()
_refused = RefusalMemory()  # streams where a consumer could not be moved, or had no place: none is kept there


def move_kept(js: JetStream, key: ConsumerKey, sequence: int) -> Moved | None:
    """Move the consumer that is kept under a key to a sequence, and stop keeping it, because it is in use.

    Return None when there is no such consumer, and also when it is unusable, after deleting it.

    Raises:
        PermissionsError: the user may not request the stream's state.
        NatsError: the connection failed.
    """
    keeping = _keeping.get(js.connection, _Keeping())
    kept = keeping.consumers.pop(key, None)
    if kept is None:
        return None
    _delete_at_close(js.connection, keeping)
    moved = None
    if kept.start <= sequence and clock.monotonic() < kept.until and not _refused.holds(js, key.stream):
        moved = _move(js, key, kept, sequence)
    if moved is None:
        delete_consumer(js, key.stream, kept.name)
    return moved


def _move(js: JetStream, key: ConsumerKey, kept: _Kept, sequence: int) -> Moved | None:
    state = StateOf(key.stream)
    reset = Request(Api.CONSUMER_RESET, (key.stream, kept.name), {"seq": sequence})
    try:
        moved, answer = js.request_all([reset, state.request], PATIENCE)
        if isinstance(answer, NatsError):
            return None
        info = state.read(answer)
        if info.created != kept.created:
            return None
        if isinstance(moved, NatsError):
            if isinstance(moved, NatsTimeoutError):
                _refused.note(js, key.stream)
            return None
        with bad_answer_is_protocol_error(Api.CONSUMER_RESET, key.stream, kept.name):
            found = moved_consumer_in(moved, key.stream, kept.name, sequence)
    except PermissionsError as error:
        if Api.CONSUMER_RESET not in str(error):
            raise
        _refused.note(js, key.stream)
        return None
    except (ProtocolError, JetStreamError):
        if js.connection.closed:
            raise
        return None
    as_asked = (found.begins, found.deliveries) == (sequence, 0)
    return Moved(found, info, kept.used) if as_asked else None


def make_consumer(js: JetStream, key: ConsumerKey, sequence: int) -> ConsumerInfo:
    """Create a consumer for a key from a sequence on, as :func:`~.consumers.create_consumer` does.

    If the stream has its maximum of consumers, the connection first deletes those that it keeps there.
    """
    make = partial(create_consumer, js, key.stream, sequence, key.filters, headers_only=key.headers_only)
    try:
        return make(patience=0.0)
    except JetStreamError as error:
        if error.err_code != ErrCode.MAXIMUM_CONSUMERS:
            raise
    _refused.note(js, key.stream)
    keeping = _keeping.get(js.connection, _Keeping())
    for each in [each for each in keeping.consumers if (each.prefix, each.stream) == (key.prefix, key.stream)]:
        delete_consumer(js, each.stream, keeping.consumers.pop(each).name)
    _delete_at_close(js.connection, keeping)
    return make()


def may_be_kept(js: JetStream, info: StreamInfo) -> bool:
    """Tell whether consumers of a stream can be moved, as far as is known, and nobody waits for their end."""
    older = js.connection.info.is_older_than(2, 14)
    return info.retention == LIMITS and info.max_consumers is None and not older and not _refused.holds(js, info.name)


def keep(js: JetStream, key: ConsumerKey, made: ConsumerInfo, created: str, used: float) -> bool:
    """Keep, for the next range, a consumer that nobody uses now.

    A consumer without a start sequence or an inactive threshold in its configuration is deleted instead. The first time
    on a stream, the call tests the permission to delete consumers, with a name that does not exist.

    Args:
        js: the consumer's connection.
        key: what the consumer delivers.
        made: the consumer as it was created, or moved.
        created: when its stream was created.
        used: when, by ``clock.monotonic()``, it was created or last asked for messages.

    Returns:
        Whether to wait for the server, in case it refuses the deletion.
    """
    keeping = _keeping.setdefault(js.connection, _Keeping())
    start, threshold = made.start, made.inactive_threshold
    if start is None or threshold is None:
        delete_consumer(js, key.stream, made.name)
        return True
    former = keeping.consumers.pop(key, None)
    keeping.consumers[key] = _Kept(made.name, created, start, used, used + threshold / 1e9 * _FRESH)
    if former is not None:  # of another range that was read meanwhile
        delete_consumer(js, key.stream, former.name)
    if len(keeping.consumers) > MAX_KEPT:
        oldest = next(iter(keeping.consumers))
        delete_consumer(js, oldest.stream, keeping.consumers.pop(oldest).name)
    _delete_at_close(js.connection, keeping)
    asks = (key.prefix, key.stream) not in keeping.delete_tested
    if asks:
        keeping.delete_tested.add((key.prefix, key.stream))
        delete_consumer(js, key.stream, f"{made.name}-")
    return asks


def _delete_at_close(connection: Connection, keeping: _Keeping) -> None:
    """Have the kept consumers deleted when the connection is closed."""
    if not connection.closed:
        subjects = [
            f"{key.prefix}.{Api.CONSUMER_DELETE.about(key.stream, kept.name)}"
            for key, kept in keeping.consumers.items()
        ]
        connection.at_close(subjects)
