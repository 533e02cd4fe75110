"""Reading and putting the objects of a store (ADR-20): which exist, their descriptions, and their content.

To put an object is to store its chunks first, then its description, and finally to purge the former chunks; a link and
a deletion have no chunks. Lists and descriptions come from the stream's leader, without a consumer. The description of
an object that is replaced during the read moves to the stream's end, and a request by its subject finds it wherever it
is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spark_nats import clock
from spark_nats.client.retrying import Retries
from spark_nats.conditions import ConditionText, Transient
from spark_nats.errors import (
    InvalidRowError,
    JetStreamError,
    NatsError,
    ProtocolError,
    PublishError,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream, store_messages
from spark_nats.jetstream.listing import ask_subject_counts, reporting_missing_kind, warn_of_non_utf8
from spark_nats.jetstream.messages import Asked, MessageAt, ask
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import Range, RangeReader
from spark_nats.jetstream.views import StateOf, ask_stream_info
from spark_nats.kinds.objects import conditions, wire
from spark_nats.protocol.api import NOT_ENABLED, NOT_READY, Api, ApiError
from spark_nats.protocol.headers import EXPECTED_STREAM, OF_SUBJECT, ROLLUP, TOO_MANY_REQUESTS, encode_block
from spark_nats.protocol.keyvalue import store_of

MAX_HOPS = 8
"""Maximum number of links that are followed from an object to the object with the content."""
MAX_TIMES = 10
"""Maximum number of attempts to read an object that is replaced while it is read."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as its store describes it.

    Attributes:
        store: name of the store.
        subject: subject of the description.
        info: the description.
        time: when the description was stored, in nanoseconds since 1970.
        sequence: sequence of the description.
    """

    store: str
    subject: str
    info: wire.ObjectInfo
    time: int
    sequence: int


def ask_description_subjects(js: JetStream, store: str) -> list[str]:
    """Return the subjects of the descriptions in a store, those of deleted objects included.

    Raises:
        StreamNotFoundError: there is no such store.
        NatsError: the request failed.
    """
    stream = wire.stream_of_store(store)
    with reporting_missing_store(js, store):
        subjects = list(ask_subject_counts(js, stream, wire.descriptions_filter(store)))
    warn_of_non_utf8(stream, subjects, "objects that are described on them are left out")
    return subjects


def request_existing_objects(js: JetStream, store: str, subjects: Sequence[str]) -> list[StoredObject]:
    """Return the objects that are described on some subjects, without deleted or missing ones, in one round trip.

    Raises:
        ProtocolError: a description is invalid.
        StreamNotFoundError: there is no such store.
        NatsError: the request failed.
    """
    with reporting_missing_store(js, store):
        found = ask(js, [MessageAt(wire.stream_of_store(store), None, subject) for subject in subjects])
    described = [
        parse_stored_object(store, subject, message.payload, message.time, message.sequence)
        for subject, message in zip(subjects, found, strict=True)
        if message
    ]
    return [each for each in described if not each.info.deleted]


def parse_stored_object(store: str, subject: str, payload: bytes, time: int, sequence: int) -> StoredObject:
    """Return the object that a message describes.

    Raises:
        ProtocolError: the message describes no object.
    """
    try:
        return StoredObject(store, subject, wire.parse_description(payload), time, sequence)
    except ValueError as error:
        said = conditions.OBJECT_NOT_DESCRIBED(name=wire.object_name_of(subject), store=store, reason=error)
        raise ProtocolError(said) from None


def read_object_with_content(
    js: JetStream,
    found: StoredObject,
    check: Callable[[StoredObject], None],
    lost: Callable[[ConditionText], None],
    retries: Retries | None = None,
    this_version: bool = False,
) -> tuple[StoredObject, bytes | None] | None:
    """Return an object and its content; the content of a link is that of its target now.

    An object that is replaced while it is read is read again, unless only this version of it is wanted.

    Args:
        js: the JetStream API to ask.
        found: the object.
        check: called with each object before its content is read; it raises an error if the content is too large.
        lost: called with a sentence about why there is no content; it may raise an error.
        retries: as for :class:`~spark_nats.jetstream.reading.ranges.RangeReader`.
        this_version: whether only the content of this description is wanted, which may have been replaced since.

    Returns:
        The object as it was read, with its content. The content is None for a link to a whole store, for a deleted
        object, after a loss, and when another version has replaced the one that is wanted. None instead of both when
        the object was deleted meanwhile.

    Raises:
        JetStreamError: the object was replaced :data:`MAX_TIMES` times.
        NatsError: the connection failed, or the store no longer exists.
    """
    if found.info.deleted:
        return found, None
    now = found
    content: bytes | str = ""  # or what is wrong with it
    for _ in range(MAX_TIMES):
        target = _follow_links_or_explain(js, now)
        if not isinstance(target, StoredObject):
            if target:
                lost(conditions.LINK_BROKEN(name=now.info.name, store=now.store, reason=target))
            break
        check(target)
        content = _read_content_or_problem(js, target, retries)
        if isinstance(content, bytes):
            break
        seen = _request_object(js, target)
        if seen is not None and seen.info == target.info:
            lost(conditions.OBJECT_DAMAGED(name=target.info.name, store=target.store, reason=content))
            break
        latest = _request_object(js, now) if not this_version or found.info.link else None
        if latest is None:
            return (found, None) if this_version else None
        now = latest
    else:
        raise JetStreamError(conditions.OBJECT_MOVES_ON(name=now.info.name, store=now.store, times=MAX_TIMES))
    if this_version and now.sequence != found.sequence:
        return found, None
    return now, content if isinstance(content, bytes) else None


def _request_object(js: JetStream, found: StoredObject) -> StoredObject | None:
    """Return the object as it is described now; None when it is deleted or missing."""
    return next(iter(request_existing_objects(js, found.store, [found.subject])), None)


def _follow_links_or_explain(js: JetStream, found: StoredObject) -> StoredObject | str:
    """Return the object at the end of an object's links, or why there is none; empty for a link to a whole store."""
    for _ in range(MAX_HOPS + 1):
        if found.info.link is None:
            return found
        store, name = found.info.link
        if name is None:
            return ""
        try:
            after = request_existing_objects(js, store, [wire.description_subject(store, name)])
        except (StreamNotFoundError, ValueError) as error:
            return str(error)
        if not after:
            return f"the object store {store!r} has no object {name!r}"
        found = after[0]
    return f"{MAX_HOPS} links lead to yet another one"


