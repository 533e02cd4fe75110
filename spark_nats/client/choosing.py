"""Which server is tried next: what was announced, and what is known of those that could not be reached."""

from __future__ import annotations

from spark_nats import clock
from spark_nats.client import memory
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.servers import Server

REMEMBERED = 30.0  # seconds for which a server that could not be reached is tried after the others
_announced: dict[ConnectionOptions, tuple[Server, ...]] = {}  # last, to a connection with these options


def in_order(options: ConnectionOptions, lost: Server | None) -> list[Server]:
    """Return the servers in the order in which they are to be tried."""
    servers = list(options.servers)
    named = {(server.host, server.port) for server in servers}
    if options.discover:
        servers += [each for each in _announced.get(options, ()) if (each.host, each.port) not in named]
    clock.shuffle(servers)
    return sorted(servers, key=lambda each: (each == lost, _is_avoided(each)))


def _unreachable(server: Server) -> str:
    return f"unreachable: {server.host}:{server.port}"


def _is_avoided(server: Server) -> bool:
    found = memory.age(_unreachable(server))
    return found is not None and found < REMEMBERED


def avoid(server: Server) -> None:
    """Have a server be tried after the others for a while, in all processes of this machine."""
    memory.remember(_unreachable(server))


def note_reached(server: Server) -> None:
    """Take a server for one that can be reached again."""
    memory.forget(_unreachable(server))


def keep_announced(options: ConnectionOptions, servers: tuple[Server, ...]) -> None:
    """Remember which servers were announced to a connection with these options, instead of those before."""
    _announced[options] = servers
