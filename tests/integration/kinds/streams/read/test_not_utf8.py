"""Bytes that are not UTF-8 in subjects, headers and keys, which NATS allows and strings of Spark do not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from spark_nats.jetstream import listing
from spark_nats.jetstream.reading import pulls
from spark_nats.jetstream.reading.direct import DirectGets
from spark_nats.kinds.buckets import as_of
from spark_nats.kinds.streams.read import columns
from tests.integration.kinds.buckets.test_bucket_as_of import during
from tests.integration.kinds.buckets.test_bucket_read import CHANGE, KEY, bucket, changes
from tests.integration.support import (
    MESSAGE,
    PAYLOAD,
    Query,
    batch_reader,
    read,
    sentence_of,
    stream_reader,
    uncoded,
    write,
)
from tests.nats_py import NatsPy, send_raw, wait_until
from tests.servers import Server

pytestmark = pytest.mark.timeout(150)

END = "; different values may look the same there: do not tell rows apart by them, and have them published in UTF-8"


def publish(server: Server, *messages: tuple[bytes, bytes] | tuple[bytes, bytes, bytes]) -> None:
    """Publish messages: subject, payload and, if there are any, header lines; returns when the server has them."""
    wire = b""
    for subject, payload, *lines in messages:
        block = b"".join([b"NATS/1.0\r\n", *lines, b"\r\n"]) if lines else b""
        sizes = b"%d %d" % (len(block), len(block) + len(payload)) if lines else b"%d" % len(payload)
        wire += b"%bPUB %b %b\r\n%b%b\r\n" % (b"H" * bool(lines), subject, sizes, block, payload)
    assert b"-ERR" not in send_raw(server.url, wire)


def store(
    server: Server, client: NatsPy, stream: str, *messages: tuple[bytes, bytes] | tuple[bytes, bytes, bytes]
) -> None:
    """Publish messages, and wait until the stream has stored them all."""
    before = client.stream_info(stream)["state"]["last_seq"]
    publish(server, *messages)
    wait_until(lambda: client.stream_info(stream)["state"]["last_seq"] == before + len(messages))


def warned(caplog: pytest.LogCaptureFixture, by: ModuleType = columns) -> list[str]:
    """What a module has warned of, by default the one that builds rows."""
    return [uncoded(record.getMessage()) for record in caplog.records if record.name == by.__name__]


def test_a_task_warns_once_of_what_is_not_utf8_and_names_the_first(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    prefix = f"{unique}.".encode()
    some = [(prefix + b"ok", b"0"), (prefix + b"\xfc", b"1", b"H: \xe2\x82\r\nH: b\r\n"), (prefix + b"\xf6", b"2")]
    store(nats_server, nats_py, unique, *some)
    rows = read(nats_server, stream=unique, minPartitions=1)
    assert [row["subject"] for row in rows] == [f"{unique}.ok", f"{unique}.\ufffd", f"{unique}.\ufffd"]
    assert [row["headers"] for row in rows] == [[], [("H", ["\ufffd", "b"])], []]
    of = f"stream {unique}: bytes that are not UTF-8 became U+FFFD in "
    (said,) = warned(caplog)
    assert said.startswith(f"{of}'subject' and 'headers', first at sequence 2, subject '{unique}.\ufffd', in ")
    assert said.endswith(END)  # how many are read together is chance
    caplog.clear()
    assert len(read(nats_server, PAYLOAD, stream=unique)) == 3  # a column that nobody reads is not decoded
    assert warned(caplog) == []


def test_a_streaming_query_warns_in_each_task_that_reads_such_bytes_and_in_no_other(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    prefix = f"{unique}.".encode()
    store(nats_server, nats_py, unique, (prefix + b"\xff", b"1"), (prefix + "\ufffd".encode(), b"2"))
    query = Query(stream_reader(nats_server, MESSAGE, stream=unique, startingOffsets="earliest"))
    assert [row["subject"] for row in query.micro_batch()] == [f"{unique}.\ufffd"] * 2
    assert len(warned(caplog)) == 1
    assert "first at sequence 1, " in warned(caplog)[0]
    caplog.clear()
    store(nats_server, nats_py, unique, (prefix + "\ufffd.ü".encode(), b"3"))  # as a copy has it: text like any other
    assert [row["subject"] for row in query.micro_batch()] == [f"{unique}.\ufffd.ü"]
    assert warned(caplog) == []


@pytest.mark.long("spark_nats/kinds/streams/read/columns.py")
def test_a_task_that_reads_in_many_batches_warns_once(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    wire = [(b"%b.%d.\xff" % (unique.encode(), i), b"x" * 100_000) for i in range(200)]
    store(nats_server, nats_py, unique, *wire)
    reader = stream_reader(nats_server, MESSAGE, stream=unique, startingOffsets="earliest", minPartitions=1)
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    batches = list(reader.read(task))
    assert sum(batch.num_rows for batch in batches) == 200
    assert len(batches) > 1
    assert len(warned(caplog)) == 1


def test_core_nats_says_the_subject_of_the_first_such_message(
    nats_server: Server, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(stream_reader(nats_server, MESSAGE, subject=f"{unique}.>"))
    prefix = f"{unique}.".encode()
    try:
        publish(nats_server, (prefix + b"a", b"0"), (prefix + b"b reply.\xff", b"1"), (prefix + b"c\xfc", b"2"))
        rows = query.rows(3)
    finally:
        query.reader.stop()
    assert [row["subject"] for row in rows] == [f"{unique}.a", f"{unique}.b", f"{unique}.c\ufffd"]
    assert [row["reply"] for row in rows] == [None, "reply.\ufffd", None]
    assert all(
        each.startswith("core NATS: bytes that are not UTF-8 became U+FFFD in 'subject'") for each in warned(caplog)[1:]
    )
    assert f"first at subject '{unique}.b'" in warned(caplog)[0]


def test_keys_that_differ_only_in_such_bytes_stay_two_rows(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket(nats_py, unique, history=3)
    prefix = f"$KV.{unique}.".encode()
    keys = [(prefix + b"\xfc", b"old"), (prefix + b"\xfc", b"1"), (prefix + b"\xf6", b"2"), (prefix + b"ok", b"3")]
    store(nats_server, nats_py, f"KV_{unique}", *keys)
    now = [("\ufffd", b"1"), ("\ufffd", b"2"), ("ok", b"3")]
    for options in ({}, {"asOf": "latest"}, {"asOf": "4"}):
        caplog.clear()
        rows = read(nats_server, CHANGE, bucket=unique, **options)
        assert [(row["key"], row["value"]) for row in rows] == now, options
        (said,) = warned(caplog)
        assert said.startswith(f"bucket {unique}: bytes that are not UTF-8 became U+FFFD in 'key', first at sequence ")
    assert len(read(nats_server, KEY, bucket=unique, history="true")) == 4
    caplog.clear()
    assert [row["value"] for row in changes(nats_server, unique).micro_batch()] == [b"old", b"1", b"2", b"3"]
    assert len(warned(caplog)) == 1


def read_while(reader: Any, action: Callable[[], object]) -> list[dict[str, Any]]:
    """The rows of the only task; something is done when the first ones have come, the last ones not."""
    batches = reader.read(*reader.partitions())
    rows: list[dict[str, Any]] = next(batches).to_pylist()
    action()
    return rows + [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("moved", [60, 300])
def test_a_key_that_is_not_utf8_and_moves_during_the_read_is_there(
    nats_server: Server,
    nats_py: NatsPy,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    history: int,
    moved: int,
) -> None:
    bucket(nats_py, unique, history=history)
    prefix = f"$KV.{unique}.".encode()
    plain = {f"k{i}": b"0" * 50 for i in range(1_000)}
    nats_py.put(unique, plain)
    odd = [prefix + last for last in (b"\xfc", b"\xf6", "\ufffd".encode(), b"\xe2\x82", b"\xf6.x")]
    store(nats_server, nats_py, f"KV_{unique}", *((key, b"0") for key in odd))

    def write() -> None:
        for _ in range(history):
            again = [
                *(prefix + b"k%d" % i for i in range(moved)),
                odd[1],
                odd[3],
                *(prefix + b"k99%d" % i for i in (1, 2)),
            ]
            store(nats_server, nats_py, f"KV_{unique}", *((key, b"1") for key in again))

    monkeypatch.setattr(pulls, "PULL_BYTES", 2_000)
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 20)
    rows = read_while(batch_reader(nats_server, CHANGE, bucket=unique, retryTimeout="2m"), write)
    found = Counter((row["key"], row["value"]) for row in rows)
    keys = Counter(row["key"] for row in rows)
    assert keys == {**dict.fromkeys(plain, 1), "\ufffd": 3 + 1, "\ufffd.x": 1}
    assert found["\ufffd", b"1"] == 2


REVISION = StructType().add("key", StringType()).add("revision", LongType())


@pytest.mark.parametrize("history", [1, 2, 4])
def test_a_moment_has_the_entry_of_each_key_that_the_bucket_keeps_of_it(
    nats_server: Server, nats_py: NatsPy, unique: str, history: int
) -> None:
    bucket(nats_py, unique, history=history)
    keys = [b"\xfc", b"\xf6", "\ufffd".encode(), b"\xe2\x82", b"\xf6.x", b"\xfc.x", b"plain", "ü".encode()]
    chance = random.Random(history)
    written = chance.choices(keys, k=60)
    prefix = f"$KV.{unique}.".encode()
    store(nats_server, nats_py, f"KV_{unique}", *((prefix + key, b"") for key in written))
    revisions = {key: [i for i, other in enumerate(written, 1) if other == key] for key in keys}
    for moment in range(1, len(written) + 1, 7):
        then = {key: max((i for i in of if i <= moment), default=0) for key, of in revisions.items()}
        kept = {key: then[key] for key, of in revisions.items() if then[key] in of[-history:]}
        found = read(nats_server, REVISION, bucket=unique, asOf=moment, failOnDataLoss=False)
        assert {row["revision"] for row in found} == set(kept.values())
        assert len(found) == len(kept)
        if any(then[key] and key not in kept for key in keys):
            error = sentence_of(lambda: read(nats_server, REVISION, bucket=unique, asOf=moment))  # noqa: B023
            assert error.startswith("DataLossError: ")
        elif all(then.values()):
            assert len(read(nats_server, REVISION, bucket=unique, asOf=moment)) == len(keys)


def test_a_key_that_is_not_utf8_and_stays_is_known_at_a_moment(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    bucket(nats_py, unique, history=1)
    prefix = f"$KV.{unique}.".encode()
    entries = [(b"k", b"1"), (b"\xfc", b"0"), (b"k", b"2"), (b"\xf6", b"3"), (b"k", b"4")]
    store(nats_server, nats_py, f"KV_{unique}", *((prefix + key, value) for key, value in entries))
    assert {row["value"] for row in read(nats_server, CHANGE, bucket=unique, asOf=5)} == {b"0", b"3", b"4"}
    unknown = f"keys of the bucket '{unique}', such as 'k', held at revision"
    assert f"what 1 {unknown} 4" in sentence_of(lambda: read(nats_server, CHANGE, bucket=unique, asOf=4))
    assert f"what 2 {unknown} 2" in sentence_of(lambda: read(nats_server, CHANGE, bucket=unique, asOf=2))


def test_a_key_that_is_not_utf8_and_loses_its_entry_during_the_read_is_not_known(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket(nats_py, unique, history=2)
    prefix = f"$KV.{unique}.".encode()
    odd = [prefix + b"\xfc", prefix + b"\xf6", prefix + b"\xff"]
    store(nats_server, nats_py, f"KV_{unique}", *((key, b"1") for key in odd), (odd[0], b"2"))
    nats_py.put(unique, {f"k{i}": b"0" * 50 for i in range(1_000)})
    store(nats_server, nats_py, f"KV_{unique}", (odd[1], b"2"))

    def write() -> None:
        store(nats_server, nats_py, f"KV_{unique}", (odd[1], b"3"), (odd[1], b"4"), (odd[2], b"2"))

    with during(monkeypatch, write):
        found = read(nats_server, CHANGE, bucket=unique, asOf=1_005, failOnDataLoss=False)
    # Of the second one, the entry of that moment was gone when the read came to it, and an older one had been read.
    assert {row["value"] for row in found if row["key"] == "\ufffd"} == {b"2", b"1"}
    assert len(found) == 1_002


def test_a_key_that_is_not_utf8_and_is_read_twice_has_its_revisions_once(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader reads them again if the direct get that brought them has lost its end."""
    bucket(nats_py, unique, history=3, direct=True)
    nats_py.put(unique, {"first": b"0"})
    for value in (b"1", b"2", b"3", b"4"):  # the bucket removes the first of them, so later keys may lack revisions
        nats_py.put(unique, {"k": value})
    prefix = f"$KV.{unique}.".encode()
    store(nats_server, nats_py, f"KV_{unique}", (prefix + b"\xfc", b"5"), (prefix + b"\xfc", b"6"))
    lost: list[bytes] = []

    class LosingItsEnd(DirectGets):
        def _on_status(self, header: bytes, payload: bytes) -> None:
            if lost:
                super()._on_status(header, payload)
            lost.append(header)

    monkeypatch.setattr(as_of, "DirectGets", LosingItsEnd)
    rows = read(nats_server, CHANGE, bucket=unique, asOf=5)
    assert [(row["key"], row["value"]) for row in rows] == [("first", b"0"), ("k", b"4")]
    assert lost


