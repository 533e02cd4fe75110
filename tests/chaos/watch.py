"""How far the query has come, and how long it ever stood still."""

from __future__ import annotations

import threading
import time

from tests.chaos.cluster import IN, OUT, ChaosCluster
from tests.nats_py import wait_until

_INTERVAL = 0.25


class Watch:
    """Looks at both streams several times a second, from a thread of its own, until it is closed.

    Attributes:
        given: the last sequence of IN.
        copied: the last sequence of OUT.
        longest_stall: seconds for which no message came to OUT while IN had more.
        doing: what is being done, as whoever does it says.
        stalled_while: what was being done at the end of the longest stall.
    """

    def __init__(self, cluster: ChaosCluster) -> None:
        self.given = self.copied = 0
        self.longest_stall = 0.0
        self.doing = self.stalled_while = "start"
        self._cluster = cluster
        self._since: float | None = None  # begins with the first message in OUT: before, Spark starts
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_progress(self, timeout: float, whole: bool = True) -> None:
        """Wait until a message that is published from now on has come to OUT, and all before it.

        Args:
            timeout: seconds.
            whole: whether to wait for all servers and replicas too.

        Raises:
            TimeoutError: it has not.
        """
        goal = self.given + 1
        deadline = time.monotonic() + timeout
        wait_until(lambda: self.copied >= goal, timeout)
        if whole:
            self._cluster.wait_until_whole(max(0.0, deadline - time.monotonic()))

    def wait_until_copied(self, timeout: float) -> None:
        """Wait until OUT has as many messages as IN.

        Raises:
            TimeoutError: it has not.
        """
        wait_until(lambda: self.copied >= self.given, timeout)

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL):
            states = self._cluster.streams()
            now = time.monotonic()
            if IN in states:
                self.given = max(self.given, states[IN].last)
            if OUT in states and states[OUT].last > self.copied:
                self.copied = states[OUT].last
                self._since = now
            if self._since is not None and self.copied < self.given:
                if now - self._since > self.longest_stall:
                    self.longest_stall, self.stalled_while = now - self._since, self.doing
            elif self._since is not None:
                self._since = now
