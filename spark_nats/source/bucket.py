"""Reading what a KV bucket holds, in batches: one partition for each filter of keys.

Its changes are read as those of its stream, by :mod:`spark_nats.source.stream`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats.client.pool import borrow, leased
from spark_nats.errors import JetStreamUnavailableError, NatsConnectionError, NatsTimeoutError, ServerError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.buckets.entries import BucketReader
from spark_nats.jetstream.buckets.keyvalue import naming_bucket
from spark_nats.jetstream.streams import create_stream, stream_info
from spark_nats.options.hints import naming_options
from spark_nats.options.read import BucketReadOptions
from spark_nats.protocol.keyvalue import stream_of
from spark_nats.source.columns import EntryBuilder


@dataclass(frozen=True)
class Keys(InputPartition):
    """What one partition reads.

    Attributes:
        created: when the bucket's stream was made, which tells it from a later one.
        keys: a key, or a filter for several; empty for all.
    """

    created: str
    keys: tuple[str, ...]


class NatsBucketReader(DataSourceReader):
    """Reads what a bucket holds."""

    def __init__(self, options: BucketReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @naming_options()
    def partitions(self) -> list[InputPartition]:
        """Plan the read: each filter of keys is a partition."""
        options = self._options
        with (
            borrow(options.connection) as connection,
            naming_bucket(js := JetStream(connection, options.api_prefix), options.bucket),
        ):
            config = options.create_bucket
            info = create_stream(js, config) if config else stream_info(js, stream_of(options.bucket))
        return [Keys(info.created, (key,)) for key in options.keys] or [Keys(info.created, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, on an executor.

        A connection that is lost is made again, and reading goes on: with what was not handed on.
        """
        if not isinstance(partition, Keys):
            return
        options = self._options
        rows = EntryBuilder(self._schema, options.bucket, options.ignore_deletes)
        with (
            naming_options(),
            leased(options.connection, options.retries, f"reading bucket {options.bucket}", waits=False) as lease,
        ):
            reader = BucketReader(
                options.bucket,
                partition.created,
                partition.keys,
                history=options.history,
                headers_only=not {"value", "headers"} & set(self._schema.names),
                retries=lease.retries,
            )
            while True:
                try:
                    for delivered in reader.read(JetStream(lease.connection, options.api_prefix)):
                        if (batch := rows.build(delivered, options.bucket)).num_rows:
                            yield batch
                    return
                except (NatsConnectionError, NatsTimeoutError, ServerError, JetStreamUnavailableError) as error:
                    lease.renew(error)
