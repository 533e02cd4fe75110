"""Reads and writes KV buckets (ADR-8), streams whose subjects are keys, as far as a small state needs them.

Values are requested from the stream's leader, and not by direct get: a replica that lags would return an older one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from spark_nats.conditions.jetstream import BUCKET_NOT_FOUND, BUCKET_UNAVAILABLE, VALUE_REFUSED
from spark_nats.errors import JetStreamError
from spark_nats.jetstream.api import JetStream, store_messages
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.listing import ask_subject_counts, reporting_missing_kind
from spark_nats.jetstream.messages import MessageAt, StoredMessage, ask
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.api import ApiError, ErrCode
from spark_nats.protocol.headers import EXPECTED_REVISION, encode_block
from spark_nats.protocol.keyvalue import bucket_config, bucket_of, key_subject, stream_of
from spark_nats.protocol.publish_acks import advise_if_full

DEMANDED_BYTES = 16 * 1024 * 1024
"""The size of a small state, of some 50,000 keys, for accounts that demand a limit; it counts as used at once."""


class Entry(NamedTuple):
    """What a key holds."""

    value: bytes  # its value; empty also when the key was deleted, or when the bucket has nothing of the key
    revision: int  # sequence at which the value or the deletion was stored; 0 when the bucket has nothing of the key
    time: int  # when that was stored, in nanoseconds since 1970; 0 when the bucket has nothing of the key


def value_question(bucket: str, key: str) -> MessageAt:
    """Return the question for the value of a key; :func:`entry_of` converts the answer."""
    return MessageAt(stream_of(bucket), None, key_subject(bucket, key), with_headers=True)


def entry_of(message: StoredMessage | None) -> Entry:
    """Return the entry of a key from its last message; ``message`` is None when there is none."""
    return Entry(message.payload, message.sequence, message.time) if message else Entry(b"", 0, 0)


class Bucket:
    """A bucket that exists."""

    def __init__(self, js: JetStream, name: str) -> None:
        self._js = js
        self._name = name
        self._stream = stream_of(name)

    def get(self, key: str) -> Entry:
        """Return the entry of a key."""
        return entry_of(ask(self._js, [value_question(self._name, key)])[0])

    def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        """Store a value under a key; return its revision when it is stored.

        With a ``revision``, the bucket refuses the value unless the key's last revision is this one (0: none). The last
        one is another if ``revision`` came from an outdated leader, or if others have replaced the value since.

        Raises:
            JetStreamUnavailableError: nobody listens there: the bucket does not exist, or has no leader, or belongs to
                another account that does not share it.
            JetStreamError: the bucket refuses the value, for want of space for example; or only another client answers.
        """
        subject = key_subject(self._name, key, self._js.prefix)
        header = None if revision is None else encode_block({EXPECTED_REVISION: str(revision)})
        nobody = partial(BUCKET_UNAVAILABLE, bucket=self._name)
        stored = store_messages(self._js, self._stream, [(subject, value, header)], nobody)
        if isinstance(stored, ApiError):
            code, err_code, reason = stored
            said = VALUE_REFUSED(bucket=self._name, bytes=len(value), reason=reason, code=code, err_code=err_code)
            raise JetStreamError(said.with_text(said + advise_if_full(reason)), *stored, transient=stored.transient)
        return stored

    def ask_keys_with_deleted(self, pattern: str) -> list[str]:
        """Return the keys that match a pattern with the wildcards of subjects; deleted keys may be among them."""
        subjects = ask_subject_counts(self._js, self._stream, key_subject(self._name, pattern))
        return [subject.removeprefix(key_subject(self._name, "")) for subject in subjects]


def create_bucket_if_missing(js: JetStream, name: str, **requested: Any) -> StreamInfo:
    """Return the state of a bucket's stream.

    If the bucket is missing, it is created as :func:`~spark_nats.protocol.keyvalue.bucket_config` configures it. Where
    the account demands a limit of the size, it has :data:`DEMANDED_BYTES`, unless the request says otherwise.
    """
    config = dict(bucket_config(name, requested))  # a plain dict: an existing bucket may differ
    try:
        return create_stream_if_missing(js, config)
    except JetStreamError as error:
        if error.err_code != ErrCode.MAX_BYTES_REQUIRED:
            raise
    return create_stream_if_missing(js, {**config, "max_bytes": DEMANDED_BYTES})


def reporting_missing_bucket(js: JetStream, name: str) -> AbstractContextManager[None]:
    """Report a missing stream as this missing bucket, and suggest a bucket with a similar name."""
    return reporting_missing_kind(js, name, key_subject("*", ">"), bucket_of, partial(BUCKET_NOT_FOUND, bucket=name))
