"""Warnings about what nobody would notice otherwise: a query that feeds itself, a clock that is years ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.kinds.streams.read import row_warnings
from spark_nats.kinds.streams.write.message_ids import MessageIds
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import Query, batch_reader, read_sequences, stream_reader, uncoded
from tests.nats_py import NatsPy
from tests.servers import Server

FEEDS_ITSELF = "the query reads rows that it has itself written"


def noticed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [uncoded(record.getMessage()) for record in caplog.records if record.name == row_warnings.__name__]


# A query that feeds itself


def store_as_query(client: NatsPy, subject: str, query: str, rows: int) -> None:
    """Store what a micro-batch of a query has written."""
    texts = pa.array([subject] * rows)
    payloads = pa.array([b"%d" % i for i in range(rows)], pa.binary())
    ids = MessageIds(query, "7", 0).generate_distinct_ids(texts, pa.array([b""] * rows, pa.binary()), payloads)
    messages = zip(payloads.to_pylist(), ids.to_pylist(), strict=True)
    client.publish_acked([(subject, payload, {"Nats-Msg-Id": own, "Kind": "a"}) for payload, own in messages])


def run_as(monkeypatch: pytest.MonkeyPatch, query: str | None) -> None:
    """Have tasks believe that they belong to a query, or to a batch."""
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": query}.get)
    monkeypatch.setattr(row_warnings.TaskContext, "get", lambda: context)


def test_a_query_that_reads_its_own_rows_is_warned_of_once(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.orders", b"1"), (f"{unique}.orders", b"2")])
    store_as_query(nats_py, f"{unique}.results", "this", 10)
    run_as(monkeypatch, "this")
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest", minPartitions=3))
    assert len(query.micro_batch()) == 12
    (said,) = noticed(caplog)
    assert said.startswith(f"stream {unique}: {FEEDS_ITSELF} (message id ")
    assert said.endswith("write to another stream, or read only subjects that it does not write")
    store_as_query(nats_py, f"{unique}.results", "this", 5)
    assert len(query.micro_batch()) == 0  # the ids of before, which the stream knows
    nats_py.publish_acked([(f"{unique}.orders", b"3")])
    assert len(query.micro_batch()) == 1
    assert noticed(caplog) == [said]


@pytest.mark.parametrize(
    ("reads", "subject"),
    [("another", ">"), ("this", "orders"), (None, ">")],
    ids=["of another query", "other subjects", "in a batch"],
)
def test_rows_that_do_not_come_back_are_no_reason_to_warn(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reads: str | None,
    subject: str,
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.orders", b"1", {"Nats-Msg-Id": "order-1"}), (f"{unique}.orders", b"2")])
    store_as_query(nats_py, f"{unique}.results", "this", 10)
    run_as(monkeypatch, reads)
    options = {"stream": unique, "subject": f"{unique}.{subject}", "startingOffsets": "earliest"}
    assert len(Query(stream_reader(nats_server, **options)).micro_batch()) == (2 if subject == "orders" else 12)
    assert noticed(caplog) == []


JOB = """
import sys
from pyspark.sql import SparkSession

url, stream, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
rows = spark.readStream.format("nats").options(servers=url, stream=stream, startingOffsets="earliest").load()
for _ in range(2):  # to the end of what there is, which is further the second time
    copied = rows.selectExpr("subject", "payload").writeStream.format("nats").options(servers=url, stream=stream)
    query = copied.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
"""


@pytest.mark.long("spark_nats/kinds/*")
def test_spark_tells_tasks_which_query_they_read_for(
    spark_environment: dict[str, str], nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"1"] * 5)
    arguments = [nats_server.url, unique, str(tmp_path / "checkpoint")]
    ended = subprocess.run(
        [sys.executable, "-c", JOB, *arguments],
        env={**os.environ, **spark_environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert nats_py.held(unique) == 15
    assert ended.stderr.count(FEEDS_ITSELF) == 1


# A clock that is ahead


@pytest.mark.parametrize(("ahead", "said"), [(timedelta(hours=23), 0), (timedelta(days=3 * 365), 1)])
def test_a_stream_with_times_to_come_is_warned_of_once(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    caplog: pytest.LogCaptureFixture,
    ahead: timedelta,
    said: int,
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    api = ForwardedApi(nats_py)

    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        said = datetime.now(UTC) - ahead  # by the server's clock
        answer["ts"] = f"{said:%Y-%m-%dT%H:%M:%S.%f}Z"
        return answer

    api.answers["STREAM.INFO"] = changed
    with api.serving():
        options = {"stream": unique, "apiPrefix": ForwardedApi.PREFIX}
        query = Query(stream_reader(nats_server, startingOffsets="earliest", **options))
        assert len(query.micro_batch()) == 3
        assert read_sequences(nats_server, **options) == [1, 2, 3]
    assert len(noticed(caplog)) == said
    for text in noticed(caplog):
        assert text.startswith(f"stream {unique}: its last message is stamped {datetime.now(UTC).year}-")
        assert f"its server's clock says {(datetime.now(UTC) - ahead).year}-" in text
        assert "but its server's clock says" in text


def test_a_stream_that_was_never_written_to_is_not_ahead(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    assert batch_reader(nats_server, stream=unique).partitions() == []
