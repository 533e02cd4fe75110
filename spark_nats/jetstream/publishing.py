"""Publishing to a stream with acknowledgements, a column at a time.

The server answers every message on its reply subject, and it does so much faster when it meets the same few subjects
again and again: it remembers where the last ones led. So there are only :data:`~.refusals.REPLIES` of them, which take
turns, and a window of rows is unanswered at any time. Answers are decoded as columns and counted for each subject; only
those that are not a plain success are looked at one by one.

A subject stands for several rows in flight, and a refusal may overtake or lag behind the successes around it. So when a
row was refused, everything is awaited, and then it is told which rows were (:mod:`.refusals`).

A stream that is given more than it can take refuses rows with *too many requests* (429). That is back-pressure and no
error: as in TCP the window is halved and grows again slowly, and what was refused is sent again. A row that was refused
was not stored, so that is exact; where it cannot be told which rows were refused, they are sent again only if their
message ids keep the server from storing one twice.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from spark_nats.client.connection import Connection
from spark_nats.client.publishing import cut_into_parts
from spark_nats.errors import NatsError, PublishError, Remedy
from spark_nats.jetstream.refusals import REPLIES, next_unanswered, reply_of, tell_apart
from spark_nats.protocol.bytecolumns import Mask, Positions, booleans, decimals, integers, texts
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, count_duplicates

MOST_BYTES = 64 << 20
"""Bytes of payload that may be unanswered: rows are kept until they are, in case they have to be sent again."""
_FIRST_WINDOW = 2048  # rows; it doubles while the server takes all that is sent
_SMALLEST_WINDOW = 16  # rows
_GROWTH = 1 / 16  # of the window for each window that is stored, once there were too many requests
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # seconds after too many requests


class _Rows(NamedTuple):
    """Rows that are to be sent or were sent together.

    Attributes:
        numbers: as they were given.
        again: whether they may be stored already, by being sent before.
    """

    numbers: Positions
    subjects: pa.Array
    payloads: pa.Array
    headers: pa.Array | None
    again: bool = False

    def take(self, chosen: slice | Mask) -> _Rows:
        """Return the chosen ones."""

        def part(column: pa.Array) -> pa.Array:
            return column[chosen] if isinstance(chosen, slice) else column.filter(booleans(chosen))

        headers = None if self.headers is None else part(self.headers)
        return _Rows(self.numbers[chosen], part(self.subjects), part(self.payloads), headers, self.again)


class _Answers(NamedTuple):
    """Answers as they arrived, and the number of the reply subject that each came on."""

    messages: Messages
    reply: Positions


class _Refusal(NamedTuple):
    """Why the message that was sent with this reply subject was not stored."""

    reply: int
    reason: str
    too_many: bool


class Publisher:
    """Publishes rows to one stream over one connection. Rows are numbered from 0 in the order they are given.

    They are stored in that order, except those that the stream refused for a while because it was given too many.

    Args:
        connection: carries the messages.
        stream: the stream's name; an answer that does not name it is not an acknowledgement.
        max_in_flight: most rows that are sent and not acknowledged.
        ack_timeout: seconds without any row being stored after which the server is given up.
        identified: whether every row has a message id, so that one that is sent twice is stored once.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        max_in_flight: int,
        ack_timeout: float,
        identified: bool = False,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._max_in_flight = max_in_flight
        self._ack_timeout = ack_timeout
        self._identified = identified
        inbox = connection.new_inbox()
        self._replies = texts([f"{inbox}.{i}" for i in range(REPLIES)])
        self._acks = PublishAcks(stream)
        self._answers = connection.subscribe(f"{inbox}.*")

        self._window = float(min(_FIRST_WINDOW, max_in_flight))
        self._congested = False  # there were too many requests before
        self._pause = _FIRST_PAUSE
        self._last_stored = time.monotonic()

        self._given = 0  # rows
        self._queue: deque[_Rows] = deque()  # to be sent
        self._sent = 0  # messages: a row that is sent again is another one
        self._flying: deque[tuple[int, _Rows]] = deque()  # not answered yet, with how many messages were sent before
        self._flying_bytes = 0
        self._again = False  # what is in flight may be stored already
        self._confirmed = 0
        self._duplicates = 0

        self._asked = np.zeros(REPLIES, np.int64)  # messages that were sent with each reply subject
        self._answered = np.zeros(REPLIES, np.int64)  # and answers to them
        self._refused = 0  # messages of which it was not told which they are
        # What a refused row is found by: answers of the last two windows or more, and the subjects of their rows.
        self._recent: deque[_Answers] = deque()
        self._recent_size = 0
        self._forgotten = np.zeros(REPLIES, np.int64)  # answers on each reply subject before the recent ones
        self._subjects: deque[tuple[int, Positions, pa.Array]] = deque()

    @property
    def confirmed(self) -> int:
        """How many rows the stream has by the server's acknowledgements."""
        return self._confirmed

    @property
    def duplicates(self) -> int:
        """How many of those rows the stream had before they were first sent here, by their message ids."""
        return self._duplicates

    def publish(
        self,
        subjects: pa.Array,
        payloads: pa.Array,
        headers: pa.Array | None = None,
        replies: pa.Array | None = None,
    ) -> None:
        """Send rows, which must be valid; returns when the last of them is sent, not yet acknowledged.

        Args:
            subjects: string column without null.
            payloads: string or binary column without null.
            headers: binary column of header blocks, null where a row has none.
            replies: must be None, since acknowledgements come to the reply subject.

        Raises:
            ValueError: there are replies.
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed; the message says how many rows were acknowledged before.
        """
        if replies is not None:
            raise ValueError("a message to a stream has no reply subject, since its acknowledgement comes there")
        numbers = np.arange(self._given, self._given + len(subjects))
        self._given += len(subjects)
        self._queue.append(_Rows(numbers, subjects, payloads, headers))
        self._send_queue()

    def drain(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed.
        """
        while self._unanswered or self._refused:
            self._go_on()
            self._send_queue()

    def close(self) -> None:
        """End the subscription to acknowledgements."""
        self._connection.unsubscribe(self._answers)

    # Sending

    def _send_queue(self) -> None:
        """Send what is to be sent, as fast as the window allows."""
        while self._queue:
            part = self._cut_head()
            while self._queue[0] is part and not self._has_room_for(part):
                self._go_on()
            if self._queue[0] is part:  # else there are rows before it that are to be sent again
                self._queue.popleft()
                self._send(part)

    def _cut_head(self) -> _Rows:
        """Cut what is sent next off the head of the queue, where it stays."""
        rows = self._queue.popleft()
        window = int(self._window)
        head = rows.take(slice(max(1, window // 4)))
        part = head.take(next(cut_into_parts(head.payloads, head.headers, window)))
        if len(part.numbers) < len(rows.numbers):
            self._queue.appendleft(rows.take(slice(len(part.numbers), None)))
        self._queue.appendleft(part)
        return part

    def _has_room_for(self, part: _Rows) -> bool:
        if self._refused or not self._unanswered:
            return not self._refused
        return (
            self._sent + len(part.numbers) - self._oldest_unanswered() <= self._window
            and self._flying_bytes + part.payloads.nbytes <= MOST_BYTES
            and part.again == self._again
        )

    def _send(self, part: _Rows) -> None:
        self._again = part.again
        sent = np.arange(self._sent, self._sent + len(part.numbers))
        self._flying.append((self._sent, part))
        self._flying_bytes += part.payloads.nbytes
        self._subjects.append((self._sent, part.numbers, part.subjects))
        self._sent += len(part.numbers)
        reply = reply_of(sent)
        self._asked += np.bincount(reply, minlength=REPLIES)
        replies = self._replies.take(integers(reply))
        try:
            self._connection.publish_columns(part.subjects, part.payloads, part.headers, replies)
        except NatsError as error:
            raise self._failed(error) from None

    # Answers

    @property
    def _unanswered(self) -> int:
        """How many messages were sent and not answered."""
        return self._sent - int(self._answered.sum())

    def _oldest_unanswered(self) -> int:
        """Return how many messages were sent before the oldest one that is not answered."""
        return int(next_unanswered(self._answered).min())

    def _go_on(self) -> None:
        """Take what answers there are; when rows were refused, all of them."""
        if not self._refused:
            self._take_answers()
        if self._refused:
            self._settle()

    def _take_answers(self) -> None:
        try:
            messages = self._connection.next(self._answers, self._ack_timeout)
        except NatsError as error:
            raise self._failed(error) from None
        if messages is None:
            self._give_up(f"stream {self._stream!r} sent no acknowledgement for {self._ack_timeout:g} s")
        prefix = len(self._answers.subject) - 1
        reply, valid = decimals(messages.buffer, messages.subject.start + prefix, messages.subject.end)
        valid &= reply < REPLIES
        if valid.all():
            self._answered += np.bincount(reply, minlength=REPLIES)
        if not valid.all() or (self._answered > self._asked).any():
            self._give_up("an acknowledgement came that belongs to no row that was sent")
        self._count(messages)
        self._recent.append(_Answers(messages, reply))
        self._recent_size += len(reply)
        if not self._refused:
            self._forget()

    def _count(self, messages: Messages) -> None:
        stored = int(np.count_nonzero(self._acks.stored(messages)))
        self._refused += len(messages) - stored
        self._confirmed += stored
        if not self._again:
            self._duplicates += count_duplicates(messages)
        if stored:
            self._last_stored = time.monotonic()
            self._pause = _FIRST_PAUSE
        growth = stored * (_GROWTH if self._congested else 1.0)
        self._window = min(self._window + growth, float(self._max_in_flight))

    def _forget(self) -> None:
        """Let go of rows that were answered, and of answers that are of no more use."""
        oldest, keep = self._oldest_unanswered(), 2 * int(self._window)
        while self._flying and self._flying[0][0] + len(self._flying[0][1].numbers) <= oldest:
            self._flying_bytes -= self._flying.popleft()[1].payloads.nbytes
        while self._recent_size - len(self._recent[0].reply) >= keep:
            reply = self._recent.popleft().reply
            self._recent_size -= len(reply)
            self._forgotten += np.bincount(reply, minlength=REPLIES)
        while self._subjects and self._subjects[0][0] + len(self._subjects[0][1]) <= oldest - keep:
            self._subjects.popleft()

    # Refusals

    def _settle(self) -> None:
        """Await all answers, and have what was refused as too much sent again.

        Raises:
            PublishError: a row was refused for another reason, or the server stopped answering.
        """
        in_flight = self._sent - self._oldest_unanswered()
        while self._unanswered:
            try:
                self._take_answers()
            except NatsError as error:
                if isinstance(error, ConnectionError) or all(refusal.too_many for refusal in self._refusals()):
                    raise
                break
        refusals = self._refusals()
        sent = self._recent_messages()
        found = self._find(sent, refusals)
        if not all(refusal.too_many for refusal in refusals):
            self._report(sent, refusals, found)
        if time.monotonic() - self._last_stored > self._ack_timeout:
            self._give_up(
                f"stream {self._stream!r} has refused every row for {self._ack_timeout:g} s: {refusals[0].reason}"
            )
        if found is None and not self._identified:
            self._give_up(
                f"stream {self._stream!r} refused {len(refusals)} rows ({refusals[0].reason}), and which they are "
                "cannot be told, so that they cannot be sent again; give the rows message ids, or run fewer tasks at "
                "once",
                [Remedy.MESSAGE_IDS],
            )
        # Without knowing better, every row that shares a reply subject with a refused one is sent again.
        again = np.isin(reply_of(sent), [refusal.reply for refusal in refusals]) if found is None else found
        self._confirmed += len(refusals)  # which were not counted
        for before, rows in reversed(self._flying):
            chosen = np.isin(np.arange(before, before + len(rows.numbers)), sent[again])
            if chosen.any():
                repeated = rows.take(chosen)._replace(again=rows.again or found is None)
                self._queue.appendleft(repeated)
                self._confirmed -= len(repeated.numbers)
        self._refused = 0
        self._flying.clear()
        self._flying_bytes = 0
        self._recent.clear()
        self._recent_size = 0
        self._forgotten = self._answered.copy()

        self._congested = True
        self._window = max(float(_SMALLEST_WINDOW), min(self._window, in_flight) / 2)
        self._window = min(self._window, float(self._max_in_flight))
        pause, self._pause = random.uniform(0, self._pause), min(2 * self._pause, _LONGEST_PAUSE)  # noqa: S311
        try:
            if self._connection.next(self._answers, pause) is not None:
                self._give_up("an acknowledgement came that belongs to no row that was sent")
        except NatsError as error:
            raise self._failed(error) from None

    def _recent_messages(self) -> Positions:
        """Return which messages, by how many were sent before each, the recent answers are for."""
        sent = np.arange(int(next_unanswered(self._forgotten).min()), self._sent)
        recent: Positions = sent[sent // REPLIES >= self._forgotten[reply_of(sent)]]
        return recent

    def _refusals(self) -> list[_Refusal]:
        """Return the recent refusals, in the order in which they came."""
        return [
            _Refusal(int(reply[i]), *refusal)
            for messages, reply in self._recent
            for i in np.flatnonzero(~self._acks.plain(messages)).tolist()
            if (refusal := self._acks.refusal(messages, i)) is not None
        ]

    def _find(self, sent: Positions, refusals: list[_Refusal]) -> Mask | None:
        """Tell which of the recent messages were refused; None when that cannot be told."""
        replies, orders = [], []
        duplicates = 0
        for messages, reply in self._recent:
            stored = self._acks.stored(messages)
            duplicates += count_duplicates(messages)
            replies.append(reply[stored])
            orders.append(self._acks.sequences(messages.take(stored)))
        order = np.concatenate(orders)
        if duplicates:  # their sequences are those of other rows: then answers have come in the order of the rows
            order = np.arange(len(order))
        stored_replies = np.concatenate(replies)[np.argsort(order, kind="stable")]
        return tell_apart(reply_of(sent).tolist(), stored_replies.tolist(), [refusal.reply for refusal in refusals])

    def _report(self, sent: Positions, refusals: list[_Refusal], found: Mask | None) -> NoReturn:
        """Raise what the first refused row was refused for, besides being too much."""
        reasons = [refusal.reason for refusal in refusals if not refusal.too_many]
        if found is None:
            first, last = self._row(int(sent[0]))[0], self._row(int(sent[-1]))[0]
            which = f"{len(reasons)} of the rows {first} to {last}"
        else:
            rows = [
                (self._row(message), refusal.reason)
                for message, refusal in zip(sent[found].tolist(), refusals, strict=True)
                if not refusal.too_many
            ]
            (row, subject), reasons[0] = min(rows)
            which = f"row {row} (subject {subject!r})"
        message = f"stream {self._stream!r} refused {which}: {reasons[0]}"
        if found is not None and len(reasons) > 1:
            message += f"; {len(reasons)} rows were refused in all"
        raise PublishError(f"{message}; {self._account()}")

    def _row(self, message: int) -> tuple[int, str]:
        """Return the number and the subject of the row that a message was for."""
        for before, numbers, subjects in self._subjects:
            if before <= message < before + len(numbers):
                return int(numbers[message - before]), str(subjects[message - before])
        return 0, "?"

    def _failed(self, error: NatsError) -> NatsError:
        """Return what has failed with what became of the rows."""
        return error.with_context(f"{error}; {self._account()}")

    def _give_up(self, why: str, remedies: Sequence[Remedy] = ()) -> NoReturn:
        raise PublishError(f"{why}; {self._account()}", remedies=remedies)

    def _account(self) -> str:
        """Say what became of the rows that were sent."""
        account = f"of this task's rows {self._confirmed} were stored"
        if self._unanswered:
            account += f" and {self._unanswered} were sent and not answered (they may be stored)"
        return account + ", any other was not sent"
