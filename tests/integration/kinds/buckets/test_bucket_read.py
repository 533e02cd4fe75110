"""Reading KV buckets, with nats-py's KV as the other side: what they hold in batches, and what changes in streaming."""

from __future__ import annotations

import json
import logging
import pickle
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import KeyValueConfig, StorageType
from nats.js.kv import KeyValue
from pyspark.sql.types import ArrayType, BinaryType, LongType, MapType, StringType, StructType, TimestampType

from spark_nats.jetstream.reading import pulls
from spark_nats.kinds.buckets import entries
from spark_nats.protocol.consumers import ConsumerInfo
from tests.integration.forwarding import FormerLeader, ForwardedApi, unheard_of
from tests.integration.support import Query, batch_reader, read, read_partitions, sentence_of, stream_reader
from tests.nats_py import NatsPy, wait_until
from tests.servers import OLDER_BINARY, Server, ServerFactory

pytestmark = pytest.mark.timeout(150)

ENTRY = (
    StructType()
    .add("bucket", StringType())
    .add("key", StringType())
    .add("value", BinaryType())
    .add("revision", LongType())
    .add("created", TimestampType())
    .add("operation", StringType())
    .add("headers", MapType(StringType(), ArrayType(StringType())))
)
"""All columns of an entry."""
KEY = StructType().add("key", StringType())
VALUE = StructType().add("key", StringType()).add("value", BinaryType())
CHANGE = StructType().add("key", StringType()).add("value", BinaryType()).add("operation", StringType())


def bucket(client: NatsPy, name: str, **config: Any) -> KeyValue:
    """Make a bucket as nats-py does."""
    return client.run(client.nats.jetstream().create_key_value(KeyValueConfig(bucket=name, **config)))


def read_values(server: Server | str, name: str, **options: Any) -> dict[str, bytes]:
    """What a batch finds, each key once."""
    rows = read(server, VALUE, bucket=name, **options)
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), [key for key, n in Counter(row["key"] for row in rows).items() if n > 1][:5]
    return found


def changes(server: Server | str, name: str, **options: Any) -> Query:
    return Query(stream_reader(server, CHANGE, bucket=name, **{"startingOffsets": "earliest", **options}))


def told(rows: list[dict[str, Any]]) -> list[tuple[str, bytes, str]]:
    return [(row["key"], row["value"], row["operation"]) for row in rows]


# What a bucket holds


def test_a_batch_has_the_current_value_of_every_key(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=5)
    for value in (b"1", b"2", b"3"):
        nats_py.run(kv.put("a.b", value))
    nats_py.run(kv.put("gone", b"x"))
    nats_py.run(kv.delete("gone"))
    nats_py.run(kv.put("purged", b"x"))
    nats_py.run(kv.purge("purged"))
    nats_py.run(kv.put("empty", b""))
    entry = nats_py.run(kv.get("a.b"))
    rows = read(nats_server, ENTRY, bucket=unique)
    assert [(row["bucket"], row["key"], row["value"], row["operation"], row["headers"]) for row in rows] == [
        (unique, "a.b", b"3", "PUT", []),
        (unique, "empty", b"", "PUT", []),
    ]
    assert rows[0]["revision"] == entry.revision
    assert rows[0]["created"] <= datetime.now(UTC)
    everything = read(nats_server, ENTRY, bucket=unique, ignoreDeletes="false")
    assert [(row["key"], row["operation"], dict(row["headers"])) for row in everything] == [
        ("a.b", "PUT", {}),
        ("gone", "DEL", {"KV-Operation": ["DEL"]}),
        ("purged", "PURGE", {"KV-Operation": ["PURGE"], "Nats-Rollup": ["sub"]}),
        ("empty", "PUT", {}),
    ]


