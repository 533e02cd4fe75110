#!/usr/bin/env bash
# One would guess: with spark.sql.execution.arrow.useLargeVarTypes=true Spark itself exchanges large_string with Python (a writer
# gets it), so the reader of a Python data source may yield large_string too; pa.string() might then be the wrong one.
# What happens: with either value of the setting a reader's RecordBatch must have pa.string(); large_string ends in an error of
# the task, while a DataSourceArrowWriter does get large_string.
# And maxRecordsPerBatch=0, which the setting's own description calls "no limit", makes every read of a Python source fail at
# planning, although writes work.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/arrow-settings-of-a-python-reader.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
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
cat > "$W/text_format.py" <<'PY'
import pyarrow as pa
from numbers_format import note
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, WriterCommitMessage
class Reader(DataSourceReader):
    def __init__(self, o): self.o = o
    def read(self, p): yield pa.RecordBatch.from_arrays([pa.array(["x"], getattr(pa, self.o["type"])())], names=["v"])
class Writer(DataSourceArrowWriter):
    def write(self, batches):
        for b in batches: note("written", str(b.schema.field("v").type))
        return WriterCommitMessage()
class Texts(DataSource):
    @classmethod
    def name(cls): return "texts"
    def schema(self): return "v STRING"
    def reader(self, schema): return Reader(self.options)
    def writer(self, schema, overwrite): return Writer()
PY
cat > "$W/main.py" <<'PY'
from base import *
spark = session(); import text_format; spark.dataSource.register(text_format.Texts)
A = "spark.sql.execution.arrow."
def read(kind):
    def f(): return spark.read.format("texts").option("type", kind).load().collect()[0][0]
    try: return once_more(f)
    except Exception as e: return "ERROR " + " ".join(str(e).split("Traceback")[-1].split())[-200:]
def written():
    def f():
        clear(); spark.sql("SELECT 'a' AS v").write.format("texts").mode("append").save(); return [c[1] for c in calls() if c[0] == "written"]
    return once_more(f)
out = {}
for large in ("false", "true"):
    spark.conf.set(A + "useLargeVarTypes", large)
    out[large] = (read("string"), read("large_string"), written())
print("PySpark", pyspark.__version__); print("useLargeVarTypes: read of string, of large_string, type that a writer gets"); print(out)
spark.conf.set(A + "useLargeVarTypes", "false"); spark.conf.set(A + "maxRecordsPerBatch", "0")
zero = (read("string"), written()); print("maxRecordsPerBatch=0: read, written type:", zero)
for large in out: assert out[large][0] == "x" and out[large][1].startswith("ERROR"), out
assert out["false"][2] == ["string"] and out["true"][2] == ["large_string"], out
assert "should be greater than 0" in zero[0] and zero[1] == ["string"], zero
spark.stop(); print("SEEN: a reader has to yield string always; a writer gets large_string; maxRecordsPerBatch=0 stops reads and no writes")
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
