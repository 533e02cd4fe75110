"""Reading a KV bucket in batches: one partition for each filter of keys.

:mod:`.as_of` reads a bucket at one moment. The changes of a bucket are read as those of its stream: the reader of
streams gets what differs as :class:`Traits`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.keyvalue import reporting_missing_bucket
from spark_nats.jetstream.positions import end_position_of
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.buckets.entries import BucketReader, Entries
from spark_nats.kinds.buckets.key_columns import keys_of, operations_of
from spark_nats.kinds.buckets.options import BucketReadOptions, BucketScan
from spark_nats.kinds.streams.read.columns import Columns, RowBuilder
from spark_nats.kinds.streams.read.readers import NatsStreamReader
from spark_nats.kinds.streams.read.traits import Traits
from spark_nats.kinds.task import BatchReader, Partition, leased_jetstream
from spark_nats.protocol.bytecolumns import integers, repeat_text
from spark_nats.protocol.keyvalue import stream_of


@dataclass(frozen=True)
class KeysPartition(Partition):
    """What one partition reads.

    Attributes:
        entries: which entries.
    """

    entries: Entries


class EntryBuilder(RowBuilder):
    """Builds Arrow batches of entries; ``ignore_deletes`` leaves out deletions, purges and expirations."""

    def __init__(self, schema: StructType, bucket: str, ignore_deletes: bool) -> None:
        super().__init__(schema)
        self._bucket = bucket
        self._ignore_deletes = ignore_deletes

    def build(self, delivered: Delivered, stream: str) -> pa.RecordBatch:
        """Return one row for each entry that is not left out; ``stream`` has no effect."""
        messages, deliveries = delivered
        if self._ignore_deletes:
            deletions = operations_of(messages).deletions
            if deletions.any():
                messages, deliveries = messages.take(~deletions), deliveries.take(~deletions)
        own: Columns = {
            "bucket": lambda: repeat_text(self._bucket, len(messages)),
            "key": lambda: keys_of(messages, self._bucket),
            "value": messages.payloads,
            "revision": lambda: integers(deliveries.stream_sequences()),
            "created": lambda: integers(deliveries.timestamps() // 1000),
            "operation": lambda: operations_of(messages).names,
        }
        return self._build(messages, f"bucket {self._bucket}", own, deliveries)


def stream_reader(options: BucketScan, schema: StructType) -> NatsStreamReader:
    """Return the reader of a bucket's changes."""
    bucket = options.bucket
    rows = partial(EntryBuilder, bucket=bucket, ignore_deletes=options.ignore_deletes)
    naming = partial(reporting_missing_bucket, name=bucket)
    traits = Traits(rows, replaces=True, naming=naming, words=f"bucket {bucket!r}")
    return NatsStreamReader(options, schema, traits)


class NatsBucketReader(BatchReader[BucketReadOptions, KeysPartition]):
    """Reads a bucket."""

    def _plan(self, js: JetStream) -> list[KeysPartition]:
        """Plan the read; first create the bucket if it does not exist and the options request that."""
        options = self._options
        with reporting_missing_bucket(js, options.bucket):
            config = options.requested_config
            info = create_stream_if_missing(js, config) if config else ask_stream_info(js, stream_of(options.bucket))
            headers_only = not {"value", "headers"} & set(self._schema.names)
            return self._plan_parts(
                js, info, Entries(options.bucket, end_position_of(info), options.keys, headers_only)
            )

    def _plan_parts(self, js: JetStream, info: StreamInfo, every: Entries) -> list[KeysPartition]:
        """Return one partition for each filter of keys."""
        return [KeysPartition(part) for part in every.parts]

    def _read_rows(self, partition: KeysPartition) -> Iterator[pa.RecordBatch]:
        """Read the entries, not all keys at one moment."""
        options = self._options
        rows = EntryBuilder(self._schema, options.bucket, options.ignore_deletes)
        with leased_jetstream(options, f"reading bucket {options.bucket}") as lease:
            reader = BucketReader(partition.entries, history=options.history, retries=lease.retries)
            for delivered in lease.read_with_retries(reader.read):
                if (batch := rows.build(delivered, options.bucket)).num_rows:
                    yield batch
