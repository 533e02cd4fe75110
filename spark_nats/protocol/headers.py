"""Header blocks: ``NATS/1.0``, an optional inline status, then ``Name: value`` lines (ADR-4).

Names keep their case and are compared case-sensitively; a name may repeat, and its values keep their order. White space
around a value is not part of it. Names are printable ASCII without a colon; values may be any text without CR and LF.
An inline status is the server's own answer: ``NATS/1.0 503`` in place of a publisher's headers.

For columns the blocks of a whole batch are packed into one buffer and cut at every CRLF at once; a name that one
block has several times is found by comparing each line with the next few. The benchmark's rows "codec: decode HMSG with
two headers" and "codec: encode HPUB with two headers" guard the cost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.protocol import bytecolumns
from spark_nats.protocol.documents import printable
from spark_nats.protocol.subject_columns import Violation, find_violation

VERSION = b"NATS/1.0"
MAX_BLOCK_SIZE = 65535  # bytes of a header block that a stream stores
EMPTY_BLOCK = VERSION + b"\r\n\r\n"  # a header block without headers
CONTROL_PREFIX = "Nats-"  # prefix of the headers that the server acts on
# Headers that the server, or a client of a KV bucket, acts on or writes.
MSG_ID = "Nats-Msg-Id"  # the id by which a stream recognises a duplicate
EXPECTED_STREAM = "Nats-Expected-Stream"  # the only stream that may store the message
MIRRORED_SINCE = 2, 11, 5  # the first version whose mirrors keep messages that have EXPECTED_STREAM
EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"  # sequence that the subject's last message must have
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"  # the subject that is meant, if it is another one
EXPECTED_LAST = "Nats-Expected-Last-Sequence"  # sequence that the stream's last message must have
EXPECTED_MSG_ID = "Nats-Expected-Last-Msg-Id"  # the id that the stream's last message must have
TTL = "Nats-TTL"  # how long the stream keeps the message (ADR-43)
INCREMENT = "Nats-Incr"  # the increment of a counter; such a message has no payload (ADR-49)
SCHEDULE = "Nats-Schedule"  # when the stream publishes the message to another subject (ADR-51)
KNOWN_SINCE = {TTL: (2, 11), INCREMENT: (2, 12), SCHEDULE: (2, 12)}  # older servers store these and do not act on them
STREAM_SOURCE = "Nats-Stream-Source"  # where a stream has its copy of a message from; only servers may set it
TRACE_ONLY = "Nats-Trace-Only"  # with :data:`TRACE_DEST`: the message is traced, and not delivered or stored
TRACE_DEST = "Nats-Trace-Dest"  # the subject that gets the trace of the message
OPERATION = "KV-Operation"  # deletes or purges the key of a KV bucket
MARKER_REASON = "Nats-Marker-Reason"  # why the server stored a delete marker for a subject (ADR-43)
ROLLUP = "Nats-Rollup"  # which messages this one replaces
OF_SUBJECT = "sub"  # value of ROLLUP: all messages of its subject
PAYLOAD_SIZE = "Nats-Msg-Size"  # a payload's size in bytes, where the server leaves the payload out
REQUIRED_API_LEVEL = "Nats-Required-Api-Level"  # API level that a request needs; servers below it refuse
_BATCH_ID, _BATCH_SEQUENCE, _BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
BATCH_HEADERS = (_BATCH_ID, _BATCH_SEQUENCE, _BATCH_COMMIT)  # of messages stored together or not at all (ADR-50)
BATCH_HEADER_BYTES = 94  # most that :func:`add_batch_headers` adds to one of 9,999 messages, with 16 characters as id
HEADERS_TYPE = pa.map_(pa.string(), pa.list_(pa.field("element", pa.string())))

_END = b"\r\n"  # of a block
_COLON_BLANK, _CRLF, _NOTHING, _VERSION_LINE = bytecolumns.texts([": ", "\r\n", "", f"{VERSION.decode()}\r\n"])
_FALSE, _TRUE = bytecolumns.booleans(np.array([False, True]))
_NEVER, _ZERO = bytecolumns.texts(["never", "0"])
_ON = bytecolumns.texts(["1", "true", "on"])
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}  # seconds of each unit, in the order of Go's texts: 1h0m0.5s
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_PARTS = "".join(f"(?:(?P<{unit}>{_NUMBER}) ?{unit})?" for unit in _UNITS)
_DURATION = f"^(?:(?P<whole>[0-9]{{1,12}})|{_PARTS})$"
_MAX_TTL = 100 * 365 * 86400  # seconds; servers cannot count times more than 292 years ahead
_INCREMENT = r"^[+-]?[0-9]+$"
_ID_LINE = re.compile(rb"(?<=\n)%b:[^\r\n]*" % MSG_ID.encode(), re.IGNORECASE)
MAX_QUOTED = 40  # characters of an invalid value that an error quotes
_MANY_HEADERS = 16  # of one message
_CR, _LF, _COLON, _SPACE = b"\r\n: "
_NAME_BYTE = np.zeros(256, np.bool_)
_NAME_BYTE[33:127] = True
_NAME_BYTE[_COLON] = False


class HeaderColumn(NamedTuple):
    """The headers of a batch."""

    values: pa.MapArray  # ``map<string, list<string>>``, never null
    malformed: int  # lines that are left out, because they are not ``Name: value`` or do not end
    replaced: bytecolumns.Positions  # the rows in which a name or a value is not UTF-8, see :class:`.Text`


def parse_block(block: bytes) -> dict[str, list[str]]:
    """Parse one header block into its names and values, without the lines that are not headers."""
    headers: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:-1]:
        name, colon, value = line.partition(b":")
        if colon and name:
            text = value.strip(b" \t").decode("utf-8", "replace")
            headers.setdefault(name.decode("utf-8", "replace"), []).append(text)
    return headers


def encode_block(headers: Mapping[str, str]) -> bytes:
    """Return the header block of one message; its names and values must be valid."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"%b\r\n%b\r\n" % (VERSION, lines.encode())


