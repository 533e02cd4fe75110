"""Write the table of options into docs/options.md, as the code has it."""

import re
from pathlib import Path

from spark_nats.options.rows import Option
from spark_nats.options.table import OPTIONS

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
TABLE = re.compile(r"(?<=<!-- options -->\n\n).*?(?=\n<!-- end of options -->)", re.DOTALL)


def with_table(page: str) -> str:
    """Return the page with the table of the code."""
    rows = ["| option | for | default | meaning |", "|---|---|---|---|", *map(_row, OPTIONS)]
    return TABLE.sub(lambda _: "\n".join(rows) + "\n", page)


def _row(option: Option) -> str:
    default = option.shown_default
    default = f"`{default}`" if default and " " not in default else default
    return f"| `{option.name}` | {option.shown_scope} | {default} | {option.meaning} |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
