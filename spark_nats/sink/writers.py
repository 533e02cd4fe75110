"""The batch and the streaming writer. Both publish each partition over one connection, from its executor."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_nats.client.connection import Connection
from spark_nats.client.pool import borrow
from spark_nats.errors import InvalidRowError, NatsError, PublishError, ServerError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing import Publisher
from spark_nats.jetstream.streams import create_stream, stream_info, streams_of_subject
from spark_nats.options import WriteOptions
from spark_nats.protocol.encoder import cut_into_parts, encode_messages
from spark_nats.protocol.subjects import subject_violation
from spark_nats.sink.columns import RowChecker, Rows
from spark_nats.sink.message_ids import MessageIds

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 65536
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
    with borrow(options.connection) as connection:
        if options.stream is not None:
            return _write_stream(connection, options, options.stream, ids, batches)
        checker = RowChecker(options, connection.info.max_payload, ids)
        return Written(_write_core(connection, checker, _looked_at(options, write_id, batches)))


def _write_stream(
    connection: Connection,
    options: WriteOptions,
    stream: str,
    ids: MessageIds | None,
    batches: Iterator[pa.RecordBatch],
) -> Written:
    js = JetStream(connection, options.api_prefix)
    # What is wrong with the stream is said before anything is sent.
    found = stream_info(js, stream) if options.create_stream is None else create_stream(js, options.create_stream)
    if found.config.get("no_ack"):
        raise PublishError(
            f"stream {stream!r} does not acknowledge what it stores (its no_ack is true), so no row would be known to "
            "be safe; nothing was sent; set no_ack to false, or write to core NATS by leaving out the option 'stream'"
        )
    # A stream of counters refuses the header that names the stream.
    names_stream = not found.config.get("allow_msg_counter")
    checker = RowChecker(options, connection.info.max_payload, ids, names_stream)
    publisher = Publisher(connection, stream, options.max_in_flight, options.ack_timeout, identified=ids is not None)
    count = 0
    for batch in batches:
        try:
            rows = checker.check(batch, count)
        except InvalidRowError:
            publisher.drain()  # so that what the message says was sent is stored
            raise
        publisher.publish(rows.subjects, rows.payloads, rows.headers)
        count += batch.num_rows
    publisher.drain()
    publisher.close()
    context = TaskContext.get()
    if publisher.duplicates and not (context and context.attemptNumber()):
        logger.warning(
            "stream %s had %d of the %d rows of this task already, by their message ids, and has not stored them: "
            "the micro-batch was run before, or rows have the same 'msg_id'",
            stream,
            publisher.duplicates,
            count,
        )
    return Written(count, publisher.duplicates)


def _write_core(connection: Connection, checker: RowChecker, batches: Iterator[pa.RecordBatch]) -> int:
    count = 0
    sent = 0  # at most: a part that is being sent counts as a whole
    marks: list[tuple[int, int]] = []  # PINGs, and how many rows were sent before each
    try:
        for batch in batches:
            rows = checker.check(batch, count)
            for part in cut_into_parts(rows.payloads, rows.headers, _ROWS_AT_ONCE):
                sent = count + part.stop
                connection.send(_encode(rows, part))
                marks.append((connection.mark(), sent))
            count += batch.num_rows
        connection.flush()
    except InvalidRowError:
        connection.flush()
        raise
    except NatsError as error:
        flushed = max((rows for mark, rows in marks if mark <= connection.passed), default=0)
        message = (
            f"{error}; {flushed} rows of this task were flushed before, "
            f"up to {sent} rows of this task were sent, without acknowledgement"
        )
        raise _same_kind(error, message) from None
    return count


_looked: set[str] = set()
"""The writes of this process of which the subjects were looked at."""


def _looked_at(options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on. Of the first one in this process warn about subjects that a stream captures."""
    for batch in batches:
        if write_id not in _looked and batch.num_rows:
            _looked.add(write_id)
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


def _encode(rows: Rows, part: slice) -> pa.Buffer:
    return encode_messages(
        rows.subjects[part],
        rows.payloads[part],
        None if rows.replies is None else rows.replies[part],
        None if rows.headers is None else rows.headers[part],
    )


def _same_kind(error: NatsError, message: str) -> NatsError:
    return type(error)(message, error.text) if isinstance(error, ServerError) else type(error)(message)


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
