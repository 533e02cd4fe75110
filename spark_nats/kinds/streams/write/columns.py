"""The encoding of rows as messages; a whole batch is checked before its first byte is sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.conditions import Once, Topic
from spark_nats.errors import InvalidRowError
from spark_nats.jetstream.publishing.publisher import MAX_PAYLOAD, describe_size_limit
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import conditions
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.kinds.streams.write.sink import MESSAGES, Columns
from spark_nats.protocol import bytecolumns
from spark_nats.protocol import headers as header_rules
from spark_nats.protocol.control import MAX_CONTROL_LINE
from spark_nats.protocol.documents import printable
from spark_nats.protocol.subject_columns import Violation, find_subject_violation, violation_or_none

logger = logging.getLogger(__name__)

# Headers that say how a row came to the stream that it was read from; no other stream may get them.
_OF_FORMER_STREAM = (header_rules.EXPECTED_STREAM, header_rules.STREAM_SOURCE, *header_rules.BATCH_HEADERS)
# Headers that rows have which are read again, because the sink or the stream adds them: no warning when left out.
_LEFT_OUT_UNSAID = (header_rules.MSG_ID, *_OF_FORMER_STREAM)


# Columns that become headers on which a stream, or a client of a KV bucket, acts.
_CONTROLS = {
    "ttl": (header_rules.TTL, header_rules.encode_ttls),
    "expected_last_subject_sequence": (header_rules.EXPECTED_REVISION, header_rules.encode_revisions),
    "expected_revision": (header_rules.EXPECTED_REVISION, header_rules.encode_revisions),
    "increment": (header_rules.INCREMENT, header_rules.encode_increments),
    "operation": (header_rules.OPERATION, lambda values: header_rules.Encoded(values, None)),
    "rollup": (header_rules.ROLLUP, lambda values: header_rules.Encoded(values, None)),
}
_NAMES_SHOWN = 8
_MAX_INBOX_SUFFIX = len(".0123456789abcdef.9999999999")  # maximum that a publish appends to the inbox prefix


class CheckedRows(NamedTuple):
    """A batch that is ready to be published.

    Attributes:
        subjects: string column.
        payloads: binary column.
        headers: binary column of header blocks, null where a row has none; None when no row has one.
        replies: string column, null where a row has none; None when no row has one.
        ids: string column of message ids, from the column ``msg_id``, from the rows' headers, or generated; null where
            a row has none.
        conditional: whether each row expects a certain last message of its subject; None when none does.
    """

    subjects: pa.Array
    payloads: pa.Array
    headers: pa.Array | None
    replies: pa.Array | None
    ids: pa.Array
    conditional: pa.Array | None = None

    @property
    def sizes(self) -> bytecolumns.Positions:
        """Bytes of each row's headers and payload."""
        size = bytecolumns.lengths_of(self.payloads)
        return size if self.headers is None else size + bytecolumns.lengths_of(self.headers)

    def where(self, chosen: bytecolumns.Mask) -> CheckedRows:
        """Return the chosen rows."""
        mask = bytecolumns.booleans(chosen)
        return CheckedRows(*(None if column is None else column.filter(mask) for column in self))

    def split_into_independent_parts(self) -> Iterator[CheckedRows]:
        """Split the rows into parts whose rows may be in flight together.

        Of two rows of one subject, the second waits for the first if either expects a certain last message. A cluster
        that is still storing the first row refuses the second (10164). If the server refuses the first row
        temporarily, it refuses the second for good.
        """
        if self.conditional is None:
            yield self
            return
        before = index_of_last_equal_before(self.subjects)
        conditional = bytecolumns.flags_of(self.conditional)
        start = 0
        for row in np.flatnonzero((conditional | conditional[before]) & (before >= 0)).tolist():
            if before[row] >= start:
                yield self._cut(start, row)
                start = row
        yield self._cut(start, len(self.subjects))

    def _cut(self, start: int, end: int) -> CheckedRows:
        return CheckedRows(*(None if column is None else column[start:end] for column in self))


