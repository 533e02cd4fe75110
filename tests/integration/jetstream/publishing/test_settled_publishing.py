"""Publishing while connections, leaders and servers go: every row stored once, or an error that counts."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from nats.js.errors import APIError

from spark_nats import clock
from spark_nats.client import connect
from spark_nats.client.options import RetryOptions
from spark_nats.client.pool import leased
from spark_nats.client.publishing import CorePublisher
from spark_nats.conditions import Topic
from spark_nats.embedded import NatsServer
from spark_nats.errors import NatsConnectionError, NatsError, PublishError
from spark_nats.jetstream import JetStream, Publisher, StreamInfo
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.id_memory import id_memory_of
from spark_nats.jetstream.publishing import decide
from spark_nats.jetstream.publishing.flight import Rows
from spark_nats.jetstream.publishing.recovery import Acknowledged, PublishLedger, Recovery
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.headers import MSG_ID, wrap_lines_into_blocks
from spark_nats.protocol.publish_acks import PublishAcks
from tests.chaos.proxy import HARMS, Direction, Proxy
from tests.connections import options_for, publisher_for
from tests.nats_py import NatsPy, wait_until
from tests.needs import server_version, since
from tests.servers import Cluster, ServerFactory

RETRIES = RetryOptions(timeout=300.0, wait=0.05, jitter=0.01, attempts=None)
PART = 500  # rows given at once
FORGOTTEN_SOON = 10_000_000_000
"""Nanoseconds in which a stream knows message ids: a leader that has lost one takes it for being in process so long."""


@contextmanager
def publishing(urls: str, stream: str, request_timeout: float = 2.0, **how: Any) -> Iterator[Publisher]:
    options = options_for(urls, request_timeout=request_timeout, connect_timeout=2.0)
    with leased(options, RETRIES, "publishing") as lease:
        info: StreamInfo = lease.ask_with_retries(lambda connection: ask_stream_info(JetStream(connection), stream))
        yield publisher_for(lease.connection, info, lease=lease, **how)


def give(publisher: Publisher | CorePublisher, stream: str, numbers: range, with_ids: bool = True) -> None:
    """Publish numbers as payloads, on seven subjects."""
    subjects = pa.array([f"{stream}.{i % 7}" for i in numbers])
    payloads = pa.array([str(i) for i in numbers])
    headers = wrap_lines_into_blocks(pa.array([""] * len(numbers)), [(MSG_ID, payloads)])
    publisher.publish(subjects, payloads, *((headers, None, payloads) if with_ids else ()))


def stored(client: NatsPy, stream: str) -> list[int]:
    """What a stream holds; asked again while a server that has just come back does not answer."""
    found: list[list[int]] = []

    def read() -> bool:
        with contextlib.suppress(APIError, TimeoutError):
            found.append(client.stored_numbers(stream))
        return bool(found)

    wait_until(read)
    return found[0]


@contextmanager
def meanwhile(harm: Callable[[], object], pause: float, times: int) -> Iterator[Future[None]]:
    """Do harm so many times, with pauses; what is done when it was."""

    def go_on() -> None:
        for _ in range(times):
            time.sleep(pause)
            harm()

    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(go_on)
        yield going_on
        going_on.result()


@pytest.fixture
def proxied(server_factory: ServerFactory) -> Iterator[tuple[NatsServer, Proxy]]:
    server = server_factory()
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    yield server, proxy
    proxy.close()


@pytest.mark.promise("writing#spark-to-stream")
@pytest.mark.parametrize("harm", HARMS)
def test_every_row_is_stored_once_and_in_order_however_often_the_connection_is_cut(
    proxied: tuple[NatsServer, Proxy], harm: str
) -> None:
    server, proxy = proxied
    with NatsPy(server.url) as client:
        client.create_stream("S", subjects=["S.>"])
        with publishing(proxy.url, "S") as publisher:
            end = 0

            def harm_what_works() -> None:
                confirmed = publisher.stored
                wait_until(lambda: publisher.stored > confirmed)
                HARMS[harm](proxy)

            with meanwhile(harm_what_works, 0.01, 6) as going_on:
                while not going_on.done():
                    give(publisher, "S", range(end, end + PART))
                    end += PART
            publisher.wait_for_sent_rows()
            assert publisher.stored == end
        assert stored(client, "S") == list(range(end))


def test_rows_without_ids_are_not_sent_again_and_the_error_counts_them(proxied: tuple[NatsServer, Proxy]) -> None:
    server, proxy = proxied
    with NatsPy(server.url) as client:
        client.create_stream("S", subjects=["S.>"])
        with pytest.raises(NatsConnectionError) as raised, publishing(proxy.url, "S") as publisher:
            give(publisher, "S", range(10), with_ids=False)
            publisher.wait_for_sent_rows()
            proxy.delay = 30.0  # so that no answer comes
            give(publisher, "S", range(10, 15), with_ids=False)
            proxy.cut()
            publisher.wait_for_sent_rows()
        assert "of this task's rows 10 were stored and 5 were sent and not answered (they may be stored)" in str(
            raised.value
        )
        assert raised.value.topics == (Topic.MESSAGE_IDS,)


def test_rows_without_ids_go_on_when_none_was_in_flight(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", subjects=["S.>"])
    with publishing(server.url, "S") as publisher:
        give(publisher, "S", range(10), with_ids=False)
        publisher.wait_for_sent_rows()
        server.kill()
        server.start()
        give(publisher, "S", range(10, 20), with_ids=False)
        publisher.wait_for_sent_rows()
        assert publisher.stored == 20
    with NatsPy(server.url) as client:
        assert stored(client, "S") == list(range(20))


def test_after_an_outage_longer_than_the_window_the_stream_is_asked_what_it_has(
    proxied: tuple[NatsServer, Proxy],
) -> None:
    server, proxy = proxied
    with NatsPy(server.url) as client:
        client.create_stream("S", subjects=["S.>"], duplicate_window=100_000_000)
        client.publish_acked([("S.x", b"-1", {MSG_ID: "-1"})])
        with publishing(proxy.url, "S") as publisher:
            give(publisher, "S", range(1000))
            publisher.wait_for_sent_rows()
            proxy.tear(Direction.TO_CLIENT)  # the answers
            give(publisher, "S", range(1000, 2000))
            # Not of all of them: under load fewer are under way at a time.
            wait_until(lambda: client.held("S") > 1001)
            seen = ("S.y", b"-2", {MSG_ID: "-2"})
            (first,) = client.publish_acked([seen])
            wait_until(lambda: client.publish_acked([seen]) != [first])  # forgotten, and so are the others
            proxy.tear(None)
            proxy.cut()
            give(publisher, "S", range(2000, 3000))
            publisher.wait_for_sent_rows()
            assert publisher.stored == 3000
        assert [i for i in stored(client, "S") if i >= 0] == list(range(3000))


def rows_of(numbers: range, **sent: Any) -> Rows:
    texts = pa.array(map(str, numbers))
    return Rows(np.array(numbers), pa.array(["S.x"] * len(numbers)), texts, None, texts, **sent)


def test_after_such_an_outage_rows_that_wait_are_not_sent_if_another_attempt_has_stored_them(
    server_factory: ServerFactory,
) -> None:
    url = server_factory().url
    with NatsPy(url) as client, connect(options_for(url)) as connection:
        client.create_stream("S", subjects=["S.>"], duplicate_window=100_000_000)
        js = JetStream(connection)
        account = PublishLedger(Acknowledged(PublishAcks("S"), 0))
        info = ask_stream_info(js, "S")
        recovery = Recovery(info, 5.0, 5.0, js.prefix, True, False, None, account, id_memory_of(js, info))
        client.publish_acked([("S.x", str(i).encode(), {MSG_ID: str(i)}) for i in range(20)])
        sent, waiting = rows_of(range(5), since=clock.monotonic() - 60, again=True), rows_of(range(5, 30))
        left = recovery.wait_and_drop_stored(js, [sent, waiting])
    assert [payload for each in left for payload in each.payloads.to_pylist()] == [str(i) for i in range(20, 30)]


def test_rows_that_have_waited_to_be_sent_again_for_longer_than_the_window_are_looked_for_first(
    server_factory: ServerFactory,
) -> None:
    url = server_factory().url
    with NatsPy(url) as client:
        client.create_stream("S", subjects=["S.>"], duplicate_window=100_000_000)
        with publishing(url, "S") as publisher:
            client.publish_acked([("S.x", str(i).encode(), {MSG_ID: str(i)}) for i in range(5)])
            seen = ("S.y", b"-1", {MSG_ID: "-1"})
            (first,) = client.publish_acked([seen])
            wait_until(lambda: client.publish_acked([seen]) != [first])  # forgotten, and so are the others
            publisher._ledger.given = 10
            publisher._ledger.queue.append(rows_of(range(10), since=clock.monotonic() - 60, again=True))
            publisher.wait_for_sent_rows()
            assert publisher.stored == 10
        assert sorted(i for i in stored(client, "S") if i >= 0) == list(range(10))


@pytest.mark.parametrize("direct", [False, True])
def test_rows_of_an_earlier_attempt_at_a_work_queue_are_not_stored_twice_once_their_ids_may_be_forgotten(
    server_factory: ServerFactory, direct: bool
) -> None:
    """A server that is killed knows no id where the last message had been taken."""
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", subjects=["S.>"], retention="workqueue", allow_direct=direct)
        client.publish_acked([("S.x", str(i).encode(), {MSG_ID: str(i)}) for i in range(20)])
        client.delete_message("S", client.publish_acked([("S.x", b"", None)])[0])
        why = "1 of them" if direct and server_version() >= (2, 11) else "workqueue retention, and cannot be read back"
        with (
            pytest.raises(PublishError, match=f"it is unknown whether .*{why}.*; none of this task's rows was stored"),
            publishing(server.url, "S", exact=True, since=0) as publisher,
        ):
            server.kill()
            server.start()
            give(publisher, "S", range(30))
            publisher.wait_for_sent_rows()
        assert client.held("S") == 20


# Streams without a leader


def away_from(cluster: Cluster, stream: str) -> tuple[NatsServer, str]:
    """Make a stream with one replica; its server, and where the others are."""
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(stream)
        wait_until(lambda: has_leader(client, stream))
        home = cluster.of(client.stream_info(stream)["cluster"]["leader"])
    return home, ",".join(server.url for server in cluster.servers if server is not home)


def test_rows_of_another_attempt_are_not_stored_twice_when_a_stream_is_back_that_was_away(
    cluster: Cluster, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is killed knows no id where the last message had been deleted."""
    caplog.set_level(logging.INFO, logger="spark_nats")
    home, others = away_from(cluster, unique)
    with NatsPy(home.url) as client:
        client.publish_acked([(f"{unique}.x", str(i).encode(), {MSG_ID: str(i)}) for i in range(20)])
        client.delete_message(unique, client.publish_acked([(f"{unique}.x", b"", None)])[0])
    with publishing(others, unique, request_timeout=0.3, ack_timeout=120.0, exact=True, since=0) as publisher:
        home.kill()
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(lambda: (give(publisher, unique, range(30)), publisher.wait_for_sent_rows()))
            wait_until(lambda: "does not accept rows at the moment" in caplog.text)
            home.start()
            with pytest.raises(PublishError, match=r"it is unknown .*1 of them.*; none of this task's rows was stored"):
                rest.result(60)
    with NatsPy(home.url) as client:
        assert client.held(unique) == 20


