"""Reading how the objects of a store change, with nats-py's object store and the `nats` command line as other sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nats.js.object_store import ObjectStore
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, BooleanType, LongType, StringType, StructType

from spark_nats.errors import DataLossError, OptionError
from spark_nats.jetstream.api import JetStream
from spark_nats.kinds.objects.store import StoredObject, read_object_with_content, request_existing_objects
from tests.integration.kinds.objects.test_objects import chunk_sequences, describe, link, make, put, subject_of
from tests.integration.support import Query, finish, nats, read, run_nats, stream_reader
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, Server

CHANGE = (
    StructType()
    .add("name", StringType())
    .add("size", LongType())
    .add("deleted", BooleanType())
    .add("sequence", LongType())
    .add("content", BinaryType())
)


@pytest.fixture
def store(nats_py: NatsPy, unique: str) -> ObjectStore:
    return make(nats_py, unique)


def begin(server: Server | str, bucket: str, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
    return Query(
        stream_reader(server, CHANGE, objectStore=bucket, **{"startingOffsets": "earliest", **options}), checkpoint
    )


def changes(query: Query, count: int) -> list[tuple[str, bool, bytes | None]]:
    return [(row["name"], row["deleted"], row["content"]) for row in query.rows(count)]


def test_what_is_put_replaced_and_deleted_is_a_row_each(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    put(nats_py, store, "a", b"1" * 3000)
    put(nats_py, store, "b", b"")
    query = begin(nats_server, unique)
    assert changes(query, 2) == [("a", False, b"1" * 3000), ("b", False, b"")]
    put(nats_py, store, "a", b"2" * 5000)
    assert changes(query, 1) == [("a", False, b"2" * 5000)]
    nats_py.run(store.delete("b"))
    assert changes(query, 1) == [("b", True, None)]


def test_a_query_begins_with_what_comes_next_unless_told_otherwise(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    put(nats_py, store, "a", b"1")
    query = begin(nats_server, unique, startingOffsets="latest")
    put(nats_py, store, "b", b"2")
    assert changes(query, 1) == [("b", False, b"2")]
    there = json.dumps({unique: nats_py.stream_info(f"OBJ_{unique}")["state"]["last_seq"]})
    assert changes(begin(nats_server, unique, startingOffsets=there), 1) == [("b", False, b"2")]


def test_a_query_that_is_started_again_goes_on_behind_its_checkpoint(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    put(nats_py, store, "a", b"1")
    query = begin(nats_server, unique)
    assert changes(query, 1) == [("a", False, b"1")]
    put(nats_py, store, "b", b"2")
    again = begin(nats_server, unique, query.offset)
    assert changes(again, 1) == [("b", False, b"2")]


def test_of_what_was_replaced_before_it_is_read_there_is_the_last_version_only(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    for i in range(5):
        put(nats_py, store, "a", b"%d" % i * 2000)
    put(nats_py, store, "b", b"x")
    nats_py.run(store.delete("b"))
    assert changes(begin(nats_server, unique), 2) == [("a", False, b"4" * 2000), ("b", True, None)]


def test_a_version_whose_content_is_gone_has_none_and_the_next_one_follows(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    """As when an object is replaced after its description was read. Here all descriptions are kept."""
    descriptions = []
    for content in (b"1" * 3000, b"2" * 3000):
        put(nats_py, store, "a", content)
        descriptions.append(nats_py.read_stream(f"OBJ_{unique}")[-1].payload)
    nats_py.publish_acked([(subject_of(unique, "a"), each) for each in descriptions])
    new = ("a", False, b"2" * 3000)
    assert changes(begin(nats_server, unique), 3) == [new, ("a", False, None), new]


def test_content_is_read_only_where_the_schema_has_it_and_names_can_be_chosen(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    for name in ("a.txt", "b.bin", "b.txt.gz", "c.txt"):
        put(nats_py, store, name, name.encode())
    schema = StructType().add("name", StringType())
    query = Query(
        stream_reader(nats_server, schema, objectStore=unique, startingOffsets="earliest", objectPattern=r".*\.txt")
    )
    with nats_py.collect(f"$JS.API.CONSUMER.CREATE.OBJ_{unique}.>") as asked:
        assert query.rows(2) == [{"name": "a.txt"}, {"name": "c.txt"}]
        nats_py.publish(f"$JS.API.CONSUMER.CREATE.OBJ_{unique}.end")
        asked.wait(1)
        assert all(b".C." not in message.payload for message in asked.messages)


def test_damage_is_an_error_unless_it_is_accepted(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    put(nats_py, store, "a", b"1" * 3000)
    nats_py.delete_message(f"OBJ_{unique}", chunk_sequences(nats_py, unique)[1])
    with pytest.raises(DataLossError, match="the object 'a' of the object store .* is damaged: it has 2 chunks"):
        begin(nats_server, unique).rows(1)
    assert changes(begin(nats_server, unique, failOnDataLoss="false"), 1) == [("a", False, None)]


def test_a_link_has_the_content_of_its_target(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    put(nats_py, store, "a", b"1")
    link(nats_py, unique, "l", unique, "a")
    link(nats_py, unique, "s", unique)
    found = {name: content for name, _, content in changes(begin(nats_server, unique), 3)}
    assert found == {"a": b"1", "l": b"1", "s": None}


@pytest.mark.parametrize("what", ["a link to another object", "an object", "deleted"])
def test_a_link_that_is_replaced_while_its_content_is_read_has_none(
    js: JetStream, nats_py: NatsPy, unique: str, store: ObjectStore, what: str
) -> None:
    """And not that of the version in its place, which is a row of its own."""
    put(nats_py, store, "a", b"1")
    put(nats_py, store, "b", b"2")
    link(nats_py, unique, "l", unique, "a")
    (found,) = request_existing_objects(js, unique, [subject_of(unique, "l")])
    read: list[str] = []

    def replace_both(target: StoredObject) -> None:
        """Called when it is known what the link leads to, and nothing of that was read yet."""
        read.append(target.info.name)
        if len(read) > 1:
            return
        put(nats_py, store, "a", b"3")
        if what == "an object":
            put(nats_py, store, "l", b"2")
        elif what == "deleted":
            describe(nats_py, unique, "l", deleted=True)
        else:
            link(nats_py, unique, "l", unique, "b")

    assert read_object_with_content(js, found, replace_both, pytest.fail, this_version=True) == (found, None)
    assert read == {"a link to another object": ["a", "b"], "an object": ["a", "l"], "deleted": ["a"]}[what]


def test_an_object_that_is_too_large_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    put(nats_py, store, "a", b"1" * 3000)
    with pytest.raises(OptionError, match="has 3000 bytes, which is more than the option 'maxObjectBytes', 2999"):
        begin(nats_server, unique, maxObjectBytes="2999").rows(1)


def test_micro_batches_are_limited_and_cut_like_those_of_streams(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    for i in range(30):
        describe(nats_py, unique, f"o{i}")
    query = begin(nats_server, unique, maxOffsetsPerTrigger="10", minPartitions="3")
    sizes = [len(query.micro_batch()) for _ in range(4)]
    assert sizes == [10, 10, 10, 0]


def test_a_store_that_is_not_there_is_named_with_the_nearest(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore
) -> None:
    with pytest.raises(Exception, match=f"object store '{unique}S' does not exist.*there is '{unique}'"):
        begin(nats_server, f"{unique}S")


def test_what_the_command_line_puts_and_deletes_is_read(
    nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "report.txt").write_bytes(b"all is well" * 30_000)
    query = begin(nats_server, unique)
    run_nats(nats_server, "object", "put", unique, "report.txt", "-f", "--no-progress", cwd=tmp_path)
    assert changes(query, 1) == [("report.txt", False, b"all is well" * 30_000)]
    run_nats(nats_server, "object", "rm", unique, "report.txt", "-f")
    assert changes(query, 1) == [("report.txt", True, None)]


def test_changes_are_read_while_a_leader_steps_down(cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(
            f"OBJ_{unique}", [f"$O.{unique}.C.>", f"$O.{unique}.M.>"], num_replicas=3, allow_rollup_hdrs=True
        )
        bucket = client.run(client.nats.jetstream(timeout=1).object_store(unique))
        query = begin(cluster.urls, unique, requestTimeout="1s")  # of what a stream is asked while nobody leads it
        for i in range(3):
            wait_until(lambda i=i: tried(client, bucket, f"o{i}", b"%d" % i * 5000))
            if i == 1:
                client.api(f"STREAM.LEADER.STEPDOWN.OBJ_{unique}")
            assert changes(query, 1)[-1] == (f"o{i}", False, b"%d" % i * 5000)


def tried(client: NatsPy, bucket: ObjectStore, name: str, content: bytes) -> bool:
    try:
        put(client, bucket, name, content)
    except Exception:  # nobody leads the stream at the moment
        return False
    return True


def read_names(server: Server, bucket: str) -> list[str]:
    return [row["name"] for row in read(server, StructType().add("name", StringType()), objectStore=bucket)]


@pytest.mark.long("spark_nats/kinds/objects/*")
def test_spark_copies_the_objects_of_one_store_to_another_one_as_they_change(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, store: ObjectStore, tmp_path: Path
) -> None:
    copy = make(nats_py, f"{unique}_copy")
    source = nats(spark.readStream, nats_server, objectStore=unique, startingOffsets="earliest")
    rows = source.schema("name STRING, headers MAP<STRING, ARRAY<STRING>>, deleted BOOLEAN, content BINARY").load()
    sink = nats(rows.where("deleted OR content IS NOT NULL").writeStream, nats_server, objectStore=f"{unique}_copy")
    sink = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    for content in (b"1" * 200_000, b"2" * 300_000):
        put(nats_py, store, "a", content, headers={"kind": ["x"]})
        finish(sink.start())
        assert nats_py.run(copy.get("a")).data == content
    nats_py.run(store.delete("a"))
    finish(sink.start())
    assert read_names(nats_server, f"{unique}_copy") == []
