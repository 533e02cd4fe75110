"""What a run of a reader knows of its durable consumer, when that is taken over, is deleted, or is created again."""

from __future__ import annotations

import pytest

from spark_nats.client import connect
from spark_nats.errors import ConsumerConflictError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming import durables
from spark_nats.jetstream.consuming.durables import DurableHandle
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.api import Api
from tests.connections import options_for
from tests.integration.forwarding import FormerLeader, ForwardedApi
from tests.nats_py import NatsPy
from tests.servers import Cluster


@pytest.fixture
def stream(nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interest stream, of whose durables each look asks the server."""
    monkeypatch.setattr(durables, "LOOK_INTERVAL", 0.0)
    nats_py.create_stream(unique, retention="interest")
    return unique


def run(stream: str) -> DurableHandle:
    return DurableHandle(stream, "d", (), patience=60.0)


def lose(js: JetStream, hold: DurableHandle, stream: str) -> None:
    """Delete the durable, and have its run notice."""
    js.request(Api.CONSUMER_DELETE, stream, hold.name)  # which waits until it is gone
    hold.check_owner_if_due(js)


@pytest.mark.needs("interest streams")
def test_a_new_durable_is_announced_before_the_reader_has_begun(js: JetStream, stream: str) -> None:
    first, second, third = run(stream), run(stream), run(stream)
    first.create_or_take_over(js, ask_stream_info(js, stream))
    assert not first.has_reader_begun
    second.create_or_take_over(js, ask_stream_info(js, stream))  # the first run has ended without a word about it
    assert second.resume_or_explain_loss(js, 1)
    assert not second.has_reader_begun
    second.update_durable_as_begun(js)
    assert second.has_reader_begun
    third.create_or_take_over(js, ask_stream_info(js, stream))
    assert not third.has_reader_begun
    assert third.resume_or_explain_loss(js, 1) is None
    assert third.has_reader_begun


@pytest.mark.needs("interest streams")
def test_a_durable_that_is_gone_before_the_reader_has_begun_is_a_new_one_again(js: JetStream, stream: str) -> None:
    hold = run(stream)
    hold.create_or_take_over(js, ask_stream_info(js, stream))
    lose(js, hold, stream)
    assert not hold.has_reader_begun
    hold.create_or_take_over(js, ask_stream_info(js, stream))
    assert hold.resume_or_explain_loss(js, 1)
    hold.update_durable_as_begun(js)
    assert hold.has_reader_begun


@pytest.mark.needs("interest streams")
def test_a_durable_that_is_deleted_under_its_reader_is_announced_each_time(js: JetStream, stream: str) -> None:
    hold = run(stream)
    hold.create_or_take_over(js, ask_stream_info(js, stream))
    hold.update_durable_as_begun(js)
    for _ in range(2):
        lose(js, hold, stream)
        assert hold.has_reader_begun  # until the run has taken it again, and knows that it had to be created
        hold.create_or_take_over(js, ask_stream_info(js, stream))
        assert not hold.has_reader_begun
        assert hold.resume_or_explain_loss(js, 1)
        lose(js, hold, stream)
        hold.create_or_take_over(js, ask_stream_info(js, stream))
        assert hold.resume_or_explain_loss(js, 1)
        hold.update_durable_as_begun(js)
        assert hold.has_reader_begun


@pytest.mark.needs("work queues")
def test_messages_of_a_work_queue_are_not_released_because_a_former_leader_does_not_know_them(
    cluster: Cluster, unique: str
) -> None:
    hold = run(unique)
    with (
        NatsPy(cluster.servers[0].url) as client,
        ForwardedApi(client).serving(cluster.urls) as api,
        connect(options_for(cluster.urls)) as connection,
    ):
        client.create_in_cluster(unique, retention="workqueue", allow_direct=True)
        client.store_empty(unique, 3)
        js = JetStream(connection, api.PREFIX)
        hold.create_or_take_over(js, ask_stream_info(js, unique))
        api.answers["STREAM.MSG.GET"] = former = FormerLeader(0)
        with pytest.raises(ConsumerConflictError, match="has messages before sequence 3"):
            hold.resume_or_explain_loss(js, 3)
    assert former.hidden
