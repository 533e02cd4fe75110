"""A WebSocket as a layer between a connection and its socket, from bytes to bytes, like TLS.

A frame may begin and end anywhere in the protocol lines of NATS. The library wsproto does the handshake and decodes the
server's frames. This module encodes the frames to send: wsproto masks 45 to 145 MB/s, numpy some thousand.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from wsproto import ConnectionType, WSConnection, events
from wsproto.connection import ConnectionState
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from spark_nats.client.auth import blanked
from spark_nats.client.servers import Server
from spark_nats.client.tls import check_client_certificate_accepted
from spark_nats.client.transport import UPSTREAM_FAILED, Layer, Transport, reason_of
from spark_nats.conditions import Transient
from spark_nats.conditions.websocket import WEBSOCKET_FAILED, WEBSOCKET_NOT_SPOKEN, WEBSOCKET_REFUSED, WEBSOCKET_TIMEOUT
from spark_nats.errors import AuthorizationError, NatsConnectionError, NatsError, NatsTimeoutError
from spark_nats.version import __version__

_BINARY = 0x82  # a whole message in one frame
_MASKED = 0x80
_HTTP = b"HTTP/"
_LOGIN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)
MAX_UNPACKED = 256 << 20
"""Maximum bytes of a decompressed message. A server compresses what is pending for a client, by default up to 64 MiB
(its ``max_pending``), perhaps to a thousandth of that."""
_SHOWN = 200  # maximum characters of an answer in an error
Headers = tuple[tuple[str, str], ...]


class _Deflate(PerMessageDeflate):
    """Compression with a size limit; its state survives a control frame between the frames of a message.

    wsproto 1.3 has no limit, and after such a control frame it forgets that the message is compressed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unpacked = 0  # decompressed bytes of the current message

    def frame_inbound_header(self, *given: Any) -> Any:
        self._before = self._inbound_compressed
        return super().frame_inbound_header(*given)

    def frame_inbound_payload_data(self, proto: Any, data: bytes) -> bytes | CloseReason:
        if not self._inbound_compressed or not self._inbound_is_compressible:
            return data
        assert self._decompressor is not None  # noqa: S101 - the header of the frame has made it
        try:
            unpacked = self._decompressor.decompress(bytes(data), MAX_UNPACKED - self._unpacked + 1)
        except zlib.error:
            return CloseReason.INVALID_FRAME_PAYLOAD_DATA
        self._unpacked += len(unpacked)
        return unpacked if self._unpacked <= MAX_UNPACKED else CloseReason.MESSAGE_TOO_BIG

    def frame_inbound_complete(self, proto: Any, fin: bool) -> Any:
        complete = super().frame_inbound_complete(proto, fin)
        if fin and self._inbound_is_compressible:
            self._unpacked = 0
        if not self._inbound_is_compressible:
            self._inbound_compressed = self._before
        return complete


def start_websocket(headers: Headers, transport: Transport, server: Server, timeout: float, deadline: float) -> None:
    """Do the handshake of a WebSocket, then send and receive all further bytes through it.

    Raises:
        AuthorizationError: the server refuses the client's certificate, or a gateway or the server refuses the login.
        NatsError: the server does not accept the WebSocket, or not by the deadline.
    """
    try:
        transport.handshake_and_add_layer(WebSocketLayer(server, headers), deadline)
    except TimeoutError:
        raise NatsTimeoutError(WEBSOCKET_TIMEOUT(timeout=timeout)) from None
    except OSError as error:
        if isinstance(error, NatsError):
            raise
        check_client_certificate_accepted(error, server)  # in TLS 1.3 a client learns of a refusal only now
        raise NatsConnectionError(WEBSOCKET_FAILED(reason=reason_of(error))) from None


