"""A login that ends, as that of a user with a short lifetime, is no refusal: another one follows at once."""

from __future__ import annotations

import time
from itertools import chain, repeat

import pytest

from spark_nats.client.connection import connect
from spark_nats.client.pool import leased
from spark_nats.errors import AuthorizationError
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.kinds.core.receiver import Receiver
from spark_nats.options import connection_options
from tests.auth_callout import AuthCallout
from tests.connections import retries_for
from tests.integration.support import wait_for_subscriptions
from tests.nats_py import wait_until
from tests.servers import ServerFactory

NEVER_WAITS = retries_for(wait=3600.0)  # who waits before an attempt does not come back within any test


def test_a_core_query_listens_again_at_once_when_its_user_has_expired(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture
) -> None:
    callout = AuthCallout()
    server = server_factory(callout.config)
    lifetimes = chain([3.0], repeat(600.0))
    with callout.answering(server, lambda _: next(lifetimes)) as client:
        backlog = Backlog(1 << 20)
        login = connection_options(servers=server.url, user="ann", password="annsOwn")
        receiver = Receiver(login, NEVER_WAITS, ["a"], None, backlog)
        client.publish("a", b"before")
        wait_until(lambda: backlog.end == 1)
        wait_until(lambda: "NATS_GOES_ON" in caplog.text)
        wait_for_subscriptions(server, "a")
        client.publish("a", b"after")
        wait_until(lambda: backlog.end == 2)
        receiver.unsubscribe_drain_and_close()
        receiver.raise_if_ended()
    assert "has ended the login: User Authentication Expired" in caplog.text
    (missed,) = backlog.take_losses("a")
    assert missed.condition == "NATS_MESSAGES_MISSED"


def test_a_task_logs_in_again_at_once_when_its_user_has_expired(server_factory: ServerFactory) -> None:
    callout = AuthCallout()
    server = server_factory(callout.config)
    lifetimes = chain([2.0], repeat(600.0))
    login = connection_options(servers=server.url, user="ann", password="annsOwn")
    with callout.answering(server, lambda _: next(lifetimes)), leased(login, NEVER_WAITS, "asking") as lease:

        def asks_over_another_connection() -> bool:
            lease.ask_with_retries(lambda connection: connection.flush())
            return lease.reconnects == 1

        wait_until(asks_over_another_connection)
        lease.connection.close()


def test_a_task_logs_in_once_whoever_decides_about_logins_answers_again(
    server_factory: ServerFactory,
) -> None:
    callout = AuthCallout()
    server = server_factory(callout.config.replace("timeout: 20", "timeout: 1.5"))
    silences = chain([2.0, 0.0, 2.0, 2.0], repeat(0.0))

    def lets_in_late(_: object) -> float:
        time.sleep(next(silences))
        return 600.0

    login = connection_options(servers=server.url, user="ann", password="annsOwn")
    with callout.answering(server, lets_in_late):
        with pytest.raises(
            AuthorizationError, match=r"refused the credentials after \d+\.\d s: .*; whoever decides"
        ) as first:
            connect(login)
        assert not first.value.may_pass(established=False)
        with leased(login, retries_for(wait=0.02), "asking") as lease:
            lease.connection.close()
            lease.ask_with_retries(lambda connection: connection.flush())
            lease.connection.close()
    assert next(silences) == 0.0, "the two that were refused were asked about"


def test_a_user_that_expires_and_is_refused_then_ends_the_receiver(server_factory: ServerFactory) -> None:
    callout = AuthCallout()
    server = server_factory(callout.config)
    lifetimes = chain([2.0], repeat(None))
    login = connection_options(servers=server.url, user="ann", password="annsOwn")
    with callout.answering(server, lambda _: next(lifetimes)):
        receiver = Receiver(login, retries_for(wait=0.02), ["a"], None, Backlog(1 << 20))

        def refusal() -> str:
            try:
                receiver.raise_if_ended()
            except AuthorizationError as error:
                return str(error)
            return ""

        assert "refused the credentials: Authorization Violation" in wait_until(refusal)
        receiver.unsubscribe_drain_and_close()
    assert sum(1 for _ in range(3) if next(lifetimes) is None) == 3
