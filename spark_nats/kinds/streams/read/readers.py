"""The batch and the streaming reader of streams. Both plan on the driver and read ranges on the executors."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVarTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats import clock
from spark_nats.client.pool import borrow
from spark_nats.client.retrying import Result, retrying
from spark_nats.conditions import ConditionText
from spark_nats.errors import NatsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.listing import suggesting_names
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading.direct import MAX_TOGETHER, DirectGets, are_available, ask_together
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.ranges import RangeReader, ReadMethod
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read import bounds, offsets
from spark_nats.kinds.streams.read.advance import Limits
from spark_nats.kinds.streams.read.conditions import BATCH_PLANNED, STILL_READING
from spark_nats.kinds.streams.read.idling import Idling
from spark_nats.kinds.streams.read.looks import Look, QueryMemory
from spark_nats.kinds.streams.read.pace import TriggerPacing
from spark_nats.kinds.streams.read.planning import (
    SeveralRanges,
    StreamRange,
    cut,
    for_retention,
    mark_small_partitions,
    packed,
    planned,
    without_payloads,
)
from spark_nats.kinds.streams.read.positions import QueryOffset, beginning_at, from_json, to_json
from spark_nats.kinds.streams.read.row_warnings import notice_own_rows
from spark_nats.kinds.streams.read.subjects import noted_subjects
from spark_nats.kinds.streams.read.traits import PLAIN, Traits
from spark_nats.kinds.task import BatchReader, TaskReader, task, with_servers
from spark_nats.logs import Reporter
from spark_nats.options.data_loss import report_loss
from spark_nats.options.hints import errors_for_spark
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

logger = logging.getLogger(__name__)

Given = TypeVarTuple("Given")
PAYLOADS = {"payload", "value"}
"""The columns that need the payloads of messages."""
_SHOWN = 5  # ranges that a log line names
_JOINED = 1 << 20  # bytes up to which batches are joined


class _RangesReader(TaskReader[ReadOptions, StreamRange | SeveralRanges]):
    """The base of both readers: how they read a partition."""

    _keeps_consumers = False
    """Whether the process of a task keeps its consumers: for a query there is a next micro-batch, a batch has none."""

    def __init__(self, options: ReadOptions, schema: StructType, traits: Traits = PLAIN) -> None:
        super().__init__(options, schema)
        self._traits = traits

    def _cut(self, ranges: Sequence[StreamRange], memory: QueryMemory) -> list[StreamRange]:
        cuts = cut(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return self._marked(cuts, memory)

    def _marked(
        self, ranges: Sequence[StreamRange], memory: QueryMemory, limit: int | None = None
    ) -> list[StreamRange]:
        """Return ranges that say how they are read, where another way is faster than a consumer for whole messages."""
        found = mark_small_partitions(ranges, memory.sizes, limit)
        return found if PAYLOADS & set(self._schema.names) else without_payloads(found, memory.large)

    def _packed(self, ranges: Sequence[StreamRange], memory: QueryMemory) -> list[StreamRange | SeveralRanges]:
        fewest, most = self._options.min_partitions, self._options.max_records_per_partition
        return packed(self._cut(ranges, memory), fewest, most)

    def _rows(self, partition: StreamRange | SeveralRanges) -> Iterator[pa.RecordBatch]:
        """Read one partition.

        The lease replaces connections, and the range's reader restarts sources on a connection that works. Both count
        the same retries, for at most ``retryTimeout`` without progress.
        """
        if isinstance(partition, StreamRange):
            return self._read(partition, None)
        return _joined(self._read_in_turn(partition))

    def _read_in_turn(self, partition: SeveralRanges) -> Iterator[pa.RecordBatch]:
        left, ahead = partition.limit, dict[StreamRange, DirectGets]()
        for i, each in enumerate(partition.ranges):
            if left is None and i % MAX_TOGETHER == 0:
                ahead = self._asked_together(partition.ranges[i : i + MAX_TOGETHER])
            for batch in self._read(each, left, ahead.get(each)):
                left = None if left is None else left - batch.num_rows
                yield batch
            if left == 0:
                return

    def _asked_together(self, ranges: Sequence[StreamRange]) -> dict[StreamRange, DirectGets]:
        """Request the small ones of some ranges in one round trip; each is requested again if that fails."""
        with contextlib.suppress(NatsError), borrow(self._options.connection, waits=False) as connection:
            js = JetStream(connection, self._options.api_prefix)
            small = [r for r in ranges if r.way is ReadMethod.ONE_GET_FIRST and are_available(js, r.stream)]
            if len(small) > 1:
                return dict(zip(small, ask_together(js, [(r.stream, r.start, r.end) for r in small]), strict=False))
        return {}

    def _read(
        self, partition: StreamRange, limit: int | None, ahead: DirectGets | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a range, or its first ``limit`` messages; ``ahead`` may have requested it."""
        options, rows = self._options, self._traits.rows(self._schema)
        adds_sizes = partition.way is ReadMethod.HEADERS and "headers" in self._schema.names
        what = f"reading {partition.stream}, sequences {partition.start} to {partition.end - 1}"
        with task(options, what) as lease:
            reader = RangeReader(
                replace(partition, removed=Removed.NO_LOSS) if self._traits.replaces else partition,
                partition.way,
                limit=limit,
                lost=partial(report_loss, fail=options.fail_on_data_loss),
                retries=lease.retries,
                on_arrival=Reporter(
                    logger,
                    lambda: reader.cursor.received - partition.start,
                    lambda done, rate: _still_reading(partition, count, done, rate),
                ),
                ahead=ahead,
                keeps_consumer=self._keeps_consumers,
            )
            count = 0
            looked = False
            # The generator has no name, so that it is closed before the connection when Spark takes no more rows.
            for delivered in lease.read(reader.read):
                if not looked:
                    notice_own_rows(delivered, partition.stream)
                    looked = True
                if adds_sizes:
                    delivered = delivered._replace(messages=delivered.messages.without_sizes())
                if (batch := rows.build(delivered, partition.stream)).num_rows:
                    count += batch.num_rows
                    yield batch


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches of rows, because each costs Spark as much as hundreds of rows."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if held and size + batch.nbytes > _JOINED:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _log_plan(what: str, ranges: Sequence[StreamRange], tasks: int, reach: QueryOffset | None = None) -> None:
    """Log what is read, and how many sequences are left after it if ``reach`` tells how far the streams reach."""
    if not ranges or not logger.isEnabledFor(logging.INFO):
        return
    shown = "; ".join(f"{each.stream} {each.start:,} to {each.end - 1:,}" for each in ranges[:_SHOWN])
    more = f" and {len(ranges) - _SHOWN} more" if len(ranges) > _SHOWN else ""
    left = ""
    if reach is not None:
        remaining = sum(max(0, reach[each.stream].end.next - each.end) for each in ranges if each.stream in reach)
        left = f", {remaining:,} left"
    sequences = sum(each.size for each in ranges)
    planned = BATCH_PLANNED(what=what, sequences=sequences, left=left, tasks=tasks, ranges=shown + more)
    logger.info(planned.with_code)


