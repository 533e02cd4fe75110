"""Real executors in JVMs of their own, and Spark Connect. Each is a process to itself."""

import subprocess
import sys

import pytest

from tests.integration.jobs import COPY


@pytest.mark.long("spark_nats/datasource.py", "spark_nats/sparkapi.py")
def test_streams_are_read_and_written_by_executors_of_a_cluster(
    spark_application, nats_server, nats_py, unique, tmp_path
):
    nats_py.create_stream(unique)
    begin = "url, stream, checkpoint = arguments\n"
    with spark_application.run(begin + COPY, nats_server.url, unique, str(tmp_path / "checkpoint")):
        pass
    assert nats_py.held(f"{unique}_COPY") == 2000


CONNECT = f"""
import sys
import time
from pyspark.sql import SparkSession
import spark_nats

url, stream, checkpoint = sys.argv[1:]
spark = SparkSession.builder.config("spark.ui.enabled", False).remote("local[2]").getOrCreate()
told = []
spark.streams.addListener(spark_nats.LagListener(told.append))
{COPY}
lag = spark_nats.progress(copied)
assert (lag.behind, lag.streams[0].next) == (0, 2001), lag
assert spark_nats.progress(copied, nats).behind == 0
deadline = time.monotonic() + 60
while not told or told[-1].behind:
    assert time.monotonic() < deadline, told
    time.sleep(0.1)
assert told[0].behind == 1100, told
spark.stop()
print("read and written")
"""


@pytest.mark.long("spark_nats/datasource.py", "spark_nats/sparkapi.py")
def test_streams_are_read_and_written_through_spark_connect(spark_environment, nats_server, nats_py, unique, tmp_path):
    nats_py.create_stream(unique)
    script = tmp_path / "script.py"
    script.write_text(CONNECT)
    done = subprocess.run(
        [sys.executable, str(script), nats_server.url, unique, str(tmp_path / "checkpoint")],
        env=spark_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "read and written" in done.stdout
