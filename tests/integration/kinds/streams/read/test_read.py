"""Reading streams with Spark: every message once, byte for byte, in the order of the stream."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql.functions import input_file_name, spark_partition_id
from pyspark.sql.types import StructType

from spark_nats import NatsDataSource
from spark_nats.protocol.messages import Messages
from tests.integration.support import (
    MESSAGE,
    SEQUENCE,
    batch_reader,
    finish,
    nats,
    read,
    read_payloads,
    stream_reader,
    texts_of,
)
from tests.nats_py import Headers, NatsPy, wait_until
from tests.servers import Server, ServerFactory

MESSAGES = 20_000  # more than a pull request or a batch of direct gets asks for
TRAPS = [b"", b"\r\n", b"\r\nMSG a 1 5\r\n", b"HMSG a 1 0 9\r\nNATS/1.0\r\n\r\n", b"\0\xff\r\nPING\r\n-ERR 'x'\r\n"]
LARGE = {4_973 + 701 * i: 1024 << (i % 10) for i in range(20)}  # place: size, up to 512 KiB
COLUMNS = ["subject", "reply", "headers", "payload", "stream", "sequence"]


@dataclass(frozen=True)
class Corpus:
    """A stream and what was sent to it, as rows without their time."""

    stream: str
    rows: pa.Table


def message(i: int, stream: str) -> tuple[str, bytes, Headers | None]:
    """The i-th message: many subjects, every kind of header, payloads of all sizes and with the protocol in them."""
    region = ("eu", "us", "ünï")[i % 7 % 3]
    headers: list[Headers | None] = [None, {"Kind": "order"}, {"Tag": [str(i), "two words", ""], "kind": "a: b"}]
    if i in LARGE:
        payload = random.Random(i).randbytes(LARGE[i])
    elif i % 20 < len(TRAPS):
        payload = TRAPS[i % 20] * (1 + i % 3)
    else:
        payload = (b"%d;" % i * 40)[: 1 + i % 211]
    return f"{stream}.{region}.{i % 997}", payload, headers[i % 3]


@pytest.fixture(scope="module")
def corpus(nats_server: Server) -> Iterator[Corpus]:
    """Messages of every kind, published once by nats-py."""
    stream = "CORPUS"
    sent = [message(i, stream) for i in range(MESSAGES)]
    subjects, payloads, headers = zip(*sent, strict=True)
    rows = pa.table(
        {
            "subject": subjects,
            "reply": pa.nulls(MESSAGES, pa.string()),
            "headers": pa.array([as_map(each) for each in headers], pa.map_(pa.string(), pa.list_(pa.string()))),
            "payload": pa.array(payloads, pa.binary()),
            "stream": pa.repeat(stream, MESSAGES),
            "sequence": pa.array(range(1, MESSAGES + 1), pa.int64()),
        }
    )
    with NatsPy(nats_server.url) as client:
        client.create_stream(stream)
        client.publish_acked(sent)
        yield Corpus(stream, rows)
        client.delete_stream(stream)


def as_map(headers: Headers | None) -> dict[str, list[str]]:
    return {name: [value] if isinstance(value, str) else list(value) for name, value in (headers or {}).items()}


def assert_same_rows(actual: pa.Table, expected: pa.Table) -> None:
    """Compare all columns; names the first that differs, since a diff of 100,000 rows says nothing."""
    assert actual.num_rows == expected.num_rows
    actual = actual.sort_by("sequence")
    for name in expected.column_names:
        column = actual.column(name).combine_chunks()
        assert column.equals(expected.column(name).cast(column.type).combine_chunks()), f"column {name} differs"


def assert_in_order(sequences: pa.ChunkedArray, parts: pa.ChunkedArray, count: int) -> None:
    """Each part holds rising sequences, and no sequence is in two parts."""
    assert len(pc.unique(sequences)) == len(sequences)
    assert len(pc.unique(parts)) == count
    table = pa.table({"sequence": sequences, "part": parts})
    for part in pc.unique(parts):
        inside = table.filter(pc.equal(table["part"], part))["sequence"].to_numpy()
        assert (inside[1:] > inside[:-1]).all()


LAYOUTS = pytest.mark.parametrize(
    ("layout", "partitions"),
    [({}, 1), ({"minPartitions": 7}, 7), ({"maxRecordsPerPartition": 3_000}, 7)],
    ids=["one partition", "at least 7", "at most 3000 each"],
)
FILTERS = pytest.mark.parametrize("region", [None, "eu"], ids=["whole stream", "wildcard filter"])


def chosen(corpus: Corpus, region: str | None) -> tuple[dict[str, Any], pa.Table]:
    """The option that filters by region, and the rows to expect."""
    if region is None:
        return {}, corpus.rows
    subject = f"{corpus.stream}.{region}."
    return {"subject": f"{subject}*"}, corpus.rows.filter(pc.starts_with(corpus.rows["subject"], subject))


@LAYOUTS
@FILTERS
def test_a_batch_reads_what_was_sent(
    nats_server: Server, corpus: Corpus, layout: dict[str, Any], partitions: int, region: str | None
) -> None:
    only, expected = chosen(corpus, region)
    reader = batch_reader(nats_server, MESSAGE, stream=corpus.stream, **layout, **only)
    actual = read_parts(reader, reader.partitions())
    assert_in_order(actual["sequence"], actual["part"], partitions)
    assert_same_rows(actual, expected)


@LAYOUTS
@FILTERS
def test_a_streaming_query_reads_what_was_sent(
    nats_server: Server, corpus: Corpus, layout: dict[str, Any], partitions: int, region: str | None
) -> None:
    only, expected = chosen(corpus, region)
    options = {"stream": corpus.stream, "startingOffsets": "earliest", **layout, **only}
    reader = stream_reader(nats_server, MESSAGE, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    actual = read_parts(reader, reader.partitions(start, end))
    assert_in_order(actual["sequence"], actual["part"], partitions)
    assert_same_rows(actual, expected)


def read_parts(reader: Any, partitions: list[Any]) -> pa.Table:
    """The rows of partitions, and the number of its partition in each."""
    batches = [
        batch.append_column("part", pa.repeat(number, batch.num_rows))
        for number, partition in enumerate(partitions)
        for batch in reader.read(partition)
    ]
    return pa.Table.from_batches(batches)


@pytest.mark.long("spark_nats/kinds/streams/read/*")
@pytest.mark.promise("writing#stream-to-spark")
def test_spark_reads_a_batch_of_several_partitions_as_it_was_sent(
    spark: SparkSession, nats_server: Server, corpus: Corpus
) -> None:
    frame = nats(spark.read, nats_server, stream=corpus.stream, minPartitions=7).load()
    actual = frame.withColumn("partition", spark_partition_id()).toArrow()
    assert_in_order(actual["sequence"], actual["partition"], 7)
    assert_same_rows(actual, corpus.rows)


def test_spark_reads_a_stream_of_several_partitions_as_it_was_sent(
    spark: SparkSession, nats_server: Server, corpus: Corpus, tmp_path: Path
) -> None:
    only, expected = chosen(corpus, "eu")
    options = {"stream": corpus.stream, "startingOffsets": "earliest", "maxRecordsPerPartition": 3_000, **only}
    writer = nats(spark.readStream, nats_server, **options).load().writeStream
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    finish(writer.trigger(availableNow=True).start(str(tmp_path / "rows"), format="parquet"))
    # A task writes one file, in the order in which it reads.
    actual = spark.read.parquet(str(tmp_path / "rows")).withColumn("file", input_file_name()).toArrow()
    assert_in_order(actual["sequence"], actual["file"], 7)
    assert_same_rows(actual, expected)


def read_texts(server: Server | str, **options: Any) -> list[str]:
    """The payloads of a batch that is read without Spark."""
    return [payload.decode() for payload in read_payloads(server, **options)]


# Small streams from here on


def create_filled(client: NatsPy, stream: str, count: int, **config: Any) -> list[str]:
    """Make a stream with payloads "1", "2", … on the subjects `<stream>.a` and `.b` in turn; their texts."""
    client.create_stream(stream, **config)
    client.publish_acked([(f"{stream}.{'ba'[i % 2]}", b"%d" % i) for i in range(1, count + 1)])
    return [str(i) for i in range(1, count + 1)]


def test_every_column_is_what_nats_py_sees(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked(
        [(f"{unique}.a", b"first"), (f"{unique}.b", b"", {"One": "1", "Two": ["a", "b: c"]}), (f"{unique}.c", b"\xff")]
    )
    seen = [(m.subject, None, m.headers, m.payload, m.stream, m.sequence) for m in nats_py.read_stream(unique)]
    frame = nats(spark.read, nats_server, stream=unique).load()
    schema = "subject STRING, reply STRING, headers MAP<STRING, ARRAY<STRING>>, payload BINARY, stream STRING, "
    assert_df_equality(frame.drop("timestamp"), spark.createDataFrame(seen, schema + "sequence BIGINT"))
    assert frame.schema == StructType.fromDDL(schema + "sequence BIGINT, timestamp TIMESTAMP") == MESSAGE
    assert [row.timestamp for row in frame.collect()] == [stored_at(nats_py, unique, i) for i in (1, 2, 3)]


@pytest.mark.docker
def test_every_column_of_a_row_is_what_nats_py_sees(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked(
        [(f"{unique}.a", b"first"), (f"{unique}.b", b"", {"One": "1", "Two": ["a", "b: c"]}), (f"{unique}.c", b"\xff")]
    )
    seen = [(m.subject, None, m.headers, m.payload, m.stream, m.sequence) for m in nats_py.read_stream(unique)]
    rows = read(nats_server, stream=unique)
    assert [tuple(dict(row[name]) if name == "headers" else row[name] for name in COLUMNS) for row in rows] == seen
    times = [row["timestamp"].astimezone(UTC).replace(tzinfo=None) for row in rows]
    assert times == [stored_at(nats_py, unique, i) for i in (1, 2, 3)]


def stored_at(client: NatsPy, stream: str, sequence: int) -> datetime:
    """When the server stored a message, to the microsecond, in UTC as the session's time zone is."""
    text = client.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})["message"]["time"]
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    microseconds = int(fraction[:6].ljust(6, "0"))
    return datetime.fromisoformat(seconds).replace(microsecond=microseconds)


