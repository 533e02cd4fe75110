"""The batch and the streaming reader of streams. Both plan on the driver and read ranges on the executors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats.client.pool import borrow, lend
from spark_nats.client.retrying import Result, retrying
from spark_nats.errors import (
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsTimeoutError,
    ServerError,
    StreamNotFoundError,
)
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.direct import DirectReader
from spark_nats.jetstream.doubts import Doubts
from spark_nats.jetstream.fingerprints import Witness
from spark_nats.jetstream.holding import Hold, default_name
from spark_nats.jetstream.matching import Selection
from spark_nats.jetstream.reading import RangeReader
from spark_nats.jetstream.streams import naming_the_nearest
from spark_nats.options.losses import report_loss
from spark_nats.options.read import ReadOptions
from spark_nats.options.remedies import naming_options
from spark_nats.source.columns import EntryBuilder, RowBuilder
from spark_nats.source.pace import Pace
from spark_nats.source.stream.noticing import notice_own_rows
from spark_nats.source.stream.offsets import (
    OffsetReader,
    QueryOffset,
    as_kept,
    from_json,
    new_in,
    planned,
    to_json,
)
from spark_nats.source.stream.planning import StreamRange, cut
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 0.1
"""Seconds between two looks at each stream that has nothing to do for the query, for each request that a look takes.
Spark asks up to a hundred times a second."""
LONGEST_WAIT = 1.0
"""Seconds at most between two looks at many streams. Meanwhile the query takes no other word from Spark."""


def read_partition(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read one partition, on an executor.

    A connection that is lost is made again, and reading goes on behind the last row: servers restart, and one that
    sends faster than rows are taken cuts us off, and the task must come to an end all the same. The range's reader sees
    to consumers on a connection that works; both wait in one rhythm, for at most ``retryTimeout`` without progress.
    """
    if not isinstance(partition, StreamRange):
        return  # Spark's stand-in for a plan without partitions
    bucket = options.bucket
    rows = RowBuilder(schema) if bucket is None else EntryBuilder(schema, bucket, options.ignore_deletes)
    what = f"reading {partition.stream}, sequences {partition.start} to {partition.end - 1}"
    with naming_options(), lend(options.connection, options.retries, what) as loan:
        reader = (DirectReader if partition.direct else RangeReader)(
            partition.stream,
            partition.start,
            partition.end,
            partition.filters,
            created=partition.created,
            head_may_go=partition.head_may_go,
            shared=partition.shared or bucket is not None,
            last=partition.last,
            others=partition.others,
            lost=partial(report_loss, fail=options.fail_on_data_loss),
            retries=loan.retries,
        )
        looked = False
        while True:
            try:
                for delivered in reader.read(JetStream(loan.connection, options.api_prefix)):
                    if not looked:
                        notice_own_rows(delivered, partition.stream)
                        looked = True
                    if (batch := rows.build(delivered, partition.stream)).num_rows:
                        yield batch
                return
            except (NatsConnectionError, NatsTimeoutError, ServerError, JetStreamUnavailableError) as error:
                loan.renew(error)


