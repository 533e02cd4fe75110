"""Publishing to a stream with acknowledgements, a column at a time.

The server answers every message on its reply subject, and it does so much faster when it meets the same few subjects
again and again: it remembers where the last ones led. So there are only :data:`~.refusals.REPLIES` of them, which take
turns, and a window of rows is unanswered at any time. Answers are decoded as columns; only those that are not a plain
success are looked at one by one.

A stream answers in the order in which it stores, so while every answer is the one that is due, it is known which rows
are stored. A subject stands for several rows in flight: once an answer is not the one that is due, it cannot be told
which row it is for. Then nothing more is sent until all answers have come. If they come, the order was another one, or
rows were refused, and it is told which (:mod:`.refusals`). If they do not, a leader has gone with what it had taken,
whatever the next one has stored behind that; and no row counts as stored from the first answer on that was not due.

A stream that is given more than it can take refuses rows with *too many requests* (429). That is back-pressure and no
error: as in TCP the window is halved and grows again slowly, and what was refused is sent again. So are rows for which
nobody answered (503), as while a leader is elected. A row that was refused was not stored, so that is exact; where it
cannot be told which rows were refused, they are sent again only if their message ids keep the server from storing one
twice.

Answers can be lost, with a connection or with the leader that owed them. Then it is not known which rows were stored,
and all from the first answer on that is missing are sent again if they have message ids: as they are while the stream
knows the ids again (its ``duplicate_window``), and without those that the stream turns out to hold when it was longer
than that. Rows without ids cannot be settled, and the error says how many they are.

A server may come back with less than it has acknowledged. So sequences must rise, and after every reconnection and when
:meth:`Publisher.verify` is called, the stream must still have the row with the highest one (:mod:`.acknowledged`).

A row may name the last message that its subject must have (:data:`~spark_nats.protocol.headers.EXPECTED_REVISION`).
Such rows are sent so few at a time that each has a reply subject of its own, and are all awaited: then it is known
which of them the stream did not take because it has another message, and whoever gave them decides about each. A
server of its own looks at that before it looks at the message id, so a row that is sent again may conflict with itself;
a cluster looks at the message id first.

Order. Rows are stored in the order in which they were given, except where JetStream itself takes some and not those
before them: it may refuse a row and store the next one (429, 503), and a leader that goes may take rows with it while
the next leader stores those behind them. Rows are never sent while the fate of refused ones is open.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats.client.connection import Connection
from spark_nats.client.pool import Loan
from spark_nats.client.publishing import cut_into_parts
from spark_nats.client.retrying import may_pass
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    PublishError,
    Remedy,
    StreamNotFoundError,
)
from spark_nats.jetstream.acknowledged import Acknowledged
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.doubts import Doubts, state_beyond_doubt
from spark_nats.jetstream.fingerprints import SKEW
from spark_nats.jetstream.refusals import CERTAIN, MOST_IN_FLIGHT, REPLIES, in_turn, reply_of, tell_apart
from spark_nats.jetstream.stored import is_among, kept_until, known_ids, stored_ids
from spark_nats.jetstream.streams import StreamInfo, first_sequence_since, next_message, stream_info
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.bytecolumns import Mask, Positions, booleans, decimals, integers, strings, texts
from spark_nats.protocol.headers import EXPECTED_REVISION, MSG_ID, parse_block
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, Verdict, are_duplicates, count_duplicates, expecting
from spark_nats.protocol.subject_columns import SubjectMatcher

logger = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
"""Bytes of payload that may be unanswered: rows are kept until they are, in case they have to be sent again."""
APART = 384
"""Rows in a row of which no two have the same reply subject, see :mod:`.refusals`."""
_FIRST_WINDOW = 2048  # rows; it doubles while the server takes all that is sent
_SMALLEST_WINDOW = 16  # rows
_GROWTH = 1 / 16  # of the window for each window that is stored, once there were too many requests
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # seconds after too many requests
_FIRST_ABSENCE, _LONGEST_ABSENCE = 0.25, 2.0  # seconds after nobody has answered
LOST_AFTER = 5.0
"""Seconds without any answer after which those that are owed are taken for lost, if rows can be sent again."""
LOST_ASTRAY = 1.0
"""The same once an answer was not due: then what was sent before its row is decided, or lost."""
_SHORTEST_PATIENCE = 0.1  # seconds in which rows that were just sent again may be answered


_MOST_CONFUSIONS = 100  # after which somebody means harm
_FINAL = (Verdict.NO, Verdict.CONFLICT)


class _Rows(NamedTuple):
    """Rows that are to be sent or were sent together.

    Attributes:
        numbers: as they were given.
        ids: their message ids; None unless every row has one.
        since: when they were first sent; 0 before.
        again: whether they may be stored already, by being sent before.
        conditional: whether they name the last message that their subject must have.
    """

    numbers: Positions
    subjects: pa.Array
    payloads: pa.Array
    headers: pa.Array | None
    ids: pa.Array | None
    since: float = 0.0
    again: bool = False
    conditional: bool = False

    def take(self, chosen: slice | Mask) -> _Rows:
        """Return the chosen ones."""

        def part(column: pa.Array | None) -> pa.Array | None:
            if column is None:
                return None
            return column[chosen] if isinstance(chosen, slice) else column.filter(booleans(chosen))

        return self._replace(
            numbers=self.numbers[chosen],
            subjects=part(self.subjects),
            payloads=part(self.payloads),
            headers=part(self.headers),
            ids=part(self.ids),
        )


class _Answers(NamedTuple):
    """Answers as they arrived.

    Attributes:
        messages: the answers.
        reply: the number of the reply subject that each came on.
        stored: whether the stream has its row.
        duplicates: how many of these rows it had before they were first sent, unless they were counted.
    """

    messages: Messages
    reply: Positions
    stored: Mask
    duplicates: int


class _Refusal(NamedTuple):
    """Why the message that was sent with this reply subject was not stored."""

    reply: int
    reason: str
    verdict: Verdict


class Conflict(NamedTuple):
    """A row that was not stored, because its subject has another last message than it names.

    Attributes:
        row: its number.
        subject: where it was to be stored.
        header: its header block.
        reason: the server's words.
    """

    row: int
    subject: str
    header: bytes
    reason: str


class Resolution(NamedTuple):
    """What becomes of such a row.

    Attributes:
        stored: whether the stream has it by an earlier attempt.
        header: with what header block it is to be sent again; None when it is not.
    """

    stored: bool = False
    header: bytes | None = None


class Publisher:
    """Publishes rows to one stream. Rows are numbered from 0 in the order they are given.

    Args:
        connection: carries the messages.
        stream: the stream's name; an answer that does not name it is not an acknowledgement.
        max_in_flight: most rows that are sent and not acknowledged; not more than 32,767 are.
        ack_timeout: seconds without any row being stored after which the server is given up.
        loan: gives other connections when this one, the loan's, is lost; None to take that for an error.
        api_prefix: first tokens of the subjects of JetStream's API.
        began: the stream as it was before the first row was sent; without it, a connection that is lost for longer
            than the stream knows message ids is an error.
        resolve: decides about a row whose subject has another last message than it names; that is an error when None.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        max_in_flight: int,
        ack_timeout: float,
        *,
        loan: Loan | None = None,
        api_prefix: str = API_PREFIX,
        began: StreamInfo | None = None,
        resolve: Callable[[JetStream, Conflict], Resolution] | None = None,
    ) -> None:
        self._stream = stream
        self._max_in_flight = min(max_in_flight, MOST_IN_FLIGHT)
        self._ack_timeout = ack_timeout
        self._loan = loan
        self._api_prefix = api_prefix
        self._began = began
        self._resolve = resolve
        self._acks = PublishAcks(stream)
        self._doubts = Doubts(ack_timeout)

        self._window = float(min(_FIRST_WINDOW, self._max_in_flight))
        self._congested = False  # there were too many requests before
        self._pause = _FIRST_PAUSE
        self._absence = _FIRST_ABSENCE
        self._last_stored = time.monotonic()  # or since when there is something to be stored
        self._waits_for_ids = False  # that was said
        self._confusions = 0  # how often there were more answers than messages

        self._acknowledged = Acknowledged(self._acks)
        self._last: tuple[_Rows, int] | None = None  # the row with the highest sequence, if it is known
        self._fallen: int | None = None  # a sequence that was acknowledged and was not the highest
        self._leader = began.leader if began is not None else None  # of which it was known that it has that row
        self._all_ids = True  # every row has one

        self._given = 0  # rows
        self._queue: deque[_Rows] = deque()  # to be sent
        self._again = False  # what is in flight may be stored already
        self._confirmed = 0
        self._skipped = 0  # rows that are to be stored no more
        self._duplicates = 0
        self._board(connection)

    def _board(self, connection: Connection) -> None:
        """Begin to use a connection, or the same one with other reply subjects, so that late answers do not count."""
        inbox = connection.new_inbox()
        self._answers = connection.subscribe(f"{inbox}.*")
        self._replies = texts([f"{inbox}.{i}" for i in range(REPLIES)])
        self._connection = connection
        self._sent = 0  # messages: a row that is sent again is another one
        self._refused = 0  # messages of which it was not told which they are
        self._settled = 0  # messages from the first on that are stored for certain
        self._astray = False  # an answer has come that was not due, so that no more of them are told
        self._confused = False  # there are more answers than messages
        # What is behind those: rows, with how many messages were sent before them, and answers.
        self._flying: deque[tuple[int, _Rows]] = deque()
        self._flying_bytes = 0
        self._recent: deque[_Answers] = deque()
        self._recent_size = 0

    @property
    def confirmed(self) -> int:
        """How many rows the stream has by the server's acknowledgements."""
        return self._confirmed

    @property
    def skipped(self) -> int:
        """How many rows were left out because their subjects had other last messages than they named."""
        return self._skipped

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
        ids: pa.Array | None = None,
        conditional: bool = False,
    ) -> None:
        """Send rows, which must be valid; returns when the last of them is sent, not yet acknowledged.

        Args:
            subjects: string column without null.
            payloads: string or binary column without null.
            headers: binary column of header blocks, null where a row has none.
            replies: must be None, since acknowledgements come to the reply subject.
            ids: the message ids that the headers hold, null where a row has none. Rows are sent again only where all
                of them have one.
            conditional: whether rows name the last message that their subject must have.

        Raises:
            ValueError: there are replies.
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed; the message says how many rows were acknowledged before.
        """
        if replies is not None:
            raise ValueError("a message to a stream has no reply subject, since its acknowledgement comes there")
        if not len(subjects):
            return
        if self._confirmed + self._skipped == self._given:  # maybe long since
            self._last_stored = time.monotonic()
        numbers = np.arange(self._given, self._given + len(subjects))
        self._given += len(subjects)
        ids = None if ids is None or ids.null_count else ids
        self._all_ids &= ids is not None
        self._queue.append(_Rows(numbers, subjects, payloads, headers, ids, conditional=conditional))
        self._persist(self._send_queue)

    def drain(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed.
        """
        self._persist(self._send_rest)

    def verify(self) -> None:
        """Check that the stream still has what it has acknowledged, by one request; to be called behind :meth:`drain`.

        Raises:
            PublishError: it has lost rows.
            NatsError: the connection failed.
        """
        self._persist(self._verify)

    def close(self) -> None:
        """End the subscription to acknowledgements."""
        self._connection.unsubscribe(self._answers)

    # Sending

    def _send_queue(self) -> None:
        """Send what is to be sent, as fast as the window allows."""
        self._take_what_has_come()  # and answer PING: rows may come slowly
        if self._fallen is not None:
            self._verify()
        while self._queue:
            if self._loan is not None and self._connection.retiring:
                self._move(self._loan)
            part = self._cut_head()
            while self._queue[0] is part and not self._has_room_for(part):
                self._go_on()
            if self._queue[0] is part:  # else there are rows before it that are to be sent again
                self._queue.popleft()
                self._send(part)

    def _send_rest(self) -> None:
        """Send what is to be sent, and wait for all answers."""
        self._send_queue()
        while self._open:
            self._go_on()
            self._send_queue()

    def _cut_head(self) -> _Rows:
        """Cut what is sent next off the head of the queue, where it stays."""
        rows = self._queue.popleft()
        window = int(self._window)
        head = rows.take(slice(min(APART, window) if rows.conditional else max(1, window // 4)))
        part = head.take(next(cut_into_parts(head.payloads, head.headers, window)))
        if len(part.numbers) < len(rows.numbers):
            self._queue.appendleft(rows.take(slice(len(part.numbers), None)))
        self._queue.appendleft(part)
        return part

    def _has_room_for(self, part: _Rows) -> bool:
        if self._astray or not self._unanswered:
            return not self._astray
        if part.conditional or self._flying[-1][1].conditional:
            return False
        return (
            self._unanswered + len(part.numbers) <= self._window
            and self._flying_bytes + part.payloads.nbytes <= MOST_BYTES
            and part.again == self._again
        )

    def _send(self, part: _Rows) -> None:
        if not part.since:
            part = part._replace(since=time.monotonic())
        self._again = part.again
        sent = np.arange(self._sent, self._sent + len(part.numbers))
        self._flying.append((self._sent, part))
        self._flying_bytes += part.payloads.nbytes
        self._sent += len(part.numbers)
        replies = self._replies.take(integers(reply_of(sent)))
        self._connection.publish_columns(part.subjects, part.payloads, part.headers, replies)

    # When a connection or an answer is lost

    def _persist(self, work: Callable[[], None]) -> None:
        """Do what sends and receives; when a connection is lost meanwhile, over another one.

        Raises:
            NatsError: that did not help. The message says what became of the rows.
        """
        while True:
            try:
                work()
                return
            except PublishError:
                raise
            except NatsError as error:
                self._start_over(error)

    def _start_over(self, error: NatsError) -> None:
        """Go on over another connection, with what was not acknowledged over the lost one."""
        with contextlib.suppress(NatsError):
            while self._answers.waits:  # what had come before the connection was lost
                self._take_answers()
        lost = self._unsettled()
        while True:
            if self._loan is None or any(rows.ids is None for rows in lost):
                failed = self._failed(error)
                if lost and may_pass(error, known=True):
                    failed.remedies = (*failed.remedies, Remedy.MESSAGE_IDS)
                raise failed from None
            try:
                connection = self._loan.renew(error)
            except NatsError as lasting:
                raise self._failed(lasting) from None
            try:
                self._go_aboard(connection, lost, self._longest_patience)
                return
            except PublishError:
                raise
            except NatsError as another:
                error = another

    def _send_again(self) -> None:
        """Send rows of which it is not known whether they are stored again, over the same connection."""
        lost, since = self._unsettled(), self._last_stored
        logger.info(
            "stream %s: it is not known which of %d rows are stored, and they are sent again",
            self._stream,
            sum(len(rows.numbers) for rows in lost),
        )
        self._connection.unsubscribe(self._answers)
        self._go_aboard(self._connection, lost, self._ack_timeout)
        self._last_stored = since  # nothing was

    def _move(self, loan: Loan) -> None:
        """Go on over another connection, because the server of this one shuts down."""
        while self._open:
            self._go_on()
        self._board(loan.move())
        self._leader = None  # it may shut down too

    def _go_aboard(self, connection: Connection, lost: list[_Rows], patience: float) -> None:
        """Begin to use a connection, first of all for rows that may be stored or not."""
        before = sum(len(rows.numbers) for rows in lost)
        if lost or self._acknowledged.highest:
            js = JetStream(connection, self._api_prefix)
            info = self._await_stream(js, patience)
            self._look_back(js, info, closely=True)
            if lost and not info.knows_again(time.monotonic() - min(rows.since for rows in lost)):
                lost = self._without_stored(js, info, lost)
        self._confirmed += before - sum(len(rows.numbers) for rows in lost)
        self._confirmed -= self._recent_size - self._refused if self._astray else min(self._recent_size, CERTAIN)
        self._board(connection)
        self._queue.extendleft(reversed([rows._replace(again=True) for rows in lost]))
        self._last_stored = time.monotonic()

    def _unsettled(self) -> list[_Rows]:
        """Return the rows that were sent and are not known to be stored, in their order."""
        first = self._settled + (0 if self._astray else max(0, self._recent_size - CERTAIN))
        rest = [rows.take(slice(max(0, first - before), None)) for before, rows in self._flying]
        return [rows for rows in rest if len(rows.numbers)]

    def _await_stream(self, js: JetStream, patience: float) -> StreamInfo:
        """Return the stream's state, once its leader says it.

        Args:
            js: where.
            patience: seconds to wait for that.

        Raises:
            PublishError: it does not exist, or is another one.
            NatsError: the connection was lost.
        """
        deadline = time.monotonic() + patience
        pause = _FIRST_ABSENCE
        while True:
            try:
                info = self._state(js)
            except StreamNotFoundError as error:
                self._give_up(str(error), error.remedies)
            except (JetStreamError, NatsTimeoutError) as error:
                if not may_pass(error, known=True):
                    raise self._failed(error) from None
                if time.monotonic() > deadline:
                    self._give_up(self._absence_since(str(error)))
                js.connection.flush()
                js.connection.wait(pause)
                pause = min(2 * pause, _LONGEST_ABSENCE)
            else:
                if self._began is not None and info.created != self._began.created:
                    self._give_up(f"stream {self._stream!r} was deleted and made again at {info.created}")
                return info

    def _state(self, js: JetStream) -> StreamInfo:
        """Ask for the stream's state. That there is no such stream has to be said for a while in a cluster.

        Raises:
            StreamNotFoundError: there is none.
            NatsError: the stream has no leader, or the request failed.
        """
        try:
            info = stream_info(js, self._stream)
        except StreamNotFoundError as error:
            self._doubts.confirm(js, self._stream, str(error))
            raise
        self._doubts.settle(self._stream)
        return info

    def _without_stored(self, js: JetStream, info: StreamInfo, lost: list[_Rows]) -> list[_Rows]:
        """Leave out rows that the stream holds, since it does not know their message ids any more.

        A bucket does not hold what was stored for long. There rows that expect nothing are put again, and the others
        conflict with themselves, which is resolved.
        """
        if self._resolve is not None:
            return lost
        if self._began is None:
            self._give_up(
                f"the connection was lost for longer than stream {self._stream!r} knows message ids again (its "
                f"duplicate_window is {info.duplicate_window:g} s)"
            )
        info = state_beyond_doubt(js, info)
        found = stored_ids(js, info, kept_until(js, self._began, info))
        if found.removed:
            self._give_up(f"whether rows that were not acknowledged are stored cannot be told, since {found.removed}")
        kept = [(rows, ~is_among(rows.ids, found.ids)) for rows in lost]
        return [rows.take(chosen) for rows, chosen in kept if chosen.any()]

    # What was acknowledged and is gone

    def _verify(self) -> None:
        """Check that the stream still has the row that it has acknowledged last, if anything makes that doubtful."""
        if self._acknowledged.highest:
            js = JetStream(self._connection, self._api_prefix)
            with contextlib.suppress(PermissionsError):  # a user who may write may not be allowed to ask
                info = self._await_stream(js, self._longest_patience)
                self._look_back(js, info, closely=self._fallen is not None or info.leader != self._leader)

    @property
    def _longest_patience(self) -> float:
        """Seconds to wait for a stream over a connection that was just made."""
        return max(self._ack_timeout, self._loan.retries.timeout if self._loan is not None else 0.0)

    def _look_back(self, js: JetStream, info: StreamInfo, closely: bool) -> None:
        """Check that the stream still has what it has acknowledged.

        Args:
            js: where.
            info: its state.
            closely: whether another message may have taken the sequence of the last row.

        Raises:
            PublishError: it has lost rows.
            NatsError: a request failed.
        """
        if not self._has_last(js, info, closely):
            info = state_beyond_doubt(js, info)
            if not self._has_last(js, info, closely=True):
                self._report_lost(js)
        self._fallen = None
        if closely:
            self._leader = info.leader

    def _has_last(self, js: JetStream, info: StreamInfo, closely: bool) -> bool:
        """Tell whether the stream has the row that it has acknowledged with the highest sequence.

        Where it has removed it meanwhile, or does not let us ask, that is told by the sequences.
        """
        last = self._acknowledged.highest
        if info.last_sequence < last:
            return False
        if not closely or self._last is None or info.config.get("allow_msg_counter"):
            return self._fallen is None
        try:
            there = next_message(js, self._stream, last, (">",))
        except (PermissionsError, JetStreamUnavailableError):
            there = None
        if there is None or there.sequence != last:
            return self._fallen is None
        rows, i = self._last
        if rows.ids is None:
            return there.payload == _bytes(rows.payloads[i])
        ids = parse_block(there.header).get(MSG_ID) or [""]
        # Where answers are missing, the one behind them may be of a later row than it seems.
        return any(pc.index(each, ids[0]).as_py() >= 0 for each in (rows.ids[i : i + 1], *self._unsettled_ids()))

    def _unsettled_ids(self) -> list[pa.Array]:
        return [rows.ids for rows in self._unsettled() if rows.ids is not None]

    def _report_lost(self, js: JetStream) -> NoReturn:
        """Raise that the stream has lost rows, and how many.

        What it has got since is told by its time, by the clock of its leader.
        """
        ago = time.monotonic() - self._acknowledged.since
        info = stream_info(js, self._stream)
        last, end = self._acknowledged.highest, info.last_sequence + 1
        first = None if end > last else end
        if info.time:
            since = info.time - round(ago * 1e9) + (SKEW if js.connection.info.cluster else 0)
            with contextlib.suppress(PermissionsError, JetStreamUnavailableError):
                first = first_sequence_since(js, self._stream, since, info.first_sequence, end)
        if self._fallen is not None:
            first = min(self._fallen, first or end)
        least, most = self._acknowledged.lost(first or 0, self._confirmed)
        exact = first is not None and least == most
        if first is None:
            now = "has another message there"
        else:
            now = f"has other messages from sequence {first} on" if first < end else f"ends at {end - 1}"
        self._confirmed -= most
        then = (
            "the next attempt of the task, or the micro-batch when it is run again, stores them by their message ids"
            if self._all_ids
            else "they have no message ids, so rows that are written again are stored twice if they are not lost"
        )
        self._give_up(
            f"stream {self._stream!r} has lost {'' if exact else 'at most '}{most} rows that it had "
            f"acknowledged to this task: it ended at sequence {last}, and now {now} (has a server come back with an "
            f"older copy of its store?); {then}",
            [] if self._all_ids else [Remedy.MESSAGE_IDS],
        )

    # Answers

    @property
    def _unanswered(self) -> int:
        """How many messages were sent and not answered."""
        return max(0, self._sent - self._settled - self._recent_size)

    @property
    def _open(self) -> bool:
        """Whether it is not known of all messages yet what became of them."""
        return bool(self._unanswered or self._refused or self._confused)

    def _go_on(self) -> None:
        """Take what answers there are; when rows were refused, all of them."""
        if not self._refused and not self._confused:
            self._take_answers()
        if self._confused:
            self._dispel()
        elif self._refused:
            self._settle()
        if self._fallen is not None:
            self._verify()

    def _dispel(self) -> None:
        """Have rows sent again whose answers cannot be told from others, which are not of their messages alone.

        So it is where a leader was stopped for a while: it may take the same messages as the next one.
        """
        self._confusions += 1
        if self._confusions > _MOST_CONFUSIONS or self._loan is None or any(r.ids is None for r in self._unsettled()):
            self._confirmed -= self._recent_size - self._refused
            self._recent_size = self._refused = 0
            self._give_up("an acknowledgement came that belongs to no row that was sent")
        self._send_again()

    def _take_what_has_come(self) -> None:
        """Receive without waiting."""
        messages = self._connection.next(self._answers, 0.0)
        if messages is not None:
            self._note(messages)

    def _take_answers(self) -> None:
        """Wait for answers; send the rows again if none comes.

        Raises:
            PublishError: none has come in time, or one that nobody owes us.
            NatsError: the connection was lost.
        """
        messages = self._connection.next(self._answers, self._patience())
        if messages is not None:
            self._note(messages)
            return
        if time.monotonic() - self._last_stored >= self._ack_timeout:
            self._give_up(self._explain_silence())
        if self._loan is not None and all(rows.ids is not None for rows in self._unsettled()):
            self._send_again()

    def _patience(self) -> float:
        """Return how many seconds to wait for answers."""
        left = self._last_stored + self._ack_timeout - time.monotonic()
        if self._loan is None or any(rows.ids is None for _, rows in self._flying):
            return max(_SHORTEST_PATIENCE, left)
        return max(_SHORTEST_PATIENCE, min(left, LOST_ASTRAY if self._astray else LOST_AFTER))

    def _note(self, messages: Messages) -> None:
        """Take note of answers."""
        prefix = len(self._answers.subject) - 1
        reply, valid = decimals(messages.buffer, messages.subject.start + prefix, messages.subject.end)
        valid &= reply < REPLIES
        stored = self._acks.stored(messages)
        due = self._settled + self._recent_size
        duplicates = are_duplicates(messages)
        counted = 0 if self._again else int(np.count_nonzero(duplicates))
        if valid.all():
            self._astray |= due + len(reply) > self._sent or not stored.all() or not in_turn(due, reply)
            before = self._acknowledged.highest
            if self._astray:
                self._acknowledged.note(messages.take(stored))
            else:
                self._duplicates, counted = self._duplicates + counted, 0
                self._rise(messages, duplicates, due)
            if self._acknowledged.highest > before:
                message = self._acknowledged.message
                self._last = None if message is None else self._flying_row(message)
        self._recent.append(_Answers(messages, reply, stored, counted))
        self._recent_size += len(reply)
        if not valid.all():
            self._give_up("an acknowledgement came that belongs to no row that was sent")
        self._count(messages, int(np.count_nonzero(stored)))
        self._confused |= self._astray and not self._are_owed()
        if not self._refused and not self._confused:
            self._forget()

    def _rise(self, messages: Messages, duplicates: Mask, due: int) -> None:
        """See that the sequences of answers, which have come in the order of their rows, rise."""
        fallen = self._acknowledged.rises(messages, duplicates, self._again, due)
        self._fallen = fallen if self._fallen is None else self._fallen

    def _are_owed(self) -> bool:
        """Tell whether each answer came on the reply subject of a message that has no other one.

        Of two answers to one message that is stored, both name the same sequence.
        """
        owed = np.bincount(reply_of(np.arange(self._settled, self._sent)), minlength=REPLIES)
        came = np.bincount(np.concatenate([answers.reply for answers in self._recent]), minlength=REPLIES)
        return bool((came <= owed).all()) and (bool(self._unanswered) or self._are_of_different_rows())

    def _are_of_different_rows(self) -> bool:
        """Tell whether no two of the answers say of the same row that it is stored."""
        found = np.concatenate([self._acks.sequences(each.messages.take(each.stored)) for each in self._recent])
        twice = len(found) - len(np.unique(found))
        if not twice:
            return True
        ids = [rows.ids for rows in self._unsettled() if rows.ids is not None]
        return bool(ids) and twice <= sum(map(len, ids)) - len(pc.unique(pa.concat_arrays(ids)))

    def _count(self, messages: Messages, stored: int) -> None:
        self._refused += len(messages) - stored
        self._confirmed += stored
        if stored:
            self._last_stored = time.monotonic()
            self._pause = _FIRST_PAUSE
            self._absence = _FIRST_ABSENCE
            if self._loan:
                self._loan.works()
        growth = stored * (_GROWTH if self._congested else 1.0)
        self._window = min(self._window + growth, float(self._max_in_flight))

    def _forget(self) -> None:
        """Let go of rows that are stored for certain, and of answers that say so."""
        if not self._unanswered:  # then the order in which they came is of no concern any more
            self._forget_all()
        elif not self._astray:
            while self._recent_size - len(self._recent[0].reply) >= CERTAIN:
                answers = self._recent.popleft()
                self._recent_size -= len(answers.reply)
                self._settled += len(answers.reply)
            while self._flying[0][0] + len(self._flying[0][1].numbers) <= self._settled:
                self._flying_bytes -= self._flying.popleft()[1].payloads.nbytes

    def _forget_all(self) -> None:
        """Let go of all rows that were sent and of all answers."""
        self._duplicates += sum(answers.duplicates for answers in self._recent)
        self._refused = 0
        self._settled = self._sent
        self._astray = self._confused = False
        self._flying.clear()
        self._flying_bytes = 0
        self._recent.clear()
        self._recent_size = 0

    # Refusals

    def _settle(self) -> None:
        """Await all answers, and have what the stream did not take for now sent again.

        Raises:
            PublishError: a row was refused for good, or the server stopped answering.
            NatsError: the connection was lost.
        """
        in_flight = self._unanswered + self._refused
        while self._unanswered and not any(refusal.verdict is Verdict.NO for refusal in self._refusals()):
            self._take_answers()
            if not self._refused or self._confused:
                return  # all of them are to be sent again
        with contextlib.suppress(NatsError):  # a row that is refused for good is to be named, if that is possible
            while self._unanswered and (messages := self._connection.next(self._answers, LOST_ASTRAY)):
                self._note(messages)
        sent = np.arange(self._settled, self._sent)
        found, refusals = self._find(sent, self._refusals())
        refusals = self._judge_absence(sent, found, refusals)
        resolved: dict[int, Resolution] = {}
        if found is not None and not any(refusal.verdict is Verdict.NO for refusal in refusals):
            resolved, refusals = self._resolve_conflicts(sent[found], refusals)
            self._last_stored = time.monotonic() if resolved else self._last_stored
        if any(refusal.verdict in _FINAL for refusal in refusals):
            self._report(sent, refusals, found)
        away = any(refusal.verdict is Verdict.AWAY for refusal in refusals)
        in_process = any(refusal.verdict is Verdict.IN_PROCESS for refusal in refusals)
        waited = time.monotonic() - self._last_stored
        if waited > self._ack_timeout:
            patience = self._ack_timeout + (self._time_to_forget() if in_process else 0.0)
            if away:
                self._give_up(self._explain_absence(sent, found, refusals))
            if waited > patience:
                self._give_up(f"stream {self._stream!r} has refused every row for {patience:g} s: {refusals[0].reason}")
        if found is None and any(rows.ids is None for _, rows in self._flying):
            self._give_up(
                f"stream {self._stream!r} refused {len(refusals)} rows ({refusals[0].reason}), and which they are "
                "cannot be told, so that they cannot be sent again; give the rows message ids, or run fewer tasks at "
                "once",
                [Remedy.MESSAGE_IDS],
            )
        if found is None:
            self._send_again()
        else:
            self._send_refused(sent[found], resolved)

        if away or in_process:
            if self._absence == _FIRST_ABSENCE:
                logger.info("stream %s does not take rows at the moment: %s", self._stream, refusals[0].reason)
            self._window = float(min(_SMALLEST_WINDOW, self._max_in_flight))
            pause, self._absence = self._absence, min(2 * self._absence, _LONGEST_ABSENCE)
        elif len(resolved) == len(refusals):
            return
        else:
            self._congested = True
            self._window = max(float(_SMALLEST_WINDOW), min(self._window, in_flight) / 2)
            self._window = min(self._window, float(self._max_in_flight))
            pause, self._pause = random.uniform(0, self._pause), min(2 * self._pause, _LONGEST_PAUSE)  # noqa: S311
        if (messages := self._connection.next(self._answers, pause)) is not None:
            self._note(messages)

    def _send_refused(self, messages: Positions, resolved: dict[int, Resolution]) -> None:
        """Have rows sent again that were refused, unless it was decided otherwise; all others are stored."""
        again = messages[~np.isin(messages, [message for message, each in resolved.items() if each.header is None])]
        for before, rows in reversed(self._flying):
            numbers = np.arange(before, before + len(rows.numbers))
            chosen = np.isin(numbers, again)
            if chosen.any():
                repeated = rows.take(chosen)
                headers = _exchanged(repeated.headers, numbers[chosen], resolved)
                self._queue.appendleft(repeated._replace(headers=headers))
        skipped = sum(each.header is None and not each.stored for each in resolved.values())
        self._confirmed += len(messages) - len(again) - skipped  # none of them was counted
        self._skipped += skipped
        self._forget_all()

    def _time_to_forget(self) -> float:
        """Return after how many seconds the stream forgets a message id, whatever became of the message."""
        window = self._began.duplicate_window if self._began is not None else 0.0
        if not self._waits_for_ids:
            self._waits_for_ids = True
            logger.warning(
                "stream %s says that message ids of rows are in process, which it has not stored for %g s; waiting "
                "until it forgets them, after its duplicate_window of %g s",
                self._stream,
                self._ack_timeout,
                window,
            )
        return window

    def _explain_silence(self) -> str:
        """Say why no acknowledgement has come, as far as the server says."""
        silence = f"stream {self._stream!r} sent no acknowledgement for {self._ack_timeout:g} s"
        try:
            stream_info(JetStream(self._connection, self._api_prefix), self._stream)
        except StreamNotFoundError as error:
            return f"{silence}: {error}"
        except JetStreamError as error:
            return self._absence_since(str(error))
        except NatsTimeoutError as error:
            return f"{silence}: {error}"
        maybe = "it cannot store, as when a disk is full; see the server's log"
        if self._api_prefix != API_PREFIX:
            subject = str(self._flying[0][1].subjects[0])
            maybe = f"{subject!r} does not lead to it, as when that is not imported from its account; or {maybe}"
        return f"{silence}, though it is there: maybe {maybe}"

    def _explain_absence(self, sent: Positions, found: Mask | None, refusals: list[_Refusal]) -> str:
        """Say why nobody answers for rows, as far as the server says."""
        absence = self._absence_since("nobody answers, 503")
        try:
            self._state(JetStream(self._connection, self._api_prefix))
        except (JetStreamError, NatsTimeoutError):
            return absence
        away = [i for i, refusal in enumerate(refusals) if refusal.verdict is Verdict.AWAY]
        subject = repr(self._row(int(sent[found][away[0]]))[1]) if found is not None else "subjects of this task"
        return (
            f"stream {self._stream!r} is there and has a leader, but for {self._ack_timeout:g} s nobody answers on "
            f"{subject}, as when that is not imported from its account"
        )

    def _absence_since(self, reason: str) -> str:
        return (
            f"stream {self._stream!r} has no leader, or JetStream is not ready, or disabled, as when a disk is full, "
            f"for {self._ack_timeout:g} s ({reason}); see the server's log"
        )

    def _resolve_conflicts(
        self, messages: Positions, refusals: list[_Refusal]
    ) -> tuple[dict[int, Resolution], list[_Refusal]]:
        """Decide about rows whose subjects have other last messages than they name.

        Args:
            messages: which were refused, by how many were sent before each.
            refusals: why, in the same order.

        Returns:
            What becomes of which message, and the refusals: of what has been decided none is a conflict any more.

        Raises:
            PublishError: one of the rows is an error.
            NatsError: the connection was lost.
        """
        if not any(refusal.verdict is Verdict.CONFLICT for refusal in refusals):
            return {}, refusals
        js = JetStream(self._connection, self._api_prefix)
        conflicts = [i for i, refusal in enumerate(refusals) if refusal.verdict is Verdict.CONFLICT]
        places = [self._flying_row(int(messages[i])) for i in conflicts]
        rows = [sent.take(slice(i, i + 1)) for sent, i in places]
        resolved, judged = {}, list(refusals)
        for i, row, is_known in zip(conflicts, rows, self._known(js, rows).tolist(), strict=True):
            resolution = None
            if is_known:
                resolution = Resolution(stored=True)
            elif self._resolve is not None:
                conflict = Conflict(int(row.numbers[0]), str(row.subjects[0]), _header(row), judged[i].reason)
                try:
                    resolution = self._resolve(js, conflict)
                except PublishError as error:
                    raise self._failed(error) from None
            if resolution is None:
                judged[i] = judged[i]._replace(reason=_conflict(row, judged[i].reason))
            elif resolution.header == _header(row):  # nothing is settled by that: it has to wait
                judged[i] = judged[i]._replace(verdict=Verdict.TOO_MANY)
            else:
                self._duplicates += resolution.stored and not row.again
                resolved[int(messages[i])] = resolution
                judged[i] = judged[i]._replace(verdict=Verdict.RESOLVED)
        return resolved, judged

    def _known(self, js: JetStream, rows: list[_Rows]) -> Mask:
        """Tell which of these rows a stream with one replica has stored, by their message ids."""
        if any(row.ids is None for row in rows) or self._state(js).replicas > 1:
            return np.zeros(len(rows), np.bool_)
        subjects = pa.concat_arrays([row.subjects for row in rows])
        return known_ids(self._connection, self._stream, subjects, pa.concat_arrays([row.ids for row in rows]))

    def _flying_row(self, message: int) -> tuple[_Rows, int]:
        """Return which row of those that were sent together a message was for; it is not known to be stored."""
        before, rows = next(each for each in self._flying if each[0] <= message < each[0] + len(each[1].numbers))
        return rows, message - before

    def _judge_absence(self, sent: Positions, found: Mask | None, refusals: list[_Refusal]) -> list[_Refusal]:
        """Return the refusals; where nobody answered because no stream listens there, with that verdict."""
        if not any(refusal.verdict is Verdict.AWAY for refusal in refusals):
            return refusals
        try:
            info = self._state(JetStream(self._connection, self._api_prefix))
        except StreamNotFoundError as error:
            return [
                r._replace(reason=str(error), verdict=Verdict.NO) if r.verdict is Verdict.AWAY else r for r in refusals
            ]
        except (JetStreamError, NatsTimeoutError) as error:
            if not may_pass(error, known=True):
                raise
            return refusals
        if found is None:  # any row with the same reply subject may be meant
            number = reply_of(sent)
            rows = [sent[number == refusal.reply] for refusal in refusals]
        else:
            rows = [np.array([message]) for message in sent[found].tolist()]
        matcher, mapped = SubjectMatcher(info.subjects), f"{self._api_prefix}."  # as a domain maps the keys of buckets
        return [
            refusal._replace(verdict=Verdict.NO)
            if refusal.verdict is Verdict.AWAY
            and not matcher.match(texts([self._row(m)[1].removeprefix(mapped) for m in messages.tolist()])).any()
            else refusal
            for refusal, messages in zip(refusals, rows, strict=True)
        ]

    def _refusals(self) -> list[_Refusal]:
        """Return the recent refusals, in the order in which they came."""
        return [
            _Refusal(int(reply[i]), *refusal)
            for messages, reply, *_ in self._recent
            for i in np.flatnonzero(~self._acks.plain(messages)).tolist()
            if (refusal := self._acks.refusal(messages, i)) is not None
        ]

    def _find(self, sent: Positions, refusals: list[_Refusal]) -> tuple[Mask | None, list[_Refusal]]:
        """Tell which of the recent messages were refused; None when that cannot be told.

        Returns:
            That, and the refusals, in the order of the messages if it can be told.
        """
        numbers = reply_of(sent)
        if len(np.unique(numbers)) == len(numbers):
            place = {reply: i for i, reply in enumerate(numbers.tolist())}
            found = np.isin(numbers, [refusal.reply for refusal in refusals])
            return found, sorted(refusals, key=lambda refusal: place[refusal.reply])
        replies, orders = [], []
        duplicates = 0
        for messages, reply, stored, _ in self._recent:
            duplicates += count_duplicates(messages)
            replies.append(reply[stored])
            orders.append(self._acks.sequences(messages.take(stored)))
        order = np.concatenate(orders)
        if duplicates:  # their sequences are those of other rows: then answers have come in the order of the rows
            order = np.arange(len(order))
        stored_replies = np.concatenate(replies)[np.argsort(order, kind="stable")]
        return tell_apart(numbers.tolist(), stored_replies.tolist(), [refusal.reply for refusal in refusals]), refusals

    def _report(self, sent: Positions, refusals: list[_Refusal], found: Mask | None) -> NoReturn:
        """Raise what the first row was refused for that is refused for good."""
        reasons = [refusal.reason for refusal in refusals if refusal.verdict in _FINAL]
        if found is None:
            first, last = self._row(int(sent[0]))[0], self._row(int(sent[-1]))[0]
            which = f"{len(reasons)} of the rows {first} to {last}"
        else:
            rows = [
                (self._row(message), refusal.reason)
                for message, refusal in zip(sent[found].tolist(), refusals, strict=True)
                if refusal.verdict in _FINAL
            ]
            (row, subject), reasons[0] = min(rows)
            which = f"row {row} (subject {subject!r})"
        message = f"stream {self._stream!r} refused {which}: {reasons[0]}"
        if found is not None and len(reasons) > 1:
            message += f"; {len(reasons)} rows were refused in all"
        raise PublishError(f"{message}; {self._account()}")

    def _row(self, message: int) -> tuple[int, str]:
        """Return the number and the subject of the row that a message was for."""
        rows, i = self._flying_row(message)
        return int(rows.numbers[i]), str(rows.subjects[i])

    def _failed(self, error: NatsError) -> NatsError:
        """Return what has failed with what became of the rows."""
        return error.with_context(f"{error}; {self._account()}")

    def _give_up(self, why: str, remedies: Sequence[Remedy] = ()) -> NoReturn:
        raise PublishError(f"{why}; {self._account()}", remedies=remedies)

    def _account(self) -> str:
        """Say what became of the rows that were sent."""
        account = f"of this task's rows {self._confirmed} were stored"
        if self._skipped:
            account += f", {self._skipped} were skipped for their conflicts"
        if self._unanswered:
            account += f" and {self._unanswered} were sent and not answered (they may be stored)"
        return account + ", no other one was stored"


def _bytes(payload: pa.Scalar) -> bytes:
    value = payload.as_py()
    return value.encode() if isinstance(value, str) else bytes(value)


def _header(row: _Rows) -> bytes:
    """Return the header block of one row; empty when it has none."""
    return row.headers[0].as_py() or b"" if row.headers is not None else b""


def _conflict(row: _Rows, reason: str) -> str:
    """Say what a row expected of its subject's last message, where it did."""
    expected = parse_block(_header(row)).get(EXPECTED_REVISION)
    return reason if expected is None else expecting(expected[0], reason)


def _exchanged(headers: pa.Array | None, messages: Positions, resolved: dict[int, Resolution]) -> pa.Array | None:
    """Return the header blocks of messages with those that they have got instead."""
    others = [each.header for message in messages.tolist() if (each := resolved.get(message)) and each.header]
    if headers is None or not others:
        return headers
    changed = np.isin(messages, [message for message, each in resolved.items() if each.header])
    return pc.replace_with_mask(headers, booleans(changed), strings(others))
