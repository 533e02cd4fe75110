"""Draw the pictures of the documentation, and the logo: ``python -m scripts.pictures``.

Each picture is two files in docs/pictures/, for a light and for a dark page. They are drawn for the width of a phone.
A text that is too long for its place is an error; widths are those of DejaVu Sans, which is wider than most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"

WIDTH = 460  # of each picture, in the units of an SVG
TEXT, SMALL = 14.0, 12.5  # sizes of letters
LINE = 17.0  # from one line of text to the next
MARGIN = 8.0
FONT = "Roboto, 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "'Roboto Mono', SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

Point = tuple[float, float]


@dataclass(frozen=True)
class Theme:
    """The colours of a picture: each kind of box has a fill and an edge."""

    paper: str
    text: str
    faint: str
    line: str
    kinds: dict[str, tuple[str, str]]


THEMES = {
    "light": Theme(
        paper="#ffffff",
        text="#1f2330",
        faint="#5b6172",
        line="#6b7280",
        kinds={
            "plain": ("#f3f4f7", "#b9bfcc"),
            "spark": ("#fdeee2", "#d9772b"),
            "ours": ("#e6e9fb", "#3f51b5"),
            "nats": ("#e0f4ee", "#23896a"),
            "gone": ("#ffffff", "#b9bfcc"),
        },
    ),
    "dark": Theme(
        paper="#171a21",
        text="#e8eaf0",
        faint="#a5abbb",
        line="#9aa1b1",
        kinds={
            "plain": ("#262a34", "#4b5263"),
            "spark": ("#45301f", "#e08a45"),
            "ours": ("#2b3160", "#8c9bf0"),
            "nats": ("#173d34", "#43b892"),
            "gone": ("#171a21", "#4b5263"),
        },
    ),
}

# Widths of DejaVu Sans, in parts of the size of the letters.
_NARROW = {**dict.fromkeys("ijl.,:;'|! ", 0.34), **dict.fromkeys("frt()[]/-`", 0.42)}
_WIDE = {**dict.fromkeys("mwMW@%", 0.97), **dict.fromkeys("ABCDEFGHKNOPQRUVXYZ&+=<>→", 0.78), "…": 1.0}


def width_of(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """Return how wide a text is at most."""
    if mono:
        return 0.603 * size * len(text)
    return size * sum(_NARROW.get(c) or _WIDE.get(c, 0.635) for c in text) * (1.08 if bold else 1.0)


def _must(fits: bool, what: object, problem: str) -> None:
    if not fits:
        raise ValueError(f"{what!r} is {problem}")


@dataclass(frozen=True)
class Box:
    """Where a box is, to draw arrows from and to it."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> Point:
        """The middle of its upper edge."""
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        """The middle of its lower edge."""
        return self.x + self.width / 2, self.y + self.height

    @property
    def left(self) -> Point:
        """The middle of its left edge."""
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        """The middle of its right edge."""
        return self.x + self.width, self.y + self.height / 2

    def above(self, part: float) -> Point:
        """A point of its upper edge: 0 is its left end, 1 its right one."""
        return self.x + self.width * part, self.y

    def below(self, part: float) -> Point:
        """A point of its lower edge."""
        return self.x + self.width * part, self.y + self.height


