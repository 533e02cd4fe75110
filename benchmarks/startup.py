"""What every load(), save() and query costs before its first row: the Python processes, and what they import.

Spark starts a Python process for each step of a data source (looking it up, creating it, planning, reading, writing,
committing), keeps it for the next time, and ends it after a minute without work. So each step is measured twice: in
processes that begin with it, and in processes that have done it before.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyspark

from benchmarks.environment import Server, spark_cpu_seconds, start_server
from benchmarks.measure import Facts, progress
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.trivial import ROWS, Trivial

_OURS, _TRIVIAL = "spark-nats", "trivial source"
_SPARKS = "with what Spark's planning processes import"
_ZIP = str(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")
_HEAVIEST = 8
_PATIENCE = 120.0


def run(settings: Settings) -> Iterator[Facts]:
    """Measure everything."""
    if settings.quick:
        settings = replace(settings, rounds=1)
    with start_server(settings) as server:
        with server.stream("plan.>") as stream:
            yield _imports(settings, server, stream)
        # In this order, since the first one warms the JVM for the second: there every warm-up costs as much as a round.
        for title, reuse in (("in Python processes that were kept", True), ("in new Python processes", False)):
            with start_spark({"spark.python.worker.reuse": reuse}) as session:
                yield _steps(settings, server, session, title, warm_up=reuse)


# The import alone


def _imports(settings: Settings, server: Server, stream: str) -> Facts:
    facts = Facts("startup: CPU time of one Python process, without Spark")
    spark = "import pyspark.daemon, pyspark.sql.worker.utils\n"
    imported = spark + "from spark_nats.datasource import NatsDataSource\n"
    planned = (
        "import json, sys\nfrom pyspark.sql.types import StructType\n"
        "schema = StructType().add('subject', 'string').add('payload', 'binary')\n"
        "NatsDataSource(json.load(sys.stdin)).reader(schema).partitions()\n"
    )
    options = json.dumps({**server.options, "stream": stream})  # by standard input: they may hold a password
    commands = {
        "Python alone": "pass",
        _SPARKS: spark,
        "with spark_nats.datasource too": imported,
        "with planning a batch read too": imported + planned,
    }
    cases = [(name, command, "") for name, command in commands.items()]
    cases.insert(1, (f"{_SPARKS} out of pyspark.zip, where Spark has them do it", spark, _ZIP))
    for name, command, path in cases:
        progress(f"{facts.title}: {name}")
        found = statistics.median(_cpu_of(command, options, path) for _ in range(settings.rounds + 1))
        facts.add(name, found * 1000, "ms")
    times = _import_times(imported + planned, options)
    for package, seconds in sorted(times.items(), key=lambda each: -each[1])[:_HEAVIEST]:
        facts.add(f"imports: {package}", seconds * 1000, "ms")
    facts.remarks.append(
        "CPU time, medians; imports: time on the clock by package in the last of these processes, from one run with "
        "python -X importtime, without what a package imports of others"
    )
    return facts


def _cpu_of(command: str, options: str, path: str) -> float:
    environment = {**os.environ, "PYTHONPATH": path + os.pathsep + os.environ.get("PYTHONPATH", "")}
    process = subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as to_process:
        to_process.write(options)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"python -c {command!r} failed")
    return used.ru_utime + used.ru_stime


def _import_times(command: str, options: str) -> dict[str, float]:
    """Return the seconds that each package's own modules took to be imported."""
    asked = [sys.executable, "-X", "importtime", "-c", command]
    done = subprocess.run(asked, input=options, capture_output=True, text=True, check=True)
    found: dict[str, float] = defaultdict(float)
    for line in done.stderr.splitlines():
        fields = line.removeprefix("import time:").split("|")
        if len(fields) == 3 and fields[0].strip().isdigit():
            package = fields[2].strip().partition(".")[0]
            name = "the standard library" if package in sys.stdlib_module_names else package
            found[name] += int(fields[0]) / 1e6
    return found


# With Spark


class _Step(NamedTuple):
    """One thing a user does.

    Attributes:
        name: how the table calls it.
        ours: does it with our data source.
        trivial: does it with the trivial one.
        begins: whether the first time is another than those that follow.
    """

    name: str
    ours: Callable[[], object]
    trivial: Callable[[], object]
    begins: bool = False


def _steps(settings: Settings, server: Server, session: Session, title: str, warm_up: bool) -> Facts:
    facts = Facts(f"startup: CPU time {title}")
    session.spark.dataSource.register(Trivial)
    with ExitStack() as stack:
        steps = [*_batch_steps(server, session, stack), *_stream_steps(server, session, stack)]
        for step in steps:
            # A query's workers read in one micro-batch and write in another: after two each has what both need.
            _measure(facts, step, settings.rounds, warm_ups=2 if step.begins else int(warm_up))
    facts.remarks += [
        "of the JVM and all Python processes below it; medians of alternating rounds, a ratio is the median of theirs",
        "the trivial source reads ten constant rows, or a stream of as many rows as a file has bytes, and drops what "
        "is written: it needs no server and imports nothing",
        "the query with nothing new: started with trigger availableNow, one empty trigger, ended; the micro-batch: one "
        f"of {ROWS} rows in a query that is running already",
    ]
    return facts


