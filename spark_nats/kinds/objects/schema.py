"""The columns of an object of an object store."""

OBJECT_INFO_SCHEMA = (
    "name STRING, description STRING, size BIGINT, chunks BIGINT, digest STRING, modified TIMESTAMP_LTZ, "
    "headers MAP<STRING, ARRAY<STRING>>, metadata MAP<STRING, STRING>, link STRUCT<bucket: STRING, name: STRING>, "
    "deleted BOOLEAN, sequence BIGINT"
)
"""The columns of an object that are read when no schema is given, as DDL."""
OBJECT_SCHEMA = f"{OBJECT_INFO_SCHEMA}, content BINARY"
"""All columns of an object, as DDL."""
