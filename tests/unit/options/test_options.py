"""Options: each value as it is read, and what is refused with which words."""

import dataclasses
import re
import traceback
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_nats import NatsDataSource, NatsForeachWriter
from spark_nats.client import parse_servers
from spark_nats.errors import OptionError
from spark_nats.kinds.buckets import BUCKETS
from spark_nats.kinds.core import CORE
from spark_nats.kinds.objects import OBJECTS
from spark_nats.kinds.queries import (
    MODES,
    describe_misplaced,
    documented_options,
    kinds,
    parse_options,
    parse_read_options,
    parse_write_options,
)
from spark_nats.kinds.streams import STREAMS
from spark_nats.kinds.streams.options import ReadOptions, WriteOptions
from spark_nats.kinds.tables import TABLES
from spark_nats.options import connecting, connection_options, options_of_urls
from spark_nats.options.query import Triggers
from spark_nats.options.settings import TOGETHER
from spark_nats.options.values import ConsumerAckFloor, StreamOffset


def read(streaming=False, **options):
    return parse_read_options({"stream": "ORDERS", **options}, streaming)


def write(streaming=False, **options):
    return parse_write_options(options, streaming)


def test_names_are_case_insensitive():
    assert read(MAXRECORDSPERPARTITION="7").max_records_per_partition == 7


def test_streaming_begins_at_the_end_and_a_batch_at_the_beginning():
    assert read(streaming=True).starting == "latest"
    assert (read().starting, read().ending) == ("earliest", "latest")


def test_offsets_are_words_or_json():
    assert read(startingOffsets="Earliest").starting == "earliest"
    assert read(startingOffsets='{"ORDERS": 1200}').starting == {"ORDERS": StreamOffset(1200)}
    assert read(startingOffsets='{"ORDERS": {"next": 7}}').starting == {"ORDERS": StreamOffset(7)}
    of_checkpoint = (
        '{"ORDERS": {"created": "C", "next": 7, "timestamp": "1970-01-01T00:00:01Z", "since": 3, "first": 3}}'
    )
    assert read(startingOffsets=of_checkpoint).starting == {"ORDERS": StreamOffset(7, "C", 10**9)}
    of_many = '{"ORDERS": "1500000000 7 -500000000 3 3"}'
    assert read(startingOffsets=of_many).starting == {"ORDERS": StreamOffset(7, "1970-01-01T00:00:01.5Z", 10**9)}
    for word in ("latest", "LaTest"):
        assert read(streaming=True, startingOffsets=f'{{"ORDERS": "{word}"}}').starting == {"ORDERS": "latest"}
    assert read(startingOffsets='{"ORDERS": "eArLiEst"}').starting == {"ORDERS": "earliest"}
    assert read(startingOffsets='{"ORDERS": "Consumer:B"}').starting == {"ORDERS": ConsumerAckFloor("B")}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingOffsets", '{"ORDERS": 1, "ORDERS": 3}'),
        ("startingOffsets", '{"ORDERS": {"next": 1, "next": 3}}'),
        ("endingOffsets", '{"ORDERS": 1, "ORDERS": 1}'),
        ("createStream", '{"subjects": ["a"], "max_age": "1h", "max_age": "2h"}'),
        ("createStream", '{"subjects": ["a"], "placement": {"tags": ["x"], "tags": ["y"]}}'),
        ("websocketHeadersSecret", '{"Authorization": "Bearer x", "Authorization": "Bearer y"}'),
    ],
)
def test_a_name_that_stands_twice_in_the_json_of_an_option_is_refused(option, text):
    """JSON's rules would take the last one without a word."""
    streaming = option == "createStream"
    with pytest.raises(OptionError, match=f"option '{option}' .*has a name twice in its JSON; name everything once"):
        read(streaming=streaming, **{option: text})


@pytest.mark.parametrize(
    "text", ["2026-11-01T00:00:00Z", "2026-11-01", "2026-11-01T01:00:00+01:00", "1793491200000", "2026-11-01 00:00:00"]
)
def test_times_are_iso_8601_or_milliseconds_and_utc_without_a_zone(text):
    assert read(startingTimestamp=text).starting == datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("0", datetime(1970, 1, 1, tzinfo=UTC)),  # the same in any unit
        ("100000000000", datetime(1973, 3, 3, 9, 46, 40, tzinfo=UTC)),
        ("253402300799000", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_milliseconds_reach_from_1973_to_9999_and_zero_is_the_beginning(text, time):
    assert read(startingTimestamp=text).starting == time


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("5s", 5), ("2 m", 120), ("1h", 3600), ("1.5s", 1.5)])
def test_times_are_written_with_their_unit(text, seconds):
    assert read(requestTimeout=text).connection.request_timeout == pytest.approx(seconds)


def test_several_streams_and_subjects_are_separated_by_commas():
    parsed = read(stream="A, B", subject="a.>, b.*")
    assert parsed.streams == ("A", "B")
    assert parsed.filters == ("a.>", "b.*")


def test_a_domain_or_a_prefix_says_where_the_api_is():
    assert read().api_prefix == "$JS.API"
    assert read(domain="hub").api_prefix == "$JS.hub.API"
    assert read(apiPrefix="from.acme.").api_prefix == "from.acme"


def test_deduplication_is_exact_in_streaming_writes_to_a_stream_only():
    assert write(streaming=True, stream="S").deduplicate == "exact"
    assert write(streaming=True, stream="S", deduplicate="TRUE").deduplicate == "exact"
    assert write(streaming=True, stream="S", deduplicate="window").deduplicate == "window"
    assert write(streaming=True, stream="S", deduplicate="false").deduplicate == "false"
    assert write(stream="S").deduplicate == write(bucket="B").deduplicate == "window"
    assert write(streaming=True, subject="s").deduplicate == "false"
    with pytest.raises(OptionError, match="'deduplicate' is 'maybe'; it must be exact, window or false"):
        write(streaming=True, stream="S", deduplicate="maybe")


