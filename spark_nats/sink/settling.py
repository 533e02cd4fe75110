"""What an earlier attempt at the same task has stored already, however long ago that was.

A stream knows a message id again for its ``duplicate_window`` only. So each task of a streaming query notes, before its
first row, where the stream ended then: in a KV bucket, under a key for the query and the partition. One that finds its
own micro-batch noted there knows that somebody has begun it before, reads the message ids of what the stream has stored
since, and leaves out the rows that they belong to. The ids go on protecting against attempts that run at the same time.

A batch has no life after its driver, so there the driver notes it, and tasks that are tried again get it from there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
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
from spark_nats.jetstream.keyvalue import Bucket, Entry, make_bucket
from spark_nats.jetstream.stored import stored_ids
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.options.losses import report_loss
from spark_nats.options.values import EXACT
from spark_nats.options.write import WriteOptions
from spark_nats.protocol.api import ErrCode
from spark_nats.protocol.bytecolumns import Mask, booleans, flags_of, values_of
from spark_nats.protocol.documents import integer_at, parse_document, string_at
from spark_nats.sink.message_ids import MessageIds
from spark_nats.sink.tasks import Mark, Task

logger = logging.getLogger(__name__)

_ONCE_MORE = 0.25  # seconds before a state that was not the last one is asked for again
_PROBE = "probe"  # key by which the driver tells whether the bucket can be written to


class _State(NamedTuple):
    """What a task noted when it began."""

    batch: int
    mark: Mark


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
        mark = loan.ask(lambda connection: _begin(connection, options, task, stream))
    if mark is None or mark.created != stream.created:
        return None
    known = stream.knows_again((stream.time - mark.time) / 1e9)  # every id of the earlier attempt
    if stream.retention != "limits":  # it cannot be read without taking messages from others
        if not known and stream.last_sequence > mark.sequence:
            _report(options, task, f"stream {stream.name!r} has {stream.retention} retention, and cannot be read back")
        return None
    if not known:
        said = stream
        stream = loan.ask(lambda connection: state_beyond_doubt(JetStream(connection, options.api_prefix), said))
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


def _begin(connection: Connection, options: WriteOptions, task: Task, stream: StreamInfo) -> Mark | None:
    """Note that a task begins; return what is noted when it began before."""
    bucket = Bucket(JetStream(connection, options.api_prefix), str(options.state_bucket))
    note = {
        "batch": int(task.batch or 0),
        "stream": stream.name,
        "created": stream.created,
        "sequence": stream.last_sequence,
    }
    deadline = time.monotonic() + CONFIRMATION
    with _about_the_bucket(options):
        while True:
            entry = bucket.get(task.key)
            if (mark := _begun_before(_state_of(entry, task.key), task, stream)) is not None:
                return mark
            try:
                bucket.put(task.key, json.dumps(note).encode(), entry.revision)
            except JetStreamError as error:
                # A leader that was stopped for a while has said what was; or another attempt has just begun.
                if error.err_code != ErrCode.WRONG_LAST_SEQUENCE or time.monotonic() > deadline:
                    raise
                connection.wait(_ONCE_MORE)
            else:
                return None


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
    if (state.mark.stream, state.mark.created) == (stream.name, stream.created):
        return state.mark
    logger.warning(
        "%s was begun before, and written to the stream %s that was made at %s; now all of it is written to %s",
        task.name,
        state.mark.stream,
        state.mark.created,
        stream.name,
    )
    return None


def _state_of(entry: Entry, key: str) -> _State | None:
    if not entry.value:
        return None
    try:
        note = parse_document(entry.value)
        mark = Mark(string_at(note, "stream"), string_at(note, "created"), integer_at(note, "sequence"), entry.time)
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
    if stream.retention == "limits":
        try:
            try_to_read(js, stream.name, stream.last_sequence + 1)
        except (PermissionsError, JetStreamError) as error:
            raise error.with_context(
                f"what a task has stored could not be read back from stream {stream.name!r} if it is tried again: "
                f"{error}"
            ).advising(Remedy.READ_BACK) from None
    return None if streaming else Mark(stream.name, stream.created, stream.last_sequence, stream.time)


@contextlib.contextmanager
def _about_the_bucket(options: WriteOptions) -> Iterator[None]:
    """Say of an error that it is about the state bucket, and what to do."""
    try:
        yield
    except (PermissionsError, JetStreamError) as error:
        raise error.with_context(
            f"the state bucket {options.state_bucket!r}, where tasks note what they begin, cannot be used: {error}"
        ).advising(Remedy.STATE_BUCKET) from None
