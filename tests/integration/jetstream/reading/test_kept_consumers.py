"""Consumers that a connection keeps from one range to the next, and moves there (CONSUMER.RESET, nats-server 2.14)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from spark_nats.client import Connection, borrow, connect
from spark_nats.client.options import RetryOptions
from spark_nats.client.retrying import run_with_retries
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.api import RefusalMemory
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.reading import searching
from spark_nats.jetstream.reading.judging import Removed
from spark_nats.jetstream.reading.pulls import PullConsumer
from spark_nats.jetstream.reading.ranges import Range, RangeReader, ReadMethod
from tests.connections import options_for, patience
from tests.integration.commands.test_permissions import MOVE, READ, user, users
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import batch_reader
from tests.nats_py import NatsPy, wait_until
from tests.servers import OLDER_BINARY, Cluster, Server, ServerFactory, end

pytestmark = pytest.mark.needs("kept consumers")


@pytest.fixture
def api(nats_py: NatsPy) -> Iterator[ForwardedApi]:
    """JetStream's API, of which a test changes the answers."""
    with ForwardedApi(nats_py).serving() as forwarded:
        yield forwarded


@pytest.fixture(autouse=True)
def _moved_and_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers are moved, whatever happened in other tests; and a slow machine is no reason to take another one."""
    monkeypatch.setattr(consumers, "_refused", RefusalMemory())
    monkeypatch.setattr(consumers, "PATIENCE", 60.0)
    monkeypatch.setattr(searching, "TRIAL", 60.0)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing about a consumer is not waited for long."""
    monkeypatch.setattr(consumers, "PATIENCE", 0.2)


def read(js: JetStream, stream: str, start: int, end: int, filters: Sequence[str] = (), **more: Any) -> list[int]:
    """The sequences of the messages of a range."""
    what = Range(stream, None, start, end, tuple(filters), removed=Removed.NO_LOSS_AT_FIRST)
    reader = RangeReader(what, retries=patience(), keeps_consumer=True, **more)
    return [sequence for _, deliveries in reader.read(js) for sequence in deliveries.stream_sequences().tolist()]


def fill(client: NatsPy, stream: str, count: int) -> None:
    client.publish_acked((f"{stream}.{i % 3}", b"") for i in range(1, count + 1))


def numbers(start: int, end: int, *rests: int) -> list[int]:
    """The sequences of a range whose messages have one of these last tokens, as :func:`fill` gives them."""
    return [i for i in range(start, end) if not rests or i % 3 in rests]


@pytest.mark.docker
@pytest.mark.parametrize("rests", [(), (1,), (0, 2)], ids=str)
def test_one_consumer_reads_range_after_range(
    js: JetStream, nats_py: NatsPy, unique: str, rests: tuple[int, ...]
) -> None:
    nats_py.create_stream(unique)
    filters = [f"{unique}.{rest}" for rest in rests]
    fill(nats_py, unique, 600)
    names = set()
    for start in range(1, 600, 50):
        assert read(js, unique, start, start + 50, filters) == numbers(start, start + 50, *rests)
        names.add(tuple(nats_py.consumers(unique)))
    ((name,),) = names
    assert read(js, unique, 551, 561, filters) == numbers(551, 561, *rests)
    assert nats_py.consumers(unique) == [name]


def test_ranges_in_any_order_are_read_by_one_consumer_at_a_time(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 300)
    chance, names, published = random.Random(1), [], 300
    for _ in range(40):
        start = chance.randint(1, published)
        stop = chance.randint(start + 1, published + 1)
        assert read(js, unique, start, stop, [f"{unique}.1"]) == numbers(start, stop, 1)
        wait_until(lambda: len(nats_py.consumers(unique)) == 1)  # the deletion of another one is not waited for
        (name,) = nats_py.consumers(unique)
        names.append(name)
        nats_py.publish_acked([(f"{unique}.{i % 3}", b"") for i in range(published + 1, published + 6)])
        published += 5  # which an open pull request of the range before must not take away
    assert len(set(names)) < 12  # one more wherever a range begins before all others so far


