"""Filters that nothing in a stream can match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.jetstream.listing import unmatched_filters
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.subjects import covers, transform_subject


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
        (["a", "b"], [stream("b", subject_transform={"src": "b", "dest": "a"})], ("b",)),
        (["a.>", "x.*"], [stream("a.*", subject_transform={"src": "", "dest": "x.>"})], ("a.>", "x.*")),
        (["a", "a.b", "x.c"], [stream("a.*", subject_transform={"src": "a.b", "dest": "x.b"})], ("a", "x.c")),
        (["a"], [stream("b.*", subject_transform={"src": "b.*", "dest": "c.{{partition(3,1)}}"})], ()),
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
transforms = st.sampled_from(
    [None, ("", "x.>"), ("a.*", "{{wildcard(1)}}.a"), ("*.b", "b.$1"), ("a.>", "b.>"), ("b", "a"), ("*.*", "$2")]
).map(lambda found: found and {"src": found[0], "dest": found[1]})


@settings(max_examples=150)
@given(st.lists(wildcards, max_size=3), st.lists(wildcards, min_size=1, max_size=3), literals, transforms)
def test_no_message_that_a_stream_stores_matches_an_unmatched_filter(
    filters: list[str], subjects: list[str], subject: str, transform: dict[str, str] | None
) -> None:
    taken = any(covers(each, subject) for each in subjects)
    stored = transform_subject(subject, transform) if transform else subject
    for unmatched in unmatched_filters(filters, [stream(*subjects, subject_transform=transform)]):
        assert not (taken and covers(unmatched, stored or ""))
