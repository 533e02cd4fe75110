"""Writing KV buckets: puts, deletions, compare-and-set, lifetimes, and what nats-py reads of them."""

from __future__ import annotations

import logging
import pickle
import random
import string
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from nats.js.errors import APIError, KeyWrongLastSequenceError, NoStreamResponseError
from nats.js.kv import KeyValue
from pyspark.sql.pandas.types import from_arrow_schema

from spark_nats.errors import InvalidRowError, PublishError
from spark_nats.kinds.buckets.conflicts import Conflicts
from tests.integration.support import MENDING, sentence_of, source, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster, Server

LEGAL = "-/_=" + string.ascii_letters + string.digits


class Kv:
    """A bucket as nats-py sees it."""

    def __init__(self, client: NatsPy, bucket: str, **config: Any) -> None:
        self._client = client
        self.name = bucket
        js = client.nats.jetstream()

        def opened() -> KeyValue | None:
            try:
                return client.run(js.create_key_value(bucket=bucket, **config) if config else js.key_value(bucket))
            except (APIError, TimeoutError):  # of a cluster that is about to begin
                return None

        self.kv = wait_until(opened)

    def get(self, key: str) -> bytes | None:
        return self._client.run(self.kv.get(key)).value

    def last(self, key: str) -> tuple[bytes, int]:
        """The value of a key and its revision, as the leader says; a replica that lags may not know them yet."""
        found = self._client.api(f"STREAM.MSG.GET.KV_{self.name}", {"last_by_subj": f"$KV.{self.name}.{key}"})
        return b64decode(found["message"]["data"]), int(found["message"]["seq"])

    def revision(self, key: str) -> int:
        return self.last(key)[1]

    def put(self, key: str, value: bytes) -> int:
        def stored() -> int:
            try:
                return self._client.run(self.kv.put(key, value))
            except NoStreamResponseError:  # of a stream that has no leader yet
                return 0

        return wait_until(stored)

    def update(self, key: str, value: bytes, last: int) -> int:
        return self._client.run(self.kv.update(key, value, last))

    def delete(self, key: str) -> bool:
        return self._client.run(self.kv.delete(key))

    def history(self, key: str) -> list[tuple[bytes | None, list[str] | None]]:
        subject = f"$KV.{self.name}.{key}"
        kept = [message for message in self._client.read_stream(f"KV_{self.name}") if message.subject == subject]
        return [(message.payload, message.headers.get("KV-Operation")) for message in kept]

    def contents(self) -> dict[str, bytes]:
        """Every key with its value, without a watcher: nats-py's may say that it is done before it has begun."""
        found: dict[str, bytes] = {}
        for message in self._client.read_stream(f"KV_{self.name}"):
            key = message.subject.removeprefix(f"$KV.{self.name}.")
            if message.headers.get("KV-Operation") or message.headers.get("Nats-Marker-Reason"):
                found.pop(key, None)
            else:
                found[key] = message.payload
        return found


@pytest.fixture
def bucket(nats_py: NatsPy, unique: str) -> Kv:
    """A bucket of the shared server which keeps one revision."""
    return Kv(nats_py, unique, history=1)


def entries(**columns: list[Any]) -> pa.Table:
    types = {"expected_revision": pa.int64(), "value": pa.binary()}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def test_values_are_put_under_keys_with_every_legal_character(nats_server: Server, bucket: Kv) -> None:
    keys = [LEGAL, "a.b.c", "=", "/", *string.ascii_letters]
    write(nats_server, entries(key=keys, value=[key.encode() for key in keys]), bucket=bucket.name)
    assert bucket.contents() == {key: key.encode() for key in keys}


@pytest.mark.long
def test_a_hundred_thousand_keys_are_put(nats_server: Server, bucket: Kv) -> None:
    keys = [f"k.{i}" for i in range(100_000)]
    write(nats_server, entries(key=keys, value=[b"%d" % i for i in range(100_000)]), bucket=bucket.name)
    assert bucket.contents() == {f"k.{i}": b"%d" % i for i in range(100_000)}


