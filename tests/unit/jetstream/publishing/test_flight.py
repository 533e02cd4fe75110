"""Which messages are stored, told from answers in any order, doubled, late or missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.errors import PublishError
from spark_nats.jetstream.publishing.flight import Elsewhere, Flight, FlightState, Rows
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, Verdict
from spark_nats.protocol.stream_configs import MAX_MESSAGE_SIZE

TOO_MANY = b'{"error":{"code":429,"err_code":10167,"description":"too many requests"},"stream":"S","seq":0}'

LARGE = b'{"error":{"code":503,"err_code":10077,"description":"message too large"},"stream":"S","seq":0}'


def rows(count: int, first: int = 0, with_ids: bool = True) -> Rows:
    texts = pa.array([str(number) for number in range(first, first + count)])
    return Rows(np.arange(first, first + count), texts, texts, None, texts if with_ids else None)


def flight_of(first: int = 0) -> Flight:
    return Flight("i", first, PublishAcks("S"), 0.0)


def answers(subjects: Sequence[str], refused: Sequence[bool] = ()) -> Messages:
    """Answers on these subjects, as they arrive; sequences are told by the place."""
    wire = b""
    for i, subject in enumerate(subjects):
        payload = TOO_MANY if i < len(refused) and refused[i] else b'{"stream":"S","seq":%d}' % (i + 1)
        wire += b"MSG %b 1 %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)
    return Decoder().feed(wire).messages


def numbers_of(parts: list[Rows]) -> list[int]:
    return [number for part in parts for number in part.numbers.tolist()]


@settings(max_examples=50)
@given(st.data())
def test_an_answer_that_names_its_message_is_believed_once(data: st.DataObject) -> None:
    flight = flight_of(first=7)
    subjects: list[str] = []
    fates: dict[int, str] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        count = data.draw(st.integers(1, 8))
        subjects += flight.note_sent_and_get_replies(rows(count, len(subjects)), 1.0).to_pylist()
        due = next((row for row in range(len(subjects)) if row not in fates), 0)
        anything = st.lists(st.integers(0, len(subjects) - 1), min_size=1, max_size=12)
        come = data.draw(anything | st.integers(due + 1, len(subjects)).map(lambda end, due=due: [*range(due, end)]))
        refused = data.draw(st.lists(st.booleans(), min_size=len(come), max_size=len(come)))
        told = flight.note_answers(answers([subjects[i] for i in come], refused), 2.0)
        news = {}
        for row, is_refused in zip(come, refused, strict=True):
            if row not in fates:
                fates[row] = news[row] = "refused" if is_refused else "stored"
        stored = [] if told is None else [flight.row(message).numbers[0] for message in told.messages.tolist()]
        assert sorted(stored) == sorted(row for row, fate in news.items() if fate == "stored")
    left = [row for row in range(len(subjects)) if fates.get(row) != "stored"]
    assert numbers_of(flight.unstored_rows()) == left
    assert flight.unstored == len(left)
    assert flight.in_flight == len(subjects) - len(fates)
    assert {each.row for each in flight.refused.values()} == {r for r, fate in fates.items() if fate == "refused"}
    gap = any(row not in fates for row in range(max(fates, default=0)))
    expected = FlightState.REFUSED if flight.refused else FlightState.OUT_OF_ORDER if gap else FlightState.IN_ORDER
    assert flight.state is expected


def test_answers_to_what_was_sent_before_say_nothing() -> None:
    before = flight_of()
    old = before.note_sent_and_get_replies(rows(10), 1.0).to_pylist()
    flight = flight_of(before.end)
    new = flight.note_sent_and_get_replies(rows(10), 1.0).to_pylist()
    assert not set(old) & set(new)
    assert flight.note_answers(answers(old), 2.0) is None
    assert flight.in_flight == 10
    flight.note_answers(answers(new), 2.0)
    assert flight.unstored == 0


@pytest.mark.parametrize("subject", ["i.x", "i.-1", "i.", "i.999999"])
def test_an_answer_to_nothing_that_was_sent_is_an_error(subject: str) -> None:
    flight = flight_of()
    flight.note_sent_and_get_replies(rows(3), 1.0)
    with pytest.raises(PublishError, match="belongs to none of the rows that were sent"):
        flight.note_answers(answers([subject]), 2.0)


def test_rows_without_ids_can_be_repeated_only_while_it_is_known_of_all_what_became_of_them() -> None:
    flight = flight_of()
    subjects = flight.note_sent_and_get_replies(rows(3, with_ids=False), 1.0).to_pylist()
    assert not flight.can_resend_unknown
    flight.note_answers(answers(subjects, [False, True, False]), 2.0)
    assert flight.can_resend_unknown
    (left,) = flight.unstored_rows()
    assert (left.numbers.tolist(), left.again) == ([1], False)


@pytest.mark.parametrize(
    ("size", "verdict", "added"),
    [
        (MAX_MESSAGE_SIZE + 1, Verdict.BAD_ROW, ""),
        (4, Verdict.REJECTED, ", though it has only 5 bytes: nats-server 2.14.0 to "),
    ],
)
def test_a_small_row_that_a_store_calls_too_large_is_not_a_bad_one(size: int, verdict: Verdict, added: str) -> None:
    """nats-server 2.14.0 to 2.14.3 refuse every message with these words, once they have refused one."""
    flight = flight_of()
    given = rows(1)._replace(payloads=pa.array([bytes(size)]), headers=pa.array([b"h"]))
    subject = flight.note_sent_and_get_replies(given, 1.0)[0].as_py()
    flight.note_answers(Decoder().feed(b"MSG %b 1 %d\r\n%b\r\n" % (subject.encode(), len(LARGE), LARGE)).messages, 2.0)
    assert flight.refused[0].verdict is verdict
    assert flight.refused[0].reason.startswith(f"message too large (503, 10077){added}")


def test_a_message_that_is_decided_about_is_sent_again_with_another_header_or_not() -> None:
    flight = flight_of()
    given = rows(4)._replace(headers=pa.array([b"h0", b"h1", b"h2", b"h3"]))
    subjects = flight.note_sent_and_get_replies(given, 1.0).to_pylist()
    flight.note_answers(answers(subjects, [False, True, True, True]), 2.0)
    flight.note_resend_or_done(1, b"other")
    flight.note_resend_or_done(2, None)
    (left,) = flight.unstored_rows()
    assert left.numbers.tolist() == [1, 3]
    assert left.headers.to_pylist() == [b"other", b"h3"]
    assert flight.refused[1].verdict is Verdict.RESOLVED


def said(subject: str, payload: bytes) -> bytes:
    return b"MSG %b 1 %d\r\n%b\r\n" % (subject.encode(), len(payload), payload)


@settings(max_examples=200)
@given(st.data())
def test_of_two_streams_in_two_domains_one_stores_what_it_acknowledges(data: st.DataObject) -> None:
    """Either answers each message once; only acknowledgements say who."""
    flight = Flight("i", 0, PublishAcks("S", "hub"), 0.0, Elsewhere(possible=True))
    count = data.draw(st.integers(1, 6))
    subjects = flight.note_sent_and_get_replies(rows(count), 1.0).to_pylist()
    stores = {name: data.draw(st.lists(st.booleans(), min_size=count, max_size=count)) for name in ("hub", "leaf")}
    due = data.draw(st.permutations([(name, i) for name in stores for i in range(count)]))
    found: list[int] = []
    while due:
        come, due = due[: (size := data.draw(st.integers(1, len(due))))], due[size:]
        wire = b"".join(
            said(subjects[i], b'{"stream":"S","domain":"%b","seq":%d}' % (name.encode(), i + 1))
            if stores[name][i]
            else said(subjects[i], TOO_MANY)
            for name, i in come
        )
        if (stored := flight.note_answers(Decoder().feed(wire).messages, 2.0)) is not None:
            found += [int(flight.row(message).numbers[0]) for message in stored.messages.tolist()]
    assert sorted(found) == [i for i in range(count) if stores["hub"][i]]
    assert sorted(each.row for each in flight.refused.values()) == [i for i in range(count) if not stores["hub"][i]]
    assert flight.in_flight == 0
    assert not flight.is_refusal_unconfirmed
