#!/usr/bin/env bash
# One would guess: foreachBatch runs isEmpty(), count() and a write on a micro-batch of 6 rows; both the count of observe() and
# numInputRows then add up what these actions have read.
# What happens: numInputRows is 14 (2 + 6 + 6; isEmpty opens both partitions), and the observed count is 6.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/observed-count-is-of-one-action.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
if [ -n "${FINDINGS_VENV:-}" ]; then PY="$FINDINGS_VENV/bin/python"; else
  python3 -m venv "$W/venv"; PY="$W/venv/bin/python"; "$PY" -m pip -q --disable-pip-version-check install pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
fi
export PYSPARK_PYTHON="$PY" PYSPARK_DRIVER_PYTHON="$PY" SPARK_LOCAL_IP=127.0.0.1 T="$W" PYTHONPATH="$W" PYTHONDONTWRITEBYTECODE=1
cat > "$W/numbers_format.py" <<'PY'
import json, os
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

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

class Batch(Reads, DataSourceReader):
    def partitions(self): note("partitions", self.upto()); return cut(0, self.upto(), int(self.o.get("parts", 1)))

class Stream(Reads, DataSourceStreamReader):
    def initialOffset(self): note("initialOffset", self.o.get("of", "n")); return {"i": 0}
    def latestOffset(self, start, limit): return {"i": max(self.upto(), start["i"])}
    def partitions(self, start, end):
        note("range", self.o.get("of", "n"), start["i"], end["i"]); return cut(start["i"], end["i"], int(self.o.get("parts", 1)))

class Numbers(DataSource):
    @classmethod
    def name(cls): return "numbers"
    def schema(self): return "id BIGINT"
    def reader(self, schema): return Batch(self.options)
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
from pyspark.sql.functions import count, lit
spark = session(); put("n", 6)
def act(b, i): b.isEmpty(); b.count(); b.write.format("noop").mode("append").save()
def run():
    q = (spark.readStream.format("numbers").option("parts", 2).load().observe("o", count(lit(1)).alias("c")).writeStream.foreachBatch(act)
         .option("checkpointLocation", tempfile.mkdtemp(dir=T)).trigger(availableNow=True).start()); q.awaitTermination(180)
    if q.exception(): raise q.exception()
    p = q.recentProgress[0]; return p["numInputRows"], p["observedMetrics"]["o"]["c"]
out = once_more(run); print("PySpark", pyspark.__version__, "numInputRows, observed count:", out); assert out == (14, 6), out
spark.stop(); print("SEEN: the micro-batch has 6 rows: numInputRows says 14, the observed count 6")
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
