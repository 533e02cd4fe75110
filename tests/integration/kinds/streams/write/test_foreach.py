"""Writing row by row: what Spark's `foreach` does with our writer, seen by nats-py."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import Row, SparkSession

from spark_nats import NatsForeachWriter
from spark_nats.errors import InvalidRowError, NatsError, OptionError, SchemaError
from spark_nats.kinds import foreach
from spark_nats.kinds.streams.write import partitions
from tests.integration.support import finish, nats, sentence_of
from tests.nats_py import NatsPy, wait_until
from tests.scripted_server import Peer, scripted_server
from tests.servers import Server
from tests.simulation.spark import context_of


@pytest.fixture(autouse=True)
def in_a_query(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, unique: str) -> None:
    """Have each writer of a test without Spark believe that it is in a task of one query."""
    if "spark" in request.fixturenames:
        return
    context = context_of(0, 0, 0, {"sql.streaming.queryId": unique})
    monkeypatch.setattr(TaskContext, "_taskContext", context)


def task(server: Server, rows: list[Row], epoch: int = 0, **options: Any) -> None:
    """What a task does with a writer that came pickled."""
    writer = pickle.loads(pickle.dumps(NatsForeachWriter(servers=server.url, **options)))
    assert writer.open(0, epoch)
    error: Exception | None = None
    try:
        for row in rows:
            writer.process(row)
    except NatsError as failure:
        error = failure
    writer.close(error)
    if error:
        raise error


def rows_of(subject: str, count: int) -> list[Row]:
    return [Row(subject=subject, payload=b"%d" % i) for i in range(count)]


def test_rows_are_stored_in_their_order_with_all_that_they_have(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    rows = [
        Row(subject=f"{unique}.a", payload="text", headers={"A": ["1", "2"]}, msg_id=None),
        Row(subject=f"{unique}.b", payload=b"\x00", headers=None, msg_id="mine"),
    ]
    task(nats_server, rows, stream=unique)
    first, second = nats_py.read_stream(unique)
    assert (first.subject, first.payload, first.headers["A"]) == (f"{unique}.a", b"text", ["1", "2"])
    assert (second.payload, second.headers["Nats-Msg-Id"]) == (b"\x00", ["mine"])


def test_many_rows_arrive_and_a_replay_stores_none_twice(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = rows_of(f"{unique}.a", 5000)
    task(nats_server, rows, stream=unique)
    task(nats_server, rows, stream=unique)
    assert [int(message.payload) for message in nats_py.read_stream(unique)] == list(range(5000))
    task(nats_server, rows[:5], epoch=1, stream=unique)
    assert nats_py.stream_info(unique)["state"]["messages"] == 5005


def test_the_last_rows_before_a_silence_are_sent_without_waiting_for_another_one(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    writer = NatsForeachWriter(servers=nats_server.url, stream=unique, subject=f"{unique}.a")
    writer.open(0, 0)
    for count in (3, 5003):  # while it connects, and while it sends
        for i in range(count - nats_py.stream_info(unique)["state"]["messages"]):
            writer.process(Row(payload=b"%d" % i))
        wait_until(lambda count=count: nats_py.stream_info(unique)["state"]["messages"] == count)
    writer.close(None)


def test_a_row_is_sent_before_the_next_one_comes(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    writer = NatsForeachWriter(servers=nats_server.url, stream=unique, subject=f"{unique}.a")
    writer.open(0, 0)
    for i in range(3):
        writer.process(Row(payload=b"%d" % i))
        wait_until(lambda count=i + 1: nats_py.stream_info(unique)["state"]["messages"] == count)
    writer.close(None)


def test_a_server_that_pings_between_two_rows_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Spark waits for meanwhile, the server would take the connection for dead and close it."""
    monkeypatch.setattr(foreach, "_QUIET", 0.01)
    answered = threading.Event()

    def server(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"first\r\n")
        peer.send(b"PING\r\n")
        while True:
            line = peer.expect(b"\r\n")
            if line == b"PING\r\n":
                peer.send(b"PONG\r\n")
            elif line == b"PONG\r\n":
                answered.set()

    monkeypatch.setattr(
        partitions, "_warn_if_streams_listen", lambda *_: None
    )  # which asks over a connection of its own
    with scripted_server(server) as url:
        writer = NatsForeachWriter(servers=url, subject="a", retryTimeout="0s")
        writer.open(0, 0)
        writer.process(Row(payload=b"first"))
        assert answered.wait(60)
        writer.process(Row(payload=b"second"))
        writer.close(None)


