"""Reading core NATS in batch, and writing to it: what is published while the tasks listen, as rows."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from spark_nats.client import connect
from spark_nats.errors import ServerError
from spark_nats.options import parse_read, parse_write
from spark_nats.sink.writers import NatsWriter
from spark_nats.source.core.readers import NatsCoreReader
from tests.connections import options_for
from tests.integration.support import error_of, nats, save, wait_for_subscriptions
from tests.nats_py import Message, NatsPy, send_raw
from tests.scripted_server import Peer, scripted_server
from tests.servers import Server, ServerFactory


@contextmanager
def listening(frame: DataFrame, server: Server, *subjects: str, tasks: int = 1) -> Iterator[Callable[[], list[Row]]]:
    """Collect a frame in a thread; the block begins when its tasks listen. Returns what waits for the rows."""
    with ThreadPoolExecutor(1) as pool:
        rows: Future[list[Row]] = pool.submit(frame.collect)
        wait_for_subscriptions(server, *subjects, count=tasks)
        yield lambda: rows.result(60)


def payloads(rows: list[Row]) -> list[int]:
    return [int(row.payload) for row in rows]


@pytest.mark.docker
def test_messages_arrive_as_rows(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    before = datetime.now(UTC)
    frame = nats(spark.read, nats_server, subject=f"{unique}.>", readTimeout="3s").load()
    with listening(frame, nats_server, f"{unique}.>") as rows:
        nats_py.publish(f"{unique}.a", b"1", headers={"H": ["1", "2"]}, reply="answers.here")
        nats_py.publish(f"{unique}.ü.日本", b"")
        nats_py.publish(f"other.{unique}", b"not for us")
        first, second = rows()
    assert (first.subject, first.reply, first.headers, bytes(first.payload)) == (
        f"{unique}.a",
        "answers.here",
        {"H": ["1", "2"]},
        b"1",
    )
    assert (second.subject, second.reply, second.headers, bytes(second.payload)) == (f"{unique}.ü.日本", None, {}, b"")
    for row in (first, second):
        assert (row.stream, row.sequence) == (None, None)
        received = row.timestamp.replace(tzinfo=UTC)
        assert before - timedelta(seconds=1) <= received <= datetime.now(UTC) + timedelta(seconds=1)


def test_the_protocols_own_examples_arrive_exactly(spark: SparkSession, nats_server: Server, unique: str) -> None:
    frame = nats(spark.read, nats_server, subject=f"{unique}.>", maxMessages=6, readTimeout="30s").load()
    head = b"NATS/1.0\r\nBar: Baz\r\n\r\n"
    cases = b"NATS/1.0\r\nBREAKFAST: donut\r\nbreakfast: eggs\r\nBREAKFAST: more\r\n\r\n"
    wire = b"".join(
        [
            b"PUB %b.FOO 11\r\nHello NATS!\r\n",
            b"PUB %b.FRONT.DOOR JOKE.22 11\r\nKnock Knock\r\n",
            b"PUB %b.NOTIFY 0\r\n\r\n",
            b"HPUB %%b.HEADERS.ONLY %d %d\r\n%b\r\n" % (len(head), len(head), head),
            b"HPUB %%b.BOTH reply.to %d %d\r\n%bHello NATS!\r\n" % (len(head), len(head) + 11, head),
            b"HPUB %%b.CASES %d %d\r\n%b\r\n" % (len(cases), len(cases), cases),
        ]
    ).replace(b"%b", unique.encode())
    with listening(frame, nats_server, f"{unique}.>") as rows:
        assert send_raw(nats_server.url, wire) == b""
        found = [(r.subject.partition(".")[2], r.reply, r.headers, bytes(r.payload)) for r in rows()]
    assert found == [
        ("FOO", None, {}, b"Hello NATS!"),
        ("FRONT.DOOR", "JOKE.22", {}, b"Knock Knock"),
        ("NOTIFY", None, {}, b""),
        ("HEADERS.ONLY", None, {"Bar": ["Baz"]}, b""),
        ("BOTH", "reply.to", {"Bar": ["Baz"]}, b"Hello NATS!"),
        ("CASES", None, {"BREAKFAST": ["donut", "more"], "breakfast": ["eggs"]}, b""),
    ]


def test_several_tasks_share_the_messages_and_lose_none(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    frame = nats(spark.read, nats_server, subject=unique, minPartitions=2, readTimeout="4s").load()
    frame = frame.selectExpr("payload", "spark_partition_id() AS task")
    with listening(frame, nats_server, unique, tasks=2) as rows:
        nats_py.publish_many([(unique, b"%d" % i) for i in range(20_000)])
        found = rows()
    assert sorted(payloads(found)) == list(range(20_000))
    assert {row.task for row in found} == {0, 1}


def test_tasks_join_the_queue_group_that_is_named(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    frame = nats(spark.read, nats_server, subject=unique, queueGroup="workers", readTimeout="3s").load()
    with nats_py.collect(unique, "workers") as other, listening(frame, nats_server, unique, tasks=2) as rows:
        nats_py.publish_many([(unique, b"%d" % i) for i in range(1000)])
        mine = payloads(rows())
        theirs = [int(message.payload) for message in other.messages]
    assert sorted(mine + theirs) == list(range(1000))
    assert mine
    assert theirs


def test_a_read_ends_when_it_has_enough(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    frame = nats(spark.read, nats_server, subject=unique, maxMessages=7, readTimeout="10m").load()
    with listening(frame, nats_server, unique) as rows:
        nats_py.publish_many([(unique, b"%d" % i) for i in range(100)])
        assert payloads(rows()) == list(range(7))


def test_tasks_share_the_limit(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    frame = nats(spark.read, nats_server, subject=unique, maxMessages=101, minPartitions=2, readTimeout="10m").load()
    frame = frame.selectExpr("payload", "spark_partition_id() AS task")
    with listening(frame, nats_server, unique, tasks=2) as rows:
        nats_py.publish_many([(unique, b"%d" % i) for i in range(5000)])
        found = rows()
    assert sorted(sum(row.task == task for row in found) for task in (0, 1)) == [50, 51]
    assert len(set(payloads(found))) == 101


def test_several_subjects_are_read_in_order_and_overlapping_ones_twice(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    both = f"{unique}.a.>, {unique}.*.x"
    frame = nats(spark.read, nats_server, subject=both, readTimeout="3s").load()
    with listening(frame, nats_server, f"{unique}.a.>", f"{unique}.*.x") as rows:
        for i, subject in enumerate(("a.y", "b.x", "a.x", "a.z", "b.y")):
            nats_py.publish(f"{unique}.{subject}", b"%d" % i)
        assert payloads(rows()) == [0, 1, 2, 2, 3]
    frame = nats(spark.read, nats_server, subject=both, maxMessages=3, readTimeout="10m").load()
    with listening(frame, nats_server, f"{unique}.a.>", f"{unique}.*.x") as rows:
        nats_py.publish_many([(f"{unique}.a.x", b"%d" % i) for i in range(10)])
        assert payloads(rows()) == [0, 0, 1]


def test_nothing_published_is_no_row(spark: SparkSession, nats_server: Server, unique: str) -> None:
    frame = nats(spark.read, nats_server, subject=unique, readTimeout="300ms").load()
    assert frame.collect() == []


def test_only_the_columns_asked_for_are_there(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    reader = nats(spark.read, nats_server, subject=unique, maxMessages=1, readTimeout="30s")
    with listening(reader.schema("payload BINARY, reply STRING").load(), nats_server, unique) as rows:
        nats_py.publish(unique, b"1", reply="r")
        assert [row.asDict() for row in rows()] == [{"payload": bytearray(b"1"), "reply": "r"}]


def test_what_is_on_its_way_at_the_end_is_read_too() -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.expect(b"UNSUB 1\r\n")
        peer.send(b"MSG late 1 1\r\n1\r\n")
        peer.expect(b"PING\r\n")
        peer.send(b"MSG late 1 1\r\n2\r\nPONG\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url:
        assert read_here(url, subject="late", readTimeout="50ms") == [b"1", b"2"]


def test_a_server_that_says_ok_to_everything_is_understood() -> None:
    def script(peer: Peer) -> None:
        peer.send(b'INFO {"server_id":"S","headers":true,"max_payload":1048576}\r\n')
        peer.expect(b"PING\r\n")
        peer.send(b"+OK\r\nPONG\r\n")
        peer.expect(b"UNSUB 1 3\r\n")
        peer.send(b"+OK\r\nMSG a 1 1\r\n1\r\n+OK\r\nMSG a 1 1\r\n2\r\nPING\r\nMSG a 1 1\r\n3\r\nPONG\r\n")
        peer.expect(b"PONG\r\n")
        peer.expect(b"PING\r\n")
        peer.send(b"+OK\r\nPONG\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url:
        assert read_here(url, subject="a", maxMessages="3", readTimeout="10s") == [b"1", b"2", b"3"]


def read_here(url: str, **options: str) -> list[bytes]:
    """The payloads that the one task of a read gets, run in this process."""
    reader = NatsCoreReader(
        parse_read({"servers": url, **options}, streaming=False), StructType().add("payload", "binary")
    )
    (partition,) = reader.partitions()
    return [payload for batch in reader.read(partition) for payload in batch.column("payload").to_pylist()]


def test_a_missing_permission_to_subscribe_is_named(spark: SparkSession, server_factory: ServerFactory) -> None:
    permissions = 'subscribe: { deny: ["forbidden.>"] }'
    server = server_factory(
        f"authorization {{ users: [ {{ user: ann, password: pw, permissions: {{ {permissions} }} }} ] }}"
    )
    login = {"user": "ann", "password": "pw"}
    error = error_of(nats(spark.read, server, subject="forbidden.x", **login).load().collect)
    assert 'Permissions Violation for Subscription to "forbidden.x"' in error
    query = nats(spark.readStream, server, subject="forbidden.x", **login).load().writeStream.format("noop").start()
    assert 'Permissions Violation for Subscription to "forbidden.x"' in error_of(lambda: query.awaitTermination(60))


# Writing


def test_a_connection_without_echo_is_not_sent_what_it_published(nats_server: Server, unique: str) -> None:
    for echo, copies in ((True, 1), (False, 0)):
        with connect(options_for(nats_server.url, echo=echo)) as connection:
            subscription = connection.subscribe(unique)
            connection.send(b"PUB %b 1\r\nx\r\n" % unique.encode())
            assert len(connection.drain(subscription)) == copies


def test_the_option_echo_reaches_the_server(spark: SparkSession) -> None:
    hellos: list[bytes] = []

    def script(peer: Peer) -> None:
        hellos.append(peer.let_in())
        while True:
            peer.expect(b"PING\r\n")
            peer.send(b"PONG\r\n")

    with scripted_server(script) as url:
        for echo in ("true", "false"):
            options = parse_write({"servers": url, "subject": "a", "echo": echo, "requestTimeout": "300ms"}, False)
            NatsWriter(options).write(iter([]))
    assert [b'"echo":%b' % echo in hello for echo, hello in zip((b"true", b"false"), hellos, strict=True)] == [True] * 2


def test_rows_that_the_server_took_before_an_error_are_counted() -> None:
    said = b"-ERR 'Maximum Payload Violation'\r\n"

    def script(peer: Peer) -> None:
        peer.let_in()
        for _ in range(2):  # the first two batches are taken
            peer.expect(b"PING\r\n")
            peer.send(b"PONG\r\n")
        peer.expect(b"PING\r\n")
        peer.send(said)

    batches = [pa.record_batch({"payload": [b"x"] * 100}) for _ in range(3)]
    with scripted_server(script) as url:
        options = parse_write({"servers": url, "subject": "a"}, False)
        writer = NatsWriter(options)
        looked_at(writer)
        with pytest.raises(ServerError) as raised:
            writer.write(iter(batches))
    assert "Maximum Payload Violation" in str(raised.value)
    assert "; 200 rows of this task were flushed before, up to 300 rows of this task were sent" in str(raised.value)


def looked_at(writer: NatsWriter) -> None:
    """As if it had been looked already whether a stream listens, which a scripted server could not answer."""
    from spark_nats.sink import writers

    writers._looked.append(writer._id)


def test_refused_rows_are_not_among_those_flushed(spark: SparkSession, server_factory: ServerFactory) -> None:
    server = server_factory(
        'authorization { users: [ { user: ann, password: pw, permissions: { publish: { deny: ["forbidden.>"] } } } ] }'
    )
    rows = spark.range(100_000).coalesce(1)
    rows = rows.selectExpr("if(id < 60000, 'allowed.x', 'forbidden.x') AS subject", "string(id) AS payload")
    error = error_of(lambda: save(rows, server, user="ann", password="pw"))
    assert 'Permissions Violation for Publish to "forbidden.x"' in error
    said = re.search(r"(\d+) rows of this task were flushed before, up to (\d+) rows", error)
    assert said, error
    assert int(said[1]) <= 60_000 < int(said[2])


def test_an_uncaptured_or_acknowledged_write_is_not_warned_about(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture, server_factory: ServerFactory
) -> None:
    nats_py.create_stream(unique)
    without = server_factory(jetstream=False)
    permissions = 'publish: { deny: ["$JS.>"] }, subscribe: { deny: ["_INBOX.>"] }'
    strict = server_factory(
        f"authorization {{ users: [ {{ user: ann, password: pw, permissions: {{ {permissions} }} }} ] }}"
    )
    for server, options in (
        (nats_server, {"subject": f"other.{unique}"}),
        (nats_server, {"subject": f"{unique}.x", "stream": unique}),
        (without, {"subject": f"{unique}.x"}),
        (strict, {"subject": f"{unique}.x", "user": "ann", "password": "pw"}),
    ):
        write_here(server, **options)
    assert not caplog.records


def test_a_write_that_a_stream_captures_is_warned_about_once(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    with caplog.at_level(logging.WARNING):
        write_here(nats_server, subject=f"{unique}.x")
        (record,) = caplog.records
        assert record.getMessage() == (
            f"the subject '{unique}.x' belongs to the stream '{unique}', but is written without the option 'stream': "
            "nothing is acknowledged, and the stream may drop messages without an error; set the option 'stream' to "
            f"'{unique}'"
        )
        caplog.clear()
        subjects = pa.array([f"other.{unique}", f"{unique}.x"])
        batch = pa.record_batch({"subject": subjects, "payload": [b"1", b"2"]})
        NatsWriter(parse_write({"servers": nats_server.url}, False)).write(iter([batch, batch]))
        assert len(caplog.records) == 1
    assert nats_py.stream_info(unique)["state"]["messages"] == 4


def write_here(server: Server, **options: Any) -> None:
    """Write two batches with one task, run in this process."""
    batch = pa.record_batch({"payload": [b"1"]})
    NatsWriter(parse_write({"servers": server.url, **options}, False)).write(iter([batch, batch]))


def test_replies_reach_those_who_asked(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    answers = spark.createDataFrame([(unique, "r.1", "x")], "subject STRING, reply STRING, payload STRING")
    with nats_py.collect(unique) as collected:
        save(answers, nats_server, echo=False)
        assert collected.wait(1) == [Message(unique, b"x", {}, "r.1")]
