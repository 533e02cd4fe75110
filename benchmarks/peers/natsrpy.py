"""natsrpy, a client for Python whose inside is the official client for Rust."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

try:
    import natsrpy
    from natsrpy.js import AckPolicy, PullConsumerConfig

    MISSING = ""
except ImportError:
    MISSING = "natsrpy is left out: it is not installed (it is in the dependency group 'bench')"

_AT_ONCE = 1000
_SECONDS = 60.0


async def _connect(url: str) -> Any:
    client = natsrpy.Nats(addrs=[url])
    await client.startup()
    return client


async def _read_stream(url: str, stream: str, count: int, batch: int) -> float:
    client = await _connect(url)
    js = await client.jetstream()
    handle = await js.streams.get(stream)
    began = time.perf_counter()
    consumer = await handle.consumers.create(
        PullConsumerConfig(name="bench-natsrpy", ack_policy=AckPolicy.NONE, memory_storage=True)
    )
    received = 0
    while received < count:
        received += len(await consumer.fetch(max_messages=min(batch, count - received), timeout=10))
    seconds = time.perf_counter() - began
    await handle.consumers.delete("bench-natsrpy")
    await client.shutdown()
    return seconds


def read_stream(url: str, stream: str, count: int, batch: int = 1000) -> float:
    """Fetch the first ``count`` messages through a pull consumer and return the seconds."""
    return asyncio.run(_in_time(_read_stream(url, stream, count, batch)))


async def _in_time(work: Awaitable[float]) -> float:
    return await asyncio.wait_for(work, _SECONDS)


async def _subscribe(url: str, subject: str, count: int, go: str, credit: str, part: int) -> float:
    client = await _connect(url)
    async with client.subscribe(subject) as subscription:
        await client.flush()
        began = time.perf_counter()
        await client.publish(go, str(count).encode())
        received = 0
        async for _ in subscription:
            received += 1
            if received % part == 0:
                await client.publish(credit, b"")
            if received == count:
                break
        seconds = time.perf_counter() - began
    await client.shutdown()
    return seconds


def subscribe(url: str, subject: str, count: int, go: str, credit: str, part: int) -> float:
    """Receive ``count`` messages of the feeder and return the seconds."""
    return asyncio.run(_in_time(_subscribe(url, subject, count, go, credit, part)))


async def _publish(url: str, subjects: list[str], payloads: list[bytes]) -> float:
    client = await _connect(url)
    began = time.perf_counter()
    for start in range(0, len(subjects), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        await asyncio.gather(*map(client.publish, subjects[part], payloads[part]))
    await client.flush()
    seconds = time.perf_counter() - began
    await client.shutdown()
    return seconds


def publish(url: str, subjects: list[str], payloads: list[bytes]) -> float:
    """Publish to core NATS, flush, and return the seconds."""
    return asyncio.run(_in_time(_publish(url, subjects, payloads)))


async def _publish_stream(url: str, subjects: list[str], payloads: list[bytes]) -> float:
    client = await _connect(url)
    js = await client.jetstream()
    began = time.perf_counter()
    for start in range(0, len(subjects), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        await asyncio.gather(
            *(js.publish(s, p, wait=True) for s, p in zip(subjects[part], payloads[part], strict=True))
        )
    seconds = time.perf_counter() - began
    await client.shutdown()
    return seconds


def publish_stream(url: str, subjects: list[str], payloads: list[bytes]) -> float:
    """Publish to a stream, a thousand at a time, wait for all acknowledgements, and return the seconds."""
    return asyncio.run(_in_time(_publish_stream(url, subjects, payloads)))
