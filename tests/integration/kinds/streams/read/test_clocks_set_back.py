"""Times do not rise with sequences: the clock of a server is set back, or another server, which is behind, leads."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import PAYLOAD, Query, numbers_of, sentence_of, stream_reader
from tests.nats_py import NatsPy
from tests.servers import ClockServer, Cluster, copy_store

Start = Callable[..., ClockServer]


class Stored:
    """A server whose clock is stepped, with a stream S that keeps the last message of each subject."""

    def __init__(self, server: ClockServer, **config: Any) -> None:
        self.server = server
        with NatsPy(server.url) as client:
            client.create_stream("S", **config)

    def store(self, *numbers: int, subject: str = "S.{}") -> None:
        with NatsPy(self.server.url) as client:
            client.publish_acked([(subject.format(number), str(number).encode()) for number in numbers])

    def query(self, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
        options = {"stream": "S", "startingOffsets": "earliest", **options}
        return Query(stream_reader(self.server, PAYLOAD, **options), checkpoint)


@pytest.mark.promise("durability#clock-set-back")
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("seconds", [1, 2, 30])
@pytest.mark.parametrize("before", ["one micro-batch", "two", "ahead"])
def test_a_clock_that_is_set_back_loses_nothing(
    clock_server_factory: Start, seconds: float, before: str, fails: bool
) -> None:
    it = Stored(clock_server_factory(), max_msgs_per_subject=1)
    query = it.query(failOnDataLoss=fails)
    if before == "ahead":
        it.server.step(seconds)
    it.store(*range(100))
    if before != "one micro-batch":
        assert len(query.micro_batch()) == 100
    it.server.step(-seconds)
    it.store(100)
    assert numbers_of(query.micro_batch())[-1] == 100
    it.store(100)  # takes the place of the message at the query's place
    assert numbers_of(it.query(query.offset, failOnDataLoss=fails).micro_batch()) == [100]
    assert numbers_of(query.micro_batch()) == [100]
    it.server.step(seconds)
    it.store(100)
    assert numbers_of(it.query(query.offset, failOnDataLoss=fails).micro_batch()) == [100]


@pytest.mark.promise("durability#clock-behind")
@pytest.mark.parametrize("seconds", [0, 1, 10, 30])
@pytest.mark.parametrize("end", [25, 30, 35])
def test_what_a_server_that_is_behind_has_stored_since_is_read_and_not_all_is_read_again(
    clock_server_factory: Start, tmp_path: Path, seconds: float, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    it = Stored(clock_server_factory(store_dir=store))
    query = it.query()
    for numbers in (range(10), range(10, 20)):
        it.store(*numbers)
        query.rows(10)
    copy_store(it.server, store, copy)
    it.store(*range(20, 30))
    query.rows(10)
    it.server.kill()
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    it.server.step(-seconds)
    it.server.start()
    it.store(*(new := range(100, 100 + end - 20)))
    assert sentence_of(it.query(query.offset).micro_batch).endswith("what was stored since, from sequence 21 on")
    tolerant = it.query(query.offset, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        assert numbers_of(tolerant.micro_batch()) == [*new]
    assert ("[NATS_CLOCK_BEHIND]" in caplog.text) == bool(seconds)
    it.store(200)
    assert numbers_of(tolerant.rows(1)) == [200]


@pytest.mark.parametrize(
    ("seconds", "again"), [(30, 0), (2, 10)], ids=["times fall where the copy ends", "times may rise there too"]
)
def test_where_the_copy_was_made_within_a_micro_batch_times_that_fall_show_where_the_new_ones_begin(
    clock_server_factory: Start, tmp_path: Path, seconds: float, again: int, caplog: pytest.LogCaptureFixture
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    it = Stored(clock_server_factory(store_dir=store))
    query = it.query()
    it.store(*range(10))
    query.rows(10)
    it.store(*range(10, 20))
    copy_store(it.server, store, copy)
    it.server.step(2)  # as if the copy were two seconds old when the volume is lost
    it.store(*range(20, 30))
    query.rows(20)
    it.server.kill()
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    it.server.step(-seconds)
    it.server.start()
    it.store(*range(100, 115))
    tolerant = it.query(query.offset, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        *old, first_new = numbers_of(tolerant.micro_batch())[:-14]
    assert first_new == 100
    assert old == [*range(20 - len(old), 20)]
    assert len(old) <= again
    assert f"from sequence {21 - len(old)} to 35" in caplog.text


@pytest.mark.long("spark_nats/jetstream/judgement.py", "spark_nats/jetstream/views.py")
def test_a_leader_whose_clock_is_behind_loses_nothing(tmp_path: Path, unique: str) -> None:
    with Cluster(tmp_path, clocks=True) as cluster, NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster("S", num_replicas=3, max_msgs_per_subject=1)
        leader = client.stream_info("S")["cluster"]["leader"]
        other = next(server for server in cluster.servers if server is not cluster.of(leader))
        cluster.step(other, -2)

        def store(*numbers: int) -> None:
            client.publish_acked([(f"S.{number}", str(number).encode()) for number in numbers])

        def started(checkpoint: dict[str, Any] | None = None) -> Query:
            options = {"stream": "S", "startingOffsets": "earliest"}
            return Query(stream_reader(cluster.urls, PAYLOAD, **options), checkpoint)

        store(*range(300))
        query = started()
        client.hand_over("S", f"n{cluster.servers.index(other)}")
        store(300)
        assert len(query.rows(301)) == 301
        store(300)
        assert numbers_of(started(query.offset).rows(1)) == [300]
        assert numbers_of(query.rows(1)) == [300]