# What servers list


COUNTS = StructType().add("subject", StringType()).add("messages", LongType())


def test_the_table_of_subjects_has_all_messages_and_says_which_names_may_be_several(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.create_stream(unique)
    prefix = f"{unique}.".encode()
    some = [(prefix + last, b"") for last in (b"\xfc", b"\xf6", b"a", b"\xf6", "\ufffd".encode(), b"\xff.x", b"\xff.x")]
    store(nats_server, nats_py, unique, *some)
    rows = read(nats_server, COUNTS, table="subjects", stream=unique)
    assert {(row["subject"], row["messages"]) for row in rows} == {
        (f"{unique}.\ufffd", 4),
        (f"{unique}.\ufffd.x", 2),
        (f"{unique}.a", 1),
    }
    assert len(rows) == 3
    (said,) = warned(caplog, listing)
    assert said.startswith(f"stream {unique}: the server lists 2 subjects with U+FFFD, such as '{unique}.\ufffd'; ")
    assert said.endswith("several subjects may have one such name; the row of a name has the messages of all of them")


def test_an_object_on_a_subject_that_is_not_utf8_is_left_out_with_a_warning(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    objects = nats_py.run(nats_py.nats.jetstream().create_object_store(unique))
    nats_py.run(objects.put("report", b"content"))
    description = b'{"name":"x","bucket":"%b","nuid":"N","size":0,"chunks":0}' % unique.encode()
    prefix = f"$O.{unique}.M.".encode()
    store(nats_server, nats_py, f"OBJ_{unique}", (prefix + b"\xfc", description), (prefix + b"\xf6", description))
    rows = read(nats_server, StructType().add("name", StringType()), objectStore=unique)
    assert [row["name"] for row in rows] == ["report"]
    (said,) = warned(caplog, listing)
    assert said.endswith("; objects that are described on them are left out")


def test_a_store_whose_changes_are_read_says_that_a_subject_is_not_utf8(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.run(nats_py.nats.jetstream().create_object_store(unique))
    description = b'{"name":"%%b","bucket":"%b","nuid":"N","size":0,"chunks":0}' % unique.encode()
    prefix = f"$O.{unique}.M.".encode()
    some = [(prefix + b"\xfc", description % b"1"), (prefix + b"\xf6", description % b"2")]
    store(nats_server, nats_py, f"OBJ_{unique}", *some)
    options = {"objectStore": unique, "startingOffsets": "earliest"}
    query = Query(stream_reader(nats_server, StructType().add("name", StringType()), **options))
    assert [row["name"] for row in query.micro_batch()] == ["1", "2"]
    assert len(warned(caplog)) == 1


# What is written


def test_a_message_id_that_only_looks_the_same_does_not_say_that_a_row_is_stored(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    bucket(nats_py, unique, history=5)
    theirs = (f"$KV.{unique}.a".encode(), b"theirs", b"Nats-Msg-Id: \xfc\r\n")
    store(nats_server, nats_py, f"KV_{unique}", theirs)
    ours = {"key": ["a"], "value": [b"ours"], "expected_revision": [0], "msg_id": ["\ufffd"]}
    error = sentence_of(lambda: write(nats_server, pa.table(ours), bucket=unique))
    assert "its expected_revision is 0, by which it is to be created" in error


def test_a_copy_has_the_text_of_such_a_subject_and_is_read_without_a_warning(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in (unique, f"{unique}_2"):
        nats_py.create_stream(stream)
    store(nats_server, nats_py, unique, (f"{unique}.".encode() + b"\xfc", b"1"))
    (row,) = read(nats_server, stream=unique)
    copy = {"subject": [row["subject"].replace(unique, f"{unique}_2")], "payload": [row["payload"]]}
    write(nats_server, pa.table(copy), stream=f"{unique}_2")
    caplog.clear()
    assert [row["subject"] for row in read(nats_server, stream=f"{unique}_2")] == [f"{unique}_2.\ufffd"]
    assert warned(caplog) == []
