"""The table of faults, and a plan of them that is the same for the same seed."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from spark_nats.embedded import NatsServer
from tests.chaos.cluster import CLIENT, DEFAULT_WINDOW, IN, OUT, STATE, ChaosCluster
from tests.chaos.driver import Driver
from tests.chaos.proxy import Direction, Proxy
from tests.chaos.verdict import Restored
from tests.nats_py import NatsPy, wait_until
from tests.servers import binary_of

_SOON = 30  # seconds that something has to be there which a running query has
_SHORT_WINDOW = 2.0  # seconds
_OLDER = "2.14.6"  # nats-server's version that shares a cluster with the newest one
_SETTLED = 5.0  # seconds after the servers' end in which Spark notes that a micro-batch is done whose tasks are
_NEEDS = {"retries": "a master that tries tasks again", "executors": "executors in JVMs of their own"}


@dataclass
class Scene:
    """What faults hit, the publisher's ledger, what was restored, and the chance by which a fault chooses."""

    cluster: ChaosCluster
    driver: Driver
    window: float = DEFAULT_WINDOW
    acknowledged: Callable[[], Mapping[str, int]] = dict
    random: Random = field(default_factory=Random)
    restored: list[Restored] = field(default_factory=list)
    is_older: bool = False  # whether the servers run an older version

    def seconds(self, least: float, most: float) -> None:
        """Let some time pass, in which the fault lasts."""
        time.sleep(self.random.uniform(least, most))

    def any_server(self) -> NatsServer:
        return self.random.choice(self.cluster.servers)

    def some_proxies(self) -> list[Proxy]:
        """One of them, or all."""
        proxies = self.cluster.proxies
        return proxies if self.random.random() < 0.5 else [self.random.choice(proxies)]

    @contextmanager
    def slow(self, delay: float = 0.0, trickling: Sequence[Direction] = ()) -> Iterator[None]:
        """DurableHandle everything back for so many seconds, or let it trickle, for the length of the block."""
        for proxy in self.cluster.proxies:
            proxy.delay, proxy.trickling = delay, trickling
        try:
            yield
        finally:
            for proxy in self.cluster.proxies:
                proxy.delay, proxy.trickling = 0.0, ()

    def at_a_moment(self, act: Callable[[], None], busy: bool = False) -> None:
        """Act while a micro-batch is being written, or at once, unless the query is to be busy.

        A small micro-batch is written faster than anybody could act. So connections are slow meanwhile: what is stored
        is not yet acknowledged, or only a part is stored.
        """
        moment = self.random.choice(["stored", "partly"] if busy else ["any", "stored", "partly"])
        if moment == "any":
            act()
            return
        target = self.cluster.target
        server = self.cluster.leader(target.stream)
        slow = self.slow(trickling=[Direction.TO_SERVER]) if moment == "partly" else self.slow(0.2)
        with NatsPy(server.url, **CLIENT) as client, slow, client.collect(f"{target.prefix}>") as collected:
            collected.wait(1, _SOON)
            act()


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: what the command line calls it.
        strike: does it, and returns when it is over; what it has done then heals by itself.
        weight: how often it is chosen, compared with others.
        needs: what of the master, see `fits`.
        loses: whether servers lose what they have acknowledged, so that the query may end by that.
    """

    name: str
    strike: Callable[[Scene], None]
    weight: int = 1
    needs: str = ""
    loses: bool = False

    def fits(self, master: str) -> bool:
        """Whether a query with this master can survive it."""
        if self.needs == "executors":
            return master.startswith("local-cluster")
        return self.needs != "retries" or master.startswith("local-cluster") or master.count(",") == 1


# Servers


def _crash(choose: Callable[[Scene], NatsServer], wipe: bool = False) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        server = choose(scene)
        scene.cluster.kill(server)
        if wipe:
            scene.cluster.wipe(server)
        scene.seconds(0, 5)
        scene.cluster.start(server)

    return strike


def _pause(choose: Callable[[Scene], NatsServer]) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        with scene.cluster.paused(choose(scene)):
            scene.seconds(3, 15)

    return strike


def _leader_of_in(scene: Scene) -> NatsServer:
    return scene.cluster.leader(IN)


def _leader_of_out(scene: Scene) -> NatsServer:
    return scene.cluster.leader(scene.cluster.target.stream)


def _meta_leader(scene: Scene) -> NatsServer:
    leader = wait_until(scene.cluster.meta_leader, _SOON)
    assert leader
    return leader


def _follower(scene: Scene) -> NatsServer:
    """One that leads neither stream."""
    leaders = [_leader_of_in(scene), _leader_of_out(scene)]
    return scene.random.choice([server for server in scene.cluster.servers if server not in leaders])


def _lame_duck(scene: Scene) -> None:
    server = scene.any_server()
    scene.cluster.end(server, signal.SIGUSR2)
    scene.cluster.start(server)


def _step_down_in(scene: Scene) -> None:
    scene.cluster.api(f"STREAM.LEADER.STEPDOWN.{IN}")


def _step_down_out(scene: Scene) -> None:
    scene.cluster.api(f"STREAM.LEADER.STEPDOWN.{scene.cluster.target.stream}")


def _step_down_meta(scene: Scene) -> None:
    scene.cluster.api("META.LEADER.STEPDOWN", system=True)


def _rolling_restart(scene: Scene) -> None:
    for server in scene.random.sample(scene.cluster.servers, 3):
        scene.cluster.end(server)
        scene.cluster.start(server)
        scene.cluster.wait_until_whole()


def _other_version(scene: Scene) -> None:
    """Downgrade the servers one after the other, or upgrade them again if they are older ones."""
    scene.is_older = not scene.is_older
    binary = binary_of(_OLDER) if scene.is_older else None
    for server in scene.random.sample(scene.cluster.servers, 3):
        scene.cluster.restart_as(server, binary)
        scene.cluster.wait_until_whole()


def _all_down(scene: Scene) -> None:
    for server in scene.cluster.servers:
        scene.cluster.kill(server)
    time.sleep(20)
    scene.cluster.start_all()


# Stores that are older than they were


def _restore(*streams: str) -> Callable[[Scene], None]:
    """Have two servers, or all, come back with older copies of some streams, or of all that they have stored.

    Two are a majority, of which the third one gets all, see `ChaosCluster.put_back`.
    """

    def strike(scene: Scene) -> None:
        cluster, driver = scene.cluster, scene.driver
        folders = [folder for stream in streams for folder in cluster.folders_of(stream)] or [""]
        with tempfile.TemporaryDirectory(prefix="spark-nats-chaos-copy-") as copies:
            before, done = scene.acknowledged(), driver.done()
            cluster.copy_stores(Path(copies))
            scene.seconds(3, 8)
            scene.at_a_moment(lambda: _isolate(cluster))
            for server in cluster.servers:
                cluster.kill(server)
            time.sleep(_SETTLED)
            all_of_them = streams or (IN, OUT, STATE)
            scene.restored.append(Restored(all_of_them, before, scene.acknowledged(), (done, driver.done())))
            members = scene.random.sample(cluster.servers, scene.random.choice((2, 3)))
            cluster.put_back(members, Path(copies), folders)
            cluster.start_all()

    return strike


def _isolate(cluster: ChaosCluster) -> None:
    """Let nothing through any more, until the servers are started again."""
    for proxy in cluster.proxies:
        proxy.refuse()
        proxy.cut()


# Processes of the query


def _worker(scene: Scene) -> None:
    _kill(scene, scene.driver.workers)


def _executor(scene: Scene) -> None:
    _kill(scene, scene.driver.executors)


def _source(scene: Scene) -> None:
    """Kill the driver's Python process of the source, which ends the query whatever the source is."""
    scene.driver.expect_end()
    _kill(scene, scene.driver.runners)


