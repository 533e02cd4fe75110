"""A synchronous NATS client that reads and writes whole columns.

It works without Spark::

    with connect(connection_options(servers="nats://localhost:4222")) as connection:
        subscription = connection.subscribe("orders.>")
        messages = connection.next(subscription, timeout=1.0)

:func:`spark_nats.options.connection_options` makes the settings of a connection. Each name of this package is imported
at its first use, because a process that only reads options needs few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_nats.client.auth import Credentials as Credentials
    from spark_nats.client.connection import Connection as Connection
    from spark_nats.client.connection import connect as connect
    from spark_nats.client.options import ConnectionOptions as ConnectionOptions
    from spark_nats.client.options import TlsOptions as TlsOptions
    from spark_nats.client.pool import borrow as borrow
    from spark_nats.client.publishing import CorePublisher as CorePublisher
    from spark_nats.client.servers import Server as Server
    from spark_nats.client.servers import parse_servers as parse_servers
    from spark_nats.client.subscriptions import Subscription as Subscription

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
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
