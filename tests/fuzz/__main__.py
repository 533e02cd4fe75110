"""Search for bytes that break a target, with atheris: ``make fuzz ARGS="--seconds 600 --only decoder"``.

Each target begins with ``tests/fuzz/corpus/<target>`` and runs in a process of its own. What breaks it is written to
``tests/fuzz/found``; mend it, and move the input into the corpus, which ``make test`` goes through.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
_TURN = 60  # seconds
NAMES = sorted(path.name for path in (FOLDER / "corpus").iterdir())


def main() -> int:
    """Run the targets one after another for equal times; 1 when one of them broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together (60)")
    parser.add_argument("--only", choices=NAMES, action="append", help="a target; may be repeated")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.run:
        _fuzz(arguments.run, rest)
    names = arguments.only or NAMES
    broken = [name for name in names if not _placement(name, max(1, arguments.seconds // len(names)))]
    if broken:
        print(f"broken: {', '.join(broken)}; the inputs are in {FOLDER / 'found'}")
    return bool(broken)


def _placement(name: str, seconds: int) -> bool:
    """Run one target for a time and tell whether it held."""
    found = FOLDER / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    executions = 0
    with tempfile.TemporaryDirectory() as learnt:
        command = [sys.executable, "-m", "tests.fuzz", "--run", name, learnt, str(FOLDER / "corpus" / name)]
        command += ["-max_len=8192", "-timeout=10", "-rss_limit_mb=8192", "-malloc_limit_mb=512"]
        for start in range(0, seconds, _TURN):  # atheris keeps about a kilobyte an execution
            turn = min(_TURN, seconds - start)
            try:
                done = subprocess.run(
                    [*command, f"-max_total_time={turn}", f"-artifact_prefix={found}/"],
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    timeout=turn + 120,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                print(f"{name}: did not end in time")
                return False
            runs = re.search(r"Done (\d+) runs", done.stderr)
            if done.returncode or not runs:
                print(f"{name}: broken\n{done.stderr[-4000:]}")
                return False
            executions += int(runs[1])
    print(f"{name}: held, {executions:,} executions in {seconds} s", flush=True)
    return True


def _fuzz(name: str, rest: list[str]) -> None:
    """Hand one target over to libFuzzer, which ends the process."""
    import atheris  # no wheel for every platform, so only here

    with atheris.instrument_imports(include=["spark_nats"]):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *rest], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
