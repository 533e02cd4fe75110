"""Receiving messages of core NATS in a thread, for a reader that takes them now and then.

A :class:`Receiver` owns a connection and puts what arrives into a :class:`Backlog`, as the bytes that came: the decoder
only finds where messages end. Several receivers may share one backlog. While the reader is busy with other things, the
receiver answers PING, connects again when the connection is lost, and moves to another server when its own is about to
shut down.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import replace

from spark_nats import clock
from spark_nats.client.connection import connect
from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.client.retrying import Retries
from spark_nats.client.subscriptions import Subscription
from spark_nats.conditions import Transient
from spark_nats.errors import NatsConnectionError, NatsError, PermissionsError
from spark_nats.kinds.core.backlog import Backlog, Piece, iso_time
from spark_nats.kinds.core.conditions import MESSAGES_MISSED
from spark_nats.protocol.messages import Messages

_POLL = 0.25  # seconds that a thread waits for messages before it checks whether it has to end
_CLOSE_TIMEOUT = 10.0  # seconds that a thread has to drain and end


class Receiver:
    """A subscription that a thread reads, over its own connection, until it is closed.

    It connects again with the waits and attempts of ``retries``, but without their timeout: no call waits for it.

    Raises:
        NatsError: the server cannot be reached or refuses the subscription.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        retries: RetryOptions,
        subjects: Sequence[str],
        queue: str | None,
        backlog: Backlog,
    ) -> None:
        self._options = options
        self._subjects = subjects
        self._queue = queue
        self._backlog = backlog
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        what = f"listening to {', '.join(subjects)}"
        self._retries = Retries(replace(retries, timeout=math.inf), what, established=True, sleep=self._stop.wait)
        self._connection = connect(options)
        self._subscription = self._subscribe()
        self._stays = False  # the server is about to shut down, and there is no other one
        self._thread = threading.Thread(target=self._receive_until_closed, name="nats-receiver", daemon=True)
        self._thread.start()

    def raise_if_ended(self) -> None:
        """Raise the error that ended the thread, such as a refusal after the permission to subscribe was revoked."""
        if self._failure is not None:
            raise self._failure

    def unsubscribe_drain_and_close(self) -> None:
        """Unsubscribe, receive what is still in flight, and close the connection; wait up to ten seconds for that."""
        self._stop.set()
        self._thread.join(_CLOSE_TIMEOUT)

    def _subscribe(self) -> Subscription:
        try:
            subscription = self._connection.subscribe(*self._subjects, queue=self._queue)
            self._connection.flush()  # so that a refusal is known, and nothing published from now on is missed
        except BaseException:
            self._connection.close()
            raise
        return subscription

    def _receive_until_closed(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    messages = self._connection.next(self._subscription, _POLL)
                    if messages is not None:
                        self._add_to_backlog(messages)
                    if self._connection.lame_duck and not self._stays:
                        self._leave_server_or_stay()
                except PermissionsError:
                    raise
                except NatsError as error:
                    self._add_pending_to_backlog()
                    self._reconnect_or_stop(error)
            self._drain_into_backlog()
        except BaseException as error:
            self._failure = error
        finally:
            self._add_pending_to_backlog()
            self._connection.close()

    def _drain_into_backlog(self) -> None:
        with contextlib.suppress(NatsError):
            for messages in self._connection.unsubscribe_and_drain(self._subscription):
                self._add_to_backlog(messages)

    def _add_to_backlog(self, messages: Messages) -> None:
        self._backlog.add_or_drop(Piece(messages.wire(), len(messages), clock.time_ns() // 1000))

    def _add_pending_to_backlog(self) -> None:
        for messages in iter(self._subscription.pop, None):
            self._add_to_backlog(messages)

    def _leave_server_or_stay(self) -> None:
        """Move from a server that is about to shut down to another one; if there is none, stay until it ends."""
        server = self._connection.server
        try:
            connection = connect(self._options, server)
        except NatsError:
            self._stays = True
            return
        since = clock.time()
        self._drain_into_backlog()
        self._add_pending_to_backlog()
        self._connection.close()
        self._connection = connection
        self._subscription = self._subscribe()
        self._note_gap(since, f"{server} is shutting down")

    def _reconnect_or_stop(self, error: NatsError) -> None:
        """Connect again, without a time limit; the retries may limit the attempts, and closing ends them.

        Raises:
            NatsError: a server refuses the subscription, or the login twice; or the attempts are used up.
        """
        lost, reason, server = clock.time(), error, self._connection.server
        self._connection.close()
        while True:
            if not error.may_pass(established=True):  # connecting worked before: the cause is in the servers
                error = NatsConnectionError(error.args[0], transient=Transient.ALWAYS)
            self._retries.wait_or_raise(error)
            if self._stop.is_set():
                return
            try:
                self._connection = connect(self._options, server)
                self._subscription = self._subscribe()
            except PermissionsError:
                raise
            except NatsError as another:
                error = another
            else:
                self._retries.note_success()
                self._stays = False
                self._note_gap(lost, f"there was no connection ({reason})")
                return

    def _note_gap(self, since: float, reason: str) -> None:
        subjects, until = ",".join(self._subjects), iso_time(clock.time())
        self._backlog.note_gap(MESSAGES_MISSED(subjects=subjects, since=iso_time(since), until=until, reason=reason))
