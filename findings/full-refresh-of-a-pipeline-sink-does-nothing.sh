#!/usr/bin/env bash
# Done: a declarative pipeline has a sink and one flow into it. It runs, and then once more with --full-refresh and the name of
# the flow, and with the name of the sink.
# One would guess: the flow begins anew without its checkpoint and writes all rows once more, as --full-refresh does for a
# table; or the name is refused, since it is not a table's.
# What happens: the run says that the flow is EXCLUDED, writes nothing, keeps the checkpoint, and ends well, with "Run is
# COMPLETED" and exit status 0.
# Seen with pyspark 4.3.0, pandas 2.3.3 and pyarrow 26.0.1 from PyPI, Python 3.11 and Java 17 on Linux; no other software is involved.
# Needs Java 17 as well. FINDINGS_VENV=DIR: use this virtual environment, which has these packages, instead of making one.
# Usage: bash findings/full-refresh-of-a-pipeline-sink-does-nothing.sh     Exit status 0: the behaviour is still there; 3: Java is missing; anything else: it has changed, or the set-up failed.
set -euo pipefail
command -v java > /dev/null || { echo "needs Java 17"; exit 3; }
# spark-pipelines starts a server of Spark Connect on its usual port, and takes no other.
python3 -c "import socket; socket.create_server(('127.0.0.1', 15002))" 2> /dev/null || { echo "needs port 15002, which another program has"; exit 3; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
if [ -n "${FINDINGS_VENV:-}" ]; then V="$FINDINGS_VENV"; else
  python3 -m venv "$W/venv"; V="$W/venv"; "$V/bin/python" -m pip -q --disable-pip-version-check install "pyspark[pipelines]==4.3.0" pyarrow==26.0.1 pandas==2.3.3
fi
export PATH="$V/bin:$PATH" PYSPARK_PYTHON="$V/bin/python" PYSPARK_DRIVER_PYTHON="$V/bin/python" SPARK_LOCAL_IP=127.0.0.1 W PYTHONDONTWRITEBYTECODE=1
mkdir "$W/p" "$W/p/flows" "$W/in"
cat > "$W/p/spark-pipeline.yml" <<Y
name: numbers
storage: file://$W/storage
libraries:
  - glob:
      include: flows/**
Y
cat > "$W/p/flows/copy.py" <<'P'
import os
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
spark = SparkSession.active()
dp.create_sink("copies", "json", {"path": os.environ["W"] + "/out"})
@dp.append_flow(target="copies")
def copy():
    return spark.readStream.format("json").schema("id BIGINT").load(os.environ["W"] + "/in")
P
for i in 1 2 3; do echo "{\"id\": $i}" >> "$W/in/one.json"; done
run() {
  (cd "$W/p" && timeout 280 spark-pipelines run "$@" --conf spark.ui.enabled=false > "$W/said" 2>&1) || { tail -n 20 "$W/said"; echo "the run with '$*' has ended with an error"; exit 1; }
  echo "run $*: $(grep -oE "Flow '?[a-z_.]*'? (is EXCLUDED|has COMPLETED)|Run is COMPLETED" "$W/said" | tr '\n' ';') rows in the sink: $(rows), checkpoints: $(ls "$W/storage/_checkpoints/copies/copy" | tr '\n' ' ')"
}
rows() { cat "$W"/out/part-* | wc -l; }
echo "PySpark $("$V/bin/python" -c 'import pyspark; print(pyspark.__version__)')"
run
grep -q "Flow copy has COMPLETED" "$W/said" && [ "$(rows)" = 3 ] || { tail -n 20 "$W/said"; echo "the flow has not run"; exit 1; }
for name in copy copies; do
  run --full-refresh "$name"
  grep -q "Flow 'copy' is EXCLUDED" "$W/said" && grep -q "Run is COMPLETED" "$W/said" || { tail -n 20 "$W/said"; echo "changed: the flow was not excluded"; exit 1; }
  [ "$(rows)" = 3 ] && [ "$(ls "$W/storage/_checkpoints/copies/copy" | tr '\n' ' ')" = "0 " ] || { echo "changed: the flow has begun anew"; exit 1; }
done
echo "SEEN: a full refresh of a sink's flow, and of the sink, excluded the flow, wrote nothing and ended well"
