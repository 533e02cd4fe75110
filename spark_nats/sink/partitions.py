"""Writing one partition, on its executor, over one connection; and what the driver looks at before there are any."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from spark_nats.client.connection import Connection, connect
from spark_nats.client.pool import borrow, lend
from spark_nats.client.publishing import CorePublisher
from spark_nats.errors import InvalidRowError, NatsError, PublishError, SchemaError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.batches import MOST_ROWS, BatchPublisher, partly_stored
from spark_nats.jetstream.keyvalue import naming_bucket
from spark_nats.jetstream.publishing import Publisher
from spark_nats.jetstream.streams import (
    StreamInfo,
    create_stream,
    naming_the_nearest,
    stream_info,
    stream_names,
)
from spark_nats.options.values import NEVER
from spark_nats.options.write import WriteOptions
from spark_nats.protocol.control import ServerInfo
from spark_nats.protocol.subjects import subject_violation
from spark_nats.sink.columns import RowChecker
from spark_nats.sink.conflicts import Conflicts
from spark_nats.sink.message_ids import MessageIds
from spark_nats.sink.settling import Settled, other_partitions, prepare_to_settle, settle
from spark_nats.sink.tasks import Mark, Task, Written

logger = logging.getLogger(__name__)

_SUBJECTS_LOOKED_AT = 8
_MOST_TOGETHER = 1 << 30  # bytes that are kept until the last row has come


def write_partition(options: WriteOptions, task: Task, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write one partition, on an executor.

    Args:
        options: where and how.
        task: which one it is.
        batches: the rows.

    Raises:
        InvalidRowError: a row cannot be sent.
        NatsError: the server did not take a row; the message says which rows are safe.
    """
    ids = MessageIds(task.query, task.batch, task.partition) if options.stream and task.query else None
    what = f"writing to {options.stream or 'core NATS'}"
    settled: Settled | None = None
    with lend(options.connection, options.retries, what) as loan:
        publisher: Publisher | CorePublisher | BatchPublisher
        max_payload = loan.connection.info.max_payload
        if options.stream is None:
            publisher = CorePublisher(loan)
            checker = RowChecker(options, max_payload, ids, names_stream=False)
            count = _write_rows(publisher, checker, _looked_at(options, task.query, batches), None)
        else:
            stream = loan.ask(lambda connection: writable(connection, options))
            if ids is not None and options.deduplicate != NEVER:
                settled = settle(loan, options, task, ids, stream)
            # A stream of counters refuses the header that names the stream.
            checker = RowChecker(options, max_payload, ids, names_stream=not _counts(stream))
            if options.atomic:
                publisher = BatchPublisher(loan, stream, options.ack_timeout, options.api_prefix)
                count = _write_whole(publisher, checker, batches, settled, stream.name)
            else:
                publisher = Publisher(
                    loan.connection,
                    stream.name,
                    options.max_in_flight,
                    options.ack_timeout,
                    loan=loan,
                    api_prefix=options.api_prefix,
                    began=stream,
                    resolve=Conflicts(options, options.bucket).resolve if options.bucket else None,
                )
                count = _write_rows(publisher, checker, batches, settled)
                if publisher.skipped:
                    logger.warning(
                        "bucket %s: %d of the %d rows of this task were skipped, because their keys had other "
                        "revisions than they expected",
                        options.bucket,
                        publisher.skipped,
                        count,
                    )
    if settled is not None:
        _report_settled(task, settled, count)
    elif publisher.duplicates:
        _warn_of_duplicates(options, publisher.duplicates, count)
    skipped = publisher.skipped if isinstance(publisher, Publisher) else 0
    return Written(count - skipped, publisher.duplicates, task.query if settled is not None else None)


