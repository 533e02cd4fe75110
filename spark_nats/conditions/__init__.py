"""The conditions of errors and log lines, as data; those of only one kind, or of a command, are in its folder.

Calling a condition puts its values into its sentence: ``raise StreamNotFoundError(STREAM_NOT_FOUND(stream=name))``.
docs/errors.md has the remedies that the sentences do not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from functools import partial
from types import MappingProxyType


class Transient(IntEnum):
    """Whether a condition may pass without a repair, so that a retry may succeed."""

    NEVER = 0  # needs a repair
    ONCE_ESTABLISHED = 1  # if the work has succeeded before; else it counts as a mistake, even while a server starts
    ALWAYS = 2


Topic = Enum(
    "Topic",
    "SERVERS TLS TLS_FIRST WEBSOCKET PROXY TRUST CLIENT_CERTIFICATE CREDENTIALS PASSWORD API_PREFIX MISSING_STREAM "
    "MISSING_BUCKET MESSAGE_IDS STATE_BUCKET READING_BACK CONFLICT ROW SUBJECT PROGRESS DURABLE",
)
"""What an error is about. Which options to check then, only :mod:`spark_nats.options.hints` knows."""


class ConditionText(str):
    """The text of an error or a log line: the sentence of a condition, or other text, which has no code.

    Attributes:
        condition: the code of the condition.
        parameters: the values in the sentence, by name.
        topics: what it is about.
        transient: whether the condition may pass without a repair.
    """

    condition: str = ""
    parameters: Mapping[str, object] = MappingProxyType({})
    topics: tuple[Topic, ...] = ()
    transient: Transient = Transient.NEVER

    @property
    def with_code(self) -> ConditionText:
        """The sentence with the code before it, in brackets; the same sentence without a code, or when it is there."""
        before = f"[{self.condition}] " if self.condition else ""
        return self if self.startswith(before) else self.with_text(before + self)

    def with_text(self, text: str, **changes: object) -> ConditionText:
        """Return ``text`` with the condition of this one, unless it has its own, and with other attributes."""
        found = ConditionText(text)
        vars(found).update({**vars(text if isinstance(text, ConditionText) else self), **changes})
        return found


class Once(set[object]):
    """What was said already: who says a thing only once asks :meth:`add_if_new`; ``discard`` lets it be said again."""

    def add_if_new(self, what: object = None) -> bool:
        """Tell whether a thing is said for the first time, and note that it is said."""
        is_first = what not in self
        self.add(what)
        return is_first


class Condition:
    """The sentence of an error or a log line, as a constant, and the code that alerts and programs use.

    The code is ``NATS_`` and the constant's name; :func:`set_codes` sets it, at the end of each module of conditions.

    Args:
        template: the sentence, for :meth:`str.format` with names. Secrets are never put in.
        topics: what it is about, unless the error decides.
        transient: whether it may pass without a repair, unless the error decides, for example by the server's code.
    """

    code: str

    def __init__(self, template: str, *topics: Topic, transient: Transient = Transient.NEVER) -> None:
        self.template, self.topics, self.transient = template, topics, transient

    def __call__(self, /, **parameters: object) -> ConditionText:
        """Return the sentence with these values; one that is not text, bytes or a number is kept as its text."""
        plain = (str, bytes, int, float)
        kept = {name: it if isinstance(it, plain) else str(it) for name, it in parameters.items()}
        said = ConditionText(self.template.format(**kept))
        said.condition, said.parameters, said.topics, said.transient = self.code, kept, self.topics, self.transient
        return said


def set_codes(names: Mapping[str, object]) -> None:
    """Set the codes of the conditions among the names of a module."""
    for name, condition in names.items():
        if isinstance(condition, Condition):
            condition.code = f"NATS_{name}"


passing = partial(Condition, transient=Transient.ALWAYS)
"""Makes a condition that may pass without a repair."""
once_established = partial(Condition, transient=Transient.ONCE_ESTABLISHED)
"""Makes a condition that may pass without a repair if the work has succeeded before."""
