"""Write the tables of errors and of the log into docs/operating.md, as the code has them."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Formatter

from spark_nats.conditions import Condition

PAGE = Path(__file__).parents[1] / "docs" / "operating.md"
TABLE = re.compile(r"(?<=<!-- conditions: )(\w+)( -->\n\n(?:\|.*\n){2})(?:\|.*\n)*")


def with_tables(page: str) -> str:
    """Return the page with the tables of the code, each below the heading that it has."""
    return TABLE.sub(lambda table: table[1] + table[2] + "".join(_rows(table[1])), page)


def conditions(module: str) -> list[Condition]:
    """Return the conditions of a table, in their order."""
    found = vars(import_module(f"spark_nats.conditions.{module}")).values()
    return [each for each in found if isinstance(each, Condition)]


def _rows(module: str) -> Iterator[str]:
    rows: list[list[str]] = []
    for condition in conditions(module):
        if condition.advice:
            rows.append([condition.advice])
        rows[-1].append(f"`[{condition.code}] {_shown(condition.template)}`")
    return (f"| {'<br>'.join(sentences)} | {advice} |\n" for advice, *sentences in rows)


def _shown(template: str) -> str:
    """Return a sentence with … for what is put in."""
    parts = (text + "…" * (name is not None) for text, name, *_ in Formatter().parse(template))
    return "".join(parts).replace("……", "…").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
