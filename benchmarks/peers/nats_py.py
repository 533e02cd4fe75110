"""nats-py, the official client for Python."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.protocol.parser import Parser


def _finish(work: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine that never waits, without an event loop's cost."""
    try:
        work.send(None)
    except StopIteration as done:
        return int(done.value)
    raise RuntimeError("the coroutine waits for something")


class _Counting:
    """Stands where the parser expects its client: takes messages and keeps none."""

    def __init__(self) -> None:
        self.count = 0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.count += 1


class _Building(_Counting):
    """Makes of each message the values that an application reads: as the client does, without its queues."""

    def __init__(self) -> None:
        super().__init__()
        self._client = Client()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.count += 1
        header = await self._client._process_headers(headers)
        message = self._client._build_message(sid, subject, reply, data, header)
        if reply.startswith(b"$JS.ACK."):
            metadata = message.metadata
            _ = metadata.stream, metadata.sequence.stream, metadata.timestamp


def parse(chunks: Iterable[bytes], values: bool = False) -> int:
    """Feed the parser and return how many messages it found.

    Args:
        chunks: the wire.
        values: also make message objects with headers and metadata, which is the client's work and not the parser's.
    """

    async def feed() -> int:
        counting = _Building() if values else _Counting()
        parser = Parser(counting)
        for chunk in chunks:
            await parser.parse(chunk)
        return counting.count

    return _finish(feed())


class _Silent(Client):
    """A client whose commands go nowhere."""

    sent = 0

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        self.sent += len(cmd)


def encode(subjects: list[str], payloads: list[bytes], headers: list[dict[str, str]] | None = None) -> int:
    """Make the command of each message as ``publish`` does, and return their bytes."""

    async def send() -> int:
        client = _Silent()
        if headers is None:
            for subject, payload in zip(subjects, payloads, strict=True):
                await client._send_publish(subject, "", payload, len(payload), None)
        else:
            for subject, payload, header in zip(subjects, payloads, headers, strict=True):
                await client._send_publish(subject, "", payload, len(payload), header)
        return client.sent

    return _finish(send())


async def _read_stream(url: str, stream: str, count: int, batch: int) -> float:
    client = await nats.connect(url)
    js = client.jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, inactive_threshold=60)
    began = time.perf_counter()
    subscription = await js.pull_subscribe("", stream=stream, config=config)
    received = 0
    while received < count:
        received += len(await subscription.fetch(min(batch, count - received), timeout=10))
    seconds = time.perf_counter() - began
    await subscription.unsubscribe()
    await client.close()
    return seconds


def read_stream(url: str, stream: str, count: int, batch: int = 1000) -> float:
    """Fetch the first ``count`` messages through a pull consumer and return the seconds."""
    return asyncio.run(_read_stream(url, stream, count, batch))


async def _subscribe(url: str, subject: str, count: int, go: str, credit: str, part: int) -> float:
    client = await nats.connect(url)
    received = 0
    done = asyncio.Event()

    async def receive(_: Msg) -> None:
        nonlocal received
        received += 1
        if received % part == 0:
            await client.publish(credit)
        if received == count:
            done.set()

    await client.subscribe(subject, cb=receive, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    began = time.perf_counter()
    await client.publish(go, str(count).encode())
    await asyncio.wait_for(done.wait(), 120)
    seconds = time.perf_counter() - began
    await client.close()
    return seconds


def subscribe(url: str, subject: str, count: int, go: str, credit: str, part: int) -> float:
    """Receive ``count`` messages of the feeder in a callback and return the seconds."""
    return asyncio.run(_subscribe(url, subject, count, go, credit, part))


async def _publish(url: str, subjects: list[str], payloads: list[bytes]) -> float:
    client = await nats.connect(url)
    began = time.perf_counter()
    for subject, payload in zip(subjects, payloads, strict=True):
        await client.publish(subject, payload)
    await client.flush(60)
    seconds = time.perf_counter() - began
    await client.close()
    return seconds


def publish(url: str, subjects: list[str], payloads: list[bytes]) -> float:
    """Publish to core NATS, flush, and return the seconds."""
    return asyncio.run(_publish(url, subjects, payloads))


async def _publish_stream(url: str, subjects: list[str], payloads: list[bytes], ids: bool) -> float:
    client = await nats.connect(url)
    js = client.jetstream()
    began = time.perf_counter()
    futures = []
    for i, (subject, payload) in enumerate(zip(subjects, payloads, strict=True)):
        headers = {"Nats-Msg-Id": f"3f81c09a-0-0-{i}"} if ids else None
        futures.append(await js.publish_async(subject, payload, headers=headers))
    await asyncio.gather(*futures)
    seconds = time.perf_counter() - began
    await client.close()
    return seconds


def publish_stream(url: str, subjects: list[str], payloads: list[bytes], ids: bool = False) -> float:
    """Publish to a stream with ``publish_async``, wait for all acknowledgements, and return the seconds."""
    return asyncio.run(_publish_stream(url, subjects, payloads, ids))
