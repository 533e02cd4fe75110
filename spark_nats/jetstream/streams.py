"""Streams: their state, creating them, and finding the sequence to begin or end with."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from spark_nats.client.memory import KEPT, once_a_while, parent_process
from spark_nats.errors import JetStreamError, NatsError, ProtocolError, Remedy, StreamNotFoundError
from spark_nats.jetstream.api import JetStream, Request, interpreting
from spark_nats.protocol.api import Api, ErrCode
from spark_nats.protocol.documents import EPOCH, bytes_at, integer_at, string_at, strings_at, time_at
from spark_nats.protocol.keyvalue import RESERVED_STREAMS, bucket_of
from spark_nats.protocol.statuses import NO_RESPONDERS
from spark_nats.protocol.stream_configs import Wish, differences, nearest_field

logger = logging.getLogger(__name__)

LIMITS, INTEREST, WORK_QUEUE = "limits", "interest", "workqueue"
"""What a stream's retention can be: when messages go."""
FILE, MEMORY, ASYNC = "file", "memory", "async"
"""What its ``storage`` can be; and its ``persist_mode``, unless that is ``default``."""
_LISTINGS = 10  # attempts to list what comes and goes
_SURE = 0.5  # of a stream's duplicate_window; the rest is for messages on their way
_MOST_LISTED = 100_000  # streams
_MOST_NAMED = 10  # streams, in an error
_said: set[str] = set()  # what the log has been told, in this process; others of the same query may have told it too


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """State of a stream.

    Attributes:
        name: its name.
        created: when it was made, as the server writes it. A stream made again has another one.
        first_sequence: sequence of the first message; ``last_sequence + 1`` when the stream is empty.
        last_sequence: sequence of the last message that was ever stored, 0 when there was none.
        messages: how many messages it holds.
        bytes: how many bytes they take.
        deleted: how many sequences between the first and the last message were deleted.
        retention: ``limits``, ``interest`` or ``workqueue``.
        subjects: what it listens on.
        config: its whole configuration.
        time: when the server said this, in nanoseconds since 1970; 0 where it does not say.
        leader: name of the server that leads it; empty where there is no cluster.
        first_time: when the first message was stored, likewise; 0 when the stream is empty.
        last_time: when the last message was stored that there ever was, likewise; 0 when there was none.
        led_since: since when that server leads it, as the server writes it; empty where it does not say.
    """

    name: str
    created: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    deleted: int
    retention: str
    subjects: tuple[str, ...]
    config: dict[str, Any]
    time: int = 0
    leader: str = ""
    first_time: int = 0
    last_time: int = 0
    led_since: str = ""

    @property
    def average_size(self) -> float:
        """Bytes that a message takes on average."""
        return self.bytes / max(1, self.messages)

    @property
    def replicas(self) -> int:
        """How many servers keep it."""
        replicas = self.config.get("num_replicas")
        return replicas if isinstance(replicas, int) and replicas > 0 else 1

    @property
    def storage(self) -> str:
        """Where its servers keep it: ``file`` or ``memory``."""
        return MEMORY if self.config.get("storage") == MEMORY else FILE

    @property
    def persist_mode(self) -> str:
        """When what it acknowledges is written to its file: ``default``, before; or ``async``, some time after."""
        return ASYNC if self.config.get("persist_mode") == ASYNC else "default"

    @property
    def max_age(self) -> float | None:
        """Seconds after which it removes messages; None when age is no reason."""
        age = self.config.get("max_age")
        return age / 1e9 if isinstance(age, int) and age > 0 else None

    @property
    def duplicate_window(self) -> float:
        """Seconds for which it knows a message id again."""
        window = self.config.get("duplicate_window")
        return window / 1e9 if isinstance(window, int) else 0.0

    def knows_again(self, seconds: float) -> bool:
        """Tell whether it certainly still knows the id of a message that was published so many seconds ago."""
        return 0 <= seconds < self.duplicate_window * _SURE

    def messages_from(self, sequence: int) -> int:
        """Return how many messages there are from a sequence on, deleted ones included."""
        return max(0, self.last_sequence + 1 - max(sequence, self.first_sequence))


