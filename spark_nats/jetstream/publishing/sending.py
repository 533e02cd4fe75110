"""Sends rows over one connection as fast as the window allows, until the stream has stored each of them.

After a refusal, it sends nothing more until the fate of the refused rows is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.client.pool import Lease
from spark_nats.conditions import Topic
from spark_nats.conditions import jetstream as conditions
from spark_nats.conditions.client import ROW_TOO_LARGE
from spark_nats.errors import InvalidRowError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.publishing import decide
from spark_nats.jetstream.publishing.acknowledged import PublishLedger
from spark_nats.jetstream.publishing.conflicts import ConflictResolver, resolve_conflicts
from spark_nats.jetstream.publishing.flight import (
    OF_ROWS,
    Elsewhere,
    Flight,
    RefusedMessage,
    Rows,
    Window,
    count_of,
    cut,
)
from spark_nats.jetstream.publishing.recovery import Recovery
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, Verdict

logger = logging.getLogger(__name__)

MAX_PAYLOAD = "the server's max_payload"
"""What limits the size of a row, in words."""


def too_large(limit: str, most: int) -> str:
    """Return the rule that a row breaks which is larger than a limit."""
    return f"is larger with its headers than {limit} of {most} bytes"


class Aside(Protocol):
    """Takes rows that the stream refuses for their own content, so that the others can be stored."""

    verdicts: Collection[Verdict]
    """The refusals for which it takes a row."""

    def take(self, row: Rows, reason: str) -> None:
        """Take one row, and the reason of its refusal."""


class LameDuckError(Exception):
    """The server shuts down, so that the rows that are left need another one."""


@dataclass
class Sender:
    """Sends a queue of rows over one connection; ``flight`` has the rows in flight."""

    connection: Connection
    acks: PublishAcks  # parses answers
    ledger: PublishLedger  # counts the rows, and has their queue
    window: Window  # how many rows may be in flight
    recovery: Recovery  # asks the stream what it has stored
    resolve: ConflictResolver | None  # decides about rows that expect another last message of their subject
    lease: Lease | None  # is notified when rows are stored; needed to leave a server that shuts down
    on_stored: Callable[[], None] | None  # called when rows are stored
    aside: Aside | None  # takes rows refused for their content; such a row is an error when None

    def __post_init__(self) -> None:
        self._queue = self.ledger.queue
        self._keeps_last_values = self.recovery.initial.keeps_last_values
        self.move_to(self.connection)

    def move_to(self, connection: Connection) -> None:
        """Send over this connection from now on; no row is in flight on it yet."""
        inbox = connection.new_inbox()
        self._answers = connection.subscribe(f"{inbox}.*")
        self.connection, self._inbox = connection, inbox
        self._js = JetStream(connection, self.recovery.api_prefix)
        self.last_stored = clock.monotonic()  # when a row was stored, or since when rows wait to be stored
        self._stranger = ""  # the last answer of another responder, in words
        self._elsewhere = Elsewhere(self.acks.crosses(connection.info.domain))
        self._start(0)

    def _start(self, first: int) -> None:
        self.flight = self.ledger.flight = Flight(self._inbox, first, self.acks, clock.monotonic(), self._elsewhere)

    def send_queue(self) -> None:
        """Send the queue.

        Raises:
            LameDuckError: rows are left in the queue, and none is in flight.
        """
        self._receive(0.0)  # and answer PING: rows may come slowly
        while self._queue:
            if self.lease is not None and self.connection.lame_duck:
                while self.flight.unstored:
                    self._go_on()
                raise LameDuckError
            rows, flight = self._queue[0], self.flight
            late = self.recovery.waited_too_long(rows)
            if (rows.again and not self.recovery.still_knows_ids(rows)) or (late and not flight.unstored):
                self._repeat()
            elif not late and flight.has_room(rows, self.window.size, self.window.part):
                part = cut(self._queue, self.window.part)
                self.ledger.resent += part.size if part.since or part.again else 0
                replies = flight.send(part, clock.monotonic(), self.recovery.last_given)
                self.connection.publish_columns(part.subjects, part.payloads, part.headers, replies)
            else:
                self._go_on()

    def finish(self) -> None:
        """Send the queue, and wait for all answers; raise what :meth:`send_queue` raises."""
        self.send_queue()
        while self.flight.unstored or self._queue_behind():
            if self.flight.unstored:
                self._go_on()
            self.send_queue()

    def rest(self) -> list[Rows]:
        """Return the rows in flight that are to be sent again, in order."""
        if self._keeps_last_values and (count := self.flight.count_replaced()):
            self.recovery.log_replaced(count)
        return self.flight.rest()

    def _queue_behind(self) -> bool:
        """Queue the last rows of their subjects that others of them were stored after; return whether there are any."""
        rows = self.recovery.rows_behind(self._js)
        if rows is None:
            return False
        self.ledger.resent += rows.size
        self._queue.append(rows)
        return True

    def take_out_too_large(self) -> None:
        """Set rows of the queue aside that are larger than the server accepts; its limit may have changed.

        Raises:
            InvalidRowError: there is one, and nobody takes such rows.
        """
        queue, connection = self._queue, self.connection
        for i in range(len(queue)):
            while (row := connection.find_too_large(queue[i].payloads, queue[i].headers)) is not None:
                rows, most = queue[i], connection.info.max_payload
                if self.aside is None:
                    said = ROW_TOO_LARGE(row=int(rows.numbers[row]), most=most)
                    raise InvalidRowError(said).about(Topic.ROW)
                self.aside.take(rows.take(slice(row, row + 1)), f"column 'payload' {too_large(MAX_PAYLOAD, most)}")
                self.ledger.set_aside += 1
                queue[i] = rows.take(np.arange(rows.size) != row)
        queue[:] = [rows for rows in queue if rows.size]

    def verify(self, closely: bool = False) -> None:
        """Check that the stream still has what it has acknowledged."""
        self.recovery.verify(self._js, closely)

    def drain_pending_acks(self) -> None:
        """Note answers that arrived before the connection was lost."""
        while (messages := self._answers.pop()) is not None:
            self._note(messages)

    def close(self) -> None:
        """End the subscription to answers."""
        self.connection.unsubscribe(self._answers)

    def _go_on(self) -> None:
        """Wait for answers, and act on them."""
        if self.flight.in_flight or self.flight.contested:
            decision = decide.decide(self._publish_state())
            self._receive(max(decide.MIN_PATIENCE, decision.seconds if isinstance(decision, decide.Wait) else 0.0))
        outcome = self._publish_state()
        while not isinstance(decision := decide.decide(outcome), decide.Wait):
            if isinstance(decision, decide.Resend):
                self._resend(decision.why, outcome)
                return
            if isinstance(decision, decide.Fail):
                self._fail(decision, outcome)
            if isinstance(decision, decide.SetAside):
                self._set_aside(decision.refused)
                outcome = self._publish_state()._replace(resolved=True, stream=outcome.stream, asked=outcome.asked)
            elif decision is decide.Ask.STREAM:
                outcome = outcome._replace(stream=self.recovery.state_if_known(self._js))
            elif decision is decide.Ask.SUBJECTS:
                self._ask_subjects()
                outcome = self._publish_state()._replace(asked=True)
            else:
                if resolve_conflicts(self._js, self.ledger, self.recovery.state, self.resolve):
                    self.last_stored = clock.monotonic()
                outcome = self._publish_state()._replace(resolved=True, stream=outcome.stream)

    def _publish_state(self) -> decide.PublishState:
        flight, now = self.flight, clock.monotonic()
        return decide.PublishState(
            flight.state,
            flight.in_flight,
            now - flight.heard,
            now - self.last_stored,
            self.recovery.ack_timeout,
            flight.can_repeat,
            tuple(flight.refused.values()),
            contested=flight.contested,
            strangers=bool(flight.strangers),
            duplicate_window=self.recovery.duplicate_window,
            api_prefix=self.recovery.api_prefix,
            set_aside=() if self.aside is None else self.aside.verdicts,
        )

    def _receive(self, seconds: float) -> None:
        """Wait for answers, and note them; verify the stream when a sequence is not higher than all before."""
        messages = self.connection.next(self._answers, seconds)
        if messages is not None:
            self._note(messages)
        if self.ledger.acknowledged.fallen is not None:
            self.verify()

    def _note(self, messages: Messages) -> None:
        flight, now = self.flight, clock.monotonic()
        if (stored := flight.receive(messages, now)) is not None:
            had = self.ledger.acknowledged.note(stored, flight.row, flight.again, now)
            if self._keeps_last_values:
                self.recovery.note_last_values(stored, had, flight)
            self.window.grow(len(stored.messages))
            self.last_stored = self.recovery.last_progress = now
            if self.lease is not None:
                self.lease.succeeded()
            if self.on_stored is not None:
                self.on_stored()

    def _ask_subjects(self) -> None:
        """Find out which messages are not stored because the stream does not listen on their subjects.

        Where the stream listens, another responder's answer means nothing: the stream's answer may still come.
        """
        flight, known = self.flight, self.recovery.known
        subjects, strangers = flight.subjects_in_flight(), flight.strangers
        absent: list[str] = []
        prefix = self.recovery.api_prefix
        if decide.not_listened(known, subjects, prefix):
            state = self.recovery.state_if_known(self._js)
            if isinstance(state, StreamInfo):
                absent = decide.not_listened(state, subjects, prefix)
        if absent:
            flight.refuse_in_flight(
                {each: strangers.get(each, decide.UNANSWERED) for each in absent}, Verdict.NO_SUCH_SUBJECT
            )
        for subject, reason in strangers.items():
            self._stranger = f"{subject!r}: {reason}"
        strangers.clear()

    def _set_aside(self, refused: Sequence[RefusedMessage]) -> None:
        """Hand over refused rows that are not stored, and send them no more."""
        self._believe_refusals()
        assert self.aside is not None  # noqa: S101 - else decide() returns no SetAside
        rows = [self.flight.row(each.message) for each in refused]
        for each, row, is_stored in zip(refused, rows, self.recovery.have_stored(self._js, rows), strict=True):
            if not is_stored:
                self.aside.take(row, each.reason)
                self.ledger.set_aside += 1
            self.flight.resolve(each.message, None)
        self.last_stored = clock.monotonic()

    def _fail(self, failure: decide.Fail, outcome: decide.PublishState) -> NoReturn:
        stream, refused, seconds = self.recovery.stream, failure.refused, failure.seconds
        if failure.why is decide.Failure.SILENT:
            said = self.recovery.silence(self._js, str(self.flight.rest()[0].subjects[0]))
            raise PublishError(said.with_text(f"{said}; {self._stranger}") if self._stranger else said)
        if failure.why is decide.Failure.EVERY_ROW_REFUSED:
            raise PublishError(conditions.EVERY_ROW_REFUSED(stream=stream, seconds=seconds, reason=refused[0].reason))
        if failure.why is decide.Failure.UNAVAILABLE and not isinstance(outcome.stream, StreamInfo):
            raise PublishError(self.recovery.absence("nobody answers, 503"))
        if failure.why is decide.Failure.UNAVAILABLE:
            raise PublishError(conditions.NOBODY_TAKES_ROWS(stream=stream, seconds=seconds, subject=refused[0].subject))
        first = min(refused, key=lambda each: each.row)
        said = conditions.ROW_REFUSED(stream=stream, row=first.row, subject=first.subject, reason=first.reason)
        more = f"; {len(refused)} rows were refused in all" if len(refused) > 1 else ""
        more += f"; {self._stranger or self._elsewhere.said}" if self._elsewhere.heard else ""
        of_rows = all(each.verdict in OF_ROWS for each in refused)
        of_subjects = all(each.verdict is Verdict.NO_SUCH_SUBJECT for each in refused)
        topics = [Topic.SUBJECT] if of_subjects else [Topic.ROW] if of_rows else []
        raise PublishError(said.with_text(f"{said}{more}")).about(*topics)

    def _resend(self, why: decide.ResendReason, outcome: decide.PublishState) -> None:
        """Queue rows to be sent again; then pause, if they were refused for now."""
        stream = self.recovery.stream
        if why is decide.ResendReason.UNKNOWN:
            logger.info(conditions.ROWS_SENT_AGAIN(stream=stream, rows=count_of(self.rest())).with_code)
            self._repeat()
            return
        self._believe_refusals()
        span = self.flight.span
        self._queue[:0] = self.rest()
        self._start(self.flight.end)
        if why is decide.ResendReason.RESOLVED:
            return
        if why is decide.ResendReason.TOO_MANY:
            pause = self.window.on_throttled(span)
        else:
            if why is decide.ResendReason.IN_PROCESS and outcome.waited > outcome.ack_timeout:
                self.recovery.log_waiting_for_ids()
            if self.window.is_absence_new:
                logger.info(conditions.ROWS_NOT_TAKEN(stream=stream, reason=outcome.refused[0].reason).with_code)
            pause = self.window.on_unavailable()
        self.connection.wait(pause)
        if self.recovery.exact and why is not decide.ResendReason.TOO_MANY:
            # Another attempt may have stored them, and whoever leads next may not know their ids.
            self._queue_missing([*self._queue])

    def _believe_refusals(self) -> None:
        """Note that no stream in another domain answers here, where one was waited for in vain."""
        if self.flight.contested and not self._elsewhere.heard:
            self._elsewhere.possible = False

    def _repeat(self) -> None:
        """Queue rows of unknown fate to be sent again, without those that the stream turns out to hold."""
        self._queue_missing([*self.rest(), *self._queue])
        self._start(self.flight.end)

    def _queue_missing(self, rows: list[Rows]) -> None:
        """Have the queue be those of some rows that the stream does not turn out to hold."""
        left = self.recovery.resume(self._js, rows, self.recovery.ack_timeout)
        self._queue[:] = left
        if count_of(left) < count_of(rows):
            self.last_stored = clock.monotonic()
