"""The connection against servers that a real one cannot be made to be."""

import errno
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import trustme

from spark_nats import clock
from spark_nats.client import Credentials, TlsOptions, borrow, choosing, connect, parse_servers
from spark_nats.client.host_cache import FACT_TTL
from spark_nats.client.pool import leased
from spark_nats.conditions import Topic
from spark_nats.errors import (
    AuthorizationError,
    NatsConnectionError,
    NatsTimeoutError,
    NoRespondersError,
    PermissionsError,
    ProtocolError,
    ServerError,
)
from tests.connections import options_for, retries_for
from tests.nats_py import wait_until
from tests.scripted_server import INFO, scripted_server


@pytest.fixture(autouse=True)
def nothing_known(tmp_path, monkeypatch):
    """Know nothing of servers that had the same ports before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def options(url, **changes):
    values = {"connect_timeout": 60.0, "request_timeout": 60.0}
    return options_for(url, **{**values, **changes})


def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def hello_of(options_for):
    """The CONNECT document that a client with these options sends."""
    seen = []

    def script(peer):
        seen.append(peer.let_in())
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options_for(url)):
        pass
    line = seen[0].partition(b"\r\n")[0]
    assert line.startswith(b"CONNECT ")
    return json.loads(line[8:])


def test_connect_says_who_we_are_and_what_we_understand():
    hello = hello_of(lambda url: options(url, name="me"))
    assert hello["name"] == "me"
    assert (hello["verbose"], hello["pedantic"], hello["headers"], hello["no_responders"]) == (False, False, True, True)
    assert hello["protocol"] == 1
    assert "user" not in hello
    assert "auth_token" not in hello


def test_credentials_come_from_the_options():
    hello = hello_of(lambda url: options(url, credentials=Credentials(user="u", password="p")))
    assert (hello["user"], hello["pass"]) == ("u", "p")
    assert hello_of(lambda url: options(url, credentials=Credentials(token="t")))["auth_token"] == "t"


def test_credentials_in_a_url_stand_above_the_options():
    hello = hello_of(
        lambda url: options(
            url.replace("nats://", "nats://me:s%3Acret@"), credentials=Credentials(user="u", password="p")
        )
    )
    assert (hello["user"], hello["pass"]) == ("me", "s:cret")
    assert hello_of(lambda url: options(url.replace("nats://", "nats://tok@")))["auth_token"] == "tok"


def test_all_addresses_of_a_server_have_the_time_of_one(monkeypatch):
    asked = []

    def addresses(*_, **__):
        for i in range(3):
            asked.append(i)
            yield socket.AF_INET, socket.SOCK_STREAM, 0, "", busy.getsockname()

    with socket.create_server(("127.0.0.1", 0), backlog=0) as busy, socket.create_connection(busy.getsockname()):
        monkeypatch.setattr(socket, "getaddrinfo", addresses)  # from here on nothing is accepted there
        with pytest.raises(NatsConnectionError, match="timed out"):
            connect(options("nats://somewhere", connect_timeout=0.2))
    assert asked in ([0], [0, 1])


def test_an_address_of_a_family_that_the_system_has_not_is_passed_over(monkeypatch):
    with scripted_server(welcome) as url:
        port = int(url.rsplit(":", 1)[1])
        found = [(socket.AF_INET6, ("::1", port, 0, 0)), (socket.AF_INET, ("127.0.0.1", port))]
        resolved = [(family, socket.SOCK_STREAM, 0, "", address) for family, address in found]
        ipv4 = socket.socket

        def without_ipv6(*how, **more):
            if how[:1] == (socket.AF_INET6,):
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            return ipv4(*how, **more)

        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
        monkeypatch.setattr(socket, "socket", without_ipv6)
        connect(options("nats://somewhere")).close()


def welcome(peer):
    peer.let_in()
    peer.wait_for_close()


def test_a_certificate_that_cannot_be_used_is_what_to_look_at_and_not_the_servers():
    def script(peer):
        peer.send(INFO.replace(b'"proto"', b'"tls_required":true,"proto"'))
        peer.wait_for_close()

    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="are not in PEM") as raised:
        connect(options(url, tls=TlsOptions(ca="no certificate")))
    assert raised.value.topics == (Topic.TRUST,)


def test_servers_are_tried_until_one_lets_us_in():
    with scripted_server(welcome) as url, connect(options(f"nats://127.0.0.1:{unused_port()},{url}")) as connection:
        assert str(connection.server) == url


def test_servers_are_tried_in_random_order():
    with scripted_server(welcome) as one, scripted_server(welcome) as other:
        seen = set()
        for _ in range(100):
            connection = connect(options(f"{one},{other}"))
            connection.close()
            seen.add(str(connection.server))
    assert seen == {one, other}


def test_a_server_that_says_nothing_is_waited_for_once_and_then_tried_last():
    visits = []

    def silent(peer):
        visits.append(peer)
        peer.wait_for_close()

    with scripted_server(silent) as dead, scripted_server(welcome) as alive:
        for visit in (1, 2):  # the second one since there is no other
            with pytest.raises(NatsConnectionError, match="sent no INFO"):
                connect(options(dead, connect_timeout=0.2))
            for _ in range(15):
                with connect(options(f"{dead},{alive}")) as connection:
                    assert str(connection.server) == alive
            assert len(visits) == visit


def test_a_server_that_says_nothing_is_waited_for_once_by_all_processes_of_a_machine():
    visits = []

    def silent(peer):
        visits.append(peer)
        peer.wait_for_close()

    script = """
