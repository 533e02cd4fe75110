"""The columns of a row to be written, and the checks of a whole batch before its first byte is sent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_nats.errors import InvalidRowError, SchemaError
from spark_nats.options import WriteOptions
from spark_nats.protocol.bytecolumns import Mask
from spark_nats.protocol.headers import (
    HEADERS_TYPE,
    HeaderLines,
    encode_blocks,
    find_header_violation,
    find_value_violation,
    flatten,
)
from spark_nats.protocol.subjects import Violation, find_subject_violation

_TYPES = {
    "payload": ("binary", "string"),
    "subject": ("string",),
    "reply": ("string",),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": ("string",),
}
# What the source adds of its own. Ignored, so that what was read can be written.
_IGNORED = ("stream", "sequence", "timestamp")

MSG_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Check the schema of a DataFrame that is to be written.

    Raises:
        SchemaError: a column is missing, unknown or of the wrong type.
    """
    names = schema.fieldNames()
    for column in schema.fields:
        if column.name in _IGNORED:
            continue
        if column.name not in _TYPES:
            raise SchemaError(
                f"column '{column.name}' cannot be written to NATS, which would lose it; drop it, or put it into "
                f"'payload' or 'headers' (columns that can be written: {', '.join(_TYPES)})"
            )
        actual = column.dataType.simpleString()
        if actual not in _TYPES[column.name]:
            allowed = " or ".join(name.upper() for name in _TYPES[column.name])
            raise SchemaError(f"column '{column.name}' must be {allowed}, not {actual.upper()}")
    if "payload" not in names:
        raise SchemaError(f"the column 'payload' (BINARY or STRING) is missing; there are {', '.join(names) or 'none'}")
    if "subject" not in names and options.subject is None:
        raise SchemaError(
            "it is not known where to publish: add the column 'subject' (STRING) or set the option 'subject'"
        )


class Rows(NamedTuple):
    """A batch that is ready to be encoded.

    Attributes:
        subjects: string column.
        payloads: binary column.
        replies: string column, or None when no row has a reply.
        headers: binary column of header blocks, null where a row has none; None when no row has one.
    """

    subjects: pa.Array
    payloads: pa.Array
    replies: pa.Array | None
    headers: pa.Array | None


