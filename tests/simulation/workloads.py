"""What histories are about: a table of workloads, of which the seed chooses one and decides the details."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.simulation.faults import FAULTS
from tests.simulation.history import PASSWORD, SPARK_FAULTS, Act, Happening, Plan, Publishing
from tests.simulation.mirrors import MirrorSpec
from tests.simulation.programs import ProgramSpec
from tests.simulation.spark import QuerySpec
from tests.simulation.verdict import ORDERLY, STOPPING

SECOND = 10**9
WHILE_READING = [
    "no-consumers",
    "no-consumers",
    "lossy-route",
    "lossy-route",
    "pause-leader",
    "lag",
    "kill-leader",
    "cut",
]
"""Faults that a read may meet on its way."""


class Draw:
    """Draws a plan's details."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.plan = Plan(seed)
        self.clocks = self.random.random() < 0.3  # whether clocks of servers jump, which excuses much
        self.span = self.random.uniform(10.0, 40.0)  # seconds in which things are published
        plan = self.plan
        plan.servers = self.chance(0.7, 3, 1)
        plan.version = "2.15.1" if self.random.random() < 0.85 else self.random.choice(["2.14.0", "2.12.1", "2.11.8"])
        fast = self.random.uniform(0.0001, 0.002)
        plan.latency = (fast / 4, fast * self.random.choice([1, 2, 10]))
        plan.torn = self.random.choice([0.0, 0.02, 0.1, 0.4])
        plan.capacity = self.random.choice([1 << 12, 1 << 16, 1 << 20])

    def chance(self, probability: float, yes: Any, no: Any) -> Any:
        return yes if self.random.random() < probability else no

    def replicas(self) -> int:
        return self.random.choice([1, 3, 3]) if self.plan.servers == 3 else 1

    def stream(self, name: str, subjects: list[str], replicas: int | None = None, **config: Any) -> None:
        """Have a stream."""
        gets = {"allow_direct": random.Random(f"{self.plan.seed} {name}").random() < 0.5}
        self.plan.streams.append(
            {"name": name, "subjects": subjects, "num_replicas": replicas or self.replicas(), **gets, **config}
        )

    def times(self, rows: int) -> list[float]:
        """Return when rows are published: in bursts."""
        found: list[float] = []
        while len(found) < rows:
            at = self.random.uniform(0.05, self.span)
            found += [at + i * 0.001 for i in range(min(rows - len(found), self.random.choice([1, 5, 20, 60])))]
        return sorted(found)

    def publisher(self, name: str, stream: str, subjects: list[str], rows: int, ids: bool = True) -> None:
        """Have an outsider publish."""
        size = self.random.choice([0, 0, 20, 200, 3000])
        self.plan.publishers.append(Publishing(name, stream, subjects, self.times(rows), ids, size))

    def connection(self) -> dict[str, str]:
        """Return options that say how to connect, and for how long to try."""
        servers = ",".join(f"nats://127.0.0.1:{4222 + i}" for i in range(self.plan.servers))
        options = {
            "servers": servers,
            "connectTimeout": self.random.choice(["1s", "2s", "5s"]),
            "requestTimeout": self.random.choice(["1s", "2s", "5s"]),
            "retryTimeout": self.random.choice(["20s", "45s", "60s", "2m"]),
            "idleTimeout": self.random.choice(["2s", "10s", "30s"]),
            "pingInterval": self.random.choice(["1s", "5s", "30s"]),
            "reconnectWait": self.random.choice(["100ms", "500ms", "2s"]),
        }
        if self.random.random() < 0.2:
            options |= {"user": "spark", "password": PASSWORD}
        return options

    def reading(self, **more: str) -> dict[str, str]:
        """Return options of a streaming read."""
        options = {**self.connection(), "startingOffsets": "earliest"}
        rows = self.plan.rows
        if self.random.random() < 0.4:
            options["maxOffsetsPerTrigger"] = str(self.random.choice([rows // 6 + 1, rows // 3 + 1, rows]))
        elif self.random.random() < 0.15:
            size = max((each.size for each in self.plan.publishers), default=0) + 30
            options["maxBytesPerTrigger"] = str(rows * size // self.random.choice([2, 5]))
        if self.random.random() < 0.25:
            options["minPartitions"] = str(self.random.choice([2, 3]))
        if self.random.random() < 0.15:
            options["maxRecordsPerPartition"] = str(self.random.choice([rows // 8 + 1, rows // 2 + 1]))
        return {**options, **more}

    def writing(self, stream: str, **more: str) -> dict[str, str]:
        """Return options of a streaming write."""
        options = {**self.connection(), "stream": stream, "ackTimeout": self.random.choice(["5s", "10s", "30s"])}
        if self.random.random() < 0.3:
            options["maxInFlight"] = str(self.random.choice([1, 3, 16, 100]))
        if self.random.random() < 0.2:
            options["stateBucket"] = "NOTES"
        return {**options, **more}

    def query(self, name: str, read: dict[str, str], write: dict[str, str] | None = None, **more: Any) -> QuerySpec:
        """Have a streaming query."""
        spec = QuerySpec(
            name,
            read,
            write,
            slots=self.random.choice([1, 2, 2, 4]),
            executors=self.random.choice([1, 2]),
            trigger=self.random.choice([3.0, 6.0, 10.0]),
            available_now=self.random.random() < 0.15,
            speculation=self.random.choice([0.0, 0.0, 0.1]),
            reuse=self.random.choice([0.0, 0.7, 1.0]),
            whole=self.random.random() < 0.7,
            on_loss=self.chance(0.8, "go on", "end"),
            back_after=self.random.choice([(0.2, 2.0), (0.5, 5.0), (5.0, 30.0)]),
        )
        for field, value in more.items():
            setattr(spec, field, value)
        self.plan.queries.append(spec)
        return spec

    def faults(self, names: list[str] | None = None, most: float = 60.0) -> None:
        """Have faults."""
        servers = [
            name
            for name, fault in FAULTS.items()
            if (not fault.cluster or self.plan.servers > 1) and (not fault.loses or self.loses) and not fault.asked
        ]
        if self.orderly:
            servers = [name for name in servers if name in ORDERLY]
        if not self.clocks:
            servers = [name for name in servers if name != "clock"]
        spark = list(SPARK_FAULTS)
        if not self.plan.queries:
            spark = ["worker killed", "second attempt", "slow sink"] if self.plan.programs else []
        for _ in range(self.random.randint(8, 20)):
            name = self.random.choice(names or (spark if spark and self.random.random() < 0.3 else servers))
            if name in SPARK_FAULTS:
                shortest, longest = (1.0, 60.0) if name == "slow sink" else (0.5, 20.0)
            else:
                shortest, longest = FAULTS[name].lasts
            duration = min(self.random.uniform(shortest, longest) * self.random.choice([0.1, 0.5, 1.0]), most)
            duration = max(duration, shortest)
            if name in STOPPING:
                duration = min(duration, self.stops)
            if name in ("route", "isolate", "pause", "pause-leader", "silence-in", "silence-out"):
                duration = self.chance(0.3, self.random.uniform(0.001, 0.1), duration)  # a moment
            at = self.random.uniform(0.1, self.span)
            delay = self.chance(0.6, self.random.uniform(0.0, self.random.choice([0.01, 0.03, 0.2])), None)
            self.plan.faults.append(Happening(at, name, duration, self.random.getrandbits(32), delay))
        self.plan.faults.sort(key=lambda each: each.time)

    def strikes(self, names: list[str], most: int, lasts: float = 8.0) -> None:
        """Have faults that strike while something is read or written: some round trips after it has begun."""
        for _ in range(self.random.randint(1, most)):
            name = self.random.choice(names)
            if FAULTS[name].cluster and self.plan.servers == 1:
                name = "cut-all"
            at, seconds = self.random.uniform(0.1, self.span), self.random.uniform(0.1, lasts)
            delay = self.random.uniform(0.0, self.plan.latency[1] * self.random.choice([10, 40]))
            self.plan.faults.append(Happening(at, name, seconds, self.random.getrandbits(32), delay))
        self.plan.faults.sort(key=lambda each: each.time)

    def away(self) -> None:
        """Have all servers be away, or take nothing, for longer than anybody waits."""
        name = self.random.choice(["all-away", "takes-nothing"])
        happening = Happening(
            self.random.uniform(1, self.span),
            name,
            self.random.uniform(500, 700),
            self.random.getrandbits(32),
            self.random.uniform(0, 0.03),
        )
        self.plan.faults.append(happening)

    loses = False
    orderly = False
    stops = 60.0  # most seconds that something is stopped


def copy_exact(draw: Draw) -> None:
    """One stream into another one, exactly once."""
    draw.orderly = draw.random.random() < 0.2
    draw.loses = not draw.orderly and draw.random.random() < 0.3
    draw.stream("IN", ["in.>"])
    draw.stream("OUT", ["out.>"], duplicate_window=draw.random.choice([120, 120, 120, 10, 2]) * SECOND)
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(100, 250))
    if draw.random.random() < 0.3:
        draw.plan.publishers[0].different = draw.random.choice([1, 3, 20])
    draw.query("copy", draw.reading(stream="IN"), draw.writing("OUT"))
    draw.faults()


def copy_late(draw: Draw) -> None:
    """One stream into another one whose window is over when something is run again."""
    draw.clocks = False
    draw.loses = draw.random.random() < 0.2
    draw.plan.latency = (0.001, 0.01)
    window = draw.random.choice([2, 5, 10])
    draw.stops = draw.random.choice([0.1, 0.3]) * window
    draw.stream("IN", ["in.>"])
    draw.stream("OUT", ["out.>"], duplicate_window=window * SECOND)
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(100, 200))
    more = {"stateBucket": "NOTES"} if draw.random.random() < 0.5 else {}
    shuffle = draw.random.choice([0, 0, 3])
    reading = draw.reading(stream="IN", minPartitions="3")
    draw.query(
        "copy",
        reading,
        draw.writing("OUT", maxInFlight=draw.random.choice(["2", "5", "20"]), **more),
        shuffle=shuffle,
        fewer=bool(shuffle) and draw.random.random() < 0.7,
        slots=draw.random.choice([1, 2]),
        back_after=draw.random.choice([(0.5, 5.0), (10.0, 30.0), (10.0, 30.0)]),
    )
    names = [
        "driver killed",
        "driver killed",
        "worker killed",
        "executor killed",
        "acks-never",
        "kill-leader",
        "cut-all",
    ]
    if draw.loses:
        names += ["restore-older", "restore-older"]
    draw.faults(names)
    for each in draw.plan.faults:
        each.delay = draw.random.uniform(0.02, 0.5)


def copy_shuffled(draw: Draw) -> None:
    """The same with a shuffle in between."""
    draw.loses = draw.random.random() < 0.2
    draw.stream("IN", ["in.>"])
    draw.stream("OUT", ["out.>"], duplicate_window=draw.random.choice([120, 120, 10]) * SECOND)
    draw.publisher("p", "IN", ["in.a", "in.b", "in.c"], draw.random.randint(100, 250))
    own = draw.random.random() < 0.25
    draw.query(
        "copy", draw.reading(stream="IN"), draw.writing("OUT"), shuffle=draw.random.choice([1, 2, 2, 3]), own_ids=own
    )
    draw.faults()


def copy_window(draw: Draw) -> None:
    """The same, protected by the stream's window alone, or by nothing."""
    draw.stream("IN", ["in.>"])
    draw.stream("OUT", ["out.>"], duplicate_window=draw.random.choice([120, 20]) * SECOND)
    draw.publisher("p", "IN", ["in.a"], draw.random.randint(100, 250))
    draw.query("copy", draw.reading(stream="IN"), draw.writing("OUT", deduplicate=draw.chance(0.8, "window", "false")))
    draw.faults()


def copy_together(draw: Draw) -> None:
    """The rows of each partition stored together or not at all."""
    draw.plan.version = "2.15.1"
    draw.stream("IN", ["in.>"])
    draw.stream("OUT", ["out.>"], allow_atomic=True)
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(100, 250))
    deduplicate = draw.random.choice(["exact", "window"])
    draw.query("copy", draw.reading(stream="IN"), draw.writing("OUT", atomic="true", deduplicate=deduplicate))
    draw.faults()


def copy_bad_rows(draw: Draw) -> None:
    """One stream into another one that does not take all rows; the others go to a third one."""
    draw.loses = draw.random.random() < 0.15
    draw.stream("IN", ["in.>"])
    draw.stream("OUT", ["out.a", "out.b"], max_msg_size=1000, duplicate_window=draw.random.choice([120, 10]) * SECOND)
    draw.stream("BAD", ["bad.>"], duplicate_window=draw.random.choice([120, 10]) * SECOND)
    draw.stream("ELSE", ["out.c"])
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(60, 150))
    for name, subjects, size in (
        ("large", ["in.a"], 1200),
        ("elsewhere", ["in.c", "in.d"], 0),
        ("wild", ["in.star"], 0),
    ):
        rows = draw.random.choice([0, 1, 10, 40])
        draw.plan.publishers.append(Publishing(name, "IN", subjects, draw.times(rows), True, size))
    more = draw.random.choice([{}, {}, {"deduplicate": "window"}])
    write = draw.writing("OUT", badRows="stream", badRowsStream="BAD", **more)
    draw.query("copy", draw.reading(stream="IN"), write, shuffle=draw.random.choice([0, 0, 2]))
    draw.faults()
    if draw.random.random() < 0.5:
        draw.faults(["driver killed", "worker killed", "executor killed", "acks-never", "kill-leader", "cut-all"])


def copy_apart(draw: Draw) -> None:
    """One stream into several ones, of which each hears some of the subjects; sometimes one hears none of them."""
    draw.loses = draw.random.random() < 0.2
    draw.stream("IN", ["in.>"])
    tokens = draw.random.choice(["ab", "abc", "abcd"])
    for token in tokens:
        window = draw.random.choice([120, 120, 10, 2]) * SECOND
        draw.stream(f"OUT_{token}", [f"out.{token}", f"out.{token}.>"], duplicate_window=window)
    draw.publisher("p", "IN", [f"in.{each}" for each in tokens[: draw.random.choice([2, 4])]], 0)
    draw.plan.publishers[0].times = draw.times(draw.random.randint(100, 250))
    more: dict[str, str] = {}
    if draw.random.random() < 0.4:
        draw.stream("BAD", ["bad.>"], duplicate_window=draw.random.choice([120, 10]) * SECOND)
        rows, names = draw.random.choice([0, 1, 10, 40]), ["in.nowhere", "in.star"]
        draw.plan.publishers.append(Publishing("elsewhere", "IN", names, draw.times(rows), True, 0))
        more = {"badRows": "stream", "badRowsStream": "BAD"}
    write = draw.writing(",".join(f"OUT_{token}" for token in tokens), **more)
    if draw.random.random() < 0.3:
        del write["stream"]
        write["streamPattern"] = "OUT_[a-z]"
    draw.query("copy", draw.reading(stream="IN"), write)
    draw.faults()
    if draw.random.random() < 0.5:
        draw.faults(["driver killed", "worker killed", "executor killed", "acks-never", "kill-leader", "cut-all"])


def read(draw: Draw) -> None:
    """A stream read, while single messages are deleted."""
    draw.loses = draw.random.random() < 0.3
    draw.stream("IN", ["in.>"])
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(120, 300))
    options = {"failOnDataLoss": "false"} if draw.random.random() < 0.3 else {}
    draw.query("read", draw.reading(stream="IN", **options))
    for _ in range(draw.random.randint(0, 6)):
        draw.plan.acts.append(Act(draw.random.uniform(1, draw.span), "IN", "delete", {"where": draw.random.random()}))
    draw.faults()
    draw.strikes(WHILE_READING, 8)


def filtered(draw: Draw) -> None:
    """Some subjects of a stream."""
    draw.loses = draw.random.random() < 0.15
    draw.stream("IN", ["in.>"])
    draw.publisher("p", "IN", ["in.a", "in.b.1", "in.b.2", "in.c"], draw.random.randint(100, 250))
    draw.publisher("q", "IN", ["in.x"], draw.random.randint(0, 100), ids=False)
    subject = draw.random.choice(["in.a", "in.b.*", "in.b.>", "in.a,in.c", "in.a,in.b.*,in.c", "in.b.2"])
    write = draw.writing("OUT") if draw.random.random() < 0.4 else None
    if write is not None:
        draw.stream("OUT", ["out.>"])
    draw.query("some", draw.reading(stream="IN", subject=subject), write)
    for _ in range(draw.random.randint(0, 6)):
        draw.plan.acts.append(Act(draw.random.uniform(1, draw.span), "IN", "delete", {"where": draw.random.random()}))
    draw.faults()
    draw.strikes(WHILE_READING, 8)


def shown(draw: Draw) -> None:
    """A stream copied by a query whose progress a consumer shows, which nothing depends on."""
    draw.plan.version = "2.15.1"
    draw.loses = draw.random.random() < 0.3
    draw.stream("IN", ["in.>"])
    draw.stream("OUT", ["out.>"])
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(100, 250))
    more = {"subject": "in.a"} if draw.random.random() < 0.3 else {}
    draw.query("copy", draw.reading(stream="IN", progressConsumer="lag", **more), draw.writing("OUT"))
    draw.faults()


def limited(draw: Draw) -> None:
    """A stream whose limits, or a purge, take messages that were not read yet."""
    limit = draw.random.choice(
        [{"max_msgs": draw.random.choice([10, 40, 100])}, {"max_age": draw.random.choice([5, 20]) * SECOND}, {}]
    )
    draw.stream("IN", ["in.>"], **limit)
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(150, 300))
    more = {"failOnDataLoss": draw.chance(0.5, "true", "false")}
    if draw.random.random() < 0.3:
        more["subject"] = "in.a"
    draw.query("read", draw.reading(stream="IN", **more), trigger=draw.random.choice([2.0, 5.0]))
    for _ in range(draw.random.randint(0, 2) if limit else draw.random.randint(1, 3)):
        where = {"where": draw.random.random()} if draw.random.random() < 0.7 else {}
        draw.plan.acts.append(Act(draw.random.uniform(1, draw.span), "IN", "purge", where))
    draw.faults()


