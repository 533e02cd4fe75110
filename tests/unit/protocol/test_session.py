"""The session: what a server says, as bytes in, and what the client knows and has to send after it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.errors import ProtocolError
from spark_nats.protocol.control import ConnectOptions, ErrorKind, ServerInfo
from spark_nats.protocol.session import MAX_PINGS_OUT, ErrorReceived, Event, Session
from tests.scripted_server import INFO
from tests.unit.readers import messages_of
from tests.unit.reference import Message

INTERVAL = 10.0


class Client:
    """A session, the time, and all that has happened."""

    def __init__(self, ping_interval: float = INTERVAL) -> None:
        self.now = 100.0
        self.session = Session(ping_interval, self.now)
        self.messages: list[Message] = []
        self.events: list[Event] = []

    def hear(self, data: bytes) -> Client:
        messages, events = self.session.receive(data, self.now)
        self.messages += messages_of(messages)
        self.events += events
        return self

    def say(self, most: int = 1 << 30) -> bytes:
        """Send what is due, so many bytes at a time."""
        said = b""
        while due := self.session.due():
            said += bytes(due[:most])
            self.session.remove_sent(min(most, len(due)))
        return said

    def log_in(self) -> Client:
        mark = self.hear(INFO).session.queue_login_and_ping(ConnectOptions())
        self.say()
        self.hear(b"PONG\r\n")
        assert self.session.has_pong_for(mark)
        self.events.clear()
        return self


@pytest.fixture
def client() -> Client:
    """A client that has been let in."""
    return Client().log_in()


# Handshake


def test_a_server_greets_is_answered_and_lets_in() -> None:
    client = Client()
    assert not client.session.greeted
    assert client.session.info == ServerInfo()
    client.hear(INFO)
    assert client.session.greeted
    assert client.session.info.max_payload == 1048576
    assert client.events == [client.session.info]
    mark = client.session.queue_login_and_ping(ConnectOptions(name="me"))
    said = client.say()
    assert said.startswith(b"CONNECT {")
    assert said.endswith(b"}\r\nPING\r\n")
    assert not client.session.has_pong_for(mark)
    assert client.hear(b"PONG\r\n").session.has_pong_for(mark)


def test_a_session_that_takes_another_ones_place_knows_the_server_and_nothing_else() -> None:
    before = Client().hear(INFO + b"PONG\r\nMSG a 1 9\r\ninjec")
    session = Session(INTERVAL, 0.0, before.session.info)
    assert session.greeted
    assert session.info == before.session.info
    assert not session.has_pong_for(session.queue_login_and_ping(ConnectOptions()))
    assert len(session.receive(b"ted\r\n"[5:], 0.0)[0]) == 0


def test_a_later_info_takes_the_place_of_the_first(client: Client) -> None:
    client.hear(b'INFO {"server_id":"S","connect_urls":["10.0.0.1:4222"],"ldm":true,"max_payload":7}\r\n')
    assert client.events == [client.session.info]
    assert client.session.info.connect_urls == ("10.0.0.1:4222",)
    assert client.session.info.ldm
    assert client.session.info.max_payload == 7


@pytest.mark.parametrize(
    "greeting",
    [
        b"x" * 70_000,
        b"\x00" * 70_000,
        b"\r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b'INFO {"max_payload":"many"}\r\n',
        b"INFO " + b"[" * 60_000 + b"\r\n",
        b"INFO \xff\xfe\r\n",
        b"INFO 7\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-ERR\r",
    ],
    ids=lambda greeting: repr(greeting[:30]),
)
def test_what_is_no_greeting_is_a_protocol_error_or_not_enough(greeting: bytes) -> None:
    client = Client()
    try:
        client.hear(greeting)
    except ProtocolError:
        pass
    else:
        assert greeting == b"-ERR\r"
    assert not client.session.greeted


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"MSG a 1 -1\r\n\r\n", "not a line"),
        (b"MSG a 1 1e3\r\n\r\n", "not a line"),
        (b"MSG a 1 99999999999999999999999999\r\n", "larger than"),
        (b"MSG a 1 67108865\r\n", "larger than"),
        (b"MSG a 1 " + b"9" * 5000 + b"\r\n", "larger than"),
        (b"MSG a 1 5\r\nhelloXX", "no CRLF"),
        (b"HMSG a 1 10 5\r\nhello\r\n", "a header of 10 bytes in a message of 5"),
        (b"HMSG a 1 -3 5\r\nhello\r\n", "not a line"),
        (b"MSG " + b"a" * 70_000, "longer than"),
        (b"MSG a\r\n", "not a line"),
        (b"CONNECT {}\r\n", "not a line"),
        (b"SUB a 1\r\n", "not a line"),
    ],
)
def test_nonsense_after_the_handshake_is_a_protocol_error(client: Client, sent: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        client.hear(sent)


# Messages


@settings(max_examples=100)
@given(st.lists(st.integers(1, 90), max_size=20))
def test_messages_and_control_lines_arrive_in_any_pieces(cuts: list[int]) -> None:
    wire = b"MSG a.b 1 2\r\nhi\r\nPING\r\nHMSG a.c 1 r 12 14\r\nNATS/1.0\r\n\r\nyo\r\n-ERR 'Invalid Subject'\r\n"
    client = Client().log_in()
    bounds = [0, *sorted({min(cut, len(wire)) for cut in cuts}), len(wire)]
    for start, end in pairwise(bounds):
        client.hear(wire[start:end])
    assert [message.payload for message in client.messages] == [b"hi", b"yo"]
    assert client.say() == b"PONG\r\n"
    assert client.events == [ErrorReceived(ErrorKind.REJECTED, "Invalid Subject")]


# PING and PONG


def test_a_ping_is_answered_behind_what_is_being_sent(client: Client) -> None:
    client.session.queue(b"PUB b 8\r\n12345678\r\n")
    assert client.session.due() == b"PUB b 8\r\n12345678\r\n"
    client.session.remove_sent(12)
    client.hear(b"PING\r\nPING\r\n")
    client.session.queue(b"PUB c 0\r\n\r\n")
    assert client.say(most=5) == b"45678\r\nPONG\r\nPONG\r\nPUB c 0\r\n\r\n"
    assert client.session.due() is None


def test_nothing_to_send_is_not_due(client: Client) -> None:
    client.session.queue(b"")
    assert client.session.due() is None


def test_pings_without_end_are_not_all_remembered(client: Client) -> None:
    for _ in range(3):
        client.hear(b"PING\r\n" * 1000)
    assert 0 < client.say().count(b"PONG") <= 1000
    client.hear(b"PING\r\n")
    assert client.say() == b"PONG\r\n"


def test_marks_are_reached_in_order(client: Client) -> None:
    first, second = client.session.queue_ping(), client.session.queue_ping()
    assert client.say() == b"PING\r\n" * 2
    assert not client.session.has_pong_for(first)
    client.hear(b"PONG\r\n")
    assert client.session.has_pong_for(first)
    assert not client.session.has_pong_for(second)
    assert client.session.passed == first
    client.hear(b"PONG\r\n")
    assert client.session.passed == second


def test_a_pong_that_nobody_asked_for_answers_no_later_ping(client: Client) -> None:
    client.hear(b"PONG\r\n" * 5)
    mark = client.session.queue_ping()
    assert not client.session.has_pong_for(mark)
    assert client.hear(b"PONG\r\n").session.has_pong_for(mark)


def test_behind_an_error_no_mark_is_passed_though_it_is_reached(client: Client) -> None:
    first, second = client.session.queue_ping(), client.session.queue_ping()
    client.hear(b"PONG\r\n-ERR 'Permissions Violation for Publish to \"a\"'\r\nPONG\r\n")
    assert client.session.has_pong_for(second)
    assert client.session.passed == first
    assert client.events == [ErrorReceived(ErrorKind.PERMISSIONS, 'Permissions Violation for Publish to "a"')]


# Silence


def test_a_silent_server_is_pinged_and_then_given_up(client: Client) -> None:
    for _ in range(MAX_PINGS_OUT):
        client.now = client.session.ping_at
        assert client.session.ping_if_silent_or_give_up(client.now)
        assert client.say() == b"PING\r\n"
    client.now = client.session.ping_at
    assert not client.session.ping_if_silent_or_give_up(client.now)


def test_before_its_time_no_silence_is_too_long(client: Client) -> None:
    assert client.session.ping_if_silent_or_give_up(client.session.ping_at - 0.001)
    assert client.say() == b""


@pytest.mark.parametrize("said", [b"PONG\r\n", b"+OK\r\n", b"MSG a 1 0\r\n\r\n", b"M"])
def test_whatever_a_server_says_it_is_not_silent(client: Client, said: bytes) -> None:
    client.now += INTERVAL - 1
    client.hear(said)
    assert client.session.ping_at == client.now + INTERVAL


def test_a_server_that_answers_pings_is_not_given_up(client: Client) -> None:
    for _ in range(10):
        client.now = client.session.ping_at
        assert client.session.ping_if_silent_or_give_up(client.now)
        assert client.say() == b"PING\r\n"
        client.hear(b"PONG\r\n")


# Errors


@pytest.mark.parametrize(
    ("line", "kind", "closes"),
    [
        (b"-ERR 'Slow Consumer'", ErrorKind.OVERLOADED, True),
        (b"-ERR 'maximum connections exceeded'", ErrorKind.OVERLOADED, True),
        (b"-ERR 'maximum subscriptions exceeded'", ErrorKind.LIMITED, False),
        (b"-ERR 'Maximum Payload Violation'", ErrorKind.TOO_LARGE, True),
        (b"-ERR 'Authorization Violation'", ErrorKind.AUTHORIZATION, True),
        (b"-err   'Permissions Violation for Subscription to \"a\"'", ErrorKind.PERMISSIONS, False),
        (b"-ERR 'Invalid Publish Subject'", ErrorKind.REJECTED, False),
        (b"-ERR", ErrorKind.FATAL, True),
    ],
)
def test_an_error_is_told_with_what_it_means(client: Client, line: bytes, kind: ErrorKind, closes: bool) -> None:
    (event,) = client.hear(line + b"\r\n").events
    assert isinstance(event, ErrorReceived)
    assert event.kind is kind
    assert event.kind.closes_connection == closes


def test_the_words_of_an_error_are_short_and_on_one_line(client: Client) -> None:
    (event,) = client.hear(b"-ERR 'no\ttoken\x1b[31m" + b"x" * 1000 + b"'\r\n").events
    assert isinstance(event, ErrorReceived)
    assert event.text.startswith("no\\ttoken\\x1b[31mxxx")
    assert len(event.text) < 600
