"""The decoder against the reference, nats-py's parser and its own limits."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nats.errors import ProtocolError as NatsPyProtocolError

from spark_nats.errors import ProtocolError
from spark_nats.protocol import decoder as decoder_module
from spark_nats.protocol.bytecolumns import Positions
from spark_nats.protocol.control import Control, Op
from spark_nats.protocol.decoder import Decoded, Decoder
from tests.unit.readers import decode, messages_of, read_with_nats_py
from tests.unit.reference import Message, read_server_stream
from tests.unit.strategies import (
    CRLF,
    Frame,
    block_of,
    cut,
    cuts,
    header_blocks,
    meaning_of,
    one_by_one,
    payloads,
    streams,
    subjects,
)


def assert_agrees(data: bytes, chunks: Iterable[bytes], **limits: int) -> None:
    """Hold the decoder against the reference, as it reads small chunks and as it reads large ones."""
    chunks = list(chunks)
    expected = read_server_stream(data, **limits)
    assert_equal(expected, decode(chunks, **limits))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, "SMALL", 0)
        assert_equal(expected, decode(chunks, **limits))


def assert_equal(expected: Any, got: Any) -> None:
    """Check that both have the same error or none, and the same content."""
    assert (got.error is None) == (expected.error is None), (got.error, expected.error)
    if expected.error is None:
        assert got.messages == expected.messages
        assert got.controls == expected.controls
    else:  # what came in the same chunk as the error is dropped with the connection
        assert got.messages == expected.messages[: len(got.messages)]
        assert got.controls == expected.controls[: len(got.controls)]


def feed_all(data: bytes) -> Decoded:
    return Decoder().feed(data)


# fmt: off
_PIECES = [
    b"MSG", b"HMSG", b"msg", b"MSG a 1 2", b"HMSG a 1 1 2", b"MSG a 1 0\r\n\r\n", b"HMSG a 1 r 0 0\r\n\r\n",
    b"PING", b"+OK", b"-ERR", b"INFO", b" ", b" ", b" ", b"\t", b"\r\n", b"\r\n", b"\r", b"\n",
    b"a", b"1", b"0", b"2", b"-1", b"\xff", b"\x00", b"MSG\x00a 1 0", b"99999999999999999999",
]
# fmt: on


class TestAgreementWithTheReference:
    @settings(max_examples=100)
    @given(streams, cuts)
    def test_any_stream_in_any_chunks_decodes_to_what_was_meant(self, frames: list[Frame], at: list[int]) -> None:
        wire = b"".join(frame.wire for frame in frames)
        messages, controls = meaning_of(frames)
        expected, got = read_server_stream(wire), decode(cut(wire, at))
        assert expected.error is None
        assert got.error is None
        assert got.messages == expected.messages == messages
        assert got.controls == expected.controls == controls

    @settings(max_examples=125)
    @given(
        streams.filter(bool),
        st.lists(
            st.tuples(
                st.sampled_from(["delete", "insert", "replace", "truncate"]),
                st.integers(0, 10_000),
                st.one_of(
                    st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\t", b"0", b"9", b"-", b"M"]), st.binary(max_size=3)
                ),
            ),
            min_size=1,
            max_size=3,
        ),
        cuts,
    )
    def test_a_damaged_stream_is_refused_exactly_when_the_grammar_refuses_it(
        self, frames: list[Frame], damages: list[tuple[str, int, bytes]], at: list[int]
    ) -> None:
        wire = b"".join(frame.wire for frame in frames)
        for kind, position, piece in damages:
            i = position % (len(wire) + 1)
            if kind == "truncate":
                wire = wire[:i]
            else:
                skipped = 0 if kind == "insert" else len(piece) or 1
                wire = wire[:i] + (b"" if kind == "delete" else piece) + wire[i + skipped :]
        assert_agrees(wire, cut(wire, at))

    @settings(max_examples=100)
    @given(
        st.integers(2, 12),
        st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 3), st.booleans()),
        st.lists(
            st.tuples(st.integers(0, 500) | st.integers(-4, -1), st.sampled_from(b"\r\n \t\x0009MHPa.")), max_size=3
        ),
        st.randoms(use_true_random=False),
        cuts,
    )
    def test_messages_of_one_layout_are_read_as_the_grammar_reads_them_damaged_or_not(
        self,
        count: int,
        lengths: tuple[int, int, int, bool],
        damages: list[tuple[int, int]],
        rng: random.Random,
        at: list[int],
    ) -> None:
        def some(length: int, letters: bytes) -> bytes:
            return bytes(rng.choices(letters, k=length))

        wire = bytearray()
        for _ in range(count):
            subject, reply, payload = (
                some(length, letters) for length, letters in zip(lengths, (b"ab.", b"xy", b"\r\n aM"), strict=False)
            )
            header = b"NATS/1.0\r\n\r\n" if lengths[3] else b""
            sizes = b"%d %d" % (len(header), len(header + payload)) if header else b"%d" % len(payload)
            fields = [b"HMSG" if header else b"MSG", subject, b"1", *([reply] if reply else []), sizes]
            wire += b" ".join(fields) + CRLF + header + payload + CRLF
        for position, byte in damages:
            wire[position % len(wire)] = byte
        assert_agrees(bytes(wire), cut(bytes(wire), at))

    @settings(max_examples=125)
    @given(
        st.lists(
            st.sampled_from(_PIECES),
            max_size=14,
        ).map(b"".join),
        cuts,
    )
    @example(b"HMSG12345678\r\n", [])
    @example(b"MSG a 1 0\r\n\r\nHMSG12345678\r\n", [])
    @example(b"MSG\x00a 1 0\r\n\r\n", [])
    @example(b"HMSGfoo 1 2 0 0\r\n\r\n", [])
    @example(b"MSG a\nMSG b 1 0\r\n\r\n", [])
    @example(b"MSG a 1 0\r\r\n\r\n", [])
    def test_lines_put_together_from_pieces_are_read_as_the_grammar_reads_them(
        self, wire: bytes, at: list[int]
    ) -> None:
        assert_agrees(wire, cut(wire, at))

    @settings(max_examples=75)
    @given(st.binary(max_size=60), cuts)
    def test_noise_is_never_more_than_a_protocol_error(self, noise: bytes, at: list[int]) -> None:
        assert_agrees(noise, cut(noise, at))
        wire = noise + CRLF
        assert_agrees(wire, cut(wire, at))

    @pytest.mark.parametrize("kind", ["plain", "replies", "headers", "mixed", "deceptive", "controls"])
    @pytest.mark.parametrize("chunk_size", [1 << 30, 65536, 4096, 1447, 61])
    def test_thousands_of_messages_in_chunks_of_a_socket_decode_the_same(self, kind: str, chunk_size: int) -> None:
        count = 1500 if chunk_size > 1000 else 300
        wire = bulk(kind, count)
        chunks = [wire[i : i + chunk_size] for i in range(0, len(wire), chunk_size)]
        expected, got = read_server_stream(wire), decode(chunks)
        assert expected.error is got.error is None
        assert len(expected.messages) == count
        assert got.messages == expected.messages
        assert got.controls == expected.controls


def bulk(kind: str, count: int) -> bytes:
    """Make a long stream, each time the same, for the work on whole columns."""
    rng = random.Random(kind)
    out = []
    for i in range(count):
        payload = rng.randbytes(rng.choice([0, 1, 16, 128, 200]))
        reply = header = b""
        if kind == "replies" or (kind != "plain" and rng.random() < 0.5):
            reply = b" $JS.ACK.S.C.1.%d.%d.1700000000000000000.%d" % (i + 1, i + 1, count - i)
        if kind == "headers" or (kind in ("mixed", "deceptive") and rng.random() < 0.5):
            header = block_of([("Nats-Msg-Id", str(i)), ("A", "é" * rng.randrange(4))])
        if kind == "deceptive":
            payload = rng.choice([b"", b"x"]) + rng.choice(
                [
                    b"\r\nMSG a 1 5\r\n",
                    b"\r\nMSG a 1 0\r\n\r\n",
                    b"MSG a 1 0\r\n\r\n",
                    b"\r\nPING\r\n",
                    b"\r\n" * 5,
                    payload,
                ]
            )
        if kind == "controls" and rng.random() < 0.2:
            out.append(rng.choice([b"PING\r\n", b"ping \r\n", b"+OK\r\n", b"-ERR 'x'\r\n", b'INFO {"port": 1}\r\n']))
        subject = f"orders.{'éü'[: rng.randrange(3)]}{i}".encode()
        size = b"%d" % (len(header) + len(payload))
        if header:
            size = b"%d %b" % (len(header), size)
        if kind == "mixed" and rng.random() < 0.1:
            size = rng.choice([b"\t", b" ", b"000"]) + size + rng.choice([b" ", b"", b"\t\t"])
        out.append(
            b"%b %b %d%b %b\r\n%b%b\r\n" % (b"HMSG" if header else b"MSG", subject, i % 7, reply, size, header, payload)
        )
    return b"".join(out)


class TestAgreementWithNatsPy:
    """Within what nats-py supports; see :func:`tests.unit.readers.read_with_nats_py`."""

    @settings(max_examples=100)
    @given(
        st.lists(
            st.one_of(
                st.tuples(
                    subjects,
                    st.integers(0, 2**40),
                    st.one_of(st.just(""), subjects),
                    st.one_of(st.just(b""), header_blocks),
                    payloads,
                ),
                st.sampled_from([b"PING\r\n", b"PONG\r\n", b"-ERR 'Stale Connection'\r\n", b'INFO {"port":1}\r\n']),
            ),
            max_size=6,
        ),
        cuts,
    )
    def test_both_find_the_same_messages_and_control_lines(self, frames: list[Any], at: list[int]) -> None:
        wire = b"".join(frame if isinstance(frame, bytes) else self.line(*frame) for frame in frames)
        chunks = cut(wire, at)
        ours, theirs = decode(chunks), read_with_nats_py(chunks)
        assert ours.error is None
        assert ours.messages == theirs.messages
        assert [(control.before, control.op) for control in ours.controls] == theirs.controls

    @staticmethod
    def line(subject: str, sid: int, reply: str, header: bytes, payload: bytes) -> bytes:
        sizes = f"{len(header)} {len(header) + len(payload)}" if header else f"{len(payload)}"
        fields = ["HMSG" if header else "MSG", subject, str(sid), *([reply] if reply else []), sizes]
        return " ".join(fields).encode() + CRLF + header + payload + CRLF

    def test_both_refuse_an_operation_that_is_none(self) -> None:
        with pytest.raises(NatsPyProtocolError):
            read_with_nats_py([b"PUB a 1\r\n"])
        with pytest.raises(ProtocolError):
            feed_all(b"PUB a 1\r\n")


class TestLimits:
    @pytest.mark.parametrize(
        "line",
        [
            pytest.param(b"MSG a 1", id="no-size"),
            pytest.param(b"MSG a", id="no-sid"),
            pytest.param(b"MSG", id="nothing"),
            pytest.param(b"MSG a 1 b c 2", id="too-many-fields"),
            pytest.param(b"HMSG a 1 2", id="hmsg-with-one-size"),
            pytest.param(b"HMSG a 1 r s 2 2", id="hmsg-with-too-many-fields"),
            pytest.param(b"MSG a 1 -1", id="negative-size"),
            pytest.param(b"MSG a 1 +1", id="signed-size"),
            pytest.param(b"MSG a 1 1_0", id="size-with-underscore"),
            pytest.param(b"MSG a 1 0x1", id="hexadecimal-size"),
            pytest.param(b"MSG a 1 1.0", id="fractional-size"),
            pytest.param("MSG a 1 \N{ARABIC-INDIC DIGIT ONE}".encode(), id="size-in-other-digits"),
            pytest.param(b"MSG a 1 ten", id="size-in-words"),
            pytest.param(b"MSG a 1 67108865", id="size-one-over-the-limit"),
            pytest.param(b"MSG a 1 9223372036854775808", id="size-of-two-to-the-63rd"),
            pytest.param(b"MSG a 1 18446744073709551616", id="size-of-two-to-the-64th"),
            pytest.param(b"MSG a 1 " + b"9" * 5000, id="size-of-5000-digits"),
            pytest.param(b"HMSG a 1 " + b"9" * 5000 + b" 2", id="header-size-of-5000-digits"),
            pytest.param(b"HMSG a 1 -1 2", id="negative-header-size"),
            pytest.param(b"HMSG a 1 x 2", id="header-size-in-words"),
            pytest.param(b"HMSG a 1 3 2", id="header-longer-than-message"),
            pytest.param(b"HMSG a 1 12 0", id="header-in-an-empty-message"),
            pytest.param(b"", id="empty-line"),
            pytest.param(b" MSG a 1 0", id="white-space-first"),
            pytest.param(b"MSGa 1 0", id="operation-run-together"),
            pytest.param(b"PUB a 0", id="operation-of-a-client"),
            pytest.param(b"PINGPONG", id="two-operations-run-together"),
            pytest.param(b'INFO{"port":1}', id="info-without-separator"),
            pytest.param(b"OK", id="ok-without-plus"),
            pytest.param(b"RS+ $G foo", id="operation-between-servers"),
            pytest.param(b"\x16\x03\x01\x02", id="tls"),
            pytest.param(b"HTTP/1.1 400 Bad Request", id="http"),
        ],
    )
    @pytest.mark.parametrize(
        "before", [b"", b"MSG ok 1 2\r\nhi\r\n", b"PING\r\n"], ids=["first", "after-msg", "after-ping"]
    )
    def test_a_bad_line_is_a_protocol_error_at_once(self, line: bytes, before: bytes) -> None:
        """At its CRLF already: a connection must not wait for bytes that never come."""
        wire = before + line + CRLF
        assert read_server_stream(wire).error
        for chunks in ([wire], [before, line + CRLF], one_by_one(wire), [before + line, CRLF], [wire[:-1], wire[-1:]]):
            assert decode(chunks).error

    @pytest.mark.parametrize(
        "line",
        [
            b"MSG a 1 x3",
            b"MSG a 1 -3",
            b"MSG a 1 +3",
            b"MSG a 1 3x",
            b"MSG a 1 0x3",
            b"MSG a 1 1_3",
            b"MSG a 1 100000003",
            b"MSG a 1 10000000000000000000000003",
            b"MSG a 3",
            b"MSG a 1 r s 3",
            b"HMSG a 1 4 3",
            b"HMSG a 1 67108865 3",
            b"HMSG a 1 10000000000000000000 3",
            b"HMSG a 1 -1 3",
            b"HMSG a 1 x 3",
            b"HMSG a 1 3x3",
            b"HMSG a 1 3",
            b"HMSG a 1 r s 0 3",
            b"XMSG a 1 3",
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("before", [b"", b"MSG ok 1 2\r\nhi\r\n"], ids=["first", "after-msg"])
    def test_a_bad_line_is_one_even_before_a_payload_that_would_fit(self, line: bytes, before: bytes) -> None:
        wire = before + line + b"\r\nabc\r\n"
        assert read_server_stream(wire).error
        for chunks in ([wire], [wire * 2], [before, line + CRLF, b"abc\r\n"], one_by_one(wire)):
            assert decode(chunks).error

    @pytest.mark.parametrize(
        "line", [b"MSG a 1 00000000003", b"MSG a 1 %b3" % (b"0" * 40), b"HMSG a 1 000000000 3"], ids=repr
    )
    def test_a_size_may_have_any_number_of_zeros_before_it(self, line: bytes) -> None:
        wire = line + b"\r\nabc\r\n"
        for chunks in ([wire], one_by_one(wire)):
            assert decode(chunks).messages == [Message(b"a", b"1", b"", b"", b"abc")]

    @pytest.mark.parametrize("size", [9, 10, 11, 12])
    @pytest.mark.parametrize("line", [b"MSG a 1 %d", b"msg  a 1 %d", b"HMSG a 1 2 %d", b"HMSG a 1 %d %d"])
    def test_a_message_may_be_as_large_as_the_limit_and_no_larger(self, line: bytes, size: int) -> None:
        wire = line % ((size,) * line.count(b"%d")) + CRLF + b"x" * size + CRLF
        for chunks in ([wire], [wire * 2], one_by_one(wire), wire.splitlines(keepends=True)):
            assert (decode(chunks, max_message=10).error is None) == (size <= 10)

    @pytest.mark.parametrize("after", [b"xx", b"\rx", b"x\n", b"\n\r", b"\r\r"])
    @pytest.mark.parametrize("line", [b"MSG a 1 3", b"HMSG a 1 2 3", b"MSG  a 1 3"])
    def test_a_message_that_does_not_end_in_crlf_is_a_protocol_error(self, line: bytes, after: bytes) -> None:
        wire = line + CRLF + b"abc" + after
        assert decode([wire]).error
        assert decode(one_by_one(wire)).error
        assert decode([wire + b"PING\r\n"]).error

    @pytest.mark.parametrize("op", [b"MSG ", b"INFO ", b"-ERR ", b"x"])
    def test_a_line_may_be_as_long_as_the_limit_and_no_longer(self, op: bytes) -> None:
        def line(length: int) -> bytes:
            end = b" 1 0" if op == b"MSG " else b""
            return op + b"a" * (length - len(op) - len(end)) + end + (b"\r\n\r\n" if end else b"\r\n")

        for length in (39, 40, 41, 42, 60):
            wire = line(length)
            for chunks in (
                [wire],
                one_by_one(wire),
                [wire[: length + 1], wire[length + 1 :]],
                [wire[:length], wire[length:]],
            ):
                assert (decode(chunks, max_line=40).error is None) == (length <= 40 and op != b"x"), (length, chunks)
                assert_agrees(wire, chunks, max_line=40)

    def test_a_line_without_end_is_a_protocol_error_and_not_collected_forever(self) -> None:
        decoder = Decoder()
        for _ in range(64):
            decoder.feed(b"a" * 1024)
        with pytest.raises(ProtocolError, match="longer than 65536 bytes"):
            decoder.feed(b"aa")

    @settings(max_examples=75)
    @given(streams, cuts, st.integers(5, 40), st.integers(0, 40))
    def test_limits_do_not_depend_on_how_the_bytes_arrive(
        self, frames: list[Frame], at: list[int], max_line: int, max_message: int
    ) -> None:
        wire = b"".join(frame.wire for frame in frames)
        assert_agrees(wire, cut(wire, at), max_line=max_line, max_message=max_message)

    def test_an_error_names_the_line_but_not_all_of_it(self) -> None:
        with pytest.raises(ProtocolError, match="nonsense") as caught:
            feed_all(b"nonsense " + b"x" * 10_000 + CRLF)
        assert len(str(caught.value)) < 300

    def test_an_error_shows_control_characters_escaped(self) -> None:
        with pytest.raises(ProtocolError) as caught:
            feed_all(b"\x1b[31mred\n\r\n")
        assert "\x1b" not in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_after_an_error_nothing_is_decoded_any_more(self) -> None:
        decoder = Decoder()
        with pytest.raises(ProtocolError):
            decoder.feed(b"garbage\r\n")
        with pytest.raises(ProtocolError):
            decoder.feed(b"MSG a 1 2\r\nhi\r\n")


class Effort:
    """Counts what the decoder does, so that effort can be asserted without a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scans = self.scanned_bytes = self.steps = self.runs = 0
        effort = self

        class CountingScan(decoder_module._Scan):
            def __init__(self, chunk: bytes, *limits: int) -> None:
                effort.scans += 1
                effort.scanned_bytes += len(chunk)
                super().__init__(chunk, *limits)

            def _add_frames(self, frames: Positions) -> None:
                effort.runs += 1
                super()._add_frames(frames)

            def _take_frame_or_line(self) -> bool:
                effort.steps += 1
                return super()._take_frame_or_line()

        monkeypatch.setattr(decoder_module, "_Scan", CountingScan)


