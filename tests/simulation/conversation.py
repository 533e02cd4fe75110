"""A random conversation with a server, made from a seed, to be held with several of them: they say the same.

:func:`steps` makes a conversation, as a client that sends what spark_nats sends and a bit more. :func:`transcript`
holds it and returns what was answered, as far as spark_nats looks at it: without times, and with the fields that it
reads. Two transcripts of the same conversation are equal, or the two servers differ in what matters.

What a server says, where that is not obvious:

====================================  ==================================================================================
an emptied stream                     first_seq is last_seq + 1; of a fresh one both are 0
bytes of a message in a file          30 + subject + payload, and 4 + header block if there is one; in memory 16 + all
PURGE {"seq": N}                      all before N; behind the end too: then the next message has sequence N
PURGE {"seq": 1}                      nothing; 2.11: everything
PURGE {"seq", "keep"}                 400 10003
MSG.GET behind the end                404 10037, also with next_by_subj; sequence 0 without a subject: 400 10003
MSG.DELETE of what is gone            a hole 400 10043; before first_seq and behind last_seq 500 10057
expected sequences and a known id     2.15: 10071 comes first; 2.11: the duplicate. Expected-Stream is first in both,
                                      Expected-Last-Msg-Id after the id in both. Ids survive a purge
discard new                           503 10077; no sequence is used, the id is not remembered
interest                              without consumers acknowledged with a sequence, and gone; with some kept for those
                                      whose filter matches and that begin at it or before (2.11: wherever they begin)
direct get                            404 where nothing matches, without EOB; max_bytes ends it behind the message that
                                      reaches them
a mirror                              answers direct gets of its origin too, under its own name, with the origin's
                                      sequences and without headers Nats-Expected-…; keeps what the origin removes
pull requests                         served in turn, a message each. 404 no_wait, after what there was; 408 expired, or
                                      no_wait with expires; 409 size, consumer deleted, batch completed where max_bytes
                                      has bytes left; 503 consumer missing; none when it was used up
a consumer's beginning                delivered is its start - 1, at least first_seq - 1, and at most last_seq
num_pending                           exact for a new consumer, but real servers count wrong, by several messages too
                                      many or too few, if they store messages just then (2.15: once in 150 times);
                                      later too large where limits or interest remove messages
RESET {"seq": N}                      the consumer's state, of which delivered and ack_floor are N - 1, behind the end
                                      too; silence where there is no such consumer. {"seq": 1} may leave them where
                                      they were. 400 10204 before the start of a consumer that has one
ack_floor                             of explicit acks moves over what was delivered; without acks it is left to chance
last_per_subject                      where one of the messages is gone, some pull requests end there and others do not
acks with a reply                     an empty message, after what was delivered twice, termed or unknown too
atomic batches                        an empty answer to each message, and the one that counts to the commit, where
                                      all expectations are looked at; a gap is refused at once
streams in a cluster                  the id is looked at before expected sequences; 2.11: that of a message which is
                                      then refused is 409 10158 afterwards. Where Expected-Last-Msg-Id was refused 2.15
                                      answers publishers no more (left out)
unknown subjects of the API           silence: somebody listens on $JS.API.>
====================================  ==================================================================================
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Version = tuple[int, int]
NEWEST: Version = (2, 15)
OLDEST: Version = (2, 11)

PATIENCE = 60.0
"""Seconds without anything after which what was to come is missed."""
STEPS = 70
"""Steps of a conversation, about; those that make and delete the streams come to them."""
_BATCHES, _RESETS = (2, 12), (2, 14)  # versions that know them
_EQUAL = 3  # answers in a row to a question that is asked until nothing changes any more
_ASKED = 30  # how often at least it is asked what several may answer
_MILLISECOND = 1_000_000
_SECOND = 1_000_000  # what the sid of a step's second subscription is more: whichever member of a queue group hears it
_SOON = 200 * _MILLISECOND  # when a pull request ends; what is there for it has to come before
_HELLO: dict[str, Any] = {
    "verbose": False,
    "pedantic": False,
    "lang": "python-arrow",
    "version": "0",
    "protocol": 1,
    "echo": True,
    "no_responders": True,
    "headers": True,
}


_KINDS = ["plain", "plain", "limits", "new", "bytes", "subject", "interest", "interest", "workqueue", "workqueue", "kv"]


class Line(Protocol):
    """What a conversation is held over."""

    def send(self, data: bytes) -> None:
        """Send bytes."""

    def receive(self, seconds: float) -> bytes:
        """Return what has arrived, or arrives first within so many seconds; nothing when nothing does."""

    def close(self) -> None:
        """Hang up."""


class SocketLine:
    """A line to a real server on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, seconds: float) -> bytes:
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return b""
        if not data:
            raise ConnectionError("the server has hung up")
        return data

    def close(self) -> None:
        self._socket.close()


# What is said


class Publication(NamedTuple):
    """A message to be sent. Its subject, headers and body may name what is known only by then.

    ``<last:X>`` is the sequence that was acknowledged last for the stream or subject X, 0 before;
    ``<delivery:N:K>`` the reply subject of delivery K (from 0) of step N; ``<consumer:N>`` the name of the consumer
    that the answer to step N describes. Where there is none the step is left out.

    Attributes:
        subject: where to.
        body: its payload.
        header: its headers; none at all when None.
        reply: whether an answer is wanted.
    """

    subject: str
    body: str = ""
    header: dict[str, str] | None = None
    reply: bool = True


class Ending(NamedTuple):
    """How it is known that a step is over.

    Attributes:
        step: of which step answers are counted.
        answers: how many there must be, heartbeats aside.
        messages: for how many messages pull requests were sent: each delivery is one, and a status stands for those
            that it says are pending, or all that are left.
        bytes: for how many bytes one was sent; the server does not say that it is used up to the last one.
        status: whether a status ends it.
    """

    step: int
    answers: int | None = None
    messages: int | None = None
    bytes: int | None = None
    status: bool = False

    def has_come(self, frames: Sequence[Frame]) -> bool:
        """Tell whether this is all, by what has come."""
        told = [frame.status for frame in frames if frame.code != 100]
        if self.status and any(told):
            return True
        if self.answers is not None:
            return len(told) >= self.answers
        if self.messages is None:
            return self.status is False
        left = self.messages
        if self.bytes is not None and sum(frame.size for frame in frames if not frame.status) == self.bytes:
            return True
        for frame in frames:
            if frame.code != 100:
                pending = frame.headers().get("Nats-Pending-Messages")
                left -= 1 if not frame.status else int(pending) if pending else left
        return left <= 0


