"""Work queues and interest streams that are consumed, beside a stream with limits that is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import paths
from benchmarks.client import sample as timed_sample
from benchmarks.environment import Server, start_server
from benchmarks.measure import Comparison, Contender, Sample, compare, timed
from benchmarks.session import Session, start_spark
from benchmarks.settings import Settings
from benchmarks.spark import sample

_SIZE = 128
_LIMITS = "stream with limits"
_KINDS: dict[str, dict[str, Any]] = {
    _LIMITS: {"retention": "limits"},
    "work queue": {"retention": "workqueue", "allow_direct": True},
    "interest stream": {"retention": "interest"},
}


def run(settings: Settings) -> Iterator[Comparison]:
    """Measure everything."""
    with start_server(settings) as server:
        yield _read(settings, server)
        if settings.quick:
            settings = replace(settings, rounds=1)
        with start_spark() as session:
            yield _drain(settings, server, session)


def _read(settings: Settings, server: Server) -> Comparison:
    count = settings.messages
    with server.stream("read.>", allow_direct=True) as stream:
        server.fill(stream, "read.", count, _SIZE)

        def read(direct: bool) -> Sample:
            def seconds() -> float:
                with timed() as taken:
                    rows = paths.read_stream(server.url, stream, 1, count + 1, direct)
                if rows != count:
                    raise AssertionError(f"{rows} rows were read instead of {count}")
                return taken()

            return timed_sample(server, count, seconds)

        contenders = [
            Contender("by direct gets", partial(read, True), "as a work queue is read"),
            Contender("by a consumer", partial(read, False), "as all other streams are"),
        ]
        title = "queues: a stream to Arrow, all columns, one connection"
        return compare(title, "by a consumer", contenders, settings.rounds)


def _drain(settings: Settings, server: Server, session: Session) -> Comparison:
    count = settings.messages
    runs = iter(range(1_000_000))

    def query(stream: str, checkpoint: str, options: dict[str, str]) -> None:
        options = {
            "startingOffsets": "earliest",
            "maxRecordsPerPartition": str(count // 2),
            **server.options,
            **options,
        }
        frame = session.spark.readStream.format("nats").options(stream=stream, **options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        if not writer.trigger(availableNow=True).start().awaitTermination(300):
            raise TimeoutError("the query did not end")

    def drained(kind: str, consume: bool) -> Sample:
        checkpoint = f"{session.directory}/queue-{next(runs)}"
        options = {"consume": "true"} if consume else {}
        with ExitStack() as stack:
            stream = stack.enter_context(server.stream("drain.>", **_KINDS[kind]))
            query(stream, checkpoint, options)  # now an interest stream keeps what comes
            server.fill(stream, "drain.", count, _SIZE)
            taken = sample(server, count, lambda: query(stream, checkpoint, options))
            server.check(stream, count if kind == _LIMITS else 0)
        return taken

    contenders = [
        Contender(f"{_LIMITS}, read", partial(drained, _LIMITS, False), "nothing is removed"),
        *(Contender(f"{kind}, consumed", partial(drained, kind, True)) for kind in _KINDS),
    ]
    remarks = [
        f"{count} messages with {_SIZE} bytes in one micro-batch of 2 partitions into the noop sink; whole queries "
        "with trigger availableNow, the release included: about two seconds are Spark's"
    ]
    title = "queues: drained by a streaming query, 2 partitions"
    return compare(title, f"{_LIMITS}, read", contenders, settings.rounds, remarks)
