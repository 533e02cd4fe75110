"""What a bucket held at a revision, by what it still keeps, compared with histories in plain Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import event, given
from hypothesis import strategies as st

from spark_nats.kinds.buckets.as_of import are_last_up_to, may_key_have_lost_entry
from spark_nats.kinds.buckets.key_columns import may_remove_earlier_entries
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.headers import is_before_batch_commit


class Entry(NamedTuple):
    """An entry that is stored."""

    revision: int
    key: str
    purges: bool


def stored(keys: list[tuple[str, bool]]) -> list[Entry]:
    return [Entry(i, key, purges) for i, (key, purges) in enumerate(keys, 1)]


def kept(entries: list[Entry], history: int) -> list[Entry]:
    """What a bucket keeps of entries that were stored one after another."""
    left: list[Entry] = []
    for entry in entries:
        mine = [each for each in left if each.key == entry.key]
        gone = mine if entry.purges else mine[: max(0, len(mine) + 1 - history)]
        left = [each for each in left if each not in gone] + [entry]
    return left


def held(entries: list[Entry], revision: int) -> dict[str, Entry]:
    """What every key held at a revision."""
    return {each.key: each for each in entries if each.revision <= revision}


def chosen(entries: list[Entry], revision: int) -> dict[str, Entry]:
    """What is chosen of entries that were read."""
    subjects = pa.chunked_array(
        [pa.array([each.key.encode()], pa.binary()) for each in entries], pa.binary()
    )  # as many chunks as there can be
    mask = are_last_up_to(revision, subjects, np.array([each.revision for each in entries], np.int64))
    found = [each for each, yes in zip(entries, mask, strict=True) if yes]
    assert len({each.key for each in found}) == len(found)
    return {each.key: each for each in found}


HISTORIES = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([False, False, False, True])), max_size=30)


@given(keys=HISTORIES, history=st.integers(1, 4), data=st.data())
def test_what_is_not_in_doubt_is_right(keys: list[tuple[str, bool]], history: int, data: st.DataObject) -> None:
    entries = stored(keys)
    revision = data.draw(st.integers(0, len(entries)))
    left, then = kept(entries, history), held(entries, revision)
    found = chosen(left, revision)
    for key in {each.key for each in entries}:
        mine = [each for each in left if each.key == key]
        lost = mine[0].revision > revision and may_key_have_lost_entry(len(mine), mine[0].purges, history)
        event("in doubt" if lost else "known")
        if not lost:
            assert found.get(key) == then.get(key)
        else:
            assert key not in found


@given(keys=HISTORIES, history=st.integers(1, 4), data=st.data())
def test_a_key_is_in_doubt_only_if_it_may_have_held_something(
    keys: list[tuple[str, bool]], history: int, data: st.DataObject
) -> None:
    """There is a history that leaves the same of the key, and in which it held something."""
    entries = stored(keys)
    revision = data.draw(st.integers(1, max(1, len(entries))))
    for key in {each.key for each in entries}:
        mine = [each for each in kept(entries, history) if each.key == key]
        if mine[0].revision > revision and may_key_have_lost_entry(len(mine), mine[0].purges, history):
            assert kept([Entry(revision, key, False), *mine], history) == mine


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from("abc"))), st.integers(0, 45))
def test_entries_may_be_read_twice_and_in_any_order(read: list[tuple[int, str]], revision: int) -> None:
    entries = [Entry(number, f"{key}{number % 3}", False) for number, key in read]
    by_revision = sorted(set(entries))
    assert chosen(entries, revision) == held(by_revision, revision)


def test_a_message_is_within_its_batch_unless_it_ends_it() -> None:
    block = b"NATS/1.0\r\nNats-Batch-Id: x\r\nNats-Batch-Sequence: 1\r\n"
    assert is_before_batch_commit(block + b"\r\n")
    assert not is_before_batch_commit(block + b"Nats-Batch-Commit: 1\r\n\r\n")
    assert not is_before_batch_commit(b"NATS/1.0\r\nNats-Batch-Sequence: 1\r\n\r\n")
    assert not is_before_batch_commit(b"")


def test_what_replaces_all_that_its_key_held() -> None:
    headers = [
        "KV-Operation: PURGE\r\nNats-Rollup: sub",
        "Nats-Rollup: sub",
        "Nats-Marker-Reason: MaxAge",
        "KV-Operation: DEL",
        "Nats-Expected-Last-Subject-Sequence: 0",
    ]
    blocks = [f"NATS/1.0\r\n{each}\r\n\r\n".encode() for each in headers] + [b""]
    wire = b"".join(b"HMSG $KV.B.k 1 %d %d\r\n%s\r\n" % (len(block), len(block), block) for block in blocks if block)
    messages = Decoder().feed(wire + b"MSG $KV.B.k 1 0\r\n\r\n").messages
    assert may_remove_earlier_entries(messages).tolist() == [True, True, True, True, False, False]
