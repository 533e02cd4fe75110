"""What an earlier attempt at the same task has stored already, however long ago that was.

A stream knows a message id again for its ``duplicate_window`` only. So each task of a streaming query notes, before its
first row, where the stream ended then: in a KV bucket, under a key for the query and the partition. One that finds its
own micro-batch noted there knows that somebody has begun it before, reads the message ids of what the stream has stored
since, and leaves out the rows that they belong to. The ids go on protecting against attempts that run at the same time.

Servers may come back with less than they had stored. The note says when the stream's last message was stored then, so
that a stream which was put back since is told from one that has gone on; the task then reads from where its present
history begins. And a bucket that was put back denies what it had: micro-batches are counted without gaps, so it is
older than the query's checkpoint if it lacks the one before; and a stream that has rows of a micro-batch which the
bucket does not know shows that too.

A batch has no life after its driver, so there the driver notes it, and tasks that are tried again get it from there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.connection import Connection
from spark_nats.client.pool import Loan
from spark_nats.errors import JetStreamError, NatsError, PermissionsError, PublishError, Remedy
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consumers import try_to_read
from spark_nats.jetstream.doubts import CONFIRMATION, state_beyond_doubt
from spark_nats.jetstream.fingerprints import SKEW, Fingerprint, History, first_after
from spark_nats.jetstream.keyvalue import Bucket, Entry, make_bucket
from spark_nats.jetstream.stored import history_of, stored_ids
from spark_nats.jetstream.streams import LIMITS, StreamInfo, next_message
from spark_nats.options.losses import report_loss
from spark_nats.options.values import EXACT
from spark_nats.options.write import WriteOptions
from spark_nats.protocol.api import ErrCode
from spark_nats.protocol.bytecolumns import Mask, booleans, flags_of, values_of
from spark_nats.protocol.documents import integer_at, parse_document, string_at, text_of, time_at
from spark_nats.sink.message_ids import MessageIds
from spark_nats.sink.tasks import Mark, Task

logger = logging.getLogger(__name__)

_TAIL = 4096  # messages at the end of a stream among which rows of a task are looked for
_MOST_REMEMBERED = 1 << 14
_ONCE_MORE = 0.25  # seconds before a state that was not the last one is asked for again
_PROBE = "probe"  # key by which the driver tells whether the bucket can be written to


class _State(NamedTuple):
    """What a task noted when it began."""

    batch: int
    mark: Mark


class Standing(Enum):
    """What is noted of a micro-batch, and of those before it."""

    FIRST = auto()
    """It has not begun, and the one before it has."""
    BEGUN = auto()
    """It was begun before."""
    AHEAD = auto()
    """A later one has begun."""
    OLDER = auto()
    """The last one that has begun is before the one before it."""
    NOTHING = auto()
    """There is no note, though it is not the first micro-batch."""


def standing(batch: int, own: int | None, first: int | None) -> Standing:
    """Tell from the last micro-batches that are noted where one stands.

    Micro-batches are counted without gaps, and each has a partition 0; it need not have the others.

    Args:
        batch: the micro-batch.
        own: the last one that is noted for the same partition.
        first: the last one that is noted for partition 0.
    """
    if own is not None and own >= batch:
        return Standing.BEGUN if own == batch else Standing.AHEAD
    noted = max((each for each in (own, first) if each is not None), default=None)
    if batch == 0 or (noted is not None and noted >= batch - 1):
        return Standing.FIRST
    return Standing.NOTHING if noted is None else Standing.OLDER


class _Tail(NamedTuple):
    """What the last messages of a stream say of a task.

    Attributes:
        since: the sequence behind which they were looked at.
        rows: how many of them are the task's.
        new: whether they show that the task has stored nothing.
    """

    since: int
    rows: int = 0
    new: bool = False


class _Memory:
    """What tasks of this process have noted last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], int] = OrderedDict()

    def get(self, options: WriteOptions, *key: str) -> int:
        """Return the micro-batch that is remembered; -1 when there is none."""
        return self._kept.get((options.connection, options.state_bucket, *key), -1)

    def keep(self, batch: int, options: WriteOptions, *key: str) -> None:
        """Remember a micro-batch."""
        self._kept[(options.connection, options.state_bucket, *key)] = batch
        if len(self._kept) > _MOST_REMEMBERED:
            self._kept.popitem(last=False)


