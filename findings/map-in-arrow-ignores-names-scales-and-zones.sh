#!/usr/bin/env bash
# One would guess: mapInArrow compares the schema of the batches that a function yields with the declared one, as it does for
# int64 where INT is declared (an error), and takes columns by their names, as mapInPandas does.
# What happens: columns are taken by their place. Two columns of one type in another order are exchanged without an error;
# mapInPandas puts the same two right. A decimal with more digits behind the point than declared is rounded, though ANSI mode is
# on. A timestamp without a zone for TIMESTAMP is read as UTC, whatever spark.sql.session.timeZone says.
# Seen with pyspark 4.3.0, pyarrow 26.0.1 and pandas 2.3.3 from PyPI, Python 3.11 and Java 17 on Linux.
# Exit status 0: still so; anything else: it has changed, or the set-up failed.
# FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
if [ -n "${FINDINGS_VENV:-}" ]; then PY="$FINDINGS_VENV/bin/python"; else
  python3 -m venv "$W/venv"; PY="$W/venv/bin/python"
  "$PY" -m pip -q --disable-pip-version-check install pyspark==4.3.0 pyarrow==26.0.1 pandas==2.3.3
fi
export PYSPARK_PYTHON="$PY" PYSPARK_DRIVER_PYTHON="$PY" SPARK_LOCAL_IP=127.0.0.1 PYTHONDONTWRITEBYTECODE=1
cd "$W"
cat > "$W/run.py" <<'PY'
import datetime, decimal
import pandas
import pyarrow as pa
from pyspark.sql import SparkSession

settings = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.python.authenticate.socketTimeout": "60s",
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
one = spark.range(1, numPartitions=1)


def batches(**columns):
    return lambda batches: (pa.RecordBatch.from_pydict(columns) for _ in batches)


swapped = batches(b=pa.array(["is b"]), a=pa.array(["is a"]))
arrow = tuple(one.mapInArrow(swapped, "a STRING, b STRING").first())
frames = lambda frames: (pandas.DataFrame({"b": ["is b"], "a": ["is a"]}) for _ in frames)
by_pandas = tuple(one.mapInPandas(frames, "a STRING, b STRING").first())
print("(a, b) by mapInArrow:", arrow, "by mapInPandas:", by_pandas, flush=True)

precise = batches(a=pa.array([decimal.Decimal("1.2567")], pa.decimal128(10, 4)))
rounded = one.mapInArrow(precise, "a DECIMAL(10, 2)").first().a
ansi = spark.conf.get("spark.sql.ansi.enabled")
print("1.2567 as DECIMAL(10, 2):", rounded, "with spark.sql.ansi.enabled", ansi, flush=True)

noon = batches(a=pa.array([datetime.datetime(2026, 1, 1, 12)], pa.timestamp("us")))
moment = one.mapInArrow(noon, "a TIMESTAMP").selectExpr("string(a) AS a").first().a
print("noon without a zone as TIMESTAMP, in Tokyo:", moment, flush=True)

try:
    wide = one.mapInArrow(batches(a=pa.array([7], pa.int64())), "a INT").collect()
except Exception as error:
    wide = "an error"
print("int64 as INT:", wide, flush=True)
spark.stop()
assert arrow == ("is b", "is a") and by_pandas == ("is a", "is b")
assert str(rounded) == "1.26" and ansi == "true"
assert moment == "2026-01-01 21:00:00"
assert wide == "an error"
PY
timeout -k 10 400 "$PY" "$W/run.py" 2> "$W/log" || { tail -5 "$W/log"; exit 1; }
echo "SEEN: columns by their place, a decimal rounded, a time without a zone taken as UTC"
