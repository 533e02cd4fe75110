"""The environment variable ``SPARK_NATS_LOG``: the minimum level of log lines that go to standard error.

Spark starts Python processes that the application cannot configure: those of tasks, and those beside the driver. An
environment variable reaches them all.
"""

from __future__ import annotations

import logging
import os

from spark_nats.conditions.others import LOG_LEVEL_UNKNOWN

VARIABLE = "SPARK_NATS_LOG"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure() -> None:
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
