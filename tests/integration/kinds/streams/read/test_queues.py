"""Streams whose messages go when they are acknowledged: work queues and interest streams, consumed by a query."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from nats.js.errors import APIError

from spark_nats.client import Connection, connect, retrying
from spark_nats.embedded import NatsServer
from spark_nats.errors import ConsumerConflictError, DataLossError
from spark_nats.jetstream import JetStream, Range, RangeReader, ReadMethod
from spark_nats.jetstream.consuming import durables
from spark_nats.jetstream.reading import direct
from spark_nats.sparkapi import ReadAllAvailable
from tests.connections import options_for, patience, publisher_for
from tests.integration.support import (
    MESSAGE,
    Query,
    batch_reader,
    numbers_of,
    read,
    read_partitions,
    sentence_of,
    sequences_of,
    stream_reader,
)
from tests.nats_py import Message, NatsPy, succeeds, wait_until
from tests.servers import OLDER_BINARY, Cluster, Server, ServerFactory

WORK_QUEUE = {"retention": "workqueue", "allow_direct": True}
INTEREST = {"retention": "interest"}
LIMITS = {"retention": "limits"}


def reader_of(server: Server, stream: str, **options: Any) -> Any:
    return stream_reader(server, MESSAGE, stream=stream, consume=True, **options)


def consuming(server: Server, stream: str, checkpoint: dict[str, Any] | None = None, **options: Any) -> Query:
    return Query(reader_of(server, stream, **options), checkpoint)


def durable(client: NatsPy, stream: str) -> dict[str, Any]:
    """The only consumer of a stream, as `nats consumer report` sees it."""
    (name,) = client.consumers(stream)
    return client.api(f"CONSUMER.INFO.{stream}.{name}")


def add_consumer(client: NatsPy, stream: str, name: str, **config: Any) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
    client.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})


def acknowledge(client: NatsPy, stream: str, name: str, count: int) -> None:
    """Pull messages as another application does, and acknowledge them."""
    inbox = client.nats.new_inbox()
    with client.collect(inbox) as collected:
        request = json.dumps({"batch": count}).encode()
        client.run(client.nats.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", request, reply=inbox))
        wait_until(lambda: len(collected.messages) >= count)
    pulled = client.api(f"CONSUMER.INFO.{stream}.{name}")
    assert pulled["num_ack_pending"] >= count


# What is processed goes


@pytest.mark.needs("work queues")
@pytest.mark.promise("queues#workqueue")
def test_what_a_query_has_processed_leaves_a_work_queue(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.store(f"{unique}.a", range(20))
    query = consuming(nats_server, unique)
    rows = query.micro_batch()
    assert numbers_of(rows) == list(range(20))
    assert sequences_of(rows) == list(range(1, 21))
    assert {row["subject"] for row in rows} == {f"{unique}.a"}
    assert nats_py.held(unique) == 0
    nats_py.store(f"{unique}.a", range(20, 25))
    assert numbers_of(query.rows(5)) == list(range(20, 25))
    assert nats_py.held(unique) == 0


@pytest.mark.needs("interest streams")
@pytest.mark.promise("queues#interest")
def test_an_interest_stream_keeps_what_the_query_has_not_processed(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **INTEREST)
    reader = reader_of(nats_server, unique)
    start = reader.initialOffset()
    nats_py.store(f"{unique}.a", range(20))
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert nats_py.held(unique) == 20
    for _ in range(2):  # reading takes nothing away
        rows = [row for part in reader.partitions(start, end) for b in reader.read(part) for row in b.to_pylist()]
        assert numbers_of(rows) == list(range(20))
        assert nats_py.held(unique) == 20
    reader.commit(end)
    assert nats_py.held(unique) == 0


@pytest.mark.needs("interest streams")
def test_messages_of_an_interest_stream_go_when_all_others_have_them_too(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **INTEREST)
    add_consumer(nats_py, unique, "other", filter_subject=f"{unique}.b")
    query = consuming(nats_server, unique)
    nats_py.store(f"{unique}.a", range(10))
    nats_py.store(f"{unique}.b", range(10, 20))
    assert numbers_of(query.rows(20)) == list(range(20))
    assert nats_py.held(unique) == 10
    query = consuming(nats_server, unique, checkpoint=query.offset)
    nats_py.store(f"{unique}.a", range(20, 21))
    assert numbers_of(query.rows(1)) == [20]
    assert nats_py.held(unique) == 10


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.needs("interest streams", only="limits")
@pytest.mark.promise("queues#limits")
@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST, LIMITS], ids=lambda c: c["retention"])
def test_consumer_report_shows_how_far_the_query_is(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    query = consuming(nats_server, unique, maxOffsetsPerTrigger=8)
    nats_py.store(f"{unique}.a", range(20))
    for left in (12, 4, 0):
        query.micro_batch()
        info = nats_py.run(nats_py.nats.jetstream().consumer_info(unique, nats_py.consumers(unique)[0]))
        assert (info.num_pending, info.num_ack_pending) == (left, 0)
        assert info.ack_floor
        assert info.ack_floor.stream_seq == 20 - left
    assert nats_py.held(unique) == (20 if config is LIMITS else 0)


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.promise("exactly-once#consume")
@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST], ids=lambda c: c["retention"])
def test_nothing_goes_before_spark_has_it_in_its_checkpoint(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    reader = reader_of(nats_server, unique)
    start = reader.initialOffset()
    nats_py.store(f"{unique}.a", range(20))
    end = reader.latestOffset(start, ReadAllAvailable())
    assert nats_py.held(unique) == 20
    after_restart = reader_of(nats_server, unique)  # with the micro-batch in the log of offsets only
    rows = read_partitions(pickle.dumps(after_restart), after_restart.partitions(start, end))
    assert numbers_of(rows) == list(range(20))
    assert nats_py.held(unique) == 20
    after_restart.latestOffset(end, ReadAllAvailable())  # which Spark asks when it is in the log of commits
    assert nats_py.held(unique) == 0


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST], ids=lambda c: c["retention"])
def test_a_query_that_ends_when_all_is_read_leaves_nothing_behind(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    query = consuming(nats_server, unique, maxOffsetsPerTrigger=6)
    nats_py.store(f"{unique}.a", range(20))
    assert [len(rows) for rows in query.available()] == [6, 6, 6, 2]
    assert nats_py.held(unique) == 0
    nats_py.store(f"{unique}.a", range(20, 23))
    query = consuming(nats_server, unique, checkpoint=query.offset)
    assert [numbers_of(rows) for rows in query.available()] == [[20, 21, 22]]
    assert nats_py.held(unique) == 0


@pytest.mark.needs("work queues")
def test_an_idle_query_releases_nothing(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.store(f"{unique}.a", range(5))
    query = consuming(nats_server, unique)
    query.micro_batch()
    with nats_py.collect("$JS.API.>") as asked:
        for _ in range(3):
            query.look(nats_py)
        about_it = {message.subject for message in asked.messages if unique in message.subject}
        assert about_it <= {
            f"$JS.API.STREAM.INFO.{unique}",
            f"$JS.API.CONSUMER.INFO.{unique}.{nats_py.consumers(unique)[0]}",
            f"$JS.API.CONSUMER.NAMES.{unique}",
        }


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.needs("several held subjects", only="several")
@pytest.mark.parametrize(
    ("config", "subjects"),
    [(WORK_QUEUE, "a,b"), (WORK_QUEUE, "a"), (INTEREST, "a,b"), (INTEREST, "a")],
    ids=["workqueue-a,b", "workqueue-a", "interest-several", "interest-a"],
)
def test_much_is_released_in_steps_that_a_server_can_do_in_time(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    subjects: str,
) -> None:
    monkeypatch.setattr(durables, "STEP", 10)
    nats_py.create_stream(unique, **config)
    names = [f"{unique}.{each}" for each in subjects.split(",")]
    query = consuming(nats_server, unique, subject=",".join(names))
    nats_py.publish_acked((names[i % len(names)], b"%d" % i) for i in range(100))
    with nats_py.collect("$JS.API.>") as asked:
        assert sorted(numbers_of(query.micro_batch())) == list(range(100))

        def ends_of(messages: list[Message]) -> list[int]:
            removals = [m for m in messages if ".PURGE." in m.subject or ".RESET." in m.subject]
            return [json.loads(m.payload)["seq"] for m in removals]

        ends = wait_until(lambda: found if len(found := ends_of(asked.messages)) >= 10 else None)
    assert nats_py.held(unique) == 0
    assert max(b - a for a, b in zip([1, *ends], ends, strict=False)) <= 11
    assert query.micro_batch() == []


@pytest.mark.needs("work queues")
def test_two_queries_share_a_work_queue_by_subject(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    some = consuming(nats_server, unique, subject=f"{unique}.a, {unique}.b.*", minPartitions=3)
    others = consuming(nats_server, unique, subject=f"{unique}.c")
    for first in (0, 300):
        nats_py.publish_acked((f"{unique}.{('a', 'b.x', 'c')[i % 3]}", b"%d" % i) for i in range(first, first + 300))
        assert sorted(numbers_of(some.rows(200))) == [i for i in range(first, first + 300) if i % 3 < 2]
        assert nats_py.held(unique) == 100
        assert numbers_of(others.rows(100)) == [i for i in range(first, first + 300) if i % 3 == 2]
        assert nats_py.held(unique) == 0


@pytest.mark.needs("work queues")
def test_what_comes_before_a_commit_stays_in_a_work_queue_of_which_subjects_are_read(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique, subject=f"{unique}.a")
    nats_py.store(f"{unique}.a", range(10))
    start, reader = query.offset, query.reader
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    nats_py.store(f"{unique}.a", range(10, 15))
    rows = [row for part in reader.partitions(start, end) for b in reader.read(part) for row in b.to_pylist()]
    assert numbers_of(rows) == list(range(10))
    reader.commit(end)
    assert numbers_of(read(nats_server, stream=unique, peek=True)) == list(range(10, 15))


@pytest.mark.needs("work queues")
def test_with_filters_what_others_take_makes_no_micro_batches(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    some = consuming(nats_server, unique, subject=f"{unique}.a")
    others = consuming(nats_server, unique, subject=f"{unique}.c")
    nats_py.store(f"{unique}.c", range(10))
    others.rows(10)
    before = some.offset
    some.look(nats_py)
    assert some.offset == before


# Rows are those that were stored


@pytest.mark.needs("direct batches")
def test_rows_that_direct_gets_bring_are_those_that_consumers_bring(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "BATCH_MESSAGES", 7)
    nats_py.create_stream(unique, allow_direct=True)
    headers: list[dict[str, Any] | None] = [
        None,
        {"A": "b"},
        {"A": ["b", "c"], "D": ""},
        {"Nats-Subject": "elsewhere", "Nats-Sequence": "no number", "Nats-Time-Stamp": "never"},
        {"Nats-Last-Sequence": "7", "Nats-Num-Pending": "8", "Nats-Stream": "other"},
    ]
    nats_py.publish_acked(
        (f"{unique}.{'long.' * (i % 5)}é{i % 3}", b"\r\nHMSG x" * (i % 4), headers[i % 5]) for i in range(100)
    )
    nats_py.delete_message(unique, 50)
    with connect(options_for(nats_server.url)) as connection:

        def everything(direct: bool, filters: tuple[str, ...]) -> list[Any]:
            found: list[Any] = []
            way = ReadMethod.GETS if direct else ReadMethod.CONSUMER
            reader = RangeReader(Range(unique, None, 3, 99, filters), way)
            for messages, metadata in reader.read(JetStream(connection)):
                columns = messages.subjects(), messages.payloads(), messages.headers().values
                found += zip(
                    *(column.to_pylist() for column in columns),
                    metadata.stream_sequences().tolist(),
                    metadata.timestamps().tolist(),
                    strict=True,
                )
            return found

        for filters in ((), (f"{unique}.>",), (f"{unique}.long.*",)):
            rows = everything(True, filters)
            assert rows == everything(False, filters)
            assert rows


@pytest.mark.needs("work queues")
@pytest.mark.parametrize("size", [100, 3000, 200_000])
def test_messages_of_every_size_come_whole(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(direct, "BATCH_BYTES", 10_000)
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.publish_acked((f"{unique}.x", bytes([i]) * size) for i in range(50))
    assert [row["payload"] for row in read(nats_server, stream=unique, peek=True)] == [
        bytes([i]) * size for i in range(50)
    ]


# Looking without taking


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST], ids=lambda c: c["retention"])
def test_a_batch_peeks_and_removes_nothing(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    add_consumer(nats_py, unique, "other")
    nats_py.store(f"{unique}.a", range(30))
    for options in ({}, {"subject": f"{unique}.a", "minPartitions": 3}, {"subject": f"{unique}.a,{unique}.b"}):
        assert numbers_of(read(nats_server, stream=unique, peek=True, **options)) == list(range(30))
    assert nats_py.held(unique) == 30
    assert nats_py.consumers(unique) == ["other"]
    assert nats_py.api(f"CONSUMER.INFO.{unique}.other")["num_pending"] == 30


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST], ids=lambda c: c["retention"])
def test_what_others_take_while_a_batch_peeks_is_no_loss(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    add_consumer(nats_py, unique, "other")
    nats_py.store(f"{unique}.a", range(30))
    reader = batch_reader(nats_server, MESSAGE, stream=unique, peek=True)
    partitions = reader.partitions()
    nats_py.purge_stream(unique, seq=11)
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert numbers_of(rows) == list(range(10, 30))


@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST], ids=lambda c: c["retention"])
def test_without_saying_how_they_are_refused(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    add_consumer(nats_py, unique, "other")
    nats_py.store(f"{unique}.a", range(3))
    why = (
        f"UnsupportedStreamError: stream '{unique}' has {config['retention']} retention: its messages are removed when"
    )
    error = sentence_of(lambda: batch_reader(nats_server, stream=unique).partitions())
    assert error.startswith(why)
    assert "set the option 'peek' to true to read what it holds and remove nothing, or read a stream with" in error
    for options in ({}, {"consume": False}):
        error = sentence_of(
            lambda options=options: stream_reader(nats_server, stream=unique, **options).initialOffset()
        )
        assert error.startswith(why)
        assert "set the option 'consume' to true, and what the query has processed is removed, or read a" in error
    assert nats_py.held(unique) == 3


# Refused before anything is read


def refused(server: Server, stream: str, **options: Any) -> str:
    return sentence_of(lambda: reader_of(server, stream, **options).initialOffset())


@pytest.mark.needs("work queues")
@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"deny_purge": True},
            "does not allow purges (deny_purge), which release the processed messages of a work queue",
        ),
        ({"allow_direct": False}, "does not allow direct gets, the only way to read a work queue without taking"),
        (
            {"consumer_limits": {"inactive_threshold": 10**10}},
            "deletes consumers from which nobody pulls (consumer_limits, inactive_threshold)",
        ),
    ],
)
def test_a_work_queue_that_cannot_be_consumed_is_refused(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any], sentence: str
) -> None:
    nats_py.create_stream(unique, **{**WORK_QUEUE, **config})
    error = refused(nats_server, unique)
    assert error.startswith("UnsupportedStreamError: ")
    assert unique in error
    assert sentence in error
    assert nats_py.consumers(unique) == []


@pytest.mark.needs("work queues")
def test_a_work_queue_that_allows_no_purges_any_more_ends_the_query_with_what_to_do(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    config = nats_py.stream_info(unique)["config"]
    nats_py.publish_acked([(f"{unique}.a", b"1")])
    query = Query(reader_of(nats_server, unique))
    nats_py.api(f"STREAM.UPDATE.{unique}", {**config, "deny_delete": True})
    assert len(query.micro_batch()) == 1
    query.look(nats_py)
    assert nats_py.held(unique) == 0  # a purge is no deletion
    nats_py.api(f"STREAM.UPDATE.{unique}", {**config, "deny_purge": True, "deny_delete": True})
    nats_py.publish_acked([(f"{unique}.a", b"2")])
    error = sentence_of(lambda: query.rows(1))
    assert error.startswith(f"UnsupportedStreamError: stream '{unique}' does not allow purges (deny_purge), which ")
    assert error.endswith("consume a queue that does, or a stream with limits that sources this one")


@pytest.mark.needs("work queues")
def test_a_peek_at_a_work_queue_without_direct_gets_is_refused(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, retention="workqueue")
    error = sentence_of(lambda: batch_reader(nats_server, stream=unique, peek=True).partitions())
    assert f"stream '{unique}' does not allow direct gets" in error
    assert "set allow_direct in its configuration" in error


@pytest.mark.needs("work queues")
@pytest.mark.parametrize("subjects", [("a", ""), ("", "a"), ("*", "a"), ("", "")])
def test_a_consumer_that_has_the_same_subjects_is_named(
    nats_server: Server, nats_py: NatsPy, unique: str, subjects: tuple[str, str]
) -> None:
    theirs, ours = (f"{unique}.{each}" if each else "" for each in subjects)
    nats_py.create_stream(unique, **WORK_QUEUE)
    add_consumer(nats_py, unique, "billing", **({"filter_subject": theirs} if theirs else {}))
    error = refused(nats_server, unique, **({"subject": ours} if ours else {}))
    assert error.startswith("ConsumerConflictError: the durable consumer 'spark-")
    assert "belong to 'billing' (" in error
    assert "read other subjects, or delete the other consumer" in error


@pytest.mark.needs("work queues")
def test_nobody_else_can_take_from_a_queue_that_a_query_consumes(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique, subject=f"{unique}.a")
    with pytest.raises(APIError) as raised:
        add_consumer(nats_py, unique, "rival", filter_subject=f"{unique}.*")
    assert raised.value.err_code == 10100
    nats_py.store(f"{unique}.a", range(3))
    assert numbers_of(query.rows(3)) == [0, 1, 2]


@pytest.mark.needs("interest streams")
def test_a_stream_that_may_have_no_more_consumers_is_refused(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, max_consumers=1, **INTEREST)
    add_consumer(nats_py, unique, "other")
    error = refused(nats_server, unique)
    assert (
        "cannot be created: the stream already has its maximum number of consumers (max_consumers of the stream or "
        in error
    )


@pytest.mark.needs("work queues")
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": "latest"}, 11),
        ({"startingOffsets": '{"%s": 4}'}, 4),
        ({"startingTimestamp": "2999-01-01"}, 11),
    ],
)
def test_no_message_of_a_work_queue_may_be_skipped(
    nats_server: Server, nats_py: NatsPy, unique: str, options: dict[str, str], wanted: int
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.store(f"{unique}.a", range(10))
    error = refused(nats_server, unique, **{name: value.replace("%s", unique) for name, value in options.items()})
    assert error == (
        f"OptionError: the query is to begin at sequence {wanted} of the work queue '{unique}', and would remove the "
        "messages before it, from 1 on, unread; leave 'startingOffsets' and 'startingTimestamp' out"
    )
    assert nats_py.held(unique) == 10


@pytest.mark.needs("interest streams")
def test_a_query_of_an_interest_stream_may_begin_where_its_user_says(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **INTEREST)
    consuming(nats_server, unique)
    nats_py.store(f"{unique}.a", range(10))
    query = consuming(nats_server, unique, startingOffsets=json.dumps({unique: 4}))
    assert numbers_of(query.rows(7)) == list(range(3, 10))
    assert nats_py.held(unique) == 0


@pytest.mark.needs("interest streams")
def test_a_consumer_of_that_name_which_is_not_ours_is_left_alone(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **INTEREST)
    add_consumer(nats_py, unique, "mine")
    error = refused(nats_server, unique, consumer="mine")
    assert error == (
        f"ConsumerConflictError: the durable consumer 'mine' of stream '{unique}' exists and was not made by "
        "spark-nats; delete it if nobody needs it; give each query a durable consumer of its own with the option "
        "'consumer'"
    )
    consuming(nats_server, unique, consumer="ours", subject=f"{unique}.a")
    error = refused(nats_server, unique, consumer="ours", subject=f"{unique}.b")
    assert f"exists and is for {unique}.a; delete it" in error


@pytest.mark.needs("work queues")
def test_a_durable_from_which_somebody_pulls_is_refused(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique, consumer="held")
    nats_py.store(f"{unique}.a", range(3))
    acknowledge(nats_py, unique, "held", 1)
    with pytest.raises(ConsumerConflictError, match="somebody else pulls from the durable consumer 'held' of stream"):
        query.micro_batch()
    assert "somebody else pulls from the durable consumer 'held'" in refused(nats_server, unique, consumer="held")
    assert nats_py.held(unique) == 3


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            INTEREST,
            "a stream with interest retention needs nats-server 2.14 or newer, but the server of stream 'S' is 2.11",
        ),
        (
            LIMITS,
            "a stream with limits retention needs nats-server 2.14 or newer, but the server of stream 'S' is 2.11",
        ),
    ],
)
def test_servers_that_are_too_old_are_refused(
    server_factory: ServerFactory, config: dict[str, Any], sentence: str
) -> None:
    server = server_factory(binary=OLDER_BINARY)
    with NatsPy(server.url) as client:
        client.create_stream("S", **config)
        assert sentence in refused(server, "S")
        assert client.consumers("S") == []


def test_a_work_queue_of_an_older_server_is_consumed(server_factory: ServerFactory) -> None:
    server = server_factory(binary=OLDER_BINARY)
    with NatsPy(server.url) as client:
        client.create_stream("S", **WORK_QUEUE)
        query = consuming(server, "S", subject="S.a,S.b")
        assert query.micro_batch() == []
        for first in (0, 20):
            query = consuming(server, "S", subject="S.a,S.b", checkpoint=query.offset)
            client.store("S.a", range(first, first + 10))
            client.store("S.b", range(first + 10, first + 20))
            assert numbers_of(query.rows(20)) == list(range(first, first + 20))
            assert client.held("S") == 0


# Two on one durable, and durables that are gone


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.needs("interest streams", only="limits")
@pytest.mark.parametrize("config", [WORK_QUEUE, INTEREST, LIMITS], ids=lambda c: c["retention"])
def test_of_two_queries_on_one_durable_the_newest_goes_on_and_nothing_is_lost(
    nats_server: Server, nats_py: NatsPy, unique: str, config: dict[str, Any]
) -> None:
    nats_py.create_stream(unique, **config)
    older = consuming(nats_server, unique, maxOffsetsPerTrigger=10)
    nats_py.store(f"{unique}.a", range(30))
    seen = numbers_of(older.micro_batch())
    newer = consuming(nats_server, unique, maxOffsetsPerTrigger=10)
    with pytest.raises(ConsumerConflictError) as raised:
        older.micro_batch()  # it reads, and must not release
    assert f"another query, or another run of this one, has taken over the durable consumer '{'spark-'}" in str(
        raised.value
    )
    assert str(raised.value).endswith("give each query a durable consumer of its own with the option 'consumer'")
    rows = numbers_of(newer.rows(30 if config is LIMITS else 20))
    assert sorted({*seen, *rows}) == list(range(30))


@pytest.mark.needs("interest streams")
def test_the_run_that_was_left_behind_ends_when_it_is_idle_too(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durables, "LOOK_INTERVAL", 0.0)
    nats_py.create_stream(unique, **INTEREST)
    older = consuming(nats_server, unique)
    older.look(nats_py)
    consuming(nats_server, unique)
    with pytest.raises(ConsumerConflictError, match="has taken over"):
        older.look(nats_py)


@pytest.mark.needs("interest streams")
def test_queries_with_durables_of_their_own_both_have_everything(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **INTEREST)
    queries = [consuming(nats_server, unique, consumer=name) for name in ("one", "other")]
    nats_py.store(f"{unique}.a", range(10))
    assert numbers_of(queries[0].rows(10)) == list(range(10))
    assert nats_py.held(unique) == 10
    assert numbers_of(queries[1].rows(10)) == list(range(10))
    assert nats_py.held(unique) == 0


def remove_durable(client: NatsPy, stream: str) -> None:
    (name,) = client.consumers(stream)
    client.api(f"CONSUMER.DELETE.{stream}.{name}")


@pytest.mark.needs("interest streams")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_durable_that_was_deleted_may_have_cost_an_interest_stream_messages(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    restarted: bool,
) -> None:
    monkeypatch.setattr(durables, "LOOK_INTERVAL", 0.0)
    nats_py.create_stream(unique, **INTEREST)
    what = "which keeps messages until they are read, was deleted; messages published since then may be lost"
    only = {"subject": f"{unique}.a"}  # or the stream's first sequence would tell
    for options in (only, {**only, "failOnDataLoss": False}):
        query = consuming(nats_server, unique, **options)
        nats_py.store(f"{unique}.a", range(3))
        assert len(query.rows(3)) == 3
        remove_durable(nats_py, unique)
        nats_py.store(f"{unique}.a", range(3))  # which nobody keeps
        if restarted:
            query = consuming(nats_server, unique, checkpoint=query.offset, **options)

        def noticed(query: Query = query) -> bool:
            query.micro_batch()
            return what in caplog.text

        if options is only:
            with pytest.raises(DataLossError, match=what):
                wait_until(noticed)
            continue
        with caplog.at_level(logging.WARNING):
            wait_until(noticed)
        nats_py.store(f"{unique}.a", range(7, 10))
        assert numbers_of(query.rows(3)) == [7, 8, 9]
        assert nats_py.held(unique) == 0


@pytest.mark.needs("interest streams")
@pytest.mark.parametrize("available_now", [False, True])
def test_what_an_interest_stream_may_have_lost_is_said_before_a_micro_batch_is_run_again(
    nats_server: Server, nats_py: NatsPy, unique: str, available_now: bool
) -> None:
    nats_py.create_stream(unique, **INTEREST)
    only = {"subject": f"{unique}.a"}  # or the stream's first sequence would tell
    before = reader_of(nats_server, unique, **only)
    start = before.initialOffset()
    nats_py.store(f"{unique}.a", range(10))
    end = before.latestOffset(start, before.getDefaultReadLimit())
    remove_durable(nats_py, unique)

    after = reader_of(nats_server, unique, **only)
    if available_now:
        after.prepareForTriggerAvailableNow()
    assert after.partitions(end, end) == []  # which Spark asks for first
    with pytest.raises(DataLossError, match="which keeps messages until they are read, was deleted"):
        after.partitions(start, end)


@pytest.mark.needs("work queues")
@pytest.mark.parametrize("available_now", [False, True])
def test_a_micro_batch_of_a_work_queue_is_run_again_though_its_durable_was_deleted(
    nats_server: Server, nats_py: NatsPy, unique: str, available_now: bool
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.store(f"{unique}.a", range(10))
    before = reader_of(nats_server, unique)
    start = before.initialOffset()
    end = before.latestOffset(start, before.getDefaultReadLimit())
    remove_durable(nats_py, unique)

    after = reader_of(nats_server, unique)
    if available_now:
        after.prepareForTriggerAvailableNow()
    assert after.partitions(end, end) == []  # which Spark asks for first
    assert numbers_of(read_partitions(pickle.dumps(after), after.partitions(start, end))) == list(range(10))
    assert after.latestOffset(end, after.getDefaultReadLimit()) == end
    assert nats_py.held(unique) == 0


@pytest.mark.needs("work queues")
def test_a_work_queue_is_claimed_again_when_its_durable_was_deleted(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durables, "LOOK_INTERVAL", 0.0)
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique)
    nats_py.store(f"{unique}.a", range(3))
    assert len(query.rows(3)) == 3
    remove_durable(nats_py, unique)
    nats_py.store(f"{unique}.a", range(3, 6))
    assert numbers_of(query.rows(3)) == [3, 4, 5]
    wait_until(lambda: query.micro_batch() == [] and nats_py.consumers(unique))
    nats_py.store(f"{unique}.a", range(6, 7))
    assert numbers_of(query.rows(1)) == [6]
    assert nats_py.held(unique) == 0


@pytest.mark.needs("work queues")
@pytest.mark.promise("operating#other-subjects")
def test_a_checkpoint_of_other_subjects_removes_nothing_that_was_not_read(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.store(f"{unique}.b", range(10))
    query = consuming(nats_server, unique, subject=f"{unique}.a")
    nats_py.store(f"{unique}.a", range(5))
    assert len(query.rows(5)) == 5
    for _ in range(2):  # the second time the durable that the first one has made is there
        changed = consuming(nats_server, unique, query.offset, subject=f"{unique}.b", failOnDataLoss=False)
        with pytest.raises(
            ConsumerConflictError, match="has messages before sequence 16, where the checkpoint resumes"
        ):
            changed.micro_batch()
        assert nats_py.held(unique) == 10
    assert numbers_of(consuming(nats_server, unique, subject=f"{unique}.b").rows(10)) == list(range(10))


@pytest.mark.needs("work queues")
def test_what_others_remove_from_a_queue_that_is_consumed_whole_is_a_loss(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique)
    nats_py.store(f"{unique}.a", range(5))
    query.rows(5)
    nats_py.store(f"{unique}.a", range(5, 15))
    nats_py.purge_stream(unique, seq=9)
    sentence = "sequences 6 to 8, which the query had not read yet, are lost"
    with pytest.raises(DataLossError, match=sentence):
        query.rows(1)
    lenient = consuming(nats_server, unique, checkpoint=query.offset, failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        assert numbers_of(lenient.rows(7)) == list(range(8, 15))
    assert sentence in caplog.text


@pytest.mark.needs("work queues")
def test_a_stream_made_again_is_a_loss_and_then_consumed(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, **WORK_QUEUE)
    query = consuming(nats_server, unique, failOnDataLoss=False)
    strict = {name: dict(entry) for name, entry in query.offset.items()}
    nats_py.store(f"{unique}.a", range(5))
    query.rows(5)
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.store(f"{unique}.a", range(5, 8))
    assert numbers_of(query.rows(3)) == [5, 6, 7]
    query.micro_batch()
    assert nats_py.held(unique) == 0
    with pytest.raises(DataLossError, match="was deleted and created again"):
        consuming(nats_server, unique, checkpoint=strict).micro_batch()


# Beside streams of other kinds


@pytest.mark.needs("work queues")
def test_mirrors_and_sourcing_streams_are_consumed_too(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    copies = {f"{unique}_M": {"mirror": {"name": unique}}, f"{unique}_S": {"sources": [{"name": unique}]}}
    queries = {}
    for name, config in copies.items():
        nats_py.create_stream(name, [], **config, **WORK_QUEUE)
        queries[name] = consuming(nats_server, name)
    for first in (0, 10):
        nats_py.store(f"{unique}.a", range(first, first + 10))
        for name, query in queries.items():
            assert numbers_of(query.rows(10)) == list(range(first, first + 10))
            assert nats_py.held(name) == 0


def test_a_stream_with_limits_that_sources_a_queue_drains_it(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    """The way without consuming, which docs/queues.md shows."""
    nats_py.create_stream(unique, **WORK_QUEUE)
    nats_py.store(f"{unique}.a", range(10))
    nats_py.create_stream(f"{unique}_LOG", [], sources=[{"name": unique}])
    nats_py.store(f"{unique}.a", range(10, 20))
    wait_until(lambda: nats_py.held(f"{unique}_LOG") == 20 and nats_py.held(unique) == 0, timeout=30)
    assert numbers_of(read(nats_server, stream=f"{unique}_LOG")) == list(range(20))


@pytest.mark.needs("interest streams", "work queues")
def test_one_query_consumes_several_streams(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kinds = {f"{unique}_{config['retention']}": config for config in (WORK_QUEUE, INTEREST, LIMITS)}
    for name, config in kinds.items():
        nats_py.create_stream(name, **config)
    query = consuming(nats_server, ",".join(kinds), consumer="spark")
    for name in kinds:
        nats_py.store(f"{name}.a", range(10))
    assert sorted(numbers_of(query.rows(30))) == sorted([*range(10)] * 3)
    assert [nats_py.held(name) for name in kinds] == [0, 0, 10]
    # A connection keeps another one where nobody waits for its end.
    assert [len(nats_py.consumers(name)) for name in kinds] == [1, 1, 2]
    assert all("spark" in nats_py.consumers(name) for name in kinds)


# In a cluster


@pytest.fixture
def replicated(cluster: Cluster, unique: str) -> Iterator[tuple[NatsPy, NatsServer, NatsServer]]:
    """A work queue on three servers: a client of its leader's, the leader, and a follower."""
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3, **WORK_QUEUE)
        info = client.stream_info(unique)["cluster"]
        leader, follower = cluster.of(info["leader"]), cluster.of(info["replicas"][0]["name"])
    with NatsPy(leader.url) as client:
        yield client, leader, follower