def first_header_values(blocks: pa.BinaryArray, name: str, *, strip: bool = True) -> pa.BinaryArray:
    """Return a header's first value in each block, null where it has none; the name has only letters and dashes.

    Without ``strip``, white space after a value belongs to it, as it does for the server.
    """
    end = "[ \\t]*" if strip else ""
    return pc.extract_regex(blocks, rf"\r\n{name}:[ \t]*(?P<value>[^\r\n]*?){end}\r\n").flatten()[0]


def with_id_replaced(block: bytes, message_id: str) -> bytes:
    """Return a header block with another value of its message id."""
    return _ID_LINE.sub(lambda _: f"{MSG_ID}: {message_id}".encode(), block, count=1)


def is_before_batch_commit(block: bytes) -> bool:
    """Return whether the message of a header block belongs to an atomic batch and does not commit it."""
    has_id, has_commit = (f"\r\n{name}:".encode() in block for name in (_BATCH_ID, _BATCH_COMMIT))
    return has_id and not has_commit


def parse_blocks(blocks: pa.BinaryArray) -> HeaderColumn:
    """Parse a column of header blocks; an empty block gives an empty map."""
    rows = len(blocks)
    data, offsets = bytecolumns.bytes_and_offsets_of(blocks)
    if len(data) == 0:
        return HeaderColumn(empty_headers_column(rows), 0, bytecolumns.NO_POSITIONS)
    length, last = offsets[1:] - offsets[:-1], offsets[1:] - 1
    ends = (length >= 2) & (data[last] == _LF) & (data[np.maximum(last - 1, 0)] == _CR)
    endless = np.count_nonzero((length > 0) & ~ends)

    # Lines: each ends at a CRLF. The first of a block is its version; the last is empty, but direct gets lack that one.
    lines = bytecolumns.find_separators(data == _LF, offsets)
    feeds, row = lines.position, lines.rows()
    block = offsets[row]  # where the line's block begins
    is_end = (data[feeds - 1] == _CR) & (feeds > block)
    if not is_end.all():
        feeds, row, block = feeds[is_end], row[is_end], block[is_end]
    end = feeds - 1
    start = np.maximum(np.append(0, feeds + 1)[:-1], block)
    wanted = (start > block) & (end > start)
    start, end, row = start[wanted], end[wanted], row[wanted]

    colon = _first_in_each(np.flatnonzero(data == _COLON), start, end)
    valid = colon > start
    malformed = np.count_nonzero(~valid)
    if malformed:
        start, end, row, colon = start[valid], end[valid], row[valid], colon[valid]

    names, odd_names = bytecolumns.decode_utf8_replacing(bytecolumns.gather(data, start, colon))
    start = colon + 1 + (data[colon + 1] == _SPACE)  # nearly always one space, and nothing else
    values, odd_values = bytecolumns.decode_utf8_replacing(bytecolumns.gather(data, start, end))
    if ((data[start] <= _SPACE) | (data[end - 1] <= _SPACE)).any():
        values = pc.ascii_trim(values, characters=" \t")
    replaced = np.union1d(row[odd_names], row[odd_values])
    if _may_repeat(row, _name_hashes(names)):
        return HeaderColumn(_group_headers(rows, row, names, values), int(malformed + endless), replaced)
    lists = pa.ListArray.from_arrays(bytecolumns.integers(np.arange(len(row) + 1, dtype=np.int32)), values)
    return HeaderColumn(
        _map_column(bytecolumns.offsets_of(row, rows), names, lists), int(malformed + endless), replaced
    )


