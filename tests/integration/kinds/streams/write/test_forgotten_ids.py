"""Replays after a server has forgotten message ids: it knows those of the messages that it still has, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.client import connect
from spark_nats.embedded import NatsServer
from spark_nats.errors import DataLossError, PublishError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.kinds.streams.write import notes, replay
from spark_nats.kinds.streams.write.checks import prepare_write_and_make_marks
from spark_nats.kinds.streams.write.notes import start_mark_at_end
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.sink import sink_of
from spark_nats.kinds.streams.write.tasks import WriteTask, Written
from spark_nats.protocol.documents import parse_time
from tests.chaos.proxy import Proxy
from tests.connections import write_options
from tests.integration.support import run_task, table
from tests.nats_py import NatsPy, wait_until
from tests.servers import OLDER_BINARY, ClockServer, ServerFactory, end

Meanwhile = list[Callable[[], object]]
ROWS = table(subject=[f"S.{i % 5}" for i in range(100)], payload=[str(i).encode() for i in range(100)])
LAST = {f"S.{i % 5}": str(i).encode() for i in range(95, 100)}


@pytest.fixture
def server(server_factory: ServerFactory, tmp_path: Path) -> NatsServer:
    return server_factory(store_dir=tmp_path)


@pytest.fixture
def client(server: NatsServer) -> Iterator[NatsPy]:
    with NatsPy(server.url) as connected:
        yield connected


def restart(server: NatsServer) -> None:
    end(server)
    server.start()


def kill(server: NatsServer) -> None:
    server.kill()
    server.start()


def leave(server: NatsServer) -> None:
    """Nothing happens to the server."""


RESTARTS = pytest.mark.parametrize("harm", [restart, kill])


def given(client: NatsPy, stream: str) -> int:
    """The last sequence that a stream has given; asked again while a restarted server does not answer."""
    found = wait_until(lambda: state_if_there(client, stream))
    return int(found["last_seq"])


def state_if_there(client: NatsPy, stream: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = client.stream_info(stream)["state"]
    except Exception:
        return {}
    return state


def last_values(client: NatsPy, stream: str) -> dict[str, bytes]:
    given(client, stream)
    return {message.subject: message.payload for message in client.read_stream(stream)}


def run_bucket(server: NatsServer, rows: pa.Table, **options: Any) -> Written:
    """What a task of a micro-batch does that writes the bucket B."""
    parsed = write_options(options.pop("servers", server.url), bucket="B", **options)
    return write_partition(parsed, WriteTask("query", "0", 0), iter(rows.to_batches(10)), sink_of(parsed))


def drain(client: NatsPy, stream: str) -> None:
    """Take every message of a work queue, as its worker does."""
    client.purge_stream(stream)


@pytest.mark.promise("exactly-once#forgotten-queue")
@RESTARTS
def test_a_drained_work_queue_does_not_get_its_rows_again_after_a_restart(
    server: NatsServer, client: NatsPy, harm: Callable[[NatsServer], None]
) -> None:
    client.create_stream("S", ["S.>"], retention="workqueue")
    run_task(server.url, ROWS, stream="S")
    drain(client, "S")
    run_task(server.url, ROWS, stream="S")  # the ids are known
    assert given(client, "S") == 100
    harm(server)
    with pytest.raises(DataLossError, match="workqueue retention, and cannot be read back"):
        run_task(server.url, ROWS, stream="S")
    assert given(client, "S") == 100
    run_task(server.url, ROWS, stream="S", failOnDataLoss=False)
    assert given(client, "S") == 200


def test_rows_whose_ids_a_started_server_misses_before_a_removed_message_are_found_by_reading(
    server_factory: ServerFactory, tmp_path: Path
) -> None:
    server = server_factory(store_dir=tmp_path, binary=OLDER_BINARY)
    with NatsPy(server.url) as client:
        client.create_stream("S", ["S.>"], max_msgs_per_subject=1)
        run_task(server.url, ROWS[:4], stream="S")
        first = client.read_stream("S")[0].headers
        client.publish_acked([("S.x", b"", None)] * 4)  # of which the last one stays
        restart(server)
        assert given(client, "S") == 8
        run_task(server.url, ROWS[:4], stream="S")
        assert given(client, "S") == 8
        assert client.publish_acked([("S.0", b"", first)]) == [9]  # 2.11.11 knows none of the first four


def test_a_replay_into_a_drained_work_queue_ends_when_its_rows_come_so_late_that_their_ids_may_be_forgotten(
    server: NatsServer, client: NatsPy
) -> None:
    client.create_stream("S", ["S.>"], retention="workqueue", duplicate_window=2_000_000_000)
    options, task = write_options(server.url, stream="S"), WriteTask("S", "0", 0)
    prepare_write_and_make_marks(options, streaming=True, columns=ROWS.schema.names)
    write_partition(options, task, iter(ROWS.to_batches(50)))
    noted = parse_time(client.stream_info("S")["ts"]) or 0
    drain(client, "S")

    def late() -> Iterator[pa.RecordBatch]:
        first, second = ROWS.to_batches(50)
        yield first
        wait_until(lambda: (parse_time(client.stream_info("S")["ts"]) or 0) > noted + 1_000_000_000)  # half of it
        yield second

    with pytest.raises(DataLossError, match="workqueue retention, and cannot be read back"):
        write_partition(options, task, late())
    assert given(client, "S") == 100


FORGETTING = [{"retention": "workqueue"}, {}, {"max_msgs": 10}, {"max_msgs_per_subject": 1}]


@pytest.fixture(params=FORGETTING, ids=str)
def replayed(
    request: pytest.FixtureRequest, server: NatsServer, client: NatsPy
) -> Callable[[Iterator[pa.RecordBatch]], None]:
    """Runs a task again, which has to end in an error, with a stream that has removed rows of it."""
    client.create_stream("S", ["S.>"], **request.param)
    options, task = write_options(server.url, stream="S"), WriteTask("S", "0", 0)
    prepare_write_and_make_marks(options, streaming=True, columns=ROWS.schema.names)
    write_partition(options, task, iter(ROWS.to_batches(50)))
    if not {"max_msgs", "max_msgs_per_subject"} & request.param.keys():
        client.purge_stream("S")
    client.publish_acked([("S.3", b"newer", None)])

    def replay(batches: Iterator[pa.RecordBatch]) -> None:
        with pytest.raises(DataLossError, match="it is unknown what it stored then"):
            write_partition(options, task, batches)
        assert given(client, "S") == 101

    return replay


@pytest.mark.promise("exactly-once#forgotten-removed")
def test_a_replay_ends_when_the_server_restarts_before_its_rows_come(
    server: NatsServer, replayed: Callable[[Iterator[pa.RecordBatch]], None]
) -> None:
    def late() -> Iterator[pa.RecordBatch]:
        restart(server)
        yield from ROWS.to_batches(50)

    replayed(late())


@pytest.mark.promise("exactly-once#forgotten-removed")
def test_a_replay_ends_when_the_server_restarts_once_it_has_said_what_holds_the_ids(
    server: NatsServer, replayed: Callable[[Iterator[pa.RecordBatch]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, restarts = notes.ask_state_and_id_memory, [restart]

    def at_once(*what: Any) -> Any:
        said = look(*what)
        while restarts:
            restarts.pop()(server)
        return said

    monkeypatch.setattr(notes, "ask_state_and_id_memory", at_once)
    replayed(iter(ROWS.to_batches(50)))


def test_a_work_queue_that_got_nothing_before_the_restart_gets_its_rows(server: NatsServer, client: NatsPy) -> None:
    client.create_stream("S", ["S.>"], retention="workqueue")
    run_task(server.url, ROWS[:0], stream="S")
    restart(server)
    run_task(server.url, ROWS, stream="S")
    assert given(client, "S") == 100


@pytest.mark.needs("restored anew")
def test_nothing_is_lost_of_a_target_that_was_empty_and_is_restored_between_two_looks(
    server: NatsServer, client: NatsPy, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster is asked twice, some seconds apart."""
    client.create_stream("S", ["S.>"])
    options, task = write_options(server.url, stream="S"), WriteTask("query", "0", 0)
    with connect(options.connection) as connection:
        js = JetStream(connection)
        began = start_mark_at_end(js, ask_stream_info(js, "S"))
        copy = client.back_up("S")
        client.delete_stream("S")
        client.restore("S", copy)
        client.store("S.a", ["1"])
        stream = ask_stream_info(js, "S")
        assert stream.created != began.end.created
        since = replay.ExactlyOnce(options, task)._confirm_or_move_start(js, stream, began, known=False)[1]
    assert since.end.next == 1
    assert "lost" not in caplog.text


