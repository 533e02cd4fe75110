"""The link to one server: the handshake, the bytes between session and socket, and the errors of the server.

There is no thread. A call that waits for something (an answer, a PONG, messages, room to send) receives all bytes that
arrive during the wait, answers PING, keeps INFO, and delivers messages to their subscriptions. The call that receives
an ``-ERR`` raises it; only :meth:`Link.queue_ping_with_deadline` leaves it to the next send or wait, unless the
connection is closed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import ssl
from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from spark_nats import clock
from spark_nats.client.auth import read_newest_credentials
from spark_nats.client.choosing import note_unreachable, replace_announced
from spark_nats.client.options import ConnectionOptions, TlsOptions
from spark_nats.client.servers import Server
from spark_nats.client.subscriptions import Subscriptions
from spark_nats.client.tls import TlsLayer, check_client_certificate_accepted, make_tls_context
from spark_nats.client.transport import Transport, reason_of
from spark_nats.conditions import Topic, Transient
from spark_nats.conditions import client as conditions
from spark_nats.errors import (
    AuthorizationError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    PermissionsError,
    ProtocolError,
    ServerError,
)
from spark_nats.protocol.control import ConnectOptions, ErrorKind, ServerInfo, parse_info
from spark_nats.protocol.session import MAX_PINGS_OUT, ErrorReceived, Event, Session
from spark_nats.version import __version__

logger = logging.getLogger(__name__)

_DOUBT = (
    "is {port} its port for clients (4222 unless it is configured; 8222 is for monitoring), and does it expect TLS "
    "first, or a WebSocket (ws:// or wss://)?"
)
_REASON_WAIT = 0.2  # seconds to wait for the server's reason after a failed send
_UNDECIDED_AFTER = 1.0  # seconds after which a server refuses a login only where it has waited for an answer in vain
_MAX_ANNOUNCED = 100  # maximum of announced servers that are remembered
_INFO_WAIT = 1.0  # seconds for the INFO of a server that is only asked for its version
_MAX_INFO = 1 << 16  # bytes of it


class Link:
    """The lower half of a :class:`~spark_nats.client.connection.Connection`, with the same arguments."""

    def __init__(self, server: Server, options: ConnectionOptions) -> None:
        self.server = server
        self.options = options
        self._opening = options.opening() if options.opening and server.path is not None else None
        self._credentials = read_newest_credentials(server.credentials or options.credentials)
        self.closed = False
        self._logged_in = False
        self._asked_to_log_in = math.inf  # when
        self.lame_duck = False
        self._tls_decided = False  # whether TLS has started, or will not be used
        self._subscriptions = Subscriptions()
        self._problem: NatsError | None = None  # a server error that is not raised yet
        self._violations: Counter[str] = Counter()  # the texts of missing permissions
        self._last_words = b""  # protocol lines to send when the connection is closed
        deadline = clock.monotonic() + options.connect_timeout
        self._transport = _open_transport(server, options, options.connect_timeout, deadline)
        self._session = Session(options.ping_interval, clock.monotonic())
        self._check = 0, math.inf  # a mark, and the deadline by which the server must reach it
        try:
            self._handshake(deadline)
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> ServerInfo:
        """The latest INFO of the server."""
        return self._session.info

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._transport.encrypted

    # Handshake

    def _handshake(self, deadline: float) -> None:
        tls = self.options.tls or (TlsOptions() if self.server.tls else None)
        if tls and (tls.handshake_first or self._opening):
            self._start_tls(tls, deadline)
        if self._opening:
            self._opening.start(self._transport, self.server, self.options.connect_timeout, deadline)
        self._await_greeting(deadline)
        if not (self._transport.encrypted or self._opening):
            if tls and not (self.info.tls_required or self.info.tls_available):
                raise NatsConnectionError(conditions.TLS_NOT_OFFERED())
            if tls or self.info.tls_required:
                self._start_tls(tls or TlsOptions(), deadline)
        if not self._tls_decided:
            self._tls_decided = True
            self._note_announced()
        echo, encrypted = self.options.echo, self._transport.encrypted
        hello = ConnectOptions(name=self.options.name, version=__version__, echo=echo, tls_required=encrypted)
        mark = self._session.queue_login_and_ping(self._credentials.add_to(hello, self.info))
        self._asked_to_log_in = clock.monotonic()
        if not self._wait_for_pong(mark, deadline):
            raise NatsTimeoutError(conditions.CONNECT_TIMEOUT(timeout=self.options.connect_timeout))
        self._logged_in = True

    def _await_greeting(self, deadline: float) -> None:
        doubt, topic = _DOUBT.format(port=self.server.port), Topic.TLS_FIRST
        if self._opening:
            doubt, topic = self._opening.doubt, self._opening.topic
        try:
            if self._receive_until(lambda: self._session.greeted, deadline):
                return
            said = conditions.INFO_TIMEOUT(timeout=self.options.connect_timeout, doubt=doubt)
            failed: NatsError = NatsTimeoutError(said)
        except NatsConnectionError as error:
            if self._transport.encrypted:
                raise
            failed = NatsConnectionError(conditions.CLOSED_BEFORE_INFO(reason=error, doubt=doubt))
        raise failed.with_topics(topic)

    def _start_tls(self, tls: TlsOptions, deadline: float) -> None:
        if self.info.tls_verify and tls.certificate is None:
            raise NatsConnectionError(conditions.CLIENT_CERTIFICATE_MISSING())
        # Unencrypted bytes after INFO are discarded, because anybody on the network may have sent them.
        greeting = self.info if self._session.greeted else None
        self._session = Session(self.options.ping_interval, clock.monotonic(), greeting)
        name = tls.server_name or self.server.certificate_name
        context = make_tls_context(tls)
        try:
            self._transport.handshake_and_add_layer(TlsLayer(context, name), deadline, encrypts=True)
        except TimeoutError:
            raise NatsTimeoutError(conditions.TLS_TIMEOUT(timeout=self.options.connect_timeout)) from None
        except ssl.SSLCertVerificationError as error:
            said = conditions.CERTIFICATE_NOT_VERIFIED(name=name, reason=error.verify_message)
            raise NatsConnectionError(said) from None
        except OSError as error:
            check_client_certificate_accepted(error, self.server)
            topics = [Topic.TLS_FIRST] if tls.handshake_first else [self._opening.topic] if self._opening else []
            # A server that announced TLS in INFO speaks TLS. In the other cases, the port may be wrong.
            transient = Transient.ONCE_ESTABLISHED if topics else Transient.ALWAYS
            failed = NatsConnectionError(conditions.TLS_FAILED(reason=reason_of(error)), transient=transient)
            raise failed.with_topics(*topics) from None
        except ValueError as error:
            raise NatsConnectionError(conditions.CERTIFICATE_NAME_INVALID(name=name, reason=error)) from None
        self._tls_decided = True

    def _note_announced(self) -> None:
        """Remember the servers that this one announces, instead of those announced earlier (ADR-40).

        A server that announces none may be forbidden to announce, so an empty list changes nothing. With TLS, only an
        INFO that came through TLS counts: else anybody on the network could name a host that has a certificate. Newer
        servers repeat INFO after the login, and all servers send it when their cluster changes.
        """
        if not self.options.discover:
            return
        urls = self.info.connect_urls[:_MAX_ANNOUNCED]
        found = tuple(server for url in urls if (server := self.server.parse_announced(url, self._transport.encrypted)))
        if found:
            replace_announced(self.options, found)

    # Sending and waiting

    def send_later(self, frames: bytes) -> None:
        """Queue encoded protocol lines, which go out with the next send or wait."""
        self._check_open()
        self._session.queue(frames)

    def send(self, frames: bytes | pa.Buffer) -> None:
        """Send encoded protocol lines.

        While the socket is full, the call receives what the server sends, so that full buffers cannot block both.

        Raises:
            NatsTimeoutError: the server took no bytes for ``request_timeout`` seconds.
        """
        self._check_open()
        self._session.queue(frames)
        self._send_due_and_raise_problem(clock.monotonic() + self.options.request_timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has processed all bytes sent so far (PING, PONG).

        Raises NatsTimeoutError after ``timeout`` seconds; after ``request_timeout`` seconds when None.
        """
        limit = self.options.request_timeout if timeout is None else timeout
        self._check_open()
        if not self._wait_for_pong(self._session.queue_ping(), clock.monotonic() + limit):
            raise NatsTimeoutError(conditions.PING_TIMEOUT(server=self.server, timeout=limit))

    def flush_and_get_violations(self) -> Counter[str]:
        """Do as :meth:`flush`, and return how often the server has sent each text that a permission is missing."""
        while True:
            with contextlib.suppress(PermissionsError):
                self.flush()
                return self._violations

    def queue_ping_with_deadline(self) -> None:
        """Send a PING with the next bytes; without a PONG within ``connect_timeout``, the connection is lost.

        Bytes that have already arrived are received first, which detects that the server has closed the connection.
        """
        self._check_open()
        if self._transport.wait(clock.monotonic()):
            self._receive_and_deliver()
        self._check = self._session.queue_ping(), clock.monotonic() + self.options.connect_timeout

    def send_ping(self) -> int:
        """Send a PING, return its number.

        Once :attr:`last_mark_before_error` reaches it, the server has read all before it.
        """
        self._check_open()
        mark = self._session.queue_ping()
        self._send_due_and_raise_problem(clock.monotonic() + self.options.request_timeout)
        return mark

    @property
    def last_mark_before_error(self) -> int:
        """The last mark that the server has reached before it reported any error."""
        return self._session.passed

    def close(self) -> None:
        """Close the connection; safe to call again."""
        if self._last_words and not self.closed:
            self._session.queue(self._last_words)
            with contextlib.suppress(OSError):  # sent as far as the socket takes them at once
                while (due := self._session.due()) and (sent := self._transport.send(due)):
                    self._session.remove_sent(sent)
        self.closed = True
        self._transport.close()

    # Between the session and the socket

    def _wait_for_pong(self, mark: int, deadline: float) -> bool:
        """Wait until the server has reached a mark; return False when the deadline passes first."""
        self._send_due_and_raise_problem(deadline)
        return self._receive_until(lambda: self._session.has_pong_for(mark), deadline)

    def _receive_until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Receive bytes until ``done``; return False when the deadline passes first."""
        while not done():
            expired = clock.monotonic() >= deadline
            if not self._receive(deadline) or expired:
                return done()
        return True

    def _receive(self, deadline: float) -> bool:
        """Receive bytes that arrive by the deadline, and answer PING; return False when none arrive."""
        self._check_open()
        if self._session.due():
            self._send_due_and_raise_problem(clock.monotonic() + self.options.request_timeout)
        while not self._transport.wait(min(deadline, self._session.ping_at, self._check[1])):
            now = clock.monotonic()
            if now >= self._check[1]:
                self.close()
                note_unreachable(self.server)
                said = conditions.PING_TIMEOUT(server=self.server, timeout=self.options.connect_timeout)
                raise NatsConnectionError(said)
            if now >= deadline:
                return False
            if not self._session.ping_if_silent_or_give_up(now):
                self.close()
                interval = self.options.ping_interval
                said = conditions.SERVER_SILENT(server=self.server, pings=MAX_PINGS_OUT, interval=interval)
                raise NatsConnectionError(said)
            self._send_due_and_raise_problem(now + self.options.request_timeout)
        self._receive_and_deliver()
        if self._session.has_pong_for(self._check[0]):
            self._check = 0, math.inf
        self._send_due_and_raise_problem(clock.monotonic() + self.options.request_timeout)
        return True

    def _send_due_and_raise_problem(self, deadline: float) -> None:
        """Send all bytes that are due, then raise the server error, if any, that has left the connection open.

        Each time that the server takes bytes, the deadline is at least ``request_timeout`` away again.
        """
        last_words, self._last_words = self._last_words, b""  # else close() could send bytes that are due now
        try:
            while due := self._session.due():
                try:
                    sent = self._transport.send(due)
                except OSError as error:
                    raise self._close_and_make_error(error) from None
                if sent:
                    self._session.remove_sent(sent)
                    deadline = max(deadline, clock.monotonic() + self.options.request_timeout)
                elif clock.monotonic() >= deadline or not self._transport.wait(deadline, or_writable=True):
                    self.close()
                    timeout = self.options.request_timeout
                    raise NatsTimeoutError(conditions.SEND_TIMEOUT(server=self.server, timeout=timeout, bytes=len(due)))
                else:
                    self._receive_and_deliver()
        except NatsError:
            raise
        except BaseException:
            self.close()  # it is unknown how many bytes were sent
            raise
        self._last_words = last_words
        if self._problem:
            problem, self._problem = self._problem, None
            raise problem

    def _receive_and_deliver(self) -> None:
        """Receive the available bytes, and deliver messages to their subscriptions.

        Raises errors that close the connection; other server errors are kept in ``_problem``.
        """
        try:
            data = self._transport.receive()
        except OSError as error:
            self.close()
            check_client_certificate_accepted(error, self.server)  # in TLS 1.3 a client learns of a refusal only now
            broke = conditions.CONNECTION_BROKE(server=self.server, reason=reason_of(error))
            raise NatsConnectionError(broke) from None
        if data is None:
            self.close()
            raise NatsConnectionError(conditions.SERVER_CLOSED(server=self.server))
        if not data:
            return
        try:
            messages, events = self._session.receive(data, clock.monotonic())
            if len(messages):
                self._subscriptions.deliver(messages)
        except ProtocolError as error:
            self.close()
            raise ProtocolError(conditions.NOT_NATS(server=self.server, reason=error)) from None
        for event in events:
            self._on_info_or_error(event)
        if self.closed and self._problem:
            raise self._problem

    def _on_info_or_error(self, event: Event) -> None:
        if isinstance(event, ErrorReceived):
            self._problem = self._problem or self._make_server_error(event)
            if event.kind is ErrorKind.PERMISSIONS:
                self._violations[event.text] += 1
            if event.kind.closes_connection:
                self.close()
            return
        if event.ldm and not self.lame_duck:
            logger.warning(conditions.LAME_DUCK(server=self.server).with_code)
            self.lame_duck = True  # for good, because a later INFO may not repeat it
            note_unreachable(self.server)
        if self._tls_decided:
            self._note_announced()

    def _make_server_error(self, error: ErrorReceived) -> NatsError:
        shown = self._credentials.blank_secrets(error.text)
        match error.kind:
            case ErrorKind.PERMISSIONS:
                return PermissionsError(conditions.PERMISSION_MISSING(server=self.server, reason=shown), shown)
            case ErrorKind.AUTHORIZATION:
                waited = clock.monotonic() - self._asked_to_log_in
                said = conditions.CREDENTIALS_REFUSED(server=self.server, reason=shown)
                if self._logged_in:
                    said = conditions.LOGIN_ENDED(server=self.server, reason=shown)
                elif waited >= _UNDECIDED_AFTER:
                    said = conditions.LOGIN_UNDECIDED(server=self.server, reason=shown, seconds=waited)
                refused = AuthorizationError(said)
                if self._credentials.has_only_user_name:
                    refused = refused.with_topics(Topic.PASSWORD, Topic.CREDENTIALS)
                return refused
        transient = Transient.ALWAYS if error.kind.is_transient else Transient.NEVER
        if error.kind is ErrorKind.TOO_LARGE:  # a new connection knows the limit of now, and messages are judged by it
            transient = Transient.ONCE_ESTABLISHED
        return ServerError(conditions.SERVER_ERROR(server=self.server, reason=shown), shown, transient=transient)

    def _close_and_make_error(self, error: OSError) -> NatsError:
        """Return the error for a failed send; the server often reports the reason before it closes the connection."""
        found: NatsError = NatsConnectionError(conditions.CONNECTION_BROKE(server=self.server, reason=reason_of(error)))
        until = clock.monotonic() + self.options.request_timeout
        try:
            while clock.monotonic() < until and self._transport.wait(clock.monotonic() + _REASON_WAIT):
                self._receive_and_deliver()
        except NatsError as reason:
            if not isinstance(reason, NatsConnectionError) or isinstance(reason, AuthorizationError):
                found = reason
        self.close()
        return self._problem or found

    def _check_open(self) -> None:
        if self.closed:
            raise NatsConnectionError(conditions.CONNECTION_CLOSED(server=self.server))


def _open_transport(server: Server, options: ConnectionOptions, timeout: float, deadline: float) -> Transport:
    """Connect to a server, through the proxy if there is one."""
    way = options.reach and options.reach(server, timeout, deadline)
    return way or Transport.open(server.host, server.port, deadline)


def ask_info_without_login(server: Server, options: ConnectionOptions) -> ServerInfo:
    """Return the INFO that a server sends to whoever connects, except with TLS first and through a WebSocket.

    Raises:
        OSError: the server cannot be reached, or has said nothing within :data:`_INFO_WAIT`.
        NatsError: it says something else, or the proxy does not connect to it.
    """
    deadline, said = clock.monotonic() + _INFO_WAIT, b""
    transport = _open_transport(server, options, _INFO_WAIT, deadline)
    try:
        while b"\n" not in said and len(said) < _MAX_INFO:
            if not transport.wait(deadline) or (part := transport.receive()) is None:
                raise TimeoutError("no INFO")
            said += part
    finally:
        transport.close()
    return parse_info(said.partition(b"\r\n")[0].removeprefix(b"INFO "))
