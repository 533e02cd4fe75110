"""Creates, moves and deletes consumers, and keeps ephemeral ones of a connection from one range to the next.

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

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from spark_nats import clock
from spark_nats.client.connection import Connection, ask_versions
from spark_nats.client.retrying import Backoff
from spark_nats.conditions.jetstream import NO_PLACE_FOR_CONSUMER, SERVER_TOO_OLD, WAITS_FOR_PLACE
from spark_nats.errors import (
    JetStreamError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    ProtocolError,
    UnsupportedStreamError,
    answer_or_raise,
)
from spark_nats.jetstream.api import JetStream, RefusalMemory, Request, bad_answer_is_protocol_error
from spark_nats.jetstream.consuming.placing import peers_in_connected_cluster
from spark_nats.jetstream.listing import Listed, ask_all_consumers
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import StateOf, ask_stream_info
from spark_nats.protocol.api import Api, ErrCode
from spark_nats.protocol.consumers import (
    ConsumerInfo,
    consumer_create_body,
    ephemeral_config,
    lower_threshold,
    may_be_consumer_of,
    parse_consumer,
    parse_reset_consumer,
)
from spark_nats.protocol.control import is_older
from spark_nats.protocol.subjects import subject_violation

logger = logging.getLogger(__name__)

PLACE_TIMEOUT = 90.0
"""Seconds to wait until a stream that has its maximum of consumers loses one. Longer than the time after which the
server deletes the consumers of a killed task."""
MADE_AT_ONCE = 256  # consumers
PLACE_LIMIT = (
    "max_consumers of the stream or of its account; where neither is set default_max_consumers of the server, which is "
    "1,000 from nats-server 2.15 on"
)
"""The settings that limit the number of a stream's consumers."""


def ask_consumer(js: JetStream, stream: str, name: str) -> ConsumerInfo | None:
    """Return the state of a consumer; None when no consumer has that name.

    Raises:
        NatsError: the request failed.
    """
    request = Request(Api.CONSUMER_INFO, (stream, name))
    return _parse_consumer_or_none(request, js.request_all([request])[0])


def ask_consumer_and_all(js: JetStream, stream: str, name: str) -> tuple[ConsumerInfo | None, list[Listed]]:
    """Return what :func:`ask_consumer` does, and all consumers of the stream; up to 256 take no further round trip.

    Raises:
        NatsError: a request failed.
    """
    requests = [Request(Api.CONSUMER_INFO, (stream, name)), Request(Api.CONSUMER_LIST, (stream,), {"offset": 0})]
    one, first = js.request_all(requests)
    listed = ask_all_consumers(js, stream, answer_or_raise(first))
    with bad_answer_is_protocol_error(Api.CONSUMER_LIST, stream):
        if not all(may_be_consumer_of(each.entry, stream) for each in listed):
            raise ValueError("it is about a consumer of another stream")
    return _parse_consumer_or_none(requests[0], one), listed


def move_consumer(
    js: JetStream, stream: str, name: str, sequence: int, *, level: int | None = None, timeout: float | None = None
) -> None:
    """Move a consumer to a sequence; ``level`` is that of a :class:`.Request`, ``timeout`` that of ``request_all``."""
    request = Request(Api.CONSUMER_RESET, (stream, name), {"seq": sequence}, level)
    answer = answer_or_raise(js.request_all([request], timeout)[0])
    with bad_answer_is_protocol_error(request.operation, *request.names):
        parse_reset_consumer(answer, stream, name, sequence)


def too_old_error(stream: str, version: str, wanted: str, what: str, name: str = "") -> UnsupportedStreamError:
    """Return the error for a stream's server of a version older than ``wanted``, the one that ``what`` needs."""
    server = f"the server {name!r}" if name else "the server"
    said = SERVER_TOO_OLD(what=what, wanted=wanted, server=server, stream=stream, version=version)
    return UnsupportedStreamError(said)


