"""Reads whose schema has no payload: the server does not send payloads, and the rows are as if it did."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from tests.integration.support import MESSAGE, Query, monitoring, read, stream_reader
from tests.nats_py import NatsPy
from tests.servers import Server, ServerFactory

COUNT, SIZE = 1500, 4096
HEADERS: list[dict[str, str] | None] = [
    None,
    {"a": "b"},
    {"Nats-Msg-Size": "mine"},  # the name of the line that the server adds
    {"a": "b: c", "x": ""},
]


@pytest.fixture
def server(server_factory: ServerFactory) -> Server:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", ["s.>"])
        client.create_stream("KV_B", ["$KV.B.>"], max_msgs_per_subject=COUNT)
        for subject in ("s.{}", "$KV.B.{}"):
            rows = [(subject.format(i % 7), b"%04d" % i + b"y" * SIZE, HEADERS[i % 4]) for i in range(COUNT)]
            client.publish_acked([row if row[2] else row[:2] for row in rows])
    return server


def without(schema: StructType, *columns: str) -> StructType:
    return StructType([field for field in schema if field.name not in columns])


def sent(server: Server) -> int:
    """How many bytes the server has sent so far."""
    return int(monitoring(server, "varz")["out_bytes"])


@pytest.mark.parametrize("more", [{}, {"subject": "s.3"}, {"minPartitions": 3}, {"limit": 1200}])
@pytest.mark.parametrize("columns", [("payload",), ("payload", "headers")])
def test_a_read_without_payloads_has_the_rows_and_not_their_bytes(
    server: Server, more: dict[str, Any], columns: tuple[str, ...]
) -> None:
    schema = without(MESSAGE, *columns)
    whole = read(server, MESSAGE, stream="S", **more)
    before = sent(server)
    rows = read(server, schema, stream="S", **more)
    assert rows == [{name: row[name] for name in schema.names} for row in whole]
    assert len(rows) > 200
    assert sent(server) - before < len(rows) * SIZE / 4


def test_changes_of_a_bucket_without_values_have_their_operations_and_headers(server: Server) -> None:
    with NatsPy(server.url) as client:
        client.publish_acked([("$KV.B.3", b"", {"KV-Operation": "DEL", "Nats-Msg-Size": "mine"})])

    def rows(schema: StructType) -> list[dict[str, Any]]:
        query = Query(stream_reader(server, schema, bucket="B", startingOffsets="earliest"))
        return query.rows(COUNT + 1)

    most = StructType([MESSAGE["headers"]]).add("key", "string").add("revision", "long").add("operation", "string")
    whole = rows(StructType([*most.fields]).add("value", "binary"))
    before = sent(server)
    found = rows(most)
    assert sent(server) - before < len(found) * SIZE / 4
    assert found == [{name: value for name, value in row.items() if name != "value"} for row in whole]
    assert found[-1]["operation"] == "DEL"


def test_a_replay_without_payloads_has_the_same_rows(server: Server) -> None:
    schema = without(MESSAGE, "payload")
    query = Query(stream_reader(server, schema, stream="S", startingOffsets="earliest"))
    begin, rows = query.offset, query.rows(COUNT)
    again = stream_reader(server, schema, stream="S")  # plans from the checkpoint, before any look
    parts = [row for part in again.partitions(begin, query.offset) for b in again.read(part) for row in b.to_pylist()]
    assert parts == rows
