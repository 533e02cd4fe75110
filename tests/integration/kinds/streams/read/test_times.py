"""Reading from one time to another, and the times at the edges of what Python, Spark and the server can count."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.types import LongType, StructType

from spark_nats.jetstream import JetStream
from spark_nats.jetstream.messages import ask_first_since
from spark_nats.jetstream.times import ask_first_at
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.queries import parse_read_options
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read.readers import NatsReader, NatsStreamReader
from tests.integration.support import Query, batch_sequences, read_sequences, sentence_of, stream_reader
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

SEQUENCE = StructType().add("sequence", LongType())
MICROSECOND = timedelta(microseconds=1)
HOLES = {1, 2, 7, 20, 21, 22, 23, 39}


@pytest.fixture(scope="module")
def holed(nats_server: Server) -> Iterator[tuple[str, dict[int, datetime]]]:
    """A stream of 40 sequences of which some were deleted, and when each of the others was stored."""
    stream = "TIMES"
    with NatsPy(nats_server.url) as client:
        client.create_stream(stream)
        for i in range(40):  # one by one, so that each has its own microsecond
            client.publish_acked([(f"{stream}.x", b"%d" % i)])
        for sequence in HOLES:
            client.delete_message(stream, sequence)
        answers = [client.api(f"STREAM.MSG.GET.{stream}", {"seq": i}) for i in range(1, 41) if i not in HOLES]
        # Python reads no more of a time than the microsecond, which is what a row of Spark's has of it.
        yield stream, {a["message"]["seq"]: datetime.fromisoformat(a["message"]["time"]) for a in answers}
        client.delete_stream(stream)


def read_options(server: Server, streaming: bool = False, **given: str) -> ReadOptions:
    parsed = parse_read_options({"servers": server.url, **given}, streaming)
    assert isinstance(parsed, ReadOptions)
    return parsed


def sequences_read(reader: NatsReader) -> list[int]:
    return sorted(s for partition in reader.partitions() for s in batch_sequences(reader.read(partition)))


def test_the_first_message_at_a_time_is_found_among_deleted_ones(
    js: JetStream, holed: tuple[str, dict[int, datetime]]
) -> None:
    stream, times = holed
    assert len(set(times.values())) == 40 - len(HOLES)
    for sequence, time in times.items():
        assert ask_first_at(js, ask_stream_info(js, stream), time).sequence == sequence
        later = min((s for s in times if s > sequence), default=41)
        assert ask_first_at(js, ask_stream_info(js, stream), time + MICROSECOND).sequence == later
    for time in (datetime.min, datetime(1969, 12, 31), datetime(1677, 1, 1)):
        assert ask_first_at(js, ask_stream_info(js, stream), time.replace(tzinfo=UTC)).sequence == 3
    for time in (datetime(2262, 4, 12), datetime(2999, 12, 31), datetime.max):
        assert ask_first_at(js, ask_stream_info(js, stream), time.replace(tzinfo=UTC)).sequence == 41
    assert ask_first_since(js, stream, 0, 20, 24) == 24  # where none is left


def test_a_stream_without_messages_has_none_at_any_time(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    assert ask_first_at(js, ask_stream_info(js, unique), datetime(2000, 1, 1, tzinfo=UTC)).sequence == 1
    nats_py.store_empty(unique, 5)
    nats_py.purge_stream(unique)
    assert ask_first_at(js, ask_stream_info(js, unique), datetime(2000, 1, 1, tzinfo=UTC)).sequence == 6


def test_what_is_stored_behind_a_known_state_is_not_looked_at(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 5)
    info = ask_stream_info(js, unique)
    nats_py.store_empty(unique, 2)
    for time in (datetime.max, datetime.fromisoformat(info.created).replace(tzinfo=None) + timedelta(days=1)):
        assert ask_first_at(js, info, time.replace(tzinfo=UTC)).sequence == 6
        assert ask_first_at(js, ask_stream_info(js, unique), time.replace(tzinfo=UTC)).sequence == 8


def test_only_the_streams_leader_is_asked_for_times(
    js: JetStream, nats_py: NatsPy, holed: tuple[str, dict[int, datetime]]
) -> None:
    stream, times = holed
    with nats_py.collect("$JS.API.>") as asked:
        assert ask_first_at(js, ask_stream_info(js, stream), times[30]).sequence == 30
        subjects = [message.subject for message in asked.wait(2) if stream in message.subject]
    assert set(subjects) == {f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.STREAM.MSG.GET.{stream}"}
    assert len(subjects) <= 1 + 6 + 27  # 40 sequences take six bits; then each before that one is looked at


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59.999999Z", "2999-12-31", "99999999999999"])
def test_a_batch_from_a_time_to_come_on_has_no_rows(
    nats_server: Server, holed: tuple[str, dict[int, datetime]], time: str
) -> None:
    stream, _ = holed
    assert sequences_read(NatsReader(read_options(nats_server, stream=stream, startingTimestamp=time), SEQUENCE)) == []
    both = {"startingTimestamp": time, "endingTimestamp": time}
    assert sequences_read(NatsReader(read_options(nats_server, stream=stream, **both), SEQUENCE)) == []


def test_a_batch_up_to_a_time_to_come_has_all_rows(nats_server: Server, holed: tuple[str, dict[int, datetime]]) -> None:
    stream, times = holed
    for given in ({"endingTimestamp": "9999-12-31"}, {"startingTimestamp": "0001-01-01"}):
        assert sequences_read(NatsReader(read_options(nats_server, stream=stream, **given), SEQUENCE)) == list(times)
    exact = times[30].isoformat()
    given = {"startingTimestamp": exact, "endingTimestamp": exact}
    assert sequences_read(NatsReader(read_options(nats_server, stream=stream, **given), SEQUENCE)) == []


def test_a_query_from_a_time_to_come_on_begins_with_the_next_message(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 5)
    given = read_options(nats_server, streaming=True, stream=unique, startingTimestamp="2999-12-31")
    reader = NatsStreamReader(given, SEQUENCE)
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    nats_py.store_empty(unique, 2)
    end = wait_until(lambda: (now := reader.latestOffset(start, reader.getDefaultReadLimit())) != start and now)
    batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    assert batch_sequences(batches) == [6, 7]


ERROR = {"startingOffsetsByTimestampStrategy": "error"}


def test_a_query_can_demand_that_there_is_something_since_its_time(nats_server: Server, nats_py: NatsPy) -> None:
    one, other, bucket = "SINCE_ONE", "SINCE_OTHER", "SINCE_BUCKET"
    for stream in (one, other):
        nats_py.create_stream(stream)
        nats_py.publish_acked([(f"{stream}.early", b"x")])
    store = nats_py.run(nats_py.nats.jetstream().create_key_value(bucket=bucket))
    nats_py.run(store.put("early", b"x"))
    time = datetime.now(UTC).isoformat()
    nats_py.publish_acked([(f"{one}.late", b"x")])
    since = {"startingTimestamp": time, **ERROR}
    try:
        assert read_sequences(nats_server, stream=one, **since) == [2]
        assert Query(stream_reader(nats_server, stream=one, subject=f"{one}.*", **since)).rows(1) == [{"sequence": 2}]
        refused: dict[str, dict[str, str]] = {
            f"stream '{other}'": {"stream": f"{one},{other}"},
            f"stream '{one}'": {"stream": one, "subject": f"{one}.early"},
            f"bucket '{bucket}'": {"bucket": bucket},
        }
        for what, given in refused.items():
            schema = StructType().add("key", "string") if "bucket" in given else SEQUENCE
            sentence = sentence_of(stream_reader(nats_server, schema, **given, **since).initialOffset)
            assert sentence.startswith(f"OptionError: {what} has nothing from ")
            assert stream_reader(nats_server, schema, **given, startingTimestamp=time).initialOffset()
        assert "or later for the query" in sentence_of(lambda: read_sequences(nats_server, stream=other, **since))
        assert read_sequences(nats_server, stream=other, startingTimestamp=time) == []
    finally:
        for stream in (one, other, f"KV_{bucket}"):
            nats_py.delete_stream(stream)


def test_a_query_that_goes_on_needs_nothing_since_its_time(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.publish_acked([(f"{unique}.x", b"x")])
    given = {"stream": unique, "startingTimestamp": "2026-01-01", **ERROR}
    query = Query(stream_reader(nats_server, **given))
    assert query.rows(1) == [{"sequence": 1}]
    nats_py.delete_message(unique, 1)
    again = Query(stream_reader(nats_server, **given), query.offset)
    assert again.micro_batch() == []
    nats_py.publish_acked([(f"{unique}.x", b"x")])
    assert again.rows(1) == [{"sequence": 2}]
