"""Judges, by the times of messages, whether a stream still has what was read or written. It requests nothing.

A server may come back with less than it had acknowledged: after a power failure, or with a volume that was restored
from a snapshot. New messages then reuse sequences. The stream has the same name and the same creation time; only the
time at which each message was stored distinguishes one history from another. So a reader or writer at a position notes
when M, the message before it, was stored, and compares that time later. The first row that applies decides:

========================================================  ==========================================
the stream, by what its leader reports                    judgement
========================================================  ==========================================
does not exist                                            missing
was created at another time                               recreated
ends before M                                             truncated
ends with M                                               intact
begins after M, or the time of M is not known             intact: there is nothing to compare
has a message with the sequence and the time of M         intact
has a message with the sequence of M and another time     rewritten
lacks that sequence; an earlier one was stored after M    rewritten: sequences were used again
lacks that sequence; no earlier one was stored after M    intact: M was deleted
========================================================  ==========================================

The last four need messages from the server: :func:`judge` returns the question to ask. In the last two, "after M"
means more than :data:`SKEW` later.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from spark_nats.jetstream.messages import FirstSince, MessageAt, Question
from spark_nats.jetstream.positions import Fingerprint, Position, end_of
from spark_nats.jetstream.streams import StreamInfo

SKEW = 20_000_000
"""Nanoseconds by which the clocks of a cluster's servers may differ. After a change of leader, a message may have an
earlier time, by up to this much, than one that was stored before it."""


class Judgement(Enum):
    """What has become of a stream since a position in it was noted."""

    INTACT = auto()  # it has the same history, perhaps with messages removed
    TRUNCATED = auto()  # its end is lost: it ends earlier
    REWRITTEN = auto()  # its end is lost, and other messages have those sequences
    RECREATED = auto()  # it is another stream with the same name
    MISSING = auto()  # there is no such stream

    @property
    def is_doubtful(self) -> bool:
        """Whether this counts only once reported for several seconds (:mod:`.views`): a leader may be out of date."""
        return self in (Judgement.TRUNCATED, Judgement.REWRITTEN, Judgement.MISSING)


def judge(
    position: Position, info: StreamInfo | None, answers: Mapping[Question[Any], Any] = {}
) -> Judgement | MessageAt | FirstSince:
    """Decide what has become of a stream, from its state (None if it does not exist), or return the question to ask."""
    if info is None:
        return Judgement.MISSING
    if info.created != position.created:
        return Judgement.RECREATED
    if info.last_sequence < position.last:
        return Judgement.TRUNCATED
    seen = position.fingerprint
    if seen is None or seen == end_of(info).fingerprint or seen.sequence < info.first_sequence:
        return Judgement.INTACT
    at_it = MessageAt(info.name, seen.sequence)
    if at_it not in answers:
        return at_it
    there = answers[at_it]
    if there is not None and there.sequence == seen.sequence:
        return Judgement.INTACT if there.time == seen.time else Judgement.REWRITTEN
    later = FirstSince(info.name, seen.time + SKEW + 1, info.first_sequence, seen.sequence + 1)
    if later not in answers:
        return later
    return Judgement.REWRITTEN if answers[later] <= seen.sequence else Judgement.INTACT


def match_message(seen: Fingerprint, sequence: int, time: int) -> Judgement | None:
    """Judge whether a message that arrives is of the same history as ``seen``; None: the server has to be asked.

    ``sequence`` is at most that of ``seen``. So a message that was stored later than ``seen`` is of another history,
    unless the clocks of the servers differ.
    """
    if sequence == seen.sequence:
        return Judgement.INTACT if time == seen.time else Judgement.REWRITTEN
    return None if time > seen.time else Judgement.INTACT


def contradiction(position: Position, info: StreamInfo | None, name: str) -> str:
    """Return what shows that a stream has lost its history; ``info`` is None if the stream does not exist."""
    if info is None:
        return f"the stream {name!r} does not exist any more"
    if info.last_sequence < position.last:
        return f"stream {name!r} ends at sequence {info.last_sequence}, before {position.last}"
    return f"stream {name!r} no longer has the message that it had at sequence {position.last}"
