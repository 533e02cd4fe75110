"""Message ids made of what rows say."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_nats.kinds.streams.write.message_ids import MAX_SHORT, MessageIds, Occurrences

QUERY = "3f81c09a-6f2e-4b6c-9d55-0a1b2c3d4e5f"
SHOWN = base64.urlsafe_b64encode(hashlib.blake2b(QUERY.encode(), digest_size=9).digest()).decode()
Row = tuple[str, bytes, bytes]  # subject, headers, payload


def column_ids(ids: MessageIds, rows: Sequence[Row]) -> list[str]:
    """Ids of a batch."""
    given_ids = ids.generate_distinct_ids(
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
    )
    assert given_ids.type == pa.string()
    texts: list[str] = given_ids.to_pylist()
    return texts


def ids_of(*rows: Row, query: str = QUERY, batch: str | None = "12", partition: int = 3) -> list[str]:
    """Ids of the first rows of a task."""
    return column_ids(MessageIds(query, batch, partition), rows)


def plain_hash(row: Row, query: str, batch: str | None, partition: int) -> str:
    """What the columns stand for, in plain Python."""
    parts = [row[0].encode(), row[1], row[2]]
    whole = b"".join(parts)
    random = hashlib.shake_256(json.dumps([query, batch, partition]).encode()).digest(64 + 8 * 3 * (4 + 256))
    if len(whole) > 1024:
        lengths = b"".join(len(part).to_bytes(8, "little") for part in parts)
        digest = hashlib.blake2b(lengths + whole, digest_size=12, key=random[:64]).digest()
    else:
        whole += bytes(-len(whole) % 4)
        units = [int.from_bytes(whole[i : i + 4], "little") for i in range(0, len(whole), 4)]
        keys = [int.from_bytes(random[64:][i : i + 8], "little") for i in range(0, len(random) - 64, 8)]
        values = [1, *map(len, parts), *units]
        sums = [sum(value * keys[3 * i + word] for i, value in enumerate(values)) for word in range(3)]
        digest = b"".join((total % 2**64 >> 32).to_bytes(4, "little") for total in sums)
    return base64.urlsafe_b64encode(digest).decode()


any_size = st.one_of(
    st.binary(max_size=12),
    st.builds(lambda byte, size: byte * size, st.binary(min_size=1, max_size=1), st.integers(0, 200)),
    st.builds(lambda byte, size: byte * size, st.binary(min_size=1, max_size=1), st.integers(1000, 1100)),
)
rows = st.tuples(st.text("aé.", min_size=1, max_size=9), any_size, any_size)
few_rows = st.tuples(
    st.sampled_from("ab"), st.sampled_from([b"", b"H: 1\r\n"]), st.sampled_from([b"", b"x", b"y" * 2000])
)


@settings(max_examples=75)
@given(st.lists(rows, max_size=9), st.one_of(st.none(), st.integers(0, 10**9).map(str)), st.integers(0, 10**6))
@example([("a", b"", b"\xff" * 1023), ("a", b"", b"\xff" * 1024), ("a", b"\xff" * 64, b""), ("a", b"", b"")], "0", 0)
def test_a_hash_is_the_same_whatever_rows_stand_beside_it(batch: list[Row], number: str | None, partition: int) -> None:
    shown = f"{SHOWN}-{partition}-" if number is None else f"{SHOWN}-{number}-{partition}-"
    seen: Counter[Row] = Counter()
    expected = []
    for row in batch:
        expected.append(shown + plain_hash(row, QUERY, number, partition) + (f"-{seen[row]}" if seen[row] else ""))
        seen[row] += 1
    # Equal rows are counted in any order.
    assert Counter(ids_of(*batch, batch=number, partition=partition)) == Counter(expected)


def cut(rows: Sequence[Row], bounds: Iterable[int]) -> list[Sequence[Row]]:
    places = sorted({bound % (len(rows) + 1) for bound in bounds})
    return [rows[start:end] for start, end in zip([0, *places], [*places, len(rows)], strict=True)]


@settings(max_examples=50)
@given(st.lists(few_rows, max_size=30), st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30)), st.randoms())
def test_neither_order_nor_batches_change_which_ids_a_tasks_rows_have(
    task: list[Row], some: list[int], other: list[int], random: object
) -> None:
    def contents_and_ids(rows: Sequence[Row], bounds: list[int]) -> Counter[tuple[Row, str]]:
        ids = MessageIds(QUERY, "0", 0)
        return Counter(pair for part in cut(rows, bounds) for pair in zip(part, column_ids(ids, part), strict=True))

    shuffled = list(task)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = contents_and_ids(task, some), contents_and_ids(shuffled, other)
    assert first == second
    assert len(first) == len(task)  # no id twice


@settings(max_examples=50)
@given(st.binary(max_size=40), st.tuples(*[st.integers(0, 40)] * 4), st.booleans())
@example(b"\0" * 8, (1, 2, 1, 3), False)
def test_bytes_that_move_between_subject_headers_and_payload_give_another_id(
    content: bytes, places: tuple[int, int, int, int], is_long: bool
) -> None:
    content = bytes(byte & 0x7F for byte in content) + b"x" * (MAX_SHORT if is_long else 0)
    splits = [sorted(places[:2]), sorted(places[2:])]
    one, other = ((content[:a].decode(), content[a:b], content[b:]) for a, b in splits)
    ids = [ids_of(one), ids_of(other)]
    assert (ids[0] == ids[1]) == (one == other)


def test_rows_that_differ_by_zeros_alone_have_different_ids() -> None:
    zeros = [("a", b"", bytes(count)) for count in range(MAX_SHORT + 20)]
    assert len(set(ids_of(*zeros))) == len(zeros)


def test_the_whole_identity_of_a_task_is_in_its_ids() -> None:
    row = ("a.b", b"", b"x")
    same_digits = QUERY[:-1] + "0"
    found = {
        *ids_of(row),
        *ids_of(row, query=same_digits),
        *ids_of(row, query="ffffffff" + QUERY[8:]),
        *ids_of(row, batch="13"),
        *ids_of(row, batch=None),
        *ids_of(row, partition=4),
    }
    hashes = {text[-16:] for text in found}
    assert (len(found), len(hashes)) == (6, 6)
    assert len({text[:12] for text in found}) == 3  # one for each query


def test_further_rows_of_the_same_content_are_numbered() -> None:
    row, other = ("a.b", b"", b"x"), ("a.b", b"", b"y")
    ids = MessageIds(QUERY, None, 7)
    (first,) = column_ids(ids, [row])
    assert first.startswith(f"{SHOWN}-7-")
    assert sorted(column_ids(ids, [row, row, row])) == [f"{first}-{i}" for i in (1, 2, 3)]
    assert "-4" in column_ids(ids, [other, row])[1]


def test_a_quarter_of_a_million_rows_have_as_many_ids() -> None:
    ids = MessageIds(QUERY, "0", 0)
    found = set()
    for start in range(0, 250_000, 50_000):
        numbers = pa.array(np.arange(start, start + 50_000)).cast(pa.string())
        same = pa.array(["x"] * 50_000)
        found.update(ids.generate_distinct_ids(same, pa.array([""] * 50_000), numbers.cast(pa.binary())).to_pylist())
    assert len(found) == 250_000
    hashes = np.frombuffer(base64.urlsafe_b64decode("".join(text[-16:] for text in found)), np.uint8).reshape(-1, 12)
    bits = np.unpackbits(hashes, axis=1).mean(axis=0)
    assert bits == pytest.approx(0.5, abs=0.01)  # ten times the standard deviation


def test_a_large_batch_has_the_ids_that_small_ones_have() -> None:
    task = [(f"a.{i % 10}", b"", b"%d:" % i * (1 + (400 if i % 100 == 0 else i % 70))) for i in range(10_000)]
    ids = MessageIds(QUERY, "12", 3)
    assert ids_of(*task) == [text for part in cut(task, range(0, 10_000, 777)) for text in column_ids(ids, part)]


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 6), max_size=12), max_size=9))
@example([[1], [1], [1], [1], [1]])
@example([[], [2**64 - 1], [], [0, 2**64 - 1]])
def test_occurrences_are_counted_over_all_calls(calls: list[list[int]]) -> None:
    occurrences = Occurrences()
    seen: Counter[int] = Counter()
    for call in calls:
        counts = occurrences.add_and_count_before(np.array(call, np.uint64)).tolist()
        expected = []
        for number in call:
            expected.append((number, seen[number]))
            seen[number] += 1
        assert sorted(zip(call, counts, strict=True)) == sorted(expected)
