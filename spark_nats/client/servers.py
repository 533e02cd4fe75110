"""Server URLs: ``nats://[user:password@|token@]host[:port]``, or ``tls://`` to ask for TLS.

Only servers that were named are ever connected to. What a server says of others (``connect_urls`` in INFO) is not used,
so nobody can lead a client, and its credentials, to a place that its user did not choose.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from urllib.parse import unquote, urlsplit

from spark_nats.client.auth import Credentials

DEFAULT_PORT = 4222


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens, whether its URL asks for TLS, and the credentials that the URL carries."""

    host: str
    port: int = DEFAULT_PORT
    credentials: Credentials = field(default=Credentials(), repr=False)
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


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
    return tuple(replace(server, tls=True) for server in servers) if any(s.tls for s in servers) else servers


def _parse(url: str) -> Server:
    shown = url.rpartition("@")[2]  # whatever stands before an @ may be a secret
    if "://" not in url:
        url = f"nats://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as the system will, to look it up
    except ValueError:
        raise ValueError(f"is not a server URL such as nats://localhost:4222: {shown!r}") from None
    if parts.scheme not in ("nats", "tls"):
        raise ValueError(f"has the unsupported scheme {parts.scheme!r}; use nats:// or tls://")
    if not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"is not a server URL such as nats://localhost:4222: {shown!r}")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if not user:
        if password:
            raise ValueError(f"has a password without a user for {shown!r}")
        credentials = Credentials()
    elif password is None:  # a single word before the @ is a token
        credentials = Credentials(token=user)
    else:
        credentials = Credentials(user=user, password=password)
    return Server(host, DEFAULT_PORT if port is None else port, credentials, tls=parts.scheme == "tls")
