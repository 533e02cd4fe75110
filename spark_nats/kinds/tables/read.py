"""Reading the account's inventory as tables, in batches: one partition, which requests lists from servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa

from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.kinds.tables.inventory import (
    choose_streams,
    count_subjects,
    describe_consumers,
    describe_streams,
    find_messages,
)
from spark_nats.kinds.tables.options import BUCKETS, CONSUMERS, STREAMS, SUBJECTS, TableReadOptions
from spark_nats.kinds.tables.wire import Row, bucket_row, stream_row
from spark_nats.kinds.task import BatchReader, Partition, task
from spark_nats.protocol.keyvalue import bucket_of
from spark_nats.sparkapi import arrow_schema

STREAMS_AT_ONCE = 64
"""Maximum number of streams that one round trip queries."""
ROWS_AT_ONCE = 8_192
"""Maximum number of rows of one Arrow batch."""


@dataclass(frozen=True)
class TablePartition(Partition):
    """What the table covers.

    Attributes:
        streams: names of streams.
    """

    streams: tuple[str, ...]


class NatsTableReader(BatchReader[TableReadOptions, TablePartition]):
    """Reads a table of the account's inventory."""

    def _plan(self, js: JetStream) -> list[TablePartition]:
        """Request the list of streams."""
        return [TablePartition(choose_streams(js, self._options.streams, self._options.pattern))]

    def _rows(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self._schema)
        with task(self._options, f"reading the table of {self._options.table}") as lease:
            for answer in self._answers(lease, partition.streams):
                rows = iter(answer)
                while some := list(islice(rows, ROWS_AT_ONCE)):
                    yield pa.RecordBatch.from_pylist(some, schema)

    def _answers(self, lease: JetStreamLease, streams: tuple[str, ...]) -> Iterator[Iterable[Row]]:
        """Ask one question after the other, and yield the rows of each answer."""
        options, ask = self._options, lease.ask
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
