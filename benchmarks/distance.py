"""A server that is as far away as one says: what passes arrives later, in its order, and no less of it at a time."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

_CHUNK = 1 << 18
_SECONDS = 30.0
_HOST = "127.0.0.1"
_Due = SimpleQueue[tuple[float, bytes]]
"""When which bytes go on; none say that no more come."""


class Distance:
    """A proxy on loopback that holds back all bytes for half a round trip in each direction, started with ``with``.

    It is a process of its own, which ends with this one too. Bandwidth is not limited, and how TCP begins slowly is not
    imitated; that making a connection takes a round trip is.

    Args:
        target: the port of this machine that it leads to.
        port: where it listens, or 0 for a free port.

    Attributes:
        port: where it listens.
    """

    def __init__(self, target: int, port: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self.port = port
        self._round_trip = context.Value("d", 0.0)
        self._ours, theirs = context.Pipe()
        arguments = (theirs, port, target, self._round_trip)
        self._process = context.Process(target=_serve, args=arguments, name="distance", daemon=True)
        self._theirs = theirs

    def __enter__(self) -> Distance:
        self._process.start()
        self._theirs.close()  # so that the process's end is seen
        if not self._ours.poll(_SECONDS):
            raise TimeoutError("the proxy did not become ready")
        self.port = self._ours.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._process.join(_SECONDS)

    @property
    def round_trip(self) -> float:
        """Seconds of a round trip, for all that is sent from now on; 0 to begin with."""
        return float(self._round_trip.value)

    @round_trip.setter
    def round_trip(self, seconds: float) -> None:
        self._round_trip.value = seconds

    @property
    def url(self) -> str:
        """Where clients of NATS connect to."""
        return f"nats://{_HOST}:{self.port}"


def _serve(starter: Connection, port: int, target: int, round_trip: Any) -> None:
    """Carry all connections until whoever started this closes its end of the pipe, or ends."""
    listener = socket.create_server((_HOST, port), backlog=128)
    threading.Thread(target=_accept, args=(listener, target, round_trip), daemon=True).start()
    starter.send(listener.getsockname()[1])
    with suppress(EOFError, OSError):
        starter.recv()


def _accept(listener: socket.socket, target: int, round_trip: Any) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_carry, args=(client, target, round_trip), daemon=True).start()


def _carry(client: socket.socket, target: int, round_trip: Any) -> None:
    """Carry one connection: a client may send a round trip after it began, and half of one later the server hears."""
    to_server: _Due = SimpleQueue()
    to_client: _Due = SimpleQueue()
    time.sleep(round_trip.value)
    threading.Thread(target=_receive, args=(client, to_server, round_trip), daemon=True).start()
    time.sleep(round_trip.value / 2)
    try:
        server = socket.create_connection((_HOST, target), timeout=_SECONDS)
    except OSError:
        client.shutdown(socket.SHUT_RDWR)
        return
    server.settimeout(None)
    for each in (client, server):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_receive, args=(server, to_client, round_trip), daemon=True).start()
    threading.Thread(target=_send, args=(to_server, server), daemon=True).start()
    _send(to_client, client)


def _receive(sender: socket.socket, queue: _Due, round_trip: Any) -> None:
    chunk = b"to begin with"
    while chunk:
        try:
            chunk = sender.recv(_CHUNK)
        except OSError:
            chunk = b""
        queue.put((time.monotonic() + round_trip.value / 2, chunk))


def _send(queue: _Due, receiver: socket.socket) -> None:
    with suppress(OSError):  # the receiver has gone, of which its own direction tells
        while True:
            due, chunk = queue.get()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            if not chunk:
                receiver.shutdown(socket.SHUT_WR)
                return
            receiver.sendall(chunk)
