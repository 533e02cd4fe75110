"""Finds single messages of streams, and the sequences where a range begins or ends, by asking the streams' leaders.

What can be asked is a :class:`Question`, such as :class:`MessageAt`. :func:`ask` sends many requests at once. A
:data:`Decision` requests nothing itself: it yields the questions whose answers it lacks, and returns its result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from spark_nats.conditions.jetstream import ANSWER_FROM_BEFORE
from spark_nats.errors import JetStreamError, NatsError, ProtocolError, answer_or_raise
from spark_nats.jetstream.api import JetStream, Request, bad_answer_is_protocol_error
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.api import Api, ErrCode, message_get_body
from spark_nats.protocol.documents import base64_at, integer_at, string_at, time_at
from spark_nats.protocol.subjects import overlap

MOMENT = 0.25
"""Seconds in which a leader that was paused hears that there is another one."""


def may_be_former_leader(js: JetStream, info: StreamInfo | None = None) -> bool:
    """Tell whether what a stream's leader lacks counts only once it has said so again, a :data:`MOMENT` later.

    A leader that was paused does not know what another one has stored since. Its own state, as it was just before,
    tells whether it has heard from all others; without one, any leader in a cluster may have been paused.
    """
    return js.may_be_clustered if info is None else not info.undisputed


class StoredMessage(NamedTuple):
    """A message as the stream's leader returns it."""

    sequence: int
    time: int  # when it was stored, in nanoseconds since 1970
    header: bytes = b""  # its header block; empty where it has none, or none was requested
    payload: bytes = b""  # its payload, empty where none was requested


Answer = TypeVar("Answer", covariant=True)


class Question(Generic[Answer]):
    """What a stream's leader can be asked, typed by the answer."""

    __slots__ = ()


Result = TypeVar("Result")
Name = TypeVar("Name")
Questions = Sequence[Question[Any]]
"""What a decision lacks; it is asked together."""
Answers = Mapping[Question[Any], Any]
"""The answers to everything that a decision has asked so far."""
Decision = Generator[Questions, Answers, Result]
"""A decision, or a part of one: it yields questions, and returns its result. No question is asked twice."""


def run_decision(
    decision: Decision[Result], ask: Callable[[Questions], Answers], known: Mapping[Question[Any], Any] = {}
) -> Result:
    """Return the result of a decision; ``ask`` returns the answers to what it lacks beyond the ``known`` ones."""
    answers: Any = None
    found = dict(known)
    while True:
        try:
            questions = decision.send(answers)
        except StopIteration as end:
            return cast(Result, end.value)
        if lacking := [each for each in questions if each not in found]:
            found |= ask(lacking)
        answers = found


def decide_together(parts: Mapping[Name, Decision[Result]]) -> Decision[dict[Name, Result]]:
    """Make decisions side by side, and ask their open questions together."""
    results, answers = dict[Name, Result](), cast(Answers, None)
    while len(results) < len(parts):
        questions = list[Question[Any]]()
        for name in [each for each in parts if each not in results]:
            try:
                questions += parts[name].send(answers)
            except StopIteration as end:
                results[name] = end.value
        answers = yield questions
    return results


def ask_in_decision(question: Question[Answer]) -> Decision[Answer]:
    """Return the answer to one question, a part of a decision."""
    return (yield [question])[question]  # type: ignore[no-any-return]


class Asked(Question[Answer]):
    """A question that is one request to the stream's leader."""

    __slots__ = ()

    @property
    @abstractmethod
    def request(self) -> Request:
        """The request to send."""

    @abstractmethod
    def parse_result(self, answer: dict[str, Any]) -> Answer:
        """Return the result in the answer, or raise that the answer cannot be believed."""


@dataclass(frozen=True, slots=True)
class MessageAt(Asked[StoredMessage | None]):
    """Asks for a message of a stream."""

    stream: str
    sequence: int | None  # the first message from this sequence on is wanted; None for the last one
    subject: str = ">"  # filter that the message must match
    with_headers: bool = False  # whether its headers are wanted

    @property
    def request(self) -> Request:
        """The request to send."""
        body = message_get_body(self.sequence, self.subject, self.with_headers)
        return Request(Api.MESSAGE_GET, (self.stream,), body)

    def parse_result(self, answer: dict[str, Any]) -> StoredMessage:
        """Return the message in an answer."""
        with bad_answer_is_protocol_error(Api.MESSAGE_GET, self.stream):
            if not overlap(self.subject, string_at(answer, "message", "subject")):
                raise ValueError(f"it is a message of another subject than {self.subject}")
            found = StoredMessage(
                sequence=integer_at(answer, "message", "seq"),
                time=time_at(answer, "message", "time"),
                header=base64_at(answer, "message", "hdrs"),
                payload=base64_at(answer, "message", "data"),
            )
        if found.sequence < (self.sequence or 0):
            raise ProtocolError(ANSWER_FROM_BEFORE(start=self.sequence, stream=self.stream, sequence=found.sequence))
        return found


@dataclass(frozen=True, slots=True)
class FirstSince(Question[int]):
    """Asks what :func:`ask_first_since` returns for the arguments of the same names."""

    stream: str
    time: int
    start: int
    end: int


