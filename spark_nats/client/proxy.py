"""Connections through an HTTP proxy (CONNECT, RFC 9110) or a SOCKS5 proxy (RFC 1928 and 1929).

A proxy is a layer with a handshake, which ends when the proxy has connected. The handshake must consume no byte after
the proxy's answer: a nats-server speaks first, and the proxy may send INFO together with its answer.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Generator
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from spark_nats.client.auth import blanked
from spark_nats.client.servers import Server, parse_ip_address, without_secrets
from spark_nats.client.transport import UPSTREAM_FAILED, Layer, Transport, reason_of
from spark_nats.conditions import Topic, Transient
from spark_nats.conditions.client import PROXY_FAILED, PROXY_REFUSED, PROXY_TIMEOUT, PROXY_UNREACHABLE
from spark_nats.errors import NatsConnectionError, NatsError, NatsTimeoutError

_PORTS = {"http": 80, "socks5": 1080, "socks5h": 1080}
_MAX_HEAD_BYTES = 65536  # bytes
_SOCKS, _CONNECT, _BY_IPV4, _BY_NAME, _BY_IPV6 = 5, 1, 1, 3, 4
_WITHOUT_LOGIN, _WITH_PASSWORD, _PASSWORD_VERSION = 0, 2, 1
_UNREACHABLE = (1, 3, 4, 5, 6)  # replies that may change on a retry
_MAX_FIELD_BYTES = 255
_SOCKS_REPLIES = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "TTL expired",
    7: "command not supported",
    8: "address type not supported",
}


@dataclass(frozen=True, slots=True)
class Proxy:
    """The address of a proxy, and the login for it."""

    scheme: str
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_proxy(url: str) -> Proxy:
    """Parse ``http://[user:password@]host[:port]``, ``socks5://…``, or ``socks5h://…``, a synonym.

    Raises:
        ValueError: the URL is not that of a proxy. The message contains no userinfo.
    """
    shown = without_secrets(url)
    problem = "is not the URL of a proxy such as http://proxy:3128 or socks5://proxy:1080"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError:
        raise ValueError(f"{problem}: {shown!r}") from None
    if parts.scheme not in _PORTS or not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{problem}: {shown!r}")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if user and parts.password is not None else None
    return Proxy(parts.scheme, host, _PORTS[parts.scheme] if port is None else port, user, password)


def websocket_proxy_of_environment(server: Server) -> Proxy | None:
    """Return the proxy that the environment sets for a WebSocket; None when it sets none.

    ``HTTP_PROXY`` is for ``ws://``, ``HTTPS_PROXY`` for ``wss://``, ``ALL_PROXY`` for both when these are not set;
    ``NO_PROXY`` has the exceptions. Other URLs and loopback addresses get none.

    Raises:
        NatsConnectionError: the value is not the URL of an HTTP or SOCKS5 proxy.
    """
    if server.path is None or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    # Imported here because it is slow to import.
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    url = proxies.get("https" if server.tls else "http") or proxies.get("all")
    if not url or _is_loopback(server.host) or proxy_bypass_environment(f"{server.host}:{server.port}", proxies):
        return None
    try:
        return parse_proxy(url if "://" in url else f"http://{url}")
    except ValueError as error:
        raise NatsConnectionError(PROXY_FAILED(proxy="of the environment", reason=error)) from None


def _is_loopback(host: str) -> bool:
    address = parse_ip_address(host)
    return address.is_loopback if address else host == "localhost"


@dataclass(frozen=True, slots=True)
class ByProxy:
    """The way to servers through a proxy, as a :data:`~spark_nats.client.options.Reach`."""

    proxy: Proxy | None  # when None, the environment may set one for a WebSocket

    def __call__(self, server: Server, timeout: float, deadline: float) -> Transport | None:
        """Connect to a server by the deadline, ``timeout`` seconds after the start; return None without a proxy.

        Raises:
            NatsError: the proxy refuses, cannot be reached, or has not connected by the deadline.
        """
        proxy, transport = self.proxy or websocket_proxy_of_environment(server), None
        if proxy is None:
            return None
        try:
            transport = Transport.open(proxy.host, proxy.port, deadline)
            transport.handshake_and_add_layer(ProxyLayer(proxy, server), deadline)
            return transport
        except OSError as error:
            if transport:
                transport.close()
                if isinstance(error, NatsError):
                    raise
                if isinstance(error, TimeoutError):
                    raise NatsTimeoutError(PROXY_TIMEOUT(proxy=proxy, timeout=timeout)) from None
            raise NatsConnectionError(PROXY_UNREACHABLE(proxy=proxy, reason=reason_of(error))) from None


class ProxyLayer(Layer):
    """The layer of a connection to a proxy: it passes bytes unchanged once the proxy has connected."""

    def __init__(self, proxy: Proxy, server: Server) -> None:
        self._proxy = proxy
        self._server = server
        self._arrived = b""
        self._ended = False
        self._outgoing: list[bytes] = []
        self._steps = self._do_http_handshake() if proxy.scheme == "http" else self._do_socks_handshake()

    def continue_handshake(self) -> bool:
        """Continue the handshake; return True when it is done.

        Raises:
            NatsConnectionError: the proxy refuses, closes the connection, cannot take the login, or does not speak the
                protocol.
        """
        return next(self._steps, True)

    def _do_http_handshake(self) -> Generator[bool]:
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host.encode("idna").decode()
        lines = [f"CONNECT {host}:{self._server.port} HTTP/1.1", f"Host: {host}:{self._server.port}"]
        if self._proxy.user is not None:
            login = base64.b64encode(f"{self._proxy.user}:{self._proxy.password or ''}".encode()).decode()
            lines.append(f"Proxy-Authorization: Basic {login}")
        self._outgoing.append("\r\n".join([*lines, "", ""]).encode())
        while (end := self._arrived.find(b"\r\n\r\n")) < 0:
            if not self._arrived[:5] == b"HTTP/"[: len(self._arrived)] or len(self._arrived) > _MAX_HEAD_BYTES:
                raise self._failure_error("its answer is not HTTP")
            yield from self._wait_for_more()
        head, self._arrived = self._arrived[:end].decode("latin-1"), self._arrived[end + 4 :]
        _, _, answer = head.partition("\r\n")[0].partition(" ")
        code = answer.partition(" ")[0]
        if not (head.startswith("HTTP/") and code.isascii() and code.isdigit()):
            raise self._failure_error("its answer is not HTTP")
        if not HTTPStatus.OK <= int(code) < HTTPStatus.MULTIPLE_CHOICES:
            raise self._refusal_error(answer, int(code) not in UPSTREAM_FAILED)

    def _do_socks_handshake(self) -> Generator[bool]:
        user, password = (self._proxy.user or "").encode(), (self._proxy.password or "").encode()
        if max(len(user), len(password)) > _MAX_FIELD_BYTES:
            raise self._failure_error(f"it takes no user or password of more than {_MAX_FIELD_BYTES} bytes")
        ways = [_WITHOUT_LOGIN, *([_WITH_PASSWORD] if user else [])]
        self._outgoing.append(bytes([_SOCKS, len(ways), *ways]))
        version, way = yield from self._take_bytes(2)
        if version != _SOCKS:
            raise self._failure_error("its answer is not SOCKS5")
        if way not in ways:
            raise self._refusal_error("it wants another login" if user else "it wants a login", final=True)
        if way == _WITH_PASSWORD:
            self._outgoing += [bytes([_PASSWORD_VERSION, len(user)]), user, bytes([len(password)]), password]
            _, status = yield from self._take_bytes(2)
            if status:
                raise self._refusal_error("user and password are wrong", final=True)
        self._outgoing.append(bytes([_SOCKS, _CONNECT, 0]) + self._address() + self._server.port.to_bytes(2, "big"))
        version, status, _, kind = yield from self._take_bytes(4)
        if version != _SOCKS:
            raise self._failure_error("its answer is not SOCKS5")
        if status:
            raise self._refusal_error(_SOCKS_REPLIES.get(status, f"reply {status}"), status not in _UNREACHABLE)
        size = 4 if kind == _BY_IPV4 else 16 if kind == _BY_IPV6 else (yield from self._take_bytes(1))[0]
        yield from self._take_bytes(size + 2)

    def _address(self) -> bytes:
        """Return the encoded address of the server, or its name, which the proxy then looks up."""
        if address := parse_ip_address(self._server.host):
            return bytes([_BY_IPV4 if address.version == 4 else _BY_IPV6]) + address.packed
        name = self._server.host.encode("idna")
        return bytes([_BY_NAME, len(name)]) + name

    def _take_bytes(self, size: int) -> Generator[bool, None, bytes]:
        while len(self._arrived) < size:
            yield from self._wait_for_more()
        taken, self._arrived = self._arrived[:size], self._arrived[size:]
        return taken

    def _wait_for_more(self) -> Generator[bool]:
        if self._ended:
            raise self._failure_error("it closed the connection")
        yield False

    def _failure_error(self, reason: str) -> NatsConnectionError:
        return NatsConnectionError(PROXY_FAILED(proxy=self._proxy, reason=reason))

    def _refusal_error(self, reason: str, final: bool) -> NatsConnectionError:
        said = PROXY_REFUSED(proxy=self._proxy, reason=blanked(reason, (self._proxy.user, self._proxy.password)))
        if final:
            return NatsConnectionError(said).with_topics(Topic.PROXY)
        return NatsConnectionError(said, transient=Transient.ALWAYS)  # the proxy cannot reach the server now

    def add_received(self, data: bytes | None) -> None:
        """Take received bytes; None when the connection is closed."""
        if data is None:
            self._ended = True
        else:
            self._arrived = self._arrived + data if self._arrived else data

    def decode_or_none_at_end(self) -> bytes | None:
        """Return the received bytes; None when the connection is closed."""
        arrived, self._arrived = self._arrived, b""
        return None if self._ended and not arrived else arrived

    def encode_and_queue(self, data: memoryview) -> None:
        """Queue bytes unchanged."""
        self._outgoing.append(bytes(data))

    def take_due(self) -> bytes:
        """Return the bytes that are due to be sent."""
        outgoing, self._outgoing = self._outgoing, []
        return b"".join(outgoing)
