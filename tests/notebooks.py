"""The notebooks: executed, compared, and stored with what they show.

    .venv/bin/python -m tests.notebooks [NAME...]

executes them and stores their outputs, so that they show their plots where nobody runs them. `make notebooks` does it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import psutil
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
CELL_TIMEOUT = 240
"""Seconds that a cell may take."""
_COLOURS = 64
"""Colours of a stored plot, which are enough for its lines and their edges."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def execute(notebook: nbformat.NotebookNode, directory: Path) -> None:
    """Execute a notebook in place, in a directory, by a kernel that is the Python which runs this."""
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
    resources = {"metadata": {"path": str(directory)}}
    client = NotebookClient(notebook, km=manager, timeout=CELL_TIMEOUT, resources=resources, record_timing=False)
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


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    found = [output.data["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    return [base64.b64decode(picture) for picture in found]


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leave what a reader is to see: no greetings of Spark's, of each bar the last state, small plots."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_tidied, _joined(cell.outputs)) if output]


def _joined(found: list[Any]) -> list[Any]:
    """Join what was printed in several pieces, errors before output: how they arrive is chance."""
    joined: list[Any] = []
    printed: dict[str, Any] = {}  # since something was displayed, by the stream's name
    for output in found:
        if output.output_type != "stream":
            joined += [*(printed[name] for name in sorted(printed)), output]
            printed = {}
        elif output.name in printed:
            printed[output.name].text += output.text
        else:
            printed[output.name] = output
    return joined + [printed[name] for name in sorted(printed)]


def _tidied(output: Any) -> Any:
    if output.output_type == "stream":
        text = re.sub(r"^.*\r", "", output.text, flags=re.MULTILINE)
        if output.name == "stderr":
            text = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("[NATS_"))  # our log
        return nbformat.from_dict({**output, "text": text}) if text else None  # type: ignore[no-untyped-call]
    if "image/png" in output.get("data", {}):
        picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
        small = io.BytesIO()
        picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        data = {**output.data, "image/png": base64.b64encode(small.getvalue()).decode()}
        return nbformat.from_dict({**output, "data": data, "metadata": {}})  # type: ignore[no-untyped-call]
    return output


def shape(notebook: nbformat.NotebookNode) -> list[Any]:
    """Return what the code cells show, but for figures: types of what is displayed, words of what is printed.

    Without the log, which other processes write: it may come after the cell's end.
    """

    def of(output: Any) -> Any:
        if output.output_type == "stream":
            return output.name, sorted(set(re.findall(r"[A-Za-z_]{3,}", _UUID.sub("", output.text))))
        return output.output_type, sorted(output.data)

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell.source, [of(each) for each in cell.outputs if each.get("name") != "stderr"]) for cell in code]


def main(names: list[str]) -> None:
    for path in NOTEBOOKS:
        if names and path.stem not in names:
            continue
        notebook = read(path)
        with tempfile.TemporaryDirectory() as directory:
            execute(notebook, Path(directory))
        tidy(notebook)
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
