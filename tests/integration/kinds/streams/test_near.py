"""On which servers of a cluster consumers live, and to which of them readers and writers connect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.client import connect
from spark_nats.client.choosing import _names
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming import consumers, placing
from spark_nats.jetstream.consuming.consumers import create_ephemeral
from spark_nats.jetstream.reading.ranges import read_range
from spark_nats.kinds import task
from spark_nats.kinds.streams.read import planning
from spark_nats.protocol.consumers import ConsumerInfo
from tests.connections import options_for
from tests.integration.support import SEQUENCE, batch_reader, monitoring, read_sequences, write
from tests.nats_py import NatsPy
from tests.servers import Cluster

ROWS = 3000
NAMES = {"n0", "n1", "n2"}


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are large, however few messages they have and however slow the machine is; nothing is known of servers."""
    monkeypatch.setattr(placing, "SAVED", 60.0)
    monkeypatch.setattr(planning, "MIN_SPREAD", ROWS // 10)
    _names.clear()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[NatsPy]:
    with NatsPy(cluster.urls.split(",")) as client:
        yield client


def fill(client: NatsPy, stream: str, replicas: int = 3) -> None:
    client.create_in_cluster(stream, num_replicas=replicas)
    client.publish_acked((f"{stream}.a", b"") for _ in range(ROWS))


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers of the consumers that were made, in their order, as the cluster named them."""
    found: list[str] = []

    def create(*arguments: Any, **more: Any) -> ConsumerInfo:
        made = create_ephemeral(*arguments, **more)
        found.append(made.leader)
        return made

    monkeypatch.setattr(consumers, "create_ephemeral", create)
    return found


def read_all(url: str, stream: str) -> str:
    """Read a stream over a connection to a server, and return the server's name."""
    with connect(options_for(url)) as connection:
        assert sum(len(each.messages) for each in read_range(JetStream(connection), stream, 1, ROWS + 1)) == ROWS
        return connection.info.server_name


def test_a_large_range_is_read_through_a_consumer_on_the_connected_server(
    cluster: Cluster, client: NatsPy, unique: str, homes: list[str]
) -> None:
    fill(client, unique)
    for server in cluster.servers:
        homes.clear()
        here = read_all(server.url, unique)
        *others, last = homes
        assert here not in others
        assert last == here or len(others) == placing.MAX_AGAIN


def test_a_consumer_is_made_again_so_often_and_no_more(
    cluster: Cluster, client: NatsPy, unique: str, homes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "MAX_AGAIN", 1)
    fill(client, unique)
    for _ in range(8):
        homes.clear()
        here = read_all(cluster.servers[0].url, unique)
        assert len(homes) == 1 + (homes[0] != here)


@pytest.mark.parametrize(("replicas", "saved"), [(1, 60.0), (3, 1e-12)])
def test_a_consumer_is_made_once_where_another_place_cannot_be_or_pays_nothing(
    cluster: Cluster,
    client: NatsPy,
    unique: str,
    homes: list[str],
    monkeypatch: pytest.MonkeyPatch,
    replicas: int,
    saved: float,
) -> None:
    monkeypatch.setattr(placing, "SAVED", saved)
    fill(client, unique, replicas)
    for server in cluster.servers:
        homes.clear()
        read_all(server.url, unique)
        assert len(homes) == 1


def test_the_tasks_of_a_batch_are_dealt_to_the_replicas_and_read_from_them(
    cluster: Cluster, client: NatsPy, unique: str, homes: list[str]
) -> None:
    fill(client, unique)
    reader = batch_reader(cluster.urls, SEQUENCE, stream=unique, minPartitions=6)
    partitions = reader.partitions()
    assert Counter(each.server for each in partitions) == dict.fromkeys(NAMES, 2)
    for each in partitions:
        homes.clear()
        assert sum(batch.num_rows for batch in reader.read(each)) == ROWS // 6
        *others, last = homes
        assert each.server not in others
        assert last == each.server or len(others) == placing.MAX_AGAIN


def test_a_server_that_cannot_be_found_is_a_wish_and_no_condition(
    cluster: Cluster, client: NatsPy, unique: str
) -> None:
    fill(client, unique)
    # Only one server is known: the others of the stream cannot be connected to.
    url = cluster.servers[0].url
    assert read_sequences(url, stream=unique, minPartitions=3, discoverServers=False) == [*range(1, ROWS + 1)]
    assert set(_names.values()) == {"n0"}


def test_a_writer_of_many_rows_is_connected_to_the_leader_of_its_stream(
    cluster: Cluster, client: NatsPy, unique: str
) -> None:
    client.create_in_cluster(unique, num_replicas=3)
    rows = pa.table({"subject": [f"{unique}.a"] * ROWS, "payload": [b""] * ROWS})
    for leader in ("n0", "n1"):
        client.hand_over(unique, leader)
        name = f"{unique}-{leader}"
        write(cluster.urls, rows, stream=unique, connectionName=name)
        assert [each for each in sorted(NAMES) if published(cluster, each, name) >= ROWS] == [leader]
    assert client.held(unique) == 2 * ROWS


def test_each_of_several_streams_is_written_at_its_leader_whenever_its_first_rows_come(
    cluster: Cluster, client: NatsPy, unique: str
) -> None:
    leaders = {f"{unique}_0": "n0", f"{unique}_1": "n1"}
    for name, leader in leaders.items():
        client.create_in_cluster(name, num_replicas=3)
        client.hand_over(name, leader)
    # The first batch has rows for one of the streams only, and so has the second one.
    batches = [pa.table({"subject": [f"{name}.a"] * ROWS, "payload": [b""] * ROWS}) for name in leaders]
    write(cluster.urls, pa.concat_tables(batches), stream=",".join(leaders), connectionName=unique)
    assert [client.held(name) for name in leaders] == [ROWS, ROWS]
    sent = {each: published(cluster, each, unique) for each in sorted(NAMES)}
    assert sent["n0"] >= ROWS <= sent["n1"]
    assert sent["n2"] < ROWS


def test_a_writer_of_few_rows_stays_where_it_is(cluster: Cluster, client: NatsPy, unique: str) -> None:
    client.create_in_cluster(unique, num_replicas=3)
    few = task.MANY_ROWS - 1
    rows = pa.table({"subject": [f"{unique}.a"] * few, "payload": [b""] * few})
    client.hand_over(unique, "n1")
    write(cluster.servers[0].url, rows, stream=unique, connectionName=unique)
    assert published(cluster, "n0", unique) >= few
    assert not any(published(cluster, each, unique) for each in ("n1", "n2"))


def published(cluster: Cluster, server: str, name: str) -> int:
    """How many messages a server was sent over connections of a name, those that are closed included."""
    found = monitoring(cluster.of(server), "connz?state=any&limit=2048")["connections"]
    return sum(each["in_msgs"] for each in found if each.get("name") == name)
