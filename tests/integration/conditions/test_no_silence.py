"""What would have no effect, or another one than was meant, is said."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_nats import NatsDataSource
from spark_nats.kinds.buckets.write import ENTRIES
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.write.sink import check_columns, check_schema
from tests.integration.support import MESSAGE, Query, read, read_sequences, sentence_of, stream_reader, uncoded, write
from tests.nats_py import NatsPy
from tests.servers import OLDER_BINARY, Server, ServerFactory

KEY = StructType().add("key", StringType())


def rows(subject: str, count: int = 1, **columns: Any) -> pa.Table:
    return pa.table({"subject": [subject] * count, "payload": [b""] * count, **columns})


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the log says at WARNING."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(uncoded(record.getMessage()))

    listener = Listener(logging.WARNING)
    logging.getLogger("spark_nats").addHandler(listener)
    yield said
    logging.getLogger("spark_nats").removeHandler(listener)


# A stream or a bucket that is to be made, and exists or cannot be made


def test_a_stream_that_exists_and_is_another_one_than_was_asked_for_is_said_once_and_not_changed(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    nats_py.create_stream(unique, max_age=3600 * 10**9)
    asked = {"subjects": [f"{unique}.>"], "max_age": "48h", "replicas": 3, "storage": "file", "discard": "old"}
    for _ in range(3):
        write(nats_server, rows(f"{unique}.a"), stream=unique, createStream=json.dumps(asked))
    query = Query(stream_reader(nats_server, stream=unique, createStream=json.dumps(asked)))
    query.micro_batch()
    assert warnings == [
        f"stream '{unique}' exists, but differs from the requested configuration in max_age (has 1h, asked 48h), "
        "replicas (has 1, asked 3); it is not changed"
    ]
    config = nats_py.stream_info(unique)["config"]
    assert (config["max_age"], config["num_replicas"]) == (3600 * 10**9, 1)


def test_a_stream_that_exists_as_it_was_asked_for_is_not_worth_a_word(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    nats_py.create_stream(unique, [f"{unique}.a.>", f"{unique}.b.>"], max_age=3600 * 10**9, max_msgs=7)
    for requested in (
        json.dumps({"subjects": [f"{unique}.b.>", f"{unique}.a.>"], "max_age": "60m", "duplicate_window": "120s"}),
        json.dumps({"max_msgs": 7, "max_bytes": 0, "metadata": {}, "description": ""}),
    ):
        read(nats_server, stream=unique, createStream=requested)
    # What it listens on was not said; this is what is read of it.
    read(nats_server, stream=unique, createStream="true", subject=f"{unique}.a.*")
    assert warnings == []


def test_another_start_of_a_source_is_said_and_the_same_one_in_another_zone_is_not(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    for name in ("A", "B"):
        nats_py.create_stream(f"{unique}_{name}")

    def asked(time: str) -> str:
        return json.dumps({"sources": [{"name": f"{unique}_A", "opt_start_time": time}, {"name": f"{unique}_B"}]})

    for time in ("2026-01-01T01:00:00.5+01:00", "2026-01-01T00:00:00.500Z", "2026-01-01T00:00:00.5000Z"):
        read(nats_server, stream=unique, createStream=asked(time))
    assert warnings == []
    read(nats_server, stream=unique, createStream=asked("2026-01-02T00:00:00Z"))
    (said,) = warnings
    assert f"stream '{unique}' exists, but differs from the requested configuration in sources (has [" in said
    assert '"opt_start_time": "2026-01-01T0' in said
    assert '"opt_start_time": "2026-01-02T00:00:00Z"' in said


def test_a_bucket_that_exists_and_is_another_one_is_said_by_the_names_of_buckets(
    nats_server: Server, unique: str, warnings: list[str]
) -> None:
    key = pa.table({"key": ["a"], "value": ["1"]})
    write(nats_server, key, bucket=unique, createBucket='{"history": 2, "max_age": "1h"}')
    write(nats_server, key, bucket=unique, createBucket="true")
    assert warnings == []
    write(nats_server, key, bucket=unique, createBucket='{"history": 5, "max_age": "1h"}')
    assert warnings == [
        f"bucket '{unique}' exists, but differs from the requested configuration in history (has 2, asked 5); "
        "it is not changed"
    ]


def test_durations_and_replicas_are_understood_by_both(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    requested = {
        "subjects": [f"{unique}.>"],
        "max_age": "48h",
        "duplicate_window": "90s",
        "replicas": 1,
        "consumer_limits": {"inactive_threshold": "1h30m"},
    }
    assert read(nats_server, stream=unique, createStream=json.dumps(requested)) == []
    made = nats_py.stream_info(unique)["config"]
    assert (made["max_age"], made["duplicate_window"]) == (48 * 3600 * 10**9, 90 * 10**9)
    assert made["consumer_limits"]["inactive_threshold"] == 5400 * 10**9
    read(nats_server, KEY, bucket=unique, createBucket='{"max_age": "30d", "replicas": 1}')
    assert nats_py.stream_info(f"KV_{unique}")["config"]["max_age"] == 30 * 24 * 3600 * 10**9


@pytest.mark.needs("strict")
def test_what_the_server_does_not_know_is_said_in_our_words(nats_server: Server, unique: str) -> None:
    def told(**config: Any) -> str:
        requested = json.dumps({"subjects": [f"{unique}.>"], **config})
        return sentence_of(lambda: read(nats_server, stream=unique, createStream=requested))

    cannot = f"JetStreamError: the stream '{unique}' cannot be created: "
    assert told(max_messages=5) == (
        f"{cannot}the server knows no field 'max_messages' of a stream's configuration; did you mean 'max_msgs'?"
    )
    assert told(sources=[{"name": "A", "subject": "a"}]) == (
        f"{cannot}the server knows no field 'subject' of a stream's configuration; did you mean 'filter_subject'?"
    )
    assert told(quantum=5) == f"{cannot}the server knows no field 'quantum' of a stream's configuration"
    assert told(compression="zip") == (
        f"{cannot}the server does not take its configuration (unknown compression algorithm)"
    )


@pytest.mark.skipif(not OLDER_BINARY.exists(), reason="needs nats-server 2.11")
def test_what_an_older_server_leaves_out_in_silence_is_said(
    server_factory: ServerFactory, unique: str, warnings: list[str]
) -> None:
    server = server_factory(binary=OLDER_BINARY)
    requested = {"subjects": [f"{unique}.>"], "allow_msg_counter": True, "quantum": 5, "max_age": "1h"}
    write(server, rows(f"{unique}.a"), stream=unique, createStream=json.dumps(requested))
    assert warnings == [
        f"stream '{unique}' was created, but the server left out or changed what it does not know: "
        "allow_msg_counter (has none, asked true), quantum (has none, asked 5); it is not changed further"
    ]


# A stream that does not exist


def test_who_reads_a_stream_that_is_missing_is_told_which_there_are(server_factory: ServerFactory) -> None:
    server = server_factory()

    def told(stream: str, **options: Any) -> str:
        said = sentence_of(lambda: read(server, stream=stream, **options))
        assert sentence_of(stream_reader(server, stream=stream, **options).initialOffset) == said
        return said.removeprefix(f"StreamNotFoundError: the stream {stream!r} does not exist; ")

    advice = "create it, or set the option 'createStream'"
    with NatsPy(server.url) as client:
        assert told("ORDERS") == advice
        client.create_stream("KV_CONFIG", ["$KV.CONFIG.>"])
        assert told("ORDERS") == "there is KV_CONFIG"
        client.create_stream("PAYMENTS")
        assert told("ORDERS") == "there is PAYMENTS"
        client.create_stream("Orders")
        assert told("ORDERS") == "there are Orders and PAYMENTS"
        for i in range(10):
            client.create_stream(f"S{i}")
        first = ", ".join(f"S{i}" for i in range(8))
        assert told("ORDRES") == f"there are Orders, PAYMENTS, {first} and 2 more"
        write_into = sentence_of(lambda: write(server, rows("a"), stream="ORDERS"))
        assert write_into.endswith(f"does not exist, but 'Orders' does; {advice}")
        assert sentence_of(lambda: write(server, rows("a"), stream="X")).endswith(f"does not exist; {advice}")


# A filter that nothing can match


def unmatched(filters: str, streams: str, subjects: str) -> str:
    return (
        f"no new message can match the subject {filters}: the subjects of {streams} are {subjects}; read other "
        "subjects, or add these to a stream"
    )


def test_a_filter_that_no_subject_of_the_stream_can_match_is_said_once(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    nats_py.create_stream(unique, [f"{unique}.>"])
    nats_py.publish_acked([(f"{unique}.a", b"")])
    said = unmatched("order.>, orders", unique, f"{unique}.>")
    asked = f"order.>,orders,{unique}.b"
    assert read_sequences(nats_server, stream=unique, subject=asked) == []
    assert warnings == [said]
    query = Query(stream_reader(nats_server, stream=unique, subject=asked, startingOffsets="earliest"))
    for _ in range(3):
        assert query.micro_batch() == []
    assert warnings == [said, said]  # a query each


def test_a_filter_may_be_for_one_of_several_streams(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    names = [f"{unique}_A", f"{unique}_B"]
    for name in names:
        nats_py.create_stream(name)
    both = {"stream": ",".join(names)}, {"streamPattern": f"{unique}_[AB]"}
    for which in both:
        read(nats_server, **which, subject=f"{names[0]}.x,{names[1]}.x")
    assert warnings == []
    for which in both:
        read(nats_server, **which, subject=f"{names[0]}.x,{names[0].lower()}.x")
    expected = unmatched(f"{names[0].lower()}.x", ", ".join(names), f"{names[0]}.>, {names[1]}.>")
    assert warnings == [expected] * 2


def test_what_a_stream_holds_under_other_subjects_than_it_listens_on_can_match(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    def config(kind: str, **config: Any) -> str:
        nats_py.create_stream(f"{unique}_{kind}", **config)
        return f"{unique}_{kind}"

    first = config("ORIGIN", subjects=[f"{unique}.old.>"])
    nats_py.publish_acked([(f"{unique}.old.1", b"")])
    nats_py.api(f"STREAM.UPDATE.{first}", {"name": first, "subjects": [f"{unique}.new.>"]})
    republishing = {"src": ">", "dest": f"{unique}.other.>"}
    streams = [
        first,
        config("MIRROR", subjects=[], mirror={"name": first}),
        config("SOURCING", subjects=[f"{unique}.s.>"], sources=[{"name": first}]),
        config(
            "CHANGING",
            subjects=[f"{unique}.c.>"],
            subject_transform={"src": f"{unique}.c.>", "dest": f"{unique}.old.>"},
        ),
        config("REPUBLISHING", subjects=[f"{unique}.old.x"], republish=republishing),
    ]
    for stream in streams:
        read(nats_server, stream=stream, subject=f"{unique}.old.*")
    assert warnings == []
    read(nats_server, stream=streams[-1], subject=f"{unique}.other.>")
    assert len(warnings) == 1  # what is republished is stored elsewhere, if at all


def test_a_subject_that_is_taken_away_from_a_stream_that_is_read_is_said_once_each_time(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    def listen(*subjects: str, **config: Any) -> None:
        nats_py.api(f"STREAM.UPDATE.{unique}", {"name": unique, "subjects": subjects, **config})
        query.look(nats_py)
        query.look(nats_py)

    a, b, c = (f"{unique}.{each}" for each in "abc")
    nats_py.create_stream(unique, [a, b])
    nats_py.create_stream(f"{unique}_ORIGIN", [f"{unique}_ORIGIN.>"])
    nats_py.publish_acked([(b, b"1")])
    options = {"stream": unique, "subject": b, "startingOffsets": "earliest"}
    query = Query(stream_reader(nats_server, **options))
    assert len(query.micro_batch()) == 1
    listen(a, b, c)
    listen(f"{unique}.*")
    listen(a, c, sources=[{"name": f"{unique}_ORIGIN"}])  # which may have any subject
    assert warnings == []
    listen(a, c)
    listen(c)
    assert warnings == [unmatched(b, unique, f"{a}, {c}")]
    listen(b, c)
    nats_py.publish_acked([(b, b"2")])
    assert len(query.micro_batch()) == 1
    listen(c)
    assert warnings == [unmatched(b, unique, f"{a}, {c}"), unmatched(b, unique, c)]
    # So is one that was taken away before the query began, although there is something to read.
    warnings.clear()
    other = Query(stream_reader(nats_server, **options))
    assert len(other.micro_batch()) == 2
    assert warnings == [unmatched(b, unique, c)]


def test_a_subject_under_which_a_stream_stores_nothing_any_more_is_said(
    nats_server: Server, nats_py: NatsPy, unique: str, warnings: list[str]
) -> None:
    sent, stored = f"{unique}.sent", f"{unique}.stored"
    nats_py.create_stream(unique, [f"{unique}.>"])
    query = Query(stream_reader(nats_server, stream=unique, subject=sent, startingOffsets="earliest"))
    nats_py.publish_acked([(sent, b"1")])
    assert len(query.micro_batch()) == 1
    transform = {"src": sent, "dest": stored}
    nats_py.api(f"STREAM.UPDATE.{unique}", {"name": unique, "subjects": [sent], "subject_transform": transform})
    nats_py.publish_acked([(sent, b"2")])
    query.look(nats_py)
    query.look(nats_py)
    assert warnings == [unmatched(sent, unique, stored)]
    assert read_sequences(nats_server, stream=unique, subject=stored) == [2]


# Paths and tables


@pytest.mark.parametrize("beside", [{}, {"stream": "S"}])
def test_a_path_is_an_error_whatever_is_asked_of_it(nats_server: Server, beside: dict[str, str]) -> None:
    for how in (read, stream_reader):
        error = sentence_of(lambda how=how: how(nats_server, path="MINE", **beside))  # type: ignore[misc]
        assert error.startswith("OptionError: the path 'MINE' has no meaning here; use the option 'stream'")
    error = sentence_of(lambda: write(nats_server, rows("a"), path="MINE", **beside))
    assert error.startswith("OptionError: the path 'MINE' has no meaning here; use the option 'stream'")


def test_rows_do_not_vanish_where_spark_has_not_handed_on_the_options_of_a_table() -> None:
    schema = StructType().add("subject", StringType()).add("payload", StringType())
    for options in ({}, {"checkpointLocation": "/x"}):
        for how in (NatsDataSource(options).writer, NatsDataSource(options).streamWriter):
            error = sentence_of(lambda how=how: how(schema, False))  # type: ignore[misc]
            assert error.startswith(
                "OptionError: the options do not say where to write: set the option 'stream' or 'bucket'"
            )
            assert "use CREATE TEMPORARY VIEW ... USING nats OPTIONS (...)" in error


# Columns of a frame that is written, which are named like those of what was read

PAYLOAD_TYPE = StructType().add("subject", StringType()).add("payload", BinaryType())
ENTRY_TYPE = StructType().add("key", StringType()).add("value", BinaryType())
STRING, LONG, TIME = StringType(), LongType(), TimestampType()


@pytest.mark.parametrize(
    ("columns", "lost"),
    [
        ({"timestamp": STRING}, "'timestamp' cannot be written, and would be lost: it is STRING, and only"),
        ({"timestamp": LONG}, "'timestamp' cannot be written, and would be lost: it is BIGINT, and only"),
        ({"sequence": IntegerType()}, "'sequence' cannot be written, and would be lost: it is INT, and only"),
        ({"sequence": STRING, "stream": STRING}, "'sequence' cannot be written"),
        ({"stream": LONG, "sequence": LONG}, "'stream' cannot be written, and would be lost: it is BIGINT, and only"),
    ],
)
def test_a_column_of_another_type_than_the_sources_is_not_dropped(columns: dict[str, DataType], lost: str) -> None:
    schema = StructType([*PAYLOAD_TYPE.fields, *(StructField(name, kind) for name, kind in columns.items())])
    for to in ({"stream": "S"}, {"subject": "a"}):
        said = sentence_of(lambda to=to: check_schema(schema, parse_write_options(to, streaming=True)))  # type: ignore[misc]
        assert said.startswith(f"SchemaError: column {lost}")
        assert "rename or drop it" in said


def test_a_column_of_a_bucket_of_another_type_is_not_dropped_either() -> None:
    for name, kind in (("revision", IntegerType()), ("created", STRING), ("bucket", LONG)):
        schema = StructType([*ENTRY_TYPE.fields, StructField(name, kind)])
        said = sentence_of(lambda schema=schema: check_columns(schema, ENTRIES))  # type: ignore[misc]
        assert said.startswith(f"SchemaError: column '{name}' cannot be written, and would be lost")


def test_what_was_read_can_be_written(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    for columns in (["stream", "sequence", "timestamp"], ["sequence"], ["timestamp"], ["sequence", "stream"]):
        schema = StructType([*PAYLOAD_TYPE.fields, *(f for f in MESSAGE.fields if f.name in columns)])
        for to in ({"stream": "S"}, {"subject": "a"}):
            check_schema(schema, parse_write_options(to, streaming=True))
    nats_py.create_stream(unique)
    table = rows(f"{unique}.a", 2, stream=["ANOTHER", None], sequence=[1, None])
    write(nats_server, table, stream=unique)
    assert len(nats_py.read_stream(unique)) == 2


def test_a_stream_that_rows_name_has_to_be_the_one_that_is_written_to(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    write(nats_server, rows(f"{unique}.a", 2, stream=[unique, None]), stream=unique)
    elsewhere = rows(f"{unique}.a", 3, stream=[unique, None, "PAYMENTS"])
    for to in ({"stream": unique}, {"streamPattern": unique}):  # no option is named that is not set
        assert sentence_of(lambda to=to: write(nats_server, elsewhere, **to)) == (  # type: ignore[misc]
            "InvalidRowError: row 2 of the task cannot be sent: column 'stream' is 'PAYMENTS', but its row goes to "
            f"'{unique}': this column does not route rows; drop or rename it; nothing was sent"
        )
    assert len(nats_py.read_stream(unique)) == 2
    said = sentence_of(lambda: write(nats_server, elsewhere))
    assert said.startswith("SchemaError: column 'stream' cannot be written to core NATS, and would be lost; rename")


def test_a_bucket_that_rows_name_has_to_be_the_one_that_is_written_to(nats_server: Server, unique: str) -> None:
    def table(**columns: Any) -> pa.Table:
        return pa.table({"key": ["a", "b"], "value": ["1", "2"], **columns})

    write(nats_server, table(bucket=[unique, unique]), bucket=unique, createBucket="true")
    write(nats_server, table(bucket=["OTHER", "OTHER"], revision=[1, 2]), bucket=unique)
    said = sentence_of(lambda: write(nats_server, table(bucket=[unique, "OTHER"]), bucket=unique))
    assert "row 1 of the task cannot be sent: column 'bucket' is 'OTHER', but its row goes to '" in said
