"""Mistakes that people make: what they did and what to do stands in the first lines of what Spark shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.certificates import Certificates
from tests.integration.support import error_of, finish, first_lines_of, nats, read, save, sentence_of, write
from tests.nats_py import NatsPy
from tests.servers import Server, ServerFactory

pytestmark = pytest.mark.timeout(150)


@pytest.mark.long("spark_nats/conditions/*", "spark_nats/errors.py")
@pytest.mark.parametrize("simplified", [True, False])
def test_the_sentence_stands_before_the_traceback(
    spark: SparkSession, nats_server: Server, tmp_path: Path, simplified: bool
) -> None:
    """Whoever Spark has run it: a process that plans, a task, or the one that holds a streaming query's source."""
    rows = spark.range(1).selectExpr("'a b' AS subject", "'' AS payload")
    numbers = spark.readStream.format("rate").load().selectExpr("'a b' AS subject", "string(value) AS payload")
    conf = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"

    def started(name: str) -> StreamingQuery:
        return nats(numbers.writeStream, nats_server, checkpointLocation=str(tmp_path / name)).start()

    missing = nats(spark.readStream, nats_server, stream="MISSING").load().writeStream.format("noop")
    not_sent = "InvalidRowError", "[NATS_ROW_CANNOT_BE_SENT]", "row 0 of the task cannot be sent: column 'subject'"
    spark.conf.set(conf, simplified)
    try:
        for action, kind, code, sentence in (
            (
                nats(spark.read, nats_server, strem="S").load,
                "OptionError",
                "[NATS_UNKNOWN_OPTION]",
                "unknown option 'strem'",
            ),
            (
                nats(spark.read, nats_server, stream="MISSING").load().collect,
                "StreamNotFoundError",
                "[NATS_STREAM_NOT_FOUND]",
                "the stream 'MISSING' does not exist",
            ),
            (lambda: save(rows, nats_server), *not_sent),
            (lambda: finish(started("task")), *not_sent),
            (
                lambda: finish(missing.start()),
                "StreamNotFoundError",
                "[NATS_STREAM_NOT_FOUND]",
                "the stream 'MISSING' does not exist",
            ),
        ):
            assert f"spark_nats.errors.{kind}: {code} {sentence}" in first_lines_of(action)
            assert error_of(action).startswith(f"{kind}: {sentence}")
    finally:
        spark.conf.unset(conf)


def test_a_query_that_ended_says_why_when_it_is_asked(spark: SparkSession, nats_server: Server) -> None:
    query = nats(spark.readStream, nats_server, stream="MISSING").load().writeStream.format("noop").start()
    first_lines_of(lambda: finish(query))
    assert "the stream 'MISSING' does not exist" in str(query.exception()).splitlines()[0]