@pytest.fixture
def effort(monkeypatch: pytest.MonkeyPatch) -> Effort:
    return Effort(monkeypatch)


class TestEffort:
    @pytest.mark.parametrize("line", [b"MSG a 1 1048576\r\n", b"HMSG a 1 12 1048576\r\n", b"msg\ta  1\t1048576 \r\n"])
    def test_a_large_payload_in_a_thousand_pieces_is_scanned_twice(self, effort: Effort, line: bytes) -> None:
        wire = line + b"\r\nPING\r\nMSG a 1 3\r\n".ljust(1 << 20, b"x") + CRLF
        pieces = [wire[i : i + 1050] for i in range(0, len(wire), 1050)]
        assert len(pieces) > 990
        result = decode(pieces)
        assert [len(message.header + message.payload) for message in result.messages] == [1 << 20]
        assert effort.scans <= 2
        assert effort.scanned_bytes < 1.1 * len(wire)

    def test_a_payload_fed_byte_by_byte_is_scanned_once_when_complete(self, effort: Effort) -> None:
        wire = b"MSG a 1 20000\r\n" + b"x" * 20_000 + CRLF
        assert len(decode(one_by_one(wire)).messages) == 1
        assert effort.scans <= len("MSG a 1 20000\r\n") + 1

    def test_a_torn_frame_is_rescanned_and_the_frames_before_it_are_not(self, effort: Effort) -> None:
        wire = bulk("mixed", 3000)
        pieces = [wire[i : i + 4096] for i in range(0, len(wire), 4096)]
        assert len(decode(pieces).messages) == 3000
        assert effort.scans <= len(pieces)
        assert effort.scanned_bytes < 1.3 * len(wire)

    @pytest.mark.parametrize("kind", ["plain", "replies", "headers"])
    def test_only_the_first_message_is_read_by_itself_as_a_server_writes_them(self, effort: Effort, kind: str) -> None:
        assert len(feed_all(bulk(kind, 2000)).messages) == 2000
        assert (effort.runs, effort.steps) == (1, 1)

    def test_only_the_first_of_messages_with_and_without_headers_is_read_by_itself(self, effort: Effort) -> None:
        wire = b"".join(bulk("headers", 10) + bulk("plain", 7) + bulk("replies", 5) for _ in range(20))
        assert len(feed_all(wire).messages) == 20 * 22
        assert effort.steps == 1

    def test_payloads_that_imitate_messages_are_taken_in_one_run_like_others(self, effort: Effort) -> None:
        payload = b"\r\nMSG a 1 5\r\nabcde\r\nMSG a 1 0\r\n\r\n"
        wire = b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload) * 100
        assert len(feed_all(wire).messages) == 100
        assert (effort.runs, effort.steps) == (1, 1)

    def test_answers_are_read_without_a_guess(self, effort: Effort, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(decoder_module, "_Guess")
        wire = b"".join(b'MSG _INBOX.a.%05d 1 27\r\n{"stream":"S","seq":%06d}\r\n' % (i, i) for i in range(1000))
        assert len(feed_all(wire + b"MSG _INBOX.a.01000 1 27").messages) == 1000
        assert (effort.runs, effort.steps) == (1, 2)

    def test_a_control_line_costs_one_step(self, effort: Effort) -> None:
        wire = bulk("plain", 100) + b"PING\r\n" + bulk("plain", 100) + b"PING\r\n"
        decoded = feed_all(wire)
        assert [before for before, _ in decoded.controls] == [100, 200]
        assert effort.steps == 1 + 2


class TestDecodedColumns:
    WIRE = (
        b"MSG foo 1 5\r\nhello\r\n"
        b"MSG foo.bar 22 _INBOX.x 0\r\n\r\n"
        b"HMSG caf\xc3\xa9 3 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
        b"HMSG baz 4 r 25 25\r\nNATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n\r\n".replace(b"25 25", b"24 24")
        + b"HMSG i 5 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    )

    def test_an_empty_chunk_changes_nothing(self) -> None:
        decoder = Decoder()
        assert len(decoder.feed(b"").messages) == 0
        assert len(decoder.feed(b"MSG a 1 ").messages) == 0
        assert decoder.feed(b"").controls == []
        assert messages_of(decoder.feed(b"2\r\nhi\r\n").messages) == [Message(b"a", b"1", b"", b"", b"hi")]
        assert len(decoder.feed(b"").messages) == 0

    def test_each_part_is_a_column(self) -> None:
        messages = feed_all(self.WIRE).messages
        assert len(messages) == 5
        assert messages.subjects().to_pylist() == ["foo", "foo.bar", "café", "baz", "i"]
        assert messages.sids().tolist() == [1, 22, 3, 4, 5]
        assert messages.decoded(messages.reply).values.to_pylist() == [None, "_INBOX.x", None, "r", None]
        assert messages.payloads().to_pylist() == [b"hello", b"", b"hi", b"", b""]
        assert messages.headers().values.to_pylist() == [[], [], [], [("A", ["1", "2"])], []]
        assert messages.headers().malformed == 0

    def test_single_messages_are_accessible_by_index(self) -> None:
        messages = feed_all(self.WIRE).messages
        assert [messages.subject_at(i) for i in range(5)] == messages.subjects().to_pylist()
        assert [messages.payload_at(i) for i in range(5)] == messages.payloads().to_pylist()
        assert messages.header_at(0) == b""
        assert messages.header_at(2) == b"NATS/1.0\r\n\r\n"

    @pytest.mark.parametrize(
        "chosen", [slice(1, 3), slice(0, 0), np.array([0, 2, 4]), np.array([True, False, False, True, True])], ids=str
    )
    def test_chosen_messages_keep_all_their_parts(self, chosen: Any) -> None:
        messages = feed_all(self.WIRE).messages
        everything = np.empty(5, object)
        everything[:] = messages_of(messages)
        assert messages_of(messages.take(chosen)) == list(everything[chosen])

    @pytest.mark.parametrize(
        "chosen", [slice(None), slice(1, 3), slice(0, 0), np.array([0, 2, 4]), np.array([4])], ids=str
    )
    def test_the_wire_of_chosen_messages_is_theirs_alone(self, chosen: Any) -> None:
        messages = feed_all(b"PING\r\n" + self.WIRE.replace(b"HMSG baz", b"+OK\r\nHMSG baz")).messages.take(chosen)
        assert messages_of(feed_all(messages.wire()).messages) == messages_of(messages)
        assert b"PING" not in messages.wire()

    def test_a_sid_that_is_no_number_is_minus_one(self) -> None:
        messages = feed_all(b"MSG a RSID:1:1 0\r\n\r\nMSG a 7 0\r\n\r\nMSG a x 0\r\n\r\n").messages
        assert messages.sids().tolist() == [-1, 7, -1]

    def test_bytes_that_are_no_utf8_are_replaced_each_message_for_itself(self) -> None:
        """Two halves of a character in neighbouring messages must not make a whole one."""
        messages = feed_all(b"MSG \xc3 1 \xc3 0\r\n\r\nMSG \xa9 1 \xa9 0\r\n\r\nMSG ok 1 0\r\n\r\n").messages
        assert messages.subjects().to_pylist() == ["\ufffd", "\ufffd", "ok"]
        assert messages.decoded(messages.reply).values.to_pylist() == ["\ufffd", "\ufffd", None]
        assert messages.subject_at(0) == "\ufffd"

    def test_no_messages_are_columns_without_rows(self) -> None:
        messages = feed_all(b"PING\r\n").messages
        assert messages.subjects().to_pylist() == []
        assert messages.decoded(messages.reply).values.to_pylist() == []
        assert messages.payloads().to_pylist() == []
        assert messages.headers().values.to_pylist() == []
        assert messages.sids().tolist() == []
        assert messages.wire() == b""

    def test_control_lines_know_how_many_messages_of_their_chunk_came_before(self) -> None:
        decoded = feed_all(b"PING\r\nMSG a 1 0\r\n\r\n+OK\r\nMSG a 1 0\r\n\r\nMSG a 1 0\r\n\r\n-ERR 'x'\r\nINFO {}\r\n")
        assert decoded.controls == [
            (0, Control(Op.PING)),
            (1, Control(Op.OK)),
            (3, Control(Op.ERR, b"'x'")),
            (3, Control(Op.INFO, b"{}")),
        ]
