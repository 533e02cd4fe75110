"""Making a failing history smaller: fewer faults, then fewer rows, then simpler options."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.simulation.history import Outcome, Plan, run

MOST_RUNS = 250


def shrink(outcome: Outcome, most: int = MOST_RUNS, play: Callable[[Plan], Outcome] = run) -> Outcome:
    """Return the smallest history that was found to break a promise of the same kind.

    Args:
        outcome: one that breaks a promise.
        most: histories that are tried at most.
        play: plays one.
    """
    model, left = outcome.model, most
    kind = _kind(outcome)

    def better(plan: Plan) -> bool:
        nonlocal outcome, left
        if not left:
            return False
        left -= 1
        found = play(plan)
        if found.violations and found.model is model and _kind(found) == kind:
            outcome = found
            return True
        return False

    progress = True
    while progress and left:
        progress = False
        for smaller in (_fewer_faults, _fewer_parts, _fewer_rows, _simpler):
            while left and any(better(plan) for plan in smaller(outcome.plan)):
                progress = True
    return outcome


def _kind(outcome: Outcome) -> str:
    """Return which promise is broken, without names and numbers."""
    first = outcome.violations[0] if outcome.violations else ""
    return "".join(each for each in first.partition(": ")[2] or first if not each.isdigit())[:24]


def _fewer_faults(plan: Plan) -> Iterator[Plan]:
    count = len(plan.faults)
    size = max(1, count // 2)
    while count and size:
        for start in range(0, count, size):
            smaller = plan.copy()
            del smaller.faults[start : start + size]
            yield smaller
        size //= 2
    for i in range(len(plan.acts)):
        smaller = plan.copy()
        del smaller.acts[i]
        yield smaller


def _fewer_parts(plan: Plan) -> Iterator[Plan]:
    for part in ("programs", "publishers", "queries", "mirrors"):
        for i in range(len(getattr(plan, part))):
            smaller = plan.copy()
            del getattr(smaller, part)[i]
            yield smaller


def _fewer_rows(plan: Plan) -> Iterator[Plan]:
    for i, publisher in enumerate(plan.publishers):
        for keep in (slice(0, len(publisher.times) // 2), slice(len(publisher.times) // 2, None)):
            if 0 < len(publisher.times[keep]) < len(publisher.times):
                smaller = plan.copy()
                smaller.publishers[i].times = publisher.times[keep]
                yield smaller
    for i, program in enumerate(plan.programs):
        if len(program.times) > 1:
            for j in range(len(program.times)):
                smaller = plan.copy()
                del smaller.programs[i].times[j]
                yield smaller
        if program.chunk > 1:
            smaller = plan.copy()
            smaller.programs[i].chunk = program.chunk // 2
            yield smaller


_OPTIONAL = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxInFlight",
    "stateBucket",
    "user",
    "password",
)


def _simpler(plan: Plan) -> Iterator[Plan]:
    if plan.torn:
        smaller = plan.copy()
        smaller.torn = 0.0
        yield smaller
    if plan.capacity < 1 << 20:
        smaller = plan.copy()
        smaller.capacity = 1 << 20
        yield smaller
    for i, query in enumerate(plan.queries):
        for name, value in (("speculation", 0.0), ("slots", 1), ("executors", 1), ("reuse", 1.0), ("shuffle", 0)):
            if getattr(query, name) != value:
                smaller = plan.copy()
                setattr(smaller.queries[i], name, value)
                yield smaller
        for option in _OPTIONAL:
            if option == "user":
                continue
            if option in query.read or option in (query.write or {}):
                smaller = plan.copy()
                names = ("user", "password") if option == "password" else (option,)
                for name in names:
                    smaller.queries[i].read.pop(name, None)
                    if smaller.queries[i].write is not None:
                        smaller.queries[i].write.pop(name, None)
                yield smaller
    for i, stream in enumerate(plan.streams):
        if stream["num_replicas"] > 1:
            smaller = plan.copy()
            smaller.streams[i]["num_replicas"] = 1
            yield smaller
    for i, publisher in enumerate(plan.publishers):
        if publisher.size:
            smaller = plan.copy()
            smaller.publishers[i].size = 0
            yield smaller
