"""Configurations of streams: what users write, what servers accept, and where two configurations differ.

Servers take times in nanoseconds. A server ignores what it does not know, or refuses it with an error of its own, so
what users write is checked here. The fields are those of nats-server 2.15; a field that is unknown here may belong to a
newer server, which judges it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from spark_nats.protocol.documents import parse_time

MAX_MESSAGE_SIZE = (32 << 20) - 4096
"""Maximum bytes of headers and payload that a stream stores, whatever its ``max_msg_size``: the server's limit of 32
MiB, less 4 KiB for the subject and the server's own data about the message."""
_TIME: Final = "time"
_TRANSFORM = {"src": str, "dest": str}
_SOURCE = {
    "name": str,
    "opt_start_seq": int,
    "opt_start_time": str,
    "filter_subject": str,
    "subject_transforms": [_TRANSFORM],
    "external": {"api": str, "deliver": str},
    "consumer": {"name": str, "deliver_subject": str},
}
_LIMITS = frozenset({"max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"})
# What each field is: a type, a time, one of some texts, a list of something, or an object with fields.
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("name", "description", "compression", "persist_mode"), str),
    **dict.fromkeys((*_LIMITS, "num_replicas", "first_seq"), int),
    **dict.fromkeys(("max_age", "duplicate_window", "subject_delete_marker_ttl"), _TIME),
    **dict.fromkeys(("no_ack", "allow_direct", "mirror_direct", "sealed", "deny_delete", "deny_purge"), bool),
    **dict.fromkeys(("allow_rollup_hdrs", "allow_msg_ttl", "allow_msg_counter", "allow_msg_schedules"), bool),
    **dict.fromkeys(("allow_atomic", "allow_batched", "discard_new_per_subject"), bool),
    "subjects": [str],
    "retention": ("limits", "interest", "workqueue"),
    "discard": ("old", "new"),
    "storage": ("file", "memory"),
    "placement": {"cluster": str, "tags": [str], "preferred": str},
    "mirror": _SOURCE,
    "sources": [_SOURCE],
    "subject_transform": _TRANSFORM,
    "republish": {"src": str, "dest": str, "headers_only": bool},
    "consumer_limits": {"inactive_threshold": _TIME, "max_ack_pending": int},
    "metadata": dict,
}
# The values that a server assumes for fields without a value, or with zero or a negative number.
_DEFAULTS = {
    **dict.fromkeys(_LIMITS, -1),
    **dict.fromkeys(("num_replicas", "first_seq"), 1),
    "compression": "none",
    "persist_mode": "default",
}
_OTHER_NAMES = {"replicas": "num_replicas"}  # what the ``nats`` command and buckets call a field
_OF_BUCKETS = {  # what ADR-8 calls fields, and what streams call them; the other fields have the same names
    "history": "max_msgs_per_subject",
    "max_value_size": "max_msg_size",
    "limit_marker_ttl": "subject_delete_marker_ttl",
    "replicas": "num_replicas",
}
_KINDS = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object"}
_UNITS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_MAX_DURATION = 2**63 - 1


class RequestedConfig(dict[str, Any]):
    """A stream's configuration as it is sent to a server, with the fields that the user named.

    Attributes:
        named: what the user called each field that the user named. The other fields are our own defaults.
    """

    named: Mapping[str, str] = {}

    @classmethod
    def of(cls, config: Mapping[str, Any], named: Mapping[str, str]) -> RequestedConfig:
        """Return a configuration with the fields that the user named."""
        requested = cls(config)
        requested.named = named
        return requested

    @classmethod
    def of_bucket(cls, config: Mapping[str, Any], requested: Mapping[str, Any]) -> RequestedConfig:
        """Return ``config`` with the fields of a bucket or an object store that the user named, by ADR-8's names."""
        named = {_OF_BUCKETS.get(name, name): name for name in requested}
        values = {**requested, "compression": "s2" if requested.get("compression") else "none"}
        return cls.of({**config, **{field: values[name] for field, name in named.items()}}, named)


def convert_config(document: Mapping[str, Any]) -> RequestedConfig:
    """Convert a configuration that a user wrote to one that servers accept.

    Args:
        document: fields by the server's names; times are nanoseconds, or texts such as ``48h``.

    Raises:
        ValueError: a field is misspelt or named twice, or has a value that no server accepts. The error's text is to
            follow the option's name.
    """
    config: dict[str, Any] = {}
    named: dict[str, str] = {}
    for shown, value in document.items():
        field = _OTHER_NAMES.get(shown, shown)
        if field in config:
            raise ValueError(f"has both {named[field]!r} and {shown!r}, which are the same; name it once")
        config[field] = _convert(shown, _kind_of_field(_FIELDS, field, shown), value)
        named[field] = shown
    return RequestedConfig.of(config, named)


def _kind_of_field(fields: Mapping[str, Any], name: str, shown: str) -> Any:
    """Return the kind of a field; None for one that a newer server may know, ValueError for one that is misspelt."""
    if name in fields:
        return fields[name]
    if near := _nearest(name, fields, 0.85):
        raise ValueError(f"has the field {shown!r}, which streams do not have; did you mean {near!r}?")
    return None


def find_meant_field(name: str, config: Mapping[str, Any]) -> str | None:
    """Return the field that a user may have meant by one that a server does not know; None when nothing is similar.

    Only fields of the same object are compared. A field that is known here is not misspelt: the server is older.
    """
    places = (fields for fields, values in _objects_in(config, _FIELDS) if name in values and name not in fields)
    fields = next(places, None)
    return _nearest(name, fields, 0.6) if fields else None


