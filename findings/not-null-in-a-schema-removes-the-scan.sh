#!/usr/bin/env bash
# One would guess: a schema that a user gives for a Python data source and that says NOT NULL of a column which the source
# calls nullable is refused, or that null rows are still found in spite of it, or that they are an error.
# What happens: the schema's word is taken for the truth when the query is optimised. `where(column IS NULL)` becomes an empty
# relation: the count is 0, and the source's reader() is not even called, although each row of the source has a null there.
# With the source's own schema the same filter finds them all. There is no error and no hint. (A query that does read such
# rows with that schema, such as a plain count(), failed with a NullPointerException, so the answer "there are no nulls" is
# the only one that one gets. This is not run here.)
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/not-null-in-a-schema-removes-the-scan.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${FINDINGS_VENV:-$work/venv}
if [ -z "${FINDINGS_VENV:-}" ]; then
    python3 -m venv "$venv"
    timeout 900 "$venv/bin/pip" -q --disable-pip-version-check install pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
fi
cat > "$work/run.py" <<'PYTHON'
import os, sys
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader

WORK = sys.argv[1]
ROWS = 20


class NullsReader(DataSourceReader):
    def read(self, partition):
        for number in range(ROWS):
            yield number, None


class Nulls(DataSource):
    """Rows of a number and a text; the text is null in each. Notes each call of reader() in a file."""

    @classmethod
    def name(cls):
        return "nulls"

    def schema(self):
        return "number INT, text STRING"

    def reader(self, schema):
        with open(self.options["path"], "a") as f:
            f.write("reader\n")
        return NullsReader()


def look(spark, name, schema=None):
    path = f"{WORK}/{name}.calls"
    reader = spark.read.format("nulls").option("path", path)
    table = (reader if schema is None else reader.schema(schema)).load()
    nulls = table.where("text IS NULL")
    count = nulls.count()
    calls = len(open(path).readlines()) if os.path.exists(path) else 0
    plan = nulls._jdf.queryExecution().optimizedPlan().toString().strip()
    print(f"schema {schema or 'of the source'}: text may be null: {table.schema['text'].nullable}")
    print(f"  where(text IS NULL).count(): {count}; calls of reader(): {calls}; optimised plan: {' '.join(plan.split())}")
    return table, count, calls, plan


def main():
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = builder.config("spark.sql.warehouse.dir", f"{WORK}/warehouse").getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        print("pyspark", spark.version, "java", spark._jvm.java.lang.System.getProperty("java.version"), "python", sys.version.split()[0])
        spark.dataSource.register(Nulls)
        table, count, calls, plan = look(spark, "own")
        assert count == ROWS and calls > 0, (count, calls)
        assert all(row["text"] is None for row in table.collect())
        table, count, calls, plan = look(spark, "given", "number INT, text STRING NOT NULL")
        assert count == 0 and calls == 0 and plan.startswith("LocalRelation <empty>"), (count, calls, plan)
        assert not table.schema["text"].nullable
        print("SEEN: NOT NULL in a user's schema makes a filter for nulls an empty relation; the source is not asked")
    finally:
        spark.stop()


main()
PYTHON
cd "$work"
"$venv/bin/python" -c 'from importlib.metadata import version as v; print(*(f"{n} {v(n)}" for n in ("pyspark", "pandas", "pyarrow")))'
env -u SPARK_HOME PYSPARK_PYTHON="$venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 timeout -k 10 600 "$venv/bin/python" "$work/run.py" "$work" 2> "$work/log" || { status=$?; tail -40 "$work/log" >&2; exit "$status"; }
