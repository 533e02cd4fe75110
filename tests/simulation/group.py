"""The replicas of a stream: a leader, followers that lag, elections, and what is lost when they fail.

One replica is a server's own stream. Several keep a log in common: the leader takes an operation, and it is committed
when a majority has it; only then it is applied and acknowledged. A leader that is cut off or was stopped goes on
believing that it leads until it hears of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.consumers import LiveConsumer
from tests.simulation.store import Durable, Store, Stored

if TYPE_CHECKING:
    from tests.simulation.server import Cluster, ModelServer
    from tests.simulation.world import Event

HEARTBEAT = 1.0
"""Seconds between two heartbeats of a leader, which followers answer."""
TICK = 0.3
"""Seconds between two reminders of a leader to followers that are behind."""
SHORTEST_ELECTION = 3.0
"""Seconds for which nobody else leads when a leader is not heard of: followers wait for four at least since they have
heard of it, which is every second."""
LEARNS_AFTER_STOP = 0.1
"""Seconds after which a server that was stopped (SIGSTOP) knows who leads, even if it reaches nobody: what the others
have sent meanwhile waits in its sockets. Until then it may answer as the leader that it was; seen: for 0.07 s."""
LOST_QUORUM = 10.0
"""Seconds after which a leader that hears from no majority gives up."""

UNSAVED = 30
"""Operations at most that are not on disk when the power goes."""


class Entry:
    """An operation in the log of a stream."""

    __slots__ = ("answer", "committed", "operation", "term")

    def __init__(self, term: int, operation: tuple[Any, ...]) -> None:
        self.term = term
        self.operation = operation
        self.answer: Callable[[Any], None] | None = None
        self.committed = False


class Replica:
    """A stream on one of its servers."""

    def __init__(self, group: Group, server: ModelServer) -> None:
        self.group = group
        self.server = server
        self.log: list[Entry] = []
        self.commit = 0
        self.applied = 0
        self.compacted = 0  # operations at the beginning of its log that it has as a snapshot only
        self.term = 0
        self.leads = False
        self.led_since = 0.0
        self.store = Store(group.config, self._removed)
        self.consumers: dict[str, LiveConsumer] = {}
        self.match: dict[Replica, int] = {}  # how far each follower is, as the leader knows
        self.lost: dict[Replica, float] = {}  # others, and since when it does not hear of them
        self.told = 0  # the latest term of what waits in the sockets of its server, which is stopped (SIGSTOP)
        self.lag = 0.0  # seconds until this replica applies what is committed
        self._forgets: Event | None = None  # when ids are
        self._applies = False
        self._flushes = False
        self._ticks = False
        self._heard = 0.0  # when the leader last heard from a majority
        # What the leader has taken and not applied:
        self.ids: dict[str, Entry] = {}
        self.pending: dict[str, int] = {}  # of each subject
        self.expected: set[str] = set()  # subjects of which a condition is under way
        self.poisoned: dict[str, float] = {}  # ids that a refused message has left behind, until then

    @property
    def runs(self) -> bool:
        """Whether its server works."""
        return self.server.runs

    def now(self) -> int:
        """Return its server's time of day in nanoseconds."""
        return self.server.time_ns()

    def look(self) -> Store:
        """Return its state now."""
        self.store.expire(self.now())
        return self.store

    # The leader's part

    @property
    def next_sequence(self) -> int:
        """The sequence that the next message gets if all that is under way is stored."""
        return self.store.last + 1 + sum(self.pending.values())

    def propose(self, operation: tuple[Any, ...], answer: Callable[[Any], None] | None = None) -> None:
        """Take an operation; the answer is called with its result when it is committed and applied here."""
        entry = Entry(self.term, operation)
        entry.answer = answer
        self.log.append(entry)
        self._count(entry, 1)
        if len(self.group.replicas) == 1:
            self.commit = len(self.log)
            self.apply()
            return
        self._flush_soon()

    def _count(self, entry: Entry, change: int) -> None:
        """Count the messages that are under way with an entry, and note their ids: the leader refuses these."""
        what, published = entry.operation[0], entry.operation[1:2]
        for publication in published if what == "msg" else published[0] if what == "batch" else ():
            count = self.pending.get(publication.subject, 0) + change
            if count > 0:
                self.pending[publication.subject] = count
            else:
                self.pending.pop(publication.subject, None)
                self.expected.discard(publication.subject)
            if publication.message_id:
                if change > 0:
                    self.ids[publication.message_id] = entry
                else:
                    self.ids.pop(publication.message_id, None)

    def hears_of(self, other: Replica) -> dict[str, Any]:
        """Return what the leader says of another replica: how long it has not heard of it, at most a heartbeat ago."""
        world, server = self.group.world, self.server
        if world.now - server.resumed_at < HEARTBEAT:
            # What it hears first after a stop may be that others lead, or what had waited for it.
            silence = world.now - server.stopped_at if world.random.random() < 0.7 else 0.0005
            return {"current": silence > 1, "active": int(silence * 1e9)}
        lost = self.lost.get(other)
        silence = world.random.uniform(0.0, HEARTBEAT) + (0.0 if lost is None else world.now - lost)
        return {"current": lost is None, "active": int(silence * 1e9)}

    def listen(self) -> None:
        """Note of whom it hears no more, or again; a leader hears of others by their answers, which name their term."""
        for other in self.group.replicas:
            if not (other.runs and self.group.cluster.connected(self.server, other.server)):
                self.lost.setdefault(other, self.group.world.now)
            elif not self.leads:
                self.lost.pop(other, None)

    def remind(self) -> None:
        """Tell the followers again, one of which may have come back."""
        if len(self.group.replicas) > 1:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            self.group.world.after(self.group.cluster.raft_delay() * 0.2, self._flush)

    def _flush(self) -> None:
        self._flushes = False
        if not (self.leads and self.runs):
            return
        behind = False
        for follower in self.group.replicas:
            if follower is not self:
                self._send(follower)
                behind = behind or self.match.get(follower, 0) < len(self.log) or follower.commit < self.commit
        if behind and not self._ticks:
            self._ticks = True
            self.group.world.after(TICK, self._tick)

    def _tick(self) -> None:
        self._ticks = False
        if not self.leads:
            return
        if not self.runs:
            self._ticks = True
            self.group.world.after(TICK, self._tick)
            return
        reachable = 1 + sum(
            1
            for other in self.group.replicas
            if other is not self and other.runs and self.group.cluster.connected(self.server, other.server)
        )
        if reachable >= self.group.majority:
            self._heard = self.group.world.now
        elif self.group.world.now - self._heard > LOST_QUORUM:
            self.step_down("it has heard from no majority")
            return
        self._flush()

    def _send(self, follower: Replica) -> None:
        cluster = self.group.cluster
        if not cluster.connected(self.server, follower.server):
            return
        length, commit, term = len(self.log), self.commit, self.term

        def arrive() -> None:
            if cluster.connected(self.server, follower.server):
                if follower.runs:
                    follower.append(self, term, length, commit)
                else:
                    follower.told = max(follower.told, term)

        self.group.world.after(cluster.raft_delay(), arrive)

    def learn(self) -> None:
        """Take in what has waited while its server was stopped: another one may lead."""
        if self.told > self.term:
            self.step_down("another one does")
        self.told = 0

    def acked(self, follower: Replica, length: int, term: int) -> None:
        """Take in how far a follower is."""
        if not (self.leads and self.runs):
            return
        if term > self.term:
            self.step_down("another one leads")
            return
        self.lost.pop(follower, None)
        self.match[follower] = max(self.match.get(follower, 0), length)
        counts = sorted([len(self.log), *(self.match.get(each, 0) for each in self.group.replicas if each is not self)])
        reached = counts[len(counts) - self.group.majority]
        if reached > self.commit and self.log[reached - 1].term == self.term:
            self.commit = reached
            self.apply()
            self._flush_soon()

    def lead(self, term: int) -> None:
        """Begin to lead."""
        self.term = term
        self.leads = True
        self.led_since = self._heard = self.group.world.now
        self.match = {}
        self._forget_pending()
        for entry in self.log[self.applied :]:
            self._count(entry, 1)
        self.group.cluster.tell(f"{self.server.name} leads {self.group.name}")
        self.propose(("noop",))

    def _forget_pending(self) -> None:
        self.ids.clear()
        self.pending.clear()
        self.expected.clear()
        self.poisoned.clear()

    def drop_uncommitted(self) -> None:
        """Be the only one from now on: what was taken and not committed is not stored, and answered by nobody.

        Real servers were seen to do so: 31 of 12,000 messages, whose ids were unknown then; later ones were stored.
        """
        del self.log[self.commit :]
        self._forget_pending()

    def step_down(self, why: str) -> None:
        """Lead no more; what was taken and not committed is answered by nobody."""
        if self.leads:
            self.leads = False
            for entry in self.log[self.applied :]:
                entry.answer = None
            self._forget_pending()
            self.group.cluster.tell(f"{self.server.name} does not lead {self.group.name} any more: {why}")

    # The follower's part

    def append(self, leader: Replica, term: int, length: int, commit: int) -> None:
        """Take over the leader's log up to a length."""
        cluster = self.group.cluster
        if term < self.term:
            self._answer(leader, 0)
            return
        if self.leads and leader is not self:
            self.step_down(f"{leader.server.name} does")
        self.term = term
        theirs = leader.log
        length = min(length, len(theirs))
        mine = len(self.log)
        if mine and (mine > length or self.log[-1] is not theirs[mine - 1]):
            same = min(mine, length)
            while same and self.log[same - 1] is not theirs[same - 1]:
                same -= 1
            if same < mine and not (same == length and mine > length and all(e in theirs for e in self.log[same:])):
                del self.log[same:]
                if self.applied > same:  # it is given a snapshot
                    self.rebuild(same)
                self.commit = min(self.commit, same)
        if len(self.log) < leader.compacted:
            self._catch_up(leader)
        if length > len(self.log):
            self.log.extend(theirs[len(self.log) : length])
        self.commit = max(self.commit, min(commit, len(self.log)))
        self._answer(leader, length)
        if self.commit > self.applied and not self._applies:
            self._applies = True
            cluster.world.after(self.lag + cluster.raft_delay() * 0.5, self._apply_late)

    def _answer(self, leader: Replica, length: int) -> None:
        cluster, term = self.group.cluster, self.term

        def arrive() -> None:
            if cluster.connected(self.server, leader.server):
                leader.acked(self, length, term)

        cluster.world.after(cluster.raft_delay(), arrive)

    def _apply_late(self) -> None:
        self._applies = False
        if self.runs:
            self.apply()

    # Both

    def apply(self) -> None:
        """Apply what is committed."""
        while self.applied < self.commit:
            entry = self.log[self.applied]
            self.applied += 1
            entry.committed = True
            result = self._apply(entry)
            if self.leads:
                self._count(entry, -1)
            answer, leads = entry.answer, self.leads and self.runs
            if answer is not None and leads:
                entry.answer = None
                answer(result)
        for consumer in list(self.consumers.values()):
            consumer.deliver()

    def _apply(self, entry: Entry) -> Any:
        store, operation = self.store, entry.operation
        match operation[0]:
            case "msg":
                publication = operation[1]
                store.expire(publication.time)
                sequence = store.add(publication, entry)
                self._stored(sequence)
                if publication.rollup:
                    self._purged(publication.subject if publication.rollup == "sub" else "")
                return sequence
            case "batch":
                sequences = [store.add(publication, (entry, i)) for i, publication in enumerate(operation[1])]
                for sequence in sequences:
                    self._stored(sequence)
                return sequences[-1]
            case "config":
                window = store.config["duplicate_window"]
                store.configure(operation[1], self.group.cluster.is_older_than(2, 14))
                if operation[1]["duplicate_window"] != window:
                    self._cancel_forgetting()
                    self._forget_ids()
                if self.leads:
                    self.group.configure(operation[1])
            case "restored":
                store.restored(operation[1])
            case "drain":
                for sequence in list(store.messages)[: operation[1]]:
                    store.remove(sequence, "acknowledged")
            case "begin":
                store.begin(operation[1])
            case "purge":
                purged = store.purge(operation[1])
                self._purged(operation[1].get("filter", ""))
                return purged
            case "delete":
                return store.remove(operation[1], "deleted")
            case "durable":
                _, name, config, created, floor = operation
                known = store.durables.get(name)
                if known is not None:
                    known.config = config
                else:
                    store.durables[name] = Durable(config, created, floor)
            case "undurable":
                store.forget(operation[1])
            case "ack":
                store.acknowledge(operation[1], operation[2])
            case "reset":
                store.reset(operation[1], operation[2])
        return None

    def _stored(self, sequence: int) -> None:
        if (message := self.store.messages.get(sequence)) is not None:
            self.group.stored[message.entry] = message
            self._forget_in_time()
            self.group.cluster.copy(self.group.name, message)

    def _purged(self, subject: str) -> None:
        for consumer in self.consumers.values():
            consumer.purged(subject)

    def remember(self) -> None:
        """Know only the ids of messages that are there, as a server that begins."""
        self.store.remember(self.now(), self.group.cluster.misses_gaps)
        self._forget_in_time()

    def _forget_in_time(self) -> None:
        """Have ids be forgotten when they are old enough: a timer looks at the clock."""
        if self._forgets is None and self.store.noted:
            self._forgets = self.group.world.after(self.store.config["duplicate_window"] / 1e9, self._forget_ids)

    def _cancel_forgetting(self) -> None:
        if self._forgets is not None:
            self._forgets.cancel()
            self._forgets = None

    def _forget_ids(self) -> None:
        def forget() -> None:
            left = self.store.expire_ids(self.now())
            self._forgets = (
                self.group.world.after(max(0.05, left / 1e9), self._forget_ids) if self.store.noted else None
            )

        self._forgets = None
        self.server.act(forget)

    def rebuild(self, length: int) -> None:
        """Have the state that the first operations of the log make, and know no ids but of messages that are there."""
        self.store = Store(self.group.initial, self._removed)
        for entry in self.log[:length]:
            self._apply(entry)
        self.applied = length
        if not (self.log[:length] and self.log[length - 1].operation == ("restored", False)):
            self.remember()
        for consumer in list(self.consumers.values()):
            consumer.store_changed()

    def take_over(self, log: list[Entry]) -> None:
        """Have a log that is committed."""
        self.leads = False
        for each in self.group.replicas:
            each.match.pop(self, None)
        self.log = list(log)
        self.commit = len(log)
        self.rebuild(self.commit)

    def take_snapshot(self, leader: Replica) -> None:
        """Have what the leader has, as a follower that cannot catch up otherwise: it knows ids of messages alone."""
        self.take_over(leader.log[: leader.applied])
        if not self.store.messages:
            self.store.last_time = 0

    def _catch_up(self, leader: Replica) -> None:
        """Have what a leader had when it compacted its log, as a follower that was away.

        It fetches messages that the leader still has, and knows their ids beside those that it knew.
        """
        before = self.store
        self.take_over(leader.log[: leader.compacted])
        self.store.know(before.ids, before.noted, leader.store.messages)
        if not self.store.messages:
            self.store.last_time = before.last_time

    def leave(self) -> None:
        """End for good."""
        self.stop(lose_power=False)
        self.leads = False

    def stop(self, lose_power: bool, in_order: bool = False) -> None:
        """End with the server: at once, or in order; without power what is not on disk is gone."""
        self.leads = False
        self.told = 0
        self._cancel_forgetting()
        for entry in self.log[self.applied :]:
            entry.answer = None
        self._forget_pending()
        for consumer in list(self.consumers.values()):
            consumer.stop()
            if not consumer.durable and consumer.name in self.store.durables:
                self.log.insert(self.applied, Entry(self.term, ("undurable", consumer.name)))
                self.applied = self.commit = self.applied + 1
        self.consumers.clear()
        if lose_power:
            gone = min(len(self.log), self.group.world.random.randint(0, UNSAVED))
            if gone:
                self.group.cluster.tell(f"{self.server.name} has lost {gone} operations of {self.group.name}")
            self.put_back(self.log[: len(self.log) - gone])
        elif len(self.group.replicas) == 1:
            self.log.insert(self.applied, Entry(self.term, ("begin", in_order)))
            self.commit = self.applied + 1
            self.apply()
        else:
            self.rebuild(self.applied)
            if in_order:
                self.compacted = self.applied

    def _removed(self, message: Stored) -> None:
        self.group.removals.setdefault(message.entry, self.group.world.now)

    def put_back(self, log: list[Entry]) -> None:
        """Have an older copy of the log."""
        self.group.losses.append(self.group.world.now)
        for each in self.group.replicas:
            each.match.pop(self, None)
        self.log = list(log)
        self.commit = min(self.commit, len(log))
        if len(self.group.replicas) == 1:
            self.commit = len(log)
        self.rebuild(self.commit)


