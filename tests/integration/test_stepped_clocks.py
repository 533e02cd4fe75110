"""The servers whose clocks tests step, and what a real server does when its clock is."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.nats_py import NatsPy, wait_until
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


def test_a_servers_own_search_for_a_time_passes_over_messages_from_before_the_clock_was_set_back(
    clock_server_factory: Callable[..., ClockServer], unique: str
) -> None:
    server = clock_server_factory()
    with NatsPy(server.url) as client:
        client.create_stream(unique, allow_direct=True)
        client.store_empty(unique, 10)
        server.step(-60)
        client.store_empty(unique, 10)
        sixth = client.api(f"STREAM.MSG.GET.{unique}", {"seq": 6})["message"]["time"]
        config = {"deliver_policy": "by_start_time", "opt_start_time": sixth, "ack_policy": "none"}
        made = client.api(f"CONSUMER.CREATE.{unique}", {"stream_name": unique, "config": config})
        assert (made["num_pending"], made["delivered"]["stream_seq"]) == (0, 20)
        request = {"start_time": sixth, "next_by_subj": ">", "batch": 1}
        answer = client.request(f"$JS.API.DIRECT.GET.{unique}", json.dumps(request).encode())
        assert answer.headers["Status"] == ["404"]


def test_a_restart_forgets_ids_that_are_in_the_stream_and_in_the_window_where_times_fall(
    clock_server_factory: Callable[..., ClockServer], unique: str
) -> None:
    server = clock_server_factory()
    with NatsPy(server.url) as client:
        client.create_stream(unique, duplicate_window=600 * 10**9)

        def is_known(message_id: str) -> bool:
            answer = client.request(f"{unique}.a", b"x", headers={"Nats-Msg-Id": message_id})
            return bool(json.loads(answer.payload).get("duplicate"))

        assert [is_known(f"before-{number}") for number in range(5)] == [False] * 5
        server.step(-1000)
        assert [is_known(f"behind-{number}") for number in range(10)] == [False] * 10
        server.step(1000)
        assert not is_known("after")
        assert is_known("before-4")
        assert is_known("behind-9")  # until the server looks for ids whose time has passed
        server.kill()
        server.start()
        wait_until(lambda: client.reaches_stream(f"{unique}.a"))
        assert is_known("after")
        assert not is_known("before-4")  # a search by halves for the beginning of the window passes over it
        assert not is_known("behind-9")


@pytest.mark.promise("durability#clock-stepped")
def test_a_restart_removes_young_messages_with_an_old_one_after_them_where_age_is_limited(
    clock_server_factory: Callable[..., ClockServer], unique: str
) -> None:
    server = clock_server_factory()
    with NatsPy(server.url) as client:
        client.create_stream(unique, max_age=600 * 10**9, duplicate_window=600 * 10**9)
        server.step(-1000)
        client.store_empty(unique, 1)
        server.step(1000)
        client.store_empty(unique, 5)
        server.step(-1000)
        client.store_empty(unique, 1)
        assert client.held(unique) == 7
        server.kill()
        server.step(1000)
        server.start()
        state = wait_until(lambda: client.stream_info(unique)["state"])
        assert (state["messages"], state["first_seq"]) == (0, 8)
