"""The readers of option values: text in, value out.

Each function returns the value, or raises :class:`ValueError` with the text that follows "option 'x' " in the user's
error. That text never contains a secret or the content of a file.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from spark_nats.client.auth import Credentials, parse_creds, parse_key_pair, parse_seed
from spark_nats.client.servers import Server, parse_servers
from spark_nats.errors import AuthorizationError, InvalidCredentialsError
from spark_nats.options.files import read_text_file, shown_file_name
from spark_nats.options.short_forms import parse_short_entry
from spark_nats.protocol import subjects
from spark_nats.protocol.documents import parse_object, sequence_at, string_at, strings_at, time_at
from spark_nats.protocol.keyvalue import MAX_HISTORY, MIN_MARKER_TTL
from spark_nats.protocol.stream_configs import check_type, read_duration_field

EARLIEST = "earliest"
LATEST = "latest"
ERROR = "error"
FAIL = "fail"


class StreamOffset(NamedTuple):
    """A position in a stream, as in a checkpoint."""

    next: int  # the next sequence to read
    created: str = ""  # when the stream was created, as the server writes it; empty when not given
    # when the message before `next` was stored, in nanoseconds since 1970; None when not given
    timestamp: int | None = None
    latest: int | None = None  # no message before `next` was stored later than this; None when not given
    subjects: tuple[str, ...] = ()  # the filters under which it was reached; empty when all were read, or not given


class ConsumerAckFloor(NamedTuple):
    """The position up to which every message of a consumer is acknowledged."""

    consumer: str


Offsets = str | dict[str, StreamOffset | ConsumerAckFloor | str]
"""``earliest``, ``latest``, or for each stream one of these, a position or the consumer that has it."""


def read_whole_number(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"is {text!r}; it must be a whole number of at least 1")
    return int(text)


def read_word(text: str, *words: str) -> str:
    """Read one of the given words, in upper or lower case; return it in lower case."""
    if text.lower() not in words:
        raise ValueError(f"is {text!r}; it must be {', '.join(words[:-1])} or {words[-1]}")
    return text.lower()


def read_boolean(text: str) -> bool:
    """Read ``true`` or ``false``."""
    return read_word(text, "true", "false") == "true"


def read_bucket_name(text: str) -> str:
    """Read the name of a KV bucket (ADR-8)."""
    if not re.fullmatch("[a-zA-Z0-9_-]+", text):
        raise ValueError(f"is {text!r}; a bucket's name has only letters, digits, '_' and '-'")
    return text


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_DURATION = 500 * 3600.0  # seconds; the system takes waits as milliseconds in 31 bits


def read_if_must_exist(text: str) -> bool:
    """Read ``error`` or ``latest``; return whether a message must exist."""
    return read_word(text, ERROR, LATEST) == ERROR


def read_duration(text: str) -> float:
    """Read a duration with its unit, such as ``500ms``; return seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= _MAX_DURATION:
        raise ValueError(
            f"is {text!r}; it must be a time above zero, of 500h at most, with its unit, such as 500ms, 5s or 2m"
        )
    return seconds


def read_duration_or_zero(text: str) -> float:
    """Read a duration that may be zero; return seconds."""
    return 0.0 if text in ("0", "0s") else read_duration(text)


def read_timestamp(text: str) -> datetime:
    """Read a time in ISO 8601, in UTC unless it has a zone, or in milliseconds since 1970."""
    if text.isascii() and text.isdigit():
        return _read_milliseconds(text)
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"is {text!r}; it must be ISO 8601, such as 2026-11-01T00:00:00Z, or milliseconds since 1970"
        ) from None


_FIRST, _LAST = 10**11, 253_402_300_800_000  # milliseconds: in 1973, and the start of the year 10000
_OTHER_UNITS = {"seconds": 1000.0, "microseconds": 1e-3, "nanoseconds": 1e-6}  # in milliseconds


def _read_milliseconds(text: str) -> datetime:
    """Read milliseconds since 1970; refuse a number that is more likely meant in another unit.

    Seconds would be a time in January 1970, from which a query reads the whole stream. Zero is the same in any unit.
    """
    number = int(text[:30])
    if number == 0 or _FIRST <= number < _LAST:
        return datetime.fromtimestamp(number / 1000, UTC)
    when = _format_milliseconds(number) if number < _LAST else "after the year 9999"
    likely = ""
    for unit, factor in _OTHER_UNITS.items():
        other = round(number * factor)
        if _FIRST <= other < _LAST:
            likely += f"{other} if that is in {unit} ({_format_milliseconds(other)}), or "
    raise ValueError(
        f"is {text!r}, in milliseconds since 1970, which is {when}; write {likely}ISO 8601, such as "
        "2026-11-01T00:00:00Z"
    )


