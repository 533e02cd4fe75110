"""One connection, to the first server that accepts it, driven by its caller: subscriptions, requests, publishing.

The layer below, which moves the bytes, is in :mod:`.link`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Self

import pyarrow as pa

from spark_nats import clock
from spark_nats.client.choosing import note_name, note_reached, note_unreachable, servers_to_try
from spark_nats.client.link import Link, ask_info_without_login
from spark_nats.client.options import ConnectionOptions
from spark_nats.client.servers import Server
from spark_nats.client.subscriptions import Subscription
from spark_nats.client.transport import reason_of
from spark_nats.conditions import Topic, Transient
from spark_nats.conditions.client import NO_LOGIN, NO_SERVER, NOBODY_LISTENS, REQUEST_TIMEOUT
from spark_nats.errors import (
    AuthorizationError,
    NatsConnectionError,
    NatsError,
    NatsTimeoutError,
    NoRespondersError,
)
from spark_nats.protocol.bytecolumns import lengths_of
from spark_nats.protocol.control import encode_sub, encode_unsub
from spark_nats.protocol.encoder import encode_message, encode_messages
from spark_nats.protocol.headers import NO_RESPONDERS, parse_status
from spark_nats.protocol.messages import Messages
from spark_nats.protocol.subjects import subject_violation

SECOND_ANSWER = 1.0
"""Seconds within which a second answer comes, where two responders have the same subject."""
MAX_SILENT = 2
"""How many servers that say nothing end a search for versions."""


class Reply(NamedTuple):
    """The answer to a request."""

    payload: bytes
    header: bytes


class Connection(Link):
    """A connection to one server, for use by one thread at a time.

    Every method that sends or receives raises NatsError when the connection fails or the server reports an error.

    Attributes:
        closed: whether the connection is closed, by the client or because it is lost.
        lame_duck: whether the server is about to shut down (lame duck mode, ADR-5): work in progress can be finished,
            new work belongs on another server.

    Raises:
        OSError: no server listens on the address, the host is unknown, or nobody answered in ``connect_timeout``.
        NatsError: the handshake failed, or a proxy does not connect to the server.
    """

    def __init__(self, server: Server, options: ConnectionOptions) -> None:
        super().__init__(server, options)
        self._requests: Subscription | None = None
        self._request_count = 0
        note_name(server, self.info.server_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection to {self.server}{' (closed)' if self.closed else ''}>"

    # Subscriptions and messages

    def new_inbox(self) -> str:
        """Return a unique subject on which to receive answers."""
        return f"{self.options.inbox_prefix}.{clock.token(8)}"

    def subscribe(self, *subjects: str, queue: str | None = None, later: bool = False) -> Subscription:
        """Subscribe to subjects or wildcards, in a queue group if one is named.

        The messages of all subjects arrive together, in wire order. A message that matches several of the subjects
        arrives once for each. With ``later``, the SUB goes out together with the next bytes.

        Raises:
            ValueError: a subject or the queue group is not valid.
        """
        subscription = self._subscriptions.add(subjects)  # first, since messages may arrive while the SUB is sent
        try:
            lines = [encode_sub(subject, sid, queue) for subject, sid in zip(subjects, subscription.sids, strict=True)]
        except ValueError:
            self._subscriptions.remove(subscription)
            raise
        (self.send_later if later else self.send)(b"".join(lines))
        return subscription

    def change_subjects(self, subscription: Subscription, added: Sequence[str], ended: Sequence[int] = ()) -> range:
        """Let the messages of more subjects arrive together with those of a subscription, and end others by their ids.

        Returns:
            The ids of the new subjects.
        """
        sids = self._subscriptions.change(subscription, len(added), ended)
        lines = [encode_sub(subject, sid, None) for subject, sid in zip(added, sids, strict=True)]
        self.send(b"".join([*lines, *map(encode_unsub, ended)]))
        return sids

    def unsubscribe_after(self, subscription: Subscription, messages: int) -> None:
        """Have the server end a subscription after a number of messages, counted for each of its subjects.

        This is UNSUB with ``max_msgs``; messages that the server has already delivered count too.
        """
        self.send(b"".join(encode_unsub(sid, messages) for sid in subscription.sids))

    def unsubscribe(self, subscription: Subscription, later: bool = False) -> None:
        """End a subscription and drop its messages in flight; ``later`` is that of :meth:`subscribe`."""
        known = self._subscriptions.remove(subscription)
        if known and not self.closed:
            (self.send_later if later else self.send)(b"".join(map(encode_unsub, known)))

    def unsubscribe_and_drain(self, subscription: Subscription) -> list[Messages]:
        """End a subscription, wait for what is in flight, and return all its messages that have arrived."""
        self.send(b"".join(map(encode_unsub, subscription.sids)))
        self.flush()  # after the PONG, no message of the subscription can arrive
        self._subscriptions.remove(subscription)
        return list(iter(subscription.pop, None))

    def next(self, subscription: Subscription, timeout: float) -> Messages | None:
        """Return the pending messages that arrived first, in one batch; other pending ones are left for the next call.

        When there are none, wait for some, and return None after ``timeout`` seconds.
        """
        self._receive_until(lambda: subscription.has_pending, clock.monotonic() + timeout)
        return subscription.pop()

    def wait_while_receiving(self, seconds: float) -> None:
        """Wait, and receive messages and answer PING during the wait, so that the server does not disconnect."""
        self._receive_until(lambda: False, clock.monotonic() + seconds)

    def request(self, subject: str, payload: bytes, timeout: float | None = None) -> Reply:
        """Send a request, and return its first answer; see :meth:`request_all`.

        Raises:
            NoRespondersError: no subscriber listens on the subject.
            NatsTimeoutError: no answer has arrived within the timeout.
        """
        (reply,) = self.request_all([(subject, payload, None)], timeout)
        if isinstance(reply, NatsError):
            raise reply
        return reply

    def request_all(
        self,
        requests: Sequence[tuple[str, bytes, bytes | None]],
        timeout: float | None = None,
        expected: Sequence[Callable[[bytes], bool | None]] | None = None,
    ) -> list[Reply | NatsError]:
        """Send requests one after the other, in one round trip.

        Args:
            requests: subject, payload and header block, if any, of each request.
            timeout: seconds to wait for all answers; the connection's ``request_timeout`` when None.
            expected: for each request, what tells whether a payload is the intended responder's answer, since other
                subscribers may listen on the subject too, and answer first. It returns None where only a second answer
                tells: the payload counts if the other one does not, or none comes within :data:`SECOND_ANSWER`. When
                ``expected`` is None, every answer counts.

        Returns:
            For each request the first expected answer, or one with a status and no payload. If none arrives within the
            timeout: another answer, else a NatsTimeoutError. If no subscriber listens on the subject: a
            NoRespondersError.

        Raises:
            ValueError: a subject cannot be published to.
        """
        for subject, *_ in requests:
            if violation := subject_violation(subject):
                raise ValueError(f"subject {subject!r} {violation}")
        if self._requests is None:
            self._requests = self.subscribe(f"{self.new_inbox()}.*")
        open_ = {}  # subjects of the unanswered requests, and what tells their answers, by inbox
        strangers: dict[str, Reply] = {}
        doubtful: dict[str, Reply] = {}  # answers that count unless a second one does
        for (subject, payload, header), tells in zip(requests, expected or [_accept_any] * len(requests), strict=True):
            self._request_count += 1
            inbox = f"{self._requests.subject[:-1]}{self._request_count}"
            open_[inbox] = subject, tells
            self.publish(subject, payload, inbox, header)
        inboxes = list(open_)
        replies: dict[str, Reply | NatsError] = {}
        limit = self.options.request_timeout if timeout is None else timeout
        deadline = clock.monotonic() + limit
        while open_:
            messages = self.next(self._requests, deadline - clock.monotonic())
            for inbox, reply in _awaited_answers(messages, open_) if messages is not None else ():
                subject, tells = open_[inbox]
                status = None if reply.payload else parse_status(reply.header)
                if status is None and not (counts := tells(reply.payload)):
                    if inbox not in doubtful and (counts is False or inbox not in strangers):
                        (strangers if counts is False else doubtful)[inbox] = reply
                        continue
                    reply = doubtful.pop(inbox, reply)
                del open_[inbox]
                if status is not None and status.code == NO_RESPONDERS:
                    replies[inbox] = NoRespondersError(NOBODY_LISTENS(subject=subject, server=self.server))
                else:
                    replies[inbox] = reply
            if doubtful and open_.keys() <= doubtful.keys():
                deadline = min(deadline, clock.monotonic() + SECOND_ANSWER)
            if clock.monotonic() >= deadline:  # checked here too, because messages may arrive without a pause
                break
        for inbox, (subject, _) in open_.items():
            late = NatsTimeoutError(REQUEST_TIMEOUT(server=self.server, subject=subject, timeout=limit))
            replies[inbox] = {**strangers, **doubtful}.get(inbox, late)
        return [replies[inbox] for inbox in inboxes]

    # Sending

    def publish(self, subject: str, payload: bytes, reply: str | None = None, header: bytes | None = None) -> None:
        """Send one message; the subjects must be literal and valid, and a header block must be well-formed."""
        self.send(encode_message(subject, payload, reply, header))

    def find_too_large_row(self, payloads: pa.Array, headers: pa.Array | None) -> int | None:
        """Return the first row that is larger than the server accepts, as it said when it was connected to, or None."""
        size = lengths_of(payloads) if headers is None else lengths_of(payloads) + lengths_of(headers)
        large = size > min(self.info.max_payload or 2**63 - 1, 2**63 - 1)
        return int(large.argmax()) if large.any() else None

    def set_empty_messages_at_close(self, subjects: Sequence[str]) -> None:
        """Have :meth:`close` send an empty message to each of these subjects, instead of those set before.

        The messages are sent only if the connection is still open, and only as far as the socket takes them at once.
        """
        self._last_words = b"".join(encode_message(subject, b"", None, None) for subject in subjects)

    def publish_columns(
        self, subjects: pa.Array, payloads: pa.Array, headers: pa.Array | None = None, replies: pa.Array | None = None
    ) -> None:
        """Send a message for each row; the rows must be valid (:func:`encode_messages`), and a few MiB at most."""
        self.send(encode_messages(subjects, payloads, replies, headers))


def _accept_any(_: bytes) -> bool:
    return True


def _awaited_answers(messages: Messages, inboxes: Collection[str]) -> Iterator[tuple[str, Reply]]:
    """Yield messages to inboxes that are still awaited; others are late answers to requests that were given up."""
    for i in range(len(messages)):
        if (inbox := messages.subject_at(i)) in inboxes:
            yield inbox, Reply(messages.payload_at(i), messages.header_at(i))


def connect(options: ConnectionOptions, lost: Server | None = None) -> Connection:
    """Try ``options.servers`` and, with discovery, the announced ones; return a connection to one that lets us log in.

    The order is random, so that the tasks of a query do not all connect to the same server (ADR-40). Servers that this
    machine has recently found :func:`~spark_nats.client.host_cache.unreachable_fact` are tried after the others. The
    server to which a connection was just ``lost``, if any, is tried last.

    Raises:
        AuthorizationError: a server refused the credentials, and no other server could be reached or accepted them.
        NatsConnectionError: no server could be reached, or all that were reached failed in the handshake.
        NatsError: the URL of a server is that of a WebSocket, and a package for it is missing.
    """
    failures: list[tuple[Server, NatsError | OSError]] = []
    servers = servers_to_try(options, lost)
    if options.opening and any(server.path is not None for server in servers):
        options.opening()  # raises the error if a package is missing
    for server in servers:
        try:
            connection = Connection(server, options)
        except (NatsError, OSError) as error:
            if isinstance(error, AuthorizationError):
                error = error.with_message(_describe_failure(server, error))  # the answer of a gateway names no server
            else:
                note_unreachable(server)
            failures.append((server, error))
        else:
            note_reached(server)
            return connection
    refused = [error for _, error in failures if isinstance(error, AuthorizationError)]
    if len(failures) == len(refused) == 1:
        raise refused[0]
    transient = [error.transient if isinstance(error, NatsError) else Transient.ALWAYS for _, error in failures]
    topics = [topic for _, error in failures if isinstance(error, NatsError) for topic in error.topics]
    kind, condition = (AuthorizationError, NO_LOGIN) if refused else (NatsConnectionError, NO_SERVER)
    raise kind(
        condition(failures="; ".join(_describe_failure(server, error) for server, error in failures)),
        failures=[error for _, error in failures],
        transient=None if refused else max(transient),
    ).with_topics(*(dict.fromkeys(topics) or [Topic.SERVERS]))


def ask_versions(connection: Connection, names: Collection[str]) -> dict[str, str]:
    """Return the versions of servers of the connected cluster by their names, as far as they tell them without a login.

    Their addresses are those in ``options.servers``, and those that the connected server announces.
    """
    found, silent = {connection.info.server_name: connection.info.version}, 0
    announced = [connection.server.parse_announced(url, tls=False) for url in connection.info.connect_urls]
    for server in dict.fromkeys(filter(None, (*connection.options.servers, *announced))):
        if silent == MAX_SILENT or found.keys() >= set(names):
            break
        try:
            info = ask_info_without_login(server, connection.options)
        except (OSError, NatsError):
            silent += 1
        else:
            found[info.server_name] = info.version
    return {name: version for name, version in found.items() if name in names}


def _describe_failure(server: Server, error: Exception) -> str:
    reason = reason_of(error)
    return reason if reason.startswith(str(server)) else f"{server}: {reason}"
