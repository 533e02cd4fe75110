"""Streams that say that they were created at another time, and still have what a query has read.

A backup was restored; an older server was restarted, the stream edited, and the server restarted again; a mirror has
taken the place of its origin.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_nats.embedded import NatsServer
from spark_nats.kinds.queries import parse_options
from spark_nats.kinds.streams.read.positions import from_json
from spark_nats.lag import LagSample, StreamSample, compute_or_ask_lag
from tests import needs
from tests.integration.support import (
    PAYLOAD,
    Query,
    batch_reader,
    numbers_of,
    read_partitions,
    sentence_of,
    stream_reader,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import BINARY_2_10, BINARY_2_12, ServerFactory, end

CHANGES = StructType().add("key", StringType()).add("value", BinaryType())


def restored(server: NatsServer, name: str) -> None:
    """The stream is backed up, deleted, and restored."""
    with NatsPy(server.url) as client:
        backup = client.back_up(name)
        client.delete_stream(name)
        client.restore(name, backup)


def edited(server: NatsServer, name: str) -> None:
    """The server is restarted, the stream edited, and the server restarted again."""
    end(server)
    server.start()
    with NatsPy(server.url) as client:
        config = client.stream_info(name)["config"]
        client.api(f"STREAM.UPDATE.{name}", {**config, "description": "edited"})
    end(server)
    server.start()


WAYS: list[Any] = [
    pytest.param((None, restored), id="restored"),
    pytest.param((BINARY_2_10, edited), id="edited-2.10"),
    pytest.param((BINARY_2_12, edited), id="edited-2.12"),
]


class Renamed:
    """A server whose streams say another time of their creation after :meth:`rename`."""

    def __init__(self, server: NatsServer, change: Callable[[NatsServer, str], None]) -> None:
        self.server, self._change = server, change

    def rename(self, name: str = "S") -> None:
        before = self._created(name)
        self._change(self.server, name)
        assert self._created(name) != before, "this server keeps the time of creation"

    def _created(self, name: str) -> str:
        with NatsPy(self.server.url) as client:
            return str(client.stream_info(name)["created"])

    def create(self, name: str = "S", subjects: list[str] | None = None, **config: Any) -> None:
        with NatsPy(self.server.url) as client:
            client.create_stream(name, subjects, **config)

    def publish(self, *numbers: int) -> None:
        with NatsPy(self.server.url) as client:
            client.store("S.a", numbers)

    def started(self, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
        options = {"stream": "S", "startingOffsets": "earliest", **options}
        return Query(stream_reader(self.server, PAYLOAD, **options), checkpoint)

    def lag(self, offset: dict[str, Any]) -> Any:
        settings = parse_options({"servers": self.server.url})
        looks = [LagSample(0.0, 1.0, {(0, "S"): StreamSample(1, from_json(offset)["S"].end)})]
        return compute_or_ask_lag("query", 0, looks, settings).streams[0]


@pytest.fixture(params=WAYS)
def renamed(request: pytest.FixtureRequest, server_factory: ServerFactory, tmp_path: Path) -> Renamed:
    binary, change = request.param
    return Renamed(server_factory(store_dir=tmp_path / "store", binary=binary), change)


@pytest.mark.needs("restored anew", only="restored")
@pytest.mark.promise("durability#created-otherwise")
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("runs", [True, False], ids=["running", "started-again"])
def test_a_query_reads_on_and_says_so_once(
    renamed: Renamed, fails: bool, runs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    renamed.create()
    renamed.publish(*range(20))
    query = renamed.started(failOnDataLoss=fails)
    assert numbers_of(query.micro_batch()) == [*range(20)]
    renamed.rename()
    renamed.publish(*range(20, 30))
    if not runs:
        query = renamed.started(query.offset, failOnDataLoss=fails)
    with caplog.at_level(logging.WARNING):
        assert numbers_of(query.rows(10)) == [*range(20, 30)]
        renamed.publish(30)
        assert numbers_of(query.rows(1)) == [30]
    assert caplog.text.count("[NATS_CREATED_OTHERWISE]") == 1
    assert "data loss" not in caplog.text


@pytest.mark.needs("restored anew", only="restored")
def test_lag_counts_what_is_unread(renamed: Renamed) -> None:
    renamed.create()
    renamed.publish(*range(20))
    query = renamed.started()
    query.micro_batch()
    renamed.rename()
    renamed.publish(*range(10))
    lag = renamed.lag(query.offset)
    assert (lag.behind, lag.problem) == (10, "")


@pytest.mark.needs("restored anew", only="restored")
def test_a_batch_and_a_query_begin_where_a_checkpoint_says(renamed: Renamed) -> None:
    renamed.create()
    renamed.publish(*range(20))
    query = renamed.started()
    query.micro_batch()
    renamed.rename()
    renamed.publish(*range(20, 30))
    given = json.dumps(query.offset)
    assert numbers_of(renamed.started(startingOffsets=given).micro_batch()) == [*range(20, 30)]
    for option, numbers in {"startingOffsets": range(20, 30), "endingOffsets": range(20)}.items():
        reader = batch_reader(renamed.server, PAYLOAD, stream="S", **{option: given})
        assert numbers_of(read_partitions(pickle.dumps(reader), reader.partitions())) == [*numbers]


@pytest.mark.needs("restored anew", only="restored")
@pytest.mark.parametrize("history", [1, 5])
def test_changes_of_a_bucket_are_read_on(renamed: Renamed, history: int) -> None:
    renamed.create("KV_B", ["$KV.B.>"], max_msgs_per_subject=history, allow_rollup_hdrs=True, allow_direct=True)

    def put(*numbers: int) -> None:
        with NatsPy(renamed.server.url) as client:
            client.publish_acked([(f"$KV.B.k{i % 5}", str(i).encode()) for i in numbers])

    def changes(checkpoint: dict[str, Any] | None = None) -> Query:
        reader = stream_reader(renamed.server, CHANGES, bucket="B", startingOffsets="earliest")
        return Query(reader, checkpoint)

    put(*range(20))
    query = changes()
    query.micro_batch()
    put(*range(20, 23))
    assert [int(row["value"]) for row in query.rows(3)] == [20, 21, 22]
    renamed.rename("KV_B")
    put(28, 22)  # the revision at the query's place is replaced
    assert [int(row["value"]) for row in changes(query.offset).rows(2)] == [28, 22]


@pytest.mark.needs("restored anew", only="restored")
@pytest.mark.parametrize("retention", ["workqueue", "interest", "limits"])
def test_a_query_that_consumes_reads_on_and_releases(renamed: Renamed, retention: str) -> None:
    needs.skip_on(renamed.server._binary, "work queues" if retention == "workqueue" else "interest streams")
    renamed.create(retention=retention, allow_direct=True)
    query = renamed.started(consume=True)
    renamed.publish(*range(20))
    assert numbers_of(query.micro_batch()) == [*range(20)]
    renamed.rename()
    renamed.publish(*range(20, 30))
    query = renamed.started(query.offset, consume=True)
    assert numbers_of(query.rows(10)) == [*range(20, 30)]
    query.micro_batch()
    if retention != "limits":
        with NatsPy(renamed.server.url) as client:
            wait_until(lambda: client.held("S") == 0)


@pytest.mark.needs("restored anew", only="restored")
def test_a_micro_batch_that_was_planned_is_read_by_its_tasks(renamed: Renamed) -> None:
    renamed.create()
    renamed.publish(*range(20))
    query = renamed.started(minPartitions=3)
    until = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    planned = query.reader.partitions(query.offset, until)
    renamed.rename()
    assert numbers_of(read_partitions(pickle.dumps(query.reader), planned)) == [*range(20)]
    again = renamed.started(query.offset, minPartitions=3).reader
    assert numbers_of(read_partitions(pickle.dumps(again), again.partitions(query.offset, until))) == [*range(20)]


@pytest.mark.needs("restored anew", only="restored")
def test_a_query_that_reads_what_there_was_ends_there(renamed: Renamed) -> None:
    renamed.create()
    renamed.publish(*range(20))
    query = renamed.started(maxOffsetsPerTrigger=8)
    query.reader.prepareForTriggerAvailableNow()
    assert numbers_of(query.micro_batch()) == [*range(8)]
    renamed.rename()
    renamed.publish(*range(20, 30))
    assert numbers_of(query.rows(12)) == [*range(8, 20)]
    assert query.micro_batch() == []


@pytest.mark.promise("durability#backup-restored")
@pytest.mark.parametrize("more", [0, 5, 20], ids=["less", "as-many", "more"])
def test_a_backup_that_reaches_less_far_is_a_lost_end(server_factory: ServerFactory, more: int) -> None:
    it = Renamed(server_factory(), restored)
    it.create()
    it.publish(*range(15))
    with NatsPy(it.server.url) as client:
        backup = client.back_up("S")
    it.publish(*range(15, 20))
    query = it.started()
    query.micro_batch()
    with NatsPy(it.server.url) as client:
        client.delete_stream("S")
        client.restore("S", backup)
    it.publish(*range(100, 100 + more))
    error = sentence_of(it.started(query.offset).micro_batch)
    assert error.endswith("continue with what was stored since, from sequence 16 on")
    assert it.lag(query.offset).problem.startswith("the stream has lost its end" if more else "the stream ends at")
    tolerant = it.started(query.offset, failOnDataLoss=False)
    assert numbers_of(tolerant.micro_batch()) == [*range(100, 100 + more)]
    it.publish(200)
    assert numbers_of(tolerant.rows(1)) == [200]


def test_a_stream_that_is_made_again_is_another_one(server_factory: ServerFactory) -> None:
    it = Renamed(server_factory(), restored)
    it.create()
    it.publish(*range(20))
    query = it.started()
    query.micro_batch()
    with NatsPy(it.server.url) as client:
        client.delete_stream("S")
    it.create()
    for count in (0, 5, 20, 5):
        it.publish(*range(count))
        if count:
            assert "was deleted and created again" in sentence_of(it.started(query.offset).micro_batch)
    tolerant = it.started(query.offset, failOnDataLoss=False)
    assert len(tolerant.micro_batch()) == 30


@pytest.mark.needs("promotion")
@pytest.mark.promise("durability#mirror-promoted")
def test_an_offset_of_the_origin_is_good_for_its_promoted_mirror(server_factory: ServerFactory) -> None:
    it = Renamed(server_factory(), restored)
    it.create()
    it.publish(*range(20))
    query = it.started()
    query.micro_batch()
    with NatsPy(it.server.url) as client:
        client.create_stream("M", [], mirror={"name": "S"})
        wait_until(lambda: client.held("M") == 20)
        client.delete_stream("S")
        client.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["S.>"]})
    it.publish(*range(20, 30))
    offset = {"M": query.offset["S"]}
    assert numbers_of(it.started(stream="M", startingOffsets=json.dumps(offset)).micro_batch()) == [*range(20, 30)]
    assert numbers_of(it.started(offset, stream="M").micro_batch()) == [*range(20, 30)]


@pytest.mark.needs("promotion")
def test_a_promoted_mirror_that_lacks_the_last_messages_is_a_lost_end(server_factory: ServerFactory) -> None:
    it = Renamed(server_factory(), restored)
    it.create()
    with NatsPy(it.server.url) as client:
        client.create_stream("M", [], mirror={"name": "S"})
        it.publish(*range(15))
        wait_until(lambda: client.held("M") == 15)
        client.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["M.>"]})  # it hears of nothing more
        it.publish(*range(15, 20))
        query = it.started()
        query.micro_batch()
        client.delete_stream("S")
        client.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["S.>"]})
    offset = {"M": query.offset["S"]}
    assert "ends at sequence 15, but the query is to resume at 21" in sentence_of(
        it.started(offset, stream="M").micro_batch
    )
    it.publish(*range(100, 110))
    assert "stream 'M' has lost its end" in sentence_of(it.started(offset, stream="M").micro_batch)
    tolerant = it.started(offset, stream="M", failOnDataLoss=False)
    assert numbers_of(tolerant.micro_batch()) == [*range(100, 110)]
