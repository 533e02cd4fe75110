"""Which columns a message has that was read, and of what types; and whether a schema asks for others.

Spark parses DDL by the settings of a session: ``spark.sql.timestampType`` decides what TIMESTAMP means there, so it is
not used here. No setting changes the other names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_nats.errors import SchemaError
from spark_nats.kinds.streams.read import conditions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA = (
    "subject STRING, reply STRING, headers MAP<STRING, ARRAY<STRING>>, payload BINARY, "
    "stream STRING, sequence BIGINT, timestamp TIMESTAMP_LTZ"
)
"""All columns of a message, as DDL."""


def check_schema(schema: StructType, what: str, has: str) -> None:
    """Check the schema that a user asks for.

    Args:
        schema: what is asked for.
        what: what a row is.
        has: the columns of that, as DDL.

    Raises:
        SchemaError: it has a column or a type that there is not, names a column twice, or has one that is NOT NULL.
            Spark would not look whether a value is null there.
    """
    names = schema.fieldNames()
    types = {name: kind.lower().replace(" ", "") for name, kind in _COLUMN.findall(has)}
    for column in schema.fields:
        expected = types.get(column.name)
        actual = column.dataType.simpleString()
        actual = "timestamp_ltz" if actual == "timestamp" else actual
        if expected is None:
            raise SchemaError(conditions.NO_SUCH_COLUMN(what=what, column=column.name, columns=has))
        if actual != expected:
            raise SchemaError(
                conditions.COLUMN_TYPE_OF_SOURCE(
                    column=column.name, expected=expected.upper(), type=actual.upper(), columns=has
                )
            )
        if names.count(column.name) > 1:
            raise SchemaError(conditions.COLUMN_NAMED_TWICE(column=column.name))
        if not column.nullable:
            raise SchemaError(conditions.COLUMN_NOT_NULL(column=column.name))


_COLUMN = re.compile(r"(\w+) (\w+(?:<.+?>+)?)(?:, |$)")
