"""The progress of long tasks: a line in the log every :data:`INTERVAL` seconds, at INFO."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_nats import clock
from spark_nats.conditions import ConditionText

INTERVAL = 10.0
"""Seconds between two lines of one task; a shorter task logs none."""


class Reporter:
    """A callable that logs the progress of a task when a line is due.

    The task calls it for each part of its work, so a call without a line only reads the clock.

    Args:
        logger: the logger of the lines.
        done: returns the number of rows or messages that are done.
        say: returns the line, given the number done and the number per second since the last line.
    """

    def __init__(
        self, logger: logging.Logger, done: Callable[[], int], say: Callable[[int, float], ConditionText]
    ) -> None:
        self._logger = logger
        self._done = done
        self._say = say
        self._last = clock.monotonic(), 0  # when the last line was logged, and the number done then

    def __call__(self) -> None:
        """Log a line if one is due."""
        now, (then, before) = clock.monotonic(), self._last
        if now - then < INTERVAL or not self._logger.isEnabledFor(logging.INFO):
            return
        done = self._done()
        self._last = now, done
        self._logger.info(self._say(done, (done - before) / (now - then)).with_code)
