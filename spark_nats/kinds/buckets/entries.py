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
* A key that is not UTF-8 has U+FFFD in the leader's list, as other keys may have, and no filter can name it. If there
  are such keys, it is read on behind what the bucket held, until nothing is moved while that is read. Then whatever was
  moved before has been come to.
* A consumer has one replica, whose server may lag behind the stream's leader and have old values. So consumers are made
  until one lives where the stream is led.
* ``last_per_subject`` makes a list of sequences (seen on nats-server 2.11 and 2.15). A consumer that comes to one of
  them that is gone by then stops there until it is asked again, and is asked again. One that comes to a message which
  is larger than what is left of a request's bytes never delivers it, so its requests are bounded in messages only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.retrying import Retries
from spark_nats.errors import JetStreamError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import create_consumer, delete_consumer
from spark_nats.jetstream.listing import subjects_of
from spark_nats.jetstream.messages import next_sequence
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Arrived, Delivered, Move, Reading, Restart, Step
from spark_nats.jetstream.reading.pulls import PullConsumer, sizes_of
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import StreamView
from spark_nats.kinds.buckets import conditions
from spark_nats.kinds.buckets.key_columns import are_last
from spark_nats.protocol.bytecolumns import Mask, booleans, flags_of, texts
from spark_nats.protocol.consumers import ConsumerInfo
from spark_nats.protocol.documents import REPLACED
from spark_nats.protocol.keyvalue import key_filter, stream_of

HEARTBEAT = 0.1
"""Seconds after which a consumer says that it has nothing to send: that it has come to the end, or stands still."""
MAX_HOLES = 20  # after so many removed sequences a consumer is replaced by one whose list has none
MAX_FILTERS = 100  # keys to read at once that were moved
MAX_PLACES = 40
"""Consumers to make in a row until one lives where the stream is led; of five servers it is one in five."""


