"""NATS through a WebSocket of the real server: everything that goes through a socket, and what is different."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_nats.client import connect
from spark_nats.embedded import NatsServer
from spark_nats.errors import NatsConnectionError
from spark_nats.jetstream import JetStream, read_range
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.kinds.queries import parse_options
from tests.certificates import Certificates
from tests.connections import options_for, publisher_for
from tests.integration.support import (
    collecting,
    monitoring,
    nats,
    numbered_rows,
    read,
    read_payloads,
    save,
    sentence_of,
    sequences_of,
    stream_reader,
    write,
)
from tests.nats_py import NatsPy, wait_until
from tests.needs import since
from tests.operator_mode import Key, OperatorMode
from tests.servers import ServerFactory, end, free_ports

Configured = tuple[str, str, dict[str, str]]
"""A block of a server's configuration, the URL that it serves, and options that trust it."""


def plain(directory: Path, *lines: str) -> Configured:
    (port,) = free_ports(1)
    inside = "\n".join((f'listen: "127.0.0.1:{port}"', "no_tls: true", *lines))
    return f"websocket {{ {inside} }}\n", f"ws://127.0.0.1:{port}", {}


def compressed(directory: Path) -> Configured:
    return plain(directory, "compression: true")


def encrypted(directory: Path) -> Configured:
    (port,) = free_ports(1)
    certificates = Certificates(directory)
    config = f'websocket {{ listen: "127.0.0.1:{port}"\n{certificates.config()} }}\n'
    return config, f"wss://127.0.0.1:{port}", {"tlsCaFile": str(certificates.ca)}


