"""What is tried again, for how long, and what is said of it."""

from __future__ import annotations

import logging

import pytest

from spark_nats.client import retrying as module
from spark_nats.client.retrying import may_pass, retrying
from spark_nats.errors import (
    AuthorizationError,
    DataLossError,
    InvalidCredentialsError,
    JetStreamError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    ProtocolError,
    Remedy,
    ServerError,
    StreamNotFoundError,
)

PASSING = [
    NatsConnectionError(
        "no NATS server could be reached", remedies=[Remedy.SERVERS], failures=[ConnectionRefusedError()]
    ),
    NatsConnectionError(
        "one of them does not answer",
        remedies=[Remedy.TRUST, Remedy.TLS_FIRST],
        failures=[NatsConnectionError("wrong", remedies=[Remedy.TRUST]), NatsTimeoutError("no INFO")],
    ),
    NatsConnectionError("the connection broke"),
    NatsTimeoutError("no answer"),
    ServerError("Stale Connection"),
    JetStreamError("JetStream system temporarily unavailable", 503, 10008),
]
LASTING = [
    AuthorizationError("refused"),
    InvalidCredentialsError("no key"),
    PermissionsError("Permissions Violation"),
    NatsConnectionError("the certificate cannot be verified", remedies=[Remedy.TRUST]),
    NatsConnectionError(
        "none will do",
        remedies=[Remedy.TLS],
        failures=[NatsConnectionError("does not offer TLS", remedies=[Remedy.TLS]), ProtocolError("HTTP")],
    ),
    StreamNotFoundError("no stream", 404, 10059),
    JetStreamError("JetStream does not answer", remedies=[Remedy.API_PREFIX]),
    DataLossError("gone"),
    ProtocolError("nonsense"),
]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(module, "_LONGEST_WAIT", 0.01)


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


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_what_passes_by_itself_is_tried_again(error: NatsError, caplog: pytest.LogCaptureFixture) -> None:
    assert may_pass(error)
    with caplog.at_level(logging.WARNING):
        assert retrying(Action(*[error] * 5), 60.0, "reading S") == 6
    began, ended = caplog.messages
    assert began == f"reading S: {error}; trying again for up to 60 s"
    assert ended.startswith("reading S: goes on after ")


@pytest.mark.parametrize("error", LASTING, ids=str)
def test_what_a_user_has_to_repair_is_raised_at_once(error: NatsError, caplog: pytest.LogCaptureFixture) -> None:
    assert not may_pass(error)
    action = Action(error)
    with pytest.raises(type(error)) as raised:
        retrying(action, 60.0, "reading S")
    assert raised.value is error
    assert action.calls == 1
    assert not caplog.messages


def test_an_error_that_does_not_pass_in_time_is_the_last_one_and_says_so() -> None:
    first, last = (
        NatsTimeoutError("first"),
        NatsConnectionError("last", remedies=[Remedy.SERVERS], failures=[OSError()]),
    )
    with pytest.raises(NatsConnectionError, match=r"^last; tried for 0\.05 s$") as raised:
        retrying(Action(first, *[last] * 10_000), 0.05, "reading S")
    assert raised.value.remedies == (Remedy.SERVERS,)


def test_without_patience_there_is_one_attempt(caplog: pytest.LogCaptureFixture) -> None:
    action = Action(NatsConnectionError("broken"))
    with pytest.raises(NatsConnectionError, match="^broken$"):
        retrying(action, 0.0, "reading S")
    assert action.calls == 1
    assert not caplog.messages


def test_what_works_is_said_nothing_of(caplog: pytest.LogCaptureFixture) -> None:
    assert retrying(Action(), 60.0, "reading S") == 1
    assert not caplog.messages
