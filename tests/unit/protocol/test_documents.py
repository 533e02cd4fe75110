"""What is taken out of the server's documents."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.protocol.documents import (
    base64_at,
    integers_at,
    parse_limited_object,
    parse_object,
    positive_or_none_at,
    string_at,
    time_at,
)

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@settings(max_examples=150)
@given(st.datetimes(timezones=st.one_of(st.just(UTC), ZONES)), st.integers(0, 999), st.booleans())
@example(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), 0, True)
@example(datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), 999, True)
@example(datetime(2026, 11, 21, 18, 45, 31, 100000, tzinfo=UTC), 0, True)
def test_a_time_is_read_to_the_nanosecond(time: datetime, beyond: int, short: bool) -> None:
    fraction = f"{time.microsecond:06}{beyond:03}"
    fraction = fraction.rstrip("0") if short else fraction  # Go leaves out the zeros at the end
    zone = time.isoformat()[-6:].replace("+00:00", "Z")
    text = time.replace(microsecond=0, tzinfo=None).isoformat() + (f".{fraction}" if fraction else "") + zone
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    expected = ((since.days * 86400 + since.seconds) * 10**6 + since.microseconds) * 1000 + beyond
    assert time_at({"message": {"time": text}}, "message", "time") == expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        True,
        [],
        "",
        "now",
        "2026-11-21",
        "2026-11-21T18:45:31",  # of which zone?
        "2026-11-21 18:45:31Z",
        "2026-13-21T18:45:31Z",
        "2026-02-30T18:45:31Z",
        "2026-11-21T18:45:61Z",
        "0000-11-21T18:45:31Z",
        "12026-11-21T18:45:31Z",
        "-2026-11-21T18:45:31Z",
        "2026-11-21T18:45:31.Z",
        "2026-11-21T18:45:31.1234567890Z",
        "2026-11-21T18:45:31.12 Z",
        "2026-11-21T18:45:31+99:00",
        "2026-11-21T18:45:31Z\n",
        "٢٠٢٦-11-21T18:45:31Z",
    ],
)
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="'created' is not a time"):
        time_at({"created": value}, "created")


@pytest.mark.parametrize("value", [5, [], {}, "no base64", "YQ=", "YQ==\n", "Y Q=="])
def test_what_is_not_base64_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="'message.data' is not base64"):
        base64_at({"message": {"data": value}}, "message", "data")


def test_bytes_that_are_missing_are_none() -> None:
    assert base64_at({"message": {}}, "message", "data") == b""


@pytest.mark.parametrize("value", [None, 5, ["text"]])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="'name' is not a text"):
        string_at({"name": value}, "name")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b'{"a":[' + b"0," * 200_000 + b"0]}", "more than 200000 parts"),
        (b'{"a":' + b"[" * 150_000 + b"]" * 150_000 + b"}", "nested too deeply"),
        (b"[1]", "a list instead of an object"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":"\\ud800"}', "surrogates not allowed"),
    ],
    ids=["long", "deep", "a list", "no number", "half a character"],
)
def test_what_is_no_document_of_a_server_is_refused(document: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_limited_object(document)


@given(st.lists(st.tuples(st.sampled_from(["a", "\ufffd", "b.\ufffd", "ü"]) | st.text(max_size=3), st.integers(0, 9))))
@example([("\ufffd", 1), ("a", 2), ("\ufffd", 3), ("\ufffd", 3)])
def test_names_in_which_a_server_has_replaced_bytes_keep_all_their_values(pairs: list[tuple[str, int]]) -> None:
    """Servers write subjects that are not UTF-8 so, and then several have one name."""
    for ascii_only in (False, True):
        written = ", ".join(f"{json.dumps(name, ensure_ascii=ascii_only)}: {value}" for name, value in pairs)
        document = parse_object(f"{{{written}}}".encode())
        assert list(document) == list(dict(pairs))
        for name in document:
            values = [value for other, value in pairs if other == name]
            assert integers_at(document, name) == (values if "\ufffd" in name else values[-1:])


@pytest.mark.parametrize("value", [None, True, False, 0, -1, 1.5, "5", [5]])
def test_what_is_no_positive_integer_is_no_limit(value: Any) -> None:
    assert positive_or_none_at({"limit": value}, "limit") is None
    assert positive_or_none_at({"limit": 5}, "limit") == 5
