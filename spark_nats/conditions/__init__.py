"""What can go wrong, and what the log says, as data. What only one kind of query says stands in its folder.

Calling a condition puts its values into its sentence: ``raise StreamNotFoundError(STREAM_NOT_FOUND(stream=name))``.
What to do then, as far as the sentence does not say it, is said in docs/operating.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


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
    """Something that can go wrong, or that the log says: a constant with the name of its code.

    Args:
        text: its code, by which alerts and programs name it, in brackets, and its sentence, for :meth:`str.format` with
            names. Secrets are never put in.
        transient: whether it passes by itself, unless the error knows better, as from the server's code.
    """

    def __init__(self, text: str, *, transient: Transient = Transient.NEVER) -> None:
        self.code, self.template = text.removeprefix("[").split("] ", 1)
        self.transient = transient

    def __call__(self, /, **parameters: object) -> Said:
        """Return the sentence; of what is put in and is neither text nor a number, the text is kept."""
        plain = (str, bytes, int, float)
        kept = {name: it if isinstance(it, plain) else str(it) for name, it in parameters.items()}
        said = Said(self.template.format(**kept))
        said.condition, said.parameters, said.transient = self.code, kept, self.transient
        return said
