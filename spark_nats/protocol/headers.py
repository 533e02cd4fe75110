"""Header blocks: ``NATS/1.0``, an optional inline status (:mod:`.statuses`), then ``Name: value`` lines (ADR-4).

Names keep the case in which they were sent and are compared with it; a name may repeat, and its values keep their
order. White space around a value is not part of it. Names are printable ASCII without a colon; values may be any
text without CR and LF.

For columns the blocks of a whole batch are packed into one buffer and cut at every CRLF at once; a name that repeats
in a row is found by comparing each line with the next few. The benchmark's rows "codec: decode HMSG with two headers"
and "codec: encode HPUB with two headers" guard the cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.protocol.bytecolumns import (
    Bytes,
    Mask,
    Positions,
    booleans,
    flags_of,
    floats_of,
    gather,
    integers,
    offsets_of,
    packed,
    repeated,
    rows_with,
    split,
    texts,
    to_text,
    values_of,
)
from spark_nats.protocol.subject_columns import Violation, find_violation

VERSION = b"NATS/1.0"
MAX_BLOCK_SIZE = 65535  # bytes of a header block that a stream stores
EMPTY_BLOCK = VERSION + b"\r\n\r\n"  # a header block without headers
CONTROL_PREFIX = "Nats-"  # what the names of headers begin with on which the server acts
# Headers on which a server acts.
MSG_ID = "Nats-Msg-Id"  # by which a stream knows a message again
EXPECTED_STREAM = "Nats-Expected-Stream"  # the stream by which alone a message may be stored
EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"  # that of its subject's last message, or it is not stored
EXPECTED_MSG_ID = "Nats-Expected-Last-Msg-Id"  # the id of the stream's last message, or it is not stored
TTL = "Nats-TTL"  # for how long a message is kept (ADR-43)
INCREMENT = "Nats-Incr"  # what is added to a counter; the message has no payload then (ADR-49)
OPERATION = "KV-Operation"  # which says that the key of a KV bucket was deleted or purged
MARKER_REASON = "Nats-Marker-Reason"  # of a message by which the server says that a subject is empty now
ROLLUP = "Nats-Rollup"  # which messages this one takes the place of
OF_SUBJECT = "sub"  # value of ROLLUP: all messages of its subject
PAYLOAD_SIZE = "Nats-Msg-Size"  # a payload's size in bytes where the server has left it out
REQUIRED_API_LEVEL = "Nats-Required-Api-Level"  # of a request that a server refuses which is too old for it
_BATCH_ID, _BATCH_SEQUENCE, _BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
BATCH_HEADERS = (_BATCH_ID, _BATCH_SEQUENCE, _BATCH_COMMIT)  # of what is stored together or not at all (ADR-50)
BATCH_BYTES = 94  # bytes that :func:`number_batch` adds to a block at most, with an id of 16 characters
HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))

_END = b"\r\n"  # of a block
_COLON_BLANK, _CRLF, _NOTHING, _VERSION_LINE = texts([": ", "\r\n", "", f"{VERSION.decode()}\r\n"])
_NO_ROWS: Positions = np.empty(0, np.int64)
_FIRST = integers(np.zeros(1, np.int32))[0]
_FALSE, _TRUE = booleans(np.array([False, True]))
_NEVER = texts(["never"])[0]
_DURATION = r"^(?P<number>[0-9]{1,12}(?:\.[0-9]{1,9})?) ?(?P<unit>ms|s|m|h|)$"
_UNITS = texts(["", "ms", "s", "m", "h"])
_SECONDS = np.array([1.0, 0.001, 1.0, 60.0, 3600.0])  # of each unit
_MAX_TTL = 100 * 365 * 86400  # seconds; what lies more than 292 years ahead, servers cannot count
_INCREMENT = r"^[+-]?[0-9]+$"
SHOWN = 40  # characters of a value that is wrong
_MANY_HEADERS = 16  # of one message
_CR, _LF, _COLON, _SPACE, _TAB = b"\r\n: \t"
_NAME_BYTE = np.zeros(256, np.bool_)
_NAME_BYTE[33:127] = True
_NAME_BYTE[_COLON] = False


class HeaderColumn(NamedTuple):
    """The headers of a batch."""

    values: pa.MapArray  # ``map<string, list<string>>``, never null
    malformed: int  # how many lines were no ``Name: value``, or did not end, and are left out
    replaced: Positions  # the rows in which a name or a value is not UTF-8, see :class:`.Text`


def parse_block(block: bytes) -> dict[str, list[str]]:
    """Parse one header block into its names and values. Lines that are not a header are left out."""
    headers: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:-1]:
        name, colon, value = line.partition(b":")
        if colon and name:
            text = value.strip(b" \t").decode("utf-8", "replace")
            headers.setdefault(name.decode("utf-8", "replace"), []).append(text)
    return headers


def encode_block(headers: Mapping[str, str]) -> bytes:
    """Return the header block of one message, of names and values that may be sent."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"%b\r\n%b\r\n" % (VERSION, lines.encode())