class WebSocketLayer(Layer):
    """A WebSocket from bytes to bytes, without a socket.

    The handshake invites the server to compress its frames. The layer does not compress its own: nats-server ends a
    connection on which a compressed frame holds more than its ``max_payload``.
    """

    def __init__(self, server: Server, headers: Headers) -> None:
        self._server = server
        self._headers = headers
        self._websocket = WSConnection(ConnectionType.CLIENT)
        self._arrived: list[bytes] = []
        self._first_bytes = b""  # of what has arrived
        self._ended = False
        self._asked = False
        self._decoded: list[bytes] = []
        self._outgoing: list[bytes] = []
        self._error: OSError | None = None

    def continue_handshake(self) -> bool:
        """Continue the handshake; return True when it is done.

        Raises:
            AuthorizationError: the server or a gateway refuses the login.
            NatsConnectionError: the server does not accept the WebSocket.
        """
        if not self._asked:
            self._asked = True
            self._outgoing.append(self._websocket.send(self._make_handshake_request()))
            return False
        if not self._first_bytes[: len(_HTTP)] == _HTTP[: len(self._first_bytes)]:
            raise self._failure_error("what answers speaks no HTTP")
        rejected, said = None, b""
        try:
            for event in self._take_events():
                if isinstance(event, events.RejectConnection):
                    rejected = event
                elif isinstance(event, events.RejectData):
                    said += event.data
                elif not isinstance(event, events.AcceptConnection):
                    self._on_event(event)
        except RemoteProtocolError as error:
            if rejected is None:
                raise self._failure_error(str(error)) from None
        if rejected is not None:
            raise self._refusal_error(rejected, said)
        if self._ended and self._websocket.connection is None:
            raise self._failure_error("the server closed the connection before it answered")
        return self._websocket.connection is not None

    def _make_handshake_request(self) -> events.Request:
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        headers = [(name.encode(), value.encode()) for name, value in self._headers]
        if not any(name.lower() == b"user-agent" for name, _ in headers):
            headers.insert(0, (b"User-Agent", f"spark-nats/{__version__}".encode()))
        return events.Request(
            host=f"{host}:{self._server.port}",
            target=self._server.path or "/",
            extensions=[_Deflate()],
            extra_headers=headers,
        )

    def _failure_error(self, reason: str) -> NatsConnectionError:
        if self._first_bytes.startswith(b"INFO "):
            return NatsConnectionError(WEBSOCKET_NOT_SPOKEN())
        return NatsConnectionError(WEBSOCKET_FAILED(reason=reason))

    def _refusal_error(self, answer: events.RejectConnection, said: bytes) -> NatsConnectionError:
        """Return the error for an answer other than 101, which a gateway or the server itself has sent."""
        status = answer.status_code
        with contextlib.suppress(ValueError):
            status = HTTPStatus(status)
        shown = f"{status:d} {status.phrase}" if isinstance(status, HTTPStatus) else str(status)
        if where := dict(answer.headers).get(b"location"):
            parts = urlsplit(where.decode("latin-1"))
            shown += f", to {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # the rest may be secret
        line = said.decode("latin-1").strip().partition("\n")[0]
        if line and not line.startswith("<") and line.isprintable() and line not in shown:
            shown += f" ({line[:_SHOWN]})"
        reason = WEBSOCKET_REFUSED(reason=blanked(shown, (value for _, value in self._headers)))
        if status in _LOGIN:
            return AuthorizationError(reason)
        if status in UPSTREAM_FAILED:  # a gateway cannot reach the server
            return NatsConnectionError(reason, transient=Transient.ALWAYS).with_topics()
        return NatsConnectionError(reason)

    def add_received(self, data: bytes | None) -> None:
        """Take bytes from the server; None when it has closed the connection."""
        if data is None:
            self._ended = True
        elif data:
            self._first_bytes = self._first_bytes or data[: len(_HTTP)]
            self._arrived.append(data)

    def decode_or_none_at_end(self) -> bytes | None:
        """Return all decoded bytes; None when the server has closed the connection.

        Raises OSError for an invalid frame, for text, for a message that decompresses to more than
        :data:`MAX_UNPACKED` bytes, and when the server ends the WebSocket.
        """
        if self._error is None:
            for event in self._take_events():
                self._on_event(event)
        decoded, self._decoded = self._decoded, []
        if decoded:  # the next call reports the end
            return b"".join(decoded)
        if self._error:
            raise self._error
        return None if self._ended else b""

    def _take_events(self) -> Iterable[events.Event]:
        arrived, self._arrived = self._arrived, []
        for data in arrived:
            self._websocket.receive_data(data)
        return self._websocket.events()

    def _on_event(self, event: events.Event) -> None:
        if self._error:
            return
        if isinstance(event, events.BytesMessage):
            self._decoded.append(bytes(event.data))
        elif isinstance(event, events.Ping):
            self._outgoing.append(self._websocket.send(event.response()))
        elif isinstance(event, events.CloseConnection):
            code, reason = int(event.code), event.reason
            if self._websocket.state is ConnectionState.REMOTE_CLOSING:
                self._error = OSError(f"the server has closed the WebSocket ({code}{f', {reason}' if reason else ''})")
                self._outgoing.append(self._websocket.send(event.response()))
            elif code == CloseReason.MESSAGE_TOO_BIG:
                self._error = OSError(f"it sends a message that unpacks to more than {MAX_UNPACKED >> 20} MiB")
                self._outgoing.append(self._websocket.send(events.CloseConnection(code)))
            else:
                self._error = OSError(f"what it sends is no WebSocket: {reason}")
                self._outgoing.append(self._websocket.send(events.CloseConnection(code)))
        elif isinstance(event, events.TextMessage):
            self._error = OSError("it sends text through the WebSocket, which NATS does not")

    def encode_and_queue(self, data: memoryview) -> None:
        """Put bytes into a frame for the server, masked with a new key (RFC 6455, section 5.3)."""
        size, key = len(data), os.urandom(4)
        if size < 126:
            header = struct.pack("!BB", _BINARY, _MASKED | size)
        elif size < 1 << 16:
            header = struct.pack("!BBH", _BINARY, _MASKED | 126, size)
        else:
            header = struct.pack("!BBQ", _BINARY, _MASKED | 127, size)
        self._outgoing.append(header + key + _masked(data, key))

    def take_due(self) -> bytes:
        """Return the bytes that are due to be sent."""
        outgoing, self._outgoing = self._outgoing, []
        return b"".join(outgoing)

    def queue_close(self) -> None:
        """Queue the closing frame, unless the server has closed the WebSocket."""
        with contextlib.suppress(LocalProtocolError):
            self._outgoing.append(self._websocket.send(events.CloseConnection(1000)))


def _masked(data: memoryview, key: bytes) -> bytes:
    """Return bytes exclusive-or'ed with a repeated key of four bytes, eight bytes at a time."""
    given = np.frombuffer(data, np.uint8)
    masked = np.empty(len(given), np.uint8)
    whole = len(given) // 8 * 8
    np.bitwise_xor(given[:whole].view(np.uint64), np.frombuffer(key * 2, np.uint64), out=masked[:whole].view(np.uint64))
    np.bitwise_xor(given[whole:], np.frombuffer(key * 2, np.uint8)[: len(given) - whole], out=masked[whole:])
    return masked.tobytes()