def test_a_query_that_consumes_begins_with_the_first_message_unless_told_otherwise():
    assert read(streaming=True).starting == "latest"
    assert read(streaming=True, consume="true").starting == "earliest"
    assert read(streaming=True, consume="false").starting == "latest"
    assert read(streaming=True, consume="true", startingOffsets="latest").starting == "latest"
    assert read(streaming=True, consume="true", startingTimestamp="0").starting.year == 1970


@pytest.mark.parametrize(
    ("streaming", "options", "sentence"),
    [
        (False, {"consume": "true"}, "option 'consume' is for streaming (spark.readStream), not for batch reads"),
        (True, {"peek": "true"}, "option 'peek' is for batch reads (spark.read), not for streaming"),
        (True, {"consumer": "c"}, "option 'consumer' needs the option 'consume' to be true"),
        (True, {"consumer": "c", "consume": "false"}, "option 'consumer' needs the option 'consume' to be true"),
        (True, {"consumer": "a.b", "consume": "true"}, "option 'consumer' is 'a.b'; it contains white space"),
        (True, {"consume": "maybe"}, "option 'consume' is 'maybe'; it must be true or false"),
        (True, {"consume": "true", "subject": "a.*,a.b"}, "names 'a.*' and 'a.b', which overlap"),
    ],
)
def test_options_of_queues_are_checked(streaming, options, sentence):
    with pytest.raises(OptionError) as raised:
        read(streaming=streaming, **options)
    assert sentence in str(raised.value)


def test_a_state_bucket_has_a_name_that_is_one_token():
    assert write(streaming=True, stream="S", stateBucket="my_state-2").state_bucket == "my_state-2"
    with pytest.raises(OptionError, match=r"'stateBucket' is 'a\.b'; a bucket's name has only letters, digits"):
        write(streaming=True, stream="S", stateBucket="a.b")


def test_a_missing_stream_is_made_with_the_subject_or_a_configuration():
    assert read(subject="a.>", createStream="true").requested_config == {"name": "ORDERS", "subjects": ["a.>"]}
    assert write(stream="S", createStream='{"subjects": ["s"], "max_msgs": 5}').requested_config == {
        "name": "S",
        "subjects": ["s"],
        "max_msgs": 5,
    }
    assert read(createStream="false").requested_config is None


def test_a_stream_to_make_has_times_with_units_and_replicas():
    requested = '{"subjects": ["s"], "max_age": "720h", "duplicate_window": "5m", "replicas": 3}'
    expected = {
        "name": "ORDERS",
        "subjects": ["s"],
        "max_age": 30 * 24 * 3600 * 10**9,
        "duplicate_window": 300 * 10**9,
        "num_replicas": 3,
    }
    assert (
        read(createStream=requested).requested_config
        == write(stream="ORDERS", createStream=requested).requested_config
        == expected
    )


def test_sparks_own_options_pass():
    parse_options({"checkpointLocation": "/tmp/x", "queryName": "q", "stream": "S"})


def test_secrets_are_in_no_representation():
    assert "s3cret" not in repr(read(user="me", password="s3cret"))
    assert "t0ken" not in repr(read(token="t0ken"))
    assert "t0ken" not in repr(parse_options({"token": "t0ken"}))


@pytest.mark.parametrize("mistake", [{"strem": "ORDERS"}, {"maxRecordsPerPartition": "many"}, {"url": "nats://host"}])
def test_no_frame_that_an_error_passes_has_a_secret_where_spark_shows_local_variables(mistake):
    def options():
        return CaseInsensitiveDict({"stream": "ORDERS", "user": "me", "password": "s3cret", **mistake})

    def make():
        NatsDataSource(options=options())

    with pytest.raises(OptionError) as raised:
        make()
    # as PySpark does with spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled
    error = raised.value
    text = "".join(traceback.TracebackException(type(error), error, raised.tb, capture_locals=True).format())
    assert "in make\n" in text
    assert "s3cret" not in text


@pytest.mark.parametrize(
    "url",
    [
        "nats://me:s3cret@host",
        "s3cret@host",
        "nats://one,tls://me:s3cret@host:4222",
        "nats://:s3cret@host",
        "a:s3cr,et@b",
    ],
)
def test_a_url_with_a_secret_is_refused_because_spark_would_print_it(url):
    with pytest.raises(OptionError, match="use the options 'user' and 'password', or 'token'") as raised:
        read(servers=url)
    assert "s3cret" not in str(raised.value)


def test_a_password_with_a_comma_is_not_taken_for_two_servers():
    with pytest.raises(ValueError, match="write one in a password or token as %2C") as raised:
        parse_servers("nats://one,nats://me:12,34@two")
    assert "12" not in str(raised.value)
    assert parse_servers("nats://one,nats://me:12%2C34@two")[1].credentials.password == "12,34"


@pytest.mark.parametrize("url", ["nats://:s3cret@host", "nats://:s3cret@"])
def test_a_password_without_a_user_is_refused(url):
    with pytest.raises(ValueError, match="password without a user|is not a server URL") as raised:
        parse_servers(url)
    assert "s3cret" not in str(raised.value)


def test_urls_with_different_logins_are_no_options():
    for urls in ("nats://t@a,nats://t@b:5", "nats://t@a,b:5"):
        assert options_of_urls(urls) == {"servers": "nats://a:4222,nats://b:5", "token": "t"}
    with pytest.raises(ValueError, match="log in in different ways"):
        options_of_urls("nats://a,nats://t@b")


def test_a_spool_with_a_key_in_its_uri_is_refused_without_it():
    with pytest.raises(OptionError, match="option 'spoolLocation' has a password or a key in its URI") as raised:
        parse_options({"subject": "a", "spoolLocation": "s3://AKIA:s3cret@bucket/path"})
    assert "s3cret" not in str(raised.value)
    for location in ("s3://bucket/a:b@c", "abfss://container@account.dfs.core.windows.net/path"):
        assert parse_options({"subject": "a", "spoolLocation": location}).given["spoolLocation"] == location


