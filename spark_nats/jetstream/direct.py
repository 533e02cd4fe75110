"""Reading a range of sequences by batched direct gets (ADR-31), which need no consumer and remove nothing.

That is how a work queue is read: it allows one consumer for each subject, and what that one acknowledges is gone.

A direct get is answered by any replica of the stream, or of a mirror of it, and by another one each time. So what it
says of the end is not believed, as :mod:`.reading` has it. Each message names the one before it in its batch, and the
end of a batch its last one: what a lost route has swallowed is asked for again. The server sends a batch without flow
control; one request is under way at a time, and asks for no more than the sockets hold.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from spark_nats.client.subscriptions import Subscription
from spark_nats.errors import JetStreamError, ProtocolError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.delivering import PATIENCE, Delivered, Opened, Restart
from spark_nats.jetstream.reading import RangeReader
from spark_nats.protocol.api import Api, encode_direct_get
from spark_nats.protocol.direct_gets import take_apart
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.statuses import BatchEnded, NobodyAnswers, RequestRefused, direct_event, parse_status

BATCH_MESSAGES = 8192
"""Messages asked for by one request. Each has about 250 bytes beside those that the server counts."""
BATCH_BYTES = 2 << 20
"""Bytes after which the server ends a batch."""
LONGEST_PATIENCE = 30.0
"""Most seconds to wait for the first answer to a request: a server may have to count what matches first."""


def allows_direct_gets(config: dict[str, object]) -> bool:
    """Tell whether a stream of this configuration can be read so."""
    return config.get("allow_direct") is True


class DirectReader(RangeReader):
    """Reads the messages with ``start <= sequence < end`` by direct gets, each exactly once and in order.

    Its arguments are those of :class:`~spark_nats.jetstream.reading.RangeReader`; there may be one filter at most.
    """

    def _begin(self, js: JetStream) -> Opened | None:
        info = self._planned_state(js)
        if info is None:
            return None
        if not allows_direct_gets(info.config):
            raise UnsupportedStreamError(
                f"stream {self._stream!r} does not allow direct gets any more; set allow_direct in its configuration"
            )
        if info.first_sequence > self.position:
            self._skip(min(info.first_sequence, self._end), info)
        gets = _Gets(js, self._stream, self._filters[0] if self._filters else None)
        return Opened(self._gotten(gets), gets.close)

    def _gotten(self, gets: _Gets) -> Iterator[Delivered]:
        """Yield what matches until the range ends or the replica that answers has no more."""
        js = gets.js
        patience = min(PATIENCE * 2.0 ** min(self._fruitless, 16), LONGEST_PATIENCE)
        gets.ask(self.position, self._end)
        held: list[Delivered] = []  # more than one while rows go slowly
        handed_on = self.position
        while self.position < self._end and gets.asked:
            try:
                arrived = js.connection.next(gets.inbox, patience)
                if arrived is None:
                    raise Restart(f"no answer for {patience:g} s")
                delivered, more = self._take(gets, arrived)
                if delivered is not None:
                    held.append(delivered)
                slowly = time.monotonic() < self._calm_until
                if more and not slowly and not self._leaves(js):
                    gets.ask(self.position, self._end)  # so that the server works while the messages are being used
            except BaseException:
                self._go_back(handed_on)
                raise
            if not (gets.asked and slowly):
                yield from held
                held.clear()
                handed_on = self.position
                if more and slowly and not self._leaves(js):
                    gets.ask(self.position, self._end)
        yield from held

    def _take(self, gets: _Gets, arrived: Messages) -> tuple[Delivered | None, bool]:
        """Check that no message is missing; return those of the range, and whether to ask for more."""
        messages, gotten, statuses = take_apart(arrived)
        count, inside, more = len(messages), 0, False
        if count:
            sequences, previous = gotten.stream_sequences(), gotten.previous
            if previous[0] != gets.last or (previous[1:] != sequences[:-1]).any():
                raise Restart(f"messages behind sequence {gets.last or self.position - 1} are missing")
            if sequences[0] < self.position or (sequences[1:] <= sequences[:-1]).any():
                raise ProtocolError(
                    f"stream {self._stream!r} was asked for what begins at sequence {self.position}, and sent {count} "
                    f"messages from {sequences[0]} to {sequences[-1]}"
                )
            gets.last = int(sequences[-1])
            inside = self._pass(gets.js, gotten, gets.last)
        for header in statuses:
            more = self._ends(gets, header)
        if inside < count:
            messages, gotten = messages.take(slice(inside)), gotten.head(inside)
        delivered = self._of_this_history(Delivered(messages, gotten))
        return delivered if len(delivered.messages) else None, more and self.position < self._end

    def _ends(self, gets: _Gets, header: bytes) -> bool:
        """Act on a status, with which every batch ends; return whether the replica has more."""
        status = parse_status(header)
        if status is None:
            raise ProtocolError(f"an answer to a direct get is not one: {header[:80]!r}")
        match direct_event(status):
            case BatchEnded(last, pending):
                if last != gets.last:
                    raise Restart(f"messages behind sequence {gets.last or self.position - 1} are missing")
                gets.asked, gets.last = False, 0
                return pending > 0
            case NobodyAnswers():
                raise Restart("no server answers direct gets")
            case RequestRefused(refused):
                raise JetStreamError(
                    f"reading stream {self._stream!r} failed: {refused.description} ({refused.code})", refused.code
                )


class _Gets:
    """Direct gets of one stream over one connection: their inbox, and what has come of the request under way."""

    def __init__(self, js: JetStream, stream: str, subject: str | None) -> None:
        self.js = js
        self.asked = False
        self.last = 0  # sequence of the last message of the batch that is under way
        self._subject = f"{js.prefix}.{Api.DIRECT_GET.about(stream)}"
        self._wanted = subject
        self.inbox: Subscription = js.connection.subscribe(js.connection.new_inbox())

    def ask(self, start: int, end: int) -> None:
        """Ask for what begins at ``start``; there are no more messages before ``end`` than sequences."""
        body = encode_direct_get(start, min(BATCH_MESSAGES, end - start), BATCH_BYTES, self._wanted)
        self.js.connection.publish(self._subject, body, self.inbox.subject)
        self.asked, self.last = True, 0

    def close(self) -> None:
        """Forget what is still to come."""
        if not self.js.connection.closed:
            self.js.connection.unsubscribe(self.inbox)
