#!/usr/bin/env bash
# One would guess: a streaming query with a continuous trigger either writes its rows with a Python data source's stream
# writer, or is refused when it starts, as the sink can only write micro-batches.
# What happens: it starts, stays active, and reports no error, but `write` is never called: no row is written. `commit` is
# called for each epoch, in order, with a list of nothing but None in place of what `write` returns, so that a sink which takes
# None for "a task that had nothing to write" goes on committing, and the rows of the source are lost without a word.
# The same query with trigger(processingTime=...) calls `write`, and `commit` with what it returned.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/continuous-trigger-never-runs-a-python-sink.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
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
import os, sys, time
from dataclasses import dataclass
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

WORK = sys.argv[1]


@dataclass
class Written(WriterCommitMessage):
    rows: int


class CountingWriter(DataSourceStreamWriter):
    """Notes each call of its methods as a line of a file."""

    def __init__(self, path):
        self.path = path

    def note(self, what):
        with open(self.path, "a") as f:
            f.write(what + "\n")

    def write(self, rows):
        count = sum(1 for _ in rows)
        self.note(f"write {count}")
        return Written(count)

    def commit(self, messages, batchId):
        self.note(f"commit {batchId} {[None if m is None else m.rows for m in messages]}")

    def abort(self, messages, batchId):
        self.note(f"abort {batchId}")


class Counting(DataSource):
    @classmethod
    def name(cls):
        return "counting"

    def streamWriter(self, schema, overwrite):
        return CountingWriter(self.options["path"])


def lines(path):
    return open(path).read().splitlines() if os.path.exists(path) else []


def run(spark, name, **trigger):
    """The calls that the sink has seen ten seconds after the first commit."""
    path = f"{WORK}/{name}.calls"
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).option("numPartitions", 1).load()
    writer = rows.writeStream.format("counting").option("path", path).option("checkpointLocation", f"{WORK}/{name}.checkpoint")
    query = writer.trigger(**trigger).start()
    end = time.monotonic() + 300
    while query.isActive and time.monotonic() < end and not any(line.startswith("commit") for line in lines(path)):
        time.sleep(0.2)
    time.sleep(10)
    active, error, before = query.isActive, query.exception(), lines(path)
    query.stop()
    calls = {kind: [line for line in before if line.startswith(kind)] for kind in ("write", "commit", "abort")}
    print(f"trigger {trigger}: active {active}, exception {error}")
    print("  calls:", {kind: len(found) for kind, found in calls.items()}, "the first ones:", before[:6], flush=True)
    assert active and error is None, (active, error)
    return calls


def main():
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = builder.config("spark.sql.warehouse.dir", f"{WORK}/warehouse").getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        print("pyspark", spark.version, "java", spark._jvm.java.lang.System.getProperty("java.version"), "python", sys.version.split()[0])
        spark.dataSource.register(Counting)

        calls = run(spark, "batches", processingTime="1 second")
        written = sum(int(line.split()[1]) for line in calls["write"])
        assert written > 0 and calls["commit"], calls
        assert not any("None" in line for line in calls["commit"]), calls

        calls = run(spark, "continuous", continuous="1 second")
        assert calls["write"] == [] and calls["abort"] == [], calls
        commits = calls["commit"]
        assert len(commits) >= 3, commits
        assert commits == [f"commit {epoch} [None]" for epoch in range(len(commits))], commits
        marked = [name for name in os.listdir(f"{WORK}/continuous.checkpoint/commits") if name.isdigit()]
        print("  epochs that the checkpoint calls committed:", len(marked))
        assert len(marked) >= 3, marked
        print(f"SEEN: with a continuous trigger {len(commits)} epochs were committed, and write was never called")
    finally:
        spark.stop()


main()
PYTHON
cd "$work"
"$venv/bin/python" -c 'from importlib.metadata import version as v; print(*(f"{n} {v(n)}" for n in ("pyspark", "pandas", "pyarrow")))'
env -u SPARK_HOME PYSPARK_PYTHON="$venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 timeout -k 10 900 "$venv/bin/python" "$work/run.py" "$work" 2> "$work/log" || { status=$?; tail -40 "$work/log" >&2; exit "$status"; }
