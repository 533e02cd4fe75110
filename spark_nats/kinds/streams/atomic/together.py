"""Storing the rows of a partition together or not at all."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_nats.errors import InvalidRowError, PublishError
from spark_nats.jetstream.publishing.batches import MAX_ROWS, BatchPublisher
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.atomic import conditions
from spark_nats.kinds.streams.write.columns import CheckedRows, RowChecker, has_counters, index_of_last_equal_before
from spark_nats.kinds.streams.write.partitions import RowWriter
from spark_nats.kinds.streams.write.tasks import Counts
from spark_nats.protocol.bytecolumns import Positions, flags_of, size_of
from spark_nats.protocol.control import is_older
from spark_nats.protocol.headers import BATCH_HEADER_BYTES, EXPECTED_LAST, EXPECTED_SUBJECT, first_header_values
from spark_nats.protocol.subjects import transform_subject

_ADDS_TOGETHER = 2, 14, 3  # the first version that adds the increments of a batch
_MAX_BYTES = 1 << 30  # that a task keeps until its last row arrives


class Together(RowWriter):
    """Stores the rows of one task as one batch."""

    acted_on = ("the option 'atomic'",)

    def check_target_stream(self, stream: StreamInfo) -> None:
        """Check on the driver that the server and the stream store rows together."""
        if is_older(stream.server_version, 2, 12):
            raise PublishError(conditions.SERVER_STORES_SINGLY(version=stream.server_version))
        if not stream.config.get("allow_atomic"):
            raise PublishError(conditions.STREAM_STORES_SINGLY(stream=stream.name))
        _check_increments_supported(stream)

    def open(self, stream: StreamInfo | None, checker: RowChecker) -> None:
        """Get ready for rows."""
        assert stream is not None  # noqa: S101 - core NATS does not have the option
        _check_increments_supported(stream)
        self._stream, self._checker = stream, checker
        self._parts: list[pa.RecordBatch] = []
        self._rows = self._size = 0

    def check_and_encode_rows_to_send(
        self, batch: pa.RecordBatch, before: int | None = None, picked: Positions | None = None
    ) -> None:
        """Keep rows until the last one is there."""
        self._rows += batch.num_rows
        if self._rows > MAX_ROWS:
            raise PublishError(conditions.TOO_MANY_ROWS_TOGETHER(rows=MAX_ROWS))
        self._parts.append(batch)
        self._size += size_of(batch)
        if self._size > _MAX_BYTES:
            raise PublishError(conditions.TOO_MANY_BYTES_TOGETHER(mebibytes=_MAX_BYTES >> 20))

    def finish(self) -> Counts:
        """Write all rows or none; return their number, and the bytes of those that were sent."""
        if not (count := self._rows):
            return Counts()
        (whole,) = pa.Table.from_batches(self._parts).combine_chunks().to_batches()
        rows = self._checker.check_and_encode(whole, 0, BATCH_HEADER_BYTES, topics=())
        _check_storable_together(rows, self._stream)
        timeout, known = self._options.ack_timeout, self._deduplication
        if (fence := known.fence) is not None and fence.is_check_due(self._lease.js.connection):
            self._lease.ask_with_retries(fence.check_latest_and_read_newer)
        publisher = BatchPublisher(self._lease, self._stream, timeout, exact=known.exact, since=known.since)
        stored = known.already_stored
        if stored is not None and publisher.are_stored_or_raise_if_partly(
            rows.ids, ~stored.note_and_find_missing(rows.ids, rows.subjects)
        ):
            return Counts(count)
        publisher.publish_and_wait(rows.subjects, rows.payloads, rows.headers, rows.ids)
        return Counts(count, int(rows.sizes.sum()), publisher.duplicates)


def _check_increments_supported(stream: StreamInfo) -> None:
    """Refuse a stream of counters whose leader, before 2.14.3, stores the increments of a batch as empty messages.

    After these, it refuses all increments of their subjects. Another server may lead the stream now than when the
    driver asked. So each task asks again, with its first question.
    """
    if has_counters(stream) and is_older(stream.server_version, *_ADDS_TOGETHER):
        raise PublishError(conditions.INCREMENTS_LOST_TOGETHER(stream=stream.name, version=stream.server_version))


def _check_storable_together(rows: CheckedRows, stream: StreamInfo) -> None:
    """Refuse a row that the server cannot store together with those before it.

    Its own refusal would not name the row, and it says of what can never be stored that it may be stored later (10164).
    """
    of_id = np.flatnonzero(flags_of(rows.ids.is_valid()))
    same_id = of_id[index_of_last_equal_before(rows.ids.drop_null()) >= 0]
    if len(same_id):
        raise InvalidRowError(conditions.SAME_ID_TOGETHER(row=int(same_id[0])))
    if rows.headers is None:
        return
    late = np.flatnonzero(flags_of(first_header_values(rows.headers, EXPECTED_LAST).is_valid()))
    if len(late) and late[-1]:
        raise InvalidRowError(conditions.LAST_MESSAGE_TOGETHER(row=int(late[late > 0][0]), header=EXPECTED_LAST))
    if rows.conditional is None:
        return
    transform = stream.config.get("subject_transform")
    others = first_header_values(rows.headers, EXPECTED_SUBJECT).cast(pa.string())
    before: set[str | None] = set()
    columns = [column.to_pylist() for column in (rows.subjects, others, rows.conditional)]
    for row, (subject, other, expects) in enumerate(zip(*columns, strict=True)):
        stored = transform_subject(subject, transform) if transform else subject
        if expects and (compared := other or stored) is not None and compared in before:
            made = "" if compared == subject else f" as {compared!r}"
            raise InvalidRowError(conditions.SAME_SUBJECT_TOGETHER(row=row, subject=subject, made=made))
        before.add(stored)