def consumed(draw: Draw) -> None:
    """A stream of which what is processed is released."""
    draw.plan.version = "2.15.1"
    draw.loses = draw.random.random() < 0.15
    retention = draw.random.choice(["workqueue", "workqueue", "interest", "limits"])
    draw.stream("IN", ["in.>"], retention=retention, allow_direct=True)
    draw.publisher("p", "IN", ["in.a", "in.b", "in.c"], draw.random.randint(100, 250))
    more = {"consume": "true"}
    if draw.random.random() < 0.5:
        more["subject"] = draw.random.choice(["in.a", "in.a,in.b", "in.*"])
    write = None
    if draw.random.random() < 0.4:
        draw.stream("OUT", ["out.>"])
        write = draw.writing("OUT")
    draw.query("take", draw.reading(stream="IN", **more), write)
    draw.faults()
    draw.strikes(WHILE_READING, 8)


def several(draw: Draw) -> None:
    """Several streams, named or by a pattern; sometimes forty, whose ranges share partitions."""
    count, most = draw.random.randint(2, 4), 100
    if random.Random(f"{draw.plan.seed} many").random() < 0.1:  # dice of its own, so that the rest stays what it was
        count, most = 40, 25
    names = [f"T_{i}" for i in range(count)]
    for name in names:
        draw.stream(name, [f"{name.lower()}.>"])
        draw.publisher(f"p{name}", name, [f"{name.lower()}.a"], draw.random.randint(20, most))
    streams = {"streamPattern": "T_[0-9]+"} if draw.random.random() < 0.4 else {"stream": ",".join(names)}
    write = None
    if draw.random.random() < 0.4:
        draw.stream("OUT", ["out.>"])
        write = draw.writing("OUT", subject="out.all")
    draw.query("all", draw.reading(**streams), write)
    draw.faults()


