"""Stores rows together or not at all, as atomic batches (ADR-50) of nats-server 2.12 and later.

The messages of a batch carry its id and their numbers in it; the server keeps them aside until the last one commits the
batch. It stores nothing before that, and drops what is not committed within ten seconds. So when anything is lost
before the commit was sent, the batch is sent again with another id. Once the commit was sent, its answer may be lost,
or come from a former leader that lacks the batch; then only message ids tell whether the batch is stored. The server
does not answer a batch with *duplicate*, as it does a message: it refuses a batch in which it knows any message id. So
the publisher then asks for each id.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_nats import clock
from spark_nats.client.connection import SECOND_ANSWER, Connection
from spark_nats.client.publishing import cut_into_parts
from spark_nats.client.retrying import Backoff
from spark_nats.client.subscriptions import Subscription
from spark_nats.conditions import ConditionText, Topic
from spark_nats.conditions import jetstream as conditions
from spark_nats.conditions.client import ROW_TOO_LARGE
from spark_nats.errors import InvalidRowError, NatsError, NatsTimeoutError, PublishError
from spark_nats.jetstream.api import JetStream, JetStreamLease
from spark_nats.jetstream.id_memory import IdMemory, id_memory_of
from spark_nats.jetstream.messages import ask_last_sequence
from spark_nats.jetstream.positions import end_position_of
from spark_nats.jetstream.publishing.decide import UNANSWERED, subjects_not_heard
from spark_nats.jetstream.publishing.flight import FINAL, Rows, are_unstored_but_replaced
from spark_nats.jetstream.publishing.recovery import wait_and_read_ids
from spark_nats.jetstream.reading.stored import StoredIds, are_among, ask_if_intact, ask_which_ids_are_known
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.jetstream.views import ask_stream_info
from spark_nats.protocol.bytecolumns import Mask, byte_strings, texts
from spark_nats.protocol.headers import (
    EXPECTED_MSG_ID,
    EXPECTED_REVISION,
    MSG_ID,
    add_batch_headers,
    encode_block,
    first_header_values,
)
from spark_nats.protocol.messages import numbered_subjects
from spark_nats.protocol.publish_acks import PublishAcks, Verdict, advise_if_full, conflict_reason
from spark_nats.protocol.subjects import transform_subject

MAX_ROWS = 1000  # messages that a batch may have, unless a server is configured to take fewer or more
_LOST_AFTER = 5.0  # seconds without any answer after which the awaited one counts as lost
_SHOWN = 3  # message ids named in an error


class _Refused(NamedTuple):
    """Why a batch was not stored, and which of its messages was answered with that."""

    number: int
    reason: str
    verdict: Verdict


class BatchPublisher:
    """Stores one batch of rows in a stream; ``initial`` is its state before the batch was sent.

    A server that does not take the batch, over a connection that works, is given up after ``ack_timeout`` seconds, or
    the stream's ``duplicate_window`` later if a message id is in process. When the connection is lost, the lease
    provides others. If ``exact``, another attempt may store the same rows, and they are looked for after a long wait:
    also since the sequence ``since``, where one began before the stream had its ``initial`` state.
    """

    def __init__(
        self,
        js: JetStreamLease,
        initial: StreamInfo,
        ack_timeout: float,
        *,
        exact: bool = False,
        since: int | None = None,
    ) -> None:
        self._lease, self._js = js.lease, js
        self._initial = initial
        self._since = since
        self._name = initial.name
        self._ack_timeout = ack_timeout
        self._acks = PublishAcks(initial.name, initial.domain)
        self._committing: float | None = None  # when the unanswered commit was sent
        self._exact = exact and initial.retention == LIMITS
        self._memory = id_memory_of(js.js, initial)  # what held the stream's ids at first
        self._at_first = js.lease.connection
        self._looked = clock.monotonic()  # when the rows were last looked for, or given
        self._doubtful: float | None = None  # when the first commit without an answer was sent; None without doubt
        self._pauses = Backoff(0.02, 1.0, fixed_share=0.5)  # before the batch is sent again
        self._stranger = ""  # another responder's answer to a batch, in words
        self._elsewhere = ""  # the same, if a stream in another domain has ever answered
        self._crosses = True  # whether one may answer, as far as is known
        self._rows = 0
        self.duplicates = 0  # rows that the stream had before they were sent here, by their message ids

    def publish_and_wait(self, subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None, ids: pa.Array) -> None:
        """Store one or more rows, which must be valid; return when the stream has all of them.

        The columns are those of :class:`~.rows.Rows`, except that ``ids`` is null where a row has none. Unless all rows
        have an id, a lost answer to the commit is an error.

        Raises:
            PublishError: the stream refused the batch, or did not take it in time; the error tells if it may be stored.
            NatsError: the connection failed; the error tells the same.
        """
        blocks = pa.nulls(len(subjects), pa.binary()) if headers is None else headers
        self._rows = len(subjects)
        batch = Rows(np.arange(self._rows), subjects, payloads, blocks, None if ids.null_count else ids)
        began = self._looked = clock.monotonic()
        while not self._send_unless_stored(batch, began):
            self._pause_before_retry()

    def _send_unless_stored(self, batch: Rows, began: float) -> bool:
        """Send the batch once, unless it turns out to be stored already; return whether it is stored."""
        try:
            may_be_stored = self._doubtful is not None or (self._exact and batch.ids is not None)
            since = self._looked if self._doubtful is None else self._doubtful
            if may_be_stored and self._ask_if_stored_where_unsure(batch, since):
                return True
            if self._lease.connection.lame_duck:
                self._lease.move_to_another_server()
            if (row := self._lease.connection.find_too_large_row(batch.payloads, batch.headers)) is not None:
                most = self._lease.connection.info.max_payload
                raise self._with_row_status(InvalidRowError(ROW_TOO_LARGE(row=row, most=most)))
            refused = self._send_and_await(self._lease.connection, batch)
            if refused is None or refused.verdict is not Verdict.INCOMPLETE:
                self._committing = None
            self._lease.note_success()
            if refused is None or self._ask_if_stored_or_raise(batch, refused):
                return True
            if self._committing is not None:
                self._note_doubt_or_raise(batch, refused.reason)
        except (PublishError, InvalidRowError):
            raise
        except NatsError as error:
            self._reconnect_or_raise(batch, error, began)
            return False
        # A message id that got lost with a leader may be in process until the stream forgets it.
        in_process = refused.verdict is Verdict.IN_PROCESS
        patience = self._ack_timeout + (self._initial.duplicate_window if in_process else 0.0)
        if clock.monotonic() - began > patience:
            self._raise_failed(conditions.BATCH_NOT_TAKEN(stream=self._name, seconds=patience, reason=refused.reason))
        return False

    def _ask_if_stored_or_raise(self, batch: Rows, refused: _Refused) -> bool:
        """Tell whether a refused batch is stored already; raise if sending it again is of no use."""
        verdict = refused.verdict
        if verdict is Verdict.REPEATED:
            return self._ask_if_all_known(batch, refused.reason)
        subjects = [str(batch.subjects[refused.number])]
        if verdict is Verdict.UNAVAILABLE and not subjects_not_heard(
            self._request_state_and_memory()[0], subjects, self._js.prefix
        ):
            return False
        if verdict in (*FINAL, Verdict.UNAVAILABLE):
            self._raise_refusal(batch, refused)
        self._check_stream_listens(batch)
        return False

    def _note_doubt_or_raise(self, batch: Rows, reason: str) -> None:
        """Note that a batch may be stored although its commit was refused by a server that lacks the first message.

        Another server may have that message: the leader now, if a former one answers that was suspended.
        """
        if self._doubtful is None:
            self._doubtful = self._committing
        if batch.ids is None:
            failed = PublishError(conditions.BATCH_REFUSED(stream=self._name, reason=reason))
            raise self._with_row_status(failed).with_topics(Topic.MESSAGE_IDS)

    def _pause_before_retry(self) -> None:
        with contextlib.suppress(NatsError):  # the next use of the connection raises it
            self._lease.connection.wait_while_receiving(self._pauses.take_next_wait_seconds())

    # Sending

    def _send_and_await(self, connection: Connection, batch: Rows) -> _Refused | None:
        """Send a batch under a new id; return why it was not stored, None when it was."""
        self._committing, self._stranger = None, ""
        inbox = connection.new_inbox()
        answers = connection.subscribe(f"{inbox}.*")
        rows = len(batch.subjects)
        batch_id = clock.token(8)
        columns = (
            batch.subjects,
            batch.payloads,
            add_batch_headers(batch.headers, batch_id),
            numbered_subjects(inbox, 0, rows),
        )
        refused = None
        if rows > 1:  # the first answer tells whether there is room for a batch
            connection.publish_columns(*(column[:1] for column in columns))
            refused = self._await_answer(connection, answers, batch_id, 0)
        if refused is None:
            between = [column[1:-1] for column in columns]
            for part in cut_into_parts(between[1], between[2], rows):
                connection.publish_columns(*(column[part] for column in between))
            self._committing = clock.monotonic()
            connection.publish_columns(*(column[rows - 1 :] for column in columns))
            refused = self._await_answer(connection, answers, batch_id, rows - 1)
        connection.unsubscribe(answers)
        return refused

    def _await_answer(
        self, connection: Connection, answers: Subscription, batch_id: str, number: int
    ) -> _Refused | None:
        """Await the answer to a message of a batch; return the first refusal up to this message, None without one.

        A refusal names no domain: where a stream in another one may answer too, its second answer is awaited.
        """
        first: _Refused | None = None
        patience, heard = _LOST_AFTER, 0
        while (messages := connection.next(answers, patience)) is not None:
            # An empty answer means that the message is kept aside.
            says = (messages.payload.end > messages.payload.start) | (messages.header.end > messages.header.start)
            answered, valid = messages.numbers_below_inbox(answers.subject.removesuffix(".*"))
            if not (valid & (answered <= number)).all():
                self._raise_failed(conditions.BATCH_ANSWER_TO_NO_ROW(stream=self._name))
            elsewhere = self._acks.stored_in_other_domain(messages)
            for i in np.flatnonzero(says).tolist():
                refusal = self._acks.batch_refusal(messages, i, batch_id, number + 1)
                if refusal is not None and refusal.verdict is Verdict.STRANGER:  # the stream's may still come
                    self._stranger = refusal.reason
                    if elsewhere[i]:
                        self._elsewhere = refusal.reason
                    if not elsewhere[i] or answered[i] < number:
                        continue
                elif refusal is not None and first is None:
                    first = _Refused(int(answered[i]), *refusal)
                if answered[i] == number:
                    if refusal is None:
                        return None
                    heard += 1
                    may_come = heard == 1 and (self._elsewhere or self._crosses)
                    may_come = may_come and self._acks.other_domains_may_answer(connection.info.domain)
                    if first is not None and not may_come:
                        return first
            if number == 0 and not says.all():
                return None
            if first is not None and heard:
                patience = SECOND_ANSWER
        if first is not None and not self._elsewhere:
            self._crosses = False
            return first
        said = conditions.BATCH_NOT_ANSWERED(server=connection.server, seconds=_LOST_AFTER)
        raise NatsTimeoutError(said.with_text(f"{said}; {self._stranger}") if self._stranger else said)

    # When an answer is lost

    def _reconnect_or_raise(self, batch: Rows, error: NatsError, began: float) -> None:
        """Prepare to send the batch again after the connection, or an answer over it, was lost."""
        if self._doubtful is None:
            self._doubtful = self._committing
        silent = isinstance(error, NatsTimeoutError)
        if silent:
            try:
                self._check_stream_listens(batch)
            except PublishError:
                raise
            except NatsError as another:
                error = another
        patience = self._ack_timeout if silent else max(self._ack_timeout, self._lease.retries.timeout)
        if self._doubtful is not None and batch.ids is None:
            failed = self._with_row_status(error)
            if error.may_pass(established=True):
                failed = failed.with_topics(*failed.topics, Topic.MESSAGE_IDS)
            raise failed from None
        if clock.monotonic() - began > patience:
            raise self._with_row_status(error) from None
        try:
            self._lease.reconnect_or_raise(error)
        except NatsError as lasting:
            raise self._with_row_status(lasting) from None

    def _ask_if_stored_where_unsure(self, batch: Rows, since: float) -> bool:
        """Tell whether a batch of unknown fate is stored; False while the stream certainly knows its message ids."""
        age = clock.monotonic() - since
        if self._doubtful is None and self._lease.connection is self._at_first and age < self._initial.id_lifetime:
            return False
        state, memory = self._request_state_and_memory()
        if self._memory.knows_all_ids(memory, age):
            return False  # if it is stored after all, it is refused when it is sent again
        found = self._read_stored_ids(state)
        stored = are_among(batch.ids, found.ids)
        if self._initial.keeps_last_values:
            stored |= are_unstored_but_replaced(batch.subjects, stored)
        if found.removed and not stored.all():
            self._raise_failed(conditions.BATCH_STORED_UNKNOWN(stream=self._name, reason=found.removed))
        if self.are_stored_or_raise_if_partly(batch.ids, stored):
            return True
        self._memory = memory
        self._doubtful = self._committing = None
        self._looked = clock.monotonic()
        return False

    def _check_stream_listens(self, batch: Rows) -> None:
        """Raise if the stream does not listen on a row's subject: another responder there sends no acknowledgement."""
        subjects = pc.unique(batch.subjects).to_pylist()
        if subjects_not_heard(self._initial, subjects, self._js.prefix):
            absent = subjects_not_heard(self._request_state_and_memory()[0], subjects, self._js.prefix)
            if absent:
                row, reason = pc.index(batch.subjects, absent[0]).as_py(), self._stranger or UNANSWERED
                self._raise_failed(conditions.ROW_REFUSED(stream=self._name, row=row, subject=absent[0], reason=reason))

    def _request_state_and_memory(self) -> tuple[StreamInfo, IdMemory]:
        """Return the stream's state, and what holds its message ids."""

        def ask(js: JetStream) -> tuple[StreamInfo, IdMemory, bool]:
            state = ask_stream_info(js, self._name)
            is_same = state.created == self._initial.created or ask_if_intact(js, end_position_of(self._initial), state)
            return state, id_memory_of(js, state), is_same

        state, memory, is_same = self._js.ask_with_retries(ask)
        if not is_same:
            self._raise_failed(conditions.TARGET_MADE_AGAIN(stream=self._name, created=state.created))
        return state, memory

    # Message ids

    def _read_stored_ids(self, state: StreamInfo) -> StoredIds:
        """Return what the stream has stored since the batch may have been sent first."""
        return self._js.ask_with_retries(lambda js: wait_and_read_ids(js, self._initial, state, self._since))

    def _ask_if_all_known(self, batch: Rows, reason: str) -> bool:
        """Tell whether a batch with a message id that the stream knows is stored: it is if all ids are known."""
        if batch.ids is None:  # only some rows have ids
            self._raise_failed(conditions.BATCH_REFUSED(stream=self._name, reason=reason))
        name, domain, subjects, ids = self._name, self._initial.domain, batch.subjects, batch.ids
        if self._initial.replicas == 1:
            known = self._lease.ask_with_retries(
                lambda connection: ask_which_ids_are_known(connection, name, domain, subjects, ids)
            )
        elif self._elsewhere:  # a refusal, which is all that tells, names no domain
            known = are_among(ids, self._read_stored_ids(self._request_state_and_memory()[0]).ids)
        else:
            pairs = zip(subjects.to_pylist(), ids.to_pylist(), strict=True)
            known = np.array([self._ask_if_id_known(subject, message_id) for subject, message_id in pairs])
        if self._initial.keeps_last_values:
            known = known | are_unstored_but_replaced(subjects, known)
        stored = self.are_stored_or_raise_if_partly(batch.ids, known)
        if stored and self._doubtful is None:
            self.duplicates = self._rows
        return stored

    def _ask_if_id_known(self, subject: str, message_id: str) -> bool:
        """Ask whether a stream with several replicas knows a message id, and change nothing.

        It sends a batch with that id, whose second message has a header that no batch may have. So the batch cannot be
        stored, and it is refused for what is wrong with the first message, if anything is.
        """
        headers = byte_strings([encode_block({MSG_ID: message_id}), encode_block({EXPECTED_MSG_ID: clock.token(16)})])
        probe = Rows(np.arange(2), texts([subject] * 2), byte_strings([b""] * 2), headers, None)
        began = clock.monotonic()
        while True:
            try:
                refused = self._lease.ask_with_retries(lambda connection: self._send_and_await(connection, probe))
            finally:
                self._committing = None  # a probe is never stored
            if refused is None or refused.verdict in (Verdict.REPEATED, *FINAL):
                return refused is not None and refused.verdict is Verdict.REPEATED
            if clock.monotonic() - began > (patience := self._ack_timeout):
                self._raise_failed(
                    conditions.BATCH_IDS_NOT_SAID(stream=self._name, seconds=patience, reason=refused.reason)
                )
            self._pause_before_retry()

    def are_stored_or_raise_if_partly(self, ids: pa.Array, stored: Mask) -> bool:
        """Return True if all rows of a batch are stored, False if none is.

        Raises:
            PublishError: only some of them are, as far as the stream knows their ids.
        """
        rows, count = np.flatnonzero(stored), len(stored)
        if 0 < len(rows) < count:
            names = ", ".join(f"{row} ({ids[row].as_py()!r})" for row in rows[:_SHOWN].tolist())
            names += f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
            raise PublishError(conditions.PARTLY_STORED(stream=self._name, stored=len(rows), rows=count, which=names))
        return len(rows) == count

    # Errors

    def _raise_refusal(self, batch: Rows, refused: _Refused) -> NoReturn:
        """Raise the batch's refusal, naming the row if that is known."""
        number, reason = refused.number, refused.reason + advise_if_full(refused.reason)
        found = None
        if refused.verdict is Verdict.CONFLICT:
            with contextlib.suppress(NatsError):  # a user who may write may not be allowed to ask
                found = self._ask_conflict(batch, reason)
        if found is None and number == self._rows - 1 > 0:  # a refusal of the commit may concern any row
            self._raise_failed(conditions.BATCH_REFUSED(stream=self._name, reason=reason))
        number, reason = found or (number, reason)
        subject = str(batch.subjects[number])
        self._raise_failed(conditions.ROW_REFUSED(stream=self._name, row=number, subject=subject, reason=reason))

    def _ask_conflict(self, batch: Rows, reason: str) -> tuple[int, str] | None:
        """Return the first row that expects a wrong last message, and why; None if none does any more.

        None as well if it is unknown under which subject the stream has the rows.
        """
        transform = self._initial.config.get("subject_transform")
        blocks = byte_strings([batch.header(i) for i in range(batch.size)])
        for row, value in enumerate(first_header_values(blocks, EXPECTED_REVISION).to_pylist()):
            if value is not None:
                subject = str(batch.subjects[row])
                stored = transform_subject(subject, transform) if transform else subject
                if stored is None:
                    return None
                last = ask_last_sequence(self._js.js, self._name, [stored])
                if (expected := value.decode("utf-8", "replace")) != str(last):
                    return row, conflict_reason(expected, reason)
        return None

    def _with_row_status(self, error: NatsError) -> NatsError:
        """Return the error, extended by what became of the rows."""
        return error.with_message(f"{error}; {self._row_status_text()}")

    def _raise_failed(self, why: ConditionText) -> NoReturn:
        raise PublishError(why.with_text(f"{why}; {self._row_status_text()}"))

    def _row_status_text(self) -> str:
        if self._doubtful is not None or self._committing is not None:
            became = f"this task's {self._rows} rows were sent and not answered (all of them may be stored, or none)"
        else:
            became = f"none of this task's {self._rows} rows was stored"
        return f"{became}; {self._elsewhere}" if self._elsewhere else became
