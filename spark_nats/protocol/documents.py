"""JSON and text from servers, validated before anything relies on them."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

REPLACED = "\ufffd"  # replaces bytes that are not UTF-8 in text
MAX_INTEGER = 2**64 - 1  # largest number that is accepted from a server, which counts in 64 bits
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_MAX_TEXT_CHARS = 500  # characters
_MAX_QUOTED = 80  # bytes
_SEPARATORS = (b",", b"[", b"{")
_MAX_PARTS = 200_000


def begins_like_object(data: bytes) -> bool:
    """Return whether received bytes begin like a JSON object."""
    return data.lstrip().startswith(b"{")


def parse_limited_object(data: bytes) -> dict[str, Any]:
    """Return a received JSON object; ValueError when it is invalid or too large."""
    if sum(map(data.count, _SEPARATORS)) > _MAX_PARTS:  # each part takes a hundred times its bytes in memory
        raise ValueError(f"it has more than {_MAX_PARTS} parts")
    return parse_object(data)


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Return a JSON object of any size; ValueError when it is invalid or cannot be encoded in UTF-8 again.

    Servers write U+FFFD for bytes that are not UTF-8. Names that become equal this way have the list of their values.
    """
    text = data.decode() if isinstance(data, bytes) else data
    hook = _merge_equal_names if REPLACED in text or "\\ufffd" in text else None
    try:
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=hook)
        if isinstance(data, str) or "\\ud" in text or "\\uD" in text:
            json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair could not be printed
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError(f"it is a {type(document).__name__} instead of an object")
    return document


def _merge_equal_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        values = defaultdict[str, list[Any]](list)
        for name, value in pairs:
            if REPLACED in name:
                values[name].append(value)
        found |= {name: several for name, several in values.items() if len(several) > 1}
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def integer_at(document: Any, *path: str, least: int = 0) -> int:
    """Return an integer from ``least`` to :data:`MAX_INTEGER`.

    Args:
        document: an object.
        path: names that lead to the value, each in the object to which the one before leads.
        least: the smallest integer that is accepted.

    Raises:
        ValueError: the value is something else. The other ``_at`` functions have the first two arguments and the same
            error, but :func:`integers_at` takes one name, and :func:`positive_or_none_at` and :func:`value_or_none_at`
            raise none.
    """
    value = value_or_none_at(document, *path)
    if type(value) is not int or not least <= value <= MAX_INTEGER:
        raise _wrong_value_error(path, f"not an integer from {least} to 2^64 - 1")
    return value


sequence_at = partial(integer_at, least=1)
"""Return the sequence of a message, which is 1 or larger."""


def integers_at(document: dict[str, Any], name: str) -> list[int]:
    """Return the integer of an existing name, or those of all names that became equal, see :func:`parse_object`."""
    values = document[name] if isinstance(document[name], list) else [document[name]]
    return [integer_at({name: value}, name) for value in values]


def positive_or_none_at(document: Any, *path: str) -> int | None:
    """Return an integer above zero; None for anything else, which stands for no limit."""
    value = value_or_none_at(document, *path)
    return value if type(value) is int and value > 0 else None


def boolean_at(document: Any, *path: str) -> bool:
    """Return true or false."""
    return _checked(bool, value_or_none_at(document, *path), path, "neither true nor false")


def string_at(document: Any, *path: str) -> str:
    """Return a string."""
    return _checked(str, value_or_none_at(document, *path), path, "not a text")


def strings_at(document: Any, *path: str) -> tuple[str, ...]:
    """Return a list of strings; empty when it is null or missing."""
    value = value_or_none_at(document, *path)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _wrong_value_error(path, "not a list of strings")
    return tuple(value)


def list_at(document: Any, *path: str) -> list[Any]:
    """Return a list; empty when the value is null, missing, or false in Python, such as 0."""
    return _checked(list, value_or_none_at(document, *path) or [], path, "no list")


def object_at(document: Any, *path: str) -> dict[str, Any]:
    """Return an object; empty when the value is null, missing, or false in Python, such as 0."""
    return _checked(dict, value_or_none_at(document, *path) or {}, path, "no object")


def text_or_none_at(document: Any, *path: str) -> str | None:
    """Return a string; None where it is empty, null or missing."""
    return None if value_or_none_at(document, *path) is None else string_at(document, *path) or None


def base64_at(document: Any, *path: str) -> bytes:
    """Return bytes that are encoded in base64; empty when the value is null or missing."""
    value = value_or_none_at(document, *path)
    try:
        return base64.b64decode(value, validate=True) if value is not None else b""
    except (TypeError, ValueError):
        raise _wrong_value_error(path, "not base64") from None


def time_at(document: Any, *path: str) -> int:
    """Return a time in RFC 3339 as nanoseconds since 1970."""
    value = value_or_none_at(document, *path)
    time = parse_time(value) if isinstance(value, str) else None
    if time is None:
        raise _wrong_value_error(path, "not a time")
    return time


def parse_time(text: str) -> int | None:
    """Return a time in RFC 3339 as nanoseconds since 1970; None when the text is no such time."""
    found = _TIME.fullmatch(text)
    if found is not None:
        with contextlib.suppress(ValueError):
            whole = (datetime.fromisoformat(found[1] + found[3]) - EPOCH) // timedelta(seconds=1)
            return whole * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))
    return None


def value_or_none_at(document: Any, *path: str) -> Any:
    """Return the value at a path, of any type; None when there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _checked(kind: type[T], value: Any, path: tuple[str, ...], what: str) -> T:
    if not isinstance(value, kind):
        raise _wrong_value_error(path, what)
    return value


def _wrong_value_error(path: tuple[str, ...], what: str) -> ValueError:
    return ValueError(f"{'.'.join(path)!r} is {what}")


def format_time(nanoseconds: int) -> str:
    """Format nanoseconds since 1970 as a text that :func:`time_at` reads, in UTC and to the nanosecond."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def to_datetime(nanoseconds: int) -> datetime:
    """Convert nanoseconds since 1970, as :func:`time_at` returns them, to a datetime, to the microsecond."""
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)


def printable(said: str) -> str:
    """Return a server's text so that it can be part of an error or log line: short, and on one line."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said[:_MAX_TEXT_CHARS])
    return shown + "…" * (len(said) > _MAX_TEXT_CHARS)


def quoted(payload: bytes) -> str:
    """Return an answer's payload for an error or log line: short, escaped, in quotes; ``nothing`` when empty."""
    shown = payload[:_MAX_QUOTED].decode("utf-8", "backslashreplace")
    return f"{shown!r}{'…' * (len(payload) > _MAX_QUOTED)}" if payload else "nothing"
