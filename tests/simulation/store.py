"""What one replica of a stream holds: messages, limits, ids within the window, and durables. No time of its own."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

Tokens = tuple[str, ...]
LIMITS = frozenset({"max_msgs", "max_msgs_per_subject", "max_bytes"})
"""Why messages are removed without anything being written: a server that begins looks at its limits again."""


def tokens_match(pattern: Tokens, subject: Tokens) -> bool:
    """Tell whether a subject, or a filter that is to be no wider, matches a pattern with wildcards."""
    for i, token in enumerate(pattern):
        if token == ">":
            return len(subject) > i
        if i >= len(subject) or (token not in ("*", subject[i])):
            return False
    return len(subject) == len(pattern)


def overlaps(one: Tokens, other: Tokens) -> bool:
    """Tell whether some subject matches both."""
    for a, b in zip(one, other, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    return len(one) == len(other)


def matcher(patterns: list[str]) -> Callable[[str], bool]:
    """Return what tells whether a subject matches one of the patterns; all match where there are none."""
    if not patterns or ">" in patterns:
        return lambda _: True
    literal = {each for each in patterns if "*" not in each and ">" not in each}
    wild = [tuple(each.split(".")) for each in patterns if each not in literal]
    known: dict[str, bool] = {}

    def match(subject: str) -> bool:
        found = known.get(subject)
        if found is None:
            parts = tuple(subject.split("."))
            found = known[subject] = subject in literal or any(tokens_match(each, parts) for each in wild)
        return found

    return match


class Stored(NamedTuple):
    """A message of a stream.

    Attributes:
        sequence: its sequence.
        subject: its subject.
        header: its header block, empty where it has none.
        payload: its payload.
        time: when it was stored, in nanoseconds since 1970 by its leader's clock.
        entry: tells it from any other one that was ever stored at the same sequence.
    """

    sequence: int
    subject: str
    header: bytes
    payload: bytes
    time: int
    entry: Any


class Publication(NamedTuple):
    """A message that a leader has taken."""

    subject: str
    header: bytes
    payload: bytes
    time: int
    message_id: str
    rollup: str = ""
    increment: int | None = None  # that of a counter


class Durable:
    """What is kept of a durable consumer, or of another one whose interest counts."""

    def __init__(self, config: dict[str, Any], created: str, floor: int) -> None:
        self.config = config
        self.created = created
        self.floor = floor  # the last sequence that is acknowledged with all before it
        self.acknowledged: set[int] = set()  # beyond
        self.match = matcher(filters_of(config))


def filters_of(config: dict[str, Any]) -> list[str]:
    """Return the filters of a consumer."""
    if config.get("filter_subjects"):
        return list(config["filter_subjects"])
    return [config["filter_subject"]] if config.get("filter_subject") else []


def id_of(header: bytes) -> str:
    """Return the id that a message's header names."""
    for line in header.split(b"\r\n"):
        if line.startswith(b"Nats-Msg-Id:"):
            return line.partition(b":")[2].strip().decode()
    return ""


def counted(value: int) -> bytes:
    """Return the payload of a message of a counter that has reached a value."""
    return json.dumps({"val": str(value)}, separators=(",", ":")).encode()


