"""Reading the objects of an object store, in batches: their descriptions, and their content where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_nats.client.connection import Connection
from spark_nats.client.pool import Lease, borrow, leased
from spark_nats.client.retrying import Retries
from spark_nats.conditions import Said
from spark_nats.conditions.options import OBJECT_TOO_LARGE
from spark_nats.errors import OptionError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.objects.reading import StoredObject, describe_objects, list_objects, read_content
from spark_nats.options.hints import naming_options
from spark_nats.options.losses import report_loss
from spark_nats.options.read import ObjectReadOptions
from spark_nats.protocol.objects import name_of
from spark_nats.sparkapi import arrow_schema

OBJECTS_AT_ONCE = 256
"""Most objects that are asked for in one round trip, and most rows of an Arrow batch."""
BATCH_BYTES = 16 << 20
"""Bytes of content after which an Arrow batch ends."""


@dataclass(frozen=True)
class Objects(InputPartition):
    """What one partition reads.

    Attributes:
        subjects: on which the objects are described.
    """

    subjects: tuple[str, ...]


class NatsObjectReader(DataSourceReader):
    """Reads the objects of a store."""

    def __init__(self, options: ObjectReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @naming_options()
    def partitions(self) -> list[InputPartition]:
        """Plan the read: the objects that there are, spread over partitions."""
        options = self._options
        with borrow(options.connection) as connection:
            subjects = list_objects(JetStream(connection, options.api_prefix), options.store)
        if options.pattern is not None:
            subjects = [subject for subject in subjects if options.pattern.fullmatch(name_of(subject))]
        count = min(options.min_partitions, len(subjects))
        return [Objects(tuple(subjects[i::count])) for i in range(count)] or [Objects(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read some objects, on an executor.

        A connection that is lost is made again, and the object at which that was is read from its beginning.
        """
        if not isinstance(partition, Objects):
            return
        options = self._options
        schema = arrow_schema(self._schema)
        what = f"reading object store {options.store}"
        with naming_options(), leased(options.connection, options.retries, what, waits=False) as lease:
            rows: list[tuple[StoredObject, bytes | None]] = []
            size = 0
            for row in self._rows(lease, partition.subjects):
                rows.append(row)
                size += len(row[1] or b"")
                if len(rows) == OBJECTS_AT_ONCE or size >= BATCH_BYTES:
                    yield _batch(rows, schema)
                    rows, size = [], 0
            if rows:
                yield _batch(rows, schema)

    def _rows(self, lease: Lease, subjects: tuple[str, ...]) -> Iterator[tuple[StoredObject, bytes | None]]:
        wants_content = "content" in self._schema.names
        for i in range(0, len(subjects), OBJECTS_AT_ONCE):
            some = subjects[i : i + OBJECTS_AT_ONCE]
            for each in lease.ask(partial(self._describe, some)):
                if not wants_content:
                    yield each, None
                elif row := lease.ask(partial(self._content, each, lease.retries)):
                    yield row

    def _describe(self, subjects: Sequence[str], connection: Connection) -> list[StoredObject]:
        return describe_objects(self._js(connection), self._options.store, subjects)

    def _content(
        self, found: StoredObject, retries: Retries, connection: Connection
    ) -> tuple[StoredObject, bytes | None] | None:
        return read_content(self._js(connection), found, self._check, self._lost, retries)

    def _js(self, connection: Connection) -> JetStream:
        return JetStream(connection, self._options.api_prefix)

    def _check(self, found: StoredObject) -> None:
        if found.info.size > self._options.max_bytes:
            raise OptionError(
                OBJECT_TOO_LARGE(
                    name=found.info.name, store=found.store, bytes=found.info.size, most=self._options.max_bytes
                )
            )

    def _lost(self, what: Said) -> None:
        report_loss(what, self._options.fail_on_data_loss, "null as its content")


def _batch(rows: list[tuple[StoredObject, bytes | None]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_row(found, content) for found, content in rows]
    arrays = [pa.array([row[field.name] for row in columns], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row(found: StoredObject, content: bytes | None) -> dict[str, Any]:
    """Return the values of an object by the names of columns, as Arrow takes them."""
    info = found.info
    return {
        "name": info.name,
        "description": info.description,
        "size": info.size,
        "chunks": info.chunks,
        "digest": info.digest or None,
        "modified": found.time // 1000,
        "headers": [(name, list(values)) for name, values in info.headers.items()],
        "metadata": list(info.metadata.items()),
        "link": None if info.link is None else {"bucket": info.link[0], "name": info.link[1]},
        "content": content,
    }
