"""The pages of the documentation as their blocks: what a reader sees, and what a test does between.

A block is fenced; its language says how it is executed (see `tests/integration/test_docs.py`). What readers need not
see stands in a comment, `<!-- hidden python` or `<!-- hidden console` on a line of its own, the code, and `-->`. The
comment `<!-- not executed: why -->` or `<!-- executed by tests/... -->` before a block says that it is not.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]

_BLOCK = re.compile(
    r"^<!-- (?P<excuse>(?:not executed: |executed by )[^\n]+?) -->$"
    r"|^<!-- hidden (?P<hidden>\w+)\n(?P<secret>.*?)^-->$"
    r"|^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, or a hidden one.

    `line` is that of its first line of code; `excuse` says why it is not executed, and is empty when it is.
    """

    language: str
    code: str
    line: int
    excuse: str = ""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    blocks = []
    excuse, excused_until = "", 0
    for found in _BLOCK.finditer(text):
        if found["excuse"]:
            excuse, excused_until = found["excuse"], found.end()
            continue
        between = text[excused_until : found.start()]
        excuse = excuse if not between.strip() else ""
        name = "secret" if found["hidden"] else "code"
        blocks.append(
            Block(
                found["hidden"] or found["language"],
                textwrap.dedent(found[name]),
                text.count("\n", 0, found.start(name)) + 1,
                excuse,
            )
        )
        excuse = ""
    return blocks
