"""KV buckets on the wire (ADR-8): a bucket is a stream, a key is one of its subjects.

What this is for columns, which costs more to import, is in :mod:`spark_nats.kinds.buckets.key_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.stream_configs import RequestedConfig
from spark_nats.protocol.subjects import EMPTY_TOKEN

_SUBJECTS = "$KV"  # first token of the subjects that keys are
_STREAM = "KV_"  # what the name of a bucket's stream begins with
_NOT_KEY = re.compile(r"[^-/_=.a-zA-Z0-9]")
KEY_VALUE_SUBJECTS = f"{_SUBJECTS}."  # what the subjects of keys begin with, before the name of their bucket
STORE_STREAM = "OBJ_"  # what the name of an object store's stream begins with (ADR-20)
RESERVED_STREAMS = (_STREAM, STORE_STREAM, "$MQTT_")  # streams that are KV buckets, object stores, MQTT's state
RESERVED = "_kv"  # what a key does not begin with: such keys are for the use of clients themselves
MAX_HISTORY = 64  # most revisions of a key that a bucket keeps
MIN_MARKER_TTL = 1_000_000_000  # least nanoseconds for which a bucket says that a key has expired


def stream_of(bucket: str) -> str:
    """Return the name of the stream that a bucket is."""
    return f"{_STREAM}{bucket}"


def bucket_of(stream: str) -> str:
    """Return the name of the bucket that a stream is, empty when it is none."""
    return stream.removeprefix(_STREAM) if stream.startswith(_STREAM) else ""


def store_of(stream: str) -> str:
    """Return the name of the object store that a stream is, empty when it is none."""
    return stream.removeprefix(STORE_STREAM) if stream.startswith(STORE_STREAM) else ""


def key_subject(bucket: str, key: str, prefix: str = API_PREFIX) -> str:
    """Return the subject to which a key's value is published.

    Where the API has a prefix of its own, keys have the same one (ADR-19): a domain maps both, and of another account
    both are imported.

    Args:
        bucket: name of the KV bucket.
        key: which one, or a filter for several.
        prefix: first tokens of the subjects of the API.
    """
    subject = f"{_SUBJECTS}.{bucket}.{key}"
    return subject if prefix == API_PREFIX else f"{prefix}.{subject}"


def key_filter(pattern: str) -> str:
    """Return the subjects of a key, or of a pattern of keys, in a bucket's stream."""
    return key_subject("*", pattern)  # a bucket that mirrors or sources another one has that one's name in them


def key_violation(key: str) -> str | None:
    """Say why ``key`` cannot be written; None when it can. A bucket may have others, which servers accept."""
    if not key:
        return "is empty"
    if _NOT_KEY.search(key):
        return "has a character that most clients refuse in keys; there are letters, digits and - / _ = ."
    if "" in key.split("."):
        return EMPTY_TOKEN
    if key.startswith(RESERVED):
        return f"begins with {RESERVED}, which is reserved"
    return None


def bucket_config(bucket: str, wish: Mapping[str, Any]) -> RequestedConfig:
    """Return the configuration of the stream that a bucket is.

    Args:
        bucket: its name.
        wish: what it shall have beyond the defaults, by the names of ADR-8: ``history``, ``max_age`` and
            ``limit_marker_ttl`` in nanoseconds, ``max_bytes``, ``max_value_size``, ``replicas``, ``storage``,
            ``compression``, ``description``.
    """
    config: dict[str, Any] = {
        "name": stream_of(bucket),
        "subjects": [key_subject(bucket, ">")],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }
    if "limit_marker_ttl" in wish:
        config["allow_msg_ttl"] = True
    return RequestedConfig.of_bucket(config, wish)