def test_keys_are_deleted_and_purged(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = Kv(nats_py, unique, history=5)
    for key in ("kept", "deleted", "purged"):
        kv.put(key, b"1")
        kv.put(key, b"2")
    rows = entries(key=["kept", "deleted", "purged"], value=[b"3", None, b""], operation=[None, "DEL", "PURGE"])
    write(nats_server, rows, bucket=unique)
    assert kv.contents() == {"kept": b"3"}
    assert [value for value, _ in kv.history("deleted")] == [b"1", b"2", b""]
    assert kv.history("deleted")[-1][1] == ["DEL"]
    assert [operation for _, operation in kv.history("purged")] == [["PURGE"]]


def test_what_was_read_can_be_written_elsewhere(nats_server: Server, nats_py: NatsPy, bucket: Kv, unique: str) -> None:
    rows = pa.table(
        {
            "bucket": ["other", "other"],
            "key": ["a", "b"],
            "value": pa.array([b"1", b""]),
            "revision": [7, 8],
            "operation": ["PUT", "DEL"],
            "headers": pa.array(
                [[("mine", ["x"])], [("KV-Operation", ["PURGE"])]], pa.map_(pa.string(), pa.list_(pa.string()))
            ),
        }
    )
    bucket.put("b", b"old")
    write(nats_server, rows, bucket=bucket.name)
    assert bucket.contents() == {"a": b"1"}
    headers = [message.headers for message in nats_py.read_stream(f"KV_{unique}")]
    assert headers[0]["mine"] == ["x"]
    assert "KV-Operation" not in headers[0]
    assert headers[1]["KV-Operation"] == ["DEL"]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (entries(key=["a", "b c"], value=[b"", b""]), "row 1 of the task cannot be sent: column 'key' has a character"),
        (entries(key=["a..b"], value=[b""]), "column 'key' has an empty token"),
        (entries(key=[".a"], value=[b""]), "column 'key' has an empty token"),
        (entries(key=[""], value=[b""]), "column 'key' is empty"),
        (entries(key=["_kv_x"], value=[b""]), "column 'key' begins with _kv, which is reserved: '_kv_x'"),
        (entries(key=["ä"], value=[b""]), "column 'key' has a character that most clients refuse in keys"),
        (entries(key=["a>"], value=[b""]), "column 'key' has a character that most clients refuse in keys"),
        (entries(key=pa.array([None], pa.string()), value=[b""]), "column 'key' is null"),
        (entries(key=["a"], value=[None]), "column 'value' is null; .* a key is deleted by DEL"),
        (entries(key=["a"], value=[b"x"], operation=["DEL"]), "column 'value' is not empty, but the operation is DEL"),
        (entries(key=["a"], value=[b"x"], operation=["put"]), "column 'operation' is none of PUT, DEL and PURGE"),
        (entries(key=["a"], value=[b"x"], expected_revision=[-1]), "column 'expected_revision' is '-1'"),
        (entries(key=["a" * 4096], value=[b"x"]), "column 'key' is too long: .*: '[$]KV.{37}'… "),
        (entries(key=["a"], value=[b"x" * 1_100_000]), "column 'value' is larger with its headers than"),
    ],
)
def test_a_row_that_is_no_entry_is_named_before_anything_is_sent(
    nats_server: Server, bucket: Kv, rows: pa.Table, sentence: str
) -> None:
    with pytest.raises(InvalidRowError, match=f"{sentence}.*; nothing was sent{MENDING}$"):
        write(nats_server, rows, bucket=bucket.name)
    assert bucket.contents() == {}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (["key"], "the column 'value' (BINARY or STRING) is missing; there are key"),
        (["value"], "the column 'key' (STRING) is missing; there are value"),
        (["key", "value", "subject"], "column 'subject' cannot be written to a KV bucket, and would be lost"),
        (["key", "payload"], "column 'payload' cannot be written to a KV bucket"),
    ],
)
def test_columns_that_no_entry_has_are_refused(
    nats_server: Server, bucket: Kv, columns: list[str], sentence: str
) -> None:
    rows = pa.table({name: ["x"] for name in columns})
    assert sentence in sentence_of(lambda: write(nats_server, rows, bucket=bucket.name))


