"""Identifies a place in a stream by one type, whose values reveal a stream that was created again or filled again.

A stream that was deleted and created again, or has lost its end and was filled again, has another message before the
place, with another time (:mod:`.judgement`). When the stream was created is kept for the case that there is no such
message to compare.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_nats.jetstream.streams import StreamInfo


class Fingerprint(NamedTuple):
    """The last message that was stored before a place in a stream."""

    sequence: int
    time: int  # when it was stored, in nanoseconds since 1970 by the clock of the server that led the stream


class Position(NamedTuple):
    """A place in a stream where a reader or writer continues.

    Attributes:
        created: when the stream was created.
        next: the next sequence.
        time: when the message before ``next`` was stored, in nanoseconds since 1970; None when there is none, or when
            it is unknown, as in checkpoints and notes of older versions.
        earliest: whether a query begins here with the first message that exists, so that messages removed before they
            are read are no loss.
        latest: no message before ``next`` was stored later, in nanoseconds since 1970; None where it is not noted. It
            differs from ``time`` where a clock was set back.
        before: the fingerprint of an earlier place in the same history; None where it is not noted.
    """

    created: str
    next: int
    time: int | None = None
    earliest: bool = False
    latest: int | None = None
    before: Fingerprint | None = None

    @property
    def last(self) -> int:
        """The sequence before ``next``."""
        return self.next - 1

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The fingerprint of the message before ``next``; None when ``time`` is None."""
        return None if self.time is None else Fingerprint(self.last, self.time)


def end_position_of(info: StreamInfo) -> Position:
    """Return the position after everything that a stream has ever stored."""
    return Position(
        info.created, info.last_sequence + 1, info.last_time or None, latest=latest_time_if_it_matters(info)
    )


def latest_time_if_it_matters(info: StreamInfo, clock: int = 0) -> int | None:
    """Return a time that no message which a stream has now is later than, ``clock`` at least; None where none matters.

    It matters where the message before a place may go while earlier ones stay, because each message can be replaced,
    acknowledged or deleted by itself.
    """
    return max(clock, info.time, info.last_time) or None if info.removes_single_messages else None
