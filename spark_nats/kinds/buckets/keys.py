"""Rows for a KV bucket converted to messages (ADR-8): a key is a subject, an operation is a header."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.kinds.buckets.key_columns import DELETE, PURGE, PUT, find_key_violation
from spark_nats.kinds.streams.write.columns import breaking
from spark_nats.kinds.streams.write.schema import Refuse
from spark_nats.protocol.bytecolumns import booleans, byte_strings, flags_of, integers, lengths_of, texts, values_of
from spark_nats.protocol.headers import OF_SUBJECT

_OPERATIONS = texts([PUT, DELETE, PURGE])
_PUT, _DELETE, _PURGE = _OPERATIONS
_NULL = pa.nulls(1, pa.string())[0]
_EMPTY = byte_strings([b""])[0]
_NO_REVISION = integers(np.array([-1]))[0]
_NO_TTL = (
    "is for keys that are created (expected_revision 0) and for PURGE: when a value that was put expires, the one "
    "before it would come back (ADR-48)"
)


def messages_of(prefix: str, columns: dict[str, pa.Array], rows: int, refuse: Refuse) -> dict[str, pa.Array]:
    """Convert the columns of entries to the columns of messages.

    Args:
        prefix: the part of a subject before the key.
        columns: ``key``, and those of the other columns that the rows have; ``value`` may be absent too.
        rows: number of rows.
        refuse: called with the rows that cannot be sent.
    """
    keys = columns["key"].cast(pa.string())
    refuse("key", breaking(flags_of(keys.is_null()), "is null"))
    refuse("key", find_key_violation(keys), values=keys)
    operations = columns.get("operation", pa.nulls(rows, pa.string())).cast(pa.string()).fill_null(_PUT)
    known = flags_of(pc.is_in(operations, _OPERATIONS))
    refuse("operation", breaking(~known, f"is none of {PUT}, {DELETE} and {PURGE}, nor null, which is {PUT}"))
    is_put = flags_of(pc.equal(operations, _PUT))
    values = columns.get("value", pa.nulls(rows, pa.binary())).cast(pa.binary())
    rule = f"is null; an empty value is written as '', a key is deleted by {DELETE}"
    refuse("value", breaking(flags_of(values.is_null()) & is_put, rule))
    rule = f"is not empty, but the operation is {DELETE} or {PURGE}, which has no value; let it be null"
    refuse("value", breaking(~is_put & (lengths_of(values) > 0), rule))
    if "ttl" in columns:
        revisions = columns.get("expected_revision", pa.nulls(rows, pa.int64())).cast(pa.int64())
        creates = is_put & (values_of(revisions.fill_null(_NO_REVISION)) == 0)
        may_expire = creates | flags_of(pc.equal(operations, _PURGE))
        refuse("ttl", breaking(flags_of(columns["ttl"].is_valid()) & ~may_expire, _NO_TTL))
    found = {name: column for name, column in columns.items() if name not in ("key", "value", "operation")}
    found["subject"] = pc.binary_join_element_wise(texts([prefix])[0], keys, texts([""])[0])
    found["payload"] = values.fill_null(_EMPTY)
    if not is_put.all():
        found["operation"] = pc.if_else(booleans(is_put), _NULL, operations)
        found["rollup"] = pc.if_else(pc.equal(operations, _PURGE), texts([OF_SUBJECT])[0], _NULL)
    return found