@pytest.mark.needs("ttl")
def test_a_bucket_that_does_not_exist_is_told_and_can_be_made(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    rows = entries(key=["a"], value=[b"1"])
    told = sentence_of(lambda: write(nats_server, rows, bucket=unique))
    assert told.startswith(f"StreamNotFoundError: the bucket '{unique}' does not exist")
    assert told.endswith("; create it, or set the option 'createBucket'")
    requested = '{"history": 3, "max_age": "1h", "limit_marker_ttl": "2s", "max_value_size": 100, "storage": "memory"}'
    write(nats_server, rows, bucket=unique, createBucket=requested)
    kv = Kv(nats_py, unique)
    assert kv.contents() == {"a": b"1"}
    config = nats_py.stream_info(f"KV_{unique}")["config"]
    assert (config["max_msgs_per_subject"], config["max_age"], config["storage"]) == (3, 3600 * 10**9, "memory")
    assert (config["allow_rollup_hdrs"], config["deny_delete"], config["allow_direct"]) == (True, True, True)
    assert (config["allow_msg_ttl"], config["subject_delete_marker_ttl"]) == (True, 2 * 10**9)
    assert (config["max_msg_size"], config["discard"]) == (100, "new")


# Compare and set


def test_rows_with_the_right_revision_are_stored(nats_server: Server, bucket: Kv) -> None:
    last = bucket.put("a", b"1")
    rows = entries(key=["a", "b", "c"], value=[b"2", b"new", b"any"], expected_revision=[last, 0, None])
    write(nats_server, rows, bucket=bucket.name)
    assert bucket.contents() == {"a": b"2", "b": b"new", "c": b"any"}


def test_a_conflict_names_the_key_and_both_revisions(nats_server: Server, bucket: Kv) -> None:
    first = bucket.put("a", b"1")
    now = bucket.put("a", b"2")
    rows = entries(key=["x", "a"], value=[b"", b"3"], expected_revision=[0, first])
    told = sentence_of(lambda: write(nats_server, rows, bucket=bucket.name))
    assert told.startswith(
        f"PublishError: row 1 conflicts: the key 'a' of the bucket '{bucket.name}' has the revision {now}, and its "
        f"expected_revision is {first}; of this task's rows 1 were stored"
    )
    assert "set the option 'onConflict' to skip" in told
    assert bucket.get("a") == b"2"


def test_a_key_that_exists_is_not_created(nats_server: Server, bucket: Kv) -> None:
    bucket.put("a", b"1")
    rows = entries(key=["a"], value=[b"2"], expected_revision=[0])
    told = sentence_of(lambda: write(nats_server, rows, bucket=bucket.name))
    assert "has the revision 1, and its expected_revision is 0, by which it is to be created" in told


def test_conflicts_are_skipped_and_counted_if_so_asked(
    nats_server: Server, nats_py: NatsPy, bucket: Kv, caplog: pytest.LogCaptureFixture
) -> None:
    nats_py.publish_acked([(f"$KV.{bucket.name}.k{i}", b"theirs") for i in range(0, 600, 2)])
    rows = entries(key=[f"k{i}" for i in range(600)], value=[b"ours"] * 600, expected_revision=[0] * 600)
    with caplog.at_level(logging.WARNING, "spark_nats"):
        write(nats_server, rows, bucket=bucket.name, onConflict="skip")
    assert bucket.contents() == {f"k{i}": b"ours" if i % 2 else b"theirs" for i in range(600)}
    assert "300 of the 600 rows of this task were skipped" in caplog.text


@pytest.mark.usefixtures("all_answers_are_waited_for")
def test_an_error_counts_the_rows_that_were_skipped_before_it(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"], max_msgs_per_subject=1, max_bytes=1000, discard="new")
    nats_py.publish_acked([(f"$KV.{unique}.a", b"theirs")])
    rows = entries(key=["a", "b", "a"], value=[b"1", b"2", b"x" * 2000], expected_revision=[0, 0, None])
    told = sentence_of(lambda: write(nats_server, rows, bucket=unique, onConflict="skip"))
    assert "refused row 2 (subject" in told
    account = "of this task's rows 1 were stored, 1 were skipped for their conflicts, and none of the others was stored"
    assert told.endswith(account)


@pytest.mark.parametrize("operation", ["DEL", "PURGE"])
def test_a_key_that_was_deleted_is_created_again(
    nats_server: Server, bucket: Kv, operation: str, nats_py: NatsPy
) -> None:
    bucket.put("a", b"1")
    write(nats_server, entries(key=["a"], operation=[operation]), bucket=bucket.name)
    write(nats_server, entries(key=["a"], value=[b"2"], expected_revision=[0]), bucket=bucket.name)
    assert bucket.contents() == {"a": b"2"}


def after_each_conflict(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], object]) -> None:
    """Have somebody act after each decision on a conflict, before the row is sent again."""
    coming = iter(others)
    decide = Conflicts.resolve_or_raise

    def resolve(self: Conflicts, js: Any, conflict: Any) -> Any:
        resolution = decide(self, js, conflict)
        if (act := next(coming, None)) is not None:
            act()
        return resolution

    monkeypatch.setattr(Conflicts, "resolve_or_raise", resolve)


