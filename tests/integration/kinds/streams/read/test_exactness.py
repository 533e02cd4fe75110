"""Every message of a range exactly once, or an error that names what is missing: replicas that lag, limits that remove
while a task reads, streams that are made again, rows that are taken slowly, limits of streams and accounts."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader

from spark_nats.client import connect
from spark_nats.client.pool import leased
from spark_nats.errors import DataLossError, JetStreamError, NatsError, OptionError
from spark_nats.jetstream import JetStream, read_range
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.consuming.consumers import create_making_room
from spark_nats.jetstream.reading import delivering, direct, pulls, ranges, searching
from spark_nats.jetstream.reading.ranges import Range, RangeReader
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.streams.read import idling
from spark_nats.protocol.consumers import ConsumerInfo
from tests.connections import options_for, patience, publisher_for, retries_for
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import (
    MESSAGE,
    Query,
    batch_reader,
    batch_sequences,
    monitoring,
    read_sequences,
    repeating,
    sequences_of,
    stream_reader,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, Server, ServerFactory

# A replica that lags


@pytest.fixture
def api(nats_py: NatsPy) -> Iterator[ForwardedApi]:
    with ForwardedApi(nats_py).serving() as serving:
        yield serving


def empty_at_first(times: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Consumers say that there is nothing, as those do whose replica lags; after so many times the truth."""
    left = [times]

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        left[0] -= 1
        return {**answer, "num_pending": 0} if left[0] >= 0 else answer

    return change


@pytest.mark.needs("direct batches")
@pytest.mark.parametrize("options", [{}, {"subject": "{}.1"}, {"minPartitions": 3}], ids=str)
def test_small_partitions_are_read_without_consumers(
    nats_server: Server, nats_py: NatsPy, unique: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a consumer was made")

    monkeypatch.setattr(consumers, "create_making_room", refuse)
    monkeypatch.setattr(delivering, "PATIENCE", 30.0)  # a slow answer would be a reason for one
    nats_py.create_stream(unique, allow_direct=True)
    nats_py.publish_acked((f"{unique}.{i % 3}", b"") for i in range(1, 301))
    nats_py.delete_message(unique, 100)
    options = {name: str(value).format(unique) for name, value in options.items()}
    wanted = [s for s in range(1, 301) if s != 100 and ("subject" not in options or s % 3 == 1)]
    assert read_sequences(nats_server, stream=unique, **options) == wanted
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest", **options))
    assert sequences_of(query.rows(len(wanted))) == wanted


@pytest.mark.parametrize("filters", [(), ("1", "2")])
def test_a_consumer_that_knows_of_nothing_does_not_end_a_range(
    js: JetStream,
    nats_py: NatsPy,
    unique: str,
    api: ForwardedApi,
    filters: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searching, "TRIAL", 60.0)  # or the search changes sides, which takes another consumer
    nats_py.create_stream(unique)
    nats_py.publish_acked((f"{unique}.{i % 3}", b"") for i in range(1, 301))
    api.answers["CONSUMER.CREATE"] = empty_at_first(3)
    subjects = [f"{unique}.{name}" for name in filters]
    read = read_range(JetStream(js.connection, ForwardedApi.PREFIX), unique, 1, 301, subjects, retries=patience())
    found = [sequence for _, deliveries in read for sequence in deliveries.stream_sequences().tolist()]
    assert found == [i for i in range(1, 301) if not filters or str(i % 3) in filters]
    assert api.count("CONSUMER.CREATE") == 4


def test_a_replica_that_never_catches_up_is_given_up_with_a_sentence(
    js: JetStream, nats_py: NatsPy, unique: str, api: ForwardedApi
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    api.answers["CONSUMER.CREATE"] = empty_at_first(10_000)
    sentence = "stopped delivering at sequence 1, before 4: its replica has no more .*; tried for 0.5 s"
    with pytest.raises(JetStreamError, match=sentence):
        list(read_range(JetStream(js.connection, ForwardedApi.PREFIX), unique, 1, 4, retries=patience(0.5)))


def test_a_consumer_that_begins_too_early_or_too_late_is_not_used(
    js: JetStream, nats_py: NatsPy, unique: str, api: ForwardedApi
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 30)
    begins = iter([4, 20, 9])

    def elsewhere(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "delivered": {"consumer_seq": 0, "stream_seq": next(begins)}}

    api.answers["CONSUMER.CREATE"] = elsewhere
    read = read_range(JetStream(js.connection, ForwardedApi.PREFIX), unique, 10, 31, retries=patience())
    assert [s for _, deliveries in read for s in deliveries.stream_sequences().tolist()] == list(range(10, 31))


def test_a_range_that_ends_with_its_last_message_asks_nothing_more(
    js: JetStream, nats_py: NatsPy, unique: str, api: ForwardedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "PATIENCE", 60.0)  # after a silence it would look at the stream
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 30)
    assert len(list(read_range(JetStream(js.connection, ForwardedApi.PREFIX), unique, 1, 31))) >= 1
    wait_until(lambda: api.count("CONSUMER.DELETE") == 1)  # which the reader does not wait for
    assert [api.count(o) for o in ("CONSUMER.CREATE", "STREAM.INFO", "STREAM.MSG.GET")] == [1, 1, 0]


def store_if_led(client: NatsPy, stream: str) -> int:
    """Publish another message; return the last sequence if some leader took it."""
    with suppress(Exception):
        return int(json.loads(client.request(f"{stream}.x", b"x", timeout=0.5).payload).get("seq", 0))
    return 0


@pytest.mark.promise("writing#stream-to-spark")
@pytest.mark.long(
    "spark_nats/jetstream/streams.py",
    "spark_nats/kinds/streams/read/*",
    races="the election of another leader while the one before is stopped",
)
def test_a_batch_read_has_what_was_stored_while_the_leader_that_it_asks_was_stopped(
    cluster: Cluster, unique: str
) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, num_replicas=3)
        leader = cluster.of(client.stream_info(unique)["cluster"]["leader"])
    other = next(server for server in cluster.servers if server is not leader)
    reader = batch_reader(leader, stream=unique, connectTimeout="30s", requestTimeout="30s")
    reader.partitions()  # so that a connection to it is there
    with ThreadPoolExecutor(1) as pool, NatsPy(other.url) as client:
        with cluster.paused(leader):
            planned = pool.submit(reader.partitions)
            wait_until(lambda: store_if_led(client, unique) >= 20)
        assert sum(each.size for each in planned.result(60)) >= 20


