"""The notebooks run as they stand, and what is stored with them is what they show."""

import copy
import getpass
import io
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import nbformat
import pytest

from tests.integration.jobs import tracebacks_in
from tests.notebooks import NOTEBOOKS, execute, outputs, pictures, read, shape, tidy

PLOTS = {"01_quickstart": 1, "02_telemetry": 2, "03_backfill": 2, "04_service": 2}
MAX_BYTES = 150_000  # of a notebook with its outputs


def assert_shows_its_plots(notebook: nbformat.NotebookNode, name: str) -> None:
    shown = [matplotlib.image.imread(io.BytesIO(picture)) for picture in pictures(notebook)]
    assert len(shown) == PLOTS[name]
    for plot in shown:
        colours = plot[..., :3]
        assert colours.max() - colours.min() > 0.5, "the plot is blank"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=pytest.mark.long(f"notebooks/{path.name}")) for path in NOTEBOOKS],
)
def test_the_notebook_runs_as_it_stands_and_shows_what_is_stored_with_it(
    spark_environment: dict[str, str], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = read(path)
    stored = copy.deepcopy(notebook)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", spark_environment["JDK_JAVA_OPTIONS"])
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.get_exec_path() if p != str(Path(sys.executable).parent)))

    execute(notebook, tmp_path)

    printed = "".join(output.text for output in outputs(notebook) if output.output_type == "stream")
    assert not tracebacks_in(printed)
    assert "Warning:" not in printed  # Python's; those of Spark's log say WARN
    tidy(notebook)
    assert_shows_its_plots(notebook, path.stem)
    for (source, shown), (_, expected) in zip(shape(notebook), shape(stored), strict=True):
        assert shown == expected, f"what is stored is out of date (make notebooks):\n{source}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_stored_with_what_it_showed_in_one_run(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)  # type: ignore[no-untyped-call]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert "assert" in code[-1].source
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert_shows_its_plots(notebook, path.stem)
    assert path.stat().st_size < MAX_BYTES
    again = copy.deepcopy(notebook)
    tidy(again)
    assert notebook.metadata == again.metadata
    assert [cell.metadata for cell in notebook.cells] == [{}] * len(notebook.cells)
    assert shape(again) == shape(notebook)


def texts(value: Any) -> list[str]:
    """Return all that is text in outputs, but for pictures."""
    if isinstance(value, dict):
        return [text for name, each in value.items() if name != "image/png" for text in texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    return [str(value)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_outputs_say_nothing_of_the_machine_on_which_they_were_made(path: Path) -> None:
    text = "\n".join(texts(outputs(read(path))))
    assert not re.search(r"(?:127\.0\.0\.1|localhost|nats://|/tmp/|/home/|/root|/work|\.venv|ipykernel_)", text)
    assert not re.search(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", text)  # addresses
    assert socket.gethostname() not in text.split()
    assert getpass.getuser() not in text.split()


def test_all_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(PLOTS)
