"""The columns of a row, and how they are built from messages."""

from __future__ import annotations

import logging

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_nats.errors import SchemaError
from spark_nats.jetstream.reading import Delivered

logger = logging.getLogger(__name__)

SCHEMA = (
    "subject STRING, reply STRING, headers MAP<STRING, ARRAY<STRING>>, payload BINARY, "
    "stream STRING, sequence BIGINT, timestamp TIMESTAMP"
)
"""All columns, as DDL."""

_TYPES = {
    "subject": "string",
    "reply": "string",
    "headers": "map<string,array<string>>",
    "payload": "binary",
    "stream": "string",
    "sequence": "bigint",
    "timestamp": "timestamp",
}


def check_schema(schema: StructType) -> None:
    """Check the schema that a user asks for.

    Raises:
        SchemaError: it has a column or a type that a message does not have.
    """
    for column in schema.fields:
        expected = _TYPES.get(column.name)
        actual = column.dataType.simpleString()
        if expected is None:
            raise SchemaError(f"a message has no column '{column.name}'; its columns are {SCHEMA}")
        if actual != expected:
            raise SchemaError(
                f"column '{column.name}' is {expected.upper()}, not {actual.upper()}; the columns are {SCHEMA}"
            )


class RowBuilder:
    """Builds Arrow batches with the columns of a schema from delivered messages; other columns cost nothing."""

    def __init__(self, schema: StructType) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._warned = False

    def build(self, delivered: Delivered, stream: str) -> pa.RecordBatch:
        """Return one row for each message."""
        columns = [self._column(field, delivered, stream) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, field: pa.Field, delivered: Delivered, stream: str) -> pa.Array:
        messages, deliveries = delivered
        match field.name:
            case "subject":
                return messages.subjects()
            case "payload":
                return messages.payloads()
            case "headers":
                headers = messages.headers()
                if headers.malformed and not self._warned:
                    self._warned = True
                    logger.warning(
                        "stream %s: %d header lines are not 'Name: value' and are left out", stream, headers.malformed
                    )
                return headers.values.cast(field.type)
            case "sequence":
                return pa.array(deliveries.stream_sequences())
            case "timestamp":
                # Spark's timestamps are microseconds; the server's are nanoseconds.
                return pa.array(deliveries.timestamps() // 1000).cast(field.type)
            case "stream":
                return pa.repeat(pa.scalar(stream, pa.string()), len(messages))
            case "reply":
                # The wire's reply is the acknowledgement subject, which nobody may publish to.
                return pa.nulls(len(messages), pa.string())
        raise SchemaError(f"a message has no column '{field.name}'")
