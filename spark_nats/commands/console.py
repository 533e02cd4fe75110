"""Facts and tables for people: in a terminal with the package ``rich``, if installed; otherwise as plain text."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from spark_nats.protocol.documents import printable

_STYLES = {"yes": "green", "no": "bold red", "?": "yellow"}


class Console:
    """Prints to standard output; text from a server is shown on one line, without control characters."""

    def __init__(self) -> None:
        self._rich: Any = None
        if sys.stdout.isatty() and importlib.util.find_spec("rich"):
            from rich.console import Console as RichConsole

            self._rich = RichConsole(highlight=False)

    def print_line(self, text: str = "") -> None:
        """Print a line."""
        if self._rich:
            self._rich.print(printable(text), markup=False)
        else:
            print(printable(text))

    def print_table(self, titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
        """Print a table.

        Args:
            titles: titles of the columns; empty for a table of names with their values.
            rows: the cells of each row.
            numbers: titles of the columns that are aligned to the right.
        """
        shown = [[printable(cell) for cell in row] for row in rows]
        if self._rich:
            self._print_rich_table(titles, shown, numbers)
            return
        lines = [list(titles), *shown] if titles else shown
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        sides = [">" if title in numbers else "<" for title in titles] or ["<"] * len(widths)
        for line in lines:
            cells = (f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True))
            print("  ".join(cells).rstrip())

    def _print_rich_table(self, titles: Sequence[str], rows: list[list[str]], numbers: Sequence[str]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        head = box.SIMPLE_HEAD if titles else None
        table = Table(box=head, show_header=bool(titles), show_edge=False, pad_edge=False)
        for i, title in enumerate(titles or ("", "")):
            style = "" if titles or i else "bold"
            side: Any = "right" if title in numbers else "left"
            table.add_column(Text(title), justify=side, style=style, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        self._rich.print(table)


def print_json(document: Any) -> None:
    """Print a document as JSON, with times in ISO 8601."""
    print(json.dumps(document, default=datetime.isoformat, indent=2))


_UNITS = ("kB", "MB", "GB", "TB", "PB")


def format_bytes(count: float) -> str:
    """Format a number of bytes for people."""
    if count < 1000:
        return f"{count:.0f} B"
    unit = ""
    for unit in _UNITS:  # noqa: B007 - the unit at which the loop stops
        count /= 1000
        if count < 999.5:
            break
    return f"{count:.{1 if count < 99.5 else 0}f} {unit}"


def seconds_shown(seconds: float) -> str:
    """Format a time span for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def rate_shown(rate: float) -> str:
    """Format a number per second for people."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


def time_shown(time: datetime) -> str:
    """Format a time in UTC for people."""
    return f"{time:%Y-%m-%d %H:%M:%S}Z"