def _read_content_or_problem(js: JetStream, found: StoredObject, retries: Retries | None) -> bytes | str:
    """Return the content of an object, or what is wrong with it."""
    info, chunks, size = found.info, list[bytes](), 0
    if info.chunks:
        stream = ask_stream_info(js, wire.stream_of_store(found.store))
        first, end = stream.first_sequence, stream.last_sequence + 1
        subject = wire.chunk_subject(found.store, info.nuid)
        chunk_range = Range(stream.name, stream.created, first, end, (subject,), removed=Removed.NO_LOSS)
        for delivered in RangeReader(chunk_range, limit=info.chunks, retries=retries).read(js):
            chunks += delivered.messages.payloads().to_pylist()
            size = sum(map(len, chunks))
            if size > info.size:
                return f"its chunks have more than {info.size} bytes, which is its size"
    content = b"".join(chunks)
    if len(chunks) != info.chunks or size != info.size:
        return f"it has {len(chunks)} chunks with {size} bytes, and should have {info.chunks} with {info.size}"
    if info.digest and not wire.is_same_digest(info.digest, actual := wire.digest_of(content)):
        return f"its digest is {actual}, and should be {info.digest}"
    return content


def reporting_missing_store(js: JetStream, name: str) -> AbstractContextManager[None]:
    """Report a missing stream as this missing store, and suggest an object store with a similar name."""
    missing = partial(conditions.OBJECT_STORE_NOT_FOUND, store=name)
    return reporting_missing_kind(js, name, wire.descriptions_filter("*"), store_of, missing)


CHUNKS_AT_ONCE = 16
"""Maximum number of chunks that are sent before the stream has acknowledged them."""


