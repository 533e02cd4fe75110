#!/usr/bin/env bash
# Done: an Iceberg table has a branch, audit. Two rows of a streaming query, or one of a batch, are written with the option
# branch, with spark.wap.branch (the table has write.wap.enabled), or to the branch by its name.
# One would guess: the rows are in the branch, and main stays as it is, as with save() and with INSERT; or the way is refused.
# What happens: toTable() with the option, and with spark.wap.branch, commits to main: rows that nobody has audited are there
# for all readers. So do, of a batch, writeTo(), saveAsTable() and insertInto() with the option. toTable() with the branch's
# name makes another table of that name in a Hadoop catalog. No error, no warning, and progress counts the rows as written. The
# option of start() with a path, the name in a path, save() with the option, and foreachBatch reach the branch.
# Seen with pyspark 4.1.4 from PyPI, org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 from Maven Central, Python 3.11
# and Java 17 on Linux.
# Needs Java 17 and Maven Central as well. FINDINGS_VENV=DIR: use this virtual environment, if it has that pyspark, instead of
# making one.
# Usage: bash findings/iceberg-rows-for-a-branch-are-in-main.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
PY="${FINDINGS_VENV:-}/bin/python"
if ! "$PY" -c "import pyspark; assert pyspark.__version__ == '4.1.4'" 2> /dev/null; then
  python3 -m venv "$W/venv"; PY="$W/venv/bin/python"; "$PY" -m pip -q --disable-pip-version-check install pyspark==4.1.4
fi
export PYSPARK_PYTHON="$PY" PYSPARK_DRIVER_PYTHON="$PY" SPARK_LOCAL_IP=127.0.0.1 W PYTHONDONTWRITEBYTECODE=1
cat > "$W/main.py" <<'PY'
import os, tempfile
import pyspark
from pyspark.sql import SparkSession

W = os.environ["W"]
conf = {
    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "spark.jars.ivy": f"{W}/ivy",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog", "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": f"{W}/lake", "spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
}
builder = SparkSession.builder.master("local[2]")
for name, value in conf.items(): builder = builder.config(name, value)
spark = builder.getOrCreate(); spark.sparkContext.setLogLevel("WARN"); sql = spark.sql
os.mkdir(f"{W}/in")
with open(f"{W}/in/rows.json", "w") as file: file.write('{"id": 2}\n{"id": 3}\n')
WAP = "write.wap.enabled"
number = 0

def where(write, **options):
    """Where the rows are after write, given a table that has one row in main and in its branch audit."""
    global number; number += 1; table = f"lake.db.t{number}"
    sql(f"CREATE TABLE {table} (id BIGINT) USING iceberg TBLPROPERTIES ('{WAP}'='true')")
    sql(f"INSERT INTO {table} VALUES (1)"); sql(f"ALTER TABLE {table} CREATE BRANCH audit")
    def rows(what): return sql(f"SELECT count(*) FROM {what}").first()[0]
    before = write(table)
    main, audit = rows(table) - 1, rows(f"{table} VERSION AS OF 'audit'") - 1
    tables = [row.tableName for row in sql(f"SHOW TABLES IN {table}").collect()]
    other = rows(f"{table}.branch_audit") if tables else 0
    return {"main": main, "branch": audit, "another table": other, "counted": before}

def stream(finish):
    def write(table):
        source = spark.readStream.schema("id BIGINT").json(f"{W}/in")
        query = finish(source.writeStream.trigger(availableNow=True).option("checkpointLocation", tempfile.mkdtemp(dir=W)), table)
        assert query.awaitTermination(180), "the query has not ended"
        return query.recentProgress[0]["sink"]["numOutputRows"]
    return write

def batch(finish):
    def write(table): finish(spark.range(1), table)
    return write

def wap(write):
    def inner(table):
        spark.conf.set("spark.wap.branch", "audit")
        try: return write(table)
        finally: spark.conf.unset("spark.wap.branch")
    return inner

ice = lambda w: w.format("iceberg").option("branch", "audit")
named = lambda t: t + ".branch_audit"
IN_MAIN = {
    "stream: option, toTable()": stream(lambda w, t: ice(w).toTable(t)),
    "stream: spark.wap.branch, toTable()": wap(stream(lambda w, t: w.format("iceberg").toTable(t))),
    "batch: writeTo().option().append()": batch(lambda d, t: d.writeTo(t).option("branch", "audit").append()),
    "batch: option, saveAsTable()": batch(lambda d, t: ice(d.write).mode("append").saveAsTable(t)),
    "batch: option, insertInto()": batch(lambda d, t: ice(d.write).insertInto(t)),
}
IN_ANOTHER_TABLE = {"stream: toTable() with the branch's name": stream(lambda w, t: w.format("iceberg").toTable(named(t)))}
IN_BRANCH = {
    "stream: option, path, start()": stream(lambda w, t: ice(w).option("path", t).start()),
    "stream: path with the branch's name, start()": stream(lambda w, t: w.format("iceberg").option("path", named(t)).start()),
    "stream: foreachBatch, writeTo() the branch's name": stream(lambda w, t: w.foreachBatch(lambda d, i: d.writeTo(named(t)).append()).start()),
    "batch: option, save()": batch(lambda d, t: ice(d.write).mode("append").save(t)),
    "batch: spark.wap.branch, INSERT": wap(batch(lambda d, t: sql(f"INSERT INTO {t} VALUES (9)"))),
}
print("PySpark", pyspark.__version__)
for place, ways in (("main", IN_MAIN), ("another table", IN_ANOTHER_TABLE), ("branch", IN_BRANCH)):
    for way, write in ways.items():
        seen = where(write); print(f"{way:52}", seen, flush=True)
        rows = 2 if way.startswith("stream") else 1
        assert {k: v for k, v in seen.items() if k != "counted"} == {"main": 0, "branch": 0, "another table": 0} | {place: rows}, (place, seen)
        assert "toTable" not in way or seen["counted"] == 2, seen
spark.stop()
print("SEEN: rows of a stream that were written for a branch of an Iceberg table are in main, and counted as written")
PY
timeout 600 "$PY" "$W/main.py" 2> "$W/err" || { tail -n 20 "$W/err"; exit 1; }
if grep -i -E "WARN.*(branch|wap)" "$W/err"; then echo "it warns now"; exit 1; fi