_noted = _Memory()
"""The last micro-batch of each key and run that a task of this process has noted."""
_began = _Memory()
"""The first micro-batch of each run of a query of which this process had a task: later ones are new for certain."""


class Settled:
    """Rows that were stored before.

    Args:
        ids: message ids of what the stream has stored since the task began for the first time.
        prefix: what generated ids of this task begin with.
    """

    def __init__(self, ids: pa.Array, prefix: str) -> None:
        self._ids = pc.unique(ids)
        self._generated = flags_of(pc.starts_with(self._ids, prefix))
        self._met = np.zeros(len(self._ids), np.bool_)
        self.rows = 0

    def missing(self, ids: pa.Array) -> Mask:
        """Tell which rows are not stored yet, by their message ids; those without one are not.

        Args:
            ids: string column.
        """
        place = pc.index_in(ids.cast(pa.binary()), self._ids)
        stored = flags_of(place.is_valid())
        self._met[values_of(place.filter(booleans(stored)))] = True
        self.rows += int(np.count_nonzero(stored))
        return ~stored

    @property
    def strangers(self) -> int:
        """How many rows this task had stored that were not among those that it was given now."""
        return int(np.count_nonzero(self._generated & ~self._met))


def settle(loan: Loan, options: WriteOptions, task: Task, ids: MessageIds, stream: StreamInfo) -> Settled | None:
    """Note that a task begins, or find out what it has stored when it began before.

    Args:
        loan: where.
        options: of the write.
        task: which one.
        ids: gives its rows their ids.
        stream: the state of the stream before the task has stored anything now.

    Returns:
        What it has stored; None when it begins for the first time.

    Raises:
        DataLossError: that cannot be told any more, and ``failOnDataLoss`` is set.
        NatsError: the state could not be read or written.
    """
    if options.deduplicate != EXACT:
        return None
    if task.batch is None:
        mark = task.mark if task.attempt else None
    else:
        mark = loan.ask(lambda connection: _begin(connection, options, task, ids, stream))
    if mark is None or mark.created != stream.created:
        return None
    known = stream.knows_again((stream.time - mark.time) / 1e9)  # every id of the earlier attempt
    if stream.retention != LIMITS:  # it cannot be read without taking messages from others
        said, noted = stream, mark
        stream = loan.ask(lambda connection: _look_at_end(connection, options, task, task.batch, noted, said))
        if not known and stream.last_sequence != mark.sequence:
            _report(options, task, f"stream {stream.name!r} has {stream.retention} retention, and cannot be read back")
        return None
    said, noted = stream, mark
    stream, mark = loan.ask(lambda connection: _look_back(connection, options, task, said, noted, known))
    found = loan.ask(
        lambda connection: stored_ids(
            JetStream(connection, options.api_prefix), stream, mark.sequence, "" if task.own_ids else ids.prefix
        )
    )
    if found.removed and not known:
        _report(options, task, found.removed)
    return Settled(found.ids, ids.prefix)


def _report(options: WriteOptions, task: Task, why: str) -> None:
    """Fail or warn because it cannot be told what an earlier attempt has stored."""
    what = f"{task.name} was begun before, and what it stored then cannot be told: {why}"
    report_loss(what, options.fail_on_data_loss, "all of its rows that are not found, so that some may be stored twice")


def _begin(
    connection: Connection, options: WriteOptions, task: Task, ids: MessageIds, stream: StreamInfo
) -> Mark | None:
    """Note that a task begins; return what is noted when it began before."""
    js, batch = JetStream(connection, options.api_prefix), int(task.batch or 0)
    deadline = time.monotonic() + CONFIRMATION
    confirmed = False
    while True:
        entry, state = _read(js, options, task.key)
        if (mark := _begun_before(state, task, stream)) is not None:
            _remember(options, task)
            return mark
        why, tail = _denial(js, options, task, ids, stream, state)
        if why and not confirmed:  # a leader may have been stopped for a while, or another attempt has just begun
            confirmed = True
            if connection.info.cluster:
                connection.wait(CONFIRMATION)
            deadline = time.monotonic() + CONFIRMATION
            continue
        mark = None
        if why:
            _report_older(options, task, stream, tail, why)
            mark = Mark(stream.name, stream.created, tail.since, 0)
        else:
            if state is not None and _is_of(state, stream):
                _look_at_end(connection, options, task, str(state.batch), state.mark, stream)
        if _note(js, options, task.key, batch, mark or _mark_of(stream), entry.revision, deadline):
            _remember(options, task)
            return mark


