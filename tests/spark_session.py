"""The Spark that tests share: one session in this process, one application with executors in processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil
import pyspark
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
START_TIMEOUT = 300
"""Seconds that Spark may take to start, also where a machine reads its files for the first time."""
SCRIPT_TIMEOUT = 240
"""Seconds that a script in the application may be silent."""


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that starts Spark. Who asks for it is taken for a test that uses Spark."""
    # A home without Spark's zipped Python sources, which every Python worker would compile anew; and with a place
    # for what the executors of a local cluster leave behind.
    home = tmp_path_factory.mktemp("spark")
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        # Spark would start whichever python3 is first on PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Spark would look its own host name up, which not every machine can resolve.
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "SPARK_LOCAL_IP": "127.0.0.1",
        # For a Spark that lives so briefly, Java's second compiler and its parallel collector cost more than they gain.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


@pytest.fixture(scope="session")
def spark(
    request: pytest.FixtureRequest, spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """`local[2]` in UTC. The data source "nats" needs no registration."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in spark_environment.items():
            environment.setenv(name, value)
        try:
            session = _start(warehouse)
        except Exception as error:
            # Without this, every test that uses Spark would wait for it and fail.
            request.session.shouldfail = f"Spark has not started within {START_TIMEOUT} s: {error}"
            pytest.fail(request.session.shouldfail)
        yield session
        session.stop()


def _start(warehouse: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("spark-nats tests")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(warehouse))
    )
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):  # older ones have it under another name
        # Spark's usual one starts dozens of processes in every micro-batch, each a readlink.
        builder = builder.config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_FILES)
    with _killed_after(START_TIMEOUT):
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session


@contextmanager
def _killed_after(seconds: float) -> Iterator[None]:
    """Kill the processes that the block starts if it takes so long, which ends the block."""
    us = psutil.Process()
    before = us.children(recursive=True)

    def kill() -> None:
        for process in us.children(recursive=True):
            if process not in before:
                process.kill()

    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SparkApplication:
    """A Spark application in another process, that runs scripts.

    A script finds the variable `spark`, a session of its own whose application tries a failed task again, and its
    `arguments`. It talks with the test by `say(text)` and `hear()`, a line at a time.
    """

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._errors = folder / "errors"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("spark_application.py"))],
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        watch = threading.Timer(START_TIMEOUT, self._process.kill)
        watch.start()
        assert self._process.stdout
        said = self._process.stdout.readline()
        watch.cancel()
        assert said, f"the Spark application has not started: {self.errors()}"
        self._port = int(said)

    def errors(self) -> str:
        """The end of what Spark has written to standard error."""
        return self._errors.read_text(errors="replace")[-5000:]

    @contextmanager
    def run(self, script: str, *arguments: str) -> Iterator[Script]:
        """Run a script while the block runs, and wait for its end, which must be a good one."""
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.settimeout(SCRIPT_TIMEOUT)
            with connection.makefile("rw") as lines:
                talk = Script(lines)
                talk.say(json.dumps([script, *arguments]))
                yield talk
                ended = json.loads(talk.hear() or '"the application has ended"')
        assert ended == "", f"{ended}\n{self.errors()}"

    def stop(self) -> None:
        try:
            self._process.communicate(timeout=60)  # closes its standard input, which ends it
        finally:
            self._process.kill()
            self._process.wait()


class Script:
    """The test's side of a script that runs."""

    def __init__(self, lines: IO[str]) -> None:
        self._lines = lines

    def say(self, line: str) -> None:
        self._lines.write(f"{line}\n")
        self._lines.flush()

    def hear(self) -> str:
        return self._lines.readline().rstrip("\n")


@pytest.fixture(scope="session")
def spark_application(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkApplication]:
    """A driver and two executors in processes of their own, which try a failed task again."""
    application = SparkApplication(spark_environment, tmp_path_factory.mktemp("application"))
    yield application
    application.stop()
