"""Waiting until a cluster is believed, over a connection that is held meanwhile."""

from __future__ import annotations

import pytest

from spark_nats.client import connect
from spark_nats.errors import JetStreamError
from spark_nats.jetstream import JetStream, views
from spark_nats.jetstream.views import StreamView, Trust, ask_again_if_doubted, ask_stream_info
from tests.connections import options_for
from tests.nats_py import succeeds, wait_until
from tests.scripted_server import Peer, api_answer, scripted_server

GREETING = b'INFO {"server_id":"S","version":"2.10.0","headers":true,"max_payload":1048576,"proto":1,"cluster":"C"}\r\n'


def state(last: int) -> bytes:
    described = {
        "config": {"name": "S", "retention": "limits", "subjects": ["S.>"]},
        "created": "then",
        "state": {"messages": last, "bytes": 0, "first_seq": 1, "last_seq": last},
    }
    return api_answer("STREAM.INFO", described)


def answer(peer: Peer, last: int) -> None:
    """Answer a request for the stream's state."""
    _, _, reply, _ = peer.expect(b"\r\n").split()
    peer.take(2)
    payload = state(last)
    peer.send(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload))


def test_pings_are_answered_while_a_cluster_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "CONFIRMATION", 1.0)
    answered = []

    def script(peer: Peer) -> None:
        peer.let_in(GREETING)
        peer.expect(b"SUB ")
        peer.expect(b"\r\n")
        answer(peer, 5)
        for _ in range(3):
            peer.send(b"PING\r\n")
            answered.append(peer.expect(b"\r\n"))
        answer(peer, 7)

    with scripted_server(script) as url, connect(options_for(url)) as connection:
        js = JetStream(connection)
        said = ask_stream_info(js, "S")
        assert ask_again_if_doubted(js, said, Trust.BEYOND_DOUBT).last_sequence == 7
    assert answered == [b"PONG\r\n"] * 3


ALONE = GREETING.replace(b'"cluster":"C"', b'"domain":"hub"')


@pytest.mark.parametrize(
    ("greeting", "prefix", "at_once"),
    [
        (GREETING, "$JS.API", False),
        (ALONE, "$JS.API", True),
        (ALONE, "$JS.hub.API", True),
        (ALONE, "$JS.leaf.API", False),
        (ALONE, "shared.api", False),
    ],
    ids=["cluster", "alone", "alone in its domain", "another domain", "another account"],
)
def test_a_loss_is_believed_of_a_server_alone_at_once_and_of_what_may_be_a_cluster_when_it_was_said_for_a_while(
    monkeypatch: pytest.MonkeyPatch, greeting: bytes, prefix: str, at_once: bool
) -> None:
    monkeypatch.setattr(views, "CONFIRMATION", 0.2)

    def script(peer: Peer) -> None:
        peer.let_in(greeting)
        peer.wait_for_close()

    with scripted_server(script) as url, connect(options_for(url)) as connection:
        js, guard = JetStream(connection, prefix), StreamView(patience=60.0)

        def is_believed(guard: StreamView = guard) -> bool:
            return succeeds(lambda: guard.check_loss_confirmed(js, "S", "the stream 'S' does not exist"))

        if at_once:
            assert is_believed()
            return
        with pytest.raises(JetStreamError, match="may not be up to date"):
            guard.check_loss_confirmed(js, "S", "the stream 'S' does not exist")
        wait_until(is_believed)
        guard.note_nothing_lost("S")
        assert not is_believed()
        assert is_believed(StreamView(patience=0.0))