def _read(js: JetStream, options: WriteOptions, key: str) -> tuple[Entry, _State | None]:
    with _about_the_bucket(options):
        entry = Bucket(js, str(options.state_bucket)).get(key)
    return entry, _state_of(entry, key)


def _note(
    js: JetStream, options: WriteOptions, key: str, batch: int, mark: Mark, revision: int, deadline: float
) -> bool:
    """Note where a task begins; False when somebody else has noted something meanwhile."""
    note = {"batch": batch, "stream": mark.stream, "created": mark.created, "sequence": mark.sequence}
    if mark.timestamp:
        note["timestamp"] = text_of(mark.timestamp)
    with _about_the_bucket(options):
        try:
            Bucket(js, str(options.state_bucket)).put(key, json.dumps(note).encode(), revision)
        except JetStreamError as error:
            # A leader that was stopped for a while has said what was; or another attempt has just begun.
            if error.err_code != ErrCode.WRONG_LAST_SEQUENCE or time.monotonic() > deadline:
                raise
            js.connection.wait(_ONCE_MORE)
            return False
    return True


def _mark_of(stream: StreamInfo) -> Mark:
    return Mark(stream.name, stream.created, stream.last_sequence, stream.time, stream.last_time)


def _remember(options: WriteOptions, task: Task) -> None:
    batch = int(task.batch or 0)
    _noted.keep(batch, options, task.key, task.run)
    if _began.get(options, task.query, task.run) < 0:
        _began.keep(batch, options, task.query, task.run)


def _begun_before(state: _State | None, task: Task, stream: StreamInfo) -> Mark | None:
    """Return where the same micro-batch was begun, if it was, into the same stream."""
    batch = int(task.batch or 0)
    if state is None or state.batch < batch:
        return None
    if state.batch > batch:
        logger.warning(
            "%s comes after micro-batch %d, as when an older checkpoint is used: its rows may be stored already, and "
            "then are stored twice",
            task.name,
            state.batch,
        )
        return None
    if _is_of(state, stream):
        return state.mark
    logger.warning(
        "%s was begun before, and written to the stream %s that was made at %s; now all of it is written to %s",
        task.name,
        state.mark.stream,
        state.mark.created,
        stream.name,
    )
    return None


def _is_of(state: _State, stream: StreamInfo) -> bool:
    return (state.mark.stream, state.mark.created) == (stream.name, stream.created)


# A bucket that is older than the checkpoint


def _denial(
    js: JetStream, options: WriteOptions, task: Task, ids: MessageIds, stream: StreamInfo, state: _State | None
) -> tuple[str, _Tail]:
    """Say why the bucket must be older than the query's checkpoint; empty when nothing speaks for that.

    Returns:
        That, and what the stream's last messages say, as far as it was needed.
    """
    batch, own = int(task.batch or 0), state.batch if state is not None else None
    first = own
    if task.partition and batch and (own is None or own < batch - 1):
        zero = _read(js, options, f"{task.query}.0")[1]
        first = zero.batch if zero is not None else None
    found = standing(batch, own, first)
    noted = _noted.get(options, task.key, task.run)
    if found in (Standing.BEGUN, Standing.AHEAD):
        return "", _Tail(stream.last_sequence)
    if noted > (-1 if own is None else own):
        why = f"it does not know micro-batch {noted}, which this process has noted there"
    elif found is Standing.OLDER:
        why = f"the last micro-batch that it knows is {max(each for each in (own, first) if each is not None)}"
    elif found is Standing.FIRST and 0 <= _began.get(options, task.query, task.run) < batch:
        return "", _Tail(stream.last_sequence)
    else:
        why = ""
    tail = _look_at_tail(js, task, ids, stream, state)
    if not why and tail.rows:
        why = f"it does not know {task.name}, of which stream {stream.name!r} has {tail.rows} rows"
    elif not why and found is Standing.NOTHING and not tail.new:
        why = "it knows nothing of this query"
    elif found is Standing.NOTHING:
        logger.info(
            "the state bucket %s knows nothing of this query; stream %s shows that %s is written for the first time",
            options.state_bucket,
            stream.name,
            task.name,
        )
    return why, tail


