"""A line to a model server of its own, over which a conversation can be held without sockets and without waiting."""

from __future__ import annotations

import heapq

from tests.simulation.network import Network
from tests.simulation.server import Cluster
from tests.simulation.world import World

LAG = 0.1
"""Seconds of the model's time after which all replicas have what was sent."""
LONGEST = 3600.0
"""Seconds of the model's time that a conversation may take."""


class ModelLine:
    """Bytes to a model server, and what it answers.

    Args:
        version: that the server is to be.
        servers: how many there are.
    """

    def __init__(self, version: str, servers: int = 1) -> None:
        self._world = World(0)
        network = Network(self._world, (0.0, 0.0), 0.0, 1 << 30)
        cluster = Cluster(self._world, network, servers=servers, version=version)
        self._replicated = servers > 1
        self._arrived = bytearray()
        self.broken = False
        self._end = cluster.servers[0].accept(self)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._end.feed(data)
        if self._replicated and not data.startswith(b"PING"):
            self._pass(LAG)

    def receive(self, seconds: float) -> bytes:
        """Return what has arrived, or arrives first within so many seconds of the model's time."""
        world = self._world
        if world.now > LONGEST:
            raise TimeoutError("the model says the same for ever")
        self._pass(seconds)
        data = bytes(self._arrived)
        self._arrived.clear()
        return data

    def _pass(self, seconds: float) -> None:
        """Let time pass, until something has arrived."""
        world = self._world
        deadline = world.now + seconds
        events = world._events
        while not self._arrived and events and events[0][0] <= deadline:
            time, _, event = heapq.heappop(events)
            if not event.cancelled:
                world.now = max(world.now, time)
                event.action()
        if not self._arrived:
            world.now = deadline

    def close(self) -> None:
        """Hang up."""
        self._end.gone()

    # What a server's end of a connection calls

    def to_client(self, data: bytes) -> None:
        """Take what the server sends."""
        self._arrived += data

    def close_by_server(self) -> None:
        """Take note that the server has hung up."""
        self.broken = True
        self._end.gone()
