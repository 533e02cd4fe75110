"""A server that comes back with an older copy of its store, while tasks write to it and between their attempts.

What is lost is said, and what has ids is stored exactly once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.conditions import Topic
from spark_nats.embedded import NatsServer
from spark_nats.errors import DataLossError, NatsError, PublishError
from spark_nats.jetstream import views
from spark_nats.kinds.queries import parse_write_options
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.checks import prepare_write_and_make_marks
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask
from tests.connections import write_options
from tests.integration.jetstream.publishing.test_settled_publishing import (
    give,
    has_leader,
    is_whole,
    publishing,
    stepped_down,
)
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, ServerFactory, copy_store, put_back

QUERY = "3f81c09a-6f2e-4b6c-9d55-0a1b2c3d4e5f"
FORGETFUL = {"duplicate_window": 100_000_000}
"""The shortest window: what a replay finds, it has not found by that."""


class Restorable:
    """A server of which there may be an older copy."""

    def __init__(self, server: NatsServer, directory: Path) -> None:
        self.server = server
        self.store = directory / "store"
        self._copy = directory / "copy"

    def snapshot(self) -> None:
        copy_store(self.server, self.store, self._copy)

    def restore(self) -> None:
        put_back(self.server, self.store, self._copy)

    def last(self, stream: str) -> int:
        """The last sequence of a stream."""
        with NatsPy(self.server.url) as client:
            return int(client.stream_info(stream)["state"]["last_seq"])

    def publish(self, stream: str, count: int, subject: str = "other") -> None:
        """Write as another publisher does."""
        with NatsPy(self.server.url) as client:
            client.publish_acked([(f"{stream}.{subject}", b"another's")] * count)

    def stored(self, stream: str, subject: str = "x") -> Counter[str]:
        """What tasks have stored."""
        with NatsPy(self.server.url) as client:
            found = client.read_stream(stream)
        return Counter(m.payload.decode() for m in found if m.subject == f"{stream}.{subject}")


@pytest.fixture
def restorable(server_factory: ServerFactory, tmp_path: Path) -> Restorable:
    server = server_factory(store_dir=tmp_path / "store")
    with NatsPy(server.url) as client:
        client.create_stream("T", **FORGETFUL)
    return Restorable(server, tmp_path)


def target_options(restorable: Restorable, streaming: bool, **options: Any) -> WriteOptions:
    given = {"stream": "T", "subject": "T.x", "deduplicate": "exact", **options}
    return write_options(restorable.server.url, streaming, **given)


def number_batches(
    rows: range, harm: Callable[[int], object] = lambda _: None, size: int = 50
) -> Iterator[pa.RecordBatch]:
    """Rows in batches of a size; before each of them, and at the end, something may happen."""
    for start in range(rows.start, rows.stop, size):
        harm(start)
        payloads = [str(i) for i in range(start, min(start + size, rows.stop))]
        yield pa.RecordBatch.from_pydict({"payload": pa.array(payloads)})
    harm(rows.stop)


def once_each(rows: range) -> Counter[str]:
    return Counter(map(str, rows))


# While a task writes


@contextmanager
def losing(restorable: Restorable, with_ids: bool = True) -> Iterator[Any]:
    """A publisher of which 4,550 rows are acknowledged, of which the server's copy has 500."""
    with publishing(restorable.server.url, "T") as publisher:
        give(publisher, "T", range(500), with_ids)
        publisher.wait_for_sent_rows()
        restorable.snapshot()
        give(publisher, "T", range(500, 4550), with_ids)
        publisher.wait_for_sent_rows()
        assert publisher.stored == restorable.last("T") == 4550
        yield publisher