@dataclass(frozen=True)
class Step:
    """One exchange.

    Attributes:
        number: of it in the conversation; its inbox and its sid are made of that.
        what: is done, in words.
        before: lines to be sent before the messages.
        messages: to be sent.
        endings: when it is over, beside the PONG.
        subscribes: whether its inbox is subscribed to.
        again: whether to ask until the answer does not change any more: servers do some things a moment later.
        several: whether several answer, any of whom may come first: it is asked until all have.
        unread: fields of the answer that are of no interest here, such as ``delivered.stream_seq``; ``pending`` is how
            many messages a delivery says that there are behind it.
    """

    number: int
    what: str
    before: tuple[str, ...] = ()
    messages: tuple[Publication, ...] = ()
    endings: tuple[Ending, ...] = ()
    subscribes: bool = True
    again: bool = False
    several: bool = False
    unread: frozenset[str] = frozenset()


def inbox(seed: int, number: int) -> str:
    """Return the inbox of a step."""
    return f"_INBOX.{seed}.{number}"


@dataclass
class _Stream:
    """What the one who talks knows of a stream that it has made."""

    name: str
    config: dict[str, Any]
    leaves: list[str]
    consumers: dict[str, dict[str, Any]] = field(default_factory=dict)
    published: int = 0
    removed: bool = False  # whether messages may have been removed

    @property
    def retention(self) -> str:
        return str(self.config.get("retention", "limits"))


