"""Publishing whole columns to core NATS, in parts, and counting the rows that the server has processed.

Core NATS acknowledges no message. But a server that answers a PING has processed everything that was sent before the
PING. So the publisher sends a PING after each part: when the connection fails, the server has processed the rows before
the last answered PING.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats.client.pool import Lease
from spark_nats.conditions import Topic
from spark_nats.conditions.client import ROW_TOO_LARGE
from spark_nats.errors import InvalidRowError, NatsError
from spark_nats.protocol.bytecolumns import lengths_of

PART_BYTES = 1 << 20  # bytes of payload and headers that are encoded and sent at once; a larger message goes alone
_PART_ROWS = 65536
_MAX_PARTS = 32  # maximum unconfirmed parts


def cut_into_parts(payloads: pa.Array, headers: pa.Array | None, max_rows: int) -> Iterator[slice]:
    """Cut a batch into parts of at most ``max_rows`` rows and :data:`PART_BYTES` bytes, but at least one row."""
    size = lengths_of(payloads)
    if headers is not None:
        size = size + lengths_of(headers)
    total = np.cumsum(size)
    start = 0
    while start < len(size):
        before = int(total[start - 1]) if start else 0
        end = int(np.searchsorted(total, before + PART_BYTES, "right"))
        end = max(start + 1, min(end, start + max_rows))
        yield slice(start, end)
        start = end


class _Part(NamedTuple):
    """Rows that are sent together, and the mark after them, which is None until they are sent."""

    mark: int | None
    subjects: pa.Array
    payloads: pa.Array
    headers: pa.Array | None
    replies: pa.Array | None


class CorePublisher:
    """A publisher of rows to core NATS, over a leased connection.

    It keeps a few parts of rows that the server is not known to have processed. When the connection is lost, it sends
    them again over another one: some may then be delivered twice, as after a new attempt of the task. When the retries
    fail, or the server refuses a row, NatsError reports how many rows were processed and how many were sent. The
    publisher calls ``on_processed`` each time that the server has processed more rows.
    """

    duplicates = skipped = 0  # core NATS detects no duplicates, and refuses no row

    def __init__(self, lease: Lease, on_processed: Callable[[], None] | None = None) -> None:
        self._lease = lease
        self._on_processed = on_processed
        self._confirmed = 0
        self._parts: deque[_Part] = deque()  # not confirmed

    @property
    def confirmed(self) -> int:
        """The number of rows that the server is known to have processed."""
        passed = self._lease.connection.last_mark_before_error
        while self._parts and (mark := self._parts[0].mark) is not None and mark <= passed:
            self._confirmed += len(self._parts.popleft().subjects)
        return self._confirmed

    def publish(
        self,
        subjects: pa.Array,
        payloads: pa.Array,
        headers: pa.Array | None = None,
        replies: pa.Array | None = None,
        ids: pa.Array | None = None,
        conditional: bool = False,
    ) -> None:
        """Send all rows, as :meth:`Connection.publish_columns` does; ``ids`` and ``conditional`` have no effect here.

        Without rows, do what :meth:`wait_for_sent_rows` does.
        """
        if not len(subjects):
            self.wait_for_sent_rows()  # also answers a PING that the server may have sent
        columns = (subjects, payloads, headers, replies)
        for part in cut_into_parts(payloads, headers, _PART_ROWS):
            rows = _Part(None, *(None if column is None else column[part] for column in columns))
            if self._lease.connection.lame_duck:
                self.wait_for_sent_rows()
                self._lease.move_to_another_server()
            if len(self._parts) >= _MAX_PARTS:
                self.wait_for_sent_rows()
            self._parts.append(rows)
            self._keep_trying(self._send_unsent)

    def wait_for_sent_rows(self) -> None:
        """Wait until the server has processed every row."""
        self._keep_trying(self._send_and_flush)

    finish = wait_for_sent_rows

    def _send_unsent(self) -> None:
        """Send the parts that were not sent over the present connection."""
        connection = self._lease.connection
        for i, part in enumerate(self._parts):
            if part.mark is None:
                connection.publish_columns(*part[1:])
                self._parts[i] = part._replace(mark=connection.send_ping())
        self._note_progress()

    def _send_and_flush(self) -> None:
        self._send_unsent()
        self._lease.connection.flush()
        self._note_progress()

    def _note_progress(self) -> None:
        before = self._confirmed
        if self.confirmed > before:
            self._lease.note_success()
            if self._on_processed is not None:
                self._on_processed()

    def _keep_trying(self, work: Callable[[], None]) -> None:
        """Run ``work``; after an error that may pass, run it again over another connection."""
        while True:
            try:
                work()
                return
            except NatsError as error:
                failed = self._with_row_counts(error)
                try:
                    self._lease.reconnect_or_raise(error)
                except NatsError as lasting:
                    raise (failed if lasting is error else self._with_row_counts(lasting)) from None
                self._parts = deque(part._replace(mark=None) for part in self._parts)
                self._check_sizes()

    def _check_sizes(self) -> None:
        """Raise if a part has a row that is larger than the server accepts that was just connected to."""
        first, connection = self._confirmed, self._lease.connection
        for part in self._parts:
            if (row := connection.find_too_large_row(part.payloads, part.headers)) is not None:
                said = ROW_TOO_LARGE(row=first + row, most=connection.info.max_payload)
                raise self._with_row_counts(InvalidRowError(said).with_topics(Topic.ROW)) from None
            first += len(part.subjects)

    def _with_row_counts(self, error: NatsError) -> NatsError:
        confirmed = self.confirmed
        sent = confirmed + sum(len(part.subjects) for part in self._parts)
        return error.with_message(
            f"{error}; {confirmed} rows of this task were flushed before, up to {sent} rows of this task were sent, "
            "without acknowledgement"
        )
