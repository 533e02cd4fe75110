"""What the faults `restore-older` do to a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import CLIENT, IN, OUT, ChaosCluster
from tests.chaos.verdict import read
from tests.nats_py import NatsPy
from tests.servers import IN_DOCKER

pytestmark = [
    pytest.mark.long("tests/chaos/*"),
    pytest.mark.skipif(IN_DOCKER, reason="needs a cluster, which only embedded servers can be"),
]


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[ChaosCluster]:
    logs = tmp_path / "logs"
    logs.mkdir()
    with ChaosCluster(tmp_path / "servers", logs) as cluster:
        yield cluster


def publish_to_both(cluster: ChaosCluster, first: int, last: int) -> None:
    with NatsPy(cluster.urls, **CLIENT) as client:
        numbers = range(first, last + 1)
        client.publish_acked([(f"{name}.k0", b"k0 %d " % i) for name in ("in", "out") for i in numbers])


def numbers_in(cluster: ChaosCluster, stream: str) -> list[int]:
    with NatsPy(cluster.urls, **CLIENT) as client:
        return [entry.number for entry in read(client, stream).get("k0", [])]


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("streams", [(IN,), ()], ids=["one stream", "all of it"])
def test_servers_come_back_with_what_they_had_when_their_stores_were_copied(
    chaos: ChaosCluster, tmp_path: Path, members: int, streams: tuple[str, ...]
) -> None:
    publish_to_both(chaos, 1, 100)
    folders = [folder for stream in streams for folder in chaos.folders_of(stream)] or [""]
    chaos.copy_stores(tmp_path / "copies")
    chaos.wait_until_whole()  # copying pauses the servers, which may elect other leaders then
    publish_to_both(chaos, 101, 150)
    for server in chaos.servers:
        chaos.kill(server)
    chaos.put_back(chaos.servers[:members], tmp_path / "copies", folders)
    chaos.start_all()
    chaos.wait_until_whole()

    older, newer = list(range(1, 101)), list(range(1, 151))
    assert numbers_in(chaos, IN) == older
    assert numbers_in(chaos, OUT) == (newer if streams else older)
    publish_to_both(chaos, 151, 200)
    for _ in range(3):  # whoever leads
        assert numbers_in(chaos, IN) == [*older, *range(151, 201)]
        chaos.api(f"STREAM.LEADER.STEPDOWN.{IN}")
        chaos.wait_until_whole()