def header_values(blocks: pa.BinaryArray, name: str) -> pa.BinaryArray:
    """Return the first value of one header, of letters and dashes, in each block; null where a block has none."""
    return pc.extract_regex(blocks, rf"\r\n{name}:[ \t]*(?P<value>[^\r\n]*?)[ \t]*\r\n").flatten()[0]


def is_within_batch(block: bytes) -> bool:
    """Tell of one header block whether its message was stored together with later ones."""
    has_id, has_commit = (f"\r\n{name}:".encode() in block for name in (_BATCH_ID, _BATCH_COMMIT))
    return has_id and not has_commit


def split_blocks(blocks: pa.BinaryArray) -> HeaderColumn:
    """Parse a column of header blocks; an empty block gives an empty map."""
    rows = len(blocks)
    data, offsets = packed(blocks)
    if len(data) == 0:
        return HeaderColumn(no_headers(rows), 0, _NO_ROWS)
    length, last = offsets[1:] - offsets[:-1], offsets[1:] - 1
    endless = np.count_nonzero(
        (length > 0) & ((length < 2) | (data[last] != _LF) | (data[np.maximum(last - 1, 0)] != _CR))
    )

    # Lines: each ends at a CRLF. The first of a block is its version, the last is empty.
    lines = split(data == _LF, offsets)
    feeds, row = lines.position, lines.rows()
    block = offsets[row]  # where the line's block begins
    is_end = (data[feeds - 1] == _CR) & (feeds > block)
    if not is_end.all():
        feeds, row, block = feeds[is_end], row[is_end], block[is_end]
    end = feeds - 1
    start = np.empty_like(end)
    if len(end):
        start[0] = 0
        start[1:] = feeds[:-1] + 1
        start = np.maximum(start, block)
    wanted = (start > block) & (end > start)
    start, end, row = start[wanted], end[wanted], row[wanted]

    colon = _first_in_each(np.flatnonzero(data == _COLON), start, end)
    valid = colon > start
    malformed = np.count_nonzero(~valid)
    if malformed:
        start, end, row, colon = start[valid], end[valid], row[valid], colon[valid]

    names, odd_names = to_text(gather(data, start, colon))
    values, odd_values = to_text(gather(data, *_strip(data, colon + 1, end)))
    replaced = np.union1d(row[odd_names], row[odd_values]) if len(odd_names) or len(odd_values) else _NO_ROWS
    if _any_repeats(row, _looks(names), rows):
        return HeaderColumn(_group(rows, row, names, values), int(malformed + endless), replaced)
    lists = pa.ListArray.from_arrays(integers(np.arange(len(row) + 1, dtype=np.int32)), values)
    return HeaderColumn(_maps(offsets_of(row, rows), names, lists), int(malformed + endless), replaced)


def _looks(names: pa.StringArray) -> Positions:
    """Return numbers that differ only where names differ: their length and both their ends, which is cheap to see."""
    data, offsets = packed(names)
    first, last = data[offsets[:-1]].astype(np.int64), data[offsets[1:] - 1]
    return np.diff(offsets) << 16 | first << 8 | last


