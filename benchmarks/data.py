"""The messages that everybody handles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_nats.client.transport import CHUNK

REGIONS = ("eu", "us", "apac", "latam")
EVENTS = ("created", "paid", "packed", "shipped", "delivered", "returned")
FAKE_FRAME = b"\r\nMSG a 1 5\r\n"
STREAM = "ORDERS"
SUBJECTS = 50_000
_FIRST_TIME = 1_790_000_000_000_000_000


def subject(i: int) -> str:
    """Return a subject as an application would have it: some tokens with few values, one with many.

    There are 50,000 of them; ``peers/bench.c`` makes the same ones.
    """
    i %= SUBJECTS
    return f"orders.{REGIONS[i % 4]}.{i * 7919 % SUBJECTS:05d}.{EVENTS[i % 6]}"


def payload(i: int, size: int) -> bytes:
    """Return ``size`` bytes that differ from message to message and have no line break."""
    text = b'{"id":%d,"text":"the quick brown fox jumps over the lazy dog"}' % i
    return (text * (size // len(text) + 1))[:size]


def hostile_payload(i: int, size: int) -> bytes:
    """Return ``size`` bytes that look like the protocol."""
    return (FAKE_FRAME * (size // len(FAKE_FRAME) + 1))[:size]


def headers(i: int) -> dict[str, str]:
    """Return two headers as they are common."""
    return {"Content-Type": "application/json", "Trace-Id": f"{i * 2654435761 % 2**32:08x}"}


def header_block(i: int) -> bytes:
    """Return the two headers as they stand on the wire."""
    return b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % (k.encode(), v.encode()) for k, v in headers(i).items()) + b"\r\n"


def ack_subject(i: int, total: int) -> bytes:
    """Return the reply subject of a JetStream delivery."""
    return b"$JS.ACK.%b.spark-nats-4c1e88d0a7f3.1.%d.%d.%d.%d" % (
        STREAM.encode(),
        1_000_000 + i,
        i + 1,
        _FIRST_TIME + i * 3_517,
        total - i - 1,
    )


def msg(i: int, body: bytes) -> bytes:
    """Return a core message."""
    return b"MSG %b 2 %d\r\n%b\r\n" % (subject(i).encode(), len(body), body)


def delivery(i: int, body: bytes, total: int) -> bytes:
    """Return a JetStream delivery."""
    return b"MSG %b 2 %b %d\r\n%b\r\n" % (subject(i).encode(), ack_subject(i, total), len(body), body)


def direct_get(i: int, body: bytes, total: int) -> bytes:
    """Return a message that a batched direct get brings."""
    seconds, rest = divmod(_FIRST_TIME + i * 3_517, 10**9)
    stored = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}".rstrip("0").rstrip(".").encode()
    block = (
        b"NATS/1.0\r\nNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %bZ\r\n"
        b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
    ) % (STREAM.encode(), subject(i).encode(), 1_000_000 + i, stored, total - i - 1, 999_999 + i)
    return b"HMSG _INBOX.4c1e88d0a7f3 2 %d %d\r\n%b%b\r\n" % (len(block), len(block) + len(body), block, body)


def hmsg(i: int, body: bytes) -> bytes:
    """Return a core message with two headers."""
    block = header_block(i)
    return b"HMSG %b 2 %d %d\r\n%b%b\r\n" % (subject(i).encode(), len(block), len(block) + len(body), block, body)


def chunks(frame: Callable[[int], bytes], count: int) -> list[bytes]:
    """Return ``count`` frames as a socket would give them: cut where the buffer is full, not where a frame ends."""
    wire = b"".join(map(frame, range(count)))
    return [wire[i : i + CHUNK] for i in range(0, len(wire), CHUNK)]


def columns(count: int, size: int, subject_prefix: str = "") -> tuple[pa.Array, pa.Array]:
    """Return subjects and payloads to be published."""
    subjects = pa.array([subject_prefix + subject(i) for i in range(count)], pa.string())
    return subjects, pa.array([payload(i, size) for i in range(count)], pa.binary())


def header_column(count: int) -> pa.Array:
    """Return two headers for each of ``count`` messages, as the sink gets them."""
    rows = [[(name, [value]) for name, value in headers(i).items()] for i in range(count)]
    return pa.array(rows, pa.map_(pa.string(), pa.list_(pa.string())))


def slices(count: int, size: int) -> Iterator[slice]:
    """Cut ``count`` rows into batches of ``size``, as Spark does."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
