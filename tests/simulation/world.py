"""Virtual time, and actors of which one runs at a time.

An actor is ordinary blocking code in a greenlet. It runs until it waits: for a time, or for a socket. Then whatever is
due next happens, and the clock goes there at once. Nothing else decides the order of things but the seed, so a seed
gives the same history bit for bit.

The library is held in such a world by its two seams, :mod:`spark_nats.clock` and the class ``Transport``. What the
library keeps for a process (its connections, what its tasks have noted) is exchanged when an actor of another process
comes on. A killed process gets no chance to clean up: its sockets are closed first, and then whatever it does to end is
without effect.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import greenlet
from pyspark import TaskContext

from spark_nats import clock
from spark_nats.client import choosing, host_cache, link, pool
from spark_nats.jetstream import creating
from spark_nats.jetstream.api import RefusalMemory
from spark_nats.jetstream.consuming import consumers
from spark_nats.jetstream.reading import direct
from spark_nats.kinds.streams.write import partitions, replay

EPOCH = 1_800_000_000.0
"""Seconds since 1970 when a world begins."""
MOST_SPINS = 20_000
"""Times that actors may look without time passing; more is a loop that waits for nothing."""


class Killed(BaseException):
    """Ends the actors of a process that was killed. Nothing catches it but what cleans up."""


class Endless(AssertionError):
    """Something waits for ever, or goes round without waiting."""


class Event:
    """Something that is to happen."""

    __slots__ = ("action", "cancelled")

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        """Have it not happen."""
        self.cancelled = True


class Process:
    """A process that runs our code: a Python worker of Spark, a stream reader's, or a program.

    Attributes:
        name: in the story.
        alive: whether it was not killed.
        actors: what runs in it.
        transports: its sockets.
    """

    # Each process has its own: module, name, how it begins.
    GLOBALS: tuple[tuple[Any, str, Callable[[], Any]], ...] = (
        (pool, "_pool", pool._Pool),
        (choosing, "_announced", dict),
        (choosing, "_names", dict),
        (creating, "_said", set),
        (direct, "_refused", RefusalMemory),
        (consumers, "_keeping", WeakKeyDictionary),
        (consumers, "_refused", RefusalMemory),
        (replay, "_noted", dict),
        (partitions, "_looked", lambda: partitions.deque(maxlen=64)),
        (TaskContext, "_taskContext", lambda: None),
    )

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.actors: list[Actor] = []
        self.transports: list[Any] = []
        self.kept: list[Any] | None = None
        world.processes.append(self)

    def kill(self) -> None:
        """End it like ``kill -9``: the other ends of its sockets see that it is gone, and nothing of it runs on."""
        if not self.alive:
            return
        self.alive = False
        for transport in list(self.transports):
            transport.abandon()
        for actor in list(self.actors):
            self.world.soon(actor.kill)


class Actor:
    """Ordinary code that runs in a process of the world, one at a time."""

    def __init__(self, world: World, process: Process, name: str, body: Callable[[], Any]) -> None:
        self.world = world
        self.process = process
        self.name = name
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._body = body
        self._greenlet = greenlet.greenlet(self._run, world.hub)
        self._waits = False
        self._joined: list[Actor] = []
        self.then: list[Callable[[], object]] = []  # what happens when it is done, in its place
        self._killed = False
        process.actors.append(self)
        world.actors[self] = None
        world.soon(self._begin)

    def _begin(self) -> None:
        if not self.done and not self._greenlet.dead:
            self.world.switch(self)

    def _run(self) -> None:
        try:
            if self._killed:
                raise Killed
            self.result = self._body()
        except Killed:
            self.error = Killed()  # without frames, in which generators would wait for their end
        except BaseException as error:
            self.error = error
        self.done = True
        self.process.actors.remove(self)
        del self.world.actors[self]
        for actor in self._joined:
            actor.wake()
        for action in self.then:
            action()

    def wake(self) -> None:
        """Have it go on if it waits."""
        if self._waits:
            self._waits = False
            self.world.soon(self._go_on)

    def _go_on(self) -> None:
        if not self.done:
            self.world.switch(self)

    def kill(self) -> None:
        """End it."""
        if self.done:
            return
        self._killed = True
        if self._waits:
            self.wake()

    def block(self, until: float | None) -> bool:
        """Wait, called by the actor itself. False when the time came first.

        Args:
            until: monotonic time; None for ever.
        """
        world = self.world
        if self._killed:
            raise Killed
        timed_out = False
        event = None
        if until is not None:
            if until <= world.now:
                world.spin()
                return False

            def expire() -> None:
                nonlocal timed_out
                if self._waits:
                    timed_out = True
                    self._waits = False
                    self.world.switch(self)

            event = world.at(until, expire)
        self._waits = True
        world.hub.switch()
        if event is not None:
            event.cancel()
        if self._killed:
            raise Killed
        return not timed_out

    def join(self, until: float | None = None) -> bool:
        """Wait until another actor is done; called by an actor. False when the time came first."""
        while not self.done:
            me = self.world.current
            self._joined.append(me)
            try:
                if not me.block(until) and not self.done:
                    return False
            finally:  # or its end would wake whoever waits for something else by then
                self._joined.remove(me)
        return True


class World:
    """Time, chance, processes and what happens among them.

    Args:
        seed: of everything that is left to chance.

    Attributes:
        now: seconds since the world began.
        random: the only source of chance.
        story: what happened, as (time, who, what).
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.story: list[tuple[float, str, str]] = []
        self.warnings: list[tuple[float, str, str]] = []
        self.processes: list[Process] = []
        self.actors: dict[Actor, None] = {}  # that are not done, in their order
        self.servers: dict[int, Any] = {}  # by port
        self.hub = greenlet.getcurrent()
        self.current: Actor = None  # type: ignore[assignment]
        self.facts: dict[str, float] = {}  # what processes of the machine have told each other
        self.texts: dict[str, str] = {}
        self.clock_offset = 0.0  # of the clients' machine
        self._events: list[tuple[float, int, Event]] = []
        self._number = 0
        self._spins = 0
        self._on: Process | None = None  # whose globals are in place

    # What happens

    def at(self, time: float, action: Callable[[], object]) -> Event:
        """Have something happen at a time."""
        event = Event(action)
        self._number += 1
        heapq.heappush(self._events, (max(time, self.now), self._number, event))
        return event

    def after(self, seconds: float, action: Callable[[], object]) -> Event:
        """Have something happen in so many seconds."""
        return self.at(self.now + seconds, action)

    def soon(self, action: Callable[[], object]) -> Event:
        """Have something happen next."""
        return self.at(self.now, action)

    def spawn(self, process: Process, name: str, body: Callable[[], Any]) -> Actor:
        """Begin an actor."""
        return Actor(self, process, name, body)

    def switch(self, actor: Actor) -> None:
        """Have an actor go on until it waits or is done; called by the hub."""
        if self._on is not actor.process:
            self._exchange(actor.process)
        self.current = actor
        actor._greenlet.switch()

    def _exchange(self, process: Process | None) -> None:
        if self._on is not None:
            self._on.kept = [getattr(module, name) for module, name, _ in Process.GLOBALS]
        self._on = process
        if process is not None:
            if process.kept is None:
                process.kept = [begin() for _, _, begin in Process.GLOBALS]
            for (module, name, _), value in zip(Process.GLOBALS, process.kept, strict=True):
                setattr(module, name, value)

    def spin(self) -> None:
        """Count a look without a wait; other actors and events of this moment have their turn.

        Raises:
            Endless: there are too many of them.
        """
        self._spins += 1
        if self._spins > MOST_SPINS:
            raise Endless(f"{self.current.name} goes round and round without waiting")
        if self._spins % 64 == 0:  # so that whoever polls sees time pass
            actor = self.current
            actor._waits = True
            self.after(1e-4, lambda: actor.wake())
            self.hub.switch()
            if actor._killed:
                raise Killed

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let things happen until something holds.

        Raises:
            Endless: nothing is left to happen, or the time is over.
        """
        while not until():
            if not self._events:
                raise Endless("nothing is left to happen, and the history has not ended")
            time, _, event = heapq.heappop(self._events)
            if event.cancelled:
                continue
            if time > self.now:
                self.now = time
                self._spins = 0
                if time > limit:
                    raise Endless(f"the history has not ended after {limit:.0f} s")
            event.action()

    def tell(self, who: str, what: str) -> None:
        """Add to the story."""
        self.story.append((self.now, who, what))

    # The seams

    @contextlib.contextmanager
    def held(self, transport: type, more: Iterable[tuple[Any, str, Any]] = ()) -> Iterator[None]:
        """Hold the library in this world, where ``more`` is other than elsewhere too."""
        patches: list[tuple[Any, str, Any]] = [
            (clock, "monotonic", lambda: self.now),
            (clock, "time", self.wall),
            (clock, "time_ns", lambda: int(self.wall() * 1e9)),
            (clock, "sleep", self._sleep),
            (clock, "uniform", self.random.uniform),
            (clock, "shuffle", self.random.shuffle),
            (clock, "token", self._token),
            (link, "Transport", transport),
            (pool, "threading", _Threading(self)),
            (host_cache, "note_fact", self._remember),
            (host_cache, "text_of_fact", self._text),
            (host_cache, "forget_fact", lambda fact: self.facts.pop(fact, None)),
            (host_cache, "seconds_since", self._age),
            (host_cache, "parent_process", lambda: "Spark"),
            *more,
        ]
        _end_idle_connections()
        before = [(module, name, getattr(module, name)) for module, name, _ in patches]
        before += [(module, name, getattr(module, name)) for module, name, _ in Process.GLOBALS]
        handler = _Log(self)
        logger = logging.getLogger("spark_nats")
        propagates, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        for module, name, value in patches:
            setattr(module, name, value)
        try:
            yield
        finally:
            self._on = None
            logger.removeHandler(handler)
            logger.propagate = propagates
            for module, name, value in before:
                setattr(module, name, value)

    def wall(self) -> float:
        """The time of day as the clients' machine has it."""
        return EPOCH + self.now + self.clock_offset

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.current.block(self.now + seconds)
        else:
            self.spin()

    def _token(self, size: int) -> str:
        return f"{self.random.getrandbits(8 * size):0{2 * size}x}"

    def _remember(self, fact: str, text: str = "") -> None:
        self.facts[fact], self.texts[fact] = self.wall(), text

    def _text(self, fact: str) -> str:
        return self.texts[fact] if self._age(fact) < host_cache.FACT_TTL else ""

    def _age(self, fact: str) -> float:
        if fact not in self.facts or self.wall() < self.facts[fact]:
            return math.inf
        return self.wall() - self.facts[fact]


