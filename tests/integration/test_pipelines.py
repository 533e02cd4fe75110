"""Declarative pipelines, run with `spark-pipelines`: the one that docs/installing.md shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.jobs import ROOT
from tests.nats_py import NatsPy
from tests.servers import ServerFactory

PIPELINE = (ROOT / "docs" / "installing.md").read_text().split("A pipeline reads")[1].split("```python\n")[1]
SPECIFICATION = """
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""


@pytest.mark.long("spark_nats/datasource.py", "spark_nats/sparkapi.py")
@pytest.mark.timeout(1000)
def test_a_pipeline_reads_and_writes_streams_goes_on_and_begins_anew_with_a_full_refresh_of_all(
    spark_environment: dict[str, str], server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory()
    (tmp_path / "transformations").mkdir()
    pipeline = PIPELINE.split("```")[0].replace("nats://localhost:4222", server.url)
    assert server.url in pipeline
    (tmp_path / "transformations" / "orders.py").write_text(pipeline)
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path))
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.create_stream("RESULTS", ["results.>"])
        client.store("orders.eu", range(10))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

        def run(*more: str) -> list[int]:
            confs = ("spark.ui.enabled=false", "spark.sql.catalogImplementation=hive")
            named = [word for conf in confs for word in ("--conf", conf)]
            done = subprocess.run(
                [Path(sys.executable).with_name("spark-pipelines"), "run", *more, *named],
                env={**spark_environment, "PATH": path},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr[-5000:]
            found = client.read_stream("RESULTS")
            assert {message.subject for message in found} == {"results.eu"}
            return sorted(int(message.payload) for message in found)

        assert run() == list(range(10))
        client.store("orders.eu", range(10, 15))
        assert run() == list(range(15))
        assert run("--full-refresh", "results") == list(range(15))
        assert run("--full-refresh-all") == sorted([*range(15), *range(15)])
