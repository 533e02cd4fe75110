#!/usr/bin/env bash
# One would guess: addListener() of a Spark Connect client gives the listener the events of the session's queries, whatever was
# done in the session before.
# What happens: if a read of a Python data source has failed in that session just before, the listener gets no event at all, not
# even that a query has started. The only sign is a Python warning with UNKNOWN_RESPONSE from the thread that would call it:
# results of Python's accumulators, left over from the read, are sent to it, and it takes none. A second addListener() works.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/listener-over-connect-ends-after-a-failed-read.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
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
from pyspark.sql.streaming import StreamingQueryListener
warnings.simplefilter("always")
class Heard(StreamingQueryListener):
    def __init__(self): self.events = []
    def onQueryStarted(self, e): self.events.append("started")
    def onQueryProgress(self, e): self.events.append("progress")
    def onQueryIdle(self, e): pass
    def onQueryTerminated(self, e): self.events.append("terminated")
def heard(s, again=False):
    listener = Heard(); s.streams.addListener(listener)
    if again: time.sleep(5); s.streams.addListener(listener)
    q = started(s, "numbers"); until(lambda: q.lastProgress); q.stop()
    until(lambda: "terminated" in listener.events, 15); return sorted(set(listener.events))
spark = server(); out = {}
s = session(spark); s.read.format("numbers").load().count(); out["after a read"] = heard(s)
s = session(spark)
try: s.read.format("numbers").option("by", 0).load().count(); raise SystemExit("the read has not failed")
except Exception as e: assert "ZeroDivisionError" in str(e), e
out["after a failed read"] = heard(s)
s = session(spark)
try: s.read.format("numbers").option("by", 0).load().count()
except Exception: pass
out["added twice"] = heard(s, True)
s = session(spark); q = started(s, "numbers"); until(lambda: q.lastProgress); out["after a query was started"] = heard(s); q.stop()
print("PySpark", pyspark.__version__)
for name, seen in out.items(): print(f"{name}: heard {seen}", flush=True)
full = ["progress", "started", "terminated"]
assert out["after a read"] == full and out["after a failed read"] == [] and out["added twice"] == full, out
print("SEEN: a listener that was added after a failed read heard nothing; added again, it did", flush=True)
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
