"""A mirror answers the direct gets of its origin, whatever its configuration asks for; what it says is not taken.

Nor does it take anything from others than its origin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.commands.test_permissions import hub_and_leaf
from tests.integration.support import MESSAGE, Query, numbers_of, read, run_task, sentence_of, stream_reader, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server, ServerFactory

MESSAGES, DELETED = 100, 50
ATTEMPTS = 4
"""How often each is read: the server chooses which of the two answers."""


@pytest.fixture(autouse=True)
def _tries_direct_gets_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_nats.jetstream.api.REFUSED_FOR", 0.0)


def _filtered(stream: str) -> dict[str, Any]:
    return {"filter_subject": f"{stream}.eu"}


def _transformed(stream: str) -> dict[str, Any]:
    return {"subject_transforms": [{"src": f"{stream}.>", "dest": "other.>"}]}


def _full(stream: str) -> dict[str, Any]:
    return {}


MIRRORS = {"filtered": _filtered, "transform_subject": _transformed, "full": _full}


@pytest.fixture(params=MIRRORS)
def mirrored(request: pytest.FixtureRequest, nats_py: NatsPy, unique: str) -> str:
    """A stream of a hundred messages on two subjects in turn, of which one is deleted, but not in its mirror."""
    kind: Callable[[str], dict[str, Any]] = MIRRORS[request.param]
    nats_py.create_stream(unique, allow_direct=True)
    nats_py.publish_acked((f"{unique}.{('us', 'eu')[i % 2]}", b"%d" % i) for i in range(1, MESSAGES + 1))
    mirror = f"{unique}_MIRROR"
    config = {"name": mirror, "mirror": {"name": unique, **kind(unique)}, "mirror_direct": False}
    nats_py.api(f"STREAM.CREATE.{mirror}", config)
    expected = MESSAGES // 2 if request.param == "filtered" else MESSAGES
    wait_until(lambda: nats_py.held(mirror) == expected)
    nats_py.delete_message(unique, DELETED)
    return unique


def left(start: int = 1, step: int = 1) -> list[int]:
    return [i for i in range(start, MESSAGES + 1, step) if i != DELETED]


def test_a_batch_has_the_rows_of_the_stream_that_it_names(nats_server: Server, mirrored: str) -> None:
    for partitions in (1, 10) * ATTEMPTS:
        rows = read(nats_server, MESSAGE, stream=mirrored, maxRecordsPerPartition=MESSAGES // partitions)
        assert numbers_of(rows) == left()
        assert {row["subject"] for row in rows} == {f"{mirrored}.us", f"{mirrored}.eu"}
        assert {row["stream"] for row in rows} == {mirrored}


@pytest.mark.parametrize("subject", ["us", "eu"])
def test_a_filter_matches_the_subjects_of_the_stream(nats_server: Server, mirrored: str, subject: str) -> None:
    for _ in range(ATTEMPTS):
        found = numbers_of(read(nats_server, MESSAGE, stream=mirrored, subject=f"{mirrored}.{subject}"))
        assert found == left(start=2 if subject == "us" else 1, step=2)


def test_a_limit_gives_the_first_messages_of_the_stream(nats_server: Server, mirrored: str) -> None:
    for _ in range(ATTEMPTS):
        assert numbers_of(read(nats_server, MESSAGE, stream=mirrored, limit=10)) == left()[:10]


def test_a_streaming_query_reads_the_stream_and_not_its_mirror(nats_server: Server, mirrored: str) -> None:
    for _ in range(ATTEMPTS):
        query = Query(stream_reader(nats_server, MESSAGE, stream=mirrored, startingOffsets="earliest"))
        assert numbers_of(query.micro_batch()) == left()
        assert query.micro_batch() == []


def test_the_end_of_a_purged_stream_does_not_come_back_from_a_backup(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, allow_direct=True)
    nats_py.publish_acked((f"{unique}.a", b"%d" % i) for i in range(1, 21))
    nats_py.api(f"STREAM.CREATE.{unique}_MIRROR", {"name": f"{unique}_MIRROR", "mirror": {"name": unique}})
    wait_until(lambda: nats_py.held(f"{unique}_MIRROR") == 20)
    nats_py.purge_stream(unique, seq=3)
    for _ in range(2 * ATTEMPTS):
        assert numbers_of(read(nats_server, MESSAGE, stream=unique)) == list(range(3, 21))


@pytest.mark.needs("filtered copies")
def test_a_work_queue_is_read_and_not_what_its_mirror_has_taken_from_it(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, allow_direct=True, retention="workqueue")
    nats_py.publish_acked((f"{unique}.{('us', 'eu')[i % 2]}", b"%d" % i) for i in range(1, 21))
    mirror = {"name": unique, "filter_subject": f"{unique}.eu"}
    nats_py.api(f"STREAM.CREATE.{unique}_MIRROR", {"name": f"{unique}_MIRROR", "mirror": mirror})
    wait_until(lambda: nats_py.held(f"{unique}_MIRROR") == nats_py.held(unique) == 10)
    for _ in range(ATTEMPTS):
        assert numbers_of(read(nats_server, MESSAGE, stream=unique, peek=True)) == list(range(2, 21, 2))


WRITES: dict[str, tuple[str, str, pa.Table]] = {
    "stream": ("", "stream", pa.table({"subject": ["orders.a"], "payload": ["1"]})),
    "bucket": ("KV_", "bucket", pa.table({"key": ["a"], "value": ["1"]})),
    "object store": ("OBJ_", "objectStore", pa.table({"name": ["a"], "content": ["1"]})),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_mirror_that_is_written_to_says_what_it_mirrors(
    nats_server: Server, nats_py: NatsPy, unique: str, what: str
) -> None:
    prefix, option, rows = WRITES[what]
    nats_py.create_stream(f"{prefix}{unique}", [f"{unique}.>"])
    nats_py.create_stream(f"{prefix}{unique}_M", [], mirror={"name": f"{prefix}{unique}"})
    assert sentence_of(lambda: write(nats_server, rows, **{option: f"{unique}_M"})) == (
        f"PublishError: {what} '{unique}_M' is a mirror of {what} '{unique}', and stores only messages from there; "
        f"nothing was sent; write to {what} '{unique}' instead"
    )


@pytest.mark.parametrize(
    ("prefix", "where"),
    [("$JS.hub.API", "in domain 'hub'"), ("JS.owner.API", "through the API 'JS.owner.API'")],
)
def test_a_mirror_of_what_is_elsewhere_says_where_that_is(
    server_factory: ServerFactory, prefix: str, where: str
) -> None:
    hub, leaf = hub_and_leaf(server_factory)
    with NatsPy(hub.url) as there, NatsPy(leaf.url) as here:
        there.create_stream("KV_CONFIG", ["$KV.CONFIG.>"])
        here.create_stream("KV_COPY", [], mirror={"name": "KV_CONFIG", "external": {"api": prefix}})
    _, option, rows = WRITES["bucket"]
    error = sentence_of(lambda: write(leaf, rows, **{option: "COPY"}))
    assert f"bucket 'COPY' is a mirror of bucket 'CONFIG' {where}, and stores only messages from there" in error


def test_a_state_bucket_that_is_a_mirror_says_so_before_a_row_is_sent(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique)
    nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"])
    nats_py.create_stream(f"KV_{unique}_M", [], mirror={"name": f"KV_{unique}"})
    rows = pa.table({"subject": [f"{unique}.a"], "payload": ["1"]})
    how = {"stream": unique, "deduplicate": "exact", "stateBucket": f"{unique}_M"}
    assert sentence_of(lambda: run_task(nats_server.url, rows, **how)) == (
        f"PublishError: the state bucket '{unique}_M', in which tasks note what they begin, is a mirror of bucket "
        f"'{unique}', and stores only messages from there; nothing was sent; name another bucket with the option "
        "'stateBucket'"
    )
    assert nats_py.held(unique) == 0
