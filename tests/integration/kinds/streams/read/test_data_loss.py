"""Messages that are gone before they were read: an error that says which, or a warning and what is left."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_nats.client import connect, retrying
from spark_nats.jetstream import JetStream, Range, RangeReader, views
from spark_nats.jetstream.messages import MessageAt
from spark_nats.jetstream.reading.cursor import Cursor
from spark_nats.jetstream.reading.delivering import Arrived, Restart, Step
from spark_nats.jetstream.reading.judging import Removed
from tests.connections import options_for
from tests.integration.forwarding import FormerLeader, ForwardedApi, unheard_of
from tests.integration.support import (
    Query,
    batch_reader,
    error_of,
    finish,
    nats,
    read,
    read_partitions,
    read_sequences,
    sentence_of,
    sequences_of,
    stream_reader,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import BINARY_2_10, Cluster, Server, ServerFactory

GO_ON = "; set the option 'failOnDataLoss' to false to continue with what there is"


class StoppedQuery:
    """A query that is stopped when it has read what there is, and goes on with other options where it stopped."""

    def __init__(self, server: Server, **options: str) -> None:
        self._server = server
        self._options = {"startingOffsets": "earliest", **options}
        self._checkpoint: dict[str, Any] | None = None

    def run(self, fail: bool) -> list[int]:
        """Go on; the sequences that were new in this run, in one list for all streams."""
        query = Query(stream_reader(self._server, failOnDataLoss=fail, **self._options), self._checkpoint)
        rows = [row for micro_batch in query.available() for row in micro_batch]
        self._checkpoint = query.offset
        return sorted(sequences_of(rows))


class CheckpointedQuery:
    """A query that can be stopped and go on; each run ends when it has read what there is."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path, stream: str, **options: str) -> None:
        self._spark = spark
        self._server = server
        self._folder = folder
        self._options = {"stream": stream, "startingOffsets": "earliest", **options}
        self._seen: list[int] = []

    def run(self, fail: bool) -> list[int]:
        """Go on; the sequences that were new in this run, in one list for all streams."""
        source = nats(self._spark.readStream, self._server, failOnDataLoss=fail, **self._options)
        frame = source.schema("sequence BIGINT").load()
        writer = frame.writeStream.option("checkpointLocation", str(self._folder / "checkpoint"))
        finish(writer.trigger(availableNow=True).start(str(self._folder / "rows"), format="parquet"))
        rows = self._spark.read.schema("sequence BIGINT").parquet(str(self._folder / "rows")).collect()
        new = sorted(sequences_of(rows))
        for sequence in self._seen:
            new.remove(sequence)
        self._seen += new
        return new


def purge_beginning(client: NatsPy, stream: str) -> None:
    client.purge_stream(stream, seq=8)


def purge_all(client: NatsPy, stream: str) -> None:
    client.purge_stream(stream)
    client.store_empty(stream, 1)


def make_again(client: NatsPy, stream: str) -> None:
    client.delete_stream(stream)
    client.create_stream(stream)
    client.store_empty(stream, 2)


def make_again_larger(client: NatsPy, stream: str) -> None:
    """The query's place exists in the new stream too, but means nothing there."""
    client.delete_stream(stream)
    client.create_stream(stream)
    client.store_empty(stream, 6)


