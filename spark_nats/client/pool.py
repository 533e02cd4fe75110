"""Connections kept for the next task of the same process.

Spark runs one task after another in the same Python worker, so a connection is worth keeping for a moment. It is closed
when nobody has asked for it for its ``idle_timeout``: a query that has ended must not leave connections behind.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from spark_nats import clock
from spark_nats.client.choosing import avoid
from spark_nats.client.connection import Connection
from spark_nats.client.dialing import connect
from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.client.retrying import Result, Retries
from spark_nats.client.servers import Server
from spark_nats.conditions.client import SERVER_SHUTTING_DOWN
from spark_nats.errors import (
    JetStreamError,
    JetStreamUnavailableError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    ServerError,
)

TASK_ATTEMPTS = 60  # most attempts to connect in a row that a task makes, unless its options say otherwise


class _Pool:
    """Idle connections. A thread runs while there are any, to close them in time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[tuple[float, Connection]] = []  # each with the time to close it
        self._closer: threading.Thread | None = None
        self._wakes = 0.0  # when the thread looks again

    def lend(self, options: ConnectionOptions, waits: bool) -> Connection | None:
        """Return an idle connection to a server that stays, as far as is known.

        ``waits`` until it answers; else it is lost later if it does not, see :meth:`~.link.Link.check`.
        """
        while True:
            with self._changed:
                fitting = [i for i, (_, connection) in enumerate(self._idle) if connection.options == options]
                if not fitting:
                    return None
                _, connection = self._idle.pop(fitting[-1])
            try:
                if waits:
                    connection.flush(options.connect_timeout)
                else:
                    connection.check()
            except NatsError:
                connection.close()
                avoid(connection.server)
                self.forget(connection.server)
                continue
            if not connection.lame_duck:
                return connection
            connection.close()

    def forget(self, server: Server) -> None:
        """Close the idle connections to a server to which one was lost: each would be waited for as long."""
        with self._changed:
            self._close(lambda _, connection: connection.server == server)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next borrower, unless it is of no more use."""
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
                self._closer = threading.Thread(target=self._close_idle, name="nats-idle-closer", daemon=True)
                self._closer.start()

    def _close_idle(self) -> None:
        with self._changed:
            while self._idle:
                now = clock.monotonic()
                self._close(lambda until, _: until <= now)  # noqa: B023 - called here only
                if self._idle:
                    self._wakes = min(until for until, _ in self._idle)
                    self._changed.wait(self._wakes - now)
            self._closer = None

    def _close(self, chosen: Callable[[float, Connection], bool]) -> None:
        for until, connection in self._idle:
            if chosen(until, connection):
                connection.close()
        self._idle = [(until, connection) for until, connection in self._idle if not connection.closed]


_pool = _Pool()


def _forget() -> None:
    """Start afresh in a forked process: the parent's connections are not the child's to use."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def borrow(options: ConnectionOptions, waits: bool = True) -> Iterator[Connection]:
    """Lend a connection: one that an earlier borrower left, else a new one.

    It is kept afterwards unless the borrower ended with an error; then its state is not known and it is closed.

    Args:
        options: where to connect.
        waits: whether to wait until the server has shown that it is still there. Who tries again when a connection is
            lost, or can lose nothing by it, need not: that saves a round trip.
    """
    connection = _pool.lend(options, waits) or connect(options)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    _pool.give_back(connection)


def keep(options: ConnectionOptions) -> Connection:
    """Return a connection that the caller closes: one that an earlier borrower left, else a new one."""
    return _pool.lend(options, waits=False) or connect(options)


class Lease:
    """A leased connection that is exchanged for another one when it is lost.

    Whatever needs a connection, the first one too, raises NatsError when none could be made and that does not pass.

    Args:
        options: where to connect.
        retries: counts attempts.
        connection: the first one; a new one is made when it is None. The attribute is the present one.
        waits: whether to wait until the server of one that others have left has shown that it is still there.

    Attributes:
        reconnects: how often it was exchanged, or could not be made at once.
    """

    def __init__(
        self, options: ConnectionOptions, retries: Retries, connection: Connection | None = None, waits: bool = True
    ) -> None:
        self._options = options
        self._waits = waits
        self.retries = retries
        self.reconnects = 0
        self.connection = connection or self._connect(None)

    def renew(self, error: NatsError) -> Connection:
        """Give the connection up because of an error, wait, and return another one, if possible of another server.

        That of a server which is shutting down (lame duck mode) is left without a wait, and that is no failure. The
        error, or that of the last attempt, is raised when it does not pass or has not passed in time.
        """
        if self.connection.lame_duck and error.may_pass(established=False):
            return self.move()
        self.connection.close()
        _pool.forget(self.connection.server)
        self.retries.failed(error)
        self.connection = self._connect(self.connection.server)
        return self.connection

    def move(self) -> Connection:
        """Exchange a connection whose server shuts down for one to another server."""
        avoid(self.connection.server)
        self.connection.close()
        self.connection = self._connect(self.connection.server)
        return self.connection

    def ask(self, question: Callable[[Connection], Result]) -> Result:
        """Return what a question returns, which is asked again while its error may pass, else raise the error.

        That is over the same connection when JetStream has answered that it is not ready, else over another one.
        """
        while True:
            try:
                answer = question(self.connection)
            except NatsError as error:
                if isinstance(error, JetStreamError) and not isinstance(error, JetStreamUnavailableError):
                    self.retries.failed(error)
                else:
                    self.renew(error)
            else:
                self.works()
                return answer

    def read(self, reading: Callable[[Connection], Iterator[Result]]) -> Iterator[Result]:
        """Yield what is read over the connection, and when that is lost over another one; reading goes on where it was.

        An error that does not pass, or has not passed in time, is raised.
        """
        while True:
            try:
                yield from reading(self.connection)
                return
            except (NatsConnectionError, NatsTimeoutError, ServerError, JetStreamUnavailableError) as error:
                self.renew(error)

    def works(self) -> None:
        """Note that the connection has brought what was asked for."""
        self.retries.succeeded()

    def _connect(self, lost: Server | None) -> Connection:
        again = lost is not None
        while True:
            try:
                connection = _pool.lend(self._options, self._waits) or connect(self._options, lost)
                if connection.lame_duck:
                    connection.close()
                    raise NatsConnectionError(SERVER_SHUTTING_DOWN(server=connection.server))
                self.reconnects += again
                return connection
            except NatsError as error:
                self.retries.failed(error)
                again = True


@contextlib.contextmanager
def leased(options: ConnectionOptions, retries: RetryOptions, what: str, waits: bool = True) -> Iterator[Lease]:
    """Lease a connection to a task, as :func:`borrow` does, but one that can be exchanged when it is lost.

    The driver has logged in before, so a refusal is taken for lasting only when it is said twice.

    ``what`` names what waits, for the log; ``waits`` as of :func:`borrow`.
    """
    retries = replace(retries, attempts=retries.attempts or TASK_ATTEMPTS)
    lease = Lease(options, Retries(retries, what, established=True), waits=waits)
    try:
        yield lease
    except BaseException:
        lease.connection.close()
        raise
    _pool.give_back(lease.connection)
