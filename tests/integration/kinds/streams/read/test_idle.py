"""A query that has nothing to do asks nothing, hears of what is stored at once, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from spark_nats import clock
from spark_nats.embedded import NatsServer
from spark_nats.errors import ProtocolError
from spark_nats.jetstream import JetStream, listing
from spark_nats.jetstream.consuming import consumers, watching
from spark_nats.kinds.streams.read import idling
from spark_nats.kinds.streams.read.looks import LISTED_FROM
from spark_nats.kinds.streams.read.positions import from_json
from spark_nats.protocol import deliveries
from spark_nats.protocol.deliveries import encode_pull
from tests.chaos.proxy import Direction, Proxy
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import Query, collecting, nats, stream_reader
from tests.nats_py import NatsPy, succeeds, wait_until
from tests.servers import Cluster, Server, ServerFactory

PAUSE = 0.02
PLACE = StructType().add("stream", StringType()).add("sequence", LongType())


@pytest.fixture(autouse=True)
def _shorter_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no look a minute later, by which a query would find what it should have heard of."""
    monkeypatch.setattr(idling, "MAX_QUIET", 3600.0)
    monkeypatch.setattr(idling, "LOOK_INTERVAL", PAUSE)
    monkeypatch.setattr(idling, "UNSURE_FOR", 0.2)


@contextmanager
def idle_query(server: Server | str, *streams: str, **options: Any) -> Iterator[Query]:
    """A query that has read what there was, and listens."""
    if streams:
        options["stream"] = ",".join(streams)
    query = Query(stream_reader(server, schema=PLACE, startingOffsets="earliest", **options))
    try:
        listen(query)
        yield query
    finally:
        query.reader.stop()


def listen(query: Query) -> None:
    """Have it read what there is, until it listens."""
    wait_until(lambda: query.micro_batch() == [] and listens(query), timeout=30)


def made(client: NatsPy, *streams: str) -> Sequence[str]:
    """These streams, new and empty."""
    for stream in streams:
        client.create_stream(stream)
    return streams


def watches(client: NatsPy, stream: str) -> list[str]:
    """The consumers of watches; tasks of this process may keep others."""
    listed = client.api(f"CONSUMER.LIST.{stream}")["consumers"]
    return [each["name"] for each in listed if each["config"].get("headers_only")]


def listens(query: Query) -> bool:
    watch = query.reader._query.idling._watch
    return watch is not None and query.reader._query.idling._listening_for is query.reader._query.idling._idle


def sequences(query: Query, count: int) -> list[int]:
    return [row["sequence"] for row in query.rows(count)]


def asks(query: Query, client: NatsPy, times: int = 20) -> list[str]:
    """What a query asks while Spark asks it so many times what there is."""
    with client.collect("$JS.API.>") as asked:
        for _ in range(times):
            assert query.micro_batch() == []
        client.request("$JS.API.INFO")  # the last one that is seen
        wait_until(lambda: any(each.subject == "$JS.API.INFO" for each in asked.messages))
        return [each.subject for each in asked.messages if each.subject != "$JS.API.INFO"]


def asks_nothing(query: Query, client: NatsPy, stream: str) -> None:
    """Wait until it asks nothing about a stream. The pull request of its watch may be on its way when it listens."""
    wait_until(lambda: not [each for each in asks(query, client) if stream in each])