def test_a_micro_batch_that_is_replayed_puts_nothing_into_a_bucket_twice(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    for _ in range(2):
        task(nats_server, [Row(key="k", value="v")], bucket=unique, createBucket='{"history": 5}')
    assert nats_py.held(f"KV_{unique}") == 1


def test_a_writer_that_is_not_told_where_to_write_is_refused() -> None:
    with pytest.raises(OptionError, match="the options do not say where to write"):
        NatsForeachWriter()


def test_rows_go_to_core_nats_and_to_a_bucket_too(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with nats_py.collect(f"{unique}.>") as received:
        task(nats_server, rows_of(f"{unique}.a", 3))
        wait_until(lambda: len(received.messages) == 3)
    task(nats_server, [Row(key="k", value="v")], bucket=unique, createBucket="{}")
    (message,) = nats_py.read_stream(f"KV_{unique}")
    assert message.payload == b"v"


def test_rows_that_cannot_be_sent_are_set_aside_as_in_the_sink(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"BAD_{unique}")
    rows = [*rows_of(f"{unique}.a", 2), Row(subject="two words", payload=b"bad"), *rows_of(f"{unique}.b", 2)]
    for _ in range(2):
        task(nats_server, rows, stream=unique, badRows="stream", badRowsStream=f"BAD_{unique}")
        assert (nats_py.held(unique), nats_py.stored_texts(f"BAD_{unique}")) == (4, ["bad"])


def test_nothing_more_is_sent_once_the_task_has_failed_elsewhere(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    writer = NatsForeachWriter(servers=nats_server.url, stream=unique)
    writer.open(0, 0)
    writer.process(rows_of(f"{unique}.a", 1)[0])
    writer.close(ValueError("of the query"))
    assert nats_py.stream_info(unique)["state"]["messages"] <= 1


def test_a_task_without_rows_asks_no_server() -> None:
    writer = NatsForeachWriter(servers="nats://127.0.0.1:1", stream="ORDERS")
    writer.open(0, 0)
    writer.close(None)


def test_what_is_wrong_is_said_before_or_at_the_latest_when_the_task_ends(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    with pytest.raises(OptionError, match="strem"):
        NatsForeachWriter(strem="ORDERS")
    with pytest.raises(OptionError, match=r"deduplicate' is exact.*use window, or the sink"):
        NatsForeachWriter(stream="ORDERS", deduplicate="exact")
    with pytest.raises(SchemaError, match=r"'payload'.*'int'|payload.*int"):
        task(nats_server, [Row(subject=f"{unique}.a", payload=7)], stream=unique)
    with pytest.raises(SchemaError, match=r"'headers'.*MAP.*str"):
        task(nats_server, [Row(subject=f"{unique}.a", payload=b"", headers="A: 1")], stream=unique)
    with pytest.raises(SchemaError, match="colour"):
        task(nats_server, [Row(subject=f"{unique}.a", payload=b"", colour="red")], stream=unique)
    with pytest.raises(InvalidRowError, match="subject.*white space"):
        task(nats_server, [Row(subject=f"{unique}.a b", payload=b"")], stream=unique)
    missing = sentence_of(lambda: task(nats_server, rows_of(f"{unique}.a", 1), stream=f"{unique}_NOT"))
    assert missing.startswith("StreamNotFoundError")
    with pytest.raises(NatsError, match="retryTimeout|refused|connect"):
        writer = NatsForeachWriter(servers="nats://127.0.0.1:1", stream=unique, retryTimeout="0s")
        writer.open(0, 0)
        writer.process(rows_of(f"{unique}.a", 1)[0])
        writer.close(None)


def test_outside_of_a_query_rows_cannot_get_ids_and_need_none(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique)
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    with pytest.raises(NatsError, match="which query and micro-batch"):
        task(nats_server, rows_of(f"{unique}.a", 1), stream=unique)
    task(nats_server, rows_of(f"{unique}.a", 1), stream=unique, deduplicate=False)
    assert nats_py.held(unique) == 1


@pytest.mark.long("spark_nats/kinds/foreach.py")
def test_a_query_in_update_mode_writes_what_has_changed(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"{unique}_OUT")
    nats_py.store(f"{unique}.a", range(10))
    read = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    counts = read.groupBy("subject").count().selectExpr(f"'{unique}_OUT.n' AS subject", "string(count) AS payload")
    query = (
        counts.writeStream.outputMode("update")
        .foreach(NatsForeachWriter(servers=nats_server.url, stream=f"{unique}_OUT"))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)
    (message,) = nats_py.read_stream(f"{unique}_OUT")
    assert message.payload == b"10"
