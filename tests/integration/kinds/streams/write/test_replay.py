"""Tasks and micro-batches that run again: their rows in another order, other batches, other partitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask
from tests.connections import write_options
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server
from tests.spark_session import SparkApplication

QUERY = "3f81c09a-6f2e-4b6c-9d55-0a1b2c3d4e5f"
Row = tuple[str, bytes]
pytestmark = pytest.mark.timeout(150)


def rows_of(stream: str, count: int) -> list[Row]:
    """Rows of which many are equal, some are long and some differ in their subject alone."""
    numbers = [random.Random(i).randrange(count // 2) for i in range(count)]
    return [(f"{stream}.{i % 3}", b"%d " % (i // 3) * (500 if i % 50 == 0 else 1)) for i in numbers]


def row_batches(rows: Sequence[Row], size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        payloads = pa.array([payload for _, payload in part], pa.binary())
        yield pa.RecordBatch.from_arrays([pa.array([subject for subject, _ in part]), payloads], ["subject", "payload"])


def write_all(options: WriteOptions, rows: Sequence[Row], partition: int = 0, size: int = 100) -> None:
    """What the task of one partition does."""
    write_partition(options, WriteTask(QUERY, "7", partition), row_batches(rows, size))


def write_in_part(options: WriteOptions, rows: Sequence[Row], size: int = 100) -> None:
    """The same task, which ends with an error when it has written half of its rows."""

    def failing() -> Iterator[pa.RecordBatch]:
        for i, batch in enumerate(row_batches(rows, size)):
            if i * size >= len(rows) // 2:
                raise InterruptedError("the executor is gone")
            yield batch

    with pytest.raises(InterruptedError):
        write_partition(options, WriteTask(QUERY, "7", 0), failing())


def stored_rows(client: NatsPy, stream: str) -> Counter[Row]:
    return Counter((message.subject, message.payload) for message in client.read_stream(stream))


@pytest.mark.promise("exactly-once#exact")
@pytest.mark.docker
def test_a_task_that_runs_again_with_its_rows_in_another_order_loses_and_doubles_none(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    rows = rows_of(unique, 3000)
    options = write_options(nats_server.url, stream=unique, maxInFlight=50, deduplicate="window")
    for attempt in range(3):
        random.Random(attempt).shuffle(rows)
        write_in_part(options, rows, size=100 + attempt)
    partly = wait_until(lambda: nats_py.held(unique))
    assert partly < len(rows)
    random.Random(7).shuffle(rows)
    write_all(options, rows, size=77)
    assert stored_rows(nats_py, unique) == Counter(rows)


def test_rows_that_move_to_other_partitions_may_be_doubled_and_are_not_lost(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """As when a query is started again, on the micro-batch that it had not finished, with another `minPartitions`."""
    nats_py.create_stream(unique)
    rows = rows_of(unique, 2000)
    options = write_options(nats_server.url, stream=unique, maxInFlight=50, deduplicate="window")
    for partition in range(2):
        write_all(options, rows[partition * 1000 :][:1000], partition)
    for partition in range(4):
        write_all(options, rows[partition * 500 :][:500], partition)
    found = stored_rows(nats_py, unique)
    assert found >= Counter(rows)  # each at least as often
    assert found.total() > len(rows)


SCRIPT = """
import time
from pyspark import TaskContext
from spark_nats.client import connect
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.options import connection_options

url, stream, folder = arguments
spark.conf.set("spark.sql.adaptive.enabled", False)  # which would put these few rows into one partition
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)

def stored():
    with connect(connection_options(servers=url)) as connection:
        return ask_stream_info(JetStream(connection), stream).messages

def in_another_order(batches):
    batches = list(batches)
    if TaskContext.get().attemptNumber() > 0:
        for batch in reversed(batches):
            yield batch.take(list(range(batch.num_rows))[::-1])
        return
    yield from batches[: len(batches) // 2]
    deadline = time.monotonic() + 60
    while not stored() and time.monotonic() < deadline:
        time.sleep(0.1)
    with open(folder + "/failed", "a") as failed:
        failed.write(f"{stored()}\\n")
    raise InterruptedError

rows = spark.range(4000).selectExpr(
    f"concat('{stream}.', id % 7) AS subject", "rpad(string(id div 2), 500, '.') AS payload"
)
rows = rows.repartition(2).mapInArrow(in_another_order, rows.schema)
rows.write.format("nats").options(servers=url, stream=stream, deduplicate=True).mode("append").save()
"""


@pytest.mark.long("spark_nats/kinds/streams/write/*")
def test_spark_runs_a_failed_task_again_behind_a_shuffle_and_nothing_is_lost_or_doubled(
    spark_application: SparkApplication, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    with spark_application.run(SCRIPT, nats_server.url, unique, str(tmp_path)):
        pass
    stored_before_a_failure = [int(line) for line in (tmp_path / "failed").read_text().splitlines()]
    assert len(stored_before_a_failure) >= 1, "no task failed"
    assert 0 not in stored_before_a_failure, "a task failed before it had written anything"
    expected = Counter((f"{unique}.{i % 7}", f"{i // 2}".ljust(500, ".").encode()) for i in range(4000))
    assert stored_rows(nats_py, unique) == expected
