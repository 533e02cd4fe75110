"""Publishes columns of rows to a stream, and awaits an acknowledgement of each row.

The stream stores rows in the order in which they were given, except where JetStream itself stores some and not those
before them: it may refuse a row and store the next one (429, 503), and a failing leader may lose rows while the next
leader stores later ones. Once an answer comes out of order, the publisher sends nothing more until the answers to
all earlier rows have come or are lost.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from spark_nats import clock
from spark_nats.client.connection import Connection
from spark_nats.client.pool import Lease
from spark_nats.conditions import Topic
from spark_nats.errors import NatsError, PublishError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.id_memory import memory_of
from spark_nats.jetstream.publishing.acknowledged import Acknowledged, PublishLedger
from spark_nats.jetstream.publishing.conflicts import ConflictResolver
from spark_nats.jetstream.publishing.flight import Rows, Window
from spark_nats.jetstream.publishing.recovery import Recovery
from spark_nats.jetstream.publishing.sending import Aside, LameDuckError, Sender
from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.protocol.api import API_PREFIX
from spark_nats.protocol.publish_acks import PublishAcks

SURE_WITHIN = 0.25
"""Seconds within which a stream cannot lose acknowledged messages and store others: a server would first have to end
and come back with less."""


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
        memory = memory_of(JetStream(connection, api_prefix), stream)
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
        window = Window(max_in_flight)
        self._sender = Sender(connection, acks, self._ledger, window, self._recovery, resolve, lease, on_stored, aside)
        self._has_moved = False  # whether another connection is used than at first
        self._began = math.inf  # when the first row was given

    @property
    def confirmed(self) -> int:
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
        return self._ledger.flight.in_flight

    @property
    def window(self) -> int:
        """How many rows may be in flight at the moment."""
        return self._sender.window.size

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
            self.drain()
        if not len(subjects):
            self._keep_trying(self._sender.send_queue)  # the server may have sent a PING
            return
        if not self._ledger.pending:  # no row was waiting, so the last one may have been stored long ago
            self._sender.last_stored = self._recovery.last_progress = clock.monotonic()
        self._began = min(self._began, clock.monotonic())
        first = self._ledger.given
        self._ledger.given += len(subjects)
        ids = None if ids is None or ids.null_count else ids
        self._ledger.all_ids &= ids is not None
        numbers = np.arange(first, self._ledger.given)
        self._ledger.queue.append(Rows(numbers, subjects, payloads, headers, ids, conditional=conditional))
        self._keep_trying(self._sender.send_queue)

    def ask(self, question: Callable[[JetStream], None]) -> None:
        """Ask a question over the connection that carries the rows; over another one, if it is lost.

        Raises:
            NatsError: what the question raised cannot pass, or the connection failed.
        """
        self._keep_trying(lambda: question(JetStream(self._sender.connection, self._recovery.api_prefix)))

    def drain(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            PublishError: the server refused a row, or stopped answering.
            NatsError: the connection failed.
        """
        self._keep_trying(self._sender.finish)

    def verify(self) -> None:
        """Check that the stream still has what it has acknowledged; to be called after :meth:`drain`.

        It takes one request, unless the stream's leader may have changed or a loss shows.

        Raises:
            PublishError: the stream has lost rows, is missing or recreated, or has no leader that answers.
            NatsError: the connection failed.
        """
        self._keep_trying(lambda: self._sender.verify(closely=self._has_moved))

    @property
    def needs_verifying(self) -> bool:
        """Whether :meth:`verify` may find a loss: not after a short, undisturbed run over one connection."""
        was_disturbed = self._has_moved or self._ledger.acknowledged.fallen is not None
        return was_disturbed or clock.monotonic() - self._began > SURE_WITHIN

    def finish(self) -> None:
        """Wait until every row is acknowledged and, if that may not be so, check that the stream has them all; end."""
        self.drain()
        if self.needs_verifying:
            self.verify()
        self.close()

    def close(self) -> None:
        """End the subscription to acknowledgements."""
        self._sender.close()

    def move_to(self, connection: Connection) -> None:
        """Send over another connection from now on; no row is in flight on it yet."""
        self._sender.move_to(connection)
        self._has_moved = True

    def _keep_trying(self, work: Callable[[], None]) -> None:
        """Do work that sends and receives, over another connection when one is lost; errors report the rows' fate."""
        try:
            while not self._try(work):
                pass
        except NatsError as error:
            raise error.with_context(f"{error}; {self._ledger}") from None

    def _try(self, work: Callable[[], None]) -> bool:
        """Do the work; return whether it was done before the connection was lost, or its server shut down."""
        try:
            work()
            return True
        except PublishError:
            raise
        except NatsError as error:
            self._continue_elsewhere(error)
        except LameDuckError:
            assert self._lease is not None  # noqa: S101 - without a lease, nobody leaves the server
            self.move_to(self._lease.move())
            # The stream may have lost its end with the server that shut down; nothing shows that once others fill it.
            self._try(lambda: self._sender.verify(closely=True))
        return False

    def _continue_elsewhere(self, error: NatsError) -> None:
        """Continue over another connection with the rows that were not acknowledged over the lost one."""
        with contextlib.suppress(PublishError):
            self._sender.drain_pending_acks()
        while self._lease is not None and self._sender.flight.can_repeat:
            connection = self._lease.renew(error)
            rows = [*self._sender.rest(), *self._ledger.queue]
            try:
                left = self._recovery.resume(JetStream(connection, self._recovery.api_prefix), rows)
                self.move_to(connection)
            except PublishError:
                raise
            except NatsError as another:
                error = another
            else:
                self._ledger.queue[:] = left
                self._sender.take_out_too_large()
                return
        if self._sender.flight.unstored and error.may_pass(established=True):
            error = error.about(*error.topics, Topic.MESSAGE_IDS)
        raise error
