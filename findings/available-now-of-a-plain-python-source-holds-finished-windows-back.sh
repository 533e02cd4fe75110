#!/usr/bin/env bash
# One would guess: a run with trigger(availableNow=True) ends when all results that it can give are out: if rows have moved the
# watermark past windows, an empty micro-batch at its end emits them, as it does for a query without a trigger.
# What was done: 121 rows, one for each minute, counted in windows of ten minutes with a watermark of ten minutes; three runs with
# one checkpoint: with these rows, with nothing new, and with one more row.
# What happens: a Python source that has no prepareForTriggerAvailableNow gets one micro-batch for a run and no empty one. The
# first run emits nothing, nor does the second. The third, which has a new row, emits the eleven windows that the first has
# finished. A source with prepareForTriggerAvailableNow (PySpark 4.2 and later have it) emits them in the first run.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/available-now-of-a-plain-python-source-holds-finished-windows-back.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
if [ -n "${FINDINGS_VENV:-}" ]; then PY="$FINDINGS_VENV/bin/python"; else
  python3 -m venv "$W/venv"; PY="$W/venv/bin/python"; "$PY" -m pip -q --disable-pip-version-check install pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
fi
export PYSPARK_PYTHON="$PY" PYSPARK_DRIVER_PYTHON="$PY" SPARK_LOCAL_IP=127.0.0.1 T="$W" PYTHONPATH="$W" PYTHONDONTWRITEBYTECODE=1
cat > "$W/minutes_format.py" <<'PY'
import os
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

class Part(InputPartition):
    def __init__(self, a, b): self.a, self.b = a, b

class Plain(DataSourceStreamReader):
    def initialOffset(self): return {"i": 0}
    def latestOffset(self, start, limit): return {"i": int(open(os.environ["T"] + "/n").read())}
    def partitions(self, start, end): return [Part(start["i"], end["i"])] if start["i"] < end["i"] else []
    def read(self, p):
        for i in range(p.a, p.b): yield (i,)

class Told(Plain, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self): pass

class Minutes(DataSource):
    @classmethod
    def name(cls): return "minutes"
    def schema(self): return "id BIGINT"
    def streamReader(self, schema): return Told() if self.options.get("told") else Plain()
PY
cat > "$W/main.py" <<'PY'
import os, shutil, tempfile
import pyspark
from pyspark.sql import SparkSession, functions as F
import minutes_format
T = os.environ["T"]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
         .config("spark.sql.shuffle.partitions", "1").config("spark.python.worker.reuse", "true").getOrCreate())
spark.sparkContext.setLogLevel("OFF"); spark.dataSource.register(minutes_format.Minutes)
def put(n): open(T + "/n", "w").write(str(n))
def run(told, checkpoint):
    seen = []
    rows = spark.readStream.format("minutes").options(**({"told": "yes"} if told else {})).load()
    counts = (rows.withColumn("at", F.timestamp_seconds(F.col("id") * 60)).withWatermark("at", "10 minutes")
              .groupBy(F.window("at", "10 minutes")).count())
    q = (counts.writeStream.foreachBatch(lambda b, i: seen.append(len(b.collect()))).option("checkpointLocation", checkpoint)
         .trigger(availableNow=True).start())
    assert q.awaitTermination(180)
    if q.exception(): raise q.exception()
    return seen
def runs(told):
    for left in (3, 2, 1, 0):  # a loaded machine may miss Spark's own limit for starting a Python worker (10 s)
        checkpoint = tempfile.mkdtemp(dir=T)
        try:
            found = []
            for n in (121, 121, 122): put(n); found.append(run(told, checkpoint))
            return found
        except Exception as e:
            if not left or not any(x in str(e) for x in ("connect back", "imed out")): raise
        finally: shutil.rmtree(checkpoint, ignore_errors=True)
print("PySpark", pyspark.__version__)
plain, told = runs(False), runs(True)
print("windows that each micro-batch of the three runs emits: plain", plain, "with prepareForTriggerAvailableNow", told)
assert plain == [[0], [], [11]], plain
assert told[0] == [0, 11] and told[1] == [], told
spark.stop()
print("SEEN: a plain Python source emits the windows that a run with availableNow has finished only in the next run with new rows")
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
