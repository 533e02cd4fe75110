"""Building the columns of rows from messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from spark_nats.conditions import ConditionText, Once
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.kinds.streams.read.conditions import BYTES_REPLACED, HEADERS_MALFORMED
from spark_nats.protocol.bytecolumns import Positions, Text, integers, repeat_text
from spark_nats.protocol.deliveries import Deliveries
from spark_nats.protocol.direct_gets import DirectGetReplies
from spark_nats.protocol.messages import Messages
from spark_nats.sparkapi import arrow_schema

logger = logging.getLogger(__name__)

Columns = dict[str, Callable[[], pa.Array | Text]]
"""Columns by name; a column costs nothing until it is asked for."""


class RowBuilder:
    """Builds Arrow batches with the columns of a schema from messages: null where messages lack them.

    Columns that are not in the schema cost nothing.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        self._said = Once()

    def build(self, delivered: Delivered, stream: str) -> pa.RecordBatch:
        """Return one row for each message of a stream."""
        messages, deliveries = delivered
        # The reply on the wire is left out: it is for acknowledging the delivery, and is not the message's own.
        own: Columns = {
            "sequence": lambda: integers(deliveries.stream_sequences()),
            # Spark's timestamps are microseconds; the server's are nanoseconds.
            "timestamp": lambda: integers(deliveries.timestamps() // 1000),
            "stream": lambda: repeat_text(stream, len(messages)),
        }
        return self._build(messages, f"stream {stream}", own, deliveries)

    def build_core(self, messages: Messages, received: Positions) -> pa.RecordBatch:
        """Return one row for each message of core NATS.

        Args:
            messages: the messages.
            received: when each was received, in microseconds since 1970.
        """
        own: Columns = {"timestamp": lambda: integers(received), "reply": lambda: messages.decoded(messages.reply)}
        return self._build(messages, "core NATS", own)

    def _build(
        self, messages: Messages, source: str, own: Columns, deliveries: Deliveries | DirectGetReplies | None = None
    ) -> pa.RecordBatch:
        def headers() -> Text:
            found = messages.headers()
            if found.malformed and self._said.add_if_new("headers"):
                logger.warning(HEADERS_MALFORMED(source=source, lines=found.malformed).with_code)
            return Text(found.values, found.replaced)

        columns: Columns = {
            "subject": lambda: messages.decoded(messages.subject),
            "payload": lambda: messages.payloads(),
            "headers": headers,
            **own,
        }
        absent = partial(pa.nulls, len(messages))
        arrays, replaced = [], {}
        for field in self._schema:
            column = columns.get(field.name, absent)()
            if isinstance(column, Text):
                if len(column.replaced):
                    replaced[field.name] = column.replaced
                column = column.values
            # A cast to its own type would cost as much as a small column.
            arrays.append(column if column.type == field.type else column.cast(field.type))
        if replaced and self._said.add_if_new("bytes"):
            logger.warning(_describe_replaced_bytes(source, messages, replaced, deliveries).with_code)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _describe_replaced_bytes(
    source: str, messages: Messages, replaced: dict[str, Positions], deliveries: Deliveries | DirectGetReplies | None
) -> ConditionText:
    """Return the warning that columns have text in place of bytes that are not UTF-8, and where that begins."""
    rows = np.unique(np.concatenate(list(replaced.values())))
    first = int(rows[0])
    place = f"subject {messages.subject_at(first)!r}"
    if deliveries is not None:
        place = f"sequence {deliveries.stream_sequences()[first]}, {place}"
    columns = " and ".join(map(repr, replaced))
    return BYTES_REPLACED(source=source, columns=columns, place=place, messages=len(rows), of=len(messages))