def test_history_has_every_revision_that_is_kept(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=64)
    revisions = [nats_py.run(kv.put(f"k{i % 3}", str(i).encode())) for i in range(300)]
    nats_py.run(kv.delete("k0"))
    rows = read(nats_server, ENTRY, bucket=unique, history="true", ignoreDeletes="false")
    kept = nats_py.read_stream(f"KV_{unique}")
    assert len(kept) == 3 * 64
    assert [(row["key"], row["value"], row["revision"]) for row in rows] == [
        (each.subject.removeprefix(f"$KV.{unique}."), each.payload, each.sequence) for each in kept
    ]
    assert [row["operation"] for row in rows] == ["PUT"] * 191 + ["DEL"]
    assert len(read(nats_server, KEY, bucket=unique, history="true", keys="k1")) == 64
    assert [row["revision"] for row in read(nats_server, ENTRY, bucket=unique)] == revisions[-2:]


@pytest.mark.parametrize("history", [1, 3])
def test_keys_are_chosen_by_wildcards_and_read_in_parallel(
    nats_server: Server, nats_py: NatsPy, unique: str, history: int
) -> None:
    bucket(nats_py, unique, history=history)
    entries = {f"{site}.{i}.{kind}": b"v" for site in ("eu", "us", "asia") for i in range(50) for kind in ("a", "b")}
    nats_py.put(unique, entries)
    reader = batch_reader(nats_server, KEY, bucket=unique, keys="eu.>, us.*.a, asia.7.b, nothing.>")
    partitions = reader.partitions()
    assert len(partitions) == 4
    found = [{row["key"] for row in read_partitions(pickle.dumps(reader), [each])} for each in partitions]
    assert found == [
        {key for key in entries if key.startswith("eu.")},
        {key for key in entries if key.startswith("us.") and key.endswith("a")},
        {"asia.7.b"},
        set(),
    ]


def test_keys_may_have_every_legal_character(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique)
    legal = string.ascii_letters + string.digits + "-/_="
    keys = [*legal, *(f"a.{character}b" for character in legal), legal, f"{legal}.{legal}", ".".join(legal)]
    for i, key in enumerate(keys):
        nats_py.run(kv.put(key, str(i).encode()))
    assert read_values(nats_server, unique) == {key: str(i).encode() for i, key in enumerate(keys)}
    assert [key for key, *_ in told(changes(nats_server, unique).rows(len(keys)))] == keys


