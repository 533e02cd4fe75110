"""Streams and subjects to Arrow and back over one connection, beside other clients and the server's own limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks import data, paths, raw, targets
from benchmarks.environment import CpuMeter, Server, start_server
from benchmarks.measure import Comparison, Contender, Sample, compare, timed
from benchmarks.peers import nats_py, natsrpy
from benchmarks.peers.nats_c import NatsC
from benchmarks.settings import Settings
from benchmarks.targets import OURS

_SIZE = 128
_BATCH = 10_000  # rows in a batch of Spark's, when it writes
_FETCH = 1000
_C_WINDOW = 8192  # as our default of maxInFlight
_FEW = 12  # slow peers handle a twelfth


def run(settings: Settings) -> Iterator[Comparison]:
    """Measure everything."""
    c = NatsC()
    skipped = [text for text in (c.missing, natsrpy.MISSING) if text]
    with start_server(settings) as server:
        yield _read_stream(settings, server, c, skipped)
        yield _subscribe(settings, server, c, skipped)
        yield _publish(settings, server, c, skipped)
        yield _publish_stream(settings, server, c, skipped)


def sample(server: Server, count: int, run: Callable[[], float]) -> Sample:
    """Make a sample of something that returns its own seconds."""
    meter = CpuMeter(server)
    return Sample(count, run(), extra=meter.per_message(count))


def _read_stream(settings: Settings, server: Server, c: NatsC, skipped: list[str]) -> Comparison:
    count = settings.messages
    few = count // _FEW
    with server.stream("read.>") as stream:
        server.fill(stream, "read.", count, _SIZE)

        def ours() -> float:
            with timed() as seconds:
                rows = paths.read_stream(server.url, stream, 1, count + 1)
            if rows != count:
                raise AssertionError(f"{rows} rows were read instead of {count}")
            return seconds()

        def drained() -> float:
            began, ended = raw.drain_range(server.url, stream, 1, count + 1)
            return ended - began

        contenders = [
            Contender(
                OURS, lambda: sample(server, count, ours), "with connecting, making the consumer and deleting it"
            ),
            Contender(
                "raw drain", lambda: sample(server, count, drained), "same consumer, same requests, nothing decoded"
            ),
        ]
        if not c.missing:
            contenders += [
                Contender(
                    "nats.c, ordered consumer",
                    lambda: sample(server, count, lambda: c.run("ordered", server.url, stream, "read.>", count)[1]),
                    "push with flow control, js_Subscribe with a callback",
                ),
                Contender(
                    "nats.c, pull fetch",
                    lambda: sample(
                        server, count, lambda: c.run("fetch", server.url, stream, "read.>", count, _FETCH)[1]
                    ),
                    f"natsSubscription_Fetch of {_FETCH}",
                ),
            ]
        contenders.append(
            Contender(
                "nats-py",
                lambda: sample(server, few, partial(nats_py.read_stream, server.url, stream, few, _FETCH)),
                f"pull subscription, fetch of {_FETCH}",
            )
        )
        if not natsrpy.MISSING:
            contenders.append(
                Contender(
                    "natsrpy",
                    lambda: sample(server, few, partial(natsrpy.read_stream, server.url, stream, few, _FETCH)),
                    f"pull consumer, fetch of {_FETCH}",
                )
            )
        return compare(targets.READ_STREAM, "raw drain", contenders, settings.rounds, skipped)


def _subscribe(settings: Settings, server: Server, c: NatsC, skipped: list[str]) -> Comparison:
    count = settings.messages
    few = count // _FEW // raw.PART_MESSAGES * raw.PART_MESSAGES or raw.PART_MESSAGES
    one = raw.PART_MESSAGES
    protocol = (raw.GO, raw.CREDIT, raw.PART_MESSAGES)
    with raw.Feeder(server.url, _SIZE) as feeder:

        def sample(messages: int, run: Callable[[], float]) -> Sample:
            meter = CpuMeter(server, feeder.pid)
            seconds = run()
            spent = meter.per_message(messages)
            return Sample(messages, seconds, extra={"feeder waited %": 100 * feeder.waited / seconds, **spent})

        size = feeder.wire_size * (count // raw.PART_MESSAGES)
        subject = feeder.subject
        contenders = [
            Contender(
                OURS, lambda: sample(count, partial(paths.subscribe, server.url, subject, count, raw.PART_MESSAGES))
            ),
            Contender("raw drain", lambda: sample(count, partial(raw.drain_subject, server.url, subject, count, size))),
        ]
        if not c.missing:
            contenders.append(
                Contender(
                    "nats.c",
                    lambda: sample(count, lambda: c.run("sub", server.url, subject, count, raw.PART_MESSAGES)[1]),
                    "natsConnection_Subscribe with a callback",
                )
            )
        contenders.append(
            Contender(
                "nats-py",
                lambda: sample(few, partial(nats_py.subscribe, server.url, subject, few, *protocol)),
                "subscription with a callback",
            )
        )
        if not natsrpy.MISSING:
            contenders.append(
                Contender(
                    "natsrpy",
                    lambda: sample(one, partial(natsrpy.subscribe, server.url, subject, one, *protocol)),
                    f"async for; {one} messages, since it loses some of more",
                )
            )
        remarks = [
            "another process publishes encoded messages as fast as it may; the less it waits for the subscriber's "
            "credits, the more it and the server are the limit",
            *skipped,
        ]
        return compare(targets.SUBSCRIBE, "raw drain", contenders, settings.rounds, remarks)


def _publish(settings: Settings, server: Server, c: NatsC, skipped: list[str]) -> Comparison:
    few = settings.messages // _FEW
    subjects, payloads = data.columns(settings.messages, _SIZE, "drop.")
    wire = raw.encoded("drop.", _SIZE)
    times = settings.messages // raw.PART_MESSAGES
    few_subjects, few_payloads = subjects[:few].to_pylist(), payloads[:few].to_pylist()
    columns = {"subject": subjects, "payload": payloads}
    contenders = [
        Contender(
            OURS,
            lambda: sample(server, len(subjects), partial(paths.publish, server.url, subjects, payloads, _BATCH)),
            f"{_BATCH} rows at a time",
        ),
        Contender(
            "spark-nats, rows checked",
            lambda: sample(server, len(subjects), partial(paths.write_checked, server.options, columns, _BATCH)),
            "as a task of Spark's writes",
        ),
        Contender(
            "raw send",
            lambda: sample(server, settings.messages, partial(raw.send_all, server.url, wire, times)),
            "encoded before",
        ),
    ]
    if not c.missing:
        contenders.append(
            Contender(
                "nats.c",
                lambda: sample(
                    server,
                    settings.messages,
                    lambda: c.run("pub", server.url, "drop.", settings.messages, _SIZE)[1],
                ),
                "natsConnection_Publish",
            )
        )
    contenders.append(
        Contender(
            "nats-py", lambda: sample(server, few, partial(nats_py.publish, server.url, few_subjects, few_payloads))
        )
    )
    if not natsrpy.MISSING:
        contenders.append(
            Contender(
                "natsrpy", lambda: sample(server, few, partial(natsrpy.publish, server.url, few_subjects, few_payloads))
            )
        )
    return compare(targets.PUBLISH, "nats.c" if not c.missing else "raw send", contenders, settings.rounds, skipped)


def _publish_stream(settings: Settings, server: Server, c: NatsC, skipped: list[str]) -> Comparison:
    count = settings.published
    few = count // _FEW
    subjects, payloads = data.columns(count, _SIZE, "keep.")
    few_subjects, few_payloads = subjects[:few].to_pylist(), payloads[:few].to_pylist()

    def sample(messages: int, publish: Callable[[str], float]) -> Sample:
        with server.stream("keep.>") as stream:
            before, meter = server.memory(), CpuMeter(server)
            seconds = publish(stream)
            spent, after = meter.per_message(messages), server.memory()
            server.check(stream, messages)
        if before is None or after is None:
            return Sample(messages, seconds)
        return Sample(messages, seconds, extra={**spent, "server MB before": before, "server MB after": after})

    def ours(with_ids: bool, stream: str) -> float:
        return paths.publish_stream(server.url, stream, subjects, payloads, _BATCH, with_ids)

    def in_c(ids: int, stream: str) -> float:
        return c.run("jspub", server.url, "keep.", count, _SIZE, _C_WINDOW, ids)[1]

    contenders = [
        Contender(OURS, lambda: sample(count, partial(ours, False)), "without headers"),
        Contender("spark-nats, message ids", lambda: sample(count, partial(ours, True)), "made of what rows say"),
    ]
    if not c.missing:
        contenders += [
            Contender("nats.c", lambda: sample(count, partial(in_c, 0)), f"js_PublishAsync, MaxPending {_C_WINDOW}"),
            Contender("nats.c, message ids", lambda: sample(count, partial(in_c, 1))),
        ]
    contenders.append(
        Contender(
            "nats-py",
            lambda: sample(few, lambda _: nats_py.publish_stream(server.url, few_subjects, few_payloads)),
            "publish_async, at most 4000 in flight, its default",
        )
    )
    if not natsrpy.MISSING:
        contenders.append(
            Contender(
                "natsrpy",
                lambda: sample(few, lambda _: natsrpy.publish_stream(server.url, few_subjects, few_payloads)),
                "publish with wait, a thousand at a time",
            )
        )
    remarks = ["a new stream in files for each run", "server MB: its resident memory before and after a run", *skipped]
    return compare(targets.PUBLISH_STREAM, OURS, contenders, settings.rounds, remarks)
