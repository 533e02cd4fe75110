"""What the log says at INFO of work that takes long: how far it has come, and what is left."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from spark_nats import logs
from tests.integration.support import (
    Query,
    batch_reader,
    batch_sequences,
    numbered_rows,
    run_task,
    stream_reader,
    write,
)
from tests.nats_py import NatsPy
from tests.servers import Server

Lines = Callable[[str], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What was said under a code so far; a line is due whenever a task has done anything."""
    monkeypatch.setattr(logs, "INTERVAL", 0.0)
    caplog.set_level(logging.INFO, "spark_nats")
    return lambda code: [text for text in caplog.messages if text.startswith(f"[{code}] ")]


def fill(nats_py: NatsPy, stream: str, count: int) -> None:
    nats_py.create_stream(stream)
    nats_py.store(f"{stream}.a", range(count))


def test_a_task_that_reads_says_how_many_rows_it_has_and_how_many_sequences_are_left(
    nats_server: Server, nats_py: NatsPy, unique: str, lines: Lines
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.a", [b"x" * 2000] * 5000)  # more than is asked for at once
    reader = batch_reader(nats_server, stream=unique)
    (partition,) = reader.partitions()
    assert len(batch_sequences(reader.read(partition))) == 5000
    said = [
        re.search(r"sequences 1 to 5000: ([\d,]+) rows so far, ([\d,]+) sequences left", line)
        for line in lines("NATS_STILL_READING")
    ]
    figures = [tuple(int(group.replace(",", "")) for group in found.groups()) for found in said if found]
    assert len(figures) > 1
    assert figures == sorted(figures)
    assert figures[-1][1] == 0
    assert all(rows + left <= 5000 for rows, left in figures)


def test_a_task_says_so_too_while_it_searches_among_messages_that_nobody_wants(
    nats_server: Server, nats_py: NatsPy, unique: str, lines: Lines
) -> None:
    fill(nats_py, unique, 2000)
    nats_py.store(f"{unique}.b", range(1))
    reader = batch_reader(nats_server, stream=unique, subject=f"{unique}.b")
    (partition,) = reader.partitions()
    assert batch_sequences(reader.read(partition)) == [2001]
    assert lines("NATS_STILL_READING")


def test_nothing_is_said_of_what_takes_no_time_or_where_nobody_listens(
    nats_server: Server, nats_py: NatsPy, unique: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(nats_py, unique, 100)
    reader = batch_reader(nats_server, stream=unique)
    (partition,) = reader.partitions()
    logging.getLogger("spark_nats").setLevel(logging.WARNING)
    list(reader.read(partition))
    logging.getLogger("spark_nats").setLevel(logging.INFO)
    monkeypatch.undo()
    list(reader.read(partition))
    assert lines("NATS_STILL_READING") == []


def test_the_driver_says_of_each_micro_batch_what_is_read_and_what_is_left(
    nats_server: Server, nats_py: NatsPy, unique: str, lines: Lines
) -> None:
    fill(nats_py, unique, 1000)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 600, "minPartitions": 2}
    query = Query(stream_reader(nats_server, stream=unique, **options))
    assert [len(query.micro_batch()), len(query.micro_batch())] == [600, 400]
    assert lines("NATS_BATCH_PLANNED") == [
        f"[NATS_BATCH_PLANNED] micro-batch: {unique} 1 to 600; 600 sequences, 400 left, tasks: 2",
        f"[NATS_BATCH_PLANNED] micro-batch: {unique} 601 to 1,000; 400 sequences, 0 left, tasks: 2",
    ]


def test_the_driver_says_of_a_batch_what_is_read(
    nats_server: Server, nats_py: NatsPy, unique: str, lines: Lines
) -> None:
    fill(nats_py, unique, 3)
    batch_reader(nats_server, stream=unique).partitions()
    (said,) = lines("NATS_BATCH_PLANNED")
    assert said == f"[NATS_BATCH_PLANNED] batch: {unique} 1 to 3; 3 sequences, tasks: 1"


def test_a_task_that_writes_says_how_many_rows_are_stored_and_what_is_in_flight(
    nats_server: Server, nats_py: NatsPy, unique: str, lines: Lines
) -> None:
    nats_py.create_stream(unique)
    run_task(nats_server.url, numbered_rows(unique, range(3000)), stream=unique, maxInFlight=500)
    said = lines("NATS_STILL_WRITING")
    assert len(said) > 1
    found = re.search(
        rf"writing to {unique}, partition 0 of micro-batch 0: ([\d,]+) rows stored so far, [\d,]+ a second; "
        r"[\d,]+ of at most 500 in flight, 0 sent again$",
        said[-1],
    )
    assert found is not None
    assert 0 < int(found[1].replace(",", "")) <= 3000


def test_a_task_that_writes_to_core_nats_says_how_many_rows_the_server_has_processed(
    nats_server: Server, unique: str, lines: Lines
) -> None:
    write(nats_server, numbered_rows(unique, range(3000)))
    said = lines("NATS_STILL_SENDING")
    assert said
    assert "partition 0 of this write: 3,000 rows processed by the server so far" in said[-1]


def test_the_driver_says_what_a_batch_has_stored(
    nats_server: Server, nats_py: NatsPy, unique: str, lines: Lines
) -> None:
    nats_py.create_stream(unique)
    write(nats_server, numbered_rows(unique, range(30)), stream=unique)
    (said,) = lines("NATS_BATCH_WRITTEN")
    assert said.startswith(f"[NATS_BATCH_WRITTEN] batch is written to {unique}: 30 rows")