def _stream_info(answer: dict[str, Any], name: str) -> StreamInfo:
    with interpreting(Api.STREAM_INFO, name):
        if string_at(answer, "config", "name") != name:  # it becomes part of subjects
            raise ValueError("it is about another stream")
        last, messages = integer_at(answer, "state", "last_seq"), integer_at(answer, "state", "messages")
        return StreamInfo(
            name=name,
            created=string_at(answer, "created"),
            # A stream that never held a message says 0; the next one will be 1.
            first_sequence=integer_at(answer, "state", "first_seq") if messages else last + 1,
            last_sequence=last,
            messages=messages,
            bytes=integer_at(answer, "state", "bytes"),
            deleted=integer_at(answer, "state", "num_deleted") if "num_deleted" in answer["state"] else 0,
            retention=string_at(answer, "config", "retention"),
            subjects=strings_at(answer, "config", "subjects"),
            config=answer["config"],
            time=time_at(answer, "ts") if "ts" in answer else 0,
            leader=leader_in(answer),
            first_time=time_at(answer, "state", "first_ts") if messages and "first_ts" in answer["state"] else 0,
            # That of a message which is gone stays; before the first one it is in the year 1.
            last_time=max(0, time_at(answer, "state", "last_ts")) if "last_ts" in answer["state"] else 0,
            led_since=_led_since(answer),
        )


def _led_since(answer: dict[str, Any]) -> str:
    cluster = answer.get("cluster")
    return string_at(cluster, "leader_since") if isinstance(cluster, dict) and "leader_since" in cluster else ""


def leader_in(answer: dict[str, Any]) -> str:
    """Return which server leads what an answer is about; empty where none does, or where there is no cluster.

    Raises:
        ValueError: the answer does not say it as it should.
    """
    cluster = answer.get("cluster")
    return string_at(cluster, "leader") if isinstance(cluster, dict) and cluster.get("leader") else ""


def stream_info(js: JetStream, name: str) -> StreamInfo:
    """Return a stream's state, as its leader knows it.

    While a stream has no leader, any server that has a replica answers with what that holds: nothing at all when it has
    just come back with an empty disk. Such an answer names no leader, and is not believed.

    Raises:
        StreamNotFoundError: there is no such stream.
        JetStreamError: it has no leader at the moment.
        NatsError: the request failed.
    """
    answer = js.request(Api.STREAM_INFO, name)
    _check_leader(answer, name)
    return _stream_info(answer, name)


def stream_info_and_message(js: JetStream, name: str, sequence: int) -> tuple[StreamInfo, StoredMessage | None]:
    """Return a stream's state, and the first message from a sequence on, without its headers: in one round trip.

    Raises:
        StreamNotFoundError, JetStreamError, NatsError: as :func:`stream_info`.
    """
    state, message = js.request_all(
        [
            Request(Api.STREAM_INFO, (name,)),
            Request(Api.MESSAGE_GET, (name,), {"seq": sequence, "next_by_subj": ">", "no_hdr": True}),
        ]
    )
    if isinstance(state, JetStreamError):
        raise state
    _check_leader(state, name)
    return _stream_info(state, name), _stored_message(message, name)


def messages_from(js: JetStream, places: Sequence[tuple[str, int, str]]) -> list[StoredMessage | None]:
    """Return the first messages from places in streams on, without their headers: in one round trip.

    Args:
        js: where.
        places: of each the stream, the sequence and the subject filter.

    Raises:
        NatsError: a request failed.
    """
    bodies = [{"seq": sequence, "next_by_subj": subject, "no_hdr": True} for _, sequence, subject in places]
    requests = [Request(Api.MESSAGE_GET, (place[0],), body) for place, body in zip(places, bodies, strict=True)]
    return [
        _stored_message(answer, stream)
        for answer, (stream, *_) in zip(js.request_all(requests) if requests else (), places, strict=True)
    ]


