"""Which columns a row that was read has, and of what types.

Spark parses DDL by the settings of a session: ``spark.sql.timestampType`` decides what TIMESTAMP means there, so it is
not used here. No setting changes the other names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_nats.errors import SchemaError
from spark_nats.kinds.streams.read.conditions import (
    COLUMN_NAMED_TWICE,
    COLUMN_NOT_NULL,
    COLUMN_TYPE_OF_SOURCE,
    NO_SUCH_COLUMN,
)
from spark_nats.options.values import BUCKETS, CONSUMERS, STREAMS, SUBJECTS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA = (
    "subject STRING, reply STRING, headers MAP<STRING, ARRAY<STRING>>, payload BINARY, "
    "stream STRING, sequence BIGINT, timestamp TIMESTAMP_LTZ"
)
"""All columns of a message, as DDL."""
BUCKET_SCHEMA = (
    "bucket STRING, key STRING, value BINARY, revision BIGINT, created TIMESTAMP_LTZ, operation STRING, "
    "headers MAP<STRING, ARRAY<STRING>>"
)
"""All columns of an entry of a KV bucket, as DDL."""

OBJECT_INFO_SCHEMA = (
    "name STRING, description STRING, size BIGINT, chunks BIGINT, digest STRING, modified TIMESTAMP_LTZ, "
    "headers MAP<STRING, ARRAY<STRING>>, metadata MAP<STRING, STRING>, link STRUCT<bucket: STRING, name: STRING>, "
    "deleted BOOLEAN, sequence BIGINT"
)
"""The columns of an object of an object store that are read unless a schema says otherwise, as DDL."""
OBJECT_SCHEMA = f"{OBJECT_INFO_SCHEMA}, content BINARY"
"""All columns of an object, as DDL."""

TABLE_SCHEMAS = {
    STREAMS: (
        "name STRING, created TIMESTAMP_LTZ, description STRING, subjects ARRAY<STRING>, retention STRING, "
        "storage STRING, replicas INT, compression STRING, discard STRING, max_msgs BIGINT, "
        "max_msgs_per_subject BIGINT, max_bytes BIGINT, max_msg_size BIGINT, max_consumers BIGINT, max_age DOUBLE, "
        "duplicate_window DOUBLE, "
        "allow_direct BOOLEAN, sealed BOOLEAN, mirror STRING, sources ARRAY<STRING>, metadata MAP<STRING, STRING>, "
        "messages BIGINT, bytes BIGINT, first_sequence BIGINT, last_sequence BIGINT, first_time TIMESTAMP_LTZ, "
        "last_time TIMESTAMP_LTZ, deleted BIGINT, subject_count BIGINT, consumer_count BIGINT, cluster STRING, "
        "leader STRING, problem STRING"
    ),
    CONSUMERS: (
        "stream STRING, name STRING, created TIMESTAMP_LTZ, description STRING, durable BOOLEAN, "
        "filter_subjects ARRAY<STRING>, deliver_policy STRING, deliver_subject STRING, ack_policy STRING, "
        "ack_wait DOUBLE, max_deliver BIGINT, max_ack_pending BIGINT, max_waiting BIGINT, inactive_threshold DOUBLE, "
        "replicas INT, metadata MAP<STRING, STRING>, delivered_sequence BIGINT, delivered_time TIMESTAMP_LTZ, "
        "ack_floor_sequence BIGINT, ack_floor_time TIMESTAMP_LTZ, pending BIGINT, ack_pending BIGINT, "
        "redelivered BIGINT, waiting BIGINT, paused BOOLEAN, paused_until TIMESTAMP_LTZ, cluster STRING, "
        "leader STRING, problem STRING"
    ),
    BUCKETS: (
        "bucket STRING, created TIMESTAMP_LTZ, description STRING, history BIGINT, max_age DOUBLE, max_bytes BIGINT, "
        "max_value_size BIGINT, limit_marker_ttl DOUBLE, storage STRING, replicas INT, compression BOOLEAN, "
        "mirror STRING, metadata MAP<STRING, STRING>, keys BIGINT, entries BIGINT, bytes BIGINT, revision BIGINT, "
        "last_time TIMESTAMP_LTZ, cluster STRING, leader STRING, problem STRING"
    ),
    SUBJECTS: "stream STRING, subject STRING, messages BIGINT, problem STRING",
}
"""All columns of the tables of what an account holds, by their names, as DDL."""


def check_schema(schema: StructType, has: str = SCHEMA) -> None:
    """Check the schema that a user asks for.

    Args:
        schema: what is asked for.
        has: what there is, as DDL.

    Raises:
        SchemaError: it has a column or a type that there is not, names a column twice, or has one that is NOT NULL.
            Spark would not look whether a value is null there.
    """
    names = schema.fieldNames()
    types = {name: kind.lower().replace(" ", "") for name, kind in _COLUMN.findall(has)}
    what = _WHAT[has]
    for column in schema.fields:
        expected = types.get(column.name)
        actual = column.dataType.simpleString()
        actual = "timestamp_ltz" if actual == "timestamp" else actual
        if expected is None:
            raise SchemaError(NO_SUCH_COLUMN(what=what, column=column.name, columns=has))
        if actual != expected:
            raise SchemaError(
                COLUMN_TYPE_OF_SOURCE(column=column.name, expected=expected.upper(), type=actual.upper(), columns=has)
            )
        if names.count(column.name) > 1:
            raise SchemaError(COLUMN_NAMED_TWICE(column=column.name))
        if not column.nullable:
            raise SchemaError(COLUMN_NOT_NULL(column=column.name))


_COLUMN = re.compile(r"(\w+) (\w+(?:<.+?>+)?)(?:, |$)")
_WHAT = {
    SCHEMA: "a message",
    BUCKET_SCHEMA: "an entry of a KV bucket",
    OBJECT_SCHEMA: "an object",
    **{schema: f"the table of {table}" for table, schema in TABLE_SCHEMAS.items()},
}
