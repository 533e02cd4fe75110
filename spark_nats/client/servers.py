"""Server URLs: ``nats://[user:password@|token@]host[:port]``, or ``tls://`` to ask for TLS.

``ws://`` and ``wss://``, which may have a path, are the same two through a WebSocket.

Only servers that were named are connected to, unless it is asked for that those which they announce in INFO
(``connect_urls``) are too: then a client, and its credentials, go where a server leads them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from urllib.parse import unquote, urlsplit

from spark_nats.client.auth import Credentials

DEFAULT_PORT = 4222
_PATH = re.compile(r"[!-~]*")
_WEBSOCKET_PORT, _WEBSOCKET_TLS_PORT = 80, 443


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens, whether its URL asks for TLS, and the credentials that the URL carries."""

    host: str
    port: int = DEFAULT_PORT
    credentials: Credentials = field(default=Credentials(), repr=False)
    tls: bool = False
    path: str | None = None  # of a WebSocket, which may be empty; None where there is no WebSocket
    led_from: Server | None = None  # of a server that was announced, the one that was named and has led there

    @property
    def certificate_name(self) -> str:
        """The name that its certificate must have, if no other one is asked for.

        A server that was announced by its address has the name of the one that was named, as in nats.go: certificates
        are rarely for addresses.
        """
        if self.led_from and _is_address(self.host) and not _is_address(self.led_from.host):
            return self.led_from.host
        return self.host

    def announced(self, url: str, tls: bool) -> Server | None:
        """Return a server that this one announces by host and port, None when that is no URL.

        What came through TLS is asked for TLS too, and what came through a WebSocket for one with the same path.
        """
        try:
            found = _parse(url)
        except ValueError:
            return None
        return (self.led_from or self).leading_to(found.host, found.port, self.tls or tls)

    def leading_to(self, host: str, port: int, tls: bool) -> Server:
        """Return a server that was announced, by this one or by one to which this one has led."""
        return replace(self, host=host, port=port, tls=tls, led_from=self)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        plain, encrypted = ("nats", "tls") if self.path is None else ("ws", "wss")
        return f"{encrypted if self.tls else plain}://{host}:{self.port}{self.path or ''}"


def parse_servers(text: str) -> tuple[Server, ...]:
    """Parse a comma-separated list of server URLs; the scheme ``nats://`` may be left out.

    If one of them asks for TLS, all do, since a client must not fall back to less.

    Raises:
        ValueError: a URL is not one. The message carries no userinfo.
    """
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls:
        raise ValueError("names no server")
    for url, following in pairwise(urls):
        if "@" not in url and "@" in following and "://" not in following:
            raise ValueError("has a comma before an @; write one in a password or token as %2C")
    servers = tuple(_parse(url) for url in urls)
    return tuple(_parse(url, tls=True) for url in urls) if any(server.tls for server in servers) else servers


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def without_secrets(url: str) -> str:
    """Return what can be shown of a URL that is refused: scheme, host and port. All else may be a secret."""
    scheme = "".join(_SCHEME.findall(url))
    rest = url.removeprefix(scheme)
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(place) :]:  # of a login that has such a character, or of a query: nobody knows
        return f"{scheme}…"
    place = place.rpartition("@")[2]
    shown = _HOST_AND_PORT.match(place)
    end = shown.end() if shown else 0
    return f"{scheme}{place[:end]}{'' if rest.endswith(place[:end]) else '…'}"


_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_HOST_AND_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*$)?")


def _parse(url: str, tls: bool = False) -> Server:
    shown = without_secrets(url)
    if "://" not in url:
        url = f"nats://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as the system will, to look it up
    except ValueError:
        raise ValueError(f"is not a server URL such as nats://localhost:4222: {shown!r}") from None
    if parts.scheme not in ("nats", "tls", "ws", "wss"):
        hint = ", and the port for clients instead of that for monitoring" if parts.scheme.startswith("http") else ""
        raise ValueError(f"has the unsupported scheme {parts.scheme!r}; use nats://, tls://, ws:// or wss://{hint}")
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
        port = DEFAULT_PORT if not websocket else _WEBSOCKET_TLS_PORT if tls else _WEBSOCKET_PORT
    return Server(host, port, credentials, tls, path if websocket else None)
