"""How much a micro-batch has, and when there is one: the limits of streaming queries."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_nats
from spark_nats.client.backlog import PIECE_OVERHEAD
from spark_nats.source.stream import readers
from spark_nats.sparkapi import ReadAllAvailable
from tests.integration.support import (
    MESSAGE,
    Query,
    nats,
    running,
    sentence_of,
    stream_reader,
    wait_for_subscriptions,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without Spark looks at its streams whenever it is asked."""
    monkeypatch.setattr(readers, "LOOK_INTERVAL", 0.0)


def publish(client: NatsPy, subject: str, numbers: Iterable[int]) -> None:
    client.publish_acked([(subject, b"%d" % i) for i in numbers])


def numbers(rows: list[Mapping[str, Any]]) -> list[int]:
    return [int(row["payload"]) for row in rows]


def query_of(server: Server, stream: str, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
    return Query(stream_reader(server, MESSAGE, stream=stream, **{**EARLIEST, **options}), checkpoint)


def nothing_comes(query: Query) -> bool:
    """Whether a query that is asked again and again, as Spark does it, has nothing to do."""
    return all(query.micro_batch() == [] for _ in range(20))


# A minimum


def test_a_micro_batch_waits_until_it_is_large_enough(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", range(3))
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10)
    assert numbers(query.micro_batch()) == [0, 1, 2]  # the first one waits for nothing
    publish(nats_py, f"{unique}.x", range(3, 12))
    assert nothing_comes(query)
    publish(nats_py, f"{unique}.x", [12])
    assert numbers(query.micro_batch()) == list(range(3, 13))
    assert nothing_comes(query)


def test_a_micro_batch_waits_no_longer_than_allowed(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", [0])
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10, maxTriggerDelay="2s")
    assert numbers(query.micro_batch()) == [0]
    publish(nats_py, f"{unique}.x", [1])
    assert query.micro_batch() == []
    assert numbers(query.rows(1)) == [1]


def test_the_first_micro_batch_of_a_query_that_begins_with_what_comes_does_not_wait(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10, startingOffsets="latest")
    assert nothing_comes(query)
    publish(nats_py, f"{unique}.x", [0])
    assert numbers(query.micro_batch()) == [0]


def test_nor_does_the_first_one_after_a_restart_which_goes_on_where_the_query_was(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", range(5))
    query = query_of(nats_server, unique, minOffsetsPerTrigger=3)
    start = query.offset
    end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
    publish(nats_py, f"{unique}.x", [5])

    again = query_of(nats_server, unique, checkpoint=start, minOffsetsPerTrigger=3)  # with an unfinished micro-batch
    assert again.reader.partitions(end, end) == []
    assert sum(partition.size for partition in again.reader.partitions(start, end)) == 5
    again.offset = end
    assert numbers(again.micro_batch()) == [5]
    publish(nats_py, f"{unique}.x", [6])
    assert nothing_comes(again)


def test_a_query_for_what_there_is_waits_for_nothing(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", range(17))
    query = query_of(nats_server, unique, minOffsetsPerTrigger=8, maxOffsetsPerTrigger=10)
    assert list(map(numbers, query.available())) == [list(range(10)), list(range(10, 17))]


def test_nor_does_one_that_is_to_read_everything_at_once(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    """As with `Trigger.Once`, for which Spark sets its own limit in the place of ours."""
    nats_py.create_stream(unique)
    query = query_of(nats_server, unique, minOffsetsPerTrigger=8, maxOffsetsPerTrigger=10)
    publish(nats_py, f"{unique}.x", range(5))
    assert numbers(query.micro_batch()) == list(range(5))
    for count in (3, 30):
        publish(nats_py, f"{unique}.x", range(count))
        query.offset = query.reader.latestOffset(query.offset, ReadAllAvailable())
        assert query.offset[unique]["next"] == nats_py.stream_info(unique)["state"]["last_seq"] + 1


def test_what_all_streams_have_counts(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    streams = [f"{unique}_{i}" for i in range(3)]
    for stream in streams:
        nats_py.create_stream(stream)
    query = query_of(nats_server, ",".join(streams), minOffsetsPerTrigger=9)
    publish(nats_py, f"{streams[0]}.x", [0])
    assert numbers(query.micro_batch()) == [0]
    for stream in streams[:2]:
        publish(nats_py, f"{stream}.x", range(4))
    assert nothing_comes(query)
    publish(nats_py, f"{streams[2]}.x", [0])
    assert len(query.micro_batch()) == 9


def test_what_has_nothing_for_the_query_before_its_first_message_does_not_count(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", [0])
    query = query_of(nats_server, unique, subject=f"{unique}.x", minOffsetsPerTrigger=10)
    assert numbers(query.micro_batch()) == [0]
    publish(nats_py, f"{unique}.other", range(20))
    query.look(nats_py)
    publish(nats_py, f"{unique}.x", range(1, 10))
    assert nothing_comes(query)
    nats_py.purge_stream(unique, seq=22)  # what was searched in vain is no loss, also while the query waits
    assert nothing_comes(query)
    publish(nats_py, f"{unique}.x", [10])
    assert numbers(query.micro_batch()) == list(range(1, 11))


def test_what_is_lost_while_the_query_waits_is_said_once(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", [0])
    queries = {
        fail: query_of(nats_server, unique, minOffsetsPerTrigger=10, failOnDataLoss=fail) for fail in (True, False)
    }
    publish(nats_py, f"{unique}.x", range(1, 8))
    for query in queries.values():
        query.micro_batch()
        publish(nats_py, f"{unique}.x", range(1, 5))
        assert nothing_comes(query)
    nats_py.purge_stream(unique, seq=15)
    what = "begins at sequence 15: sequences 9 to 14, which the query had still to read, are gone"
    assert what in sentence_of(queries[True].micro_batch)
    later = queries[False]
    assert [row["sequence"] for row in later.micro_batch()] == [15, 16]
    assert nothing_comes(later)
    assert len([text for text in caplog.messages if what.split(":")[0] in text]) == 1


def test_a_query_that_waits_for_more_leaves_the_server_in_peace(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.a", [0])
    subjects = f"{unique}.a,{unique}.b,{unique}.c"
    query = query_of(nats_server, unique, subject=subjects, minOffsetsPerTrigger=10)
    assert numbers(query.micro_batch()) == [0]
    publish(nats_py, f"{unique}.a", [1])
    monkeypatch.undo()
    assert query.micro_batch() == []
    with nats_py.collect("$JS.API.STREAM.>") as asked:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 2:  # the time over which requests are counted
            assert query.micro_batch() == []
    assert 0 < len(asked.messages) / passed < 20


def test_progress_says_for_how_many_a_query_waits(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", [0])
    query = query_of(nats_server, unique, minOffsetsPerTrigger=10)
    query.micro_batch()
    publish(nats_py, f"{unique}.x", range(1, 5))
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
        assert numbers(query.rows(1)) == [0]
        for number in (1, 2):
            nats_py.publish(unique, b"%d" % number)
        wait_until(lambda: query.micro_batch() == [] and query.reader.reportLatestOffset()["messages"] == 3)
        nats_py.publish(unique, b"3")  # fewer than four, but half of the buffer
        assert numbers(query.rows(1)) == [1, 2, 3]
    finally:
        query.reader.stop()


def test_spark_waits_for_the_minimum_and_its_progress_says_so(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    publish(nats_py, f"{unique}.x", range(3))
    frame = nats(spark.readStream, nats_server, stream=unique, minOffsetsPerTrigger=10, **EARLIEST).load()
    sizes: list[int] = []
    with running(frame.writeStream.foreachBatch(lambda rows, _: sizes.append(rows.count())).start()) as query:
        wait_until(lambda: sizes == [3], timeout=120)
        publish(nats_py, f"{unique}.x", range(3, 12))
        with nats_py.collect(f"$JS.API.STREAM.INFO.{unique}") as asked:
            asked.wait(3, timeout=60)
        now = spark_nats.progress(query, {"servers": nats_server.url})
        assert now is not None
        assert (now.behind, now.streams[0].waits_for, now.streams[0].catch_up) == (9, 10, None)
        publish(nats_py, f"{unique}.x", [12])
        wait_until(lambda: len(sizes) > 1, timeout=60)
    assert sizes == [3, 10]
