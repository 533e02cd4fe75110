"""Scripts inside strings, pages, notebooks and benchmarks import names that exist, though mypy does not read them.

Most of them run in tests marked `long` or in none, so a name that has moved would be missed until then.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

from tests.pages import PAGES, ROOT, blocks_of

TEXTS = [
    *PAGES,
    *sorted(path for folder in ("tests", "scripts", "benchmarks") for path in (ROOT / folder).rglob("*.py")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]

_IMPORT = re.compile(r"^[\s\"]*from (spark_nats[\w.]*) import (?:\(([^)]+)\)|([\w, ]+))", re.MULTILINE)


def imports_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each `from spark_nats… import …`, wherever in the text it stands."""
    for module, several, one in _IMPORT.findall(text):
        for name in re.sub(r"#.*", "", several or one).split(","):
            if words := name.split():
                yield module, words[0]


def exists(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_what_a_file_imports_from_the_package_exists() -> None:
    found = [(path.relative_to(ROOT).as_posix(), *name) for path in TEXTS for name in imports_of(path.read_text())]
    assert len(found) > 1000
    assert not [each for each in found if not exists(*each[1:])]


def test_a_name_that_has_moved_is_found_in_a_script_in_a_string() -> None:
    text = 'SCRIPT = """\nfrom spark_nats.client import (\n    connect,  # to a server\n    gone,\n)\n"""'
    assert [exists(*found) for found in imports_of(text)] == [True, False]


def test_python_on_a_page_is_python() -> None:
    for path in PAGES:
        for block in blocks_of(path):
            if block.language == "python" and not block.excuse:
                compile(block.code, f"{path.name}:{block.line}", "exec")
