"""A client's side of one connection without its socket: received bytes in, messages and events out, bytes to send.

Strategy. A session does no I/O, reads no clock and never waits. Its owner hands it the received bytes together with the
time (:meth:`Session.receive`), sends what is :meth:`due <Session.due>`, and calls
:meth:`Session.ping_if_silent_or_give_up` at ``ping_at``. Everything that affects the state of the protocol is in this
file: the greeting, the login, PINGs and their PONGs in both directions, and what an -ERR means for them.

Bytes to send form one queue, so a PONG that becomes due while a long frame is being sent goes after that frame and not
into it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pyarrow as pa

from spark_nats.protocol import control
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.messages import Messages

MAX_PINGS_OUT = 2  # unanswered PINGs after which a silent server is given up (ADR-40)
_SMALL = 4096  # bytes up to which frames are joined
_MAX_DUE = 1000  # entries in the queue beyond which no PONG is added, for a server that sends PING and reads nothing


class ErrorReceived(NamedTuple):
    """The server has sent an -ERR."""

    kind: control.ErrorKind
    text: str  # the server's text, made printable


Event = control.ServerInfo | ErrorReceived
"""The server has described itself, at first or when something changes, such as ``ldm`` or ``connect_urls``, which is
also :attr:`Session.info` from then on; or it has sent an -ERR."""


class Session:
    """The state of one connection's protocol.

    Args:
        ping_interval: seconds without a byte from the server after which it is pinged.
        now: the time, in seconds of a monotonic clock.
        info: the server's INFO, when this session replaces another one on the same connection.
    """

    def __init__(self, ping_interval: float, now: float, info: control.ServerInfo | None = None) -> None:
        self.info = info or control.ServerInfo()  # all defaults before the server's greeting
        self.greeted = info is not None  # whether INFO has come
        self.ping_at = now + ping_interval  # when ping_if_silent_or_give_up is due, unless something is received before
        self.passed = 0  # the last mark that the server is known to have reached before it reported any error
        self._ping_interval = ping_interval
        self._decoder = Decoder()
        self._due: deque[memoryview] = deque()
        self._pings = 0  # sent; the number of a PING is its mark
        self._pongs = 0  # received
        self._failed = False  # the server has reported an error

    # Sending

    def due(self) -> memoryview | None:
        """Return the bytes to send next; None when there are none."""
        return self._due[0] if self._due else None

    def remove_sent(self, count: int) -> None:
        """Remove the first ``count`` due bytes, because they were sent."""
        rest = self._due.popleft()[count:]
        if rest:
            self._due.appendleft(rest)

    def queue(self, frames: bytes | pa.Buffer) -> None:
        """Queue encoded frames to be sent."""
        view = memoryview(frames)
        if self._due and len(self._due[-1]) + len(view) <= _SMALL:  # so that they take one system call
            self._due[-1] = memoryview(b"".join((self._due[-1], view)))
        elif view:
            self._due.append(view)

    def queue_login_and_ping(self, hello: control.ConnectOptions) -> int:
        """Queue the answer to the server's greeting, and a PING; return its number. Its PONG accepts the login."""
        self.queue(hello.encode())
        return self.queue_ping()

    def queue_ping(self) -> int:
        """Queue a PING as a mark, and return its number; the server answers after processing what was sent before."""
        self._pings += 1
        self.queue(control.PING)
        return self._pings

    def has_pong_for(self, mark: int) -> bool:
        """Tell whether the server has processed everything sent before a mark; it answers PINGs in order."""
        return self._pongs >= mark

    # Receiving

    def receive(self, data: bytes, now: float) -> tuple[Messages, list[Event]]:
        """Process received bytes, in any pieces; return the messages that they complete, and the events in them.

        Raises:
            ProtocolError: the bytes are not the protocol; the connection has to be closed.
        """
        self.ping_at = now + self._ping_interval
        messages, controls = self._decoder.feed(data)
        return messages, [event for _, each in controls if (event := self._handle_control(each))]

    def ping_if_silent_or_give_up(self, now: float) -> bool:
        """Ping a server that is silent for too long; return False to give it up, after too many unanswered PINGs."""
        if now < self.ping_at:
            return True
        if self._pings - self._pongs >= MAX_PINGS_OUT:
            return False
        self.ping_at = now + self._ping_interval
        self.queue_ping()
        return True

    def _handle_control(self, received: control.Control) -> Event | None:
        match received.op:
            case control.Op.PING:
                if len(self._due) < _MAX_DUE:
                    self._due.append(memoryview(control.PONG))
            case control.Op.PONG:
                self._pongs = min(self._pongs + 1, self._pings)  # a PONG that answers no PING means nothing
                if not self._failed:
                    self.passed = self._pongs
            case control.Op.INFO:
                self.info, self.greeted = control.parse_info(received.argument), True
                return self.info
            case control.Op.ERR:
                self._failed = True
                text = control.error_text(received.argument)
                return ErrorReceived(control.error_kind(text), text)
        return None
