"""What a query costs the server and the machine, and what it leaves behind."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pyarrow as pa
import pytest

from spark_nats.client import connect
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.creating import create_stream_if_missing
from tests.connections import options_for, publisher_for
from tests.integration.support import finish, monitoring, nats, running
from tests.nats_py import NatsPy, wait_until


def our_connections(server):
    return [each for each in monitoring(server, "connz")["connections"] if each.get("name") == "spark-nats"]


@pytest.fixture
def server(server_factory):
    return server_factory()


@pytest.fixture
def other_side(server):
    with NatsPy(server.url) as client:
        yield client


def follow(spark, server, tmp_path, **options):
    """Start a query from the stream S to the stream R."""
    options = {"idleTimeout": "1s", **options}
    source = nats(spark.readStream, server, stream="S", startingOffsets="earliest", **options).load()
    rows = source.selectExpr("concat('r.', subject) AS subject", "payload")
    sink = nats(rows.writeStream, server, stream="R", createStream='{"subjects": ["r.>"]}', idleTimeout="1s")
    return sink.option("checkpointLocation", str(tmp_path / "checkpoint"))


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{}, {"subject": "s.a"}, {"subject": "s.a", "consume": True}],
    ids=["all subjects", "one subject", "consuming"],
)
def test_an_idle_query_leaves_the_server_in_peace(spark, server, other_side, tmp_path, options):
    other_side.create_stream("S", ["s.>"])
    other_side.publish_acked([("s.a", b""), ("s.b", b"")])
    with running(follow(spark, server, tmp_path, **options).start()) as query:
        wait_until(lambda: query.lastProgress and query.status["message"] == "Waiting for data to arrive", 120)
        listens = "consume" not in options
        if listens:
            wait_until(
                lambda: [each for each in other_side.api("CONSUMER.LIST.S")["consumers"] if each["num_waiting"]], 30
            )

        def is_at_peace() -> bool:
            before, began = monitoring(server, "varz")["in_msgs"], time.monotonic()
            time.sleep(3)  # the time over which requests are counted
            requests = monitoring(server, "varz")["in_msgs"] - before
            return requests / (time.monotonic() - began) < (1 if listens else 20)

        wait_until(is_at_peace, 60)  # the end of what came before may still ask


@pytest.mark.long("spark_nats/kinds/streams/read/*", "spark_nats/jetstream/consuming/*")
def test_a_stopped_query_leaves_no_consumer_and_no_connection(spark, server, other_side, tmp_path):
    other_side.create_stream("S", ["s.>"])
    other_side.publish_acked((f"s.{i % 3}", b"%d" % i) for i in range(6))
    query = finish(follow(spark, server, tmp_path, maxOffsetsPerTrigger=2).trigger(availableNow=True).start(), 120)
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [2, 2, 2]
    assert other_side.stored_numbers("R") == list(range(6))
    wait_until(lambda: not our_connections(server), 60)
    wait_until(lambda: not other_side.consumers("S"), 60)


@pytest.mark.long
def test_reading_two_million_messages_takes_little_memory(spark, server):
    with connect(options_for(server.url)) as connection:
        create_stream_if_missing(JetStream(connection), {"name": "S", "subjects": ["s.>"]})
        publisher = publisher_for(connection, "S")
        subjects, payloads = pa.array([f"s.{i % 100}" for i in range(10_000)]), pa.array([b"x" * 128] * 10_000)
        for _ in range(200):
            publisher.publish(subjects, payloads)
        publisher.wait_for_sent_rows()

    seen: dict[int, list[int]] = {}
    ended = threading.Event()

    def watch():
        jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
        while not ended.wait(0.02):
            for process in jvm.children(recursive=True):
                try:
                    if "pyspark.daemon" in " ".join(process.cmdline()):
                        seen.setdefault(process.pid, []).append(process.memory_info().rss)
                except psutil.Error:
                    pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        frame = nats(spark.read, server, stream="S", maxRecordsPerPartition=2_000_000).load()
        assert frame.rdd.getNumPartitions() == 1
        (total,) = frame.selectExpr("sum(length(payload) + length(subject) + sequence * 0)").first()
    finally:
        ended.set()
        watcher.join()
    assert total == 2_000_000 * 128 + 200 * sum(map(len, subjects.to_pylist()))
    growth = max(max(sizes) - sizes[0] for sizes in seen.values()) / 2**20
    print(f"the Python worker grew by {growth:.0f} MB")
    assert growth < 200


EVERYTHING = """
import sys
import pyarrow
from pyspark.sql.types import ArrayType, BinaryType, LongType, MapType, StringType, StructType, TimestampType
from spark_nats import NatsDataSource
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.write.checks import prepare_write_and_make_marks
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask

headers = MapType(StringType(), ArrayType(StringType()))
schema = StructType().add("subject", StringType()).add("headers", headers).add("payload", BinaryType())
schema = schema.add("stream", StringType()).add("sequence", LongType()).add("timestamp", TimestampType())
source = NatsDataSource({"servers": sys.argv[1], "stream": "S", "subject": "s.>"})
reader = source.reader(schema)
read = [batch for part in reader.partitions() for batch in reader.read(part)]
batches = pyarrow.Table.from_batches(read).combine_chunks().to_batches()  # which may come in more than one
print(sum(batch.num_rows for batch in batches))
source.streamReader(schema).initialOffset()
for options in ({"stream": "S", "deduplicate": "true", "controlHeaders": "true"}, {"stream": "S"}, {}):
    writer = NatsDataSource({"servers": sys.argv[1], "subject": "s.copy", **options}).writer(schema, False)
    message = writer.write(iter(batches))
    writer.commit([message])
    print(message.counts.rows)
options = parse_write_options({"servers": sys.argv[1], "stream": "S", "subject": "s.copy"}, streaming=True)
prepare_write_and_make_marks(options, streaming=True)
for _ in range(2):  # the second time is a replay
    print(write_partition(options, WriteTask("q", "1", 0), iter(batches)).counts.rows)
for batch in batches:
    none = pyarrow.nulls(batch.num_rows, pyarrow.int64())
    batch = batch.append_column("ttl", batch["sequence"]).append_column("expected_last_subject_sequence", none)
    print(write_partition(options, WriteTask("q", "2", 0), iter([batch])).counts.rows)
print("pandas" in sys.modules)
"""
MICRO_BATCH = """
import sys
from pyspark.sql.types import BinaryType, StructType
from spark_nats import NatsDataSource

source = NatsDataSource({"servers": sys.argv[1], "stream": "S", "subject": "s.copy"})
writer = source.streamWriter(StructType().add("payload", BinaryType()), False)
writer.commit([], 1)
print(*{"numpy", "pyarrow", "ssl"} & set(sys.modules))
"""


def said_by(script: str, url: str, **environment: str) -> list[str]:
    """Run a script in a process of its own and return the words that it prints."""
    command = [sys.executable, "-c", script, url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_a_process_that_plans_reads_or_writes_does_without_pandas(server, other_side):
    """PyArrow imports it when it is handed values of Python's or NumPy's, which takes a second of processor time."""
    other_side.create_stream("S", ["s.>"], allow_msg_ttl=True)
    other_side.publish_acked((f"s.{i % 3}", b"%d" % i) for i in range(20))
    with connect(options_for(server.url)) as connection:
        publisher = publisher_for(connection, "S")
        headers = pa.array([b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB: 3\r\n\r\n", None], pa.binary())
        publisher.publish(pa.array(["s.a", "s.b"]), pa.array([b"x", b"y"]), headers)
        publisher.wait_for_sent_rows()
    assert said_by(EVERYTHING, server.url) == ["22"] * 7 + ["False"]


def test_a_process_that_asks_for_the_next_writer_or_commits_imports_next_to_nothing(server, other_side, tmp_path):
    """Spark starts two of them for each micro-batch."""
    other_side.create_stream("S", ["s.>"])
    first, second = (said_by(MICRO_BATCH, server.url, TMPDIR=str(tmp_path)) for _ in range(2))
    assert "numpy" in first  # it has looked at the stream and the state bucket
    assert second == []
