"""Tasks that begin again, however late: what they had stored is found in the stream, and not stored twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest

from spark_nats import clock
from spark_nats.client import connect
from spark_nats.client.retrying import run_with_retries
from spark_nats.errors import (
    DataLossError,
    JetStreamError,
    JetStreamUnavailableError,
    NatsError,
    PermissionsError,
    PublishError,
)
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.keyvalue import Bucket, create_bucket_if_missing
from spark_nats.jetstream.positions import Position
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import notes, replay
from spark_nats.kinds.streams.write.checks import (
    _put_probe_with_retries,
    check_not_fewer_partitions,
    prepare_write_and_make_marks,
)
from spark_nats.kinds.streams.write.notes import Note, ask_entry_and_note, write_note_or_pause
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import StartMark, WriteTask
from spark_nats.kinds.streams.write.writers import NatsStreamWriter
from spark_nats.protocol.documents import format_time, time_at
from tests.connections import options_for, write_options
from tests.nats_py import NatsPy, wait_until
from tests.scripted_server import INFO, Peer, scripted_server
from tests.servers import Cluster, Server, ServerFactory

QUERY = "3f81c09a-6f2e-4b6c-9d55-0a1b2c3d4e5f"
TASK = WriteTask(QUERY, "7", 0)
FORGETFUL = {"duplicate_window": 100_000_000}  # nanoseconds, the least that the server allows


@pytest.fixture(autouse=True, scope="module")
def state_bucket(nats_server: Server) -> None:
    """Make the bucket that the driver would make."""
    with connect(options_for(nats_server.url)) as connection:
        create_bucket_if_missing(JetStream(connection), "SPARK_NATS")


class Stopped(Exception):
    """The executor or the driver is gone."""


def options_of(server: Server, stream: str, *, streaming: bool = True, **options: Any) -> WriteOptions:
    return write_options(server.url, streaming, stream=stream, subject=f"{stream}.x", **options)


def payload_batches(
    payloads: list[str], size: int = 10, ids: str = "generated", stop_after: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows in batches of a size; the task ends with an error after so many of them."""
    kind = pa.map_(pa.string(), pa.string())
    for start in range(0, len(payloads), size):
        if stop_after is not None and start >= stop_after:
            raise Stopped
        part = pa.array(payloads[start : start + size])
        own_ids = [f" {payload} " for payload in part.to_pylist()]  # the server ignores the first space, not the last
        headers = pa.array([{"Nats-Msg-Id": each, "other": "x"} for each in own_ids], kind)
        own = {"column": {"msg_id": pa.array(own_ids)}, "headers": {"headers": headers}}.get(ids, {})
        yield pa.RecordBatch.from_pydict({"payload": part, **own})
    if stop_after is not None:
        raise Stopped


def stop(options: WriteOptions, payloads: list[str], after: int, task: WriteTask = TASK, **how: Any) -> None:
    """Run a task that writes so many rows and then is stopped, when they are stored."""
    with pytest.raises(Stopped):
        write_partition(options, task, payload_batches(payloads, stop_after=after, **how))


def forget(client: NatsPy, stream: str) -> None:
    """Wait until a stream with a short window takes an id that it has seen now for a new one."""
    seen = (f"{stream}.y", b"", {"Nats-Msg-Id": "seen"})
    (first,) = client.publish_acked([seen])
    wait_until(lambda: client.publish_acked([seen]) != [first])


def stored_counts(client: NatsPy, stream: str) -> Counter[str]:
    return Counter(m.payload.decode() for m in client.read_stream(stream) if m.subject == f"{stream}.x")


ROWS = [str(i) for i in range(60)] + ["twice", "twice"]


@pytest.mark.promise("writing#spark-to-stream", "exactly-once#exact")
@pytest.mark.parametrize("after", [0, 30, 62], ids=["before the first row", "in the middle", "all stored"])
@pytest.mark.parametrize("ids", ["generated", "column", "headers"])
def test_a_micro_batch_that_comes_back_after_the_window_is_stored_once(
    nats_server: Server, nats_py: NatsPy, unique: str, after: int, ids: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique, controlHeaders=ids == "headers")
    rows = ROWS if ids == "generated" else [*ROWS[:60], "once"]
    task = replace(TASK, own_ids=ids != "generated")
    stop(options, rows, min(after, len(rows)), task, ids=ids)
    wait_until(lambda: stored_counts(nats_py, unique).total() == min(after, len(rows)))
    forget(nats_py, unique)  # which stores what another publisher has
    written = write_partition(options, task, payload_batches(rows, size=7, ids=ids))
    assert stored_counts(nats_py, unique) == Counter(rows)
    counts = written.counts
    assert (counts.rows, counts.duplicates, written.unsure_query) == (len(rows), min(after, len(rows)), QUERY)


