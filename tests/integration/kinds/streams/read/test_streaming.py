"""Streaming queries: how far each micro-batch goes, where a query begins, and that it goes on where it stopped."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col

from spark_nats.protocol.documents import format_time, time_at
from spark_nats.sparkapi import ReadAllAvailable
from tests.integration.support import (
    MESSAGE,
    Query,
    collecting,
    error_of,
    finish,
    nats,
    running,
    sentence_of,
    storing_numbers,
    stream_reader,
    texts_of,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, ServerFactory


def drain(frame: DataFrame, name: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Read what there is now; the payloads, and the progress of each micro-batch that had rows or was run in vain."""
    query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    try:
        finish(query)
        read = texts_of(frame.sparkSession.table(name).collect())
    finally:
        frame.sparkSession.catalog.dropTempView(name)
    return read, [dict(json.loads(progress.json)) for progress in query.recentProgress]


def rows_in(progresses: list[dict[str, Any]]) -> list[int]:
    return [progress["numInputRows"] for progress in progresses]


def number_texts(first: int, last: int) -> list[str]:
    return [str(i) for i in range(first, last + 1)]


@pytest.mark.docker
def test_messages_are_read_as_they_come(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", number_texts(1, 3))
    query = Query(stream_reader(nats_server, MESSAGE, stream=unique, startingOffsets="earliest"))
    assert texts_of(query.rows(3)) == number_texts(1, 3)
    nats_py.store(f"{unique}.x", ["4"])
    assert texts_of(query.rows(1)) == ["4"]
    nats_py.store(f"{unique}.x", ["5", "6"])
    assert texts_of(query.rows(2)) == ["5", "6"]


def test_a_query_reads_messages_as_they_come(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", number_texts(1, 3))
    frame = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    with collecting(frame, unique) as (_, read):
        wait_until(lambda: texts_of(read()) == number_texts(1, 3), timeout=120)
        nats_py.store(f"{unique}.x", ["4"])
        wait_until(lambda: texts_of(read()) == number_texts(1, 4))
        nats_py.store(f"{unique}.x", ["5", "6"])
        wait_until(lambda: texts_of(read()) == number_texts(1, 6))


def test_a_query_begins_with_what_is_new_unless_told_otherwise(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", ["old"])
    query = Query(stream_reader(nats_server, MESSAGE, stream=unique))
    assert query.micro_batch() == []
    nats_py.store(f"{unique}.x", ["new"])
    assert texts_of(query.rows(1)) == ["new"]


@pytest.mark.long("spark_nats/kinds/streams/read/*")
def test_what_was_stored_before_is_among_all_that_is_available(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    stream = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    with collecting(stream, unique) as (query, read):
        for i in range(4):
            nats_py.store(f"{unique}.a", [str(i)])
            query.processAllAvailable()
            assert texts_of(read()) == number_texts(0, i)


def test_a_query_can_begin_at_a_sequence_or_a_time(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", number_texts(1, 5))
    by_sequence = stream_reader(nats_server, MESSAGE, stream=unique, startingOffsets=f'{{"{unique}": 4}}')
    assert texts_of(Query(by_sequence).rows(2)) == ["4", "5"]
    stored = nats_py.api(f"STREAM.MSG.GET.{unique}", {"seq": 3})["message"]["time"]
    by_time = stream_reader(nats_server, MESSAGE, stream=unique, startingTimestamp=stored[:26].rstrip("Z") + "Z")
    assert texts_of(Query(by_time).rows(3)) == ["3", "4", "5"]


@pytest.mark.promise("reading#at-most-so-many")
def test_a_micro_batch_is_no_larger_than_allowed(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", number_texts(1, 95))
    options = {"stream": unique, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20, "minPartitions": 3}
    read, progresses = drain(nats(spark.readStream, nats_server, **options).load(), unique)
    assert read == number_texts(1, 95)
    assert rows_in(progresses) == [20, 20, 20, 20, 15]


def test_several_streams_share_a_micro_batch(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    sizes = {f"{unique}_LARGE": 150, f"{unique}_SMALL": 4, f"{unique}_NONE": 0, f"{unique}_MIDDLE": 40}
    for stream, size in sizes.items():
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", [f"{stream} {i}" for i in range(size)])
    options = {"stream": ",".join(sizes), "startingOffsets": "earliest", "maxOffsetsPerTrigger": 30}
    micro_batches = Query(stream_reader(nats_server, MESSAGE, **options)).available()
    read = [text for rows in micro_batches for text in texts_of(rows)]
    assert sorted(read) == sorted(f"{stream} {i}" for stream, size in sizes.items() for i in range(size))
    assert list(map(len, micro_batches)) == [30] * 6 + [14]
    # Each stream moves on with every micro-batch until it is read, so none waits for another.
    assert f"{unique}_SMALL" in {row["stream"] for row in micro_batches[0]}


def test_a_query_for_what_there_is_ends_though_more_comes(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", number_texts(1, 25))
    batches: list[list[int]] = []

    def process(frame: DataFrame, _: int) -> None:
        batches.append(sorted(row.sequence for row in frame.collect()))
        nats_py.store(f"{unique}.x", ["later"] * 10)

    options = {"stream": unique, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
    writer = nats(spark.readStream, nats_server, **options).load().writeStream.foreachBatch(process)
    writer = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path))
    finish(writer.start())
    assert batches == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]
    finish(writer.start())  # it was stopped by its trigger, not by its end
    assert batches[3] == list(range(26, 36))
    assert batches[-1][-1] == 25 + 3 * 10


def test_progress_shows_how_far_behind_the_query_is(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    info = nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", number_texts(1, 35))
    options = {"stream": unique, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    frame = nats(spark.readStream, nats_server, **options).load()
    with collecting(frame, unique) as (query, read):
        wait_until(lambda: len(read()) == 35, timeout=120)
        wait_until(lambda: len(query.recentProgress) >= 2)
        first, second = (json.loads(progress.json)["sources"][0] for progress in query.recentProgress[:2])

    def at(sequence: int, since: int | None = None) -> dict[str, Any]:
        created = first["endOffset"][unique]["created"]
        assert created[:19] == info["created"][:19]
        if since is None:
            return {unique: {"created": created, "next": sequence}}
        stored = nats_py.api(f"STREAM.MSG.GET.{unique}", {"seq": sequence - 1})["message"]["time"]
        timestamp = format_time(time_at({"time": stored}, "time"))
        where = {"created": created, "next": sequence, "timestamp": timestamp, "since": since, "first": since}
        return {unique: where | ({} if since == 1 else {"before": ANY})}

    assert (first["startOffset"], first["endOffset"], first["latestOffset"]) == (None, at(21, 1), at(36))
    assert (second["startOffset"], second["endOffset"], second["latestOffset"]) == (at(21, 1), at(36, 21), at(36))


def test_messages_of_other_subjects_make_no_micro_batch(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    options = {"stream": unique, "subject": f"{unique}.wanted.*", "startingOffsets": "earliest"}
    query = Query(stream_reader(nats_server, MESSAGE, **options))
    nats_py.store(f"{unique}.wanted.1", ["1"])
    assert texts_of(query.rows(1)) == ["1"]
    here = query.offset
    for _ in range(5):
        nats_py.store(f"{unique}.other", ["noise"] * 10)
        query.look(nats_py)
        assert query.offset == here
    nats_py.store(f"{unique}.wanted.2", ["2"])
    assert texts_of(query.rows(1)) == ["2"]


def test_a_rare_subject_is_found_without_empty_micro_batches(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rare = {300, 650, 660, 999}
    nats_py.publish_acked([(f"{unique}.{'rare' if i in rare else 'other'}", b"%d" % i) for i in range(1, 1001)])
    options = {"subject": f"{unique}.rare", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    micro_batches = Query(stream_reader(nats_server, MESSAGE, stream=unique, **options)).available()
    assert list(map(texts_of, micro_batches)) == [["300"], ["650", "660"], ["999"]]


def test_a_missing_stream_is_made_if_so_asked(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    options = {"stream": unique, "subject": f"{unique}.>", "createStream": True}
    query = Query(stream_reader(nats_server, MESSAGE, **options))
    assert query.micro_batch() == []
    assert nats_py.stream_info(unique)["config"]["subjects"] == [f"{unique}.>"]
    nats_py.store(f"{unique}.x", ["first"])
    assert texts_of(query.rows(1)) == ["first"]


@pytest.mark.promise("operating#other-servers", "operating#other-limits", "operating#other-beginning")
@pytest.mark.parametrize(
    ("changed", "sizes"),
    [
        ({"connectionName": "another", "requestTimeout": "7s"}, [2, 2, 1]),
        ({"servers": "nats://localhost:{port}"}, [2, 2, 1]),
        ({"maxOffsetsPerTrigger": 4}, [4, 1]),
        ({"startingOffsets": "latest"}, [2, 2, 1]),
        ({"startingOffsets": None, "startingTimestamp": "2999-12-31"}, [2, 2, 1]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_query_goes_on_where_it_was_with_other_options(
    nats_server: Server, nats_py: NatsPy, unique: str, changed: dict[str, Any], sizes: list[int]
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", number_texts(1, 8))
    options: dict[str, Any] = {
        "servers": nats_server.url,
        "stream": unique,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 3,
    }

    def run(checkpoint: dict[str, Any] | None = None) -> Query:
        return Query(stream_reader(options["servers"], MESSAGE, **{k: v for k, v in options.items() if v}), checkpoint)

    query = run()
    assert texts_of(query.micro_batch()) == number_texts(1, 3)
    options |= {"maxOffsetsPerTrigger": 2, **changed}
    options["servers"] = options["servers"].format(port=nats_server.url.rpartition(":")[2])
    read = [texts_of(rows) for rows in run(query.offset).available()]
    assert [text for rows in read for text in rows] == number_texts(4, 8)
    assert list(map(len, read)) == sizes


@pytest.mark.promise("operating#one-stream-more")
def test_a_stream_that_joins_at_a_restart_is_read_from_its_beginning(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    old, new = f"{unique}_OLD", f"{unique}_NEW"
    for stream in (old, new):
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", ["1", "2"])
    read: list[tuple[str, int]] = []

    def run(stream: str, checkpoint: dict[str, Any] | None = None) -> dict[str, Any]:
        query = Query(stream_reader(nats_server, MESSAGE, stream=stream, startingOffsets="earliest"), checkpoint)
        read.extend((row["stream"], row["sequence"]) for rows in query.available() for row in rows)
        return query.offset

    offset = run(old)
    assert read == [(old, 1), (old, 2)]
    nats_py.store(f"{old}.x", ["3"])
    offset = run(f"{old},{new}", offset)
    assert sorted(read) == [(new, 1), (new, 2), (old, 1), (old, 2), (old, 3)]
    nats_py.store(f"{old}.x", ["left out"])
    nats_py.store(f"{new}.x", ["3"])
    run(new, offset)
    assert sorted(read) == [(new, 1), (new, 2), (new, 3), (old, 1), (old, 2), (old, 3)]


@pytest.mark.promise("operating#other-streams")
def test_a_source_that_reads_none_of_its_checkpoints_streams_says_from_where_it_reads_each(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    names = one, other, third = [f"{unique}_{letter}" for letter in "ABC"]
    for name in names:
        nats_py.create_stream(name)
        nats_py.store(f"{name}.x", ["1", "2", "3"])
    nats_py.purge_stream(other, seq=2)

    def run(streams: str, checkpoint: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[str]]:
        """How the query goes on with these streams, and what the log says of other streams, while it waits for more."""
        caplog.clear()
        reader = stream_reader(nats_server, MESSAGE, stream=streams, startingOffsets="earliest", minOffsetsPerTrigger=6)
        query = Query(reader, checkpoint)
        end = query.offset
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                query.reader._query.idling.forget()  # or it would not look
                end = reader.latestOffset(query.offset, reader.getDefaultReadLimit())
        return end, [line for line in caplog.messages if "[NATS_CHECKPOINT_OF_OTHERS]" in line]

    offset, said = run(f"{one},{third}")
    assert said == []
    assert run(f"{one},{other}", offset)[1] == []  # one stream more, one less
    assert run(other, offset)[1] == [
        f"[NATS_CHECKPOINT_OF_OTHERS] the checkpoint names '{one}', '{third}', and none of the streams that this "
        f"source reads now: it reads '{other}' from its first message, at sequence 2. If sources of the query have "
        "changed places, as in a union, put them back: each then resumes where it was"
    ]


@pytest.mark.long("spark_nats/kinds/streams/read/*")
@pytest.mark.promise("operating#other-streams")
def test_sources_that_have_changed_places_read_again_and_go_on_when_they_are_put_back(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    one, other = [f"{unique}_{letter}" for letter in "AB"]
    for name in (one, other):
        nats_py.create_stream(name)
        nats_py.store(f"{name}.x", ["1"])

    def run(*streams: str) -> list[tuple[str, int]]:
        """What a run of the query finds, with a source for each stream."""
        found: list[tuple[str, int]] = []
        first, second = (
            nats(spark.readStream, nats_server, stream=name, startingOffsets="earliest").load() for name in streams
        )
        sink = first.union(second).writeStream.foreachBatch(lambda rows, _: found.extend(map(placed, rows.collect())))
        finish(sink.trigger(availableNow=True).option("checkpointLocation", str(tmp_path)).start())
        return sorted(found)

    def placed(row: Row) -> tuple[str, int]:
        return row["stream"], row["sequence"]

    assert run(one, other) == [(one, 1), (other, 1)]
    assert run(other, one) == [(one, 1), (other, 1)]
    nats_py.store(f"{one}.x", ["2"])
    nats_py.store(f"{other}.x", ["2"])
    assert run(one, other) == [(one, 2), (other, 2)]


@pytest.mark.long("spark_nats/kinds/streams/read/*")
def test_a_checkpoint_of_another_source_is_refused(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", ["1"])
    source = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    writer = source.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", str(tmp_path))
    finish(writer.start())
    offsets = tmp_path / "offsets" / "0"
    *head, last = offsets.read_text().splitlines()
    assert unique in last
    offsets.write_text("\n".join([*head, '{"topic": {"0": 17}}']))
    (tmp_path / "offsets" / ".0.crc").unlink()
    assert "is not one of this source" in error_of(lambda: finish(writer.start()))


@pytest.mark.long("spark_nats/kinds/*")
def test_a_query_stopped_again_and_again_writes_everything_once(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    source, target = f"{unique}_FROM", f"{unique}_TO"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    options = {"stream": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 400, "minPartitions": 2}
    frame = nats(spark.readStream, nats_server, **options).load().withColumn("msg", col("sequence").cast("string"))
    frame = frame.selectExpr("map('From', msg) AS headers", "payload")
    writer = nats(
        frame.writeStream, nats_server, stream=target, subject=f"{target}.x", checkpointLocation=str(tmp_path)
    )

    def logged(kind: str) -> int:
        """How many micro-batches Spark has planned ("offsets") or is sure to have finished ("commits")."""
        folder = tmp_path / kind
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0

    with storing_numbers(nats_server, f"{source}.x", at_once=10, pause=0.02) as count:
        unfinished = 0
        for turn in range(80):
            kind, more = (("offsets", 1), ("commits", 1), ("offsets", 2), ("commits", 2))[turn % 4]
            enough = logged(kind) + more
            with running(writer.start()):
                wait_until(lambda: logged(kind) >= enough, timeout=120)  # noqa: B023 - used in its own turn
            unfinished += logged("offsets") > logged("commits")
            if turn > 6 and unfinished:  # some stops came in the middle of a micro-batch, which has to be repeated
                break
        assert unfinished > 0
    finish(writer.trigger(availableNow=True).start())
    arrived = sorted((int(m.headers["From"][0]), m.payload) for m in nats_py.read_stream(target))
    assert arrived == [(i + 1, b"%d" % i) for i in range(count[0])]


# A server that is away


def test_an_idle_query_waits_for_its_server_and_goes_on(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", ["s.>"])
        client.create_stream("T", ["t.>"])
        client.store("s.1", ["before"])
    frame = nats(spark.readStream, server, stream="S", startingOffsets="earliest").load()
    copied = frame.selectExpr("'t.1' AS subject", "payload")
    query = nats(copied.writeStream, server, stream="T", checkpointLocation=str(tmp_path)).start()
    with running(query):
        query.processAllAvailable()
        server.kill()
        # Its connection is noticed to be gone, and the driver tries again: that it goes on is seen below.
        wait_until(lambda: not server.running)
        server.start()
        with NatsPy(server.url) as client:
            client.store("s.1", ["after"])
            wait_until(lambda: len(client.read_stream("T")) == 2, 60)
            assert [message.payload for message in client.read_stream("T")] == [b"before", b"after"]


def test_a_query_that_waits_for_its_server_can_be_stopped(spark: SparkSession, server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", ["s.>"])
    frame = nats(spark.readStream, server, stream="S", retryTimeout="10m").load()
    query = frame.writeStream.format("noop").start()
    wait_until(lambda: query.lastProgress is not None, 60)
    server.kill()
    ended = threading.Thread(target=query.stop)
    ended.start()
    ended.join(60)
    assert not ended.is_alive(), "the query waits for its server and cannot be stopped"


def test_a_reader_waits_for_a_server_that_restarts(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", ["s.>"])
        client.store("s.1", number_texts(1, 3))
    reader = stream_reader(server, stream="S", startingOffsets="earliest", reconnectWait="100ms")
    start = reader.initialOffset()
    server.kill()
    found: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: found.append(reader.latestOffset(start, ReadAllAvailable())))
    asking.start()
    wait_until(lambda: "NATS_TRYING_AGAIN" in caplog.text, 60)
    server.start()
    asking.join(60)
    assert found[0]["S"]["next"] == 4
    assert len([said for said in caplog.messages if "reading S" in said]) == 2


def test_a_reader_gives_a_server_up_in_the_end_and_says_where_it_looked(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", ["s.>"])
    reader = stream_reader(server, stream="S", retryTimeout="300ms")
    start = reader.initialOffset()
    server.kill()
    error = sentence_of(lambda: reader.latestOffset(start, ReadAllAvailable()))
    assert error.startswith("NatsConnectionError: no NATS server could be reached (nats://127.0.0.1:")
    assert "; tried for 0.3 s; check the option 'servers'" in error


@pytest.mark.long("spark_nats/kinds/streams/write/*")
def test_each_micro_batch_is_noted_for_partition_0_though_it_has_no_rows(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    """By that a state bucket is known that is older than the checkpoint; and tasks know the query's run."""
    nats_py.create_stream(unique)
    target = f"{unique}_2"
    nats_py.create_stream(target)

    def name_run(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context
        run = context.getLocalProperty("spark.jobGroup.id")
        for batch in batches:
            yield batch.set_column(0, "payload", pa.array([run] * batch.num_rows, pa.string()))

    source = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    runs = source.where("string(payload) = 'yes'").select("payload").mapInArrow(name_run, "payload STRING")
    sink = nats(runs.writeStream, nats_server, stream=target, subject=f"{target}.x", stateBucket=unique)
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with running(query):
        for batch, payload in enumerate(["no", "yes", "no"]):
            nats_py.store(f"{unique}.x", [payload])
            query.processAllAvailable()
            notes = [m for m in nats_py.read_stream(f"KV_{unique}") if m.subject == f"$KV.{unique}.{query.id}.0"]
            assert [json.loads(m.payload)["batch"] for m in notes] == [batch]
        assert nats_py.stored_texts(target) == [str(query.runId)]