import sys
from spark_nats.client import connect
from spark_nats.options import connection_options
for _ in range(10):
    connect(connection_options(servers=sys.argv[1], connectTimeout="60s")).close()
"""
    with scripted_server(silent) as dead, scripted_server(welcome) as alive:
        with pytest.raises(NatsConnectionError, match="sent no INFO"):
            connect(options(dead, connect_timeout=0.2))
        subprocess.run([sys.executable, "-c", script, f"{dead},{alive}"], check=True, timeout=60)
    assert len(visits) == 1


def test_a_server_that_answers_again_is_tried_as_before():
    def script(peer):
        if awake:
            welcome(peer)
        else:
            peer.wait_for_close()

    awake = False
    with scripted_server(script) as one, scripted_server(welcome) as other:
        with pytest.raises(NatsConnectionError):
            connect(options(one, connect_timeout=0.2))
        awake = True
        connect(options(one)).close()
        assert {str(entered(f"{one},{other}").server) for _ in range(100)} == {one, other}


def entered(urls, **changes):
    """A connection, closed again."""
    with connect(options(urls, **changes)) as connection:
        return connection


def test_the_server_to_which_a_connection_was_lost_comes_last():
    with scripted_server(welcome) as one, scripted_server(welcome) as other:
        several = options(f"{one},{other}")
        lost = next(server for server in several.servers if str(server) == one)
        for _ in range(30):
            with connect(several, lost) as connection:
                assert str(connection.server) == other


def test_idle_connections_to_a_server_that_answers_no_more_are_waited_for_once():
    asked = []

    def stops(peer):
        peer.let_in()
        while True:
            peer.expect(b"PING\r\n")
            asked.append(peer)

    with scripted_server(stops) as url:
        several = options(url, connect_timeout=1.0)
        with borrow(several), borrow(several), borrow(several):
            pass
        with borrow(several) as connection:
            assert not connection.closed
    assert len(asked) == 1


def shutting_down(peer):
    peer.let_in()
    while True:
        peer.expect(b"PING\r\n")
        peer.send(INFO.replace(b'"proto"', b'"ldm":true,"proto"') + INFO + b"PONG\r\n")


def test_a_server_that_is_about_to_shut_down_is_left_when_the_work_is_done(caplog):
    with scripted_server(shutting_down) as old, scripted_server(welcome) as new:
        both = options(f"{old},{new}")
        with borrow(options(old)) as connection:
            assert not connection.lame_duck
            connection.flush()
            assert connection.lame_duck
            connection.flush()
            assert not connection.closed
        assert connection.closed
        for _ in range(10):
            with connect(both) as elsewhere:
                assert str(elsewhere.server) == new
    assert caplog.messages == [f"[NATS_LAME_DUCK] {old} is shutting down (lame duck mode)"]


def test_an_idle_connection_whose_server_is_about_to_shut_down_is_not_lent():
    with scripted_server(shutting_down) as url:
        with borrow(options(url)) as first:
            pass
        assert not first.closed
        with borrow(options(url)) as second:
            assert second is not first
        assert first.closed


def test_when_no_server_can_be_reached_each_is_named_with_its_reason():
    def silent(peer):
        peer.wait_for_close()

    port = unused_port()
    with (
        scripted_server(silent) as url,
        pytest.raises(NatsConnectionError) as raised,
    ):
        connect(options(f"nats://u:secret@127.0.0.1:{port},{url}", connect_timeout=0.2))
    text = str(raised.value)
    assert f"nats://127.0.0.1:{port}: Connection refused" in text
    assert (
        f"{url}: accepted the connection but sent no INFO in 0.2 s; the server may hang or be overloaded; else, is "
        in text
    )
    assert "secret" not in text


def test_a_server_that_never_answers_connect_is_given_up():
    def script(peer):
        peer.send(INFO)
        peer.wait_for_close()

    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="did not answer CONNECT in 1 s"):
        connect(options(url, connect_timeout=1.0))


def test_a_server_that_requires_tls_is_sent_nothing_in_the_clear():
    seen = []

    def script(peer):
        peer.send(INFO.replace(b'"proto"', b'"tls_required":true,"proto"'))
        seen.append(peer.connection.recv(10000))

    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="the TLS handshake failed"):
        connect(options(url, credentials=Credentials(token="t0ken")))
    assert seen[0].startswith(b"\x16\x03")  # a handshake record
    assert b"t0ken" not in seen[0]


@pytest.mark.parametrize(
    ("scheme", "tls"),
    [("tls", None), ("nats", TlsOptions(server_name="localhost")), ("nats", TlsOptions(ca="irrelevant"))],
)
def test_a_server_without_the_tls_that_was_asked_for_is_sent_nothing_at_all(scheme, tls):
    seen = []

    def script(peer):
        peer.send(INFO)
        seen.append(peer.connection.recv(10000))

    with (
        scripted_server(script) as url,
        pytest.raises(NatsConnectionError, match="does not offer TLS, but TLS is required"),
    ):
        connect(options(url.replace("nats", scheme), tls=tls, credentials=Credentials(token="t0ken")))
    assert seen == [b""]


def test_a_tls_handshake_without_end_is_given_up():
    def script(peer):
        peer.send(INFO.replace(b'"proto"', b'"tls_required":true,"proto"'))
        peer.wait_for_close()

    with (
        scripted_server(script) as url,
        pytest.raises(NatsConnectionError, match="the TLS handshake was not done in 1 s"),
    ):
        connect(options(url, connect_timeout=1.0))


def test_a_name_that_no_certificate_can_have_is_said():
    def script(peer):
        peer.send(INFO.replace(b'"proto"', b'"tls_required":true,"proto"'))
        peer.wait_for_close()

    tls = TlsOptions(server_name=".example.com")
    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="be for the name '.example.com'"):
        connect(options(url, tls=tls))


@pytest.fixture
def encrypt(tmp_path):
    """Have a peer ask for TLS and begin it; `encrypt.options` are those of a client that trusts it."""
    authority = trustme.CA()
    certificate = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def begin(peer, behind_info=b"", greeting=INFO):
        """Returns the socket below, on which bytes go out as they are."""
        peer.send(greeting.replace(b'"proto"', b'"tls_required":true,"proto"') + behind_info)
        below = peer.connection.dup()
        peer.connection = context.wrap_socket(peer.connection, server_side=True)
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        return below

    begin.context = context
    begin.options = TlsOptions(ca=authority.cert_pem.bytes().decode())
    return begin


def test_what_comes_in_the_clear_before_tls_is_not_believed(encrypt):
    def script(peer):
        encrypt(peer, b"MSG a 1 9\r\ninjec")
        peer.expect(b"SUB a 1\r\n")
        peer.send(b"MSG a 1 4\r\ntrue\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url, tls=encrypt.options)) as connection:
        messages = connection.next(connection.subscribe("a"), 60)
        assert messages.payload_at(0) == b"true"


def test_an_answer_in_the_clear_is_not_the_servers(encrypt):
    def script(peer):
        peer.send(INFO.replace(b'"proto"', b'"tls_required":true,"proto"') + b"PONG\r\n" * 3)
        peer.connection = encrypt.context.wrap_socket(peer.connection, server_side=True)
        peer.wait_for_close()

    with (
        scripted_server(script) as url,
        pytest.raises(NatsConnectionError, match="did not answer CONNECT in 1 s"),
    ):
        connect(options(url, tls=encrypt.options, connect_timeout=1.0))


@pytest.mark.parametrize(
    "altered", [b"MSG a 1 4\r\ntrue\r\n", b"\x17\x03\x03\x00\x20" + b"x" * 32, b"\x17\x03\x03\xff\xff"]
)
def test_bytes_that_the_server_did_not_encrypt_end_the_connection(encrypt, altered):
    def script(peer):
        with encrypt(peer) as below:
            peer.expect(b"SUB a 1\r\n")
            peer.send(b"MSG a 1 4\r\ntrue\r\n")
            below.sendall(altered)
            peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url, tls=encrypt.options)) as connection:
        subscription = connection.subscribe("a")
        assert connection.next(subscription, 60).payload_at(0) == b"true"
        with pytest.raises(NatsConnectionError, match=r"the connection to .* broke: \[SSL"):
            connection.next(subscription, 60)
        assert connection.closed


@pytest.mark.parametrize("properly", [True, False], ids=["with TLS's goodbye", "without"])
def test_a_server_that_says_why_it_closes_is_heard_through_tls(encrypt, properly):
    def script(peer):
        with encrypt(peer) as below:
            peer.expect(b"SUB a 1\r\n")
            peer.send(b"-ERR 'Stale Connection'\r\n")
            if properly:
                peer.connection.unwrap()
            else:
                below.shutdown(socket.SHUT_RDWR)

    with (
        scripted_server(script) as url,
        connect(options(url, tls=encrypt.options)) as connection,
        pytest.raises(ServerError, match="Stale Connection"),
    ):
        connection.next(connection.subscribe("a"), 60)


@pytest.mark.parametrize("properly", [True, False], ids=["with TLS's goodbye", "without"])
def test_a_server_that_closes_is_noticed_through_tls(encrypt, properly):
    def script(peer):
        with encrypt(peer) as below:
            peer.expect(b"SUB a 1\r\n")
            if properly:
                peer.connection.unwrap()  # the connection below stays open until the client leaves
            else:
                below.shutdown(socket.SHUT_RDWR)

    with (
        scripted_server(script) as url,
        connect(options(url, tls=encrypt.options)) as connection,
        pytest.raises(NatsConnectionError, match="closed the connection"),
    ):
        connection.next(connection.subscribe("a"), 60)


def test_a_server_that_closes_after_tls_first_is_not_asked_for_tls_first_again(encrypt):
    def script(peer):
        encrypt.context.wrap_socket(peer.connection, server_side=True).unwrap()

    first = TlsOptions(ca=encrypt.options.ca, handshake_first=True)
    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="closed the connection") as raised:
        connect(options(url, tls=first))
    assert Topic.TLS_FIRST not in raised.value.topics


def test_a_client_whose_certificate_is_refused_in_the_handshake_is_told_so(encrypt):
    """As in TLS 1.2; in 1.3 the handshake is over when the client learns of it."""

    def script(peer):
        peer.send(INFO.replace(b'"proto"', b'"tls_required":true,"proto"'))
        encrypt.context.wrap_socket(peer.connection, server_side=True)

    encrypt.context.maximum_version = ssl.TLSVersion.TLSv1_2
    encrypt.context.verify_mode = ssl.CERT_REQUIRED
    stranger = trustme.CA().issue_cert("client").private_key_and_cert_chain_pem.bytes().decode()
    with (
        scripted_server(script) as url,
        pytest.raises(AuthorizationError, match=r"refused the client's certificate: .*UNKNOWN_CA") as raised,
    ):
        connect(options(url, tls=TlsOptions(ca=encrypt.options.ca, certificate=stranger)))
    assert raised.value.topics == (Topic.CLIENT_CERTIFICATE,)


def test_one_tls_url_asks_for_tls_at_every_server():
    servers = parse_servers("nats://one:1,tls://two,three")
    assert [str(server) for server in servers] == ["tls://one:1", "tls://two:4222", "tls://three:4222"]


def test_a_server_that_names_others_leads_nobody_to_them():
    visitors = []

    def stranger(peer):
        visitors.append(peer.let_in())

    def script(peer):
        other = f'"connect_urls":["{stranger_url.removeprefix("nats://")}"],"proto"'.encode()
        peer.send(INFO.replace(b'"proto"', other))
        peer.expect(b"PING\r\n")

    with scripted_server(stranger) as stranger_url, scripted_server(script) as url:
        with pytest.raises(NatsConnectionError, match="closed the connection"):
            connect(options(url, credentials=Credentials(token="t0ken")))
        with pytest.raises(NatsConnectionError):
            connect(options(url, credentials=Credentials(token="t0ken")))
    assert visitors == []


def announcing(*urls, info=INFO):
    """INFO of a server that knows others."""
    listed = ",".join(f'"{url.removeprefix("nats://")}"' for url in urls)
    return info.replace(b'"proto"', f'"connect_urls":[{listed}],"proto"'.encode())


def let_in_once(info):
    """A server that lets one client in, tells it of others after the login, and is gone then."""
    visits = []

    def script(peer):
        visits.append(peer)
        if len(visits) == 1:
            peer.let_in()
            peer.expect(b"PING\r\n")
            peer.send(info + b"PONG\r\n")

    return script


def test_a_server_that_another_one_announces_is_found_if_so_asked():
    hellos = []

    def other(peer):
        hellos.append(peer.let_in())
        peer.wait_for_close()

    with scripted_server(other) as there:
        info = announcing("nonsense:port", "[", "u:p@" + there.removeprefix("nats://"))
        with scripted_server(let_in_once(info)) as url:
            asked = options(url.replace("nats://", "nats://me:s3cret@"), discover=True)
            with connect(asked) as connection:
                connection.flush()
            for _ in range(3):
                with connect(asked) as connection:
                    assert str(connection.server) == there
    hello = json.loads(hellos[0].partition(b"\r\n")[0].removeprefix(b"CONNECT "))
    assert (hello["user"], hello["pass"]) == ("me", "s3cret")


def test_later_processes_know_what_was_announced_in_the_last_hour_however_long_ago_first(tmp_path, monkeypatch):
    there = f"127.0.0.1:{unused_port()}"
    monkeypatch.setattr(clock, "shuffle", lambda servers: None)

    def script(peer):
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(announcing(there) + b"PONG\r\n")

    def later():
        for file in tmp_path.glob("spark-nats-*/*"):
            os.utime(file, (file.stat().st_mtime - 0.9 * FACT_TTL,) * 2)

    def known_to_another_process():
        monkeypatch.setattr(choosing, "_announced", {})
        return len(choosing.servers_to_try(asked, None))

    with scripted_server(script) as url:
        asked = options(url, discover=True)
        for _ in range(2):
            with connect(asked) as connection:
                connection.flush()
            later()
        assert known_to_another_process() == 2
        later()
        assert known_to_another_process() == 1


def test_servers_that_are_announced_no_more_are_forgotten():
    visits = []

    def other(peer):
        visits.append(peer)

    def script(peer):
        peer.let_in()
        for listed in ([there], [], [f"127.0.0.1:{unused_port()}"]):
            peer.expect(b"PING\r\n")
            peer.send(announcing(*listed) + b"PONG\r\n")
        peer.wait_for_close()

    with scripted_server(other) as there:
        with scripted_server(script) as url, connect(options(url, discover=True)) as connection:
            for _ in range(3):
                connection.flush()
        with pytest.raises(NatsConnectionError) as raised:
            connect(connection.options)
        assert there not in str(raised.value)
        assert str(raised.value).count("Connection refused") == 2
    assert visits == []


def test_what_is_announced_in_the_clear_before_tls_leads_nobody_anywhere(encrypt):
    visits = []

    def stranger(peer):
        visits.append(peer)

    def script(peer):
        encrypt(peer, greeting=announcing(stranger_url))

    with scripted_server(stranger) as stranger_url:
        with scripted_server(script) as url:
            asked = options(url, tls=encrypt.options, discover=True)
            connect(asked).close()
        with pytest.raises(NatsConnectionError):
            connect(asked)
    assert visits == []


@pytest.mark.parametrize(
    ("named", "announced", "name"),
    [
        ("nats.example.com", "10.0.0.2:4222", "nats.example.com"),
        ("nats.example.com", "[fe80::2]:4222", "nats.example.com"),
        ("nats.example.com", "two.example.com:4222", "two.example.com"),
        ("10.0.0.1", "10.0.0.2:4222", "10.0.0.2"),
        ("10.0.0.1", "two.example.com:4222", "two.example.com"),
    ],
)
def test_a_server_that_was_announced_needs_a_certificate_for_its_name_or_the_one_that_was_configured(
    named, announced, name
):
    (server,) = parse_servers(named)
    found = server.parse_announced(announced, tls=True)
    assert found.certificate_name == name
    assert found.tls
    assert not server.parse_announced(announced, tls=False).tls
    assert found.parse_announced("10.0.0.9", tls=True).certificate_name == (
        "10.0.0.9" if named == "10.0.0.1" else named
    )


def test_something_that_is_not_nats_is_a_protocol_error():
    def script(peer):
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="does not speak the NATS protocol"):
        connect(options(url))


def test_refused_credentials_are_an_authorization_error_with_the_servers_words():
    def script(peer):
        peer.send(INFO)
        peer.expect(b"PING\r\n")
        peer.send(b"-ERR 'Authorization Violation'\r\n")

    with scripted_server(script) as url, pytest.raises(AuthorizationError, match="Authorization Violation"):
        connect(options(url))


def refusing(peer):
    peer.send(INFO)
    peer.expect(b"PING\r\n")
    peer.send(b"-ERR 'Authorization Violation'\r\n")


def test_a_refused_user_without_a_password_is_told_so():
    with scripted_server(refusing) as url:
        for password, is_told in ((None, True), ("p", False)):
            with pytest.raises(AuthorizationError) as raised:
                connect(options(url, credentials=Credentials(user="u", password=password)))
            assert (Topic.PASSWORD in raised.value.topics) is is_told
            assert Topic.CREDENTIALS in raised.value.topics


def test_a_server_that_refuses_does_not_keep_us_from_another_one():
    with scripted_server(refusing) as one, scripted_server(welcome) as other:
        for _ in range(10):
            assert str(entered(f"{one},{other}").server) == other


def test_when_all_that_answer_refuse_it_is_a_refusal_that_names_each():
    with (
        scripted_server(refusing) as one,
        scripted_server(refusing) as two,
        pytest.raises(AuthorizationError) as raised,
    ):
        connect(options(f"{one},{two},nats://127.0.0.1:{(port := unused_port())}"))
    text = str(raised.value)
    assert text.startswith("no NATS server lets us in (")
    assert text.count("refused the credentials: Authorization Violation") == 2
    for url in (one, two, f"nats://127.0.0.1:{port}"):
        assert text.count(url) == 1
    assert Topic.CREDENTIALS in raised.value.topics


def test_a_server_that_closes_before_it_says_anything_may_expect_tls_first():
    def script(peer):
        pass

    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="does it expect TLS first") as raised:
        connect(options(url))
    assert raised.value.topics == (Topic.TLS_FIRST,)
    assert not raised.value.may_pass(established=False)
    assert raised.value.may_pass(established=True)


def test_nothing_in_time_is_none():
    def script(peer):
        peer.let_in()
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        assert connection.next(connection.subscribe("a"), 0.05) is None


def test_a_request_without_an_answer_times_out():
    def script(peer):
        peer.let_in()
        peer.wait_for_close()

    with (
        scripted_server(script) as url,
        connect(options(url)) as connection,
        pytest.raises(NatsTimeoutError, match=r"no answer from .* to a\.b in 0\.1 s"),
    ):
        connection.request("a.b", b"", timeout=0.1)


def test_a_late_answer_is_not_taken_for_the_next_ones():
    def script(peer):
        peer.let_in()
        inbox = peer.expect(b"PUB a ").split()[1][:-1]
        peer.expect(b"PUB a ")
        peer.send(b"MSG %b1 1 4\r\nlate\r\nMSG %b2 1 5\r\nright\r\n" % (inbox, inbox))
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        with pytest.raises(NatsTimeoutError):
            connection.request("a", b"", timeout=0.05)
        assert connection.request("a", b"").payload == b"right"


def test_no_responders_is_an_error_of_its_own():
    def script(peer):
        peer.let_in()
        inbox = peer.expect(b"PUB a ").split()[1][:-1]
        peer.send(b"HMSG %b1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % inbox)
        peer.wait_for_close()

    with (
        scripted_server(script) as url,
        connect(options(url)) as connection,
        pytest.raises(NoRespondersError, match="nobody listens on a at"),
    ):
        connection.request("a", b"")


def test_of_requests_that_are_sent_together_each_has_its_own_answer_or_error():
    def script(peer):
        peer.let_in()
        inbox = peer.expect(b"PUB a ").split()[1][:-1]
        peer.expect(b"PUB c ")
        peer.send(b"MSG %b3 1 4\r\nlast\r\nHMSG %b1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % (inbox, inbox))
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        nobody, silent, last = connection.request_all([(each, b"", None) for each in "abc"], timeout=1.0)
    assert isinstance(nobody, NoRespondersError)
    assert isinstance(silent, NatsTimeoutError)
    assert "to b in 1 s" in str(silent)
    assert last.payload == b"last"


def test_flush_waits_for_the_server():
    release = threading.Event()

    def script(peer):
        peer.let_in()
        peer.expect(b"PING\r\n")
        release.wait(60)
        peer.send(b"PONG\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        with pytest.raises(NatsTimeoutError, match=r"did not answer PING in 0\.1 s"):
            connection.flush(0.1)
        release.set()


def test_a_silent_server_is_pinged_and_then_given_up():
    pings = []

    def script(peer):
        peer.let_in()
        while True:
            peer.expect(b"PING\r\n")
            pings.append(1)

    with (
        scripted_server(script) as url,
        connect(options(url, ping_interval=0.5)) as connection,
        pytest.raises(NatsConnectionError, match="did not answer 2 PINGs"),
    ):
        connection.next(connection.subscribe("a"), 60)
    assert len(pings) == 2


def test_a_permissions_error_leaves_the_connection_open():
    def script(peer):
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"-ERR 'Permissions Violation for Publish to \"a\"'\r\nPONG\r\n")
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        with pytest.raises(PermissionsError, match='Publish to "a"'):
            connection.flush()
        connection.flush()
        assert not connection.closed


def test_draining_ends_a_subscription_behind_all_that_was_on_its_way():
    def script(peer):
        peer.let_in()
        peer.expect(b"SUB b g 2\r\n")
        assert peer.expect(b"UNSUB 2 5\r\n") == b"UNSUB 1 5\r\nUNSUB 2 5\r\n"
        peer.send(b"MSG a 1 1\r\n1\r\n")
        peer.expect(b"UNSUB 1\r\nUNSUB 2\r\nPING\r\n")
        peer.send(b"MSG b 2 1\r\n2\r\nPONG\r\nMSG a 1 1\r\n3\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        subscription = connection.subscribe("a", "b", queue="g")
        connection.unsubscribe_after(subscription, 5)
        assert [p for messages in connection.unsubscribe_and_drain(subscription) for p in payloads(messages)] in (
            [b"1", b"2"],
            [b"1", b"2", b"3"],  # when it came in the same bytes as the PONG
        )
        assert not subscription.has_pending


def payloads(messages):
    return [messages.payload_at(i) for i in range(len(messages))]


def test_an_error_that_ends_the_connection_closes_it():
    def script(peer):
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"-ERR 'Slow Consumer'\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        with pytest.raises(ServerError, match="Slow Consumer"):
            connection.flush()
        assert connection.closed
        with pytest.raises(NatsConnectionError, match="is closed"):
            connection.flush()


def test_a_connection_that_the_server_closes_is_an_error():
    def script(peer):
        peer.let_in()
        peer.expect(b"SUB")

    with (
        scripted_server(script) as url,
        connect(options(url)) as connection,
        pytest.raises(NatsConnectionError, match="closed the connection|broke"),
    ):
        connection.next(connection.subscribe("a"), 60)


def test_a_server_that_takes_nothing_is_given_up():
    release = threading.Event()

    def script(peer):
        peer.let_in()
        release.wait(60)

    with scripted_server(script) as url, connect(options(url, request_timeout=0.2)) as connection:
        with pytest.raises(NatsTimeoutError, match=r"took no data for 0\.2 s; \d+ bytes were not sent"):
            connection.send(b"x" * (64 << 20))
        release.set()


def test_a_connection_is_closed_when_sending_is_interrupted():
    """It is not known how much of a line was sent."""

    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    def script(peer):
        peer.let_in()
        peer.expect(b"x")  # the rest is more than fits between us
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        over.wait(60)

    over = threading.Event()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with scripted_server(script) as url, connect(options(url, request_timeout=60.0)) as connection:
            with pytest.raises(Interrupted):
                connection.publish("a", b"x" * (64 << 20))
            assert connection.closed
            over.set()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_last_words_are_sent_when_a_connection_is_closed():
    heard = []

    def script(peer):
        peer.let_in()
        peer.expect(b"PUB a 1\r\nx\r\n")
        heard.append(peer.expect(b"PUB c 0\r\n\r\n"))

    with scripted_server(script) as url:
        connection = connect(options(url))
        connection.set_empty_messages_at_close(["a", "b"])
        connection.publish("a", b"x")
        connection.set_empty_messages_at_close(["b", "c"])
        connection.close()
        connection.close()
    assert heard == [b"PUB b 0\r\n\r\nPUB c 0\r\n\r\n"]


def test_last_words_keep_nobody_from_closing_a_connection():
    def script(peer):
        peer.let_in()
        peer.connection.close()
        gone.set()

    gone = threading.Event()
    with scripted_server(script) as url:
        connection = connect(options(url))
        connection.set_empty_messages_at_close(["a"])
        assert gone.wait(60)
        connection.close()
        assert connection.closed


def test_last_words_are_not_said_while_a_message_is_sent_in_part():
    def script(peer):
        peer.let_in()
        peer.expect(b"x")
        while data := peer.connection.recv(65536):
            heard.append(data)
            over.wait(60)  # so that no more fits between us until it is given up

    heard, over = [], threading.Event()
    with scripted_server(script) as url, connect(options(url, request_timeout=0.2)) as connection:
        connection.set_empty_messages_at_close(["last"])
        with pytest.raises(NatsTimeoutError, match="took no data for 0.2 s"):
            connection.publish("a", b"x" * (64 << 20))
        over.set()
    assert b"last" not in b"".join(heard)


def test_a_subscription_can_be_ended_again_and_after_its_connection():
    with scripted_server(welcome) as url, connect(options(url)) as connection:
        one, other = connection.subscribe("a"), connection.subscribe("b")
        connection.unsubscribe(one)
        connection.unsubscribe(one)
        connection.close()
        connection.unsubscribe(other)


def test_a_connection_shows_its_server_and_no_secret():
    with scripted_server(welcome) as url, connect(options(url.replace("//", "//ann:s3cret@"))) as connection:
        assert repr(connection) == f"<Connection to {url}>"
        connection.close()
        assert repr(connection) == f"<Connection to {url} (closed)>"


def test_a_task_does_not_begin_at_a_server_that_is_about_to_shut_down():
    def script(peer):
        visits.append(peer)
        peer.send(INFO.replace(b'"proto"', b'"ldm":true,"proto"'))
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.wait_for_close()

    visits = []
    with (
        scripted_server(script) as url,
        pytest.raises(NatsConnectionError, match=r"is shutting down \(lame duck mode\)"),
        leased(options(url), retries_for(attempts=2, wait=0.01, jitter=0.0), "the test"),
    ):
        pytest.fail("a connection was lent")
    assert len(visits) > 1


def test_a_server_that_sends_while_it_is_sent_to_gets_through():
    """Both sides' buffers are full at some moment; neither may wait for the other."""
    size = 16 << 20

    def script(peer):
        peer.let_in()
        peer.expect(b"SUB a 1\r\n")
        peer.send(b"MSG a 1 %d\r\n%b\r\n" % (size, b"y" * size))  # does not read meanwhile
        rest = size
        while rest > 0:
            rest -= len(peer.connection.recv(1 << 20))
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url, request_timeout=60)) as connection:
        subscription = connection.subscribe("a")
        connection.send(b"x" * size)
        assert connection.next(subscription, 60).payloads()[0].as_py() == b"y" * size


