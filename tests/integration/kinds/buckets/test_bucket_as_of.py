"""A KV bucket as of one moment: a revision, a time, or the latest one, with nats-py's KV as the other side."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from spark_nats.errors import JetStreamError
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.delivering import Delivered
from spark_nats.kinds.buckets import as_of
from spark_nats.kinds.buckets.as_of import LatestReader, SnapshotBuffer
from spark_nats.kinds.buckets.entries import Entries
from tests.integration.forwarding import ForwardedApi
from tests.integration.support import batch_reader, nats, read, sentence_of
from tests.nats_py import NatsPy
from tests.servers import OLDER_BINARY, Cluster, Server, ServerFactory

pytestmark = pytest.mark.timeout(150)

ROW = (
    StructType()
    .add("key", StringType())
    .add("value", BinaryType())
    .add("revision", LongType())
    .add("created", TimestampType())
    .add("operation", StringType())
)
DELETE = {"KV-Operation": "DEL"}
PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}


def bucket(client: NatsPy, name: str, **config: Any) -> KeyValue:
    """Make a bucket as nats-py does."""
    return client.run(client.nats.jetstream().create_key_value(KeyValueConfig(bucket=name, **config)))


def moment(server: Server | str, name: str, **options: Any) -> dict[str, bytes]:
    """What a read at a moment finds, each key once."""
    rows = read(server, ROW, bucket=name, **options)
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


class Writer:
    """Puts and deletes keys of a bucket, as its only writer, and knows what each revision was."""

    def __init__(self, client: NatsPy, name: str, keys: Sequence[str], seed: int = 0) -> None:
        self._client = client
        self._name = name
        self._keys = keys
        self._random = random.Random(seed)
        self.log: list[tuple[str, bytes | None]] = []  # of revision 1, 2, …: the key, and its value unless deleted

    def write(self, count: int) -> None:
        """Write so many entries, one in ten a deletion."""
        entries: list[tuple[str, bytes, dict[str, str] | None]] = []
        for _ in range(count):
            key, n = self._random.choice(self._keys), len(self.log) + 1
            header = self._random.choice([None] * 18 + [DELETE, PURGE])
            self.log.append((key, None if header else str(n).encode()))
            entries.append((f"$KV.{self._name}.{key}", b"" if header else str(n).encode(), header))
        self._client.publish_acked(entries)

    def held(self, revision: int) -> dict[str, bytes]:
        """What the bucket held at a revision."""
        last = dict(self.log[:revision])
        return {key: value for key, value in last.items() if value is not None}


@contextmanager
def beside(action: Callable[[], object], times: int) -> Iterator[None]:
    """Do something so many times, without a pause, beside the block.

    It has an end, since whoever reads a moment may not find one while others write faster than it reads.
    """

    def run() -> None:
        for _ in range(times):
            action()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run)
        yield
        done.result()


def store_together(client: NatsPy, name: str, values: dict[str, int], commit: str = "1") -> None:
    """Store the values of several keys in one atomic batch; with `eob` its last message does not say that it is."""
    batch, last = secrets.token_hex(8), len(values)
    messages = [
        (f"$KV.{name}.{key}", str(value).encode(), {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)})
        for number, (key, value) in enumerate(values.items(), 1)
    ]
    if commit == "eob":
        messages.append((f"$KV.{name}.end", b"", {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(last + 1)}))
    client.publish_many(messages[:-1])
    subject, payload, headers = messages[-1]
    answer = client.request(subject, payload, headers={**headers, "Nats-Batch-Commit": commit})
    assert json.loads(answer.payload)["count"] == last


# A revision


def test_a_read_at_a_revision_has_what_the_bucket_held_then(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket(nats_py, unique, history=64)
    writer = Writer(nats_py, unique, [f"k.{i}" for i in range(20)])
    writer.write(200)
    assert moment(nats_server, unique, asOf=200) == writer.held(200)
    lost = 0
    for revision in (1, 2, 57, 120, 199):
        found, held = moment(nats_server, unique, asOf=revision, failOnDataLoss=False), writer.held(revision)
        assert found.items() <= held.items()
        if len(found) < len(held):  # purges have removed some
            lost += 1
            assert "DataLossError" in sentence_of(lambda at=revision: moment(nats_server, unique, asOf=at))
    assert lost


def test_a_revision_is_exact_where_nothing_was_removed(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=10)
    for i in range(5):
        nats_py.run(kv.put("a", str(i).encode()))
        nats_py.run(kv.put("b", str(-i).encode()))
    nats_py.run(kv.delete("b"))
    nats_py.run(kv.put("c", b"new"))
    assert moment(nats_server, unique, asOf=1) == {"a": b"0"}
    assert moment(nats_server, unique, asOf=6) == {"a": b"2", "b": b"-2"}
    assert moment(nats_server, unique, asOf=11) == {"a": b"4"}
    assert moment(nats_server, unique, asOf=12) == {"a": b"4", "c": b"new"}
    assert moment(nats_server, unique, asOf=11, keys="b,c") == {}
    kept = read(nats_server, ROW, bucket=unique, asOf=11, ignoreDeletes=False)
    assert {(row["key"], row["operation"], row["revision"]) for row in kept} == {("a", "PUT", 9), ("b", "DEL", 11)}
    assert len(batch_reader(nats_server, ROW, bucket=unique, asOf=6, keys="a,b").partitions()) == 2
    assert moment(nats_server, unique, asOf=6, keys="a,b") == {"a": b"2", "b": b"-2"}


def test_a_key_that_lost_its_entry_of_then_is_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=2)
    nats_py.run(kv.put("still", b"1"))
    nats_py.run(kv.put("written.often", b"2"))
    nats_py.run(kv.put("still", b"3"))
    for value in (b"4", b"5", b"6"):
        nats_py.run(kv.put("written.often", value))
    nats_py.run(kv.put("young", b"7"))
    said = sentence_of(lambda: moment(nats_server, unique, asOf=3))
    assert said == (
        f"DataLossError: it is not known what 1 keys of the bucket '{unique}', such as 'written.often', held at "
        "revision 3: their older revisions may have been removed (the bucket's history is 2); set the option "
        "'failOnDataLoss' to false to continue with the other rows"
    )
    # The young key was made later: had it had an older revision, it would be there.
    assert moment(nats_server, unique, asOf=3, failOnDataLoss=False) == {"still": b"3"}
    assert moment(nats_server, unique, asOf=3, keys="still") == {"still": b"3"}
    assert "revision 4" in sentence_of(lambda: moment(nats_server, unique, asOf=4))
    assert moment(nats_server, unique, asOf=5) == {"still": b"3", "written.often": b"5"}


def test_a_moment_of_which_nothing_is_kept_has_no_rows(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=1)
    for _ in range(2):
        nats_py.run(kv.put("a", b"1"))
        nats_py.run(kv.put("b", b"2"))
    assert moment(nats_server, unique, asOf=2, failOnDataLoss=False) == {}


def test_a_bucket_with_one_revision_of_a_key_knows_what_was_not_written_since(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    kv = bucket(nats_py, unique, history=1)
    for key in ("a", "b", "c", "a"):
        nats_py.run(kv.put(key, b"x"))
    assert moment(nats_server, unique, asOf=4) == {"a": b"x", "b": b"x", "c": b"x"}
    assert "such as 'a'" in sentence_of(lambda: moment(nats_server, unique, asOf=3))
    assert moment(nats_server, unique, asOf=3, failOnDataLoss=False) == {"b": b"x", "c": b"x"}
    assert moment(nats_server, unique, asOf=3, keys="b,c") == {"b": b"x", "c": b"x"}


def test_a_purge_leaves_it_unknown_what_its_key_held(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=5)
    nats_py.run(kv.put("a", b"1"))
    nats_py.run(kv.put("b", b"2"))
    nats_py.run(kv.purge("a"))
    assert "such as 'a'" in sentence_of(lambda: moment(nats_server, unique, asOf=2))
    assert moment(nats_server, unique, asOf=2, failOnDataLoss=False) == {"b": b"2"}
    assert moment(nats_server, unique, asOf=3) == {"b": b"2"}


def test_of_thousands_of_later_keys_those_are_named_that_may_be_older(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    kv = bucket(nats_py, unique, history=3)
    nats_py.put(unique, {f"old.{i}": b"1" for i in range(1_000)})
    nats_py.put(unique, {f"young.{i}": b"1" for i in range(3_000)})
    for key in ("old.1", "young.1"):
        nats_py.run(kv.purge(key))
        nats_py.run(kv.put(key, b"2"))
    for _ in range(3):
        nats_py.put(unique, {"old.2": b"3", "young.2": b"3"})
    said = sentence_of(lambda: moment(nats_server, unique, asOf=1_000))
    assert f"what 4 keys of the bucket '{unique}', such as 'old.1', held at revision 1000" in said
    found = moment(nats_server, unique, asOf=1_000, failOnDataLoss=False)
    assert found == {f"old.{i}": b"1" for i in range(1_000) if i not in (1, 2)}
    assert moment(nats_server, unique, asOf=1_000, keys="old.3,old.4,young.5") == {"old.3": b"1", "old.4": b"1"}


def test_a_revision_that_was_removed_with_its_key_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    kv = bucket(nats_py, unique, history=5)
    nats_py.run(kv.put("a", b"1"))
    nats_py.run(kv.put("b", b"2"))
    nats_py.run(kv.put("c", b"3"))
    nats_py.purge_stream(f"KV_{unique}", filter=f"$KV.{unique}.b")
    said = sentence_of(lambda: moment(nats_server, unique, asOf=2))
    assert said.startswith(f"DataLossError: the bucket '{unique}' no longer keeps revision 2, so it is not known")


def test_values_that_expire_make_an_earlier_moment_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=5, ttl=3600)
    nats_py.run(kv.put("a", b"1"))
    nats_py.run(kv.put("b", b"2"))
    assert moment(nats_server, unique, asOf=2) == {"a": b"1", "b": b"2"}
    nats_py.purge_stream(f"KV_{unique}", seq=2)  # as a server does with what is old enough
    assert "the values of the bucket" in sentence_of(lambda: moment(nats_server, unique, asOf=2))
    assert moment(nats_server, unique, asOf=2, failOnDataLoss=False) == {"b": b"2"}
    assert moment(nats_server, unique, asOf="latest") == {"b": b"2"}


# A time


def test_a_time_is_the_last_revision_that_was_stored_by_then(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=10)
    for i in range(1, 6):
        nats_py.run(kv.put("a", str(i).encode()))
        nats_py.run(kv.put("b", str(i).encode()))
    rows = read(nats_server, ROW, bucket=unique, history=True)
    for row in rows:
        created = row["created"]
        assert created.tzinfo
        last = max(each["revision"] for each in rows if each["created"] <= created)
        expected = moment(nats_server, unique, asOf=last)
        assert moment(nats_server, unique, asOf=created.isoformat()) == expected
    first = rows[0]["created"] - timedelta(microseconds=1)
    assert moment(nats_server, unique, asOf=first.isoformat()) == {}


# What is no moment


def test_a_moment_that_there_is_not_is_an_error(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique)
    nats_py.run(kv.put("a", b"1"))

    def said(value: object, **options: Any) -> str:
        return sentence_of(lambda: moment(nats_server, unique, asOf=value, **options))

    assert said(2) == f"OptionError: option 'asOf' is 2, but the last revision of the bucket '{unique}' is 1"
    for value in ("0", "-1", "1.5", "soon", "1_000"):
        assert said(value) == (
            f"OptionError: option 'asOf' is '{value}'; it must be a revision, which is a whole number of at least 1, a "
            "time in ISO 8601, such as 2026-11-01T00:00:00Z, or latest"
        )
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert said(later).startswith(f"OptionError: option 'asOf' is {later}, which is still to come")
    assert "before the bucket" in said("2020-01-01")
    assert "options 'asOf' and 'history'" in said(1, history=True)


# The latest moment


def test_the_latest_moment_of_a_quiet_bucket_is_what_it_holds(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    kv = bucket(nats_py, unique)
    assert moment(nats_server, unique, asOf="latest") == {}
    for key in ("a", "b", "b"):
        nats_py.run(kv.put(key, b"1"))
    nats_py.run(kv.delete("a"))
    assert moment(nats_server, unique, asOf="latest") == {"b": b"1"}
    kept = read(nats_server, ROW, bucket=unique, asOf="LATEST", ignoreDeletes=False)
    assert {(row["key"], row["revision"]) for row in kept} == {("a", 4), ("b", 3)}


@pytest.mark.parametrize("history", [1, 5])
@pytest.mark.parametrize("direct", [True, False])
def test_rows_of_the_latest_moment_are_of_one_revision_while_others_write(
    nats_server: Server, nats_py: NatsPy, unique: str, history: int, direct: bool
) -> None:
    bucket(nats_py, unique, history=history, direct=direct)
    writer = Writer(nats_py, unique, [f"k.{i}" for i in range(500)])
    writer.write(2_000)
    for _ in range(10):
        before = len(writer.log)
        with beside(lambda: writer.write(1 if direct else 3), times=50):
            rows = read(nats_server, ROW, bucket=unique, asOf="latest", ignoreDeletes=False)
        revision = max(row["revision"] for row in rows)
        assert revision >= before
        found = {row["key"]: row["value"] for row in rows if row["operation"] == "PUT"}
        assert found == writer.held(revision)


def test_the_latest_moment_of_some_keys_is_one_task(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket(nats_py, unique)
    keys = [f"{group}.{i}" for group in "abc" for i in range(50)]
    writer = Writer(nats_py, unique, keys)
    writer.write(1_000)
    assert len(batch_reader(nats_server, ROW, bucket=unique, asOf="latest", keys="a.>,b.>").partitions()) == 1
    for _ in range(5):
        with beside(lambda: writer.write(1), times=50):
            rows = read(nats_server, ROW, bucket=unique, asOf="latest", keys="a.>,b.>", ignoreDeletes=False)
        revision = max(row["revision"] for row in rows)
        found = {row["key"]: row["value"] for row in rows if row["operation"] == "PUT"}
        assert found == {key: value for key, value in writer.held(revision).items() if key[0] in "ab"}


@pytest.mark.needs("direct batches")
def test_a_few_keys_that_are_written_without_a_pause_are_read_at_one_moment(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    bucket(nats_py, unique, history=1, direct=True)
    writer = Writer(nats_py, unique, ["a", "b", "c"])
    writer.write(10)
    for _ in range(10):
        with beside(lambda: writer.write(50), times=10):  # many of them are on their way at once
            rows = read(nats_server, ROW, bucket=unique, asOf="latest", ignoreDeletes=False)
        found = {row["key"]: row["value"] for row in rows if row["operation"] == "PUT"}
        assert found == writer.held(max(row["revision"] for row in rows))


@pytest.mark.needs("atomic")
@pytest.mark.parametrize("direct", [True, False])
def test_what_is_stored_together_is_read_together(
    nats_server: Server, nats_py: NatsPy, unique: str, direct: bool
) -> None:
    bucket(nats_py, unique, history=1, direct=direct)
    config = nats_py.stream_info(f"KV_{unique}")["config"]
    nats_py.api(f"STREAM.UPDATE.KV_{unique}", {**config, "allow_atomic": True})
    keys = [f"account.{i}" for i in range(100)]
    amount = random.Random(0)

    def transfer() -> None:
        """Take from half of the accounts what the others get."""
        taken = amount.randrange(100)
        store_together(nats_py, unique, {key: 500 + taken * (-1) ** i for i, key in enumerate(keys)})

    transfer()
    for _ in range(10):
        with beside(transfer, times=5):
            found = moment(nats_server, unique, asOf="latest")
        assert found.keys() == set(keys)
        assert sum(map(int, found.values())) == 50_000
        assert len(set(found.values())) <= 2


# What happens while it is read


@contextmanager
def during(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> Iterator[None]:
    """Do something once, when a task has read the first entries; later ones have not been asked for."""
    done: list[object] = []
    add = SnapshotBuffer.add

    def adding(entries: SnapshotBuffer, delivered: Delivered) -> None:
        add(entries, delivered)
        if not done:
            done.append(True)
            action()

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotBuffer, "add", adding)
        patch.setattr(pulls, "PULL_BYTES", 2_000)
        patch.setattr(pulls, "PULL_MESSAGES", 50)
        yield
    assert done


def test_a_moment_comes_after_what_was_written_in_the_middle(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket(nats_py, unique, history=1)
    writer = Writer(nats_py, unique, [f"k.{i}" for i in range(2_000)])
    writer.write(3_000)
    with during(monkeypatch, lambda: writer.write(500)):
        assert moment(nats_server, unique, asOf="latest") == writer.held(3_500)


@pytest.mark.needs("atomic")
@pytest.mark.needs("ends of batches", only="eob")
@pytest.mark.parametrize("commit", ["1", "eob"])
def test_a_moment_may_be_the_end_of_an_atomic_batch(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    for direct in (True, False):
        name = f"{unique}_{direct}"
        bucket(nats_py, name, direct=direct)
        nats_py.put(name, {"a": b"1", "b": b"1"})
        config = nats_py.stream_info(f"KV_{name}")["config"]
        nats_py.api(f"STREAM.UPDATE.KV_{name}", {**config, "allow_atomic": True})
        values = {"a": 2, "c": 2}
        with during(monkeypatch, lambda: store_together(nats_py, name, values, commit)):  # noqa: B023
            assert moment(nats_server, name, asOf="latest") == {"a": b"2", "b": b"1", "c": b"2"}


@pytest.mark.needs("direct batches")
def test_a_moment_is_behind_all_that_one_answer_does_not_hold(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket(nats_py, unique, history=1, direct=True)
    keys = [f"k.{i}" for i in range(800)]
    nats_py.put(unique, dict.fromkeys(keys, b"0"))

    def write() -> None:
        for value in (b"1", b"2"):
            nats_py.put(unique, dict.fromkeys(keys, value * 6_000))  # more than a server sends at once

    with during(monkeypatch, write):
        rows = read(nats_server, ROW, bucket=unique, asOf="latest")
    assert {row["value"][:1] for row in rows} == {b"2"}
    assert len(rows) == len(keys)


def test_the_word_of_a_replica_that_lags_is_no_moment(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing new yet, while the leader has: a key that was read in its new state had another one before."""
    bucket(nats_py, unique, history=1, direct=True)
    nats_py.put(unique, {f"k.{i}": b"0" for i in range(100)})
    api, asked = ForwardedApi(nats_py), []

    def of_a_replica_that_lags(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["seq"])
        return {**request, "seq": request["seq"] + 1_000} if len(asked) == 1 else request

    api.requests["DIRECT.GET"] = of_a_replica_that_lags
    with api.serving(), during(monkeypatch, lambda: nats_py.put(unique, {"k.0": b"1", "k.99": b"1"})):
        found = moment(nats_server, unique, asOf="latest", apiPrefix=api.PREFIX)
    assert asked == [101, 101]
    assert found == {f"k.{i}": b"1" if i in (0, 99) else b"0" for i in range(100)}


