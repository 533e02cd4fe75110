"""Model servers over which a conversation can be held without sockets and without waiting."""

from __future__ import annotations

import heapq

from tests.simulation.network import Network
from tests.simulation.server import Cluster
from tests.simulation.world import World

LAG = 0.1
"""Seconds of the model's time after which all replicas have what was sent."""
LONGEST = 3600.0
"""Seconds of the model's time that a conversation may take."""


class ModelSite:
    """Model servers, and their time, which passes when somebody waits.

    Args:
        version: that the servers are to be.
        servers: how many there are.
        domain: of their JetStream, if it has a name.
        hub: those of another domain whose leaf node the only server is, in the same time.

    Attributes:
        cluster: the servers, to do something to them.
    """

    def __init__(self, version: str, servers: int = 1, domain: str = "", hub: ModelSite | None = None) -> None:
        self.world = hub.world if hub is not None else World(0)
        net = hub.cluster.net if hub is not None else Network(self.world, (0.0, 0.0), 0.0, 1 << 30)
        self.cluster = Cluster(self.world, net, servers, version, domain, 4222 if hub is None else 5222)
        if hub is not None:
            self.cluster.linked.append(hub.cluster)
            hub.cluster.linked.append(self.cluster)

    def line(self, server: int = 0) -> ModelLine:
        """Return a line to a server."""
        return ModelLine(self, server)

    def wait(self, seconds: float, line: ModelLine | None = None) -> None:
        """Let time pass, until something has arrived at a line."""
        world = self.world
        deadline = world.now + seconds
        events = world._events
        while not (line is not None and line.arrived) and events and events[0][0] <= deadline:
            time, _, event = heapq.heappop(events)
            if not event.cancelled:
                world.now = max(world.now, time)
                event.action()
        if line is None or not line.arrived:
            world.now = deadline


class ModelLine:
    """Bytes to a model server, and what it answers.

    Attributes:
        arrived: what has come and was not received.
        broken: whether the server has hung up.
    """

    def __init__(self, site: ModelSite, server: int = 0) -> None:
        self._site = site
        self._replicated = len(site.cluster.servers) > 1
        self.arrived = bytearray()
        self.broken = False
        self._end = site.cluster.servers[server].accept(self)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._end.feed(data)
        if self._replicated and not data.startswith(b"PING"):
            self._site.wait(LAG, self)

    def receive(self, seconds: float) -> bytes:
        """Return what has arrived, or arrives first within so many seconds of the model's time."""
        if self._site.world.now > LONGEST:
            raise TimeoutError("the model says the same for ever")
        self._site.wait(seconds, self)
        data = bytes(self.arrived)
        self.arrived.clear()
        return data

    def close(self) -> None:
        """Hang up."""
        self._end.gone()

    # What a server's end of a connection calls

    def to_client(self, data: bytes) -> None:
        """Take what the server sends."""
        self.arrived += data

    def close_by_server(self) -> None:
        """Take note that the server has hung up."""
        self.broken = True
        self._end.gone()