def _check_leader(answer: dict[str, Any], name: str) -> None:
    """Check that a stream has a leader, by what is said about it.

    Raises:
        JetStreamError: it has none at the moment.
    """
    cluster = answer.get("cluster")
    if isinstance(cluster, dict) and not cluster.get("leader"):
        raise JetStreamError(
            f"stream {name!r} has no leader at the moment", NO_RESPONDERS, ErrCode.CLUSTER_NOT_AVAILABLE
        )


def list_streams(js: JetStream) -> list[StreamInfo]:
    """Return the state of all streams of the account, by name. Those without a leader at the moment may be missing.

    Raises:
        NatsError: a request failed.
    """
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
                found[name] = _stream_info(entry, name)
        if len(found) == before:
            break
        offset += len(listed)
    return [found[name] for name in sorted(found)]


def create_stream(js: JetStream, config: dict[str, Any]) -> StreamInfo:
    """Make a stream, or return the one of that name that is there already.

    That is never changed. Where it differs from what somebody has named of the configuration, the log says so.

    Args:
        js: where.
        config: the server's stream configuration; ``name`` is required.

    Raises:
        JetStreamError: the server refuses the configuration.
    """
    name = config["name"]
    try:
        return _compared(stream_info(js, name), config, "exists, and differs from what is asked for in %s")
    except StreamNotFoundError:
        pass
    try:
        info = _stream_info(js.request(Api.STREAM_CREATE, name, body=config), name)
    except JetStreamError as error:
        if error.err_code == ErrCode.STREAM_NAME_IN_USE:  # another task was faster
            return stream_info(js, name)
        if error.err_code == ErrCode.INVALID_JSON:
            raise error.with_context(f"the stream {name!r} cannot be made: {_refused(error.description)}") from None
        raise
    # Older servers leave out in silence what they do not know.
    return _compared(info, config, "was made, and the server has left out or changed what it does not know: %s")


def _compared(info: StreamInfo, config: dict[str, Any], what: str) -> StreamInfo:
    """Return the state of a stream, and say once where it is not as somebody wants it."""
    if isinstance(config, Wish) and (found := differences(config, info.config)):
        bucket = bucket_of(info.name)
        said, of = f"bucket {bucket!r}" if bucket else f"stream {info.name!r}", ", ".join(found)
        if (fact := f"{parent_process()}: {said} differs in {of}") not in _said:
            _said.add(fact)
            once_a_while(fact, lambda _: logger.warning(f"%s {what}; it is left as it is", said, of), KEPT)
    return info


def _refused(description: str) -> str:
    """Return in words why a server does not take a configuration; its own are those of its language."""
    unknown = re.search(r'unknown field "([^"]*)"', description)
    if unknown is None:
        return f"the server does not take its configuration ({description.removeprefix('invalid JSON: ')})"
    near = nearest_field(unknown[1])
    hint = f"; did you mean {near!r}?" if near else ""
    return f"the server knows no field {unknown[1]!r} of a stream's configuration{hint}"


def delete_stream(js: JetStream, name: str) -> None:
    """Delete a stream and all its messages.

    Raises:
        StreamNotFoundError: there is no such stream.
        NatsError: the request failed.
    """
    js.request(Api.STREAM_DELETE, name)


def subjects_of(js: JetStream, stream: str, pattern: str) -> list[str]:
    """Return the subjects that match a filter of which a stream holds messages, as its leader knows them.

    Raises:
        JetStreamError: they come and go too fast.
        NatsError: a request failed.
    """

    def page(offset: int) -> tuple[list[str], int]:
        answer = js.request(Api.STREAM_INFO, stream, body={"subjects_filter": pattern, "offset": offset})
        _check_leader(answer, stream)
        with interpreting(Api.STREAM_INFO, stream):
            state = answer.get("state")
            subjects = (state.get("subjects") or {}) if isinstance(state, dict) else {}
            if not isinstance(subjects, dict):
                raise ValueError("its 'state.subjects' is no object")
            return sorted(subjects), integer_at(answer, "total") if subjects else 0

    return _all_pages(page, f"the subjects of stream {stream!r}")


