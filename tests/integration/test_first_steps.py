"""What the README says to begin with, as somebody does it who has activated no virtual environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.jobs import tracebacks_in
from tests.pages import ROOT, blocks_of
from tests.servers import ServerFactory

HIDDEN = "assert "  # what hidden blocks begin with, which the reader does not see


@pytest.mark.long("README.md")
def test_the_first_snippets_show_their_tables_without_an_activated_environment(
    spark_environment: dict[str, str], server_factory: ServerFactory, tmp_path: Path
) -> None:
    blocks = blocks_of(ROOT / "README.md")
    end = next(i for i, block in enumerate(blocks) if block.language == "sql")
    first, *then = [block.code for block in blocks[:end] if block.language == "python" and HIDDEN not in block.code]
    tables = [block.code for block in blocks[:end] if block.language == "text"]
    url = server_factory().url

    def here(code: str) -> str:
        return code.replace("nats://localhost:4222", url).replace("/tmp/first-steps", str(tmp_path))

    (tmp_path / "orders.py").write_text(here(first))
    # The README's reader uses the port that is the default; the test cannot.
    prompt = "\n".join(
        here(code).replace('"nats").option("stream"', f'"nats").option("servers", "{url}").option("stream"')
        for code in then
    )
    bin_ = Path(sys.executable).parent
    environment = {
        name: value
        for name, value in spark_environment.items()
        if not name.startswith(("PYSPARK_", "SPARK_HOME", "VIRTUAL_ENV"))
    }
    environment["PATH"] = os.pathsep.join(folder for folder in os.get_exec_path() if Path(folder) != bin_)

    ended = subprocess.run(
        [sys.executable, "-i", "orders.py"],
        input=f"{prompt}\nquery.stop()\n",
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert not tracebacks_in(ended.stderr), ended.stderr[-5000:]
    assert len(tables) == 2
    for table in tables:
        assert table in ended.stdout, ended.stdout + ended.stderr[-5000:]
