"""What is published, with a ledger of what was acknowledged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from nats.aio.client import Client
from nats.errors import Error

from tests.chaos.cluster import CLIENT
from tests.chaos.verdict import payload

KEYS = tuple(f"k{i}" for i in range(16))
"""The last tokens of the subjects."""

_ACK_TIMEOUT = 2.0
_PAUSE = 0.1  # seconds before a message is sent again


class Publisher:
    """Publishes to IN from a thread of its own, in small bursts, one message of each key at a time.

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
        self.retries = 0
        self._urls = list(urls)
        self._interval = len(KEYS) / rate
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish no more. Raises what made publishing fail, if anything has."""
        self._stop.set()
        self._thread.join(30)
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:
            self._failure = error

    async def _publish(self) -> None:
        client = Client()
        await client.connect(self._urls, **CLIENT)
        try:
            await asyncio.gather(*(self._publish_key(client, key) for key in KEYS))
        finally:
            await client.close()

    async def _publish_key(self, client: Client, key: str) -> None:
        stream = client.jetstream(timeout=_ACK_TIMEOUT)
        clock = asyncio.get_running_loop().time
        due = clock()
        while not self._stop.is_set():
            number = self.acknowledged[key] + 1
            try:
                await stream.publish(f"in.{key}", payload(key, number), headers={"Nats-Msg-Id": f"{key}-{number}"})
            except (Error, OSError):
                self.retries += 1
                await asyncio.sleep(_PAUSE)
                continue
            self.acknowledged[key] = number
            due = max(due + self._interval, clock())
            await asyncio.sleep(due - clock())
