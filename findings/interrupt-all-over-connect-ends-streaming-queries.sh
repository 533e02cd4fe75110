#!/usr/bin/env bash
# One would guess: spark.interruptAll() of a Spark Connect client interrupts what the client waits for, such as a batch read, as
# its name for "operations" says. A streaming query, which runs on the server, goes on; if not, it ends with an error.
# What happens: a streaming query that is within a micro-batch ends, and looks as if it had ended well: awaitTermination()
# returns True and exception() is None. Its micro-batch was not written, and is not in commits/.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/interrupt-all-over-connect-ends-streaming-queries.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
if [ -n "${FINDINGS_VENV:-}" ]; then PY="$FINDINGS_VENV/bin/python"; else
  python3 -m venv "$W/venv"; PY="$W/venv/bin/python"; "$PY" -m pip -q --disable-pip-version-check install "pyspark[connect]==4.3.0" pyarrow==26.0.1 pandas==2.3.3
fi
PORT=$("$PY" -c "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])")
export PORT PYSPARK_PYTHON="$PY" PYSPARK_DRIVER_PYTHON="$PY" SPARK_LOCAL_IP=127.0.0.1 T="$W" PYTHONPATH="$W" PYTHONDONTWRITEBYTECODE=1
cat > "$W/numbers_format.py" <<'PY'
import time
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage

class Batch(DataSourceReader):
    def __init__(self, o): self.o = o
    def read(self, p):
        for i in range(6): yield (i // int(self.o.get("by", 1)),)

class Stream(DataSourceStreamReader):
    def __init__(self, o): self.pause = float(o.get("pause", 0))
    def initialOffset(self): return {"i": 0}
    def latestOffset(self): return {"i": 60}
    def partitions(self, start, end): return [InputPartition((start["i"], end["i"]))]
    def read(self, p):
        for i in range(*p.value): time.sleep(self.pause); yield (i,)

class Writer(DataSourceStreamWriter):
    def write(self, rows): list(rows); return WriterCommitMessage()

class Numbers(DataSource):
    @classmethod
    def name(cls): return "numbers"
    def schema(self): return "id BIGINT"
    def reader(self, schema): return Batch(self.options)
    def streamReader(self, schema): return Stream(self.options)
    def streamWriter(self, schema, overwrite): return Writer()
PY
cat > "$W/base.py" <<'PY'
import atexit, os, subprocess, sys, tempfile, time, warnings
import pyspark
from pyspark.sql import SparkSession
from numbers_format import Numbers
T = os.environ["T"]
def server():
    process = subprocess.Popen([sys.executable, T + "/server.py"], stdin=subprocess.PIPE); atexit.register(lambda: (process.stdin.close(), process.wait(120)))
    assert until(lambda: os.path.exists(T + "/ready") or process.poll() is not None), "no server"
    return SparkSession.builder.remote("sc://localhost:" + os.environ["PORT"]).create()
def session(spark):
    s = spark.newSession(); s.dataSource.register(Numbers); return s
def started(s, sink="noop", **o):
    return s.readStream.format("numbers").options(**o).load().writeStream.format(sink).option("checkpointLocation", tempfile.mkdtemp(dir=T)).start()
def until(f, seconds=120):
    end = time.monotonic() + seconds
    while not f():
        if time.monotonic() > end: return False
        time.sleep(0.2)
    return True
PY
cat > "$W/server.py" <<'PY'
import os, sys
from pyspark.sql import SparkSession
settings = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin", "spark.connect.grpc.binding.port": os.environ["PORT"], "spark.ui.enabled": "false",
            "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.python.authenticate.socketTimeout": "60s", "spark.sql.artifact.isolation.enabled": "true"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
open(os.environ["T"] + "/ready", "w").close(); sys.stdin.read(); spark.stop()
PY
cat > "$W/main.py" <<'PY'
from base import *
spark = server(); s = session(spark)
checkpoint = tempfile.mkdtemp(dir=T)
query = s.readStream.format("numbers").option("pause", 2).load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()  # its first micro-batch takes two minutes
assert until(lambda: os.path.exists(checkpoint + "/offsets/0") and query.status["isTriggerActive"]), query.status
time.sleep(5); assert query.isActive  # nothing else ends it
ids = s.interruptAll()
ended = until(lambda: not query.isActive, 60)
print("PySpark", pyspark.__version__, "interrupted operations:", len(ids)); print("active:", query.isActive, "awaitTermination(60):", query.awaitTermination(60), "exception():", query.exception())
commits = os.listdir(checkpoint + "/commits") if os.path.exists(checkpoint + "/commits") else []
print("offsets:", sorted(os.listdir(checkpoint + "/offsets")), "commits:", commits)
assert ended and query.awaitTermination(60) is True and query.exception() is None and "0" not in commits
print("SEEN: interruptAll() ended a streaming query in the middle of a micro-batch, which then looked as if it had ended well", flush=True)
s.stop()
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
