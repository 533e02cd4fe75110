"""Random histories of one stream, held with real servers and with the model: what do they still know after an upheaval?

A conversation (:mod:`tests.simulation.conversation`) is with a server that runs. Here the server ends and begins, the
stream is edited, purged, drained, backed up and restored, its clock is set, its ids expire, its leader changes. After
each such event the same message ids are published again. Alike has to be: which of them are duplicates, of which
sequence; what STREAM.INFO says; what the messages are, and whether their times rise.

    python -m tests.simulation.upheavals --seeds 200 --server 2.12     # also --cluster, --clock, --slow, --leaf

With ``--leaf`` there are a hub and a leaf node, each with a JetStream domain of its own and a stream of the same name
that hears the same subjects. What is published is stored by both; either may be away, restored, edited, drained alone.

What servers do, where that is not obvious:

====================================  =================================================================================
a server that begins                  knows the ids of messages that are there, within the window, and no others: from
                                      the first message on that is not older; of two with one id the last one. The id
                                      is forgotten with the first one
                                      2.11.10, 2.11.11, 2.12.1 to 2.12.3: looks for that one by halves, and takes a
                                      removed message for an older one
ids                                   are forgotten by a timer, which looks at the clock: one that is set ahead takes
                                      none away until then; one that is set back has them known for longer
a server that was killed              reads what limits had removed from its disk, and looks at its limits anew, first
                                      at max_msgs, then at those of a subject. So messages come back in the place of
                                      such as were deleted, purged, or let go of a limit that was raised; and others
                                      are gone, which no limit had removed
                                      Where the last message was deleted and others are left, it has no last_ts, and
                                      knows no id
a restored stream                     2.15: knows no id until its server begins again, and its last_ts is that of the
                                      last message that is there. Before: knows those of its messages
a new replica                         knows the ids of messages that are there, and has no last_ts where it is empty
a replica that was away               after the others have compacted their logs: knows the ids of what it had when it
                                      began, and of what the leader still has. Where that is nothing, its last_ts is
                                      that of the last message that it has stored itself
created                               2.15: new for a restored stream. Before 2.14: the time at which the server that
                                      runs has begun, after an edit and another start, and for a restored stream
max_msgs_per_subject edited           before 2.14: where there was none, looked at with the next message of a subject,
                                      at the next start, or by a restore
first_ts                              2.10: 1970-01-01T00:00:00Z where the last message was acknowledged or deleted
two domains                           each stream answers what is published, at either server, and names its domain.
                                      Mostly the nearer one is first, not always. A refusal names no domain
                                      CREATE does not name the domain; UPDATE, INFO and the account do
                                      $JS.hub.API and $JS.leaf.API mean the same at both, $JS.API the server's own.
                                      For a domain that is away nobody answers: 503, as for one that never was
                                      each stream has ids and sequences of its own: what it has missed while it was
                                      away it never gets; what is a duplicate for one of them the other may store
acknowledgements in two domains       that of a delivery is heard in both, since $JS.ACK names no domain: if a consumer
                                      of that name has a message of that sequence under way, it is acknowledged too,
                                      and gone from a work queue. A consumer that has come past the sequence answers,
                                      another one says nothing
leader, leader_since                  of a server alone: no leader in answers to CREATE and UPDATE. In a cluster, one
                                      replica has a leader and no leader_since
====================================  =================================================================================
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from spark_nats.embedded import NatsServer
from tests.servers import ClockServer, binary_of, end, free_ports
from tests.servers import Cluster as RealCluster
from tests.simulation.conversation import Line, SocketLine
from tests.simulation.line import ModelSite
from tests.simulation.server import Backup

SERVERS = {"2.10": "2.10.26", "2.11": "2.11.11", "2.12": "2.12.8", "2.14": "2.14.6", "2.15": "2.15.1"}
"""Versions that are asked, by the names that the command takes."""
EVENTS = 5
"""Events of a history, about."""
PATIENCE = 5.0
"""Seconds for which a real server is asked again for what the model has said: it does some things a moment later."""
QUIET = 0.1
"""Seconds after which nothing more is awaited where nobody knows how much comes."""
_SECOND = 10**9
SIDES = ("hub", "leaf")
"""The domains of a hub and of its leaf node."""
_IDS = 8
_CHUNK = 128 * 1024
_HELLO = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB in.* 1\r\n'
_UNAVAILABLE = 10008
_NEVER = ("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z")


class Move(NamedTuple):
    """Something that is done or asked.

    Attributes:
        what: which, as :class:`Player` calls it.
        arguments: of it.
        again: whether to ask until the answer is what the model has said: servers do some things a moment later.
    """

    what: str
    arguments: dict[str, Any]
    again: bool = False

    def __str__(self) -> str:
        return " ".join([self.what, *(f"{name}={value}" for name, value in self.arguments.items())])


# What is done


class _Story:
    """Makes up a history."""

    def __init__(
        self, seed: int, version: tuple[int, int], replicas: int, cluster: bool, clock: bool, slow: bool
    ) -> None:
        self.random = random.Random(f"upheavals {seed}")
        self.name = f"S{seed}"  # another one each time: what is left of a deleted stream would be another matter
        self.version = version
        self.replicas = replicas
        self.cluster = cluster
        self.clock = clock
        self.slow = slow
        self.moves: list[Move] = []
        kinds = ["plain", "limits", "subject", "subject", "new", "workqueue", "workqueue", "interest"]
        if version >= (2, 12):
            kinds.append("counter")
        if cluster:  # a new leader that knows no consumer yet drops what an interest stream is sent, now and then
            kinds.remove("interest")
        self.kind = self.random.choice(kinds)
        self.config = self._config()
        self.keys = ["a", "b", "c.d"]
        self.published: list[tuple[str, str]] = []  # ids with their keys, each once
        self.purgers = 0

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"name": self.name, "subjects": [f"{self.name}.>"], "duplicate_window": 600 * _SECOND}
        match self.kind:
            case "limits":
                config["max_msgs"] = self.random.randint(2, 6)
            case "subject":
                config["max_msgs_per_subject"] = self.random.choice([1, 1, 2])
            case "new":
                config |= {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True}
            case "workqueue" | "interest":
                config["retention"] = self.kind
            case "counter":
                config |= {"allow_msg_counter": True, "max_msgs_per_subject": self.random.choice([1, -1])}
        if self.random.random() < 0.5:
            config["allow_direct"] = True
        return config | ({"num_replicas": self.replicas} if self.replicas > 1 else {})

    def add(self, what: str, again: bool = False, **arguments: Any) -> None:
        self.moves.append(Move(what, arguments, again))

    def publish(self) -> None:
        """Publish some messages, most of them with ids that were used before or not."""
        for _ in range(self.random.randint(2, 5)):
            key = self.random.choice(self.keys)
            message_id = f"id{self.random.randrange(_IDS)}" if self.random.random() < 0.85 else ""
            if message_id and message_id not in dict(self.published):
                self.published.append((message_id, key))
            self.add("publish", key=key, id=message_id)

    def publish_again(self) -> None:
        """Publish all ids again, as a replay does."""
        for message_id, key in self.published:
            self.add("publish", key=key, id=message_id)

    def look(self) -> None:
        self.add("look", again=True)

    def purge(self) -> None:
        body: dict[str, Any] = self.random.choice(
            [{}, {}, {"filter": f"{self.name}.a"}, {"keep": 1}, {"filter": f"{self.name}.b", "keep": 1}, {"seq": 3}]
        )
        self.add("purge", **body)

    def delete(self) -> None:
        self.add("delete", sequence=self.random.randint(1, 6))

    def consume(self) -> None:
        self.add("consume", most=self.random.choice([1, 3, 100]))

    def edit(self) -> None:
        """Edit what may be edited; for the slow, the window is short from now on, or long again."""
        choices: list[dict[str, Any]] = [{"description": f"edited {len(self.moves)}"}]
        if self.kind in ("plain", "limits", "subject"):
            choices += [{"max_msgs": self.random.randint(1, 6)}, {"max_msgs": -1}]
            choices += [{"max_msgs_per_subject": self.random.randint(1, 2)}]
        choices += [{"subjects": [f"{self.name}.>", f"other{len(self.moves)}"]}]
        change = self.random.choice(choices)
        self.config |= change
        self.add("edit", config=dict(self.config))

    def restart(self) -> None:
        how = self.random.choice(["restart", "kill"])
        self.add(how if self.version >= (2, 12) else "restart")  # killed ones before bring back what was purged

    def restore(self) -> None:
        """Back up, mostly have something happen, and restore."""
        self.add("back up")
        if self.random.random() < 0.6:
            self.random.choice([self.publish, self.purge, self.consume])()
        self.add("restore")

    def expire(self) -> None:
        """Have ids expire half-way: some are older than the window then, and some are not."""
        self.config["duplicate_window"] = 4 * _SECOND
        self.add("edit", config=dict(self.config))
        self.publish()
        self.add("wait", seconds=3.0)
        self.publish()
        if self.random.random() < 0.5:
            self.restart()
        self.add("wait", seconds=1.7)

    def step_clock(self) -> None:
        self.add("clock", seconds=self.random.choice([-30, -3, 3, 30, 700]))

    def step_down(self) -> None:
        if self.config.get("num_replicas", 1) > 1:
            self.add("step down")

    def roll(self) -> None:
        """Restart all servers, one after the other."""
        self.add("roll")

    def be_late(self) -> None:
        """Have a follower that was away catch up with what the others do not have as messages any more, and lead."""
        if self.config.get("num_replicas", 1) == 1:
            return
        self.add("follower away")
        for _ in range(2):
            self.publish()
            self.random.choice([self.purge, self.delete, self.consume if self.kind == "workqueue" else self.purge])()
        if self.random.random() < 0.7:
            self.add("others begin anew")  # with a snapshot of what they hold in the place of their logs
            if self.random.random() < 0.5:
                self.publish()
        self.add("follower back")
        self.add("follower leads")

    def scale(self) -> None:
        """Have one replica, or three, and mostly another leader then."""
        self.config["num_replicas"] = 4 - self.config.get("num_replicas", 1)
        self.add("scale", config=dict(self.config))
        if self.config["num_replicas"] == 3 and self.random.random() < 0.7:
            self.add("step down")

    def tell(self) -> list[Move]:
        """Return the whole history."""
        self.add("create", config=dict(self.config))
        if self.kind in ("workqueue", "interest"):
            self.add("consumer")
        self.publish()
        self.publish()
        quiet = [self.purge, self.delete, self.edit, self.publish_again]
        if self.kind in ("workqueue", "interest"):
            quiet += [self.consume, self.consume]
        loud = [self.step_down, self.scale] if self.cluster else [self.restart, self.restart, self.restore]
        loud += [self.roll, self.be_late, self.be_late, self.be_late] if self.slow and self.cluster else []
        loud += [self.step_clock, self.step_clock] if self.clock else []
        loud += [self.expire] if self.slow and not self.cluster else []
        for _ in range(EVENTS):
            for _ in range(self.random.choice([0, 1, 1, 2])):
                self.random.choice(quiet)()
            self.random.choice(loud)()
            self.look()
            self.publish_again()
            self.look()
            if self.random.random() < 0.5:
                self.publish()
        return self.moves


class _LeafStory(_Story):
    """Makes up a history of two streams of one name, in the domains of a hub and of its leaf node."""

    def __init__(self, seed: int, version: tuple[int, int]) -> None:
        super().__init__(seed, version, replicas=1, cluster=False, clock=False, slow=False)
        kinds = ["plain", "limits", "subject", "new", "workqueue", "workqueue"]
        counts = version >= (2, 12) and self.random.random() < 0.1
        self.kinds, self.configs = dict[str, str](), dict[str, dict[str, Any]]()
        alike = self.random.random() < 0.5
        for side in SIDES:  # of counters either both have them or neither: what is sent is for both
            self.side = side
            self.kind = "counter" if counts else self.kind if alike and self.kinds else self.random.choice(kinds)
            self.config = self._config()
            self.kinds[side], self.configs[side] = self.kind, self.config
        self.client = self.random.choice(SIDES)

    def at(self, side: str) -> None:
        """Have what follows be done to one of the two."""
        self.configs[self.side] = self.config
        self.side, self.kind, self.config = side, self.kinds[side], self.configs[side]

    def add(self, what: str, again: bool = False, **arguments: Any) -> None:
        with_side = {} if what in ("publish", "look", "go") else {"side": self.side}
        super().add(what, again, **arguments, **with_side)

    def go(self) -> None:
        """Have the client go to the other server."""
        self.client = _other(self.client)
        self.add("go", to=self.client)

    def away(self) -> None:
        """Have one of the two end, and things happen to the other meanwhile."""
        away = self.side
        if self.client == away:
            self.go()
        self.add("end", kill=self._may_be_killed() and self.random.random() < 0.5)
        self.at(_other(away))
        for _ in range(self.random.randint(1, 3)):
            self.random.choice([self.publish, self.publish, *self._quiet()])()
        self.look()
        self.at(away)
        self.add("begin")

    def consume(self) -> None:
        if self._has_worker():
            super().consume()

    def both_work(self) -> None:
        """Have a worker of one take messages while the other's worker acknowledges messages with these numbers."""
        one = self.side
        self.add("take", most=self.random.randint(1, 3))
        self.at(_other(one))
        self.consume()
        self.look()
        self.at(one)
        self.add("acknowledge")

    def restart(self) -> None:
        if self._may_be_killed():
            super().restart()
        else:
            self.add("restart")

    def _may_be_killed(self) -> bool:
        """Tell whether nothing comes back that limits had removed: that is for the histories of a server alone."""
        return self.version >= (2, 12) and not {"max_msgs", "max_msgs_per_subject"} & self.config.keys()

    def _quiet(self) -> list[Callable[[], None]]:
        works = [self.consume] * 2 if self._has_worker() else []
        return [self.purge, self.delete, self.edit, self.publish_again, *works]

    def _has_worker(self) -> bool:
        return self.kind == "workqueue"

    def tell(self) -> list[Move]:
        for side in SIDES:
            self.at(side)
            self.add("create", config=dict(self.config))
            if self._has_worker():
                self.add("consumer")
        self.add("go", to=self.client)
        self.publish()
        self.publish()
        loud = [self.restart, self.away, self.away, self.restore, self.go]
        if set(self.kinds.values()) == {"workqueue"}:
            loud += [self.both_work] * 3
        for _ in range(EVENTS):
            for _ in range(self.random.choice([0, 1, 1, 2])):
                self.at(self.random.choice(SIDES))
                self.random.choice(self._quiet())()
            self.at(self.random.choice(SIDES))
            self.random.choice(loud)()
            self.look()
            self.publish_again()
            self.look()
            if self.random.random() < 0.5:
                self.publish()
        return self.moves


