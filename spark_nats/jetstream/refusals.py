"""Telling refused rows from stored ones when several rows in flight share a reply subject. Arithmetic only.

A publisher's reply subjects take turns, and an answer names its reply subject and nothing else of the row. What is
known besides is order: the sequences of the rows that were stored rise with the rows, and refusals of one kind come in
the order of their rows. So the reply subjects of all rows, in the order in which they were sent, are these two lists
shuffled into one; and there is nearly always one way only to take them apart again, because the reply subjects do not
take their turns in the same order each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_nats.protocol.bytecolumns import Mask, Positions

REPLIES = 512
"""Reply subjects of a publisher; as many as nats-server keeps in a client's cache of subscriptions."""
ROUNDS = 64
"""After so many rounds the reply subjects take their turns in the same order again."""
_BLOCK = 128  # they are shuffled among so many: the same one comes again after 385 rows at the earliest

_TURNS = np.concatenate(
    [
        block + np.random.default_rng((round_, block)).permutation(_BLOCK)
        for round_ in range(ROUNDS)
        for block in range(0, REPLIES, _BLOCK)
    ]
)
CERTAIN = 64
"""After so many answers that are due it is certain that none is missing before them.

Where answers are missing, those that follow come on other reply subjects than the ones that are due: at most four of
them in a row do not, wherever they are missing, if no more than :data:`MOST_IN_FLIGHT` are."""
MOST_IN_FLIGHT = ROUNDS * REPLIES - 1
"""Most messages without an answer: where one more was missing, all that follow would seem to be due."""


def reply_of(sent: Positions) -> Positions:
    """Return the numbers of the reply subjects of messages, by how many were sent before each."""
    turns: Positions = _TURNS[sent % len(_TURNS)]
    return turns


def in_turn(first: int, replies: Positions) -> bool:
    """Tell whether answers came on the reply subjects of the messages from one on, in their order.

    Args:
        first: how many messages were sent before that.
        replies: the numbers of the reply subjects that they came on.
    """
    return np.array_equal(reply_of(np.arange(first, first + len(replies))), replies)


def tell_apart(sent: Sequence[int], stored: Sequence[int], refused: Sequence[int]) -> Mask | None:
    """Tell which of the messages that were sent have been refused.

    Args:
        sent: the reply subject of each message, in the order in which they were sent.
        stored: the reply subjects of those that were stored, in the same order.
        refused: the reply subjects of those that were refused, in the same order.

    Returns:
        For each message whether it was refused; None when there is no way or more than one to tell.
    """
    if len(sent) != len(stored) + len(refused):
        return None
    # reachable[i]: how many of the first i messages may have been stored, if all before them fit.
    reachable: list[set[int]] = [{0}]
    for i, reply in enumerate(sent):
        following = set()
        for count in reachable[-1]:
            if count < len(stored) and stored[count] == reply:
                following.add(count + 1)
            if i - count < len(refused) and refused[i - count] == reply:
                following.add(count)
        reachable.append(following)
    found = np.zeros(len(sent), np.bool_)
    fitting = reachable[-1] & {len(stored)}
    for i in range(len(sent) - 1, -1, -1):
        as_stored = {count - 1 for count in fitting if count - 1 in reachable[i] and stored[count - 1] == sent[i]}
        as_refused = {
            count for count in fitting & reachable[i] if i - count < len(refused) and refused[i - count] == sent[i]
        }
        if bool(as_stored) == bool(as_refused):
            return None
        found[i] = bool(as_refused)
        fitting = as_stored | as_refused
    return found
