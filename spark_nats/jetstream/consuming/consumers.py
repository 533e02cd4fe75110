"""Ephemeral pull consumers: making them within the limits of streams and accounts, and deleting them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_nats import clock
from spark_nats.client.retrying import Backoff
from spark_nats.conditions.jetstream import NO_PLACE_FOR_CONSUMER, WAITS_FOR_PLACE
from spark_nats.errors import JetStreamError, NatsError
from spark_nats.jetstream.api import JetStream, Request, interpreting
from spark_nats.jetstream.streams import leader_in
from spark_nats.jetstream.views import stream_info
from spark_nats.protocol.api import Api, ErrCode, filters_of
from spark_nats.protocol.documents import integer_at
from spark_nats.protocol.subjects import subject_violation

logger = logging.getLogger(__name__)

_SECOND = 1_000_000_000  # JetStream's durations are nanoseconds
INACTIVE_THRESHOLD = 60 * _SECOND
"""After so many nanoseconds without a request the server deletes one of our consumers by itself."""
PLACE_TIMEOUT = 90.0
"""Seconds to wait for a place among a stream's consumers when its limit leaves none. Longer than the time after which
the server deletes those that a killed task has left behind."""
PLACE_LIMIT = (
    "max_consumers of the stream or of its account; where neither is set default_max_consumers of the server, which is "
    "1,000 from nats-server 2.15 on"
)
"""How many consumers a stream may have."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """State of a consumer, as a server says it.

    An ephemeral one of ours has one replica, unless it is of an interest stream, which the server puts on any member of
    the stream's group. That member may lag behind the stream's leader, so what it says of the end of the stream proves
    nothing.
    """

    name: str
    config: dict[str, Any]  # its whole configuration
    begins: int  # sequence at which it looks for the next message
    deliveries: int  # how many it has made
    floor: int  # sequence before which it holds nothing
    pending: int  # how many messages its replica has for it
    max_batch: int | None  # most messages that the server lets one pull request ask for; None for no limit
    leader: str  # name of the server that it lives on; empty where there is no cluster

    @property
    def acknowledged(self) -> int:
        """The sequence before which all is done: acknowledged, or delivered where nothing has to be acknowledged."""
        return self.begins if self.config.get("ack_policy") == "none" else self.floor

    @property
    def metadata(self) -> dict[str, Any]:
        """What its makers have noted on it."""
        metadata = self.config.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects that it has; none when it has all."""
        return filters_of(self.config)


def consumer_in(answer: dict[str, Any], stream: str, name: str) -> ConsumerInfo:
    """Return the state of a stream's consumer that an answer tells, or raise a :class:`ValueError`."""
    config = answer.get("config")
    if answer.get("name") != name:  # it becomes part of subjects
        raise ValueError("it is about another consumer or none")
    if answer.get("stream_name") != stream:
        raise ValueError("it is about a consumer of another stream")
    if not isinstance(config, dict):
        raise ValueError("its 'config' is no object")
    return ConsumerInfo(
        name=name,
        config=config,
        begins=integer_at(answer, "delivered", "stream_seq") + 1,
        deliveries=integer_at(answer, "delivered", "consumer_seq"),
        floor=integer_at(answer, "ack_floor", "stream_seq") + 1,
        pending=integer_at(answer, "num_pending"),
        max_batch=integer_at(config, "max_batch") if config.get("max_batch") else None,
        leader=leader_in(answer),
    )


def moved_consumer_in(answer: dict[str, Any], stream: str, name: str, sequence: int) -> ConsumerInfo:
    """Return the state of a consumer that was moved to a sequence, as :func:`consumer_in` does."""
    if integer_at(answer, "reset_seq") != sequence:
        raise ValueError(f"it does not say that the consumer begins at {sequence}")
    return consumer_in(answer, stream, name)


