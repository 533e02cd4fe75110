"""How far the query has come, and how long it ever stood still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.nats_py import wait_until

_INTERVAL = 0.25


class Watch:
    """Compares several times a second what was published with what was copied, from a thread of its own.

    Args:
        given: the number of the last message that was published.
        copied: the number of the last one in OUT, None when that cannot be known now.

    Attributes:
        longest_stall: seconds for which nothing new came to OUT while there was more.
        doing: what is being done, as whoever does it says.
        stalled_while: what was being done at the end of the longest stall.
    """

    def __init__(self, given: Callable[[], int], copied: Callable[[], int | None]) -> None:
        self.given = given
        self.copied = 0
        self.longest_stall = 0.0
        self.doing = self.stalled_while = "start"
        self._copied = copied
        self._since: float | None = None  # begins with the first message in OUT: before, Spark starts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def wait_for_progress(self, timeout: float) -> None:
        """Wait until a message that is published from now on has come to OUT.

        Raises:
            TimeoutError: it has not.
        """
        goal = self.given() + 1
        wait_until(lambda: self.copied >= goal, timeout)

    def wait_until_copied(self, timeout: float) -> None:
        """Wait until the last message that was published has come to OUT.

        Raises:
            TimeoutError: it has not.
        """
        wait_until(lambda: self.copied >= self.given(), timeout)

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            copied, now = self._copied() or 0, time.monotonic()
            if copied > self.copied:
                self.copied, self._since = copied, now
            if self._since is None:
                continue
            if self.copied >= self.given():
                self._since = now
            elif now - self._since > self.longest_stall:
                self.longest_stall, self.stalled_while = now - self._since, self.doing
