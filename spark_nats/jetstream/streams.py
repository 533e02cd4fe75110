"""Parses a stream's state from an answer, and checks that the stream's leader gives it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spark_nats.conditions.jetstream import LEADER_ALONE, NO_LEADER
from spark_nats.errors import JetStreamError
from spark_nats.jetstream.api import bad_answer_is_protocol_error
from spark_nats.protocol.api import API_PREFIX, UNAVAILABLE, Api, domain_of, server_version_in
from spark_nats.protocol.documents import (
    integer_at,
    positive_or_none_at,
    string_at,
    strings_at,
    text_or_none_at,
    time_at,
    value_or_none_at,
)
from spark_nats.protocol.keyvalue import bucket_of, store_of

LIMITS, INTEREST, WORK_QUEUE = "limits", "interest", "workqueue"  # a stream's retention: when it removes messages
FILE, MEMORY, ASYNC = "file", "memory", "async"
"""``FILE`` and ``MEMORY`` are the values of a stream's ``storage``; ``ASYNC`` is one of its ``persist_mode``."""
_SURE = 0.5  # share of a stream's duplicate_window that is relied on; the rest is for messages on their way
_LED_SINCE = ("cluster", "leader_since")
_LEASE = 3.0
"""Seconds for which a replica elects no other leader after it has heard from its own; it waits at least four."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """State of a stream.

    Attributes:
        name: its name.
        created: when the stream was created, as the server writes it. A stream created again has another value.
        first_sequence: sequence of the first message; ``last_sequence + 1`` when the stream is empty.
        last_sequence: sequence of the last message that was ever stored; when there was none, 0 or ``first_seq - 1``.
        messages: how many messages it holds.
        bytes: how many bytes they take.
        deleted: how many sequences between the first and the last message were deleted.
        retention: ``limits``, ``interest`` or ``workqueue``.
        subjects: the subjects on which it listens.
        config: its whole configuration.
        time: when the server reported this, in nanoseconds since 1970; 0 where it does not report the time.
        leader: name of the server that leads it, or holds it without a cluster; empty where the answer names none.
        first_time: when the first message was stored, in nanoseconds since 1970; 0 when the stream is empty.
        last_time: when the message ``last_sequence`` was stored, in nanoseconds since 1970; 0 when there was none.
        led_since: since when that server leads it, by its clock, in nanoseconds since 1970; 0 where it is not reported.
        consumers: how many consumers it has.
        domain: the JetStream domain of its servers, which its acknowledgements name; empty where they have none.
        peers: names of the servers that hold it and are up to date, its leader's first; empty where none is named.
        undisputed: whether all other replicas are up to date and the leader has just heard from them, so that no other
            server leads.
    """

    name: str
    created: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    deleted: int
    retention: str
    subjects: tuple[str, ...]
    config: dict[str, Any]
    time: int = 0
    leader: str = ""
    first_time: int = 0
    last_time: int = 0
    led_since: int = 0
    consumers: int = 0
    domain: str = ""
    peers: tuple[str, ...] = ()
    undisputed: bool = True

    @property
    def average_size(self) -> float:
        """Average bytes of a message."""
        return self.bytes / max(1, self.messages)

    @property
    def replicas(self) -> int:
        """How many servers keep the stream."""
        return positive_or_none_at(self.config, "num_replicas") or 1

    @property
    def storage(self) -> str:
        """Where the servers keep the stream: ``file`` or ``memory``."""
        return MEMORY if self.config.get("storage") == MEMORY else FILE

    @property
    def persist_mode(self) -> str:
        """Whether a message is written to the file before its acknowledgement (``default``) or later (``async``)."""
        return ASYNC if self.config.get("persist_mode") == ASYNC else "default"

    @property
    def max_age(self) -> float | None:
        """Seconds after which the stream removes messages; None when age does not matter."""
        age = positive_or_none_at(self.config, "max_age")
        return None if age is None else age / 1e9

    @property
    def max_message_size(self) -> int | None:
        """Most bytes of headers and payload together of a message; None where the stream sets no limit."""
        return positive_or_none_at(self.config, "max_msg_size")

    @property
    def max_consumers(self) -> int | None:
        """How many consumers the stream may have; None where it sets no limit."""
        return positive_or_none_at(self.config, "max_consumers")

    @property
    def allows_direct_gets(self) -> bool:
        """Whether every replica of the stream answers direct gets, which need no consumer."""
        return self.config.get("allow_direct") is True

    @property
    def removes_single_messages(self) -> bool:
        """Whether messages go one by one, and not only the oldest first: by a later one of the subject, for example."""
        single = positive_or_none_at(self.config, "max_msgs_per_subject") is not None
        return single or self.retention != LIMITS or self.config.get("allow_msg_ttl") is True or bool(self.deleted)

    @property
    def duplicate_window(self) -> float:
        """Seconds for which the stream remembers a message id."""
        return (positive_or_none_at(self.config, "duplicate_window") or 0) / 1e9

    @property
    def removes_only_by_subject(self) -> bool:
        """Whether the stream removes no message by itself but for its limit for each subject."""
        limits = ("max_age", "max_msgs", "max_bytes")
        return self.retention == LIMITS and not any(positive_or_none_at(self.config, each) for each in limits)

    @property
    def keeps_last_values(self) -> bool:
        """Whether what counts is the last message of each subject: an older one must not be stored after it."""
        return self.max_messages_per_subject is not None and not self.config.get("allow_msg_counter")

    @property
    def mirror_origin(self) -> str:
        """The origin of a mirror in words, such as "bucket 'ORDERS' in domain 'hub'"; empty for other streams."""
        mirror = self.config.get("mirror")
        if not isinstance(mirror, dict):
            return ""
        external, where = mirror.get("external"), ""
        if isinstance(external, dict) and (prefix := str(external.get("api", ""))):
            domain = domain_of(prefix)
            where = f" in domain {domain!r}" if domain else f" through the API {prefix!r}"
        return f"{describe_stream(str(mirror.get('name', '')))}{where}"

    @property
    def server_version(self) -> str:
        """Version of the server that leads it, wherever the connection leads."""
        return server_version_in(self.config)

    @property
    def id_lifetime(self) -> float:
        """Seconds for which a message id is relied on, as long as nothing is forgotten (:mod:`.id_memory`)."""
        return self.duplicate_window * _SURE

    @property
    def max_messages_per_subject(self) -> int | None:
        """How many messages of a subject the stream keeps; None where it sets no limit."""
        return positive_or_none_at(self.config, "max_msgs_per_subject")

    def is_same_as_listed(self, listed: StreamInfo) -> bool:
        """Tell whether a list reports this state again; lists lack some metadata and, of one server, its name.

        The number of consumers counts only where it is limited.
        """
        ours, theirs = ({**each.config, "metadata": None} for each in (self, listed))
        leader = listed.leader or self.leader
        same = replace(listed, time=self.time, leader=leader, config=self.config, domain=self.domain)
        same = replace(same, peers=self.peers, consumers=same.consumers if self.max_consumers else self.consumers)
        return ours == theirs and self == same

    def stores_on_published_subjects(self, api_prefix: str) -> bool:
        """Tell whether messages are stored on the subjects on which they are published by users of an API prefix."""
        return api_prefix == API_PREFIX and not self.config.get("subject_transform")

    def has_all_after(self, sequence: int) -> bool:
        """Tell whether the stream certainly still has all that it has stored after a sequence."""
        return self.first_sequence <= sequence + 1 <= self.last_sequence and not self.deleted

    def count_sequences_from(self, sequence: int) -> int:
        """Return how many sequences the stream has from this one on, those of deleted messages included."""
        return max(0, self.last_sequence + 1 - max(sequence, self.first_sequence))


def describe_stream(stream: str) -> str:
    """Describe a stream by its name: as a stream, a bucket or an object store."""
    if store := store_of(stream):
        return f"object store {store!r}"
    return f"bucket {bucket!r}" if (bucket := bucket_of(stream)) else f"stream {stream!r}"


def parse_stream(answer: dict[str, Any], name: str) -> StreamInfo:
    """Return the state of a stream from an answer, or raise a :class:`ProtocolError`."""
    with bad_answer_is_protocol_error(Api.STREAM_INFO, name):
        if string_at(answer, "config", "name") != name:
            raise ValueError("it is about another stream")
        last, messages = integer_at(answer, "state", "last_seq"), integer_at(answer, "state", "messages")
        return StreamInfo(
            name=name,
            created=string_at(answer, "created"),
            # An empty stream may report 0, although its next sequence is ``last_seq + 1``.
            first_sequence=integer_at(answer, "state", "first_seq") if messages else last + 1,
            last_sequence=last,
            messages=messages,
            bytes=integer_at(answer, "state", "bytes"),
            deleted=integer_at(answer, "state", "num_deleted") if "num_deleted" in answer["state"] else 0,
            retention=string_at(answer, "config", "retention"),
            subjects=strings_at(answer, "config", "subjects"),
            config=answer["config"],
            time=time_at(answer, "ts") if "ts" in answer else 0,
            leader=leader_in(answer),
            first_time=time_at(answer, "state", "first_ts") if messages and "first_ts" in answer["state"] else 0,
            # The time of a removed message stays; before the first message it is in the year 1.
            last_time=max(0, time_at(answer, "state", "last_ts")) if "last_ts" in answer["state"] else 0,
            led_since=time_at(answer, *_LED_SINCE) if value_or_none_at(answer, *_LED_SINCE) else 0,
            consumers=integer_at(answer, "state", "consumer_count") if "consumer_count" in answer["state"] else 0,
            domain=text_or_none_at(answer, "domain") or "",
            peers=peers_in(answer),
            undisputed=all(seconds < _LEASE and current for seconds, current in _other_replicas_in(answer)),
        )


def _other_replicas_in(answer: dict[str, Any]) -> list[tuple[float, bool]]:
    """Return, for each replica except the leader, seconds since the leader heard from it, and whether it is current."""
    others = value_or_none_at(answer, "cluster", "replicas")
    return [
        (
            integer_at(each, "active") / 1e9 if "active" in each else 0.0,
            each.get("current") is True and each.get("offline") is not True,
        )
        for each in (others if isinstance(others, list) else [])
        if isinstance(each, dict)
    ]


def peers_in(answer: dict[str, Any]) -> tuple[str, ...]:
    """Return the servers of a stream that are up to date and that its leader has just heard from, the leader first."""
    others = value_or_none_at(answer, "cluster", "replicas")
    names = [
        text_or_none_at(each, "name") for each in (others if isinstance(others, list) else []) if isinstance(each, dict)
    ]
    known = zip(names, _other_replicas_in(answer), strict=True)
    followers = [name for name, (seconds, current) in known if current and seconds < _LEASE]
    return tuple(name for name in (leader_in(answer), *followers) if name)


def leader_in(answer: dict[str, Any]) -> str:
    """Return the leader that an answer names; empty where it names none."""
    return text_or_none_at(answer, "cluster", "leader") or ""


def check_leader(answer: dict[str, Any], name: str) -> None:
    """Raise :class:`JetStreamError` if a cluster's answer about a stream names no leader that can be believed.

    While a stream has no leader, any server with a replica answers with what that holds: nothing at all when the server
    has just come back with an empty disk. Such an answer names no leader, and is not believed.

    A leader that was paused, or is cut off, answers too. It is not believed unless it and the replicas that it has
    heard from lately are a majority.
    """
    cluster = answer.get("cluster")
    if isinstance(cluster, dict) and not cluster.get("leader"):
        raise JetStreamError(NO_LEADER(stream=name), UNAVAILABLE)
    with bad_answer_is_protocol_error(Api.STREAM_INFO, name):
        lately = [seconds < _LEASE for seconds, _ in _other_replicas_in(answer)]
    if 2 * (1 + sum(lately)) <= 1 + len(lately):
        raise JetStreamError(LEADER_ALONE(stream=name, seconds=_LEASE), UNAVAILABLE)
