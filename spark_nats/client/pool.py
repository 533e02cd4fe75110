"""Connections kept for the next task of the same process.

Spark runs one task after another in the same Python worker, so a connection is worth keeping for a moment. It is closed
when nobody has asked for it for its ``idle_timeout``: a query that has ended must not leave connections behind.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from spark_nats.client.connection import Connection, avoid, connect
from spark_nats.client.options import ConnectionOptions, RetryOptions
from spark_nats.client.retrying import Result, Retries, may_pass
from spark_nats.client.servers import Server
from spark_nats.errors import JetStreamError, JetStreamUnavailableError, NatsConnectionError, NatsError

TASK_ATTEMPTS = 60
"""Most attempts to connect in a row that a task makes, unless its options say otherwise."""


class _Pool:
    """Idle connections by their options. A thread runs while there are any, to close them in time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: dict[ConnectionOptions, list[tuple[float, Connection]]] = {}  # each with the time to close it
        self._closer: threading.Thread | None = None

    def take(self, options: ConnectionOptions) -> Connection | None:
        """Return an idle connection that still answers, to a server that stays."""
        while True:
            with self._changed:
                kept = self._idle.get(options)
                if not kept:
                    return None
                _, connection = kept.pop()
            try:
                connection.flush(options.connect_timeout)
            except NatsError:
                connection.close()
                self._forget(connection.server)
                continue
            if not connection.retiring:
                return connection
            connection.close()

    def _forget(self, server: Server) -> None:
        """Close the idle connections to a server that does not answer: each would be waited for as long."""
        avoid(server)
        with self._changed:
            self._close(lambda _, connection: connection.server == server)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next borrower, unless it is of no more use."""
        if connection.closed:
            return
        if connection.retiring:
            connection.close()
            return
        with self._changed:
            until = time.monotonic() + connection.options.idle_timeout
            self._idle.setdefault(connection.options, []).append((until, connection))
            if self._closer is None:
                self._closer = threading.Thread(target=self._close_idle, name="nats-idle-closer", daemon=True)
                self._closer.start()
            self._changed.notify()

    def _close_idle(self) -> None:
        with self._changed:
            while self._idle:
                now = time.monotonic()
                self._close(lambda until, _: until <= now)  # noqa: B023 - called here only
                times = [until for kept in self._idle.values() for until, _ in kept]
                if times:
                    self._changed.wait(min(times) - now)
            self._closer = None

    def _close(self, chosen: Callable[[float, Connection], bool]) -> None:
        for options, kept in list(self._idle.items()):
            for until, connection in kept:
                if chosen(until, connection):
                    connection.close()
            self._idle[options] = [(until, connection) for until, connection in kept if not connection.closed]
            if not self._idle[options]:
                del self._idle[options]


_pool = _Pool()


def _forget() -> None:
    """Start afresh in a forked process: the parent's connections are not the child's to use."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def borrow(options: ConnectionOptions) -> Iterator[Connection]:
    """Lend a connection: one that an earlier borrower left, else a new one.

    It is kept afterwards unless the borrower ended with an error; then its state is not known and it is closed.

    Raises:
        NatsError: no connection could be made.
    """
    connection = _pool.take(options) or connect(options)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    _pool.give_back(connection)


class Loan:
    """A borrowed connection that is exchanged for another one when it is lost.

    Args:
        options: where to connect.
        retries: counts attempts.
        connection: the first one; a new one is made when it is None.

    Attributes:
        connection: the present one.
        retries: as given.

    Raises:
        NatsError: no connection could be made, and that does not pass.
    """

    def __init__(self, options: ConnectionOptions, retries: Retries, connection: Connection | None = None) -> None:
        self._options = options
        self.retries = retries
        self.connection = connection or self._connect(None)

    def renew(self, error: NatsError) -> Connection:
        """Give the connection up because of an error, wait, and return another one, if possible of another server.

        That of a server which is shutting down (lame duck mode) is left without a wait, and that is no failure.

        Raises:
            NatsError: the error, or that of the last attempt, when it does not pass or has not passed in time.
        """
        if self.connection.retiring and may_pass(error):
            return self.move()
        self.connection.close()
        self.retry(error)
        self.connection = self._connect(self.connection.server)
        return self.connection

    def move(self) -> Connection:
        """Exchange a connection whose server shuts down for one to another server.

        Raises:
            NatsError: none could be made, and that does not pass.
        """
        avoid(self.connection.server)
        self.connection.close()
        self.connection = self._connect(self.connection.server)
        return self.connection

    def retry(self, error: NatsError) -> None:
        """Wait because of an error before something is tried again over the same connection.

        Raises:
            NatsError: the error, when it does not pass or has not passed in time.
        """
        self.retries.failed(error)

    def ask(self, question: Callable[[Connection], Result]) -> Result:
        """Return what a question returns, which is asked again while its error may pass.

        That is over the same connection when JetStream has answered that it is not ready, else over another one.

        Raises:
            NatsError: the error that does not pass, or has not passed in time.
        """
        while True:
            try:
                answer = question(self.connection)
            except JetStreamUnavailableError as error:
                self.renew(error)
            except JetStreamError as error:
                self.retry(error)
            except NatsError as error:
                self.renew(error)
            else:
                self.works()
                return answer

    def works(self) -> None:
        """Note that the connection has brought what was asked for."""
        self.retries.succeeded()

    def _connect(self, lost: Server | None) -> Connection:
        while True:
            try:
                connection = _pool.take(self._options) or connect(self._options, lost)
                if connection.retiring:
                    connection.close()
                    raise NatsConnectionError(f"{connection.server} is shutting down (lame duck mode)")
                return connection
            except NatsError as error:
                self.retries.failed(error)


@contextlib.contextmanager
def lend(options: ConnectionOptions, retries: RetryOptions, what: str) -> Iterator[Loan]:
    """Lend a connection to a task, as :func:`borrow` does, but one that can be exchanged when it is lost.

    The driver has logged in before, so a refusal is taken for lasting only when it is said twice.

    Args:
        options: where to connect.
        retries: for how long to try.
        what: names what waits, for the log.

    Raises:
        NatsError: no connection could be made.
    """
    retries = replace(retries, attempts=retries.attempts or TASK_ATTEMPTS)
    loan = Loan(options, Retries(retries, what, known=True))
    try:
        yield loan
    except BaseException:
        loan.connection.close()
        raise
    _pool.give_back(loan.connection)