def restored(draw: Draw) -> None:
    """Streams that lose what they had acknowledged."""
    draw.loses = True
    draw.stream("IN", ["in.>"])
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(100, 250))
    write = None
    if draw.random.random() < 0.6:
        draw.stream("OUT", ["out.>"])
        write = draw.writing("OUT")
    draw.query("read", draw.reading(stream="IN"), write)
    draw.faults()
    for _ in range(draw.random.randint(1, 3)):
        name = draw.random.choice(["power", "power-of-all", "restore-older", "made-again"])
        at = draw.random.uniform(2, draw.span + 10)
        delay = draw.chance(0.6, draw.random.uniform(0, 0.05), None)
        happening = Happening(at, name, draw.random.uniform(0.5, 5), draw.random.getrandbits(32), delay)
        draw.plan.faults.append(happening)


def published(draw: Draw) -> None:
    """Plain programs that publish, with and without ids, one row by one or together."""
    draw.orderly = draw.random.random() < 0.2
    draw.loses = not draw.orderly and draw.random.random() < 0.2
    draw.stream("OUT", ["out.>"], allow_atomic=True, duplicate_window=draw.random.choice([120, 120, 10]) * SECOND)
    draw.plan.version = "2.15.1"
    astray = draw.random.random() < 0.3  # to a subject of another stream, which is refused
    if astray:
        draw.stream("OTHER", ["other.>"])
    away = draw.random.random() < 0.25  # whether everything is away for longer than anybody waits
    for i in range(draw.random.randint(2, 3)):
        kind = draw.random.choice(["publisher", "publisher", "atomic"])
        times = sorted(draw.random.uniform(0.1, draw.span) for _ in range(draw.random.randint(2, 6)))
        draw.plan.programs.append(
            ProgramSpec(
                f"program{i}",
                kind,
                draw.writing("OUT"),
                "OUT",
                ["out.a", "other.b" if astray and not i and kind == "publisher" else "out.b"],
                times,
                chunk=draw.random.choice([1, 5, 20, 40]),
                ids=draw.random.random() < 0.5,
                size=draw.random.choice([0, 20, 300]),
            )
        )
        draw.plan.programs[-1].options.pop("stateBucket", None)
    draw.faults()
    if away:
        draw.away()
    for _ in range(draw.random.randint(2, 6)):
        name = draw.random.choice(["acks-never", "kill-leader", "isolate", "too-many", "step-down", "cut-all"])
        if draw.plan.servers == 1 and name == "isolate":
            name = "cut-all"
        at, delay = draw.random.uniform(0.1, draw.span), draw.random.uniform(0.0, 0.01)
        draw.plan.faults.append(Happening(at, name, draw.random.uniform(0.5, 8), draw.random.getrandbits(32), delay))
    if draw.loses:
        for _ in range(draw.random.randint(2, 5)):
            at, delay = draw.random.uniform(0.1, draw.span), draw.random.uniform(0.0, 0.05)
            lasts = draw.random.uniform(0.5, 3)
            draw.plan.faults.append(Happening(at, "restore-older", lasts, draw.random.getrandbits(32), delay))


