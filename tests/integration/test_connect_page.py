"""The page about Spark Connect: its blocks, by a client in its own process, and a server that is started as it says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.jobs import uv
from tests.nats_py import NatsPy, wait_until
from tests.pages import ROOT, Block, blocks_of
from tests.servers import Server, ServerFactory

PAGE = ROOT / "docs" / "connect.md"
OURS = "executed by tests/integration/test_connect_page.py"
BIN = Path(sys.executable).parent
FOREIGN = ("PYSPARK_", "SPARK_HOME")  # variables that say what the page is to say

pytestmark = [pytest.mark.timeout(600), pytest.mark.long("docs/connect.md", "spark_nats/datasource.py")]


def blocks(language: str) -> list[Block]:
    return [block for block in blocks_of(PAGE) if block.language == language and block.excuse == OURS]


@contextmanager
def connect_server(environment: dict[str, str], python: Path, folder: Path) -> Iterator[str]:
    """Start Spark's server as the page says, with workers that run a Python; the value is its address."""
    commands = re.findall(r"^\$ (.*)$", blocks("console")[0].code, re.MULTILINE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    install, *exports, start = commands
    assert install.startswith("pip install ")
    settings = f"--conf spark.connect.grpc.binding.port={port} --conf spark.ui.enabled=false"
    there = {
        **{name: value for name, value in environment.items() if not name.startswith(FOREIGN)},
        "PATH": f"{BIN}{os.pathsep}{environment['PATH']}",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOG_DIR": str(folder / "logs"),
        "SPARK_PID_DIR": str(folder / "pids"),
    }
    script = "\n".join([*exports, f"exec {start} {settings}"]).replace("$(command -v python)", shlex.quote(str(python)))
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-euc", script],
            env=there,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def listens() -> bool:
            assert process.poll() is None, log.read_text()[-5000:]
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, 120)
        yield f"sc://localhost:{port}"
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_client(script: str, environment: dict[str, str], folder: Path) -> str:
    # As a client has it: nothing says which Python workers run, or where Spark is.
    plain = {name: value for name, value in environment.items() if not name.startswith(FOREIGN)}
    (folder / "client.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, "client.py"], env=plain, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-5000:]
    return ended.stdout


def test_the_blocks_of_the_page_run_against_a_server_that_is_started_as_it_says(
    spark_environment: dict[str, str], server_factory: ServerFactory, tmp_path: Path
) -> None:
    nats = server_factory()
    *client, _ = blocks("python")
    code = "\n".join(block.code for block in client).replace("nats://localhost:4222", nats.url)
    code = code.replace("/data/", f"{tmp_path}/data/")
    with connect_server(spark_environment, Path(sys.executable), tmp_path) as address:
        shown = run_client(
            f"{code.replace('sc://localhost:15002', address)}\nspark.stop()\n", spark_environment, tmp_path
        )
    tables = [block.code for block in blocks_of(PAGE) if block.language == "text"]
    assert len(tables) == 4
    for table in tables:
        assert table in shown
    with NatsPy(nats.url) as reader:
        assert sorted(message.subject for message in reader.read_stream("COPIES")) == [
            *["copies.eu"] * 2,
            *["copies.us"] * 2,
        ]


WITHOUT = """
from pyspark.sql import SparkSession


def read():
    return spark.read.format("nats").option("servers", "{url}").option("stream", "{stream}").load().count()


def error_of(action):
    try:
        action()
    except Exception as error:
        return str(error)
    raise AssertionError("no error")


spark = SparkSession.builder.remote("{address}").create()
assert "DATA_SOURCE_NOT_FOUND" in error_of(read)
import spark_nats
spark.dataSource.register(spark_nats.NatsDataSource)
assert "No module named 'spark_nats'" in error_of(read)
spark.stop()
spark = SparkSession.builder.remote("{address}").create()
{block}
print(read(), "messages")
spark.stop()
"""


def test_a_server_without_the_connector_reads_batches_by_the_zip_of_a_client(
    spark_environment: dict[str, str], nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.a", b"1"), (f"{unique}.b", b"2")])
    # All that is installed here but what is so by reference to its sources, as spark-nats is.
    bare = tmp_path / "bare"
    subprocess.run([uv(), "venv", "--quiet", "--python", sys.executable, str(bare)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (bare / "lib" / version / "site-packages" / "packages.pth").write_text(sysconfig.get_path("purelib"))
    python = bare / "bin" / "python"
    assert subprocess.run([python, "-c", "import pyarrow"], cwd=tmp_path, check=False).returncode == 0
    assert subprocess.run([python, "-c", "import spark_nats"], cwd=tmp_path, capture_output=True).returncode == 1
    subprocess.run([ROOT / "scripts" / "pyfiles", str(tmp_path)], check=True)
    block = blocks("python")[-1].code.replace("dist/", f"{tmp_path}/")
    environment = {name: value for name, value in spark_environment.items() if name != "PYTHONPATH"}
    with connect_server(environment, python, tmp_path) as address:
        script = WITHOUT.format(url=nats_server.url, stream=unique, address=address, block=block)
        assert "2 messages" in run_client(script, environment, tmp_path)
