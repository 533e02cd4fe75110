"""Reading a range of sequences through ephemeral pull consumers (:mod:`.delivering`).

What a consumer says of the end is not believed, because its one replica may lag behind: a range ends with its last
message, or when the stream's leader says that nothing more of it exists; and a leader that knows less than the range
was planned from has to say so for a while (:mod:`.doubts`). Where deliveries skip sequences, the stream's first
sequence decides: behind it messages were deleted one by one, which is not a data loss; before it the stream's limits,
or a purge, have passed the reader, and that is reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from spark_nats.client.retrying import Retries
from spark_nats.errors import DataLossError, ProtocolError, StreamNotFoundError
from spark_nats.jetstream import delivering
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consumers import create_consumer
from spark_nats.jetstream.delivering import Delivered, DeliveryReader, Opened, PullConsumer, Restart
from spark_nats.jetstream.fingerprints import Fingerprint
from spark_nats.jetstream.searching import Search
from spark_nats.jetstream.streams import StreamInfo, stream_info
from spark_nats.protocol.bytecolumns import Positions
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import Gotten
from spark_nats.protocol.documents import text_of
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.subject_columns import SubjectMatcher

logger = logging.getLogger(__name__)

_JUDGE_INTERVAL = 0.1  # seconds between two looks at the stream where skipped sequences are normal
_MOST_GAPS_SHOWN = 5


def fail_on_loss(what: str) -> None:
    """Report messages that are gone as an error.

    Raises:
        DataLossError: always.
    """
    raise DataLossError(what)


def read_range(
    js: JetStream, stream: str, start: int, end: int, filters: Sequence[str] = (), *, retries: Retries | None = None
) -> Iterator[Delivered]:
    """Read the messages with ``start <= sequence < end`` that there are, each exactly once and in order.

    Args:
        js: where.
        stream: which stream.
        start: first sequence.
        end: sequence before which to stop; must not lie beyond the stream's next sequence.
        filters: only subjects that match one of these; all when empty.
        retries: as for :class:`RangeReader`.

    Raises:
        StreamNotFoundError: there is no such stream.
        DataLossError: messages of the range were removed by the stream's limits while it was read.
        JetStreamError: the server refuses the consumer, or has stopped delivering.
        NatsError: the connection failed.
    """
    return RangeReader(stream, start, end, filters, head_may_go=True, retries=retries).read(js)


class RangeReader(DeliveryReader):
    """Reads the messages with ``start <= sequence < end``, each exactly once and in order.

    Args:
        stream: which stream.
        start: first sequence.
        end: sequence before which to stop; must not lie beyond the stream's next sequence.
        filters: only subjects that match one of these; all when empty.
        headers_only: whether the server leaves the payloads out; each message then has its payload's size in bytes in
            the header ``Nats-Msg-Size``.
        created: when the stream was made, which tells it from a later one of its name; None for the one there is.
        head_may_go: whether messages that are removed before the first one was delivered are not a data loss, because
            the range begins with whatever there is.
        shared: whether no message that is removed is a data loss: others may acknowledge it, or it is of a KV bucket,
            where a later one takes its place. Then only that the stream is gone, or its end, is one.
        last: the last message of the range, or of what it is a part of, as it was when that was planned; None when it
            is not known. Another message in its place is one whose history is lost.
        others: whether that is known to be so: what was stored after ``last`` is then left out.
        lost: called with a sentence about messages of the range that are gone; when it returns, reading goes on.
        retries: how long to go on without progress; what does not work at once is an error when None.

    Attributes:
        position: everything before it has been handed on, or does not exist.
    """

    def __init__(
        self,
        stream: str,
        start: int,
        end: int,
        filters: Sequence[str] = (),
        *,
        headers_only: bool = False,
        created: str | None = None,
        head_may_go: bool = False,
        shared: bool = False,
        last: Fingerprint | None = None,
        others: bool = False,
        lost: Callable[[str], None] = fail_on_loss,
        retries: Retries | None = None,
    ) -> None:
        super().__init__(stream, start, filters, created, retries)
        self._end = end
        self._matcher = SubjectMatcher(self._filters) if filters else None
        self._search = Search(bool(filters))
        self._headers_only = headers_only
        self._head_may_go = self._head_may_have_gone = head_may_go
        self._shared = shared
        self._last = last
        self._others = others
        self._lost = lost
        self._head_ended = start  # where the first message was handed on
        self._gaps: list[tuple[Positions, Positions]] = []  # skipped sequences that were not judged yet
        self._judged = 0.0

    def _at_end(self) -> bool:
        return self.position >= self._end

    def _before_what(self) -> str:
        return f", before {self._end}"

    def _open(self, js: JetStream) -> Opened | None:
        try:
            return self._begin(js)
        except StreamNotFoundError:
            if self._created is None:
                raise
            self._doubts.confirm(js, self._stream, f"the stream {self._stream!r} does not exist")
            self._lose_the_rest("was deleted")
            return None

    def _begin(self, js: JetStream) -> Opened | None:
        """Make a consumer that belongs to the stream."""
        filters = self._filters if self._search.by_server else ()
        made = create_consumer(js, self._stream, self.position, filters, headers_only=self._headers_only)
        consumer = self._use(js, made)
        try:
            info = self._planned_state(js)  # after it: so the consumer is known to be this stream's
            if info is None:
                consumer.close()
                return None
            if made.begins < self.position:
                raise Restart("its replica lags behind the stream's leader")
            if made.begins > self.position:
                if self._next(js, made.begins, (">",)) is not None:
                    raise Restart("its replica lacks what the stream's leader has")
                self._skip(min(made.begins, self._end), info)
            if self._search.by_server:
                self._search.begin(made.pending / max(1, info.messages_from(self.position)), info.average_size)
                if not self._search.by_server:
                    consumer.close()
                    return self._begin(js)
            if self._filters:
                side = "the server searches" if self._search.by_server else "all is sent and searched here"
                logger.debug("stream %s, sequences %d to %d: %s", self._stream, self.position, self._end - 1, side)
            consumer.exhausted = made.pending == 0
        except BaseException:
            consumer.close()
            raise
        return self._opened(consumer)

    def _planned_state(self, js: JetStream) -> StreamInfo | None:
        """Return the state of the stream that was planned; None when nothing of the range is left in it."""
        info = self._state(js)
        if info.created != self._created:
            self._lose_the_rest(f"was deleted and made again at {info.created}")
        return info if self.position < self._end else None

    def _go_back(self, position: int) -> None:
        super()._go_back(position)
        self._head_may_go |= self._head_may_have_gone and position <= self._head_ended
        self._gaps = [(a[a < position], b[a < position]) for a, b in self._gaps]

    def _change(self, seconds: float, passed: int) -> bool:
        return self._search.change(seconds, passed, self._end - self.position)

    def _wanted(self, requested: int) -> int:
        if self._filters and self._search.by_server:
            return delivering.PULL_MESSAGES
        return self._end - self.position - requested

    def _accept(self, consumer: PullConsumer, messages: Messages) -> Delivered | None:
        """Cut off what lies behind the range, and leave out what does not match."""
        deliveries = self._count(consumer, messages)
        count = len(messages)
        first, last = deliveries.at(0), deliveries.at(count - 1)
        if first.stream_sequence < self.position or last.stream_sequence < first.stream_sequence + count - 1:
            raise ProtocolError(
                f"stream {self._stream!r} was asked for what begins at sequence {self.position}, and sent {count} "
                f"messages from {first.stream_sequence} to {last.stream_sequence}"
            )
        consumer.exhausted = last.pending == 0
        inside = self._pass(consumer.js, deliveries, last.stream_sequence)
        if inside < count:
            messages, deliveries = messages.take(slice(inside)), deliveries.head(inside)
        delivered = self._of_this_history(Delivered(messages, deliveries))
        if self._matcher is not None and not self._search.by_server and len(delivered.messages):
            messages = delivered.messages
            chosen = self._matcher.match(messages.gather(messages.subject))
            if not chosen.all():
                delivered = Delivered(messages.take(chosen), delivered.deliveries.take(chosen))
        return delivered if len(delivered.messages) else None

    def _pass(self, js: JetStream, deliveries: Deliveries | Gotten, last: int) -> int:
        """Move the position behind deliveries, the last of which is ``last``; return how many are in the range."""
        count = len(deliveries)
        if last - self.position != count - 1:  # some were skipped
            sequences = deliveries.stream_sequences()
            inside = int(np.searchsorted(sequences, self._end))
            before = np.concatenate([[self.position - 1], sequences[:inside]])
            after = np.concatenate([sequences[:inside], [self._end if inside < count else last + 1]])
            skipped = np.flatnonzero(after - before > 1)
            self._gaps.append((before[skipped] + 1, after[skipped]))
            self._look_at_gaps(js)
        else:
            inside = min(count, self._end - self.position)
        if inside and self._head_may_go:
            self._head_may_go = False
            self._head_ended = self.position
        self.position = min(last + 1, self._end)
        return inside

    def _of_this_history(self, delivered: Delivered) -> Delivered:
        """Return the messages that are of the history of which the range was planned."""
        messages, deliveries = delivered
        if self._last is None or not len(messages):
            return delivered
        if not self._others and self.position == self._last.sequence + 1:
            sequence, time = deliveries.last()
            if sequence == self._last.sequence and time != self._last.time:
                self._others = True
                self._lost(
                    f"stream {self._stream!r} has lost its end, and other messages have its sequences (was it restored "
                    f"from an old backup?): sequence {self._last.sequence}, which is about to be read, was stored at "
                    f"{text_of(self._last.time)} when that was planned, and at {text_of(time)} now"
                )
        if not self._others:
            return delivered
        chosen = deliveries.timestamps() <= self._last.time
        return Delivered(messages.take(chosen), deliveries.take(chosen))

    # What is not there

    def _look_at_gaps(self, js: JetStream) -> None:
        """Judge gaps; not at once where the server leaves out what does not match, so that there are always some.

        Where it leaves out nothing, and the stream's leader has no gaps, the consumer's replica lacks messages.
        """
        left_out = bool(self._filters) and self._search.by_server
        if (left_out or self._shared) and time.monotonic() - self._judged < _JUDGE_INTERVAL:
            return
        info = self._state(js)
        if not left_out and not info.deleted and self._gaps[-1][1][-1] > info.first_sequence:
            self._gaps.pop()
            raise Restart("its replica lacks what the stream's leader has")
        self._judge(info)

    def _nothing_left(self, consumer: PullConsumer, silence: float) -> bool:
        js = consumer.js
        if self._state(js).first_sequence > self.position:
            raise Restart("the stream's limits, or a purge, have removed what it was to deliver")
        if silence < delivering.HEARTBEAT:
            return False
        left = self._next(js, self._end) is not None
        if left and silence > 2 * delivering.HEARTBEAT:
            raise Restart(f"nothing but heartbeats for {silence:.0f} s, but the stream's leader has messages")
        return not left

    def _state(self, js: JetStream) -> StreamInfo:
        """Return the stream's state; the range is cut off where its end does not exist any more."""
        info = stream_info(js, self._stream)
        self._created = self._created or info.created
        end = info.last_sequence + 1
        if info.created == self._created and end < self._end:
            what = f"stream {self._stream!r} ends at sequence {info.last_sequence}"
            self._doubts.confirm(js, self._stream, f"{what}, before {self._end - 1}")
            gone, self._end = self._end, max(end, self.position)
            self._lost(
                f"{what}; {_listed(np.array([self._end]), np.array([gone]))}, which were about to be read, do not "
                "exist (was it restored from an old backup?)"
            )
        self._doubts.settle(self._stream)
        return info

    def _ended(self, js: JetStream) -> bool:
        """Tell whether the range is read, when a consumer has no more; if not, move to the next message that exists."""
        if self.position < self._end:
            following = self._next(js, self._end)
            info = self._state(js)
            exists = self._end > max(self.position, info.first_sequence) and not info.deleted and not self._filters
            if following is None and exists:  # a leader that was stopped for a while does not know it yet
                raise Restart("one server says that there is nothing more, and another one that there is")
            self._skip(self._end if following is None else following, info)
        elif self._gaps:
            self._judge(self._state(js))
        return self.position >= self._end

    def _skip(self, to: int, info: StreamInfo) -> None:
        """Move the position past sequences that the stream's leader does not have."""
        self._gaps.append((np.array([self.position]), np.array([to])))
        self._judge(info)
        self.position = to

    def _judge(self, info: StreamInfo) -> None:
        """Tell gaps in which messages were deleted one by one from those that the stream's limits have made."""
        self._judged = time.monotonic()
        starts, ends = (np.concatenate(each) for each in zip(*self._gaps, strict=True))
        self._gaps.clear()
        if info.created != self._created:
            raise Restart("the stream was deleted and made again")
        gone = (starts < info.first_sequence) & (not self._shared)
        starts, ends = starts[gone], np.minimum(ends[gone], info.first_sequence)
        if self._head_may_go and len(starts) and starts[0] == self.position:
            logger.warning(
                "stream %s: %s were removed before the first message was read; the read begins behind them",
                self._stream,
                _listed(starts[:1], ends[:1]),
            )
            starts, ends = starts[1:], ends[1:]
        if len(starts):
            self._lost(
                f"stream {self._stream!r} now begins at sequence {info.first_sequence}; {_listed(starts, ends)}, which "
                "were about to be read, are gone (purged, or removed by the stream's limits)"
            )

    def _lose_the_rest(self, how: str) -> None:
        start, self.position = self.position, self._end
        self._lost(
            f"the stream {self._stream!r} {how}; {_listed(np.array([start]), np.array([self._end]))}, which were about "
            "to be read, are gone"
        )


def _listed(starts: Positions, ends: Positions) -> str:
    """Name ranges of sequences, each without its end."""
    shown = [
        f"{start} to {end - 1}" if end - start > 1 else str(start)
        for start, end in zip(starts[:_MOST_GAPS_SHOWN].tolist(), ends[:_MOST_GAPS_SHOWN].tolist(), strict=True)
    ]
    one = len(starts) == 1 and ends[0] - starts[0] == 1
    text = (
        ("sequence " if one else "sequences ") + (", ".join(shown[:-1]) + " and " if len(shown) > 1 else "") + shown[-1]
    )
    if len(starts) > _MOST_GAPS_SHOWN:
        text += f" and {len(starts) - _MOST_GAPS_SHOWN} more gaps, {int((ends - starts).sum())} sequences in all"
    return text
