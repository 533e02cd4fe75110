"""Reads of several named subjects of a stream while messages of one of them are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_nats.jetstream.reading.searching import FilterPlacement
from tests.integration.support import MESSAGE, batch_reader
from tests.nats_py import NatsPy
from tests.servers import BINARY_2_12, ServerFactory


@pytest.mark.parametrize("by", ["purge", "rollup"])
@pytest.mark.parametrize("binary", [BINARY_2_12, None], ids=["2.12", "newest"])
def test_a_subject_that_is_emptied_during_the_read_takes_nothing_of_another_with_it(
    server_factory: ServerFactory, monkeypatch: pytest.MonkeyPatch, binary: Path | None, by: str
) -> None:
    """2.12 moves a consumer of both past the last message that was removed, and says that nothing is left."""
    monkeypatch.setattr(FilterPlacement, "change_if_slow", lambda *_: False)  # or it may read all of them by chance
    server, count = server_factory(binary=binary), 3000
    with NatsPy(server.url) as client:
        client.create_stream("S", allow_rollup_hdrs=True)
        client.publish_acked(
            [("S.status", b""), *[("S.host", b"x" * 10_000), ("S.other", b""), ("S.other", b"")] * count]
        )
        reader = batch_reader(server, MESSAGE, stream="S", subject="S.host,S.status")
        (partition,) = reader.partitions()
        rows: list[dict[str, Any]] = []
        for batch in reader.read(partition):
            if not rows:  # far from all of it is on its way
                headers = {"Nats-Rollup": "sub"} if by == "rollup" else {}
                client.publish_acked([("S.status", b"", headers)])
                if by == "purge":
                    client.api("STREAM.PURGE.S", {"filter": "S.status"})
                client.publish_acked([("S.host", b"later")])
            rows += batch.to_pylist()
        assert sum(row["subject"] == "S.host" for row in rows) == count
