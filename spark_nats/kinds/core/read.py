"""The readers of core NATS, which read what is published while they listen.

In a batch, every task has its own subscription for a limited time. In streaming, the subscription outlives the
micro-batches: the driver's reader holds it, and hands the received bytes to the executors, which decode them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats import clock
from spark_nats.client.connection import connect
from spark_nats.client.pool import leased
from spark_nats.client.retrying import run_with_retries
from spark_nats.errors import NatsError
from spark_nats.kinds.core import conditions
from spark_nats.kinds.core.backlog import Backlog, Piece, cut_into_partitions, iso_time, last_messages
from spark_nats.kinds.core.options import CoreReadOptions
from spark_nats.kinds.core.receiver import Receiver
from spark_nats.kinds.core.spool import Spool, SpoolDamageError
from spark_nats.kinds.streams.read.columns import RowBuilder
from spark_nats.kinds.streams.read.positions import check_not_later_version
from spark_nats.kinds.task import Partition, TaskReader, TriggerPacing, with_servers_and_login
from spark_nats.options.data_loss import GO_ON, raise_or_log_loss
from spark_nats.options.hints import errors_for_spark
from spark_nats.protocol.bytecolumns import Positions
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.documents import integer_at, string_at
from spark_nats.protocol.messages import Messages
from spark_nats.sparkapi import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow, install_sigterm_handler

logger = logging.getLogger(__name__)


def _choose_queue_group(options: CoreReadOptions, subscribers: int) -> str | None:
    """Return the options' queue group, or a new one if several subscribers have to share messages, or else None."""
    return options.queue_group or (f"spark-nats-{clock.token(8)}" if subscribers > 1 else None)


@dataclass(frozen=True)
class CorePartition(Partition):
    """What one task of a batch does.

    Attributes:
        queue_group: the group that all tasks share; None if there is only one task and the options name no group.
        messages: number of messages after which to end; None for no limit.
    """

    queue_group: str | None
    messages: int | None


