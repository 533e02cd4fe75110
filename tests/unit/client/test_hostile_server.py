"""A server that means harm, or is broken, gets an error, and neither much time nor much memory."""

from __future__ import annotations

import dataclasses
import json
import resource
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from spark_nats.client import ConnectionOptions, Credentials, connect, transport
from spark_nats.errors import (
    AuthorizationError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    ProtocolError,
    ServerError,
)
from spark_nats.jetstream import JetStream, StreamInfo, read_range
from spark_nats.jetstream.messages import ask_last_sequence
from spark_nats.jetstream.times import ask_end_at, ask_first_at
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.kinds.core.receiver import Receiver
from tests.connections import options_for, publisher_for, retries_for
from tests.nats_py import wait_until
from tests.scripted_server import INFO, Peer, api_answer, scripted_server

TIMEOUT = 0.2


@pytest.fixture(autouse=True)
def in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the clock often: a chunk of nothing but PING takes seconds to read."""
    monkeypatch.setattr(transport, "CHUNK", 1 << 16)


def options(url: str, **timeouts: float) -> ConnectionOptions:
    return options_for(url, **{"connect_timeout": 60.0, "request_timeout": 60.0, **timeouts})


def for_ever(data: bytes) -> Callable[[Peer], None]:
    """Send the same over and over, until the client hangs up."""

    def script(peer: Peer) -> None:
        while True:
            peer.send(data)

    return script


def trickle(data: bytes) -> Callable[[Peer], None]:
    """Send a byte now and then, until the client hangs up."""

    def script(peer: Peer) -> None:
        for i in range(len(data)):
            peer.send(data[i : i + 1])
            time.sleep(0.05)

    return script


def megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.parametrize(
    "script",
    [for_ever(b"\x00" * 65536), for_ever(b"PING\r\n" * 1000), trickle(INFO * 100)],
    ids=["gigabytes of nothing", "PING for ever", "a byte now and then"],
)
def test_a_handshake_that_goes_wrong_ends_in_time_and_takes_little_memory(script: Callable[[Peer], None]) -> None:
    before = megabytes()
    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="no NATS server could be reached"):
        connect(options(url, connect_timeout=TIMEOUT))
    assert megabytes() - before < 100


@pytest.mark.parametrize("flood", [b"PING\r\n" * 1000, b"MSG a 1 0\r\n\r\n"], ids=["PING", "messages"])
def test_sending_ends_in_time_when_the_server_only_talks(flood: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"SUB")
        for_ever(flood)(peer)

    with scripted_server(script) as url, connect(options(url, request_timeout=TIMEOUT)) as connection:
        connection.subscribe("a")
        # A system that is short of memory for both directions may reset the connection before that.
        with pytest.raises((NatsTimeoutError, NatsConnectionError), match=r"took no data|broke: "):
            connection.send(b"PUB b 1000000\r\n" + b"x" * 1_000_000 + b"\r\n" + b"x" * 30_000_000)


@pytest.mark.parametrize(
    "script",
    [
        for_ever(b"PING\r\n" * 1000),
        for_ever(b"MSG _INBOX.another.1 1 0\r\n\r\n"),
        trickle(b"MSG _INBOX.x.1 1 1000000\r\n" + b"x" * 10_000),
    ],
    ids=["PING", "answers to somebody else", "a message byte by byte"],
)
def test_a_request_ends_in_time_whatever_comes_instead_of_an_answer(script: Callable[[Peer], None]) -> None:
    def serve(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"SUB")
        script(peer)

    before = megabytes()
    with scripted_server(serve) as url, connect(options(url)) as connection, pytest.raises(NatsError):
        connection.request("a", b"", timeout=TIMEOUT)
    assert megabytes() - before < 100


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"null",
        b"[1]",
        b"{}",
        b'{"error":"no"}',
        b'{"error":{"code":"x"}}',
        b'{"name":7,"num_pending":"many"}',
        b'{"name":"a b"}',
        b'{"config":7,"state":[]}',
        b'{"config":{"subjects":7},"state":{"last_seq":"x"}}',
        b'{"config":{"name":"a b"},"created":"","state":{"last_seq":1,"messages":0}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_an_answer_of_the_api_that_is_none_is_an_error_of_ours(answer: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        while True:
            line = peer.expect(b"\r\n")
            if line.startswith(b"PUB $JS.API."):
                subject, inbox = line.decode().split(" ")[1:3]
                said = (
                    api_answer(subject.removeprefix("$JS.API."), json.loads(answer))
                    if answer.startswith(b"{")
                    else answer
                )
                peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (inbox.encode(), len(said), said))

    with scripted_server(script) as url, connect(options(url, request_timeout=TIMEOUT)) as connection:
        js = JetStream(connection)
        for ask in (
            lambda: next(read_range(js, "S", 1, 10)),
            lambda: ask_stream_info(js, "S"),
            lambda: ask_first_at(js, ask_stream_info(js, "S"), datetime.now(UTC)).sequence,
            lambda: ask_last_sequence(js, "S", ["a"]),
        ):
            with pytest.raises(NatsError):
                ask()


def test_a_stream_as_long_as_sequences_can_be_is_searched_for_a_time() -> None:
    last, then = 2**64 - 1, "2026-01-01T00:00:00Z"
    state = {"messages": 1, "bytes": 9, "first_seq": 1, "last_seq": last, "first_ts": then, "last_ts": then}
    config = {"name": "S", "subjects": ["a"], "retention": "limits"}
    answers = {
        "STREAM.INFO.S": {"config": config, "created": then, "state": state},
        "STREAM.MSG.GET.S": {"message": {"subject": "a", "seq": last, "time": then}},
    }

    def script(peer: Peer) -> None:
        peer.let_in()
        while True:
            line = peer.expect(b"\r\n")
            if line.startswith(b"PUB $JS.API."):
                subject, inbox = line.decode().split(" ")[1:3]
                operation = subject.removeprefix("$JS.API.")
                said = api_answer(operation, answers[operation])
                peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (inbox.encode(), len(said), said))

    with scripted_server(script) as url, connect(options(url)) as connection:
        js = JetStream(connection)
        info = ask_stream_info(js, "S")
        assert ask_first_at(js, info, datetime(2026, 2, 1, tzinfo=UTC)) == (last + 1, None)
        assert ask_end_at(js, info, datetime(2025, 2, 1, tzinfo=UTC)).sequence in (1, last)


@pytest.mark.parametrize(
    "answer",
    [
        b'MSG %b.99999 1 23\r\n{"stream":"S","seq":1}\r\n',
        b'MSG %b.x 1 22\r\n{"stream":"S","seq":1}\r\n',
        b'MSG %b.-1 1 22\r\n{"stream":"S","seq":1}\r\n',
        b"MSG %b.0 1 4\r\nnull\r\n",
        b'MSG %b.0 1 18\r\n{"error":{"code":1}}\r\n',
        b"MSG %b.0 1 0\r\n\r\n",
        b'MSG %b.0 1 11\r\n{"ok":true}\r\n',
        b'MSG %b.0 1 23\r\n{"stream":"T", "seq":1}\r\n',
        b'MSG %b.0 1 22\r\n{"seq":1,"stream":"T"}\r\n',
    ],
)
def test_answers_that_are_no_acknowledgements_are_refused(answer: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        line = peer.expect(b".* 1\r\n")
        inbox = line.split(b" ")[1][:-2]
        peer.expect(b"PUB")
        peer.send(answer.replace(b"%b", inbox))
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options(url, request_timeout=TIMEOUT)) as connection:
        stream = StreamInfo("S", "then", 1, 0, 0, 0, 0, "limits", ("a",), {})
        publisher = publisher_for(connection, stream, ack_timeout=TIMEOUT)
        with pytest.raises(NatsError):
            publisher.publish(pa.array(["a"]), pa.array([b""]))
            publisher.wait_for_sent_rows()


@pytest.mark.parametrize("sequences", [(3,), (5, 5), (5, 4, 6), (9, 9, 9, 10), (2**62, 6)])
def test_deliveries_of_what_was_not_asked_for_are_a_protocol_error(sequences: tuple[int, ...]) -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        while True:
            line = peer.expect(b"\r\n")
            if b".CONSUMER.CREATE." in line:
                name, inbox = line.split(b" ")[1].rpartition(b".")[2], line.split(b" ")[2]
                state = {"delivered": {"stream_seq": 4, "consumer_seq": 0}, "ack_floor": {"stream_seq": 0}}
                described = {"stream_name": "S", "name": name.decode(), "config": {}, "num_pending": 100, **state}
                answer = api_answer("CONSUMER.CREATE", described)
                peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (inbox, len(answer), answer))
            elif b".STREAM.INFO." in line:
                config = {"name": "S", "retention": "limits", "subjects": []}
                state = {"messages": 14, "bytes": 0, "first_seq": 1, "last_seq": 14}
                answer = api_answer("STREAM.INFO", {"created": "", "config": config, "state": state})
                peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (line.split(b" ")[2], len(answer), answer))
            elif b".CONSUMER.MSG.NEXT." in line:
                inbox = line.split(b" ")[2]
                of = b"$JS.ACK.S." + line.split(b" ")[1].rpartition(b".")[2]
                replies = [b"%b.1.%d.%d.1700000000000000000.9" % (of, s, i + 1) for i, s in enumerate(sequences)]
                peer.send(b"".join(b"MSG %b 2 %b 0\r\n\r\n" % (inbox, reply) for reply in replies))
                peer.wait_for_close()

    with (
        scripted_server(script) as url,
        connect(options(url)) as connection,
        pytest.raises(ProtocolError, match="was asked for what begins at sequence 5, and sent"),
    ):
        list(read_range(JetStream(connection), "S", 5, 15))


def test_a_server_that_lets_us_in_and_closes_is_given_time() -> None:
    waits: list[float] = []

    class Told(threading.Event):
        """Does not wait where there is a limit, and notes it."""

        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait()
            waits.append(timeout)
            return self.is_set()

    def script(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")

    with scripted_server(script) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_nats.kinds.core.receiver.threading.Event", Told)
        receiver = Receiver(options(url), retries_for(jitter=0.0), ["a"], None, Backlog(1 << 20))
        wait_until(lambda: len(waits) > 5)
        receiver.unsubscribe_drain_and_close()
    assert waits[:6] == [0.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_what_a_server_says_is_shown_short_on_one_line_and_without_our_secrets() -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        peer.expect(b"SUB")
        peer.send(b"-ERR 'no\ttoken t0ps3cret\x1b[31m" + b"x" * 1000 + b"'\r\n")
        peer.wait_for_close()

    with (
        scripted_server(script) as url,
        connect(dataclasses.replace(options(url), credentials=Credentials(token="t0ps3cret"))) as connection,
        pytest.raises(ServerError) as raised,
    ):
        connection.next(connection.subscribe("a"), 60.0)
    assert "reported: no\\ttoken …\\x1b[31mxxx" in str(raised.value)
    assert len(str(raised.value)) < 700


def test_a_short_password_does_not_change_what_a_servers_error_means() -> None:
    def script(peer: Peer) -> None:
        peer.send(INFO)
        peer.expect(b"PING\r\n")
        peer.send(b"-ERR 'Authorization Violation'\r\n")

    login = Credentials(user="u", password="a")
    with (
        scripted_server(script) as url,
        pytest.raises(AuthorizationError, match="credentials: Authorization Violation$"),
    ):
        connect(dataclasses.replace(options(url), credentials=login))


def test_a_peer_that_sends_our_connect_back_does_not_have_our_secret_shown() -> None:
    def script(peer: Peer) -> None:
        peer.send(INFO)
        peer.send(peer.expect(b"\r\n"))
        peer.wait_for_close()

    with scripted_server(script) as url, pytest.raises(NatsConnectionError, match="not a line of the NATS") as raised:
        connect(dataclasses.replace(options(url), credentials=Credentials(token="t0ken")))
    assert "CONNECT" in str(raised.value)
    assert "t0" not in str(raised.value)
