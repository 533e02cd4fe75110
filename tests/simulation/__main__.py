"""Simulated histories, each with a seed, the same one each time::

python -m tests.simulation                      # 500 of them, about a minute
python -m tests.simulation --seeds 20000 --jobs 2
python -m tests.simulation --seed 4711          # one, as a story
python -m tests.simulation --mutants            # known defects are put back, and have to be found
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS = HERE / "seeds.txt"
MUTANTS = HERE / "mutants"
USUAL = 500
MOST_OF_MUTANT = 2000
PORTION = 100
OUTSIDE = "Not in the simulated world"
"""Begins the lines of a patch that say why no history, or hardly any, shows its defect; a test does that it names."""


def known_seeds() -> list[int]:
    """Return the seeds that have found something, and are always run."""
    lines = SEEDS.read_text().splitlines() if SEEDS.exists() else []
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def play(seed: int) -> tuple[int, list[str], bool, Counter[str]]:
    """Play one; return what was found."""
    from tests.simulation.history import plan, run

    gc.disable()  # garbage is collected between histories, not within one
    outcome = run(plan(seed))
    if seed % 10 == 0:
        gc.collect()
    return seed, outcome.violations, outcome.model, outcome.figures


def _play_all(seeds: list[int], jobs: int) -> Iterator[tuple[int, list[str], bool, Counter[str]]]:
    if jobs == 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=2000) as pool:
        yield from pool.imap(play, seeds, chunksize=4)


def run_seeds(first: int, count: int, jobs: int) -> int:
    """Play histories; print what was found; return the exit code."""
    began = time.monotonic()
    seeds = [*known_seeds(), *range(first, first + count)]
    figures: Counter[str] = Counter()
    played = 0
    failed: list[int] = []
    for seed, violations, model, found in _play_all(seeds, jobs):
        played += 1
        figures.update(found)
        if violations:
            failed.append(seed)
            print(f"seed {seed}{' (the model is wrong)' if model else ''}: {violations[0]}", flush=True)
            if len(failed) >= 20:
                break
        if played % 1000 == 0:
            print(f"{played} histories, {len(failed)} of them failed", flush=True)
    took = time.monotonic() - began
    print(f"{played} histories in {took:.0f} s: {played / took * 60 / jobs:.0f} a minute on one core")
    if played:
        print("on average: " + ", ".join(f"{value / played:.1f} {name}" for name, value in figures.items()))
    if not failed:
        print("nothing was found")
        return 0
    print(f"{len(failed)} of them broke a promise: {', '.join(map(str, failed))}")
    show(failed[0], smaller=True)
    return 1


def show(seed: int, smaller: bool) -> int:
    """Print the story of a seed."""
    from tests.simulation.history import plan, run

    outcome = run(plan(seed))
    if outcome.violations and smaller:
        from tests.simulation.shrink import shrink

        outcome = shrink(outcome)
    print("\n".join(outcome.lines()))
    return 1 if outcome.violations else 0


# Mutants


def run_mutants(names: list[str], first: int, jobs: int) -> int:
    """Put defects back, one at a time, and look after how many seeds each is found."""
    patches = sorted(MUTANTS.glob("*.patch"))
    if names:
        patches = [each for each in patches if each.stem in names]
    missed = []
    played = 0
    print(f"{'defect':<40} {'seeds':>6}  what is found")
    for patch in patches:
        outside = patch.read_text().partition("diff --git")[0].partition(OUTSIDE)[2]
        played += 1
        if not outside:
            after, why = _seeds_until_found(patch, first, jobs)
        else:
            after, why = _found_by_test(patch, re.findall(r"tests/\S+\.py", outside))
        print(f"{patch.stem:<40} {after or 'NONE':>6}  {why[:150]}", flush=True)
        if after is None:
            missed.append(patch.stem)
    print(f"{played - len(missed)} of {played} were found by a test or within {MOST_OF_MUTANT} seeds")
    return 1 if missed or not patches else 0


def _seeds_until_found(patch: Path, first: int, jobs: int) -> tuple[str | None, str]:
    """Return after how many seeds a defect is found, or ``known`` where one of those shows it that are always run."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(ROOT / "spark_nats", Path(directory, "spark_nats"))
        with patch.open() as text:
            done = subprocess.run(["patch", "-p1", "-s"], cwd=directory, stdin=text, check=False, capture_output=True)
        if done.returncode:
            return None, f"it does not fit: {done.stdout.decode()}"
        seed, why = _find(directory, first, 0, jobs)
        if seed is not None:
            return "known", why
        start = first
        while start < first + MOST_OF_MUTANT:
            seed, why = _find(directory, start, PORTION * jobs, jobs)
            if seed is None:
                start += PORTION * jobs
            elif _find(str(ROOT), seed, 1, 1)[0] is not None:
                start = seed + 1  # which breaks a promise without the defect too
            else:
                return str(seed - first + 1), why
    return None, ""


