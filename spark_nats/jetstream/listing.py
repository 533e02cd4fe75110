"""Which streams there are, and which was probably meant; which subjects a stream has. Servers list by pages."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from spark_nats.conditions import Hint, Said
from spark_nats.conditions.jetstream import LISTING_CHANGES, SUBJECTS_REPLACED
from spark_nats.errors import JetStreamError, NatsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream, interpreting
from spark_nats.jetstream.streams import StreamInfo, check_leader, state_in
from spark_nats.protocol.api import Api
from spark_nats.protocol.documents import REPLACED, integer_at, integers_at, string_at, strings_at
from spark_nats.protocol.keyvalue import RESERVED_STREAMS

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LISTINGS = 10  # attempts to list what comes and goes
_MOST_LISTED = 100_000  # streams
_MOST_NAMED = 10  # streams, in an error


def list_streams(js: JetStream) -> list[StreamInfo]:
    """Return the state of all streams of the account, by name. Those without a leader at the moment may be missing."""
    found: dict[str, StreamInfo] = {}
    offset, total = 0, 1
    while offset < min(total, _MOST_LISTED):
        before = len(found)
        answer = js.request(Api.STREAM_LIST, body={"offset": offset})
        with interpreting(Api.STREAM_LIST):
            total, listed = integer_at(answer, "total"), answer.get("streams") or []
            if not isinstance(listed, list):
                raise ValueError("its 'streams' is no list")
            for entry in listed:
                name = string_at(entry, "config", "name")
                found[name] = state_in(entry, name)
        if len(found) == before:
            break
        offset += len(listed)
    return [found[name] for name in sorted(found)]


def subjects_of(js: JetStream, stream: str, pattern: str) -> dict[str, int]:
    """Return of which subjects that match a filter a stream holds how many messages, as its leader knows them.

    Subjects that are not UTF-8 have U+FFFD in their names. Those of one name have the messages of all of them.
    """

    def page(offset: int) -> Page[int]:
        answer = js.request(Api.STREAM_INFO, stream, body={"subjects_filter": pattern, "offset": offset})
        check_leader(answer, stream)
        with interpreting(Api.STREAM_INFO, stream):
            state = answer.get("state")
            subjects = (state.get("subjects") or {}) if isinstance(state, dict) else {}
            if not isinstance(subjects, dict):
                raise ValueError("its 'state.subjects' is no object")
            counts = {subject: integers_at(subjects, subject) for subject in sorted(subjects)}
            return Page(
                {subject: sum(each) for subject, each in counts.items()},
                sum(map(len, counts.values())),
                integer_at(answer, "total") if subjects else 0,
            )

    return all_pages(page, f"the subjects of stream {stream!r}")


def warn_of_replaced(stream: str, subjects: Iterable[str], so: str) -> None:
    """Warn of listed subjects that have U+FFFD in their names, and say what comes of it."""
    if replaced := [subject for subject in subjects if REPLACED in subject]:
        said = SUBJECTS_REPLACED(stream=stream, names=len(replaced), subject=replaced[0], so=so)
        logger.warning(said.coded)


def stream_names(js: JetStream, subject: str | None = None) -> list[str]:
    """Return the names of the account's streams, in order; or of those that listen on a subject or filter."""
    wanted = {} if subject is None else {"subject": subject}

    def page(offset: int) -> Page[None]:
        answer = js.request(Api.STREAM_NAMES, body={**wanted, "offset": offset})
        with interpreting(Api.STREAM_NAMES):
            names = list(strings_at(answer, "streams"))
            if len(set(names)) < len(names):
                raise ValueError("its 'streams' names one twice")
            return Page(dict.fromkeys(names), len(names), integer_at(answer, "total"))

    return list(all_pages(page, "the streams of the account"))


class Page(NamedTuple, Generic[T]):
    """A part of a list."""

    names: dict[str, T]  # with what is known of each, in order
    entries: int  # of the list; several may have one name, see :func:`subjects_of`
    total: int  # entries of the whole list


def all_pages(page: Callable[[int], Page[T]], what: str) -> dict[str, T]:
    """Return what a server lists by pages, in order. ``page`` gives the one that begins with an entry.

    Each page but the first begins with the last name of the one before: if it does not, names have gone or come
    meanwhile, and it begins again; after a few times it is an error that they come and go too fast.
    """
    for _ in range(_LISTINGS):
        found: dict[str, T] = {}
        entries, last = 0, ""
        while True:
            listed = page(max(0, entries - 1))
            if found and next(iter(listed.names), None) != last:
                break
            found.update(listed.names)
            entries = max(0, entries - 1) + listed.entries
            if entries >= listed.total or listed.entries < 2:
                return found
            last = next(reversed(listed.names))
    raise JetStreamError(LISTING_CHANGES(what=what))


@contextlib.contextmanager
def naming_the_nearest(js: JetStream, names: Sequence[str], to_read: bool = True) -> Iterator[None]:
    """Have an error that a stream does not exist name those that do, the one first that was probably meant.

    That takes a request for each thousand streams or so. Whoever may not send it is told less. Where the streams are
    ``to_read``, a missing one is of no use if it is made, and all are named.
    """
    try:
        yield
    except StreamNotFoundError as error:
        if Hint.CREATE_STREAM not in error.hints:
            raise  # it is said in other words already
        known: list[str] = []
        with contextlib.suppress(NatsError):
            known = stream_names(js)
        missing = next((name for name in names if name not in known), "")
        if to_read and known:
            raise error.with_context(f"{error}; {_listed(missing, known)}").advising() from None
        near = _nearest(missing, known, 0.8)
        raise error.with_context(f"{error}, but {near[0]!r} does") if near else error from None


@contextlib.contextmanager
def naming_what_it_is(
    js: JetStream,
    name: str,
    subject: str,
    name_in: Callable[[str], str | None],
    missing: Callable[..., Said],
) -> Iterator[None]:
    """Say of a stream that does not exist what it is of that name, and which other one was probably meant.

    Streams of its kind listen on a subject, have its name in theirs, and are said to be ``missing`` in these words.
    """
    try:
        yield
    except StreamNotFoundError as error:
        streams: list[str] = []
        with contextlib.suppress(NatsError):  # as far as one may know them
            streams = stream_names(js, subject)
        near = _nearest(name, [*filter(None, map(name_in, streams))], 0.6)
        hint = f" (there is {near[0]!r})" if near else ""
        raise error.with_context(missing(hint=hint)) from None


def _listed(missing: str, known: Sequence[str]) -> str:
    """Return in words which streams there are, the nearest first; those of buckets if there are no other."""
    names = [name for name in known if not name.startswith(RESERVED_STREAMS)] or list(known)
    near = _nearest(missing, names, 0.6)
    names = near + [name for name in names if name not in near]
    shown, more = names[:_MOST_NAMED], len(names) - _MOST_NAMED
    last = f"{more} more" if more > 0 else shown.pop()
    return f"there are {', '.join(shown)} and {last}" if shown else f"there is {last}"


def _nearest(missing: str, known: Sequence[str], cutoff: float) -> list[str]:
    """Return the names that are like one that is missing, nearest first."""
    from difflib import get_close_matches  # only here, where time does not matter

    by_letters: dict[str, list[str]] = {}
    for name in known:
        by_letters.setdefault(name.lower(), []).append(name)
    near = get_close_matches(missing.lower(), by_letters, n=_MOST_NAMED, cutoff=cutoff)
    return [name for letters in near for name in by_letters[letters]]