class Drawing:
    """A picture in one theme, drawn from the top down."""

    def __init__(self, theme: Theme, height: float) -> None:
        self._theme = theme
        self._height = height
        self._parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: Sequence[str] = (),
        kind: str = "plain",
        *,
        frame: bool = False,
        dashed: bool = False,
    ) -> Box:
        """Draw a box. Its first line is bold, a line in backquotes is code; those of a frame stand at its top."""
        _must(x >= 0 and x + width <= WIDTH and y >= 0 and y + height <= self._height, lines, "outside the picture")
        fill, edge = self._theme.kinds[kind]
        fill = "none" if frame else fill
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" fill="{fill}" '
            f'stroke="{edge}" stroke-width="1.5"{dash}/>'
        )
        if frame:
            for i, line in enumerate(lines):
                self.text(x + 10, y + 20 + i * LINE, line, bold=not i, width=width - 20)
            return Box(x, y, width, height)
        _must(len(lines) * LINE + 8 <= height, lines, "too high for its box")
        first = y + height / 2 - (len(lines) - 1) * LINE / 2 + TEXT * 0.36
        for i, line in enumerate(lines):
            self.text(x + width / 2, first + i * LINE, line, bold=not i, middle=True, width=width - 6)
        return Box(x, y, width, height)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        bold: bool = False,
        middle: bool = False,
        faint: bool = False,
        end: bool = False,
        width: float | None = None,
    ) -> None:
        """Write one line; in backquotes it is code. `y` is the line on which letters stand."""
        mono = text.startswith("`")
        text = text.strip("`")
        size = TEXT if bold and not mono else SMALL
        needed = width_of(text, size, mono, bold)
        left = x - needed / 2 if middle else x - needed if end else x
        _must(width is None or needed <= width, text, f"too long by {needed - (width or 0):.1f}")
        _must(left >= 0 and left + needed <= WIDTH, text, "outside the picture")
        anchor = "middle" if middle else "end" if end else "start"
        weight = ' font-weight="600"' if bold else ""
        fill = self._theme.faint if faint else self._theme.text
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-family="{MONO if mono else FONT}" font-size="{size:g}"{weight} '
            f'text-anchor="{anchor}" fill="{fill}" xml:space="preserve">{escape(text)}</text>'
        )

    def arrow(self, *points: Point, both: bool = False, dashed: bool = False, head: bool = True) -> None:
        """Draw a line through points, with a head at its end."""
        color = self._theme.line
        path = " ".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6"{dash}/>')
        tips = [(points[-2], points[-1])] * head + [(points[1], points[0])] * both
        for before, tip in tips:
            angle = math.atan2(tip[1] - before[1], tip[0] - before[0])
            corners = [tip] + [
                (tip[0] - 8 * math.cos(angle + turn), tip[1] - 8 * math.sin(angle + turn)) for turn in (0.42, -0.42)
            ]
            shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            self._parts.append(f'<polygon points="{shape}" fill="{color}"/>')

    def label(self, x: float, y: float, *lines: str, middle: bool = True) -> None:
        """Write beside an arrow, on paper of its own."""
        for i, line in enumerate(lines):
            needed = width_of(line.strip("`"), SMALL, line.startswith("`"))
            left = x - needed / 2 if middle else x
            self._parts.append(
                f'<rect x="{left - 2:.1f}" y="{y + i * LINE - SMALL:g}" width="{needed + 4:.1f}" height="{LINE:g}" '
                f'fill="{self._theme.paper}"/>'
            )
            self.text(x, y + i * LINE, line, middle=middle, faint=True)

    def svg(self) -> str:
        """Return the picture."""
        parts = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height:g}" width="{WIDTH}" '
            f'height="{self._height:g}">\n'
            f'<rect width="{WIDTH}" height="{self._height:g}" rx="8" fill="{self._theme.paper}"/>\n{parts}\n</svg>\n'
        )


