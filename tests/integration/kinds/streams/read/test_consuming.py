"""Work queues and interest streams consumed by Spark itself: what is released when, whatever ends the query."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.integration.support import finish, nats, numbers_of, running, storing_numbers
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

KINDS = {"work queue": {"retention": "workqueue", "allow_direct": True}, "interest": {"retention": "interest"}}


class Ledger:
    """What a sink has been given, by micro-batch: one that comes again must be the same."""

    def __init__(self) -> None:
        self._batches: dict[int, list[int]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = numbers_of(frame.select("payload").collect())
        assert self._batches.setdefault(batch, rows) == rows

    @property
    def rows(self) -> list[int]:
        return [row for _, rows in sorted(self._batches.items()) for row in rows]


def consumer(spark: SparkSession, server: Server, stream: str, checkpoint: Path, sink: Any, **options: Any) -> Any:
    source = nats(spark.readStream, server, stream=stream, consume=True, **options).load()
    return source.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))


@pytest.mark.long("spark_nats/kinds/*", races="a publisher that goes on while the query starts and stops")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_restarts_under_a_publisher_lose_nothing_double_nothing_and_leave_nothing(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, kind: str
) -> None:
    nats_py.create_stream(unique, **KINDS[kind])
    ledger = Ledger()

    def query() -> Any:
        return consumer(spark, nats_server, unique, tmp_path, ledger, minPartitions=2, maxOffsetsPerTrigger=2000)

    finish(query().trigger(availableNow=True).start())  # now the interest stream keeps messages
    with storing_numbers(nats_server, f"{unique}.a", at_once=50, pause=0.01) as count:
        for _ in range(20):
            before = len(ledger.rows)
            with running(query().start()):
                wait_until(lambda before=before: len(ledger.rows) > before, 60)
    finish(query().trigger(availableNow=True).start())
    assert ledger.rows == list(range(count[0]))
    assert nats_py.held(unique) == 0


PROCESS_AND_DIE = """
import json, os, signal, sys, time
from pyspark.sql import SparkSession

url, stream, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()

def sink(frame, batch):
    with open(f"{folder}/ledger", "a") as ledger:
        print(json.dumps([int(row.payload) for row in frame.collect()]), file=ledger)

source = spark.readStream.format("nats").options(servers=url, stream=stream, consume="true").load()
writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", f"{folder}/checkpoint")
query = writer.trigger(processingTime="1 hour").start()  # the next one is an hour away
while not query.lastProgress:
    time.sleep(0.05)
os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
os._exit(9)
"""


@pytest.mark.long("spark_nats/kinds/*")
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_dies_between_sink_and_release_leaves_what_is_released_next_and_not_read_again(
    spark: SparkSession,
    spark_environment: dict[str, str],
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    tmp_path: Path,
    kind: str,
) -> None:
    nats_py.create_stream(unique, **KINDS[kind])
    ledger = Ledger()
    checkpoint = tmp_path / "checkpoint"
    if kind == "interest":
        finish(consumer(spark, nats_server, unique, checkpoint, ledger).trigger(availableNow=True).start())
    nats_py.store(f"{unique}.a", range(100))
    script = [sys.executable, "-c", PROCESS_AND_DIE, nats_server.url, unique, str(tmp_path)]
    assert subprocess.run(script, env=spark_environment, timeout=120, check=False).returncode == 9
    processed = [row for line in (tmp_path / "ledger").read_text().splitlines() for row in json.loads(line)]
    assert processed == list(range(100))
    assert nats_py.held(unique) == 100
    nats_py.store(f"{unique}.a", range(100, 130))
    finish(consumer(spark, nats_server, unique, checkpoint, ledger).trigger(availableNow=True).start())
    assert ledger.rows == list(range(100, 130))
    assert nats_py.held(unique) == 0
