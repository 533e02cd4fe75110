"""Whether a stream is still the one that was read, or written to, and has what it had then: decided, nothing is asked.

A server may come back with less than it had acknowledged: after a power failure, or with a volume that was restored
from a snapshot. New messages then take sequences that were in use before. The stream has the same name and was made at
the same time; only the time at which each message was stored tells one history from another. So whoever has come to a
position notes when the message before it was stored, and compares that when it comes back.

========================================================  ==========================================
the stream, by its leader's state                         judgement
========================================================  ==========================================
does not exist                                            missing
was made at another time                                  recreated
ends before the position                                  truncated
ends with the message before the position                 intact
begins behind it, or its time is not known                intact: there is nothing to compare
has a message with its sequence and its time              intact
has a message with its sequence and another time          rewritten
has none, and before it one that was stored later         rewritten: whatever was stored since is later
has none, nor one that was stored later                   intact: that message was deleted
========================================================  ==========================================

To be sure of the last four, messages have to be asked for: then the judgement is the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from spark_nats.jetstream.messages import FirstSince, MessageAt, Question
from spark_nats.jetstream.positions import Fingerprint, Position, end_of
from spark_nats.jetstream.streams import StreamInfo

SKEW = 20_000_000
"""Nanoseconds by which the clocks of a cluster's servers may differ. A message that was stored before another one may
have a later time than that by so much, where the leader changed in between."""


class Judgement(Enum):
    """What has become of a stream since somebody was at a position in it."""

    INTACT = auto()  # it has what it had, or has removed it as streams do
    TRUNCATED = auto()  # it ends before the position: its end is lost
    REWRITTEN = auto()  # its end is lost, and other messages have its sequences
    RECREATED = auto()  # it is another one of its name
    MISSING = auto()  # there is none

    @property
    def is_doubtful(self) -> bool:
        """Whether it is to be said for a while (:mod:`.views`): a server may not know what is there."""
        return self in (Judgement.TRUNCATED, Judgement.REWRITTEN, Judgement.MISSING)


def judge(
    position: Position, info: StreamInfo | None, answers: Mapping[Question[Any], Any] = {}
) -> Judgement | MessageAt | FirstSince:
    """Decide what has become of a stream that is in such a state now, or does not exist; or what is to be asked."""
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
    """Decide what a message that arrives says of a history of which the last message is known; None: it is to be asked.

    One that was stored after it may be of that history only if it stands behind it.
    """
    if sequence == seen.sequence:
        return Judgement.INTACT if time == seen.time else Judgement.REWRITTEN
    return None if time > seen.time else Judgement.INTACT


def contradiction(position: Position, info: StreamInfo | None, name: str) -> str:
    """Say what contradicts that a stream has what it had, of which this is the state, or which does not exist."""
    if info is None:
        return f"the stream {name!r} does not exist any more"
    if info.last_sequence < position.last:
        return f"stream {name!r} ends at sequence {info.last_sequence}, before {position.last}"
    return f"stream {name!r} has another message at sequence {position.last} than the query has read"