READ_MISTAKES = [
    ({"straem": "S"}, "unknown option 'straem'; did you mean 'stream'?"),
    ({"kafka.bootstrap.servers": "x"}, "unknown option 'kafka.bootstrap.servers'"),
    ({"stream": "a.b"}, "option 'stream' is 'a.b'; 'a.b' contains"),
    ({"stream": ""}, "option 'stream' is ''"),
    ({"stream": "A,A"}, "names the same thing twice"),
    ({"servers": "http://x"}, "option 'servers' has the unsupported scheme 'http'"),
    ({"startingOffsets": "first"}, "option 'startingOffsets' is 'first'; it must be earliest, latest, or JSON"),
    (
        {"startingOffsets": '{"ORDERS": {"0": 5, "1": 7}}'},
        '\'{"ORDERS": {"0": 5, "1": 7}}\'; streams have no partitions: write {"ORDERS": 5}',
    ),
    ({"startingOffsets": '{"ORDERS": {"0": -2}}'}, 'streams have no partitions: write {"ORDERS": "earliest"}'),
    ({"startingOffsets": '{"ORDERS": -2}'}, 'instead of -2 write {"ORDERS": "earliest"}'),
    ({"endingOffsets": '{"ORDERS": -1}'}, 'instead of -1 write {"ORDERS": "latest"}'),
    ({"startingOffsets": '{"ORDERS": {}}'}, "it must be earliest, latest, or JSON"),
    ({"kafka.acks": "all"}, "leave it out: rows for a stream are always acknowledged"),
    ({"servers": "['nats://a:1', 'nats://b:1']"}, "is written as a list; write URLs separated by commas, without"),
    ({"startingOffsets": '{"ORDERS": 0}'}, "option 'startingOffsets'"),
    ({"startingOffsets": '{"ORDERS": true}'}, "option 'startingOffsets'"),
    ({"startingOffsets": '{"ORDERS": 81.7}'}, "option 'startingOffsets'"),
    ({"startingOffsets": '{"ORDERS": {"next": true}}'}, "option 'startingOffsets'"),
    ({"startingOffsets": '{"ORDERS": {"created": "2026-11-01T08:00:00Z"}}'}, "option 'startingOffsets'"),
    ({"startingOffsets": '{"ORDERS": {"next": 7, "time": "2026-11-01T08:00:00Z"}}'}, "option 'startingOffsets'"),
    ({"startingOffsets": '{"ORDERS": {"next": 7, "timestamp": "yesterday"}}'}, "option 'startingOffsets'"),
    ({"startingOffsets": '{"OTHER": 1}'}, "has offsets for OTHER, but the streams to read are ORDERS"),
    ({"startingOffsets": "latest"}, "option 'startingOffsets' is latest"),
    ({"endingOffsets": "earliest"}, "option 'endingOffsets' is earliest"),
    ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "'startingOffsets' and 'startingTimestamp' contradict"),
    ({"endingOffsets": "latest", "endingTimestamp": "0"}, "'endingOffsets' and 'endingTimestamp' contradict"),
    (
        {"startingTimestamp": "2026-11-02", "endingTimestamp": "2026-11-01T23:59:59.999Z"},
        "option 'endingTimestamp' is 2026-11-01T23:59:59.999000+00:00, which is before 'startingTimestamp', "
        "2026-11-02T00:00:00+00:00;",
    ),
    (
        {"stream": "A,B", "startingOffsets": '{"A": 1, "B": 7}', "endingOffsets": '{"A": 5, "B": 6}'},
        "option 'endingOffsets' has 6 for the stream 'B', which is below its 7 in 'startingOffsets';",
    ),
    ({"startingTimestamp": "yesterday"}, "option 'startingTimestamp' is 'yesterday'; it must be ISO 8601"),
    ({"startingTimestamp": "9" * 30}, "which is after the year 9999; write ISO 8601, such as"),
    ({"startingTimestamp": "20261101"}, "which is 1970-01-01T05:37:41+00:00; write ISO 8601, such as"),
    ({"endingTimestamp": "1793491200"}, "write 1793491200000 if that is in seconds (2026-11-01T00:00:00+00:00), or"),
    ({"startingTimestamp": "1793491200000000"}, "write 1793491200000 if that is in microseconds (2026-11-01"),
    ({"startingTimestamp": "1793491200000000000"}, "write 1793491200000 if that is in nanoseconds (2026-11-01"),
    ({"minPartitions": "0"}, "option 'minPartitions' is '0'; it must be a whole number of at least 1"),
    ({"minPartitions": "two"}, "option 'minPartitions' is 'two'"),
    ({"servers": f"nats://{'a' * 64}.com"}, "option 'servers' is not a server URL"),
    ({"servers": "nats://a..b"}, "option 'servers' is not a server URL"),
    ({"startingTimestamp": "0001-01-01T00:00:00+23:00"}, "option 'startingTimestamp' is '0001-"),
    ({"requestTimeout": "501h"}, "option 'requestTimeout' is '501h'; it must be a time above zero, of 500h at most"),
    ({"requestTimeout": "9" * 400 + "s"}, "it must be a time above zero, of 500h at most"),
    ({"requestTimeout": "5"}, "option 'requestTimeout' is '5'; it must be a time above zero"),
    ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss' is 'maybe'; it must be true or false"),
    ({"subject": "a b"}, "option 'subject' is 'a b'; 'a b' contains white space"),
    ({"subject": "a.>,a.b"}, "option 'subject' names 'a.>' and 'a.b', which overlap"),
    ({"user": "u", "token": "t"}, "options 'user' and 'token' contradict"),
    ({"password": "s3cret"}, "option 'password' needs the option 'user'"),
    ({"maxTriggerDelay": "1m"}, "option 'maxTriggerDelay' needs the option 'minOffsetsPerTrigger'"),
    ({"startingOffsetsByTimestampStrategy": "error"}, "needs the option 'startingTimestamp'"),
    (
        {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "earliest"},
        "option 'startingOffsetsByTimestampStrategy' is 'earliest'; it must be error or latest",
    ),
    ({"domain": "d", "apiPrefix": "p"}, "options 'domain' and 'apiPrefix' contradict"),
    ({"inboxPrefix": "a.*"}, "option 'inboxPrefix' is 'a.*'"),
    ({"path": "MINE"}, "the path 'MINE' has no meaning here; use the option 'stream' for the name of a stream, or"),
    ({"paths": '["A","B"]'}, """the path '["A","B"]' has no meaning here; use the option 'stream'"""),
    ({"path": "s3://key:s3cret@b/x"}, "the path 's3://…@b/x' has no meaning here"),
    ({"path": "file:/spark-warehouse/t"}, "if that is where Spark keeps a table, use CREATE TEMPORARY VIEW"),
    ({"option.stream": "X", "stream": "X"}, "unknown option 'option.stream'; Spark sets it for tables, and does not"),
    ({"strem": "X", "stream": "a b", "path": "/x", "OWNER": "me"}, "unknown option 'OWNER'; Spark sets it for tables"),
    ({"createStream": "maybe"}, "option 'createStream' must be true, false or a stream configuration in JSON"),
    ({"createStream": '{"max_age": "48"}'}, "option 'createStream' has a time as 'max_age' that is '48'"),
    ({"createStream": '{"max_ages": 1}'}, "option 'createStream' has the field 'max_ages', which streams do not have"),
    ({"createStream": "true"}, "set the option 'subject'"),
    ({"createStream": '{"name": "X"}'}, "has the name 'X', but 'stream' is 'ORDERS'"),
    ({"createStream": "true", "stream": "A,B", "subject": "a"}, "creates one stream"),
    ({"maxInFlight": "5"}, "option 'maxInFlight' is only for writing"),
    ({"maxOffsetsPerTrigger": "5"}, "not for batch reads (spark.read); use 'limit' or 'endingOffsets'"),
    ({"minOffsetsPerTrigger": "5"}, "is for streaming"),
    ({"connectionName": "a\r\nPUB x 0"}, "option 'connectionName'"),
]


