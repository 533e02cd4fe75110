"""Message ids made from the content of rows, so that an id does not depend on where in its task a row is.

Spark promises which rows a task gets when it runs again. It promises neither their order after a shuffle nor the same
Arrow batches. An id that counted rows could therefore belong to another row in a replay, and the stream would drop that
row as a duplicate.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.options.short_forms import id_prefix_of
from spark_nats.protocol.bytecolumns import (
    Positions,
    booleans,
    byte_strings,
    bytes_and_offsets_of,
    integers,
    lengths_of,
    texts,
)

Hashes = npt.NDArray[np.uint32]

MAX_SHORT = 1024
"""Maximum bytes of a row that is hashed together with others, as columns."""

_WORDS = 3  # words of 32 bits in a hash
_HASH_CHARACTERS = 16  # 96 bits in base64
_BLOCK = 64  # bytes
_UNITS = _BLOCK // 4  # units of 32 bits in a block
_ROWS_AT_ONCE = 4096  # rows that fit in the processor's cache
_LONG_KEY_BYTES = 64  # bytes, the longest key of blake2b
_DASH, _NOTHING = texts(["-", ""])
_NO_BYTES = byte_strings([b""])[0]
_HEAD = 4  # units before a row: a constant and three lengths
_KEYS = _HEAD + MAX_SHORT // 4  # random numbers in a sum: one for each unit of head and row


def id_prefix_of_task(query: str, batch: str | None, partition: int) -> str:
    """Return the prefix of the ids of all rows of a task, see :class:`MessageIds`."""
    task = f"{partition}" if batch is None else f"{batch}-{partition}"
    return f"{id_prefix_of(query)}{task}-"


class MessageIds:
    """Generates the message ids of one task's rows.

    An id is ``<query>-<batch>-<partition>-<hash>``, without the batch in batch writes. ``query`` is 72 bits, in
    base64url, of the digest of the query's id. ``hash`` is 96 bits, in base64url, of the row's subject, headers and
    payload and of their lengths, so that bytes which move from one to another change the hash. Further rows with the
    same content get ``-1``, ``-2`` and so on at the end. So the ids do not depend on the order or the batches of rows.

    The hash is keyed with the whole of the query's id, the batch and the partition. Two different rows have equal
    hashes with probability 2^-96 over the keys. A task with ``n`` rows loses one by equal hashes with a probability
    below n^2 / 2^97, which is 6e-18 for a million rows. The hash does not protect against somebody who knows the key.
    Rows of two queries have the same id with probability 2^-168. Among ``q`` queries that write to a stream, two have
    the same prefix with a probability below q^2 / 2^73 (1e-10 for a million queries), and even then their hashes
    differ.

    Short rows are hashed as columns, by MULTILINEAR (Lemire and Kaser, "Strongly universal string hashing is fast",
    2014): a random number, plus each 32-bit unit of the row times a random number, modulo 2^64. Only the upper 32
    bits are used. A hash is three such sums with different random numbers. Zeros add nothing to a sum, so rows may be
    padded. Rows above :data:`MAX_SHORT` bytes are hashed one by one by blake2b: their bytes cost more than the calls.

    The class remembers eight bytes for each row. The benchmark's row "codec: message ids from content" guards the cost.

    Args:
        query: id of the query or the write, the same when it runs again.
        batch: the micro-batch; None in batch writes.
        partition: number of the task's partition.

    Attributes:
        prefix: prefix of the ids of all rows of this task, and of no other task.
        query_prefix: prefix of the ids of all tasks of the query.
    """

    def __init__(self, query: str, batch: str | None, partition: int) -> None:
        whole = json.dumps([query, batch, partition]).encode()
        random = hashlib.shake_256(whole).digest(_LONG_KEY_BYTES + _KEYS * _WORDS * 8)
        self._long_hasher = hashlib.blake2b(digest_size=_WORDS * 4, key=random[:_LONG_KEY_BYTES])
        self._keys = np.frombuffer(random[_LONG_KEY_BYTES:], "<u8").astype(np.uint64).reshape(_KEYS, _WORDS)
        self.query_prefix = id_prefix_of(query)
        self.prefix = id_prefix_of_task(query, batch, partition)
        self._prefix = texts([self.prefix])[0]
        self._seen = Occurrences()

    def generate_distinct_ids(self, subjects: pa.Array, headers: pa.Array, payloads: pa.Array) -> pa.StringArray:
        """Return an id for each row; equal rows are counted over all calls.

        Args:
            subjects: string or binary column without nulls.
            headers: string or binary column without nulls: each row's headers as text, empty if it has none.
            payloads: binary column without nulls.
        """
        hashes = self._hash([column.cast(pa.binary()) for column in (subjects, headers, payloads)])
        rows = len(hashes)
        # Base64 makes exactly 16 characters of a hash's 12 bytes, so one call encodes all hashes, one after another.
        text = base64.urlsafe_b64encode(hashes.astype("<u4").tobytes())
        offsets = np.arange(rows + 1, dtype=np.int32) * _HASH_CHARACTERS
        hashed = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
        # Rows are counted by 64 bits of their hashes. Rows that share only these bits are counted together: their ids
        # still differ, but depend on the order of rows. So a replay may store such rows twice, but loses none.
        before = self._seen.add_and_count_before(hashes[:, 0].astype(np.uint64) << np.uint64(32) | hashes[:, 1])
        if not before.any():
            return pc.binary_join_element_wise(self._prefix, hashed, _NOTHING)
        numbers = pc.binary_join_element_wise(_DASH, integers(before).cast(pa.string()), _NOTHING)
        again = pc.if_else(booleans(before > 0), numbers, _NOTHING)
        return pc.binary_join_element_wise(self._prefix, hashed, again, _NOTHING)

    def _hash(self, columns: Sequence[pa.Array]) -> Hashes:
        """Return the hash of each row as three words."""
        rows = len(columns[0])
        hashes = np.empty((rows, _WORDS), np.uint32)
        for start in range(0, rows, _ROWS_AT_ONCE):
            part = [column[start : start + _ROWS_AT_ONCE] for column in columns]
            found = hashes[start : start + _ROWS_AT_ONCE]
            lengths = np.stack([lengths_of(column) for column in part])
            is_long = lengths.sum(axis=0) > MAX_SHORT
            if not is_long.any():
                found[:] = self._hash_short(part, lengths)
            else:
                is_short = booleans(~is_long)
                found[~is_long] = self._hash_short([column.filter(is_short) for column in part], lengths[:, ~is_long])
                found[is_long] = self._hash_long(part, lengths, np.flatnonzero(is_long))
        return hashes

    def _hash_short(self, columns: Sequence[pa.Array], lengths: Positions) -> Hashes:
        rows = lengths.shape[1]
        padding = _zeros(-lengths.sum(axis=0) % _BLOCK)
        data, offsets = bytes_and_offsets_of(pc.binary_join_element_wise(*columns, padding, _NO_BYTES))
        blocks = data.view("<u4").reshape(-1, _UNITS)
        first, count = offsets[:-1] // _BLOCK, np.diff(offsets) // _BLOCK
        # Longest rows first, so that the rows with one more block are always the first ones.
        order = np.argsort((-count).astype(np.int16), kind="stable")
        first = first[order]
        head = np.vstack([np.ones(rows, np.int64), lengths]).astype(np.uint64)
        sums = head.T[order] @ self._keys[:_HEAD]
        for block in range(int(count.max(initial=0))):
            more = np.count_nonzero(count > block)
            units = blocks.take(first[:more] + block, axis=0).astype(np.uint64)
            sums[:more] += units @ self._keys[_HEAD + block * _UNITS :][:_UNITS]
        hashes = np.empty((rows, _WORDS), np.uint32)
        hashes[order] = sums >> np.uint64(32)
        return hashes

    def _hash_long(self, columns: Sequence[pa.Array], lengths: Positions, rows: Positions) -> Hashes:
        heads = lengths.T[rows].astype("<u8").tobytes()
        parts = []
        for column in columns:
            data, offsets = bytes_and_offsets_of(column)
            parts.append((data.data, offsets[rows].tolist(), offsets[rows + 1].tolist()))
        digests = []
        for i in range(len(rows)):
            hashed = self._long_hasher.copy()
            hashed.update(heads[24 * i : 24 * i + 24])
            for view, start, end in parts:
                hashed.update(view[start[i] : end[i]])
            digests.append(hashed.digest())
        return np.frombuffer(b"".join(digests), "<u4").reshape(-1, _WORDS)


def _zeros(lengths: Positions) -> pa.BinaryArray:
    """Return a binary column with ``lengths`` zero bytes in its rows."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bytes(offsets[-1]))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


class Occurrences:
    """Counts how often each number was added before.

    The numbers are in sorted runs, each longer than the next. A new run that is at least as long as the last run merges
    with it, as digits carry in a counter. So there are few runs, and each number is merged few times.
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []

    def add_and_count_before(self, numbers: npt.NDArray[np.uint64]) -> Positions:
        """Add numbers, and return for each how many equal numbers were added before it, in any call.

        Equal numbers of one call are counted in any order.
        """
        order = np.argsort(numbers)
        run = numbers[order]
        place = np.arange(len(run))
        is_first = np.ones(len(run), np.bool_)
        is_first[1:] = run[1:] != run[:-1]
        before = place - np.maximum.accumulate(np.where(is_first, place, 0))
        for other in self._runs:
            start = np.searchsorted(other, run)
            found = np.flatnonzero(other[np.minimum(start, len(other) - 1)] == run)
            before[found] += np.searchsorted(other, run[found], "right") - start[found]
        while self._runs and len(self._runs[-1]) <= len(run):
            # A stable sort merges two sorted runs without sorting them again.
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        if len(run):
            self._runs.append(run)
        counts = np.empty_like(before)
        counts[order] = before
        return counts
