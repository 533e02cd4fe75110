"""The entries of the API's lists as rows of tables.

A row has its values by the names of columns: times as datetimes, durations in seconds, None for a missing value, no
limit, or a number that a column cannot hold. A stream or consumer that is leaderless or offline at the moment has a row
too, with its ``problem`` and without what only a leader knows.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from spark_nats.jetstream.listing import Listed
from spark_nats.jetstream.streams import leader_in, parse_stream
from spark_nats.protocol import documents
from spark_nats.protocol.consumers import filters_of, may_be_consumer_of
from spark_nats.protocol.keyvalue import bucket_of
from spark_nats.protocol.subjects import name_violation

Row = dict[str, Any]

_COUNTS = "messages", "bytes", "first_sequence", "last_sequence", "deleted"  # of a stream, as its state has them
_MAX_LONG = 2**63 - 1  # what a column can hold; servers count in 64 bits without a sign


def misnamed_row(stream: str) -> Row:
    """Return the row of a stream that cannot be queried because of its name."""
    return {"stream": stream, "problem": f"it cannot be asked for: its name {name_violation(stream)}"}


def stream_row(listed: Listed) -> Row:
    """Return the row of a stream."""
    name, entry, problem = listed
    if entry is None:
        return {"name": name, "problem": problem}
    info = parse_stream(entry, name)
    config = info.config
    row = {
        "name": name,
        **_shared_values_of(entry),
        "subjects": list(info.subjects),
        "retention": info.retention,
        "storage": info.storage,
        "replicas": info.replicas,
        **{field: documents.text_or_none_at(config, field) for field in ("compression", "discard")},
        **{field: _limit(config, field) for field in ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size")},
        "max_age": info.max_age,
        "max_consumers": info.max_consumers,
        "duplicate_window": info.duplicate_window or None,
        "allow_direct": info.allows_direct_gets,
        "sealed": _flag(config, "sealed"),
        "mirror": documents.text_or_none_at(config, "mirror", "name"),
        "sources": [documents.string_at(each, "name") for each in documents.list_at(config, "sources")],
        "problem": problem,
    }
    if problem is None:
        row |= {
            **{name: long_or_none(getattr(info, name)) for name in _COUNTS},
            **{name: _time_or_none(getattr(info, name)) for name in ("first_time", "last_time")},
            "subject_count": _number_at(entry, "state", "num_subjects") or 0,  # the server leaves 0 out
            "consumer_count": long_or_none(info.consumers),
        }
    return row


def bucket_row(listed: Listed) -> Row:
    """Return the row of a KV bucket, which has the values of its stream too."""
    row = stream_row(listed)
    row["bucket"] = bucket_of(listed.name)
    if listed.entry is not None:
        row |= {
            "history": row["max_msgs_per_subject"],
            "max_value_size": row["max_msg_size"],
            "limit_marker_ttl": _seconds(listed.entry, "config", "subject_delete_marker_ttl"),
            "compression": (row["compression"] or "none") != "none",
            "mirror": bucket_of(row["mirror"] or "") or None,
            "keys": row.get("subject_count"),
            "entries": row.get("messages"),
            "revision": row.get("last_sequence"),
        }
    return row


def consumer_row(stream: str, listed: Listed) -> Row:
    """Return the row of a stream's consumer."""
    name, entry, problem = listed
    if entry is None:
        return {"stream": stream, "name": name, "problem": problem}
    config = entry.get("config")
    if not isinstance(config, dict):
        raise ValueError("a 'config' is no object")
    if not may_be_consumer_of(entry, stream):
        raise ValueError("it lists a consumer of another stream")
    row = {
        "stream": stream,
        "name": name,
        **_shared_values_of(entry),
        "durable": bool(documents.text_or_none_at(config, "durable_name")),
        "filter_subjects": list(filters_of(config)),
        **{
            field: documents.text_or_none_at(config, field)
            for field in ("deliver_policy", "deliver_subject", "ack_policy")
        },
        **{field: _limit(config, field) for field in ("max_deliver", "max_ack_pending", "max_waiting")},
        **{field: _seconds(config, field) for field in ("ack_wait", "inactive_threshold")},
        "replicas": _limit(config, "num_replicas"),
        "problem": problem,
    }
    if problem is None:
        paused = _flag(entry, "paused")
        row |= {
            **{f"{place}_sequence": _number_at(entry, place, "stream_seq") for place in ("delivered", "ack_floor")},
            **{f"{place}_time": _time(entry, place, "last_active") for place in ("delivered", "ack_floor")},
            **{name: _number_at(entry, f"num_{name}") for name in ("pending", "ack_pending", "redelivered", "waiting")},
            "paused": paused,
            "paused_until": _time(config, "pause_until") if paused else None,
        }
    return row


def _shared_values_of(entry: dict[str, Any]) -> Row:
    """Return the values that streams and consumers share."""
    metadata = documents.object_at(entry, "config", "metadata")
    return {
        "created": _time(entry, "created"),
        "description": documents.text_or_none_at(entry, "config", "description"),
        "metadata": {name: documents.string_at(metadata, name) for name in metadata},
        "cluster": documents.text_or_none_at(entry, "cluster", "name"),
        "leader": leader_in(entry) or None,
    }


# Values, which servers may leave out


def _number_at(document: Any, *path: str) -> int | None:
    return (
        None
        if documents.value_or_none_at(document, *path) is None
        else long_or_none(documents.integer_at(document, *path))
    )


def long_or_none(number: int) -> int | None:
    """Return a number; None when a column cannot hold it."""
    return number if number <= _MAX_LONG else None


def _limit(document: Any, *path: str) -> int | None:
    """Return a number; None when it is 0, -1 or left out: no limit or, of replicas, as many as the stream has."""
    return None if documents.value_or_none_at(document, *path) in (None, 0, -1) else _number_at(document, *path)


def _seconds(document: Any, *path: str) -> float | None:
    nanoseconds = _limit(document, *path)
    return None if nanoseconds is None else nanoseconds / 1e9


def _flag(document: Any, *path: str) -> bool:
    return documents.value_or_none_at(document, *path) is not None and documents.boolean_at(document, *path)


def _time(document: Any, *path: str) -> datetime | None:
    return (
        None
        if documents.value_or_none_at(document, *path) is None
        else _time_or_none(documents.time_at(document, *path))
    )


def _time_or_none(nanoseconds: int) -> datetime | None:
    """Return a time; None for 0 and for the year 1, which mean never."""
    return documents.to_datetime(nanoseconds) if nanoseconds > 0 else None