@pytest.mark.promise("durability#task-that-writes", "durability#only-volume-restored")
@pytest.mark.parametrize("others", [0, 100, 5000])
def test_a_task_fails_whose_acknowledged_rows_are_lost_and_counts_them(restorable: Restorable, others: int) -> None:
    with pytest.raises(PublishError) as raised, losing(restorable) as publisher:
        restorable.restore()
        restorable.publish("T", others)
        give(publisher, "T", range(4550, 6000))
        publisher.wait_for_sent_rows()
    now = "ends at 500" if not others else "has other messages from sequence 501 on"
    assert str(raised.value).startswith(
        "stream 'T' has lost 4050 rows that it had acknowledged to this task: it ended at sequence 4550, and now "
        f"{now} (has a server come back with an older copy of its store?); the next attempt of the task, or the "
        "micro-batch when it is run again, stores them by their message ids; of this task's rows 500 were stored"
    )


@pytest.mark.parametrize("others", [0, 5000])
def test_rows_without_ids_that_are_lost_are_an_error_too(restorable: Restorable, others: int) -> None:
    with pytest.raises(PublishError) as raised, losing(restorable, with_ids=False) as publisher:
        restorable.restore()
        restorable.publish("T", others)
        give(publisher, "T", range(4550, 6000), with_ids=False)
        publisher.wait_for_sent_rows()
    assert "has lost 4050 rows" in str(raised.value)
    assert "they have no message ids" in str(raised.value)
    assert raised.value.topics == (Topic.MESSAGE_IDS,)


@pytest.mark.parametrize("others", [0, 5000])
def test_a_loss_behind_the_last_acknowledgement_is_noticed_at_the_end(restorable: Restorable, others: int) -> None:
    with pytest.raises(PublishError, match="has lost 4050 rows"), losing(restorable) as publisher:
        restorable.restore()
        restorable.publish("T", others)
        publisher.check_nothing_lost()


@pytest.mark.parametrize("config", [{"retention": "interest"}, {"max_msgs": 10}, {"max_age": 100_000_000}])
def test_messages_that_go_as_streams_have_it_are_no_loss(
    server_factory: ServerFactory, tmp_path: Path, config: dict[str, Any]
) -> None:
    server = server_factory(store_dir=tmp_path / "store")
    with NatsPy(server.url) as client:
        client.create_stream("T", **{**FORGETFUL, **config})
        with publishing(server.url, "T") as publisher:
            for start in range(0, 2000, 1000):
                give(publisher, "T", range(start, start + 1000))
                publisher.wait_for_sent_rows()
                if "max_age" in config:
                    wait_until(lambda: not client.held("T"), timeout=60)
                server.kill()
                server.start()
            publisher.check_nothing_lost()
            assert publisher.stored == 2000


@pytest.mark.parametrize("lost", [False, True])
def test_whoever_may_not_ask_for_messages_is_told_by_sequences(
    server_factory: ServerFactory, tmp_path: Path, lost: bool
) -> None:
    allowed = '["T.>", "$JS.API.STREAM.INFO.T"]'
    user = f"{{user: u, password: p, permissions: {{ publish: {{ allow: {allowed} }} }} }}"
    config = f"accounts: {{ A: {{ jetstream: enabled, users: [{{user: admin, password: a}}, {user}] }} }}"
    store = tmp_path / "store"
    server = server_factory(config, store_dir=store)
    with NatsPy(server.url.replace("nats://", "nats://admin:a@")) as admin:
        admin.create_stream("T")
    url = server.url.replace("nats://", "nats://u:p@")
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(publishing(url, "T"))
        give(publisher, "T", range(500))
        publisher.wait_for_sent_rows()
        copy_store(server, store, tmp_path / "copy")
        give(publisher, "T", range(500, 1000))
        publisher.wait_for_sent_rows()
        if lost:
            stack.enter_context(pytest.raises(PublishError, match="has lost 500 rows .* and now ends at 500"))
            put_back(server, store, tmp_path / "copy")
        else:
            server.kill()
            server.start()
        give(publisher, "T", range(1000, 1500))
        publisher.wait_for_sent_rows()
        publisher.check_nothing_lost()
        assert publisher.stored == 1500