def pieces(theme: Theme) -> Drawing:
    """What there is, and where it runs."""
    d = Drawing(theme, 500)
    full = WIDTH - 2 * MARGIN
    d.box(MARGIN, 8, full, 296, ["Your Spark application"], "spark", frame=True)
    driver = d.box(22, 38, 236, 80, ["Driver", "your query; spark-nats plans", "micro-batches and partitions"], "ours")
    checkpoint = d.box(334, 38, 106, 80, ["Checkpoint", "a file system", "or S3"], "plain")
    d.arrow(driver.right, checkpoint.left, both=True)
    d.label(296, 70, "offsets")
    d.box(MARGIN, 382, full, 110, ["NATS cluster"], "nats", frame=True)
    servers = [
        d.box(22 + i * 141, 408, 134, 76, ["nats-server", *lines], "nats")
        for i, lines in enumerate((["streams", "ORDERS, LARGE"], ["their replicas"], ["KV bucket", "SPARK_NATS"]))
    ]
    for i, x in enumerate((22, 240)):
        d.box(x, 166, 198, 128, [f"Executor {i + 1}"], "spark", frame=True)
        lines = ["Python worker", "a task: the client of", "spark-nats, bytes to", "Arrow and back"]
        task = d.box(x + 10, 194, 178, 92, lines, "ours")
        d.arrow(task.bottom, (task.bottom[0], servers[0].y), both=True)
    d.arrow((230, 118), (230, servers[0].y), both=True, dashed=True)
    d.arrow((121, 118), (121, 166))
    d.arrow((121, 142), (339, 142), (339, 166))
    d.label(238, 134, "tasks: ranges of sequences", middle=False)
    d.label(230, 328, "tasks: messages, rows, acknowledgements")
    d.label(230, 346, "driver: how far do the streams reach?")
    d.label(230, 364, "TCP or TLS, port 4222")
    return d


def partitions(theme: Theme) -> Drawing:
    """How sequences become the partitions of a micro-batch."""
    d = Drawing(theme, 436)
    d.text(MARGIN, 22, "Stream ORDERS", bold=True)
    d.text(WIDTH - MARGIN, 22, "each message has a sequence", faint=True, end=True)
    ranges = ["4001-6000", "6001-8000", "8001-10000"]
    done = d.box(8, 34, 76, 40, ["`…4000`"], "gone")
    parts = [d.box(84 + i * 97, 34, 97, 40, [f"`{each}`"], "nats") for i, each in enumerate(ranges)]
    later = d.box(375, 34, 77, 40, ["`10001…`"], "gone", dashed=True)
    d.text(done.top[0], 92, "read before", middle=True, faint=True)
    d.text(parts[1].top[0], 92, "this micro-batch", middle=True, faint=True)
    d.text(later.top[0] - 2, 92, "the next", middle=True, faint=True)
    driver = d.box(
        *(8, 124, 444, 66),
        ["Driver", "writes the offsets 4001 and 10001 into the checkpoint,", "cuts equal ranges (minPartitions = 3)"],
        "ours",
    )
    d.arrow((parts[1].bottom[0], 98), driver.top)
    for i, each in enumerate(ranges):
        task = d.box(8 + i * 151, 242, 142, 80, [f"Task {i + 1}", f"`{each}`", "in the order of", "sequences"], "ours")
        d.arrow((task.top[0], 190), task.top)
        rows = d.box(task.x, 356, 142, 44, [f"Partition {i + 1}", "2,000 rows"], "spark")
        d.arrow(task.bottom, rows.top)
    d.label(230, 220, "each range is a task, on any executor")
    d.text(230, 424, "The same offsets give the same ranges, at a replay too.", middle=True, faint=True)
    return d


def replay(theme: Theme) -> Drawing:
    """What happens when a micro-batch is replayed."""
    d = Drawing(theme, 560)
    first = [
        ("plain", "Offsets are written", "checkpoint: micro-batch 7 is ORDERS 4001 to 4004"),
        ("nats", "A task notes where the target ends", "bucket SPARK_NATS: micro-batch 7 begins at 901"),
        ("ours", "Rows are sent, with ids of what they say", "a, b are stored; c, d are not"),
    ]
    second = [
        ("plain", "The query is started again", "offsets of 7, but no commit of 7: it is replayed"),
        ("ours", "The same range, the same rows, the same ids", "a, b, c, d"),
        ("nats", "The task finds its note, reads ids since 901", "a, b are stored already, and left out"),
        ("ours", "c, d are sent and stored", "the server ignores ids that are in its window"),
        ("plain", "The commit is written", "checkpoint: micro-batch 7 is done"),
    ]
    y = 8.0
    before = None
    for i, (kind, *lines) in enumerate([*first, *second]):
        if i == len(first):
            y += 30
        d.text(22, y + 28, str(i + 1), bold=True, middle=True)
        box = d.box(42, y, 410, 46, lines, kind)
        if before:
            d.arrow(before.bottom, box.top, dashed=i == len(first))
        if i == len(first):
            d.label(247, y - 20, "the driver dies")
        before = box
        y += 61
    d.text(247, y + 14, "The target has a, b, c, d, each of them once.", middle=True, bold=True)
    return d


