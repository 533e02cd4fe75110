"""The encoder: what it writes is read back by the reference, by the decoder and by nats-py's parser."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.encoder import encode_message, encode_messages
from spark_nats.protocol.messages import numbered_subjects
from tests.unit.readers import decode, read_with_nats_py
from tests.unit.reference import Message, Publication, read_client_stream
from tests.unit.strategies import cut, cuts, header_blocks, payloads, subjects


class Row(NamedTuple):
    subject: str
    reply: str | None
    header: bytes | None
    payload: bytes

    def publication(self) -> Publication:
        return Publication(self.subject.encode(), self.reply and self.reply.encode(), self.header, self.payload)


rows = st.lists(
    st.builds(Row, subjects, st.one_of(st.none(), subjects), st.one_of(st.none(), header_blocks), payloads),
    max_size=7,
)


def encode(batch: list[Row], skip: int = 0) -> bytes:
    return encode_messages(
        pa.array([row.subject for row in batch], pa.string()).slice(skip),
        pa.array([row.payload for row in batch], pa.binary()).slice(skip),
        pa.array([row.reply for row in batch], pa.string()).slice(skip),
        pa.array([row.header for row in batch], pa.binary()).slice(skip),
    ).to_pybytes()


def delivered(wire: bytes, sids: list[int]) -> bytes:
    """Make of publications what a server makes of them: ``PUB a`` becomes ``MSG a <sid>``."""
    out = []
    for publication, sid in zip(read_client_stream(wire), sids, strict=True):
        assert isinstance(publication, Publication)
        header = publication.header or b""
        sizes = b"%d" % (len(header) + len(publication.payload))
        if header:
            sizes = b"%d %b" % (len(header), sizes)
        reply = b" " + publication.reply if publication.reply else b""
        op = b"HMSG" if header else b"MSG"
        out.append(
            b"%b %b %d%b %b\r\n%b%b\r\n" % (op, publication.subject, sid, reply, sizes, header, publication.payload)
        )
    return b"".join(out)


class TestColumns:
    @settings(max_examples=75)
    @given(rows, st.integers(0, 3))
    def test_each_row_is_one_publication(self, batch: list[Row], skip: int) -> None:
        assert read_client_stream(encode(batch, skip)) == [row.publication() for row in batch[skip:]]

    @settings(max_examples=75)
    @given(rows)
    def test_a_batch_is_its_messages_one_after_another(self, batch: list[Row]) -> None:
        single = [encode_message(row.subject, row.payload, row.reply, row.header) for row in batch]
        assert encode(batch) == b"".join(single)

    @settings(max_examples=50)
    @given(rows, cuts)
    def test_what_is_published_is_what_is_decoded_after_delivery(self, batch: list[Row], at: list[int]) -> None:
        wire = delivered(encode(batch), list(range(1, len(batch) + 1)))
        result = decode(cut(wire, at))
        assert result.error is None
        assert result.messages == [
            Message(row.subject.encode(), b"%d" % i, (row.reply or "").encode(), row.header or b"", row.payload)
            for i, row in enumerate(batch, 1)
        ]

    @settings(max_examples=50)
    @given(rows)
    def test_nats_py_reads_what_is_published(self, batch: list[Row]) -> None:
        wire = delivered(encode(batch), list(range(len(batch))))
        assert read_with_nats_py([wire]).messages == [
            Message(row.subject.encode(), b"%d" % i, (row.reply or "").encode(), row.header or b"", row.payload)
            for i, row in enumerate(batch)
        ]

    @pytest.mark.parametrize("subject_type", [pa.string(), pa.large_string(), pa.binary()], ids=str)
    @pytest.mark.parametrize("payload_type", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()], ids=str)
    def test_columns_may_be_of_any_type_of_text_or_bytes(
        self, subject_type: pa.DataType, payload_type: pa.DataType
    ) -> None:
        subject = pa.array(["a", "é.b"]).cast(subject_type)
        payload = pa.array(["", "ü"]).cast(payload_type)
        assert encode_messages(subject, payload).to_pybytes() == "PUB a 0\r\n\r\nPUB é.b 2\r\nü\r\n".encode()

    def test_a_null_among_the_values_of_a_dictionary_is_a_null(self) -> None:
        """Arrow does not count it as one."""
        first = pa.array([0, 1], pa.int32())
        replies = pa.DictionaryArray.from_arrays(first, pa.array(["r", None]))
        headers = pa.DictionaryArray.from_arrays(first, pa.array([b"NATS/1.0\r\n\r\n", None]))
        assert replies.null_count == headers.null_count == 0
        wire = encode_messages(pa.array(["a", "b"]), pa.array([b"1", b"2"]), replies, headers)
        assert wire.to_pybytes() == b"HPUB a r 12 13\r\nNATS/1.0\r\n\r\n1\r\nPUB b 1\r\n2\r\n"

    def test_sizes_are_those_of_bytes_and_not_of_characters(self) -> None:
        wire = encode_messages(
            pa.array(["é"]), pa.array(["日本"]), None, pa.array([b"NATS/1.0\r\nA: \xc3\xa9\r\n\r\n"])
        )
        assert wire.to_pybytes() == "HPUB é 19 25\r\nNATS/1.0\r\nA: é\r\n\r\n日本\r\n".encode()

    def test_rows_with_and_without_headers_and_replies_are_mixed(self) -> None:
        block = b"NATS/1.0\r\nA: 1\r\n\r\n"
        wire = encode_messages(
            pa.array(["a", "b", "c", "d"]),
            pa.array([b"1", b"", b"3", b""]),
            pa.array([None, "r", "r", None]),
            pa.array([None, None, block, block]),
        )
        assert wire.to_pybytes() == (
            b"PUB a 1\r\n1\r\nPUB b r 0\r\n\r\nHPUB c r 18 19\r\n%b3\r\nHPUB d 18 18\r\n%b\r\n" % (block, block)
        )

    @pytest.mark.parametrize("replies", [None, pa.nulls(2, pa.string()), pa.nulls(2)], ids=["none", "nulls", "untyped"])
    @pytest.mark.parametrize("headers", [None, pa.nulls(2, pa.binary()), pa.nulls(2)], ids=["none", "nulls", "untyped"])
    def test_absent_columns_and_columns_of_nulls_say_the_same(self, replies: pa.Array, headers: pa.Array) -> None:
        wire = encode_messages(pa.array(["a", "b"]), pa.array([b"1", b"2"]), replies, headers)
        assert wire.to_pybytes() == b"PUB a 1\r\n1\r\nPUB b 1\r\n2\r\n"

    def test_no_rows_are_no_bytes(self) -> None:
        assert encode([]) == b""
        assert encode_messages(pa.array([], pa.string()), pa.array([], pa.binary())).to_pybytes() == b""

    def test_an_empty_reply_is_no_reply(self) -> None:
        wire = encode_messages(pa.array(["a"]), pa.array([b"1"]), pa.array([""])).to_pybytes()
        assert read_client_stream(wire) == [Publication(b"a", None, None, b"1")]
        assert read_client_stream(encode_message("a", b"1", "")) == [Publication(b"a", None, None, b"1")]


@settings(max_examples=50)
@given(st.integers(0, 30_000) | st.integers(0, 10**15), st.integers(0, 50) | st.integers(9_000, 21_000))
def test_numbers_in_the_subjects_of_answers_are_read_back(first: int, count: int) -> None:
    subjects = numbered_subjects("_INBOX.a", first, count)
    expected = np.arange(first, first + count)
    assert subjects.to_pylist() == [f"_INBOX.a.{number:05}" for number in expected.tolist()]
    wire = b"".join(b"MSG %b 1 0\r\n\r\n" % subject.encode() for subject in subjects.to_pylist())
    numbers, valid = Decoder().feed(wire).messages.numbers_below_inbox("_INBOX.a")
    assert valid.all()
    assert np.array_equal(numbers, expected)
