"""A history: what a seed decides, what happens, and what comes of it.

Everything that a seed decides is in a :class:`Plan`, as plain data, so that a failing one can be made smaller.
:func:`run` plays it: streams are made, outsiders publish, queries and programs run, faults come and go. Then everything
is healed, the publishers end, the queries read all that there is, and connections that nobody uses are closed in time.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_nats import sparkapi
from spark_nats.errors import ConsumerConflictError, NatsError
from spark_nats.jetstream.consuming import placing
from spark_nats.kinds import task
from spark_nats.kinds.streams.read import planning
from tests.simulation import programs
from tests.simulation.faults import FAULTS, Place
from tests.simulation.mirrors import MirrorSpec
from tests.simulation.network import Network, Transport
from tests.simulation.server import Cluster
from tests.simulation.spark import Attempt, Job, Query, QuerySpec, finish
from tests.simulation.verdict import Call, Failure, Ledger, MicroBatch, Offered, judge
from tests.simulation.world import Endless, Killed, Process, World

LIMIT = 3600.0
"""Seconds of virtual time after which a history has to have ended."""
PASSWORD = "open-sesame"
"""That of the clients; it may be seen nowhere."""
RESEND_AFTER = 2.0
"""Seconds after which an outsider publishes again what was not acknowledged."""
LONGEST_ARMED = 12.0
"""Seconds after which a fault begins also if nothing is under way."""
_SETTLES = 240.0  # seconds for the servers to settle once everything is healed
_LEAVES = 200.0  # seconds for what nobody uses to be gone


# What a seed decides


@dataclass
class Publishing:
    """An outsider who publishes into a stream."""

    name: str
    stream: str
    subjects: list[str]
    times: list[float]
    ids: bool = True
    size: int = 0
    different: int = 0  # payloads; 0: each is another one


_NEAR: tuple[tuple[Any, str, float], ...] = (
    (placing, "SAVED", 1.0),
    (planning, "MIN_SPREAD", 2),
    (task, "MANY_ROWS", 1),
)
"""From how little on it pays to be connected to another server, where a history is about that."""


@dataclass
class Act:
    """Something that an outsider does to a stream."""

    time: float
    stream: str
    what: str  # "delete", "purge" or "drain"
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Happening:
    """A fault, at a time or while something is under way."""

    time: float
    name: str
    duration: float
    seed: int
    delay: float | None = None  # after the next activity of a query or program behind that time; None: at once


@dataclass
class Plan:
    """What a seed decides."""

    seed: int
    workload: str = ""
    servers: int = 3
    version: str = "2.15.1"
    latency: tuple[float, float] = (0.0002, 0.002)
    torn: float = 0.1
    capacity: int = 1 << 20
    near: bool = False  # whether consumers are made again, ranges dealt and leaders approached for any number of rows
    streams: list[dict[str, Any]] = field(default_factory=list)
    mirrors: list[MirrorSpec] = field(default_factory=list)
    publishers: list[Publishing] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    queries: list[QuerySpec] = field(default_factory=list)
    programs: list[programs.ProgramSpec] = field(default_factory=list)
    faults: list[Happening] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows it has at its sources."""
        return sum(len(each.times) for each in self.publishers) + sum(each.rows for each in self.programs)

    def copy(self) -> Plan:
        """Return another one that may be changed."""
        return copy.deepcopy(self)


