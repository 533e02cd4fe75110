"""Listening to core NATS without the permission for it, from the beginning or later on."""

from __future__ import annotations

import pytest

from spark_nats.embedded import NatsServer
from spark_nats.errors import PermissionsError
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.kinds.core.receiver import Receiver
from tests.connections import options_for, retries_for
from tests.integration.support import monitoring, reload
from tests.nats_py import NatsPy, wait_until
from tests.servers import ServerFactory

REFUSED = 'Permissions Violation for Subscription to "a.>"'


def may(subscribe: str) -> str:
    """A server's configuration by which ann may subscribe to this."""
    return f'authorization {{ users: [{{ user: ann, permissions: {{ subscribe: "{subscribe}" }} }}] }}'


def listen(server: NatsServer, backlog: Backlog) -> Receiver:
    return Receiver(options_for(f"nats://ann:@127.0.0.1:{server.port}"), retries_for(wait=0.02), ["a.>"], None, backlog)


def refusal(receiver: Receiver) -> str:
    """What has ended a receiver, as soon as it has ended."""

    def found() -> str:
        try:
            receiver.raise_if_ended()
        except PermissionsError as error:
            return str(error)
        return ""

    said: str = wait_until(found, timeout=60)
    return said


def test_who_may_not_listen_is_told_so_and_leaves_no_connection(server_factory: ServerFactory) -> None:
    server = server_factory(may("b.>"), jetstream=False)
    with pytest.raises(PermissionsError, match=REFUSED):
        listen(server, Backlog(1 << 20))
    wait_until(lambda: monitoring(server, "varz")["connections"] == 0, timeout=60)


def test_who_may_not_listen_any_more_is_told_so_and_keeps_what_came_before(server_factory: ServerFactory) -> None:
    server = server_factory(may(">"), jetstream=False)
    backlog = Backlog(1 << 20)
    receiver = listen(server, backlog)
    with NatsPy(server.url, user="ann", password="") as client:
        client.publish("a.x", b"before")
        wait_until(lambda: backlog.end == 1, timeout=60)
        reload(server, may("b.>"))
        assert REFUSED in refusal(receiver)
    receiver.unsubscribe_drain_and_close()
    assert [piece.messages for piece in backlog.get_and_mark_taken(0, 1)] == [1]


def test_who_may_not_listen_when_the_server_is_back_is_told_so(server_factory: ServerFactory) -> None:
    server = server_factory(may(">"), jetstream=False)
    receiver = listen(server, Backlog(1 << 20))
    server.kill()
    server_factory(may("b.>"), jetstream=False, port=server.port)
    assert REFUSED in refusal(receiver)
    receiver.unsubscribe_drain_and_close()
