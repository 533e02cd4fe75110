"""Buckets of a cluster are read whole and up to date, whatever its servers lack at the moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from spark_nats.errors import JetStreamError, NatsConnectionError, NatsTimeoutError
from spark_nats.jetstream.reading import pulls
from tests.integration.support import batch_reader, read
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, paused

pytestmark = pytest.mark.timeout(240)

VALUE = StructType().add("key", StringType()).add("value", BinaryType())
KEYS = [f"k{i}" for i in range(1_000)]
OPTIONS = {"requestTimeout": "2s", "connectTimeout": "1s", "reconnectWait": "100ms"}
PASSING = (JetStreamError, NatsConnectionError, NatsTimeoutError)
"""What a batch that is planned ends with while a leader is missing, or a server does not answer in that time."""


class Ledger:
    """A bucket whose keys are all given a higher number again and again, and what they have at least by now."""

    def __init__(self, cluster: Cluster, name: str, history: int) -> None:
        self.cluster = cluster
        self.name = name
        with NatsPy(cluster.servers[0].url) as client:
            config = {"num_replicas": 3, "max_msgs_per_subject": history, "allow_rollup_hdrs": True}
            client.create_in_cluster(f"KV_{name}", subjects=[f"$KV.{name}.>"], **config)
        self.least = 0
        self.write()

    def write(self) -> None:
        """Give every key the next number, however often that takes."""

        def written() -> bool:
            try:
                with NatsPy(self.cluster.urls.split(",")) as client:
                    value = str(self.least + 1).encode()
                    client.publish_acked([(f"$KV.{self.name}.{key}", value) for key in KEYS], timeout=20)
            except Exception:
                return False
            return True

        wait_until(written, timeout=120)
        self.least += 1

    def check(self) -> None:
        """Read the bucket: every key is there once, and not with an older number than when the read began."""
        least = self.least

        def once() -> list[dict[str, Any]]:
            with suppress(*PASSING):
                return read(self.cluster.urls, VALUE, bucket=self.name, **OPTIONS)
            return []

        rows = wait_until(once, timeout=120)
        assert sorted(row["key"] for row in rows) == sorted(KEYS)
        assert min(int(row["value"]) for row in rows) >= least

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Write all the time while the block runs."""
        ended = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                while not ended.wait(0.05):
                    self.write()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert not failed

    def followers(self) -> list[int]:
        """The numbers of the servers that do not lead it, as soon as one does."""

        def asked() -> list[int]:
            with suppress(Exception), NatsPy(self.cluster.urls.split(",")) as client:
                info = client.stream_info(f"KV_{self.name}")["cluster"]
                if info.get("leader"):
                    return [int(replica["name"].removeprefix("n")) for replica in info["replicas"]]
            return []

        return wait_until(asked)


@pytest.mark.long("spark_nats/kinds/buckets/*", "spark_nats/jetstream/*")
@pytest.mark.promise("durability#one-volume-restored")
@pytest.mark.parametrize("wipe", [False, True], ids=["stopped", "wiped"])
@pytest.mark.parametrize("history", [1, 3])
def test_a_follower_that_was_stopped_or_has_an_empty_disk_makes_no_value_old_and_hides_none(
    cluster: Cluster, unique: str, history: int, wipe: bool
) -> None:
    ledger = Ledger(cluster, unique, history)
    follower = cluster.servers[ledger.followers()[0]]
    with paused(follower):
        ledger.write()
        ledger.check()
    for _ in range(3):
        ledger.check()
    cluster.end(follower)
    if wipe:
        cluster.wipe(follower)
    ledger.write()
    follower.start()
    for _ in range(3):
        ledger.check()


@pytest.mark.long("spark_nats/jetstream/*", races="servers that restart while others write")
@pytest.mark.parametrize("history", [1, 3])
def test_every_read_is_whole_while_it_is_written_and_servers_restart_with_and_without_their_stores(
    cluster: Cluster, unique: str, history: int
) -> None:
    ledger = Ledger(cluster, unique, history)
    ended = threading.Event()
    restarts: list[bool] = []
    failed: list[BaseException] = []

    def restart() -> None:
        try:
            while len(restarts) < 6:
                wipe = len(restarts) % 3 == 2
                cluster.restart(cluster.servers[ledger.followers()[0]], wipe=wipe)
                ended.wait(2.0 if wipe else 0.5)
                restarts.append(wipe)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=restart)
    thread.start()
    with ledger.growing():
        while thread.is_alive():
            ledger.check()
    thread.join()
    assert not failed
    ledger.check()


def test_a_leader_that_steps_down_or_goes_in_the_middle_costs_no_key(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 100)
    monkeypatch.setattr(pulls, "PULL_BYTES", 10_000)
    ledger = Ledger(cluster, unique, 2)

    def step_down() -> None:
        with NatsPy(cluster.servers[0].url) as client, suppress(Exception):
            client.api(f"STREAM.LEADER.STEPDOWN.KV_{unique}")

    def restart() -> None:
        (leader,) = {*range(3)} - {*ledger.followers()}
        cluster.restart(cluster.servers[leader])

    def planned() -> Iterator[Any] | None:
        with suppress(*PASSING):
            reader = batch_reader(cluster.urls, VALUE, bucket=unique, **OPTIONS)
            batches: Iterator[Any] = reader.read(*reader.partitions())
            return batches
        return None

    actions: list[Callable[[], None]] = [step_down, restart, ledger.write]
    for act in actions:
        batches = wait_until(planned)
        rows = [row for _ in range(2) for row in next(batches).to_pylist()]
        act()
        rows += [row for batch in batches for row in batch.to_pylist()]
        assert sorted(row["key"] for row in rows) == sorted(KEYS), act
