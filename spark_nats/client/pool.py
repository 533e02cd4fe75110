"""Connections kept for the next task of the same process.

Spark runs one task after another in the same Python worker, so the pool keeps an idle connection for its
``idle_timeout``. Then the pool closes it: a query that has ended must not leave open connections.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from spark_nats import clock
from spark_nats.client.choosing import note_sought_in_vain, note_unreachable, servers_maybe_named
from spark_nats.client.connection import Connection, connect
from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.client.retrying import Result, Retries
from spark_nats.client.servers import Server
from spark_nats.conditions.client import SERVER_SHUTTING_DOWN
from spark_nats.errors import (
    AuthorizationError,
    JetStreamError,
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    ServerError,
)

MAX_TASK_RECONNECTS = 60  # maximum attempts to connect again, in a row, in a task whose options set no number


class _Pool:
    """The idle connections; while there are any, a thread runs that closes them in time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[tuple[float, Connection]] = []  # each with the time to close it
        self._closer: threading.Thread | None = None
        self._wakes = 0.0  # when the thread wakes next

    def try_lend_idle(self, options: ConnectionOptions, waits: bool, name: str | None = None) -> Connection | None:
        """Return an idle connection whose server is not known to be shutting down; None when there is none.

        With a ``name``, only a connection to the server of that name is returned.
        ``waits``: wait for the answer to a PING; else :meth:`~.link.Link.queue_ping_with_deadline` only sends it, and a
        later wait for bytes detects that the answer is missing.
        """
        while True:
            with self._changed:
                fitting = [
                    i
                    for i, (_, connection) in enumerate(self._idle)
                    if connection.options == options and name in (None, connection.info.server_name)
                ]
                if not fitting:
                    return None
                _, connection = self._idle.pop(fitting[-1])
            try:
                if waits:
                    connection.flush(options.connect_timeout)
                else:
                    connection.queue_ping_with_deadline()
            except NatsError as error:
                connection.close()
                if not isinstance(error, AuthorizationError):  # a login that has ended says nothing about the server
                    note_unreachable(connection.server)
                self.close_idle_to(connection.server)
                continue
            if not connection.lame_duck:
                return connection
            connection.close()

    def close_idle_to(self, server: Server) -> None:
        """Close the idle connections to a server after one was lost, because each would cost the same timeout."""
        with self._changed:
            self._close_idle(lambda _, connection: connection.server == server)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next borrower, unless it is closed or its server is shutting down."""
        if connection.lame_duck:
            connection.close()
        if connection.closed:
            return
        with self._changed:
            until = clock.monotonic() + connection.options.idle_timeout
            self._idle.append((until, connection))
            if self._closer is not None:
                if until < self._wakes:
                    self._changed.notify()
            else:
                self._closer = threading.Thread(target=self._run_idle_closer, name="nats-idle-closer", daemon=True)
                self._closer.start()

    def _run_idle_closer(self) -> None:
        with self._changed:
            while self._idle:
                now = clock.monotonic()
                self._close_idle(lambda until, _: until <= now)  # noqa: B023 - called here only
                if self._idle:
                    self._wakes = min(until for until, _ in self._idle)
                    self._changed.wait(self._wakes - now)
            self._closer = None

    def _close_idle(self, chosen: Callable[[float, Connection], bool]) -> None:
        for until, connection in self._idle:
            if chosen(until, connection):
                connection.close()
        self._idle = [(until, connection) for until, connection in self._idle if not connection.closed]


_pool = _Pool()


def _replace_pool_after_fork() -> None:
    """Start with an empty pool in a forked process, which must not use the connections of its parent."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_replace_pool_after_fork)


@contextlib.contextmanager
def borrow(options: ConnectionOptions, waits: bool = True) -> Iterator[Connection]:
    """Lend an idle connection, or a new one when there is none; raise NatsError when none can be made.

    The connection is kept afterwards. After an error of the borrower, the connection is closed: its state is unknown.

    Args:
        options: the settings of the connection.
        waits: whether to wait until the server of an idle connection answers a PING. A borrower that retries after a
            lost connection, or that loses nothing by it, need not wait, which saves a round trip.
    """
    connection = _pool.try_lend_idle(options, waits) or connect(options)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    _pool.give_back(connection)


def take_idle_or_connect(options: ConnectionOptions) -> Connection:
    """Return an idle connection, or a new one when there is none; the caller closes it."""
    return _pool.try_lend_idle(options, waits=False) or connect(options)


