"""Write the tables of options into docs/options.md, as the code has them."""

import re
from pathlib import Path

from spark_nats.kinds.queries import Documented, options_by_section

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
TABLE = re.compile(r"(?<=<!-- options: )(.+?)( -->\n\n).*?(?=\n<!-- end of options -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return the page with the table of the code where it names a section.

    Raises:
        KeyError: it names one that there is not.
    """

    def filled(found: re.Match[str]) -> str:
        rows = ["| option | for | default | meaning |", "|---|---|---|---|", *map(_row, options_by_section()[found[1]])]
        return f"{found[1]}{found[2]}" + "\n".join(rows) + "\n"

    return TABLE.sub(filled, page)


def _row(each: Documented) -> str:
    option = each.option
    name = f'<a id="{option.name}"></a>[`{option.name}`](#{option.name})'
    default = f"`{each.default}`" if each.default and " " not in each.default else each.default
    return f"| {name} | {each.scope} | {default} | {option.meaning} |"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
