"""Log lines: which go to standard error, and those of the progress of long tasks.

The environment variable ``SPARK_NATS_LOG`` names the minimum level of lines that go to standard error. Spark starts
Python processes that the application cannot configure: those of tasks, and those beside the driver. An environment
variable reaches them all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from spark_nats import clock
from spark_nats.conditions import ConditionText
from spark_nats.conditions.others import LOG_LEVEL_UNKNOWN

VARIABLE = "SPARK_NATS_LOG"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_from_environment() -> None:
    """Log this package to standard error if the variable names a level; warn if it names an unknown one."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return
    logger = logging.getLogger("spark_nats")
    level = wanted.upper()
    if level not in _LEVELS:
        logger.warning(LOG_LEVEL_UNKNOWN(variable=VARIABLE, level=repr(wanted), levels=", ".join(_LEVELS)).with_code)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # else the handlers of the application would write each line again


INTERVAL = 10.0
"""Seconds between two lines of the progress of a task, at INFO; a shorter task logs none."""


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