def no_headers(rows: int, kind: pa.MapType = HEADERS_TYPE) -> pa.MapArray:
    """Return a column of empty maps."""
    offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
    entries = pa.nulls(0, pa.struct([kind.key_field, kind.item_field]))
    return pa.Array.from_buffers(kind, rows, [None, offsets], children=[entries])


def _first_in_each(position: Positions, start: Positions, end: Positions) -> Positions:
    """Return the first of ``position`` in each span, -1 where there is none."""
    if len(position) == len(start) and (position >= start).all() and (position < end).all():
        return position  # one in each, as it nearly always is
    nearest = np.searchsorted(position, start)
    found = np.append(position, end[-1:])[np.minimum(nearest, len(position))]
    return np.where((nearest < len(position)) & (found < end), found, -1)


def _strip(data: Bytes, start: Positions, end: Positions) -> tuple[Positions, Positions]:
    """Move both ends of each span inwards past spaces and tabs. A byte that is neither stands before and after it."""

    def blank(position: Positions) -> Mask:
        byte = data[position]
        found: Mask = (byte == _SPACE) | (byte == _TAB)
        return found

    start = start + blank(start)  # nearly always one space, and nothing else
    if (blank(start) | (blank(end - 1) & (end > start))).any():
        solid = np.flatnonzero((data != _SPACE) & (data != _TAB))
        start = solid[np.searchsorted(solid, start)]
        end = np.maximum(start, solid[np.searchsorted(solid, end) - 1] + 1)
    return start, end


def _group(rows: int, row: Positions, names: pa.StringArray, values: pa.StringArray) -> pa.MapArray:
    """Put header lines into one map per row, and values of the same name into one list."""
    code = values_of(names.dictionary_encode().indices)
    key = row * (int(code.max()) + 1) + code
    order = np.argsort(key, kind="stable")
    is_first = np.ones(len(key), np.bool_)
    is_first[1:] = np.diff(key[order]) != 0
    # A name repeats: entries stand where its first line stood, and hold the values of all its lines.
    leader = np.empty(len(key), np.int64)
    leader[order] = order[is_first][np.cumsum(is_first) - 1]
    together = np.argsort(leader, kind="stable")
    entries, lengths = np.unique(leader, return_counts=True)
    lists = pa.ListArray.from_arrays(
        integers(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)), values.take(integers(together))
    )
    return _maps(offsets_of(row[entries], rows), names.take(integers(entries)), lists)


def _any_repeats(row: Positions, code: Positions, rows: int) -> bool:
    """Tell whether a code occurs twice in a row: each line is compared with those up to a row's length behind it."""
    most = int(np.bincount(row, minlength=1).max()) if len(row) else 0
    if most > _MANY_HEADERS:
        return True  # sorting finds out as well
    return any(((row[k:] == row[:-k]) & (code[k:] == code[:-k])).any() for k in range(1, most))


