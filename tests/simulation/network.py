"""What lies between clients and servers: latency, any split of the bytes, silence, and connections that break."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.world import Killed, World

if TYPE_CHECKING:
    pass

WRITE_DEADLINE = 10.0
"""Seconds that a client may take no bytes before its server closes the connection."""


class Network:
    """How all connections of a history behave.

    Args:
        world: where.
        latency: seconds that bytes take at least and at most.
        torn: how probable it is that what is sent at once arrives in pieces.
        capacity: bytes that the sockets of one direction hold.
    """

    def __init__(self, world: World, latency: tuple[float, float], torn: float, capacity: int) -> None:
        self.world = world
        self.latency = latency
        self.torn = torn
        self.capacity = capacity
        self.slowness = 0  # faults that make it slow
        self.wires: list[Wire] = []
        self.silent: set[tuple[int, str]] = set()  # port and direction, of which nothing arrives for now

    def delay(self) -> float:
        """Return the seconds that bytes take now."""
        least, most = self.latency
        if self.slowness:
            least, most = 20 * least, 100 * most
        return self.world.random.uniform(least, most)

    def silence(self, port: int, direction: str) -> None:
        """Have nothing arrive in one direction, ``in`` to the server or ``out`` of it, until :meth:`heal`."""
        self.silent.add((port, direction))

    def heal(self, port: int, direction: str) -> None:
        """Have what was held back arrive."""
        self.silent.discard((port, direction))
        for wire in list(self.wires):
            if wire.port == port:
                wire.channel(direction).resume()


class Channel:
    """One direction of a connection: bytes arrive in order."""

    def __init__(self, wire: Wire, direction: str, arrive: Callable[[bytes], None], gone: Callable[[], None]) -> None:
        self._wire = wire
        self._net = wire.net
        self._direction = direction
        self._arrive = arrive
        self._gone = gone
        self._last = 0.0
        self._held: list[Callable[[], None]] = []
        self._gathered: list[bytes] = []  # what is sent at this moment
        self.pending = 0  # bytes on their way
        self.cut_after: int | None = None  # bytes that still arrive

    @property
    def _silent(self) -> bool:
        return bool(self._net.silent) and (self._wire.port, self._direction) in self._net.silent

    def push(self, data: bytes) -> None:
        """Send bytes; those of one moment go together, as a server writes them."""
        self.pending += len(data)
        if not self._gathered:
            self._net.world.soon(self._flush)
        self._gathered.append(data)

    def _flush(self) -> None:
        if not self._gathered:
            return
        data = b"".join(self._gathered)
        self._gathered.clear()
        random = self._net.world.random
        if self._net.torn and len(data) > 1 and random.random() < self._net.torn:
            place = random.randrange(1, len(data))
            self._schedule(data[:place])
            self._schedule(data[place:])
        else:
            self._schedule(data)

    def end(self) -> None:
        """Say that no more comes; it arrives behind the bytes."""
        self._flush()
        self._at(self._gone)

    def _schedule(self, data: bytes) -> None:
        self._at(lambda: self._deliver(data))

    def _at(self, action: Callable[[], None]) -> None:
        world = self._net.world
        self._last = max(self._last, world.now + self._net.delay())

        def due() -> None:
            if self._silent or self._held:
                self._held.append(action)
            else:
                action()

        world.at(self._last, due)

    def resume(self) -> None:
        """Deliver what was held back."""
        held, self._held = self._held, []
        for action in held:
            action()

    def _deliver(self, data: bytes) -> None:
        self.pending -= len(data)
        if self._wire.broken:
            return
        if self.cut_after is not None:
            if len(data) >= self.cut_after:
                data = data[: self.cut_after]
                if data:
                    self._arrive(data)
                self._wire.break_off()
                return
            self.cut_after -= len(data)
        self._arrive(data)


class Wire:
    """A connection between a client's transport and a server's end."""

    def __init__(self, net: Network, transport: Transport, port: int, end: Any) -> None:
        self.net = net
        self.port = port
        self.broken = False
        self.transport = transport
        self.end = end
        self.inward = Channel(self, "in", self._to_server, self._client_gone)
        self.outward = Channel(self, "out", transport.arrive, transport.ended)
        self._outgoing = bytearray()  # of the server, beyond what the sockets hold
        self._stuck: Any = None
        net.wires.append(self)

    def channel(self, direction: str) -> Channel:
        """Return the channel of a direction."""
        return self.inward if direction == "in" else self.outward

    def _to_server(self, data: bytes) -> None:
        self.end.feed(data)
        self.transport.writable()

    def _client_gone(self) -> None:
        if not self.broken:
            self.broken = True
            self.end.gone()
            self._forget()

    def _forget(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
        if self in self.net.wires:
            self.net.wires.remove(self)

    # The server's side

    def to_client(self, data: bytes) -> None:
        """Send bytes to the client; a server keeps what the sockets do not hold, for a while."""
        if self.broken:
            return
        room = self.net.capacity - self.outward.pending - self.transport.unread
        if self._outgoing or room < len(data):
            self._outgoing += data
            self.room()
            return
        self.outward.push(data)

    def room(self) -> None:
        """Send on what the server has kept, as far as there is room."""
        if not self._outgoing or self.broken:
            return
        room = self.net.capacity - self.outward.pending - self.transport.unread
        if room > 0:
            data = bytes(self._outgoing[:room])
            del self._outgoing[:room]
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None
            self.outward.push(data)
        if self._outgoing and self._stuck is None:
            self._stuck = self.net.world.after(WRITE_DEADLINE, self._too_slow)

    def _too_slow(self) -> None:
        self.net.world.tell("network", f"server {self.port} closes a connection that takes no bytes")
        self.end.gone()
        self.break_off()

    def close_by_server(self) -> None:
        """Close the connection behind what was sent."""
        if not self.broken:
            self.outward.end()
            self.end.gone()

    def break_off(self) -> None:
        """Break the connection now, in both directions."""
        if not self.broken:
            self.broken = True
            self.end.gone()
            self.transport.reset()
            self._forget()


class Transport:
    """What :class:`spark_nats.client.transport.Transport` is to the library, with a wire of the world's behind it."""

    world: World
    net: Network

    def __init__(self) -> None:
        self._actor = self.world.current
        self._process = self._actor.process
        self._arrived: list[bytes] = []
        self._ended = False
        self._reset = False
        self._closed = False
        self._waiting: Any = None
        self.unread = 0
        self._wire: Wire = None  # type: ignore[assignment]
        self._process.transports.append(self)

    encrypted = False

    @classmethod
    def open(cls, _host: str, port: int, deadline: float) -> Transport:
        """Connect."""
        world, net, actor = cls.world, cls.net, cls.world.current
        host = world.servers.get(port)
        start = net.delay()
        if (port, "in") in net.silent or (port, "out") in net.silent:
            actor.block(deadline)
            raise TimeoutError("timed out")
        actor.block(min(deadline, world.now + start))
        if host is None or not host.accepts:
            raise ConnectionRefusedError(111, "Connection refused")
        transport = cls()
        transport._wire = Wire(net, transport, port, None)
        transport._wire.end = host.accept(transport._wire)
        return transport

    def _check(self) -> None:
        if not self._process.alive:
            raise Killed

    def wait(self, deadline: float, or_writable: bool = False) -> bool:
        """Wait until there is something to receive, or room to send."""
        self._check()
        world = self.world
        while not self._ready(or_writable):
            if deadline <= world.now:
                world.spin()
                return self._ready(or_writable)
            self._waiting = world.current
            try:
                in_time = world.current.block(deadline)
            finally:
                self._waiting = None
            self._check()
            if not in_time:
                return self._ready(or_writable)
        return True

    def _ready(self, or_writable: bool) -> bool:
        return bool(self._arrived or self._ended or self._reset or (or_writable and self._room() > 0))

    def _room(self) -> int:
        return self.net.capacity - self._wire.inward.pending - self._wire.end.unprocessed

    def receive(self) -> bytes | None:
        """Return what has arrived."""
        self._check()
        if self._arrived:
            data = b"".join(self._arrived)
            self._arrived.clear()
            self.unread = 0
            self._wire.room()
            return data
        if self._reset:
            raise ConnectionResetError(104, "Connection reset by peer")
        return None if self._ended else b""

    def send(self, data: memoryview) -> int:
        """Send as much as there is room for."""
        self._check()
        if self._reset or self._ended or self._wire.broken:
            raise BrokenPipeError(32, "Broken pipe")
        room = self._room()
        if room <= 0:
            return 0
        part = bytes(data[:room])
        self._wire.inward.push(part)
        return len(part)

    def close(self) -> None:
        """Close the socket."""
        if self._closed:
            return
        self._closed = True
        if self in self._process.transports:
            self._process.transports.remove(self)
        if not self._wire.broken:
            self._wire.inward.end()

    def abandon(self) -> None:
        """Close the socket of a process that is gone."""
        self.close()

    # Called by the wire

    def arrive(self, data: bytes) -> None:
        """Take bytes in."""
        if not self._closed:
            self._arrived.append(data)
            self.unread += len(data)
            self._wake()

    def ended(self) -> None:
        """Note that the server has closed the connection."""
        self._ended = True
        self._wake()

    def reset(self) -> None:
        """Note that the connection broke."""
        self._reset = True
        self._wake()

    def writable(self) -> None:
        """Note that there is room."""
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.wake()
