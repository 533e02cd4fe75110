"""Streaming reads of a PySpark before 4.2, which does not say where the query is: what it asks for, in its order."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from spark_nats.cli import main
from spark_nats.kinds.streams.read import idling
from spark_nats.sparkapi import HAS_READ_LIMITS, RememberingReader
from tests.integration.support import (
    MESSAGE,
    read_partitions,
    sentence_of,
    stream_reader,
    texts_of,
    wait_for_subscriptions,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

pytestmark = pytest.mark.smoke


class OlderQuery:
    """A streaming query.

    Args:
        ends: where the micro-batches end that the checkpoint has, when the query is started again.
        committed: whether the last one of them was processed.
    """

    def __init__(
        self, server: Server, *, ends: list[dict[str, Any]] | None = None, committed: bool = True, **options: Any
    ) -> None:
        reader = stream_reader(server, MESSAGE, **options)
        self.reader: Any = RememberingReader(reader) if HAS_READ_LIMITS else reader
        self.pickled = pickle.dumps(self.reader)
        self.ends = list(ends or [])
        self._to_run_again: dict[str, Any] | None = None
        if self.ends:
            assert self.reader.partitions(self.ends[-1], self.ends[-1]) == []
            self._to_run_again = None if committed else self.ends.pop()

    def micro_batch(self) -> list[str]:
        """The payloads that the next micro-batch reads, none if there is nothing new."""
        end = self._to_run_again or json.loads(json.dumps(self.reader.latestOffset()))
        self._to_run_again = None
        start = self.ends[-1] if self.ends else self.reader.initialOffset()
        if start == end:
            return []
        self.ends.append(end)
        rows = read_partitions(self.pickled, self.reader.partitions(start, end))
        self.reader.commit(end)
        return texts_of(rows)

    def micro_batches(self, count: int) -> list[list[str]]:
        """The next ones that are not empty."""
        return [wait_until(self.micro_batch) for _ in range(count)]


def test_each_micro_batch_begins_where_the_one_before_it_ends(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", "abcde")
    query = OlderQuery(nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    assert query.micro_batches(3) == [["a", "b"], ["c", "d"], ["e"]]
    assert query.micro_batch() == []
    nats_py.store(f"{unique}.x", "fgh")
    assert query.micro_batches(2) == [["f", "g"], ["h"]]


def test_a_new_query_begins_where_it_was_when_it_was_first_asked(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", "abc")
    query = OlderQuery(nats_server, stream=unique)  # from latest
    end = query.reader.latestOffset()
    nats_py.store(f"{unique}.x", "de")
    assert query.reader.initialOffset() == end
    assert query.micro_batches(1) == [["d", "e"]]


@pytest.mark.parametrize("committed", [True, False])
def test_a_query_that_is_started_again_goes_on_behind_the_last_micro_batch_that_was_planned(
    nats_server: Server, nats_py: NatsPy, unique: str, committed: bool
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", "abcde")
    options = {"stream": unique, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    query = OlderQuery(nats_server, **options)
    assert query.micro_batches(2) == [["a", "b"], ["c", "d"]]
    nats_py.store(f"{unique}.x", "f")
    again = OlderQuery(nats_server, ends=query.ends, committed=committed, **options)
    assert again.micro_batches(1) == ([["e", "f"]] if committed else [["c", "d"]])
    assert again.micro_batches(0 if committed else 1) == ([] if committed else [["e", "f"]])


def test_the_first_micro_batch_is_the_same_when_it_is_run_again(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    query = OlderQuery(nats_server, stream=unique)  # from latest
    assert query.micro_batch() == []
    nats_py.store(f"{unique}.x", "ab")
    assert query.micro_batches(1) == [["a", "b"]]
    nats_py.store(f"{unique}.x", "c")
    again = OlderQuery(nats_server, stream=unique, ends=query.ends[-1:], committed=False)
    assert again.micro_batches(2) == [["a", "b"], ["c"]]


def test_a_micro_batch_of_which_nothing_is_read_is_passed(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    """Spark does not ask for its partitions when the query's plan needs none of its rows."""
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", "abc")
    query = OlderQuery(nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    query.ends.append(query.reader.latestOffset())
    assert query.micro_batches(1) == [["c"]]


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_what_is_consumed_stays_until_its_micro_batch_was_processed(
    nats_server: Server, nats_py: NatsPy, unique: str, retention: str
) -> None:
    nats_py.create_stream(unique, retention=retention, allow_direct=True)
    options = {"stream": unique, "consume": True, "maxOffsetsPerTrigger": 2}
    query = OlderQuery(nats_server, **options)
    assert query.micro_batch() == []  # from here on an interest stream keeps messages for it
    nats_py.store(f"{unique}.x", "abcd")
    assert query.micro_batches(1) == [["a", "b"]]
    query.ends.append(wait_until(query.reader.latestOffset))  # planned, and then the driver dies
    again = OlderQuery(nats_server, ends=query.ends, committed=False, **options)
    assert again.micro_batches(1) == [["c", "d"]]
    wait_until(lambda: nats_py.held(unique) == 0)


def test_core_nats_is_read_in_micro_batches_too(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    options = {"subject": f"{unique}.x", "maxOffsetsPerTrigger": 2}
    query = OlderQuery(nats_server, **options)
    try:
        assert query.micro_batch() == []
        wait_for_subscriptions(nats_server, f"{unique}.x")
        nats_py.publish_each(f"{unique}.x", "abc")
        texts: list[str] = []
        wait_until(lambda: texts.extend(query.micro_batch()) or len(texts) == 3, timeout=60)
        assert texts == ["a", "b", "c"]
        again = OlderQuery(nats_server, ends=query.ends, **options)
        try:
            assert again.micro_batch() == []
            wait_for_subscriptions(nats_server, f"{unique}.x", count=2)
            nats_py.publish_each(f"{unique}.x", "d")
            assert again.micro_batches(1) == [["d"]]
        finally:
            again.reader.stop()
        lost = OlderQuery(nats_server, ends=query.ends, committed=False, **options)
        try:
            assert "were lost with the process that had received them" in sentence_of(lost.micro_batch)
        finally:
            lost.reader.stop()
    finally:
        query.reader.stop()


def test_micro_batches_but_the_first_one_wait_until_they_are_large_enough(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idling, "LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(idling, "MAX_QUIET", 0.0)
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", "a")
    query = OlderQuery(nats_server, stream=unique, startingOffsets="earliest", minOffsetsPerTrigger=3)
    assert query.micro_batches(1) == [["a"]]
    nats_py.store(f"{unique}.x", "bc")
    assert [query.micro_batch() for _ in range(3)] == [[], [], []]
    nats_py.store(f"{unique}.x", "d")
    assert query.micro_batches(1) == [["b", "c", "d"]]


def test_what_a_limit_does_to_available_now_is_said_once(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    OlderQuery(nats_server, stream=unique).micro_batch()
    assert caplog.messages == []
    for option in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
        caplog.clear()
        query = OlderQuery(nats_server, stream=unique, **{option: 7})
        query.micro_batch()
        query.micro_batch()
        (said,) = caplog.messages
        what = f"[NATS_ENDS_AFTER_LIMIT] the option '{option}' is 7"
        assert said.startswith(f"{what}: with Trigger.AvailableNow, the query ends after this many")
        assert said.endswith("use PySpark 4.2 or newer")


@pytest.mark.skipif(
    HAS_READ_LIMITS, reason="this PySpark has all that the demonstration needs; make smoke has one that has not"
)
def test_the_demonstration_says_which_version_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 1
    assert "the demonstration needs PySpark 4.2 or newer, " in capsys.readouterr().err
