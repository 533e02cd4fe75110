"""Writing rows as objects of an object store, in batches and in streaming. An object is put whole, by its name."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_nats.client.choosing import add_announced, announced
from spark_nats.conditions.kinds import (
    BATCH_WRITTEN,
    COLUMN_MISSING,
    COLUMN_OF_SOURCE,
    COLUMN_TYPE,
    COLUMN_UNKNOWN,
    WRITES_NO_TABLE,
)
from spark_nats.errors import InvalidRowError, OptionError, SchemaError
from spark_nats.kinds.objects.conditions import OBJECT_UNFIT
from spark_nats.kinds.objects.options import ObjectWriteOptions
from spark_nats.kinds.preparing import prepare_once
from spark_nats.kinds.streams.write.metrics_channel import tell
from spark_nats.kinds.streams.write.schema import plain_type
from spark_nats.kinds.streams.write.tasks import Counts, Written, total
from spark_nats.kinds.streams.write.writers import run_of
from spark_nats.options.hints import naming_options
from spark_nats.options.nearest import VIEW
from spark_nats.sparkapi import DataSourceStreamArrowWriter, makes_a_table

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_nats.client.connection import Connection
    from spark_nats.kinds.objects.storing import Putting
    from spark_nats.kinds.objects.wire import ObjectInfo

logger = logging.getLogger(__name__)

COLUMN_TYPES = {
    "name": ("string",),
    "content": ("binary", "string"),
    "description": ("string",),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "metadata": ("map<string,string>",),
    "link": ("struct<bucket:string,name:string>",),
    "deleted": ("boolean",),
}
# What the source adds of its own, and of which type. Ignored, so that what was read can be written.
_SOURCES_OWN = {
    "size": "bigint",
    "chunks": "bigint",
    "digest": "string",
    "modified": "timestamp",
    "sequence": "bigint",
}
LONGEST_NAME = 2048
"""Most bytes of an object's name, which becomes part of a subject."""


def check_object_schema(schema: StructType) -> None:
    """Check the schema of a DataFrame that is to be written to an object store.

    Raises:
        SchemaError: a column is missing, unknown or of the wrong type.
    """
    for column in schema.fields:
        actual = plain_type(column)
        if own := _SOURCES_OWN.get(column.name):
            if actual != own:
                wrong = COLUMN_OF_SOURCE(column=column.name, type=actual.upper(), expected=own.upper(), into="metadata")
                raise SchemaError(wrong)
        elif column.name not in COLUMN_TYPES:
            hint, columns = "drop it, or put it into 'metadata' or 'headers'", ", ".join(COLUMN_TYPES)
            raise SchemaError(COLUMN_UNKNOWN(column=column.name, where="an object store", hint=hint, columns=columns))
        elif actual not in COLUMN_TYPES[column.name]:
            allowed = " or ".join(name.upper() for name in COLUMN_TYPES[column.name])
            raise SchemaError(COLUMN_TYPE(column=column.name, expected=allowed, type=actual.upper()))
    names = schema.fieldNames()
    for name, kind in (("name", "STRING"), ("content", "BINARY or STRING")):
        if name not in names:
            raise SchemaError(COLUMN_MISSING(column=name, type=kind, columns=", ".join(names) or "none"))


def prepare_objects(options: ObjectWriteOptions) -> None:
    """Log in on the driver, and make the store if it is to be made.

    Raises:
        NatsError: the server cannot be reached, there is no such store, or it is a mirror.
    """
    from spark_nats.client.pool import borrow
    from spark_nats.jetstream.api import JetStream
    from spark_nats.kinds.objects.storing import open_store
    from spark_nats.kinds.streams.write.checks import refuse_mirror

    with borrow(options.connection) as connection:
        refuse_mirror(open_store(JetStream(connection, options.api_prefix), options.store, options.create))


def write_objects(
    options: ObjectWriteOptions, batches: Iterator[pa.RecordBatch], run: str = "", known: str = ""
) -> Written:
    """Put the rows of a partition, one after the other; ``known`` is what the driver knows of servers.

    Raises:
        InvalidRowError: a row cannot be an object; those before it are put.
        NatsError: the store did not take one.
    """
    from spark_nats.client.pool import leased
    from spark_nats.kinds.objects.storing import Putting

    add_announced(options.connection, known)
    rows = size = 0
    what = f"writing to object store {options.store}"
    with leased(options.connection, options.retries, what) as lease:
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names if name in COLUMN_TYPES}
            for i in range(batch.num_rows):
                row = {name: column[i].as_py() for name, column in columns.items()}
                info, content = _checked(row, rows)
                putting = Putting(options.store, info, content)
                lease.ask(partial(_put, putting, options.api_prefix))
                rows += 1
                size += len(content or b"")
        return Written(Counts(rows=rows, bytes=size, reconnects=lease.reconnects), run=run)