def _kill(scene: Scene, processes: Callable[[], list[psutil.Process]]) -> None:
    """Kill one of the processes, or all."""
    found = wait_until(processes, _SOON)
    victims = found if scene.random.random() < 0.5 else [scene.random.choice(found)]

    def kill() -> None:
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()

    scene.at_a_moment(kill)


def _driver(scene: Scene) -> None:
    scene.driver.kill(scene.at_a_moment)
    scene.driver.start()


def _late_driver(scene: Scene) -> None:
    """Kill the driver, and start it again when OUT has forgotten the ids of what was written before."""
    scene.cluster.set_window(_SHORT_WINDOW)
    scene.driver.kill(lambda act: scene.at_a_moment(act, busy=True))
    time.sleep(_SHORT_WINDOW + 1)
    scene.driver.start()
    scene.cluster.set_window(scene.window)


def _driver_while_servers_restart(scene: Scene) -> None:
    """Kill the driver, restart all servers, and start it again: they have forgotten the ids of what is gone."""
    scene.driver.kill(lambda act: scene.at_a_moment(act, busy=True))
    _rolling_restart(scene)
    scene.driver.start()


# Connections


def _cut(scene: Scene) -> None:
    for proxy in scene.cluster.proxies:
        proxy.cut()


def _cut_at_a_moment(scene: Scene) -> None:
    scene.at_a_moment(lambda: _cut(scene))


