"""Write the sentences of errors into docs/errors.md, with an index, and those of the log into docs/operating.md.

The pages say which conditions are in which table, which share a row, and what to do. For a new one, write a row that
begins with its code, ``| `[NATS_STREAM_NOT_FOUND]` | names are case-sensitive |``: the sentence is filled in. An error
whose sentence says already what to do joins a row without advice, which shows only codes.
"""

import re
import textwrap
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from string import Formatter

from spark_nats import conditions as package
from spark_nats.conditions import Condition
from spark_nats.options.hints import HINTS

SPARK_NATS = Path(package.__file__).parents[1]
PAGES = [SPARK_NATS.parent / "docs" / name for name in ("errors.md", "operating.md")]
ROW = re.compile(r"(?<=^\| )`\[NATS_.*?`(?= \|)", re.MULTILINE)
CODE = re.compile(r"`\[(NATS_\w+)\]")
INDEX = re.compile(r"(?<=explains its own lines:\n\n)(?:(?:\* |  )\[.*\n)+")


def conditions() -> list[tuple[str, Condition]]:
    """Return all conditions with the names of their constants, also of those that stand with a kind of query."""
    paths = sorted([*SPARK_NATS.glob("conditions/[!_]*.py"), *SPARK_NATS.rglob("conditions.py")])
    modules = [import_module(".".join(path.relative_to(SPARK_NATS.parent).with_suffix("").parts)) for path in paths]
    return [found for module in modules for found in vars(module).items() if isinstance(found[1], Condition)]


def with_conditions(page: str) -> str:
    """Return the page with the sentences of the code in each row that names conditions, and in its index, if any."""
    found = {condition.code: f"`[{condition.code}] {_shown(condition)}`" for _, condition in conditions()}

    def cell(row: re.Match[str]) -> str:
        codes = CODE.findall(row[0])
        if page.startswith(" | |\n", row.end()):
            return ", ".join(f"`[{code}]`" for code in sorted(codes))
        return "<br>".join(found[code] for code in codes)

    return INDEX.sub(lambda _: _index(page), ROW.sub(cell, page))


def _index(page: str) -> str:
    """Return links from the codes of errors to their tables; codes of one table share a prefix as one."""
    tables: dict[str, str] = {}
    for section in page[INDEX.search(page).end() :].split("\n## ")[1:]:  # type: ignore[union-attr]
        title = re.split(r"\n#+ ", section)[0]
        name = title.partition("\n")[0].lower().replace(" ", "-").replace(",", "")
        tables |= dict.fromkeys(
            (code.removeprefix("NATS_") for row in ROW.findall(title) for code in CODE.findall(row)), name
        )
    prefixes = defaultdict(set)
    for code, table in tables.items():
        prefixes[code.partition("_")[0]].add(table)
    lines: dict[str, list[str]] = defaultdict(list)
    for code, table in sorted(tables.items()):
        prefix = code.partition("_")[0]
        several = len(prefixes[prefix]) == 1 and sum(other.startswith(prefix + "_") for other in tables) > 1
        link = f"[{prefix}_…](#{table})" if several else f"[{code}](#{table})"
        if link not in lines[code[0]]:
            lines[code[0]].append(link)
    wrapped = (textwrap.fill(", ".join(links), 118, break_on_hyphens=False) for links in lines.values())
    return "\n".join("* " + text.replace("\n", "\n  ") for text in wrapped) + "\n"


def _shown(condition: Condition) -> str:
    """Return what users of Spark see, with … for what is put in."""
    parts = (text + "…" * (name is not None) for text, name, *_ in Formatter().parse(condition.template))
    return (
        "; ".join(["".join(parts), *(HINTS[topic] for topic in condition.topics)])
        .replace("……", "…")
        .replace("|", "\\|")
    )


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(with_conditions(each.read_text()))
