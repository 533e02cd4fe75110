"""Rows that cannot be sent: counted, and dropped or stored in a dead-letter stream with the reason in headers.

A row is bad on its own account: it breaks a rule that is checked before anything is sent, or the server refuses it and
accepts the next row. A failure that keeps every row from being stored, such as a full stream, stays an error.

A row that could have been sent has the same id in either stream. So if ``deduplicate`` is exact and both streams have
limits retention, a replay finds each row where an earlier attempt stored it, and no row is in both streams.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats.conditions import Topic
from spark_nats.errors import InvalidRowError, NatsError, PublishError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.jetstream.judgement import SKEW
from spark_nats.jetstream.listing import suggesting_names
from spark_nats.jetstream.messages import ask_first_since
from spark_nats.jetstream.publishing.flight import OF_ROWS, Rows
from spark_nats.jetstream.publishing.publisher import Publisher
from spark_nats.jetstream.reading.stored import describe_why_not_readable, read_ids
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import Trust, ask_again_if_doubted, ask_stream_info
from spark_nats.kinds.streams.dead_letters import conditions
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write import notes
from spark_nats.kinds.streams.write.columns import BrokenRuleError, CheckedRows, RowChecker, has_counters
from spark_nats.kinds.streams.write.conditions import NO_ACKNOWLEDGEMENTS
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.kinds.streams.write.notes import AlreadyStored
from spark_nats.kinds.streams.write.partitions import RowWriter, Rule, can_rows_name_stream
from spark_nats.kinds.streams.write.replay import Deduplication
from spark_nats.kinds.streams.write.sink import Sink
from spark_nats.kinds.streams.write.tasks import Counts, StartMark, WriteTask
from spark_nats.kinds.task import leased_jetstream, try_move_to_leader
from spark_nats.protocol.bytecolumns import Positions, booleans, byte_strings, texts
from spark_nats.protocol.documents import printable
from spark_nats.protocol.headers import EXPECTED_STREAM, MAX_BLOCK_SIZE, MSG_ID, encode_block, parse_block
from spark_nats.protocol.publish_acks import Verdict
from spark_nats.protocol.stream_configs import MAX_MESSAGE_SIZE

logger = logging.getLogger(__name__)

REASON, TARGET, COLUMNS, CUT = "Bad-Row-Reason", "Bad-Row-Target", "Bad-Row-Columns", "Bad-Row-Cut"
QUERY, MICRO_BATCH, PARTITION = "Bad-Row-Query", "Bad-Row-Micro-Batch", "Bad-Row-Partition"

MIN_STREAM_MESSAGE_SIZE = 16384
"""Bytes that a message of a dead-letter stream must be allowed to have, because its headers may need as many."""
_MAX_ROWS = 1024  # rows that wait to be stored together
_MAX_BYTES = 8 << 20  # bytes of their payloads
_MAX_CUT = 80  # bytes of the header that lists what is cut
_MAX_ID = 4096  # characters of a message id; other headers need room beside it


class DeadLetter(NamedTuple):
    """A row that cannot be sent.

    Attributes:
        columns: its values by column name, without the payload.
        payload: its payload, or the value of a key; empty where it is null.
        reason: why the row cannot be sent.
        id: its message id; None if it has none.
    """

    columns: Mapping[str, Any]
    payload: bytes
    reason: str
    id: str | None = None


class DeadLetters(RowWriter):
    """Stores the rows of one task, each by itself, and takes those that are bad.

    Attributes:
        count: number of bad rows, including those that an earlier attempt has stored.
        verdicts: the verdicts on a refused row that make it a bad row.
    """

    def __init__(self, options: WriteOptions, sink: Sink) -> None:
        super().__init__(options, sink)
        self._target = sink.columns.target or options.stream or "core NATS"
        self._already_aside: AlreadyStored | None = None
        # Where an earlier attempt began whose bad rows only the stream's memory of ids tells: it cannot be read back.
        self._unread: StartMark | None = None
        self._waiting: list[DeadLetter] = []
        self._bytes = 0
        self._first = ""  # the reason of the first bad row
        self.count = 0
        self.aside = self
        self.verdicts = set(OF_ROWS)
        if options.subject is not None:  # then a subject that no stream listens on is a mistake in the options
            self.verdicts -= {Verdict.NO_SUCH_SUBJECT}

    @property
    def unexpected_earlier_rows(self) -> int:
        """Number of rows that an earlier attempt has set aside and that are not among those of the task so far."""
        return self._already_aside.unexpected_earlier_rows if self._already_aside is not None else 0

    def check_dead_letter_stream(self, js: JetStream) -> None:
        """Check on the driver that the dead-letter stream, if there is one, accepts bad rows.

        If ``deduplicate`` is exact, check also that tasks can read them back.

        Raises:
            NatsError: one of these checks fails.
        """
        options, name = self._options, self._options.bad_rows_stream
        if name is None:
            return
        try:
            with suggesting_names(js, [name], to_read=False):
                stream = ask_stream_info(js, name)
        except StreamNotFoundError as error:
            raise error.with_message(conditions.BAD_ROWS_STREAM_MISSING(reason=error)) from None
        if stream.config.get("no_ack"):
            raise PublishError(NO_ACKNOWLEDGEMENTS(stream=name))
        if has_counters(stream):
            raise PublishError(conditions.BAD_ROWS_ARE_NO_INCREMENTS(stream=name))
        require_dead_letter_subject(stream, options)
        if (most := _max_message_size_of(stream)) < MIN_STREAM_MESSAGE_SIZE:
            raise PublishError(conditions.BAD_ROWS_NEED_ROOM(stream=name, size=most, least=MIN_STREAM_MESSAGE_SIZE))
        if options.is_exact:
            notes.check_can_read_back(js, stream, singly=True)

    def begin(self, lease: JetStreamLease, task: WriteTask, deduplication: Deduplication) -> None:
        """Begin a task."""
        super().begin(lease, task, deduplication)
        self._ids = MessageIds(task.query, task.batch, task.partition)

    def read_earlier_dead_letters_for(self, writers: Sequence[RowWriter]) -> None:
        """Find, for all writers of a task, the bad rows that an earlier attempt at it has stored.

        Raises:
            NatsError: these could not be read.
        """
        mark, fence = self._deduplication.mark, self._deduplication.fence
        if mark is None or self._options.bad_rows_stream is None:
            return
        already_aside = self._lease.ask_with_retries(self._read_stored_or_note_unread, mark)
        for writer in writers:
            assert isinstance(writer, DeadLetters)  # noqa: S101 - the options are the same
            writer._already_aside, writer._unread = already_aside, self._unread
        if fence is not None and already_aside is not None:
            fence.earlier.append(already_aside)

    def _read_stored_or_note_unread(self, js: JetStream, mark: StartMark) -> AlreadyStored | None:
        """Return the bad rows that the task has stored since it began and that the dead-letter stream still has.

        A row that was deleted from the stream is stored again: the operator who deleted the row has seen it. Return
        None unless the stream has limits retention. Then its ids have to tell which rows it has stored.
        """
        stream = ask_again_if_doubted(js, ask_stream_info(js, str(self._options.bad_rows_stream)), Trust.BEYOND_DOUBT)
        if stream.retention != LIMITS:
            stored = stream.last_time or (stream.last_sequence and stream.time)  # a new replica may not know when
            self._unread = mark if stored >= mark.time else None
            return None
        time = mark.time - notes.clock_setback(mark, stream.time) - (SKEW if js.may_be_clustered else 0)
        first = ask_first_since(js, stream.name, time, stream.first_sequence, stream.last_sequence + 1)
        prefix = self._ids.prefix
        own = self._task.own_ids
        return AlreadyStored(read_ids(js, stream, first - 1, "" if own else prefix), prefix, stream, own)

    def encode_rows_not_yet_stored(self, checker: RowChecker, batch: pa.RecordBatch, first_row: int) -> CheckedRows:
        """Take the bad rows of a batch; return the others, without those that an earlier attempt has stored.

        Raises:
            InvalidRowError: the rows name another target.
            NatsError: bad rows could not be stored.
        """
        rows = super().encode_rows_not_yet_stored(checker, batch, first_row)
        # A row that an earlier attempt has stored in either stream stays there, whatever the checks find now.
        if self._already_aside is not None:
            left = self._already_aside.note_and_find_missing(rows.ids)
            self.count += int(np.count_nonzero(~left))
            rows = rows.where(left)
        is_large = rows.sizes > checker.max_size
        if is_large.any():
            large = rows.where(is_large)
            parts = Rows(np.flatnonzero(is_large), *large[:3], None)
            for row in range(parts.size):
                self._check_not_large_by_headers(checker, large, row)
                self.set_row_aside(
                    parts.take(slice(row, row + 1)), f"column 'payload' {checker.describe_too_large(large, row)}"
                )
            rows = rows.where(~is_large)
        self._store_if_enough()
        return rows

    def _check_not_large_by_headers(self, checker: RowChecker, rows: CheckedRows, row: int) -> None:
        """Raise an error if a row that is too large would be dropped, though it is only so by headers that we add."""
        size, added = int(rows.sizes[row]), checker.header_bytes_added(rows, row)
        if self._options.bad_rows_stream is None and size - added <= checker.max_size:
            said = conditions.NO_ROOM_FOR_HEADERS(
                subject=rows.subjects[row],
                size=size - added,
                added=added,
                whose=checker.whose_limit,
                most=checker.max_size,
            )
            raise InvalidRowError(said)

    def encode_or_refuse_rows(self, checker: RowChecker, batch: pa.RecordBatch, first_row: int) -> CheckedRows:
        """Take the rows that break a rule; return the others as they are published. Some may be too large."""
        checker.check_target_column(batch, first_row)
        bad: dict[int, DeadLetter] = {}
        numbers = np.arange(batch.num_rows)
        while True:  # an error names only the rows that break one rule
            try:
                rows = checker.encode(batch)
            except BrokenRuleError as broken:
                wrong, columns = broken.violation.wrong, checker.written_columns(batch)
                for row in np.flatnonzero(wrong).tolist():
                    bad[int(numbers[row])] = _dead_letter_of_row(columns, row, broken.sentence(row))
                batch, numbers = batch.filter(booleans(~wrong)), numbers[~wrong]
            else:
                self.count_and_queue(bad[number] for number in sorted(bad))
                return rows

    def refuse_or_set_aside(self, batch: pa.RecordBatch, rows: Positions, rule: Rule, before: int) -> None:
        """Take rows of a batch whose subjects break a rule."""
        columns, self._rows = self._checker.written_columns(batch), self._rows + len(rows)
        for row in rows.tolist():
            self.count_and_queue([_dead_letter_of_row(columns, row, f"column 'subject' {rule(batch, row)}")])

    def count_and_queue(self, rows: Iterable[DeadLetter]) -> None:
        """Take bad rows. They are counted; with a dead-letter stream, they wait until enough can be stored together."""
        for row in rows:
            self.count += 1
            self._first = self._first or row.reason
            if self._options.bad_rows_stream:
                self._waiting.append(row)
                self._bytes += len(row.payload)

    def set_row_aside(self, row: Rows, reason: str) -> None:
        """Take a row that is too large or that the stream has refused, as it was to be published."""
        headers = parse_block(row.header(0))
        columns = {"subject": row.subjects[0].as_py(), "headers": headers}
        ids = headers.get(MSG_ID)
        payload = row.payloads[0].cast(pa.binary()).as_py()
        self.count_and_queue([DeadLetter(columns, payload, reason, ids[0] if ids else None)])

    def _finish(self) -> Counts:
        counts = super()._finish()
        self._store_if_enough(at_end=True)
        return replace(counts, bad=self.count)

    def _store_if_enough(self, at_end: bool = False) -> None:
        """Store the waiting rows if they are many, or if ``at_end`` is set."""
        if self._waiting and (at_end or len(self._waiting) >= _MAX_ROWS or self._bytes >= _MAX_BYTES):
            rows, self._waiting, self._bytes = self._waiting, [], 0
            self._store_unless_already_stored(rows)

    def warn_of_bad_rows(self, rows: int) -> None:
        """Log how many of the task's rows were bad, if any."""
        if self.count:
            # Bad rows that an earlier attempt has stored have their reason in a header.
            first = printable(self._first or f"see the header {REASON}")
            where = {"stream": stream} if (stream := self._options.bad_rows_stream) else {}
            said = conditions.BAD_ROWS_SET_ASIDE if where else conditions.BAD_ROWS_DROPPED
            logger.warning(said(bad=self.count, rows=rows, task=self._task.name, reason=first, **where).with_code)

    def _store_unless_already_stored(self, rows: list[DeadLetter]) -> None:
        stream, options = str(self._options.bad_rows_stream), self._options
        ids = self._find_or_generate_ids(rows)
        if self._already_aside is not None:
            missing = self._already_aside.note_and_find_missing(texts(ids)).tolist()
            rows, ids = list(compress(rows, missing)), list(compress(ids, missing))
        if not rows:
            return
        if self._unread is not None:
            self._raise_or_warn_if_ids_forgotten(self._unread)
        try:
            # Bad rows have their own connection, because a reconnect may replace that of the other rows meanwhile.
            with leased_jetstream(options, f"writing bad rows to {stream}", waits=True) as lease:
                info = lease.ask_with_retries(ask_stream_info, stream)
                try_move_to_leader(lease, info, len(rows), 0)
                connection = lease.js.connection
                most = min(connection.info.max_payload, _max_message_size_of(info))
                about = {TARGET: self._target, QUERY: self._task.query, PARTITION: str(self._task.partition)}
                about |= {MICRO_BATCH: self._task.batch} if self._task.batch is not None else {}
                about |= {EXPECTED_STREAM: stream} if can_rows_name_stream(info) else {}
                letters = [encode_dead_letter(row, each, about, most) for row, each in zip(rows, ids, strict=True)]
                publisher = Publisher(
                    connection,
                    info,
                    options.max_in_flight,
                    options.ack_timeout,
                    lease=lease.lease,
                    api_prefix=options.api_prefix,
                    exact=options.is_exact,
                    whose="these rows",
                )
                headers, payloads = map(byte_strings, zip(*letters, strict=True))
                subjects = texts([require_dead_letter_subject(info, options)] * len(letters))
                publisher.publish(subjects, payloads, headers, None, texts(ids))
                publisher.finish()
        except NatsError as error:
            failed = error.with_message(conditions.BAD_ROWS_NOT_STORED(stream=stream, reason=error))
            # No option creates a dead-letter stream.
            raise failed.with_topics(*(each for each in error.topics if each is not Topic.MISSING_STREAM)) from None

    def _raise_or_warn_if_ids_forgotten(self, mark: StartMark) -> None:
        """Check that the dead-letter stream knows the ids of all that it has stored since an earlier attempt began."""
        name, options = str(self._options.bad_rows_stream), self._options
        with leased_jetstream(options, f"writing bad rows to {name}", waits=True) as lease:
            stream, memory = lease.ask_with_retries(notes.ask_state_and_id_memory, name)
        noted = notes.id_memory_at(mark)._replace(created=memory.created)
        if not noted.knows_all_ids(memory, notes.seconds_since_or_negative(mark, stream.time)):
            self._unread = None
            notes.raise_or_warn_stored_unknown(options.fail_on_data_loss, self._task, describe_why_not_readable(stream))

    def _find_or_generate_ids(self, rows: list[DeadLetter]) -> list[str]:
        """Return the rows' message ids; a row without an id, or with too long an id, gets one from its content."""
        rows = [row if len(row.id or "") <= _MAX_ID else row._replace(id=None) for row in rows]
        lacking = [row for row in rows if row.id is None]
        columns = byte_strings([_json(row.columns).encode() for row in lacking])
        nothing, payloads = texts([""] * len(lacking)), byte_strings([row.payload for row in lacking])
        given = iter(self._ids.generate_distinct_ids(columns, nothing, payloads).to_pylist() if lacking else ())
        return [next(given) if row.id is None else row.id for row in rows]


