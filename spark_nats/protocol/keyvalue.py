"""KV buckets on the wire (ADR-8): a bucket is a stream, a key is one of its subjects.

The same rules for columns, which cost more to import, are in :mod:`spark_nats.kinds.buckets.key_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.stream_configs import RequestedConfig
from spark_nats.protocol.subjects import EMPTY_TOKEN

_STREAM = "KV_"  # prefix of the name of a bucket's stream
_NOT_KEY = re.compile(r"[^-/_=.a-zA-Z0-9]")
KEY_VALUE_SUBJECTS = "$KV."  # prefix of the subjects of keys, before the bucket's name
STORE_STREAM = "OBJ_"  # prefix of the name of an object store's stream (ADR-20)
RESERVED_STREAMS = (_STREAM, STORE_STREAM, "$MQTT_")  # prefixes of names of buckets', object stores' and MQTT's streams
RESERVED = "_kv"  # prefix of keys that are reserved for clients themselves
MAX_HISTORY = 64  # most revisions of a key that a bucket keeps
MIN_MARKER_TTL = 1_000_000_000  # minimum ``limit_marker_ttl``, the lifetime of markers of expired keys: nanoseconds


def stream_of(bucket: str) -> str:
    """Return the name of a bucket's stream."""
    return f"{_STREAM}{bucket}"


def bucket_of(stream: str) -> str:
    """Return the name of the bucket that a stream is; empty when it is no bucket."""
    return stream.removeprefix(_STREAM) if stream.startswith(_STREAM) else ""


def store_of(stream: str) -> str:
    """Return the name of the object store that a stream is; empty when it is no object store."""
    return stream.removeprefix(STORE_STREAM) if stream.startswith(STORE_STREAM) else ""


def key_subject(bucket: str, key: str, prefix: str = API_PREFIX) -> str:
    """Return the subject to which a key's value is published.

    If the API has another prefix, keys have the same one (ADR-19): a domain maps the subjects of both, and an account
    imports both from another account.

    Args:
        bucket: name of the KV bucket.
        key: the key, or a filter for several.
        prefix: first tokens of the API's subjects.
    """
    subject = f"{KEY_VALUE_SUBJECTS}{bucket}.{key}"
    return subject if prefix == API_PREFIX else f"{prefix}.{subject}"


def key_filter(pattern: str) -> str:
    """Return the filter for a key, or for a pattern of keys, in a bucket's stream."""
    return key_subject("*", pattern)  # subjects have the other bucket's name if this one mirrors or sources it


def key_violation(key: str) -> str | None:
    """Return why ``key`` cannot be written; None when it can. A bucket may hold other keys, as servers accept them."""
    if not key:
        return "is empty"
    if _NOT_KEY.search(key):
        return "has a character that most clients refuse in keys; there are letters, digits and - / _ = ."
    if "" in key.split("."):
        return EMPTY_TOKEN
    if key.startswith(RESERVED):
        return f"begins with {RESERVED}, which is reserved"
    return None


def bucket_config(bucket: str, requested: Mapping[str, Any]) -> RequestedConfig:
    """Return the configuration of a bucket's stream.

    Args:
        bucket: its name.
        requested: settings other than the defaults, by the names of ADR-8: ``history``, ``max_age`` and
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
    if "limit_marker_ttl" in requested:
        config["allow_msg_ttl"] = True
    return RequestedConfig.of_bucket(config, requested)
