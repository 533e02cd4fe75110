"""Reading a range of sequences through ephemeral pull consumers.

The server sends what was asked for and no more: pull requests are bounded in messages and in bytes, and never more is
in flight than the socket can hold, since the server closes connections that cannot keep up. The consumer counts its
deliveries, so a missing one is noticed: then, and when it falls silent, a new consumer goes on behind the last message
that arrived. Nothing is acknowledged and nothing is left behind: a range can be read again any number of times.

What a consumer says of the end is not believed, because its one replica may lag behind: a range ends with its last
message, or when the stream's leader says that nothing more of it exists; and a leader that knows less than the range
was planned from has to say so for a while (:mod:`.doubts`). Where deliveries skip sequences, the stream's first
sequence decides: behind it messages were deleted one by one, which is not a data loss; before it the stream's limits,
or a purge, have passed the reader, and that is reported.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import Retries, may_pass
from spark_nats.client.subscriptions import Subscription
from spark_nats.errors import (
    DataLossError,
    JetStreamError,
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    ProtocolError,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consumers import create_consumer, delete_consumer
from spark_nats.jetstream.doubts import Doubts
from spark_nats.jetstream.pulling import PullRequests, sizes_of
from spark_nats.jetstream.searching import Search
from spark_nats.jetstream.streams import StreamInfo, next_sequence, stream_info
from spark_nats.protocol.api import Api, encode_pull
from spark_nats.protocol.bytecolumns import Positions
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import Gotten
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.statuses import (
    CONFLICT,
    NO_RESPONDERS,
    BatchTooLarge,
    ConsumerGone,
    Heartbeat,
    RequestEnded,
    RequestRefused,
    RequestsForgotten,
    parse_status,
    pull_event,
)
from spark_nats.protocol.subject_columns import SubjectMatcher

logger = logging.getLogger(__name__)

PULL_MESSAGES = 16384
"""Messages asked for by one pull request."""
PULL_BYTES = 2 << 20
"""Bytes allowed to one pull request; raised for a stream with larger messages. Two requests are in flight, which is
what the two socket buffers of a connection hold by Linux's defaults."""
HEADROOM = 64 << 10
"""Bytes of a pull request for what a message takes beside payload and headers, which are ``max_payload`` at most."""
HEARTBEAT = 5.0
"""Seconds after which the server sends a sign of life when it has nothing to send."""
PULL_EXPIRES = 30.0
"""Seconds that a pull request lives."""
PATIENCE = 0.5
"""Seconds without a message after which the stream is looked at, and the server is asked again, in case it takes a
request for fulfilled."""
SLOW = 2.0
"""Seconds for which a batch of rows may be taken before nothing more is left in flight meanwhile: a server closes a
connection that does not take its bytes for ten."""
CALM = 30.0
"""Seconds without such a slow batch after which the server works ahead again."""
_CALM_EXPIRES = 1.0  # seconds that a pull request lives while rows are taken slowly
_JUDGE_INTERVAL = 0.1  # seconds between two looks at the stream where skipped sequences are normal
_REFUSALS = 2  # errors of the API in a row after which another server is to be asked: this one may be cut off
_LAST_WORD = 1.0  # seconds for a server to say that a consumer may not be deleted
_ONCE = RetryOptions(timeout=0.0, wait=0.0, jitter=0.0, attempts=None)
_LARGEST_PULL_BYTES = 128 << 20
_MOST_GAPS_SHOWN = 5


class Delivered(NamedTuple):
    """A batch of messages of a stream, in sequence order, and their metadata row by row."""

    messages: Messages
    deliveries: Deliveries | Gotten


class Restart(Exception):  # noqa: N818 - it never leaves a reader
    """What a range is read through is of no more use; another one has to go on."""


class Opened(NamedTuple):
    """What a range is read through over one connection.

    Attributes:
        deliveries: what it brings, until the range ends or its replica has no more.
        close: gives it up.
    """

    deliveries: Iterator[Delivered]
    close: Callable[[], None]


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


