"""Which server is tried next: what was announced, and what is known of those that could not be reached."""

from __future__ import annotations

import contextlib
import json

from spark_nats import clock
from spark_nats.client import host_cache
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.servers import Server

_announced: dict[ConnectionOptions, tuple[Server, ...]] = {}  # last, to a connection with these options


def in_order(options: ConnectionOptions, lost: Server | None) -> list[Server]:
    """Return the servers in the order in which they are to be tried."""
    servers = list(options.servers)
    named = {(server.host, server.port) for server in servers}
    servers += [each for each in _known(options) if (each.host, each.port) not in named]
    clock.shuffle(servers)
    ages = {each: host_cache.seconds_since(host_cache.unreachable(each.host, each.port)) for each in servers}
    return sorted(servers, key=lambda each: (each == lost, ages[each] < host_cache.UNREACHABLE_FOR))


def avoid(server: Server) -> None:
    """Have a server be tried after the others for a while, in all processes of this machine."""
    host_cache.mark(host_cache.unreachable(server.host, server.port))


def note_reached(server: Server) -> None:
    """Take a server for one that can be reached again."""
    host_cache.clear(host_cache.unreachable(server.host, server.port))


def keep_announced(options: ConnectionOptions, servers: tuple[Server, ...]) -> None:
    """Remember which servers were announced to a connection with these options, instead of those before.

    Other processes of this machine remember it too: the driver has a new one for each micro-batch that it writes.
    """
    if _announced.get(options) != servers:
        _announced[options] = servers
        host_cache.mark(host_cache.announced_to(options), announced(options))


def announced(options: ConnectionOptions) -> str:
    """Return what this process knows of servers that were announced, for processes of other machines; "" if nothing.

    It has no logins: those are in the options.
    """
    named = options.servers
    known = [(each.host, each.port, each.tls, each.led_from) for each in _known(options)]
    return json.dumps([(*place, named.index(led_from)) for *place, led_from in known if led_from]) if known else ""


def add_announced(options: ConnectionOptions, told: str) -> None:
    """Remember what another process knows, as :func:`announced` returns it, beside what this one does."""
    if told:
        _announced[options] = tuple(dict.fromkeys((*_read(options, told), *_announced.get(options, ()))))


def _known(options: ConnectionOptions) -> tuple[Server, ...]:
    if not options.discover:
        return ()
    return _announced.get(options) or _read(options, host_cache.get_text(host_cache.announced_to(options)))


def _read(options: ConnectionOptions, told: str) -> tuple[Server, ...]:
    with contextlib.suppress(ValueError, TypeError, IndexError):  # of what another version has told
        entries = json.loads(told) if told else ()
        return tuple(options.servers[named].leading_to(host, port, tls) for host, port, tls, named in entries)
    return ()
