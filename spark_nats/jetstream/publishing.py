"""Publishing to a stream with acknowledgements, a column at a time.

Every message is sent with a reply subject that ends in its row number, so an acknowledgement says by its subject which
row it belongs to. Rows are sent in parts; at most ``max_in_flight`` rows are unacknowledged at any time. The
acknowledgements of a part are decoded as columns too and ticked off by array arithmetic; only those that are not a
plain success are looked at one by one.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.connection import Connection
from spark_nats.errors import JetStreamError, NatsError, PublishError
from spark_nats.jetstream.api import WRONG_STREAM, parse_answer
from spark_nats.protocol.bytecolumns import Positions, decimals, load_words
from spark_nats.protocol.encoder import cut_into_parts, encode_messages
from spark_nats.protocol.headers import parse_status
from spark_nats.protocol.messages import Messages

_SUCCESS = np.uint64(int.from_bytes(b'{"stream', "little"))  # an error begins with {"error"


class _Part(NamedTuple):
    first_row: int
    subjects: pa.Array


class Publisher:
    """Publishes rows to one stream over one connection. Rows are numbered from 0 in the order they are given.

    Args:
        connection: carries the messages.
        stream: the stream's name, for messages of errors.
        max_in_flight: most rows that are sent and not acknowledged.
        ack_timeout: seconds without any acknowledgement after which the server is given up.
    """

    def __init__(
        self, connection: Connection, stream: str, max_in_flight: int = 8192, ack_timeout: float = 10.0
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._max_in_flight = max_in_flight
        self._ack_timeout = ack_timeout
        inbox = connection.new_inbox()
        self._reply_prefix = f"{inbox}."
        self._acks = connection.subscribe(f"{inbox}.*")
        self._acknowledged = np.zeros(2 * max_in_flight, np.bool_)  # a ring, by row number
        self._sent = 0
        self._settled = 0  # all rows before this one are answered
        self._stored = 0
        self._parts: deque[_Part] = deque()
        self._refusals: list[tuple[int, str]] = []

    @property
    def stored(self) -> int:
        """How many rows the server has acknowledged."""
        return self._stored

    def publish(self, subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None = None) -> None:
        """Send rows, which must be valid; returns when the last of them is sent, not yet acknowledged.

        Args:
            subjects: string column without null.
            payloads: string or binary column without null.
            headers: binary column of header blocks, null where a row has none.

        Raises:
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed; the message says how many rows were acknowledged before.
        """
        for part in cut_into_parts(payloads, headers, max(1, self._max_in_flight // 4)):
            self._send_part(subjects[part], payloads[part], None if headers is None else headers[part])

    def drain(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed.
        """
        self._wait_until_settled(self._sent)

    def close(self) -> None:
        """End the subscription to acknowledgements."""
        self._connection.unsubscribe(self._acks)

    def _send_part(self, subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None) -> None:
        rows = len(subjects)
        self._wait_until_settled(self._sent + rows - self._max_in_flight)
        numbers = pa.array(np.arange(self._sent, self._sent + rows)).cast(pa.string())
        replies = pc.binary_join_element_wise(self._reply_prefix, numbers, "")
        self._parts.append(_Part(self._sent, subjects))
        self._sent += rows
        try:
            self._connection.send(encode_messages(subjects, payloads, replies, headers))
        except NatsError as error:
            self._give_up(str(error), type(error))

    def _wait_until_settled(self, row: int) -> None:
        """Wait until all rows before ``row`` are answered."""
        while self._settled < row and not self._refusals:
            self._take_acks()
        if self._refusals:
            self._report_refusals()

    def _take_acks(self) -> None:
        try:
            answers = self._connection.next(self._acks, self._ack_timeout)
        except NatsError as error:
            self._give_up(str(error), type(error))
        if answers is None:
            self._give_up(f"stream {self._stream!r} sent no acknowledgement for {self._ack_timeout:g} s")
        row, valid = decimals(
            answers.buffer, answers.subject.start + len(self._reply_prefix.encode()), answers.subject.end
        )
        if not valid.all() or row.min() < self._settled or row.max() >= self._sent:
            self._give_up("an acknowledgement names a row that was not sent or is acknowledged already")
        success = self._is_success(answers)
        self._stored += int(np.count_nonzero(success))
        for i in np.flatnonzero(~success):
            self._read_answer(int(row[i]), answers, int(i))
        self._tick_off(row)

    def _is_success(self, answers: Messages) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        start, end = answers.payload
        long_enough = end - start >= 8
        words = load_words(answers.buffer, np.where(long_enough, start, 0))
        success: np.ndarray[tuple[int], np.dtype[np.bool_]] = long_enough & (words == _SUCCESS)
        return success

    def _read_answer(self, row: int, answers: Messages, i: int) -> None:
        status = parse_status(answers.header_at(i))
        if status is not None:
            words = "no stream listens on it" if status.code == 503 else f"{status.description} ({status.code})"
            self._refusals.append((row, words))
            return
        try:
            parse_answer(answers.payload_at(i), "publishing")
            self._stored += 1
        except JetStreamError as error:
            words = f"{error.description} ({error.code}, {error.err_code})"
            if error.err_code == WRONG_STREAM:
                words = f"another stream listens on it ({error.description}, {error.err_code})"
            self._refusals.append((row, words))
        except NatsError as error:
            self._refusals.append((row, str(error)))

    def _tick_off(self, rows: Positions) -> None:
        ring = len(self._acknowledged)
        self._acknowledged[rows % ring] = True
        window = np.arange(self._settled, self._sent) % ring
        done = self._acknowledged[window]
        answered = len(done) if done.all() else int(np.argmin(done))
        self._acknowledged[window[:answered]] = False
        self._settled += answered
        while self._parts and self._parts[0].first_row + len(self._parts[0].subjects) <= self._settled:
            if self._refusals:
                break  # the refused rows' subjects are still needed
            self._parts.popleft()

    def _report_refusals(self) -> NoReturn:
        """Wait for the answers that are still on their way, so that the report is exact; then raise it."""
        while self._settled < self._sent:
            try:
                self._take_acks()
            except PublishError:
                break
        row, words = min(self._refusals)
        message = f"stream {self._stream!r} refused row {row} (subject {self._subject_of(row)!r}): {words}"
        if len(self._refusals) > 1:
            message += f"; {len(self._refusals)} rows were refused in all"
        raise PublishError(f"{message}; {self._account()}")

    def _give_up(self, why: str, kind: type[NatsError] = PublishError) -> NoReturn:
        message = f"{why}; {self._account()}"
        raise PublishError(message) if not issubclass(kind, ConnectionError) else kind(message)

    def _account(self) -> str:
        """Say what became of the rows that were sent."""
        unanswered = self._sent - self._stored - len(self._refusals)
        text = f"of this task's rows {self._stored} were stored"
        if unanswered:
            text += f" and {unanswered} were sent and not answered (they may be stored)"
        return text + ", any other was not sent"

    def _subject_of(self, row: int) -> str:
        for part in self._parts:
            if part.first_row <= row < part.first_row + len(part.subjects):
                return str(part.subjects[row - part.first_row])
        return "?"
