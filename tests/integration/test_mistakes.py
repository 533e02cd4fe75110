"""Mistakes that people make: what they did and what to do stands in the first lines of what Spark shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.support import error_of, finish, first_lines_of, nats, save
from tests.nats_py import NatsPy
from tests.servers import Server

pytestmark = pytest.mark.timeout(150)


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
    spark.conf.set(conf, simplified)
    try:
        for action, sentence in (
            (nats(spark.read, nats_server, strem="S").load, "OptionError: unknown option 'strem'"),
            (
                nats(spark.read, nats_server, stream="MISSING").load().collect,
                "StreamNotFoundError: the stream 'MISSING' does not exist",
            ),
            (lambda: save(rows, nats_server), "InvalidRowError: row 0 of the task cannot be sent: column 'subject'"),
            (lambda: finish(started("task")), "InvalidRowError: row 0 of the task cannot be sent: column 'subject'"),
            (lambda: finish(missing.start()), "StreamNotFoundError: the stream 'MISSING' does not exist"),
        ):
            assert f"spark_nats.errors.{sentence}" in first_lines_of(action)
            assert error_of(action).startswith(sentence)
    finally:
        spark.conf.unset(conf)


def test_a_query_that_ended_says_why_when_it_is_asked(spark: SparkSession, nats_server: Server) -> None:
    query = nats(spark.readStream, nats_server, stream="MISSING").load().writeStream.format("noop").start()
    first_lines_of(lambda: finish(query))
    assert "the stream 'MISSING' does not exist; create it" in str(query.exception()).splitlines()[0]


def test_a_task_that_reads_says_in_the_first_lines_what_is_gone(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.x", b"1")])
    frame = nats(spark.read, nats_server, stream=unique, retryTimeout="1s").load()
    assert frame.count() == 1  # which fixes its range
    nats_py.delete_stream(unique)
    assert f"stream '{unique}'" in first_lines_of(frame.collect)
