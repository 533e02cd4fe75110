"""Array arithmetic on bytes: the few operations that the decoder, the headers and the acknowledgements build on.

All of them work on a whole column at once. A column of byte strings is either *spans* (start and end positions in a
larger buffer) or *packed* (one contiguous buffer and ``n + 1`` offsets, which is Arrow's own layout).

Numbers are read eight characters at a time, as one word of 64 bits: "SIMD within a register" (SWAR), as described by
Daniel Lemire, "Quickly parsing eight digits" (2018), and applied here to a NumPy array of words.

The benchmark's row "codec: decode JetStream deliveries" guards their cost, and "codec: decode payloads full of CRLF and
fake frames" guards it for payloads that look like messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Arrow's default pool keeps tens of megabytes of freed pages, by which a Spark worker would grow.
_POOL = pa.system_memory_pool()
NO_POSITIONS: Positions = np.empty(0, np.int64)
NO_TEXT = pa.nulls(1, pa.string())[0]
_PLAIN = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
# _KEEP[n] keeps the n highest bytes of a little-endian word: the last n characters that were loaded.
_KEEP = np.array([0] + [((1 << 64) - 1) ^ ((1 << (64 - 8 * n)) - 1) for n in range(1, 9)], np.uint64)
_LF = ord("\n")
_ZEROS = np.uint64(0x3030303030303030)
_OVER_NINE = np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)


# Arrow imports pandas, if installed, to inspect any Python or NumPy value that it gets. So everything here builds
# arrays from buffers, constants included: a Python process that Spark starts for a moment should not pay for that
# import.


def integers(values: npt.NDArray[np.signedinteger[Any]]) -> pa.Array:
    """Return a column of 32 or 64 bit integers, without a copy."""
    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def integers_of(column: pa.Array) -> Positions:
    """Return the values of a column of 32 or 64 bit integers; undefined where it is null."""
    if len(column) == 0:
        return NO_POSITIONS
    width = np.int32 if column.type == pa.int32() else np.int64
    values = np.frombuffer(column.buffers()[1], width)[column.offset : column.offset + len(column)]
    return values.astype(np.int64)


def size_of(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a batch has; ``nbytes`` of a nested column may read an offset that is not there.

    Spark before 4.2 leaves out the one offset of a list without entries inside a map, as in headers (arrow-java#967).
    """
    sizes = [each.get_total_buffer_size() if pa.types.is_nested(each.type) else each.nbytes for each in batch.columns]
    return sum(sizes)


def floats_of(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return the values of a column of 64 bit floating point numbers; undefined where it is null."""
    if len(column) == 0:
        return np.empty(0)
    return np.frombuffer(column.buffers()[1])[column.offset : column.offset + len(column)]


def lengths_of(column: pa.Array) -> Positions:
    """Return the length in bytes of each element of a column of strings or bytes; 0 where it is null."""
    column = plain(column)
    lengths = np.diff(bytes_and_offsets_of(column)[1])
    return lengths * flags_of(column.is_valid()) if column.null_count else lengths


def booleans(mask: Mask) -> pa.BooleanArray:
    """Return a column of truth values."""
    packed_bits = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(packed_bits)])


def flags_of(column: pa.BooleanArray) -> Mask:
    """Return the values of a column of truth values that has no nulls."""
    if len(column) == 0:
        return np.empty(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(column.buffers()[1], np.uint8), bitorder="little")
    flags: Mask = bits[column.offset : column.offset + len(column)].view(np.bool_)
    return flags


def byte_strings(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return a column of byte strings."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return a column of texts."""
    return byte_strings([value.encode() for value in values]).view(pa.string())


def repeat_text(text: str, rows: int) -> pa.StringArray:
    """Return a column that has the same text in every row."""
    return pa.repeat(texts([text])[0], rows)


def gather(buffer: Bytes, start: Positions, end: Positions) -> pa.BinaryArray:
    """Copy the spans ``[start, end)`` of ``buffer`` into a binary array.

    The spans must be ascending and must not overlap. Then starts and ends, interleaved, are the offsets of
    a binary array over ``buffer`` in which every second element is wanted, and Arrow does the copying.
    """
    n = len(start)
    if n == 0:
        return pa.nulls(0, pa.binary())
    offsets = np.empty(2 * n, np.int32)
    offsets[0::2] = start
    offsets[1::2] = end
    interleaved = pa.Array.from_buffers(pa.binary(), 2 * n - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)])
    return pc.take(interleaved, integers(np.arange(0, 2 * n - 1, 2)), boundscheck=False, memory_pool=_POOL)


