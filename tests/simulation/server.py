"""Model nats-servers: the wire, core NATS and JetStream's API, as far as clients can see them.

:class:`Cluster` is the servers together, and what a history does to them. What it says is what a real server says:
``test_conversation.py`` holds the same random conversation with both.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tests.simulation.consumers import LiveConsumer
from tests.simulation.group import LEARNS_AFTER_STOP, Entry, Group, Replica
from tests.simulation.mirrors import Mirror, MirrorSpec
from tests.simulation.network import Network, Wire
from tests.simulation.store import Publication, Stored, filters_of, matcher, overlaps, tokens_match
from tests.simulation.world import EPOCH, World

MAX_PAYLOAD = 1 << 20
WINDOW = 120_000_000_000
_LINE = re.compile(rb"([A-Za-z+-]+)[ \t]*(.*)", re.DOTALL)
_ZERO_TIME = "0001-01-01T00:00:00Z"
_API_SUBJECT = re.compile(r"\$JS\.(?:([^.]+)\.)?API\.(.+)")


class Subscription(NamedTuple):
    """A subscription of a client's connection."""

    connection: Connection
    sid: str
    subject: str
    tokens: tuple[str, ...]
    queue: str


class Connection:
    """A server's end of a client's connection."""

    def __init__(self, server: ModelServer, wire: Wire) -> None:
        self.server = server
        self.wire = wire
        self.subscriptions: dict[str, Subscription] = {}
        self.limits: dict[str, int] = {}  # messages that a subscription still gets
        self.echo = True
        self.logged_in = False
        self.closed = False
        self._buffer = bytearray()
        self._ping: Any = None

    @property
    def unprocessed(self) -> int:
        """Bytes that were received and not looked at: the server is stopped."""
        return len(self._buffer) if not self.server.runs else 0

    def feed(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._buffer += data
        if self.server.runs:
            self.process()

    def process(self) -> None:
        """Act on what the client has sent."""
        buffer = self._buffer
        place = 0
        while not self.closed:
            end = buffer.find(b"\r\n", place)
            if end < 0:
                break
            line = bytes(buffer[place:end])
            operation = line[:4].upper()
            if operation in (b"PUB ", b"HPUB"):
                parts = line.decode().split()
                size = int(parts[-1])
                if len(buffer) < end + 2 + size + 2:
                    break
                body = bytes(buffer[end + 2 : end + 2 + size])
                place = end + 2 + size + 2
                of_header = int(parts[-2]) if operation == b"HPUB" else 0
                replies = parts[2:-2] if of_header else parts[2:-1]
                self._publish(parts[1], replies[0] if replies else "", body[:of_header], body[of_header:])
                continue
            place = end + 2
            if not self._obey(line):
                break
        del buffer[:place]

    def _publish(self, subject: str, reply: str, header: bytes, payload: bytes) -> None:
        server = self.server
        if not server.cluster.may_publish(subject):
            self.send(f"-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n".encode())
            return
        server.publish(subject, reply, header, payload, self)

    def _obey(self, line: bytes) -> bool:
        found = _LINE.match(line)
        word = found[1].upper() if found else b""
        argument = found[2].decode() if found else ""
        match word:
            case b"PING":
                self.send(b"PONG\r\n")
            case b"PONG":
                pass
            case b"CONNECT":
                hello = json.loads(argument)
                self.echo = hello.get("echo", True)
                if self.server.cluster.locked_out:
                    self.send(b"-ERR 'Authorization Violation'\r\n")
                    self.close()
                    return False
                self.logged_in = True
            case b"SUB":
                parts = argument.split()
                subject, sid = parts[0], parts[-1]
                if not self.server.cluster.may_subscribe(subject):
                    self.send(f"-ERR 'Permissions Violation for Subscription to \"{subject}\"'\r\n".encode())
                    return True
                if sid in self.subscriptions:
                    return True
                queue = parts[1] if len(parts) == 3 else ""
                added = Subscription(self, sid, subject, tuple(subject.split(".")), queue)
                self.subscriptions[sid] = added
                self.server.cluster.interest.add(added)
            case b"UNSUB":
                parts = argument.split()
                if len(parts) == 2 and parts[0] in self.subscriptions:
                    delivered = self.limits.get(f"delivered {parts[0]}", 0)
                    left = int(parts[1]) - delivered
                    if left > 0:
                        self.limits[parts[0]] = left
                        return True
                self.unsubscribe(parts[0])
            case _:
                self.send(b"-ERR 'Unknown Protocol Operation'\r\n")
                self.close()
                return False
        return True

    def unsubscribe(self, sid: str) -> None:
        """End a subscription."""
        found = self.subscriptions.pop(sid, None)
        self.limits.pop(sid, None)
        if found is not None:
            self.server.cluster.interest.remove(found)

    def deliver(self, to: Subscription, subject: str, reply: str, header: bytes, payload: bytes) -> None:
        """Send a message to the client."""
        where = f"{subject} {to.sid} {reply}".rstrip()
        if header:
            line = f"HMSG {where} {len(header)} {len(header) + len(payload)}\r\n"
        else:
            line = f"MSG {where} {len(payload)}\r\n"
        self.send(b"%b%b%b\r\n" % (line.encode(), header, payload))
        if to.sid in self.limits:
            self.limits[to.sid] -= 1
            if not self.limits[to.sid]:
                self.unsubscribe(to.sid)
        else:
            name = f"delivered {to.sid}"
            self.limits[name] = self.limits.get(name, 0) + 1

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self.closed:
            self.wire.to_client(data)

    def close(self) -> None:
        """Close the connection."""
        self.wire.close_by_server()

    def gone(self) -> None:
        """Forget the connection, which is closed or broken."""
        if not self.closed:
            self.closed = True
            for sid in list(self.subscriptions):
                self.unsubscribe(sid)
            self.server.connections.discard(self)


class Interest:
    """Who subscribes to what, in all servers."""

    def __init__(self) -> None:
        self._literal: dict[str, list[Subscription]] = {}
        self._inboxes: dict[str, list[Subscription]] = {}  # by all but the last token, which is a wildcard
        self._wild: list[Subscription] = []

    def _place(self, subscription: Subscription) -> list[Subscription]:
        tokens = subscription.tokens
        if "*" not in tokens and ">" not in tokens:
            return self._literal.setdefault(subscription.subject, [])
        if tokens[-1] == "*" and "*" not in tokens[:-1]:
            return self._inboxes.setdefault(subscription.subject[:-2], [])
        return self._wild

    def add(self, subscription: Subscription) -> None:
        """Note a subscription."""
        self._place(subscription).append(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription."""
        place = self._place(subscription)
        if subscription in place:
            place.remove(subscription)
        if not place and place is not self._wild:
            for known, name in ((self._literal, subscription.subject), (self._inboxes, subscription.subject[:-2])):
                if known.get(name) is place:
                    del known[name]

    def of(self, subject: str) -> list[Subscription]:
        """Return who gets a message with a subject."""
        found = list(self._literal.get(subject, ()))
        found += self._inboxes.get(subject.rpartition(".")[0], ())
        if self._wild:
            tokens = tuple(subject.split("."))
            found += [each for each in self._wild if tokens_match(each.tokens, tokens)]
        return found

    def count(self) -> int:
        """Return how many subscriptions there are."""
        return sum(map(len, self._literal.values())) + sum(map(len, self._inboxes.values())) + len(self._wild)


class ModelServer:
    """One server."""

    def __init__(self, cluster: Cluster, name: str, port: int) -> None:
        self.cluster = cluster
        self.name = name
        self.port = port
        self.up = True
        self.paused = False
        self.stopped_at = 0.0
        self.resumed_at = -1e9
        self.starts = 0
        self.lame_duck = False
        self.clock_offset = 0.0
        self.connections: set[Connection] = set()
        self._clients = 0
        self._deferred: list[Callable[[], object]] = []  # what arrived while it was stopped

    @property
    def runs(self) -> bool:
        """Whether it works: it is up and not stopped."""
        return self.up and not self.paused

    @property
    def accepts(self) -> bool:
        """Whether a socket listens."""
        return self.up and not self.lame_duck

    def act(self, action: Callable[[], object]) -> None:
        """Do something here: now, when the server goes on after a stop, or never if it is down."""
        if self.paused:
            self._deferred.append(action)
        elif self.up:
            action()

    def time_ns(self) -> int:
        """Return its time of day."""
        cluster = self.cluster
        # Two messages never have the same time, nor an earlier one unless a clock is set back.
        cluster.latest = max(int((EPOCH + cluster.world.now) * 1e9), cluster.latest) + 1
        return cluster.latest + int(self.clock_offset * 1e9)

    def accept(self, wire: Wire) -> Connection:
        """Take a client's connection."""
        connection = Connection(self, wire)
        self._clients += 1
        self.connections.add(connection)
        if self.runs:
            connection.send(self.info())
        return connection

    def info(self) -> bytes:
        """Return the INFO line."""
        cluster = self.cluster
        info: dict[str, Any] = {
            "server_id": f"N{self.name}{self.starts or ''}",
            "server_name": self.name,
            "version": cluster.version,
            "proto": 1,
            "go": "go1.27",
            "host": "127.0.0.1",
            "port": self.port,
            "headers": True,
            "max_payload": MAX_PAYLOAD,
            "jetstream": True,
            "client_id": self._clients,
            "client_ip": "127.0.0.1",
        }
        if cluster.domain:
            info["domain"] = cluster.domain
        if len(cluster.servers) > 1:
            info["cluster"] = "model"
            info["connect_urls"] = [f"127.0.0.1:{port}" for port in cluster.ports]
        if self.lame_duck:
            info["ldm"] = True
        return b"INFO " + json.dumps(info, separators=(",", ":")).encode() + b" \r\n"

    # Messages

    def publish(self, subject: str, reply: str, header: bytes, payload: bytes, source: Connection | None) -> None:
        """Take a message from a client."""
        cluster = self.cluster
        if subject.startswith("$JS."):
            if subject.startswith("$JS.ACK."):
                if not cluster.acknowledge(self, subject, reply, payload):
                    self._nobody(reply, subject)
                return
            if found := _API_SUBJECT.fullmatch(subject):
                heard = self._stranger_answers(cluster.strange, reply)
                where = cluster.in_domain(self, found[1] or cluster.domain)
                if where is self:
                    heard = cluster.api(self, found[2], reply, payload, header) or heard
                elif where is not None:
                    heard = True
                    self.beyond(where, lambda: where.cluster.api(where, found[2], reply, payload, header))
                if not heard:
                    self._nobody(reply, subject)
                return
        delivered = self._stranger_answers(cluster.strange_acks, reply)
        delivered = self.route(subject, reply, header, payload, source) or delivered
        taken = cluster.store(self, subject, reply, header, payload)
        if not (delivered or taken):
            self._nobody(reply, subject)

    def _stranger_answers(self, probability: float, reply: str) -> bool:
        """Have a worker that acknowledges whatever it hears do so, before the others or later; tell whether it does."""
        world = self.cluster.world
        if not reply or not probability or world.random.random() >= probability:
            return False
        if world.random.random() < 0.5:
            self.route(reply, "", b"", b"+ACK")
        else:
            world.after(world.random.uniform(0.0, 0.01), lambda: self.up and self.route(reply, "", b"", b"+ACK"))
        return True

    def _nobody(self, reply: str, subject: str) -> None:
        if reply:
            named = "" if self.cluster.is_older_than(2, 12) else f"Nats-Subject: {subject}\r\n"
            self.route(reply, "", f"NATS/1.0 503\r\n{named}\r\n".encode(), b"")

    def route(self, subject: str, reply: str, header: bytes, payload: bytes, source: Connection | None = None) -> bool:
        """Deliver a message to whoever subscribes; tell whether anybody does."""
        groups: dict[str, list[Subscription]] = {}
        found = False
        for each in self.cluster.hearing(subject):
            if each.connection is source and not source.echo:
                continue
            if each.queue:
                groups.setdefault(each.queue, []).append(each)
            else:
                found = self._hand(each, subject, reply, header, payload) or found
        for members in groups.values():
            chosen = self.cluster.world.random.choice(members)
            found = self._hand(chosen, subject, reply, header, payload) or found
        return found

    def deliver_to_inbox(self, inbox: str, subject: str, reply: str, header: bytes, payload: bytes) -> None:
        """Deliver a message under its own subject to whoever subscribes to an inbox."""
        for each in self.cluster.hearing(inbox):
            self._hand(each, subject, reply, header, payload)

    def _hand(self, to: Subscription, subject: str, reply: str, header: bytes, payload: bytes) -> bool:
        other = to.connection.server
        if other is self:
            to.connection.deliver(to, subject, reply, header, payload)
            return True
        cluster = self.cluster
        if not cluster.connected(self, other):
            return False

        def arrive() -> None:
            if to.sid in to.connection.subscriptions:
                to.connection.deliver(to, subject, reply, header, payload)

        if not cluster.loses_on_route():
            cluster.over_route(self, other, lambda: other.act(arrive))
        return True

    def beyond(self, other: ModelServer, action: Callable[[], object]) -> None:
        """Have something happen at the other end of a leaf node's connection."""
        self.cluster.over_route(self, other, lambda: other.act(action))

    # What happens to it

    def stop(self, lose_power: bool = False, in_order: bool = False) -> None:
        """End like ``kill -9``, or in order; without power what is not on disk is gone too."""
        if not self.up:
            return
        self.up = self.paused = False
        self._deferred.clear()
        for connection in self.connections_in_order():
            connection.wire.break_off()
        for group in self.cluster.groups.values():
            for replica in group.replicas:
                if replica.server is self:
                    replica.stop(lose_power, in_order)
        self.cluster.changed()

    def start(self) -> None:
        """Start again."""
        if not self.up:
            self.up, self.lame_duck = True, False
            self.starts += 1
            for group in self.cluster.groups.values():
                group.begins_on(self)
            self.cluster.changed()

    def pause(self) -> None:
        """Stop like SIGSTOP."""
        if self.up and not self.paused:
            self.paused = True
            self.stopped_at = self.cluster.world.now
            self.cluster.changed()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        if self.paused:
            self.paused = False
            self.resumed_at = self.cluster.world.now
            deferred, self._deferred = self._deferred, []
            for action in deferred:
                self.act(action)
            for connection in self.connections_in_order():
                if not connection.logged_in:
                    connection.send(self.info())
                connection.process()
            for group in self.cluster.groups.values():
                for replica in group.replicas:
                    if replica.server is self:
                        self.cluster.world.after(LEARNS_AFTER_STOP, replica.learn)
                        for consumer in list(replica.consumers.values()):
                            consumer.deliver()
            self.cluster.changed()

    def connections_in_order(self) -> list[Connection]:
        """Return the connections in an order that does not depend on addresses in memory."""
        return [wire.end for wire in self.cluster.net.wires if wire.end in self.connections]

    def retire(self) -> None:
        """Announce that it will shut down (lame duck mode)."""
        if self.runs and not self.lame_duck:
            self.lame_duck = True
            for connection in self.connections_in_order():
                connection.send(self.info())
            for group in self.cluster.groups.values():
                leader = group.leader()
                if leader is not None and leader.server is self and len(group.replicas) > 1:
                    leader.step_down("its server shuts down")
            self.cluster.changed()


class Refused(Exception):
    """An error object of the API."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.error = {"code": code, "err_code": err_code, "description": description}


NO_STREAM = (404, 10059, "stream not found")
NO_CONSUMER = (404, 10014, "consumer not found")
NO_MESSAGE = (404, 10037, "no message found")
NOT_AVAILABLE = (503, 10008, "JetStream system temporarily unavailable")


class Backup(NamedTuple):
    """A copy of a stream: what it held then."""

    group: Group
    log: list[Entry]


class Cluster:
    """Servers, their streams, and what an outsider can do to them.

    Args:
        world: where.
        net: between them and their clients.
        servers: how many.
        version: that they say.
        domain: of their JetStream, if it has a name.
        first_port: where the first one listens.

    Attributes:
        ports: where they listen.
        in_flight_limit: proposals that a leader takes at once, beyond which it says 429.
        linked: those of other domains, at the other ends of leaf nodes' connections.
    """

    def __init__(
        self,
        world: World,
        net: Network,
        servers: int = 3,
        version: str = "2.15.1",
        domain: str = "",
        first_port: int = 4222,
    ) -> None:
        self.world = world
        self.net = net
        self.version = version
        self.interest = Interest()
        self.groups: dict[str, Group] = {}
        self.domain = domain
        self.linked: list[Cluster] = []
        self.ports = [first_port + i for i in range(servers)]
        self.servers = [ModelServer(self, f"{domain or 'n'}{i + 1}", port) for i, port in enumerate(self.ports)]
        self.cut: set[frozenset[str]] = set()  # routes
        self.latest = 0  # the last time that a server was asked for, in nanoseconds since 1970
        self.in_flight_limit = 10_000
        self.locked_out = False
        self.denied: list[str] = []  # patterns of subjects
        self.denials: set[str] = set()  # those that were denied at some time
        self.slow_elections = False
        self.twice = 0.0  # probability that an answer of the API comes twice
        self.late = 0.0  # probability that an answer of the API comes seconds late
        self.mute = 0.0  # probability that an answer of the API does not come
        self.mute_acks = 0.0  # the same of acknowledgements
        self.twice_acks = 0.0  # probability that an acknowledgement comes twice
        self.lossy = 0.0  # probability that a message between servers is lost
        self.strange = 0.0  # probability that somebody else answers a request to the API too
        self.strange_acks = 0.0  # the same of what is published
        self.mirrors: list[Mirror] = []
        self._meta_ready = 0.0
        self._answering: Callable[[Any], None] = lambda _: None  # whoever asks for what is done at the moment
        self._matches: dict[str, list[Group]] = {}
        for server in self.servers:
            world.servers[server.port] = server

    def tell(self, what: str) -> None:
        """Add to the story."""
        self.world.tell("servers", what)

    # Time and routes

    def wall(self) -> float:
        """Return the time of day, in seconds since 1970, as the servers have it."""
        return EPOCH + self.world.now + self.servers[0].clock_offset if self.servers else EPOCH

    def changed_config(self) -> None:
        """Take note that a stream is configured otherwise."""
        self._matches.clear()

    def raft_delay(self) -> float:
        """Return the seconds that a message between servers takes."""
        return self.world.random.uniform(0.0005, 0.004)

    def election_delay(self, replicas: int) -> float:
        """Return the seconds until a new leader is there."""
        if replicas == 1:
            return self.world.random.uniform(0.05, 1.0)
        return self.world.random.uniform(4.0, 9.0) if self.slow_elections else self.world.random.uniform(0.3, 5.0)

    def over_route(self, one: ModelServer, other: ModelServer, action: Callable[[], None]) -> None:
        """Have something happen when a message has gone from one server to another."""
        self.world.after(0.0005, action)

    def connected(self, one: ModelServer, other: ModelServer) -> bool:
        """Tell whether there is a route."""
        if one is other:
            return True
        return one.up and other.up and not (self.cut and frozenset((one.name, other.name)) in self.cut)

    def gates(self) -> list[ModelServer]:
        """Return a server of each other domain that leaf nodes' connections lead to."""
        return [next(each for each in other.servers if each.up) for other in self.linked if other.is_up()]

    def is_up(self) -> bool:
        """Tell whether any server is up."""
        return any(each.up for each in self.servers)

    def in_domain(self, server: ModelServer, domain: str) -> ModelServer | None:
        """Return who takes requests to a domain that are sent to a server: itself, a gate, or nobody."""
        if domain == self.domain:
            return server
        return next((each for each in self.gates() if each.cluster.domain == domain), None)

    def hearing(self, subject: str) -> list[Subscription]:
        """Return who gets a message with a subject, in all domains."""
        found = self.interest.of(subject)
        for other in self.linked:
            found += other.interest.of(subject)
        return found

    def reachable(self, server: ModelServer) -> list[ModelServer]:
        """Return the servers that one can talk with, itself first."""
        return [server, *(each for each in self.servers if each is not server and self.connected(server, each))]

    def changed(self) -> None:
        """Take note that servers or routes are not what they were."""
        self._meta_ready = max(self._meta_ready, self.world.now + self.election_delay(len(self.servers)) * 0.3)
        for group in self.groups.values():
            group.check()

    def _meta(self, server: ModelServer) -> bool:
        """Tell whether the cluster can decide something that is asked for at a server."""
        if len(self.servers) == 1:
            return True
        running = [each for each in self.reachable(server) if each.runs]
        return len(running) > len(self.servers) // 2 and self.world.now >= self._meta_ready

    def text(self, time: float) -> str:
        """Return a time, in seconds since 1970, as servers write it."""
        return self.text_ns(int(time * 1e9))

    def text_ns(self, time: int) -> str:
        """Return a time, in nanoseconds since 1970, as servers write it."""
        whole = datetime.fromtimestamp(time // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        fraction = f"{time % 1_000_000_000:09d}".rstrip("0")
        return f"{whole}.{fraction}Z" if fraction else f"{whole}Z"

    # Permissions

    def may_publish(self, subject: str) -> bool:
        """Tell whether clients may publish to a subject."""
        return not any(tokens_match(tuple(each.split(".")), tuple(subject.split("."))) for each in self.denied)

    def may_subscribe(self, subject: str) -> bool:
        """Tell whether clients may subscribe to a subject."""
        return self.may_publish(subject)

    # Streams as publishers see them

    def listening(self, subject: str) -> list[Group]:
        """Return the streams that listen on a subject."""
        found = self._matches.get(subject)
        if found is None:
            tokens = tuple(subject.split("."))
            found = [
                group
                for group in self.groups.values()
                if any(tokens_match(tuple(each.split(".")), tokens) for each in group.config["subjects"])
            ]
            self._matches[subject] = found
        return found

    def _leader_for(self, server: ModelServer, group: Group) -> list[Replica]:
        """Return who leads a stream, as seen from a server: none, one, or for a while two."""
        return [each for each in group.leaders() if self.connected(server, each.server)]

    def _believed(self, server: ModelServer, group: Group) -> list[Replica]:
        return [
            each for each in group.replicas if each.leads and each.server.up and self.connected(server, each.server)
        ]

    def store(
        self, server: ModelServer, subject: str, reply: str | Callable[[str], None], header: bytes, payload: bytes
    ) -> bool:
        """Give a message to the streams that listen on it, in all domains; tell whether any does."""
        found = self._store_here(server, subject, reply, header, payload)
        for gate in self.gates():
            if gate.cluster.listening(subject):
                found = True
                server.beyond(gate, lambda x=gate: x.cluster._store_here(x, subject, reply, header, payload))
        return found

    def _store_here(
        self, server: ModelServer, subject: str, reply: str | Callable[[str], None], header: bytes, payload: bytes
    ) -> bool:
        found = False
        for group in self.listening(subject):
            for leader in self._believed(server, group):
                found = True
                self._at(server, leader.server, lambda x=leader: self._take(server, x, subject, reply, header, payload))
        return found

    def _at(self, server: ModelServer, other: ModelServer, action: Callable[[], None]) -> None:
        """Do something at a server, at once or when the route and the server allow it."""
        if other is server:
            action()
            return
        if not self.loses_on_route():
            self.over_route(server, other, lambda: other.act(action))

    def loses_on_route(self) -> bool:
        """Tell whether a message between servers is lost now: they promise to deliver each at most once."""
        return bool(self.lossy) and self.world.random.random() < self.lossy

    def _take(
        self,
        server: ModelServer,
        leader: Replica,
        subject: str,
        reply: str | Callable[[str], None],
        header: bytes,
        payload: bytes,
    ) -> None:
        """Have a leader take a message."""
        if not leader.leads:
            return
        group = leader.group

        def answer(text: str) -> None:
            if reply and not group.config.get("no_ack"):
                if self.mute_acks and self.world.random.random() < self.mute_acks:
                    return
                if callable(reply):
                    reply(text)
                    return
                leader.server.route(reply, "", b"", text.encode())
                if self.twice_acks and self.world.random.random() < self.twice_acks:
                    leader.server.route(reply, "", b"", text.encode())

        def refuse(code: int, err_code: int, description: str) -> None:
            error = {"code": code, "err_code": err_code, "description": description}
            answer(json.dumps({"error": error, "stream": group.name, "seq": 0}, separators=(",", ":")))

        blank = " " if self.is_older_than(2, 12) else ""
        domain = f'"domain":"{self.domain}",{blank}' if self.domain else ""
        names = parse_header(header)
        if 0 <= group.config["max_msg_size"] < len(header) + len(payload):
            refuse(400, 10054, "message size exceeds maximum allowed")
            return
        batch = names.get("Nats-Batch-Id")
        if batch is not None:
            self._take_of_batch(leader, subject, header, payload, names, answer, refuse)
            return
        wrong = self._violation(leader, subject, names)
        if wrong == "duplicate":
            sequence = leader.look().known(names["Nats-Msg-Id"])
            answer(f'{{"stream":"{group.name}",{blank}{domain}"seq":{sequence},"duplicate": true}}')
            return
        if wrong is not None:
            refuse(*wrong)  # type: ignore[misc]
            return
        wrong = self._no_room(leader, subject, header, payload)
        if wrong is not None:
            refuse(*wrong)
            return
        message_id, rollup = names.get("Nats-Msg-Id", ""), names.get("Nats-Rollup", "")
        increment = int(names["Nats-Incr"]) if group.config.get("allow_msg_counter") else None
        publication = Publication(subject, header, payload, leader.now(), message_id, rollup, increment)
        if "Nats-Expected-Last-Subject-Sequence" in names:
            leader.expected.add(subject)

        def stored(sequence: int) -> None:
            self._note(leader, sequence)
            value = f',"val":"{leader.store.value(subject)}"' if publication.increment is not None else ""
            answer(f'{{"stream":"{group.name}",{blank}{domain}"seq":{sequence}{value}}}')

        leader.propose(("msg", publication), stored)

    def _note(self, leader: Replica, sequence: int) -> None:
        """Note what is acknowledged now."""
        message = leader.store.messages.get(sequence)
        if message is not None:
            leader.group.acknowledged.append((self.world.now, message.entry, message))

    def _violation(self, leader: Replica, subject: str, names: dict[str, str]) -> Any:
        """Return why a leader does not take a message, by what its headers expect."""
        store, group = leader.look(), leader.group
        clustered = len(group.replicas) > 1
        if names.get("Nats-Expected-Stream", group.name) != group.name:
            return 400, 10060, "expected stream does not match"
        message_id = names.get("Nats-Msg-Id", "")
        ids_first = clustered or self.is_older_than(2, 12)
        wrong = None if ids_first else self._wrong_sequence(leader, subject, names)
        if wrong is not None:
            return wrong
        if message_id:
            if store.known(message_id):
                return "duplicate"
            if self._is_known(leader, message_id):
                return 409, 10158, "duplicate message id is in process"
        if ids_first:
            wrong = self._wrong_sequence(leader, subject, names)
        last_id = names.get("Nats-Expected-Last-Msg-Id")
        if wrong is None:
            wrong = self._not_allowed(group, names)
        if wrong is None and last_id and (found := self._last_id(leader)) != last_id:
            wrong = (400, 10070, f"wrong last msg ID: {found}")
        if wrong is not None and clustered and message_id and self.is_older_than(2, 12):
            leader.poisoned[message_id] = self.world.now + group.config["duplicate_window"] / 1e9
        if wrong is None and len(leader.log) - leader.applied > self.in_flight_limit:
            wrong = (429, 10167, "too many requests")
        return wrong

    def _is_known(self, leader: Replica, message_id: str) -> bool:
        """Tell whether an id is stored, under way, or left behind by what a cluster of 2.11 has refused."""
        return bool(
            leader.look().known(message_id)
            or message_id in leader.ids
            or leader.poisoned.get(message_id, -1.0) > self.world.now
        )

    def _not_allowed(self, group: Group, names: dict[str, str]) -> tuple[int, int, str] | None:
        config = group.config
        if "Nats-Rollup" in names and not config["allow_rollup_hdrs"]:
            return 500, 10111, "rollup not permitted"
        if "Nats-TTL" in names and not config["allow_msg_ttl"]:
            return 400, 10166, "per-message TTL is disabled"
        counts = config.get("allow_msg_counter")
        if "Nats-Incr" in names and not counts and not self.is_older_than(2, 12):
            return 400, 10168, "message counters is disabled"
        if counts and "Nats-Incr" not in names:
            return 400, 10169, "message counter increment is missing"
        return None

    def _wrong_sequence(self, leader: Replica, subject: str, names: dict[str, str]) -> tuple[int, int, str] | None:
        expected = names.get("Nats-Expected-Last-Sequence")
        if expected is not None and expected != str(leader.next_sequence - 1):
            return 400, 10071, f"wrong last sequence: {leader.next_sequence - 1}"
        revision = names.get("Nats-Expected-Last-Subject-Sequence")
        return None if revision is None else self._wrong_revision(leader, subject, revision)

    def _wrong_revision(self, leader: Replica, subject: str, revision: str) -> tuple[int, int, str] | None:
        if leader.pending.get(subject):
            return (
                400,
                10164,
                "wrong last sequence",
            )
        found = leader.store.last_of(subject)
        last = found.sequence if found is not None else 0
        return (400, 10071, f"wrong last sequence: {last}") if revision != str(last) else None

    def _last_id(self, leader: Replica) -> str:
        for entry in reversed(leader.log[leader.applied :]):
            if entry.operation[0] == "msg":
                return str(entry.operation[1].message_id)
        return leader.store.last_id

    def _no_room(
        self,
        leader: Replica,
        subject: str,
        header: bytes,
        payload: bytes,
        before: Sequence[Publication] = (),
    ) -> tuple[int, int, str] | None:
        config, store = leader.group.config, leader.store
        if config.get("discard") != "new":
            return None
        under_way = sum(leader.pending.values()) + len(before)
        if 0 < config.get("max_msgs", -1) <= len(store.messages) + under_way:
            return 503, 10077, "maximum messages exceeded"
        if config.get("discard_new_per_subject") and 0 < config.get("max_msgs_per_subject", -1) <= len(
            store.subjects.get(subject, ())
        ) + leader.pending.get(subject, 0) + sum(each.subject == subject for each in before):
            return 503, 10077, "maximum messages per subject exceeded"
        size = sum(store.size(each.subject, each.header, each.payload) for each in before)
        if 0 < config.get("max_bytes", -1) < store.bytes + size + store.size(subject, header, payload):
            return 503, 10077, "maximum bytes exceeded"
        return None

    def _take_of_batch(
        self,
        leader: Replica,
        subject: str,
        header: bytes,
        payload: bytes,
        names: dict[str, str],
        answer: Callable[[str], None],
        refuse: Callable[[int, int, str], None],
    ) -> None:
        """Have a leader take a message of an atomic batch (ADR-50)."""
        group = leader.group
        name, number = names["Nats-Batch-Id"], int(names.get("Nats-Batch-Sequence", "0"))
        commits = names.get("Nats-Batch-Commit", "")
        if not group.config.get("allow_atomic"):
            refuse(400, 10174, "atomic publish is disabled")
            return
        if len(name) > 64:
            refuse(400, 10179, "atomic publish batch ID is invalid")
            return
        if not number:
            refuse(400, 10175, "atomic publish sequence is missing")
            return
        parts = group.batches.setdefault((leader.server.name, leader.term), {})
        if number == 1:
            parts[name] = []
        if name not in parts or len(parts[name]) != number - 1:
            parts.pop(name, None)
            refuse(400, 10176, "atomic publish batch is incomplete")
            return
        if commits != "eob":
            parts[name].append((subject, header, payload, names))
        if not commits:
            answer("")
            return
        rows = parts.pop(name)
        known: set[str] = set()
        publications = []
        for i, (each, block, data, found) in enumerate(rows):
            if "Nats-Expected-Last-Msg-Id" in found:
                refuse(400, 10177, "atomic publish unsupported header used: Nats-Expected-Last-Msg-Id")
                return
            message_id = found.get("Nats-Msg-Id", "")
            if message_id and (message_id in known or leader.look().known(message_id)):
                refuse(400, 10201, "atomic publish batch contains duplicate message id")
                return
            if message_id and self._is_known(leader, message_id):
                refuse(409, 10158, "duplicate message id is in process")
                return
            known.add(message_id)
            if (i and "Nats-Expected-Last-Sequence" in found) or (
                "Nats-Expected-Last-Subject-Sequence" in found and any(each == one.subject for one in publications)
            ):
                refuse(400, 10164, "wrong last sequence")
                return
            wrong = self._violation(leader, each, {**found, "Nats-Msg-Id": ""})
            if wrong is None:
                wrong = self._no_room(leader, each, block, data, publications)
            if wrong is not None:
                refuse(*wrong)
                return
            publications.append(Publication(each, block, data, leader.now(), message_id, found.get("Nats-Rollup", "")))

        def stored(sequence: int) -> None:
            for each in range(sequence - len(rows) + 1, sequence + 1):
                self._note(leader, each)
            domain = f'"domain":"{self.domain}",' if self.domain else ""
            answer(f'{{"stream":"{group.name}",{domain}"seq":{sequence},"batch":"{name}","count":{len(rows)}}}')

        leader.propose(("batch", publications), stored)

    # The API

    def api(self, server: ModelServer, operation: str, reply: str, payload: bytes, header: bytes) -> bool:
        """Act on a request to the API; False when nobody listens there."""
        tokens = operation.split(".")
        if tokens[:3] == ["CONSUMER", "MSG", "NEXT"] and len(tokens) == 5:
            return self._pull(server, tokens[3], tokens[4], reply, payload)
        if tokens[:2] == ["DIRECT", "GET"] and len(tokens) >= 3:
            return self._direct(server, tokens[2], ".".join(tokens[3:]), reply, payload)
        words = 3 if tokens[:2] in (["STREAM", "MSG"], ["STREAM", "LEADER"]) else 2
        kind, names = ".".join(tokens[:words]), tokens[words:]
        if header and int(parse_header(header).get("Nats-Required-Api-Level", 0)) > 5 and not self.is_older_than(2, 12):
            response = _API[kind][0] if kind in _API else ""
            self._reply(server, reply, response, Refused(412, 10185, "JetStream minimum api level required"))
            return True
        if kind == "INFO":
            self._meta_call(server, "account_info", reply, lambda: self._account())
            return True
        handler = _API.get(kind)
        if handler is None:
            return True  # servers say nothing at all
        response, where, method = handler
        try:
            body = json.loads(payload) if payload.strip() else {}
        except ValueError:
            body = {}
        if kind == "CONSUMER.RESET":
            if self.is_older_than(2, 14):
                return True
            group = self.groups.get(names[0])
            found = self.find_consumer(group, names[1]) if group is not None else None
            if found is not None and not found.durable and found.replica.group.config["retention"] != "interest":
                self._reset_one(server, found, reply, body)
                return True
        if where == "meta":
            self._meta_call(server, response, reply, lambda: method(self, server, *names, body))
            return True
        group = self.groups.get(names[0]) if names else None
        if group is None:
            if len(self.servers) == 1 or self._meta(server):
                self._reply(server, reply, response, Refused(*NO_STREAM))
            return True
        leaders = self._believed(server, group)
        if not leaders:
            self._leaderless(server, group, kind, response, reply)
            return True
        for leader in leaders:
            self._at(
                server,
                leader.server,
                lambda x=leader: self._call(
                    x, response, reply, lambda answer, y=x: method(self, y, *names[1:], body, answer)
                ),
            )
        return True

    def is_older_than(self, major: int, minor: int) -> bool:
        """Tell whether its version is older than a release."""
        one, other = self.version.split(".")[:2]
        return (int(one), int(other)) < (major, minor)

    @property
    def misses_gaps(self) -> bool:
        """Whether its servers, when they begin, may forget ids of messages that are there, before removed ones."""
        return self.version in ("2.11.10", "2.11.11", "2.12.1", "2.12.2", "2.12.3")

    def _leaderless(self, server: ModelServer, group: Group, kind: str, response: str, reply: str) -> None:
        """Answer as servers do while a stream has no leader: not at all, in an error, or with what a replica holds."""
        replicas = [each for each in group.replicas if each.runs and self.connected(server, each.server)]
        chance = self.world.random.random()
        if kind == "STREAM.INFO" and replicas and len(group.replicas) > 1 and chance < 0.4:
            replica = self.world.random.choice(replicas)
            self._reply(replica.server, reply, response, self._describe(replica, {}, leader=""))
        elif chance < 0.8:
            self._reply(server, reply, response, Refused(*NOT_AVAILABLE))

    def _meta_call(self, server: ModelServer, response: str, reply: str, method: Callable[[], Any]) -> None:
        if not self._meta(server):
            if self.world.random.random() < 0.5:
                self._reply(server, reply, response, Refused(*NOT_AVAILABLE))
            return
        self._answering = lambda answer: self._reply(server, reply, response, answer)
        try:
            answer = method()
        except Refused as error:
            answer = error
        if answer is not None:
            self._reply(server, reply, response, answer)

    def _call(self, leader: Replica, response: str, reply: str, method: Callable[[Callable[[Any], None]], Any]) -> None:
        if not leader.leads:
            return

        def late(answer: Any) -> None:
            self._reply(leader.server, reply, response, answer)

        try:
            answer = method(late)
        except Refused as error:
            answer = error
        if answer is not None:
            self._reply(leader.server, reply, response, answer)

    def _reply(self, server: ModelServer, reply: str, response: str, answer: Any) -> None:
        document = {"type": f"io.nats.jetstream.api.v1.{response}_response"}
        if isinstance(answer, Refused):
            document["error"] = answer.error  # type: ignore[assignment]
            if response == "stream_info":
                document |= {"total": 0, "offset": 0, "limit": 0}  # type: ignore[dict-item]
        else:
            document |= answer
        if not reply:
            return
        data = json.dumps(document, separators=(",", ":")).encode()
        chance = self.world.random.random() if self.mute or self.late or self.twice else 1.0
        if chance < self.mute:
            return
        if chance < self.mute + self.late:
            self.world.after(self.world.random.uniform(1, 12), lambda: server.up and server.route(reply, "", b"", data))
            return
        server.route(reply, "", b"", data)
        if chance < self.mute + self.late + self.twice:
            self.world.after(
                self.world.random.uniform(0, 0.1), lambda: server.up and server.route(reply, "", b"", data)
            )

    # What is asked of streams

    def _account(self) -> dict[str, Any]:
        consumers = sum(len(replica.consumers) for group in self.groups.values() for replica in group.replicas)
        stores = [replica.look() for group in self.groups.values() for replica in group.replicas]
        in_memory = sum(each.bytes for each in stores if each.config["storage"] == "memory")
        limits = {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1, "max_ack_pending": -1}
        return {
            "memory": in_memory,
            "storage": sum(each.bytes for each in stores) - in_memory,
            "streams": len(self.groups),
            "consumers": consumers,
            "limits": limits,
            "api": {"level": 5, "total": 0, "errors": 0},
        } | self._domain()

    def _domain(self) -> dict[str, str]:
        return {"domain": self.domain} if self.domain else {}

    def _configured(self, requested: dict[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = {
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "discard": "old",
            "storage": "file",
            "num_replicas": 1,
            "duplicate_window": WINDOW,
            "compression": "none",
            "allow_direct": False,
            "mirror_direct": False,
            "sealed": False,
            "deny_delete": False,
            "deny_purge": False,
            "allow_rollup_hdrs": False,
            "consumer_limits": {},
            "allow_msg_ttl": False,
        }
        config |= {name: value for name, value in requested.items() if value is not None}
        if 0 < config["max_age"] < config["duplicate_window"] and "duplicate_window" not in requested:
            config["duplicate_window"] = config["max_age"]
        if not config.get("subjects"):
            config["subjects"] = [config["name"]]
        config["num_replicas"] = config["num_replicas"] or 1
        for name in ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size", "max_consumers"):
            config[name] = config[name] or -1
        config["duplicate_window"] = config["duplicate_window"] or WINDOW
        return config

    def _create(self, server: ModelServer, name: str, body: dict[str, Any]) -> dict[str, Any]:
        unknown = next((each for each in body if each not in _STREAM_FIELDS), None)
        if unknown is not None and not self.is_older_than(2, 12):
            raise Refused(400, 10025, f'invalid JSON: json: unknown field "{unknown}"')
        if body.get("name") != name:
            raise Refused(400, 10056, "stream name in subject does not match request")
        if "mirror" in body:
            self.mirror(MirrorSpec.of(body))
            return {}
        config = self._configured(body)
        known = self.groups.get(name)
        if known is not None:
            if known.config != config:
                raise Refused(400, 10058, "stream name already in use with a different configuration")
            leader = known.leader()
            if leader is None:
                raise Refused(*NOT_AVAILABLE)
            return _without_domain(self._describe(leader, {}))
        subjects = [tuple(each.split(".")) for each in config["subjects"]]
        for other in self.groups.values():
            if any(overlaps(one, tuple(each.split("."))) for one in subjects for each in other.config["subjects"]):
                raise Refused(400, 10065, "subjects overlap with an existing stream")
        if config["num_replicas"] > len(self.servers):
            raise Refused(400, 10074, "replicas > 1 not supported in non-clustered mode")
        running = [each for each in self.servers if each.runs]
        if config["num_replicas"] > len(running):
            raise Refused(400, 10005, "no suitable peers for placement, peer offline")
        group = self._make(config, running)
        leader = group.leader()
        assert leader is not None
        return {**_without_domain(self._made(leader)), "did_create": True}

    def _made(self, leader: Replica) -> dict[str, Any]:
        """Describe a stream that was made or edited; a server alone does not say who leads it then."""
        found = self._describe(leader, {})
        return found if len(self.servers) > 1 else {name: value for name, value in found.items() if name != "cluster"}

    def _make(self, config: dict[str, Any], servers: list[ModelServer]) -> Group:
        chosen = self.world.random.sample(servers, config["num_replicas"])
        group = Group(self, config["name"], config, chosen)
        self.groups[config["name"]] = group
        self._matches.clear()
        group.elect_at_once()
        return group

    def _update(self, leader: Replica, body: dict[str, Any], answer: Callable[[Any], None]) -> None:
        config = self._configured(body)
        if config["num_replicas"] > len(self.servers):
            raise Refused(400, 10074, "replicas > 1 not supported in non-clustered mode")

        def edited(_: Any) -> None:
            leader.group.scale(config["num_replicas"])
            answer(self._made(leader))

        leader.propose(("config", config), edited)

    def _step_down(self, leader: Replica, body: dict[str, Any], answer: Callable[[Any], None]) -> dict[str, Any]:
        leader.step_down("it was asked to")
        leader.group.avoided, leader.group.preferred = leader, body.get("placement", {}).get("preferred", "")
        self.changed()
        return {"success": True}

    def _delete(self, server: ModelServer, name: str, body: dict[str, Any]) -> dict[str, Any]:
        for mirror in [each for each in self.mirrors if each.spec.name == name]:
            self.mirrors.remove(mirror)
            return {"success": True}
        group = self.groups.pop(name, None)
        if group is None:
            raise Refused(*NO_STREAM)
        self._matches.clear()
        for replica in group.replicas:
            replica.leads = False
            for consumer in list(replica.consumers.values()):
                consumer.stop("409 Consumer Deleted")
            replica.consumers.clear()
        return {"success": True}

    def _names(self, server: ModelServer, body: dict[str, Any]) -> dict[str, Any]:
        wanted = body.get("subject")
        names = sorted(
            name
            for name, group in self.groups.items()
            if not wanted
            or any(overlaps(tuple(wanted.split(".")), tuple(each.split("."))) for each in group.config["subjects"])
        )
        offset = min(body.get("offset", 0), len(names))
        return {"total": len(names), "offset": offset, "limit": 1024, "streams": names[offset : offset + 1024] or None}

    def _list(self, server: ModelServer, body: dict[str, Any]) -> dict[str, Any]:
        leaders = [group.leader() for _, group in sorted(self.groups.items())]
        found = [self._describe(each, {}) for each in leaders if each is not None]
        offset = min(body.get("offset", 0), len(found))
        return {"total": len(found), "offset": offset, "limit": 256, "streams": found[offset : offset + 256]}

    def _info(self, leader: Replica, body: dict[str, Any], answer: Callable[[Any], None]) -> dict[str, Any]:
        return self._describe(leader, body)

    def _describe(self, replica: Replica, body: dict[str, Any], leader: str | None = None) -> dict[str, Any]:
        group, store = replica.group, replica.look()
        first = store.messages.get(store.first)
        state: dict[str, Any] = {
            "messages": len(store.messages),
            "bytes": store.bytes,
            "first_seq": store.first,
            "first_ts": self.text_ns(first.time) if first is not None else _ZERO_TIME,
            "last_seq": store.last,
            "last_ts": self.text_ns(store.last_time) if store.last_time else _ZERO_TIME,
            "consumer_count": len({*store.durables, *(name for each in group.replicas for name in each.consumers)}),
        }
        if store.subjects:
            state["num_subjects"] = len(store.subjects)
        gone = store.last - store.first + 1 - len(store.messages) if store.messages else 0
        if gone:
            state["num_deleted"] = gone
        found: dict[str, Any] = {"total": 0, "offset": 0, "limit": 0}
        if body.get("subjects_filter"):
            match = matcher([body["subjects_filter"]])
            subjects = sorted(subject for subject in store.subjects if match(subject))
            offset = body.get("offset", 0)
            shown = subjects[offset : offset + 100_000]
            if subjects:
                found = {"total": len(subjects), "offset": offset, "limit": 100_000}
            if shown:
                state["subjects"] = {subject: len(store.subjects[subject]) for subject in shown}
        name = replica.server.name if leader is None else leader
        cluster: dict[str, Any] = {"leader": name} if name else {}
        if len(self.servers) > 1:
            cluster["name"] = "model"
            if name and len(group.replicas) > 1 and not self.is_older_than(2, 11):
                cluster["leader_since"] = self.text(EPOCH + replica.led_since)
            cluster["replicas"] = [
                {"name": each.server.name, **replica.hears_of(each)}
                for each in group.replicas
                if each.server.name != name
            ]
        return {
            **found,
            "config": {key: value for key, value in group.config.items() if value is not None} | self._metadata(group),
            "created": group.created_text(),
            "state": state,
            "cluster": cluster,
            "ts": self.text_ns(replica.now()),
            **self._domain(),
        }

    def _metadata(self, group: Group) -> dict[str, Any]:
        if self.is_older_than(2, 11):
            return {}
        return {"metadata": {**(group.config.get("metadata") or {}), "_nats.ver": self.version}}

    def _get(self, leader: Replica, body: dict[str, Any], answer: Callable[[Any], None]) -> dict[str, Any]:
        store = leader.look()
        if bool(body.get("last_by_subj")) == bool(body.get("seq") or body.get("next_by_subj")):
            raise Refused(400, 10003, "bad request")
        if body.get("last_by_subj"):
            found = store.last_of(body["last_by_subj"])
        elif body.get("next_by_subj"):
            found = store.find(body.get("seq", 0), matcher([body["next_by_subj"]]))
        else:
            found = store.messages.get(body.get("seq", 0))
        if found is None:
            raise Refused(*NO_MESSAGE)
        message: dict[str, Any] = {"subject": found.subject, "seq": found.sequence}
        if found.header and not body.get("no_hdr"):
            message["hdrs"] = base64.b64encode(found.header).decode()
        if found.payload:
            message["data"] = base64.b64encode(found.payload).decode()
        return {"message": {**message, "time": self.text_ns(found.time)}}

    def _purge(self, leader: Replica, body: dict[str, Any], answer: Callable[[Any], None]) -> None:
        if body.get("seq") and body.get("keep"):
            raise Refused(400, 10003, "bad request")
        if body.get("seq") == 1 and self.is_older_than(2, 12):
            body = {key: value for key, value in body.items() if key != "seq"}
        leader.propose(("purge", body), lambda purged: answer({"success": True, "purged": purged}))

    def _delete_message(self, leader: Replica, body: dict[str, Any], answer: Callable[[Any], None]) -> None:
        if leader.group.config["deny_delete"]:
            raise Refused(500, 10057, "message delete not permitted")
        sequence, store = body.get("seq", 0), leader.look()
        if sequence not in store.messages:
            if leader.group.config["storage"] == "file" and not store.first <= sequence <= store.last:
                raise Refused(500, 10057, "stream store EOF" if sequence > store.last else "no message found")
            raise Refused(400, 10043, f"sequence {sequence} not found")
        leader.propose(("delete", body["seq"]), lambda _: answer({"success": True}))

    # Consumers

    def find_consumer(self, group: Group, name: str) -> LiveConsumer | None:
        """Return a consumer that runs."""
        for replica in group.replicas:
            if name in replica.consumers:
                return replica.consumers[name]
        return None

    def _durable_lives(self, group: Group) -> None:
        """Have the durables run at the leader, where they are configured."""
        leader = group.leader()
        if leader is None:
            return
        for name, durable in leader.store.durables.items():
            if durable.config.get("durable_name") and self.find_consumer(group, name) is None:
                live = LiveConsumer(leader, name, durable.config, durable.created)
                live.floor = live.delivered_stream = live.passed = durable.floor
                live.next = durable.floor + 1
                leader.consumers[name] = live

    def _create_consumer(self, server: ModelServer, stream: str, *rest: Any) -> dict[str, Any] | None:
        body = rest[-1]
        group = self.groups.get(stream)
        if group is None:
            raise Refused(*NO_STREAM)
        config = {key: value for key, value in body.get("config", {}).items() if value is not None}
        name = config.get("name") or config.get("durable_name") or (rest[0] if len(rest) > 1 else "")
        action = body.get("action", "")
        leader = group.leader()
        if leader is None or not self.connected(server, leader.server):
            raise Refused(*NOT_AVAILABLE)
        self._durable_lives(group)
        known = self.find_consumer(group, name)
        config.setdefault("name", name)
        config = self._defaults(config)
        self._check_config(group, config)
        if known is not None:
            if action == "create" and config != known.config:
                raise Refused(400, 10148, "consumer already exists")
            for field, what in (
                ("deliver_policy", "deliver policy"),
                ("opt_start_seq", "start sequence"),
                ("ack_policy", "ack policy"),
            ):
                if config.get(field) != known.config.get(field):
                    raise Refused(500, 10012, f"{what} can not be updated")
            known.configure(config)
            if config.get("durable_name") or group.config["retention"] == "interest":
                self._keep(leader, known, known.floor)
                return None
            return self._describe_consumer(group, known)
        if action == "update":
            raise Refused(400, 10149, "consumer does not exist")
        self._check_consumer(group, leader, config)
        created = self.text(self.wall())
        if config.get("durable_name"):
            replica = leader
        else:
            able = [each for each in group.replicas if each.runs and self.connected(server, each.server)]
            if not able:
                raise Refused(*NOT_AVAILABLE)
            replica = self.world.random.choice(able)
        consumer = LiveConsumer(replica, name, config, created)
        replica.consumers[name] = consumer
        if config.get("durable_name") or group.config["retention"] == "interest":
            self._keep(leader, consumer, consumer.next - 1)
            return None
        return self._describe_consumer(group, consumer)

    def _keep(self, leader: Replica, consumer: LiveConsumer, floor: int) -> None:
        """Have a durable kept with the stream, and answer whoever has asked for it when that is done."""
        reply = self._answering
        leader.propose(
            ("durable", consumer.name, consumer.config, consumer.created, floor),
            lambda _: reply(self._describe_consumer(leader.group, consumer)),
        )

    def _defaults(self, config: dict[str, Any]) -> dict[str, Any]:
        defaults: dict[str, Any] = {"deliver_policy": "all", "ack_policy": "none", "max_deliver": -1}
        defaults |= {"replay_policy": "instant", "max_waiting": 512, "num_replicas": 0}
        defaults["metadata"] = {}
        if config.get("ack_policy", "none") != "none":
            defaults |= {"ack_wait": 30_000_000_000, "max_ack_pending": 1000}
        if not config.get("durable_name"):
            defaults["inactive_threshold"] = 5_000_000_000
        return defaults | config

    def _check_config(self, group: Group, config: dict[str, Any]) -> None:
        if group.config["retention"] == "workqueue" and config["ack_policy"] == "none":
            raise Refused(400, 10084, "consumer in pull mode requires explicit ack policy on workqueue stream")
        filters = [tuple(each.split(".")) for each in filters_of(config)]
        if any(overlaps(one, other) for i, one in enumerate(filters) for other in filters[:i]):
            raise Refused(400, 10138, "consumer subject filters cannot overlap")
        policy = config["deliver_policy"]
        if policy == "by_start_sequence" and not config.get("opt_start_seq"):
            what = "by start sequence, but optional start sequence"
        elif policy == "last_per_subject" and not filters:
            what = "last per subject, but optional filter subject"
        else:
            return
        raise Refused(400, 10094, f"consumer delivery policy is deliver {what} is not set")

    def _check_consumer(self, group: Group, leader: Replica, config: dict[str, Any]) -> None:
        limit = group.config.get("max_consumers", -1)
        consumers = [each for replica in group.replicas for each in replica.consumers.values()]
        if 0 < limit <= len(consumers):
            raise Refused(400, 10026, "maximum consumers limit reached")
        retention = group.config.get("retention")
        if retention == "workqueue":
            if config["ack_policy"] != "explicit":
                raise Refused(400, 10098, "workqueue stream requires explicit ack")
            mine = [tuple(each.split(".")) for each in filters_of(config)]
            if config.get("deliver_policy", "all") != "all":
                raise Refused(400, 10101, "consumer must be deliver all on workqueue stream")
            if consumers and not mine:
                raise Refused(400, 10099, "multiple non-filtered consumers not allowed on workqueue stream")
            theirs = [tuple(each.split(".")) for other in consumers for each in other.filters or [">"]]
            if any(overlaps(one, another) for one in mine for another in theirs):
                raise Refused(400, 10100, "filtered consumer not unique on workqueue stream")
        if retention == "interest" and config.get("num_replicas", 0) not in (0, group.config["num_replicas"]):
            raise Refused(400, 10134, "consumer config replica count must match parent stream replica count")

    def _describe_consumer(self, group: Group, consumer: LiveConsumer) -> dict[str, Any]:
        found: dict[str, Any] = {
            "stream_name": group.name,
            "name": consumer.name,
            "created": consumer.created,
            "config": consumer.config,
            **consumer.describe(),
            "ts": self.text(self.world.wall()),
        }
        if len(self.servers) > 1:
            found["cluster"] = {"name": "model", "leader": consumer.replica.server.name}
        return found

    def _consumer(self, leader: Replica, name: str) -> LiveConsumer:
        self._durable_lives(leader.group)
        found = self.find_consumer(leader.group, name)
        if found is None or not found.replica.runs:
            raise Refused(*NO_CONSUMER)
        return found

    def _consumer_info(
        self, leader: Replica, name: str, body: dict[str, Any], answer: Callable[[Any], None]
    ) -> dict[str, Any]:
        return self._describe_consumer(leader.group, self._consumer(leader, name))

    def _consumer_list(self, leader: Replica, body: dict[str, Any], answer: Callable[[Any], None]) -> dict[str, Any]:
        self._durable_lives(leader.group)
        found = [each for replica in leader.group.replicas for each in replica.consumers.values()]
        shown = [self._describe_consumer(leader.group, each) for each in sorted(found, key=lambda each: each.name)]
        offset = min(body.get("offset", 0), len(shown))
        return {"total": len(shown), "offset": offset, "limit": 256, "consumers": shown[offset : offset + 256]}

    def _consumer_delete(
        self, leader: Replica, name: str, body: dict[str, Any], answer: Callable[[Any], None]
    ) -> dict[str, Any]:
        self._consumer(leader, name)
        self.remove_consumer(leader.group, name)
        return {"success": True}

    def remove_consumer(self, group: Group, name: str) -> None:
        """Delete a consumer."""
        found = self.find_consumer(group, name)
        if found is None:
            return
        del found.replica.consumers[name]
        found.stop("409 Consumer Deleted")
        leader = group.leader()
        if leader is not None and (found.durable or group.config["retention"] == "interest"):
            leader.propose(("undurable", name))

    def _reset_one(self, server: ModelServer, consumer: LiveConsumer, reply: str, body: dict[str, Any]) -> None:
        """Move an ephemeral consumer: the server on which it lives does it alone."""
        host = consumer.replica.server
        if not host.up or not self.connected(server, host):
            return

        def take() -> None:
            if consumer.stopped:
                return
            try:
                answer: Any = self._moved(consumer, self._reset_to(consumer, body))
            except Refused as error:
                answer = error
            self._reply(host, reply, "consumer_reset", answer)

        self._at(server, host, take)

    def _reset_to(self, consumer: LiveConsumer, body: dict[str, Any]) -> int:
        """Return the sequence to which a consumer is moved."""
        sequence, config = body.get("seq") or 0, consumer.config
        if not sequence:
            return consumer.floor + 1
        if config["deliver_policy"] not in ("all", "by_start_sequence"):
            raise Refused(400, 10204, "invalid reset: not allowed")
        if sequence < config.get("opt_start_seq", 0):
            raise Refused(400, 10204, "invalid reset: below start seq")
        return int(sequence)

    def _moved(self, consumer: LiveConsumer, sequence: int) -> dict[str, Any]:
        """Move a consumer, and return its state."""
        consumer.reset(sequence)
        answer = {**self._describe_consumer(consumer.replica.group, consumer), "reset_seq": sequence}
        self.world.soon(consumer.deliver)
        return answer

    def _consumer_reset(self, leader: Replica, name: str, body: dict[str, Any], answer: Callable[[Any], None]) -> None:
        try:
            consumer = self._consumer(leader, name)
        except Refused:
            return  # servers say nothing
        sequence = self._reset_to(consumer, body)
        leader.propose(("reset", name, sequence), lambda _: answer(self._moved(consumer, sequence)))

    def _pull(self, server: ModelServer, stream: str, name: str, reply: str, payload: bytes) -> bool:
        group = self.groups.get(stream)
        if group is not None:
            self._durable_lives(group)
        consumer = self.find_consumer(group, name) if group is not None else None
        if consumer is None or not consumer.replica.server.up or not self.connected(server, consumer.replica.server):
            return False
        text = payload.strip()
        body = json.loads(text) if text.startswith(b"{") else {"batch": int(text or b"1")}
        self._at(server, consumer.replica.server, lambda: consumer.stopped or consumer.pull(body, reply))
        return True

    def acknowledge(self, server: ModelServer, subject: str, reply: str, payload: bytes) -> bool:
        """Take an acknowledgement, in all domains: its subject names none; tell whether anybody listens there."""
        found = self._acknowledge_here(server, subject, reply, payload)
        for gate in self.gates():
            if gate.cluster._of_acknowledgement(subject) is not None:
                found = True
                server.beyond(gate, lambda x=gate: x.cluster._acknowledge_here(x, subject, reply, payload))
        return found

    def _of_acknowledgement(self, subject: str) -> LiveConsumer | None:
        tokens = subject.split(".")
        group = self.groups.get(tokens[2])
        return self.find_consumer(group, tokens[3]) if group is not None else None

    def _acknowledge_here(self, server: ModelServer, subject: str, reply: str, payload: bytes) -> bool:
        consumer = self._of_acknowledgement(subject)
        if consumer is None or consumer.acks == "none" or not self.connected(server, consumer.replica.server):
            return False
        tokens = subject.split(".")

        def take() -> None:
            if consumer.acknowledge(int(tokens[5]), int(tokens[6]), payload) and reply:
                consumer.replica.server.route(reply, "", b"", b"")

        self._at(server, consumer.replica.server, take)
        return True

    # Direct gets

    def _direct(self, server: ModelServer, stream: str, subject: str, reply: str, payload: bytes) -> bool:
        group = self.groups.get(stream)
        holders: list[tuple[str, Replica | Mirror]] = []
        if group is not None and group.config.get("allow_direct"):
            holders += [(stream, each) for each in group.replicas]
        for mirror in self.mirrors:
            if stream in (mirror.spec.origin, mirror.spec.name):
                holders.append((mirror.spec.name, mirror))
        able = [each for each in holders if each[1].server.up and self.connected(server, each[1].server)]
        if not able:
            return False
        name, holder = self.world.random.choice(able)
        self._at(server, holder.server, lambda: self._get_direct(name, holder, subject, reply, payload))
        return True

    def _get_direct(self, name: str, holder: Replica | Mirror, subject: str, reply: str, payload: bytes) -> None:
        store, server = holder.look(), holder.server
        body = json.loads(payload) if payload.strip() else {}
        if subject:
            body["last_by_subj"] = subject
        batch = body.get("batch", 0)
        match = matcher([body["next_by_subj"]]) if body.get("next_by_subj") else None

        def send(message: Stored, more: str) -> None:
            block = (message.header[:-2] or b"NATS/1.0\r\n") + (
                f"Nats-Stream: {name}\r\nNats-Subject: {message.subject}\r\nNats-Sequence: {message.sequence}\r\n"
                f"Nats-Time-Stamp: {self.text_ns(message.time)}\r\n{more}\r\n"
            ).encode()
            server.route(reply, "", block, message.payload)

        def missing() -> None:
            server.route(reply, "", b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")

        if body.get("last_by_subj"):
            found = store.last_of(body["last_by_subj"])
            send(found, "") if found is not None else missing()
            return
        start = body.get("seq", 0)
        if not batch:
            found = store.find(start, match) if match else store.messages.get(start)
            send(found, "") if found is not None else missing()
            return
        if not start and match is None:
            server.route(reply, "", b"NATS/1.0 408 Empty Request\r\n\r\n", b"")
            return
        found = store.find(start, match)
        if found is None:
            missing()
            return
        old = self.is_older_than(2, 12)  # it counts the message itself
        left, last, sent = store.count(found.sequence, match), 0, 0
        size, most = 0, body.get("max_bytes", 0)
        while found is not None and sent < batch:
            left -= 1
            send(found, f"Nats-Num-Pending: {left + old}\r\nNats-Last-Sequence: {last}\r\n")
            last, sent = found.sequence, sent + 1
            size += len(found.subject) + len(found.header) + len(found.payload)
            if most and size >= most:
                break
            found = store.find(last + 1, match)
        end = f"NATS/1.0 204 EOB\r\nNats-Num-Pending: {left}\r\nNats-Last-Sequence: {last}\r\n\r\n"
        server.route(reply, "", end.encode(), b"")

    # What an outsider does

    def create_stream(self, name: str, subjects: list[str], num_replicas: int = 1, **config: Any) -> Group:
        """Make a stream before a history begins."""
        return self._make(
            self._configured({"name": name, "subjects": subjects, "num_replicas": num_replicas, **config}), self.servers
        )

    def mirror(self, spec: MirrorSpec) -> None:
        """Have a mirror of a stream that allows direct gets."""
        self.mirrors.append(Mirror(spec, self.servers[spec.server]))
        for message in self.contents(spec.origin):
            self.copy(spec.origin, message)

    def copy(self, stream: str, message: Stored) -> None:
        """Have the mirrors of a stream copy a message."""
        for mirror in self.mirrors:
            if mirror.spec.origin != stream:
                continue
            if mirror.spec.lag:
                self.world.after(mirror.spec.lag, lambda mirror=mirror: mirror.take(message))
            else:
                mirror.take(message)

    def offer(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        answered: Callable[[int | None, str], None] | None = None,
    ) -> None:
        """Publish as somebody else does; told when it is acknowledged or refused, and never when it is lost."""
        block = b""
        if headers:
            block = "".join(["NATS/1.0\r\n", *(f"{k}: {v}\r\n" for k, v in headers.items()), "\r\n"]).encode()
        up = [each for each in self.servers if each.runs]
        if not up:
            return

        def take(text: str) -> None:
            if answered is not None:
                answer = json.loads(text)
                answered(*((None, answer["error"]["description"]) if "error" in answer else (answer["seq"], "")))

        if not self.store(self.world.random.choice(up), subject, take, block, payload) and answered is not None:
            answered(None, "no responders")

    def delete(self, stream: str, sequence: int) -> bool:
        """Delete a message."""
        leader = self.groups[stream].leader()
        if leader is None or sequence not in leader.store.messages:
            return False
        leader.propose(("delete", sequence))
        return True

    def drain(self, stream: str, most: int) -> bool:
        """Take messages from a work queue, as a consumer that acknowledges them."""
        leader = self.groups[stream].leader()
        if leader is None:
            return False
        leader.propose(("drain", most))
        return True

    def purge(self, stream: str, **body: Any) -> bool:
        """Purge a stream."""
        leader = self.groups[stream].leader()
        if leader is None:
            return False
        leader.propose(("purge", body))
        return True

    def make_again(self, stream: str) -> None:
        """Delete a stream, and make it again, empty."""
        group = self.groups[stream]
        self._delete(self.servers[0], stream, {})
        made = self._make(group.config, [each.server for each in group.replicas])
        made.former = group
        self.changed()

    def back_up(self, stream: str) -> Backup:
        """Keep a copy of a stream, as STREAM.SNAPSHOT gives one."""
        group = self.groups[stream]
        leader = group.leader() or group.replicas[0]
        return Backup(group, leader.log[: leader.applied])

    def restore(self, backup: Backup) -> None:
        """Make a stream of a copy, as STREAM.RESTORE does: it knows no id until a server begins that has it."""
        group = backup.group
        if self.groups.get(group.name) is group:
            self._delete(self.servers[0], group.name, {})
        self.groups[group.name] = group
        self._matches.clear()
        if not self.is_older_than(2, 15):
            group.created = group.created_kept = group.created_here = self.wall()
        elif self.is_older_than(2, 14):
            group.created = group.created_kept = group.created_here
            group.created_here = self.wall()
        log = [*backup.log, Entry(group.term, ("restored", self.is_older_than(2, 15)))]
        for replica in group.replicas:
            replica.take_over(log)
        self.changed()

    def contents(self, stream: str) -> list[Stored]:
        """Return what a stream has now, as its leader knows."""
        group = self.groups[stream]
        leader = group.leader() or group.replicas[0]
        return list(leader.look().messages.values())

    def ledger(self, stream: str) -> list[tuple[float, Stored, str]]:
        """Return what a stream has acknowledged: when, the message, and ``kept``, ``lost`` or why it was removed.

        And what is gone that nobody was told of, with no time.
        """
        group = self.groups[stream]
        store = (group.leader() or group.replicas[0]).look()
        log = set(map(id, (group.leader() or group.replicas[0]).log))

        def fate(entry: Any, message: Stored) -> str:
            there = store.messages.get(message.sequence)
            if there is not None and there.entry == entry:
                return "kept"
            if id(entry[0] if isinstance(entry, tuple) else entry) in log and message.sequence <= store.last:
                return store.removed.get(message.sequence, "removed")
            return "lost"

        found = [(time, message, fate(entry, message)) for time, entry, message in group.acknowledged]
        told = {entry for _, entry, _ in group.acknowledged}
        untold = [(message, fate(entry, message)) for entry, message in group.stored.items() if entry not in told]
        # found by its id before it went
        found += [(0.0, message, became) for message, became in untold if became != "kept"]
        former = group.former
        while former is not None:  # whose leader may have been cut off, and have told of some since
            told = {entry for _, entry, _ in former.acknowledged}
            found += [(time, message, "lost") for time, _, message in former.acknowledged]
            found += [(0.0, message, "lost") for entry, message in former.stored.items() if entry not in told]
            former = former.former
        return found

    def heal(self) -> None:
        """Have everything work again."""
        self.cut.clear()
        self.locked_out = False
        self.denied.clear()
        self.strange = self.strange_acks = 0.0
        self.mute = self.late = self.twice = self.mute_acks = self.twice_acks = self.lossy = 0.0
        self.in_flight_limit = 10_000
        for port, direction in list(self.net.silent):
            self.net.heal(port, direction)
        for server in self.servers:
            server.resume()
            server.start()
            server.lame_duck = False
        for group in self.groups.values():
            for replica in group.replicas:
                replica.lag = 0.0
        self.changed()

    def settled(self) -> bool:
        """Tell whether all streams have leaders and equal replicas."""
        for group in self.groups.values():
            leader = group.leader()
            if leader is None or any(
                each.applied != len(leader.log) or each.log[-1:] != leader.log[-1:] for each in group.replicas
            ):
                return False
        return True

    def left(self) -> list[str]:
        """Return what clients have left behind: connections, subscriptions, ephemeral consumers."""
        found = [f"connection to {server.name}" for server in self.servers for _ in server.connections]
        found += ["subscription"] * self.interest.count()
        for group in self.groups.values():
            for replica in group.replicas:
                found += [f"consumer {name} of {group.name}" for name, c in replica.consumers.items() if not c.durable]
        return found


def _without_domain(described: dict[str, Any]) -> dict[str, Any]:
    """Return a description of a stream as the answer to CREATE has it."""
    return {name: value for name, value in described.items() if name != "domain"}


def parse_header(block: bytes) -> dict[str, str]:
    """Return the headers of a block, the first of each name."""
    found: dict[str, str] = {}
    if block:
        for line in block.decode("utf-8", "replace").split("\r\n")[1:]:
            name, colon, value = line.partition(":")
            if colon:
                found.setdefault(name.strip(), value.strip())
    return found


_STREAM_FIELDS = frozenset(
    [
        *("name", "description", "subjects", "retention", "max_consumers", "max_msgs", "max_bytes", "max_age"),
        *("discard", "template_owner"),
        *("max_msgs_per_subject", "max_msg_size", "storage", "num_replicas", "no_ack", "duplicate_window", "placement"),
        *("discard_new_per_subject", "mirror", "sources", "sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs"),
        *("allow_direct", "mirror_direct", "compression", "first_seq", "subject_transform", "republish", "metadata"),
        *("consumer_limits", "allow_msg_ttl", "subject_delete_marker_ttl", "allow_msg_counter", "allow_atomic"),
        *("allow_msg_schedules", "persist_mode", "allow_batched"),
    ]
)
"""What the configuration of a stream may have."""

_API: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "STREAM.CREATE": ("stream_create", "meta", Cluster._create),
    "STREAM.DELETE": ("stream_delete", "meta", Cluster._delete),
    "STREAM.UPDATE": ("stream_update", "stream", Cluster._update),
    "STREAM.LEADER.STEPDOWN": ("stream_leader_stepdown", "stream", Cluster._step_down),
    "STREAM.NAMES": ("stream_names", "meta", Cluster._names),
    "STREAM.LIST": ("stream_list", "meta", Cluster._list),
    "STREAM.INFO": ("stream_info", "stream", Cluster._info),
    "STREAM.MSG.GET": ("stream_msg_get", "stream", Cluster._get),
    "STREAM.MSG.DELETE": ("stream_msg_delete", "stream", Cluster._delete_message),
    "STREAM.PURGE": ("stream_purge", "stream", Cluster._purge),
    "CONSUMER.CREATE": ("consumer_create", "meta", Cluster._create_consumer),
    "CONSUMER.INFO": ("consumer_info", "stream", Cluster._consumer_info),
    "CONSUMER.LIST": ("consumer_list", "stream", Cluster._consumer_list),
    "CONSUMER.DELETE": ("consumer_delete", "stream", Cluster._consumer_delete),
    "CONSUMER.RESET": ("consumer_reset", "stream", Cluster._consumer_reset),
}
