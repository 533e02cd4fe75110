"""What goes wrong with servers and networks. Each fault begins at a time, and most of them end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.group import Group, Replica
from tests.simulation.network import Network
from tests.simulation.server import Cluster, ModelServer
from tests.simulation.world import World

End = Callable[[], object]
STATE_BUCKETS = ("KV_SPARK_NATS", "KV_NOTES")
"""Those of writes: what a query has noted there is not for others to delete."""
OLDEST_COPY = 60
"""Operations that a store may go back at most when an older copy of it is put in its place."""


class Place:
    """Where a fault happens.

    Args:
        cluster: the servers.
        net: the network.
        world: time.
        random: what is left to chance in this fault.
    """

    def __init__(self, cluster: Cluster, net: Network, world: World, random: Random) -> None:
        self.cluster = cluster
        self.net = net
        self.world = world
        self.random = random

    def server(self) -> ModelServer:
        """Return some server, one that works if there is one."""
        able = [each for each in self.cluster.servers if each.runs]
        return self.random.choice(able or self.cluster.servers)

    def group(self) -> Group:
        """Return some stream."""
        return self.random.choice([group for _, group in sorted(self.cluster.groups.items())])

    def leader(self) -> ModelServer:
        """Return the server that leads some stream."""
        leader = self.group().leader()
        return leader.server if leader is not None else self.server()


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: its name.
        what: what happens, for the story.
        begin: has it begin; returns what ends it, or None when it passes by itself.
        lasts: seconds that it lasts, at least and at most.
        loses: whether acknowledged messages may be lost, and that is nobody's fault here.
        cluster: whether it needs several servers.
        asked: whether it comes only where a workload asks for it, as what lasts longer than anybody waits.
    """

    name: str
    what: str
    begin: Callable[[Place], End | None]
    lasts: tuple[float, float] = (0.0, 0.0)
    loses: bool = False
    cluster: bool = False
    asked: bool = False


def _kill(place: Place) -> End:
    server = place.server()
    place.cluster.tell(f"{server.name} is killed")
    server.stop()
    return server.start


def _kill_leader(place: Place) -> End:
    server = place.leader()
    place.cluster.tell(f"{server.name}, a leader, is killed")
    server.stop()
    return server.start


def _power(place: Place) -> End:
    server = place.server()
    place.cluster.tell(f"{server.name} loses power")
    server.stop(lose_power=True)
    return server.start


def _power_of_all(place: Place) -> End:
    place.cluster.tell("all servers lose power")
    for server in place.cluster.servers:
        server.stop(lose_power=True)

    def end() -> None:
        for server in place.cluster.servers:
            place.world.after(place.random.uniform(0, 2), server.start)

    return end


def _all_away(place: Place) -> End:
    place.cluster.tell("all servers are away")
    for server in place.cluster.servers:
        server.stop()

    def end() -> None:
        for server in place.cluster.servers:
            server.start()

    return end


def _pause(place: Place) -> End:
    server = place.server()
    place.cluster.tell(f"{server.name} is stopped (SIGSTOP)")
    server.pause()
    return server.resume


def _pause_leader(place: Place) -> End:
    server = place.leader()
    place.cluster.tell(f"{server.name}, a leader, is stopped (SIGSTOP)")
    server.pause()
    return server.resume


def _lame_duck(place: Place) -> End:
    server = place.server()
    place.cluster.tell(f"{server.name} will shut down (lame duck mode)")
    server.retire()
    place.world.after(place.random.uniform(0.5, 3), server.stop)
    return server.start


def _silence(direction: str) -> Callable[[Place], End]:
    def begin(place: Place) -> End:
        server = place.server()
        place.cluster.tell(f"nothing arrives {'at' if direction == 'in' else 'from'} {server.name}")
        place.net.silence(server.port, direction)
        return lambda: place.net.heal(server.port, direction)

    return begin


