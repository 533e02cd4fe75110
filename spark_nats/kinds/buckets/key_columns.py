"""The rules of :mod:`spark_nats.protocol.keyvalue` for columns: valid keys, and what messages do to keys.

In a row for a bucket, a key is what a subject is in a message, and an operation is a header (ADR-8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.protocol import bytecolumns
from spark_nats.protocol.headers import MARKER_REASON, OF_SUBJECT, OPERATION, ROLLUP, first_header_values
from spark_nats.protocol.keyvalue import KEY_VALUE_SUBJECTS, RESERVED, key_subject, key_violation
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.subject_columns import Violation, find_violation, have_wrong_tokens, violation_or_none

if TYPE_CHECKING:
    from spark_nats.kinds.streams.write.sink import Refuse

PUT, DELETE, PURGE = "PUT", "DEL", "PURGE"  # PUT is also what a message with neither OPERATION nor MARKER_REASON does

_PUT, _DEL, _PURGE = range(3)
_NAMES = bytecolumns.texts([PUT, DELETE, PURGE])
_SAYS_PURGE, _SAYS_NO_DELETION = bytecolumns.byte_strings([b"PURGE"]), bytecolumns.byte_strings([b"PUT", b""])
_EXPIRED, _REMOVED = bytecolumns.byte_strings([b"MaxAge", b"Purge"]), bytecolumns.byte_strings([b"Remove"])
_NO_KEY_BYTE = np.ones(256, np.bool_)
_NO_KEY_BYTE[list(b"-/_=.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")] = False
_DOT = ord(".")
_NULL = pa.nulls(1, pa.string())[0]
_NOTHING, _OF_SUBJECT = bytecolumns.texts(["", OF_SUBJECT])
_EMPTY = bytecolumns.byte_strings([b""])[0]
_NO_REVISION = bytecolumns.integers(np.array([-1]))[0]
_NO_TTL = (
    "is for keys that are created (expected_revision 0) and for PURGE: when a value that was put expires, the one "
    "before it would come back (ADR-48)"
)


class Operations(NamedTuple):
    """What messages have done to their keys."""

    names: pa.StringArray  # ``PUT``, ``DEL`` or ``PURGE``
    deletions: bytecolumns.Mask  # which of them are not ``PUT``


def operations_of(messages: Messages) -> Operations:
    """Return the operation of each message of a bucket.

    A client sets it in ``KV-Operation``, where any value but ``PUT``, ``PURGE`` and the empty one deletes (ADR-8); the
    server's own markers have a reason instead.
    """
    codes = np.zeros(len(messages), np.int32)
    if (has_header := messages.header.end > messages.header.start).any():
        chosen = messages.take(has_header)
        codes[has_header] = _operation_codes(chosen.gather(chosen.header))
    return Operations(_NAMES.take(bytecolumns.integers(codes)), codes != _PUT)


def _operation_codes(blocks: pa.BinaryArray) -> bytecolumns.Positions:
    said, reason = first_header_values(blocks, OPERATION), first_header_values(blocks, MARKER_REASON)
    unsaid = ~bytecolumns.flags_of(said.is_valid())
    deletes = ~(unsaid | _is_in(said, _SAYS_NO_DELETION)) | (unsaid & _is_in(reason, _REMOVED))
    purges = _is_in(said, _SAYS_PURGE) | (unsaid & _is_in(reason, _EXPIRED))
    return np.where(purges, _PURGE, np.where(deletes, _DEL, _PUT))


def is_deletion(header: bytes) -> bool:
    """Return whether the message of a header block deletes its key."""
    return bool(_operation_codes(bytecolumns.byte_strings([header]))[0] != _PUT)


def may_remove_earlier_entries(messages: Messages) -> bytecolumns.Mask:
    """Return a mask of the messages that may have replaced all entries of their keys: deletions and rollups."""
    rolls_up = first_header_values(messages.gather(messages.header), ROLLUP).is_valid()
    return operations_of(messages).deletions | bytecolumns.flags_of(rolls_up)


def find_key_violation(keys: pa.Array) -> Violation | None:
    """Return the rows of a string column that are no key, and the broken rule; None when all are keys; nulls pass."""
    wrong = have_wrong_tokens(keys, _NO_KEY_BYTE) | bytecolumns.flags_of(pc.starts_with(keys, RESERVED))
    return find_violation(keys, wrong, key_violation)


def check_and_convert_entries(
    prefix: str, columns: dict[str, pa.Array], rows: int, refuse: Refuse
) -> dict[str, pa.Array]:
    """Convert the columns of entries to the columns of messages.

    Args:
        prefix: the part of a subject before the key.
        columns: ``key``, and those of the other columns that the rows have; ``value`` may be absent too.
        rows: number of rows.
        refuse: called with the rows that cannot be sent.
    """
    keys = columns["key"].cast(pa.string())
    refuse("key", violation_or_none(bytecolumns.flags_of(keys.is_null()), "is null"))
    refuse("key", find_key_violation(keys), values=keys)
    operations = columns.get("operation", pa.nulls(rows, pa.string())).cast(pa.string()).fill_null(_NAMES[_PUT])
    known = bytecolumns.flags_of(pc.is_in(operations, _NAMES))
    refuse("operation", violation_or_none(~known, f"is none of {PUT}, {DELETE} and {PURGE}, nor null, which is {PUT}"))
    is_put = bytecolumns.flags_of(pc.equal(operations, _NAMES[_PUT]))
    values = columns.get("value", pa.nulls(rows, pa.binary())).cast(pa.binary())
    rule = f"is null; an empty value is written as '', a key is deleted by {DELETE}"
    refuse("value", violation_or_none(bytecolumns.flags_of(values.is_null()) & is_put, rule))
    rule = f"is not empty, but the operation is {DELETE} or {PURGE}, which has no value; let it be null"
    refuse("value", violation_or_none(~is_put & (bytecolumns.lengths_of(values) > 0), rule))
    if "ttl" in columns:
        revisions = columns.get("expected_revision", pa.nulls(rows, pa.int64())).cast(pa.int64())
        creates = is_put & (bytecolumns.integers_of(revisions.fill_null(_NO_REVISION)) == 0)
        may_expire = creates | bytecolumns.flags_of(pc.equal(operations, _NAMES[_PURGE]))
        refuse("ttl", violation_or_none(bytecolumns.flags_of(columns["ttl"].is_valid()) & ~may_expire, _NO_TTL))
    found = {name: column for name, column in columns.items() if name not in ("key", "value", "operation")}
    found["subject"] = pc.binary_join_element_wise(bytecolumns.texts([prefix])[0], keys, _NOTHING)
    found["payload"] = values.fill_null(_EMPTY)
    if not is_put.all():
        found["operation"] = pc.if_else(bytecolumns.booleans(is_put), _NULL, operations)
        found["rollup"] = pc.if_else(pc.equal(operations, _NAMES[_PURGE]), _OF_SUBJECT, _NULL)
    return found


def keys_of(messages: Messages, bucket: str) -> bytecolumns.Text:
    """Return the key of each message of a bucket.

    In a bucket that mirrors or sources another bucket, subjects have the name of the other bucket. A subject of no
    bucket at all, as a source may have, is returned whole.
    """
    start, end = messages.subject
    subjects = messages.gather(messages.subject)
    prefix = key_subject(bucket, "")
    own = bytecolumns.flags_of(pc.starts_with(subjects, prefix))
    keys = start + len(prefix) * own
    if not own.all():
        data, offsets = bytecolumns.bytes_and_offsets_of(subjects)
        dots = bytecolumns.find_separators(data == _DOT, offsets)
        others = ~own & bytecolumns.flags_of(pc.starts_with(subjects, KEY_VALUE_SUBJECTS))
        others &= dots.per_row > 1
        keys[others] += (dots.positions_of(1) + 1 - offsets[:-1])[others]
    return bytecolumns.decode_utf8_replacing(bytecolumns.gather(messages.buffer, keys, end))


def are_last(codes: bytecolumns.Positions) -> bytecolumns.Mask:
    """Return a mask of the last occurrence of each code of a dictionary."""
    rows = np.arange(len(codes))
    last = np.empty(codes.max(initial=-1) + 1, np.int64)
    last[codes] = rows  # the last of several assignments stays
    found: bytecolumns.Mask = last[codes] == rows
    return found


def _is_in(values: pa.Array, chosen: pa.Array) -> bytecolumns.Mask:
    return bytecolumns.flags_of(pc.is_in(values, chosen))
