"""Spark as our classes meet it: a driver, its checkpoint, and tasks in other processes.

The order of calls is that of Spark's ``MicroBatchExecution`` and of PySpark's workers. What passes between processes is
pickled, as it is there; offsets pass as JSON text. What Spark keeps in a checkpoint survives the driver, and nothing
else does. A task reads in one Python worker and writes in another one; a worker whose task has failed ends, others are
used again.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from spark_nats import NatsDataSource
from spark_nats.errors import NatsError
from spark_nats.jetstream.consuming.watching import HEARTBEAT
from spark_nats.kinds.streams.read.positions import from_json
from tests.simulation.world import Actor, Killed, Process, World

READ = (
    StructType()
    .add("subject", StringType())
    .add("payload", BinaryType())
    .add("stream", StringType())
    .add("sequence", LongType())
)
"""What queries and batches read."""
WRITE = StructType().add("subject", StringType()).add("payload", BinaryType())
WRITE_IDS = StructType().add("subject", StringType()).add("payload", BinaryType()).add("msg_id", StringType())
ENTRIES = (
    StructType()
    .add("key", StringType())
    .add("value", BinaryType())
    .add("revision", LongType())
    .add("operation", StringType())
)
"""What is read of a KV bucket."""
WRITE_ENTRIES = StructType().add("key", StringType()).add("value", BinaryType())
WRITE_INCREMENTS = StructType().add("subject", StringType()).add("increment", LongType())
NOTICES_LATE = 2 * HEARTBEAT + 1.0
"""Seconds after which an idle query has noticed that the server on which it listens has begun anew."""
MOST_FAILURES = 4
"""Attempts of a task before its job fails (``spark.task.maxFailures``)."""


class Restarted(Exception):
    """The operator starts a query again, with its usual options."""


class Died(Exception):
    """A process that was asked something is gone."""


class Signal:
    """Wakes one actor."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waits: Actor | None = None
        self._fired = False

    def fire(self) -> None:
        self._fired = True
        if self._waits is not None:
            self._waits.wake()

    def wait(self, until: float | None = None) -> None:
        """Wait until it is fired, or was since the last wait."""
        while not self._fired:
            self._waits = self._world.current
            try:
                if not self._waits.block(until):
                    break
            finally:
                self._waits = None
        self._fired = False


class Application:
    """A driver with its executors: their processes end with it."""

    def __init__(self, world: World, name: str, executors: int) -> None:
        self.world = world
        self.name = name
        self.processes: list[Process] = []
        self.executors = [Executor(self, f"{name}/executor {i + 1}") for i in range(executors)]
        self.driver = self.process("driver")

    def process(self, name: str) -> Process:
        """Begin a process of the driver's machine."""
        self.processes = [each for each in self.processes if each.alive]
        process = Process(self.world, f"{self.name}/{name}")
        self.processes.append(process)
        return process

    def kill(self, zombies: float = 0.0) -> None:
        """Kill the driver, and its executors so many seconds later."""
        for process in self.processes:
            finish(process)
        for executor in self.executors:
            if zombies:
                self.world.after(zombies, executor.kill)
            else:
                executor.kill()

    def close(self) -> None:
        """End without being killed: workers are left to what they have of their own."""
        for process in self.processes:
            finish(process)


class Executor:
    """Where tasks run, in Python workers that are used again."""

    def __init__(self, application: Application, name: str) -> None:
        self._application = application
        self.name = name
        self.alive = True
        self.idle: list[Process] = []
        self.workers: list[Process] = []
        self._number = 0

    def worker(self, fresh: bool) -> Process:
        """Return a worker for a task."""
        while self.idle and not fresh:
            worker = self.idle.pop()
            if worker.alive:
                return worker
        self._number += 1
        worker = Process(self._application.world, f"{self.name}/worker {self._number}")
        self.workers = [each for each in self.workers if each.alive]
        self.workers.append(worker)
        return worker

    def kill(self) -> None:
        """Kill it with its workers; another one takes its place when a task needs it."""
        for worker in self.workers:
            finish(worker)
        self.workers, self.idle = [], []


def finish(process: Process) -> None:
    """End a process, and forget it."""
    process.kill()
    if process in process.world.processes:
        process.world.processes.remove(process)


def call(world: World, process: Process, body: Callable[[], Any]) -> Any:
    """Have another process do something, and wait for it.

    Raises:
        Died: that process is gone.
    """
    if not process.alive:
        raise Died(f"{process.name} is gone")
    actor = world.spawn(process, process.name, body)
    try:
        actor.join()
    except Killed:
        actor.kill()
        raise
    if isinstance(actor.error, Killed):
        raise Died(f"{process.name} has died")
    if actor.error is not None:
        raise actor.error
    return actor.result


