"""A server that comes back with an older copy of its store, while tasks write to it and between their attempts.

What is lost is said, and what has ids is stored exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_nats.embedded import NatsServer
from spark_nats.errors import PublishError, Remedy
from spark_nats.options import WriteOptions, parse_write
from spark_nats.sink.partitions import prepare, write_partition
from spark_nats.sink.tasks import Task
from tests.integration.test_settled_publishing import give, publishing
from tests.nats_py import NatsPy, wait_until
from tests.servers import ServerFactory, copy_store, put_back

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


def options_of(restorable: Restorable, streaming: bool, **options: Any) -> WriteOptions:
    given = {"servers": restorable.server.url, "stream": "T", "subject": "T.x", "deduplicate": "exact", **options}
    return parse_write({name: str(value) for name, value in given.items()}, streaming=streaming)


def batches(rows: range, harm: Callable[[int], object] = lambda _: None, size: int = 50) -> Iterator[pa.RecordBatch]:
    """Rows in batches of a size; before each of them, and at the end, something may happen."""
    for start in range(rows.start, rows.stop, size):
        harm(start)
        payloads = [str(i) for i in range(start, min(start + size, rows.stop))]
        yield pa.RecordBatch.from_pydict({"payload": pa.array(payloads)})
    harm(rows.stop)


def texts(rows: range) -> Counter[str]:
    return Counter(map(str, rows))


# While a task writes


@contextmanager
def losing(restorable: Restorable, with_ids: bool = True) -> Iterator[Any]:
    """A publisher of which 4,550 rows are acknowledged, of which the server's copy has 500."""
    with publishing(restorable.server.url, "T") as publisher:
        give(publisher, "T", range(500), with_ids)
        publisher.drain()
        restorable.snapshot()
        give(publisher, "T", range(500, 4550), with_ids)
        publisher.drain()
        assert publisher.confirmed == restorable.last("T") == 4550
        yield publisher


@pytest.mark.parametrize("others", [0, 100, 5000])
def test_a_task_fails_whose_acknowledged_rows_are_lost_and_counts_them(restorable: Restorable, others: int) -> None:
    with pytest.raises(PublishError) as raised, losing(restorable) as publisher:
        restorable.restore()
        restorable.publish("T", others)
        give(publisher, "T", range(4550, 6000))
        publisher.drain()
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
        publisher.drain()
    assert "has lost 4050 rows" in str(raised.value)
    assert "they have no message ids" in str(raised.value)
    assert raised.value.remedies == (Remedy.MESSAGE_IDS,)


@pytest.mark.parametrize("others", [0, 5000])
def test_a_loss_behind_the_last_acknowledgement_is_noticed_at_the_end(restorable: Restorable, others: int) -> None:
    with pytest.raises(PublishError, match="has lost 4050 rows"), losing(restorable) as publisher:
        restorable.restore()
        restorable.publish("T", others)
        publisher.verify()


@pytest.mark.parametrize("config", [{"retention": "interest"}, {"max_msgs": 10}, {"max_age": 100_000_000}])
def test_messages_that_go_as_streams_have_it_are_no_loss(
    server_factory: ServerFactory, tmp_path: Path, config: dict[str, Any]
) -> None:
    server = server_factory(store_dir=tmp_path / "store")
    with NatsPy(server.url) as client:
        client.create_stream("T", **{**FORGETFUL, **config})
        with publishing(server.url, "T") as publisher:
            for start in range(0, 3000, 1000):
                give(publisher, "T", range(start, start + 1000))
                publisher.drain()
                if "max_age" in config:
                    wait_until(lambda: not client.stream_info("T")["state"]["messages"])
                server.kill()
                server.start()
            publisher.verify()
            assert publisher.confirmed == 3000


@pytest.mark.parametrize("others", [0, 1000])
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "micro-batch"])
def test_the_next_attempt_of_a_task_stores_what_was_lost_exactly_once(
    restorable: Restorable, streaming: bool, others: int
) -> None:
    options = options_of(restorable, streaming)
    mark = prepare(options, streaming=streaming)
    task = Task(QUERY, "0" if streaming else None, 0, 0, mark)

    def harm(given: int) -> None:
        if given == 500:
            wait_until(lambda: restorable.last("T") == 500)
            restorable.snapshot()
        if given == 3000:
            wait_until(lambda: restorable.last("T") == 3000)
            restorable.restore()
            restorable.publish("T", others)

    with pytest.raises(PublishError, match="has lost .* rows that it had acknowledged"):
        write_partition(options, task, batches(range(6000), harm))
    assert 0 < restorable.stored("T").total() < 1000
    write_partition(options, replace(task, attempt=1), batches(range(6000)))
    assert restorable.stored("T") == texts(range(6000))
