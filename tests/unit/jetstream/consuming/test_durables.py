"""What a server says of a consumer."""

from __future__ import annotations

from typing import Any

import pytest

from spark_nats.protocol.consumers import parse_consumer


def answer(**other: Any) -> dict[str, Any]:
    state = {"delivered": {"consumer_seq": 3, "stream_seq": 7}, "ack_floor": {"stream_seq": 5}, "num_pending": 2}
    config = {"metadata": {"a": "b"}, "filter_subject": "x"}
    return {"stream_name": "S", "name": "d", "config": config, **state, **other}


def test_a_consumers_state_is_read_from_what_a_server_says() -> None:
    info = parse_consumer(answer(cluster={"leader": "n1"}), "S", "d")
    assert (info.begins, info.deliveries, info.after_floor, info.pending, info.leader) == (8, 3, 6, 2, "n1")
    assert (info.metadata, info.filters, info.max_batch) == ({"a": "b"}, ("x",), None)
    several = parse_consumer(answer(config={"filter_subjects": ["x", "y"], "max_batch": 7}), "S", "d")
    assert (several.metadata, several.filters, several.max_batch) == ({}, ("x", "y"), 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "e"},
        {"stream_name": "T"},
        {"config": None},
        {"delivered": {}},
        {"ack_floor": None},
        {"num_pending": -1},
        {"cluster": {"leader": 1}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_answer_that_does_not_tell_a_consumers_state_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"its|it is|is not|does not"):
        parse_consumer(answer(**wrong), "S", "d")
