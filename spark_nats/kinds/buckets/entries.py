"""Reading a KV bucket: the current value of every key, or all revisions that the bucket keeps.

A bucket is not read by ranges of sequences, because a key that is written during the read moves to the stream's end.
One consumer reads it, and others read moved keys that it missed. A read of the current values is complete without being
at one moment: for each key that the bucket held when the read began, and that was not removed since, there is exactly
one row, with the value that it had then or a later one.

* A consumer delivers in sequence order. Up to the stream's last sequence at the beginning, no key that it delivers was
  yielded before; only later messages may repeat a key.
* When the consumer has delivered as many keys as there were when it was created, none was moved. A server counts them
  wrong when the bucket is written to at that moment (seen on nats-server 2.15), so its count holds only if the stream
  was the same before and after. Otherwise the stream's leader lists the keys that it has, and the reader looks for
  those that were not yielded, until there are none. It finds many of them by reading what was stored since the read
  began. But keys may move again before a consumer reaches them. So when that finds at most half of them, or when few
  are left, separate consumers read them.
* A key that is not UTF-8 has U+FFFD in the leader's list, as other keys may have, and no filter can name it. If there
  are such keys, the reader reads what was stored since, until no key moves meanwhile. Then it has reached every key
  that was moved before.
* A consumer has one replica, whose server may lag behind the stream's leader and have old values. So the reader creates
  consumers until one is on the stream's leader.
* ``last_per_subject`` makes a list of sequences (seen on nats-server 2.11 and 2.15). A consumer that reaches a removed
  sequence of its list stops until the next request, so the reader sends one. A consumer with a list never delivers a
  message that is larger than the rest of a request's bytes, so its requests are bounded in messages only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.retrying import Retries
from spark_nats.errors import JetStreamError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import create_ephemeral, delete_consumer_without_waiting
from spark_nats.jetstream.listing import ask_subject_counts
from spark_nats.jetstream.messages import ask_first_sequence_from, may_be_former_leader
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Arrived, Delivered, Move, Reading, Restart, Step
from spark_nats.jetstream.reading.pulls import PullConsumer, pull_sizes_of
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import StreamView, ask_if_recreated, log_created_otherwise
from spark_nats.kinds.buckets import conditions
from spark_nats.kinds.buckets.key_columns import are_last
from spark_nats.protocol.bytecolumns import Mask, booleans, flags_of, integers_of, texts
from spark_nats.protocol.consumers import ConsumerInfo
from spark_nats.protocol.documents import REPLACED
from spark_nats.protocol.keyvalue import key_filter, stream_of

HEARTBEAT = 0.1
"""Seconds after which a consumer reports that it has nothing to send, because it is at the end or stands still."""
MAX_HOLES = 20  # removed sequences in a consumer's list after which a new consumer replaces it
MAX_FILTERS = 100  # moved keys that one consumer reads
MAX_PLACES = 40
"""Maximum number of consumers to create until one is on the stream's leader; with five servers, one in five is."""


class Scope(Enum):
    """What the reader is reading of a bucket."""

    EVERYTHING = auto()  # all keys, for the first time
    NEWER = auto()  # what was stored during the phase before, among it many of the moved keys
    MOVED = auto()  # the moved keys, by separate consumers
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the read."""

    scope: Scope
    filters: tuple[str, ...]  # only subjects that match one of these; all when empty
    start: int = 1  # where it begins
    repeats_from: int = 0  # first sequence whose key may have been yielded before; 0 until it is known
    rest: tuple[str, ...] = ()  # subjects of moved keys that later phases read
    left: int = 0  # number of missing keys when it began

    def decide_next_phase(self, missing: Sequence[str], all_filters: tuple[str, ...], end: int) -> Phase:
        """Return the next phase.

        ``missing`` are the subjects of keys that the bucket has and that were not yielded, ``all_filters`` are those of
        the whole read, and ``end`` is the sequence after what was read.
        """
        count = len(missing)
        if not count:
            return Phase(Scope.DONE, ())
        is_worth_it = self.scope is Scope.EVERYTHING or (self.scope is Scope.NEWER and 2 * count < self.left)
        if _has_non_utf8(missing) or (count > MAX_FILTERS and is_worth_it):
            return Phase(Scope.NEWER, all_filters, end, end, (), count)
        some, rest = tuple(missing[:MAX_FILTERS]), tuple(missing[MAX_FILTERS:])
        return Phase(Scope.MOVED, some, 1, 1, rest, count)  # any key may have been yielded before


@dataclass(slots=True)
class _Pass:
    """The part of a phase that one consumer delivers."""

    consumer: PullConsumer
    listed: bool  # whether it has a list of sequences
    end: int  # the stream's next sequence before the consumer was created
    expected: float  # messages that it had to deliver; infinite when that is not known
    found: int = 0  # how many of those it has delivered
    holes: int = 0  # times that it stood still


@dataclass(frozen=True)
class Entries:
    """Which entries of a KV bucket are read.

    Attributes:
        bucket: name of the bucket.
        end: where its stream ended when the read was planned.
        keys: which keys, with wildcards; all when empty.
        headers_only: whether the server leaves the values out.
    """

    bucket: str
    end: Position
    keys: tuple[str, ...] = ()
    headers_only: bool = False

    @property
    def stream(self) -> str:
        """The name of the bucket's stream."""
        return stream_of(self.bucket)

    @property
    def filters(self) -> tuple[str, ...]:
        """The filters for the subjects of the keys; empty when all are read."""
        return tuple(map(key_filter, self.keys))

    @property
    def parts(self) -> list[Entries]:
        """These entries, split into one part for each filter of keys."""
        return [replace(self, keys=(key,)) for key in self.keys] or [self]