@pytest.mark.promise("exactly-once#forgotten-removed")
@RESTARTS
@pytest.mark.parametrize("limits", [{"max_msgs": 10}, {}])
def test_rows_that_a_stream_has_removed_are_not_stored_again_after_a_restart(
    server: NatsServer, client: NatsPy, harm: Callable[[NatsServer], None], limits: dict[str, Any]
) -> None:
    client.create_stream("S", ["S.>"], **limits)
    run_task(server.url, ROWS, stream="S")
    if not limits:
        client.purge_stream("S")
    run_task(server.url, ROWS, stream="S")
    harm(server)
    with pytest.raises(DataLossError, match="it is unknown what it stored then"):
        run_task(server.url, ROWS, stream="S")
    assert given(client, "S") == 100


@pytest.mark.promise("exactly-once#forgotten-replaced")
@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("stored", [60, 100])
@pytest.mark.parametrize("harm", [leave, restart, kill])
def test_rows_that_later_ones_of_their_subjects_have_replaced_are_not_stored_again(
    server: NatsServer, client: NatsPy, harm: Callable[[NatsServer], None], stored: int, kept: int
) -> None:
    client.create_stream("S", ["S.>"], max_msgs_per_subject=kept)
    run_task(server.url, ROWS[:stored], stream="S")
    harm(server)
    given(client, "S")
    run_task(server.url, ROWS, stream="S")
    assert given(client, "S") == 100
    assert last_values(client, "S") == LAST