def _dead_letter_of_row(columns: Mapping[str, pa.Array], row: int, reason: str) -> DeadLetter:
    """Return the dead letter of a row that breaks a rule, with its values unchanged."""
    values = {name: column[row].as_py() for name, column in columns.items()}
    payload = values.pop("payload", None) or values.pop("value", None) or b""
    if isinstance(headers := values.get("headers"), list):
        values["headers"] = dict(headers)
    return DeadLetter(values, payload.encode() if isinstance(payload, str) else payload, reason)


def require_dead_letter_subject(stream: StreamInfo, options: WriteOptions) -> str:
    """Return the subject of bad rows: the first subject of their stream, with the target in place of wildcards.

    Raises:
        PublishError: the stream has no usable subject.
    """
    if not stream.subjects or stream.subjects[0].startswith("$"):
        raise PublishError(conditions.BAD_ROWS_NEED_SUBJECT(stream=stream.name))
    target = options.stream or "core"
    return ".".join(target if token in ("*", ">") else token for token in stream.subjects[0].split("."))


def _max_message_size_of(stream: StreamInfo) -> int:
    return min(stream.max_message_size or MAX_MESSAGE_SIZE, MAX_MESSAGE_SIZE)


def encode_dead_letter(row: DeadLetter, message_id: str, about: Mapping[str, str], most: int) -> tuple[bytes, bytes]:
    """Return the header block and the payload of a dead letter, at most ``most`` bytes together.

    A larger row is cut, and a header reports how large each cut part was before.
    """
    columns, payload, cut = _json(row.columns), row.payload, []
    headers = {REASON: printable(row.reason), **about, COLUMNS: "", MSG_ID: message_id}
    headers_size = len(encode_block(headers)) + _MAX_CUT
    room = max(0, most - headers_size)
    if len(columns) > (max_length := min(room // 2, MAX_BLOCK_SIZE - headers_size)):
        cut.append(f"columns of {len(columns)} bytes")
        columns = columns[:max_length]
    if len(payload) > (room := room - len(columns)):
        cut.append(f"payload of {len(payload)} bytes")
        payload = payload[:room]
    headers[COLUMNS] = columns
    if cut:
        headers[CUT] = ", ".join(cut)
    return encode_block(headers), payload


def _json(columns: Mapping[str, Any]) -> str:
    """Return columns as JSON in ASCII, which a header can hold; bytes are in base64, as Spark writes them."""
    return json.dumps(columns, default=lambda value: base64.b64encode(value).decode(), separators=(",", ":"))