@pytest.mark.promise("durability#task-that-writes")
@pytest.mark.parametrize("others", [pytest.param(0, marks=pytest.mark.long("spark_nats/kinds/streams/write/*")), 1000])
@pytest.mark.parametrize(
    "streaming",
    [pytest.param(False, marks=pytest.mark.long("spark_nats/kinds/streams/write/*")), True],
    ids=["batch", "micro-batch"],
)
def test_the_next_attempt_of_a_task_stores_what_was_lost_exactly_once(
    restorable: Restorable, streaming: bool, others: int
) -> None:
    # What is not in flight any more was acknowledged.
    options = target_options(restorable, streaming, maxInFlight=1000, reconnectWait="50ms")
    mark = prepare_write_and_make_marks(options, streaming=streaming)
    task = WriteTask(QUERY, "0" if streaming else None, 0, 0, mark)

    def harm(given: int) -> None:
        if given == 500:
            wait_until(lambda: restorable.last("T") == 500, timeout=60)
            restorable.snapshot()
        if given == 3000:
            wait_until(lambda: restorable.last("T") == 3000, timeout=60)
            restorable.restore()
            restorable.publish("T", others)

    with pytest.raises(PublishError, match="has lost .* rows that it had acknowledged"):
        write_partition(options, task, number_batches(range(6000), harm))
    assert 0 < restorable.stored("T").total() < 1000
    write_partition(options, replace(task, attempt=1), number_batches(range(6000)))
    assert restorable.stored("T") == once_each(range(6000))


