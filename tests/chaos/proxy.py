"""A TCP proxy in front of a server, which can do to connections what networks do to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, TypeVar

from tests.nats_py import end_tasks, wait_until

T = TypeVar("T")

_CHUNK = 65536
_SIP = 64  # bytes forwarded at a time while trickling
_SIP_SECONDS = 0.002
_WORTH_TEARING = 64  # bytes; a shorter chunk is hardly more than a PING, or the answer that a batch has begun


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


class Proxy:
    """Forwards connections to a port of this machine, from a thread of its own, until it is closed.

    Attributes:
        delay: seconds that each chunk is held back.
        trickling: in which directions bytes go through a few at a time.
        silent: in which direction longer answers are lost, over connections that stay; None for neither.
        lost: what is lost on its way to the client, with the chunk that it is in; None for nothing.
        torn: how many frames were torn.
    """

    def __init__(self, target: int) -> None:
        self.delay = 0.0
        self.trickling: Sequence[Direction] = ()
        self.silent: Direction | None = None
        self.lost: bytes | None = None
        self.torn = 0
        self._target = target
        self._tearing: Direction | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.accept()

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"nats://127.0.0.1:{self._port}"

    def accept(self) -> None:
        """Take new connections, as it does in the beginning."""
        self._run(self._accept())

    def refuse(self) -> None:
        """Take no new connections: there is no listener any more."""
        self._call(self._refuse)

    def cut(self) -> int:
        """Cut all connections; how many there were."""
        return self._call(self._cut)

    def tear(self, direction: Direction | None) -> None:
        """Forward half of the next chunk of every connection in this direction, and then cut it; None: no more."""
        self._tearing = direction

    def tear_once(self, direction: Direction) -> None:
        """Cut a connection in the middle of a frame, and wait until that has happened."""
        before = self.torn
        self.tear(direction)
        wait_until(lambda: self.torn > before)
        self.tear(None)

    def close(self) -> None:
        """End everything."""
        self._call(self._refuse)
        self._call(self._cut)
        self._run(end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._run(call())

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._connect, "127.0.0.1", self._port)
            self._port = self._listener.sockets[0].getsockname()[1]

    def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _cut(self) -> int:
        for writer in self._open:
            writer.transport.abort()
        return len(self._open) // 2

    async def _connect(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            to_client.close()
            return
        writers = {to_client, to_server}
        self._open |= writers
        pumps = [
            asyncio.create_task(self._pump(client, to_server, Direction.TO_SERVER)),
            asyncio.create_task(self._pump(server, to_client, Direction.TO_CLIENT)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for writer in writers:
            writer.close()  # what was written before still goes out
        self._open -= writers
        await asyncio.wait(pumps)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if self.silent is direction and len(data) >= _WORTH_TEARING:
                    continue
                if self.lost is not None and direction is Direction.TO_CLIENT and self.lost in data:
                    continue
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self._tearing is direction and len(data) >= _WORTH_TEARING:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    self.torn += 1
                    return
                while data and direction in self.trickling:
                    writer.write(data[:_SIP])
                    await writer.drain()
                    data = data[_SIP:]
                    await asyncio.sleep(_SIP_SECONDS)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one of the two has gone


HARMS: dict[str, Callable[[Proxy], object]] = {
    "cut": Proxy.cut,
    "half a frame to the server": lambda proxy: proxy.tear_once(Direction.TO_SERVER),
    "half a frame to the client": lambda proxy: proxy.tear_once(Direction.TO_CLIENT),
}
"""What a test does to connections."""
