"""The errors of this package that users see, in one tree under :class:`NatsError`; :mod:`.embedded` adds its own.

The text of an error names the problem, the value and the remedy, and contains no secret. Some errors also derive from
one of the standard library, so that ``except TimeoutError`` and ``except ConnectionError`` work.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar, cast

from spark_nats.conditions import ConditionText, Topic, Transient

_CAUSE: Any = vars(BaseException)["__cause__"]
Answer = TypeVar("Answer")


class NatsError(Exception):
    """The base class of every error of this package that users see.

    Attributes:
        transient: whether the error may pass without a repair.

    Args:
        message: the sentence of a condition, or other text.
        transient: whether the error may pass without a repair; when None, as its condition says, or NEVER without one.
    """

    def __init__(self, message: str, *, transient: Transient | None = None) -> None:
        said = message if isinstance(message, ConditionText) else ConditionText(message)
        super().__init__(said)
        self.transient = said.transient if transient is None else transient

    def may_pass(self, *, established: bool) -> bool:
        """Return whether a retry may succeed; ``established`` is whether the same operation has succeeded before."""
        return self.transient >= (Transient.ONCE_ESTABLISHED if established else Transient.ALWAYS)

    @property
    def condition(self) -> str:
        """The code of the condition, as docs/errors.md lists it; empty for an error without a condition."""
        return cast(ConditionText, self.args[0]).condition

    @property
    def parameters(self) -> Mapping[str, object]:
        """The values in the sentence of the condition, by name; empty for an error without a condition."""
        return cast(ConditionText, self.args[0]).parameters

    @property
    def topics(self) -> tuple[Topic, ...]:
        """What it is about, for who knows the options to check."""
        return cast(ConditionText, self.args[0]).topics

    @property
    def __cause__(self) -> BaseException | None:
        """The cause; setting None keeps it, because PySpark sets None before it prints an error of a worker."""
        cause: BaseException | None = _CAUSE.__get__(self)
        return cause

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        if cause is not None:
            _CAUSE.__set__(self, cause)

    def with_message(self, message: str) -> Self:
        """Return a copy with another message; a condition in it replaces condition and topics, not ``transient``."""
        error = copy.copy(self)
        error.args = (self.args[0].with_text(message),)
        return error

    def with_code(self) -> Self:
        """Return a copy with the code before the sentence, as in Spark's errors; without a condition, itself."""
        return self.with_message(self.args[0].with_code)

    def with_topics(self, *topics: Topic) -> Self:
        """Return a copy with these topics instead of its own."""
        return self.with_message(self.args[0].with_text(str(self), topics=topics))


# Options and rows of the user


class OptionError(NatsError, ValueError):
    """An option is unknown, has an invalid value, or contradicts another."""


class SchemaError(NatsError, ValueError):
    """A DataFrame has a column or a type that NATS messages cannot hold, or lacks a required column."""


class InvalidRowError(NatsError, ValueError):
    """A row cannot be a NATS message or an object; raised before the first byte of the row is sent."""


# The connection


class NatsConnectionError(NatsError, ConnectionError):
    """No server could be reached, or the connection was lost.

    Attributes:
        failures: the error of each server that was tried.
    """

    def __init__(self, message: str, *, failures: Iterable[Exception] = (), transient: Transient | None = None) -> None:
        super().__init__(message, transient=transient)
        self.failures = tuple(failures)


class AuthorizationError(NatsConnectionError):
    """The login failed: credentials or a certificate were refused, are of the wrong kind, or cannot be used here.

    It may pass (:attr:`transient` is ALWAYS) if a login was accepted and has ended since, such as that of an expired
    user: whether credentials still log in, only another login shows.
    """


class InvalidCredentialsError(NatsConnectionError, ValueError):
    """A credential, certificate or key cannot be used; the message shows no part of it."""


class NatsTimeoutError(NatsError, TimeoutError):
    """The server did not answer within the timeout."""


class ProtocolError(NatsError):
    """Received bytes violate the NATS protocol, or an answer of a server is invalid."""


class ServerError(NatsError):
    """The server sent ``-ERR``.

    Attributes:
        text: the server's text, without the quotes.
    """

    def __init__(self, message: str, text: str = "", *, transient: Transient | None = None) -> None:
        super().__init__(message, transient=transient)
        self.text = text


class PermissionsError(ServerError):
    """The user may not publish or subscribe to a subject; the connection stays open."""


class NoRespondersError(NatsError):
    """No subscriber listens on the subject of a request (status 503)."""


# JetStream


class JetStreamError(NatsError):
    """The JetStream API answered with an error object, or an operation on a stream failed otherwise.

    Attributes:
        code: HTTP-like class of the error, such as 404; 0 when the server sent none.
        err_code: the exact error, such as 10059 (stream not found); 0 when the server sent none.
        description: the server's text; empty when it sent none.
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
    """JetStream is not enabled or not ready: no server answers, or the answer reports this."""


class StreamNotFoundError(JetStreamError):
    """The stream does not exist."""


class UnsupportedStreamError(NatsError):
    """The stream does not allow what the query needs, or the server is too old for it."""


class ConsumerConflictError(NatsError):
    """A durable consumer is another query's or program's, conflicts with others, or would remove unread messages."""


class PublishError(NatsError):
    """Some rows were not stored, or cannot be stored; the message says why."""


class DataLossError(NatsError):
    """Messages to read, or the content of an object, are lost; or it is unknown what was stored before."""


def answer_or_raise(answer: Answer | NatsError) -> Answer:
    """Return an answer; raise it if it is an error."""
    if isinstance(answer, NatsError):
        raise answer
    return answer