class NatsReader(DataSourceReader):
    """Reads what streams hold between two offsets.

    Args:
        options: what to read.
        schema: which columns.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @naming_options()
    def partitions(self) -> list[InputPartition]:
        """Plan the read: sequence ranges as partitions."""
        return list(cut(self._ranges(), self._options.min_partitions, self._options.max_records_per_partition))

    def _ranges(self) -> list[StreamRange]:
        with borrow(self._options.connection) as connection:
            js = JetStream(connection, self._options.api_prefix)
            streams = OffsetReader(js, self._options, Doubts(0.0))
            with naming_the_nearest(js, self._options.streams):
                return streams.ranges(streams.starting(), streams.ending())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return read_partition(self._options, self._schema, partition)


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as they grow.

    Args:
        options: what to read.
        schema: which columns.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pace = Pace(options.limits)
        self._target: QueryOffset | None = None  # of a query that ends when it has read what there was at its start
        self._seen: QueryOffset | None = None  # how far the streams reached
        self._idle: tuple[dict[str, Any], float] | None = None  # nothing to do from there, look again then
        self._searched: QueryOffset = {}
        self._known = False  # the server has answered this query before
        self._doubts = Doubts(options.retries.timeout)
        self._witness = Witness()
        self._planned: dict[str, Any] | None = None  # where the last micro-batch ends that was planned here
        self._selection = Selection(options.streams, options.pattern)
        self._holds = {
            name: Hold(
                name, options.consumer or default_name(name, options.filters), options.filters, options.retries.timeout
            )
            for name in (options.streams if options.consume else ())
        }

    @naming_options()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return self._asking(lambda offsets: to_json(offsets.starting()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        return self._pace.read_limit

    @naming_options()
    def prepareForTriggerAvailableNow(self) -> None:
        """Note how far the streams reach now: the query ends there."""
        self._target = self._asking(OffsetReader.now)

    @naming_options()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next micro-batch goes."""
        self._leave_in_peace(start)
        begin = from_json(start)
        self._known = True  # also when an earlier process has asked

        def ask(offsets: OffsetReader) -> QueryOffset:
            latest = offsets.latest(begin, self._searched)
            searched = offsets.searched(begin, latest)
            if self._target is not None:
                latest = _at_most(latest, self._target, begin)
            self._seen = latest
            if not isinstance(limit, ReadAllAvailable):
                # What was lost is said once, and so goes on into a micro-batch at once.
                if self._target is None and not offsets.has_lost and self._pace.waits(new_in(begin, latest)):
                    self._searched |= searched
                    # An offset that only follows its stream waits for nothing.
                    return begin | {name: end for name, end in latest.items() if not end.size}
                if most := self._options.limits.max_offsets:
                    latest = offsets.limited(begin, latest, most)
                if most := self._options.limits.max_bytes:
                    latest = offsets.within(begin, latest, most)
            self._searched = searched
            if new_in(begin, latest):
                self._pace.planned()
            return latest

        found = to_json(self._asking(ask))
        self._planned = found
        self._idle = None
        if found == start:
            waits = self._seen != begin
            requests = max(1, len(self._selection.names)) * (1 + len(self._options.filters) * waits)
            self._idle = (start, time.monotonic() + min(LOOK_INTERVAL * requests, LONGEST_WAIT))
        return found

    def _leave_in_peace(self, start: dict[str, Any]) -> None:
        """Wait a moment where there was nothing to do a moment ago, for the server's sake.

        To answer from that look instead would be quicker and wrong: ``processAllAvailable`` would return without what
        was stored just before.
        """
        if self._idle is not None and self._idle[0] == start:
            time.sleep(max(0.0, self._idle[1] - time.monotonic()))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the streams reach, which the query's progress shows beside how far it has come."""
        if self._seen is None:
            return None
        waits_for = self._options.limits.min_offsets
        return to_json({name: end.as_reported(waits_for) for name, end in self._seen.items()})

    @naming_options()
    def commit(self, end: dict[str, Any]) -> None:
        """Release what was processed, where the query consumes."""
        position = from_json(end)
        if any(
            name in position and not hold.released(position[name].created, position[name].next)
            for name, hold in self._holds.items()
        ):
            self._asking(lambda offsets: offsets.release(position))

    @naming_options()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a micro-batch: sequence ranges as partitions. What is gone of them, their tasks will report."""
        begin, stop = from_json(start), from_json(end)
        # One that is run again is the first thing that a query asks about, but for an empty one behind it.
        if start != end and not all(hold.begun for hold in self._holds.values()):
            self._known = True
            self._asking(lambda offsets: offsets.hold(begin))
        rewritten: set[str] = set()
        if end not in (start, self._planned):  # it was planned by an earlier run of the query
            self._known = True
            rewritten = self._asking(lambda offsets: offsets.rewritten(begin, stop))
        retentions = {name: hold.retention for name, hold in self._holds.items()}
        planning = planned(begin, stop, self._options.filters, rewritten)
        ranges = [each for whole in planning for each in as_kept(whole, retentions.get(whole.stream))]
        return list(cut(ranges, self._options.min_partitions, self._options.max_records_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return read_partition(self._options, self._schema, partition)

    def _asking(self, ask: Callable[[OffsetReader], Result]) -> Result:
        """Ask the server, and wait for one that cannot be reached."""

        def once() -> Result:
            with borrow(self._options.connection) as connection:
                js = JetStream(connection, self._options.api_prefix)

                def look() -> Result:
                    return ask(
                        OffsetReader(js, self._options, self._doubts, self._holds, self._selection, self._witness)
                    )

                with naming_the_nearest(js, self._options.streams):
                    try:
                        return look()
                    except StreamNotFoundError:
                        return look()  # one that goes meanwhile has to be missing from the beginning

        found = retrying(once, self._options.retries, f"reading {self._selection}", known=self._known)
        self._known = True
        return found


def _at_most(position: QueryOffset, target: QueryOffset, begin: QueryOffset) -> QueryOffset:
    """Return ``position``, but no stream beyond ``target``. A stream that ``target`` lacks stays where it is."""
    found = {name: offset for name, offset in position.items() if name in target}
    found |= {name: begin[name] for name in position if name not in target and name in begin}
    for name, offset in position.items():
        end = target.get(name)
        if end is not None and end.created == offset.created and offset.next > end.next:
            found[name] = offset.up_to(end.next, end.timestamp)
            is_behind = offset.first is not None and offset.first < end.next  # of a stream that has lost its end
            if name in begin and begin[name].created == end.created and begin[name].next >= end.next and not is_behind:
                found[name] = begin[name]  # in the words of before, since Spark compares offsets as text
    return found
