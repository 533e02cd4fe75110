"""What queries are made of besides reading and writing: foreachBatch, joins, watermarks, several queries at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, window
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.jobs import ROOT
from tests.integration.support import finish, nats, numbers_of, running, save, wait_for_subscriptions
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, ServerFactory

RECIPE = (ROOT / "docs" / "with-spark.md").read_text().split("```python\n")[1]


def into_memory(frame: DataFrame, name: str, **options: Any) -> StreamingQuery:
    return frame.writeStream.format("memory").queryName(name).options(**options).start()


@pytest.mark.long("spark_nats/kinds/streams/write/*", "docs/with-spark.md")
@pytest.mark.promise("exactly-once#foreach-batch")
def test_the_recipe_for_several_places_stores_nothing_twice_when_a_micro_batch_is_run_again(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory()
    stream = nats(spark.readStream, server, stream="ORDERS", startingOffsets="earliest").load()
    code = RECIPE.split("```")[0].replace('.format("nats")', f'.format("nats").option("servers", "{server.url}")')
    code = code.replace("/data/", f"{tmp_path}/")
    archive = tmp_path / "archive"

    def run(messages: int) -> None:
        names: dict[str, Any] = {"stream": stream}
        exec(compile(code, "with-spark.md", "exec"), names)
        with running(names["query"]):
            wait_until(lambda: client.held("RESULTS") >= messages)
            names["query"].processAllAvailable()

    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", ["orders.>"])
        client.create_stream("RESULTS", ["results.>"])
        client.store("orders.eu", range(1, 11))
        run(10)
        # As after a crash between the last row and the end of the micro-batch.
        for name in ("0", ".0.crc"):
            (tmp_path / "checkpoints" / "both" / "commits" / name).unlink()
        client.store("orders.eu", range(11, 16))
        run(15)
        stored = client.stored_numbers("RESULTS")
    assert stored == list(range(1, 16))
    kept = spark.read.parquet(*(str(path) for path in archive.iterdir()))
    assert sorted(numbers_of(kept.collect())) == list(range(1, 16))


@pytest.mark.long
def test_a_stream_is_joined_with_a_batch_read(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    names, orders = f"{unique}_NAMES", f"{unique}_ORDERS"
    for stream in (names, orders):
        nats_py.create_stream(stream)
    nats_py.publish_acked([(f"{names}.1", b"Ann"), (f"{names}.2", b"Bob")])
    nats_py.publish_acked([(f"{orders}.x", customer) for customer in (b"2", b"3", b"1", b"2")])
    known = nats(spark.read, nats_server, stream=names).load()
    known = known.selectExpr("element_at(split(subject, '[.]'), -1) AS customer", "string(payload) AS name")
    read = nats(spark.readStream, nats_server, stream=orders, startingOffsets="earliest").load()
    joined = read.selectExpr("sequence", "string(payload) AS customer").join(known, "customer", "left")
    query = joined.writeStream.format("memory").queryName(unique).trigger(availableNow=True).start()
    finish(query)
    found = {row.sequence: row.name for row in spark.table(unique).collect()}
    assert found == {1: "Bob", 2: None, 3: "Ann", 4: "Bob"}


@pytest.mark.long("spark_nats/kinds/*", "docs/with-spark.md")
@pytest.mark.promise(
    "with-spark#static-bucket",
    "with-spark#static-stream",
    "with-spark#static-objects",
    "with-spark#static-table",
    "with-spark#static-cached",
)
def test_what_each_micro_batch_finds_in_a_batch_read(spark: SparkSession, server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("ORDERS", ["orders"])
        client.create_stream("S", ["s.>"])
        client.create_stream("KV_B", ["$KV.B.>"], max_msgs_per_subject=5, allow_rollup_hdrs=True, allow_direct=True)
        store = client.run(client.nats.jetstream().create_object_store("O"))

        def more(number: int) -> None:
            """One more of everything; the first object grows."""
            client.create_stream(f"T{number}")
            client.publish_acked([(f"s.{number}", b"x"), (f"$KV.B.{number}", b"x"), ("orders", b"x")])
            for name in {"first", f"later {number}"} if number else {"first"}:
                client.run(store.put(name, b"x" * (number + 1)))

        more(0)
        sides = {
            "bucket": nats(spark.read, server, bucket="B").load(),
            "history": nats(spark.read, server, bucket="B", history=True).load(),
            "latest": nats(spark.read, server, bucket="B", asOf="latest").load(),
            "cached": nats(spark.read, server, bucket="B").load().cache(),
            "at 1": nats(spark.read, server, bucket="B", asOf=1).load(),
            "stream": nats(spark.read, server, stream="S").load(),
            "objects": nats(spark.read, server, objectStore="O").load().selectExpr("explode(sequence(1, size))"),
            "streams": nats(spark.read, server, table="streams").load(),
            "figures": nats(spark.read, server, table="subjects").load().where("subject LIKE 's.%'"),
        }
        rows = None
        for name, side in sides.items():
            named = side.selectExpr(f"'{name}' AS side")
            rows = named if rows is None else rows.union(named)
        assert rows is not None
        orders = nats(spark.readStream, server, stream="ORDERS", startingOffsets="earliest").load()
        found = orders.select("sequence").crossJoin(rows).groupBy("sequence", "side").count()
        query = found.writeStream.outputMode("complete").format("memory").queryName("static_sides").start()
        with running(query):
            query.processAllAvailable()
            for number in (1, 2):
                more(number)
                query.processAllAvailable()
        counts = {
            name: [
                row["count"]
                for row in spark.table("static_sides").where(f"side = '{name}'").orderBy("sequence").collect()
            ]
            for name in sides
        }
        sides["cached"].unpersist()
    assert counts == {
        "bucket": [1, 2, 3],
        "history": [1, 2, 3],
        "latest": [1, 2, 3],
        "cached": [1, 1, 1],
        "at 1": [1, 1, 1],
        "stream": [1, 1, 1],
        "objects": [1, 2, 3],
        "streams": [5, 5, 5],
        "figures": [1, 2, 3],
    }


@pytest.mark.long("spark_nats/kinds/streams/write/*", "docs/with-spark.md")
@pytest.mark.promise("with-spark#append-mode")
def test_the_timestamp_can_be_the_watermark(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    read = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    counted = (
        read.withWatermark("timestamp", "0 seconds").groupBy(window("timestamp", "200 milliseconds")).agg(count("*"))
    )
    published = 0

    def complete() -> list[Any]:
        nonlocal published
        published += 1
        nats_py.publish_acked([(f"{unique}.x", b"")])
        return list(spark.table(unique).collect())

    with running(into_memory(counted, unique)):
        # A window is complete, and comes out, when a later message has moved the watermark past its end.
        windows = wait_until(lambda: len(found := complete()) >= 2 and found)
    stamps = [message.timestamp for message in nats_py.read_stream(unique)]
    first = min(windows, key=lambda row: row.window.start)
    begin, end = (time.timestamp() for time in (first.window.start, first.window.end))
    assert first["count(1)"] == sum(begin <= stamp.timestamp() < end for stamp in stamps if stamp)
    assert published == len(stamps)


@pytest.mark.long("spark_nats/kinds/streams/write/*", "docs/with-spark.md")
def test_a_thread_in_which_the_session_is_active_writes(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    """Otherwise Spark does not find the format there, as with-spark.md says."""
    nats_py.create_stream(unique)
    rows = spark.sql(f"SELECT '{unique}.a' AS subject, '1' AS payload")

    def write() -> None:
        spark.createDataFrame([], "nothing INT")
        save(rows, nats_server, stream=unique)
        stream = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
        copy = stream.selectExpr(f"'{unique}.b' AS subject", "payload").writeStream.trigger(availableNow=True)
        finish(nats(copy, nats_server, stream=unique, checkpointLocation=str(tmp_path)).start())

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    assert [message.subject for message in nats_py.read_stream(unique)] == [f"{unique}.a", f"{unique}.b"]


@pytest.mark.long
def test_several_queries_in_a_session_do_not_know_of_each_other(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    one, two, core = f"{unique}_1", f"{unique}_2", f"{unique}_3"
    for stream in (one, two):
        nats_py.create_stream(stream)
    nats_py.store(f"{one}.x", range(1, 6))
    nats_py.store(f"{two}.x", range(6, 10))
    earliest = {"startingOffsets": "earliest"}
    frames = {
        one: nats(spark.readStream, nats_server, stream=one, **earliest).load(),
        two: nats(spark.readStream, nats_server, stream=two, **earliest).load(),
        f"{one}_limited": nats(spark.readStream, nats_server, stream=one, maxOffsetsPerTrigger=2, **earliest).load(),
        core: nats(spark.readStream, nats_server, subject=core).load(),
    }
    expected = {one: [1, 2, 3, 4, 5], two: [6, 7, 8, 9], f"{one}_limited": [1, 2, 3, 4, 5], core: [10, 11]}

    def read(name: str) -> list[int]:
        return sorted(int(row.payload) for row in spark.table(name).select(col("payload").cast("string")).collect())

    queries = [into_memory(frame, name) for name, frame in frames.items()]
    try:
        wait_for_subscriptions(nats_server, core)
        for i in (10, 11):
            nats_py.publish(core, b"%d" % i)
        wait_until(lambda: {name: read(name) for name in frames} == expected)
        assert [query.exception() for query in queries] == [None] * len(queries)
    finally:
        for query in queries:
            query.stop()
