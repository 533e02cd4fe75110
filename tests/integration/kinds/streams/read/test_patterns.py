"""Streams that are read because their names match a pattern, those included that are made while a query runs."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_nats
from spark_nats import clock
from spark_nats.cli import main
from spark_nats.client import retrying
from spark_nats.jetstream import listing, views
from spark_nats.jetstream.reading.direct import MAX_TOGETHER
from spark_nats.kinds.streams.read import idling, looks
from spark_nats.kinds.streams.read.looks import LISTED_FROM
from spark_nats.lag import lag_of_progress
from spark_nats.options.short_forms import is_short
from tests.integration.commands.test_lag import write_checkpoint
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import (
    MESSAGE,
    Query,
    batch_reader,
    finish,
    monitoring,
    nats,
    read,
    read_partitions,
    running,
    sentence_of,
    stream_reader,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, Server, ServerFactory, paused

Found = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def names_are_asked_for_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL", 0.0)


def make(client: NatsPy, *names: str, messages: int = 0, **config: Any) -> None:
    for name in names:
        client.create_stream(name, **config)
        client.store_empty(name, messages)


def found(rows: Iterable[Mapping[str, Any]]) -> Found:
    """The stream, without the part of its name that no other test uses, and the sequence of each row."""
    return sorted((re.sub("T_[0-9A-F]{8}", "T", row["stream"]), row["sequence"]) for row in rows)


def each(name: str, first: int, last: int) -> Found:
    return [(name, sequence) for sequence in range(first, last + 1)]


def query(server: Server | str, pattern: str, checkpoint: Any = None, **options: Any) -> Query:
    return Query(stream_reader(server, MESSAGE, streamPattern=pattern, **options), checkpoint)


def available(each_micro_batch: Iterable[list[dict[str, Any]]]) -> Found:
    return found(row for rows in each_micro_batch for row in rows)


# Which streams


@pytest.mark.docker
def test_a_batch_reads_all_streams_whose_whole_names_match(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    for name, messages in ((f"{unique}_A", 2), (f"{unique}_B", 3), (f"{unique}_C1", 1), (f"OF_{unique}_A", 1)):
        make(nats_py, name, messages=messages)
    assert found(read(nats_server, streamPattern=f"{unique}_[A-Z]")) == each("T_A", 1, 2) + each("T_B", 1, 3)
    assert found(read(nats_server, streamPattern=f"{unique}_C.*")) == [("T_C1", 1)]


def test_the_small_streams_of_a_batch_share_a_partition(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    names = [f"{unique}_{i}" for i in range(12)]
    make(nats_py, *names[:6], messages=3)
    make(nats_py, *names[6:], messages=2, allow_direct=True)
    expected = sorted((f"T_{i}", sequence) for i in range(12) for sequence in range(1, 4 if i < 6 else 3))
    for fewest, partitions in ((1, [1]), (3, [3, 4]), (30, [30])):
        reader = batch_reader(nats_server, MESSAGE, streamPattern=f"{unique}_.*", minPartitions=fewest)
        planned = reader.partitions()
        assert len(planned) in partitions
        assert found(read_partitions(pickle.dumps(reader), planned)) == expected


def test_the_small_streams_of_a_micro_batch_share_a_partition_whoever_plans_it(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    names = [f"{unique}_{i}" for i in range(6)]
    make(nats_py, *names[:5], messages=3)
    reading = query(nats_server, f"{unique}_.*", {}, minPartitions=2).reader
    end = reading.latestOffset({}, reading.getDefaultReadLimit())
    planned = reading.partitions({}, end)
    assert len(planned) == 3
    assert found(read_partitions(pickle.dumps(reading), planned)) == [
        (f"T_{i}", n) for i in range(5) for n in (1, 2, 3)
    ]
    make(nats_py, names[5], messages=3)
    replaying = query(nats_server, f"{unique}_.*", {}, minPartitions=2).reader
    assert replaying.partitions({}, end) == planned


def test_a_micro_batch_that_an_earlier_version_has_planned_has_a_partition_for_each_stream(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    names = [f"{unique}_{i}" for i in range(5)]
    make(nats_py, *names, messages=3)
    reading = query(nats_server, f"{unique}_.*", {}, minPartitions=2).reader
    end = reading.latestOffset({}, reading.getDefaultReadLimit())
    earlier = {name: {"from" if key == "first" else key: value for key, value in end[name].items()} for name in end}
    planned = reading.partitions({}, earlier)
    assert [partition.stream for partition in planned] == names
    assert found(read_partitions(pickle.dumps(reading), planned)) == [
        (f"T_{i}", n) for i in range(5) for n in (1, 2, 3)
    ]
    assert reading.latestOffset(earlier, reading.getDefaultReadLimit()) == earlier


def test_what_a_shared_partition_cannot_read_fails_its_task_and_is_named(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    names = [f"{unique}_{i}" for i in range(3)]
    make(nats_py, *names, messages=2)
    reader = batch_reader(nats_server, MESSAGE, streamPattern=f"{unique}_.*")
    planned = reader.partitions()
    nats_py.delete_stream(names[1])
    error = sentence_of(lambda: read_partitions(pickle.dumps(reader), planned))
    assert error.startswith("DataLossError")
    assert repr(names[1]) in error


def test_a_pattern_means_buckets_and_object_stores_only_if_it_says_so(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        make(client, "KV_T", "OBJ_T", "$MQTT_msgs", "PLAIN", messages=1)
        assert found(read(server, streamPattern=".*")) == [("PLAIN", 1)]
        assert found(read(server, streamPattern="KV_.*|PLAIN")) == [("KV_T", 1), ("PLAIN", 1)]
        assert found(read(server, streamPattern="OBJ_.*")) == [("OBJ_T", 1)]
        assert found(read(server, streamPattern=r"\$MQTT_.*")) == [("$MQTT_msgs", 1)]


@pytest.mark.needs("percent signs", only="%s{}")
@pytest.mark.parametrize("name", ["Ünïcode-流", "a,b", "'\"`;--", "$x", "%s{}", "[a]", "x" * 200])
def test_names_may_be_unusual(nats_server: Server, nats_py: NatsPy, unique: str, name: str) -> None:
    make(nats_py, f"{unique}_{name}", subjects=[f"{unique}.>"])
    nats_py.store_empty(unique, 3)
    pattern = f"{unique}_{re.escape(name)}"
    assert found(read(nats_server, streamPattern=pattern)) == each(f"T_{name}", 1, 3)
    reading = query(nats_server, pattern, startingOffsets="earliest")
    assert found(reading.rows(3)) == each(f"T_{name}", 1, 3)


def test_a_name_that_cannot_be_used_is_said(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(f"{unique}_\x01", [f"{unique}.>"])
    make(nats_py, f"{unique}_A", messages=1)
    error = sentence_of(lambda: read(nats_server, streamPattern=f"{unique}_.*"))
    assert f"the stream '{unique}_\\x01' cannot be read: its name contains white space, a control character" in error
    assert found(read(nats_server, streamPattern=f"{unique}_[A-Z]")) == [("T_A", 1)]


def test_a_subject_filters_each_stream_whatever_that_listens_on(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", f"{unique}_B")
    for name in ("A", "B"):
        nats_py.store_empty(f"{unique}_{name}", 1, "no")
        nats_py.store_empty(f"{unique}_{name}", 1, "yes")
    mirror = {"name": f"{unique}_M", "mirror": {"name": f"{unique}_A"}}
    nats_py.api(f"STREAM.CREATE.{unique}_M", mirror)
    wait_until(lambda: nats_py.held(f"{unique}_M") == 2)
    options = {"streamPattern": f"{unique}_.*", "subject": f"{unique}_A.yes,{unique}_B.no"}
    expected = [("T_A", 2), ("T_B", 1), ("T_M", 2)]
    assert found(read(nats_server, **options)) == expected
    assert found(read(nats_server, **{**options, "subject": f"{unique}_Z.>"})) == []
    reading = query(nats_server, options["streamPattern"], subject=options["subject"], startingOffsets="earliest")
    assert found(reading.rows(3)) == expected
    make(nats_py, f"{unique}_N", subjects=[f"{unique}_N.>"], messages=5)
    before = reading.offset
    assert reading.micro_batch() == []
    assert reading.offset == before  # no micro-batch for a stream that has nothing for the query


@pytest.mark.needs("work queues")
def test_streams_that_cannot_be_read_are_all_named(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make(nats_py, f"{unique}_A", messages=1)
    make(nats_py, f"{unique}_Q", retention="workqueue", allow_direct=True, messages=1)
    make(nats_py, f"{unique}_I", retention="interest")
    pattern = f"{unique}_.*"
    excluded = f"(?!({unique}_I|{unique}_Q)$)"
    named = f"UnsupportedStreamError: the option 'streamPattern' matches {unique}_I, {unique}_Q, whose messages are"
    for action in (
        lambda: read(nats_server, streamPattern=pattern),
        lambda: query(nats_server, pattern),
    ):
        sentence = sentence_of(action)
        assert sentence.startswith(named)
        assert f"begin it with {excluded} to leave them out" in sentence
    assert found(read(nats_server, streamPattern=excluded + pattern)) == [("T_A", 1)]
    assert found(read(nats_server, streamPattern=pattern, peek=True)) == [("T_A", 1), ("T_Q", 1)]


def test_a_work_queue_that_is_found_later_is_not_left_out_silently(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", messages=1)
    reading = query(nats_server, f"{unique}_.*", startingOffsets="earliest")
    assert found(reading.rows(1)) == [("T_A", 1)]
    make(nats_py, f"{unique}_Q", retention="workqueue")
    nats_py.store_empty(f"{unique}_A", 1)
    error = sentence_of(lambda: reading.rows(1))
    assert f"matches {unique}_Q, whose messages are removed when they are acknowledged" in error
    going_on = query(nats_server, f"(?!{unique}_Q$){unique}_.*", reading.offset)
    assert found(going_on.rows(1)) == [("T_A", 2)]


def test_where_nothing_matches_a_batch_is_empty_and_a_query_waits(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = f"no stream name matches the regular expression '{unique}_.*'"
    with caplog.at_level(logging.WARNING):
        assert read(nats_server, streamPattern=f"{unique}_.*") == []
        assert caplog.text.count(said) == 1
        caplog.clear()
        reading = query(nats_server, f"{unique}_.*")
        assert reading.offset == {}
        assert reading.available() == []
        for _ in range(3):
            reading.look(nats_py, "STREAM.NAMES")
        assert caplog.text.count(said) == 1
    reading = query(nats_server, f"{unique}_.*", {})
    make(nats_py, f"{unique}_A", messages=2)
    with caplog.at_level(logging.WARNING):
        assert read(nats_server, streamPattern=f"{unique}_*") == []
    assert (
        f"'{unique}_*', so there is nothing to read yet (.* stands for any characters, * alone does not)" in caplog.text
    )
    assert found(reading.rows(2)) == each("T_A", 1, 2)


# Where a query begins


def test_streams_that_are_found_later_begin_with_their_first_message(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", messages=4)
    reading = query(nats_server, f"{unique}_.*")  # latest
    nats_py.store_empty(f"{unique}_A", 1)
    make(nats_py, f"{unique}_B", messages=2)
    assert found(reading.rows(3)) == [("T_A", 5), *each("T_B", 1, 2)]
    nats_py.store_empty(f"{unique}_B", 1)
    make(nats_py, f"{unique}_C")
    assert found(reading.rows(1)) == [("T_B", 3)]
    assert f"{unique}_C" not in reading.offset
    nats_py.store_empty(f"{unique}_C", 1)
    assert found(reading.rows(1)) == [("T_C", 1)]
    assert {name: entry["next"] for name, entry in reading.offset.items()} == {
        f"{unique}_A": 6,
        f"{unique}_B": 4,
        f"{unique}_C": 2,
    }


def test_a_query_that_goes_on_reads_what_was_made_meanwhile_from_its_beginning(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", messages=2)
    first = query(nats_server, f"{unique}_.*")
    nats_py.store_empty(f"{unique}_A", 1)
    assert available(first.available()) == [("T_A", 3)]
    make(nats_py, f"{unique}_B", messages=2)
    nats_py.store_empty(f"{unique}_A", 1)
    second = query(nats_server, f"{unique}_.*", first.offset)
    assert available(second.available()) == [("T_A", 4), *each("T_B", 1, 2)]


def test_named_streams_may_become_a_pattern(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make(nats_py, f"{unique}_A", f"{unique}_B", messages=2)
    named = Query(stream_reader(nats_server, MESSAGE, stream=f"{unique}_A", startingOffsets="earliest"))
    assert available(named.available()) == each("T_A", 1, 2)
    assert available(query(nats_server, f"{unique}_.*", named.offset).available()) == each("T_B", 1, 2)


def test_offsets_of_some_streams_leave_the_others_as_they_are_found(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", f"{unique}_B", messages=4)
    pattern = f"{unique}_.*"
    some = {"startingOffsets": json.dumps({f"{unique}_A": 3})}
    assert found(read(nats_server, streamPattern=pattern, **some)) == each("T_A", 3, 4) + each("T_B", 1, 4)
    assert found(query(nats_server, pattern, **some).rows(6)) == each("T_A", 3, 4) + each("T_B", 1, 4)
    end = {"endingOffsets": json.dumps({f"{unique}_B": 2})}
    assert found(read(nats_server, streamPattern=pattern, **some, **end)) == [*each("T_A", 3, 4), ("T_B", 1)]
    wrong = sentence_of(lambda: query(nats_server, pattern, startingOffsets='{"OTHER": 1}'))
    assert "offsets name OTHER, but no such stream matches the option 'streamPattern'" in wrong


def test_a_run_that_ends_leaves_later_streams_to_the_next_one(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", messages=3)
    first = query(nats_server, f"{unique}_.*", startingOffsets="earliest", maxOffsetsPerTrigger=2)
    first.reader.prepareForTriggerAvailableNow()
    assert found(first.micro_batch()) == each("T_A", 1, 2)
    make(nats_py, f"{unique}_B", messages=1)
    assert found(first.micro_batch()) == [("T_A", 3)]
    assert first.micro_batch() == []
    assert available(query(nats_server, f"{unique}_.*", first.offset).available()) == [("T_B", 1)]


def test_streams_share_a_micro_batch(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make(nats_py, f"{unique}_A", messages=30)
    make(nats_py, f"{unique}_B", messages=10)
    reading = query(nats_server, f"{unique}_.*", {}, maxOffsetsPerTrigger=20)
    assert found(reading.micro_batch()) == each("T_A", 1, 15) + each("T_B", 1, 5)
    assert found(reading.micro_batch()) == each("T_A", 16, 30) + each("T_B", 6, 10)


# What is gone


def test_what_a_new_stream_loses_before_it_is_read_is_no_data_loss(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", messages=10)
    nats_py.purge_stream(f"{unique}_A", seq=4)
    reading = query(nats_server, f"{unique}_.*", {}).reader
    end = reading.latestOffset({}, reading.getDefaultReadLimit())
    nats_py.purge_stream(f"{unique}_A", seq=6)
    partitions = reading.partitions({}, end)
    assert found(read_partitions(pickle.dumps(reading), partitions)) == each("T_A", 6, 10)
    nats_py.purge_stream(f"{unique}_A")
    nats_py.store_empty(f"{unique}_A", 1)
    error = sentence_of(
        lambda: query(nats_server, f"{unique}_.*", {f"{unique}_A": {**end[f"{unique}_A"], "next": 8}}).micro_batch()
    )
    assert "begins at sequence 11: sequences 8 to 10, which the query had not read yet, are lost" in error


def test_a_deleted_stream_is_a_data_loss_or_leaves_the_query(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    make(nats_py, f"{unique}_A", f"{unique}_B", messages=2)
    strict = query(nats_server, f"{unique}_.*", startingOffsets="earliest")
    assert len(strict.rows(4)) == 4
    nats_py.delete_stream(f"{unique}_B")
    nats_py.store_empty(f"{unique}_A", 1)
    error = sentence_of(lambda: strict.rows(1))
    assert f"the stream '{unique}_B' does not exist any more: whatever it held from sequence 3 on is lost" in error
    tolerant = query(nats_server, f"{unique}_.*", strict.offset, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        assert found(tolerant.rows(1)) == [("T_A", 3)]
        assert list(tolerant.offset) == [f"{unique}_A"]
        tolerant.look(nats_py, "STREAM.NAMES")
    assert caplog.text.count("does not exist any more") == 1
    going_on = query(nats_server, f"{unique}_.*", tolerant.offset)  # the loss is behind it
    make(nats_py, f"{unique}_B", messages=3)
    assert found(going_on.rows(3)) == each("T_B", 1, 3)


def test_a_stream_that_is_made_again_between_two_looks_is_a_data_loss_too(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make(nats_py, f"{unique}_A", messages=2)
    strict = query(nats_server, f"{unique}_.*", startingOffsets="earliest")
    assert len(strict.rows(2)) == 2
    nats_py.delete_stream(f"{unique}_A")
    make(nats_py, f"{unique}_A", messages=3)
    error = sentence_of(lambda: strict.rows(1))
    assert f"stream '{unique}_A' was deleted and created again: the query had read the stream created at" in error
    tolerant = query(nats_server, f"{unique}_.*", strict.offset, failOnDataLoss=False)
    assert found(tolerant.rows(3)) == each("T_A", 1, 3)


def test_a_stream_that_goes_before_it_was_read_is_none_of_the_querys(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(nats_py, f"{unique}_A", messages=1)
    make(nats_py, f"{unique}_B")
    reading = query(nats_server, f"{unique}_.*", startingOffsets="earliest")
    reading.offset.pop(f"{unique}_B")
    monkeypatch.setattr(listing, "LIST_INTERVAL", 600.0)  # the list still has it
    nats_py.delete_stream(f"{unique}_B")
    assert found(reading.rows(1)) == [("T_A", 1)]
    batch = batch_reader(nats_server, MESSAGE, streamPattern=f"{unique}_.*")
    assert [partition.stream for partition in batch.partitions()] == [f"{unique}_A"]


@pytest.mark.parametrize(
    "options", [{"maxOffsetsPerTrigger": 2}, {"maxBytesPerTrigger": 2}, {"subject": "*.x"}], ids=lambda it: min(it)
)
def test_a_stream_that_goes_while_a_micro_batch_is_planned_does_not_end_the_query(
    nats_server: Server, nats_py: NatsPy, unique: str, options: dict[str, Any]
) -> None:
    make(nats_py, f"{unique}_A", f"{unique}_B", messages=3)
    options = {"startingOffsets": "earliest", "failOnDataLoss": False, **options}
    with ForwardedApi(nats_py).serving() as api:
        reading = query(nats_server, f"{unique}_.*", apiPrefix=ForwardedApi.PREFIX, **options)
        answers = [nats_py.stream_info(f"{unique}_B")]
        nats_py.delete_stream(f"{unique}_B")
        api.answers[f"STREAM.INFO.{unique}_B"] = lambda answer: answers.pop() if answers else answer
        assert found(reading.rows(3)) == each("T_A", 1, 3)
        assert not answers


def test_a_stream_that_another_pattern_leaves_behind_is_said(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make(nats_py, f"{unique}_A", f"{unique}_B", messages=2)
    before = query(nats_server, f"{unique}_.*", startingOffsets="earliest")
    assert len(before.rows(4)) == 4
    narrower = f"{unique}_A"
    error = sentence_of(query(nats_server, narrower, before.offset).micro_batch)
    assert error.startswith(
        f"DataLossError: the query has read the stream '{unique}_B' up to sequence 2, but the option 'streamPattern' "
        "does not match it any more: its later messages are not read; set the option 'failOnDataLoss' to false"
    )
    nats_py.store_empty(f"{unique}_A", 1)
    tolerant = query(nats_server, narrower, before.offset, failOnDataLoss=False)
    assert found(tolerant.rows(1)) == [("T_A", 3)]
    assert list(tolerant.offset) == [f"{unique}_A"]
    nats_py.store_empty(f"{unique}_A", 1)
    assert found(query(nats_server, narrower, tolerant.offset).rows(1)) == [("T_A", 4)]


# What it costs


def test_names_are_asked_for_once_in_a_while(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL", 600.0)
    make(nats_py, f"{unique}_A", messages=1)
    with nats_py.collect("$JS.API.STREAM.NAMES") as asked:
        reading = query(nats_server, f"{unique}_.*", startingOffsets="earliest")
        assert len(reading.rows(1)) == 1
        for _ in range(3):
            nats_py.store_empty(f"{unique}_A", 1)
            assert len(reading.rows(1)) == 1
        reading.look(nats_py)
        assert len(asked.messages) == 1


def test_a_list_shows_which_of_many_streams_have_changed(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "LIST_TIMEOUT", 60.0)  # a slow machine is no reason to do without
    monkeypatch.setattr(views, "CONFIRMATION", 0.0)  # behind another prefix there may be a cluster
    server = server_factory()
    with NatsPy(server.url) as client, ForwardedApi(client).serving() as api:
        make(client, *(f"S{i:02}" for i in range(LISTED_FROM)), storage="memory", messages=1)
        reading = query(server, "S.*", apiPrefix=api.PREFIX, startingOffsets="earliest", failOnDataLoss=False)
        assert len(reading.micro_batch()) == LISTED_FROM

        def look() -> tuple[Found, int, int]:
            """What is new, and how often the look has asked for the list and for the state of a stream."""
            api.asked.clear()
            reading.reader._query.idling.forget()
            end = reading.reader.latestOffset(reading.offset, reading.reader.getDefaultReadLimit())
            lists, states = api.asked.count("STREAM.LIST"), api.count("STREAM.INFO")
            rows = read_partitions(
                pickle.dumps(query(server, "S.*").reader), reading.reader.partitions(reading.offset, end)
            )
            reading.offset = json.loads(json.dumps(end))
            return found(rows), lists, states

        def finds(rows: Found) -> None:
            """Look, and ask for the states of few streams: of those that have changed, be it by consumers of tasks."""
            new, lists, states = look()
            assert (new, lists) == (rows, 1)
            assert 0 < states < LISTED_FROM / 2

        wait_until(lambda: look() == ([], 1, 0))
        assert all(map(is_short, reading.offset.values()))
        client.store_empty("S07", 2)
        finds(each("S07", 2, 3))
        client.purge_stream("S08")
        finds([])
        client.delete_stream("S09")
        make(client, "S09", messages=2)
        finds(each("S09", 1, 2))
        client.delete_stream("S10")
        finds([])
        reading.reader.stop()


def test_many_streams_are_listed_less_often_once_nothing_has_come_for_a_while(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "LIST_TIMEOUT", 60.0)
    monkeypatch.setattr(idling, "MAX_WATCHED", 0)
    server = server_factory()
    with NatsPy(server.url) as client:
        make(client, *(f"S{i:02}" for i in range(LISTED_FROM)), storage="memory", messages=1)
        reading = query(server, "S.*", startingOffsets="earliest")
        assert len(reading.micro_batch()) == LISTED_FROM

        def wait() -> float:
            """Look, and tell how long the query waits before it looks again."""
            reading.reader._query.idling.forget()
            assert reading.micro_batch() == []
            waits = reading.reader._query.idling._idle
            assert waits is not None
            return waits.next_look - clock.monotonic()

        wait_until(lambda: wait() > 0 and reading.reader._query.memory.listed)
        assert wait() <= idling.MAX_WAIT
        monkeypatch.setattr(idling, "LISTS_RARELY", 0.0)
        assert wait() > idling.MAX_WAIT
        client.store_empty("S07", 1)
        reading.reader._query.idling.forget()
        assert found(reading.micro_batch()) == each("S07", 2, 2)
        monkeypatch.setattr(idling, "LISTS_RARELY", 60.0)
        assert wait() <= idling.MAX_WAIT
        reading.reader.stop()


@pytest.mark.parametrize("why", ["it is invalid", "it is late", "it has too many others"])
def test_a_list_that_is_of_no_use_is_left_alone_for_a_while(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client, ForwardedApi(client).serving() as api:
        make(client, *(f"S{i:02}" for i in range(LISTED_FROM)), storage="memory", messages=1)
        reading = query(server, "S.*", apiPrefix=api.PREFIX, startingOffsets="earliest")
        assert len(reading.micro_batch()) == LISTED_FROM
        if why == "it is invalid":
            api.answers["STREAM.LIST"] = lambda answer: {**answer, "total": "many"}
        elif why == "it is late":
            monkeypatch.setattr(looks, "LIST_TIMEOUT", 0.0)
        else:
            api.answers["STREAM.LIST"] = lambda answer: {**answer, "total": 4 * LISTED_FROM + 1}
        api.asked.clear()
        for sequence in range(2, 5):
            client.store_empty("S07", 1)
            assert found(reading.rows(1)) == each("S07", sequence, sequence)
        assert api.asked.count("STREAM.LIST") == 1
        reading.reader.stop()


def test_many_streams_are_read_by_users_who_may_not_list_them(server_factory: ServerFactory) -> None:
    server = server_factory(
        "authorization { users: [ {user: admin, password: pw}, "
        '{user: few, password: pw, permissions: {publish: {deny: ["$JS.API.STREAM.LIST"]}}} ] }'
    )
    with NatsPy(server.url.replace("//", "//admin:pw@")) as client:
        make(client, *(f"S{i:02}" for i in range(LISTED_FROM)), storage="memory", messages=1)
        reading = query(server, "S.*", user="few", password="pw", startingOffsets="earliest")
        assert len(reading.rows(LISTED_FROM)) == LISTED_FROM
        client.store_empty("S07", 2)
        assert found(reading.rows(2)) == each("S07", 2, 3)
        reading.reader.stop()


@pytest.mark.parametrize("denied", ["*", "S01", "S30"])
def test_many_small_streams_are_read_by_users_who_may_not_ask_some_of_them_directly(
    server_factory: ServerFactory, caplog: pytest.LogCaptureFixture, denied: str
) -> None:
    server = server_factory(
        "authorization { users: [ {user: admin, password: pw}, "
        f'{{user: few, password: pw, permissions: {{publish: {{deny: ["$JS.API.DIRECT.GET.{denied}"]}}}}}} ] }}'
    )
    names = [f"S{i:02}" for i in range(2 * MAX_TOGETHER)]
    with NatsPy(server.url.replace("//", "//admin:pw@")) as client:
        make(client, *names, storage="memory", allow_direct=True, messages=2)
        rows = read(server, streamPattern="S.*", user="few", password="pw")
        assert found(rows) == [(name, sequence) for name in names for sequence in (1, 2)]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.long("spark_nats/kinds/*")
def test_thousands_of_streams_are_one_read(server_factory: ServerFactory) -> None:
    server = server_factory()
    count = 1500  # more than the names on a page
    with NatsPy(server.url) as client:
        make(client, *(f"S{i:04}" for i in range(count)), storage="memory", messages=1)
        reading = query(server, "S.*", startingOffsets="earliest", maxOffsetsPerTrigger=count)
        end = reading.reader.latestOffset(reading.offset, reading.reader.getDefaultReadLimit())
        partitions = reading.reader.partitions(reading.offset, end)
        assert [each.stream for shared in partitions for each in shared.ranges] == [f"S{i:04}" for i in range(count)]
        assert found(read_partitions(pickle.dumps(reading.reader), partitions)) == [
            (f"S{i:04}", 1) for i in range(count)
        ]
        assert len(partitions) < 20


# In a cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[NatsPy]:
    with NatsPy(cluster.servers[0].url) as connected:
        yield connected


def test_streams_that_are_just_being_made_in_a_cluster_are_found(
    cluster: Cluster, client: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "_LEADERLESS_WAIT", 0.05)
    client.create_in_cluster(f"{unique}_0", num_replicas=3)
    client.store_empty(f"{unique}_0", 1)
    reading = query(cluster.urls, f"{unique}_.*", startingOffsets="earliest")
    rows = reading.rows(1)
    for i in range(1, 6):
        client.create_stream(f"{unique}_{i}", num_replicas=3)
        rows += reading.micro_batch()  # while it may have no leader yet
    for i in range(1, 6):
        wait_until(lambda i=i: client.reaches_stream(f"{unique}_{i}.x"))
        client.store_empty(f"{unique}_{i}", 1)
    rows += reading.rows(5)
    assert {stream for stream, _ in found(rows)} == {f"T_{i}" for i in range(6)}


def no_leader(answer: dict[str, Any]) -> dict[str, Any]:
    """As any server says of a stream that has none."""
    cluster = {name: value for name, value in answer["cluster"].items() if name != "leader"}
    return {**answer, "cluster": cluster}


def test_a_new_stream_without_a_leader_keeps_a_query_from_no_other_one(
    cluster: Cluster, client: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_in_cluster(f"{unique}_A")
    client.store_empty(f"{unique}_A", 1)
    with ForwardedApi(client).serving(cluster.urls) as api:
        reading = query(cluster.urls, f"{unique}_.*", startingOffsets="earliest", apiPrefix=ForwardedApi.PREFIX)
        assert found(reading.rows(1)) == [("T_A", 1)]
        api.answers[f"STREAM.INFO.{unique}_B"] = no_leader
        client.create_in_cluster(f"{unique}_B")
        client.store_empty(f"{unique}_B", 1)
        client.store_empty(f"{unique}_A", 1)
        with caplog.at_level(logging.WARNING):
            assert found(reading.rows(1)) == [("T_A", 2)]
        assert (
            f"the stream '{unique}_B' matches, but cannot be read yet: stream '{unique}_B' has no leader" in caplog.text
        )
        api.answers.clear()
        assert found(reading.rows(1)) == [("T_B", 1)]


def test_names_that_a_server_does_not_know_yet_end_no_query(
    cluster: Cluster, client: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that was cut off from the others answers as before, until it notices."""
    client.create_in_cluster(f"{unique}_A")
    client.create_in_cluster(f"{unique}_B")
    client.store_empty(f"{unique}_B", 1)
    with ForwardedApi(client).serving(cluster.urls) as api:
        reading = query(cluster.urls, f"{unique}_.*", startingOffsets="earliest", apiPrefix=ForwardedApi.PREFIX)
        assert found(reading.rows(1)) == [("T_B", 1)]
        api.answers["STREAM.NAMES"] = lambda answer: {**answer, "streams": [f"{unique}_A"], "total": 1}
        client.store_empty(f"{unique}_B", 1)
        assert found(reading.rows(1)) == [("T_B", 2)]  # what is in the offset is asked for itself


