"""Limits how many rows are under way, as TCP does, and tells how long to pause when a stream refuses rows for now.

The window is halved when a stream is given too much at once, and grows again slowly. While nobody answers for the
stream, the window is as small as it can be.
"""

from __future__ import annotations

from spark_nats.client.retrying import Backoff

FIRST = 2048  # rows at first; the window doubles while the server takes all that is sent
MIN_SIZE = 16  # rows that may be under way in any case
GROWTH = 1 / 16  # rows by which the window grows for each stored row, once there were too many requests
FIRST_ABSENCE, MAX_ABSENCE = 0.25, 2.0  # seconds to pause when nobody answers


class Window:
    """Rows that may be under way, ``most`` of them at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._exact = float(min(FIRST, most))
        self._congested = False  # there were too many requests before
        self._pause = Backoff(0.01, 0.5, fixed_share=0.0)  # after too many requests
        self._absence = Backoff(FIRST_ABSENCE, MAX_ABSENCE)

    @property
    def size(self) -> int:
        """How many rows may be under way."""
        return int(self._exact)

    @property
    def part(self) -> int:
        """How many rows are sent together."""
        return max(1, self.size // 4)

    @property
    def is_absence_new(self) -> bool:
        """Whether rows were stored since the stream was last unavailable, or it never was."""
        return self._absence.is_new

    def grow(self, stored: int) -> None:
        """Note how many rows were stored."""
        self._pause.reset()
        self._absence.reset()
        self._exact = min(self._exact + stored * (GROWTH if self._congested else 1.0), float(self._most))

    def on_throttled(self, under_way: int) -> float:
        """Note that ``under_way`` rows were too many for the stream; return how many seconds to pause."""
        self._congested = True
        self._exact = min(max(float(MIN_SIZE), min(self._exact, under_way) / 2), float(self._most))
        return self._pause.next()

    def on_unavailable(self) -> float:
        """Note that the stream does not take rows at the moment; return how many seconds to pause."""
        self._exact = float(min(MIN_SIZE, self._most))
        return self._absence.next()
