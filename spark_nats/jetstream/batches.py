"""Rows that a stream stores together or not at all: atomic batches (ADR-50), of nats-server 2.12 and later.

The messages of a batch carry its id and their numbers in it; the server keeps them aside until the last one commits
the batch. Before that nothing is stored, and what is not committed within ten seconds is dropped; so whatever is lost
before the commit was sent is simply sent again, as a batch with another id. Once it was sent, the answer may be lost,
and then only message ids tell whether the batch is stored. A batch is not answered with *duplicate* as a message is:
the server refuses one in which it knows any message id, so then each of them is asked for.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from spark_nats.client.connection import Connection
from spark_nats.client.pool import Loan
from spark_nats.client.publishing import cut_into_parts
from spark_nats.client.retrying import may_pass
from spark_nats.client.subscriptions import Subscription
from spark_nats.errors import NatsError, NatsTimeoutError, PublishError, Remedy
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.doubts import state_beyond_doubt
from spark_nats.jetstream.stored import StoredIds, is_among, kept_until, known_ids, stored_ids
from spark_nats.jetstream.streams import StreamInfo, last_sequence, stream_info
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.bytecolumns import Mask, decimals, strings, texts
from spark_nats.protocol.headers import (
    EXPECTED_MSG_ID,
    EXPECTED_REVISION,
    MSG_ID,
    encode_block,
    header_values,
    number_batch,
)
from spark_nats.protocol.publish_acks import PublishAcks, Refusal, Verdict, expecting
from spark_nats.protocol.subject_columns import SubjectMatcher

MOST_ROWS = 1000
"""Messages that a batch may have, unless a server is configured to take fewer or more."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds before a batch is sent again
_LOST_AFTER = 5.0  # seconds without any answer after which it is taken for lost
_SHOWN = 3  # message ids named in an error


class _Batch(NamedTuple):
    """Rows to be stored together; see :meth:`BatchPublisher.publish`."""

    subjects: pa.Array
    payloads: pa.Array
    headers: pa.Array
    ids: pa.Array | None


class _Refused(NamedTuple):
    """Why a batch was not stored, and in answer to which of its messages that was said."""

    number: int
    refusal: Refusal


