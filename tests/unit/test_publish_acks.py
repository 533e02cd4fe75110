"""Answers to published messages: which store, which refuse, and why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, Refusal, Verdict, are_duplicates, is_other_last_id

STATUS = b"HMSG i.1 1 %d %d\r\n%b\r\n"


def answers(*payloads: bytes) -> Messages:
    """Answers as they arrive; one that begins with NATS/1.0 is a status."""
    wire = b""
    for payload in payloads:
        if payload.startswith(b"NATS/1.0"):
            wire += b"HMSG i.1 1 %d %d\r\n%b\r\n" % (len(payload), len(payload), payload)
        else:
            wire += b"MSG i.1 1 %d\r\n%b\r\n" % (len(payload), payload)
    return Decoder().feed(wire).messages


@pytest.mark.parametrize("stream", ["S", "ORDERS", "A_LONG_NAME_OF_A_STREAM", "ÄÖ"])
@settings(max_examples=100)
@given(st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=20))
def test_plain_acknowledgements_are_told_by_their_beginning(stream: str, sequences: list[int]) -> None:
    acks = PublishAcks(stream)
    found = answers(*(b'{"stream":"%b","seq":%d}' % (stream.encode(), sequence) for sequence in sequences))
    assert acks.plain(found).all()
    assert acks.sequences(found).tolist() == sequences
    assert not are_duplicates(found).any()


@pytest.mark.parametrize(
    ("answer", "sequence", "duplicates"),
    [
        (b'{"stream":"S","seq":7,"duplicate": true}', 7, 1),
        (b'{"stream":"S","seq":7,"duplicate":true}', 7, 1),
        (b'{"stream":"S","seq":7,"duplicate":false}', 7, 0),
        (b'{"stream":"S","domain":"hub","seq":7}', 7, 0),
        (b'{"stream":"S","seq":7,"val":"-3"}', 7, 0),
        (b'{ "seq": 7, "stream": "S" }', 7, 0),
    ],
)
def test_other_acknowledgements_are_read_one_by_one(answer: bytes, sequence: int, duplicates: int) -> None:
    acks = PublishAcks("S")
    found = answers(answer, b'{"stream":"S","seq":8}')
    assert acks.stored(found).all()
    assert acks.sequences(found).tolist() == [sequence, 8]
    assert [acks.sequence(found, i) for i in range(2)] == [sequence, 8]
    assert are_duplicates(found).sum() == duplicates


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 2**63 - 1), st.sampled_from(["", ',"domain":"hub"', ',"duplicate": true'])),
        min_size=1,
        max_size=9,
    )
)
def test_what_stands_behind_a_sequence_may_differ_from_answer_to_answer(said: list[tuple[int, str]]) -> None:
    acks = PublishAcks("S")
    found = answers(*(f'{{"stream":"S","seq":{sequence}{behind}}}'.encode() for sequence, behind in said))
    assert acks.sequences(found).tolist() == [sequence for sequence, _ in said]
    assert [acks.sequence(found, i) for i in range(len(said))] == [sequence for sequence, _ in said]


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (b"NATS/1.0 503\r\n\r\n", Refusal("no stream listens on it", Verdict.AWAY)),
        (b"NATS/1.0 429 Too Many Requests\r\n\r\n", Refusal("Too Many Requests (429)", Verdict.TOO_MANY)),
        (
            b'{"error":{"code":429,"err_code":10167,"description":"too many requests"}}',
            Refusal("too many requests (429, 10167)", Verdict.TOO_MANY),
        ),
        (
            b'{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}',
            Refusal("another stream listens on it (expected stream does not match, 10060)", Verdict.PLACE),
        ),
        (
            b'{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}',
            Refusal("message size exceeds maximum allowed (400, 10054)", Verdict.ROW),
        ),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"}}',
            Refusal("maximum messages per subject exceeded (503, 10077)", Verdict.ROW),
        ),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}',
            Refusal("maximum messages exceeded (503, 10077)", Verdict.NO),
        ),
        (
            b'{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"S"}',
            Refusal("duplicate message id is in process (409, 10158)", Verdict.IN_PROCESS),
        ),
        (
            b'{"error":{"code":500,"err_code":10118,"description":"stream is offline"},"stream":"S","seq":0}',
            Refusal("stream is offline (500, 10118)", Verdict.AWAY),
        ),
        (b'{"stream":"T","seq":7}', Refusal("somebody else than the stream answers on it: b'", Verdict.NO)),
        (b"", Refusal("somebody else than the stream answers on it: b''", Verdict.NO)),
        (b"ok", Refusal("somebody else than the stream answers on it: b'ok'", Verdict.NO)),
    ],
    ids=lambda value: value[:30].decode() if isinstance(value, bytes) else "",
)
def test_a_refusal_says_why(answer: bytes, refusal: Refusal) -> None:
    found = answers(b'{"stream":"S","seq":1}', answer)
    acks = PublishAcks("S")
    said = acks.refusal(found, 1)
    assert said is not None
    assert said.reason.startswith(refusal.reason)
    assert said.verdict == refusal.verdict
    assert acks.stored(found).tolist() == [True, False]


@settings(max_examples=200)
@given(st.lists(st.one_of(st.binary(max_size=60), st.integers().map(lambda n: b'{"seq":%d}' % n)), max_size=9))
def test_no_answer_is_an_error(payloads: list[bytes]) -> None:
    found = answers(b"", *(payload for payload in payloads if not payload.startswith(b"NATS/1.0")))
    acks = PublishAcks("S")
    assert len(acks.stored(found)) == len(acks.sequences(found)) == len(found)


@pytest.mark.parametrize(
    ("answer", "other"),
    [
        (b'{"error":{"code":400,"err_code":10070,"description":"wrong last msg ID: x"}}', True),
        (b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"}}', False),
        (b'{"stream":"S","seq":5}', False),
        (b"no answer of a stream", False),
    ],
)
def test_another_last_id_is_told_from_other_answers(answer: bytes, other: bool) -> None:
    assert is_other_last_id(answer) is other
