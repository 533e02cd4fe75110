"""Which columns a DataFrame may have that is written, and of what types."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql.types import StructField, StructType

from spark_nats.conditions.kinds import COLUMN_MISSING, COLUMN_OF_SOURCE, COLUMN_TYPE, COLUMN_UNKNOWN
from spark_nats.errors import SchemaError
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.conditions import COLUMN_FOR_STREAMS, COLUMN_NOT_FOR_CORE, NO_SUBJECT

COLUMN_TYPES = {
    "payload": ("binary", "string"),
    "subject": ("string",),
    "reply": ("string",),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": ("string",),
    "ttl": ("string", "int", "bigint"),
    "expected_last_subject_sequence": ("bigint",),
    "increment": ("bigint", "int", "string"),
}
KEY_COLUMN_TYPES = {
    "key": ("string",),
    "value": ("binary", "string"),
    "operation": ("string",),
    "expected_revision": ("int", "bigint"),
    "ttl": COLUMN_TYPES["ttl"],
    "headers": COLUMN_TYPES["headers"],
    "msg_id": ("string",),
}
"""The same for a KV bucket."""
_OF_STREAMS = ("ttl", "expected_last_subject_sequence", "increment")
# Columns that people have who wrote to Kafka, and what becomes of them.
_ELSEWHERE = {
    "value": "rename it to 'payload'",
    "key": "messages have no key; make it a part of 'subject', or a header",
    "topic": "rename it to 'subject'",
    "partition": "streams have no partitions; drop it",
}
# What the source adds of its own, and of which type. Ignored, so that what was read can be written.
_SOURCES_OWN = {"stream": "string", "sequence": "bigint", "timestamp": "timestamp"}
_BUCKETS_OWN = {"bucket": "string", "revision": "bigint", "created": "timestamp"}


def column_types(options: WriteOptions) -> dict[str, tuple[str, ...]]:
    """Return which columns can be written, and of what types."""
    return COLUMN_TYPES if options.bucket is None else KEY_COLUMN_TYPES


def place_column(names: Iterable[str], options: WriteOptions) -> str | None:
    """Return the column whose values have to be the stream, or the bucket, that is written to; None when none has to.

    Beside a sequence it says where a row was read. Alone it may be meant to say where the row is to go.
    """
    place, position = ("stream", "sequence") if options.bucket is None else ("bucket", "revision")
    return place if place in names and position not in names else None


def plain_type(column: StructField) -> str:
    """Return the type of a column; text is STRING, whatever its collation or the length that it is declared with."""
    return _TEXT.sub("string", column.dataType.simpleString())


_TEXT = re.compile(r"string collate \w+|(?:var)?char\(\d+\)")


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Check the schema of a DataFrame that is to be written.

    Raises:
        SchemaError: a column is missing, unknown or of the wrong type.
    """
    of_bucket = options.bucket is not None
    types = column_types(options)
    sources_own = _BUCKETS_OWN if of_bucket else _SOURCES_OWN
    names = schema.fieldNames()
    for column in schema.fields:
        if expected := sources_own.get(column.name):
            actual = plain_type(column)
            if actual != expected:
                raise SchemaError(
                    COLUMN_OF_SOURCE(
                        column=column.name,
                        type=actual.upper(),
                        expected=expected.upper(),
                        into="value" if of_bucket else "payload",
                    )
                )
            if place_column(names, options) == column.name and options.stream is None:
                raise SchemaError(COLUMN_NOT_FOR_CORE(column=column.name))
            continue
        if column.name not in types:
            where, into = ("a KV bucket", "value") if of_bucket else ("NATS", "payload")
            hint = f"drop it, or put it into '{into}' or 'headers'"
            hint = hint if of_bucket else _ELSEWHERE.get(column.name, hint)
            raise SchemaError(COLUMN_UNKNOWN(column=column.name, where=where, hint=hint, columns=", ".join(types)))
        actual = plain_type(column)
        if actual not in types[column.name]:
            allowed = " or ".join(name.upper() for name in types[column.name])
            raise SchemaError(COLUMN_TYPE(column=column.name, expected=allowed, type=actual.upper()))
        if column.name in _OF_STREAMS and options.stream is None:
            raise SchemaError(COLUMN_FOR_STREAMS(column=column.name))
    there = ", ".join(names) or "none"
    if of_bucket:
        if "key" not in names:
            raise SchemaError(COLUMN_MISSING(column="key", type="STRING", columns=there))
        if "value" not in names and "operation" not in names:
            raise SchemaError(COLUMN_MISSING(column="value", type="BINARY or STRING", columns=there))
        return
    if "payload" not in names and "increment" not in names:
        raise SchemaError(COLUMN_MISSING(column="payload", type="BINARY or STRING", columns=there))
    if "subject" not in names and options.subject is None:
        raise SchemaError(NO_SUBJECT())


def may_have_ids(schema: StructType, options: WriteOptions) -> bool:
    """Tell whether rows may have message ids of their own, in a column or in headers that are sent as they are."""
    names = schema.fieldNames()
    return "msg_id" in names or (options.control_headers and "headers" in names)
