"""Publishing whole columns to core NATS, in portions, and knowing what the server has processed.

Core NATS acknowledges nothing. What is known is that the server has processed whatever was sent before a PING that it
answers, so there is one behind each portion: when the connection fails, the rows before the last answered one are
known to have been taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats.client.pool import Lease
from spark_nats.errors import NatsError
from spark_nats.protocol.bytecolumns import lengths_of

PART_BYTES = 1 << 20  # payload and headers that are encoded and sent at once, in bytes. A larger message goes alone
_PART_ROWS = 65536
_MAX_PARTS = 32  # that are not known to be processed


def cut_into_parts(payloads: pa.Array, headers: pa.Array | None, max_rows: int) -> Iterator[slice]:
    """Cut a batch into parts of at most ``max_rows`` rows and about :data:`PART_BYTES`, at least one row each."""
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
    """Rows that were sent together, and the mark behind them; None while they are being sent."""

    mark: int | None
    subjects: pa.Array
    payloads: pa.Array
    headers: pa.Array | None
    replies: pa.Array | None


class CorePublisher:
    """Publishes rows to core NATS, over a leased connection.

    Rows that the server is not known to have processed are kept, a few parts of them. When a connection is lost they
    are sent again over another one: some may then be delivered twice, as they would be if the whole task ran again.
    When the connection failed, or the server refused a row, NatsError is raised and says what became of the rows.
    ``on_processed`` is called each time that the server has processed more of them.
    """

    duplicates = 0  # core NATS knows no message again

    def __init__(self, lease: Lease, on_processed: Callable[[], None] | None = None) -> None:
        self._lease = lease
        self._on_processed = on_processed
        self._confirmed = 0
        self._parts: deque[_Part] = deque()  # not confirmed

    @property
    def confirmed(self) -> int:
        """How many rows the server is known to have processed."""
        passed = self._lease.connection.passed
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
    ) -> None:
        """Send rows as :meth:`Connection.publish_columns` does, to the last of them. Their ids are of no use here."""
        if not len(subjects):
            self.drain()  # the server may have asked whether we are there
        columns = (subjects, payloads, headers, replies)
        for part in cut_into_parts(payloads, headers, _PART_ROWS):
            rows = _Part(None, *(None if column is None else column[part] for column in columns))
            if self._lease.connection.lame_duck:
                self.drain()
                self._lease.move()
            if len(self._parts) >= _MAX_PARTS:
                self.drain()
            self._parts.append(rows)
            self._persist(self._send)

    def drain(self) -> None:
        """Wait until the server has processed every row."""
        self._persist(self._flush)

    def close(self) -> None:
        """End publishing. There is nothing to give back."""

    def _send(self) -> None:
        """Send the parts that were not sent over this connection."""
        connection = self._lease.connection
        for i, part in enumerate(self._parts):
            if part.mark is None:
                connection.publish_columns(*part[1:])
                self._parts[i] = part._replace(mark=connection.mark())
        self._note_progress()

    def _flush(self) -> None:
        self._send()
        self._lease.connection.flush()
        self._note_progress()

    def _note_progress(self) -> None:
        before = self._confirmed
        if self.confirmed > before:
            self._lease.works()
            if self._on_processed is not None:
                self._on_processed()

    def _persist(self, work: Callable[[], None]) -> None:
        """Do what sends; when the connection is lost meanwhile, over another one."""
        while True:
            try:
                work()
                return
            except NatsError as error:
                failed = self._failed(error)
                try:
                    self._lease.renew(error)
                except NatsError as lasting:
                    raise (failed if lasting is error else self._failed(lasting)) from None
                self._parts = deque(part._replace(mark=None) for part in self._parts)

    def _failed(self, error: NatsError) -> NatsError:
        confirmed = self.confirmed
        sent = confirmed + sum(len(part.subjects) for part in self._parts)
        return error.with_context(
            f"{error}; {confirmed} rows of this task were flushed before, up to {sent} rows of this task were sent, "
            "without acknowledgement"
        )
