"""The socket of a connection. Every wait ends at a deadline (a value of :func:`spark_nats.clock.monotonic`)."""

from __future__ import annotations

import contextlib
import select
import socket

from spark_nats import clock
from spark_nats.client.servers import Server
from spark_nats.client.tls import TlsLayer

CHUNK = 1 << 20  # bytes taken from the socket at once, which spread the decoder's fixed cost over many messages
_ENCRYPTED_AT_ONCE = 256 * 1024  # bytes


class Transport:
    """A connected socket that never blocks by itself: whoever waits says until when. Broken, it raises OSError."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        # Requests are small and wait for their answer, so they must not be held back to be sent together.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._tls: TlsLayer | None = None
        self._in_layer = False  # the layer may hold bytes that nothing in the socket tells of
        self._taken = 0  # how many of the caller's bytes are encrypted and not all sent
        self._unsent = memoryview(b"")  # what the layer wants sent
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def open(cls, server: Server, deadline: float) -> Transport:
        """Connect to the first of a server's addresses that answers; the deadline is for all of them together.

        How long the name is looked up is the system's to limit.

        Raises:
            OSError: nothing listens there, the name is unknown, or it took too long.
        """
        problem: OSError = TimeoutError("timed out")
        for family, kind, protocol, _, address in socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM):
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

    def start_tls(self, layer: TlsLayer, deadline: float) -> None:
        """Encrypt everything from here on, once it is known who the server is.

        Raises:
            TimeoutError: the handshake was not done by the deadline.
            OSError: the server speaks no TLS, or is not who it should be (:class:`ssl.SSLCertVerificationError`).
        """
        self._tls = layer
        done = False
        while not done:
            try:
                done = layer.shake_hands()
            finally:
                sent = self._flush(layer)  # where we refuse the server, this says so
            while not sent:
                self._wait_in_handshake(deadline, to_write=True)
                sent = self._flush(layer)
            if not done:
                self._wait_in_handshake(deadline)
                layer.receive(self._receive())
        self._in_layer = True

    def _wait_in_handshake(self, deadline: float, to_write: bool = False) -> None:
        if not self.wait(deadline, to_write) or clock.monotonic() >= deadline:
            raise TimeoutError("the TLS handshake took too long")

    @property
    def encrypted(self) -> bool:
        """Whether TLS was begun."""
        return self._tls is not None

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
        arrived = self._receive()
        if self._tls is None:
            return arrived
        self._in_layer = False
        self._tls.receive(arrived)
        data = self._tls.decrypt()
        with contextlib.suppress(OSError):  # if it cannot be sent any more, receiving tells why
            self._flush(self._tls)  # TLS has answers of its own
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

        When that was none, the next call must come with the same bytes: TLS may have sent a part of them.
        """
        if self._tls is None:
            return self._send(data)
        if not self._taken:
            self._tls.encrypt(data[:_ENCRYPTED_AT_ONCE])
            self._taken = len(data[:_ENCRYPTED_AT_ONCE])
        if not self._flush(self._tls):
            return 0
        taken, self._taken = self._taken, 0
        return taken

    def _send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _flush(self, layer: TlsLayer) -> bool:
        """Send what TLS wants sent. False when the socket does not take all of it now."""
        while True:
            self._unsent = self._unsent or memoryview(layer.to_send())
            if not self._unsent:
                return True
            sent = self._send(self._unsent)
            if not sent:
                return False
            self._unsent = self._unsent[sent:]

    def close(self) -> None:
        """Close the socket; harmless when it is closed already."""
        with contextlib.suppress(OSError):
            self._socket.close()
