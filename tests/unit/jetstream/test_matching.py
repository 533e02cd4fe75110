"""Filters that nothing in a stream can match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.jetstream.listing import unmatched_filters
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.subjects import covers


def stream(*subjects: str, **config: Any) -> StreamInfo:
    return StreamInfo("S", "", 1, 0, 0, 0, 0, "limits", subjects, config)


@pytest.mark.parametrize(
    ("filters", "streams", "unmatched"),
    [
        (["order.>"], [stream("orders.>")], ("order.>",)),
        (["orders"], [stream("orders.>")], ("orders",)),
        (["orders.>"], [stream("orders.>")], ()),
        (["*.eu.>"], [stream("orders.*.paid")], ()),
        (["a", "b"], [stream("a"), stream("c")], ("b",)),
        (["a", "b"], [stream("a"), stream("b")], ()),
        (["a"], [stream("b"), stream()], ()),
        (["a"], [stream("b", mirror={"name": "M"})], ()),
        (["a"], [stream("b", sources=[{"name": "M"}])], ()),
        (["a"], [stream("b", subject_transform={"src": "b", "dest": "a"})], ()),
        (["a"], [stream("b", sources=[], republish={"src": ">", "dest": "a"})], ("a",)),
        ([], [stream("b")], ()),
        (["$KV.*.x"], [stream("$KV.B.>")], ()),
    ],
)
def test_a_filter_is_for_the_subjects_of_one_stream_at_least(
    filters: list[str], streams: list[StreamInfo], unmatched: tuple[str, ...]
) -> None:
    assert unmatched_filters(filters, streams) == unmatched


tokens = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3)
wildcards = st.builds(lambda found, more: ".".join(found + [">"] * more), tokens, st.booleans())
literals = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join)


@settings(max_examples=150)
@given(st.lists(wildcards, max_size=3), st.lists(wildcards, min_size=1, max_size=3), literals)
def test_no_message_that_a_stream_takes_matches_an_unmatched_filter(
    filters: list[str], subjects: list[str], subject: str
) -> None:
    taken = any(covers(each, subject) for each in subjects)
    for unmatched in unmatched_filters(filters, [stream(*subjects)]):
        assert not (taken and covers(unmatched, subject))
