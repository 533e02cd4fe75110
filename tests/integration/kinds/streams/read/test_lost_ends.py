"""Streams that come back with an older end, and are filled again: nothing new is skipped, and nothing is read twice.

A server is stopped, its store is exchanged for an older copy, and it is started again, as when a volume is restored
from a snapshot.
"""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_nats.embedded import NatsServer
from spark_nats.jetstream import views
from spark_nats.jetstream.judgement import SKEW
from spark_nats.kinds.queries import parse_options
from spark_nats.kinds.streams.read.positions import from_json
from spark_nats.lag import LagSample, StreamSample, compute_or_ask_lag
from tests.integration.support import (
    PAYLOAD,
    Query,
    batch_reader,
    read_partitions,
    sentence_of,
    stream_reader,
    texts_of,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, Server, ServerFactory, copy_store, paused, put_back

BEFORE, LOST = 150, 200
"""What the copy has, and what the query has read."""
REFILLED = [LOST - 20, LOST, LOST + 1, LOST + 50]


class Restored:
    """A server whose streams are put back to an older copy."""

    def __init__(self, start: ServerFactory, directory: Path) -> None:
        self._store, self._copy = directory / "store", directory / "copy"
        self.server: NatsServer = start(store_dir=self._store)

    def client(self) -> NatsPy:
        return NatsPy(self.server.url)

    def publish(self, *payloads: str, subject: str = "S.x") -> None:
        with self.client() as client:
            client.store(subject, payloads)

    def copy(self) -> None:
        copy_store(self.server, self._store, self._copy)

    def put_back(self) -> None:
        put_back(self.server, self._store, self._copy)

    def create(self, name: str = "S", subjects: list[str] | None = None, **config: Any) -> None:
        with self.client() as client:
            client.create_stream(name, subjects, **config)

    def messages(self) -> int:
        """How many the stream holds."""
        with self.client() as client:
            return client.held("S")


def numbered(count: int, of: str) -> list[str]:
    return [f"{of}-{i}" for i in range(count)]


@pytest.fixture
def restored(server_factory: ServerFactory, tmp_path: Path) -> Restored:
    return Restored(server_factory, tmp_path)


def started(restored: Restored, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
    reader = stream_reader(restored.server, PAYLOAD, **{"stream": "S", "startingOffsets": "earliest", **options})
    return Query(reader, checkpoint)


@pytest.mark.promise("durability#only-volume-restored")
@pytest.mark.parametrize("begun", [False, True], ids=["nothing-read", "some-read"])
def test_what_takes_the_place_of_messages_that_were_searched_in_vain_is_read(restored: Restored, begun: bool) -> None:
    """The query has come no further than its last message; behind that it has only looked."""
    restored.create()
    if begun:
        restored.publish("first", subject="S.wanted")
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "other"))
    query = started(restored, subject="S.wanted")
    assert len(query.micro_batch()) == begun
    assert query.micro_batch() == []
    restored.put_back()
    restored.publish(*(new := numbered(LOST, "new")), subject="S.wanted")
    assert texts_of(query.micro_batch()) == new