@pytest.mark.promise("durability#two-volumes-restored")
@pytest.mark.long("spark_nats/kinds/streams/write/*", races="servers that start, and elect a leader among copies")
@pytest.mark.timeout(300)
def test_a_cluster_two_of_whose_members_are_put_back_loses_rows_not_unseen(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster("T", num_replicas=3)
        older, other = cluster.servers[:2], cluster.servers[2]
        with pytest.raises(PublishError) as raised, publishing(cluster.urls, "T") as publisher:
            give(publisher, "T", range(500))
            publisher.wait_for_sent_rows()
            wait_until(lambda: is_whole(client, "T"))
            for i, server in enumerate(older):
                copy_store(server, tmp_path / f"store{i}", tmp_path / f"copy{i}")
                wait_until(lambda: is_whole(client, "T"))
            give(publisher, "T", range(500, 4550))
            publisher.wait_for_sent_rows()
            assert publisher.stored == 4550
            for server in cluster.servers:
                server.kill()
            for i in range(2):
                shutil.rmtree(tmp_path / f"store{i}")
                shutil.copytree(tmp_path / f"copy{i}", tmp_path / f"store{i}")
            with ThreadPoolExecutor() as pool:
                list(pool.map(NatsServer.start, older))
            wait_until(lambda: has_leader(client, "T"))
            other.start()
            give(publisher, "T", range(4550, 6000))
            publisher.wait_for_sent_rows()
            publisher.check_nothing_lost()
        assert "stream 'T' has lost 4050 rows that it had acknowledged to this task: it ended at" in str(raised.value)


# Between the attempts of a micro-batch


@pytest.fixture
def options(restorable: Restorable) -> WriteOptions:
    options = target_options(restorable, streaming=True)
    prepare_write_and_make_marks(options, streaming=True)
    return options


def run_of(number: int) -> WriteTask:
    """The task of a query that was started again, which knows nothing of what it did before."""
    return WriteTask(QUERY, None, 0, run=f"run {number}")


def run_batch(options: WriteOptions, task: WriteTask, batch: int, rows: range | None = None) -> None:
    """Run a micro-batch, by default the one with the rows of its number."""
    rows = range(100 * batch, 100 * batch + 100) if rows is None else rows
    write_partition(options, replace(task, batch=str(batch)), number_batches(rows))


def state_of(restorable: Restorable) -> dict[str, Any]:
    with NatsPy(restorable.server.url) as client:
        found = [m for m in client.read_stream("KV_SPARK_NATS") if m.subject == f"$KV.SPARK_NATS.{QUERY}.0"]
    state: dict[str, Any] = json.loads(found[-1].payload)
    return state


def note(restorable: Restorable, state: dict[str, Any] | None, partition: int = 0) -> None:
    """Have the state bucket hold something else, as when it alone is put back."""
    marked: dict[str, Any] = {} if state else {"headers": {"KV-Operation": "DEL"}}
    with NatsPy(restorable.server.url) as client:
        payload = json.dumps(state).encode() if state else b""
        client.publish_acked([(f"$KV.SPARK_NATS.{QUERY}.{partition}", payload, marked.get("headers"))])


class Lossy:
    """A target of which there may be an older copy, while the state bucket of the same server keeps what it has."""

    def __init__(self, restorable: Restorable, directory: Path) -> None:
        self.restorable = restorable
        self._copy = directory / "target"
        self._target = restorable.store / "jetstream" / "$G" / "streams" / "T"

    def snapshot(self) -> None:
        copy_store(self.restorable.server, self._target, self._copy)

    def restore(self) -> None:
        put_back(self.restorable.server, self._target, self._copy)


@pytest.fixture
def lossy(restorable: Restorable, tmp_path: Path) -> Lossy:
    return Lossy(restorable, tmp_path)


@pytest.mark.promise("durability#target-of-a-sink")
@pytest.mark.parametrize(
    ("others", "older"), [(0, False), (50, False), (100, False), (300, False), (0, True), (50, True)]
)
def test_a_micro_batch_whose_target_was_put_back_is_stored_exactly_once_however_often_it_is_replayed(
    lossy: Lossy, options: WriteOptions, caplog: pytest.LogCaptureFixture, others: int, older: bool
) -> None:
    restorable = lossy.restorable
    run_batch(options, run_of(1), 0)
    lossy.snapshot()
    run_batch(options, run_of(1), 1)
    run_batch(options, run_of(1), 2, range(200, 240))  # and then the driver was gone
    begun = state_of(restorable)
    assert begun["sequence"] == 200
    if older:
        note(restorable, {name: value for name, value in begun.items() if name != "timestamp"})
    lossy.restore()
    restorable.publish("T", others)
    for i in range(2, 5):
        run_batch(options, run_of(i), 2)
        restorable.publish("T", 1)
        assert restorable.stored("T") == once_each(range(100)) + once_each(range(200, 300))
    said = [record for record in caplog.records if "has lost" in record.message]
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING
    at = "" if older else f" (stored at {begun['timestamp']})"
    assert said[0].message == (
        "[NATS_TARGET_LOST_MESSAGES] "
        f"stream T has lost 100 acknowledged messages: it ended at sequence 200{at} when micro-batch 2 first began, "
        "and everything after sequence 100 is lost; lost rows of micro-batch 2 are stored again, lost rows of "
        "micro-batches before this one are not"
    )
    assert state_of(restorable)["sequence"] == 100


@pytest.mark.parametrize("others", [0, 300])
def test_a_target_that_was_put_back_behind_an_attempt_is_read_back_from_where_it_began(
    lossy: Lossy, options: WriteOptions, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    """What was there before the micro-batch is still there, so nothing is to be said."""
    restorable = lossy.restorable
    run_batch(options, run_of(1), 0)
    with pytest.raises(NatsError, match="gone"):
        write_partition(options, replace(run_of(1), batch="1"), failing(range(100, 130)))
    lossy.snapshot()
    run_batch(options, run_of(2), 1)
    lossy.restore()
    restorable.publish("T", others)
    for i in range(3, 5):
        run_batch(options, run_of(i), 1)
        assert restorable.stored("T") == once_each(range(200))
    assert "has lost" not in caplog.text


def failing(rows: range) -> Iterator[pa.RecordBatch]:
    """Rows, and then the executor is gone."""
    yield from number_batches(rows, size=10)
    raise NatsError("gone")


def test_a_target_that_ends_before_the_last_micro_batch_is_noticed_by_the_next(
    lossy: Lossy, options: WriteOptions, caplog: pytest.LogCaptureFixture
) -> None:
    run_batch(options, run_of(1), 0)
    lossy.snapshot()
    run_batch(options, run_of(1), 1)
    run_batch(options, run_of(1), 2)
    begun = state_of(lossy.restorable)
    lossy.restore()
    run_batch(options, run_of(1), 3)
    (said,) = [record.message for record in caplog.records if "has lost" in record.message]
    assert said == (
        "[NATS_TARGET_LOST_END] "
        f"stream T has lost acknowledged messages: it ended at sequence 200 (stored at {begun['timestamp']}) when "
        "micro-batch 2 began, and now ends at 100; lost rows of micro-batches before this one are not stored again"
    )
    assert lossy.restorable.stored("T") == once_each(range(100)) + once_each(range(300, 400))


@pytest.mark.parametrize("others", [0, 300])
def test_a_task_of_a_batch_write_is_tried_again_after_its_target_was_put_back(
    lossy: Lossy, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    restorable = lossy.restorable
    restorable.publish("T", 20)
    lossy.snapshot()
    restorable.publish("T", 30)
    options = target_options(restorable, streaming=False)
    task = WriteTask("5" * 32, None, 0, 0, prepare_write_and_make_marks(options, streaming=False))
    write_partition(options, task, number_batches(range(40)))
    lossy.restore()
    restorable.publish("T", others)
    for attempt in range(1, 4):
        write_partition(options, replace(task, attempt=attempt), number_batches(range(100)))
        assert restorable.stored("T") == once_each(range(100))
    assert "when this write first began, and everything after sequence 20 is lost; lost rows of" in caplog.text


def test_replays_beside_other_publishers_raise_no_alarm(
    restorable: Restorable, options: WriteOptions, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(4):
        for i in range(3):
            run_batch(options, run_of(10 * batch + i), batch)
            restorable.publish("T", 7)
            if i:
                restorable.server.kill()
                restorable.server.start()
    assert restorable.stored("T") == once_each(range(400))
    assert not [record for record in caplog.records if record.name.startswith("spark_nats.kinds.streams.write")]


# A state bucket that was put back


@pytest.mark.promise("durability#state-of-a-sink")
def test_a_bucket_that_was_put_back_is_an_error_and_no_duplicates(
    restorable: Restorable, options: WriteOptions
) -> None:
    states: list[dict[str, Any] | None] = [None]
    for batch in range(4):
        run_batch(options, run_of(1), batch)
        states.append(state_of(restorable))
    for known, older in enumerate(states[:-1]):  # nothing is known, or a micro-batch from 0 to 2
        note(restorable, older)
        with pytest.raises(DataLossError) as raised:
            run_batch(options, run_of(2), 3)
        said = str(raised.value)
        why = {
            0: "it does not know partition 0 of micro-batch 3, of which stream 'T' has 100 rows",
            1: "the last micro-batch that it knows is 0",
            2: "the last micro-batch that it knows is 1",
            3: "it does not know partition 0 of micro-batch 3, of which stream 'T' has 100 rows",
        }[known]
        assert said == (
            "the state bucket 'SPARK_NATS' is older than the query's checkpoint, which is at micro-batch 3: "
            f"{why} (was it restored from a copy, do its values expire (max_age), has the query run without "
            "deduplicate=exact meanwhile, or has another query run with a copy of this checkpoint?); put the right "
            "copy of the bucket back; of queries with copies of one checkpoint, run only the one that has gone "
            "furthest; or set the option 'failOnDataLoss' to false for this micro-batch, of which rows may then be "
            "stored twice"
        )
    assert restorable.stored("T") == once_each(range(400))
    note(restorable, states[-1])  # the right copy
    run_batch(options, run_of(3), 3)
    run_batch(options, run_of(3), 4)
    assert restorable.stored("T") == once_each(range(500))


@pytest.mark.parametrize("known", [None, 0, 2])
def test_with_a_bucket_that_was_put_back_the_query_goes_on_if_told_so(
    restorable: Restorable, caplog: pytest.LogCaptureFixture, known: int | None
) -> None:
    """What is among the stream's last messages is not stored again, however often the micro-batch is replayed."""
    options = target_options(restorable, streaming=True, failOnDataLoss=False)
    prepare_write_and_make_marks(options, streaming=True)
    states: dict[int | None, dict[str, Any] | None] = {None: None}
    for batch in range(3):
        run_batch(options, run_of(1), batch)
        states[batch] = state_of(restorable)
    run_batch(options, run_of(1), 3, range(300, 350))
    restorable.publish("T", 10)
    note(restorable, states[known])
    for i in range(2, 5):
        run_batch(options, run_of(i), 3)
        assert restorable.stored("T") == once_each(range(400))
    run_batch(options, run_of(5), 4)
    assert restorable.stored("T") == once_each(range(500))
    (said,) = [record.message for record in caplog.records if "is older than" in record.message]
    assert "the query continues with all rows of partition 0 of micro-batch 3 that are not among the last" in said


def test_two_micro_batches_are_not_replayed_with_a_bucket_that_was_put_back(
    restorable: Restorable, tmp_path: Path, options: WriteOptions
) -> None:
    """The whole server is exchanged but for the target, as where the bucket is kept elsewhere."""
    target, kept = restorable.store / "jetstream" / "$G" / "streams" / "T", tmp_path / "kept"
    run_batch(options, run_of(1), 0)
    restorable.snapshot()
    run_batch(options, run_of(1), 1)
    run_batch(options, run_of(1), 2)
    copy_store(restorable.server, target, kept)
    restorable.restore()
    put_back(restorable.server, target, kept)
    for batch in (1, 2):
        with pytest.raises(DataLossError, match="the state bucket 'SPARK_NATS' is older"):
            run_batch(options, run_of(2), batch)
    assert restorable.stored("T") == once_each(range(300))


def test_what_a_task_has_noted_itself_is_not_denied(server_factory: ServerFactory, tmp_path: Path) -> None:
    """Also where nothing can be read back, as from a work queue."""
    restorable = Restorable(server_factory(store_dir=tmp_path / "store"), tmp_path)
    with NatsPy(restorable.server.url) as client:
        client.create_stream("T", retention="workqueue", **FORGETFUL)
    options = target_options(restorable, streaming=True)
    prepare_write_and_make_marks(options, streaming=True)
    run_batch(options, run_of(1), 0)
    before = state_of(restorable)
    run_batch(options, run_of(1), 1)
    note(restorable, before)
    with pytest.raises(DataLossError, match="it does not know micro-batch 1, which this process has noted there"):
        run_batch(options, run_of(1), 1)


def test_a_work_queue_that_was_put_back_cannot_be_read_back(
    server_factory: ServerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it ends before the place where the micro-batch began: rows of it may have been stored since."""
    restorable = Restorable(server_factory(store_dir=tmp_path / "store"), tmp_path)
    with NatsPy(restorable.server.url) as client:
        client.create_stream("T", retention="workqueue", **FORGETFUL)
    options = target_options(restorable, streaming=True)
    prepare_write_and_make_marks(options, streaming=True)
    lossy = Lossy(restorable, tmp_path)
    run_batch(options, run_of(1), 0)
    lossy.snapshot()
    run_batch(options, run_of(1), 1)
    run_batch(options, run_of(1), 2)
    begun = time.monotonic()
    lossy.restore()
    wait_until(lambda: time.monotonic() > begun + 0.2)  # then the stream has forgotten ids
    with pytest.raises(DataLossError, match="has workqueue retention, and cannot be read back"):
        run_batch(options, run_of(2), 2)
    assert "it ended at sequence 200 (stored at " in caplog.text
    assert "when micro-batch 2 began, and now ends at 100" in caplog.text


# What is no sign of an older bucket


def test_partitions_that_come_and_go_raise_no_alarm(restorable: Restorable, options: WriteOptions) -> None:
    split = {0: 1, 1: 3, 2: 3, 3: 1, 4: 1, 5: 3, 6: 4}
    for batch, partitions in split.items():
        for partition in range(partitions):
            task = replace(run_of(batch % 2), partition=partition)
            run_batch(options, task, batch, range(1000 * batch + 100 * partition, 1000 * batch + 100 * partition + 100))
    assert restorable.stored("T").total() == 100 * sum(split.values())


def test_a_query_that_has_relied_on_the_window_goes_on_exactly(restorable: Restorable, options: WriteOptions) -> None:
    """The stream shows what is new."""
    window = target_options(restorable, streaming=True, deduplicate="window")
    for batch in range(3):
        run_batch(window, run_of(1), batch)
    run_batch(options, run_of(2), 3)
    run_batch(options, run_of(3), 3)
    assert restorable.stored("T") == once_each(range(400))


def test_a_micro_batch_that_was_begun_with_the_window_only_is_not_stored_twice(
    restorable: Restorable, options: WriteOptions
) -> None:
    window = target_options(restorable, streaming=True, deduplicate="window")
    run_batch(window, run_of(1), 0)
    run_batch(window, run_of(1), 1, range(100, 150))
    with pytest.raises(DataLossError, match="is older than .* has the query run without deduplicate=exact"):
        run_batch(options, run_of(2), 1)
    run_batch(replace(options, fail_on_data_loss=False), run_of(2), 1)
    assert restorable.stored("T") == once_each(range(200))


def test_a_query_that_turns_to_another_stream_raises_no_alarm(restorable: Restorable, options: WriteOptions) -> None:
    with NatsPy(restorable.server.url) as client:
        client.create_stream("U", **FORGETFUL)
    run_batch(options, run_of(1), 0)
    other = target_options(restorable, streaming=True, stream="U", subject="U.x")
    for batch in (1, 2):
        run_batch(other, run_of(2), batch)
    run_batch(options, run_of(3), 3)
    assert restorable.stored("U") == once_each(range(100, 300))
    assert restorable.stored("T") == once_each(range(100)) + once_each(range(300, 400))


@pytest.mark.long("spark_nats/kinds/streams/write/*", races="elections, while rows are in flight")
def test_a_cluster_whose_leaders_step_down_raises_no_alarm(
    cluster: Cluster, unique: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "CONFIRMATION", 0.5)
    given = {"servers": cluster.urls, "stream": unique, "subject": f"{unique}.x", "stateBucket": unique}
    options = parse_write_options(given, streaming=True)
    with NatsPy(cluster.urls.split(",")) as client:
        client.create_in_cluster(unique, num_replicas=3)
        prepare_write_and_make_marks(options, streaming=True)

        def step_down(start: int) -> None:
            if start % 1000 == 0:
                for stream in (unique, f"KV_{unique}"):
                    wait_until(partial(is_whole, client, stream))
                    stepped_down(client, stream)

        for batch in range(3):
            rows = range(2000 * batch, 2000 * batch + 2000)
            for i in range(3):
                task = WriteTask(QUERY, str(batch), 0, run=f"run {batch + i}")
                write_partition(options, task, number_batches(rows, step_down, size=200))
        wait_until(lambda: is_whole(client, unique))
        assert Counter(client.stored_texts(unique)) == once_each(range(6000))
    assert not [record for record in caplog.records if record.name.startswith("spark_nats.kinds.streams.write")]
