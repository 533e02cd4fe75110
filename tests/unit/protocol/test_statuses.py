"""Inline statuses, and what they mean for a pull request."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.protocol.deliveries import (
    BatchTooLarge,
    ConsumerGone,
    Heartbeat,
    PullEvent,
    RequestEnded,
    RequestsForgotten,
    interpret_pull_status,
)
from spark_nats.protocol.headers import RequestRefused, Status, parse_status
from tests.unit.strategies import header_blocks


class TestStatus:
    @pytest.mark.parametrize(
        ("block", "status"),
        [
            (b"NATS/1.0 503\r\n\r\n", Status(503, "", {})),
            (b"NATS/1.0 404 No Messages\r\n\r\n", Status(404, "No Messages", {})),
            (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", Status(100, "Idle Heartbeat", {})),
            (b"NATS/1.0  408  Request Timeout \r\n\r\n", Status(408, "Request Timeout", {})),
            (b"NATS/1.0\t409\tConsumer Deleted\r\n\r\n", Status(409, "Consumer Deleted", {})),
            (
                b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 1\r\nNats-Pending-Bytes: 0\r\n"
                b"\r\n",
                Status(409, "Message Size Exceeds MaxBytes", {"Nats-Pending-Messages": "1", "Nats-Pending-Bytes": "0"}),
            ),
            (b"NATS/1.0 503\r\nA: 1\r\nA: 2\r\n\r\n", Status(503, "", {"A": "1"})),
            (b"NATS/1.0 503", Status(503, "", {})),
        ],
    )
    def test_an_inline_status_is_parsed(self, block: bytes, status: Status) -> None:
        assert parse_status(block) == status

    @pytest.mark.parametrize(
        "block",
        [
            b"",
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0 \r\n\r\n",
            b"NATS/1.0\r\nStatus: 503\r\n\r\n",
            b"NATS/1.0 abc\r\n\r\n",
            b"NATS/1.0 -503\r\n\r\n",
            b"NATS/1.0503\r\n\r\n",
            b"NATS/1.05 503\r\n\r\n",
            b"NATS/1.0 50\r\n\r\n",
            b"NATS/1.0 5033\r\n\r\n",
            b"NATS/1.0 " + b"9" * 5000 + b"\r\n\r\n",
            "NATS/1.0 \N{ARABIC-INDIC DIGIT ONE}03\r\n\r\n".encode(),
            b"NATS/2.0 503\r\n\r\n",
            b"nats/1.0 503\r\n\r\n",
            b"\r\nNATS/1.0 503\r\n\r\n",
        ],
        ids=lambda block: repr(block[:24]),
    )
    def test_what_is_no_status_is_none(self, block: bytes) -> None:
        assert parse_status(block) is None

    @settings(max_examples=50)
    @given(st.one_of(header_blocks, st.binary(max_size=30), st.binary(max_size=20).map(lambda b: b"NATS/1.0 " + b)))
    def test_any_block_is_a_status_or_none_and_never_an_error(self, block: bytes) -> None:
        status = parse_status(block)
        assert status is None or 0 <= status.code <= 999


PENDING = "Nats-Pending-Messages: 3\r\nNats-Pending-Bytes: 70\r\n"


class TestPullEvent:
    """The table of ADR-37, and what nats-server 2.15 sends besides."""

    @pytest.mark.parametrize(
        ("block", "event"),
        [
            ("100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\nNats-Last-Stream: 9\r\n", Heartbeat(7)),
            ("100 Idle Heartbeat\r\n", Heartbeat(None)),
            (f"408 Request Timeout\r\n{PENDING}", RequestEnded(70, too_large=False)),
            (f"408 Interest Expired\r\n{PENDING}", RequestEnded(70, too_large=False)),
            ("408 Request Timeout\r\n", RequestEnded(None, too_large=False)),
            (f"409 Message Size Exceeds MaxBytes\r\n{PENDING}", RequestEnded(70, too_large=True)),
            (
                "409 Batch Completed\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n",
                RequestEnded(0, too_large=False),
            ),
            (f"423 Nats-Wrong-Pin-Id\r\n{PENDING}", RequestEnded(70, too_large=False)),
            ("423 Nats-Pin-Id mismatch\r\n", RequestEnded(None, too_large=False)),
            ("409 Leadership Change\r\n", RequestsForgotten()),
            ("409 Exceeded MaxRequestBatch of 256\r\n", BatchTooLarge(256)),
            ("409 Exceeded MaxRequestBatch of 0\r\n", BatchTooLarge(1)),
            ("409 Consumer Deleted\r\n", ConsumerGone("Consumer Deleted")),
            (f"409 Server Shutdown\r\n{PENDING}", ConsumerGone("Server Shutdown")),
            ("409 Consumer is push based\r\n", ConsumerGone("Consumer is push based")),
            ("409 Exceeded MaxWaiting\r\n", ConsumerGone("Exceeded MaxWaiting")),
            ("404 No Messages\r\n", ConsumerGone("No Messages")),
            ("503\r\n", ConsumerGone("status 503")),
        ],
        ids=lambda value: value.partition("\r\n")[0] if isinstance(value, str) else "",
    )
    def test_a_status_ends_a_request_or_the_consumer_or_says_that_it_lives(self, block: str, event: PullEvent) -> None:
        status = parse_status(f"NATS/1.0 {block}\r\n".encode())
        assert status is not None
        assert interpret_pull_status(status) == event

    @pytest.mark.parametrize(
        "block", ["400 Bad Request", "412 Required Api Level", "409 Exceeded MaxRequestExpires of 10s", "499 Whatever"]
    )
    def test_what_no_later_request_could_change_is_a_refusal(self, block: str) -> None:
        status = parse_status(f"NATS/1.0 {block}\r\n\r\n".encode())
        assert status is not None
        assert interpret_pull_status(status) == RequestRefused(status)

    @settings(max_examples=150)
    @given(st.integers(101, 999), st.text(), st.dictionaries(st.text(), st.text()))
    def test_every_status_means_something(self, code: int, description: str, headers: dict[str, str]) -> None:
        assert interpret_pull_status(Status(code, description, headers)) is not None