def published_many(draw: Draw) -> None:
    """Many rows at once, while leaders go that have taken some."""
    draw.plan.servers = 3
    draw.plan.version = "2.15.1"
    draw.stream("OUT", ["out.>"], replicas=3)
    draw.plan.latency = (0.0005, 0.01)
    times = sorted(draw.random.uniform(0.1, draw.span) for _ in range(draw.random.randint(2, 4)))
    options = draw.writing("OUT")
    options.pop("stateBucket", None)
    options.pop("maxInFlight", None)
    chunk = draw.random.choice([200, 600, 1000])
    ids = draw.random.random() < 0.7
    draw.plan.programs.append(ProgramSpec("many", "publisher", options, "OUT", ["out.a"], times, chunk=chunk, ids=ids))
    for at in times:
        for _ in range(draw.random.randint(1, 4)):
            name = draw.random.choice(
                ["isolate", "step-down", "kill-leader", "lossy-route", "acks-never", "pause-leader"]
            )
            began, lasts = at - draw.random.uniform(0, 0.01), draw.random.uniform(0.1, 8)
            happening = Happening(began, name, lasts, draw.random.getrandbits(32), draw.random.uniform(0, 0.05))
            draw.plan.faults.append(happening)
    draw.plan.faults.sort(key=lambda each: each.time)