class BatchPublisher:
    """Stores one batch of rows in a stream.

    Args:
        loan: the connection, and others when it is lost.
        began: the stream as it was before the batch was sent.
        ack_timeout: seconds after which a server that does not take the batch, over a connection that works, is given
            up.
        api_prefix: first tokens of the subjects of JetStream's API.

    Attributes:
        duplicates: how many of the rows the stream had before they were sent here, by their message ids.
    """

    def __init__(self, loan: Loan, began: StreamInfo, ack_timeout: float, api_prefix: str = API_PREFIX) -> None:
        self._loan = loan
        self._began = began
        self._ack_timeout = ack_timeout
        self._api_prefix = api_prefix
        self._acks = PublishAcks(began.name)
        self._committing = False  # a commit was sent and is not answered
        self._doubtful: float | None = None  # since when the batch may be stored without an answer that said so
        self._pause = _FIRST_PAUSE
        self._rows = 0
        self.duplicates = 0

    def publish(self, subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None, ids: pa.Array) -> None:
        """Store rows, which must be valid and at least one; returns when the stream has all of them.

        Args:
            subjects: string column without null.
            payloads: string or binary column without null.
            headers: binary column of header blocks, null where a row has none; None when no row has one.
            ids: the message ids that the headers hold, null where a row has none. Unless all of them have one, a
                batch whose answer is lost is an error.

        Raises:
            PublishError: the stream refused the batch, or did not take it in time; the message says whether it may be
                stored.
            NatsError: the connection failed, likewise.
        """
        blocks = pa.nulls(len(subjects), pa.binary()) if headers is None else headers
        batch = _Batch(subjects, payloads, blocks, None if ids.null_count else ids)
        self._rows = len(subjects)
        began = time.monotonic()
        while not self._try(batch, began):
            self._wait()

    def _try(self, batch: _Batch, began: float) -> bool:
        """Send the batch once; return whether it is stored."""
        try:
            if self._doubtful is not None and self._was_stored(batch, self._doubtful):
                return True
            if self._loan.connection.retiring:
                self._loan.move()
            refused = self._exchange(self._loan.connection, batch)
            self._loan.works()
            if refused is None or self._was_refused_for_itself(batch, refused):
                return True
        except PublishError:
            raise
        except NatsError as error:
            self._lost(batch, error, began)
            return False
        # A message id that got lost with a leader may be in process until the stream forgets it.
        in_process = refused.refusal.verdict is Verdict.IN_PROCESS
        patience = self._ack_timeout + (self._began.duplicate_window if in_process else 0.0)
        if time.monotonic() - began > patience:
            self._give_up(f"has not taken the batch for {patience:g} s: {refused.refusal.reason}")
        return False

    def _was_refused_for_itself(self, batch: _Batch, refused: _Refused) -> bool:
        """Tell of a batch that was refused whether it is stored already; else it may be sent again.

        Raises:
            PublishError: it was refused for good.
        """
        verdict = refused.refusal.verdict
        if verdict is Verdict.REPEATED:
            return self._all_known(batch, refused.refusal.reason)
        if verdict in (Verdict.NO, Verdict.CONFLICT) or (verdict is Verdict.AWAY and not self._listens(batch, refused)):
            self._report(batch, refused)
        return False

    def _wait(self) -> None:
        with contextlib.suppress(NatsError):  # whoever uses the connection next is told
            self._loan.connection.wait(
                random.uniform(self._pause / 2, self._pause)  # noqa: S311 - so that tasks do not come in step
            )
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    # Sending

    def _exchange(self, connection: Connection, batch: _Batch) -> _Refused | None:
        """Send a batch under a new id; return why it was not stored.

        Raises:
            NatsError: the connection was lost, or an answer.
        """
        self._committing = False
        inbox = connection.new_inbox()
        answers = connection.subscribe(f"{inbox}.*")
        rows = len(batch.subjects)
        columns = (
            batch.subjects,
            batch.payloads,
            number_batch(batch.headers, secrets.token_hex(8)),
            texts([f"{inbox}.{number}" for number in range(rows)]),
        )
        refused = None
        if rows > 1:  # whether there is room for a batch is said at its beginning
            connection.publish_columns(*(column[:1] for column in columns))
            refused = self._await(connection, answers, 0)
        if refused is None:
            between = [column[1:-1] for column in columns]
            for part in cut_into_parts(between[1], between[2], rows):
                connection.publish_columns(*(column[part] for column in between))
            self._committing = True
            connection.publish_columns(*(column[rows - 1 :] for column in columns))
            refused = self._await(connection, answers, rows - 1)
            self._committing = False
        connection.unsubscribe(answers)
        return refused

    def _await(self, connection: Connection, answers: Subscription, number: int) -> _Refused | None:
        """Await the answer to one of the messages; return why that, or one before it, was refused.

        Raises:
            NatsTimeoutError: it has not come.
            NatsError: the connection was lost.
        """
        first: _Refused | None = None
        while (messages := connection.next(answers, _LOST_AFTER)) is not None:
            # An answer of no bytes says that the message is kept aside.
            says = (messages.payload.end > messages.payload.start) | (messages.header.end > messages.header.start)
            prefix = len(answers.subject) - 1
            answered, valid = decimals(messages.buffer, messages.subject.start + prefix, messages.subject.end)
            if not (valid & (answered <= number)).all():
                self._give_up("was sent a batch, and an answer came that belongs to no row of it")
            for i in np.flatnonzero(says).tolist():
                refusal = self._acks.refusal(messages, i)
                if refusal is not None and first is None:
                    first = _Refused(int(answered[i]), refusal)
                if answered[i] == number:
                    return first
            if number == 0 and not says.all():
                return None
        raise NatsTimeoutError(f"{connection.server} has not answered a batch for {_LOST_AFTER:g} s")

    # When an answer is lost

    def _lost(self, batch: _Batch, error: NatsError, began: float) -> None:
        """Get ready to send the batch again after the connection, or an answer over it, was lost.

        Raises:
            NatsError: it is not known whether the batch is stored, or that takes too long.
        """
        if self._committing and self._doubtful is None:
            self._doubtful = time.monotonic()
        silent = isinstance(error, NatsTimeoutError)
        patience = self._ack_timeout if silent else max(self._ack_timeout, self._loan.retries.timeout)
        if self._doubtful is not None and batch.ids is None:
            failed = self._failed(error)
            if may_pass(error, known=True):
                failed.remedies = (*failed.remedies, Remedy.MESSAGE_IDS)
            raise failed from None
        if time.monotonic() - began > patience:
            raise self._failed(error) from None
        try:
            self._loan.renew(error)
        except NatsError as lasting:
            raise self._failed(lasting) from None

    def _was_stored(self, batch: _Batch, since: float) -> bool:
        """Tell whether a batch is stored that may be, if the stream may have forgotten its message ids since."""
        state = self._state()
        if state.knows_again(time.monotonic() - since):
            return False  # if it is all the same, it is refused when it is sent again
        found = self._loan.ask(lambda connection: self._stored(JetStream(connection, self._api_prefix), state))
        if found.removed:
            self._give_up(f"may have stored the batch, which cannot be told any more, since {found.removed}")
        if self._all_or_none(batch.ids, is_among(batch.ids, found.ids)):
            return True
        self._doubtful = None
        return False

    def _stored(self, js: JetStream, state: StreamInfo) -> StoredIds:
        state = state_beyond_doubt(js, state)
        return stored_ids(js, state, kept_until(js, self._began, state))

    def _state(self) -> StreamInfo:
        name = self._began.name
        state = self._loan.ask(lambda connection: stream_info(JetStream(connection, self._api_prefix), name))
        if state.created != self._began.created:
            self._give_up(f"was deleted and made again at {state.created}")
        return state

    # Message ids

    def _all_known(self, batch: _Batch, reason: str) -> bool:
        """Tell whether a batch is stored in which the stream knows a message id: it is if the stream knows all of them.

        Raises:
            PublishError: it knows some of them, or which it knows cannot be told.
        """
        if batch.ids is None:  # some rows have ids of their own
            self._give_up(f"refused the batch: {reason}")
        if self._began.replicas == 1:
            name, subjects, ids = self._began.name, batch.subjects, batch.ids
            known = self._loan.ask(lambda connection: known_ids(connection, name, subjects, ids))
        else:
            pairs = zip(batch.subjects.to_pylist(), batch.ids.to_pylist(), strict=True)
            known = np.array([self._knows(subject, message_id) for subject, message_id in pairs])
        stored = self._all_or_none(batch.ids, known)
        if stored and self._doubtful is None:
            self.duplicates = self._rows
        return stored

    def _knows(self, subject: str, message_id: str) -> bool:
        """Ask whether a stream with replicas knows a message id, and change nothing.

        A batch is sent with that id, whose second message has a header that no batch may have. So it cannot be stored,
        and it is refused for what is wrong with the first message, if anything is.
        """
        headers = strings([encode_block({MSG_ID: message_id}), encode_block({EXPECTED_MSG_ID: secrets.token_hex(16)})])
        probe = _Batch(texts([subject] * 2), strings([b""] * 2), headers, None)
        began = time.monotonic()
        while True:
            refused = self._loan.ask(lambda connection: self._exchange(connection, probe))
            if refused is None or refused.refusal.verdict in (Verdict.REPEATED, Verdict.NO):
                return refused is not None and refused.refusal.verdict is Verdict.REPEATED
            if time.monotonic() - began > self._ack_timeout:
                self._give_up(f"has not said for {self._ack_timeout:g} s what it knows: {refused.refusal.reason}")
            self._wait()

    def _all_or_none(self, ids: pa.Array, stored: Mask) -> bool:
        """Tell whether all rows are stored or none.

        Raises:
            PublishError: some are, so that the batch cannot be stored whole any more.
        """
        if stored.any() and not stored.all():
            raise partly_stored(self._began.name, ids, stored)
        return bool(stored.all())

    # Errors

    def _listens(self, batch: _Batch, refused: _Refused) -> bool:
        """Tell whether the stream listens on the subject for which nobody has answered."""
        subject = batch.subjects[refused.number : refused.number + 1].cast(pa.binary())
        return bool(SubjectMatcher(self._state().subjects).match(subject).any())

    def _report(self, batch: _Batch, refused: _Refused) -> NoReturn:
        """Raise what the batch was refused for, naming the row if that is known."""
        number, reason = refused.number, refused.refusal.reason
        if refused.refusal.verdict is Verdict.CONFLICT:
            with contextlib.suppress(NatsError):  # a user who may write may not be allowed to ask
                number, reason = self._find_conflict(batch, reason)
        elif number == self._rows - 1 > 0:  # what is said at the end may be about any of them
            self._give_up(f"refused the batch: {reason}")
        self._give_up(f"refused row {number} (subject {str(batch.subjects[number])!r}): {reason}")

    def _find_conflict(self, batch: _Batch, reason: str) -> tuple[int, str]:
        """Return the first row that expects another last message of its subject than there is, and that."""
        js = JetStream(self._loan.connection, self._api_prefix)
        for number, value in enumerate(header_values(batch.headers.fill_null(b""), EXPECTED_REVISION).to_pylist()):
            if value is not None:
                last = last_sequence(js, self._began.name, [str(batch.subjects[number])])
                if (expected := value.decode("utf-8", "replace")) != str(last):
                    return number, expecting(expected, reason)
        raise NatsError("there is none now")

    def _failed(self, error: NatsError) -> NatsError:
        """Return what has failed with what became of the rows."""
        return error.with_context(f"{error}; {self._fate()}")

    def _give_up(self, why: str) -> NoReturn:
        raise PublishError(f"stream {self._began.name!r} {why}; {self._fate()}")

    def _fate(self) -> str:
        if self._doubtful is not None:
            return f"this task's {self._rows} rows were sent and not answered (all of them may be stored, or none)"
        return f"none of this task's {self._rows} rows was stored"


def partly_stored(stream: str, ids: pa.Array, stored: Mask) -> PublishError:
    """Return the error that a batch cannot be stored whole, since the stream has some of its rows.

    Args:
        stream: its name.
        ids: string column of the rows' message ids.
        stored: which rows it has.
    """
    rows = np.flatnonzero(stored)
    names = ", ".join(f"{row} ({ids[row].as_py()!r})" for row in rows[:_SHOWN].tolist())
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return PublishError(
        f"stream {stream!r} has {len(rows)} of the {len(stored)} rows of this task already, by their message ids, so "
        f"that they cannot be stored together: rows {names}{more}; none was stored now"
    )
