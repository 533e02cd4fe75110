"""Streams, buckets and object stores of another JetStream domain, from either side of a leaf node and from within."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructType

from tests.integration.commands.test_permissions import hub_and_leaf
from tests.integration.kinds.buckets.test_bucket_elsewhere import ACCOUNTS
from tests.integration.support import PAYLOAD, Query, read, read_payloads, run_task, stream_reader, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, ServerFactory

OBJECT = StructType().add("name", StringType()).add("content", BinaryType()).add("deleted", BooleanType())
VALUE = StructType().add("key", StringType()).add("value", BinaryType())


class There:
    """A domain: the server that is asked, and that which is in the domain."""

    def __init__(self, server: Server, owner: NatsPy, domain: str) -> None:
        self.server, self.owner, self.domain = server, owner, {"domain": domain}

    def write(self, columns: dict[str, Any], **options: Any) -> None:
        write(self.server, pa.table(columns), **self.domain, **options)

    def run_task(self, columns: dict[str, Any], **options: Any) -> None:
        run_task(self.server.url, pa.table(columns), **self.domain, **options)

    def read(self, schema: StructType, **options: Any) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in read(self.server, schema, **self.domain, **options))


@pytest.fixture(params=["the hub, from a leaf", "a leaf, from the hub", "the server's own"])
def there(request: pytest.FixtureRequest, server_factory: ServerFactory) -> Iterator[There]:
    hub, leaf = hub_and_leaf(server_factory)
    server, owner, domain = {
        "the hub, from a leaf": (leaf, hub, "hub"),
        "a leaf, from the hub": (hub, leaf, "leaf"),
        "the server's own": (hub, hub, "hub"),
    }[request.param]
    with NatsPy(owner.url) as client, NatsPy(server.url) as asking:
        wait_until(lambda: "error" not in asking.run(_info(asking, domain)))
        yield There(server, client, domain)


async def _info(client: NatsPy, domain: str) -> dict[str, Any]:
    try:
        return dict(vars(await client.nats.jetstream(domain=domain).account_info()))
    except Exception:
        return {"error": "not yet"}


def a_stream(there: There, name: str) -> None:
    made = {"stream": name, "createStream": f'{{"subjects": ["{name}.>"]}}'}
    there.write({"subject": [f"{name}.a", f"{name}.b"], "payload": ["1", "2"]}, **made)
    assert there.owner.stored_texts(name) == ["1", "2"]
    assert read_payloads(there.server, stream=name, **there.domain) == [b"1", b"2"]
    assert read_payloads(there.server, stream=name, subject=f"{name}.b", limit=1, **there.domain) == [b"2"]


def rows_that_are_stored_together(there: There, name: str) -> None:
    there.owner.create_stream(name, [f"{name}.>"], allow_atomic=True)
    there.write({"subject": [f"{name}.a", f"{name}.b"], "payload": ["1", "2"]}, stream=name, atomic=True)
    assert there.owner.stored_texts(name) == ["1", "2"]


def a_micro_batch_that_is_replayed(there: There, name: str) -> None:
    there.owner.create_stream(name, [name])
    for _ in range(2):
        there.run_task({"subject": [name], "payload": ["1"]}, stream=name, deduplicate="exact")
    assert there.owner.stored_texts(name) == ["1"]
    assert there.owner.held("KV_SPARK_NATS") > 0


def bad_rows(there: There, name: str) -> None:
    there.owner.create_stream(name, [name])
    there.owner.create_stream("BAD", ["bad"])
    options = {"stream": name, "badRows": "stream", "badRowsStream": "BAD"}
    there.write({"subject": [name, "a b"], "payload": ["1", "2"]}, **options)
    assert (there.owner.stored_texts(name), there.owner.held("BAD")) == (["1"], 1)


def a_query_that_shows_its_progress(there: There, name: str) -> None:
    there.owner.create_stream(name, [name])
    there.owner.store(name, [b"1", b"2"])
    options = {"stream": name, "startingOffsets": "earliest", "progressConsumer": "lag", **there.domain}
    query = Query(stream_reader(there.server, PAYLOAD, **options))
    assert len(query.rows(2)) == 2
    assert there.owner.consumers(name).count("lag") == 1
    query.reader.stop()


def a_work_queue(there: There, name: str) -> None:
    there.owner.create_stream(name, [name], retention="workqueue", allow_direct=True)
    there.owner.store(name, [b"1", b"2"])
    query = Query(stream_reader(there.server, PAYLOAD, stream=name, consume=True, **there.domain))
    assert len(query.rows(2)) == 2
    wait_until(lambda: query.micro_batch() or there.owner.held(name) == 0)
    query.reader.stop()


def a_bucket(there: There, name: str) -> None:
    there.write({"key": ["a", "b"], "value": ["1", "2"]}, bucket=name, createBucket="true")
    expected = {"expected_revision": pa.array([1, 9], pa.int64())}
    there.write({"key": ["a", "b"], "value": ["3", "4"], **expected}, bucket=name, onConflict="skip")
    assert there.read(VALUE, bucket=name) == [("a", b"3"), ("b", b"2")]
    assert there.read(VALUE, bucket=name, asOf="latest") == [("a", b"3"), ("b", b"2")]
    there.write({"key": ["a"], "operation": ["PURGE"]}, bucket=name)
    kept = [message.subject for message in there.owner.read_stream(f"KV_{name}")]
    assert kept == [f"$KV.{name}.b", f"$KV.{name}.a"]


def an_object_store(there: There, name: str) -> None:
    columns = {"name": ["a", "b"], "content": [bytes(300_000), b"2"]}
    there.write(columns, objectStore=name, createObjectStore="true")
    there.write({"name": ["a"], "content": [b"3"]}, objectStore=name)
    assert there.read(OBJECT, objectStore=name) == [("a", b"3", False), ("b", b"2", False)]
    deleted = {"content": pa.array([None], pa.binary()), "deleted": [True]}
    there.write({"name": ["b"], **deleted}, objectStore=name)
    options = {"objectStore": name, "startingOffsets": "earliest", **there.domain}
    query = Query(stream_reader(there.server, OBJECT, **options))
    assert sorted((row["name"], row["deleted"]) for row in query.rows(2)) == [("a", False), ("b", True)]
    query.reader.stop()
    kept = [message.subject for message in there.owner.read_stream(f"OBJ_{name}")]
    assert [subject.split(".")[:3] for subject in kept] == [["$O", name, "C"], ["$O", name, "M"], ["$O", name, "M"]]


def a_table(there: There, name: str) -> None:
    there.owner.create_stream(name, [f"{name}.>"])
    there.owner.store(f"{name}.a", [b"1"])
    assert (name,) in there.read(StructType().add("name", StringType()), table="streams")
    subjects = there.read(StructType().add("subject", StringType()), table="subjects", stream=name)
    assert subjects == [(f"{name}.a",)]


WHAT = [
    a_stream,
    rows_that_are_stored_together,
    a_micro_batch_that_is_replayed,
    bad_rows,
    a_query_that_shows_its_progress,
    a_work_queue,
    a_bucket,
    an_object_store,
    a_table,
]


@pytest.mark.needs("atomic", "progress")
def test_what_is_in_a_domain_is_written_and_read_as_where_it_is(there: There) -> None:
    """All of it between the same two servers, each with what it has of subjects that a domain maps, or does not."""
    for what in WHAT:
        what(there, what.__name__)


def test_an_object_store_of_another_account_is_written_and_read(server_factory: ServerFactory) -> None:
    server = server_factory(ACCOUNTS)
    options = {"user": "app", "password": "pw", "apiPrefix": "JS.owner.API", "objectStore": "O"}
    objects = pa.table({"name": ["a"], "content": [bytes(300_000)]})
    for _ in range(2):
        write(server, objects, createObjectStore="true", **options)
    (found,) = read(server, OBJECT, **options)
    assert found["content"] == bytes(300_000)
    with NatsPy(server.url, user="owner", password="pw") as client:
        assert client.held("OBJ_O") == 4
