"""What an account holds, as tables: compared with what nats-py says of the same servers."""

from __future__ import annotations

import html
import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from spark_nats.errors import NatsError
from spark_nats.kinds.tables.options import TABLE_SCHEMAS
from tests.integration.support import batch_reader, error_of, finish, nats, read, read_partitions, sentence_of, source
from tests.nats_py import NatsPy, succeeds, wait_until
from tests.scripted_server import api_answer
from tests.servers import OLDER_BINARY, Cluster, Server, ServerFactory

pytestmark = pytest.mark.timeout(180)

TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "DOUBLE": DoubleType(),
    "BOOLEAN": BooleanType(),
    "TIMESTAMP": TimestampType(),
    "TIMESTAMP_LTZ": TimestampType(),  # the same, in words that no setting changes
    "ARRAY<STRING>": ArrayType(StringType()),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
}
Row = dict[str, Any]


def schema_of(table: str) -> StructType:
    """All columns of a table, without Spark to ask."""
    schema = StructType()
    for column in TABLE_SCHEMAS[table].replace("STRING, STRING>", "STRING,STRING>").split(", "):
        name, kind = column.split(" ")
        schema.add(name, TYPES[kind.replace(",", ", ")])
    return schema


def rows_of(server: Server | str, table: str, **options: Any) -> list[Row]:
    return read(server, schema_of(table), table=table, **options)


def by_name(rows: list[Row], column: str = "name") -> dict[str, Row]:
    assert len({row[column] for row in rows}) == len(rows)
    return {row[column]: row for row in rows}


def time_of(text: str | None) -> datetime | None:
    """A time as servers write it, to the microsecond; None when it has never been."""
    if not text or text.startswith("0001-"):
        return None
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC) + timedelta(
        microseconds=int(fraction.ljust(9, "0")) // 1000
    )


def limit_of(number: int | None) -> int | None:
    return number if number and number > 0 else None


def seconds_of(nanoseconds: int | None) -> float | None:
    return nanoseconds / 1e9 if nanoseconds else None