def kubernetes(theme: Theme) -> Drawing:
    """How it is deployed on Kubernetes."""
    d = Drawing(theme, 540)
    d.box(8, 8, 206, 52, ["SparkApplication", "the query, as a resource"], "plain")
    d.box(246, 8, 206, 52, ["Spark operator", "submits it, restarts it"], "spark")
    d.arrow((214, 34), (246, 34))
    d.box(8, 94, 444, 232, ["Namespace spark"], "spark", frame=True)
    driver = d.box(22, 124, 190, 76, ["Driver pod", "image with Spark,", "Python, spark-nats"], "ours")
    d.arrow((349, 60), (349, 78), (190, 78), (190, 124))
    secret = d.box(262, 124, 176, 76, ["Secret", "credentials, mounted", "into the driver only"], "plain")
    d.arrow(secret.left, driver.right)
    executors = [d.box(22 + i * 146, 258, 128, 58, [f"Executor {i + 1}", "same image"], "ours") for i in (0, 1)]
    d.arrow((86, 200), executors[0].top)
    d.arrow((86, 229), (232, 229), executors[1].top)
    d.label(130, 221, "tasks", middle=False)
    d.box(8, 390, 294, 142, ["Namespace nats"], "nats", frame=True)
    d.box(22, 418, 266, 44, ["Service nats", "`nats.nats.svc:4222`"], "nats")
    for i in range(3):
        d.box(22 + i * 91, 472, 84, 52, [f"nats-{i}", "volume"], "nats")
    storage = d.box(318, 418, 134, 106, ["Checkpoints", "object storage,", "or a volume", "`s3a://…`"], "plain")
    for executor, part in zip(executors, (0.9, 0.5), strict=True):
        d.arrow(executor.below(part), (executor.below(part)[0], 418), both=True)
    d.arrow((212, 186), (236, 186), (236, 222), (385, 222), storage.top, both=True)
    d.label(242, 352, "messages, rows;", "the driver asks too", middle=False)
    d.label(385, 300, "offsets")
    return d


def layers(theme: Theme) -> Drawing:
    """Which folder imports from which."""
    d = Drawing(theme, 508)
    spark = d.box(8, 8, 298, 32, ["`spark.readStream, df.writeStream`"], "spark")
    shell = d.box(318, 8, 134, 48, ["`spark-nats`", "check, lag, options"], "plain")
    datasource = d.box(8, 66, 298, 48, ["`datasource.py`", "options in, reader or writer out"], "ours")
    kinds = d.box(
        8, 142, 298, 66, ["`kinds/`", "what a query can name:", "a reader, a writer, columns for each"], "ours"
    )
    commands = d.box(318, 142, 134, 66, ["`commands/`"], "ours")
    d.arrow(spark.bottom, datasource.top)
    d.arrow(shell.bottom, commands.top)
    d.arrow(datasource.bottom, kinds.top)
    options = d.box(8, 258, 176, 84, ["`options/`", "texts to values, once,", "on the driver"], "ours")
    jetstream = d.box(
        *(200, 258, 252, 84),
        ["`jetstream/`", "streams, ranges of sequences,", "acknowledged publishing,", "durables"],
        "ours",
    )
    for box in (kinds, commands):
        d.arrow(box.bottom, (box.bottom[0], 232), head=False)
    d.arrow((kinds.bottom[0], 232), (commands.bottom[0], 232), head=False)
    d.arrow((options.top[0], 232), options.top)
    d.arrow((jetstream.top[0], 232), jetstream.top)
    client = d.box(*(8, 370, 444, 48), ["`client/`", "one connection: socket, TLS, login, requests, retrying"], "ours")
    d.arrow((options.top[0], 342), (options.top[0], 370))
    d.arrow((jetstream.top[0], 342), (jetstream.top[0], 370))
    protocol = d.box(
        *(8, 446, 444, 54),
        ["`protocol/`", "bytes to Arrow columns and back, and no socket"],
        "ours",
    )
    d.arrow(client.bottom, protocol.top)
    return d