class BucketReader:
    """Reads a KV bucket.

    Args:
        what: which entries.
        history: whether to read every revision that the bucket keeps, and not only the last one of each key.
        retries: how long to retry without progress; the first failure is an error when None.

    Attributes:
        created: when the bucket's stream was created, as it says.
    """

    def __init__(self, what: Entries, *, history: bool = False, retries: Retries | None = None) -> None:
        self.created: str | None = what.end.created
        self._end = what.end
        self._stream = what.stream
        self._filters = what.filters
        self._history = history
        self._headers_only = what.headers_only
        self._phase = Phase(Scope.EVERYTHING, self._filters)
        self._pass: _Pass
        self._delivered: list[pa.BinaryArray] = []  # subjects of the keys that were yielded
        self._sought: frozenset[str] | None = None  # subjects of moved keys, once there were any
        self._reading = Reading(self._stream, Cursor.of(1), retries)
        self._view = StreamView(self._reading.retries.timeout)

    def read(self, js: JetStream) -> Iterator[Delivered]:
        """Continue to read over a connection.

        Raises:
            NatsError: as :meth:`~spark_nats.jetstream.reading.delivering.Reading.read`.
        """
        return self._reading.read(js, self)

    def open(self, js: JetStream, cursor: Cursor, empty_attempts: int) -> tuple[PullConsumer, Cursor]:
        """Create a consumer for the current phase."""
        info, made, listed, expected = self._create_consumer_at_leader(js, cursor)
        consumer = PullConsumer(js, self._stream, made, heartbeat=HEARTBEAT, bounded=not listed)
        self._pass = _Pass(consumer, listed, info.last_sequence + 1, expected)
        if not self._phase.repeats_from:
            self._phase = replace(self._phase, repeats_from=self._pass.end)
        if listed:
            consumer.most = max(1, int(pulls.PULL_BYTES / max(1.0, info.average_size)))
        try:
            consumer.exhausted = not made.pending and self._ask_if_all_received(js, cursor)
        except BaseException:
            consumer.close()
            raise
        return consumer, cursor

    def interpret_or_raise_restart(self, js: JetStream, cursor: Cursor, arrived: Arrived) -> Step:
        """Count the delivered messages, and leave out those before the cursor; after a silence, check for the end."""
        now, consumer = self._pass, self._pass.consumer
        delivered: Delivered | None = None
        if arrived.chunk is not None:
            delivered, _, last = arrived.chunk
            sequences = delivered.deliveries.stream_sequences()
            now.found += int(np.count_nonzero(sequences < now.end))
            if now.listed:
                consumer.most = max(
                    1, int(pulls.PULL_BYTES / max(1.0, float(pull_sizes_of(delivered.messages).mean())))
                )
            delivered = _take_or_none(delivered, sequences >= cursor.received)
            cursor = cursor.receive_until(last + 1)
            is_end = cursor.received >= now.end
            consumer.exhausted = is_end or (consumer.exhausted and self._ask_if_all_received(js, cursor))
        over = arrived.silence is not None and self._ask_if_over_or_pull(js, cursor, arrived.silence)
        return Step(cursor, Move.END if over else Move.RECEIVE, delivered)

    def drop_unwanted(self, delivered: Delivered) -> Delivered | None:
        """Leave out keys that were yielded before, and all but the last message of each key; note the other keys.

        With a history, nothing is left out.
        """
        subjects = delivered.subjects
        if self._history:
            self._delivered.append(pc.unique(subjects))
            return delivered
        late = delivered.deliveries.stream_sequences() >= self._phase.repeats_from
        if not late.any():
            self._delivered.append(subjects)
            return delivered
        again = subjects.filter(booleans(late))
        self._delivered.append(subjects.filter(booleans(~late)))
        last = are_last(integers_of(again.dictionary_encode().indices))
        new = last & ~flags_of(pc.is_in(again, pa.chunked_array(self._delivered, pa.binary())))
        self._delivered.append(again.filter(booleans(new)))
        late[late] = ~new
        return _take_or_none(delivered, ~late)

    def finish_or_resume(self, js: JetStream, cursor: Cursor) -> Step:
        """Decide whether the consumer has delivered all that it could, and find the keys that moved meanwhile."""
        phase, now = self._phase, self._pass
        if cursor.received < now.end and not self._ask_if_all_received(js, cursor):
            return Step(cursor, Move.RECEIVE)
        if now.found >= now.expected and (phase.scope is not Scope.NEWER or _has_non_utf8(self._sought or ())):
            missing: Sequence[str] = phase.rest
        else:
            missing = self._ask_missing_subjects(js)
        if missing and len(missing) == phase.left:  # keys are written faster than they can be read
            moved = conditions.KEYS_MOVE_ON(keys=len(missing), stream=self._stream)
            self._reading.retries.wait_or_raise(JetStreamError(moved))
        end = phase.repeats_from if now.listed else cursor.received
        self._phase = phase.decide_next_phase(missing, self._filters, end)
        if self._phase.scope is Scope.DONE:
            return Step(cursor.with_none_left(), Move.FINISH)
        return Step(Cursor.of(self._phase.start), Move.OPEN)

    # Requests about the stream

    def _create_consumer_at_leader(self, js: JetStream, cursor: Cursor) -> tuple[StreamInfo, ConsumerInfo, bool, float]:
        """Create a consumer on the stream's leader.

        Returns:
            The stream's state before, the consumer, whether it has a list, and how many messages it has to deliver,
            infinite when the stream changed meanwhile.
        """
        info = self._request_state(js)
        for _ in range(MAX_PLACES):
            # A bucket that keeps one revision has nothing else in its stream, and can be read from a sequence on.
            one = info.config.get("max_msgs_per_subject") == 1
            listed = not (one or self._history or self._phase.scope is Scope.NEWER)
            start = None if listed else cursor.received
            made = create_ephemeral(js, self._stream, start, self._phase.filters, headers_only=self._headers_only)
            before, info = info, self._request_state(js)
            if not made.leader or before.leader == made.leader == info.leader:
                unchanged = (before.last_sequence, before.messages) == (info.last_sequence, info.messages)
                return before, made, listed, made.pending if unchanged else inf
            delete_consumer_without_waiting(js, self._stream, made.name)
        nowhere = conditions.NO_CONSUMER_AT_LEADER(consumers=MAX_PLACES, stream=self._stream, leader=info.leader)
        raise JetStreamError(nowhere)

    def _request_state(self, js: JetStream) -> StreamInfo:
        try:
            info = self._view.request_state(js, self._stream)
        except StreamNotFoundError:
            raise JetStreamError(conditions.DELETED_WHILE_READ(stream=self._stream)) from None
        self._end = require_same_stream(js, self._end, info)
        self.created = self._end.created
        return info

    def _ask_if_over_or_pull(self, js: JetStream, cursor: Cursor, silence: float) -> bool:
        """Return whether a silent consumer has delivered all; otherwise make it continue after a removed sequence."""
        if self._ask_if_all_received(js, cursor):
            return True
        if silence > 2 * pulls.HEARTBEAT:
            raise Restart(f"nothing but heartbeats for {silence:.0f} s, but the stream's leader has messages")
        if self._pass.listed and self._pass.consumer.idle:
            self._pass.holes += 1
            if self._pass.holes > MAX_HOLES:
                raise Restart("many of the messages that it was to deliver are gone")
            self._pass.consumer.send_pull_request(1, pulls.PULL_EXPIRES)
        return False

    def _ask_if_all_received(self, js: JetStream, cursor: Cursor) -> bool:
        """Return whether the leader has nothing left of what the stream had when the consumer was created.

        Where the leader has not heard from a follower lately, it has to say again a moment later that it has nothing.
        """
        filters, is_doubtful = self._phase.filters or (">",), may_be_former_leader(js, self._request_state(js))
        found = ask_first_sequence_from(js, self._stream, cursor.received, filters, is_doubtful)
        return found is None or found >= self._pass.end

    def _ask_missing_subjects(self, js: JetStream) -> list[str]:
        """Return the subjects of keys that were not yielded, out of those that the first call found.

        A name that may stand for several keys always counts, because it is not known whether these were yielded.
        """
        patterns = self._filters or (key_filter(">"),)
        subjects = texts([each for pattern in patterns for each in ask_subject_counts(js, self._stream, pattern)])
        delivered = pa.chunked_array(self._delivered, pa.binary())
        old = flags_of(pc.is_in(subjects.cast(pa.binary()), delivered))
        replaced = flags_of(pc.match_substring(subjects, REPLACED))
        found = subjects.filter(booleans(~old | replaced)).to_pylist()
        if self._sought is None:
            self._sought = frozenset(found)
        return [each for each in found if each in self._sought]


def require_same_stream(js: JetStream, end: Position, info: StreamInfo) -> Position:
    """Return a position as the stream now names it, or raise :class:`JetStreamError` where that is another stream."""
    if info.created == end.created:
        return end
    if ask_if_recreated(js, end, info):
        raise JetStreamError(conditions.MADE_AGAIN_WHILE_READ(stream=info.name, created=info.created))
    log_created_otherwise(end, info)
    return end._replace(created=info.created)


def _has_non_utf8(names: Iterable[str]) -> bool:
    """Return whether one of the names in a leader's list may stand for several keys, which no filter can name."""
    return any(REPLACED in name for name in names)


def _take_or_none(delivered: Delivered, chosen: Mask) -> Delivered | None:
    """Return the chosen messages; None when there are none."""
    return delivered.take(chosen) if chosen.any() else None