def test_each_use_has_a_consumer_of_its_own_and_the_oldest_one_goes(
    js: JetStream, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked((f"{unique}.{i}", b"abc") for i in range(1, 21))
    assert read(js, unique, 1, 21) == read(js, unique, 1, 21, way=ReadMethod.HEADERS) == list(range(1, 21))
    assert len(nats_py.consumers(unique)) == 2
    for i in range(1, 21):
        assert read(js, unique, 1, 21, [f"{unique}.{i}"]) == [i]
    wait_until(lambda: len(nats_py.consumers(unique)) == consumers.MAX_KEPT)


def test_two_ranges_at_once_have_a_consumer_each(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 60)
    assert read(js, unique, 1, 11) == numbers(1, 11)
    first = RangeReader(Range(unique, None, 11, 31), retries=patience(), keeps_consumer=True).read(js)
    rows = next(first).deliveries.stream_sequences().tolist()
    assert read(js, unique, 31, 61) == numbers(31, 61)
    rows += [sequence for _, deliveries in first for sequence in deliveries.stream_sequences().tolist()]
    assert rows == numbers(11, 31)
    wait_until(lambda: len(nats_py.consumers(unique)) == 1)
    assert read(js, unique, 31, 61) == numbers(31, 61)


def test_a_range_that_is_given_up_leaves_no_consumer(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 60)
    assert read(js, unique, 1, 11) == numbers(1, 11)
    reading = RangeReader(Range(unique, None, 11, 61), keeps_consumer=True).read(js)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    wait_until(lambda: nats_py.consumers(unique) == [])
    assert read(js, unique, 11, 61) == numbers(11, 61)


@pytest.mark.usefixtures("silence")
def test_a_consumer_does_not_outlive_its_stream(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    for _ in range(2):
        nats_py.create_stream(unique)
        fill(nats_py, unique, 30)
        assert read(js, unique, 11, 21) == numbers(11, 21)
        assert read(js, unique, 21, 31, [f"{unique}.1"]) == numbers(21, 31, 1)
        nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    fill(nats_py, unique, 30)
    assert read(js, unique, 21, 31) == numbers(21, 31)


@pytest.mark.parametrize("rests", [(), (1,)], ids=str)
def test_what_was_purged_meanwhile_is_passed_over(
    js: JetStream, nats_py: NatsPy, unique: str, rests: tuple[int, ...]
) -> None:
    nats_py.create_stream(unique)
    filters = [f"{unique}.{rest}" for rest in rests]
    fill(nats_py, unique, 60)
    assert read(js, unique, 1, 11, filters) == numbers(1, 11, *rests)
    (name,) = nats_py.consumers(unique)
    nats_py.purge_stream(unique, seq=31)
    assert read(js, unique, 11, 41, filters) == numbers(31, 41, *rests)
    assert nats_py.consumers(unique) == [name]
    nats_py.purge_stream(unique)
    assert read(js, unique, 41, 61, filters) == []
    fill(nats_py, unique, 60)
    assert read(js, unique, 41, 121, filters) == [i + 60 for i in numbers(1, 61, *rests)]


@pytest.mark.usefixtures("silence")
def test_a_consumer_that_somebody_has_deleted_is_not_missed(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 60)
    assert read(js, unique, 1, 11) == numbers(1, 11)
    while not consumers._refused._until:  # a busy server may have been silent about the stream too
        (name,) = nats_py.consumers(unique)
        nats_py.api(f"CONSUMER.DELETE.{unique}.{name}")
        assert read(js, unique, 11, 21) == numbers(11, 21)
    assert read(js, unique, 21, 31) == numbers(21, 31)
    # Silence may mean that no consumer of the stream can be moved: each is deleted now.
    wait_until(lambda: nats_py.consumers(unique) == [])


def test_a_consumer_that_was_not_used_for_long_is_not_used_again(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, consumer_limits={"inactive_threshold": 2_000_000})
    fill(nats_py, unique, 30)
    for start in (1, 11):
        assert read(js, unique, start, start + 10) == numbers(start, start + 10)
        wait_until(lambda: nats_py.consumers(unique) == [])  # the server has deleted it
    assert not consumers._refused._until


@pytest.mark.parametrize("config", [{"retention": "interest"}, {"max_consumers": 1}], ids=str)
def test_where_others_may_wait_for_its_end_no_consumer_is_kept(
    js: JetStream, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    if "retention" in config:
        others = {"durable_name": "others", "ack_policy": "explicit"}
        nats_py.api(f"CONSUMER.DURABLE.CREATE.{unique}.others", {"stream_name": unique, "config": others})
    fill(nats_py, unique, 30)
    for start in (1, 11, 21):
        assert read(js, unique, start, start + 10) == numbers(start, start + 10)
        wait_until(lambda: nats_py.consumers(unique) in ([], ["others"]))


def test_a_limit_that_does_not_show_in_the_stream_is_heeded_when_it_is_met(server_factory: ServerFactory) -> None:
    server = server_factory('accounts { A { jetstream { max_consumers: 1 }, users: [{ user: "a", password: "x" }] } }')
    url = server.url.replace("nats://", "nats://a:x@")
    with NatsPy(url) as client, connect(options_for(url)) as one, connect(options_for(url)) as other:
        client.create_stream("S")
        fill(client, "S", 60)
        js = JetStream(one)
        assert read(js, "S", 1, 11) == numbers(1, 11)
        assert len(client.consumers("S")) == 1
        assert read(js, "S", 1, 31, ["S.1"]) == numbers(1, 31, 1)  # in the place of the one that was kept
        wait_until(
            lambda: client.consumers("S") == []
        )  # and it is not kept itself, now that places are known to be few
        assert read(JetStream(other), "S", 1, 31, ["S.1"]) == numbers(1, 31, 1)


def test_without_the_permission_to_move_consumers_all_is_read_through_new_ones(
    server_factory: ServerFactory,
) -> None:
    server = server_factory(users(user("reader", READ), user("mover", READ + MOVE)))
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("ORDERS", ["ORDERS.>"])
        fill(client, "ORDERS", 60)
        for name, left in (("mover", 1), ("reader", 0)):
            url = server.url.replace("nats://", f"nats://{name}:pw@")
            with connect(options_for(url, inbox_prefix="_INBOX_spark")) as connection:
                for start in range(1, 61, 10):
                    assert read(JetStream(connection), "ORDERS", start, start + 10) == numbers(start, start + 10)
                wait_until(lambda: len(client.consumers("ORDERS")) == left)  # noqa: B023 - waited for here
            wait_until(lambda: client.consumers("ORDERS") == [])


@pytest.mark.docker
def test_a_connection_that_is_closed_leaves_no_consumer(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 30)
    with connect(options_for(nats_server.url)) as connection:
        assert read(JetStream(connection), unique, 1, 11) == numbers(1, 11)
        assert read(JetStream(connection), unique, 1, 11, [f"{unique}.1"]) == numbers(1, 11, 1)
        assert len(nats_py.consumers(unique)) == 2
    wait_until(lambda: nats_py.consumers(unique) == [])


def test_a_connection_that_nobody_has_asked_for_leaves_no_consumer(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 30)
    with borrow(options_for(nats_server.url, idle_timeout=0.5)) as connection:
        assert read(JetStream(connection), unique, 1, 11) == numbers(1, 11)
        assert len(nats_py.consumers(unique)) == 1
    wait_until(lambda: nats_py.consumers(unique) == [])
    wait_until(lambda: connection.closed)  # it says that they are to be deleted, and then it is closed


def test_after_a_restart_of_the_server_ranges_are_read_over_another_connection(
    server_factory: ServerFactory,
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
        fill(client, "S", 30)
    with connect(options_for(server.url)) as connection:
        assert read(JetStream(connection), "S", 1, 11) == numbers(1, 11)
        end(server)
        server.start()
    with connect(options_for(server.url)) as connection:
        assert read(JetStream(connection), "S", 11, 31) == numbers(11, 31)


def test_an_older_server_is_not_asked_to_move_consumers(server_factory: ServerFactory) -> None:
    if not OLDER_BINARY.exists():
        pytest.skip("needs nats-server 2.11")
    server = server_factory(binary=OLDER_BINARY)
    with NatsPy(server.url) as client, connect(options_for(server.url)) as connection:
        client.create_stream("S")
        fill(client, "S", 30)
        for start in (1, 11, 21):
            assert read(JetStream(connection), "S", start, start + 10) == numbers(start, start + 10)
            wait_until(lambda: client.consumers("S") == [])


# Answers that are not as they should be


def refused(answer: dict[str, Any]) -> dict[str, Any]:
    return {"type": answer["type"], "error": {"code": 400, "err_code": 10204, "description": "invalid reset"}}


ODD: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "an error": refused,
    "another consumer": lambda answer: {**answer, "name": "other"},
    "no object": lambda answer: {"name": answer["name"]},
    "another sequence": lambda answer: {**answer, "reset_seq": answer["reset_seq"] + 1},
    "another beginning": lambda answer: {**answer, "delivered": {"consumer_seq": 0, "stream_seq": 3}},
    "deliveries": lambda answer: {**answer, "delivered": {**answer["delivered"], "consumer_seq": 1}},
}


@pytest.mark.parametrize("odd", ODD)
def test_a_consumer_whose_answer_is_odd_is_not_used(
    js: JetStream, nats_py: NatsPy, unique: str, api: ForwardedApi, odd: str
) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 60)
    there = JetStream(js.connection, ForwardedApi.PREFIX)
    assert read(there, unique, 1, 11) == numbers(1, 11)
    assert read(there, unique, 11, 21) == numbers(11, 21)
    assert api.count("CONSUMER.CREATE") == 1
    api.answers["CONSUMER.RESET"] = ODD[odd]
    assert read(there, unique, 21, 31) == numbers(21, 31)
    assert api.count("CONSUMER.CREATE") == 2
    wait_until(lambda: len(nats_py.consumers(unique)) == 1)
    del api.answers["CONSUMER.RESET"]
    assert read(there, unique, 31, 61) == numbers(31, 61)
    assert api.count("CONSUMER.CREATE") == 2


def test_a_consumer_of_another_stream_of_that_name_is_not_used(
    js: JetStream, nats_py: NatsPy, unique: str, api: ForwardedApi
) -> None:
    """A server of a cluster may still have it, and answer for it, when the stream's leader has the next one."""
    nats_py.create_stream(unique)
    fill(nats_py, unique, 60)
    there = JetStream(js.connection, ForwardedApi.PREFIX)
    api.answers["STREAM.INFO"] = lambda answer: {**answer, "created": "2026-01-01T00:00:00Z"}
    assert read(there, unique, 1, 11) == numbers(1, 11)
    assert read(there, unique, 11, 21) == numbers(11, 21)
    assert api.count("CONSUMER.CREATE") == 1
    del api.answers["STREAM.INFO"]
    assert read(there, unique, 21, 31) == numbers(21, 31)
    assert api.count("CONSUMER.CREATE") == 2


@pytest.mark.parametrize("rests", [(), (1,)], ids=str)
def test_what_the_replica_of_a_moved_consumer_lacks_is_read_through_another_one(
    js: JetStream, nats_py: NatsPy, unique: str, api: ForwardedApi, rests: tuple[int, ...]
) -> None:
    nats_py.create_stream(unique)
    fill(nats_py, unique, 60)
    nats_py.delete_message(unique, 40)  # so that the stream has gaps anyway
    filters = [f"{unique}.{rest}" for rest in rests]
    there = JetStream(js.connection, ForwardedApi.PREFIX)
    assert read(there, unique, 1, 11, filters) == numbers(1, 11, *rests)

    def behind(request: dict[str, Any]) -> dict[str, Any]:
        return {"seq": request["seq"] + 7}

    def as_asked(answer: dict[str, Any]) -> dict[str, Any]:
        begins = {"consumer_seq": 0, "stream_seq": answer["reset_seq"] - 8}
        elsewhere = {"name": "C", "leader": "elsewhere"}
        return {**answer, "reset_seq": answer["reset_seq"] - 7, "delivered": begins, "cluster": elsewhere}

    api.requests["CONSUMER.RESET"], api.answers["CONSUMER.RESET"] = behind, as_asked
    assert read(there, unique, 11, 31, filters) == numbers(11, 31, *rests)
    assert api.count("CONSUMER.CREATE") == 2


# In a cluster


@pytest.fixture
def replicated(cluster: Cluster, unique: str) -> Iterator[NatsPy]:
    """A client of a cluster, and a stream of the test's name with three replicas, none of which lags."""
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, num_replicas=3)
        fill(client, unique, 300)

        def is_whole() -> bool:
            replicas = client.stream_info(unique)["cluster"]["replicas"]
            return all(each["current"] and not each.get("lag") for each in replicas)

        wait_until(is_whole)
        yield client


def has(client: NatsPy, stream: str, consumers: int) -> Callable[[], bool]:
    return lambda: len(client.consumers(stream)) == consumers


@pytest.mark.parametrize("rests", [(), (1,)], ids=str)
def test_in_a_cluster_consumers_are_moved_whichever_server_is_asked(
    cluster: Cluster, unique: str, rests: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PATIENCE", 1.0)  # for what is not answered at all
    filters = [f"{unique}.{rest}" for rest in rests]
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, num_replicas=1)
        fill(client, unique, 300)
        for server in cluster.servers:
            with connect(options_for(server.url)) as connection:

                def one_consumer_reads_all(connection: Connection = connection) -> bool:
                    # Servers that have just found each other, or elect a leader, leave requests unanswered, whatever
                    # stream they are about. The reader then rightly takes another consumer.
                    monkeypatch.setattr(consumers, "_refused", RefusalMemory())
                    after_each = []
                    for start in range(1, 300, 50):
                        rows = read(JetStream(connection), unique, start, start + 50, filters)
                        assert rows == numbers(start, start + 50, *rests)
                        after_each.append(client.consumers(unique))
                    return after_each[0] != [] and after_each.count(after_each[0]) == len(after_each)

                wait_until(one_consumer_reads_all)
            wait_until(has(client, unique, 0), timeout=90)  # the server deletes what was abandoned after 60 s


@pytest.mark.usefixtures("silence")
def test_in_a_cluster_too_a_consumer_does_not_outlive_its_stream(
    cluster: Cluster, replicated: NatsPy, unique: str
) -> None:
    with connect(options_for(cluster.servers[1].url)) as connection:
        js = JetStream(connection)
        for _ in range(2):
            assert read(js, unique, 1, 101) == numbers(1, 101)
            assert read(js, unique, 101, 301) == numbers(101, 301)
            replicated.delete_stream(unique)
            replicated.create_in_cluster(unique, num_replicas=3)
            fill(replicated, unique, 300)
        assert read(js, unique, 101, 301) == numbers(101, 301)


@pytest.mark.long(
    "spark_nats/jetstream/consuming/*", "spark_nats/jetstream/reading/*", races="the elections after each restart"
)
def test_servers_restart_while_consumers_are_kept_and_every_range_is_whole(
    cluster: Cluster, replicated: NatsPy, unique: str
) -> None:
    connection: Connection | None = None
    patient = RetryOptions(timeout=120.0, wait=0.1, jitter=0.0, attempts=None)
    for server in (*cluster.servers[1:], *cluster.servers[1:]):
        if connection is None:
            connection = connect(options_for(cluster.servers[0].url))
        js = JetStream(connection)
        for start in range(1, 300, 50):
            # An election may take longer than one connection is waited for; a task goes on then as here.
            found = run_with_retries(
                partial(read, js, unique, start, start + 50), patient, "the test", established=True
            )
            assert found == numbers(start, start + 50)
        cluster.restart(server)
    assert connection is not None
    connection.close()


def test_a_task_that_takes_no_more_rows_closes_what_it_reads_before_its_connection(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a query with a LIMIT: behind it, nobody could have the consumer deleted, which would stay for 60 s."""
    nats_py.create_stream(unique)
    fill(nats_py, unique, 20_000)
    was_closed: list[bool] = []
    finish = PullConsumer.close_or_keep

    def noted(consumer: PullConsumer) -> None:
        was_closed.append(consumer._js.connection.closed)
        finish(consumer)

    monkeypatch.setattr(PullConsumer, "close_or_keep", noted)
    reader = batch_reader(nats_server, stream=unique, minPartitions=1)
    (partition,) = reader.partitions()
    rows = reader.read(partition)
    assert next(rows).num_rows < 20_000
    rows.close()
    assert was_closed == [False]
