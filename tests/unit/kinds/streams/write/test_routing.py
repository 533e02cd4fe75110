"""Which of several streams a row goes to."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.errors import PublishError
from spark_nats.jetstream.streams import StreamInfo, parse_stream
from spark_nats.kinds.streams.write.checks import check_targets_disjoint
from spark_nats.kinds.streams.write.routing import Router
from spark_nats.protocol.subjects import covers, find_overlap

TOKENS = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=3).map(".".join)
FILTERS = st.builds(
    lambda tokens, end: ".".join([*tokens, *end]),
    st.lists(TOKENS | st.just("*"), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


def stream(name: str, *subjects: str, **config: object) -> StreamInfo:
    state = {"first_seq": 1, "last_seq": 0, "messages": 0, "bytes": 0}
    created = "2026-01-01T00:00:00Z"
    full = {"name": name, "subjects": list(subjects), "retention": "limits", **config}
    return parse_stream({"config": full, "created": created, "ts": created, "state": state}, name)


@given(st.lists(st.lists(FILTERS, min_size=1, max_size=3), min_size=1, max_size=4), st.lists(SUBJECTS | st.none()))
def test_a_row_goes_to_the_stream_that_listens_on_its_subject_and_no_other(
    filters: list[list[str]], subjects: list[str | None]
) -> None:
    streams: list[StreamInfo] = []
    for each in filters:  # as a server accepts streams
        if find_overlap([*(one for other in streams for one in other.subjects), *each]) is None:
            streams.append(stream(f"S{len(streams)}", *each))
    batch = pa.RecordBatch.from_pydict({"subject": pa.array(subjects, pa.string())})
    for subject, place in zip(subjects, Router(streams, None).stream_numbers(batch).tolist(), strict=True):
        heard = [bool(subject) and any(covers(one, str(subject)) for one in each.subjects) for each in streams]
        listening = [number for number, hears in enumerate(heard) if hears]
        assert [place] == ([0] if subject is None else listening or [-1])


def test_the_subject_of_the_options_is_that_of_all_rows() -> None:
    router = Router([stream("A", "a.>"), stream("B", "b.>")], "b.1")
    assert router.stream_numbers(pa.RecordBatch.from_pydict({"payload": ["x", "y"]})).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([stream("B", "b.>", "a.1")], "both listen on the subject"),
        ([stream("B")], "'B' listens on no subject"),
        ([stream("B", "b", sources=[{"name": "A"}])], "'B' copies what stream 'A' stores"),
        ([stream("B", "b", sources=[{"name": "X"}]), stream("C", "c.*")], ""),
    ],
)
def test_streams_that_cannot_be_told_apart_are_refused(others: list[StreamInfo], said: str) -> None:
    streams = [stream("A", "a.>"), *others]
    if not said:
        check_targets_disjoint(streams)
        return
    with pytest.raises(PublishError, match=said):
        check_targets_disjoint(streams)
