"""Proxies: which one is used, what is said to it, and what it may answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.client import ConnectionOptions, connect, parse_servers
from spark_nats.client.proxy import ByProxy, Proxy, ProxyLayer, parse_proxy, websocket_proxy_of_environment
from spark_nats.errors import NatsConnectionError, NatsError, OptionError
from spark_nats.kinds.queries import parse_options
from spark_nats.options import connection_options
from tests.scripted_server import INFO, Peer, scripted_server

PASSWORD = "s3cret-of-the-proxy"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
GRANTED = b"\5\0\0\1\0\0\0\0\0\0"


def options(url: str, scheme: str = "http", **more: str) -> ConnectionOptions:
    proxy = url.replace("nats://", f"{scheme}://")
    limits = {"connectTimeout": "60s", "requestTimeout": "60s"}
    return connection_options(servers="nats://nats.example:4222", proxy=proxy, **limits, **more)


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# Which one


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://proxy", "http://proxy:80"),
        ("http://proxy:3128/", "http://proxy:3128"),
        ("socks5://[::1]", "socks5://[::1]:1080"),
        ("socks5h://proxy", "socks5h://proxy:1080"),
    ],
)
def test_the_url_of_a_proxy_is_read(text: str, shown: str) -> None:
    assert str(parse_proxy(text)) == shown


@pytest.mark.parametrize(
    "text", ["proxy:3128", "https://proxy", "http://", "http://u:s3cret@proxy:x", "socks4://p", ""]
)
def test_what_is_no_proxy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a proxy") as raised:
        parse_proxy(text)
    assert "s3cret" not in str(raised.value)


def test_the_options_of_a_proxy_keep_its_password_from_plans_and_errors() -> None:
    named = parse_options({"proxy": "http://proxy:3128", "proxyUser": "ann", "proxyPassword": PASSWORD}).connection
    assert named.reach.proxy == Proxy("http", "proxy", 3128, "ann", PASSWORD)
    assert PASSWORD not in repr(named)
    with pytest.raises(OptionError, match="has a user or password in its URL") as raised:
        parse_options({"proxy": f"http://ann:{PASSWORD}@proxy:3128"})
    assert PASSWORD not in str(raised.value)
    for missing in ({"proxyUser": "ann"}, {"proxy": "http://proxy", "proxyPassword": PASSWORD}):
        with pytest.raises(OptionError, match="needs"):
            parse_options(missing)


@pytest.mark.parametrize(
    ("environment", "url", "found"),
    [
        ({"HTTP_PROXY": "http://one:1"}, "ws://nats.example", "http://one:1"),
        ({"https_proxy": "http://one:1", "HTTP_PROXY": "http://two:2"}, "wss://nats.example", "http://one:1"),
        ({"ALL_PROXY": "socks5://one:1"}, "wss://nats.example", "socks5://one:1"),
        ({"HTTPS_PROXY": "one:1"}, "wss://nats.example", "http://one:1"),
        ({"HTTP_PROXY": "http://one:1"}, "wss://nats.example", "None"),
        ({"ALL_PROXY": "http://one:1", "NO_PROXY": "other,.example"}, "ws://nats.example", "None"),
        ({"ALL_PROXY": "http://one:1", "NO_PROXY": "nats.example:80"}, "ws://nats.example", "None"),
        ({"ALL_PROXY": "http://one:1", "NO_PROXY": "*"}, "ws://nats.example", "None"),
        ({"ALL_PROXY": "http://one:1"}, "ws://localhost", "None"),
        ({"ALL_PROXY": "http://one:1"}, "ws://127.0.0.1:80", "None"),
        ({"ALL_PROXY": "http://one:1", "HTTPS_PROXY": "http://one:1"}, "nats://nats.example", "None"),
        ({"ALL_PROXY": "http://one:1", "HTTPS_PROXY": "http://one:1"}, "tls://nats.example", "None"),
    ],
)
def test_the_environment_names_a_proxy_for_websockets_alone(
    environment: dict[str, str], url: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (server,) = parse_servers(url)
    assert str(websocket_proxy_of_environment(server)) == found


def test_a_proxy_of_the_environment_may_have_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://ann:{PASSWORD}@one:1")
    (server,) = parse_servers("wss://nats.example")
    found = websocket_proxy_of_environment(server)
    assert found == Proxy("http", "one", 1, "ann", PASSWORD)
    assert PASSWORD not in f"{found} {found!r}"


def test_an_environment_that_names_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", f"socks4://ann:{PASSWORD}@one:1")
    with pytest.raises(NatsConnectionError, match="the proxy of the environment cannot be used: is not the") as raised:
        connect(connection_options(servers="ws://nats.example"))
    assert PASSWORD not in str(raised.value)
    assert not raised.value.may_pass(established=False)


# What is said to it


def by_http(peer: Peer) -> list[str]:
    asked = peer.expect(b"\r\n\r\n").decode().splitlines()
    peer.send(ESTABLISHED + INFO)  # together: a nats-server speaks first
    return asked


def by_socks(peer: Peer) -> list[str]:
    assert peer.take(3) == b"\5\1\0"
    peer.send(b"\5\0")
    asked = peer.take(4 + 1 + len("nats.example") + 2)
    peer.send(GRANTED + INFO)
    return [asked[5:-2].decode(), str(int.from_bytes(asked[-2:], "big"))]


@pytest.mark.parametrize(
    ("scheme", "proxied", "said"),
    [
        ("http", by_http, ["CONNECT nats.example:4222 HTTP/1.1", "Host: nats.example:4222", ""]),
        ("socks5", by_socks, ["nats.example", "4222"]),
        ("socks5h", by_socks, ["nats.example", "4222"]),
    ],
)
def test_what_a_server_says_together_with_the_proxys_answer_is_not_lost(
    scheme: str, proxied: Callable[[Peer], list[str]], said: list[str]
) -> None:
    asked: list[str] = []

    def proxy(peer: Peer) -> None:
        asked.extend(proxied(peer))
        peer.let_in(b"")
        peer.expect(b"SUB a 1\r\n")
        peer.send(b"MSG a 1 5\r\nhello\r\n")
        peer.wait_for_close()

    with scripted_server(proxy) as url, connect(options(url, scheme)) as connection:
        received = connection.next(connection.subscribe("a"), 60)
        assert received is not None
        assert received.payload_at(0) == b"hello"
        assert str(connection.server) == "nats://nats.example:4222"
    assert asked == said


def test_an_http_proxy_is_told_user_and_password() -> None:
    asked: list[bytes] = []

    def proxy(peer: Peer) -> None:
        asked.append(peer.expect(b"\r\n\r\n"))

    with scripted_server(proxy) as url, pytest.raises(NatsConnectionError):
        connect(options(url, proxyUser="ann", proxyPassword="pä:ss"))
    login = base64.b64encode("ann:pä:ss".encode())
    assert b"\r\nProxy-Authorization: Basic " + login + b"\r\n" in asked[0]


def test_a_socks_proxy_is_told_user_and_password_if_it_asks() -> None:
    asked: list[bytes] = []

    def proxy(peer: Peer) -> None:
        asked.append(peer.take(4))
        peer.send(b"\5\2")
        asked.append(peer.take(2 + 3 + 1 + len(PASSWORD)))
        peer.send(b"\1\0")
        peer.take(10)
        peer.send(b"\5\0\0\3\4name\0\1" + INFO)
        peer.let_in(b"")

    with scripted_server(proxy) as url, connect(options(url, "socks5", proxyUser="ann", proxyPassword=PASSWORD)):
        pass
    assert asked == [b"\5\2\0\2", b"\1\3ann" + bytes([len(PASSWORD)]) + PASSWORD.encode()]


# What it answers


def refusal_of(answer: bytes, scheme: str = "http") -> NatsError:
    def proxy(peer: Peer) -> None:
        peer.take(3)
        peer.send(answer)
        peer.connection.settimeout(0.2)
        peer.wait_for_close()

    login = {"proxyUser": "ann", "proxyPassword": PASSWORD} if scheme == "http" else {}
    with scripted_server(proxy) as url, pytest.raises(NatsError) as raised:
        connect(options(url, scheme, **login))
    assert PASSWORD not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("scheme", "answer", "reason", "passes"),
    [
        ("http", b"HTTP/1.1 403 Forbidden\r\n\r\n", "does not connect to it: 403 Forbidden", False),
        (
            "http",
            b"HTTP/1.1 407 Not by " + PASSWORD.encode() + b"\r\n\r\n",
            "does not connect to it: 407 Not by …",
            False,
        ),
        ("http", b"HTTP/1.1 503 No server\r\nA: b\r\n\r\n", "does not connect to it: 503 No server", True),
        ("http", b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "does not connect to it: 502 Bad Gateway", True),
        ("http", b"HTTP/1.1 500 Broken\r\n\r\n", "does not connect to it: 500 Broken", False),
        ("http", b"HTTP/1.1 505 Old\r\n\r\n", "does not connect to it: 505 Old", False),
        ("http", b"HTTP/1.1 301 Moved\r\n\r\n", "does not connect to it: 301 Moved", False),
        ("http", b"HTTP/1.1 abc\r\n\r\n", "cannot be used: its answer is not HTTP", False),
        ("http", b"INFO {}\r\n", "cannot be used: its answer is not HTTP", False),
        ("http", b"HTTP/1.1 200 " + b"x" * 100_000, "cannot be used: its answer is not HTTP", False),
        ("http", b"HTTP/1.1 20", "cannot be used: it closed the connection", False),
        ("socks5", b"\5\xff", "does not connect to it: it wants a login", False),
        ("socks5", b"\5\0\5\2\0\1", "does not connect to it: not allowed by its rules", False),
        ("socks5", b"\5\0\5\5\0\1", "does not connect to it: connection refused", True),
        ("socks5", b"\5\0\5\7\0\1", "does not connect to it: command not supported", False),
        ("socks5", b"\5\0\5\x08\0\1", "does not connect to it: address type not supported", False),
        ("socks5", b"\5\0\5\x63\0\1", "does not connect to it: reply 99", False),
        ("socks5", b"HTTP/1.1 400 Bad Request\r\n\r\n", "cannot be used: its answer is not SOCKS5", False),
        ("socks5", b"\5\0HTTP", "cannot be used: its answer is not SOCKS5", False),
        ("socks5", b"\5", "cannot be used: it closed the connection", False),
    ],
)
def test_a_proxy_that_does_not_connect_is_told(scheme: str, answer: bytes, reason: str, passes: bool) -> None:
    error = refusal_of(answer, scheme)
    assert f": the proxy {scheme}://127.0.0.1:" in str(error)
    assert reason in str(error)
    assert error.may_pass(established=False) is passes


def test_a_socks_proxy_that_does_not_know_the_user_is_told() -> None:
    def proxy(peer: Peer) -> None:
        peer.take(4)
        peer.send(b"\5\2\1\1")
        peer.wait_for_close()

    login = {"proxyUser": "ann", "proxyPassword": PASSWORD}
    with scripted_server(proxy) as url, pytest.raises(NatsConnectionError, match="user and password are wrong"):
        connect(options(url, "socks5", **login))
    with scripted_server(proxy) as url, pytest.raises(NatsConnectionError, match="of more than 255 bytes"):
        connect(options(url, "socks5", proxyUser="ann", proxyPassword="x" * 256))


def test_a_proxy_that_is_away_is_told_from_a_server_that_is() -> None:
    with scripted_server(lambda peer: None) as url:
        pass
    with pytest.raises(
        NatsConnectionError, match=r"the proxy http://\S+ cannot be reached: Connection refused"
    ) as raised:
        connect(options(url))
    assert raised.value.may_pass(established=False)


def test_a_proxy_that_says_nothing_is_waited_for_as_long_as_is_said() -> None:
    with (
        scripted_server(lambda peer: peer.wait_for_close()) as url,
        pytest.raises(NatsConnectionError, match=r"the proxy http://\S+ did not connect to it in 0\.3 s") as raised,
    ):
        connect(connection_options(servers="nats://a", proxy=url.replace("nats", "http"), connectTimeout="300ms"))
    assert raised.value.may_pass(established=False)


@given(cuts=st.lists(st.integers(0, 80), max_size=10), said=st.binary(max_size=40), http=st.booleans())
@settings(max_examples=100)
def test_however_an_answer_is_cut_what_follows_it_stays_whole(cuts: list[int], said: bytes, http: bool) -> None:
    (server,) = parse_servers("nats://nats.example")
    layer = ProxyLayer(Proxy("http" if http else "socks5", "proxy", 1), server)
    wire = (ESTABLISHED if http else b"\5\0" + GRANTED) + said
    places = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    done, got = layer.continue_handshake(), b""
    for a, b in pairwise(places):
        layer.add_received(wire[a:b])
        done = done or layer.continue_handshake()
        if done:
            got += layer.decode_or_none_at_end() or b""
    assert done
    assert got == said


def test_a_context_goes_with_a_proxy(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "work.json"
    path.write_text(json.dumps({"url": "nats://one"}))
    reach = parse_options({"context": str(path), "proxy": "http://proxy:3128"}).connection.reach
    assert isinstance(reach, ByProxy)
    assert str(reach.proxy) == "http://proxy:3128"
