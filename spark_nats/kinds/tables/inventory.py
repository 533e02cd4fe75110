"""What an account holds, as rows: its streams, KV buckets, consumers and the subjects of its messages.

A row has its values by the names of columns: times as datetimes, durations in seconds, None where there is nothing to
say, or no limit. What is leaderless or offline at the moment has a row too, with its ``problem``, and without what only
a leader knows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from spark_nats.conditions.jetstream import STREAM_NOT_FOUND
from spark_nats.errors import JetStreamError, NatsError, NatsTimeoutError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream, Request, interpreting
from spark_nats.jetstream.listing import (
    Page,
    all_pages,
    naming_the_nearest,
    stream_names,
    subjects_of,
    warn_of_replaced,
)
from spark_nats.jetstream.matching import matches
from spark_nats.jetstream.streams import check_leader, leader_in, state_in
from spark_nats.protocol.api import Api, ErrCode, filters_of
from spark_nats.protocol.documents import (
    boolean_at,
    integer_at,
    moment,
    printable,
    string_at,
    strings_at,
    time_at,
    value_at,
)
from spark_nats.protocol.keyvalue import bucket_of
from spark_nats.protocol.subjects import name_violation

Row = dict[str, Any]

_LARGEST = 2**63 - 1  # what a column can hold; servers count in 64 bits without a sign
_OFFLINE = frozenset({ErrCode.STREAM_OFFLINE, ErrCode.STREAM_OFFLINE_FOR})
_NOBODY_ANSWERS = "no server that keeps it answers: they are offline, or it has no leader"
_LEADERLESS = "it has no leader at the moment"
_LEADER_ALONE = "its leader has not heard from most of the others lately, and may lead no more"


def choose_streams(js: JetStream, names: Sequence[str], pattern: re.Pattern[str] | None) -> tuple[str, ...]:
    """Return the names of the streams that are named, or match the pattern, or else of all of the account.

    Raises:
        StreamNotFoundError: one that is named does not exist.
        NatsError: the request failed.
    """
    there = stream_names(js)
    if pattern is not None:
        return tuple(name for name in there if matches(pattern, name))
    with naming_the_nearest(js, names):
        for name in names:
            if name not in there:
                raise StreamNotFoundError(STREAM_NOT_FOUND(stream=name))
    return tuple(names or there)


def describe_streams(js: JetStream, names: Collection[str]) -> list[Row]:
    """Return a row for each of these streams that there is."""
    listed = _listed_streams(js, names)
    with interpreting(Api.STREAM_LIST):
        return [_stream(each) for each in listed]


def describe_buckets(js: JetStream, names: Collection[str]) -> list[Row]:
    """Return a row for each KV bucket that there is among these streams."""
    listed = _listed_streams(js, filter(bucket_of, names))
    with interpreting(Api.STREAM_LIST):
        return [_bucket(each) for each in listed]


def describe_consumers(js: JetStream, streams: Sequence[str]) -> list[Row]:
    """Return a row for each consumer of some streams, all of which are asked in one round trip.

    A stream that cannot be asked has one row, with its problem. One that does not exist any more has none.
    """
    rows = [_unnamed(stream, violation) for stream in streams if (violation := name_violation(stream))]
    requests = [
        Request(Api.CONSUMER_LIST, (stream,), {"offset": 0}) for stream in streams if not name_violation(stream)
    ]
    for request, answer in zip(requests, js.request_all(requests), strict=True):
        (stream,) = request.names
        if not isinstance(answer, NatsError):
            listed = _listed_consumers(js, stream, answer)
            with interpreting(Api.CONSUMER_LIST, stream):
                rows += [_consumer(stream, each) for each in listed]
        elif isinstance(answer, JetStreamError) and answer.err_code in _OFFLINE:
            rows.append({"stream": stream, "problem": answer.description})
        elif not isinstance(answer, StreamNotFoundError):
            raise answer
    return rows


def find_messages(js: JetStream, streams: Sequence[str]) -> tuple[list[str], list[Row]]:
    """Return which of some streams hold messages, and a row with its problem for each that cannot be asked.

    All are asked in one round trip, so those that do not answer are waited for once.
    """
    rows = [_unnamed(stream, violation) for stream in streams if (violation := name_violation(stream))]
    named = [stream for stream in streams if not name_violation(stream)]
    holding = []
    answers = js.request_all([Request(Api.STREAM_INFO, (stream,)) for stream in named])
    for stream, answer in zip(named, answers, strict=True):
        try:
            if isinstance(answer, NatsError):
                raise answer
            check_leader(answer, stream)
            if state_in(answer, stream).messages:
                holding.append(stream)
        except NatsError as error:
            rows += _unasked(stream, error)
    return holding, rows


def count_subjects(js: JetStream, stream: str, filters: Sequence[str]) -> Iterator[Row]:
    """Return a row for each subject of which a stream holds messages, and which one of the filters matches, if any.

    A stream that cannot be asked has one row, with its problem. One that does not exist any more has none.
    """
    try:
        counts = [subjects_of(js, stream, each) for each in filters or (">",)]
    except NatsError as error:
        return iter(_unasked(stream, error))
    warn_of_replaced(stream, chain.from_iterable(counts), "the row of a name has the messages of all of them")
    return (
        {"stream": stream, "subject": subject, "messages": _fitting(messages)}
        for found in counts
        for subject, messages in found.items()
    )


def _unasked(stream: str, error: NatsError) -> list[Row]:
    """Return what to say of a stream that cannot be asked; raise the error if it is not about this stream alone."""
    if isinstance(error, StreamNotFoundError):
        return []
    if isinstance(error, NatsTimeoutError | JetStreamError) and error.passes(established=False):
        return [{"stream": stream, "problem": str(error)}]
    raise error


# Lists


class _Listed(NamedTuple):
    """What a list says of a stream or consumer."""

    name: str
    entry: dict[str, Any] | None  # None when nothing but the name is known
    problem: str | None  # with one, the entry has a configuration and nothing else that counts


def _listed_streams(js: JetStream, names: Iterable[str]) -> list[_Listed]:
    wanted = frozenset(names)

    def page(offset: int) -> Page[_Listed]:
        answer = js.request(Api.STREAM_LIST, body={"offset": offset})
        with interpreting(Api.STREAM_LIST):
            return _page(answer, "streams")

    found = all_pages(page, "the streams of the account")
    return [each for name, each in found.items() if name in wanted]


def _listed_consumers(js: JetStream, stream: str, first: dict[str, Any]) -> list[_Listed]:
    """Return all consumers of a stream; ``first`` is what was answered to the request for the first page."""
    answers = [first]

    def page(offset: int) -> Page[_Listed]:
        answer = answers.pop() if answers else js.request(Api.CONSUMER_LIST, stream, body={"offset": offset})
        with interpreting(Api.CONSUMER_LIST, stream):
            return _page(answer, "consumers")

    return list(all_pages(page, f"the consumers of stream {stream!r}").values())


def _page(answer: dict[str, Any], what: str) -> Page[_Listed]:
    """Return what a page names, in order, and how many there are on all pages.

    What has no leader stands among the ``missing``, with an entry or without one; what a server cannot serve, such as a
    stream of a later version, stands among those that are ``offline``, with the reason.
    """
    found: dict[str, _Listed] = {}
    for entry in _list(answer, what):
        # A consumer that is offline has its name in its configuration only.
        name = _text(entry, "name") or _text(entry, "config", "name") or string_at(entry, "config", "durable_name")
        found[name] = _Listed(name, entry, _problem_in(entry, name))
    for name in strings_at(answer, "missing"):
        found[name] = _Listed(name, found[name].entry if name in found else None, _NOBODY_ANSWERS)
    for name in _object(answer, "offline"):
        reason = printable(string_at(answer, "offline", name))
        found[name] = _Listed(name, found[name].entry if name in found else None, f"it is offline: {reason}")
    return Page(dict(sorted(found.items())), len(found), integer_at(answer, "total"))


def _problem_in(entry: dict[str, Any], name: str) -> str | None:
    try:
        check_leader(entry, name)
    except JetStreamError:
        return _LEADER_ALONE if leader_in(entry) else _LEADERLESS
    return None


# Rows


def _unnamed(stream: str, violation: str) -> Row:
    return {"stream": stream, "problem": f"it cannot be asked for: its name {violation}"}


def _stream(listed: _Listed) -> Row:
    name, entry, problem = listed
    if entry is None:
        return {"name": name, "problem": problem}
    info = state_in(entry, name)
    config = info.config
    row = {
        "name": name,
        **_described(entry),
        "subjects": list(info.subjects),
        "retention": info.retention,
        "storage": info.storage,
        "replicas": info.replicas,
        "compression": _text(config, "compression"),
        "discard": _text(config, "discard"),
        "max_msgs": _limit(config, "max_msgs"),
        "max_msgs_per_subject": _limit(config, "max_msgs_per_subject"),
        "max_bytes": _limit(config, "max_bytes"),
        "max_msg_size": _limit(config, "max_msg_size"),
        "max_age": info.max_age,
        "max_consumers": info.max_consumers,
        "duplicate_window": info.duplicate_window or None,
        "allow_direct": info.allows_direct_gets,
        "sealed": _flag(config, "sealed"),
        "mirror": _text(config, "mirror", "name"),
        "sources": [string_at(each, "name") for each in _list(config, "sources")],
        "problem": problem,
    }
    if problem is None:
        row |= {
            "messages": _fitting(info.messages),
            "bytes": _fitting(info.bytes),
            "first_sequence": _fitting(info.first_sequence),
            "last_sequence": _fitting(info.last_sequence),
            "first_time": _moment(info.first_time),
            "last_time": _moment(info.last_time),
            "deleted": _fitting(info.deleted),
            "subject_count": _number(entry, "state", "num_subjects") or 0,  # the server leaves 0 out
            "consumer_count": _fitting(info.consumers),
        }
    return row


def _bucket(listed: _Listed) -> Row:
    name, entry, problem = listed
    bucket = bucket_of(name)
    if entry is None:
        return {"bucket": bucket, "problem": problem}
    info = state_in(entry, name)
    config = info.config
    row = {
        "bucket": bucket,
        **_described(entry),
        "history": _limit(config, "max_msgs_per_subject"),
        "max_age": info.max_age,
        "max_bytes": _limit(config, "max_bytes"),
        "max_value_size": _limit(config, "max_msg_size"),
        "limit_marker_ttl": _seconds(config, "subject_delete_marker_ttl"),
        "storage": info.storage,
        "replicas": info.replicas,
        "compression": (_text(config, "compression") or "none") != "none",
        "mirror": bucket_of(_text(config, "mirror", "name") or "") or None,
        "problem": problem,
    }
    if problem is None:
        row |= {
            "keys": _number(entry, "state", "num_subjects") or 0,
            "entries": _fitting(info.messages),
            "bytes": _fitting(info.bytes),
            "revision": _fitting(info.last_sequence),
            "last_time": _moment(info.last_time),
        }
    return row


def _consumer(stream: str, listed: _Listed) -> Row:
    name, entry, problem = listed
    if entry is None:
        return {"stream": stream, "name": name, "problem": problem}
    config = entry.get("config")
    if not isinstance(config, dict):
        raise ValueError("a 'config' is no object")
    if _text(entry, "stream_name") not in (stream, None):  # one that is offline does not say it
        raise ValueError("it lists a consumer of another stream")
    row = {
        "stream": stream,
        "name": name,
        **_described(entry),
        "durable": bool(_text(config, "durable_name")),
        "filter_subjects": list(filters_of(config)),
        "deliver_policy": _text(config, "deliver_policy"),
        "deliver_subject": _text(config, "deliver_subject"),
        "ack_policy": _text(config, "ack_policy"),
        "ack_wait": _seconds(config, "ack_wait"),
        "max_deliver": _limit(config, "max_deliver"),
        "max_ack_pending": _limit(config, "max_ack_pending"),
        "max_waiting": _limit(config, "max_waiting"),
        "inactive_threshold": _seconds(config, "inactive_threshold"),
        "replicas": _limit(config, "num_replicas"),
        "problem": problem,
    }
    if problem is None:
        paused = _flag(entry, "paused")
        row |= {
            "delivered_sequence": _number(entry, "delivered", "stream_seq"),
            "delivered_time": _time(entry, "delivered", "last_active"),
            "ack_floor_sequence": _number(entry, "ack_floor", "stream_seq"),
            "ack_floor_time": _time(entry, "ack_floor", "last_active"),
            "pending": _number(entry, "num_pending"),
            "ack_pending": _number(entry, "num_ack_pending"),
            "redelivered": _number(entry, "num_redelivered"),
            "waiting": _number(entry, "num_waiting"),
            "paused": paused,
            "paused_until": _time(config, "pause_until") if paused else None,
        }
    return row


def _described(entry: dict[str, Any]) -> Row:
    """Return what streams and consumers alike have."""
    metadata = _object(entry, "config", "metadata")
    return {
        "created": _time(entry, "created"),
        "description": _text(entry, "config", "description"),
        "metadata": {name: string_at(metadata, name) for name in metadata},
        "cluster": _text(entry, "cluster", "name"),
        "leader": leader_in(entry) or None,
    }


# Values, which may be left out


def _list(document: Any, *path: str) -> list[Any]:
    found = value_at(document, *path) or []
    if not isinstance(found, list):
        raise ValueError(f"{'.'.join(path)!r} is no list")
    return found


def _object(document: Any, *path: str) -> dict[str, Any]:
    found = value_at(document, *path) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{'.'.join(path)!r} is no object")
    return found


def _text(document: Any, *path: str) -> str | None:
    return string_at(document, *path) if value_at(document, *path) else None


def _number(document: Any, *path: str) -> int | None:
    return None if value_at(document, *path) is None else _fitting(integer_at(document, *path))


def _fitting(number: int) -> int | None:
    return number if number <= _LARGEST else None


def _limit(document: Any, *path: str) -> int | None:
    """Return a limit; none is 0, -1 or left out."""
    return None if value_at(document, *path) in (None, 0, -1) else _number(document, *path)


def _seconds(document: Any, *path: str) -> float | None:
    nanoseconds = _limit(document, *path)
    return None if nanoseconds is None else nanoseconds / 1e9


def _flag(document: Any, *path: str) -> bool:
    return value_at(document, *path) is not None and boolean_at(document, *path)


def _time(document: Any, *path: str) -> datetime | None:
    return None if value_at(document, *path) is None else _moment(time_at(document, *path))


def _moment(nanoseconds: int) -> datetime | None:
    """Return a time; what has never been is in the year 1."""
    return moment(nanoseconds) if nanoseconds > 0 else None