@pytest.mark.promise("exactly-once#exact")
def test_rows_that_come_back_in_another_order_are_stored_once(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique)
    stop(options, ROWS, 30)
    wait_until(lambda: stored_counts(nats_py, unique).total() == 30)
    forget(nats_py, unique)
    write_partition(options, TASK, payload_batches(ROWS[::-1], size=11))
    assert stored_counts(nats_py, unique) == Counter(ROWS)


def test_the_next_micro_batch_may_say_the_same_again(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique)
    for batch, unsure_query in [("7", QUERY), ("8", None)]:  # an earlier run may have begun the first one
        written = write_partition(options, replace(TASK, batch=batch, run=unique), payload_batches(ROWS))
        assert written.unsure_query == unsure_query
    assert stored_counts(nats_py, unique) == Counter(ROWS * 2)


@pytest.mark.promise("exactly-once#window")
def test_within_the_window_ids_are_enough(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique, deduplicate="window")
    with nats_py.collect("$KV.SPARK_NATS.>") as states:
        stop(options, ROWS, 30)
        write_partition(options, TASK, payload_batches(ROWS))
    assert stored_counts(nats_py, unique) == Counter(ROWS)
    assert not [state for state in states.messages if QUERY in state.subject]


def test_the_state_is_one_small_value_for_each_partition(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    nats_py.store(f"{unique}.y", [b""] * 3)
    options = options_of(nats_server, unique, stateBucket=unique)
    prepare_write_and_make_marks(options, streaming=True)
    for batch in ("7", "8"):
        for partition in (0, 1):
            write_partition(options, WriteTask(QUERY, batch, partition), payload_batches(["a"]))
    state = {m.subject: m.payload for m in nats_py.read_stream(f"KV_{unique}") if QUERY in m.subject}
    assert set(state) == {f"$KV.{unique}.{QUERY}.0", f"$KV.{unique}.{QUERY}.1"}
    info = nats_py.stream_info(unique)
    last = nats_py.api(f"STREAM.MSG.GET.{unique}", {"seq": 6})
    assert json.loads(state[f"$KV.{unique}.{QUERY}.1"]) == {
        "batch": 8,
        "stream": unique,
        "created": info["created"],
        "sequence": 6,
        "time": ANY,
        "timestamp": format_time(time_at(last, "message", "time")),
        "process": ANY,
        "id_lifetime_ms": 60_000,
        "noted": ANY,
    }


@pytest.mark.parametrize("fails", [True, False])
def test_it_is_said_when_what_was_stored_may_have_been_removed(
    nats_server: Server, nats_py: NatsPy, unique: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique, failOnDataLoss=fails)
    stop(options, ROWS, 30)
    wait_until(lambda: stored_counts(nats_py, unique).total() == 30)
    forget(nats_py, unique)
    nats_py.purge_stream(unique, seq=11)  # the first ten
    if fails:
        with pytest.raises(DataLossError, match=r"partition 0 of micro-batch 7 was begun before, .* sequences 1 to 10"):
            write_partition(options, TASK, payload_batches(ROWS))
    else:
        write_partition(options, TASK, payload_batches(ROWS))
        assert stored_counts(nats_py, unique) == Counter(ROWS)
        assert "sequences 1 to 10" in caplog.text


def test_single_messages_that_are_gone_count_too(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique)
    stop(options, ROWS, 30)
    wait_until(lambda: stored_counts(nats_py, unique).total() == 30)
    forget(nats_py, unique)
    nats_py.delete_message(unique, 5)
    with pytest.raises(DataLossError, match=r"messages that stream .* had stored after sequence 0 are lost \(1 of"):
        write_partition(options, TASK, payload_batches(ROWS))


def test_what_is_gone_does_not_matter_while_the_stream_knows_the_ids(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    stop(options, ROWS, 30)
    wait_until(lambda: stored_counts(nats_py, unique).total() == 30)
    nats_py.purge_stream(unique, seq=11)
    write_partition(options, TASK, payload_batches(ROWS))
    assert stored_counts(nats_py, unique) == Counter(ROWS[10:])


@pytest.mark.promise("operating#other-partitions")
def test_another_split_into_partitions_is_an_error_and_no_silent_duplicates(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique)
    stop(options, ROWS, 30)
    wait_until(lambda: stored_counts(nats_py, unique).total() == 30)
    forget(nats_py, unique)
    said = r"other partitions now, or have other contents: rows that .* are now stored a second time;.* to window"
    with pytest.raises(PublishError, match=said):
        write_partition(options, TASK, payload_batches(ROWS[20:]))


@pytest.mark.parametrize(
    "step",
    ["_note_and_find_earlier_start", "read_ids"],
    ids=["before this one asks what has begun", "while this one reads back"],
)
def test_what_another_attempt_stores_meanwhile_is_not_stored_again(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique)
    stop(options, ROWS, 20)
    place = replay.ExactlyOnce if step == "_note_and_find_earlier_start" else replay
    usual = getattr(place, step)

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(place, step, usual)
        found = usual(*arguments) if step == "read_ids" else None
        with pytest.MonkeyPatch.context() as earlier:  # which has noted before that it begins
            earlier.setattr(notes, "write_note_or_pause", lambda *_: 1 << 60)
            write_partition(options, TASK, payload_batches(ROWS))
        forget(nats_py, unique)
        return found or usual(*arguments)

    monkeypatch.setattr(place, step, late)
    write_partition(options, TASK, payload_batches(ROWS))
    assert stored_counts(nats_py, unique) == Counter(ROWS)


def test_fewer_partitions_are_noticed_before_the_micro_batch_is_committed(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    for partition in range(3):
        write_partition(options, WriteTask(QUERY + unique, "7", partition), payload_batches(["a"]))
    with connect(options.connection) as connection:
        check_not_fewer_partitions(connection, options, QUERY + unique, 7, 3)
        check_not_fewer_partitions(connection, options, QUERY + unique, 8, 1)
        with pytest.raises(
            PublishError, match="micro-batch 7 was begun before, and its rows are split .* that partition 2, "
        ):
            check_not_fewer_partitions(connection, options, QUERY + unique, 7, 2)


def test_fewer_partitions_are_noticed_though_none_of_those_left_had_begun_before(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    query = QUERY + unique
    write_partition(
        options, WriteTask(query, "7", 1, run="the first"), payload_batches(["a"])
    )  # and the driver is killed
    written = write_partition(options, WriteTask(query, "7", 0, run="the second"), payload_batches(["a"]))
    with pytest.raises(
        PublishError, match="micro-batch 7 was begun before, and its rows are split .* that partition 1, "
    ):
        NatsStreamWriter(options).commit([written], 7)


def test_that_a_run_has_begun_a_micro_batch_is_known_in_each_process(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    tails: list[WriteTask] = []
    look = replay._search_tail_for_rows
    monkeypatch.setattr(
        replay, "_search_tail_for_rows", lambda js, task, *rest: tails.append(task) or look(js, task, *rest)
    )
    of = partial(WriteTask, QUERY + unique)
    for batch, partition, run in [(0, 0, "1"), (0, 1, "1"), (1, 0, "1"), (1, 1, "1"), (2, 0, "1"), (2, 1, "2")]:
        monkeypatch.setattr(replay, "_noted", {})  # a worker that has done nothing yet
        written = write_partition(options, of(str(batch), partition, run=run), payload_batches(["a"]))
        is_sure = written.unsure_query is None
        assert is_sure == (tails[-1:] != [of(str(batch), partition, run=run)]) == (batch > 0 and run == "1")
    assert stored_counts(nats_py, unique) == Counter(a=6)


def test_a_retry_elsewhere_finds_its_rows_though_its_note_was_put_back(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique)
    task = WriteTask(QUERY + unique, "1", 0, attempt=1, run="1")
    write_partition(options, replace(task, batch="0", attempt=0), payload_batches(ROWS))
    with connect(options.connection) as connection:
        bucket = Bucket(JetStream(connection), options.state_bucket)
        before = bucket.get(task.note_key)
        stop(options, ROWS, 30, replace(task, attempt=0))
        wait_until(lambda: stored_counts(nats_py, unique).total() == len(ROWS) + 30)
        bucket.put(task.note_key, before.value)
    forget(nats_py, unique)
    monkeypatch.setattr(replay, "_noted", {})
    with pytest.raises(DataLossError, match="it does not know partition 0 of micro-batch 1, of which stream"):
        write_partition(options, task, payload_batches(ROWS))
    assert stored_counts(nats_py, unique).total() == len(ROWS) + 30


def test_a_stream_that_was_made_again_gets_the_whole_micro_batch(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    stop(options, ROWS, 30)
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique)
    write_partition(options, TASK, payload_batches(ROWS))
    assert stored_counts(nats_py, unique) == Counter(ROWS)
    assert "its rows now go to the present stream" in caplog.text


@pytest.mark.parametrize("streaming", [True, False])
def test_rows_that_were_on_their_way_when_a_stream_was_made_again_are_stored_once(
    nats_server: Server, nats_py: NatsPy, unique: str, streaming: bool
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique, streaming=streaming, deduplicate="exact")
    mark = prepare_write_and_make_marks(options, streaming=streaming)
    task = TASK if streaming else WriteTask("5" * 32, None, 3, 0, mark)
    stop(options, ROWS, 30, task)
    wait_until(lambda: stored_counts(nats_py, unique).total() == 30)
    stored = nats_py.read_stream(unique)
    nats_py.delete_stream(unique)
    nats_py.create_stream(unique, **FORGETFUL)
    # The last ones come to the new stream, before the attempt notices.
    late = [(m.subject, m.payload, {"Nats-Msg-Id": m.headers["Nats-Msg-Id"][0]}) for m in stored[20:]]
    nats_py.publish_acked(late)
    forget(nats_py, unique)
    write_partition(options, replace(task, attempt=1), payload_batches(ROWS))
    assert stored_counts(nats_py, unique) == Counter(ROWS)


def test_an_older_checkpoint_is_told(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    query = QUERY + unique
    for batch in ("7", "6"):
        write_partition(options, WriteTask(query, batch, 0), payload_batches(ROWS))
    assert (
        "partition 0 of micro-batch 6 comes after micro-batch 7, as if an older checkpoint were in use" in caplog.text
    )


def test_an_attempt_that_comes_too_late_writes_nothing(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    """It was stopped, another one has written its rows, and the query has gone on."""
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    query = QUERY + unique
    for batch in ("6", "7"):
        write_partition(options, WriteTask(query, batch, 0, run="run"), payload_batches(ROWS))
    with pytest.raises(
        PublishError, match="partition 0 of micro-batch 6 comes too late: micro-batch 7 has begun since"
    ):
        write_partition(options, WriteTask(query, "6", 0, attempt=1, run="run"), payload_batches(ROWS))
    assert stored_counts(nats_py, unique) == Counter(ROWS * 2)
    write_partition(options, WriteTask(query, "8", 0, run="run"), payload_batches(ROWS))  # which the bucket allows


@pytest.mark.needs("atomic", only="True")
@pytest.mark.promise("exactly-once#exact")
@pytest.mark.parametrize("atomic", [False, True])
def test_an_attempt_ends_once_another_one_has_begun(
    nats_server: Server, nats_py: NatsPy, unique: str, atomic: bool
) -> None:
    """It goes on where Spark does not see it, and the stream has forgotten what the other one has stored meanwhile."""
    nats_py.create_stream(unique, allow_atomic=atomic, **FORGETFUL)
    options, task = options_of(nats_server, unique, atomic=atomic), replace(TASK, query=QUERY + unique)

    def slow() -> Iterator[pa.RecordBatch]:
        yield from payload_batches(ROWS[:10])
        write_partition(options, replace(task, attempt=1), payload_batches(ROWS))
        forget(nats_py, unique)
        yield from payload_batches(ROWS[10:])

    with pytest.raises(PublishError, match="partition 0 of .* comes too late: another attempt at it has begun since"):
        write_partition(options, task, slow())
    assert stored_counts(nats_py, unique) == Counter(ROWS)


@pytest.mark.needs("atomic", only="True")
@pytest.mark.promise("exactly-once#exact")
@pytest.mark.parametrize("atomic", [False, True])
def test_rows_of_an_earlier_attempt_are_found_though_the_stream_has_forgotten_them(
    nats_server: Server, nats_py: NatsPy, unique: str, atomic: bool
) -> None:
    nats_py.create_stream(unique, allow_atomic=atomic, **FORGETFUL)
    options, task = options_of(nats_server, unique, atomic=atomic), replace(TASK, query=QUERY + unique)
    write_partition(options, task, iter([]))

    def late() -> Iterator[pa.RecordBatch]:
        with pytest.MonkeyPatch.context() as earlier:  # which has noted before that it begins
            earlier.setattr(notes, "write_note_or_pause", lambda *_: 1 << 60)
            write_partition(options, task, payload_batches(ROWS))
        forget(nats_py, unique)
        yield from payload_batches(ROWS)

    write_partition(options, task, late())
    assert stored_counts(nats_py, unique) == Counter(ROWS)


def test_a_later_attempt_goes_on_where_the_stream_removes_what_is_to_be_read_back(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its limits have removed the attempt's own rows, and an earlier attempt is seldom running."""
    nats_py.create_stream(unique, max_msgs=1, **FORGETFUL)
    options, task = options_of(nats_server, unique), replace(TASK, query=QUERY + unique)
    write_partition(options, task, iter([]))
    now = (
        clock.monotonic()
    )  # no time passes until the ids are forgotten: the first rows are in time on a busy machine too

    def late() -> Iterator[pa.RecordBatch]:
        yield from payload_batches(ROWS[:30])
        forget(nats_py, unique)
        monkeypatch.setattr(clock, "monotonic", lambda: now + 1)
        yield from payload_batches(ROWS[30:50])

    monkeypatch.setattr(clock, "monotonic", lambda: now)
    write_partition(options, task, late())
    assert stored_counts(nats_py, unique) == Counter([ROWS[49]])
    assert "so that some may be stored twice" in caplog.text


@pytest.mark.promise("exactly-once#exact")
def test_rows_are_stored_once_that_an_earlier_attempt_has_stored_before_it_ends(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, duplicate_window=2_000_000_000)
    options, task = options_of(nats_server, unique), replace(TASK, query=QUERY + unique)
    later_began, earlier_ended = Event(), Event()

    def earlier() -> Iterator[pa.RecordBatch]:
        yield from payload_batches(ROWS[:10])
        assert later_began.wait(30)
        yield from payload_batches(ROWS[10:30])

    def later() -> Iterator[pa.RecordBatch]:
        later_began.set()
        assert earlier_ended.wait(30)
        forget(nats_py, unique)
        yield from payload_batches(ROWS)

    def run_earlier() -> None:
        with suppress(PublishError):  # if it has been slow
            write_partition(options, task, earlier())
        earlier_ended.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_earlier)
        wait_until(lambda: stored_counts(nats_py, unique).total() == 10)
        write_partition(options, replace(task, attempt=1), later())
        running.result()
    assert stored_counts(nats_py, unique) == Counter(ROWS)


def test_an_attempt_of_a_former_run_that_the_query_has_overtaken_writes_nothing(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Its driver is gone, its executor lives on, and the query was started again."""
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    query = QUERY + unique
    for batch, run, planned in [("5", "former", 1), ("6", "later", 3), ("7", "later", 4)]:
        write_partition(options, WriteTask(query, batch, 0, run=run, planned_at=planned), payload_batches([batch]))
    with pytest.raises(PublishError, match="partition 0 of micro-batch 6 comes too late"):
        write_partition(options, WriteTask(query, "6", 0, run="former", planned_at=2), payload_batches(["6"]))
    assert stored_counts(nats_py, unique) == Counter(["5", "6", "7"])
    write_partition(
        options, WriteTask(query, "8", 0, run="later", planned_at=5), payload_batches(["8"])
    )  # the bucket allows it


@pytest.mark.parametrize("who", ["the one behind, with a bucket of its own", "the one ahead, with the same bucket"])
def test_queries_with_copies_of_a_checkpoint_are_told_to_run_only_the_one_ahead(
    nats_server: Server, nats_py: NatsPy, unique: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two runs of one query: blue is at micro-batch 7, and green begins with a copy of its checkpoint at 5."""
    nats_py.create_stream(unique)
    shared, own = options_of(nats_server, unique), options_of(nats_server, unique, stateBucket=unique)
    prepare_write_and_make_marks(own, streaming=True)

    def run(name: str, batch: int, planned: int, options: WriteOptions = shared) -> None:
        task = WriteTask(QUERY + unique, str(batch), 0, run=name + unique, planned_at=planned)
        write_partition(options, task, payload_batches([str(batch)]))

    for batch in (5, 6, 7):
        run("blue", batch, planned=batch)
    if "behind" in who:
        failing = partial(run, "green", 5, 8, own)
    else:
        run("green", 5, planned=8)
        assert "or another query with a copy of it had gone further: its rows may already be stored" in caplog.text
        failing = partial(run, "blue", 8, 9)
    said = (
        r"or has another query run with a copy of this checkpoint\?\).* of queries with copies of one checkpoint, run "
        "only the one that has gone furthest"
    )
    with pytest.raises(DataLossError, match=said) as raised:
        failing()
    assert raised.value.condition == "NATS_STATE_BUCKET_OLDER"
    assert stored_counts(nats_py, unique) == Counter(["5", "6", "7"])


@pytest.mark.parametrize("fails", [True, False])
def test_a_key_that_was_deleted_denies_what_was_begun(
    nats_server: Server, nats_py: NatsPy, unique: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    options = options_of(nats_server, unique, failOnDataLoss=fails)
    query = QUERY + unique
    write_partition(options, WriteTask(query, "7", 0), payload_batches(["a"]))
    nats_py.publish_acked([(f"$KV.SPARK_NATS.{query}.0", b"", {"KV-Operation": "DEL"})])
    forget(nats_py, unique)
    said = "the state bucket 'SPARK_NATS' is older than the query's checkpoint, which is at micro-batch 7: it does not"
    if fails:
        with pytest.raises(DataLossError, match=said):
            write_partition(options, WriteTask(query, "7", 0), payload_batches(["a"]))
    else:
        write_partition(options, WriteTask(query, "7", 0), payload_batches(["a"]))
        assert said in caplog.text
    assert stored_counts(nats_py, unique) == Counter("a")


def test_a_key_that_somebody_else_has_written_is_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    options = options_of(nats_server, unique)
    nats_py.publish_acked([(f"$KV.SPARK_NATS.{QUERY}{unique}.0", b"mine")])
    with pytest.raises(NatsError, match="does not hold the state of a query"):
        write_partition(options, WriteTask(QUERY + unique, "7", 0), payload_batches(["a"]))


def test_a_work_queue_cannot_be_read_back(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, retention="workqueue", **FORGETFUL)
    options = options_of(nats_server, unique)
    prepare_write_and_make_marks(options, streaming=True)
    stop(options, ROWS, 0)
    write_partition(options, TASK, payload_batches(ROWS))  # nothing was stored, so nothing is to be told
    assert nats_py.held(unique) == len(ROWS)
    forget(nats_py, unique)
    with pytest.raises(DataLossError, match="has workqueue retention, and cannot be read back"):
        write_partition(options, TASK, payload_batches(ROWS))


# Batch writes


def test_a_task_of_a_batch_that_is_tried_again_late_stores_nothing_twice(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, **FORGETFUL)
    nats_py.publish_acked([(f"{unique}.x", b"before")])
    options = options_of(nats_server, unique, streaming=False, deduplicate="exact")
    marks = prepare_write_and_make_marks(options, streaming=False)
    assert [mark.end.last for mark in marks] == [1]
    task = WriteTask("5" * 32, None, 3, 0, marks)
    stop(options, ROWS, 30, task)
    wait_until(lambda: stored_counts(nats_py, unique).total() == 31)
    forget(nats_py, unique)
    with nats_py.collect("$KV.SPARK_NATS.>") as states:
        write_partition(options, replace(task, attempt=1), payload_batches(ROWS))
    assert stored_counts(nats_py, unique) == Counter([*ROWS, "before"])
    assert not states.messages


# What a query that cannot settle says at its start

USER = "users: [{{user: u, password: p, permissions: {{ publish: {{ allow: [{allowed}] }} }} }}]"
NEEDED = ["s.>", "$JS.API.STREAM.INFO.S"]
STATE = ["$JS.API.STREAM.INFO.KV_SPARK_NATS", "$JS.API.STREAM.CREATE.KV_SPARK_NATS", "$KV.SPARK_NATS.>"]
READ_BACK = ["$JS.API.CONSUMER.CREATE.S.>", "$JS.API.CONSUMER.MSG.NEXT.S.>", "$JS.API.CONSUMER.DELETE.S.>"]
EACH_TIME = ["$JS.API.STREAM.MSG.GET.KV_SPARK_NATS"]


def restricted(server_factory: ServerFactory, allowed: list[str]) -> Any:
    subjects = ", ".join(f'"{subject}"' for subject in allowed)
    server = server_factory(
        "accounts: { A: { jetstream: enabled, users: [{user: admin, password: a}, "
        f"{{user: u, password: p, permissions: {{ publish: {{ allow: [{subjects}] }} }} }}] }} }}"
    )
    with NatsPy(server.url.replace("nats://", "nats://admin:a@")) as admin:
        admin.create_stream("S", subjects=["s.>"])
    return server


def restricted_options(server: Any) -> WriteOptions:
    return write_options(server.url, user="u", password="p", stream="S", subject="s.x")


def test_the_permissions_of_the_readme_are_enough(server_factory: ServerFactory) -> None:
    server = restricted(server_factory, NEEDED + STATE + READ_BACK + EACH_TIME)
    options = restricted_options(server)
    prepare_write_and_make_marks(options, streaming=True)
    stop(options, ROWS, 30)
    assert write_partition(options, TASK, payload_batches(ROWS)).unsure_query


@pytest.mark.parametrize("missing", [*STATE, *READ_BACK])
def test_a_query_that_may_not_settle_fails_at_its_start(server_factory: ServerFactory, missing: str) -> None:
    allowed = [subject for subject in NEEDED + STATE + READ_BACK if subject != missing]
    options = restricted_options(restricted(server_factory, allowed))
    with pytest.raises(PermissionsError) as raised:
        prepare_write_and_make_marks(options, streaming=True)
    assert missing.removesuffix(".>") in str(raised.value)
    about = "its stored rows could not be read back" if missing in READ_BACK else "the state bucket 'SPARK_NATS'"
    assert about in str(raised.value)
    prepare_write_and_make_marks(replace(options, deduplicate="window"), streaming=True)


def test_a_bucket_without_room_is_told_at_the_start(server_factory: ServerFactory) -> None:
    server = server_factory("accounts: { A: { jetstream: { max_streams: 1 }, users: [{user: u, password: p}] } }")
    with NatsPy(server.url.replace("nats://", "nats://u:p@")) as admin:
        admin.create_stream("S", subjects=["s.>"])
    with pytest.raises(
        JetStreamError, match="state bucket 'SPARK_NATS', .* cannot be used: .*maximum number of streams"
    ):
        prepare_write_and_make_marks(restricted_options(server), streaming=True)


def test_an_account_that_demands_limits_of_sizes_has_a_state_bucket_with_one(server_factory: ServerFactory) -> None:
    """Without one, the default of streaming failed: nobody had made the bucket by hand."""
    demand = "max_bytes_required: true, max_store: 1GB"
    server = server_factory(f"accounts: {{ A: {{ jetstream: {{ {demand} }}, users: [{{user: u, password: p}}] }} }}")
    login = {"user": "u", "password": "p"}
    with NatsPy(server.url.replace("nats://", "nats://u:p@")) as admin:
        with pytest.raises(JetStreamError, match="'NEW' cannot be created: the account demands 'max_bytes'"):
            prepare_write_and_make_marks(
                write_options(server.url, **login, stream="NEW", createStream='{"subjects": ["n"]}'), streaming=True
            )
        admin.create_stream("S", subjects=["s.>"], max_bytes=1_000_000)
        prepare_write_and_make_marks(restricted_options(server), streaming=True)
        config = admin.stream_info("KV_SPARK_NATS")["config"]
    assert (config["max_bytes"], config["discard"], config["max_msgs_per_subject"]) == (16 * 2**20, "new", 1)


def test_of_two_attempts_that_begin_at_once_only_one_notes_that(nats_server: Server, unique: str) -> None:
    options = options_of(nats_server, unique)
    task, mark = replace(TASK, query=unique), StartMark(unique, Position("now", 6), 0)
    with connect(options_for(nats_server.url)) as connection:
        js = JetStream(connection)
        entry, note = ask_entry_and_note(js, options, task.note_key)
        assert note is None
        later = clock.monotonic() + 60
        assert write_note_or_pause(js, options, task, mark, entry.revision, later)
        assert not write_note_or_pause(js, options, task, replace(mark, end=Position("now", 10)), entry.revision, later)
        assert ask_entry_and_note(js, options, task.note_key)[1] == Note(7, replace(mark, time=ANY), "", 0)


def test_the_first_write_to_a_cluster_makes_the_state_bucket_and_uses_it(cluster: Cluster, unique: str) -> None:
    with NatsPy(cluster.servers[0].url) as client:
        client.create_in_cluster(unique, num_replicas=3)
    for i, server in enumerate(cluster.servers * 4):
        options = write_options(server.url, stream=unique, stateBucket=f"N{unique}_{i}")
        # As the driver does it: a server that does not answer is asked again, one that knows no bucket is not.
        run_with_retries(
            partial(prepare_write_and_make_marks, options, streaming=True),
            options.retries,
            "the test",
            established=False,
        )


@pytest.mark.parametrize("in_cluster", [True, False])
def test_a_server_that_does_not_know_the_new_bucket_yet_is_asked_again_in_a_cluster(in_cluster: bool) -> None:
    """A real cluster takes some milliseconds, so there it is seldom seen."""

    def server(peer: Peer) -> None:
        peer.let_in(INFO.replace(b"{", b'{"cluster":"C",', 1) if in_cluster else INFO)
        inbox = peer.expect(b"PUB $KV.STATE.").split()[1][:-1]
        peer.send(b"HMSG %b1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % inbox)
        peer.expect(b"PUB $KV.STATE.")
        peer.send(b"MSG %b2 1 29\r\n" % inbox + b'{"stream":"KV_STATE","seq":1}\r\n')
        peer.wait_for_close()

    with scripted_server(server) as url, connect(options_for(url)) as connection:
        js = JetStream(connection)
        with nullcontext() if in_cluster else pytest.raises(JetStreamUnavailableError, match="STATE"):
            _put_probe_with_retries(js, Bucket(js, "STATE"))


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_purge_that_makes_sequences_begin_higher_hides_no_rows_from_a_replay(
    server_factory: ServerFactory, retention: str
) -> None:
    """Nothing was stored since the task had begun, and its replay knows that, also where ids are forgotten."""
    server = server_factory()
    options, first = options_of(server, "S"), replace(TASK, batch="0")
    with NatsPy(server.url) as client:
        client.create_stream("S", retention=retention, **FORGETFUL)
        client.publish_acked([("S.x", b"before")])
        prepare_write_and_make_marks(options, streaming=True)
        stop(options, ROWS, 0, first)
        client.api("STREAM.PURGE.S", {"seq": 1000})
        state = client.stream_info("S")["state"]
        assert (state["messages"], state["last_seq"]) == (0, 999)
    server.kill()
    server.start()
    assert write_partition(options, first, payload_batches(ROWS)).counts.rows == len(ROWS)
    with NatsPy(server.url) as client:
        assert client.held("S") == len(ROWS)


@pytest.mark.promise("exactly-once#skipped")
@pytest.mark.parametrize("rows", [["a", "b"], []], ids=["with rows", "without rows"])
@pytest.mark.parametrize("partitions", [(1, 1), (1, 3), (3, 1)])
def test_a_number_that_spark_has_skipped_is_no_loss(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    rows: list[str],
    partitions: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where state is repartitioned between two runs: that plans a micro-batch without rows."""
    nats_py.create_stream(unique)
    options, query = options_of(nats_server, unique), QUERY + unique
    before, after = partitions

    def run(batch: int, count: int, what: list[str]) -> None:
        for i in reversed(range(count)):
            task = WriteTask(query, str(batch), i, run=f"run {batch}")
            write_partition(options, task, payload_batches([f"{batch} {i} {each}" for each in what]))

    run(4, before, ["a"])
    run(5, before, rows)
    nats_py.publish_acked([(f"{unique}.y", b"of another")])
    run(7, after, ["a"])
    assert caplog.text.count("NATS_BATCHES_SKIPPED") == after
    run(7, after, ["a"])  # a replay
    run(8, after, ["a"])
    expected = [f"{batch} {i} a" for batch, count in ((4, before), (7, after), (8, after)) for i in range(count)]
    expected += [f"5 {i} {each}" for i in range(before) for each in rows]
    assert stored_counts(nats_py, unique) == Counter(expected)


@pytest.mark.promise("exactly-once#not-skipped")
@pytest.mark.parametrize(("batch", "partition"), [(6, 1), (7, 0)])
def test_a_number_of_which_the_stream_has_rows_was_not_skipped(
    nats_server: Server, nats_py: NatsPy, unique: str, batch: int, partition: int
) -> None:
    """The bucket is a copy from before micro-batch 6, and the stream has rows of 6, or of the task itself."""
    nats_py.create_stream(unique, **FORGETFUL)
    options, other = options_of(nats_server, unique), options_of(nats_server, unique, stateBucket=unique)
    prepare_write_and_make_marks(other, streaming=True)
    query = QUERY + unique
    write_partition(options, WriteTask(query, "5", 0), payload_batches(["5"]))
    write_partition(other, WriteTask(query, str(batch), partition), payload_batches([str(batch)]))
    with pytest.raises(DataLossError, match="older than the query's checkpoint"):
        write_partition(options, WriteTask(query, "7", 0), payload_batches(["7"]))
    assert stored_counts(nats_py, unique) == Counter(["5", str(batch)])


@pytest.mark.promise("exactly-once#not-skipped")
def test_notes_of_an_older_copy_of_the_checkpoint_show_no_number_that_was_skipped(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Blue has begun 8; green goes on from a copy at 5, and notes that; the replay of 8 has to find blue's rows."""
    nats_py.create_stream(unique, **FORGETFUL)
    options, query = options_of(nats_server, unique), QUERY + unique

    def run(name: str, batch: int, planned: int) -> None:
        task = WriteTask(query, str(batch), 0, run=name + unique, planned_at=planned)
        write_partition(options, task, payload_batches([str(batch)]))

    for batch in (5, 6, 7, 8):
        run("blue", batch, batch)
    forget(nats_py, unique)
    run("green", 5, 9)
    run("green", 6, 10)
    with pytest.raises(DataLossError, match="older than the query's checkpoint"):
        run("blue again", 8, 11)
    assert stored_counts(nats_py, unique)["8"] == 1


@pytest.mark.promise("exactly-once#skipped", "exactly-once#skipped-unknown")
def test_a_work_queue_shows_a_number_that_was_skipped_where_nothing_was_stored_since(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, retention="workqueue")
    options, query = options_of(nats_server, unique), QUERY + unique
    write_partition(options, WriteTask(query, "4", 0), payload_batches(["a"]))
    write_partition(options, WriteTask(query, "5", 0), payload_batches([]))
    write_partition(options, WriteTask(query, "7", 0), payload_batches(["b"]))
    with pytest.raises(DataLossError, match="older than the query's checkpoint"):
        write_partition(options, WriteTask(query, "9", 0), payload_batches(["c"]))
    assert nats_py.held(unique) == 2
