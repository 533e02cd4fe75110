"""A mirror answers the direct gets of its origin, whatever its configuration asks for; what it says is not taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_nats.jetstream.reading import direct
from tests.integration.support import MESSAGE, Query, numbers_of, read, stream_reader
from tests.nats_py import NatsPy, wait_until
from tests.servers import Server

MESSAGES, DELETED = 100, 50
ATTEMPTS = 4
"""How often each is read: the server chooses which of the two answers."""


@pytest.fixture(autouse=True)
def _tries_direct_gets_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "REFUSED_FOR", 0.0)


def _filtered(stream: str) -> dict[str, Any]:
    return {"filter_subject": f"{stream}.eu"}


def _transformed(stream: str) -> dict[str, Any]:
    return {"subject_transforms": [{"src": f"{stream}.>", "dest": "other.>"}]}


def _full(stream: str) -> dict[str, Any]:
    return {}


MIRRORS = {"filtered": _filtered, "transformed": _transformed, "full": _full}


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