def stream_names(js: JetStream, subject: str | None = None) -> list[str]:
    """Return the names of the account's streams, in order.

    Args:
        js: where.
        subject: only those that listen on this subject or filter.

    Raises:
        JetStreamError: streams come and go too fast.
        NatsError: a request failed.
    """
    wanted = {} if subject is None else {"subject": subject}

    def page(offset: int) -> tuple[list[str], int]:
        answer = js.request(Api.STREAM_NAMES, body={**wanted, "offset": offset})
        with interpreting(Api.STREAM_NAMES):
            names = list(strings_at(answer, "streams"))
            if len(set(names)) < len(names):
                raise ValueError("its 'streams' names one twice")
            return names, integer_at(answer, "total")

    return _all_pages(page, "the streams of the account")


def _all_pages(page: Callable[[int], tuple[list[str], int]], what: str) -> list[str]:
    """Return what a server lists by pages, in order.

    Each page but the first begins with the last name of the one before: if it does not, names have gone or come
    meanwhile, and it begins again.

    Args:
        page: returns the names from an offset on, as many as a page has, and how many there are in all.
        what: is listed.

    Raises:
        JetStreamError: that went on and on.
    """
    for _ in range(_LISTINGS):
        found: list[str] = []
        while True:
            names, total = page(max(0, len(found) - 1))
            if found and names[:1] != found[-1:]:
                break
            found += names[1:] if found else names
            if len(found) >= total or len(names) < 2:
                return found
    raise JetStreamError(f"{what} change faster than they can be listed", NO_RESPONDERS)


@contextlib.contextmanager
def naming_the_nearest(js: JetStream, names: Sequence[str], to_read: bool = True) -> Iterator[None]:
    """Have an error that a stream does not exist name those that do, the one first that was probably meant.

    That takes a request for each thousand streams or so. Whoever may not send it is told less.

    Args:
        js: where.
        names: the streams that were asked for.
        to_read: whether they are to be read: then a missing one is of no use if it is made, and all are named.
    """
    try:
        yield
    except StreamNotFoundError as error:
        if Remedy.CREATE_STREAM not in error.remedies:
            raise  # it is said in other words already
        known: list[str] = []
        with contextlib.suppress(NatsError):
            known = stream_names(js)
        missing = next((name for name in names if name not in known), "")
        if to_read and known:
            named = error.with_context(f"{error}; {_listed(missing, known)}")
            named.remedies = ()
            raise named from None
        near = _nearest(missing, known, 0.8)
        raise error.with_context(f"{error}, but {near[0]!r} does") if near else error from None


def _listed(missing: str, known: Sequence[str]) -> str:
    """Return in words which streams there are, the nearest first; those of buckets and the like if there are no other.

    Args:
        missing: the one that was asked for.
        known: names of streams, one at least.
    """
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


class StoredMessage(NamedTuple):
    """A message as a stream's leader gives it.

    Attributes:
        sequence: its sequence.
        time: when it was stored, in nanoseconds since 1970.
        header: its header block; empty where it has none, or none was asked for.
        payload: its payload, empty where none was asked for.
    """

    sequence: int
    time: int
    header: bytes = b""
    payload: bytes = b""


def last_message(js: JetStream, stream: str, subject: str) -> StoredMessage | None:
    """Return the last message that matches a filter; None when there is none.

    Raises:
        NatsError: the request failed.
    """
    return _find(js, stream, {"last_by_subj": subject}, whole=True)


def last_sequence(js: JetStream, stream: str, filters: Sequence[str]) -> int:
    """Return the sequence of the last message that matches one of ``filters``, 0 when there is none."""
    message = last_matching(js, stream, filters)
    return message.sequence if message else 0


def last_matching(js: JetStream, stream: str, filters: Sequence[str]) -> StoredMessage | None:
    """Return the last message that matches one of ``filters``, without its headers; None when there is none."""
    found = (_find(js, stream, {"last_by_subj": subject}) for subject in filters)
    return max((message for message in found if message is not None), default=None)