@pytest.mark.parametrize(
    ("lose", "sentence", "left"),
    [
        (
            purge_beginning,
            "begins at sequence 8: sequences 4 to 7, which the query had not read yet, are lost",
            [8, 9, 10],
        ),
        (purge_all, "begins at sequence 11: sequences 4 to 10, which the query had not read yet, are lost", [11]),
        (make_again, "was deleted and created again: the query had read the stream created at", [1, 2]),
        (
            make_again_larger,
            "was deleted and created again: the query had read the stream created at",
            [1, 2, 3, 4, 5, 6],
        ),
    ],
)
def test_a_query_that_goes_on_misses_what_is_gone(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    lose: Callable[[NatsPy, str], None],
    sentence: str,
    left: list[int],
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    query = StoppedQuery(nats_server, stream=unique)
    assert query.run(fail=True) == [1, 2, 3]
    nats_py.store_empty(unique, 7)
    lose(nats_py, unique)
    error = sentence_of(lambda: query.run(fail=True))
    assert error.startswith(f"DataLossError: stream '{unique}' {sentence}")
    assert error.endswith(GO_ON)
    assert query.run(fail=False) == left
    nats_py.store_empty(unique, 1)
    assert query.run(fail=True) == [max(left) + 1]  # the loss is behind it


@pytest.mark.long("spark_nats/kinds/streams/read/*")
def test_a_query_that_goes_on_from_its_checkpoint_misses_what_is_gone(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    query = CheckpointedQuery(spark, nats_server, tmp_path, unique)
    assert query.run(fail=True) == [1, 2, 3]
    nats_py.store_empty(unique, 7)
    purge_beginning(nats_py, unique)
    error = error_of(lambda: query.run(fail=True))
    sentence = "begins at sequence 8: sequences 4 to 7, which the query had not read yet, are lost"
    assert error.startswith(f"DataLossError: stream '{unique}' {sentence}")
    assert error.endswith(GO_ON)
    assert query.run(fail=False) == [8, 9, 10]


def test_a_query_whose_stream_was_deleted_waits_for_another(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    query = StoppedQuery(nats_server, stream=unique)
    assert query.run(fail=True) == [1, 2, 3]
    nats_py.delete_stream(unique)
    error = sentence_of(lambda: query.run(fail=True))
    assert f"the stream '{unique}' does not exist" in error
    assert query.run(fail=False) == []
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 2)
    assert query.run(fail=False) == [1, 2]


def test_an_empty_stream_that_ends_where_the_query_stands_is_another_one_if_it_was_made_again(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    query = StoppedQuery(nats_server, stream=unique)
    assert query.run(fail=True) == [1, 2, 3]
    nats_py.store_empty(unique, 1)
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    nats_py.purge_stream(unique)
    assert "was deleted and created again" in sentence_of(lambda: query.run(fail=True))
    assert query.run(fail=False) == []
    nats_py.store_empty(unique, 1)
    assert query.run(fail=True) == [4]


def test_one_lost_stream_does_not_stop_the_others(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kept, lost = f"{unique}_KEPT", f"{unique}_LOST"
    for stream in (kept, lost):
        nats_py.create_stream(stream)
    nats_py.store_empty(kept, 2)
    nats_py.store_empty(lost, 5)
    query = StoppedQuery(nats_server, stream=f"{kept},{lost}")
    assert query.run(fail=True) == [1, 1, 2, 2, 3, 4, 5]
    nats_py.store_empty(kept, 2)
    nats_py.delete_stream(lost)
    assert query.run(fail=False) == [3, 4]


def test_a_running_query_notices_that_its_stream_is_gone(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 4)
    frame = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    query = frame.writeStream.format("noop").start()
    try:
        wait_until(lambda: sum(each["numInputRows"] for each in query.recentProgress) == 4, timeout=120)
        nats_py.delete_stream(unique)
        error = error_of(lambda: query.awaitTermination(120))
        assert f"the stream '{unique}' does not exist any more: whatever it held from sequence 5 on is lost" in error
    finally:
        query.stop()


def test_a_running_query_can_go_on_with_a_stream_that_was_made_again(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 4)
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest", failOnDataLoss=False))
    assert sorted(sequences_of(query.rows(4))) == [1, 2, 3, 4]
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 2)
    assert sorted(sequences_of(query.rows(2))) == [1, 2]


def test_a_rare_subject_loses_nothing_when_others_are_removed(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, max_msgs=50)
    query = Query(stream_reader(nats_server, stream=unique, subject=f"{unique}.rare", startingOffsets="earliest"))
    nats_py.store_empty(unique, 1, "rare")
    assert sorted(sequences_of(query.rows(1))) == [1]
    for _ in range(8):
        nats_py.store_empty(unique, 20, "other")
        query.look(nats_py)  # and see these before they go
    nats_py.store_empty(unique, 1, "rare")
    assert sorted(sequences_of(query.rows(1))) == [162]


# Batches


def test_a_batch_from_a_sequence_that_is_gone(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    nats_py.purge_stream(unique, seq=6)
    beginning = f'{{"{unique}": 2}}'
    error = error_of(nats(spark.read, nats_server, stream=unique, startingOffsets=beginning).load().collect)
    assert error == (
        f"DataLossError: stream '{unique}' begins at sequence 6: sequences 2 to 5, which the query had not read yet, "
        f"are lost (purged, or removed by the stream's limits){GO_ON}"
    )
    tolerant = nats(spark.read, nats_server, stream=unique, startingOffsets=beginning, failOnDataLoss=False)
    assert sorted(row.sequence for row in tolerant.load().collect()) == [6, 7, 8, 9, 10]
    assert read_sequences(nats_server, stream=unique) == [6, 7, 8, 9, 10]  # earliest is what there is


def test_a_batch_from_beyond_the_end(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    options = {"stream": unique, "startingOffsets": f'{{"{unique}": 100}}'}
    error = sentence_of(lambda: read(nats_server, **options))
    said = f"option 'startingOffsets' begins at 100, but stream '{unique}' ends at 10; begin at 11 at most"
    assert error.startswith(f"DataLossError: {said}")
    assert said in sentence_of(lambda: Query(stream_reader(nats_server, **options)))
    assert read_sequences(nats_server, failOnDataLoss=False, **options) == []


def test_a_batch_of_which_all_is_gone(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    nats_py.purge_stream(unique, seq=9)
    options = {"stream": unique, "startingOffsets": f'{{"{unique}": 2}}', "endingOffsets": f'{{"{unique}": 5}}'}
    error = sentence_of(lambda: read(nats_server, **options))
    assert "sequences 2 to 4, which the query had not read yet, are lost" in error
    assert read_sequences(nats_server, failOnDataLoss=False, **options) == []


def test_what_goes_between_plan_and_read_is_missed_too(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)

    def planned(**options: Any) -> Callable[[], list[int]]:
        """What reads a batch that is planned now, as often as it is asked for."""
        reader = batch_reader(nats_server, stream=unique, maxRecordsPerPartition=4, **options)
        partitions = reader.partitions()
        return lambda: sorted(sequences_of(read_partitions(pickle.dumps(reader), partitions)))

    strict, tolerant = planned(), planned(failOnDataLoss=False)
    for found in (strict, tolerant):
        assert found() == list(range(1, 11))
    nats_py.purge_stream(unique, seq=7)
    error = sentence_of(strict)
    assert f"stream '{unique}' now begins at sequence 7; sequences " in error
    assert "which were about to be read, are lost" in error
    assert tolerant() == [7, 8, 9, 10]
    nats_py.delete_stream(unique)
    assert f"the stream '{unique}' was deleted; sequences " in sentence_of(strict)
    assert tolerant() == []
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    assert f"the stream '{unique}' was deleted and created again" in sentence_of(strict)
    assert tolerant() == []


def test_what_goes_between_plan_and_read_fails_the_task(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    frame = nats(spark.read, nats_server, stream=unique, maxRecordsPerPartition=4).load()
    assert frame.count() == 10  # a DataFrame is planned once, whenever it is read again
    nats_py.purge_stream(unique, seq=7)
    assert f"stream '{unique}' now begins at sequence 7; sequences " in error_of(frame.collect)


# What a server of a cluster says that is not up to date


Answer = dict[str, Any]


def ends_early(answer: Answer) -> Answer:
    """As a leader says that was stopped while another one took its place."""
    return {**answer, "state": {**answer["state"], "last_seq": 4, "messages": 4}}


def not_there(_: Answer) -> Answer:
    return {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}


def empty_without_leader(answer: Answer) -> Answer:
    """As a follower says that has come back with an empty disk, while there is no leader."""
    cluster = {name: value for name, value in answer["cluster"].items() if name != "leader"}
    return {**answer, "cluster": cluster, "state": {**answer["state"], "first_seq": 0, "last_seq": 0, "messages": 0}}


def for_a_moment(said: Callable[[Answer], Answer]) -> Callable[[Answer], Answer]:
    left = [3]

    def change(answer: Answer) -> Answer:
        left[0] -= 1
        return said(answer) if left[0] >= 0 else answer

    return change


class ClusteredStream:
    """A stream of ten messages in a cluster, of which it can be said what is not so."""

    def __init__(self, cluster: Cluster, client: NatsPy, api: ForwardedApi, name: str) -> None:
        self.name = name
        self.client = client
        self.api = api
        self._urls = cluster.urls
        client.create_in_cluster(name)
        client.store_empty(name, 10)

    def options(self, **options: Any) -> dict[str, Any]:
        return {"server": self._urls, "stream": self.name, "apiPrefix": ForwardedApi.PREFIX, **options}


@pytest.fixture
def clustered(cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusteredStream]:
    monkeypatch.setattr(retrying, "_LEADERLESS_WAIT", 0.05)
    with NatsPy(cluster.servers[0].url) as client, ForwardedApi(client).serving(cluster.urls) as api:
        yield ClusteredStream(cluster, client, api, unique)


@pytest.mark.parametrize("said", [ends_early, not_there, empty_without_leader])
def test_what_is_said_for_a_moment_ends_no_query(
    clustered: ClusteredStream, said: Callable[[Answer], Answer], caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(stream_reader(**clustered.options(startingOffsets="earliest")))
    assert len(query.micro_batch()) == 10
    clustered.client.store_empty(clustered.name, 1)
    caplog.clear()  # a server may not have heard of the new stream at first
    clustered.api.answers["STREAM.INFO"] = for_a_moment(said)
    with caplog.at_level(logging.WARNING):
        assert sequences_of(query.micro_batch()) == [11]
    assert caplog.text.count("NATS_TRYING_AGAIN") == caplog.text.count("NATS_GOES_ON") == 1


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        ("STREAM.INFO", ends_early),
        ("STREAM.INFO", not_there),
        ("STREAM.INFO", empty_without_leader),
        ("CONSUMER.CREATE", not_there),
    ],
)
def test_what_is_said_for_a_moment_fails_no_task(
    clustered: ClusteredStream, operation: str, said: Callable[[Answer], Answer]
) -> None:
    reader = batch_reader(**clustered.options())
    partitions = reader.partitions()
    clustered.api.answers[operation] = for_a_moment(said)
    assert sorted(sequences_of(read_partitions(pickle.dumps(reader), partitions))) == list(range(1, 11))


@pytest.mark.parametrize("limits", [{"subject": True}, {"maxOffsetsPerTrigger": 2}], ids=str)
def test_no_message_is_passed_over_that_a_former_leader_does_not_know(
    clustered: ClusteredStream, limits: dict[str, Any]
) -> None:
    options = {**limits, "subject": f"{clustered.name}.x"} if "subject" in limits else limits
    query = Query(stream_reader(**clustered.options(startingOffsets="earliest", **options)))
    query.rows(10)
    former = FormerLeader(10)
    clustered.client.store_empty(clustered.name, 4)
    clustered.api.answers |= {"STREAM.INFO": unheard_of, "STREAM.MSG.GET": former}
    assert sequences_of(query.rows(4)) == [11, 12, 13, 14]
    assert former.hidden


def test_a_start_by_time_is_found_that_a_former_leader_does_not_know(clustered: ClusteredStream) -> None:
    since, former = datetime.now(UTC), FormerLeader(10)
    clustered.client.store_empty(clustered.name, 4)
    clustered.api.answers["STREAM.MSG.GET"] = former
    assert read_sequences(**clustered.options(startingTimestamp=since.isoformat())) == [11, 12, 13, 14]
    assert former.hidden


def test_a_batch_is_planned_once_its_stream_has_a_leader(
    clustered: ClusteredStream, caplog: pytest.LogCaptureFixture
) -> None:
    clustered.api.answers["STREAM.INFO"] = for_a_moment(empty_without_leader)
    with caplog.at_level(logging.WARNING):
        assert read_sequences(**clustered.options()) == list(range(1, 11))
    assert "[NATS_TRYING_AGAIN] planning a batch: stream" in caplog.text


def test_a_batch_is_planned_though_servers_answer_nothing_for_a_moment(
    clustered: ClusteredStream, caplog: pytest.LogCaptureFixture
) -> None:
    def no_answer(_: Answer) -> Answer:
        raise TimeoutError("nobody answers while a leader is elected")

    for timeout, said in (("60s", "planning a batch: no answer from"), ("0s", "")):
        clustered.api.answers["STREAM.INFO"] = for_a_moment(no_answer)
        options = clustered.options(requestTimeout="300ms", retryTimeout=timeout)
        if said:
            with caplog.at_level(logging.WARNING):
                assert read_sequences(**options) == list(range(1, 11))
            assert f"[NATS_TRYING_AGAIN] {said}" in caplog.text
        else:
            assert "no answer from" in sentence_of(batch_reader(**options).partitions)


def test_without_retries_a_batch_of_a_stream_without_a_leader_is_an_error(clustered: ClusteredStream) -> None:
    clustered.api.answers["STREAM.INFO"] = empty_without_leader
    assert "has no leader at the moment" in sentence_of(batch_reader(**clustered.options(retryTimeout="0s")).partitions)


@pytest.mark.parametrize(
    ("said", "to_query", "to_task"),
    [
        (
            ends_early,
            "ends at sequence 4, but the query is to resume at 11; the sequences in between do not exist",
            "ends at sequence 4; sequences 5 to 10, which were about to be read, do not exist",
        ),
        (
            not_there,
            "does not exist any more: whatever it held from sequence 11 on is lost",
            "was deleted; sequences 1 to 10, which were about to be read, are lost",
        ),
    ],
)
def test_what_is_said_for_long_is_believed(
    clustered: ClusteredStream,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[Answer], Answer],
    to_query: str,
    to_task: str,
) -> None:
    monkeypatch.setattr(views, "CONFIRMATION", 0.1)
    batch = batch_reader(**clustered.options())
    partitions = batch.partitions()
    query = Query(stream_reader(**clustered.options(startingOffsets="earliest")))
    assert len(query.micro_batch()) == 10
    clustered.api.answers["STREAM.INFO"] = said
    if said is not_there:
        clustered.api.answers["CONSUMER.CREATE"] = said
    assert to_query in sentence_of(query.micro_batch)
    assert to_task in sentence_of(lambda: read_partitions(pickle.dumps(batch), partitions))
    tolerant = batch_reader(**clustered.options(failOnDataLoss=False))
    assert sorted(sequences_of(read_partitions(pickle.dumps(tolerant), partitions))) == (
        [1, 2, 3, 4] if said is ends_early else []
    )


def test_without_patience_what_is_said_is_believed_at_once(clustered: ClusteredStream) -> None:
    query = Query(stream_reader(**clustered.options(startingOffsets="earliest", retryTimeout="0s")))
    assert len(query.micro_batch()) == 10
    clustered.api.answers["STREAM.INFO"] = for_a_moment(ends_early)
    assert "ends at sequence 4, but the query is to resume at 11" in sentence_of(query.micro_batch)


# The warning is in the log of a Python process of Spark's, so here the readers run in this one.


def test_going_on_is_warned_about(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    beginning = {"stream": unique, "failOnDataLoss": "false", "startingOffsets": f'{{"{unique}": 2}}'}
    streaming = stream_reader(nats_server, **beginning)
    start = streaming.initialOffset()
    end = streaming.latestOffset(start, streaming.getDefaultReadLimit())
    nats_py.purge_stream(unique, seq=6)
    batch = batch_reader(nats_server, **beginning)
    with caplog.at_level(logging.WARNING):
        assert [(p.start, p.end) for p in batch.partitions()] == [(6, 11)]
        (record,) = caplog.records
        assert record.getMessage() == (
            "[NATS_LOSS_ACCEPTED] "
            f"stream '{unique}' begins at sequence 6: sequences 2 to 5, which the query had not read yet, are lost "
            "(purged, or removed by the stream's limits); the query continues with what there is"
        )
        caplog.clear()
        (partition,) = streaming.partitions(start, end)
        assert [s for batch in streaming.read(partition) for s in batch["sequence"].to_pylist()] == [6, 7, 8, 9, 10]
        (record,) = caplog.records
        assert record.getMessage() == (
            "[NATS_LOSS_ACCEPTED] "
            f"stream '{unique}' now begins at sequence 6; sequences 2 to 5, which were about to be read, are lost "
            "(purged, or removed by the stream's limits); the query continues with what there is"
        )


def test_a_range_that_begins_with_what_there_is_may_lose_its_head_until_a_message_is_handed_on(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Its first consumer goes with what it has delivered, and the stream's limits take some of that meanwhile."""

    class Interrupted(RangeReader):
        interrupted = False

        def interpret_or_raise_restart(self, js: JetStream, cursor: Cursor, arrived: Arrived) -> Step:
            if arrived.chunk and not self.interrupted:
                self.interrupted = True
                nats_py.purge_stream(unique, seq=6)
                raise Restart("the consumer was deleted")
            return super().interpret_or_raise_restart(js, cursor, arrived)

    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10)
    with connect(options_for(nats_server.url)) as connection:
        reader = Interrupted(Range(unique, None, 1, 11, removed=Removed.NO_LOSS_AT_FIRST))
        delivered = list(reader.read(JetStream(connection)))
    assert reader.interrupted
    assert [s for each in delivered for s in each.deliveries.stream_sequences().tolist()] == [6, 7, 8, 9, 10]


def test_what_is_removed_while_a_query_searches_for_it_is_said(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 10, "a")
    query = Query(stream_reader(nats_server, stream=unique, subject=f"{unique}.a", startingOffsets="earliest"))
    assert len(query.micro_batch()) == 10
    nats_py.store_empty(unique, 5, "a")
    request = MessageAt.request.fget

    def too_late(question: MessageAt) -> Any:
        if question.sequence is None:
            nats_py.purge_stream(unique)
        return request(question)

    monkeypatch.setattr(MessageAt, "request", property(too_late))
    assert "sequences 11 to 15, which the query had not read yet, are lost" in sentence_of(query.micro_batch)


@pytest.mark.parametrize("binary", [None, BINARY_2_10], ids=["now", "2.10"])
@pytest.mark.parametrize("storage", ["file", "memory"])
def test_a_purge_that_makes_sequences_begin_higher_is_no_loss(
    server_factory: ServerFactory, binary: Path | None, storage: str, tmp_path: Path
) -> None:
    """The sequences in between never existed, which the time of the last message shows while the stream is empty."""
    server = server_factory(binary=binary) if binary else server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S", storage=storage)
        client.store("S.x", range(10))
        query = StoppedQuery(server, stream="S")
        assert query.run(fail=True) == list(range(1, 11))
        client.api("STREAM.PURGE.S", {"seq": 1000})
        state = client.stream_info("S")["state"]
        assert (state["first_seq"], state["last_seq"], state["messages"]) == (1000, 999, 0)
        assert query.run(fail=True) == []
        client.store("S.x", range(2))
        assert query.run(fail=True) == [1000, 1001]


def test_a_purge_of_what_was_not_read_yet_is_a_loss(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", range(10))
    query = StoppedQuery(nats_server, stream=unique)
    query.run(fail=True)
    nats_py.store(f"{unique}.x", range(10))
    nats_py.api(f"STREAM.PURGE.{unique}", {"seq": 1000})
    told = sentence_of(lambda: query.run(fail=True))
    assert told.startswith(f"DataLossError: stream '{unique}' begins at sequence 1000: sequences 11 to 999, which")


def test_a_batch_from_where_a_stream_ended_before_such_a_purge_loses_nothing(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", range(10))
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest"))
    query.micro_batch()
    nats_py.api(f"STREAM.PURGE.{unique}", {"seq": 1000})
    assert read_sequences(nats_server, stream=unique, startingOffsets=json.dumps(query.offset)) == []
    offset = {name: {**entry, "next": 5, "timestamp": "2020-01-01T00:00:00Z"} for name, entry in query.offset.items()}
    told = sentence_of(lambda: read(nats_server, stream=unique, startingOffsets=json.dumps(offset)))
    assert "sequences 5 to 999, which the query had not read yet, are lost" in told
