"""WebSockets: how their URLs are read, what is in their frames, and what answers that a real server never gives."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import subprocess
import sys
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Ping, Pong, Request
from wsproto.extensions import PerMessageDeflate

from spark_nats.client import ConnectionOptions, connect, parse_servers, websocket
from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import Retries
from spark_nats.client.websocket import WebSocketLayer
from spark_nats.conditions import websocket as conditions
from spark_nats.errors import AuthorizationError, NatsConnectionError, NatsError, OptionError, ProtocolError
from spark_nats.kinds.queries import parse_options
from spark_nats.options import connection_options
from tests.connections import options_for
from tests.scripted_server import INFO, Peer, scripted_server

SECRET = "Bearer s3cret-of-the-gateway"


def options(url: str, **changes: Any) -> ConnectionOptions:
    return options_for(url.replace("nats://", "ws://"), **{"connect_timeout": 60.0, **changes})


# URLs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ws://one", ["ws://one:80"]),
        ("wss://one", ["wss://one:443"]),
        ("WSS://one:8443/nats/", ["wss://one:8443/nats/"]),
        ("ws://one/", ["ws://one:80"]),
        ("ws://[::1]:8080/a", ["ws://[::1]:8080/a"]),
        ("nats://one,ws://two/x", ["nats://one:4222", "ws://two:80/x"]),
        (
            "wss://one/x,ws://two,ws://three:80,nats://four",
            ["wss://one:443/x", "wss://two:443", "wss://three:80", "tls://four:4222"],
        ),
        ("tls://one,ws://two", ["tls://one:4222", "wss://two:443"]),
    ],
)
def test_a_url_says_port_path_and_whether_there_is_tls(text: str, shown: list[str]) -> None:
    servers = parse_servers(text)
    assert [str(server) for server in servers] == shown
    assert [str(server) for server in parse_servers(",".join(shown))] == shown


def test_a_url_may_log_in_where_no_plan_shows_it() -> None:
    (server,) = parse_servers("ws://ann:s3cret@one/x")
    assert (server.credentials.user, server.credentials.password) == ("ann", "s3cret")
    assert "s3cret" not in f"{server} {server!r}"


@pytest.mark.parametrize("text", ["ws://", "ws://one/a b", "ws://one/ü", "ws://one?token=s3cret", "ws://one/x#y"])
def test_a_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a server URL"):
        parse_servers(text)


def test_a_server_that_was_announced_keeps_scheme_and_path() -> None:
    (server,) = parse_servers("ws://one:8080/nats")
    assert str(server.parse_announced("two:9090", tls=False)) == "ws://two:9090/nats"
    assert str(server.parse_announced("two:9090", tls=True)) == "wss://two:9090/nats"


def test_a_context_may_name_a_websocket(tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text(json.dumps({"url": "wss://ann:s3cret@one/nats"}))
    (server,) = parse_options({"context": str(path)}).connection.servers
    assert (str(server), server.credentials.password) == ("wss://one:443/nats", "s3cret")
    (server,) = parse_options({"context": str(path), "servers": "ws://two:8080"}).connection.servers
    assert (str(server), server.credentials.password) == ("wss://two:8080", "s3cret")


# Headers of the request


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Authorization: s3cret", "must be a JSON object"),
        ('["s3cret"]', "must be a JSON object"),
        ('{"A B": "s3cret"}', "has a name that cannot be that of a header"),
        ('{"A": "s3cret\\r\\nB: c"}', "has a value of 'A' that is no text"),
        ('{"A": ["s3cret"]}', "has a value of 'A' that is no text"),
        ('{"A": ""}', "has a value of 'A' that is no text"),
        ('{"Host": "s3cret"}', "has the header 'Host', which the handshake itself sets"),
        ('{"sec-websocket-key": "s3cret"}', "has the header 'sec-websocket-key', which"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_values(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as raised:
        parse_options({"websocketHeadersSecret": text})
    assert "s3cret" not in str(raised.value)


def test_headers_are_sent_with_the_request_and_shown_nowhere() -> None:
    asked: list[str] = []

    def gateway(peer: Peer) -> None:
        asked.append(peer.expect(b"\r\n\r\n").decode())
        peer.send(b"HTTP/1.1 403 Forbidden\r\n\r\nnot with " + SECRET.encode() + b"\n")

    headers = json.dumps({"Authorization": SECRET, "Cookie": "a=b"})
    with scripted_server(gateway) as url, pytest.raises(AuthorizationError) as raised:
        named = connection_options(servers=url.replace("nats:", "ws:") + "/to/nats", websocketHeadersSecret=headers)
        connect(named)
    line, *lines = asked[0].splitlines()
    assert line == "GET /to/nats HTTP/1.1"
    assert {f"Authorization: {SECRET}", "Cookie: a=b", f"Host: {url.removeprefix('nats://')}"} <= set(lines)
    gateway_url = url.replace("nats:", "ws:") + "/to/nats"
    assert str(raised.value) == f"{gateway_url}: answers the request for a WebSocket with 403 Forbidden (not with …)"
    assert "s3cret" not in repr(named)


# Answers to the request


def refusal_of(answer: bytes, close: bool = True) -> NatsError:
    def gateway(peer: Peer) -> None:
        peer.expect(b"\r\n\r\n")
        peer.send(answer)
        if not close:
            peer.wait_for_close()

    with scripted_server(gateway) as url, pytest.raises(NatsError) as raised:
        connect(options(url, **({} if close else {"connect_timeout": 1.0})))
    return raised.value


@pytest.mark.parametrize(
    ("answer", "shown", "passes", "passes_later"),
    [
        (b"404 Not Found\r\nContent-Length: 0", "404 Not Found", False, True),
        (b"401 Unauthorized\r\nContent-Length: 0", "401 Unauthorized", False, True),
        (b"503 Service Unavailable\r\nContent-Length: 0", "503 Service Unavailable", True, True),
        (b"504 Gateway Timeout\r\nContent-Length: 0", "504 Gateway Timeout", True, True),
        (b"501 Not Implemented\r\nContent-Length: 0", "501 Not Implemented", False, True),
        (b"299 Whatever\r\nContent-Length: 0", "299", False, True),
        (b"200 OK\r\nContent-Type: text/html\r\n\r\n<html>Welcome</html>", "200 OK", False, True),
        (
            b"301 Moved Permanently\r\nLocation: https://u:p@other/nats?token=s3cret\r\nContent-Length: 0",
            "301 Moved Permanently, to https://other/nats",
            False,
            True,
        ),
    ],
)
def test_an_answer_that_makes_no_websocket_is_told(answer: bytes, shown: str, passes: bool, passes_later: bool) -> None:
    error = refusal_of(b"HTTP/1.1 " + answer + b"\r\n\r\n")
    assert f"answers the request for a WebSocket with {shown}" in str(error)
    assert "(<" not in str(error)
    assert "s3cret" not in str(error)
    assert error.may_pass(established=False) is passes
    assert error.may_pass(established=True) is passes_later


@pytest.mark.parametrize("status", [b"401 Unauthorized", b"403 Forbidden", b"407 Proxy Authentication Required"])
def test_a_gateway_that_refuses_a_login_is_named_and_another_one_is_another_refusal(status: bytes) -> None:
    def gateway(peer: Peer) -> None:
        peer.expect(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    def refusal(url: str) -> AuthorizationError:
        with pytest.raises(AuthorizationError) as raised:
            connect(options(url))
        assert raised.value.condition == "NATS_WEBSOCKET_REFUSED"
        return raised.value

    with scripted_server(gateway) as one, scripted_server(gateway) as other:
        named = one.replace("nats:", "ws:")
        assert str(refusal(one)).startswith(f"{named}: answers the request for a WebSocket with {status.decode()}")
        retries = Retries(RetryOptions(60.0, 0.0, 0.0, None), "reading", established=True)
        retries.wait_or_raise(refusal(one))
        retries.wait_or_raise(refusal(other))
        with pytest.raises(AuthorizationError, match=f"^{named}: "):
            retries.wait_or_raise(refusal(one))
        with pytest.raises(AuthorizationError, match=f"no NATS server lets us in .*{named}: answers") as raised:
            connect(options(f"{one},{other.replace('nats:', 'ws:')}"))
        assert len({str(each) for each in raised.value.failures}) == 2


def test_a_connection_that_breaks_before_the_answer_is_told() -> None:
    def gateway(peer: Peer) -> None:
        peer.expect(b"\r\n\r\n")
        peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with RST

    with scripted_server(gateway) as url, pytest.raises(NatsConnectionError) as raised:
        connect(options(url))
    assert "the handshake for a WebSocket failed: Connection reset by peer" in str(raised.value)
    assert not raised.value.may_pass(established=False)
    assert raised.value.may_pass(established=True)


UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (UPGRADE + b"Sec-WebSocket-Accept: bm90IHRoaXM=\r\n\r\n", "Bad accept token"),
        (UPGRADE + b"\r\n", "Bad accept token"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n", "Missing header"),
        (b"HTTP/1.1 nonsense\r\n\r\n", "Bad HTTP message"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000, "Bad HTTP message"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "what answers speaks no HTTP"),
        (b"SSH-2.0-OpenSSH\r\n", "what answers speaks no HTTP"),
        (b"", "the server closed the connection before it answered"),
        (b"HTTP/1.1 10", "the server closed the connection before it answered"),
    ],
)
def test_an_answer_that_is_none_is_told(answer: bytes, reason: str) -> None:
    error = refusal_of(answer)
    assert f"the handshake for a WebSocket failed: {reason}" in str(error)


def test_a_port_for_clients_is_told_from_one_for_websockets() -> None:
    def nats(peer: Peer) -> None:
        peer.let_in()

    with scripted_server(nats) as url, pytest.raises(NatsConnectionError, match="speaks NATS without a WebSocket"):
        connect(options(url))


def test_a_gateway_that_says_nothing_is_waited_for_as_long_as_is_said() -> None:
    error = refusal_of(b"HTTP/1.1 101 Swi", close=False)
    assert "did not answer the request for a WebSocket in 1 s" in str(error)


def test_who_speaks_nats_to_a_websocket_is_told_what_the_port_may_be() -> None:
    def gateway(peer: Peer) -> None:
        peer.expect(b"never")

    with (
        scripted_server(gateway) as url,
        pytest.raises(NatsConnectionError, match=r"or a WebSocket \(ws:// or wss://\)\?"),
    ):
        connect(options_for(url, connect_timeout=0.3))


def test_a_missing_package_is_named_at_once() -> None:
    script = (
        "import sys; sys.modules['wsproto'] = None\n"
        "from spark_nats.client import connect\n"
        "from spark_nats.options import connection_options\n"
        "try: connect(connection_options(servers='nats://127.0.0.1:1,ws://127.0.0.1:1'))\n"
        "except Exception as error: print(type(error).__name__, error.condition, error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.startswith("NatsError NATS_WEBSOCKET_NOT_INSTALLED ")
    assert "the extra 'websocket' of spark-nats; see Installing" in ran.stdout
    assert not NatsError(conditions.WEBSOCKET_NOT_INSTALLED()).may_pass(established=True)


# Frames


def accept(peer: Peer, *lines: bytes) -> None:
    """Make it a WebSocket."""
    asked = peer.expect(b"\r\n\r\n")
    (key,) = re.findall(rb"Sec-WebSocket-Key: (\S+)", asked)
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    peer.send(b"\r\n".join([UPGRADE + b"Sec-WebSocket-Accept: " + base64.b64encode(digest), *lines, b"", b""]))


def frame(payload: bytes, opcode: int = 2, final: bool = True, flags: int = 0) -> bytes:
    """A frame as a server sends it."""
    begin = bytes([final << 7 | flags << 4 | opcode])
    if len(payload) < 126:
        return begin + bytes([len(payload)]) + payload
    if len(payload) < 65536:
        return begin + b"\x7e" + len(payload).to_bytes(2, "big") + payload
    return begin + b"\x7f" + len(payload).to_bytes(8, "big") + payload


def let_in(peer: Peer, *lines: bytes) -> WSConnection:
    """The handshake of both protocols; what the client has sent is read by wsproto."""
    accept(peer, *lines)
    peer.send(frame(INFO))
    reader = WSConnection(ConnectionType.SERVER)
    reader.receive_data(
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    (request,) = reader.events()
    assert isinstance(request, Request)
    reader.send(AcceptConnection())
    said = b""
    while b"PING\r\n" not in said:
        for event in events_of(peer, reader):
            assert isinstance(event, BytesMessage)
            said += event.data
    peer.send(frame(b"PONG\r\n"))
    return reader


def events_of(peer: Peer, reader: WSConnection) -> list[Any]:
    """What comes next of the client."""
    data = peer.take_rest() or peer.connection.recv(65536)
    if not data:
        raise ConnectionError("closed")
    reader.receive_data(data)
    return list(reader.events())


def what_comes_of(sent: bytes, *lines: bytes) -> NatsError:
    """The error of a connection to which this is sent after the handshake."""

    def server(peer: Peer) -> None:
        events_of(peer, let_in(peer, *lines))  # the handshake is over when it subscribes
        peer.send(sent)
        peer.wait_for_close()

    with scripted_server(server) as url, connect(options(url)) as connection, pytest.raises(NatsError) as raised:
        connection.next(connection.subscribe("a"), 60)
    assert connection.closed
    return raised.value


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (frame(b"\x03\xe9Server Shutdown", 8), "the server has closed the WebSocket (1001, Server Shutdown)"),
        (frame(b"", 8), "the server has closed the WebSocket (1005)"),
        (frame(b"x", 8), "what it sends is no WebSocket: CLOSE with 1 byte payload"),
        (frame(b"PING\r\n", 1), "it sends text through the WebSocket, which NATS does not"),
        (frame(b"\xff\xff", 1), "what it sends is no WebSocket: 'utf-8' codec"),
        (frame(b"x" * 200, 9), "what it sends is no WebSocket: Control frame with payload len > 125"),
        (b"\x82\x7f" + b"\xff" * 8, "what it sends is no WebSocket: 8-byte payload length with non-zero MSB"),
        (frame(b"x", 0), "what it sends is no WebSocket: unexpected CONTINUATION"),
        (frame(b"x", flags=4), "what it sends is no WebSocket: Reserved bit set unexpectedly"),
        (frame(b"x", 5), "what it sends is no WebSocket: Invalid opcode 0x5"),
        (b"\x82\x81abcdx", "what it sends is no WebSocket: client received unexpected masked frame"),
        (b"PING\r\n", "what it sends is no WebSocket"),
    ],
)
def test_what_ends_a_websocket_is_told(sent: bytes, reason: str) -> None:
    error = what_comes_of(sent)
    assert type(error) is NatsConnectionError
    assert f"broke: {reason}" in str(error)


def test_garbage_in_a_compressed_frame_ends_the_connection() -> None:
    error = what_comes_of(frame(b"\xff\xff\xff", flags=4), b"Sec-WebSocket-Extensions: permessage-deflate")
    assert "broke: what it sends is no WebSocket: error in extension" in str(error)


@pytest.mark.parametrize("parts", [1, 4], ids=["one frame", "four"])
def test_a_compressed_message_unpacks_to_no_more_than_a_server_would_send(
    monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(websocket, "MAX_UNPACKED", 1 << 20)
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(b"+OK\r\n" * (1 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)[:-4]
    cuts = [packed[len(packed) * i // parts : len(packed) * (i + 1) // parts] for i in range(parts)]
    sent = b"".join(
        bytes([(0x80 if i == parts - 1 else 0) | (0x42 if i == 0 else 0), 126]) + len(cut).to_bytes(2, "big") + cut
        for i, cut in enumerate(cuts)
    )
    error = what_comes_of(sent, b"Sec-WebSocket-Extensions: permessage-deflate")
    assert "broke: it sends a message that unpacks to more than 1 MiB" in str(error)


def test_each_compressed_message_may_unpack_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_UNPACKED", 1 << 18)
    packer = zlib.compressobj(wbits=-15)
    packed = [packer.compress(b"+OK\r\n" * 40_000) + packer.flush(zlib.Z_SYNC_FLUSH)[:-4] for _ in range(4)]
    sent = b"".join(b"\xc2\x7e" + len(each).to_bytes(2, "big") + each for each in packed)
    error = what_comes_of(sent + frame(b"-ERR 'Stale Connection'\r\n"), b"Sec-WebSocket-Extensions: permessage-deflate")
    assert "Stale Connection" in str(error)


def test_an_error_that_comes_with_the_end_of_the_websocket_is_the_one_that_is_told() -> None:
    error = what_comes_of(frame(b"-ERR 'Maximum Connections Exceeded'\r\n") + frame(b"\x03\xf0x", 8))
    assert "Maximum Connections Exceeded" in str(error)


def test_what_is_in_the_frames_must_be_nats() -> None:
    assert isinstance(what_comes_of(frame(b"HTTP/1.1 200 OK\r\n")), ProtocolError)


def test_pings_of_the_websocket_are_answered_and_its_end_too() -> None:
    heard: list[Any] = []

    def server(peer: Peer) -> None:
        reader = let_in(peer)
        events_of(peer, reader)  # it subscribes
        peer.send(frame(b"one", 9) + frame(b"MSG a 1 5\r\nhe") + frame(b"two", 9) + frame(b"llo\r\n"))
        while not any(isinstance(event, CloseConnection) for event in heard):
            heard.extend(event for event in events_of(peer, reader) if not isinstance(event, BytesMessage))

    with scripted_server(server) as url:
        with connect(options(url)) as connection:
            received = connection.next(connection.subscribe("a"), 60)
        assert received is not None
        assert [received.payload_at(i) for i in range(len(received))] == [b"hello"]
    assert [event.payload for event in heard if isinstance(event, Pong)] == [b"one", b"two"]
    assert [int(event.code) for event in heard if isinstance(event, CloseConnection)] == [1000]


# Bytes to bytes


def opened(compressed: bool = False) -> tuple[WebSocketLayer, WSConnection]:
    """The two ends of a WebSocket: ours, and wsproto's of the server."""
    (server,) = parse_servers("ws://one")
    layer, other = WebSocketLayer(server, ()), WSConnection(ConnectionType.SERVER)
    assert not layer.continue_handshake()
    other.receive_data(layer.take_due())
    (request,) = other.events()
    assert isinstance(request, Request)
    layer.add_received(other.send(AcceptConnection(extensions=[PerMessageDeflate()] if compressed else [])))
    assert layer.continue_handshake()
    return layer, other


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Bytes that are cut at these places."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


