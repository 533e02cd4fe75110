"""The servers whose clocks tests step, and what a real server does when its clock is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.nats_py import NatsPy
from tests.servers import ClockServer, Cluster


def times(client: NatsPy, stream: str, first: int, count: int) -> list[float]:
    """When messages were stored, in seconds since 1970."""
    asked = ({"seq": sequence} for sequence in range(first, first + count))
    answers = [client.api(f"STREAM.MSG.GET.{stream}", request)["message"] for request in asked]
    return [datetime.fromisoformat(answer["time"]).timestamp() for answer in answers]


def test_messages_are_stored_at_the_time_of_the_stepped_clock(
    clock_server_factory: Callable[..., ClockServer], unique: str
) -> None:
    server = clock_server_factory()
    with NatsPy(server.url) as client:
        client.create_stream(unique)
        for step in (0, -100, 160):
            server.step(step)
            client.store(f"{unique}.a", [step])
        at, behind, ahead = times(client, unique, 1, 3)
        assert (round(behind - at, -1), round(ahead - at, -1)) == (-100, 60)
        server.kill()
        server.step(-1000)
        server.start()
        client.store(f"{unique}.a", [4])
        assert round(times(client, unique, 4, 1)[0] - at, -1) in range(-940, -870, 10)


def test_each_server_of_a_cluster_has_a_clock_of_its_own(tmp_path: Path, unique: str) -> None:
    with Cluster(tmp_path, clocks=True) as cluster, NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3)
        leader = client.stream_info(unique)["cluster"]["leader"]
        client.store(f"{unique}.a", [1])
        cluster.step(cluster.of(leader), -100)
        client.store(f"{unique}.a", [2])
        other = next(server for server in cluster.servers if server is not cluster.of(leader))
        client.hand_over(unique, f"n{cluster.servers.index(other)}")
        client.store(f"{unique}.a", [3])
        first, behind, last = times(client, unique, 1, 3)
        assert (round(behind - first, -1), round(last - first, -1)) == (-100, 0)
