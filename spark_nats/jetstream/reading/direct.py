"""Chunks that batched direct gets bring (ADR-31), which need no consumer and remove nothing.

That is how a work queue is read: it allows one consumer for each subject, and what that one acknowledges is gone. And
that is how a small range is read first, since it takes one round trip.

A direct get is answered by any replica of the stream, and by another one each time. So what it says of the end is not
believed, as :mod:`.ranges` has it. A mirror of the stream answers too, with what it has: it may leave out what its
filter does not match, have other subjects, or still have what the stream has removed. Each message names the stream
that answers, so what a mirror says is not taken. Each message names the one before it in its batch, and the
end of a batch its last one: what a lost route has swallowed is asked for again. The server sends a batch without flow
control; one request is under way at a time, and asks for no more than the sockets hold.
"""

from __future__ import annotations

from spark_nats.client.subscriptions import Subscription
from spark_nats.conditions.jetstream import DIRECT_GET_INVALID, READING_FAILED
from spark_nats.errors import JetStreamError, PermissionsError, ProtocolError
from spark_nats.jetstream.api import JetStream, RefusalMemory, answered_by_another
from spark_nats.jetstream.reading import delivering
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Chunk, Delivered, Restart
from spark_nats.protocol.api import Api, encode_direct_get
from spark_nats.protocol.direct_gets import is_single, take_apart
from spark_nats.protocol.statuses import BatchEnded, NobodyAnswers, RequestRefused, direct_event, parse_status

BATCH_MESSAGES = 8192  # messages asked for by one request. Each has about 250 bytes beside those that the server counts
BATCH_BYTES = 2 << 20  # bytes after which the server ends a batch
MAX_PATIENCE = 30.0
"""Most seconds to wait for the first answer to a request: a server may have to count what matches first."""
_refused = RefusalMemory()  # direct gets that were not answered, or not permitted


def are_available(js: JetStream, stream: str) -> bool:
    """Tell whether nothing is known against direct gets of a stream, in this process, where there is another way."""
    return not _refused.holds(js, stream)


class DirectGets:
    """Direct gets of one stream over one connection, as a :class:`~.delivering.Source`.

    They are of what matches a filter, if there is one. After ``empty_attempts`` sources in a row this one waits longer.
    ``optional`` where there is another way: then it is no error that they are not permitted.
    """

    idle = close_may_be_refused = False
    silence = 0.0

    def __init__(
        self, js: JetStream, stream: str, subject: str | None, empty_attempts: int, optional: bool = False
    ) -> None:
        self.exhausted = self.in_flight = False
        self._js = js
        self._stream = stream
        self._subject = f"{js.prefix}.{Api.DIRECT_GET.about(stream)}"
        self._filter = subject
        self._optional = optional
        self._patience = min(delivering.PATIENCE * 2.0 ** min(empty_attempts, 16), MAX_PATIENCE)
        self._start = 0  # of the batch that is under way
        self._last = 0  # sequence of its last message; 0 before it
        self._stranger = ""  # what somebody else has answered, in words
        self._inbox: Subscription = js.connection.subscribe(js.connection.new_inbox(), later=True)

    def ask(self, cursor: Cursor, throttled: bool) -> None:
        """Ask for what is still to arrive, unless a batch is under way; there are no more messages than sequences."""
        most = int(min(BATCH_MESSAGES, cursor.wanted, cursor.end - cursor.received))
        if self.in_flight or self.exhausted or most <= 0:
            return
        body = encode_direct_get(cursor.received, most, BATCH_BYTES, self._filter)
        self._js.connection.publish(self._subject, body, self._inbox.subject)
        self.in_flight, self._start, self._last = True, cursor.received, 0

    def receive(self) -> Chunk | None:
        """Wait for what arrives next; None when it is no message. That nothing comes is a :class:`Restart`."""
        try:
            arrived = self._js.connection.next(self._inbox, self._patience)
        except PermissionsError as error:
            if not self._optional:
                raise
            raise self.unavailable(error) from None
        if arrived is None:
            raise Restart(f"no answer for {self._patience:g} s{self._stranger}")
        messages, gotten, others = take_apart(arrived)
        chunk = None
        if len(messages):
            if (other := gotten.other_stream(self._stream)) is not None:
                why = f"stream {other!r}, a mirror, answers direct gets of {self._stream!r}"
                raise self.unavailable(why) if self._optional else Restart(why)
            sequences, previous = gotten.stream_sequences(), gotten.previous
            if previous[0] != self._last or (previous[1:] != sequences[:-1]).any():
                raise self._missing()
            chunk = Chunk(Delivered(messages, gotten), int(sequences[0]), int(sequences[-1]))
            if (sequences[1:] <= sequences[:-1]).any():
                raise chunk.out_of_order(self._stream, self._start)
            self._last = chunk.last
        for header, payload in others:
            self._on_status(header, payload)
        return chunk

    def unavailable(self, why: object) -> Restart:
        """Note that there are none here for a while, and return what to raise."""
        _refused.note(self._js, self._stream)
        return Restart(str(why))

    def _missing(self) -> Restart:
        return Restart(f"messages behind sequence {self._last or self._start - 1} are missing")

    def _on_status(self, header: bytes, payload: bytes) -> None:
        """Act on a status, with which every batch ends; what is none says nothing, unless an older server has sent it.

        Whoever else has answered, the server's answer may still come.
        """
        status = parse_status(header)
        if status is None:
            if not is_single(header):
                self._stranger = f"; {answered_by_another(self._subject, payload)}"
                return
            if self._optional:  # while a cluster is upgraded
                raise self.unavailable("a server answers that is older than 2.11, and knows no batches")
            raise ProtocolError(DIRECT_GET_INVALID(header=header[:80]))
        match direct_event(status):
            case BatchEnded(last, pending):
                if last != self._last:
                    raise self._missing()
                self.in_flight, self._last, self.exhausted = False, 0, pending == 0
            case NobodyAnswers():
                raise self.unavailable("no server answers direct gets")
            case RequestRefused(refused):
                failed = READING_FAILED(stream=self._stream, reason=refused.description, code=refused.code)
                raise JetStreamError(failed, refused.code)

    def close(self) -> None:
        """Forget what is still to come."""
        if not self._js.connection.closed:
            self._js.connection.unsubscribe(self._inbox, later=True)

    finish = close
