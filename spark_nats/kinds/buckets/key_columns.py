"""The rules of :mod:`spark_nats.protocol.keyvalue` for columns: what a key is, and what messages say of keys."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.protocol.bytecolumns import (
    Mask,
    Positions,
    Text,
    flags_of,
    gather,
    integers,
    packed,
    split,
    strings,
    texts,
    to_text,
    values_of,
)
from spark_nats.protocol.headers import MARKER_REASON, OPERATION, ROLLUP, header_values
from spark_nats.protocol.keyvalue import KEY_VALUE_SUBJECTS, RESERVED, key_subject, key_violation
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.subject_columns import Violation, find_violation, have_wrong_tokens

PUT, DELETE, PURGE = "PUT", "DEL", "PURGE"  # the first is what a message without that header, OPERATION, does

_PUT, _DEL, _PURGE = range(3)
_NAMES = texts([PUT, DELETE, PURGE])
_SAYS_PURGE, _SAYS_NO_DELETION = strings([b"PURGE"]), strings([b"PUT", b""])
_EXPIRED, _REMOVED = strings([b"MaxAge", b"Purge"]), strings([b"Remove"])
_NO_KEY_BYTE = np.ones(256, np.bool_)
_NO_KEY_BYTE[list(b"-/_=.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")] = False
_DOT = ord(".")


class Operations(NamedTuple):
    """What messages have done to their keys."""

    names: pa.StringArray  # ``PUT``, ``DEL`` or ``PURGE``
    deletions: Mask  # which of them are not ``PUT``


def operations_of(messages: Messages) -> Operations:
    """Return what each message of a bucket has done.

    A client says so in ``KV-Operation``, where whatever else it says is a deletion (ADR-8); the server's own markers
    have a reason instead.
    """
    codes = np.zeros(len(messages), np.int32)
    if (has_header := messages.header.end > messages.header.start).any():
        chosen = messages.take(has_header)
        codes[has_header] = _codes(chosen.gather(chosen.header))
    return Operations(_NAMES.take(integers(codes)), codes != _PUT)


def _codes(blocks: pa.BinaryArray) -> Positions:
    said, reason = header_values(blocks, OPERATION), header_values(blocks, MARKER_REASON)
    unsaid = ~flags_of(said.is_valid())
    deletes = ~(unsaid | _is_in(said, _SAYS_NO_DELETION)) | (unsaid & _is_in(reason, _REMOVED))
    purges = _is_in(said, _SAYS_PURGE) | (unsaid & _is_in(reason, _EXPIRED))
    return np.where(purges, _PURGE, np.where(deletes, _DEL, _PUT))


def is_marker(header: bytes) -> bool:
    """Tell of one message's header block whether the message says that its key is gone."""
    return bool(_codes(strings([header]))[0] != _PUT)


def replace_all(messages: Messages) -> Mask:
    """Tell which messages may have taken the place of all that their keys held: deletions, and what rolls up."""
    rolls_up = header_values(messages.gather(messages.header), ROLLUP).is_valid()
    return operations_of(messages).deletions | flags_of(rolls_up)


def find_key_violation(keys: pa.Array) -> Violation | None:
    """Find the rows of a string column without nulls that are no key, and say why."""
    wrong = have_wrong_tokens(keys, _NO_KEY_BYTE) | flags_of(pc.starts_with(keys, RESERVED))
    return find_violation(keys, wrong, key_violation)


def keys_of(messages: Messages, bucket: str) -> Text:
    """Return the key that each message of a bucket is about.

    A bucket that mirrors or sources another one has messages whose subjects name that one. A subject that is none of a
    bucket at all, as a source may have, is returned whole.
    """
    start, end = messages.subject
    subjects = messages.gather(messages.subject)
    prefix = key_subject(bucket, "")
    own = flags_of(pc.starts_with(subjects, prefix))
    keys = start + len(prefix) * own
    if not own.all():
        data, offsets = packed(subjects)
        dots = split(data == _DOT, offsets)
        others = ~own & flags_of(pc.starts_with(subjects, KEY_VALUE_SUBJECTS))
        others &= dots.per_row > 1
        keys[others] += (dots.at(1) + 1 - offsets[:-1])[others]
    return to_text(gather(messages.buffer, keys, end))


def are_last(subjects: pa.BinaryArray) -> Mask:
    """Tell of each subject whether it does not come again behind it."""
    code = values_of(subjects.dictionary_encode().indices)
    rows = np.arange(len(code))
    last = np.empty(len(code), np.int64)
    last[code] = rows
    found: Mask = last[code] == rows
    return found


def _is_in(values: pa.Array, chosen: pa.Array) -> Mask:
    return flags_of(pc.is_in(values, chosen))
