"""Reading object stores, with nats-py's object store as the other side."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ObjectMeta, ObjectMetaOptions
from nats.js.object_store import ObjectStore
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from spark_nats.client.pool import borrow
from spark_nats.errors import DataLossError, NatsError, OptionError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.jetstream.reading.judging import raise_data_loss
from spark_nats.jetstream.reading.ranges import RangeReader
from spark_nats.kinds.objects import OBJECT_SCHEMA
from spark_nats.kinds.objects.store import StoredObject, read_object_with_content, request_existing_objects
from tests.integration.support import batch_reader, error_of, nats, read, source
from tests.nats_py import NatsPy
from tests.servers import OLDER_BINARY, Server, ServerFactory

pytestmark = pytest.mark.timeout(150)

INFO = (
    StructType()
    .add("name", StringType())
    .add("description", StringType())
    .add("size", LongType())
    .add("chunks", LongType())
    .add("digest", StringType())
    .add("modified", TimestampType())
    .add("headers", MapType(StringType(), ArrayType(StringType())))
    .add("metadata", MapType(StringType(), StringType()))
    .add("link", StructType().add("bucket", StringType()).add("name", StringType()))
    .add("deleted", BooleanType())
    .add("sequence", LongType())
)
CONTENT = StructType().add("name", StringType()).add("content", BinaryType())


def make(client: NatsPy, bucket: str) -> ObjectStore:
    """A store that nats-py has made."""
    return client.run(client.nats.jetstream().create_object_store(bucket))


def put(client: NatsPy, store: ObjectStore, name: str, content: bytes, chunk: int = 1024, **meta: Any) -> None:
    described = ObjectMeta(name=name, options=ObjectMetaOptions(max_chunk_size=chunk), **meta)
    client.run(store.put(name, content, described))


def subject_of(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def describe(client: NatsPy, bucket: str, name: str, **described: Any) -> None:
    """Describe an object by hand, in place of what describes it."""
    document = json.dumps({"name": name, "bucket": bucket, "nuid": "x", "size": 0, "chunks": 0, **described})
    client.publish_acked([(subject_of(bucket, name), document.encode(), {"Nats-Rollup": "sub"})])


def link(client: NatsPy, bucket: str, name: str, *target: str) -> None:
    """Make a link, which nats-py cannot, to an object of a bucket, or to a bucket."""
    describe(client, bucket, name, options={"link": dict(zip(("bucket", "name"), target, strict=False))})


def chunk_sequences(client: NatsPy, bucket: str) -> list[int]:
    return [each.sequence or 0 for each in client.read_stream(f"OBJ_{bucket}") if ".C." in each.subject]


def contents(server: Server | str, bucket: str, **options: Any) -> dict[str, bytes | None]:
    rows = read(server, CONTENT, objectStore=bucket, **options)
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row["content"] for row in rows}


def names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(row["name"] for row in rows)


def test_objects_are_rows_of_what_describes_them(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    content = bytes(range(256)) * 10
    put(nats_py, store, "a.bin", content, description="bytes", headers={"kind": ["test", "more"]})
    put(nats_py, store, "b", b"")
    describe(nats_py, unique, "c", metadata={"owner": "me"}, headers={"one": "value"})
    rows = {row["name"]: row for row in read(nats_server, INFO, objectStore=unique)}
    a, b = rows["a.bin"], rows["b"]
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    assert (a["description"], a["size"], a["chunks"], a["digest"]) == ("bytes", 2560, 3, f"SHA-256={digest}")
    assert dict(a["headers"]) == {"kind": ["test", "more"]}
    assert a["link"] is None
    assert datetime.now(UTC) - timedelta(minutes=5) < a["modified"] <= b["modified"]
    assert (b["description"], b["size"], b["chunks"]) == (None, 0, 0)
    assert dict(rows["c"]["metadata"]) == {"owner": "me"}
    assert dict(rows["c"]["headers"]) == {"one": ["value"]}


def test_content_is_what_was_put(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    put_there = {
        "empty": b"",
        "one byte": b"x",
        "one chunk": bytes(1024),
        "three chunks": bytes(range(256)) * 12,
        "a byte more": bytes(range(256)) * 12 + b"!",
    }
    for name, content in put_there.items():
        put(nats_py, store, name, content)
    assert contents(nats_server, unique) == put_there


def test_a_large_object_is_read_whole(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    content = b"".join(i.to_bytes(4, "big") for i in range(1_200_000))  # more than two pull requests ask for
    put(nats_py, make(nats_py, unique), "large", content, 128 * 1024)
    assert contents(nats_server, unique) == {"large": content}


def test_names_have_any_characters(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    odd = ["a/b.txt", "with space", "$O.x.>", "*", "ünïcödé 𝄞", "\n", '"quoted"', "ÿþ?>~"]
    for name in odd:
        put(nats_py, store, name, name.encode())
    assert contents(nats_server, unique) == {name: name.encode() for name in odd}


def test_a_pattern_chooses_objects_by_their_whole_names(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    for name in ("a.csv", "b.csv", "b.csv.gz", "c.txt"):
        put(nats_py, store, name, b"x")
    assert names(read(nats_server, INFO, objectStore=unique, objectPattern=r".*\.csv")) == ["a.csv", "b.csv"]
    assert read(nats_server, INFO, objectStore=unique, objectPattern="d") == []


def test_objects_are_spread_over_partitions(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    expected = {f"{i}": b"%d" % i for i in range(10)}
    for name, content in expected.items():
        put(nats_py, store, name, content)
    assert len(batch_reader(nats_server, CONTENT, objectStore=unique, minPartitions=4).partitions()) == 4
    assert len(batch_reader(nats_server, CONTENT, objectStore=unique, minPartitions=40).partitions()) == 10
    assert contents(nats_server, unique, minPartitions=4) == expected


def test_deleted_and_replaced_objects_are_not_read(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    assert read(nats_server, INFO, objectStore=unique) == []
    for content in (b"first" * 1000, b"second"):
        put(nats_py, store, "a", content)
    put(nats_py, store, "b", b"x")
    nats_py.run(store.delete("b"))
    assert contents(nats_server, unique) == {"a": b"second"}
    assert names(read(nats_server, INFO, objectStore=unique)) == ["a"]


def test_a_sealed_store_is_read(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"x" * 5000)
    nats_py.run(store.seal())
    assert contents(nats_server, unique) == {"a": b"x" * 5000}


def test_an_older_server_has_objects_too(server_factory: ServerFactory) -> None:
    server = server_factory(binary=OLDER_BINARY)
    with NatsPy(server.url) as client:
        put(client, make(client, "S"), "a", b"x" * 5000)
    assert contents(server, "S") == {"a": b"x" * 5000}


# Links


def test_a_link_has_the_content_of_its_target(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    other = f"{unique}_other"
    put(nats_py, make(nats_py, unique), "a", b"here")
    put(nats_py, make(nats_py, other), "b", b"there")
    link(nats_py, unique, "to a", unique, "a")
    link(nats_py, unique, "to b", other, "b")
    link(nats_py, unique, "to the link", unique, "to b")
    link(nats_py, unique, "to the bucket", other)
    assert contents(nats_server, unique) == {
        "a": b"here",
        "to a": b"here",
        "to b": b"there",
        "to the link": b"there",
        "to the bucket": None,
    }
    links = {row["name"]: row["link"] for row in read(nats_server, INFO, objectStore=unique)}
    assert links["to b"] == {"bucket": other, "name": "b"}
    assert links["to the bucket"] == {"bucket": other, "name": None}


def test_eight_links_may_follow_one_another_and_no_more(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    put(nats_py, make(nats_py, unique), "0", b"content")
    for i in range(1, 9):
        link(nats_py, unique, f"{i}", unique, f"{i - 1}")
    assert contents(nats_server, unique) == {f"{i}": b"content" for i in range(9)}
    link(nats_py, unique, "9", unique, "8")
    with pytest.raises(DataLossError, match="object '9' .* 8 links lead to yet another one"):
        contents(nats_server, unique)


@pytest.mark.parametrize("target", ["gone", "round"])
def test_a_link_that_leads_nowhere_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(nats_py, unique)
    link(nats_py, unique, "round", unique, target)
    said = "has no object 'gone'" if target == "gone" else "8 links lead to yet another one"
    with pytest.raises(DataLossError, match=f"object 'round' of the object store '{unique}' is a link.*{said}"):
        contents(nats_server, unique)
    assert contents(nats_server, unique, failOnDataLoss=False) == {"round": None}
    assert "NATS_LOSS_ACCEPTED" in caplog.text
    assert names(read(nats_server, INFO, objectStore=unique)) == ["round"]


def test_a_link_into_a_store_that_is_not_there_is_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make(nats_py, unique)
    link(nats_py, unique, "l", f"{unique}_no", "a")
    with pytest.raises(DataLossError, match=f"the object store '{unique}_no' does not exist"):
        contents(nats_server, unique)


# Damage


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "middle", "last"])
def test_an_object_without_one_of_its_chunks_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str, which: int
) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "cut", bytes(3000))
    nats_py.delete_message(f"OBJ_{unique}", chunk_sequences(nats_py, unique)[which])
    put(nats_py, store, "whole", b"x")
    with pytest.raises(DataLossError, match=r"object 'cut' of .* is damaged: it has 2 chunks with .* should have 3"):
        contents(nats_server, unique)
    assert contents(nats_server, unique, failOnDataLoss=False) == {"cut": None, "whole": b"x"}
    assert names(read(nats_server, INFO, objectStore=unique)) == ["cut", "whole"]


def test_an_object_with_another_digest_is_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"one")
    info = nats_py.run(store.get_info("a"))
    wrong = "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(b"two").digest()).decode()
    describe(nats_py, unique, "a", nuid=info.nuid, size=3, chunks=1, digest=wrong)
    with pytest.raises(DataLossError, match=f"object 'a' .* its digest is {info.digest}, and should be {wrong}"):
        contents(nats_server, unique)


def test_an_object_with_more_bytes_than_its_size_is_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"one")
    nuid = nats_py.run(store.get_info("a")).nuid
    describe(nats_py, unique, "a", nuid=nuid, size=2, chunks=1)
    with pytest.raises(DataLossError, match="object 'a' .* more than 2 bytes, which is its size"):
        contents(nats_server, unique)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"no json", "Expecting value"),
        (b"[]", "a list instead of an object"),
        (b"{}", "'name' is not a text"),
        (b'{"name": "a", "size": -1}', "'size' is not an integer"),
        (b'{"name": "a", "nuid": "a.*", "chunks": 1}', "'nuid'"),
        (b'{"name": "a", "chunks": 1}', "chunks and no 'nuid'"),
        (b'{"name": "a", "options": {"link": {"bucket": "a.b"}}}', "'options.link.bucket'"),
        (b'{"name": "a", "headers": [1]}', "'headers' is no object"),
    ],
)
def test_what_describes_no_object_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str, payload: bytes, words: str
) -> None:
    make(nats_py, unique)
    nats_py.publish_acked([(subject_of(unique, "bad one"), payload)])
    with pytest.raises(NatsError, match="object 'bad one' .* is not described as object stores do it") as raised:
        read(nats_server, INFO, objectStore=unique)
    assert words in str(raised.value)
    assert read(nats_server, INFO, objectStore=unique, objectPattern="(?!bad).*") == []


def test_an_object_that_is_too_large_is_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "small", b"x" * 10)
    put(nats_py, store, "large", b"x" * 11)
    with pytest.raises(OptionError, match=r"object 'large' of .* has 11 bytes, .* option 'maxObjectBytes', 10"):
        contents(nats_server, unique, maxObjectBytes=10)
    assert set(contents(nats_server, unique, maxObjectBytes=11)) == {"small", "large"}
    assert names(read(nats_server, INFO, objectStore=unique, maxObjectBytes=10)) == ["large", "small"]


# Changes meanwhile


def test_an_object_that_is_replaced_while_its_chunks_are_read_is_read_again(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(nats_py, unique)
    for name in "abc":
        put(nats_py, store, name, name.encode() * 20_000)
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 5)
    monkeypatch.setattr(pulls, "HEARTBEAT", 0.5)  # seconds of silence after which it is found out that the rest is gone
    read_range = RangeReader.read

    def replacing_b(self: RangeReader, js: JetStream) -> Iterator[Delivered]:
        for delivered in read_range(self, js):
            yield delivered
            if delivered.messages.payloads().to_pylist()[0] == b"b" * 1024:
                put(nats_py, store, "b", b"2" * 20_000)

    monkeypatch.setattr(RangeReader, "read", replacing_b)
    assert contents(nats_server, unique) == {"a": b"a" * 20_000, "b": b"2" * 20_000, "c": b"c" * 20_000}


def test_an_object_that_is_replaced_just_before_its_content_is_read_is_read_again(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"0" * 3000)
    left = [3, 2, 1]

    def replace(_: StoredObject) -> None:
        if left:
            put(nats_py, store, "a", b"%d" % left.pop() * 4000)

    with borrow(source(nats_server, objectStore=unique)._settings.connection) as connection:
        js = JetStream(connection)
        (found,) = request_existing_objects(js, unique, [subject_of(unique, "a")])
        read_again = read_object_with_content(js, found, replace, raise_data_loss)
        assert read_again is not None
        assert read_again[1] == b"3" * 4000
        assert read_again[0].info.size == 4000
        with pytest.raises(NatsError, match="object 'a' .* was replaced 10 times while it was read"):
            read_object_with_content(js, found, lambda _: left.append(7) or replace(found), raise_data_loss)  # type: ignore[func-returns-value]
        assert read_object_with_content(js, found, lambda _: nats_py.run(store.delete("a")), raise_data_loss) is None


def test_an_object_that_is_deleted_after_the_plan_is_left_out(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    store = make(nats_py, unique)
    for name in "ab":
        put(nats_py, store, name, b"x" * 3000)
    reader = batch_reader(nats_server, CONTENT, objectStore=unique)
    (partition,) = reader.partitions()
    nats_py.run(store.delete("a"))
    assert [row["name"] for batch in reader.read(partition) for row in batch.to_pylist()] == ["b"]


# Mistakes


def test_a_store_that_is_not_there_is_named_with_the_nearest(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make(nats_py, f"{unique}_assets")
    with pytest.raises(NatsError, match=f"'{unique}_asset' does not exist .there is '{unique}_assets'") as raised:
        read(nats_server, INFO, objectStore=f"{unique}_asset")
    assert raised.value.condition == "NATS_OBJECT_STORE_NOT_FOUND"


def test_columns_that_an_object_does_not_have_are_an_error(nats_server: Server) -> None:
    with pytest.raises(NatsError, match="an object has no column 'payload'"):
        source(nats_server, objectStore="A").reader(StructType().add("payload", BinaryType()))


def test_the_documentation_has_these_columns() -> None:
    page = (Path(__file__).parents[4] / "docs" / "objects.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", html.unescape(page.split("## Columns")[1]), re.MULTILINE)
    assert ", ".join(f"{name} {kind}" for name, kind in rows) == OBJECT_SCHEMA.replace("_LTZ", "")


# With Spark


def test_spark_reads_objects_and_their_content_where_the_schema_has_it(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"content", headers={"kind": ["x"]})
    link(nats_py, unique, "l", unique, "a")
    frame = nats(spark.read, nats_server, objectStore=unique).load()
    assert frame.schema == INFO
    rows = {row["name"]: row for row in frame.collect()}
    assert rows["a"].headers == {"kind": ["x"]}
    assert rows["a"]["size"] == 7
    assert (rows["l"].link.bucket, rows["l"].link.name) == (unique, "a")
    whole = nats(spark.read, nats_server, objectStore=unique, minPartitions=2).schema("name STRING, content BINARY")
    assert {row["name"]: bytes(row.content) for row in whole.load().collect()} == {"a": b"content", "l": b"content"}
    nats_py.delete_message(f"OBJ_{unique}", chunk_sequences(nats_py, unique)[0])
    assert frame.count() == 2
    assert error_of(whole.load().collect).startswith("DataLossError: the object 'a' of the object store")
