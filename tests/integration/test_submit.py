"""`spark-submit`: to where spark-nats is installed, and to where it is brought along."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest

from tests.integration.jobs import COPY, ROOT, run, uv
from tests.nats_py import NatsPy
from tests.servers import Server

pytestmark = [pytest.mark.long("pyproject.toml", "scripts/*"), pytest.mark.timeout(400)]

SITE_PACKAGES = str(Path(pyspark.__file__).parents[1])
BEGIN = """
import sys
from pyspark.sql import SparkSession

url, stream, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
"""
REGISTER = """
from spark_nats import NatsDataSource

spark.dataSource.register(NatsDataSource)
"""
END = "print('read and written')"
CLUSTER = "local-cluster[2,1,1024]"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that finds everything that this one does, but for spark-nats."""
    environment = tmp_path_factory.mktemp("elsewhere")
    run(uv(), "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    for module, found in (("pyarrow", True), ("spark_nats", False)):
        script = f"import importlib.util; assert bool(importlib.util.find_spec('{module}')) == {found}"
        run(python, "-c", script, cwd=environment, PYTHONPATH=SITE_PACKAGES)
    return environment


class Submission:
    """A job that is submitted where there is a stream."""

    def __init__(self, environment: dict[str, str], server: Server, client: NatsPy, stream: str, folder: Path) -> None:
        client.create_stream(stream)
        self.folder = folder
        self._environment = {name: text for name, text in environment.items() if name.startswith(("SPARK", "JDK"))}
        self._home = environment["SPARK_HOME"]
        self._arguments = (server.url, stream, str(folder / "checkpoint"))

    def submit(self, script: str, *options: str, **environment: str) -> None:
        path = self.folder / "job.py"
        path.write_text(script)
        quiet = ("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2")
        command = (f"{self._home}/bin/spark-submit", *quiet, *options, str(path), *self._arguments)
        assert "read and written" in run(*command, cwd=self.folder, **self._environment, **environment)


@pytest.fixture
def submission(
    spark_environment: dict[str, str], nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> Submission:
    return Submission(spark_environment, nats_server, nats_py, unique, tmp_path)


def test_an_installed_package_is_found_by_itself(submission: Submission) -> None:
    submission.submit(BEGIN + COPY + END, "--master", "local[2]", PYSPARK_PYTHON=sys.executable)


def test_a_zip_of_the_package_is_enough_on_the_driver_and_on_executors(submission: Submission, elsewhere: Path) -> None:
    run(ROOT / "scripts" / "pyfiles", submission.folder)
    submission.submit(
        BEGIN + REGISTER + COPY + END,
        *("--master", CLUSTER, "--py-files", "spark_nats.zip"),
        # Executors of a local cluster would have the driver's.
        *("--conf", f"spark.executorEnv.PYTHONPATH={SITE_PACKAGES}"),
        PYTHONPATH=f"spark_nats.zip{os.pathsep}{SITE_PACKAGES}",
        PYSPARK_PYTHON=str(elsewhere / "bin" / "python"),
    )


def test_a_packed_environment_is_enough_on_the_driver_and_on_executors(submission: Submission, elsewhere: Path) -> None:
    environment = submission.folder / "environment"
    run(uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, environment)
    # What it needs comes from where this Python finds it: to pack that would take long.
    run(uv(), "pip", "install", "--quiet", "--no-deps", "--python", environment / "bin" / "python", ROOT)
    run("tar", "-czf", "environment.tar.gz", "-C", environment, ".", cwd=submission.folder)
    python = "./environment/bin/python"
    submission.submit(
        BEGIN + COPY + END,
        *("--master", CLUSTER, "--archives", "environment.tar.gz#environment"),
        PYTHONPATH=SITE_PACKAGES,
        PYSPARK_PYTHON=python,
        PYSPARK_DRIVER_PYTHON=python,
    )