def test_that_a_stream_is_gone_has_to_be_said_for_a_while_in_a_cluster(
    cluster: Cluster, client: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "CONFIRMATION", 0.5)
    monkeypatch.setattr(retrying, "_LEADERLESS_WAIT", 0.05)
    for name in ("A", "B"):
        client.create_in_cluster(f"{unique}_{name}")
        client.store_empty(f"{unique}_{name}", 1)
    reading = query(cluster.urls, f"{unique}_.*", startingOffsets="earliest")
    assert len(reading.rows(2)) == 2
    client.delete_stream(f"{unique}_B")
    assert "does not exist any more" in sentence_of(lambda: reading.rows(1))


def test_a_stopped_follower_delays_nothing(cluster: Cluster, client: NatsPy, unique: str) -> None:
    client.create_in_cluster(f"{unique}_A", num_replicas=3)
    client.store_empty(f"{unique}_A", 1)
    once = {"requestTimeout": "60s", "retryTimeout": "0s"}  # what waits for the follower is an error
    reading = query(cluster.servers[0].url, f"{unique}_.*", startingOffsets="earliest", **once)

    def ends() -> dict[str, int]:
        end = reading.reader.latestOffset(reading.offset, reading.reader.getDefaultReadLimit())
        return {name: entry["next"] for name, entry in end.items()}

    assert ends() == {f"{unique}_A": 2}
    client.create_in_cluster(f"{unique}_B", num_replicas=3)
    for name in ("A", "B"):
        client.hand_over(f"{unique}_{name}", "n0")
        wait_until(lambda name=name: client.reaches_stream(f"{unique}_{name}.x"), timeout=60)
    leader = monitoring(cluster.servers[0], "jsz")["meta_cluster"]["leader"]
    follower = next(server for server in cluster.servers[1:] if server is not cluster.of(leader))
    with paused(follower):
        client.store_empty(f"{unique}_B", 1)
        assert ends() == {f"{unique}_A": 2, f"{unique}_B": 2}


