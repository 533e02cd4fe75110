"""Delivers chunks by batched direct gets (ADR-31), which need no consumer and remove nothing.

A work queue is read this way, because it allows one consumer for each subject, and that consumer's acknowledgements
remove messages. A small range is read this way first, because it takes one round trip.

Any replica of the stream may answer a direct get, not always the same. So the reader does not believe what an answer
reports about the end (:mod:`.ranges`). A mirror of the stream answers too, with its own messages: it may lack what its
filter does not match, have other subjects, or still hold what the stream has removed. Each message names the stream
that answers, so the reader rejects a mirror's answer. Each message names the previous one of its batch, and the end of
a batch names its last one, so the reader requests again what a lost route has swallowed. The server sends a batch
without flow control; so one request is under way at a time, or several small ones, for no more than the sockets hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_nats.client.subscriptions import Subscription
from spark_nats.conditions.jetstream import READING_FAILED
from spark_nats.errors import JetStreamError, PermissionsError
from spark_nats.jetstream.api import JetStream, RefusalMemory, answered_by_another_error
from spark_nats.jetstream.reading import delivering
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Chunk, Delivered, Restart
from spark_nats.protocol import direct_gets
from spark_nats.protocol.api import Api
from spark_nats.protocol.headers import RequestRefused, parse_status

BATCH_MESSAGES = 8192  # messages per request. Each has about 250 bytes beside those that the server counts
BATCH_BYTES = 2 << 20  # bytes after which the server ends a batch
MAX_TOGETHER = 16  # ranges that :func:`request_ranges_together` requests, for a part of these bytes each
MAX_PATIENCE = 30.0
"""Maximum seconds to wait for an answer: before the first one, a server may have to count the matching messages."""
_refused = RefusalMemory()  # direct gets not permitted, not answered, or answered by a mirror or an old server


def may_use_direct_gets(js: JetStream, stream: str) -> bool:
    """Tell whether this process knows nothing against optional direct gets of a stream."""
    return not _refused.has(js, stream)


def request_ranges_together(js: JetStream, ranges: Sequence[tuple[str, int, int]]) -> list[DirectGets]:
    """Request up to :data:`MAX_TOGETHER` small ranges in one round trip: each a stream, a first sequence and an end.

    Returns:
        The direct gets whose answers arrive, in order; none if the user may not send all of them.

    Raises:
        NatsError: the connection failed.
    """
    found = [DirectGets(js, stream, None, 0, optional=True) for stream, _, _ in ranges]
    for gets, (_, start, end) in zip(found, ranges, strict=True):
        gets.request_more(Cursor.of(start, end), throttled=False, max_bytes=BATCH_BYTES // MAX_TOGETHER)
    is_permitted = True
    for _ in range(2 * len(found) + 1):  # each request and its inbox may be refused
        try:
            js.connection.flush()  # each refusal arrives before, and must not be taken for one of a later request
            break
        except PermissionsError:
            is_permitted = False
    if is_permitted:
        return found
    for gets in found:
        gets.close()
    return []


class DirectGets:
    """Direct gets of one stream over one connection, as a :class:`~.delivering.Source`.

    They return what matches the filter ``subject``, or all messages when it is None. The wait for an answer grows with
    ``empty_attempts``, the sources in a row that brought nothing. Where another way exists (``optional``), a missing
    permission or a server older than 2.11 is no error, but a :class:`Restart`.
    """

    idle = close_may_be_refused = False
    silence = 0.0

    def __init__(
        self, js: JetStream, stream: str, subject: str | None, empty_attempts: int, optional: bool = False
    ) -> None:
        self.exhausted = self.in_flight = False
        self._js = js
        self._stream = stream
        self._subject = f"{js.prefix}.{Api.DIRECT_GET.with_names(stream)}"
        self._filter = subject
        self._optional = optional
        self._patience = min(delivering.PATIENCE * 2.0 ** min(empty_attempts, 16), MAX_PATIENCE)
        self._start = 0  # first sequence of the batch that is under way
        self._last = 0  # sequence of the batch's last message so far; 0 before there is one
        self._stranger = ""  # another responder's answer, in words
        self._inbox: Subscription = js.connection.subscribe(js.connection.new_inbox(), later=True)

    def is_on_connection(self, js: JetStream) -> bool:
        """Tell whether the answers arrive over this connection."""
        return self._js.connection is js.connection

    def request_more(self, cursor: Cursor, throttled: bool, max_bytes: int | None = None) -> None:
        """Request what is still to arrive, unless a batch is under way: at most one message for each sequence."""
        most = int(min(BATCH_MESSAGES, cursor.wanted, cursor.end - cursor.received))
        if self.in_flight or self.exhausted or most <= 0:
            return
        body = direct_gets.encode_direct_get(cursor.received, most, max_bytes or BATCH_BYTES, self._filter)
        self._js.connection.publish(self._subject, body, self._inbox.subject)
        self.in_flight, self._start, self._last = True, cursor.received, 0

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None when what arrives is no message.

        It raises :class:`Restart` after silence, when messages are missing, or when direct gets are unavailable.
        """
        try:
            arrived = self._js.connection.next(self._inbox, self._patience)
        except PermissionsError as error:
            if not self._optional:
                raise
            raise self.note_unavailable_as_restart(error) from None
        if arrived is None:
            raise Restart(f"no answer for {self._patience:g} s{self._stranger}")
        messages, replies, others = direct_gets.separate_stored_messages(arrived)
        chunk = None
        if len(messages):
            if (other := replies.find_other_stream(self._stream)) is not None:
                why = f"stream {other!r}, a mirror, answers direct gets of {self._stream!r}"
                raise self.note_unavailable_as_restart(why) if self._optional else Restart(why)
            sequences, previous = replies.stream_sequences(), replies.previous
            if previous[0] != self._last or (previous[1:] != sequences[:-1]).any():
                raise self._missing_messages_error()
            chunk = Chunk(Delivered(messages, replies), int(sequences[0]), int(sequences[-1]))
            if (sequences[1:] <= sequences[:-1]).any():
                raise chunk.out_of_order_error(self._stream, self._start)
            self._last = chunk.last
        for header, payload in others:
            self._on_status(header, payload)
        return chunk

    def note_unavailable_as_restart(self, why: object) -> Restart:
        """Note that direct gets of the stream are unavailable, and return what to raise."""
        _refused.note(self._js, self._stream)
        return Restart(str(why))

    def _missing_messages_error(self) -> Restart:
        return Restart(f"messages after sequence {self._last or self._start - 1} are missing")

    def _on_status(self, header: bytes, payload: bytes) -> None:
        """Act on a status, which ends every batch.

        A message without a status is an older server's, or it is another responder's and the answer may still come.
        """
        status = parse_status(header)
        if status is None:
            if not direct_gets.is_unbatched_answer(header):
                self._stranger = f"; {answered_by_another_error(self._subject, payload)}"
                return
            why = "a server answers that is older than 2.11, and knows no batches"  # while a cluster is upgraded
            raise self.note_unavailable_as_restart(why) if self._optional else Restart(why)
        match direct_gets.interpret_direct_status(status):
            case direct_gets.BatchEnded(last, pending):
                if last != self._last:
                    raise self._missing_messages_error()
                self.in_flight, self._last, self.exhausted = False, 0, pending == 0
            case direct_gets.NobodyAnswers():
                raise self.note_unavailable_as_restart("no server answers direct gets")
            case RequestRefused(refused):
                failed = READING_FAILED(stream=self._stream, reason=refused.description, code=refused.code)
                raise JetStreamError(failed, refused.code)

    def close(self) -> None:
        """Stop listening for answers."""
        if not self._js.connection.closed:
            self._js.connection.unsubscribe(self._inbox, later=True)

    close_or_keep = close
