"""Publishing to a stream with acknowledgements, a column at a time.

The server answers every message on its reply subject, and it does so much faster when it meets the same few subjects
again and again: it remembers where the last ones led. So there are only :data:`REPLIES` of them, which take turns, and
at most ``max_in_flight`` rows are unanswered at any time. Answers are decoded as columns and counted for each subject;
only those that are not a plain success are looked at one by one.

A subject stands for several rows in flight, and a refusal may overtake or lag behind the successes around it. So when a
row was refused, everything is awaited, and then the row is found by what it lacks: successes carry sequences of the
stream, which rise with the rows.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from spark_nats.client.connection import Connection
from spark_nats.errors import JetStreamError, NatsError, PublishError
from spark_nats.jetstream.api import WRONG_STREAM, parse_answer
from spark_nats.protocol.bytecolumns import Positions, decimals, load_words
from spark_nats.protocol.documents import number, text
from spark_nats.protocol.encoder import cut_into_parts, encode_messages
from spark_nats.protocol.headers import parse_status
from spark_nats.protocol.messages import Messages

REPLIES = 512
"""Reply subjects of a publisher; as many as nats-server keeps in a client's cache of subscriptions."""


class _Part(NamedTuple):
    first_row: int
    subjects: pa.Array


class _Answers(NamedTuple):
    """Answers as they arrived, and the number of the reply subject that each came on."""

    messages: Messages
    reply: Positions


class _Refusal(NamedTuple):
    row: int
    words: str


