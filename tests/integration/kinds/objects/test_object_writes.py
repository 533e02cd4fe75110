"""Writing object stores, with nats-py's object store as the other side."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nats.js.api import ObjectLink
from nats.js.object_store import ObjectStore
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_nats.client.pool import borrow
from spark_nats.errors import InvalidRowError, NatsConnectionError, NatsError, PublishError, SchemaError
from spark_nats.jetstream.api import JetStream
from spark_nats.kinds.objects.store import Putting
from spark_nats.kinds.objects.wire import CHUNK_BYTES, ObjectInfo, chunks_of
from tests.integration.kinds.objects.test_objects import CONTENT, INFO, contents, make, put, subject_of
from tests.integration.support import finish, nats, read, run_nats, source, write
from tests.nats_py import NatsPy
from tests.servers import OLDER_BINARY, Server, ServerFactory

pytestmark = pytest.mark.timeout(150)

HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
WORDS = pa.map_(pa.string(), pa.string())
LINK = pa.struct({"bucket": pa.string(), "name": pa.string()})


def write_objects(server: Server | str, bucket: str, objects: dict[str, bytes], **options: Any) -> None:
    columns = {"name": pa.array(list(objects), pa.string()), "content": pa.array(list(objects.values()), pa.binary())}
    write(server, pa.table(columns), objectStore=bucket, **options)


def stored(client: NatsPy, store: ObjectStore, name: str) -> bytes:
    """What nats-py reads of an object; it compares the digest."""
    return bytes(client.run(store.get(name)).data or b"")


def chunk_subjects(client: NatsPy, bucket: str) -> set[str]:
    return {each.subject for each in client.read_stream(f"OBJ_{bucket}") if ".C." in each.subject}


def test_rows_are_objects_that_other_clients_read(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    content = bytes(range(256)) * 4 * 256  # two chunks, and nothing more
    objects = {"a": b"one", "empty": b"", "two chunks": content, "a/b c *.> ünïcödé 𝄞": content + b"!"}
    write_objects(nats_server, unique, objects)
    assert {name: stored(nats_py, store, name) for name in objects} == objects
    assert contents(nats_server, unique) == objects
    info = nats_py.run(store.get_info("two chunks"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    assert (info.bucket, info.size, info.chunks) == (unique, len(content), 2)
    assert info.digest == f"SHA-256={digest}"
    assert info.options.max_chunk_size == CHUNK_BYTES


def test_an_object_has_the_description_headers_and_metadata_of_its_row(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, unique)
    rows = pa.table(
        {
            "name": ["a", "b"],
            "content": ["text", "ünïcödé"],
            "description": ["one", None],
            "headers": pa.array([[("kind", ["x", "y"])], None], HEADERS),
            "metadata": pa.array([[("owner", "me")], None], WORDS),
        }
    )
    write(nats_server, rows, objectStore=unique)
    a, b = sorted(read(nats_server, INFO, objectStore=unique), key=lambda row: str(row["name"]))
    assert (a["description"], dict(a["headers"]), dict(a["metadata"])) == ("one", {"kind": ["x", "y"]}, {"owner": "me"})
    assert (b["description"], dict(b["headers"]), dict(b["metadata"])) == (None, {}, {})
    assert contents(nats_server, unique)["b"] == "ünïcödé".encode()
    document = json.loads(
        nats_py.run(nats_py.nats.jetstream().get_last_msg(f"OBJ_{unique}", subject_of(unique, "a"))).data
    )
    assert document["headers"] == {"kind": ["x", "y"]}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=2000), size=st.integers(1, 700))
def test_chunks_are_all_of_the_content_and_none_is_empty_or_larger_than_they_may(content: bytes, size: int) -> None:
    chunks = chunks_of(content, size)
    assert b"".join(chunks) == content
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(0 < len(chunk) <= size for chunk in chunks)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_an_object_of_about_n_chunks_is_read_back(
    nats_server: Server, nats_py: NatsPy, unique: str, extra: int
) -> None:
    store = make(nats_py, unique)
    content = bytes(i % 251 for i in range(17 * CHUNK_BYTES + extra))
    write_objects(nats_server, unique, {"a": content})
    assert nats_py.run(store.get_info("a")).chunks == 17 + (extra > 0)
    assert stored(nats_py, store, "a") == content


def test_a_replaced_object_leaves_no_chunks_behind(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"from nats-py" * 1000)
    put(nats_py, store, "b", b"stays")
    for content in (b"first" * 100_000, b"second", b"second", b""):
        write_objects(nats_server, unique, {"a": content})
        assert contents(nats_server, unique) == {"a": content, "b": b"stays"}
        assert len(chunk_subjects(nats_py, unique)) == 1 + bool(content)
    put(nats_py, store, "a", b"from nats-py again")
    assert contents(nats_server, unique)["a"] == b"from nats-py again"
    assert len(chunk_subjects(nats_py, unique)) == 2


def delete(server: Server | str, bucket: str, *names: str) -> None:
    nothing = pa.nulls(len(names), pa.binary())
    write(server, pa.table({"name": names, "content": nothing, "deleted": [True] * len(names)}), objectStore=bucket)


def test_a_row_deletes_an_object_and_its_chunks(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    write_objects(nats_server, unique, {"a": b"1" * 300_000, "b": b"2"})
    put(nats_py, store, "theirs", b"3" * 3000)
    delete(nats_server, unique, "a", "theirs", "never there")
    assert contents(nats_server, unique) == {"b": b"2"}
    assert [each.name for each in nats_py.run(store.list(ignore_deletes=True))] == ["b"]
    assert len(chunk_subjects(nats_py, unique)) == 1
    last = nats_py.stream_info(f"OBJ_{unique}")["state"]["last_seq"]
    delete(nats_server, unique, "a", "theirs")  # a replay
    assert nats_py.stream_info(f"OBJ_{unique}")["state"]["last_seq"] == last


def test_a_row_without_content_may_be_a_link(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store, other = make(nats_py, unique), make(nats_py, f"{unique}_2")
    put(nats_py, other, "far", b"far away")
    links = [
        {"bucket": unique, "name": "a"},
        {"bucket": f"{unique}_2", "name": "far"},
        {"bucket": unique, "name": None},
    ]
    columns = {
        "name": ["a", "near", "there", "store"],
        "content": pa.array([b"1", None, None, None], pa.binary()),
        "link": pa.array([None, *links], LINK),
    }
    write(nats_server, pa.table(columns), objectStore=unique)
    assert contents(nats_server, unique) == {"a": b"1", "near": b"1", "there": b"far away", "store": None}
    rows = {row["name"]: row["link"] for row in read(nats_server, INFO, objectStore=unique)}
    assert rows == dict(zip(columns["name"], [None, *links], strict=True))
    linked = nats_py.run(store.get_info("there"))
    assert linked.options.link == ObjectLink(f"{unique}_2", "far")


def test_the_command_line_of_nats_follows_what_rows_have_done(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, unique)
    write_objects(nats_server, unique, {"a": b"1" * 300_000, "b": b"2"})
    columns = {"name": ["l"], "content": pa.nulls(1, pa.binary()), "link": pa.array([{"bucket": unique, "name": "a"}])}
    write(nats_server, pa.table(columns), objectStore=unique)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "l"):
            run_nats(nats_server, "object", "get", unique, name, "-O", f"{folder}/{name}", "--no-progress")
            assert Path(folder, name).read_bytes() == b"1" * 300_000
    delete(nats_server, unique, "b")
    assert " b " not in run_nats(nats_server, "object", "ls", unique)


def test_an_object_that_was_deleted_is_put_again(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"x")
    nats_py.run(store.delete("a"))
    write_objects(nats_server, unique, {"a": b"y"})
    assert stored(nats_py, store, "a") == b"y"


def test_what_a_failed_attempt_has_stored_is_cleared_away_by_the_next(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(nats_py, unique)
    put(nats_py, store, "a", b"former" * 1000)
    putting = Putting(unique, ObjectInfo("a"), b"x" * 40 * CHUNK_BYTES)
    connection_options = source(nats_server, objectStore=unique)._settings.connection
    with pytest.raises(NatsConnectionError), borrow(connection_options) as connection:
        sent = []
        request_all = connection.request_all

        def torn(requests: Any, *how: Any, **expected: Any) -> Any:
            sent.append(requests)
            if len(sent) == 4:
                connection.close()
            return request_all(requests, *how, **expected)

        monkeypatch.setattr(connection, "request_all", torn)
        putting.put(JetStream(connection))
    assert len(chunk_subjects(nats_py, unique)) == 2
    assert stored(nats_py, store, "a") == b"former" * 1000
    with borrow(connection_options) as connection:
        putting.put(JetStream(connection))
    assert len(chunk_subjects(nats_py, unique)) == 1
    assert stored(nats_py, store, "a") == b"x" * 40 * CHUNK_BYTES


def test_a_deletion_that_is_tried_again_purges_the_chunks_too(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(nats_py, make(nats_py, unique), "a", b"x" * 2 * CHUNK_BYTES)
    deletion = Putting(unique, ObjectInfo("a", deleted=True), None)
    connection_options = source(nats_server, objectStore=unique)._settings.connection

    def torn(putting: Putting, js: JetStream, nuid: str) -> None:
        raise NatsConnectionError("lost before the purge")

    with (
        monkeypatch.context() as lost,
        pytest.raises(NatsConnectionError),
        borrow(connection_options) as connection,
    ):
        lost.setattr(Putting, "_purge_chunks", torn)
        deletion.put(JetStream(connection))
    assert len(chunk_subjects(nats_py, unique)) == 1
    with borrow(connection_options) as connection:
        deletion.put(JetStream(connection))
    assert chunk_subjects(nats_py, unique) == set()


def test_a_store_is_made_where_the_option_says_so(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with pytest.raises(NatsError, match=f"the object store '{unique}' does not exist"):
        write_objects(nats_server, unique, {"a": b"x"})
    config = '{"max_bytes": 1000000, "description": "ours", "storage": "memory"}'
    for content in (b"x", b"y"):
        write_objects(nats_server, unique, {"a": content}, createObjectStore=config)
    store = nats_py.run(nats_py.nats.jetstream().object_store(unique))
    assert stored(nats_py, store, "a") == b"y"
    made = nats_py.stream_info(f"OBJ_{unique}")["config"]
    assert (made["max_bytes"], made["description"], made["storage"]) == (1_000_000, "ours", "memory")
    reference = make(nats_py, f"{unique}_2")
    theirs = nats_py.stream_info(reference._stream)["config"]
    assert {name for name in ("allow_rollup_hdrs", "discard", "allow_direct") if made[name] != theirs[name]} == set()


def test_what_was_read_can_be_written(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    put(nats_py, make(nats_py, unique), "a", b"content", description="d", headers={"k": ["v"]})
    copy = make(nats_py, f"{unique}_copy")
    reader = source(nats_server, objectStore=unique).reader(StructType([*INFO.fields, CONTENT["content"]]))
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    write(nats_server, pa.Table.from_batches(batches), objectStore=f"{unique}_copy")
    assert stored(nats_py, copy, "a") == b"content"
    assert nats_py.run(copy.get_info("a")).description == "d"


def test_an_older_server_takes_objects_too(server_factory: ServerFactory) -> None:
    server = server_factory(binary=OLDER_BINARY)
    write_objects(server, "S", {"a": b"x" * 5000}, createObjectStore=True)
    assert contents(server, "S") == {"a": b"x" * 5000}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"name": ["a"]}, "the column 'content' .BINARY or STRING. is missing"),
        ({"content": [b"a"]}, "the column 'name' .STRING. is missing"),
        ({"name": [1], "content": [b"a"]}, "column 'name' must be STRING, not BIGINT"),
        (
            {"name": ["a"], "content": [b"a"], "payload": [b"a"]},
            "column 'payload' cannot be written to an object store",
        ),
        ({"name": ["a"], "content": [b"a"], "size": ["a"]}, "column 'size' cannot be written.* it is STRING"),
    ],
)
def test_columns_that_an_object_cannot_have_are_an_error(
    nats_server: Server, columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        write(nats_server, pa.table(columns), objectStore="A")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": None}, "its name is null or empty"),
        ({"name": ""}, "its name is null or empty"),
        ({"name": "x" * 2049}, "its name has more than 2048 bytes"),
        ({"content": None}, "'a' cannot be put: its content is null, and it is no link"),
        ({"deleted": True}, "'a' cannot be put: it is to be deleted, but its content is not null"),
        (
            {"content": None, "link": {"bucket": "a b", "name": "x"}},
            "the object store 'a b', which is no name",
        ),
        ({"content": None, "link": {"bucket": None, "name": "x"}}, "the object store None, which is no name"),
        ({"headers": [("k", [None])]}, "its header 'k' has a value that is null"),
        ({"metadata": [("k", None)]}, "its metadata 'k' is null"),
        ({"description": "x" * 1_100_000}, "its description and headers take .* max_payload is"),
    ],
)
def test_a_row_that_cannot_be_an_object_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str, row: dict[str, Any], words: str
) -> None:
    make(nats_py, unique)
    types = {"name": pa.string(), "content": pa.binary(), "description": pa.string(), "headers": HEADERS}
    types |= {"metadata": WORDS, "deleted": pa.bool_(), "link": LINK}
    whole = {"name": "a", "content": b"x", **row}
    table = pa.table({name: pa.array([value], types[name]) for name, value in whole.items()})
    with pytest.raises(InvalidRowError, match=words):
        write(nats_server, table, objectStore=unique)
    assert nats_py.held(f"OBJ_{unique}") == 0


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_a_longest_name_is_taken_which_is_counted_in_bytes(
    nats_server: Server, nats_py: NatsPy, unique: str, letter: str
) -> None:
    store = make(nats_py, unique)
    name = letter * (2048 // len(letter.encode()))
    write_objects(nats_server, unique, {name: b"content"})
    assert stored(nats_py, store, name) == b"content"
    with pytest.raises(InvalidRowError, match="its name has more than 2048 bytes"):
        write_objects(nats_server, unique, {name + letter: b"content"})


def test_chunks_are_no_larger_than_what_the_server_takes(server_factory: ServerFactory) -> None:
    server = server_factory("max_payload: 64KB")
    with NatsPy(server.url) as client:
        store = make(client, "S")
        write_objects(server, "S", {"a": bytes(range(256)) * 1000})
        assert stored(client, store, "a") == bytes(range(256)) * 1000


def test_a_sealed_store_and_a_full_one_say_why_they_take_nothing(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    write_objects(nats_server, unique, {"a": b"x"}, createObjectStore='{"max_bytes": 300000}')
    with pytest.raises(PublishError, match=f"'{unique}' does not take the object 'b': maximum bytes exceeded"):
        write_objects(nats_server, unique, {"b": b"x" * 3 * CHUNK_BYTES})
    assert len(chunk_subjects(nats_py, unique)) == 1
    nats_py.run(nats_py.run(nats_py.nats.jetstream().object_store(unique)).seal())
    with pytest.raises(PublishError, match=f"'{unique}' does not take the object 'c': .*sealed"):
        write_objects(nats_server, unique, {"c": b"x"})
    assert contents(nats_server, unique) == {"a": b"x"}


@pytest.mark.long("spark_nats/kinds/objects/*")
def test_spark_writes_objects_in_a_batch_and_in_streaming(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    rows = spark.range(5).selectExpr("concat('o/', id) AS name", "repeat(string(id), 100000) AS content")
    target = nats(rows.repartition(2).write, nats_server, objectStore=unique, createObjectStore=True)
    target.mode("append").save()
    store = nats_py.run(nats_py.nats.jetstream().object_store(unique))
    expected = {f"o/{i}": str(i).encode() * 100_000 for i in range(5)}
    assert {name: stored(nats_py, store, name) for name in expected} == expected

    rows.selectExpr("name", "concat(content, '!') AS content").write.parquet(str(tmp_path / "in"))
    changes = spark.readStream.schema("name STRING, content STRING").parquet(str(tmp_path / "in"))
    for run in ("1", "2"):  # the second query puts all of it again
        sink = nats(changes.writeStream, nats_server, objectStore=unique, checkpointLocation=str(tmp_path / run))
        finish(sink.trigger(availableNow=True).start())
        assert contents(nats_server, unique) == {name: content + b"!" for name, content in expected.items()}
        assert len(chunk_subjects(nats_py, unique)) == 5
