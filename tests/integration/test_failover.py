"""What servers know of message ids in a stream that was restored, or a mirror that was promoted: docs/failover.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_nats.embedded import NatsServer
from tests.nats_py import NatsPy, wait_until
from tests.needs import server_version
from tests.servers import BINARY_2_12, ServerFactory

SUBJECTS = ["orders.>"]
VERSIONS = [pytest.param(None, id="2.15"), pytest.param(BINARY_2_12, id="2.12")]


def is_known(server: NatsServer, message_id: str) -> bool:
    """Whether a message with this id is refused as a duplicate; else it is stored."""
    with NatsPy(server.url) as client:
        wait_until(lambda: client.reaches_stream(SUBJECTS[0]))
        answer = json.loads(client.request("orders.a", b"x", headers={"Nats-Msg-Id": message_id}).payload)
        return bool(answer.get("duplicate"))


def publish(client: NatsPy) -> None:
    client.publish_acked([("orders.a", b"x", {"Nats-Msg-Id": str(number)}) for number in range(10)])


def restart(server: NatsServer) -> None:
    server.kill()
    server.start()


def promoted(server: NatsServer, restarted: bool = False, **config: Any) -> None:
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", SUBJECTS)
        client.create_stream("MIRROR", [], mirror={"name": "ORDERS"}, **config)
        publish(client)
        wait_until(lambda: client.held("MIRROR") == 10)
        client.delete_stream("ORDERS")
    if restarted:
        restart(server)
    with NatsPy(server.url) as client:
        wait_until(lambda: client.held("MIRROR") == 10)
        client.api("STREAM.UPDATE.MIRROR", {"name": "MIRROR", "subjects": SUBJECTS})


@pytest.mark.needs("restored anew", only="2.15")
@pytest.mark.promise("failover#ids-of-a-restored-stream", "failover#ids-after-a-restart")
@pytest.mark.parametrize("binary", VERSIONS)
def test_a_restored_stream_knows_its_ids_once_its_server_is_restarted(
    server_factory: ServerFactory, binary: Any
) -> None:
    server = server_factory(binary=binary)
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", SUBJECTS)
        publish(client)
        backup = client.back_up("ORDERS")
        client.delete_stream("ORDERS")
        client.restore("ORDERS", backup)
    assert is_known(server, "3") == (not (2, 15) <= server_version(binary) < (2, 15, 3))
    restart(server)
    assert is_known(server, "4")


@pytest.mark.needs("promotion", only="2.15")
@pytest.mark.promise("failover#ids-of-a-promoted-mirror")
@pytest.mark.parametrize("binary", VERSIONS)
def test_a_promoted_mirror_with_a_window_of_its_own_knows_the_ids_that_it_copied(
    server_factory: ServerFactory, binary: Any
) -> None:
    server = server_factory(binary=binary)
    promoted(server, duplicate_window=120 * 10**9)
    assert is_known(server, "3")


@pytest.mark.needs("promotion", only="2.15")
@pytest.mark.promise("failover#ids-of-another-mirror", "failover#ids-after-a-restart")
@pytest.mark.parametrize("binary", VERSIONS)
@pytest.mark.parametrize(
    "config", [{}, {"restarted": True, "duplicate_window": 120 * 10**9}], ids=["none", "restarted"]
)
def test_another_promoted_mirror_knows_them_once_its_server_is_restarted_after_that(
    server_factory: ServerFactory, binary: Any, config: dict[str, Any]
) -> None:
    server = server_factory(binary=binary)
    promoted(server, **config)
    assert not is_known(server, "3")
    restart(server)
    assert is_known(server, "4")
