"""Reading what a KV bucket holds: the current value of every key, or all revisions that are kept.

A bucket is not read by ranges of sequences: a key that is written again while it is read moves behind them all. It is
read by one consumer, which comes to whatever was moved, and is complete without being that of one moment: of each key
that the bucket held when the read began, and that was not removed since, there is exactly one row, with the value that
it had then or a later one.

* A consumer delivers in the order of sequences. What it delivers up to the stream's last sequence of the beginning are
  keys that nothing was known of; only those behind it may have been handed on before.
* When so many keys were delivered as there were when the consumer was made, none was moved. Otherwise the stream's
  leader names the keys that it has. Those that were not handed on are looked for until there are none. Many of them are
  found by reading on, behind what the bucket held when the read began. But keys may be moved again before a consumer
  comes to them; so when that finds less than half, and when few are left, they are read by consumers of their own.
* A consumer has one replica, whose server may lag behind the stream's leader and have old values. So consumers are made
  until one lives where the stream is led.
* ``last_per_subject`` makes a list of sequences (seen on nats-server 2.11 and 2.15). A consumer that comes to one of
  them that is gone by then stops there until it is asked again, and is asked again. One that comes to a message which
  is larger than what is left of a request's bytes never delivers it, so its requests are bounded in messages only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.retrying import Retries
from spark_nats.errors import JetStreamError, StreamNotFoundError
from spark_nats.jetstream import delivering
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consumers import Consumer, create_consumer, delete_consumer
from spark_nats.jetstream.delivering import Delivered, DeliveryReader, Opened, PullConsumer, Restart
from spark_nats.jetstream.pulling import sizes_of
from spark_nats.jetstream.streams import StreamInfo, stream_info, subjects_of
from spark_nats.protocol.bytecolumns import Mask, booleans, flags_of, texts
from spark_nats.protocol.key_columns import are_last
from spark_nats.protocol.keyvalue import key_filter, stream_of
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.statuses import NO_RESPONDERS

HEARTBEAT = 0.1
"""Seconds after which a consumer says that it has nothing to send: that it has come to the end, or stands still."""
MOST_HOLES = 20
"""After so many removed sequences a consumer is replaced by one whose list has none."""
MOST_FILTERS = 100
"""Keys to read at once that were moved."""
MOST_PLACES = 40
"""Consumers to make in a row until one lives where the stream is led; of five servers it is one in five."""


class BucketReader(DeliveryReader):
    """Reads what a KV bucket holds.

    Args:
        bucket: which one.
        created: when its stream was made.
        keys: which keys, with wildcards; all when empty.
        history: whether to read every revision that is kept, and not the last one of each key alone.
        headers_only: whether the server leaves the values out.
        retries: how long to go on without progress; what does not work at once is an error when None.
    """

    def __init__(
        self,
        bucket: str,
        created: str,
        keys: Sequence[str] = (),
        *,
        history: bool = False,
        headers_only: bool = False,
        retries: Retries | None = None,
    ) -> None:
        super().__init__(stream_of(bucket), 1, [key_filter(key) for key in keys], created, retries)
        self._history = history
        self._headers_only = headers_only
        self._listed = False  # whether the consumer has a list of sequences
        self._all = self._filters
        self._moved = 0  # the stream's next sequence at the beginning: from it on keys may come again
        self._handed: list[pa.BinaryArray] = []  # subjects of the keys that were handed on
        self._sought: frozenset[str] | None = None  # subjects of keys that were moved, once there were any
        self._rest: list[str] = []  # of those, what comes after the present consumer
        self._left = 0  # how many were missing when a consumer had come to its end
        self._reads_on = False  # whether they are looked for among all that the bucket has got since
        self._done = False
        # Of the present consumer:
        self._behind = 0  # the stream's next sequence before it was made
        self._expected = self._found = 0  # how many messages it had to deliver, and has delivered of those
        self._holes = 0
        self._size = 1.0  # bytes that a message takes
        self._looked = 0.0

    def _at_end(self) -> bool:
        return self._done

    def _wanted(self, requested: int) -> int:
        return max(1, int(delivering.PULL_BYTES / self._size)) if self._listed else delivering.PULL_MESSAGES

    def _open(self, js: JetStream) -> Opened | None:
        info, made = self._place(js)
        consumer = self._use(js, made)
        try:
            consumer.heartbeat = HEARTBEAT
            if self._listed:
                self._max_bytes = None
                self._size = max(1.0, info.average_size)
            self._behind = info.last_sequence + 1
            self._moved = self._moved or self._behind
            self._expected, self._found, self._holes = made.pending, 0, 0
            if not made.pending and self._is_through(js):
                consumer.close()
                self._ended(js)
                return None
        except BaseException:
            consumer.close()
            raise
        return self._opened(consumer)

    def _place(self, js: JetStream) -> tuple[StreamInfo, Consumer]:
        """Make a consumer where the stream is led; return it and the stream's state before that."""
        info = self._state(js)
        for _ in range(MOST_PLACES):
            # Where one revision is kept, that is what the stream has, and can be read from a position on.
            one = info.config.get("max_msgs_per_subject") == 1
            self._listed = not (one or self._history or self._reads_on)
            start = None if self._listed else self.position
            made = create_consumer(js, self._stream, start, self._filters, headers_only=self._headers_only)
            before, info = info, self._state(js)
            if not made.leader or before.leader == made.leader == info.leader:
                return before, made
            delete_consumer(js, self._stream, made.name)
        raise JetStreamError(
            f"of {MOST_PLACES} consumers of stream {self._stream!r} none was placed at its leader, {info.leader}",
            NO_RESPONDERS,
        )

    def _state(self, js: JetStream) -> StreamInfo:
        try:
            info = stream_info(js, self._stream)
        except StreamNotFoundError:
            self._doubts.confirm(js, self._stream, f"the stream {self._stream!r} does not exist")
            raise JetStreamError(f"the stream {self._stream!r} was deleted while it was read") from None
        self._doubts.settle(self._stream)
        if info.created != self._created:
            raise JetStreamError(
                f"the stream {self._stream!r} was deleted and made again at {info.created} while it was read"
            )
        return info

    def _accept(self, consumer: PullConsumer, messages: Messages) -> Delivered | None:
        """Count what was delivered, and leave out what an earlier consumer had come to."""
        deliveries = self._count(consumer, messages)
        sequences = deliveries.stream_sequences()
        self._found += int(np.count_nonzero(sequences < self._behind))
        self._size = max(1.0, float(sizes_of(messages).mean()))
        fresh = sequences >= self.position
        self.position = max(self.position, int(sequences[-1]) + 1)
        pending = deliveries.at(len(messages) - 1).pending
        consumer.exhausted = self.position >= self._behind or (pending == 0 and self._is_through(consumer.js))
        return _chosen(Delivered(messages, deliveries), fresh)

    def _deliveries(self, consumer: PullConsumer) -> Iterator[Delivered]:
        for delivered in super()._deliveries(consumer):
            if self._history:
                self._handed.append(pc.unique(delivered.messages.gather(delivered.messages.subject)))
                yield delivered
            elif (chosen := self._not_handed(delivered)) is not None:
                yield chosen

    def _not_handed(self, delivered: Delivered) -> Delivered | None:
        """Leave out keys that were handed on before, and all but the last message of each; note those that remain."""
        subjects = delivered.messages.gather(delivered.messages.subject)
        late = delivered.deliveries.stream_sequences() >= self._moved
        if not late.any():
            self._handed.append(subjects)
            return delivered
        again = subjects.filter(booleans(late))
        self._handed.append(subjects.filter(booleans(~late)))
        new = are_last(again) & ~flags_of(pc.is_in(again, pa.chunked_array(self._handed, pa.binary())))
        self._handed.append(again.filter(booleans(new)))
        late[late] = ~new
        return _chosen(delivered, ~late)

    def _is_through(self, js: JetStream) -> bool:
        """Ask the leader whether nothing is left of what the stream had when the consumer was made."""
        return self._next(js, self._behind) is None

    def _nothing_left(self, consumer: PullConsumer, silence: float) -> bool:
        through = self._is_through(consumer.js)
        if not through and silence > 2 * delivering.HEARTBEAT:
            raise Restart(f"nothing but heartbeats for {silence:.0f} s, but the stream's leader has messages")
        return through

    def _heed(self, consumer: PullConsumer, header: bytes) -> None:
        """When a consumer has nothing to send: see whether all is read, else have it go on behind what is gone."""
        super()._heed(consumer, header)
        if consumer.last_heartbeat - self._looked < HEARTBEAT / 2:
            return
        self._looked = consumer.last_heartbeat
        consumer.exhausted = self._is_through(consumer.js)
        if self._listed and not consumer.exhausted:
            self._holes += 1
            if self._holes > MOST_HOLES:
                raise Restart("many of the messages that it was to deliver are gone")
            consumer.ask(1, self._max_bytes, delivering.PULL_EXPIRES)

    def _ended(self, js: JetStream) -> bool:
        """Tell whether the consumer has brought all that it could, and see what was moved meanwhile."""
        if self.position < self._behind and not self._is_through(js):
            return False
        first = self._sought is None
        missing = self._rest if self._found >= self._expected and not self._reads_on else self._missing(js)
        if missing and len(missing) == self._left:  # written faster than they can be read
            self._retries.failed(JetStreamError(f"{len(missing)} keys of {self._stream!r} move on", NO_RESPONDERS))
        found_half = first or (self._reads_on and 2 * len(missing) < self._left)
        self._reads_on = len(missing) > MOST_FILTERS and found_half
        self._left = len(missing)
        self._done = not missing
        if self._reads_on:
            self._filters, self._rest = self._all, []
            self.position = self._moved = self._moved if self._listed else self.position
        elif missing:
            self._filters, self._rest = tuple(missing[:MOST_FILTERS]), missing[MOST_FILTERS:]
            self.position = self._moved = 1  # all of it may have been handed on by the time
        return True

    def _missing(self, js: JetStream) -> list[str]:
        """Return the subjects of keys that were not handed on, of those that there were when this was first asked."""
        there = [each for pattern in self._all or (key_filter(">"),) for each in subjects_of(js, self._stream, pattern)]
        handed = pa.chunked_array(self._handed, pa.binary())
        new = ~flags_of(pc.is_in(texts(there).cast(pa.binary()), handed))
        found = [there[i] for i in np.flatnonzero(new).tolist() if self._sought is None or there[i] in self._sought]
        if self._sought is None:
            self._sought = frozenset(found)
        return found


def _chosen(delivered: Delivered, chosen: Mask) -> Delivered | None:
    """Return the chosen messages, None when there are none."""
    if not chosen.any():
        return None
    if chosen.all():
        return delivered
    return Delivered(delivered.messages.take(chosen), delivered.deliveries.take(chosen))