def _format_milliseconds(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def parse_object_or_none(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text; None when it holds none.

    Raises:
        ValueError: an object in it has a name twice, and JSON would take the last one without a word. The error
            does not show the name, because the text may be a secret.
    """
    try:
        found = parse_object(text)
    except ValueError:
        return None
    json.loads(text, object_pairs_hook=_refuse_repeated_names)
    return found


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("has a name twice in its JSON; name everything once")
    return found


def read_offsets(text: str) -> Offsets:
    """Read ``earliest``, ``latest`` or JSON with an offset for each stream."""
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        parsed = parse_object_or_none(text)
    except ValueError as error:
        raise ValueError(f"is {text!r}; it {error}") from None
    try:
        if parsed is not None:
            return {name: _read_stream_offset(value) for name, value in parsed.items()}
    except ValueError:
        for name, value in (parsed or {}).items():
            if advice := _advise_on_kafka_offset(name, value):
                raise ValueError(f"is {text!r}; {advice}") from None
    raise ValueError(
        f"is {text!r}; it must be earliest, latest, or JSON with the next sequence of each stream, such as "
        '{"ORDERS": 1200}, or with a consumer that has come so far, such as {"ORDERS": "consumer:billing"}, or with '
        'what a checkpoint says of it, such as {"ORDERS": {"next": 1200, "created": "2026-11-01T08:00:00Z", '
        '"timestamp": "2026-11-02T09:30:00.5Z"}}'
    )


def _advise_on_kafka_offset(name: str, value: Any) -> str:
    """Return what to write instead of an offset in Kafka's form; empty if it is in none."""
    words = {-2: EARLIEST, -1: LATEST}
    if isinstance(value, dict) and value and all(key.isdigit() for key in value):
        first = next(iter(value.values()))
        offset = words.get(first, first) if isinstance(first, int) else "…"
        return f"streams have no partitions: write {json.dumps({name: offset}, ensure_ascii=False)}"
    return f"instead of {value} write {json.dumps({name: words[value]})}" if value in (-2, -1) else ""


_CONSUMER = "consumer:"
FIELDS_OF_OFFSETS = frozenset(
    ["next", "created", "timestamp", "since", "first", "from", "earliest", "latest", "before", "subjects", "waits_for"]
)
"""What a stream's entry in an offset may have, also in one of an earlier version and in a query's progress."""


def _read_stream_offset(value: Any) -> StreamOffset | ConsumerAckFloor | str:
    if isinstance(value, str) and value.lower() in (EARLIEST, LATEST):
        return value.lower()
    if isinstance(value, str) and value.lower().startswith(_CONSUMER):
        return ConsumerAckFloor(read_name(value[len(_CONSUMER) :]))
    if isinstance(value, str):
        entry = parse_short_entry(value)
        return StreamOffset(entry.next, entry.created, entry.time, entry.latest)
    place = value if isinstance(value, dict) else {"next": value}
    if not set(place) <= FIELDS_OF_OFFSETS:
        raise ValueError("it has a name that is unknown")
    created = string_at(place, "created") if "created" in place else ""
    time, latest = (time_at(place, name) if name in place else None for name in ("timestamp", "latest"))
    return StreamOffset(sequence_at(place, "next"), created, time, latest, strings_at(place, "subjects"))


def read_text(text: str) -> str:
    """Read any text that is not empty and has no control characters."""
    if not text or re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("is empty or contains a control character")
    return text


def read_secret(text: str) -> str:
    """Read any text that is not empty; no error shows it."""
    if not text:
        raise ValueError("is empty")
    return text


def read_servers(text: str) -> tuple[Server, ...]:
    """Read server URLs without user, password or token."""
    if "@" in text:
        raise ValueError(
            "has a user, password or token in a URL, where Spark's plans would show it; "
            "use the options 'user' and 'password', or 'token'"
        )
    if re.match(r"\s*[\[(]\s*(['\"]|\w+://)", text):
        raise ValueError("is written as a list; write URLs separated by commas, without brackets")
    return parse_servers(text)


_INSTEAD = "what such a file holds goes into the option of this name with Secret or Pem at its end"


def read_pem_file(text: str) -> str:
    """Return the content of a file in PEM format, with certificates or a key."""
    content = read_text_file(text, _INSTEAD)
    if "-----BEGIN " not in content:
        raise ValueError(f"is {shown_file_name(text)}, which is not a file in PEM format")
    return content


_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[ \t\r]*\n.+?\n-----END \1-----", re.DOTALL)


def _is_encoded(text: str) -> bool:
    """Return whether a text is a certificate, a key or a login in base64, as Kubernetes shows its secrets."""
    try:
        decoded = base64.b64decode(text.encode("ascii", "ignore") + b"==")  # its own padding may be lost
    except binascii.Error:
        return False
    return "-----" not in text and re.search(rb"-----BEGIN |\bS[A-Z2-7]{50,}", decoded) is not None


def _text_with_lines(text: str) -> str:
    """Return a text with line ends, which a secret store or the environment may have written as two characters."""
    if _is_encoded(text):
        raise ValueError("is encoded in base64; decode it")
    return text.replace("\\r", "").replace("\\n", "\n")


# Matches seeds, JWTs and texts in PEM format, but no names of files.
_CONTENT = re.compile(r"\n|-----|\bS[A-Z2-7]{50,}|\beyJ")
_FOR_NAMES = "the name of a file goes into the option with File at its end"


def _require_pem(text: str) -> str:
    pem = _text_with_lines(text)
    if "-----BEGIN " not in pem:
        raise ValueError(f"is not a text in PEM format; {_FOR_NAMES}")
    if not _PEM.search(pem):
        raise ValueError("has lost the ends of its lines, or its last line; an end may also be written as \\n")
    return pem


def read_certificates_pem(text: str) -> str:
    """Read certificates in PEM format, without a key."""
    pem = _require_pem(text)
    if "PRIVATE KEY-----" in pem:
        raise ValueError("holds a private key, which Spark's plans would show; give that in 'tlsKeySecret'")
    return pem


def read_key_pem(text: str) -> str:
    """Read a private key in PEM format."""
    pem = _require_pem(text)
    if "PRIVATE KEY-----" not in pem:
        raise ValueError("holds no private key")
    return pem


def _credentials_from_text(text: str, parse: Callable[[str], Credentials]) -> Credentials:
    content = _text_with_lines(text)
    try:
        credentials = parse(content)
    except ValueError as error:
        if _CONTENT.search(content):
            raise
        raise ValueError(f"{error}; {_FOR_NAMES}") from None
    return _require_usable_key(credentials)


def _credentials_from_file(text: str, parse: Callable[[str], Credentials]) -> Credentials:
    content = read_text_file(text, _INSTEAD)
    try:
        return _require_usable_key(parse(content))
    except ValueError as error:
        raise ValueError(f"is {shown_file_name(text)}, which {error}") from None


def read_credentials_file(text: str) -> Credentials:
    """Read the name of a ``.creds`` file, and what it holds now."""
    return replace(_credentials_from_file(text, parse_creds), file=text)


def read_jwt(text: str) -> str:
    """Read the JWT of a user; no error shows it."""
    if not re.fullmatch(r"eyJ[\w-]+\.[\w-]+\.[\w-]+", text.strip()):
        raise ValueError("is not the JWT of a user, which begins with eyJ and has three parts")
    return text.strip()


def _require_usable_key(credentials: Credentials) -> Credentials:
    try:
        parse_key_pair(credentials.nkey_seed or "")
    except InvalidCredentialsError:
        raise ValueError("is not an nkey seed of a user, which begins with SU") from None
    except AuthorizationError as error:
        raise ValueError(f"cannot be used: {error}") from None
    return credentials


# An nkey seed and the content of a .creds file, each as a text and as the name of a file.
read_seed = partial(_credentials_from_text, parse=parse_seed)
read_credentials = partial(_credentials_from_text, parse=parse_creds)
read_seed_file = partial(_credentials_from_file, parse=parse_seed)


def read_location(text: str) -> str:
    """Read a path or URI without a secret."""
    if re.match(r"[^/]*://[^/]*:[^/]*@", text):  # abfss:// has a container before the @
        raise ValueError(
            "has a password or a key in its URI, where Spark's plans would show it; leave it to the environment"
        )
    return read_text(text)


def _stream_violation(name: str) -> str | None:
    violation = subjects.name_violation(name)
    if violation and re.search(r"[.*>]", name):  # characters of a subject or a pattern
        violation += "; subjects go into the option 'subject', a pattern of streams to read into 'streamPattern'"
    return violation


def read_pattern(text: str) -> re.Pattern[str]:
    """Read a regular expression for the names of streams."""
    try:
        return re.compile(read_text(text))
    except (re.error, OverflowError, RecursionError) as error:
        advice = ".* stands for any letters"
        if "*" in text or "?" in text:
            meant = "".join({"*": ".*", "?": "."}.get(letter) or re.escape(letter) for letter in text)
            advice += f": if * and ? are to stand for letters, write {meant}"
        raise ValueError(f"is {text!r}, which is not a regular expression of Python's: {error}; {advice}") from None


def _split_valid(text: str, violation_of: Callable[[str], str | None]) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        if violation := violation_of(part):
            raise ValueError(f"is {text!r}; {part!r} {violation}")
    if len(set(parts)) < len(parts):
        raise ValueError(f"is {text!r}; it names the same thing twice")
    return parts


def _split_disjoint(text: str, violation_of: Callable[[str], str | None]) -> tuple[str, ...]:
    filters = _split_valid(text, violation_of)
    if pair := subjects.find_overlap(filters):
        raise ValueError(f"names {pair[0]!r} and {pair[1]!r}, which overlap; name everything once")
    return filters


def _require_valid(text: str, violation_of: Callable[[str], str | None]) -> str:
    if violation := violation_of(text):
        raise ValueError(f"is {text!r}; it {violation}")
    return text


# Names of streams; subjects of a stream or keys of a bucket, which must not overlap; subjects to subscribe to. All
# three are comma-separated, and all but names may have wildcards.
read_names = partial(_split_valid, violation_of=_stream_violation)
read_filters = partial(_split_disjoint, violation_of=subjects.filter_violation)
read_subjects = partial(_split_valid, violation_of=subjects.filter_violation)
# The name of a JetStream domain, of a consumer or of one stream, and that of a queue group.
read_name = partial(_require_valid, violation_of=subjects.name_violation)
read_queue_group = partial(_require_valid, violation_of=subjects.queue_violation)


def read_subject_prefix(text: str) -> str:
    """Read a subject prefix: literal tokens, with or without a trailing dot; return it without the dot."""
    return _require_valid(text, lambda prefix: subjects.subject_violation(prefix.removesuffix("."))).removesuffix(".")


CREATED: dict[str, type] = {
    "history": int,
    "max_age": str,
    "max_bytes": int,
    "max_value_size": int,
    "limit_marker_ttl": str,
    "replicas": int,
    "storage": str,
    "compression": bool,
    "description": str,
}
"""The types of the fields of a new bucket, by their names in ADR-8; an object store has some of them."""


def read_create_option(text: str, what: str, fields: Collection[str], example: str) -> dict[str, Any] | None:
    """Read ``true``, ``false`` or the configuration of a bucket or an object store in JSON.

    Args:
        text: the option.
        what: what is created, for errors.
        fields: names of the fields that it may have, among :data:`CREATED`.
        example: a configuration, for errors.

    Returns:
        The configuration, with durations in nanoseconds; empty for ``true``, None for ``false``.
    """
    if text.lower() in ("true", "false"):
        return {} if text.lower() == "true" else None
    config = parse_object_or_none(text)
    if config is None:
        raise ValueError(f"must be true, false or {what}'s configuration in JSON, such as {example}")
    for name, value in config.items():
        if name not in fields:
            raise ValueError(f"has the field {name!r}; {what} has {', '.join(fields)}")
        check_type(name, value, CREATED[name])
    durations = ("max_age", "limit_marker_ttl")
    times = {name: read_duration_field(name, value) for name, value in config.items() if name in durations}
    if not 1 <= config.get("history", 1) <= MAX_HISTORY:
        raise ValueError(f"has {config['history']} as 'history', which must be from 1 to {MAX_HISTORY} (ADR-8)")
    if config.get("storage", "file") not in ("file", "memory"):
        raise ValueError(f"has {config['storage']!r} as 'storage', which must be file or memory")
    if times.get("limit_marker_ttl", MIN_MARKER_TTL) < MIN_MARKER_TTL:
        raise ValueError(f"has {config['limit_marker_ttl']!r} as 'limit_marker_ttl', which must be 1s or longer")
    return {**config, **times}