def away(draw: Draw) -> None:
    """Servers that stay away for longer than anybody waits for them."""
    draw.stream("IN", ["in.>"])
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(60, 120))
    write = None
    if draw.random.random() < 0.5:
        draw.stream("OUT", ["out.>"])
        write = draw.writing("OUT")
    spec = draw.query("read", draw.reading(stream="IN"), write)
    for options in (spec.read, spec.write):
        if options is not None:
            options["retryTimeout"] = "20s"
    draw.faults()
    draw.away()


def saved(draw: Draw) -> None:
    """Batches that are written and read."""
    draw.stream("OUT", ["out.>"], duplicate_window=draw.random.choice([120, 10]) * SECOND)
    astray = draw.random.random() < 0.2  # some rows are of another stream's subject, and are refused
    if astray:
        draw.stream("OTHER", ["other.>"])
    times = sorted(draw.random.uniform(0.1, draw.span) for _ in range(draw.random.randint(3, 6)))
    options = draw.writing("OUT", deduplicate=draw.random.choice(["exact", "exact", "window", "false"]))
    options.pop("stateBucket", None)
    draw.plan.programs.append(
        ProgramSpec(
            "save",
            "save",
            options,
            "OUT",
            ["out.a", "other.b" if astray else "out.b"],
            times,
            chunk=draw.random.choice([10, 40, 80]),
            parts=draw.random.choice([1, 2, 3]),
            speculation=draw.random.choice([0.0, 0.2]),
        )
    )
    reading = {**draw.connection(), "stream": "OUT"}
    if draw.random.random() < 0.3:
        reading["subject"] = "out.a"
    if draw.random.random() < 0.4:
        reading["minPartitions"] = "3"
    times = sorted(draw.random.uniform(0.1, draw.span + 5) for _ in range(draw.random.randint(2, 5)))
    draw.plan.programs.append(ProgramSpec("look", "read", reading, "OUT", [], times))
    draw.faults()


