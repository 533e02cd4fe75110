"""The order in which servers are tried: it depends on announced servers and on recent failures to reach a server.

Servers say their names to whoever connects to them, and to nobody else. So a process knows the names of those to which
it has connected, and :func:`servers_maybe_named` looks for another one among those that it does not know.
"""

from __future__ import annotations

import contextlib
import json

from spark_nats import clock
from spark_nats.client import host_cache
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.servers import Server

MAX_SOUGHT = 3
"""Maximum number of servers to which a connection is made in search of one by its name."""
_announced: dict[ConnectionOptions, tuple[Server, ...]] = {}  # the latest, by the options of the connection
_names: dict[tuple[str, int], str] = {}  # by host and port: the name of the server there


def servers_to_try(options: ConnectionOptions, lost: Server | None) -> list[Server]:
    """Return the servers to try, with discovery also the announced ones, in random order.

    Servers to :func:`note_unreachable` come after the others, and the ``lost`` one, if any, comes last.
    """
    servers = list(options.servers)
    named = {(server.host, server.port) for server in servers}
    servers += [each for each in _announced_servers(options) if (each.host, each.port) not in named]
    clock.shuffle(servers)
    ages = {each: host_cache.seconds_since(host_cache.unreachable_fact(each.host, each.port)) for each in servers}
    return sorted(servers, key=lambda each: (each == lost, ages[each] < host_cache.UNREACHABLE_FOR))


def servers_maybe_named(options: ConnectionOptions, name: str) -> list[Server]:
    """Return the servers that may be the one of a name: the one last seen under it, else some of unknown names.

    Servers that are not reached at the moment are left out, and those of :func:`note_sought_in_vain`.
    """
    found = [
        each
        for each in servers_to_try(options, None)
        if _names.get((each.host, each.port), name) == name
        and host_cache.seconds_since(host_cache.unreachable_fact(each.host, each.port)) >= host_cache.UNREACHABLE_FOR
        and host_cache.seconds_since(host_cache.sought_in_vain_fact(each.host, each.port))
        >= host_cache.SOUGHT_AGAIN_AFTER
    ]
    known = [each for each in found if (each.host, each.port) in _names]
    return (known or found)[:MAX_SOUGHT]


def note_name(server: Server, name: str) -> None:
    """Note what the server at an address calls itself."""
    _names[server.host, server.port] = name


def note_sought_in_vain(server: Server) -> None:
    """Have no process of this machine seek a name at an address that is not reached, for the next ten minutes."""
    host_cache.note_fact(host_cache.sought_in_vain_fact(server.host, server.port))


def note_unreachable(server: Server) -> None:
    """Have all processes of this machine try a server after the others, for the next 30 s."""
    host_cache.note_fact(host_cache.unreachable_fact(server.host, server.port))


def note_reached(server: Server) -> None:
    """Note that a server can be reached again."""
    host_cache.forget_fact(host_cache.unreachable_fact(server.host, server.port))


def replace_announced(options: ConnectionOptions, servers: tuple[Server, ...]) -> None:
    """Remember the servers announced to a connection with these options, instead of those announced earlier.

    All processes of this machine remember them, because each micro-batch has a new Python process on the driver.
    """
    fact = host_cache.announced_fact(options)
    if _announced.get(options) != servers or host_cache.seconds_since(fact) > host_cache.FACT_TTL / 2:
        _announced[options] = servers
        host_cache.note_fact(fact, encode_announced_servers(options))


def encode_announced_servers(options: ConnectionOptions) -> str:
    """Return the announced servers known to this machine, as a text for other processes; "" when there are none.

    The text has no logins, because those are in the options.
    """
    named = options.servers
    known = [(each.host, each.port, each.tls, each.led_from) for each in _announced_servers(options)]
    return json.dumps([(*place, named.index(led_from)) for *place, led_from in known if led_from]) if known else ""


def add_announced(options: ConnectionOptions, text: str) -> None:
    """Add another process's announced servers, from :func:`encode_announced_servers`, to those of this process."""
    if text:
        _announced[options] = tuple(dict.fromkeys((*_parse_announced(options, text), *_announced.get(options, ()))))


def _announced_servers(options: ConnectionOptions) -> tuple[Server, ...]:
    if not options.discover:
        return ()
    return _announced.get(options) or _parse_announced(
        options, host_cache.text_of_fact(host_cache.announced_fact(options))
    )


def _parse_announced(options: ConnectionOptions, text: str) -> tuple[Server, ...]:
    with contextlib.suppress(ValueError, TypeError, IndexError):  # another version may have written the text
        entries = json.loads(text) if text else ()
        return tuple(options.servers[named].make_announced(host, port, tls) for host, port, tls, named in entries)
    return ()
