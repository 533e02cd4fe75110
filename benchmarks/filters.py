"""Streams read with subject filters: the server searches, or all is sent and searched here, or the reader chooses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from benchmarks import data, paths, targets
from benchmarks.client import sample
from benchmarks.environment import Server, connect, cpu_seconds, publisher_to, start_server
from benchmarks.measure import Comparison, Contender, Grid, Sample, compare, progress, timed
from benchmarks.settings import Settings
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming.consumers import create_ephemeral
from spark_nats.jetstream.messages import ask_last_sequence
from spark_nats.kinds.queries import parse_read_options
from spark_nats.protocol.subject_columns import SubjectMatcher

_SIZE = 128
_SHARES = (1, 10, 50, 100)  # per cent of the messages that match
_SIDES = (("", None), (", the server searches", True), (", searched here", False))
_WANTED = 50  # subjects that match
_OTHERS = 1000  # subjects that do not
_COUNTS = (100, 1000, 3000)  # of filters
_SEARCHED = 3000  # messages in which the server finds those that match one of many filters


def run(settings: Settings) -> Iterator[Comparison | Grid]:
    """Measure everything."""
    with start_server(settings) as server:
        for share in _SHARES:
            yield _share(settings, server, share)
        if server.pid is not None:
            yield _many(server)


def _filters(prefix: str) -> dict[str, list[str]]:
    return {
        "1 filter": [f"{prefix}.yes.>"],
        "10 filters": [f"{prefix}.yes.{i}.*" for i in range(10)],
        "50 filters": [f"{prefix}.yes.{i % 10}.{i}" for i in range(_WANTED)],
    }


def _fill(server: Server, stream: str, prefix: str, count: int, share: int) -> None:
    """Store messages of which so many per cent match, evenly spread."""
    yes = (f"{prefix}.yes.{i % 10}.{i % _WANTED}" for i in range(count))
    no = (f"{prefix}.no.{i % _OTHERS}.x" for i in range(count))
    subjects = pa.array([next(yes) if i % 100 < share else next(no) for i in range(count)])
    payloads = pa.array([data.payload(i, _SIZE) for i in range(count)])
    with connect(server.url) as connection:
        publisher = publisher_to(connection, stream)
        publisher.publish(subjects, payloads)
        publisher.wait_for_sent_rows()


def _share(settings: Settings, server: Server, share: int) -> Comparison:
    count = settings.filtered
    prefix = f"share{share}"
    with server.stream(f"{prefix}.>") as stream:
        _fill(server, stream, prefix, count, share)

        def read(filters: list[str], by_server: bool | None) -> Sample:
            def timed_read() -> float:
                with timed() as seconds:
                    rows = paths.read_filtered(server.url, stream, count + 1, filters, by_server)
                if rows != count * share // 100:
                    raise AssertionError(f"{rows} rows were read instead of {count * share // 100}")
                return seconds()

            return sample(server, count, timed_read)

        contenders = [
            Contender(f"{name}{side}", partial(read, filters, by_server))
            for name, filters in _filters(prefix).items()
            for side, by_server in _SIDES
        ]
        remarks = [
            f"{count} messages with {_SIZE} bytes on {_WANTED} subjects that match and {_OTHERS} that do not; msg/s "
            "counts all messages of the range, whether they match or not"
        ]
        return compare(targets.FILTERS[share], "1 filter, searched here", contenders, settings.rounds, remarks)


def _many(server: Server) -> Grid:
    """Measure each step by itself, since the reader mostly avoids the slow one."""
    columns = ["options", "a look", "server", "a consumer: server", "its messages: server", "or searched here"]
    table = Grid("filters: CPU ms, by the number of filters", columns)
    for count in _COUNTS:
        progress(f"{table.title}: {count}")
        filters = [f"many.{i}.>" for i in range(count)]
        subjects = pa.array([f"many.{i * 7919 % (4 * count)}.x".encode() for i in range(60_000)], pa.binary())
        with server.stream("many.>") as stream, connect(server.url) as connection:
            js = JetStream(connection)
            publisher = publisher_to(connection, stream)
            publisher.publish(subjects.cast(pa.string()), pa.repeat(b"x" * _SIZE, len(subjects)))
            publisher.wait_for_sent_rows()
            with timed(time.process_time) as options:
                parse_read_options({"stream": stream, "subject": ",".join(filters)}, streaming=True)
            with timed(time.process_time) as look, timed(partial(cpu_seconds, [server.pid])) as looked:
                ask_last_sequence(js, stream, filters)
            with timed(partial(cpu_seconds, [server.pid])) as created:
                create_ephemeral(js, stream, 1, tuple(filters))
            with timed(partial(cpu_seconds, [server.pid])) as searched:
                paths.read_filtered(server.url, stream, _SEARCHED + 1, filters, True)
            with timed(time.process_time) as here:
                SubjectMatcher(filters).match(subjects)
        figures = (options(), look(), looked(), created(), searched(), here() * _SEARCHED / len(subjects))
        table.rows[f"{count:,} filters"] = [each * 1000 for each in figures]
    table.remarks = [
        "a look asks for the last message of each filter; its messages: those that match, a quarter, of the first "
        f"{_SEARCHED:,}, with making the consumer; or searched here: the same without it",
    ]
    return table