class KeyState(Enum):
    """What is being read of a bucket."""

    EVERYTHING = auto()  # all keys, for the first time
    NEWER = auto()  # what the bucket has got since then, because that has many of the keys that were moved
    MOVED = auto()  # the keys that were moved, by consumers of their own
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the read."""

    state: KeyState  # what is read
    filters: tuple[str, ...]  # only subjects that match one of these; all when empty
    start: int = 1  # where it begins
    repeats_from: int = 0  # sequence from which on keys may have been handed on before; 0 when that is not yet known
    rest: tuple[str, ...] = ()  # subjects of keys that were moved, and come after this phase
    left: int = 0  # how many were missing when it began

    def followed_by(self, missing: Sequence[str], all_filters: tuple[str, ...], behind: int) -> Phase:
        """Return what to read next when these subjects of keys, which the bucket has, were not handed on.

        ``all_filters`` are those of the whole read, and ``behind`` is where to go on behind what was read.
        """
        count = len(missing)
        if not count:
            return Phase(KeyState.DONE, ())
        found_half = self.state is KeyState.EVERYTHING or (self.state is KeyState.NEWER and 2 * count < self.left)
        if _has_replaced(missing) or (count > MAX_FILTERS and found_half):
            return Phase(KeyState.NEWER, all_filters, behind, behind, (), count)
        some, rest = tuple(missing[:MAX_FILTERS]), tuple(missing[MAX_FILTERS:])
        return Phase(KeyState.MOVED, some, 1, 1, rest, count)  # all of it may have been handed on by the time


@dataclass(slots=True)
class _Pass:
    """What one consumer brings of a phase."""

    consumer: PullConsumer
    listed: bool  # whether it has a list of sequences
    behind: int  # the stream's next sequence before it was made
    expected: int  # messages that it had to deliver
    found: int = 0  # messages of those that it has delivered
    holes: int = 0  # times that it stood still


@dataclass(frozen=True)
class Entries:
    """Which entries of a KV bucket are read.

    Attributes:
        bucket: of which bucket.
        created: when its stream was made.
        keys: of which keys, with wildcards; of all when empty.
        headers_only: whether the server leaves the values out.
    """

    bucket: str
    created: str
    keys: tuple[str, ...] = ()
    headers_only: bool = False

    @property
    def stream(self) -> str:
        """The stream that the bucket is."""
        return stream_of(self.bucket)

    @property
    def filters(self) -> tuple[str, ...]:
        """The subjects of the keys; none when all are read."""
        return tuple(map(key_filter, self.keys))

    @property
    def parts(self) -> list[Entries]:
        """The entries of each filter of keys."""
        return [replace(self, keys=(key,)) for key in self.keys] or [self]


class BucketReader:
    """Reads what a KV bucket holds.

    Args:
        what: which entries.
        history: whether to read every revision that is kept, and not the last one of each key alone.
        retries: how long to go on without progress; what does not work at once is an error when None.

    Attributes:
        created: as given.
    """

    def __init__(self, what: Entries, *, history: bool = False, retries: Retries | None = None) -> None:
        self.created: str | None = what.created
        self._stream = what.stream
        self._filters = what.filters
        self._history = history
        self._headers_only = what.headers_only
        self._phase = Phase(KeyState.EVERYTHING, self._filters)
        self._pass: _Pass
        self._handed: list[pa.BinaryArray] = []  # subjects of the keys that were handed on
        self._sought: frozenset[str] | None = None  # subjects of keys that were moved, once there were any
        self._reading = Reading(self._stream, Cursor.of(1), retries)
        self._view = StreamView(self._reading.retries.timeout)

    def read(self, js: JetStream) -> Iterator[Delivered]:
        """Read on over a connection.

        Raises:
            NatsError: as :meth:`~spark_nats.jetstream.reading.delivering.Reading.read`.
        """
        return self._reading.read(js, self)

    def open(self, js: JetStream, cursor: Cursor, empty_attempts: int) -> tuple[PullConsumer, Cursor]:
        """Make a consumer for the present phase."""
        info, made, listed = self._place(js, cursor)
        consumer = PullConsumer(js, self._stream, made, heartbeat=HEARTBEAT, bounded=not listed)
        self._pass = _Pass(consumer, listed, info.last_sequence + 1, made.pending)
        if not self._phase.repeats_from:
            self._phase = replace(self._phase, repeats_from=self._pass.behind)
        if listed:
            consumer.most = max(1, int(pulls.PULL_BYTES / max(1.0, info.average_size)))
        try:
            consumer.exhausted = not made.pending and self._is_through(js, cursor)
        except BaseException:
            consumer.close()
            raise
        return consumer, cursor

    def receive(self, js: JetStream, cursor: Cursor, arrived: Arrived) -> Step:
        """Count what was delivered, and leave out what an earlier consumer had come to."""
        now, consumer = self._pass, self._pass.consumer
        delivered: Delivered | None = None
        if arrived.chunk is not None:
            delivered, _, last = arrived.chunk
            sequences = delivered.deliveries.stream_sequences()
            now.found += int(np.count_nonzero(sequences < now.behind))
            if now.listed:
                consumer.most = max(1, int(pulls.PULL_BYTES / max(1.0, float(sizes_of(delivered.messages).mean()))))
            delivered = _chosen(delivered, sequences >= cursor.received)
            cursor = cursor.reach(last + 1)
            consumer.exhausted = cursor.received >= now.behind or (consumer.exhausted and self._is_through(js, cursor))
        over = arrived.silence is not None and self._is_over(js, cursor, arrived.silence)
        return Step(cursor, Move.END if over else Move.RECEIVE, delivered)

    def deliver(self, delivered: Delivered) -> Delivered | None:
        """Leave out keys that were handed on before, and all but the last message of each; note those that remain."""
        subjects = delivered.subjects
        if self._history:
            self._handed.append(pc.unique(subjects))
            return delivered
        late = delivered.deliveries.stream_sequences() >= self._phase.repeats_from
        if not late.any():
            self._handed.append(subjects)
            return delivered
        again = subjects.filter(booleans(late))
        self._handed.append(subjects.filter(booleans(~late)))
        new = are_last(again) & ~flags_of(pc.is_in(again, pa.chunked_array(self._handed, pa.binary())))
        self._handed.append(again.filter(booleans(new)))
        late[late] = ~new
        return _chosen(delivered, ~late)

    def finish_or_resume(self, js: JetStream, cursor: Cursor) -> Step:
        """Tell whether the consumer has brought all that it could, and see what was moved meanwhile."""
        phase, now = self._phase, self._pass
        if cursor.received < now.behind and not self._is_through(js, cursor):
            return Step(cursor, Move.RECEIVE)
        if now.found >= now.expected and (phase.state is not KeyState.NEWER or _has_replaced(self._sought or ())):
            missing: Sequence[str] = phase.rest
        else:
            missing = self._missing(js)
        if missing and len(missing) == phase.left:  # written faster than they can be read
            moved = conditions.KEYS_MOVE_ON(keys=len(missing), stream=self._stream)
            self._reading.retries.failed(JetStreamError(moved))
        behind = phase.repeats_from if now.listed else cursor.received
        self._phase = phase.followed_by(missing, self._filters, behind)
        if self._phase.state is KeyState.DONE:
            return Step(cursor.give_up(), Move.FINISH)
        return Step(Cursor.of(self._phase.start), Move.OPEN)

    # What the stream is asked

    def _place(self, js: JetStream, cursor: Cursor) -> tuple[StreamInfo, ConsumerInfo, bool]:
        """Make a consumer where the stream is led; return the stream's state before that, and whether it has a list."""
        info = self._state(js)
        for _ in range(MAX_PLACES):
            # Where one revision is kept, that is what the stream has, and can be read from a position on.
            one = info.config.get("max_msgs_per_subject") == 1
            listed = not (one or self._history or self._phase.state is KeyState.NEWER)
            start = None if listed else cursor.received
            made = create_consumer(js, self._stream, start, self._phase.filters, headers_only=self._headers_only)
            before, info = info, self._state(js)
            if not made.leader or before.leader == made.leader == info.leader:
                return before, made, listed
            delete_consumer(js, self._stream, made.name)
        nowhere = conditions.NO_CONSUMER_AT_LEADER(consumers=MAX_PLACES, stream=self._stream, leader=info.leader)
        raise JetStreamError(nowhere)

    def _state(self, js: JetStream) -> StreamInfo:
        try:
            info = self._view.state(js, self._stream)
        except StreamNotFoundError:
            raise JetStreamError(conditions.DELETED_WHILE_READ(stream=self._stream)) from None
        if info.created != self.created:
            raise JetStreamError(conditions.MADE_AGAIN_WHILE_READ(stream=self._stream, created=info.created))
        return info

    def _is_over(self, js: JetStream, cursor: Cursor, silence: float) -> bool:
        """When a consumer has nothing to send: see whether all is read, else have it go on behind what is gone."""
        if self._is_through(js, cursor):
            return True
        if silence > 2 * pulls.HEARTBEAT:
            raise Restart(f"nothing but heartbeats for {silence:.0f} s, but the stream's leader has messages")
        if self._pass.listed and self._pass.consumer.idle:
            self._pass.holes += 1
            if self._pass.holes > MAX_HOLES:
                raise Restart("many of the messages that it was to deliver are gone")
            self._pass.consumer.pull(1, pulls.PULL_EXPIRES)
        return False

    def _is_through(self, js: JetStream, cursor: Cursor) -> bool:
        """Ask the leader whether nothing is left of what the stream had when the consumer was made."""
        found = next_sequence(js, self._stream, cursor.received, self._phase.filters or (">",))
        return found is None or found >= self._pass.behind

    def _missing(self, js: JetStream) -> list[str]:
        """Return the subjects of keys that were not handed on, of those that there were when this was first asked.

        Of a name that may stand for several it is not known whether they were.
        """
        patterns = self._filters or (key_filter(">"),)
        there = [each for pattern in patterns for each in subjects_of(js, self._stream, pattern)]
        handed = pa.chunked_array(self._handed, pa.binary())
        subjects = texts(there)
        new = ~flags_of(pc.is_in(subjects.cast(pa.binary()), handed)) | flags_of(pc.match_substring(subjects, REPLACED))
        found = [there[i] for i in np.flatnonzero(new).tolist() if self._sought is None or there[i] in self._sought]
        if self._sought is None:
            self._sought = frozenset(found)
        return found


def _has_replaced(names: Iterable[str]) -> bool:
    """Tell whether one of the names that a leader lists may stand for several keys, which no filter can name."""
    return any(REPLACED in name for name in names)


def _chosen(delivered: Delivered, chosen: Mask) -> Delivered | None:
    """Return the chosen messages, None when there are none."""
    return delivered.take(chosen) if chosen.any() else None
