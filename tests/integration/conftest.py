"""Fixtures that tests in several files here ask for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from spark_nats import clock
from spark_nats.client import Connection, connect
from spark_nats.conditions import Once
from spark_nats.jetstream import JetStream, creating
from spark_nats.jetstream.api import RefusalMemory
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.publishing import decide
from spark_nats.jetstream.reading import direct
from spark_nats.kinds.streams.write import replay
from tests.connections import options_for
from tests.servers import Server


@pytest.fixture(autouse=True)
def nothing_is_remembered_of_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a process that has done nothing: what one remembers has the server's address, and ports come again."""
    monkeypatch.setattr(replay, "_noted", {})
    monkeypatch.setattr(creating, "_said", Once())
    monkeypatch.setattr(direct, "_refused", RefusalMemory())
    monkeypatch.setattr(consumers, "_refused", RefusalMemory())


@pytest.fixture
def connection(nats_server: Server) -> Iterator[Connection]:
    """A connection to the shared server."""
    with connect(options_for(nats_server.url)) as connection:
        yield connection


@pytest.fixture
def js(connection: Connection) -> JetStream:
    """JetStream of the shared server."""
    return JetStream(connection)


@pytest.fixture
def all_answers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the other answers when a row is refused for good, however slow the machine is: tests count them."""
    monkeypatch.setattr(decide, "LOST_OUT_OF_ORDER", 30.0)


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at streams again soon: they are asked twice, a second apart, for the rate at which they grow."""
    monkeypatch.setattr(clock, "sleep", lambda seconds: time.sleep(seconds / 20))