def peeked(draw: Draw) -> None:
    """A work queue or an interest stream at which a batch peeks."""
    draw.plan.version = "2.15.1"
    draw.stream("IN", ["in.>"], retention="workqueue", allow_direct=True)
    draw.publisher("p", "IN", ["in.a", "in.b"], draw.random.randint(100, 200))
    reading = {**draw.connection(), "stream": "IN", "peek": "true"}
    if draw.random.random() < 0.4:
        reading["subject"] = draw.random.choice(["in.a", "in.a,in.b"])
    times = sorted(draw.random.uniform(0.1, draw.span + 5) for _ in range(draw.random.randint(3, 7)))
    draw.plan.programs.append(ProgramSpec("peek", "read", reading, "IN", [], times))
    draw.faults()
    draw.strikes(WHILE_READING, 8)


def buckets(draw: Draw) -> None:
    """A KV bucket that programs write and read, and a query whose source it is."""
    draw.stream(
        "KV_B",
        ["$KV.B.>"],
        max_msgs_per_subject=draw.random.choice([1, 1, 5]),
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
        discard="new",
    )
    keys = [f"k{i}" for i in range(draw.random.choice([3, 10, 40]))]
    times = sorted(draw.random.uniform(0.1, draw.span) for _ in range(draw.random.randint(4, 8)))
    writing = {**draw.connection(), "bucket": "B", "ackTimeout": "10s"}
    draw.plan.programs.append(
        ProgramSpec("put", "bucket", writing, "KV_B", keys, times, chunk=draw.random.choice([5, 30]))
    )
    times = sorted(draw.random.uniform(0.1, draw.span + 5) for _ in range(draw.random.randint(2, 5)))
    draw.plan.programs.append(ProgramSpec("list", "entries", {**draw.connection(), "bucket": "B"}, "KV_B", [], times))
    draw.faults()


FORGETTING = ["restart", "restart", "restart", "restart", "roll", "roll", "restored", "scaled", "edited", "step-down"]
"""What makes a stream forget ids of messages that it has removed, or all ids."""
RUN_AGAIN = [
    "driver killed",
    "driver killed",
    "worker killed",
    "executor killed",
    "second attempt",
    "acks-never",
    "cut",
]
"""What has rows be sent again."""


