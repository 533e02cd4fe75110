"""A synchronous NATS client that reads and writes whole columns.

=====================  ======================================================================
:mod:`.connection`     one connection: handshake, requests, subscriptions, flush, keep-alive
:mod:`.transport`      its socket, with a time limit on every wait
:mod:`.tls`            what is asked of TLS
:mod:`.servers`        server URLs
:mod:`.auth`           credentials, and what they add to CONNECT
:mod:`.pool`           connections kept for the next task of the same process
:mod:`.receiver`       a thread that keeps receiving while its user does other things
=====================  ======================================================================

It knows no Spark::

    with connect(ConnectionOptions(servers=parse_servers("nats://localhost:4222"))) as connection:
        subscription = connection.subscribe("orders.>")
        messages = connection.next(subscription, timeout=1.0)
"""

from spark_nats.client.auth import Credentials
from spark_nats.client.connection import Connection, ConnectionOptions, Subscription, connect
from spark_nats.client.pool import borrow
from spark_nats.client.servers import Server, parse_servers
from spark_nats.client.tls import TlsOptions

__all__ = [
    "Connection",
    "ConnectionOptions",
    "Credentials",
    "Server",
    "Subscription",
    "TlsOptions",
    "borrow",
    "connect",
    "parse_servers",
]
