"""The array arithmetic on bytes, against the plain Python that it stands for."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.protocol.bytecolumns import (
    bytes_and_offsets_of,
    decode_utf8_replacing,
    find_separators,
    gather,
    lengths_of,
    offsets_of,
    parse_ints,
    parse_last_eight_digits,
    true_positions,
)

LARGEST = 2**63 - 1


def positions(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


numbers = st.one_of(
    st.integers(0, LARGEST).map(str),
    st.integers(LARGEST - 9, LARGEST + 9).map(str),
    st.text("0123456789", max_size=25),
    st.text("0123456789", min_size=7, max_size=9),
    st.text("0123456789", min_size=15, max_size=20),
).map(str.encode)
almost_numbers = st.tuples(numbers, st.integers(0, 25), st.integers(0, 255)).map(
    lambda drawn: drawn[0][: drawn[1]] + bytes([drawn[2]]) + drawn[0][drawn[1] :]
)
spans = st.one_of(numbers, almost_numbers, st.binary(max_size=26))


pieces = st.lists(
    st.sampled_from([b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9", b"\xed\xa0", b"\n", b"a"]),
    max_size=5,
).map(b"".join)
"""Parts of characters, which may fit together or not."""


class TestDecimals:
    @settings(max_examples=200)
    @given(st.binary(max_size=30), st.lists(st.tuples(spans, st.binary(max_size=3)), min_size=1, max_size=6))
    @example(b"", [(b"0", b"")])
    @example(b"", [(b"9" * 19, b"")])
    @example(b"", [(b"9223372036854775807", b"9")])
    @example(b"", [(b"", b"")])
    @example(b"9" * 30, [(b"", b""), (b"1", b"2")])
    def test_a_span_is_a_number_when_it_is_one_to_nineteen_digits(
        self, before: bytes, parts: list[tuple[bytes, bytes]]
    ) -> None:
        """Wherever it stands: digits next to the span must not be read as its own."""
        buffer, start, end = before, [], []
        for span, between in parts:
            start.append(len(buffer))
            buffer += span
            end.append(len(buffer))
            buffer += between
        value, valid = parse_ints(np.frombuffer(buffer, np.uint8), positions(start), positions(end))
        texts = [span for span, _ in parts]
        expected = [1 <= len(t) <= 19 and t.isdigit() and int(t) <= LARGEST for t in texts]
        assert valid.tolist() == expected
        assert [v for v, ok in zip(value.tolist(), expected, strict=True) if ok] == [
            int(t) for t, ok in zip(texts, expected, strict=True) if ok
        ]

    @pytest.mark.parametrize("text", ["{}", "1{}", "{}1", "1234{}5678", "12345678{}", "{}2345678901234567"])
    def test_only_ten_bytes_are_digits(self, text: str) -> None:
        for byte in range(256):
            span = text.format(chr(byte)).encode("latin-1")
            value, valid = parse_ints(np.frombuffer(span, np.uint8), positions([0]), positions([len(span)]))
            assert valid.tolist() == [span.isdigit()], byte
            assert not valid[0] or value.tolist() == [int(span)]

    def test_no_spans_are_no_numbers(self) -> None:
        value, valid = parse_ints(np.frombuffer(b"123", np.uint8), positions([]), positions([]))
        assert (len(value), len(valid)) == (0, 0)

    def test_a_span_that_ends_before_it_begins_is_no_number(self) -> None:
        """The guess computes such spans for lines that lack fields."""
        data = np.frombuffer(b"1234567890" * 4, np.uint8)
        assert parse_ints(data, positions([30, 3]), positions([20, 5]))[1].tolist() == [False, True]


class TestTrailingDecimals:
    @settings(max_examples=150)
    @given(st.lists(st.one_of(spans, st.binary(max_size=3)), min_size=1, max_size=6))
    @example([b"12345678", b"x1", b"123456789", b"x"])
    @example([b"\x80" * 8, b"\xb0\xb1", b"1/2:3"])
    def test_the_number_before_a_position_begins_after_the_last_byte_that_is_no_digit(self, parts: list[bytes]) -> None:
        buffer, end = b"/" * 8, []
        for part in parts:
            buffer += part
            end.append(len(buffer))
        value, digits = parse_last_eight_digits(np.frombuffer(buffer, np.uint8), positions(end))
        for i, position in enumerate(end):
            last = buffer[position - 8 : position]
            number = last[len(last.rstrip(b"0123456789")) :]
            assert digits[i] == len(number)
            assert value[i] == int(number or b"0")

    @pytest.mark.parametrize("place", range(8))
    def test_any_byte_that_is_no_digit_ends_the_number_wherever_it_stands(self, place: int) -> None:
        for byte in range(256):
            text = bytearray(b"99999999")
            text[place] = byte
            number = text[len(text.rstrip(b"0123456789")) :]
            value, digits = parse_last_eight_digits(np.frombuffer(bytes(text), np.uint8), positions([8]))
            assert (value[0], digits[0]) == (int(number or b"0"), len(number))


class TestColumns:
    @settings(max_examples=100)
    @given(st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=5)), max_size=6))
    def test_gathered_spans_are_the_bytes_between_their_positions(self, parts: list[tuple[bytes, bytes]]) -> None:
        buffer, start, end = b"", [], []
        for between, span in parts:
            buffer += between
            start.append(len(buffer))
            buffer += span
            end.append(len(buffer))
        column = gather(np.frombuffer(buffer, np.uint8), positions(start), positions(end))
        assert column.type == pa.binary()
        assert column.to_pylist() == [span for _, span in parts]

    @settings(max_examples=75)
    @given(
        st.lists(st.one_of(st.none(), st.text(max_size=4)), max_size=6),
        st.integers(0, 3),
        st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]),
    )
    def test_packed_columns_are_their_bytes_and_offsets_from_zero(
        self, values: list[str | None], skip: int, arrow_type: pa.DataType
    ) -> None:
        column = pa.array(values, pa.string()).cast(arrow_type).slice(skip)
        data, offsets = bytes_and_offsets_of(column)
        expected = [(value or "").encode() for value in values[skip:]]
        assert [data[a:b].tobytes() for a, b in pairwise(offsets)] == expected
        assert offsets[0] == 0
        assert len(data) == offsets[-1]

    @pytest.mark.parametrize("skip", [0, 1])
    @pytest.mark.parametrize("layout", ["string_view", "binary_view", "dictionary"])
    def test_columns_of_other_layouts_are_packed_and_measured_like_plain_ones(self, layout: str, skip: int) -> None:
        values = ["short", "longer than a view holds", None, "", "and this one is longer, too"]
        column = pa.array(values, pa.string())
        column = column.dictionary_encode() if layout == "dictionary" else column.cast(getattr(pa, layout)())
        data, offsets = bytes_and_offsets_of(column.slice(skip))
        expected = [(value or "").encode() for value in values[skip:]]
        assert [data[a:b].tobytes() for a, b in pairwise(offsets)] == expected
        assert lengths_of(column.slice(skip)).tolist() == [len(value) for value in expected]

    @settings(max_examples=75)
    @given(st.lists(st.booleans(), max_size=40))
    def test_rare_positions_are_those_where_a_mask_is_set(self, mask: list[bool]) -> None:
        assert true_positions(np.array(mask, np.bool_)).tolist() == [i for i, set_ in enumerate(mask) if set_]

    @settings(max_examples=100)
    @given(st.lists(st.text("a.", max_size=5), max_size=6))
    @example(["..", "", ".", "a"])  # as many separators as rows, but not one in each
    @example([".a", "a.", "."])
    @example([".a.", ".b."])  # one layout
    @example([".a.", "..b"])  # one length, two layouts
    @example(["", ""])
    def test_separators_are_found_in_the_row_they_stand_in(self, rows: list[str]) -> None:
        data, offsets = bytes_and_offsets_of(pa.array(rows, pa.string()))
        fields = find_separators(data == ord("."), offsets)
        assert fields.per_row.tolist() == [row.count(".") for row in rows]
        for i, row in enumerate(rows):
            found = fields.position[fields.first[i] : fields.first[i] + fields.per_row[i]] - offsets[i]
            assert found.tolist() == [k for k, c in enumerate(row) if c == "."]
        assert fields.rows().tolist() == [i for i, row in enumerate(rows) for _ in range(row.count("."))]
        for k in range(5):
            at = fields.positions_of(k)
            for i, row in enumerate(rows):
                if k < row.count("."):
                    assert at[i] == fields.position[fields.first[i] + k]

    @settings(max_examples=50)
    @given(st.lists(st.integers(0, 3), max_size=6))
    def test_the_offsets_of_a_list_column_count_the_elements_before_each_row(self, lengths: list[int]) -> None:
        rows = positions([row for row, length in enumerate(lengths) for _ in range(length)])
        assert offsets_of(rows, len(lengths)).tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]

    @settings(max_examples=75)
    @given(st.lists(st.one_of(st.binary(max_size=6), pieces, st.text(max_size=3).map(str.encode)), max_size=6))
    @example([b"\xc3", b"\xa9"])
    @example([b"\xff\n", b"\n", b"", b"\n\n\xe2\x82"])
    @example([b"\xf0\x9f\x98", "\ufffd".encode()])
    def test_text_is_decoded_each_value_for_itself(self, values: list[bytes]) -> None:
        """As Python decodes it, and so that equal texts of unequal bytes are known: one of them was replaced."""
        column = decode_utf8_replacing(pa.array([b"\xfe", *values, b"\xfe"], pa.binary()).slice(1, len(values)))
        assert column.values.type == pa.string()
        column.values.validate(full=True)
        decoded = column.values.to_pylist()
        assert decoded == [value.decode("utf-8", "replace") for value in values]
        assert column.replaced.tolist() == [i for i, value in enumerate(values) if decoded[i].encode() != value]
        for one, other in combinations(range(len(values)), 2):
            if decoded[one] == decoded[other] and values[one] != values[other]:
                assert {one, other} & set(column.replaced.tolist())
