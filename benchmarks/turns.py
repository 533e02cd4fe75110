"""Another commit and this one in turns, on one server: what a change costs.

    $ git worktree add /tmp/before SOME_COMMIT
    $ .venv/bin/python -m benchmarks.turns /tmp/before --rounds 12

Each round does the same work with both, one after the other, and changes who begins. So a ratio tells more than two
runs of a benchmark do. The worker of a commit imports that commit's package; the installed packages are the same.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parents[1]
_PAYLOAD = 128  # bytes
_WRITTEN, _READ, _SMALL = 200_000, 400_000, 60  # rows, messages, micro-batches of ten rows


class Work(NamedTuple):
    """What is measured.

    Attributes:
        options: how rows are written; None where a stream is read.
        config: configuration of the stream.
        batches: micro-batches of ten rows each; 0 for one batch of all rows.
    """

    options: dict[str, str] | None
    config: dict[str, Any] = {}  # noqa: RUF012 - never changed
    batches: int = 0


_EXACT = {"deduplicate": "exact"}
WORKS = {
    "read": Work(None),
    "core": Work({}),
    "unrecognized": Work({"deduplicate": "false"}),
    "window": Work({"deduplicate": "window"}),
    "exact": Work(_EXACT),
    "last-values": Work({"deduplicate": "window"}, {"max_msgs_per_subject": 1}),
    "small": Work(_EXACT, batches=_SMALL),
}


class Seconds(NamedTuple):
    """What a piece of work took.

    Attributes:
        wall: by the clock.
        client: CPU time of the worker.
        server: CPU time of the server.
    """

    wall: float
    client: float
    server: float


def main() -> None:
    """Measure what the arguments name, and print the ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__.splitlines()[0])
    parser.add_argument("other", help="folder with a checkout of the other commit")
    parser.add_argument("--rounds", type=int, default=8, help="how often each works (8)")
    parser.add_argument("--only", default=",".join(WORKS), metavar="WORK,...", help=f"some of: {', '.join(WORKS)}")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := [name for name in names if name not in WORKS]:
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(WORKS)}")
    if not Path(given.other, "benchmarks", "paths.py").is_file():
        parser.error(f"{given.other} has no checkout of this project")
    _measure(Path(given.other).resolve(), names, given.rounds)


def _measure(other: Path, names: list[str], rounds: int) -> None:
    from benchmarks.environment import Server, cpu_seconds
    from spark_nats.embedded import NatsServer

    with NatsServer() as embedded:
        server = Server(embedded.url, embedded.monitoring_url, embedded.pid)
        with _Worker(other, server.url) as before, _Worker(_HERE, server.url) as now:
            print(f"{'':12}  {'before':>9}   now / before: median (half of the rounds)")
            for name in names:
                found: dict[_Worker, list[Seconds]] = {before: [], now: []}
                for number in range(rounds + 1):
                    for worker in (before, now) if number % 2 else (now, before):
                        spent = cpu_seconds([server.pid])
                        wall, client = worker.do(name)
                        if number:  # the first round warms up
                            found[worker].append(Seconds(wall, client, cpu_seconds([server.pid]) - spent))
                print(_line(name, found[before], found[now]), flush=True)


def _line(name: str, before: list[Seconds], now: list[Seconds]) -> str:
    cells = []
    for side in Seconds._fields:
        ratios = sorted(
            getattr(b, side) / getattr(a, side) for a, b in zip(before, now, strict=True) if getattr(a, side)
        )
        if ratios:
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            cells.append(f"{side} {statistics.median(ratios):.3f} ({low:.2f} - {high:.2f})")
    return f"{name:12}  {statistics.median(each.wall for each in before):7.3f} s   {'   '.join(cells)}"


class _Worker:
    """A process that works with the package of one checkout."""

    def __init__(self, tree: Path, url: str) -> None:
        command = [sys.executable, "-P", __file__, url]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def do(self, name: str) -> tuple[float, float]:
        """Do a piece of work; return its seconds by the clock, and of CPU time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended with status {self._process.wait()}; see above")
        wall, client = json.loads(answer)
        return float(wall), float(client)


def _work(url: str) -> None:
    """Do what the lines of the standard input name, with the package of the current folder."""
    import pyarrow as pa

    from benchmarks import data, paths
    from benchmarks.environment import Server, connect
    from spark_nats.jetstream import JetStream
    from spark_nats.kinds import queries as parsing
    from spark_nats.kinds.streams.write.partitions import write_partition
    from spark_nats.kinds.streams.write.tasks import WriteTask
    from spark_nats.protocol.api import Api

    server, own = Server(url, None), f"TURNS_{os.getpid()}"
    with connect(url) as connection:
        name, notes = f"KV_{own}", {"subjects": [f"$KV.{own}.>"], "max_msgs_per_subject": 1}
        JetStream(connection).request(Api.STREAM_CREATE, name, body={"name": name, **notes})
    rows = dict(zip(("subject", "payload"), data.columns(_WRITTEN, _PAYLOAD, "turns."), strict=True))
    table = pa.RecordBatch.from_pydict(rows)
    queries = iter(range(1 << 30))
    # Earlier commits have another name for it.
    parse = getattr(parsing, "parse_write_options" if hasattr(parsing, "parse_write_options") else "parse_write")

    def write(work: Work, stream: str | None) -> None:
        named = {} if stream is None else {"stream": stream, "stateBucket": own}
        options = parse({**server.options, **named, **(work.options or {})}, streaming=stream is not None)
        query = f"{own}_{next(queries)}"
        size = 10 if work.batches else 10_000
        for batch in range(work.batches or 1):
            parts: Iterator[Any] = (
                table.slice(start, size) for start in range(0, size if work.batches else _WRITTEN, size)
            )
            # By position: the last field has another name in earlier commits.
            task = WriteTask(query, str(batch), 0, 0, (), False, "run", batch + 1) if stream else WriteTask("", None, 0)
            write_partition(options, task, parts)

    def timed(what: Callable[[], object]) -> tuple[float, float]:
        gc.collect()
        wall, client = time.perf_counter(), time.process_time()
        what()
        return time.perf_counter() - wall, time.process_time() - client

    with server.stream(f"{own}.read.>") as to_read:
        server.fill(to_read, f"{own}.read.", _READ, _PAYLOAD)
        for line in sys.stdin:
            name = line.strip()
            work = WORKS[name]
            if name == "read":
                found = timed(lambda: paths.read_stream(url, to_read, 1, _READ + 1))
            elif name == "core":
                found = timed(lambda: write(work, None))  # noqa: B023 - called at once
            else:
                with server.stream("turns.>", **work.config) as stream:
                    found = timed(lambda: write(work, stream))  # noqa: B023
            print(json.dumps(found), flush=True)  # once the stream is deleted


if __name__ == "__main__":
    if __package__:
        main()
    else:
        _work(sys.argv[1])
