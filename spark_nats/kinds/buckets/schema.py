"""The columns of an entry of a KV bucket."""

BUCKET_SCHEMA = (
    "bucket STRING, key STRING, value BINARY, revision BIGINT, created TIMESTAMP_LTZ, operation STRING, "
    "headers MAP<STRING, ARRAY<STRING>>"
)
"""All columns of an entry of a KV bucket, as DDL."""
