"""Reads of several named subjects of a stream while messages of one of them are removed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_nats.errors import UnsupportedStreamError
from spark_nats.jetstream.reading.searching import FilterPlacement
from tests.integration.commands.test_permissions import hub_and_leaf
from tests.integration.support import MESSAGE, Query, batch_reader, stream_reader
from tests.nats_py import NatsPy, wait_until
from tests.servers import BINARY_2_12, Cluster, Server, ServerFactory, binary_of


@pytest.mark.parametrize("by", ["purge", "rollup"])
@pytest.mark.parametrize("place", ["2.12", "newest", "2.12 behind a newer leaf", "2.12 beside newer servers"])
def test_a_subject_that_is_emptied_during_the_read_takes_nothing_of_another_with_it(
    server_factory: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, by: str
) -> None:
    """2.12 moves a consumer of both past the last message that was removed, and says that nothing is left."""
    monkeypatch.setattr(FilterPlacement, "change_if_slow", lambda *_: False)  # or it may read all of them by chance
    count, domain, placement = 3000, dict[str, str](), dict[str, Any]()
    with ExitStack() as stack:
        if "leaf" in place:
            (owner, server), domain = hub_and_leaf(server_factory, hub_binary=BINARY_2_12), {"domain": "hub"}
        elif "beside" in place:
            owner, server, _ = stack.enter_context(Cluster(tmp_path, oldest=BINARY_2_12)).servers
            placement = {"placement": {"tags": ["n0"]}}
        else:
            owner = server = server_factory(binary=BINARY_2_12 if place == "2.12" else None)
        client = stack.enter_context(NatsPy(owner.url))
        client.create_in_cluster("S", allow_rollup_hdrs=True, **placement)
        client.publish_acked(
            [("S.status", b""), *[("S.host", b"x" * 10_000), ("S.other", b""), ("S.other", b"")] * count]
        )
        reader = batch_reader(server, MESSAGE, stream="S", subject="S.host,S.status", **domain)
        (partition,) = reader.partitions()
        rows: list[dict[str, Any]] = []
        for batch in reader.read(partition):
            if not rows:  # far from all of it is on its way
                if by == "purge":
                    client.publish_acked([("S.status", b"")])
                empty_subject(client, "S", by)
                client.publish_acked([("S.host", b"later")])
            rows += batch.to_pylist()
        assert sum(row["subject"] == "S.host" for row in rows) == count


@pytest.mark.needs("several held subjects")
@pytest.mark.parametrize("by", ["purge", "rollup"])
def test_a_subject_that_is_emptied_lets_nobody_remove_another_one_unread(
    nats_server: Server, nats_py: NatsPy, unique: str, by: str
) -> None:
    nats_py.create_stream(unique, retention="interest", allow_direct=True, allow_rollup_hdrs=True)
    query = consuming(nats_server, unique)
    worker = {"durable_name": "worker", "ack_policy": "all", "filter_subject": f"{unique}.host"}
    nats_py.api(f"CONSUMER.CREATE.{unique}.worker", {"stream_name": unique, "config": worker})
    nats_py.publish_acked([(f"{unique}.{kind}", b"") for _ in range(10) for kind in ("status", "host")])
    nats_py.publish_acked([(f"{unique}.status", b"")])
    empty_subject(nats_py, unique, by)
    work_off(nats_py, unique, 10)
    assert sum(row["subject"] == f"{unique}.host" for row in query.rows(10)) == 10
    wait_until(lambda: query.micro_batch() == [] and nats_py.held(unique) == 0)


def test_several_subjects_are_not_held_by_servers_that_pass_over_them(server_factory: ServerFactory) -> None:
    server = server_factory(binary=binary_of("2.14.6"))
    with NatsPy(server.url) as client:
        for retention in ("interest", "workqueue", "limits"):
            client.create_stream(retention, retention=retention, allow_direct=True)
        with pytest.raises(UnsupportedStreamError, match="when one of several subjects is purged: consume one subject"):
            consuming(server, "interest")
        for stream, subject in (("interest", "interest.*"), ("workqueue", None), ("limits", None)):
            consuming(server, stream, subject)


def consuming(server: Server, stream: str, subject: str | None = None) -> Query:
    """A query that has begun to consume subjects of a stream."""
    subjects = subject or f"{stream}.host,{stream}.status"
    query = Query(stream_reader(server, MESSAGE, stream=stream, subject=subjects, consume=True))
    assert query.micro_batch() == []
    return query


def empty_subject(client: NatsPy, stream: str, by: str) -> None:
    """Purge what a stream has of a subject, or roll it up."""
    if by == "purge":
        client.api(f"STREAM.PURGE.{stream}", {"filter": f"{stream}.status"})
    else:
        client.publish_acked([(f"{stream}.status", b"", {"Nats-Rollup": "sub"})])


def work_off(client: NatsPy, stream: str, count: int) -> None:
    """Have the consumer `worker` take messages and acknowledge them."""

    async def work() -> int:
        subscription = await client.nats.jetstream().pull_subscribe_bind("worker", stream)
        messages = await subscription.fetch(count, timeout=30)
        for message in messages:
            await message.ack_sync()
        return len(messages)

    assert client.run(work(), 60) == count
