"""Every block of the README and of the other pages, executed in its order, against a server for each page.

Python goes on from block to block and finds `spark`, `path` (an empty directory), `servers` (the URL, which hidden
blocks may set anew) and, for what is hidden, `server`, `client` (nats-py) and `wait_until`. SQL goes to Spark, a
statement at a time. Of a console the lines that begin with `$ ` are run by a shell, and must succeed; what stands
below them is not compared. Configurations are tested by the server, JSON and YAML are parsed. The address of the
examples is replaced by the server's, `/data/` and `/tmp/` by a directory of the test's, and `.venv/bin/` by where the
Python that runs the tests is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession, functions

from spark_nats.embedded import find_binary
from tests.integration.support import NATS_CLI
from tests.nats_py import NatsPy, wait_until
from tests.pages import PAGES, ROOT, Block, blocks_of
from tests.servers import Server, ServerFactory

pytestmark = pytest.mark.timeout(600)

ADDRESS = "//localhost:4222"
COMMAND_TIMEOUT = 120
NOT_CODE = {"text", "dockerfile"}
BIN = Path(sys.executable).parent


class Page:
    """Where the blocks of one page are executed."""

    def __init__(self, page: Path, spark: SparkSession, server: Server, folder: Path, client: NatsPy) -> None:
        self._page = page.relative_to(ROOT)
        self._spark = spark
        self._folder = folder
        path = folder / "path"
        path.mkdir()
        self._names: dict[str, Any] = {
            "spark": spark,
            "F": functions,
            "path": str(path),
            "servers": server.url,
            "server": server,
            "client": client,
            "wait_until": wait_until,
        }

    @property
    def _url(self) -> str:
        return str(self._names["servers"])

    def execute(self, block: Block) -> None:
        code = block.code.replace(ADDRESS, "//" + self._url.split("//")[1])
        code = re.sub("/(data|tmp)/", rf"{self._folder}/\1/", code).replace(".venv/bin/", f"{BIN}/")
        try:
            getattr(self, f"_execute_{block.language}")(code, block.line)
        except Exception as error:
            error.add_note(f"{self._page}:{block.line}")
            raise

    def _execute_python(self, code: str, line: int) -> None:
        code = code.replace('.format("nats")', f'.format("nats").option("servers", "{self._url}")')
        # with the page's line numbers, for tracebacks
        exec(compile("\n" * (line - 1) + self._with_servers(code), str(self._page), "exec"), self._names)

    def _execute_sql(self, code: str, line: int) -> None:
        for statement in re.split(r";\s*$", code, flags=re.MULTILINE):
            if statement.strip():
                self._spark.sql(self._with_servers(statement)).collect()

    def _with_servers(self, sql: str) -> str:
        return re.sub(r"USING nats OPTIONS \((?![^)]*\bservers\b)", rf"\g<0>servers '{self._url}', ", sql)

    def _execute_console(self, code: str, line: int) -> None:
        commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", code, re.MULTILINE)
        assert commands, "no line begins with `$ `"
        directories = [str(BIN), str(NATS_CLI), os.environ["PATH"]]
        environment = {
            **os.environ,
            "PATH": os.pathsep.join(directories),
            "PYTHONPATH": str(ROOT),
            "NATS_URL": self._url,
            "XDG_CONFIG_HOME": str(self._folder / "config"),
        }
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
            env=environment,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
        )
        assert ended.returncode == 0, f"{code}\nended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}"

    def _execute_conf(self, code: str, line: int) -> None:
        configuration = self._folder / "server.conf"
        configuration.write_text(code)
        tested = subprocess.run([find_binary(), "-t", "-c", configuration], capture_output=True, text=True)
        assert tested.returncode == 0, tested.stderr

    def _execute_json(self, code: str, line: int) -> None:
        json.loads(code)

    def _execute_yaml(self, code: str, line: int) -> None:
        yaml.safe_load(code)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own, with its own views and queries."""
    session = spark.newSession()
    yield session
    for query in (*session.streams.active, *spark.streams.active):  # a page may ask for the one that there is
        query.stop()


def _executed(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if not block.excuse and block.language not in NOT_CODE]


def _parameter(page: Path) -> Any:
    """The README is executed always, the other pages where they have changed or in their turn."""
    marks = [] if page == ROOT / "README.md" else [pytest.mark.long(page.relative_to(ROOT).as_posix())]
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.parametrize("page", [_parameter(page) for page in PAGES if _executed(page)])
def test_the_blocks_of_the_page_run_as_they_stand(
    page: Path, session: SparkSession, server_factory: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = _executed(page)
    if any(block.language == "console" and re.search(r"^\$ nats ", block.code, re.MULTILINE) for block in blocks):
        there = shutil.which("nats", path=NATS_CLI)
        assert there or "CI" not in os.environ, "scripts/nats-cli has not brought the nats command line"
        if not there:
            pytest.skip("needs the nats command line: scripts/nats-cli brings it")
    monkeypatch.chdir(tmp_path)
    server = server_factory()
    with NatsPy(server.url) as client:
        place = Page(page, session, server, tmp_path, client)
        for block in blocks:
            place.execute(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_the_page_is_executed_or_says_why_not(page: Path) -> None:
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        assert block.language in NOT_CODE or hasattr(Page, f"_execute_{block.language}"), f"{where}: {block.language!r}"
        if block.excuse.startswith("executed by "):
            assert (ROOT / block.excuse.removeprefix("executed by ")).exists(), f"{where}: {block.excuse}"
