"""The options of KV buckets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from spark_nats.errors import OptionError
from spark_nats.kinds.buckets.conditions import EXACT_NEEDS_STREAM
from spark_nats.kinds.streams import options as of_streams
from spark_nats.kinds.streams.options import AcknowledgedRows, ReadOptions, WriteOptions
from spark_nats.options import values
from spark_nats.options.option import Group, option
from spark_nats.options.query import EXACTNESS, WHAT, DataLoss, JetStreamQuery, StreamScan
from spark_nats.options.values import FAIL
from spark_nats.protocol.keyvalue import bucket_config, key_filter, stream_of
from spark_nats.protocol.stream_configs import RequestedConfig

SECTION = "KV buckets"
SKIP = "skip"
"""The option value that leaves out a row whose key has another revision than expected."""
IGNORE_DELETES = "leave out the rows that say that a key was deleted, purged or has expired"


def read_on_conflict(text: str) -> str:
    """Read ``fail`` or ``skip``."""
    return values.read_word(text, FAIL, SKIP)


def read_create_bucket(text: str) -> dict[str, Any] | None:
    """Read ``true``, ``false`` or a bucket's configuration in JSON, as :func:`values.read_create_option` does."""
    return values.read_create_option(text, "a bucket", values.CREATED, '{"history": 5, "max_age": "24h"}')


class _Bucket(Group, section=WHAT):
    """Which bucket is read or written."""

    bucket: str = option(
        values.read_bucket_name, "KV bucket to read or to write to", required=True, excludes=("stream", "streamPattern")
    )
    create: dict[str, Any] | None = option(
        read_create_bucket,
        'create the bucket if it does not exist: `true` or its configuration in JSON, such as `{"history": 5}`',
        default="false",
        name="createBucket",
    )

    @property
    def requested_config(self) -> RequestedConfig | None:
        """The configuration of a bucket that is created if it does not exist; None when it must exist."""
        return None if self.create is None else bucket_config(self.bucket, self.create)


class _BucketRead(_Bucket, section=SECTION):
    """Which keys of a bucket are read."""

    keys: tuple[str, ...] = option(
        values.read_filters,
        "read only these keys, comma-separated, with wildcards; a batch has a partition for each of them, "
        "but only one with `asOf=latest`",
        absent=(),
    )


class BucketReadOptions(_BucketRead, DataLoss, JetStreamQuery, section=SECTION):
    """What a batch reads of a KV bucket."""

    history: bool = option(
        values.read_boolean,
        "batch: read every revision that the bucket keeps, and not only the last one of each key",
        default="false",
        excludes=("asOf",),
    )
    ignore_deletes: bool = option(values.read_boolean, IGNORE_DELETES, default="true")


class BucketScan(ReadOptions):
    """The options of a read of a bucket's changes, as those of a read of its stream."""

    bucket: str
    ignore_deletes: bool


class BucketChangesOptions(_BucketRead, StreamScan, section=SECTION):
    """What a streaming query reads of the changes of a KV bucket."""

    ignore_deletes: bool = option(values.read_boolean, IGNORE_DELETES, default="false")

    def check_and_make_query(self, given: Collection[str]) -> BucketScan:
        """Return these options, checked, as those of a read of the bucket's stream."""
        stream = stream_of(self.bucket)
        return self.converted_to(
            BucketScan,
            streams=(stream,),
            create=self.requested_config or False,
            filters=tuple(map(key_filter, self.keys)),
            starting_offsets=self.starting_offsets_for(self.bucket, stream),
        ).check_and_make_query(given)


class BucketStreamWrite(WriteOptions):
    """The options of a write to a bucket, as those of a write to its stream."""

    sink = "buckets.write:sink_of"
    bucket: str
    on_conflict: str


class BucketWriteOptions(_Bucket, AcknowledgedRows, section=SECTION):
    """What is written to a KV bucket, and how."""

    deduplicate: str = option(
        of_streams.read_deduplicate, of_streams.DEDUPLICATE, default=of_streams.WINDOW, section=EXACTNESS
    )
    on_conflict: str = option(
        read_on_conflict,
        "what to do with a row whose key has another revision than `expected_revision`: `fail` the task or `skip` "
        "the row",
        default=FAIL,
    )

    def check_and_make_query(self, given: Collection[str]) -> BucketStreamWrite:
        """Return these options, checked, as those of a write to the bucket's stream."""
        if self.deduplicate == of_streams.EXACT:  # replaced revisions cannot be read back
            raise OptionError(EXACT_NEEDS_STREAM())
        rows = self.converted_to(
            BucketStreamWrite, streams=(stream_of(self.bucket),), create=self.requested_config or False
        )
        return rows.check_and_make_query(given)