@dataclass
class Outcome:
    """What came of a history.

    Attributes:
        plan: what it was.
        story: what happened, as (time, who, what).
        violations: promises that were broken; empty when all is well.
        model: whether it is the simulation itself that is wrong.
        figures: how much of what.
    """

    plan: Plan
    story: list[tuple[float, str, str]]
    violations: list[str]
    model: bool
    figures: Counter[str]

    def lines(self) -> list[str]:
        """Return the story, readable."""
        plan = self.plan
        head = [
            f"seed {plan.seed}: {plan.workload}, {plan.servers} servers {plan.version}, {plan.rows} rows, "
            f"{len(plan.faults)} faults"
        ]
        head += [f"  stream {stream}" for stream in plan.streams]
        head += [f"  mirror {each}" for each in plan.mirrors]
        head += [
            f"  publisher {each.name}: {len(each.times)} rows into {each.stream}, {', '.join(each.subjects)}"
            f"{'' if each.ids else ', without ids'}"
            for each in plan.publishers
        ]
        head += [f"  query {each}" for each in plan.queries] + [f"  program {each}" for each in plan.programs]
        head += [f"{time:10.3f}  {who}: {what}" for time, who, what in self.story]
        verdict = [f"VIOLATED: {each}" for each in self.violations] or ["all is well"]
        return [*head, *(["the model is wrong"] if self.model else []), *verdict]


# What happens


class Outsider:
    """Publishes rows, each again while it is not acknowledged and has an id."""

    def __init__(self, history: History, spec: Publishing) -> None:
        self.history = history
        self.spec = spec
        self.left = len(spec.times)
        for number, time in enumerate(spec.times):
            history.world.at(time, lambda number=number: self._begin(number))

    def _begin(self, number: int) -> None:
        spec, world = self.spec, self.history.world
        subject = spec.subjects[number % len(spec.subjects)]
        payload = f"{spec.name}-{number % spec.different if spec.different else number}".encode().ljust(spec.size, b".")
        message_id = f"id-{spec.name}-{number}" if spec.ids else ""
        offered = Offered(spec.stream, subject, payload, message_id, world.now)
        self.history.ledger.offered.append(offered)
        self._offer(offered)

    def _offer(self, offered: Offered) -> None:
        world = self.history.world
        offered.tries += 1
        headers = {"Nats-Msg-Id": offered.message_id} if offered.message_id else {}

        def answered(sequence: int | None, why: str) -> None:
            if offered.done:
                return
            if sequence is not None:
                offered.sequence, offered.acknowledged = sequence, world.now
                self._end(offered)
            elif "maximum" in why or "exceed" in why:
                offered.refused = why
                self._end(offered)
            else:
                world.after(0.5, again)

        def again() -> None:
            if not offered.done and offered.tries == mine:
                self._offer(offered)

        mine = offered.tries
        self.history.cluster.offer(offered.subject, offered.payload, headers, answered)
        if offered.message_id:
            world.after(RESEND_AFTER, again)
        else:
            world.after(RESEND_AFTER, lambda: self._end(offered))

    def _end(self, offered: Offered) -> None:
        if not offered.done:
            offered.done = True
            self.left -= 1


