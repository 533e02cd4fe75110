"""What docs/operating.md says of errors and of the log is what the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.pages import ROOT

PAGE = (ROOT / "docs" / "operating.md").read_text()
LOG, ERRORS = (PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0] for heading in ("The log", "Each error"))
SHORTEST = 5  # what is shorter is found anywhere
# Spark's and Python's own words.
OTHERS = {
    "DATA_SOURCE_NOT_FOUND",
    "UNSUPPORTED_DATA_SOURCE_SAVE_MODE",
    "No module named 'spark_nats'",
    "nats does not support Update mode",
    "Python worker process terminated due to idle timeout",
}

RAISING = re.compile(
    r"(?!Value|Type|Key|Timeout|Permission|Protocol|Attribute|Spark)\w+Error|_lost|_give_up|with_context"
)
# The demonstration and what tests start say things of their own; what `protocol` raises is a part of other sentences.
ELSEWHERE = {"demo", "protocol", "embedded.py", "requirements.py", "cli.py", "__init__.py"}
# Parts of sentences, or nothing but what is put in.
INNER = {
    "there is none now",
    "cannot be asked for",
    "matches the name of no stream",
    "was deleted and made again at …",
    "the file … of the spool …",
    "option '…' …",
    "stream … …; …",
    "…, but … does",
}


def template(node: ast.expr) -> str:
    """A text of the code, with `…` where it puts something in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "…"


def texts() -> Iterator[str]:
    for path in sorted((ROOT / "spark_nats").rglob("*.py")):
        inner = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                inner.update(node.values)
                yield template(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
                yield re.sub(r"%(?:\.\d)?[sdfr]", "…", node.value)


TEXTS = list(texts())


def raised() -> Iterator[str]:
    """The errors that users meet, as the code writes them; those of the wire are one row of the page."""
    for path in sorted((ROOT / "spark_nats").rglob("*.py")):
        if path.relative_to(ROOT / "spark_nats").parts[0] in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = str(getattr(node.func, "id", getattr(node.func, "attr", "")))
                text = template(node.args[0])
                if RAISING.fullmatch(name) and text not in INNER and len(text.replace("…", "").strip()) > SHORTEST:
                    yield text


ROW = re.compile(r"`([^`]+)`")


def rows(part: str) -> list[str]:
    """What stands between backticks in the first column of the tables."""
    cells = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
    return [row for cell in cells for row in ROW.findall(cell) if row not in OTHERS]


def parts(row: str) -> list[str]:
    """The words between what is put in, such as ORDERS and 6.1, and between sentences that are put together."""
    row = re.sub(r"\bORDERS\b|\bcopy\b|telemetry\.>|\b[\d.,]*\d\b", "…", row)
    return [part.strip() for part in re.split(r"[…;:(),]", row) if len(part.strip()) >= SHORTEST]


@pytest.mark.parametrize("row", rows(ERRORS) + rows(LOG))
def test_the_page_has_the_words_of_the_code(row: str) -> None:
    for part in parts(row):
        assert any(part in text for text in TEXTS), part


@pytest.mark.parametrize("text", sorted(set(raised())))
def test_the_page_says_what_to_do_about_each_error(text: str) -> None:
    known = [found for row in rows(ERRORS) if (found := parts(row))]
    assert any(all(part in text for part in found) for found in known), "add it to docs/operating.md"