@pytest.mark.promise("durability#query-that-reads", "durability#only-volume-restored")
@pytest.mark.parametrize(
    ("how", "end"), [*(("started again", end) for end in REFILLED), *(("running", end) for end in REFILLED[:2])]
)
def test_what_takes_the_place_of_a_lost_end_is_an_error_and_then_read(
    restored: Restored, end: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    query = started(restored)
    assert len(query.micro_batch()) == LOST
    restored.put_back()
    restored.publish(*(new := numbered(end - BEFORE, "new")))

    strict = query if how == "running" else started(restored, query.offset)
    error = sentence_of(strict.micro_batch)
    assert error.startswith("DataLossError: stream 'S' ")
    assert f"the query had read it up to sequence {LOST}, stored at 20" in error
    assert f"what it has from sequence {BEFORE + 1} on was stored later" in error
    assert error.endswith(f"continue with what was stored since, from sequence {BEFORE + 1} on")

    tolerant = started(restored, query.offset, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        assert texts_of(tolerant.micro_batch()) == new
    assert caplog.text.count("the query continues with what was stored since") == 1
    restored.publish("last")
    assert texts_of(tolerant.rows(1)) == ["last"]
    assert texts_of(started(restored, tolerant.offset).micro_batch()) == []
    restored.publish("after")
    assert texts_of(started(restored, tolerant.offset).rows(1)) == ["after"]


def test_a_query_looks_again_before_it_relies_on_hearing_of_what_is_stored(restored: Restored) -> None:
    """It listens from its own place on, so it would not hear of what is stored before that place."""
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    query = started(restored)
    assert len(query.micro_batch()) == LOST
    assert query.micro_batch() == []  # idle, and not listening yet
    restored.put_back()
    restored.publish(*numbered(1, "new"))
    assert f"what it has from sequence {BEFORE + 1} on was stored later" in sentence_of(query.micro_batch)


@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.needs("interest streams", only="limits")
@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.promise("durability#query-that-consumes")
@pytest.mark.parametrize("end", REFILLED[:2])
@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_a_query_that_consumes_removes_nothing_that_it_has_not_read(
    restored: Restored, retention: str, end: int
) -> None:
    restored.create(retention=retention, allow_direct=True)
    query = started(restored, consume=True)
    restored.publish(*numbered(BEFORE, "old"))
    assert len(query.micro_batch()) == BEFORE
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    assert len(query.rows(LOST - BEFORE)) == LOST - BEFORE
    restored.put_back()
    restored.publish(*(new := numbered(end - BEFORE, "new")))
    held = restored.messages()
    assert held >= len(new)

    strict = started(restored, query.offset, consume=True)
    assert f"what it has from sequence {BEFORE + 1} on was stored later" in sentence_of(strict.micro_batch)
    assert restored.messages() == held

    tolerant = started(restored, query.offset, consume=True, failOnDataLoss=False)
    assert texts_of(tolerant.micro_batch()) == new
    restored.publish("last")
    assert texts_of(tolerant.rows(1)) == ["last"]
    tolerant.micro_batch()
    wait_until(lambda: restored.messages() == (0 if retention != "limits" else end + 1))


@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_commit_removes_nothing_of_a_stream_that_was_put_back_meanwhile(restored: Restored, retention: str) -> None:
    restored.create(retention=retention, allow_direct=True)
    query = started(restored, consume=True)
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    assert len(read_partitions(pickle.dumps(query.reader), query.reader.partitions(query.offset, end))) == LOST
    restored.put_back()
    restored.publish(*numbered(LOST - BEFORE, "new"))
    query.reader.commit(end)
    assert restored.messages() == LOST
    assert "has lost its end" in sentence_of(lambda: query.reader.latestOffset(end, None))
    assert restored.messages() == LOST


@pytest.mark.parametrize("end", [LOST, LOST + 50])
@pytest.mark.parametrize("history", [1, 5])
def test_changes_of_a_bucket_are_read_again_from_the_last_revision_that_both_have(
    restored: Restored, end: int, history: int
) -> None:
    config = {"max_msgs_per_subject": history, "allow_rollup_hdrs": True, "allow_direct": True}
    restored.create("KV_B", ["$KV.B.>"], **config)

    def put(values: list[str]) -> None:
        with restored.client() as client:
            client.publish_acked([(f"$KV.B.k{i % 40}", value.encode()) for i, value in enumerate(values)])

    def changes(checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
        schema = StructType().add("key", StringType()).add("value", BinaryType())
        options = {"bucket": "B", "startingOffsets": "earliest", **options}
        return Query(stream_reader(restored.server, schema, **options), checkpoint)

    put(numbered(BEFORE, "old"))
    restored.copy()
    query = changes()
    put(numbered(LOST - BEFORE, "lost"))
    assert query.micro_batch()[-1]["value"] == b"lost-49"
    at = time.time()
    restored.put_back()
    wait_until(lambda: time.time() - at > 2 * SKEW / 1e9)
    put(new := numbered(end - BEFORE, "new"))

    first = BEFORE + 1 + max(0, len(new) - 40 * history)  # those before have made room
    if first <= LOST:  # else all that it has is still to be read
        assert f"what it has from sequence {first} on was stored later" in sentence_of(
            changes(query.offset).micro_batch
        )
    tolerant = changes(query.offset, failOnDataLoss=False)
    assert [row["value"].decode() for row in tolerant.micro_batch()] == new[-40 * history :]
    assert tolerant.micro_batch() == []


@pytest.mark.promise("exactly-once#stream-to-spark")
@pytest.mark.parametrize("end", [BEFORE, *REFILLED[:2]])
def test_a_micro_batch_that_was_begun_has_no_other_rows_when_it_is_run_again(restored: Restored, end: int) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    query = started(restored, minPartitions=3)
    assert len(query.micro_batch()) == BEFORE
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    begin = query.offset
    logged = query.reader.latestOffset(begin, query.reader.getDefaultReadLimit())
    planned = query.reader.partitions(begin, logged)
    restored.put_back()
    restored.publish(*(new := numbered(end - BEFORE, "new")))

    def plan(reader: Any) -> list[Any]:
        return list(reader.partitions(begin, json.loads(json.dumps(logged))))

    strict = started(restored, begin, minPartitions=3)
    error = sentence_of(lambda: plan(strict.reader))
    assert f"a micro-batch that was begun reaches up to sequence {LOST}, stored at 20" in error
    # tasks that were planned before, and meet the stream as it is now
    error = sentence_of(lambda: read_partitions(pickle.dumps(strict.reader), planned))
    assert error.startswith("DataLossError: stream 'S' ")

    tolerant = started(restored, begin, minPartitions=3, failOnDataLoss=False)
    assert read_partitions(pickle.dumps(tolerant.reader), plan(tolerant.reader)) == []
    following = started(restored, logged, failOnDataLoss=False)
    assert texts_of(following.micro_batch()) == new


def test_lag_says_that_a_query_cannot_go_on_where_the_end_of_its_stream_is_lost(restored: Restored) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    query = started(restored)
    query.micro_batch()
    settings = parse_options({"servers": restored.server.url})
    looks = [LagSample(0.0, 1.0, {(0, "S"): StreamSample(1, from_json(query.offset)["S"].end)})]
    assert [lag.problem for lag in compute_or_ask_lag("query", 0, looks, settings).streams] == [""]
    restored.put_back()
    restored.publish(*numbered(LOST, "new"))
    (lag,) = compute_or_ask_lag("query", 0, looks, settings).streams
    problem = f"the stream has lost its end, and what it has from sequence {BEFORE + 1} on is other messages"
    assert lag.problem == problem


@pytest.mark.promise("durability#task-that-reads")
def test_a_task_compares_the_last_row_of_its_range(restored: Restored) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    reader = batch_reader(restored.server, PAYLOAD, stream="S", minPartitions=2)
    partitions = reader.partitions()
    restored.put_back()
    restored.publish(*numbered(LOST - BEFORE, "new"))
    error = sentence_of(lambda: read_partitions(pickle.dumps(reader), partitions))
    assert error.startswith(
        "DataLossError: stream 'S' has lost its end, and other messages have its sequences (was it restored from an "
        "old backup?): sequence "
    )
    assert ", which is about to be read, was stored at " in error  # the last one, or one of a chunk before


@pytest.mark.parametrize("size", [LOST, 190])
def test_a_query_ends_where_its_stream_did_at_its_start_also_if_others_have_that_place_now(
    restored: Restored, size: int
) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    query = started(restored, maxOffsetsPerTrigger=size)
    query.reader.prepareForTriggerAvailableNow()
    restored.put_back()
    new = numbered(LOST - BEFORE + 10, "new")
    restored.publish(*new)
    found = texts_of(query.rows(LOST))
    assert found == numbered(BEFORE, "old") + new[:-10]
    assert query.micro_batch() == []
    assert texts_of(started(restored, query.offset).micro_batch()) == new[-10:]


def test_limits_and_filters_leave_a_fingerprint_too(restored: Restored) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"), subject="S.a")
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"), subject="S.a")
    restored.publish(*numbered(10, "other"), subject="S.b")
    query = started(restored, subject="S.a", maxOffsetsPerTrigger=90)
    assert [len(query.micro_batch()) for _ in range(3)] == [90, 90, 20]
    assert set(query.offset["S"]) == {"created", "next", "timestamp", "since", "first", "before", "subjects"}
    restored.put_back()
    restored.publish(*numbered(LOST - BEFORE, "new"), subject="S.a")
    assert "has lost its end" in sentence_of(started(restored, query.offset, subject="S.a").micro_batch)


def test_a_checkpoint_without_timestamps_gets_one_with_the_next_micro_batch(restored: Restored) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    query = started(restored)
    query.micro_batch()
    before = {name: value for name, value in query.offset["S"].items() if name != "timestamp"}
    query = started(restored, {"S": before})
    assert query.micro_batch() == []
    assert query.offset == {"S": before}
    restored.copy()
    restored.publish("lost")
    assert texts_of(query.rows(1)) == ["lost"]
    assert "timestamp" in query.offset["S"]
    restored.put_back()
    restored.publish("new")
    assert "has lost its end" in sentence_of(started(restored, query.offset).micro_batch)


def test_a_query_that_waits_for_a_server_notices_that_it_has_come_back_older(
    restored: Restored, caplog: pytest.LogCaptureFixture
) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    query = started(restored, reconnectWait="50ms")
    query.micro_batch()
    restored.server.kill()
    with ThreadPoolExecutor() as pool, caplog.at_level(logging.WARNING):
        waiting = pool.submit(lambda: sentence_of(query.micro_batch))
        wait_until(lambda: "trying again" in caplog.text)
        restored.put_back()
        restored.publish(*numbered(LOST - BEFORE + 1, "new"))
        # It may have looked before that was published: then the end is lost, and else it is written again.
        assert waiting.result(60).startswith("DataLossError: stream 'S' ")


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_checkpoint_can_be_given_to_a_batch_and_are_compared(restored: Restored, option: str) -> None:
    restored.create()
    restored.publish(*numbered(BEFORE, "old"))
    restored.copy()
    restored.publish(*numbered(LOST - BEFORE, "lost"))
    query = started(restored, maxOffsetsPerTrigger=BEFORE + 10)
    query.micro_batch()
    given = json.dumps(query.offset)

    def read(**options: Any) -> list[str]:
        reader = batch_reader(restored.server, PAYLOAD, stream="S", **{option: given}, **options)
        return texts_of(read_partitions(pickle.dumps(reader), reader.partitions()))

    everything = [*numbered(BEFORE, "old"), *numbered(LOST - BEFORE, "lost")]
    assert read() == (everything[BEFORE + 10 :] if option == "startingOffsets" else everything[: BEFORE + 10])
    restored.put_back()
    restored.publish(*(new := numbered(30, "new")))
    assert "has lost its end" in sentence_of(read)
    assert read(failOnDataLoss=False) == (new if option == "startingOffsets" else numbered(BEFORE, "old"))
    with restored.client() as client:
        client.delete_stream("S")
    restored.create()
    restored.publish("another")
    assert "was deleted and created again" in sentence_of(read)
    assert read(failOnDataLoss=False) == ["another"]


@pytest.mark.promise("operating#one-stream-less")
def test_a_stream_that_is_left_out_and_named_again_is_read_on_from_where_the_query_was(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = f"{unique}_A", f"{unique}_B"

    def run(stream: str, checkpoint: dict[str, Any] | None) -> Query:
        reader = stream_reader(nats_server, PAYLOAD, stream=stream, startingOffsets="earliest")
        return Query(reader, checkpoint)

    for stream in (one, other):
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", range(10))
    query = run(one, None)
    assert len(query.micro_batch()) == 10
    query = run(other, query.offset)
    with caplog.at_level(logging.WARNING):
        assert len(query.micro_batch()) == 10
        assert query.micro_batch() == []
    assert caplog.text.count(f"the query has read the stream '{one}' up to sequence 10, but the option 'stream'") == 1
    nats_py.publish_acked([(f"{one}.x", b"new")])
    query = run(one, query.offset)
    assert texts_of(query.micro_batch()) == ["new"]
    assert set(query.offset) == {one, other}


def test_an_idle_query_asks_no_more_than_the_state_of_its_stream(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=4))
    assert [len(query.micro_batch()) for _ in range(3)] == [4, 4, 2]
    assert query.micro_batch() == []  # the first look after the last micro-batch
    with nats_py.collect("$JS.API.STREAM.>") as asked:
        for _ in range(5):
            query.reader._query.idling.forget()  # or it would only listen
            assert query.micro_batch() == []
        assert [message.subject for message in asked.wait(5, 60)] == [f"$JS.API.STREAM.INFO.{unique}"] * 5


def test_a_busy_query_compares_in_the_round_trips_that_it_takes_anyway(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """A server of its own cannot put its stream back while our connection stays, so that only the end is looked up."""
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 20)
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=4))
    assert len(query.micro_batch()) == 4
    with nats_py.collect("$JS.API.STREAM.>") as asked:
        end = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
        state, first, last = [message.subject for message in asked.wait(3, 60)]
        assert state == f"$JS.API.STREAM.INFO.{unique}"
        assert first == last == f"$JS.API.STREAM.MSG.GET.{unique}"
    assert end[unique]["next"] == 9


class RestoredCluster:
    """A cluster with a stream of three replicas, whose members come back with an older copy, or with nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.cluster = Cluster(directory)

    def copy(self, last: str) -> None:
        """Copy the stores while the servers run, as a snapshot of their volumes would, with so much in each."""
        stores = {server: self.cluster.store(server) for server in self.cluster.servers}
        wait_until(lambda: all(has_in_file(store, last) for store in stores.values()))
        for server, store in stores.items():
            with paused(server):
                shutil.copytree(store, self._copy_of(server))

    def put_back(self, members: int) -> None:
        """Put so many members back, and wipe the others: one that kept its store would have other messages."""
        for server in self.cluster.servers:
            server.kill()
        for i, server in enumerate(self.cluster.servers):
            self.cluster.wipe(server)
            if i < members:
                shutil.copytree(self._copy_of(server), self.cluster.store(server))
        with ThreadPoolExecutor() as pool:
            list(pool.map(NatsServer.start, self.cluster.servers))
        wait_until(self._has_leader)

    def _copy_of(self, server: NatsServer) -> Path:
        return self._directory / f"copy-{self.cluster.store(server).name}"

    def _has_leader(self) -> bool:
        with suppress(Exception), self.client() as client:
            return bool(client.stream_info("S")["cluster"].get("leader"))
        return False

    def client(self) -> NatsPy:
        return NatsPy(self.cluster.servers[0].url)


def has_in_file(store: Path, payload: str) -> bool:
    return any(payload.encode() in file.read_bytes() for file in store.rglob("streams/S/msgs/*.blk"))


@pytest.mark.long("spark_nats/kinds/streams/read/*", races="members of a cluster that start from older disks")
@pytest.mark.promise("durability#two-volumes-restored")
@pytest.mark.parametrize("members", [2, 3])
def test_members_of_a_cluster_that_come_back_older_lose_nothing_silently(
    tmp_path: Path, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "CONFIRMATION", 0.2)
    restored = RestoredCluster(tmp_path)
    with restored.cluster:
        with restored.client() as client:
            client.create_in_cluster("S", num_replicas=3)
            client.store("S.x", numbered(BEFORE, "old"))
        restored.copy(f"old-{BEFORE - 1}")
        with restored.client() as client:
            client.store("S.x", numbered(LOST - BEFORE, "lost"))
        options = {"stream": "S", "startingOffsets": "earliest", "retryTimeout": "60s"}
        query = Query(stream_reader(restored.cluster.urls, PAYLOAD, **options))
        assert len(query.rows(LOST)) == LOST
        restored.put_back(members)
        new = numbered(LOST, "new")
        with restored.client() as client:
            client.store("S.x", new)
        assert "has lost its end" in sentence_of(query.micro_batch)
        tolerant = Query(stream_reader(restored.cluster.urls, PAYLOAD, failOnDataLoss=False, **options), query.offset)
        assert texts_of(tolerant.rows(len(new))) == new
