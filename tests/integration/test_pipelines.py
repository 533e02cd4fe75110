"""Declarative pipelines, run with `spark-pipelines`: the one that docs/installing.md shows."""

from __future__ import annotations

import os
import shutil
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
def test_a_pipeline_reads_and_writes_streams_and_does_so_anew_with_a_full_refresh(
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
            done = subprocess.run(
                [Path(sys.executable).with_name("spark-pipelines"), "run", *more, "--conf", "spark.ui.enabled=false"],
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
        shutil.rmtree(tmp_path / "spark-warehouse")  # the catalog in memory has forgotten the table
        assert run("--full-refresh-all") == sorted([*range(10), *range(15)])
