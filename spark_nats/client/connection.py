"""One connection to a server, driven by its caller.

There is no thread: whoever waits for something (an answer, a PONG, messages, room to send) receives whatever comes in
meanwhile, answers PING, keeps INFO, and puts messages aside for the subscription that they belong to. An ``-ERR`` is
raised from the call that received it.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from spark_nats.client.auth import Credentials
from spark_nats.client.servers import Server
from spark_nats.client.tls import TlsLayer, TlsOptions
from spark_nats.client.transport import Transport
from spark_nats.errors import (
    AuthorizationError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    NoRespondersError,
    PermissionsError,
    ProtocolError,
    ServerError,
)
from spark_nats.protocol.control import (
    PING,
    PONG,
    ConnectOptions,
    Control,
    Op,
    ServerInfo,
    closes_connection,
    encode_sub,
    encode_unsub,
    error_text,
    is_authorization_error,
    is_permissions_error,
    parse_info,
)
from spark_nats.protocol.decoder import Decoder
from spark_nats.protocol.encoder import encode_message
from spark_nats.protocol.headers import parse_status
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.subjects import subject_violation

logger = logging.getLogger(__name__)

MOST_PENDING = 256 << 20
"""Bytes of memory that a subscription's messages may take until they are taken. What is delivered is asked for in
portions, or taken as it comes; so this is met by a server that sends what nobody has asked for."""
_MESSAGE_OVERHEAD = 80  # bytes of memory that a message takes beside its own
_MOST_PONGS = 1000  # owed for PINGs that came while something was being sent
_MAX_PINGS_OUT = 2


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach a server. Equal options mean that a connection can be shared.

    Attributes:
        servers: tried in this order until one lets us in.
        credentials: used where a server's URL has none of its own.
        tls: asks for TLS; when None it is used where a server's URL asks for it or the server requires it.
        name: how the server's monitoring calls this connection.
        connect_timeout: seconds for connection, TLS and login, for each server.
        request_timeout: seconds to wait for an answer, or for the server to take what is sent.
        ping_interval: seconds of silence after which the server is pinged; after two unanswered pings it is lost.
        inbox_prefix: first tokens of the subjects on which answers are awaited.
        echo: whether the server delivers to a connection what it has itself published.
    """

    servers: tuple[Server, ...] = (Server("localhost"),)
    credentials: Credentials = field(default=Credentials(), repr=False)
    tls: TlsOptions | None = None
    name: str = "spark-nats"
    connect_timeout: float = 5.0
    request_timeout: float = 5.0
    ping_interval: float = 120.0
    inbox_prefix: str = "_INBOX"
    echo: bool = True


class Reply(NamedTuple):
    """The answer to a request."""

    payload: bytes
    header: bytes


class Subscription:
    """One or more subjects, and the messages that have arrived for them and were not taken yet."""

    def __init__(self, sids: range, subject: str) -> None:
        self.sids = sids
        self.subject = subject
        self._pending: deque[Messages] = deque()
        self._size = 0

    def put(self, messages: Messages) -> None:
        """Keep messages that have arrived.

        Raises:
            ProtocolError: more than :data:`MOST_PENDING` bytes wait already.
        """
        if self._size > MOST_PENDING:
            raise ProtocolError(f"it sent {MOST_PENDING >> 20} MiB to {self.subject} that nobody has asked for")
        self._pending.append(messages)
        self._size += _memory_of(messages)

    def take(self) -> Messages | None:
        """Return the messages that arrived first, None when there are none."""
        if not self._pending:
            return None
        messages = self._pending.popleft()
        self._size -= _memory_of(messages)
        return messages

    @property
    def waits(self) -> bool:
        """Whether there are messages to take."""
        return bool(self._pending)


def _memory_of(messages: Messages) -> int:
    return len(messages.buffer) + _MESSAGE_OVERHEAD * len(messages)


def connect(options: ConnectionOptions) -> Connection:
    """Connect to the first of ``options.servers`` that lets us in.

    Raises:
        AuthorizationError: a server refused the credentials; the others are then not tried.
        NatsConnectionError: no server could be reached.
    """
    failures = []
    for server in options.servers:
        try:
            return Connection(server, options)
        except AuthorizationError:
            raise
        except (NatsError, OSError) as error:
            failures.append(f"{server}: {_reason(error)}")
    raise NatsConnectionError(
        f"no NATS server could be reached ({'; '.join(failures)}); "
        "check the option 'servers' and that a nats-server listens there"
    )


