"""Writing with Spark, to streams and to core NATS, seen by nats-py."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.functions import count, expr, lit
from pyspark.sql.pandas.types import from_arrow_schema

from spark_nats.errors import InvalidRowError, PublishError
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import Counts, WriteTask, Written
from spark_nats.protocol.control import MAX_CONTROL_LINE
from tests.integration.support import (
    error_of,
    finish,
    forget_last_commit,
    nats,
    read,
    run_task,
    save,
    sentence_of,
    source,
    write,
)
from tests.nats_py import Message, NatsPy, send_raw, wait_until
from tests.servers import BINARY_2_10, BINARY_2_12, OLDER_BINARY, Server, ServerFactory

ROWS = 48_000  # two batches of Arrow in each of four partitions
HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))


HEADER = pa.map_(pa.string(), pa.string())
EXPECTED_STREAM, MSG_ID = "Nats-Expected-Stream", "Nats-Msg-Id"  # what a write to a stream adds


def many_rows(spark: SparkSession, prefix: str) -> DataFrame:
    """Rows that a number settles, in four partitions: many subjects, header maps of every kind, odd payloads."""
    return spark.range(0, ROWS, 1, 4).selectExpr(
        f"concat('{prefix}.', id % 7, '.ü', id % 100) AS subject",
        "CASE WHEN id % 4 = 1 THEN map() WHEN id % 4 <> 3 THEN "
        "map('Row', array(string(id)), 'Tag', array('x', '', 'a: b')) END AS headers",
        "CASE WHEN id % 5 = 0 THEN X'' WHEN id % 5 = 1 THEN encode(concat('\\r\\nMSG a 1 ', id, '\\r\\n'), 'utf-8') "
        "ELSE unhex(repeat(lpad(hex(id), 8, '0'), int(id % 60))) END AS payload",
        f"CASE WHEN id % 3 = 0 THEN concat('{prefix}_reply.', id) END AS reply",
    )


def many_messages(prefix: str, with_reply: bool) -> list[tuple[Any, ...]]:
    """The same rows, without Spark."""
    messages = []
    for i in range(ROWS):
        headers = {"Row": [str(i)], "Tag": ["x", "", "a: b"]} if i % 2 == 0 else {}
        payload = i.to_bytes(4, "big") * (i % 60)
        if i % 5 < 2:
            payload = b"\r\nMSG a 1 %d\r\n" % i if i % 5 else b""
        reply = f"{prefix}_reply.{i}" if with_reply and i % 3 == 0 else None
        messages.append((f"{prefix}.{i % 7}.ü{i % 100}", payload, reply, headers))
    return messages


def essence(message: Message) -> tuple[Any, ...]:
    return message.subject, message.payload, message.reply, message.headers


def in_any_order(rows: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(map(repr, rows))


def stored_messages(client: NatsPy, stream: str, after: int = 0) -> list[Message]:
    """What the stream holds after so many messages, less the header that names it, which each of them must have."""
    messages = client.read_stream(stream)[after:]
    for message in messages:
        assert message.headers.pop(EXPECTED_STREAM) == [stream]
    return messages


def test_a_stream_holds_what_was_written(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    save(many_rows(spark, unique).drop("reply"), nats_server, stream=unique, deduplicate=False)
    messages = [essence(message) for message in stored_messages(nats_py, unique)]
    expected = many_messages(unique, with_reply=False)
    assert in_any_order(messages) == in_any_order(expected)
    # Each of the four partitions kept its order.
    numbers = [int(headers["Row"][0]) for _, _, _, headers in messages if headers]
    for partition in range(4):
        inside = [number for number in numbers if number * 4 // ROWS == partition]
        assert inside == sorted(inside)
    nats_py.delete_stream(unique)


def table_of(**columns: Any) -> pa.Table:
    """Rows with these columns; headers are dicts."""
    types = {"headers": HEADERS, "reply": pa.string(), "msg_id": pa.string(), "subject": pa.string()}
    headers = columns.get("headers")
    if headers is not None:
        columns["headers"] = [None if each is None else list(each.items()) for each in headers]
        if any(isinstance(value, str) for each in headers if each for value in each.values()):
            types["headers"] = HEADER
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def test_subscribers_of_core_nats_receive_what_was_written(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    sent = many_messages(unique, with_reply=True)
    subjects, sent_payloads, replies, headers = zip(*sent, strict=True)
    rows = table_of(subject=subjects, payload=sent_payloads, reply=replies, headers=headers)
    with nats_py.collect(f"{unique}.>") as collected:
        write(nats_server, rows)
        messages = [essence(message) for message in collected.wait(ROWS, timeout=60)]
    assert in_any_order(messages) == in_any_order(sent)


@pytest.mark.promise("writing#spark-to-core")
def test_spark_writes_all_columns_to_core_nats(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    with nats_py.collect(f"{unique}.>") as collected:
        save(many_rows(spark, unique).where("id % 100 = 0 OR id % 100 = 99"), nats_server)
        messages = [essence(message) for message in collected.wait(ROWS // 50, timeout=60)]
    expected = [m for i, m in enumerate(many_messages(unique, with_reply=True)) if i % 100 in (0, 99)]
    assert in_any_order(messages) == in_any_order(expected)


@pytest.mark.needs("named streams")
@pytest.mark.docker
def test_a_batch_is_stored_before_the_write_returns(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = table_of(subject=[f"{unique}.a", f"{unique}.b"], payload=[b"one", b""], headers=[{"H": ["1", "2"]}, None])
    write(nats_server, rows, stream=unique)
    assert nats_py.held(unique) == 2
    stored = stored_messages(nats_py, unique)
    ids = [message.headers.pop(MSG_ID) for message in stored]
    assert ids[0] != ids[1]
    assert [essence(message) for message in stored] == [
        (f"{unique}.a", b"one", None, {"H": ["1", "2"]}),
        (f"{unique}.b", b"", None, {}),
    ]


@pytest.mark.docker
def test_core_nats_delivers_subject_reply_headers_and_payload(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    rows = table_of(
        subject=[f"{unique}.a", f"{unique}.b"],
        reply=["answers.here", None],
        payload=[b"\r\n", b""],
        headers=[{"H": ["1", "2"]}, {}],
    )
    with nats_py.collect(f"{unique}.>") as collected:
        write(nats_server, rows)
        assert [essence(message) for message in collected.wait(2)] == [
            (f"{unique}.a", b"\r\n", "answers.here", {"H": ["1", "2"]}),
            (f"{unique}.b", b"", None, {}),
        ]


def test_text_and_single_headers_will_do(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    rows = [("grün\r\n", {"A": "1", "B": ""}), ("", {}), ("x", None)]
    frame = spark.createDataFrame(rows, "payload STRING, headers MAP<STRING, STRING>")
    save(frame.coalesce(1), nats_server, stream=unique, subject=f"{unique}.x", deduplicate=False)
    assert [(message.payload.decode(), message.headers) for message in stored_messages(nats_py, unique)] == [
        ("grün\r\n", {"A": ["1"], "B": [""]}),
        ("", {}),
        ("x", {}),
    ]


def test_the_subject_option_stands_above_the_column(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = table_of(subject=["no subject at all", None], payload=["1", "2"])
    write(nats_server, rows, stream=unique, subject=f"{unique}.chosen")
    assert {message.subject for message in nats_py.read_stream(unique)} == {f"{unique}.chosen"}


@pytest.mark.needs("named streams")
def test_headers_that_are_all_null_are_none(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nulls = [None] * 50
    texts = [str(i) for i in range(50)]
    rows = table_of(subject=[f"{unique}.x"] * 50, payload=texts, headers=nulls, msg_id=nulls, reply=nulls)
    write(nats_server, rows, stream=unique, deduplicate="false")
    assert [message.headers for message in stored_messages(nats_py, unique)] == [{}] * 50


def test_a_dataframe_without_rows_writes_nothing(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    save(spark.createDataFrame([], "subject STRING, payload BINARY"), nats_server, stream=unique)
    assert nats_py.held(unique) == 0


def test_one_row_at_a_time_in_flight_is_enough(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = table_of(payload=[str(i) for i in range(300)])
    write(nats_server, rows, stream=unique, subject=f"{unique}.x", maxInFlight=1)
    assert nats_py.stored_texts(unique) == [str(i) for i in range(300)]


def test_payloads_may_be_as_large_as_the_server_allows(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    largest = nats_py.nats.max_payload
    with nats_py.collect(unique) as collected:
        write(nats_server, table_of(payload=[str(i) * largest for i in range(3)]), subject=unique)
        assert {(len(m.payload), m.payload[:1]) for m in collected.wait(3)} == {(largest, b"%d" % i) for i in range(3)}


def test_what_was_read_can_be_written(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    source, target = f"{unique}_FROM", f"{unique}_TO"
    config = nats_py.create_stream(source, [f"{unique}.>"])["config"]
    sent = [
        (f"{unique}.a", b"\0\r\n", {"H": ["1", "2"]}),
        (f"{unique}.b", b"", None),
        (f"{unique}.c", b"x", {"K": "v"}),
    ]
    nats_py.publish_acked(sent)
    # No two streams may listen on one subject.
    nats_py.api(f"STREAM.UPDATE.{source}", {**config, "subjects": [f"{unique}_else"]})
    nats_py.create_stream(target, [f"{unique}.>"])
    save(nats(spark.read, nats_server, stream=source).load(), nats_server, stream=target, deduplicate=False)
    # What was written to a stream names that stream in a header: it must not keep the row out of the next.
    third = f"{unique}_THIRD"
    nats_py.api(f"STREAM.UPDATE.{target}", {**config, "name": target, "subjects": [f"{unique}_other"]})
    nats_py.create_stream(third, [f"{unique}.>"])
    save(nats(spark.read, nats_server, stream=target).load(), nats_server, stream=third, deduplicate=False)
    original = [essence(message) for message in nats_py.read_stream(source)]
    assert len(original) == 3
    for copy in (target, third):
        assert [essence(message) for message in stored_messages(nats_py, copy)] == original


def test_a_missing_stream_is_made_if_so_asked(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    simple, configured = f"{unique}_1", f"{unique}_2"
    frame = spark.range(10).selectExpr("string(id) AS payload")  # two tasks, and both find it missing
    save(frame, nats_server, stream=simple, subject=f"{simple}.x", createStream=True)
    config = f'{{"subjects": ["{configured}.>"], "storage": "memory"}}'
    save(frame.withColumn("subject", lit(f"{configured}.y")), nats_server, stream=configured, createStream=config)
    for stream, subjects, storage in ((simple, [f"{simple}.x"], "file"), (configured, [f"{configured}.>"], "memory")):
        made = nats_py.stream_info(stream)
        assert (made["config"]["subjects"], made["config"]["storage"]) == (subjects, storage)
        assert made["state"]["messages"] == 10
    save(frame, nats_server, stream=simple, subject=f"{simple}.x", createStream=True)
    assert nats_py.held(simple) == 20


def test_overwriting_is_refused(spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    frame = spark.createDataFrame([("1",)], "payload STRING")
    writer = nats(frame.write, nats_server, stream=unique, subject=f"{unique}.x").mode("overwrite")
    assert "published messages cannot be taken back; use mode('append')" in error_of(writer.save)
    assert nats_py.held(unique) == 0


# Message ids


@pytest.mark.needs("named streams")
@pytest.mark.docker
def test_a_row_is_stored_once_for_each_message_id(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = table_of(payload=["1", "2", "again", "none", "none either"], msg_id=["id-1", "id-2", "id-1", None, None])
    options = {"stream": unique, "subject": f"{unique}.x", "deduplicate": "false"}
    write(nats_server, rows, **options)
    assert [(m.payload.decode(), m.headers.get(MSG_ID)) for m in stored_messages(nats_py, unique)] == [
        ("1", ["id-1"]),
        ("2", ["id-2"]),
        ("none", None),
        ("none either", None),
    ]
    write(nats_server, rows, **options)
    assert nats_py.stored_texts(unique) == ["1", "2", *["none", "none either"] * 2]


@pytest.mark.needs("named streams")
def test_own_message_ids_stand_above_those_in_headers_and_those_above_made_ones(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    rows = table_of(
        payload=["both", "header", "column", "neither"],
        msg_id=["column", None, "column too", None],
        headers=[{MSG_ID: "header", "K": "v"}, {MSG_ID: "header"}, None, {"K": "v"}],
    )
    options = {"stream": unique, "subject": f"{unique}.x", "deduplicate": True}
    write(nats_server, rows, controlHeaders=True, **options)
    ids = {m.payload.decode(): m.headers[MSG_ID] for m in stored_messages(nats_py, unique)}
    made = ids.pop("neither")
    assert ids == {"both": ["column"], "header": ["header"], "column": ["column too"]}
    assert len(made) == 1
    # Those in headers are control headers, which nobody is to send by accident.
    write(nats_server, rows, **options)
    ids = {m.payload.decode(): m.headers[MSG_ID] for m in stored_messages(nats_py, unique)[4:]}
    assert ids.keys() == {"header", "neither"}  # the others were stored before
    assert "header" not in ids["header"]


@pytest.mark.long("spark_nats/kinds/streams/write/*")
def test_batches_have_message_ids_unless_they_are_not_wanted(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    frame = spark.range(20).repartition(3).selectExpr("string(id) AS payload")
    save(frame, nats_server, stream=unique, subject=f"{unique}.x", deduplicate=False)
    for deduplicate in ({}, {"deduplicate": True}):  # two writes are not one that is repeated
        save(frame, nats_server, stream=unique, subject=f"{unique}.x", **deduplicate)
    messages = stored_messages(nats_py, unique)
    assert Counter(m.payload for m in messages) == {b"%d" % i: 3 for i in range(20)}
    assert all(m.headers == {} for m in messages[:20])
    assert len({m.headers[MSG_ID][0] for m in messages[20:]}) == 40


# Control headers


def partition(server: Server, rows: pa.RecordBatch, **options: Any) -> None:
    """Write rows as a task of Spark's does, without Spark."""
    parsed = parse_write_options({"servers": server.url, **options}, streaming=False)
    write_partition(parsed, WriteTask("", None, 0), iter([rows]))