def test_an_idle_query_asks_nothing(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    with idle_query(nats_server, unique) as query:
        asks_nothing(query, nats_py, unique)


def test_what_is_stored_is_read_without_a_look_between(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    with idle_query(nats_server, unique) as query:
        for sequence in range(1, 6):
            nats_py.store_empty(unique, 1)
            assert sequences(query, 1) == [sequence]
            listen(query)
        wait_until(lambda: len(watches(nats_py, unique)) == 1)


def test_what_is_heard_of_is_read_at_once_however_short_ago_the_last_look_was(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slept(seconds: float) -> None:
        raise AssertionError(f"it waits for {seconds} s")

    nats_py.create_stream(unique)
    with idle_query(nats_server, unique) as query:
        nats_py.store_empty(unique, 1)
        assert sequences(query, 1) == [1]
        monkeypatch.setattr(idling, "LOOK_INTERVAL", 60.0)
        assert query.micro_batch() == []
        assert listens(query)
        nats_py.store_empty(unique, 1)
        monkeypatch.setattr(clock, "sleep", slept)
        assert sequences(query, 1) == [2]
        monkeypatch.undo()


def test_a_query_with_filters_sleeps_on_when_other_subjects_come(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 2, "a")
    with idle_query(nats_server, unique, subject=f"{unique}.a,{unique}.b.*") as query:
        nats_py.store_empty(unique, 50, "other")
        asks_nothing(query, nats_py, unique)
        nats_py.store_empty(unique, 1, "b.c")
        assert sequences(query, 1) == [53]


def test_the_streams_are_looked_at_now_and_then_all_the_same(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idling, "MAX_QUIET", 5 * PAUSE)
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 2)
    with idle_query(nats_server, unique) as query, nats_py.collect(f"$JS.API.STREAM.INFO.{unique}") as asked:
        wait_until(lambda: query.micro_batch() == [] and asked.messages)


def test_a_query_ends_without_leaving_a_consumer(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    with idle_query(nats_server, unique):
        assert len(watches(nats_py, unique)) == 1
    wait_until(lambda: watches(nats_py, unique) == [])


@pytest.mark.parametrize("how", ["deleted", "made again", "purged", "its consumer is deleted"])
def test_a_query_notices_what_becomes_of_its_stream(
    nats_server: Server, nats_py: NatsPy, unique: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "PATIENCE", 0.2)  # with a consumer that is gone with its stream
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    with idle_query(nats_server, unique, failOnDataLoss=False) as query:
        if how == "purged":
            nats_py.purge_stream(unique)
        elif how == "its consumer is deleted":
            nats_py.api(f"CONSUMER.DELETE.{unique}.{watches(nats_py, unique)[0]}")
        else:
            nats_py.delete_stream(unique)
            if how == "deleted":
                assert query.micro_batch() == []
            nats_py.create_stream(unique)
        nats_py.store_empty(unique, 2)
        expected = [1, 2] if how in ("deleted", "made again") else [4, 5]
        assert sequences(query, 2) == expected
        listen(query)
        nats_py.store_empty(unique, 1)
        assert sequences(query, 1) == [expected[-1] + 1]


@contextmanager
def proxied(server_factory: ServerFactory) -> Iterator[tuple[NatsPy, Proxy]]:
    """A server behind a proxy, and a client of it that does not go through that."""
    server = server_factory()
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    try:
        with NatsPy(server.url) as client:
            yield client, proxy
    finally:
        proxy.close()


def test_a_query_hears_over_another_connection_when_one_is_lost(server_factory: ServerFactory, unique: str) -> None:
    with proxied(server_factory) as (client, proxy):
        client.create_stream(unique)
        with idle_query(proxy.url, unique, reconnectWait="50ms") as query:
            for sequence in range(1, 4):
                proxy.cut()
                client.store_empty(unique, 1)
                assert sequences(query, 1) == [sequence]
                listen(query)


def test_a_server_that_is_restarted_is_heard_again(server_factory: ServerFactory, unique: str) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream(unique)
    with idle_query(server, unique, reconnectWait="50ms") as query:
        server.kill()
        server.start()
        with NatsPy(server.url) as client:
            client.store_empty(unique, 1)
            assert sequences(query, 1) == [1]
            listen(query)
            client.store_empty(unique, 1)
            assert sequences(query, 1) == [2]


def test_a_watch_that_is_silent_is_not_relied_on(
    server_factory: ServerFactory, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats do not come through a network that swallows what the server sends."""
    monkeypatch.setattr(watching, "HEARTBEAT", 0.2)
    with proxied(server_factory) as (client, proxy):
        client.create_stream(unique)
        with idle_query(proxy.url, unique, connectTimeout="300ms", reconnectWait="50ms") as query:
            proxy.silent = Direction.TO_CLIENT
            client.store_empty(unique, 1)
            wait_until(
                lambda: (
                    query.reader._query.idling.wait_and_tell_if_surely_idle(
                        query.reader._parse_offset_cached(query.offset)
                    )
                    is False
                )
            )
            proxy.silent = None
            assert sequences(query, 1) == [1]


def test_a_delivery_that_is_lost_does_not_keep_a_query_asleep(
    server_factory: ServerFactory, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeats, which come, say that there was one."""
    monkeypatch.setattr(watching, "HEARTBEAT", 0.2)
    with (
        proxied(server_factory) as (client, proxy),
        idle_query(proxy.url, *made(client, unique), subject=f"{unique}.a") as query,
    ):
        client.publish_acked([(f"{unique}.a", b""), *[(f"{unique}.other", b"")] * 50])
        assert sequences(query, 1) == [1]
        listen(query)  # with requests left for what is passed, for which heartbeats go on
        proxy.lost = b"$JS.ACK."
        client.store_empty(unique, 1, "a")
        wait_until(
            lambda: (
                query.reader._query.idling.wait_and_tell_if_surely_idle(query.reader._parse_offset_cached(query.offset))
                is False
            )
        )
        proxy.lost = None
        assert sequences(query, 1) == [52]


def test_the_silence_of_one_of_several_streams_is_noticed(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has forgotten that somebody listens to one of the watch's inboxes."""
    monkeypatch.setattr(watching, "HEARTBEAT", 0.2)
    streams = made(nats_py, f"{unique}_A", f"{unique}_B")
    with idle_query(nats_server, *streams) as query:
        watch = query.reader._query.idling._watch
        watch.js.connection.send(b"UNSUB %d\r\n" % watch._arrived.sids[1])
        watch.js.connection.flush()
        nats_py.store_empty(streams[1], 1)
        assert sequences(query, 1) == [1]


def test_a_request_that_has_ended_is_made_again(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same consumer: that there is nothing to bring is no reason to take another one."""
    monkeypatch.setattr(deliveries, "encode_pull", lambda wanted, *_: encode_pull(wanted, None, 0.5, 0.2))
    nats_py.create_stream(unique)
    with nats_py.collect(f"$JS.API.CONSUMER.MSG.NEXT.{unique}.>") as asked, idle_query(nats_server, unique) as query:
        wait_until(lambda: query.micro_batch() == [] and len(asked.messages) > 3)
        assert len({each.subject for each in asked.messages}) == 1


def test_what_was_removed_before_a_watch_began_is_a_sign_too(js: JetStream, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 3)
    nats_py.purge_stream(unique)
    watch = watching.Watch(js, {unique: 2}, ())
    assert watch.wait(0.0)
    assert not watching.Watch(js, {unique: 4}, ()).wait(0.0)


def test_a_watch_that_one_stream_refuses_leaves_no_consumer_on_the_others(
    js: JetStream, nats_py: NatsPy, unique: str
) -> None:
    good, bad = made(nats_py, f"{unique}_A", f"{unique}_B")

    def for_another(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "stream_name": "OTHER"} if answer["stream_name"] == bad else answer

    with ForwardedApi(nats_py).serving() as api:
        api.answers["CONSUMER.CREATE"] = for_another
        with pytest.raises(ProtocolError):
            watching.Watch(JetStream(js.connection, api.PREFIX), {bad: 1, good: 1}, ())
        wait_until(lambda: watches(nats_py, good) == [], timeout=20)


def test_more_streams_than_may_be_listened_to_are_looked_at(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idling, "MAX_WATCHED", 1)
    streams = made(nats_py, f"{unique}_A", f"{unique}_B")
    query = Query(stream_reader(nats_server, stream=",".join(streams), startingOffsets="earliest"))
    assert asks(query, nats_py).count(f"$JS.API.STREAM.INFO.{streams[0]}") > 1
    assert [watches(nats_py, stream) for stream in streams] == [[], []]
    nats_py.store_empty(streams[1], 1)
    assert sequences(query, 1) == [1]


def test_a_watch_that_one_of_its_streams_refuses_leaves_no_consumer(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    streams = made(nats_py, f"{unique}_A", f"{unique}_B")
    refused = {"error": {"code": 400, "err_code": 10026, "description": "maximum consumers limit reached"}}
    api = ForwardedApi(nats_py)
    api.answers[f"CONSUMER.CREATE.{unique}_B"] = lambda _: refused
    options = {"stream": ",".join(streams), "apiPrefix": api.PREFIX, "startingOffsets": "earliest"}
    with api.serving(), caplog.at_level(logging.WARNING):
        query = Query(stream_reader(nats_server, **options))
        wait_until(lambda: query.micro_batch() == [] and "[NATS_NOT_WATCHED]" in caplog.text)
        for _ in range(5):  # nor does it try again soon
            assert query.micro_batch() == []
        assert api.count(f"CONSUMER.CREATE.{unique}_A") == 1
        wait_until(lambda: watches(nats_py, f"{unique}_A") == [])
        query.reader.stop()


@pytest.mark.parametrize("behind", [0, watching.MAX_BEHIND + 50])
def test_a_watch_passes_what_was_read_or_begins_behind_it(
    nats_server: Server, nats_py: NatsPy, unique: str, behind: int
) -> None:
    nats_py.create_stream(unique)
    with idle_query(nats_server, unique) as query:
        before = watches(nats_py, unique)
        nats_py.store_empty(unique, 20 + behind)
        query.rows(20 + behind)
        listen(query)
        wait_until(lambda: len(watches(nats_py, unique)) == 1)
        assert (watches(nats_py, unique) == before) is (behind == 0)
        nats_py.store_empty(unique, 1)
        assert sequences(query, 1) == [21 + behind]


def test_a_stream_with_few_consumers_keeps_them_for_tasks(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idling, "REFUSED_FOR", 0.0)  # it tries again each time, and says so once
    nats_py.create_stream(unique, max_consumers=1)
    query = Query(stream_reader(nats_server, stream=unique, startingOffsets="earliest"))
    with caplog.at_level(logging.WARNING):
        assert f"$JS.API.STREAM.INFO.{unique}" in asks(query, nats_py)
    assert watches(nats_py, unique) == []
    assert [line.split("]")[0] for line in caplog.messages] == ["[NATS_NOT_WATCHED"]
    nats_py.store_empty(unique, 1)
    assert sequences(query, 1) == [1]


LIMITED = "accounts { A { jetstream: {max_consumers: %d}, users: [ {user: a, password: pw} ] } }"


@pytest.mark.parametrize("whose", ["account", "stream"])
@pytest.mark.parametrize(("most", "listened"), [(3, False), (4, True)])
def test_half_of_the_consumers_that_there_may_be_are_left_to_others(
    server_factory: ServerFactory, unique: str, whose: str, most: int, listened: bool
) -> None:
    """One is somebody else's, and the watch would be the second one."""
    server = server_factory(LIMITED % (most if whose == "account" else 100))
    login = {"user": "a", "password": "pw"}
    with NatsPy(server.url, **login) as client:
        client.create_stream(unique, **({"max_consumers": most} if whose == "stream" else {}))
        client.api(f"CONSUMER.CREATE.{unique}.other", {"stream_name": unique, "config": {"name": "other"}})
        query = Query(stream_reader(server, stream=unique, startingOffsets="earliest", **login))
        if listened:
            listen(query)
        else:
            assert asks(query, client).count(f"$JS.API.STREAM.INFO.{unique}") > 1
        assert len(watches(client, unique)) == listened
        query.reader.stop()


@pytest.mark.needs("direct batches")
def test_who_may_make_no_consumers_looks(
    server_factory: ServerFactory, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_factory(
        "accounts { A { jetstream: enabled, users: [\n"
        "  {user: all, password: pw},\n"
        '  {user: few, password: pw, permissions: {publish: {deny: ["$JS.API.CONSUMER.>", "$JS.API.INFO"]}}}\n'
        "] } }"
    )
    address = server.url.removeprefix("nats://")
    with NatsPy(f"nats://all:pw@{address}") as client:
        client.create_stream(unique, allow_direct=True)
        login = {"user": "few", "password": "pw"}
        query = Query(stream_reader(server, stream=unique, startingOffsets="earliest", **login))
        with caplog.at_level(logging.WARNING):
            assert f"$JS.API.STREAM.INFO.{unique}" in asks(query, client)
        assert "NATS_NOT_WATCHED" in caplog.text
        client.store_empty(unique, 1)
        assert sequences(query, 1) == [1]


def test_streams_that_match_are_heard_of_and_so_are_new_ones(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{unique}_{i}" for i in range(3)]
    for name in names[:2]:
        nats_py.create_stream(name)
        nats_py.store_empty(name, 2)
    with idle_query(nats_server, streamPattern=f"{unique}_.*") as query:
        nats_py.store_empty(names[1], 1)
        assert sequences(query, 1) == [3]
        listen(query)
        nats_py.create_stream(names[2])
        nats_py.store_empty(names[2], 1)
        monkeypatch.setattr(listing, "LIST_INTERVAL", 0.2)
        assert sequences(query, 1) == [1]
        listen(query)
        wait_until(lambda: [len(watches(nats_py, name)) for name in names] == [1, 1, 1])


# Of many streams, those that speak


@contextmanager
def query_of_many(
    server: Server | str, client: NatsPy, prefix: str, **options: Any
) -> Iterator[tuple[Query, Sequence[str]]]:
    """A query over many streams that listens, and their names."""
    names = made(client, *(f"{prefix}_{i:02}" for i in range(LISTED_FROM)))
    with idle_query(server, streamPattern=f"{prefix}_.*", **options) as query:
        yield query, names


def hear(query: Query) -> dict[str, int]:
    """Wait until Spark has another offset; how many sequences it has more, by stream."""
    start = query.offset

    def ends() -> bool:
        end = query.reader.latestOffset(start, query.reader.getDefaultReadLimit())
        query.offset = json.loads(json.dumps(end))
        return query.offset != start

    wait_until(ends)
    before, after = from_json(start), from_json(query.offset)
    assert before.keys() <= after.keys()
    return {name: entry.size for name, entry in after.items() if entry != before.get(name)}


def test_of_many_streams_only_those_that_speak_are_asked(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    with query_of_many(nats_server, nats_py, unique) as (query, names), nats_py.collect("$JS.API.STREAM.*.>") as asked:
        for stream, count in ((names[7], 1), (names[9], 2), (names[7], 3)):
            nats_py.publish_acked([(f"{stream}.x", b"")] * count)
            found = 0
            while found < count:
                heard = hear(query)
                assert heard.keys() == {stream}
                found += heard[stream]
        asks_nothing(query, nats_py, unique)
        subjects = [each.subject.removeprefix("$JS.API.STREAM.") for each in asked.messages]
        spoken = {f"INFO.{names[i]}" for i in (7, 9)}
        assert set(subjects) - {"NAMES"} == spoken  # and no list
        assert len(subjects) <= 12  # six messages, of which each is heard of at most twice


def test_what_more_there_is_in_one_of_many_streams_is_asked_for_at_once(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    with query_of_many(nats_server, nats_py, unique, maxOffsetsPerTrigger=2) as (query, names):
        nats_py.publish_acked([(f"{names[3]}.x", b"")] * 5)
        nats_py.store_empty(names[4], 1)
        rows = [(row["stream"], row["sequence"]) for row in query.rows(6)]
        assert sorted(rows) == [*((names[3], i) for i in range(1, 6)), (names[4], 1)]


def test_all_of_many_streams_are_asked_now_and_then_while_some_speak(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with query_of_many(nats_server, nats_py, unique) as (query, names), nats_py.collect("$JS.API.STREAM.>") as asked:
        monkeypatch.setattr(idling, "MAX_QUIET", 0.5)

        def all_asked() -> bool:
            nats_py.store_empty(names[5], 1)
            assert hear(query).keys() == {names[5]}
            # A list that took long is not asked for again soon; then each stream is asked.
            return any(each.subject.endswith((".LIST", f".INFO.{names[7]}")) for each in asked.messages)

        wait_until(all_asked)


def test_the_silence_of_one_of_many_streams_is_noticed_while_others_speak(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "HEARTBEAT", 0.2)
    with query_of_many(nats_server, nats_py, unique) as (query, names):
        watch = query.reader._query.idling._watch
        watch.js.connection.send(b"UNSUB %d\r\n" % watch._watched[names[8]].sid)
        watch.js.connection.flush()
        nats_py.store_empty(names[8], 1)

        def heard() -> bool:
            nats_py.store_empty(names[9], 1)
            return names[8] in hear(query)

        wait_until(heard)


def test_the_other_consumers_stay_when_a_stream_comes_or_has_much(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LIST_INTERVAL", 0.2)
    monkeypatch.setattr(watching, "MAX_BEHIND", 5)
    with query_of_many(nats_server, nats_py, unique, failOnDataLoss=False) as (query, names):
        before = {name: watches(nats_py, name) for name in names}
        assert all(len(each) == 1 for each in before.values())
        nats_py.store_empty(names[3], 20)
        assert sequences(query, 20) == list(range(1, 21))
        nats_py.create_stream(f"{unique}_new")
        nats_py.store_empty(f"{unique}_new", 1)
        assert sequences(query, 1) == [1]
        listen(query)
        wait_until(lambda: len(watches(nats_py, f"{unique}_new")) == len(watches(nats_py, names[3])) == 1)
        assert [name for name in names if watches(nats_py, name) != before[name]] == [names[3]]
        nats_py.delete_stream(f"{unique}_new")
        nats_py.store_empty(names[3], 1)
        assert sequences(query, 1) == [21]


def test_many_streams_are_heard_over_another_connection(server_factory: ServerFactory, unique: str) -> None:
    with (
        proxied(server_factory) as (client, proxy),
        query_of_many(proxy.url, client, unique, reconnectWait="50ms") as (query, names),
    ):
        client.store_empty(names[1], 1)
        assert hear(query) == {names[1]: 1}  # and now it follows those that speak
        client.store_empty(names[1], 1)
        proxy.cut()
        client.store_empty(names[2], 1)
        rows = {(row["stream"], row["sequence"]) for row in query.rows(2)}
        assert rows == {(names[1], 2), (names[2], 1)}


def test_rows_that_wait_for_more_become_a_micro_batch_in_time(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.store_empty(unique, 1)
    with idle_query(nats_server, unique, minOffsetsPerTrigger=3, maxTriggerDelay="200ms") as query:
        nats_py.store_empty(unique, 2)
        assert sequences(query, 2) == [2, 3]  # though there is nothing else to hear of


def test_a_query_that_waits_for_more_leaves_the_server_in_peace(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    subjects = ",".join(f"{unique}.{token}" for token in "abc")
    with idle_query(nats_server, unique, subject=subjects, minOffsetsPerTrigger=10) as query:
        nats_py.store_empty(unique, 1, "a")
        assert sequences(query, 1) == [1]  # the first one waits for nothing
        nats_py.store_empty(unique, 1, "a")
        listen(query)
        asks_nothing(query, nats_py, unique)


@pytest.mark.needs("work queues", only="workqueue")
@pytest.mark.needs("interest streams", only="interest")
@pytest.mark.needs("interest streams", only="limits")
@pytest.mark.parametrize("retention", ["workqueue", "interest", "limits"])
def test_a_query_that_consumes_has_no_second_consumer(
    nats_server: Server, nats_py: NatsPy, unique: str, retention: str
) -> None:
    nats_py.create_stream(unique, retention=retention, allow_direct=True)
    query = Query(stream_reader(nats_server, stream=unique, consume=True, startingOffsets="earliest"))
    for _ in range(10):
        assert query.micro_batch() == []
    assert len(nats_py.consumers(unique)) == 1  # the durable
    assert query.reader._query.idling._watch is None


def store(client: NatsPy, stream: str) -> None:
    """Store a message once, as soon as the stream has a leader."""
    message = (f"{stream}.x", b"", {"Nats-Msg-Id": secrets.token_hex(8)})
    wait_until(lambda: succeeds(lambda: client.publish_acked([message], timeout=2.0)), timeout=30)


def cluster_query(cluster: Cluster, stream: str) -> AbstractContextManager[Query]:
    """An idle query; what a stream is asked while nobody leads it is not waited for long."""
    return idle_query(cluster.urls, stream, requestTimeout="1s")


def heard_by(client: NatsPy, cluster: Cluster, stream: str) -> NatsServer:
    """The server that has the consumer of a stream's only watch."""
    (watch,) = watches(client, stream)
    return cluster.of(client.api(f"CONSUMER.INFO.{stream}.{watch}")["cluster"]["leader"])


class TestCluster:
    """Three servers."""

    @pytest.fixture
    def stream(self, cluster: Cluster, unique: str) -> str:
        with NatsPy([server.url for server in cluster.servers]) as client:
            client.create_in_cluster(unique, num_replicas=3, allow_direct=True)
        return unique

    def test_a_change_of_the_leader_is_survived(self, cluster: Cluster, stream: str) -> None:
        with NatsPy([s.url for s in cluster.servers]) as client, cluster_query(cluster, stream) as query:
            for sequence in range(1, 4):
                client.api(f"STREAM.LEADER.STEPDOWN.{stream}")
                store(client, stream)
                assert sequences(query, 1) == [sequence]
                listen(query)

    def test_the_restart_of_the_server_that_is_heard_is_survived(self, cluster: Cluster, stream: str) -> None:
        """It has the watch's consumer, in memory."""
        with NatsPy([s.url for s in cluster.servers]) as client, cluster_query(cluster, stream) as query:
            cluster.restart(heard_by(client, cluster, stream))
            store(client, stream)
            assert sequences(query, 1) == [1]
            listen(query)

    @pytest.mark.long("spark_nats/jetstream/consuming/*", races="the election of another leader while a server hangs")
    def test_a_server_that_hangs_does_not_keep_a_query_asleep(
        self, cluster: Cluster, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "HEARTBEAT", 0.5)
        with NatsPy([s.url for s in cluster.servers]) as client, cluster_query(cluster, stream) as query:
            server = heard_by(client, cluster, stream)
            others = [each.url for each in cluster.servers if each is not server]
            with cluster.paused(server), NatsPy(others) as rest:
                store(rest, stream)
                assert sequences(query, 1) == [1]


def test_spark_reads_what_is_stored_while_a_query_is_idle(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    frame = nats(spark.readStream, nats_server, stream=unique, startingOffsets="earliest").load()
    with collecting(frame.selectExpr("sequence"), f"idle_{unique}") as (query, rows):
        wait_until(lambda: len(watches(nats_py, unique)) == 1, timeout=120)
        for count in range(1, 4):
            nats_py.store_empty(unique, 1)
            query.processAllAvailable()
            # Spark may have asked a moment before a busy machine has brought the word.
            wait_until(lambda count=count: len(rows()) == count, timeout=120)  # type: ignore[misc]
