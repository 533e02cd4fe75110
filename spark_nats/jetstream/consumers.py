"""Ephemeral pull consumers: making them within the limits of streams and accounts, and deleting them."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_nats.errors import JetStreamError
from spark_nats.jetstream.api import JetStream, interpreting
from spark_nats.jetstream.streams import leader_in, stream_info
from spark_nats.protocol.api import Api, ErrCode
from spark_nats.protocol.documents import integer_at

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
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 1.0  # seconds between two attempts to get a place


@dataclass(frozen=True, slots=True)
class Consumer:
    """An ephemeral pull consumer without acknowledgements.

    It has one replica, unless it is one of an interest stream, which the server puts on any member of the stream's
    group. That member may lag behind the stream's leader, so what it says of the end of the stream proves nothing.

    Attributes:
        name: its name.
        begins: sequence at which it begins to look for messages.
        pending: how many messages its replica has for it.
        max_batch: most messages that the server lets one pull request ask for; None for no limit.
        leader: name of the server that it lives on; empty where there is no cluster.
    """

    name: str
    begins: int
    pending: int
    max_batch: int | None
    leader: str


def create_consumer(
    js: JetStream,
    stream: str,
    start: int | None,
    filters: Sequence[str] = (),
    *,
    headers_only: bool = False,
    patience: float | None = None,
) -> Consumer:
    """Make a consumer that delivers what a stream has from a sequence on, or the last message of each subject.

    Where the stream has as many consumers as it may (:data:`PLACE_LIMIT`), it waits for one of them to end.

    Args:
        js: where.
        stream: which stream.
        start: first sequence; None for the last message of each subject, and then whatever is stored.
        filters: only subjects that match one of these; all when empty.
        headers_only: whether to leave the payloads out; each message then has its payload's size in bytes in the
            header ``Nats-Msg-Size``.
        patience: seconds to wait for a place; :data:`PLACE_TIMEOUT` when None.

    Raises:
        StreamNotFoundError: there is no such stream.
        ProtocolError: the server describes another consumer.
        JetStreamError: the server refuses the consumer.
        NatsError: the request failed.
    """
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
    patience = PLACE_TIMEOUT if patience is None else patience
    deadline = time.monotonic() + patience
    wait = _FIRST_WAIT
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
            if time.monotonic() >= deadline:
                raise error.with_context(
                    f"stream {stream!r} has had as many consumers as it may have for {patience:g} s ({PLACE_LIMIT}); "
                    "each task that reads needs one while it runs: raise the limit, or run fewer tasks at once "
                    f"({error.description}, {error.err_code})"
                ) from None
        if wait == _FIRST_WAIT:
            logger.info("stream %s: waiting for a place among its consumers (max_consumers)", stream)
        js.connection.wait(wait * random.uniform(0.5, 1.0))  # noqa: S311 - so that tasks do not ask in step
        wait = min(2 * wait, _LONGEST_WAIT)


def _create(js: JetStream, stream: str, config: dict[str, Any]) -> Consumer:
    name = f"spark-nats-{secrets.token_hex(6)}"
    answer = js.request(
        Api.CONSUMER_CREATE, stream, name, body={"stream_name": stream, "config": {"name": name, **config}}
    )
    with interpreting(Api.CONSUMER_CREATE, stream, name):
        if answer.get("name") != name:  # it becomes part of subjects
            raise ValueError("it is about another consumer or none")
        described = answer.get("config")
        limited = isinstance(described, dict) and described.get("max_batch")
        return Consumer(
            name=name,
            begins=integer_at(answer, "delivered", "stream_seq") + 1,
            pending=integer_at(answer, "num_pending"),
            max_batch=integer_at(described, "max_batch") if limited else None,
            leader=leader_in(answer),
        )


def _allowed_threshold(js: JetStream, stream: str) -> int | None:
    """Return the longest time without a request, in nanoseconds, that a stream allows its consumers."""
    limits = stream_info(js, stream).config.get("consumer_limits")
    value = limits.get("inactive_threshold") if isinstance(limits, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def delete_consumer(js: JetStream, stream: str, name: str) -> None:
    """Have a consumer deleted, without waiting for it.

    Should the server not do it, it does so after :data:`INACTIVE_THRESHOLD`.

    Raises:
        NatsError: the connection failed.
    """
    js.connection.publish(f"{js.prefix}.{Api.CONSUMER_DELETE.about(stream, name)}", b"")


def try_to_read(js: JetStream, stream: str, start: int) -> None:
    """Make a consumer, ask it for a message without waiting for one, and delete it: to know that this is permitted.

    A stream that has as many consumers as it may is not waited for.

    Args:
        js: where.
        stream: which stream.
        start: sequence from which it could be read.

    Raises:
        PermissionsError: the user may not.
        JetStreamError: the server refuses the consumer.
        NatsError: the request failed.
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