def context_of(partition: int, attempt: int, task: int, properties: dict[str, str]) -> TaskContext:
    """Return what Spark tells a task."""
    context: TaskContext = object.__new__(TaskContext)
    context._partitionId = partition
    context._attemptNumber = attempt
    context._stageId = 0
    context._taskAttemptId = task
    context._localProperties = properties
    context._cpus = 1
    context._resources = {}
    return context


# Tasks


class Pipe:
    """What carries rows from the worker that reads to the worker that writes, by way of the JVM."""

    def __init__(self, world: World, whole: bool) -> None:
        self._world = world
        self._whole = whole  # whether the writer is given all rows at once, as the JVM does up to 10,000
        self._batches: list[pa.RecordBatch] = []
        self._ended = False
        self._full = Signal(world)
        self._empty = Signal(world)

    def put(self, batch: pa.RecordBatch) -> None:
        while len(self._batches) >= 2 and not self._whole:
            self._full.wait()
        self._batches.append(batch)
        self._empty.fire()

    def end(self) -> None:
        self._ended = True
        self._empty.fire()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            while not self._ended and (self._whole or not self._batches):
                self._empty.wait()
            batches, self._batches = self._batches, []
            self._full.fire()
            if len(batches) > 1 and self._whole:
                batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
            yield from batches
            if self._ended and not self._batches:
                return


@dataclass
class Attempt:
    """One attempt of a task."""

    partition: int
    number: int
    began: float
    speculative: bool = False
    ended: float | None = None
    rows: list[tuple[str, int, bytes]] = field(default_factory=list)  # handed on: stream, sequence, payload
    given: list[bytes] = field(default_factory=list)  # payloads that were to be written, in that order
    result: Any = None
    error: BaseException | None = None
    done: bool = False  # all of it, without an error
    used: bool = False  # its result counts
    workers: list[Process] = field(default_factory=list)


class Stage:
    """The tasks of a stage, each tried up to four times, some at once, some twice at once.

    Args:
        job: what the stage is of.
        partitions: the numbers of its tasks.
        begin: begins an attempt; has :meth:`finished` called at its end.
        behind_shuffle: whether what it reads may turn out to be lost.
    """

    def __init__(
        self,
        job: Job,
        partitions: list[int],
        begin: Callable[[Attempt, Executor, Stage], None],
        behind_shuffle: bool = False,
    ) -> None:
        self.job = job
        self.behind_shuffle = behind_shuffle
        self._begin = begin
        self._partitions = partitions
        self._waiting = list(partitions)
        self.running: list[Attempt] = []
        self.results: dict[int, Attempt] = {}
        self._started = dict.fromkeys(partitions, 0)
        self._failures = dict.fromkeys(partitions, 0)
        self._signal = Signal(job.world)
        self._error: BaseException | None = None
        self.closed = False

    def run(self) -> list[Attempt]:
        """Run it; return the attempts whose results count.

        Raises:
            NatsError: a task has failed four times.
            FetchFailed: what it reads is lost.
        """
        self.job.stages.append(self)
        try:
            while len(self.results) < len(self._partitions):
                while self._waiting and len(self.running) < self.job.slots:
                    partition = self._waiting.pop(0)
                    self.launch(partition, speculative=False)
                    if self.job.random.random() < self.job.speculation:
                        self.launch(partition, speculative=True)
                self._signal.wait()
                if self._error is not None:
                    raise self._error
        finally:
            self.closed = True
            self.job.stages.remove(self)
            if not self.job.world.current._killed:  # else somebody else decides about the executors
                for attempt in list(self.running):
                    if not isinstance(self._error, FetchFailed) or self.job.random.random() < 0.5:
                        self._abandon(attempt)
        return [self.results[partition] for partition in self._partitions]

    def launch(self, partition: int, speculative: bool) -> None:
        """Begin another attempt of a task."""
        attempt = Attempt(partition, self._started[partition], self.job.world.now, speculative)
        self._started[partition] += 1
        self.running.append(attempt)
        self.job.attempts.append(attempt)
        self.job.recorder.attempt(self.job, attempt)
        self._begin(attempt, self.job.random.choice(self.job.application.executors), self)

    def speculate(self) -> bool:
        """Begin a second attempt of a task that runs."""
        for attempt in list(self.running):
            if sum(each.partition == attempt.partition for each in self.running) == 1:
                self.launch(attempt.partition, speculative=True)
                return True
        return False

    def fail_to_fetch(self) -> bool:
        """Have what it reads be lost."""
        if self.behind_shuffle and not self.closed:
            self._error = FetchFailed()
            self._signal.fire()
            return True
        return False

    def finished(self, attempt: Attempt, executor: Executor) -> None:
        """Take note that an attempt has ended."""
        if attempt.ended is not None:
            return
        attempt.ended = self.job.world.now
        if attempt in self.running:
            self.running.remove(attempt)
        for worker in attempt.workers:
            if attempt.done and worker.alive:
                executor.idle.append(worker)
            else:
                finish(worker)
        self._signal.fire()
        partition = attempt.partition
        if self.closed or partition in self.results:
            return
        if attempt.done:
            attempt.used = True
            self.results[partition] = attempt
            for other in list(self.running):
                if other.partition == partition and self.job.random.random() < 0.7:
                    self._abandon(other)  # else it finishes late
        elif any(each.partition == partition for each in self.running):
            pass  # its twin goes on
        elif isinstance(attempt.error, NatsError | Killed):
            died = isinstance(attempt.error, Killed)
            self._failures[partition] += 1
            # An executor that is lost does not count in Spark.
            if self._failures[partition] < (4 * MOST_FAILURES if died else MOST_FAILURES):
                self._waiting.insert(0, partition)
            else:
                self._error = Died("a task's workers have died too often") if died else attempt.error
        else:
            self._error = attempt.error

    @staticmethod
    def _abandon(attempt: Attempt) -> None:
        for worker in attempt.workers:
            finish(worker)


