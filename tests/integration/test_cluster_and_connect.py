"""Real executors in JVMs of their own, and Spark Connect. Each needs a process to itself."""

import os
import subprocess
import sys

import pytest

from tests.spark_session import SPARK_ENVIRONMENT

SCRIPT = """
import sys
from pyspark.sql import SparkSession

kind, url, stream = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", False)
builder = builder.remote("local[2]") if kind == "connect" else builder.master("local-cluster[2,1,1024]")
spark = builder.getOrCreate()
nats = {"servers": url, "stream": stream}
rows = spark.range(2000).selectExpr(f"concat('{stream}.', id % 7) AS subject", "string(id) AS payload")
rows.repartition(4).write.format("nats").options(**nats).mode("append").save()
back = spark.read.format("nats").options(**nats, minPartitions=4).load()
assert back.selectExpr("count(DISTINCT sequence)", "sum(int(string(payload)))").first() == (2000, 1999000)

copied = (
    spark.readStream.format("nats").options(**nats, startingOffsets="earliest", maxOffsetsPerTrigger=900).load()
    .selectExpr(f"concat('{stream}_COPY.', string(payload)) AS subject", "payload", "headers")
    .writeStream.format("nats").options(servers=url, stream=stream + "_COPY", createStream=
        '{"subjects": ["' + stream + '_COPY.>"]}')
    .option("checkpointLocation", sys.path[0] + "/checkpoint").trigger(availableNow=True).start()
)
assert copied.awaitTermination(120)
assert copied.exception() is None, copied.exception()
copy = spark.read.format("nats").options(servers=url, stream=stream + "_COPY").load()
assert copy.selectExpr("count(*)", "count(DISTINCT subject)").first() == (2000, 2000)
spark.stop()
print("read and written")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local-cluster", "connect"])
def test_streams_are_read_and_written(kind, nats_server, nats_py, unique, tmp_path):
    nats_py.create_stream(unique)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), kind, nats_server.url, unique],
        env={**os.environ, **SPARK_ENVIRONMENT},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "read and written" in done.stdout
