"""The options of object stores."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from spark_nats.kinds.objects.wire import descriptions_filter, store_config, stream_of_store
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.options import values
from spark_nats.options.option import Group, option
from spark_nats.options.query import WHAT, DataLoss, JetStreamQuery, Partitions, StreamScan
from spark_nats.protocol.stream_configs import RequestedConfig

SECTION = "Object stores"
_MAX_CONTENT = 2_000_000_000  # bytes; a row of Spark holds less than 2^31


def read_object_bytes(text: str) -> int:
    """Read a number of bytes that fits into a row of Spark."""
    number = values.read_whole_number(text)
    if number > _MAX_CONTENT:
        raise ValueError(f"is {text!r}; a row of Spark holds {_MAX_CONTENT} at most")
    return number


def read_create_object_store(text: str) -> dict[str, Any] | None:
    """Read ``true``, ``false`` or an object store's configuration, as :func:`values.read_create_option` does."""
    fields = ("max_age", "max_bytes", "replicas", "storage", "compression", "description")
    return values.read_create_option(text, "an object store", fields, '{"max_bytes": 1000000000, "replicas": 3}')


class _Store(Group, section=WHAT):
    """Which object store is read or written."""

    store: str = option(
        values.read_bucket_name,
        "object store whose objects to read, or to put objects into",
        name="objectStore",
        required=True,
        excludes=("stream", "streamPattern", "bucket", "table"),
    )


class _Objects(_Store, section=SECTION):
    """Which objects of an object store are read."""

    pattern: re.Pattern[str] | None = option(
        values.read_pattern, "regular expression: read only objects whose whole name matches", name="objectPattern"
    )
    max_object_bytes: int = option(
        read_object_bytes,
        "fail when the content of an object that is to be read has more bytes than this; 2,000,000,000 at most",
        default="268435456",
    )


class ObjectReadOptions(_Objects, Partitions, DataLoss, JetStreamQuery):
    """Which objects of an object store are read: those whose names match the ``pattern``, or all."""


class ObjectScan(ReadOptions):
    """What is read of an object store's stream, and which ``objects`` of the store."""

    objects: ObjectReadOptions


class ObjectChangesOptions(_Objects, StreamScan):
    """Which changes of an object store a streaming query reads."""

    def check_and_make_query(self, given: Collection[str]) -> ObjectScan:
        """Return what is read of the object store's stream."""
        stream = stream_of_store(self.store)
        return self.converted_to(
            ObjectScan,
            streams=(stream,),
            pattern=None,
            filters=(descriptions_filter(self.store),),
            starting_offsets=self.starting_offsets_for(self.store, stream),
            objects=self.converted_to(ObjectReadOptions),
        ).check_and_make_query(given)


class ObjectWriteOptions(_Store, JetStreamQuery, section=WHAT):
    """The object store into which rows are put."""

    sink = "objects.write:sink_of"
    create: dict[str, Any] | None = option(
        read_create_object_store,
        "create the object store if it does not exist: `true` or its configuration in JSON, such as "
        '`{"max_bytes": 1000000000, "replicas": 3}`',
        default="false",
        name="createObjectStore",
    )

    @property
    def requested_config(self) -> RequestedConfig | None:
        """The configuration of a store that is created if it does not exist; None when it must exist."""
        return None if self.create is None else store_config(self.store, self.create)
