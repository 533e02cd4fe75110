"""How to reach a server: what a connection is made with. Plain values, which any executor can use.

There are no defaults here: :mod:`spark_nats.options` has them, and :func:`spark_nats.options.connection_options` makes
these of a few texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spark_nats.client.auth import Credentials
from spark_nats.client.servers import Server
from spark_nats.client.transport import Transport

Reach = Callable[[Server, float, float], Transport | None]
"""Connects to a server within so many seconds, which end at a deadline; None where it leads no way around."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How to encrypt, and whom to trust. To have one is to ask for TLS.

    PEM and not names of files, because a connection is made on any executor.
    """

    ca: str | None = field(default=None, repr=False)  # the only ones that are trusted; the system's when None
    certificate: str | None = field(default=None, repr=False)  # the client's, with those that lead to its authority
    key: str | None = field(default=None, repr=False)  # its own, unencrypted; None when ``certificate`` holds it too
    server_name: str | None = None  # that the server's certificate must have; the host of the server's URL when None
    handshake_first: bool = False  # whether the handshake comes before INFO (ADR-40)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach a server. Equal options mean that a connection can be shared. Times are in seconds."""

    servers: tuple[Server, ...]  # tried in random order until one lets us in
    discover: bool  # whether those are tried too that servers announce
    credentials: Credentials = field(repr=False)  # used where a server's URL has none of its own
    tls: TlsOptions | None  # when None, TLS is used where a server's URL asks for it or the server requires it
    name: str  # how the server's monitoring calls this connection
    connect_timeout: float  # for connection, TLS and login, for each server
    request_timeout: float  # to wait for an answer, or for the server to take what is sent
    idle_timeout: float  # for which a connection that nobody uses is kept
    ping_interval: float  # of silence, after which the server is pinged; after two unanswered pings it is lost
    inbox_prefix: str  # first tokens of the subjects on which answers are awaited
    # sent with the request for a WebSocket, such as a gateway's login
    websocket_headers: tuple[tuple[str, str], ...] = field(repr=False)
    reach: Reach | None  # a way around to servers; None for the direct one to all
    echo: bool  # whether the server delivers to a connection what it has itself published


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """How long, in seconds, and how often to try again what a server that is away keeps from succeeding."""

    timeout: float  # for which to go on without success; 0 to try once
    wait: float  # before the second attempt to connect; twice as long before each further one
    jitter: float  # by which the first wait is at most longer, so that tasks do not come back in step
    attempts: int | None  # most attempts to connect in a row; None for no limit