def _write_rows(
    publisher: Publisher | CorePublisher,
    checker: RowChecker,
    batches: Iterator[pa.RecordBatch],
    settled: Settled | None,
) -> int:
    """Write rows as they come; return how many there were."""
    count = 0
    for batch in batches:
        try:
            rows = checker.check(batch, count)
        except InvalidRowError:
            publisher.drain()  # so that what the message says was sent is safe
            raise
        if settled is not None:
            rows = rows.where(settled.missing(rows.ids))
        for part in rows.in_turn():
            if part.conditional is None or isinstance(publisher, CorePublisher):
                publisher.publish(part.subjects, part.payloads, part.headers, part.replies, part.ids)
            else:
                publisher.drain()
                publisher.publish(part.subjects, part.payloads, part.headers, None, part.ids, conditional=True)
        count += batch.num_rows
    publisher.drain()
    if isinstance(publisher, Publisher):
        publisher.verify()
    publisher.close()
    return count


def _write_whole(
    publisher: BatchPublisher,
    checker: RowChecker,
    batches: Iterator[pa.RecordBatch],
    settled: Settled | None,
    stream: str,
) -> int:
    """Write rows together or not at all; return how many there were."""
    parts: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        count += batch.num_rows
        if count > MOST_ROWS:
            raise PublishError(
                f"the partition has more than {MOST_ROWS} rows, which cannot be stored together; nothing was sent; "
                "make the partitions smaller (repartition, or 'maxOffsetsPerTrigger' of what is read), or drop the "
                "option 'atomic'"
            )
        parts.append(batch)
        size += batch.nbytes
        if size > _MOST_TOGETHER:
            raise PublishError(
                f"the partition has more than {_MOST_TOGETHER >> 20} MiB, which are not stored together; nothing was "
                "sent; make the partitions smaller, or drop the option 'atomic'"
            )
    if not count:
        return 0
    (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    rows = checker.check(whole, 0)
    rows.check_together()
    missing = np.ones(count, np.bool_) if settled is None else settled.missing(rows.ids)
    if missing.any() and not missing.all():
        raise partly_stored(stream, rows.ids, ~missing)
    if missing.any():
        publisher.publish(rows.subjects, rows.payloads, rows.headers, rows.ids)
    return count


def writable(connection: Connection, options: WriteOptions) -> StreamInfo:
    """Return the state of the stream that is written to: what is wrong with it is said before anything is sent.

    Raises:
        PublishError: it does not acknowledge what it stores.
        NatsError: there is none, or the server does not say.
    """
    js = JetStream(connection, options.api_prefix)
    stream = str(options.stream)
    found = stream_info(js, stream) if options.create_stream is None else create_stream(js, options.create_stream)
    if found.config.get("no_ack"):
        raise PublishError(
            f"stream {stream!r} does not acknowledge what it stores (its no_ack is true), so no row would be known to "
            "be safe; nothing was sent; set no_ack to false, or write to core NATS by leaving out the option 'stream'"
        )
    return found


def prepare(options: WriteOptions, streaming: bool, columns: Sequence[str] = ()) -> Mark | None:
    """Do once, on the driver, what would fail in every task: log in, look at the stream, see that tasks can settle.

    Args:
        options: where and how.
        streaming: whether a streaming query writes.
        columns: names of the columns that are written.

    Returns:
        Where the stream ends, if the tasks of a batch write are to know.

    Raises:
        NatsError: something of that is not possible.
    """
    with connect(options.connection) as connection:
        if options.stream is None:
            return None
        js, bucket = JetStream(connection, options.api_prefix), options.bucket
        with naming_bucket(js, bucket) if bucket else naming_the_nearest(js, [options.stream], to_read=False):
            stream = writable(connection, options)
        _check_stream(stream, options, columns)
        if options.atomic:
            _check_atomic(stream, connection.info)
        return prepare_to_settle(connection, options, stream, streaming)


def _check_stream(stream: StreamInfo, options: WriteOptions, columns: Sequence[str]) -> None:
    """Check that a stream takes what the columns ask for.

    Raises:
        SchemaError: it does not.
    """
    if "ttl" in columns and not stream.config.get("allow_msg_ttl"):
        if options.bucket is not None:
            raise SchemaError(
                f"bucket {options.bucket!r} does not let keys have lifetimes of their own, as column 'ttl' asks for; "
                "make it with a limit_marker_ttl, set its allow_msg_ttl to true, or drop the column"
            )
        raise SchemaError(
            f"stream {stream.name!r} does not let messages have a lifetime of their own (its allow_msg_ttl is not "
            "true), as the column 'ttl' asks for; set allow_msg_ttl to true, or drop the column"
        )
    if "increment" in columns and not _counts(stream):
        raise SchemaError(
            f"stream {stream.name!r} has no counters (its allow_msg_counter is not true), as the column 'increment' "
            "asks for; make one with allow_msg_counter, or drop the column"
        )
    if not _counts(stream):
        return
    if "increment" not in columns and not (options.control_headers and "headers" in columns):
        raise SchemaError(
            f"stream {stream.name!r} has counters (its allow_msg_counter is true), and takes nothing but increments; "
            "add the column 'increment'"
        )
    if "expected_last_subject_sequence" in columns:
        raise SchemaError(
            f"stream {stream.name!r} has counters (its allow_msg_counter is true), which are incremented in any case; "
            "drop the column 'expected_last_subject_sequence'"
        )


def _check_atomic(stream: StreamInfo, server: ServerInfo) -> None:
    """Check that a stream, and the server that is asked for it, store rows together.

    Raises:
        PublishError: they do not.
    """
    if server.is_older_than(2, 12):
        raise PublishError(
            f"rows are stored together by nats-server 2.12 and later, and this is {server.version}; nothing was sent; "
            "bring the servers up to date, or drop the option 'atomic'"
        )
    if not stream.config.get("allow_atomic"):
        raise PublishError(
            f"stream {stream.name!r} does not store rows together (its allow_atomic is not true); nothing was sent; "
            "set allow_atomic to true, or drop the option 'atomic'"
        )


def _counts(stream: StreamInfo) -> bool:
    """Tell whether each subject of a stream is a counter (ADR-49)."""
    return bool(stream.config.get("allow_msg_counter"))


def _report_settled(task: Task, settled: Settled, rows: int) -> None:
    """Say what a task that was begun before had stored then.

    Raises:
        PublishError: some of it was not among its rows now.
    """
    if settled.strangers:
        raise other_partitions(task.name, f"this partition before that are not among its {rows} rows now")
    if settled.rows:
        logger.info("%s was begun before: %d of its %d rows were stored then", task.name, settled.rows, rows)


def _warn_of_duplicates(options: WriteOptions, duplicates: int, rows: int) -> None:
    context = TaskContext.get()
    if context and context.attemptNumber():
        return  # as it should be
    logger.warning(
        "stream %s had %d of the %d rows of this task already, by their message ids, and has not stored them: "
        "the micro-batch was run before, or rows have the same 'msg_id'",
        options.stream,
        duplicates,
        rows,
    )


_looked: deque[str] = deque(maxlen=64)
"""The last writes of this process of which the subjects were looked at."""


def _looked_at(options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on. Of the first one in this process warn about subjects that a stream captures."""
    for batch in batches:
        if write_id not in _looked and batch.num_rows:
            _looked.append(write_id)
            _warn_of_streams(options, batch)
        yield batch


def _warn_of_streams(options: WriteOptions, batch: pa.RecordBatch) -> None:
    """Warn when a stream listens on what is written without acknowledgement, since it may then drop messages unseen."""
    if options.subject is not None:
        subjects = [options.subject]
    else:
        subjects = pc.unique(batch.column("subject"))[:_SUBJECTS_LOOKED_AT].to_pylist()
    # On a connection of its own: a user who may not ask, or a server without JetStream, is no fault of the write.
    with contextlib.suppress(NatsError), borrow(options.connection) as connection:
        js = JetStream(connection, options.api_prefix)
        for subject in subjects:
            if subject and not subject_violation(subject) and (streams := stream_names(js, subject)):
                logger.warning(
                    "the subject %r belongs to the stream %s, but is written without the option 'stream': nothing is "
                    "acknowledged, and the stream may drop messages without an error; set the option 'stream' to %r",
                    subject,
                    ", ".join(map(repr, streams)),
                    streams[0],
                )
                return
