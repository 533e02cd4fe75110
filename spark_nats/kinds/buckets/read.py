"""Reading what a KV bucket holds, in batches: one partition for each filter of keys.

With ``asOf`` it is what it held at one moment. Its changes are read as those of its stream, by
:mod:`spark_nats.kinds.streams.read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats.client.pool import borrow, leased
from spark_nats.errors import OptionError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.creating import create_stream
from spark_nats.jetstream.keyvalue import naming_bucket
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import stream_info
from spark_nats.kinds.buckets.as_of import LatestReader, RevisionReader, revision_at
from spark_nats.kinds.buckets.conditions import MOMENT_BEFORE_BUCKET, MOMENT_TO_COME, NO_SUCH_REVISION
from spark_nats.kinds.buckets.entries import BucketReader, Entries
from spark_nats.kinds.buckets.options import BucketReadOptions
from spark_nats.kinds.buckets.snapshot_buffer import HeldEntries
from spark_nats.kinds.partitions import Partition, sent
from spark_nats.kinds.streams.read.columns import EntryBuilder
from spark_nats.options.hints import naming_options
from spark_nats.options.losses import report_loss
from spark_nats.options.values import LATEST
from spark_nats.protocol.documents import moment as time_of
from spark_nats.protocol.documents import nanoseconds_of, text_of
from spark_nats.protocol.keyvalue import stream_of


@dataclass(frozen=True)
class Keys(Partition):
    """What one partition reads.

    Attributes:
        entries: which entries.
    """

    entries: Entries


@dataclass(frozen=True)
class Moment(Keys):
    """What one partition reads, as it was at one moment.

    Attributes:
        revision: the moment; None for the one that comes while it is read.
    """

    revision: int | None


class NatsBucketReader(DataSourceReader):
    """Reads what a bucket holds."""

    def __init__(self, options: BucketReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @naming_options()
    def partitions(self) -> list[InputPartition]:
        """Plan the read: each filter of keys is a partition, but for the latest moment, which has but one."""
        return sent(self._planned(), self._options.connection)

    def _planned(self) -> list[Keys]:
        options = self._options
        with (
            borrow(options.connection) as connection,
            naming_bucket(js := JetStream(connection, options.api_prefix), options.bucket),
        ):
            config = options.create_bucket
            info = create_stream(js, config) if config else stream_info(js, stream_of(options.bucket))
            headers_only = not {"value", "headers"} & set(self._schema.names)
            every = Entries(options.bucket, info.created, options.keys, headers_only)
            if options.as_of == LATEST:
                return [Moment(every, None)]
            parts = [replace(every, keys=(key,)) for key in options.keys] or [every]
            if options.as_of is not None:
                revision = self._revision(js, info)
                return [Moment(part, revision) for part in parts] if revision else []
        return [Keys(part) for part in parts]

    def _revision(self, js: JetStream, info: StreamInfo) -> int:
        """Return the last revision of the moment that is wanted, 0 if there was none yet."""
        moment, bucket = self._options.as_of, self._options.bucket
        if isinstance(moment, datetime):
            made = time_of(nanoseconds_of(info.created) or 0)
            if moment < made:
                raise OptionError(MOMENT_BEFORE_BUCKET(time=moment.isoformat(), bucket=bucket, created=info.created))
            if info.time and moment > time_of(info.time):
                now = text_of(info.time)
                raise OptionError(MOMENT_TO_COME(time=moment.isoformat(), bucket=bucket, now=now))
            return revision_at(js, info, moment)
        revision = int(moment or 0)
        if revision > info.last_sequence:
            raise OptionError(NO_SUCH_REVISION(revision=revision, bucket=bucket, last=info.last_sequence))
        return revision

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, on an executor.

        A connection that is lost is made again, and reading goes on: with what was not handed on.
        """
        if isinstance(partition, Partition):
            partition.arrive(self._options.connection)
        if isinstance(partition, Moment):
            yield from self._read_moment(partition)
        elif isinstance(partition, Keys):
            yield from self._read_now(partition)

    def _read_moment(self, partition: Moment) -> Iterator[pa.RecordBatch]:
        """Read what was there at one moment; rows come when all was read."""
        options, revision = self._options, partition.revision
        what = f"reading bucket {options.bucket}"
        with HeldEntries(self._schema, options.bucket, options.ignore_deletes) as held:
            with naming_options(), leased(options.connection, options.retries, what, waits=False) as lease:
                reader: LatestReader | RevisionReader
                if revision is None:
                    reader = LatestReader(partition.entries, retries=lease.retries)
                else:
                    reader = RevisionReader(partition.entries, revision=revision, retries=lease.retries)
                for delivered in lease.read(lambda used: reader.read(JetStream(used, options.api_prefix))):
                    held.add(delivered)
                for loss in reader.losses:
                    report_loss(loss, options.fail_on_data_loss, "the other rows")
            yield from held.rows_at(reader.revision or 0, reader.doubtful)

    def _read_now(self, partition: Keys) -> Iterator[pa.RecordBatch]:
        """Read what is there, each key at a moment of its own."""
        options = self._options
        what = f"reading bucket {options.bucket}"
        rows = EntryBuilder(self._schema, options.bucket, options.ignore_deletes)
        with naming_options(), leased(options.connection, options.retries, what, waits=False) as lease:
            reader = BucketReader(partition.entries, history=options.history, retries=lease.retries)
            for delivered in lease.read(lambda used: reader.read(JetStream(used, options.api_prefix))):
                if (batch := rows.build(delivered, options.bucket)).num_rows:
                    yield batch
