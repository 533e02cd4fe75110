"""Requests to the JetStream API: JSON in, JSON or an error object out (ADR-1)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_nats.client.connection import Connection
from spark_nats.errors import JetStreamError, NoRespondersError, ProtocolError, StreamNotFoundError
from spark_nats.protocol.documents import number, parse_document, text, words

# err_code of the errors that are told apart (the server's errors.json).
STREAM_NOT_FOUND = 10059
NO_MESSAGE_FOUND = 10037
STREAM_NAME_IN_USE = 10058
WRONG_STREAM = 10060
MAXIMUM_CONSUMERS = 10026
INACTIVE_THRESHOLD_EXCESS = 10153
TOO_MANY_REQUESTS = 429  # a code, not an err_code
UNAVAILABLE = 503  # a code: no leader, or JetStream is not ready


@dataclass(frozen=True, slots=True)
class JetStream:
    """The JetStream API as seen from one connection.

    Attributes:
        connection: carries the requests.
        prefix: first tokens of the API's subjects.
    """

    connection: Connection
    prefix: str = "$JS.API"

    def request(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the answer's JSON object.

        Args:
            operation: what follows the prefix in the subject, such as ``STREAM.INFO.ORDERS``.
            body: the request, if it has one.

        Raises:
            StreamNotFoundError: the answer says so.
            JetStreamError: the answer is any other error object, or JetStream does not answer at all.
            NatsError: the connection failed.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        try:
            reply = self.connection.request(f"{self.prefix}.{operation}", payload)
        except NoRespondersError:
            raise JetStreamError(
                f"JetStream does not answer on {self.prefix} at {self.connection.server}: it is not enabled there "
                "(nats-server -js), or 'domain' or 'apiPrefix' names another place"
            ) from None
        return parse_answer(reply.payload, operation)


def api_prefix(domain: str | None = None, prefix: str | None = None) -> str:
    """Return the API's subject prefix for a domain or an explicit prefix (with or without its last dot)."""
    if prefix:
        return prefix.rstrip(".")
    return f"$JS.{domain}.API" if domain else "$JS.API"


def parse_answer(payload: bytes, operation: str) -> dict[str, Any]:
    """Return an answer's JSON object.

    Raises:
        JetStreamError: it is an error object.
        ProtocolError: it is no JSON object, or its error is none of the API's.
    """
    with interpreting(operation):
        answer = parse_document(payload)
        if answer.get("error") is not None:
            raise api_error(answer["error"], operation)
        return answer


@contextlib.contextmanager
def interpreting(operation: str) -> Iterator[None]:
    """Take an answer apart; that it is not what the API's documentation says is a :class:`ProtocolError`."""
    try:
        yield
    except ValueError as error:
        raise ProtocolError(f"the server's answer to {operation} is wrong: {error}") from None


def api_error(error: Any, operation: str) -> JetStreamError:
    """Make an exception of an error object (``code``, and where it is known ``err_code`` and ``description``).

    Raises:
        ValueError: it is none.
    """
    code = number(error, "code")
    err_code = number(error, "err_code") if "err_code" in error else 0
    description = words(text(error, "description")) if "description" in error else ""
    if err_code == STREAM_NOT_FOUND:
        tokens = operation.split(".")
        stream = tokens[2] if tokens[0] == "CONSUMER" else tokens[-1]
        return StreamNotFoundError(
            f"the stream {stream!r} does not exist; create it, or set the option 'createStream'",
            code,
            err_code,
            description,
        )
    return JetStreamError(f"{operation} failed: {description} ({code}, {err_code})", code, err_code, description)
