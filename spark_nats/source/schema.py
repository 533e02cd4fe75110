"""Which columns a row that was read has, and of what types."""

from __future__ import annotations

from pyspark.sql.types import StructType

from spark_nats.errors import SchemaError

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