@pytest.mark.promise("durability#one-volume-restored")
@pytest.mark.long("spark_nats/jetstream/*", races="followers that restart while rows are stored and read")
@pytest.mark.timeout(240)
def test_every_read_is_whole_while_followers_restart_with_and_without_their_stores(
    cluster: Cluster, unique: str
) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, num_replicas=3)
        leader = cluster.of(client.stream_info(unique)["cluster"]["leader"])
    options = options_for(leader.url)
    followers = [server for server in cluster.servers if server is not leader]
    ended = threading.Event()
    failures: list[BaseException] = []

    def in_background(act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not ended.is_set():
                    act()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def publish_more() -> None:
        with connect(options) as connection:
            publisher = publisher_for(connection, unique, 256, 60.0)
            while not ended.wait(0.02):
                publisher.publish(pa.array([f"{unique}.x"] * 500), pa.array([b"x" * 100] * 500))
                publisher.wait_for_sent_rows()

    restarts: list[bool] = []

    def restart_one() -> None:
        cluster.restart(followers[len(restarts) % 2], wipe=len(restarts) % 4 > 1)
        restarts.append(True)
        ended.wait(0.5)

    threads = [in_background(publish_more)]
    try:
        with leased(options, retries_for(wait=0.1), "reading") as lease:

            def last() -> int:
                return lease.ask_with_retries(
                    lambda connection: ask_stream_info(JetStream(connection), unique)
                ).last_sequence

            def read(start: int, end: int) -> int:
                """Read as a task does, which goes elsewhere when its server has lost sight of the others."""
                reader, count = RangeReader(Range(unique, None, start, end), retries=lease.retries), 0
                while reader.cursor.delivered < end:
                    try:
                        for messages, _ in reader.read(JetStream(lease.connection)):
                            count += len(messages)
                    except NatsError as error:
                        lease.reconnect_or_raise(error)
                return count

            wait_until(lambda: failures or last() > 5000)
            threads.append(in_background(restart_one))
            short, reads = [], 0
            while not failures and (reads < 200 or len(restarts) < 4):
                reads += 1
                end = last() + 1
                if (found := read(end - 1000, end)) != 1000:
                    short.append(found)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert short == []


# Limits that remove while a task reads


def paused_after_first(client: NatsPy, stream: str, reader: DataSourceReader, act: Callable[[], object]) -> list[int]:
    """Read the only partition, and do something after its first batch, when all has been sent that was asked for."""
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    found = next(batches).column("sequence").to_pylist()
    wait_until(lambda: all(each["num_waiting"] == 0 for each in client.api(f"CONSUMER.LIST.{stream}")["consumers"]))
    act()
    return [*found, *batch_sequences(batches)]


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be under way when the first rows are handed on that a later removal could not reach."""
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 100)


@pytest.mark.promise("writing#stream-to-spark")
@pytest.mark.usefixtures("small_requests")
def test_what_the_limits_remove_while_a_task_reads_is_named(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, max_msgs=2000)
    nats_py.store_empty(unique, 2000)

    def remove() -> None:
        nats_py.store_empty(unique, 1500)

    with pytest.raises(DataLossError, match=r"now begins at sequence 1501; sequences [0-9]+ to 1500, which were") as e:
        paused_after_first(nats_py, unique, batch_reader(nats_server, stream=unique), remove)
    assert "'failOnDataLoss'" in str(e.value)


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("subject", [None, "x"])
def test_without_fail_on_data_loss_rows_and_losses_together_are_the_range(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture, subject: str | None
) -> None:
    nats_py.create_stream(unique, max_msgs=2000)
    nats_py.store_empty(unique, 2000)
    options = {"failOnDataLoss": False, "startingOffsets": f'{{"{unique}": 1}}'}
    if subject:
        options["subject"] = f"{unique}.{subject}"
    with caplog.at_level(logging.WARNING):
        found = paused_after_first(
            nats_py,
            unique,
            batch_reader(nats_server, stream=unique, **options),
            lambda: nats_py.store_empty(unique, 1500),
        )
    (record,) = [r for r in caplog.records if "are lost" in r.getMessage()]
    first, last = record.getMessage().split("sequences ")[1].split(",")[0].split(" to ")
    assert found == [*range(1, int(first)), *range(int(last) + 1, 2001)]
    assert int(last) == 1500


@pytest.mark.usefixtures("small_requests")
def test_a_loss_is_named_though_the_reader_is_about_to_change_sides_when_the_range_ends(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_JUDGE_INTERVAL", math.inf)  # so that nothing is judged before the end
    monkeypatch.setattr(searching.FilterPlacement, "change_if_slow", lambda _, seconds, passed, left: left <= 0)
    nats_py.create_stream(unique, max_msgs=2000)
    nats_py.publish_acked((f"{unique}.{i % 2}", b"") for i in range(1, 2001))
    reader = batch_reader(nats_server, stream=unique, subject=f"{unique}.0")
    with pytest.raises(DataLossError, match="now begins at sequence 1501; sequences .*, which were"):
        paused_after_first(nats_py, unique, reader, lambda: nats_py.store_empty(unique, 1500))


@pytest.mark.usefixtures("small_requests")
def test_messages_that_grow_too_old_while_a_task_reads_are_named_and_not_waited_for(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    config = nats_py.create_stream(unique, duplicate_window=100_000_000)["config"]
    nats_py.store_empty(unique, 1000)

    def wait() -> None:
        nats_py.api(f"STREAM.UPDATE.{unique}", {**config, "max_age": 100_000_000})  # the server takes no less
        wait_until(lambda: nats_py.held(unique) == 0)

    with pytest.raises(DataLossError, match=r"now begins at sequence 1001; sequences [0-9]+ to 1000, which were"):
        paused_after_first(nats_py, unique, batch_reader(nats_server, stream=unique), wait)


@pytest.mark.usefixtures("small_requests")
def test_messages_deleted_one_by_one_while_a_task_reads_are_no_loss(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 1000)
    nats_py.delete_message(unique, 300)

    def delete() -> None:
        for sequence in (500, 501, 999, 1000):
            nats_py.delete_message(unique, sequence)

    found = paused_after_first(nats_py, unique, batch_reader(nats_server, stream=unique), delete)
    assert found == [s for s in range(1, 1001) if s not in (300, 500, 501, 999, 1000)]


@pytest.mark.usefixtures("small_requests")
def test_a_stream_made_again_while_a_task_reads_is_not_mixed_with_the_old_one(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    def make_again() -> None:
        nats_py.delete_stream(unique)
        nats_py.create_stream(unique)
        nats_py.store_empty(unique, 2000)

    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 2000)
    with pytest.raises(DataLossError, match=r"was deleted and created again at .*; sequences [0-9]+ to 2000, which"):
        paused_after_first(nats_py, unique, batch_reader(nats_server, stream=unique), make_again)
    with caplog.at_level(logging.WARNING):
        found = paused_after_first(
            nats_py, unique, batch_reader(nats_server, stream=unique, failOnDataLoss=False), make_again
        )
    assert found == list(range(1, len(found) + 1))
    assert f"sequences {len(found) + 1} to 2000, which were about to be read, are lost" in caplog.text


@pytest.mark.usefixtures("small_requests")
def test_a_stream_deleted_while_a_task_reads_ends_it_with_what_is_lost(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    for options in ({}, {"failOnDataLoss": False}):
        nats_py.create_stream(unique)
        nats_py.store_empty(unique, 2000)
        reader = batch_reader(nats_server, stream=unique, **options)
        if not options:
            with pytest.raises(DataLossError, match=r"the stream '.*' was deleted; sequences [0-9]+ to 2000, which"):
                paused_after_first(nats_py, unique, reader, lambda: nats_py.delete_stream(unique))
            continue
        with caplog.at_level(logging.WARNING):
            found = paused_after_first(nats_py, unique, reader, lambda: nats_py.delete_stream(unique))
        assert found == list(range(1, len(found) + 1))
        assert f"was deleted; sequences {len(found) + 1} to 2000, which were about to be read, are lost" in caplog.text


# A stream whose beginning moves


@contextmanager
def publishing_fast(server: Server, stream: str) -> Iterator[list[int]]:
    """Publish while the block runs; yields a list with the number of messages so far."""
    count = [0]
    with connect(options_for(server.url)) as connection:
        publisher = publisher_for(connection, stream, 500, 60.0)

        def publish() -> None:
            publisher.publish(pa.array([f"{stream}.x"] * 500), pa.array([b"x" * 50] * 500))
            publisher.wait_for_sent_rows()
            count[0] += 500

        with repeating(publish, pause=0.0):
            yield count


@pytest.mark.parametrize("starting", [{}, {"startingTimestamp": "2020-01-01"}])
def test_a_busy_stream_can_be_read_from_its_beginning(
    nats_server: Server, nats_py: NatsPy, unique: str, starting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning moves after the plan, and when there is a consumer that has delivered nothing yet."""
    nats_py.create_stream(unique, max_msgs=2000)
    nats_py.store_empty(unique, 2000)

    def made_in_time(*arguments: Any) -> ConsumerInfo:
        made = create_making_room(*arguments)
        nats_py.store_empty(unique, 500)
        return made

    monkeypatch.setattr(consumers, "create_making_room", made_in_time)
    reader = batch_reader(nats_server, stream=unique, **starting)
    (partition,) = reader.partitions()
    nats_py.store_empty(unique, 500)
    assert batch_sequences(reader.read(partition)) == list(range(1001, 2001))


def test_a_streaming_query_from_earliest_begins_with_what_there_is(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique, max_msgs=1000)
    nats_py.store_empty(unique, 1000)
    reader = stream_reader(nats_server, stream=unique, startingOffsets="earliest")
    start = reader.initialOffset()
    nats_py.store_empty(unique, 300)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    nats_py.store_empty(unique, 200)
    (partition,) = reader.partitions(start, end)
    with caplog.at_level(logging.WARNING):
        assert batch_sequences(reader.read(partition)) == list(range(501, 1301))
    assert "sequences 301 to 500 were removed before the first message was read" in caplog.text
    nats_py.store_empty(unique, 1000)  # from the second micro-batch on it is a loss
    with pytest.raises(DataLossError, match="sequences 1301 to 1500, which the query had not read yet, are lost"):
        reader.latestOffset(end, reader.getDefaultReadLimit())


@pytest.mark.long("spark_nats/jetstream/*", races="a publisher, and limits that remove what is about to be read")
@pytest.mark.parametrize("limit", [{"max_msgs": 20_000}, {"max_age": 500_000_000}, {"max_bytes": 3_000_000}])
def test_under_a_publisher_at_full_speed_every_row_is_right_and_what_is_missing_is_named(
    nats_server: Server, nats_py: NatsPy, unique: str, limit: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique, **limit)
    reader = stream_reader(
        nats_server, stream=unique, startingOffsets="earliest", failOnDataLoss=False, maxRecordsPerPartition=5000
    )
    seen = named = 0
    with publishing_fast(nats_server, unique) as count, caplog.at_level(logging.WARNING):
        wait_until(lambda: count[0] > 30_000)
        offset = reader.initialOffset()
        position = offset[unique]["next"]
        until = time.monotonic() + 8
        while time.monotonic() < until:
            caplog.clear()
            end = reader.latestOffset(offset, reader.getDefaultReadLimit())
            found = [s for partition in reader.partitions(offset, end) for s in batch_sequences(reader.read(partition))]
            missing = set(range(position, end[unique]["next"])) - set(found)
            assert len(found) == len(set(found))
            assert found == sorted(found)
            for record in caplog.records:
                missing -= sequences_in(record.getMessage())
            assert not missing
            seen += len(found)
            named += end[unique]["next"] - position - len(found)
            offset, position = end, end[unique]["next"]
    assert seen


def sequences_in(sentence: str) -> set[int]:
    """The sequences that a sentence names: `sequences 1 to 3, 5 and 7 to 9, which …`."""
    listed = sentence.split("sequence")[-1].removeprefix("s ").split(", which")[0].split(" were removed")[0]
    found: set[int] = set()
    for part in listed.replace(" and ", ", ").split(", "):
        first, _, last = part.strip().partition(" to ")
        found |= set(range(int(first), int(last or first) + 1))
    return found


# Rows that are taken slowly


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_task_whose_rows_are_taken_slowly_comes_to_its_end(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    """The server closes a connection that does not take bytes for half a second here, not for ten seconds."""
    server = server_factory('write_deadline: "500ms"')
    monkeypatch.setattr(delivering, "SLOW", 0.1)
    monkeypatch.setattr(pulls, "PULL_BYTES", 16 << 20)  # more than the sockets hold
    monkeypatch.setattr(direct, "BATCH_BYTES", 16 << 20)
    with NatsPy(server.url) as client:
        client.create_stream("S", retention=retention, allow_direct=True)
        client.store("S.x", [b"x" * 10_000] * 2000)
    reader = batch_reader(server, MESSAGE, stream="S", peek=True)
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    found = next(batches).column("sequence").to_pylist()
    wait_until(lambda: monitoring(server, "varz")["slow_consumers"])
    for batch in batches:
        found += batch.column("sequence").to_pylist()
    assert found == list(range(1, 2001))


# Limits of streams and accounts


def test_the_most_messages_of_a_pull_request_are_asked_for_where_they_are_limited(
    server_factory: ServerFactory,
) -> None:
    server = server_factory("jetstream { limits { max_request_batch: 500 } }")
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.store_empty("S", 3000)
    reader = batch_reader(server, stream="S")
    assert batch_sequences(reader.read(reader.partitions()[0])) == list(range(1, 3001))


def test_a_pull_request_that_is_too_large_is_made_smaller(
    js: JetStream, nats_py: NatsPy, unique: str, api: ForwardedApi
) -> None:
    """As a server does that does not say so before: here a consumer's own limit, which is hidden from its reader."""

    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 100)
    api.requests["CONSUMER.CREATE"] = lambda request: {**request, "config": {**request["config"], "max_batch": 7}}
    api.answers["CONSUMER.CREATE"] = lambda answer: {**answer, "config": {**answer["config"], "max_batch": 0}}
    read = read_range(JetStream(js.connection, ForwardedApi.PREFIX), unique, 1, 101)
    assert [s for _, deliveries in read for s in deliveries.stream_sequences().tolist()] == list(range(1, 101))


def test_consumers_live_no_longer_than_the_stream_lets_them(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, consumer_limits={"inactive_threshold": 10_000_000_000})
    nats_py.store_empty(unique, 100)
    reader = batch_reader(nats_server, stream=unique)
    assert batch_sequences(reader.read(reader.partitions()[0])) == list(range(1, 101))


def test_tasks_wait_for_a_place_where_a_stream_may_have_few_consumers(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, max_consumers=2)
    nats_py.store_empty(unique, 800)
    reader = batch_reader(nats_server, stream=unique, minPartitions=8)
    with ThreadPoolExecutor(8) as pool:
        found = [s for part in pool.map(lambda p: batch_sequences(reader.read(p)), reader.partitions()) for s in part]
    assert found == list(range(1, 801))


def test_a_place_that_does_not_become_free_is_an_error_that_says_what_to_do(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PLACE_TIMEOUT", 0.5)
    nats_py.create_stream(unique, max_consumers=1)
    nats_py.store_empty(unique, 10)
    config = {"durable_name": "other", "ack_policy": "explicit"}
    nats_py.api(f"CONSUMER.DURABLE.CREATE.{unique}.other", {"stream_name": unique, "config": config})
    reader = batch_reader(nats_server, stream=unique)
    with pytest.raises(JetStreamError, match=r"for 0.5 s \(max_consumers .* each task .* raise the limit, or run"):
        batch_sequences(reader.read(reader.partitions()[0]))


@pytest.mark.needs("consumer limit")
def test_the_limit_of_the_server_itself_is_named_too(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PLACE_TIMEOUT", 0.5)
    server = server_factory("jetstream { limits { default_max_consumers: 1 } }")
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", ["orders"])
        client.store("orders", [b""] * 10)
        config = {"durable_name": "other", "ack_policy": "explicit"}
        client.api("CONSUMER.DURABLE.CREATE.ORDERS.other", {"stream_name": "ORDERS", "config": config})
    reader = batch_reader(server, stream="ORDERS")
    with pytest.raises(JetStreamError, match="where neither is set default_max_consumers of the server"):
        batch_sequences(reader.read(reader.partitions()[0]))


# Filters


@pytest.mark.usefixtures("small_requests")
def test_a_search_that_changes_sides_leaves_nothing_out(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(searching, "TRIAL", 0.0)
    monkeypatch.setattr(searching, "_SEQUENCE", 1e-12)  # so that searching here promises to be faster
    monkeypatch.setattr(searching, "_BYTE", 0.0)
    nats_py.create_stream(unique)
    nats_py.publish_acked((f"{unique}.{i % 3}", b"") for i in range(1, 3001))
    reader = batch_reader(nats_server, stream=unique, subject=f"{unique}.1")
    (partition,) = reader.partitions()
    with caplog.at_level(logging.DEBUG):
        assert batch_sequences(reader.read(partition)) == list(range(1, 3001, 3))
    assert f"stream {unique}, sequences 1 to 3000: the server searches" in caplog.text
    assert "to 3000: all is sent and searched here" in caplog.text


# What a micro-batch is planned from


def micro_batches(reader: Any, offset: dict[str, Any]) -> list[list[int]]:
    """Read on until there is nothing more, with a maximum of messages for each micro-batch."""
    found = []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        found.append([s for p in reader.partitions(offset, end) for s in batch_sequences(reader.read(p))])
        offset = end
    return found


@pytest.mark.parametrize("subject", [{}, {"subject": "x"}])
def test_holes_make_no_empty_micro_batches(
    nats_server: Server, nats_py: NatsPy, unique: str, subject: dict[str, str]
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked((f"{unique}.{'x' if i in (1, 250, 500) else 'gone'}", b"") for i in range(1, 501))
    nats_py.purge_stream(unique, filter=f"{unique}.gone")
    options = {name: f"{unique}.{value}" for name, value in subject.items()}
    reader = stream_reader(nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=10, **options)
    assert micro_batches(reader, reader.initialOffset()) == [[1, 250], [500]]  # each ends with a message


def test_a_micro_batch_is_planned_from_its_offsets_and_nothing_else(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idling, "LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(idling, "MAX_QUIET", 0.0)
    nats_py.create_stream(unique)
    options = {"startingOffsets": "earliest", "subject": f"{unique}.rare", "minPartitions": 2}
    first = stream_reader(nats_server, stream=unique, **options)
    nats_py.store_empty(unique, 10, "rare")
    start = first.initialOffset()
    begun = first.latestOffset(start, first.getDefaultReadLimit())
    nats_py.store_empty(unique, 500, "other")
    assert first.latestOffset(begun, first.getDefaultReadLimit()) == begun  # searched in vain
    nats_py.store_empty(unique, 500, "rare")
    end = first.latestOffset(begun, first.getDefaultReadLimit())
    plan = first.partitions(begun, end)
    nats_py.purge_stream(unique, seq=400)
    after_restart = stream_reader(nats_server, stream=unique, **options)
    assert after_restart.partitions(begun, end) == plan
    assert [s for p in plan for s in batch_sequences(after_restart.read(p))] == list(range(511, 1011))


def test_a_query_that_has_reached_its_target_has_nothing_more_to_do(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 25)
    reader = stream_reader(nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    nats_py.store_empty(unique, 30)
    assert micro_batches(reader, start) == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]


@pytest.mark.promise("writing#stream-to-spark", "exactly-once#stream-to-spark")
def test_the_first_micro_batch_is_the_same_when_a_new_query_is_started_again(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Spark keeps no offset before the first micro-batch: it asks again where the query begins."""
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    query = stream_reader(nats_server, stream=unique)  # from latest
    start = query.initialOffset()
    nats_py.store_empty(unique, 10)
    end = query.latestOffset(start, query.getDefaultReadLimit())
    nats_py.store_empty(unique, 10)
    again = stream_reader(nats_server, stream=unique)
    plan = again.partitions(again.initialOffset(), end)
    assert plan == query.partitions(start, end)
    assert [s for p in plan for s in batch_sequences(again.read(p))] == list(range(11, 21))


def test_micro_batches_of_which_the_offsets_were_not_all_kept_are_read_as_one(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """As with Spark's asynchronous progress tracking."""
    nats_py.create_stream(unique)
    reader = stream_reader(nats_server, stream=unique, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    nats_py.store_empty(unique, 30)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    third = reader.latestOffset(second, reader.getDefaultReadLimit())
    assert [s for p in reader.partitions(first, third) for s in batch_sequences(reader.read(p))] == list(range(11, 31))


@pytest.mark.promise("operating#other-version")
def test_checkpoints_without_the_beginning_of_a_micro_batch_are_understood(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    created = nats_py.create_stream(unique)["created"]
    nats_py.store_empty(unique, 30)
    reader = stream_reader(nats_server, stream=unique)
    start, end = ({unique: {"created": created, "next": following}} for following in (6, 21))
    assert [s for p in reader.partitions(start, end) for s in batch_sequences(reader.read(p))] == list(range(6, 21))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"startingTimestamp": "2999-12-31", "endingOffsets": '{"%s": 5}'}, []),
        ({"startingTimestamp": "2999-12-31"}, []),
        ({"startingOffsets": '{"%s": 11}'}, []),
        ({"startingOffsets": '{"%s": 8}', "endingTimestamp": "2020-01-01"}, None),
    ],
)
def test_a_batch_that_begins_in_the_future_is_empty_and_one_that_ends_before_its_beginning_is_refused(
    nats_server: Server, nats_py: NatsPy, unique: str, options: dict[str, str], found: list[int] | None
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    reader = batch_reader(
        nats_server, stream=unique, **{name: value.replace("%s", unique) for name, value in options.items()}
    )
    if found is None:
        with pytest.raises(OptionError, match="ends before sequence 1 but begins at 8; check the starting and"):
            reader.partitions()
    else:
        assert [s for partition in reader.partitions() for s in batch_sequences(reader.read(partition))] == found
