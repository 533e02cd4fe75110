"""What works with every PySpark: `make smoke` runs this with the oldest and with the newest one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_nats import sparkapi
from tests.integration.support import (
    MESSAGE,
    error_of,
    finish,
    nats,
    running,
    save,
    wait_for_subscriptions,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

pytestmark = pytest.mark.smoke

SPARK_STARTS = 300.0
"""Seconds within which a query ends its first micro-batches: sixty on two busy cores."""


@pytest.mark.long("spark_nats/sparkapi.py")
def test_a_batch_is_written_and_read_back(spark: SparkSession, nats_server: Server, unique: str) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    frame = spark.range(1000).selectExpr(
        f"concat('{unique}.', id % 3) AS subject", "string(id) AS payload", "map('Number', string(id)) AS headers"
    )
    save(frame, nats_server, stream=unique, createStream=json.dumps({"subjects": [f"{unique}.>"]}))
    back = nats(spark.read, nats_server, stream=unique, minPartitions=3).load()
    assert back.schema == MESSAGE
    rows = back.collect()
    assert sorted(int(row.payload) for row in rows) == list(range(1000))
    assert sorted(row.sequence for row in rows) == list(range(1, 1001))
    for row in rows:
        assert (row.subject, row.stream, row.reply) == (f"{unique}.{int(row.payload) % 3}", unique, None)
        assert row.headers["Number"] == [bytes(row.payload).decode()]
        assert began <= row.timestamp.replace(tzinfo=UTC) <= datetime.now(UTC)


@pytest.mark.long("spark_nats/sparkapi.py")
def test_a_wrong_option_and_a_wrong_row_are_said_in_a_sentence(
    spark: SparkSession, nats_server: Server, unique: str
) -> None:
    wrong = nats(spark.read, nats_server, streem=unique)
    assert error_of(wrong.load) == "OptionError: unknown option 'streem'; did you mean 'stream'?"
    frame = spark.createDataFrame([("a b", "x")], "subject STRING, payload STRING")
    error = error_of(lambda: save(frame, nats_server))
    assert error.startswith("InvalidRowError: row 0 of the task cannot be sent: column 'subject' ")


def copying(spark: SparkSession, server: Server, stream: str, checkpoint: Path, **options: Any) -> Any:
    """What writes a stream's messages to the stream `<stream>_COPY`, from the beginning."""
    rows = nats(spark.readStream, server, stream=stream, startingOffsets="earliest", **options).load()
    copied = rows.selectExpr(f"'{stream}_COPY.x' AS subject", "headers", "payload")  # none have headers
    return nats(copied.writeStream, server, stream=f"{stream}_COPY", checkpointLocation=str(checkpoint))


def row_counts(query: StreamingQuery) -> list[int]:
    """How many rows each micro-batch had, but for those without any; raises what has ended the query."""
    if error := query.exception():
        raise error
    found = [json.loads(progress.json)["numInputRows"] for progress in query.recentProgress]
    return [rows for rows in found if rows]


def test_a_stream_is_copied_exactly_once_in_micro_batches_of_a_limited_size_also_when_it_is_started_again(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    target = f"{unique}_COPY"
    nats_py.create_stream(target, duplicate_window=100_000_000)  # too short to help
    nats_py.store(f"{unique}.x", range(1, 11))

    def start() -> StreamingQuery:
        query: StreamingQuery = copying(spark, nats_server, unique, tmp_path, maxOffsetsPerTrigger=4).start()
        return query

    with running(start()) as query:
        wait_until(lambda: sum(row_counts(query)) == 10, timeout=SPARK_STARTS)
        assert row_counts(query) == [4, 4, 2]
        nats_py.store(f"{unique}.x", range(11, 14))
        wait_until(lambda: sum(row_counts(query)) == 13, timeout=SPARK_STARTS)
    assert nats_py.stored_numbers(target) == list(range(1, 14))

    # As after a crash between the last row and the end of the micro-batch.
    commits = [path for path in (tmp_path / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    (last.parent / f".{last.name}.crc").unlink()
    last.unlink()
    nats_py.store(f"{unique}.x", range(14, 20))
    with running(start()) as query:
        wait_until(lambda: nats_py.held(target) >= 19, timeout=SPARK_STARTS)
        wait_until(lambda: sum(row_counts(query)) >= 9, timeout=SPARK_STARTS)
    assert nats_py.stored_numbers(target) == list(range(1, 20))


@pytest.mark.long("spark_nats/sparkapi.py")
def test_available_now_reads_what_there_is_and_ends(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"{unique}_COPY")
    for first in (1, 11):
        nats_py.store(f"{unique}.x", range(first, first + 10))
        finish(copying(spark, nats_server, unique, tmp_path).trigger(availableNow=True).start())
        assert nats_py.stored_numbers(f"{unique}_COPY") == list(range(1, first + 10))


@pytest.mark.long("spark_nats/sparkapi.py")
def test_available_now_with_a_limit_reads_what_there_is_where_pyspark_can(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"{unique}_COPY")
    nats_py.store(f"{unique}.x", range(1, 11))

    def run() -> list[int]:
        limited = copying(spark, nats_server, unique, tmp_path, maxOffsetsPerTrigger=4)
        return row_counts(finish(limited.trigger(availableNow=True).start()))

    runs = [run()] if sparkapi.HAS_READ_LIMITS else [run(), run(), run()]
    assert runs == ([[4, 4, 2]] if sparkapi.HAS_READ_LIMITS else [[4], [4], [2]])
    assert run() == []
    assert nats_py.stored_numbers(f"{unique}_COPY") == list(range(1, 11))


@pytest.mark.long("spark_nats/sparkapi.py")
def test_core_nats_is_read_and_written(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    requests = nats(spark.readStream, nats_server, subject=unique, maxOffsetsPerTrigger=40).load()
    answers = requests.selectExpr("reply AS subject", "concat('re: ', string(payload)) AS payload")
    query = nats(answers.writeStream, nats_server, checkpointLocation=str(tmp_path)).start()
    with running(query), nats_py.collect(f"{unique}.reply") as collected:
        wait_for_subscriptions(nats_server, unique)
        for i in range(100):
            nats_py.publish(unique, b"%d" % i, reply=f"{unique}.reply")
        received = collected.wait(100, timeout=60)
        assert [message.payload for message in received] == [b"re: %d" % i for i in range(100)]
        assert max(row_counts(query)) <= 40
