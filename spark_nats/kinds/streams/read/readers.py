"""The batch and the streaming reader of streams. Both plan on the driver and read ranges on the executors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats.client.pool import borrow
from spark_nats.conditions import ConditionText
from spark_nats.errors import NatsError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.listing import suggesting_names
from spark_nats.jetstream.reading.direct import MAX_TOGETHER, DirectGets, may_use_direct_gets, request_ranges_together
from spark_nats.jetstream.reading.ranges import RangeReader, ReadMethod
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read import bounds, planning
from spark_nats.kinds.streams.read.conditions import BATCH_PLANNED, STILL_READING
from spark_nats.kinds.streams.read.looks import Look, QueryMemory
from spark_nats.kinds.streams.read.planning import SeveralRanges, StreamRange
from spark_nats.kinds.streams.read.positions import QueryOffset, differing_noted_subjects, from_json, to_json
from spark_nats.kinds.streams.read.query import StreamingQuery
from spark_nats.kinds.streams.read.row_warnings import warn_of_own_rows
from spark_nats.kinds.streams.read.traits import PLAIN, Traits
from spark_nats.kinds.task import BatchReader, TaskReader, leased_jetstream, with_servers_and_login
from spark_nats.logs import Reporter
from spark_nats.options.data_loss import raise_or_log_loss
from spark_nats.options.hints import errors_for_spark
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

logger = logging.getLogger(__name__)

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

    def _choose_read_methods(
        self, ranges: Sequence[StreamRange], memory: QueryMemory, limit: int | None = None
    ) -> list[StreamRange]:
        """Return ranges that say how they are read, where another way is faster than a consumer for whole messages."""
        found = planning.mark_small_for_gets(ranges, memory.sizes, limit)
        return (
            found if PAYLOADS & set(self._schema.names) else planning.mark_large_for_headers_only(found, memory.large)
        )

    def _cut_and_pack(
        self, ranges: Sequence[StreamRange], memory: QueryMemory, apart: bool = False
    ) -> Sequence[StreamRange | SeveralRanges]:
        """Cut ranges into partitions, which small ones share unless each is to be ``apart``."""
        fewest, most = self._options.min_partitions, self._options.max_records_per_partition
        cuts = self._choose_read_methods(planning.cut_into_partitions(ranges, fewest, most), memory)
        return planning.assign_servers_in_turn(
            cuts if apart else planning.pack_into_partitions(cuts, fewest, most), memory.servers
        )

    def _read_rows(self, partition: StreamRange | SeveralRanges) -> Iterator[pa.RecordBatch]:
        """Read one partition.

        The lease replaces connections, and the range's reader restarts sources on a connection that works. Both count
        the same retries, for at most ``retryTimeout`` without progress.
        """
        if isinstance(partition, StreamRange):
            return self._read_range(partition, None)
        return _join_small_batches(self._read_in_turn(partition))

    def _read_in_turn(self, partition: SeveralRanges) -> Iterator[pa.RecordBatch]:
        left, ahead = partition.limit, dict[StreamRange, DirectGets]()
        for i, each in enumerate(partition.ranges):
            if left is None and i % MAX_TOGETHER == 0:
                ahead = self._request_small_together(partition.ranges[i : i + MAX_TOGETHER])
            for batch in self._read_range(each, left, ahead.get(each)):
                left = None if left is None else left - batch.num_rows
                yield batch
            if left == 0:
                return

    def _request_small_together(self, ranges: Sequence[StreamRange]) -> dict[StreamRange, DirectGets]:
        """Request the small ones of some ranges in one round trip; each is requested again if that fails."""
        with contextlib.suppress(NatsError), borrow(self._options.connection, waits=False) as connection:
            js = JetStream(connection, self._options.api_prefix)
            small = [r for r in ranges if r.way is ReadMethod.ONE_GET_FIRST and may_use_direct_gets(js, r.stream)]
            if len(small) > 1:
                found = request_ranges_together(js, [(r.stream, r.start, r.end) for r in small])
                return dict(zip(small, found, strict=False))
        return {}

    def _read_range(
        self, partition: StreamRange, limit: int | None, ahead: DirectGets | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read a range, or its first ``limit`` messages; ``ahead`` may have requested it."""
        options, rows = self._options, self._traits.rows(self._schema)
        adds_sizes = partition.way is ReadMethod.HEADERS and "headers" in self._schema.names
        what = f"reading {partition.stream}, sequences {partition.start} to {partition.end - 1}"
        with leased_jetstream(options, what) as lease:
            lease.lease.try_move_to_server(partition.server)
            reader = RangeReader(
                partition,
                partition.way,
                limit=limit,
                lost=partial(raise_or_log_loss, fail=options.fail_on_data_loss),
                retries=lease.retries,
                on_arrival=Reporter(
                    logger,
                    lambda: reader.cursor.received - partition.start,
                    lambda done, rate: _describe_progress(partition, count, done, rate),
                ),
                ahead=ahead,
                keeps_consumer=self._keeps_consumers,
            )
            count = 0
            # The generator has no name, so that it is closed before the connection when Spark takes no more rows.
            for delivered in lease.read_with_retries(reader.read):
                if not count:
                    warn_of_own_rows(delivered, partition.stream)
                if adds_sizes:
                    delivered = delivered._replace(messages=delivered.messages.without_size_headers())
                if (batch := rows.build(delivered, partition.stream)).num_rows:
                    count += batch.num_rows
                    yield batch


