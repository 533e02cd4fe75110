"""What is tried again, in what rhythm, for how long, and what is said of it."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

from spark_nats.client import retrying as module
from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import MAX_WAIT, Retries, run_with_retries
from spark_nats.conditions import Topic, Transient
from spark_nats.errors import (
    AuthorizationError,
    JetStreamError,
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    ServerError,
    StreamNotFoundError,
)

ALWAYS, ONCE_ESTABLISHED = Transient.ALWAYS, Transient.ONCE_ESTABLISHED

LOST = NatsConnectionError("the connection broke", transient=ALWAYS)
UNREACHABLE = NatsConnectionError(
    "no NATS server could be reached", failures=[ConnectionRefusedError()], transient=ALWAYS
)
SILENT = NatsTimeoutError("no answer from nats://one:4222 in 5 s", transient=ALWAYS)
OVERLOADED = ServerError("maximum connections exceeded", "maximum connections exceeded", transient=ALWAYS)
LEADERLESS = JetStreamError("JetStream system temporarily unavailable", 503, 10008, transient=ALWAYS)
REFUSED = AuthorizationError("nats://one:4222 refused the credentials", transient=ONCE_ESTABLISHED)
REFUSED_ELSEWHERE = AuthorizationError("nats://two:4222 refused the credentials", transient=ONCE_ESTABLISHED)
ENDED = AuthorizationError("nats://one:4222 has ended the login: User Authentication Expired", transient=ALWAYS)
OFF = JetStreamUnavailableError("JetStream does not answer", transient=ONCE_ESTABLISHED)

PASSING = [LOST, ENDED, UNREACHABLE, SILENT, OVERLOADED, LEADERLESS]
LASTING = [NatsConnectionError("does not offer TLS"), StreamNotFoundError("no stream", 404, 10059)]
IF_KNOWN = [REFUSED, OFF]

QUICK = RetryOptions(timeout=60.0, wait=0.001, jitter=0.001, attempts=None)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEADERLESS_WAIT", 0.001)


class Action:
    """Fails with these errors, one after another, and then returns how often it was called."""

    def __init__(self, *errors: NatsError) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def tried(action: Action, options: RetryOptions = QUICK, *, established: bool = False) -> int:
    return run_with_retries(action, options, "reading S", established=established)


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_what_passes_by_itself_is_tried_again(error: NatsError, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert tried(Action(*[error] * 5)) == 6
    began, ended = caplog.messages
    assert began == f"[NATS_TRYING_AGAIN] reading S: {error}; trying again for up to 60 s"
    assert ended.startswith("[NATS_GOES_ON] reading S: resumed after ")


@pytest.mark.parametrize("error", LASTING, ids=str)
@pytest.mark.parametrize("established", [False, True], ids=["at first", "later"])
def test_what_a_user_has_to_repair_is_raised_at_once(
    error: NatsError, established: bool, caplog: pytest.LogCaptureFixture
) -> None:
    action = Action(error)
    with pytest.raises(type(error)) as raised:
        tried(action, established=established)
    assert raised.value is error
    assert action.calls == 1
    assert not caplog.messages


@pytest.mark.parametrize("error", IF_KNOWN, ids=str)
def test_what_may_be_a_mistake_at_first_may_pass_where_it_has_worked_before(error: NatsError) -> None:
    with pytest.raises(type(error)) as raised:
        tried(Action(error))
    assert raised.value is error
    assert tried(Action(error), established=True) == 2


def test_an_error_that_does_not_pass_in_time_is_the_last_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(module.clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.clock, "sleep", pass_by)
    first, last = (
        NatsTimeoutError("first", transient=ALWAYS),
        NatsConnectionError("last", failures=[OSError()], transient=ALWAYS).with_topics(Topic.SERVERS),
    )
    with pytest.raises(NatsConnectionError, match=r"^last; tried for 60 s$") as raised:
        tried(Action(first, *[last] * 1000))
    assert raised.value.topics == (Topic.SERVERS,)
    assert now[0] == pytest.approx(1060.0)


def test_after_so_many_attempts_to_connect_it_is_the_last_error_and_says_so() -> None:
    action = Action(*[LEADERLESS] * 3, LOST, *[UNREACHABLE] * 10)
    with pytest.raises(NatsConnectionError, match=r"^no NATS server could be reached; tried again 3 times$"):
        tried(action, replace(QUICK, attempts=3))
    assert action.calls == 3 + 1 + 3


def test_without_patience_there_is_one_attempt(caplog: pytest.LogCaptureFixture) -> None:
    action = Action(LOST)
    with pytest.raises(NatsConnectionError, match="^the connection broke$"):
        tried(action, replace(QUICK, timeout=0.0))
    assert action.calls == 1
    assert not caplog.messages


def test_what_works_is_said_nothing_of(caplog: pytest.LogCaptureFixture) -> None:
    assert tried(Action()) == 1
    assert not caplog.messages


# Refusals


def several(*refusals: AuthorizationError, away: bool = True) -> AuthorizationError:
    """What is raised when servers were asked one after the other, and some of them have refused."""
    failures = [*refusals, *[ConnectionRefusedError()] * away]
    return AuthorizationError(
        f"no NATS server lets us in ({len(failures)})", failures=failures, transient=ONCE_ESTABLISHED
    )


@pytest.mark.parametrize(
    "errors",
    [
        [REFUSED, REFUSED],
        [REFUSED, LOST, UNREACHABLE, REFUSED],
        [REFUSED, REFUSED_ELSEWHERE, REFUSED],
        [REFUSED, several(REFUSED, REFUSED_ELSEWHERE, away=False)],
        [several(REFUSED), several(REFUSED, away=False)],
    ],
)
def test_what_the_same_server_has_refused_twice_is_refused(errors: list[NatsError]) -> None:
    action = Action(*errors)
    with pytest.raises(AuthorizationError) as raised:
        tried(action, established=True)
    assert raised.value is errors[-1]
    assert action.calls == len(errors)


def test_what_each_server_refuses_once_may_pass() -> None:
    refused_too = AuthorizationError("three", transient=ONCE_ESTABLISHED)
    assert tried(Action(REFUSED, REFUSED_ELSEWHERE, several(refused_too)), established=True) == 4


def test_a_login_that_ends_is_no_refusal_however_often_it_does() -> None:
    assert tried(Action(ENDED, ENDED, ENDED, REFUSED, ENDED), established=True) == 6
    with pytest.raises(AuthorizationError, match="refused the credentials"):
        tried(Action(ENDED, REFUSED, ENDED, REFUSED), established=True)


def test_a_success_between_two_refusals_makes_the_second_one_the_first() -> None:
    retries, _ = waiting(established=True)
    for _ in range(3):
        retries.wait_or_raise(REFUSED)
        retries.note_success()


# The rhythm


def waiting(established: bool = False, **changes: float | None) -> tuple[Retries, list[float]]:
    """What counts failures, and the waits that it has asked for."""
    waits: list[float] = []
    options = replace(RetryOptions(timeout=300.0, wait=2.0, jitter=0.1, attempts=None), **changes)
    return Retries(options, "reading S", established=established, sleep=waits.append), waits


@pytest.mark.parametrize("lost", [LOST, ENDED], ids=str)
def test_a_lost_connection_is_made_again_at_once_and_then_after_waits_that_double(lost: NatsError) -> None:
    retries, waits = waiting()
    for error in [lost, *[UNREACHABLE] * 7]:
        retries.wait_or_raise(error)
    assert waits[0] == 0
    for wait, least, jitter in zip(
        waits[1:], [2, 4, 8, 10, 10, 10, 10], [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4], strict=True
    ):
        assert least <= wait <= least + jitter


def test_servers_that_are_back_and_do_not_answer_yet_are_not_given_the_long_waits_of_their_absence() -> None:
    retries, waits = waiting(jitter=0.0)
    for error in [*[UNREACHABLE] * 5, SILENT, SILENT, UNREACHABLE, SILENT]:
        retries.wait_or_raise(error)
    assert waits == [2, 4, 8, 10, 10, 2, 4, 10, 8]


@pytest.mark.parametrize("error", [UNREACHABLE, OVERLOADED, REFUSED], ids=str)
def test_a_server_that_is_away_or_has_enough_is_given_time_before_the_first_attempt(error: NatsError) -> None:
    retries, waits = waiting(established=True)
    retries.wait_or_raise(error)
    retries.wait_or_raise(LOST)
    assert 2 <= waits[0] <= 2.1
    assert 4 <= waits[1] <= 4.2


def test_jitter_is_no_longer_than_the_wait() -> None:
    retries, waits = waiting(wait=0.01, jitter=1.0)
    for _ in range(10):
        retries.wait_or_raise(UNREACHABLE)
    assert all(wait <= 2 * 0.01 * 2**number for number, wait in enumerate(waits))


def test_a_long_wait_is_not_cut_off() -> None:
    retries, waits = waiting(wait=2 * MAX_WAIT, jitter=0.0)
    retries.wait_or_raise(UNREACHABLE)
    retries.wait_or_raise(UNREACHABLE)
    assert waits == [2 * MAX_WAIT] * 2


def test_no_wait_goes_beyond_the_time_there_is() -> None:
    retries, waits = waiting(timeout=1.0)
    retries.wait_or_raise(UNREACHABLE)
    assert waits[0] <= 1.0


def test_a_success_begins_the_rhythm_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.clock, "monotonic", lambda: now[0])
    retries, waits = waiting()
    for _ in range(2):
        for error in [LOST, UNREACHABLE, UNREACHABLE]:
            retries.wait_or_raise(error)
        retries.note_success()
        now[0] += 10
    assert [round(wait) for wait in waits] == [0, 2, 4] * 2


def test_a_server_that_lets_us_in_and_drops_us_again_and_again_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.clock, "monotonic", lambda: 1000.0)
    retries, waits = waiting(jitter=0.0)
    for _ in range(5):
        retries.wait_or_raise(LOST)
        retries.note_success()
    assert waits == [0, 2, 2, 2, 2]


def test_a_stream_without_a_leader_is_asked_again_soon_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEADERLESS_WAIT", 0.25)
    retries, waits = waiting(attempts=1)
    for _ in range(8):
        retries.wait_or_raise(LEADERLESS)
    for number, wait in enumerate(waits):
        assert 0.75 * min(0.25 * 2**number, MAX_WAIT) <= wait <= min(0.25 * 2**number, MAX_WAIT)


def test_who_has_all_the_time_says_no_limit(caplog: pytest.LogCaptureFixture) -> None:
    retries, waits = waiting(timeout=math.inf)
    retries.wait_or_raise(LOST)
    retries.wait_or_raise(UNREACHABLE)
    retries.note_success()
    assert waits[0] == 0
    began, ended = caplog.messages
    assert began == "[NATS_TRYING_AGAIN] reading S: the connection broke; trying again"
    assert ended.startswith("[NATS_GOES_ON] reading S: resumed after")