def _cut(place: Place) -> None:
    if place.net.wires:
        wire = place.random.choice(place.net.wires)
        direction = place.random.choice(("in", "out"))
        wire.channel(direction).cut_after = after = place.random.randint(1, 4000)
        place.cluster.tell(f"a connection to port {wire.port} will break after {after} bytes {direction}")


def _cut_all(place: Place) -> None:
    server = place.server()
    place.cluster.tell(f"all connections to {server.name} break")
    for connection in server.connections_in_order():
        connection.wire.break_off()


def _route(place: Place) -> End:
    one, other = place.random.sample(place.cluster.servers, 2)
    return _cut_routes(place, [(one, other)])


def _isolate(place: Place) -> End:
    leader = place.leader()
    return _cut_routes(place, [(leader, each) for each in place.cluster.servers if each is not leader])


def _cut_routes(place: Place, pairs: list[tuple[ModelServer, ModelServer]]) -> End:
    cluster = place.cluster
    routes = [frozenset((one.name, other.name)) for one, other in pairs]
    cluster.tell("routes are cut: " + ", ".join("-".join(sorted(route)) for route in routes))
    cluster.cut.update(routes)
    cluster.changed()

    def end() -> None:
        cluster.cut.difference_update(routes)
        cluster.changed()

    return end


def _lag(place: Place) -> End:
    followers = [each for each in place.group().replicas if not each.leads]
    if not followers:
        return lambda: None
    follower = place.random.choice(followers)
    follower.lag = place.random.uniform(0.2, 8)
    place.cluster.tell(f"{follower.server.name} lags in {follower.group.name} by {follower.lag:.1f} s")

    def end() -> None:
        follower.lag = 0.0

    return end


def _step_down(place: Place) -> None:
    leader = place.group().leader()
    if leader is not None:
        leader.step_down("it was told to")
        place.cluster.changed()


def _knob(name: str, value: Callable[[Random], float], before: float) -> Callable[[Place], End]:
    def begin(place: Place) -> End:
        setattr(place.cluster, name, value(place.random))
        place.cluster.tell(f"{name} is {getattr(place.cluster, name):.4g}")
        return lambda: setattr(place.cluster, name, before)

    return begin


def _clock(place: Place) -> None:
    server = place.server()
    server.clock_offset = place.random.choice((-1, 1)) * place.random.choice((0.01, 1.0, 30.0, 300.0))
    place.cluster.tell(f"the clock of {server.name} jumps to {server.clock_offset:+g} s")


def _clients_clock(place: Place) -> None:
    place.world.clock_offset = place.random.choice((-1, 1)) * place.random.choice((1.0, 60.0, 600.0))
    place.cluster.tell(f"the clients' clock jumps to {place.world.clock_offset:+g} s")


def _lock_out(place: Place) -> End:
    cluster = place.cluster
    cluster.tell("no client is let in any more")
    cluster.locked_out = True
    for server in cluster.servers:
        for connection in server.connections_in_order():
            connection.wire.break_off()

    def end() -> None:
        cluster.locked_out = False

    return end