class Publisher:
    """Publishes rows to one stream over one connection. Rows are numbered from 0 in the order they are given.

    Args:
        connection: carries the messages.
        stream: the stream's name; an answer that does not name it is no acknowledgement.
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
        self._replies = pa.array([f"{inbox}.{i}" for i in range(REPLIES)])
        # How an acknowledgement begins, as words of eight bytes, the last of which overlaps the one before.
        success = f'{{"stream":"{stream}",'.encode()
        places = [*range(0, len(success) - 8, 8), len(success) - 8]
        self._success = [(place, int.from_bytes(success[place : place + 8], "little")) for place in places]
        self._acks = connection.subscribe(f"{inbox}.*")
        self._sent = 0
        self._answered = np.zeros(REPLIES, np.int64)  # on each reply subject
        self._stored = 0
        self._refused = 0
        self._parts: deque[_Part] = deque()
        self._recent: deque[_Answers] = deque()  # the last 2 * max_in_flight or more

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
        self._wait_for_answers(self._sent)

    def close(self) -> None:
        """End the subscription to acknowledgements."""
        self._connection.unsubscribe(self._acks)

    def _send_part(self, subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None) -> None:
        rows = len(subjects)
        self._wait_for_answers(self._sent + rows - self._max_in_flight)
        replies = self._replies.take(pa.array(np.arange(self._sent, self._sent + rows) % REPLIES))
        self._parts.append(_Part(self._sent, subjects))
        self._sent += rows
        try:
            self._connection.send(encode_messages(subjects, payloads, replies, headers))
        except NatsError as error:
            self._give_up(str(error), type(error))

    def _wait_for_answers(self, row: int) -> None:
        """Wait until as many answers have come as the rows before ``row`` need."""
        first = np.arange(REPLIES)
        while not self._refused and (first + REPLIES * self._answered).min() < row:
            self._take_answers()
        if self._refused:
            self._report_refusals()

    def _take_answers(self) -> None:
        try:
            messages = self._connection.next(self._acks, self._ack_timeout)
        except NatsError as error:
            self._give_up(str(error), type(error))
        if messages is None:
            self._give_up(f"stream {self._stream!r} sent no acknowledgement for {self._ack_timeout:g} s")
        prefix = len(self._acks.subject) - 1
        reply, valid = decimals(messages.buffer, messages.subject.start + prefix, messages.subject.end)
        valid &= reply < REPLIES
        if valid.all():
            self._answered += np.bincount(reply, minlength=REPLIES)
        if not valid.all() or (np.arange(REPLIES) + REPLIES * (self._answered - 1)).max() >= self._sent:
            self._give_up("an acknowledgement came that belongs to no row that was sent")
        self._count(messages)
        self._remember(_Answers(messages, reply))

    def _count(self, messages: Messages) -> None:
        start, end = messages.payload
        success = end - start >= self._success[-1][0] + 8
        for place, word in self._success:
            success &= load_words(messages.buffer, np.where(success, start + place, 0)) == np.uint64(word)
        refused = sum(isinstance(self._read_answer(messages, int(i)), str) for i in np.flatnonzero(~success))
        self._refused += refused
        self._stored += len(messages) - refused

    def _remember(self, answers: _Answers) -> None:
        """Keep what is needed to find a refused row: answers of the rows around it, and their subjects."""
        keep = 2 * self._max_in_flight
        self._recent.append(answers)
        kept = sum(len(chunk.reply) for chunk in self._recent)
        while not self._refused and kept - len(self._recent[0].reply) >= keep:
            kept -= len(self._recent.popleft().reply)
        while self._parts[0].first_row + len(self._parts[0].subjects) <= self._sent - keep:
            self._parts.popleft()

    def _report_refusals(self) -> NoReturn:
        """Wait for the answers that are still on their way, so that the report is exact; then raise it."""
        while self._stored + self._refused < self._sent:
            try:
                self._take_answers()
            except PublishError:
                break
        row, words = min(self._find_refusals())
        message = f"stream {self._stream!r} refused row {row} (subject {self._subject_of(row)!r}): {words}"
        if self._refused > 1:
            message += f"; {self._refused} rows were refused in all"
        raise PublishError(f"{message}; {self._account()}")

    def _find_refusals(self) -> list[_Refusal]:
        """Tell which rows were refused, and why.

        The rows of a reply subject without refusals are known one by one with their sequences. Between two of those,
        every other reply subject has one row, and where it has no sequence that row was refused. Where that does not
        decide (an answer is missing, nearly all is refused), answers are taken to have come in the order of the rows.
        """
        sequences: list[list[int]] = [[] for _ in range(REPLIES)]
        refusals: list[list[tuple[int, str]]] = [[] for _ in range(REPLIES)]
        for messages, replies in self._recent:
            for i, reply in enumerate(replies):
                found = self._read_answer(messages, i)
                if isinstance(found, int):
                    sequences[reply].append(found)
                else:
                    refusals[reply].append((len(sequences[reply]) + len(refusals[reply]), found))

        def rows_of(reply: int) -> Positions:
            known = len(sequences[reply]) + len(refusals[reply])
            return reply + REPLIES * np.arange(self._answered[reply] - known, self._answered[reply])

        clean = [reply for reply in range(REPLIES) if sequences[reply] and not refusals[reply]]
        rows = np.concatenate([np.empty(0, np.int64), *(rows_of(reply) for reply in clean)])
        order = np.argsort(rows)
        rows = rows[order]
        known = np.concatenate([[], *(sequences[reply] for reply in clean)])[order]
        bounds = np.concatenate([[-np.inf], known, [np.inf]])  # of the sequences between two rows

        result = []
        for reply in (reply for reply in range(REPLIES) if refusals[reply]):
            own = rows_of(reply)
            after = np.searchsorted(rows, own)
            stored = np.array(sorted(sequences[reply]), np.float64)
            lacking = np.searchsorted(stored, bounds[after]) == np.searchsorted(stored, bounds[after + 1])
            if np.count_nonzero(lacking) == len(refusals[reply]):
                found_rows = own[lacking]
            else:
                found_rows = own[[place for place, _ in refusals[reply]]]
            result += [_Refusal(int(row), words) for row, (_, words) in zip(found_rows, refusals[reply], strict=True)]
        return result

    def _give_up(self, why: str, kind: type[NatsError] = PublishError) -> NoReturn:
        message = f"{why}; {self._account()}"
        raise PublishError(message) if not issubclass(kind, ConnectionError) else kind(message)

    def _account(self) -> str:
        """Say what became of the rows that were sent."""
        unanswered = self._sent - self._stored - self._refused
        text = f"of this task's rows {self._stored} were stored"
        if unanswered:
            text += f" and {unanswered} were sent and not answered (they may be stored)"
        return text + ", any other was not sent"

    def _subject_of(self, row: int) -> str:
        for part in self._parts:
            if part.first_row <= row < part.first_row + len(part.subjects):
                return str(part.subjects[row - part.first_row])
        return "?"

    def _read_answer(self, messages: Messages, i: int) -> int | str:
        """Return the sequence that a row was stored with, or why it was refused."""
        status = parse_status(messages.header_at(i))
        if status is not None:
            return "no stream listens on it" if status.code == 503 else f"{status.description} ({status.code})"
        payload = messages.payload_at(i)
        try:
            answer = parse_answer(payload, "publishing")
            if text(answer, "stream") == self._stream and (sequence := number(answer, "seq")):
                return sequence
        except JetStreamError as error:
            if error.err_code == WRONG_STREAM:
                return f"another stream listens on it ({error.description}, {error.err_code})"
            return f"{error.description} ({error.code}, {error.err_code})"
        except (NatsError, ValueError):
            pass
        return f"somebody else than the stream answers on it: {payload[:80]!r}"
