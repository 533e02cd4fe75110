"""What is published, with a ledger of what was acknowledged, or of when it was published."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from nats.aio.client import Client
from nats.errors import Error

from tests.chaos.cluster import CLIENT
from tests.chaos.verdict import payload

KEYS = tuple(f"k{i}" for i in range(16))
"""The last tokens of the subjects."""

_ACK_TIMEOUT = 2.0
_PAUSE = 0.1  # seconds before a message is sent again


class Ledger(Protocol):
    """Something that publishes."""

    @property
    def published(self) -> Mapping[str, int]: ...

    def stop(self) -> None: ...


class _Background:
    """Publishes from a thread of its own until it is stopped."""

    def __init__(self, urls: Sequence[str], rate: float) -> None:
        self._urls = list(urls)
        self._interval = len(KEYS) / rate
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish no more. Raises what made publishing fail, if anything has."""
        self._ending.set()
        self._thread.join(30)
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._connect())
        except BaseException as error:
            self._failure = error

    async def _connect(self) -> None:
        client = Client()
        await client.connect(self._urls, **CLIENT)
        try:
            await self._publish(client)
        finally:
            await client.close()

    async def _publish(self, client: Client) -> None:
        raise NotImplementedError


class Publisher(_Background):
    """Publishes to IN, in small bursts, one message of each key at a time.

    A message is sent again, with the same id, until it is acknowledged, and the next one of its key only then: so the
    numbers of a key rise in the stream whatever happens.

    Args:
        urls: the servers.
        rate: messages a second; less while there are faults, and what was missed then is not made up for.

    Attributes:
        acknowledged: of each key the number up to which all messages were acknowledged.
    """

    def __init__(self, urls: Sequence[str], rate: float) -> None:
        self.acknowledged = dict.fromkeys(KEYS, 0)
        super().__init__(urls, rate)

    @property
    def published(self) -> Mapping[str, int]:
        """The number of the last message of each key."""
        return self.acknowledged

    async def _publish(self, client: Client) -> None:
        await asyncio.gather(*(self._publish_key(client, key) for key in KEYS))

    async def _publish_key(self, client: Client, key: str) -> None:
        stream = client.jetstream(timeout=_ACK_TIMEOUT)
        clock = asyncio.get_running_loop().time
        due = clock()
        while not self._ending.is_set():
            number = self.acknowledged[key] + 1
            try:
                await stream.publish(f"in.{key}", payload(key, number), headers={"Nats-Msg-Id": f"{key}-{number}"})
            except (Error, OSError):
                await asyncio.sleep(_PAUSE)
                continue
            self.acknowledged[key] = number
            due = max(due + self._interval, clock())
            await asyncio.sleep(due - clock())


class CorePublisher(_Background):
    """Publishes to core NATS, a message of each key at a time, through a server that no fault hits.

    Attributes:
        times: of each key when its messages were published, in seconds since 1970.
    """

    def __init__(self, url: str, rate: float) -> None:
        self.times: dict[str, list[float]] = {key: [] for key in KEYS}
        super().__init__([url], rate)

    @property
    def published(self) -> Mapping[str, int]:
        """The number of the last message of each key."""
        return {key: len(times) for key, times in self.times.items()}

    async def _publish(self, client: Client) -> None:
        while not self._ending.is_set():
            for key, times in self.times.items():
                times.append(time.time())
                await client.publish(f"core.{key}", payload(key, len(times)))
            await client.flush()
            await asyncio.sleep(self._interval)
