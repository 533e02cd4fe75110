"""Reading core NATS in batch, and writing to it: what is published while the tasks listen, as rows."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_nats import clock
from spark_nats.client import connect
from spark_nats.errors import ServerError
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.write.writers import NatsWriter
from tests.connections import options_for
from tests.integration.support import (
    MESSAGE,
    batch_reader,
    error_of,
    nats,
    numbers_of,
    read_partitions,
    read_payloads,
    sentence_of,
    wait_for_subscriptions,
    write,
)
from tests.nats_py import Message, NatsPy, send_raw
from tests.scripted_server import Peer, scripted_server
from tests.servers import Server, ServerFactory


@contextmanager
def listening(
    server: Server, *subjects: str, tasks: int = 1, schema: StructType = MESSAGE, **options: Any
) -> Iterator[Callable[[], list[list[dict[str, Any]]]]]:
    """Read a batch, each task in a thread; the block begins when they listen. Returns what waits for their rows."""
    reader = batch_reader(server, schema, subject=", ".join(subjects), **options)
    partitions, pickled = reader.partitions(), pickle.dumps(reader)
    assert len(partitions) == tasks
    with ThreadPoolExecutor(tasks) as pool:
        rows = [pool.submit(read_partitions, pickled, [partition]) for partition in partitions]
        wait_for_subscriptions(server, *subjects, count=tasks)
        yield lambda: [task.result(60) for task in rows]


LATE = -1
"""The number of a message that is published when the time of the tasks is over: its task looks at the clock then."""


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock that tasks look at forward by some seconds."""
    passed: list[float] = []
    monotonic = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + sum(passed))
    return passed.append


