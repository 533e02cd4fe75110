"""Short forms of our own: of a query in message ids, and of a stream's entry in the offset of a query of many streams.

An entry is written as numbers, separated by spaces: when the stream was created, in nanoseconds since 1970; the
next sequence; how much later the message before it was stored, in nanoseconds, or ``-`` if that is unknown; then
``since`` and ``first``, if the entry has them; then how much later than the creation ``latest`` and ``before`` are, or
``-``, if the entry has one of them.
``"1764151136123456789 1201 2500000000 1101 1101"`` has the values of ``{"created": "2025-11-26T09:58:56.123456789Z",
"next": 1201, "timestamp": "2025-11-26T09:58:58.623456789Z", "since": 1101, "first": 1101}``.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

from spark_nats.protocol.documents import MAX_INTEGER, format_time, parse_time

_AGE = "(-?[0-9]{1,19}|-)"
_SHORT = re.compile(rf"([0-9]{{1,19}}) ([0-9]{{1,20}}) {_AGE}(?: ([0-9]{{1,20}}) ([0-9]{{1,20}})(?: {_AGE} {_AGE})?)?")
_KNOWN = 1 << 14  # streams whose time of creation is kept in both forms: each offset has it again


class ShortEntry(NamedTuple):
    """The values of an entry, as :class:`~spark_nats.kinds.streams.read.positions.OffsetEntry` has them."""

    created: str
    next: int
    time: int | None
    since: int | None
    first: int | None
    latest: int | None = None
    before: int | None = None


def is_short(entry: object) -> bool:
    """Tell whether something is the short form of an entry."""
    return isinstance(entry, str) and _SHORT.fullmatch(entry) is not None


def encode_short_entry(entry: ShortEntry) -> str | None:
    """Return the short form of an entry; None if its time of creation is not written as servers write it."""
    created = _parse_exact_time(entry.created)
    if created is None:
        return None
    age, latest, before = (
        "-" if time is None else str(time - created) for time in (entry.time, entry.latest, entry.before)
    )
    text = f"{created} {entry.next} {age}"
    if entry.since is not None:
        text += f" {entry.since} {entry.first}"
        if (latest, before) != ("-", "-"):
            text += f" {latest} {before}"
    return text


def parse_short_entry(text: str) -> ShortEntry:
    """Return the entry of a short form.

    Raises:
        ValueError: the text is none.
    """
    if (found := _SHORT.fullmatch(text)) is None:
        raise ValueError(f"{text[:100]!r} is no entry of a stream")
    created, following, age, *part, latest, before = found.groups()
    next_, *rest = numbers = [int(each) for each in (following, *part) if each is not None]
    if not 1 <= min(numbers) <= max(numbers) <= MAX_INTEGER:
        raise ValueError(f"{text!r} has a sequence that is not an integer from 1 to 2^64 - 1")
    times = [None if age in (None, "-") else int(created) + int(age) for age in (age, latest, before)]
    return ShortEntry(_format_time(int(created)), next_, times[0], *(rest or (None, None)), *times[1:])


@lru_cache(_KNOWN)
def _parse_exact_time(created: str) -> int | None:
    number = parse_time(created)
    return None if number is None or number < 0 or _format_time(number) != created else number


@lru_cache(_KNOWN)
def _format_time(created: int) -> str:
    """Format a time as a server does, without zeros at its end."""
    return f"{format_time(created)[:-1].rstrip('0').rstrip('.')}Z"


_QUERY_BYTES = 9  # 12 characters in base64


def id_prefix_of(query: str) -> str:
    """Return the prefix of the message ids of a query's rows, from the query's id; no other query's ids have it."""
    digest = hashlib.blake2b(query.encode(), digest_size=_QUERY_BYTES).digest()
    return f"{base64.urlsafe_b64encode(digest).decode()}-"