# From the command line, and how far a query is behind


def checked(capsys: pytest.CaptureFixture[str], server: Server, *arguments: str) -> tuple[int, Any]:
    status = main(["check", "--servers", server.url, "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("in_a_hurry")
def test_check_looks_at_the_streams_that_match(
    nats_server: Server, nats_py: NatsPy, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(nats_py, f"{unique}_A", f"{unique}_B", messages=1)
    status, report = checked(capsys, nats_server, "--streamPattern", f"{unique}_.*", "--require", "read")
    assert status == 0
    assert [(stream["name"], stream["messages"]) for stream in report["streams"]] == [
        (f"{unique}_A", 1),
        (f"{unique}_B", 1),
    ]
    status, report = checked(capsys, nats_server, "--streamPattern", f"{unique}_Z.*")
    assert (status, report["failures"]) == (1, [f"stream {unique}_Z.*: matches no stream name"])


@pytest.mark.usefixtures("in_a_hurry")
def test_the_lag_counts_streams_that_are_found_later(
    nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def document(batch: int, start: Any, reading: Query) -> dict[str, Any]:
        latest = reading.reader.reportLatestOffset()
        sources = [{"startOffset": start, "endOffset": reading.offset, "latestOffset": latest}]
        return {"id": "1", "timestamp": f"2026-11-22T05:00:0{batch}.000Z", "batchId": batch, "sources": sources}

    reading = query(nats_server, f"{unique}_.*", startingOffsets="earliest", maxOffsetsPerTrigger=4)
    assert reading.micro_batch() == []
    documents = [document(0, None, reading)]
    none_yet = lag_of_progress(documents, {"servers": nats_server.url})
    assert none_yet is not None
    assert (none_yet.behind, none_yet.streams) == (0, ())
    assert str(none_yet).endswith("there is no stream to read yet")
    offsets = [reading.offset]
    for i, name in enumerate("AB", start=1):
        make(nats_py, f"{unique}_{name}", messages=6)
        before = reading.offset
        assert len(reading.micro_batch()) == 4
        offsets.append(reading.offset)
        documents.append(document(i, before, reading))
    known = lag_of_progress(documents)
    assert known is not None
    assert sum(stream.next for stream in known.streams) + known.behind == 14
    asked = lag_of_progress(documents, {"servers": nats_server.url, "streamPattern": f"{unique}_.*"})
    assert asked is not None
    assert asked.behind == known.behind == 4
    checkpoint = write_checkpoint(tmp_path / "c", *offsets)
    assert main(["lag", "--checkpoint", str(checkpoint), "--servers", nats_server.url, "--json"]) == 0
    streams = json.loads(capsys.readouterr().out)["streams"]
    assert [stream["stream"] for stream in streams] == [f"{unique}_A", f"{unique}_B"]
    assert sum(stream["behind"] for stream in streams) == 4
    waiting = write_checkpoint(tmp_path / "waiting", {})
    assert main(["lag", "--checkpoint", str(waiting), "--servers", nats_server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"] == []


# Through Spark


@pytest.mark.long("spark_nats/kinds/*")
@pytest.mark.timeout(300)
def test_a_query_finds_streams_while_it_runs_and_goes_on_from_its_checkpoint(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, tmp_path: Path
) -> None:
    rows = str(tmp_path / "rows")

    def start(**trigger: Any) -> Any:
        frame = nats(spark.readStream, nats_server, streamPattern=f"{unique}_.*").load()
        writer = frame.select("stream", "sequence").writeStream.format("parquet")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start(rows)

    def stored() -> Found:
        if not any(Path(rows).glob("*.parquet")):
            return []
        frame = spark.read.schema("stream STRING, sequence BIGINT").parquet(rows)
        return found(row.asDict() for row in frame.collect())

    expected: Found = []

    def stores(*rows: tuple[str, int]) -> None:
        expected.extend(rows)
        wait_until(lambda: stored() == sorted(expected), timeout=120)

    with running(start(processingTime="100 milliseconds")) as streaming:
        waiting = wait_until(lambda: spark_nats.progress(streaming), timeout=120)
        assert (waiting.batch, waiting.streams) == (0, ())  # nothing matches yet
        for name in "AB":
            make(nats_py, f"{unique}_{name}", messages=3)
            stores(*each(f"T_{name}", 1, 3))
        nats_py.store_empty(f"{unique}_A", 2)
        stores(*each("T_A", 4, 5))
        assert [stream.stream for stream in spark_nats.progress(streaming).streams] == [f"{unique}_A", f"{unique}_B"]
    make(nats_py, f"{unique}_C", messages=4)
    nats_py.store_empty(f"{unique}_B", 1)
    expected += [*each("T_C", 1, 4), ("T_B", 4)]
    finish(start(availableNow=True), timeout=120)
    assert stored() == sorted(expected)
    batch = nats(spark.read, nats_server, streamPattern=f"{unique}_.*").load()
    assert found(row.asDict() for row in batch.select("stream", "sequence").collect()) == sorted(expected)
