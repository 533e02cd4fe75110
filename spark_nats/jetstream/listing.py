"""Which streams there are, and which was probably meant; which subjects a stream has. Servers list by pages."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from spark_nats.conditions import ConditionText, Hint
from spark_nats.conditions.jetstream import LISTING_CHANGES, SUBJECTS_REPLACED
from spark_nats.errors import JetStreamError, NatsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream, bad_answer_is_protocol_error
from spark_nats.jetstream.streams import StreamInfo, check_leader, leader_in, state_in
from spark_nats.protocol.api import Api, subjects_query
from spark_nats.protocol.consumers import name_in
from spark_nats.protocol.documents import (
    REPLACED,
    integer_at,
    integers_at,
    list_at,
    object_at,
    printable,
    string_at,
    strings_at,
)
from spark_nats.protocol.keyvalue import RESERVED_STREAMS

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LISTINGS = 10  # attempts to list what comes and goes
_MAX_NAMED = 10  # streams, in an error
_STREAMS = "the streams of the account"
_NOBODY_ANSWERS = "no server that keeps it answers: they are offline, or it has no leader"
_LEADERLESS = "it has no leader at the moment"
_LEADER_ALONE = "its leader has not heard from most of the others lately, and may lead no more"


class Listed(NamedTuple):
    """What a list says of a stream or consumer."""

    name: str
    entry: dict[str, Any] | None  # None when nothing but the name is known
    problem: str | None  # with one, the entry has a configuration and nothing else that counts


def list_streams(js: JetStream) -> list[StreamInfo]:
    """Return the state of all streams of the account, by name. Those without a leader at the moment may be missing."""
    return [state_in(each.entry, each.name) for each in all_streams(js) if each.entry is not None]


def all_streams(js: JetStream) -> list[Listed]:
    """Return what is said of all streams of the account, by name."""
    return list(_all_pages(js, Api.STREAM_LIST, what=_STREAMS, read=partial(_page, "streams")).values())


def all_consumers(js: JetStream, stream: str, first: dict[str, Any]) -> list[Listed]:
    """Return all consumers of a stream; ``first`` is what was answered to the request for the first page."""
    what, read = f"the consumers of stream {stream!r}", partial(_page, "consumers")
    return list(_all_pages(js, Api.CONSUMER_LIST, stream, what=what, read=read, first=first).values())


def _page(what: str, answer: dict[str, Any]) -> _Page[Listed]:
    """Return what a page names, in order, and how many there are on all pages.

    What has no leader stands among the ``missing``, with an entry or without one; what a server cannot serve, such as a
    stream of a later version, stands among those that are ``offline``, with the reason.
    """
    found: dict[str, Listed] = {}
    for entry in list_at(answer, what):
        name = name_in(entry)
        found[name] = Listed(name, entry, _problem_in(entry, name))
    for name in strings_at(answer, "missing"):
        found[name] = Listed(name, found[name].entry if name in found else None, _NOBODY_ANSWERS)
    for name in object_at(answer, "offline"):
        reason = printable(string_at(answer, "offline", name))
        found[name] = Listed(name, found[name].entry if name in found else None, f"it is offline: {reason}")
    return _Page(dict(sorted(found.items())), len(found), integer_at(answer, "total"))


def _problem_in(entry: dict[str, Any], name: str) -> str | None:
    try:
        check_leader(entry, name)
    except JetStreamError:
        return _LEADER_ALONE if leader_in(entry) else _LEADERLESS
    return None


def subjects_of(js: JetStream, stream: str, pattern: str) -> dict[str, int]:
    """Return of which subjects that match a filter a stream holds how many messages, as its leader knows them.

    Subjects that are not UTF-8 have U+FFFD in their names. Those of one name have the messages of all of them.
    """

    def read(answer: dict[str, Any]) -> _Page[int]:
        check_leader(answer, stream)
        subjects = object_at(answer, "state", "subjects")
        counts = {subject: integers_at(subjects, subject) for subject in sorted(subjects)}
        return _Page(
            {subject: sum(each) for subject, each in counts.items()},
            sum(map(len, counts.values())),
            integer_at(answer, "total") if subjects else 0,
        )

    what = f"the subjects of stream {stream!r}"
    return _all_pages(js, Api.STREAM_INFO, stream, what=what, read=read, body=subjects_query(pattern))


def warn_of_replaced(stream: str, subjects: Iterable[str], so: str) -> None:
    """Warn of listed subjects that have U+FFFD in their names, and say what comes of it."""
    if replaced := [subject for subject in subjects if REPLACED in subject]:
        said = SUBJECTS_REPLACED(stream=stream, names=len(replaced), subject=replaced[0], so=so)
        logger.warning(said.with_code)


def stream_names(js: JetStream, subject: str | None = None) -> list[str]:
    """Return the names of the account's streams, in order; or of those that listen on a subject or filter."""

    def read(answer: dict[str, Any]) -> _Page[None]:
        names = strings_at(answer, "streams")
        if len(set(names)) < len(names):
            raise ValueError("its 'streams' names one twice")
        return _Page(dict.fromkeys(names), len(names), integer_at(answer, "total"))

    wanted = {} if subject is None else {"subject": subject}
    return list(_all_pages(js, Api.STREAM_NAMES, what=_STREAMS, read=read, body=wanted))


class _Page(NamedTuple, Generic[T]):
    """A part of a list."""

    names: dict[str, T]  # with what is known of each, in order
    entries: int  # of the list; several may have one name, see :func:`subjects_of`
    total: int  # entries of the whole list


def _all_pages(
    js: JetStream,
    operation: Api,
    *names: str,
    what: str,
    read: Callable[[dict[str, Any]], _Page[T]],
    body: Mapping[str, Any] = {},
    first: dict[str, Any] | None = None,
) -> dict[str, T]:
    """Return what a server lists by pages, in order; ``read`` gives the page in an answer, of which one may be known.

    Each page but the first begins with the last name of the one before: if it does not, names have gone or come
    meanwhile, and it begins again; after a few times it is an error that they come and go too fast.
    """
    for _ in range(_LISTINGS):
        found: dict[str, T] = {}
        entries, last = 0, ""
        while True:
            answer, first = first or js.request(operation, *names, body={**body, "offset": max(0, entries - 1)}), None
            with bad_answer_is_protocol_error(operation, *names):
                listed = read(answer)
            if found and next(iter(listed.names), None) != last:
                break
            found.update(listed.names)
            entries = max(0, entries - 1) + listed.entries
            if entries >= listed.total or listed.entries < 2:
                return found
            last = next(reversed(listed.names))
    raise JetStreamError(LISTING_CHANGES(what=what))


@contextlib.contextmanager
def suggesting_names(js: JetStream, names: Sequence[str], to_read: bool = True) -> Iterator[None]:
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
def naming_its_kind(
    js: JetStream, name: str, subject: str, name_in: Callable[[str], str | None], missing: Callable[..., ConditionText]
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
    shown, more = names[:_MAX_NAMED], len(names) - _MAX_NAMED
    last = f"{more} more" if more > 0 else shown.pop()
    return f"there are {', '.join(shown)} and {last}" if shown else f"there is {last}"


def _nearest(missing: str, known: Sequence[str], cutoff: float) -> list[str]:
    """Return the names that are like one that is missing, nearest first."""
    from difflib import get_close_matches  # only here, where time does not matter

    by_letters: dict[str, list[str]] = {}
    for name in known:
        by_letters.setdefault(name.lower(), []).append(name)
    near = get_close_matches(missing.lower(), by_letters, n=_MAX_NAMED, cutoff=cutoff)
    return [name for letters in near for name in by_letters[letters]]