class _Talk:
    """Makes up a conversation."""

    def __init__(self, seed: int, version: Version, replicas: int = 1) -> None:
        self.random = random.Random(f"conversation {seed}")
        self.seed = seed
        self.version = version
        self.replicas = replicas
        self.steps: list[Step] = []
        self.streams: dict[str, _Stream] = {}
        self._names = 0
        self._open: list[int] = []  # steps whose pull requests are still to end

    # Ways to say something

    def say(
        self,
        what: str,
        *messages: Publication,
        before: Sequence[str] = (),
        endings: Sequence[Ending] | None = None,
        again: bool = False,
        several: bool = False,
        subscribes: bool = True,
        unread: Iterable[str] = (),
    ) -> int:
        """Add a step; by default it is over when each message that wants an answer has one."""
        number = len(self.steps) + 1
        if endings is None:
            endings = [Ending(number, answers=sum(each.reply for each in messages))]
        floor = () if self.version >= _RESETS else ("ack_floor",)  # which 2.11 begins at 0
        self.steps.append(
            Step(
                number,
                what,
                tuple(before),
                messages,
                tuple(endings),
                subscribes,
                again,
                several,
                frozenset((*unread, *floor)),
            )
        )
        return number

    def ask(
        self,
        operation: str,
        body: dict[str, Any] | None = None,
        again: bool = False,
        unread: Iterable[str] = ("num_pending", "delivered.stream_seq"),
    ) -> int:
        """Add a request to JetStream's API; of consumers that are not new some numbers are not exact."""
        text = "" if body is None else json.dumps(body)
        message = Publication(f"$JS.API.{operation}", text)
        return self.say(f"{operation} {text}".strip(), message, again=again, unread=unread)

    def name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self.seed}x{self._names}"

    def some(self, *probabilities: float) -> list[bool]:
        return [self.random.random() < each for each in probabilities]

    def stream(self, *retentions: str) -> _Stream | None:
        found = [each for each in self.streams.values() if not retentions or each.retention in retentions]
        return self.random.choice(found) if found else None

    def any_stream(self) -> _Stream:
        return self.random.choice(list(self.streams.values()))

    def leaf(self, stream: _Stream) -> str:
        return self.random.choice(stream.leaves)

    def filter(self, stream: _Stream) -> str:
        """Return a subject or wildcard that matches some of a stream's messages, or none."""
        leaf = self.leaf(stream)
        return self.random.choice([leaf, leaf, leaf.rpartition(".")[0] + ".*", f"{stream.name}.nothing", ">"])

    def sequence(self, stream: _Stream) -> int:
        return min(self.random.randint(1, stream.published + 3) for _ in range(2))  # mostly one that it had

    def fence(self, stream: _Stream) -> Publication:
        """Return a message that a stream refuses after it has taken all before."""
        return Publication(self.leaf(stream), "", {"Nats-Expected-Stream": "NOBODY"})

    # Streams

    def make_stream(self, kind: str | None = None) -> None:
        name = self.name(self.random.choice("SQ"))
        config: dict[str, Any] = {"name": name, "subjects": [f"{name}.>"], "storage": "file"}
        leaves = [f"{name}.{leaf}" for leaf in ("a", "b", "c.d")]
        kind = kind or self.random.choice(_KINDS)
        match kind:
            case "plain":
                config["subjects"] = self.random.choice(
                    [[f"{name}.>"], [f"{name}.a", f"{name}.b", f"{name}.c.*"], [f"{name}.*", f"{name}.c.d"]]
                )
                if self.random.random() < 0.3:
                    config["storage"] = "memory"
                if self.random.random() < 0.3:
                    config |= {"duplicate_window": 60_000_000_000, "max_age": 3_600_000_000_000}
                if self.random.random() < 0.2:
                    config["max_consumers"] = 2
            case "limits":
                config["max_msgs"] = self.random.randint(2, 8)
            case "new":
                config |= {"max_msgs": self.random.randint(2, 8), "discard": "new"}
            case "bytes":
                config |= {"max_bytes": self.random.randint(80, 300), "discard": self.random.choice(["old", "new"])}
                if self.version < _BATCHES:
                    config["discard"] = "old"  # 2.11 refuses what would fill it to the last byte
            case "subject":
                config["max_msgs_per_subject"] = self.random.randint(1, 3)
                if self.random.random() < 0.3:
                    config |= {"discard": "new", "discard_new_per_subject": True}
            case "interest" | "workqueue":
                config["retention"] = kind
            case "kv":
                bucket, name = name, f"KV_{name}"
                leaves = [f"$KV.{bucket}.{key}" for key in ("k1", "k2", "offsets.0")]
                config = {
                    "name": name,
                    "subjects": [f"$KV.{bucket}.>"],
                    "max_msgs_per_subject": 1,
                    "discard": "new",
                    "allow_rollup_hdrs": True,
                    "deny_delete": True,
                    "allow_direct": True,
                }
        if kind != "kv":
            direct, atomic, small = self.some(0.7, 0.7, 0.1)
            if direct:
                config["allow_direct"] = True
            if atomic and self.version >= _BATCHES:
                config["allow_atomic"] = True
            if small and self.version >= _BATCHES:  # 2.11 looks at that after what a message expects
                config["max_msg_size"] = 60
        if self.replicas > 1:
            config["num_replicas"] = self.replicas
        self.streams[name] = _Stream(name, config, leaves, removed=kind not in ("plain", "kv"))
        self.ask(f"STREAM.CREATE.{name}", config)

    def remake_stream(self) -> None:
        stream = self.any_stream()
        name = self.name("S")
        other: list[tuple[str, dict[str, Any]]] = [
            (stream.name, stream.config),
            (stream.name, {**stream.config, "max_msgs": 77}),
            (name, {"name": name, "subjects": [stream.leaves[0]]}),
            (name, {"name": stream.name, "subjects": [name]}),
        ]
        if self.version >= _BATCHES:
            other.append((name, {"name": name, "max_massages": 1}))
        self.ask("STREAM.CREATE." + (choice := self.random.choice(other))[0], choice[1])

    def delete_stream(self) -> None:
        if len(self.streams) > 2 and self.random.random() < 0.5:
            self.ask(f"STREAM.DELETE.{self.streams.pop(self.any_stream().name).name}")
        self.ask(f"STREAM.{self.random.choice(['DELETE', 'INFO', 'PURGE'])}.{self.name('GONE')}")

    def look_at_stream(self) -> None:
        stream = self.any_stream()
        body: dict[str, Any] | None = None
        if self.random.random() < 0.5:
            body = {"subjects_filter": self.filter(stream), "offset": self.random.choice([0, 0, 1, 2, 9])}
        self.ask(f"STREAM.INFO.{stream.name}", body, again=True)

    def list_streams(self) -> None:
        stream = self.any_stream()
        match self.random.randrange(5):
            case 0:
                self.ask("STREAM.NAMES", {"offset": self.random.choice([0, 0, 1])})
            case 1:
                self.ask("STREAM.LIST", {"offset": self.random.choice([0, 0, 1])}, again=True)
            case 2:
                self.ask("INFO", again=True)
            case _:
                subject = self.random.choice([stream.leaves[0], stream.config["subjects"][0], "$KV.*.>", "no.such"])
                self.ask("STREAM.NAMES", {"subject": subject, "offset": 0})

    def purges_by_filter(self, stream: _Stream) -> bool:
        """Tell whether to purge a stream by a filter: consumers of 2.11 may then skip what is left."""
        return not stream.consumers or self.version >= _RESETS

    def remove(self) -> None:
        stream = self.any_stream()
        stream.removed = True
        sequence = self.sequence(stream)
        match self.random.randrange(6 if self.purges_by_filter(stream) else 3):
            case 0 | 1:
                # 2.11 counts what is deleted twice twice, and then takes its subject for empty; the same where a
                # consumer lets go of it.
                twice = self.random.randint(1, 2) if self.version >= _BATCHES else stream.retention == "limits"
                for _ in range(twice):
                    self.ask(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence})
            case 2:
                self.ask(f"STREAM.PURGE.{stream.name}", {"seq": max(2, sequence - 1)})
            case 3:
                self.ask(f"STREAM.PURGE.{stream.name}", {"seq": max(2, sequence), "filter": self.filter(stream)})
            case 4:
                body: dict[str, Any] = {"keep": self.random.randint(1, 3)}
                if self.random.random() < 0.6:
                    body["filter"] = self.filter(stream)
                if self.random.random() < 0.2:
                    body["seq"] = 3
                self.ask(f"STREAM.PURGE.{stream.name}", body)
            case 5:
                self.ask(f"STREAM.PURGE.{stream.name}", self.random.choice([None, {"filter": self.filter(stream)}]))
        self.ask(f"STREAM.INFO.{stream.name}", again=True)

    def get(self) -> None:
        stream = self.any_stream()
        sequence = self.sequence(stream)
        body: dict[str, Any] = self.random.choice(
            [
                {"seq": sequence},
                {"seq": sequence, "next_by_subj": self.filter(stream)},
                {"seq": sequence, "next_by_subj": ">"},
                {"seq": 0, "next_by_subj": ">"},
                {"last_by_subj": self.filter(stream)},
                {"last_by_subj": self.leaf(stream)},
                {"seq": 0},
            ]
        )
        if self.version >= _BATCHES and self.random.random() < 0.6:
            body["no_hdr"] = True
        if self.version < _BATCHES and body.get("last_by_subj") == ">":
            return  # of which 2.11 may find none once one was deleted
        self.ask(f"STREAM.MSG.GET.{stream.name}", body)

    def direct_get(self) -> None:
        stream = self.any_stream()
        if not stream.config.get("allow_direct") and self.random.random() < 0.7:
            return
        body: dict[str, Any] = {"seq": self.sequence(stream)}
        batch, bytes_, subject, last, empty = self.some(0.8, 0.5, 0.4, 0.2, 0.05)
        if batch:
            body["batch"] = self.random.randint(1, 8)
            if bytes_:
                body["max_bytes"] = self.random.choice([1, 60, 120, 1 << 20])
            if subject:
                body["next_by_subj"] = self.filter(stream)
            if empty:
                body = {"batch": 2}
        elif last:
            body = {"last_by_subj": self.leaf(stream)}
        again = self.replicas > 1  # any replica answers, which may lag
        self.get_directly(stream.name, body, again=again)

    def get_directly(self, name: str, body: dict[str, Any], again: bool = False, several: bool = False) -> None:
        text, number = json.dumps(body), len(self.steps) + 1
        ending = Ending(number, status=True, answers=None if "batch" in body else 1)
        message = Publication(f"$JS.API.DIRECT.GET.{name}", text)
        self.say(f"DIRECT.GET {name} {text}", message, endings=[ending], again=again, several=several)

    # Mirrors

    def make_mirror(self) -> None:
        """Have a mirror of the only stream, which answers direct gets of both."""
        (stream,) = self.streams.values()
        name = stream.name
        more: dict[str, Any] = self.random.choice(
            [
                {},
                {"filter_subject": f"{name}.a"},
                {"filter_subject": f"{name}.c.>"},
                {"subject_transforms": [{"src": f"{name}.>", "dest": f"{name}_OTHER.>"}]},
            ]
        )
        config = {"name": f"{name}_MIRROR", "mirror": {"name": name, **more}, "allow_direct": True}
        unread = ("config", "state", "created", "total", "offset")
        self.ask(f"STREAM.CREATE.{name}_MIRROR", config, unread=unread)

    def wait_for_mirror(self) -> None:
        """Ask the mirror, until it has all that it is to have."""
        (stream,) = self.streams.values()
        self.get_directly(f"{stream.name}_MIRROR", {"seq": 1, "batch": 1000}, again=True)

    def remove_what_is_copied(self) -> None:
        self.wait_for_mirror()
        self.remove()

    def get_from_either(self) -> None:
        (stream,) = self.streams.values()
        self.wait_for_mirror()
        start, leaf = self.sequence(stream), self.random.choice([self.leaf(stream), f"{stream.name}_OTHER.a"])
        bodies: list[dict[str, Any]] = [
            {"seq": 1, "batch": 1000},
            {"seq": start, "batch": self.random.randint(1, 8)},
            {"seq": start, "batch": 8, "next_by_subj": self.filter(stream)},
            {"seq": start},
            {"last_by_subj": leaf},
        ]
        self.get_directly(stream.name, self.random.choice(bodies), several=True)

    # Publishing

    def payload(self) -> str:
        return "x" * self.random.choice([0, 1, 3, 10, 10, 40])

    def publish(self) -> None:
        stream = self.any_stream()
        messages = []
        for _ in range(self.random.randint(1, 4) if self.replicas == 1 else 1):  # else two may be under way at once
            header = {"h": "v", "w": "ü w"} if self.random.random() < 0.3 else None
            if self.random.random() < 0.3:
                header = {"Nats-Msg-Id": f"id{self.random.randrange(6)}"}
            if self.random.random() < 0.1:
                header = {"Nats-Expected-Stream": stream.name, **(header or {})}
            silent = (
                self.random.random() < 0.15 and self.replicas == 1
            )  # a cluster refuses the fence before it is stored
            messages.append(Publication(self.leaf(stream), self.payload(), header, reply=not silent))
        if not all(message.reply for message in messages):
            messages.append(self.fence(stream))
        stream.published += len(messages)
        self.say(f"publish to {stream.name}", *messages)

    def expect(self) -> None:
        stream = self.any_stream()
        leaf = self.leaf(stream)
        header = {
            "Nats-Expected-Last-Sequence": self.random.choice([f"<last:{stream.name}>", "0", "3", "99"]),
            "Nats-Expected-Last-Subject-Sequence": self.random.choice([f"<last:{leaf}>", f"<last:{leaf}>", "0", "99"]),
            "Nats-Expected-Last-Msg-Id": self.random.choice(["id1", "id2", "nobody"]),
            "Nats-Expected-Stream": self.random.choice([stream.name, "OTHER"]),
        }
        chosen = self.random.choice([*header, "Nats-Expected-Last-Subject-Sequence"])
        if chosen == "Nats-Expected-Last-Msg-Id" and self.replicas > 1:
            return  # a stream in a cluster is silent afterwards
        kept = {chosen: header[chosen]}
        sequences = "Sequence" in chosen  # which 2.11 looks at after the id
        if self.random.random() < 0.4 and not (sequences and self.version < _BATCHES):
            kept["Nats-Msg-Id"] = f"id{self.random.randrange(6)}"
        if self.random.random() < 0.2 and self.version >= _BATCHES:
            kept["Nats-Expected-Stream"] = stream.name
        stream.published += 1
        self.say(f"publish to {stream.name} if {kept}", Publication(leaf, self.payload(), kept))

    def publish_oddly(self) -> None:
        stream = self.any_stream()
        headers: list[dict[str, str]] = [{"Nats-TTL": "100s"}, {"KV-Operation": "DEL"}]
        if self.purges_by_filter(stream):
            headers += [{"Nats-Rollup": "sub"}, {"Nats-Rollup": "all"}]
        if self.version >= _BATCHES:
            headers.append({"Nats-Incr": "1"})
        header = self.random.choice(headers)
        stream.published += 1
        self.say(f"publish to {stream.name} with {header}", Publication(self.leaf(stream), "", header))

    def publish_to_nobody(self) -> None:
        self.say("publish to nobody", Publication(self.name("nobody."), "x"))

    def publish_together(self) -> None:
        if self.version < _BATCHES:
            return
        allowing = [each for each in self.streams.values() if each.config.get("allow_atomic")]
        if not allowing and self.random.random() < 0.8:
            return
        stream = self.random.choice(allowing) if allowing else self.any_stream()
        batch = self.name("batch")
        size = self.random.randint(1, 5)
        wrong = self.random.choice(
            ["", "", "", "ids", "gap", "begin", "expect", "ids", "last", "abandon", "two", "stream"]
        )
        messages = []
        for i in range(1, size + 1):
            number = i + (wrong == "begin") + (wrong == "gap" and i > 1)
            header = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            leaf = self.leaf(stream)
            if i == size and wrong != "abandon":
                header["Nats-Batch-Commit"] = "1"
            if self.random.random() < 0.4 or wrong == "ids":
                header["Nats-Msg-Id"] = f"id{self.random.randrange(3)}" if wrong == "ids" else f"{batch}-{i}"
            if wrong == "expect" and i == size // 2 + 1:
                header["Nats-Expected-Last-Subject-Sequence"] = "99"
            if wrong == "two" and i > size - 2:
                leaf = stream.leaves[0]
                header["Nats-Expected-Last-Subject-Sequence"] = f"<last:{leaf}>"
            if wrong == "last" and i == size:
                header["Nats-Expected-Last-Msg-Id"] = "nobody"
            if wrong == "stream" and i == size:
                header["Nats-Expected-Stream"] = "OTHER"
            elif self.random.random() < 0.1 and i == 1:
                header["Nats-Expected-Last-Sequence"] = self.random.choice([f"<last:{stream.name}>", "99"])
            messages.append(Publication(leaf, self.payload(), header))
        stream.published += size
        self.say(f"publish {size} to {stream.name} together: {wrong or 'right'}", *messages)
        self.ask(f"STREAM.INFO.{stream.name}", again=True)

    # Consumers

    def make_consumer(self) -> None:
        stream = self.any_stream()
        durable = self.random.random() < (0.8 if stream.retention != "limits" else 0.3)
        name = self.name("D" if durable else "E")
        new = self.version >= _RESETS  # 2.11 does not always remove from an interest stream what such a consumer has
        config: dict[str, Any] = {"name": name}
        if durable:
            config |= {
                "durable_name": name,
                "ack_policy": self.random.choice(["explicit", "explicit", "all" if new else "explicit"]),
                "deliver_policy": "all",
                "metadata": {"spark-nats-owner": "one"},
            }
        else:
            config |= {
                "ack_policy": "none",
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": 60_000_000_000,
                "deliver_policy": self.random.choice(
                    ["by_start_sequence", "by_start_sequence", "all", "new", "last_per_subject"]
                ),
            }
            if stream.retention == "interest" and self.version < _RESETS:
                config["deliver_policy"] = "all"  # 2.11 keeps for others what comes before they begin, too
            if config["deliver_policy"] == "by_start_sequence":
                config["opt_start_seq"] = self.sequence(stream)
            if self.random.random() < 0.2:
                config["headers_only"] = True
            if self.random.random() < 0.1:
                config["max_batch"] = 3
        filters = [filter_ for filter_ in stream.leaves if self.random.random() < 0.5]
        if self.random.random() < 0.3:
            filters = [self.filter(stream)]
        if self.random.random() < 0.1 and self.version >= _BATCHES:  # 2.11 may skip messages of several wildcards
            filters += [self.filter(stream)]  # which may overlap
        if filters or config["deliver_policy"] == "last_per_subject":
            if len(filters) == 1 and self.random.random() < 0.4:
                config["filter_subject"] = filters[0]
            else:
                config["filter_subjects"] = filters or [">"]
        stream.consumers[name] = config
        self.create(stream, config, self.random.choice([None, "create"]), new=True)

    def create(self, stream: _Stream, config: dict[str, Any], action: str | None, new: bool) -> None:
        body = {"stream_name": stream.name, "config": config}
        if action is not None:
            body["action"] = action
        operation = f"CONSUMER.CREATE.{stream.name}.{config['name']}"
        if new:
            self.ask(operation, body, unread=())
        else:
            self.ask(operation, body)

    def remake_consumer(self) -> None:
        stream, config = self.consumer()
        if stream.retention == "workqueue" and self.version < _RESETS:
            return  # of two things that are wrong 2.11 says the other one
        changed = dict(config)
        match self.random.randrange(5):
            case 0:
                changed["metadata"] = {"spark-nats-owner": f"run {self.random.randrange(3)}"}
            case 1 if "opt_start_seq" in config:
                changed["opt_start_seq"] += 1
            case 2:
                changed["ack_policy"] = "none" if "durable_name" in config else "explicit"
            case 3:
                changed["name"] = self.name("E")
                changed.pop("durable_name", None)
        action = self.random.choice([None, "create", "update"])
        if changed["name"] != config["name"] and action != "update":
            stream.consumers[changed["name"]] = changed
        self.create(stream, changed, action, new=False)

    def consumer(self) -> tuple[_Stream, dict[str, Any]]:
        """Return a consumer; it may be one that was refused."""
        found = [(stream, config) for stream in self.streams.values() for config in stream.consumers.values()]
        return self.random.choice(found) if found else (self.any_stream(), {"name": "MISSING", "ack_policy": "none"})

    def look_at_consumer(self) -> None:
        stream, config = self.consumer()
        match self.random.randrange(8):
            case 0:
                self.ask(f"CONSUMER.INFO.{stream.name}.MISSING")
            case 1:
                self.ask(f"CONSUMER.LIST.{stream.name}", self.random.choice([None, {"offset": 1}]), again=True)
            case 2:
                stream.consumers.pop(config["name"], None)
                self.ask(f"CONSUMER.DELETE.{stream.name}.{config['name']}")
                if self.random.random() < 0.5:
                    self.ask(f"STREAM.INFO.{stream.name}", again=True)
            case _:
                self.ask(f"CONSUMER.INFO.{stream.name}.{config['name']}", again=True)

    def reset(self) -> None:
        if self.version < _RESETS:
            return
        durables = [
            (stream, config)
            for stream in self.streams.values()
            for config in stream.consumers.values()
            if "durable_name" in config and stream.retention != "workqueue"
        ]
        if not durables:
            return
        stream, config = self.random.choice(durables)
        # Where there is no such consumer nobody answers.
        info = self.ask(f"CONSUMER.INFO.{stream.name}.{config['name']}", again=True)
        body = json.dumps({"seq": max(2, self.sequence(stream))})
        subject = f"$JS.API.CONSUMER.RESET.{stream.name}.<consumer:{info}>"
        header = {"Nats-Required-Api-Level": self.random.choice(["4", "4", "4", "99"])}
        self.say(f"CONSUMER.RESET {config['name']} {body} {header}", Publication(subject, body, header))
        self.ask(f"STREAM.INFO.{stream.name}", again=True)
        self.ask(f"CONSUMER.INFO.{stream.name}.{config['name']}", again=True)

    def move(self) -> None:
        """Have an ephemeral consumer go on elsewhere, mostly, and pull from it."""
        found = [
            (stream, config)
            for stream in self.streams.values()
            for config in stream.consumers.values()
            if "durable_name" not in config and config["ack_policy"] == "none" and stream.retention == "limits"
        ]
        if found and self.version >= _RESETS:
            stream, config = self.random.choice(found)
            self.move_to(stream, config)
            self.pull_from(stream, config)

    def move_to(self, stream: _Stream, config: dict[str, Any]) -> None:
        info = self.ask(f"CONSUMER.INFO.{stream.name}.{config['name']}", again=True)
        body = json.dumps({"seq": self.sequence(stream)})
        subject = f"$JS.API.CONSUMER.RESET.{stream.name}.<consumer:{info}>"
        self.say(f"CONSUMER.RESET {config['name']} {body}", Publication(subject, body), again=True)

    def move_in_cluster(self) -> None:
        stream = self.any_stream()
        name, start = self.name("E"), self.random.randint(1, 3)
        config: dict[str, Any] = {"name": name, "ack_policy": "none", "deliver_policy": "by_start_sequence"}
        config |= {"mem_storage": True, "num_replicas": 1, "inactive_threshold": 60_000_000_000, "opt_start_seq": start}
        if self.random.random() < 0.5:
            config["filter_subjects"] = [self.leaf(stream)]
        self.ask(f"STREAM.INFO.{stream.name}", again=True)
        self.create(stream, config, None, new=False)  # its replica may still lack something
        for _ in range(2):
            self.move_to(stream, config)
            self.pull_from(stream, config)
        self.ask(f"CONSUMER.DELETE.{stream.name}.{name}")

    def pull(self) -> None:
        self.pull_from(*self.consumer())

    def pull_from(self, stream: _Stream, config: dict[str, Any]) -> None:
        if config.get("deliver_policy") == "last_per_subject" and stream.removed:
            return  # where one is gone it is left to chance whether a server goes on at once
        self.ask(f"CONSUMER.INFO.{stream.name}.{config['name']}", again=True)  # what was stored has reached it then
        batch = self.random.randint(1, 5)
        body: dict[str, Any] = {"batch": batch}
        bytes_, *_ = self.some(0.3)
        match self.random.randrange(8):
            case 0:
                body |= {"expires": _SOON}
            case 1:
                body |= {"expires": 4 * _SOON, "idle_heartbeat": _SOON}
            case 2:
                body |= {"expires": _SOON, "no_wait": True}
            case 3:
                body |= {"expires": _SOON, "idle_heartbeat": _SOON}  # too large
            case _:
                body |= {"no_wait": True}
        if bytes_ and config.get("deliver_policy") != "last_per_subject":  # what is too large may count as delivered
            body["max_bytes"] = self.random.choice([10, 70, 150, 1 << 20])
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.{config['name']}"
        text = json.dumps(body)
        number = len(self.steps) + 1
        twice = self.random.random() < 0.2 and "no_wait" not in body and "idle_heartbeat" not in body and not bytes_
        wanted = batch * (2 if twice else 1)
        publications = [Publication(subject, text)] * (2 if twice else 1)
        what = f"pull from {stream.name}.{config['name']} {text}{' twice' if twice else ''}"
        ending = Ending(number, messages=wanted, bytes=body.get("max_bytes"))
        exact = self.version >= _RESETS and not any(name.startswith("max_") for name in stream.config)
        exact = exact and stream.retention != "interest"
        self.say(what, *publications, endings=[ending], unread=() if exact else ["pending"])
        if config["ack_policy"] != "none":
            self.acknowledge(stream, config, number, wanted)
        elif stream.retention == "interest":
            self.ask(f"STREAM.INFO.{stream.name}", again=True)

    def acknowledge(self, stream: _Stream, config: dict[str, Any], number: int, batch: int) -> None:
        for k in range(batch):
            if self.random.random() < 0.6:
                body = self.random.choice(["+ACK", "+ACK", "", "-NAK", "+TERM", "+WPI"])
                if config["ack_policy"] == "all":
                    body = "+ACK"
                self.say(f"acknowledge delivery {k} of {number}: {body}", Publication(f"<delivery:{number}:{k}>", body))
        self.ask(f"STREAM.INFO.{stream.name}", again=True)
        self.ask(f"CONSUMER.INFO.{stream.name}.{config['name']}", again=True)

    def wait_for_news(self) -> None:
        """Ask before there is something; one who has asked may have gone meanwhile."""
        stream = self.stream("limits", "interest")
        if stream is None or stream.config.get("discard") == "new" or stream.config.get("max_consumers"):
            return
        if "max_bytes" in stream.config:
            return
        name, leaf = self.name("E"), self.leaf(stream)
        config: dict[str, Any] = {"name": name, "ack_policy": "none", "deliver_policy": "new", "filter_subject": leaf}
        config |= {"mem_storage": True, "num_replicas": 1, "inactive_threshold": 60_000_000_000}
        stream.consumers[name] = config
        self.create(stream, config, None, new=True)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.{name}"
        text = json.dumps({"batch": 2, "expires": 20_000 * _MILLISECOND})
        if self.random.random() < 0.3:
            gone = self.say(f"pull from {stream.name}.{name} and go", Publication(subject, text), endings=[])
            self.ask(f"CONSUMER.INFO.{stream.name}.{name}", again=True)
            self.say("go", before=[f"UNSUB {gone}"], subscribes=False)
        what, message = f"pull from {stream.name}.{name} {text}", Publication(subject, text)
        first = self.say(what, message, endings=[], unread=["pending"])
        self.ask(f"CONSUMER.INFO.{stream.name}.{name}", again=True)
        second = self.say(what, message, endings=[], unread=["pending"])
        self.ask(f"CONSUMER.INFO.{stream.name}.{name}", again=True)
        for k in range(1, 5):
            number = len(self.steps) + 1
            pulled = Ending((second, first)[k % 2], messages=(k + 1) // 2)  # they are served in turn
            if k == 4 and self.random.random() < 0.5:
                del stream.consumers[name]
                self.ask(f"CONSUMER.DELETE.{stream.name}.{name}")
                self.say("the consumer is gone", endings=[Ending(second, status=True)], subscribes=False)
                break
            message = Publication(leaf, f"news {k}")
            self.say("publish news", message, endings=[Ending(number, answers=1), pulled])
            stream.published += 1

    # Without JetStream

    def core(self) -> None:
        """Publish and subscribe."""
        name = self.name("core")
        number = len(self.steps) + 1
        kinds = [f"{name}.*", f"{name}.>", f"{name}.a", f"{name}.*.c", f"*.{name}"]
        subject = self.random.choice(kinds)
        limit = self.random.choice([0, 0, 1, 2])
        sids = [number]
        if limit == 0 and self.random.random() < 0.4:
            sids.append(number + _SECOND)
        before = [f"SUB {subject} workers {sid}" if len(sids) > 1 else f"SUB {subject} {sid}" for sid in sids]
        if limit:
            before.append(f"UNSUB {number} {limit}")
        messages = [
            Publication(f"{name}.{leaf}", self.payload(), self.random.choice([None, {"h": "v"}]), reply=False)
            for leaf in self.random.choices(["a", "b", "b.c", "a.c"], k=4)
        ]
        self.say(f"subscribe to {subject} (at most {limit})", *messages, before=before, endings=[], subscribes=False)
        if limit == 0:
            after = [Publication(f"{name}.a", "not heard", reply=False)]
            self.say("unsubscribe", *after, before=[f"UNSUB {sid}" for sid in sids], endings=[], subscribes=False)


def steps(seed: int, version: Version = NEWEST) -> list[Step]:
    """Return a conversation.

    Args:
        seed: of what is random in it, and nothing else is.
        version: what a server of this version does not know, or does otherwise, is left out.
    """
    talk = _Talk(seed, version)
    talk.ask("INFO", again=True)
    for kind in talk.random.sample(_KINDS, 3):
        talk.make_stream(kind)
    for _ in range(4):
        talk.publish()
        talk.make_consumer()
    acts = [
        (talk.publish, 14),
        (talk.expect, 8),
        (talk.publish_together, 6),
        (talk.publish_oddly, 3),
        (talk.publish_to_nobody, 1),
        (talk.make_stream, 1),
        (talk.remake_stream, 2),
        (talk.delete_stream, 2),
        (talk.look_at_stream, 5),
        (talk.list_streams, 3),
        (talk.remove, 4),
        (talk.get, 6),
        (talk.direct_get, 6),
        (talk.make_consumer, 6),
        (talk.remake_consumer, 3),
        (talk.look_at_consumer, 4),
        (talk.pull, 10),
        (talk.reset, 3),
        (talk.move, 4),
        (talk.wait_for_news, 1),
        (talk.core, 3),
    ]
    while len(talk.steps) < STEPS:
        (act,) = talk.random.choices([act for act, _ in acts], [weight for _, weight in acts])
        act()
    for name in list(talk.streams):
        talk.ask(f"STREAM.INFO.{name}", again=True)
        talk.ask(f"STREAM.DELETE.{name}")
    return talk.steps


def steps_in_cluster(seed: int) -> list[Step]:
    """Return a conversation about streams with three replicas; it is smaller, and about what they do otherwise."""
    talk = _Talk(seed, NEWEST, replicas=3)
    for kind in ("plain", talk.random.choice(["limits", "new", "subject"]), "kv"):
        talk.make_stream(kind)
    acts = [
        (talk.publish, 14),
        (talk.expect, 10),
        (talk.publish_together, 8),
        (talk.publish_oddly, 2),
        (talk.look_at_stream, 5),
        (talk.get, 6),
        (talk.direct_get, 6),
        (talk.move_in_cluster, 3),
    ]
    while len(talk.steps) < STEPS // 2:
        (act,) = talk.random.choices([act for act, _ in acts], [weight for _, weight in acts])
        act()
    for name in list(talk.streams):
        talk.ask(f"STREAM.INFO.{name}", again=True)
        talk.ask(f"STREAM.DELETE.{name}")
    return talk.steps


def steps_with_mirror(seed: int, version: Version = NEWEST) -> list[Step]:
    """Return a conversation about a stream and its mirror."""
    talk = _Talk(seed, version)
    name = talk.name("S")
    config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True}
    talk.streams[name] = _Stream(name, config, [f"{name}.{leaf}" for leaf in ("a", "b", "c.d")])
    talk.ask(f"STREAM.CREATE.{name}", config)
    for act in (talk.publish, talk.publish, talk.publish, talk.remove, talk.make_mirror, talk.get_from_either):
        act()
    while len(talk.steps) < STEPS // 2:
        talk.random.choice([talk.publish, talk.publish, talk.remove_what_is_copied, talk.get_from_either])()
    for each in (f"{name}_MIRROR", name):
        talk.ask(f"STREAM.DELETE.{each}")
    return talk.steps


