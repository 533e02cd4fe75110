"""Whether a stream still has the history that was read of it, or that was written to it.

A server may come back with less than it had acknowledged: after a power failure, or with a volume that was restored
from a snapshot. New messages then take sequences that were in use before. The stream has the same name and was made at
the same time; only the time at which each message was stored tells one history from another. So whoever has come to a
place notes the fingerprint of the last message before it, and compares it when it comes back.

:func:`judge` decides, from what the stream's leader says, and asks nothing. :func:`look` asks.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import StoredMessage, StreamInfo, first_sequence_since, next_message

SKEW = 100_000_000
"""Nanoseconds by which the clocks of a cluster's servers may differ. A message that was stored before another one may
have a later time than that by so much, where the leader changed in between."""


class Fingerprint(NamedTuple):
    """The last message that was stored before a place in a stream.

    Attributes:
        sequence: its sequence.
        time: when it was stored, in nanoseconds since 1970 by the clock of the server that led the stream.
    """

    sequence: int
    time: int


class History(Enum):
    """What has become of the history that a fingerprint was taken of."""

    KEPT = auto()
    """The stream still has it, or has removed it as streams do."""
    SHORTER = auto()
    """The stream ends before the fingerprint's message: its end is lost."""
    REWRITTEN = auto()
    """The stream's end is lost, and other messages have its sequences."""
    HIDDEN = auto()
    """The fingerprint's message was deleted, so those before it have to be asked for."""


def fingerprint_of(info: StreamInfo) -> Fingerprint | None:
    """Return the fingerprint of the last message that was ever stored in a stream; None when there was none."""
    return Fingerprint(info.last_sequence, info.last_time) if info.last_sequence and info.last_time > 0 else None


def judge(seen: Fingerprint, info: StreamInfo, there: StoredMessage | None) -> History:
    """Decide what has become of a history.

    Args:
        seen: its fingerprint.
        info: the stream's state, of the stream that it was taken of.
        there: the first message from the fingerprint's sequence on; None when there is none.
    """
    if info.last_sequence < seen.sequence:
        return History.SHORTER
    if fingerprint_of(info) == seen or seen.sequence < info.first_sequence:
        return History.KEPT
    if there is None or there.sequence != seen.sequence:
        return History.HIDDEN
    return History.KEPT if there.time == seen.time else History.REWRITTEN


def look(js: JetStream, seen: Fingerprint, info: StreamInfo) -> History:
    """Ask the stream's leader what has become of a history; never :attr:`History.HIDDEN`.

    Raises:
        NatsError: a request failed.
    """
    needed = judge(seen, info, None) is History.HIDDEN
    there = next_message(js, info.name, seen.sequence, (">",), whole=False) if needed else None
    return unhide(js, seen, info, judge(seen, info, there))


def unhide(js: JetStream, seen: Fingerprint, info: StreamInfo, found: History) -> History:
    """Return what was found; where the message was deleted, what those before it say.

    Whatever was stored after the history was seen is later than it: a later message among its sequences is another's.

    Raises:
        NatsError: a request failed.
    """
    if found is not History.HIDDEN:
        return found
    end = seen.sequence + 1
    later = first_sequence_since(js, info.name, seen.time + SKEW, info.first_sequence, end)
    return History.KEPT if later == end else History.REWRITTEN


def first_after(js: JetStream, seen: Fingerprint, info: StreamInfo) -> int:
    """Return the sequence of the first message that was stored after a history; the next one to come when none was.

    Raises:
        NatsError: a request failed.
    """
    return first_sequence_since(js, info.name, seen.time + 1, info.first_sequence, info.last_sequence + 1)