class FetchFailed(Exception):
    """What another stage has written for this one is lost."""


class Job:
    """What the tasks of a micro-batch, or of a batch, share."""

    def __init__(
        self,
        world: World,
        application: Application,
        recorder: Any,
        chance: random.Random,
        *,
        name: str,
        slots: int,
        speculation: float,
        reuse: float,
        properties: dict[str, str],
        whole: bool,
        hold: Callable[[], float],
        batch: Any = None,
    ) -> None:
        self.world = world
        self.application = application
        self.recorder = recorder
        self.random = chance
        self.name = name
        self.slots = slots
        self.speculation = speculation
        self.reuse = reuse
        self.properties = properties
        self.whole = whole
        self.hold = hold
        self.batch = batch
        self.stages: list[Stage] = []
        self.attempts: list[Attempt] = []
        self._tasks = 0

    def _worker(self, attempt: Attempt, executor: Executor) -> Process:
        worker = executor.worker(self.random.random() >= self.reuse)
        attempt.workers.append(worker)
        return worker

    def _context(self, attempt: Attempt) -> TaskContext:
        self._tasks += 1
        return context_of(attempt.partition, attempt.number, self._tasks, self.properties)

    def _spawn(self, attempt: Attempt, executor: Executor, what: str, body: Callable[[], Any]) -> Actor:
        worker, context = self._worker(attempt, executor), self._context(attempt)

        def in_worker() -> Any:
            TaskContext._taskContext = context
            return body()

        return self.world.spawn(worker, f"{worker.name} {what}", in_worker)

    def read(self, reader: bytes, partitions: list[bytes], write: bytes | None, project: Projection) -> list[Attempt]:
        """Read partitions, and write their rows where a writer is given, in the same tasks."""

        def begin(attempt: Attempt, executor: Executor, stage: Stage) -> None:
            pipe = Pipe(self.world, self.whole) if write is not None else None

            def reading() -> None:
                rows = pickle.loads(reader).read(pickle.loads(partitions[attempt.partition]))
                with contextlib.closing(rows):
                    for batch in rows:
                        self._note(attempt, batch)
                        self._wait_for_slow_sink()
                        if pipe is not None:
                            pipe.put(project(batch))
                if pipe is not None:
                    pipe.end()

            what = f"{self.name} task {attempt.partition}.{attempt.number}"
            actors = [self._spawn(attempt, executor, f"{what} reads", reading)]
            if pipe is not None:
                actors.append(self._spawn(attempt, executor, f"{what} writes", self._writing(attempt, write, pipe)))
            self._watch(attempt, executor, stage, actors)

        return Stage(self, list(range(len(partitions))), begin).run()

    def write(
        self,
        write: bytes,
        parts: dict[int, Callable[[], list[pa.RecordBatch]]],
        done: dict[int, Attempt],
        behind_shuffle: bool = False,
    ) -> None:
        """Write rows that are there; ``done`` gets the attempts that count, also when it fails."""

        def begin(attempt: Attempt, executor: Executor, stage: Stage) -> None:
            batches = parts[attempt.partition]()
            what = f"{self.name} task {attempt.partition}.{attempt.number} writes"
            actor = self._spawn(attempt, executor, what, self._writing(attempt, write, batches))
            self._watch(attempt, executor, stage, [actor])

        stage = Stage(self, [each for each in parts if each not in done], begin, behind_shuffle)
        try:
            stage.run()
        finally:
            done.update(stage.results)

    def _writing(self, attempt: Attempt, write: bytes | None, batches: Iterable[pa.RecordBatch]) -> Callable[[], Any]:
        assert write is not None

        def taken() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                attempt.given += batch.column(1).to_pylist()
                yield batch

        def writing() -> bytes:
            return pickle.dumps(pickle.loads(write).write(taken()))

        return writing

    def _watch(self, attempt: Attempt, executor: Executor, stage: Stage, actors: list[Actor]) -> None:
        def ended() -> None:
            failed = next((actor for actor in actors if actor.done and actor.error is not None), None)
            if failed is not None:
                attempt.error = failed.error
                self.recorder.task_failed(self, attempt, failed.name, failed.error)
            elif all(actor.done for actor in actors):
                attempt.done = True
                attempt.result = actors[-1].result
            else:
                return
            stage.finished(attempt, executor)

        for actor in actors:
            actor.then.append(ended)

    @staticmethod
    def _note(attempt: Attempt, batch: pa.RecordBatch) -> None:
        streams, sequences, payloads = (batch.column(i).to_pylist() for i in (2, 3, 1))
        attempt.rows += zip(streams, sequences, payloads, strict=True)

    def _wait_for_slow_sink(self) -> None:
        if (seconds := self.hold()) > 0:
            self.world.current.block(self.world.now + seconds)


