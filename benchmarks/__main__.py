"""Run the benchmarks, print their tables and keep them as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import committed, environment
from benchmarks.measure import progress
from benchmarks.settings import Settings
from spark_nats.options import options_of_urls

SUITES = ("codec", "client", "filters", "spark", "queues", "startup", "cost")
ON_REQUEST = (
    "reads",
    "writes",
    "publishing",
    "small",
    "many",
    "queries",
    "sizing",
    "cluster",
    "near",
    "scale",
    "large",
    "websocket",
    "far",
    "kafka",
)  # for the documentation; the last two need a download of their own
_NAMES = ", ".join([*SUITES, *ON_REQUEST])
GROUNDS = ("keys", "streams", "consumers", "bytes", "copying")  # of the suite large
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Do what the command line says."""
    arguments = _parse()
    rounds = arguments.rounds or (2 if arguments.quick else 3)
    settings = Settings(arguments.quick, rounds, arguments.servers, arguments.budget, tuple(arguments.grounds))
    started = datetime.now().astimezone()
    document: dict[str, Any] = {
        "started": started.isoformat(timespec="seconds"),
        "quick": settings.quick,
        "rounds": rounds,
        "servers": options_of_urls(settings.servers)["servers"] if settings.servers else "embedded",
        "machine": environment.machine(),
        "versions": environment.versions(settings),
        "suites": {},
        "tables": [],
    }
    for part in ("machine", "versions"):
        print(", ".join(f"{key} {value}" for key, value in document[part].items()))
    print(f"{rounds} rounds, contenders alternating; medians; a ratio is the median of the rounds' ratios\n")
    path = arguments.json or RESULTS / f"{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    reached: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for suite in arguments.only:
        since = time.monotonic()
        for table in importlib.import_module(f"benchmarks.{suite}").run(settings):
            progress("")
            print(table.render(), flush=True)
            document["tables"].append(table.to_json())
            for row in table.judged():
                for verdict in row.verdicts:
                    reached[verdict.reached].append(f"{table.title}, {row.name}: {verdict.target}")
            document["suites"][suite] = {"seconds": round(time.monotonic() - since, 1)}
            document["targets"] = {"reached": reached[True], "missed": reached[False], "not comparable": reached[None]}
            # After each table: what is measured is kept, whatever becomes of the next one.
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for words, verdict in (("reached", True), ("missed", False), ("without their counterpart here", None)):
        print(f"{len(reached[verdict])} targets {words}")
        if verdict is not True:
            print("".join(f"  {line}\n" for line in reached[verdict]), end="")
    if not settings.servers:  # how far away others are, ratios tell as well
        known = committed.read()
        print("".join(f"{line}\n" for line in committed.comparison(known, document)), end="")
        if arguments.commit:
            committed.write(committed.merged(known, document))
            print(f"written to {committed.COMMITTED}")
    print(f"written to {path}")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, with less data")
    parser.add_argument("--servers", metavar="URL", help="a server with JetStream, instead of an embedded one")
    parser.add_argument("--only", type=_suites, default=SUITES, metavar="SUITE,...", help=f"some of: {_NAMES}")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds to measure (3, or 2 with --quick, of which Spark gets one)"
    )
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="leave out what begins later (only the suite scale)"
    )
    parser.add_argument(
        "--grounds",
        type=_grounds,
        default=(),
        metavar="GROUND,...",
        help=f"some of the suite large: {', '.join(GROUNDS)} (default: all)",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the results")
    parser.add_argument(
        "--commit",
        action="store_true",
        help=f"put the ratios into {committed.COMMITTED.name}, to which runs are compared",
    )
    arguments = parser.parse_args()
    if arguments.commit and arguments.servers:
        parser.error("--commit: results of other servers are not for comparison")
    return arguments


def _suites(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - {*SUITES, *ON_REQUEST}):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {_NAMES}")
    return names


def _grounds(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - {*GROUNDS}):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(GROUNDS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