def test_a_stream_whose_server_is_away_is_waited_for(
    cluster: Cluster, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spark_nats")
    home, others = away_from(cluster, unique)
    with publishing(others, unique, request_timeout=0.3, ack_timeout=120.0) as publisher:
        give(publisher, unique, range(PART), with_ids=False)
        publisher.wait_for_sent_rows()
        home.kill()
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(lambda: (give(publisher, unique, range(PART, 2 * PART)), publisher.wait_for_sent_rows()))
            unheard = ("does not accept rows at the moment", "it is unknown which of")
            wait_until(lambda: any(words in caplog.text for words in unheard))
            assert not rest.done()
            home.start()
            rest.result(60)
        assert publisher.stored == 2 * PART
    with NatsPy(home.url) as client:
        wait_until(lambda: has_leader(client, unique))
        # One by one: the answer to who makes a consumer is easily lost while the server comes back.
        found = [client.api(f"STREAM.MSG.GET.{unique}", {"seq": i + 1})["message"] for i in range(2 * PART)]
        assert sorted(int(base64.b64decode(each["data"])) for each in found) == list(range(2 * PART))
        assert client.held(unique) == 2 * PART


def test_a_stream_that_stays_away_is_told_from_one_that_does_not_exist(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "LOST_AFTER", 0.2)
    home, others = away_from(cluster, unique)
    try:
        with (
            pytest.raises(PublishError, match="has had no leader, or JetStream is not ready .*full disk"),
            publishing(others, unique, request_timeout=0.3, ack_timeout=0.5) as publisher,
        ):
            home.kill()
            give(publisher, unique, range(PART))
            publisher.wait_for_sent_rows()
    finally:
        home.start()


def test_a_stream_that_is_deleted_meanwhile_is_told_at_once(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client, pytest.raises(PublishError, match="the stream 'S' does not exist"):
        client.create_stream("S", subjects=["S.>"])
        with publishing(server.url, "S") as publisher:
            client.delete_stream("S")
            give(publisher, "S", range(10))
            publisher.wait_for_sent_rows()


def has_leader(client: NatsPy, stream: str) -> bool:
    try:
        return bool(client.stream_info(stream)["cluster"].get("leader"))
    except (APIError, TimeoutError):
        return False


def is_whole(client: NatsPy, stream: str) -> bool:
    """Whether a stream has a leader, and two followers that have what it has."""
    try:
        described = client.stream_info(stream)["cluster"]
    except (APIError, TimeoutError):
        return False
    followers = described.get("replicas") or []
    return bool(described.get("leader")) and [each["current"] for each in followers] == [True, True]


def stepped_down(client: NatsPy, stream: str) -> None:
    client.api(f"STREAM.LEADER.STEPDOWN.{stream}")


@pytest.mark.long("spark_nats/jetstream/*", races="eight elections")
def test_every_row_is_stored_once_while_the_leader_steps_down_again_and_again(cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3, duplicate_window=FORGOTTEN_SOON)
        wait_until(lambda: is_whole(client, unique))

        def step_down() -> None:
            wait_until(lambda: is_whole(client, unique))
            with contextlib.suppress(APIError, TimeoutError):  # what was asked may have no answer any more
                stepped_down(client, unique)

        end = 0
        with publishing(cluster.urls, unique) as publisher:
            with meanwhile(step_down, 0.3, 8) as going_on:
                while not going_on.done():
                    give(publisher, unique, range(end, end + PART))
                    end += PART
            publisher.wait_for_sent_rows()
            publisher.check_nothing_lost()
        assert Counter(stored(client, unique)) == Counter(range(end))


@pytest.mark.long("spark_nats/jetstream/publishing/*", races="an election, while rows are in flight")
@pytest.mark.promise("writing#spark-to-stream", "durability#killed")
def test_every_row_is_stored_once_though_the_leader_is_killed(cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3)
        wait_until(lambda: is_whole(client, unique), timeout=120)
        leader = cluster.of(client.stream_info(unique)["cluster"]["leader"])
        with publishing(cluster.urls, unique, ack_timeout=120.0) as publisher:
            give(publisher, unique, range(20 * PART))
            leader.kill()
            try:
                give(publisher, unique, range(20 * PART, 40 * PART))
                publisher.wait_for_sent_rows()
                publisher.check_nothing_lost()
                assert Counter(stored(client, unique)) == Counter(range(40 * PART))
            finally:
                leader.start()


@pytest.mark.long("spark_nats/jetstream/publishing/*", races="a server that shuts down, while rows are in flight")
def test_a_server_that_shuts_down_in_peace_is_left_in_time(cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3)
        wait_until(lambda: is_whole(client, unique))
        with leased(options_for(cluster.urls), RETRIES, "publishing") as lease:
            publisher = publisher_for(lease.connection, unique, lease=lease)
            give(publisher, unique, range(PART), with_ids=False)
            publisher.wait_for_sent_rows()
            before = lease.connection
            server = next(each for each in cluster.servers if each.url == str(before.server))
            assert server.pid
            os.kill(server.pid, signal.SIGUSR2)
            try:
                end = PART

                def has_moved() -> bool:
                    nonlocal end
                    give(publisher, unique, range(end, end + 10), with_ids=False)
                    end += 10
                    return lease.connection is not before

                wait_until(has_moved)
                publisher.wait_for_sent_rows()
                assert lease.connection.server != before.server
            finally:
                server.kill()
                server.start()
        assert sorted(stored(client, unique)) == list(range(end))


@since(2, 14)  # older ones refuse the row, and say why
def test_a_disk_that_is_full_is_told(server_factory: ServerFactory, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        server = server_factory("jetstream { max_file_store: 1GB }", store_dir=small / "store")
        with connect(options_for(server.url)) as connection:
            create_stream_if_missing(JetStream(connection), {"name": "S", "subjects": ["S.>"]})
        count = 0
        with pytest.raises(NatsError) as raised, publishing(server.url, "S", ack_timeout=1.0) as publisher:
            for i in range(100):
                subjects = pa.array([f"S.{i}"] * 100)
                publisher.publish(subjects, pa.array([b"x" * 10_000] * 100))
                count += 100
            publisher.wait_for_sent_rows()
        assert count < 10_000, "all rows were sent"
        assert "though it is there: maybe it cannot store, as when a disk is full" in str(raised.value)
        server.stop()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


# Core NATS


@pytest.mark.promise("exactly-once#spark-to-core")
def test_every_row_reaches_core_nats_at_least_once_however_often_the_connection_is_cut(
    proxied: tuple[NatsServer, Proxy],
) -> None:
    server, proxy = proxied
    with NatsPy(server.url) as client, client.collect("C.>") as collected:
        options = options_for(proxy.url, request_timeout=2.0, connect_timeout=2.0)
        with leased(options, RETRIES, "publishing") as lease:
            publisher = CorePublisher(lease)
            end = 0
            with meanwhile(lambda: HARMS["cut"](proxy), 0.05, 5) as going_on:
                while not going_on.done():
                    give(publisher, "C", range(end, end + PART))
                    end += PART
            publisher.wait_for_sent_rows()
            assert publisher.confirmed == end
        wait_until(lambda: len({int(message.payload) for message in collected.messages}) == end)


def test_a_refused_row_is_not_sent_again(server_factory: ServerFactory) -> None:
    server = server_factory(
        'authorization: { users: [{user: u, password: p, permissions: { publish: { deny: ["no"] } }}] }'
    )
    options = options_for(server.url.replace("nats://", "nats://u:p@"))
    with pytest.raises(NatsError, match="refused: Permissions Violation"), leased(options, RETRIES, "x") as lease:
        publisher = CorePublisher(lease)
        publisher.publish(pa.array(["no"]), pa.array([b""]))
        publisher.wait_for_sent_rows()