class NatsCoreReader(TaskReader[CoreReadOptions, CorePartition], DataSourceReader):
    """Reads what is published during a limited time."""

    @errors_for_spark()
    def partitions(self) -> list[InputPartition]:
        """Plan the read: tasks share the messages and, in equal parts, the limit on their number.

        Raises:
            NatsError: the server cannot be reached, or refuses the credentials.
        """
        connect(self._options.connection).close()  # so that a refused login fails once, and not in every task
        limit = self._options.max_messages
        tasks = min(self._options.min_partitions, limit or self._options.min_partitions)
        queue = _choose_queue_group(self._options, tasks)
        shares = [None if limit is None else limit * (i + 1) // tasks - limit * i // tasks for i in range(tasks)]
        return with_servers_and_login([CorePartition(queue, share) for share in shares], self._options.connection)

    def _read_rows(self, partition: CorePartition) -> Iterator[pa.RecordBatch]:
        rows = RowBuilder(self._schema)
        left = partition.messages
        for messages in self._listen(partition):
            if left is not None:
                messages = messages.take(slice(left))  # the server applies the limit to each subject separately
                left -= len(messages)
            yield rows.build_core(messages, np.full(len(messages), clock.time_ns() // 1000))
            if left == 0:
                return

    def _listen(self, partition: CorePartition) -> Iterator[Messages]:
        options = self._options
        with leased(options.connection, options.retries, f"listening to {', '.join(options.subjects)}") as lease:
            connection = lease.connection
            deadline = clock.monotonic() + options.read_timeout
            subscription = connection.subscribe(*options.subjects, queue=partition.queue_group)
            if partition.messages is not None:
                connection.unsubscribe_after(subscription, partition.messages)
            connection.flush()  # so that the server reports a refusal at once
            lease.note_success()
            while (remaining := deadline - clock.monotonic()) > 0:
                messages = connection.next(subscription, remaining)
                if messages is not None:
                    yield messages
            yield from connection.unsubscribe_and_drain(subscription)


@dataclass(frozen=True, eq=False)
class WireSlice(InputPartition):
    """Consecutive messages as the bytes that came, which one task of a micro-batch decodes.

    Attributes:
        wire: whole frames.
        counts: number of messages of each read of the socket.
        received: time of each read, in microseconds since 1970.
    """

    wire: bytes = field(repr=False)
    counts: Positions
    received: Positions

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Self:
        """Join pieces."""
        wires, counts, received = zip(*pieces, strict=True)
        return cls(b"".join(wires), np.array(counts, np.int64), np.array(received, np.int64))


class CoreOffset(NamedTuple):
    """The position of a query.

    Attributes:
        epoch: identifies the process that received the messages; each start of the query has another epoch.
        messages: number of messages before the position; only those that the process received and did not drop count.
    """

    epoch: str
    messages: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CoreOffset:
        """Return the offset that ``_asdict()`` turned into this document of a checkpoint.

        Raises:
            NatsError: the document is no offset of core NATS, or one of a later version of this package.
        """
        if "epoch" in document:
            check_not_later_version(document, document.keys() - set(cls._fields))
        try:
            epoch, messages = string_at(document, "epoch"), integer_at(document, "messages")
            if not re.fullmatch("[0-9a-f]{16}", epoch):  # it becomes part of the spool's paths
                raise ValueError
            return cls(epoch, messages)
        except ValueError:
            raise NatsError(conditions.OFFSET_NOT_OF_CORE(offset=repr(document))) from None


class NatsCoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is published while the query runs.

    Spark makes several of these readers. Only the one that plans micro-batches connects, at the first request.
    """

    def __init__(self, options: CoreReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._backlog: Backlog | None = None
        self._receivers: list[Receiver] = []
        self._spool: Spool | None = None
        self._epoch = ""
        self._earlier: dict[str, int] = {}  # how far the checkpoint has come in epochs before this one
        self._noted: CoreOffset | None = None  # the last position that Spark has in its checkpoint, as far as is known
        self._end: CoreOffset | None = None  # where the last micro-batch ends that is planned
        self._kept: list[int] | None = None  # where the micro-batches end that the spool has of the epoch before
        self._pace = TriggerPacing(options)
        self._target: int | None = None  # where the query ends, if it is to end with what it had received at its start
        self._seen: int | None = None

    def _start_and_check_receivers(self) -> Backlog:
        """Return the backlog; start the receivers if they have not started.

        Raises:
            NatsError: no server can be reached at the start, or later in as many attempts as the options allow; or one
                refuses the subscription or the credentials; or the spool cannot be used.
        """
        if self._backlog is None:
            options = self._options
            if options.spool_location:
                self._spool = Spool(options.spool_location)
            backlog = Backlog(options.max_buffered_bytes)
            queue = _choose_queue_group(options, options.receivers)
            install_sigterm_handler()
            while len(self._receivers) < options.receivers:
                start = partial(Receiver, options.connection, options.retries, options.subjects, queue, backlog)
                what = f"listening to {', '.join(options.subjects)}"
                self._receivers.append(run_with_retries(start, options.retries, what, established=False))
            self._epoch = clock.token(8)
            self._backlog = backlog
            since = iso_time(clock.time())
            said = conditions.LISTENING(subjects=self._subjects, since=since, connections=options.receivers)
            logger.info(said.with_code)
        for receiver in self._receivers:
            receiver.raise_if_ended()
        return self._backlog

    @errors_for_spark()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins: now."""
        self._start_and_check_receivers()
        return CoreOffset(self._epoch, 0)._asdict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        return self._pace.read_limit

    @errors_for_spark()
    def prepareForTriggerAvailableNow(self) -> None:
        """Note how much has been received: the query ends there."""
        self._target = self._start_and_check_receivers().end

    @errors_for_spark()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, ``start`` if none is due; a spool, if any, keeps the micro-batch."""
        backlog = self._start_and_check_receivers()
        self._take_and_log_losses(backlog)
        self._noted = at = CoreOffset.from_json(start)
        begin = self._count_before_and_note_epoch(at)
        self._seen = end = backlog.end
        if (kept := self._find_spooled_end_after(at, look=self._kept is None)) is not None:
            return self._note_planned_end(at.epoch, kept)
        if self._target is not None:
            end = min(end, self._target)
        if not isinstance(limit, ReadAllAvailable):
            if self._target is None and not backlog.is_half_full and end - begin < self._pace.min_new_now:
                return start
            end = self._end_within_limits(backlog, begin, end)
        if end <= begin:
            return start  # byte-identical, because Spark compares text
        # Once more before the query leaves that epoch: its process may just have ended.
        if (kept := self._find_spooled_end_after(at, look=True)) is not None:
            return self._note_planned_end(at.epoch, kept)
        if self._spool:
            self._spool.write(self._epoch, end, backlog.get_and_mark_taken(begin, end))
        return self._note_planned_end(self._epoch, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset of all that was received at the last :meth:`latestOffset`, for progress; None before it."""
        return None if self._seen is None else CoreOffset(self._epoch, self._seen)._asdict()

    @errors_for_spark()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan a micro-batch: slices of the received bytes.

        Raises:
            DataLossError: an earlier process planned the micro-batch, its messages are lost, and ``failOnDataLoss`` is
                set.
        """
        backlog = self._start_and_check_receivers()
        first, last = CoreOffset.from_json(start), CoreOffset.from_json(end)
        begin = self._count_before_and_note_epoch(first)
        self._noted = last
        if last.epoch == self._epoch:
            pieces = backlog.get_and_mark_taken(begin, last.messages)
        elif first == last:
            pieces = []
        else:
            self._count_before_and_note_epoch(last)
            pieces = self._read_spooled_or_report(first.messages if first.epoch == last.epoch else 0, last)
        return [WireSlice.of(part) for part in cut_into_partitions(pieces, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one partition, on an executor."""
        if isinstance(partition, WireSlice):  # else it is Spark's placeholder in a plan without partitions
            with errors_for_spark():
                messages = Decoder().feed(partition.wire).messages
                yield RowBuilder(self._schema).build_core(messages, np.repeat(partition.received, partition.counts))

    @errors_for_spark()
    def commit(self, end: dict[str, Any]) -> None:
        """Forget the messages that were processed."""
        done = CoreOffset.from_json(end)
        if self._backlog and done.epoch == self._epoch:
            self._backlog.release(done.messages)
        if self._spool:
            self._spool.remove(done.epoch, done.messages)
            if done.epoch == self._epoch:
                for epoch, read in self._earlier.items():
                    if late := [end - read for end in self._spool.list_ends(epoch) if end > read]:
                        self._log_dropped(max(late), "since they came into the spool after the next start of the query")
                    self._spool.remove(epoch)
                self._earlier.clear()

    def stop(self) -> None:
        """Unsubscribe, receive what is in flight, close the connections, and keep or count what nobody has read."""
        for receiver in self._receivers:
            receiver.unsubscribe_drain_and_close()
        if self._backlog is None:
            return
        self._take_and_log_losses(self._backlog)
        # Of two epochs, it is not known which one the next start finds in the checkpoint.
        ends = {at.epoch: at for at in (self._noted, self._end) if at is not None}
        left = self._backlog.end - (ends[self._epoch].messages if self._epoch in ends else 0)
        if left <= 0:
            return
        reason = "since the query had not begun" if self._spool else "since the query has no 'spoolLocation'"
        if self._spool and ends:
            try:
                for at in ends.values():
                    self._spool_unplanned(self._spool, self._backlog, at)
                logger.info(conditions.RECEIVED_KEPT(subjects=self._subjects, messages=left).with_code)
                return
            except NatsError as error:
                reason = f"since {error}"
        self._log_dropped(left, reason)

    def _spool_unplanned(self, spool: Spool, backlog: Backlog, at: CoreOffset) -> None:
        """Put into the spool what was received and not planned, as micro-batches that follow a position in its epoch.

        There the next start looks for them.
        """
        # A file after the position is one that Spark has not noted.
        last = max([at.messages, *spool.list_ends(at.epoch)])
        begin = first = last if at.epoch == self._epoch else 0
        while begin < backlog.end:
            end = self._end_within_limits(backlog, begin, backlog.end)
            spool.write(at.epoch, last + end - first, backlog.get_and_mark_taken(begin, end))
            begin = end

    @property
    def _subjects(self) -> str:
        return ",".join(self._options.subjects)

    def _take_and_log_losses(self, backlog: Backlog) -> None:
        for loss in backlog.take_losses(self._subjects):
            logger.warning(loss.with_code)

    def _log_dropped(self, messages: int, reason: str) -> None:
        logger.warning(conditions.RECEIVED_DROPPED(subjects=self._subjects, messages=messages, reason=reason).with_code)

    def _note_planned_end(self, epoch: str, messages: int) -> dict[str, Any]:
        """Note the end of a micro-batch, and return it as an offset."""
        self._pace.note_planned()
        self._end = CoreOffset(epoch, messages)
        return self._end._asdict()

    def _end_within_limits(self, backlog: Backlog, begin: int, end: int) -> int:
        """Return the end of a micro-batch that begins and may end there, within the options' limits."""
        if most := self._options.max_offsets:
            end = min(end, begin + most)
        if (most := self._options.max_bytes) and begin < end:
            end = min(end, backlog.end_within(begin, most))
        return end

    def _find_spooled_end_after(self, at: CoreOffset, look: bool) -> int | None:
        """Return the end of the first micro-batch that the spool has after a position in an earlier epoch.

        ``look``: list the spool; else use the last list, since Spark asks many times a second.
        """
        if self._spool is None or at.epoch == self._epoch:
            return None
        if look or self._kept is None:
            self._kept = self._spool.list_ends(at.epoch)
        return min((end for end in self._kept if end > at.messages), default=None)

    def _count_before_and_note_epoch(self, offset: CoreOffset) -> int:
        """Return the number of messages before an offset; for one of another epoch, note that epoch and return 0."""
        if offset.epoch == self._epoch:
            return offset.messages
        self._earlier[offset.epoch] = max(offset.messages, self._earlier.get(offset.epoch, 0))
        return 0

    def _read_spooled_or_report(self, begin: int, last: CoreOffset) -> list[Piece]:
        """Return a micro-batch that an earlier process planned; empty if its loss is no error (``failOnDataLoss``)."""
        if last.messages == begin:
            return []  # of a query that ended in its first micro-batch, which has no messages
        subjects = self._subjects
        rest = "what is published now"
        try:
            kept = self._spool.read_micro_batch(last.epoch, last.messages) if self._spool else None
        except SpoolDamageError as damage:
            first, end = begin + 1, last.messages
            what = conditions.SPOOL_DAMAGED(first=first, last=end, subjects=subjects, epoch=last.epoch, damage=damage)
            hint = f"put a sound copy of it there, or {GO_ON} {rest}"
        else:
            if kept is not None:
                # It may begin earlier, if Spark did not note the one before.
                return last_messages(kept, last.messages - begin)
            what = conditions.RECEIVED_LOST(messages=last.messages - begin, subjects=subjects)
            keep = "" if self._spool else ", and the option 'spoolLocation' to keep such messages in future"
            hint = f"{GO_ON} {rest}{keep}"
        raise_or_log_loss(what, self._options.fail_on_data_loss, rest, hint)
        return []
