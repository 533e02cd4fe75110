"""What an account has: its limits, and by pages its streams, consumers and subjects; which name was probably meant.

:class:`Selection` has the streams of a query: by a pattern on their names, including streams that are created later. It
also tells whether subject filters can match anything in these streams.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from spark_nats import clock
from spark_nats.conditions import ConditionText, Once, Topic
from spark_nats.conditions import jetstream as conditions
from spark_nats.errors import JetStreamError, NatsError, PermissionsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream, Request, bad_answer_is_protocol_error
from spark_nats.jetstream.messages import ask_last_sequence
from spark_nats.jetstream.streams import StreamInfo, check_leader, leader_in, parse_stream
from spark_nats.protocol import documents
from spark_nats.protocol.api import Api, subject_counts_body
from spark_nats.protocol.consumers import name_in
from spark_nats.protocol.keyvalue import RESERVED_STREAMS
from spark_nats.protocol.subjects import covers, name_violation, overlap, transform_subject

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LISTINGS = 10  # attempts to list names that come and go
_MAX_NAMED = 10  # streams, in an error
_STREAMS = "the streams of the account"
_NOBODY_ANSWERS = "no server that keeps it answers: they are offline, or it has no leader"
_LEADERLESS = "it has no leader at the moment"
_LEADER_ALONE = "its leader has not heard from most of the others lately, and may lead no more"


class Listed(NamedTuple):
    """What a list reports about a stream or consumer."""

    name: str
    entry: dict[str, Any] | None  # None when only the name is known
    problem: str | None  # why only the entry's configuration counts; None when the whole entry does


def ask_all_stream_states(js: JetStream) -> list[StreamInfo]:
    """Return states of the account's streams, in order of name; those without a leader may be missing, or outdated."""
    return [parse_stream(each.entry, each.name) for each in ask_all_streams(js) if each.entry is not None]


def ask_all_streams(js: JetStream, timeout: float | None = None, empty_if_more_than: float = math.inf) -> list[Listed]:
    """Return what is reported about all streams of the account, in the order of their names.

    A page may take ``timeout`` seconds (``request_timeout`` when None). Of an account with more streams than
    ``empty_if_more_than``, only the first page is listed, and the result is empty.
    """
    read = partial(_parse_page, "streams")
    found = _ask_all_pages(js, Api.STREAM_LIST, what=_STREAMS, read=read, timeout=timeout, most=empty_if_more_than)
    return list(found.values())


def ask_all_consumers(js: JetStream, stream: str, first_answer: dict[str, Any] | None = None) -> list[Listed]:
    """Return all consumers of a stream; ``first_answer`` is that to the request for the first page, if known."""
    what, read = f"the consumers of stream {stream!r}", partial(_parse_page, "consumers")
    return list(_ask_all_pages(js, Api.CONSUMER_LIST, stream, what=what, read=read, first=first_answer).values())


def _parse_page(what: str, answer: dict[str, Any]) -> _Page[Listed]:
    """Return the names on a page, in order, and the number of entries on all pages.

    Streams or consumers without a leader are among the ``missing``, with an entry or without one. Those that a server
    cannot serve, such as a stream of a later version, are among the ``offline``, with the reason.
    """
    found: dict[str, Listed] = {}
    for entry in documents.list_at(answer, what):
        name = name_in(entry)
        found[name] = Listed(name, entry, _problem_in(entry, name))
    for name in documents.strings_at(answer, "missing"):
        found[name] = Listed(name, found[name].entry if name in found else None, _NOBODY_ANSWERS)
    for name in documents.object_at(answer, "offline"):
        reason = documents.printable(documents.string_at(answer, "offline", name))
        found[name] = Listed(name, found[name].entry if name in found else None, f"it is offline: {reason}")
    return _Page(dict(sorted(found.items())), len(found), documents.integer_at(answer, "total"))


def _problem_in(entry: dict[str, Any], name: str) -> str | None:
    try:
        check_leader(entry, name)
    except JetStreamError:
        return _LEADER_ALONE if leader_in(entry) else _LEADERLESS
    return None


def ask_subject_counts(js: JetStream, stream: str, pattern: str) -> dict[str, int]:
    """Return how many messages a stream holds of each subject that matches a filter, as its leader knows them.

    Subjects that are not UTF-8 have U+FFFD in their names; subjects that become equal by that are added up.
    """

    def read(answer: dict[str, Any]) -> _Page[int]:
        check_leader(answer, stream)
        subjects = documents.object_at(answer, "state", "subjects")
        counts = {subject: documents.integers_at(subjects, subject) for subject in sorted(subjects)}
        return _Page(
            {subject: sum(each) for subject, each in counts.items()},
            sum(map(len, counts.values())),
            documents.integer_at(answer, "total") if subjects else 0,
        )

    what = f"the subjects of stream {stream!r}"
    return _ask_all_pages(js, Api.STREAM_INFO, stream, what=what, read=read, body=subject_counts_body(pattern))


