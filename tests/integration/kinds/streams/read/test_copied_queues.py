"""Work queues and interest streams that another stream sources or mirrors, consumed by a query: both get all."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_nats.embedded import NatsServer
from spark_nats.errors import JetStreamError, PermissionsError, ProtocolError
from spark_nats.jetstream.consuming import durables
from tests.integration.forwarding import ForwardedApi
from tests.integration.kinds.streams.read.test_queues import INTEREST, WORK_QUEUE, add_consumer, consuming
from tests.integration.support import Query, numbers_of
from tests.nats_py import NatsPy, wait_until
from tests.servers import OLDER_BINARY, Server, ServerFactory, free_ports

pytestmark = pytest.mark.needs("copied queues")

COPIES: dict[str, Any] = {"sources": lambda of: {"sources": [of]}, "mirror": lambda of: {"mirror": of}}


@pytest.fixture(autouse=True)
def releases_are_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durables, "LOOK_INTERVAL", 0.0)


@pytest.fixture
def elsewhere(server_factory: ServerFactory) -> tuple[NatsServer, NatsServer]:
    """A server for the queue, and one for the stream that copies it, which can be away."""
    (port,) = free_ports(1)
    hub = server_factory(f'jetstream {{ domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}')
    up = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ] }}'
    return hub, server_factory(f"server_name: leaf\njetstream {{ domain: leaf }}\n{up}")


def all_released(query: Query, client: NatsPy, stream: str) -> bool:
    assert query.micro_batch() == []
    return client.held(stream) == 0


@pytest.mark.parametrize("copies", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST], ids=lambda c: c["retention"])
@pytest.mark.promise("queues#copied")
def test_a_stream_that_was_away_still_copies_what_a_query_has_processed(
    elsewhere: tuple[NatsServer, NatsServer],
    unique: str,
    config: dict[str, Any],
    copies: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub, leaf = elsewhere
    caplog.set_level(logging.INFO, durables.__name__)
    with NatsPy(hub.url) as client:
        client.create_stream(unique, **config)
        query = consuming(hub, unique)
        with NatsPy(leaf.url) as there:
            there.create_stream("LOG", [], **copies({"name": unique, "external": {"api": "$JS.hub.API"}}))
            client.store(f"{unique}.a", range(5))
            wait_until(lambda: there.held("LOG") == 5)
        leaf.kill()
        client.store(f"{unique}.a", range(5, 20))
        assert numbers_of(query.rows(20)) == list(range(20))
        query = consuming(hub, unique, query.offset)  # another run reads none of them again
        assert query.micro_batch() == []
        assert client.held(unique) in range(15, 21)  # of the first five, it may have no acknowledgement
        leaf.start()
        with NatsPy(leaf.url) as there:
            wait_until(lambda: there.held("LOG") == 20)
            assert there.stored_numbers("LOG") == list(range(20))
        wait_until(lambda: all_released(query, client, unique))
    waits = [each.message for each in caplog.records if "NATS_RELEASE_WAITS" in each.message]
    assert bool(waits) == (config is WORK_QUEUE)
    assert all("of stream 'LOG' in domain 'leaf' has them too" in each for each in waits)


@pytest.fixture
def queue(nats_py: NatsPy, unique: str) -> str:
    """A work queue, and a stream that sources it: `<queue>_LOG`, which waits when it has three messages."""
    nats_py.create_stream(unique, **WORK_QUEUE)
    create_log(nats_py, unique)
    return unique


def create_log(client: NatsPy, queue: str, waits: bool = True, **source: Any) -> None:
    sources = [{"name": queue, **source}]
    client.create_stream(f"{queue}_LOG", [], sources=sources, max_msgs=3, discard="new")
    if waits:
        wait_until(lambda: any(each.startswith("JS_SRC_") for each in client.consumers(queue)))


def let_it_go_on(client: NatsPy, queue: str) -> None:
    config = client.stream_info(f"{queue}_LOG")["config"]
    client.api(f"STREAM.UPDATE.{queue}_LOG", {**config, "max_msgs": -1})


def copier(client: NatsPy, queue: str) -> str:
    (name,) = [each for each in client.consumers(queue) if each.startswith("JS_SRC_")]
    return name


@pytest.mark.promise("queues#copied")
def test_a_query_releases_what_is_copied_and_leaves_the_rest(nats_server: Server, nats_py: NatsPy, queue: str) -> None:
    query = consuming(nats_server, queue)
    nats_py.store(f"{queue}.a", range(2))
    assert numbers_of(query.rows(2)) == [0, 1]
    wait_until(lambda: all_released(query, nats_py, queue))
    nats_py.store(f"{queue}.a", range(2, 10))
    assert numbers_of(query.rows(8)) == list(range(2, 10))
    assert query.micro_batch() == []
    assert nats_py.held(queue) == 8
    let_it_go_on(nats_py, queue)
    wait_until(lambda: all_released(query, nats_py, queue))
    assert nats_py.stored_numbers(f"{queue}_LOG") == list(range(10))


def test_a_stream_that_sources_a_queue_later_gets_what_comes_then(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique)
    nats_py.store(f"{unique}.a", range(5))
    assert numbers_of(query.rows(5)) == list(range(5))
    assert nats_py.held(unique) == 0
    create_log(nats_py, unique)
    nats_py.store(f"{unique}.a", range(5, 15))
    assert numbers_of(query.rows(10)) == list(range(5, 15))
    assert nats_py.held(unique) == 10
    let_it_go_on(nats_py, unique)
    wait_until(lambda: all_released(query, nats_py, unique))
    assert nats_py.stored_numbers(f"{unique}_LOG") == list(range(5, 15))


def test_messages_that_a_stream_does_not_source_are_released_at_once(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    create_log(nats_py, unique, filter_subject=f"{unique}.eu")
    others, all_of_it = consuming(nats_server, unique, subject=f"{unique}.us"), [*range(10)]
    nats_py.store(f"{unique}.us", range(10))
    assert numbers_of(others.rows(10)) == all_of_it
    assert nats_py.held(unique) == 0
    others.reader.stop()
    for name in nats_py.consumers(unique):
        if name != copier(nats_py, unique):
            nats_py.api(f"CONSUMER.DELETE.{unique}.{name}")
    whole = consuming(nats_server, unique)
    nats_py.store(f"{unique}.us", range(10))
    assert numbers_of(whole.rows(10)) == all_of_it
    assert nats_py.held(unique) == 0  # nothing is left that it has to copy, though it has acknowledged nothing
    nats_py.store(f"{unique}.eu", range(10))
    assert numbers_of(whole.rows(10)) == all_of_it
    assert nats_py.held(unique) == 10


def test_a_stream_that_never_comes_back_is_a_warning_until_its_consumer_is_deleted(
    nats_server: Server,
    nats_py: NatsPy,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query, name = consuming(nats_server, queue), copier(nats_py, queue)
    nats_py.store(f"{queue}.a", range(10))
    with caplog.at_level(logging.INFO, durables.__name__):
        assert numbers_of(query.rows(10)) == list(range(10))
        assert query.micro_batch() == []
        monkeypatch.setattr(durables, "STUCK", 0.0)
        for _ in range(3):
            assert query.micro_batch() == []
    said = [each for each in caplog.records if "NATS_RELEASE_WAITS" in each.message]
    assert [each.levelname for each in said] == ["INFO", "WARNING"]
    assert {each.message for each in said} == {
        f"[NATS_RELEASE_WAITS] work queue {queue!r}: the query has processed the messages before sequence 11, but "
        f"those from 1 on stay until consumer {name!r} of stream '{queue}_LOG' has them too; if it never comes back, "
        f"delete it (nats consumer rm {queue} {name})"
    }
    nats_py.api(f"CONSUMER.DELETE.{queue}.{name}")
    wait_until(lambda: all_released(query, nats_py, queue))


def test_a_consumer_of_unknown_place_needs_all(nats_py: NatsPy, nats_server: Server, queue: str) -> None:
    """As one whose server is away does: the list has no more than its name."""

    name = copier(nats_py, queue)

    def as_offline(answer: dict[str, Any]) -> dict[str, Any]:
        return {
            **answer,
            "consumers": [each for each in answer["consumers"] if each["name"] != name],
            "missing": [name],
        }

    nats_py.store(f"{queue}.a", range(2))
    with ForwardedApi(nats_py).serving() as api:
        api.answers["CONSUMER.LIST"] = as_offline
        query = consuming(nats_server, queue, apiPrefix=api.PREFIX)
        assert numbers_of(query.rows(2)) == [0, 1]
        wait_until(lambda: nats_py.api(f"CONSUMER.INFO.{queue}.{name}")["ack_floor"]["stream_seq"])
        assert query.micro_batch() == []
        assert nats_py.held(queue) == 2
        del api.answers["CONSUMER.LIST"]
        wait_until(lambda: all_released(query, nats_py, queue))


def test_nothing_is_released_while_a_list_lacks_a_consumer(nats_py: NatsPy, nats_server: Server, queue: str) -> None:
    """As that of another stream does, or of a former leader."""
    nats_py.store(f"{queue}.a", range(2))
    with ForwardedApi(nats_py).serving() as api:
        api.answers["CONSUMER.LIST"] = lambda answer: {**answer, "consumers": [], "total": 0}
        query = consuming(nats_server, queue, apiPrefix=api.PREFIX, retryTimeout="1s")
        with pytest.raises(JetStreamError, match="has 2 consumers, of which 0 are listed"):
            query.rows(2)
        assert nats_py.held(queue) == 2
        api.answers["CONSUMER.LIST"] = lambda answer: {
            **answer,
            "consumers": [{**each, "stream_name": "OTHER"} for each in answer["consumers"]],
        }
        with pytest.raises(ProtocolError, match="it is about a consumer of another stream"):
            query.micro_batch()
        assert nats_py.held(queue) == 2
        del api.answers["CONSUMER.LIST"]
        wait_until(lambda: all_released(query, nats_py, queue))


def test_consumers_are_listed_only_where_there_is_another_one_and_in_no_round_trip_of_its_own(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durables, "LOOK_INTERVAL", 600.0)
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique, subject=f"{unique}.a")
    with nats_py.collect("$JS.API.CONSUMER.>") as asked:
        for alone in (True, False):
            asked.clear()
            nats_py.store(f"{unique}.a", range(5))
            assert numbers_of(query.rows(5)) == list(range(5))
            assert nats_py.held(unique) == 0
            # Streams of other tests that copy something ask for consumers too, whenever they like.
            operations = [each.subject.split(".")[3] for each in asked.messages if unique in each.subject]
            assert operations == (["INFO"] if alone else ["INFO", "LIST"])
            add_consumer(nats_py, unique, "worker", filter_subject=f"{unique}.b")


@pytest.mark.promise("queues#copied")
def test_a_user_that_may_not_list_consumers_removes_nothing_beside_another_one(
    server_factory: ServerFactory, unique: str
) -> None:
    subjects = '"$JS.API.STREAM.>", "$JS.API.CONSUMER.INFO.>", "$JS.API.CONSUMER.CREATE.>", "$JS.API.DIRECT.>"'
    user = f"{{ user: u, password: p, permissions: {{ publish: [{subjects}] }} }}"
    server = server_factory(f"authorization {{ users: [{{ user: admin, password: p }}, {user}] }}")
    with NatsPy(server.url, user="admin", password="p") as client:
        client.create_stream(unique, **WORK_QUEUE)
        query = consuming(server, unique, user="u", password="p")
        client.store(f"{unique}.a", range(5))
        assert numbers_of(query.rows(5)) == list(range(5))
        assert client.held(unique) == 0
        create_log(client, unique)
        client.store(f"{unique}.a", range(5))
        with pytest.raises(PermissionsError, match=rf"\$JS\.API\.CONSUMER\.LIST\.{unique}"):
            query.rows(5)
        assert client.held(unique) == 5


@pytest.mark.promise("queues#copied-unseen")
def test_before_2_14_nobody_sees_a_stream_that_copies_a_queue(server_factory: ServerFactory, unique: str) -> None:
    """So a query takes from it what it has still to copy: the page says so, and what to do instead."""
    server = server_factory(binary=OLDER_BINARY)
    with NatsPy(server.url) as client:
        client.create_stream(unique, **WORK_QUEUE)
        query = consuming(server, unique)
        create_log(client, unique, waits=False)
        client.store(f"{unique}.a", range(10))
        wait_until(lambda: client.held(f"{unique}_LOG") == 3)
        assert client.stream_info(unique)["state"]["consumer_count"] == 1
        assert len(client.consumers(unique)) == 1
        assert numbers_of(query.rows(10)) == list(range(10))
        assert client.held(unique) == 0
