"""How an error leaves us: with its code, the options to look at, and its sentence first.

:func:`naming_options` stands around whatever Spark calls of ours that can fail, and nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from spark_nats.errors import NatsError

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def naming_options() -> Iterator[None]:
    """Add to an error's message its code and which options to look at, and have Spark show the message first.

    Spark shows an error of Python as Python prints it, which is the message last, below all frames. What an error was
    raised from is printed above it: that is the same error here, without frames. They are in the log (DEBUG). What is
    no :class:`NatsError` is a mistake of ours, and passes with its traceback.
    """
    try:
        yield
    except NatsError as error:
        logger.debug("this error is handed to Spark", exc_info=error)
        named = error.with_context("; ".join([str(error), *error.hints])).with_code()
        named.hints = ()
        raise named from named.with_context(str(named))
