"""A server's ``max_payload`` that is lowered while rows are written: nobody tells clients that are connected."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spark_nats.embedded import NatsServer
from tests.integration.kinds.objects.test_objects import contents
from tests.integration.support import reload, sentence_of, source
from tests.nats_py import NatsPy
from tests.servers import ServerFactory

BEFORE, NOW = 100_000, 50_000
SAID = f"is larger with its headers than the server's max_payload, which is {NOW} bytes now"
ROWS = pa.table({"payload": ["1", "2", "x" * 60_000, "3"]})


@pytest.fixture
def server(server_factory: ServerFactory) -> NatsServer:
    return server_factory(f"max_payload: {BEFORE}")


def write_while_lowered(server: NatsServer, rows: pa.Table, **options: Any) -> None:
    """Write rows as a task does, one in each batch; the limit is lowered after the first."""

    def batches() -> Iterator[pa.RecordBatch]:
        for i, batch in enumerate(rows.to_batches(1)):
            if i == 1:
                config = (server.log_path.parent / "server.conf").read_text()
                reload(server, config.replace(str(BEFORE), str(NOW)))
            yield batch

    writer = source(server, **options).writer(from_arrow_schema(rows.schema), overwrite=False)
    writer.commit([pickle.loads(pickle.dumps(writer)).write(batches())])


def test_the_row_is_named_that_is_too_large_now(server: NatsServer) -> None:
    with NatsPy(server.url) as client:
        client.create_stream("S")
        said = sentence_of(lambda: write_while_lowered(server, ROWS, stream="S", subject="S.x"))
        assert said.startswith(f"InvalidRowError: row 2 of the task {SAID}")
        assert client.stored_texts("S")[:2] == ["1", "2"]


@pytest.mark.parametrize("fate", ["drop", "stream"])
def test_it_is_set_aside_and_the_others_are_stored(server: NatsServer, fate: str) -> None:
    with NatsPy(server.url) as client:
        client.create_stream("S")
        client.create_stream("BAD")
        aside = {"badRowsStream": "BAD"} if fate == "stream" else {}
        write_while_lowered(server, ROWS, stream="S", subject="S.x", badRows=fate, **aside)
        assert client.stored_texts("S") == ["1", "2", "3"]
        assert client.held("BAD") == (fate == "stream")


@pytest.mark.needs("atomic")
def test_so_it_is_for_rows_that_are_stored_together(server: NatsServer) -> None:
    with NatsPy(server.url) as client:
        client.create_stream("S", allow_atomic=True)
        said = sentence_of(lambda: write_while_lowered(server, ROWS, stream="S", subject="S.x", atomic=True))
        assert said.startswith(f"InvalidRowError: row 2 of the task {SAID}; this task's 4 rows were sent")
        assert client.held("S") == 0


def test_core_nats_names_it_too(server: NatsServer) -> None:
    said = sentence_of(lambda: write_while_lowered(server, ROWS, subject="S.x"))
    assert said.startswith("InvalidRowError: row ")
    assert SAID in said


def test_objects_are_cut_to_what_the_server_takes_now(server: NatsServer) -> None:
    objects = {"a": b"1", "b": b"x" * 90_000, "c": b"3"}
    with NatsPy(server.url) as client:
        client.create_stream("OBJ_O", ["$O.O.>"], allow_rollup_hdrs=True)
        rows = pa.table({"name": list(objects), "content": list(objects.values())})
        write_while_lowered(server, rows, objectStore="O")
        assert contents(server, "O") == objects
