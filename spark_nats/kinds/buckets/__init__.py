"""KV buckets."""

from spark_nats.kinds.buckets.as_of_options import MomentReadOptions
from spark_nats.kinds.buckets.conditions import OPTION_NEEDS_BUCKET, OPTION_NOT_FOR_BUCKETS
from spark_nats.kinds.buckets.options import BucketChangesOptions, BucketWriteOptions
from spark_nats.kinds.kind import Kind, Operation

BUCKET_SCHEMA = (
    "bucket STRING, key STRING, value BINARY, revision BIGINT, created TIMESTAMP_LTZ, operation STRING, "
    "headers MAP<STRING, ARRAY<STRING>>"
)
"""All columns of an entry of a KV bucket, as DDL."""

BUCKETS = Kind(
    precedence=2,
    named_by=("bucket",),
    called=" of KV buckets",
    columns=lambda given: ("an entry of a KV bucket", BUCKET_SCHEMA),
    read=Operation(MomentReadOptions, "buckets.as_of:reader"),
    read_stream=Operation(BucketChangesOptions, "buckets.read:stream_reader"),
    write=Operation(BucketWriteOptions, "streams.write.writers:prepare_and_make_writer"),
    write_stream=Operation(BucketWriteOptions, "streams.write.writers:prepare_and_make_stream_writer"),
    needed=lambda option, writing: OPTION_NEEDS_BUCKET(option=option),
    unsuited=lambda option, writing: OPTION_NOT_FOR_BUCKETS(option=option),
)
