"""How to reach a server: what a connection is made with. Plain values, which any executor can use.

There are no defaults here: :mod:`spark_nats.options` has them, and :func:`spark_nats.options.connection_options` makes
these of a few texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_nats.client.auth import Credentials
from spark_nats.client.servers import Server


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How to encrypt, and whom to trust. To have one is to ask for TLS.

    Contents and not names of files, because a connection is made on any executor.

    Attributes:
        ca: certificates in PEM, the only ones that are trusted; the system's when None.
        certificate: the client's certificate in PEM, with those that lead to its authority.
        key: its private key in PEM, unencrypted; None when ``certificate`` holds it too.
        server_name: the name that the server's certificate must have; the host of the server's URL when None.
        handshake_first: whether the handshake comes before INFO (ADR-40).
    """

    ca: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    server_name: str | None = None
    handshake_first: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach a server. Equal options mean that a connection can be shared.

    Attributes:
        servers: tried in random order until one lets us in.
        discover: whether those are tried too that servers announce.
        credentials: used where a server's URL has none of its own.
        tls: asks for TLS; when None it is used where a server's URL asks for it or the server requires it.
        name: how the server's monitoring calls this connection.
        connect_timeout: seconds for connection, TLS and login, for each server.
        request_timeout: seconds to wait for an answer, or for the server to take what is sent.
        idle_timeout: seconds for which a connection that nobody uses is kept.
        ping_interval: seconds of silence after which the server is pinged; after two unanswered pings it is lost.
        inbox_prefix: first tokens of the subjects on which answers are awaited.
        echo: whether the server delivers to a connection what it has itself published.
    """

    servers: tuple[Server, ...]
    discover: bool
    credentials: Credentials = field(repr=False)
    tls: TlsOptions | None
    name: str
    connect_timeout: float
    request_timeout: float
    idle_timeout: float
    ping_interval: float
    inbox_prefix: str
    echo: bool


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """How long and how often to try again what a server that is away keeps from succeeding.

    Attributes:
        timeout: seconds for which to go on without success; 0 to try once.
        wait: seconds before the second attempt to connect; twice as long before each further one.
        jitter: seconds by which the first wait is at most longer, so that tasks do not come back in step.
        attempts: most attempts to connect in a row; None for no limit.
    """

    timeout: float
    wait: float
    jitter: float
    attempts: int | None
