"""Other targets: several streams at once, a work queue that its worker drains all the time, a KV bucket of last values.

From the last two, messages go.

A server that restarts, or joins, has forgotten the ids of messages that are gone. So a replay after that has to end the
query with an error that says so, or to leave the target as it was.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import replace

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.errors import Error as JetStreamError

from tests.chaos.cluster import BUCKET, CLIENT, COPY, IN, QUEUE, ChaosCluster
from tests.chaos.publisher import KEYS, Ledger, Publisher
from tests.chaos.stage import Beside, Kind, Stage, copy_options, number_in
from tests.chaos.verdict import Entry, Taken, Verdict, judge, judge_bucket, judge_queue, number_of, read
from tests.nats_py import NatsPy, wait_until

_ACK_WAIT = 5.0
_AT_ONCE = 500
_LATE = 15.0
"""Seconds for which a message may wait in the queue, and its copy with it."""
_DRAINED = 60.0
UNKNOWN = r"DataLossError: .*was begun before, and it is unknown what it stored then"
"""What a query may end with whenever a server has forgotten ids."""


class Worker(Beside):
    """Takes messages from the work queue, and acknowledges each, from a thread of its own.

    Attributes:
        taken: the messages by their sequences, each once, however often the server delivers it.
    """

    def __init__(self, stage: Stage) -> None:
        self.taken: dict[int, Taken] = {}
        self._driver = stage.driver
        self._lenient = 0.0  # until when the query's rows may be in the queue again
        self._urls = stage.cluster.urls
        self._target = stage.cluster.target
        self._last = dict.fromkeys(KEYS, 0)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="worker", daemon=True)
        self._thread.start()

    def copied(self) -> int | None:
        """The number of the last message of the first key that was taken."""
        return self._last[KEYS[0]]

    def close(self) -> None:
        """Take no more."""
        self._ending.set()
        self._thread.join(_DRAINED)

    async def _run(self) -> None:
        client = Client()
        await client.connect(self._urls, **CLIENT)
        try:
            while not self._ending.is_set():
                with suppress(Error, JetStreamError, OSError):
                    await self._take(client)
        finally:
            await client.close()

    async def _take(self, client: Client) -> None:
        stream = client.jetstream(timeout=_ACK_WAIT)
        worker = await stream.pull_subscribe(f"{self._target.prefix}>", "worker", self._target.stream)
        while not self._ending.is_set():
            for message in await worker.fetch(_AT_ONCE, timeout=1):
                self._note(message)
                await message.ack()  # if that is lost, the server delivers it again, with the same sequence

    def _note(self, message: Msg) -> None:
        now = time.monotonic()
        if self._driver.lenient and self._driver.losses:
            self._lenient = now + _LATE
        key, sequence = message.subject.rpartition(".")[2], message.metadata.sequence.stream
        entry = Entry(number_of(message.data), sequence, f"{message.metadata.timestamp:%H:%M:%S.%f}")
        self.taken.setdefault(sequence, Taken(key, entry, now < self._lenient))
        self._last[key] = max(self._last[key], entry.number)


class Reader(Beside):
    """Looks at the values of a bucket all the time.

    Attributes:
        steps_back: how often the value of a key was an older one than before.
    """

    def __init__(self, stage: Stage) -> None:
        self.steps_back = 0
        self._cluster = stage.cluster
        self._last = dict.fromkeys(KEYS, 0)

    def copied(self) -> int | None:
        """The number of the first key's value."""
        for key in KEYS:
            number = number_in(self._cluster, key)
            if number is not None:
                self.steps_back += number < self._last[key]
                self._last[key] = number
        return self._last[KEYS[0]]

    def close(self) -> None:
        """There is nothing to end."""


def _compare_queue(stage: Stage, publisher: Ledger) -> Verdict:
    """Compare what the worker has taken with IN: once each, unless it came again after an error that said so."""
    worker = stage.beside
    assert isinstance(worker, Worker)
    with NatsPy(stage.cluster.urls, **CLIENT) as client:
        wait_until(lambda: client.held(stage.cluster.target.stream) == 0, _DRAINED)
        given = read(client, IN)
    worker.close()
    taken = [each for _, each in sorted(worker.taken.items())]
    return judge_queue(given, taken, publisher.published)


def _compare_bucket(stage: Stage, publisher: Ledger) -> Verdict:
    """Compare the value of each key with the last message of IN."""
    reader = stage.beside
    assert isinstance(reader, Reader)
    with NatsPy(stage.cluster.urls, **CLIENT) as client:
        given, found = read(client, IN), read(client, stage.cluster.target.stream)
    verdict = judge_bucket(given, found)
    verdict.steps_back = reader.steps_back
    return verdict


def _publisher(cluster: ChaosCluster, rate: float) -> Publisher:
    return Publisher(cluster.urls, rate)


def _compare_apart(stage: Stage, publisher: Ledger) -> Verdict:
    """Compare what the streams hold together with IN."""
    with NatsPy(stage.cluster.urls, **CLIENT) as client:
        found = {key: each for name in stage.cluster.target.streams for key, each in read(client, name).items()}
        return judge(read(client, IN), found, publisher.published, stage.restored)


APART = replace(
    COPY,
    options={"streamPattern": "OUT|OUT_[A-Z]"},
    last_tokens=KEYS[:6],
    others={"OUT_B": KEYS[6:12], "OUT_C": KEYS[12:]},
)
"""Several streams, of which each hears some of the keys."""
TARGETS = {
    "several": Kind(copy_options, _publisher, _compare_apart, APART),
    "queue": Kind(copy_options, _publisher, _compare_queue, QUEUE, Worker, UNKNOWN),
    "bucket": Kind(copy_options, _publisher, _compare_bucket, BUCKET, Reader),
}
"""What the command takes instead of a stream that keeps all messages."""
