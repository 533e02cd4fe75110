"""Secrets are in nothing that outlives a query, and in nothing that it prints. Needs a Spark process to itself."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest

from spark_nats.client import ConnectionOptions, connect, parse_servers
from spark_nats.client.auth import Credentials
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.streams import create_stream

SCRIPT = """
import json, logging, sys
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("py4j").setLevel(logging.INFO)  # at DEBUG it writes down every call into the JVM, arguments included
from pyspark.sql import SparkSession

options, wrong = json.loads(sys.stdin.read())
where = sys.path[0]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    .config("spark.eventLog.enabled", True).config("spark.eventLog.dir", "file://" + where + "/events")
    .config("spark.eventLog.logStageExecutorMetrics", True)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("DEBUG")
nats = lambda io: io.format("nats").options(**options)
rows = spark.range(100).selectExpr("concat('secrets.', id) AS subject", "string(id) AS payload")
nats(rows.write).option("stream", "S").mode("append").save()
back = nats(spark.read).option("stream", "S").load()
back.explain(True)
assert back.count() == 100
copied = (
    nats(spark.readStream).option("stream", "S").option("startingOffsets", "earliest").load()
)
copied.explain(True)
query = (
    nats(copied.selectExpr("concat('copies.', sequence) AS subject", "payload").writeStream)
    .option("stream", "C").option("checkpointLocation", where + "/checkpoint").queryName("copied").start()
)
query.processAllAvailable()
query.explain(True)
print(query.lastProgress, query.status, query.recentProgress)
query.stop()
assert nats(spark.read).option("stream", "C").load().count() == 100
for io, finish in ((spark.read, lambda frame: frame.count()), (spark.readStream, None)):
    try:
        frame = io.format("nats").options(**wrong).option("stream", "S").load()
        if finish:
            finish(frame)
        else:
            failing = frame.writeStream.format("noop").option("checkpointLocation", where + "/other").start()
            failing.awaitTermination(60)
        raise SystemExit("wrong credentials were let in")
    except Exception as error:
        print(repr(error), str(error))
spark.stop()
print("done")
"""

SECRET = "hUsh-" + "Qz7" * 5
ALSO_WRONG = "wR0ng-" + "Qz7" * 5


def run(tmp_path, options, wrong, secrets):
    """Run the script with these options and search all that it left for the secrets, byte for byte."""
    (tmp_path / "events").mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        cwd=tmp_path,
        input=json.dumps([options, wrong]).encode(),
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:].decode("utf-8", "replace")
    assert done.stdout.rstrip().endswith(b"done")
    left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any("checkpoint" in path.parts for path in left)
    assert any("events" in path.parts for path in left)
    left |= {"stdout": done.stdout, "stderr": done.stderr}
    for secret in secrets:
        for form in (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")[:-1]):
            places = [str(place) for place, content in left.items() if form in content]
            lines = [line[:300] for content in left.values() for line in content.splitlines() if form in line]
            assert not places, f"a secret is in {places}: {lines[:3]}"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["password", "token"])
def test_a_secret_is_in_no_log_no_plan_no_event_and_no_checkpoint(way, server_factory, tmp_path):
    if way == "password":
        server = server_factory(f"authorization {{ user: ann, password: {SECRET} }}")
        options, wrong = {"user": "ann", "password": SECRET}, {"user": "ann", "password": ALSO_WRONG}
    else:
        server = server_factory(f"authorization {{ token: {SECRET} }}")
        options, wrong = {"token": SECRET}, {"token": ALSO_WRONG}
    with connect(
        ConnectionOptions(servers=parse_servers(server.url), credentials=Credentials(**options))
    ) as connection:
        create_stream(JetStream(connection), {"name": "S", "subjects": ["secrets.>"]})
        create_stream(JetStream(connection), {"name": "C", "subjects": ["copies.>"]})
    servers = {"servers": server.url}
    run(tmp_path, options | servers, wrong | servers, [SECRET, ALSO_WRONG])