def _maps(offsets: Positions, names: pa.StringArray, lists: pa.ListArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(integers(offsets.astype(np.int32)), names, lists).cast(HEADERS_TYPE)


# Writing


class HeaderLines(NamedTuple):
    """The headers of a batch, one element per line: what a map column is flattened to."""

    row: Positions  # the row that each line belongs to, rising
    name: pa.StringArray
    value: pa.StringArray
    rows: int  # how many rows the batch has

    def where(self, chosen: Mask) -> HeaderLines:
        """Return the chosen lines."""
        mask = booleans(chosen)
        return HeaderLines(self.row[chosen], self.name.filter(mask), self.value.filter(mask), self.rows)


def flatten(headers: pa.Array) -> HeaderLines:
    """Flatten a ``map<string, string>`` or ``map<string, list<string>>`` column to its lines.

    A null map has no lines, a name with an empty or null list has none either.
    """
    rows = len(headers)
    if headers.null_count:
        headers = pc.if_else(headers.is_valid(), headers, no_headers(1, headers.type)[0])
    offsets = values_of(headers.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    names, items = headers.keys.slice(first, last - first), headers.items.slice(first, last - first)
    row = np.repeat(np.arange(rows), np.diff(offsets))
    if pa.types.is_list(items.type) or pa.types.is_large_list(items.type):
        parent = values_of(pc.list_parent_indices(items))
        items = items.flatten()
        if len(parent) != len(names) or (np.diff(parent) != 1).any():  # not one value for each name
            names, row = names.take(integers(parent)), row[parent]
    return HeaderLines(row, names.cast(pa.string()), items.cast(pa.string()), rows)


def find_header_violation(lines: HeaderLines) -> Violation | None:
    """Find the rows with a header line that may not be sent, and say why."""
    name_data, name_offsets = packed(lines.name)
    value_data, value_offsets = packed(lines.value)
    breaks = np.flatnonzero((value_data == _CR) | (value_data == _LF))
    checks = [
        (np.diff(name_offsets) == 0, "has a header with an empty name"),
        (
            rows_with(np.flatnonzero(~_NAME_BYTE[name_data]), name_offsets),
            "has a header name with white space, a control character, a colon or a character outside ASCII",
        ),
        (flags_of(lines.value.is_null()), "has a header whose value is null"),
        (rows_with(breaks, value_offsets), "has a header value with a line break (CR or LF)"),
    ]
    wrong_rows = np.zeros(lines.rows, np.bool_)
    for wrong, _ in checks:
        wrong_rows[lines.row[wrong]] = True
    if not wrong_rows.any():
        return None

    def say(row: int) -> str:
        wrong, rule = next((wrong, rule) for wrong, rule in checks if row in lines.row[wrong])
        name = lines.name[int(np.flatnonzero(wrong & (lines.row == row))[0])].as_py()
        return f"{rule}: {name[:SHOWN]!r}{'…' * (len(name) > SHOWN)}" if name else rule

    return Violation(wrong_rows, say)


def join_lines(lines: HeaderLines) -> pa.StringArray:
    """Return the lines of each row, which passed :func:`find_header_violation`, as they stand in its block."""
    text = pc.binary_join_element_wise(lines.name, _COLON_BLANK, lines.value, _CRLF, _NOTHING)
    offsets = integers(offsets_of(lines.row, lines.rows).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, text), _NOTHING)


def encode_blocks(lines: HeaderLines, extra: list[tuple[str, pa.Array | str]] | None = None) -> pa.BinaryArray:
    """Return the header block of each row: :func:`join_lines` and :func:`wrap_lines` at once."""
    return wrap_lines(join_lines(lines), extra)


def add_lines(lines: pa.StringArray, extra: list[tuple[str, pa.Array | str]]) -> pa.StringArray:
    """Return the header lines of each row, as :func:`join_lines` does, with more behind them.

    ``extra`` has a value for all rows or a column, in which a null leaves the header out of that row.
    """
    parts = [lines]
    for name, value in extra:
        if isinstance(value, str):
            parts.append(repeated(f"{name}: {value}\r\n", len(lines)))
        else:
            line = pc.binary_join_element_wise(texts([f"{name}: "])[0], value, _CRLF, _NOTHING)
            parts.append(pc.fill_null(line, _NOTHING))
    return pc.binary_join_element_wise(*parts, _NOTHING) if len(parts) > 1 else lines


def wrap_lines(lines: pa.StringArray, extra: list[tuple[str, pa.Array | str]] | None = None) -> pa.BinaryArray:
    """Return the header block of each row's lines, with more as in :func:`add_lines`; null for rows without any."""
    body = add_lines(lines, extra or [])
    block = pc.binary_join_element_wise(_VERSION_LINE, body, _CRLF, _NOTHING)
    present = values_of(pc.binary_length(body)) > 0
    if not present.all():
        block = pc.if_else(booleans(present), block, pa.nulls(len(block), pa.string()))
    return block.cast(pa.binary())


def find_value_violation(values: pa.Array) -> Violation | None:
    """Find the values of a string column that may not be a header's, and say why. Nulls are not judged."""
    data, offsets = packed(values)
    wrong = rows_with(np.flatnonzero((data == _CR) | (data == _LF)), offsets) | (np.diff(offsets) == 0)
    return find_violation(values, wrong, lambda value: "has a line break (CR or LF)" if value else "is empty")


def number_batch(blocks: pa.BinaryArray, batch: str) -> pa.BinaryArray:
    """Return header blocks with what makes their messages a batch, the last of which commits it (ADR-50).

    Args:
        blocks: header blocks, null where a message has none; at least one.
        batch: id of the batch, of 64 characters at most.
    """
    rows = len(blocks)
    begun = pc.fill_null(pc.binary_slice(blocks, 0, -len(_END)).cast(pa.string()), _VERSION_LINE)
    numbers = integers(np.arange(1, rows + 1)).cast(pa.string())
    commit = pc.if_else(booleans(np.arange(rows) == rows - 1), texts(["1"])[0], pa.nulls(rows, pa.string()))
    lines = add_lines(begun, [(_BATCH_ID, batch), (_BATCH_SEQUENCE, numbers), (_BATCH_COMMIT, commit)])
    return pc.binary_join_element_wise(lines, _CRLF, _NOTHING).cast(pa.binary())


class Encoded(NamedTuple):
    """A column as the values of a header."""

    values: pa.StringArray  # null where a row has none
    violation: Violation | None  # the rows that cannot have the header; the values mean nothing then


def encode_ttls(ttls: pa.Array) -> Encoded:
    """Return lifetimes as values of :data:`TTL`, in seconds, of which the server counts whole ones (ADR-43).

    Args:
        ttls: column of strings, a number with the unit ``ms``, ``s``, ``m`` or ``h``, or a whole number of seconds, or
            ``never``; or of integers, in seconds. Null is none.
    """
    text = ttls.cast(pa.string())
    never = pc.equal(text, _NEVER)
    found = pc.extract_regex(text, _DURATION)
    number, unit = found.flatten()
    factor = _SECONDS[values_of(pc.fill_null(pc.index_in(unit, _UNITS), _FIRST))]
    with np.errstate(invalid="ignore"):  # what stands where there is no number
        seconds = np.floor(floats_of(number.cast(pa.float64())) * factor)
        wrong = ~((seconds >= 1) & (seconds <= _MAX_TTL))
    wrong |= flags_of(found.is_null())
    wrong |= flags_of(pc.fill_null(pc.and_(pc.equal(unit, _NOTHING), pc.match_substring(number, ".")), _FALSE))
    wrong &= ~flags_of(pc.fill_null(never, _FALSE))
    rule = "it must be a time from 1s to 876000h with its unit, whole seconds, or 'never'"
    shown = integers(np.where(wrong | (seconds != seconds), 0, seconds).astype(np.int64)).cast(pa.string())
    return Encoded(pc.if_else(never, text, shown), _shown(text, wrong, rule))


def encode_revisions(revisions: pa.Array) -> Encoded:
    """Return sequences, of which null is none, as values of :data:`EXPECTED_REVISION`; 0: there is no message yet."""
    revisions = revisions.cast(pa.int64())
    text = revisions.cast(pa.string())
    rule = "it must be a sequence, or 0 for a subject that has no message"
    return Encoded(text, _shown(text, values_of(revisions) < 0, rule))


def encode_increments(increments: pa.Array) -> Encoded:
    """Return integers, or whole numbers of any size as strings, as values of :data:`INCREMENT`. Null is none."""
    text = increments.cast(pa.string())
    wrong = ~flags_of(pc.fill_null(pc.match_substring_regex(text, _INCREMENT), _TRUE))
    return Encoded(text, _shown(text, wrong, "it must be a whole number"))


def _shown(values: pa.StringArray, wrong: Mask, rule: str) -> Violation | None:
    """Name wrong rows with their values."""
    return find_violation(values, wrong, lambda value: f"is {value[:SHOWN]!r}; {rule}")
