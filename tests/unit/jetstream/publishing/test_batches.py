"""Batches of a stream with three replicas, whose answers are scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from spark_nats.client.pool import leased
from spark_nats.errors import NatsConnectionError, NatsError, PublishError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.api import JetStreamLease
from spark_nats.jetstream.publishing import batches
from spark_nats.jetstream.publishing.batches import BatchPublisher
from spark_nats.jetstream.reading.stored import StoredIds
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.bytecolumns import byte_strings
from spark_nats.protocol.headers import EXPECTED_MSG_ID, MSG_ID, encode_block
from tests.connections import options_for, retries_for
from tests.scripted_server import Peer, api_answer, scripted_server

NOBODY = b"NATS/1.0 503\r\n\r\n"
CONFIG = {"name": "S", "retention": "limits", "subjects": ["S.>"], "num_replicas": 3, "duplicate_window": 120 * 10**9}
STATE = {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0}
INCOMPLETE = b'{"error":{"code":400,"err_code":10176,"description":"atomic publish batch is incomplete"},"stream":"S"}'
REPEATED = b'{"error":{"code":400,"err_code":10201,"description":"batch has a known id"},"stream":"S"}'


ELSEWHERE = b"this goes to a reply subject that no row has"


def answering(answer: Callable[[bytes], bytes | None]) -> Callable[[Peer], None]:
    """Answer each message of a batch, by its header block; without an answer, the connection is closed."""

    def serve(peer: Peer) -> None:
        for request in peer.requests():
            if not request.header:
                peer.answer(request, api_answer("STREAM.INFO", {"created": "c", "config": CONFIG, "state": STATE}))
            elif (said := answer(request.header)) is None:
                return
            elif said == NOBODY:
                peer.answer(request, b"", said)
            elif said == ELSEWHERE:
                peer.answer(request._replace(reply=request.reply.rpartition(b".")[0] + b".99"), said)
            else:
                peer.answer(request, said)

    return serve


@contextmanager
def publishing(
    answer: Callable[[bytes], bytes | None], ack_timeout: float = 0.0, api_prefix: str = API_PREFIX, exact: bool = False
) -> Iterator[BatchPublisher]:
    with (
        scripted_server(answering(answer)) as url,
        leased(options_for(url), retries_for(timeout=0.0), "the test") as lease,
    ):
        initial = lease.ask_with_retries(lambda connection: ask_stream_info(JetStream(connection), "S"))
        yield BatchPublisher(JetStreamLease(lease, api_prefix), initial, ack_timeout, exact=exact)


def publish(publisher: BatchPublisher, rows: int, subject: str = "S.x") -> None:
    ids = [f"id-{i}" for i in range(rows)]
    headers = byte_strings([encode_block({MSG_ID: each}) for each in ids])
    publisher.publish_and_wait(pa.array([subject] * rows), byte_strings([b""] * rows), headers, pa.array(ids))


def test_a_question_about_message_ids_that_is_not_answered_leaves_no_doubt() -> None:
    def answer(header: bytes) -> bytes | None:
        if EXPECTED_MSG_ID.encode() in header:
            return None
        return REPEATED if b"Commit" in header else b""

    with pytest.raises(NatsConnectionError) as raised, publishing(answer) as publisher:
        publish(publisher, 2)
    assert str(raised.value).endswith("; none of this task's 2 rows was stored")


def test_a_commit_that_is_not_answered_leaves_a_doubt() -> None:
    with (
        pytest.raises(NatsError) as raised,
        publishing(lambda header: None if b"Commit" in header else b"") as publisher,
    ):
        publish(publisher, 2)
    assert str(raised.value).endswith(
        "; this task's 2 rows were sent and not answered (all of them may be stored, or none)"
    )


@pytest.mark.parametrize(
    ("answered", "doubt"),
    [("Batch-Commit", "all of them may be stored, or none"), ("Batch-Id", "none of this task's 2")],
)
def test_an_answer_to_no_row_leaves_a_doubt_once_the_batch_was_committed(answered: str, doubt: str) -> None:
    with (
        pytest.raises(PublishError, match="an answer came that belongs to none of its rows") as raised,
        publishing(lambda header: ELSEWHERE if answered.encode() in header else b"") as publisher,
    ):
        publish(publisher, 2)
    assert doubt in str(raised.value)


@pytest.mark.parametrize("others", [["id-0", "id-1"], []])
def test_a_batch_that_waits_is_not_stored_again_if_another_attempt_has_stored_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    read: list[object] = []
    commits: list[bytes] = []

    def read_back(*asked: object) -> StoredIds:
        read.append(asked)
        return StoredIds(byte_strings([each.encode() for each in others]), "")

    def answer(header: bytes) -> bytes:
        if not read:
            return NOBODY
        if b"Commit" not in header:
            return b""
        commits.append(header)
        batch = next(line for line in header.split(b"\r\n") if line.startswith(b"Nats-Batch-Id: "))[15:]
        return b'{"stream":"S","seq":2,"batch":"%b","count":2}' % batch

    monkeypatch.setitem(CONFIG, "duplicate_window", 10**8)
    monkeypatch.setattr(batches, "wait_and_read_ids", read_back)
    with publishing(answer, 60.0, exact=True) as publisher:
        publish(publisher, 2)
    assert len(commits) == (not others)


def test_a_commit_that_is_refused_for_lack_of_the_first_message_leaves_a_doubt() -> None:
    """Somebody has taken the first message, and may have stored the batch: two servers take themselves for leaders."""
    with (
        pytest.raises(PublishError) as raised,
        publishing(lambda header: INCOMPLETE if b"Commit" in header else b"") as publisher,
    ):
        publisher.publish_and_wait(pa.array(["S.x"] * 2), byte_strings([b""] * 2), None, pa.nulls(2, pa.string()))
    assert "atomic publish batch is incomplete (400, 10176); this task's 2 rows were sent" in str(raised.value)
    assert "(all of them may be stored, or none)" in str(raised.value)


def test_with_message_ids_such_a_batch_is_sent_again() -> None:
    commits: list[bytes] = []

    def answer(header: bytes) -> bytes:
        if b"Commit" not in header:
            return b""
        commits.append(header)
        if len(commits) == 1:
            return INCOMPLETE
        batch = next(line for line in header.split(b"\r\n") if line.startswith(b"Nats-Batch-Id: "))[15:]
        return b'{"stream":"S","seq":2,"batch":"%b","count":2}' % batch

    with publishing(answer, 60.0) as publisher:
        publish(publisher, 2)
    assert len(commits) == 2


def test_a_batch_that_nobody_takes_is_sent_again_where_another_account_may_map_its_subjects() -> None:
    sent: list[bytes] = []

    def answer(header: bytes) -> bytes:
        sent.append(header)
        if len(sent) == 1:
            return NOBODY
        batch = next(line for line in header.split(b"\r\n") if line.startswith(b"Nats-Batch-Id: "))[15:]
        return b'{"stream":"S","seq":1,"batch":"%b","count":1}' % batch

    with publishing(answer, 60.0, "JS.owner.API") as publisher:
        publish(publisher, 1, "mapped.x")
    assert len(sent) == 2