def test_a_ping_in_the_middle_of_a_long_frame_is_answered_after_it():
    size = 16 << 20
    received = bytearray()

    def script(peer):
        peer.let_in()
        received.extend(peer.take(1))
        peer.send(b"PING\r\n")
        time.sleep(0.2)  # so that the client fills all buffers before it reads
        received.extend(peer.take_rest())
        while len(received) < size + len(b"PONG\r\n"):
            received.extend(peer.connection.recv(1 << 20))
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url, request_timeout=60)) as connection:
        connection.send(b"x" * size)
        connection.next(connection.subscribe("a"), 0.2)
        wait_until(lambda: len(received) > size)
    assert received[:size] == b"x" * size
    assert received[size:].startswith(b"PONG\r\n")


def test_an_error_in_the_middle_of_a_long_frame_does_not_cut_it_off():
    size = 16 << 20

    def script(peer):
        peer.let_in()
        peer.take(1)
        peer.send(b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n")
        time.sleep(0.2)
        rest = size - 1 - len(peer.take_rest())
        while rest > 0:
            rest -= len(peer.connection.recv(min(rest, 1 << 20)))
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url, request_timeout=60)) as connection:
        with pytest.raises(PermissionsError):
            connection.send(b"x" * size)
        connection.flush()


def test_a_broken_line_later_on_is_a_protocol_error_and_closes():
    def script(peer):
        peer.let_in()
        peer.expect(b"SUB")
        peer.send(b"MSG a 1 -5\r\n\r\n")
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url)) as connection:
        with pytest.raises(ProtocolError, match="MSG a 1 -5"):
            connection.next(connection.subscribe("a"), 60)
        assert connection.closed


