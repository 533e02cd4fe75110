import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import nbformat
import psutil
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PLOTS = {"01_quickstart": 1, "02_telemetry": 2, "03_backfill": 2, "04_service": 2}


def execute(notebook: nbformat.NotebookNode, directory: Path) -> None:
    # Whatever the kernels installed on this machine start, this one is the Python that runs the tests.
    kernel = directory / "kernels" / "python3"
    kernel.mkdir(parents=True)
    specification = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
    }
    (kernel / "kernel.json").write_text(json.dumps(specification))
    specifications = KernelSpecManager(kernel_dirs=[str(kernel.parent)], ensure_native_kernel=False)
    manager = KernelManager(kernel_name="python3", kernel_spec_manager=specifications)
    client = NotebookClient(notebook, km=manager, timeout=240, resources={"metadata": {"path": str(directory)}})
    try:
        client.execute()
    finally:
        if manager.has_kernel:
            # A notebook that failed has stopped neither its server nor Spark, and a killed kernel cannot.
            left = psutil.Process(manager.provisioner.pid).children(recursive=True)
            manager.shutdown_kernel(now=True)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def outputs(notebook: nbformat.NotebookNode) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def plots(notebook: nbformat.NotebookNode) -> list[Any]:
    pictures = [output.data["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    return [matplotlib.image.imread(io.BytesIO(base64.b64decode(picture))) for picture in pictures]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=pytest.mark.long(f"notebooks/{path.name}")) for path in NOTEBOOKS],
)
def test_the_notebook_runs_as_it_stands_and_shows_its_plots(
    spark_environment: dict[str, str], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)  # type: ignore[no-untyped-call]
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", spark_environment["JDK_JAVA_OPTIONS"])
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.get_exec_path() if p != str(Path(sys.executable).parent)))

    execute(notebook, tmp_path)

    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert "assert" in code[-1].source
    printed = "".join(output.text for output in outputs(notebook) if output.output_type == "stream")
    assert "Traceback" not in printed
    shown = plots(notebook)
    assert len(shown) == PLOTS[path.stem]
    for plot in shown:
        colours = plot[..., :3]
        assert colours.max() - colours.min() > 0.5, "the plot is blank"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    assert outputs(notebook) == []


def test_all_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(PLOTS)
