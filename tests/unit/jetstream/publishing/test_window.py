"""How many rows may be under way, whatever the stream says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_nats.jetstream.publishing.flight import FIRST, GROWTH, MAX_ABSENCE, MIN_SIZE, Window

EVENTS = st.one_of(
    st.tuples(st.just("stored"), st.integers(0, 5000)),
    st.tuples(st.just("too many"), st.integers(1, 40_000)),
    st.tuples(st.just("away"), st.just(0)),
)


@settings(max_examples=100)
@given(st.integers(1, 32_767), st.lists(EVENTS, max_size=30))
def test_the_window_stays_within_its_bounds(most: int, events: list[tuple[str, int]]) -> None:
    window = Window(most)
    assert window.size == min(FIRST, most)
    for event, count in events:
        if event == "stored":
            window.grow(count)
        else:
            pause = window.shrink_and_choose_pause(count) if event == "too many" else window.minimize_and_choose_pause()
            assert 0 <= pause <= MAX_ABSENCE
        assert min(MIN_SIZE, most) <= window.size <= most
        assert 1 <= window.part_size <= window.size


@given(st.integers(0, 2000))
def test_it_doubles_while_the_server_takes_all_and_grows_slowly_once_it_has_not(stored: int) -> None:
    window = Window(32_767)
    window.grow(stored)
    assert window.size == FIRST + stored
    window.shrink_and_choose_pause(FIRST)
    size = window.size
    assert size == FIRST // 2
    window.grow(stored)
    assert window.size == int(size + stored * GROWTH)


def test_pauses_double_until_a_row_is_stored() -> None:
    window = Window(100)
    assert window.absence.is_new
    pauses = [window.minimize_and_choose_pause() for _ in range(5)]
    assert pauses == [0.25, 0.5, 1.0, 2.0, 2.0]
    assert not window.absence.is_new
    window.grow(1)
    assert window.minimize_and_choose_pause() == 0.25
