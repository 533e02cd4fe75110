"""Which columns a row that was read has, and of what types."""

from __future__ import annotations

import re

from pyspark.sql.types import StructType

from spark_nats.conditions.options import COLUMN_TYPE_OF_SOURCE, NO_SUCH_COLUMN
from spark_nats.errors import SchemaError

SCHEMA = (
    "subject STRING, reply STRING, headers MAP<STRING, ARRAY<STRING>>, payload BINARY, "
    "stream STRING, sequence BIGINT, timestamp TIMESTAMP"
)
"""All columns of a message, as DDL."""
BUCKET_SCHEMA = (
    "bucket STRING, key STRING, value BINARY, revision BIGINT, created TIMESTAMP, operation STRING, "
    "headers MAP<STRING, ARRAY<STRING>>"
)
"""All columns of an entry of a KV bucket, as DDL."""


def check_schema(schema: StructType, has: str = SCHEMA) -> None:
    """Check the schema that a user asks for.

    Args:
        schema: what is asked for.
        has: what there is, as DDL.

    Raises:
        SchemaError: it has a column or a type that there is not.
    """
    types = {name: kind.lower().replace(" ", "") for name, kind in _COLUMN.findall(has)}
    what = "a message" if has == SCHEMA else "an entry of a KV bucket"
    for column in schema.fields:
        expected = types.get(column.name)
        actual = column.dataType.simpleString()
        if expected is None:
            raise SchemaError(NO_SUCH_COLUMN(what=what, column=column.name, columns=has))
        if actual != expected:
            raise SchemaError(
                COLUMN_TYPE_OF_SOURCE(column=column.name, expected=expected.upper(), type=actual.upper(), columns=has)
            )


_COLUMN = re.compile(r"(\w+) (\w+(?:<.+>)?)(?:, |$)")
