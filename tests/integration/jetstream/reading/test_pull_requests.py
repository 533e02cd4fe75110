"""Which ends of pull requests a server announces, and which requests the reader then takes for open."""

from __future__ import annotations

import pytest

from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming.consumers import create_ephemeral
from spark_nats.jetstream.reading import delivering
from spark_nats.jetstream.reading.pulls import PullConsumer
from tests.nats_py import NatsPy


@pytest.mark.parametrize("bounded", [True, False], ids=["in bytes too", "in messages alone"])
def test_a_request_is_not_open_once_the_server_says_that_its_time_is_over(
    js: JetStream, nats_py: NatsPy, unique: str, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "PATIENCE", 30.0)  # after a silence the reader gives all its requests up
    nats_py.create_stream(unique)
    nats_py.publish_acked((f"{unique}.a", b"") for _ in range(3))
    consumer = PullConsumer(js, unique, create_ephemeral(js, unique, 1), bounded=bounded)
    consumer.send_pull_request(2, 30.0)  # it gets all its messages
    consumer.send_pull_request(2, 1.0)  # and this one half of them
    last = 0
    while last < 3 or consumer.in_flight:
        if (chunk := consumer.receive()) is not None:
            last = chunk.last
    consumer.close()