places = st.lists(st.integers(0, 400), max_size=8)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
@given(said=st.binary(max_size=400), frames=places, chunks=st.lists(st.integers(0, 1200), max_size=12), data=st.data())
@settings(max_examples=75)
def test_however_bytes_are_cut_into_frames_and_chunks_the_same_bytes_come_out(
    compressed: bool, said: bytes, frames: list[int], chunks: list[int], data: st.DataObject
) -> None:
    layer, other = opened(compressed)
    wire, pings = b"", []
    for i, piece in enumerate(pieces(said, frames)):
        whole = data.draw(st.booleans()) or i == len(frames)
        wire += other.send(Message(data=piece, message_finished=whole))  # type: ignore[arg-type]
        if data.draw(st.booleans()):
            pings.append(b"%d" % i)
            wire += other.send(Ping(payload=pings[-1]))
    got = []
    for chunk in pieces(wire, chunks):
        layer.add_received(chunk)
        got.append(layer.decode_or_none_at_end())
    assert b"".join(piece or b"" for piece in got) == said
    other.receive_data(layer.take_due())
    assert [event.payload for event in other.events() if isinstance(event, Pong)] == pings
    layer.add_received(None)
    assert layer.decode_or_none_at_end() is None


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 125, 126, 127, 65535, 65536, 262_144])
def test_what_is_sent_is_a_frame_that_wsproto_reads(size: int) -> None:
    layer, other = opened(compressed=True)
    said = bytes(i * 7 % 251 for i in range(size))
    layer.encode_and_queue(memoryview(b"a" + said)[1:])
    layer.encode_and_queue(memoryview(b"next"))
    other.receive_data(layer.take_due())
    read = [event for event in other.events() if isinstance(event, BytesMessage)]
    assert b"".join(event.data for event in read) == said + b"next"
    assert sum(event.message_finished for event in read) == 2


def test_each_frame_is_masked_with_another_key() -> None:
    layer, _ = opened()
    for _ in range(3):
        layer.encode_and_queue(memoryview(bytes(16)))
    sent = layer.take_due()
    assert len({sent[i * 22 + 2 : i * 22 + 6] for i in range(3)}) == 3
