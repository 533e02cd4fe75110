"""A real server and the model know the same after an upheaval: see :mod:`tests.simulation.upheavals`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.servers import IN_DOCKER
from tests.simulation.line import ModelSite
from tests.simulation.upheavals import (
    SERVERS,
    LeafPlace,
    ModelPlace,
    Move,
    RealPlace,
    differs,
    leaf_moves,
    moves,
    play,
    real_leaf_place,
    real_place,
)

NEWEST = SERVERS["2.15"]
QUICK = (*range(1, 6), 1046, 1084)
"""Histories in which all that may happen to a server alone happens; in the last two after the last message is gone."""
QUICK_LEAF = 28, 58
"""Histories of a hub and a leaf node in which all happens that may happen to either."""
OTHERS = ("2.11", "2.12", "2.14")
_LONG = pytest.mark.long("tests/simulation/*", races="what a server does a moment after it has answered")


@pytest.fixture(scope="module")
def places() -> Iterator[Any]:
    """Return ways to real servers, which are started once: by version, and whether it is a cluster, or has a clock."""
    if IN_DOCKER:
        pytest.skip("needs servers that can be killed")
    with ExitStack() as stack:
        known: dict[tuple[str, bool, bool], RealPlace] = {}

        def place(version: str, cluster: bool = False, clock: bool = False) -> RealPlace:
            key = version, cluster, clock
            if key not in known:
                known[key] = stack.enter_context(real_place(*key))
            return known[key]

        yield place


def compare(site: RealPlace, history: list[Move], version: str, servers: int = 1) -> None:
    expected = play(ModelPlace(version, servers), history)
    assert differs(play(site, history, expected), expected) == ""


@pytest.mark.parametrize("seed", QUICK)
def test_a_server_knows_after_an_upheaval_what_its_model_knows(places: Any, seed: int) -> None:
    compare(places(NEWEST), moves(seed, NEWEST), NEWEST)


@_LONG
@pytest.mark.parametrize("seed", range(6, 12))
@pytest.mark.parametrize("server", OTHERS)
def test_an_older_server_knows_what_its_model_knows(places: Any, server: str, seed: int) -> None:
    version = SERVERS[server]
    compare(places(version), moves(seed, version), version)


@_LONG
@pytest.mark.parametrize("seed", range(6))
def test_a_server_whose_clock_is_stepped_knows_what_its_model_knows(places: Any, seed: int) -> None:
    compare(places(NEWEST, clock=True), moves(seed, NEWEST, clock=True), NEWEST)


@_LONG
@pytest.mark.parametrize("seed", range(3))
def test_ids_expire_for_a_server_and_its_model_alike(places: Any, seed: int) -> None:
    compare(places(NEWEST), moves(seed, NEWEST, slow=True), NEWEST)


@_LONG
@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_knows_after_an_upheaval_what_its_model_knows(places: Any, seed: int) -> None:
    history = moves(seed, NEWEST, replicas=(1, 3)[seed % 2], cluster=True)
    compare(places(NEWEST, cluster=True), history, NEWEST, 3)


def compare_leaf(site: LeafPlace, history: list[Move], version: str) -> None:
    expected = play(LeafPlace.of_model(version), history)
    assert differs(play(site, history, expected), expected) == ""


def test_a_hub_and_its_leaf_node_with_streams_of_one_name_answer_as_their_models() -> None:
    if IN_DOCKER:
        pytest.skip("needs servers that can be killed")
    with real_leaf_place(NEWEST) as site:
        for seed in QUICK_LEAF:
            compare_leaf(site, leaf_moves(seed, NEWEST), NEWEST)


@_LONG
@pytest.mark.parametrize("server", ["2.10", "2.12", "2.14", "2.15"])
def test_an_older_hub_and_its_leaf_node_answer_as_their_models(server: str) -> None:
    if IN_DOCKER:
        pytest.skip("needs servers that can be killed")
    with real_leaf_place(SERVERS[server]) as site:
        for seed in range(100, 106):
            compare_leaf(site, leaf_moves(seed, SERVERS[server]), SERVERS[server])


def test_the_quick_histories_of_a_hub_and_its_leaf_node_have_all_that_may_happen_to_either() -> None:
    happens = {
        (move.what, move.arguments["side"])
        for seed in QUICK_LEAF
        for move in leaf_moves(seed, NEWEST)
        if "side" in move.arguments
    }
    assert happens >= {(what, side) for what in ("end", "begin", "restore", "consume") for side in ("hub", "leaf")}
    assert {"take", "acknowledge", "purge", "edit", "delete", "kill"} <= {what for what, _ in happens}


def test_the_quick_histories_have_all_that_may_happen_to_a_server_alone() -> None:
    happens = {move.what for seed in QUICK for move in moves(seed, NEWEST)}
    assert happens >= {"restart", "kill", "back up", "restore", "edit", "purge", "delete", "consume", "publish", "look"}


def test_a_model_stream_that_is_made_one_replica_stores_what_comes_later_and_nothing_that_was_under_way() -> None:
    """Real servers do so: of 12,000 messages that were sent meanwhile, 31 were answered by nobody, and not stored."""
    site = ModelSite(NEWEST, 3)
    group = site.cluster.create_stream("S", ["s"], 3)
    site.wait(1)
    answered: list[int | None] = []

    def publish(name: str) -> None:
        site.cluster.offer("s", b"", {"Nats-Msg-Id": name}, lambda sequence, _: answered.append(sequence))

    leader = group.leader()
    assert leader is not None
    publish("under way")
    while leader.commit == len(leader.log):
        site.wait(0.0001)
    group.scale(1)
    site.wait(1)
    publish("later")
    publish("under way")
    site.wait(1)
    assert (answered, leader.commit) == ([1, 2], len(leader.log))
