"""KV buckets that are not in one's own account and server: behind a leaf node's domain, and in another account."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from tests.integration.commands.test_permissions import hub_and_leaf
from tests.integration.support import Query, nats, read, save, sentence_of, stream_reader, write
from tests.nats_py import NatsPy
from tests.servers import Server, ServerFactory

ENTRY = (
    StructType()
    .add("key", StringType())
    .add("value", BinaryType())
    .add("operation", StringType())
    .add("revision", LongType())
)
ACCOUNTS = """
    accounts {
        OWNER: {
            jetstream: enabled
            users: [ {user: owner, password: pw} ]
            exports: [ {service: "$JS.API.>", response_type: stream}, {service: "$KV.CONFIG.>"}, {service: "$O.O.>"} ]
        }
        APP: {
            users: [ {user: app, password: pw} ]
            imports: [
                {service: {account: OWNER, subject: "$JS.API.>"}, to: "JS.owner.API.>"}
                {service: {account: OWNER, subject: "$KV.CONFIG.>"}, to: "JS.owner.API.$KV.CONFIG.>"}
                {service: {account: OWNER, subject: "$O.O.>"}}
            ]
        }
    }
"""


class Elsewhere:
    """A bucket CONFIG: where it is asked for and with which options, and where it is."""

    def __init__(self, server: Server, options: dict[str, str], owner: Server, login: dict[str, str]) -> None:
        self.server, self.options, self.owner, self.login = server, {"bucket": "CONFIG", **options}, owner, login

    def put(self, columns: dict[str, Any], **options: Any) -> None:
        rows = pa.table(
            {name: pa.array(*values) if isinstance(values, tuple) else values for name, values in columns.items()}
        )
        write(self.server, rows, **self.options, **options)

    def entries(self, **options: Any) -> list[tuple[str, bytes | None, str, int]]:
        return [tuple(row.values()) for row in read(self.server, ENTRY, **self.options, **options)]

    def stored(self) -> list[tuple[str, bytes]]:
        with NatsPy(self.owner.url, **self.login) as client:
            return [(message.subject, message.payload) for message in client.read_stream("KV_CONFIG")]


def behind_a_leaf(server_factory: ServerFactory) -> Elsewhere:
    hub, leaf = hub_and_leaf(server_factory)
    return Elsewhere(leaf, {"domain": "hub"}, hub, {})


def in_its_own_domain(server_factory: ServerFactory) -> Elsewhere:
    server = server_factory("jetstream { domain: hub }")
    return Elsewhere(server, {"domain": "hub"}, server, {})


def in_another_account(server_factory: ServerFactory) -> Elsewhere:
    server = server_factory(ACCOUNTS)
    login = {"user": "app", "password": "pw", "apiPrefix": "JS.owner.API"}
    return Elsewhere(server, login, server, {"user": "owner", "password": "pw"})


PLACES = [behind_a_leaf, in_its_own_domain, in_another_account]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_bucket_elsewhere_is_made_written_and_read(
    server_factory: ServerFactory, place: Callable[[ServerFactory], Elsewhere]
) -> None:
    there = place(server_factory)
    made = '{"history": 3, "limit_marker_ttl": "1s"}'
    there.put({"key": ["a", "eu.b", "eu.c"], "value": ["1", "2", "3"]}, createBucket=made, deduplicate="window")
    assert there.stored() == [("$KV.CONFIG.a", b"1"), ("$KV.CONFIG.eu.b", b"2"), ("$KV.CONFIG.eu.c", b"3")]
    assert there.entries() == [("a", b"1", "PUT", 1), ("eu.b", b"2", "PUT", 2), ("eu.c", b"3", "PUT", 3)]
    assert there.entries(keys="eu.>") == [("eu.b", b"2", "PUT", 2), ("eu.c", b"3", "PUT", 3)]
    there.put({"key": ["a", "eu.c"], "operation": ["DEL", "PURGE"]})
    assert there.entries() == [("eu.b", b"2", "PUT", 2)]
    assert [entry[2:] for entry in there.entries(history=True, ignoreDeletes=False)] == [
        ("PUT", 1),
        ("PUT", 2),
        ("DEL", 4),
        ("PURGE", 5),
    ]
    query = Query(stream_reader(there.server, ENTRY, startingOffsets="earliest", keys="eu.*", **there.options))
    assert [row["revision"] for row in query.rows(2)] == [2, 5]
    there.put({"key": ["eu.b"], "value": ["4"]})
    assert [row["value"] for row in query.rows(1)] == [b"4"]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.needs("ttl")
def test_keys_of_a_bucket_elsewhere_are_compared_and_set(
    server_factory: ServerFactory, place: Callable[[ServerFactory], Elsewhere]
) -> None:
    there = place(server_factory)
    there.put({"key": ["a", "b"], "value": ["1", "2"]}, createBucket='{"limit_marker_ttl": "1s"}')
    there.put({"key": ["b"], "operation": ["DEL"]})
    expecting = {"key": ["a", "b", "c"], "value": ["3", "4", "5"], "expected_revision": ([1, 0, 0], pa.int64())}
    there.put({**expecting, "ttl": ([None, "1h", None], pa.string())})
    assert there.entries() == [("a", b"3", "PUT", 4), ("c", b"5", "PUT", 5), ("b", b"4", "PUT", 6)]
    wrong = {"value": ["6"], "expected_revision": ([1], pa.int64())}
    error = sentence_of(lambda: there.put({"key": ["a"], **wrong}))
    assert "the key 'a' of the bucket 'CONFIG' has the revision 4, and its expected_revision is 1" in error
    error = sentence_of(lambda: there.put({"key": ["new"], **wrong}))
    assert "the key 'new' of the bucket 'CONFIG' does not exist, and its expected_revision is 1" in error
    there.put({**expecting, "key": ["a", "d", "b"]}, onConflict="skip")
    assert there.entries(keys="a,b,d") == [("a", b"3", "PUT", 4), ("b", b"4", "PUT", 6), ("d", b"4", "PUT", 7)]


def test_a_bucket_of_another_account_is_written_and_read_through_spark(
    spark: SparkSession, server_factory: ServerFactory
) -> None:
    there = in_another_account(server_factory)
    rows = spark.range(100).selectExpr("concat('k.', id) AS key", "string(id) AS value", "0L AS expected_revision")
    save(rows, there.server, **there.options, createBucket="true")
    found = nats(spark.read, there.server, **there.options, keys="k.1,k.2")
    assert sorted(bytes(row["value"]) for row in found.load().collect()) == [b"1", b"2"]
    assert len(there.stored()) == 100


@pytest.mark.parametrize("kind", ["bucket", "stream"])
def test_a_subject_that_an_account_does_not_share_is_said_to_be_the_reason(
    server_factory: ServerFactory, kind: str
) -> None:
    server = server_factory(re.sub(r".*to: \"JS.owner.API.\$KV.*", "", ACCOUNTS))
    with NatsPy(server.url, user="owner", password="pw") as client:
        client.create_stream("KV_CONFIG", ["$KV.CONFIG.>"])
        client.create_stream("ORDERS", ["orders.>"])
    names = {"bucket": ("key", "value", "CONFIG", "a"), "stream": ("subject", "payload", "ORDERS", "orders.a")}
    one, other, name, subject = names[kind]
    rows = pa.table({one: [subject], other: ["1"]})
    how = {"user": "app", "password": "pw", "apiPrefix": "JS.owner.API", "ackTimeout": "300ms", kind: name}
    error = sentence_of(lambda: write(server, rows, **how))
    # What begins as the API does comes to the API of the other account, which has no answer.
    published = f"JS.owner.API.$KV.CONFIG.{subject}" if kind == "bucket" else subject
    assert f"'{published}'" in error
    assert "as when that is not imported from its account" in error
    assert {"bucket": "rows 0 were stored and 1 were sent", "stream": "none of this task's rows was"}[kind] in error
