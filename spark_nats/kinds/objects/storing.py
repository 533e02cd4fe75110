"""Putting objects (ADR-20): first the chunks, then their description, and finally a purge of the former chunks.

A link and a deletion have no chunks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spark_nats import clock
from spark_nats.conditions import Transient
from spark_nats.errors import InvalidRowError, JetStreamError, NatsError, PublishError
from spark_nats.jetstream.api import JetStream, store_messages
from spark_nats.jetstream.messages import Asked, MessageAt, ask
from spark_nats.jetstream.views import StateOf
from spark_nats.kinds.objects import wire
from spark_nats.kinds.objects.conditions import OBJECT_REFUSED, OBJECT_STORE_UNAVAILABLE, OBJECT_UNFIT
from spark_nats.kinds.objects.reading import naming_store
from spark_nats.kinds.streams.write.partitions import names_its_stream
from spark_nats.protocol.api import NOT_ENABLED, NOT_READY, Api, ApiError
from spark_nats.protocol.headers import EXPECTED_STREAM, OF_SUBJECT, ROLLUP, TOO_MANY_REQUESTS, encode_block

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
        former = self._former(js)
        if self._info.deleted and (former is None or former.deleted):
            self._purge(js, self._stale)  # an earlier attempt may have deleted the object, but not its chunks
            return
        room, whose = js.connection.info.max_payload or wire.CHUNK_BYTES, "the server's max_payload"
        if (most := self._state.max_message_size) is not None and most < room:
            room, whose = most, "the object store's max_msg_size"
        guard = {EXPECTED_STREAM: self._stream} if names_its_stream(self._state, js.connection) else {}
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
            raise InvalidRowError(OBJECT_UNFIT(name=self._info.name, problem=problem))
        self._stale.add(nuid)
        subject = wire.chunk_subject(self._store, nuid)
        try:
            for i in range(0, len(chunks), CHUNKS_AT_ONCE):
                self._publish(js, [(subject, chunk, header) for chunk in chunks[i : i + CHUNKS_AT_ONCE]])
            self._publish(js, [(wire.description_subject(self._store, self._info.name), description, rollup)])
        except PublishError:
            with contextlib.suppress(NatsError):
                self._purge(js, {nuid})
            raise
        self._stale.discard(nuid)
        self._purge(js, self._stale)

    def _purge(self, js: JetStream, nuids: Iterable[str]) -> None:
        """Purge chunks that belong to no object."""
        for nuid in sorted(nuids):
            js.request(Api.STREAM_PURGE, self._stream, body={"filter": wire.chunk_subject(self._store, nuid)})
            self._stale.discard(nuid)

    def _former(self, js: JetStream) -> wire.ObjectInfo | None:
        """Return the stored description that this one is to replace, if there is one, and note its chunks."""
        with naming_store(js, self._store):
            subject = wire.description_subject(self._store, self._info.name)
            questions: list[Asked[Any]] = [MessageAt(self._stream, None, subject), StateOf(self._stream)]
            message, self._state = ask(js, questions)
        try:
            former = wire.read_description(message.payload) if message else None
        except ValueError:
            return wire.ObjectInfo(self._info.name)  # an invalid description, which is replaced
        if former and former.nuid and former.chunks and not former.deleted and not former.link:
            self._stale.add(former.nuid)
        return former

    def _publish(self, js: JetStream, messages: Sequence[tuple[str, bytes, bytes | None]]) -> None:
        """Publish messages, and wait until all are stored."""
        nobody = partial(OBJECT_STORE_UNAVAILABLE, store=self._store)
        if isinstance(refused := store_messages(js, self._stream, messages, nobody, self._state.domain), ApiError):
            code, err_code, reason = refused
            name = self._info.name
            said = OBJECT_REFUSED(store=self._store, name=name, reason=reason, code=code, err_code=err_code)
            if err_code in NOT_ENABLED | NOT_READY or code == TOO_MANY_REQUESTS:
                raise JetStreamError(said, description=reason, transient=Transient.ALWAYS)
            raise PublishError(said)
