"""What an answer says of a stream: its state, and whether its leader gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_nats.conditions.jetstream import LEADER_ALONE, NO_LEADER
from spark_nats.errors import JetStreamError
from spark_nats.jetstream.api import bad_answer_is_protocol_error
from spark_nats.protocol.api import Api, domain_of
from spark_nats.protocol.documents import integer_at, positive_at, string_at, strings_at, text_at, time_at, value_at
from spark_nats.protocol.keyvalue import bucket_of, store_of

LIMITS, INTEREST, WORK_QUEUE = "limits", "interest", "workqueue"  # what a stream's retention can be: when messages go
FILE, MEMORY, ASYNC = "file", "memory", "async"
"""What its ``storage`` can be; and its ``persist_mode``, unless that is ``default``."""
_SURE = 0.5  # of a stream's duplicate_window; the rest is for messages on their way
_LED_SINCE = ("cluster", "leader_since")
_LEASE = 3.0  # seconds for which no other leader is elected: servers wait for the present one for four at least


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """State of a stream.

    Attributes:
        name: its name.
        created: when it was made, as the server writes it. A stream made again has another one.
        first_sequence: sequence of the first message; ``last_sequence + 1`` when the stream is empty.
        last_sequence: sequence of the last message that was ever stored, 0 when there was none.
        messages: how many messages it holds.
        bytes: how many bytes they take.
        deleted: how many sequences between the first and the last message were deleted.
        retention: ``limits``, ``interest`` or ``workqueue``.
        subjects: what it listens on.
        config: its whole configuration.
        time: when the server said this, in nanoseconds since 1970; 0 where it does not say.
        leader: name of the server that leads it; empty where there is no cluster.
        first_time: when the first message was stored, likewise; 0 when the stream is empty.
        last_time: when the last message was stored that there ever was, likewise; 0 when there was none.
        led_since: since when that server leads it, by its clock, in nanoseconds since 1970; 0 where it does not say.
        consumers: how many consumers it has.
        undisputed: whether that server has just heard of all others that keep it, so that no other one leads.
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
    undisputed: bool = True

    @property
    def average_size(self) -> float:
        """Bytes that a message takes on average."""
        return self.bytes / max(1, self.messages)

    @property
    def replicas(self) -> int:
        """How many servers keep it."""
        return positive_at(self.config, "num_replicas") or 1

    @property
    def storage(self) -> str:
        """Where its servers keep it: ``file`` or ``memory``."""
        return MEMORY if self.config.get("storage") == MEMORY else FILE

    @property
    def persist_mode(self) -> str:
        """When what it acknowledges is written to its file: ``default``, before; or ``async``, some time after."""
        return ASYNC if self.config.get("persist_mode") == ASYNC else "default"

    @property
    def max_age(self) -> float | None:
        """Seconds after which it removes messages; None when age is no reason."""
        age = positive_at(self.config, "max_age")
        return None if age is None else age / 1e9

    @property
    def max_consumers(self) -> int | None:
        """How many consumers it may have; None where it sets no limit."""
        return positive_at(self.config, "max_consumers")

    @property
    def allows_direct_gets(self) -> bool:
        """Whether it can be read without a consumer, of any server that keeps it."""
        return self.config.get("allow_direct") is True

    @property
    def duplicate_window(self) -> float:
        """Seconds for which it knows a message id again."""
        return (positive_at(self.config, "duplicate_window") or 0) / 1e9

    @property
    def origin(self) -> str:
        """What it is a mirror of, in words, such as "bucket 'ORDERS' in domain 'hub'"; empty where it is no mirror."""
        mirror = self.config.get("mirror")
        if not isinstance(mirror, dict):
            return ""
        external, where = mirror.get("external"), ""
        if isinstance(external, dict) and (prefix := str(external.get("api", ""))):
            domain = domain_of(prefix)
            where = f" in domain {domain!r}" if domain else f" behind the API {prefix!r}"
        return f"{describe_state(str(mirror.get('name', '')))}{where}"

    def knows_again(self, seconds: float) -> bool:
        """Tell whether it certainly still knows the id of a message that was published so many seconds ago."""
        return 0 <= seconds < self.duplicate_window * _SURE

    def messages_from(self, sequence: int) -> int:
        """Return how many messages there are from a sequence on, deleted ones included."""
        return max(0, self.last_sequence + 1 - max(sequence, self.first_sequence))


def describe_state(stream: str) -> str:
    """Say what a stream is by its name: a stream, a bucket or an object store."""
    if store := store_of(stream):
        return f"object store {store!r}"
    return f"bucket {bucket!r}" if (bucket := bucket_of(stream)) else f"stream {stream!r}"


def state_in(answer: dict[str, Any], name: str) -> StreamInfo:
    """Return the state of a stream that an answer tells, or raise a :class:`ProtocolError`."""
    with bad_answer_is_protocol_error(Api.STREAM_INFO, name):
        if string_at(answer, "config", "name") != name:  # it becomes part of subjects
            raise ValueError("it is about another stream")
        last, messages = integer_at(answer, "state", "last_seq"), integer_at(answer, "state", "messages")
        return StreamInfo(
            name=name,
            created=string_at(answer, "created"),
            # A stream that never held a message says 0; the next one will be 1.
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
            # That of a message which is gone stays; before the first one it is in the year 1.
            last_time=max(0, time_at(answer, "state", "last_ts")) if "last_ts" in answer["state"] else 0,
            led_since=time_at(answer, *_LED_SINCE) if value_at(answer, *_LED_SINCE) else 0,
            consumers=integer_at(answer, "state", "consumer_count") if "consumer_count" in answer["state"] else 0,
            undisputed=all(seconds < _LEASE and current for seconds, current in _others_in(answer)),
        )


def _others_in(answer: dict[str, Any]) -> list[tuple[float, bool]]:
    """Return of each other server for how many seconds the leader has not heard of it, and if it is up to date."""
    others = value_at(answer, "cluster", "replicas")
    return [
        (
            integer_at(each, "active") / 1e9 if "active" in each else 0.0,
            each.get("current") is True and each.get("offline") is not True,
        )
        for each in (others if isinstance(others, list) else [])
        if isinstance(each, dict)
    ]


def leader_in(answer: dict[str, Any]) -> str:
    """Return which server leads what an answer is about; empty where none does, or where there is no cluster."""
    return text_at(answer, "cluster", "leader") or ""


def check_leader(answer: dict[str, Any], name: str) -> None:
    """Raise :class:`JetStreamError` if a stream has no leader that can be believed, by what is said of it.

    While a stream has no leader, any server that has a replica answers with what that holds: nothing at all when it has
    just come back with an empty disk. Such an answer names no leader, and is not believed.

    A leader that was stopped for a while, or is cut off, answers too. It is not believed unless it has heard of most of
    the others lately.
    """
    cluster = answer.get("cluster")
    if isinstance(cluster, dict) and not cluster.get("leader"):
        raise JetStreamError(NO_LEADER(stream=name))
    with bad_answer_is_protocol_error(Api.STREAM_INFO, name):
        lately = [seconds < _LEASE for seconds, _ in _others_in(answer)]
    if 2 * (1 + sum(lately)) <= 1 + len(lately):
        raise JetStreamError(LEADER_ALONE(stream=name, seconds=_LEASE))