def _name_hashes(names: pa.StringArray) -> bytecolumns.Positions:
    """Return a cheap hash of each name, from its length and both its ends: different hashes mean different names."""
    data, offsets = bytecolumns.bytes_and_offsets_of(names)
    first, last = data[offsets[:-1]].astype(np.int64), data[offsets[1:] - 1]
    return np.diff(offsets) << 16 | first << 8 | last


def empty_headers_column(rows: int, kind: pa.MapType = HEADERS_TYPE) -> pa.MapArray:
    """Return a column of empty maps."""
    offsets = pa.py_buffer(np.zeros(rows + 1, np.int32))
    entries = pa.nulls(0, pa.struct([kind.key_field, kind.item_field]))
    return pa.Array.from_buffers(kind, rows, [None, offsets], children=[entries])


def _first_in_each(
    position: bytecolumns.Positions, start: bytecolumns.Positions, end: bytecolumns.Positions
) -> bytecolumns.Positions:
    """Return the first of ``position`` in each span, -1 where there is none."""
    if len(position) == len(start) and (position >= start).all() and (position < end).all():
        return position  # one in each, as nearly always
    nearest = np.searchsorted(position, start)
    found = np.append(position, end[-1:])[np.minimum(nearest, len(position))]
    return np.where((nearest < len(position)) & (found < end), found, -1)


