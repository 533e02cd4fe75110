"""Reading object stores: which objects exist, their descriptions, and their content.

This module requests lists and descriptions from the stream's leader, without a consumer. The description of an object
that is replaced during the read moves to the stream's end, and a request by its subject finds it wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from spark_nats.client.retrying import Retries
from spark_nats.conditions import ConditionText
from spark_nats.errors import JetStreamError, ProtocolError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.listing import naming_its_kind, subjects_of, warn_of_replaced
from spark_nats.jetstream.messages import MessageAt, ask
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import Range, RangeReader
from spark_nats.jetstream.views import stream_info
from spark_nats.kinds.objects import conditions, wire
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


def list_objects(js: JetStream, store: str) -> list[str]:
    """Return the subjects of the descriptions in a store, those of deleted objects included.

    Raises:
        StreamNotFoundError: there is no such store.
        NatsError: the request failed.
    """
    stream = wire.stream_of_store(store)
    with naming_store(js, store):
        subjects = list(subjects_of(js, stream, wire.descriptions(store)))
    warn_of_replaced(stream, subjects, "objects that are described on them are left out")
    return subjects


def describe_objects(js: JetStream, store: str, subjects: Sequence[str]) -> list[StoredObject]:
    """Return the objects that are described on some subjects, without deleted or missing ones, in one round trip.

    Raises:
        ProtocolError: a description is invalid.
        StreamNotFoundError: there is no such store.
        NatsError: the request failed.
    """
    with naming_store(js, store):
        found = ask(js, [MessageAt(wire.stream_of_store(store), None, subject) for subject in subjects])
    described = [
        described_by(store, subject, message.payload, message.time, message.sequence)
        for subject, message in zip(subjects, found, strict=True)
        if message
    ]
    return [each for each in described if not each.info.deleted]


def described_by(store: str, subject: str, payload: bytes, time: int, sequence: int) -> StoredObject:
    """Return the object that a message describes.

    Raises:
        ProtocolError: the message describes no object.
    """
    try:
        return StoredObject(store, subject, wire.read_description(payload), time, sequence)
    except ValueError as error:
        said = conditions.OBJECT_NOT_DESCRIBED(name=wire.name_of(subject), store=store, reason=error)
        raise ProtocolError(said) from None


def read_content(
    js: JetStream,
    found: StoredObject,
    check: Callable[[StoredObject], None],
    lost: Callable[[ConditionText], None],
    retries: Retries | None = None,
    again: bool = True,
) -> tuple[StoredObject, bytes | None] | None:
    """Return an object and its content; the content of a link is that of its target.

    An object that is replaced while it is read is read again.

    Args:
        js: the JetStream API to ask.
        found: the object.
        check: called with each object before its content is read; it raises an error if the content is too large.
        lost: called with a sentence about why there is no content; it may raise an error.
        retries: as for :class:`~spark_nats.jetstream.reading.ranges.RangeReader`.
        again: whether to read the object that has replaced this one.

    Returns:
        The object as it was read, with its content. The content is None for a link to a whole store, and after a loss.
        None instead of both when the object was deleted meanwhile, or replaced and is not read again.

    Raises:
        JetStreamError: the object was replaced :data:`MAX_TIMES` times.
        NatsError: the connection failed, or the store no longer exists.
    """
    now = found
    for _ in range(MAX_TIMES):
        target = _target(js, now)
        if not isinstance(target, StoredObject):
            if target:
                lost(conditions.LINK_BROKEN(name=now.info.name, store=now.store, reason=target))
            return now, None
        check(target)
        content = _content(js, target, retries)
        if isinstance(content, bytes):
            return now, content
        seen = _described_now(js, target)
        if seen is not None and seen.info == target.info:
            lost(conditions.OBJECT_DAMAGED(name=target.info.name, store=target.store, reason=content))
            return now, None
        latest = _described_now(js, now) if again else None
        if latest is None:
            return None
        now = latest
    raise JetStreamError(conditions.OBJECT_MOVES_ON(name=now.info.name, store=now.store, times=MAX_TIMES))


def read_version(
    js: JetStream,
    found: StoredObject,
    check: Callable[[StoredObject], None],
    lost: Callable[[ConditionText], None],
    retries: Retries | None = None,
) -> tuple[StoredObject, bytes | None]:
    """Return an object with the content of this description, which may have been replaced since.

    The arguments and the errors are those of :func:`read_content`.

    Returns:
        The object and its content; the content of a link is that of its target now. The content is None when another
        version has replaced it, for a deleted object, for a link to a whole store, and after a loss.
    """
    if found.info.deleted:
        return found, None
    read = read_content(js, found, check, lost, retries, again=found.info.link is not None)
    return (found, None) if read is None or read[0].sequence != found.sequence else read


def _described_now(js: JetStream, found: StoredObject) -> StoredObject | None:
    """Return the object as it is described now; None when it is deleted or missing."""
    return next(iter(describe_objects(js, found.store, [found.subject])), None)


def _target(js: JetStream, found: StoredObject) -> StoredObject | str:
    """Return the object at the end of an object's links, or why there is none; empty for a link to a whole store."""
    for _ in range(MAX_HOPS + 1):
        if found.info.link is None:
            return found
        store, name = found.info.link
        if name is None:
            return ""
        try:
            after = describe_objects(js, store, [wire.description_subject(store, name)])
        except (StreamNotFoundError, ValueError) as error:
            return str(error)
        if not after:
            return f"the object store {store!r} has no object {name!r}"
        found = after[0]
    return f"{MAX_HOPS} links lead to yet another one"


def _content(js: JetStream, found: StoredObject, retries: Retries | None) -> bytes | str:
    """Return the content of an object, or what is wrong with it."""
    info, chunks, size = found.info, list[bytes](), 0
    if info.chunks:
        stream = stream_info(js, wire.stream_of_store(found.store))
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
    if info.digest and not wire.same_digest(info.digest, actual := wire.digest_of(content)):
        return f"its digest is {actual}, and should be {info.digest}"
    return content


def naming_store(js: JetStream, name: str) -> AbstractContextManager[None]:
    """Report a missing stream as this missing store, and suggest an object store with a similar name."""
    missing = partial(conditions.OBJECT_STORE_NOT_FOUND, store=name)
    return naming_its_kind(js, name, wire.descriptions("*"), store_of, missing)