def test_keys_that_other_clients_would_refuse_are_read_and_chosen(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    """Servers take them, and some clients write them."""
    bucket(nats_py, unique)
    entries = {key: key.encode() for key in ("config:key", "peer.127~3127", "ä", "a&b", "_kv_x", "config:key.a")}
    nats_py.put(unique, entries)
    assert read_values(nats_server, unique) == entries
    assert [key for key, *_ in told(changes(nats_server, unique).rows(len(entries)))] == list(entries)
    for keys, expected in {
        "config:key": ["config:key"],
        "a&b,ä": ["a&b", "ä"],
        "config:key,config:key.*,_kv_x": ["_kv_x", "config:key", "config:key.a"],
    }.items():
        assert sorted(read_values(nats_server, unique, keys=keys)) == expected
        reader = changes(nats_server, unique, keys=keys)
        assert sorted(key for key, *_ in told(reader.rows(len(expected)))) == expected


@pytest.mark.parametrize("history", [1, 2])
def test_an_empty_bucket_is_an_empty_table(nats_server: Server, nats_py: NatsPy, unique: str, history: int) -> None:
    kv = bucket(nats_py, unique, history=history)
    assert read(nats_server, ENTRY, bucket=unique) == []
    assert read(nats_server, ENTRY, bucket=unique, history="true") == []
    nats_py.run(kv.put("a", b"1"))
    assert read(nats_server, ENTRY, bucket=unique, keys="b") == []
    nats_py.run(kv.delete("a"))
    assert read(nats_server, ENTRY, bucket=unique) == []
    nats_py.purge_stream(f"KV_{unique}")
    assert read(nats_server, ENTRY, bucket=unique, ignoreDeletes="false") == []


def test_values_of_a_megabyte_are_read(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket(nats_py, unique, history=2)
    size = nats_py.nats.max_payload
    entries = {f"k{i}": bytes([i]) * (size - i) for i in range(12)}
    nats_py.put(unique, entries)
    assert read_values(nats_server, unique) == entries


def test_a_bucket_that_does_not_exist_is_named_with_one_that_is_similar(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    bucket(nats_py, f"{unique}_CONFIG")
    missing = f"{unique}_CONFG"
    expected = (
        f"StreamNotFoundError: the bucket '{missing}' does not exist (there is '{unique}_CONFIG'); create it, or set "
        "the option 'createBucket'"
    )
    assert sentence_of(lambda: read(nats_server, KEY, bucket=missing)) == expected
    assert sentence_of(lambda: changes(nats_server, missing, startingOffsets="latest")) == expected


@pytest.mark.needs("ttl")
def test_a_bucket_that_is_missing_is_made_as_it_is_wished(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    requested = json.dumps({"history": 7, "max_age": "1h", "limit_marker_ttl": "5s", "storage": "memory"})
    assert read(nats_server, KEY, bucket=unique, createBucket=requested) == []
    assert read(nats_server, KEY, bucket=unique, createBucket="true") == []
    status = nats_py.run(nats_py.run(nats_py.nats.jetstream().key_value(unique)).status())
    assert (status.history, status.ttl, status.bucket) == (7, 3600, unique)
    assert nats_py.stream_info(f"KV_{unique}")["config"]["subject_delete_marker_ttl"] == 5_000_000_000
    query = changes(nats_server, f"{unique}_2", createBucket="true")
    nats_py.put(f"{unique}_2", {"a": b"1"})
    assert told(query.rows(1)) == [("a", b"1", "PUT")]


def test_other_columns_than_those_of_a_bucket_are_refused(nats_server: Server, unique: str) -> None:
    error = sentence_of(lambda: batch_reader(nats_server, StructType().add("payload", BinaryType()), bucket=unique))
    assert error.startswith("SchemaError: an entry of a KV bucket has no column 'payload'; its columns are bucket STR")
    error = sentence_of(lambda: stream_reader(nats_server, StructType().add("value", StringType()), bucket=unique))
    assert error.startswith("SchemaError: column 'value' is BINARY, not STRING; the columns are bucket STRING, key ")


def test_a_mirror_and_a_bucket_that_sources_others_have_their_keys(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    bucket(nats_py, unique, history=2)
    nats_py.put(unique, {"a.b": b"1", "c": b"2"})
    nats_py.api(
        f"STREAM.CREATE.KV_{unique}_M",
        {"name": f"KV_{unique}_M", "mirror": {"name": f"KV_{unique}"}, "max_msgs_per_subject": 2},
    )
    nats_py.create_stream(
        f"KV_{unique}_S",
        [f"$KV.{unique}_S.>"],
        sources=[{"name": f"KV_{unique}"}],
        max_msgs_per_subject=1,
    )
    nats_py.put(f"{unique}_S", {"own": b"3"})
    for name, messages in ((f"{unique}_M", 2), (f"{unique}_S", 3)):
        wait_until(lambda: nats_py.held(f"KV_{name}") == messages)  # noqa: B023
    assert read_values(nats_server, f"{unique}_M") == {"a.b": b"1", "c": b"2"}
    assert read_values(nats_server, f"{unique}_M", keys="a.*") == {"a.b": b"1"}
    assert read_values(nats_server, f"{unique}_S") == {"a.b": b"1", "c": b"2", "own": b"3"}
    assert [key for key, *_ in told(changes(nats_server, f"{unique}_S", keys="a.>").rows(1))] == ["a.b"]


HOSTILE = [
    ({}, "PUT"),
    ({"KV-Operation": "PUT"}, "PUT"),
    ({"KV-Operation": ""}, "PUT"),
    ({"KV-Operation": "DEL"}, "DEL"),
    ({"KV-Operation": "PURGE"}, "PURGE"),
    ({"KV-Operation": "ROTATE"}, "DEL"),
    ({"kv-operation": "DEL"}, "PUT"),
    ({"X": "KV-Operation: DEL"}, "PUT"),
    ({"X-KV-Operation": "DEL"}, "PUT"),
    ({"X": "ü", "KV-Operation": "DEL"}, "DEL"),
    ({"Nats-Marker-Reason": "MaxAge"}, "PURGE"),
    ({"Nats-Marker-Reason": "Purge"}, "PURGE"),
    ({"Nats-Marker-Reason": "Remove"}, "DEL"),
    ({"Nats-Marker-Reason": "Remove", "KV-Operation": "PURGE"}, "PURGE"),
    ({"Nats-Marker-Reason": "MaxAge", "KV-Operation": "DEL"}, "DEL"),
]


def test_headers_say_what_was_done_to_a_key(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket(nats_py, unique)
    nats_py.publish_acked([(f"$KV.{unique}.k{i}", b"v", headers) for i, (headers, _) in enumerate(HOSTILE)])
    rows = read(nats_server, CHANGE, bucket=unique, ignoreDeletes="false")
    assert [row["operation"] for row in rows] == [operation for _, operation in HOSTILE]
    puts = [f"k{i}" for i, (_, operation) in enumerate(HOSTILE) if operation == "PUT"]
    assert [row["key"] for row in read(nats_server, KEY, bucket=unique)] == puts
    assert [key for key, *_ in told(changes(nats_server, unique, ignoreDeletes="true").rows(len(puts)))] == puts


# While it is written to


@contextmanager
def writing(server: Server, write: Callable[[NatsPy, random.Random], None], times: int) -> Iterator[None]:
    """Have three nats-py clients write so many times each beside the block, without a pause."""

    def run(seed: int) -> None:
        chance = random.Random(seed)
        with NatsPy(server.url) as client:
            for _ in range(times):
                write(client, chance)

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(run, seed) for seed in range(3)]
        yield
        for writer in writers:
            writer.result()


@pytest.mark.parametrize(
    "history", [*(pytest.param(n, marks=pytest.mark.long("spark_nats/jetstream/*")) for n in (1, 5)), 2]
)
def test_keys_that_are_written_again_during_the_read_are_there_once_each(
    nats_server: Server, nats_py: NatsPy, unique: str, history: int
) -> None:
    bucket(nats_py, unique, history=history)
    keys = [f"k{i}" for i in range(5_000)]
    nats_py.put(unique, dict.fromkeys(keys, b"0" * 100))

    def rewrite(client: NatsPy, chance: random.Random) -> None:
        client.put(unique, dict.fromkeys([*chance.choices(keys, k=150), *keys[:20]], b"1" * 100))
        client.publish_acked([(f"$KV.{unique}.k{chance.randrange(5_000)}", b"2", {"Nats-Rollup": "sub"})])

    for _ in range(5):
        with writing(nats_server, rewrite, times=10):
            assert read_values(nats_server, unique).keys() == set(keys)
            assert read_values(nats_server, unique, keys="k1,k2,k4999").keys() == {"k1", "k2", "k4999"}


def test_the_keys_that_a_consumer_has_to_deliver_count_only_if_none_was_written_as_it_was_created(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server counts one too few now and then. A key that moves would then be missing, and nothing would say so."""
    bucket(nats_py, unique, history=2)
    keys = [f"k{i}" for i in range(50)]
    nats_py.put(unique, dict.fromkeys(keys, b"0"))
    create, created = entries.create_ephemeral, []

    def written_meanwhile(*args: Any, **options: Any) -> ConsumerInfo:
        made = create(*args, **options)
        if created:
            return made
        created.append(made)
        nats_py.put(unique, dict.fromkeys(keys[20:], b"1"))
        nats_py.publish_acked([(f"$KV.{unique}.k7", b"2", {"Nats-Rollup": "sub"})])
        return replace(made, pending=made.pending - 1)

    monkeypatch.setattr(entries, "create_ephemeral", written_meanwhile)
    monkeypatch.setattr(pulls, "PULL_BYTES", 1)  # one message after the other, so that they end before the moved key
    found = read_values(nats_server, unique)
    assert (found.keys(), found["k7"]) == (set(keys), b"2")


def test_no_revision_is_passed_over_that_a_former_leader_does_not_know(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    kv, former = bucket(nats_py, unique, history=5), FormerLeader(0)
    for value in (b"1", b"2", b"3"):
        nats_py.run(kv.put("k", value))
    api = ForwardedApi(nats_py)
    api.answers |= {"STREAM.INFO": unheard_of, "STREAM.MSG.GET": former}
    api.answers["CONSUMER.CREATE"] = lambda answer: {**answer, "num_pending": 0}  # so that the leader is asked
    with api.serving():
        rows = read(nats_server, VALUE, bucket=unique, history="true", apiPrefix=api.PREFIX)
    assert [row["value"] for row in rows] == [b"1", b"2", b"3"]
    assert former.hidden


def test_all_of_a_history_that_grows_during_the_read_is_there(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    bucket(nats_py, unique, history=3)
    keys = [f"k{i}" for i in range(2_000)]
    for round_ in range(3):
        nats_py.put(unique, dict.fromkeys(keys, str(round_).encode()))

    def rewrite(client: NatsPy, chance: random.Random) -> None:
        client.put(unique, dict.fromkeys(chance.choices(keys, k=100), b"3"))

    for _ in range(3):
        with writing(nats_server, rewrite, times=10):
            rows = read(nats_server, ENTRY, bucket=unique, history="true")
        revisions = [row["revision"] for row in rows]
        assert revisions == sorted(set(revisions))
        assert {row["key"] for row in rows} == set(keys)


@pytest.mark.parametrize(
    "binary",
    [None, pytest.param(OLDER_BINARY, marks=pytest.mark.long("spark_nats/jetstream/*"))],
    ids=["present", "older"],
)
@pytest.mark.parametrize("storage", ["file", pytest.param("memory", marks=pytest.mark.long("spark_nats/jetstream/*"))])
def test_a_read_goes_on_behind_revisions_that_are_gone_when_it_comes_to_them(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, binary: Path | None, storage: str
) -> None:
    """A server's list of the last revisions has holes then, at which it stands still."""
    monkeypatch.setattr(pulls, "PULL_BYTES", 2_000)  # so that the server does not come far by itself
    server = server_factory(binary=binary)
    with NatsPy(server.url) as client:
        bucket(client, "B", history=2, storage=StorageType(storage))
        client.put("B", {f"k{i}": b"0" for i in range(2_000)})
        reader = batch_reader(server, VALUE, bucket="B")
        batches = reader.read(*reader.partitions())
        rows = next(batches).to_pylist()
        for value in (b"1", b"2"):
            client.put("B", {f"k{i}": value for i in (*range(500, 530), *range(1000, 1200, 5), 1999)})
        client.put("B", {"new": b"3"})
        rows += [row for batch in batches for row in batch.to_pylist()]
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows)
    assert found.keys() - {"new"} == {f"k{i}" for i in range(2_000)}
    assert {found[f"k{i}"] for i in range(500, 530)} == {b"2"}


@pytest.mark.parametrize("history", [1, pytest.param(3, marks=pytest.mark.long("spark_nats/jetstream/*"))])
@pytest.mark.parametrize("everything", [False, True], ids=["values", "revisions"])
def test_thousands_of_keys_that_move_during_the_read_take_few_consumers(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, history: int, everything: bool
) -> None:
    monkeypatch.setattr(pulls, "PULL_BYTES", 2_000)
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 20)
    server = server_factory()
    keys = [f"k{i}" for i in range(5_000)]
    with NatsPy(server.url) as client, client.collect("$JS.API.CONSUMER.CREATE.KV_B.>") as made:
        bucket(client, "B", history=history)
        client.put("B", dict.fromkeys(keys, b"0" * 100))
        reader = batch_reader(server, ENTRY, bucket="B", history=everything)
        batches = reader.read(*reader.partitions())
        rows = next(batches).to_pylist()
        monkeypatch.undo()
        for _ in range(history):
            client.put("B", dict.fromkeys(keys, b"1" * 100))
        client.put("B", {"k7": b"2"})
        rows += [row for batch in batches for row in batch.to_pylist()]
    revisions = [row["revision"] for row in rows]
    assert revisions == sorted(set(revisions))
    assert {row["key"] for row in rows} == set(keys)
    assert everything or len(rows) == len(keys)
    assert len(made.messages) < 10


def test_a_key_that_alone_moves_is_not_taken_for_the_last_message_that_comes_twice(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its list of the last revisions, a consumer delivers the stream's last message of then once more."""
    monkeypatch.setattr(pulls, "PULL_BYTES", 1)  # one message after the other
    server = server_factory()
    with NatsPy(server.url) as client:
        bucket(client, "B", history=2)
        client.put("B", {f"k{i}": b"0" for i in range(100)})
        reader = batch_reader(server, VALUE, bucket="B")
        batches = reader.read(*reader.partitions())
        rows = next(batches).to_pylist()
        for value in (b"1", b"2"):
            client.put("B", {"k50": value})
        rows += [row for batch in batches for row in batch.to_pylist()]
    assert sorted(row["key"] for row in rows) == sorted(f"k{i}" for i in range(100))


@pytest.mark.parametrize("history", [1, 3])
def test_a_server_that_restarts_in_the_middle_costs_no_key_and_doubles_none(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, history: int
) -> None:
    monkeypatch.setattr(pulls, "PULL_BYTES", 20_000)
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 100)
    server = server_factory()
    with NatsPy(server.url) as client:
        bucket(client, "B", history=history)
        client.put("B", {f"k{i}": b"0" * 50 for i in range(2_000)})
    reader = batch_reader(server, VALUE, bucket="B", reconnectWait="100ms")
    batches = reader.read(*reader.partitions())
    rows = [row for _ in range(3) for row in next(batches).to_pylist()]
    server.kill()
    server.start()
    with NatsPy(server.url) as client:
        client.put("B", {f"k{i}": b"1" for i in (3, 700, 1999)})
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert sorted(row["key"] for row in rows) == sorted(f"k{i}" for i in range(2_000))


def test_a_bucket_that_goes_in_the_middle_is_an_error(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "PULL_MESSAGES", 100)
    for again in (False, True):
        bucket(nats_py, unique)
        nats_py.put(unique, {f"k{i}": b"0" * 50 for i in range(2_000)})
        reader = batch_reader(nats_server, VALUE, bucket=unique)
        batches = reader.read(*reader.partitions())
        next(batches)
        nats_py.delete_stream(f"KV_{unique}")
        if again:
            bucket(nats_py, unique)

        def read_on() -> None:
            rows = sum(batch.num_rows for batch in batches)  # noqa: B023
            pytest.fail(f"{rows} more rows, and then {nats_py.api(f'STREAM.INFO.KV_{unique}')}")

        error = sentence_of(read_on)
        assert ("deleted and created again at" if again else "was deleted while it was read") in error
        assert unique in error


# What changes


def test_streaming_has_every_change_with_what_was_done(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    kv = bucket(nats_py, unique, history=10)
    query = changes(nats_server, unique)
    nats_py.run(kv.put("a", b"1"))
    nats_py.run(kv.put("b.c", b"2"))
    nats_py.run(kv.delete("a"))
    assert told(query.rows(3)) == [("a", b"1", "PUT"), ("b.c", b"2", "PUT"), ("a", b"", "DEL")]
    nats_py.run(kv.put("a", b"3"))
    nats_py.run(kv.purge("b.c"))
    assert told(query.rows(2)) == [("a", b"3", "PUT"), ("b.c", b"", "PURGE")]
    assert list(query.offset) == [f"KV_{unique}"]


def keep_markers(client: NatsPy, name: str) -> None:
    """Have a bucket keep for an hour what it says of values that expire from now on, so that nobody comes too late.

    A value lives at least as long as that is when it is put.
    """
    config = client.stream_info(f"KV_{name}")["config"]
    client.api(f"STREAM.UPDATE.KV_{name}", {**config, "subject_delete_marker_ttl": 3600 * 10**9})


@pytest.mark.needs("ttl")
def test_values_that_expire_are_rows_within_a_trigger(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    requested = {"history": 5, "max_age": "1h", "limit_marker_ttl": "1s"}
    query = changes(nats_server, unique, createBucket=json.dumps(requested))
    nats_py.publish_acked([(f"$KV.{unique}.lease", b"1", {"Nats-TTL": "1s"}), (f"$KV.{unique}.kept", b"2", None)])
    keep_markers(nats_py, unique)
    rows: list[Any] = []

    def has_expired() -> bool:
        rows.extend(told(query.micro_batch()))
        return ("lease", b"", "PURGE") in rows

    wait_until(has_expired)
    # The value of the lease is read by those who come within its second.
    assert [row for row in rows if row != ("lease", b"1", "PUT")] == [("kept", b"2", "PUT"), ("lease", b"", "PURGE")]
    assert read_values(nats_server, unique) == {"kept": b"2"}


def test_the_changes_are_those_that_a_watcher_sees_in_its_order(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    kv = bucket(nats_py, unique, history=64)
    watcher = nats_py.run(kv.watchall())
    chance = random.Random(7)
    query = changes(nats_server, unique, maxRecordsPerPartition=100)
    for i in range(400):
        key = f"k{chance.randrange(20)}"
        nats_py.run(kv.delete(key) if chance.random() < 0.2 else kv.put(key, str(i).encode()))
    seen = []
    while len(seen) < 400:
        if (
            entry := nats_py.run(watcher.updates(timeout=60))
        ) is not None:  # nats-py's sign that the present is reached
            (operation,) = entry.operation or ["PUT"]  # a list, by way of the tests' client
            seen.append((entry.key, entry.value or b"", operation))
    nats_py.run(watcher.stop())
    assert told(query.rows(400)) == seen


def test_revisions_that_were_compacted_away_are_no_loss_and_no_noise(
    nats_server: Server, nats_py: NatsPy, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket(nats_py, unique, history=1)
    keys = [f"k{i}" for i in range(50)]
    nats_py.put(unique, dict.fromkeys(keys, b"0"))
    early = changes(nats_server, unique)
    late = changes(nats_server, unique, startingOffsets=json.dumps({unique: 1}), maxOffsetsPerTrigger=20)
    part = changes(nats_server, unique, keys="k7")
    assert len(early.rows(50)) == 50
    planned = batch_range(early)
    for round_ in range(1, 200):
        nats_py.put(unique, dict.fromkeys(keys, str(round_).encode()))
    nats_py.purge_stream(f"KV_{unique}", filter=f"$KV.{unique}.k0")
    expected = [(key, b"199", "PUT") for key in keys[1:]]
    assert read_partitions(pickle.dumps(early.reader), planned) == []
    assert told(early.rows(49)) == expected
    assert told(late.rows(49)) == expected
    assert told(part.rows(1)) == [("k7", b"199", "PUT")]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def batch_range(query: Query) -> list[Any]:
    """The partitions of all that the query has read."""
    start = {name: {**entry, "next": 1} for name, entry in query.offset.items()}
    end = {name: {"created": entry["created"], "next": entry["next"]} for name, entry in query.offset.items()}
    partitions: list[Any] = query.reader.partitions(start, end)
    assert partitions
    return partitions


def test_changes_of_other_keys_make_no_micro_batches(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket(nats_py, unique)
    query = changes(nats_server, unique, keys="mine.>")
    nats_py.put(unique, {"other": b"0"})
    query.look(nats_py)
    before = query.offset
    for i in range(5):
        nats_py.put(unique, {"other": str(i).encode()})
        query.look(nats_py)
        assert query.offset == before
    nats_py.put(unique, {"mine.a": b"1"})
    assert told(query.rows(1)) == [("mine.a", b"1", "PUT")]


def test_a_bucket_that_was_made_again_is_a_loss(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    bucket(nats_py, unique)
    nats_py.put(unique, {"a": b"1"})
    query = changes(nats_server, unique)
    forgiving = changes(nats_server, unique, failOnDataLoss="false")
    assert len(query.rows(1)) == len(forgiving.rows(1)) == 1
    nats_py.delete_stream(f"KV_{unique}")
    bucket(nats_py, unique)
    nats_py.put(unique, {"b": b"2"})
    assert "was deleted and created again" in sentence_of(lambda: query.rows(1))
    assert told(forgiving.rows(1)) == [("b", b"2", "PUT")]