def _put(putting: Putting, prefix: str, connection: Connection) -> None:
    from spark_nats.jetstream.api import JetStream

    putting.put(JetStream(connection, prefix))


def _checked(row: dict[str, Any], number: int) -> tuple[ObjectInfo, bytes | None]:
    """Return the object that a row is, and its content; None where it is a link, or to be deleted."""
    from spark_nats.kinds.objects.wire import ObjectInfo

    name, content = row["name"], row["content"]
    if not name:
        raise InvalidRowError(OBJECT_UNFIT(name=f"of row {number}", problem="its name is null or empty"))
    if len(name.encode()) > LONGEST_NAME:
        problem = f"its name has more than {LONGEST_NAME} bytes"
        raise InvalidRowError(OBJECT_UNFIT(name=f"{name[:40]}…", problem=problem))
    if row.get("deleted"):
        if content is not None:
            raise InvalidRowError(OBJECT_UNFIT(name=name, problem="it is to be deleted, but its content is not null"))
        return ObjectInfo(name, deleted=True), None
    info = ObjectInfo(
        name=name,
        description=row.get("description"),
        headers=_headers(row.get("headers"), name),
        metadata=_metadata(row.get("metadata"), name),
    )
    if content is not None:
        return info, content.encode() if isinstance(content, str) else content
    link = row.get("link")
    if link is None:
        raise InvalidRowError(OBJECT_UNFIT(name=name, problem="its content is null, and it is no link"))
    if not re.fullmatch("[a-zA-Z0-9_-]+", link["bucket"] or ""):
        problem = f"it is a link to the object store {link['bucket']!r}, which is no name of one"
        raise InvalidRowError(OBJECT_UNFIT(name=name, problem=problem))
    return replace(info, link=(link["bucket"], link["name"])), None


def _headers(headers: Any, name: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for key, value in headers or ():
        values = (value,) if isinstance(value, str) else tuple(value or ())
        if None in values or value is None:
            raise InvalidRowError(OBJECT_UNFIT(name=name, problem=f"its header {key!r} has a value that is null"))
        found[key] = values
    return found


def _metadata(metadata: Any, name: str) -> dict[str, str]:
    for key, value in metadata or ():
        if value is None:
            raise InvalidRowError(OBJECT_UNFIT(name=name, problem=f"its metadata {key!r} is null"))
    return dict(metadata or ())


def writer(options: ObjectWriteOptions, schema: StructType) -> NatsObjectWriter:
    """Return the writer of a batch, when it is known that its tasks can write."""
    check_object_schema(schema)
    prepare_objects(options)
    return NatsObjectWriter(options)


def stream_writer(options: ObjectWriteOptions, schema: StructType) -> NatsObjectStreamWriter:
    """Return the writer of a micro-batch, when it is known that its tasks can write."""
    check_object_schema(schema)
    what = f"writing to object store {options.store}"
    prepare_once(str(astuple(options)), what, options.retries, lambda: prepare_objects(options))
    return NatsObjectStreamWriter(options)


def _log(what: str, options: ObjectWriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    target = f"object store {options.store}"
    logger.info(BATCH_WRITTEN(what=what, target=target, counts=total(messages), tasks=len(messages)).coded)
    tell(messages)


class NatsObjectWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: ObjectWriteOptions) -> None:
        self._options = options
        self._announced = announced(options.connection)

    @naming_options()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition.

        Raises:
            OptionError: Spark makes a table of it.
            NatsError: the store did not take a row.
        """
        context = TaskContext.get()
        if context and makes_a_table(context):
            raise OptionError(WRITES_NO_TABLE(instead=VIEW))
        return write_objects(self._options, iterator, run_of(context), self._announced)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what the tasks have written, and tell it to who listens."""
        _log("batch", self._options, messages)


class NatsObjectStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. One that is replayed puts the same objects again."""

    def __init__(self, options: ObjectWriteOptions) -> None:
        self._options = options
        self._announced = announced(options.connection)

    @naming_options()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one partition of a micro-batch."""
        return write_objects(self._options, iterator, run_of(TaskContext.get()), self._announced)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log what the tasks have written, and tell it to who listens."""
        _log(f"micro-batch {batchId}", self._options, messages)
