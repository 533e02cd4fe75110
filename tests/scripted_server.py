"""A server that follows a script, for what a real one cannot be made to do: torn frames, silence, nonsense."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from spark_nats.protocol.api import Api

INFO = b'INFO {"server_id":"S","version":"2.10.0","headers":true,"max_payload":1048576,"proto":1}\r\n'


def api_answer(operation: str, document: dict[str, Any]) -> bytes:
    """What JetStream answers to an operation such as `STREAM.INFO`, which may be followed by names, with its type."""
    operation = next(each for each in Api if f"{operation}.".startswith(f"{each}."))
    name = "account_info" if operation == "INFO" else operation.lower().replace(".", "_")
    return json.dumps({"type": f"io.nats.jetstream.api.v1.{name}_response", **document}).encode()


class Request(NamedTuple):
    """A message with a reply subject that a client has published."""

    subject: bytes
    header: bytes  # its header block; empty where it has none
    payload: bytes
    reply: bytes
    sid: bytes  # of the client's subscription to its replies


class Peer:
    """The server's side of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = bytearray()
        self._at = 0  # what came before it is taken; to remove it each time would copy all that waits
        self._unsent = bytearray()

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def send_soon(self, data: bytes) -> None:
        """Send it, with all else that is to be sent soon, before the next wait for what comes."""
        self._unsent += data

    def flush(self) -> None:
        """Send what was to be sent soon."""
        if self._unsent:  # even to send nothing fails once the test is over, before what came is received
            self.connection.sendall(self._unsent)
            self._unsent.clear()

    def expect(self, what: bytes) -> bytes:
        """Receive until `what` has come; everything up to and including it."""
        while (found := self._received.find(what, self._at)) < 0:
            self._receive(f"{what!r}")
        return self._take(found + len(what) - self._at)

    def take(self, size: int) -> bytes:
        """Receive so many bytes."""
        while len(self._received) - self._at < size:
            self._receive(f"{size} bytes had come")
        return self._take(size)

    def take_rest(self) -> bytes:
        """What has come already and is not taken; may be nothing."""
        return self._take(len(self._received) - self._at)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._received[self._at : self._at + size])
        self._at += size
        return taken

    def _receive(self, before: str) -> None:
        self.flush()
        data = self.connection.recv(65536)
        if not data:
            raise ConnectionError(f"closed before {before}")
        del self._received[: self._at]
        self._at = 0
        self._received += data

    def let_in(self, greeting: bytes = INFO) -> bytes:
        """The handshake as a server does it; returns the CONNECT line."""
        self.send(greeting)
        hello = self.expect(b"PING\r\n")
        self.send(b"PONG\r\n")
        return hello

    def requests(self) -> Iterator[Request]:
        """Let the client in, take its subscriptions and answer its PINGs; yield each message that asks for a reply."""
        self.let_in()
        sids: dict[bytes, bytes] = {}
        while True:
            verb, *words = self.expect(b"\r\n").split()
            if verb == b"SUB":
                sids[words[0].rpartition(b".")[0]] = words[-1]
            elif verb == b"PING":
                self.send_soon(b"PONG\r\n")
            elif verb in (b"PUB", b"HPUB"):
                subject, reply, *_ = words
                data = self.take(int(words[-1]) + 2)[:-2]
                header = int(words[-2]) if verb == b"HPUB" else 0
                yield Request(subject, data[:header], data[header:], reply, sids[reply.rpartition(b".")[0]])

    def answer(self, request: Request, payload: bytes, header: bytes = b"") -> None:
        """Answer a request, soon."""
        sizes = b"%d " % len(header) if header else b""
        line = b"MSG %b %b %b%d\r\n" % (request.reply, request.sid, sizes, len(header) + len(payload))
        self.send_soon((b"H" if header else b"") + line + header + payload + b"\r\n")

    def wait_for_close(self) -> None:
        while self.connection.recv(65536):
            pass


@contextmanager
def scripted_server(script: Callable[[Peer], None]) -> Iterator[str]:
    """Run `script` once for each connection; yields the URL. An error of the script fails the test."""
    errors: list[BaseException] = []
    served: list[tuple[socket.socket, threading.Thread]] = []

    def serve(connection: socket.socket) -> None:
        connection.settimeout(60)
        try:
            script(Peer(connection))
        except OSError:
            pass  # the client hung up, which is often what is tested
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                server = threading.Thread(target=serve, args=(connection,), daemon=True)
                served.append((connection, server))
                server.start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    for connection, server in served:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # a script that still receives gets what came, and then the end
        server.join(5)
    assert not errors, errors