@pytest.mark.needs("direct batches")
@pytest.mark.parametrize("stale", [False, True], ids=["up to date", "then with a leader and a replica that are not"])
def test_an_answer_that_does_not_hold_all_is_no_moment(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    """What it does not hold has removed something that it would have held: the state of a new key in between."""
    bucket(nats_py, unique, history=1, direct=True)
    nats_py.put(unique, {f"k.{i}": b"0" for i in range(100)})
    api, asked = ForwardedApi(nats_py), []

    def of_a_replica(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["seq"])
        if len(asked) == 1:
            other.put(unique, {"k.5": b"1", "new": b"2"})
            return {**request, "batch": 2}  # as where more does not fit into an answer
        return {**request, "seq": request["seq"] + 1_000} if stale and len(asked) == 3 else request

    def of_a_leader(answer: dict[str, Any]) -> dict[str, Any]:
        if stale and len(asked) == 1:
            answer["state"]["last_seq"] = 102
            asked.append(0)
        return answer

    api.requests["DIRECT.GET"], api.answers[f"STREAM.INFO.KV_{unique}"] = of_a_replica, of_a_leader
    first = {"k.99": b"1", "new": b"1"}
    with NatsPy(nats_server.url) as other, api.serving(), during(monkeypatch, lambda: nats_py.put(unique, first)):
        found = moment(nats_server, unique, asOf="latest", apiPrefix=api.PREFIX)
    assert asked == ([101, 0, 104, 104] if stale else [101, 104])
    assert found == {**{f"k.{i}": b"1" if i in (5, 99) else b"0" for i in range(100)}, "new": b"2"}


def test_a_bucket_that_was_made_again_is_not_taken_for_the_one_that_was_read(
    js: JetStream, nats_py: NatsPy, unique: str
) -> None:
    """Though it has as many revisions."""
    for again in (False, True):
        bucket(nats_py, unique)
        nats_py.put(unique, {"a": b"1", "b": b"1"})
        if not again:
            reader = LatestReader(Entries(unique, Position(nats_py.stream_info(f"KV_{unique}")["created"], 1)), after=2)
            nats_py.delete_stream(f"KV_{unique}")
    with pytest.raises(JetStreamError, match="was deleted and created again"):
        list(reader.read(js))
    assert reader.revision is None


@pytest.mark.parametrize("history", [1, 3])
def test_what_a_key_loses_while_it_is_read_is_not_known(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch, history: int
) -> None:
    bucket(nats_py, unique, history=history)
    keys = [f"k.{i}" for i in range(1_000)]
    for value in (b"1", b"2", b"3"):
        nats_py.put(unique, dict.fromkeys(keys, value))
    again = ["k.0", "k.1", "k.998", "k.999"]  # some were read by then

    def write() -> None:
        for value in (b"4", b"5", b"6"):
            nats_py.put(unique, dict.fromkeys(again, value))

    with during(monkeypatch, write):
        found = moment(nats_server, unique, asOf=3_000, failOnDataLoss=False)
    assert set(found.values()) == {b"3"}
    assert set(keys) - set(again) <= found.keys()
    assert "k.999" not in found
    assert "k.999" in sentence_of(lambda: moment(nats_server, unique, asOf=3_000, keys="k.999"))
    assert moment(nats_server, unique, asOf=3_012).keys() == set(keys)


@pytest.mark.parametrize("wanted", ["latest", "3000"])
def test_a_server_that_restarts_in_the_middle_changes_no_row_of_a_moment(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        bucket(client, "B", history=5)
        writer = Writer(client, "B", [f"k.{i}" for i in range(1_500)])
        writer.write(3_000)

    def restart() -> None:
        server.kill()
        server.start()

    monkeypatch.setattr(as_of, "IN_MEMORY", 10_000)
    with during(monkeypatch, restart):
        found = moment(server, "B", asOf=wanted, reconnectWait="100ms", failOnDataLoss=False)
    assert found == writer.held(3_000)


def test_a_bucket_that_is_deleted_in_the_middle_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wanted in ("latest", 2_000):
        bucket(nats_py, unique)
        nats_py.put(unique, {f"k.{i}": b"0" * 50 for i in range(2_000)})
        with during(monkeypatch, lambda: nats_py.delete_stream(f"KV_{unique}")):
            error = sentence_of(lambda: moment(nats_server, unique, asOf=wanted))  # noqa: B023
        assert unique in error
        assert "deleted" in error


# Other servers


@pytest.mark.long("spark_nats/jetstream/*")
def test_a_server_without_batched_direct_gets_is_read_at_one_moment(server_factory: ServerFactory) -> None:
    server = server_factory(binary=OLDER_BINARY)
    with NatsPy(server.url) as client:
        bucket(client, "B", history=1, direct=True)
        writer = Writer(client, "B", [f"k.{i}" for i in range(100)])
        writer.write(500)
        for _ in range(10):
            with beside(lambda: writer.write(1), times=50):
                rows = read(server, ROW, bucket="B", asOf="latest", ignoreDeletes=False)
            found = {row["key"]: row["value"] for row in rows if row["operation"] == "PUT"}
            assert found == writer.held(max(row["revision"] for row in rows))


@pytest.mark.needs("direct batches")
def test_rows_of_a_replicated_bucket_are_of_one_revision(cluster: Cluster) -> None:
    with NatsPy(cluster.servers[1].url) as client:
        config = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "allow_direct": True, "num_replicas": 3}
        client.create_in_cluster("KV_MOMENTS", ["$KV.MOMENTS.>"], **config)
        writer = Writer(client, "MOMENTS", [f"k.{i}" for i in range(300)])
        writer.write(2_000)
        for _ in range(10):
            before = len(writer.log)
            with beside(lambda: writer.write(2), times=30):
                rows = read(cluster.urls, ROW, bucket="MOMENTS", asOf="latest", ignoreDeletes=False)
            revision = max(row["revision"] for row in rows)
            assert revision >= before
            found = {row["key"]: row["value"] for row in rows if row["operation"] == "PUT"}
            assert found == writer.held(revision)
        assert moment(cluster.urls, "MOMENTS", asOf=len(writer.log)) == writer.held(len(writer.log))


@pytest.mark.long("spark_nats/kinds/buckets/*")
def test_spark_reads_a_bucket_as_of_a_moment(
    spark: SparkSession, nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    bucket(nats_py, unique, history=5)
    for entries in ({"a": b"1", "b": b"1"}, {"a": b"2"}, {"c": b"3"}):
        nats_py.put(unique, entries)
    table = nats(spark.read, nats_server, bucket=unique, asOf=2).load()
    assert {(row.key, bytes(row.value)) for row in table.collect()} == {("a", b"1"), ("b", b"1")}
    time = nats(spark.read, nats_server, bucket=unique).load().where("key = 'a'").first()
    assert time is not None
    at = time.created.astimezone(UTC).isoformat()
    assert nats(spark.read, nats_server, bucket=unique, asOf=at, keys="a,c").load().count() == 1
    assert nats(spark.read, nats_server, bucket=unique, asOf="latest").load().count() == 3