class RangeReader:
    """Reads the messages with ``start <= sequence < end``, each exactly once and in order.

    A consumer that leaves something out, falls silent or is gone is followed by another one behind the last message
    that was handed on (ADR-17): at once where there was progress, or the first time that there was none, else in the
    rhythm of ``retries``, as one that cannot be made. When a connection is lost, :meth:`read` goes on over another one.

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
        shared: whether no message that is removed is a data loss, because others may acknowledge it.
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
        lost: Callable[[str], None] = fail_on_loss,
        retries: Retries | None = None,
    ) -> None:
        self.position = start
        self._stream = stream
        self._end = end
        self._filters = tuple(filters)
        self._matcher = SubjectMatcher(self._filters) if filters else None
        self._search = Search(bool(filters))
        self._headers_only = headers_only
        self._created = created
        self._head_may_go = head_may_go
        self._shared = shared
        self._lost = lost
        self._retries = retries or Retries(_ONCE, f"reading {stream}", known=False)
        self._doubts = Doubts(self._retries.timeout)
        self._fruitless = 0  # consumers in a row that have brought nothing
        self._refusals = 0  # errors of the API in a row
        self._gaps: list[tuple[Positions, Positions]] = []  # skipped sequences that were not judged yet
        self._judged = 0.0
        self._calm_until = 0.0
        self._max_bytes = 0

    def read(self, js: JetStream) -> Iterator[Delivered]:
        """Read on over a connection.

        Raises:
            StreamNotFoundError: there is no such stream, and it is not known that there was.
            JetStreamUnavailableError: JetStream does not answer there, or was not ready several times; it may be at
                another server.
            JetStreamError: the server refuses the consumer, or has stopped delivering, and that does not pass or has
                not passed in time.
            NatsTimeoutError: the server does not answer at all.
            NatsConnectionError: the connection was lost, or its server is shutting down.
            NatsError: the server has reported an error.
        """
        while self.position < self._end:
            if self._leaves(js):
                raise NatsConnectionError(f"{js.connection.server} is shutting down (lame duck mode)")
            opened: Opened | None = None
            before = self.position
            trouble: Restart | NatsTimeoutError | JetStreamError | None = None
            try:
                opened = self._open(js)
                if opened is not None:
                    for delivered in opened.deliveries:
                        self._retries.succeeded()
                        handed = time.monotonic()
                        yield delivered
                        now = time.monotonic()
                        if now - handed > SLOW:
                            self._calm_until = now + CALM
                    if not (self._leaves(js) or self._ended(js)):
                        raise Restart("its replica has no more messages, but the stream's leader has")
            except (Restart, NatsTimeoutError, JetStreamError) as error:
                trouble = error
            finally:
                if opened is not None:
                    opened.close()
            if trouble is not None:
                self._recover(js, trouble, self.position > before)
        self._retries.succeeded()
        with contextlib.suppress(NatsConnectionError, NatsTimeoutError):  # of no more concern
            js.connection.flush(_LAST_WORD)

    def _leaves(self, js: JetStream) -> bool:
        """Tell whether the rest has to be read elsewhere, because the server is shutting down (lame duck mode)."""
        return js.connection.retiring and self.position < self._end

    def _recover(self, js: JetStream, trouble: Restart | NatsTimeoutError | JetStreamError, progress: bool) -> None:
        """Get ready for another consumer: wait, where the last ones have brought nothing.

        Raises:
            NatsError: it does not pass, or has not passed in time.
        """
        if isinstance(trouble, NatsTimeoutError):
            if js.connection.closed:
                raise trouble
            js.connection.flush()  # a server that does not answer this either is left
        # Whoever takes rows slowly finds its consumer deleted, which is normal.
        logger.info(
            "stream %s: what reads it is given up (%s); another one goes on at sequence %d",
            self._stream,
            trouble,
            self.position,
        )
        if progress:
            self._retries.succeeded()
        self._fruitless = 0 if progress else self._fruitless + 1
        self._refusals = 0 if progress or not isinstance(trouble, JetStreamError) else self._refusals + 1
        if isinstance(trouble, JetStreamError) and not (isinstance(trouble, StreamNotFoundError) and self._created):
            if isinstance(trouble, JetStreamUnavailableError):
                raise trouble
            if self._refusals > _REFUSALS and may_pass(trouble, known=True):
                self._refusals = 0
                raise JetStreamUnavailableError(str(trouble), trouble.code, trouble.err_code, trouble.description)
            self._retries.failed(trouble)
        elif self._fruitless > 1:
            self._retries.failed(
                JetStreamError(
                    f"stream {self._stream!r} stopped delivering at sequence {self.position}, before {self._end}: "
                    f"{trouble}",
                    NO_RESPONDERS,
                )
            )

    def _open(self, js: JetStream) -> Opened | None:
        """Begin to read the stream that was planned; None when there is nothing left to read."""
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
        consumer = _Consumer(js, self._stream, made.name, made.max_batch)
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
            self._max_bytes = max(self._max_bytes, PULL_BYTES, js.connection.info.max_payload + HEADROOM)
        except BaseException:
            consumer.close()
            raise
        return Opened(self._deliveries(consumer), consumer.close)

    def _planned_state(self, js: JetStream) -> StreamInfo | None:
        """Return the state of the stream that was planned; None when nothing of the range is left in it."""
        info = self._state(js)
        if info.created != self._created:
            self._lose_the_rest(f"was deleted and made again at {info.created}")
        return info if self.position < self._end else None

    def _deliveries(self, consumer: _Consumer) -> Iterator[Delivered]:
        """Yield what matches until the range ends or the consumer's replica has no more."""
        held: deque[tuple[int, Delivered]] = deque()  # with the position before; may be several while rows go slowly
        try:
            yield from self._receive(consumer, held)
        finally:
            if held:
                self._read_again_from(held[0][0])

    def _read_again_from(self, position: int) -> None:
        """Take back what was not handed on."""
        self.position = position
        self._gaps = [(a[a < position], b[a < position]) for a, b in self._gaps]

    def _receive(self, consumer: _Consumer, held: deque[tuple[int, Delivered]]) -> Iterator[Delivered]:
        connection = consumer.js.connection
        began = last_arrival = last_look = time.monotonic()
        first = self.position
        while self.position < self._end and not consumer.exhausted:
            self._ask(consumer)
            if self._leaves(consumer.js) and not len(consumer.requests):
                break
            arrived = connection.next(consumer.inbox, PATIENCE)
            now = time.monotonic()
            if arrived is None:
                if now - max(last_arrival, consumer.last_heartbeat) > 2 * HEARTBEAT:
                    raise Restart(f"no message and no heartbeat for {now - last_arrival:.0f} s")
                consumer.requests.forget()
            else:
                from_server = arrived.reply.start == arrived.reply.end  # a delivery always has a reply
                statuses = [arrived.header_at(int(i)) for i in np.flatnonzero(from_server)]
                messages = arrived.take(~from_server) if statuses else arrived
                if len(messages):
                    last_arrival = last_look = now
                    before = self.position
                    delivered = self._accept(consumer, messages)
                    if delivered is not None:
                        held.append((before, delivered))
                for header in statuses:
                    self._heed(consumer, header)
            if now - last_look > PATIENCE:
                last_look = now
                if self._nothing_left(consumer.js, now - last_arrival):
                    break
            change = self._search.change(time.monotonic() - began, self.position - first, self._end - self.position)
            calm = now < self._calm_until
            if held and not (calm and len(consumer.requests)):
                if not calm and not change:
                    self._ask(consumer)  # so that the server works while the messages are being used
                handed = time.monotonic()
                while held:
                    yield held.popleft()[1]
                last_arrival = last_look = time.monotonic()
                began += last_arrival - handed
            if change:
                raise Restart("the other side searches faster")
        while held:
            yield held.popleft()[1]

    def _ask(self, consumer: _Consumer) -> None:
        """Keep one pull request working while another one waits behind it; while rows are taken slowly, just one.

        Of a server that is shutting down nothing more is asked for.
        """
        if self._leaves(consumer.js):
            return
        calm = time.monotonic() < self._calm_until
        while len(consumer.requests) < (1 if calm else 2):
            wanted = min(PULL_MESSAGES, consumer.max_batch)
            if not (self._filters and self._search.by_server):
                wanted = min(wanted, self._end - self.position - consumer.requests.messages)
            if wanted <= 0:
                return
            consumer.ask(wanted, self._max_bytes, _CALM_EXPIRES if calm else PULL_EXPIRES)
            if calm:
                return

    def _accept(self, consumer: _Consumer, messages: Messages) -> Delivered | None:
        """Check that no delivery is missing, cut off what lies behind the range, and leave out what does not match."""
        deliveries = Deliveries(messages.gather(messages.reply))
        count = len(messages)
        first, last = deliveries.at(0), deliveries.at(count - 1)
        expected = consumer.sequence
        if first.consumer_sequence != expected or last.consumer_sequence != expected + count - 1:
            raise Restart(
                f"delivery {expected} is missing (got {first.consumer_sequence} to {last.consumer_sequence} in {count} "
                "messages)"
            )
        if first.stream_sequence < self.position or last.stream_sequence < first.stream_sequence + count - 1:
            raise ProtocolError(
                f"stream {self._stream!r} was asked for what begins at sequence {self.position}, and sent {count} "
                f"messages from {first.stream_sequence} to {last.stream_sequence}"
            )
        consumer.sequence += count
        consumer.requests.count(sizes_of(messages))
        consumer.exhausted = last.pending == 0
        inside = self._pass(consumer.js, deliveries, last.stream_sequence)
        if inside < count:
            messages, deliveries = messages.take(slice(inside)), deliveries.head(inside)
        if self._matcher is not None and not self._search.by_server and inside:
            chosen = self._matcher.match(messages.gather(messages.subject))
            if not chosen.all():
                messages, deliveries = messages.take(chosen), deliveries.take(chosen)
        return Delivered(messages, deliveries) if len(messages) else None

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
        self.position = min(last + 1, self._end)
        if inside:
            self._head_may_go = False
        return inside

    def _heed(self, consumer: _Consumer, header: bytes) -> None:
        """Act on a status: the server's own words about a pull request (ADR-13, ADR-37)."""
        status = parse_status(header)
        if status is None:
            raise ProtocolError(f"a message without reply came from consumer {consumer.name!r}: {header[:80]!r}")
        match pull_event(status):
            case Heartbeat(delivered):
                consumer.last_heartbeat = time.monotonic()
                if delivered is not None and delivered >= consumer.sequence:
                    raise Restart(f"deliveries {consumer.sequence} to {delivered} are missing")
            case RequestEnded(bytes_left, too_large):
                consumer.requests.end()
                if too_large and bytes_left == self._max_bytes:
                    self._allow_larger_message()
            case RequestsForgotten():
                consumer.requests.forget()
            case BatchTooLarge(most):
                consumer.max_batch = most
                consumer.requests.forget()
            case ConsumerGone(reason):
                raise Restart(reason)
            case RequestRefused(refused):
                raise JetStreamError(
                    f"reading stream {self._stream!r} failed: {refused.description} ({refused.code})", refused.code
                )

    def _allow_larger_message(self) -> None:
        """Double the bytes of a pull request of which none were used: the next message is larger than all of them."""
        if self._max_bytes >= _LARGEST_PULL_BYTES:
            raise JetStreamError(
                f"a message of stream {self._stream!r} behind sequence {self.position - 1} is larger than "
                f"{self._max_bytes} bytes",
                CONFLICT,
            )
        self._max_bytes *= 2

    # What is not there

    def _look_at_gaps(self, js: JetStream) -> None:
        """Judge gaps; not at once where the server leaves out what does not match, so that there are always some.

        Where it leaves out nothing, and the stream's leader has no gaps, the consumer's replica lacks messages.
        """
        left_out = bool(self._filters) and self._search.by_server
        if left_out and time.monotonic() - self._judged < _JUDGE_INTERVAL:
            return
        info = self._state(js)
        if not left_out and not info.deleted and self._gaps[-1][1][-1] > info.first_sequence:
            self._gaps.pop()
            raise Restart("its replica lacks what the stream's leader has")
        self._judge(info)

    def _nothing_left(self, js: JetStream, silence: float) -> bool:
        """Look at the stream when nothing arrives: what was to come may have been removed."""
        if self._state(js).first_sequence > self.position:
            raise Restart("the stream's limits, or a purge, have removed what it was to deliver")
        if silence < HEARTBEAT:
            return False
        left = self._next(js, self._end, self._filters) is not None
        if left and silence > 2 * HEARTBEAT:
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

    def _next(self, js: JetStream, end: int, filters: Sequence[str]) -> int | None:
        """Ask the stream's leader for the next message before ``end``; None when there is none."""
        found = next_sequence(js, self._stream, self.position, filters or (">",))
        return found if found is not None and found < end else None

    def _ended(self, js: JetStream) -> bool:
        """Tell whether the range is read; if not, move to the next message that exists."""
        if self.position < self._end:
            following = self._next(js, self._end, self._filters)
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


