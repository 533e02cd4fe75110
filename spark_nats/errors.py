"""Every error this package raises, in one tree under :class:`NatsError`.

A message says what is wrong, with which value, and what to do about it. No message carries a secret.
Errors that have a meaning in the standard library also derive from its class, so that ``except TimeoutError``
or ``except ConnectionError`` work as a reader would expect.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Self

from spark_nats.conditions import ConditionText, Hint, Transient, with_text

_CAUSE: Any = vars(BaseException)["__cause__"]


class NatsError(Exception):
    """Base of everything that goes wrong here.

    Attributes:
        hints: what to look at.
        transient: whether it may pass by itself.

    Args:
        message: the sentence of a condition.
        transient: whether it may pass by itself; as the condition says, where it is None.
    """

    def __init__(self, message: str, *, transient: Transient | None = None) -> None:
        super().__init__(message)
        self.hints: tuple[Hint, ...] = message.hints if isinstance(message, ConditionText) else ()
        if transient is None:
            transient = message.transient if isinstance(message, ConditionText) else Transient.NEVER
        self.transient = transient

    def may_pass(self, *, established: bool) -> bool:
        """Tell whether trying again may succeed; `established`: whether the same has succeeded before."""
        return self.transient >= (Transient.ONCE_ESTABLISHED if established else Transient.ALWAYS)

    @property
    def condition(self) -> str:
        """The code of what has happened, as docs/operating.md lists them; empty when it has none."""
        return self.args[0].condition if isinstance(self.args[0], ConditionText) else ""

    @property
    def parameters(self) -> Mapping[str, object]:
        """What was put into the condition's sentence, by name."""
        return self.args[0].parameters if isinstance(self.args[0], ConditionText) else {}

    @property
    def __cause__(self) -> BaseException | None:
        """What led to it. None does not replace one: PySpark sets that before it prints an error of a worker."""
        cause: BaseException | None = _CAUSE.__get__(self)
        return cause

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        if cause is not None:
            _CAUSE.__set__(self, cause)

    def with_context(self, message: str) -> Self:
        """Return this error with another message; if that is of a condition, this counts, with its hints."""
        error = copy.copy(self)
        error.args = (with_text(self.args[0], message),)
        if isinstance(message, ConditionText):
            error.hints = message.hints
        return error

    def with_code(self) -> Self:
        """Return this error with the code of its condition before the sentence, as Spark's own errors have it."""
        said = self.args[0]
        return self.with_context(said.with_code).advising(*self.hints) if isinstance(said, ConditionText) else self

    def advising(self, *hints: Hint) -> Self:
        """Return this error with other things to look at than it had, or none."""
        error = copy.copy(self)
        error.hints = hints
        return error


# What the user asked for


class OptionError(NatsError, ValueError):
    """An option is unknown, has an invalid value, or contradicts another."""


class SchemaError(NatsError, ValueError):
    """A DataFrame has a column or a type that NATS messages have no place for, or lacks one they need."""


class InvalidRowError(NatsError, ValueError):
    """A row cannot be sent as a NATS message. Raised before the first byte of its batch is sent."""


# The connection


class NatsConnectionError(NatsError, ConnectionError):
    """No server could be reached, or the connection was lost.

    Attributes:
        failures: why, for each server that was tried.
    """

    def __init__(self, message: str, *, failures: Iterable[Exception] = (), transient: Transient | None = None) -> None:
        super().__init__(message, transient=transient)
        self.failures = tuple(failures)


class AuthorizationError(NatsConnectionError):
    """The server refused the credentials."""


class InvalidCredentialsError(NatsConnectionError, ValueError):
    """A credential, certificate or key cannot be used. The message carries no part of it."""


class NatsTimeoutError(NatsError, TimeoutError):
    """The server did not answer in the time allowed."""


class ProtocolError(NatsError):
    """Bytes that are not the NATS protocol."""


class ServerError(NatsError):
    """The server sent ``-ERR``.

    Attributes:
        text: the server's own words, without the quotes.
    """

    def __init__(self, message: str, text: str = "", *, transient: Transient | None = None) -> None:
        super().__init__(message, transient=transient)
        self.text = text


class PermissionsError(ServerError):
    """The user may not publish or subscribe to a subject. The connection stays open."""


class NoRespondersError(NatsError):
    """Nobody listens on the subject of a request (status 503)."""


# JetStream


class JetStreamError(NatsError):
    """The JetStream API answered with an error object.

    Attributes:
        code: HTTP-like class of the error, such as 404.
        err_code: the exact error, such as 10059 (stream not found).
        description: the server's own words.
    """

    def __init__(
        self,
        message: str,
        code: int = 0,
        err_code: int = 0,
        description: str = "",
        *,
        transient: Transient | None = None,
    ) -> None:
        super().__init__(message, transient=transient)
        self.code = code
        self.err_code = err_code
        self.description = description


class JetStreamUnavailableError(JetStreamError):
    """JetStream is not enabled, or not ready: nobody answers, or the answer says so."""


class StreamNotFoundError(JetStreamError):
    """The stream does not exist."""


class UnsupportedStreamError(NatsError):
    """The stream's retention does not allow it to be read by sequence."""


class ConsumerConflictError(NatsError):
    """A durable consumer belongs to somebody else, or another consumer stands in its way."""


class PublishError(NatsError):
    """Some rows were not stored. The message says how many were, how many were not and why."""


class DataLossError(NatsError):
    """Messages that the query had still to read are gone from the stream."""
