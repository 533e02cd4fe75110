"""KV buckets."""

from dataclasses import replace

from spark_nats.kinds.buckets.as_of_options import MomentReadOptions
from spark_nats.kinds.buckets.conditions import OPTION_NEEDS_BUCKET, OPTION_NOT_FOR_BUCKETS
from spark_nats.kinds.buckets.options import BucketChangesOptions, BucketReadOptions, BucketWriteOptions
from spark_nats.kinds.buckets.schema import BUCKET_SCHEMA
from spark_nats.kinds.kind import Kind, Use

BUCKETS = Kind(
    named_by=("bucket",),
    called=" of KV buckets",
    columns=lambda given: ("an entry of a KV bucket", BUCKET_SCHEMA),
    read=Use(BucketReadOptions, "buckets.read:NatsBucketReader"),
    read_stream=Use(BucketChangesOptions, "buckets.read:stream_reader"),
    write=Use(BucketWriteOptions, "buckets.write:writer"),
    write_stream=Use(BucketWriteOptions, "buckets.write:stream_writer"),
    needed=lambda option, writing: OPTION_NEEDS_BUCKET(option=option),
    unsuited=lambda option, writing: OPTION_NOT_FOR_BUCKETS(option=option),
)
BUCKETS = replace(BUCKETS, read=Use(MomentReadOptions, "buckets.as_of:reader"))