def forgotten(draw: Draw) -> None:
    """One stream into another one that removes messages, whose ids it forgets when its server begins."""
    draw.clocks = draw.random.random() < 0.1
    keys = [f"k{i}" for i in range(draw.random.choice([1, 3, 10]))]
    what = draw.random.choice(
        ["queue", "queue", "last", "last", "last", "most", "purged", "bucket", "bucket", "counter"]
    )
    draw.stream("IN", ["in.>"])
    draw.publisher("p", "IN", [f"in.{key}" for key in keys], draw.random.randint(60, 160))
    window = {"duplicate_window": draw.random.choice([600, 120, 120, 10, 4]) * SECOND}
    more: dict[str, str] = {}
    if what in ("last", "most", "queue", "purged", "counter"):
        more["deduplicate"] = draw.random.choice(["exact", "exact", "window"])
    match what:
        case "queue":
            draw.stream("OUT", ["out.>"], retention="workqueue", **window)
        case "last":
            draw.stream("OUT", ["out.>"], max_msgs_per_subject=draw.random.choice([1, 1, 2]), **window)
        case "most":
            draw.stream("OUT", ["out.>"], max_msgs=draw.random.choice([5, 20]), **window)
        case "counter":
            draw.plan.version = "2.15.1"
            most = draw.random.choice([1, 1, -1])
            draw.stream("OUT", ["out.>"], allow_msg_counter=True, max_msgs_per_subject=most, **window)
        case "purged":
            draw.stream("OUT", ["out.>"], **window)
        case "bucket":
            draw.stream(
                "KV_B",
                ["$KV.B.>"],
                max_msgs_per_subject=draw.random.choice([1, 1, 5]),
                allow_rollup_hdrs=True,
                deny_delete=True,
                allow_direct=True,
                discard="new",
                **window,
            )
    if what == "bucket":
        write = {**draw.connection(), "bucket": "B", "ackTimeout": "10s"}
    else:
        write = draw.writing("OUT", **more)
    shuffle = draw.random.choice([0, 0, 0, 2]) if what in ("queue", "most", "purged") else 0
    trigger = draw.random.choice([0.5, 2.0, 5.0])
    draw.query("copy", draw.reading(stream="IN"), write, shuffle=shuffle, counts=what == "counter", trigger=trigger)
    if what in ("queue", "purged"):
        name = "drain" if what == "queue" else "purge"
        at = 0.0
        while at < draw.span + 5:
            at += draw.random.uniform(0.05, 3.0)
            arguments = {"most": draw.random.choice([1, 10, 1000, 1000])} if name == "drain" else {}
            draw.plan.acts.append(Act(at, "OUT", name, arguments))
    if what == "last" and draw.random.random() < 0.3:  # somebody else writes under the same subjects
        draw.publisher("q", "OUT", [f"out.{key}" for key in keys], draw.random.randint(10, 60))
    elif what in ("last", "bucket"):  # the same, by dice of its own, so that the rest stays what it was
        dice = random.Random(f"{draw.plan.seed} writes too")
        target, before = ("OUT", "out") if what == "last" else ("KV_B", "$KV.B")
        if dice.random() < 0.5:
            times = sorted(dice.uniform(0.05, draw.span) for _ in range(dice.randint(10, 60)))
            draw.plan.publishers.append(Publishing("q", target, [f"{before}.{key}" for key in keys], times))
    single = [name for name in FORGETTING if not (FAULTS[name].cluster and draw.plan.servers == 1)]
    if draw.plan.version != "2.15.1":  # a restored stream of older servers does not show that it has forgotten ids
        single.remove("restored")
    for _ in range(draw.random.randint(2, 10)):  # what has rows be sent again, and has ids be forgotten soon after
        at, delay = draw.random.uniform(0.1, draw.span), draw.random.uniform(0.0, draw.random.choice([0.01, 0.05, 0.5]))
        for name, later in ((draw.random.choice(RUN_AGAIN), 0.0), (draw.random.choice(single), 0.3)):
            lasts = draw.random.uniform(0.1, 3.0)
            later = draw.random.uniform(0.0, later)
            draw.plan.faults.append(Happening(at, name, lasts, draw.random.getrandbits(32), delay + later))
    draw.plan.faults.sort(key=lambda each: each.time)