class Group:
    """A stream with all its replicas."""

    def __init__(self, cluster: Cluster, name: str, config: dict[str, Any], servers: list[ModelServer]) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.initial = self.config = config
        self.created = self.created_kept = self.created_here = cluster.wall()
        self.replicas = [Replica(self, server) for server in servers]
        self.majority = len(self.replicas) // 2 + 1
        self.term = 0
        self.acknowledged: list[tuple[float, Any, Stored]] = []  # when, and what
        self.stored: dict[Any, Stored] = {}  # whether anybody was told or not
        self.former: Group | None = None  # the stream of this name before
        self.losses: list[float] = []  # when a replica got an older copy, or lost the end of its own
        self.removals: dict[Any, float] = {}  # since when some replica has removed a message
        self.batches: dict[str, Any] = {}
        self.avoided: Replica | None = None  # one that was asked not to lead: another one does if it can
        self.preferred = ""  # name of the server that was asked to lead
        self._electing = False
        self._alone: float | None = None  # since when the leader hears of no majority

    def configure(self, config: dict[str, Any]) -> None:
        """Have another configuration."""
        self.config = config
        self.cluster.changed_config()
        if self.cluster.is_older_than(2, 14):  # an edit writes to disk when the running server began with the stream
            self.created_kept = self.created_here

    def scale(self, replicas: int) -> None:
        """Have so many replicas: others take over what the leader holds, or go."""
        leader = self.leader()
        if leader is None or replicas == len(self.replicas):
            return
        self.cluster.tell(f"{self.name} is to have {replicas} replicas instead of {len(self.replicas)}")
        others = [each for each in self.replicas if each is not leader]
        if replicas < len(self.replicas):
            for each in others[replicas - 1 :]:
                self.replicas.remove(each)
                each.leave()
            if replicas == 1:
                leader.drop_uncommitted()
        held = [each.server for each in self.replicas]
        for server in [each for each in self.cluster.servers if each not in held][: replicas - len(self.replicas)]:
            replica = Replica(self, server)
            self.replicas.append(replica)
            replica.term = self.term
            replica.take_snapshot(leader)
        self.majority = len(self.replicas) // 2 + 1
        self.check()

    def begins_on(self, server: ModelServer) -> None:
        """Take note that a server begins, which reads what it has written."""
        if len(self.cluster.servers) == 1:
            self.created, self.created_here = self.created_kept, self.cluster.wall()
        for replica in self.replicas:
            if replica.server is server:
                replica.remember()

    def leaders(self) -> list[Replica]:
        """Return the replicas that believe they lead."""
        return [each for each in self.replicas if each.leads and each.runs]

    def leader(self) -> Replica | None:
        """Return the one that leads with the highest term."""
        return max(self.leaders(), key=lambda each: each.term, default=None)

    def created_text(self) -> str:
        """Return when it was made."""
        return self.cluster.text(self.created)

    def _has_quorum(self, replica: Replica) -> bool:
        return (
            sum(1 for each in self.replicas if each.runs and self.cluster.connected(replica.server, each.server))
            >= self.majority
        )

    def check(self) -> None:
        """Look whether somebody else has to lead; called when a server or a route has changed."""
        for each in self.replicas:
            each.listen()
        leader = self.leader()
        if leader is not None and self._has_quorum(leader) and leader.term == self.term:
            self._alone = None
            leader.remind()
            return
        if self._alone is None:
            self._alone = self.world.now
        if not self._electing and any(each.runs for each in self.replicas):
            self._electing = True
            self.world.after(self.cluster.election_delay(len(self.replicas)), self._elect)

    def _elect(self) -> None:
        self._electing = False
        leader = self.leader()
        if leader is not None and self._has_quorum(leader) and leader.term == self.term:
            return
        replaced = any(each.leads for each in self.replicas)  # one that may go on
        wait = self._alone + SHORTEST_ELECTION - self.world.now if self._alone is not None and replaced else 0.0
        if wait > 0:
            self._electing = True
            self.world.after(wait + self.world.random.uniform(0.0, 3.0), self._elect)
            return
        able = [each for each in self.replicas if each.runs and self._has_quorum(each)]
        if not able:
            if any(each.runs for each in self.replicas) and len(self.replicas) > 1:
                self.check_later()
            return
        (avoided, preferred), self.avoided, self.preferred = (self.avoided, self.preferred), None, ""

        def rank(each: Replica) -> tuple[int, int, bool, bool]:
            last = each.log[-1].term if each.log else 0
            return last, len(each.log), each.server.name == preferred, each is not avoided

        best = max(able, key=rank)
        self.term += 1
        if best.leads:
            best.step_down("it begins anew")
        best.lead(self.term)

    def check_later(self) -> None:
        """Look again in a while."""
        if not self._electing:
            self._electing = True
            self.world.after(2.0, self._elect)

    def elect_at_once(self) -> None:
        """Have the first replica lead without an election, before a history begins."""
        self.term = 1
        chosen = self.world.random.choice(self.replicas)
        for each in self.replicas:
            each.term = 1
        chosen.lead(1)
