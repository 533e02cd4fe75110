"""One connection to a server, driven by its caller.

There is no thread: whoever waits for something (an answer, a PONG, messages, room to send) receives whatever comes in
meanwhile, answers PING, keeps INFO, and puts messages aside for the subscription that they belong to. An ``-ERR`` is
raised from the call that received it.
"""

from __future__ import annotations

import logging
import random
import secrets
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from spark_nats.client import memory
from spark_nats.client.options import ConnectionOptions, TlsOptions
from spark_nats.client.servers import Server
from spark_nats.client.subscriptions import Subscription, Subscriptions
from spark_nats.client.tls import TlsLayer, context_of
from spark_nats.client.transport import Transport
from spark_nats.errors import (
    AuthorizationError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    NoRespondersError,
    PermissionsError,
    ProtocolError,
    Remedy,
    ServerError,
)
from spark_nats.protocol.control import ConnectOptions, ErrorKind, ServerInfo, encode_sub, encode_unsub
from spark_nats.protocol.encoder import encode_message, encode_messages
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.session import MAX_PINGS_OUT, ErrorReceived, Event, Session
from spark_nats.protocol.statuses import NO_RESPONDERS, parse_status
from spark_nats.protocol.subjects import subject_violation
from spark_nats.version import __version__

logger = logging.getLogger(__name__)

REMEMBERED = 30.0
"""Seconds for which a server that could not be reached is tried after the others."""
_LAST_WORDS = 0.2  # seconds that a server which no longer takes our bytes has to say why
_MOST_ANNOUNCED = 100  # servers that are remembered of those that one announces


class Reply(NamedTuple):
    """The answer to a request."""

    payload: bytes
    header: bytes


_announced: dict[ConnectionOptions, tuple[Server, ...]] = {}
"""The servers that were announced last to a connection with these options, when they are to be discovered."""


def connect(options: ConnectionOptions, lost: Server | None = None) -> Connection:
    """Connect to the first of ``options.servers``, and of those that they announce if so asked, that lets us in.

    They are tried in random order, so that the tasks of a query do not all go to the same one (ADR-40), and those last
    that this machine has found unreachable within :data:`REMEMBERED` seconds.

    Args:
        options: where and how.
        lost: the server to which a connection was just lost; the others come first.

    Raises:
        AuthorizationError: a server refused the credentials, and no other one could be reached or has let us in.
        NatsConnectionError: no server could be reached.
    """
    failures: list[tuple[Server, NatsError | OSError]] = []
    for server in _in_order(options, lost):
        try:
            connection = Connection(server, options)
        except (NatsError, OSError) as error:
            if not isinstance(error, AuthorizationError):
                avoid(server)
            failures.append((server, error))
        else:
            memory.forget(_unreachable(server))
            return connection
    refused = [error for _, error in failures if isinstance(error, AuthorizationError)]
    if len(failures) == len(refused) == 1:
        raise refused[0]
    kind, what = NatsConnectionError, "no NATS server could be reached"
    if refused:
        kind, what = AuthorizationError, "no NATS server lets us in"
    remedies = [remedy for _, error in failures if isinstance(error, NatsError) for remedy in error.remedies]
    raise kind(
        f"{what} ({'; '.join(_reason_of(server, error) for server, error in failures)})",
        remedies=dict.fromkeys(remedies) or [Remedy.SERVERS],
        failures=[error for _, error in failures],
    )


def _in_order(options: ConnectionOptions, lost: Server | None) -> list[Server]:
    """Return the servers in the order in which they are to be tried."""
    servers = list(options.servers)
    named = {(server.host, server.port) for server in servers}
    if options.discover:
        servers += [each for each in _announced.get(options, ()) if (each.host, each.port) not in named]
    random.shuffle(servers)
    return sorted(servers, key=lambda each: (each == lost, _is_avoided(each)))


def _unreachable(server: Server) -> str:
    return f"unreachable: {server.host}:{server.port}"


def _is_avoided(server: Server) -> bool:
    found = memory.age(_unreachable(server))
    return found is not None and found < REMEMBERED


def avoid(server: Server) -> None:
    """Have :func:`connect` try a server after the others for a while, in all processes of this machine."""
    memory.remember(_unreachable(server))


