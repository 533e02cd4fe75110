"""What each option that affects writing is worth: the same job with one thing changed at a time."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks import data, paths
from benchmarks.client import sample as timed_sample
from benchmarks.environment import Server, start_server
from benchmarks.measure import Comparison, Contender, Facts, Sample, Table, compare, progress
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import finish, message_frame, named, sample, seconds_of

_SIZE = 128
_BATCH = 10_000  # Spark's maxRecordsPerBatch
_TOGETHER = 1000  # most rows of a partition with atomic


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything."""
    with start_server(settings) as server:
        yield _in_flight(settings, server)
        yield _together(settings, server)
        with start_spark() as session:
            yield _arrow(settings, server, session)
            yield _deduplicate(settings, server, session)
            yield _tasks(settings, server, session)


def _in_flight(settings: Settings, server: Server) -> Comparison:
    count = settings.published
    subjects, payloads = data.columns(count, _SIZE, "keep.")

    def store(rows: int) -> Sample:
        with server.stream("keep.>") as stream:
            options = {**server.options, "stream": stream, "maxInFlight": str(rows)}
            taken = timed_sample(server, count, lambda: _write(options, subjects, payloads, _BATCH))
            server.check(stream, count)
        return taken

    contenders = [Contender(f"maxInFlight {n}", partial(store, n)) for n in (64, 512, 2048, 8192, 32_768)]
    return compare("writes: maxInFlight, one task", "maxInFlight 8192", contenders, settings.rounds)


def _together(settings: Settings, server: Server) -> Comparison:
    count = settings.published // 3 // _TOGETHER * _TOGETHER
    subjects, payloads = data.columns(count, _SIZE, "keep.")
    ids, atomic = {"deduplicate": "window"}, {"atomic": "true"}

    def store(**given: str) -> Sample:
        with server.stream("keep.>", allow_atomic=True) as stream:
            options = {**server.options, "stream": stream, **given}

            def tasks() -> float:
                return sum(_write(options, subjects[s], payloads[s], _BATCH) for s in data.slices(count, _TOGETHER))

            taken = timed_sample(server, count, tasks)
            server.check(stream, count)
        return taken

    contenders = [
        Contender("without message ids", partial(store)),
        Contender("with message ids", partial(store, **ids)),
        Contender("atomic, without message ids", partial(store, **atomic)),
        Contender("atomic, with message ids", partial(store, **ids, **atomic)),
    ]
    title = f"writes: atomic, tasks of {_TOGETHER} rows, one after the other"
    return compare(title, "without message ids", contenders, settings.rounds)


def _write(options: dict[str, str], subjects: Any, payloads: Any, batch: int) -> float:
    return paths.write_checked(options, {"subject": subjects, "payload": payloads}, batch)


def _arrow(settings: Settings, server: Server, session: Session) -> Comparison:
    count = settings.published
    frame = message_frame(session, count, "keep.", 2).persist()
    frame.count()  # now its rows are in memory
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"

    def write(rows: int) -> Sample:
        session.spark.conf.set(setting, rows)
        with server.stream("keep.>") as stream:
            options = {**server.options, "stream": stream}
            writer = frame.write.format("nats").options(**options).mode("append")
            taken = sample(server, count, lambda: writer.save())
            server.check(stream, count)
        session.spark.conf.unset(setting)
        return taken

    contenders = [Contender(f"batches of {n} rows", partial(write, n)) for n in (100, 1000, 10_000, 100_000)]
    title = "writes: Arrow batches of a write (spark.sql.execution.arrow.maxRecordsPerBatch)"
    table = compare(title, "batches of 10000 rows", contenders, settings.rounds)
    frame.unpersist()
    return table


def _deduplicate(settings: Settings, server: Server, session: Session) -> Comparison:
    count = settings.published
    runs = iter(range(1_000_000))
    with server.stream("from.>") as source:
        server.fill(source, "from.", count, _SIZE)
        reading = {**server.options, "stream": source, "startingOffsets": "earliest", "minPartitions": "2"}
        moved = session.spark.readStream.format("nats").options(**reading).load()
        moved = moved.selectExpr("concat('to.', subject) AS subject", "payload")

        def write(how: str) -> Sample:
            with server.stream("to.>") as stream:
                options = {**server.options, "stream": stream, "deduplicate": how}
                checkpoint = f"{session.directory}/deduplicate-{next(runs)}"
                taken = sample(server, count, lambda: seconds_of(moved, "nats", checkpoint, options))
                server.check(stream, count)
            return taken

        contenders = [Contender(f"deduplicate {how}", partial(write, how)) for how in ("exact", "window", "false")]
        remarks = [f"{count} messages from stream to stream with Trigger.AvailableNow, 2 partitions, start and end too"]
        title = "writes: deduplicate, a streaming query"
        return compare(title, "deduplicate exact", contenders, settings.rounds, remarks)


def _tasks(settings: Settings, server: Server, session: Session) -> Facts:
    facts = Facts("writes: a micro-batch of 1,000 rows, by the number of its tasks")
    warm, wanted, rows = 1, (5 if settings.quick else 10), 1000
    with server.stream("from.>") as source:
        server.fill(source, "from.", rows * (warm + wanted), _SIZE)
        for tasks in (1, 4, 20):
            for how in ("exact", "false"):
                progress(f"{facts.title}: {tasks}, {how}")
                options = {
                    **server.options,
                    "stream": source,
                    "startingOffsets": "earliest",
                    "minPartitions": str(tasks),
                    "maxOffsetsPerTrigger": str(rows),
                }
                frame = session.spark.readStream.format("nats").options(**options).load()
                moved = frame.selectExpr("concat('to.', subject) AS subject", "payload")
                with server.stream("to.>") as target:
                    options = {**server.options, "stream": target, "deduplicate": how}
                    found = finish(moved, "nats", f"{session.directory}/tasks-{tasks}-{how}", options)
                taken = statistics.median(p.durationMs["addBatch"] for p in found[warm:])
                facts.add(f"{named(tasks, 'task')}, deduplicate {how}: addBatch, p50", taken, "ms")
    facts.remarks.append(
        "from stream to stream; two cores; addBatch is what Spark calls reading, computing and writing"
    )
    return facts
