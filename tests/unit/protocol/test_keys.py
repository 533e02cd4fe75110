"""Keys of KV buckets: which there are, one by one and as columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js.kv import VALID_KEY_RE

from spark_nats.kinds.buckets.key_columns import find_key_violation, is_deletion
from spark_nats.protocol.keyvalue import key_subject, key_violation
from spark_nats.protocol.subjects import covers, filter_violation, subject_violation
from tests.unit.reference import broken

KEYS = st.one_of(st.text(max_size=8), st.text("ab._-/=kv*> ", max_size=10))


@given(KEYS)
def test_a_key_is_a_subject_of_its_bucket(key: str) -> None:
    if key_violation(key) is None:
        assert VALID_KEY_RE.match(key)
        assert subject_violation(key_subject("B", key)) is None
        assert covers(key_subject("B", ">"), key_subject("B", key))
        assert filter_violation(key) is None


@given(st.lists(KEYS, max_size=8))
def test_a_column_of_keys_is_judged_as_each_of_them(keys: list[str]) -> None:
    expected = {i: rule for i, key in enumerate(keys) if (rule := key_violation(key))}
    assert broken(find_key_violation(pa.array(keys, pa.string()))) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", False),
        (b"NATS/1.0\r\nmine: x\r\n\r\n", False),
        (b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", True),
        (b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n", True),
    ],
)
def test_a_message_that_says_that_its_key_is_gone_is_known(header: bytes, expected: bool) -> None:
    assert is_deletion(header) is expected
