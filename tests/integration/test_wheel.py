"""The built wheel in an empty environment: `format("nats")` works with nothing else done."""

import os
import sys

import pytest

from tests.integration.jobs import ROOT, run, uv

SCRIPT = """
import warnings
from pyspark.sql import SparkSession
from spark_nats.embedded import NatsServer

warnings.simplefilter("error", FutureWarning)  # as Spark's about a pandas that it does not know yet
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
with NatsServer() as server:
    rows = spark.range(10).selectExpr("concat('s.', id) AS subject", "string(id) AS payload")
    to = {"servers": server.url, "stream": "S", "createStream": '{"subjects": ["s.>"]}'}
    rows.write.format("nats").options(**to).mode("append").save()
    back = spark.read.format("nats").option("servers", server.url).option("stream", "S").load()
    assert sorted(row.payload for row in back.collect()) == [b"%d" % i for i in range(10)]
    assert sorted(back.toPandas()["sequence"]) == list(range(1, 11))
spark.stop()
print("read and written")
"""


@pytest.mark.long("pyproject.toml", "scripts/*")
def test_the_wheel_alone_gives_a_working_format(spark_environment, tmp_path):
    run(uv(), "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    run(uv(), "venv", "--python", sys.executable, str(tmp_path / "venv"))
    bin_ = tmp_path / "venv" / "bin"
    run(uv(), "pip", "install", "--python", str(bin_ / "python"), f"spark-nats[all] @ {wheel.as_uri()}")
    (tmp_path / "script.py").write_text(SCRIPT)
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
    local["JDK_JAVA_OPTIONS"] = spark_environment["JDK_JAVA_OPTIONS"]
    assert "read and written" in run(str(bin_ / "python"), str(tmp_path / "script.py"), PATH=path, **local)
