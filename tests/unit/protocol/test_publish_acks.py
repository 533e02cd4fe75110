"""Answers to published messages: which store, which refuse, and why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import (
    PublishAcks,
    Refusal,
    Verdict,
    are_duplicates,
    is_wrong_last_id,
    stored_sequence_or_error,
)

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


COMMAS = ["", " "]
"""What servers write after a comma: nothing from 2.12 on, a space before."""


def ack(stream: str, domain: str, sequence: int, comma: str = "") -> bytes:
    where = f'"domain":"{domain}",{comma}' if domain else ""
    return f'{{"stream":"{stream}",{comma}{where}"seq":{sequence}}}'.encode()


@pytest.mark.parametrize("comma", COMMAS)
@pytest.mark.parametrize("domain", ["", "hub"])
@pytest.mark.parametrize("stream", ["S", "ORDERS", "A_LONG_NAME_OF_A_STREAM", "ÄÖ"])
@settings(max_examples=50)
@given(st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=20))
def test_plain_acknowledgements_are_told_by_their_beginning(
    stream: str, domain: str, comma: str, sequences: list[int]
) -> None:
    acks = PublishAcks(stream, domain)
    found = answers(*(ack(stream, domain, sequence, comma) for sequence in sequences))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acks, "refusal", None)  # which reads one by one
        assert not acks.refusals(found)
    assert not acks.stored_in_other_domain(found).any()
    assert acks.sequences(found).tolist() == sequences
    assert not are_duplicates(found).any()


@pytest.mark.parametrize(
    ("answer", "sequence", "duplicates"),
    [
        (b'{"stream":"S","seq":7,"duplicate": true}', 7, 1),
        (b'{"stream":"S","seq":7,"duplicate":true}', 7, 1),
        (b'{"stream":"S","seq":7,"duplicate":false}', 7, 0),
        (b'{"stream":"S","domain":"","seq":7}', 7, 0),
        (b'{"stream":"S","seq":7,"val":"-3"}', 7, 0),
        (b'{ "seq": 7, "stream": "S" }', 7, 0),
    ],
)
def test_other_acknowledgements_are_read_one_by_one(answer: bytes, sequence: int, duplicates: int) -> None:
    acks = PublishAcks("S")
    found = answers(answer, b'{"stream":"S","seq":8}')
    assert not acks.refusals(found)
    assert acks.sequences(found).tolist() == [sequence, 8]
    assert [acks.sequence_or_zero(found, i) for i in range(2)] == [sequence, 8]
    assert are_duplicates(found).sum() == duplicates


@settings(max_examples=50)
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
    assert [acks.sequence_or_zero(found, i) for i in range(len(said))] == [sequence for sequence, _ in said]


@pytest.mark.parametrize("comma", COMMAS)
@settings(max_examples=50)
@given(
    st.sampled_from(["", "hub"]),
    st.lists(st.tuples(st.sampled_from(["", "hub", "hub2", "leaf", "h"]), st.integers(1, 2**63 - 1)), max_size=9),
)
def test_an_acknowledgement_of_another_domain_stores_nothing(
    comma: str, domain: str, said: list[tuple[str, int]]
) -> None:
    acks = PublishAcks("S", domain)
    found = answers(b"", *(ack("S", where, sequence, comma) for where, sequence in said)).take(slice(1, None))
    others = [where != domain for where, _ in said]
    assert acks.stored_in_other_domain(found).tolist() == others
    assert [i in acks.refusals(found) for i in range(len(said))] == others
    assert {each.verdict for each in acks.refusals(found).values()} <= {Verdict.STRANGER}
    assert [stored_sequence_or_error(found.payload_at(i), "S", domain) == 0 for i in range(len(said))] == others


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (ack("S", "leaf", 1), "stream 'S' in domain 'leaf'"),
        (ack("S", "", 1), "stream 'S' outside any domain"),
        (ack("OTHER", "leaf", 1), "stream 'OTHER' in domain 'leaf'"),
    ],
)
def test_an_answer_of_another_domain_is_named(answer: bytes, named: str) -> None:
    (refusal,) = PublishAcks("S", "hub").refusals(answers(answer)).values()
    assert refusal == Refusal(f"{named} answers on it too", Verdict.STRANGER)


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (b"NATS/1.0 503\r\n\r\n", Refusal("no stream listens on it", Verdict.UNAVAILABLE)),
        (b"NATS/1.0 429 Too Many Requests\r\n\r\n", Refusal("Too Many Requests (429)", Verdict.TOO_MANY)),
        (
            b'{"error":{"code":429,"err_code":10167,"description":"too many requests"}}',
            Refusal("too many requests (429, 10167)", Verdict.TOO_MANY),
        ),
        (
            b'{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}',
            Refusal("another stream listens on it (expected stream does not match, 10060)", Verdict.NO_SUCH_SUBJECT),
        ),
        (
            b'{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}',
            Refusal("message size exceeds maximum allowed (400, 10054)", Verdict.BAD_ROW),
        ),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"}}',
            Refusal("maximum messages per subject exceeded (503, 10077)", Verdict.BAD_ROW),
        ),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}',
            Refusal("maximum messages exceeded (503, 10077)", Verdict.REJECTED),
        ),
        (
            b'{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"S"}',
            Refusal("duplicate message id is in process (409, 10158)", Verdict.IN_PROCESS),
        ),
        (
            b'{"error":{"code":500,"err_code":10118,"description":"stream is offline"},"stream":"S","seq":0}',
            Refusal("stream is offline (500, 10118)", Verdict.UNAVAILABLE),
        ),
        (b'{"stream":"T","seq":7}', Refusal("something other than the stream answers on it: b'", Verdict.REJECTED)),
        (b"", Refusal("something other than the stream answers on it: b''", Verdict.STRANGER)),
        (b"ok", Refusal("something other than the stream answers on it: b'ok'", Verdict.STRANGER)),
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
    assert list(acks.refusals(found)) == [1]


NO, ROW, PLACE, TOO_MANY, AWAY = (
    Verdict.REJECTED,
    Verdict.BAD_ROW,
    Verdict.NO_SUCH_SUBJECT,
    Verdict.TOO_MANY,
    Verdict.UNAVAILABLE,
)
OF_PUBLISHING = {
    10002: NO,  # resource limits exceeded for account
    10007: AWAY,  # JetStream cluster not assigned to this server
    10008: AWAY,  # JetStream system temporarily unavailable
    10009: AWAY,  # JetStream cluster can not handle request
    10023: NO,  # insufficient resources: the server's disk or memory is full
    10039: AWAY,  # JetStream not enabled for account
    10054: ROW,  # message size exceeds maximum allowed
    10060: PLACE,  # expected stream does not match
    10063: NO,  # expected stream sequence does not match: between servers of a cluster
    10070: ROW,  # wrong last msg ID
    10071: Verdict.CONFLICT,  # wrong last sequence
    10076: AWAY,  # JetStream not enabled
    10097: ROW,  # header size exceeds maximum allowed of 64k
    10109: NO,  # invalid operation on sealed stream
    10111: ROW,  # rollup not permitted, or its value is invalid
    10118: AWAY,  # stream is offline
    10119: AWAY,  # consumer is offline
    10120: NO,  # no JetStream default or applicable tiered limit present
    10158: Verdict.IN_PROCESS,  # duplicate message id is in process
    10163: AWAY,  # expected last sequence per subject temporarily unavailable
    10164: TOO_MANY,  # wrong last sequence: another message of the subject is being stored
    10165: ROW,  # invalid per-message TTL
    10166: ROW,  # per-message TTL is disabled
    10167: TOO_MANY,  # too many requests
    10168: ROW,  # message counters is disabled
    10169: ROW,  # message counter increment is missing
    10170: ROW,  # message counter has payload
    10171: ROW,  # message counter increment is invalid
    10172: ROW,  # message counter is broken: that of its subject
    10174: NO,  # atomic publish is disabled
    10175: NO,  # atomic publish sequence is missing
    10176: Verdict.INCOMPLETE,  # atomic publish batch is incomplete
    10177: NO,  # atomic publish unsupported header used: only for rows that are stored together
    10179: NO,  # atomic publish batch ID is invalid
    10188: ROW,  # message schedules is disabled
    10189: ROW,  # message schedules pattern is invalid
    10190: ROW,  # message schedules target is invalid
    10191: ROW,  # message schedules invalid per-message TTL
    10192: ROW,  # message schedules invalid rollup
    10193: ROW,  # missing sequence for expected last sequence per subject
    10194: AWAY,  # stream is offline, with a reason
    10195: AWAY,  # consumer is offline, with a reason
    10199: NO,  # atomic publish batch is too large
    10200: NO,  # atomic publish batch commit is invalid
    10201: Verdict.REPEATED,  # atomic publish batch contains duplicate message id
    10203: ROW,  # message schedules source is invalid
    10205: NO,  # batch publish is disabled; 10205 to 10208 and 10211 are about fast batches, which nobody here sends
    10206: NO,  # batch publish pattern is invalid
    10207: NO,  # batch publish ID is invalid
    10208: NO,  # batch publish ID unknown
    10210: TOO_MANY,  # atomic publish too many inflight
    10211: TOO_MANY,  # batch publish too many inflight
    10212: ROW,  # message schedules invalid scheduler
    10223: ROW,  # message schedules time zone is invalid
    10227: ROW,  # message stream source header is not allowed
}
"""What each code of nats-server 2.15 (its ``errors.json``) that may answer a message means for it, but for 10077."""
IN_WORDS = {
    "maximum messages exceeded": NO,
    "maximum bytes exceeded": NO,
    "maximum messages per subject exceeded": ROW,
    "message too large": Verdict.TOO_LARGE,  # for a stream in files, whatever its limits are
}
"""The same of 10077."""
_LAST_CODE = 10227  # of that file; the others answer other requests


def test_what_each_error_of_the_server_means_for_a_message_is_decided() -> None:
    def verdict_of(code: int, description: str) -> Verdict:
        status = 429 if code in (10167, 10210, 10211) else 400
        said = b'{"error":{"code":%d,"err_code":%d,"description":"%b"}}' % (status, code, description.encode())
        refusal = PublishAcks("S").refusal(answers(said), 0)
        assert refusal is not None
        return refusal.verdict

    others = set(range(10000, _LAST_CODE + 100)) - set(OF_PUBLISHING) - {10077}
    assert {code: verdict_of(code, "") for code in OF_PUBLISHING} == OF_PUBLISHING
    assert {words: verdict_of(10077, words) for words in IN_WORDS} == IN_WORDS
    assert {verdict_of(code, "") for code in others} == {NO}, "what is not known may be about every message"


@settings(max_examples=100)
@given(st.lists(st.one_of(st.binary(max_size=60), st.integers().map(lambda n: b'{"seq":%d}' % n)), max_size=9))
def test_no_answer_is_an_error(payloads: list[bytes]) -> None:
    found = answers(b"", *(payload for payload in payloads if not payload.startswith(b"NATS/1.0")))
    acks = PublishAcks("S")
    assert len(acks.sequences(found)) == len(found) >= len(acks.refusals(found))


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
    assert is_wrong_last_id(answer) is other


@pytest.mark.parametrize(
    ("answer", "stored"),
    [
        (b'{"stream":"S","seq":9,"batch":"b","count":3}', True),
        (b'{"stream":"S","domain":"","seq":9,"batch":"b","count":3}', True),
        (b'{"stream":"T","seq":9,"batch":"b","count":3}', False),
        (b'{"stream":"S","seq":9,"batch":"c","count":3}', False),
        (b'{"stream":"S","seq":9,"batch":"b","count":2}', False),
        (b'{"stream":"S","seq":9}', False),
        (b"+ACK", False),
    ],
)
def test_a_batch_is_stored_if_the_answer_names_stream_batch_and_rows(answer: bytes, stored: bool) -> None:
    refusal = PublishAcks("S").batch_refusal(answers(answer), 0, "b", 3)
    assert (refusal is None) == stored
    verdict = Verdict.REJECTED if answer.startswith(b"{") else Verdict.STRANGER
    assert stored or refusal == Refusal(f"something other than the stream answers on it: {answer!r}", verdict)


@pytest.mark.parametrize(
    "answer",
    [b"", b"+ACK", b"null", b'{"ok":true}', b'{"stream":"T","seq":1}', b'{"error":{"code":500,"description":"no"}}'],
)
def test_what_does_not_name_the_stream_stores_nothing(answer: bytes) -> None:
    assert stored_sequence_or_error(answer, "S", "") == stored_sequence_or_error(answer, "S", None) == 0
    assert stored_sequence_or_error(b'{"stream":"S","seq":7}', "S", "") == 7
    assert stored_sequence_or_error(b'{"stream":"S","domain":"hub","seq":7}', "S", None) == 7
