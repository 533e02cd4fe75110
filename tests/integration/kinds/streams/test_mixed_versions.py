"""A cluster that is upgraded or downgraded, one server after the other, while a query consumes."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from spark_nats.errors import UnsupportedStreamError
from tests.integration.support import MESSAGE, Query, numbers_of, stream_reader
from tests.nats_py import NatsPy, wait_until
from tests.needs import since
from tests.servers import BINARY_2_10, BINARY_2_12, IN_DOCKER, Cluster

pytestmark = pytest.mark.skipif(IN_DOCKER, reason="needs servers of several versions")


@since(2, 14)
def test_a_work_queue_is_read_where_a_server_has_a_replica_that_knows_no_batches(tmp_path: Path) -> None:
    """Any replica answers direct gets, whoever leads the stream, and 2.10 answers with one message."""
    with Cluster(tmp_path, oldest=BINARY_2_10) as cluster, NatsPy(cluster.of("n1").url) as client:
        name = next(name for name in (f"S{i}" for i in count()) if is_led_by_a_newer_server(client, name))
        query = Query(stream_reader(cluster.of("n0"), MESSAGE, stream=name, consume=True))
        for first in range(0, 100, 10):
            client.store(f"{name}.x", range(first, first + 10))
            assert numbers_of(query.rows(10)) == [*range(first, first + 10)]
        wait_until(lambda: query.micro_batch() == [] and client.held(name) == 0)


def is_led_by_a_newer_server(client: NatsPy, stream: str) -> bool:
    """Whether a work queue, which is created, is led by another server than the oldest, which obeys no placement."""
    client.create_in_cluster(stream, num_replicas=3, retention="workqueue", allow_direct=True)
    return bool(client.stream_info(stream)["cluster"].get("leader") in ("n1", "n2"))


@since(2, 14)
def test_an_interest_stream_is_read_on_and_released_when_its_server_is_upgraded_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """2.12 does not answer to CONSUMER.RESET, and no other server does so for it."""
    with Cluster(tmp_path) as cluster, NatsPy(cluster.of("n1").url) as client:
        client.create_in_cluster("S", retention="interest", allow_direct=True, placement={"tags": ["n0"]})
        query = Query(stream_reader(cluster.of("n1"), MESSAGE, stream="S", consume=True))
        assert query.micro_batch() == []
        cluster.restart_as(cluster.of("n0"), BINARY_2_12)
        wait_until(lambda: client.reaches_stream("S.x"))
        with caplog.at_level(logging.WARNING):
            for first in (0, 10):
                client.store("S.x", range(first, first + 10))
                assert numbers_of(query.rows(10)) == [*range(first, first + 10)]
                assert query.micro_batch() == []
        assert client.held("S") == 20
        assert "the server n0 leads the consumer" in caplog.text
        assert "is 2.12.8, and releases none" in caplog.text
        assert "CONSUMER.RESET" not in caplog.text
        cluster.restart_as(cluster.of("n0"), None)
        wait_until(lambda: query.micro_batch() == [] and client.held("S") == 0)


@pytest.mark.parametrize("kind", ["interest", "limits", "progress"])
@since(2, 14)
def test_no_query_that_moves_a_consumer_begins_while_an_older_server_has_a_replica(tmp_path: Path, kind: str) -> None:
    """Such a server would end when it reads what the newer ones have agreed upon."""
    retention = "interest" if kind == "interest" else "limits"
    how: dict[str, Any] = {"progressConsumer": "shown"} if kind == "progress" else {"consume": True}
    with Cluster(tmp_path, oldest=BINARY_2_12) as cluster, NatsPy(cluster.of("n1").url) as client:
        client.create_in_cluster("S", num_replicas=3, retention=retention, allow_direct=True)
        client.hand_over("S", "n1")
        wait_until(lambda: all(each["current"] for each in client.stream_info("S")["cluster"]["replicas"]))
        with pytest.raises(
            UnsupportedStreamError, match=r"2\.14 or newer, but the server 'n0' of stream 'S' is 2\.12\.8"
        ):
            Query(stream_reader(cluster.of("n1"), MESSAGE, stream="S", **how)).micro_batch()
        assert client.consumers("S") == []
        cluster.restart_as(cluster.of("n0"), None)
        wait_until(lambda: all(each["current"] for each in client.stream_info("S")["cluster"]["replicas"]))
        query = Query(stream_reader(cluster.of("n1"), MESSAGE, stream="S", startingOffsets="earliest", **how))
        assert query.micro_batch() == []
        client.store("S.x", range(10))
        assert numbers_of(query.rows(10)) == [*range(10)]
