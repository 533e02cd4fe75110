"""Pull requests as the server counts them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.jetstream.reading.pulls import PullRequests


def fed(requests: PullRequests, sizes: list[int], chunks: list[int]) -> None:
    """Count messages in chunks of these lengths, and the rest together."""
    done = 0
    for length in [*chunks, len(sizes)]:
        if part := sizes[done : done + length]:
            requests.subtract_delivered(np.array(part))
        done += length


def test_a_request_is_done_when_its_messages_are_used_up():
    requests = PullRequests()
    requests.note_sent(3, 1000)
    requests.note_sent(5, 1000)
    assert (len(requests), requests.messages) == (2, 8)
    requests.subtract_delivered(np.array([10, 10, 10, 10]))
    assert (len(requests), requests.messages) == (1, 4)


def test_a_message_that_does_not_fit_goes_to_the_next_request():
    requests = PullRequests()
    requests.note_sent(10, 100)
    requests.note_sent(10, 100)
    requests.subtract_delivered(np.array([60, 60]))
    assert requests.messages == 9


def test_an_end_that_was_counted_already_ends_no_other_request():
    requests = PullRequests()
    requests.note_sent(10, 100)
    requests.note_sent(10, 100)
    requests.subtract_delivered(np.array([60, 60]))  # the first one has no room for the second message
    requests.note_request_ended()  # which the server now says of it
    assert len(requests) == 1
    requests.note_request_ended()  # and this of the second, whose time is over
    assert len(requests) == 0
    requests.note_request_ended()
    assert len(requests) == 0


def test_a_request_of_which_every_byte_was_used_ends_without_a_word():
    requests = PullRequests()
    requests.note_sent(10, 100)
    requests.note_sent(10, 100)
    requests.subtract_delivered(np.array([50, 50]))
    assert len(requests) == 1
    requests.note_request_ended()
    assert len(requests) == 0


def test_a_request_without_a_limit_of_bytes_ends_without_a_word():
    requests = PullRequests()
    requests.note_sent(2, None)
    requests.note_sent(5, None)
    requests.subtract_delivered(np.array([50, 50, 50]))
    assert (len(requests), requests.messages) == (1, 4)
    requests.note_request_ended()  # of the second one, whose time is over
    assert len(requests) == 0


def test_forgotten_requests_are_none():
    requests = PullRequests()
    requests.note_sent(10, 100)
    requests.forget()
    assert (len(requests), requests.messages) == (0, 0)


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(30, 300)), min_size=1, max_size=6),
    st.lists(st.integers(1, 30), max_size=60),
    st.lists(st.integers(1, 10), max_size=20),
)
def test_it_does_not_matter_in_which_chunks_messages_arrive(asked, sizes, chunks):
    at_once, in_chunks = PullRequests(), PullRequests()
    for requests in (at_once, in_chunks):
        for messages, size in asked:
            requests.note_sent(messages, size)
    fed(at_once, sizes, [])
    fed(in_chunks, sizes, chunks)
    assert at_once.messages == in_chunks.messages
    # One message at a time, as the server counts.
    left = [list(each) for each in asked]
    for size in sizes:
        while left and left[0][1] < size:
            left.pop(0)
        if left:
            left[0][0] -= 1
            left[0][1] -= size
            if 0 in left[0]:
                left.pop(0)
    assert at_once.messages == sum(messages for messages, _ in left)