# What is answered


class Frame(NamedTuple):
    """A message from the server."""

    subject: str
    sid: int
    reply: str
    block: str
    payload: bytes

    @property
    def size(self) -> int:
        """How many bytes of a pull request it takes."""
        return len(self.subject) + len(self.reply) + len(self.block.encode()) + len(self.payload)

    @property
    def status(self) -> str:
        """What stands behind the version in its header block, such as ``404 No Messages``."""
        return self.block.split("\r\n", 1)[0].removeprefix("NATS/1.0").strip()

    @property
    def code(self) -> int:
        """The code of its status, 0 when it has none."""
        return int(self.status[:3] or 0)

    def headers(self) -> dict[str, str]:
        """Return its headers."""
        lines = self.block.split("\r\n")[1:]
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


class _Listener:
    """Holds a conversation over a line."""

    def __init__(self, line: Line, seed: int) -> None:
        self._line = line
        self._seed = seed
        self._buffer = b""
        self._pongs = 0
        self.frames: dict[int, list[Frame]] = defaultdict(list)
        self.errors: list[str] = []
        self.last: dict[str, int] = defaultdict(int)

    def read(self) -> bool:
        """Take in what arrives; tell whether anything did."""
        data = self._line.receive(PATIENCE)
        self._buffer += data
        while b"\r\n" in self._buffer:
            line, _, rest = self._buffer.partition(b"\r\n")
            operation, *words = line.split()
            if operation in (b"MSG", b"HMSG"):
                size = int(words[-1])
                if len(rest) < size + 2:
                    break
                head = int(words.pop(-2)) if operation == b"HMSG" else 0
                reply = words[2].decode() if len(words) == 4 else ""
                frame = Frame(words[0].decode(), int(words[1]), reply, rest[:head].decode(), rest[head:size])
                self.frames[frame.sid % _SECOND].append(frame)
                rest = rest[size + 2 :]
            elif operation == b"PING":
                self._line.send(b"PONG\r\n")
            elif operation == b"PONG":
                self._pongs += 1
            elif operation == b"-ERR":
                self.errors.append(line.decode())
            self._buffer = rest
        return bool(data)

    def begin(self) -> None:
        self._line.send(b"CONNECT " + json.dumps(_HELLO).encode() + b"\r\n")
        self.settle(())

    def settle(self, endings: Sequence[Ending]) -> bool:
        """Read until a PING is answered and all endings have come; tell whether they have."""
        wanted = self._pongs + 1
        self._line.send(b"PING\r\n")
        while self._pongs < wanted or not all(each.has_come(self.frames[each.step]) for each in endings):
            if not self.read():
                return False
        return True

    def say(self, step: Step) -> bool:
        """Say one step and wait for what it brings; tell whether all came."""
        if step.subscribes:
            self._line.send(f"SUB {inbox(self._seed, step.number)}.* {step.number}\r\n".encode())
        said = "".join(f"{line}\r\n" for line in step.before).encode()
        for k, message in enumerate(step.messages):
            subject = self._filled(message.subject)
            if "<" in subject:
                return True  # what it speaks of has not come, as everywhere
            reply = f" {inbox(self._seed, step.number)}.{k}" if message.reply else ""
            body = message.body.encode()
            if message.header is None:
                said += f"PUB {subject}{reply} {len(body)}\r\n".encode() + body + b"\r\n"
            else:
                lines = "".join(f"{name}: {self._filled(value)}\r\n" for name, value in message.header.items())
                block = f"NATS/1.0\r\n{lines}\r\n".encode()
                sizes = f"{len(block)} {len(block) + len(body)}"
                said += f"HPUB {subject}{reply} {sizes}\r\n".encode() + block + body + b"\r\n"
        self._line.send(said)
        came = self.settle(step.endings)
        self._note(step)
        return came

    def _filled(self, text: str) -> str:
        text = re.sub("<last:([^>]*)>", lambda found: str(self.last[found[1]]), text)
        if found := re.search("<consumer:([0-9]+)>", text):
            (frame,) = self.frames[int(found[1])]
            return text.replace(found[0], json.loads(frame.payload).get("name", found[0]))
        found = re.fullmatch("<delivery:([0-9]+):([0-9]+)>", text)
        if found:
            deliveries = [frame.reply for frame in self.frames[int(found[1])] if frame.reply.startswith("$JS.ACK.")]
            return deliveries[int(found[2])] if int(found[2]) < len(deliveries) else text
        return text

    def _note(self, step: Step) -> None:
        for frame in self.frames[step.number]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                answer = json.loads(frame.payload)
                if "error" not in answer and "duplicate" not in answer and "type" not in answer:
                    message = step.messages[int(frame.subject.rpartition(".")[2])]
                    self.last[answer["stream"]] = self.last[message.subject] = answer["seq"]


