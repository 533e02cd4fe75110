"""Judges whether a stream still has what was read or written, by the times of its messages; it requests nothing.

A server may come back with less than it had acknowledged: after a power failure, or with a volume that was restored
from a snapshot. New messages then reuse sequences. The stream has the same name and the same creation time; only the
time at which each message was stored distinguishes one history from another. So a reader or writer at a position notes
when the message before it was stored, and compares that time later.

========================================================  ==========================================
the stream, by its leader's state                         judgement
========================================================  ==========================================
does not exist                                            missing
was created at another time                               recreated
ends before the position                                  truncated
ends with the message before the position                 intact
begins after it, or its time is not known                 intact: there is nothing to compare
has a message with its sequence and its time              intact
has a message with its sequence and another time          rewritten
has none, and before it one that was stored later         rewritten: whatever was stored since is later
has none, nor one that was stored later                   intact: that message was deleted
========================================================  ==========================================

The last four need messages from the server: then the judgement is the question to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from spark_nats.jetstream.messages import FirstSince, MessageAt, Question
from spark_nats.jetstream.positions import Fingerprint, Position, end_of
from spark_nats.jetstream.streams import StreamInfo

SKEW = 20_000_000
"""Nanoseconds by which the clocks of a cluster's servers may differ. Where the leader changed in between, a message may
have a later time, by up to this much, than a message that was stored after it."""


class Judgement(Enum):
    """What has become of a stream since a position in it was noted."""

    INTACT = auto()  # it has its history, or has removed messages as streams do
    TRUNCATED = auto()  # it ends before the position: its end is lost
    REWRITTEN = auto()  # its end is lost, and other messages have its sequences
    RECREATED = auto()  # it is another stream of its name
    MISSING = auto()  # there is no such stream

    @property
    def is_doubtful(self) -> bool:
        """Whether the leader has to report it for several seconds (:mod:`.views`): it may not know what exists."""
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
    """Decide whether a message that arrives fits a history with a known last message; None: the server has to be asked.

    A message that was stored later than the last one belongs to that history only if its sequence is higher, too.
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
    return f"stream {name!r} has another message at sequence {position.last} than the query has read"
