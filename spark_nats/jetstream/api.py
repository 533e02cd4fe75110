"""Requests to the JetStream API: JSON in, JSON or an error out (ADR-1)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_nats.client.connection import Connection
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NoRespondersError,
    ProtocolError,
    Remedy,
    StreamNotFoundError,
)
from spark_nats.protocol.api import API_PREFIX, NOT_ENABLED, Api, ApiError, ErrCode, parse_answer
from spark_nats.protocol.headers import REQUIRED_API_LEVEL, encode_block


class Request(NamedTuple):
    """A request to the API; see :meth:`JetStream.request`."""

    operation: Api
    names: tuple[str, ...]
    body: dict[str, Any] | None = None
    level: int | None = None

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return its payload and its header block, if any."""
        header = None if self.level is None else encode_block({REQUIRED_API_LEVEL: str(self.level)})
        return b"" if self.body is None else json.dumps(self.body).encode(), header


@dataclass(frozen=True, slots=True)
class JetStream:
    """The JetStream API as seen from one connection.

    Attributes:
        connection: carries the requests.
        prefix: first tokens of the API's subjects.
    """

    connection: Connection
    prefix: str = API_PREFIX

    def request(
        self, operation: Api, *names: str, body: dict[str, Any] | None = None, level: int | None = None
    ) -> dict[str, Any]:
        """Send a request and return the answer's JSON object.

        Args:
            operation: what is asked for.
            names: of the stream and the consumer that it is about.
            body: the request, if it has one.
            level: of the API, which the server must have at least.

        Raises:
            StreamNotFoundError: the answer says so.
            JetStreamUnavailableError: JetStream does not answer at all, or says that it is not enabled.
            JetStreamError: the answer is any other error object.
            NatsError: the connection failed.
        """
        (answer,) = self.request_all([Request(operation, names, body, level)])
        if isinstance(answer, JetStreamError):
            raise answer
        return answer

    def request_all(self, requests: Sequence[Request]) -> list[dict[str, Any] | JetStreamError]:
        """Send requests in one round trip; return for each the answer's JSON object, or the error that it is.

        Raises:
            JetStreamUnavailableError: JetStream does not answer at all.
            NatsError: the connection failed.
        """
        sent = [(f"{self.prefix}.{each.operation.about(*each.names)}", *each.encoded()) for each in requests]
        try:
            replies = self.connection.request_all(sent)
        except NoRespondersError:
            raise JetStreamUnavailableError(
                f"JetStream does not answer on {self.prefix} at {self.connection.server}: it is not enabled there "
                "(nats-server -js), or its API has another prefix",
                remedies=[Remedy.API_PREFIX],
            ) from None
        found: list[dict[str, Any] | JetStreamError] = []
        for request, reply in zip(requests, replies, strict=True):
            with interpreting(request.operation, *request.names):
                answer = parse_answer(reply.payload)
            found.append(
                _error_of(answer, request.operation, request.names) if isinstance(answer, ApiError) else answer
            )
        return found


@contextlib.contextmanager
def interpreting(operation: Api, *names: str) -> Iterator[None]:
    """Take an answer apart; that it is not what the API's documentation says is a :class:`ProtocolError`."""
    try:
        yield
    except ValueError as error:
        raise ProtocolError(f"the server's answer to {operation.about(*names)} is invalid: {error}") from None


def _error_of(error: ApiError, operation: Api, names: tuple[str, ...]) -> JetStreamError:
    if error.err_code == ErrCode.STREAM_NOT_FOUND:
        return StreamNotFoundError(
            f"the stream {names[0]!r} does not exist" if names else "the stream does not exist",
            *error,
            remedies=[Remedy.CREATE_STREAM],
        )
    kind = JetStreamUnavailableError if error.err_code in NOT_ENABLED else JetStreamError
    return kind(f"{operation.about(*names)} failed: {error.description} ({error.code}, {error.err_code})", *error)