Transcript = list[tuple[str, tuple[str, ...]]]


def transcript(line: Line, seed: int, said: Sequence[Step], expected: Transcript | None = None) -> Transcript:
    """Hold a conversation; return for each step in words what it brought, in order.

    Args:
        line: to a server with JetStream and without streams.
        seed: of the conversation.
        said: its steps.
        expected: what it is to bring: a server that is slow is asked again for that.
    """
    listener = _Listener(line, seed)
    listener.begin()
    missed: dict[int, str] = {}
    several: dict[int, tuple[str, ...]] = {}
    for i, step in enumerate(said):
        came = listener.say(step)
        equal, before = 1, _answers(step, listener.frames[step.number])
        due = None if expected is None else expected[i][1]
        deadline = time.monotonic() + PATIENCE
        while step.again and came and (equal < _EQUAL or (due not in (None, before) and time.monotonic() < deadline)):
            listener.frames[step.number].clear()
            came = listener.say(step)
            after = _answers(step, listener.frames[step.number])
            equal, before = (equal + 1 if after == before else 1), after
        if step.again and due not in (None, before):
            expected = None  # they differ, and there is nothing more to wait for
        if step.several:
            asked, heard = 1, {" | ".join(before)}
            while came and (asked < _ASKED or (not heard.issuperset(due or ()) and time.monotonic() < deadline)):
                listener.frames[step.number].clear()
                came = listener.say(step)
                asked += 1
                heard.add(" | ".join(_answers(step, listener.frames[step.number])))
            several[step.number] = tuple(sorted(heard))
        if not came:
            missed[step.number] = "and that was not all that is due"
    return [
        (
            f"{step.number} {step.what}",
            (
                *several.get(step.number, _answers(step, listener.frames[step.number])),
                *([missed[step.number]] if step.number in missed else []),
            ),
        )
        for step in said
    ] + [("errors", tuple(listener.errors))]


