"""Every example of the protocol pages, the invalid ones too. The ids name the page and the example.

Pages: 2015, 2019, 2022 (with headers) and current describe the client protocol; cluster the one between servers, of
which a client meets what looks the same.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.errors import ProtocolError
from spark_nats.protocol.control import (
    PING,
    PONG,
    ConnectOptions,
    ErrorKind,
    ServerInfo,
    encode_sub,
    encode_unsub,
    error_kind,
    error_text,
    parse_info,
)
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.encoder import encode_message, encode_messages
from spark_nats.protocol.headers import encode_blocks, flatten_headers, parse_block, parse_status
from spark_nats.protocol.subject_columns import find_subject_violation
from spark_nats.protocol.subjects import covers, filter_violation, subject_violation
from tests.unit.readers import decode
from tests.unit.reference import (
    ControlLine,
    Malformed,
    Message,
    Publication,
    broken,
    read_client_stream,
    read_server_stream,
)
from tests.unit.strategies import one_by_one

ALL_PAGES = "2015 2019 2022 current cluster"


def on(pages: str, name: str, *values: Any) -> list[Any]:
    """Return one parameter set for each page that has the example."""
    return [pytest.param(*values, id=f"{page}-{name}") for page in pages.split()]


# Subjects

VALID_SUBJECTS = ["FOO", "BAR", "foo.bar", "foo.BAR", "FOO.BAR", "FOO.BAR.BAZ"]
INVALID_SUBJECTS = ["FOO. BAR", "foo. .bar", "foo..bar"]
VALID_WILDCARDS = ["foo.*.baz", "foo.>", "foo.*.quux", ">"]
INVALID_WILDCARDS = ["foo*.bar", "f*o.b*r", "foo>"]


@pytest.mark.parametrize("subject", [p for s in VALID_SUBJECTS for p in on("2015 2019 2022 current", s, s)])
def test_valid_subjects_may_be_published_and_subscribed_to(subject: str) -> None:
    assert subject_violation(subject) is None
    assert filter_violation(subject) is None
    assert find_subject_violation(pa.array([subject])) is None


@pytest.mark.parametrize(
    "subject",
    [p for s in INVALID_SUBJECTS for p in on("2015 2019 2022 current", s, s)]
    + on(ALL_PAGES, "sub foo. 90", "foo.")
    + [pytest.param(s, id=f"conventions-{s!r}") for s in ("", "FOO.", ".bar", ".", "..", " ", "foo bar", "foo\tbar")],
)
def test_invalid_subjects_may_be_neither(subject: str) -> None:
    assert subject_violation(subject)
    assert filter_violation(subject)
    assert broken(find_subject_violation(pa.array(["ok", subject]))) == {1: subject_violation(subject)}
    with pytest.raises(ValueError, match="subject"):
        encode_sub(subject, 90)


@pytest.mark.parametrize("wildcard", [p for s in VALID_WILDCARDS for p in on("2015 2019 2022 current", s, s)])
def test_wildcards_that_are_tokens_may_be_subscribed_to_but_not_published(wildcard: str) -> None:
    assert filter_violation(wildcard) is None
    assert encode_sub(wildcard, 1) == f"SUB {wildcard} 1\r\n".encode()
    assert subject_violation(wildcard)
    assert broken(find_subject_violation(pa.array([wildcard]))) == {0: subject_violation(wildcard)}


@pytest.mark.parametrize("wildcard", [p for s in INVALID_WILDCARDS for p in on("2015 2019 2022 current", s, s)])
def test_wildcards_inside_a_token_may_be_neither(wildcard: str) -> None:
    assert filter_violation(wildcard)
    assert subject_violation(wildcard)
    with pytest.raises(ValueError, match="wildcard"):
        encode_sub(wildcard, 1)


@pytest.mark.parametrize(
    ("wanted", "subject", "expected"),
    [
        *on("2015 2019 2022 current", "foo.>-foo.bar", "foo.>", "foo.bar", True),
        *on("2015 2019 2022 current", "foo.>-foo.bar.baz.1", "foo.>", "foo.bar.baz.1", True),
        *on("2015 2019 2022 current", "foo.>-foo", "foo.>", "foo", False),
        *on("2015 2019 2022 current", "foo.*.quux-foo.bar.quux", "foo.*.quux", "foo.bar.quux", True),
        *on("2015 2019 2022 current", "foo.>-foo.bar.quux", "foo.>", "foo.bar.quux", True),
        *on("2015 2019 2022 current", "foo.*.quux-foo.bar.baz", "foo.*.quux", "foo.bar.baz", False),
        *on("2015 2019 2022 current", "foo.>-foo.bar.baz", "foo.>", "foo.bar.baz", True),
        *on("2015 2019 2022 current", "full-wildcard-FOO", ">", "FOO", True),
        *on("2015 2019 2022 current", "full-wildcard-FOO.BAR.BAZ", ">", "FOO.BAR.BAZ", True),
        *on("2015 2019 2022 current", "subjects-are-case-sensitive", "foo.bar", "foo.BAR", False),
    ],
)
def test_a_wildcard_matches_what_the_page_says(wanted: str, subject: str, expected: bool) -> None:
    assert covers(wanted, subject) is expected


# INFO

INFO_EXAMPLES = [
    *on(
        "2015",
        "demo",
        b'{"server_id":"1ec445b504f4edfb4cf7927c707dd717","version":"0.6.6","go":"go1.4.2","host":"0.0.0.0","port":4222,'
        b'"auth_required":false,"ssl_required":false,"max_payload":1048576}',
        ServerInfo(
            server_id="1ec445b504f4edfb4cf7927c707dd717",
            version="0.6.6",
            go="go1.4.2",
            host="0.0.0.0",
            port=4222,
            max_payload=1048576,
        ),
    ),
    *on(
        "2015",
        "ping",
        b'{"server_id":"ad29ea9cbb16f2865c177bbd4db446ca","version":"0.6.8","go":"go1.5.1","host":"0.0.0.0","port":4222,'
        b'"auth_required":false,"ssl_required":false,"max_payload":1048576}',
        ServerInfo(
            server_id="ad29ea9cbb16f2865c177bbd4db446ca",
            version="0.6.8",
            go="go1.5.1",
            host="0.0.0.0",
            port=4222,
            max_payload=1048576,
        ),
    ),
    *on(
        "2015",
        "ssl_required-set",
        b'{"server_id":"x","auth_required":true,"ssl_required":true}',
        ServerInfo(server_id="x", auth_required=True, tls_required=True),
    ),
    *on(
        "2019 2022 current",
        "demo",
        b'{"server_id":"Zk0GQ3JBSrg3oyxCRRlE09","version":"1.2.0","proto":1,"go":"go1.10.3","host":"0.0.0.0","port":4222,'
        b'"max_payload":1048576,"client_id":2392}',
        ServerInfo(
            server_id="Zk0GQ3JBSrg3oyxCRRlE09",
            version="1.2.0",
            proto=1,
            go="go1.10.3",
            host="0.0.0.0",
            port=4222,
            max_payload=1048576,
            client_id=2392,
        ),
    ),
    *on(
        "2019 2022 current",
        "connect_urls",
        b'{"connect_urls":["10.0.0.184:4333","192.168.129.1:4333","192.168.192.1:4333"]}',
        ServerInfo(connect_urls=("10.0.0.184:4333", "192.168.129.1:4333", "192.168.192.1:4333")),
    ),
    *on(
        "cluster",
        "route",
        b'{"server_id":"KP19vTlB417XElnv8kKaC5","version":"2.0.0","go":"","host":"localhost","port":5222,'
        b'"auth_required":false,"tls_required":false,"tls_verify":false,"max_payload":1048576,'
        b'"ip":"nats-route://127.0.0.1:5222/","connect_urls":["localhost:4222"]}',
        ServerInfo(
            server_id="KP19vTlB417XElnv8kKaC5",
            version="2.0.0",
            host="localhost",
            port=5222,
            max_payload=1048576,
            ip="nats-route://127.0.0.1:5222/",
            connect_urls=("localhost:4222",),
        ),
    ),
]


@pytest.mark.parametrize("op", [b"INFO ", b"info\t", b"Info  "], ids=["capitals", "tab", "two-spaces"])
@pytest.mark.parametrize(("document", "expected"), INFO_EXAMPLES)
def test_info_is_decoded_and_read(document: bytes, expected: ServerInfo, op: bytes) -> None:
    [(before, control)] = Decoder().feed(op + document + b"\r\n").controls
    assert (before, control.op.value) == (0, "INFO")
    assert parse_info(control.argument) == expected


# CONNECT

_CONNECT_GO = (
    b'{"verbose":false,"pedantic":false,"tls_required":false,"name":"","lang":"go","version":"1.2.2","protocol":1}'
)
CONNECT_EXAMPLES = [
    *on(
        "2015", "go", b'{"verbose":false,"pedantic":false,"ssl_required":false,"name":"","lang":"go","version":"1.1.0"}'
    ),
    *on("2019 2022 current", "go", _CONNECT_GO),  # in 2019 the line stands in brackets, a slip
    *on("cluster", "route", b'{"verbose":false,"pedantic":false,"tls_required":false,"name":"wt0vffeQyoDGMVBC2aKX0b"}'),
]


@pytest.mark.parametrize("document", CONNECT_EXAMPLES)
def test_connect_can_say_what_the_example_says(document: bytes) -> None:
    example = json.loads(document)
    if "ssl_required" in example:  # renamed in 2016
        example["tls_required"] = example.pop("ssl_required")
    [(op, argument)] = read_client_stream(ConnectOptions(**example).encode())
    assert op == b"CONNECT"
    assert example.items() <= json.loads(argument).items()


def test_connect_is_no_line_that_a_server_sends() -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(b"CONNECT " + _CONNECT_GO + b"\r\n")


# PUB and HPUB

_DONUT_BURGER = b"NATS/1.0\r\nBREAKFAST: donut\r\nLUNCH: burger\r\n\r\n"
_DONUT_EGGS = b"NATS/1.0\r\nBREAKFAST: donut\r\nBREAKFAST: eggs\r\n\r\n"
_BAZ = b"NATS/1.0\r\nBar: Baz\r\n\r\n"
PUB_EXAMPLES = [
    *on(ALL_PAGES, "pub", b"PUB FOO 11\r\nHello NATS!\r\n", "FOO", None, None, b"Hello NATS!"),
    *on(
        "2015 2019 cluster",
        "pub-reply",
        b"PUB FRONT.DOOR INBOX.22 11\r\nKnock Knock\r\n",
        "FRONT.DOOR",
        "INBOX.22",
        None,
        b"Knock Knock",
    ),
    *on(
        "2022 current",
        "pub-reply",
        b"PUB FRONT.DOOR JOKE.22 11\r\nKnock Knock\r\n",
        "FRONT.DOOR",
        "JOKE.22",
        None,
        b"Knock Knock",
    ),
    *on(ALL_PAGES, "pub-empty", b"PUB NOTIFY 0\r\n\r\n", "NOTIFY", None, None, b""),
    *on(
        "2022 current",
        "hpub",
        b"HPUB FOO 22 33\r\nNATS/1.0\r\nBar: Baz\r\n\r\nHello NATS!\r\n",
        "FOO",
        None,
        [("Bar", ["Baz"])],
        b"Hello NATS!",
    ),
    *on(
        "2022 current",
        "hpub-reply",
        b"HPUB FRONT.DOOR JOKE.22 45 56\r\nNATS/1.0\r\nBREAKFAST: donut\r\nLUNCH: burger\r\n\r\nKnock Knock\r\n",
        "FRONT.DOOR",
        "JOKE.22",
        [("BREAKFAST", ["donut"]), ("LUNCH", ["burger"])],
        b"Knock Knock",
    ),
    *on(
        "2022 current",
        "hpub-empty",
        b"HPUB NOTIFY 22 22\r\nNATS/1.0\r\nBar: Baz\r\n\r\n\r\n",
        "NOTIFY",
        None,
        [("Bar", ["Baz"])],
        b"",
    ),
    *on(
        "2022 current",
        "hpub-two-values",
        b"HPUB MORNING.MENU 47 51\r\nNATS/1.0\r\nBREAKFAST: donut\r\nBREAKFAST: eggs\r\n\r\nYum!\r\n",
        "MORNING.MENU",
        None,
        [("BREAKFAST", ["donut", "eggs"])],
        b"Yum!",
    ),
]
_HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))


@pytest.mark.parametrize(("wire", "subject", "reply", "headers", "payload"), PUB_EXAMPLES)
def test_publications_are_encoded_byte_for_byte_as_in_the_example(
    wire: bytes, subject: str, reply: str | None, headers: Any, payload: bytes
) -> None:
    blocks = encode_blocks(flatten_headers(pa.array([headers, headers], _HEADERS)))
    replies = pa.array([reply, reply], pa.string())
    batch = encode_messages(pa.array([subject] * 2), pa.array([payload] * 2), replies, blocks)
    assert batch.to_pybytes() == wire + wire
    assert encode_message(subject, payload, reply, blocks[0].as_py()) == wire


@pytest.mark.parametrize(("wire", "subject", "reply", "headers", "payload"), PUB_EXAMPLES)
def test_a_delivered_publication_is_decoded_to_what_was_published(
    wire: bytes, subject: str, reply: str | None, headers: Any, payload: bytes
) -> None:
    """What the server delivers is the publication with MSG for PUB and a sid after the subject."""
    op, rest = wire.split(b"PUB ", 1)
    delivered = op + b"MSG " + rest.replace(subject.encode(), subject.encode() + b" 9", 1)
    for chunks in ([delivered], one_by_one(delivered)):
        [message] = decode(chunks).messages
        assert (message.subject.decode(), message.sid, message.payload) == (subject, b"9", payload)
        assert message.reply.decode() == (reply or "")
        assert list(parse_block(message.header).items()) == (headers or [])


# SUB and UNSUB


@pytest.mark.parametrize(
    ("wire", "args"),
    [
        *on("2015 2019 2022 current", "sub", b"SUB FOO 1\r\n", ("FOO", 1)),
        *on("2015 2019 2022 current", "sub-queue", b"SUB BAR G1 44\r\n", ("BAR", 44, "G1")),
        *on("2015 2019 2022 current", "sub-foo", b"SUB foo 1\r\n", ("foo", 1)),
        *on("2015 2019 2022 current", "sub-everything", b"SUB > 1\r\n", (">", 1)),
    ],
)
def test_subscriptions_are_encoded_as_in_the_example(wire: bytes, args: tuple[Any, ...]) -> None:
    assert encode_sub(*args) == wire


@pytest.mark.parametrize(
    ("wire", "args"),
    [
        *on("2015 2019 2022 current", "unsub", b"UNSUB 1\r\n", (1,)),
        *on("2015 2019 2022 current", "unsub-after-5", b"UNSUB 1 5\r\n", (1, 5)),
    ],
)
def test_unsubscriptions_are_encoded_as_in_the_example(wire: bytes, args: tuple[Any, ...]) -> None:
    assert encode_unsub(*args) == wire


@pytest.mark.parametrize(
    "line",
    [
        *on("cluster", "sub", b"SUB FOO RSID:1:1\r\n"),
        *on("cluster", "sub-queue", b"SUB BAR G1 QRSID:14:44\r\n"),
        *on("cluster", "unsub", b"UNSUB RSID:5:1\r\n"),
        *on("cluster", "unsub-after-5", b"UNSUB RSID:1:1 5\r\n"),
        *on("2015 2019 2022 current", "sub", b"SUB foo 1\r\n"),
        *on("2015 2019 2022 current", "sub-lower-case", b"sub foo 1\r\n"),
        *on(ALL_PAGES, "pub", b"PUB NOTIFY 0\r\n\r\n"),
        *on("2022 current", "hpub", b"HPUB NOTIFY 22 22\r\n" + _BAZ + b"\r\n"),
    ],
)
def test_a_server_that_speaks_like_a_client_is_refused(line: bytes) -> None:
    assert read_client_stream(line)  # a good line, of the other side
    assert decode([line]).error
    assert decode(one_by_one(line)).error


# MSG and HMSG

_VEGETABLE = b"NATS/1.0\r\nFoodGroup: vegetable\r\n\r\n"
MSG_EXAMPLES = [
    *on(ALL_PAGES, "msg", b"MSG FOO.BAR 9 11\r\nHello World\r\n", Message(b"FOO.BAR", b"9", b"", b"", b"Hello World")),
    *on(
        "2015 2019 cluster",
        "msg-reply",
        b"MSG FOO.BAR 9 INBOX.34 11\r\nHello World\r\n",
        Message(b"FOO.BAR", b"9", b"INBOX.34", b"", b"Hello World"),
    ),
    *on(
        "2022 current",
        "msg-reply",
        b"MSG FOO.BAR 9 GREETING.34 11\r\nHello World\r\n",
        Message(b"FOO.BAR", b"9", b"GREETING.34", b"", b"Hello World"),
    ),
    *on(
        "2022 current",
        "hmsg-with-the-missing-sid",
        b"HMSG FOO.BAR 9 34 45\r\n" + _VEGETABLE + b"Hello World\r\n",
        Message(b"FOO.BAR", b"9", b"", _VEGETABLE, b"Hello World"),
    ),
    *on(
        "2022 current",
        "hmsg-reply",
        b"HMSG FOO.BAR 9 BAZ.69 34 45\r\n" + _VEGETABLE + b"Hello World\r\n",
        Message(b"FOO.BAR", b"9", b"BAZ.69", _VEGETABLE, b"Hello World"),
    ),
    *on(
        "cluster",
        "msg-routed-sid",
        b"MSG FOO.BAR RSID:5:1 11\r\nHello World\r\n",
        Message(b"FOO.BAR", b"RSID:5:1", b"", b"", b"Hello World"),
    ),
]


def respaced(wire: bytes, separator: bytes) -> bytes:
    line, rest = wire.split(b"\r\n", 1)
    return line.replace(b" ", separator) + b"\r\n" + rest


def recased(wire: bytes, change: Any) -> bytes:
    op, rest = wire.split(b" ", 1)
    return change(op) + b" " + rest


@pytest.mark.parametrize("change", [bytes.upper, bytes.lower, bytes.title], ids=["capitals", "lower", "title"])
@pytest.mark.parametrize(("wire", "message"), MSG_EXAMPLES)
def test_messages_are_decoded_whatever_case_and_white_space(wire: bytes, message: Message, change: Any) -> None:
    for separator in (b" ", b"\t", b"  ", b"\t\t", b" \t ", b"     "):
        spaced = respaced(recased(wire, change), separator)
        for chunks in ([spaced], [spaced * 3], one_by_one(spaced), [spaced[:-1], spaced[-1:]]):
            result = decode(chunks)
            assert result.error is None
            assert set(result.messages) == {message}


def test_the_headers_of_the_example_are_a_map() -> None:
    [message] = decode([b"HMSG FOO.BAR 9 34 45\r\n" + _VEGETABLE + b"Hello World\r\n"]).messages
    assert parse_block(message.header) == {"FoodGroup": ["vegetable"]}
    assert parse_status(message.header) is None


@pytest.mark.parametrize(
    "wire",
    [
        *on("2022 current", "hmsg-without-sid", b"HMSG FOO.BAR 34 45\r\n" + _VEGETABLE + b"Hello World\r\n"),
        *on(ALL_PAGES, "msg-without-sid", b"MSG FOO.BAR 11\r\nHello World\r\n"),
        *on(ALL_PAGES, "msg-without-size", b"MSG FOO.BAR 9\r\nHello World\r\n"),
        *on(ALL_PAGES, "msg-with-a-field-too-many", b"MSG FOO.BAR 9 INBOX.34 x 11\r\nHello World\r\n"),
        *on(ALL_PAGES, "msg-longer-than-it-says", b"MSG FOO.BAR 9 5\r\nHello World\r\n"),
        *on(
            "2022 current",
            "hmsg-header-longer-than-message",
            b"HMSG FOO.BAR 9 45 34\r\n" + _VEGETABLE + b"Hello World\r\n",
        ),
    ],
)
def test_messages_that_the_syntax_does_not_allow_are_refused(wire: bytes) -> None:
    assert read_server_stream(wire).error
    for chunks in ([wire], [wire + PING], one_by_one(wire)):
        assert decode(chunks).error


# PING, PONG, +OK


@pytest.mark.parametrize(
    ("wire", "op"),
    [
        *on(ALL_PAGES, "ping", PING, "PING"),
        *on(ALL_PAGES, "pong", PONG, "PONG"),
        *on(ALL_PAGES, "ok", b"+OK\r\n", "+OK"),
    ],
)
@pytest.mark.parametrize("change", [bytes.upper, bytes.lower, bytes.title], ids=lambda f: f.__name__)
def test_single_words_are_control_lines(wire: bytes, op: str, change: Any) -> None:
    for chunks in ([change(wire)], one_by_one(change(wire))):
        assert decode(chunks).controls == [ControlLine(0, op, b"")]


# -ERR

CLOSING = [
    *on(ALL_PAGES, "unknown-operation", "Unknown Protocol Operation"),
    *on("2019 2022 current", "route-port", "Attempted To Connect To Route Port"),
    *on(ALL_PAGES, "authorization-violation", "Authorization Violation"),
    *on(ALL_PAGES, "authorization-timeout", "Authorization Timeout"),
    *on("2019 2022 current", "client-protocol", "Invalid Client Protocol"),
    *on("2019 2022 current", "control-line", "Maximum Control Line Exceeded"),
    *on(ALL_PAGES, "parser-error", "Parser Error"),
    *on("2019 2022 current", "tls-required", "Secure Connection - TLS Required"),
    *on(ALL_PAGES, "stale-connection", "Stale Connection"),
    *on("2019 2022 current", "maximum-connections", "Maximum Connections Exceeded"),
    *on(ALL_PAGES, "slow-consumer", "Slow Consumer"),
    *on("2015 cluster", "maximum-payload", "Maximum Payload Exceeded"),
    *on("2019 2022 current", "maximum-payload", "Maximum Payload Violation"),
]
REMAINING_OPEN = [
    *on(ALL_PAGES, "invalid-subject", "Invalid Subject"),
    *on("2019 2022 current", "subscription", "Permissions Violation for Subscription to foo.bar"),
    *on("2019 2022 current", "publish", "Permissions Violation for Publish to foo.bar"),
    pytest.param('Permissions Violation for Subscription to "foo.*" using queue "q"', id="server-subscription-queue"),
    pytest.param('Permissions Violation for Publish to "foo.bar"', id="server-publish"),
    pytest.param("Invalid Publish Subject", id="server-pedantic"),
    pytest.param("maximum subscriptions exceeded", id="server-maximum-subscriptions"),
]


def received_error(text: str) -> str:
    [control] = decode([f"-ERR '{text}'\r\n".encode()]).controls
    assert control.op == "-ERR"
    assert decode(one_by_one(f"-err\t'{text}' \r\n".encode())).controls == [control]
    return error_text(control.argument)


@pytest.mark.parametrize("text", CLOSING)
def test_errors_after_which_the_connection_is_closed(text: str) -> None:
    assert received_error(text) == text
    assert error_kind(text).closes_connection
    assert error_kind(text) is not ErrorKind.PERMISSIONS


@pytest.mark.parametrize("text", REMAINING_OPEN)
def test_errors_after_which_the_connection_stays_open(text: str) -> None:
    assert received_error(text) == text
    assert not error_kind(text).closes_connection
    assert (error_kind(text) is ErrorKind.PERMISSIONS) == text.startswith("Permissions")


# The telnet session


@pytest.mark.parametrize(("document", "expected"), [e for e in INFO_EXAMPLES if e.id.endswith(("-ping", "-demo"))])
def test_the_session_that_ends_stale_is_decoded_in_order(document: bytes, expected: ServerInfo) -> None:
    wire = b"INFO " + document + b"\r\nPING\r\nPING\r\n-ERR 'Stale Connection'\r\n"
    for chunks in ([wire], one_by_one(wire), wire.splitlines(keepends=True)):
        result = decode(chunks)
        assert result.error is None
        assert [control.op for control in result.controls] == ["INFO", "PING", "PING", "-ERR"]
        assert parse_info(result.controls[0].argument) == expected
        assert error_text(result.controls[3].argument) == "Stale Connection"


# The reference itself: what the specification says must be readable by it


@pytest.mark.parametrize(("wire", "subject", "reply", "headers", "payload"), PUB_EXAMPLES)
def test_the_reference_reads_the_examples_of_publications(
    wire: bytes, subject: str, reply: str | None, headers: Any, payload: bytes
) -> None:
    [publication] = read_client_stream(wire)
    assert isinstance(publication, Publication)
    assert (publication.subject, publication.payload) == (subject.encode(), payload)
    assert publication.reply == (reply and reply.encode())
    assert publication.header in (None, _BAZ, _DONUT_BURGER, _DONUT_EGGS)


@pytest.mark.parametrize(("wire", "message"), MSG_EXAMPLES)
def test_the_reference_reads_the_examples_of_messages(wire: bytes, message: Message) -> None:
    result = read_server_stream(wire)
    assert (result.messages, result.error, result.rest) == ([message], None, 0)


@pytest.mark.parametrize(
    "wire", [b"PUB FOO\r\n", b"PUB FOO 2\r\nabc\r\n", b"SUB FOO\r\n", b"MSG FOO 1 0\r\n\r\n", b"PUB"]
)
def test_the_reference_refuses_what_is_no_line_of_a_client(wire: bytes) -> None:
    with pytest.raises(Malformed):
        read_client_stream(wire)