def test_a_key_that_somebody_else_creates_again_conflicts_with_what_the_row_says(
    nats_server: Server, bucket: Kv, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("a", b"1")
    bucket.delete("a")
    after_each_conflict(monkeypatch, lambda: bucket.put("a", b"theirs"))
    rows = entries(key=["a"], value=[b"ours"], expected_revision=[0])
    told = sentence_of(lambda: write(nats_server, rows, bucket=bucket.name))
    assert "has the revision 3, and its expected_revision is 0, by which it is to be created" in told
    assert bucket.contents() == {"a": b"theirs"}


def test_a_key_that_comes_and_goes_meanwhile_is_created_again(
    nats_server: Server, nats_py: NatsPy, bucket: Kv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again() -> None:
        bucket.put("a", b"theirs")
        bucket.delete("a")

    def purge() -> None:  # as when the marker of a deletion expires
        nats_py.purge_stream(f"KV_{bucket.name}", filter=f"$KV.{bucket.name}.a")

    bucket.put("a", b"1")
    bucket.delete("a")
    after_each_conflict(monkeypatch, again, purge)
    write(nats_server, entries(key=["a"], value=[b"ours"], expected_revision=[0]), bucket=bucket.name)
    assert bucket.contents() == {"a": b"ours"}


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("over", ["nothing", "a deletion"])
def test_a_compare_and_set_that_is_run_again_does_not_conflict_with_itself(
    cluster: Cluster, unique: str, replicas: int, over: str
) -> None:
    with NatsPy(cluster.urls.split(",")) as client:
        kv = Kv(client, unique, history=5, replicas=replicas)
        last = kv.put("u", b"1")
        if over == "a deletion":
            kv.put("c", b"old")
            kv.delete("c")
        rows = entries(key=["c", "u"], value=[b"created", b"updated"], expected_revision=[0, last])
        writer = source(cluster.urls, bucket=unique).writer(from_arrow_schema(rows.schema), overwrite=False)
        for _ in range(3):  # the same task, tried again
            pickle.loads(pickle.dumps(writer)).write(iter(rows.to_batches()))
        assert kv.contents() == {"c": b"created", "u": b"updated"}
        assert [value for value, _ in kv.history("u")] == [b"1", b"updated"]
        assert [value for value, _ in kv.history("c")][-1:] == [b"created"]
        assert sum(value == b"created" for value, _ in kv.history("c")) == 1


@pytest.mark.promise("exactly-once#bucket")
def test_a_compare_and_set_that_is_run_again_after_the_window_does_not_conflict_with_itself(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    config = {"max_msgs_per_subject": 5, "duplicate_window": 100_000_000, "allow_rollup_hdrs": True}
    nats_py.create_stream(f"KV_{unique}", subjects=[f"$KV.{unique}.>"], allow_direct=True, **config)
    kv = Kv(nats_py, unique)
    rows = entries(key=[f"k{i}" for i in range(500)], value=[b"1"] * 500, expected_revision=[0] * 500)
    writer = source(nats_server, bucket=unique).writer(from_arrow_schema(rows.schema), overwrite=False)
    writer.write(iter(rows.to_batches()))
    kv.put("k7", b"theirs")  # somebody goes on from what we have stored

    def is_forgotten() -> bool:  # its message id, by the server
        before = nats_py.stream_info(f"KV_{unique}")["state"]["last_seq"]
        return nats_py.publish_acked([(f"$KV.{unique}.probe", b"", {"Nats-Msg-Id": "probe"})])[0] == before + 1

    is_forgotten()

    wait_until(is_forgotten)
    writer.write(iter(rows.to_batches()))
    assert {key: value for key, value in kv.contents().items() if key != "probe"} == {
        f"k{i}": b"theirs" if i == 7 else b"1" for i in range(500)
    }


def test_no_update_is_lost_in_a_race_with_another_client(cluster: Cluster, unique: str) -> None:
    """Both count up the same keys, each by reading and by compare-and-set, and try again where the other was faster."""
    keys, rounds = [f"n{i}" for i in range(5)], 20
    with NatsPy(cluster.urls.split(",")) as client:
        kv = Kv(client, unique, history=1, replicas=3)
        for key in keys:
            kv.put(key, b"0")

        def others() -> None:
            with NatsPy(cluster.urls.split(",")) as own:
                mine, choice = Kv(own, unique), random.Random(1)
                for _ in range(rounds):
                    while True:
                        key = choice.choice(keys)
                        value, last = mine.last(key)
                        try:
                            mine.update(key, b"%d" % (int(value) + 1), last)
                            break
                        except KeyWrongLastSequenceError:
                            pass

        def ours() -> None:
            choice = random.Random(2)
            for _ in range(rounds):
                while True:
                    key = choice.choice(keys)
                    value, last = kv.last(key)
                    rows = entries(key=[key], value=[b"%d" % (int(value) + 1)], expected_revision=[last])
                    try:
                        write(cluster.urls, rows, bucket=unique)
                        break
                    except PublishError:
                        pass

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(others), pool.submit(ours)]:
                done.result(120)
        wait_until(lambda: sum(map(int, kv.contents().values())) == 2 * rounds)


# Lifetimes


@pytest.fixture
def ageing(nats_server: Server, nats_py: NatsPy, unique: str) -> Kv:
    """A bucket that says when keys have expired."""
    requested = '{"history": 2, "limit_marker_ttl": "1s"}'
    write(nats_server, entries(key=["first"], value=[b""]), bucket=unique, createBucket=requested)
    return Kv(nats_py, unique)


@pytest.mark.needs("ttl")
def test_keys_that_are_created_with_a_lifetime_expire(nats_server: Server, ageing: Kv) -> None:
    rows = entries(key=["a", "b"], value=[b"1", b"2"], expected_revision=[0, 0], ttl=["1s", None])
    write(nats_server, rows, bucket=ageing.name)
    wait_until(lambda: set(ageing.contents()) == {"first", "b"})


@pytest.mark.needs("ttl")
def test_a_put_cannot_have_a_lifetime(nats_server: Server, ageing: Kv) -> None:
    for revision in (None, 3):
        rows = entries(key=["a"], value=[b"1"], expected_revision=[revision], ttl=["1s"])
        told = sentence_of(lambda rows=rows: write(nats_server, rows, bucket=ageing.name))
        assert "column 'ttl' is for keys that are created (expected_revision 0) and for PURGE" in told


@pytest.mark.needs("ttl")
def test_a_lifetime_below_a_second_is_refused(nats_server: Server, ageing: Kv) -> None:
    rows = entries(key=["a"], value=[b"1"], expected_revision=[0], ttl=["500ms"])
    assert "column 'ttl' is '500ms'; it must be a time from 1s" in sentence_of(
        lambda: write(nats_server, rows, bucket=ageing.name)
    )


@pytest.mark.needs("ttl")
def test_a_bucket_whose_keys_cannot_expire_is_told_at_once(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    rows = entries(key=["a"], value=[b"1"], expected_revision=[0], ttl=["1h"])
    told = sentence_of(lambda: write(nats_server, rows, bucket=unique, createBucket="true"))
    assert f"bucket '{unique}' does not allow lifetimes of single keys" in told
    assert Kv(nats_py, unique).contents() == {}
