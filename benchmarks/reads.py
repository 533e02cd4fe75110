"""What each option that affects reading is worth: the same job with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import data, paths, raw
from benchmarks.client import sample as timed_sample
from benchmarks.environment import Server, connect, publisher_to, start_server
from benchmarks.measure import Comparison, Contender, Facts, Sample, Table, compare, timed
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import named, noop, percentile, sample, seconds_of, spent_by_us, triggers
from spark_nats.client.options import RetryOptions
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.kinds.core.receiver import Receiver
from spark_nats.options import connection_options, options_of_urls

_SIZE = 128
_BATCH = 10_000  # Spark's maxRecordsPerBatch


def run(settings: Settings) -> Iterator[Table]:
    """Measure everything."""
    with start_server(settings) as server:
        with start_spark() as session:
            yield _partitions(settings, server, session)
            yield _columns(settings, server, session)
            yield _filters(settings, server, session)
            yield _limits(settings, server, session)
            if not settings.servers:
                yield _idle(settings, server, session)
        yield _receivers(settings, server)


def _read_frame(session: Session, server: Server, stream: str, **options: Any) -> Any:
    return session.spark.read.format("nats").options(**server.options, stream=stream, **options).load()


def _partitions(settings: Settings, server: Server, session: Session) -> Comparison:
    count = settings.messages
    with server.stream("read.>") as stream:
        server.fill(stream, "read.", count, _SIZE)

        def read(partitions: int) -> Sample:
            size = -(-count // partitions)
            frame = partial(_read_frame, session, server, stream, maxRecordsPerPartition=size)
            return sample(server, count, lambda: noop(frame()))

        contenders = [Contender(named(n, "partition"), partial(read, n)) for n in (1, 2, 8, 64, 256)]
        remarks = [f"{count} messages of {_SIZE} bytes; two cores; a batch read of all columns, planning included"]
        title = "reads: number of partitions of a read (minPartitions, maxRecordsPerPartition)"
        return compare(title, "2 partitions", contenders, settings.rounds, remarks)


def _columns(settings: Settings, server: Server, session: Session) -> Comparison:
    count = settings.published
    schemas = {
        "all columns": None,
        "subject, payload": "subject STRING, payload BINARY",
        "payload": "payload BINARY",
        "sequence, timestamp": "sequence BIGINT, timestamp TIMESTAMP",
        "headers, payload": "headers MAP<STRING, ARRAY<STRING>>, payload BINARY",
    }
    with server.stream("read.>") as stream:
        subjects, payloads = data.columns(count, _SIZE, "read.")
        headers = data.header_column(count)
        options = {**server.options, "stream": stream}
        paths.write_checked(options, {"subject": subjects, "payload": payloads, "headers": headers}, _BATCH)

        def read(schema: str | None, select: list[str] | None = None) -> None:
            reader = session.spark.read.format("nats").options(**options, minPartitions=2)
            frame = (reader.schema(schema) if schema else reader).load()
            noop(frame.select(*select) if select else frame)

        def measured(schema: str | None, select: list[str] | None = None) -> Sample:
            return sample(server, count, lambda: read(schema, select))

        contenders = [Contender(f"schema: {name}", partial(measured, schema)) for name, schema in schemas.items()]
        contenders.append(Contender("all columns, then select payload", partial(measured, None, ["payload"])))
        remarks = [f"{count} messages of {_SIZE} bytes with two headers; 2 partitions"]
        title = "reads: columns of a read (schema)"
        return compare(title, "schema: all columns", contenders, settings.rounds, remarks)


def _filters(settings: Settings, server: Server, session: Session) -> Comparison:
    count = settings.filtered
    with server.stream("share.>") as stream:
        subjects, payloads = data.columns(count, _SIZE, "share.")
        paths.write_checked({**server.options, "stream": stream}, {"subject": subjects, "payload": payloads}, _BATCH)
        one = "share.orders.eu.00000.created"

        def read(where: str | None, **options: Any) -> Sample:
            frame = _read_frame(session, server, stream, minPartitions=2, **options)
            return sample(server, count, lambda: noop(frame.where(where) if where else frame))

        quarter, rare = "startswith(subject, 'share.orders.eu.')", f"subject = '{one}'"
        contenders = [
            Contender("a quarter: where() in Spark", partial(read, quarter)),
            Contender("a quarter: subject", partial(read, None, subject="share.orders.eu.>")),
            Contender("1 of 50,000: where() in Spark", partial(read, rare)),
            Contender("1 of 50,000: subject", partial(read, None, subject=one)),
        ]
        remarks = [f"{count} messages of {_SIZE} bytes on 50,000 subjects; msg/s counts all, wanted or not"]
        return compare("reads: filters of a read", "a quarter: where() in Spark", contenders, settings.rounds, remarks)


def _limits(settings: Settings, server: Server, session: Session) -> Comparison:
    count = settings.messages
    with server.stream("from.>") as stream:
        server.fill(stream, "from.", count, _SIZE)
        runs = iter(range(1_000_000))

        def read(parts: int) -> Sample:
            options = {**server.options, "stream": stream, "startingOffsets": "earliest", "minPartitions": "2"}
            if parts > 1:
                options["maxOffsetsPerTrigger"] = str(-(-count // parts))
            frame = session.spark.readStream.format("nats").options(**options).load()
            checkpoint = f"{session.directory}/limits-{next(runs)}"
            return sample(server, count, lambda: seconds_of(frame, "noop", checkpoint, {}))

        contenders = [Contender(named(n, "micro-batch"), partial(read, n)) for n in (1, 5, 20, 50)]
        contenders = [replace(c, name=c.name.replace("batchs", "batches")) for c in contenders]
        remarks = [f"{count} messages with Trigger.AvailableNow into the noop sink, from start to end of the query"]
        title = "reads: number of micro-batches (maxOffsetsPerTrigger)"
        return compare(title, "1 micro-batch", contenders, settings.rounds, remarks)


def _idle(settings: Settings, server: Server, session: Session) -> Facts:
    facts = Facts("reads: a trigger with one message every second (idleTimeout)")
    warm, wanted = (2, 5) if settings.quick else (5, 20)
    for kept in ("30s", "100ms"):
        with server.stream("one.>") as stream, connect(server.url) as connection:
            publisher = publisher_to(connection, stream)

            def one_more() -> None:
                publisher.publish(*data.columns(1, _SIZE, "one."))  # noqa: B023 - called here only
                publisher.wait_for_sent_rows()  # noqa: B023

            frame = (
                session.spark.readStream.format("bench_nats")
                .options(**server.options, stream=stream, startingOffsets="earliest", idleTimeout=kept)
                .load()
            )
            checkpoint = f"{session.directory}/idle-{kept}"
            before = server.connections_made()
            found = triggers(facts.title, frame, checkpoint, warm + wanted, one_more, "1 second")
            made = server.connections_made() - before
        facts.add(f"idleTimeout {kept}: ours, p50", percentile(spent_by_us(session, found[warm:]), 0.5), "ms")
        facts.add(f"idleTimeout {kept}: connections made for each trigger", made / len(found), "")
    facts.remarks.append(
        "without TLS and login, on loopback: a connection costs two round trips more with each of them"
    )
    return facts


def _receivers(settings: Settings, server: Server) -> Comparison:
    count = settings.messages

    def listen(receivers: int) -> float:
        backlog = Backlog(1 << 40)
        options = connection_options(**options_of_urls(server.url))
        retries = RetryOptions(0.0, 0.0, 0.0, None)
        group = "bench" if receivers > 1 else None
        listening = [Receiver(options, retries, [feeder.subject], group, backlog) for _ in range(receivers)]
        with connect(server.url) as connection, timed() as seconds:
            raw.fill(connection, backlog, count)
        for receiver in listening:
            receiver.unsubscribe_drain_and_close()
        return seconds()

    def listened(receivers: int) -> Sample:
        return timed_sample(server, count, lambda: listen(receivers))

    with raw.Feeder(server.url, _SIZE) as feeder:
        contenders = [Contender(named(n, "receiver"), partial(listened, n)) for n in (1, 2, 4)]
        remarks = ["what the driver takes in; the server and the feeder share the cores with it"]
        return compare(
            "reads: receivers of core NATS, on the driver", "1 receiver", contenders, settings.rounds, remarks
        )