def test_a_value_that_somebody_else_has_replaced_is_not_stored_over_the_newer_one(
    server: NatsServer, client: NatsPy
) -> None:
    client.create_stream("S", ["S.>"], max_msgs_per_subject=1)
    run_task(server.url, ROWS, stream="S")
    client.publish_acked([("S.3", b"newer", None)])
    restart(server)
    given(client, "S")
    with pytest.raises(DataLossError, match="it is unknown what it stored then"):
        run_task(server.url, ROWS, stream="S")
    assert last_values(client, "S") == {**LAST, "S.3": b"newer"}


@pytest.mark.promise("exactly-once#forgotten-replaced")
@pytest.mark.parametrize("newer", [[], [("S.a", b"newer", None)]])
def test_the_last_row_is_stored_again_behind_an_earlier_one_but_not_behind_what_somebody_else_has_stored(
    server: NatsServer, client: NatsPy, newer: list[tuple[str, bytes, None]]
) -> None:
    client.create_stream("S", ["S.>"], max_msgs_per_subject=10, duplicate_window=200_000_000)
    rows = table(subject=["S.a"] * 3, payload=[b"0", b"1", b"2"])
    run_task(server.url, rows, stream="S")
    first = ("S.a", b"0", client.read_stream("S")[0].headers)
    wait_until(lambda: client.publish_acked([first]) != [1])  # another attempt stores it again
    client.publish_acked(newer)
    end_of_ids = ("S.b", b"", {"Nats-Msg-Id": "probe"})
    (probe,) = client.publish_acked([end_of_ids])
    wait_until(lambda: client.publish_acked([end_of_ids]) != [probe])
    run_task(server.url, rows, stream="S")
    assert last_values(client, "S")["S.a"] == (b"newer" if newer else b"2")