class Store:
    """The state of a stream after some operations; ``notice`` is told of each message that it removes."""

    def __init__(self, config: dict[str, Any], notice: Callable[[Stored], object]) -> None:
        self.config = config
        self._notice = notice
        self.messages: dict[int, Stored] = {}
        self.first = 0  # as the server says it: 0 where there never was a message
        self.last = 0
        self.last_time = 0
        self.last_id = ""
        self.bytes = 0
        self.ids: dict[str, int] = {}  # with the sequences of their messages
        self.noted: deque[tuple[str, int]] = deque()  # ids in the order in which they were noted, with their times
        self.subjects: dict[str, list[int]] = {}
        self.durables: dict[str, Durable] = {}
        self.removed: dict[int, str] = {}  # why
        self.limited: dict[int, Stored] = {}  # removed by limits, of which nothing is written: they are still on disk
        self.written = False  # whether anything was since the server ended in order
        self.changes = 0  # counts what takes messages away
        # Bytes that a server counts for a message, and for a header block, beside what they hold:
        self._overhead = (16, 0) if config.get("storage") == "memory" else (30, 4)
        first = config.get("first_seq", 0)
        if first > 1:
            self.first, self.last = first, first - 1

    # Messages

    def size(self, subject: str, header: bytes, payload: bytes) -> int:
        """Return the bytes that a server counts for a message."""
        one, block = self._overhead
        return one + len(subject) + (block + len(header) if header else 0) + len(payload)

    def add(self, publication: Publication, entry: Any) -> int:
        """Store a message, and return its sequence: whether its id is known the leader has looked before."""
        self.last += 1
        payload = publication.payload
        if publication.increment is not None:
            payload = counted(self.value(publication.subject) + publication.increment)
        message = Stored(self.last, publication.subject, publication.header, payload, publication.time, entry)
        if publication.rollup:
            pattern = publication.subject if publication.rollup == "sub" else ">"
            match = matcher([pattern])
            for sequence in [s for s, m in self.messages.items() if match(m.subject)]:
                self.remove(sequence, "rollup")
        self.put(message)
        self.last_id = publication.message_id
        if publication.message_id:
            self._note(publication.message_id, self.last, publication.time)
        self.limit()
        if self.config.get("retention") == "interest" and not any(
            durable.match(message.subject) for durable in self.durables.values()
        ):  # who begins later counts too, for the moment
            self.remove(message.sequence, "no interest")
        return message.sequence

    def put(self, message: Stored) -> None:
        """Have a message behind all others."""
        self.last = message.sequence
        self.messages[self.last] = message
        if len(self.messages) == 1:
            self.first = self.last
        self.last_time = message.time
        self.written = True
        self.bytes += self.size(message.subject, message.header, message.payload)
        self.subjects.setdefault(message.subject, []).append(self.last)

    def known(self, message_id: str) -> int:
        """Return the sequence of the message that had an id; 0 when it is not known."""
        return self.ids.get(message_id, 0) if message_id else 0

    def _note(self, message_id: str, sequence: int, time: int) -> None:
        self.ids[message_id] = sequence
        self.noted.append((message_id, time))

    def expire_ids(self, now: int) -> int:
        """Forget the ids that are older than the window, up to one that is not; return how long that will last.

        An id that was noted twice is forgotten with the first note.
        """
        window: int = self.config["duplicate_window"]
        while self.noted:
            message_id, time = self.noted[0]
            if now - time < window:
                return window - (now - time)
            self.noted.popleft()
            self.ids.pop(message_id, None)
        return window

    def remember(self, now: int, misses_gaps: bool = False) -> None:
        """Know the ids of messages that are there and no others, as a server that begins.

        It looks from the first message on that is not older than the window. Some look for that one by halves, and
        take a message that was removed for one that is older: these ``misses_gaps``.
        """
        self.ids, self.noted = {}, deque()
        if not self.last_time:
            return  # nothing seems to be young enough
        since = now - self.config["duplicate_window"]
        young = False
        start = self._found_by_halves(since) if misses_gaps else 0
        for message in self.messages.values():
            young = young or (message.time >= since and message.sequence >= start)
            if young and (message_id := id_of(message.header)):
                self._note(message_id, message.sequence, message.time)
        last = self.messages.get(self.last)
        self.last_id = id_of(last.header) if last is not None else ""

    def know(self, ids: dict[str, int], noted: deque[tuple[str, int]], there: Container[int]) -> None:
        """Know other ids too, and of its own only those of messages that are there."""
        self.ids = ids | {name: sequence for name, sequence in self.ids.items() if sequence in there}
        self.noted = deque([*noted, *(each for each in self.noted if each[0] in self.ids and each[0] not in ids)])

    def _found_by_halves(self, since: int) -> int:
        def is_young(sequence: int) -> bool:
            message = self.messages.get(sequence)
            return message is not None and message.time >= since

        return bisect_left(range(self.first, self.last + 1), True, key=is_young) + self.first

    def restored(self, old: bool) -> None:
        """Be what a server makes of a backup: it holds what was there, and knows no id; old ones look for ids."""
        self.ids, self.noted = {}, deque()
        self.configure(self.config)
        if not old:
            self.limited = {}
            self.last_time = max(self.messages.items())[1].time if self.messages else 0

    def begin(self, in_order: bool) -> None:
        """Be what a server has that begins, and has ended in order or not.

        One that was killed reads all from its disk, and looks at its limits anew: what they had removed may come back,
        and take the place of what they had not. Nor does it know when a last message was stored that was deleted.
        """
        if not in_order and self.written and self.removed.get(self.last) == "deleted":
            self.last_time = self.last_time if not self.messages else 0
        if not in_order and self.written and self.limited:
            self._come_back()
        self.configure(self.config)
        self.written = self.written and not in_order

    def _come_back(self) -> None:
        there = {**self.messages, **self.limited}
        self.messages, self.subjects, self.bytes, self.limited = {}, {}, 0, {}
        for sequence in sorted(there):
            message = there[sequence]
            self.messages[sequence] = message
            self.bytes += self.size(message.subject, message.header, message.payload)
            self.subjects.setdefault(message.subject, []).append(sequence)
            self.removed.pop(sequence, None)
        self._move_first()
        self.changes += 1

    def value(self, subject: str) -> int:
        """Return what a counter has reached."""
        found = self.subjects.get(subject)
        return int(json.loads(self.messages[found[-1]].payload)["val"]) if found else 0

    def configure(self, config: dict[str, Any], old: bool = False) -> None:
        """Take another configuration, and remove what its limits leave no place for; where a subject had no limit, old
        servers do so with its next message, or when they begin."""
        before, most = self.config.get("max_msgs_per_subject", -1), config.get("max_msgs_per_subject", -1)
        self.config = config
        self._limit_all()
        for subject in list(self.subjects) if most > 0 and (not old or most < before) else ():
            for sequence in self.subjects[subject][:-most]:
                self.remove(sequence, "max_msgs_per_subject")

    def limit(self) -> None:
        """Remove what the limits leave no place for."""
        config = self.config
        most = config.get("max_msgs_per_subject", -1)
        if most > 0:
            of_subject = self.subjects[self.messages[self.last].subject]
            while len(of_subject) > most:
                self.remove(of_subject[0], "max_msgs_per_subject")
        self._limit_all()

    def _limit_all(self) -> None:
        config = self.config
        most = config.get("max_msgs", -1)
        while 0 < most < len(self.messages):
            self.remove(self.first, "max_msgs")
        most = config.get("max_bytes", -1)
        while most > 0 and self.bytes > most and len(self.messages) > 0:
            self.remove(self.first, "max_bytes")

    def expire(self, now: int) -> None:
        """Remove what is too old."""
        age = self.config.get("max_age", 0)
        if age > 0:
            while self.messages and self.messages[self.first].time + age <= now:
                self.remove(self.first, "max_age")

    def remove(self, sequence: int, why: str) -> bool:
        """Remove a message; False when it is not there."""
        message = self.messages.pop(sequence, None)
        if message is None:
            return False
        self.bytes -= self.size(message.subject, message.header, message.payload)
        self.removed[sequence] = why
        if why in LIMITS:
            self.limited[sequence] = message
        self._notice(message)
        self.changes += 1
        self.written = True
        of_subject = self.subjects[message.subject]
        of_subject.remove(sequence)
        if not of_subject:
            del self.subjects[message.subject]
        if sequence == self.first:
            self._move_first()
        return True

    def _move_first(self) -> None:
        self.first = next(iter(self.messages), self.last + 1)
        if not self.messages:
            self.limited = {}  # with the file that held them

    def purge(self, body: dict[str, Any]) -> int:
        """Remove messages as STREAM.PURGE says; return how many."""
        filtered = body.get("filter", ">") != ">"
        match = matcher([body["filter"]] if filtered else [])
        chosen = [s for s, m in self.messages.items() if match(m.subject)]
        if body.get("seq"):
            chosen = [s for s in chosen if s < body["seq"]]  # version 2.11 takes seq 1 for everything
        elif body.get("keep"):
            chosen = chosen[: -body["keep"]]
        for sequence in chosen:
            self.remove(sequence, "purge")
        if not filtered:
            least = self.first if body.get("seq") or body.get("keep") else self.last + 1
            self.limited = {s: m for s, m in self.limited.items() if s >= least}
        if not filtered and not body.get("keep"):
            if not body.get("seq"):
                self.first = self.last + 1
            elif not self.messages and body["seq"] > 1:
                self.last = max(self.last, body["seq"] - 1)
                self.first = self.last + 1
        for durable in self.durables.values():
            durable.floor = max(durable.floor, self.first - 1)
        return len(chosen)

    # Looking

    def find(self, start: int, match: Callable[[str], bool] | None = None) -> Stored | None:
        """Return the first message from a sequence on that matches."""
        start = max(start, self.first)
        if start > self.last or not self.messages:
            return None
        if len(self.messages) == self.last - self.first + 1 or self.last - start < 64:
            sequences: Iterator[int] | range = range(start, self.last + 1)
        else:
            sequences = (s for s in self.messages if s >= start)
        for sequence in sequences:
            message = self.messages.get(sequence)
            if message is not None and (match is None or match(message.subject)):
                return message
        return None

    def last_of(self, pattern: str) -> Stored | None:
        """Return the last message that matches a pattern."""
        if "*" not in pattern and ">" not in pattern:
            found = self.subjects.get(pattern)
            return self.messages[found[-1]] if found else None
        match = matcher([pattern])
        return max(
            (self.messages[of[-1]] for subject, of in self.subjects.items() if match(subject)),
            default=None,
            key=lambda message: message.sequence,
        )

    def count(self, start: int, match: Callable[[str], bool] | None) -> int:
        """Return how many messages match from a sequence on."""
        if match is None:
            if start <= self.first:
                return len(self.messages)
            return sum(1 for s in self.messages if s >= start)
        return sum(1 for s, m in self.messages.items() if s >= start and match(m.subject))

    # Durables, and what they keep or let go

    def _is_wanted(self, message: Stored) -> bool:
        return any(
            durable.match(message.subject)
            and message.sequence > durable.floor
            and message.sequence not in durable.acknowledged
            for durable in self.durables.values()
        )

    def acknowledge(self, name: str, sequences: list[int]) -> None:
        """Note what a durable has acknowledged, and let go of what nobody waits for any more."""
        durable = self.durables.get(name)
        if durable is None:
            return
        durable.acknowledged.update(s for s in sequences if s > durable.floor)
        self._move_floor(durable)
        self._let_go(sequences)

    def _move_floor(self, durable: Durable) -> None:
        while True:
            following = durable.floor + 1
            if following in durable.acknowledged:
                durable.acknowledged.discard(following)
            elif not durable.acknowledged or (
                following in self.messages and durable.match(self.messages[following].subject)
            ):
                return
            durable.floor = following

    def _let_go(self, sequences: list[int]) -> None:
        retention = self.config.get("retention")
        for sequence in sequences:
            message = self.messages.get(sequence)
            if message is not None and (
                retention == "workqueue" or (retention == "interest" and not self._is_wanted(message))
            ):
                self.remove(sequence, "acknowledged")

    def reset(self, name: str, sequence: int) -> None:
        """Have a durable begin at a sequence (CONSUMER.RESET)."""
        durable = self.durables[name]
        durable.floor = sequence - 1
        durable.acknowledged.clear()
        if sequence <= self.last + 1:
            self._let_go([s for s, m in self.messages.items() if s < sequence and durable.match(m.subject)])

    def forget(self, name: str) -> None:
        """Forget a consumer, and let go of what only it has waited for."""
        durable = self.durables.pop(name, None)
        if durable is not None and self.config.get("retention") == "interest":
            match, floor = durable.match, durable.floor
            self._let_go([s for s, m in self.messages.items() if s > floor and match(m.subject)])
