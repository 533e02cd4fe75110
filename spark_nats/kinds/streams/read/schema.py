"""The columns of a message that is read, with their types, and the check of a schema that a user asks for.

Spark parses DDL by the settings of a session: ``spark.sql.timestampType`` decides what TIMESTAMP means in it, so this
module uses TIMESTAMP_LTZ. No setting changes the other names.
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
        schema: the schema.
        what: what a row is, in words.
        has: the columns of a row, as DDL.

    Raises:
        SchemaError: the schema has an unknown column, gives a column another type, names one twice, or has a column
            that is NOT NULL. Spark would not check whether its values are null.
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
            wanted, given = expected.upper(), actual.upper()
            said = conditions.COLUMN_TYPE_OF_SOURCE(column=column.name, expected=wanted, type=given, columns=has)
            raise SchemaError(said)
        if names.count(column.name) > 1:
            raise SchemaError(conditions.COLUMN_NAMED_TWICE(column=column.name))
        if not column.nullable:
            raise SchemaError(conditions.COLUMN_NOT_NULL(column=column.name))


_COLUMN = re.compile(r"(\w+) (\w+(?:<.+?>+)?)(?:, |$)")
