"""The form in which errors reach Spark: with their code and the options to check, and shown before any traceback.

:func:`errors_for_spark` wraps every method that Spark calls and that can fail, and requests for users outside of Spark.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from spark_nats.errors import NatsError

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def errors_for_spark() -> Iterator[None]:
    """Add the code and the options to check to the message of an error, and have Spark show the message first.

    Spark shows an error of Python as Python prints it, with the message last, below all frames. Python prints the cause
    of an error above it, so the cause here is the same error without frames. The frames are in the log (DEBUG). An
    error that is no :class:`NatsError` is a defect of this package, and passes with its traceback.
    """
    try:
        yield
    except NatsError as error:
        logger.debug("this error is handed to Spark", exc_info=error)
        named = error.with_context("; ".join([str(error), *error.hints])).with_code()
        named.hints = ()
        raise named from named.with_context(str(named))