class Lease:
    """A leased connection that is replaced by another one when it is lost.

    Every call that needs a connection, including the constructor, raises NatsError when retries cannot make one.

    Args:
        options: the settings of the connection.
        retries: the retries of lost connections.
        connection: the first connection; None for an idle or a new one. The attribute is the present connection.
        waits: whether to wait until the server of an idle connection answers a PING.

    Attributes:
        reconnects: how often the connection was replaced, or could not be made at once.
    """

    def __init__(
        self, options: ConnectionOptions, retries: Retries, connection: Connection | None = None, waits: bool = True
    ) -> None:
        self._options = options
        self._waits = waits
        self.retries = retries
        self.reconnects = 0
        self.connection = connection or self._connect_with_retries(None)

    def reconnect_or_raise(self, error: NatsError) -> Connection:
        """Close the connection because of an error, wait, and return another one, if possible to another server.

        When the server is shutting down (lame duck mode), there is no wait and no failure is counted. The error, or
        the last attempt's, is raised when it cannot pass or has not passed within the timeout.
        """
        if self.connection.lame_duck and error.may_pass(established=False):
            return self.move_to_another_server()
        self.connection.close()
        _pool.close_idle_to(self.connection.server)
        self.retries.wait_or_raise(error)
        self.connection = self._connect_with_retries(self.connection.server)
        return self.connection

    def move_to_another_server(self) -> Connection:
        """Replace a connection whose server is shutting down by a connection to another server."""
        note_unreachable(self.connection.server)
        self.connection.close()
        self.connection = self._connect_with_retries(self.connection.server)
        return self.connection

    def try_move_to_server(self, name: str) -> None:
        """Go on over a connection to the server of a name, if one can be had without trying again; else as before.

        Such a server does the same for less. The address of the server is known if this process has connected to it.
        Else a few connections, made once, find out who is where. The connection that is left stays idle.
        """
        if not name or self.connection.info.server_name == name or self.connection.lame_duck:
            return
        found = _pool.try_lend_idle(self._options, self._waits, name)
        for server in () if found else servers_maybe_named(self._options, name):
            try:
                another = Connection(server, self._options)
            except (NatsError, OSError):
                note_sought_in_vain(server)
                return  # the next task of this machine seeks elsewhere, so that none waits twice
            if another.info.server_name == name and not another.lame_duck:
                found = another
                break
            _pool.give_back(another)
        if found is not None:
            _pool.give_back(self.connection)
            self.connection = found

    def ask_with_retries(self, question: Callable[[Connection], Result]) -> Result:
        """Return the answer to a question; ask again while its error may pass, else raise the error.

        After an error of the JetStream API, unless JetStream is unavailable, the retry uses the same connection.
        """
        while True:
            try:
                answer = question(self.connection)
            except NatsError as error:
                if isinstance(error, JetStreamError) and not isinstance(error, JetStreamUnavailableError):
                    self.retries.wait_or_raise(error)
                else:
                    self.reconnect_or_raise(error)
            else:
                self.note_success()
                return answer

    def read_with_retries(self, reading: Callable[[Connection], Iterator[Result]]) -> Iterator[Result]:
        """Yield the results of a read; when the connection is lost, call ``reading`` again with another one.

        ``reading`` must resume where it was. An error that cannot pass, or has not passed in time, is raised.
        """
        while True:
            try:
                yield from reading(self.connection)
                return
            except (NatsConnectionError, NatsTimeoutError, ServerError, JetStreamUnavailableError) as error:
                self.reconnect_or_raise(error)

    def note_success(self) -> None:
        """Record that the connection has delivered a result."""
        self.retries.note_success()

    def _connect_with_retries(self, lost: Server | None) -> Connection:
        again = lost is not None
        while True:
            try:
                connection = _pool.try_lend_idle(self._options, self._waits) or connect(self._options, lost)
                if connection.lame_duck:
                    connection.close()
                    raise NatsConnectionError(SERVER_SHUTTING_DOWN(server=connection.server))
                self.reconnects += again
                return connection
            except NatsError as error:
                self.retries.wait_or_raise(error)
                again = True


@contextlib.contextmanager
def leased(options: ConnectionOptions, retries: RetryOptions, what: str, waits: bool = True) -> Iterator[Lease]:
    """Lease a connection to a task, as :func:`borrow` does, but one that can be replaced when it is lost.

    The driver has logged in before, so a refusal of the credentials is final only when a server repeats it.

    ``what`` names the task in the log; ``waits`` is that of :func:`borrow`.
    """
    retries = replace(retries, attempts=retries.attempts or MAX_TASK_RECONNECTS)
    lease = Lease(options, Retries(retries, what, established=True), waits=waits)
    try:
        yield lease
    except BaseException:
        lease.connection.close()
        raise
    _pool.give_back(lease.connection)
