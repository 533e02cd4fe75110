"""Which columns a DataFrame may have that is written, and of what types."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import StructType

from spark_nats.errors import SchemaError
from spark_nats.options.write import WriteOptions

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
            actual = column.dataType.simpleString()
            if actual != expected:
                raise SchemaError(
                    f"column '{column.name}' cannot be written, which would lose it: it is {actual.upper()}, and only "
                    f"what was read of NATS, {expected.upper()}, is left out; rename or drop it, or put it into "
                    f"'{'value' if of_bucket else 'payload'}' or 'headers'"
                )
            if place_column(names, options) == column.name and options.stream is None:
                raise SchemaError(
                    f"column '{column.name}' cannot be written to core NATS, which would lose it; rename or drop it, "
                    "and name a stream to write to in the option 'stream'"
                )
            continue
        if column.name not in types:
            where, into = ("a KV bucket", "value") if of_bucket else ("NATS", "payload")
            hint = f"drop it, or put it into '{into}' or 'headers'"
            hint = hint if of_bucket else _ELSEWHERE.get(column.name, hint)
            raise SchemaError(
                f"column '{column.name}' cannot be written to {where}, which would lose it; {hint} (columns that can "
                f"be written: {', '.join(types)})"
            )
        actual = column.dataType.simpleString()
        if actual not in types[column.name]:
            allowed = " or ".join(name.upper() for name in types[column.name])
            raise SchemaError(f"column '{column.name}' must be {allowed}, not {actual.upper()}")
        if column.name in _OF_STREAMS and options.stream is None:
            raise SchemaError(
                f"column '{column.name}' is for streams, and core NATS does not act on it; set the option 'stream', or "
                "drop the column"
            )
    there = ", ".join(names) or "none"
    if of_bucket:
        if "key" not in names:
            raise SchemaError(f"the column 'key' (STRING) is missing; there are {there}")
        if "value" not in names and "operation" not in names:
            raise SchemaError(f"the column 'value' (BINARY or STRING) is missing; there are {there}")
        return
    if "payload" not in names and "increment" not in names:
        raise SchemaError(f"the column 'payload' (BINARY or STRING) is missing; there are {there}")
    if "subject" not in names and options.subject is None:
        raise SchemaError(
            "it is not known where to publish: add the column 'subject' (STRING) or set the option 'subject'"
        )


def may_have_ids(schema: StructType, options: WriteOptions) -> bool:
    """Tell whether rows may have message ids of their own, in a column or in headers that are sent as they are."""
    names = schema.fieldNames()
    return "msg_id" in names or (options.control_headers and "headers" in names)
