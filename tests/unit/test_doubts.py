"""Waiting until a cluster is believed, over a connection that is held meanwhile."""

from __future__ import annotations

import json

import pytest

from spark_nats.client import connect
from spark_nats.jetstream import JetStream, doubts
from spark_nats.jetstream.doubts import state_beyond_doubt
from spark_nats.jetstream.streams import stream_info
from tests.connections import options_for
from tests.scripted_server import Peer, scripted_server

GREETING = b'INFO {"server_id":"S","version":"2.10.0","headers":true,"max_payload":1048576,"proto":1,"cluster":"C"}\r\n'


def state(last: int) -> bytes:
    described = {
        "config": {"name": "S", "retention": "limits", "subjects": ["S.>"]},
        "created": "then",
        "state": {"messages": last, "bytes": 0, "first_seq": 1, "last_seq": last},
    }
    return json.dumps(described).encode()


def answer(peer: Peer, last: int) -> None:
    """Answer a request for the stream's state."""
    _, _, reply, _ = peer.expect(b"\r\n").split()
    peer.take(2)
    payload = state(last)
    peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload))


def test_pings_are_answered_while_a_cluster_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "CONFIRMATION", 1.0)
    answered = []

    def script(peer: Peer) -> None:
        peer.send(GREETING)
        peer.expect(b"PING\r\n")
        peer.send(b"PONG\r\n")
        peer.expect(b"SUB ")
        peer.expect(b"\r\n")
        answer(peer, 5)
        for _ in range(3):
            peer.send(b"PING\r\n")
            answered.append(peer.expect(b"\r\n"))
        answer(peer, 7)

    with scripted_server(script) as url, connect(options_for(url)) as connection:
        js = JetStream(connection)
        said = stream_info(js, "S")
        assert state_beyond_doubt(js, said).last_sequence == 7
    assert answered == [b"PONG\r\n"] * 3
