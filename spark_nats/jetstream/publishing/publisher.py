"""Publishes columns of rows to a stream, and awaits an acknowledgement of each row.

The stream stores rows in the order in which they were given, except where JetStream itself stores some and not those
before them: it may refuse a row and store the next one (429, 503), and a failing leader may lose rows while the next
leader stores later ones. Once an answer comes out of order, the publisher sends nothing more until the answers to
all earlier rows have come or are lost.

It sends rows over one connection as fast as the window allows. After a refusal, it sends nothing more until the fate of
the refused rows is decided. It goes on over another connection when one is lost.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, Protocol

import numpy as np
import pyarrow as pa

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.client.pool import Lease
from spark_nats.conditions import Topic
from spark_nats.conditions import jetstream as conditions
from spark_nats.conditions.client import ROW_TOO_LARGE
from spark_nats.errors import InvalidRowError, NatsError, PermissionsError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.id_memory import id_memory_of
from spark_nats.jetstream.publishing import decide
from spark_nats.jetstream.publishing.conflicts import ConflictResolver, try_resolve_conflicts
from spark_nats.jetstream.publishing.flight import (
    OF_ROWS,
    Elsewhere,
    Flight,
    RefusedMessage,
    Rows,
    Window,
    count_rows,
    take_next_part,
)
from spark_nats.jetstream.publishing.recovery import Acknowledged, PublishLedger, Recovery
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.control import publish_denial_text
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.publish_acks import PublishAcks, Verdict, advise_if_full

logger = logging.getLogger(__name__)

SURE_WITHIN = 0.25
"""Seconds within which a stream cannot lose acknowledged messages and store others: a server would first have to end
and come back with less."""
MAX_PAYLOAD = "the server's max_payload"
"""What limits the size of a row, in words."""


def describe_size_limit(limit: str, most: int) -> str:
    """Return the rule that a row breaks which is larger than a limit."""
    return f"is larger with its headers than {limit} of {most} bytes"


class Aside(Protocol):
    """Takes rows that the stream refuses for their own content, so that the others can be stored."""

    verdicts: Collection[Verdict]
    """The refusals for which it takes a row."""

    def set_row_aside(self, row: Rows, reason: str) -> None:
        """Take one row, and the reason of its refusal."""


class LameDuckError(Exception):
    """The server shuts down, so that the rows that are left need another one."""


class Publisher:
    """Publishes rows to one stream. Rows are numbered from 0 in the order they are given.

    Args:
        connection: carries the messages.
        stream: the stream as it was before the first row was sent; an answer that does not name it and its domain is
            not an acknowledgement.
        max_in_flight: maximum number of rows that are sent and not acknowledged.
        ack_timeout: seconds without any stored row after which publishing fails.
        lease: has ``connection``, and provides others when it is lost; when None, a lost connection is an error.
        api_prefix: first tokens of the subjects of JetStream's API.
        resolve: resolves conflicts with a subject's last message; if None, such rows fail.
        on_stored: called each time that rows were acknowledged.
        aside: takes rows that the stream refuses for their own content; if None, such a row is an error.
        exact: whether another attempt may store the same rows: those that waited for long are looked for in the stream.
        since: the sequence since which such attempts may have stored them, if that is before the stream's given state.
        id_prefix: with what only the message ids of these rows begin; None if nothing tells them from others.
        whose: how errors name the rows.
    """

    def __init__(
        self,
        connection: Connection,
        stream: StreamInfo,
        max_in_flight: int,
        ack_timeout: float,
        *,
        lease: Lease | None = None,
        api_prefix: str = API_PREFIX,
        resolve: ConflictResolver | None = None,
        on_stored: Callable[[], None] | None = None,
        aside: Aside | None = None,
        exact: bool = False,
        since: int | None = None,
        id_prefix: str | None = None,
        whose: str = "this task's rows",
    ) -> None:
        self._lease = lease
        acks = PublishAcks(stream.name, stream.domain)
        self._ledger = PublishLedger(Acknowledged(acks, stream.last_sequence), whose=whose)
        patience = max(ack_timeout, lease.retries.timeout if lease is not None else 0.0)
        # Reading others takes messages from their consumers, unless by direct gets: only where an attempt has begun.
        is_read = exact and (stream.retention == LIMITS or since is not None)
        memory = id_memory_of(JetStream(connection, api_prefix), stream)
        self._recovery = Recovery(
            initial=stream,
            ack_timeout=ack_timeout,
            patience=patience,
            api_prefix=api_prefix,
            is_strict=resolve is None,
            exact=is_read,
            shared_since=None if not exact else stream.last_sequence if since is None else since,
            ledger=self._ledger,
            memory=memory,
            id_prefix=id_prefix,
        )
        self._acks, self._window, self._queue = acks, Window(max_in_flight), self._ledger.queue
        self._resolve, self._on_stored, self._aside = resolve, on_stored, aside
        self.move_to(connection)
        self._has_moved = False  # whether another connection is used than at first
        self._began = math.inf  # when the first row was given

    @property
    def stored(self) -> int:
        """How many rows are stored: acknowledged or found in the stream, without those that are lost."""
        return self._ledger.stored

    @property
    def skipped(self) -> int:
        """How many rows were left out because their subjects had other last messages than the rows expected."""
        return self._ledger.skipped

    @property
    def duplicates(self) -> int:
        """How many confirmed rows the stream had before they were first sent here, by their message ids."""
        return self._ledger.acknowledged.duplicates

    @property
    def in_flight(self) -> int:
        """How many rows are sent and not answered."""
        return self._flight.in_flight

    @property
    def window(self) -> int:
        """How many rows may be in flight at the moment."""
        return self._window.size

    @property
    def resent(self) -> int:
        """How many rows were sent again, counted each time."""
        return self._ledger.resent

    def publish(
        self,
        subjects: pa.Array,
        payloads: pa.Array,
        headers: pa.Array | None = None,
        replies: pa.Array | None = None,
        ids: pa.Array | None = None,
        conditional: bool = False,
    ) -> None:
        """Send rows, which must be valid; return when the last of them is sent, not yet acknowledged.

        An empty batch is allowed: it reads what the server has sent, and answers a PING.

        Args:
            subjects: string column without null.
            payloads: string or binary column without null.
            headers: binary column of header blocks, null where a row has none.
            replies: must be None, since acknowledgements come to the reply subject.
            ids: the message ids that the headers hold, null where a row has none. Rows whose answers are lost are sent
                again only where all of them have one.
            conditional: whether rows name the last message that their subject must have; every row before them is
                acknowledged first.

        Raises:
            ValueError: there are replies.
            PublishError: the server refused a row, stopped answering, or has lost rows that it had acknowledged.
            NatsError: the connection failed; the message reports how many rows were acknowledged before.
        """
        if replies is not None:
            raise ValueError("a message to a stream has no reply subject, since its acknowledgement comes there")
        if conditional:
            self.wait_for_sent_rows()
        if not len(subjects):
            self._keep_trying(self._send_queue)  # the server may have sent a PING
            return
        if not self._ledger.unsettled:  # no row was waiting, so the last one may have been stored long ago
            self._last_stored = self._recovery.last_progress = clock.monotonic()
        self._began = min(self._began, clock.monotonic())
        first = self._ledger.given
        self._ledger.given += len(subjects)
        ids = None if ids is None or ids.null_count else ids
        self._ledger.all_ids &= ids is not None
        numbers = np.arange(first, self._ledger.given)
        self._queue.append(Rows(numbers, subjects, payloads, headers, ids, conditional=conditional))
        self._keep_trying(self._send_queue)

    def ask_with_retries(self, question: Callable[[JetStream], None]) -> None:
        """Ask a question over the connection that carries the rows; over another one, if it is lost.

        Raises:
            NatsError: what the question raised cannot pass, or the connection failed.
        """
        self._keep_trying(lambda: question(self._js))

    def wait_for_sent_rows(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed.
        """
        self._keep_trying(self._send_and_wait_for_answers)

    def check_nothing_lost(self) -> None:
        """Check that the stream still has what it has acknowledged; to be called after :meth:`wait_for_sent_rows`.

        It takes one request, unless the stream's leader may have changed or a loss shows.

        Raises:
            PublishError: the stream has lost rows, is missing or recreated, or has no leader that answers.
            NatsError: the connection failed.
        """
        self._keep_trying(lambda: self._recovery.check_nothing_lost(self._js, closely=self._has_moved))

    @property
    def needs_loss_check(self) -> bool:
        """Whether :meth:`check_nothing_lost` may find a loss: not after a short, calm run over one connection."""
        was_disturbed = self._has_moved or self._ledger.acknowledged.fallen is not None
        return was_disturbed or clock.monotonic() - self._began > SURE_WITHIN

    def finish(self) -> None:
        """Wait until every row is acknowledged and, if that may not be so, check that the stream has them all; end."""
        self.wait_for_sent_rows()
        if self.needs_loss_check:
            self.check_nothing_lost()
        self.close()

    def close(self) -> None:
        """End the subscription to acknowledgements."""
        self._connection.unsubscribe(self._answers)

    def move_to(self, connection: Connection) -> None:
        """Send over another connection from now on; no row is in flight on it yet."""
        inbox = connection.new_inbox()
        self._answers = connection.subscribe(f"{inbox}.*")
        self._connection, self._inbox, self._has_moved = connection, inbox, True
        self._js = JetStream(connection, self._recovery.api_prefix)
        self._last_stored = clock.monotonic()  # when a row was stored, or since when rows wait to be stored
        self._stranger = ""  # the last answer of another responder, in words
        self._elsewhere = Elsewhere(self._acks.other_domains_may_answer(connection.info.domain))
        self._start_flight(0)

    def _keep_trying(self, work: Callable[[], None]) -> None:
        """Do work that sends and receives, over another connection when one is lost; errors report the rows' fate."""
        try:
            while not self._do_or_reconnect(work):
                pass
        except NatsError as error:
            raise error.with_message(f"{error}; {self._ledger}") from None

    def _do_or_reconnect(self, work: Callable[[], None]) -> bool:
        """Do the work; return whether it was done before the connection was lost, or its server shut down."""
        try:
            work()
            return True
        except PublishError:
            raise
        except NatsError as error:
            if isinstance(error, PermissionsError):
                with contextlib.suppress(NatsError):
                    self._note_forbidden_rows()
            self._reconnect_and_resume(error)
        except LameDuckError:
            assert self._lease is not None  # noqa: S101 - without a lease, nobody leaves the server
            self.move_to(self._lease.move_to_another_server())
            # The stream may have lost its end with the server that shut down; nothing shows that once others fill it.
            self._do_or_reconnect(lambda: self._recovery.check_nothing_lost(self._js, closely=True))
        return False

    def _reconnect_and_resume(self, error: NatsError) -> None:
        """Continue over another connection with the rows that were not acknowledged over the lost one."""
        with contextlib.suppress(PublishError):
            self._note_pending_answers()
        while self._lease is not None and self._flight.can_resend_unknown:
            connection = self._lease.reconnect_or_raise(error)
            rows = [*self._mark_replaced_and_get_unstored(), *self._queue]
            try:
                left = self._recovery.wait_and_drop_stored(JetStream(connection, self._recovery.api_prefix), rows)
                self.move_to(connection)
            except PublishError:
                raise
            except NatsError as another:
                error = another
            else:
                self._queue[:] = left
                self._set_aside_or_raise_too_large()
                return
        if self._flight.unstored and error.may_pass(established=True):
            error = error.with_topics(*error.topics, Topic.MESSAGE_IDS)
        raise error

    # Sending over one connection

    def _start_flight(self, first: int) -> None:
        self._flight = self._ledger.flight = Flight(self._inbox, first, self._acks, clock.monotonic(), self._elsewhere)

    def _send_queue(self) -> None:
        """Send the queue.

        Raises:
            LameDuckError: rows are left in the queue, and none is in flight.
        """
        self._receive_and_check_loss(0.0)  # and answer PING: rows may come slowly
        while self._queue:
            if self._lease is not None and self._connection.lame_duck:
                while self._flight.unstored:
                    self._receive_and_act()
                raise LameDuckError
            rows, flight = self._queue[0], self._flight
            late = self._recovery.may_be_stored_and_forgotten(rows)
            if (rows.again and not self._recovery.still_knows_ids(rows)) or (late and not flight.unstored):
                self._ask_and_queue_unknown()
            elif not late and flight.can_send_next(rows, self._window.size, self._window.part_size):
                part = take_next_part(self._queue, self._window.part_size)
                self._ledger.resent += part.size if part.since or part.again else 0
                replies = flight.note_sent_and_get_replies(part, clock.monotonic(), self._recovery.last_known_sequence)
                self._connection.publish_columns(part.subjects, part.payloads, part.headers, replies)
            else:
                self._receive_and_act()

    def _send_and_wait_for_answers(self) -> None:
        """Send the queue, and wait for all answers; raise what :meth:`_send_queue` raises."""
        self._send_queue()
        while self._flight.unstored or self._ask_and_queue_overtaken():
            if self._flight.unstored:
                self._receive_and_act()
            self._send_queue()

    def _mark_replaced_and_get_unstored(self) -> list[Rows]:
        """Return the rows in flight that are to be sent again, in order."""
        if self._recovery.initial.keeps_last_values and (count := self._flight.mark_replaced_as_stored()):
            self._recovery.warn_not_sent_again(count)
        return self._flight.unstored_rows()

    def _ask_and_queue_overtaken(self) -> bool:
        """Queue the last rows of their subjects that others of them were stored after; return whether there are any."""
        rows = self._recovery.ask_and_take_overtaken_rows(self._js)
        if rows is None:
            return False
        self._ledger.resent += rows.size
        self._queue.append(rows)
        return True

    def _set_aside_or_raise_too_large(self) -> None:
        """Set rows of the queue aside that are larger than the server accepts; its limit may have changed.

        Raises:
            InvalidRowError: there is one, and nobody takes such rows.
        """
        queue, connection = self._queue, self._connection
        for i in range(len(queue)):
            while (row := connection.find_too_large_row(queue[i].payloads, queue[i].headers)) is not None:
                rows, most = queue[i], connection.info.max_payload
                if self._aside is None:
                    raise InvalidRowError(ROW_TOO_LARGE(row=int(rows.numbers[row]), most=most)).with_topics(Topic.ROW)
                reason = f"column 'payload' {describe_size_limit(MAX_PAYLOAD, most)}"
                self._aside.set_row_aside(rows.take(slice(row, row + 1)), reason)
                self._ledger.set_aside += 1
                queue[i] = rows.take(np.arange(rows.size) != row)
        queue[:] = [rows for rows in queue if rows.size]

    def _note_pending_answers(self) -> None:
        """Note answers that arrived before the connection was lost."""
        while (messages := self._answers.pop()) is not None:
            self._note_answers(messages)

    def _note_forbidden_rows(self) -> None:
        """Note which rows the server did not let pass, once the others are answered.

        It says so of each row, with its subject. If some rows of a subject passed before the permission ended, and are
        not answered yet, it is unknown which.
        """
        said, flight = self._connection.flush_and_get_violations(), self._flight
        while flight.in_flight > said.total() and (
            messages := self._connection.next(self._answers, decide.LOST_OUT_OF_ORDER)
        ):
            self._note_answers(messages)
        if not flight.may_be_stored:
            sent = flight.subjects_in_flight().items()
            forbidden = {each: text for each, count in sent if said[text := publish_denial_text(each)] == count}
            flight.mark_in_flight_refused(forbidden, Verdict.REJECTED)

    def _receive_and_act(self) -> None:
        """Wait for answers, and act on them."""
        if self._flight.in_flight or self._flight.is_refusal_unconfirmed:
            decision = decide.decide_step(self._collect_state())
            seconds = decision.seconds if isinstance(decision, decide.Wait) else 0.0
            self._receive_and_check_loss(max(decide.MIN_PATIENCE, seconds))
        outcome = self._collect_state()
        while not isinstance(decision := decide.decide_step(outcome), decide.Wait):
            if isinstance(decision, decide.Resend):
                self._prepare_resend(decision.why, outcome)
                return
            if isinstance(decision, decide.Fail):
                self._raise_failure(decision, outcome)
            if isinstance(decision, decide.SetAside):
                self._ask_and_set_aside_unstored(decision.refused)
                outcome = self._collect_state()._replace(resolved=True, stream=outcome.stream, asked=outcome.asked)
            elif decision is decide.Ask.STREAM:
                outcome = outcome._replace(stream=self._recovery.request_state_or_error(self._js))
            elif decision is decide.Ask.SUBJECTS:
                self._ask_and_refuse_unlistened()
                outcome = self._collect_state()._replace(asked=True)
            else:
                if try_resolve_conflicts(self._js, self._ledger, self._recovery.request_state, self._resolve):
                    self._last_stored = clock.monotonic()
                outcome = self._collect_state()._replace(resolved=True, stream=outcome.stream)

    def _collect_state(self) -> decide.PublishState:
        flight, now = self._flight, clock.monotonic()
        return decide.PublishState(
            flight.state,
            flight.in_flight,
            now - flight.heard,
            now - self._last_stored,
            self._recovery.ack_timeout,
            flight.can_resend_unknown,
            tuple(flight.refused.values()),
            contested=flight.is_refusal_unconfirmed,
            strangers=bool(flight.strangers),
            duplicate_window=self._recovery.duplicate_window,
            api_prefix=self._recovery.api_prefix,
            set_aside=() if self._aside is None else self._aside.verdicts,
        )

    def _receive_and_check_loss(self, seconds: float) -> None:
        """Wait for answers, and note them; verify the stream when a sequence is not higher than all before."""
        messages = self._connection.next(self._answers, seconds)
        if messages is not None:
            self._note_answers(messages)
        if self._ledger.acknowledged.fallen is not None:
            self._recovery.check_nothing_lost(self._js, closely=False)

    def _note_answers(self, messages: Messages) -> None:
        flight, now = self._flight, clock.monotonic()
        if (stored := flight.note_answers(messages, now)) is not None:
            had = self._ledger.acknowledged.note_and_find_duplicates(stored, flight.row, flight.may_be_stored, now)
            if self._recovery.initial.keeps_last_values:
                self._recovery.note_stored_before(stored, had, flight)
            self._window.grow(len(stored.messages))
            self._last_stored = self._recovery.last_progress = now
            if self._lease is not None:
                self._lease.note_success()
            if self._on_stored is not None:
                self._on_stored()

    def _ask_and_refuse_unlistened(self) -> None:
        """Find out which messages are not stored because the stream does not listen on their subjects.

        Where the stream listens, another responder's answer means nothing: the stream's answer may still come.
        """
        flight, known = self._flight, self._recovery.known
        subjects, strangers = list(flight.subjects_in_flight()), flight.strangers
        absent: list[str] = []
        prefix = self._recovery.api_prefix
        if decide.subjects_not_heard(known, subjects, prefix):
            state = self._recovery.request_state_or_error(self._js)
            if isinstance(state, StreamInfo):
                absent = decide.subjects_not_heard(state, subjects, prefix)
        if absent:
            reasons = {each: strangers.get(each, decide.UNANSWERED) for each in absent}
            flight.mark_in_flight_refused(reasons, Verdict.NO_SUCH_SUBJECT)
        for subject, reason in strangers.items():
            self._stranger = f"{subject!r}: {reason}"
        strangers.clear()

    def _ask_and_set_aside_unstored(self, refused: Sequence[RefusedMessage]) -> None:
        """Hand over refused rows that are not stored, and send them no more."""
        self._rule_out_other_domains()
        assert self._aside is not None  # noqa: S101 - else decide() returns no SetAside
        rows = [self._flight.row(each.message) for each in refused]
        for each, row, is_stored in zip(refused, rows, self._recovery.ask_which_stored(self._js, rows), strict=True):
            if not is_stored:
                self._aside.set_row_aside(row, each.reason)
                self._ledger.set_aside += 1
            self._flight.note_resend_or_done(each.message, None)
        self._last_stored = clock.monotonic()

    def _raise_failure(self, failure: decide.Fail, outcome: decide.PublishState) -> NoReturn:
        stream, refused, seconds = self._recovery.stream, failure.refused, failure.seconds
        if failure.why is decide.Failure.SILENT:
            said = self._recovery.ask_why_silent(self._js, str(self._flight.unstored_rows()[0].subjects[0]))
            raise PublishError(said.with_text(f"{said}; {self._stranger}") if self._stranger else said)
        if failure.why is decide.Failure.EVERY_ROW_REFUSED:
            raise PublishError(conditions.EVERY_ROW_REFUSED(stream=stream, seconds=seconds, reason=refused[0].reason))
        if failure.why is decide.Failure.UNAVAILABLE and not isinstance(outcome.stream, StreamInfo):
            raise PublishError(self._recovery.describe_absence("nobody answers, 503"))
        if failure.why is decide.Failure.UNAVAILABLE:
            raise PublishError(conditions.NOBODY_TAKES_ROWS(stream=stream, seconds=seconds, subject=refused[0].subject))
        aside = () if self._aside is None else self._aside.verdicts  # which is not what fails here
        first = min(refused, key=lambda each: (each.verdict in aside, each.row))
        said = conditions.ROW_REFUSED(stream=stream, row=first.row, subject=first.subject, reason=first.reason)
        more = advise_if_full(first.reason)
        more += f"; {len(refused)} rows were refused in all" if len(refused) > 1 else ""
        more += f"; {self._stranger or self._elsewhere.said}" if self._elsewhere.heard else ""
        of_rows = all(each.verdict in OF_ROWS for each in refused)
        of_subjects = all(each.verdict is Verdict.NO_SUCH_SUBJECT for each in refused)
        topics = [Topic.SUBJECT] if of_subjects else [Topic.ROW] if of_rows else []
        raise PublishError(said.with_text(f"{said}{more}")).with_topics(*topics)

    def _prepare_resend(self, why: decide.ResendReason, outcome: decide.PublishState) -> None:
        """Queue rows to be sent again; then pause, if they were refused for now."""
        stream = self._recovery.stream
        if why is decide.ResendReason.UNKNOWN:
            rows = count_rows(self._mark_replaced_and_get_unstored())
            logger.info(conditions.ROWS_SENT_AGAIN(stream=stream, rows=rows).with_code)
            self._ask_and_queue_unknown()
            return
        self._rule_out_other_domains()
        span = self._flight.sent_since_unstored
        self._queue[:0] = self._mark_replaced_and_get_unstored()
        self._start_flight(self._flight.end)
        if why is decide.ResendReason.RESOLVED:
            return
        if why is decide.ResendReason.TOO_MANY:
            pause = self._window.shrink_and_choose_pause(span)
        else:
            if why is decide.ResendReason.IN_PROCESS and outcome.waited > outcome.ack_timeout:
                self._recovery.log_waiting_for_ids()
            if self._window.absence.is_new:
                logger.info(conditions.ROWS_NOT_TAKEN(stream=stream, reason=outcome.refused[0].reason).with_code)
            pause = self._window.minimize_and_choose_pause()
        self._connection.wait_while_receiving(pause)
        if self._recovery.exact and why is not decide.ResendReason.TOO_MANY:
            # Another attempt may have stored them, and whoever leads next may not know their ids.
            self._ask_and_queue_missing([*self._queue])

    def _rule_out_other_domains(self) -> None:
        """Note that no stream in another domain answers here, where one was waited for in vain."""
        if self._flight.is_refusal_unconfirmed and not self._elsewhere.heard:
            self._elsewhere.possible = False

    def _ask_and_queue_unknown(self) -> None:
        """Queue rows of unknown fate to be sent again, without those that the stream turns out to hold."""
        self._ask_and_queue_missing([*self._mark_replaced_and_get_unstored(), *self._queue])
        self._start_flight(self._flight.end)

    def _ask_and_queue_missing(self, rows: list[Rows]) -> None:
        """Have the queue be those of some rows that the stream does not turn out to hold."""
        left = self._recovery.wait_and_drop_stored(self._js, rows, self._recovery.ack_timeout)
        self._queue[:] = left
        if count_rows(left) < count_rows(rows):
            self._last_stored = clock.monotonic()