class RowChecker:
    """Checks batches and turns them into what the encoder takes.

    Args:
        options: where and how to write.
        max_payload: most bytes that the server accepts for headers and payload together.
        id_prefix: what generated message ids begin with; None when none are to be generated.
    """

    def __init__(self, options: WriteOptions, max_payload: int, id_prefix: str | None) -> None:
        self._options = options
        self._max_payload = min(max_payload, 2**63 - 1)  # whatever a server says, Arrow can compare with it
        self._id_prefix = id_prefix

    def check(self, batch: pa.RecordBatch, first_row: int) -> Rows:
        """Return the batch's columns as the encoder takes them.

        Args:
            batch: the rows.
            first_row: number of its first row in the task, for errors and message ids.

        Raises:
            InvalidRowError: a row cannot be sent. Nothing of the batch has been sent then.
        """
        columns = {name: batch.column(name) for name in batch.schema.names if name in _TYPES}
        payloads = columns["payload"].cast(pa.binary())
        self._refuse(first_row, "payload", _first(payloads.is_null(), "is null; an empty payload is written as ''"))
        subjects = self._subjects(columns, batch.num_rows, first_row)
        replies = self._replies(columns.get("reply"), first_row)
        headers = self._headers(columns, batch.num_rows, first_row)
        size = pc.binary_length(payloads)
        if headers is not None:
            size = pc.add(size, pc.fill_null(pc.binary_length(headers), 0))
        too_large = pc.greater(size, self._max_payload)
        self._refuse(
            first_row,
            "payload",
            _first(too_large, f"is larger with its headers than the server's max_payload of {self._max_payload} bytes"),
            size,
        )
        return Rows(subjects, payloads, replies, headers)

    def _subjects(self, columns: dict[str, pa.Array], rows: int, first_row: int) -> pa.Array:
        if self._options.subject is not None:  # as in Spark's Kafka sink, the option stands above the column
            return pa.repeat(pa.scalar(self._options.subject, pa.string()), rows)
        subjects = columns["subject"].cast(pa.string())
        self._refuse(first_row, "subject", _first(subjects.is_null(), "is null"))
        self._refuse(first_row, "subject", find_subject_violation(subjects), pc.binary_length(subjects))
        return subjects

    def _replies(self, replies: pa.Array | None, first_row: int) -> pa.Array | None:
        if replies is None or replies.null_count == len(replies):
            return None
        if self._options.stream is not None:
            rule = (
                "is not null, but a publish to a stream uses the reply for its acknowledgement; drop the column, or "
                "write to core NATS by leaving out the option 'stream'"
            )
            self._refuse(first_row, "reply", _first(replies.is_valid(), rule))
        replies = replies.cast(pa.string())
        self._refuse(first_row, "reply", find_subject_violation(replies), pc.binary_length(replies))
        return replies

    def _headers(self, columns: dict[str, pa.Array], rows: int, first_row: int) -> pa.Array | None:
        lines = flatten(columns.get("headers", pa.array([], HEADERS_TYPE)))._replace(rows=rows)
        self._refuse(first_row, "headers", find_header_violation(lines))
        given_ids = columns.get("msg_id", pa.nulls(rows, pa.string())).cast(pa.string())
        self._refuse(first_row, "msg_id", find_value_violation(given_ids), pc.binary_length(given_ids))
        extra: list[tuple[str, pa.Array | str]] = []
        if self._options.stream is not None:
            # A row that was read from another stream may carry that stream's name.
            lines = lines.where(~_equals(lines.name, EXPECTED_STREAM))
            extra.append((EXPECTED_STREAM, self._options.stream))
        lines, ids = self._message_ids(lines, given_ids, first_row)
        if ids is not None:
            extra.append((MSG_ID, ids))
        if not extra and len(lines.row) == 0:
            return None
        return encode_blocks(lines, extra)

    def _message_ids(self, lines: HeaderLines, ids: pa.Array, first_row: int) -> tuple[HeaderLines, pa.Array | None]:
        """Give rows their message id: the column's, else the one among the headers, else a generated one."""
        is_id = _equals(lines.name, MSG_ID)
        if is_id.any():
            replaced = np.asarray(ids.is_valid())[lines.row] & is_id
            lines, is_id = lines.where(~replaced), is_id[~replaced]
        if self._id_prefix is not None:
            numbers = pa.array(np.arange(first_row, first_row + lines.rows)).cast(pa.string())
            generated = pc.binary_join_element_wise(self._id_prefix, numbers, "")
            if is_id.any():
                has_own = np.zeros(lines.rows, np.bool_)
                has_own[lines.row[is_id]] = True
                generated = pc.if_else(pa.array(has_own), pa.scalar(None, pa.string()), generated)
            ids = pc.coalesce(ids, generated)
        return lines, None if ids.null_count == len(ids) else ids

    def _refuse(self, first_row: int, column: str, violation: Violation | None, length: pa.Array | None = None) -> None:
        if violation is None:
            return
        text = f"row {first_row + violation.row} of the task cannot be sent: column '{column}' {violation.rule}"
        if length is not None:
            text += f" (its length is {length[violation.row]} bytes)"
        sent = f"the {first_row} rows before its batch were sent" if first_row else "nothing was sent"
        raise InvalidRowError(f"{text}; {sent}")


def _first(wrong: pa.Array, rule: str) -> Violation | None:
    row = pc.index(wrong, True).as_py()
    return Violation(row, rule) if row >= 0 else None


def _equals(names: pa.Array, name: str) -> Mask:
    if len(names) == 0:
        return np.zeros(0, np.bool_)
    return np.asarray(pc.equal(names, name))
