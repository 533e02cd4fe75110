"""Sockets without a client. What they take in is thrown away and what they send was made before: the server's limit.

The functions are also run in other processes, so that two of them can have a core each.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import data, environment
from spark_nats.client import Connection
from spark_nats.client.servers import parse_servers
from spark_nats.client.transport import CHUNK
from spark_nats.jetstream import JetStream
from spark_nats.jetstream.consuming.consumers import create_ephemeral, delete_consumer_without_waiting
from spark_nats.jetstream.reading.pulls import HEADROOM, HEARTBEAT, PULL_BYTES, PULL_EXPIRES, PULL_MESSAGES
from spark_nats.kinds.core.backlog import Backlog
from spark_nats.protocol.api import API_PREFIX, Api

GO, CREDIT = "bench.go", "bench.credit"
PART_MESSAGES = 16_384
"""Messages that the feeder sends at once, and that a subscriber acknowledges at once."""
PARTS_IN_FLIGHT = 8
"""Parts that are sent and not acknowledged: with 128-byte payloads half of what the server keeps for one client."""
_SECONDS = 60.0
_LONGEST_FEED = 300.0  # seconds
_NANOSECONDS = 1_000_000_000
_PENDING = b"Nats-Pending-Messages: "
_SILENCE = 0.1  # seconds
_MOST_SILENCES = 100
_TAIL = 512  # bytes; more than any subject or status has


class RawConnection:
    """A connected socket behind its handshake. Every wait ends with an error after a minute."""

    def __init__(self, url: str) -> None:
        server = parse_servers(url)[0]
        self.socket = socket.create_connection((server.host, server.port), _SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        if server.credentials.user is not None:
            options |= {"user": server.credentials.user, "pass": server.credentials.password}
        elif server.credentials.token is not None:
            options["auth_token"] = server.credentials.token
        self.send(b"CONNECT %b\r\n" % json.dumps(options).encode())
        self.flush()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, wire: bytes | memoryview) -> None:
        self.socket.sendall(wire)

    def flush(self) -> None:
        """Wait until the server has processed what was sent. Only INFO, PING and PONG may come meanwhile."""
        self.send(b"PING\r\n")
        received = b""
        while b"PONG\r\n" not in received:
            part = self.socket.recv(65536)
            if not part:
                raise ConnectionError(f"the server closed the connection: {received[-200:]!r}")
            received += part

    def chunks(self) -> Iterator[memoryview]:
        """Receive for ever, always into the same buffer."""
        buffer = memoryview(bytearray(CHUNK))
        while size := self.socket.recv_into(buffer):
            yield buffer[:size]
        raise ConnectionError("the server closed the connection")


def drain_range(url: str, stream: str, start: int, end: int) -> tuple[float, float]:
    """Have the range delivered as `read_range` does and look at nothing but the newest delivery of each chunk.

    Returns:
        When it began and ended, on the clock that all processes share.
    """
    with environment.connect(url) as ours:
        began = time.monotonic()
        consumer = create_ephemeral(JetStream(ours), stream, start).name
        return began, drain_consumer(ours, url, stream, consumer, end - start)


def drain_consumer(ours: Connection, url: str, stream: str, consumer: str, count: int) -> float:
    """Have a new consumer deliver ``count`` messages to a connection of its own, then delete it by ``ours``.

    Returns:
        When it ended, on the clock that all processes share.
    """
    with RawConnection(url) as connection:
        inbox = f"_INBOX.{secrets.token_hex(8)}"
        connection.send(b"SUB %b 1\r\n" % inbox.encode())
        seen = asked = given_up = 0
        limit = max(PULL_BYTES, ours.info.max_payload + HEADROOM)
        chunks = connection.chunks()
        tail = b""
        silences = 0
        while seen < count:
            unanswered = asked - given_up - seen
            wanted = min(PULL_MESSAGES, count - seen - unanswered)
            if unanswered <= PULL_MESSAGES and wanted > 0:
                request = {
                    "batch": wanted,
                    "max_bytes": limit,
                    "expires": int(PULL_EXPIRES * _NANOSECONDS),
                    "idle_heartbeat": int(HEARTBEAT * _NANOSECONDS),
                }
                body = json.dumps(request).encode()
                subject = f"{API_PREFIX}.{Api.CONSUMER_NEXT.with_names(stream, consumer)}"
                connection.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.encode(), len(body), body))
                asked += wanted
                continue
            if not select.select([connection.socket], [], [], _SILENCE)[0]:
                # A request whose bytes were used up exactly ends without a word (nats-server 2.15): ask anew.
                given_up, silences = asked - seen, silences + 1
                if silences > _MOST_SILENCES:
                    raise TimeoutError(f"{seen} of {count} messages were delivered")
                continue
            window = tail + bytes(next(chunks))  # what the end of a chunk cuts in two is seen with the next one
            seen = max(seen, _newest_delivery(window))
            given_up += _given_up(window, len(tail))
            tail = window[-_TAIL:]
        ended = time.monotonic()
        delete_consumer_without_waiting(JetStream(ours), stream, consumer)
    return ended


def _newest_delivery(window: bytes) -> int:
    """Return the consumer sequence in the last whole acknowledgement subject, 0 when there is none."""
    end = len(window)
    while (position := window.rfind(b"$JS.ACK.", 0, end)) >= 0:
        fields = window[position : position + _TAIL].split(b" ", 1)
        tokens = fields[0].split(b".")
        if len(fields) == 2:
            return int(tokens[6 if len(tokens) == 9 else 8])
        end = position
    return 0


def _given_up(window: bytes, known: int) -> int:
    """Return how many messages the server's words about pull requests say that it will not send.

    Words that end within the first ``known`` bytes were heard before.
    """
    count = 0
    position = window.find(_PENDING)
    while position >= 0:
        start = position + len(_PENDING)
        end = window.find(b"\r", start)
        if end >= known:
            count += int(window[start:end])
        position = window.find(_PENDING, start)
    return count


def drain_subject(url: str, subject: str, count: int, size: int) -> float:
    """Subscribe and throw away ``count`` messages of ``size`` bytes of wire in all; return the seconds."""
    with RawConnection(url) as connection:
        connection.send(b"SUB %b 1\r\n" % subject.encode())
        connection.flush()
        began = time.perf_counter()
        publish(connection, GO, str(count).encode())
        received = credited = 0
        credit = size * PART_MESSAGES // count
        for chunk in connection.chunks():
            received += len(chunk)
            while received - credited >= credit:
                credited += credit
                publish(connection, CREDIT)
            if received >= size:
                return time.perf_counter() - began
    raise AssertionError("never reached")


def publish(connection: RawConnection, subject: str, payload: bytes = b"") -> None:
    """Send one message."""
    connection.send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))


def send_all(url: str, wire: bytes, times: int) -> float:
    """Send encoded messages ``times`` times and flush; return the seconds."""
    with RawConnection(url) as connection:
        began = time.perf_counter()
        for _ in range(times):
            connection.send(wire)
        connection.flush()
        return time.perf_counter() - began


class Feeder:
    """A process that publishes for whoever subscribes.

    A subscriber that is ready publishes to ``bench.go`` how many messages it wants, a multiple of PART_MESSAGES, and
    to ``bench.credit`` after every PART_MESSAGES that it got: the server is never asked to keep more than
    PARTS_IN_FLIGHT parts for a slow one.

    Attributes:
        subject: what to subscribe to.
        wire_size: bytes that the server sends for each PART_MESSAGES to a subscription with a sid of one digit.
    """

    subject = "feed.>"

    def __init__(self, url: str, payload_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._waited = context.Value("d", 0.0)
        self._ready = context.Event()
        self._process = context.Process(
            target=_feed, args=(url, payload_size, self._waited, self._ready), name="feeder", daemon=True
        )
        frames = encoded("feed.", payload_size)
        self.wire_size = len(frames) + PART_MESSAGES * len(" 1")  # MSG has a sid that PUB lacks

    def __enter__(self) -> Feeder:
        self._process.start()
        if not self._ready.wait(_SECONDS):
            raise TimeoutError("the feeder did not become ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join(_SECONDS)

    @property
    def pid(self) -> int | None:
        """Its process."""
        return self._process.pid

    @property
    def waited(self) -> float:
        """Seconds that the feeder waited for credits in its last run: where it is not the limit."""
        return float(self._waited.value)


def fill(connection: Connection, backlog: Backlog, count: int) -> None:
    """Have the :class:`Feeder` send so many messages, and wait until the backlog has them.

    Raises:
        TimeoutError: they have not arrived for a long time.
    """
    connection.publish(GO, str(count).encode())
    credited = 0
    deadline = time.monotonic() + _LONGEST_FEED
    while (end := backlog.end) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{end} of {count} messages arrived")
        while end - credited >= PART_MESSAGES:
            credited += PART_MESSAGES
            connection.publish(CREDIT, b"")
        connection.flush()
        time.sleep(0.002)


def encoded(prefix: str, size: int) -> bytes:
    """Return PART_MESSAGES messages as they are sent."""
    bodies = (data.payload(i, size) for i in range(PART_MESSAGES))
    to = prefix.encode()
    return b"".join(b"PUB %b%b %d\r\n%b\r\n" % (to, data.subject(i).encode(), len(b), b) for i, b in enumerate(bodies))


def _feed(url: str, payload_size: int, waited: Any, ready: Any) -> None:
    """Serve one subscriber after another."""
    part = encoded("feed.", payload_size)
    with RawConnection(url) as connection:
        connection.socket.settimeout(None)
        connection.send(b"SUB %b 1\r\nSUB %b 2\r\n" % (GO.encode(), CREDIT.encode()))
        connection.flush()
        ready.set()
        pending = b""
        parts = sent = credits_ = 0
        idle = 0.0
        while True:
            while sent < parts and sent - credits_ < PARTS_IN_FLIGHT:
                connection.send(part)
                sent += 1
            waited.value = idle
            began = time.perf_counter()
            pending += connection.socket.recv(65536)
            if sent < parts:
                idle += time.perf_counter() - began
            lines = pending.split(b"\r\n")
            pending = lines.pop()
            for line, following in zip(lines, [*lines[1:], pending], strict=True):
                if line.startswith(b"MSG " + GO.encode()):
                    if not following.isdigit():
                        pending = line + b"\r\n" + pending
                        break
                    parts, sent, credits_, idle = int(following) // PART_MESSAGES, 0, 0, 0.0
                elif line.startswith(b"MSG " + CREDIT.encode()):
                    credits_ += 1
                elif line == b"PING":
                    connection.send(b"PONG\r\n")
