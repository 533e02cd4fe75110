"""Received messages of core NATS that wait for the next micro-batch, as the bytes that came, and their partitions.

Only arithmetic on bytes: no server, no Spark session.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from spark_nats import clock
from spark_nats.conditions import ConditionText
from spark_nats.kinds.core.conditions import MESSAGES_DROPPED
from spark_nats.protocol.decoder import frame_ends

SLICE_BYTES = 8 << 20
"""Maximum bytes of a partition, unless a single read of the socket brought more. Decoding them takes a fraction of the
time that Spark takes to run a task, so smaller partitions would only cost."""
PIECE_OVERHEAD = 256  # bytes that count for a piece besides its messages, so that very small pieces are bounded too


class Piece(NamedTuple):
    """Consecutive messages from one read of a socket."""

    wire: bytes  # their whole frames, with the control lines between them
    messages: int  # how many there are; at least one
    received: int  # when they were read, in microseconds since 1970

    @property
    def size(self) -> int:
        """Bytes for which the piece counts, with :data:`PIECE_OVERHEAD`."""
        return len(self.wire) + PIECE_OVERHEAD

    def split(self, at: Sequence[int]) -> list[Piece]:
        """Split before the messages with these indexes, ascending, above 0 and not beyond the last message."""
        if not at:
            return [self]
        ends = frame_ends(self.wire)
        messages = [0, *at, self.messages]
        wire = [0, *(int(ends[i - 1]) for i in at), len(self.wire)]
        return [
            Piece(self.wire[a:b], n - m, self.received)
            for (a, b), (m, n) in zip(pairwise(wire), pairwise(messages), strict=True)
        ]


def cut_into_partitions(
    pieces: Sequence[Piece], min_partitions: int, max_bytes: int = SLICE_BYTES
) -> list[list[Piece]]:
    """Cut received messages into partitions, in order.

    They are cut evenly into ``min_partitions``, or one for each message if there are fewer messages. They are also cut
    wherever a partition would exceed ``max_bytes``; only a piece that is larger by itself makes a larger partition.
    """
    total = sum(piece.messages for piece in pieces)
    wanted = min(min_partitions, total)
    even = [total * i // wanted for i in range(1, wanted)]
    parts: list[list[Piece]] = [[]]
    done, size = 0, 0
    for piece in pieces:
        inside = [each - done for each in even[bisect_left(even, done) : bisect_left(even, done + piece.messages)]]
        if 0 in inside or (size > 0 and size + len(piece.wire) > max_bytes):
            parts.append([])
            size = 0
        first, *others = piece.split([bound for bound in inside if bound])
        parts[-1].append(first)
        parts += [[each] for each in others]
        done += piece.messages
        size = len(others[-1].wire) if others else size + len(piece.wire)
    return [part for part in parts if part]


def last_messages(pieces: Sequence[Piece], count: int) -> list[Piece]:
    """Return the last ``count`` messages; all when there are fewer."""
    found: list[Piece] = []
    for piece in reversed(pieces):
        if count <= 0:
            break
        found.append(piece if piece.messages <= count else piece.split([piece.messages - count])[1])
        count -= piece.messages
    return found[::-1]


class Backlog:
    """Messages that were received and not released yet, numbered from 0; safe for several threads.

    At most ``max_bytes`` may wait to be taken; beyond it the newest messages are dropped and counted.

    Attributes:
        end: the number of messages that were received and not dropped since the beginning.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []
        self._starts: list[int] = []  # number of the first message of each piece
        self.end = 0
        self._taken = 0  # messages before this number were taken, and no longer wait
        self._waiting = 0  # bytes
        self._dropped = 0
        self._dropped_since = 0.0
        self._gaps: list[ConditionText] = []

    @property
    def is_half_full(self) -> bool:
        """Whether half of ``max_bytes`` wait, so that it is time to take them."""
        return 2 * self._waiting >= self._max_bytes

    def add_or_drop(self, piece: Piece) -> None:
        """Append messages, as many as fit; drop and count the others."""
        with self._lock:
            room = self._max_bytes - self._waiting
            if piece.size > room:
                fitting = int(np.searchsorted(frame_ends(piece.wire), room - PIECE_OVERHEAD, "right"))
                if not self._dropped:
                    self._dropped_since = clock.time()
                self._dropped += piece.messages - fitting
                if not fitting:
                    return
                piece = piece.split([fitting])[0]
            self._pieces.append(piece)
            self._starts.append(self.end)
            self.end += piece.messages
            self._waiting += piece.size

    def get_and_mark_taken(self, start: int, end: int) -> list[Piece]:
        """Return messages ``start`` to ``end`` (exclusive), and count them as taken; they stay until their release."""
        with self._lock:
            self._split(start)
            self._split(end)
            first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
            if end > self._taken:
                fresh = self._pieces[bisect_left(self._starts, self._taken) : last]
                self._waiting -= sum(piece.size for piece in fresh)
                self._taken = end
            return self._pieces[first:last]

    def end_within(self, start: int, max_bytes: int) -> int:
        """Return the end of the messages from ``start`` on that have at most ``max_bytes``; at least one message."""
        with self._lock:
            self._split(start)
            end = start
            for piece in self._pieces[bisect_left(self._starts, start) :]:
                if len(piece.wire) > max_bytes:
                    # Without the last message, which may have control lines after it.
                    end += int(np.searchsorted(frame_ends(piece.wire)[:-1], max_bytes, "right"))
                    break
                end += piece.messages
                max_bytes -= len(piece.wire)
            return max(end, start + 1)

    def release(self, before: int) -> None:
        """Forget the messages before a number that was an end for :meth:`get_and_mark_taken`."""
        with self._lock:
            count = bisect_left(self._starts, before)
            del self._pieces[:count], self._starts[:count]

    def _split(self, number: int) -> None:
        """Make a piece begin with this message."""
        index = bisect_left(self._starts, number)
        if index == 0 or number >= self.end or (index < len(self._starts) and self._starts[index] == number):
            return
        start = self._starts[index - 1]
        self._pieces[index - 1 : index] = self._pieces[index - 1].split([number - start])
        self._starts.insert(index, number)
        if start >= self._taken:
            self._waiting += PIECE_OVERHEAD

    def note_gap(self, sentence: ConditionText) -> None:
        """Note that messages may have been missed."""
        with self._lock:
            self._gaps.append(sentence)

    def take_losses(self, subjects: str) -> list[ConditionText]:
        """Return the losses since the last call; dropped messages are reported for these subjects."""
        with self._lock:
            said, self._gaps = self._gaps, []
            if self._dropped:
                since, most = iso_time(self._dropped_since), self._max_bytes
                said.insert(0, MESSAGES_DROPPED(subjects=subjects, messages=self._dropped, since=since, bytes=most))
                self._dropped = 0
        return said


def iso_time(seconds: float) -> str:
    """Format seconds since 1970 as date and time in ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
