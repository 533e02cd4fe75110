"""A connection with TLS, nkeys and JWTs: what passes through it, and how it ends."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.client import ConnectionOptions, Credentials, TlsOptions, connect
from spark_nats.client.auth import parse_creds
from spark_nats.embedded import NatsServer
from spark_nats.errors import AuthorizationError, NatsConnectionError
from spark_nats.jetstream import JetStream, read_range
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.kinds.core.receiver import Receiver
from spark_nats.kinds.queries import parse_options
from tests.certificates import Certificates
from tests.connections import options_for, publisher_for, retries_for
from tests.integration.support import monitoring
from tests.nats_py import NatsPy, wait_until
from tests.operator_mode import Key, OperatorMode
from tests.servers import ServerFactory

CHUNK = 1 << 20


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def options(server: NatsServer, certificates: Certificates, **tls: bool) -> ConnectionOptions:
    return options_for(server.url, tls=TlsOptions(ca=certificates.ca.read_text(), **tls))


@pytest.mark.parametrize("first", [False, True], ids=["after INFO", "first"])
def test_messages_of_all_sizes_pass_through_tls_unharmed(
    server_factory: ServerFactory, certificates: Certificates, first: bool
) -> None:
    server = server_factory(certificates.config("127.0.0.1", f"handshake_first: {str(first).lower()}"))
    sizes = [0, 1, 16383, 16384, 16385, 500_000, *random.Random(5).choices(range(60_000), k=1000)]
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    with connect(options(server, certificates, handshake_first=first)) as connection:
        js = JetStream(connection)
        create_stream_if_missing(js, {"name": "S", "subjects": ["S.*"]})
        publisher = publisher_for(connection, "S")
        publisher.publish(pa.array(["S.x"] * len(payloads)), pa.array(payloads))
        publisher.wait_for_sent_rows()
        read = [
            payload.as_py()
            for messages, _ in read_range(js, "S", 1, len(payloads) + 1)
            for payload in messages.payloads()
        ]
    assert read == payloads

    def closed() -> list[dict[str, Any]]:
        return [one for one in monitoring(server, "connz?state=closed")["connections"] if one["name"] == "spark-nats"]

    (known,) = wait_until(closed, timeout=60)
    assert known["tls_version"] == "1.3"


def test_a_server_that_sends_while_it_is_sent_to_gets_through_tls(
    server_factory: ServerFactory, certificates: Certificates
) -> None:
    server = server_factory(certificates.config(), jetstream=False)
    count = 64
    wire = b"".join(b"PUB echo %d\r\n%b\r\n" % (CHUNK, bytes([i]) * CHUNK) for i in range(count))
    with connect(options(server, certificates)) as connection:
        subscription = connection.subscribe("echo")
        connection.send(wire)
        arrived = connection.unsubscribe_and_drain(subscription)
    payloads = [messages.payload_at(i) for messages in arrived for i in range(len(messages))]
    assert [(len(payload), payload[0]) for payload in payloads] == [(CHUNK, i) for i in range(count)]


def test_tls_that_a_server_requires_is_used_with_the_systems_trust(
    server_factory: ServerFactory, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_factory(certificates.config(), jetstream=False)
    unconfigured = options_for(server.url, credentials=Credentials(token="unused"))
    with pytest.raises(NatsConnectionError, match=r"cannot be verified for the name '127\.0\.0\.1': unable to get"):
        connect(unconfigured)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))  # where OpenSSL finds the system's
    with connect(unconfigured) as connection:
        connection.flush()
        assert only_one(server)["tls_version"] == "1.3"


def only_one(server: NatsServer) -> dict[str, Any]:
    """The connection that a server has, once it has noticed that those before it have ended."""
    (known,) = wait_until(lambda: found if len(found := monitoring(server, "connz")["connections"]) == 1 else None, 60)
    return dict(known)


def test_tls_that_a_server_only_offers_is_used_when_it_is_asked_for(
    server_factory: ServerFactory, certificates: Certificates
) -> None:
    server = server_factory(f"allow_non_tls: true\n{certificates.config()}", jetstream=False)
    asking = options(server, certificates)
    for asked, version in ((asking, "1.3"), (options_for(server.url), None)):
        with connect(asked):
            assert only_one(server).get("tls_version") == version


def test_another_server_of_the_cluster_that_is_named_is_verified_too(
    server_factory: ServerFactory, certificates: Certificates
) -> None:
    impostor = server_factory(Certificates(certificates.ca.parent / "other").config(), jetstream=False)
    server = server_factory(certificates.config(), jetstream=False)
    asked = options(server, certificates)
    with connect(options_for(f"{impostor.url},{server.url}", tls=asked.tls)) as connection:
        assert str(connection.server) == server.url


def test_an_expired_user_is_refused(server_factory: ServerFactory, tmp_path: Path) -> None:
    mode = OperatorMode()
    server = server_factory(mode.config)
    creds = mode.creds(tmp_path / "user.creds", exp=int(time.time()) - 60)
    login = parse_options({"servers": server.url, "credentialsFile": str(creds)}).connection
    with pytest.raises(AuthorizationError, match="refused the credentials: Authorization Violation$"):
        connect(login)


def revoke(server: NatsServer, mode: OperatorMode, user: Key, directory: Path) -> None:
    with NatsPy(server.url, user_credentials=str(mode.system_creds(directory / "system.creds"))) as system:
        system.publish(f"$SYS.ACCOUNT.{mode.account}.CLAIMS.UPDATE", mode.account_jwt(revoked=user).encode())


def test_a_revoked_user_is_told_the_servers_reason(server_factory: ServerFactory, tmp_path: Path) -> None:
    mode, user = OperatorMode(), Key()
    server = server_factory(mode.config)
    creds = mode.creds(tmp_path / "user.creds", user)
    login = parse_options({"servers": server.url, "credentialsFile": str(creds)}).connection
    with connect(login) as connection:
        nothing = connection.subscribe("nothing")
        revoke(server, mode, user, tmp_path)
        with pytest.raises(AuthorizationError, match="has ended the login: User Authentication Revoked$"):
            connection.next(nothing, 60.0)
    with pytest.raises(AuthorizationError, match="refused the credentials: Authorization Violation$") as raised:
        connect(login)
    for secret in (user.seed, str(parse_creds(creds.read_text()).jwt)):
        assert secret not in str(raised.value)


def test_core_nats_is_received_through_tls(server_factory: ServerFactory, certificates: Certificates) -> None:
    server = server_factory(certificates.config(), jetstream=False)
    asked = options(server, certificates)
    backlog = Backlog(64 * CHUNK)
    receiver = Receiver(asked, retries_for(), ["a.>"], None, backlog)
    with connect(asked) as connection:
        connection.send(b"PUB a.x 5\r\nhello\r\n" * 100_000)
        connection.flush()
    wait_until(lambda: backlog.end == 100_000, timeout=60)
    receiver.unsubscribe_drain_and_close()
    receiver.raise_if_ended()
    assert sum(piece.wire.count(b"\r\nhello\r\n") for piece in backlog.get_and_mark_taken(0, 100_000)) == 100_000


def test_who_is_not_let_in_any_more_ends_the_receiver(server_factory: ServerFactory, tmp_path: Path) -> None:
    mode, user = OperatorMode(), Key()
    server = server_factory(mode.config)
    creds = mode.creds(tmp_path / "user.creds", user)
    login = parse_options({"servers": server.url, "credentialsFile": str(creds)}).connection
    receiver = Receiver(login, retries_for(wait=0.02), ["a.>"], None, Backlog(CHUNK))
    revoke(server, mode, user, tmp_path)

    def refusal() -> str:
        try:
            receiver.raise_if_ended()
        except AuthorizationError as error:
            return str(error)
        return ""

    assert "refused the credentials: " in wait_until(refusal, timeout=60)
    receiver.unsubscribe_drain_and_close()
