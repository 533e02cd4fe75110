"""A run: one fault after another, and the verdict."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import mean

from tests.chaos.faults import Fault, Planned, Scene, plan
from tests.chaos.publisher import Ledger
from tests.chaos.stage import STALL_LIMIT, Kind, Stage, conclude, keep_logs, stage, watching
from tests.chaos.verdict import Verdict
from tests.chaos.watch import Watch
from tests.nats_py import wait_until


@dataclass(frozen=True)
class Arguments:
    """What the command line says of a run.

    Attributes:
        kind: of messages.
        seed: of everything that is chosen.
        count: of faults.
        faults: the kinds.
        master: Spark's.
        rate: messages a second.
        window: seconds of the duplicate window of OUT.
        limit: seconds after which no fault is begun.
        keep: where to leave the logs.
    """

    kind: Kind
    seed: int
    count: int
    faults: Sequence[Fault]
    master: str
    rate: float
    window: float
    limit: float | None
    keep: Path | None


@dataclass
class Outcome:
    """What a run has seen."""

    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)


def run(arguments: Arguments) -> int:
    """Do a run and print what it has found; 1 when that is anything bad."""
    began = time.monotonic()
    outcome = Outcome()
    kind = arguments.kind
    with stage(arguments.master, kind.options, arguments.keep, arguments.window, kind.target) as staged:
        staged.driver.named = kind.named
        publisher = kind.publisher(staged.cluster, arguments.rate)
        watch = watching(staged, publisher, kind.beside)
        try:
            staged.driver.start()
            watch.wait_for_progress(STALL_LIMIT)
            say(f"the query runs after {time.monotonic() - began:.0f} s")
            limit = began + arguments.limit if arguments.limit else None
            _strike(arguments, staged, publisher, watch, outcome, limit)
            outcome.problems += conclude(staged, publisher, watch)
            outcome.verdict = kind.compare(staged, publisher)
        finally:
            watch.close()
            if staged.beside:
                staged.beside.close()
            bad = bool(outcome.problems or staged.driver.ended) or not outcome.verdict.good
            logs = keep_logs(staged.logs) if bad and not arguments.keep else staged.logs
            lost_tasks = staged.driver.lost_tasks()
            print(_report(arguments, outcome, staged, watch, lost_tasks, time.monotonic() - began))
            if bad or arguments.keep:
                print(f"logs: {logs}", flush=True)
    return int(bad)


def _strike(
    arguments: Arguments, staged: Stage, publisher: Ledger, watch: Watch, outcome: Outcome, limit: float | None
) -> None:
    scene = Scene(
        staged.cluster, staged.driver, arguments.window, lambda: dict(publisher.published), restored=staged.restored
    )
    for number, planned in enumerate(plan(arguments.seed, arguments.count, arguments.faults), 1):
        if limit and time.monotonic() > limit:
            say("no further fault: the time is up")
            return
        watch.doing = f"{planned.fault.name} ({number})"
        began = time.monotonic()
        ended, losses = len(staged.driver.ended), len(staged.driver.losses)
        if not _survives(planned, scene, watch, outcome):
            return
        outcome.took[planned.fault.name].append(time.monotonic() - began)
        say(f"{number:4} {planned.fault.name:20} {time.monotonic() - began:5.1f} s")
        for sentence in staged.driver.ended[ended:]:
            say(f"     the query ended: {sentence}")
        for sentence in staged.driver.losses[losses:]:
            say(f"     the query ended, as it should: {sentence}")


def _survives(planned: Planned, scene: Scene, watch: Watch, outcome: Outcome) -> bool:
    """Whether the fault could be done and the query went on afterwards."""
    scene.random = Random(planned.seed)
    restored, losses = len(scene.restored), len(scene.driver.losses)
    scene.driver.losing = planned.fault.loses
    try:
        planned.fault.strike(scene)
        watch.wait_for_progress(STALL_LIMIT)
        scene.cluster.wait_until_whole(STALL_LIMIT)
        wait_until(lambda: not scene.driver.lenient, STALL_LIMIT)  # what comes next is to be an error again
        for each in scene.restored[restored:]:
            each.said.extend(scene.driver.losses[losses:])
    except Exception as error:
        outcome.problems.append(f"during {watch.doing}: {error}; {watch.copied} of {watch.given()} copied")
        return False
    return True


def say(line: str) -> None:
    """Print a line with the time, which logs have too."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _report(
    arguments: Arguments, outcome: Outcome, staged: Stage, watch: Watch, lost_tasks: int, seconds: float
) -> str:
    verdict, ended = outcome.verdict, staged.driver.ended
    lines = ["", f"{'fault':20} {'times':>5} {'mean s':>7} {'most s':>7}"]
    for name, took in sorted(outcome.took.items()):
        lines.append(f"{name:20} {len(took):5} {mean(took):7.1f} {max(took):7.1f}")
    figures = {
        "faults": sum(map(len, outcome.took.values())),
        "messages": verdict.messages,
        "acknowledged and not in IN": verdict.forgotten,
        "gone with an older copy": verdict.gone,
        "without a word": verdict.silent,
        "missed as logged": verdict.missed,
        "again after an error": verdict.again,
        "steps back meanwhile": verdict.steps_back,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "out of order": verdict.reordered,
        "tasks failed": lost_tasks,
        "queries ended by losses": len(staged.driver.losses),
        "queries ended by themselves": len(ended),
        "longest stall": f"{watch.longest_stall:.1f} s ({watch.stalled_while})",
        "master": arguments.master,
        "seed": arguments.seed,
        "seconds": f"{seconds:.0f}",
    }
    lines += ["", *(f"{name:28} {value}" for name, value in figures.items())]
    lines += [f"{count} times: {sentence}" for sentence, count in Counter(ended).most_common()]
    return "\n".join([*lines, *verdict.examples(), *outcome.problems])
