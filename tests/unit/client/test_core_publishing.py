"""Publishing to core NATS: how much is kept that the server has not confirmed, and servers that shut down."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from spark_nats.client import CorePublisher
from spark_nats.client.pool import leased
from spark_nats.client.publishing import PART_BYTES
from tests.connections import options_for, retries_for
from tests.scripted_server import INFO, Peer, scripted_server

LARGE = pa.array([b"x" * PART_BYTES])  # such a message goes alone
WHOLE = b"x" * 64 + b"\r\n"  # the end of one


def test_rows_that_the_server_does_not_confirm_are_kept_up_to_a_limit() -> None:
    kept = 32

    def script(peer: Peer) -> None:
        peer.let_in()
        for _ in range(kept):
            peer.expect(WHOLE + b"PING\r\n")
        assert peer.expect(b"PING\r\n") == b"PING\r\n"  # and not another row
        waited.set()
        peer.send(b"PONG\r\n" * (kept + 1))
        for _ in range(8):
            peer.expect(WHOLE + b"PING\r\n")
            peer.send(b"PONG\r\n")
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")

    waited = threading.Event()
    with scripted_server(script) as url, leased(options_for(url), retries_for(), "the test") as lease:
        publisher = CorePublisher(lease)
        publisher.publish(pa.array(["a"] * (kept + 8)), pa.concat_arrays([LARGE] * (kept + 8)))
        assert waited.is_set()
        publisher.wait_for_sent_rows()
        assert publisher.confirmed == kept + 8


def test_a_server_that_is_about_to_shut_down_is_left_once_it_has_confirmed_all_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        servers.append([])
        rows = servers[-1]
        while True:
            before = peer.expect(b"PING\r\n")
            if before.endswith(WHOLE + b"PING\r\n"):
                rows.append(before[:9])
            if len(servers) == 1:
                peer.send(INFO.replace(b'"proto"', b'"ldm":true,"proto"'))
            peer.send(b"PONG\r\n")

    servers: list[list[bytes]] = []
    with (
        scripted_server(script) as one,
        scripted_server(script) as other,
        leased(options_for(f"{one},{other}"), retries_for(), "the test") as lease,
    ):
        publisher = CorePublisher(lease)
        for subject in ("a", "b", "c"):
            publisher.publish(pa.array([subject]), LARGE)
            publisher.wait_for_sent_rows()
        assert publisher.confirmed == 3
    assert servers == [[b"PUB a 104"], [b"PUB b 104", b"PUB c 104"]]
    assert "NATS_TRYING_AGAIN" not in caplog.text


def test_rows_that_were_not_confirmed_go_again_over_the_next_connection() -> None:
    def script(peer: Peer) -> None:
        peer.let_in()
        received.append(peer.expect(WHOLE + b"PING\r\n")[:9])
        if len(received) > 1:
            peer.send(b"PONG\r\n")
            peer.expect(b"PING\r\n")
            peer.send(b"PONG\r\n")

    received: list[bytes] = []
    with scripted_server(script) as url, leased(options_for(url), retries_for(), "the test") as lease:
        publisher = CorePublisher(lease)
        publisher.publish(pa.array(["a"]), LARGE)
        publisher.wait_for_sent_rows()
        assert publisher.confirmed == 1
    assert received == [b"PUB a 104"] * 2
