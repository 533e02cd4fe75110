"""Offsets that a later version has written: no kind of query goes on from what it does not understand."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from spark_nats.errors import NatsError
from tests.integration.support import Query, stream_reader
from tests.nats_py import NatsPy
from tests.servers import Server

KINDS = ["stream", "bucket", "objectStore", "core"]
HEADERS = StructType().add("headers", MapType(StringType(), ArrayType(StringType())))
"""A column that all kinds have."""


def a_query(kind: str, server: Server, client: NatsPy, name: str) -> Query:
    """A query of this kind that has begun."""
    if kind == "core":
        return Query(stream_reader(server, HEADERS, subject=name))
    if kind == "objectStore":
        client.run(client.nats.jetstream().create_object_store(name))
    else:
        client.create_stream(
            f"KV_{name}" if kind == "bucket" else name, [f"$KV.{name}.>" if kind == "bucket" else name]
        )
    return Query(stream_reader(server, HEADERS, **{kind: name}))


def with_in_each_entry(offset: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    if "epoch" in offset:
        return {**offset, **more}
    return {name: {**entry, **more} for name, entry in offset.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_of_another_form_is_refused_by_its_number(
    kind: str, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    query = a_query(kind, nats_server, nats_py, unique)
    later = {**query.offset, "version": 2}
    again = a_query_that_goes_on(kind, nats_server, unique, later)
    try:
        with pytest.raises(NatsError, match=r"OFFSET_OF_LATER_VERSION.* has 'version' 2, which this version"):
            again.micro_batch()
        with pytest.raises(NatsError, match="OFFSET_OF_LATER_VERSION"):
            again.reader.partitions(query.offset, later)
    finally:
        query.reader.stop()
        again.reader.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_with_a_field_that_is_unknown_is_refused(
    kind: str, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    query = a_query(kind, nats_server, nats_py, unique)
    again = a_query_that_goes_on(kind, nats_server, unique, with_in_each_entry(query.offset, {"rank": 7}))
    try:
        with pytest.raises(NatsError, match=r"OFFSET_OF_LATER_VERSION.* has 'rank', which"):
            again.micro_batch()
    finally:
        query.reader.stop()
        again.reader.stop()


def a_query_that_goes_on(kind: str, server: Server, name: str, checkpoint: dict[str, Any]) -> Query:
    reader = stream_reader(server, HEADERS, **{"subject" if kind == "core" else kind: name})
    return Query(reader, checkpoint)


def test_a_stream_may_be_called_version(server_factory: Any) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("version", ["version"])
        client.publish_acked([("version", b"1")])
    query = Query(stream_reader(server, stream="version", startingOffsets="earliest"))
    assert query.rows(1)
    assert Query(stream_reader(server, stream="version"), query.offset).micro_batch() == []