def _other(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


def leaf_moves(seed: int, server: str) -> list[Move]:
    """Return a history of a hub and a leaf node, each with a stream of the same name that hears the same subjects."""
    one, other = server.split(".")[:2]
    return _LeafStory(seed, (int(one), int(other))).tell()


def moves(
    seed: int, server: str, replicas: int = 1, cluster: bool = False, clock: bool = False, slow: bool = False
) -> list[Move]:
    """Return a history.

    Args:
        seed: of what is random in it, and nothing else is.
        server: version of the server.
        replicas: of the stream, at first.
        cluster: whether there are several servers.
        clock: whether clocks are set.
        slow: whether there is something that takes seconds: ids that expire, servers of a cluster that are restarted.
    """
    one, other = server.split(".")[:2]
    return _Story(seed, (int(one), int(other)), replicas, cluster, clock, slow).tell()


# Who does it


class Site(Protocol):
    """Servers, and what is done to them."""

    def line(self) -> Line:
        """Return a line to a server that runs."""

    def player(self) -> Player:
        """Return who plays with these servers."""

    def end(self, kill: bool) -> None:
        """End the only server."""

    def begin(self) -> None:
        """Have it begin."""

    def roll(self) -> None:
        """Restart all servers, one after the other."""

    def end_follower(self, leader: str) -> None:
        """End a server that does not lead."""

    def restart_others(self) -> None:
        """Restart the others, one after the other."""

    def start_follower(self) -> None:
        """Start the one that was ended."""

    @property
    def follower(self) -> str:
        """The name of the one that was ended."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def step_clock(self, seconds: float) -> None:
        """Step the clock of the only server."""

    def back_up(self, player: Player) -> Any:
        """Return a copy of the stream."""

    def restore(self, player: Player, copy: Any) -> None:
        """Make the stream, which was deleted, of a copy."""


class Answer(NamedTuple):
    """What came as an answer."""

    header: dict[str, str]
    status: str
    payload: bytes
    reply: str
    subject: str = ""


def _said(answer: Answer) -> Any:
    """Return what is compared of an answer to a message that was published."""
    if not answer.payload:
        return answer.status
    found = json.loads(answer.payload)
    if "error" in found:
        return found["error"]
    return {name: found[name] for name in ("seq", "duplicate", "val", "domain") if name in found}


class Player:
    """Does what a history says, and tells what came of it, in words that another server can be held to.

    Attributes:
        awaited: what is to come of what is done next, where that is known.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self.stream = ""
        self._known: dict[str, list[str]] = {}
        self._copy: Any = None
        self.awaited: str | None = None
        self._late: list[str] = []
        self._call()

    def _call(self) -> None:
        self._line = self._site.line()
        self._buffer = b""
        self._number = 0
        self._line.send(_HELLO)

    def ask(self, subject: str, body: bytes = b"", header: dict[str, str] | None = None) -> Answer:
        """Send a message and return the answer; an empty one when none comes."""
        self.send(subject, body, header)
        while (answer := self.next()).subject not in (f"in.{self._number}", ""):
            self._late.append(answer.subject)  # for somebody who has given up, or nobody has waited for
        return answer

    def send(
        self, subject: str, body: bytes = b"", header: dict[str, str] | None = None, reply: str | None = None
    ) -> None:
        """Send a message."""
        self._number += 1
        to = f"in.{self._number}" if reply is None else reply
        if header is None:
            self._line.send(f"PUB {subject} {to} {len(body)}\r\n".encode() + body + b"\r\n")
            return
        block = "".join(["NATS/1.0\r\n", *(f"{name}: {value}\r\n" for name, value in header.items()), "\r\n"]).encode()
        self._line.send(
            f"HPUB {subject} {to} {len(block)} {len(block) + len(body)}\r\n".encode() + block + body + b"\r\n"
        )

    def next(self, seconds: float = PATIENCE) -> Answer:
        """Return the next message, or an empty one when none comes."""
        while True:
            line, end_, rest = self._buffer.partition(b"\r\n")
            operation, *words = line.split() if end_ else [b""]
            if operation in (b"MSG", b"HMSG") and len(rest) >= int(words[-1]) + 2:
                size, block = int(words[-1]), b""
                self._buffer = rest[size + 2 :]
                if operation == b"HMSG":
                    block = rest[: int(words.pop(-2))]
                lines = block.decode().split("\r\n")
                found = {name: value.strip() for name, _, value in (each.partition(":") for each in lines[1:]) if name}
                reply = words[2].decode() if len(words) == 4 else ""
                return Answer(
                    found, lines[0].removeprefix("NATS/1.0").strip(), rest[len(block) : size], reply, words[0].decode()
                )
            if end_ and operation not in (b"MSG", b"HMSG"):
                self._buffer = rest
                if operation == b"PING":
                    self._line.send(b"PONG\r\n")
                continue
            data = self._line.receive(seconds)
            if not data:
                return Answer({}, "silence", b"", "")
            self._buffer += data

    _prefix = "$JS.API"

    def api(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask JetStream, until it has a leader that answers."""
        for _ in range(600):
            answer = self.ask(f"{self._prefix}.{operation}", json.dumps(body or {}).encode())
            found: dict[str, Any] = json.loads(answer.payload) if answer.payload else {"nothing": answer.status}
            if found.get("error", {}).get("err_code") != _UNAVAILABLE:
                break
            self._site.wait(0.1)
        return found

    def _named(self, kind: str, value: str | None) -> str:
        """Return a name for what differs from server to server: the same for the same value."""
        if value is None or value in _NEVER:
            return "none" if value is None else "never"
        known = self._known.setdefault(kind, [])
        if value not in known:
            known.append(value)
        return f"{kind} {known.index(value) + 1}"

    def do(self, move: Move) -> str:
        """Do something; return what came of it."""
        method = getattr(self, "_do_" + move.what.replace(" ", "_"))
        found = method(**move.arguments)
        return json.dumps(found, sort_keys=True)

    # The moves

    def _do_create(self, config: dict[str, Any]) -> Any:
        self.stream = config["name"]
        return self._described(self.api(f"STREAM.CREATE.{self.stream}", config))

    def _do_edit(self, config: dict[str, Any]) -> Any:
        return self._described(self.api(f"STREAM.UPDATE.{self.stream}", config))

    def _do_scale(self, config: dict[str, Any]) -> Any:
        found = self._described(self.api(f"STREAM.UPDATE.{self.stream}", config))
        self._settle()
        return found.get("error")

    def _settle(self) -> str:
        """Wait until a leader has all its followers; return its name."""
        for _ in range(600):
            info = self.api(f"STREAM.INFO.{self.stream}")
            cluster = info.get("cluster", {})
            others = cluster.get("replicas") or []
            wanted = info.get("config", {}).get("num_replicas", 0)
            ready = cluster.get("leader") and len(others) == wanted - 1 and all(each["current"] for each in others)
            if ready and info["state"]["consumer_count"] == self._consumers and self._consumer_is_led():
                return str(cluster["leader"])
            self._site.wait(0.1)
        raise AssertionError(f"the stream does not settle: {info}")

    _consumers = 0

    def _consumer_is_led(self) -> bool:
        return not self._consumers or "leader" in self.api(f"CONSUMER.INFO.{self.stream}.D").get("cluster", {})

    def _do_consumer(self) -> Any:
        self._consumers = 1
        config = {
            "name": "D",
            "durable_name": "D",
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "ack_wait": 600 * _SECOND,
        }
        return self.api(f"CONSUMER.CREATE.{self.stream}.D", {"stream_name": self.stream, "config": config}).get("error")

    def _do_publish(self, key: str, id: str) -> Any:
        return _said(self.ask(f"{self.stream}.{key}", *self._message(id)))

    def _message(self, id: str) -> tuple[bytes, dict[str, str] | None]:
        header = {"Nats-Msg-Id": id} if id else {}
        if self._counts:
            header["Nats-Incr"] = "1"
        return b"" if self._counts else b"x", header or None

    _counts = False

    def _do_purge(self, **body: Any) -> Any:
        found = self.api(f"STREAM.PURGE.{self.stream}", body)
        return found.get("error", found.get("purged"))

    def _do_delete(self, sequence: int) -> Any:
        return self.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": sequence}).get("success", "is not there")

    def _do_consume(self, most: int) -> Any:
        """Take messages, and acknowledge each."""
        taken = self._take(most)
        for reply in taken:
            self.ask(reply, b"+ACK")
        return _sequences(taken)

    def _take(self, most: int) -> list[str]:
        """Take messages; return the subjects on which each may be acknowledged."""
        body = json.dumps({"batch": most, "no_wait": True}).encode()
        self.send(f"{self._prefix}.CONSUMER.MSG.NEXT.{self.stream}.D", body)
        taken: list[str] = []
        while len(taken) < most:
            answer = self.next()
            if not answer.reply.startswith("$JS.ACK."):
                break
            taken.append(answer.reply)
        return taken

    def _do_restart(self) -> None:
        self._begin_anew(False)

    def _do_kill(self) -> None:
        self._begin_anew(True)

    def _begin_anew(self, kill: bool) -> None:
        self._line.close()
        self._site.end(kill)
        self._site.begin()
        self._call()

    def _do_roll(self) -> None:
        self._line.close()
        self._site.roll()
        self._call()
        self._settle()

    _follower_away = False

    def _do_follower_away(self) -> None:
        self._follower_away = True
        leader = self._settle()
        self._line.close()
        self._site.end_follower(leader)
        self._call()

    def _do_others_begin_anew(self) -> None:
        self._line.close()
        self._site.restart_others()
        self._call()
        for _ in range(600):
            if self.api(f"STREAM.INFO.{self.stream}").get("cluster", {}).get("leader") and self._consumer_is_led():
                break
            self._site.wait(0.1)

    def _do_follower_back(self) -> None:
        self._site.start_follower()
        self._settle()

    def _do_follower_leads(self) -> None:
        for _ in range(60):
            if self._settle() == self._site.follower:
                return
            self.api(f"STREAM.LEADER.STEPDOWN.{self.stream}", {"placement": {"preferred": self._site.follower}})
        raise AssertionError("another one leads again and again")

    def _do_wait(self, seconds: float) -> None:
        self._site.wait(seconds)

    def _do_clock(self, seconds: float) -> None:
        self._site.step_clock(seconds)

    def _do_step_down(self) -> Any:
        """Have another replica lead: servers choose the same one again now and then."""
        before = leader = self._settle()
        while leader == before:
            found = self.api(f"STREAM.LEADER.STEPDOWN.{self.stream}").get("error")
            leader = self._settle()
        return found

    @property
    def _place(self) -> Site:
        """Where something is done."""
        return self._site

    def _do_back_up(self) -> None:
        self._copy = self._place.back_up(self)

    def _do_restore(self) -> Any:
        deleted = self.api(f"STREAM.DELETE.{self.stream}").get("success")
        self._place.restore(self, self._copy)
        return deleted

    # What is looked at

    def _do_look(self) -> Any:
        """Say what the stream is, and what it holds."""
        info = self.api(f"STREAM.INFO.{self.stream}")
        found: dict[str, Any] = {"info": self._described(info), "messages": []}
        if "state" not in info:
            return found
        first, last = info["state"]["first_seq"], info["state"]["last_seq"]
        before = ""
        for sequence in range(first, last + 1):
            got = self.api(f"STREAM.MSG.GET.{self.stream}", {"seq": sequence})
            if "message" not in got:
                continue
            message = got["message"]
            rises, before = before < _padded(message["time"]), _padded(message["time"])
            found["messages"].append(
                [
                    *(sequence, message["subject"].partition(".")[2], self._named("time", message["time"]), rises),
                    base64.b64decode(message.get("data", "")).decode(),
                ]
            )
        if info["config"].get("allow_direct"):
            if info["config"]["num_replicas"] > 1:
                self._site.wait(0.3)  # any replica answers, which may lag
            got_directly = self.ask(f"{self._prefix}.DIRECT.GET.{self.stream}", json.dumps({"seq": last}).encode())
            found["directly"] = [got_directly.status, got_directly.header.get("Nats-Sequence")]
        return found

    def _described(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return what is compared of an answer about the stream."""
        if "error" in info or "state" not in info:
            return {"error": info.get("error", info)}
        self._counts = bool(info["config"].get("allow_msg_counter"))
        state, cluster = info["state"], info.get("cluster", {})
        return {
            "created": self._named("created", info["created"]),
            "state": {
                **{name: state.get(name, 0) for name in ("messages", "first_seq", "last_seq", "num_deleted")},
                "consumers": state["consumer_count"],
                "first_ts": self._named("time", state["first_ts"]),
                "last_ts": self._named("time", state["last_ts"]),
            },
            "window": info["config"]["duplicate_window"],
            "domain": info.get("domain"),
            "led": ["leader" in cluster, "leader_since" in cluster, len(cluster.get("replicas") or [])],
        }

    def clean_up(self) -> None:
        """Delete the stream, and end."""
        if self._follower_away:
            self._site.start_follower()
        deleted = self.api(f"STREAM.DELETE.{self.stream}")
        assert deleted.get("success"), deleted
        self._line.close()


def _sequences(taken: Sequence[str]) -> list[int]:
    return [int(reply.split(".")[-4]) for reply in taken]


class LeafPlayer(Player):
    """Plays with a hub and its leaf node, as a client of one of them; what is done to a side names it."""

    def __init__(self, sides: LeafPlace) -> None:
        self._sides = sides
        self._taken: list[str] = []
        self._down = ""
        self._client = self._at = "hub"
        super().__init__(sides.hub)

    def do(self, move: Move) -> str:
        arguments = dict(move.arguments)
        self._turn_to(arguments.pop("side", self._client))
        return super().do(move._replace(arguments=arguments))

    @property
    def _place(self) -> Site:
        place: Site = getattr(self._sides, self._at)
        return place

    def _turn_to(self, side: str) -> None:
        self._at, self._prefix = side, f"$JS.{side}.API"

    def _named(self, kind: str, value: str | None) -> str:
        return super()._named(f"{self._at} {kind}", value)

    def _all(self, found: Callable[[list[Answer]], Any], questions: int = 1) -> Any:
        """Return what is made of all answers to the last questions: those that are awaited, or come soon."""
        answers: list[Answer] = []
        asked = [f"in.{self._number - i}" for i in range(questions)]
        seconds = QUIET if self.awaited is None else PATIENCE
        while self.awaited is None or json.dumps(found(answers), sort_keys=True) != self.awaited:
            answer = self.next(seconds)
            if not answer.subject:
                break
            if answer.subject in asked:
                answers.append(answer)
            else:
                self._late.append(answer.subject)
        return found(answers)

    def _do_publish(self, key: str, id: str) -> Any:
        self.send(f"{self.stream}.{key}", *self._message(id))
        return self._all(lambda answers: sorted(map(_said, answers), key=json.dumps))

    def _do_go(self, to: str) -> None:
        self._line.close()
        self._client, self._site = to, getattr(self._sides, to)
        self._call()
        self._join()

    def _begin_anew(self, kill: bool) -> None:
        self._do_end(kill)
        self._do_begin()

    def _do_end(self, kill: bool) -> None:
        self._down = self._at
        if self._client == self._at:
            self._line.close()
        self._place.end(kill)

    def _do_begin(self) -> None:
        self._down = ""
        self._place.begin()
        if self._client == self._at:
            self._call()
        self._join()

    def _join(self) -> None:
        """Wait until what is sent to either side is heard at the other: both refuse a message then."""
        if self._down:
            return
        late = list(self._late)
        for _ in range(600):
            self.send(f"{self.stream}.a", b"x", {"Nats-Expected-Stream": "none"})
            came: list[str] = []
            while came.count(f"in.{self._number}") < len(SIDES) and (answer := self.next(QUIET)).subject:
                came.append(answer.subject)
            if came.count(f"in.{self._number}") == len(SIDES):
                self._late = late
                return
        raise AssertionError("hub and leaf do not come together")

    def _do_restore(self) -> Any:
        found = super()._do_restore()
        self._join()
        return found

    def _do_consume(self, most: int) -> Any:
        return self._acknowledge(self._take(most))

    def _do_take(self, most: int) -> Any:
        self._taken = self._take(most)
        return _sequences(self._taken)

    def _do_acknowledge(self) -> Any:
        return self._acknowledge(self._taken)

    def _acknowledge(self, taken: Sequence[str]) -> Any:
        """Acknowledge messages; tell how often each acknowledgement is answered."""
        first = self._number + 1
        for reply in taken:
            self.send(reply, b"+ACK")

        def answered(answers: list[Answer]) -> Any:
            subjects = [each.subject for each in answers]
            return [[sequence, subjects.count(f"in.{first + i}")] for i, sequence in enumerate(_sequences(taken))]

        return self._all(answered, len(taken))

    def _do_look(self) -> Any:
        found: dict[str, Any] = {
            "late": len(self._late),
            "here": self._domain_of("$JS.API"),
            "none": self._domain_of("$JS.none.API"),
        }
        for side in SIDES:
            self._turn_to(side)
            found[side] = {"account": self._domain_of(self._prefix), **super()._do_look()}
            if self._consumers and "state" in found[side]["info"]:
                worker = self.api(f"CONSUMER.INFO.{self.stream}.D")
                found[side]["worker"] = worker.get("error", worker.get("num_ack_pending"))
        return found

    def _domain_of(self, prefix: str) -> str | None:
        """Return the domain of who answers for a prefix."""
        answer = self.ask(f"{prefix}.INFO")
        return json.loads(answer.payload).get("domain") if answer.payload else answer.status

    def clean_up(self) -> None:
        if self._down:
            self._turn_to(self._down)
            self._do_begin()
        for side in SIDES:
            self._turn_to(side)
            assert self.api(f"STREAM.DELETE.{self.stream}").get("success")
        self._line.close()


def _padded(time_text: str) -> str:
    """Return a time so that texts are in its order."""
    whole, _, fraction = time_text.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}"


class ModelPlace:
    """A :class:`Site` of model servers."""

    def __init__(self, version: str, servers: int = 1, site: ModelSite | None = None) -> None:
        self._site = site or ModelSite(version, servers)

    def player(self) -> Player:
        return Player(self)

    def line(self) -> Line:
        return self._site.line(next(i for i, each in enumerate(self._site.cluster.servers) if each.up))

    def end(self, kill: bool) -> None:
        (server,) = self._site.cluster.servers
        self.wait(0.1)
        server.stop(in_order=not kill)

    def begin(self) -> None:
        (server,) = self._site.cluster.servers
        self.wait(0.1)
        server.start()
        self.wait(2.0)

    def roll(self) -> None:
        for server in self._site.cluster.servers:
            server.stop(in_order=True)
            self.wait(1.0)
            server.start()
            self.wait(15.0)

    def end_follower(self, leader: str) -> None:
        self.wait(0.1)
        self._follower = next(each for each in self._site.cluster.servers if each.name != leader)
        self._follower.stop(in_order=True)
        self.wait(1.0)

    def restart_others(self) -> None:
        self.wait(0.1)
        for server in self._site.cluster.servers:
            if server is not self._follower:
                server.stop(in_order=True)
                self.wait(1.0)
                server.start()
                self.wait(15.0)

    def start_follower(self) -> None:
        self._follower.start()
        self.wait(15.0)

    @property
    def follower(self) -> str:
        return self._follower.name

    def wait(self, seconds: float) -> None:
        self._site.wait(seconds)

    def step_clock(self, seconds: float) -> None:
        (server,) = self._site.cluster.servers
        server.clock_offset += seconds

    def back_up(self, player: Player) -> Backup:
        return self._site.cluster.back_up(player.stream)

    def restore(self, player: Player, copy: Backup) -> None:
        self.wait(0.1)
        self._site.cluster.restore(copy)
        self.wait(2.0)


class RealPlace:
    """A :class:`Site` of real servers: one, or a cluster."""

    def __init__(self, servers: Sequence[NatsServer], cluster: RealCluster | None = None) -> None:
        self._servers = servers
        self._cluster = cluster

    def line(self) -> Line:
        return SocketLine(next(each.port for each in self._servers if each.running))

    def player(self) -> Player:
        return Player(self)

    def end(self, kill: bool) -> None:
        (server,) = self._servers
        end(server, signal.SIGKILL if kill else signal.SIGTERM)

    def begin(self) -> None:
        (server,) = self._servers
        server.start()

    def roll(self) -> None:
        assert self._cluster is not None
        for server in self._servers:
            self._cluster.restart(server)

    def end_follower(self, leader: str) -> None:
        assert self._cluster is not None
        self._follower = next(each for i, each in enumerate(self._servers) if leader != f"n{i}")
        self._cluster.end(self._follower)

    def restart_others(self) -> None:
        assert self._cluster is not None
        for server in self._servers:
            if server is not self._follower:
                self._cluster.restart(server)

    def start_follower(self) -> None:
        if not self._follower.running:
            self._follower.start()

    @property
    def follower(self) -> str:
        return f"n{self._servers.index(self._follower)}"

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def step_clock(self, seconds: float) -> None:
        (server,) = self._servers
        assert isinstance(server, ClockServer)
        server.step(seconds)

    def back_up(self, player: Player) -> tuple[dict[str, Any], list[bytes]]:
        """Do what ``nats stream backup`` does."""
        body = {"deliver_subject": "in.chunks", "chunk_size": _CHUNK}
        said = player.api(f"STREAM.SNAPSHOT.{player.stream}", body)
        assert "error" not in said, said
        chunks: list[bytes] = []
        while (answer := player.next()).payload:
            chunks.append(answer.payload)
            if answer.reply:
                player.send(answer.reply, reply="")
        return {"config": said["config"], "state": said["state"]}, chunks

    def restore(self, player: Player, copy: tuple[dict[str, Any], list[bytes]]) -> None:
        """Do what ``nats stream restore`` does."""
        described, chunks = copy
        said = player.api(f"STREAM.RESTORE.{player.stream}", described)
        assert "error" not in said, said
        for chunk in [*chunks, b""]:
            answer = player.ask(said["deliver_subject"], chunk)
            assert b'"error"' not in answer.payload, answer


@dataclass
class LeafPlace:
    """A hub, and a server that is its leaf node, each with a JetStream domain of its own."""

    hub: Site
    leaf: Site

    def player(self) -> Player:
        """Return who plays with both."""
        return LeafPlayer(self)

    @classmethod
    def of_model(cls, version: str) -> LeafPlace:
        """Return model servers."""
        hub = ModelSite(version, domain="hub")
        leaf = ModelSite(version, domain="leaf", hub=hub)
        return cls(ModelPlace(version, site=hub), ModelPlace(version, site=leaf))


@contextmanager
def real_leaf_place(version: str) -> Iterator[LeafPlace]:
    """Have a real hub and a real leaf node without streams."""
    binary = None if version == SERVERS["2.15"] else binary_of(version)
    port, *ports = free_ports(3)
    ends = [f'listen: "127.0.0.1:{port}"', f'remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ]']
    hub, leaf = (
        NatsServer(
            f"server_name: {side}\njetstream {{ domain: {side} }}\nleafnodes {{ {end_} }}",
            port=port,
            binary=binary,
            ready_timeout=60,
        )
        for side, end_, port in zip(SIDES, ends, ports, strict=True)
    )
    with hub, leaf:
        yield LeafPlace(RealPlace([hub]), RealPlace([leaf]))


@contextmanager
def real_place(version: str, cluster: bool = False, clock: bool = False) -> Iterator[RealPlace]:
    """Have real servers without streams: one, a cluster, or one whose clock can be stepped."""
    binary = None if version == SERVERS["2.15"] else binary_of(version)
    with tempfile.TemporaryDirectory() as directory:
        if cluster:
            with RealCluster(Path(directory)) as several:
                yield RealPlace(several.servers, several)
        elif clock:
            with ClockServer(clock=Path(directory, "clock"), port=free_ports(1)[0], ready_timeout=60) as one:
                yield RealPlace([one])
        else:
            with NatsServer(port=free_ports(1)[0], binary=binary, ready_timeout=60) as server:
                yield RealPlace([server])


Told = list[tuple[str, str]]


def play(site: Site | LeafPlace, history: Sequence[Move], expected: Told | None = None) -> Told:
    """Play a history; return what came of each move.

    Args:
        site: with servers that have no stream of this name.
        history: what is to be done.
        expected: what is to come of it: a server that is slow is asked again for that.
    """
    player, told = site.player(), Told()
    for i, move in enumerate(history):
        player.awaited = expected[i][1] if expected is not None else None
        found = player.do(move)
        deadline = time.monotonic() + PATIENCE
        while move.again and expected is not None and found != expected[i][1] and time.monotonic() < deadline:
            time.sleep(0.05)
            found = player.do(move)
        told.append((str(move), found))
        if expected is not None and found != expected[i][1]:
            break  # what comes now differs for that
    player.clean_up()
    return told


def differs(told: Told, expected: Told) -> str:
    """Return where a real server and the model first say something else, with what came before; empty: nowhere."""
    for i, (one, other) in enumerate(zip(told, expected, strict=False)):
        if one != other:
            before = "\n".join(f"  {what} -> {came}" for what, came in told[max(0, i - 40) : i])
            return f"{before}\n{one[0]}\n  server: {one[1]}\n  model:  {other[1]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.upheavals", description=__doc__)
    parser.add_argument("--server", default="2.15", choices=SERVERS, help="version of the real server")
    parser.add_argument("--seeds", type=int, default=20, help="how many to play")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--most", type=int, default=3, help="end after so many differences")
    parser.add_argument("--cluster", action="store_true", help="with three servers, 2.15 only")
    parser.add_argument("--clock", action="store_true", help="with a clock that is stepped, 2.15 only")
    parser.add_argument("--leaf", action="store_true", help="with a hub and a leaf node that have a stream of one name")
    parser.add_argument("--slow", action="store_true", help="also what takes seconds")
    given = parser.parse_args()
    version, began, asked, found = SERVERS[given.server], time.monotonic(), 0, []
    replicas = 3 if given.cluster else 1
    place = real_leaf_place(version) if given.leaf else real_place(version, given.cluster, given.clock)
    with place as real:
        for seed in range(given.first, given.first + given.seeds):
            stream_replicas = random.Random(seed).choice([1, 3]) if given.cluster else 1
            if given.leaf:
                history, model = leaf_moves(seed, version), LeafPlace.of_model(version)
            else:
                history = moves(seed, version, stream_replicas, given.cluster, given.clock, given.slow)
                model = ModelPlace(version, replicas)
            expected = play(model, history)
            told = play(real, history, expected)
            asked += len(told)
            if difference := differs(told, expected):
                found.append(seed)
                print(f"seed {seed}:\n{difference}\n", flush=True)
                if len(found) == given.most:
                    break
    seconds = time.monotonic() - began
    print(f"nats-server {version}: {asked} answers compared in {seconds:.0f} s; different: {found or 'none'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
