"""The environment variable ``SPARK_NATS_LOG``: a level from which on the log is written to standard error.

Spark starts Python processes that no program of yours configures: those of tasks, and those beside the driver.
An environment variable reaches them all.
"""

from __future__ import annotations

import logging
import os

from spark_nats.conditions.others import LOG_LEVEL_UNKNOWN

VARIABLE = "SPARK_NATS_LOG"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure() -> None:
    """Write what this package logs to standard error, if the variable names a level; a wrong one is warned of."""
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
    logger.propagate = False  # or each line would come twice where the program has handlers of its own
