"""What subjects, filters and names may be, and what a filter matches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.protocol.subject_columns import SubjectMatcher, find_subject_violation
from spark_nats.protocol.subjects import (
    covers,
    filter_violation,
    name_violation,
    overlap,
    queue_violation,
    subject_violation,
)
from tests.unit.reference import broken, subject_matches
from tests.unit.strategies import subjects

WHITE_SPACE = "contains white space"

# Text in which dots, wildcards and white space are as likely as letters, in one to four bytes of UTF-8.
texts = st.text(st.sampled_from("aZ0-_$éяー😀\u00a0\u0085.... \t\r\n\x00\x1f\x7f*>"), max_size=6)
any_text = st.one_of(texts, subjects, st.text(max_size=8))


def is_literal(subject: str) -> bool:
    """The rule, said another way than the implementation says it."""
    tokens = subject.split(".")
    return all(token and all(c > " " and c not in "\x7f*>" for c in token) for token in tokens)


class TestLiteralSubjects:
    @settings(max_examples=100)
    @given(any_text)
    def test_a_subject_is_tokens_without_white_space_or_wildcards(self, subject: str) -> None:
        assert (subject_violation(subject) is None) == is_literal(subject)

    @pytest.mark.parametrize(
        "subject", ["é", "заказы.новые", "注文.東京", "a.😀", "$JS.API.INFO", "a-b_c/d\\e", "a:b", "0"]
    )
    def test_any_other_utf8_is_allowed(self, subject: str) -> None:
        assert subject_violation(subject) is None
        assert filter_violation(subject) is None

    @pytest.mark.parametrize("subject", ["{}", "{}a", "a{}", "a{}b", "a.{}.b"])
    def test_no_control_character_and_no_blank_stands_anywhere_in_a_subject(self, subject: str) -> None:
        for code in (*range(0x21), 0x7F):
            text = subject.format(chr(code))
            assert WHITE_SPACE in (subject_violation(text) or "")
            assert WHITE_SPACE in (filter_violation(text) or "")
            assert WHITE_SPACE in (queue_violation(text) or "")


class TestColumnsOfSubjects:
    @settings(max_examples=100)
    @given(
        st.lists(st.one_of(st.none(), any_text, subjects, subjects), max_size=8),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([pa.string(), pa.large_string()]),
    )
    @example([None, "."], 0, 0, pa.string())
    @example(["a", ".b"], 0, 0, pa.string())
    @example(["a.", "b"], 0, 0, pa.string())
    @example(["a.b", "", "c.d"], 1, 1, pa.string())
    def test_a_column_is_judged_like_each_subject_for_itself(
        self, values: list[str | None], skip: int, drop: int, arrow_type: pa.DataType
    ) -> None:
        column = pa.array(values, arrow_type).slice(skip)
        column = column.slice(0, max(len(column) - drop, 0))
        judged = [None if s is None else subject_violation(s) for s in column.to_pylist()]
        assert broken(find_subject_violation(column)) == {i: rule for i, rule in enumerate(judged) if rule}

    @pytest.mark.parametrize("at", [0, 1, 499, 999])
    @pytest.mark.parametrize("bad", ["", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB x 0", "a.*", "a.>", "a\x00", "\x7f"])
    def test_the_bad_rows_among_many_are_found(self, bad: str, at: int) -> None:
        values = [f"orders.é{i}" for i in range(1000)]
        values[at] = bad
        values.append("bad too")
        found = broken(find_subject_violation(pa.array(values)))
        assert found == {at: subject_violation(bad), 1000: subject_violation("bad too")}

    def test_bytes_under_a_null_are_not_judged(self) -> None:
        data = b"good bad subject.good"
        offsets = pa.py_buffer(memoryview(pa.array([0, 4, 17, 21], pa.int32()).buffers()[1]))
        column = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(bytes([0b101])), offsets, pa.py_buffer(data)])
        assert column.to_pylist() == ["good", None, "good"]
        assert find_subject_violation(column) is None

    @pytest.mark.parametrize("column", [pa.array([], pa.string()), pa.nulls(3, pa.string())], ids=["empty", "nulls"])
    def test_nothing_to_judge_breaks_no_rule(self, column: pa.Array) -> None:
        assert find_subject_violation(column) is None


filters = st.lists(st.one_of(st.just("*"), st.sampled_from(["foo", "bar", "é", "F"])), min_size=1, max_size=4).flatmap(
    lambda tokens: st.sampled_from([tokens, [*tokens, ">"], [*tokens[:-1], ">"]]).map(".".join)
)
few_subjects = st.lists(st.sampled_from(["foo", "bar", "é", "F"]), min_size=1, max_size=5).map(".".join)


class TestFilters:
    @settings(max_examples=100)
    @given(any_text)
    def test_a_filter_is_a_subject_whose_wildcards_are_whole_tokens(self, text: str) -> None:
        tokens = text.split(".")
        literal = ["x" if t == "*" or (t == ">" and i == len(tokens) - 1) else t for i, t in enumerate(tokens)]
        assert (filter_violation(text) is None) == is_literal(".".join(literal))

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            ("", "is empty"),
            ("foo.>.bar", "before its last token"),
            (">.foo", "before its last token"),
            (">.>", "before its last token"),
            ("foo.>*", "wildcard inside the token '>\\*'"),
            ("**", "wildcard inside the token '\\*\\*'"),
            (">>", "wildcard inside the token '>>'"),
            ("foo.b>r", "wildcard inside the token 'b>r'"),
        ],
    )
    def test_what_is_wrong_with_a_filter_is_named(self, text: str, rule: str) -> None:
        assert rule.replace("\\", "") in (filter_violation(text) or "")

    @settings(max_examples=100)
    @given(filters, few_subjects)
    def test_a_filter_matches_what_it_matches_token_by_token(self, wanted: str, subject: str) -> None:
        assert filter_violation(wanted) is None
        assert covers(wanted, subject) == subject_matches(wanted.split("."), subject.split("."))

    @settings(max_examples=50)
    @given(subjects)
    def test_every_subject_matches_itself_and_the_full_wildcard(self, subject: str) -> None:
        assert covers(subject, subject)
        assert covers(">", subject)
        assert not covers(subject, subject + ".more")
        assert not covers(subject + ".>", subject)
        assert covers(subject + ".>", subject + ".more")
        assert covers("*", subject) == ("." not in subject)

    @settings(max_examples=150)
    @given(filters, filters, few_subjects)
    def test_filters_that_both_match_a_subject_overlap(self, one: str, other: str, subject: str) -> None:
        if covers(one, subject) and covers(other, subject):
            assert overlap(one, other)
        assert overlap(one, other) == overlap(other, one)

    @settings(max_examples=150)
    @given(filters, filters)
    def test_filters_that_overlap_have_a_subject_in_common(self, one: str, other: str) -> None:
        """Built from both: the literal token where either has one, and one more token for each ``>``."""
        a, b = one.split("."), other.split(".")
        length = max(len(a), len(b))
        padded = [
            tokens[:-1] + ["*"] * (length - len(tokens) + 1) if tokens[-1] == ">" else tokens for tokens in (a, b)
        ]
        common = [
            next((t for t in pair if t != "*"), "x")
            for pair in zip(*(tokens + ["*"] * (length - len(tokens)) for tokens in padded), strict=True)
        ]
        subject = ".".join(common)
        assert overlap(one, other) == (covers(one, subject) and covers(other, subject))

    @settings(max_examples=125)
    @given(filters, filters, few_subjects)
    def test_a_filter_that_covers_another_matches_all_that_it_matches(self, one: str, other: str, subject: str) -> None:
        assert covers(one, one)
        if covers(one, other):
            assert overlap(one, other)
            assert covers(one, subject) or not covers(other, subject)

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            ("a.>", "a.b.>", True),
            ("a.>", "a.*", True),
            (">", "a", True),
            ("*.b", "a.b", True),
            ("a.>", "a", False),
            ("a.*", "a.>", False),
            ("a.b", "a.*", False),
            ("a.*", "a.b.c", False),
            ("a.*.c", "a.b", False),
        ],
    )
    def test_what_a_filter_covers(self, one: str, other: str, expected: bool) -> None:
        assert covers(one, other) == expected


# Tokens in which one that is part of another, or of another's bytes, or an expression of some language, is likely.
odd_tokens = st.sampled_from(
    ["a", "b", "ab", "", ".*", "[a]", "a|b", "\\E", "^", "$", "(", "é", "è", "注", "\u0085", "a-b"]
)
odd_filters = st.lists(
    st.one_of(st.just("*"), odd_tokens.filter(lambda token: token not in ("", ".*"))), max_size=4
).flatmap(lambda tokens: st.sampled_from([tokens, [*tokens, ">"]] if tokens else [[">"]]).map(".".join))
odd_subjects = st.lists(odd_tokens, max_size=5).map(".".join)


class TestColumnsAgainstFilters:
    @settings(max_examples=150)
    @given(
        st.lists(st.one_of(odd_filters, filters), max_size=12),
        st.lists(st.one_of(odd_subjects, odd_subjects, few_subjects, subjects), max_size=12),
        st.integers(0, 3),
        st.integers(0, 3),
    )
    @example([], ["a"], 0, 0)
    @example([">"], ["", ".", "a"], 0, 0)
    @example(["*", "*.*", "*.>"], ["", ".", "..", "a", "a.b", "a.b.c"], 1, 0)
    @example(["a.*.b.*.c"], ["a.x.b.y.c", "a.b.b.b.c", "a.x.b.c", "a.x.b.y.c.c"], 0, 0)
    @example([f"a.{i}.>" for i in range(20)], ["a.7.x", "a.7", "a.77.x", "a.7.", "b.7.x", "a.19.x.y"], 0, 0)
    def test_each_subject_of_a_column_is_matched_as_for_itself(
        self, wanted: list[str], values: list[str], skip: int, drop: int
    ) -> None:
        column = pa.array([value.encode() for value in values], pa.binary()).slice(skip)
        column = column.slice(0, max(len(column) - drop, 0))
        expected = [any(covers(w, value.decode()) for w in wanted) for value in column.to_pylist()]
        assert SubjectMatcher(wanted).match(column).tolist() == expected

    @settings(max_examples=150)
    @given(st.lists(odd_filters, max_size=12), st.lists(st.binary(max_size=12), max_size=12))
    def test_subjects_that_are_no_text_are_matched_byte_by_byte(self, wanted: list[str], values: list[bytes]) -> None:
        as_text = [w.encode().decode("latin-1") for w in wanted]
        expected = [any(covers(w, value.decode("latin-1")) for w in as_text) for value in values]
        assert SubjectMatcher(wanted).match(pa.array(values, pa.binary())).tolist() == expected

    @pytest.mark.parametrize("wildcard", ["orders.*.{}", "orders.{}.>", "{}.*.>", "orders.{}.é"])
    def test_one_subject_is_found_with_thousands_of_filters_and_subjects(self, wildcard: str) -> None:
        wanted = [wildcard.format(i) for i in range(3000)]
        values = [f"none.{i}" for i in range(5000)]
        values[4321] = wildcard.format(1234).replace("*", "any").replace(">", "x.y")
        assert np.flatnonzero(SubjectMatcher(wanted).match(pa.array(values, pa.binary()))).tolist() == [4321]


class TestNames:
    @pytest.mark.parametrize("name", ["ORDERS", "orders-eu_1", "$KV", "é", "a:b", "[x]"])
    def test_names_of_streams_may_be_anything_without_dots_wildcards_and_slashes(self, name: str) -> None:
        assert name_violation(name) is None

    @pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a*", "a b", "a\t", "a\r\n", "\x00", "a/b", "a\\b", "\x7f"])
    def test_names_of_streams_that_would_not_be_one_token_of_a_subject_are_refused(self, name: str) -> None:
        assert name_violation(name)

    @settings(max_examples=50)
    @given(any_text)
    def test_a_legal_name_is_a_legal_token(self, name: str) -> None:
        if name_violation(name) is None:
            assert subject_violation(f"$JS.API.STREAM.INFO.{name}") is None

    @pytest.mark.parametrize("queue", ["G1", "workers.eu", "é", "a-b"])
    def test_queue_groups_are_one_field(self, queue: str) -> None:
        assert queue_violation(queue) is None

    @pytest.mark.parametrize("queue", ["", " ", "a b", "a\tb", "a\r\nUNSUB 1"])
    def test_queue_groups_that_would_be_two_fields_are_refused(self, queue: str) -> None:
        assert queue_violation(queue)
