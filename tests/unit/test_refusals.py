"""Which rows were refused, told from the order of the answers alone."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from spark_nats.jetstream.refusals import CERTAIN, REPLIES, ROUNDS, in_turn, reply_of, tell_apart


def shuffled(first: int, refused: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """The reply subjects of messages from number `first` on, of those that were stored, and of those refused."""
    replies = reply_of(np.arange(first, first + len(refused)))
    return replies.tolist(), replies[~refused].tolist(), replies[refused].tolist()


@given(st.integers(0, 10**9), st.integers(1, 6000), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_messages_that_were_refused_here_and_there_are_told_from_the_others(first, count, share, seed):
    refused = np.random.default_rng(seed).random(count) < share
    assert tell_apart(*shuffled(first, refused)).tolist() == refused.tolist()


@given(st.integers(0, 10**9), st.lists(st.tuples(st.booleans(), st.integers(1, 2000)), min_size=1, max_size=8))
def test_long_runs_of_messages_that_were_refused_are_told_from_the_others(first, runs):
    """As when a queue is full for a while: whole rounds of the reply subjects are refused together."""
    refused = np.concatenate([np.full(length, was) for was, length in runs])
    assert tell_apart(*shuffled(first, refused)).tolist() == refused.tolist()


def test_what_cannot_be_told_is_not_guessed():
    assert tell_apart([1, 1], [1], [1]) is None  # one of two that look alike
    assert tell_apart([1, 2, 1, 2], [1, 2], [1, 2]) is None  # either half
    assert tell_apart([1, 2], [1], []) is None  # an answer is missing
    assert tell_apart([1, 2], [2], [3]) is None  # they do not belong together
    assert tell_apart([], [], []).tolist() == []


def test_every_round_has_each_reply_subject_once():
    turns = reply_of(np.arange(ROUNDS * REPLIES)).reshape(ROUNDS, REPLIES)
    assert (np.sort(turns, axis=1) == np.arange(REPLIES)).all()


def test_a_reply_subject_does_not_come_again_soon():
    sent = np.arange(3 * ROUNDS * REPLIES)
    replies = reply_of(sent)
    for reply in range(REPLIES):
        assert np.diff(np.flatnonzero(replies == reply)).min() > 256


@given(st.integers(0, 10**9), st.integers(1, 1000))
def test_answers_are_in_turn_only_from_the_message_on_that_is_due(first, count):
    replies = reply_of(np.arange(first, first + count))
    assert in_turn(first, replies)
    assert not in_turn(first, np.append(replies, replies[-1]))


@given(st.integers(0, 10**9), st.integers(1, ROUNDS * REPLIES - 1))
@example(5, 7615)
def test_answers_behind_a_gap_are_not_in_turn_for_long(first, missing):
    looks_due = reply_of(np.arange(first, first + CERTAIN)) == reply_of(np.arange(first, first + CERTAIN) + missing)
    assert np.flatnonzero(~looks_due)[0] <= 4
