"""A durable consumer shows to NATS's own tools how far a query is, and nothing depends on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_nats import clock
from spark_nats.errors import ConsumerConflictError, OptionError, UnsupportedStreamError
from spark_nats.jetstream.consuming.progress import RETRY
from tests.integration.support import Query, nats, reload, run_nats, sentence_of, sequences_of, stream_reader
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, Server, ServerFactory

pytestmark = pytest.mark.needs("progress")


@pytest.fixture
def stream(nats_py: NatsPy, unique: str) -> str:
    nats_py.create_stream(unique, [f"{unique}.>"])
    nats_py.store(f"{unique}.a", range(10))
    return unique


def begin(server: Server | str, stream: str, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
    requested = {"startingOffsets": "earliest", "progressConsumer": "lag", **options}
    return Query(stream_reader(server, stream=stream, **requested), checkpoint)


def place(client: NatsPy, stream: str, consumer: str = "lag") -> tuple[int, int]:
    """Up to where a consumer has had everything acknowledged, and how many messages it has before it."""
    info = client.api(f"CONSUMER.INFO.{stream}.{consumer}")
    assert (info["delivered"]["consumer_seq"], info["num_ack_pending"]) == (0, 0)
    return info["ack_floor"]["stream_seq"], info["num_pending"]


def test_the_consumer_shows_what_the_query_has_before_it(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    query = begin(nats_server, stream, maxOffsetsPerTrigger=4)
    assert place(nats_py, stream) == (0, 10)
    seen = []
    for _ in range(4):
        query.micro_batch()
        seen.append(place(nats_py, stream))
    assert seen == [(0, 10), (4, 6), (8, 2), (10, 0)]  # what Spark has in its checkpoint
    nats_py.store(f"{stream}.a", range(3))
    wait_until(lambda: place(nats_py, stream) == (10, 3))  # the server counts a moment after it has stored them


def test_with_filters_only_what_matches_counts(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    nats_py.store(f"{stream}.b", range(5))
    query = begin(nats_server, stream, subject=f"{stream}.b")
    assert place(nats_py, stream) == (0, 5)
    assert len(query.rows(5)) == 5
    query.micro_batch()
    assert place(nats_py, stream) == (15, 0)


def test_a_query_that_is_started_again_takes_its_consumer_over(
    nats_server: Server, nats_py: NatsPy, stream: str
) -> None:
    query = begin(nats_server, stream)
    older = query.offset
    query.rows(10)
    query.micro_batch()
    again = begin(nats_server, stream, query.offset)
    nats_py.store(f"{stream}.a", [b""])
    again.rows(1)
    again.micro_batch()
    assert place(nats_py, stream) == (11, 0)
    back = begin(nats_server, stream, older, maxOffsetsPerTrigger=3)  # with an older checkpoint
    back.micro_batch()
    back.micro_batch()
    assert place(nats_py, stream) == (3, 8)


def test_a_query_of_which_another_one_has_taken_the_consumer_goes_on(
    nats_server: Server, nats_py: NatsPy, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = begin(nats_server, stream, maxOffsetsPerTrigger=2)
    begin(nats_server, stream)
    found = sequences_of(first.rows(10))
    assert found == list(range(1, 11))
    said = [record.getMessage() for record in caplog.records if "PROGRESS" in record.getMessage()]
    assert said == [
        f"[NATS_PROGRESS_TAKEN] stream {stream}: the consumer lag belongs to another query now, or to another run of "
        "this one or another program, and no longer shows how far this query is; give each query one of its own"
    ]


def test_a_consumer_that_was_deleted_is_made_again(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    query = begin(nats_server, stream)
    query.rows(10)
    nats_py.api(f"CONSUMER.DELETE.{stream}.lag")
    query.micro_batch()
    assert place(nats_py, stream) == (10, 0)


def test_a_stream_that_was_made_again_gets_its_consumer(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    query = begin(nats_server, stream, failOnDataLoss="false")
    query.rows(10)
    nats_py.delete_stream(stream)
    nats_py.create_stream(stream, [f"{stream}.>"])
    nats_py.store(f"{stream}.a", range(4))
    query.rows(4)
    wait_until(lambda: query.micro_batch() == [] and place(nats_py, stream) == (4, 0))


def test_a_consumer_that_somebody_else_has_made_meanwhile_is_not_moved(
    nats_server: Server, nats_py: NatsPy, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = begin(nats_server, stream, maxOffsetsPerTrigger=2)
    nats_py.api(f"CONSUMER.DELETE.{stream}.lag")
    theirs = {"durable_name": "lag", "ack_policy": "explicit"}
    nats_py.api(f"CONSUMER.DURABLE.CREATE.{stream}.lag", {"stream_name": stream, "config": theirs})
    assert sequences_of(query.rows(6)) == [1, 2, 3, 4, 5, 6]
    assert place(nats_py, stream) == (0, 10)
    assert sum("[NATS_PROGRESS_TAKEN]" in record.getMessage() for record in caplog.records) == 1


def test_a_consumer_that_cannot_be_moved_is_said_once_and_does_no_harm(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = "permissions: {{ publish: {{ deny: [{}] }} }}"
    config = "authorization {{ users: [{{ user: a, password: a }}, {{ user: b, password: b, " + denied + " }}] }}"
    server = server_factory(config.format('"$JS.API.CONSUMER.RESET.>"'))
    with NatsPy(server.url, user="a", password="a") as client:
        client.create_stream("S", ["s.>"])
        client.store("s.a", range(10))
        query = begin(server, "S", maxOffsetsPerTrigger=2, user="b", password="b")
        assert sequences_of(query.rows(6)) == [1, 2, 3, 4, 5, 6]
        said = [record.getMessage() for record in caplog.records if "PROGRESS" in record.getMessage()]
        assert len(said) == 1
        assert said[0].startswith("[NATS_PROGRESS_NOT_SHOWN] stream S: the consumer lag does not show how far")
        assert "Permissions Violation" in said[0]
        reload(server, config.format("nothing"))
        now = clock.monotonic()
        monkeypatch.setattr(clock, "monotonic", lambda: now + 2 * RETRY)
        query.micro_batch()
        assert place(client, "S") == (6, 4)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "was not made by spark-nats to show progress"),
        ({"metadata": {"spark-nats-progress": "x"}, "filter_subject": "x"}, "is for x"),
    ],
)
def test_somebody_elses_consumer_is_not_touched(
    nats_server: Server, nats_py: NatsPy, stream: str, config: dict[str, Any], problem: str
) -> None:
    config = {"durable_name": "lag", "ack_policy": "explicit", **config}
    made = nats_py.api(f"CONSUMER.DURABLE.CREATE.{stream}.lag", {"stream_name": stream, "config": config})
    with pytest.raises(ConsumerConflictError, match=problem) as raised:
        begin(nats_server, stream)
    assert "set the option 'progressConsumer' to another name" in str(raised.value)
    assert nats_py.api(f"CONSUMER.INFO.{stream}.lag")["config"] == made["config"]


def test_streams_on_which_a_consumer_would_hold_messages_are_refused(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, retention="interest")
    with pytest.raises(UnsupportedStreamError, match="has interest retention"):
        begin(nats_server, unique)
    assert nats_py.consumers(unique) == []
    nats_py.create_stream(f"E_{unique}", consumer_limits={"inactive_threshold": 10**10})
    with pytest.raises(UnsupportedStreamError, match="deletes consumers from which nobody pulls"):
        begin(nats_server, f"E_{unique}")


def test_it_is_not_for_queries_that_consume(nats_server: Server, stream: str) -> None:
    said = sentence_of(lambda: begin(nats_server, stream, consume="true"))
    assert said.startswith(f"{OptionError.__name__}: options 'progressConsumer' and 'consume' cannot both be set")


def test_several_streams_have_a_consumer_each_and_so_have_those_that_match_a_pattern(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    for name in ("A", "B"):
        nats_py.create_stream(f"{name}_{unique}")
        nats_py.store(f"{name}_{unique}.x", range(3))
    options = {"startingOffsets": "earliest", "progressConsumer": "lag"}
    query = Query(stream_reader(nats_server, streamPattern=f".*_{unique}", **options))
    query.rows(6)
    query.micro_batch()
    assert [place(nats_py, f"{name}_{unique}") for name in ("A", "B")] == [(3, 0), (3, 0)]


def test_a_new_query_can_begin_where_the_consumer_is(nats_server: Server, nats_py: NatsPy, stream: str) -> None:
    query = begin(nats_server, stream, maxOffsetsPerTrigger=7)
    query.micro_batch()
    query.micro_batch()
    moved = begin(nats_server, stream, startingOffsets=json.dumps({stream: "consumer:lag"}))
    assert sequences_of(moved.rows(3)) == [8, 9, 10]


def test_the_consumer_of_a_cluster_has_a_leader_like_any_other(cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, [f"{unique}.>"], num_replicas=3)
        client.store(f"{unique}.a", range(10))
        query = begin(cluster.urls, unique)
        query.rows(10)
        wait_until(lambda: query.micro_batch() == [] and place(client, unique) == (10, 0), timeout=60)


def test_the_command_line_of_nats_reports_the_lag_of_a_query(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, stream: str, tmp_path: Path
) -> None:
    source = nats(
        spark.readStream, nats_server, stream=stream, startingOffsets="earliest", progressConsumer="lag"
    ).load()
    sink = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query = sink.start()
    assert query.awaitTermination(60)
    nats_py.store(f"{stream}.a", range(3))
    wait_until(lambda: place(nats_py, stream) == (10, 3))
    info = json.loads(run_nats(nats_server, "consumer", "info", stream, "lag", "--json"))
    assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (10, 3)
    shown = run_nats(nats_server, "consumer", "report", stream)
    (line,) = [line for line in shown.splitlines() if " lag " in line]
    assert "3 / 23%" in line