def _deny(place: Place) -> End:
    cluster = place.cluster
    subject = place.random.choice(
        ("$JS.API.CONSUMER.CREATE.>", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.CONSUMER.DELETE.>")
    )
    cluster.tell(f"clients may not publish to {subject} any more")
    cluster.denied.append(subject)
    cluster.denials.add(subject)

    def end() -> None:
        if subject in cluster.denied:
            cluster.denied.remove(subject)

    return end


def _slow(place: Place) -> End:
    place.net.slowness += 1
    place.cluster.tell("the network is slow")

    def end() -> None:
        place.net.slowness -= 1

    return end


def _delete_consumers(place: Place) -> None:
    for group in place.cluster.groups.values():
        for replica in group.replicas:
            for name in [name for name, each in replica.consumers.items() if not each.durable]:
                place.cluster.remove_consumer(group, name)
    place.cluster.tell("all ephemeral consumers are deleted")


def _restore(place: Place) -> End | None:
    """Put an older copy in the place of a stream's stores: of the only one, of two of three, or of all."""
    group = place.group()
    members = len(group.replicas)
    chosen: list[Replica] = (
        group.replicas if members == 1 else place.random.sample(group.replicas, place.random.choice((1, 2, 3)))
    )
    length = max((len(each.log) for each in group.replicas), default=0)
    to = max(0, length - place.random.randint(1, OLDEST_COPY))
    for each in chosen:
        each.server.stop()
    for each in chosen:
        kept = each.log[: min(to, len(each.log))]
        place.cluster.tell(
            f"{each.server.name} gets a copy of {group.name} with {len(kept)} of {len(each.log)} operations"
        )
        each.put_back(kept)

    def end() -> None:
        for each in chosen:
            each.server.start()

    return end


def _restart(place: Place) -> End:
    leader = _written(place).leader()
    server = leader.server if leader is not None else place.server()
    in_order = place.random.random() < 0.6
    place.cluster.tell(f"{server.name} is {'restarted' if in_order else 'killed, and begins anew'}")
    server.stop(in_order=in_order)
    return server.start


def _roll(place: Place) -> None:
    place.cluster.tell("all servers are restarted, one after the other")
    at = 0.0
    for server in place.cluster.servers:
        place.world.after(at, lambda server=server: server.stop(in_order=True))
        at += place.random.uniform(0.2, 1.0)
        place.world.after(at, server.start)
        at += place.random.uniform(2.0, 8.0)


def _written(place: Place) -> Group:
    """Return a stream into which somebody else than its publishers writes, or some stream."""
    groups = place.cluster.groups
    return next((groups[name] for name in ("OUT", "KV_B", "BAD") if name in groups), place.group())


def _back_up_and_restore(place: Place) -> None:
    group = _written(place)
    if all(each.runs for each in place.cluster.servers) and group.leader() is not None:
        place.cluster.tell(f"stream {group.name} is backed up, deleted and restored")
        place.cluster.restore(place.cluster.back_up(group.name))


def _scale(place: Place) -> None:
    group = _written(place)
    leader = group.leader()
    if leader is None or not all(each.runs for each in place.cluster.servers):
        return
    count = len(place.cluster.servers) if len(group.replicas) == 1 else 1
    group.scale(count)  # the servers decide so, and the stream does not: what it has not committed does not hold it up
    leader.propose(("config", {**group.config, "num_replicas": count}))
    if count > 1 and place.random.random() < 0.7:
        place.world.after(place.random.uniform(0.5, 5.0), lambda: _hand_over(place, group))


def _hand_over(place: Place, group: Group) -> None:
    leader = group.leader()
    if leader is not None:
        leader.step_down("it was told to")
        group.avoided = leader
        place.cluster.changed()


def _edit(place: Place) -> None:
    group = _written(place)
    leader = group.leader()
    if leader is not None:
        config = {**group.config, "description": f"edited at {place.world.now:.1f} s"}
        if place.random.random() < 0.3:
            config["duplicate_window"] = place.random.choice([5, 60, 600]) * 10**9
        place.cluster.tell(f"stream {group.name} is edited; its window is {config['duplicate_window'] // 10**9} s")
        leader.propose(("config", config))


def _make_again(place: Place) -> None:
    group = place.group()
    if all(each.runs for each in place.cluster.servers) and group.name not in STATE_BUCKETS:
        place.cluster.tell(f"stream {group.name} is deleted and created again")
        place.cluster.make_again(group.name)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("kill", "a server is killed and comes back", _kill, (0.1, 20)),
        Fault("kill-leader", "the leader of a stream is killed and comes back", _kill_leader, (0.1, 20)),
        Fault("power", "a server loses power", _power, (0.1, 20), loses=True),
        Fault("power-of-all", "all servers lose power at once", _power_of_all, (0.1, 10), loses=True),
        Fault("pause", "a server is stopped and goes on", _pause, (0.1, 25)),
        Fault("pause-leader", "the leader of a stream is stopped and goes on", _pause_leader, (0.1, 25)),
        Fault("lame-duck", "a server says that it will shut down, and does", _lame_duck, (4, 20)),
        Fault("silence-in", "nothing arrives at a server", _silence("in"), (0.5, 40)),
        Fault("silence-out", "nothing arrives from a server", _silence("out"), (0.5, 40)),
        Fault("cut", "a connection breaks after some bytes", _cut),
        Fault("cut-all", "all connections to a server break", _cut_all),
        Fault("route", "a route between servers is cut", _route, (0.5, 30), cluster=True),
        Fault("isolate", "a leader is cut off from the others", _isolate, (0.5, 30), cluster=True),
        Fault("lag", "a follower lags", _lag, (1, 30), cluster=True),
        Fault("step-down", "a leader is told to step down", _step_down),
        Fault("answers-late", "answers come late", _knob("late", lambda r: r.uniform(0.05, 0.3), 0.0), (1, 20)),
        Fault("answers-twice", "answers come twice", _knob("twice", lambda r: r.uniform(0.1, 1), 0.0), (1, 40)),
        Fault("answers-never", "answers do not come", _knob("mute", lambda r: r.uniform(0.02, 0.2), 0.0), (1, 20)),
        Fault(
            "acks-never",
            "acknowledgements do not come",
            _knob("mute_acks", lambda r: r.uniform(0.01, 0.2), 0.0),
            (0.5, 8),
        ),
        Fault(
            "acks-twice",
            "acknowledgements come twice",
            _knob("twice_acks", lambda r: r.choice((0.02, 0.5, 1.0)), 0.0),
            (0.5, 8),
        ),
        Fault(
            "lossy-route",
            "messages between servers are lost",
            _knob("lossy", lambda r: r.uniform(0.01, 0.2), 0.0),
            (0.5, 20),
            cluster=True,
        ),
        Fault("made-again", "a stream is deleted and created again", _make_again, loses=True),
        Fault(
            "too-many",
            "leaders take little at once",
            _knob("in_flight_limit", lambda r: r.randint(1, 20), 10_000),
            (1, 30),
        ),
        Fault(
            "takes-nothing",
            "leaders take nothing",
            _knob("in_flight_limit", lambda r: -1, 10_000),
            (500, 700),
            asked=True,
        ),
        Fault("all-away", "all servers are away", _all_away, (500, 700), asked=True),
        Fault("clock", "the clock of a server jumps", _clock),
        Fault("clients-clock", "the clients' clock jumps", _clients_clock),
        Fault("locked-out", "no client is let in", _lock_out, (0.5, 20)),
        Fault("denied", "a permission goes", _deny, (0.5, 20)),
        Fault("slow", "the network is slow", _slow, (1, 30)),
        Fault("no-consumers", "all ephemeral consumers are deleted", _delete_consumers),
        Fault(
            "strangers-answer",
            "somebody else answers what JetStream is asked, too",
            _knob("strange", lambda r: r.choice((0.02, 0.2, 1.0)), 0.0),
            (1, 60),
            asked=True,
        ),
        Fault(
            "strangers-ack",
            "somebody else acknowledges what is published, too",
            _knob("strange_acks", lambda r: r.choice((0.02, 0.2, 1.0)), 0.0),
            (5, 30),
            asked=True,
        ),
        Fault("restart", "a server is restarted", _restart, (0.1, 5), asked=True),
        Fault("roll", "all servers are restarted, one after the other", _roll, asked=True),
        Fault("restored", "a stream is backed up, deleted and restored", _back_up_and_restore, asked=True),
        Fault("scaled", "a stream has three replicas, or one", _scale, cluster=True, asked=True),
        Fault("edited", "a stream is edited", _edit, asked=True),
        Fault("restore-older", "members of a stream are put back to an older copy", _restore, (0.5, 5), loses=True),
    )
}
"""By name."""
