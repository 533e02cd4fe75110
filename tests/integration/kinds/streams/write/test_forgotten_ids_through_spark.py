"""Queries whose last micro-batch runs again after a server has forgotten message ids: what Spark and its users see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_nats.embedded import NatsServer
from tests.integration.support import error_of, finish, forget_last_commit, nats
from tests.nats_py import NatsPy, wait_until
from tests.servers import ServerFactory, end

FILES = ("spark_nats/kinds/streams/write/*", "spark_nats/jetstream/id_memory.py", "spark_nats/jetstream/publishing/*")
KEYS = [f"k{i}" for i in range(5)]


@pytest.fixture
def server(server_factory: ServerFactory, tmp_path: Path) -> NatsServer:
    return server_factory(store_dir=tmp_path / "store")


@pytest.fixture
def client(server: NatsServer) -> Iterator[NatsPy]:
    with NatsPy(server.url) as connected:
        connected.create_stream("FROM")
        connected.publish_acked([(f"FROM.{KEYS[i % 5]}", str(i).encode()) for i in range(100)])
        yield connected


def copy(spark: SparkSession, server: NatsServer, checkpoint: Path, columns: list[str], **options: Any) -> None:
    """Run a query that writes what FROM has, and ends."""
    frame = nats(spark.readStream, server, stream="FROM", startingOffsets="earliest").load().selectExpr(columns)
    writer = nats(frame.writeStream, server, checkpointLocation=str(checkpoint), **options)
    finish(writer.trigger(availableNow=True).start())


def restart(server: NatsServer, client: NatsPy) -> None:
    end(server)
    server.start()
    wait_until(lambda: client.reaches_stream("FROM.>"))


@pytest.mark.long(*FILES)
@pytest.mark.promise("exactly-once#forgotten-queue")
def test_a_replay_into_a_drained_work_queue_ends_the_query_after_a_restart_unless_it_may_lose_data(
    spark: SparkSession, server: NatsServer, client: NatsPy, tmp_path: Path
) -> None:
    client.create_stream("TO", retention="workqueue")
    columns = ["concat('TO.', split(subject, '[.]')[1]) AS subject", "payload"]
    checkpoint = tmp_path / "checkpoint"

    def given() -> int:
        return int(client.stream_info("TO")["state"]["last_seq"])

    def run(**options: Any) -> None:
        copy(spark, server, checkpoint, columns, stream="TO", **options)

    run()
    client.purge_stream("TO")
    forget_last_commit(checkpoint)
    run()  # its ids are known
    assert given() == 100
    forget_last_commit(checkpoint)
    restart(server, client)
    assert error_of(run) == (
        "DataLossError: partition 0 of micro-batch 0 was begun before, and it is unknown what it stored then: stream "
        "'TO' has workqueue retention, and cannot be read back; set the option 'failOnDataLoss' to false to continue "
        "with all of its rows that are not found, so that some may be stored twice"
    )
    assert given() == 100
    run(failOnDataLoss=False)
    assert given() == 200
    client.publish_acked([("FROM.k0", b"100")])
    run()
    assert given() == 201


@pytest.mark.long(*FILES)
@pytest.mark.promise("exactly-once#forgotten-bucket")
@pytest.mark.parametrize("history", [1, 5])
def test_a_replay_into_a_bucket_leaves_each_key_with_its_last_value_after_a_restart(
    spark: SparkSession, server: NatsServer, client: NatsPy, tmp_path: Path, history: int
) -> None:
    client.create_stream("KV_B", ["$KV.B.>"], max_msgs_per_subject=history, allow_rollup_hdrs=True, allow_direct=True)
    columns = ["split(subject, '[.]')[1] AS key", "payload AS value"]
    checkpoint = tmp_path / "checkpoint"
    for harm in (lambda: None, lambda: restart(server, client)):
        copy(spark, server, checkpoint, columns, bucket="B")
        found = {message.subject: message.payload for message in client.read_stream("KV_B")}
        assert found == {f"$KV.B.k{i % 5}": str(i).encode() for i in range(95, 100)}
        forget_last_commit(checkpoint)
        harm()
    copy(spark, server, checkpoint, columns, bucket="B")
    found = {message.subject: message.payload for message in client.read_stream("KV_B")}
    assert found == {f"$KV.B.k{i % 5}": str(i).encode() for i in range(95, 100)}
