"""Reading the account's inventory as tables, in batches: one partition, which requests lists from servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats.client import Connection
from spark_nats.client.pool import Lease, leased
from spark_nats.jetstream.api import JetStream
from spark_nats.kinds.partitions import Partition, plan_batch
from spark_nats.kinds.tables.inventory import (
    choose_streams,
    count_subjects,
    describe_consumers,
    describe_streams,
    find_messages,
)
from spark_nats.kinds.tables.options import BUCKETS, CONSUMERS, STREAMS, SUBJECTS, TableReadOptions
from spark_nats.kinds.tables.wire import Row, bucket_row, stream_row
from spark_nats.options.hints import errors_for_spark
from spark_nats.protocol.keyvalue import bucket_of
from spark_nats.sparkapi import arrow_schema

STREAMS_AT_ONCE = 64
"""Maximum number of streams that one round trip queries."""
ROWS_AT_ONCE = 8_192
"""Maximum number of rows of one Arrow batch."""

T = TypeVar("T")


@dataclass(frozen=True)
class TablePartition(Partition):
    """What the table covers.

    Attributes:
        streams: names of streams.
    """

    streams: tuple[str, ...]


class NatsTableReader(DataSourceReader):
    """Reads a table of the account's inventory."""

    def __init__(self, options: TableReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @errors_for_spark()
    def partitions(self) -> list[InputPartition]:
        """Log in, and request the list of streams."""
        options = self._options

        def plan(connection: Connection) -> list[TablePartition]:
            js = JetStream(connection, options.api_prefix)
            return [TablePartition(choose_streams(js, options.streams, options.pattern))]

        return plan_batch(options, plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Request the table, on an executor.

        After a lost connection, the task connects again and repeats the requests whose rows were not handed on.
        """
        if not isinstance(partition, TablePartition):
            return
        options = self._options
        partition.add_servers(options.connection)
        schema = arrow_schema(self._schema)
        what = f"reading the table of {options.table}"
        with errors_for_spark(), leased(options.connection, options.retries, what, waits=False) as lease:
            for answer in self._answers(lease, partition.streams):
                rows = iter(answer)
                while some := list(islice(rows, ROWS_AT_ONCE)):
                    yield pa.RecordBatch.from_pylist(some, schema)

    def _answers(self, lease: Lease, streams: tuple[str, ...]) -> Iterator[Iterable[Row]]:
        """Ask one question after the other, and yield the rows of each answer."""
        options = self._options

        def ask(question: Callable[[JetStream], T]) -> T:
            return lease.ask(lambda connection: question(JetStream(connection, options.api_prefix)))

        if options.table == STREAMS:
            yield ask(partial(describe_streams, names=streams, row_of=stream_row))
        elif options.table == BUCKETS:
            yield ask(partial(describe_streams, names=[*filter(bucket_of, streams)], row_of=bucket_row))
        for i in range(0, len(streams), STREAMS_AT_ONCE):
            some = streams[i : i + STREAMS_AT_ONCE]
            if options.table == CONSUMERS:
                yield ask(partial(describe_consumers, streams=some))
            elif options.table == SUBJECTS:
                holding, problems = ask(partial(find_messages, streams=some))
                yield problems
                for stream in holding:
                    yield ask(partial(count_subjects, stream=stream, filters=options.filters))
