"""Decides what to do next about the messages in flight, as a pure function of what is known of them.

A stream that is given more than it can take refuses rows with *too many requests* (429). That is back-pressure and no
error: the sender sends refused rows again, later and slower. It does the same with rows for which nobody answered
(503), as during the election of a leader, unless the stream reports that it does not listen on their subjects. It never
sends rows while the fate of earlier, refused rows is unknown.

Rows that are not answered in time may be stored or not. They are sent again if all of them have message ids. But first
the sender asks the stream whether it listens on their subjects: if it does not, another responder does, which sends no
answer, or no acknowledgement.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple

from spark_nats.errors import NatsError, StreamNotFoundError
from spark_nats.jetstream.publishing.flight import FINAL, FlightState, RefusedMessage
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.api import API_PREFIX, is_of_own_account
from spark_nats.protocol.bytecolumns import booleans, texts
from spark_nats.protocol.publish_acks import Verdict
from spark_nats.protocol.subject_columns import SubjectMatcher

LOST_AFTER = 5.0
"""Seconds without any answer after which the missing answers count as lost, if rows can be sent again."""
LOST_OUT_OF_ORDER = 1.0  # the same after a refusal or an answer out of order: by then, earlier rows are decided or lost
UNANSWERED = "the stream does not listen on it, and whoever does has not answered"
"""The reason for a message on a subject of nobody, or of somebody whose answer has not come yet."""
MIN_PATIENCE = 0.1
"""Seconds that the answers to messages just sent may take, however long nothing was stored."""


class PublishState(NamedTuple):
    """What is known of the messages in flight."""

    state: FlightState  # of all the messages
    in_flight: int  # how many have no answer
    silent: float  # seconds since the last message was sent, or the last informative answer came
    waited: float  # seconds since a row was stored, or since rows wait to be stored
    ack_timeout: float  # seconds without a stored row after which the server is given up
    can_resend_unknown: bool  # whether all rows of unknown fate can be sent again
    refused: Sequence[RefusedMessage] = ()  # messages that were refused
    contested: bool = False  # whether a stream in another domain may have given a refusal, and the stream's may come
    strangers: bool = False  # whether another responder has answered, and the stream was not asked about that
    resolved: bool = False  # whether the conflicts among the refused ones were decided
    duplicate_window: float = 0.0  # seconds for which the stream remembers a message id
    stream: StreamInfo | NatsError | None = None  # its state, or the error instead; None before the request
    api_prefix: str = API_PREFIX  # of JetStream's API; it stands before subjects that a domain maps
    asked: bool = False  # whether the stream was asked if it listens on the subjects of unanswered messages
    set_aside: Collection[Verdict] = ()  # refusals of single rows that do not stop the others


class Wait(NamedTuple):
    """Wait for answers, for ``seconds`` at most."""

    seconds: float


class Ask(Enum):
    """Find out what the decision lacks."""

    STREAM = auto()  # the stream's state
    SUBJECTS = auto()  # whether the stream listens on the subjects of unanswered messages
    CONFLICTS = auto()  # the fate of the rows that conflict with their subject's last message


class SetAside(NamedTuple):
    """Set these messages aside: they will not be stored, and others may be."""

    refused: Sequence[RefusedMessage]


class ResendReason(Enum):
    """Why rows are sent again."""

    UNKNOWN = auto()  # it is unknown which of them are stored
    TOO_MANY = auto()
    UNAVAILABLE = auto()
    IN_PROCESS = auto()
    RESOLVED = auto()  # conflicts were decided


class Resend(NamedTuple):
    """Send again what is not known to be stored."""

    why: ResendReason


class Failure(Enum):
    """Why publishing cannot continue."""

    REFUSED = auto()  # rows will not be stored
    SILENT = auto()  # no answer comes
    UNAVAILABLE = auto()  # nobody answers for the stream
    EVERY_ROW_REFUSED = auto()  # the stream refuses every row


class Fail(NamedTuple):
    """Give up."""

    why: Failure  # the reason
    refused: Sequence[RefusedMessage] = ()  # the messages concerned
    seconds: float = 0.0  # for how long it was tried


Decision = Wait | Ask | SetAside | Resend | Fail


def decide_step(state: PublishState) -> Decision:
    """Decide what to do next."""
    if state.strangers:
        return Ask.SUBJECTS
    if state.in_flight and (decision := _decide_about_in_flight(state)) is not None:
        return decision
    if state.state is not FlightState.REFUSED:
        return Wait(0.0)
    if state.contested and state.silent < LOST_OUT_OF_ORDER:
        return Wait(LOST_OUT_OF_ORDER - state.silent)
    verdicts = {each.verdict for each in state.refused}
    if Verdict.UNAVAILABLE in verdicts and state.stream is None:
        return Ask.STREAM
    refused = _with_final_verdicts(state)
    verdicts = {each.verdict for each in refused}
    if Verdict.CONFLICT in verdicts and not state.resolved and not _is_any_fatal(state, refused):
        return Ask.CONFLICTS
    if final := [each for each in refused if each.verdict in FINAL]:
        can_go_on = all(each.verdict in state.set_aside for each in final)
        return SetAside(final) if can_go_on else Fail(Failure.REFUSED, final)
    in_process = Verdict.IN_PROCESS in verdicts
    if state.waited > state.ack_timeout:
        if Verdict.UNAVAILABLE in verdicts:
            absent = [each for each in refused if each.verdict is Verdict.UNAVAILABLE]
            return Fail(Failure.UNAVAILABLE, absent, state.ack_timeout)
        patience = state.ack_timeout + (state.duplicate_window if in_process else 0.0)
        if state.waited > patience:
            return Fail(Failure.EVERY_ROW_REFUSED, refused, patience)
    if in_process or Verdict.UNAVAILABLE in verdicts:
        return Resend(ResendReason.IN_PROCESS if in_process else ResendReason.UNAVAILABLE)
    return Resend(ResendReason.TOO_MANY if Verdict.TOO_MANY in verdicts else ResendReason.RESOLVED)


def _decide_about_in_flight(state: PublishState) -> Decision | None:
    """Decide about messages without an answer; None once a final refusal decides without their answers."""
    # The error has to name the first row that is refused for good, so answers to earlier rows are awaited.
    if _is_any_fatal(state, state.refused):
        return Wait(LOST_OUT_OF_ORDER - state.silent) if state.silent < LOST_OUT_OF_ORDER else None
    left = state.ack_timeout - state.waited
    if state.can_resend_unknown:
        patience = LOST_AFTER if state.state is FlightState.IN_ORDER else LOST_OUT_OF_ORDER
        left = min(left, patience - state.silent)
    if (left := max(left, MIN_PATIENCE - state.silent)) > 0:
        return Wait(left)
    if not state.asked:
        return Ask.SUBJECTS
    if elsewhere := [each for each in state.refused if each.verdict is Verdict.NO_SUCH_SUBJECT]:
        return SetAside(elsewhere)
    return Fail(Failure.SILENT) if state.waited >= state.ack_timeout else Resend(ResendReason.UNKNOWN)


def _is_any_fatal(state: PublishState, refused: Sequence[RefusedMessage]) -> bool:
    """Tell whether one of these refusals ends the task; a conflict does so only after the decision about it."""
    fatal = {*FINAL} - {Verdict.CONFLICT, *state.set_aside}
    return any(each.verdict in fatal for each in refused)


def _with_final_verdicts(state: PublishState) -> list[RefusedMessage]:
    """Return the refusals, with a final verdict where nobody answered and the stream is missing or does not listen."""
    stream, subjects, reason = state.stream, {each.subject for each in state.refused}, ""
    if isinstance(stream, StreamNotFoundError):
        verdict, absent, reason = Verdict.REJECTED, subjects, str(stream)
    elif isinstance(stream, StreamInfo):
        verdict, absent = Verdict.NO_SUCH_SUBJECT, set(subjects_not_heard(stream, list(subjects), state.api_prefix))
    else:
        return list(state.refused)
    return [
        each._replace(verdict=verdict, reason=reason or each.reason)
        if each.verdict is Verdict.UNAVAILABLE and each.subject in absent
        else each
        for each in state.refused
    ]


def subjects_not_heard(stream: StreamInfo, subjects: Sequence[str], api_prefix: str) -> list[str]:
    """Return the subjects on which a stream does not listen.

    It returns none where the stream belongs to another account, since nothing reports how its export maps subjects.
    """
    if not is_of_own_account(api_prefix):
        return []
    mapped = texts([subject.removeprefix(f"{api_prefix}.") for subject in subjects])  # as a domain maps keys
    absent: list[str] = texts(subjects).filter(booleans(~SubjectMatcher(stream.subjects).match(mapped))).to_pylist()
    return absent
