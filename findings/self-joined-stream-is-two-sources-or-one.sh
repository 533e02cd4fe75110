#!/usr/bin/env bash
# One would guess: a stream that is used twice in one query is one source, as s.union(s) is
# (stream-used-twice-has-two-offset-lines.sh): one reader plans for both uses, which have one end in each micro-batch.
# What happens: s.alias("a").join(s.alias("b")) is two sources, each with a reader process of its own. The two are asked one after
# the other, so a micro-batch has different ends for the same stream: here 1 row of one and 2 of the other. If the second use has
# renamed columns (s.join(s.select(col("id").alias("x")))), it is one source again, with one end, whose rows are counted twice.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/self-joined-stream-is-two-sources-or-one.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
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

class Stream(Reads, DataSourceStreamReader):
    def initialOffset(self): note("initialOffset", self.o.get("of", "n")); return {"i": 0}
    def latestOffset(self, start, limit):  # the stream has one row more each time that somebody looks
        n = self.upto() + 1; open(os.environ["T"] + "/n", "w").write(str(n)); note("asked", os.getpid()); return {"i": n}
    def partitions(self, start, end):
        note("range", self.o.get("of", "n"), start["i"], end["i"]); return cut(start["i"], end["i"], int(self.o.get("parts", 1)))

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
from pyspark.sql.functions import col, expr
spark = session()
def run(make):
    def g():
        put("n", 0); clear()
        q = make(spark.readStream.format("numbers").load()).writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp(dir=T)).trigger(once=True).start(); q.awaitTermination(180)
        if q.exception(): raise q.exception()
        sources = q.recentProgress[0]["sources"]
        return sorted(json.loads(s["endOffset"])["i"] for s in sources), [s["numInputRows"] for s in sources], len({c[1] for c in calls() if c[0] == "asked"})
    return once_more(g)
out = {"union": run(lambda s: s.union(s)), "join of aliases": run(lambda s: s.alias("a").join(s.alias("b"), expr("a.id = b.id"))),
       "join, renamed": run(lambda s: s.join(s.select(col("id").alias("x")), expr("id = x")))}
print("PySpark", pyspark.__version__); print("end of each source, rows of each, reader processes")
for name, seen in out.items(): print(f"{name}:", *seen)
assert out["union"] == ([1], [2], 1) and out["join, renamed"] == ([1], [2], 1), out
assert out["join of aliases"][0] == [1, 2] and sorted(out["join of aliases"][1]) == [1, 2] and out["join of aliases"][2] == 2, out
spark.stop(); print("SEEN: joined with itself by aliases, a stream is two sources with different ends in one micro-batch; with renamed columns, or in a union, it is one")
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
