"""Hit a streaming query with faults and check that no message is lost, doubled or out of order."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spark_nats.options.values import read_duration
from tests.chaos.cluster import DEFAULT_WINDOW
from tests.chaos.core import CORE
from tests.chaos.faults import CORE_FAULTS, FAULTS, Fault, faults_for
from tests.chaos.run import Arguments, run
from tests.chaos.soak import soak
from tests.chaos.stage import STREAM
from tests.chaos.targets import TARGETS

_RATE = 300.0
_SOAK_RATE = 1000.0


def main() -> int:
    """Do what the command line says."""
    parser = _parser()
    arguments = parser.parse_args()
    table: Sequence[Fault] = CORE_FAULTS if arguments.core else FAULTS
    if arguments.list:
        print("\n".join(fault.name for fault in table))
        return 0
    if arguments.soak:
        return soak(arguments.soak, arguments.rate or _SOAK_RATE, arguments.master, arguments.keep)
    if arguments.target != "stream":
        table = tuple(fault for fault in table if not fault.loses)
    try:
        faults = faults_for(arguments.master, arguments.only, table)
    except ValueError as error:
        parser.error(str(error))
    return run(
        Arguments(
            kind=CORE if arguments.core else TARGETS.get(arguments.target, STREAM),
            seed=arguments.seed,
            count=arguments.faults,
            faults=faults,
            master=arguments.master,
            rate=arguments.rate or _RATE,
            window=arguments.window,
            limit=arguments.limit,
            keep=arguments.keep,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is chosen by chance (1)")
    parser.add_argument("--faults", type=int, default=10, metavar="N", help="how many (10)")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="KIND,...", help="only these faults")
    parser.add_argument("--list", action="store_true", help="list the faults and end")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="begin no fault after so long")
    parser.add_argument(
        "--master", default="local[2,4]", help="Spark's: local[2], local[2,4] (the default) or local-cluster[2,1,1024]"
    )
    parser.add_argument(
        "--target",
        choices=["stream", *TARGETS],
        default="stream",
        help="what the query writes into: a stream (the default), several, a work queue that is drained meanwhile, or "
        "a bucket",
    )
    parser.add_argument("--core", action="store_true", help="messages of core NATS, and not of a stream")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="no faults but restarts, and does anything grow?")
    parser.add_argument("--rate", type=float, metavar="N", help=f"messages a second ({_RATE:g}; soak {_SOAK_RATE:g})")
    parser.add_argument(
        "--window",
        type=read_duration,
        default=DEFAULT_WINDOW,
        metavar="TIME",
        help="duplicate window of the stream that is written to, such as 2s (2m)",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs of servers and drivers there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