def test_messages_arrive_as_rows(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    before = datetime.now(UTC)
    frame = nats(spark.read, nats_server, subject=f"{unique}.>", maxMessages=3, minPartitions=2, readTimeout="10m")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(frame.load().collect)
        wait_for_subscriptions(nats_server, f"{unique}.>", count=2)
        for _ in range(20):  # enough for both tasks, of which one takes two and one takes one
            nats_py.publish(f"{unique}.ü.日本", b"1\xff", headers={"H": ["1", "2"]}, reply="answers.here")
            nats_py.publish(f"other.{unique}", b"not for us")
        rows = read.result(60)
    assert len(rows) == 3
    for row in rows:
        assert (row.subject, row.reply, row.headers) == (f"{unique}.ü.日本", "answers.here", {"H": ["1", "2"]})
        assert (bytes(row.payload), row.stream, row.sequence) == (b"1\xff", None, None)
        received = row.timestamp.replace(tzinfo=UTC)
        assert before - timedelta(seconds=1) <= received <= datetime.now(UTC) + timedelta(seconds=1)


@pytest.mark.docker
def test_all_that_is_published_while_a_task_listens_is_read(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    before = datetime.now(UTC)
    with listening(nats_server, f"{unique}.>", maxMessages=2, readTimeout="10m") as read:
        nats_py.publish(f"{unique}.a", b"1", headers={"H": ["1", "2"]}, reply="answers.here")
        nats_py.publish(f"other.{unique}", b"not for us")
        nats_py.publish(f"{unique}.ü.日本", b"")
        ((first, second),) = read()
    assert [first[name] for name in ("subject", "reply", "headers", "payload")] == [
        f"{unique}.a",
        "answers.here",
        [("H", ["1", "2"])],
        b"1",
    ]
    assert [second[name] for name in ("subject", "reply", "headers", "payload")] == [f"{unique}.ü.日本", None, [], b""]
    for row in (first, second):
        assert (row["stream"], row["sequence"]) == (None, None)
        assert before - timedelta(seconds=1) <= row["timestamp"] <= datetime.now(UTC) + timedelta(seconds=1)


def test_the_protocols_own_examples_arrive_exactly(nats_server: Server, unique: str) -> None:
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
    with listening(nats_server, f"{unique}.>", maxMessages=6, readTimeout="30s") as read:
        assert send_raw(nats_server.url, wire) == b""
        (rows,) = read()
        found = [(r["subject"].partition(".")[2], r["reply"], dict(r["headers"]), r["payload"]) for r in rows]
    assert found == [
        ("FOO", None, {}, b"Hello NATS!"),
        ("FRONT.DOOR", "JOKE.22", {}, b"Knock Knock"),
        ("NOTIFY", None, {}, b""),
        ("HEADERS.ONLY", None, {"Bar": ["Baz"]}, b""),
        ("BOTH", "reply.to", {"Bar": ["Baz"]}, b"Hello NATS!"),
        ("CASES", None, {"BREAKFAST": ["donut", "more"], "breakfast": ["eggs"]}, b""),
    ]


def test_several_tasks_share_the_messages_and_lose_none(
    nats_server: Server, nats_py: NatsPy, unique: str, pass_time: Callable[[float], None]
) -> None:
    options = {"minPartitions": 2, "readTimeout": "20s", "requestTimeout": "60s"}
    with listening(nats_server, unique, tasks=2, **options) as read:
        nats_py.publish_each(unique, range(20_000))
        pass_time(20)
        nats_py.publish_each(unique, [LATE] * 1000)
        first, second = ([number for number in numbers_of(rows) if number != LATE] for rows in read())
    assert sorted(first + second) == list(range(20_000))
    assert first
    assert second


def test_tasks_join_the_queue_group_that_is_named(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with nats_py.collect(unique, "workers") as other:
        with listening(nats_server, unique, queueGroup="workers", maxMessages=300, readTimeout="10m") as read:
            wait_for_subscriptions(nats_server, unique, count=2)
            nats_py.publish_each(unique, range(1000))
            (mine,) = map(numbers_of, read())
        theirs = [int(message.payload) for message in other.wait(700, timeout=60)]
    assert len(mine) == 300
    assert sorted(mine + theirs) == list(range(1000))


@pytest.mark.docker
def test_a_read_ends_when_it_has_enough(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with listening(nats_server, unique, maxMessages=7, readTimeout="10m") as read:
        nats_py.publish_each(unique, range(100))
        assert list(map(numbers_of, read())) == [list(range(7))]


def test_tasks_share_the_limit(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with listening(nats_server, unique, tasks=2, maxMessages=101, minPartitions=2, readTimeout="10m") as read:
        nats_py.publish_each(unique, range(5000))
        found = list(map(numbers_of, read()))
    assert sorted(map(len, found)) == [50, 51]
    assert len({*found[0], *found[1]}) == 101


def test_several_subjects_are_read_in_order_and_overlapping_ones_twice(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    both = (f"{unique}.a.>", f"{unique}.*.x")
    with listening(nats_server, *both, maxMessages=5, readTimeout="10m") as read:
        for i, subject in enumerate(("a.y", "b.x", "b.y", "a.x", "a.z")):
            nats_py.publish(f"{unique}.{subject}", b"%d" % i)
        assert list(map(numbers_of, read())) == [[0, 1, 3, 3, 4]]
    with listening(nats_server, *both, maxMessages=3, readTimeout="10m") as read:
        nats_py.publish_each(f"{unique}.a.x", range(10))
        assert list(map(numbers_of, read())) == [[0, 0, 1]]


def test_nothing_published_is_no_row(nats_server: Server, unique: str) -> None:
    assert read_payloads(nats_server, subject=unique, readTimeout="300ms") == []


def test_only_the_columns_asked_for_are_there(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    schema = StructType().add("payload", "binary").add("reply", "string")
    with listening(nats_server, unique, schema=schema, maxMessages=1, readTimeout="30s") as read:
        nats_py.publish(unique, b"1", reply="r")
        assert read() == [[{"payload": b"1", "reply": "r"}]]


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
        assert read_payloads(url, subject="late", readTimeout="50ms") == [b"1", b"2"]


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
        assert read_payloads(url, subject="a", maxMessages=3, readTimeout="10s") == [b"1", b"2", b"3"]


def test_a_missing_permission_to_subscribe_is_named(spark: SparkSession, server_factory: ServerFactory) -> None:
    permissions = 'subscribe: { deny: ["forbidden.>"] }'
    server = server_factory(
        f"authorization {{ users: [ {{ user: ann, password: pw, permissions: {{ {permissions} }} }} ] }}"
    )
    login = {"user": "ann", "password": "pw"}
    error = sentence_of(lambda: read_payloads(server, subject="forbidden.x", **login))
    assert 'Permissions Violation for Subscription to "forbidden.x"' in error
    query = nats(spark.readStream, server, subject="forbidden.x", **login).load().writeStream.format("noop").start()
    assert 'Permissions Violation for Subscription to "forbidden.x"' in error_of(lambda: query.awaitTermination(120))


# Writing


def test_a_connection_without_echo_is_not_sent_what_it_published(nats_server: Server, unique: str) -> None:
    for echo, copies in ((True, 1), (False, 0)):
        with connect(options_for(nats_server.url, echo=echo)) as connection:
            subscription = connection.subscribe(unique)
            connection.send(b"PUB %b 1\r\nx\r\n" % unique.encode())
            assert len(connection.unsubscribe_and_drain(subscription)) == copies


def test_the_option_echo_reaches_the_server() -> None:
    hellos: list[bytes] = []

    def script(peer: Peer) -> None:
        hellos.append(peer.let_in())
        while True:
            peer.expect(b"PING\r\n")
            peer.send(b"PONG\r\n")

    with scripted_server(script) as url:
        for echo in ("true", "false"):
            options = parse_write_options({"servers": url, "subject": "a", "echo": echo}, False)
            NatsWriter(options).write(iter([]))
    assert [b'"echo":%b' % echo in hello for echo, hello in zip((b"true", b"false"), hellos, strict=True)] == [True] * 2


@pytest.mark.promise("writing#spark-to-core")
def test_rows_that_the_server_took_before_an_error_are_counted() -> None:
    said = b"-ERR 'Unknown Protocol Operation'\r\n"

    def script(peer: Peer) -> None:
        peer.let_in()
        for _ in range(2):  # the first two batches are taken
            peer.expect(b"PING\r\n")
            peer.send(b"PONG\r\n")
        peer.expect(b"PING\r\n")
        peer.send(said)

    batches = [pa.record_batch({"payload": [b"x"] * 100}) for _ in range(3)]
    with scripted_server(script) as url:
        options = parse_write_options({"servers": url, "subject": "a"}, False)
        writer = NatsWriter(options)
        looked_at(writer)
        with pytest.raises(ServerError) as raised:
            writer.write(iter(batches))
    assert "Unknown Protocol Operation" in str(raised.value)
    assert "; 200 rows of this task were flushed before, up to 300 rows of this task were sent" in str(raised.value)


def looked_at(writer: NatsWriter) -> None:
    """As if it had been looked already whether a stream listens, which a scripted server could not answer."""
    from spark_nats.kinds.streams.write import partitions

    partitions._looked.append(writer._id)


def test_refused_rows_are_not_among_those_flushed(server_factory: ServerFactory) -> None:
    server = server_factory(
        'authorization { users: [ { user: ann, password: pw, permissions: { publish: { deny: ["forbidden.>"] } } } ] }'
    )
    subjects = ["allowed.x"] * 60_000 + ["forbidden.x"] * 40_000
    rows = pa.table({"subject": subjects, "payload": [str(i) for i in range(100_000)]})
    error = sentence_of(lambda: write(server, rows, user="ann", password="pw"))
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
            "[NATS_SUBJECT_OF_STREAM] "
            f"the subject '{unique}.x' belongs to the stream '{unique}', but rows are published to it without "
            "the option 'stream': nothing is acknowledged, and the stream may drop messages without an error; "
            f"set the option 'stream' to '{unique}'"
        )
        caplog.clear()
        subjects = pa.array([f"other.{unique}", f"{unique}.x"])
        batch = pa.record_batch({"subject": subjects, "payload": [b"1", b"2"]})
        NatsWriter(parse_write_options({"servers": nats_server.url}, False)).write(iter([batch, batch]))
        assert len(caplog.records) == 1
    assert nats_py.held(unique) == 4


def write_here(server: Server, **options: Any) -> None:
    """Write two batches with one task, run in this process."""
    batch = pa.record_batch({"payload": [b"1"]})
    NatsWriter(parse_write_options({"servers": server.url, **options}, False)).write(iter([batch, batch]))


@pytest.mark.docker
def test_replies_reach_those_who_asked(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with nats_py.collect(unique) as collected:
        write(nats_server, pa.table({"subject": [unique], "reply": ["r.1"], "payload": ["x"]}), echo=False)
        assert collected.wait(1) == [Message(unique, b"x", {}, "r.1")]
