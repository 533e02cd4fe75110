"""Rows that a stream stores together or not at all, seen by nats-py."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from nats.js.errors import APIError
from pyspark.sql import SparkSession

from spark_nats.errors import NatsError, PublishError
from spark_nats.jetstream import views
from spark_nats.jetstream.publishing import batches
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask
from spark_nats.protocol.publish_acks import Verdict
from tests.chaos.proxy import HARMS, Direction, Proxy
from tests.integration.commands.test_permissions import hub_and_leaf
from tests.integration.support import run_task, save, sentence_of, table, write
from tests.nats_py import Message, NatsPy, wait_until
from tests.servers import BINARY_2_12, OLDER_BINARY, Cluster, Server, ServerFactory

pytestmark = pytest.mark.needs("atomic")

EXPECTED = "expected_last_subject_sequence"
EXPECTED_STREAM, MSG_ID = "Nats-Expected-Stream", "Nats-Msg-Id"
OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
BATCH_ID, BATCH_SEQUENCE, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"


def numbers_table(prefix: str, rows: int, first: int = 0, **columns: list[Any]) -> pa.Table:
    """Numbers as payloads on three subjects, and further columns."""
    subjects = [f"{prefix}.{i % 3}" for i in range(rows)]
    payloads = [b"%d" % i for i in range(first, first + rows)]
    return table(**{"subject": subjects, "payload": payloads, **columns})


run_atomic = partial(run_task, atomic="true")


@pytest.fixture(params=[1, 3], ids=["one server", "three replicas"])
def place(request: pytest.FixtureRequest, nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """URLs of servers, and how many replicas a stream is to have there. All of them are up to date."""
    monkeypatch.setattr(views, "CONFIRMATION", 0.5)
    if request.param == 1:
        return nats_server.url, 1
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.urls, 3


FORGOTTEN_SOON = 3_000_000_000
"""Nanoseconds in which a stream knows message ids: a leader that has lost one takes it for being in process so long."""


def make_stream(client: NatsPy, stream: str, **config: Any) -> None:
    client.create_in_cluster(stream, allow_atomic=True, **config)


# What is stored


@pytest.mark.docker
@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
def test_a_partition_is_one_batch(nats_server: Server, nats_py: NatsPy, unique: str, rows: int) -> None:
    make_stream(nats_py, unique)
    headers = [{"K": str(i)} if i % 2 else {} for i in range(rows)]
    write(nats_server, numbers_table(unique, rows, headers=headers), stream=unique, atomic=True)
    messages = nats_py.read_stream(unique)
    assert [(m.subject, int(m.payload)) for m in messages] == [(f"{unique}.{i % 3}", i) for i in range(rows)]
    assert [m.headers.get("K") for m in messages] == [[str(i)] if i % 2 else None for i in range(rows)]
    assert {m.headers[EXPECTED_STREAM][0] for m in messages} == {unique}
    assert len({m.headers[BATCH_ID][0] for m in messages}) == 1
    assert [m.headers[BATCH_SEQUENCE] for m in messages] == [[str(i)] for i in range(1, rows + 1)]
    assert [m.headers.get(COMMIT) for m in messages] == [None] * (rows - 1) + [["1"]]


def test_a_batch_is_stored_though_somebody_else_answers_one_of_its_rows(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make_stream(nats_py, unique)
    rows = 1000  # so that the answer comes before that of the stream, which is the last one
    subjects = [f"{unique}.heard" if i == 1 else f"{unique}.x" for i in range(rows)]
    with nats_py.respond(f"{unique}.heard", lambda _: b"+ACK"):
        run_atomic(nats_server.url, table(subject=subjects, payload=[b"x" * 5000] * rows), stream=unique)
    assert nats_py.held(unique) == rows


def test_more_rows_than_a_batch_may_have_are_refused_before_anything_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make_stream(nats_py, unique)
    taken: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        for i in range(1_000_000):
            taken.append(i)
            yield from numbers_table(unique, 300).to_batches()

    options = parse_write_options({"servers": nats_server.url, "stream": unique, "atomic": "true"}, streaming=False)
    with pytest.raises(PublishError, match=r"more than 1000 rows.*nothing was sent; make the partitions smaller"):
        write_partition(options, WriteTask("", None, 0), endless())
    assert len(taken) == 4
    assert nats_py.held(unique) == 0


def test_a_partition_without_rows_writes_nothing(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make_stream(nats_py, unique)
    assert run_atomic(nats_server.url, numbers_table(unique, 0), stream=unique).counts.rows == 0
    assert nats_py.stream_info(unique)["state"]["last_seq"] == 0


def test_what_was_read_from_a_batch_is_no_batch_again(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make_stream(nats_py, unique)
    write(nats_server, numbers_table(unique, 3), stream=unique, atomic=True, deduplicate="false")
    headers = [{name: values[0] for name, values in m.headers.items()} for m in nats_py.read_stream(unique)]
    for atomic in (False, True):
        copies = numbers_table(unique, 3, first=3, headers=headers)
        write(nats_server, copies, stream=unique, atomic=atomic, controlHeaders=True)
    messages = nats_py.read_stream(unique)
    assert len(messages) == 9
    assert [BATCH_ID in m.headers for m in messages] == [True] * 3 + [False] * 3 + [True] * 3
    assert messages[0].headers[BATCH_ID] != messages[-1].headers[BATCH_ID]


def test_the_largest_row_that_we_send_is_one_that_the_server_takes(server_factory: ServerFactory) -> None:
    server = server_factory("max_payload: 4096")
    with NatsPy(server.url) as client:
        make_stream(client, "S")
        rows = numbers_table("S", 1000, payload=[b"x"] * 999 + [b"x" * 4096])
        error = sentence_of(lambda: write(server, rows, stream="S", atomic=True))
        assert "InvalidRowError: row 999 of the task cannot be sent" in error
        found = re.search(r"its length is (\d+) bytes", error)
        assert found
        rows = numbers_table("S", 1000, payload=[b"x"] * 999 + [b"x" * (2 * 4096 - int(found[1]))])
        write(server, rows, stream="S", atomic=True)
        assert client.held("S") == 1000


@pytest.mark.needs("counters together")
def test_increments_and_lifetimes_are_stored_together(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    make_stream(nats_py, unique, allow_msg_counter=True)
    rows = numbers_table(unique, 6).drop_columns("payload").append_column("increment", pa.array([1, 2, 3, 4, 5, 6]))
    write(nats_server, rows, stream=unique, atomic=True)
    assert [m.payload for m in nats_py.read_stream(unique)][3:] == [b'{"val":"5"}', b'{"val":"7"}', b'{"val":"9"}']
    other = f"{unique}_TTL"
    make_stream(nats_py, other, allow_msg_ttl=True)
    write(nats_server, numbers_table(other, 2, ttl=["1s", "never"]), stream=other, atomic=True)
    wait_until(lambda: nats_py.held(other) == 1)


def counters(stream: str, increments: list[int]) -> pa.Table:
    """Increments of three counters."""
    subjects = [f"{stream}.{i % 3}" for i in range(len(increments))]
    return pa.table({"subject": subjects, "increment": increments})


def test_increments_are_not_sent_together_where_they_would_be_lost(server_factory: ServerFactory) -> None:
    older = server_factory(binary=BINARY_2_12)
    with NatsPy(older.url) as client:
        make_stream(client, "S", allow_msg_counter=True)
        write(older, counters("S", [1, 2, 3]), stream="S")
        lost = (
            "PublishError: stream 'S' has counters, and the nats-server that leads it, 2.12.8, would store rows of "
            "increments together as empty messages, and refuse every later increment of their subjects; nothing was "
            "sent; upgrade the servers to 2.14.3 or newer, or drop the option 'atomic'"
        )
        assert sentence_of(lambda: write(older, counters("S", [1, 2]), stream="S", atomic=True)) == lost
        # A task whose driver has asked another leader.
        run = partial(run_atomic, older.url, counters("S", [1, 2]), stream="S", deduplicate="window", prepared=False)
        assert sentence_of(run) == lost
        write(older, counters("S", [1, 2]), stream="S")
        assert [m.payload for m in client.read_stream("S")][3:] == [b'{"val":"2"}', b'{"val":"4"}']


def test_the_leaders_version_decides_and_not_that_of_the_connected_server(server_factory: ServerFactory) -> None:
    hub, leaf = hub_and_leaf(server_factory, hub_binary=BINARY_2_12)
    with NatsPy(hub.url) as client:
        make_stream(client, "S", allow_msg_counter=True)
        error = sentence_of(lambda: write(leaf, counters("S", [1]), stream="S", domain="hub", atomic=True))
        assert "the nats-server that leads it, 2.12.8, would store rows" in error
        assert client.held("S") == 0


# What is refused


def test_streams_servers_and_targets_that_know_no_batches_are_refused_by_the_driver(
    nats_server: Server, nats_py: NatsPy, unique: str, server_factory: ServerFactory
) -> None:
    nats_py.create_stream(unique)
    rows = numbers_table(unique, 2)
    assert sentence_of(lambda: write(nats_server, rows, stream=unique, atomic=True)) == (
        f"PublishError: stream '{unique}' does not store rows together (its allow_atomic is not true); nothing was "
        "sent; set allow_atomic to true, or drop the option 'atomic'"
    )
    assert "needs the option 'stream'" in sentence_of(lambda: write(nats_server, rows, atomic=True))
    older = server_factory(binary=OLDER_BINARY)
    with NatsPy(older.url) as client:
        client.create_stream(unique)
        error = sentence_of(lambda: write(older, rows, stream=unique, atomic=True))
    assert "storing rows together needs nats-server 2.12 or newer, and this is 2.11" in error


def refused_whole(server: Server, client: NatsPy, stream: str, rows: pa.Table, **options: Any) -> str:
    """The error with which rows are refused, of which none is stored."""
    before = client.stream_info(stream)["state"]["last_seq"]
    error = sentence_of(lambda: write(server, rows, stream=stream, atomic=True, **options))
    assert client.stream_info(stream)["state"]["last_seq"] == before
    return error


def test_one_row_that_the_stream_refuses_keeps_all_of_them_out(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make_stream(nats_py, unique, max_msg_size=1000)
    make_stream(nats_py, f"{unique}_OTHER")
    nats_py.publish_acked([(f"{unique}.1", b"")])

    def error_for(rows: pa.Table, **options: Any) -> str:
        return refused_whole(nats_server, nats_py, unique, rows, **options)

    none = "; none of this task's 5 rows was stored"
    assert error_for(numbers_table(unique, 5, **{EXPECTED: [0, 0, None, None, None]})) == (
        f"PublishError: stream '{unique}' refused row 1 (subject '{unique}.1'): it expects the subject's last message "
        f"at sequence 0, but: wrong last sequence: 1 (400, 10071){none}"
    )
    junk = [{}, {"Nats-Expected-Last-Subject-Sequence": "many"}, {}, {}, {}]
    assert "refused row 1 (subject" in (said := error_for(numbers_table(unique, 5, headers=junk), controlHeaders=True))
    assert "expects the subject's last message at sequence many, but: " in said
    large = error_for(numbers_table(unique, 5, payload=[b"", b"", b"", b"x" * 2000, b""]))
    assert "row 3 of the task cannot be sent: column 'payload' is larger with its headers than the stream's" in large
    subjects = [f"{unique}.1", f"{unique}.1", f"{unique}_OTHER.1", f"{unique}.1", f"{unique}.1"]
    said = error_for(numbers_table(unique, 5, subject=subjects))
    # The other stream's answer may come after that to the commit.
    reason = "(another stream listens on it|the stream does not listen on it, and whoever does has not answered)"
    assert re.search(rf"refused row 2 \(subject '{unique}_OTHER.1'\): {reason}", said)
    subjects[2] = f"nobody.{unique}"
    assert f"refused row 2 (subject 'nobody.{unique}'): no stream listens on it{none}" in error_for(
        numbers_table(unique, 5, subject=subjects)
    )
    for row in (0, 2, 4):
        subjects = [f"{unique}.1"] * 5
        subjects[row] = f"nobody.{unique}"
        with nats_py.collect(subjects[row]):  # who is not nobody, and answers nothing
            assert (
                f"refused row {row} (subject 'nobody.{unique}'): the stream does not listen on it, and whoever"
                in error_for(numbers_table(unique, 5, subject=subjects))
            )
    headers = [{}, {}, {"Nats-Expected-Last-Msg-Id": "x"}, {}, {}]
    assert "refused the batch: atomic publish unsupported header used: Nats-Expected-Last-Msg-Id" in error_for(
        numbers_table(unique, 5, headers=headers), controlHeaders=True
    )


def test_rows_that_contradict_each_other_are_refused_before_anything_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make_stream(nats_py, unique)
    error = refused_whole(nats_server, nats_py, unique, numbers_table(unique, 4, **{EXPECTED: [0, 0, 0, 1]}))
    assert "InvalidRowError: row 3 of the task cannot be sent: an earlier row has the same subject" in error
    error = refused_whole(nats_server, nats_py, unique, numbers_table(unique, 4, msg_id=["a", None, "b", "a"]))
    assert "InvalidRowError: row 3 of the task cannot be sent: an earlier row has the same message id" in error
    for row, headers in (
        (1, [{}, {"Nats-Expected-Last-Sequence": "1"}]),
        (1, [{}, {OF_SUBJECT: "0", f"{OF_SUBJECT}-Subject": f"{unique}.0"}]),
    ):
        rows = numbers_table(unique, 2, headers=headers)
        error = refused_whole(nats_server, nats_py, unique, rows, controlHeaders=True)
        assert f"InvalidRowError: row {row} of the task cannot be sent" in error


def test_rows_whose_subjects_the_stream_makes_the_same_are_refused_at_once_and_conflicts_named(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """The server says *wrong last sequence* (10164) for as long as the rows are sent, as if that could pass."""
    transform = {"src": f"{unique}.*.*", "dest": f"{unique}_T.{{{{wildcard(2)}}}}"}
    make_stream(nats_py, unique, subject_transform=transform)

    def rows(subjects: list[str], expected: list[int | None]) -> pa.Table:
        named = [f"{unique}.{each}" for each in subjects]
        return table(subject=named, payload=[b"x"] * len(named), **{EXPECTED: expected})

    error = refused_whole(nats_server, nats_py, unique, rows(["a.x", "b.x"], [None, 0]))
    assert f"row 1 of the task cannot be sent: an earlier row has the same subject as '{unique}_T.x' (this" in error
    assert f"one's is '{unique}.b.x')" in error
    write(nats_server, rows(["a.x", "a.y"], [0, 0]), stream=unique, atomic=True)
    error = sentence_of(lambda: write(nats_server, rows(["b.x", "b.y"], [1, 1]), stream=unique, atomic=True))
    assert f"refused row 1 (subject '{unique}.b.y'): it expects the subject's last message at sequence 1, but" in error


# Writing again


@pytest.mark.parametrize("deduplicate", ["exact", "window"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_batch_that_is_written_again_is_stored_once(
    place: tuple[str, int], unique: str, deduplicate: str, rows: int
) -> None:
    urls, replicas = place
    with NatsPy(urls.split(",")) as client:
        make_stream(client, unique, num_replicas=replicas)
        options = {"stream": unique, "deduplicate": deduplicate}
        assert run_atomic(urls, numbers_table(unique, rows), **options).counts.duplicates == 0
        again = run_atomic(urls, numbers_table(unique, rows).take(list(reversed(range(rows)))), **options)
        assert (again.counts.rows, again.counts.duplicates) == (rows, rows)
        assert client.stored_numbers(unique) == list(range(rows))
        client.delete_stream(unique)


def test_updates_that_are_written_again_are_no_conflict_with_themselves(place: tuple[str, int], unique: str) -> None:
    urls, replicas = place
    with NatsPy(urls.split(",")) as client:
        make_stream(client, unique, num_replicas=replicas)
        for _ in range(2):
            run_atomic(urls, numbers_table(unique, 3, **{EXPECTED: [0] * 3}), stream=unique, deduplicate="window")
        assert client.stored_numbers(unique) == [0, 1, 2]
        client.delete_stream(unique)


def test_a_batch_that_is_written_again_beyond_the_window_is_stored_once(place: tuple[str, int], unique: str) -> None:
    urls, replicas = place
    with NatsPy(urls.split(",")) as client:
        make_stream(client, unique, num_replicas=replicas, duplicate_window=100_000_000)
        run_atomic(urls, numbers_table(unique, 3), stream=unique)
        probe = {MSG_ID: "forgotten"}
        client.publish_acked([(f"{unique}.x", b"9", probe)])
        wait_until(lambda: client.publish_acked([(f"{unique}.x", b"9", probe)])[0] > 4)
        run_atomic(urls, numbers_table(unique, 3), stream=unique)
        assert client.stored_numbers(unique) == [0, 1, 2, 9, 9]
        client.delete_stream(unique)


@pytest.mark.parametrize("deduplicate", ["exact", "window", "false"])
def test_a_batch_of_which_some_rows_are_stored_is_an_error_that_names_them(
    place: tuple[str, int], unique: str, deduplicate: str
) -> None:
    urls, replicas = place
    with NatsPy(urls.split(",")) as client:
        make_stream(client, unique, num_replicas=replicas)
        client.publish_acked([(f"{unique}.1", b"7", {MSG_ID: "id-1"}), (f"{unique}.1", b"8", {MSG_ID: "id-3"})])
        rows = numbers_table(unique, 4, msg_id=[f"id-{i}" for i in range(4)])
        error = sentence_of(lambda: run_atomic(urls, rows, stream=unique, deduplicate=deduplicate))
        assert error.startswith(
            f"PublishError: stream '{unique}' has 2 of the 4 rows of this task already, by their message ids, so that "
            "they cannot be stored together: rows 1 ('id-1'), 3 ('id-3'); none was stored now"
        )
        assert client.stored_numbers(unique) == [7, 8]
        client.delete_stream(unique)


def test_writing_together_needs_no_permission_but_those_for_writing(server_factory: ServerFactory) -> None:
    server = server_factory("""
        authorization { users: [
            { user: writer, password: pw, permissions: { publish: ["S.>", "$JS.API.STREAM.INFO.S"] } }
            { user: admin, password: pw }
        ] }
    """)
    with NatsPy(server.url, user="admin", password="pw") as client:
        make_stream(client, "S")
        options = {"user": "writer", "password": "pw", "stream": "S", "deduplicate": "window"}
        for _ in range(2):
            run_atomic(server.url, numbers_table("S", 3, **{EXPECTED: [0, 0, 0]}), **options)
        assert client.stored_numbers("S") == [0, 1, 2]
        wrong = numbers_table("S", 2, **{EXPECTED: [7, None]})
        error = sentence_of(lambda: run_atomic(server.url, wrong, "1", **options))
        assert "refused the batch: wrong last sequence: 1 (400, 10071); none of this task's 2 rows was stored" in error


# When connections and servers go


def whole_batches(messages: list[Message]) -> dict[str, list[int]]:
    """The numbers of each batch by its id; fails where one is not whole."""
    found: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for message in messages:
        (name,), (sequence,) = message.headers[BATCH_ID], message.headers[BATCH_SEQUENCE]
        found.setdefault(name, []).append(int(message.payload))
        assert int(sequence) == len(found[name])
        if COMMIT in message.headers:
            sizes[name] = len(found[name])
    assert {name: len(rows) for name, rows in found.items()} == sizes
    return found


@pytest.mark.parametrize("with_ids", [True, False], ids=["with ids", "without ids"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_batch_is_stored_whole_or_not_at_all_however_often_the_connection_is_lost(
    server_factory: ServerFactory, harm: str, with_ids: bool
) -> None:
    server = server_factory()
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    begun: list[int] = []
    stored, doubtful = set(), set()

    def harm_what_works() -> None:
        for _ in range(5):
            before = len(begun)
            wait_until(lambda: len(begun) > before)  # noqa: B023
            HARMS[harm](proxy)

    options = {"stream": "S", "reconnectWait": "10ms", "deduplicate": "window" if with_ids else "false"}
    with NatsPy(server.url) as client, ThreadPoolExecutor(1) as pool:
        make_stream(client, "S")
        going_on = pool.submit(harm_what_works)
        while not going_on.done():
            number = len(begun)
            begun.append(number)
            payloads = [b"%030d" % i for i in range(1000 * number, 1000 * number + 1000)]
            try:
                run_atomic(
                    proxy.url, numbers_table("S", 1000, payload=payloads), str(number), prepared=False, **options
                )
                stored.add(number)
            except NatsError as error:
                if with_ids:
                    raise
                if "may be stored" in str(error):
                    doubtful.add(number)
        going_on.result()

        def is_whole() -> bool:  # once the server has stored all of a batch of which we have not heard
            with contextlib.suppress(AssertionError):
                found.clear()
                found.update(rows[0] // 1000 for rows in whole_batches(client.read_stream("S")).values())
                return True
            return False

        found: Counter[int] = Counter()
        wait_until(is_whole)
    proxy.close()
    assert set(found.values()) == {1}
    assert stored <= found.keys() <= stored | doubtful
    assert not (with_ids and doubtful)


@pytest.mark.parametrize("late", [False, True], ids=["known by its ids", "read back"])
def test_a_batch_whose_answer_is_lost_is_stored_once(server_factory: ServerFactory, late: bool) -> None:
    server = server_factory()
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    given = {"servers": proxy.url, "stream": "S", "atomic": "true", "deduplicate": "window", "reconnectWait": "50ms"}
    with NatsPy(server.url) as client, ThreadPoolExecutor(1) as pool:
        make_stream(client, "S", **({"duplicate_window": 100_000_000} if late else {}))

        def until_it_is_lost() -> None:
            wait_until(lambda: proxy.torn)
            proxy.tear(None)
            if late:
                stored = wait_until(lambda: client.stream_info("S")["state"]["last_seq"])
                client.publish_acked([("S.x", b"9", {MSG_ID: "forgotten"})])
                wait_until(lambda: client.publish_acked([("S.x", b"9", {MSG_ID: "forgotten"})])[0] > stored + 1)
                proxy.accept()

        def rows() -> Iterator[pa.RecordBatch]:  # all that is asked for before was answered
            nonlocal harming
            if late:
                proxy.refuse()  # or it would be asked again at once, on a slow machine behind the window
            proxy.tear(Direction.TO_CLIENT)
            harming = pool.submit(until_it_is_lost)
            yield from numbers_table("S", 2).to_batches()

        harming: Future[None] | None = None
        assert (
            write_partition(parse_write_options(given, streaming=True), WriteTask("q", "0", 0), rows()).counts.rows == 2
        )
        assert harming is not None
        harming.result()
        assert client.stored_numbers("S") == [0, 1] + [9, 9] * late
    proxy.close()


def test_a_batch_whose_answer_is_missed_only_after_the_window_is_stored_once(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_LOST_AFTER", 1.5)
    server = server_factory()
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    given = {"servers": proxy.url, "stream": "S", "atomic": "true", "deduplicate": "window"}
    with NatsPy(server.url) as client, ThreadPoolExecutor(1) as pool:
        make_stream(client, "S", duplicate_window=1_000_000_000)

        def until_forgotten() -> None:
            wait_until(lambda: client.stream_info("S")["state"]["last_seq"] == 2)  # not while one of the two is stored
            client.publish_acked([("S.x", b"9", {MSG_ID: "forgotten"})])
            wait_until(lambda: client.publish_acked([("S.x", b"9", {MSG_ID: "forgotten"})])[0] > 3)
            proxy.silent = None

        def rows() -> Iterator[pa.RecordBatch]:  # all that is asked for before was answered
            nonlocal waiting
            proxy.silent = Direction.TO_CLIENT
            waiting = pool.submit(until_forgotten)
            yield from numbers_table("S", 2).to_batches()

        waiting: Future[None] | None = None
        assert (
            write_partition(parse_write_options(given, streaming=True), WriteTask("q", "0", 0), rows()).counts.rows == 2
        )
        assert waiting is not None
        waiting.result()
        assert client.stored_numbers("S") == [0, 1, 9, 9]
    proxy.close()


def test_a_batch_survives_the_server(server_factory: ServerFactory) -> None:
    server = server_factory()
    chance = random.Random(3)
    with ThreadPoolExecutor(1) as pool:
        with NatsPy(server.url) as client:
            make_stream(client, "S")

        def write_all() -> None:
            for number in range(20):
                rows = numbers_table("S", 1000, first=1000 * number)
                options = {"stream": "S", "reconnectWait": "50ms", "deduplicate": "window"}
                run_atomic(server.url, rows, str(number), prepared=False, **options)

        writing = pool.submit(write_all)
        for _ in range(4):
            wait_until(lambda: writing.done() or chance.random() < 0.1)
            server.kill()
            server.start()
        writing.result()
        with NatsPy(server.url) as client:
            stored = whole_batches(client.read_stream("S"))
    assert sorted(rows[0] // 1000 for rows in stored.values()) == list(range(20))


def test_a_batch_whose_leader_goes_before_its_end_is_sent_again(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "CONFIRMATION", 0.5)
    awaited: list[int] = []
    await_answer = batches.BatchPublisher._await_answer

    def then_another_leads(publisher: batches.BatchPublisher, *arguments: Any) -> Any:
        answered = await_answer(publisher, *arguments)
        awaited.append(arguments[-1])
        if awaited == [0]:
            led = leader()
            client.api(f"STREAM.LEADER.STEPDOWN.{unique}")
            wait_until(lambda: leader() not in ("", led))
        return answered

    with NatsPy(cluster.urls.split(",")) as client:

        def leader() -> str:
            with suppress(APIError, TimeoutError):  # there is none at the moment
                return str(client.stream_info(unique)["cluster"].get("leader", ""))
            return ""

        make_stream(client, unique, num_replicas=3)
        monkeypatch.setattr(batches.BatchPublisher, "_await_answer", then_another_leads)
        options = {"stream": unique, "deduplicate": "window", "requestTimeout": "1s"}
        run_atomic(cluster.urls, numbers_table(unique, 200), prepared=False, **options)
        assert awaited[-2:] == [0, 199]
        assert len(awaited) > 2
        assert list(whole_batches(client.read_stream(unique)).values()) == [list(range(200))]
        client.delete_stream(unique)


def test_a_batch_whose_ids_are_not_committed_yet_does_not_count_as_stored(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an earlier attempt has sent it to a leader that has lost its followers."""
    refused: list[Verdict] = []
    exchange = batches.BatchPublisher._send_and_await

    def noted(publisher: batches.BatchPublisher, *arguments: Any) -> Any:
        answer = exchange(publisher, *arguments)
        refused.extend([] if answer is None else [answer.verdict])
        return answer

    monkeypatch.setattr(batches.BatchPublisher, "_send_and_await", noted)
    ids = ["first", "second"]
    rows = table(subject=[f"{unique}.x"] * 2, payload=[b"1", b"2"], msg_id=ids)
    with NatsPy(cluster.urls.split(",")) as client:
        make_stream(client, unique, num_replicas=3)
        leader = cluster.of(client.stream_info(unique)["cluster"]["leader"])
    with NatsPy(leader.url) as client, ThreadPoolExecutor(1) as pool:
        with contextlib.ExitStack() as followers:
            for server in cluster.servers:
                if server is not leader:
                    followers.enter_context(cluster.paused(server))
            for number, message_id in enumerate(ids, 1):
                headers = {MSG_ID: message_id, BATCH_ID: "earlier", BATCH_SEQUENCE: str(number)}
                headers |= {COMMIT: "1"} if number == 2 else {}
                client.publish(f"{unique}.x", b"%d" % number, headers=headers, reply="_INBOX.nobody")
            writing = pool.submit(run_atomic, leader.url, rows, stream=unique, deduplicate="window")
            wait_until(lambda: refused)
            assert refused[0] is Verdict.IN_PROCESS
            assert not writing.done()
        writing.result()
        assert [message.payload for message in client.read_stream(unique)] == [b"1", b"2"]
        client.delete_stream(unique)