def _tear(scene: Scene) -> None:
    proxies = scene.cluster.proxies
    before = sum(proxy.torn for proxy in proxies)
    direction = scene.random.choice(list(Direction))
    with ExitStack() as stack:
        for proxy in proxies:
            stack.callback(proxy.tear, None)
            proxy.tear(direction)
        wait_until(lambda: sum(proxy.torn for proxy in proxies) > before, _SOON)
        scene.seconds(0, 0.5)


def _delay(scene: Scene) -> None:
    with scene.slow(scene.random.uniform(0.1, 0.5)):
        scene.seconds(2, 6)


def _trickle(scene: Scene) -> None:
    with scene.slow(trickling=list(Direction)):
        scene.seconds(2, 6)


def _refuse(scene: Scene) -> None:
    proxies = scene.some_proxies()
    for proxy in proxies:
        proxy.refuse()
        proxy.cut()
    scene.seconds(2, 8)
    for proxy in proxies:
        proxy.accept()


FAULTS = (
    Fault("kill-in", _crash(_leader_of_in)),
    Fault("kill-out", _crash(_leader_of_out)),
    Fault("kill-meta", _crash(_meta_leader)),
    Fault("kill-follower", _crash(_follower)),
    Fault("wipe-follower", _crash(_follower, wipe=True)),
    Fault("pause-in", _pause(_leader_of_in)),
    Fault("pause-out", _pause(_leader_of_out)),
    Fault("pause-any", _pause(Scene.any_server)),
    Fault("lame-duck", _lame_duck),
    Fault("step-in", _step_down_in, weight=2),
    Fault("step-out", _step_down_out, weight=2),
    Fault("step-meta", _step_down_meta),
    Fault("rolling", _rolling_restart),
    Fault("version", _other_version),
    Fault("all-down", _all_down),
    Fault("restore-older", _restore(), loses=True),
    Fault("restore-older-in", _restore(IN), loses=True),
    Fault("restore-older-out", _restore(OUT), loses=True),
    Fault("restore-older-state", _restore(STATE), loses=True),
    Fault("worker", _worker, weight=2, needs="retries"),
    Fault("executor", _executor, needs="executors"),
    Fault("source", _source),
    Fault("driver", _driver),
    Fault("driver-late", _late_driver),
    Fault("driver-rolling", _driver_while_servers_restart),
    Fault("cut", _cut_at_a_moment, weight=2),
    Fault("tear", _tear, weight=2),
    Fault("delay", _delay),
    Fault("trickle", _trickle),
    Fault("refuse", _refuse),
)
"""All kinds of faults."""


def _first_or_second(scene: Scene) -> NatsServer:
    """One of those to which the query connects."""
    return scene.random.choice(scene.cluster.servers[:2])


def _restart(scene: Scene) -> None:
    server = _first_or_second(scene)
    scene.cluster.end(server)
    scene.seconds(0, 3)
    scene.cluster.start(server)


CORE_FAULTS = (
    Fault("kill", _crash(_first_or_second)),
    Fault("restart", _restart),
    Fault("cut", _cut),
    Fault("tear", _tear),
    Fault("delay", _delay),
    Fault("trickle", _trickle),
    Fault("refuse", _refuse),
)
"""Those after which a query of core NATS has missed no more than its log says."""


@dataclass(frozen=True)
class Planned:
    """A fault to come, with the seed of what it chooses."""

    fault: Fault
    seed: str


def plan(seed: int, count: int, faults: Sequence[Fault]) -> list[Planned]:
    """The faults of a run: all that are given in an order of chance, and so on until there are enough."""
    random, chosen = Random(seed), list[Fault]()
    while len(chosen) < count:
        chosen += random.sample(faults, len(faults))
    return [Planned(fault, f"{seed}/{i}") for i, fault in enumerate(chosen[:count])]


def faults_for(master: str, names: Sequence[str] | None = None, table: Sequence[Fault] = FAULTS) -> list[Fault]:
    """The faults with these names, or all that a query with this master can survive, each as often as it weighs.

    Raises:
        ValueError: a name is unknown, or such a query cannot survive it.
    """
    if names is None:
        return [fault for fault in table if fault.fits(master) for _ in range(fault.weight)]
    known = {fault.name: fault for fault in table}
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names:
        if not known[name].fits(master):
            raise ValueError(f"{name} needs {_NEEDS[known[name].needs]}, and not {master}")
    return [known[name] for name in names]