def _answers(step: Step, frames: Sequence[Frame]) -> tuple[str, ...]:
    """Return frames as they stand in a transcript; a heartbeat once, since how many come depends on time."""
    found: list[str] = []
    for frame in frames:
        shown = _shown(frame, step.unread)
        if frame.code != 100 or shown not in found[-1:]:
            found.append(shown)
    expired = [frame for frame in frames if frame.code == 408]
    if expired and len(step.messages) > 1:  # what each request has brought depends on when the other one arrived
        left = sum(int(frame.headers()["Nats-Pending-Messages"]) for frame in expired)
        kept = (shown for shown in found if not shown.startswith("408 "))
        return (*kept, f"{expired[0].status}, {left} pending")
    return tuple(found)


_TIME = "time"
_NEVER = "0001-01-01T00:00:00Z"
_ERROR = {"code": None, "err_code": None, "description": None}
_STREAM_CONFIG = dict.fromkeys(
    [
        *("name", "subjects", "retention", "storage", "num_replicas", "discard", "duplicate_window", "max_age"),
        *("max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size", "max_consumers", "allow_direct"),
        *("allow_atomic", "deny_delete", "deny_purge", "allow_rollup_hdrs", "discard_new_per_subject"),
    ]
)
_STREAM_STATE = dict.fromkeys(["messages", "bytes", "first_seq", "last_seq", "num_deleted", "subjects"])
_STREAM: dict[str, Any] = {
    "config": _STREAM_CONFIG,
    "state": {**_STREAM_STATE, "first_ts": _TIME, "last_ts": _TIME},
    "created": _TIME,
}
_CONSUMER_CONFIG = dict.fromkeys(
    [
        *("name", "durable_name", "ack_policy", "deliver_policy", "opt_start_seq", "filter_subject"),
        *("filter_subjects", "inactive_threshold", "max_batch", "headers_only", "metadata"),
    ]
)
_CONSUMER: dict[str, Any] = {
    "name": None,
    "config": _CONSUMER_CONFIG,
    "delivered": {"consumer_seq": None, "stream_seq": None},
    "ack_floor": {"consumer_seq": None, "stream_seq": None},
    "num_pending": None,
}
_PAGE = {"total": None, "offset": None}
_READ: dict[str, dict[str, Any]] = {
    "account_info": {
        **dict.fromkeys(["memory", "storage", "streams", "consumers"]),
        "limits": dict.fromkeys(["max_memory", "max_storage", "max_streams", "max_consumers"]),
    },
    "stream_info": {**_STREAM, **_PAGE},
    "stream_create": _STREAM,
    "stream_list": {"streams": _STREAM, **_PAGE},
    "stream_names": {"streams": None, **_PAGE},
    "stream_delete": {"success": None},
    "stream_purge": {"success": None, "purged": None},
    "stream_msg_delete": {"success": None},
    "stream_msg_get": {"message": {**dict.fromkeys(["subject", "seq", "hdrs", "data"]), "time": _TIME}},
    "consumer_create": _CONSUMER,
    "consumer_info": _CONSUMER,
    "consumer_list": {"consumers": _CONSUMER, **_PAGE},
    "consumer_delete": {"success": None},
    "consumer_reset": {**_CONSUMER, "reset_seq": None},
}
"""What spark_nats reads of the answers of the API."""
_PUBLISHED = dict.fromkeys(["stream", "seq", "duplicate", "batch", "count"])
_STATUS_HEADERS = [
    *("Nats-Pending-Messages", "Nats-Pending-Bytes", "Nats-Last-Consumer", "Nats-Num-Pending", "Nats-Last-Sequence")
]


