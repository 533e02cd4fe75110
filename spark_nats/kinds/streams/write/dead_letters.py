"""Rows that cannot be sent: counted, and left out or stored in a stream of their own with the reason in headers.

A row is bad for what it is itself: it breaks a rule that is checked before anything is sent, or the server refuses it
and takes the next one. What keeps every row from being stored, such as a full stream, is an error as ever.

A row that could have been sent has the same message id in the one stream as in the other. So a replay knows where each
row is, whatever the server says now, and a row is in one of them only.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_nats.client.pool import leased
from spark_nats.conditions import Hint
from spark_nats.errors import NatsError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing.publisher import Publisher
from spark_nats.jetstream.publishing.rows import Rows
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import stream_info
from spark_nats.kinds.streams.options import WriteOptions
from spark_nats.kinds.streams.write.conditions import (
    BAD_ROWS_DROPPED,
    BAD_ROWS_NEED_SUBJECT,
    BAD_ROWS_NOT_STORED,
    BAD_ROWS_SET_ASIDE,
)
from spark_nats.kinds.streams.write.message_ids import MessageIds
from spark_nats.kinds.streams.write.replay import Settled
from spark_nats.kinds.streams.write.tasks import Task
from spark_nats.protocol.bytecolumns import Mask, strings, texts
from spark_nats.protocol.documents import printable
from spark_nats.protocol.headers import EXPECTED_STREAM, LARGEST_BLOCK, MSG_ID, encode_block, parse_block
from spark_nats.protocol.publish_acks import Verdict
from spark_nats.protocol.stream_configs import LARGEST_MESSAGE

logger = logging.getLogger(__name__)

REASON, TARGET, COLUMNS, CUT = "Bad-Row-Reason", "Bad-Row-Target", "Bad-Row-Columns", "Bad-Row-Cut"
QUERY, MICRO_BATCH, PARTITION = "Bad-Row-Query", "Bad-Row-Micro-Batch", "Bad-Row-Partition"

LEAST_SIZE = 16384
"""Bytes that a message of such a stream must be allowed to have: its headers may need as many."""
_MOST_ROWS = 1024  # that wait to be stored
_MOST_BYTES = 8 << 20  # of their payloads
_LONGEST_CUT = 80  # bytes of the header that says what is cut
_LONGEST_ID = 4096  # characters of a message id that stands in the headers, among others


class BadRow(NamedTuple):
    """A row that cannot be sent.

    Attributes:
        columns: its values by the names of their columns, but for the payload.
        payload: its payload, or value; empty where it is null.
        reason: why it cannot be sent.
        id: its message id; None if it has none.
    """

    columns: Mapping[str, Any]
    payload: bytes
    reason: str
    id: str | None = None


class BadRows:
    """Takes the bad rows of one task.

    Args:
        options: what becomes of them, and where they are stored.
        task: the task.
        settled: what an earlier attempt of the task has stored of them, if there may have been one.

    Attributes:
        count: how many there were.
    """

    def __init__(self, options: WriteOptions, task: Task, settled: Settled | None) -> None:
        self._options = options
        self._task = task
        self._settled = settled
        self._ids = MessageIds(task.query, task.batch, task.partition)
        self._waiting: list[BadRow] = []
        self._bytes = 0
        self._first = ""  # the reason of the first one
        self.count = 0
        # Where all rows have one subject, that no stream listens on it is a mistake in the options.
        of_rows = {Verdict.ROW, Verdict.CONFLICT}
        self.verdicts: Collection[Verdict] = of_rows if options.subject is not None else {*of_rows, Verdict.PLACE}

    def add(self, rows: Iterable[BadRow]) -> None:
        """Take rows; they wait until some are stored together."""
        for row in rows:
            self.count += 1
            self._first = self._first or row.reason
            if self._options.bad_rows_stream:
                self._waiting.append(row)
                self._bytes += len(row.payload)

    def take(self, row: Rows, reason: str) -> None:
        """Take a row that the stream has refused."""
        self.add([refused_row(row.subjects[0], row.payloads[0], row.header(0), reason)])

    def left(self, ids: pa.Array) -> Mask:
        """Tell of which rows that could be sent none was stored as a bad one by an earlier attempt."""
        if self._settled is None:
            return np.ones(len(ids), np.bool_)
        left = self._settled.missing(ids)
        self.count += int(np.count_nonzero(~left))
        return left

    def flush(self, at_end: bool = False) -> None:
        """Store the rows that wait, if they are many or the last ones.

        Raises:
            NatsError: the stream did not take one.
        """
        if self._waiting and (at_end or len(self._waiting) >= _MOST_ROWS or self._bytes >= _MOST_BYTES):
            rows, self._waiting, self._bytes = self._waiting, [], 0
            self._store(rows)

    def warn(self, rows: int) -> None:
        """Say how many of the task's rows were bad, if there are any."""
        # Of those that an earlier attempt has stored the reason stands with them.
        task, first = self._task.name, printable(self._first or f"see the header {REASON}")
        if self.count and (stream := self._options.bad_rows_stream):
            logger.warning(BAD_ROWS_SET_ASIDE(bad=self.count, rows=rows, task=task, stream=stream, reason=first).coded)
        elif self.count:
            logger.warning(BAD_ROWS_DROPPED(bad=self.count, rows=rows, task=task, reason=first).coded)

    @property
    def unexpected(self) -> int:
        """How many rows an earlier attempt had stored that were not among those that the task was given now."""
        return self._settled.unexpected if self._settled is not None else 0

    def _store(self, rows: list[BadRow]) -> None:
        stream, options = str(self._options.bad_rows_stream), self._options
        ids = self._ids_of(rows)
        if self._settled is not None:
            missing = self._settled.missing(texts(ids))
            rows = [row for row, chosen in zip(rows, missing, strict=True) if chosen]
            ids = [each for each, chosen in zip(ids, missing, strict=True) if chosen]
        if not rows:
            return
        try:
            # On a connection of their own: that of the other rows may be exchanged for another one meanwhile.
            with leased(options.connection, options.retries, f"writing bad rows to {stream}") as lease:
                info = lease.ask(lambda connection: stream_info(JetStream(connection, options.api_prefix), stream))
                most = min(lease.connection.info.max_payload, largest_message(info))
                about = {**about_task(options, self._task), EXPECTED_STREAM: stream}
                letters = [dead_letter(row, each, about, most) for row, each in zip(rows, ids, strict=True)]
                publisher = Publisher(
                    lease.connection,
                    stream,
                    options.max_in_flight,
                    options.ack_timeout,
                    lease=lease,
                    api_prefix=options.api_prefix,
                    began=info,
                    whose="these rows",
                )
                headers, payloads = strings([header for header, _ in letters]), strings([body for _, body in letters])
                subjects = texts([subject_of_bad_rows(info, options)] * len(letters))
                publisher.publish(subjects, payloads.cast(pa.binary()), headers.cast(pa.binary()), None, texts(ids))
                publisher.drain()
                if publisher.needs_verifying:
                    publisher.verify()
                publisher.close()
        except NatsError as error:
            failed = error.with_context(BAD_ROWS_NOT_STORED(stream=stream, reason=error))
            # There is no option that makes this stream.
            failed.hints = tuple(hint for hint in error.hints if hint is not Hint.CREATE_STREAM)
            raise failed from None

    def _ids_of(self, rows: list[BadRow]) -> list[str]:
        """Return their message ids; one that has none, or one that is too long, gets one by what it says."""
        rows = [row if len(row.id or "") <= _LONGEST_ID else row._replace(id=None) for row in rows]
        lacking = [row for row in rows if row.id is None]
        columns = strings([_json(row.columns).encode() for row in lacking])
        nothing, payloads = texts([""] * len(lacking)), strings([row.payload for row in lacking])
        given = iter(self._ids.give(columns, nothing, payloads).to_pylist() if lacking else ())
        return [next(given) if row.id is None else row.id for row in rows]


