"""The answers to batched direct gets: the stored message is what is left when the added headers are cut off."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.errors import ProtocolError
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.direct_gets import BatchEnded, NobodyAnswers, interpret_direct_status, separate_stored_messages
from spark_nats.protocol.headers import RequestRefused, parse_status
from spark_nats.protocol.messages import Messages
from tests.unit.strategies import tokens

EOB = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: 7\r\n\r\n"
NOTHING = b"NATS/1.0 404 Message Not Found\r\n\r\n"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Stored(NamedTuple):
    subject: str
    headers: list[tuple[str, str]]
    payload: bytes
    sequence: int
    previous: int
    nanoseconds: int


def rfc3339(nanoseconds: int) -> str:
    """As Go writes it: no zeros at the end of the fraction, and no point without one."""
    seconds, rest = divmod(nanoseconds, 10**9)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return f"{EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def block_of(message: Stored, stream: str = "ORDERS") -> bytes:
    added = {
        "Nats-Stream": stream,
        "Nats-Subject": message.subject,
        "Nats-Sequence": message.sequence,
        "Nats-Time-Stamp": rfc3339(message.nanoseconds),
        "Nats-Num-Pending": 5,
        "Nats-Last-Sequence": message.previous,
    }
    lines = [f"{name}: {value}\r\n" for name, value in [*message.headers, *added.items()]]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


def answers(*blocks: bytes | tuple[bytes, bytes]) -> Messages:
    """Messages with these header blocks, and payloads where there are some, as they arrive."""
    wire = b""
    for each in blocks:
        block, payload = each if isinstance(each, tuple) else (each, b"")
        wire += b"HMSG _INBOX.x 1 %d %d\r\n%b%b\r\n" % (len(block), len(block) + len(payload), block, payload)
    return Decoder().feed(wire)[0]


sequences = st.one_of(st.integers(0, 999), st.integers(0, 2**63 - 1))
names = st.sampled_from(["A", "B", "Nats-Subject", "Nats-Sequence", "Nats-Last-Sequence", "Nats-Time-Stamp"])
values = st.sampled_from(["", "x", "7", "2026-01-01T00:00:00Z", "a: b"])
stored = st.builds(
    Stored,
    subject=tokens,
    headers=st.lists(st.tuples(names, values), max_size=4),
    payload=st.binary(max_size=30),
    sequence=sequences,
    previous=sequences,
    nanoseconds=st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 2**33).map(lambda s: s * 10**9)),
)


@settings(max_examples=150)
@given(st.lists(st.one_of(stored, st.sampled_from([EOB, NOTHING])), max_size=10))
def test_messages_come_out_as_they_were_stored_and_statuses_apart(rows: list[Stored | bytes]) -> None:
    wire = answers(*(row if isinstance(row, bytes) else (block_of(row), row.payload) for row in rows))
    messages, gotten, others = separate_stored_messages(wire)
    expected = [row for row in rows if isinstance(row, Stored)]
    assert [header for header, _ in others] == [row for row in rows if isinstance(row, bytes)]
    assert len(messages) == len(gotten) == len(expected)
    assert messages.subjects().to_pylist() == [row.subject for row in expected]
    assert messages.payloads().to_pylist() == [row.payload for row in expected]
    assert gotten.stream_sequences().tolist() == [row.sequence for row in expected]
    assert gotten.previous.tolist() == [row.previous for row in expected]
    assert gotten.timestamps().tolist() == [row.nanoseconds for row in expected]
    assert gotten.find_other_stream("ORDERS") is None
    headers = [dict(each) for each in messages.headers().values.to_pylist()]
    for row, found in zip(expected, headers, strict=True):
        kept: dict[str, list[str]] = {}
        for name, value in row.headers:
            kept.setdefault(name, []).append(value)
        assert found == kept


def test_the_head_is_the_first_messages() -> None:
    rows = [Stored("s", [], b"", i, i - 1, i * 10**9) for i in range(1, 6)]
    _, gotten, _ = separate_stored_messages(answers(*map(block_of, rows)))
    assert gotten.take(slice(2)).stream_sequences().tolist() == [1, 2]
    assert gotten.take(slice(2)).timestamps().tolist() == [10**9, 2 * 10**9]


@pytest.mark.parametrize("beginning", [b"NATS/1.0 503\r\n", b"NATS/1.0", b"A: b", b"", b"NATS/1.0\r\nA: b"])
def test_a_message_whose_own_headers_are_broken_is_a_message(beginning: bytes) -> None:
    added = block_of(Stored("s", [], b"x", 7, 6, 0)).removeprefix(b"NATS/1.0\r\n")
    messages, gotten, others = separate_stored_messages(answers((beginning + added, b"x")))
    assert others == []
    assert messages.subjects().to_pylist() == ["s"]
    assert gotten.stream_sequences().tolist() == [7]
    assert gotten.find_other_stream("ORDERS") is None
    assert messages.headers().values.to_pylist() == [[]]


@given(st.lists(st.tuples(stored, st.sampled_from(["S", "ORDERS", "ORDERS2", "MY_ORDERS"])), max_size=6), names)
def test_it_is_seen_that_another_stream_has_answered(rows: list[tuple[Stored, str]], header: str) -> None:
    said = [(header, "Nats-Stream: ORDERS")]  # which a message may say of itself
    blocks = [block_of(row._replace(headers=[*row.headers, *said]), stream) for row, stream in rows]
    _, gotten, _ = separate_stored_messages(answers(*blocks))
    others = [stream for _, stream in rows if stream != "ORDERS"]
    assert gotten.find_other_stream("ORDERS") == (others[0] if others else None)
    assert [each for each in range(len(rows)) if gotten.take(slice(each, each + 1)).find_other_stream("ORDERS")] == [
        i for i, (_, stream) in enumerate(rows) if stream != "ORDERS"
    ]


@pytest.mark.parametrize("block", [b"\r\n" * 9, b"\n" * 7, b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n" + b"A: b\r\n" * 9])
def test_what_lacks_the_added_headers_is_no_message(block: bytes) -> None:
    messages, _, others = separate_stored_messages(answers(block))
    assert len(messages) == 0
    assert others == [(block, b"")]


@pytest.mark.parametrize(("old", "new"), [(b"Sequence: 7", b"Sequence: x"), (b"Last-Sequence: 6", b"Last-Sequence: ")])
def test_a_sequence_that_is_no_number_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(ProtocolError, match="a sequence that is not a number"):
        separate_stored_messages(answers(block_of(Stored("s", [], b"", 7, 6, 0)).replace(old, new)))


@pytest.mark.parametrize(
    "time",
    [
        "",
        "Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.Z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00:00.xZ",
        "x026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.1234567890Z",
        "2026-01-01T00:00Z",
        "2026-02-30T00:00:00Z",
        "9999-12-31T00:00:00Z",
    ],
)
def test_a_time_that_is_none_is_refused(time: str) -> None:
    block = block_of(Stored("s", [], b"", 7, 6, 0)).replace(rfc3339(0).encode(), time.encode())
    _, gotten, _ = separate_stored_messages(answers(block))
    with pytest.raises(ProtocolError, match="an invalid time"):
        gotten.timestamps()


@pytest.mark.parametrize(
    ("block", "event"),
    [
        (EOB, BatchEnded(7, 3)),
        (NOTHING, BatchEnded(0, 0)),
        (b"NATS/1.0 503\r\n\r\n", NobodyAnswers()),
    ],
)
def test_a_status_tells_how_a_batch_ends(block: bytes, event: object) -> None:
    status = parse_status(block)
    assert status is not None
    assert interpret_direct_status(status) == event


@pytest.mark.parametrize(
    "block", [b"NATS/1.0 408 Bad Request\r\n\r\n", b"NATS/1.0 412 Required Api Level\r\n\r\n", b"NATS/1.0 204\r\n\r\n"]
)
def test_any_other_status_is_a_refusal(block: bytes) -> None:
    status = parse_status(block)
    assert status is not None
    assert interpret_direct_status(status) == RequestRefused(status)
