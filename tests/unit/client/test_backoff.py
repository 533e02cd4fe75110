"""Waits that double while one thing is waited for."""

from __future__ import annotations

from spark_nats.client.retrying import Backoff


def test_waits_double_up_to_the_longest_until_they_begin_anew() -> None:
    waits = Backoff(0.25, 1.5)
    assert waits.is_new
    assert [waits.take_next_wait_seconds() for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]
    assert not waits.is_new
    waits.reset()
    assert waits.is_new
    assert waits.take_next_wait_seconds() == 0.25


def test_chance_takes_no_more_from_a_wait_than_it_may() -> None:
    waits = Backoff(1.0, 1.0, fixed_share=0.5)
    found = {waits.take_next_wait_seconds() for _ in range(20)}
    assert len(found) > 1
    assert all(0.5 <= wait <= 1.0 for wait in found)