def _found_by_test(patch: Path, tests: list[str]) -> tuple[str | None, str]:
    """Return that a defect is found by a test in a file, and by which one."""
    with tempfile.TemporaryDirectory() as directory:
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
            if (ROOT / name).is_file():
                Path(directory, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(directory, name))
        Path(directory, ".tools").symlink_to(ROOT / ".tools")
        with patch.open() as text:
            subprocess.run(["patch", "-p1", "-s"], cwd=directory, stdin=text, check=True, capture_output=True)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--within", "100000", *tests]
        done = subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True)
    failed = re.search(r"^FAILED \S+?::(\S+)", done.stdout, re.MULTILINE)
    return ("test", f"{' '.join(tests)}: {failed[1]}") if failed else (None, done.stdout[-200:].strip())


def _find(directory: str, first: int, count: int, jobs: int) -> tuple[int | None, str]:
    """Play histories with the package in a directory until one breaks a promise, in processes of their own.

    Without a count these are the known seeds.
    """
    environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.simulation", "--until-found", str(count), "--first", str(first)]
    done = subprocess.run(
        [*command, "--jobs", str(jobs)], cwd=directory, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode == 1 and done.stdout.startswith("found "):
        _, seed, why = done.stdout.strip().split(" ", 2)
        return int(seed), why
    if done.returncode:
        return first, f"nothing runs any more: {done.stderr.strip().rpartition(chr(10))[2]}"
    return None, ""


def until_found(first: int, count: int, jobs: int) -> int:
    """Play histories until one breaks a promise."""
    for seed, violations, model, _ in _play_all(list(range(first, first + count)) or known_seeds(), jobs):
        if violations and not model:
            print(f"found {seed} {violations[0]}")
            return 1
    return 0


def fresh(first: int, count: int) -> int:
    """Play histories; print each that breaks a promise as a line for the known seeds."""
    for seed, violations, model, _ in _play_all(list(range(first, first + count)), 1):
        if violations:
            print(f"{seed}  # {'the model is wrong: ' if model else ''}{violations[0]}", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulated histories.")
    parser.add_argument("--seed", type=int, help="print the story of this one")
    parser.add_argument("--shrink", action="store_true", help="with --seed: make it smaller first, if it fails")
    parser.add_argument("--seeds", type=int, default=USUAL, help="how many to play")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="put known defects back, which must be found")
    parser.add_argument("--until-found", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fresh", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.seed is not None:
        return show(given.seed, given.shrink)
    if given.mutants is not None:
        return run_mutants(given.mutants, given.first, given.jobs)
    if given.until_found is not None:
        return until_found(given.first, given.until_found, given.jobs)
    if given.fresh is not None:
        return fresh(given.first, given.fresh)
    return run_seeds(given.first, given.seeds, given.jobs)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # so that sets of texts have the same order each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
