"""Judges whether a stream still has what was read or written: the one identity of a history. It requests nothing.

A server may come back with less than it had acknowledged: after a power failure, or with a volume that was restored
from a snapshot. New messages then reuse sequences, and only the time at which each message was stored distinguishes one
history from another. So a reader or writer at a position notes when M, the message before it, was stored, and compares
that time later: its fingerprint.

When a stream was created tells less. nats-server 2.10 and 2.12 report another time after a restart, an edit and another
restart, 2.15 after a snapshot and its restore, and a mirror that takes its origin's place has its own. So it breaks a
tie only where nothing else can be compared. The first row that applies decides:

==========================================================  =======================================================
the stream, by what its leader reports                      judgement
==========================================================  =======================================================
does not exist                                              missing
the time of M is not known, and was created as noted        truncated if it ends before the position, else intact
the time of M is not known, and was created otherwise       recreated (1)
ends before M                                               truncated if it is the same stream (2), else recreated
ends with M                                                 intact
ends with the sequence of M, stored later                   rewritten if it is the same stream (2), else recreated
begins after M                                              intact if it may have had M (3), else recreated
has a message with the sequence and the time of M           intact
has a message with the sequence of M and another time       rewritten if it is the same stream (2), else recreated
lacks that sequence, and is not the same stream (2)         recreated
lacks it, and no earlier message was stored after M (4)     intact: M was deleted, or a later message replaced it
lacks it, and after that earlier one the times fall         intact: a clock was set back
lacks it, and after that earlier one the times rise         rewritten: sequences were used again
==========================================================  =======================================================

1. Unless nothing was read, and the stream has messages from before its creation: intact.
2. It was created as noted. Or its oldest message is not later than M, where a stream that was made again has only later
   ones, and it was created before M was stored, or after its oldest message: a backup was restored, or a mirror lags.
3. It was created as noted or before M was stored; or its first message was stored before its creation; or it begins
   just after M: then nothing of it is left out, whatever it is; but nothing tells whether another one was there that
   had more. So of a stream that ends with the sequence of M, the row about a message stored later decides before this.
4. More than :data:`SKEW` later than M, and than the latest time that was noted up to the position, if one was.

The rows after "begins after M" need messages from the server: :func:`judge` asks for them.
"""

from __future__ import annotations

import math
from enum import Enum, auto

from spark_nats.jetstream.messages import Decision, FirstSince, MessageAt, ask_in_decision
from spark_nats.jetstream.positions import Fingerprint, Position, end_position_of
from spark_nats.jetstream.streams import INTEREST, StreamInfo
from spark_nats.protocol.documents import parse_time

SKEW = 20_000_000
"""Nanoseconds by which the clocks of a cluster's servers may differ without more doubt. After a change of leader, a
message may have an earlier time, by up to this much, than one that was stored before it."""


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


def judge(position: Position, info: StreamInfo | None) -> Decision[Judgement]:
    """Decide what has become of a stream, from its state (None if it does not exist)."""
    if info is None:
        return Judgement.MISSING
    seen = position.fingerprint
    if seen is None:
        if info.created != position.created and not (position.last == 0 and _has_messages_before_creation(info)):
            return Judgement.RECREATED
        return Judgement.TRUNCATED if info.last_sequence < position.last else Judgement.INTACT
    is_same = _is_same_stream(position, seen, info)
    if info.last_sequence < position.last:
        return Judgement.TRUNCATED if is_same else Judgement.RECREATED
    if seen == end_position_of(info).fingerprint:
        return Judgement.INTACT
    other = Judgement.REWRITTEN if is_same else Judgement.RECREATED
    # An earlier time tells nothing: a replica that was away while messages came and went may not know the last time.
    # Nor does any of an interest stream: each replica notes its own for a message nobody wants (nats-server 2.15.1).
    has_one_end = not (is_same and info.retention == INTEREST)
    if has_one_end and info.last_sequence == seen.sequence and info.last_time > seen.time:
        return other
    if seen.sequence < info.first_sequence:
        return Judgement.INTACT if _may_have_had(position, seen, info) else Judgement.RECREATED
    there = yield from ask_in_decision(MessageAt(info.name, seen.sequence))
    if there is not None and there.sequence == seen.sequence:
        return Judgement.INTACT if there.time == seen.time else other
    if not is_same:
        return Judgement.RECREATED
    since_then = FirstSince(info.name, _latest_time(position, seen) + SKEW + 1, info.first_sequence, seen.sequence + 1)
    later = yield from ask_in_decision(since_then)
    if later > seen.sequence:
        return Judgement.INTACT
    # Sequences that are used again have times that rise to the stream's end. Where they fall, a clock was set back.
    found = yield from ask_in_decision(MessageAt(info.name, later))
    since = [info.last_time or math.inf, there.time if there else math.inf]
    fall = found is not None and found.sequence <= seen.sequence and min(since) < found.time - SKEW
    return Judgement.INTACT if fall else Judgement.REWRITTEN


def _is_same_stream(position: Position, seen: Fingerprint, info: StreamInfo) -> bool:
    """Tell whether a stream is the one in which a message was ``seen``, perhaps as it was earlier, or a copy of it."""
    if info.created == position.created:
        return True
    oldest, created = _oldest_time(info), parse_time(info.created)
    if created is None or not 0 < oldest <= _latest_time(position, seen):
        return False
    return created <= seen.time or oldest < created


def _may_have_had(position: Position, seen: Fingerprint, info: StreamInfo) -> bool:
    """Tell whether a stream that begins after a message that was ``seen`` may have had it."""
    if info.created == position.created or info.first_sequence == position.next:
        return True
    created = parse_time(info.created)
    return created is not None and (created <= seen.time or _has_messages_before_creation(info))


def _has_messages_before_creation(info: StreamInfo) -> bool:
    """Tell whether a stream has a message from before the time at which it was created, as it says."""
    created = parse_time(info.created)
    return created is not None and 0 < _oldest_time(info) < created


def _oldest_time(info: StreamInfo) -> int:
    """Return when the oldest message that is known of a stream was stored; 0 when it never had one."""
    return info.first_time or info.last_time


def _latest_time(position: Position, seen: Fingerprint) -> int:
    """Return the latest time of any message before a position, as far as it is known."""
    return max(seen.time, position.latest or 0)


def try_judge_by_message(seen: Fingerprint, sequence: int, time: int) -> Judgement | None:
    """Judge whether a message that arrives is of the same history as ``seen``; None: the server has to be asked.

    ``sequence`` is at most that of ``seen``. So a message that was stored later than ``seen`` is of another history,
    unless the clocks of the servers differ.
    """
    if sequence == seen.sequence:
        return Judgement.INTACT if time == seen.time else Judgement.REWRITTEN
    return None if time > seen.time else Judgement.INTACT


def is_empty_and_unchanged(position: Position, info: StreamInfo) -> bool:
    """Tell whether an empty stream has stored nothing since a position, though its next sequence is a higher one.

    A purge up to a sequence beyond the end makes sequences begin there. Its time of the last message stays the same
    (seen with nats-server 2.10 to 2.15), which shows this as long as nothing else is stored.
    """
    return not info.messages and 0 < info.last_time == position.time


def describe_loss(position: Position, info: StreamInfo | None, name: str) -> str:
    """Return what shows that a stream has lost its history; ``info`` is None if the stream does not exist."""
    if info is None:
        return f"the stream {name!r} does not exist any more"
    if info.last_sequence < position.last:
        return f"stream {name!r} ends at sequence {info.last_sequence}, before {position.last}"
    return f"stream {name!r} no longer has the message that it had at sequence {position.last}"
