"""What tasks of the sink have counted when the driver commits."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_nats.kinds.streams.write.columns import CheckedRows
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.sink import sink_of
from spark_nats.kinds.streams.write.tasks import Counts, WriteTask, Written, sum_counts
from tests.connections import write_options
from tests.integration.kinds.buckets.test_bucket_write import Kv
from tests.integration.support import run_task, table
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, ServerFactory

SETTINGS = {"deduplicate": "window", "reconnectWait": "20ms"}


def test_counts_of_tasks_are_added_and_a_task_without_a_message_has_none() -> None:
    messages = [Written(Counts(3, 30, 1, 0, 2)), None, Written(Counts(4, 40, 0, 5, 0), "query")]
    assert sum_counts(messages) == Counts(rows=7, bytes=70, duplicates=1, skipped=5, reconnects=2)
    assert sum_counts([]) == Counts()


def test_counts_come_from_executors_as_they_are() -> None:
    assert pickle.loads(pickle.dumps(Written(Counts(3, 30)))) == Written(Counts(3, 30))


def test_a_task_counts_its_rows_and_the_bytes_of_their_headers_and_payloads(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    rows = table(subject=[f"{unique}.a"] * 250, payload=[b"12345678"] * 250)
    counts = run_task(nats_server.url, rows, stream=unique).counts
    held = nats_py.stream_info(unique)["state"]["bytes"]  # with the subjects, and what the store adds
    assert (counts.rows, counts.duplicates, counts.skipped, counts.reconnects) == (250, 0, 0, 0)
    assert 250 * 8 < counts.bytes < held
    again = run_task(nats_server.url, rows, stream=unique).counts
    assert again == Counts(rows=250, duplicates=250)  # nothing was sent


def test_rows_of_core_nats_are_counted(nats_server: Server, unique: str) -> None:
    options = write_options(nats_server.url, streaming=False, subject=unique)
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"1234", b"", b"12"])})
    assert write_partition(options, WriteTask("", None, 0), iter([batch])).counts == Counts(rows=3, bytes=6)


def test_the_bytes_of_a_part_of_a_batch_are_those_of_its_rows() -> None:
    payloads, headers = pa.array([b"1", b"22", b"333"]), pa.array([b"a", None, b"cc"])
    rows = CheckedRows(pa.array(["s"] * 3), payloads, headers, None, pa.nulls(3, pa.string()))
    assert rows.sizes.tolist() == [2, 2, 5]
    assert rows._cut(1, 3).sizes.tolist() == [2, 5]


@pytest.mark.needs("atomic", only="true")
@pytest.mark.parametrize("atomic", ["true", "false"])
def test_rows_that_are_stored_together_are_counted(
    nats_server: Server, nats_py: NatsPy, unique: str, atomic: str
) -> None:
    nats_py.create_stream(unique, allow_atomic=True)
    rows = table(subject=[f"{unique}.a"] * 3, payload=[b"12345678"] * 3)
    counts = run_task(nats_server.url, rows, stream=unique, atomic=atomic).counts
    assert counts.rows == 3
    assert counts.bytes > 24


def test_rows_that_were_skipped_for_conflicts_are_counted_apart(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    Kv(nats_py, unique, history=1).put("k0", b"theirs")
    rows = pa.table({"key": ["k0", "k1"], "value": [b"ours"] * 2, "expected_revision": [0, 0]})
    options = write_options(nats_server.url, bucket=unique, onConflict="skip", streaming=False)
    counts = write_partition(options, WriteTask("", None, 0), iter(rows.to_batches()), sink_of(options)).counts
    assert (counts.rows, counts.skipped) == (1, 1)


def test_a_task_counts_how_often_it_went_on_over_another_connection(server_factory: ServerFactory, unique: str) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream(unique)
    options = write_options(server.url, False, stream=unique, subject=f"{unique}.a", **SETTINGS)

    def batches() -> Iterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"x"])})
        for _ in range(3):
            yield batch
            server.kill()
            server.start()

    counts = write_partition(options, WriteTask(unique, None, 0), batches()).counts
    assert counts.rows == 3
    assert counts.reconnects >= 1


def test_a_server_that_is_away_when_a_task_begins_is_one_reconnect(
    server_factory: ServerFactory, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream(unique)
    options = write_options(server.url, False, stream=unique, subject=f"{unique}.a", **SETTINGS)
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"x"])})
        task = pool.submit(write_partition, options, WriteTask(unique, None, 0), iter([batch]))
        wait_until(lambda: "[NATS_TRYING_AGAIN]" in caplog.text)
        server.start()
        counts = task.result(timeout=60).counts
    assert (counts.rows, counts.reconnects) == (1, 1)
