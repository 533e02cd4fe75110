"""Batch writes whose options say nothing, while their server ends and comes back."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spark_nats.embedded import NatsServer
from tests.integration.support import sentence_of, source
from tests.nats_py import NatsPy
from tests.servers import Server, ServerFactory

ROWS = 3000


def write_over_a_restart(server: NatsServer, rows: pa.Table, **options: Any) -> None:
    """Write rows as a task does; the server is killed while some are not acknowledged, and comes back."""

    def batches() -> Iterator[pa.RecordBatch]:
        for i, batch in enumerate(rows.to_batches(100)):
            if i == 20:
                server.kill()
                server.start()
            yield batch

    writer = source(server, **options).writer(from_arrow_schema(rows.schema), overwrite=False)
    writer.commit([pickle.loads(pickle.dumps(writer)).write(batches())])


@pytest.mark.promise("writing#batch-restarts")
@pytest.mark.parametrize("target", ["stream", "bucket"])
def test_a_batch_with_defaults_goes_on_when_its_server_comes_back(server_factory: ServerFactory, target: str) -> None:
    server = server_factory()
    texts = [str(i) for i in range(ROWS)]
    if target == "stream":
        rows, options = pa.table({"payload": texts}), {"stream": "S", "subject": "S.x"}
    else:
        rows, options = pa.table({"key": texts, "value": texts}), {"bucket": "B"}
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.create_stream("KV_B", ["$KV.B.>"])
    write_over_a_restart(server, rows, **options)
    with NatsPy(server.url) as client:
        assert client.stored_texts("S" if target == "stream" else "KV_B") == texts


@pytest.mark.promise("writing#batch-restarts")
def test_a_task_that_is_tried_again_stores_nothing_twice(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique)
    rows = pa.table({"payload": ["1", "2", "2"]})
    for deduplicate, held in (({}, 3), ({"deduplicate": "false"}, 9)):
        options = {"stream": unique, "subject": f"{unique}.x", **deduplicate}
        writer = source(nats_server, **options).writer(from_arrow_schema(rows.schema), overwrite=False)
        for _ in range(2):
            pickle.loads(pickle.dumps(writer)).write(iter(rows.to_batches()))
        assert nats_py.held(unique) == held


def test_a_batch_without_ids_fails_then(server_factory: ServerFactory) -> None:
    server = server_factory()
    with NatsPy(server.url) as client:
        client.create_stream("S")
    options = {"stream": "S", "subject": "S.x", "deduplicate": "false"}
    rows = pa.table({"payload": [str(i) for i in range(ROWS)]})
    said = sentence_of(lambda: write_over_a_restart(server, rows, **options))
    assert "sent and not answered (they may be stored)" in said