def next_sequence(js: JetStream, stream: str, start: int, filters: Sequence[str]) -> int | None:
    """Return the first sequence from ``start`` on that matches one of ``filters``, None when there is none."""
    found = (_find_next(js, stream, start, subject) for subject in filters)
    return min((message.sequence for message in found if message is not None), default=None)


def next_message(
    js: JetStream, stream: str, start: int, filters: Sequence[str], whole: bool = True
) -> StoredMessage | None:
    """Return the first message from ``start`` on that matches one of ``filters``, None when there is none.

    Args:
        js: where.
        stream: which stream.
        start: sequence to begin with.
        filters: subjects; one at least.
        whole: whether its headers are wanted.

    Raises:
        NatsError: the request failed.
    """
    found = (_find_next(js, stream, start, subject, whole) for subject in filters)
    return min((message for message in found if message is not None), default=None)


def _find_next(js: JetStream, stream: str, start: int, subject: str, whole: bool = False) -> StoredMessage | None:
    message = _find(js, stream, {"seq": start, "next_by_subj": subject}, whole)
    if message is not None and message.sequence < start:
        raise ProtocolError(
            f"the server was asked for sequence {start} of stream {stream!r} or later, and found {message.sequence}"
        )
    return message


def _find(js: JetStream, stream: str, what: dict[str, Any], whole: bool = False) -> StoredMessage | None:
    body = what if whole else {**what, "no_hdr": True}
    (answer,) = js.request_all([Request(Api.MESSAGE_GET, (stream,), body)])
    return _stored_message(answer, stream)


def _stored_message(answer: dict[str, Any] | JetStreamError, stream: str) -> StoredMessage | None:
    """Return the message in an answer; None when the answer is that there is none."""
    if isinstance(answer, JetStreamError):
        if answer.err_code == ErrCode.NO_MESSAGE_FOUND:
            return None
        raise answer
    with interpreting(Api.MESSAGE_GET, stream):
        return StoredMessage(
            sequence=integer_at(answer, "message", "seq"),
            time=time_at(answer, "message", "time"),
            header=bytes_at(answer, "message", "hdrs"),
            payload=bytes_at(answer, "message", "data"),
        )


def first_sequence_at(js: JetStream, stream: str | StreamInfo, time: datetime) -> int:
    """Return the first sequence stored at or after a time; the next one to come when there is none.

    Args:
        js: where.
        stream: its name; or its state, behind which nothing is then looked at.
        time: with a zone.

    Raises:
        NatsError: a request failed.
    """
    info = stream_info(js, stream) if isinstance(stream, str) else stream
    since = (time - EPOCH) // timedelta(microseconds=1) * 1000
    return first_sequence_since(js, info.name, since, info.first_sequence, info.last_sequence + 1)


def first_sequence_since(js: JetStream, stream: str, time: int, start: int, end: int) -> int:
    """Return the first sequence of a range that was stored at or after a time.

    Messages are asked for one at a time, half of what is left being ruled out by each. The stream's leader answers,
    which knows all of them; a consumer that begins at a time may be on a server that lags behind it. And what is
    compared here may lie outside the years 1677 to 2262, which a server cannot count in.

    Args:
        js: where.
        stream: which stream.
        time: nanoseconds since 1970.
        start: first sequence of the range. It need not exist, and nor need any other one.
        end: sequence before which the range ends.

    Returns:
        The sequence of a message, or ``end`` when the range has none that was stored at ``time`` or later.

    Raises:
        NatsError: a request failed.
    """
    found = behind = end
    while start < behind:  # all before ``start`` are earlier; from ``behind`` on the first one to look at is ``found``
        middle = (start + behind) // 2
        message = _find_next(js, stream, middle, ">")
        if message is None or message.sequence >= behind:
            behind = middle
        elif message.time >= time:
            found, behind = message.sequence, middle
        else:
            start = message.sequence + 1
    return found
