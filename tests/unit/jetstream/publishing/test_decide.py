"""What is done next about messages under way: a table of cases."""

from __future__ import annotations

from typing import Any

import pytest

from spark_nats.conditions import Transient
from spark_nats.errors import JetStreamError, StreamNotFoundError
from spark_nats.jetstream.publishing.decide import (
    LOST_AFTER,
    LOST_OUT_OF_ORDER,
    MIN_PATIENCE,
    Ask,
    Decision,
    Fail,
    Failure,
    PublishState,
    Resend,
    ResendReason,
    SetAside,
    Wait,
    decide_step,
)
from spark_nats.jetstream.publishing.flight import FlightState, RefusedMessage
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.publish_acks import Verdict

LISTENS = StreamInfo("S", "then", 1, 0, 0, 0, 0, "limits", ("S.>",), {})
ELSEWHERE = StreamInfo("S", "then", 1, 0, 0, 0, 0, "limits", ("T.>",), {})
GONE = StreamNotFoundError("the stream 'S' does not exist")
LEADERLESS = JetStreamError("no leader", 503, transient=Transient.ALWAYS)


def refused(*verdicts: Verdict) -> tuple[RefusedMessage, ...]:
    return tuple(RefusedMessage(i, i, "S.a", "why", verdict, False) for i, verdict in enumerate(verdicts))


def outcome(state: FlightState = FlightState.IN_ORDER, **changes: Any) -> PublishState:
    return PublishState(
        state,
        **{"in_flight": 0, "silent": 0.0, "waited": 0.0, "ack_timeout": 30.0, "can_resend_unknown": True} | changes,
    )


def after(*verdicts: Verdict, **changes: Any) -> PublishState:
    return outcome(FlightState.REFUSED, refused=refused(*verdicts), **changes)


NO, MANY, AWAY = Verdict.REJECTED, Verdict.TOO_MANY, Verdict.UNAVAILABLE
ROW, PLACE = Verdict.BAD_ROW, Verdict.NO_SUCH_SUBJECT
IN_PROCESS, CONFLICT, RESOLVED = Verdict.IN_PROCESS, Verdict.CONFLICT, Verdict.RESOLVED

