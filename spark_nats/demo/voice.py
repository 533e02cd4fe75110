"""What the demonstration says, and that it is still at it when it has nothing to say."""

from __future__ import annotations

import sys
import threading
from typing import Self

from spark_nats import clock

SILENCE = 2.0
"""Most seconds without a word."""
_CLEAR = "\r\x1b[K"  # the line on which a terminal's cursor is


class Voice:
    """Prints lines. Within ``with``, a thread says what is under way whenever nothing was said for a while.

    In a terminal that is one line which changes, and goes when the next one comes; elsewhere it is a line each time.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._terminal = sys.stdout.isatty()
        self._awaited: str | None = None
        self._since = self._spoke = clock.monotonic()
        self._shown = False  # whether the terminal's line says what is under way
        self._ended = False
        self.interrupted = False  # whether the program is to end, though a library may have swallowed that
        self._ticker = threading.Thread(target=self._tick, name="demo-voice", daemon=True)

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._clear()
            self._changed.notify()
        self._ticker.join()

    def say(self, line: str = "") -> None:
        """Print a line."""
        with self._changed:
            self._clear()
            print(line, flush=True)
            self._spoke = clock.monotonic()

    def awaits(self, what: str | None) -> None:
        """Note what is under way from now on, such as ``Spark is starting``; None when it is right to be silent.

        Raises:
            KeyboardInterrupt: the program was interrupted before, and went on: a library that is being imported may
                catch everything.
        """
        if self.interrupted and what is not None:
            raise KeyboardInterrupt
        with self._changed:
            self._awaited, self._since = what, clock.monotonic()
            self._changed.notify()

    def _clear(self) -> None:
        if self._shown:
            print(_CLEAR, end="", flush=True)
            self._shown = False

    def _tick(self) -> None:
        with self._changed:
            while not self._ended:
                now = clock.monotonic()
                left = None if self._awaited is None else self._spoke + SILENCE - now
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                line = f"  {'...':<9}  {self._awaited} ({now - self._since:.0f} s)"
                try:
                    self._clear()
                    print(line, end="" if self._terminal else "\n", flush=True)
                except OSError:  # nobody reads any more, of which whoever speaks next will hear too
                    return
                self._shown = self._terminal
                self._spoke = now