def check_servers_move_consumers(js: JetStream, info: StreamInfo, what: str) -> None:
    """Raise :class:`UnsupportedStreamError` where a server is too old for :func:`move_consumer`, which ``what`` needs.

    Servers before 2.14 do not know the request, which replicas of a consumer note in their log: such a server does not
    stay up beside newer ones (seen with 2.12.8). Those that cannot be reached from here are not known to be older.
    """
    versions = {"": info.server_version}
    if info.replicas > 1:
        versions |= ask_versions(js.connection, peers_in_connected_cluster(info, js.connection.info))
    for name, version in versions.items():
        if is_older(version, 2, 14):
            raise too_old_error(info.name, version, "2.14", what, name)


def create_or_update_durable(js: JetStream, stream: str, config: Mapping[str, Any], action: str) -> ConsumerInfo:
    """Create or update the durable that ``config`` names and describes; ``action`` is ``create`` or ``update``."""
    body = consumer_create_body(stream, config, action=action)
    return _request_consumer(js, Request(Api.CONSUMER_CREATE, (stream, config["name"]), body))


SURVIVES_PURGES = (2, 14, 7)
"""The first nats-server whose consumers of several subjects lose nothing when one of them is purged or rolled up."""


def delivers_all_matches(made: ConsumerInfo) -> bool:
    """Tell whether a new consumer counts every match of its filters, and delivers it if nothing is removed.

    Before nats-server 2.12.4, a consumer with several filters of different depths, some with wildcards, such as `a.*`
    and `a.b.*`, may skip messages (seen on 2.11.11 and 2.12.3, not on 2.12.4). Depths are not compared here.
    """
    filters = made.filters
    risky = len(filters) > 1 and any(map(subject_violation, filters))  # that is, has a wildcard: the filters are valid
    return not (risky and is_older(made.server_version, 2, 12, 4))


def delivers_all_despite_purges(version: str, filters: Sequence[str]) -> bool:
    """Tell whether a consumer with these filters, on a server of a version, delivers all that is left at any removal.

    Before nats-server 2.14.7, a consumer with several filters passes over messages of the others when what one of them
    selects is purged, or rolled up, and says that nothing is left (seen from 2.10.26 to 2.14.6). Only the consumer's
    own server counts: in another domain, or while a cluster is upgraded, the connected one may be newer.
    """
    return len(filters) <= 1 or not is_older(version, *SURVIVES_PURGES)


def create_ephemeral(
    js: JetStream,
    stream: str,
    start: int | None,
    filters: Sequence[str] = (),
    *,
    headers_only: bool = False,
    patience: float | None = None,
) -> ConsumerInfo:
    """Create a consumer that delivers a stream's messages from a sequence on, or the last message of each subject.

    If the stream has its maximum of consumers (:data:`PLACE_LIMIT`), the call waits until one of them ends, for at most
    ``patience`` seconds (:data:`PLACE_TIMEOUT` when None). Without a ``start`` the consumer delivers the last message
    of each subject, and then all new messages. With ``headers_only`` it leaves out payloads; each message then has
    its payload's size in bytes in the header ``Nats-Msg-Size``.

    Raises:
        StreamNotFoundError: there is no such stream.
        ProtocolError: the server describes another consumer.
        JetStreamError: the server refuses the consumer.
    """
    config = ephemeral_config(start, filters, headers_only)
    patience = PLACE_TIMEOUT if patience is None else patience
    deadline = clock.monotonic() + patience
    waits = Backoff(0.1, 1.0, fixed_share=0.5)
    while True:
        try:
            return _request_consumer(js, _ephemeral_create_request(stream, config))
        except JetStreamError as error:
            code, why, limit = error.err_code, error.description, PLACE_LIMIT
            if code == ErrCode.REPLICAS_MUST_MATCH and config.pop("num_replicas", None):
                continue  # an interest stream has all its consumers on all its servers
            if code == ErrCode.INACTIVE_THRESHOLD_EXCESS and lower_threshold(
                config, ask_stream_info(js, stream).config
            ):
                continue
            if code != ErrCode.MAXIMUM_CONSUMERS:
                raise
            if clock.monotonic() >= deadline:
                said = NO_PLACE_FOR_CONSUMER(stream=stream, seconds=patience, limit=limit, reason=why, err_code=code)
                raise error.with_message(said) from None
        if waits.is_new:
            logger.info(WAITS_FOR_PLACE(stream=stream).with_code)
        js.connection.wait_while_receiving(waits.take_next_wait_seconds())