def plain(column: pa.Array) -> pa.Array:
    """Return a column of strings or bytes itself if its type has offsets and one buffer of bytes, or else a copy."""
    return column if column.type in _PLAIN else column.cast(pa.binary())


def bytes_and_offsets_of(array: pa.Array) -> tuple[Bytes, Positions]:
    """Return the bytes and the ``n + 1`` offsets of a column of strings or bytes, without a copy of a plain one."""
    if len(array) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    array = plain(array)
    width = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def true_positions(mask: Mask) -> Positions:
    """Return where ``mask`` is set; faster than NumPy's search when few flags are set, one in many bytes.

    It checks words of eight flags first, and then the flags of the nonzero words.
    """
    whole = len(mask) // 8 * 8
    words = mask[:whole].view(np.uint64)
    hit = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words[hit].view(np.bool_))
    found = hit[inside >> 3] * 8 + (inside & 7)
    return np.concatenate([found, whole + np.flatnonzero(mask[whole:])]) if whole < len(mask) else found


def load_words(buffer: Bytes, position: Positions) -> npt.NDArray[np.uint64]:
    """Load the eight bytes at each position as one little-endian number."""
    words = np.ndarray((len(buffer) - 7,), "<u8", buffer, 0, (1,))
    loaded: npt.NDArray[np.uint64] = words[position]
    return loaded


def words_of(text: bytes) -> list[tuple[int, np.uint64]]:
    """Split eight bytes or more into words, each with its position; the last may overlap the one before it."""
    places = [*range(0, len(text) - 8, 8), len(text) - 8]
    return [(i, np.uint64(int.from_bytes(text[i : i + 8], "little"))) for i in places]


def parse_ints(buffer: Bytes, start: Positions, end: Positions) -> tuple[Positions, Mask]:
    """Parse the ASCII decimal number in each span.

    Returns:
        The values, and a mask of the spans that are numbers: one to nineteen digits and nothing else, below
        2**63. The value of a span that is not a number is undefined.
    """
    if len(start) == 0:
        return NO_POSITIONS, np.empty(0, np.bool_)
    if end.min() < 24:  # a load reaches back up to 24 bytes
        buffer = np.concatenate([np.zeros(24, np.uint8), buffer])
        start, end = start + 24, end + 24
    length = end - start
    valid = (length > 0) & (length <= 19)
    max_length = length.max()
    value = np.zeros(len(start), np.uint64)
    for reach, scale in ((8, 1), (16, 10**8), (24, 10**16)):
        digits = np.minimum(np.maximum(length - (reach - 8), 0), 8)
        word = (load_words(buffer, end - reach) ^ _ZEROS) & _KEEP[digits]
        if (word == word[0]).all():
            word = word[:1]  # neighbouring times and sequences share their leading digits: convert them once
        valid &= (((word + _OVER_NINE) | word) & _HIGH_BITS) == 0
        value += _fold_digits(word) * np.uint64(scale)
        if max_length <= reach:
            break
    if (length == 19).any():
        valid &= value <= np.uint64(2**63 - 1)
    return value.astype(np.int64), valid


def parse_last_eight_digits(buffer: Bytes, end: Positions) -> tuple[Positions, Positions]:
    """Parse the ASCII decimal number that ends at each position; positions are at least 8.

    Returns:
        The value of the last digits, eight at most, and how many they are: 0 where there is none, 8 where there are
        eight or more.
    """
    word = load_words(buffer, end - 8) ^ _ZEROS
    other = (((word & ~_HIGH_BITS) + _OVER_NINE) | word) & _HIGH_BITS  # marks the bytes that are not digits
    other |= other >> np.uint64(8)  # these three shifts also mark every byte before such a byte
    other |= other >> np.uint64(16)
    other |= other >> np.uint64(32)
    marks = other >> np.uint64(7)
    word &= ~(marks * np.uint64(0xFF))
    digits = np.uint64(8) - ((marks * np.uint64(0x0101010101010101)) >> np.uint64(56))
    return _fold_digits(word).astype(np.int64), digits.astype(np.int64)