class History:
    """A history that is played, and the ledger of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.net = Network(self.world, plan.latency, plan.torn, plan.capacity)
        self.cluster = Cluster(
            self.world,
            self.net,
            servers=plan.servers,
            version=plan.version,
        )
        self.ledger = Ledger(self.world)
        self.queries: list[Query] = []
        self.programs: list[programs.Program] = []
        self.publishers: list[Outsider] = []
        self.over = False
        self.wrong = ""  # says what is wrong with the simulation itself
        self._armed: list[Happening] = []
        self._ends: list[Callable[[], None]] = []

    def play(self) -> None:
        """Have everything happen."""
        plan, world = self.plan, self.world
        for stream in plan.streams:
            self.cluster.create_stream(**stream)
        for mirror in plan.mirrors:
            self.cluster.mirror(mirror)
        self.publishers = [Outsider(self, each) for each in plan.publishers]
        self.queries = [Query(world, each, self, f"{plan.seed}/{each.name}") for each in plan.queries]
        self.programs = [programs.Program(world, each, self, f"{plan.seed}/{each.name}") for each in plan.programs]
        for act in plan.acts:
            world.at(act.time, lambda act=act: self._act(act))
        for happening in plan.faults:
            world.at(happening.time, lambda happening=happening: self._arm(happening))
        self._conductor = Process(world, "history")
        world.spawn(self._conductor, "history", self._conduct)
        world.run(lambda: self.over or bool(self.wrong), LIMIT)

    def _act(self, act: Act) -> None:
        arguments = dict(act.arguments)
        if act.what == "delete":
            there = self.cluster.contents(act.stream)
            if not there:
                return
            sequence = there[int(arguments["where"] * len(there))].sequence
            done = self.cluster.delete(act.stream, sequence)
            self.ledger.deleted.add((act.stream, sequence))
            self.world.tell("somebody", f"deletes message {sequence} of {act.stream}{'' if done else ', in vain'}")
            return
        if act.what == "drain":
            self.cluster.drain(act.stream, **arguments)
            return
        if "where" in arguments:
            there = self.cluster.contents(act.stream)
            if not there:
                return
            arguments["seq"] = there[int(arguments.pop("where") * len(there))].sequence
        done = self.cluster.purge(act.stream, **arguments)
        self.world.tell("somebody", f"purges {act.stream} {arguments}{'' if done else ', in vain'}")

    # Faults

    def _arm(self, happening: Happening) -> None:
        """Have a fault begin, with a query's or program's next activity where it waits for one."""
        if happening.delay is None:
            self._begin_fault(happening)
            return
        self._armed.append(happening)

        def late() -> None:
            if happening in self._armed:
                self._armed.remove(happening)
                self._begin_fault(happening)

        self.world.after(LONGEST_ARMED, late)

    def _active(self) -> None:
        """Take note that something begins."""
        armed, self._armed = self._armed, []
        for happening in armed:
            assert happening.delay is not None
            self.world.after(happening.delay, lambda happening=happening: self._begin_fault(happening))

    def _begin_fault(self, happening: Happening, tries: int = 20) -> None:
        chance = random.Random(happening.seed)
        if happening.name in SPARK_FAULTS:
            targets = [*self.queries, *self.programs]
            chance.shuffle(targets)
            if any(SPARK_FAULTS[happening.name](each, happening.duration) for each in targets):
                self.world.tell("fault", happening.name)
                self.ledger.faults.append((self.world.now, happening.name, happening.duration))
            elif tries and not self.over and not any(each.finishing for each in self.queries):
                self.world.after(0.25, lambda: self._begin_fault(happening, tries - 1))
            return
        self.world.tell("fault", f"{happening.name} for {happening.duration:.1f} s")
        self.ledger.faults.append((self.world.now, happening.name, happening.duration))
        end = FAULTS[happening.name].begin(Place(self.cluster, self.net, self.world, chance))
        ended = False

        def once() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self.world.tell("fault", f"{happening.name} is over")
                if end is not None:
                    end()

        self._ends.append(once)
        self.world.after(happening.duration, once)

    # The conductor

    def _wait(self, what: str, until: Callable[[], bool], seconds: float, interval: float = 0.25) -> bool:
        world = self.world
        deadline = world.now + seconds
        while not until():
            if world.now >= deadline:
                self.ledger.unmet.append(f"{what}, for {seconds:.0f} s after all faults were over")
                for each in _waiting(world):
                    world.tell("history", f"still runs: {each}")
                return False
            world.current.block(world.now + interval)
        return True

    def _conduct(self) -> None:
        world, plan = self.world, self.plan
        quiet = max(
            [0.0]
            + [
                each.time
                + (0.0 if each.name in SPARK_FAULTS else each.duration)
                + (0.0 if each.delay is None else LONGEST_ARMED)
                for each in plan.faults
            ]
            + [each.time for each in plan.acts]
            + [time for each in plan.publishers for time in each.times[-1:]]
        )
        world.current.block(quiet + 0.1)
        for end in self._ends:
            end()
        if any(each.name != "strangers-answer" for each in plan.faults):  # what heals the servers disturbs them, too
            self.cluster.heal()
        self.net.latency = plan.latency
        world.tell("history", "all faults are over")
        self.ledger.healed = world.now
        if not self._wait("the model's servers have not settled", self.cluster.settled, _SETTLES):
            self.wrong = "the servers have not settled after everything was healed"
        patience = 1500.0
        self._wait("publishers have not ended", lambda: not any(each.left for each in self.publishers), 120.0)
        self._wait("programs have not ended", lambda: all(each.ended for each in self.programs), patience)
        for query in self.queries:
            query.finishing, query.finishing_since = True, world.now
            query.wake.fire()
        self._wait("queries have not read everything", lambda: all(each.ended for each in self.queries), patience)
        world.tell("history", "queries and programs have ended")
        for each in (*self.queries, *self.programs):
            if each.application is not None:
                each.application.close()
        if self._wait("something is left", lambda: not self._left(), _LEAVES, 2.0):
            world.tell("history", "nothing is left")
        else:
            self.ledger.unmet[-1] += f": {', '.join(self._left()[:6])}"
        self.over = True

    def _left(self) -> list[str]:
        found = list(self.cluster.left())
        for process in self.world.processes:
            if process is self._conductor or not process.alive:
                continue
            found += [f"an open socket of {process.name}" for _ in process.transports]
        found += [f"{each.name}, which still runs" for each in self.world.actors if each.process is not self._conductor]
        return found

    # What queries and programs tell

    def attempt(self, job: Job, attempt: Attempt) -> None:
        self.ledger.figures["task attempts"] += 1
        self.ledger.attempts.append((job, attempt))
        self._active()
        if job.batch is not None:
            job.batch.attempts.append(attempt)

    def task_failed(self, job: Job, attempt: Attempt, name: str, error: BaseException | None) -> None:
        if error is None or isinstance(error, Killed):
            return
        self.world.tell(name, f"fails: {type(error).__name__}: {error}")
        orphan = job is not None and not job.application.driver.alive
        self.ledger.failures.append(Failure(self.world.now, name, error, job, attempt, orphan))

    def run_ended(self, query: Query, error: BaseException) -> None:
        if isinstance(error, Killed):
            self.world.tell(query.spec.name, "its driver was killed")
            return
        self.world.tell(query.spec.name, f"ends: {type(error).__name__}: {error}")
        self.ledger.failures.append(Failure(self.world.now, query.spec.name, error, None, None))

    def is_final(self, query: Query, error: BaseException) -> bool:
        """Tell whether a query is not started again."""
        if isinstance(error, ConsumerConflictError) and any(
            FAULTS[n].loses for _, n, _ in self.ledger.faults if n in FAULTS
        ):
            self.ledger.given_up.add(query.spec.name)  # the queue has forgotten its durable: a new checkpoint is needed
            return True
        since = sum(each.at >= query.finishing_since for each in self.ledger.failures if each.who == query.spec.name)
        if query.finishing and min(since, query.failures_in_a_row) > 12 and isinstance(error, NatsError):
            self.ledger.unmet.append(f"{query.spec.name} cannot go on though all is healed: {error}")
            return True
        return False

    def takes_options_back(self, query: Query) -> bool:
        """Tell whether the operator takes failOnDataLoss=false out again, once a micro-batch has gone on with it."""
        return query.random.random() < 0.7

    def called(self, what: str, where: str, began: float, options: dict[str, str] | None) -> None:
        self.ledger.calls.append(Call(what, where, began, self.world.now, options or {}))

    def micro_batch(self, query: Query, number: int, start: str, end: str, partitions: list[bytes]) -> MicroBatch:
        self.ledger.figures["micro-batches"] += 1
        self._active()
        batch = MicroBatch(query.spec.name, number, start, end, partitions, self.world.now)
        self.ledger.micro_batches.setdefault((query.spec.name, number), []).append(batch)
        return batch

    def stage_done(self, batch: MicroBatch, results: list[Attempt], read: bool, write: bool) -> None:
        if read:
            batch.read = results
        if write:
            batch.written = results

    def committed(self, query: Query, number: int) -> None:
        runs = self.ledger.micro_batches[(query.spec.name, number)]
        runs[-1].committed = True


Target = Query | programs.Program
SPARK_FAULTS: dict[str, Callable[[Target, float], bool]] = {
    "driver killed": lambda each, _: isinstance(each, Query) and each.kill_driver(0.0),
    "driver killed, executors live on": lambda each, seconds: isinstance(each, Query) and each.kill_driver(seconds),
    "stream reader killed": lambda each, _: isinstance(each, Query) and each.kill_reader(),
    "executor killed": lambda each, _: isinstance(each, Query) and each.kill_executor(),
    "worker killed": lambda each, _: each.kill_worker(),
    "second attempt": lambda each, _: each.speculate(),
    "stage runs again": lambda each, _: isinstance(each, Query) and each.fail_to_fetch(),
    "slow sink": lambda each, seconds: each.be_slow(seconds),
}
"""Faults of Spark: what they do to a query or program, False when that is not possible now."""


def run(plan: Plan) -> Outcome:
    """Play a history and judge it."""
    history = History(plan)
    world, ledger = history.world, history.ledger
    transport = type("SimulatedTransport", (Transport,), {"world": world, "net": history.net})
    violations: list[str] = []
    model = False

    def ends_a_micro_batch() -> bool:
        return getattr(world.current.process, "ends_a_micro_batch", False)

    def unraisable(found: Any) -> None:
        if not isinstance(found.exc_value, Killed):  # a generator of a process that was killed
            sys.__unraisablehook__(found)

    collects = gc.isenabled()
    gc.disable()  # so that the same is done at the same time, and costs less
    before = sparkapi.is_commit_or_abort, sys.unraisablehook
    sparkapi.is_commit_or_abort, sys.unraisablehook = ends_a_micro_batch, unraisable
    try:
        with world.held(transport, _NEAR if plan.near else ()):
            try:
                history.play()
            except Endless as error:
                violations.append(f"a wait has no end: {error}; {'; '.join(_waiting(world)[:6])}")
            except Exception as error:
                model = True
                violations.append(f"the model is wrong: {type(error).__name__}: {error} {_place(error)}")
            if history.wrong:
                model = True
                violations.append(f"the model is wrong: {history.wrong}")
            _end(world)
    finally:
        sparkapi.is_commit_or_abort, sys.unraisablehook = before
        if collects:
            gc.enable()
    if not model:
        for actor_error in ledger.mistakes():
            if _is_models(actor_error):
                model = True
                violations.append(f"the model is wrong: {type(actor_error).__name__}: {actor_error}")
        ledger.take(history)
        violations += judge(ledger, plan)
    figures = Counter(ledger.figures)
    figures["rows"] = plan.rows
    figures["faults"] = len(ledger.faults)
    figures["virtual seconds"] = round(world.now)
    return Outcome(plan, world.story, violations, model, figures)


def _waiting(world: World) -> list[str]:
    """Return what still runs, and where it waits."""
    found = []
    for actor in world.actors:
        frame, places = actor._greenlet.gr_frame, []
        while frame is not None:
            places.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}")
            frame = frame.f_back
        found.append(f"{actor.name} ({' < '.join(places[:7])})")
    return found


def _place(error: BaseException) -> str:
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"({' > '.join(places[-4:])})"


def _is_models(error: BaseException) -> bool:
    """Tell whether an error was raised by the simulation, and not by what it simulates."""
    trace = error.__traceback__
    last = ""
    while trace is not None:
        last = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return "tests/simulation" in last or "tests\\simulation" in last


def _end(world: World) -> None:
    """End whatever still runs, so that nothing of a history is left for the next one."""
    for process in list(world.processes):
        finish(process)
    with contextlib.suppress(Endless):
        world.run(lambda: not world.actors, world.now + 60.0)


# Plans


def plan(seed: int) -> Plan:
    """Return what a seed decides."""
    from tests.simulation.workloads import draw

    return draw(seed)
