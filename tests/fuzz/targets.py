"""What may become of arbitrary bytes: the right values, or a :class:`ProtocolError`; never anything else.

Each target takes one input and fails with whatever is not allowed to happen. Where there is a reference that reads the
same bytes slowly, the two have to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from spark_nats.client import Connection, Credentials
from spark_nats.client.connection import Reply
from spark_nats.errors import NatsError, ProtocolError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.durables import DurableHandle
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.listing import ask_account_info, ask_all_stream_states, ask_stream_names
from spark_nats.jetstream.messages import ask_first_sequence_from, ask_first_since, ask_last_sequence
from spark_nats.jetstream.streams import INTEREST, WORK_QUEUE, StreamInfo
from spark_nats.jetstream.times import ask_first_at
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.tables.read import (
    ask_holding_and_problem_rows,
    ask_subject_rows,
    request_consumer_rows,
    request_stream_rows,
)
from spark_nats.kinds.tables.wire import bucket_row, stream_row
from spark_nats.protocol import decoder as decoder_module
from spark_nats.protocol.control import ConnectOptions, ServerInfo, parse_info
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.deliveries import Deliveries, interpret_pull_status
from spark_nats.protocol.direct_gets import interpret_direct_status, separate_stored_messages
from spark_nats.protocol.documents import MAX_INTEGER
from spark_nats.protocol.headers import parse_blocks, parse_status
from spark_nats.protocol.users import parse_user_info
from tests.operator_mode import Key
from tests.unit.readers import decode
from tests.unit.reference import headers_of, read_server_stream

FOLDER = Path(__file__).parent
SIGNER = Credentials(nkey_seed=Key().seed)
_STREAM = StreamInfo("S", "2026-01-01T00:00:00Z", 1, 9, 9, 99, 0, "", ("a",), {"allow_direct": True})
_SMALL = decoder_module.SMALL
_LIMITS = {"max_line": 512, "max_message": 4096}  # small, so that they are met


def decoder(data: bytes) -> None:
    """The first byte says in which chunks the rest arrives."""
    if not data:
        return
    size, wire = data[0] or len(data), data[1:]
    chunks = [wire[i : i + size] for i in range(0, len(wire), size)]
    expected = read_server_stream(wire, **_LIMITS)
    for decoder_module.SMALL in (0, _SMALL):
        _compare(expected, decode(chunks, **_LIMITS))


def _compare(expected: Any, found: Any) -> None:
    assert (expected.error is None) == (found.error is None), (expected.error, found.error)
    if expected.error is None:
        assert found.messages == expected.messages
        assert found.controls == expected.controls
    else:
        assert found.messages == expected.messages[: len(found.messages)]
        assert found.controls == expected.controls[: len(found.controls)]


def info(data: bytes) -> None:
    """What stands behind INFO."""
    try:
        parsed = parse_info(data)
    except ProtocolError:
        return
    assert 0 <= parsed.max_payload <= MAX_INTEGER
    assert all(isinstance(url, str) for url in parsed.connect_urls)
    with suppress(NatsError):
        assert SIGNER.add_to(ConnectOptions(), parsed).encode().endswith(b"}\r\n")


def headers(data: bytes) -> None:
    """Header blocks of a batch, divided by NUL bytes."""
    blocks = data.split(b"\x00")
    column = parse_blocks(pa.array(blocks, pa.binary()))
    column.values.validate(full=True)
    expected = [headers_of(block) for block in blocks]
    assert column.values.to_pylist() == [list(headers.items()) for headers, _ in expected]
    assert column.malformed == sum(malformed for _, malformed in expected)
    for block in blocks:
        status = parse_status(block)
        if status is not None:
            assert 0 <= status.code <= 999
            assert all((status.number(name) or 0) >= 0 for name in status.headers)
            assert interpret_pull_status(status) is not None


def acknowledgements(data: bytes) -> None:
    """Reply subjects of a batch, divided by line feeds."""
    subjects = data.split(b"\n")
    expected = [_numbers_of(subject) for subject in subjects]
    try:
        deliveries = Deliveries(pa.array(subjects, pa.binary()))
        sequences, timestamps = deliveries.stream_sequences().tolist(), deliveries.timestamps().tolist()
    except ProtocolError:
        assert None in expected
        return
    assert None not in expected
    assert list(zip(sequences, timestamps, strict=True)) == expected


def _numbers_of(subject: bytes) -> tuple[int, int] | None:
    """Return stream sequence and time as ADR-15 has them, None where the subject is none of its forms."""
    tokens = subject.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"] or len(tokens) not in (9, 11, 12):
        return None
    numbers = tokens[4 if len(tokens) == 9 else 6 :]
    sequence, time = numbers[1], numbers[3]
    for number in (sequence, time):
        if not (number.isdigit() and len(number) <= 19 and int(number) < 2**63):
            return None
    return int(sequence), int(time)


class _Repeating:
    """A connection on which every request gets the same answer."""

    server = "nats://localhost"
    info = ServerInfo(version="2.15.1")

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def request(self, subject: str, payload: bytes, header: bytes | None = None) -> Reply:
        return Reply(self._answer, b"")

    def request_all(
        self,
        requests: Sequence[tuple[str, bytes, bytes | None]],
        timeout: float | None = None,
        expected: Sequence[bytes] = (),
    ) -> list[Reply]:
        return [self.request(*each) for each in requests]


def answers(data: bytes) -> None:
    """An answer of the JetStream API, to each of our questions."""
    js = JetStream(cast(Connection, _Repeating(data)))
    with suppress(NatsError):
        found = ask_stream_info(js, "S")
        assert found.name == "S"
        assert 0 <= found.first_sequence <= MAX_INTEGER + 1
        assert 0 <= found.last_sequence <= MAX_INTEGER
        found.created.encode()
    with suppress(NatsError):
        assert 0 <= ask_last_sequence(js, "S", ["a"]) <= MAX_INTEGER
    with suppress(NatsError):
        assert 0 <= (ask_first_sequence_from(js, "S", 1, ["a"]) or 0) <= MAX_INTEGER
    with suppress(NatsError):
        assert 0 < ask_first_at(js, ask_stream_info(js, "S"), datetime.now(UTC)).sequence <= MAX_INTEGER + 1
    with suppress(NatsError):
        assert 1 <= ask_first_since(js, "S", 0, 1, 100) <= 100
    with suppress(NatsError):
        assert all(name.encode() is not None for name in ask_stream_names(js, "a"))
    for retention in (WORK_QUEUE, INTEREST):
        with suppress(NatsError):
            state = replace(_STREAM, retention=retention)
            hold = DurableHandle("S", "d", ("a",), patience=0.0)
            hold.create_or_take_over(js, state)
            hold.release_messages_before(js, state, 5)
    with suppress(NatsError):
        assert len({info.name for info in ask_all_stream_states(js)}) < len(data)
    for row_of in (stream_row, bucket_row):
        with suppress(NatsError):
            assert all(request_stream_rows(js, ["S", "KV_S"], row_of))
    with suppress(NatsError):
        assert all(request_consumer_rows(js, ["S", "KV_S"]))
    with suppress(NatsError):
        assert set(ask_holding_and_problem_rows(js, ["S"])[0]) <= {"S"}
    with suppress(NatsError):
        assert all(row["stream"] == "S" for row in ask_subject_rows(js, "S", ()))
    with suppress(NatsError):
        assert 0 <= ask_account_info(js).streams.used <= MAX_INTEGER
    with suppress(ValueError):
        assert parse_user_info(data).name.isprintable()
    try:
        create_stream_if_missing(js, {"name": "S"})
    except NatsError as error:
        str(error).encode()


def direct_gets(data: bytes) -> None:
    """Header blocks of the answers to a direct get, divided by NUL bytes."""
    blocks = [block for block in data.split(b"\x00") if block]
    wire = b"".join(b"HMSG a 1 %d %d\r\n%b\r\n" % (len(block), len(block), block) for block in blocks)
    try:
        messages, gotten, others = separate_stored_messages(Decoder().feed(wire).messages)
        times = gotten.timestamps()
    except ProtocolError:
        return
    assert len(messages) + len(others) == len(blocks)
    assert len(messages) == len(times) == len(gotten.stream_sequences())
    messages.subjects().validate(full=True)
    messages.headers().values.validate(full=True)
    for status in filter(None, (parse_status(header) for header, _ in others)):
        assert interpret_direct_status(status) is not None


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (decoder, info, headers, acknowledgements, answers, direct_gets)
}


def inputs(name: str) -> Iterator[Path]:
    """Give the inputs that are kept for a target: real exchanges, and what was once found."""
    yield from sorted((FOLDER / "corpus" / name).iterdir())