def _still_reading(partition: StreamRange, rows: int, done: int, rate: float) -> ConditionText:
    """Return the log line about the progress of a task: rows, remaining sequences, and sequences a second."""
    left = partition.size - done
    time = f", about {left / rate:,.0f} s" if rate else ""
    last = partition.end - 1
    return STILL_READING(
        stream=partition.stream, start=partition.start, last=last, rows=rows, left=left, rate=rate, time=time
    )


class NatsReader(_RangesReader, BatchReader[ReadOptions, StreamRange | SeveralRanges]):
    """Reads what streams hold between two offsets."""

    def _plan(self, js: JetStream) -> Sequence[StreamRange | SeveralRanges]:
        """Return sequence ranges as partitions; with ``limit``, one partition of the first messages."""
        memory, limit = QueryMemory(self._options, patience=0.0), self._options.limit
        with suggesting_names(js, self._options.streams):
            ranges = bounds.batch(Look(js, self._options, memory))
        if limit is None or not ranges:
            partitions = self._packed(ranges, memory)
            _log_plan("batch", ranges, len(partitions))
            return partitions
        return [SeveralRanges(tuple(self._marked(ranges, memory, limit)), limit)]


class NatsStreamReader(_RangesReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams in micro-batches."""

    _keeps_consumers = True

    def __init__(self, options: ReadOptions, schema: StructType, traits: Traits = PLAIN) -> None:
        super().__init__(options, schema, traits)
        self._pace = TriggerPacing(options)
        self._memory = QueryMemory(options, options.retries.timeout, traits)
        self._target: dict[str, Position] | None = None  # where the query ends, if it reads only what existed
        self._reach: QueryOffset | None = None  # how far the streams reached at the last look
        self._idling = Idling(options, self._memory)
        self._compared = False  # whether the checkpoint was read under the subjects that the query reads now
        self._established = False  # whether the server has answered this query before
        self._planned: dict[str, Any] | None = None  # end of the last micro-batch that was planned here

    @errors_for_spark()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        places = self._asking(bounds.starting)
        return to_json({name: beginning_at(place) for name, place in places.items()}, self._options.filters)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        return self._pace.read_limit

    @errors_for_spark()
    def prepareForTriggerAvailableNow(self) -> None:
        """Note how far the streams reach now, where the query will end."""
        self._target = self._asking(bounds.now)

    @errors_for_spark()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""
        if self._idling.wait_while_idle(start):
            return start
        begin, options = from_json(start), self._options
        self._established = True  # the offset shows that a server has answered before
        limits = Limits(self._target)
        if not isinstance(limit, ReadAllAvailable):
            limits = Limits(self._target, self._pace.min_new, options.max_offsets, options.max_bytes)
        if not self._compared:
            if noted := noted_subjects(start, options.filters):
                self._asking(offsets.compare_subjects, begin, noted)
            self._compared = True
        asked = clock.monotonic()
        found = self._asking(offsets.latest, begin, limits)
        if found.size:
            self._pace.planned()
        self._reach = found.reach
        self._planned = end = start if found.end == begin else to_json(found.end, options.filters, start)
        self._memory.expects_more = end != start
        if end == start and self._target is None:
            until = self._pace.waits_until if found.waits else math.inf
            self._idling.begin(start, clock.monotonic() - asked, until, waits=found.reach != begin)
        return end

    def stop(self) -> None:
        """Delete the watch's consumers and close its connection, because the query has ended."""
        self._idling.close()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the streams reach, None before the first look.

        The query's progress shows this beside the query's own offset.
        """
        if self._reach is None:
            return None
        min_new = self._options.min_offsets
        more = {} if min_new is None else {"waits_for": min_new}
        ends = {name: self._reach[name].end for name in sorted(self._reach)}
        return {name: {"created": end.created, "next": end.next, **more} for name, end in ends.items()}

    @errors_for_spark()
    def commit(self, end: dict[str, Any]) -> None:
        """Release what is processed, if the query consumes."""
        if self._memory.holds and offsets.unreleased(self._memory, position := from_json(end)):
            self._asking(offsets.release, position)

    @errors_for_spark()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a micro-batch: ranges of sequences as partitions. The tasks report what is lost in their ranges."""
        begin, stop = from_json(start), from_json(end)
        # After a restart, a replayed micro-batch is planned before any look. An empty one needs no consumers.
        if start != end and not all(hold.begun for hold in self._memory.holds.values()):
            self._established = True
            self._asking(offsets.hold, begin)
        rewritten: set[str] = set()
        if end not in (start, self._planned):  # an earlier run of the query has planned it
            self._established = True
            rewritten = self._asking(offsets.rewritten, begin, stop)
        retentions = {name: hold.retention for name, hold in self._memory.holds.items()}
        planning = planned(begin, stop, self._options.filters, rewritten)
        ranges = [each for whole in planning for each in for_retention(whole, retentions.get(whole.stream))]
        apart = any("from" in entry for entry in end.values())
        partitions = self._cut(ranges, self._memory) if apart else self._packed(ranges, self._memory)
        _log_plan("micro-batch", planning, len(partitions), self._reach)
        return with_servers(partitions, self._options.connection)

    def _asking(self, ask: Callable[[Look, *Given], Result], *given: *Given) -> Result:
        """Ask the server, and wait while it cannot be reached."""

        def once() -> Result:
            with self._idling.connected() as connection:
                js = JetStream(connection, self._options.api_prefix)
                with suggesting_names(js, self._options.streams), self._traits.naming(js):
                    with contextlib.suppress(StreamNotFoundError):
                        return ask(Look(js, self._options, self._memory), *given)
                    # A stream may have been deleted during the look. Another look handles it as missing from its start.
                    return ask(Look(js, self._options, self._memory), *given)

        what = f"reading {self._memory.selection}"
        found = retrying(once, self._options.retries, what, established=self._established)
        self._established = True
        return found
