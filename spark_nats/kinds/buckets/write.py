"""Writing entries of a KV bucket: as messages of its stream, with their own columns and conflicts.

Spark asks for a writer for each micro-batch, so modules that only tasks need are imported where tasks begin.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from spark_nats.kinds.buckets.options import SKIP, BucketStreamWrite
from spark_nats.kinds.streams.write.conditions import CONFLICTS_SKIPPED, NO_LIFETIMES_OF_KEYS
from spark_nats.kinds.streams.write.sink import MESSAGES, Columns, Refuse, Sink
from spark_nats.protocol.keyvalue import key_subject

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_nats.jetstream.api import JetStream
    from spark_nats.jetstream.publishing.conflicts import ConflictResolver

ENTRIES = Columns(
    where="a KV bucket",
    types={
        "key": ("string",),
        "value": ("binary", "string"),
        "operation": ("string",),
        "expected_revision": ("int", "bigint"),
        **{name: MESSAGES.types[name] for name in ("ttl", "headers", "msg_id")},
    },
    own={"bucket": "string", "revision": "bigint", "created": "timestamp"},
    required=(("key", "STRING", ""), ("value", "BINARY or STRING", "operation")),
    into="value",
    place=("bucket", "revision"),
    names={"subject": "key", "payload": "value"},
    controls=("operation", "rollup", "ttl"),
)


def sink_of(options: BucketStreamWrite) -> Sink:
    """Return a bucket as the target of rows."""
    bucket = options.bucket
    convert = partial(_convert_entries, key_subject(bucket, "", options.api_prefix))
    return Sink(
        columns=replace(ENTRIES, target=bucket, convert=convert),
        naming=partial(_reporting_missing_bucket, bucket),
        no_lifetimes=NO_LIFETIMES_OF_KEYS(bucket=bucket),
        conflicts=partial(_make_conflict_resolver, bucket, options.api_prefix, options.on_conflict == SKIP),
        skipped=partial(CONFLICTS_SKIPPED, bucket=bucket),
    )


def _convert_entries(prefix: str, columns: dict[str, pa.Array], rows: int, refuse: Refuse) -> dict[str, pa.Array]:
    from spark_nats.kinds.buckets.key_columns import check_and_convert_entries

    return check_and_convert_entries(prefix, columns, rows, refuse)


def _reporting_missing_bucket(bucket: str, js: JetStream) -> AbstractContextManager[None]:
    from spark_nats.jetstream.keyvalue import reporting_missing_bucket

    return reporting_missing_bucket(js, bucket)


def _make_conflict_resolver(bucket: str, api_prefix: str, skips: bool, sets_aside: bool) -> ConflictResolver:
    from spark_nats.kinds.buckets.conflicts import Conflicts

    return Conflicts(bucket, api_prefix, skips, sets_aside).resolve_or_raise
