"""Core NATS in Spark sessions of another kind: tasks that fail and are tried again, executors in JVMs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.integration.support import wait_for_subscriptions
from tests.nats_py import NatsPy
from tests.servers import Server
from tests.spark_session import SPARK_ENVIRONMENT

PER_SECOND = 20_000
MICRO_BATCHES = 30

# Reads numbers until there were enough micro-batches and all that standard input then says were published.
STEADY = """
import sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession

url, subject, folder, failing, micro_batches = sys.argv[1:]
spark = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", False).getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def fail_at_first(batches):
    context = TaskContext.get()
    for batch in batches:
        yield batch
        if failing == "failing" and context.attemptNumber() == 0 and context.partitionId() == 0:
            open(folder + "/failed", "a").write("once")
            raise RuntimeError("injected")

frame = spark.readStream.format("nats").options(servers=url, subject=subject, minPartitions=3).load()
rows = frame.select("payload", "timestamp").mapInArrow(fail_at_first, "payload BINARY, timestamp TIMESTAMP")
query = (
    rows.selectExpr("int(string(payload)) AS number", "timestamp")
    .writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint").start(folder + "/rows")
)

def wait_until(condition):
    deadline = time.monotonic() + 180
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)

wait_until(lambda: sum(p["numInputRows"] > 0 for p in query.recentProgress) >= int(micro_batches))
print("enough", flush=True)
published = int(sys.stdin.readline())
# numInputRows counts rows of attempts that failed too, so the offset says how far the query is.
wait_until(lambda: '"messages": ' + str(published) in (query.lastProgress["sources"][0]["endOffset"] or ""))
query.stop()
result = spark.read.parquet(folder + "/rows")
print(*result.selectExpr("count(*)", "count(DISTINCT number)", "min(number)", "max(number)").first())
late = result.selectExpr("timestamp < max(timestamp) OVER (ORDER BY number) AS late").where("late").count()
print(late, sum(p["numInputRows"] > 0 for p in query.recentProgress), flush=True)
"""


CLUSTER = """
import glob, sys, time
from pyspark.sql import SparkSession

url, subject, folder, spooled = sys.argv[1:]
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", False).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
options = {"servers": url, "subject": subject, "minPartitions": 4}
if spooled == "spooled":
    options["spoolLocation"] = folder + "/spool"
numbers, kept = [], []

def process(frame, batch):
    rows = frame.selectExpr("int(string(payload)) AS number", "spark_partition_id() AS part").collect()
    numbers.extend(row.number for row in rows)
    if rows:
        kept.append((len(glob.glob(folder + "/spool/*/*")), len({row.part for row in rows})))

frame = spark.readStream.format("nats").options(**options).load()
query = frame.writeStream.foreachBatch(process).start()
print("started", flush=True)
sys.stdin.readline()  # messages were published
for count in (10_000, 20_000):
    if count > 10_000:
        print("more", flush=True)
        sys.stdin.readline()
    deadline = time.monotonic() + 120
    while len(numbers) < count and query.isActive:
        assert time.monotonic() < deadline, len(numbers)
        time.sleep(0.1)
assert query.exception() is None, query.exception()
query.stop()
assert numbers == list(range(20_000)), len(numbers)
assert {files > 0 for files, _ in kept} == {spooled == "spooled"}, kept
assert len(glob.glob(folder + "/spool/*/*")) <= 1
assert max(parts for _, parts in kept) >= 4, kept
print("all", flush=True)
"""


@contextmanager
def script(text: str, folder: Path, *arguments: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a script; its standard input and output. It must end well."""
    path = folder / "script.py"
    path.write_text(text)
    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            env={**os.environ, **SPARK_ENVIRONMENT},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        watch = threading.Timer(240, process.kill)
        watch.start()
        try:
            assert process.stdin
            assert process.stdout
            yield process.stdin, process.stdout
            status = process.wait()
        finally:
            watch.cancel()
            process.kill()
            process.wait()
        errors.seek(0)
        assert status == 0, errors.read()[-5000:]


@contextmanager
def publishing_steadily(server: Server, subject: str) -> Iterator[list[int]]:
    """Publish the numbers from 0 on at a steady rate while the block runs; how many, once it has ended."""
    over = threading.Event()
    published = [0]

    def work() -> None:
        with NatsPy(server.url) as client:
            begin = time.monotonic()
            while not over.wait(0.02):
                end = int((time.monotonic() - begin) * PER_SECOND)
                client.publish_many([(subject, b"%d" % i) for i in range(published[0], end)])
                published[0] = end

    thread = threading.Thread(target=work, name="publisher")
    thread.start()
    try:
        yield published
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["failing", "working"])
def test_nothing_is_lost_between_micro_batches(nats_server: Server, unique: str, tmp_path: Path, failing: str) -> None:
    with script(STEADY, tmp_path, nats_server.url, unique, str(tmp_path), failing, str(MICRO_BATCHES)) as (
        stdin,
        stdout,
    ):
        wait_for_subscriptions(nats_server, unique)
        with publishing_steadily(nats_server, unique) as published:
            assert stdout.readline() == "enough\n", (tmp_path / "errors").read_text()[-5000:]
        count = published[0]
        stdin.write(f"{count}\n")
        stdin.flush()
        assert stdout.readline().split() == [str(count), str(count), "0", str(count - 1)]
        late, micro_batches = map(int, stdout.readline().split())
    assert late == 0  # times rise as the messages came
    assert micro_batches >= MICRO_BATCHES
    failed = tmp_path / "failed"
    assert (failed.read_text().count("once") if failed.exists() else 0) >= (
        MICRO_BATCHES if failing == "failing" else 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("spooled", ["spooled", "not spooled"])
def test_executors_need_nothing_of_the_drivers(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, spooled: str
) -> None:
    with script(CLUSTER, tmp_path, nats_server.url, unique, str(tmp_path), spooled) as (stdin, stdout):
        for first, said in ((0, "started\n"), (10_000, "more\n")):
            assert stdout.readline() == said, (tmp_path / "errors").read_text()[-5000:]
            wait_for_subscriptions(nats_server, unique)
            nats_py.publish_many([(unique, b"%d" % i) for i in range(first, first + 10_000)])
            stdin.write("go\n")
            stdin.flush()
        assert stdout.readline() == "all\n", (tmp_path / "errors").read_text()[-5000:]