CASES: dict[str, tuple[PublishState, Decision]] = {
    # A stream in another domain may have refused.
    "another domain's refusal": (after(NO, contested=True), Wait(LOST_OUT_OF_ORDER)),
    "another domain's refusal for now": (after(MANY, contested=True, silent=0.25), Wait(LOST_OUT_OF_ORDER - 0.25)),
    "no second answer comes": (
        after(NO, contested=True, silent=LOST_OUT_OF_ORDER),
        Fail(Failure.REFUSED, refused(NO)),
    ),
    # Answers are missing.
    "nothing is open": (outcome(), Wait(0.0)),
    "answers are due": (outcome(in_flight=5), Wait(LOST_AFTER)),
    "answers are due for a while": (outcome(in_flight=5, silent=2.0), Wait(LOST_AFTER - 2.0)),
    "answers are late": (outcome(in_flight=5, silent=LOST_AFTER), Ask.SUBJECTS),
    "answers are late from a stream that listens": (
        outcome(in_flight=5, silent=LOST_AFTER, asked=True),
        Resend(ResendReason.UNKNOWN),
    ),
    "a gap is younger": (outcome(FlightState.OUT_OF_ORDER, in_flight=5), Wait(LOST_OUT_OF_ORDER)),
    "a gap stays": (
        outcome(FlightState.OUT_OF_ORDER, in_flight=5, silent=LOST_OUT_OF_ORDER, asked=True),
        Resend(ResendReason.UNKNOWN),
    ),
    "rows without ids are waited for": (
        outcome(in_flight=5, silent=20.0, waited=20.0, can_resend_unknown=False),
        Wait(10.0),
    ),
    "rows without ids get no answer": (
        outcome(in_flight=5, silent=30.0, waited=30.0, can_resend_unknown=False),
        Ask.SUBJECTS,
    ),
    "rows without ids get no answer from a stream that listens": (
        outcome(in_flight=5, silent=30.0, waited=30.0, can_resend_unknown=False, asked=True),
        Fail(Failure.SILENT),
    ),
    "rows with ids get none either": (outcome(in_flight=5, silent=6.0, waited=30.0, asked=True), Fail(Failure.SILENT)),
    "what was just sent may be answered": (outcome(in_flight=5, waited=99.0), Wait(MIN_PATIENCE)),
    # Rows were refused.
    "others have no answer yet": (after(MANY, in_flight=3), Wait(LOST_OUT_OF_ORDER)),
    "others get none": (after(MANY, in_flight=3, silent=1.0, asked=True), Resend(ResendReason.UNKNOWN)),
    "too many": (after(MANY, MANY), Resend(ResendReason.TOO_MANY)),
    "too many for long": (after(MANY, waited=31.0), Fail(Failure.EVERY_ROW_REFUSED, refused(MANY), 30.0)),
    "for good": (after(MANY, NO), Fail(Failure.REFUSED, refused(MANY, NO)[1:])),
    "for good, and others are open": (after(NO, in_flight=3, waited=99.0), Wait(LOST_OUT_OF_ORDER)),
    "for good, and others get no answer": (
        after(NO, in_flight=3, silent=1.0, can_resend_unknown=False),
        Fail(Failure.REFUSED, refused(NO)),
    ),
    "somebody else answers": (after(MANY, in_flight=3, strangers=True), Ask.SUBJECTS),
    "somebody else listens on a subject": (
        after(PLACE, in_flight=3, silent=1.0, asked=True),
        Fail(Failure.REFUSED, refused(PLACE)),
    ),
    "somebody else listens on a subject that is bad": (
        after(PLACE, in_flight=3, silent=1.0, asked=True, set_aside={PLACE}),
        SetAside(refused(PLACE)),
    ),
    "nobody answers": (after(AWAY, MANY), Ask.STREAM),
    "nobody answers, and the stream listens": (after(AWAY, stream=LISTENS), Resend(ResendReason.UNAVAILABLE)),
    "nobody answers, and a domain maps it": (
        after(AWAY, stream=ELSEWHERE, api_prefix="$JS.hub.API")._replace(
            refused=(RefusedMessage(0, 0, "$JS.hub.API.T.a", "why", AWAY, False),)
        ),
        Resend(ResendReason.UNAVAILABLE),
    ),
    "nobody answers, and another account may map it": (
        after(AWAY, stream=ELSEWHERE, api_prefix="JS.owner.API"),
        Resend(ResendReason.UNAVAILABLE),
    ),
    "nobody answers for long, and another account may map it": (
        after(AWAY, stream=ELSEWHERE, api_prefix="JS.owner.API", waited=31.0),
        Fail(Failure.UNAVAILABLE, refused(AWAY), 30.0),
    ),
    "nobody answers, and it has no leader": (after(AWAY, stream=LEADERLESS), Resend(ResendReason.UNAVAILABLE)),
    "nobody answers, and it does not listen": (after(AWAY, stream=ELSEWHERE), Fail(Failure.REFUSED, refused(PLACE))),
    "nobody answers, and there is none": (
        after(AWAY, stream=GONE),
        Fail(Failure.REFUSED, (refused(NO)[0]._replace(reason=str(GONE)),)),
    ),
    "nobody answers for long": (
        after(AWAY, stream=LEADERLESS, waited=31.0),
        Fail(Failure.UNAVAILABLE, refused(AWAY), 30.0),
    ),
    "an id is in process": (after(IN_PROCESS, MANY), Resend(ResendReason.IN_PROCESS)),
    "an id is in process for long": (
        after(IN_PROCESS, waited=100.0, duplicate_window=120.0),
        Resend(ResendReason.IN_PROCESS),
    ),
    "an id stays in process": (
        after(IN_PROCESS, waited=151.0, duplicate_window=120.0),
        Fail(Failure.EVERY_ROW_REFUSED, refused(IN_PROCESS), 150.0),
    ),
    "a row conflicts": (after(CONFLICT, MANY), Ask.CONFLICTS),
    "a row conflicts, and another is refused": (
        after(CONFLICT, NO),
        Fail(Failure.REFUSED, refused(CONFLICT, NO)),
    ),
    # Rows were refused that are taken away.
    "a row is bad": (after(ROW), Fail(Failure.REFUSED, refused(ROW))),
    "a bad row is taken away": (after(ROW, MANY, set_aside={ROW}), SetAside(refused(ROW))),
    "a bad row is taken away with others": (
        after(ROW, PLACE, set_aside={ROW, PLACE}),
        SetAside(refused(ROW, PLACE)),
    ),
    "a bad row, and others are open": (after(ROW, in_flight=3, set_aside={ROW}), Wait(LOST_OUT_OF_ORDER)),
    "a bad row, and others get no answer": (
        after(ROW, in_flight=3, silent=1.0, asked=True, set_aside={ROW}),
        Resend(ResendReason.UNKNOWN),
    ),
    "a bad row, and another is refused for good": (
        after(ROW, NO, set_aside={ROW}),
        Fail(Failure.REFUSED, refused(ROW, NO)),
    ),
    "a place that is not taken away": (after(PLACE, set_aside={ROW}), Fail(Failure.REFUSED, refused(PLACE))),
    "nobody listens, and it is taken away": (
        after(AWAY, stream=ELSEWHERE, set_aside={ROW, PLACE}),
        SetAside(refused(PLACE)),
    ),
    "there is no stream, and rows are taken away": (
        after(AWAY, stream=GONE, set_aside={ROW, PLACE}),
        Fail(Failure.REFUSED, (refused(NO)[0]._replace(reason=str(GONE)),)),
    ),
    "a bad row, and one conflicts": (after(ROW, CONFLICT, set_aside={ROW, CONFLICT}), Ask.CONFLICTS),
    "a conflict stays, and is taken away": (
        after(CONFLICT, resolved=True, set_aside={ROW, CONFLICT}),
        SetAside(refused(CONFLICT)),
    ),
    "a row still conflicts": (after(CONFLICT, resolved=True), Fail(Failure.REFUSED, refused(CONFLICT))),
    "all is decided": (after(RESOLVED, resolved=True), Resend(ResendReason.RESOLVED)),
    "some is decided, and some has to wait": (after(RESOLVED, MANY, resolved=True), Resend(ResendReason.TOO_MANY)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_done_next(case: str) -> None:
    known, expected = CASES[case]
    found = decide_step(known)
    if isinstance(found, Fail | SetAside):
        found = found._replace(refused=tuple(found.refused))
    assert found == expected


def test_a_wait_ends() -> None:
    """Whatever is known, it is decided otherwise once nothing has come for long enough."""
    for state in FlightState:
        for can_resend_unknown in (True, False):
            late = outcome(state, in_flight=1, silent=99.0, waited=99.0, can_resend_unknown=can_resend_unknown)
            assert not isinstance(decide_step(late), Wait)