def create_ephemerals(
    js: JetStream, starts: Mapping[str, int], filters: Sequence[str], *, headers_only: bool
) -> dict[str, ConsumerInfo | NatsError]:
    """Create a consumer on each stream from a sequence on; return each consumer, or the error.

    :data:`MADE_AT_ONCE` take a round trip: in a cluster, the meta group decides about each.

    Raises:
        NatsError: the connection failed, the user may not create a consumer, or an answer is invalid.
    """
    configs = {stream: ephemeral_config(start, filters, headers_only) for stream, start in starts.items()}
    requests = [_ephemeral_create_request(stream, config) for stream, config in configs.items()]
    made = dict[str, ConsumerInfo | NatsError]()
    parts = [js.request_all(requests[i : i + MADE_AT_ONCE]) for i in range(0, len(requests), MADE_AT_ONCE)]
    for (stream, start), request, answer in zip(starts.items(), requests, chain(*parts), strict=True):
        try:
            if isinstance(answer, JetStreamError) and answer.err_code == ErrCode.INACTIVE_THRESHOLD_EXCESS:
                made[stream] = create_ephemeral(js, stream, start, filters, headers_only=headers_only, patience=0.0)
            else:
                made[stream] = answer if isinstance(answer, NatsError) else _parse_consumer(request, answer)
        except NatsError as error:  # the caller has to know the other consumers, to delete them
            made[stream] = error
    return made


def _request_consumer(js: JetStream, request: Request) -> ConsumerInfo:
    return _parse_consumer(request, js.request(request.operation, *request.names, body=request.body))


def _ephemeral_create_request(stream: str, config: dict[str, Any]) -> Request:
    name = f"spark-nats-{clock.token(6)}"
    return Request(Api.CONSUMER_CREATE, (stream, name), consumer_create_body(stream, {"name": name, **config}))


def _parse_consumer_or_none(request: Request, answer: dict[str, Any] | NatsError) -> ConsumerInfo | None:
    """Return the state of a consumer in an answer; None where it reports that there is none."""
    if isinstance(answer, JetStreamError) and answer.err_code == ErrCode.CONSUMER_NOT_FOUND:
        return None
    return _parse_consumer(request, answer_or_raise(answer))


def _parse_consumer(request: Request, answer: dict[str, Any]) -> ConsumerInfo:
    with bad_answer_is_protocol_error(request.operation, *request.names):
        return parse_consumer(answer, *request.names)


def delete_consumer_without_waiting(js: JetStream, stream: str, name: str) -> None:
    """Have a consumer deleted, without waiting; if that fails, the server does it after ``INACTIVE_THRESHOLD``."""
    js.connection.publish(f"{js.prefix}.{Api.CONSUMER_DELETE.with_names(stream, name)}", b"")


def check_read_permission(js: JetStream, stream: str, start: int) -> None:
    """Check the permission to read: create a consumer, request a message without waiting, and delete the consumer.

    Without the permission it raises :class:`PermissionsError`. Without a free place among the consumers, it returns
    at once, having tested only the creation.
    """
    try:
        name = create_ephemeral(js, stream, start, patience=0.0).name
    except JetStreamError as error:
        if error.err_code == ErrCode.MAXIMUM_CONSUMERS:
            return
        raise
    subject = f"{js.prefix}.{Api.CONSUMER_NEXT.with_names(stream, name)}"
    js.connection.publish(subject, b'{"batch":1,"no_wait":true}', js.connection.new_inbox())
    js.connection.flush()  # the server reports a missing permission; its other answers do not matter
    delete_consumer_without_waiting(js, stream, name)
    js.connection.flush()  # after that the server has reported every refusal


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


class Taken(NamedTuple):
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