Projection = Callable[[pa.RecordBatch], pa.RecordBatch]


def projection(old: str, new: str, own_ids: bool) -> Projection:
    """Return what makes rows to be written of rows that were read: other subjects, the same payloads."""

    def project(batch: pa.RecordBatch) -> pa.RecordBatch:
        subjects = pc.replace_substring(batch.column(0), old, new, max_replacements=1)
        columns = [
            pc.replace_substring(subjects, "star", "*"),
            batch.column(1),
        ]  # which makes a row that cannot be sent
        names = ["subject", "payload"]
        if own_ids:
            start = pc.utf8_slice_codeunits(batch.column(1).cast(pa.string()), 0, 30)
            # A sequence alone is no identity: a stream that has lost its end uses it again.
            parts = (batch.column(2), batch.column(3).cast(pa.string()), start, "-")
            columns.append(pc.binary_join_element_wise(*parts))
            names.append("msg_id")
        return pa.RecordBatch.from_arrays(columns, names)

    return project


def entries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make entries of a KV bucket of rows that were read: the subject's last token is the key."""
    keys = pc.replace_substring_regex(batch.column(0), r"^.*\.", "")
    return pa.RecordBatch.from_arrays([keys, batch.column(1)], ["key", "value"])


def increments(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Make increments of a counter of rows that were read: of each subject one."""
    subjects = pc.replace_substring(batch.column(0), "in.", "out.", max_replacements=1)
    return pa.RecordBatch.from_arrays([subjects, pa.array([1] * batch.num_rows)], ["subject", "increment"])


# Queries


@dataclass
class QuerySpec:
    """What a streaming query is, as plain data."""

    name: str
    read: dict[str, str]
    write: dict[str, str] | None = None  # None: its rows go to a sink of Spark's own
    subjects: tuple[str, str] = ("in.", "out.")  # what rows are renamed to
    own_ids: bool = False
    shuffle: int = 0  # write partitions behind a shuffle
    counts: bool = False  # whether it increments a counter for each row
    fewer: bool = False  # whether it is sometimes started again with fewer of them
    slots: int = 2
    executors: int = 1
    trigger: float = 1.0
    available_now: bool = False
    speculation: float = 0.0
    reuse: float = 0.7
    whole: bool = True
    on_loss: str = "go on"  # what the operator does about an error that says that something is gone: or "end"
    back_after: tuple[float, float] = (0.5, 5.0)  # seconds until a query that has ended is started again


@dataclass
class Checkpoint:
    """What survives the driver."""

    query: str
    offsets: dict[int, str] = field(default_factory=dict)
    commits: dict[int, float] = field(default_factory=dict)  # with the time


class Query:
    """A streaming query through all its runs, and the operator who starts it again.

    Attributes:
        checkpoint: what survives its drivers.
        slow_until: when the sink takes rows again.
        finishing: whether it is to end when it has read everything.
        ended: whether it has.
    """

    def __init__(self, world: World, spec: QuerySpec, recorder: Any, seed: str) -> None:
        self.world = world
        self.spec = spec
        self.recorder = recorder
        self.random = random.Random(seed)
        self.checkpoint = Checkpoint(f"{self.random.getrandbits(128):032x}")
        self.application: Application | None = None
        self.jobs: list[Job] = []
        self.slow_until = 0.0
        self.finishing = False
        self.finishing_since = 0.0
        self.ended = False
        self.loses = False  # failOnDataLoss is false in the next run
        self.forgives = False  # deduplicate is window in the next run
        self.runs = 0
        self.failures_in_a_row = 0
        self.wake = Signal(world)
        self.operator = Process(world, f"{spec.name}/operator")
        self._project, self._schema = projection(*spec.subjects, spec.own_ids), WRITE_IDS if spec.own_ids else WRITE
        if spec.write and "bucket" in spec.write:
            self._project, self._schema = entries, WRITE_ENTRIES
        elif spec.counts:
            self._project, self._schema = increments, WRITE_INCREMENTS
        world.spawn(self.operator, f"{spec.name}/operator", self._operate)

    # The operator

    def _operate(self) -> None:
        while not self.ended:
            if self.application is None:
                self.runs += 1
                name = f"{self.spec.name}.{self.runs}"
                self.application = Application(self.world, name, self.spec.executors)
            application = self.application
            self.world.tell(self.spec.name, f"is started{' with failOnDataLoss=false' if self.loses else ''}")
            run = Run(self, application)
            driver = self.world.spawn(application.driver, f"{application.name}/driver", run.body)
            driver.join()
            error = driver.error
            if error is None or isinstance(error, Restarted):
                self.failures_in_a_row = 0
                if self.finishing and run.complete and error is None:
                    self.ended = True
                    break
            else:
                self.failures_in_a_row += 1
                self.recorder.run_ended(self, error)
                if self._is_final(error):
                    self.ended = True
                    break
                if self.application is application and (not isinstance(error, NatsError) or self.random.random() < 0.5):
                    application.kill()
                    self.application = None
            for process in list(application.processes):
                if process is not application.driver:
                    finish(process)
            if not application.driver.alive:
                self.application = None
            self.wake.wait(self.world.now + self.random.uniform(*self.spec.back_after))
        if self.application is not None:
            self.application.close()
        self.world.tell(self.spec.name, "has ended")

    def _is_final(self, error: BaseException) -> bool:
        if not isinstance(error, NatsError | Killed | Died):
            return True  # a mistake of ours, or of the model
        if type(error).__name__ == "DataLossError":
            if self.spec.on_loss == "end":
                return True
            self.loses = True
        if "split into other partitions" in str(error):
            self.forgives = True
        return self.recorder.is_final(self, error)

    # What may happen to it

    def kill_driver(self, zombies: float) -> bool:
        """Kill the driver, and its executors so many seconds later."""
        if self.application is None or not self.application.driver.alive:
            return False
        self.application.kill(zombies)
        self.application = None
        return True

    def kill_reader(self) -> bool:
        """Kill the Python process of the stream reader."""
        for process in self.application.processes if self.application else ():
            if process.name.endswith("/reader"):
                finish(process)
                return True
        return False

    def kill_executor(self) -> bool:
        """Kill an executor with its workers."""
        for executor in self.application.executors if self.application else ():
            if executor.workers:
                executor.kill()
                return True
        return False

    def kill_worker(self) -> bool:
        """Kill a Python worker, if possible one with a task."""
        workers = (
            [worker for executor in self.application.executors for worker in executor.workers]
            if (self.application)
            else []
        )
        busy = [worker for worker in workers if worker.actors]
        if not workers:
            return False
        self.random.choice(busy or workers).kill()
        return True

    def speculate(self) -> bool:
        """Begin a second attempt of a task that runs."""
        return any(stage.speculate() for job in self.jobs for stage in list(job.stages))

    def fail_to_fetch(self) -> bool:
        """Have a stage read again what a stage behind it was reading."""
        return any(stage.fail_to_fetch() for job in self.jobs for stage in list(job.stages))

    def be_slow(self, seconds: float) -> bool:
        """Have the sink take no rows for so many seconds, if there are any."""
        if any(job.stages for job in self.jobs):
            self.slow_until = self.world.now + seconds
            return True
        return False

    def hold(self) -> float:
        """Return the seconds for which the sink takes no row now."""
        return max(0.0, self.slow_until - self.world.now)


class Run:
    """One run of a query: what happens between ``start()`` and its end."""

    def __init__(self, query: Query, application: Application) -> None:
        self._query = query
        self._spec = query.spec
        self._world = query.world
        self._application = application
        self._recorder = query.recorder
        self.complete = False
        self._id = f"{query.random.getrandbits(128):032x}"

    def body(self) -> None:
        """Do what the driver does."""
        self._began = self._world.now
        query, spec = self._query, self._spec
        self._shuffle = query.random.randint(1, spec.shuffle) if spec.fewer and spec.shuffle else spec.shuffle
        reading = dict(spec.read)
        if query.loses:
            reading["failOnDataLoss"] = "false"
        self._source = pickle.dumps(NatsDataSource(reading))
        self._sink: bytes | None = None
        if spec.write is not None:
            writing = dict(spec.write)
            if query.loses and "bucket" not in writing:
                writing["failOnDataLoss"] = "false"
            if query.forgives:
                writing["deduplicate"] = "window"
            self._sink = pickle.dumps(NatsDataSource(writing))
        self._process = self._application.process("reader")
        self._reader = self._ask("making the reader", lambda: pickle.loads(self._source).streamReader(READ))
        # Another process makes another one, which is never asked anything, and goes to the tasks.
        self._planned = pickle.dumps(pickle.loads(self._source).streamReader(READ))
        if spec.available_now:
            self._ask("prepareForTriggerAvailableNow", self._reader.prepareForTriggerAvailableNow)
        self._limit = self._ask("getDefaultReadLimit", self._reader.getDefaultReadLimit)
        try:
            self._batches()
        finally:
            if self._process.alive and not self._world.current._killed:
                self._ask("stop", self._reader.stop)
                finish(self._process)

    def _ask(self, what: str, body: Callable[[], Any]) -> Any:
        began = self._world.now
        try:
            return call(self._world, self._process, body)
        finally:
            self._recorder.called(f"{self._spec.name} {what}", "driver", began, self._spec.read)

    def _batches(self) -> None:
        query, spec, checkpoint = self._query, self._spec, self._query.checkpoint
        offsets, commits = checkpoint.offsets, checkpoint.commits
        number = max(offsets, default=-1)
        start = offsets.get(number - 1)
        available = offsets.get(number)
        constructed = available is not None and number not in commits
        if available is not None and not constructed:
            start = available
            at = json.loads(available)
            self._ask("partitions of nothing", lambda: self._reader.partitions(at, at))
            number += 1
        elif available is None:
            number = 0
        looks = 0
        while True:
            began = self._world.now
            if not constructed:
                since = self._world.now
                available, constructed = self._look(start)
                if constructed:
                    offsets[number] = available
                    self._world.tell(spec.name, f"plans micro-batch {number}: {_short(available)}")
                    if number and number - 1 in offsets:
                        end = json.loads(offsets[number - 1])
                        self._ask("commit", lambda end=end: self._reader.commit(end))
                elif spec.available_now:
                    self.complete = query.finishing and self._began >= query.finishing_since
                    return
                elif query.finishing and since >= query.finishing_since + NOTICES_LATE:
                    looks += 1
                    if looks > 1:
                        self.complete = True
                        return
            if constructed:
                looks = 0
                assert available is not None
                self._micro_batch(number, start, available)
                commits[number] = self._world.now
                self._recorder.committed(query, number)
                if query.loses or query.forgives:
                    query.loses = query.forgives = False
                    if self._recorder.takes_options_back(query):
                        raise Restarted
                query.failures_in_a_row = 0
                start = available
                constructed = False
                number += 1
                if spec.available_now:
                    continue
            wait = began + spec.trigger - self._world.now
            if wait > 0:
                query.wake.wait(self._world.now + wait)

    def _look(self, start: str | None) -> tuple[str, bool]:
        """Return how far the next micro-batch goes, and whether there is one."""
        at = self._ask("initialOffset", lambda: json.dumps(self._reader.initialOffset())) if start is None else start
        limit = self._limit
        found = self._ask("latestOffset", lambda: json.dumps(self._reader.latestOffset(json.loads(at), limit)))
        return found, found != start

    def _micro_batch(self, number: int, start: str | None, end: str) -> None:
        query, spec, world = self._query, self._spec, self._world
        if start is None:
            start = self._ask("initialOffset", lambda: json.dumps(self._reader.initialOffset()))
        begin, stop = json.loads(start), json.loads(end)
        partitions = self._ask(
            "partitions", lambda: [pickle.dumps(each) for each in self._reader.partitions(begin, stop)]
        )
        batch = self._recorder.micro_batch(query, number, start, end, partitions)
        writer = self._writer("prepares") if self._sink is not None else None
        properties = {
            "sql.streaming.queryId": query.checkpoint.query,
            "streaming.sql.batchId": str(number),
            "spark.jobGroup.id": self._id,
        }
        job = Job(
            world,
            self._application,
            self._recorder,
            query.random,
            name=f"micro-batch {number}",
            slots=spec.slots,
            speculation=spec.speculation,
            reuse=spec.reuse,
            properties=properties,
            whole=spec.whole,
            hold=query.hold,
            batch=batch,
        )
        query.jobs.append(job)
        try:
            results = self._run(job, partitions, writer, batch)
        except BaseException:
            if writer is not None and not world.current._killed:
                self._end(number, [], abort=True)
            raise
        finally:
            query.jobs.remove(job)
        if writer is not None:
            self._end(number, [attempt.result for attempt in results], abort=False)

    def _run(self, job: Job, partitions: list[bytes], writer: bytes | None, batch: Any) -> list[Attempt]:
        spec, query = self._spec, self._query
        if writer is None or not spec.shuffle:
            if writer is not None and not partitions:
                done: dict[int, Attempt] = {}
                job.write(writer, {0: list}, done)  # Spark makes one task, so that there is one
                return list(done.values())
            results = job.read(self._planned, partitions, writer, query._project)
            self._recorder.stage_done(batch, results, read=True, write=writer is not None)
            return results
        done = {}
        while True:
            maps = job.read(self._planned, partitions, None, query._project)
            self._recorder.stage_done(batch, maps, read=True, write=False)
            try:
                job.write(writer, Shuffle(maps, spec.shuffle, self._shuffle, query).parts(), done, behind_shuffle=True)
            except FetchFailed:
                job.world.tell(spec.name, "the stage that has read runs again")
                continue
            results = [done[partition] for partition in sorted(done)]
            self._recorder.stage_done(batch, results, read=False, write=True)
            return results

    def _writer(self, what: str) -> bytes:
        """Have a fresh process make a writer."""
        process = self._application.process(f"sink {what}")
        assert self._sink is not None
        sink, began = self._sink, self._world.now
        try:
            made: bytes = call(
                self._world,
                process,
                lambda: pickle.dumps(pickle.loads(sink).streamWriter(self._query._schema, overwrite=False)),
            )
        finally:
            self._recorder.called(f"{self._spec.name} streamWriter", "driver", began, self._spec.write)
            finish(process)
        return made

    def _end(self, number: int, messages: list[bytes | None], abort: bool) -> None:
        """Have a fresh process commit a micro-batch, or abort it."""
        process = self._application.process("sink commits")
        process.ends_a_micro_batch = True  # type: ignore[attr-defined]
        sink, began = self._sink, self._world.now
        assert sink is not None

        def body() -> None:
            writer = pickle.loads(sink).streamWriter(self._query._schema, overwrite=False)
            told = [pickle.loads(message) if message is not None else None for message in messages]
            (writer.abort if abort else writer.commit)(told, number)

        try:
            call(self._world, process, body)
        finally:
            self._recorder.called(f"{self._spec.name} commit of the writer", "driver", began, self._spec.write)
            finish(process)


class Shuffle:
    """Rows of tasks that have read, hashed over the tasks that write, which get them in any order."""

    def __init__(self, maps: list[Attempt], hashes: int, partitions: int, query: Query) -> None:
        self._query = query
        self._random = query.random
        rows: list[list[tuple[str, bytes, str]]] = [[] for _ in range(partitions)]
        for attempt in maps:
            for stream, sequence, payload in attempt.rows:
                own = f"{stream}-{sequence}-{payload[:30].decode()}"
                place = min(zlib.crc32(payload) % hashes, partitions - 1)  # the last ones may be one, as AQE has it
                rows[place].append((stream, payload, own))
        self._rows = rows

    def parts(self) -> dict[int, Callable[[], list[pa.RecordBatch]]]:
        """Return for each partition what gives its rows to an attempt."""
        return {i: lambda rows=rows: self._part(rows) for i, rows in enumerate(self._rows)}

    def _part(self, rows: list[tuple[str, bytes, str]]) -> list[pa.RecordBatch]:
        rows = list(rows)
        self._random.shuffle(rows)
        if not rows:
            return []
        subject = f"{self._query.spec.subjects[1]}shuffled"
        columns = [pa.array([subject] * len(rows)), pa.array([payload for _, payload, _ in rows], pa.binary())]
        names = ["subject", "payload"]
        if self._query.spec.own_ids:
            columns.append(pa.array([own for *_, own in rows]))
            names.append("msg_id")
        whole = pa.RecordBatch.from_arrays(columns, names)
        if self._query.spec.whole or len(rows) < 2:
            return [whole]
        place = self._random.randrange(1, len(rows))
        return [whole[:place], whole[place:]]


def _short(offset: str) -> str:
    """Return an offset for the story."""
    return ", ".join(
        f"{name} up to {entry.end.last}" + ("" if entry.since is None else f" from {entry.first}")
        for name, entry in from_json(json.loads(offset)).items()
    )


# Batches


class Batches:
    """Batch reads and writes of one application."""

    def __init__(self, world: World, name: str, recorder: Any, seed: str, slots: int = 2) -> None:
        self.world = world
        self.name = name
        self.recorder = recorder
        self.random = random.Random(seed)
        self.slots = slots
        self.application = Application(world, name, 1)
        self.jobs: list[Job] = []
        self.job: Job | None = None  # the last one that has written
        self.slow_until = 0.0

    def _job(self, name: str, speculation: float) -> Job:
        return Job(
            self.world,
            self.application,
            self.recorder,
            self.random,
            name=name,
            slots=self.slots,
            speculation=speculation,
            reuse=0.7,
            properties={"spark.sql.execution.id": "1", "spark.sql.execution.root.id": "1"},
            whole=True,
            hold=lambda: max(0.0, self.slow_until - self.world.now),
        )

    def _plan(self, what: str, options: dict[str, str], body: Callable[[Any], Any]) -> Any:
        process = self.application.process(what)
        source, began = pickle.dumps(NatsDataSource(options)), self.world.now
        try:
            return call(self.world, process, lambda: body(pickle.loads(source)))
        finally:
            self.recorder.called(f"{self.name} {what}", "plan", began, options)
            finish(process)

    def read(self, options: dict[str, str], schema: StructType = READ, name: str = "read") -> list[Attempt]:
        """Read a batch: called by an actor of the driver."""

        def plan(source: NatsDataSource) -> tuple[bytes, list[bytes]]:
            reader = source.reader(schema)
            pickled = pickle.dumps(reader)
            return pickled, [pickle.dumps(each) for each in reader.partitions()]

        reader, partitions = self._plan("plans", options, plan)
        job = self._job(name, 0.0)
        job._note = _note_entries if schema is ENTRIES else job._note  # type: ignore[method-assign]
        self.jobs.append(job)
        try:
            return job.read(reader, partitions, None, lambda batch: batch)
        finally:
            self.jobs.remove(job)

    def save(
        self, options: dict[str, str], parts: list[pa.RecordBatch], schema: StructType = WRITE, speculation: float = 0.0
    ) -> list[Attempt]:
        """Write a batch."""

        def plan(source: NatsDataSource) -> bytes:
            return pickle.dumps(source.writer(schema, overwrite=False))

        writer = self._plan("prepares", options, plan)
        job = self.job = self._job("save", speculation)
        done: dict[int, Attempt] = {}
        self.jobs.append(job)
        try:
            job.write(writer, {i: lambda part=part: [part] for i, part in enumerate(parts)}, done)
        finally:
            self.jobs.remove(job)
        results = [done[i] for i in range(len(parts))]
        process = self.application.process("commits")
        try:
            call(
                self.world,
                process,
                lambda: pickle.loads(writer).commit([pickle.loads(each.result) for each in results]),
            )
        finally:
            finish(process)
        return results

    def speculate(self) -> bool:
        """Begin a second attempt of a task that runs."""
        return any(stage.speculate() for job in self.jobs for stage in list(job.stages))

    def kill_worker(self) -> bool:
        """Kill a Python worker, if possible one with a task."""
        workers = [worker for executor in self.application.executors for worker in executor.workers]
        busy = [worker for worker in workers if worker.actors]
        if not workers:
            return False
        self.random.choice(busy or workers).kill()
        return True


def _note_entries(attempt: Attempt, batch: pa.RecordBatch) -> None:
    keys, values, revisions = (batch.column(i).to_pylist() for i in (0, 1, 2))
    attempt.rows += zip(keys, revisions, values, strict=True)
