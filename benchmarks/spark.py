"""The data source inside Spark, beside the server's limit and the engine's."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks import data, paths, raw, sources, targets
from benchmarks.environment import CpuMeter, Server, connect, publisher_to, start_server
from benchmarks.measure import Comparison, Contender, Facts, Sample, Table, compare, progress, timed
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings

_SIZE = 128
_BATCH = 10_000  # Spark's maxRecordsPerBatch
_RATE = 1000  # messages in a second, for the latency
PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets", "triggerExecution")


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything."""
    if settings.quick:
        settings = replace(settings, rounds=1)
    context = multiprocessing.get_context("spawn")
    with start_server(settings) as server, start_spark() as session, context.Pool(2) as pool:
        yield _read(settings, server, session, pool)
        yield _write(settings, server, session, pool)
        yield _stream_to_stream(settings, server, session)
        yield _latency(settings, server, session)
        yield _trigger(settings, server, session)


def sample(server: Server, count: int, run: Callable[[], float | None]) -> Sample:
    """Time a run, which may know its seconds better."""
    meter = CpuMeter(server)
    with timed() as seconds:
        own = run()
    return Sample(count, own or seconds(), extra=meter.per_message(count))


def _together(pool: Any, function: Callable[..., tuple[float, float]], arguments: list[tuple[Any, ...]]) -> float:
    """Run a function in several processes at once and return the seconds from the first's begin to the last's end."""
    times: list[tuple[float, float]] = pool.starmap(function, arguments, chunksize=1)
    return max(end for _, end in times) - min(begin for begin, _ in times)


