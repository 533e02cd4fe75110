"""Receiving what core NATS delivers, in a thread, for a reader that comes for it now and then.

A :class:`Receiver` owns a connection and puts whatever arrives into a :class:`Backlog`, as the bytes that came: the
decoder finds where messages end, and nothing is built of them here. Several receivers may share one backlog. While its
reader is busy with other things, the receiver answers PING, and it connects again when the connection is lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence

from spark_nats.client.backlog import Backlog, Piece, clock
from spark_nats.client.connection import Connection, connect
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.subscriptions import Subscription
from spark_nats.errors import AuthorizationError, NatsError, PermissionsError
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

_POLL = 0.25  # seconds after which a thread looks whether it is to end
_LONGEST_WAIT = 2.0  # seconds between two attempts to connect again
_SETTLED = 10.0  # seconds that a connection must have lived for the next one to be tried at once
_CLOSE_TIMEOUT = 10.0  # seconds that a thread has to drain and end


class Receiver:
    """A subscription that a thread reads, from a connection of its own, until it is closed.

    Args:
        options: where to connect.
        subjects: what to subscribe to.
        queue: the queue group, if any.
        backlog: where to put the messages.

    Raises:
        NatsError: the server cannot be reached or refuses the subscription.
    """

    def __init__(
        self, options: ConnectionOptions, subjects: Sequence[str], queue: str | None, backlog: Backlog
    ) -> None:
        self._options = options
        self._subjects = subjects
        self._queue = queue
        self._backlog = backlog
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._connection, self._subscription = self._subscribe()
        self._since = time.monotonic()
        self._wait = 0.0
        self._thread = threading.Thread(target=self._run, name="nats-receiver", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what has ended the thread, if anything has.

        Raises:
            NatsError: the server does not let us in any more, or took the permission to subscribe away.
        """
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Unsubscribe, take in what is still on its way, and close the connection. Waits ten seconds at most."""
        self._stop.set()
        self._thread.join(_CLOSE_TIMEOUT)

    def _subscribe(self) -> tuple[Connection, Subscription]:
        connection = connect(self._options)
        try:
            subscription = connection.subscribe(*self._subjects, queue=self._queue)
            connection.flush()  # so that a refusal is known, and nothing published from now on is missed
        except BaseException:
            connection.close()
            raise
        return connection, subscription

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    messages = self._connection.next(self._subscription, _POLL)
                    if messages is not None:
                        self._keep(messages)
                except PermissionsError:
                    raise
                except NatsError as error:
                    self._keep_pending()
                    self._connect_again(error)
            with contextlib.suppress(NatsError):
                for messages in self._connection.drain(self._subscription):
                    self._keep(messages)
        except BaseException as error:
            self._failure = error
        finally:
            self._keep_pending()
            self._connection.close()

    def _keep(self, messages: Messages) -> None:
        self._backlog.add(Piece(messages.wire(), len(messages), time.time_ns() // 1000))

    def _keep_pending(self) -> None:
        for messages in iter(self._subscription.take, None):
            self._keep(messages)

    def _connect_again(self, error: NatsError) -> None:
        """Connect again, however long it takes.

        Raises:
            AuthorizationError: the server does not let us in any more.
            PermissionsError: the server refuses the subscription.
        """
        lost = time.time()
        self._connection.close()
        logger.warning(
            "%s; what is published to %s until it is made again is missed", error, self._subscription.subject
        )
        if time.monotonic() - self._since > _SETTLED:
            self._wait = 0.0
        while not self._stop.wait(self._wait):
            self._wait = min(max(0.1, 2 * self._wait), _LONGEST_WAIT)
            try:
                self._connection, self._subscription = self._subscribe()
            except (AuthorizationError, PermissionsError):
                raise
            except NatsError:
                continue
            else:
                self._since = time.monotonic()
                self._backlog.note_gap(
                    f"what was published from {clock(lost)} to {clock(time.time())} was missed, because there was no "
                    f"connection ({error})"
                )
                return
