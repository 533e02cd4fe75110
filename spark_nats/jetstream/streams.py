"""Streams: their state, creating them, and finding the sequence to begin or end with."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spark_nats.errors import JetStreamError, ProtocolError, StreamNotFoundError
from spark_nats.jetstream.api import NO_MESSAGE_FOUND, STREAM_NAME_IN_USE, JetStream, interpreting
from spark_nats.protocol.documents import number, text, texts

_SECOND = 1_000_000_000  # JetStream's durations are nanoseconds
INACTIVE_THRESHOLD = 60 * _SECOND
"""After so many nanoseconds without a request the server deletes one of our consumers by itself."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """State of a stream.

    Attributes:
        name: its name.
        created: when it was made, as the server writes it. A stream made again has another one.
        first_sequence: sequence of the first message; ``last_sequence + 1`` when the stream is empty.
        last_sequence: sequence of the last message that was ever stored, 0 when there was none.
        messages: how many messages it holds.
        retention: ``limits``, ``interest`` or ``workqueue``.
        subjects: what it listens on.
        config: its whole configuration.
    """

    name: str
    created: str
    first_sequence: int
    last_sequence: int
    messages: int
    retention: str
    subjects: tuple[str, ...]
    config: dict[str, Any]


def _stream_info(answer: dict[str, Any], name: str) -> StreamInfo:
    with interpreting(f"STREAM.INFO.{name}"):
        if text(answer, "config", "name") != name:  # it becomes part of subjects
            raise ValueError("it is about another stream")
        last, messages = number(answer, "state", "last_seq"), number(answer, "state", "messages")
        return StreamInfo(
            name=name,
            created=text(answer, "created"),
            # A stream that never held a message says 0; the next one will be 1.
            first_sequence=number(answer, "state", "first_seq") if messages else last + 1,
            last_sequence=last,
            messages=messages,
            retention=text(answer, "config", "retention"),
            subjects=texts(answer, "config", "subjects"),
            config=answer["config"],
        )


def stream_info(js: JetStream, name: str) -> StreamInfo:
    """Return a stream's state.

    Raises:
        StreamNotFoundError: there is no such stream.
        NatsError: the request failed.
    """
    return _stream_info(js.request(f"STREAM.INFO.{name}"), name)


def create_stream(js: JetStream, config: dict[str, Any]) -> StreamInfo:
    """Make a stream, or return the one of that name that is there already.

    Args:
        js: where.
        config: the server's stream configuration; ``name`` is required.

    Raises:
        JetStreamError: the server refuses the configuration.
    """
    name = config["name"]
    try:
        return stream_info(js, name)
    except StreamNotFoundError:
        pass
    try:
        return _stream_info(js.request(f"STREAM.CREATE.{name}", config), name)
    except JetStreamError as error:
        if error.err_code == STREAM_NAME_IN_USE:  # another task was faster
            return stream_info(js, name)
        raise


def streams_of_subject(js: JetStream, subject: str) -> list[str]:
    """Return the names of the streams that listen on a subject or filter."""
    with interpreting("STREAM.NAMES"):
        return list(texts(js.request("STREAM.NAMES", {"subject": subject}), "streams"))


def last_sequence(js: JetStream, stream: str, filters: Sequence[str]) -> int:
    """Return the sequence of the last message that matches one of ``filters``, 0 when there is none."""
    return max(_find(js, stream, {"last_by_subj": subject}) or 0 for subject in filters)


def next_sequence(js: JetStream, stream: str, start: int, filters: Sequence[str]) -> int | None:
    """Return the first sequence from ``start`` on that matches one of ``filters``, None when there is none."""
    found = (_find(js, stream, {"seq": start, "next_by_subj": subject}) for subject in filters)
    first = min((sequence for sequence in found if sequence is not None), default=None)
    if first is not None and first < start:
        raise ProtocolError(
            f"the server was asked for sequence {start} of stream {stream!r} or later, and found {first}"
        )
    return first


def _find(js: JetStream, stream: str, what: dict[str, Any]) -> int | None:
    operation = f"STREAM.MSG.GET.{stream}"
    try:
        with interpreting(operation):
            return number(js.request(operation, {**what, "no_hdr": True}), "message", "seq")
    except JetStreamError as error:
        if error.err_code == NO_MESSAGE_FOUND:
            return None
        raise


def first_sequence_at(js: JetStream, stream: str, time: datetime) -> int:
    """Return the first sequence stored at or after ``time``; the next one to come when there is none.

    A consumer that starts by time is asked where it would start, since every server version can do that.
    """
    start_time = time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    answer = create_consumer(js, stream, {"deliver_policy": "by_start_time", "opt_start_time": start_time})
    delete_consumer(js, stream, answer["name"])
    with interpreting(f"CONSUMER.CREATE.{stream}"):
        return number(answer, "delivered", "stream_seq") + 1


def create_consumer(js: JetStream, stream: str, config: dict[str, Any]) -> dict[str, Any]:
    """Make an ephemeral pull consumer without acknowledgements and return its description, which has its name.

    Raises:
        ProtocolError: the server describes another consumer.
        NatsError: the server refuses it.
    """
    name = f"spark-nats-{secrets.token_hex(6)}"
    full = {
        "name": name,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": INACTIVE_THRESHOLD,
        **config,
    }
    operation = f"CONSUMER.CREATE.{stream}.{name}"
    description = js.request(operation, {"stream_name": stream, "config": full})
    if description.get("name") != name:  # it becomes part of subjects
        raise ProtocolError(f"the server's answer to {operation} is about another consumer or none")
    return description


def delete_consumer(js: JetStream, stream: str, name: str) -> None:
    """Delete a consumer."""
    js.request(f"CONSUMER.DELETE.{stream}.{name}")
