"""Writing rows as objects of an object store, in batches and in streaming; each row puts a whole object."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_nats.errors import InvalidRowError
from spark_nats.kinds.objects.conditions import OBJECT_UNFIT
from spark_nats.kinds.objects.options import ObjectWriteOptions
from spark_nats.kinds.objects.wire import ObjectInfo, stream_of_store
from spark_nats.kinds.streams.write.sink import Columns, Sink
from spark_nats.kinds.streams.write.tasks import Counts, WriteTask, Written

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = Columns(
    where="an object store",
    types={
        "name": ("string",),
        "content": ("binary", "string"),
        "description": ("string",),
        "headers": ("map<string,array<string>>", "map<string,string>"),
        "metadata": ("map<string,string>",),
        "link": ("struct<bucket:string,name:string>",),
        "deleted": ("boolean",),
    },
    own={"size": "bigint", "chunks": "bigint", "digest": "string", "modified": "timestamp", "sequence": "bigint"},
    required=(("name", "STRING", ""), ("content", "BINARY or STRING", "")),
    into="metadata",
)
MAX_NAME = 2048
"""Maximum bytes of an object's name, which becomes part of a subject."""


def sink_of(options: ObjectWriteOptions) -> Sink:
    """Return an object store as the target of rows."""
    words = f"object store {options.store}"
    return Sink(words=words, prepare=create_or_check_store, write=write_objects, columns=COLUMNS)


def create_or_check_store(options: ObjectWriteOptions) -> None:
    """Log in on the driver, and create the store if the options ask for it.

    Raises:
        NatsError: the server cannot be reached, there is no such store, or it is a mirror.
    """
    from spark_nats.client.pool import borrow
    from spark_nats.jetstream.api import JetStream
    from spark_nats.jetstream.creating import create_stream_if_missing
    from spark_nats.jetstream.views import ask_stream_info
    from spark_nats.kinds.objects.store import reporting_missing_store
    from spark_nats.kinds.streams.write.checks import check_no_mirror

    store, config = options.store, options.requested_config
    with (
        borrow(options.connection) as connection,
        reporting_missing_store(js := JetStream(connection, options.api_prefix), store),
    ):
        check_no_mirror(create_stream_if_missing(js, config) if config else ask_stream_info(js, stream_of_store(store)))


def write_objects(
    options: ObjectWriteOptions, task: WriteTask, batches: Iterator[pa.RecordBatch], sink: Sink
) -> Written:
    """Put the rows of a partition one after the other; a replay of a micro-batch puts the same objects again.

    Raises:
        InvalidRowError: a row cannot be an object; the rows before it were put.
        NatsError: the store refused an object, or the connection failed.
    """
    from spark_nats.jetstream.views import ask_stream_info
    from spark_nats.kinds.objects.store import Putting
    from spark_nats.kinds.task import MANY_BYTES, leased_jetstream, try_move_to_leader
    from spark_nats.protocol.bytecolumns import size_of

    rows = size = 0
    with leased_jetstream(options, f"writing to {sink.words}", waits=True) as js:
        for batch in batches:
            size_here = size_of(batch)
            if not rows and size_here >= MANY_BYTES:
                try_move_to_leader(
                    js,
                    js.ask_with_retries(ask_stream_info, stream_of_store(options.store)),
                    batch.num_rows,
                    size_here,
                )
            columns = {name: batch.column(name) for name in batch.schema.names if name in COLUMNS.types}
            for i in range(batch.num_rows):
                row = {name: column[i].as_py() for name, column in columns.items()}
                info, content = _check_and_make_object(row, rows)
                js.ask_with_retries(Putting(options.store, info, content).put)
                rows += 1
                size += len(content or b"")
        return Written(Counts(rows=rows, bytes=size, reconnects=js.lease.reconnects), run=task.run)


def _check_and_make_object(row: dict[str, Any], number: int) -> tuple[ObjectInfo, bytes | None]:
    """Return the object of a row, and its content, which is None for a link or a deletion."""
    name, content = row["name"], row["content"]
    if not name:
        raise InvalidRowError(OBJECT_UNFIT(name=f"of row {number}", problem="its name is null or empty"))
    if len(name.encode()) > MAX_NAME:
        problem = f"its name has more than {MAX_NAME} bytes"
        raise InvalidRowError(OBJECT_UNFIT(name=f"{name[:40]}…", problem=problem))
    if row.get("deleted"):
        if content is not None:
            raise InvalidRowError(OBJECT_UNFIT(name=name, problem="it is to be deleted, but its content is not null"))
        return ObjectInfo(name, deleted=True), None
    info = ObjectInfo(
        name=name,
        description=row.get("description"),
        headers=_check_and_convert_headers(row.get("headers"), name),
        metadata=_check_and_convert_metadata(row.get("metadata"), name),
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


def _check_and_convert_headers(headers: Any, name: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for key, value in headers or ():
        values = (value,) if isinstance(value, str) else tuple(value or ())
        if None in values or value is None:
            raise InvalidRowError(OBJECT_UNFIT(name=name, problem=f"its header {key!r} has a value that is null"))
        found[key] = values
    return found


def _check_and_convert_metadata(metadata: Any, name: str) -> dict[str, str]:
    for key, value in metadata or ():
        if value is None:
            raise InvalidRowError(OBJECT_UNFIT(name=name, problem=f"its metadata {key!r} is null"))
    return dict(metadata or ())
