"""Luck, which `make test` does without: the same properties with fresh examples, and simulated histories beside them.

`make explore ARGS="--minutes 10"` prints each find as it comes, ready for the code: an `@example(...)` for the property
that it is about, or a line for `tests/simulation/seeds.txt`. It ends with status 1 if there was one, unless it is asked
to `--report` only.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from random import Random

import pytest

ROOT = Path(__file__).parent.parent
_EXAMPLE = re.compile(
    r"^(?:E {3})?\s*(?:Falsifying example|Failing test case): \w+\(\n(.*?)^(?:E {3})?\s*\)$", re.M | re.S
)
_FOUND, _PLAYED = "found: ", "played: "


def example_in(text: str) -> str | None:
    """The arguments of a failed property, as the lines of an `@example`; None where Hypothesis names none."""
    if (found := _EXAMPLE.search(text)) is None:
        return None
    lines = [line.removeprefix("E   ") for line in found[1].splitlines()]
    arguments = textwrap.dedent("\n".join(line.partition("  # or any other")[0] for line in lines))
    return f"@example(\n{textwrap.indent(arguments, '    ')}\n)"


class Explorer:
    """A plugin of pytest: properties in any order until the time is up, and what they find at once."""

    def __init__(self, seed: int, until: float) -> None:
        self._seed = seed
        self._until = until
        self._session: pytest.Session | None = None
        self.properties = 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        Random(self._seed).shuffle(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            text = example_in(report.longreprtext) or report.longreprtext
            print(f"{_FOUND}{report.nodeid}, with --hypothesis-seed={self._seed}\n{text}\n", flush=True)
        self.properties += report.when == "call"
        if time.time() > self._until and self._session is not None:
            self._session.shouldstop = "the time is up"


def with_properties() -> list[Path]:
    """The files that have any."""
    return sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "@given(" in path.read_text())


def explore_properties(files: list[Path], seed: int, until: float) -> int:
    """Run the properties of files once, in this process. Returns 0 whatever was found."""
    explorer = Explorer(seed, until)
    plugins = [f"-p{name}" for name in ("tests.repeatable", "no:xdist", "no:cacheprovider", "no:terminal")]
    chosen = ["-m", "hypothesis and not spark", "--hypothesis-profile=explore", f"--hypothesis-seed={seed}"]
    ended = pytest.main(
        [*map(str, files), *chosen, *plugins, "--override-ini=addopts=", "--timeout=0"], plugins=[explorer]
    )
    print(f"{_PLAYED}{explorer.properties}", flush=True)
    return 0 if ended in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) else int(ended)


class Finds:
    """What was found so far; each is printed once."""

    def __init__(self) -> None:
        self.names = set[str]()
        self.properties = self.histories = 0
        self.broken = list[str]()
        self._lock = threading.Lock()

    def take(self, name: str, text: str) -> None:
        with self._lock:
            if name not in self.names:
                self.names.add(name)
                print(text, flush=True)

    def run(self, command: list[str], until: float) -> str | None:
        """What a process of ours prints; None if it failed, which is kept."""
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        left = max(60.0, until - time.time() + 300)
        try:
            done = subprocess.run(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=left,
            )
        except subprocess.TimeoutExpired:
            self.broken.append(f"{' '.join(command)} did not end")
            return None
        if done.returncode:
            self.broken.append(f"{' '.join(command)} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
            return None
        return done.stdout

    def properties_until(self, until: float) -> None:
        """Run the properties with one seed after another."""
        while time.time() < until and not self.broken:
            seed = secrets.randbelow(2**32)
            said = self.run(["tests.explore", "--properties", str(seed), str(until)], until) or ""
            for find in said.split(_FOUND)[1:]:
                find = find.partition(_PLAYED)[0]
                self.take(find.partition(",")[0], f"\n{find.strip()}")
            self.properties += int(said.rpartition(_PLAYED)[2] or 0)

    def histories_until(self, until: float) -> None:
        """Play simulated histories from a seed that nobody has played."""
        first = 10**7 + secrets.randbelow(10**9)
        while time.time() < until and not self.broken:
            said = self.run(["tests.simulation", "--fresh", "50", "--first", str(first)], until) or ""
            for line in said.splitlines():
                self.take(line.partition(" ")[0], f"\n{line}\n(a line for tests/simulation/seeds.txt)")
            self.histories, first = self.histories + 50, first + 50


def explore(minutes: float) -> Finds:
    """Explore on two cores; print what is found."""
    finds, until = Finds(), time.time() + minutes * 60
    both = [threading.Thread(target=each, args=(until,)) for each in (finds.properties_until, finds.histories_until)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    return finds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explore", description="Look for what the tests do not show.")
    parser.add_argument("--minutes", type=float, default=5.0, help="for how long")
    parser.add_argument("--report", action="store_true", help="end with status 0 whatever is found")
    parser.add_argument("--properties", nargs=2, metavar=("SEED", "UNTIL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.properties is not None:
        return explore_properties(with_properties(), int(given.properties[0]), float(given.properties[1]))
    finds = explore(given.minutes)
    for why in finds.broken:
        print(f"\n{why}")
    print(f"\n{finds.properties:,} properties with fresh examples, {finds.histories:,} histories: ", end="")
    print(f"{len(finds.names)} finds" if finds.names else "nothing was found")
    return 2 if finds.broken else int(bool(finds.names) and not given.report)


if __name__ == "__main__":
    sys.exit(main())
