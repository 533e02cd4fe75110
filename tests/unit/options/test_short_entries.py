"""The entry of a stream in an offset of many streams is short, and says the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.options.short_forms import ShortEntry, encode_short_entry, is_short, parse_short_entry
from spark_nats.protocol.documents import MAX_INTEGER, format_time

sequences = st.integers(1, MAX_INTEGER)
times = st.integers(0, 2**63 - 1)
parts = st.one_of(st.just((None, None)), st.tuples(sequences, sequences))


def as_servers_write(time: int) -> str:
    """RFC 3339 as Go writes it, without zeros at its end."""
    return format_time(time).rstrip("0Z").rstrip(".") + "Z" if time % 10**9 else format_time(time)[:19] + "Z"


@given(times.map(as_servers_write), sequences, st.none() | times, parts, st.none() | times, st.none() | times)
def test_a_short_entry_says_what_the_long_one_says(
    created: str,
    following: int,
    time: int | None,
    part: tuple[int | None, int | None],
    latest: int | None,
    before: int | None,
) -> None:
    noted = (None, None) if part == (None, None) else (latest, before)  # a place where no micro-batch begins has none
    entry = ShortEntry(created, following, time, *part, *noted)
    text = encode_short_entry(entry)
    assert text is not None
    assert is_short(text)
    assert parse_short_entry(text) == entry


def test_an_entry_is_some_numbers() -> None:
    text = "1764151136123456789 1201 2500000000 1101 1101"
    entry = parse_short_entry(text)
    assert entry.created == "2025-11-26T09:58:56.123456789Z"
    assert format_time(entry.time or 0) == "2025-11-26T09:58:58.623456789Z"
    assert encode_short_entry(entry) == text


@pytest.mark.parametrize("created", ["", "yesterday", "2026-11-26T09:58:56.120Z", "2026-11-26T10:58:56+01:00"])
def test_a_time_that_no_server_writes_has_no_short_form(created: str) -> None:
    assert encode_short_entry(ShortEntry(created, 1, None, None, None)) is None


@pytest.mark.parametrize(
    "text",
    ["", "latest", "1 2", "1 2 3 4", "1 2 3 4 5 6", "1 0 -", f"1 {2**64} -", "1 2 - 3 0", "1 2 x", " 1 2 3", "१ 2 3"],
)
def test_other_texts_are_no_entries(text: str) -> None:
    with pytest.raises(ValueError, match="entry of a stream|has a sequence that is not"):
        parse_short_entry(text)


@given(st.text() | st.integers() | st.none() | st.lists(st.integers()))
def test_anything_else_is_told_apart(value: object) -> None:
    if is_short(value):
        assert isinstance(value, str)
        assert len(value.split(" ")) in (3, 5, 7)