def index_of_last_equal_before(column: pa.Array) -> bytecolumns.Positions:
    """Return for each value the index of the last equal value before it, -1 where there is none."""
    code = bytecolumns.integers_of(column.dictionary_encode().indices)
    order = np.argsort(code, kind="stable")
    same = code[order[1:]] == code[order[:-1]]
    before: bytecolumns.Positions = np.full(len(code), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


class RowChecker:
    """Checks batches and encodes them as messages.

    Args:
        options: where and how to write.
        max_payload: most bytes that the server accepts for headers and payload together.
        ids: generates message ids for rows; None when none are to be generated.
        names_stream: whether each row names its target stream in a header, so that no other stream stores it.
        columns: the columns that rows may have.
        unknown: headers that the server would store without acting on them, so that no row may have them.
        max_message_size: most bytes that the stream accepts in the same way; None where it sets no limit.

    Attributes:
        max_size: the smaller one of both limits.
        whose_limit: what sets that limit, in words.
        picked: which rows of a batch the next rows are; None for all of them.
    """

    def __init__(
        self,
        options: WriteOptions,
        max_payload: int,
        ids: MessageIds | None,
        names_stream: bool,
        columns: Columns = MESSAGES,
        unknown: Sequence[str] = (),
        max_message_size: int | None = None,
    ) -> None:
        self._options = options
        self._unknown = unknown
        self._ids = ids
        self._names_stream = names_stream
        self._columns = columns
        self._max_message_size = max_message_size
        self.set_size_limit(max_payload)
        self._owned = tuple(_CONTROLS[name][0] for name in columns.controls)
        self._said = Once()
        self.picked: bytecolumns.Positions | None = None
        # Bytes after the subject on the protocol line: the reply of a publish to a stream, and two sizes.
        self._line_rest = 2 * len(f" {self.max_size}")
        if options.stream is not None:
            self._line_rest += len(f" {options.connection.inbox_prefix}".encode()) + _MAX_INBOX_SUFFIX

    def set_size_limit(self, max_payload: int) -> None:
        """Judge the next rows by the limit of the server that they are sent to now."""
        self.max_size, self.whose_limit = min(max_payload, 2**63 - 1), MAX_PAYLOAD
        if self._max_message_size is not None and self._max_message_size < self.max_size:
            whose = "the stream's max_msg_size" if self._columns.target is None else "the bucket's max_value_size"
            self.max_size, self.whose_limit = self._max_message_size, whose

    def check_and_encode(
        self, batch: pa.RecordBatch, first_row: int, added: int = 0, topics: Sequence[Topic] = (Topic.ROW,)
    ) -> CheckedRows:
        """Return the batch's columns as they are published.

        Args:
            batch: the rows.
            first_row: number of the batch's first row in the task, for errors.
            added: how many bytes are added to the headers of each row later.
            topics: what the error is about if a row cannot be sent.

        Raises:
            InvalidRowError: a row cannot be sent. Nothing of the batch has been sent then.
        """
        self.check_target_column(batch, first_row)
        try:
            rows = self.encode(batch)
            size = rows.sizes + added
            if (large := size > self.max_size).any():
                self._raise_if_violated(
                    "payload", Violation(large, lambda row: self.describe_too_large(rows, row, added)), size
                )
        except BrokenRuleError as broken:
            row = broken.violation.row
            raise self._invalid_row_error(first_row, row, broken.column, broken.rule(row), topics) from None
        return rows

    def describe_too_large(self, rows: CheckedRows, row: int, added: int = 0) -> str:
        """Return the rule that a row breaks which is too large; ``added`` is that of :meth:`check_and_encode`."""
        rule = describe_size_limit(self.whose_limit, self.max_size)
        added += self.header_bytes_added(rows, row)
        return f"{rule}; {added} bytes of it are headers that are added" if added else rule

    def header_bytes_added(self, rows: CheckedRows, row: int) -> int:
        """Return how many bytes the headers take that a row does not have of its own."""
        block = None if rows.headers is None else rows.headers[row].as_py()
        if block is None:
            return 0
        message_id = rows.ids[row].as_py() if self._ids is not None else None
        added = {header_rules.EXPECTED_STREAM: self._options.stream or ""} if self._names_stream else {}
        if message_id is not None and self._ids is not None and message_id.startswith(self._ids.prefix):
            added |= {header_rules.MSG_ID: message_id}
        if added.keys() == header_rules.parse_block(block).keys():
            return len(block)
        return len(header_rules.encode_block(added)) - len(header_rules.EMPTY_BLOCK)

    def written_columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns that are written."""
        return {name: batch.column(name) for name in batch.schema.names if name in self._columns.types}

    def encode(self, batch: pa.RecordBatch) -> CheckedRows:
        """Return the columns as they are published, without checking the target and the sizes.

        Raises:
            BrokenRuleError: a row cannot be sent. Then no row has got a message id.
        """
        columns = self.written_columns(batch)
        if self._columns.convert is not None:
            columns = self._columns.convert(columns, batch.num_rows, self._raise_if_violated)
        payloads = self._checked_payloads(columns, batch.num_rows)
        subjects = self._checked_subjects(columns, batch.num_rows)
        replies = self._checked_replies(columns.get("reply"))
        self._check_line_lengths(subjects, replies)
        headers, message_ids, conditional = self._encode_headers_and_ids(columns, subjects, payloads)
        return CheckedRows(subjects, payloads, headers, replies, message_ids, conditional)

    def check_target_column(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Check that rows do not name another target than the one that is written to.

        Raises:
            InvalidRowError: a row does.
        """
        column = self._columns.target_column(batch.schema.names)
        if column is None:
            return
        values = batch.column(column).cast(pa.string())
        place = self._columns.target or self._options.stream or ""
        elsewhere = bytecolumns.flags_of(pc.not_equal(values, place).fill_null(False))
        if elsewhere.any():
            shown = printable(values[int(elsewhere.argmax())].as_py())
            rule = f"is {shown!r}, but its row goes to {place!r}: this column does not route rows; drop or rename it"
            raise self._invalid_row_error(first_row, int(elsewhere.argmax()), column, rule)

    def _invalid_row_error(
        self, first_row: int, row: int, column: str, rule: str, topics: Sequence[Topic] = ()
    ) -> InvalidRowError:
        return invalid_row_error(first_row, row if self.picked is None else int(self.picked[row]), column, rule, topics)

    def _checked_payloads(self, columns: dict[str, pa.Array], rows: int) -> pa.Array:
        is_counter = "increment" in columns
        if is_counter and "payload" not in columns:
            return bytecolumns.repeat_text("", rows).cast(pa.binary())
        payloads = columns["payload"].cast(pa.binary())
        is_null = bytecolumns.flags_of(payloads.is_null())
        self._raise_if_violated("payload", violation_or_none(is_null, "is null; an empty payload is written as ''"))
        if is_counter:
            length = bytecolumns.lengths_of(payloads)
            rule = "is not empty, but the server writes the total there; drop the column"
            self._raise_if_violated("payload", violation_or_none(length > 0, rule), length)
        return payloads

    def _checked_subjects(self, columns: dict[str, pa.Array], rows: int) -> pa.Array:
        if self._options.subject is not None:  # the option overrides the column, as in Spark's Kafka sink
            return bytecolumns.repeat_text(self._options.subject, rows)
        subjects = columns["subject"].cast(pa.string())
        self._raise_if_violated("subject", violation_or_none(bytecolumns.flags_of(subjects.is_null()), "is null"))
        self._raise_if_violated("subject", find_subject_violation(subjects), bytecolumns.lengths_of(subjects), subjects)
        return subjects

    def _checked_replies(self, replies: pa.Array | None) -> pa.Array | None:
        if replies is None or replies.null_count == len(replies):
            return None
        if self._options.stream is not None:
            rule = (
                "is not null, but a publish to a stream uses the reply for its acknowledgement; drop the column, or "
                "write to core NATS by leaving out the option 'stream'"
            )
            self._raise_if_violated("reply", violation_or_none(bytecolumns.flags_of(replies.is_valid()), rule))
        replies = replies.cast(pa.string())
        self._raise_if_violated("reply", find_subject_violation(replies), bytecolumns.lengths_of(replies), replies)
        return replies

    def _check_line_lengths(self, subjects: pa.Array, replies: pa.Array | None) -> None:
        """Refuse a row whose protocol line is too long: the server would close the connection over it."""
        length = bytecolumns.lengths_of(subjects) + self._line_rest
        if replies is not None:
            length = length + bytecolumns.lengths_of(replies) + 1
        rule = (
            f"is too long: with the reply subject and the sizes its line may have {MAX_CONTROL_LINE} bytes, the "
            "server's max_control_line"
        )
        self._raise_if_violated("subject", violation_or_none(length > MAX_CONTROL_LINE, rule), length, subjects)

    def _encode_headers_and_ids(
        self, columns: dict[str, pa.Array], subjects: pa.Array, payloads: pa.Array
    ) -> tuple[pa.Array | None, pa.Array, pa.Array | None]:
        """Return the rows' header blocks, the message ids added there, and which rows expect a certain last message."""
        rows = len(subjects)
        lines = self._check_and_choose_header_lines(columns, rows)
        ids = pc.utf8_ltrim(columns.get("msg_id", pa.nulls(rows, pa.string())).cast(pa.string()), " \t")
        self._raise_if_violated("msg_id", header_rules.find_id_violation(ids), bytecolumns.lengths_of(ids), ids)
        extra: list[tuple[str, pa.Array | str]] = []
        if self._options.stream is not None:
            lines = lines.where(~_is_among(lines.name, _OF_FORMER_STREAM))
            if self._names_stream:
                extra.append((header_rules.EXPECTED_STREAM, self._options.stream))
        ids, lines = _take_ids_from_headers(ids, lines)
        has_id = bytecolumns.flags_of(ids.is_valid())
        controls, lines, conditional = self._encode_controls(columns, rows, lines)
        # Generated ids depend on the controls too.
        text = header_rules.add_lines(header_rules.join_lines(lines), controls)
        # The server must recognize a retried row that expects a last message, or the row conflicts with itself.
        if (generator := self._ids) is None or (not self._options.gives_ids and conditional is None):
            pass
        elif not has_id.any():
            ids = generator.generate_distinct_ids(subjects, text, payloads)
        else:
            lacks_id = bytecolumns.booleans(~has_id)
            generated = generator.generate_distinct_ids(
                *(column.filter(lacks_id) for column in (subjects, text, payloads))
            )
            ids = pc.replace_with_mask(ids, lacks_id, generated)
        if ids.null_count < rows:
            extra.append((header_rules.MSG_ID, ids))
        if not (extra or controls or len(lines.row)):
            return None, ids, None
        return header_rules.wrap_lines_into_blocks(text, extra), ids, conditional

    def _check_and_choose_header_lines(self, columns: dict[str, pa.Array], rows: int) -> header_rules.HeaderLines:
        """Return the lines of the rows' headers, without those that other columns and options decide."""
        lines = header_rules.flatten_headers(columns.get("headers", header_rules.empty_headers_column(0)))._replace(
            rows=rows
        )
        self._raise_if_violated("headers", header_rules.find_header_violation(lines))
        if self._owned:
            lines = lines.where(~_is_among(lines.name, self._owned))
        if not self._options.control_headers:
            lines = self._without_control_headers(lines)
        elif self._options.stream is not None:
            rule = f"has headers with which a server only traces it, and stores nothing ({header_rules.TRACE_ONLY})"
            self._raise_if_violated("headers", violation_or_none(header_rules.are_only_traced(lines), rule))
        if self._options.control_headers and self._unknown:
            has_unknown = np.zeros(rows, np.bool_)
            has_unknown[lines.row[_is_among(lines.name, self._unknown)]] = True
            rule = f"has a header on which a server that old does not act ({', '.join(self._unknown)})"
            self._raise_if_violated("headers", violation_or_none(has_unknown, rule))
        return lines

    def _encode_controls(
        self, columns: dict[str, pa.Array], rows: int, lines: header_rules.HeaderLines
    ) -> tuple[list[tuple[str, pa.Array | str]], header_rules.HeaderLines, pa.Array | None]:
        """Return control headers, the other lines, and which rows expect a certain last message; None if none does."""
        controls: list[tuple[str, pa.Array | str]] = []
        conditional = None
        for column, (name, encode) in _CONTROLS.items():
            if column not in columns and not self._options.control_headers:
                continue
            values, violation = encode(columns.get(column, pa.nulls(rows, pa.string())))
            self._raise_if_violated(column, violation)
            lines, has_it = _drop_overridden_header(values, name, lines)
            if name == header_rules.INCREMENT and column in columns:
                self._raise_if_violated(
                    column, violation_or_none(~has_it, "is null, and a counter takes only increments")
                )
            if name == header_rules.EXPECTED_REVISION and has_it.any():
                either = has_it if conditional is None else has_it | bytecolumns.flags_of(conditional)
                conditional = bytecolumns.booleans(either)
            if values.null_count < rows:
                controls.append((name, values))
        return controls, lines, conditional

    def _without_control_headers(self, lines: header_rules.HeaderLines) -> header_rules.HeaderLines:
        """Leave out control headers: copied from rows that were read, they would purge, expire or refuse rows."""
        is_control = bytecolumns.flags_of(pc.starts_with(lines.name, header_rules.CONTROL_PREFIX))
        if not is_control.any():
            return lines
        if not self._said:
            left_out = pc.unique(lines.name.filter(bytecolumns.booleans(is_control))).to_pylist()
            names = sorted(set(left_out) - set(_LEFT_OUT_UNSAID))
            if names and self._said.add_if_new():
                more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
                shown = ", ".join(names[:_NAMES_SHOWN]) + more
                logger.warning(conditions.CONTROL_HEADERS_LEFT_OUT(headers=shown).with_code)
        return lines.where(~is_control)

    def _raise_if_violated(
        self,
        column: str,
        violation: Violation | None,
        length: bytecolumns.Positions | None = None,
        values: pa.Array | None = None,
    ) -> None:
        if violation is not None:
            raise BrokenRuleError(self._columns.names.get(column, column), violation, length, values)


class BrokenRuleError(Exception):
    """Rows of a batch break a rule of a column; ``violation`` holds the rows and the rule."""

    def __init__(
        self, column: str, violation: Violation, length: bytecolumns.Positions | None, values: pa.Array | None
    ) -> None:
        super().__init__(column)
        self.column = column
        self.violation = violation
        self._length = length
        self._values = values  # the values that the error may show

    def rule(self, row: int) -> str:
        """Return the rule that a row breaks, with the value that breaks it, and its length, where they are known."""
        rule = self.violation.say(row)
        if self._values is not None and (value := self._values[row].as_py()):
            rule += f": {value[: header_rules.MAX_QUOTED]!r}{'…' * (len(value) > header_rules.MAX_QUOTED)}"
        return rule if self._length is None else f"{rule} (its length is {self._length[row]} bytes)"

    def sentence(self, row: int) -> str:
        """Return the rule with the column's name in front."""
        return f"column '{self.column}' {self.rule(row)}"


def invalid_row_error(sent: int, row: int, column: str, rule: str, topics: Sequence[Topic] = ()) -> InvalidRowError:
    """Return the error for a row of a batch that cannot be sent; ``sent`` rows of the task precede the batch."""
    before = f"the {sent} rows before its batch were sent" if sent else "nothing was sent"
    said = conditions.ROW_CANNOT_BE_SENT(row=sent + row, column=column, rule=rule, sent=before)
    return InvalidRowError(said).with_topics(*topics)


def has_counters(stream: StreamInfo) -> bool:
    """Tell whether each subject of a stream is a counter (ADR-49)."""
    return bool(stream.config.get("allow_msg_counter"))


def _drop_overridden_header(
    values: pa.Array, name: str, lines: header_rules.HeaderLines
) -> tuple[header_rules.HeaderLines, bytecolumns.Mask]:
    """Remove a header from the lines of rows that have its value in a column.

    Returns:
        The remaining lines, and a mask of the rows that have the header in either place.
    """
    has_it = bytecolumns.flags_of(values.is_valid()).copy()
    is_it = _is_among(lines.name, (name,))
    if is_it.any():
        kept = ~(has_it[lines.row] & is_it)
        has_it[lines.row[is_it]] = True
        lines = lines.where(kept)
    return lines, has_it


def _take_ids_from_headers(ids: pa.Array, lines: header_rules.HeaderLines) -> tuple[pa.Array, header_rules.HeaderLines]:
    """Return the rows' message ids, from their headers where ``ids`` has none, and the lines without these headers.

    The first such header whose value is not empty counts, without the white space before the value.
    """
    is_id = _is_among(lines.name, (header_rules.MSG_ID,))
    if not is_id.any():
        return ids, lines
    values = pc.utf8_ltrim(lines.value.filter(bytecolumns.booleans(is_id)), " \t")
    has_value = bytecolumns.lengths_of(values) > 0
    rows, first = np.unique(lines.row[is_id][has_value], return_index=True)
    named = np.zeros(lines.rows, np.bool_)
    named[rows] = True
    found = pc.replace_with_mask(
        pa.nulls(lines.rows, pa.string()),
        bytecolumns.booleans(named),
        values.filter(bytecolumns.booleans(has_value)).take(bytecolumns.integers(first)),
    )
    return pc.coalesce(ids, found), lines.where(~is_id)


def _is_among(names: pa.Array, wanted: Sequence[str]) -> bytecolumns.Mask:
    return bytecolumns.flags_of(pc.is_in(names, bytecolumns.texts(wanted)))
