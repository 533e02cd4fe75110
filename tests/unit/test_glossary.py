"""CONTRIBUTING.md's table of words: the package does not use the words that the table replaces."""

from __future__ import annotations

import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

from tests.pages import ROOT

ROWS = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
REPLACED = {word for row in ROWS for word in re.findall(r"`(\w+)`", row)}
PHRASES = {phrase for row in ROWS for phrase in re.findall(r'"([\w ]+)"', row)}


def words_of(name: str) -> set[str]:
    """Split a name, `firstWord`, `FirstWord`, `FIRST_WORD` or `first_word`, into words in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def names_and_prose(code: str) -> tuple[set[str], str]:
    """Return the names in a module, and its docstrings and comments."""
    names: set[str] = set()
    prose: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NAME:
            names.add(token.string)
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            prose.append(token.string)
    return names, re.sub(r"\s+", " ", " ".join(prose))


def found_in(code: str) -> list[str]:
    names, prose = names_and_prose(code)
    phrases = [phrase for phrase in PHRASES if re.search(rf"\b{phrase}\b", prose)]
    return sorted([*(name for name in names if words_of(name) & REPLACED), *phrases])


def test_the_package_uses_no_word_that_the_glossary_replaces() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(Path(ROOT / "spark_nats").rglob("*.py")):
        if words := found_in(path.read_text()):
            found[path.relative_to(ROOT).as_posix()] = words
    assert REPLACED
    assert PHRASES
    assert not found


def test_a_replaced_word_is_found_in_names_and_a_phrase_in_prose() -> None:
    code = 'def readWish() -> None:\n    """Return so\n    many."""\n    MAX = 1  # of which\n'
    assert found_in(code) == ["of which", "readWish", "so many"]
