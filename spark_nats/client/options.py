"""The settings of a connection, as plain values that any executor can use.

Only :class:`TlsOptions` and indirect ways to servers have defaults here. All others are in :mod:`spark_nats.options`,
where :func:`~spark_nats.options.connection_options` makes the settings of a connection from a few texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_nats.client.auth import Credentials
from spark_nats.client.servers import Server
from spark_nats.client.transport import Transport
from spark_nats.conditions import Topic

Reach = Callable[[Server, float, float], Transport | None]
"""Connects to a server, given a timeout in seconds and the deadline at its end; returns None to connect directly."""


class Opening(NamedTuple):
    """What comes before INFO, and after TLS if a connection uses it, such as a WebSocket."""

    start: Callable[[Transport, Server, float, float], None]  # puts a layer on a transport; the numbers are as above
    doubt: str  # what to ask when no INFO comes
    topic: Topic  # what it is about then, or when TLS fails


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The settings of TLS; a connection that has them demands TLS.

    Certificates and keys are texts in PEM format, not names of files, because any executor may make the connection.
    """

    ca: str | None = field(default=None, repr=False)  # the only trusted authorities; those of the system when None
    certificate: str | None = field(default=None, repr=False)  # the client's certificate, with its chain
    key: str | None = field(default=None, repr=False)  # the client's key, unencrypted; None if in ``certificate``
    server_name: str | None = None  # the name that the server's certificate must have; ``certificate_name`` when None
    handshake_first: bool = False  # whether the handshake comes before INFO (ADR-40)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The settings of a connection; equal settings can share a connection. Times are in seconds."""

    servers: tuple[Server, ...]  # tried in random order until one accepts the login
    discover: bool  # whether servers that the given ones announce are tried too
    credentials: Credentials = field(repr=False)  # used where the URL of a server has none
    tls: TlsOptions | None  # when None, TLS is used where the URL of a server demands it or the server requires it
    name: str  # the name of the connection in the server's monitoring
    connect_timeout: float  # for connecting, TLS and login, for each server
    request_timeout: float  # to wait for an answer, or for the server to take sent bytes
    idle_timeout: float  # how long an idle connection is kept
    ping_interval: float  # of silence before a PING; a connection with two unanswered PINGs is lost
    inbox_prefix: str  # first tokens of the subjects that receive answers
    echo: bool  # whether the server delivers the connection's own messages to its subscriptions
    reach: Reach | None = None  # an indirect way to servers, such as a proxy; None to connect directly
    # what opens connections to servers with a path; raises NatsError if a package for it is missing
    opening: Callable[[], Opening] | None = None


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """How long, in seconds, and how often to retry while servers are unavailable."""

    timeout: float  # limit of retries without success; 0 to try once
    wait: float  # before the second attempt to connect; doubled for each further one, up to ``retrying.MAX_WAIT``
    jitter: float  # maximum addition to the first wait, so that tasks do not reconnect in step
    attempts: int | None  # maximum attempts to connect again, in a row; None for no limit