def _measure(facts: Facts, step: _Step, rounds: int, warm_ups: int) -> None:
    spent: dict[str, list[dict[str, float]]] = {_OURS: [], _TRIVIAL: []}
    for number in range(-warm_ups, rounds):
        for name, action in ((_OURS, step.ours), (_TRIVIAL, step.trivial))[:: 1 if number % 2 else -1]:
            progress(f"{facts.title}: {step.name}, {name}, round {number + 1} of {rounds}")
            before = spark_cpu_seconds()
            action()
            after = spark_cpu_seconds()
            if number >= 0:
                spent[name].append({kind: after[kind] - before[kind] for kind in after})
    for name, runs in spent.items():
        for kind in ("python", "java"):
            side = {"python": "Python", "java": "JVM"}[kind]
            facts.add(f"{step.name}: {name}, {side}", statistics.median(r[kind] for r in runs) * 1000, "ms")
    pairs = zip(spent[_OURS], spent[_TRIVIAL], strict=True)
    ratios = [sum(ours.values()) / max(sum(trivial.values()), 0.01) for ours, trivial in pairs]
    facts.add(f"{step.name}: ratio", statistics.median(ratios), "x")


def _batch_steps(server: Server, session: Session, stack: ExitStack) -> list[_Step]:
    spark = session.spark
    stream = stack.enter_context(server.stream("few.>"))
    server.fill(stream, "few.", ROWS, 128)
    rows = spark.range(0, ROWS, 1, 1).selectExpr("'kept.now' AS subject", "cast('x' AS BINARY) AS payload")
    target = stack.enter_context(server.stream("kept.>"))

    def load() -> Any:
        return spark.read.format("nats").options(**server.options, stream=stream).load()

    def load_trivial() -> Any:
        return spark.read.format(Trivial.name()).load()

    def count(frame: Any) -> None:
        if (found := frame.count()) != ROWS:
            raise AssertionError(f"{found} rows were counted instead of {ROWS}")

    def save(form: str, **options: str) -> None:
        rows.write.format(form).options(**options).mode("append").save()

    ours, trivial = load(), load_trivial()
    return [
        _Step("load()", load, load_trivial),
        _Step(f"count of {ROWS} rows", lambda: count(ours), lambda: count(trivial)),
        _Step(
            f"save() of {ROWS} rows",
            lambda: save("nats", **server.options, stream=target),
            lambda: save(Trivial.name()),
        ),
    ]


def _stream_steps(server: Server, session: Session, stack: ExitStack) -> list[_Step]:
    spark = session.spark
    source, target = (stack.enter_context(server.stream(f"{name}.>")) for name in ("from", "to"))
    file = Path(session.directory, f"rows-{source}")
    file.touch()

    def query(name: str, form: str, reading: dict[str, str], writing: dict[str, str]) -> Any:
        frame = spark.readStream.format(form).options(**reading).load()
        moved = frame.selectExpr("concat('to.', subject) AS subject", "payload")
        checkpoint = f"{session.directory}/{name}-{source}"
        return moved.writeStream.format(form).options(**writing, checkpointLocation=checkpoint)

    def ours(name: str) -> Any:
        reading = {**server.options, "stream": source, "startingOffsets": "earliest"}
        return query(name, "nats", reading, {**server.options, "stream": target})

    def trivial(name: str) -> Any:
        return query(name, Trivial.name(), {"rows": str(file)}, {})

    def add_rows() -> None:
        server.fill(source, "from.", ROWS, 128)

    def add_trivial_rows() -> None:
        with file.open("ab") as opened:
            opened.write(b"x" * ROWS)

    return [
        _Step(
            "query with nothing new",
            lambda: _run_once(ours("idle")),
            lambda: _run_once(trivial("idle-trivial")),
            begins=True,  # with a micro-batch of no rows
        ),
        _Step(
            f"micro-batch of {ROWS} rows",
            _MicroBatch(ours("busy"), add_rows, stack),
            _MicroBatch(trivial("busy-trivial"), add_trivial_rows, stack),
            begins=True,
        ),
    ]


def _run_once(writer: Any) -> None:
    if not writer.trigger(availableNow=True).start().awaitTermination(_PATIENCE):
        raise TimeoutError("the query did not end")


class _MicroBatch:
    """Has a running query read some rows, each time it is called; the first call starts the query.

    Args:
        writer: the query.
        add_rows: gives its source :data:`ROWS` rows.
        stack: ends the query.
    """

    def __init__(self, writer: Any, add_rows: Callable[[], None], stack: ExitStack) -> None:
        self._writer = writer
        self._add_rows = add_rows
        self._stack = stack
        self._query: Any = None
        self._rows = 0

    def __call__(self) -> None:
        if self._query is None:
            self._query = self._writer.start()
            self._stack.callback(self._query.stop)
        self._add_rows()
        self._rows += ROWS
        deadline = time.monotonic() + _PATIENCE
        while sum(progress.numInputRows for progress in self._query.recentProgress) < self._rows:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the rows were not read: {self._query.exception()}")
            time.sleep(0.1)