@pytest.mark.parametrize(("options", "words"), READ_MISTAKES, ids=[str(list(o.items())[-1]) for o, _ in READ_MISTAKES])
def test_a_mistake_in_reading_is_named(options, words):
    with pytest.raises(OptionError) as raised:
        read(**options)
    assert words in str(raised.value)
    assert "s3cret" not in str(raised.value)


PATTERN_MISTAKES = [
    (
        True,
        {"streamPattern": "*"},
        "option 'streamPattern' is '*', which is not a regular expression of Python's: nothing",
    ),
    (True, {"streamPattern": "a{99999999999}"}, "which is not a regular expression of Python's: the repetition number"),
    (True, {"streamPattern": ""}, "option 'streamPattern' is empty or contains a control character"),
    (True, {"streamPattern": "A.*", "stream": "A"}, "options 'stream' and 'streamPattern' contradict each other"),
    (True, {"streamPattern": "A.*", "bucket": "A"}, "options 'streamPattern' and 'bucket' contradict each other"),
    (
        True,
        {"streamPattern": "A.*", "consume": "true"},
        "'streamPattern' and 'consume' contradict each other: no durable",
    ),
    (
        False,
        {"streamPattern": "A.*", "createStream": "true"},
        "'streamPattern' and 'createStream' contradict each other",
    ),
    (True, {"streamPattern": "A.*", "queueGroup": "g"}, "option 'queueGroup' is for reading core NATS"),
    (
        False,
        {"streamPattern": "A.*", "startingOffsets": '{"A": 7}', "endingOffsets": '{"B": 9, "A": 6}'},
        "option 'endingOffsets' has 6 for the stream 'A', which is below its 7 in 'startingOffsets';",
    ),
]


@pytest.mark.parametrize(("streaming", "options", "words"), PATTERN_MISTAKES)
def test_a_mistake_in_a_pattern_is_named(streaming, options, words):
    with pytest.raises(OptionError) as raised:
        parse_read_options(options, streaming)
    assert words in str(raised.value)


@pytest.mark.parametrize(("options", "target"), [({"stream": "A,B"}, "A, B"), ({"streamPattern": "A.*"}, "that match")])
def test_several_streams_may_be_written_to(options: dict[str, str], target: str):
    parsed = parse_write_options(options, streaming=True)
    assert (parsed.may_have_several_targets, parsed.is_core, target in parsed.target) == (True, False, True)
    assert parsed.for_stream("A").streams == ("A",)
    assert not parsed.for_stream("A").may_have_several_targets


def test_a_pattern_reads_as_a_stream_does():
    parsed = parse_read_options({"streamPattern": "A_[0-9]+", "consume": "false", "subject": "a.>"}, streaming=True)
    assert (parsed.streams, parsed.pattern.pattern, parsed.filters) == ((), "A_[0-9]+", ("a.>",))


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": "2026-11-01", "endingTimestamp": "2026-11-01T01:00:00+01:00"},
        {"startingOffsets": '{"ORDERS": 5}', "endingOffsets": '{"ORDERS": 5}'},
        {"startingOffsets": '{"ORDERS": 5}', "endingOffsets": '{"ORDERS": "latest"}'},
        {"startingOffsets": '{"ORDERS": "earliest"}', "endingOffsets": '{"ORDERS": 1}'},
        {"startingTimestamp": "2999-01-01", "endingOffsets": '{"ORDERS": 1}'},  # who knows where that is?
    ],
)
def test_an_end_that_is_not_known_to_be_before_the_beginning_is_no_mistake(options):
    read(**options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingTimestamp", "0"),
        ("filterPushdown", "true"),
        ("limit", "10"),
        ("limitPushdown", "true"),
    ],
)
def test_batch_options_are_refused_in_streaming(name, value):
    with pytest.raises(OptionError, match=f"option '{name}' is for batch reads"):
        read(streaming=True, **{name: value})