def consumer_info(js: JetStream, stream: str, name: str) -> ConsumerInfo | None:
    """Return the state of a consumer; None when there is none of that name.

    Raises:
        NatsError: the request failed.
    """
    try:
        found = js.request(Api.CONSUMER_INFO, stream, name)
    except JetStreamError as error:
        if error.err_code != ErrCode.CONSUMER_NOT_FOUND:
            raise
        return None
    with interpreting(Api.CONSUMER_INFO, stream, name):
        return consumer_in(found, stream, name)


def configure_durable(js: JetStream, stream: str, config: Mapping[str, Any], action: str) -> ConsumerInfo:
    """Make a durable of this name and configuration, or update it, as the ``action`` is ``create`` or ``update``."""
    names = stream, str(config["name"])
    answer = js.request(Api.CONSUMER_CREATE, *names, body={"stream_name": stream, "config": config, "action": action})
    with interpreting(Api.CONSUMER_CREATE, *names):
        return consumer_in(answer, *names)


def durable_config(name: str, filters: Sequence[str], metadata: dict[str, str], **more: Any) -> dict[str, Any]:
    """Return the configuration of a durable for some subjects, or all when there are none, from which nobody pulls."""
    chosen = {"filter_subjects": list(filters)} if filters else {}
    return {"name": name, "durable_name": name, "ack_policy": "explicit", "metadata": metadata, **more, **chosen}


def not_ours(found: ConsumerInfo, mark: str, filters: Sequence[str], what_for: str = "") -> str:
    """Say why a durable is none that we have made for some subjects, with a mark in its metadata; empty if it is."""
    if mark not in found.metadata:
        return f"was not made by spark-nats{what_for}"
    same = sorted(found.filters) == sorted(filters)
    return "" if same else f"is for {', '.join(found.filters) or 'all subjects'}"


def finds_all(js: JetStream, filters: Sequence[str]) -> bool:
    """Tell whether a consumer with these filters delivers, and counts, all that matches.

    Before nats-server 2.12.4 one with several filters of different depths, some with wildcards, may pass over messages
    (seen on 2.11.11 and 2.12.3, and not on 2.12.4): `a.*` and `a.b.*`. Depths are not looked at here.
    """
    risky = len(filters) > 1 and any(map(subject_violation, filters))  # of a filter that is valid, for its wildcard
    return not (risky and js.connection.info.is_older_than(2, 12, 4))


def create_consumer(
    js: JetStream,
    stream: str,
    start: int | None,
    filters: Sequence[str] = (),
    *,
    headers_only: bool = False,
    patience: float | None = None,
) -> ConsumerInfo:
    """Make a consumer that delivers what a stream has from a sequence on, or the last message of each subject.

    Where the stream has as many consumers as it may (:data:`PLACE_LIMIT`), it waits for one of them to end, for
    ``patience`` seconds, or :data:`PLACE_TIMEOUT`. Without a ``start`` it delivers the last message of each subject,
    and then whatever is stored. With ``headers_only`` payloads are left out; each message then has its payload's size
    in bytes in the header ``Nats-Msg-Size``.

    Raises:
        StreamNotFoundError: there is no such stream.
        ProtocolError: the server describes another consumer.
        JetStreamError: the server refuses the consumer.
    """
    config = _config(start, filters, headers_only)
    patience = PLACE_TIMEOUT if patience is None else patience
    deadline = clock.monotonic() + patience
    waits = Backoff(0.1, 1.0, least=0.5)
    while True:
        try:
            return _create(js, stream, config)
        except JetStreamError as error:
            if error.err_code == ErrCode.REPLICAS_MUST_MATCH and config.pop("num_replicas", None):
                continue  # an interest stream has all its consumers on all its servers
            limit = _allowed_threshold(js, stream) if error.err_code == ErrCode.INACTIVE_THRESHOLD_EXCESS else None
            if limit is not None and limit < config["inactive_threshold"]:
                config["inactive_threshold"] = limit
                continue
            if error.err_code != ErrCode.MAXIMUM_CONSUMERS:
                raise
            if clock.monotonic() >= deadline:
                raise error.with_context(
                    NO_PLACE_FOR_CONSUMER(
                        stream=stream,
                        seconds=patience,
                        limit=PLACE_LIMIT,
                        reason=error.description,
                        err_code=error.err_code,
                    )
                ) from None
        if waits.is_new:
            logger.info(WAITS_FOR_PLACE(stream=stream).coded)
        js.connection.wait(waits.next())


