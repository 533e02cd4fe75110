"""What can go wrong, and what the log says, as data: one module for each table of docs/operating.md.

Calling a condition puts its values into its sentence: ``raise StreamNotFoundError(STREAM_NOT_FOUND(stream=name))``.
``make docs`` writes the tables; conditions stand there in their order here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property


class Transient(IntEnum):
    """Whether what has happened may pass by itself, so that trying again helps."""

    NEVER = 0  # somebody has to repair it
    ONCE_ESTABLISHED = 1  # where it has worked before; else it is a mistake, though a restarting server says the same
    ALWAYS = 2


class Said(str):
    """The sentence of a condition.

    Attributes:
        condition: the condition's code.
        parameters: what was put in, by name.
        transient: whether it passes by itself.
    """

    condition: str
    parameters: Mapping[str, object]
    transient: Transient

    @property
    def coded(self) -> Said:
        """The sentence with the code before it, in brackets; the same again when it has that already."""
        before = f"[{self.condition}] "
        return self if self.startswith(before) else _said(before + self, self)


def _said(text: str, same: Said) -> Said:
    said = Said(text)
    said.condition, said.parameters, said.transient = same.condition, same.parameters, same.transient
    return said


def reworded(said: str, text: str) -> str:
    """Return another sentence about the same condition, unless it is of a condition itself."""
    if isinstance(said, Said) and not isinstance(text, Said):
        return _said(text, said)
    return text


class Condition:
    """Something that can go wrong, or that the log says: a constant of one of the modules here.

    Args:
        template: its sentence, for :meth:`str.format` with names. Secrets are never put in.
        advice: what to do, as docs/operating.md says it; empty when it stands in the row of the condition above it.
        transient: whether it passes by itself, unless the error knows better, as from the server's code.
    """

    def __init__(self, template: str, advice: str = "", *, transient: Transient = Transient.NEVER) -> None:
        self.template = template
        self.advice = advice
        self.transient = transient
        self._module = sys._getframe(1).f_globals

    @cached_property
    def code(self) -> str:
        """How alerts and programs name it: ``NATS_`` and the name of the constant."""
        return next(f"NATS_{name}" for name, value in self._module.items() if value is self)

    def __call__(self, /, **parameters: object) -> Said:
        """Return the sentence; of what is put in and is neither text nor a number, the text is kept."""
        plain = (str, bytes, int, float)
        kept = {name: it if isinstance(it, plain) else str(it) for name, it in parameters.items()}
        said = Said(self.template.format(**kept))
        said.condition, said.parameters, said.transient = self.code, kept, self.transient
        return said
