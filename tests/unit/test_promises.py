"""Each row of the tables in docs/ that promise something names the tests that show it, and each such test a row.

A row begins with an anchor, `<a id="row"></a>`, and a test that shows what it says is marked
`@pytest.mark.promise("page#row")`. Test files are parsed and not imported.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.pages import ROOT

# The tables that say what holds whatever happens, by the heading above them. What a table says of nats-server alone,
# such as where it keeps a message, is not ours to promise.
TABLES = {
    "writing": ["Delivery guarantees"],
    "exactly-once": ["How the guarantees work"],
    "durability": ["What can lose acknowledged messages", "How a query detects a loss"],
    "queues": [""],  # above the first heading but the page's own
    "reading": ["How large a micro-batch is"],
    "with-spark": ["Windows and late data"],
    "operating": ["Upgrades and restarts"],
}
UNTESTED = {
    "operating#other-transformations": "Spark says which of them a checkpoint bears",
}
"""The rows that no test shows, and why."""

ANCHOR = re.compile(r'<a id="([a-z0-9-]+)"></a>')


def rows() -> Iterator[tuple[str, str]]:
    """The rows of these tables: their page and the line."""
    for page, headings in TABLES.items():
        parts = re.split(r"^##+ (.+)\n", "\n" + (ROOT / "docs" / f"{page}.md").read_text(), flags=re.MULTILINE)
        texts = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
        for heading in headings:
            lines = [line for line in texts[heading].splitlines() if line.startswith("|")]
            yield from ((page, line) for line in lines[2:])  # behind the table's head and the rule below it


def marks() -> dict[str, list[str]]:
    """The tests of each row that a test is marked with."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "mark.promise(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
                for argument in node.args:
                    found[ast.literal_eval(argument)].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


ROWS = list(rows())
MARKS = marks()
NAMES = [f"{page}#{found[1]}" for page, line in ROWS if (found := ANCHOR.match(line, 2))]


@pytest.mark.parametrize(("page", "row"), ROWS, ids=lambda value: str(value)[:40])
def test_each_row_has_a_name(page: str, row: str) -> None:
    assert ANCHOR.match(row, 2), 'begin the row with <a id="..."></a>'


def test_a_name_means_one_place_of_its_page() -> None:
    for page in TABLES:
        text = (ROOT / "docs" / f"{page}.md").read_text()
        headings = {
            re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
            for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        names = ANCHOR.findall(text)
        assert len(names) == len(set(names)), page
        assert not headings & set(names), page


@pytest.mark.parametrize("name", NAMES)
def test_each_row_has_a_test_or_a_reason_why_not(name: str) -> None:
    if name in UNTESTED:
        assert name not in MARKS, f"{MARKS[name]} shows it, so take it out of UNTESTED"
    else:
        assert name in MARKS, f"mark a test with @pytest.mark.promise({name!r})"


def test_each_mark_is_a_row() -> None:
    assert {name: where for name, where in MARKS.items() if name not in NAMES} == {}
    assert set(UNTESTED) <= set(NAMES)
