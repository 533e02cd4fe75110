"""The ground that the other integration tests stand on, in a container as well as embedded."""

import json
import urllib.request

import pytest

from tests.nats_py import NatsPy, send_raw
from tests.servers import Server

pytestmark = pytest.mark.docker


def test_the_monitoring_pages_answer(nats_server: Server) -> None:
    with urllib.request.urlopen(f"{nats_server.monitoring_url}/varz", timeout=5) as page:
        assert json.load(page)["version"].startswith("2.")


def test_a_stream_stores_and_returns_what_was_published(nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    headers = {"One": "1", "Two": ["a", "b: c"]}
    assert nats_py.publish_acked([(f"{unique}.a", b"first"), (f"{unique}.b", b"", headers)]) == [1, 2]

    first, second = nats_py.read_stream(unique)
    assert (first.subject, first.payload, first.headers, first.stream) == (
        f"{unique}.a",
        b"first",
        {},
        unique,
    )
    assert (second.payload, second.headers) == (b"", {"One": ["1"], "Two": ["a", "b: c"]})
    assert (second.reply, second.sequence) == (None, 2)
    assert second.timestamp is not None
    assert nats_py.consumers(unique) == []


def test_ten_thousand_messages_come_back_in_order(nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, storage="memory")
    sequences = nats_py.publish_acked((f"{unique}.{i % 10}", b"%d" % i) for i in range(10_000))
    messages = nats_py.read_stream(unique)
    assert sequences[-1] == 10_000
    assert [int(message.payload) for message in messages] == list(range(10_000))


def test_subscribers_receive_replies_and_repeated_headers(nats_py: NatsPy, unique: str) -> None:
    with nats_py.collect(f"{unique}.>") as collected:
        nats_py.publish(f"{unique}.x", b"hello", headers={"H": ["1", "2"]}, reply="answer.here")
        (message,) = collected.wait(1)
    assert (message.payload, message.reply, message.headers) == (b"hello", "answer.here", {"H": ["1", "2"]})


def test_requests_are_answered(nats_py: NatsPy, unique: str) -> None:
    with nats_py.respond(unique, lambda message: message.payload.upper()):
        assert nats_py.request(unique, b"abc").payload == b"ABC"


def test_raw_bytes_reach_subscribers(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with nats_py.collect(unique) as collected:
        assert send_raw(nats_server.url, f"pub\t{unique}   2\r\nhi\r\n".encode()) == b""
        assert collected.wait(1)[0].payload == b"hi"
    assert b"-ERR 'Unknown Protocol Operation'" in send_raw(nats_server.url, b"NONSENSE\r\n")
