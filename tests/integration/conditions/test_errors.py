"""What goes wrong, is said: in one sentence, in bounded time, and without a secret in it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType, TimestampNTZType

from tests.integration.support import (
    MENDING,
    batch_reader,
    error_of,
    finish,
    nats,
    read,
    run_task,
    save,
    sentence_of,
    source,
    stream_reader,
    write,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, ServerFactory

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def stream(nats_server: Server) -> Iterator[str]:
    """A stream with one message, for tests whose errors leave it as it is."""
    with NatsPy(nats_server.url) as client:
        client.create_stream("ERRORS")
        client.publish_acked([("ERRORS.x", b"1")])
        yield "ERRORS"
        held = client.held("ERRORS")
        client.delete_stream("ERRORS")
        assert held == 1, "something was written in spite of an error"


def numbered_texts(count: int) -> pa.Table:
    """Rows with the payloads "0", "1", …"""
    return pa.table({"payload": [str(i) for i in range(count)]})


# Options


BAD_READS = {
    "misspelt": ({"strem": "S"}, "unknown option 'strem'; did you mean 'stream'?"),
    "Kafka's": ({"subscribe": "topic"}, "unknown option 'subscribe'"),
    "unknown": ({"frobnicate": "1"}, "unknown option 'frobnicate'; `spark-nats options` lists them"),
    "for writing": ({"maxInFlight": "9"}, "option 'maxInFlight' is only for writing"),
    "no stream": ({"stream": ""}, "option 'stream' is ''; '' is empty"),
    "bad stream": ({"stream": "A.B"}, "option 'stream' is 'A.B'; 'A.B' contains white space, a control character or"),
    "stream twice": ({"stream": "A,A"}, "names the same thing twice"),
    "bad subject": ({"subject": "a..b"}, "'a..b' has an empty token"),
    "bad wildcard": ({"subject": "a.>.b"}, "has the wildcard > before its last token"),
    "wildcard inside": ({"subject": "a.b*"}, "has a wildcard inside the token 'b*'"),
    "same subjects": ({"subject": "a.*,a.b"}, "'a.*' and 'a.b', which overlap"),
    "offsets": ({"startingOffsets": "yesterday"}, "'yesterday'; it must be earliest, latest, or JSON"),
    "offset zero": ({"startingOffsets": '{"ERRORS": 0}'}, "it must be earliest, latest, or JSON"),
    "other stream": ({"startingOffsets": '{"OTHER": 3}'}, "offsets for OTHER, but the streams to read are ERRORS"),
    "begin at end": ({"startingOffsets": "latest"}, "so a batch has nothing to read; use earliest"),
    "end at begin": ({"endingOffsets": "earliest"}, "so a batch has nothing to read; use latest"),
    "time": ({"startingTimestamp": "noon"}, "option 'startingTimestamp' is 'noon'; it must be ISO 8601"),
    "two begins": (
        {"startingOffsets": "earliest", "startingTimestamp": "0"},
        "options 'startingOffsets' and 'startingTimestamp' contradict each other",
    ),
    "two ends": (
        {"endingOffsets": "latest", "endingTimestamp": "0"},
        "options 'endingOffsets' and 'endingTimestamp' contradict each other",
    ),
    "number": ({"minPartitions": "many"}, "option 'minPartitions' is 'many'; it must be a whole number of at least 1"),
    "zero": ({"maxRecordsPerPartition": "0"}, "it must be a whole number of at least 1"),
    "for streaming": ({"maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' is for streaming (spark.readStream)"),
    "boolean": ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss' is 'maybe'; it must be true or false"),
    "duration": ({"connectTimeout": "5"}, "of 500h at most, with its unit, such as 500ms, 5s or 2m"),
    "two logins": ({"user": "u", "token": "t0ps3cret"}, "options 'user' and 'token' contradict each other"),
    "no user": ({"password": "t0ps3cret"}, "option 'password' needs the option 'user'"),
    "two prefixes": ({"domain": "d", "apiPrefix": "p"}, "options 'domain' and 'apiPrefix' contradict each other"),
    "scheme": ({"servers": "http://h:1"}, "has the unsupported scheme 'http'"),
    "port": ({"servers": "nats://h:port"}, "is not a server URL such as nats://localhost:4222: 'nats://h…'"),
    "create what": ({"createStream": "yes"}, "option 'createStream' must be true, false or a stream configuration"),
    "create empty": (
        {"createStream": "true"},
        "the subjects of the stream are unknown: set the option 'subject'",
    ),
    "create other": ({"createStream": '{"name": "O"}'}, "option 'createStream' has the name 'O', but 'stream' is"),
}


@pytest.mark.parametrize("case", BAD_READS)
def test_options_of_a_read_are_checked(nats_server: Server, case: str) -> None:
    options, sentence = BAD_READS[case]
    error = sentence_of(lambda: batch_reader(nats_server, **{"stream": "ERRORS", **options}))
    assert error.startswith("OptionError: ")
    assert sentence in error
    assert "t0ps3cret" not in error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"strem": "S"}, "OptionError: unknown option 'strem'; did you mean 'stream'?"),
        ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "contradict each other"),
        ({"user": "u", "token": "t0ps3cret"}, "contradict each other"),
        ({"servers": "nats://ann:t0ps3cret@localhost"}, "use the options 'user' and 'password', or 'token'"),
    ],
)
def test_wrong_options_are_said_by_load_itself(
    spark: SparkSession, nats_server: Server, options: dict[str, str], sentence: str
) -> None:
    for reader in (spark.read, spark.readStream):
        error = error_of(nats(reader, nats_server, stream="S", **options).load)
        assert sentence in error
        assert "t0ps3cret" not in error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss' is 'maybe'"),
        ({"domain": "d", "apiPrefix": "p"}, "contradict each other"),
    ],
)
def test_what_is_wrong_in_reading_and_writing_is_said_before_it_is_known_which_it_is(
    nats_server: Server, options: dict[str, str], sentence: str
) -> None:
    assert sentence in sentence_of(lambda: source(nats_server, stream="S", **options))


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "limit"])
def test_options_for_batches_are_not_for_streaming(nats_server: Server, name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "0", "limit": "10"}[name]
    error = sentence_of(lambda: stream_reader(nats_server, stream="S", **{name: value}))
    assert (
        error == f"OptionError: option '{name}' is for batch reads (spark.read), not for streaming (spark.readStream)"
    )


def test_options_of_another_kind_of_query_are_said_through_spark(
    spark: SparkSession, nats_server: Server, stream: str
) -> None:
    batch = nats(spark.read, nats_server, stream=stream, maxOffsetsPerTrigger=5).load()
    assert error_of(batch.collect).startswith("OptionError: option 'maxOffsetsPerTrigger' is for streaming")
    streaming = nats(spark.readStream, nats_server, stream=stream, endingOffsets="latest").load()
    error = error_of(lambda: finish(streaming.writeStream.format("noop").start()))
    assert (
        error
        == "OptionError: option 'endingOffsets' is for batch reads (spark.read), not for streaming (spark.readStream)"
    )
    frame = spark.range(1).selectExpr("string(id) AS payload")
    error = error_of(lambda: save(frame, nats_server, stream=stream, subject="x", startingOffsets="earliest"))
    assert error.startswith("OptionError: option 'startingOffsets' is only for reading")


BAD_WRITES = {
    "misspelt": ({"stream": "S", "maxinflght": "1"}, "unknown option 'maxinflght'; did you mean 'maxInFlight'?"),
    "for reading": ({"stream": "S", "startingOffsets": "earliest"}, "option 'startingOffsets' is only for reading"),
    "streams": ({"stream": "A,B", "atomic": "true"}, "option 'atomic' stores the rows of a partition together"),
    "wildcard": ({"stream": "S", "subject": "a.*"}, "for writing it must be one subject, but it contains"),
    "subjects": ({"stream": "S", "subject": "a, b"}, "for writing it must be one subject, but it contains"),
    "subjects without a blank": (
        {"stream": "S", "subject": "a,b"},
        "option 'subject' is 'a,b'; for writing it must be one subject, but it has a comma, as a list has",
    ),
    "subjects for core": ({"subject": "a,b"}, "for writing it must be one subject, but it has a comma"),
    "subjects to create": (
        {"stream": "S", "createStream": '{"subjects": ["a,b.>"]}'},
        "option 'createStream' has the subject 'a,b.>', which has a comma, as a list has: write [\"a\", \"b.>\"]",
    ),
    "core and acks": (
        {"ackTimeout": "5s"},
        "option 'ackTimeout' needs the option 'stream'; without it rows go to core",
    ),
    "core and ids": ({"deduplicate": "true"}, "option 'deduplicate' needs the option 'stream'"),
    "number": ({"stream": "S", "maxInFlight": "-1"}, "option 'maxInFlight' is '-1'; it must be a whole number"),
}


@pytest.mark.parametrize("case", BAD_WRITES)
def test_options_of_a_write_are_checked(nats_server: Server, case: str) -> None:
    options, sentence = BAD_WRITES[case]
    error = sentence_of(lambda: write(nats_server, numbered_texts(1), **{"subject": "x", **options}))
    assert error.startswith("OptionError: ")
    assert sentence in error


def test_options_of_a_stream_are_not_for_core_nats(nats_server: Server) -> None:
    error = sentence_of(lambda: batch_reader(nats_server, subject="telemetry.>", startingOffsets="earliest"))
    assert "option 'startingOffsets' needs the option 'stream'" in error
    error = sentence_of(lambda: stream_reader(nats_server, subject="telemetry.>", readTimeout="5s"))
    assert "option 'readTimeout' is for batch reads (spark.read) of core NATS" in error
    assert "the options do not say what to read" in sentence_of(lambda: batch_reader(nats_server))


@pytest.mark.parametrize("option", ["filterPushdown", "limitPushdown"])
def test_what_spark_would_push_down_for_other_scans_too_is_refused(nats_server: Server, option: str) -> None:
    sentence = sentence_of(lambda: batch_reader(nats_server, stream="S", **{option: True}))
    assert sentence.startswith(f"OptionError: option '{option}' is refused: Spark lets every scan of a DataFrame")
    assert batch_reader(nats_server, stream="S", **{option: False})


@pytest.mark.long("spark_nats/kinds/streams/read/*")
def test_each_scan_of_a_frame_has_its_own_rows_also_where_spark_may_push_filters_down(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.x", range(40))
    pushing = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(pushing, True)
    try:
        frame = nats(spark.read, nats_server, stream=unique).load()
        late, early = frame.where("sequence > 35"), frame.where("sequence < 3")
        assert [late.count(), frame.count()] == [5, 40]
        assert late.union(early).union(frame).count() == 5 + 2 + 40
        assert [frame.limit(3).count(), frame.count()] == [3, 40]
    finally:
        spark.conf.unset(pushing)


# Schemas


@pytest.mark.parametrize(
    ("name", "type_", "sentence"),
    [
        ("colour", StringType(), "a message has no column 'colour'; its columns are subject STRING, reply"),
        ("payload", StringType(), "column 'payload' is BINARY, not STRING"),
        ("sequence", IntegerType(), "column 'sequence' is BIGINT, not INT"),
        (
            "headers",
            MapType(StringType(), StringType()),
            "column 'headers' is MAP<STRING,ARRAY<STRING>>, not MAP<STRING,STRING>",
        ),
        ("timestamp", TimestampNTZType(), "column 'timestamp' is TIMESTAMP_LTZ, not TIMESTAMP_NTZ"),
    ],
)
def test_a_schema_that_messages_do_not_have_is_refused(
    nats_server: Server, name: str, type_: DataType, sentence: str
) -> None:
    schema = StructType().add("subject", StringType()).add(name, type_)
    for reader in (batch_reader, stream_reader):
        error = sentence_of(lambda: reader(nats_server, schema, stream="S"))  # noqa: B023
        assert error.startswith("SchemaError: ")
        assert sentence in error


def test_a_schema_that_messages_do_not_have_is_refused_through_spark(
    spark: SparkSession, nats_server: Server, stream: str
) -> None:
    frame = nats(spark.read, nats_server, stream=stream).schema("subject STRING, colour STRING").load()
    assert error_of(frame.collect).startswith("SchemaError: a message has no column 'colour'; its columns are subject")
    frame = nats(spark.readStream, nats_server, stream=stream).schema("colour STRING").load()
    assert "no column 'colour'" in error_of(lambda: finish(frame.writeStream.format("noop").start()))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"subject": ["ERRORS.y"]}, "the column 'payload' (BINARY or STRING) is missing; there are subject"),
        (
            {"payload": ["1"]},
            "do not say where to publish: add the column 'subject' (STRING) or set the option 'subject'",
        ),
        (
            {"payload": ["1"], "subject": ["ERRORS.y"], "colour": [7]},
            "column 'colour' cannot be written to NATS, and would",
        ),
        ({"payload": [1], "subject": ["ERRORS.y"]}, "column 'payload' must be BINARY or STRING, not BIGINT"),
        ({"payload": ["1"], "subject": [b"A"]}, "column 'subject' must be STRING, not BINARY"),
        (
            {
                "payload": ["1"],
                "subject": ["ERRORS.y"],
                "headers": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
            },
            "column 'headers' must be MAP<STRING,ARRAY<STRING>> or MAP<STRING,STRING>, not MAP<STRING,INT>",
        ),
        ({"payload": ["1"], "subject": ["ERRORS.y"], "msg_id": [5]}, "column 'msg_id' must be STRING, not BIGINT"),
    ],
)
def test_rows_that_cannot_be_messages_are_refused(
    nats_server: Server, stream: str, columns: dict[str, Any], sentence: str
) -> None:
    error = sentence_of(lambda: write(nats_server, pa.table(columns), stream=stream))
    assert error.startswith("SchemaError: ")
    assert sentence in error


def test_a_dataframe_that_cannot_be_messages_is_refused(spark: SparkSession, nats_server: Server, stream: str) -> None:
    frame = spark.sql("SELECT '1' AS payload, 'ERRORS.y' AS subject, map('a', 1) AS headers")
    assert error_of(lambda: save(frame, nats_server, stream=stream)) == (
        "SchemaError: column 'headers' must be MAP<STRING,ARRAY<STRING>> or MAP<STRING,STRING>, not MAP<STRING,INT>"
    )


def test_a_streaming_write_checks_its_columns_and_options(
    spark: SparkSession, nats_server: Server, stream: str, tmp_path: Path
) -> None:
    schema = StructType().add("payload", BinaryType())
    for options, sentence in (
        ({"stream": stream, "subject": f"{stream}.y", "deduplicate": "perhaps"}, "it must be exact, window or false"),
        ({"subject": "somewhere", "maxInFlight": 5}, "needs the option 'stream'"),
    ):
        into = lambda: source(nats_server, **options).streamWriter(schema, overwrite=False)  # noqa: B023, E731
        assert sentence in sentence_of(into)

    frame = nats(spark.readStream, nats_server, stream=stream, startingOffsets="earliest").load()
    writer = nats(frame.selectExpr("payload", "1 AS colour").writeStream, nats_server, stream=stream, subject="x")
    writer = writer.option("checkpointLocation", str(tmp_path))
    assert "column 'colour' cannot be written" in error_of(lambda: finish(writer.start()))


# Rows


BAD_ROWS: dict[str, tuple[str, str | dict[str, str] | dict[str, list[str]] | None, str]] = {
    "null payload": ("payload", None, "column 'payload' is null; an empty payload is written as ''"),
    "null subject": ("subject", None, "column 'subject' is null"),
    "empty subject": ("subject", "", "column 'subject' is empty (its length is 0 bytes)"),
    "space": ("subject", "a b", "a wildcard (* or >): 'a b' (its length is 3 bytes)"),
    "line break": ("subject", "a\r\nPUB b 0\r\n", r"(* or >): 'a\r\nPUB b 0\r\n' (its length is 12 bytes)"),
    "wildcard": ("subject", "a.*", "column 'subject' contains white space, a control character or a wildcard"),
    "full wildcard": ("subject", "a.>", "column 'subject' contains white space, a control character or a wildcard"),
    "empty token": ("subject", "a..b", "in a row): 'a..b' (its length is 4 bytes)"),
    "a long one": ("subject", "ä" * 60 + " ", f"'{'ä' * 40}'… (its length is 121 bytes)"),
    "last dot": ("subject", "a.", "column 'subject' has an empty token"),
    "first dot": ("subject", ".a", "column 'subject' has an empty token"),
    "header name with line break": ("headers", {"A\r\nB": "v"}, "column 'headers' "),
    "header name with colon": ("headers", {"A:B": "v"}, "a colon or a character outside ASCII: 'A:B'"),
    "empty header name": ("headers", {"": "v"}, "column 'headers' "),
    "header value with CR": ("headers", {"A": "v\rB: w"}, "column 'headers' "),
    "header value with LF": ("headers", {"A": "v\nB: w"}, "a line break (CR or LF): 'A'"),
    "one header value of several": ("headers", {"A": ["v", "w\r\n"]}, "column 'headers' "),
    "message id with line break": ("msg_id", "1\r\n2", r"(CR or LF): '1\r\n2' (its length"),
    "reply for a stream": ("reply", "answers.here", "column 'reply' is not null, but a publish to a stream uses"),
}


def bad_rows(stream: str, case: str) -> tuple[pa.Table, str]:
    """Twenty rows of which row 7 is bad, and what is said of it."""
    column, value, sentence = BAD_ROWS[case]
    columns: dict[str, list[Any]] = {"payload": ["1"] * 20, "subject": [f"{stream}.y"] * 20}
    values = columns.setdefault(column, [None] * 20)
    values[7] = list(value.items()) if isinstance(value, dict) else value
    several = isinstance(value, dict) and isinstance(next(iter(value.values())), list)
    types = {"headers": pa.map_(pa.string(), pa.list_(pa.string()) if several else pa.string())}
    return pa.table({n: pa.array(each, types.get(n, pa.string())) for n, each in columns.items()}), sentence


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_row_that_cannot_be_a_message_stops_its_batch(
    nats_server: Server, nats_py: NatsPy, stream: str, case: str
) -> None:
    rows, sentence = bad_rows(stream, case)
    error = sentence_of(lambda: write(nats_server, rows, stream=stream))
    assert error.startswith("InvalidRowError: row 7 of the task cannot be sent: ")
    assert sentence in error
    assert error.endswith("; nothing was sent" + MENDING)
    assert nats_py.held(stream) == 1


def test_a_row_that_cannot_be_a_message_is_said_through_spark(
    spark: SparkSession, nats_server: Server, stream: str
) -> None:
    frame = spark.range(20).coalesce(1).selectExpr("if(id = 7, 'a b', 'ERRORS.y') AS subject", "string(id) AS payload")
    error = error_of(lambda: save(frame, nats_server, stream=stream))
    assert error.startswith("InvalidRowError: row 7 of the task cannot be sent: column 'subject' contains white space")
    assert error.endswith("; nothing was sent" + MENDING)


def test_core_nats_is_sent_nothing_of_a_batch_with_a_bad_row(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with nats_py.collect(f"{unique}.>") as collected:
        for case in ("line break", "header value with LF", "null payload"):
            rows, sentence = bad_rows(unique, case)
            error = sentence_of(lambda: write(nats_server, rows))  # noqa: B023
            assert sentence in error
            assert error.endswith("; nothing was sent" + MENDING)
        nats_py.publish(f"{unique}.end", b"")
        assert [message.subject for message in collected.wait(1)] == [f"{unique}.end"]


def test_a_payload_over_the_servers_limit_stops_its_batch(
    nats_server: Server, nats_py: NatsPy, stream: str, unique: str
) -> None:
    limit = nats_py.nats.max_payload
    sentence = f"column 'payload' is larger with its headers than the server's max_payload of {limit} bytes"
    rows = pa.table({"payload": ["small", "small", "small", "x" * (limit + 1), "small"]})
    for options in ({"stream": stream, "subject": f"{stream}.y"}, {"subject": unique}):
        with nats_py.collect(options["subject"]) as collected:
            error = sentence_of(lambda: write(nats_server, rows, **options))  # noqa: B023
            assert error.startswith(f"InvalidRowError: row 3 of the task cannot be sent: {sentence}")
            assert error.endswith("nothing was sent" + MENDING)
            assert "xxx" not in error  # the payload itself is nobody's business
            assert collected.messages == []
    # Headers count too: this payload alone would pass.
    headers = pa.array([[("Name", "value")]], pa.map_(pa.string(), pa.string()))
    rows = pa.table({"payload": ["x" * (limit - 10)], "headers": headers})
    assert sentence in sentence_of(lambda: write(nats_server, rows, subject=unique))


def test_a_late_bad_row_says_how_many_rows_came_before(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = pa.table({"payload": ["x"] * 15_000 + [None] + ["x"] * 9_999})
    error = sentence_of(lambda: write(nats_server, rows, stream=unique, subject=f"{unique}.x"))
    said = re.fullmatch(
        rf".*row 15000 of the task .* is null; .*; the (\d+) rows before its batch were sent{MENDING}", error
    )
    assert said, error
    assert nats_py.held(unique) == int(said[1]) > 0


# What the server refuses


def stored_and_unanswered(error: str) -> tuple[int, int]:
    if "none of this task's rows was stored" in error:
        return 0, 0
    said = re.search(r"of this task's rows (\d+) were stored( and (\d+) were sent and not answered)?", error)
    assert said, error
    return int(said[1]), int(said[3] or 0)


def assert_counts(error: str, held: int) -> None:
    """The error counts what the stream holds; on a busy machine, it does not wait for the last answers."""
    stored, unanswered = stored_and_unanswered(error)
    assert stored <= held <= stored + unanswered


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ({"max_bytes": 100}, "the stream is full: raise its max_bytes, or remove messages"),
        (
            {"max_msgs_per_subject": 1, "discard_new_per_subject": True},
            "the subject is full: raise the stream's max_msgs_per_subject, or remove messages",
        ),
    ],
)
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.needs("atomic", only="True")
def test_a_full_stream_says_which_limit_to_raise(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any], advice: str, atomic: bool
) -> None:
    nats_py.create_stream(unique, discard="new", allow_atomic=True, **config)
    rows = pa.table({"payload": ["x" * 90] * 3})
    how = {"stream": unique, "subject": f"{unique}.x", "atomic": atomic}
    assert f" exceeded (503, 10077); {advice}; " in sentence_of(lambda: write(nats_server, rows, **how))


def test_a_sealed_stream_says_that_it_stays_so(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    config = nats_py.create_stream(unique)["config"]
    nats_py.api(f"STREAM.UPDATE.{unique}", {**config, "sealed": True})
    said = sentence_of(lambda: write(nats_server, pa.table({"payload": ["x"]}), stream=unique, subject=f"{unique}.x"))
    assert "(400, 10109); the stream is sealed, which nothing undoes: write to another one" in said


def test_an_account_that_may_store_no_more_says_so(server_factory: ServerFactory) -> None:
    limits = "max_file: 20KB, max_mem: 1MB, max_streams: 9, max_consumers: 9"
    users = "users: [{user: u, password: p}]"
    server = server_factory(f"no_auth_user: u\naccounts: {{ A: {{ jetstream: {{ {limits} }}, {users} }} }}")
    advice = "(400, 10002); the account has used up what it may store: raise its limit, or remove messages"
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.store("S.x", [b"x" * 30_000])  # the one that goes over the limit is stored
        rows = pa.table({"payload": ["x"]})
        assert advice in sentence_of(lambda: write(server, rows, stream="S", subject="S.x"))
        noted = sentence_of(lambda: run_task(server.url, rows, stream="S", subject="S.x"))
        assert "does not accept a value" in noted
        assert advice in noted


def test_more_replicas_than_servers_are_refused_with_advice(nats_server: Server, unique: str) -> None:
    create = f'{{"subjects": ["{unique}"], "num_replicas": 3}}'
    rows = pa.table({"payload": ["x"], "subject": [unique]})
    error = sentence_of(lambda: write(nats_server, rows, stream=unique, createStream=create))
    assert "(500, 10074); set the number of replicas to 1, or use a cluster" in error


def test_a_full_stream_says_what_it_took(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, max_msgs=1234, discard="new")
    frame = spark.range(20_000).coalesce(1).selectExpr("string(id) AS payload")
    error = error_of(lambda: save(frame, nats_server, stream=unique, subject=f"{unique}.x"))
    assert f"stream '{unique}' refused row 1234 (subject '{unique}.x'): maximum messages exceeded" in error
    assert "; the stream is full: raise its max_msgs, or remove messages; " in error
    assert_counts(error, nats_py.held(unique))
    assert nats_py.stored_numbers(unique) == list(range(1234))


def test_a_subject_of_no_stream_is_named(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    subjects = [f"nobody.{unique}" if i == 4 else f"{unique}.x" for i in range(10)]
    rows = numbered_texts(10).append_column("subject", pa.array(subjects))
    error = sentence_of(lambda: write(nats_server, rows, stream=unique))
    assert f"refused row 4 (subject 'nobody.{unique}'): no stream listens on it" in error
    assert_counts(error, 9)
    assert nats_py.held(unique) == 9


@pytest.mark.needs("named streams")
def test_a_subject_of_another_stream_is_named(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    mine, other = f"{unique}_MINE", f"{unique}_OTHER"
    nats_py.create_stream(mine)
    nats_py.create_stream(other)
    error = sentence_of(lambda: write(nats_server, numbered_texts(3), stream=mine, subject=f"{other}.x"))
    assert f"stream '{mine}' refused row 0 (subject '{other}.x'): another stream listens on it" in error
    assert "3 rows were refused in all" in error
    assert_counts(error, 0)
    for stream in (mine, other):
        assert nats_py.held(stream) == 0


def test_a_missing_stream_is_said(spark: SparkSession, nats_server: Server, unique: str) -> None:
    sentence = f"StreamNotFoundError: the stream '{unique}' does not exist; "
    assert error_of(nats(spark.read, nats_server, stream=unique).load().collect).startswith(sentence)
    streaming = nats(spark.readStream, nats_server, stream=unique).load().writeStream.format("noop")
    assert error_of(lambda: finish(streaming.start())).startswith(sentence)
    advice = "create it, or set the option 'createStream'"
    assert sentence_of(lambda: write(nats_server, numbered_texts(1), stream=unique, subject="x")) == sentence + advice


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_streams_whose_messages_go_when_acknowledged_cannot_be_read(
    nats_server: Server, nats_py: NatsPy, unique: str, retention: str
) -> None:
    nats_py.create_stream(unique, retention=retention)
    sentence = f"UnsupportedStreamError: stream '{unique}' has {retention} retention: its messages are removed when"
    assert sentence_of(batch_reader(nats_server, stream=unique).partitions).startswith(sentence)
    assert sentence_of(stream_reader(nats_server, stream=unique).initialOffset).startswith(sentence)


def test_an_unsupported_stream_is_said_through_spark(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, retention="workqueue")
    error = error_of(nats(spark.read, nats_server, stream=unique).load().collect)
    assert error.startswith(f"UnsupportedStreamError: stream '{unique}' has workqueue retention: its messages are")


def test_a_configuration_that_the_server_refuses_is_said(nats_server: Server, unique: str) -> None:
    config = '{"subjects": ["x.>"], "num_replicas": 3}'
    error = sentence_of(lambda: read(nats_server, stream=unique, createStream=config))
    assert f"STREAM.CREATE.{unique} failed: " in error
    assert "replicas" in error


def test_a_server_without_jetstream_says_how_to_have_it(server_factory: ServerFactory) -> None:
    server = server_factory(jetstream=False)
    for action in (
        lambda: read(server, stream="S"),
        lambda: write(server, numbered_texts(1), stream="S", subject="x"),
    ):
        error = sentence_of(action)
        assert "JetStream" in error
        assert "not enabled" in error


# Connections


def test_a_port_where_nobody_listens_is_said(spark: SparkSession, server_factory: ServerFactory) -> None:
    server = server_factory()
    server.kill()
    frame = nats(spark.read, server, stream="S").load()
    streaming = nats(spark.readStream, server, stream="S", retryTimeout="0s").load().writeStream.format("noop")
    rows = spark.range(1).selectExpr("string(id) AS payload")
    for action in (
        frame.collect,
        lambda: finish(streaming.start()),
        lambda: save(rows, server, subject="x"),
    ):
        error = error_of(action)
        assert f"no NATS server could be reached (nats://127.0.0.1:{server.port}: Connection refused)" in error
        assert "check the option 'servers'" in error


LOGINS = """
    authorization { users: [ { user: ann, password: t0ps3cret }, { user: bob, password: bobsOwn } ] }