def _fold_digits(word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Combine eight digit values into a number, the most significant in the lowest byte.

    First into four pairs, then all of them, by three multiplications, after Lemire (see the head of this module).
    """
    word = word * np.uint64(10) + (word >> np.uint64(8))
    low = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    high = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    folded: npt.NDArray[np.uint64] = (low + high) >> np.uint64(32)
    return folded


class Separators(NamedTuple):
    """Where the separators stand in each row of a packed column."""

    position: Positions  # of all separators in the packed buffer
    first: Positions  # for each row, the index in ``position`` of its first separator
    per_row: Positions  # for each row, how many separators it has

    def rows(self) -> Positions:
        """Return the row of each separator."""
        return np.repeat(np.arange(len(self.per_row)), self.per_row)

    def positions_of(self, k: int | Positions) -> Positions:
        """Return the position of each row's separator ``k``, counted from 0 (undefined where it has fewer)."""
        if len(self.position) == 0:
            return np.zeros(len(self.first), np.int64)
        found: Positions = self.position[np.minimum(self.first + k, len(self.position) - 1)]
        return found


def find_separators(is_separator: Mask, offsets: Positions) -> Separators:
    """Find the separators of each row of a packed column, in which ``is_separator`` marks them."""
    rows = len(offsets) - 1
    if rows == 0:
        return Separators(NO_POSITIONS, NO_POSITIONS, NO_POSITIONS)
    width = len(is_separator) // rows
    if width and (offsets[1:] - offsets[:-1] == width).all():
        # Rows of equal length often have the same layout, as acknowledgement subjects do: then one search is enough.
        grid = is_separator.reshape(rows, width)
        if (grid == grid[0]).all():
            layout = np.flatnonzero(grid[0])
            position = (offsets[:-1, np.newaxis] + layout).ravel()
            return Separators(position, np.arange(rows) * len(layout), np.full(rows, len(layout)))
    position = np.flatnonzero(is_separator)
    each, rest = divmod(len(position), rows)
    # Otherwise nearly always each row has the same number of separators: then a check of that replaces the search.
    if (
        rest == 0
        and each > 0
        and (position[::each] >= offsets[:-1]).all()
        and (position[each - 1 :: each] < offsets[1:]).all()
    ):
        return Separators(position, np.arange(rows) * each, np.full(rows, each))
    bounds = np.searchsorted(position, offsets)
    return Separators(position, bounds[:-1], np.diff(bounds))


def rows_with(marked: Positions, offsets: Positions) -> Mask:
    """Return a mask of the rows of a packed column that have one of the marked bytes."""
    found = np.zeros(len(offsets) - 1, np.bool_)
    found[np.searchsorted(offsets[1:], marked, "right")] = True
    return found


def offsets_of(row: Positions, rows: int) -> Positions:
    """Return the ``rows + 1`` offsets of a list column whose elements belong to the ascending rows ``row``."""
    return np.append(0, np.cumsum(np.bincount(row, minlength=rows)))


class Text(NamedTuple):
    """Byte strings as text."""

    values: pa.StringArray
    replaced: Positions = NO_POSITIONS  # rows with bytes that are not UTF-8, replaced by U+FFFD; rarely any


def decode_utf8_replacing(array: pa.BinaryArray) -> Text:
    """Decode a column without nulls, with U+FFFD for what is not UTF-8, so that one bad message cannot stop a query."""
    data, offsets = bytes_and_offsets_of(array)
    if not (data & 0x80).any():
        return Text(array.view(pa.string()))  # ASCII needs no further check
    try:
        return Text(array.cast(pa.string()))
    except pa.ArrowInvalid:
        values = _decode_replacing(data, offsets)
    return Text(values, np.flatnonzero(~flags_of(pc.equal(values.cast(pa.binary()), array))))


def _decode_replacing(data: Bytes, offsets: Positions) -> pa.StringArray:
    """Decode all rows at once with Python's decoder; an LF after each row separates it from the next."""
    ends = offsets[1:] + np.arange(len(offsets) - 1)
    lines = np.insert(data, offsets[1:], _LF)
    decoded = np.frombuffer(lines.tobytes().decode("utf-8", "replace").encode(), np.uint8)
    feeds = np.flatnonzero(decoded == _LF)[np.cumsum(lines == _LF)[ends] - 1]  # decoding keeps the LFs within rows
    return gather(decoded, np.append(0, feeds[:-1] + 1), feeds).view(pa.string())