def option(theme: Theme) -> Drawing:
    """The way of an option from its text to its use."""
    d = Drawing(theme, 336)
    text = d.box(8, 8, 266, 44, ["`maxInFlight = 4096`", "a text, as Spark hands it on"], "spark")
    parse = d.box(
        8, 80, 266, 62, ["`settings.parse_options`", "reads the value, compares it", "with other options"], "ours"
    )
    query = d.box(8, 170, 266, 62, ["`queries.operation_of`", "checks that the option is for", "such a query"], "ours")
    use = d.box(8, 260, 266, 62, ["`WriteOptions.max_in_flight`", "an int, in the code and for mypy"], "ours")
    row = d.box(316, 80, 136, 152, ["`option(…)`", "the field:", "reader, meaning,", "default"], "plain")
    docs = d.box(316, 260, 136, 62, ["What you see", "docs/options.md,", "spark-nats options"], "plain")
    for before, after in ((text, parse), (parse, query), (query, use), (row, docs)):
        d.arrow(before.bottom, after.top)
    d.arrow((316, parse.right[1]), parse.right)
    d.arrow((316, query.right[1]), query.right)
    return d


def offset(theme: Theme) -> Drawing:
    """How the offset at which a micro-batch ends comes about."""
    d = Drawing(theme, 476)
    latest = d.box(8, 8, 444, 32, ["`readers.latestOffset`"], "spark")
    retrying = d.box(8, 66, 444, 48, ["`client/retrying.py`", "until it works, or retryTimeout"], "ours")
    query = d.box(8, 142, 130, 324, ["`query`", "one after", "the other"], "ours")
    looks = d.box(228, 142, 224, 48, ["`ask_facts, judged`", "give Facts, in one round trip"], "nats")
    advance = d.box(
        228, 222, 224, 66, ["`decide_advance`", "start, facts, limits: pure,", "yields what it lacks"], "ours"
    )
    more = d.box(228, 322, 224, 48, ["`ask_and_resume_durables`", "one more round trip"], "nats")
    act = d.box(228, 386, 224, 32, ["`losses.say, durables`"], "ours")
    json = d.box(228, 434, 224, 32, ["`positions.to_json`"], "ours")
    d.arrow(latest.bottom, retrying.top)
    d.arrow((73, 114), query.top)
    for number, what, box in (("1", "look", looks), ("2", "decide", advance), ("3", "act", act), ("4", "say", json)):
        d.arrow((138, box.left[1]), box.left)
        d.label(144, box.left[1] - 9, f"{number} {what}", middle=False)
    d.arrow(advance.below(0.2), more.above(0.2), dashed=True)
    d.arrow(more.above(0.8), advance.below(0.8), dashed=True)
    d.label(340, 309, "lacks an answer")
    return d


