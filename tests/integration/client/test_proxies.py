"""NATS through proxies: proxy.py, which speaks HTTP, and a small one for SOCKS5."""

from __future__ import annotations

import functools
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_nats.client import connect
from spark_nats.kinds.queries import parse_options
from tests.certificates import Certificates
from tests.integration.support import monitoring, nats, numbered_rows, read, save, sentence_of, sequences_of, write
from tests.nats_py import succeeds, wait_until
from tests.servers import ServerFactory, free_ports

LOGIN = {"proxyUser": "ann", "proxyPassword": "annsOwn"}


@contextmanager
def http_proxy(*arguments: str) -> Iterator[str]:
    """Run proxy.py; yields its URL."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", str(port), "--num-workers", "1"]
    process = subprocess.Popen([*command, "--log-level", "ERROR", *arguments], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: succeeds(lambda: socket.create_connection(("127.0.0.1", port)).close()))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def http_proxy_with_login() -> Iterator[str]:
    with http_proxy("--basic-auth", "ann:annsOwn") as url:
        yield url


@contextmanager
def socks_proxy(with_login: bool = False) -> Iterator[str]:
    """Serve SOCKS5, as RFC 1928 and RFC 1929 have it; names that it does not know are those of this machine."""

    def take(client: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = client.recv(size - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

    def pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            ways = take(client, take(client, 2)[1])
            if with_login:
                if 2 not in ways:
                    client.sendall(b"\5\xff")
                    return
                client.sendall(b"\5\2")
                user = take(client, take(client, 2)[1])
                password = take(client, take(client, 1)[0])
                client.sendall(b"\1" + bytes([(user, password) != (b"ann", b"annsOwn")]))
                if (user, password) != (b"ann", b"annsOwn"):
                    return
            else:
                client.sendall(b"\5\0")
            kind = take(client, 4)[3]
            if kind == 1:
                host = socket.inet_ntoa(take(client, 4))
            else:
                assert kind == 3
                take(client, take(client, 1)[0])
                host = "127.0.0.1"
            port = int.from_bytes(take(client, 2), "big")
            try:
                server = socket.create_connection((host, port), 10)
            except OSError:
                client.sendall(b"\5\5\0\1\0\0\0\0\0\0")
                return
            with server:
                client.sendall(b"\5\0\0\1\x7f\0\0\1\0\1")
                back = threading.Thread(target=pump, args=(server, client), daemon=True)
                back.start()
                pump(client, server)
                back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"socks5://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def socks_proxy_with_login() -> Iterator[str]:
    with socks_proxy(with_login=True) as url:
        yield url


Kind = Callable[[], AbstractContextManager[str]]
UrlOf = Callable[[Kind], str]


@pytest.fixture(scope="module")
def url_of() -> Iterator[UrlOf]:
    """Where a kind of proxy runs, which is started for the first test that asks for it."""
    with ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(kind()))


@pytest.mark.parametrize("proxy", [http_proxy, http_proxy_with_login, socks_proxy, socks_proxy_with_login])
def test_streams_are_written_and_read_through_a_proxy(
    server_factory: ServerFactory, url_of: UrlOf, proxy: Kind
) -> None:
    server = server_factory()
    options = {"proxy": url_of(proxy), "stream": "S", **LOGIN}
    write(server, numbered_rows("S.x", range(20_000)), createStream='{"subjects": ["S.>"]}', **options)
    assert sequences_of(read(server, **options)) == list(range(1, 20_001))


@pytest.mark.parametrize("proxy", [http_proxy, socks_proxy])
@pytest.mark.parametrize("scheme", ["nats", "tls", "ws", "wss"])
def test_every_kind_of_server_is_reached_through_a_proxy(
    server_factory: ServerFactory, tmp_path: Path, url_of: UrlOf, proxy: Kind, scheme: str
) -> None:
    (port,) = free_ports(1)
    certificates = Certificates(tmp_path)
    tls = certificates.config() if scheme in ("tls", "wss") else ""
    websocket = f'websocket {{ listen: "127.0.0.1:{port}"\n{tls or "no_tls: true"} }}'
    server = server_factory(tls if scheme == "tls" else websocket, jetstream=False)
    servers = f"{scheme}://127.0.0.1:{port if scheme.startswith('ws') else server.port}"
    trust = {"tlsCaFile": str(certificates.ca)} if tls else {}
    with connect(parse_options({"servers": servers, "proxy": url_of(proxy), **trust}).connection) as connection:
        connection.flush()
        assert connection.encrypted is bool(tls)
        (known,) = monitoring(server, "connz")["connections"]
        assert known["name"] == "spark-nats"


def test_a_name_is_looked_up_by_the_proxy(server_factory: ServerFactory) -> None:
    server = server_factory(jetstream=False)
    servers = f"nats://known-to-the-proxy.invalid:{server.port}"
    with socks_proxy() as url, connect(parse_options({"servers": servers, "proxy": url}).connection) as connection:
        connection.flush()


def test_the_environment_is_followed_by_websockets(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    server_factory(f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}', jetstream=False)
    servers = f"ws://known-to-the-proxy.invalid:{port}"
    with socks_proxy(with_login=True) as url:
        monkeypatch.setenv("ALL_PROXY", url.replace("//", "//ann:annsOwn@"))
        with connect(parse_options({"servers": servers}).connection) as connection:
            connection.flush()


@pytest.mark.parametrize(
    ("proxy", "login", "reason"),
    [
        (http_proxy_with_login, {}, "407 Proxy Authentication Required"),
        (http_proxy_with_login, {"proxyUser": "ann", "proxyPassword": "bobsOwn"}, "407 Proxy Authentication Required"),
        (socks_proxy_with_login, {}, "it wants a login"),
        (socks_proxy_with_login, {"proxyUser": "ann", "proxyPassword": "bobsOwn"}, "user and password are wrong"),
    ],
)
def test_a_proxy_that_lets_nobody_through_is_told_at_once(
    server_factory: ServerFactory, url_of: UrlOf, proxy: Kind, login: dict[str, str], reason: str
) -> None:
    server = server_factory(jetstream=False)
    url = url_of(proxy)
    refusal = sentence_of(lambda: read(server, stream="S", proxy=url, **login))
    assert f"the proxy {url} does not connect to it: {reason}" in refusal
    assert "check the options 'proxy', 'proxyUser' and 'proxyPassword'" in refusal
    assert "bobsOwn" not in refusal


def test_a_server_that_is_away_behind_the_proxy_is_told() -> None:
    with socket.socket() as nobody, socks_proxy() as url:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        server = f"nats://127.0.0.1:{nobody.getsockname()[1]}"
        refusal = sentence_of(lambda: read(server, proxy=url, stream="S", retryTimeout="0s"))
    assert f"the proxy {url} does not connect to it: connection refused" in refusal


@pytest.mark.long("spark_nats/client/proxy.py")
def test_spark_reads_and_writes_through_a_proxy(spark: SparkSession, server_factory: ServerFactory) -> None:
    server = server_factory()
    with http_proxy_with_login() as url:
        options = {"proxy": url, "stream": "S", **LOGIN}
        rows = spark.range(100).selectExpr("'S.x' AS subject", "CAST(id AS STRING) AS payload")
        save(rows, server, **options, createStream='{"subjects": ["S.>"]}')
        batch = nats(spark.read, server, **options).load()
        assert sorted(int(row.payload) for row in batch.select("payload").collect()) == list(range(100))
