"""The output of the demonstration, and a sign of life while there is no other output."""

from __future__ import annotations

import shutil
import sys
import threading
from typing import Self

from spark_nats import clock

SILENCE = 2.0
"""Maximum seconds without output."""
_BAR = 20  # most characters of a bar
_CLEAR = "\r\x1b[K"  # clears the line on which a terminal's cursor is


class Voice:
    """Prints lines; within ``with``, a thread prints what is under way after :data:`SILENCE` seconds without output.

    In a terminal, the thread updates one line, with a bar when it is known how much is left, until other output
    replaces that line; elsewhere it prints a new line each time.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._terminal = sys.stdout.isatty()
        self._awaited: str | None = None
        self._progress: tuple[int, int, str] | None = None  # how many are done, of how many, and what was done to them
        self._since = self._spoke = clock.monotonic()
        self._shown = False  # whether the terminal's line shows what is under way
        self._ended = False
        self.interruption: BaseException | None = None  # ends the program; a library may swallow it
        self._ticker = threading.Thread(target=self._run_ticker, name="demo-voice", daemon=True)

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

    def note_step(self, what: str | None) -> None:
        """Note the step that is under way from now on, such as ``Spark is starting``; None to stay silent.

        Raises:
            BaseException: an earlier interruption, which a library during its import, or code that Python calls
                by itself, has swallowed; not when ``what`` is None.
        """
        if what is not None:
            self._raise_if_interrupted()
        with self._changed:
            self._awaited, self._since, self._progress = what, clock.monotonic(), None
            self._changed.notify()

    def note_progress(self, done: int, of: int, what: str) -> None:
        """Note the progress of the step that is under way, and show it in a terminal at once.

        Args:
            done: how many are done.
            of: how many there are.
            what: what happened to those that are done, such as ``stored``.

        Raises:
            BaseException: as :meth:`note_step`.
        """
        self._raise_if_interrupted()
        with self._changed:
            self._progress = (done, of, what)
            if self._terminal:
                self._spoke = clock.monotonic() - SILENCE
                self._changed.notify()

    def _raise_if_interrupted(self) -> None:
        if self.interruption is not None:
            raise self.interruption

    def _clear(self) -> None:
        if self._shown:
            print(_CLEAR, end="", flush=True)
            self._shown = False

    def _run_ticker(self) -> None:
        with self._changed:
            while not self._ended:
                now = clock.monotonic()
                left = None if self._awaited is None else self._spoke + SILENCE - now
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                line = self._progress_line(now - self._since)
                try:
                    self._clear()
                    print(line, end="" if self._terminal else "\n", flush=True)
                except OSError:  # nobody reads the output any more; the next print will fail too
                    return
                self._shown = self._terminal
                self._spoke = now

    def _progress_line(self, seconds: float) -> str:
        begin, end = f"  {'...':<9}  {self._awaited}", f" ({seconds:.0f} s)"
        if self._progress is None:
            return begin + end
        done, of, what = self._progress
        figures = f"{done:,} {what}, {of - done:,} left"
        if not self._terminal:
            return f"{begin}: {figures}{end}"
        # A line that is wrapped could not be cleared.
        columns = shutil.get_terminal_size().columns - 1
        width = min(_BAR, columns - len(f"{begin}  {figures}{end}"))
        if width < 1:
            return f"{begin} {figures}{end}"[:columns]
        return f"{begin} {'█' * (width * done // of):░<{width}} {figures}{end}"
