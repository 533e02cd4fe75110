"""Connecting to the first server that can be reached and accepts the login."""

from __future__ import annotations

from spark_nats.client.choosing import avoid, in_order, note_reached
from spark_nats.client.connection import Connection
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.servers import Server
from spark_nats.client.transport import reason_of
from spark_nats.conditions import Hint, Transient
from spark_nats.conditions.client import NO_LOGIN, NO_SERVER
from spark_nats.errors import AuthorizationError, NatsConnectionError, NatsError


def connect(options: ConnectionOptions, lost: Server | None = None) -> Connection:
    """Try ``options.servers`` and, with discovery, the announced ones; return a connection to one that lets us log in.

    The order is random, so that the tasks of a query do not all connect to the same server (ADR-40). Servers that this
    machine has recently found :func:`~spark_nats.client.host_cache.unreachable` are tried after the others. The
    server to which a connection was just ``lost``, if any, is tried last.

    Raises:
        AuthorizationError: a server refused the credentials, and no other server could be reached or accepted them.
        NatsConnectionError: no server could be reached, or all that were reached failed in the handshake.
        NatsError: the URL of a server is that of a WebSocket, and a package for it is missing.
    """
    failures: list[tuple[Server, NatsError | OSError]] = []
    servers = in_order(options, lost)
    if options.opening and any(server.path is not None for server in servers):
        options.opening()  # raises the error if a package is missing
    for server in servers:
        try:
            connection = Connection(server, options)
        except (NatsError, OSError) as error:
            if isinstance(error, AuthorizationError):
                error = error.with_context(_failure(server, error))  # the answer of a gateway names no server
            else:
                avoid(server)
            failures.append((server, error))
        else:
            note_reached(server)
            return connection
    refused = [error for _, error in failures if isinstance(error, AuthorizationError)]
    if len(failures) == len(refused) == 1:
        raise refused[0]
    transient = [error.transient if isinstance(error, NatsError) else Transient.ALWAYS for _, error in failures]
    hints = [hint for _, error in failures if isinstance(error, NatsError) for hint in error.hints]
    kind, condition = (AuthorizationError, NO_LOGIN) if refused else (NatsConnectionError, NO_SERVER)
    raise kind(
        condition(failures="; ".join(_failure(server, error) for server, error in failures)),
        failures=[error for _, error in failures],
        transient=None if refused else max(transient),
    ).advising(*(dict.fromkeys(hints) or [Hint.SERVERS]))


def _failure(server: Server, error: Exception) -> str:
    reason = reason_of(error)
    return reason if reason.startswith(str(server)) else f"{server}: {reason}"
