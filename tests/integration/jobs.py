"""Jobs for a Spark in other processes, and how tests build and install what these need."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import spark_nats

ROOT = Path(__file__).parents[2]

COPY = """
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
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
assert copied.awaitTermination(120)
assert copied.exception() is None, copied.exception()
copy = spark.read.format("nats").options(servers=url, stream=stream + "_COPY").load()
assert copy.selectExpr("count(*)", "count(DISTINCT subject)").first() == (2000, 2000)
"""
"""Writes and reads the stream `stream` of the server `url`, in a batch and in streaming."""


def uv() -> str:
    found = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".tools" / "bin"))
    if found is None:
        pytest.skip("needs uv, which `make test` brings")
    return found


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """Run a command with nothing of the environment that runs the tests: no virtual environment, no Python path."""
    foreign = ("PYTHON", "VIRTUAL_ENV", "PYSPARK", "SPARK")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        command, env={**clean, **environment}, cwd=cwd, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def tracebacks_in(errors: str) -> list[str]:
    """The tracebacks on standard error, but for Spark's own.

    Where a query stops, Spark's Python process for its source sometimes finds the connection closed, and says so.
    """
    each = errors.split("Traceback (most recent call last):")[1:]
    package = str(Path(spark_nats.__file__).parent)
    return [part for part in each if "python_streaming_source_runner.py" not in part or package in part]
