"""The batch and the streaming writer. Both publish each partition over one connection, from its executor."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_nats.client.connection import Connection
from spark_nats.client.pool import borrow
from spark_nats.client.publishing import CorePublisher
from spark_nats.errors import InvalidRowError, NatsError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing import Publisher
from spark_nats.jetstream.streams import StreamInfo, create_stream, stream_info, streams_of_subject
from spark_nats.options.remedies import naming_options
from spark_nats.options.write import WriteOptions
from spark_nats.protocol.subjects import subject_violation
from spark_nats.sink.columns import RowChecker
from spark_nats.sink.message_ids import MessageIds

logger = logging.getLogger(__name__)

_SUBJECTS_LOOKED_AT = 8


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task reports when all its rows are safe.

    Attributes:
        rows: how many rows it wrote.
        duplicates: how many of them the stream had already, by their message ids.
    """

    rows: int
    duplicates: int = 0


def write_partition(
    options: WriteOptions, ids: MessageIds | None, batches: Iterator[pa.RecordBatch], write_id: str = ""
) -> Written:
    """Write one partition, on an executor.

    Args:
        options: where and how.
        ids: gives rows their message ids; None when none are to be generated.
        batches: the rows.
        write_id: tells this write, or this query, from others: what is to be warned about once is so for each.

    Raises:
        InvalidRowError: a row cannot be sent.
        NatsError: the server did not take a row; the message says which rows are safe.
    """
    with naming_options(), borrow(options.connection) as connection:
        publisher: Publisher | CorePublisher
        if options.stream is None:
            names_stream = False
            publisher = CorePublisher(connection)
            batches = _looked_at(options, write_id, batches)
        else:
            # A stream of counters refuses the header that names the stream.
            names_stream = not _writable(connection, options, options.stream).config.get("allow_msg_counter")
            publisher = Publisher(
                connection, options.stream, options.max_in_flight, options.ack_timeout, identified=ids is not None
            )
        checker = RowChecker(options, connection.info.max_payload, ids, names_stream)
        count = 0
        for batch in batches:
            try:
                rows = checker.check(batch, count)
            except InvalidRowError:
                publisher.drain()  # so that what the message says was sent is safe
                raise
            publisher.publish(rows.subjects, rows.payloads, rows.headers, rows.replies)
            count += batch.num_rows
        publisher.drain()
        publisher.close()
    if publisher.duplicates:
        _warn_of_duplicates(options, publisher.duplicates, count)
    return Written(count, publisher.duplicates)


def _writable(connection: Connection, options: WriteOptions, stream: str) -> StreamInfo:
    """Return the state of the stream that is written to: what is wrong with it is said before anything is sent."""
    js = JetStream(connection, options.api_prefix)
    found = stream_info(js, stream) if options.create_stream is None else create_stream(js, options.create_stream)
    if found.config.get("no_ack"):
        raise PublishError(
            f"stream {stream!r} does not acknowledge what it stores (its no_ack is true), so no row would be known to "
            "be safe; nothing was sent; set no_ack to false, or write to core NATS by leaving out the option 'stream'"
        )
    return found


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
            if subject and not subject_violation(subject) and (streams := streams_of_subject(js, subject)):
                logger.warning(
                    "the subject %r belongs to the stream %s, but is written without the option 'stream': nothing is "
                    "acknowledged, and the stream may drop messages without an error; set the option 'stream' to %r",
                    subject,
                    ", ".join(map(repr, streams)),
                    streams[0],
                )
                return


class NatsWriter(DataSourceArrowWriter):
    """Writes a DataFrame.

    Args:
        options: where and how.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Made once, on the driver: a task that is tried again gives its rows the same ids.
        self._id = secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition."""
        return write_partition(self._options, _message_ids(self._options, self._id, None), iterator, self._id)


class NatsStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query.

    Args:
        options: where and how.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of a micro-batch."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if self._options.deduplicate and not (query and batch):
            raise NatsError(
                "Spark does not say which query and micro-batch this is, so rows cannot get message ids that a "
                "replay repeats; set the option 'deduplicate' to false, or add the column 'msg_id'"
            )
        return write_partition(self._options, _message_ids(self._options, query or "", batch), iterator, query or "")


def _message_ids(options: WriteOptions, query: str, batch: str | None) -> MessageIds | None:
    """Return what gives this task's rows their message ids, None when they are to have none."""
    if not options.deduplicate:
        return None
    context = TaskContext.get()
    return MessageIds(query, batch, context.partitionId() if context else 0)
