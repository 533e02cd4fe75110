"""A KV bucket as of one moment: a revision, a time, or the latest one, with nats-py's KV as the other side."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from tests.integration.support import batch_reader, read, sentence_of
from tests.nats_py import NatsPy
from tests.servers import Server

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
        self._lock = threading.Lock()

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
def written(server: Server | str, writer: Writer, at_once: int) -> Iterator[None]:
    """Have a writer write without a pause while the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            writer.write(at_once)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
        f"DataLossError: it is not known what 1 keys of the bucket '{unique}' held at revision 3, such as "
        "'written.often': older revisions of them than those that the bucket keeps may have been removed (its history "
        "is 2); set the option 'failOnDataLoss' to false to go on with the other rows"
    )
    # The young key was made later: had it had an older revision, it would be there.
    assert moment(nats_server, unique, asOf=3, failOnDataLoss=False) == {"still": b"3"}
    assert moment(nats_server, unique, asOf=3, keys="still") == {"still": b"3"}
    assert "revision 4" in sentence_of(lambda: moment(nats_server, unique, asOf=4))
    assert moment(nats_server, unique, asOf=5) == {"still": b"3", "written.often": b"5"}


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
    revisions = set()
    with written(nats_server, writer, 1 if direct else 3):
        for _ in range(15):
            before = len(writer.log)
            rows = read(nats_server, ROW, bucket=unique, asOf="latest", ignoreDeletes=False)
            revision = max(row["revision"] for row in rows)
            assert revision >= before - 3
            found = {row["key"]: row["value"] for row in rows if row["operation"] == "PUT"}
            assert found == writer.held(revision)
            revisions.add(revision)
    assert len(revisions) > 5


def test_the_latest_moment_of_some_keys_is_one_task(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket(nats_py, unique)
    keys = [f"{group}.{i}" for group in "abc" for i in range(50)]
    writer = Writer(nats_py, unique, keys)
    writer.write(1_000)
    assert len(batch_reader(nats_server, ROW, bucket=unique, asOf="latest", keys="a.>,b.>").partitions()) == 1
    with written(nats_server, writer, 1):
        for _ in range(10):
            rows = read(nats_server, ROW, bucket=unique, asOf="latest", keys="a.>,b.>", ignoreDeletes=False)
            revision = max(row["revision"] for row in rows)
            found = {row["key"]: row["value"] for row in rows if row["operation"] == "PUT"}
            assert found == {key: value for key, value in writer.held(revision).items() if key[0] in "ab"}
