"""Object stores (ADR-20): reading and putting objects."""

from spark_nats.kinds.kind import Kind, Operation
from spark_nats.kinds.objects import conditions
from spark_nats.kinds.objects.options import ObjectChangesOptions, ObjectReadOptions, ObjectWriteOptions

OBJECT_INFO_SCHEMA = (
    "name STRING, description STRING, size BIGINT, chunks BIGINT, digest STRING, modified TIMESTAMP_LTZ, "
    "headers MAP<STRING, ARRAY<STRING>>, metadata MAP<STRING, STRING>, link STRUCT<bucket: STRING, name: STRING>, "
    "deleted BOOLEAN, sequence BIGINT"
)
"""The columns of an object that are read when no schema is given, as DDL."""
OBJECT_SCHEMA = f"{OBJECT_INFO_SCHEMA}, content BINARY"
"""All columns of an object, as DDL."""

OBJECTS = Kind(
    precedence=3,
    named_by=("objectStore",),
    called=" of object stores",
    columns=lambda given: ("an object", OBJECT_SCHEMA),
    default_columns=OBJECT_INFO_SCHEMA,  # all but the content, which is large and only read on request
    read=Operation(ObjectReadOptions, "objects.read:NatsObjectReader"),
    read_stream=Operation(ObjectChangesOptions, "objects.read:NatsObjectStreamReader"),
    write=Operation(ObjectWriteOptions, "streams.write.writers:prepare_and_make_writer"),
    write_stream=Operation(ObjectWriteOptions, "streams.write.writers:prepare_and_make_stream_writer"),
    needed=lambda option, writing: conditions.OPTION_NEEDS_OBJECT_STORE(option=option),
    unsuited=lambda option, writing: conditions.OPTION_NOT_FOR_OBJECTS(option=option),
    not_by_foreach=conditions.FOREACH_WRITES_NO_OBJECTS,
)
