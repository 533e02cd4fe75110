"""The permissions that reading and writing need, as in the table of docs/login.md, and which of them a user has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.commands import COMPARE, CONSUME, CREATE, EXACT, PEEK, READ, WRITE
from spark_nats.errors import PermissionsError
from spark_nats.jetstream.streams import INTEREST, WORK_QUEUE
from spark_nats.protocol.api import Api
from spark_nats.protocol.keyvalue import key_subject, stream_of
from spark_nats.protocol.users import UserInfo


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a user may do something."""

    to: str  # the activity, one of :data:`~spark_nats.commands.ACTIVITIES`
    possible: bool | None  # whether the user may and nothing else is in the way; None when that is not known
    lacks: tuple[str, ...]  # what is not allowed, such as `publish to orders.>`
    unknown: tuple[str, ...]  # what may or may not be allowed
    obstacle: str = ""  # what else is in the way; empty when nothing is


def publish_needs_of_stream(
    prefix: str,
    stream: str,
    retention: str,
    subjects: Sequence[str],
    bucket: str,
    bucket_exists: bool,
    by_pattern: bool,
    is_shared: bool,
) -> dict[str, tuple[str, ...]]:
    """Return the subjects that a user must be allowed to publish to, for each activity with a stream.

    Args:
        prefix: first tokens of the API's subjects.
        stream: name of the stream.
        retention: the stream's retention; ``limits`` when it is not known.
        subjects: the subjects under which messages are published to it.
        bucket: name of the KV bucket for ``deduplicate=exact``.
        bucket_exists: whether that bucket exists; otherwise it has to be created.
        by_pattern: whether the stream is read because its name matches a pattern.
        is_shared: whether the stream has several consumers.
    """
    api = partial(_api_subject, prefix)
    state_stream = stream_of(bucket)
    reading = _api_subjects_for_reading(prefix, stream)
    stream_info = api(Api.STREAM_INFO, stream)
    state = [api(Api.STREAM_INFO, state_stream), api(Api.MESSAGE_GET, state_stream), key_subject(bucket, ">", prefix)]
    if not bucket_exists:
        state.append(api(Api.STREAM_CREATE, state_stream))
    holding = (api(Api.CONSUMER_INFO, stream, "*"),)
    peeked = (stream_info, api(Api.DIRECT_GET, stream), api(Api.MESSAGE_GET, stream))
    publish: dict[str, tuple[str, ...]] = {READ: (stream_info, *reading)}
    if retention == WORK_QUEUE:
        others = (api(Api.CONSUMER_LIST, stream),) if is_shared else ()
        claimed = (*holding, api(Api.CONSUMER_CREATE, stream, "*"), api(Api.STREAM_PURGE, stream), *others)
        publish |= {CONSUME: (*peeked, *claimed), PEEK: peeked}
    else:
        publish[CONSUME] = (stream_info, *reading, *holding, api(Api.CONSUMER_RESET, stream, "*"))
        if retention == INTEREST:
            publish[PEEK] = (stream_info, *reading)
    publish[WRITE] = (stream_info, *subjects)
    publish[EXACT] = (stream_info, *subjects, *state, *reading)
    publish[CREATE] = (stream_info, api(Api.STREAM_CREATE, stream))
    if by_pattern:
        publish |= {to: (api(Api.STREAM_NAMES), *publish[to]) for to in (READ, PEEK) if to in publish}
    return publish


def publish_needs_of_bucket(prefix: str, bucket: str, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the subjects that a user must be allowed to publish to, for each activity with a KV bucket.

    Args:
        prefix: first tokens of the API's subjects.
        bucket: name of the bucket.
        keys: the keys to write, with wildcards.
    """
    stream = stream_of(bucket)
    stream_info = _api_subject(prefix, Api.STREAM_INFO, stream)
    subjects = tuple(key_subject(bucket, key, prefix) for key in keys)
    return {
        READ: (stream_info, *_api_subjects_for_reading(prefix, stream)),
        WRITE: (stream_info, *subjects),
        COMPARE: (stream_info, *subjects, _api_subject(prefix, Api.MESSAGE_GET, stream)),
        CREATE: (stream_info, _api_subject(prefix, Api.STREAM_CREATE, stream)),
    }


def _api_subject(prefix: str, operation: Api, *names: str) -> str:
    return f"{prefix}.{operation.with_names(*names)}"


def _api_subjects_for_reading(prefix: str, stream: str) -> tuple[str, ...]:
    """Return what reading messages needs, besides the request for the stream's state."""
    of_consumers = (Api.CONSUMER_CREATE, Api.CONSUMER_NEXT, Api.CONSUMER_DELETE)
    subjects = (_api_subject(prefix, each, stream, "*") for each in of_consumers)
    return (*subjects, _api_subject(prefix, Api.MESSAGE_GET, stream))


_HARMLESS = tuple(each for each in Api if each not in (Api.STREAM_PURGE, Api.STREAM_DELETE))
"""Requests that change nothing if they have no body and name no existing consumer: those left out need no body."""


class Rights:
    """What a user may publish and subscribe to.

    The server describes the permissions to users that may ask. Those of other users are tried where that does no harm:
    by :data:`_HARMLESS` requests without a body and without a reply subject, and by subscriptions that end at once.
    Whether such a user may publish to any other subject stays unknown.

    Args:
        connection: logged in as the user.
        user: the server's description of the user; None when there is none.
        prefix: first tokens of the API's subjects.
    """

    def __init__(self, connection: Connection, user: UserInfo | None, prefix: str) -> None:
        self._connection = connection
        self._user = user
        self._prefix = prefix
        self._tried: dict[tuple[str, str], bool] = {}

    def ask_ability(
        self, activity: str, publish: Sequence[str] = (), subscribe: Sequence[str] = (), obstacle: str = ""
    ) -> Ability:
        """Return whether the user may do something that publishes and subscribes to these subjects and wildcards.

        Raises:
            NatsError: the connection failed.
        """
        found = [(f"publish to {subject}", self._ask_may_publish(subject)) for subject in publish]
        found += [(f"subscribe to {subject}", self._ask_may_subscribe(subject)) for subject in subscribe]
        lacks = tuple(what for what, may in found if may is False)
        unknown = tuple(what for what, may in found if may is None)
        possible = False if lacks or obstacle else None if unknown else True
        return Ability(activity, possible, lacks, unknown, obstacle)

    def _ask_may_publish(self, subject: str) -> bool | None:
        if self._user is not None:
            return self._user.publish.allows_all_of(subject)
        # Both end with a dot, so that STREAM.NAMES, whose subject has no name after it, matches too.
        harmless = tuple(f"{self._prefix}.{operation.with_names('')}" for operation in _HARMLESS)
        if not f"{subject}.".startswith(harmless):
            return None
        return self._try_on_server("publish", subject.replace("*", f"spark-nats-{clock.token(6)}"), subject)

    def _ask_may_subscribe(self, subject: str) -> bool:
        if self._user is not None:
            return self._user.subscribe.allows_all_of(subject)
        return self._try_on_server("subscribe", subject, subject)

    def _try_on_server(self, how: str, subject: str, pattern: str) -> bool:
        if (how, pattern) not in self._tried:
            try:
                if how == "publish":
                    self._connection.publish(subject, b"")
                else:
                    self._connection.unsubscribe(self._connection.subscribe(subject))
                self._connection.flush()  # after it, the server has reported what it refuses
                self._tried[how, pattern] = True
            except PermissionsError:
                self._tried[how, pattern] = False
        return self._tried[how, pattern]
