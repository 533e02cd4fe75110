#!/usr/bin/env bash
# Done: a streaming query with observe() writes two rows, of one BIGINT column, into Delta tables: one that is just like them,
# one with a CHECK, and ones for which Delta makes something: a column with a DEFAULT, an identity, a generated column, or an
# INT of the BIGINT.
# One would guess: numInputRows is 2 and observe() counts 2 rows, for each of them.
# What happens: for the tables where Delta casts or fills, both say 0, in lastProgress, in its source and for listeners, though
# both rows are in the table. So a check by observe(), such as the number of bad rows, finds nothing, without a word. In
# foreachBatch both count 2. (Issue 4384 of delta-io/delta says that there are no statistics for generated columns.)
# Seen with pyspark 4.1.4 from PyPI, io.delta:delta-spark_4.1_2.13:4.4.0 from Maven Central, Python 3.11 and Java 17 on Linux.
# Needs Java 17 and Maven Central as well. FINDINGS_VENV=DIR: use this virtual environment, if it has that pyspark, instead of
# making one.
# Usage: bash findings/delta-table-that-casts-or-fills-leaves-counts-at-0.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
PY="${FINDINGS_VENV:-}/bin/python"
if ! "$PY" -c "import pyspark; assert pyspark.__version__ == '4.1.4'" 2> /dev/null; then
  python3 -m venv "$W/venv"; PY="$W/venv/bin/python"; "$PY" -m pip -q --disable-pip-version-check install pyspark==4.1.4
fi
export PYSPARK_PYTHON="$PY" PYSPARK_DRIVER_PYTHON="$PY" SPARK_LOCAL_IP=127.0.0.1 W PYTHONDONTWRITEBYTECODE=1
cat > "$W/main.py" <<'PY'
import os, time
import pyspark
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming import StreamingQueryListener

W = os.environ["W"]
conf = {
    "spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.4.0", "spark.jars.ivy": f"{W}/ivy",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension", "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.warehouse.dir": f"{W}/tables", "spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
}
builder = SparkSession.builder.master("local[2]")
for name, value in conf.items(): builder = builder.config(name, value)
spark = builder.getOrCreate(); spark.sparkContext.setLogLevel("OFF"); sql = spark.sql
os.mkdir(f"{W}/in")
with open(f"{W}/in/rows.json", "w") as file: file.write('{"id": 1}\n{"id": -1}\n')
heard = {}

class Listener(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryIdle(self, event): pass
    def onQueryTerminated(self, event): pass
    def onQueryProgress(self, event):
        if event.progress.batchId == 0: heard[str(event.progress.id)] = event.progress.observedMetrics["seen"].rows

spark.streams.addListener(Listener())

def seen(table, columns, more="", finish=None):
    sql(f"CREATE TABLE {table} ({columns}) USING delta {more}")
    if table == "checked": sql("ALTER TABLE checked ADD CONSTRAINT small CHECK (id < 100)")
    rows = spark.readStream.schema("id BIGINT").json(f"{W}/in")
    rows = rows.observe("seen", F.count(F.lit(1)).alias("rows"), F.count_if(F.col("id") < 0).alias("bad"))
    write = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", f"{W}/checkpoints/{table}")
    query = finish(write) if finish else write.format("delta").toTable(table)
    assert query.awaitTermination(180), "the query has not ended"
    progress, end = query.recentProgress[0], time.monotonic() + 60
    while str(query.id) not in heard and time.monotonic() < end: time.sleep(0.1)
    observed = progress["observedMetrics"]["seen"]
    result = {
        "in the table": spark.table(table).where("id IS NOT NULL").count(), "numInputRows": progress["numInputRows"], "of the source": progress["sources"][0]["numInputRows"],
        "observed": observed["rows"], "observed bad": observed["bad"], "listener": heard.get(str(query.id)),
    }
    print(f"{table:20}", result, flush=True)
    return tuple(result.values())

print("PySpark", pyspark.__version__)
DEFAULT = "id BIGINT, note STRING DEFAULT 'none'", "TBLPROPERTIES ('delta.feature.allowColumnDefaults'='supported')"
all_of_it = (2, 2, 2, 2, 1, 2)
assert seen("alike", "id BIGINT") == all_of_it
assert seen("checked", "id BIGINT") == all_of_it
assert seen("default_each_batch", *DEFAULT, lambda w: w.foreachBatch(lambda d, i: d.writeTo("default_each_batch").append()).start()) == all_of_it
nothing = (2, 0, 0, 0, 0, 0)
assert seen("with_default", *DEFAULT) == nothing
assert seen("with_identity", "id BIGINT, number BIGINT GENERATED ALWAYS AS IDENTITY") == nothing
assert seen("with_generated", "id BIGINT, next BIGINT GENERATED ALWAYS AS (id + 1)") == nothing
assert seen("of_another_type", "id INT") == nothing
spark.stop()
print("SEEN: two rows were written, numInputRows and observe() say 0, wherever Delta casts or fills a column")
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
