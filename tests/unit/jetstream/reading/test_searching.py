"""Who searches: decided by what the stream says and by what is measured."""

import pytest

from spark_nats.jetstream.reading.searching import AMPLE_SHARE, TRIAL, FilterPlacement


def search(share: float = 0.1, size: float = 100.0) -> FilterPlacement:
    begun = FilterPlacement(filtered=True)
    begun.filter_here_if_most_match(share, size)
    return begun


def test_the_server_searches_for_what_is_rare_and_not_where_nearly_all_matches():
    assert search(share=AMPLE_SHARE - 0.01).by_server
    assert not search(share=AMPLE_SHARE).by_server
    assert not search(share=1.0).change_if_slow(100.0, 1, 1000)  # and that is not changed again


def test_without_filters_nothing_is_ever_changed():
    plain = FilterPlacement(filtered=False)
    assert not plain.change_if_slow(100.0, 0, 1000)


def test_a_server_that_searches_faster_than_all_could_be_sent_goes_on():
    assert not search().change_if_slow(1.0, 1_000_000, 10**6)


def test_a_server_that_searches_slowly_is_relieved():
    begun = search()
    assert begun.change_if_slow(1.0, 10_000, 10**6)
    assert not begun.by_server


def test_a_moment_is_not_enough_to_judge():
    assert not search().change_if_slow(TRIAL / 2, 0, 1)


def test_a_search_that_has_found_nothing_gets_twice_the_time_that_everything_would_take():
    begun = search()
    assert not begun.change_if_slow(1.0, 0, 1_000_000)
    assert begun.change_if_slow(5.0, 0, 1_000_000)


def test_large_messages_are_not_sent_in_vain():
    """A hundred kilobytes each take far longer to be sent than the server takes to look at their subjects."""
    assert not search(size=100_000).change_if_slow(1.0, 10_000, 10**6)


@pytest.mark.parametrize(("passed", "back"), [(2_000, True), (50_000, False)])
def test_the_server_searches_again_where_sending_everything_turns_out_to_be_slower(passed, back):
    begun = search()
    assert begun.change_if_slow(1.0, 10_000, 10**6)
    assert begun.change_if_slow(1.0, passed, 10**6) is back
    assert begun.by_server is back
    assert not begun.change_if_slow(100.0, 1, 10**6) or not back  # at most once
