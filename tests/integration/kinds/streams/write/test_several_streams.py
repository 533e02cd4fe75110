"""One write to several streams: each row goes to the one that listens on its subject, and each is exact by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_nats.client import connect
from spark_nats.errors import InvalidRowError, PublishError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.keyvalue import Bucket, create_bucket_if_missing
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import replay
from spark_nats.kinds.streams.write.partitions import write_partition
from spark_nats.kinds.streams.write.tasks import WriteTask
from tests.connections import options_for, write_options
from tests.integration.kinds.streams.write.test_settled_replays import Stopped, forget
from tests.integration.support import finish, forget_last_commit, nats, save, sentence_of, table, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

TASK = WriteTask("3f81c09a-6f2e-4b6c-9d55-0a1b2c3d4e5f", "7", 0)
FORGETFUL = {"duplicate_window": 100_000_000}  # nanoseconds, the least that the server allows


@pytest.fixture(autouse=True, scope="module")
def state_bucket(nats_server: Server) -> None:
    """Make the bucket that the driver would make."""
    with connect(options_for(nats_server.url)) as connection:
        create_bucket_if_missing(JetStream(connection), "SPARK_NATS")


@pytest.fixture
def three(nats_py: NatsPy, unique: str) -> list[str]:
    """Streams X_0, X_1 and X_2, which listen on x.0.>, x.1.> and x.2.>, and know ids for a moment only."""
    names = [f"{unique}_{i}" for i in range(3)]
    for i, name in enumerate(names):
        nats_py.create_stream(name, [f"{unique}.{i}.>", f"{name}.>"], **FORGETFUL)
    return names


def rows_for(unique: str, count: int, streams: int = 3) -> pa.Table:
    return table(
        subject=[f"{unique}.{i * 7 % streams}.a" for i in range(count)], payload=[str(i) for i in range(count)]
    )


def stored(client: NatsPy, names: list[str]) -> list[list[int]]:
    return [[int(m.payload) for m in client.read_stream(name) if m.subject.endswith(".a")] for name in names]


def expected(count: int, streams: int = 3) -> list[list[int]]:
    return [[i for i in range(count) if i * 7 % streams == place] for place in range(streams)]


def options_of(server: Server, names: list[str], streaming: bool = True, **more: Any) -> WriteOptions:
    return write_options(server.url, streaming, stream=",".join(names), **more)


def batches_of(rows: pa.Table, size: int = 10, stop_after: int | None = None) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(rows.to_batches(size)):
        if number * size == stop_after:
            raise Stopped
        yield batch
    if stop_after is not None:
        raise Stopped


@pytest.mark.promise("writing#to-several-streams")
@pytest.mark.parametrize("by", ["names", "pattern"])
@pytest.mark.parametrize("deduplicate", ["exact", "window", "false"])
def test_each_row_is_stored_once_in_the_stream_that_listens_and_in_order(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    three: list[str],
    by: str,
    deduplicate: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    named = {"stream": ", ".join(reversed(three))} if by == "names" else {"streamPattern": f"{unique}_[0-9]"}
    write(nats_server, rows_for(unique, 1000), **named, deduplicate=deduplicate)
    assert stored(nats_py, three) == expected(1000)
    assert [f"is written to {name}: 33" in caplog.text for name in three] == [True] * 3


@pytest.mark.promise("writing#to-several-streams")
@pytest.mark.parametrize("after", [0, 30, 90], ids=["before the first row", "in the middle", "all stored"])
def test_a_micro_batch_that_comes_back_late_is_stored_once_in_each_stream(
    nats_server: Server, nats_py: NatsPy, unique: str, three: list[str], after: int
) -> None:
    options, rows = options_of(nats_server, three), rows_for(unique, 90)
    with pytest.raises(Stopped):
        write_partition(options, TASK, batches_of(rows, stop_after=after))
    wait_until(lambda: sum(map(len, stored(nats_py, three))) == after)
    for name in three:
        forget(nats_py, name)
    written = write_partition(options, TASK, batches_of(rows, 7))
    assert [sorted(each) for each in stored(nats_py, three)] == expected(90)
    assert (written.counts.rows, written.counts.duplicates, written.unsure_query) == (90, after, TASK.query)


@pytest.mark.parametrize("alone_first", [True, False])
def test_a_query_may_write_to_one_stream_alone_at_first_and_to_several_later(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    three: list[str],
    alone_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, then = (three[:1], three) if alone_first else (three, three[:1])
    rows = table(subject=[f"{unique}.0.a"] * 50, payload=[str(i) for i in range(50)])
    with pytest.raises(Stopped):
        write_partition(options_of(nats_server, first), TASK, batches_of(rows, stop_after=30))
    wait_until(lambda: len(stored(nats_py, three)[0]) == 30)
    forget(nats_py, three[0])
    monkeypatch.setattr(replay, "_noted", {})  # another process
    write_partition(options_of(nats_server, then), TASK, batches_of(rows))
    assert stored(nats_py, three)[0] == list(range(50))


def test_the_notes_of_the_streams_are_apart(
    nats_server: Server, nats_py: NatsPy, unique: str, three: list[str]
) -> None:
    task = WriteTask(f"{unique:0>36}", "0", 4)
    write_partition(options_of(nats_server, three), task, batches_of(rows_for(unique, 30)))
    with connect(options_for(nats_server.url)) as connection:
        bucket = Bucket(JetStream(connection), "SPARK_NATS")
        notes = [json.loads(bucket.get(key).value) for key in bucket.ask_keys_with_deleted(f"{task.query}.>")]
    assert sorted((note["stream"], note["batch"], note["sequence"]) for note in notes) == [
        (each, 0, 0) for each in three
    ]


@pytest.mark.promise("writing#to-several-streams")
@pytest.mark.parametrize("row", [0, 25])
def test_a_row_that_no_stream_listens_to_is_named_and_nothing_of_its_batch_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str, three: list[str], row: int
) -> None:
    rows = rows_for(unique, 40).to_pylist()
    rows[row]["subject"] = f"{unique}.7.a"
    error = sentence_of(
        lambda: write_partition(
            options_of(nats_server, three),
            TASK,
            batches_of(pa.Table.from_pylist(rows)),
        )
    )
    sent = "nothing was sent" if not row else "the 20 rows before its batch were sent"
    named = ", ".join(map(repr, three))
    where = f"column 'subject' is '{unique}.7.a', on which none of the streams {named} listens"
    assert error == f"InvalidRowError: row {row} of the task cannot be sent: {where}; {sent}"
    assert sum(map(len, stored(nats_py, three))) == row // 10 * 10


def test_a_row_that_breaks_a_rule_is_named_by_its_place_in_the_task(
    nats_server: Server, nats_py: NatsPy, unique: str, three: list[str]
) -> None:
    rows = rows_for(unique, 40).to_pylist()
    rows[27]["payload"] = None
    with pytest.raises(InvalidRowError, match=r"row 27 of the task .* the 20 rows before its batch were sent"):
        write_partition(options_of(nats_server, three), TASK, batches_of(pa.Table.from_pylist(rows)))
    assert sum(map(len, stored(nats_py, three))) == 20  # nothing of its batch, in whichever stream


@pytest.mark.promise("writing#to-several-streams")
@pytest.mark.parametrize("stop_after", [50, None], ids=["in the middle", "at its end"])
def test_bad_rows_of_each_stream_and_those_of_none_are_set_aside_once(
    nats_server: Server, nats_py: NatsPy, unique: str, three: list[str], stop_after: int | None
) -> None:
    nats_py.create_stream(f"BAD_{unique}", [f"bad_{unique}.>", f"BAD_{unique}.>"], **FORGETFUL)
    rows = rows_for(unique, 60).to_pylist()
    for row in (5, 6, 7):
        rows[row]["payload"] = None
    rows[20]["subject"] = rows[21]["subject"] = "nobody.listens"
    options = options_of(nats_server, three, badRows="stream", badRowsStream=f"BAD_{unique}")
    with suppress(Stopped):
        write_partition(options, TASK, batches_of(pa.Table.from_pylist(rows), stop_after=stop_after))
    for name in (*three, f"BAD_{unique}"):
        forget(nats_py, name)
    written = write_partition(options, TASK, batches_of(pa.Table.from_pylist(rows)))
    assert (written.counts.rows, written.counts.bad) == (55, 5)
    good = [i for i in range(60) if i not in (5, 6, 7, 20, 21)]
    assert sorted(chain(*stored(nats_py, three))) == good
    letters = [m for m in nats_py.read_stream(f"BAD_{unique}") if m.headers and "Bad-Row-Target" in m.headers]
    targets = Counter(m.headers["Bad-Row-Target"][0] for m in letters if m.headers)
    assert targets == Counter({three[0]: 3, three[1]: 1, three[2]: 1})
    reasons = Counter(m.headers["Bad-Row-Reason"][0] for m in letters if m.headers)
    assert sum(count for reason, count in reasons.items() if "none of the streams" in reason) == 2


def test_a_stream_that_was_full_gets_the_rest_by_a_replay_and_the_others_nothing_twice(
    nats_server: Server, nats_py: NatsPy, unique: str, three: list[str]
) -> None:
    config = nats_py.stream_info(three[1])["config"]
    nats_py.api(f"STREAM.UPDATE.{three[1]}", {**config, "max_msgs": 5, "discard": "new"})
    options, rows = options_of(nats_server, three), rows_for(unique, 90)
    with pytest.raises(PublishError, match="maximum messages exceeded"):
        write_partition(options, TASK, batches_of(rows))
    nats_py.api(f"STREAM.UPDATE.{three[1]}", config)
    write_partition(options, TASK, batches_of(rows))
    assert [sorted(each) for each in stored(nats_py, three)] == expected(90)


def refused(server: Server, **options: Any) -> str:
    return sentence_of(lambda: write(server, table(subject=["a"], payload=["x"]), **options))


@pytest.mark.promise("writing#to-several-streams")
def test_targets_that_cannot_be_told_apart_are_refused_before_anything_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str, three: list[str]
) -> None:
    nats_py.create_stream(f"{unique}_copy", [f"{unique}_copy.>"], sources=[{"name": three[0]}])
    nats_py.create_stream(f"{unique}_none", [], sources=[{"name": three[0]}])
    names = ",".join(three)
    assert "listens on no subject" in refused(nats_server, stream=f"{names},{unique}_none")
    assert f"copies what stream '{three[0]}' stores" in refused(nats_server, stream=f"{names},{unique}_copy")
    assert "does not exist" in refused(nats_server, stream=f"{names},{unique}_9")
    assert "no stream that listens on a subject has a name" in refused(nats_server, streamPattern=f"{unique}x.*")
    assert "stores the rows of a partition together" in refused(nats_server, stream=names, atomic=True)
    assert "creates one stream" in refused(nats_server, stream=names, createStream=True, subject="a")
    assert "does not say what to create" in refused(nats_server, streamPattern=names, createStream=True, subject="a")
    assert sum(map(len, stored(nats_py, three))) == 0


def test_streams_of_different_retention_are_written_together(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(f"{unique}_0", [f"{unique}.0.>"], retention="workqueue")
    nats_py.create_stream(f"{unique}_1", [f"{unique}.1.>"], retention="interest")
    nats_py.create_stream(f"{unique}_2", [f"{unique}.2.>"])
    written = write_partition(
        write_options(nats_server.url, True, streamPattern=f"{unique}_."), TASK, batches_of(rows_for(unique, 30))
    )
    assert written.counts.rows == 30
    assert [nats_py.held(f"{unique}_{i}") for i in range(3)] == [10, 0, 10]  # nobody is interested


@pytest.mark.spark
@pytest.mark.promise("writing#to-several-streams")
def test_spark_writes_a_query_to_several_streams_and_a_repeated_micro_batch_stores_nothing_twice(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str, three: list[str], tmp_path: Path
) -> None:
    nats_py.create_stream(unique, [f"{unique}.in"])
    nats_py.publish_acked([(f"{unique}.in", str(i).encode()) for i in range(300)])
    options = {"stream": unique, "maxOffsetsPerTrigger": 100, "startingOffsets": "earliest"}
    read = nats(spark.readStream, nats_server, **options).load()
    routed = read.selectExpr(f"concat('{unique}.', sequence % 3, '.a') AS subject", "payload")

    def run() -> None:
        query = nats(routed.writeStream, nats_server, streamPattern=f"{unique}_[0-9]")
        finish(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())

    run()
    forget_last_commit(tmp_path)
    for name in three:
        forget(nats_py, name)
    run()
    assert sorted(chain(*stored(nats_py, three))) == list(range(300))
    save(routed_batch(spark, unique), nats_server, stream=",".join(three), deduplicate="exact")
    assert sum(map(len, stored(nats_py, three))) == 600


def routed_batch(spark: SparkSession, unique: str) -> Any:
    return spark.range(300).selectExpr(f"concat('{unique}.', id % 3, '.a') AS subject", "string(id) AS payload")
