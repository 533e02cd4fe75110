"""Write the sentences of errors and of the log into docs/operating.md, as the code has them.

The page says which conditions are in which table, which share a row, and what to do. For a new one, write a row that
begins with its code, ``| `[NATS_STREAM_NOT_FOUND]` | names are case-sensitive |``: the sentence is filled in.
"""

import re
from importlib import import_module
from pathlib import Path
from string import Formatter

from spark_nats import conditions as package
from spark_nats.conditions import Condition

SPARK_NATS = Path(package.__file__).parents[1]
PAGE = SPARK_NATS.parent / "docs" / "operating.md"
ROW = re.compile(r"(?<=^\| )`\[NATS_.*?`(?= \|)", re.MULTILINE)
CODE = re.compile(r"`\[(NATS_\w+)\]")


def conditions() -> list[tuple[str, Condition]]:
    """Return all conditions with the names of their constants, also of those that stand with a kind of query."""
    paths = sorted([*SPARK_NATS.glob("conditions/[!_]*.py"), *SPARK_NATS.rglob("conditions.py")])
    modules = [import_module(".".join(path.relative_to(SPARK_NATS.parent).with_suffix("").parts)) for path in paths]
    return [found for module in modules for found in vars(module).items() if isinstance(found[1], Condition)]


def with_conditions(page: str) -> str:
    """Return the page with the sentences of the code in each row that names conditions."""
    found = {condition.code: f"`[{condition.code}] {_shown(condition)}`" for _, condition in conditions()}
    return ROW.sub(lambda row: "<br>".join(found[code] for code in CODE.findall(row[0])), page)


def _shown(condition: Condition) -> str:
    """Return what users of Spark see, with … for what is put in."""
    parts = (text + "…" * (name is not None) for text, name, *_ in Formatter().parse(condition.template))
    return "; ".join(["".join(parts), *condition.hints]).replace("……", "…").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(with_conditions(PAGE.read_text()))