def _group_headers(rows: int, row: bytecolumns.Positions, names: pa.StringArray, values: pa.StringArray) -> pa.MapArray:
    """Put header lines into one map per row, and values of the same name into one list."""
    code = bytecolumns.integers_of(names.dictionary_encode().indices)
    key = row * (int(code.max()) + 1) + code
    order = np.argsort(key, kind="stable")
    is_first = np.diff(key[order], prepend=-1) != 0
    # The entry of a repeated name stands where its first line stood, and holds the values of all its lines.
    first_line = np.empty(len(key), np.int64)
    first_line[order] = order[is_first][np.cumsum(is_first) - 1]
    together = np.argsort(first_line, kind="stable")
    entries, lengths = np.unique(first_line, return_counts=True)
    lists = pa.ListArray.from_arrays(
        bytecolumns.integers(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
        values.take(bytecolumns.integers(together)),
    )
    return _map_column(bytecolumns.offsets_of(row[entries], rows), names.take(bytecolumns.integers(entries)), lists)


def _may_repeat(row: bytecolumns.Positions, code: bytecolumns.Positions) -> bool:
    """Return whether a code may repeat within a row: yes, unchecked, if a row has more than ``_MANY_HEADERS`` lines."""
    most = int(np.bincount(row, minlength=1).max()) if len(row) else 0
    if most > _MANY_HEADERS:
        return True  # grouping by sorting finds out as well
    return any(((row[k:] == row[:-k]) & (code[k:] == code[:-k])).any() for k in range(1, most))


def _map_column(offsets: bytecolumns.Positions, names: pa.StringArray, lists: pa.ListArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(bytecolumns.integers(offsets.astype(np.int32)), names, lists).cast(HEADERS_TYPE)


# Writing


class HeaderLines(NamedTuple):
    """The headers of a batch, one element per line: what a map column is flattened to."""

    row: bytecolumns.Positions  # the row that each line belongs to, ascending
    name: pa.StringArray
    value: pa.StringArray
    rows: int  # how many rows the batch has

    def where(self, chosen: bytecolumns.Mask) -> HeaderLines:
        """Return the chosen lines."""
        mask = bytecolumns.booleans(chosen)
        return HeaderLines(self.row[chosen], self.name.filter(mask), self.value.filter(mask), self.rows)


def flatten_headers(headers: pa.Array) -> HeaderLines:
    """Flatten a ``map<string, string>`` or ``map<string, list<string>>`` column to its lines.

    A null map has no lines; a name with an empty or null list has none.
    """
    rows = len(headers)
    if headers.null_count:
        headers = pc.if_else(headers.is_valid(), headers, empty_headers_column(1, headers.type)[0])
    offsets = bytecolumns.integers_of(headers.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    names, items = headers.keys.slice(first, last - first), headers.items.slice(first, last - first)
    row = np.repeat(np.arange(rows), np.diff(offsets))
    if pa.types.is_nested(items.type):
        # A null list may span values, which are not its content. To fill nulls with a number would import pandas.
        lengths = bytecolumns.integers_of(pc.list_value_length(items)) * bytecolumns.flags_of(items.is_valid())
        parent = np.repeat(np.arange(len(items)), lengths)
        items = items.flatten() if len(items) else items.values.slice(0, 0)  # Spark before 4.2: without its one offset
        if len(parent) != len(names) or (np.diff(parent) != 1).any():  # not one value for each name
            names, row = names.take(bytecolumns.integers(parent)), row[parent]
    return HeaderLines(row, names.cast(pa.string()), items.cast(pa.string()), rows)


def find_header_violation(lines: HeaderLines) -> Violation | None:
    """Return the rows with an invalid header line, and the rule that they break; None when there are none."""
    name_data, name_offsets = bytecolumns.bytes_and_offsets_of(lines.name)
    value_data, value_offsets = bytecolumns.bytes_and_offsets_of(lines.value)
    breaks = np.flatnonzero((value_data == _CR) | (value_data == _LF))
    checks = [
        (np.diff(name_offsets) == 0, "has a header with an empty name"),
        (
            bytecolumns.rows_with(np.flatnonzero(~_NAME_BYTE[name_data]), name_offsets),
            "has a header name with white space, a control character, a colon or a character outside ASCII",
        ),
        (bytecolumns.flags_of(lines.value.is_null()), "has a header whose value is null"),
        (bytecolumns.rows_with(breaks, value_offsets), "has a header value with a line break (CR or LF)"),
    ]
    wrong_rows = np.zeros(lines.rows, np.bool_)
    for wrong, _ in checks:
        wrong_rows[lines.row[wrong]] = True
    if not wrong_rows.any():
        return None

    def say(row: int) -> str:
        wrong, rule = next((wrong, rule) for wrong, rule in checks if row in lines.row[wrong])
        name = lines.name[int(np.flatnonzero(wrong & (lines.row == row))[0])].as_py()
        return f"{rule}: {name[:MAX_QUOTED]!r}{'…' * (len(name) > MAX_QUOTED)}" if name else rule

    return Violation(wrong_rows, say)


def are_only_traced(lines: HeaderLines) -> bytecolumns.Mask:
    """Return a mask of the rows that a server from 2.11 on only traces: it neither stores nor answers them.

    Servers before 2.14 find the name of :data:`TRACE_DEST` in any letters.
    """
    silenced = np.zeros(lines.rows, np.bool_)
    only = bytecolumns.flags_of(pc.is_in(lines.name, bytecolumns.texts([TRACE_ONLY])))
    if only.any():
        is_on = bytecolumns.flags_of(pc.is_in(pc.utf8_lower(lines.value), _ON))
        silenced[lines.row[only & is_on]] = True
        traced = np.zeros(lines.rows, np.bool_)
        dest = bytecolumns.texts([TRACE_DEST.lower()])
        traced[lines.row[bytecolumns.flags_of(pc.is_in(pc.utf8_lower(lines.name), dest))]] = True
        silenced &= traced
    return silenced


def join_lines(lines: HeaderLines) -> pa.StringArray:
    """Return the header lines of each row as text; they must have passed :func:`find_header_violation`."""
    text = pc.binary_join_element_wise(lines.name, _COLON_BLANK, lines.value, _CRLF, _NOTHING)
    offsets = bytecolumns.integers(bytecolumns.offsets_of(lines.row, lines.rows).astype(np.int32))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, text), _NOTHING)


def encode_blocks(lines: HeaderLines, extra: list[tuple[str, pa.Array | str]] | None = None) -> pa.BinaryArray:
    """Return the header block of each row: :func:`join_lines` and :func:`wrap_lines_into_blocks` at once."""
    return wrap_lines_into_blocks(join_lines(lines), extra)


def add_lines(lines: pa.StringArray, extra: list[tuple[str, pa.Array | str]]) -> pa.StringArray:
    """Append headers to the lines of each row, as :func:`join_lines` returns them.

    Each header in ``extra`` has one value for all rows, or a column in which a null leaves the header out of its row.
    """
    parts = [lines]
    for name, value in extra:
        if isinstance(value, str):
            parts.append(bytecolumns.repeat_text(f"{name}: {value}\r\n", len(lines)))
        else:
            line = pc.binary_join_element_wise(bytecolumns.texts([f"{name}: "])[0], value, _CRLF, _NOTHING)
            parts.append(pc.fill_null(line, _NOTHING))
    return pc.binary_join_element_wise(*parts, _NOTHING) if len(parts) > 1 else lines


def wrap_lines_into_blocks(
    lines: pa.StringArray, extra: list[tuple[str, pa.Array | str]] | None = None
) -> pa.BinaryArray:
    """Return each row's header block, with headers appended as by :func:`add_lines`; null for rows without headers."""
    body = add_lines(lines, extra or [])
    block = pc.binary_join_element_wise(_VERSION_LINE, body, _CRLF, _NOTHING)
    present = bytecolumns.integers_of(pc.binary_length(body)) > 0
    if not present.all():
        block = pc.if_else(bytecolumns.booleans(present), block, bytecolumns.NO_TEXT)
    return block.cast(pa.binary())


def find_id_violation(values: pa.Array) -> Violation | None:
    """Return the values of a string column that cannot be message ids, and the rule that they break; nulls pass."""
    data, offsets = bytecolumns.bytes_and_offsets_of(values)
    wrong = bytecolumns.rows_with(np.flatnonzero((data == _CR) | (data == _LF)), offsets) | (np.diff(offsets) == 0)
    return find_violation(values, wrong, lambda value: "has a line break (CR or LF)" if value else "is empty")


def add_batch_headers(blocks: pa.BinaryArray, batch: str) -> pa.BinaryArray:
    """Add the headers that make messages an atomic batch, which its last message commits (ADR-50).

    Args:
        blocks: header blocks, null where a message has none; at least one.
        batch: id of the batch, at most 64 characters.
    """
    rows = len(blocks)
    begun = pc.fill_null(pc.binary_slice(blocks, 0, -len(_END)).cast(pa.string()), _VERSION_LINE)
    numbers = bytecolumns.integers(np.arange(1, rows + 1)).cast(pa.string())
    commit = pa.concat_arrays([pa.nulls(rows - 1, pa.string()), bytecolumns.texts(["1"])])
    lines = add_lines(begun, [(_BATCH_ID, batch), (_BATCH_SEQUENCE, numbers), (_BATCH_COMMIT, commit)])
    return pc.binary_join_element_wise(lines, _CRLF, _NOTHING).cast(pa.binary())


class Encoded(NamedTuple):
    """A column as the values of a header."""

    values: pa.StringArray  # null where a row has none
    violation: Violation | None  # the rows that cannot have the header; the values are undefined then


def encode_ttls(ttls: pa.Array) -> Encoded:
    """Return lifetimes as values of :data:`TTL`, in whole seconds, rounded down: the server counts no others (ADR-43).

    Args:
        ttls: column of strings, each a number with the unit ``ms``, ``s``, ``m`` or ``h`` or several of them as Go
            writes them (``10m0s``), a whole number of seconds, or ``never``; or of integers, in seconds. A null sets
            no lifetime.
    """
    text = ttls.cast(pa.string())
    never = pc.equal(text, _NEVER)
    parts = pc.extract_regex(text, _DURATION).flatten()
    seconds = np.zeros(len(text))
    for part, factor in zip(parts, (1.0, *_UNITS.values()), strict=True):
        given = pc.fill_null(part, _NOTHING)
        number = pc.if_else(pc.equal(given, _NOTHING), _ZERO, given).cast(pa.float64())
        seconds += bytecolumns.floats_of(number) * factor
    seconds = np.floor(seconds)
    wrong = ~((seconds >= 1) & (seconds <= _MAX_TTL))
    wrong &= ~bytecolumns.flags_of(pc.fill_null(never, _FALSE))
    rule = "it must be a time from 1s to 876000h with its unit, whole seconds, or 'never'"
    whole = bytecolumns.integers(np.where(wrong, 0, seconds).astype(np.int64)).cast(pa.string())
    return Encoded(pc.if_else(never, text, whole), _violation_of(text, wrong, rule))


def encode_revisions(revisions: pa.Array) -> Encoded:
    """Return sequences as values of :data:`EXPECTED_REVISION`; null for none, 0 for a subject without messages."""
    revisions = revisions.cast(pa.int64())
    text = revisions.cast(pa.string())
    rule = "it must be a sequence, or 0 for a subject that has no message"
    return Encoded(text, _violation_of(text, bytecolumns.integers_of(revisions) < 0, rule))


def encode_increments(increments: pa.Array) -> Encoded:
    """Return integers, or whole numbers of any size as strings, as values of :data:`INCREMENT`; null for none."""
    text = increments.cast(pa.string())
    wrong = ~bytecolumns.flags_of(pc.fill_null(pc.match_substring_regex(text, _INCREMENT), _TRUE))
    return Encoded(text, _violation_of(text, wrong, "it must be a whole number"))


def _violation_of(values: pa.StringArray, wrong: bytecolumns.Mask, rule: str) -> Violation | None:
    """Return the wrong rows as a violation that quotes their values."""
    return find_violation(values, wrong, lambda value: f"is {value[:MAX_QUOTED]!r}; {rule}")


CONFLICT = 409  # a pull request cannot be fulfilled; the description says why
LOCKED = 423  # another client is pinned to the consumer
TOO_MANY_REQUESTS = 429  # a stream is overloaded; also a ``code`` of the API's errors
NO_RESPONDERS = 503  # nobody listens on the subject

_STATUS_LINE = re.compile(rb"%b[ \t]+([0-9]{3})(?:[ \t]+(.*))?" % re.escape(VERSION), re.DOTALL)


class Status(NamedTuple):
    """The inline status of a header block."""

    code: int  # such as 100 (heartbeat), 404, 408, 409, 503 (no responders)
    description: str  # the server's text; may be empty
    headers: dict[str, str]  # the first value of each

    def number(self, name: str) -> int | None:
        """Return the number that a header holds; None when there is none."""
        value = self.headers.get(name, "")
        return int(value) if re.fullmatch("[0-9]{1,19}", value) else None


def parse_status(block: bytes) -> Status | None:
    """Return the inline status of a header block, None when it has none."""
    found = _STATUS_LINE.fullmatch(block.split(b"\r\n", 1)[0])
    if found is None:
        return None
    headers = {name: values[0] for name, values in parse_block(block).items()}
    return Status(int(found[1]), printable((found[2] or b"").strip().decode("utf-8", "replace")), headers)


class RequestRefused(NamedTuple):
    """The server does not accept such a pull request or direct get, now or later."""

    status: Status