def _objects_in(value: Any, kind: Any) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Yield, for each object in a value of this kind, the fields that such an object can have, and the object."""
    if isinstance(kind, list) and isinstance(value, list):
        for each in value:
            yield from _objects_in(each, kind[0])
    elif isinstance(kind, dict) and isinstance(value, Mapping):
        yield kind, value
        for name in kind.keys() & value.keys():
            yield from _objects_in(value[name], kind[name])


def _nearest(name: str, fields: Mapping[str, Any], cutoff: float) -> str | None:
    """Return the field most similar to an unknown name; None when none has a similarity of ``cutoff`` (0 to 1)."""
    from difflib import get_close_matches  # imported only here, where time does not matter

    names = [*fields, *(_OTHER_NAMES if fields is _FIELDS else ())]
    return next(iter(get_close_matches(name.lower(), names, n=1, cutoff=cutoff)), None)


def _convert(shown: str, kind: Any, value: Any) -> Any:
    """Return a value as servers accept it; ValueError when no server accepts the value."""
    if kind is None or value is None:
        return value
    if kind == _TIME and isinstance(value, str):
        return read_duration_field(shown, value)
    if kind == _TIME and not _is_of_kind(int, value):
        raise _error(shown, value, 'a time such as "48h", or a whole number of nanoseconds')
    if isinstance(kind, type):
        check_type(shown, value, kind)
    if isinstance(kind, tuple) and value not in kind:
        raise _error(shown, value, f"{', '.join(kind[:-1])} or {kind[-1]}")
    if isinstance(kind, list):
        if not isinstance(value, list):
            what = "texts" if kind == [str] else "objects"
            raise _error(shown, value, f"a list of {what}" + (f', such as ["{value}"]' * isinstance(value, str)))
        return [_convert(shown, kind[0], each) for each in value]
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            raise _error(shown, value, "an object")
        within = {name: f"{shown}.{name}" for name in value}
        return {name: _convert(within[name], _kind_of_field(kind, name, within[name]), value[name]) for name in value}
    return value


def check_type(shown: str, value: Any, kind: type) -> None:
    """Raise ValueError unless a field has a value of this kind."""
    if not _is_of_kind(kind, value):
        raise _error(shown, value, _KINDS[kind])


def read_duration_field(shown: str, text: str) -> int:
    """Return the nanoseconds of a field's text; ValueError when the text is no time."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"has a time as {shown!r} that {error}") from None


def _is_of_kind(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _error(shown: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"has {json.dumps(value)} as {shown!r}, which must be {wanted}")


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a time with its unit, such as ``90s`` or ``1h30m``, or of ``0``; else ValueError."""
    parts = re.findall(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", text)
    total = sum(
        _UNITS[unit] * int(number) if number.isdigit() else round(_UNITS[unit] * float(number))
        for number, unit in parts
    )
    if text != "0" and (not parts or "".join(map("".join, parts)) != text.replace(" ", "") or total > _MAX_DURATION):
        raise ValueError(f"is {text!r}; it must be a time with its unit, such as 90s, 48h or 30d")
    return total


def describe_differences(requested: RequestedConfig, actual: Mapping[str, Any]) -> list[str]:
    """Describe where a stream's configuration, as a server reports it, differs from what the user named."""
    return [
        f"{shown} (has {_value_text(field, actual.get(field))}, asked {_value_text(field, requested[field])})"
        for field, shown in requested.named.items()
        if field in requested and not _is_same_value(field, requested[field], actual.get(field))
    ]


def _is_same_value(field: str, asked: Any, has: Any) -> bool:
    """Return whether a value is as requested. Servers leave values out, and fill in others.

    ``field`` is the name of a field of a stream, a mirror or a source; it is empty for values within other objects.
    """
    if field == "opt_start_time":  # a server that reports none may have dropped it
        return not isinstance(asked, str) or not isinstance(has, str) or parse_time(asked) == parse_time(has)
    if asked == has or (field in ("duplicate_window", "subjects") and not asked):
        return True
    if field in _DEFAULTS:
        default = _DEFAULTS[field]
        asked, has = (default if not each or (_is_of_kind(int, each) and each < 0) else each for each in (asked, has))
    if isinstance(asked, dict):
        fields = has if isinstance(has, dict) else {}
        is_source = field in ("mirror", "sources")
        return all(_is_same_value(name if is_source else "", value, fields.get(name)) for name, value in asked.items())
    if isinstance(asked, list):  # in any order
        there = has if isinstance(has, list) else []
        return (
            len(asked) == len(there)
            and all(any(_is_same_value(field, one, other) for other in there) for one in asked)
            and all(any(_is_same_value(field, one, other) for one in asked) for other in there)
        )
    return asked == has or not (asked or has)


def _value_text(field: str, value: Any) -> str:
    if value is None or value == [] or value == {}:
        return "none"
    if field in _LIMITS and isinstance(value, int) and value <= 0:
        return "no limit"
    if _FIELDS.get(field) == _TIME and _is_of_kind(int, value):
        unit = next((unit for unit in ("h", "m", "s", "ms") if value % _UNITS[unit] == 0), None)
        return f"{value // _UNITS[unit]}{unit}" if unit and value else "none" if not value else f"{value}ns"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
