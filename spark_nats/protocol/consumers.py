"""Consumers on the wire of the API: their configuration, and their state as servers report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_nats.protocol.api import server_version_in
from spark_nats.protocol.documents import integer_at, positive_or_none_at, printable, string_at, text_or_none_at

INACTIVE_THRESHOLD = 60_000_000_000
"""Nanoseconds without a request after which the server deletes one of our ephemeral consumers,
see :func:`lower_threshold`."""
_DURABLE_BASE = {"ack_policy": "explicit", "deliver_policy": "all", "deliver_subject": None, "inactive_threshold": None}


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """State of a consumer, as a server reports it.

    Our ephemeral consumers have one replica, except on interest streams. The server places that replica on any member
    of the stream's group. The member may lag behind the stream's leader, so its report about the end of the stream
    proves nothing.
    """

    name: str
    config: dict[str, Any]  # its whole configuration
    begins: int  # stream sequence at which it begins to look for the next message
    deliveries: int  # number of its deliveries so far
    after_floor: int  # stream sequence after its acknowledgement floor
    pending: int  # messages that its replica has still to deliver
    max_batch: int | None  # most messages that one pull request may ask for; None for no limit
    leader: str  # name of the server that leads it; empty without a cluster

    @property
    def sequence_after_acknowledged(self) -> int:
        """The sequence before which all is acknowledged, or delivered if its policy asks for no acknowledgements.

        Servers before 2.14 report no floor until something is acknowledged, wherever the consumer began.
        """
        if self.config.get("ack_policy") == "none":
            return self.begins
        if self.after_floor == 1:
            return (self.start_sequence or 1) if self.deliveries else self.begins
        return self.after_floor

    @property
    def metadata(self) -> dict[str, Any]:
        """Its metadata; empty when it has none."""
        metadata = self.config.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @property
    def server_version(self) -> str:
        """Version of the server that leads it, wherever the connection leads."""
        return server_version_in(self.config)

    @property
    def start_sequence(self) -> int | None:
        """The start sequence in its configuration; None when there is none."""
        return positive_or_none_at(self.config, "opt_start_seq")

    @property
    def inactive_threshold(self) -> int | None:
        """Nanoseconds without a request after which the server deletes it; None when it never does."""
        return positive_or_none_at(self.config, "inactive_threshold")

    @property
    def has_our_durable_config(self) -> bool:
        """Whether its policies, deliver subject and inactive threshold are those that :func:`durable_config` makes."""
        return {name: self.config.get(name) for name in _DURABLE_BASE} == _DURABLE_BASE

    @property
    def filters(self) -> tuple[str, ...]:
        """Its filter subjects; empty for all subjects."""
        return filters_of(self.config)


def parse_consumer(answer: dict[str, Any], stream: str, name: str) -> ConsumerInfo:
    """Return the state of a stream's consumer from an answer; ValueError when it is about another one or invalid."""
    config = answer.get("config")
    if answer.get("name") != name:  # the name becomes part of subjects
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
        after_floor=integer_at(answer, "ack_floor", "stream_seq") + 1,
        pending=integer_at(answer, "num_pending"),
        max_batch=integer_at(config, "max_batch") if config.get("max_batch") else None,
        leader=text_or_none_at(answer, "cluster", "leader") or "",
    )


def parse_reset_consumer(answer: dict[str, Any], stream: str, name: str, sequence: int) -> ConsumerInfo:
    """Return a consumer's state from the answer to its move to ``sequence``; ValueError when it was not moved there."""
    if integer_at(answer, "reset_seq") != sequence:
        raise ValueError(f"it does not say that the consumer begins at {sequence}")
    return parse_consumer(answer, stream, name)


def filters_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the filter subjects in a consumer's configuration; empty for all subjects."""
    several = config.get("filter_subjects")
    if isinstance(several, list) and several:
        return tuple(map(str, several))
    return (str(config["filter_subject"]),) if config.get("filter_subject") else ()


def describe_copied_stream(config: dict[str, Any]) -> str:
    """Return in words the stream for which a consumer copies, as its source or its mirror does; empty for others.

    Servers create such a consumer since nats-server 2.14, with the stream's name in its metadata.
    """
    for kind in ("src", "mirror"):
        stream, domain = (text_or_none_at(config, "metadata", f"_nats.{kind}.{what}") for what in ("stream", "domain"))
        if stream:
            return f"stream {printable(stream)!r}" + (f" in domain {printable(domain)!r}" if domain else "")
    return ""


def may_be_consumer_of(entry: Any, stream: str) -> bool:
    """Tell whether an entry of a list describes a consumer of a stream; an offline consumer does not name its own."""
    return text_or_none_at(entry, "stream_name") in (stream, None)


def name_in(entry: Any) -> str:
    """Return the name of the stream or consumer that an entry of a list describes; ValueError when it has none."""
    # A stream has its name only in its configuration, and so has an offline consumer.
    return (
        text_or_none_at(entry, "name")
        or text_or_none_at(entry, "config", "name")
        or string_at(entry, "config", "durable_name")
    )


def ephemeral_config(start: int | None, filters: Sequence[str], headers_only: bool) -> dict[str, Any]:
    """Return the configuration for :func:`~spark_nats.jetstream.consuming.consumers.create_ephemeral`."""
    config: dict[str, Any] = {
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": INACTIVE_THRESHOLD,
    }
    if start is None:
        config["deliver_policy"] = "last_per_subject"
        filters = filters or (">",)  # with this policy, the server demands a filter
    else:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    if filters:
        config["filter_subjects"] = list(filters)
    if headers_only:
        config["headers_only"] = True
    return config


def durable_config(name: str, filters: Sequence[str], metadata: dict[str, str], **more: str) -> dict[str, Any]:
    """Return the configuration of a durable that nobody pulls from.

    ``filters`` are its subjects, all when empty; ``more`` are further fields.
    """
    chosen = {"filter_subjects": list(filters)} if filters else {}
    given = {field: value for field, value in _DURABLE_BASE.items() if value is not None}
    return {"name": name, "durable_name": name, "metadata": metadata, **given, **more, **chosen}


def reason_not_ours(found: ConsumerInfo, mark: str, filters: Sequence[str], what_for: str = "") -> str:
    """Return why a durable is not ours; empty when its metadata has the key ``mark`` and its filters are these.

    ``what_for`` says in the text what spark-nats would have made the durable for.
    """
    if mark not in found.metadata:
        return f"was not made by spark-nats{what_for}"
    same = sorted(found.filters) == sorted(filters)
    return "" if same else f"is for {', '.join(found.filters) or 'all subjects'}"


def lower_threshold(config: dict[str, Any], stream: dict[str, Any]) -> bool:
    """Lower a consumer's inactive threshold to what its stream allows; return whether the configuration changed."""
    limit = max_inactive_threshold(stream)
    if limit is None or limit >= config["inactive_threshold"]:
        return False
    config["inactive_threshold"] = limit
    return True


def max_inactive_threshold(stream: dict[str, Any]) -> int | None:
    """Return the longest inactive threshold that a stream allows its consumers, in nanoseconds; None for no limit."""
    return positive_or_none_at(stream, "consumer_limits", "inactive_threshold")


def consumer_create_body(stream: str, config: Mapping[str, Any], **more: str) -> dict[str, Any]:
    """Return the body of a request to create a consumer, with an ``action`` if there is one."""
    return {"stream_name": stream, "config": config, **more}
