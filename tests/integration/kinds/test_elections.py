"""Batches that begin while a leader is elected."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.support import table, write
from tests.nats_py import NatsPy, wait_until
from tests.servers import Cluster

TARGETS: dict[str, tuple[str, pa.Table]] = {
    "stream": ("{}", table(subject=["{}.x"], payload=[b"a"])),
    "bucket": ("KV_{}", pa.table({"key": ["k"], "value": [b"a"]})),
    "objectStore": ("OBJ_{}", pa.table({"name": ["n"], "content": [b"a"]})),
}
SUBJECTS = {"stream": "{}.>", "bucket": "$KV.{}.>", "objectStore": "$O.{}.>"}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_batch_is_written_once_its_target_has_a_leader(
    cluster: Cluster, unique: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, rows = TARGETS[kind]
    stream, rows = name.format(unique), _named(rows, unique)
    with NatsPy(cluster.urls.split(",")) as client:
        config: dict[str, Any] = {"num_replicas": 3, "allow_rollup_hdrs": True}
        client.create_in_cluster(stream, [SUBJECTS[kind].format(unique)], **config)
        written = 0

        def has_waited() -> bool:
            nonlocal written
            client.api(f"STREAM.LEADER.STEPDOWN.{stream}")
            write(cluster.urls, rows, **{kind: unique})
            written += 1
            return "has no leader at the moment; trying again" in caplog.text

        with caplog.at_level(logging.WARNING):
            wait_until(has_waited)
        assert client.stream_info(stream)["state"]["last_seq"] >= written
        client.delete_stream(stream)


def _named(rows: pa.Table, name: str) -> pa.Table:
    if "subject" not in rows.schema.names:
        return rows
    return rows.set_column(0, "subject", pa.array([f"{name}.x"]))