def _reason_of(server: Server, error: Exception) -> str:
    reason = _reason(error)
    return reason if reason.startswith(str(server)) else f"{server}: {reason}"


class Connection:
    """A connection to one server. Not for use by several threads at once.

    Args:
        server: where to connect.
        options: how.

    Attributes:
        server: where it is connected.
        options: as given.
        closed: whether it is of no more use.
        retiring: whether the server is about to shut down (lame duck mode, ADR-5): what is under way can be finished,
            what is new belongs elsewhere.

    Raises:
        OSError: nothing listens there.
        NatsError: the handshake failed.
    """

    def __init__(self, server: Server, options: ConnectionOptions) -> None:
        self.server = server
        self.options = options
        self.closed = False
        self.retiring = False
        self._settled = False  # whether TLS was begun, or is known not to be used
        self._subscriptions = Subscriptions()
        self._requests: Subscription | None = None
        self._request_count = 0
        self._problem: NatsError | None = None  # what the server has reported and was not raised yet
        deadline = time.monotonic() + options.connect_timeout
        self._transport = Transport.open(server, deadline)
        self._session = Session(options.ping_interval, time.monotonic())
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

    @property
    def info(self) -> ServerInfo:
        """What the server last said of itself."""
        return self._session.info

    @property
    def encrypted(self) -> bool:
        """Whether it goes through TLS."""
        return self._transport.encrypted

    # Handshake

    def _handshake(self, deadline: float) -> None:
        tls = self.options.tls
        if tls and tls.handshake_first:
            self._start_tls(tls, deadline)
        self._await_greeting(deadline)
        if not self._transport.encrypted:
            asked = tls is not None or self.server.tls
            if asked and not (self.info.tls_required or self.info.tls_available):
                raise NatsConnectionError(
                    "does not offer TLS, which is asked for; no credentials were sent", remedies=[Remedy.TLS]
                )
            if asked or self.info.tls_required:
                self._start_tls(tls or TlsOptions(), deadline)
        if not self._settled:
            self._settled = True
            self._note_announced()
        hello = ConnectOptions(
            name=self.options.name,
            version=__version__,
            echo=self.options.echo,
            tls_required=self._transport.encrypted,
        )
        credentials = self.server.credentials or self.options.credentials
        mark = self._session.log_in(credentials.apply(hello, self.info))
        if not self._wait_for(mark, deadline):
            raise NatsTimeoutError(f"did not answer CONNECT in {self.options.connect_timeout:g} s")

    def _await_greeting(self, deadline: float) -> None:
        doubt = (
            f"is {self.server.port} its port for clients (4222 unless it is configured; 8222 is for monitoring), and "
            "does it expect TLS first?"
        )
        try:
            if self._receive_until(lambda: self._session.greeted, deadline):
                return
        except NatsConnectionError as error:
            if self._transport.encrypted:
                raise
            raise NatsConnectionError(f"{error} before INFO; {doubt}", remedies=[Remedy.TLS_FIRST]) from None
        raise NatsTimeoutError(
            f"accepted the connection but sent no INFO in {self.options.connect_timeout:g} s; {doubt}",
            remedies=[Remedy.TLS_FIRST],
        )

    def _start_tls(self, tls: TlsOptions, deadline: float) -> None:
        if self.info.tls_verify and tls.certificate is None:
            raise NatsConnectionError("requires a client certificate", remedies=[Remedy.CLIENT_CERTIFICATE])
        # Whatever came in the clear behind INFO is not the server's word.
        greeting = self.info if self._session.greeted else None
        self._session = Session(self.options.ping_interval, time.monotonic(), greeting)
        name = tls.server_name or self.server.certificate_name
        context = context_of(tls)
        try:
            self._transport.start_tls(TlsLayer(context, name), deadline)
        except TimeoutError:
            raise NatsTimeoutError(f"the TLS handshake was not done in {self.options.connect_timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise NatsConnectionError(
                f"the server's certificate cannot be verified for the name {name!r}: {error.verify_message}",
                remedies=[Remedy.TRUST],
            ) from None
        except OSError as error:
            if _refuses_certificate(error):
                raise self._certificate_refused(error) from None
            raise NatsConnectionError(
                f"the TLS handshake failed: {_reason(error)}",
                remedies=[Remedy.TLS_FIRST] if tls.handshake_first else [],
            ) from None
        except ValueError as error:
            raise NatsConnectionError(
                f"no certificate can be for the name {name!r}: {error}", remedies=[Remedy.TRUST]
            ) from None
        self._settled = True

    def _note_announced(self) -> None:
        """Remember which servers this one announces, instead of those that were announced before (ADR-40).

        A server that announces none is one that may not, and not one that is alone. With TLS only what came through it
        counts, or anybody on the way could name a host that has a certificate. Newer servers say it again after the
        login, and all of them when their cluster changes.
        """
        if not self.options.discover:
            return
        urls = self.info.connect_urls[:_MOST_ANNOUNCED]
        found = tuple(server for url in urls if (server := self.server.announced(url, self._transport.encrypted)))
        if found:
            _announced[self.options] = found

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
        subscription = self._subscriptions.add(subjects)  # first, since messages may come while it is sent
        try:
            lines = [encode_sub(subject, sid, queue) for subject, sid in zip(subjects, subscription.sids, strict=True)]
        except ValueError:
            self._subscriptions.remove(subscription)
            raise
        self.send(b"".join(lines))
        return subscription

    def limit(self, subscription: Subscription, messages: int) -> None:
        """Have the server end a subscription by itself after so many messages, counted for each of its subjects.

        This is UNSUB with ``max_msgs``; messages that were delivered before count too.
        """
        self.send(b"".join(encode_unsub(sid, messages) for sid in subscription.sids))

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription. What is still on its way is dropped."""
        known = self._subscriptions.remove(subscription)
        if known and not self.closed:
            self.send(b"".join(map(encode_unsub, known)))

    def drain(self, subscription: Subscription) -> list[Messages]:
        """End a subscription and return all that has arrived or was on its way.

        Raises:
            NatsError: the connection failed, or the server reported an error.
        """
        self.send(b"".join(map(encode_unsub, subscription.sids)))
        self.flush()  # behind the PONG nothing of it can come
        self._subscriptions.remove(subscription)
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

    def wait(self, seconds: float) -> None:
        """Wait, and meanwhile receive what comes and answer PING, so that the server does not hang up.

        Raises:
            NatsError: the connection failed, or the server reported an error.
        """
        self._receive_until(lambda: False, time.monotonic() + seconds)

    def request(self, subject: str, payload: bytes, timeout: float | None = None, header: bytes | None = None) -> Reply:
        """Send a request and return its first answer.

        Args:
            subject: where to.
            payload: what.
            timeout: seconds to wait; the connection's ``request_timeout`` when None.
            header: header block, if any.

        Raises:
            ValueError: the subject cannot be published to.
            NoRespondersError: nobody listens there.
            NatsTimeoutError: no answer in time.
            NatsError: the connection failed, or the server reported an error.
        """
        (reply,) = self.request_all([(subject, payload, header)], timeout)
        return reply

    def request_all(
        self, requests: Sequence[tuple[str, bytes, bytes | None]], timeout: float | None = None
    ) -> list[Reply]:
        """Send requests one behind the other, and return the first answer to each: one round trip for all of them.

        Args:
            requests: subject, payload and header block, if any, of each.
            timeout: seconds to wait; the connection's ``request_timeout`` when None.

        Raises:
            ValueError, NatsError: as :meth:`request`.
        """
        for subject, *_ in requests:
            if violation := subject_violation(subject):
                raise ValueError(f"subject {subject!r} {violation}")
        if self._requests is None:
            self._requests = self.subscribe(f"{self.new_inbox()}.*")
        open_ = {}  # subjects of the requests without an answer, by their inboxes
        for subject, payload, header in requests:
            self._request_count += 1
            inbox = f"{self._requests.subject[:-1]}{self._request_count}"
            open_[inbox] = subject
            self.publish(subject, payload, inbox, header)
        replies: dict[str, Reply | None] = dict.fromkeys(open_)
        limit = self.options.request_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while open_:
            messages = self.next(self._requests, deadline - time.monotonic())
            for inbox, reply in _answers(messages, open_) if messages is not None else ():
                if not reply.payload and _is_no_responders(reply.header):
                    raise NoRespondersError(f"nobody listens on {open_[inbox]} at {self.server}")
                del open_[inbox]
                replies[inbox] = reply
            if open_ and time.monotonic() >= deadline:  # whatever has come, it may go on coming
                raise NatsTimeoutError(f"no answer from {self.server} to {next(iter(open_.values()))} in {limit:g} s")
        return [reply for reply in replies.values() if reply is not None]

    # Sending

    def publish(self, subject: str, payload: bytes, reply: str | None = None, header: bytes | None = None) -> None:
        """Send one message. The subjects must be literal and valid, the header block if any well-formed.

        Raises:
            NatsError: see :meth:`send`.
        """
        self.send(encode_message(subject, payload, reply, header))

    def publish_columns(
        self,
        subjects: pa.Array,
        payloads: pa.Array,
        headers: pa.Array | None = None,
        replies: pa.Array | None = None,
    ) -> None:
        """Send a message for each row. The rows must be valid, and of a few MiB at most.

        Args:
            subjects: string column without null.
            payloads: string or binary column without null.
            headers: binary column of header blocks, null where a row has none.
            replies: string column, null where a row has none.

        Raises:
            NatsError: see :meth:`send`.
        """
        self.send(encode_messages(subjects, payloads, replies, headers))

    def send(self, frames: bytes | pa.Buffer) -> None:
        """Send encoded protocol lines.

        What the server sends meanwhile is received, so neither side can be stuck with full buffers.

        Raises:
            NatsTimeoutError: the server took nothing for ``request_timeout`` seconds.
            NatsError: the connection failed, or the server reported an error.
        """
        self._check_open()
        self._session.send(frames)
        self._send_due(time.monotonic() + self.options.request_timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has processed all that was sent (PING, PONG).

        Raises:
            NatsTimeoutError: no PONG in time (``request_timeout`` when ``timeout`` is None).
            NatsError: the connection failed, or the server reported an error on what was sent.
        """
        limit = self.options.request_timeout if timeout is None else timeout
        self._check_open()
        if not self._wait_for(self._session.mark(), time.monotonic() + limit):
            raise NatsTimeoutError(f"{self.server} did not answer PING in {limit:g} s")

    def mark(self) -> int:
        """Mark what was sent so far, without waiting: a PING.

        Returns:
            The number of the mark. When :attr:`passed` has reached it, the server has processed what was sent before.

        Raises:
            NatsError: the connection failed, or the server reported an error.
        """
        self._check_open()
        mark = self._session.mark()
        self._send_due(time.monotonic() + self.options.request_timeout)
        return mark

    @property
    def passed(self) -> int:
        """The last mark that the server is known to have reached before it reported any error."""
        return self._session.passed

    def close(self) -> None:
        """Close the connection; harmless when it is closed already."""
        self.closed = True
        self._transport.close()

    # Between the session and the socket

    def _wait_for(self, mark: int, deadline: float) -> bool:
        """Wait until the server has reached a mark. False when the deadline came first."""
        self._send_due(deadline)
        return self._receive_until(lambda: self._session.has_reached(mark), deadline)

    def _receive_until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Take in what arrives until ``done``. False when the deadline came first."""
        while not done():
            expired = time.monotonic() >= deadline
            if not self._receive(deadline) or expired:
                return done()
        return True

    def _receive(self, deadline: float) -> bool:
        """Take in what has arrived or arrives until the deadline, and answer it. False when nothing arrived."""
        self._check_open()
        while not self._transport.wait(min(deadline, self._session.ping_at)):
            now = time.monotonic()
            if now >= deadline:
                return False
            if not self._session.check_silence(now):
                self.close()
                raise NatsConnectionError(
                    f"{self.server} has been silent and did not answer {MAX_PINGS_OUT} PINGs, "
                    f"{self.options.ping_interval:g} s apart; the connection is given up"
                )
            self._send_due(now + self.options.request_timeout)
        self._take_in()
        self._send_due(time.monotonic() + self.options.request_timeout)
        return True

    def _send_due(self, deadline: float) -> None:
        """Send all that is due. An error of the server's that leaves the connection open is raised afterwards."""
        try:
            while due := self._session.due():
                try:
                    sent = self._transport.send(due)
                except OSError as error:
                    raise self._lost(error) from None
                if sent:
                    self._session.sent(sent)
                    deadline = max(deadline, time.monotonic() + self.options.request_timeout)
                elif time.monotonic() >= deadline or not self._transport.wait(deadline, to_write=True):
                    self.close()
                    raise NatsTimeoutError(
                        f"{self.server} took no data for {self.options.request_timeout:g} s; "
                        f"{len(due)} bytes were not sent"
                    )
                else:
                    self._take_in()
        except NatsError:
            raise
        except BaseException:
            self.close()  # it is not known how much was sent
            raise
        if self._problem:
            problem, self._problem = self._problem, None
            raise problem

    def _take_in(self) -> None:
        """Receive what is there, and put messages aside for their subscriptions.

        Raises:
            NatsError: the connection is of no more use. Other errors of the server's are kept as ``_problem``.
        """
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
        try:
            messages, events = self._session.receive(data, time.monotonic())
            if len(messages):
                self._subscriptions.deliver(messages)
        except ProtocolError as error:
            self.close()
            raise ProtocolError(f"{self.server} does not speak the NATS protocol: {error}") from None
        for event in events:
            self._heed(event)
        if self.closed and self._problem:
            raise self._problem

    def _heed(self, event: Event) -> None:
        if isinstance(event, ErrorReceived):
            self._problem = self._problem or self._server_error(event)
            if event.kind.closes:
                self.close()
            return
        if event.info.ldm and not self.retiring:
            logger.warning("%s is shutting down (lame duck mode)", self.server)
            self.retiring = True  # also when a later INFO does not repeat it
            avoid(self.server)
        if self._settled:
            self._note_announced()

    def _server_error(self, error: ErrorReceived) -> NatsError:
        shown = (self.server.credentials or self.options.credentials).blank(error.text)
        match error.kind:
            case ErrorKind.PERMISSIONS:
                return PermissionsError(f"{self.server} refused: {shown}; the user lacks this permission", shown)
            case ErrorKind.AUTHORIZATION:
                return AuthorizationError(
                    f"{self.server} refused the credentials: {shown}", remedies=[Remedy.CREDENTIALS]
                )
        return ServerError(f"{self.server} reported: {shown}", shown)

    def _certificate_refused(self, error: OSError) -> AuthorizationError:
        return AuthorizationError(
            f"{self.server} refused the client's certificate: {_reason(error)}", remedies=[Remedy.CLIENT_CERTIFICATE]
        )

    def _lost(self, error: OSError) -> NatsError:
        """Explain a failed send: the server often says why before it closes."""
        found: NatsError = NatsConnectionError(f"the connection to {self.server} broke: {_reason(error)}")
        until = time.monotonic() + self.options.request_timeout
        try:
            while time.monotonic() < until and self._transport.wait(time.monotonic() + _LAST_WORDS):
                self._take_in()
        except NatsError as reason:
            if not isinstance(reason, NatsConnectionError) or isinstance(reason, AuthorizationError):
                found = reason
        self.close()
        return self._problem or found

    def _check_open(self) -> None:
        if self.closed:
            raise NatsConnectionError(f"the connection to {self.server} is closed")


def _is_no_responders(header: bytes) -> bool:
    status = parse_status(header)
    return status is not None and status.code == NO_RESPONDERS


def _answers(messages: Messages, inboxes: Collection[str]) -> Iterator[tuple[str, Reply]]:
    """Yield messages to inboxes that are still awaited; others are late answers to requests that were given up."""
    for i in range(len(messages)):
        if (inbox := messages.subject_at(i)) in inboxes:
            yield inbox, Reply(messages.payload_at(i), messages.header_at(i))


def _reason(error: Exception) -> str:
    """Say in a few words what an exception means; an OSError's text without its number."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _refuses_certificate(error: OSError) -> bool:
    """Tell whether the server has ended TLS because of our certificate (alerts 41 to 46, 48 and 116 of RFC 8446)."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return "_ALERT_" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
