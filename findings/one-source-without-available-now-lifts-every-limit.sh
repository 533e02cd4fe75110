#!/usr/bin/env bash
# One would guess: trigger(availableNow=True) is a matter of each source. A source that supports it, with a limit of 2 rows, reads
# its 6 rows in three micro-batches, whatever it is united with; at most the other source is read at once.
# What happens: if one source of the query does not support the trigger, such as Spark's own format "rate", all are read in one
# micro-batch as with Trigger.Once. The limits of the others do not count (latestOffset gets ReadAllAvailable), they are not told
# of the trigger (prepareForTriggerAvailableNow), and what they have read is not committed to them before the next start. With
# Spark's format "rate-micro-batch" instead, or alone, or with spark.sql.streaming.triggerAvailableNowWrapper.enabled, it is as guessed.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/one-source-without-available-now-lifts-every-limit.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
if [ -n "${FINDINGS_VENV:-}" ]; then PY="$FINDINGS_VENV/bin/python"; else
  python3 -m venv "$W/venv"; PY="$W/venv/bin/python"; "$PY" -m pip -q --disable-pip-version-check install pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
fi
export PYSPARK_PYTHON="$PY" PYSPARK_DRIVER_PYTHON="$PY" SPARK_LOCAL_IP=127.0.0.1 T="$W" PYTHONPATH="$W" PYTHONDONTWRITEBYTECODE=1
cat > "$W/numbers_format.py" <<'PY'
import json, os
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

class Part(InputPartition):
    def __init__(self, a, b): self.a, self.b = a, b

def note(*what):
    with open(os.environ["T"] + "/calls", "a") as f: f.write(json.dumps(what) + "\n")

def cut(a, b, k):
    ends = [a + (b - a) * i // k for i in range(k + 1)]
    return [Part(*p) for p in zip(ends, ends[1:]) if p[0] < p[1]]

class Reads:
    def __init__(self, options): self.o = options
    def upto(self): return int(open(os.environ["T"] + "/" + self.o.get("of", "n")).read())
    def read(self, p):
        note("read", p.a, p.b)
        for i in range(p.a, p.b): yield (i,)

class Stream(Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self): note("prepare"); self.end = self.upto()
    def getDefaultReadLimit(self): return ReadMaxRows(2)
    def initialOffset(self): return {"i": 0}
    def latestOffset(self, start, limit):
        note("limit", type(limit).__name__)
        n = start["i"] + limit.max_rows if isinstance(limit, ReadMaxRows) else self.upto()
        return {"i": max(start["i"], min(n, getattr(self, "end", self.upto())))}
    def partitions(self, start, end): return cut(start["i"], end["i"], 1)
    def commit(self, end): note("commit", end["i"])

class Numbers(DataSource):
    @classmethod
    def name(cls): return "numbers"
    def schema(self): return "id BIGINT"
    def streamReader(self, schema): return Stream(self.options)
PY
cat > "$W/base.py" <<'PY'
import json, os, tempfile
import pyspark
from pyspark.sql import SparkSession
T = os.environ["T"]
def put(name, n): open(f"{T}/{name}", "w").write(str(n))
def calls(): return [json.loads(x) for x in open(T + "/calls")] if os.path.exists(T + "/calls") else []
def clear(): open(T + "/calls", "w").close()
def session(**more):
    b = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g").config("spark.sql.shuffle.partitions", "2")
    for k, v in more.items(): b = b.config(k.replace("__", "."), v)
    s = b.getOrCreate(); s.sparkContext.setLogLevel("OFF")
    import numbers_format; s.dataSource.register(numbers_format.Numbers); return s
def once_more(f):  # a loaded machine may miss Spark's own limit for starting a Python worker (10 s)
    for left in (3, 2, 1, 0):
        try: return f()
        except Exception as e:
            if not left or not any(x in str(e) for x in ("connect back", "imed out")): raise
PY
cat > "$W/main.py" <<'PY'
from base import *
spark = session(); put("n", 6)
load = lambda: spark.readStream.format("numbers").load()
rate = lambda: spark.readStream.format("rate").option("rowsPerSecond", 1).load().selectExpr("value AS id")
batches = lambda: spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().selectExpr("value AS id")
def run(make):
    def g():
        clear(); q = make().writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp(dir=T)).trigger(availableNow=True).start(); q.awaitTermination(180)
        if q.exception(): raise q.exception()
        rows = [p["sources"][0]["numInputRows"] for p in q.recentProgress]
        of = lambda what: sorted({tuple(c[1:]) for c in calls() if c[0] == what})
        return rows, of("limit") == [("ReadMaxRows",)], "prepare" in [c[0] for c in calls()], [c[0] for c in of("commit")]
    return once_more(g)
names = "rows of each micro-batch, was the limit passed, was the trigger told, commits"
out = {"alone": run(load), "with rate-micro-batch": run(lambda: load().union(batches())), "with rate": run(lambda: load().union(rate()))}
spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true"); out["with rate, wrapped"] = run(lambda: load().union(rate()))
print("PySpark", pyspark.__version__); print(names)
for name, seen in out.items(): print(f"{name}:", *seen)
for name in ("alone", "with rate-micro-batch", "with rate, wrapped"): assert out[name][:3] == ([2, 2, 2], True, True) and out[name][3][:2] == [2, 4], out
assert out["with rate"] == ([6], False, False, []), out
spark.stop(); print("SEEN: beside a source that does not support availableNow, a limit of 2 rows let 6 rows into one micro-batch, and nothing was committed to the source")
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
