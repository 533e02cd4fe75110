"""How much a micro-batch has, and when there is one: the limits of streaming queries."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import spark_nats
from spark_nats import clock
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.reading import sizes
from spark_nats.kinds.core.backlog import PIECE_OVERHEAD
from spark_nats.kinds.streams.read import idling
from spark_nats.sparkapi import ReadAllAvailable
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import (
    MESSAGE,
    Query,
    finish,
    nats,
    numbers_of,
    running,
    sentence_of,
    sequences_of,
    stream_reader,
    wait_for_subscriptions,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, Server

EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without Spark looks at its streams whenever it is asked."""
    monkeypatch.setattr(idling, "LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(idling, "MAX_QUIET", 0.0)


def query_of(server: Server, stream: str, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
    return Query(stream_reader(server, MESSAGE, stream=stream, **{**EARLIEST, **options}), checkpoint)


def nothing_comes(query: Query) -> bool:
    """Whether a query that is asked again and again, as Spark does it, has nothing to do."""
    return all(query.micro_batch() == [] for _ in range(5))


def test_streams_share_the_messages_of_a_micro_batch(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    names = [f"{unique}_{i}" for i in range(4)]
    for name in names:
        nats_py.create_stream(name)
        nats_py.store(f"{name}.x", range(40))
    query = query_of(nats_server, ",".join(names), maxOffsetsPerTrigger=50)
    assert [len(query.micro_batch()) for _ in range(5)] == [50, 50, 50, 10, 0]


# A minimum


@pytest.mark.promise("reading#at-least-so-many")
def test_a_micro_batch_waits_until_it_is_large_enough(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", range(3))
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10)
    assert numbers_of(query.micro_batch()) == [0, 1, 2]  # the first one waits for nothing
    nats_py.store(f"{unique}.x", range(3, 12))
    assert nothing_comes(query)
    nats_py.store(f"{unique}.x", [12])
    assert numbers_of(query.micro_batch()) == list(range(3, 13))
    assert nothing_comes(query)


@pytest.mark.promise("reading#at-least-so-many")
def test_a_micro_batch_waits_no_longer_than_allowed(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [0])
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    assert numbers_of(query.micro_batch()) == [0]
    nats_py.store(f"{unique}.x", [1])
    assert nothing_comes(query)
    monkeypatch.setattr(clock, "monotonic", lambda: time.monotonic() + 3600)
    assert numbers_of(query.rows(1)) == [1]


def test_the_first_micro_batch_of_a_query_that_begins_with_what_comes_does_not_wait(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10, startingOffsets="latest")
    assert nothing_comes(query)
    nats_py.store(f"{unique}.x", [0])
    assert numbers_of(query.micro_batch()) == [0]


def test_nor_does_the_first_one_after_a_restart_which_goes_on_where_the_query_was(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", range(5))
    query = query_of(nats_server, unique, minOffsetsPerTrigger=3)
    start = query.offset
    end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
    nats_py.store(f"{unique}.x", [5])

    again = query_of(nats_server, unique, checkpoint=start, minOffsetsPerTrigger=3)  # with an unfinished micro-batch
    assert again.reader.partitions(end, end) == []
    assert sum(partition.size for partition in again.reader.partitions(start, end)) == 5
    again.offset = end
    assert numbers_of(again.micro_batch()) == [5]
    nats_py.store(f"{unique}.x", [6])
    assert nothing_comes(again)


def test_a_query_for_what_there_is_waits_for_nothing(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", range(17))
    query = query_of(nats_server, unique, minOffsetsPerTrigger=8, maxOffsetsPerTrigger=10)
    assert list(map(numbers_of, query.available())) == [list(range(10)), list(range(10, 17))]


def test_nor_does_one_that_is_to_read_everything_at_once(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    """As with `Trigger.Once`, for which Spark sets its own limit in the place of ours."""
    nats_py.create_stream(unique)
    query = query_of(nats_server, unique, minOffsetsPerTrigger=8, maxOffsetsPerTrigger=10)
    nats_py.store(f"{unique}.x", range(5))
    assert numbers_of(query.micro_batch()) == list(range(5))
    for count in (3, 30):
        nats_py.store(f"{unique}.x", range(count))
        query.offset = query.reader.latestOffset(query.offset, ReadAllAvailable())
        assert query.offset[unique]["next"] == nats_py.stream_info(unique)["state"]["last_seq"] + 1


def test_what_all_streams_have_counts(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    streams = [f"{unique}_{i}" for i in range(3)]
    for stream in streams:
        nats_py.create_stream(stream)
    query = query_of(nats_server, ",".join(streams), minOffsetsPerTrigger=9)
    nats_py.store(f"{streams[0]}.x", [0])
    assert numbers_of(query.micro_batch()) == [0]
    for stream in streams[:2]:
        nats_py.store(f"{stream}.x", range(4))
    assert nothing_comes(query)
    nats_py.store(f"{streams[2]}.x", [0])
    assert len(query.micro_batch()) == 9


def test_what_has_nothing_for_the_query_before_its_first_message_does_not_count(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [0])
    query = query_of(nats_server, unique, subject=f"{unique}.x", minOffsetsPerTrigger=10)
    assert numbers_of(query.micro_batch()) == [0]
    nats_py.store(f"{unique}.other", range(20))
    query.look(nats_py)
    nats_py.store(f"{unique}.x", range(1, 10))
    assert nothing_comes(query)
    nats_py.purge_stream(unique, seq=22)  # what was searched in vain is no loss, also while the query waits
    assert nothing_comes(query)
    nats_py.store(f"{unique}.x", [10])
    assert numbers_of(query.micro_batch()) == list(range(1, 11))


def test_what_is_lost_while_the_query_waits_is_said_once(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [0])
    queries = {
        fail: query_of(nats_server, unique, minOffsetsPerTrigger=10, failOnDataLoss=fail) for fail in (True, False)
    }
    nats_py.store(f"{unique}.x", range(1, 8))
    for query in queries.values():
        query.micro_batch()
        nats_py.store(f"{unique}.x", range(1, 5))
        assert nothing_comes(query)
    nats_py.purge_stream(unique, seq=15)
    what = "begins at sequence 15: sequences 9 to 14, which the query had not read yet, are lost"
    assert what in sentence_of(queries[True].micro_batch)
    later = queries[False]
    assert sequences_of(later.micro_batch()) == [15, 16]
    assert nothing_comes(later)
    assert len([text for text in caplog.messages if what.split(":")[0] in text]) == 1


def test_what_a_query_does_not_read_may_go_while_it_waits(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, max_msgs=10)
    nats_py.store(f"{unique}.x", [0])
    options = {"subject": f"{unique}.x", "minOffsetsPerTrigger": 3, "maxTriggerDelay": "1h"}
    query = query_of(nats_server, unique, **options)
    assert numbers_of(query.micro_batch()) == [0]
    for _ in range(5):
        nats_py.store(f"{unique}.other", range(6))
        assert nothing_comes(query)
    assert nothing_comes(query_of(nats_server, unique, checkpoint=query.offset, **options))  # nor is it one later
    nats_py.store(f"{unique}.x", [1, 2])
    assert nothing_comes(query)
    nats_py.store(f"{unique}.x", [3])
    assert numbers_of(query.micro_batch()) == [1, 2, 3]


def test_a_stream_that_is_gone_is_said_once_and_the_others_wait_for_more(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumers, "PATIENCE", 0.2)  # with a consumer that is gone with its stream
    streams = [f"{unique}_{i}" for i in range(2)]
    for stream in streams:
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", [0])
    query = query_of(nats_server, ",".join(streams), minOffsetsPerTrigger=3, failOnDataLoss=False)
    assert numbers_of(query.micro_batch()) == [0, 0]
    for count in (1, 2):  # also when it was there again
        nats_py.delete_stream(streams[1])
        assert nothing_comes(query)
        nats_py.store(f"{streams[0]}.x", [1, 2])
        assert nothing_comes(query)
        nats_py.store(f"{streams[0]}.x", [3])
        assert numbers_of(query.micro_batch()) == [1, 2, 3]
        assert caplog.text.count("does not exist any more") == count
        nats_py.create_stream(streams[1])
        nats_py.store(f"{streams[1]}.x", [4])
        assert numbers_of(query.micro_batch()) == [4]
        assert nothing_comes(query)


def test_progress_says_for_how_many_a_query_waits(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [0])
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10)
    query.micro_batch()
    nats_py.store(f"{unique}.x", range(1, 5))
    assert query.micro_batch() == []
    reported = query.reader.reportLatestOffset()
    assert {name: reported[unique][name] for name in ("next", "waits_for")} == {"next": 6, "waits_for": 10}


def test_a_minimum_is_not_more_than_the_maximum(nats_server: Server) -> None:
    sentence = sentence_of(lambda: query_of(nats_server, "S", minOffsetsPerTrigger=11, maxOffsetsPerTrigger=10))
    assert sentence.startswith(
        "OptionError: option 'minOffsetsPerTrigger' is 11, which is more than 'maxOffsetsPerTrigger', 10"
    )


def test_micro_batches_of_core_nats_wait_too_unless_half_of_what_may_wait_does(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    frame = len(f"MSG {unique} 1 1\r\n0\r\n") + PIECE_OVERHEAD
    options = {"minOffsetsPerTrigger": 4, "maxBufferedBytes": 6 * frame}
    query = Query(stream_reader(nats_server, MESSAGE, subject=unique, **options))

    try:
        wait_for_subscriptions(nats_server, unique)
        nats_py.publish(unique, b"0")
        assert numbers_of(query.rows(1)) == [0]
        for number in (1, 2):  # one by one: two that arrive together take less of the buffer
            nats_py.publish(unique, b"%d" % number)
            wait_until(
                lambda: query.micro_batch() == [] and query.reader.reportLatestOffset()["messages"] == number + 1  # noqa: B023
            )
        nats_py.publish(unique, b"3")  # fewer than four, but half of the buffer
        assert numbers_of(query.rows(1)) == [1, 2, 3]
    finally:
        query.reader.stop()


def test_spark_waits_for_the_minimum_and_its_progress_says_so(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", range(3))
    frame = nats(spark.readStream, nats_server, stream=unique, minOffsetsPerTrigger=10, **EARLIEST).load()
    sizes: list[int] = []
    with running(frame.writeStream.foreachBatch(lambda rows, _: sizes.append(rows.count())).start()) as query:
        wait_until(lambda: sizes == [3], timeout=120)
        nats_py.store(f"{unique}.x", range(3, 12))

        def told() -> tuple[Any, ...] | None:
            now = spark_nats.progress(query, {"servers": nats_server.url})
            return now and (now.behind, now.streams[0].waits_for, now.streams[0].catch_up)

        wait_until(lambda: told() == (9, 10, None))
        nats_py.store(f"{unique}.x", [12])
        wait_until(lambda: len(sizes) > 1)
    assert sizes == [3, 10]


# Bytes


def bytes_in(rows: list[dict[str, Any]]) -> int:
    """What the option counts; the headers here have one value each."""
    headers = sum(
        len("NATS/1.0\r\n\r\n") + sum(len(f"{name}: {values[0]}\r\n") for name, values in row["headers"])
        for row in rows
        if row["headers"]
    )
    return headers + sum(len(row["subject"]) + len(row["payload"]) for row in rows)


@pytest.mark.promise("reading#at-most-so-large")
def test_a_micro_batch_has_no_more_bytes_than_allowed(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    subject, headers = f"{unique}.x", {"Nats-Msg-Size": "7", "Other": "value"}
    sizes = [0, 300, 700, 1, 999, 1000, 5, 5, 5, 5000, 3, 400, 400, 400]
    nats_py.publish_acked((subject, b"x" * size, headers if i % 2 else None) for i, size in enumerate(sizes))
    limit = 1100 + len(subject)
    micro_batches = query_of(nats_server, unique, maxBytesPerTrigger=limit, idleTimeout="0.5s").available()
    assert [sequence for rows in micro_batches for sequence in sequences_of(rows)] == list(range(1, 15))
    assert [len(rows) for rows in micro_batches if bytes_in(rows) > limit] == [1]  # the one of 5000 bytes
    for rows, following in pairwise(micro_batches):
        assert bytes_in([*rows, following[0]]) > limit
    wait_until(lambda: not nats_py.consumers(unique))


def test_bytes_behind_those_that_were_measured_are_estimated(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "MEASURED", 20)
    nats_py.create_stream(unique)
    each = 100 + len(f"{unique}.x")
    nats_py.store(f"{unique}.x", [b"x" * 100] * 200)
    query = query_of(nats_server, unique, maxBytesPerTrigger=60 * each)
    assert list(map(len, query.available())) == [60, 60, 60, 20]
    nats_py.store(f"{unique}.x", [b"x" * 100] * 20 + [b"x" * 300] * 100)
    of_larger = 60 * each // (each + 200)
    assert list(map(len, query.available())) == [60, of_larger, of_larger, 60 - 2 * of_larger]


def test_the_smaller_of_both_limits_counts(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    each = 100 + len(f"{unique}.x")
    nats_py.store(f"{unique}.x", [b"x" * 100] * 12)
    for offsets, size, expected in ((5, 9, [5, 5, 2]), (9, 5, [5, 5, 2]), (9, 100, [9, 3])):
        query = query_of(nats_server, unique, maxOffsetsPerTrigger=offsets, maxBytesPerTrigger=size * each)
        assert list(map(len, query.available())) == expected


def test_only_the_bytes_of_the_querys_own_messages_count(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    for _ in range(6):
        nats_py.store(f"{unique}.other", [b"x" * 5000] * 3)
        nats_py.store(f"{unique}.x", [b"x" * 100])
    nats_py.delete_message(unique, 8)
    each = 100 + len(f"{unique}.x")
    query = query_of(nats_server, unique, subject=f"{unique}.x", maxBytesPerTrigger=2 * each + 1)
    assert [sequences_of(rows) for rows in query.available()] == [[4, 12], [16, 20], [24]]


def test_streams_share_the_bytes_of_a_micro_batch(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    streams = {f"{unique}_L": [100] * 90, f"{unique}_S": [1000] * 2, f"{unique}_N": []}
    for stream, lengths in streams.items():
        nats_py.create_stream(stream)
        nats_py.store(f"{stream}.x", [b"x" * size for size in lengths])
    limit = 5000
    query = query_of(nats_server, ",".join(streams), maxBytesPerTrigger=limit)
    micro_batches = query.available()
    assert sum(map(len, micro_batches)) == 92
    # One message of a stream there is always, also where it is more than the stream's share.
    assert all(bytes_in(rows) <= limit + 1000 + len(f"{unique}_S.x") for rows in micro_batches)
    assert len(micro_batches) <= 4
    assert {row["stream"] for row in micro_batches[0]} == {f"{unique}_L", f"{unique}_S"}


def test_what_is_less_than_the_limit_altogether_is_not_measured(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x" * 10] * 50)
    query = query_of(nats_server, unique, maxBytesPerTrigger=1_000_000)
    with nats_py.collect("$JS.API.CONSUMER.CREATE.>") as made:
        assert query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())[unique]["next"] == 51
        nats_py.consumers(unique)
    assert made.messages == []


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_the_bytes_of_what_is_consumed_are_bounded_too(
    nats_server: Server, nats_py: NatsPy, unique: str, retention: str
) -> None:
    nats_py.create_stream(unique, retention=retention, allow_direct=True)
    query = query_of(nats_server, unique, consume=True, maxBytesPerTrigger=5000)
    nats_py.store(f"{unique}.x", [b"x" * 1000] * 20)
    micro_batches = query.available()
    assert [sequence for rows in micro_batches for sequence in sequences_of(rows)] == list(range(1, 21))
    assert {len(rows) for rows in micro_batches} == {4}
    assert nats_py.held(unique) == 0


def test_the_bytes_of_changes_of_a_bucket_are_bounded_too(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket = nats_py.run(nats_py.nats.jetstream().create_key_value(bucket=unique, history=5))
    for i in range(12):
        nats_py.run(bucket.put(f"key{i}", b"x" * 1000))
    reader = stream_reader(nats_server, StructType().add("key", "string"), bucket=unique, maxBytesPerTrigger=5000)
    query = Query(reader, {f"KV_{unique}": {"created": nats_py.stream_info(f"KV_{unique}")["created"], "next": 1}})
    assert list(map(len, query.available())) == [4, 4, 4]


@pytest.mark.long(
    "spark_nats/jetstream/reading/*", races="where servers put consumers, of which the one that is stopped has some"
)
def test_a_query_goes_on_while_a_follower_does_not_answer(cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, num_replicas=3)
        client.store(f"{unique}.x", [b"x" * 1000] * 20)
        leader = cluster.of(client.stream_info(unique)["cluster"]["leader"])
    follower = next(server for server in cluster.servers if server is not leader)
    query = Query(
        stream_reader(
            cluster.urls,
            MESSAGE,
            stream=unique,
            maxBytesPerTrigger=5000,
            connectTimeout="1s",
            requestTimeout="1s",
            **EARLIEST,
        )
    )
    with cluster.paused(follower):
        micro_batches = query.available()
    assert [sequence for rows in micro_batches for sequence in sequences_of(rows)] == list(range(1, 21))
    assert {len(rows) for rows in micro_batches} == {4}


def test_where_messages_cannot_be_measured_their_average_will_do(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x" * 1000] * 20)

    def unless_without_payloads(answer: dict[str, Any]) -> dict[str, Any]:
        refused = {"error": {"code": 503, "err_code": 10008, "description": "not available"}}
        return refused if answer["config"].get("headers_only") else answer

    api = ForwardedApi(nats_py)
    api.answers["CONSUMER.CREATE"] = unless_without_payloads
    with api.serving():
        query = query_of(nats_server, unique, maxBytesPerTrigger=5000, apiPrefix=ForwardedApi.PREFIX)
        micro_batches = query.available()
    assert [sequence for rows in micro_batches for sequence in sequences_of(rows)] == list(range(1, 21))
    assert {len(rows) for rows in micro_batches} == {4}


def test_a_micro_batch_of_core_nats_has_no_more_bytes_than_allowed(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    each = len(f"MSG {unique} 1 100\r\n\r\n") + 100
    query = Query(stream_reader(nats_server, MESSAGE, subject=unique, maxBytesPerTrigger=3 * each + 1))
    try:
        wait_for_subscriptions(nats_server, unique)
        for size in (*[100] * 7, 5000, 100):
            nats_py.publish(unique, b"x" * size)
        wait_until(lambda: query.reader.latestOffset(query.offset, ReadAllAvailable())["messages"] == 9)
        assert [len(query.micro_batch()) for _ in range(5)] == [3, 3, 1, 1, 1]
        assert query.micro_batch() == []
    finally:
        query.reader.stop()


def test_spark_reads_what_there_is_in_micro_batches_of_so_many_bytes(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", [b"x" * 1000] * 10)
    frame = nats(spark.readStream, nats_server, stream=unique, maxBytesPerTrigger=4500, **EARLIEST).load()
    sizes: list[int] = []
    writer = frame.writeStream.foreachBatch(lambda rows, _: sizes.append(rows.count()))
    finish(writer.trigger(availableNow=True).start())
    assert sizes == [4, 4, 2]