@pytest.mark.needs("counters")
@pytest.mark.promise("exactly-once#forgotten-counters")
@RESTARTS
def test_an_increment_counts_once_or_is_an_error_after_a_restart(
    server: NatsServer, client: NatsPy, harm: Callable[[NatsServer], None]
) -> None:
    client.create_stream("S", ["S.>"], allow_msg_counter=True, max_msgs_per_subject=1)
    rows = pa.table({"subject": [f"S.{i % 5}" for i in range(100)], "increment": pa.array([1] * 100, pa.int64())})
    run_task(server.url, rows, stream="S")
    run_task(server.url, rows, stream="S")
    harm(server)
    given(client, "S")
    with pytest.raises(DataLossError, match="it is unknown what it stored then"):
        run_task(server.url, rows, stream="S")
    assert set(last_values(client, "S").values()) == {b'{"val":"20"}'}


@pytest.mark.promise("exactly-once#forgotten-letters")
@RESTARTS
def test_bad_rows_that_somebody_has_taken_are_not_stored_again_after_a_restart(
    server: NatsServer, client: NatsPy, harm: Callable[[NatsServer], None]
) -> None:
    client.create_stream("S", ["S.>"])
    client.create_stream("D", ["D.>"], retention="workqueue")
    rows = table(subject=["S.a", "S. b", "S.c"], payload=[b"1", b"2", b"3"])
    options = {"stream": "S", "badRows": "stream", "badRowsStream": "D"}
    run_task(server.url, rows, **options)
    drain(client, "D")
    run_task(server.url, rows, **options)  # the id is known
    harm(server)
    given(client, "D")
    with pytest.raises(DataLossError, match="'D' has workqueue retention, and cannot be read back"):
        run_task(server.url, rows, **options)
    assert (given(client, "S"), given(client, "D")) == (2, 1)


@pytest.mark.promise("exactly-once#forgotten-letters")
def test_bad_rows_that_somebody_has_taken_are_not_stored_again_when_the_server_restarts_before_they_come(
    server: NatsServer, client: NatsPy
) -> None:
    client.create_stream("S", ["S.>"])
    client.create_stream("D", ["D.>"], retention="workqueue")
    rows = table(subject=["S.a", "S. b"], payload=[b"1", b"2"]).to_batches(1)
    options, task = write_options(server.url, stream="S", badRows="stream", badRowsStream="D"), WriteTask("S", "0", 0)
    prepare_write_and_make_marks(options, streaming=True)
    write_partition(options, task, iter(rows))
    drain(client, "D")

    def late() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        restart(server)
        yield rows[1]

    with pytest.raises(DataLossError, match="'D' has workqueue retention, and cannot be read back"):
        write_partition(options, task, late())
    assert (given(client, "S"), given(client, "D")) == (1, 1)


def test_bad_rows_are_found_though_the_clock_was_set_back_before_they_were_stored(
    clock_server_factory: Callable[..., ClockServer],
) -> None:
    server = clock_server_factory()
    rows = table(subject=["S.a", "S. b"], payload=[b"1", b"2"]).to_batches(1)
    options = {"stream": "S", "badRows": "stream", "badRowsStream": "D"}
    parsed = write_options(server.url, **options)
    prepared = {"duplicate_window": 100_000_000}
    with NatsPy(server.url) as client:
        client.create_stream("S", ["S.>"], **prepared)
        client.create_stream("D", ["D.>"], **prepared)
        prepare_write_and_make_marks(parsed, streaming=True)

        def slowly() -> Iterator[pa.RecordBatch]:
            yield rows[0]
            server.step(-30.0)
            yield rows[1]

        write_partition(parsed, WriteTask("query", "0", 0), slowly())
        probe = ("D.probe", b"", {"Nats-Msg-Id": "probe"})
        (first,) = client.publish_acked([probe])
        wait_until(lambda: client.publish_acked([probe]) != [first])  # the ids are forgotten
        write_partition(parsed, WriteTask("query", "0", 0), iter(rows))
        assert [message.subject for message in client.read_stream("D") if message.subject != "D.probe"] == ["D.S"]


@pytest.mark.promise("exactly-once#forgotten-bucket")
@pytest.mark.parametrize("history", [1, 5])
@pytest.mark.parametrize("harm", [leave, restart, kill])
def test_each_key_of_a_bucket_ends_with_its_last_value(
    server: NatsServer, client: NatsPy, harm: Callable[[NatsServer], None], history: int
) -> None:
    client.create_stream("KV_B", ["$KV.B.>"], max_msgs_per_subject=history, allow_rollup_hdrs=True, allow_direct=True)
    keys = pa.table({"key": [f"k{i % 5}" for i in range(100)], "value": [str(i) for i in range(100)]})
    run_bucket(server, keys)
    harm(server)
    given(client, "KV_B")
    run_bucket(server, keys)
    assert last_values(client, "KV_B") == {f"$KV.B.k{i % 5}": str(i).encode() for i in range(95, 100)}