def rows(theme: Theme) -> Drawing:
    """The way of a batch of rows to its stream."""
    d = Drawing(theme, 452)
    steps = [
        ("spark", "Arrow batch", "from Spark"),
        ("ours", "`columns.py`", "every row is checked"),
        ("ours", "`message_ids.py`", "ids, made of what rows say"),
        ("ours", "`replay.py`", "leaves out what an earlier attempt stored"),
        ("ours", "`publisher.py`", "rows that wait"),
        ("ours", "`flight.py`", "rows that are in flight"),
    ]
    before = None
    for i, (kind, *lines) in enumerate(steps):
        box = d.box(8, 8 + i * 64, 444, 42, lines, kind)
        if before:
            d.arrow(before.bottom, box.top)
        before = box
    wire = d.box(8, 396, 214, 48, ["`encoder.py`", "one join, one buffer"], "nats")
    stored = d.box(238, 396, 214, 48, ["`recovery.py`", "rows that are stored"], "ours")
    d.arrow((wire.top[0], 370), wire.top)
    d.arrow((stored.top[0], 370), stored.top)
    return d


def answers(theme: Theme) -> Drawing:
    """The way of an answer to its row."""
    d = Drawing(theme, 424)
    chain = [
        d.box(8, 8 + i * 62, 300, 44, lines, kind)
        for i, (kind, lines) in enumerate(
            (
                ("nats", ["bytes on the inbox"]),
                ("ours", ["`decoder.py`", "columns"]),
                ("ours", ["`publisher.py`", "the loop over a connection"]),
                ("ours", ["`flight.receive`", "finds the row by its number"]),
            )
        )
    ]
    for before, after in pairwise(chain):
        d.arrow(before.bottom, after.top)
    flight = chain[-1]
    account = d.box(322, 278, 130, 48, ["`acknowledged`", "stored"], "ours")
    decide = d.box(8, 278, 190, 48, ["`decide.py`", "what next? pure"], "ours")
    queue = d.box(8, 368, 190, 48, ["the queue", "rows that wait"], "ours")
    recovery = d.box(262, 368, 190, 48, ["`recovery.py`", "what has the stream?"], "nats")
    d.arrow(flight.right, (account.top[0], flight.right[1]), account.top)
    d.label(388, 252, "stored")
    d.arrow((103, 238), decide.top)
    d.label(112, 260, "refused, or unknown", middle=False)
    d.arrow(decide.bottom, queue.top)
    d.label(103, 352, "send again")
    d.arrow((170, 326), (170, 346), (357, 346), recovery.top)
    d.label(262, 350, "ask")
    d.arrow(recovery.left, queue.right)
    d.arrow(decide.right, (315, decide.right[1]), (315, chain[2].right[1]), chain[2].right)
    d.label(250, decide.right[1] + 4, "wait")
    return d


def logo(color: str, back: str = "") -> str:
    """Return the logo: messages of a stream become the rows of a table."""
    bars = "".join(
        f'<rect x="{x}" y="{y}" width="{width}" height="3.4" rx="1.7"/>'
        for x, y, width in (
            (1.5, 4.3, 6),
            (4, 10.3, 3.5),
            (1.5, 16.3, 6),
            (11, 4.3, 11.5),
            (11, 10.3, 11.5),
            (11, 16.3, 11.5),
        )
    )
    paper = f'<rect width="24" height="24" rx="5" fill="{back}"/>' if back else ""
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">{paper}<g fill="{color}">{bars}</g></svg>\n'


PICTURES: dict[str, Callable[[Theme], Drawing]] = {
    "pieces": pieces,
    "partitions": partitions,
    "replay": replay,
    "kubernetes": kubernetes,
    "layers": layers,
    "option": option,
    "offset": offset,
    "rows": rows,
    "answers": answers,
}


def drawn() -> Iterator[tuple[str, str]]:
    """Return the files: their names and what is in them."""
    for name, draw in PICTURES.items():
        for theme, colors in THEMES.items():
            yield f"{name}-{theme}.svg", draw(colors).svg()
    yield "logo.svg", logo("#ffffff")
    yield "favicon.svg", logo("#ffffff", "#3f51b5")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in drawn():
        (FOLDER / name).write_text(svg)
