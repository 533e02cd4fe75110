"""Reading the objects of an object store, or their changes: their descriptions, and their content on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from spark_nats.conditions import ConditionText
from spark_nats.errors import OptionError
from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.kinds.objects import store
from spark_nats.kinds.objects.conditions import OBJECT_TOO_LARGE
from spark_nats.kinds.objects.options import ObjectReadOptions, ObjectScan
from spark_nats.kinds.objects.store import StoredObject
from spark_nats.kinds.objects.wire import object_name_of
from spark_nats.kinds.streams.read.planning import SeveralRanges, StreamRange
from spark_nats.kinds.streams.read.readers import NatsStreamReader
from spark_nats.kinds.streams.read.traits import Traits
from spark_nats.kinds.task import BatchReader, Partition, leased_jetstream
from spark_nats.options.data_loss import raise_or_log_loss
from spark_nats.sparkapi import arrow_schema

OBJECTS_AT_ONCE = 256
"""Maximum number of objects that one round trip requests, and of rows in an Arrow batch."""
BATCH_BYTES = 16 << 20
"""Bytes of content after which an Arrow batch ends."""

Row = tuple[StoredObject, bytes | None]
"""An object and its content, which is None where there is none."""
_MESSAGES = (
    StructType()
    .add("subject", StringType())
    .add("payload", BinaryType())
    .add("sequence", LongType())
    .add("timestamp", LongType())  # in microseconds since 1970, as the builder of rows has it
)


@dataclass(frozen=True)
class ObjectsPartition(Partition):
    """What one partition reads.

    Attributes:
        subjects: the subjects of the objects' descriptions.
    """

    subjects: tuple[str, ...]


class _Contents:
    """Reads the content of objects if the schema has it, and makes their rows."""

    def __init__(self, options: ObjectReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def read_row(self, found: StoredObject, lease: JetStreamLease, this_version: bool) -> Row | None:
        """Return an object, with what :func:`.store.read_object_with_content` returns if the schema has the content."""
        if "content" not in self._schema.names:
            return found, None
        return lease.ask_with_retries(
            lambda js: store.read_object_with_content(
                js, found, self._check_object_size, self._raise_or_log, lease.retries, this_version
            )
        )

    def read_batches(self, rows: Callable[[JetStreamLease], Iterable[Row | None]]) -> Iterator[pa.RecordBatch]:
        """Yield in batches the rows that ``rows`` reads over a lease; None is no row and is left out.

        The row that reaches :data:`BATCH_BYTES` is the last of its batch.
        """
        with leased_jetstream(self._options, f"reading object store {self._options.store}") as lease:
            schema = arrow_schema(self._schema)
            some: list[dict[str, Any]] = []
            size = 0
            for found, content in filter(None, rows(lease)):
                some.append(_row_values(found, content))
                size += len(content or b"")
                if len(some) == OBJECTS_AT_ONCE or size >= BATCH_BYTES:
                    yield pa.RecordBatch.from_pylist(some, schema)
                    some, size = [], 0
            if some:
                yield pa.RecordBatch.from_pylist(some, schema)

    def _check_object_size(self, found: StoredObject) -> None:
        info, most = found.info, self._options.max_object_bytes
        if info.size > most:
            raise OptionError(OBJECT_TOO_LARGE(name=info.name, store=found.store, bytes=info.size, most=most))

    def _raise_or_log(self, what: ConditionText) -> None:
        raise_or_log_loss(what, self._options.fail_on_data_loss, "null as its content")


class NatsObjectReader(BatchReader[ObjectReadOptions, ObjectsPartition]):
    """Reads the objects of a store; after a lost connection, the current object is read from its beginning."""

    def _plan(self, js: JetStream) -> list[ObjectsPartition]:
        """Spread the objects whose names match over partitions."""
        options = self._options
        subjects = store.ask_description_subjects(js, options.store)
        if options.pattern is not None:
            subjects = [subject for subject in subjects if options.pattern.fullmatch(object_name_of(subject))]
        count = max(1, min(options.min_partitions, len(subjects)))
        return [ObjectsPartition(tuple(subjects[i::count])) for i in range(count)]

    def _read_rows(self, partition: ObjectsPartition) -> Iterator[pa.RecordBatch]:
        contents, subjects = _Contents(self._options, self._schema), partition.subjects

        def rows(lease: JetStreamLease) -> Iterator[Row | None]:
            for i in range(0, len(subjects), OBJECTS_AT_ONCE):
                some = subjects[i : i + OBJECTS_AT_ONCE]
                describe = partial(store.request_existing_objects, store=self._options.store, subjects=some)
                for each in lease.ask_with_retries(describe):
                    yield contents.read_row(each, lease, this_version=False)

        return contents.read_batches(rows)


class NatsObjectStreamReader(NatsStreamReader):
    """Reads the changes of a store: its objects' descriptions, as a stream, and the content of each object."""

    def __init__(self, options: ObjectScan, schema: StructType) -> None:
        objects = options.objects
        traits = Traits(replaces=True, naming=partial(store.reporting_missing_store, name=objects.store))
        super().__init__(options, _MESSAGES, traits)
        self._objects = objects
        self._contents = _Contents(objects, schema)

    def _read_rows(self, partition: StreamRange | SeveralRanges) -> Iterator[pa.RecordBatch]:
        """Read first the descriptions of objects, then their content."""
        contents = self._contents
        wanted = [each for batch in super()._read_rows(partition) for each in self._parse_wanted(batch)]
        yield from contents.read_batches(lambda lease: (contents.read_row(each, lease, True) for each in wanted))

    def _parse_wanted(self, batch: pa.RecordBatch) -> list[StoredObject]:
        name, wanted = self._objects.store, self._objects.pattern
        return [
            store.parse_stored_object(name, row["subject"], row["payload"], row["timestamp"] * 1000, row["sequence"])
            for row in batch.to_pylist()
            if wanted is None or wanted.fullmatch(object_name_of(row["subject"]))
        ]


def _row_values(found: StoredObject, content: bytes | None) -> dict[str, Any]:
    """Return the values of an object by the names of columns, as Arrow accepts them."""
    info = found.info
    return {
        **{name: getattr(info, name) for name in ("name", "description", "size", "chunks", "deleted")},
        "digest": info.digest or None,
        "modified": found.time // 1000,
        "headers": [(name, list(values)) for name, values in info.headers.items()],
        "metadata": list(info.metadata.items()),
        "link": None if info.link is None else {"bucket": info.link[0], "name": info.link[1]},
        "sequence": found.sequence,
        "content": content,
    }