class _Log(logging.Handler):
    """Puts what the library logs into the story."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        who = world.current.process.name if world.current is not None else "?"
        text = record.getMessage()
        world.tell(who, f"log {record.levelname.lower()}: {text}")
        if record.levelno >= logging.WARNING:
            world.warnings.append((world.now, who, text))


def _end_idle_connections() -> None:
    """Close what earlier tests of this process left: by the world's clock, nobody would close it for hours."""
    real = pool._pool
    closer = real._closer
    with real._changed:
        real._close_idle(lambda *_: True)
        real._changed.notify()
    if closer is not None:
        closer.join(60)


class _Threading:
    """What the pool of connections needs of :mod:`threading`: its thread is an actor of its process."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Condition(self) -> _Condition:
        return _Condition(self._world)

    def Thread(self, target: Callable[[], Any], name: str, daemon: bool) -> _Thread:
        return _Thread(self._world, target, name)


class _Condition:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Actor] = []

    def __enter__(self) -> None:
        """Nothing else runs meanwhile."""

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, seconds: float) -> None:
        me = self._world.current
        self._waiting.append(me)
        me.block(self._world.now + seconds)
        if me in self._waiting:
            self._waiting.remove(me)

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for actor in waiting:
            actor.wake()


class _Thread:
    def __init__(self, world: World, target: Callable[[], Any], name: str) -> None:
        self._world, self._target, self._name = world, target, name

    def start(self) -> None:
        process = self._world.current.process
        self._world.spawn(process, f"{process.name}/{self._name}", self._target)
