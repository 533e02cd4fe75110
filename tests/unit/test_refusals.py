"""Which rows were refused, told from the order of the answers alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_nats.jetstream.refusals import REPLIES, ROUNDS, next_unanswered, reply_of, tell_apart


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


@given(st.integers(0, 10**6), st.integers(0, 3000))
def test_the_oldest_message_without_an_answer_is_known_by_counting(first, more):
    """All before `first` are answered, and a few of those behind it that come first on their reply subjects."""
    answered = np.bincount(reply_of(np.arange(first)), minlength=REPLIES)
    assert next_unanswered(answered).min() == first
    following = np.arange(first + 1, first + 1 + min(more, REPLIES // 2))
    answered += np.bincount(reply_of(following), minlength=REPLIES)
    assert next_unanswered(answered).min() == first
