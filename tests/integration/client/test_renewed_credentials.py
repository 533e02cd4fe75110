"""A `.creds` file that is renewed on disk, and what a login may have besides an nkey."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from spark_nats.client import auth, connect
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.kinds.core.receiver import Receiver
from spark_nats.options import connection_options
from tests.auth_callout import AuthCallout
from tests.connections import retries_for
from tests.integration.support import read_partitions, sequences_of, stream_reader, wait_for_subscriptions
from tests.nats_py import NatsPy, wait_until
from tests.operator_mode import Key, OperatorMode
from tests.servers import ServerFactory


def test_a_renewed_file_is_read_at_the_next_login(
    server_factory: ServerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an agent renews it, some time before the user in it expires."""
    mode, path = OperatorMode(), tmp_path / "user.creds"
    server = server_factory(mode.config)
    mode.creds(path, Key(), exp=int(time.time()) + 3)
    login, backlog = connection_options(servers=server.url, credentialsFile=str(path)), Backlog(1 << 20)
    receiver = Receiver(login, retries_for(wait=3600.0), ["a"], None, backlog)
    mode.creds(path)
    with NatsPy(server.url, user_credentials=str(path)) as client:
        wait_until(lambda: "NATS_GOES_ON" in caplog.text)
        wait_for_subscriptions(server, "a")

        def is_heard() -> bool:
            receiver.raise_if_ended()
            client.publish("a", b"after")
            return backlog.end > 0

        wait_until(is_heard)
    receiver.unsubscribe_drain_and_close()


@pytest.mark.parametrize("content", [None, "-----BEGIN NATS USER JWT-----\neyJ0"], ids=["away", "half written"])
def test_a_file_that_cannot_be_used_for_a_moment_changes_nothing(
    server_factory: ServerFactory, tmp_path: Path, content: str | None
) -> None:
    mode, path = OperatorMode(), tmp_path / "user.creds"
    server = server_factory(mode.config)
    mode.creds(path)
    login = connection_options(servers=server.url, credentialsFile=str(path))
    path.unlink()
    if content:
        path.write_text(content)
    connect(login).close()


def test_tasks_log_in_as_the_driver_does_now_without_the_file(
    server_factory: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode, path, user = OperatorMode(), tmp_path / "user.creds", Key()
    server = server_factory(mode.config)
    mode.creds(path, user)
    with NatsPy(server.url, user_credentials=str(path)) as client:
        client.create_stream("S", ["s"])
        client.store("s", range(5))
    reader = stream_reader(server, stream="S", credentialsFile=str(path), startingOffsets="earliest", idleTimeout="1ms")
    pickled = pickle.dumps(reader)
    begin = reader.initialOffset()
    mode.creds(path)  # of another user
    with NatsPy(server.url, user_credentials=str(mode.system_creds(tmp_path / "system.creds"))) as system:
        system.publish(f"$SYS.ACCOUNT.{mode.account}.CLAIMS.UPDATE", mode.account_jwt(revoked=user).encode())
    wait_until(lambda: reader.latestOffset(begin, reader.getDefaultReadLimit()) != begin)
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    partitions = pickle.loads(pickle.dumps(reader.partitions(begin, end)))
    assert user.seed not in repr(partitions)
    path.unlink()  # a task runs in another process, on another machine
    monkeypatch.setattr(auth, "_renewed", {})
    assert sequences_of(read_partitions(pickled, partitions)) == [1, 2, 3, 4, 5]


def test_an_auth_callout_sees_the_token_and_the_nkey(server_factory: ServerFactory) -> None:
    callout, key, seen = AuthCallout(), Key(), list[dict[str, Any]]()
    # With an nkey among its users, a server sends something to sign.
    server = server_factory(callout.config.replace("users: [", f"users: [{{nkey: {key.public}}}, ", 1))

    def judge(asked: dict[str, Any]) -> float:
        seen.append(asked)
        return 600.0

    with callout.answering(server, judge):
        connect(connection_options(servers=server.url, token="t0ps3cret", nkeySeedSecret=key.seed)).close()
    (asked,) = seen
    assert (asked["auth_token"], asked["nkey"]) == ("t0ps3cret", key.public)
    assert asked["sig"]


def test_a_token_beside_an_nkey_logs_in_where_the_server_gives_nothing_to_sign(server_factory: ServerFactory) -> None:
    server = server_factory("authorization { token: t0ps3cret }")
    connect(connection_options(servers=server.url, token="t0ps3cret", nkeySeedSecret=Key().seed)).close()
