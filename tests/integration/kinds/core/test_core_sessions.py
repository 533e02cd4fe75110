"""Core NATS in a Spark application of another kind: executors in JVMs of their own, tasks that are tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.support import wait_for_subscriptions
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server
from tests.spark_session import SparkApplication

PER_SECOND = 20_000
MICRO_BATCHES = 15

# Reads numbers until there were enough micro-batches and all that it then hears were published.
STEADY = """
import time
from pyspark import TaskContext

url, subject, folder, micro_batches = arguments

def fail_at_first(batches):
    context = TaskContext.get()
    for batch in batches:
        yield batch
        if context.attemptNumber() == 0 and context.partitionId() == 0:
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
say("enough")
published = int(hear())
# numInputRows counts rows of attempts that failed too, so the offset says how far the query is.
wait_until(lambda: '"messages": ' + str(published) in (query.lastProgress["sources"][0]["endOffset"] or ""))
query.stop()
result = spark.read.parquet(folder + "/rows")
say(" ".join(map(str, result.selectExpr("count(*)", "count(DISTINCT number)", "min(number)", "max(number)").first())))
late = result.selectExpr("timestamp < max(timestamp) OVER (ORDER BY number) AS late").where("late").count()
say(f"{late} {sum(p['numInputRows'] > 0 for p in query.recentProgress)}")
"""


CLUSTER = """
import glob, time

url, subject, folder, spooled = arguments
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
say("started")
hear()  # messages were published
for count in (10_000, 20_000):
    if count > 10_000:
        say("more")
        hear()
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
say("all")
"""


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
                client.publish_each(subject, range(published[0], end))
                published[0] = end

    thread = threading.Thread(target=work, name="publisher")
    thread.start()
    try:
        yield published
    finally:
        over.set()
        thread.join()


@pytest.mark.promise("writing#core-to-spark")
@pytest.mark.long("spark_nats/kinds/core/*", races="a publisher that goes on at a steady rate")
def test_nothing_is_lost_between_micro_batches_of_which_tasks_fail(
    spark_application: SparkApplication, nats_server: Server, unique: str, tmp_path: Path
) -> None:
    with spark_application.run(STEADY, nats_server.url, unique, str(tmp_path), str(MICRO_BATCHES)) as script:
        wait_for_subscriptions(nats_server, unique)
        with publishing_steadily(nats_server, unique) as published:
            assert script.hear() == "enough"
        count = published[0]
        script.say(str(count))
        assert script.hear().split() == [str(count), str(count), "0", str(count - 1)]
        late, micro_batches = map(int, script.hear().split())
    assert late == 0  # times rise as the messages came
    assert micro_batches >= MICRO_BATCHES
    assert (tmp_path / "failed").read_text().count("once") >= MICRO_BATCHES


@pytest.mark.long("spark_nats/kinds/core/*")
@pytest.mark.parametrize("spooled", ["spooled", "not spooled"])
def test_executors_need_nothing_of_the_drivers(
    spark_application: SparkApplication, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, spooled: str
) -> None:
    with spark_application.run(CLUSTER, nats_server.url, unique, str(tmp_path), spooled) as script:
        for first, said in ((0, "started"), (10_000, "more")):
            assert script.hear() == said
            wait_for_subscriptions(nats_server, unique)
            nats_py.publish_each(unique, range(first, first + 10_000))
            script.say("go")
        assert script.hear() == "all"


# Stops a query whose second micro-batch is an hour away, without a spool and with one, and starts the latter again.
STOPPED = """
import time

url, subject, folder = arguments
found = []

def begin(interval, **options):
    options |= {"servers": url, "subject": subject, "maxOffsetsPerTrigger": 4}
    frame = spark.readStream.format("nats").options(**options).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.extend(int(row.payload) for row in batch.collect()))
        .option("checkpointLocation", f"{folder}/checkpoint{len(options)}").trigger(processingTime=interval).start()
    )
    while query.lastProgress is None:
        assert query.exception() is None, query.exception()
        time.sleep(0.1)
    return query

for options in ({}, {"spoolLocation": folder + "/spool"}):
    query = begin("1 hour", **options)
    say("listening")
    hear()
    query.stop()
    hear()
query = begin("0 seconds", **options)
while len(found) < 10:
    assert query.exception() is None, query.exception()
    time.sleep(0.1)
query.stop()
say(found)
"""


@pytest.mark.long("spark_nats/kinds/core/*", "spark_nats/sparkapi.py")
def test_spark_ends_a_query_and_what_nobody_had_read_is_counted_or_kept(
    spark_application: SparkApplication, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    """Spark ends the process of a query by SIGTERM, and does not read what that writes then."""
    with spark_application.run(STOPPED, nats_server.url, unique, str(tmp_path)) as script:
        for spool in (False, True):
            assert script.hear() == "listening"
            nats_py.publish_each(unique, range(10))
            script.say("stop")
            if spool:
                wait_until(lambda: sum(1 for _ in (tmp_path / "spool").glob("*/*.arrow")) == 3, timeout=60)
            else:
                said = f"[NATS_RECEIVED_DROPPED] core NATS, {unique}: 10 messages that were received before the query"
                wait_until(lambda: said in spark_application.errors(), timeout=60)  # noqa: B023 - here only
            script.say("go on")
        assert script.hear() == str(list(range(10)))
