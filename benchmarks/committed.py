"""What has become slower than the committed results: ratios, because rates differ from machine to machine."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).with_name("committed.json")
_NOISE = 0.05  # by which ratios differ from run to run, whatever the spread of one run
_NOTHING = "nothing is slower than the committed results by more than their spread"

Committed = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Median, minimum and maximum of ratios by their names, by tables, by whether the run was a quick one."""


def read() -> Committed:
    """Return the committed results."""
    found: Committed = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.exists() else {}
    return found


def write(committed: Committed) -> None:
    """Replace the committed results."""
    COMMITTED.write_text(json.dumps(committed, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def merged(committed: Committed, document: dict[str, Any]) -> Committed:
    """Return the committed results with the tables of a run in place of their own."""
    size = _size(document)
    return {**committed, size: {**committed.get(size, {}), **dict(_tables(document))}}


def comparison(committed: Committed, document: dict[str, Any]) -> list[str]:
    """Return lines that say what of a run is slower than what is committed; none where there is nothing to compare.

    A ratio is slower if all its rounds are below all committed rounds, and by more than ratios differ between runs.
    """
    known = committed.get(_size(document), {})
    compared, lines = False, []
    for title, ratios in _tables(document):
        for name, now in ratios.items():
            if was := known.get(title, {}).get(name):
                compared = True
                if now["max"] < was["min"] * (1 - _NOISE):
                    spread = f"{was['min']:.2f} - {was['max']:.2f}"
                    lines.append(f"slower than committed: {title}, {name}: ratio {now['median']:.2f}, was {spread}")
    return lines or [_NOTHING] * compared


def _size(document: dict[str, Any]) -> str:
    return "quick" if document["quick"] else "whole"


def _tables(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Give the ratios of each table that compares contenders."""
    for table in document["tables"]:
        if ratios := dict(_ratios(table)) if "reference" in table else {}:
            yield table["title"], ratios


def _ratios(table: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Give the ratios that tell how fast we are: ours to the reference, or, if that is ours too, to each peer.

    Where no row says that it is ours, all are.
    """
    rates = {row["name"]: [each["messages"] / each["seconds"] for each in row["rounds"]] for row in table["rows"]}
    reference = table["reference"]
    ours = [name for name in rates if "spark-nats" in name] or [*rates]
    pairs = [(name, reference) for name in ours if name != reference]
    if reference in ours:
        pairs += [(reference, name) for name in rates if name not in ours]
    for one, other in pairs:
        if other in rates:
            found = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
            figures = {"median": statistics.median(found), "min": min(found), "max": max(found)}
            yield f"{one} x {other}", {name: round(figure, 3) for name, figure in figures.items()}
