"""Streaming queries of core NATS: nothing that was received is lost, and what is lost is said."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from spark_nats.embedded import NatsServer
from spark_nats.errors import AuthorizationError, DataLossError, NatsConnectionError, NatsError
from spark_nats.kinds.core import receiver
from spark_nats.kinds.core.read import NatsCoreStreamReader
from spark_nats.kinds.queries import parse_read_options
from spark_nats.sparkapi import ReadAllAvailable
from tests.integration.support import (
    collecting,
    error_of,
    finish,
    monitoring,
    nats,
    numbers_of,
    running,
    sentence_of,
    stream_reader,
    wait_for_subscriptions,
)
from tests.nats_py import NatsPy, send_raw, wait_until
from tests.scripted_server import INFO, Peer, scripted_server
from tests.servers import Server, ServerFactory


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the receivers that run in this process look often whether they are to end."""
    monkeypatch.setattr(receiver, "_POLL", 0.01)


def test_a_query_reads_what_is_published_while_it_runs(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    head = b"NATS/1.0\r\nBREAKFAST: donut\r\nbreakfast: eggs\r\nBREAKFAST: more\r\n\r\n"
    wire = b"".join(
        [
            b"PUB %b.FRONT.DOOR JOKE.22 11\r\nKnock Knock\r\n",
            "PUB %b.ü.日本 0\r\n\r\n".encode(),
            b"HPUB %%b.ONLY %d %d\r\n%b\r\n" % (len(head), len(head), head),
            b"HPUB %%b.BOTH reply.to %d %d\r\n%b\r\nMSG x 1 1\r\n\r\n" % (len(head), len(head) + 13, head),
        ]
    ).replace(b"%b", unique.encode())
    nats_py.publish_each(f"{unique}.early", range(1))
    frame = nats(spark.readStream, nats_server, subject=f"{unique}.>").load()
    with collecting(frame, unique) as (query, read):
        wait_for_subscriptions(nats_server, f"{unique}.>")
        assert send_raw(nats_server.url, wire) == b""
        rows = wait_until(lambda: found if len(found := read()) >= 4 else None, timeout=120)
        nats_py.publish_each(f"{unique}.later", range(2))
        wait_until(lambda: len(read()) == 6, timeout=120)
        stamps = [row.timestamp for row in read()]
        assert query.recentProgress[-1]["sources"][0]["endOffset"]
    many = {"BREAKFAST": ["donut", "more"], "breakfast": ["eggs"]}
    assert [(r.subject.partition(".")[2], r.reply, r.headers, bytes(r.payload)) for r in rows] == [
        ("FRONT.DOOR", "JOKE.22", {}, b"Knock Knock"),
        ("ü.日本", None, {}, b""),
        ("ONLY", None, many, b""),
        ("BOTH", "reply.to", many, b"\r\nMSG x 1 1\r\n"),
    ]
    assert {(row.stream, row.sequence) for row in rows} == {(None, None)}
    assert stamps == sorted(stamps)
    assert stamps[3] < stamps[4]
    wait_until(lambda: not subscribed(nats_server, f"{unique}.>"), timeout=120)  # the query has ended


def subscribed(server: Server, subject: str) -> int:
    page = monitoring(server, "subsz?subs=1&limit=10000")
    return [entry["subject"] for entry in page.get("subscriptions_list") or []].count(subject)


@pytest.mark.promise("writing#core-to-spark")
def test_a_burst_at_full_speed_arrives_completely(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    found: list[int] = []
    with here(nats_server.url, subject=unique, minPartitions="2") as reader, ThreadPoolExecutor(1) as pool:
        burst = pool.submit(nats_py.publish_each, unique, range(40_000))

        def all_read() -> bool:
            found.extend(reader.micro_batch())
            return len(found) >= 40_000

        wait_until(all_read, timeout=120)
        burst.result()
    assert sorted(found) == list(range(40_000))


def test_queries_of_one_queue_group_share_and_others_see_all(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    url = nats_server.url
    with (
        here(url, subject=f"{unique}.>", queueGroup="g") as first,
        here(url, subject=f"{unique}.>", queueGroup="g") as second,
        here(url, subject=f"{unique}.*") as third,
        here(url, subject=f"{unique}.*") as fourth,
    ):
        nats_py.publish_each(f"{unique}.x", range(1000))
        wait_until(lambda: first.received + second.received == third.received == fourth.received == 1000)
        shares = first.micro_batch(), second.micro_batch()
        assert all(shares)
        assert sorted(shares[0] + shares[1]) == list(range(1000))
        assert third.micro_batch() == fourth.micro_batch() == list(range(1000))


def test_several_receivers_share_the_messages(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with here(nats_server.url, subject=unique, receivers="3", connectionName=unique) as reader:
        assert subscribed(nats_server, unique) == 3
        nats_py.publish_each(unique, range(20_000))
        wait_until(lambda: reader.received == 20_000, timeout=120)
        start, end = reader.offset, reader.reader.latestOffset(reader.offset, ReadAllAvailable())
        rows = reader.read(start, end)
        assert sorted(int(payload) for payload, _ in rows) == list(range(20_000))
        assert len({timestamp for _, timestamp in rows}) > 1
        carried = [c["out_msgs"] for c in monitoring(nats_server, "connz")["connections"] if c.get("name") == unique]
        assert len(carried) == 3
        assert all(carried)


def test_a_micro_batch_is_no_larger_than_allowed(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with here(nats_server.url, subject=unique, maxOffsetsPerTrigger="30", minPartitions="4") as reader:
        nats_py.publish_each(unique, range(96))
        wait_until(lambda: reader.received == 96, timeout=120)
        batches = [reader.micro_batch() for _ in range(5)]
    assert [len(batch) for batch in batches] == [30, 30, 30, 6, 0]
    assert [row for batch in batches for row in batch] == list(range(96))


@pytest.mark.long("spark_nats/kinds/core/*")
def test_the_progress_of_a_query_shows_what_it_has_not_read_yet(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """How much of what is published at once comes to the driver in time for a micro-batch is not certain."""
    gate, begun = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    def process(frame: DataFrame, _: int) -> None:
        rows = numbers_of(frame.collect())
        if rows:
            begun.set()
            assert gate.wait(120)
            batches.append(rows)

    frame = nats(spark.readStream, nats_server, subject=unique, maxOffsetsPerTrigger=30, minPartitions=4).load()
    with running(frame.writeStream.foreachBatch(process).start()) as query:
        wait_for_subscriptions(nats_server, unique)
        nats_py.publish_each(unique, range(1))
        assert begun.wait(120)
        nats_py.publish_each(unique, range(1, 50))
        gate.set()
        wait_until(lambda: sum(map(len, batches)) == 50, timeout=120)
        wait_until(lambda: sum(p["numInputRows"] for p in query.recentProgress) == 50, timeout=120)
        progress = [p["sources"][0] for p in query.recentProgress if p["numInputRows"]]
    assert [row for batch in batches for row in batch] == list(range(50))
    assert max(map(len, batches)) <= 30
    read, seen = ([json.loads(p[offset])["messages"] for p in progress] for offset in ("endOffset", "latestOffset"))
    assert [end - begin for begin, end in zip([0, *read], read, strict=False)] == [len(batch) for batch in batches]
    assert all(end <= latest for end, latest in zip(read, seen, strict=True))
    assert max(seen) == 50


def test_an_idle_query_runs_no_micro_batches(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    frame = nats(spark.readStream, nats_server, subject=unique).load()
    with collecting(frame, unique) as (query, read):
        wait_for_subscriptions(nats_server, unique)
        nats_py.publish_each(unique, range(1))
        wait_until(lambda: len(read()) == 1, timeout=120)
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive", timeout=120)
        nats_py.publish_each(f"other.{unique}", range(10))
        nats_py.publish_each(unique, range(1, 2))
        wait_until(lambda: len(read()) == 2, timeout=120)

        def with_rows() -> list[int]:
            return [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]

        wait_until(lambda: len(with_rows()) == 2, timeout=120)
        first, second = with_rows()
        assert second == first + 1


def test_a_query_for_what_there_is_ends_at_once(
    spark: SparkSession, nats_server: Server, unique: str, tmp_path: Path
) -> None:
    frame = nats(spark.readStream, nats_server, subject=unique).load()
    writer = frame.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", str(tmp_path))
    for _ in range(2):
        query = finish(writer.start())
        assert sum(p["numInputRows"] for p in query.recentProgress) == 0


def test_pings_are_answered_while_a_micro_batch_runs() -> None:
    begun, answered = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.send(b'INFO {"server_id":"S","headers":true,"max_payload":1048576}\r\n')
        peer.expect(b"PING\r\n")
        peer.send(b"+OK\r\nPONG\r\n")  # a verbose server
        peer.expect(b"PING\r\n")
        peer.send(b"+OK\r\nPONG\r\n")
        peer.send(b"MSG a 1 1\r\n0\r\n+OK\r\n")
        assert begun.wait(100)
        peer.send(b"".join(b"MSG a 1 1\r\n%d\r\n%b" % (i, b"PING\r\n" * (i == 5)) for i in range(1, 10)))
        peer.expect(b"PONG\r\n")
        answered.set()
        answer(peer)

    with scripted_server(script) as url, here(url) as reader:
        wait_until(lambda: reader.received == 1)
        assert reader.micro_batch() == [0]
        begun.set()
        assert answered.wait(120)  # the micro-batch lasts until the PONG is there
        wait_until(lambda: reader.received == 10)
        assert reader.micro_batch() == list(range(1, 10))


def test_a_query_outlives_its_server(server_factory: ServerFactory) -> None:
    server = server_factory()
    found: list[int] = []
    with here(server.url, subject="a.>", reconnectWait="20ms") as reader:
        for turn in range(3):
            with NatsPy(server.url) as client:
                client.publish_each("a.x", range(100 * turn, 100 * turn + 100))
            wait_until(lambda: reader.received == 100 * turn + 100, timeout=120)  # noqa: B023 - used in its own turn
            found += reader.micro_batch()
            server.kill()
            server.start()
            wait_for_subscriptions(server, "a.>")
    assert found == list(range(300))


# A micro-batch that was not finished


def crashing(
    spark: SparkSession, server: Server, checkpoint: Path, **options: Any
) -> tuple[Callable[[bool], StreamingQuery], list[list[Row]]]:
    """What starts a query that fails in its first micro-batch with rows, if so asked; and the rows of the others."""
    batches: list[list[Row]] = []

    def start(fails: bool) -> StreamingQuery:
        def process(frame: DataFrame, _: int) -> None:
            rows = frame.collect()
            if rows and fails:
                raise RuntimeError("crash")
            if rows:
                batches.append(rows)

        frame = nats(spark.readStream, server, **options).load()
        return frame.writeStream.foreachBatch(process).option("checkpointLocation", str(checkpoint)).start()

    return start, batches


def crash(query: StreamingQuery, client: NatsPy, server: Server, subject: str, count: int) -> None:
    # One that begins with an unfinished micro-batch may have failed before anybody looks.
    wait_until(lambda: subscribed(server, subject) or not query.isActive, timeout=120)
    client.publish_each(subject, range(count))
    with pytest.raises(Exception, match="crash"):
        query.awaitTermination(120)
    wait_until(lambda: not subscribed(server, subject), timeout=120)


@pytest.mark.long
def test_an_unfinished_micro_batch_is_reported_as_lost(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    start, _ = crashing(spark, nats_server, tmp_path, subject=unique)
    crash(start(True), nats_py, nats_server, unique, 10)
    query = start(False)
    error = error_of(lambda: query.awaitTermination(120))
    said = re.fullmatch(r"DataLossError: (\d+) messages of (\w+), which a micro-batch was about to process .*", error)
    assert said, error
    assert 1 <= int(said[1]) <= 10  # a part may have come too late for the micro-batch
    assert said[2] == unique
    assert "set the option 'failOnDataLoss' to false" in error
    assert "'spoolLocation'" in error
    start, batches = crashing(spark, nats_server, tmp_path, subject=unique, failOnDataLoss=False)
    with running(start(False)):
        wait_for_subscriptions(nats_server, unique)
        nats_py.publish_each(unique, range(100, 103))
        wait_until(lambda: sum(map(len, batches)) == 3, timeout=120)
    assert [row for batch in batches for row in numbers_of(batch)] == [100, 101, 102]


@pytest.mark.promise("exactly-once#core-to-spark")
def test_an_unfinished_micro_batch_is_read_from_the_spool(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    spool = tmp_path / "the spool"
    options = {"subject": unique, "spoolLocation": spool.as_uri(), "minPartitions": 3}
    start, batches = crashing(spark, nats_server, tmp_path / "checkpoint", **options)
    crash(start(True), nats_py, nats_server, unique, 1)
    crash(start(True), nats_py, nats_server, unique, 50)  # the same micro-batch again, of another process
    (kept,) = spool.glob("*/*.arrow")

    def numbers() -> list[int]:
        return [row for batch in list(batches) for row in numbers_of(batch)]

    with running(start(False)):
        wait_until(lambda: batches, timeout=120)
        assert numbers_of(batches[0]) == [0]
        wait_for_subscriptions(nats_server, unique)
        nats_py.publish_each(unique, range(100, 103))
        wait_until(lambda: 102 in numbers(), timeout=120)
        nats_py.publish_each(unique, range(103, 104))
        wait_until(lambda: 103 in numbers(), timeout=120)
        wait_until(lambda: not kept.exists(), timeout=120)
    *received, first, second, third, last = numbers()[1:]
    assert received == list(range(len(received)))  # by the second process, which had not planned them
    assert [first, second, third, last] == [100, 101, 102, 103]
    assert len(list(spool.glob("*/*.arrow"))) == 1  # Spark commits a micro-batch when it plans the next one


def test_a_spool_that_cannot_be_used_is_said(nats_server: Server, unique: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for location in (str(tmp_path / "file" / "spool"), "nosuchscheme://host/x"):
        error = sentence_of(lambda: Here(nats_server.url, subject=unique, spoolLocation=location))  # noqa: B023
        assert f"NatsError: the spool of the option 'spoolLocation' ({location!r}) cannot be opened: " in error


def test_a_checkpoint_of_a_stream_is_refused(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    checkpoint = stream_reader(nats_server, stream=unique).initialOffset()
    with here(nats_server.url, subject=unique) as reader:
        for ask in (
            lambda: reader.reader.latestOffset(checkpoint, ReadAllAvailable()),
            lambda: reader.reader.partitions(checkpoint, checkpoint),
        ):
            assert "is not one of core NATS; does the checkpoint belong to another query?" in sentence_of(ask)


# Requests


@pytest.mark.long
def test_every_request_is_answered_once(spark: SparkSession, nats_server: Server, unique: str, tmp_path: Path) -> None:
    requests = nats(spark.readStream, nats_server, subject=f"{unique}.sum", minPartitions=2).load()
    answers = requests.where("reply IS NOT NULL").selectExpr(
        "reply AS subject",
        "string(aggregate(from_json(string(payload), 'array<bigint>'), 0L, (a, b) -> a + b)) AS payload",
        "map('Computed-By', array('spark'), 'Asked', headers['Number']) AS headers",
    )
    query = nats(answers.writeStream, nats_server, checkpointLocation=str(tmp_path)).start()
    prefix = f"_INBOX_{unique}"
    with (
        running(query),
        NatsPy(nats_server.url, inbox_prefix=prefix.encode()) as client,
        client.collect(f"{prefix}.>") as collected,
    ):
        wait_for_subscriptions(nats_server, f"{unique}.sum")
        for i in range(50):  # nobody waits for these
            client.publish(f"{unique}.sum", b"[1]", reply=f"gone.{unique}.{i}")

        async def ask(i: int) -> tuple[bytes, dict[str, Any]]:
            headers = {"Number": str(i)}
            message = await client.nats.request(f"{unique}.sum", b"[%d, 1000]" % i, timeout=60, headers=headers)
            return message.data, message.headers or {}

        async def ask_all() -> list[tuple[bytes, dict[str, Any]]]:
            return await asyncio.gather(*map(ask, range(1000)))

        found = client.run(ask_all(), 90)
        client.publish_each(f"{unique}.sum", range(1))  # no request, and the last of all
        wait_until(lambda: sum(p["numInputRows"] for p in query.recentProgress) == 1051, timeout=120)
        assert len(collected.messages) == 1000
    assert [payload for payload, _ in found] == [b"%d" % (1000 + i) for i in range(1000)]
    assert [headers for _, headers in found] == [{"Computed-By": ["spark"], "Asked": [str(i)]} for i in range(1000)]


# The log of the driver's Python process cannot be seen from here, so for what is logged the reader runs in this one.


class Here:
    """A reader that is asked for micro-batches as Spark does it."""

    def __init__(self, url: str, **options: str) -> None:
        schema = StructType().add("payload", "binary").add("timestamp", "timestamp")
        self.reader = NatsCoreStreamReader(
            parse_read_options({"servers": url, "subject": "a", **options}, True), schema
        )
        self._executors = pickle.dumps(self.reader)
        self.offset: dict[str, Any] = self.reader.initialOffset()

    @property
    def received(self) -> int:
        self.reader.latestOffset(self.offset, ReadAllAvailable())
        latest = self.reader.reportLatestOffset()
        return int(latest["messages"]) if latest else 0

    @property
    def own_messages(self) -> int:
        """How many this process has received itself."""
        assert self.reader._backlog is not None
        return self.reader._backlog.end

    def micro_batch(self, commits: bool = True) -> list[int]:
        start, self.offset = self.offset, self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        rows = self.read(start, self.offset)
        if commits:
            self.reader.commit(self.offset)
        return [int(payload) for payload, _ in rows]

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[bytes, datetime]]:
        executor = pickle.loads(self._executors)
        partitions = [pickle.loads(pickle.dumps(partition)) for partition in self.reader.partitions(start, end)]
        batches = [batch for partition in partitions for batch in executor.read(partition)]
        return [(row["payload"], row["timestamp"]) for batch in batches for row in batch.to_pylist()]


@contextmanager
def here(url: str, **options: str) -> Iterator[Here]:
    reader = Here(url, **options)
    try:
        yield reader
    finally:
        reader.reader.stop()


def answer(peer: Peer) -> None:
    """Answer each PING, as that of a client which leaves, until it has."""
    while True:
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")


def test_the_newest_messages_are_dropped_and_counted_when_too_many_wait(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    with here(nats_server.url, subject=unique, maxBufferedBytes="20000") as reader:
        nats_py.publish_each(unique, range(10_000))
        reader.reader.stop()  # all has been received then
        record = caplog.records[0]
        rows = reader.micro_batch()
        assert reader.micro_batch() == []
    assert 10 < len(rows) < 10_000
    assert rows == list(range(len(rows)))
    assert re.fullmatch(
        r"\[NATS_MESSAGES_DROPPED\] "
        rf"core NATS, {unique}: {10_000 - len(rows)} messages since \S+ were dropped, because 20000 bytes were waiting "
        "already",
        record.getMessage(),
    )


def test_what_a_micro_batch_has_taken_waits_no_longer(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with here(nats_server.url, subject=unique, maxBufferedBytes="100000") as reader:
        start = reader.offset
        nats_py.publish(unique, b"x" * 99_000)
        wait_until(lambda: reader.received == 1)
        end = reader.reader.latestOffset(start, ReadAllAvailable())
        first = reader.read(start, end)
        nats_py.publish(unique, b"y" * 99_000)
        wait_until(lambda: reader.received == 2)
        assert reader.read(start, end) == first  # as often as it is asked for
        reader.reader.commit(end)
        assert reader.read(end, reader.reader.latestOffset(end, ReadAllAvailable()))[0][0] == b"y" * 99_000


def test_a_gap_is_said(server_factory: ServerFactory, caplog: pytest.LogCaptureFixture) -> None:
    server = server_factory()
    with here(server.url, reconnectWait="20ms") as reader, caplog.at_level(logging.WARNING):
        server.kill()
        wait_until(lambda: caplog.records)
        assert re.fullmatch(
            rf"\[NATS_TRYING_AGAIN\] listening to a: .*{server.url}.*; trying again", caplog.records[0].getMessage()
        )
        caplog.clear()
        server.start()
        wait_for_subscriptions(server, "a")
        with NatsPy(server.url) as client:
            client.publish_each("a", range(5))
        wait_until(lambda: reader.received == 5)
        assert reader.micro_batch() == [0, 1, 2, 3, 4]
        ended, record = caplog.records
        assert ended.getMessage().startswith("[NATS_GOES_ON] listening to a: ")
        at = r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00"
        assert re.fullmatch(
            r"\[NATS_MESSAGES_MISSED\] "
            rf"core NATS, a: messages published from {at} to {at} were missed, because there was no connection \(.+\)",
            record.getMessage(),
        )


def test_a_slow_consumer_is_connected_again(caplog: pytest.LogCaptureFixture) -> None:
    turns = iter(range(3))

    def script(peer: Peer) -> None:
        turn = next(turns)
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\nMSG a 1 1\r\n%d\r\n" % turn)
        if turn < 2:
            peer.send(b"PING\r\n")
            peer.expect(b"PONG\r\n")  # the subscription stands
            peer.send(b"MSG a 1 2\r\n1%d\r\n-ERR 'Slow Consumer'\r\n" % turn)
        else:
            answer(peer)

    with scripted_server(script) as url, here(url, reconnectWait="20ms") as reader, caplog.at_level(logging.WARNING):
        wait_until(lambda: reader.reader._backlog and reader.reader._backlog.end == 5)
        caplog.clear()
        assert reader.micro_batch() == [0, 10, 1, 11, 2]
        assert len(caplog.records) == 2
    assert caplog.text.count("were missed, because there was no connection") == 2
    assert caplog.text.count("Slow Consumer") == 2


def test_a_server_that_does_not_let_us_in_again_ends_the_query(server_factory: ServerFactory) -> None:
    server = server_factory()
    with here(server.url, reconnectWait="20ms") as reader:
        server.kill()
        with NatsServer("authorization { token: other }", port=server.port):
            wait_until(lambda: is_refused(reader))


def is_refused(reader: Here) -> bool:
    try:
        reader.reader.latestOffset(reader.offset, ReadAllAvailable())
    except AuthorizationError:
        return True
    return False


def test_one_refusal_of_several_ends_no_query() -> None:
    """A server that has just started may not know all accounts yet."""
    turns = iter(range(3))

    def script(peer: Peer) -> None:
        turn = next(turns)
        if turn == 1:
            peer.send(INFO)
            peer.expect(b"PING\r\n")
            peer.send(b"-ERR 'Authorization Violation'\r\n")
            return
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\nMSG a 1 1\r\n%d\r\n" % turn)
        if turn == 2:
            answer(peer)

    with scripted_server(script) as url, here(url, reconnectWait="20ms") as reader:
        wait_until(lambda: reader.received == 2)
        assert reader.micro_batch() == [0, 2]


def test_a_reader_that_waits_for_its_server_stops_at_once(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_factory()
    with here(server.url, reconnectWait="1h") as reader:
        server.kill()
        wait_until(lambda: "NATS_TRYING_AGAIN" in caplog.text)
        reader.reader.stop()  # closing gives a thread ten seconds
        assert not [thread for thread in threading.enumerate() if thread.name == "nats-receiver"]


def test_a_query_leaves_a_server_that_shuts_down_for_another_one(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    patient = 'lame_duck_duration: "20m"\nlame_duck_grace_period: "10m"'  # it waits for its clients
    one, other = server_factory(patient), server_factory()
    other.kill()
    with here(f"{one.url},{other.url}") as reader:
        other.start()
        with NatsPy(one.url) as client:
            client.publish_each("a", range(100))
        assert one.pid
        os.kill(one.pid, signal.SIGUSR2)  # lame duck mode
        wait_for_subscriptions(other, "a")
        with NatsPy(other.url) as client:
            client.publish_each("a", range(100, 200))
        wait_until(lambda: reader.received == 200)
        assert one.running  # it gives its clients time
        assert reader.micro_batch() == list(range(200))
        assert caplog.messages[-1].endswith(f" were missed, because {one.url} is shutting down")
    one.kill()  # it would wait for the last of them


def test_a_query_stays_with_a_server_that_shuts_down_where_there_is_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(peer: Peer) -> None:
        if url in visits:
            return  # the server has stopped listening
        visits.append(url)
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n" + INFO.replace(b'"proto"', b'"ldm":true,"proto"'))
        left.wait(120)
        peer.send(b"MSG a 1 1\r\n0\r\n" + INFO + b"MSG a 1 1\r\n1\r\n")
        answer(peer)

    visits: list[str] = []
    left = threading.Event()
    with scripted_server(script) as url, here(url) as reader:
        wait_until(lambda: "is shutting down (lame duck mode)" in caplog.text)
        left.set()
        wait_until(lambda: reader.received == 2)
        assert reader.micro_batch() == [0, 1]


def test_what_is_on_its_way_from_a_server_that_shuts_down_is_kept() -> None:
    def retires(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\nMSG a 1 1\r\n0\r\n")
        moving.wait(120)
        peer.send(INFO.replace(b'"proto"', b'"ldm":true,"proto"'))
        peer.expect(b"UNSUB 1\r\n")
        peer.send(b"MSG a 1 1\r\n1\r\n")
        peer.expect(b"PING\r\n")
        peer.send(b"MSG a 1 1\r\n2\r\nPONG\r\n")
        peer.wait_for_close()

    def stays(peer: Peer) -> None:
        if not moving.is_set():
            return
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\nMSG a 1 1\r\n3\r\n")
        answer(peer)

    moving = threading.Event()
    with scripted_server(retires) as one, scripted_server(stays) as other, here(f"{one},{other}") as reader:
        moving.set()
        wait_until(lambda: reader.received == 4)
        assert reader.micro_batch() == [0, 1, 2, 3]


def test_a_server_that_is_not_there_at_the_start_is_said(server_factory: ServerFactory) -> None:
    server = server_factory()
    server.kill()
    with pytest.raises(NatsConnectionError, match="no NATS server could be reached"):
        Here(server.url, retryTimeout="0s")


def test_stopping_unsubscribes_and_keeps_what_was_on_its_way() -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.expect(b"UNSUB 1\r\n")
        peer.send(b"MSG a 1 1\r\n1\r\n")
        peer.expect(b"PING\r\n")
        peer.send(b"MSG a 1 1\r\n2\r\nPONG\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url:
        reader = Here(url)
        reader.reader.stop()
        assert not [thread for thread in threading.enumerate() if thread.name == "nats-receiver"]
        assert reader.micro_batch() == [1, 2]


@pytest.mark.docker
def test_a_stopped_reader_leaves_no_connection(nats_server: Server, unique: str) -> None:
    reader = Here(nats_server.url, subject=unique, connectionName=unique, receivers="2")
    names = [each.get("name") for each in monitoring(nats_server, "connz")["connections"]]
    assert names.count(unique) == 2
    reader.reader.stop()
    wait_until(lambda: unique not in [each.get("name") for each in monitoring(nats_server, "connz")["connections"]])


@pytest.mark.docker
def test_a_query_for_what_there_is_reads_what_had_been_received_at_its_start(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    with here(nats_server.url, subject=unique) as reader:
        nats_py.publish_each(unique, range(10))
        wait_until(lambda: reader.received == 10)
        reader.reader.prepareForTriggerAvailableNow()
        nats_py.publish_each(unique, range(10, 20))
        wait_until(lambda: reader.received == 20)
        assert reader.micro_batch() == list(range(10))
        assert reader.micro_batch() == []


def test_going_on_without_an_unfinished_micro_batch_is_warned_about(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    lost = {"epoch": "0123456789abcdef", "messages": 7}
    before = {"epoch": "0123456789abcdef", "messages": 4}
    with (
        here(nats_server.url, subject=unique) as reader,
        pytest.raises(DataLossError, match=rf"^\[NATS_RECEIVED_LOST\] 3 messages of {unique},"),
    ):
        reader.read(before, lost)
    with here(nats_server.url, subject=unique, failOnDataLoss="false") as reader:
        with caplog.at_level(logging.WARNING):
            assert reader.read(before, lost) == []
        (record,) = caplog.records
        assert record.getMessage() == (
            "[NATS_LOSS_ACCEPTED] "
            f"3 messages of {unique}, which a micro-batch was about to process when the query ended, were lost with "
            "the process that had received them; the query continues with what is published now"
        )
        assert reader.read(lost, lost) == []
        reader.offset = lost
        nats_py.publish_each(unique, range(2))
        wait_until(lambda: reader.received == 2)
        assert reader.micro_batch() == [0, 1]
    with here(nats_server.url, subject=unique) as reader, pytest.raises(NatsError, match="is not one of core NATS"):
        reader.reader.latestOffset({"ORDERS": {"created": "then", "next": 5}}, ReadAllAvailable())


def test_the_spool_holds_a_micro_batch_before_spark_knows_of_it(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    options = {"subject": unique, "spoolLocation": str(tmp_path)}
    with here(nats_server.url, **options) as reader:
        nats_py.publish_each(unique, range(5))
        wait_until(lambda: reader.received == 5)
        start, end = reader.offset, reader.reader.latestOffset(reader.offset, ReadAllAvailable())
        rows = reader.read(start, end)
    with here(nats_server.url, **options) as another:
        assert another.read(start, end) == rows  # their times too
        another.reader.commit(end)
        another.offset = end
        nats_py.publish_each(unique, range(5, 6))
        wait_until(lambda: another.received == 1)
        assert another.micro_batch() == [5]
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_damaged_file_of_the_spool_is_data_loss(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    options = {"subject": unique, "spoolLocation": str(tmp_path)}
    with here(nats_server.url, **options) as reader:
        nats_py.publish_each(unique, range(2))
        wait_until(lambda: reader.received == 2)
        start = reader.reader.latestOffset(reader.offset, ReadAllAvailable())
        nats_py.publish_each(unique, range(2, 5))
        wait_until(lambda: reader.received == 5)
        end = reader.reader.latestOffset(start, ReadAllAvailable())
    file = tmp_path / end["epoch"] / "5.arrow"
    file.write_bytes(file.read_bytes()[:length])
    lost = (
        f"messages 3 to 5 of {unique} in epoch {end['epoch']}, which a micro-batch was about to process when the query "
        f"ended, are lost: the file {str(file)!r} of the spool {'was cut off' if length else 'is empty'}"
    )
    with here(nats_server.url, **options) as another:
        with pytest.raises(DataLossError) as raised:
            another.read(start, end)
        assert str(raised.value).startswith(f"[NATS_SPOOL_DAMAGED] {lost}")
        assert str(raised.value).endswith(
            "; put a sound copy of it there, or set the option 'failOnDataLoss' to false to continue with what is "
            "published now"
        )
    with here(nats_server.url, **options, failOnDataLoss="false") as another, caplog.at_level(logging.WARNING):
        assert another.read(start, end) == []
        (record,) = caplog.records
        assert record.getMessage().startswith(f"[NATS_LOSS_ACCEPTED] {lost}")
        another.offset = end
        nats_py.publish_each(unique, range(5, 6))
        wait_until(lambda: another.received == 1)
        assert another.micro_batch() == [5]
        another.reader.commit(end)
    assert not file.exists()


# What was received and no micro-batch was to process yet


def test_what_nobody_had_read_when_the_query_ended_is_counted(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    with here(nats_server.url, subject=unique, maxOffsetsPerTrigger="4") as reader:
        nats_py.publish_each(unique, range(10))
        wait_until(lambda: reader.received == 10)
        assert reader.micro_batch() == [0, 1, 2, 3]
        caplog.clear()
    assert [record.getMessage() for record in caplog.records] == [
        f"[NATS_RECEIVED_DROPPED] core NATS, {unique}: 6 messages that were received before the query ended, and that "
        "no micro-batch was to process yet, are dropped, since the query has no 'spoolLocation'"
    ]


def test_a_query_that_has_read_all_says_nothing_when_it_ends(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for options in ({}, {"spoolLocation": str(tmp_path)}):
        with caplog.at_level(logging.INFO), here(nats_server.url, subject=unique, **options) as reader:
            nats_py.publish_each(unique, range(2))
            wait_until(lambda: reader.received == 2)
            assert reader.micro_batch() == [0, 1]
            caplog.clear()
        assert not caplog.records


@pytest.mark.promise("exactly-once#core-to-spark")
def test_what_nobody_had_read_is_read_from_the_spool_by_the_next_start(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"subject": unique, "spoolLocation": str(tmp_path), "maxOffsetsPerTrigger": "4"}
    with caplog.at_level(logging.INFO), here(nats_server.url, **options) as reader:
        nats_py.publish_each(unique, range(10))
        wait_until(lambda: reader.own_messages == 10)
        assert reader.micro_batch() == [0, 1, 2, 3]
        offset = reader.offset
        caplog.clear()
    assert [record.getMessage() for record in caplog.records] == [
        f"[NATS_RECEIVED_KEPT] core NATS, {unique}: 6 messages that were received before the query ended, and that no "
        "micro-batch was to process yet, are in the spool, for the next start"
    ]
    with here(nats_server.url, **options) as second:
        second.offset = offset
        nats_py.publish_each(unique, range(10, 15))
        wait_until(lambda: second.own_messages == 5)
        assert second.micro_batch() == [4, 5, 6, 7]
        offset = second.offset
    with here(nats_server.url, **options) as third:  # reads what two before it have left
        third.offset = offset
        nats_py.publish_each(unique, range(15, 16))
        wait_until(lambda: third.own_messages == 1)
        assert [third.micro_batch() for _ in range(5)] == [[8, 9], [10, 11, 12, 13], [14], [15], []]
        nats_py.publish_each(unique, range(16, 17))
        wait_until(lambda: third.own_messages == 2)
        assert third.micro_batch() == [16]
    assert not list(tmp_path.glob("*/*"))


def test_a_micro_batch_that_spark_has_not_noted_is_kept_in_either_epoch(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    """The process may end while Spark writes the first offset of an epoch into the checkpoint, before it or after."""
    options = {"subject": unique, "spoolLocation": str(tmp_path)}
    with here(nats_server.url, **options) as first:
        nats_py.publish_each(unique, range(2))
        wait_until(lambda: first.received == 2)
        assert first.micro_batch() == [0, 1]
        before = first.offset
    with here(nats_server.url, **options) as second:
        nats_py.publish_each(unique, range(2, 4))
        wait_until(lambda: second.own_messages == 2)
        planned = second.reader.latestOffset(before, ReadAllAvailable())
        nats_py.publish_each(unique, range(4, 6))
        wait_until(lambda: second.own_messages == 4)
    for begin, replayed in ((before, []), (planned, [2, 3])):
        with here(nats_server.url, **options) as reader:
            if replayed:
                assert [int(payload) for payload, _ in reader.read(before, planned)] == replayed
            reader.offset = begin
            rows = [row for _ in range(3) for row in reader.micro_batch(commits=False)]
            assert replayed + rows == [2, 3, 4, 5]


def test_a_file_of_the_spool_that_begins_before_the_checkpoint_gives_only_what_follows_it(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    options = {"subject": unique, "spoolLocation": str(tmp_path)}
    with here(nats_server.url, **options) as reader:
        nats_py.publish_each(unique, range(2))
        wait_until(lambda: reader.received == 2)  # as a plan that Spark has not noted
        nats_py.publish_each(unique, range(2, 5))
        wait_until(lambda: reader.own_messages == 5)
        all_of_them = reader.reader.latestOffset(reader.offset, ReadAllAvailable())
    with here(nats_server.url, **options) as another:
        between = {**all_of_them, "messages": 3}
        assert [int(payload) for payload, _ in another.read(between, all_of_them)] == [3, 4]


def test_what_comes_into_the_spool_late_is_read_before_what_is_published_since(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    """Spark does not wait for the end of a query's process when it starts the query again."""
    options = {"subject": unique, "spoolLocation": str(tmp_path)}
    with here(nats_server.url, **options) as second:
        with here(nats_server.url, **options) as first:
            nats_py.publish_each(unique, range(1))
            wait_until(lambda: first.received == 1)
            assert first.micro_batch() == [0]
            second.offset = first.offset
            wait_until(lambda: second.own_messages == 1)
            second.reader._backlog.get_and_mark_taken(0, 1)
            nats_py.publish_each(unique, range(1, 2))
            wait_until(lambda: first.received == 2)
            second.reader._kept = []  # it has looked
        assert second.micro_batch() == [1]
        assert second.micro_batch() == [0, 1]  # its own subscription, which began before


def test_a_query_that_ended_in_its_first_micro_batch_starts_again(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first one is empty: nothing was lost."""
    for options in ({}, {"spoolLocation": str(tmp_path)}):
        ended = Here(nats_server.url, subject=unique, **options)
        planned = ended.offset
        ended.reader.stop()
        with here(nats_server.url, subject=unique, **options) as reader:
            assert reader.read(reader.reader.initialOffset(), planned) == []
            reader.offset = planned
            nats_py.publish_each(unique, range(2))
            wait_until(lambda: reader.received == 2)
            assert reader.micro_batch() == [0, 1]
    assert not caplog.records


def test_the_log_says_when_a_query_has_begun_to_listen(
    nats_server: Server, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), here(nats_server.url, subject=unique, receivers="2"):
        assert subscribed(nats_server, unique) == 2
        (record,) = caplog.records
    assert re.fullmatch(
        rf"\[NATS_LISTENING\] core NATS, {unique}: listening since \S+\+00:00, connections: 2", record.getMessage()
    )