def _halves(count: int) -> list[tuple[int, int]]:
    return [(1, count // 2 + 1), (count // 2 + 1, count + 1)]


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _read(settings: Settings, server: Server, session: Session, pool: Any) -> Comparison:
    spark, count = session.spark, settings.messages
    with server.stream("read.>") as stream:
        server.fill(stream, "read.", count, _SIZE)

        def ours(partitions: int) -> None:
            options: dict[str, Any] = {
                **server.options,
                "stream": stream,
                "minPartitions": partitions,
                "maxRecordsPerPartition": count // partitions,
            }
            noop(spark.read.format("nats").options(**options).load())

        def drained(ranges: list[tuple[int, int]]) -> Sample:
            arguments = [(server.url, stream, *r) for r in ranges]
            return sample(server, count, lambda: _together(pool, raw.drain_range, arguments))

        def ready(partitions: int) -> None:
            options = {"rows": count // partitions, "partitions": partitions}
            noop(spark.read.format("bench_rows").options(**options).load())

        found = spark.read.format("nats").options(**server.options).option("stream", stream).load().count()
        if found != count:
            raise AssertionError(f"{found} rows were read instead of {count}")
        contenders = [
            Contender("spark-nats, 2 partitions", lambda: sample(server, count, partial(ours, 2)), "planning included"),
            Contender("spark-nats, 1 partition", lambda: sample(server, count, partial(ours, 1))),
            Contender("raw drain, 2 connections", lambda: drained(_halves(count)), "a process each; nothing decoded"),
            Contender("raw drain, 1 connection", lambda: drained([(1, count + 1)])),
            Contender(
                "ready Arrow batches, 2 partitions",
                lambda: sample(server, count, partial(ready, 2)),
                "a Python source that gives the same 3 columns over and over: what Spark takes from Python workers",
            ),
            Contender(
                "spark.range, 2 partitions",
                lambda: sample(server, count, lambda: noop(message_frame(session, count, "any.", 2))),
                "subject and payload made by Spark itself",
            ),
        ]
        return compare(targets.SPARK_READ, "raw drain, 2 connections", contenders, settings.rounds)


def message_frame(session: Session, count: int, prefix: str, partitions: int) -> Any:
    """Return messages that Spark makes itself."""
    return session.spark.range(0, count, 1, partitions).selectExpr(
        f"concat('{prefix}orders.eu.', lpad(id * 7919 % {data.SUBJECTS}, 5, '0'), '.created') AS subject",
        f"cast(rpad(concat('{{\"id\":', id, '}}'), {_SIZE}, 'x') AS BINARY) AS payload",
    )


def finish(frame: Any, target: str, checkpoint: str, options: dict[str, str]) -> list[Any]:
    """Run a query to its end, and return the progress of its last micro-batches that had rows."""
    writer = frame.writeStream.format(target).options(checkpointLocation=checkpoint, **options)
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(300):
        query.stop()
        raise TimeoutError("the query did not end")
    return [p for p in query.recentProgress if p.numInputRows]


def seconds_of(*arguments: Any) -> float:
    """Return the seconds that a query takes, as :func:`finish` runs it."""
    with timed() as seconds:
        finish(*arguments)
    return seconds()


def named(number: int, what: str) -> str:
    """Write a number of things."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _write(settings: Settings, server: Server, session: Session, pool: Any) -> Comparison:
    count = settings.published
    subjects, payloads = data.columns(count, _SIZE, "keep.")
    frames = {n: message_frame(session, count, "keep.", n).persist() for n in (1, 2)}
    for frame in frames.values():
        frame.count()  # now its rows are in memory

    def to_stream(work: Callable[[str], float | None]) -> Sample:
        with server.stream("keep.>") as stream:
            taken = sample(server, count, lambda: work(stream))
            server.check(stream, count)
        return taken

    def ours(partitions: int, stream: str) -> None:
        options = {**server.options, "stream": stream}
        frames[partitions].write.format("nats").options(**options).mode("append").save()

    def in_process(stream: str) -> float:
        return paths.publish_stream(server.url, stream, subjects, payloads, _BATCH)

    def in_processes(stream: str) -> float:
        return _together(pool, paths.publish_generated, [(server.url, stream, "keep.", count // 2, _SIZE, _BATCH)] * 2)

    contenders = [
        Contender("spark-nats, 2 partitions", lambda: to_stream(partial(ours, 2)), "rows kept in Spark's memory"),
        Contender("spark-nats, 1 partition", lambda: to_stream(partial(ours, 1))),
        Contender("Arrow to JetStream, 1 connection", lambda: to_stream(in_process), "in this process, no Spark"),
        Contender("Arrow to JetStream, 2 connections", lambda: to_stream(in_processes), "two processes, no Spark"),
        Contender(
            "rows thrown away, 2 partitions",
            lambda: sample(server, count, lambda: frames[2].write.format("bench_drop").mode("append").save()),
            "a Python Arrow writer that drops them: what Spark gives to Python workers",
        ),
    ]
    table = compare(targets.SPARK_WRITE, "Arrow to JetStream, 1 connection", contenders, settings.rounds)
    for frame in frames.values():
        frame.unpersist()
    return table


def _stream_to_stream(settings: Settings, server: Server, session: Session) -> Comparison:
    spark, count = session.spark, settings.published
    runs = iter(range(1_000_000))

    def query(frame: Any, target: str, options: dict[str, str]) -> None:
        checkpoint = f"{session.directory}/checkpoint-{next(runs)}"
        writer = frame.writeStream.format(target).options(checkpointLocation=checkpoint, **options)
        if not writer.trigger(availableNow=True).start().awaitTermination(300):
            raise TimeoutError("the query did not end")

    with server.stream("from.>") as source:
        server.fill(source, "from.", count, _SIZE)
        reading = {**server.options, "stream": source, "startingOffsets": "earliest", "minPartitions": "2"}
        messages = spark.readStream.format("nats").options(**reading).load()

        def to_stream(deduplicate: str) -> Sample:
            with server.stream("to.>") as stream:
                moved = messages.selectExpr("concat('to.', subject) AS subject", "payload")
                options = {**server.options, "stream": stream, "deduplicate": deduplicate}
                taken = sample(server, count, lambda: query(moved, "nats", options))
                server.check(stream, count)
            return taken

        ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count).option("numPartitions", 2)
        contenders = [
            Contender("spark-nats, stream to stream", lambda: to_stream("false"), "2 partitions, without message ids"),
            Contender("spark-nats, stream to stream, message ids", lambda: to_stream("true"), "as by default"),
            Contender("spark-nats, stream to noop", lambda: sample(server, count, lambda: query(messages, "noop", {}))),
            Contender(
                "Spark's rate source to noop",
                lambda: sample(server, count, lambda: query(ticks.load(), "noop", {})),
                "rate-micro-batch, 2 numbers a row: the time of a query that has nothing to do",
            ),
        ]
        remarks = ["whole queries with trigger availableNow, from start to end: about two seconds are Spark's"]
        return compare("spark: stream to stream", "spark-nats, stream to stream", contenders, settings.rounds, remarks)


def percentile(values: list[float], share: float) -> float:
    """Return a percentile by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _latency(settings: Settings, server: Server, session: Session) -> Facts:
    facts = Facts("spark: from publish to the row seen by foreachBatch, 1,000 messages a second")
    warm, seconds = (2.0, 5.0) if settings.quick else (5.0, 30.0)
    seen: list[tuple[int, int]] = []

    def take(frame: Any, _: int) -> None:
        sent = frame.select("payload").toArrow().column(0).to_pylist()
        now = time.time_ns()
        seen.extend((int(text), now) for text in sent)

    with server.stream("late.>") as stream, connect(server.url) as connection:
        publisher = publisher_to(connection, stream)
        options = {**server.options, "stream": stream, "startingOffsets": "earliest"}
        frame = session.spark.readStream.format("nats").options(**options).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", f"{session.directory}/latency")
        query = writer.start()
        began = time.monotonic()
        published = 0
        while (elapsed := time.monotonic() - began) < warm + seconds:
            progress(f"{facts.title}: {elapsed:.0f} s")
            due = int(elapsed * _RATE) - published
            if due > 0:
                payload = str(time.time_ns()).encode()
                publisher.publish(pa.repeat("late.now", due), pa.repeat(payload, due))
                published += due
            time.sleep(0.01)
        publisher.wait_for_sent_rows()
        deadline = time.monotonic() + 60
        while len(seen) < published and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()
    first = min(sent for sent, _ in seen) + warm * 1e9
    latencies = [(now - sent) / 1e6 for sent, now in seen if sent >= first]
    facts.add("p50", percentile(latencies, 0.5), "ms")
    facts.add("p99", percentile(latencies, 0.99), "ms")
    if len(seen) != published:
        raise AssertionError(f"{len(seen)} messages were seen of {published}")
    facts.remarks.append(
        f"{len(latencies)} messages in {seconds:g} s, the first {warm:g} s left out; no trigger interval"
    )
    return facts


def _trigger(settings: Settings, server: Server, session: Session) -> Facts:
    facts = Facts(targets.SPARK_TRIGGER)
    warm, wanted = (3, 10) if settings.quick else (10, 50)
    with server.stream("one.>") as stream, connect(server.url) as connection:
        publisher = publisher_to(connection, stream)

        def one_more() -> None:
            publisher.publish(pa.array(["one.message"]), pa.array([b"x" * _SIZE]))
            publisher.wait_for_sent_rows()

        frame = (
            session.spark.readStream.format("bench_nats")
            .options(**server.options)
            .option("stream", stream)
            .option("startingOffsets", "earliest")
            .load()
        )
        nats = triggers(facts.title, frame, f"{session.directory}/trigger-nats", warm + wanted, one_more)[warm:]
    ticks = session.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    rate = triggers(facts.title, ticks, f"{session.directory}/trigger-rate", warm + wanted)[warm:]

    ours = spent_by_us(session, nats)
    probes = sources.read_probes(session.probes)
    partitions = [_inside(probes, "partitions", t) for t in nats]
    read = [_inside(probes, "read", t) for t in nats]
    looked = [_inside(probes, "latestOffset", t) for t in nats]
    spent = [_looking(t) for t in nats]
    facts.add("ours, p50", percentile(ours, 0.5), "ms")
    facts.add("ours, p99", percentile(ours, 0.99), "ms")
    facts.add("of that latestOffset as Spark sees it, p50", statistics.median(spent), "ms")
    facts.add("of that latestOffset() inside, p50", statistics.median(looked), "ms")
    facts.add("of that partitions() inside, p50", statistics.median(partitions), "ms")
    facts.add("of that read() inside, p50", statistics.median(read), "ms")
    for name, found in (("spark-nats", nats), ("Spark's rate source", rate)):
        for phase in PHASES:
            facts.add(f"{name}: {phase}, p50", statistics.median(t.durationMs.get(phase, 0) for t in found), "ms")
    facts.remarks.append(
        "ours: durationMs.latestOffset and getBatch, which include Spark's way to Python and back, and what passes "
        "inside our partitions(), which Spark calls in its queryPlanning, and inside our read(), in its addBatch"
    )
    return facts


def spent_by_us(session: Session, found: list[Any]) -> list[float]:
    """Return the milliseconds that our part of each trigger took, in a query of the format with probes."""
    probes = sources.read_probes(session.probes)
    return [_looking(t) + _inside(probes, "partitions", t) + _inside(probes, "read", t) for t in found]


def _looking(trigger: Any) -> float:
    """Milliseconds for the offset, Spark's way to Python and back included."""
    return float(trigger.durationMs["latestOffset"] + trigger.durationMs.get("getBatch", 0))


def _inside(probes: list[dict[str, Any]], what: str, trigger: Any) -> float:
    """Milliseconds that a function of ours took within a trigger."""
    start = datetime.fromisoformat(trigger.timestamp).timestamp()
    end = start + trigger.durationMs["triggerExecution"] / 1000
    return sum(float(p["ms"]) for p in probes if p["what"] == what and start <= p["at"] <= end)


def triggers(
    title: str,
    frame: Any,
    checkpoint: str,
    count: int,
    before_each: Callable[[], None] | None = None,
    interval: str = "0 seconds",
    target: str = "noop",
    options: dict[str, str] | None = None,
) -> list[Any]:
    """Run a query until it has had ``count`` triggers with one row, and return their progress."""
    writer = frame.writeStream.format(target).options(checkpointLocation=checkpoint, **(options or {}))
    query = writer.trigger(processingTime=interval).start()
    found: dict[int, Any] = {}
    try:
        while len(found) < count:
            progress(f"{title}: {len(found)} of {count}")
            before = len(found)
            deadline = time.monotonic() + 60
            if before_each:
                before_each()
            while len(found) == before:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(found)} triggers of {count} came: {query.exception()}")
                time.sleep(0.01)
                found |= {p.batchId: p for p in query.recentProgress if p.numInputRows == 1}
    finally:
        query.stop()
    return [found[i] for i in sorted(found)]