@pytest.mark.parametrize("subject", ["a b", "a\r\nPUB x 0\r\n", "", "a..b", ".a"])
def test_a_subject_that_would_break_the_line_is_not_sent(subject):
    def script(peer):
        peer.let_in()
        peer.wait_for_close()

    with (
        scripted_server(script) as url,
        connect(options(url)) as connection,
        pytest.raises(ValueError, match="subject"),
    ):
        connection.subscribe(subject)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no server"),
        ("http://localhost", "unsupported scheme 'http'"),
        ("nats://", "not a server URL"),
        ("nats://u:secret@host:notaport", "not a server URL"),
        ("nats://u:secret@host:4222/path", "not a server URL"),
    ],
)
def test_a_server_url_that_is_none_is_refused_without_its_secret(text, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        parse_servers(text)
    assert "secret" not in str(raised.value)


def test_server_urls_are_shown_without_their_credentials():
    (server,) = parse_servers("nats://u:secret@example.com")
    assert str(server) == "nats://example.com:4222"
    assert "secret" not in repr(server)
    assert str(parse_servers("nats://[::1]:1")[0]) == "nats://[::1]:1"


def test_a_connection_is_lent_at_once_to_whoever_tries_again():
    """The server answers PING when the request has come: nobody has waited for it before."""

    def serve(peer):
        peer.let_in()
        peer.expect(b"PING\r\n")
        assert peer.expect(b"\r\n") == b"PUB a 1\r\n"
        peer.take(3)
        peer.send(b"PONG\r\n")
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.wait_for_close()

    with scripted_server(serve) as url:
        with borrow(options(url)) as first:
            pass
        with borrow(options(url), waits=False) as second:
            assert second is first
            second.publish("a", b"1")
            second.flush()


def test_a_connection_that_was_lent_at_once_is_lost_if_its_server_is_silent():
    def stops(peer):
        peer.let_in()
        peer.wait_for_close()

    with scripted_server(stops) as url:
        with borrow(options(url, connect_timeout=1.0)) as first:
            pass
        lost = pytest.raises(NatsConnectionError, match="did not answer PING in 1 s")
        with lost as raised, borrow(first.options, waits=False) as second:
            assert second is first
            second.request("a", b"")
        assert raised.value.may_pass(established=True)


def test_a_connection_that_its_server_has_closed_is_not_lent_at_once():
    def leaves(peer):
        peer.let_in()

    with scripted_server(leaves) as url:
        with borrow(options(url)) as first:
            first._transport.wait(clock.monotonic() + 10)
        with borrow(options(url), waits=False) as second:
            assert second is not first


def test_what_is_sent_later_goes_out_before_an_answer_is_waited_for():
    def serve(peer):
        peer.let_in()
        assert peer.expect(b"\r\n") == b"SUB a 1\r\n"
        peer.send(b"MSG a 1 2\r\nhi\r\n")
        assert peer.expect(b"PING\r\n") == b"UNSUB 1\r\nPING\r\n"
        peer.send(b"PONG\r\n")

    with scripted_server(serve) as url, connect(options(url)) as connection:
        subscription = connection.subscribe("a", later=True)
        messages = connection.next(subscription, 60)
        assert messages is not None
        assert messages.payload_at(0) == b"hi"
        connection.unsubscribe(subscription, later=True)
        connection.flush()