def _join_small_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
    logger.info(BATCH_PLANNED(what=what, sequences=sequences, left=left, tasks=tasks, ranges=shown + more).with_code)


def _describe_progress(partition: StreamRange, rows: int, done: int, rate: float) -> ConditionText:
    """Return the log line about the progress of a task: rows, remaining sequences, and sequences a second."""
    left = partition.size - done
    time = f", about {left / rate:,.0f} s" if rate else ""
    stream, start, last = partition.stream, partition.start, partition.end - 1
    return STILL_READING(stream=stream, start=start, last=last, rows=rows, left=left, rate=rate, time=time)


class NatsReader(_RangesReader, BatchReader[ReadOptions, StreamRange | SeveralRanges]):
    """Reads what streams hold between two offsets."""

    def _plan(self, js: JetStream) -> Sequence[StreamRange | SeveralRanges]:
        """Return sequence ranges as partitions; with ``limit``, one partition of the first messages."""
        memory, limit = QueryMemory(self._options, patience=0.0), self._options.limit
        with suggesting_names(js, self._options.streams):
            ranges = bounds.plan_batch_and_report_losses(Look(js, self._options, memory))
        if limit is None or not ranges:
            partitions = planning.alternate_streams(self._cut_and_pack(ranges, memory))
            _log_plan("batch", ranges, len(partitions))
            return partitions
        return [SeveralRanges(tuple(self._choose_read_methods(ranges, memory, limit)), limit)]


class NatsStreamReader(_RangesReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams in micro-batches: translates between Spark's JSON and a :class:`StreamingQuery`."""

    _keeps_consumers = True

    def __init__(self, options: ReadOptions, schema: StructType, traits: Traits = PLAIN) -> None:
        super().__init__(options, schema, traits)
        self._query = StreamingQuery(options, traits)
        self._parsed: list[tuple[dict[str, Any], QueryOffset]] = []  # the last two offsets: Spark repeats them
        self._compared = False  # whether the checkpoint was read under the subjects that the query reads now
        self._last_end: dict[str, Any] | None = None  # of the last micro-batch of this run

    def _parse_offset_cached(self, document: dict[str, Any]) -> QueryOffset:
        for known, offset in self._parsed:
            if known == document:
                return offset
        found = from_json(document)
        self._parsed = [*self._parsed[-1:], (document, found)]
        return found

    @errors_for_spark()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return to_json(self._query.prepare_and_ask_start(), self._options.filters)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        return self._query.pace.read_limit

    @errors_for_spark()
    def prepareForTriggerAvailableNow(self) -> None:
        """Note how far the streams reach now, where the query will end."""
        self._query.ask_and_note_target_ends()

    @errors_for_spark()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends."""
        begin, filters = self._parse_offset_cached(start), self._options.filters
        if not self._compared:
            if noted := differing_noted_subjects(start, filters):
                self._query.raise_or_warn_added_subjects(begin, noted)
            self._compared = True
        end = self._query.wait_and_advance(begin, is_limited=not isinstance(limit, ReadAllAvailable))
        self._last_end = start if end == begin else to_json(end, filters, start, begin)
        return self._last_end

    def stop(self) -> None:
        """Delete the watch's consumers and close its connection, because the query has ended."""
        self._query.idling.close()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return how far the streams reach, None before the first look.

        The query's progress shows this beside the query's own offset.
        """
        if (reach := self._query.reach) is None:
            return None
        min_new = self._options.min_offsets
        more = {} if min_new is None else {"waits_for": min_new}
        ends = {name: reach[name].end for name in sorted(reach)}
        return {name: {"created": end.created, "next": end.next, **more} for name, end in ends.items()}

    @errors_for_spark()
    def commit(self, end: dict[str, Any]) -> None:
        """Release what is processed, if the query consumes."""
        if self._query.memory.holds:
            self._query.release_messages_before(self._parse_offset_cached(end))

    @errors_for_spark()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a micro-batch: ranges of sequences as partitions. The tasks report what is lost in their ranges."""
        memory, replayed = self._query.memory, end not in (start, self._last_end)
        whole = self._query.prepare_and_plan_ranges(
            self._parse_offset_cached(start), self._parse_offset_cached(end), replayed
        )
        replaces, retentions = self._traits.replaces, {name: hold.retention for name, hold in memory.holds.items()}
        ranges = [
            part
            for each in whole
            for part in planning.adapt_to_retention(each, retentions.get(each.stream), False, replaces)
        ]
        apart = any("from" in entry for entry in end.values())
        partitions = self._cut_and_pack(ranges, memory, apart)
        _log_plan("micro-batch", whole, len(partitions), self._query.reach)
        return with_servers_and_login(partitions, self._options.connection)