def _look_at_tail(js: JetStream, task: Task, ids: MessageIds, stream: StreamInfo, state: _State | None) -> _Tail:
    """Look for rows of a task among the last messages of a stream."""
    last = stream.last_sequence
    since = max(last - _TAIL, stream.first_sequence - 1)
    if state is not None and _is_of(state, stream) and state.mark.sequence <= last:
        since = max(since, state.mark.sequence)
    if since == last or stream.retention != LIMITS:  # others cannot be read without taking messages from somebody
        return _Tail(last, new=last == 0)
    found = stored_ids(js, stream, since, ids.query_prefix)
    rows = int(np.count_nonzero(flags_of(pc.starts_with(found.ids, ids.prefix))))
    # Rows of this micro-batch would stand behind those of the one before.
    before = pc.any(pc.starts_with(found.ids, f"{ids.query_prefix}{int(task.batch or 0) - 1}-")).as_py()
    return _Tail(since, rows, new=not task.own_ids and not rows and not found.removed and bool(before or since == 0))


def _report_older(options: WriteOptions, task: Task, stream: StreamInfo, tail: _Tail, why: str) -> None:
    """Fail or warn because the bucket is older than the query's checkpoint."""
    what = (
        f"the state bucket {options.state_bucket!r} is older than the query's checkpoint, which is at micro-batch "
        f"{task.batch}: {why} (was it restored from a copy, or has the query written without deduplicate=exact "
        "meanwhile?)"
    )
    looked = stream.last_sequence - tail.since
    found = f" that are not among the last {looked} messages of stream {stream.name!r}" if looked else ""
    report_loss(
        what,
        options.fail_on_data_loss,
        f"all rows of {task.name}{found}, so that some may be stored twice",
        "put the right copy back, or set the option 'failOnDataLoss' to false for this micro-batch, of which rows may "
        "then be stored twice",
    )


# A stream that was put back


def _look_back(
    connection: Connection, options: WriteOptions, task: Task, stream: StreamInfo, mark: Mark, known: bool
) -> tuple[StreamInfo, Mark]:
    """Return the stream's state, and where to read it back from.

    That is where the task began first, unless the stream has lost its end since: then it is where its present history
    begins, which is noted before anything is stored there.
    """
    js = JetStream(connection, options.api_prefix)
    if not known:
        stream = state_beyond_doubt(js, stream)
    if _has_kept(js, mark, stream):
        return stream, mark
    if known:
        stream = state_beyond_doubt(js, stream)
        if _has_kept(js, mark, stream):
            return stream, mark
    # A note of an older version does not say when the message was stored; it was written a moment later.
    seen = Fingerprint(mark.sequence, mark.timestamp or mark.time - (SKEW if connection.info.cluster else 0))
    since = min(first_after(js, seen, stream), mark.sequence) - 1
    this, others = _names(task)
    logger.warning(
        "stream %s has lost %d messages that it had acknowledged: it ended at sequence %d%s when %s began first, and "
        "what it had behind sequence %d then is gone; rows of %s that were among them are not stored again, those of "
        "this one are",
        stream.name,
        mark.sequence - since,
        mark.sequence,
        _stored_at(mark),
        this,
        since,
        others,
    )
    there = next_message(js, stream.name, since, (">",), whole=False) if since >= stream.first_sequence else None
    timestamp = there.time if there is not None and there.sequence == since else 0
    mark = replace(mark, sequence=since, timestamp=timestamp)
    if task.batch is not None:
        _note_anew(js, options, task, mark)
    return stream, mark


def _has_kept(js: JetStream, mark: Mark, stream: StreamInfo) -> bool:
    """Tell whether a stream has what it had when a task began."""
    if not mark.timestamp:
        return mark.sequence <= stream.last_sequence
    return history_of(js, Fingerprint(mark.sequence, mark.timestamp), stream) is History.KEPT


def _note_anew(js: JetStream, options: WriteOptions, task: Task, mark: Mark) -> None:
    """Note another mark for a task that was begun before, unless another attempt has done so."""
    deadline = time.monotonic() + CONFIRMATION
    batch = int(task.batch or 0)
    while True:
        entry, state = _read(js, options, task.key)
        if state is None or state.batch != batch or state.mark.sequence == mark.sequence:
            return
        if _note(js, options, task.key, batch, mark, entry.revision, deadline):
            return


