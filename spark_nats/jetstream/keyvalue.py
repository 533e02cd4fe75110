"""KV buckets (ADR-8): a stream whose subjects are keys, as far as a small state needs them.

A value is asked of the stream's leader, and not by direct get: a replica that lags would give an older one.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple

from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsError,
    NoRespondersError,
    Remedy,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream, interpreting
from spark_nats.jetstream.streams import create_stream, last_message, stream_names, subjects_of
from spark_nats.protocol.api import Api, ApiError, parse_answer
from spark_nats.protocol.documents import integer_at
from spark_nats.protocol.headers import EXPECTED_REVISION, encode_block
from spark_nats.protocol.keyvalue import bucket_config, bucket_of, key_subject, stream_of


class Entry(NamedTuple):
    """What a key holds.

    Attributes:
        value: its value; empty when the key was deleted.
        revision: sequence at which it was stored; 0 when the key never held anything.
        time: when it was stored, in nanoseconds since 1970.
    """

    value: bytes
    revision: int
    time: int


class Bucket:
    """A bucket that exists.

    Args:
        js: where.
        name: its name.
    """

    def __init__(self, js: JetStream, name: str) -> None:
        self._js = js
        self._name = name
        self._stream = stream_of(name)

    def get(self, key: str) -> Entry:
        """Return what a key holds.

        Raises:
            StreamNotFoundError: there is no such bucket.
            NatsError: the request failed.
        """
        message = last_message(self._js, self._stream, key_subject(self._name, key))
        return Entry(message.payload, message.sequence, message.time) if message else Entry(b"", 0, 0)

    def put(self, key: str, value: bytes, revision: int | None = None) -> None:
        """Have a key hold a value; returns when it is stored.

        Args:
            key: which one.
            value: what.
            revision: that of what the key holds now, as far as is known; it is then not stored if that is wrong, as
                when a leader has answered that others had replaced without its knowing.

        Raises:
            JetStreamUnavailableError: nobody listens there: the bucket does not exist, or has no leader, or is another
                account's that does not share it.
            JetStreamError: the bucket refuses it, for want of room for example.
            NatsError: the request failed.
        """
        subject = key_subject(self._name, key, self._js.prefix)
        try:
            header = None if revision is None else encode_block({EXPECTED_REVISION: str(revision)})
            reply = self._js.connection.request(subject, value, header=header)
        except NoRespondersError:
            raise JetStreamUnavailableError(
                f"nobody listens on {subject}: the bucket {self._name!r} does not exist, has no leader, or is not "
                "shared with this account"
            ) from None
        with interpreting(Api.MESSAGE_GET, self._stream):
            answer = parse_answer(reply.payload)
            if not isinstance(answer, ApiError):
                integer_at(answer, "seq")
                return
        raise JetStreamError(
            f"bucket {self._name!r} does not take a value of {len(value)} bytes: {answer.description} "
            f"({answer.code}, {answer.err_code})",
            *answer,
        )

    def keys(self, pattern: str) -> list[str]:
        """Return the keys that match a pattern with the wildcards of subjects.

        Raises:
            NatsError: the request failed.
        """
        subjects = subjects_of(self._js, self._stream, key_subject(self._name, pattern))
        return [subject.removeprefix(key_subject(self._name, "")) for subject in subjects]


def make_bucket(js: JetStream, name: str, **wish: Any) -> Bucket:
    """Return a bucket, which is made if it is missing.

    Args:
        js: where.
        name: its name, of letters, digits, ``_`` and ``-``.
        wish: what it shall have if it is made, see :func:`~spark_nats.protocol.keyvalue.bucket_config`.

    Raises:
        JetStreamError: the server refuses to make it.
        NatsError: the request failed.
    """
    create_stream(js, dict(bucket_config(name, wish)))  # what it has that is there already is nobody's contradiction
    return Bucket(js, name)


@contextlib.contextmanager
def naming_bucket(js: JetStream, name: str) -> Iterator[None]:
    """Say of a stream that does not exist that it is this bucket, and which others have similar names.

    Raises:
        StreamNotFoundError: as the block has raised it.
    """
    try:
        yield
    except StreamNotFoundError as error:
        near = difflib.get_close_matches(name, _buckets(js), n=1)
        hint = f" (there is {near[0]!r})" if near else ""
        raise error.with_context(f"the bucket {name!r} does not exist{hint}").advising(Remedy.CREATE_BUCKET) from None


def _buckets(js: JetStream) -> list[str]:
    """Return the names of buckets, as far as one may know them."""
    try:
        return [bucket for name in stream_names(js, key_subject("*", ">")) if (bucket := bucket_of(name))]
    except NatsError:
        return []