def _shown(frame: Frame, unread: frozenset[str]) -> str:
    """Return a frame as it stands in a transcript."""
    headers = frame.headers()
    if frame.status:
        return " ".join([frame.status, *(f"{name}={headers[name]}" for name in _STATUS_HEADERS if name in headers)])
    if frame.subject.startswith("_INBOX.") and frame.payload.startswith(b"{") and not frame.block:
        answer = json.loads(frame.payload)
        kind = answer.get("type", "").rpartition(".")[2].removesuffix("_response")
        wanted = {"error": _ERROR} if "error" in answer else _READ[kind] if kind else _PUBLISHED
        picked = _picked(answer, wanted, unread)
        return f"{frame.subject.rpartition('.')[2]} {kind} {json.dumps(picked, sort_keys=True)}"
    if "Nats-Time-Stamp" in headers:
        headers["Nats-Time-Stamp"] = _TIME
        if "Nats-Num-Pending" in headers:
            headers["Nats-Num-Pending"] = "some"  # 2.11 counts the message itself, and nobody reads it
    subject = frame.subject.rpartition(".")[2] if frame.subject.startswith("_INBOX.") else frame.subject
    reply = frame.reply
    if reply.startswith("$JS.ACK."):
        tokens = reply.split(".")
        tokens[-2] = _TIME
        if "pending" in unread:
            tokens[-1] = "some"
        reply = ".".join(tokens)
    return f"{subject} {reply or '-'} {headers or '-'} {frame.payload!r}"


def _acks(consumer: dict[str, Any]) -> str | None:
    """Return the ack policy of what may be a consumer."""
    policy: str | None = consumer.get("config", {}).get("ack_policy")
    return policy


def _picked(document: Any, wanted: Any, unread: frozenset[str], within: str = "") -> Any:
    """Return what is wanted of a JSON document; ``unread`` names fields with the one that they are in."""
    if wanted == _TIME:
        return "never" if document == _NEVER else _TIME
    if isinstance(document, list) and isinstance(wanted, dict):
        return [_picked(each, wanted, unread) for each in document]
    if "num_pending" in unread and isinstance(document, dict) and _acks(document) == "none":
        unread |= {"ack_floor.stream_seq"}
    if isinstance(document, dict) and isinstance(wanted, dict):
        names = [name for name in wanted if name in document and f"{within}{name}" not in unread]
        return {name: _picked(document[name], wanted[name], unread, f"{name}.") for name in names}
    if isinstance(document, dict):
        return {name: value for name, value in document.items() if not name.startswith("_nats.")}
    return document