def test_a_task_that_reads_says_in_the_first_lines_what_is_gone(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.x", b"1")])
    frame = nats(spark.read, nats_server, stream=unique, retryTimeout="1s").load()
    assert frame.count() == 1  # which fixes its range
    nats_py.delete_stream(unique)
    assert f"stream '{unique}'" in first_lines_of(frame.collect)


@pytest.fixture(scope="module")
def stream(nats_server: Server) -> Iterator[str]:
    """A stream with one message, whose name is in capitals."""
    with NatsPy(nats_server.url) as client:
        for name in ("MISTAKES", "MISTAKES_TOO"):
            client.create_stream(name)
        client.publish_acked([("MISTAKES.x", b"1")])
        yield "MISTAKES"
        for name in ("MISTAKES", "MISTAKES_TOO"):
            client.delete_stream(name)


READS: dict[str, tuple[dict[str, Any], str]] = {
    "Kafka's subscribe": ({"subscribe": "orders"}, "name a stream in the option 'stream', and subjects in 'subject'"),
    "a path": ({"path": "orders"}, "the path 'orders' has no meaning here; use the option 'stream' for the name"),
    "Kafka's topic": ({"topic": "orders"}, "name a stream in the option 'stream', and subjects in 'subject'"),
    "Kafka's pattern": ({"subscribePattern": "ord.*"}, "use the option 'streamPattern', a regular expression"),
    "Kafka's assign": ({"assign": '{"a": [0]}'}, "tasks share its sequences by themselves (see 'minPartitions')"),
    "Kafka's servers": ({"kafka.bootstrap.servers": "h:9092"}, "name the servers in the option 'servers'"),
    "a url": ({"url": "nats://localhost"}, "name the servers in the option 'servers', such as nats://localhost:4222"),
    "Kafka's group": ({"kafka.group.id": "g"}, "keeps its position in its checkpoint (checkpointLocation)"),
    "Kafka's client": ({"kafka.security.protocol": "SSL"}, "begin the URLs in the option 'servers' with tls://"),
    "nats-spark-connector's host": ({"nats.host": "localhost"}, "that is one of nats-spark-connector's"),
    "Kafka's retries": ({"fetchOffset.numRetries": 5}, "use the option 'retryTimeout'"),
    "Kafka's times": ({"startingOffsetsByTimestamp": "{}"}, "use the option 'startingTimestamp'"),
    "a durable": ({"durable": "spark"}, "needs no durable consumer; for core NATS, the option 'queueGroup' shares"),
    "a typing error": ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
    "a stream in small letters": ({"stream": "mistakes"}, "the stream 'mistakes' does not exist; there are MISTAKES"),
    "a misspelt stream": ({"stream": "MISTAKE"}, "the stream 'MISTAKE' does not exist; there are MISTAKES"),
    "a subject for a stream": ({"stream": "orders.>"}, "subjects go into the option 'subject', a pattern of streams"),
    "a pattern for a stream": ({"stream": "MIS*"}, "a pattern of streams to read into 'streamPattern'"),
    "a file's name for its text": (
        {"credentialsSecret": "/etc/user.creds"},
        "the name of a file goes into the option with File at its end",
    ),
    "seconds": (
        {"startingTimestamp": 1793491200},
        "which is 1970-01-21T18:11:31+00:00; write 1793491200000 if that is in seconds (2026-11-01T00:00:00+00:00), or",
    ),
    "a time without its unit": ({"requestTimeout": 5000}, "with its unit, such as 500ms, 5s or 2m"),
    "an offset of Kafka": ({"startingOffsets": '{"MISTAKES": {"0": 7}}'}, 'no partitions: write {"MISTAKES": 7}'),
    "nothing new in a batch": ({"startingOffsets": "latest"}, "so a batch has nothing to read; use earliest"),
    "subjects that overlap": ({"subject": "MISTAKES.*,MISTAKES.x"}, "which overlap; name everything once"),
    "a password in a URL": (
        {"servers": "nats://ann:pw@localhost"},
        "use the options 'user' and 'password', or 'token'",
    ),
    "the monitoring's URL": (
        {"servers": "http://localhost:8222"},
        "use nats://, tls://, ws:// or wss://, and the port for clients instead of that for monitoring",
    ),
    "nobody there": ({"servers": "nats://127.0.0.1:1"}, "check the option 'servers' and that a nats-server listens"),
    "for streaming only": ({"maxOffsetsPerTrigger": 5}, "is for streaming (spark.readStream), not for batch reads"),
    "for writing only": ({"deduplicate": "window"}, "option 'deduplicate' is only for writing"),
}
WRITES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "Kafka's value": ({"value": "", "subject": "a"}, {}, "and would be lost; rename it to 'payload'"),
    "Kafka's key": (
        {"payload": "", "key": "a"},
        {},
        "messages have no key; make it a part of 'subject', or a header",
    ),
    "Kafka's topic": ({"payload": "", "topic": "a"}, {}, "rename it to 'subject'"),
    "a subject in capitals": ({"payload": "", "SUBJECT": "a"}, {}, "would be lost; rename it to 'subject'"),
    "a payload with a capital": ({"Payload": "", "subject": "a"}, {}, "would be lost; rename it to 'payload'"),
    "Kafka's value with a capital": ({"Value": "", "subject": "a"}, {}, "would be lost; rename it to 'payload'"),
    "a key with a capital": (
        {"Key": "", "value": ""},
        {"bucket": "B"},
        "would be lost; rename it to 'key'",
    ),
    "Kafka's partition": ({"payload": "", "partition": 1}, {}, "streams have no partitions; drop it"),
    "no subject": ({"payload": ""}, {}, "add the column 'subject' (STRING) or set the option 'subject'"),
    "a number": (
        {"payload": 0, "subject": "a"},
        {},
        "column 'payload' must be BINARY or STRING, not BIGINT; use string(payload)",
    ),
    "a structure": ({"payload": {"a": 1}, "subject": "a"}, {}, "not STRUCT<A:BIGINT>; use to_json(payload)"),
    "Kafka's headers": (
        {"payload": "", "subject": "a", "headers": [{"key": "K", "value": b"v"}]},
        {},
        "; use map_from_entries(transform(headers, h -> struct(h.key, array(string(h.value)))))",
    ),
    "no payload": (
        {"payload": pa.scalar(None, pa.string()), "subject": "a"},
        {},
        "is null; an empty payload is written as ''",
    ),
    "a wildcard": ({"payload": "", "subject": "a.*"}, {}, "column 'subject' contains white space, a control character"),
    "a path": (
        {"payload": "", "subject": "a"},
        {"path": "A"},
        "the path 'A' has no meaning here; use the option 'stream'",
    ),
    "several streams": (
        {"payload": "", "subject": "a"},
        {"stream": "A,B", "atomic": "true"},
        "which a server does in one stream only; name one in the option 'stream'",
    ),
    "a subject of no stream": (
        {"payload": "", "subject": "nobody.x"},
        {"stream": "MISTAKES"},
        "no stream listens on it",
    ),
    "a stream in small letters": (
        {"payload": "", "subject": "MISTAKES.x"},
        {"stream": "mistakes"},
        "'mistakes' does not exist, but 'MISTAKES' does; create it",
    ),
}


