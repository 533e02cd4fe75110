"""The socket of a connection. Every wait ends at a deadline (a value of :func:`time.monotonic`)."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time

from spark_nats.client.servers import Server

CHUNK = 1 << 20
"""Most bytes taken from the socket at once. Large enough to spread the decoder's fixed cost over many messages."""
_RECORD = 16384  # most bytes of a TLS record: what OpenSSL receives or sends at once
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Transport:
    """A connected socket that never blocks by itself: whoever waits says until when."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        # Requests are small and wait for their answer, so they must not be held back to be sent together.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._tls: ssl.SSLSocket | None = None
        self._at_once = CHUNK
        self._read_waits_to_write = False
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def open(cls, server: Server, timeout: float) -> Transport:
        """Connect to a server.

        Raises:
            OSError: nothing listens there, the name is unknown, or it took longer than ``timeout`` seconds.
        """
        return cls(socket.create_connection((server.host, server.port), timeout))

    def start_tls(self, context: ssl.SSLContext, server_name: str, deadline: float) -> None:
        """Encrypt everything from here on, after verifying that the server is ``server_name``.

        Raises:
            TimeoutError: the handshake was not done by the deadline.
            OSError: the server speaks no TLS, or is not who it should be (:class:`ssl.SSLCertVerificationError`).
        """
        tls = context.wrap_socket(self._socket, server_hostname=server_name, do_handshake_on_connect=False)
        self._socket = self._tls = tls
        self._at_once = _RECORD
        while True:
            try:
                tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                ready = self.wait(deadline)
            except ssl.SSLWantWriteError:
                ready = self.wait(deadline, to_write=True)
            if not ready or time.monotonic() >= deadline:
                raise TimeoutError("the TLS handshake took too long")

    @property
    def encrypted(self) -> bool:
        """Whether TLS was begun."""
        return self._tls is not None

    def wait(self, deadline: float, to_write: bool = False) -> bool:
        """Wait until the socket is readable (or writable, if asked for). False when the deadline passed."""
        if self._tls is not None and self._tls.pending():  # received and decrypted, so poll does not know of it
            return True
        to_write = to_write or self._read_waits_to_write
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if to_write else 0))
        remaining = deadline - time.monotonic()
        return bool(self._poll.poll(max(0.0, remaining) * 1000))

    def receive(self) -> bytes | None:
        """Return what has arrived, up to :data:`CHUNK`; nothing when nothing has, None when the server closed.

        Raises:
            OSError: the connection is broken.
        """
        parts: list[bytes] = []
        size = 0
        self._read_waits_to_write = False
        while size < CHUNK:
            try:
                part = self._socket.recv(min(CHUNK - size, self._at_once))
            except _NOT_NOW as error:
                self._read_waits_to_write = isinstance(error, ssl.SSLWantWriteError)  # to answer a change of keys
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

        When that was none, the next call must come with the same bytes: TLS may have sent a part of their record.

        Raises:
            OSError: the connection is broken.
        """
        try:
            return self._socket.send(data if self._tls is None else data[:_RECORD])
        except _NOT_NOW:
            return 0

    def close(self) -> None:
        """Close the socket; harmless when it is closed already."""
        with contextlib.suppress(OSError):
            self._socket.close()
