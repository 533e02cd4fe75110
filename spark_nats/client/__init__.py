"""A synchronous NATS client that reads and writes whole columns.

=====================  ======================================================================
:mod:`.options`        how to reach a server
:mod:`.connection`     one connection: handshake, requests, flush, keep-alive
:mod:`.subscriptions`  its subscriptions, and whose a message is
:mod:`.publishing`     columns published to core NATS
:mod:`.transport`      its socket, with a time limit on every wait
:mod:`.tls`            TLS between the two
:mod:`.servers`        server URLs
:mod:`.auth`           credentials, and what they add to CONNECT
:mod:`.pool`           connections kept for the next task of the same process
:mod:`.retrying`       trying again while no server can be reached
:mod:`.memory`         what the processes of a machine tell each other
:mod:`.backlog`        what was received and waits for whoever comes for it
:mod:`.receiver`       a thread that keeps receiving while its user does other things
=====================  ======================================================================

It knows no Spark::

    with connect(connection_options(servers="nats://localhost:4222")) as connection:
        subscription = connection.subscribe("orders.>")
        messages = connection.next(subscription, timeout=1.0)

with :func:`spark_nats.options.connection_options`. What is named here is imported when it is first used, because a
process that only reads options needs little of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_nats.client.auth import Credentials
    from spark_nats.client.connection import Connection, connect
    from spark_nats.client.options import ConnectionOptions, TlsOptions
    from spark_nats.client.pool import borrow
    from spark_nats.client.publishing import CorePublisher
    from spark_nats.client.servers import Server, parse_servers
    from spark_nats.client.subscriptions import Subscription

_MODULES = {
    "Connection": "connection",
    "ConnectionOptions": "options",
    "CorePublisher": "publishing",
    "Credentials": "auth",
    "Server": "servers",
    "Subscription": "subscriptions",
    "TlsOptions": "options",
    "borrow": "pool",
    "connect": "connection",
    "parse_servers": "servers",
}
__all__ = [
    "Connection",
    "ConnectionOptions",
    "CorePublisher",
    "Credentials",
    "Server",
    "Subscription",
    "TlsOptions",
    "borrow",
    "connect",
    "parse_servers",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