"""


@pytest.fixture
def guarded(server_factory: ServerFactory) -> Server:
    """A server that only lets ann and bob in."""
    server = server_factory(LOGINS)
    with NatsPy(server.url, user="ann", password="t0ps3cret") as client:
        client.create_stream("S")
        client.publish_acked([("S.x", b"1")])
    return server


def test_wrong_credentials_are_refused_and_not_repeated(guarded: Server) -> None:
    for options in (
        {"user": "ann", "password": "wr0ngpass"},
        {"user": "ann"},
        {"token": "wr0ngpass"},
        {},
    ):
        for action in (
            lambda: read(guarded, stream="S", **options),  # noqa: B023
            lambda: write(guarded, numbered_texts(1), stream="S", subject="S.x", **options),  # noqa: B023
        ):
            error = sentence_of(action)
            assert error.startswith("AuthorizationError: ")
            without = "the option 'password' is not set; " if options.keys() == {"user"} else ""
            assert f"refused the credentials: Authorization Violation; {without}check the options 'user'" in error
            assert "wr0ngpass" not in error


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"servers": "nats://ann:t0ps3cret@localhost"}, "use the options 'user' and 'password', or 'token'"),
        ({"servers": "nats://t0ps3cret@localhost"}, "use the options 'user' and 'password', or 'token'"),
        ({"nkeySeed": "t0ps3cret"}, "use 'nkeySeedFile', or 'nkeySeedSecret', which they hide"),
    ],
)
def test_a_secret_that_sparks_plans_would_show_is_refused(
    nats_server: Server, options: dict[str, str], instead: str
) -> None:
    error = sentence_of(lambda: source(nats_server, **{"stream": "S", **options}))
    assert instead in error
    assert "t0ps3cret" not in error


@pytest.mark.long("spark_nats/conditions/*")
def test_a_missing_permission_is_named(spark: SparkSession, server_factory: ServerFactory) -> None:
    server = server_factory("""
        authorization { users: [
            { user: ann, password: pw, permissions: { publish: { deny: ["forbidden.>", "$JS.API.CONSUMER.>"] } } }
            { user: admin, password: pw }
        ] }
    """)
    with NatsPy(server.url, user="admin", password="pw") as client:
        client.create_stream("S", ["S.>", "forbidden.>"])
        client.publish_acked([("S.x", b"1")])
        login = {"user": "ann", "password": "pw"}
        error = error_of(nats(spark.read, server, stream="S", **login).load().collect)
        assert 'Permissions Violation for Publish to "$JS.API.CONSUMER.CREATE.S.' in error
        assert "the user lacks this permission" in error
        frame = spark.range(3).coalesce(1).selectExpr("string(id) AS payload")
        for stream in ({"stream": "S"}, {}):
            error = error_of(lambda: save(frame, server, subject="forbidden.x", **stream, **login))  # noqa: B023
            assert 'Permissions Violation for Publish to "forbidden.x"' in error
        assert client.held("S") == 1


# Servers that die


@contextmanager
def killed_when(server: Any, condition: Callable[[], bool], go_on: Path) -> Iterator[None]:
    """Kill the server as soon as a condition holds, then make the file `go_on`."""
    over = threading.Event()

    def kill() -> None:
        wait_until(lambda: over.is_set() or condition(), timeout=100)
        server.kill()
        go_on.touch()

    killer = threading.Thread(target=kill, name="killer")
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def pause(begun: Path, go_on: Path, after: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: lets so many batches pass, makes the file `begun` and waits for the file `go_on`."""
    begun_path, go_on_path = str(begun), str(go_on)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pathlib
        import time

        for number, batch in enumerate(batches, 1):
            yield batch
            if number == after:
                pathlib.Path(begun_path).touch()
                while not pathlib.Path(go_on_path).exists():
                    time.sleep(0.01)

    return wait