def beside_sleepers(draw: Draw) -> None:
    """Batches that are read, each over one server, beside leaders that are away until there is another one."""
    draw.plan.servers = 3
    draw.stream("OUT", ["out.>"], replicas=3)
    draw.publisher("p", "OUT", ["out.a", "out.b"], draw.random.randint(100, 250), ids=draw.random.random() < 0.5)
    for i in range(3):
        reading = {**draw.connection(), "stream": "OUT", "requestTimeout": "5s", "idleTimeout": "30s"}
        reading |= {"servers": f"nats://127.0.0.1:{4222 + i}", "pingInterval": "30s"}
        if draw.random.random() < 0.3:
            reading["subject"] = "out.a"
        times = sorted(draw.random.uniform(0.1, draw.span + 5) for _ in range(draw.random.randint(10, 25)))
        draw.plan.programs.append(ProgramSpec(f"look{i}", "read", reading, "OUT", [], times))
    at = draw.random.uniform(0.5, 3)
    while at < draw.span:
        lasts = draw.random.uniform(4.5, 9.5)
        name = draw.random.choice(["pause-leader", "pause-leader", "isolate"])
        draw.plan.faults.append(Happening(at, name, lasts, draw.random.getrandbits(32), None))
        at += lasts + draw.random.uniform(1, 5)


WORKLOADS: dict[str, tuple[int, Callable[[Draw], None]]] = {
    "copy exactly": (5, copy_exact),
    "copy when the window is over": (3, copy_late),
    "copy behind a shuffle": (3, copy_shuffled),
    "copy within the window": (2, copy_window),
    "copy together": (1, copy_together),
    "read": (3, read),
    "read with filters": (3, filtered),
    "read what limits take": (3, limited),
    "consume": (3, consumed),
    "several streams": (2, several),
    "restored": (3, restored),
    "publish": (4, published),
    "publish many": (1, published_many),
    "away for long": (1, away),
    "save and read": (2, saved),
    "peek": (1, peeked),
    "buckets": (1, buckets),
}
"""By name: how often, and what draws one."""
LATER: dict[int, tuple[str, Callable[[Draw], None]]] = {
    7: ("read beside sleepers", beside_sleepers),
    11: ("copy with bad rows", copy_bad_rows),
    61: ("copy with bad rows", copy_bad_rows),
    37: ("copy, and show the progress", shown),
    **dict.fromkeys((17, 47, 67, 97), ("copy into several streams", copy_apart)),
    **dict.fromkeys((13, 23, 33, 43, 53, 73, 83, 93), ("copy into what forgets", forgotten)),
}
"""Which ones of a hundred seeds in a row are about something else, so that the other seeds stay what they were."""
ANSWERED_BY_OTHERS = frozenset([6, 16, 24, 36, 44, 56, 66, 76, 84, 96])
"""In which of a hundred seeds in a row others answer too: by dice of their own, so that the rest stays what it was."""
NEAR = frozenset([0, 2, 5, 8, 10, 12, 15, 19, 26, 29, 31, 35, 38, 41, 48, 54, 58, 64, 71, 79, 85, 91, 98])
"""In which of a hundred seeds in a row tasks go to the servers of streams, however little they read or write there."""
_CHOICES = [name for name, (weight, _) in WORKLOADS.items() for _ in range(weight)]


def draw(seed: int) -> Plan:
    """Return what a seed decides."""
    chosen = Draw(seed)
    name = chosen.random.choice(_CHOICES)
    drawn = WORKLOADS[name][1]
    if seed % 100 in LATER:
        name, drawn = LATER[seed % 100]
    chosen.plan.workload = name
    chosen.plan.near = seed % 100 in NEAR
    drawn(chosen)
    if seed % 100 in ANSWERED_BY_OTHERS:
        answered_by_others(chosen.plan)
    return chosen.plan


def answered_by_others(plan: Plan) -> None:
    """Have mirrors answer for streams, and somebody else for JetStream; mostly beside faults, and else in their place.

    A mirror of a queue is not here: it takes the messages.
    """
    dice = random.Random(f"{plan.seed} others")
    if dice.random() < 0.3:
        plan.faults.clear()
    for _ in range(dice.choice([0, 1, 4])):
        name = dice.choice(["strangers-answer", "strangers-answer", "strangers-ack"])
        at, lasts = dice.uniform(0.0, 30.0), dice.uniform(*FAULTS[name].lasts)
        plan.faults.append(Happening(at, name, lasts, dice.getrandbits(32), dice.choice([None, 0.0, 0.02])))
        if name == "strangers-ack":  # while the stream takes only some
            plan.faults.append(Happening(at, "too-many", lasts, dice.getrandbits(32), None))
    plan.faults.sort(key=lambda each: each.time)
    for stream in plan.streams:
        first, _, rest = stream["subjects"][0].partition(".")
        if rest == ">" and stream.get("retention", "limits") == "limits" and dice.random() < 0.8:
            stream["allow_direct"] = True
            server, lag = dice.randrange(plan.servers), dice.choice([0.0, 0.01, 1.0, 20.0])
            subject, to = dice.choice([(">", ">"), (f"{first}.a", f"{first}.a"), (f"{first}.>", "mirror.>")])
            plan.mirrors.append(MirrorSpec(stream["name"], subject, to, server, lag))
