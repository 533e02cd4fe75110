"""Header blocks, one by one and as columns, read and written."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.protocol.headers import (
    HEADERS_TYPE,
    HeaderLines,
    encode_blocks,
    find_header_violation,
    find_id_violation,
    flatten_headers,
    parse_block,
    parse_blocks,
)
from tests.unit.reference import broken, headers_of
from tests.unit.strategies import block_of, header_blocks, header_names, header_values

_NO_BREAKS = bytes.maketrans(b"\r\n:", b"xyz")
words = st.one_of(st.binary(min_size=1, max_size=3), st.just("\ufffd".encode())).map(
    lambda each: each.translate(_NO_BREAKS)
)
ONE_VALUE = pa.map_(pa.string(), pa.string())
Lines = list[tuple[str, str]]


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def grouped(lines: Lines) -> list[tuple[str, list[str]]]:
    """Group the values of a name where the name stands first."""
    found: dict[str, list[str]] = {}
    for name, value in lines:
        found.setdefault(name, []).append(value)
    return list(found.items())


def blocks_of(*blocks: bytes) -> pa.BinaryArray:
    return pa.array(list(blocks), pa.binary())


def sliced(array: pa.Array, before: int, after: int) -> pa.Array:
    """Return the same values as a slice of a longer array."""
    padding = array.slice(0, 1) if len(array) else pa.nulls(1, array.type)
    whole = pa.concat_arrays([padding] * before + [array] + [padding] * after)
    return whole.slice(before, len(array))


class TestReading:
    @settings(max_examples=100)
    @given(st.lists(st.one_of(st.just(b""), header_blocks, st.binary(max_size=30)), max_size=6))
    @example([b"NATS/1.0\r\nA: 1\r", b"\nB: 2\r\n\r\n"])
    @example([b"NATS/1.0\r\nA: 1", b"NATS/1.0\r\nB: 2\r\n\r\n"])
    @example([b"", b"NATS/1.0\r\n\xff: 1\r\n\xfe: 2\r\n\r\n"])
    @example([b"NATS/1.0\r\nA:1\r\n\r\n", b"", b"NATS/1.0", b"\r\n", b"\r\n:\r\n"])
    def test_a_column_of_any_blocks_is_read_like_each_block_for_itself(self, blocks: list[bytes]) -> None:
        expected = [headers_of(block) for block in blocks]
        column = parse_blocks(blocks_of(*blocks))
        assert column.values.type == HEADERS_TYPE
        assert column.values.null_count == 0
        assert column.values.to_pylist() == [list(headers.items()) for headers, _ in expected]
        assert column.malformed == sum(malformed for _, malformed in expected)
        assert [parse_block(block) for block in blocks] == [headers for headers, _ in expected]

    @settings(max_examples=50)
    @given(st.lists(st.lists(st.tuples(words, words), max_size=3), max_size=5))
    @example(
        [[(b"A", b"1")], [(b"\xff", b"1"), (b"\xfe", b"2")], [], [(b"A", b"\xe2\x82")], [(b"A", "\ufffd".encode())]]
    )
    def test_the_rows_are_known_whose_names_or_values_are_not_utf8(self, rows: list[list[tuple[bytes, bytes]]]) -> None:
        blocks = [b"".join([b"NATS/1.0\r\n", *(b"%b:%b\r\n" % line for line in row), b"\r\n"]) for row in rows]
        column = parse_blocks(blocks_of(*blocks))
        assert column.malformed == 0
        expected = [i for i, row in enumerate(rows) if not all(map(is_utf8, chain.from_iterable(row)))]
        assert column.replaced.tolist() == expected

    @settings(max_examples=50)
    @given(st.lists(header_blocks, min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 2))
    def test_a_slice_of_a_column_is_read_like_a_column(self, blocks: list[bytes], before: int, after: int) -> None:
        column = blocks_of(*blocks)
        assert parse_blocks(sliced(column, before, after)).values.equals(parse_blocks(column).values)

    def test_values_of_a_repeated_name_are_grouped_in_the_order_they_came(self) -> None:
        block = block_of([("A", "1"), ("B", "2"), ("A", "3"), ("C", "4"), ("B", "5"), ("A", "1")])
        expected = [("A", ["1", "3", "1"]), ("B", ["2", "5"]), ("C", ["4"])]
        assert parse_blocks(blocks_of(block)).values.to_pylist() == [expected]
        assert list(parse_block(block).items()) == expected

    def test_a_name_repeated_in_one_row_groups_nothing_in_its_neighbours(self) -> None:
        blocks = blocks_of(block_of([("A", "1")]), block_of([("A", "2"), ("A", "3")]), b"", block_of([("A", "4")]))
        assert parse_blocks(blocks).values.to_pylist() == [[("A", ["1"])], [("A", ["2", "3"])], [], [("A", ["4"])]]

    @pytest.mark.parametrize("count", [2, 15, 16, 17, 18, 31, 33, 100, 1000])
    @pytest.mark.parametrize("repeated", [[], [0], [-1], [0, 0, -1]], ids=["none", "first", "last", "several"])
    def test_a_message_may_have_any_number_of_headers(self, count: int, repeated: list[int]) -> None:
        lines = [(f"H{i}", str(i)) for i in range(count)]
        lines += [(lines[i][0], f"again {k}") for k, i in enumerate(repeated)]
        few = [("H0", "x"), ("H1", "y")]
        column = parse_blocks(blocks_of(block_of(few), block_of(lines), b"", block_of(few)))
        assert column.values.to_pylist() == [grouped(few), grouped(lines), [], grouped(few)]

    def test_names_keep_their_case_and_differ_by_it(self) -> None:
        block = block_of([("bar", "1"), ("BAR", "2"), ("Bar", "3"), ("bar", "4")])
        expected = [("bar", ["1", "4"]), ("BAR", ["2"]), ("Bar", ["3"])]
        assert parse_blocks(blocks_of(block)).values.to_pylist() == [expected]

    @pytest.mark.parametrize(
        ("line", "value"),
        [
            pytest.param(b"A:1", "1", id="no-space"),
            pytest.param(b"A: 1", "1", id="one-space"),
            pytest.param(b"A: \t 1 2\t ", "1 2", id="spaces-and-tabs"),
            pytest.param(b"A:", "", id="no-value"),
            pytest.param(b"A: \t", "", id="blank-value"),
            pytest.param(b"A: a:b: c", "a:b: c", id="colons-in-value"),
            pytest.param(b"A: \xc2\xa0x\xc2\xa0", "\xa0x\xa0", id="no-break-space-stays"),
            pytest.param(b"A: \x0bx\x0c", "\x0bx\x0c", id="vertical-white-space-stays"),
            pytest.param(b"A: x\ry\nz", "x\ry\nz", id="lone-cr-and-lf-stay"),
            pytest.param(b"A: \xff", "\ufffd", id="no-utf8"),
        ],
    )
    def test_spaces_and_tabs_around_a_value_are_not_part_of_it(self, line: bytes, value: str) -> None:
        block = b"NATS/1.0\r\nX: 0\r\n%b\r\nY: 9\r\n\r\n" % line
        expected = [("X", ["0"]), ("A", [value]), ("Y", ["9"])]
        assert parse_blocks(blocks_of(block, block)).values.to_pylist() == [expected, expected]
        assert list(parse_block(block).items()) == expected

    def test_a_value_may_stand_in_a_hundred_thousand_spaces(self) -> None:
        """A publisher chooses how many: reading them must not take one round over the batch for each."""
        long = b"NATS/1.0\r\nA:" + b" " * 100_000 + b"b" + b"\t" * 100_000 + b"\r\nB:" + b" " * 100_000 + b"\r\n\r\n"
        rows = [block_of([("A", "b")])] * 1000
        values = parse_blocks(blocks_of(*rows, long, *rows)).values
        assert values[1000].as_py() == [("A", ["b"]), ("B", [""])]
        assert values[999].as_py() == values[1001].as_py() == [("A", ["b"])]

    @pytest.mark.parametrize(
        ("block", "expected", "malformed"),
        [
            pytest.param(b"NATS/1.0\r\nno colon\r\nA: 1\r\n\r\n", [("A", ["1"])], 1, id="no-colon"),
            pytest.param(b"NATS/1.0\r\nno colon\r\nA: b:c\r\n\r\n", [("A", ["b:c"])], 1, id="as-many-colons-as-lines"),
            pytest.param(b"NATS/1.0\r\nA: b:c\r\nno colon\r\n\r\n", [("A", ["b:c"])], 1, id="as-many-colons-before"),
            pytest.param(b"NATS/1.0\r\n: 1\r\nA: 1\r\n\r\n", [("A", ["1"])], 1, id="no-name"),
            pytest.param(b"NATS/1.0\r\nA: 1\r\nB\r\nC\r\n\r\n", [("A", ["1"])], 2, id="two"),
            pytest.param(b"NATS/1.0\r\nA: 1\r\nB: 2", [("A", ["1"])], 1, id="line-without-end"),
            pytest.param(b"NATS/1.0\r\nA: 1\r\nB: 2\n", [("A", ["1"])], 1, id="line-ending-in-lf-alone"),
            pytest.param(b"NATS/1.0\r\nA: 1\r\n", [("A", ["1"])], 0, id="empty-line-missing"),
            pytest.param(b"NATS/1.0", [], 1, id="version-without-end"),
            pytest.param(b"NATS/1.0\r\n\r\n", [], 0, id="no-headers"),
            pytest.param(b"A: 1\r\nB: 2\r\n\r\n", [("B", ["2"])], 0, id="version-missing"),
            pytest.param(b"\r\n", [], 0, id="empty-line-only"),
            pytest.param(b"", [], 0, id="nothing"),
        ],
    )
    def test_malformed_lines_are_counted_and_left_out(self, block: bytes, expected: Any, malformed: int) -> None:
        alone = parse_blocks(blocks_of(block))
        assert (alone.values.to_pylist(), alone.malformed) == ([expected], malformed)
        neighbour = block_of([("N", "1")])
        column = parse_blocks(blocks_of(neighbour, block, neighbour))
        assert column.values.to_pylist() == [[("N", ["1"])], expected, [("N", ["1"])]]
        assert column.malformed == malformed
        assert list(parse_block(block).items()) == expected

    @pytest.mark.parametrize("rows", [0, 1, 3])
    def test_rows_without_a_block_have_empty_maps(self, rows: int) -> None:
        column = parse_blocks(blocks_of(*[b""] * rows))
        assert column.values.to_pylist() == [[]] * rows
        assert column.values.type == HEADERS_TYPE


rows_of_lines = st.lists(st.one_of(st.none(), st.lists(st.tuples(header_names, header_values), max_size=5)), max_size=5)


class TestWriting:
    @settings(max_examples=100)
    @given(rows_of_lines, st.integers(0, 2), st.integers(0, 2))
    def test_maps_of_lists_survive_the_way_to_blocks_and_back(
        self, rows: list[Lines | None], before: int, after: int
    ) -> None:
        maps = [None if lines is None else grouped(lines) for lines in rows]
        lines = flatten_headers(sliced(pa.array(maps, HEADERS_TYPE), before, after))
        assert find_header_violation(lines) is None
        blocks = encode_blocks(lines)
        assert blocks.to_pylist() == [block_of([(n, v) for n, vs in m for v in vs]) if m else None for m in maps]
        column = parse_blocks(blocks.fill_null(b""))
        assert column.values.to_pylist() == [m or [] for m in maps]
        assert column.malformed == 0

    @settings(max_examples=50)
    @given(rows_of_lines, st.integers(0, 2), st.integers(0, 2))
    def test_maps_of_single_values_are_written_line_by_line(
        self, rows: list[Lines | None], before: int, after: int
    ) -> None:
        """Arrow lets a map repeat a key, so it is just a list of lines."""
        lines = flatten_headers(sliced(pa.array(rows, ONE_VALUE), before, after))
        assert find_header_violation(lines) is None
        assert encode_blocks(lines).to_pylist() == [block_of(row) if row else None for row in rows]

    @pytest.mark.parametrize(
        "value_type", [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_(pa.large_string())], ids=str
    )
    def test_empty_and_null_lists_have_no_lines(self, value_type: pa.DataType) -> None:
        rows = [[("A", []), ("B", ["1", "2"]), ("C", None)], [("A", [])], None, [], [("D", ["3"])]]
        for array in (
            pa.array(rows, pa.map_(pa.string(), value_type)),
            sliced(pa.array(rows, pa.map_(pa.string(), value_type)), 2, 1),
        ):
            lines = flatten_headers(array)
            assert lines.rows == 5
            assert lines.row.tolist() == [0, 0, 4]
            assert lines.name.to_pylist() == ["B", "B", "D"]
            assert lines.value.to_pylist() == ["1", "2", "3"]
            assert find_header_violation(lines) is None
            assert encode_blocks(lines).to_pylist() == [
                block_of([("B", "1"), ("B", "2")]),
                None,
                None,
                None,
                block_of([("D", "3")]),
            ]

    def test_a_null_map_over_entries_has_no_lines(self) -> None:
        """Arrow lets a null row span entries; they are not its content."""
        offsets, valid = pa.array([0, 1, 2, 3], pa.int32()), pa.py_buffer(bytes([0b101]))
        whole = pa.MapArray.from_arrays(offsets, pa.array(["A", "hidden", "B"]), pa.array(["1", "2", "3"]))
        array = pa.Array.from_buffers(
            whole.type,
            3,
            [valid, whole.buffers()[1]],
            children=[
                pa.StructArray.from_arrays(
                    [whole.keys, whole.items],
                    fields=list(whole.type.key_field and [whole.type.key_field, whole.type.item_field]),
                )
            ],
        )
        assert array.to_pylist() == [[("A", "1")], None, [("B", "3")]]
        lines = flatten_headers(array)
        assert list(zip(lines.row.tolist(), lines.name.to_pylist(), strict=True)) == [(0, "A"), (2, "B")]

    @pytest.mark.parametrize("skip", [0, 1])
    def test_a_null_list_over_values_has_no_lines(self, skip: int) -> None:
        values, is_null = pa.array(["1", "hidden", "too", "3"]), pa.array([False, True, False])
        lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), values, mask=is_null)
        array = pa.MapArray.from_arrays(pa.array([0, 2, 3], pa.int32()), pa.array(["A", "B", "C"]), lists)
        assert array.to_pylist() == [[("A", ["1"]), ("B", None)], [("C", ["3"])]]
        lines = flatten_headers(array.slice(skip))
        found = zip(lines.row.tolist(), lines.name.to_pylist(), lines.value.to_pylist(), strict=True)
        assert list(found) == [[(0, "A", "1"), (1, "C", "3")], [(0, "C", "3")]][skip]

    @pytest.mark.parametrize("map_type", [ONE_VALUE, HEADERS_TYPE], ids=str)
    @pytest.mark.parametrize("rows", [0, 1, 3])
    def test_a_column_of_nulls_has_no_blocks(self, map_type: pa.DataType, rows: int) -> None:
        lines = flatten_headers(pa.nulls(rows, map_type))
        assert lines.rows == rows
        assert find_header_violation(lines) is None
        assert encode_blocks(lines).to_pylist() == [None] * rows

    def test_chosen_lines_keep_their_rows(self) -> None:
        lines = flatten_headers(pa.array([[("A", "1"), ("B", "2")], [], [("A", "3")]], ONE_VALUE))
        chosen = lines.where(lines.row >= 0) if lines.rows == 0 else lines.where(lines.row != 1)
        assert chosen.row.tolist() == [0, 0, 2]
        names = lines.where(pa.array(lines.name).to_numpy(zero_copy_only=False) == "A")
        assert (names.row.tolist(), names.value.to_pylist(), names.rows) == ([0, 2], ["1", "3"], 3)

    def test_extra_headers_come_after_the_rows_own(self) -> None:
        lines = flatten_headers(pa.array([[("A", "1")], None, [("B", "2")]], ONE_VALUE))
        blocks = encode_blocks(lines, [("Same", "x"), ("Id", pa.array(["i0", None, "i2"]))])
        assert blocks.to_pylist() == [
            block_of([("A", "1"), ("Same", "x"), ("Id", "i0")]),
            block_of([("Same", "x")]),
            block_of([("B", "2"), ("Same", "x"), ("Id", "i2")]),
        ]

    def test_a_null_in_an_extra_column_leaves_a_row_without_block(self) -> None:
        lines = flatten_headers(pa.nulls(3, ONE_VALUE))
        blocks = encode_blocks(lines, [("Id", pa.array(["i0", None, "i2"]))])
        assert blocks.to_pylist() == [block_of([("Id", "i0")]), None, block_of([("Id", "i2")])]

    @pytest.mark.parametrize("rows", [0, 2])
    def test_a_single_extra_value_is_given_to_every_row(self, rows: int) -> None:
        blocks = encode_blocks(flatten_headers(pa.nulls(rows, ONE_VALUE)), [("Same", "x")])
        assert blocks.to_pylist() == [block_of([("Same", "x")])] * rows


class TestViolations:
    NAME = "white space, a control character, a colon or a character outside ASCII"
    VALUE = "line break"

    @pytest.mark.parametrize("at", [0, 1, 3])
    @pytest.mark.parametrize(
        ("line", "rule"),
        [
            pytest.param(("", "1"), "empty name", id="empty-name"),
            pytest.param(("a:b", "1"), NAME, id="colon-in-name"),
            pytest.param((":", "1"), NAME, id="colon-as-name"),
            pytest.param(("a b", "1"), NAME, id="space-in-name"),
            pytest.param((" a", "1"), NAME, id="space-before-name"),
            pytest.param(("a\t", "1"), NAME, id="tab-after-name"),
            pytest.param(("a\r\nB: 2", "1"), NAME, id="line-break-in-name"),
            pytest.param(("a\n", "1"), NAME, id="lf-in-name"),
            pytest.param(("\x00", "1"), NAME, id="nul-in-name"),
            pytest.param(("a\x7f", "1"), NAME, id="delete-in-name"),
            pytest.param(("é", "1"), NAME, id="non-ascii-name"),
            pytest.param(("A", "1\r"), VALUE, id="cr-in-value"),
            pytest.param(("A", "\n1"), VALUE, id="lf-in-value"),
            pytest.param(("A", "1\r\nPUB x 0\r\n"), VALUE, id="command-in-value"),
            pytest.param(("A", None), "value is null", id="null-value"),
        ],
    )
    def test_the_first_bad_row_is_found_and_its_rule_named(
        self, line: tuple[str, str | None], rule: str, at: int
    ) -> None:
        rows: list[Any] = [[("A", "1")], None, [("B", "2"), ("C", "é 3")], [], [("D", "4")]]
        rows[at] = [("OK", "fine"), line]
        rows.append([("", "\r"), ("a:b", None)])  # a later row breaks every rule
        lists = [None if row is None else [(n, [v]) for n, v in row] for row in rows]
        for array in (pa.array(rows, ONE_VALUE), pa.array(lists, HEADERS_TYPE)):
            for same in (array, sliced(array, 0, 2)):
                violation = find_header_violation(flatten_headers(same))
                assert violation is not None
                assert violation.row == at
                assert rule in violation.rule
        assert find_header_violation(flatten_headers(sliced(pa.array(rows, ONE_VALUE), 0, 0).slice(at))).row == 0

    @settings(max_examples=100)
    @given(
        st.lists(
            st.lists(
                st.tuples(
                    st.text(st.sampled_from("aZ-~! :\té\r\n\x00\x7f"), max_size=3),
                    st.one_of(st.none(), st.text(st.sampled_from("a: é\r\n\t\x00"), max_size=3)),
                ),
                max_size=3,
            ),
            max_size=5,
        )
    )
    def test_the_rows_with_a_bad_line_are_found(self, rows: list[list[tuple[str, str | None]]]) -> None:
        def good(name: str, value: str | None) -> bool:
            return (
                name != ""
                and all("!" <= character <= "~" and character != ":" for character in name)
                and value is not None
                and not set(value) & {"\r", "\n"}
            )

        bad = [i for i, row in enumerate(rows) if not all(good(*line) for line in row)]
        assert list(broken(find_header_violation(flatten_headers(pa.array(rows, ONE_VALUE))))) == bad

    def test_nothing_to_judge_breaks_no_rule(self) -> None:
        empty = HeaderLines(
            flatten_headers(pa.array([], ONE_VALUE)).row, pa.array([], pa.string()), pa.array([], pa.string()), 0
        )
        assert find_header_violation(empty) is None

    @settings(max_examples=75)
    @given(
        st.lists(st.one_of(st.none(), st.text(st.sampled_from("ab é\r\n"), max_size=4)), max_size=6),
        st.integers(0, 2),
        st.integers(0, 2),
    )
    def test_the_bad_values_of_a_column_are_found(self, values: list[str | None], before: int, after: int) -> None:
        bad = [i for i, v in enumerate(values) if v is not None and (v == "" or set(v) & {"\r", "\n"})]
        found = broken(find_id_violation(sliced(pa.array(values, pa.string()), before, after)))
        assert found == {i: "has a line break (CR or LF)" if values[i] else "is empty" for i in bad}