@pytest.mark.long("spark_nats/jetstream/*", races="leaders that step down at any moment of a batch")
def test_batches_survive_a_change_of_leaders(cluster: Cluster, unique: str) -> None:
    count = 40
    with NatsPy([server.url for server in cluster.servers]) as client, ThreadPoolExecutor(1) as pool:
        make_stream(client, unique, num_replicas=3, duplicate_window=FORGOTTEN_SOON)

        def write_all() -> None:
            for number in range(count):
                rows = numbers_table(unique, 200, first=200 * number)
                run_atomic(cluster.urls, rows, str(number), prepared=False, stream=unique, deduplicate="window")

        writing = pool.submit(write_all)

        def last() -> int:
            with suppress(APIError, TimeoutError):  # there is no leader at the moment
                return int(client.stream_info(unique)["state"]["last_seq"])
            return -1

        while not writing.done():
            before = last()
            with suppress(APIError, TimeoutError):
                client.api(f"STREAM.LEADER.STEPDOWN.{unique}")
            wait_until(lambda: writing.done() or last() > max(before, 0))  # noqa: B023
        writing.result()
        stored = whole_batches(client.read_stream(unique))
        assert sorted(rows[0] // 200 for rows in stored.values()) == list(range(count))
        client.delete_stream(unique)


def test_more_batches_at_once_than_a_stream_takes_wait_for_each_other(server_factory: ServerFactory) -> None:
    server = server_factory("jetstream { limits { batch { max_inflight_per_stream: 2 } } }")
    with NatsPy(server.url) as client, ThreadPoolExecutor(24) as pool:
        make_stream(client, "S")
        tasks = [
            pool.submit(
                run_atomic, server.url, numbers_table("S", 100, first=100 * i), "0", i, stream="S", ackTimeout="5m"
            )
            for i in range(24)
        ]
        for task in tasks:
            task.result()
        stored = whole_batches(client.read_stream("S"))
    assert sorted(rows[0] for rows in stored.values()) == [100 * i for i in range(24)]


@pytest.mark.long("spark_nats/kinds/streams/write/*", "spark_nats/jetstream/publishing/*")
def test_spark_stores_each_partition_whole(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    make_stream(nats_py, unique)
    frame = spark.range(0, 4000, 1, 4).selectExpr(f"concat('{unique}.', id % 3) AS subject", "string(id) AS payload")
    save(frame, nats_server, stream=unique, atomic=True)
    stored = whole_batches(nats_py.read_stream(unique))
    assert sorted(stored.values()) == [list(range(start, start + 1000)) for start in range(0, 4000, 1000)]
