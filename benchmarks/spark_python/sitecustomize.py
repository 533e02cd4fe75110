"""Imported first by each Python that Spark starts here: has Spark's daemon add up the CPU time of its ended workers.

``pyspark.daemon`` ignores SIGCHLD, and what a process used whose parent ignores its end, nobody can ask the kernel for.
Planning and committing happen in such short-lived workers.
"""

import contextlib
import os
import signal
from typing import Any

_set_handler = signal.signal


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _set_handler_or_reap(number: int, handler: Any) -> Any:
    ignored = number == signal.SIGCHLD and handler == signal.SIG_IGN
    return _set_handler(number, _reap if ignored else handler)


setattr(signal, "signal", _set_handler_or_reap)  # noqa: B010 - its type is narrower