def ask_all(js: JetStream, questions: Questions, infos: Mapping[str, StreamInfo] = {}) -> dict[Question[Any], Any]:
    """Return the answers to questions; those that are one request each share a round trip.

    Of the streams in ``infos`` whose leader :func:`may_be_former_leader`, a message is believed to be missing, or to be
    the last one, only when that is said again a moment later.

    Raises:
        NatsError: a request failed.
    """
    asked = [each for each in questions if isinstance(each, Asked)]
    found: dict[Question[Any], Any] = dict(zip(asked, ask(js, asked), strict=True))
    disputed = {name for name, info in infos.items() if may_be_former_leader(js, info)}
    places = [each for each in asked if isinstance(each, MessageAt) and each.stream in disputed]
    doubted = [each for each in places if each.sequence is None or found[each] is None]
    for place, again in zip(doubted, ask(js, doubted, wait_first=MOMENT), strict=True):
        found[place] = max(filter(None, (found[place], again)), default=None)
    for each in questions:
        if isinstance(each, FirstSince):
            found[each] = ask_first_since(js, each.stream, each.time, each.start, each.end)
    return found


def try_asking(js: JetStream, questions: Sequence[Asked[Any]], wait_first: float = 0.0) -> list[Any]:
    """Ask questions in one round trip, after waiting for ``wait_first`` seconds.

    Returns:
        For each what its ``parse_result`` returns, None for a message that does not exist; or its error, also if
        none answers.

    Raises:
        NatsError: the connection failed, or an answer is invalid.
    """
    if wait_first and questions:
        js.connection.wait_while_receiving(wait_first)
    answers = js.request_all([each.request for each in questions]) if questions else []
    return [_parse_result_or_error(question, answer) for question, answer in zip(questions, answers, strict=True)]


def ask(js: JetStream, questions: Sequence[Asked[Answer]], wait_first: float = 0.0) -> list[Answer]:
    """Ask questions as :func:`try_asking` does, and raise the first error among the answers."""
    return [answer_or_raise(each) for each in try_asking(js, questions, wait_first)]


def _parse_result_or_error(question: Asked[Any], answer: dict[str, Any] | NatsError) -> Any:
    if isinstance(answer, JetStreamError) and answer.err_code == ErrCode.NO_MESSAGE_FOUND:
        return None
    try:
        return answer if isinstance(answer, NatsError) else question.parse_result(answer)
    except JetStreamError as error:
        return error


def ask_last_message(js: JetStream, stream: str, subject: str) -> StoredMessage | None:
    """Return the last message that matches a filter; None when there is none."""
    return ask(js, [MessageAt(stream, None, subject, with_headers=True)])[0]


def ask_last_sequence(js: JetStream, stream: str, filters: Sequence[str]) -> int:
    """Return the sequence of the last message that matches one of ``filters``, 0 when there is none."""
    found = ask(js, [MessageAt(stream, None, subject) for subject in filters])
    return max((message.sequence for message in found if message), default=0)


def ask_first_sequence_from(
    js: JetStream, stream: str, start: int, filters: Sequence[str], is_doubtful: bool = False
) -> int | None:
    """Return the sequence of what :func:`ask_first_message_from` returns."""
    message = ask_first_message_from(js, stream, start, filters, with_headers=False, ask_twice=is_doubtful)
    return message.sequence if message else None


def ask_first_message_from(
    js: JetStream, stream: str, start: int, filters: Sequence[str], with_headers: bool = True, ask_twice: bool = False
) -> StoredMessage | None:
    """Return the first message from ``start`` on that matches one of ``filters``, None when there is none.

    Its headers are left out unless it is wanted ``with_headers``. With ``ask_twice``, for a leader that may have been
    paused, it has to say again a moment later that there is none.
    """
    questions = [MessageAt(stream, start, each, with_headers) for each in filters]
    found = min(filter(None, ask(js, questions)), default=None)
    if found is None and ask_twice:
        found = min(filter(None, ask(js, questions, wait_first=MOMENT)), default=None)
    return found


def ask_first_since(js: JetStream, stream: str, time: int, start: int, end: int) -> int:
    """Return the first sequence with ``start <= sequence < end`` stored at or after a time, in nanoseconds since 1970.

    A binary search asks the stream's leader for one message at a time. Where times fall, it finds one of the places
    where the time is reached; :mod:`.times` finds the first and the last of them. The leader knows all messages, while
    a consumer that begins at a time may be on a server that lags. The comparison also works outside the years 1677 to
    2262, to which a server's times are limited. A leader that was paused may not know the latest messages: in a
    cluster, it has to say again a moment later that there is none.

    Returns:
        The sequence of a message, or ``end`` when the range has none that was stored then. Neither ``start`` nor
        any other sequence has to exist.
    """
    found = ask_first_by_bisection(
        js, stream, start, end, lambda message: message.time >= time, may_be_former_leader(js)
    )
    return end if found is None else found.sequence


def ask_first_by_bisection(
    js: JetStream, stream: str, start: int, end: int, such: Callable[[StoredMessage], bool], is_doubtful: bool = False
) -> StoredMessage | None:
    """Return the first message with ``start <= sequence < end`` that is ``such``, as all after it are.

    It is a binary search. Where the leader ``is_doubtful``, the first word that there is no message has to be said
    again a moment later.
    """
    found, high = None, end
    while start < high:  # messages before ``start`` are not such; from ``high`` on, ``found`` is the first
        middle = (start + high) // 2
        message = ask_first_message_from(js, stream, middle, (">",), False, is_doubtful)
        is_doubtful = is_doubtful and message is not None
        if message is None or message.sequence >= high:
            high = middle
        elif such(message):
            found, high = message, middle
        else:
            start = message.sequence + 1
    return found
