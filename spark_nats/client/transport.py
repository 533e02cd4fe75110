"""The socket of a connection. Every wait ends at a deadline (a value of :func:`time.monotonic`)."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from spark_nats.client.servers import Server

CHUNK = 1 << 20
"""Most bytes taken from the socket at once. Large enough to spread the decoder's fixed cost over many messages."""


class Transport:
    """A connected socket that never blocks by itself: whoever waits says until when."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        # Requests are small and wait for their answer, so they must not be held back to be sent together.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    @classmethod
    def open(cls, server: Server, timeout: float) -> Transport:
        """Connect to a server.

        Raises:
            OSError: nothing listens there, the name is unknown, or it took longer than ``timeout`` seconds.
        """
        return cls(socket.create_connection((server.host, server.port), timeout))

    def wait(self, deadline: float, to_write: bool = False) -> bool:
        """Wait until the socket is readable (or writable, if asked for). False when the deadline passed."""
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

        Raises:
            OSError: the connection is broken.
        """
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the socket; harmless when it is closed already."""
        with contextlib.suppress(OSError):
            self._socket.close()