def test_a_schema_picks_columns_in_any_order(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    create_filled(nats_py, unique, 2)
    frame = nats(spark.read, nats_server, stream=unique).schema("payload BINARY, sequence BIGINT").load()
    assert_df_equality(
        frame, spark.createDataFrame([(b"1", 1), (b"2", 2)], "payload BINARY, sequence BIGINT"), ignore_nullable=True
    )


def test_columns_that_nobody_asked_for_are_not_built(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_filled(nats_py, unique, 2)
    for costly in ("headers", "payloads", "subjects"):
        monkeypatch.delattr(Messages, costly)
    assert read(nats_server, SEQUENCE, stream=unique) == [{"sequence": 1}, {"sequence": 2}]


def test_a_batch_leaves_no_consumer_behind_its_partitions(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 40)
    reader = batch_reader(nats_server, stream=unique, minPartitions=4)
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 40
    wait_until(lambda: nats_py.consumers(unique) == [], timeout=30)


def test_spark_that_wants_no_more_rows_leaves_no_consumer(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Spark may end the process of a task whose rows it does not want: the server would keep them for a minute."""
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 40)
    frame = nats(spark.read, nats_server, stream=unique, minPartitions=4).load()
    assert not frame.isEmpty()
    wait_until(lambda: nats_py.consumers(unique) == [], timeout=30)
    assert len(frame.take(1)) == len(frame.limit(1).collect()) == 1
    wait_until(lambda: nats_py.consumers(unique) == [], timeout=30)


def test_a_count_needs_no_columns(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    create_filled(nats_py, unique, 25)
    assert nats(spark.read, nats_server, stream=unique, minPartitions=3).load().count() == 25


def test_several_streams_are_one_dataframe(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    create_filled(nats_py, f"{unique}_1", 30)
    create_filled(nats_py, f"{unique}_2", 20)
    found = read(nats_server, stream=f"{unique}_1, {unique}_2", minPartitions=4)
    rows = [(row["stream"], row["sequence"], row["payload"]) for row in found]
    expected = [(f"{unique}_{n}", i, b"%d" % i) for n, size in ((1, 30), (2, 20)) for i in range(1, size + 1)]
    assert sorted(rows) == expected


def test_several_filters_are_one_selection(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.{'abc'[i % 3]}.x", b"%d" % i) for i in range(12)])
    found = read_texts(nats_server, stream=unique, subject=f"{unique}.a.>, {unique}.c.*")
    assert found == ["0", "2", "3", "5", "6", "8", "9", "11"]
    assert read_texts(nats_server, stream=unique, subject=f"{unique}.d.>") == []


def test_offsets_say_where_to_begin_and_to_end(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    first, second = f"{unique}_1", f"{unique}_2"
    create_filled(nats_py, first, 9)
    create_filled(nats_py, second, 4)

    def found(**options: str) -> list[tuple[str, int]]:
        rows = read(nats_server, stream=f"{first},{second}", **options)
        return sorted((row["stream"], row["sequence"]) for row in rows)

    everything = [(first, i) for i in range(1, 10)] + [(second, i) for i in range(1, 5)]
    assert found() == everything
    assert found(startingOffsets="earliest", endingOffsets="latest") == everything
    assert found(
        startingOffsets=f'{{"{first}": 3, "{second}": "earliest"}}', endingOffsets=f'{{"{first}": 6, "{second}": 3}}'
    ) == [(first, 3), (first, 4), (first, 5), (second, 1), (second, 2)]
    assert found(startingOffsets=f'{{"{first}": 10, "{second}": 4}}') == [(second, 4)]  # 10 is the next to be stored


def test_times_say_where_to_begin_and_to_end(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    bounds = []
    for i in range(4):
        nats_py.publish_acked([(f"{unique}.x", b"%d" % i)])
        bounds.append(int(time.time() * 1000) + 2)  # a millisecond that is after this message and before the next
        wait_until(lambda: time.time() * 1000 > bounds[-1] + 1)
    iso = [datetime.fromtimestamp(bound / 1000, UTC) for bound in bounds]

    def found(**options: str | int) -> list[str]:
        return read_texts(nats_server, stream=unique, **options)

    assert found(startingTimestamp=bounds[0]) == ["1", "2", "3"]
    assert found(endingTimestamp=bounds[1]) == ["0", "1"]
    assert found(startingTimestamp=bounds[0], endingTimestamp=bounds[2]) == ["1", "2"]
    assert found(startingTimestamp=iso[1].isoformat()) == ["2", "3"]
    assert found(startingTimestamp=iso[2].astimezone(timezone(timedelta(hours=-5))).isoformat()) == ["3"]
    assert found(startingTimestamp=bounds[3]) == []
    assert found(endingTimestamp="1999-12-31T00:00:00Z") == []
    exact = stored_at(nats_py, unique, 2)
    assert found(startingTimestamp=exact.isoformat(), endingTimestamp=bounds[1]) == ["1"]


def test_offsets_and_times_are_options_of_spark(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    create_filled(nats_py, unique, 9)
    offsets = {"startingOffsets": f'{{"{unique}": 3}}', "endingOffsets": f'{{"{unique}": 6}}'}
    assert texts_of(nats(spark.read, nats_server, stream=unique, **offsets).load().collect()) == ["3", "4", "5"]
    times = {"startingTimestamp": stored_at(nats_py, unique, 8).isoformat(), "endingTimestamp": "9999-12-31"}
    assert texts_of(nats(spark.read, nats_server, stream=unique, **times).load().collect()) == ["8", "9"]


def test_messages_that_were_deleted_are_left_out(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    create_filled(nats_py, unique, 40)
    gone = {2, 3, 4, 17, 20, 21, 39}
    for sequence in gone:
        nats_py.delete_message(unique, sequence)
    left = [str(i) for i in range(1, 41) if i not in gone]
    assert read_texts(nats_server, stream=unique) == left
    # some of these partitions hold no message at all, others end with a deleted one
    assert read_texts(nats_server, stream=unique, maxRecordsPerPartition=2) == left
    odd = [i for i in left if int(i) % 2]
    assert read_texts(nats_server, stream=unique, subject=f"{unique}.a", maxRecordsPerPartition=2) == odd


def test_the_end_of_a_stream_may_be_deleted(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    create_filled(nats_py, unique, 10)
    for sequence in (9, 10):
        nats_py.delete_message(unique, sequence)
    assert read_texts(nats_server, stream=unique, idleTimeout="0.5s") == [str(i) for i in range(1, 9)]
    wait_until(lambda: not nats_py.consumers(unique))


def test_an_empty_stream_has_no_rows(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(f"{unique}_NEW")
    create_filled(nats_py, f"{unique}_PURGED", 5)
    nats_py.purge_stream(f"{unique}_PURGED")
    for stream in (f"{unique}_NEW", f"{unique}_PURGED"):
        assert read(nats_server, stream=stream, minPartitions=3) == []
    frame = nats(spark.read, nats_server, stream=f"{unique}_NEW", minPartitions=3).load()
    assert frame.collect() == []
    assert frame.count() == 0


def test_a_missing_stream_is_made_if_so_asked(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    simple, configured = f"{unique}_1", f"{unique}_2"
    options = {"stream": simple, "subject": f"{simple}.>", "createStream": True}
    assert read_texts(nats_server, **options) == []
    assert nats_py.stream_info(simple)["config"]["subjects"] == [f"{simple}.>"]
    nats_py.publish_acked([(f"{simple}.a", b"kept")])
    assert read_texts(nats_server, **options) == ["kept"]  # not made again

    config = f'{{"subjects": ["{configured}.x"], "storage": "memory", "max_msgs": 7}}'
    assert read(nats_server, stream=configured, createStream=config) == []
    made = nats_py.stream_info(configured)["config"]
    assert (made["subjects"], made["storage"], made["max_msgs"]) == ([f"{configured}.x"], "memory", 7)


def test_sql_can_name_the_format(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    create_filled(nats_py, unique, 6)
    spark.sql(
        f"CREATE TEMPORARY VIEW {unique} USING nats OPTIONS (servers '{nats_server.url}', stream '{unique}', "
        f"subject '{unique}.a')"
    )
    try:
        found = spark.sql(f"SELECT sequence, CAST(payload AS STRING) AS text FROM {unique} WHERE sequence > 1")
        assert [(row.sequence, row.text) for row in found.collect()] == [(3, "3"), (5, "5")]
    finally:
        spark.catalog.dropTempView(unique)


@pytest.mark.long("spark_nats/datasource.py")
def test_the_source_can_be_registered_by_hand(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    own = spark.newSession()  # the registration stays in it
    own.dataSource.register(NatsDataSource)
    expected = create_filled(nats_py, unique, 3)
    assert texts_of(nats(own.read, nats_server, stream=unique).load().collect()) == expected


def test_option_names_are_case_insensitive(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    create_filled(nats_py, unique, 3)
    options = {"SERVERS": nats_server.url, "Stream": unique, "STARTINGOFFSETS": f'{{"{unique}": 3}}'}
    assert texts_of(spark.read.format("nats").options(**options).load().collect()) == ["3"]


def test_the_first_server_that_answers_is_used(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    expected = create_filled(nats_py, unique, 2)
    servers = f"nats://127.0.0.1:1,{nats_server.url}"
    assert read_texts(servers, stream=unique) == expected


def test_messages_as_large_as_the_server_allows_are_read(spark: SparkSession, server_factory: ServerFactory) -> None:
    server = server_factory("max_payload: 8388608")
    sizes = [1, 8_388_608, 3, 5_000_000, 0]
    with NatsPy(server.url) as client:
        client.create_stream("LARGE")
        client.publish_acked([("LARGE.x", bytes([65 + i]) * size) for i, size in enumerate(sizes)])
    expected = [(size, {65 + i} if size else set()) for i, size in enumerate(sizes)]
    rows = nats(spark.read, server, stream="LARGE").load().collect()
    assert [(len(row.payload), set(row.payload)) for row in rows] == expected
    payloads = read_payloads(server, stream="LARGE", subject="LARGE.*")
    assert [(len(payload), set(payload)) for payload in payloads] == expected
