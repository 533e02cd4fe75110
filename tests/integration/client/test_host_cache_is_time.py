"""What processes tell each other by files costs time when it is wrong or missing, or is an error, and never a row."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_nats.client import host_cache
from spark_nats.errors import NatsError
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.read import row_warnings
from spark_nats.kinds.streams.write import metrics_channel
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import Counts, WriteTask, Written
from spark_nats.kinds.streams.write.writers import NatsStreamWriter
from tests.integration.support import PAYLOAD, Query, numbers_of, source, stream_reader
from tests.servers import NatsServer, Server, ServerFactory

RUN, QUERY = "a run", "3f81c09a"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this machine remembers is put aside, and tasks believe that they belong to a query."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": QUERY}.get)
    monkeypatch.setattr(row_warnings.TaskContext, "get", lambda: context)
    return tmp_path


def options_in(server: NatsServer, stream: str) -> dict[str, str]:
    requested = f'{{"name": "{stream}", "subjects": ["{stream}.>"], "max_msgs_per_subject": -1}}'
    return {"servers": server.url, "stream": stream, "subject": f"{stream}.x", "createStream": requested}


def parsed(server: NatsServer, stream: str) -> WriteOptions:
    found: WriteOptions = parse_write_options(options_in(server, stream), streaming=True)
    return found


def write(server: NatsServer, stream: str, batch: int, attempt: int = 0) -> Written:
    """What the driver and a task do for a micro-batch of ten rows; the next attempt writes the same ones."""
    made = source(server, **options_in(server, stream)).streamWriter(PAYLOAD, overwrite=False)
    task = WriteTask(QUERY, str(batch), 0, attempt=attempt, run=RUN)
    payloads = pa.array([b"%d" % i for i in range(10 * batch, 10 * batch + 10)])
    written = write_partition(parsed(server, stream), task, iter([pa.RecordBatch.from_pydict({"payload": payloads})]))
    assert isinstance(made, NatsStreamWriter)
    made.commit([written], batch)
    return written


def copy(server: NatsServer, stream: str) -> None:
    """Write two micro-batches, each of them twice, and read them: each row is there once."""
    query = None
    for batch in range(2):
        write(server, stream, batch)
        write(server, stream, batch, attempt=1)
        query = query or Query(stream_reader(server, PAYLOAD, stream=stream, startingOffsets="earliest"))
        assert numbers_of(query.rows(10)) == list(range(10 * batch, 10 * batch + 10))


def tell_garbage(server: NatsServer, stream: str) -> None:
    host_cache.note_fact(host_cache.announced_fact(parsed(server, stream).connection), "no JSON")


def tell_of_others(server: NatsServer, stream: str) -> None:
    host_cache.note_fact(host_cache.announced_fact(parsed(server, stream).connection), '[["127.0.0.1", 1, false, 0]]')


def tell_of_no_place(server: NatsServer, stream: str) -> None:
    host_cache.note_fact(host_cache.announced_fact(parsed(server, stream).connection), '[["127.0.0.1", 1, false, 9]]')


WRONG: dict[str, Callable[[NatsServer, str], object]] = {
    "a server that is there is not": lambda server, _: host_cache.note_fact(
        host_cache.unreachable_fact("127.0.0.1", server.port)
    ),
    "servers are announced that are none": tell_of_others,
    "what was announced is no list": tell_garbage,
    "what was announced leads nowhere": tell_of_no_place,
    "a query feeds itself that does not": lambda _, stream: host_cache.note_fact(
        host_cache.feeds_itself_fact(QUERY, stream)
    ),
    "a stream differs that does not": lambda _, stream: host_cache.note_fact(
        host_cache.difference_said_fact(f"stream {stream!r}", "max_msgs_per_subject")
    ),
    "somebody listens": lambda *_: host_cache.note_fact(host_cache.counts_wanted_fact(RUN)),
    "rows were counted that there are not": lambda *_: (
        host_cache.note_fact(host_cache.counts_wanted_fact(RUN)),
        host_cache.push_text(host_cache.counts_topic(RUN), '{"rows": 4711}'),
    ),
}


@pytest.mark.parametrize("tell", WRONG.values(), ids=WRONG)
def test_a_wrong_entry_costs_no_row_and_makes_none(
    server_factory: ServerFactory, unique: str, tell: Callable[[NatsServer, str], object]
) -> None:
    server = server_factory()
    tell(server, unique)
    copy(server, unique)


def test_where_nothing_is_remembered_no_row_is_missing_and_none_too_many(
    nats_server: Server, unique: str, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "none"))
    host_cache.note_fact(host_cache.counts_wanted_fact(RUN))
    copy(nats_server, unique)
    assert metrics_channel.take_and_sum_counts(RUN) == Counts()


def test_a_write_that_is_prepared_only_by_hearsay_is_an_error_and_stores_nothing(
    server_factory: ServerFactory, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_factory()
    host_cache.note_fact(host_cache.prepared_fact(f"{astuple(parsed(server, unique))} {PAYLOAD.fieldNames()}"))
    with pytest.raises(NatsError, match="SPARK_NATS"):  # there is no such bucket
        write(server, unique, 0)
    monkeypatch.setattr("spark_nats.kinds.preparing.PREPARED_FOR", 0.0)  # a while later
    copy(server, unique)