def direct_sequences(js: JetStream, stream: str, start: int, end: int, *filters: str) -> list[int]:
    read = RangeReader(Range(stream, None, start, end, filters), ReadMethod.GETS, retries=patience()).read(js)
    return [sequence for _, gotten in read for sequence in gotten.stream_sequences().tolist()]


@pytest.mark.needs("work queues")
def test_a_follower_that_does_not_answer_is_done_without(
    cluster: Cluster, replicated: tuple[NatsPy, NatsServer, NatsServer], unique: str
) -> None:
    client, leader, follower = replicated
    other = next(server for server in cluster.servers if server not in (leader, follower))
    client.store(f"{unique}.a", range(3000))
    with cluster.paused(follower):
        for server in (leader, other):
            with connect(options_for(server.url)) as connection:
                assert direct_sequences(JetStream(connection), unique, 1, 3001) == list(range(1, 3001))


@pytest.mark.long("spark_nats/jetstream/*", races="a follower that is stopped and comes back, with what is stored")
@pytest.mark.timeout(240)
def test_every_range_is_whole_though_a_follower_that_lags_or_was_wiped_answers(
    cluster: Cluster, replicated: tuple[NatsPy, NatsServer, NatsServer], unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, leader, follower = replicated
    ended = threading.Event()

    def publish_more() -> None:
        with connect(options_for(leader.url)) as connection:
            publisher = publisher_for(connection, unique, 256, 60.0)
            while not ended.wait(0.005):
                publisher.publish(pa.array([f"{unique}.{i % 2}" for i in range(500)]), pa.array([b"x" * 100] * 500))
                publisher.wait_for_sent_rows()

    def last() -> int:
        return int(client.stream_info(unique)["state"]["last_seq"])

    def is_whole(connection: Connection, end: int) -> bool:
        """Read what was stored last by the follower's word, of both subjects and of one of them."""
        js, start = JetStream(connection), max(1, end - 2000)
        whole = direct_sequences(js, unique, start, end) == list(range(start, end))
        return whole and direct_sequences(js, unique, start, end, f"{unique}.1") == [
            s for s in range(start, end) if s % 2 == 0
        ]

    publisher = threading.Thread(target=publish_more)
    publisher.start()
    try:
        wait_until(lambda: last() > 5000)
        with connect(options_for(follower.url)) as connection, caplog.at_level(logging.INFO):
            while caplog.text.count("its replica has no more messages, but the stream's leader has") < 5:
                with cluster.paused(follower):
                    end = last() + 3001
                    wait_until(lambda end=end: last() >= end)
                assert is_whole(connection, end)
        cluster.restart(follower, wipe=True)
        for _ in range(50):
            with connect(options_for(follower.url)) as connection:
                assert is_whole(connection, last() + 1)
    finally:
        ended.set()
        publisher.join()


@pytest.mark.needs("work queues")
@pytest.mark.parametrize(
    "config",
    [
        WORK_QUEUE,
        *(pytest.param(config, marks=pytest.mark.long("spark_nats/jetstream/*")) for config in (INTEREST, LIMITS)),
    ],
    ids=lambda c: c["retention"],
)
def test_streams_with_replicas_are_consumed_while_leaders_change(
    cluster: Cluster, unique: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "_LEADERLESS_WAIT", 0.05)
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3, **config)
        options = {"stream": unique, "consume": True, "consumer": "spark", "maxOffsetsPerTrigger": 100}
        again_soon = {"requestTimeout": "1s"}  # a leader that is stepping down gives no answer
        query = Query(stream_reader(cluster.urls, MESSAGE, minPartitions=2, **options, **again_soon))
        client.store(f"{unique}.a", range(300))

        def steps_down(kind: str, names: str) -> bool:
            """Have a leader step down; nobody can while none is elected yet."""
            return succeeds(lambda: client.api(f"{kind}.LEADER.STEPDOWN.{names}"))

        for first in range(0, 300, 100):
            assert numbers_of(query.rows(100)) == list(range(first, first + 100))
            for kind, names in (("STREAM", unique), ("CONSUMER", f"{unique}.spark")):
                wait_until(partial(steps_down, kind, names), timeout=60)
        kept = 300 if config is LIMITS else 0
        wait_until(lambda: query.micro_batch() == [] and client.held(unique) == kept, timeout=60)


@pytest.mark.needs("interest streams")
def test_an_end_that_nobody_wanted_is_no_loss_for_another_leader(cluster: Cluster, unique: str) -> None:
    """Each replica notes a time of its own for it, and says that this is the time of the stream's last message."""
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3, **INTEREST)
        client.publish_acked([(f"{unique}.unwanted", b"")])
        times = {}
        for name in ("n0", "n1", "n2"):
            client.hand_over(unique, name)
            times[name] = client.stream_info(unique)["state"]["last_ts"]
        client.hand_over(unique, min(times, key=times.__getitem__))
        options = {"subject": f"{unique}.wanted", "startingOffsets": "latest", "retryTimeout": "20s"}
        query = Query(stream_reader(cluster.urls, MESSAGE, stream=unique, consume=True, **options))
        assert query.micro_batch() == []
        client.hand_over(unique, max(times, key=times.__getitem__))
        query.look(client)
        client.store(f"{unique}.wanted", range(3))
        assert numbers_of(query.rows(3)) == [0, 1, 2]
