"""nats-py, the official client for Python."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from nats.aio.client import Client
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