class _Consumer:
    """A consumer in use: its inbox, its open pull requests and what is known of its deliveries."""

    def __init__(self, js: JetStream, stream: str, name: str, max_batch: int | None) -> None:
        self.js = js
        self.name = name
        self.max_batch = max_batch or PULL_MESSAGES
        self.requests = PullRequests()
        self.sequence = 1  # of the next delivery
        self.exhausted = False  # its replica has no more messages for it
        self.last_heartbeat = 0.0
        self._stream = stream
        self.inbox: Subscription = js.connection.subscribe(js.connection.new_inbox())

    def ask(self, messages: int, max_bytes: int, expires: float) -> None:
        """Send a pull request (ADR-13)."""
        body = encode_pull(messages, max_bytes, expires, min(HEARTBEAT, expires / 2))
        subject = f"{self.js.prefix}.{Api.CONSUMER_NEXT.about(self._stream, self.name)}"
        self.js.connection.publish(subject, body, self.inbox.subject)
        self.requests.add(messages, max_bytes)

    def close(self) -> None:
        """Have the consumer deleted, without waiting for it.

        Raises:
            PermissionsError: the server has refused something.
        """
        if self.js.connection.closed:
            return
        try:
            self.js.connection.unsubscribe(self.inbox)
            delete_consumer(self.js, self._stream, self.name)
        except PermissionsError:
            raise
        except NatsError as error:
            logger.debug("stream %s: consumer %s is left to the server: %s", self._stream, self.name, error)


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