def test_a_server_that_dies_and_stays_away_ends_a_read(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.store("S.x", [bytes(100_000)] * 600)  # more than all buffers on the way hold
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"
    frame = nats(spark.read, server, stream="S", retryTimeout="1s").load().select("payload")
    slow = frame.mapInArrow(pause(begun, go_on, after=1), "payload BINARY")
    at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(at_once, 10)
    try:
        with killed_when(server, begun.exists, go_on):
            error = error_of(slow.count)
    finally:
        spark.conf.unset(at_once)
    assert "NatsConnectionError" in error
    assert f"nats://127.0.0.1:{server.port}" in error
    assert "tried for 1 s" in error


@pytest.mark.long("spark_nats/kinds/streams/write/*")
@pytest.mark.parametrize(
    "stream",
    [{"stream": "S"}, {}],
    ids=["stream", "core"],
)
def test_a_server_that_dies_ends_a_write(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path, stream: dict[str, str]
) -> None:
    server = server_factory()
    go_on = tmp_path / "go_on"
    rows = spark.range(1_000_000).coalesce(1).selectExpr("repeat('x', 1000) AS payload")
    slow = rows.mapInArrow(pause(tmp_path / "begun", go_on, after=3), "payload STRING")
    with NatsPy(server.url) as client:
        client.create_stream("S")

        def has_rows() -> bool:
            return bool(client.held("S"))

        with killed_when(server, has_rows, go_on):
            error = error_of(lambda: save(slow, server, subject="S.x", retryTimeout="1s", **stream))
    assert "NatsConnectionError" in error
    server.start()
    with NatsPy(server.url) as client:
        held = client.held("S")
    if stream:
        stored, unanswered = stored_and_unanswered(error)
        assert stored <= held <= stored + unanswered < 1_000_000
    else:
        said = re.search(r"up to (\d+) rows of this task were sent, without acknowledgement", error)
        assert said, error
        assert held <= int(said[1]) < 1_000_000


@pytest.mark.long("spark_nats/client/*")
def test_a_server_that_stays_away_for_too_long_ends_a_streaming_query(
    spark: SparkSession, server_factory: ServerFactory
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
    query = nats(spark.readStream, server, stream="S", retryTimeout="1s").load().writeStream.format("noop").start()
    try:
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive", timeout=100)
        server.kill()
        error = error_of(lambda: query.awaitTermination(60))
        assert error.startswith("NatsConnectionError: no NATS server could be reached (")
        assert "tried for 1 s; check the option 'servers'" in error
    finally:
        query.stop()


@pytest.mark.long("spark_nats/kinds/streams/write/*")
def test_a_streaming_write_says_what_ended_it_though_nothing_more_can_be_stored(
    spark: SparkSession, server_factory: ServerFactory, tmp_path: Path
) -> None:
    """What Spark asks for when the tasks have failed must not fail as well: it would show that alone."""
    server = server_factory("jetstream { max_file_store: 4MB }")
    with NatsPy(server.url) as client:
        client.create_stream("IN")
        client.create_stream("OUT")
        client.store("IN.x", [b""] * 300)
    rows = nats(spark.readStream, server, stream="IN", startingOffsets="earliest").load()
    large = rows.selectExpr("'OUT.x' AS subject", "repeat('x', 20000) AS payload")
    sink = nats(large.writeStream, server, stream="OUT", checkpointLocation=str(tmp_path))
    error = error_of(lambda: finish(sink.trigger(availableNow=True).start()))
    assert error.startswith("PublishError: stream 'OUT' refused row "), error
    assert "insufficient resources" in error
