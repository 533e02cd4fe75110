"""Server URLs: ``nats://[user:password@|token@]host[:port]``, or ``tls://`` to demand TLS.

``ws://`` and ``wss://``, which may have a path, are the same two through a WebSocket.

A client connects only to named servers, unless discovery is on. Then it also connects to the servers that those
announce in INFO (``connect_urls``), and sends its credentials to them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from urllib.parse import unquote, urlsplit

from spark_nats.client.auth import Credentials

DEFAULT_PORT = 4222
_PORTS = {"nats": DEFAULT_PORT, "tls": DEFAULT_PORT}  # by scheme
_PORTS |= {"ws": 80, "wss": 443}  # through a WebSocket
_PATH = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, whether TLS is demanded for it, and the credentials in its URL."""

    host: str
    port: int = DEFAULT_PORT
    credentials: Credentials = field(default=Credentials(), repr=False)
    tls: bool = False
    path: str | None = None  # the path of a WebSocket, which may be empty; None without a WebSocket
    led_from: Server | None = None  # for an announced server, the named server that led to it

    @property
    def certificate_name(self) -> str:
        """The name that the server's certificate must have, unless the TLS settings have another one.

        A server that was announced by its IP address takes the name of the named server, if that has one, as in
        nats.go, because certificates are rarely for addresses.
        """
        if self.led_from and parse_ip_address(self.host) and not parse_ip_address(self.led_from.host):
            return self.led_from.host
        return self.host

    def parse_announced(self, url: str, tls: bool) -> Server | None:
        """Return a server that this one announces by host and port in ``url``; None when ``url`` is invalid.

        It demands TLS if this server does, or if INFO came through TLS (``tls``). It has this server's login and path.
        """
        try:
            found = _parse_server(url)
        except ValueError:
            return None
        return (self.led_from or self).make_announced(found.host, found.port, self.tls or tls)

    def make_announced(self, host: str, port: int, tls: bool) -> Server:
        """Return a server that was announced by this one, or by a server to which this one has led."""
        return replace(self, host=host, port=port, tls=tls, led_from=self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        plain, encrypted = ("nats", "tls") if self.path is None else ("ws", "wss")
        return f"{encrypted if self.tls else plain}://{host}:{self.port}{self.path or ''}"


def parse_servers(text: str) -> tuple[Server, ...]:
    """Parse a comma-separated list of server URLs; the scheme ``nats://`` may be left out.

    If one URL demands TLS, all servers do, because a client must not fall back to an unencrypted connection.

    Raises:
        ValueError: there is no URL, or one is invalid. The message contains no userinfo.
    """
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls:
        raise ValueError("names no server")
    for url, following in pairwise(urls):
        if "@" not in url and "@" in following and "://" not in following:
            raise ValueError("has a comma before an @; write one in a password or token as %2C")
    servers = tuple(_parse_server(url) for url in urls)
    return tuple(_parse_server(url, tls=True) for url in urls) if any(server.tls for server in servers) else servers


def parse_ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a host as an IP address; None when it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def without_secrets(url: str) -> str:
    """Return the parts of a refused URL that can be shown: scheme, host and port; all else may be a secret."""
    scheme = "".join(_SCHEME.findall(url))
    rest = url.removeprefix(scheme)
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(place) :]:  # either the login has one of these characters, or the path or query has an @
        return f"{scheme}…"
    place = place.rpartition("@")[2]
    shown = _HOST_AND_PORT.match(place)
    end = shown.end() if shown else 0
    return f"{scheme}{place[:end]}{'' if rest.endswith(place[:end]) else '…'}"


_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*$)?")


def _parse_server(url: str, tls: bool = False) -> Server:
    shown = without_secrets(url)
    if "://" not in url:
        url = f"nats://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as the system does for the lookup
    except ValueError:
        raise ValueError(f"is not a server URL such as nats://localhost:4222: {shown!r}") from None
    if parts.scheme not in _PORTS:
        hint = ", and the port for clients instead of that for monitoring" if parts.scheme.startswith("http") else ""
        *others, last = (f"{scheme}://" for scheme in _PORTS)
        raise ValueError(f"has the unsupported scheme {parts.scheme!r}; use {', '.join(others)} or {last}{hint}")
    websocket = parts.scheme in ("ws", "wss")
    path = parts.path if websocket and parts.path != "/" else parts.path.strip("/")
    if not host or parts.query or parts.fragment or not _PATH.fullmatch(path) or (path and not websocket):
        raise ValueError(f"is not a server URL such as nats://localhost:4222: {shown!r}")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if password and not user:
        raise ValueError(f"has a password without a user for {shown!r}")
    has_both = user and password is not None  # a single word before the @ is a token
    credentials = Credentials(user=user, password=password) if has_both else Credentials(token=user)
    tls = tls or parts.scheme in ("tls", "wss")
    if port is None:
        port = _PORTS["wss" if websocket and tls else parts.scheme]
    return Server(host, port, credentials, tls, path if websocket else None)
