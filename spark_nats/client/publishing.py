"""Publishing whole columns to core NATS, in portions, and knowing what the server has processed.

Core NATS acknowledges nothing. What is known is that the server has processed whatever was sent before a PING that it
answers, so there is one behind each portion: when the connection fails, the rows before the last answered one are
known to have been taken.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_nats.client.connection import Connection
from spark_nats.errors import NatsError
from spark_nats.protocol.bytecolumns import lengths_of

PART_BYTES = 1 << 20
"""Payload and headers that are encoded and sent at once, in bytes. A larger message goes alone."""
_PART_ROWS = 65536


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


class CorePublisher:
    """Publishes rows to core NATS over one connection.

    Args:
        connection: carries the messages.

    Attributes:
        duplicates: always 0; core NATS knows no message again.
    """

    duplicates = 0

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._given = 0
        self._sent = 0  # at most: a part that is being sent counts as a whole
        self._confirmed = 0
        self._marks: list[tuple[int, int]] = []  # of the connection, and how many rows were sent before each

    @property
    def confirmed(self) -> int:
        """How many rows the server is known to have processed."""
        passed = 0
        for mark, rows in self._marks:
            if mark > self._connection.passed:
                break
            self._confirmed = rows
            passed += 1
        del self._marks[:passed]
        return self._confirmed

    def publish(
        self,
        subjects: pa.Array,
        payloads: pa.Array,
        headers: pa.Array | None = None,
        replies: pa.Array | None = None,
    ) -> None:
        """Send rows, which must be valid; returns when the last of them is sent.

        Args:
            subjects: string column without null.
            payloads: string or binary column without null.
            headers: binary column of header blocks, null where a row has none.
            replies: string column, null where a row has none.

        Raises:
            NatsError: the connection failed, or the server refused a row. The message says what became of the rows.
        """
        try:
            for part in cut_into_parts(payloads, headers, _PART_ROWS):
                self._sent = self._given + part.stop
                self._connection.publish_columns(
                    subjects[part],
                    payloads[part],
                    None if headers is None else headers[part],
                    None if replies is None else replies[part],
                )
                self._marks.append((self._connection.mark(), self._sent))
        except NatsError as error:
            raise self._failed(error) from None
        self._given += len(subjects)

    def drain(self) -> None:
        """Wait until the server has processed every row.

        Raises:
            NatsError: the connection failed, or the server refused a row. The message says what became of the rows.
        """
        try:
            self._connection.flush()
        except NatsError as error:
            raise self._failed(error) from None

    def close(self) -> None:
        """End publishing. There is nothing to give back."""

    def _failed(self, error: NatsError) -> NatsError:
        return error.with_context(
            f"{error}; {self.confirmed} rows of this task were flushed before, "
            f"up to {self._sent} rows of this task were sent, without acknowledgement"
        )
