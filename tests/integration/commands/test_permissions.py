"""What a user must be allowed to do: the permissions that docs/login.md lists, all of them and no more."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_nats.errors import PermissionsError, PublishError
from spark_nats.kinds.queries import parse_read_options, parse_write_options
from spark_nats.kinds.streams.read.readers import NatsStreamReader
from spark_nats.kinds.streams.write.writers import NatsWriter
from tests.certificates import Certificates
from tests.integration.support import (
    PAYLOAD,
    SEQUENCE,
    Query,
    error_of,
    finish,
    read,
    read_payloads,
    run_task,
    sentence_of,
    sequences_of,
    stream_reader,
    write,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, ServerFactory, free_ports

pytestmark = pytest.mark.timeout(150)

PAGE = Path(__file__).parents[3] / "docs" / "login.md"
INBOX = "_INBOX_spark.>"
READ = [
    "$JS.API.STREAM.INFO.ORDERS",
    "$JS.API.CONSUMER.CREATE.ORDERS.*",
    "$JS.API.CONSUMER.MSG.NEXT.ORDERS.*",
    "$JS.API.CONSUMER.DELETE.ORDERS.*",
    "$JS.API.STREAM.MSG.GET.ORDERS",
]
SMALL = ["$JS.API.DIRECT.GET.ORDERS"]
MOVE = ["$JS.API.CONSUMER.RESET.ORDERS.*"]
MATCH = ["$JS.API.STREAM.NAMES"]
BEGIN = ["$JS.API.CONSUMER.INFO.ORDERS.billing"]
PROGRESS = ["$JS.API.CONSUMER.INFO.ORDERS.lag", "$JS.API.CONSUMER.RESET.ORDERS.lag"]
CONSUME = ["$JS.API.CONSUMER.INFO.ORDERS.*", *MOVE]
CONSUME_QUEUE = [
    "$JS.API.STREAM.INFO.ORDERS",
    "$JS.API.CONSUMER.INFO.ORDERS.*",
    "$JS.API.CONSUMER.CREATE.ORDERS.*",
    "$JS.API.DIRECT.GET.ORDERS",
    "$JS.API.STREAM.MSG.GET.ORDERS",
    "$JS.API.STREAM.PURGE.ORDERS",
]
SHARE = ["$JS.API.CONSUMER.LIST.ORDERS"]
PEEK = ["$JS.API.STREAM.INFO.ORDERS", "$JS.API.DIRECT.GET.ORDERS", "$JS.API.STREAM.MSG.GET.ORDERS"]
WRITE = ["$JS.API.STREAM.INFO.ORDERS", "orders.>"]
READ_BACK = READ[1:]
STATE = [
    "$JS.API.STREAM.INFO.KV_SPARK_NATS",
    "$JS.API.STREAM.MSG.GET.KV_SPARK_NATS",
    "$KV.SPARK_NATS.>",
    "$JS.API.STREAM.CREATE.KV_SPARK_NATS",
]
BAD_ROWS = ["$JS.API.STREAM.INFO.BAD", "bad.>"]
READ_BACK_BAD_ROWS = [subject.replace("ORDERS", "BAD") for subject in READ_BACK]
CREATE = ["$JS.API.STREAM.CREATE.ORDERS"]
READ_BUCKET = [subject.replace("ORDERS", "KV_CONFIG") for subject in READ]
WRITE_BUCKET = ["$JS.API.STREAM.INFO.KV_CONFIG", "$KV.CONFIG.>"]
COMPARE_AND_SET = ["$JS.API.STREAM.MSG.GET.KV_CONFIG"]
CREATE_BUCKET = ["$JS.API.STREAM.CREATE.KV_CONFIG"]
STREAMS_TABLE = ["$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST"]
CONSUMERS_TABLE = ["$JS.API.STREAM.NAMES", "$JS.API.CONSUMER.LIST.*"]
SUBJECTS_TABLE = ["$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*"]
READ_OBJECTS = ["$JS.API.STREAM.INFO.OBJ_ASSETS", "$JS.API.STREAM.MSG.GET.OBJ_ASSETS"]
READ_CONTENT = [subject.replace("ORDERS", "OBJ_ASSETS") for subject in READ if "CONSUMER" in subject]
WRITE_OBJECTS = [*READ_OBJECTS, "$O.ASSETS.>", "$JS.API.STREAM.PURGE.OBJ_ASSETS"]
CREATE_OBJECT_STORE = ["$JS.API.STREAM.CREATE.OBJ_ASSETS"]
KEY = StructType().add("key", StringType())
LISTEN = '{"subjects": ["orders.>"]}'


def user(name: str, publish: list[str], subscribe: tuple[str, ...] = (INBOX,)) -> str:
    """A user who may do this and nothing else."""
    permissions = {"publish": {"allow": publish}, "subscribe": {"allow": list(subscribe)}}
    return json.dumps({"user": name, "password": "pw", "permissions": permissions})


def users(*given: str) -> str:
    admin = '{"user": "admin", "password": "pw"}'
    return f"authorization {{ users: [ {', '.join([admin, *given])} ] }}"


def login(name: str) -> dict[str, str]:
    return {"user": name, "password": "pw", "inboxPrefix": "_INBOX_spark"}


def test_the_documentation_lists_these_permissions() -> None:
    section = PAGE.read_text().split("## Permissions")[1].split("\n## ")[0]
    listed = [cell for line in section.splitlines() if line.startswith("| ") for cell in line.split("`")[1::2]]
    reading = [*READ, *SMALL, *MOVE, *BEGIN, *PROGRESS, *CONSUME, *CONSUME_QUEUE, *SHARE, *PEEK]
    assert [subject for subject in listed if "ORDERS" in subject] == [*reading, WRITE[0], *READ_BACK, *CREATE]
    assert [subject for subject in listed if "SPARK_NATS" in subject] == STATE
    bad = [subject for subject in listed if "BAD" in subject.split(".")[1:] or subject.startswith("bad.")]
    assert bad == [*BAD_ROWS, *READ_BACK_BAD_ROWS]
    buckets = [*READ_BUCKET, *WRITE_BUCKET, *COMPARE_AND_SET, *CREATE_BUCKET]
    assert [subject for subject in listed if "CONFIG" in subject.split(".")[1:2] or "KV_CONFIG" in subject] == buckets
    objects = [*READ_OBJECTS, *READ_CONTENT, *WRITE_OBJECTS, *CREATE_OBJECT_STORE]
    assert [subject for subject in listed if subject.startswith("$") and "ASSETS" in subject] == objects
    rows = [line for line in section.splitlines() if re.match(r"\| .* the tables? `", line)]
    tables = [line.split("|")[2].split("`")[1::2] for line in rows]
    assert tables == [STREAMS_TABLE, CONSUMERS_TABLE, SUBJECTS_TABLE]


@pytest.mark.needs("direct batches")
def test_small_partitions_are_read_with_one_permission_more_and_no_consumer(server_factory: ServerFactory) -> None:
    server = server_factory(users(user("reader", [READ[0], *SMALL])))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"], allow_direct=True)
        client.publish_acked([("orders.x", b"1"), ("orders.y", b"2")])
    assert read_payloads(server, stream="ORDERS", **login("reader")) == [b"1", b"2"]


def test_object_stores_are_read_with_exactly_these_permissions(server_factory: ServerFactory) -> None:
    server = server_factory(
        users(user("lister", READ_OBJECTS), user("reader", READ_OBJECTS + READ_CONTENT), user("nobody", ["x"]))
    )
    with NatsPy(server.url, user="admin", password="pw") as client:
        store = client.run(client.nats.jetstream().create_object_store("ASSETS"))
        client.run(store.put("a", b"x" * 200_000))
    name = StructType().add("name", StringType())
    content = StructType().add("content", BinaryType())
    assert read(server, name, objectStore="ASSETS", **login("lister")) == [{"name": "a"}]
    assert read(server, content, objectStore="ASSETS", **login("reader")) == [{"content": b"x" * 200_000}]
    with pytest.raises(PermissionsError, match=r"CONSUMER\.CREATE\.OBJ_ASSETS"):
        read(server, content, objectStore="ASSETS", **login("lister"))
    with pytest.raises(PermissionsError, match=r"STREAM\.INFO\.OBJ_ASSETS"):
        read(server, name, objectStore="ASSETS", **login("nobody"))


def test_object_stores_are_made_and_written_with_exactly_these_permissions(server_factory: ServerFactory) -> None:
    without_purge = [subject for subject in WRITE_OBJECTS if "PURGE" not in subject]
    server = server_factory(
        users(
            user("creator", WRITE_OBJECTS + CREATE_OBJECT_STORE),
            user("writer", WRITE_OBJECTS),
            user("adder", without_purge),
            user("reader", READ_OBJECTS + READ_CONTENT),
        )
    )

    def put(who: str, name: str, **options: Any) -> None:
        write(server, pa.table({"name": [name], "content": [who]}), objectStore="ASSETS", **login(who), **options)

    put("creator", "a", createObjectStore=True)
    put("writer", "a")
    put("adder", "b")
    content = StructType().add("name", StringType()).add("content", BinaryType())
    rows = read(server, content, objectStore="ASSETS", **login("reader"))
    assert sorted((row["name"], row["content"]) for row in rows) == [("a", b"writer"), ("b", b"adder")]
    with pytest.raises(PermissionsError, match=r"STREAM\.PURGE\.OBJ_ASSETS"):
        put("adder", "a")
    with pytest.raises(PermissionsError, match=r"\$O\.ASSETS\.C"):
        put("reader", "c")


def test_streams_are_made_written_and_read_with_exactly_these_permissions(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory(
        users(
            user("creator", WRITE + CREATE),
            user("writer", WRITE),
            user("settler", WRITE + STATE + READ_BACK),
            user("reader", READ),
        )
    )

    def options(name: str, **more: Any) -> dict[str, Any]:
        return {"servers": server.url, "stream": "ORDERS", **login(name), **more}

    rows = spark.range(10).selectExpr("concat('orders.', id % 2) AS subject", "string(id) AS payload")
    rows.write.format("nats").options(**options("creator", createStream=LISTEN)).mode("append").save()
    rows.write.format("nats").options(**options("writer")).mode("append").save()
    assert spark.read.format("nats").options(**options("reader")).load().count() == 20
    assert spark.read.format("nats").options(**options("reader", subject="orders.1")).load().count() == 10

    source = spark.readStream.format("nats").options(
        **options("reader", subject="orders.1", startingTimestamp="0", maxOffsetsPerTrigger=4)
    )
    sink = source.load().selectExpr("'orders.copy' AS subject", "payload").writeStream.format("nats")
    sink = sink.options(**options("settler", checkpointLocation=str(tmp_path / "1"))).trigger(availableNow=True)
    finish(sink.start())
    assert spark.read.format("nats").options(**options("reader")).load().count() == 30


def read_as(url: str, name: str, which: tuple[str, str] = ("stream", "ORDERS")) -> None:
    """Everything that a streaming read does, in this process."""
    beginning = {
        "subject": "orders.x",
        "startingTimestamp": "0",
        "maxOffsetsPerTrigger": "1",
        "maxBytesPerTrigger": "1",
    }
    options = parse_read_options({"servers": url, **dict([which]), **login(name), **beginning}, streaming=True)
    reader = NatsStreamReader(options, StructType().add("payload", BinaryType()))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    rows = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in rows) == 1


def read_matches_as(url: str, name: str) -> None:
    """Everything that a streaming read of all streams with such names does."""
    read_as(url, name, ("streamPattern", "ORD.*"))


def consume_as(url: str, name: str) -> None:
    """Everything that a streaming read does which consumes: the last of it is to release."""
    options = {"stream": "ORDERS", **login(name), "subject": "orders.x", "retryTimeout": "0s"}
    reader = stream_reader(url, PAYLOAD, consume=True, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    rows = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in rows) >= 1
    reader.commit(end)


def peek_as(url: str, name: str) -> None:
    """Everything that a batch does which peeks: the stream ends with another subject, so its leader has to be asked."""
    assert read_payloads(url, stream="ORDERS", subject="orders.x", peek=True, **login(name))


def read_bucket_as(url: str, name: str, create: str = "false") -> None:
    """Everything that a batch and a streaming read of a bucket do."""
    options = {"bucket": "CONFIG", "keys": "a", "createBucket": create, **login(name)}
    assert [row["key"] for row in read(url, KEY, **options)] in (["a"], [])
    query = Query(stream_reader(url, KEY, startingOffsets="earliest", maxOffsetsPerTrigger=1, **options))
    assert [row["key"] for row in query.micro_batch()] in (["a"], [])


def write_bucket_as(url: str, name: str, **options: Any) -> None:
    """Everything that a task does to write to a bucket: one row is put, one is to be created and exists."""
    rows = pa.table({"key": ["w", "a"], "value": ["1", "2"], "expected_revision": pa.array([None, 0], pa.int64())})
    write(url, rows, bucket="CONFIG", onConflict="skip", **login(name), **options)


def write_as(url: str, name: str, create: str = "false") -> None:
    """Everything that a task does to write."""
    options = parse_write_options(
        {"servers": url, "stream": "ORDERS", **login(name), "createStream": create}, streaming=False
    )
    rows = pa.RecordBatch.from_pydict({"subject": ["orders.x"], "payload": [b"1"]})
    NatsWriter(options).write(iter([rows]))


def set_aside_as(url: str, name: str, **options: Any) -> None:
    rows = pa.table({"subject": ["orders.x", "or ders"], "payload": [b"1", b"2"]})
    write(url, rows, stream="ORDERS", badRows="stream", badRowsStream="BAD", **login(name), **options)


def read_table_as(table: str, url: str, name: str) -> None:
    """Everything that a read of a table of what the account holds does."""
    column = {"consumers": "stream", "subjects": "stream", "buckets": "bucket"}.get(table, "name")
    assert read(url, StructType().add(column, StringType()), table=table, **login(name))


WORK_QUEUE = {"retention": "workqueue", "allow_direct": True}


@pytest.mark.needs("interest streams", only="consuming")
@pytest.mark.needs("interest streams", only="following")
@pytest.mark.needs("work queues", only="consuming a work queue")
@pytest.mark.needs("work queues", only="peeking at one")
@pytest.mark.parametrize(
    ("needed", "act", "config"),
    [
        (READ, read_as, {}),
        (READ, read_as, {"allow_direct": True}),
        (READ + MATCH, read_matches_as, {}),
        (READ + CONSUME, consume_as, {}),
        (READ + CONSUME, consume_as, {"retention": "interest"}),
        (CONSUME_QUEUE, consume_as, WORK_QUEUE),
        (PEEK, peek_as, WORK_QUEUE),
        (WRITE, write_as, {}),
        (WRITE + BAD_ROWS, set_aside_as, {}),
        (READ_BUCKET, read_bucket_as, {}),
        (WRITE_BUCKET + COMPARE_AND_SET, write_bucket_as, {}),
        (STREAMS_TABLE, partial(read_table_as, "streams"), {}),
        (STREAMS_TABLE, partial(read_table_as, "buckets"), {}),
        (CONSUMERS_TABLE, partial(read_table_as, "consumers"), {"retention": "interest"}),
        (SUBJECTS_TABLE, partial(read_table_as, "subjects"), {}),
    ],
    ids=[
        "reading",
        "reading what others may get directly",
        "reading what matches",
        "following",
        "consuming",
        "consuming a work queue",
        "peeking at one",
        "writing",
        "setting rows aside",
        "reading a bucket",
        "writing a bucket",
        "the table of streams",
        "the table of buckets",
        "the table of consumers",
        "the table of subjects",
    ],
)
def test_each_of_these_permissions_is_needed_and_named_when_it_is_missing(
    server_factory: ServerFactory, needed: list[str], act: Callable[[str, str], None], config: dict[str, Any]
) -> None:
    lacking = [user(f"u{i}", needed[:i] + needed[i + 1 :]) for i in range(len(needed))]
    server = server_factory(users(user("all", needed), user("deaf", needed, ("nothing",)), *lacking))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"], **config)
        if config.get("retention") == "interest":  # so that it keeps what comes before the first query
            others = {"durable_name": "others", "ack_policy": "explicit"}
            client.api("CONSUMER.DURABLE.CREATE.ORDERS.others", {"stream_name": "ORDERS", "config": others})
        client.create_stream("BAD", ["bad.>"])
        client.create_stream("KV_CONFIG", ["$KV.CONFIG.>"], max_msgs_per_subject=1)
        published = [("orders.x", b"1"), ("orders.y", b"2"), ("$KV.CONFIG.a", b"1"), ("$KV.CONFIG.b", b"2")]
        client.publish_acked(published)
        act(server.url, "all")
        for i, missing in enumerate(needed):
            client.publish_acked(published)
            with pytest.raises((PermissionsError, PublishError)) as raised:
                act(server.url, f"u{i}")
            subject = missing.rstrip("*>")
            assert f'Permissions Violation for Publish to "{subject}' in str(raised.value)
    with pytest.raises(PermissionsError, match='Permissions Violation for Subscription to "_INBOX_spark.'):
        act(server.url, "deaf")


@pytest.mark.parametrize("config", [{}, {"allow_direct": True}], ids=["", "direct gets"])
def test_a_bucket_is_read_at_one_moment_with_the_permissions_of_any_read(
    server_factory: ServerFactory, config: dict[str, Any]
) -> None:
    server = server_factory(users(user("reader", READ_BUCKET), user("blind", READ_BUCKET[1:])))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("KV_CONFIG", ["$KV.CONFIG.>"], max_msgs_per_subject=5, **config)
        client.publish_acked([(f"$KV.CONFIG.{key}", b"") for key in "abab"])
        for moment, keys in (("latest", ["a", "b"]), ("2", ["a", "b"]), ("1", ["a"])):
            found = read(server.url, KEY, bucket="CONFIG", asOf=moment, **login("reader"))
            assert sorted(row["key"] for row in found) == keys
            with pytest.raises(PermissionsError, match=r"STREAM\.INFO\.KV_CONFIG"):
                read(server.url, KEY, bucket="CONFIG", asOf=moment, **login("blind"))


def test_bad_rows_are_read_back_with_exactly_these_permissions(server_factory: ServerFactory) -> None:
    needed = WRITE + STATE + READ_BACK + BAD_ROWS + READ_BACK_BAD_ROWS
    server = server_factory(users(user("settler", needed), user("blind", [*needed[:-1]])))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.create_stream("BAD", ["bad.>"])
        rows = pa.table({"subject": ["orders.x", "or ders"], "payload": [b"1", b"2"]})
        options = {"stream": "ORDERS", "badRows": "stream", "badRowsStream": "BAD"}
        for _ in range(2):
            assert run_task(server.url, rows, **options, **login("settler")).counts.bad == 1
        assert client.held("BAD") == 1
        with pytest.raises(PermissionsError, match="could not be read back from stream .BAD."):
            run_task(server.url, rows, **options, **login("blind"))


@pytest.mark.needs("several held subjects", only="needed0")
@pytest.mark.needs("work queues", only="needed1")
@pytest.mark.parametrize(("needed", "retention"), [(READ + CONSUME, "interest"), (CONSUME_QUEUE, "workqueue")])
def test_streams_are_consumed_through_tls_with_exactly_these_permissions(
    server_factory: ServerFactory, tmp_path: Path, needed: list[str], retention: str
) -> None:
    certificates = Certificates(tmp_path)
    server = server_factory(f"{certificates.config()}\n{users(user('all', needed))}")
    url = server.url.replace("nats://", "tls://")
    options = {**login("all"), "tlsCaFile": certificates.ca, "subject": "orders.x,orders.y", "minPartitions": 2}
    trust = ssl.create_default_context(cafile=certificates.ca)
    with NatsPy(url, user="admin", password="pw", tls=trust) as client:
        client.create_stream("ORDERS", ["orders.>"], retention=retention, allow_direct=True)
        query = Query(stream_reader(url, PAYLOAD, stream="ORDERS", consume=True, **options))
        sent = [b"%d" % i for i in range(3000)]
        client.publish_acked((f"orders.{'xy'[i % 2]}", payload) for i, payload in enumerate(sent))
        assert sorted(row["payload"] for row in query.rows(3000)) == sorted(sent)
        assert client.held("ORDERS") == 0


@pytest.mark.needs("work queues")
def test_a_consumer_that_stands_in_the_way_is_not_named_to_whom_may_not_list_consumers(
    server_factory: ServerFactory,
) -> None:
    server = server_factory(users(user("all", CONSUME_QUEUE)))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"], **WORK_QUEUE)
        config = {"durable_name": "billing", "ack_policy": "explicit"}
        client.api("CONSUMER.DURABLE.CREATE.ORDERS.billing", {"stream_name": "ORDERS", "config": config})
        error = sentence_of(lambda: consume_as(server.url, "all"))
        assert error.startswith("ConsumerConflictError: ")
        assert "orders.x belong to another one (" in error


def test_beginning_where_a_consumer_is_needs_one_permission_more(server_factory: ServerFactory) -> None:
    server = server_factory(users(user("reads", READ), user("begins", READ + BEGIN)))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.store("orders.x", range(3))
        begin = {"durable_name": "billing", "deliver_policy": "by_start_sequence", "opt_start_seq": 3}
        requested = {"stream_name": "ORDERS", "config": {**begin, "ack_policy": "explicit"}}
        client.api("CONSUMER.DURABLE.CREATE.ORDERS.billing", requested)
    given = {"stream": "ORDERS", "startingOffsets": '{"ORDERS": "consumer:billing"}'}
    assert [row["sequence"] for row in read(server, SEQUENCE, **given, **login("begins"))] == [3]
    with pytest.raises(PermissionsError, match=re.escape(BEGIN[0])):
        read(server, SEQUENCE, **given, **login("reads"))


@pytest.mark.needs("progress")
def test_showing_progress_needs_two_permissions_more(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    names = (user("shows", READ + PROGRESS), user("blind", READ), user("stays", READ + PROGRESS[:1]))
    server = server_factory(users(*names))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.store("orders.a", range(3))
        options = {"stream": "ORDERS", "startingOffsets": "earliest", "progressConsumer": "lag"}
        with pytest.raises(PermissionsError, match=r"CONSUMER\.INFO\.ORDERS\.lag"):
            Query(stream_reader(server, **options, **login("blind")))
        for name, floor in (("stays", 0), ("shows", 3)):
            query = Query(stream_reader(server, **options, **login(name)))
            query.rows(3)
            query.micro_batch()
            assert client.api("CONSUMER.INFO.ORDERS.lag")["ack_floor"]["stream_seq"] == floor
        said = [record.getMessage() for record in caplog.records if "NATS_PROGRESS_NOT_SHOWN" in record.getMessage()]
        assert ["CONSUMER.RESET.ORDERS.lag" in each for each in said] == [True]


def test_making_a_stream_needs_one_permission_more(server_factory: ServerFactory) -> None:
    server = server_factory(users(user("writer", WRITE), user("creator", WRITE + CREATE)))
    with pytest.raises(PermissionsError, match=r'Violation for Publish to "\$JS\.API\.STREAM\.CREATE\.ORDERS"'):
        write_as(server.url, "writer", LISTEN)
    write_as(server.url, "creator", LISTEN)


def test_a_bucket_is_made_with_one_permission_more_and_read_through_tls_with_exactly_these(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    ours = Certificates(tmp_path)
    config = ours.config() + users(user("reader", READ_BUCKET), user("creator", READ_BUCKET + CREATE_BUCKET))
    server = server_factory(config)
    url, tls = server.url.replace("nats:", "tls:"), {"bucket": "CONFIG", "tlsCaFile": str(ours.ca)}
    missing = sentence_of(lambda: read(url, KEY, **tls, **login("reader")))
    assert missing.startswith("StreamNotFoundError: the bucket 'CONFIG' does not exist; create it, or set the option")
    forbidden = sentence_of(lambda: read(url, KEY, createBucket="true", **tls, **login("reader")))
    assert 'Violation for Publish to "$JS.API.STREAM.CREATE.KV_CONFIG"' in forbidden
    assert read(url, KEY, createBucket='{"history": 3}', **tls, **login("creator")) == []
    with NatsPy(server.url, user="admin", password="pw", tls=ssl.create_default_context(cafile=str(ours.ca))) as client:
        client.publish_acked([(f"$KV.CONFIG.k{i % 100}", b"") for i in range(250)])
    assert len(read(url, KEY, **tls, **login("reader"))) == 100
    assert len(read(url, KEY, history="true", keys="k7,k70", **tls, **login("reader"))) == 5
    query = Query(stream_reader(url, KEY, startingOffsets="earliest", keys="k7", **tls, **login("reader")))
    assert len(query.rows(3)) == 3


def test_core_nats_needs_its_subjects_only(server_factory: ServerFactory) -> None:
    server = server_factory(users(user("reader", [], ("a.>",)), user("writer", ["a.x"], ())))
    rows = pa.table({"payload": ["0", "1", "2"]})
    with NatsPy(server.url, user="admin", password="pw") as client, client.collect("a.>") as collected:
        write(server, rows, user="writer", password="pw", subject="a.x")
        assert len(collected.wait(3)) == 3
        error = sentence_of(lambda: write(server, rows, user="writer", password="pw", subject="b.x"))
        assert 'Permissions Violation for Publish to "b.x"' in error

    reader = {"user": "reader", "password": "pw", "readTimeout": "100ms"}
    assert read(server, subject="a.x", **reader) == []
    assert 'Permissions Violation for Subscription to "b.x"' in sentence_of(
        lambda: read(server, subject="b.x", **reader)
    )


ACCOUNTS = """
    accounts {
        OWNER: {
            jetstream: enabled
            users: [ {user: owner, password: pw} ]
            exports: [
                {service: "$JS.API.>", response_type: stream}
                {service: "orders.>"}
                {service: "$KV.SPARK_NATS.>"}
            ]
        }
        APP: {
            users: [ {user: app, password: pw} ]
            imports: [
                {service: {account: OWNER, subject: "$JS.API.>"}, to: "JS.owner.API.>"}
                {service: {account: OWNER, subject: "orders.>"}}
                {service: {account: OWNER, subject: "$KV.SPARK_NATS.>"}, to: "JS.owner.API.$KV.SPARK_NATS.>"}
            ]
        }
    }