KINDS = [plain, compressed, encrypted]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_all_sizes_pass_through_a_websocket_unharmed(
    server_factory: ServerFactory, tmp_path: Path, kind: Callable[[Path], Configured]
) -> None:
    config, url, trust = kind(tmp_path)
    server_factory(config)
    sizes = [0, 1, 125, 126, 65_535, 65_536, 262_144, 1_000_000, *random.Random(5).choices(range(60_000), k=500)]
    payloads = [random.Random(size).randbytes(size // 2) + bytes(size - size // 2) for size in sizes]
    with connect(parse_options({"servers": f"{url}/some/path", **trust}).connection) as connection:
        assert connection.encrypted is (kind is encrypted)
        js = JetStream(connection)
        create_stream_if_missing(js, {"name": "S", "subjects": ["S.*"]})
        publisher = publisher_for(connection, "S")
        publisher.publish(pa.array(["S.x"] * len(payloads)), pa.array(payloads))
        publisher.wait_for_sent_rows()
        got = [
            payload.as_py()
            for messages, _ in read_range(js, "S", 1, len(payloads) + 1)
            for payload in messages.payloads()
        ]
    assert got == payloads


def test_a_server_that_sends_while_it_is_sent_to_gets_through_a_websocket(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    config, url, _ = plain(tmp_path)
    server_factory(config, jetstream=False)
    size, count = 1 << 20, 32
    wire = b"".join(b"PUB echo %d\r\n%b\r\n" % (size, bytes([i]) * size) for i in range(count))
    with connect(options_for(url)) as connection:
        subscription = connection.subscribe("echo")
        connection.send(wire)
        arrived = connection.unsubscribe_and_drain(subscription)
    payloads = [messages.payload_at(i) for messages in arrived for i in range(len(messages))]
    assert [(len(payload), payload[0]) for payload in payloads] == [(size, i) for i in range(count)]


def test_nats_py_reads_what_was_written_and_the_other_way_round(server_factory: ServerFactory, tmp_path: Path) -> None:
    config, url, _ = plain(tmp_path)
    server_factory(config)
    with NatsPy(url) as client:
        client.create_stream("S")
        write(url, numbered_rows("S.x", range(100)), stream="S")
        assert client.stored_numbers("S") == list(range(100))
        client.store("S.y", range(100, 200))
    assert [int(payload) for payload in read_payloads(url, stream="S")] == list(range(200))


Login = tuple[str, dict[str, str], dict[str, str]]
"""A block of a server's configuration, options that log in to it, and some that do not."""


def token(directory: Path) -> Login:
    return 'authorization { token: "t0ps3cret" }', {"token": "t0ps3cret"}, {"token": "wr0ngone"}


def user(directory: Path) -> Login:
    config = 'authorization { user: ann, password: "annsOwn" }'
    return config, {"user": "ann", "password": "annsOwn"}, {"user": "ann", "password": "bobsOwn"}


def nkey(directory: Path) -> Login:
    key = Key()
    return (
        f"authorization {{ users: [ {{nkey: {key.public}}} ] }}",
        {"nkeySeedSecret": key.seed},
        {"nkeySeedSecret": Key().seed},
    )


def creds(directory: Path) -> Login:
    mode, other = OperatorMode(), OperatorMode()
    right, wrong = mode.creds(directory / "right.creds"), other.creds(directory / "wrong.creds")
    return mode.config, {"credentialsFile": str(right)}, {"credentialsFile": str(wrong)}


@pytest.mark.parametrize("kind", [plain, encrypted])
@pytest.mark.parametrize("login", [token, user, nkey, creds])
def test_every_login_works_through_a_websocket(
    server_factory: ServerFactory, tmp_path: Path, kind: Callable[[Path], Configured], login: Callable[[Path], Login]
) -> None:
    config, url, trust = kind(tmp_path)
    users, right, wrong = login(tmp_path)
    server_factory(config + users)
    stream = {"stream": "S", "createStream": '{"subjects": ["S.>"]}'}
    write(url, numbered_rows("S.x", range(10)), **stream, **trust, **right)
    assert sequences_of(read(url, stream="S", **trust, **right)) == list(range(1, 11))
    refusal = sentence_of(lambda: read(url, stream="S", **trust, **wrong))
    assert f"{url} refused the credentials: Authorization Violation" in refusal


@since(2, 11)
def test_a_cookie_of_the_request_may_be_the_login(server_factory: ServerFactory, tmp_path: Path) -> None:
    config, url, _ = plain(tmp_path, 'user_cookie: "u"', 'pass_cookie: "p"')
    server_factory(config + 'authorization { user: ann, password: "annsOwn" }', jetstream=False)
    headers = json.dumps({"Cookie": "u=ann; p=annsOwn"})
    with connect(parse_options({"servers": url, "websocketHeadersSecret": headers}).connection) as connection:
        connection.flush()


def test_a_certificate_of_another_authority_is_refused_before_http(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    config, url, _ = encrypted(tmp_path)
    server_factory(config, jetstream=False)
    strange = {"tlsCaFile": str(Certificates(tmp_path / "other").ca)}
    refusal = sentence_of(lambda: read(url, stream="S", **strange))
    assert "certificate cannot be verified for the name '127.0.0.1'" in refusal


@pytest.mark.parametrize("has_one", [True, False])
def test_a_certificate_of_the_client_that_is_refused_ends_a_query_at_once(
    server_factory: ServerFactory, tmp_path: Path, has_one: bool
) -> None:
    (port,) = free_ports(1)
    own = Certificates(tmp_path)
    server_factory(f'websocket {{ listen: "127.0.0.1:{port}"\n{own.config("127.0.0.1", "verify: true")} }}')
    url, trust = f"wss://127.0.0.1:{port}", {"tlsCaFile": str(own.ca)}
    refused = Certificates(tmp_path / "other").client("ann") if has_one else {}
    refusal = sentence_of(lambda: stream_reader(url, stream="S", **trust, **refused).initialOffset())
    assert f"{url} refused the client's certificate: " in refusal
    assert "check the options 'tlsCertFile' and 'tlsKeyFile'" in refusal
    with connect(parse_options({"servers": url, **trust, **own.client("bob")}).connection) as connection:
        connection.flush()


def test_the_servers_own_tls_is_not_that_of_its_websocket(server_factory: ServerFactory, tmp_path: Path) -> None:
    config, url, _ = plain(tmp_path)
    server_factory(Certificates(tmp_path).config() + config, jetstream=False)
    with connect(options_for(url)) as connection:
        connection.flush()
        assert not connection.encrypted


@pytest.mark.parametrize("kind", [plain, encrypted])
def test_tls_where_there_is_none_and_none_where_there_is_are_told(
    server_factory: ServerFactory, tmp_path: Path, kind: Callable[[Path], Configured]
) -> None:
    config, url, _ = kind(tmp_path)
    server_factory(config, jetstream=False)
    other = url.replace("wss:", "ws:") if kind is encrypted else url.replace("ws:", "wss:")
    wanted = "Client sent an HTTP request to an HTTPS server" if kind is encrypted else "the TLS handshake failed: "
    refusal = sentence_of(lambda: read(other, stream="S"))
    assert wanted in refusal
    assert "check the option 'servers' (ws:// or wss://, port and path)" in refusal


def test_servers_that_are_announced_are_reached_through_their_websockets(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    ports = free_ports(4)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[:2])
    servers = []
    for i in (0, 1):
        cluster = f'cluster {{ name: C, listen: "127.0.0.1:{ports[i]}", routes: [{routes}] }}\n'
        websocket = f'websocket {{ listen: "127.0.0.1:{ports[2 + i]}", no_tls: true }}\n'
        servers.append(server_factory(f"server_name: n{i}\n{cluster}{websocket}", jetstream=False))
    wait_until(lambda: monitoring(servers[0], "routez")["routes"])
    named = parse_options({"servers": f"ws://127.0.0.1:{ports[2]}/a", "discoverServers": "true"}).connection

    def announced() -> bool:
        with connect(named) as connection:
            connection.flush()
            return len(connection.info.connect_urls) == 2

    wait_until(announced)
    servers[0].kill()
    with connect(named) as connection:
        assert str(connection.server) == f"ws://127.0.0.1:{ports[3]}/a"
        connection.flush()


def test_what_is_not_reached_through_a_websocket_is_reached_through_a_socket(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory(jetstream=False)
    (port,) = free_ports(1)
    for _ in range(4):
        with connect(options_for(f"ws://127.0.0.1:{port},{server.url}")) as connection:
            connection.flush()


def test_a_server_that_stops_says_so_through_the_websocket(server_factory: ServerFactory, tmp_path: Path) -> None:
    config, url, _ = plain(tmp_path)
    server = server_factory(config, jetstream=False)
    with connect(options_for(url)) as connection:
        subscription = connection.subscribe("a")
        end(server)
        with pytest.raises(NatsConnectionError, match=r"closed the WebSocket \(1001, Server Shutdown\)"):
            connection.next(subscription, 60)


def restart(server: NatsServer) -> None:
    server.kill()
    server.start()


@pytest.mark.long("spark_nats/client/websocket.py")
def test_spark_reads_and_writes_through_a_websocket_also_when_the_server_is_restarted(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path, unique: str
) -> None:
    config, url, trust = encrypted(tmp_path)
    server = server_factory(config, store_dir=tmp_path / "store")
    options = {"servers": url, "stream": "S", "reconnectWait": "100ms", **trust}
    rows = spark.range(1000).selectExpr("'S.x' AS subject", "CAST(id AS STRING) AS payload")
    save(rows, server, **options, createStream='{"subjects": ["S.>"]}')
    batch = nats(spark.read, server, **options).load()
    assert sorted(int(row.payload) for row in batch.select("payload").collect()) == list(range(1000))
    stream = nats(spark.readStream, server, **options, startingOffsets="earliest").load()
    with collecting(stream.selectExpr("CAST(payload AS STRING) AS payload"), unique) as (query, seen):
        query.processAllAvailable()
        restart(server)
        save(rows, server, **options)
        wait_until(lambda: len(seen()) >= 2000)
        query.processAllAvailable()
        assert sorted(int(row.payload) for row in seen()) == sorted([*range(1000), *range(1000)])