def messages_with(headers: list[dict[str, str]], subject: str, payloads: list[bytes] | None = None) -> pa.RecordBatch:
    """Rows with these headers."""
    columns = {
        "subject": pa.array([subject] * len(headers)),
        "payload": pa.array(payloads or [b"%d" % i for i in range(len(headers))], pa.binary()),
        "headers": pa.array([list(of_row.items()) for of_row in headers], pa.map_(pa.string(), pa.string())),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.needs("named streams")
@pytest.mark.docker
def test_every_copy_of_what_was_read_is_stored(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    """The ids and the stream's name that rows of a stream carry do not act again."""
    source, target = f"{unique}_FROM", f"{unique}_TO"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    written = table_of(payload=[str(i) for i in range(100)], headers=[{"K": str(i)} for i in range(100)])
    write(nats_server, written, stream=source, subject=f"{source}.x", deduplicate=True)
    rows = read(nats_server, stream=source)
    headers = [dict(row["headers"]) for row in rows]
    assert [{MSG_ID, EXPECTED_STREAM} <= each.keys() for each in headers] == [True] * 100
    copies = table_of(payload=[row["payload"] for row in rows] * 3, headers=headers * 3)
    write(nats_server, copies, stream=target, subject=f"{target}.x", deduplicate=False)
    found = Counter((message.payload, message.headers["K"][0]) for message in stored_messages(nats_py, target))
    assert found == {(b"%d" % i, str(i)): 3 for i in range(100)}


@pytest.mark.needs("named streams")
def test_rollups_and_lifetimes_are_for_those_who_ask_for_them(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, allow_rollup_hdrs=True, allow_msg_ttl=True)
    nats_py.store(f"{unique}.x", range(5))
    rows = messages_with(
        [{"Nats-TTL": "1s"}, {"Nats-Rollup": "all"}, {"Nats-Expected-Last-Sequence": "99"}], f"{unique}.x"
    )
    partition(nats_server, rows, stream=unique)
    assert [message.headers for message in stored_messages(nats_py, unique, after=5)] == [{}, {}, {}]
    purging = messages_with([{"Nats-Rollup": "all"}], f"{unique}.x")
    partition(nats_server, purging, stream=unique, controlHeaders="true")
    (message,) = stored_messages(nats_py, unique)
    assert message.headers == {"Nats-Rollup": ["all"]}
    expiring = messages_with([{"Nats-TTL": "1s"}], f"{unique}.x")
    partition(nats_server, expiring, stream=unique, controlHeaders="true")
    assert nats_py.stream_info(unique)["state"]["last_seq"] == 5 + 3 + 1 + 1
    wait_until(lambda: nats_py.held(unique) == 1)


@pytest.mark.needs("counters")
def test_counters_can_be_incremented(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, allow_msg_counter=True, allow_direct=True)
    for subject, increments in ((f"{unique}.a", ["+1"] * 40 + ["-5"]), (f"{unique}.b", ["+7"])):
        rows = messages_with([{"Nats-Incr": each} for each in increments], subject, [b""] * len(increments))
        given = {"servers": nats_server.url, "stream": unique, "controlHeaders": "true", "deduplicate": "window"}
        options = parse_write_options(given, streaming=True)
        for _ in range(2):  # the second time is a replay
            write_partition(options, WriteTask(unique, "0", 0), iter([rows]))
    totals = {m.subject: json.loads(m.payload)["val"] for m in nats_py.read_stream(unique)}  # the last one counts
    assert totals == {f"{unique}.a": "35", f"{unique}.b": "7"}


# What is refused before anything is sent


def test_a_stream_that_acknowledges_nothing_is_refused_at_once(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, no_ack=True)
    rows = messages_with([{}], f"{unique}.x")
    with pytest.raises(
        PublishError, match=r"does not acknowledge what it stores \(its no_ack is true\).*nothing was sent"
    ):
        partition(nats_server, rows, stream=unique)
    assert nats_py.held(unique) == 0


def longest_subject(server: Server, prefix: str, **options: Any) -> str:
    """The longest subject that we do not refuse, as the error about a longer one tells."""

    def length_of_line(subject: str) -> int:
        with pytest.raises(InvalidRowError, match=r"row 0 of the task .* 'subject' is too long.* nothing") as raised:
            partition(server, messages_with([{}, {"K": "v"}], subject), **options)
        return int(str(raised.value).partition("(its length is ")[2].split()[0])

    subject = f"{prefix}.".ljust(MAX_CONTROL_LINE, "s")
    subject = subject[: MAX_CONTROL_LINE - length_of_line(subject)]
    assert length_of_line(subject + "s") == MAX_CONTROL_LINE + 1
    return subject


@pytest.mark.docker
def test_the_longest_line_that_we_send_is_one_that_the_server_takes(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    with nats_py.collect(f"{unique}_CORE.>") as collected:
        subject = longest_subject(nats_server, unique, stream=unique)
        core_subject = longest_subject(nats_server, f"{unique}_CORE")
        assert nats_py.held(unique) == 0
        assert collected.messages == []
        partition(nats_server, messages_with([{}, {"K": "v"}], subject), stream=unique)
        partition(nats_server, messages_with([{}, {"K": "v"}], core_subject))
        assert {message.subject for message in nats_py.read_stream(unique)} == {subject}
        assert {message.subject for message in collected.wait(2)} == {core_subject}


def test_one_byte_more_on_a_line_ends_the_connection(nats_server: Server) -> None:
    """What the constant stands for."""
    argument = b"a" * (MAX_CONTROL_LINE - 2) + b" 0"
    assert send_raw(nats_server.url, b"PUB " + argument + b"\r\n\r\n") == b""
    assert b"maximum control line exceeded" in send_raw(nats_server.url, b"PUB a" + argument + b"\r\n\r\n").lower()


# Streaming


def copy(spark: SparkSession, server: Server, source: str, checkpoint: Path, **options: Any) -> None:
    """A query that writes the payloads of one stream elsewhere and ends when it has read what there is."""
    frame = nats(spark.readStream, server, stream=source, startingOffsets="earliest", minPartitions=2).load()
    writer = nats(frame.select("payload").writeStream, server, checkpointLocation=str(checkpoint), **options)
    finish(writer.trigger(availableNow=True).start())


@pytest.mark.promise("writing#spark-to-stream", "exactly-once#without-ids", "with-spark#micro-batch-triggers")
def test_a_replayed_micro_batch_is_not_stored_twice(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    source, once, twice = f"{unique}_FROM", f"{unique}_ONCE", f"{unique}_TWICE"
    for stream in (source, once, twice):
        nats_py.create_stream(stream)
    nats_py.store(f"{source}.x", range(1, 31))
    expected = {str(i) for i in range(1, 31)}
    targets: dict[str, dict[str, Any]] = {once: {}, twice: {"deduplicate": False}}
    for target, options in targets.items():
        copy(spark, nats_server, source, tmp_path / target, stream=target, subject=f"{target}.x", **options)
        assert Counter(nats_py.stored_texts(target)) == dict.fromkeys(expected, 1)
        forget_last_commit(tmp_path / target)
    nats_py.publish_acked([(f"{source}.x", b"new")])
    for target, options in targets.items():
        copy(spark, nats_server, source, tmp_path / target, stream=target, subject=f"{target}.x", **options)
    assert Counter(nats_py.stored_texts(once)) == dict.fromkeys(expected | {"new"}, 1)
    # Without message ids the replay is seen, so there was one.
    assert Counter(nats_py.stored_texts(twice)) == {**dict.fromkeys(expected, 2), "new": 1}


@pytest.mark.long
def test_two_queries_do_not_take_each_others_message_ids(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    source, target = f"{unique}_FROM", f"{unique}_TO"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    nats_py.store(f"{source}.x", range(10))
    for name in ("one", "other"):
        copy(spark, nats_server, source, tmp_path / name, stream=target, subject=f"{target}.x")
    assert Counter(nats_py.stored_texts(target)) == {str(i): 2 for i in range(10)}


def test_a_streaming_query_can_write_to_core_nats(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    rows = table_of(payload=[b"%d" % i for i in range(25)])
    writer = source(nats_server, subject=unique).streamWriter(from_arrow_schema(rows.schema), overwrite=False)
    task = pickle.loads(pickle.dumps(writer))
    with nats_py.collect(unique) as collected:
        writer.commit([task.write(iter(rows.to_batches()))], 0)
        messages = collected.wait(25)
    assert [essence(m) for m in messages] == [(unique, b"%d" % i, None, {}) for i in range(25)]


@contextmanager
def driver_errors(spark: SparkSession, logger: str) -> Iterator[Callable[[], str]]:
    """What a logger of Spark's driver says while the block runs."""
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    writer = jvm.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(None, None, writer, "errors", False, True)
    appender.start()
    heard = log4j.LogManager.getLogger(logger)
    heard.addAppender(appender)
    try:
        yield writer.toString
    finally:
        heard.removeAppender(appender)


@pytest.mark.promise("with-spark#continuous-trigger")
def test_a_continuous_trigger_commits_no_rows_that_were_not_written(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).option("numPartitions", 2).load()
    values = rows.selectExpr(f"'{unique}.x' AS subject", "string(value) AS payload")
    writer = nats(values.writeStream, nats_server, stream=unique, checkpointLocation=str(tmp_path))
    # Spark logs what a commit of an epoch raises, goes on, and commits neither this epoch nor a later one.
    with driver_errors(spark, "org.apache.spark.rpc.netty.Inbox") as errors:
        query = writer.trigger(continuous="1 second").start()
        try:
            wait_until(lambda: "NATS_" in errors() or any((tmp_path / "commits").glob("*")))
        finally:
            query.stop()
        assert "[NATS_NOT_RUN] micro-batch 0 is not written: Spark has not run the write of 2 of its 2" in errors()
    assert list((tmp_path / "commits").glob("*")) == []
    assert nats_py.held(unique) == 0


@pytest.mark.parametrize("streaming", [True, False], ids=["micro-batch", "batch"])
@pytest.mark.parametrize("kind", ["stream", "core NATS", "bucket", "object store"])
def test_a_task_that_reports_nothing_has_not_run(
    nats_server: Server, nats_py: NatsPy, unique: str, kind: str, streaming: bool
) -> None:
    options, rows = {
        "stream": (
            {"stream": unique, "subject": unique, "createStream": f'{{"subjects": ["{unique}"]}}'},
            {"payload": [b"a"]},
        ),
        "core NATS": ({"subject": unique}, {"payload": [b"a"]}),
        "bucket": ({"bucket": unique, "createBucket": "true"}, {"key": ["k"], "value": [b"a"]}),
        "object store": ({"objectStore": unique, "createObjectStore": "true"}, {"name": ["n"], "content": [b"a"]}),
    }[kind]
    made, table = source(nats_server, **options), pa.table(rows)
    schema = from_arrow_schema(table.schema)
    writer: Any = made.streamWriter(schema, False) if streaming else made.writer(schema, False)
    commit = partial(writer.commit, batchId=3) if streaming else writer.commit
    empty = writer.write(iter(table.slice(0, 0).to_batches())) if not streaming else Written(Counts())
    commit([empty])
    commit([])
    for reported in (None, WriterCommitMessage()):
        assert "is not written: Spark has not run the write of 1 of its 2 partitions" in sentence_of(
            lambda reported=reported: commit([empty, reported])
        )


@pytest.mark.needs("no window")
@pytest.mark.promise("exactly-once#no-window")
def test_a_stream_without_a_window_takes_no_rows_that_rely_on_it(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From nats-server 2.14 on, a stream with sources has none unless it is given one."""
    origin = f"{unique}_FROM"
    nats_py.create_stream(origin)
    config = nats_py.create_stream(unique, sources=[{"name": origin}])["config"]
    assert "duplicate_window" not in config
    rows = pa.table({"subject": [f"{unique}.{i}" for i in range(3)], "payload": ["a", "b", "c"]})
    assert sentence_of(lambda: run_task(nats_server.url, rows, stream=unique, deduplicate="window")) == (
        f"PublishError: stream '{unique}' recognizes no message ids, because its duplicate_window is 0 (from "
        "nats-server 2.14 on, a stream with sources has none unless it is given one), so that it would store rows of a "
        "replay twice; nothing was sent; give it a duplicate_window, or set the option 'deduplicate' to exact, which "
        "needs none, or false"
    )
    assert nats_py.held(unique) == 0
    for _ in range(2):
        run_task(nats_server.url, rows, stream=unique)  # exact
    assert nats_py.stored_texts(unique) == ["a", "b", "c"]
    for _ in range(2):
        write(nats_server, rows.append_column("msg_id", pa.array(["a", "b", "c"])), stream=unique)
    write(nats_server, rows, stream=unique)  # nobody has asked for a window
    assert nats_py.held(unique) == 12
    warned = [record for record in caplog.records if "[NATS_IDS_NOT_RECOGNIZED]" in record.getMessage()]
    assert len(warned) == 3
    assert "recognizes no message ids" in sentence_of(
        lambda: write(nats_server, rows, stream=unique, deduplicate="window")
    )
    nats_py.api(f"STREAM.UPDATE.{unique}", {**config, "duplicate_window": 60_000_000_000})
    for _ in range(2):
        run_task(nats_server.url, rows, batch="1", stream=unique, deduplicate="window")
    assert nats_py.held(unique) == 15


@pytest.mark.parametrize(
    ("binary", "unknown"),
    [(BINARY_2_10, "Nats-TTL, Nats-Incr, Nats-Schedule"), (OLDER_BINARY, "Nats-Incr, Nats-Schedule")],
    ids=["2.10", "2.11"],
)
def test_headers_on_which_an_old_server_does_not_act_are_not_sent(
    server_factory: ServerFactory, binary: Path, unknown: str
) -> None:
    server = server_factory(binary=binary)
    with NatsPy(server.url) as client:
        client.create_stream("S")
        for name in unknown.split(", "):
            headers = pa.array([[("A", "b")], [("A", "b"), (name, "1")]], HEADER)
            rows = pa.table({"subject": ["S.x"] * 2, "payload": [b""] * 2, "headers": headers})
            error = sentence_of(lambda rows=rows: write(server, rows, stream="S", controlHeaders=True))
            assert "row 1 of the task cannot be sent: column 'headers' has a header on which a server that" in error
            assert f"({unknown})" in error
        assert client.held("S") == 0
        write(server, rows.slice(0, 1), stream="S", controlHeaders=True)
        assert client.held("S") == 1


@pytest.mark.parametrize("binary", [BINARY_2_10, None], ids=["2.10", "newest"])
@pytest.mark.promise("writing#copying-streams")
def test_a_mirror_gets_what_is_written_to_its_origin(server_factory: ServerFactory, binary: Path | None) -> None:
    """Before 2.11.5, a mirror drops messages that name their stream in a header, which is the origin's."""
    server = server_factory(binary=binary)
    row = {"payload": [b"a"]}
    targets: dict[str, tuple[pa.Table, dict[str, Any]]] = {
        "S": (pa.table({"subject": ["S.x"], **row}), {"stream": "S"}),
        "BAD": (pa.table({"subject": [" "], **row}), {"stream": "S", "badRows": "stream", "badRowsStream": "BAD"}),
        "KV_B": (pa.table({"key": ["k"], "value": [b"a"]}), {"bucket": "B"}),
        "OBJ_O": (pa.table({"name": ["n"], "content": [b"a"]}), {"objectStore": "O"}),
    }
    with NatsPy(server.url) as client:
        for stream in ("S", "BAD"):
            client.create_stream(stream)
        client.create_stream("KV_B", ["$KV.B.>"], allow_rollup_hdrs=True, discard="new")
        client.create_stream("OBJ_O", ["$O.O.>"], allow_rollup_hdrs=True, discard="new")
        for stream, (rows, options) in targets.items():
            client.create_stream(f"{stream}_MIRROR", [], mirror={"name": stream}, allow_rollup_hdrs=True)
            write(server, rows, **options)
            held = client.held(stream)
            assert held
            wait_until(lambda stream=stream, held=held: client.held(f"{stream}_MIRROR") == held, timeout=20)


def test_a_stream_of_counters_takes_no_schedules_which_it_would_never_publish(server_factory: ServerFactory) -> None:
    server = server_factory(binary=BINARY_2_12)  # later ones create no such stream
    with NatsPy(server.url) as client:
        client.create_stream("S", allow_msg_counter=True, allow_msg_schedules=True)
        schedule = {"Nats-Schedule": "@at 2026-11-01T09:00:10Z", "Nats-Schedule-Target": "S.now"}
        headers = pa.array([list(schedule.items())], HEADER)
        rows = pa.table({"subject": ["S.x"], "increment": [1], "headers": headers})
        error = sentence_of(lambda: write(server, rows, stream="S", controlHeaders=True))
        assert "would add the increments of rows with schedules, but never publish them" in error
        assert client.held("S") == 0
        write(server, rows, stream="S")  # without control headers
        assert client.held("S") == 1


@pytest.mark.long("spark_nats/kinds/streams/write/*")
@pytest.mark.promise("with-spark#complete-mode")
def test_a_table_of_results_is_published_whole_each_time(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    source, target = f"{unique}_FROM", f"{unique}_TO"
    nats_py.create_stream(source)
    nats_py.create_stream(target)
    frame = nats(spark.readStream, nats_server, stream=source, startingOffsets="earliest").load()
    counts = frame.groupBy("subject").agg(count("*").alias("n"))
    results = counts.select(expr(f"concat('{target}.', subject)").alias("subject"), expr("string(n)").alias("payload"))

    def published() -> list[tuple[str, bytes]]:
        before = nats_py.held(target)
        options = {"stream": target, "checkpointLocation": str(tmp_path / "checkpoint")}
        writer = nats(results.writeStream, nats_server, **options).outputMode("complete")
        finish(writer.trigger(availableNow=True).start())
        return sorted((m.subject.rpartition(".")[2], m.payload) for m in nats_py.read_stream(target)[before:])

    nats_py.publish_acked([(f"{source}.{name}", b"") for name in "aab"])
    assert published() == [("a", b"2"), ("b", b"1")]
    nats_py.publish_acked([(f"{source}.b", b"")])
    assert published() == [("a", b"2"), ("b", b"2")]


@pytest.mark.long("spark_nats/kinds/streams/write/*")
@pytest.mark.promise("with-spark#update-mode")
def test_results_that_have_changed_are_put_under_their_keys(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    nats_py.create_stream(unique)
    frame = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    results = frame.groupBy(expr("split(subject, '[.]')[1]").alias("key")).agg(count("*").alias("n"))
    put = {"bucket": f"{unique}_KV", "createBucket": True}

    def update(names: str) -> list[tuple[str, bytes]]:
        nats_py.publish_acked([(f"{unique}.{name}", b"") for name in names])
        writer = results.selectExpr("key", "string(n) AS value").writeStream.outputMode("update")
        writer = writer.foreachBatch(lambda rows, _: save(rows, nats_server, **put))
        finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start())
        revisions = nats_py.read_stream(f"KV_{unique}_KV")
        return sorted((m.subject.rpartition(".")[2], m.payload) for m in revisions)

    assert update("aab") == [("a", b"2"), ("b", b"1")]
    assert update("b") == [("a", b"2"), ("b", b"2")]
    assert nats_py.stream_info(f"KV_{unique}_KV")["state"]["last_seq"] == 3  # a was not put again


def test_rows_that_the_user_may_not_publish_are_known_to_be_not_stored(server_factory: ServerFactory) -> None:
    server = server_factory("""
        authorization { users: [
            { user: writer, password: pw, permissions: { publish: { deny: ["S.no.>", "S.never"] } } }
            { user: admin, password: pw }
        ] }
    """)
    login = {"user": "writer", "password": "pw", "stream": "S"}
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("S")
        error = sentence_of(lambda: write(server, table_of(payload=["a"] * 3000), subject="S.never", **login))
        assert 'Permissions Violation for Publish to "S.never"; the user lacks this permission; none of this ' in error
        assert "none of this task's rows was stored" in error
        names = ["a", "no.ü", "never", "no.x", "b", "never", "c"]
        rows = table_of(subject=[f"S.{each}" for each in names], payload=names)
        error = sentence_of(lambda: write(server, rows, **login))
        assert 'Permissions Violation for Publish to "S.no.ü"' in error
        assert "; of this task's rows 3 were stored, and none of the others was stored" in error
        assert client.stored_texts("S") == ["a", "b", "c"]


def test_a_private_inbox_prefix_is_enough(server_factory: ServerFactory) -> None:
    server = server_factory("""
        authorization { users: [
            { user: writer, password: pw, permissions: { publish: ["S.>", "$JS.API.STREAM.INFO.S"], subscribe: "w.>" } }
            { user: admin, password: pw }
        ] }
    """)
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("S")
        rows = table_of(payload=[str(i) for i in range(5)])
        options = {"user": "writer", "password": "pw", "stream": "S", "subject": "S.x"}
        write(server, rows, inboxPrefix="w.inbox", **options)
        assert Counter(client.stored_texts("S")) == {str(i): 1 for i in range(5)}
        error = sentence_of(lambda: write(server, rows, **options))
        assert "Permissions Violation for Subscription" in error