class Connection:
    """A connection to one server. Not for use by several threads at once.

    Args:
        server: where to connect.
        options: how.

    Raises:
        OSError: nothing listens there.
        NatsError: the handshake failed.
    """

    def __init__(self, server: Server, options: ConnectionOptions) -> None:
        self.server = server
        self.options = options
        self.info = ServerInfo()
        self.closed = False
        self._subscriptions: dict[int, Subscription] = {}
        self._next_sid = 1
        self._requests: Subscription | None = None
        self._request_count = 0
        self._in_frame = False  # something is sent only in part, and nothing may come between
        self._listen_afresh()
        deadline = time.monotonic() + options.connect_timeout
        self._transport = Transport.open(server, deadline)
        self._last_heard = time.monotonic()  # or last pinged
        try:
            self._handshake(deadline)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection to {self.server}{' (closed)' if self.closed else ''}>"

    # Handshake

    def _listen_afresh(self) -> None:
        self._decoder = Decoder()
        self._pings_sent = 0
        self._pongs_received = 0
        self._passed = 0
        self._error_reported = False
        self._pongs_owed = 0

    def _handshake(self, deadline: float) -> None:
        tls = self.options.tls
        if tls and tls.handshake_first:
            self._start_tls(tls, deadline)
        if not self._receive_until(lambda: self.info != ServerInfo(), deadline):
            raise NatsTimeoutError(
                f"accepted the connection but sent no INFO in {self.options.connect_timeout:g} s; is it a NATS server, "
                "and if it expects TLS first, is the option 'tlsHandshakeFirst' set?"
            )
        if not self._transport.encrypted:
            asked = tls is not None or self.server.tls
            if asked and not (self.info.tls_required or self.info.tls_available):
                raise NatsConnectionError("does not offer TLS, which is asked for; no credentials were sent")
            if asked or self.info.tls_required:
                self._start_tls(tls or TlsOptions(), deadline)
        # The package's version belongs to the package, so it is looked up late.
        from spark_nats import __version__

        hello = ConnectOptions(
            name=self.options.name,
            version=__version__,
            echo=self.options.echo,
            tls_required=self._transport.encrypted,
        )
        credentials = self.server.credentials or self.options.credentials
        hello = credentials.apply(hello, self.info)
        self._send(hello.encode(), deadline)
        self._ping(deadline)
        if not self._wait_for_pong(deadline):
            raise NatsTimeoutError(f"did not answer CONNECT in {self.options.connect_timeout:g} s")

    def _start_tls(self, tls: TlsOptions, deadline: float) -> None:
        if self.info.tls_verify and tls.certificate is None:
            raise NatsConnectionError("requires a client certificate; set the options 'tlsCertFile' and 'tlsKeyFile'")
        self._listen_afresh()  # whatever came in the clear behind INFO is not the server's word
        name = tls.server_name or self.server.host
        try:
            self._transport.start_tls(TlsLayer(tls.context(), name), deadline)
        except TimeoutError:
            raise NatsTimeoutError(f"the TLS handshake was not done in {self.options.connect_timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise NatsConnectionError(
                f"the server's certificate cannot be verified for the name {name!r}: {error.verify_message}; "
                "check the options 'tlsCaFile' and 'tlsServerName'"
            ) from None
        except OSError as error:
            if _refuses_certificate(error):
                raise self._certificate_refused(error) from None
            hint = "; does the server do TLS first ('tlsHandshakeFirst')?" if tls.handshake_first else ""
            raise NatsConnectionError(f"the TLS handshake failed: {_reason(error)}{hint}") from None
        except ValueError as error:
            raise NatsConnectionError(f"no certificate can be for the name {name!r}: {error}") from None

    # Subscriptions and messages

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses, on which to await answers."""
        return f"{self.options.inbox_prefix}.{secrets.token_hex(8)}"

    def subscribe(self, *subjects: str, queue: str | None = None) -> Subscription:
        """Subscribe to subjects or wildcards, in a queue group if one is named.

        Their messages arrive together, in the order of the wire. A message that several of the subjects match
        arrives once for each.

        Raises:
            ValueError: a subject or the queue group is not valid.
            NatsError: the connection failed.
        """
        sids = range(self._next_sid, self._next_sid + len(subjects))
        subscription = Subscription(sids, ",".join(subjects))
        lines = b"".join(encode_sub(subject, sid, queue) for subject, sid in zip(subjects, sids, strict=True))
        self._next_sid += len(subjects)
        self._subscriptions.update(dict.fromkeys(sids, subscription))  # first, since messages may come while it is sent
        self.send(lines)
        return subscription

    def limit(self, subscription: Subscription, messages: int) -> None:
        """Have the server end a subscription by itself after so many messages, counted for each of its subjects.

        This is UNSUB with ``max_msgs``; messages that were delivered before count too.
        """
        self.send(b"".join(encode_unsub(sid, messages) for sid in subscription.sids))

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. What is still on its way is dropped."""
        known = [sid for sid in subscription.sids if self._subscriptions.pop(sid, None) is not None]
        if known and not self.closed:
            self.send(b"".join(map(encode_unsub, known)))

    def drain(self, subscription: Subscription) -> list[Messages]:
        """End a subscription and return all that has arrived or was on its way.

        Raises:
            NatsError: the connection failed, or the server reported an error.
        """
        self.send(b"".join(map(encode_unsub, subscription.sids)))
        self.flush()  # behind the PONG nothing of it can come
        for sid in subscription.sids:
            self._subscriptions.pop(sid, None)
        return list(iter(subscription.take, None))

    def next(self, subscription: Subscription, timeout: float) -> Messages | None:
        """Return the messages that have arrived; waits up to ``timeout`` seconds for the first.

        Returns:
            At least one message, or None when there was none in time.

        Raises:
            NatsError: the connection failed, or the server reported an error.
        """
        deadline = time.monotonic() + timeout
        self._receive_until(lambda: subscription.waits, deadline)
        return subscription.take()

    def request(self, subject: str, payload: bytes, timeout: float | None = None, header: bytes | None = None) -> Reply:
        """Send a request and return its first answer.

        Args:
            subject: where to.
            payload: what.
            timeout: seconds to wait; the connection's ``request_timeout`` when None.
            header: header block, if any.

        Raises:
            ValueError: it is no subject that can be published to.
            NoRespondersError: nobody listens there.
            NatsTimeoutError: no answer in time.
            NatsError: the connection failed, or the server reported an error.
        """
        if violation := subject_violation(subject):
            raise ValueError(f"subject {subject!r} {violation}")
        if self._requests is None:
            self._requests = self.subscribe(f"{self.new_inbox()}.*")
        self._request_count += 1
        inbox = f"{self._requests.subject[:-1]}{self._request_count}"
        self.send(encode_message(subject, payload, inbox, header))
        limit = self.options.request_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while True:
            messages = self.next(self._requests, deadline - time.monotonic())
            if messages is not None and (reply := _answer(messages, inbox)) is not None:
                if not reply.payload and (status := parse_status(reply.header)) and status.code == 503:
                    raise NoRespondersError(f"nobody listens on {subject} at {self.server}")
                return reply
            if time.monotonic() >= deadline:  # whatever has come, it may go on coming
                raise NatsTimeoutError(f"no answer from {self.server} to {subject} in {limit:g} s")

    # Sending

    def send(self, data: bytes | pa.Buffer) -> None:
        """Send encoded protocol lines.

        What the server sends meanwhile is received, so neither side can be stuck with full buffers.

        Raises:
            NatsTimeoutError: the server took nothing for ``request_timeout`` seconds.
            NatsError: the connection failed, or the server reported an error.
        """
        self._send(data, time.monotonic() + self.options.request_timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has processed all that was sent (PING, PONG).

        Raises:
            NatsTimeoutError: no PONG in time (``request_timeout`` when ``timeout`` is None).
            NatsError: the connection failed, or the server reported an error on what was sent.
        """
        limit = self.options.request_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        self._ping(deadline)
        if not self._wait_for_pong(deadline):
            raise NatsTimeoutError(f"{self.server} did not answer PING in {limit:g} s")

    def mark(self) -> int:
        """Mark what was sent so far, without waiting: a PING.

        Returns:
            The number of the mark. When :attr:`passed` has reached it, the server has processed what was sent before.

        Raises:
            NatsError: the connection failed, or the server reported an error.
        """
        self._ping(time.monotonic() + self.options.request_timeout)
        return self._pings_sent

    @property
    def passed(self) -> int:
        """The last mark that the server is known to have reached before it reported any error."""
        return self._passed

    def close(self) -> None:
        """Close the connection; harmless when it is closed already."""
        self.closed = True
        self._transport.close()

    # The wire

    def _wait_for_pong(self, deadline: float) -> bool:
        wanted = self._pings_sent  # the server answers in order
        return self._receive_until(lambda: self._pongs_received >= wanted, deadline)

    def _receive_until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Take in what arrives until ``done``. False when the deadline came first."""
        while not done():
            expired = time.monotonic() >= deadline
            if not self._receive(deadline) or expired:
                return done()
        return True

    def _receive(self, deadline: float) -> bool:
        """Take in what has arrived or arrives until the deadline. False when that was nothing."""
        self._check_open()
        while True:
            ping_at = self._last_heard + self.options.ping_interval
            if self._transport.wait(min(deadline, ping_at)):
                self._take_in()
                return True
            if time.monotonic() >= deadline:
                return False
            self._ping_silent_server()

    def _ping_silent_server(self) -> None:
        if self._pings_sent - self._pongs_received >= _MAX_PINGS_OUT:
            self.close()
            raise NatsConnectionError(
                f"{self.server} has been silent and did not answer {_MAX_PINGS_OUT} PINGs, "
                f"{self.options.ping_interval:g} s apart; the connection is given up"
            )
        self._last_heard = time.monotonic()
        self._ping(self._last_heard + self.options.request_timeout)

    def _ping(self, deadline: float) -> None:
        self._pings_sent += 1
        self._send(PING, deadline)

    def _send(self, data: bytes | pa.Buffer, deadline: float) -> None:
        self._check_open()
        problem = self._send_whole(data, deadline)
        deadline = time.monotonic() + self.options.request_timeout
        while self._pongs_owed and not self.closed and time.monotonic() < deadline:
            owed, self._pongs_owed = self._pongs_owed, 0
            later = self._send_whole(PONG * owed, deadline)
            problem = problem or later
        if problem:
            raise problem

    def _send_whole(self, data: bytes | pa.Buffer, deadline: float) -> NatsError | None:
        """Send frames that nothing may come between.

        Returns:
            The server's error that came meanwhile and left us connected, if one did.
        """
        try:
            self._in_frame = True
            self._write(memoryview(data), deadline)
        except NatsError as error:
            if self.closed:
                raise
            return error
        except BaseException:
            self.close()  # half a frame may have been sent, so nothing else can be
            raise
        finally:
            self._in_frame = False
        return None

    def _write(self, rest: memoryview, deadline: float) -> None:
        """Send all of ``rest``. An error of the server's that leaves the connection open is raised afterwards."""
        problem: NatsError | None = None
        while rest:
            try:
                sent = self._transport.send(rest)
            except OSError as error:
                raise self._lost(error) from None
            if sent:
                rest = rest[sent:]
                deadline = max(deadline, time.monotonic() + self.options.request_timeout)
            elif time.monotonic() >= deadline or not self._transport.wait(deadline, to_write=True):
                self.close()
                raise NatsTimeoutError(
                    f"{self.server} took no data for {self.options.request_timeout:g} s; "
                    f"{len(rest)} bytes were not sent"
                )
            else:
                try:
                    self._take_in()
                except NatsError as error:
                    if self.closed:
                        raise
                    problem = problem or error
        if problem:
            raise problem

    def _take_in(self) -> None:
        """Receive what is there, put messages aside for their subscriptions, act on control lines."""
        try:
            data = self._transport.receive()
        except OSError as error:
            self.close()
            if _refuses_certificate(error):  # in TLS 1.3 a client learns it only now
                raise self._certificate_refused(error) from None
            raise NatsConnectionError(f"the connection to {self.server} broke: {_reason(error)}") from None
        if data is None:
            self.close()
            raise NatsConnectionError(f"{self.server} closed the connection")
        if not data:
            return
        self._last_heard = time.monotonic()
        try:
            messages, controls = self._decoder.feed(data)
            if len(messages):
                self._put_aside(messages)
            errors = [problem for _, control in controls if (problem := self._obey(control))]
        except ProtocolError as error:
            self.close()
            raise ProtocolError(f"{self.server} does not speak the NATS protocol: {error}") from None
        if errors:  # only now, since a PONG may stand behind an error in the same bytes
            raise errors[0]

    def _put_aside(self, messages: Messages) -> None:
        sids = messages.sids()
        if sids.min() < 1 or sids.max() >= self._next_sid:
            raise ProtocolError("it delivers a message to a subscription that was never made")
        first = self._subscriptions.get(int(sids[0]))
        if (sids == sids[0]).all() or (first and np.isin(sids, first.sids).all()):
            groups = [(first, messages)]
        else:
            owners = {self._subscriptions.get(int(sid)) for sid in np.unique(sids)}
            groups = [(owner, messages.take(np.isin(sids, owner.sids))) for owner in owners if owner]
        for owner, group in groups:
            if owner:
                owner.put(group)

    def _obey(self, control: Control) -> NatsError | None:
        """Act on a control line; the error that it reports, if it does."""
        if control.op is Op.PING:
            if self._in_frame:
                self._pongs_owed = min(self._pongs_owed + 1, _MOST_PONGS)
            else:
                self._send(PONG, time.monotonic() + self.options.request_timeout)
        elif control.op is Op.PONG:
            self._pongs_received += 1
            if not self._error_reported:
                self._passed = self._pongs_received
        elif control.op is Op.INFO:
            self.info = parse_info(control.argument)
            if self.info.ldm:
                logger.warning("%s is shutting down (lame duck mode)", self.server)
        elif control.op is Op.ERR:
            self._error_reported = True
            return self._server_error(error_text(control.argument))
        return None

    def _server_error(self, text: str) -> NatsError:
        shown = (self.server.credentials or self.options.credentials).blank(text)
        if is_permissions_error(text):
            return PermissionsError(f"{self.server} refused: {shown}; the user lacks this permission", shown)
        if closes_connection(text):
            self.close()
        if is_authorization_error(text):
            return AuthorizationError(
                f"{self.server} refused the credentials: {shown}; check the options 'user' and 'password', 'token', "
                "'nkeySeedFile', 'credentialsFile' or 'context', or the client certificate"
            )
        return ServerError(f"{self.server} reported: {shown}", shown)

    def _certificate_refused(self, error: OSError) -> AuthorizationError:
        return AuthorizationError(
            f"{self.server} refused the client's certificate: {_reason(error)}; "
            "check the options 'tlsCertFile' and 'tlsKeyFile'"
        )

    def _lost(self, error: OSError) -> NatsError:
        """Explain a failed send: the server often says why before it closes."""
        try:
            while self._transport.wait(time.monotonic() + 0.2):
                self._take_in()
        except NatsError as reason:
            if not isinstance(reason, NatsConnectionError) or isinstance(reason, AuthorizationError):
                return reason
        self.close()
        return NatsConnectionError(f"the connection to {self.server} broke: {_reason(error)}")

    def _check_open(self) -> None:
        if self.closed:
            raise NatsConnectionError(f"the connection to {self.server} is closed")


def _answer(messages: Messages, inbox: str) -> Reply | None:
    """Return the first message to an inbox; others are late answers to requests that were given up."""
    for i in range(len(messages)):
        if messages.subject_at(i) == inbox:
            return Reply(messages.payload_at(i), messages.header_at(i))
    return None


def _reason(error: Exception) -> str:
    """Say in a few words what an exception means; an OSError's text without its number."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _refuses_certificate(error: OSError) -> bool:
    """Tell whether the server has ended TLS because of our certificate (alerts 41 to 46, 48 and 116 of RFC 8446)."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return "_ALERT_" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