def stream_row(info: Row) -> Row:
    """What the table of streams says of a stream, by what the server says of this one alone."""
    config, state = info["config"], info["state"]
    return {
        "name": config["name"],
        "created": time_of(info["created"]),
        "description": config.get("description"),
        "subjects": config.get("subjects", []),
        "retention": config["retention"],
        "storage": config["storage"],
        "replicas": config["num_replicas"],
        "compression": config["compression"],
        "discard": config["discard"],
        **{name: limit_of(config[name]) for name in ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size")},
        "max_age": seconds_of(config["max_age"]),
        "max_consumers": limit_of(config["max_consumers"]),
        "duplicate_window": seconds_of(config.get("duplicate_window")),
        "allow_direct": config["allow_direct"],
        "sealed": config["sealed"],
        "mirror": config.get("mirror", {}).get("name"),
        "sources": [each["name"] for each in config.get("sources", [])],
        "messages": state["messages"],
        "bytes": state["bytes"],
        "first_sequence": state["first_seq"] if state["messages"] else state["last_seq"] + 1,
        "last_sequence": state["last_seq"],
        "first_time": time_of(state["first_ts"]),
        "last_time": time_of(state["last_ts"]),
        "deleted": state.get("num_deleted", 0),
        "subject_count": state.get("num_subjects", 0),
        "consumer_count": state["consumer_count"],
        "problem": None,
    }


def create_consumer(client: NatsPy, stream: str, name: str, **config: Any) -> None:
    client.api(
        f"CONSUMER.CREATE.{stream}.{name}",
        {"stream_name": stream, "config": {"name": name, "durable_name": name, "ack_policy": "explicit", **config}},
    )


@pytest.mark.parametrize(
    "binary", [None, pytest.param(OLDER_BINARY, marks=pytest.mark.long("spark_nats/jetstream/*"))], ids=["2.15", "2.11"]
)
def test_the_table_of_streams_says_what_the_server_says_of_each(
    server_factory: ServerFactory, binary: Path | None
) -> None:
    server = server_factory(binary=binary)
    with NatsPy(server.url) as client:
        limits = {
            "max_msgs": 10,
            "max_msgs_per_subject": 5,
            "max_bytes": 10_000,
            "max_msg_size": 100,
            "max_consumers": 3,
        }
        more = {"max_age": 3600 * 10**9, "metadata": {"team": "sales"}, "compression": "s2", "discard": "new"}
        client.create_stream("ORDERS", ["orders.>", "returns"], description="all orders", **limits, **more)
        client.create_stream("JOBS", retention="workqueue", storage="memory", allow_direct=True)
        client.create_stream("COPY", [], mirror={"name": "ORDERS"})
        client.create_stream("ALL", [], sources=[{"name": "ORDERS"}, {"name": "JOBS"}])
        js = client.nats.jetstream()
        client.run(js.create_key_value(bucket="CONFIG"))
        client.run(js.create_object_store("FILES"))
        client.store("orders.eu", range(4))
        client.store("returns", range(2))
        client.delete_message("ORDERS", 3)
        create_consumer(client, "ORDERS", "billing")
        client.create_stream("OLD")
        client.store_empty("OLD", 3)
        client.purge_stream("OLD")
        client.api("STREAM.UPDATE.OLD", {**client.stream_info("OLD")["config"], "sealed": True})
        wait_until(lambda: client.held("COPY") == 5 and client.held("ALL") == 5)

        found = by_name(rows_of(server, "streams"))
        assert list(found) == sorted(found)
        infos = client.run(js.streams_info())
        assert set(found) == {info.config.name for info in infos}
        assert set(found) == {"ORDERS", "JOBS", "COPY", "ALL", "KV_CONFIG", "OBJ_FILES", "OLD"}
        for name, row in found.items():
            expected = stream_row(client.stream_info(name))
            if name == "JOBS":  # consumers of the one that it is a source of come and go
                assert expected.pop("consumer_count") in (0, 1)
            assert {column: row[column] for column in expected} == expected
    assert found["ORDERS"]["consumer_count"]
    assert dict(found["ORDERS"]["metadata"])["team"] == "sales"
    assert found["ORDERS"]["deleted"] == 1
    assert (found["OLD"]["first_sequence"], found["OLD"]["last_sequence"], found["OLD"]["first_time"]) == (4, 3, None)
    assert found["OLD"]["sealed"]


@pytest.mark.needs("paused consumers")
def test_the_table_of_consumers_says_how_far_each_one_is(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.create_stream("JOBS", ["jobs.>"])
        client.create_stream("IDLE")
        for token in "ab":
            client.store(f"orders.{token}", range(10))
        create_consumer(client, "ORDERS", "billing", description="bills", ack_wait=5 * 10**9, max_ack_pending=7)
        create_consumer(client, "ORDERS", "one", filter_subject="orders.a", max_deliver=3, metadata={"team": "x"})
        create_consumer(client, "ORDERS", "two", filter_subjects=["orders.a", "orders.c"], ack_policy="none")
        create_consumer(client, "JOBS", "push", deliver_subject="to.me", deliver_policy="new")
        until = datetime.now(UTC) + timedelta(hours=1)
        create_consumer(client, "JOBS", "paused", pause_until=until.isoformat(), inactive_threshold=60 * 10**9)
        js = client.nats.jetstream()
        pulled = client.run(js.pull_subscribe_bind(stream="ORDERS", consumer="billing"))
        messages = client.run(pulled.fetch(5))
        for message in messages[:2]:
            client.run(message.ack_sync())

        found = {(row["stream"], row["name"]): row for row in rows_of(server, "consumers")}
        infos = {
            (stream, info.name): info
            for stream in ("ORDERS", "JOBS", "IDLE")
            for info in client.run(js.consumers_info(stream))
        }
        assert set(found) == set(infos)
        assert len(found) == 5
        for key, info in infos.items():
            raw = client.api(f"CONSUMER.INFO.{key[0]}.{key[1]}")
            expected = {
                "created": time_of(raw["created"]),
                "durable": True,
                "description": info.config.description,
                "filter_subjects": info.config.filter_subjects or list(filter(None, [info.config.filter_subject])),
                "deliver_policy": raw["config"]["deliver_policy"],
                "deliver_subject": info.config.deliver_subject,
                "ack_policy": raw["config"]["ack_policy"],
                "ack_wait": seconds_of(raw["config"].get("ack_wait")),
                "max_deliver": limit_of(raw["config"].get("max_deliver")),
                "max_ack_pending": limit_of(raw["config"].get("max_ack_pending")),
                "max_waiting": limit_of(raw["config"].get("max_waiting")),
                "inactive_threshold": seconds_of(raw["config"].get("inactive_threshold")),
                "delivered_sequence": info.delivered.stream_seq,
                "delivered_time": time_of(raw["delivered"].get("last_active")),
                "ack_floor_sequence": info.ack_floor.stream_seq,
                "ack_floor_time": time_of(raw["ack_floor"].get("last_active")),
                "pending": info.num_pending,
                "ack_pending": info.num_ack_pending,
                "redelivered": info.num_redelivered,
                "waiting": raw["num_waiting"],
                "paused": raw.get("paused", False),
                "problem": None,
            }
            assert {column: found[key][column] for column in expected} == expected
    billing = found["ORDERS", "billing"]
    assert (billing["pending"], billing["ack_pending"], billing["ack_floor_sequence"]) == (15, 3, 2)
    assert found["ORDERS", "one"]["pending"] == 10
    assert dict(found["ORDERS", "one"]["metadata"])["team"] == "x"
    assert abs(found["JOBS", "paused"]["paused_until"] - until) < timedelta(milliseconds=1)


def test_the_table_of_buckets_says_what_nats_py_says_of_each(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS")
        js = client.nats.jetstream()
        config = client.run(
            js.create_key_value(bucket="CONFIG", history=5, ttl=3600, max_value_size=100, description="d")
        )
        small = client.run(js.create_key_value(bucket="SMALL", storage="memory", max_bytes=10_000))
        client.create_stream("KV_COPY", [], mirror={"name": "KV_CONFIG"}, max_msgs_per_subject=5)
        for value in (b"1", b"2", b"3"):
            client.run(config.put("a", value))
        client.run(config.put("b", b"1"))
        client.run(config.delete("b"))
        wait_until(lambda: client.held("KV_COPY") == 5)
        found = by_name(rows_of(server, "buckets"), "bucket")
        assert list(found) == ["CONFIG", "COPY", "SMALL"]
        for name, bucket in {"CONFIG": config, "SMALL": small}.items():
            status = client.run(bucket.status())
            said = (status.history, status.ttl or None, status.values, status.stream_info.state.bytes)
            assert tuple(found[name][column] for column in ("history", "max_age", "entries", "bytes")) == said
    row = found["CONFIG"]
    assert (row["keys"], row["entries"], row["revision"], row["max_value_size"]) == (2, 5, 5, 100)
    assert (row["description"], row["storage"], row["replicas"], row["compression"]) == ("d", "file", 1, False)
    assert (found["SMALL"]["storage"], found["SMALL"]["max_bytes"], found["SMALL"]["last_time"]) == (
        "memory",
        10_000,
        None,
    )
    assert (found["COPY"]["mirror"], found["COPY"]["keys"]) == ("CONFIG", 2)


def test_the_table_of_subjects_counts_the_messages_of_each(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.create_stream("JOBS", ["jobs.>"])
        client.create_stream("EMPTY")
        for i, subject in enumerate(("orders.eu.a", "orders.eu.b", "orders.us.a", "jobs.x")):
            client.store(subject, range(i + 1))
        js = client.nats.jetstream()
        orders = client.run(js.stream_info("ORDERS", subjects_filter=">")).state.subjects

    def counted(**options: Any) -> dict[tuple[str, str], int]:
        found = rows_of(server, "subjects", **options)
        assert all(row["problem"] is None for row in found)
        return {(row["stream"], row["subject"]): row["messages"] for row in found}

    of_orders = {("ORDERS", subject): count for subject, count in orders.items()}
    assert of_orders == {("ORDERS", "orders.eu.a"): 1, ("ORDERS", "orders.eu.b"): 2, ("ORDERS", "orders.us.a"): 3}
    assert counted() == {**of_orders, ("JOBS", "jobs.x"): 4}
    assert counted(stream="ORDERS") == counted(streamPattern="ORD.*") == counted(subject="orders.>") == of_orders
    assert set(counted(subject="*.eu.*")) == {("ORDERS", "orders.eu.a"), ("ORDERS", "orders.eu.b")}
    assert set(counted(subject="jobs.*,orders.us.a")) == {("JOBS", "jobs.x"), ("ORDERS", "orders.us.a")}


def test_tables_are_of_all_streams_or_of_those_that_are_chosen(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        for name in ("ORDERS_EU", "ORDERS_US", "JOBS", "KV_CONFIG"):
            client.create_stream(name)
            create_consumer(client, name, "c")

    def chosen(table: str, column: str, **options: Any) -> list[str]:
        return [row[column] for row in rows_of(server, table, **options)]

    assert chosen("streams", "name") == ["JOBS", "KV_CONFIG", "ORDERS_EU", "ORDERS_US"]
    assert chosen("streams", "name", streamPattern="ORDERS_.*") == ["ORDERS_EU", "ORDERS_US"]
    assert chosen("streams", "name", streamPattern=".*") == ["JOBS", "ORDERS_EU", "ORDERS_US"]
    assert chosen("streams", "name", stream="JOBS,ORDERS_US") == ["JOBS", "ORDERS_US"]
    assert chosen("consumers", "stream", stream="ORDERS_US,JOBS") == ["ORDERS_US", "JOBS"]
    assert chosen("buckets", "bucket", streamPattern="KV_.*") == ["CONFIG"]
    assert chosen("buckets", "bucket", stream="JOBS") == []
    assert chosen("streams", "name", streamPattern="NONE.*") == []
    error = sentence_of(lambda: rows_of(server, "consumers", stream="ORDERS_USA"))
    assert (
        error == "StreamNotFoundError: the stream 'ORDERS_USA' does not exist; there are ORDERS_US, ORDERS_EU and JOBS"
    )


@pytest.mark.parametrize("table", TABLE_SCHEMAS)
def test_an_account_that_holds_nothing_has_empty_tables(server_factory: ServerFactory, table: str) -> None:
    assert rows_of(server_factory(), table) == []


@pytest.mark.long("spark_nats/kinds/tables/*")
def test_what_takes_more_than_one_page_is_complete(server_factory: ServerFactory) -> None:
    server = server_factory()
    names = [f"S{i:03}" for i in range(600)]
    with NatsPy(server.url) as client:
        for name in names:
            client.create_stream(name, storage="memory")
            create_consumer(client, name, "c", mem_storage=True)
        for i in range(550):
            create_consumer(client, "S007", f"c{i}", mem_storage=True)
        assert [row["name"] for row in rows_of(server, "streams")] == names
        found = [(row["stream"], row["name"]) for row in rows_of(server, "consumers")]
        assert len(found) == len(set(found)) == 600 + 550
        assert {name for stream, name in found if stream == "S007"} == {"c", *(f"c{i}" for i in range(550))}
        assert {stream for stream, _ in found} == set(names)


@pytest.mark.long
def test_more_subjects_than_a_server_lists_at_once_are_all_counted(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", ["s.>"], storage="memory")
        client.publish_acked((f"s.{i % 120_000}", b"") for i in range(130_000))
    found = rows_of(server, "subjects")
    assert len({row["subject"] for row in found}) == len(found) == 120_000
    assert sum(row["messages"] for row in found) == 130_000


def test_streams_that_are_made_and_deleted_meanwhile_are_no_error(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("A")
        client.create_stream("B")
        client.store_empty("B", 3)
        for table, column in (("streams", "name"), ("consumers", "stream"), ("subjects", "stream")):
            client.create_stream("GOES")
            create_consumer(client, "GOES", "c")
            create_consumer(client, "B", "c")
            reader = batch_reader(server, schema_of(table), table=table)
            partitions = reader.partitions()
            client.delete_stream("GOES")
            found = read_partitions(pickle.dumps(reader), partitions)
            assert "GOES" not in [row[column] for row in found]
            assert "B" in [row[column] for row in found]


def test_a_table_waits_for_a_server_that_comes_back(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS")
    reader = batch_reader(server, schema_of("streams"), table="streams", reconnectWait="100ms")
    partitions = reader.partitions()
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_partitions, pickle.dumps(reader), partitions)
        wait_until(lambda: "NATS_TRYING_AGAIN" in caplog.text)
        server.start()
        assert [row["name"] for row in reading.result()] == ["ORDERS"]


# Through Spark


@pytest.mark.long("spark_nats/kinds/tables/*")
def test_sql_joins_tables_and_streaming_is_refused(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, max_msgs=10)
    nats_py.store_empty(unique, 9)
    create_consumer(nats_py, unique, "slow")
    frames = {
        table: nats(spark.read, nats_server, table=table, streamPattern=f"{unique}.*").load() for table in TABLE_SCHEMAS
    }
    for table, frame in frames.items():
        assert [field.name for field in frame.schema] == schema_of(table).names
        frame.createOrReplaceTempView(f"{unique}_{table}")
    joined = spark.sql(
        f"SELECT s.name, c.name, c.pending, s.messages / s.max_msgs, s.last_time > timestamp '2020-01-01', t.messages "
        f"FROM {unique}_streams s JOIN {unique}_consumers c ON c.stream = s.name "
        f"JOIN {unique}_subjects t ON t.stream = s.name"
    )
    assert [tuple(row) for row in joined.collect()] == [(unique, "slow", 9, 0.9, True, 9)]
    assert frames["buckets"].collect() == []
    stream = nats(spark.readStream, nats_server, table="streams").load()
    refused = error_of(lambda: finish(stream.writeStream.format("noop").start()))
    assert refused.startswith("OptionError: option 'table' is streams, which is read in batches (spark.read)")


def test_a_schema_may_have_some_of_the_columns_and_no_others(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    some = StructType().add("messages", LongType()).add("name", StringType())
    found = read(nats_server, some, table="streams", stream=unique)
    assert found == [{"messages": 0, "name": unique}]
    other = StructType().add("size", LongType())
    error = sentence_of(lambda: source(nats_server, table="streams").reader(other))
    assert error.startswith("SchemaError: the table of streams has no column 'size'; its columns are name STRING, ")
    wrong = StructType().add("subjects", StringType())
    error = sentence_of(lambda: source(nats_server, table="streams").reader(wrong))
    assert error.startswith("SchemaError: column 'subjects' is ARRAY<STRING>, not STRING")


PAGE = Path(__file__).parents[4] / "docs" / "tables.md"


@pytest.mark.parametrize("table", TABLE_SCHEMAS)
def test_the_documentation_has_the_columns_of_each_table(table: str) -> None:
    section = PAGE.read_text().split(f"### `{table}`\n")[1].split("\n### ")[0]
    listed = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    columns = [name for names, _ in listed for name in names.split("`")[1::2]]
    assert columns == schema_of(table).names
    types = [html.unescape(kind.strip()) for _, kind in listed]
    for (names, _), kind in zip(listed, types, strict=True):
        for i, name in enumerate(names.split("`")[1::2]):
            said = kind if "<" in kind else kind.split(", ")[min(i, kind.count(", "))]
            assert TYPES[said] == schema_of(table)[name].dataType


# What cannot be told


@pytest.mark.parametrize("table", TABLE_SCHEMAS)
def test_an_account_without_jetstream_is_an_error_that_says_so(server_factory: ServerFactory, table: str) -> None:
    server = server_factory("accounts { A: {users: [{user: a, password: s3cret}]}, B: {jetstream: enabled} }")
    error = sentence_of(lambda: rows_of(server, table, user="a", password="s3cret"))
    assert error.startswith("JetStreamUnavailableError: ")
    assert "not enabled" in error
    assert "s3cret" not in error


def test_what_is_on_a_server_that_has_ended_has_a_row_with_its_problem(cluster: Cluster, unique: str) -> None:
    well, lost = unique, f"KV_{unique}"  # a stream, and a bucket on one server
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(well, num_replicas=3)
        client.create_in_cluster(lost, [f"$KV.{unique}.>"], num_replicas=1, max_msgs_per_subject=3, description="lost")
        ended = cluster.of(client.stream_info(lost)["cluster"]["leader"])
        for stream, subject, replicas in ((well, f"{well}.x", 3), (lost, f"$KV.{unique}.x", 1)):
            wait_until(lambda to=subject: succeeds(lambda: client.store(to, range(3))), timeout=30)
            create_consumer(client, stream, "c", num_replicas=replicas)
    chosen = {"stream": f"{well},{lost}", "requestTimeout": "10s"}
    urls = ",".join(server.url for server in cluster.servers if server is not ended)
    cluster.end(ended)
    try:

        def settled(table: str, column: str) -> dict[str, Row]:
            """The rows, as soon as what is not lost has a leader, and the cluster one that answers."""

            def asked() -> dict[str, Row]:
                found: list[Row] = []
                succeeds(lambda: found.extend(rows_of(urls, table, **chosen)))
                return by_name(found, column) if [row[column] for row in found if not row["problem"]] == [well] else {}

            return wait_until(asked, timeout=90)

        streams = settled("streams", "name")
        assert streams[well]["messages"] == 3
        row = streams[lost]
        assert (row["description"], row["messages"], row["leader"]) == ("lost", None, None)
        assert "no server that keeps it answers" in row["problem"]
        (bucket,) = rows_of(urls, "buckets", **chosen)
        assert (bucket["bucket"], bucket["history"], bucket["entries"]) == (unique, 3, None)
        assert "no server that keeps it answers" in bucket["problem"]
        consumers = settled("consumers", "stream")
        assert consumers[well]["pending"] == 3
        row = consumers[lost]
        assert (row["name"], row["ack_policy"], row["pending"]) == ("c", "explicit", None)
        assert "no server that keeps it answers" in row["problem"]
        subjects = settled("subjects", "stream")
        assert (subjects[well]["subject"], subjects[well]["messages"]) == (f"{well}.x", 3)
        assert (subjects[lost]["subject"], subjects[lost]["messages"]) == (None, None)
        assert "offline" in subjects[lost]["problem"]
    finally:
        ended.start()


# What servers say that are in a state which cannot be made here


Answer = Callable[[Row], Row]


@contextmanager
def answering(client: NatsPy, prefix: str, **answers: Answer) -> Iterator[None]:
    """An API of its own, that answers with what these functions make of a request's body."""
    with ExitStack() as stack:
        for name, answer in answers.items():
            operation = name.replace("_", ".")
            subject = f"{prefix}.{operation}"

            def encoded(message: Any, operation: str = operation, answer: Answer = answer) -> bytes:
                return api_answer(operation, answer(json.loads(message.payload or b"{}")))

            stack.enter_context(client.respond(subject, encoded))
            stack.enter_context(client.respond(f"{subject}.*", encoded))
        yield


def names(*streams: str) -> Answer:
    return lambda _: {"total": len(streams), "streams": list(streams)}


def stream_entry(name: str, **more: Any) -> Row:
    """What a list says of a stream with three messages."""
    return {
        "config": {"name": name, "subjects": [name], "retention": "limits", "storage": "file", "num_replicas": 3},
        "created": "2026-01-01T00:00:00Z",
        "state": {"messages": 3, "bytes": 99, "first_seq": 1, "last_seq": 3, "consumer_count": 0},
        **more,
    }


ALONE = {"leader": "n0", "replicas": [{"name": n, "active": 5 * 10**9, "current": True} for n in ("n1", "n2")]}


def test_what_has_no_leader_is_listed_without_what_only_a_leader_knows(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    entries = [
        stream_entry("A", cluster={"leader": "n0"}),
        stream_entry("B", cluster={"name": "C"}),
        stream_entry("C", cluster=ALONE),
    ]
    listed = {"total": 5, "streams": entries, "missing": ["D"], "offline": {"E": "needs a later server\n"}}
    consumers = {
        "total": 3,
        "consumers": [
            {"name": "", "config": {"name": "c", "ack_policy": "explicit"}, "cluster": {}},
        ],
        "missing": ["c", "d"],
        "offline": {"e": "needs a later server"},
    }
    options = {"apiPrefix": unique}
    with answering(
        nats_py, unique, STREAM_NAMES=names(*"ABCDE"), STREAM_LIST=lambda _: listed, CONSUMER_LIST=lambda _: consumers
    ):
        streams = by_name(rows_of(nats_server, "streams", **options))
        found = by_name(rows_of(nats_server, "consumers", stream="A", **options))
    assert {name: (row["messages"], row["replicas"], row["problem"]) for name, row in streams.items()} == {
        "A": (3, 3, None),
        "B": (None, 3, "it has no leader at the moment"),
        "C": (None, 3, "its leader has not heard from most of the others lately, and may lead no more"),
        "D": (None, None, "no server that keeps it answers: they are offline, or it has no leader"),
        "E": (None, None, "it is offline: needs a later server\\n"),
    }
    assert {name: (row["stream"], row["ack_policy"]) for name, row in found.items()} == {
        "c": ("A", "explicit"),
        "d": ("A", None),
        "e": ("A", None),
    }
    assert all(row["problem"] for row in found.values())


def test_streams_that_do_not_answer_have_a_row_in_the_tables_of_subjects_and_consumers(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    offline = {"error": {"code": 500, "err_code": 10194, "description": "stream is offline: unsupported"}}
    leaderless = {"cluster": {"name": "C"}, "state": {}}
    options = {"apiPrefix": unique, "requestTimeout": "1500ms"}
    with (
        answering(nats_py, unique, STREAM_NAMES=names("A", "B", "C"), CONSUMER_LIST=lambda _: offline),
        ExitStack() as api,
    ):
        for name, answer in (("A", offline), ("B", leaderless), ("C", None)):
            encoded = api_answer("STREAM.INFO", answer or {})
            if answer is None:
                api.enter_context(nats_py.collect(f"{unique}.STREAM.INFO.{name}"))  # and says nothing
            else:
                api.enter_context(nats_py.respond(f"{unique}.STREAM.INFO.{name}", lambda _, said=encoded: said))
        problems = {row["stream"]: row["problem"] for row in rows_of(nats_server, "subjects", **options)}
        consumers = {row["stream"]: row["problem"] for row in rows_of(nats_server, "consumers", **options)}
    assert "stream is offline: unsupported" in problems["A"]
    assert problems["B"] == "stream 'B' has no leader at the moment"
    assert "1.5 s" in problems["C"]
    assert consumers == dict.fromkeys("ABC", "stream is offline: unsupported")


def test_numbers_that_no_column_can_hold_are_not_told(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    """Servers have said 2^64 - 1 of what was pending, when they had counted below zero."""
    consumer = {"name": "c", "config": {"durable_name": "c"}, "num_pending": 2**64 - 1, "num_waiting": 1}
    listed = {"total": 1, "consumers": [consumer]}
    with answering(nats_py, unique, STREAM_NAMES=names("A"), CONSUMER_LIST=lambda _: listed):
        (row,) = rows_of(nats_server, "consumers", apiPrefix=unique)
    assert (row["pending"], row["waiting"], row["problem"]) == (None, 1, None)


@pytest.mark.parametrize(
    ("table", "listed"),
    [
        ("streams", {"total": 1, "streams": [{"config": {}}]}),
        ("streams", {"total": 1, "streams": [{"config": {"name": "A"}}]}),
        ("streams", {"total": 1, "streams": [stream_entry("A", created=5)]}),
        ("streams", {"total": 1, "streams": ["A"]}),
        ("streams", {"total": 1, "streams": 5}),
        ("streams", {"total": 1, "streams": [], "offline": ["A"]}),
        ("streams", {"total": 1, "streams": [stream_entry("A", config={"name": "A", "sources": 5})]}),
        ("consumers", {"total": 1, "consumers": [{"name": "c", "config": {"metadata": 5}}]}),
        ("streams", {"streams": []}),
        ("consumers", {"total": 1, "consumers": [{"name": "c"}]}),
        ("consumers", {"total": 1, "consumers": [{"stream_name": "B", "name": "c", "config": {}}]}),
        ("consumers", {"total": 1, "consumers": [{"name": "c", "config": {"metadata": "x"}}]}),
        ("consumers", {"total": 1, "consumers": [{"name": "c", "config": {}, "num_pending": "x"}]}),
    ],
)
def test_an_answer_that_is_none_is_a_protocol_error(
    nats_server: Server, nats_py: NatsPy, unique: str, table: str, listed: Row
) -> None:
    with (
        answering(
            nats_py, unique, STREAM_NAMES=names("A"), STREAM_LIST=lambda _: listed, CONSUMER_LIST=lambda _: listed
        ),
        pytest.raises(NatsError, match="NATS_ANSWER_INVALID"),
    ):
        rows_of(nats_server, table, apiPrefix=unique)
