"""Requests to the JetStream API: JSON in, JSON or an error out (ADR-1)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVarTuple

from spark_nats import clock
from spark_nats.client.connection import Connection, Reply
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.pool import Lease
from spark_nats.client.retrying import Result, Retries
from spark_nats.conditions import ConditionText
from spark_nats.conditions import jetstream as conditions
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsError,
    NoRespondersError,
    ProtocolError,
    StreamNotFoundError,
    answer_or_raise,
)
from spark_nats.protocol.api import API_PREFIX, NOT_ENABLED, Api, ApiError, ErrCode, parse_api_answer, prefix_of_domain
from spark_nats.protocol.documents import quoted
from spark_nats.protocol.headers import REQUIRED_API_LEVEL, encode_block
from spark_nats.protocol.publish_acks import Said, classify_answer, stored_sequence_or_error

Given = TypeVarTuple("Given")

REFUSED_FOR = 600.0
"""Seconds for which a refused operation is not tried again where there is another way."""


class Request(NamedTuple):
    """A request to the API; see :meth:`JetStream.request`."""

    operation: Api
    names: tuple[str, ...]
    body: dict[str, Any] | None = None
    level: int | None = None  # the minimum API level of the server; None for any

    def encode_payload_and_headers(self) -> tuple[bytes, bytes | None]:
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

    @property
    def may_be_clustered(self) -> bool:
        """Whether a cluster may hold the streams: the connected server's, or one in another domain or account."""
        here = self.connection.info
        return bool(here.cluster) or self.prefix not in (API_PREFIX, prefix_of_domain(here.domain))

    def request(self, operation: Api, *names: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the answer's JSON object.

        Args:
            operation: the API operation.
            names: the names of the stream and the consumer concerned.
            body: the request, if it has one.

        Raises:
            StreamNotFoundError: the answer reports that the stream does not exist.
            JetStreamUnavailableError: JetStream does not answer at all, or reports that it is not enabled.
            JetStreamError: the answer is any other error object, or only another responder has answered.
            NatsError: the connection failed, no answer came in time, the user may not ask, or the answer is invalid.
        """
        return answer_or_raise(self.request_all([Request(operation, names, body)])[0])

    def request_all(
        self, requests: Sequence[Request], timeout: float | None = None
    ) -> list[dict[str, Any] | NatsError]:
        """Send requests in one round trip; return for each the answer's JSON object, or what :meth:`request` raises.

        The call waits ``timeout`` seconds for the answers; the connection's ``request_timeout`` when it is None.
        Another responder's answer counts, as an error, only if JetStream's has not arrived by then.

        Raises:
            NatsError: the connection failed, the user may not ask, or an answer is invalid.
        """
        subjects = [f"{self.prefix}.{each.operation.with_names(*each.names)}" for each in requests]
        sent = [(subject, *each.encode_payload_and_headers()) for subject, each in zip(subjects, requests, strict=True)]
        expected = [partial(_contains, each.operation.answer_type.encode()) for each in requests]
        replies = self.connection.request_all(sent, timeout, expected)
        return [self._parse_answer(request, reply) for request, reply in zip(requests, replies, strict=True)]

    def _parse_answer(self, request: Request, reply: Reply | NatsError) -> dict[str, Any] | NatsError:
        if isinstance(reply, NoRespondersError):
            said = conditions.JETSTREAM_UNAVAILABLE(prefix=self.prefix, server=self.connection.server)
            return JetStreamUnavailableError(said)
        if isinstance(reply, NatsError):
            return reply
        with bad_answer_is_protocol_error(request.operation, *request.names):
            answer = parse_api_answer(reply.payload, request.operation)
        if answer is None:
            subject = f"{self.prefix}.{request.operation.with_names(*request.names)}"
            return answered_by_another_error(subject, reply.payload)
        return _error_of(answer, request.operation, request.names) if isinstance(answer, ApiError) else answer


@dataclass(frozen=True, slots=True)
class JetStreamLease:
    """The JetStream API over a leased connection, which is replaced when it is lost.

    Attributes:
        lease: holds the connection, and counts the retries.
        prefix: that of :class:`JetStream`.
    """

    lease: Lease
    prefix: str = API_PREFIX

    @property
    def retries(self) -> Retries:
        """The retries of lost connections."""
        return self.lease.retries

    @property
    def js(self) -> JetStream:
        """JetStream over the present connection."""
        return JetStream(self.lease.connection, self.prefix)

    def ask_with_retries(self, question: Callable[[JetStream, *Given], Result], *given: *Given) -> Result:
        """Return the answer to a question about what is given, asked again as :meth:`.Lease.ask_with_retries` does."""
        return self.lease.ask_with_retries(lambda connection: question(JetStream(connection, self.prefix), *given))

    def read_with_retries(self, reading: Callable[[JetStream], Iterator[Result]]) -> Iterator[Result]:
        """Yield the results of a read that continues over other connections: :meth:`.Lease.read_with_retries`."""
        return self.lease.read_with_retries(lambda connection: reading(JetStream(connection, self.prefix)))


def answered_by_another_error(subject: str, payload: bytes) -> JetStreamError:
    """Return the error for a request that was answered by another responder only, not by JetStream."""
    return JetStreamError(conditions.ANSWERED_BY_ANOTHER(subject=subject, answer=quoted(payload)))


def _contains(part: bytes, payload: bytes) -> bool:
    return part in payload


def store_messages(
    js: JetStream,
    stream: str,
    messages: Sequence[tuple[str, bytes, bytes | None]],
    nobody: Callable[..., ConditionText],
    domain: str | None = None,
) -> int | ApiError:
    """Publish messages in one round trip, and check that a stream has stored them.

    Args:
        js: the JetStream API over the connection to use.
        stream: the stream that has to answer.
        messages: subject, payload and header block, if any, of each.
        nobody: returns the text of the error for a ``subject`` on which nobody answers.
        domain: the stream's domain, as its state names it. None for the stream of a bucket: no server hands its
            subjects on to another domain.

    Returns:
        The sequence of the last one when all are stored, else why one is not.

    Raises:
        JetStreamUnavailableError: nobody answers.
        JetStreamError: only another responder has answered, or a stream in another domain.
        NatsError: the connection failed, no answer came in time, or an answer is invalid.
    """
    across = domain is not None and domain != js.connection.info.domain
    counts = {Said.STORED: True, Said.NOTHING: False, Said.REFUSED: None if across else True}
    expected = [lambda payload: counts[classify_answer(stream, domain, payload)]] * len(messages)
    replies = js.connection.request_all(messages, expected=expected)
    sequence = 0
    for (subject, *_), reply in zip(messages, replies, strict=True):
        if isinstance(reply, NoRespondersError):
            raise JetStreamUnavailableError(nobody(subject=subject)) from None
        reply = answer_or_raise(reply)
        with bad_answer_is_protocol_error(f"a message on {subject}"):
            answer = stored_sequence_or_error(reply.payload, stream, domain)
            elsewhere = not answer and stored_sequence_or_error(reply.payload, stream, None)
        if isinstance(answer, ApiError):
            return answer
        if elsewhere:
            said = conditions.ANSWERED_ELSEWHERE(subject=subject, stream=stream, answer=quoted(reply.payload))
            raise JetStreamError(said)
        if not answer:
            raise answered_by_another_error(subject, reply.payload)
        sequence = answer
    return sequence


class RefusalMemory:
    """Remembers, in this process, which streams have refused an operation that has an alternative."""

    def __init__(self) -> None:
        self._until: dict[tuple[ConnectionOptions, str, str], float] = {}

    def note(self, js: JetStream, stream: str) -> None:
        """Avoid the operation for :data:`REFUSED_FOR` seconds."""
        self._until[js.connection.options, js.prefix, stream] = clock.monotonic() + REFUSED_FOR

    def has(self, js: JetStream, stream: str) -> bool:
        """Tell whether to avoid the operation now."""
        return clock.monotonic() < self._until.get((js.connection.options, js.prefix, stream), 0.0)


@contextlib.contextmanager
def bad_answer_is_protocol_error(operation: Api | str, *names: str) -> Iterator[None]:
    """Turn a :class:`ValueError` from parsing an answer into a :class:`ProtocolError`.

    ``operation`` is the API operation that was answered, or a description of another request.
    """
    try:
        yield
    except ValueError as error:
        request = operation.with_names(*names) if isinstance(operation, Api) else operation
        raise ProtocolError(conditions.ANSWER_INVALID(request=request, reason=error)) from None


def _error_of(error: ApiError, operation: Api, names: tuple[str, ...]) -> JetStreamError:
    if error.err_code == ErrCode.STREAM_NOT_FOUND and names:
        return StreamNotFoundError(conditions.STREAM_NOT_FOUND(stream=names[0]), *error)
    kind = JetStreamUnavailableError if error.err_code in NOT_ENABLED else JetStreamError
    said = conditions.API_ERROR(
        request=operation.with_names(*names), reason=error.description, code=error.code, err_code=error.err_code
    )
    if error.err_code == ErrCode.REPLICAS_NEED_CLUSTER:
        said = said.with_text(f"{said}; set the number of replicas to 1, or use a cluster")
    return kind(said, *error, transient=error.transient)
