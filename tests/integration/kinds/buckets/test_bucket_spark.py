"""KV buckets through Spark: tables, histories and streams of changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.kinds.buckets.test_bucket_read import keep_markers
from tests.integration.support import error_of, nats, running
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

pytestmark = pytest.mark.timeout(180)


def create_bucket(client: NatsPy, bucket: str, **config: Any) -> None:
    client.create_stream(
        f"KV_{bucket}", [f"$KV.{bucket}.>"], **{"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, **config}
    )


@pytest.mark.long
def test_a_hundred_thousand_keys_of_nats_py_are_a_table(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    create_bucket(nats_py, unique, max_msgs_per_subject=3)
    nats_py.put(unique, {f"{i % 4}.k{i}": str(i).encode() for i in range(100_000)})
    nats_py.put(unique, {f"{i % 4}.k{i}": b"x" for i in range(0, 100_000, 10)})
    nats_py.publish_acked([(f"$KV.{unique}.0.k4", b"", {"KV-Operation": "DEL"})])
    whole = nats(spark.read, nats_server, bucket=unique).load()
    parts = nats(spark.read, nats_server, bucket=unique, keys="0.>,1.>,2.>,3.>").load()
    assert parts.rdd.getNumPartitions() == 4
    for frame in (whole, parts):
        facts = frame.selectExpr(
            "count(*)", "count(DISTINCT key)", "count_if(string(value) = substring(key, 4))", "count_if(value = X'78')"
        )
        assert tuple(facts.first() or ()) == (99_999, 99_999, 89_999, 10_000)


def test_a_bucket_is_read_as_a_table_a_history_and_its_changes(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    create_bucket(nats_py, unique, max_msgs_per_subject=5, allow_msg_ttl=True, subject_delete_marker_ttl=10**9)
    nats_py.put(unique, {"eu.limit": b"1", "eu.rate": b"2", "us.limit": b"3"})
    nats_py.put(unique, {"eu.limit": b"4"})
    config = nats(spark.read, nats_server, bucket=unique).load()
    history = nats(spark.read, nats_server, bucket=unique, keys="eu.>", history="true").load()
    changes = nats(spark.readStream, nats_server, bucket=unique, startingOffsets="earliest").load()
    assert {row["key"]: row["value"] for row in config.collect()} == {
        "eu.limit": b"4",
        "eu.rate": b"2",
        "us.limit": b"3",
    }
    assert [row["value"] for row in history.collect()] == [b"1", b"2", b"4"]
    rows: list[tuple[str, str, str]] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend((row["key"], row["operation"], row["value"].decode()) for row in batch.collect())

    def query() -> Any:
        return changes.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path)).start()

    with running(query()) as started:
        wait_until(lambda: len(rows) == 4, timeout=120)
        nats_py.publish_acked(
            [
                (f"$KV.{unique}.lease", b"5", {"Nats-TTL": "1s"}),
                (f"$KV.{unique}.us.limit", b"", {"KV-Operation": "DEL"}),
                (f"$KV.{unique}.eu.limit", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}),
            ]
        )
        keep_markers(nats_py, unique)
        wait_until(lambda: ("lease", "PURGE", "") in rows, timeout=120)
        started.processAllAvailable()  # and until that micro-batch is done, or it is run again
    nats_py.put(unique, {"late": b"6"})
    with running(query()):
        wait_until(lambda: ("late", "PUT", "6") in rows, timeout=120)
    # The value of the lease is read by those who come within its second.
    assert [row for row in rows if row != ("lease", "PUT", "5")] == [
        ("eu.limit", "PUT", "1"),
        ("eu.rate", "PUT", "2"),
        ("us.limit", "PUT", "3"),
        ("eu.limit", "PUT", "4"),
        ("us.limit", "DEL", ""),
        ("eu.limit", "PURGE", ""),
        ("lease", "PURGE", ""),
        ("late", "PUT", "6"),
    ]


def test_a_bucket_that_is_missing_is_an_error_that_names_it(
    spark: SparkSession, nats_server: Server, unique: str
) -> None:
    error = error_of(nats(spark.read, nats_server, bucket=unique).load().collect)
    assert error.startswith(f"StreamNotFoundError: the bucket '{unique}' does not exist")
    assert error.endswith("; create it, or set the option 'createBucket'")
    requested = json.dumps({"history": 2})
    assert nats(spark.read, nats_server, bucket=unique, createBucket=requested).load().collect() == []
