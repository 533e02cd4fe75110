"""What reading and writing cost: CPU time and memory of our processes, the server's not counted."""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks import data, paths, raw, sources, targets
from benchmarks.environment import Server, spark_cpu_seconds, spark_processes, start_server
from benchmarks.measure import Facts, progress
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings

_SIZE = 128
_BATCH = 10_000  # Spark's maxRecordsPerBatch
_CPU = "CPU seconds per million messages"


def run(settings: Settings) -> Iterator[Facts]:
    """Measure everything."""
    with start_server(settings) as server, server.stream("cost.>") as stream:
        server.fill(stream, "cost.", settings.long_read, _SIZE)
        yield _client(settings, server, stream)
        with start_spark() as session:
            yield _spark(settings, server, stream, session)
            yield _memory(settings, server, stream, session)


# Without Spark: each run in a process of its own


def _client(settings: Settings, server: Server, stream: str) -> Facts:
    facts = Facts("cost: of our client, without Spark")
    count, published = settings.messages, settings.published
    rounds = 1 if settings.quick else settings.rounds

    def add(name: str, messages: int, path: Callable[..., tuple[float, float, float]], *arguments: Any) -> None:
        runs = []
        for i in range(rounds):
            progress(f"{facts.title}: {name}, round {i + 1} of {rounds}")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                runs.append(pool.apply(path, arguments))
        seconds, before, peak = (statistics.median(values) for values in zip(*runs, strict=True))
        facts.add(f"{name}: {_CPU}", seconds / messages * 1e6, "s")
        facts.add(f"{name}: peak memory", peak, "MB")
        facts.add(f"{name}: of that before the first message", before, "MB")

    add("stream to Arrow", count, _cost_of_reading, server.url, stream, count)
    with raw.Feeder(server.url, _SIZE) as feeder:
        add("core subscribe to Arrow", count, _cost_of_subscribing, server.url, feeder.subject, count)
    add("Arrow to core publish", count, _cost_of_publishing, server.url, count)
    with server.stream("kept.>") as target:
        add("Arrow to stream", published, _cost_of_storing, server.url, target, published, False)
        add("Arrow to stream, message ids", published, _cost_of_storing, server.url, target, published, True)
    facts.remarks.append("user and system time; a process of its own for each run")
    return facts


def cost_of(path: Callable[..., object], *arguments: Any) -> tuple[float, float, float]:
    """Return the CPU seconds, and the memory before and at the most, in MB, of running a path in this process."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far, of imports and of making messages, is forgotten
    memory = _memory_of_this_process("VmRSS")
    before = resource.getrusage(resource.RUSAGE_SELF)
    path(*arguments)
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, memory, _memory_of_this_process("VmHWM")


def _memory_of_this_process(field: str) -> float:
    """Return a line of the kernel's status page in MB. (``ru_maxrss`` would also tell of the parent's past.)"""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024 / 1e6


def _cost_of_reading(url: str, stream: str, count: int) -> tuple[float, float, float]:
    return cost_of(paths.read_stream, url, stream, 1, count + 1)


def _cost_of_subscribing(url: str, subject: str, count: int) -> tuple[float, float, float]:
    return cost_of(paths.subscribe, url, subject, count, raw.PART_MESSAGES)


def _cost_of_publishing(url: str, count: int) -> tuple[float, float, float]:
    return cost_of(paths.publish, url, *data.columns(count, _SIZE, "drop."), _BATCH)


def _cost_of_storing(url: str, stream: str, count: int, with_ids: bool) -> tuple[float, float, float]:
    return cost_of(paths.publish_stream, url, stream, *data.columns(count, _SIZE, "kept."), _BATCH, with_ids)


# With Spark


def _spark(settings: Settings, server: Server, stream: str, session: Session) -> Facts:
    facts = Facts("cost: inside Spark, JVM and Python workers")
    spark, count, published = session.spark, settings.messages, settings.published
    ending = json.dumps({stream: count + 1})

    def read() -> None:
        options: dict[str, Any] = {**server.options, "stream": stream, "endingOffsets": ending, "minPartitions": 2}
        spark.read.format("nats").options(**options).load().write.format("noop").mode("overwrite").save()

    def write() -> None:
        rows = spark.range(0, published, 1, 2).selectExpr(
            "'kept.now' AS subject", "cast(rpad(id, 128, 'x') AS BINARY) AS payload"
        )
        with server.stream("kept.>") as target:
            rows.write.format("nats").options(**server.options, stream=target).mode("append").save()

    for name, messages, job in (("stream to DataFrame", count, read), ("DataFrame to stream", published, write)):
        runs = []
        for i in range(-1, settings.rounds):
            progress(f"{facts.title}: {name}, round {i + 1} of {settings.rounds}")
            before = spark_cpu_seconds()
            job()
            after = spark_cpu_seconds()
            if i >= 0:
                runs.append([(after[kind] - before[kind]) / messages * 1e6 for kind in ("java", "python")])
        java, python = (statistics.median(values) for values in zip(*runs, strict=True))
        facts.add(f"{name}: {_CPU}, Python workers", python, "s")
        facts.add(f"{name}: {_CPU}, JVM", java, "s")
    facts.add("memory of the largest Python worker", max(worker_megabytes(), default=0.0), "MB")
    facts.remarks.append("two partitions; the JVM's share is Spark's own, with the making of the rows to be written")
    return facts


def worker_megabytes() -> list[float]:
    found = []
    for process in spark_processes():
        try:
            if "python" in process.name():
                found.append(process.memory_info().rss / 1e6)
        except psutil.NoSuchProcess:
            continue
    return found


def _memory(settings: Settings, server: Server, stream: str, session: Session) -> Facts:
    facts = Facts(targets.MEMORY)
    count = settings.long_read
    progress(facts.title)
    options: dict[str, Any] = {**server.options, "stream": stream, "maxRecordsPerPartition": count, "minPartitions": 1}
    frame = session.spark.read.format("bench_nats").options(**options).load()
    frame.write.format("noop").mode("overwrite").save()
    (probe,) = [p for p in sources.read_probes(session.probes) if p["what"] == "memory"]
    if probe["rows"] != count:
        raise AssertionError(f"{probe['rows']} rows were read instead of {count}")
    facts.add("growth over the first batch", probe["peak"] - probe["first"], "MB")
    facts.add("with the first batch", probe["first"], "MB")
    facts.add("at the most", probe["peak"], "MB")
    facts.add("at the end", probe["last"], "MB")
    facts.add("messages", count / 1e6, "million")
    facts.remarks.append("resident memory of one worker, seen after each Arrow batch; one partition, all columns")
    return facts