"""


def round_trip(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> None:
    """Make a stream, write it and read it, in batch and in streaming."""
    rows = spark.range(1000).selectExpr("concat('orders.', id % 7) AS subject", "string(id) AS payload")
    rows.write.format("nats").options(createStream=LISTEN, **options).mode("append").save()
    back = spark.read.format("nats").options(**options, minPartitions="2").load()
    assert back.selectExpr("count(DISTINCT sequence)", "sum(int(string(payload)))").first() == (1000, 499500)
    source = spark.readStream.format("nats").options(**options, startingOffsets="earliest", subject="orders.3").load()
    sink = source.selectExpr("'orders.copy' AS subject", "payload").writeStream.format("nats").options(**options)
    finish(sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
    assert back.where("subject = 'orders.3'").count() == 143
    copied = spark.read.format("nats").options(**options, subject="orders.copy").load()
    assert copied.count() == 143


@pytest.mark.long
def test_an_account_reads_and_writes_a_stream_of_another(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory(ACCOUNTS)
    connection = {"servers": server.url, "user": "app", "password": "pw", "stream": "ORDERS"}
    round_trip(spark, {**connection, "apiPrefix": "JS.owner.API"}, tmp_path)
    error = error_of(spark.read.format("nats").options(**connection).load().collect)
    assert "JetStream" in error
    assert "not enabled" in error


def hub_and_leaf(
    server_factory: ServerFactory, users: str = "", hub_binary: Path | None = None
) -> tuple[Server, Server]:
    """Two servers, each a domain of its own; the second is a leaf of the first. `users` has an admin, or is empty."""
    (port,) = free_ports(1)
    config = f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}\n{users}'
    hub = server_factory(config, binary=hub_binary)
    up = f"nats://admin:pw@127.0.0.1:{port}" if users else f"nats://127.0.0.1:{port}"
    leaf = server_factory(
        f'server_name: leaf\njetstream {{ domain: leaf }}\nleafnodes {{ remotes: [ {{url: "{up}"}} ] }}\n{users}'
    )
    with NatsPy(leaf.url, **({"user": "admin", "password": "pw"} if users else {})) as client:

        def the_hub_answers() -> bool:
            try:
                return bool(client.request("$JS.hub.API.INFO", timeout=1.0).payload)
            except Exception:
                return False

        wait_until(the_hub_answers, timeout=60)
    return hub, leaf


def test_a_stream_of_the_hub_is_read_and_written_through_a_leaf(server_factory: ServerFactory) -> None:
    hub, leaf = hub_and_leaf(server_factory)
    there = {"stream": "ORDERS", "domain": "hub"}
    subjects, payloads = [f"orders.{i % 7}" for i in range(1000)], [str(i) for i in range(1000)]
    write(leaf, pa.table({"subject": subjects, "payload": payloads}), createStream=LISTEN, **there)
    assert read_payloads(leaf, minPartitions=2, **there) == [text.encode() for text in payloads]
    query = Query(stream_reader(leaf, startingOffsets="earliest", subject="orders.3", **there))
    assert sequences_of(query.rows(143)) == list(range(4, 1001, 7))
    with NatsPy(hub.url) as client:
        assert client.held("ORDERS") == 1000


@pytest.mark.needs("ttl")
def test_a_bucket_is_made_and_written_through_tls_with_exactly_these_permissions(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    ours = Certificates(tmp_path)
    writing = WRITE_BUCKET + COMPARE_AND_SET
    server = server_factory(ours.config() + users(user("writer", writing), user("creator", writing + CREATE_BUCKET)))
    url, tls = server.url.replace("nats:", "tls:"), {"tlsCaFile": str(ours.ca)}
    forbidden = sentence_of(lambda: write_bucket_as(url, "writer", createBucket="true", **tls))
    assert 'Permissions Violation for Publish to "$JS.API.STREAM.CREATE.KV_CONFIG"' in forbidden
    write_bucket_as(url, "creator", createBucket='{"limit_marker_ttl": "1s"}', **tls)
    for _ in range(2):
        write_bucket_as(url, "writer", **tls)
    rows = pa.table({"key": ["t"], "value": ["3"], "expected_revision": pa.array([0], pa.int64()), "ttl": ["1h"]})
    write(url, rows, bucket="CONFIG", **tls, **login("writer"))
    with NatsPy(server.url, user="admin", password="pw", tls=ssl.create_default_context(cafile=str(ours.ca))) as client:
        kept = {message.subject: message.payload for message in client.read_stream("KV_CONFIG")}
    assert kept == {"$KV.CONFIG.w": b"1", "$KV.CONFIG.a": b"2", "$KV.CONFIG.t": b"3"}


@pytest.mark.needs("atomic", "counters", "ttl")
def test_lifetimes_conditions_counters_and_batches_go_through_tls_with_the_permissions_of_any_write(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    ours = Certificates(tmp_path)
    counters = ["$JS.API.STREAM.INFO.HITS", "hits.>"]
    server = server_factory(ours.config() + users(user("writer", WRITE + counters)))
    url, how = server.url.replace("nats:", "tls:"), {"tlsCaFile": str(ours.ca), **login("writer")}
    with NatsPy(server.url, user="admin", password="pw", tls=ssl.create_default_context(cafile=str(ours.ca))) as client:
        client.create_stream("ORDERS", ["orders.>"], allow_msg_ttl=True, allow_atomic=True)
        client.create_stream("HITS", ["hits.>"], allow_msg_counter=True)
        rows = pa.table({"subject": ["orders.a", "orders.b"], "payload": ["1", "2"], "ttl": ["1h", None]})
        write(url, rows, stream="ORDERS", **how)
        expecting = rows.append_column("expected_last_subject_sequence", pa.array([1, 2], pa.int64()))
        write(url, expecting, stream="ORDERS", **how)
        write(url, rows, stream="ORDERS", atomic=True, **how)
        assert [message.payload for message in client.read_stream("ORDERS")] == [b"1", b"2"] * 3
        for _ in range(2):
            write(url, pa.table({"subject": ["hits.a"], "increment": pa.array([3], pa.int64())}), stream="HITS", **how)
        assert [message.payload for message in client.read_stream("HITS")] == [b'{"val":"3"}', b'{"val":"6"}']