@pytest.mark.parametrize("mistake", READS)
def test_a_mistake_in_reading_is_said(nats_server: Server, stream: str, mistake: str) -> None:
    options, sentence = READS[mistake]
    assert sentence in sentence_of(lambda: read(nats_server, **{"stream": stream, **options}))


@pytest.mark.parametrize("mistake", WRITES)
def test_a_mistake_in_writing_is_said(nats_server: Server, stream: str, mistake: str) -> None:
    row, options, sentence = WRITES[mistake]
    rows = pa.table({name: pa.array([value]) for name, value in row.items()})
    assert sentence in sentence_of(lambda: write(nats_server, rows, **options))


VIEW = "use CREATE TEMPORARY VIEW ... USING nats OPTIONS (...)"


@pytest.mark.parametrize("columns", ["", pytest.param("(subject STRING, payload BINARY)", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "options",
    [
        "servers '{}', stream 'MISTAKES'",
        *(pytest.param(o, marks=pytest.mark.long) for o in ("stream 'MISTAKES'", "path '/x', strem 'X'")),
    ],
)
def test_whoever_makes_a_table_is_told_to_make_a_view(
    spark: SparkSession, nats_server: Server, columns: str, options: str
) -> None:
    def make_and_read() -> None:
        spark.sql(f"CREATE TABLE mistake {columns} USING nats OPTIONS ({options.format(nats_server.url)})")
        spark.table("mistake").collect()

    try:
        assert VIEW in first_lines_of(make_and_read)
    finally:
        spark.sql("DROP TABLE IF EXISTS mistake")


@pytest.mark.long("spark_nats/sparkapi.py")
def test_whoever_writes_into_a_table_is_told_before_anything_is_stored(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    frame = spark.sql(f"SELECT '{unique}.x' AS subject, 'x' AS payload FROM range(3)").coalesce(1)
    writer = nats(frame.write, nats_server, stream=unique)
    select = f"SELECT '{unique}.x' AS subject, 'x' AS payload"
    into = frame.writeTo("mistake").using("nats").option("servers", nats_server.url).option("stream", unique)
    for makes in (
        lambda: writer.saveAsTable("mistake"),
        lambda: writer.mode("append").saveAsTable("mistake"),
        into.create,
        lambda: spark.sql(f"CREATE TABLE mistake USING nats OPTIONS (stream '{unique}') AS {select}"),
    ):
        assert VIEW in first_lines_of(makes)
        assert not spark.catalog.tableExists("mistake")
    spark.sql("CREATE TABLE mistake (subject STRING, payload STRING) USING nats")
    try:
        assert VIEW in first_lines_of(lambda: spark.sql(f"INSERT INTO mistake {select}"))
    finally:
        spark.sql("DROP TABLE mistake")
    assert nats_py.held(unique) == 0
    # What is no table is written as ever.
    view = f"{unique}_view"
    spark.sql(
        f"CREATE TEMPORARY VIEW {view} (subject STRING, payload STRING) USING nats "
        f"OPTIONS (stream '{unique}', servers '{nats_server.url}')"
    )
    save(frame, nats_server, stream=unique)
    spark.sql(f"INSERT INTO {view} {select}")
    numbers = spark.readStream.format("rate").load()
    started = numbers.writeStream.foreachBatch(lambda _, __: save(frame, nats_server, stream=unique))
    finish(started.trigger(once=True).option("checkpointLocation", str(tmp_path)).start())
    assert nats_py.held(unique) == 7


def test_the_port_for_monitoring_is_not_taken_for_a_server_that_is_away(
    spark: SparkSession, nats_server: Server
) -> None:
    url = re.sub("^http", "nats", nats_server.monitoring_url)
    frame = nats(spark.read, nats_server, servers=url, stream="MISTAKES", connectTimeout="300ms").load()
    shown = first_lines_of(frame.collect)
    port = url.rpartition(":")[2]
    assert f"is {port} its port for clients (4222 unless it is configured; 8222 is for monitoring)" in shown
    assert "check the option 'tlsHandshakeFirst'" in shown


def test_a_server_that_does_tls_first_is_told_by_the_name_of_the_option(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    ours = Certificates(tmp_path)
    server = server_factory(ours.config("127.0.0.1", "handshake_first: true", "timeout: 0.5"))
    frame = nats(spark.read, server, stream="S", tlsCaFile=str(ours.ca)).load()
    assert (
        "does it expect TLS first, or a WebSocket (ws:// or wss://)?); check the option 'tlsHandshakeFirst'"
        in first_lines_of(frame.collect)
    )


def test_whoever_may_not_list_streams_is_told_that_theirs_does_not_exist(server_factory: ServerFactory) -> None:
    server = server_factory(
        'authorization { users: [{user: ann, password: pw, permissions: {publish: "$JS.API.STREAM.INFO.*"}}, '
        "{user: admin, password: pw}] }"
    )
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS")
    login = {"user": "ann", "password": "pw"}
    error = sentence_of(lambda: read(server, stream="orders", **login))
    assert error.startswith("StreamNotFoundError: the stream 'orders' does not exist; create it")
    error = sentence_of(lambda: read(server, stream="orders", user="admin", password="pw"))
    assert error == "StreamNotFoundError: the stream 'orders' does not exist; there is ORDERS"


def test_a_time_without_a_zone_is_utc_whatever_zone_the_session_has(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.x", b"1")])
    stored = datetime.now(UTC)
    counts = {}
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for name in ("Asia/Tokyo", "America/Los_Angeles"):
            spark.conf.set("spark.sql.session.timeZone", name)
            counts[name] = [
                nats(spark.read, nats_server, stream=unique, startingTimestamp=f"{since:%Y-%m-%d %H:%M:%S}")
                .load()
                .count()
                for since in (stored - timedelta(hours=1), stored + timedelta(hours=1))
            ]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert counts == {"Asia/Tokyo": [1, 0], "America/Los_Angeles": [1, 0]}
