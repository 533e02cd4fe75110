"""The socket of a connection. Every wait ends at a deadline (a value of :func:`spark_nats.clock.monotonic`)."""

from __future__ import annotations

import contextlib
import select
import socket
from http import HTTPStatus
from typing import Protocol

from spark_nats import clock

CHUNK = 1 << 20  # bytes taken from the socket at once, which spread the decoder's fixed cost over many messages
NOTHING_BEHIND = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""What a proxy or a gateway answers while it cannot reach what is behind it."""
_ENCODED_AT_ONCE = 256 * 1024  # bytes


class Layer(Protocol):
    """What lies between the socket and its user, from bytes to bytes: a proxy, TLS, a WebSocket."""

    def shake_hands(self) -> bool:
        """Go on with the handshake; True when it is done. An exception when it failed."""

    def receive(self, data: bytes | None) -> None:
        """Take in what the server has sent; None when it has closed."""

    def decode(self) -> bytes | None:
        """Return all that can be read of what was taken in; None when the server has closed, OSError when it broke."""

    def encode(self, data: memoryview) -> None:
        """Encode for the server."""

    def to_send(self) -> bytes:
        """Return what has become due to be sent."""

    def end(self) -> None:
        """Say that nothing more is sent, if there is a word for that."""


class Transport:
    """A connected socket that never blocks by itself: whoever waits says until when. Broken, it raises OSError."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        # Requests are small and wait for their answer, so they must not be held back to be sent together.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.encrypted = False  # whether TLS was begun
        self._layers: list[Layer] = []  # that which lies on the socket first
        self._in_layer = False  # a layer may hold bytes that nothing in the socket tells of
        self._taken = 0  # how many of the caller's bytes are encoded and not all sent
        self._unsent = memoryview(b"")  # what the layers want sent
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def open(cls, host: str, port: int, deadline: float) -> Transport:
        """Connect to the first of a host's addresses that answers; the deadline is for all of them together.

        How long the name is looked up is the system's to limit.

        Raises:
            OSError: nothing listens there, the name is unknown, or it took too long.
        """
        problem: OSError = TimeoutError("timed out")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                break
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(remaining)
            try:
                sock.connect(address)
            except OSError as error:
                sock.close()
                problem = error
            else:
                return cls(sock)
        raise problem

    def start(self, layer: Layer, deadline: float, encrypts: bool = False) -> None:
        """Send and receive everything from here on through a layer, once its handshake is done.

        Raises:
            TimeoutError: the handshake was not done by the deadline.
            OSError: the connection broke. Where a layer ``encrypts``, the server speaks no TLS, or is not who it should
                be (:class:`ssl.SSLCertVerificationError`).
        """
        self.encrypted = self.encrypted or encrypts
        below = list(self._layers)
        self._layers.append(layer)
        done = False
        while not done:
            try:
                done = layer.shake_hands()
            finally:
                sent = self._flush_through(below)  # where we refuse the server, this says so
            while not sent:
                self._wait_in_handshake(deadline, to_write=True)
                sent = self._flush_through(below)
            if not done:
                self._wait_in_handshake(deadline)
                layer.receive(self._receive_through(below))
        self._in_layer = True

    def _flush_through(self, layers: list[Layer]) -> bool:
        try:
            return self._flush()
        except OSError:
            self._receive_through(layers)  # why the server has closed, if TLS knows, says more than that it has
            raise

    def _wait_in_handshake(self, deadline: float, to_write: bool = False) -> None:
        if not self.wait(deadline, to_write) or clock.monotonic() >= deadline:
            raise TimeoutError("the handshake took too long")

    def wait(self, deadline: float, to_write: bool = False) -> bool:
        """Wait until the socket is readable (or writable, if asked for). False when the deadline passed."""
        if self._in_layer:
            return True
        to_write = to_write or bool(self._unsent)
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if to_write else 0))
        remaining = deadline - clock.monotonic()
        return bool(self._poll.poll(max(0.0, remaining) * 1000))

    def receive(self) -> bytes | None:
        """Return what has arrived, up to :data:`CHUNK`; nothing when nothing has, None when the server closed."""
        data = self._receive_through(self._layers)
        if self._layers:
            with contextlib.suppress(OSError):  # if it cannot be sent any more, receiving tells why
                self._flush()  # layers have answers of their own
        return data

    def _receive_through(self, layers: list[Layer]) -> bytes | None:
        data = self._receive()
        self._in_layer = False
        for layer in layers:
            layer.receive(data)
            data = layer.decode()
        return data

    def _receive(self) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while size < CHUNK:
            try:
                part = self._socket.recv(CHUNK - size)
            except BlockingIOError:
                break
            except OSError:
                if parts:  # a server that closes often says why just before; the error comes again
                    break
                raise
            if not part:
                return b"".join(parts) if parts else None
            parts.append(part)
            size += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, data: memoryview) -> int:
        """Send as much as the socket takes now and return how many bytes that was.

        When that was none, the next call must come with the same bytes: a layer may have sent a part of them.
        """
        if not self._layers:
            return self._send(data)
        if not self._taken:
            self._layers[-1].encode(data[:_ENCODED_AT_ONCE])
            self._taken = len(data[:_ENCODED_AT_ONCE])
        if not self._flush():
            return 0
        taken, self._taken = self._taken, 0
        return taken

    def _send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _flush(self) -> bool:
        """Send what the layers want sent. False when the socket does not take all of it now."""
        while True:
            self._unsent = self._unsent or memoryview(self._to_send())
            if not self._unsent:
                return True
            sent = self._send(self._unsent)
            if not sent:
                return False
            self._unsent = self._unsent[sent:]

    def _to_send(self) -> bytes:
        """Return what the layers want sent, each through those below it."""
        due = b""
        for layer in reversed(self._layers):
            if due:
                layer.encode(memoryview(due))
            due = layer.to_send()
        return due

    def close(self) -> None:
        """Close the socket; harmless when it is closed already."""
        with contextlib.suppress(OSError):
            if self._layers and not (self._unsent or self._taken):  # or more would be sent of what has failed
                self._layers[-1].end()
                self._flush()
        with contextlib.suppress(OSError):
            self._socket.close()


def reason_of(error: Exception) -> str:
    """Say in a few words what an exception means; an OSError's text without its number."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
