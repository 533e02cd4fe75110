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
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from spark_nats.client.connection import Connection, ConnectionOptions, Subscription, connect
from spark_nats.errors import AuthorizationError, NatsError, PermissionsError
from spark_nats.protocol.decoder import frame_ends
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

PIECE_OVERHEAD = 256
"""Bytes of memory that a piece takes beside the bytes of its messages, so that very small pieces are bounded too."""
_POLL = 0.25  # seconds after which a thread looks whether it is to end
_LONGEST_WAIT = 2.0  # seconds between two attempts to connect again
_SETTLED = 10.0  # seconds that a connection must have lived for the next one to be tried at once
_CLOSE_TIMEOUT = 10.0  # seconds that a thread has to drain and end


class Piece(NamedTuple):
    """Consecutive messages from one reading of a socket.

    Attributes:
        wire: their frames, whole, with the control lines that stood between them.
        messages: how many there are; at least one.
        received: when they were read, in microseconds since 1970.
    """

    wire: bytes
    messages: int
    received: int

    @property
    def size(self) -> int:
        """Bytes of memory that it takes."""
        return len(self.wire) + PIECE_OVERHEAD

    def split(self, at: Sequence[int]) -> list[Piece]:
        """Split before the messages with these indexes, which rise and are neither the first nor beyond the last."""
        if not at:
            return [self]
        ends = frame_ends(self.wire)
        messages = [0, *at, self.messages]
        wire = [0, *(int(ends[i - 1]) for i in at), len(self.wire)]
        return [
            Piece(self.wire[a:b], n - m, self.received)
            for (a, b), (m, n) in zip(pairwise(wire), pairwise(messages), strict=True)
        ]


class Backlog:
    """Messages that were received and not released yet, numbered from 0 on. For use by several threads at once.

    Args:
        max_bytes: most bytes that may wait to be taken; beyond it the newest messages are dropped and counted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []
        self._starts: list[int] = []  # number of the first message of each piece
        self._end = 0
        self._taken = 0  # messages before were taken, and no longer count as waiting
        self._waiting = 0  # bytes
        self._dropped = 0
        self._dropped_since = 0.0
        self._gaps: list[str] = []

    @property
    def end(self) -> int:
        """How many messages were received and not dropped, since the beginning."""
        return self._end

    def add(self, piece: Piece) -> None:
        """Append messages, as many as there is room for."""
        with self._lock:
            room = self._max_bytes - self._waiting
            if piece.size > room:
                fitting = int(np.searchsorted(frame_ends(piece.wire), room - PIECE_OVERHEAD, "right"))
                if not self._dropped:
                    self._dropped_since = time.time()
                self._dropped += piece.messages - fitting
                if not fitting:
                    return
                piece = piece.split([fitting])[0]
            self._pieces.append(piece)
            self._starts.append(self._end)
            self._end += piece.messages
            self._waiting += piece.size

    def take(self, start: int, end: int) -> list[Piece]:
        """Return messages ``start`` to ``end`` (exclusive). They can be taken again until they are released."""
        with self._lock:
            self._split(start)
            self._split(end)
            first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
            if end > self._taken:
                fresh = self._pieces[bisect_left(self._starts, self._taken) : last]
                self._waiting -= sum(piece.size for piece in fresh)
                self._taken = end
            return self._pieces[first:last]

    def release(self, before: int) -> None:
        """Forget the messages before a number that :meth:`take` was given as an end."""
        with self._lock:
            count = bisect_left(self._starts, before)
            del self._pieces[:count], self._starts[:count]

    def _split(self, number: int) -> None:
        """See to it that a piece begins with this message."""
        index = bisect_left(self._starts, number)
        if index == 0 or number >= self._end or (index < len(self._starts) and self._starts[index] == number):
            return
        start = self._starts[index - 1]
        self._pieces[index - 1 : index] = self._pieces[index - 1].split([number - start])
        self._starts.insert(index, number)
        if start >= self._taken:
            self._waiting += PIECE_OVERHEAD

    def note_gap(self, sentence: str) -> None:
        """Note that messages may have been missed."""
        with self._lock:
            self._gaps.append(sentence)

    def losses(self) -> str | None:
        """Return in words what was lost since this was last asked, None when it was nothing."""
        with self._lock:
            said, self._gaps = self._gaps, []
            if self._dropped:
                said.insert(
                    0,
                    f"{self._dropped} messages since {_clock(self._dropped_since)} were dropped, because "
                    f"{self._max_bytes} bytes were waiting already",
                )
                self._dropped = 0
        return "; ".join(said) or None


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
                    f"what was published from {_clock(lost)} to {_clock(time.time())} was missed, because there was no "
                    f"connection ({error})"
                )
                return


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