def take_and_move_kept(js: JetStream, key: ConsumerKey, sequence: int) -> Taken | None:
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
    _update_deletions_at_close(js.connection, keeping)
    moved = None
    if kept.start <= sequence and clock.monotonic() < kept.until and not _refused.has(js, key.stream):
        moved = _move_or_none(js, key, kept, sequence)
    if moved is None:
        delete_consumer_without_waiting(js, key.stream, kept.name)
    return moved


def _move_or_none(js: JetStream, key: ConsumerKey, kept: _Kept, sequence: int) -> Taken | None:
    state = StateOf(key.stream)
    reset = Request(Api.CONSUMER_RESET, (key.stream, kept.name), {"seq": sequence})
    try:
        moved, answer = js.request_all([reset, state.request], PATIENCE)
        if isinstance(answer, NatsError):
            return None
        info = state.parse_result(answer)
        if info.created != kept.created:
            return None
        if isinstance(moved, NatsError):
            if isinstance(moved, NatsTimeoutError):
                _refused.note(js, key.stream)
            return None
        with bad_answer_is_protocol_error(Api.CONSUMER_RESET, key.stream, kept.name):
            found = parse_reset_consumer(moved, key.stream, kept.name, sequence)
    except PermissionsError as error:
        if Api.CONSUMER_RESET not in str(error):
            raise
        _refused.note(js, key.stream)
        return None
    except (ProtocolError, JetStreamError):
        if js.connection.closed:
            raise
        return None
    return Taken(found, info, kept.used) if (found.begins, found.deliveries) == (sequence, 0) else None


def create_making_room(js: JetStream, key: ConsumerKey, sequence: int) -> ConsumerInfo:
    """Create a consumer for a key from a sequence on, as :func:`create_ephemeral` does.

    If the stream has its maximum of consumers, the connection first deletes those that it keeps there.
    """
    make = partial(create_ephemeral, js, key.stream, sequence, key.filters, headers_only=key.headers_only)
    try:
        return make(patience=0.0)
    except JetStreamError as error:
        if error.err_code != ErrCode.MAXIMUM_CONSUMERS:
            raise
    _refused.note(js, key.stream)
    keeping = _keeping.get(js.connection, _Keeping())
    for each in [each for each in keeping.consumers if (each.prefix, each.stream) == (key.prefix, key.stream)]:
        delete_consumer_without_waiting(js, each.stream, keeping.consumers.pop(each).name)
    _update_deletions_at_close(js.connection, keeping)
    return make()


def may_keep_consumers(js: JetStream, info: StreamInfo) -> bool:
    """Tell whether consumers of a stream can be moved, as far as is known, and nobody waits for their end."""
    older = is_older(info.server_version, 2, 14)
    return info.retention == LIMITS and info.max_consumers is None and not older and not _refused.has(js, info.name)


def keep_or_delete(js: JetStream, key: ConsumerKey, made: ConsumerInfo, created: str, used: float) -> bool:
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
    start, threshold = made.start_sequence, made.inactive_threshold
    if start is None or threshold is None:
        delete_consumer_without_waiting(js, key.stream, made.name)
        return True
    former = keeping.consumers.pop(key, None)
    keeping.consumers[key] = _Kept(made.name, created, start, used, used + threshold / 1e9 * _FRESH)
    if former is not None:  # of another range that was read meanwhile
        delete_consumer_without_waiting(js, key.stream, former.name)
    if len(keeping.consumers) > MAX_KEPT:
        oldest = next(iter(keeping.consumers))
        delete_consumer_without_waiting(js, oldest.stream, keeping.consumers.pop(oldest).name)
    _update_deletions_at_close(js.connection, keeping)
    asks = (key.prefix, key.stream) not in keeping.delete_tested
    if asks:
        keeping.delete_tested.add((key.prefix, key.stream))
        delete_consumer_without_waiting(js, key.stream, f"{made.name}-")
    return asks


def _update_deletions_at_close(connection: Connection, keeping: _Keeping) -> None:
    """Have the kept consumers deleted when the connection is closed."""
    if not connection.closed:
        deletion, kept = Api.CONSUMER_DELETE.with_names, keeping.consumers
        connection.set_empty_messages_at_close(
            [f"{key.prefix}.{deletion(key.stream, it.name)}" for key, it in kept.items()]
        )
