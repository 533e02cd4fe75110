"""Writing one partition on its executor."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from spark_nats.client.pool import Lease, borrow, leased
from spark_nats.client.publishing import CorePublisher
from spark_nats.client.reporting import Reporter
from spark_nats.conditions import ConditionText, Hint
from spark_nats.errors import InvalidRowError, NatsError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.listing import stream_names
from spark_nats.jetstream.publishing.batches import MAX_ROWS, BatchPublisher
from spark_nats.jetstream.publishing.conflicts import ConflictResolver
from spark_nats.jetstream.publishing.publisher import Publisher
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.options import EXACT, NEVER, WriteOptions
from spark_nats.kinds.streams.write import conditions
from spark_nats.kinds.streams.write.checks import writable
from spark_nats.kinds.streams.write.columns import RowChecker, has_counters
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.kinds.streams.write.replay import AlreadyStored, Before, find_already_stored
from spark_nats.kinds.streams.write.sink import PLAIN, Sink
from spark_nats.kinds.streams.write.tasks import Counts, WriteTask, Written
from spark_nats.protocol.subjects import subject_violation

if TYPE_CHECKING:
    from spark_nats.kinds.streams.write.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

_SUBJECTS_LOOKED_AT = 8
_MAX_TOGETHER = 1 << 30  # bytes that a task keeps until its last row arrives


def write_partition(
    options: WriteOptions, task: WriteTask, batches: Iterator[pa.RecordBatch], sink: Sink = PLAIN
) -> Written:
    """Write one partition, on an executor.

    Raises:
        InvalidRowError: a row cannot be sent.
        PublishError: an earlier attempt has stored rows that are not among these.
        NatsError: the server did not accept a row; the message tells which rows are safe.
    """
    ids = MessageIds(task.query, task.batch, task.partition) if options.stream and task.query else None
    what = f"writing to {options.stream or 'core NATS'}"
    stream: StreamInfo | None = None
    before: Before | None = None
    unsure = False
    bad = sink.dead_letters(options, sink.columns)
    # Core NATS loses what is sent over a dead connection, so the lease waits until the server has answered.
    with leased(options.connection, options.retries, what, waits=options.stream is None) as lease:
        publisher: Publisher | CorePublisher | BatchPublisher
        max_payload = lease.connection.info.max_payload
        if options.stream is not None:
            key = task.key if task.batch is not None and options.deduplicate == EXACT else None
            stream, entry = lease.ask(lambda connection: writable(connection, options, key))
            if ids is not None and options.deduplicate != NEVER:
                before, unsure = find_already_stored(lease, options, task, ids, stream, entry)
        already_stored = before.already_stored if before is not None else None
        if bad is not None:
            bad.begin(lease, task, before)
        # A stream of counters refuses the header that names the stream.
        names_stream = stream is not None and not has_counters(stream)
        checker = RowChecker(options, max_payload, ids, names_stream, sink.columns)
        if stream is None:
            publisher = _core_publisher(lease, task)
            count, size = _write_rows(publisher, checker, _looked_at(options, task.query, batches), None, bad)
        elif options.atomic:
            publisher = BatchPublisher(lease, stream, options.ack_timeout, options.api_prefix)
            count, size = _write_whole(publisher, checker, batches, already_stored)
        else:
            resolve = sink.conflicts(bad is not None) if sink.conflicts else None
            publisher = _publisher(lease, options, stream, task, bad, resolve)
            with _advising(options):
                count, size = _write_rows(publisher, checker, batches, already_stored, bad)
            if publisher.skipped and sink.skipped:
                logger.warning(sink.skipped(publisher.skipped, count).with_code)
    if already_stored is not None:
        if already_stored.unexpected + (bad.unexpected if bad is not None else 0):
            whose = f"that this partition stored before, and that are not among its {count} rows now,"
            raise PublishError(conditions.OTHER_PARTITIONS(task=task.name, which=whose))
        if already_stored.rows:
            logger.info(conditions.BEGUN_BEFORE(task=task.name, stored=already_stored.rows, rows=count).with_code)
    elif publisher.duplicates and not ((context := TaskContext.get()) and context.attemptNumber()):
        # A retried attempt is expected to find rows that are stored already.
        logger.warning(
            conditions.ROWS_STORED_ALREADY(stream=options.stream, duplicates=publisher.duplicates, rows=count).with_code
        )
    if bad is not None:
        bad.warn(count)
    skipped = publisher.skipped if isinstance(publisher, Publisher) else 0
    refused = bad.count if bad is not None else 0
    duplicates = publisher.duplicates + (already_stored.rows if already_stored is not None else 0)
    counts = Counts(count - skipped - refused, size, duplicates, skipped, lease.reconnects, refused)
    return Written(counts, task.query if unsure else None, task.run)


@contextlib.contextmanager
def _advising(options: WriteOptions) -> Iterator[None]:
    """Advise to correct the option ``subject`` if it is set, else to mend or set aside rows with a wrong subject."""
    try:
        yield
    except PublishError as error:
        if Hint.SUBJECT in error.hints and options.subject is None:
            raise error.advising(Hint.ROW) from None
        raise


def _core_publisher(lease: Lease, task: WriteTask) -> CorePublisher:
    """Return a publisher to core NATS that logs its progress."""

    def said(rows: int, rate: float) -> ConditionText:
        return conditions.STILL_SENDING(task=task.name, rows=rows, rate=rate)

    publisher = CorePublisher(lease, Reporter(logger, lambda: publisher.confirmed, said))
    return publisher


def _publisher(
    lease: Lease,
    options: WriteOptions,
    stream: StreamInfo,
    task: WriteTask,
    bad: DeadLetters | None,
    resolve: ConflictResolver | None,
) -> Publisher:
    """Return a publisher to a stream that logs its progress."""

    def said(rows: int, rate: float) -> ConditionText:
        return conditions.STILL_WRITING(
            stream=stream.name,
            task=task.name,
            rows=rows,
            rate=rate,
            in_flight=publisher.in_flight,
            window=publisher.window,
            resent=publisher.resent,
        )

    publisher = Publisher(
        lease.connection,
        stream,
        options.max_in_flight,
        options.ack_timeout,
        lease=lease,
        api_prefix=options.api_prefix,
        resolve=resolve,
        on_stored=Reporter(logger, lambda: publisher.confirmed, said),
        aside=bad,
    )
    return publisher


def _write_rows(
    publisher: Publisher | CorePublisher,
    checker: RowChecker,
    batches: Iterator[pa.RecordBatch],
    already_stored: AlreadyStored | None,
    bad: DeadLetters | None,
) -> tuple[int, int]:
    """Write rows as they arrive; return their number, and the bytes of the rows that were sent."""
    count = size = 0
    for batch in batches:
        try:
            rows = checker.check(batch, count) if bad is None else bad.valid_rows(checker, batch, count)
        except InvalidRowError:
            publisher.drain()  # the error reports these rows as sent, so they must be safe
            raise
        if already_stored is not None:
            rows = rows.where(already_stored.missing(rows.ids))
        if bad is not None:
            rows = bad.rows_to_send(checker, rows)
        size += int(rows.sizes.sum())
        for part in rows.split_conditional():
            if part.conditional is None or isinstance(publisher, CorePublisher):
                publisher.publish(part.subjects, part.payloads, part.headers, part.replies, part.ids)
            else:
                publisher.drain()
                publisher.publish(part.subjects, part.payloads, part.headers, None, part.ids, conditional=True)
        count += batch.num_rows
    publisher.drain()
    if isinstance(publisher, Publisher) and publisher.needs_verifying:
        publisher.verify()
    publisher.close()
    if bad is not None:
        bad.flush(at_end=True)
    return count, size


def _write_whole(
    publisher: BatchPublisher,
    checker: RowChecker,
    batches: Iterator[pa.RecordBatch],
    already_stored: AlreadyStored | None,
) -> tuple[int, int]:
    """Write rows together or not at all; return their number, and the bytes of the rows that were sent."""
    parts: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        count += batch.num_rows
        if count > MAX_ROWS:
            raise PublishError(conditions.TOO_MANY_ROWS_TOGETHER(rows=MAX_ROWS))
        parts.append(batch)
        size += batch.nbytes
        if size > _MAX_TOGETHER:
            raise PublishError(conditions.TOO_MANY_BYTES_TOGETHER(mebibytes=_MAX_TOGETHER >> 20))
    if not count:
        return 0, 0
    (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    rows = checker.check(whole, 0)
    rows.check_together()
    if already_stored is not None and publisher.all_or_none(rows.ids, ~already_stored.missing(rows.ids)):
        return count, 0
    publisher.publish(rows.subjects, rows.payloads, rows.headers, rows.ids)
    return count, int(rows.sizes.sum())


_looked: deque[str] = deque(maxlen=64)
"""The last writes of this process whose subjects were compared with those of streams."""


def _looked_at(options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on; call :func:`_warn_of_streams` for the first batch with rows of a write in this process."""
    for batch in batches:
        if write_id not in _looked and batch.num_rows:
            _looked.append(write_id)
            _warn_of_streams(options, batch)
        yield batch


def _warn_of_streams(options: WriteOptions, batch: pa.RecordBatch) -> None:
    """Warn when a stream listens on a subject that is written without acknowledgement.

    The stream may drop messages unseen. Only the first :data:`_SUBJECTS_LOOKED_AT` subjects are checked.
    """
    if options.subject is not None:
        subjects = [options.subject]
    else:
        subjects = pc.unique(batch.column("subject"))[:_SUBJECTS_LOOKED_AT].to_pylist()
    # This check has its own connection: without the permission or without JetStream, the write must not fail.
    with contextlib.suppress(NatsError), borrow(options.connection) as connection:
        js = JetStream(connection, options.api_prefix)
        for subject in subjects:
            if subject and not subject_violation(subject) and (streams := stream_names(js, subject)):
                logger.warning(
                    conditions.SUBJECT_OF_STREAM(
                        subject=subject, streams=", ".join(map(repr, streams)), stream=streams[0]
                    ).with_code
                )
                return