def test_reading_needs_a_stream_or_a_subject():
    with pytest.raises(OptionError, match="set the option 'stream', 'streamPattern' or 'bucket', or 'subject' alone"):
        parse_read_options({}, streaming=False)
    with pytest.raises(OptionError, match="set the option 'stream', 'streamPattern' or 'bucket', or 'subject' alone"):
        parse_read_options({"failOnDataLoss": "false", "maxInFlight": "5"}, streaming=False)  # whatever else is wrong


def test_how_to_connect_is_said_by_options_without_spark_too():
    assert not connection_options(echo="false").echo
    assert connection_options(requestTimeout="2s").request_timeout == 2
    with pytest.raises(OptionError, match="unknown option 'stream'"):
        connection_options(stream="S")


def core(streaming=False, **options):
    return parse_read_options({"subject": "a.>", **options}, streaming)


def test_a_subject_without_a_stream_is_core_nats():
    parsed = core(subject="a.>, b.*", queueGroup="g", readTimeout="2s", maxMessages="7", minPartitions="3")
    assert parsed.subjects == ("a.>", "b.*")
    assert (parsed.queue_group, parsed.read_timeout, parsed.max_messages, parsed.min_partitions) == ("g", 2, 7, 3)
    parsed = core(streaming=True, maxBufferedBytes="1000", receivers="2", spoolLocation="/x", failOnDataLoss="false")
    assert (parsed.max_buffered_bytes, parsed.receivers, parsed.spool_location) == (1000, 2, "/x")
    assert not parsed.fail_on_data_loss
    assert core().read_timeout == 10
    assert core(streaming=True).max_buffered_bytes == 256 * 1024 * 1024


def test_subjects_of_core_nats_may_overlap():
    assert core(subject="a.>,a.*").subjects == ("a.>", "a.*")


CORE_MISTAKES = [
    ({"subject": "a b"}, False, "option 'subject' is 'a b'; 'a b' contains white space"),
    ({"subject": "a,a"}, False, "names the same thing twice"),
    ({"queueGroup": "a b"}, False, "option 'queueGroup' is 'a b'; it contains white space"),
    ({"readTimeout": "0s"}, False, "option 'readTimeout' is '0s'; it must be a time above zero"),
    ({"maxMessages": "0"}, False, "option 'maxMessages' is '0'"),
    ({"startingOffsets": "earliest"}, False, "option 'startingOffsets' needs the option 'stream'"),
    ({"createStream": "true"}, True, "option 'createStream' needs the option 'stream'"),
    ({"domain": "hub"}, True, "option 'domain' needs the option 'stream'"),
    ({"maxOffsetsPerTrigger": "5"}, False, "'maxOffsetsPerTrigger' is for streaming (spark.readStream) of core NATS"),
    ({"maxBufferedBytes": "5"}, False, "option 'maxBufferedBytes' is for streaming"),
    ({"receivers": "2"}, False, "option 'receivers' is for streaming"),
    ({"spoolLocation": "/x"}, False, "option 'spoolLocation' is for streaming"),
    ({"failOnDataLoss": "false"}, False, "option 'failOnDataLoss' is for streaming"),
    ({"readTimeout": "5s"}, True, "option 'readTimeout' is for batch reads (spark.read) of core NATS"),
    ({"maxMessages": "5"}, True, "option 'maxMessages' is for batch reads"),
    ({"echo": "false"}, True, "option 'echo' is only for writing"),
    ({"stream": "S", "queueGroup": "g"}, True, "option 'queueGroup' is for reading core NATS, and contradicts"),
    ({"stream": "S", "readTimeout": "5s"}, False, "option 'readTimeout' is for reading core NATS, and contradicts"),
    ({"stream": "S", "receivers": "5"}, True, "option 'receivers' is for reading core NATS, and contradicts"),
]


@pytest.mark.parametrize(("options", "streaming", "words"), CORE_MISTAKES)
def test_a_mistake_in_reading_core_nats_is_named(options, streaming, words):
    with pytest.raises(OptionError) as raised:
        core(streaming, **options)
    assert words in str(raised.value)


def test_echo_is_on_unless_told_otherwise():
    assert write(subject="s").connection.echo
    assert not write(subject="s", echo="false").connection.echo
    with pytest.raises(OptionError, match="option 'echo' is for writing to core NATS"):
        write(stream="S", echo="false")


def of_bucket(streaming=False, **options):
    return parse_read_options({"bucket": "CONFIG", **options}, streaming)


def test_a_bucket_is_read_whole_or_by_keys_that_do_not_overlap():
    assert (of_bucket().bucket, of_bucket().keys, of_bucket().history) == ("CONFIG", (), False)
    parsed = of_bucket(keys="eu.>, us.*.a", history="true", ignoreDeletes="false")
    assert (parsed.keys, parsed.history, parsed.ignore_deletes) == (("eu.>", "us.*.a"), True, False)
    assert of_bucket().ignore_deletes


