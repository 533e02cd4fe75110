"""Errors of Spark, in a line each."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

from spark_nats.errors import NatsError


class SparkFailedError(NatsError):
    """Spark failed, of an error of ours or of its own."""


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Say in a line what Spark takes a page for."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    # Py4J logs an interrupted call as an error, on the root logger.
    logging.getLogger().addFilter(_nothing)
    try:
        yield
    except (PySparkException, Py4JError) as error:
        # An error on an executor ends a Python traceback that stands in the middle of Spark's own text.
        ours = re.findall(r"spark_nats\.errors\.\w+: (.+)", str(error))
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise SparkFailedError(f"Spark failed: {ours[-1] if ours else lines[0]}") from None
    finally:
        logging.getLogger().removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False
