"""The socket of a connection, where every wait ends at a deadline (of :func:`spark_nats.clock.monotonic`)."""

from __future__ import annotations

import contextlib
import select
import socket
from http import HTTPStatus
from typing import Protocol

from spark_nats import clock

CHUNK = 1 << 20  # maximum bytes received from the socket at once, to spread the decoder's fixed cost over many messages
UPSTREAM_FAILED = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""The statuses that a proxy or a gateway answers with while it cannot reach the server."""
_ENCODED_AT_ONCE = 256 * 1024  # bytes


class Layer(Protocol):
    """A layer between the socket and its user, from bytes to bytes: a proxy, TLS or a WebSocket."""

    def continue_handshake(self) -> bool:
        """Continue the handshake; return True when it is done, raise an exception when it fails."""

    def add_received(self, data: bytes | None) -> None:
        """Take bytes from the server; None when it has closed the connection."""

    def decode_or_none_at_end(self) -> bytes | None:
        """Return all decoded bytes; None at the end of the connection; raise OSError when the layer broke."""

    def encode_and_queue(self, data: memoryview) -> None:
        """Encode bytes for the server."""

    def take_due(self) -> bytes:
        """Return the bytes that are due to be sent."""

    def queue_close(self) -> None:
        """Queue the closing message of the layer, if it needs one: for most, closing the socket is enough."""
        return


class Transport:
    """A connected socket that never blocks by itself: the caller gives each wait a deadline; errors are OSError."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        # Requests are small and wait for their answers, so the system must not delay them to send several together.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.encrypted = False  # whether TLS has started
        self._layers: list[Layer] = []  # from the socket upwards
        self._in_layer = False  # whether a layer may hold bytes although the socket has none
        self._taken = 0  # the number of the caller's bytes that are encoded but not all sent
        self._unsent = memoryview(b"")  # bytes of the layers that are due to be sent
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def open(cls, host: str, port: int, deadline: float) -> Transport:
        """Connect to the first address of a host that answers; the deadline is for all addresses together.

        Only the system limits the time of the name lookup.

        Raises:
            OSError: no server listens there, the name is unknown, or the deadline has passed.
        """
        problem: OSError = TimeoutError("timed out")
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                break
            try:
                sock = socket.socket(family, kind, protocol)  # a system without IPv6 refuses that already
            except OSError as error:
                problem = error
                continue
            sock.settimeout(remaining)
            try:
                sock.connect(address)
            except OSError as error:
                sock.close()
                problem = error
            else:
                return cls(sock)
        raise problem

    def handshake_and_add_layer(self, layer: Layer, deadline: float, encrypts: bool = False) -> None:
        """Do the handshake of a layer, then send and receive all further bytes through it.

        Raises:
            TimeoutError: the handshake was not done by the deadline.
            OSError: the connection broke. Where a layer ``encrypts``, also: the server speaks no TLS, or its
                certificate is not valid for its name (:class:`ssl.SSLCertVerificationError`).
        """
        self.encrypted = self.encrypted or encrypts
        below = list(self._layers)
        self._layers.append(layer)
        done = False
        while not done:
            try:
                done = layer.continue_handshake()
            finally:
                sent = self._flush_or_raise_alert(below)  # also an alert to a server that the layer refuses
            while not sent:
                self._wait_in_handshake(deadline, or_writable=True)
                sent = self._flush_or_raise_alert(below)
            if not done:
                self._wait_in_handshake(deadline)
                layer.add_received(self._receive_through(below))
        self._in_layer = True

    def _flush_or_raise_alert(self, layers: list[Layer]) -> bool:
        try:
            return self._try_to_flush()
        except OSError:
            self._receive_through(layers)  # raises the TLS alert of the server, if any, which has the reason
            raise

    def _wait_in_handshake(self, deadline: float, or_writable: bool = False) -> None:
        if not self.wait(deadline, or_writable) or clock.monotonic() >= deadline:
            raise TimeoutError("the handshake took too long")

    def wait(self, deadline: float, or_writable: bool = False) -> bool:
        """Wait until the socket is readable; return False when the deadline passes first, else True: try.

        With ``or_writable``, or while bytes of the layers are unsent, a writable socket ends the wait too. While a
        layer may hold received bytes, there is no wait.
        """
        if self._in_layer:
            return True
        or_writable = or_writable or bool(self._unsent)
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if or_writable else 0))
        return bool(self._poll.poll(max(0.0, deadline - clock.monotonic()) * 1000))

    def receive(self) -> bytes | None:
        """Receive up to :data:`CHUNK` bytes, and return what they decode to; None when the server has closed."""
        data = self._receive_through(self._layers)
        if self._layers:
            with contextlib.suppress(OSError):  # after a failed send, the next receive has the reason
                self._try_to_flush()  # sends answers of the layers, such as the PONG of a WebSocket
        return data

    def _receive_through(self, layers: list[Layer]) -> bytes | None:
        data = self._receive_from_socket()
        self._in_layer = False
        for layer in layers:
            layer.add_received(data)
            data = layer.decode_or_none_at_end()
        return data

    def _receive_from_socket(self) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while size < CHUNK:
            try:
                part = self._socket.recv(CHUNK - size)
            except BlockingIOError:
                break
            except OSError:
                if parts:  # a server often sends the reason just before it closes; the next call raises the error
                    break
                raise
            if not part:
                return b"".join(parts) if parts else None
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def send(self, data: memoryview) -> int:
        """Send the bytes that the socket takes now, and return their number.

        After 0, the next call must pass the same bytes again, because a layer may have sent a part of them.
        """
        if not self._layers:
            return self._send_to_socket(data)
        if not self._taken:
            self._layers[-1].encode_and_queue(data[:_ENCODED_AT_ONCE])
            self._taken = len(data[:_ENCODED_AT_ONCE])
        if not self._try_to_flush():
            return 0
        taken, self._taken = self._taken, 0
        return taken

    def _send_to_socket(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _try_to_flush(self) -> bool:
        """Send the due bytes of the layers; return False when the socket does not take all of them now."""
        while True:
            self._unsent = self._unsent or memoryview(self._take_due())
            if not self._unsent:
                return True
            sent = self._send_to_socket(self._unsent)
            if not sent:
                return False
            self._unsent = self._unsent[sent:]

    def _take_due(self) -> bytes:
        """Return the due bytes of the layers, each encoded by the layers below it."""
        due = b""
        for layer in reversed(self._layers):
            if due:
                layer.encode_and_queue(memoryview(due))
            due = layer.take_due()
        return due

    def close(self) -> None:
        """Close the socket; safe to call again."""
        with contextlib.suppress(OSError):
            if self._layers and not (self._unsent or self._taken):  # else the rest of a failed send would go out
                self._layers[-1].queue_close()
                self._try_to_flush()
        with contextlib.suppress(OSError):
            self._socket.close()


def reason_of(error: Exception) -> str:
    """Return the text of an exception; that of an OSError without its number."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