def warn_of_non_utf8(stream: str, subjects: Iterable[str], so: str) -> None:
    """Warn of listed subjects that have U+FFFD in their names; ``so`` is the consequence."""
    if replaced := [subject for subject in subjects if documents.REPLACED in subject]:
        said = conditions.SUBJECTS_REPLACED(stream=stream, names=len(replaced), subject=replaced[0], so=so)
        logger.warning(said.with_code)


def ask_stream_names(js: JetStream, subject: str | None = None) -> list[str]:
    """Return the names of the account's streams, in order; or of those that listen on a subject or filter."""

    def read(answer: dict[str, Any]) -> _Page[None]:
        names = documents.strings_at(answer, "streams")
        if len(set(names)) < len(names):
            raise ValueError("its 'streams' names one twice")
        return _Page(dict.fromkeys(names), len(names), documents.integer_at(answer, "total"))

    wanted = {} if subject is None else {"subject": subject}
    return list(_ask_all_pages(js, Api.STREAM_NAMES, what=_STREAMS, read=read, body=wanted))


class _Page(NamedTuple, Generic[T]):
    names: dict[str, T]  # with what is known of each, in order
    entries: int  # entries on the page; several may have one name, see :func:`ask_subject_counts`
    total: int  # entries of the whole list


def _ask_all_pages(
    js: JetStream,
    operation: Api,
    *names: str,
    what: str,
    read: Callable[[dict[str, Any]], _Page[T]],
    body: Mapping[str, Any] = {},
    first: dict[str, Any] | None = None,
    timeout: float | None = None,
    most: float = math.inf,
) -> dict[str, T]:
    """Return what a server lists by pages, in order; ``read`` parses an answer, ``first`` is the first one if known.

    Each page but the first begins with the last name of the page before. If it does not, names were removed or added
    meanwhile, and the listing starts again; it raises :class:`JetStreamError` after ten attempts.
    """
    for _ in range(_LISTINGS):
        found: dict[str, T] = {}
        entries, last = 0, ""
        while True:
            asked = Request(operation, names, {**body, "offset": max(0, entries - 1)})
            answer, first = first or js.request_all([asked], timeout)[0], None
            if isinstance(answer, NatsError):
                raise answer
            with bad_answer_is_protocol_error(operation, *names):
                listed = read(answer)
            if listed.total > most:
                return {}
            if found and next(iter(listed.names), None) != last:
                break
            found.update(listed.names)
            entries = max(0, entries - 1) + listed.entries
            if entries >= listed.total or listed.entries < 2:
                return found
            last = next(reversed(listed.names))
    raise JetStreamError(conditions.LISTING_CHANGES(what=what))


@contextlib.contextmanager
def suggesting_names(js: JetStream, names: Sequence[str], to_read: bool = True) -> Iterator[None]:
    """Extend the error that a stream does not exist by the names of those that do, the most similar first.

    Listing them takes a request for each thousand streams or so; a user without the permission gets the plain error.
    Where streams are ``to_read``, creating a missing one would not help, so up to ten are named; else a similar one.
    """
    try:
        yield
    except StreamNotFoundError as error:
        if Topic.MISSING_STREAM not in error.topics:
            raise  # the error is already worded for its caller
        known: list[str] = []
        with contextlib.suppress(NatsError):
            known = ask_stream_names(js)
        missing = next((name for name in names if name not in known), "")
        if to_read and known:
            raise error.with_message(f"{error}; {_describe_known_names(missing, known)}").with_topics() from None
        near = _nearest(missing, known, 0.8)
        raise error.with_message(f"{error}, but {near[0]!r} does") if near else error from None


@contextlib.contextmanager
def reporting_missing_kind(
    js: JetStream, name: str, subject: str, name_in: Callable[[str], str | None], missing: Callable[..., ConditionText]
) -> Iterator[None]:
    """Report a missing stream as a missing bucket or other kind of stream, and suggest a similar name of that kind.

    Streams of the kind listen on ``subject``, ``name_in`` returns the kind's name for a stream (empty or None if the
    stream is of another kind), and ``missing`` returns the error's text.
    """
    try:
        yield
    except StreamNotFoundError as error:
        streams: list[str] = []
        with contextlib.suppress(NatsError):  # as far as the user may list them
            streams = ask_stream_names(js, subject)
        near = _nearest(name, [*filter(None, map(name_in, streams))], 0.6)
        hint = f" (there is {near[0]!r})" if near else ""
        raise error.with_message(missing(hint=hint)) from None