@pytest.mark.promise("exactly-once#forgotten-window")
@pytest.mark.parametrize("limits", [{}, {"max_msgs_per_subject": 1}])
def test_with_the_window_alone_forgotten_rows_are_stored_again_and_the_last_ones_stay_the_last(
    server: NatsServer, client: NatsPy, limits: dict[str, int]
) -> None:
    client.create_stream("S", ["S.>"], **limits)
    run_task(server.url, ROWS, stream="S", deduplicate="window")
    if not limits:
        client.purge_stream("S", keep=10)
    client.publish_acked([("S.3", b"somebody else's", None)])
    restart(server)
    given(client, "S")
    run_task(server.url, ROWS, stream="S", deduplicate="window")
    assert given(client, "S") > 101
    if limits:
        assert last_values(client, "S") == LAST


# Within a task: its answers are lost, and the server ends and begins again before the rows are sent again


@contextmanager
def killed_before_it_answers(
    server: NatsServer, client: NatsPy, stream: str, rows: int
) -> Iterator[tuple[str, Meanwhile, Proxy]]:
    """A server that is killed and started again when it has stored so many rows, whose answers have not arrived.

    Yields its URL, a list of what is done before it is killed, and the proxy at this URL.
    """
    proxy = Proxy(int(server.url.rpartition(":")[2]))
    proxy.lost = f'{{"stream":"{stream}",'.encode()  # acknowledgements; servers before 2.12 write a space behind it
    meanwhile: Meanwhile = []

    def harm() -> None:
        wait_until(lambda: given(client, stream) >= rows)
        for each in meanwhile:
            each()
        server.kill()
        proxy.lost = None
        server.start()

    with ThreadPoolExecutor(1) as pool:
        try:
            harming = pool.submit(harm)
            yield proxy.url, meanwhile, proxy
            harming.result()
        finally:
            proxy.close()


WAYS = pytest.mark.parametrize(
    "options", [{}, {"deduplicate": "window"}, {"atomic": "true"}], ids=["exact", "window", "atomic"]
)


@pytest.mark.needs("atomic", only="atomic")
@WAYS
@pytest.mark.parametrize("config", [{"retention": "workqueue"}, {}], ids=["work queue", "limits"])
def test_rows_are_not_sent_again_where_a_killed_server_has_removed_them(
    server: NatsServer, client: NatsPy, options: dict[str, str], config: dict[str, Any]
) -> None:
    client.create_stream("S", ["S.>"], allow_atomic=True, **config)
    with killed_before_it_answers(server, client, "S", 100) as (url, meanwhile, _):
        meanwhile.append(lambda: drain(client, "S"))
        with pytest.raises(PublishError, match="unknown"):
            run_task(url, ROWS, stream="S", **options)
    assert given(client, "S") == 100


@pytest.mark.needs("atomic", only="atomic")
@pytest.mark.promise("exactly-once#forgotten-there")
@WAYS
def test_rows_are_stored_once_where_a_killed_server_still_has_them(
    server: NatsServer, client: NatsPy, options: dict[str, str]
) -> None:
    client.create_stream("S", ["S.>"], allow_atomic=True)
    with killed_before_it_answers(server, client, "S", 100) as (url, *_):
        run_task(url, ROWS, stream="S", **options)
    assert given(client, "S") == 100


@WAYS
@pytest.mark.needs("atomic", only="atomic")
def test_rows_whose_answers_are_lost_leave_the_last_value_of_each_subject(
    server: NatsServer, client: NatsPy, options: dict[str, str]
) -> None:
    client.create_stream("S", ["S.>"], allow_atomic=True, max_msgs_per_subject=1)
    with killed_before_it_answers(server, client, "S", 100) as (url, *_):
        run_task(url, ROWS, stream="S", **options)
    assert given(client, "S") == 100
    assert last_values(client, "S") == LAST


