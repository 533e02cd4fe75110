"""Write docs/promises.md: the rows of the tables in docs/ that promise something, each with the tests that show it.

A row begins with an anchor, ``<a id="row"></a>``, and a test that shows what it says is marked
``@pytest.mark.promise("page#row")``. Test files are parsed and not imported.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "promises.md"

# The tables that say what holds whatever happens, by the heading above them. What a table says of nats-server alone,
# such as where it keeps a message, is not ours to promise.
TABLES = {
    "writing": ["Delivery guarantees", "Streams behind the target", "Server headers"],
    "exactly-once": [
        "How the guarantees work",
        "What servers forget",
        "Two attempts at once",
        "State that is repartitioned",
    ],
    "durability": ["What can lose acknowledged messages", "How a query detects a loss", "What is the same stream"],
    "failover": ["What is known of message ids"],
    "queues": ["", "Streams that copy a queue"],  # the first one is above the first heading but the page's own
    "reading": ["Positions and subjects", "Times that fall", "How large a micro-batch is"],
    "with-spark": ["Windows and late data", "Triggers", "With a batch read"],
    "login": ["Secrets of contexts"],
    "operating": ["Upgrades and restarts"],
}
UNTESTED = {
    "operating#other-transformations": "Spark says which of them a checkpoint bears",
}
"""The rows that no test shows, and why."""

ANCHOR = re.compile(r'<a id="([a-z0-9-]+)"></a>')

_HEAD = """# Promises and their tests

Each row of a table in these pages that promises something, with the tests that show it. `make docs` writes this page.

| promise | shown by |
|---|---|
"""


def rows() -> Iterator[tuple[str, str]]:
    """Yield the rows of these tables: their page and the line."""
    for page, headings in TABLES.items():
        parts = re.split(r"^##+ (.+)\n", "\n" + (ROOT / "docs" / f"{page}.md").read_text(), flags=re.MULTILINE)
        texts = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
        for heading in headings:
            lines = [line for line in texts[heading].splitlines() if line.startswith("|")]
            yield from ((page, line) for line in lines[2:])  # behind the table's head and the rule below it


def names() -> list[str]:
    """Return the names of these rows."""
    return [f"{page}#{found[1]}" for page, line in rows() if (found := ANCHOR.match(line, 2))]


def marks() -> dict[str, list[str]]:
    """Return the tests of each row that a test is marked with."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        for test in ast.walk(ast.parse(text)) if "mark.promise(" in text else ():
            if not isinstance(test, ast.FunctionDef | ast.ClassDef):
                continue
            for node in (each for decorator in test.decorator_list for each in ast.walk(decorator)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
                    for argument in node.args:
                        found[ast.literal_eval(argument)].append(f"{path.relative_to(ROOT / 'tests')}::{test.name}")
    return found


def page() -> str:
    """Return the page, as the tests and the tables have it."""
    shown = marks()
    return _HEAD + "".join(f"| {_link(name)} | {_tests(name, shown)} |\n" for name in names())


def _link(name: str) -> str:
    where, _, row = name.partition("#")
    return f"[{where}: {row.replace('-', ' ')}]({where}.md#{row})"


def _tests(name: str, shown: dict[str, list[str]]) -> str:
    tests = list(dict.fromkeys(shown.get(name, ())))
    return "<br>".join(f"`{test}`" for test in tests) if tests else f"none: {UNTESTED.get(name, '')}"


if __name__ == "__main__":
    PAGE.write_text(page())