def _look_at_end(
    connection: Connection, options: WriteOptions, task: Task, began: str | None, mark: Mark, stream: StreamInfo
) -> StreamInfo:
    """Warn if a stream ends before the place where a micro-batch, or this write, began; return its state."""
    if mark.sequence > stream.last_sequence:
        stream = state_beyond_doubt(JetStream(connection, options.api_prefix), stream)
    if mark.sequence > stream.last_sequence:
        this, others = _names(task)
        logger.warning(
            "stream %s has lost messages that it had acknowledged: it ended at sequence %d%s when %s began, and now "
            "ends at %d; rows of %s that were among them are not stored again",
            stream.name,
            mark.sequence,
            _stored_at(mark),
            this if began is None else f"micro-batch {began}",
            stream.last_sequence,
            others,
        )
    return stream


def _names(task: Task) -> tuple[str, str]:
    """Return how messages name what a task belongs to, and others of its kind."""
    if task.batch is None:
        return "this write", "other writes"
    return f"micro-batch {task.batch}", "micro-batches before this one"


def _stored_at(mark: Mark) -> str:
    return f" (stored at {text_of(mark.timestamp)})" if mark.timestamp else ""


# Notes


def _state_of(entry: Entry, key: str) -> _State | None:
    if not entry.value:
        return None
    try:
        note = parse_document(entry.value)
        mark = Mark(
            string_at(note, "stream"),
            string_at(note, "created"),
            integer_at(note, "sequence"),
            entry.time,
            time_at(note, "timestamp") if "timestamp" in note else 0,
        )
        return _State(integer_at(note, "batch"), mark)
    except ValueError as error:
        raise NatsError(
            f"the key {key!r} of the state bucket holds something else than the state of a query: {error}; "
            "has another program written there?"
        ) from None


def check_partitions(connection: Connection, options: WriteOptions, query: str, batch: int, partitions: int) -> None:
    """Check that a micro-batch that was begun before is not split into fewer partitions now.

    Raises:
        PublishError: it is, so that rows of the partitions that are gone were stored twice.
        NatsError: the state could not be read.
    """
    bucket = Bucket(JetStream(connection, options.api_prefix), str(options.state_bucket))
    with _about_the_bucket(options):
        for key in bucket.keys(f"{query}.*"):
            partition = key.rpartition(".")[2]
            if partition.isdigit() and int(partition) >= partitions:
                state = _state_of(bucket.get(key), key)
                if state is not None and state.batch == batch and state.mark.stream == options.stream:
                    raise other_partitions(f"micro-batch {batch}", f"partition {partition}, which it does not have now")


def other_partitions(what: str, whose: str) -> PublishError:
    """Return the error that a micro-batch which is run again is not split as before."""
    return PublishError(
        f"{what} was begun before, and is not split into the same partitions now: rows were stored by {whose}, and are "
        "now stored a second time; run it again with the settings it was begun with (such as 'minPartitions', "
        "'maxRecordsPerPartition', spark.sql.shuffle.partitions), and let it read the same; or set the option "
        "'deduplicate' to window to go on"
    )


def prepare_to_settle(
    connection: Connection, options: WriteOptions, stream: StreamInfo, streaming: bool
) -> Mark | None:
    """Make sure, on the driver, that tasks can note what they begin, and read back what they have stored.

    Returns:
        For a batch write, where the stream ends now.

    Raises:
        NatsError: they cannot. The message says what to permit, or how to do without.
    """
    if options.deduplicate != EXACT:
        return None
    js = JetStream(connection, options.api_prefix)
    if streaming:
        with _about_the_bucket(options):
            purpose = "where micro-batches that Spark writes to streams begin"
            make_bucket(js, str(options.state_bucket), replicas=stream.replicas, description=purpose).put(_PROBE, b"{}")
    if stream.retention == LIMITS:
        try:
            try_to_read(js, stream.name, stream.last_sequence + 1)
        except (PermissionsError, JetStreamError) as error:
            raise error.with_context(
                f"what a task has stored could not be read back from stream {stream.name!r} if it is tried again: "
                f"{error}"
            ).advising(Remedy.READ_BACK) from None
    return None if streaming else _mark_of(stream)


@contextlib.contextmanager
def _about_the_bucket(options: WriteOptions) -> Iterator[None]:
    """Say of an error that it is about the state bucket, and what to do."""
    try:
        yield
    except (PermissionsError, JetStreamError) as error:
        raise error.with_context(
            f"the state bucket {options.state_bucket!r}, where tasks note what they begin, cannot be used: {error}"
        ).advising(Remedy.STATE_BUCKET) from None
