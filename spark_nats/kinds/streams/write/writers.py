"""The batch and the streaming writer.

Spark creates the writer of each micro-batch, and calls its ``commit``, in new processes on the driver. So this module
imports only what is quick to import; tasks and checks import the rest when they begin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_nats import clock
from spark_nats.client.choosing import add_announced, encode_announced_servers
from spark_nats.conditions.queries import BATCH_WRITTEN, WRITES_NO_TABLE
from spark_nats.errors import NatsError, OptionError, PublishError
from spark_nats.kinds.preparing import prepare_if_due, retry_during_election
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.conditions import BATCH_UNKNOWN, NOT_RUN
from spark_nats.kinds.streams.write.metrics_channel import push_counts_if_wanted
from spark_nats.kinds.streams.write.sink import PLAIN, Sink, check_schema, may_have_ids, sink_of
from spark_nats.kinds.streams.write.tasks import Counts, StartMark, WriteTask, Written, sum_counts
from spark_nats.options.hints import errors_for_spark
from spark_nats.options.nearest import VIEW
from spark_nats.options.query import Query
from spark_nats.sparkapi import DataSourceStreamArrowWriter, is_table_creation

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


def job_group_of(context: TaskContext | None) -> str:
    """Return a task's job group: the id of a streaming query's run, else what a user has set; empty without any."""
    return (context.getLocalProperty("spark.jobGroup.id") if context else None) or ""


def prepare_and_make_writer(options: Query, schema: StructType) -> NatsWriter:
    """Return the writer of a batch, after checking that its tasks can write."""
    sink, columns = sink_of(options), schema.fieldNames()
    check_schema(schema, options, sink.columns)
    prepare = partial(_prepare_and_make_marks, options, False, columns, sink)
    marks = retry_during_election(prepare, options.retries, f"writing to {sink.target(options)}")
    return NatsWriter(options, sink, may_have_ids(columns, options), marks)


def prepare_and_make_stream_writer(options: Query, schema: StructType) -> NatsStreamWriter:
    """Return the writer of a micro-batch, after checking that its tasks can write, if that was not checked recently."""
    sink, columns = sink_of(options), schema.fieldNames()
    check_schema(schema, options, sink.columns)
    prepare = partial(_prepare_and_make_marks, options, True, columns, sink)
    prepare_if_due(f"{astuple(options)} {columns}", f"writing to {sink.target(options)}", options.retries, prepare)
    return NatsStreamWriter(options, sink, may_have_ids(columns, options))


def _prepare_and_make_marks(options: Any, streaming: bool, columns: Sequence[str], sink: Sink) -> tuple[StartMark, ...]:
    """Do on the driver what would fail in every task; return where the streams end, if tasks need to know that."""
    from spark_nats.kinds.streams.write.checks import prepare_write_and_make_marks

    if sink.prepare is not None:
        sink.prepare(options)
        return ()
    return prepare_write_and_make_marks(options, streaming, columns, sink)


def _write_messages(options: WriteOptions, task: WriteTask, batches: Iterator[pa.RecordBatch], sink: Sink) -> Written:
    if options.gives_ids and not task.query:
        raise NatsError(BATCH_UNKNOWN())

    from spark_nats.kinds.streams.write.partitions import write_partition

    return write_partition(options, task, batches, sink)


class _Writer:
    """Writes rows.

    Args:
        options: where and how.
        sink: the target.
        own_ids: whether rows may have message ids of their own.
        marks: where the streams end now, if retried tasks of a batch write read back what they have stored.
    """

    def __init__(
        self, options: Query, sink: Sink = PLAIN, own_ids: bool = False, marks: tuple[StartMark, ...] = ()
    ) -> None:
        self._options = options
        self._sink = sink
        self._own_ids = own_ids
        self._marks = marks
        # Created once, on the driver, so that a retried task gives its rows the same ids.
        self._id = clock.token(16)
        self._planned_at = clock.time_ns()
        self._announced = encode_announced_servers(options.connection)

    def _make_task(self, context: TaskContext | None, query: str, batch: str | None) -> WriteTask:
        """Return the task that runs here."""
        partition, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        run, planned_at = job_group_of(context), self._planned_at
        return WriteTask(query, batch, partition, attempt, self._marks, self._own_ids, run, planned_at)

    def _write(self, task: WriteTask, batches: Iterator[pa.RecordBatch]) -> Written:
        add_announced(self._options.connection, self._announced)
        write: Callable[..., Written] = self._sink.write or _write_messages
        return write(self._options, task, batches, self._sink)

    def _check_all_ran_and_log(self, what: str, messages: list[WriterCommitMessage | None]) -> None:
        """Log what the tasks have written, after checking that each of them has run."""
        counts, target = sum_counts(messages), self._sink.target(self._options)
        # A task without rows reports that too. So one that reports nothing has not run, as with a continuous trigger.
        if count := sum(not isinstance(message, Written) for message in messages):
            raise PublishError(NOT_RUN(what=what, count=count, tasks=len(messages), target=target))
        logger.info(BATCH_WRITTEN(what=what, target=target, counts=counts, tasks=len(messages)).with_code)
        by_stream: dict[str, Counts] = {}
        for name, part in (each for message in messages if isinstance(message, Written) for each in message.by_stream):
            by_stream[name] = by_stream.get(name, Counts()) + part
        for name, part in by_stream.items():
            logger.info(BATCH_WRITTEN(what=what, target=name, counts=part, tasks=len(messages)).with_code)


class NatsWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame."""

    @errors_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition.

        Raises:
            OptionError: Spark is creating a table from the rows.
            NatsError: the connection failed, or a row could not be written and is not left out.
        """
        context = TaskContext.get()
        if context and is_table_creation(context):
            raise OptionError(WRITES_NO_TABLE(instead=VIEW))
        return self._write(self._make_task(context, self._id, None), iterator)

    @errors_for_spark()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what the tasks have written, and pass the counts to the process that started the query, if it asked.

        Raises:
            PublishError: Spark has not run a task.
        """
        self._check_all_ran_and_log("batch", messages)
        push_counts_if_wanted(messages)


class NatsStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    @errors_for_spark()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of a micro-batch."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        return self._write(self._make_task(context, query if query and batch else "", batch), iterator)

    @errors_for_spark()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log what the tasks have written, and pass the counts to the process that started the query, if it asked.

        With ``deduplicate=exact``, a micro-batch that may have been begun before must still have all the partitions
        that were begun then.

        Raises:
            PublishError: Spark has not run a task, as with a continuous trigger; or the micro-batch has fewer
                partitions now, so that rows were stored twice.
            NatsError: the state bucket could not be read.
        """
        self._check_all_ran_and_log(f"micro-batch {batchId}", messages)
        self._check_not_fewer_partitions(messages, batchId)
        push_counts_if_wanted(messages)

    def _check_not_fewer_partitions(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        unsure = [message.unsure_query for message in messages if isinstance(message, Written) and message.unsure_query]
        options = self._options
        if not unsure or not isinstance(options, WriteOptions):
            return

        from spark_nats.client.pool import borrow
        from spark_nats.client.retrying import run_with_retries
        from spark_nats.kinds.streams.write.checks import check_not_fewer_partitions

        def check() -> None:
            with borrow(options.connection, waits=False) as connection:
                check_not_fewer_partitions(connection, options, unsure[0], batch, len(messages))

        run_with_retries(check, options.retries, "committing a micro-batch", established=True)
