"""`spark.speculation`: two attempts at one task run side by side, on a cluster of two hosts.

Spark never runs both on one host, so the workers have addresses of their own, 127.0.0.2 and 127.0.0.3.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from nats.aio.msg import Msg

from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, free_ports

pytestmark = [
    pytest.mark.long("spark_nats/kinds/streams/write/*"),
    pytest.mark.timeout(500),
    pytest.mark.skipif(sys.platform != "linux", reason="needs addresses beside 127.0.0.1"),
]
ROWS = 300
SCRIPT = """
import sys
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession

master, url, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", False)
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "600m")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    .config("spark.speculation", True)
    .config("spark.speculation.interval", "200ms")
    .config("spark.speculation.task.duration.threshold", "1500ms")
    .getOrCreate()
)


def slowly(name):
    def each(batches):
        open(f"{folder}/{name}.{TaskContext.get().attemptNumber()}", "w").close()
        for batch in batches:
            for row in range(batch.num_rows):
                time.sleep(0.03)
                yield batch.slice(row, 1)

    return each


def rows(frame, name, payload):
    # large ones, so that Spark hands them on while the task goes on
    frame = frame.selectExpr(f"'{name.lower()}' AS subject", f"concat({payload}, repeat('x', 20000)) AS payload")
    return frame.mapInArrow(slowly(name), "subject STRING, payload STRING")


def write(name, **options):
    frame = rows(spark.range(0, 300, 1, 1), name, "string(id)")
    frame.write.format("nats").options(servers=url, **options).mode("append").save()


def stream(source, name, **options):
    frame = spark.readStream.format("nats").options(servers=url, stream=source, **options).load()
    writer = rows(frame, name, "string(payload)").writeStream.format("nats").options(servers=url, stream=name)
    writer = writer.option("checkpointLocation", f"{folder}/{name}-checkpoint")
    assert writer.trigger(availableNow=True).start().awaitTermination(200)


stream("SOURCE", "EXACT", startingOffsets="earliest")
stream("JOBS", "CONSUMED", consume="true")
write("WINDOW", stream="WINDOW")
write("FALSE", stream="FALSE", deduplicate="false")
write("CORE")
spark.stop()
"""


@contextmanager
def two_hosts(environment: dict[str, str], folder: Path) -> Iterator[str]:
    """A standalone cluster of two workers with a core each; yields its master."""
    port, *pages = free_ports(4)
    master, memory = f"spark://127.0.0.1:{port}", {"SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as stack:

        def start(name: str, host: str, page: int, *arguments: str) -> None:
            command = (f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}")
            more = ("--host", host, "--webui-port", str(page), *arguments)
            local = {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_HOSTNAME": host}
            log = stack.enter_context((folder / f"{host}.log").open("w"))
            process = subprocess.Popen(
                [*command, *more], env={**environment, **memory, **local}, cwd=folder, stdout=log, stderr=log
            )
            stack.callback(_end, process)

        start("master.Master", "127.0.0.1", pages[0], "--port", str(port))
        wait_until(lambda: "Starting Spark master" in (folder / "127.0.0.1.log").read_text(), 120)
        for host, page in zip(("127.0.0.2", "127.0.0.3"), pages[1:], strict=True):
            start("worker.Worker", host, page, "-c", "1", "-m", "700m", "-d", str(folder / host), master)
        yield master


def _end(process: subprocess.Popen[bytes]) -> None:
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        each.kill()
    process.wait()


@pytest.mark.promise(
    "exactly-once#copies-to-streams",
    "exactly-once#copies-without-ids",
    "exactly-once#copies-to-core",
    "exactly-once#copies-that-read",
)
def test_rows_with_ids_are_stored_once_though_spark_runs_a_task_twice_at_a_time(
    spark_environment: dict[str, str], nats_server: Server, nats_py: NatsPy, tmp_path: Path
) -> None:
    names = ("EXACT", "CONSUMED", "WINDOW", "FALSE")
    for name in names:
        nats_py.create_stream(name, [name.lower()])
    nats_py.create_stream("SOURCE", ["source"])
    nats_py.create_stream("JOBS", ["jobs"], retention="workqueue", allow_direct=True)
    nats_py.store("source", range(ROWS))
    nats_py.store("jobs", range(ROWS))
    heard: list[bytes] = []

    async def listen() -> None:
        async def hear(message: Msg) -> None:
            heard.append(message.data)

        await nats_py.nats.subscribe("core", cb=hear)
        await nats_py.nats.flush()

    nats_py.run(listen(), 30)
    with two_hosts(spark_environment, tmp_path) as master:
        command = [sys.executable, "-c", SCRIPT, master, nats_server.url, str(tmp_path)]
        done = subprocess.run(
            command, env=spark_environment, cwd=tmp_path, capture_output=True, text=True, timeout=450, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert all((tmp_path / f"{name}.{attempt}").exists() for name in (*names, "CORE") for attempt in (0, 1))
    found = {name: Counter(message.payload.rstrip(b"x") for message in nats_py.read_stream(name)) for name in names}
    each = [b"%d" % row for row in range(ROWS)]
    for name in ("EXACT", "CONSUMED", "WINDOW"):
        assert found[name] == Counter(each), name
    assert nats_py.held("JOBS") == 0
    # Without ids, both attempts' rows are there. The second is killed when the first ends, or the other way round.
    for rows in (found["FALSE"], Counter(data.rstrip(b"x") for data in heard)):
        assert set(rows) == set(each)
        assert max(rows.values()) == 2