def test_the_changes_of_a_bucket_are_those_of_its_stream():
    parsed = of_bucket(streaming=True, keys="a.b,c.>", startingOffsets='{"CONFIG": 7}')
    assert (parsed.bucket, parsed.streams, parsed.starting) == (
        "CONFIG",
        ("KV_CONFIG",),
        {"KV_CONFIG": StreamOffset(7)},
    )
    assert parsed.filters == ("$KV.*.a.b", "$KV.*.c.>")
    assert not parsed.ignore_deletes
    assert of_bucket(streaming=True).starting == "latest"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_missing_bucket_is_made_with_a_configuration_of_its_own(streaming):
    requested = (
        '{"history": 5, "max_age": "24h", "limit_marker_ttl": "15m", "max_value_size": 1000, "compression": true}'
    )
    parsed = of_bucket(streaming, createBucket=requested)
    config = parsed.requested_config
    assert config == {
        "name": "KV_CONFIG",
        "subjects": ["$KV.CONFIG.>"],
        "max_msgs_per_subject": 5,
        "max_age": 24 * 3600 * 10**9,
        "max_msg_size": 1000,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": 900 * 10**9,
        "compression": "s2",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }
    assert of_bucket(createBucket="false").requested_config is None
    kept = of_bucket(createBucket='{"max_age": "90d"}').requested_config
    assert kept is not None
    assert kept["max_age"] == 90 * 24 * 3600 * 10**9


BUCKET_MISTAKES = [
    ({"bucket": "a.b"}, False, "option 'bucket' is 'a.b'; a bucket's name has only letters, digits"),
    ({"stream": "S"}, False, "options 'stream' and 'bucket' contradict each other"),
    ({"subject": "a"}, False, "option 'subject' is not for KV buckets"),
    ({"keys": "a b"}, False, "option 'keys' is 'a b'; 'a b' contains white space"),
    ({"keys": "a..b"}, False, "option 'keys' is 'a..b'; 'a..b' has an empty token"),
    ({"keys": "a.>,a.b"}, True, "option 'keys' names 'a.>' and 'a.b', which overlap; name everything once"),
    ({"history": "true"}, True, "option 'history' is for batch reads (spark.read) of KV buckets"),
    ({"startingOffsets": "earliest"}, False, "option 'startingOffsets' is for streaming (spark.readStream) of KV"),
    ({"startingOffsets": '{"OTHER": 1}'}, True, "has offsets for OTHER, but the streams to read are CONFIG"),
    ({"minPartitions": "2"}, False, "option 'minPartitions' is for streaming"),
    ({"createStream": "true"}, True, "option 'createStream' is not for KV buckets"),
    ({"createBucket": "maybe"}, False, "option 'createBucket' must be true, false or a bucket's configuration"),
    ({"createBucket": '{"history": 65}'}, False, "has 65 as 'history', which must be from 1 to 64"),
    ({"createBucket": '{"history": true}'}, False, "has true as 'history', which must be a whole number"),
    ({"createBucket": '{"max_age": "5"}'}, False, "has a time as 'max_age' that is '5'"),
    ({"createBucket": '{"ttl": "5s"}'}, False, "has the field 'ttl'; a bucket has history, max_age"),
    ({"createBucket": '{"limit_marker_ttl": "500ms"}'}, True, "'limit_marker_ttl', which must be 1s or longer"),
    ({"createBucket": '{"storage": "disk"}'}, True, "has 'disk' as 'storage', which must be file or memory"),
    ({"onConflict": "skip"}, True, "option 'onConflict' is only for writing"),
]


@pytest.mark.parametrize(("options", "streaming", "words"), BUCKET_MISTAKES, ids=lambda each: str(each))
def test_a_mistake_in_reading_a_bucket_is_named(options, streaming, words):
    with pytest.raises(OptionError) as raised:
        of_bucket(streaming, **options)
    assert words in str(raised.value)


WRITE_MISTAKES = [
    ({"stream": "A,B", "atomic": "true"}, "stores the rows of a partition together"),
    ({"streamPattern": "A", "atomic": "true"}, "stores the rows of a partition together"),
    ({"streamPattern": "A", "createStream": "true", "subject": "a"}, "a pattern does not say what to create"),
    ({"streamPattern": "A.*", "badRows": "stream", "badRowsStream": "AB"}, "'AB'"),
    ({"stream": "A,B", "badRows": "stream", "badRowsStream": "B"}, "'B'"),
    ({"subject": "a.>"}, "it contains white space, a control character or a wildcard"),
    ({"subject": "a..b"}, "it has an empty token"),
    ({"subject": "s", "maxInFlight": "5"}, "option 'maxInFlight' needs the option 'stream'"),
    ({"subject": "s", "deduplicate": "true"}, "option 'deduplicate' needs the option 'stream'"),
    ({"stream": "S", "startingOffsets": "latest"}, "option 'startingOffsets' is only for reading"),
    ({"stream": "S", "createStream": "true"}, "set the option 'subject'"),
    ({"bucket": "B", "deduplicate": "exact"}, "option 'deduplicate' is exact, which is not possible for a KV bucket"),
    ({"bucket": "B", "onConflict": "ignore"}, "option 'onConflict' is 'ignore'; it must be fail or skip"),
]


@pytest.mark.parametrize(
    ("options", "words"), WRITE_MISTAKES, ids=[str(list(o.items())[-1]) for o, _ in WRITE_MISTAKES]
)
def test_a_mistake_in_writing_is_named(options, words):
    with pytest.raises(OptionError) as raised:
        write(**options)
    assert words in str(raised.value)


def test_a_misspelt_secret_is_not_shown():
    with pytest.raises(OptionError, match="did you mean 'password'") as raised:
        parse_options({"passwrd": "s3cret"})
    assert "s3cret" not in str(raised.value)


# Tables of what an account holds