def refused_row(subject: pa.Scalar, payload: pa.Scalar, header: bytes, reason: str) -> BadRow:
    """Return a row that could be sent, as it was to be published."""
    headers = parse_block(header)
    ids = headers.get(MSG_ID)
    columns = {"subject": subject.as_py(), "headers": headers}
    return BadRow(columns, payload.cast(pa.binary()).as_py(), reason, ids[0] if ids else None)


def subject_of_bad_rows(stream: StreamInfo, options: WriteOptions) -> str:
    """Return what bad rows are published on: the first subject of their stream, wildcards replaced by the target.

    Raises:
        PublishError: the stream has no subject for that.
    """
    if not stream.subjects or stream.subjects[0].startswith("$"):
        raise PublishError(BAD_ROWS_NEED_SUBJECT(stream=stream.name))
    target = options.stream or "core"
    return ".".join(target if token in ("*", ">") else token for token in stream.subjects[0].split("."))


def largest_message(stream: StreamInfo) -> int:
    """Return how many bytes of headers and payload together a message of a stream may have."""
    most = stream.config.get("max_msg_size", 0)
    return min(most, LARGEST_MESSAGE) if most > 0 else LARGEST_MESSAGE


def about_task(options: WriteOptions, task: Task) -> dict[str, str]:
    """Return the headers that say where a row comes from, and where it was to go."""
    about = {TARGET: options.bucket or options.stream or "core NATS", QUERY: task.query, PARTITION: str(task.partition)}
    return about if task.batch is None else {**about, MICRO_BATCH: task.batch}


def dead_letter(row: BadRow, message_id: str, about: Mapping[str, str], most: int) -> tuple[bytes, bytes]:
    """Return the header block and the payload by which a row is stored, of so many bytes together at most.

    A row that is larger is cut, and a header says how large its parts were.
    """
    columns, payload, cut = _json(row.columns), row.payload, []
    headers = {REASON: printable(row.reason), **about, COLUMNS: "", MSG_ID: message_id}
    headers_size = len(encode_block(headers)) + _LONGEST_CUT
    room = max(0, most - headers_size)
    if len(columns) > (longest := min(room // 2, LARGEST_BLOCK - headers_size)):
        cut.append(f"columns of {len(columns)} bytes")
        columns = columns[:longest]
    if len(payload) > (room := room - len(columns)):
        cut.append(f"payload of {len(payload)} bytes")
        payload = payload[:room]
    headers[COLUMNS] = columns
    if cut:
        headers[CUT] = ", ".join(cut)
    return encode_block(headers), payload


def _json(columns: Mapping[str, Any]) -> str:
    """Return columns as text in ASCII, so that any of them can stand in a header; bytes in base64, as Spark does it."""
    return json.dumps(columns, default=lambda value: base64.b64encode(value).decode(), separators=(",", ":"))