def _describe_known_names(missing: str, known: Sequence[str]) -> str:
    """Return in words which streams there are, the most similar first; buckets and the like only if nothing else is."""
    names = [name for name in known if not name.startswith(RESERVED_STREAMS)] or list(known)
    near = _nearest(missing, names, 0.6)
    names = near + [name for name in names if name not in near]
    shown, more = names[:_MAX_NAMED], len(names) - _MAX_NAMED
    last = f"{more} more" if more > 0 else shown.pop()
    return f"there are {', '.join(shown)} and {last}" if shown else f"there is {last}"


def _nearest(missing: str, known: Sequence[str], cutoff: float) -> list[str]:
    """Return the names that are similar to a missing one, whatever the case of letters, the most similar first."""
    from difflib import get_close_matches  # only here, where time does not matter

    by_letters: dict[str, list[str]] = {}
    for name in known:
        by_letters.setdefault(name.lower(), []).append(name)
    near = get_close_matches(missing.lower(), by_letters, n=_MAX_NAMED, cutoff=cutoff)
    return [name for letters in near for name in by_letters[letters]]


@dataclass(frozen=True, slots=True)
class Quota:
    """The use and the limit of one resource; ``limit`` is None where there is none."""

    used: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """The account's use of JetStream, and its limits."""

    memory: Quota  # bytes of streams in memory
    storage: Quota  # bytes of streams in files
    streams: Quota  # number of streams
    consumers: Quota  # number of consumers


def ask_account_info(js: JetStream) -> AccountInfo:
    """Return the account's use, with the limits of all replica tiers added up; raise if it has no JetStream."""
    answer = js.request(Api.ACCOUNT_INFO)
    with bad_answer_is_protocol_error(Api.ACCOUNT_INFO):
        tiers = documents.object_at(answer, "tiers") or {"": answer}
        return AccountInfo(*(_quota(answer, tiers, what) for what in ("memory", "storage", "streams", "consumers")))


def _quota(answer: dict[str, Any], tiers: dict[str, Any], what: str) -> Quota:
    limit = ("limits", f"max_{what}")
    limits = [
        documents.integer_at(tier, *limit)
        for tier in tiers.values()
        if documents.value_or_none_at(tier, *limit) not in (-1, None)
    ]
    return Quota(documents.integer_at(answer, what), sum(limits) if len(limits) == len(tiers) else None)


LIST_INTERVAL = 10.0
"""Seconds for which a list of streams is valid: a query notices a new stream at its first look after that."""


def matches_stream_name(pattern: re.Pattern[str], name: str) -> bool:
    """Tell whether a pattern matches the whole name of a stream.

    A name that begins like the streams of KV buckets, object stores and MQTT matches only if the text of the pattern
    contains that beginning (``KV_``, ``OBJ_``, ``MQTT_``): a pattern for all streams does not mean those.
    """
    reserved = next((each for each in RESERVED_STREAMS if name.startswith(each)), "")
    return reserved.removeprefix("$") in pattern.pattern and pattern.fullmatch(name) is not None


