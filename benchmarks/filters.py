"""Streams read with subject filters: the server searches, or all is sent and searched here, or the reader chooses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from benchmarks import data, paths, targets
from benchmarks.client import sample
from benchmarks.environment import Server, connect, publisher_to, start_server
from benchmarks.measure import Comparison, Contender, Sample, compare, timed
from benchmarks.settings import Settings

_SIZE = 128
_SHARES = (1, 10, 50, 100)  # per cent of the messages that match
_SIDES = (("", None), (", the server searches", True), (", searched here", False))
_WANTED = 50  # subjects that match
_OTHERS = 1000  # subjects that do not


def run(settings: Settings) -> Iterator[Comparison]:
    """Measure everything."""
    with start_server(settings) as server:
        for share in _SHARES:
            yield _share(settings, server, share)


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
        publisher.drain()


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