class Putting:
    """Puts one object, in any number of attempts: the one that succeeds purges the chunks that earlier ones left.

    Args:
        store: name of the object store.
        info: name, description, headers and metadata; the target of a link; or the deletion.
        content: the object's content; None for a link or a deletion.
    """

    def __init__(self, store: str, info: wire.ObjectInfo, content: bytes | None) -> None:
        self._store = store
        self._stream = wire.stream_of_store(store)
        self._info = info
        self._content = content
        self._stale: set[str] = set()  # ids of chunks that belong to no object once this one is put

    def put(self, js: JetStream) -> None:
        """Put the object from its beginning; the deletion of an object that does not exist only purges stale chunks.

        It returns when the stream has acknowledged everything, and the chunks that were replaced are purged.

        Raises:
            InvalidRowError: the description is larger than the server or the store accepts.
            PublishError: the stream refuses the object.
            NatsError: the connection failed, or the store is missing or unavailable.
        """
        nuid = clock.token(11)  # 22 characters, like the NUIDs of other clients
        former = self._ask_former_and_note_state(js)
        if self._info.deleted and (former is None or former.deleted):
            self._purge_chunks(js, self._stale)  # an earlier attempt may have deleted the object, but not its chunks
            return
        from spark_nats.kinds.streams.write.partitions import can_rows_name_stream  # readers do without the write side

        room, whose = js.connection.info.max_payload or wire.CHUNK_BYTES, "the server's max_payload"
        if (most := self._state.max_message_size) is not None and most < room:
            room, whose = most, "the object store's max_msg_size"
        guard = {EXPECTED_STREAM: self._stream} if can_rows_name_stream(self._state) else {}
        header = encode_block(guard)
        size = max(1, min(wire.CHUNK_BYTES, room - len(header)))
        content = self._content or b""
        chunks = wire.chunks_of(content, size)
        digest = "" if self._content is None else wire.digest_of(content)
        described = replace(self._info, nuid=nuid, size=len(content), chunks=len(chunks), digest=digest)
        description = wire.encode_description(described, self._store, size)
        rollup = encode_block({**guard, ROLLUP: OF_SUBJECT})
        if (taken := len(rollup) + len(description)) > room:
            problem = f"its description and headers take {taken} bytes, and {whose} is {room}"
            raise InvalidRowError(conditions.OBJECT_UNFIT(name=self._info.name, problem=problem))
        self._stale.add(nuid)
        subject = wire.chunk_subject(self._store, nuid)
        try:
            for i in range(0, len(chunks), CHUNKS_AT_ONCE):
                self._publish_and_wait(js, [(subject, chunk, header) for chunk in chunks[i : i + CHUNKS_AT_ONCE]])
            self._publish_and_wait(js, [(wire.description_subject(self._store, self._info.name), description, rollup)])
        except PublishError:
            with contextlib.suppress(NatsError):
                self._purge_chunks(js, {nuid})
            raise
        self._stale.discard(nuid)
        self._purge_chunks(js, self._stale)

    def _purge_chunks(self, js: JetStream, nuids: Iterable[str]) -> None:
        """Purge chunks that belong to no object."""
        for nuid in sorted(nuids):
            js.request(Api.STREAM_PURGE, self._stream, body={"filter": wire.chunk_subject(self._store, nuid)})
            self._stale.discard(nuid)

    def _ask_former_and_note_state(self, js: JetStream) -> wire.ObjectInfo | None:
        """Return the stored description that this one is to replace, if there is one, and note its chunks."""
        with reporting_missing_store(js, self._store):
            subject = wire.description_subject(self._store, self._info.name)
            questions: list[Asked[Any]] = [MessageAt(self._stream, None, subject), StateOf(self._stream)]
            message, self._state = ask(js, questions)
        try:
            former = wire.parse_description(message.payload) if message else None
        except ValueError:
            return wire.ObjectInfo(self._info.name)  # an invalid description, which is replaced
        if former and former.nuid and former.chunks and not former.deleted and not former.link:
            self._stale.add(former.nuid)
        return former

    def _publish_and_wait(self, js: JetStream, messages: Sequence[tuple[str, bytes, bytes | None]]) -> None:
        """Publish messages, and wait until all are stored."""
        nobody = partial(conditions.OBJECT_STORE_UNAVAILABLE, store=self._store)
        if isinstance(refused := store_messages(js, self._stream, messages, nobody, self._state.domain), ApiError):
            code, err_code, reason = refused
            name = self._info.name
            said = conditions.OBJECT_REFUSED(store=self._store, name=name, reason=reason, code=code, err_code=err_code)
            if err_code in NOT_ENABLED | NOT_READY or code == TOO_MANY_REQUESTS:
                raise JetStreamError(said, description=reason, transient=Transient.ALWAYS)
            raise PublishError(said)