def ask_matching_names(js: JetStream, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return the names of all streams that match a pattern, in order.

    A name that servers allow, but that cannot be part of a subject here, raises :class:`UnsupportedStreamError`.
    """
    names = tuple(name for name in ask_stream_names(js) if matches_stream_name(pattern, name))
    for name in names:
        if violation := name_violation(name):
            raise UnsupportedStreamError(conditions.STREAM_NAME_UNSUPPORTED(stream=name, violation=violation))
    return names


_OTHER_SUBJECTS = ("mirror", "sources", "subject_transform")
_SUBJECTS_SHOWN = 10


def subjects_to_store(info: StreamInfo) -> tuple[str, ...] | None:
    """Return which subjects new messages of a stream can have.

    None means any: the stream mirrors or sources others, or its transform has other functions than ``wildcard``.
    """
    if not info.subjects or info.config.get("mirror") or info.config.get("sources"):
        return None
    transform, found = info.config.get("subject_transform"), list[str | None]()
    if not transform:
        return info.subjects
    source = transform.get("src") or ">"
    for subject in info.subjects:
        if covers(source, subject):
            found.append(transform_subject(subject, transform))
        else:
            found += [subject, transform_subject(source, transform)]
    return None if None in found else tuple(each for each in found if each)


def unmatched_filters(filters: Sequence[str], streams: Iterable[StreamInfo]) -> tuple[str, ...]:
    """Return the filters that match no new message of these streams.

    Messages that were stored before a stream got its present subjects may match all the same.
    """
    found = tuple(filters)
    for info in streams:
        subjects = subjects_to_store(info)
        found = tuple(each for each in found if not any(overlap(each, subject) for subject in subjects or (">",)))
    return found


def subjects_to_read(info: StreamInfo, filters: Sequence[str]) -> tuple[str, ...]:
    """Return which subjects of a stream a reader with some filters reads, of all if there are none.

    They are no wider than those on which the stream listens, unless it may hold any subject.
    """
    wanted = tuple(filters) or (">",)
    if not info.subjects or any(info.config.get(field) for field in _OTHER_SUBJECTS):
        return wanted
    found = list[str]()
    for each in wanted:
        narrower = [subject for subject in info.subjects if covers(each, subject)]
        rest = any(overlap(each, subject) for subject in info.subjects if subject not in narrower)
        found += narrower if narrower and not rest else [each]
    return tuple(dict.fromkeys(found))


class Selection:
    """The streams that a query reads: the named ones, or those whose names match a pattern if there is one."""

    def __init__(self, named: Sequence[str], pattern: re.Pattern[str] | None = None) -> None:
        self.names = tuple(named)
        self.pattern = pattern
        self._listed = -math.inf
        self._said = Once()
        self._seen: dict[str, StreamInfo] = {}
        self._takes: Sequence[object] = ()  # which subjects each stream stored when the filters were last compared
        self._unmatched: tuple[str, ...] = ()  # the filters that matched none of them

    def __str__(self) -> str:
        return f"the streams that match {self.pattern.pattern!r}" if self.pattern else ", ".join(self.names)

    @property
    def is_listing_due(self) -> bool:
        """Whether the matching names have to be listed, because there is no list yet or the last one is too old."""
        return self.pattern is not None and clock.monotonic() - self._listed >= LIST_INTERVAL

    def list_names_if_due(self, js: JetStream) -> None:
        """List the matching names, if that is due; warn once when there are none."""
        if self.pattern is None or not self.is_listing_due:
            return
        self.names = ask_matching_names(js, self.pattern)
        self._listed = clock.monotonic()
        if not self.names and self._said.add_if_new():
            logger.warning(conditions.PATTERN_MATCHES_NOTHING(pattern=self.pattern.pattern).with_code)

    def note_and_warn_unmatched(
        self, js: JetStream, infos: Mapping[str, StreamInfo], filters: Sequence[str], goes_on: bool
    ) -> None:
        """Note states of streams; once all are known, and when they change, warn of filters that match no subject.

        A filter may match what a stream holds from before. Then only a query that ``goes_on`` after that is warned.
        """
        if not filters:
            return
        self._seen |= infos
        streams = [self._seen[name] for name in self.names if name in self._seen]
        takes = [(each.name, subjects_to_store(each)) for each in streams]
        if len(streams) < len(self.names) or takes == self._takes:
            return
        before, self._unmatched = self._unmatched, unmatched_filters(filters, streams)
        self._takes = takes
        new = [each for each in self._unmatched if each not in before]
        new = [each for each in new if goes_on or not _ask_if_message_held(js, streams, each)]
        if new:
            subjects = sorted({subject for stream in streams for subject in subjects_to_store(stream) or ()})
            more = f" and {len(subjects) - _SUBJECTS_SHOWN} more" if len(subjects) > _SUBJECTS_SHOWN else ""
            shown = ", ".join(subjects[:_SUBJECTS_SHOWN]) + more
            names = ", ".join(stream.name for stream in streams[:_SUBJECTS_SHOWN])
            said = conditions.FILTER_MATCHES_NONE(filters=", ".join(new), streams=names, subjects=shown)
            logger.warning(said.with_code)

    def leave_out_until_listed(self, name: str) -> None:
        """Leave out a stream until the names are listed again."""
        self.names = tuple(each for each in self.names if each != name)


def _ask_if_message_held(js: JetStream, streams: Sequence[StreamInfo], subject: str) -> bool:
    """Tell whether one of some streams holds a message that matches a filter; True also when that is not reported."""
    try:
        return any(info.messages and ask_last_sequence(js, info.name, (subject,)) for info in streams)
    except (JetStreamError, PermissionsError):
        return True
