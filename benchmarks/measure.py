"""How anything is measured here: contenders alternate, round after round; medians and ratios are reported.

The ratio of two contenders is the median of their ratios round by round, so that a machine that becomes slower
meanwhile slows both sides of each ratio.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.targets import TARGETS, Target

Extra = dict[str, float]


class Sample(NamedTuple):
    """What one run of a contender yielded.

    Attributes:
        messages: how many it handled.
        seconds: how long that took.
        bytes: how many bytes of wire that were, 0 where that is not looked at.
        extra: further figures by their title, shown as columns of their own.
    """

    messages: int
    seconds: float
    bytes: int = 0
    extra: Extra = {}  # noqa: RUF012 - never changed


@dataclass(frozen=True)
class Contender:
    """One way of doing what a table compares.

    Attributes:
        name: how the table calls it.
        run: does it once.
        note: what has to be known to judge its figures.
    """

    name: str
    run: Callable[[], Sample]
    note: str = ""


class Verdict(NamedTuple):
    """A target and what became of it."""

    target: str
    reached: bool | None  # None: nothing to compare with in this run


@dataclass
class Row:
    """The figures of one contender."""

    name: str
    note: str
    samples: list[Sample]
    ratio: float | None = None
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [s.messages / s.seconds for s in self.samples]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def megabytes(self) -> float:
        return statistics.median(s.bytes / s.seconds / 1e6 for s in self.samples)

    @property
    def extra(self) -> Extra:
        names = dict.fromkeys(name for s in self.samples for name in s.extra)
        return {name: statistics.median(s.extra.get(name, 0.0) for s in self.samples) for name in names}


@dataclass
class Comparison:
    """Contenders measured against one another."""

    title: str
    reference: str
    rows: list[Row]
    remarks: list[str]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def ratio(self, one: Row, other: Row) -> float:
        return statistics.median(a / b for a, b in zip(one.rates, other.rates, strict=True))

    def verdict(self, row: Row, target: Target) -> Verdict:
        if target.times is None:
            return Verdict(target.text, row.rate >= target.at_least)
        other = self.row(target.times)
        return Verdict(target.text, None if other is None else self.ratio(row, other) >= target.at_least)

    def judged(self) -> list[Row]:
        return self.rows

    def render(self) -> str:
        extra = list(dict.fromkeys(name for row in self.rows for name in row.extra))
        with_bytes = any(row.megabytes for row in self.rows)
        titles = ["contender", "msg/s", "min - max", *(["MB/s"] if with_bytes else []), f"x {self.reference}", *extra]
        cells = [
            [
                row.name,
                human(row.rate),
                f"{human(min(row.rates))} - {human(max(row.rates))}",
                *([f"{row.megabytes:,.0f}"] if with_bytes else []),
                "" if row.ratio is None else f"{row.ratio:.2f}",
                *(f"{row.extra[name]:,.1f}" if name in row.extra else "" for name in extra),
                *_verdict_cells(row.verdicts),
            ]
            for row in self.rows
        ]
        remarks = [*self.remarks, *(f"{row.name}: {row.note}" for row in self.rows if row.note)]
        if any(name.endswith("\u00b5s") for name in extra):
            remarks.append("\u00b5s: CPU time a message costs each side; client: all Python, or the peer's program")
        return _render(self.title, [*titles, "at least", ""], cells, remarks)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "reference": self.reference,
            "remarks": self.remarks,
            "rows": [
                {
                    "name": row.name,
                    "note": row.note,
                    "messages_per_second": {"median": row.rate, "min": min(row.rates), "max": max(row.rates)},
                    "megabytes_per_second": row.megabytes,
                    "ratio": row.ratio,
                    "extra": row.extra,
                    "targets": [v._asdict() for v in row.verdicts],
                    "rounds": [s._asdict() for s in row.samples],
                }
                for row in self.rows
            ],
        }


class Fact(NamedTuple):
    """A figure that is no rate. Where it has a target, less is better."""

    name: str
    value: float
    unit: str
    verdicts: list[Verdict]


@dataclass
class Facts:
    """Figures that are no rates."""

    title: str
    facts: list[Fact] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str) -> None:
        verdicts = [Verdict(t.text, value < t.at_least) for t in TARGETS if t.table == self.title and t.row == name]
        self.facts.append(Fact(name, value, unit, verdicts))

    def judged(self) -> list[Fact]:
        return self.facts

    def render(self) -> str:
        cells = [[f.name, f"{f.value:,.1f} {f.unit}", *_verdict_cells(f.verdicts)] for f in self.facts]
        return _render(self.title, ["figure", "value", "less than", ""], cells, self.remarks)

    def to_json(self) -> dict[str, Any]:
        facts = [{**f._asdict(), "verdicts": [v._asdict() for v in f.verdicts]} for f in self.facts]
        return {"title": self.title, "remarks": self.remarks, "facts": facts}


@dataclass
class Grid:
    """The same figures of several things, or under several conditions. None stands where there is no figure."""

    title: str
    columns: list[str]
    rows: dict[str, list[float | None]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def judged(self) -> list[Row]:
        return []

    def render(self) -> str:
        cells = [
            [name, *("" if value is None else f"{value:,.1f}" for value in values), "", ""]
            for name, values in self.rows.items()
        ]
        return _render(self.title, ["figure", *self.columns, "at least", ""], cells, self.remarks)

    def to_json(self) -> dict[str, Any]:
        rows = {name: dict(zip(self.columns, values, strict=True)) for name, values in self.rows.items()}
        return {"title": self.title, "remarks": self.remarks, "figures": rows}


@dataclass
class LeftOut:
    """A suite that could not be measured."""

    title: str
    why: str

    def judged(self) -> list[Row]:
        return []

    def render(self) -> str:
        return f"{self.title}: left out, since {self.why}\n"

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "left_out": self.why}


Table = Comparison | Facts | Grid | LeftOut


def compare(
    title: str,
    reference: str,
    contenders: list[Contender],
    rounds: int,
    remarks: list[str] | None = None,
    warm: bool = False,
) -> Comparison:
    """Run the contenders in turn, ``rounds`` times; every other round runs backwards.

    One round before is for warmth, unless all is ``warm`` already.
    """
    samples: dict[str, list[Sample]] = {c.name: [] for c in contenders}
    for number in range(0 if warm else -1, rounds):
        for contender in contenders if number % 2 else contenders[::-1]:
            progress(f"{title}, round {number + 1} of {rounds}: {contender.name}")
            gc.collect()
            sample = contender.run()
            if number >= 0:
                samples[contender.name].append(sample)
    progress("")
    rows = [Row(c.name, c.note, samples[c.name]) for c in contenders]
    comparison = Comparison(title, reference, rows, remarks or [])
    base = comparison.row(reference)
    for row in rows:
        row.ratio = comparison.ratio(row, base) if base else None
        row.verdicts = [comparison.verdict(row, t) for t in TARGETS if t.table == title and t.row == row.name]
    return comparison


@contextmanager
def timed(clock: Callable[[], float] = time.perf_counter) -> Iterator[Callable[[], float]]:
    """Measure a block: what is yielded returns its seconds, also after its end."""
    start = clock()
    end: float | None = None
    yield lambda: (end or clock()) - start
    end = clock()


def progress(text: str) -> None:
    """Say on a terminal what is going on, over and over in one line."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:110]}", end="", file=sys.stderr, flush=True)


def human(rate: float) -> str:
    """Write a rate with three digits: 2.51 M, 38.2 k."""
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if rate >= scale:
            return f"{rate / scale:.{2 if rate < 10 * scale else 1 if rate < 100 * scale else 0}f}{unit}"
    return f"{rate:.0f}"


def _verdict_cells(verdicts: list[Verdict]) -> list[str]:
    marks = {True: "✓", False: "✗", None: "?"}
    return ["; ".join(v.target for v in verdicts), " ".join(marks[v.reached] for v in verdicts)]


def _render(title: str, titles: list[str], cells: list[list[str]], remarks: list[str]) -> str:
    used = [i for i in range(len(titles)) if titles[i] not in ("at least", "less than", "") or any(c[i] for c in cells)]
    lines = [[row[i] for i in used] for row in [titles, *cells]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(used))]
    left = {i for i, column in enumerate(used) if column == 0 or column >= len(titles) - 2}  # names and verdicts

    def align(line: list[str]) -> str:
        cells = enumerate(zip(line, widths, strict=True))
        return "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in cells)

    text = [align(line).rstrip() for line in lines]
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join([f"## {title}", "", *text, *(f"  * {remark}" for remark in remarks), ""])
