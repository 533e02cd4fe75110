"""Limits of the target on the size of a message: headers that are added count too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_nats.kinds.streams.write import partitions
from tests.integration.kinds.objects.test_objects import contents
from tests.integration.support import MENDING, run_task, sentence_of, table, write
from tests.nats_py import NatsPy
from tests.servers import Server

LIMIT = 1000
NAMING, IDS, ATOMIC = 36, 46, 94  # what docs/writing.md says of the headers that are added, beside the stream's name


def row(size: int, subject: str) -> pa.Table:
    return table(subject=[subject], payload=[b"x" * size])


@pytest.mark.needs("named streams")
@pytest.mark.parametrize(
    ("options", "more"), [({}, 0), ({"deduplicate": "window"}, IDS), ({"deduplicate": "exact"}, IDS)], ids=str
)
def test_the_page_says_how_large_a_payload_may_be(
    nats_server: Server, nats_py: NatsPy, unique: str, options: dict[str, Any], more: int
) -> None:
    nats_py.create_stream(unique, max_msg_size=LIMIT)
    added = NAMING + len(unique) + more
    options = {"stream": unique, "deduplicate": "false", **options}
    write(nats_server, row(LIMIT - added, f"{unique}.x"), **options)
    assert sentence_of(lambda: write(nats_server, row(LIMIT - added + 1, f"{unique}.x"), **options)) == (
        f"InvalidRowError: row 0 of the task cannot be sent: column 'payload' is larger with its headers than the "
        f"stream's max_msg_size of {LIMIT} bytes; {added} bytes of it are headers that are added (its length is "
        f"{LIMIT + 1} bytes); nothing was sent{MENDING}"
    )
    assert nats_py.held(unique) == 1


@pytest.mark.needs("atomic")
@pytest.mark.needs("named streams")
def test_so_does_it_for_rows_that_are_stored_together(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(unique, max_msg_size=LIMIT, allow_atomic=True)
    room = LIMIT - NAMING - len(unique) - ATOMIC
    options = {"stream": unique, "atomic": True, "deduplicate": "false"}
    write(nats_server, row(room, f"{unique}.x"), **options)
    said = sentence_of(lambda: write(nats_server, row(room + 1, f"{unique}.x"), **options))
    assert f"{NAMING + len(unique) + ATOMIC} bytes of it are headers that are added" in said


def test_the_limit_of_a_bucket_is_called_as_buckets_do(nats_server: Server, nats_py: NatsPy, unique: str) -> None:
    nats_py.create_stream(f"KV_{unique}", [f"$KV.{unique}.>"], max_msg_size=100)
    entry = pa.table({"key": ["k"], "value": [b"x" * 100]})
    said = sentence_of(lambda: write(nats_server, entry, bucket=unique))
    assert "column 'value' is larger with its headers than the bucket's max_value_size of 100 bytes" in said


@pytest.mark.needs("named streams")
def test_a_row_that_only_added_headers_make_too_large_is_not_dropped_but_set_aside(
    nats_server: Server, nats_py: NatsPy, unique: str
) -> None:
    nats_py.create_stream(unique, max_msg_size=LIMIT)
    nats_py.create_stream(bad := f"BAD_{unique}")
    rows = table(subject=[f"{unique}.x"] * 3, payload=[b"1", b"x" * LIMIT, b"2"])
    added = NAMING + len(unique)
    said = sentence_of(lambda: write(nats_server, rows, stream=unique, deduplicate="false", badRows="drop"))
    assert said.startswith(
        f"InvalidRowError: a row on {unique}.x has {LIMIT} bytes of its own, and {added} bytes of headers are added to "
        f"it, which is more than the stream's max_msg_size of {LIMIT} bytes; nothing is wrong with the row, so it is "
        "not dropped; raise the limit, or set the option 'badRows' to stream"
    )
    write(nats_server, rows, stream=unique, badRows="stream", badRowsStream=bad)
    assert (nats_py.stored_texts(unique), nats_py.held(bad)) == (["1", "2"], 1)
    too_large = table(subject=[f"{unique}.x"] * 2, payload=[b"x" * (LIMIT + 1), b"3"])
    counts = run_task(nats_server.url, too_large, stream=unique, badRows="drop").counts
    assert (counts.rows, counts.bad) == (1, 1)


@pytest.mark.parametrize("limit", [128 * 1024, 1000])
def test_objects_are_cut_to_what_their_store_takes(
    nats_server: Server, nats_py: NatsPy, unique: str, limit: int
) -> None:
    nats_py.create_stream(f"OBJ_{unique}", [f"$O.{unique}.>"], allow_rollup_hdrs=True, max_msg_size=limit)
    content = bytes(range(256)) * (limit // 128)
    write(nats_server, pa.table({"name": ["n"], "content": [content]}), objectStore=unique)
    assert contents(nats_server, unique) == {"n": content}
    named = pa.table({"name": ["n"], "content": [b""], "description": ["x" * limit]})
    said = sentence_of(lambda: write(nats_server, named, objectStore=unique))
    assert f"and the object store's max_msg_size is {limit}" in said


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.large_string()], ids=str)
def test_a_batch_with_more_bytes_than_a_column_can_have_is_written_in_parts(
    nats_server: Server, nats_py: NatsPy, unique: str, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    nats_py.create_stream(unique)
    sizes = [1, 700, 0, 1, 2, 999, 300, 300, 300, 5]
    payloads = [bytes([ord("a") + i]) * size for i, size in enumerate(sizes)]
    begin = 1 << 31  # the bytes before these payloads are never touched, so they take no memory
    data = np.zeros(begin + sum(sizes), np.uint8)
    data[begin:] = np.frombuffer(b"".join(payloads), np.uint8)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64) + begin
    column = pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    monkeypatch.setattr(partitions, "MAX_BATCH", 1000)
    write(nats_server, pa.table({"payload": column}), stream=unique, subject=f"{unique}.x")
    assert [each.payload for each in nats_py.read_stream(unique)] == payloads
    last = pa.table({"payload": [b"x"] * 99 + [None]})
    said = sentence_of(lambda: write(nats_server, last, stream=unique, subject=f"{unique}.x"))
    assert "row 99 of the task cannot be sent: column 'payload' is null" in said
