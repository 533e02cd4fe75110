"""How far long work has come: a line in the log every :data:`INTERVAL` seconds, at INFO."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_nats import clock
from spark_nats.conditions import ConditionText

INTERVAL = 10.0
"""Seconds between two lines of one task; work that takes less has none."""


class Reporter:
    """Logs how far a task has come, when it is called and a line is due.

    It is called for each portion of work, so it costs one look at the clock then.

    Args:
        logger: takes the lines.
        done: returns how much is done, in rows or messages.
        say: returns the line, for how much is done and how much of that in a second since the last line.
    """

    def __init__(
        self, logger: logging.Logger, done: Callable[[], int], say: Callable[[int, float], ConditionText]
    ) -> None:
        self._logger = logger
        self._done = done
        self._say = say
        self._last = clock.monotonic(), 0  # when the last line was due, and how much was done then

    def __call__(self) -> None:
        """Log a line if one is due."""
        now, (then, before) = clock.monotonic(), self._last
        if now - then < INTERVAL or not self._logger.isEnabledFor(logging.INFO):
            return
        done = self._done()
        self._last = now, done
        self._logger.info(self._say(done, (done - before) / (now - then)).with_code)