def test_a_table_is_of_all_streams_or_of_those_that_are_chosen():
    everything = parse_read_options({"table": "Streams"}, streaming=False)
    assert (everything.table, everything.streams, everything.pattern, everything.filters) == ("streams", (), None, ())
    assert parse_read_options({"table": "consumers", "stream": "A,B"}, streaming=False).streams == ("A", "B")
    assert (
        parse_read_options({"table": "buckets", "streamPattern": "KV_.*"}, streaming=False).pattern.pattern == "KV_.*"
    )
    counted = parse_read_options({"table": "subjects", "subject": "a.>,b", "domain": "hub"}, streaming=False)
    assert (counted.filters, counted.api_prefix) == (("a.>", "b"), "$JS.hub.API")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "stream"}, "must be streams, consumers, buckets or subjects; did you mean 'streams'?"),
        ({"table": "bucket"}, "did you mean 'buckets'?"),
        ({"table": "ORDERS"}, "option 'table' is 'ORDERS'; it must be streams, consumers, buckets or subjects"),
        ({"table": "streams", "subject": "a"}, "option 'subject' is for the table of subjects, and the option 'table'"),
        ({"table": "subjects", "subject": "a.*,a.b"}, "names 'a.*' and 'a.b', which overlap"),
        ({"table": "buckets", "bucket": "B"}, "option 'bucket' is not for tables of what an account holds"),
        ({"table": "streams", "limit": "5"}, "option 'limit' is not for tables of what an account holds"),
        ({"table": "streams", "deduplicate": "exact"}, "option 'deduplicate' is only for writing"),
        ({"table": "streams", "stream": "A", "streamPattern": "B"}, "'stream' and 'streamPattern' contradict each"),
        ({"tables": "streams"}, "did you mean 'table'?"),
    ],
)
def test_a_mistake_about_tables_is_named(options, words):
    with pytest.raises(OptionError) as raised:
        parse_read_options(options, streaming=False)
    assert words in str(raised.value)


def test_tables_are_read_in_batches_and_not_written():
    with pytest.raises(OptionError, match="'table' is streams, which is read in batches") as raised:
        parse_read_options({"table": "streams", "maxOffsetsPerTrigger": "5"}, streaming=True)
    assert raised.value.condition == "NATS_TABLE_IS_FOR_BATCHES"
    for streaming in (False, True):
        with pytest.raises(OptionError, match="option 'table' is only for reading"):
            write(streaming=streaming, table="streams")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objectStore": "A", "stream": "B"}, "options 'stream' and 'objectStore' contradict each other"),
        ({"objectStore": "A", "bucket": "B"}, "options 'bucket' and 'objectStore' contradict each other"),
        ({"objectStore": "A", "table": "streams"}, "options 'table' and 'objectStore' contradict each other"),
        ({"objectStore": "A", "subject": "b"}, "option 'subject' is not for object stores, and contradicts"),
        ({"objectStore": "A", "limit": "5"}, "option 'limit' is not for object stores, and contradicts"),
        ({"objectStore": "a.b"}, "option 'objectStore' is 'a.b'; a bucket's name has only letters, digits"),
        (
            {"objectStore": "A", "objectPattern": "*.c?v"},
            "option 'objectPattern' is '*.c?v', which is not a regular expression of Python's: nothing to repeat at "
            "position 0; .* stands for any letters: if * and ? are to stand for letters, write .*\\.c.v",
        ),
        ({"objectStore": "A", "maxObjectBytes": "0"}, "it must be a whole number of at least 1"),
        ({"objectStore": "A", "maxObjectBytes": "2000000001"}, "a row of Spark holds 2000000000 at most"),
        ({"stream": "A", "maxObjectBytes": "5"}, "option 'maxObjectBytes' needs the option 'objectStore'"),
        ({"table": "streams", "objectPattern": "a"}, "option 'objectPattern' is not for tables of what an account"),
        ({"objectStores": "A"}, "did you mean 'objectStore'?"),
    ],
)
def test_a_mistake_about_object_stores_is_named(options, words):
    with pytest.raises(OptionError) as raised:
        parse_read_options(options, streaming=False)
    assert words in str(raised.value)


def test_the_changes_of_an_object_store_are_those_of_its_stream():
    parsed = parse_read_options(
        {"objectStore": "A", "startingOffsets": '{"A": 5}', "objectPattern": "x"}, streaming=True
    )
    assert isinstance(parsed, ReadOptions)
    assert (parsed.streams, parsed.filters) == (("OBJ_A",), ("$O.A.M.>",))
    assert parsed.starting == {"OBJ_A": StreamOffset(5)}
    assert parsed.objects is not None
    assert (parsed.objects.store, parsed.objects.pattern) == ("A", re.compile("x"))
    with pytest.raises(OptionError, match="option 'startingOffsets' has offsets for B, but the streams to read are A"):
        parse_read_options({"objectStore": "A", "startingOffsets": '{"B": 5}'}, streaming=True)
    with pytest.raises(OptionError, match="option 'endingOffsets' is not for object stores"):
        parse_read_options({"objectStore": "A", "endingOffsets": "latest"}, streaming=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subject": "b"}, "option 'subject' is not for object stores, and contradicts"),
        ({"stream": "B"}, "options 'stream' and 'objectStore' contradict each other"),
        ({"deduplicate": "window"}, "option 'deduplicate' is not for object stores"),
        ({"maxInFlight": "5"}, "option 'maxInFlight' is not for object stores"),
        ({"maxObjectBytes": "5"}, "option 'maxObjectBytes' is only for reading"),
        ({"createBucket": "true"}, "option 'createBucket' is not for object stores"),
        ({"createObjectStore": "yes"}, "must be true, false or an object store's configuration in JSON"),
        ({"createObjectStore": '{"history": 5}'}, "has the field 'history'; an object store has max_age, max_bytes"),
        ({"createObjectStore": '{"storage": "tape"}'}, "which must be file or memory"),
    ],
)
def test_a_mistake_in_writing_objects_is_named(options, words):
    for streaming in (False, True):
        with pytest.raises(OptionError) as raised:
            parse_write_options({"objectStore": "A", **options}, streaming)
        assert words in str(raised.value)


def test_an_object_store_is_made_as_its_configuration_says():
    options = {"objectStore": "A", "createObjectStore": '{"max_age": "2h", "replicas": 3, "compression": true}'}
    config = parse_write_options(options, streaming=False).requested_config
    assert config == {
        "name": "OBJ_A",
        "subjects": ["$O.A.C.>", "$O.A.M.>"],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "max_age": 7200 * 10**9,
        "num_replicas": 3,
        "compression": "s2",
    }
    assert parse_write_options({"objectStore": "A"}, streaming=True).requested_config is None