@pytest.mark.parametrize("history", [1, 5])
def test_a_key_that_is_put_three_times_has_the_last_value_after_the_answers_are_lost(
    server: NatsServer, client: NatsPy, history: int
) -> None:
    client.create_stream("KV_B", ["$KV.B.>"], max_msgs_per_subject=history, allow_rollup_hdrs=True, allow_direct=True)
    rows = pa.table({"key": ["k"] * 3, "value": ["1", "2", "3"]})
    with killed_before_it_answers(server, client, "KV_B", 3) as (url, *_):
        run_bucket(server, rows, servers=url)
    assert last_values(client, "KV_B") == {"$KV.B.k": b"3"}


@pytest.mark.parametrize("what", ["bucket", "stream"])
def test_a_value_that_is_found_after_a_kill_is_not_followed_by_an_older_one_that_was_sent_twice(
    server: NatsServer, client: NatsPy, what: str
) -> None:
    name, subject = {"bucket": ("KV_B", "$KV.B."), "stream": ("S", "S.")}[what]
    client.create_stream(name, [f"{subject}>"], max_msgs_per_subject=1, allow_rollup_hdrs=True, allow_direct=True)
    with killed_before_it_answers(server, client, name, 6) as (url, _, proxy):

        def slowly() -> Iterator[pa.RecordBatch]:
            yield from rows_of(what, [f"{i}" for i in range(5)]).to_batches()
            wait_until(lambda: given(client, name) == 5)
            proxy.cut()  # before any answer: all five are sent again, and are duplicates
            proxy.lost = f'"{name}","seq":6'.encode()  # the next one's answer
            yield from rows_of(what, ["5"]).to_batches()

        parsed = write_options(url, maxInFlight=5, **{"bucket": {"bucket": "B"}, "stream": {"stream": "S"}}[what])
        prepare_write_and_make_marks(parsed, streaming=True, columns=rows_of(what, []).column_names)
        write_partition(parsed, WriteTask("query", "0", 0), slowly(), sink_of(parsed))
    assert last_values(client, name) == {f"{subject}k": b"5"}


def rows_of(what: str, values: list[str]) -> pa.Table:
    """Rows with these values, all of one key."""
    if what == "bucket":
        return pa.table({"key": ["k"] * len(values), "value": values})
    return pa.table({"subject": ["S.k"] * len(values), "payload": values})


# De-duplication is for each row, what counts is the last row of each key


@pytest.mark.parametrize("what", ["bucket", "stream"])
def test_a_replay_of_which_only_the_later_ids_are_known_leaves_the_last_values(
    server: NatsServer, client: NatsPy, what: str
) -> None:
    window = 2_000_000_000
    name = {"bucket": "KV_B", "stream": "S"}[what]
    subject = {"bucket": "$KV.B.", "stream": "S."}[what]
    client.create_stream(
        name,
        [f"{subject}>"],
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
        allow_direct=True,
        duplicate_window=window,
    )
    keys = [f"k{i}" for i in range(5)]

    def rows(value: str) -> pa.Table:
        if what == "bucket":
            return pa.table({"key": keys, "value": [value] * 5})
        return pa.table({"subject": [f"S.{key}" for key in keys], "payload": [value] * 5})

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from rows("old").to_batches()
        probe = (f"{subject}probe", b"", {"Nats-Msg-Id": "probe"})
        (first,) = client.publish_acked([probe])
        wait_until(lambda: client.publish_acked([probe]) != [first])  # the ids of the old values are forgotten
        yield from rows("new").to_batches()

    def attempt(batches: Iterator[pa.RecordBatch]) -> None:
        target = {"bucket": "B"} if what == "bucket" else {"stream": "S", "deduplicate": "window"}
        parsed = write_options(server.url, **target)
        write_partition(parsed, WriteTask("query", "0", 0), batches, sink_of(parsed))

    attempt(slowly())
    attempt(iter([*rows("old").to_batches(), *rows("new").to_batches()]))
    found = last_values(client, name)
    assert {found[f"{subject}{key}"] for key in keys} == {b"new"}
