"""How the columns of a row are built from messages."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_nats.jetstream.delivering import Delivered
from spark_nats.protocol.bytecolumns import Positions, integers, repeated
from spark_nats.protocol.key_columns import keys_of, operations_of
from spark_nats.protocol.messages import Messages
from spark_nats.sparkapi import arrow_schema

logger = logging.getLogger(__name__)


class RowBuilder:
    """Builds Arrow batches with the columns of a schema from messages; other columns cost nothing.

    Args:
        schema: which columns.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        self._warned = False

    def build(self, delivered: Delivered, stream: str) -> pa.RecordBatch:
        """Return one row for each message of a stream."""
        messages, deliveries = delivered

        def own(name: str) -> pa.Array:
            match name:
                case "sequence":
                    return integers(deliveries.stream_sequences())
                case "timestamp":
                    # Spark's timestamps are microseconds; the server's are nanoseconds.
                    return integers(deliveries.timestamps() // 1000)
                case "stream":
                    return repeated(stream, len(messages))
            # The wire's reply is the acknowledgement subject, which nobody may publish to.
            return pa.nulls(len(messages))

        return self._build(messages, f"stream {stream}", own)

    def build_core(self, messages: Messages, received: Positions) -> pa.RecordBatch:
        """Return one row for each message of core NATS.

        Args:
            messages: the messages.
            received: when each was received, in microseconds since 1970.
        """

        def own(name: str) -> pa.Array:
            match name:
                case "timestamp":
                    return integers(received)
                case "reply":
                    return messages.replies()
            return pa.nulls(len(messages))

        return self._build(messages, "core NATS", own)

    def _build(self, messages: Messages, source: str, own: Callable[[str], pa.Array]) -> pa.RecordBatch:
        columns = [self._column(field.name, messages, source, own).cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, messages: Messages, source: str, own: Callable[[str], pa.Array]) -> pa.Array:
        match name:
            case "subject":
                return messages.subjects()
            case "payload":
                return messages.payloads()
            case "headers":
                headers = messages.headers()
                if headers.malformed and not self._warned:
                    self._warned = True
                    logger.warning(
                        "%s: %d header lines are not 'Name: value' and are left out", source, headers.malformed
                    )
                return headers.values
        return own(name)


class EntryBuilder(RowBuilder):
    """Builds Arrow batches from what a KV bucket holds.

    Args:
        schema: which columns.
        bucket: name of the bucket.
        ignore_deletes: whether to leave out that a key was deleted, purged or has expired.
    """

    def __init__(self, schema: StructType, bucket: str, ignore_deletes: bool) -> None:
        super().__init__(schema)
        self._bucket = bucket
        self._ignore_deletes = ignore_deletes

    def build(self, delivered: Delivered, stream: str) -> pa.RecordBatch:
        """Return one row for each entry."""
        messages, deliveries = delivered
        if self._ignore_deletes:
            deletions = operations_of(messages).deletions
            if deletions.any():
                messages, deliveries = messages.take(~deletions), deliveries.take(~deletions)

        def own(name: str) -> pa.Array:
            match name:
                case "bucket":
                    return repeated(self._bucket, len(messages))
                case "key":
                    return keys_of(messages, self._bucket)
                case "value":
                    return messages.payloads()
                case "revision":
                    return integers(deliveries.stream_sequences())
                case "created":
                    return integers(deliveries.timestamps() // 1000)
            return operations_of(messages).names

        return self._build(messages, f"bucket {self._bucket}", own)