def test_rows_are_not_written_as_messages_to_an_object_store():
    with pytest.raises(OptionError, match="'objectStore' is not for NatsForeachWriter"):
        NatsForeachWriter(objectStore="A")


# The table


def test_an_option_is_named_as_its_field_unless_it_says_otherwise():
    assert WriteOptions.options["max_in_flight"].name == "maxInFlight"
    assert Triggers.options["max_offsets"].name == "maxOffsetsPerTrigger"
    assert len(documented_options()) == 84


def test_what_does_not_go_together_is_said_of_options_that_there_are():
    rows = [row for group in GROUPS for row in group.options.values()]
    named = {name for row in rows for name in (*row.needs, *row.excludes)} | set(sum(TOGETHER, ()))
    assert {documented_options()[name.lower()].option.name for name in named} == named


def test_no_group_hides_what_another_one_has():
    """Only a query's own class may replace what it inherits: what is inherited does not depend on the order.

    The checks of all classes are one chain.
    """
    of_all = ("section", "options", "check_and_make_query")
    for group in GROUPS:
        for name in {name for base in group.__mro__ for name in vars(base) if not name.startswith("__")}:
            having = [base for base in group.__mro__[1:] if name in vars(base)]
            for base in having[1:]:
                assert issubclass(having[0], base) or name in of_all, (group, name)


def test_an_option_of_several_kinds_is_one():
    """It is read in the same way, means the same, and stands in one section."""
    for group in GROUPS:
        for row in group.options.values():
            same = documented_options()[row.name.lower()].option
            assert (row.read, row.meaning, row.section) == (same.read, same.meaning, same.section)


USES = [
    pytest.param(kind, writing, streaming, id=f"{kind.named_by[:1]}-{writing}-{streaming}")
    for kind in kinds()
    for writing in (False, True)
    for streaming in (False, True)
    if kind.operation(writing, streaming)
]
GROUPS = [*connecting.GROUPS, *{use.options for kind in kinds() for m in MODES if (use := kind.operation(*m))}]


def parsed(kind, writing, streaming, **options):
    least = {kind.named_by[0]: "streams" if kind is TABLES else "CONFIG"} if kind.named_by else {"subject": "a"}
    return (parse_write_options if writing else parse_read_options)({**least, **options}, streaming)


NEEDED = {
    "maxTriggerDelay": {"minOffsetsPerTrigger": "5"},
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "0"},
}


@pytest.mark.parametrize(("kind", "writing", "streaming"), USES)
def test_the_documented_default_is_the_one_that_is_used(kind, writing, streaming):
    for option, _, default in documented_options().values():
        if not default or option.name not in kind.option_names(writing, streaming):
            continue
        shown = re.fullmatch(r"(\S+) in streaming(?: \(KV buckets: (\w+)\))?, (\S+) in batch", default)
        if shown:
            default = shown[3] if not streaming else shown[2] if kind is BUCKETS and shown[2] else shown[1]
        needed = NEEDED.get(option.name, {})
        explicit = parsed(kind, writing, streaming, **needed, **{option.name: default})
        assert explicit == parsed(kind, writing, streaming, **needed), option.name


@pytest.mark.parametrize(("kind", "writing", "streaming"), USES)
def test_a_default_stands_in_one_place(monkeypatch, kind, writing, streaming):
    """Another default in a dataclass is another behaviour."""
    others = {"true": "false", "false": "true", "earliest": "latest", "latest": "earliest", "exact": "window"}
    use = kind.operation(writing, streaming)
    rows = {
        name: dataclasses.replace(
            row, batch_default=None, default=others.get(row.default, "7" if row.default.isdigit() else "7s")
        )
        for name, row in use.options.options.items()
        if name in ("min_partitions", "max_in_flight", "ack_timeout", "read_timeout", "ignore_deletes", "peek")
        and row.streaming in (None, streaming)
    }
    before = parsed(kind, writing, streaming)
    for name, row in rows.items():
        monkeypatch.setitem(use.options.options, name, row)
    after = parsed(kind, writing, streaming)
    for name, row in rows.items():
        assert getattr(before, name) != getattr(after, name) == row.read(row.default), name


@pytest.mark.parametrize(("kind", "writing", "streaming"), USES)
def test_an_option_that_does_not_apply_says_what_it_is_for(kind, writing, streaming):
    for option, scope, _ in documented_options().values():
        problem = describe_misplaced(option.name, kind, writing, streaming)
        assert (problem is None) == (option.name in kind.option_names(writing, streaming))
        if problem is None:
            continue
        assert problem.startswith(f"option '{option.name}' ")
        if scope == ("read" if writing else "write"):
            assert problem.endswith(f"is only for {'reading' if writing else 'writing'}")
            continue
        if option.name == "table":  # whatever has it is a table
            continue
        there = {each for each in kinds() for live in (False, True) if option.name in each.option_names(writing, live)}
        if kind in there:
            assert (
                "not for streaming" if streaming else f"not for batch {'writes' if writing else 'reads'}"
            ) in problem
        elif there == {OBJECTS} and kind is not TABLES:
            assert "needs the option 'objectStore'; it is for object stores" in problem
        elif there <= {BUCKETS, OBJECTS} and kind in (CORE, STREAMS):
            assert "needs the option 'bucket'; it is for KV buckets" in problem
        else:
            assert WORDS[kind.named_by] in problem


WORDS = {
    CORE.named_by: "needs the option 'stream'",
    STREAMS.named_by: "contradicts the option 'stream'",
    BUCKETS.named_by: "is not for KV buckets, and contradicts the option 'bucket'",
    TABLES.named_by: "is not for tables of what an account holds, and contradicts the option 'table'",
    OBJECTS.named_by: "is not for object stores, and contradicts the option 'objectStore'",
}