def create_consumers(
    js: JetStream, starts: Mapping[str, int], filters: Sequence[str], *, headers_only: bool
) -> dict[str, ConsumerInfo | NatsError]:
    """Make a consumer of each stream from a sequence on, in one round trip; return it, or why there is none.

    Raises:
        NatsError: the connection failed, or an answer is not what the API's documentation says.
    """
    requests = [_request(stream, _config(start, filters, headers_only)) for stream, start in starts.items()]
    made = dict[str, ConsumerInfo | NatsError]()
    for request, answer in zip(requests, js.request_all(requests), strict=True):
        stream, _ = request.names
        made[stream] = answer if isinstance(answer, NatsError) else _made(request, answer)
        if isinstance(answer, JetStreamError) and answer.err_code == ErrCode.INACTIVE_THRESHOLD_EXCESS:
            made[stream] = create_consumer(js, stream, starts[stream], filters, headers_only=headers_only, patience=0.0)
    return made


def _config(start: int | None, filters: Sequence[str], headers_only: bool) -> dict[str, Any]:
    """Return the configuration of a consumer, see :func:`create_consumer`."""
    config: dict[str, Any] = {
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": INACTIVE_THRESHOLD,
    }
    if start is None:
        config["deliver_policy"] = "last_per_subject"
        filters = filters or (">",)  # the server demands one
    else:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    if filters:
        config["filter_subjects"] = list(filters)
    if headers_only:
        config["headers_only"] = True
    return config


def _create(js: JetStream, stream: str, config: dict[str, Any]) -> ConsumerInfo:
    request = _request(stream, config)
    return _made(request, js.request(request.operation, *request.names, body=request.body))


def _request(stream: str, config: dict[str, Any]) -> Request:
    name = f"spark-nats-{clock.token(6)}"
    return Request(Api.CONSUMER_CREATE, (stream, name), {"stream_name": stream, "config": {"name": name, **config}})


def _made(request: Request, answer: dict[str, Any]) -> ConsumerInfo:
    with interpreting(request.operation, *request.names):
        return consumer_in(answer, *request.names)


def _allowed_threshold(js: JetStream, stream: str) -> int | None:
    """Return the longest time without a request, in nanoseconds, that a stream allows its consumers."""
    limits = stream_info(js, stream).config.get("consumer_limits")
    value = limits.get("inactive_threshold") if isinstance(limits, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def delete_consumer(js: JetStream, stream: str, name: str) -> None:
    """Have a consumer deleted, without waiting; else the server does it after :data:`INACTIVE_THRESHOLD`."""
    js.connection.publish(f"{js.prefix}.{Api.CONSUMER_DELETE.about(stream, name)}", b"")


def try_to_read(js: JetStream, stream: str, start: int) -> None:
    """Make a consumer, ask it for a message without waiting for one, and delete it: to know that this is permitted.

    If it is not, that is a :class:`PermissionsError`. A stream that has as many consumers as it may is not waited for.
    """
    try:
        name = create_consumer(js, stream, start, patience=0.0).name
    except JetStreamError as error:
        if error.err_code == ErrCode.MAXIMUM_CONSUMERS:
            return
        raise
    subject = f"{js.prefix}.{Api.CONSUMER_NEXT.about(stream, name)}"
    js.connection.publish(subject, b'{"batch":1,"no_wait":true}', js.connection.new_inbox())
    js.connection.flush()  # a server that does not permit it says so; whatever else it says is of no interest
    delete_consumer(js, stream, name)
    js.connection.flush()  # behind it the server has said what it refuses
