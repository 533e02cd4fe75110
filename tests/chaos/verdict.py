"""What became of the messages: lost, duplicated, out of order, judged by reading both streams in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from tests.chaos.cluster import IN, OUT
from tests.nats_py import Message, NatsPy

_EXAMPLES = 3


class Entry(NamedTuple):
    """A message in a stream: its number among those of its key, and where and when the server stored it."""

    number: int
    sequence: int = 0
    stored: str = ""

    def __str__(self) -> str:
        return f"{self.number} (sequence {self.sequence}, {self.stored})"


Entries = Mapping[str, list[Entry]]
"""The messages of a stream by key, such as ``k3`` of the subject ``in.k3``, in the stream's order."""


def payload(key: str, number: int, size: int = 200) -> bytes:
    """What message `number` of a key says."""
    return f"{key} {number} ".ljust(size, ".").encode()


def number_of(said: bytes) -> int:
    """The number of the message that says this."""
    return int(said.split(b" ", 2)[1])


def parse(message: Message) -> tuple[str, Entry]:
    """The key and the entry of a message, which must stand on its key's subject."""
    key = message.subject.rpartition(".")[2]
    if not message.payload.startswith(f"{key} ".encode()):
        raise ValueError(f"{message.payload!r} stands on {message.subject}")
    stored = f"{message.timestamp:%H:%M:%S.%f}" if message.timestamp else ""
    return key, Entry(number_of(message.payload), message.sequence or 0, stored)


def entries(messages: Iterable[Message]) -> dict[str, list[Entry]]:
    """The messages by key."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for message in messages:
        key, entry = parse(message)
        found[key].append(entry)
    return found


def read(client: NatsPy, stream: str) -> dict[str, list[Entry]]:
    """What a stream holds."""
    return entries(client.iterate_stream(stream))


@dataclass(frozen=True)
class Restored:
    """Streams that came back with an older copy, and what that may have taken.

    Attributes:
        streams: which.
        before: the publisher's ledger when the copy was made.
        after: and when the servers had ended.
        done: the sequences of IN, from the first to before the second, of the micro-batches that ended in between.
        said: by what losses the query has ended since.
    """

    streams: Collection[str]
    before: Mapping[str, int]
    after: Mapping[str, int]
    done: tuple[int, int]
    said: list[str] = field(default_factory=list)

    def took(self, key: str) -> range:
        """The numbers of a key that IN may lack, though they were acknowledged."""
        return range(self.before[key] + 1, self.after[key] + 1) if IN in self.streams else range(0)

    def sent_again(self, key: str) -> int | None:
        """The number of a key that was on its way: IN may have lost it after it was read, and then has it anew."""
        return self.after[key] + 1 if IN in self.streams else None

    def took_copy(self, key: str, entry: Entry) -> bool:
        """Whether OUT may lack a message: it was in a micro-batch that is not run again."""
        known = OUT in self.streams and entry.number <= self.after[key] + 1
        return known and self.done[0] <= entry.sequence < self.done[1]


@dataclass
class Verdict:
    """How many messages there were, and what became of them.

    Attributes:
        messages: how many stand in IN, which is the truth whatever was acknowledged.
        forgotten: acknowledged and not in IN, which is the servers' fault.
        lost: in IN and not in OUT.
        duplicated: more often in OUT than in IN.
        reordered: in OUT behind a message that IN has later.
        gone: acknowledged and not in IN, or processed and not in OUT, as an older copy has it.
        silent: of those, read before IN lost them, without an error that says so.
        missed: of core NATS, not in OUT and published in a gap that the log names.
        again: of a work queue, taken twice after an error that says so.
        steps_back: of a bucket, how often a key had an older value for a while.
        findings: each of these in words, by what it is.
    """

    messages: int = 0
    forgotten: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    gone: int = 0
    silent: int = 0
    missed: int = 0
    again: int = 0
    steps_back: int = 0
    findings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def good(self) -> bool:
        return not (self.forgotten or self.lost or self.duplicated or self.reordered or self.silent)

    def examples(self) -> list[str]:
        """The first and the last few of each kind."""
        lines = []
        for what, found in self.findings.items():
            left_out = len(found) - 2 * _EXAMPLES
            shown = found if left_out <= 0 else [*found[:_EXAMPLES], f"({left_out} more)", *found[-_EXAMPLES:]]
            lines += [f"{what}: {one}" for one in shown]
        return lines


def judge(
    given: Entries,
    copied: Entries,
    acknowledged: Mapping[str, int] | None = None,
    restored: Sequence[Restored] = (),
) -> Verdict:
    """Compare OUT (`copied`) with IN (`given`).

    What an older copy has taken of IN may stand in OUT, once and in its place; what it has taken of OUT may be missing.
    All else has to be there once, and what was published since too.

    Args:
        given: what IN holds.
        copied: what OUT holds.
        acknowledged: the publisher's ledger: of each key the numbers from 1 to this one were acknowledged.
        restored: what came back with an older copy.
    """
    verdict = Verdict(sum(map(len, given.values())))
    for key, last in (acknowledged or {}).items():
        missing = set(range(1, last + 1)) - {entry.number for entry in given.get(key, [])}
        missing -= {number for each in restored for number in each.took(key)}
        verdict.forgotten += len(missing)
        verdict.findings["acknowledged and not in IN"] += [f"{key} {number}" for number in sorted(missing)]
    for key in sorted({*given, *copied}):
        _judge_key(verdict, key, given.get(key, []), copied.get(key, []), restored)
    return verdict


def _judge_key(
    verdict: Verdict, key: str, given: list[Entry], copied: list[Entry], restored: Sequence[Restored]
) -> None:
    wanted, found = Counter(entry.number for entry in given), Counter(entry.number for entry in copied)
    for each in restored:
        taken = [number for number in each.took(key) if number not in wanted]
        verdict.gone += len(taken)
        seen = [Entry(number) for number in taken if number in found]
        given = _with(given, seen)
        if seen and not each.said:
            verdict.silent += len(seen)
            verdict.findings["read, lost by IN, and no error"] += [f"{key} {entry.number}" for entry in seen]
    allowed = Counter(number for each in restored if (number := each.sent_again(key)) is not None)
    excused = Counter(entry.number for entry in given if any(each.took_copy(key, entry) for each in restored))
    verdict.gone += (excused & (wanted - found)).total()
    lost, doubled = wanted - found - excused, found - Counter(entry.number for entry in given) - allowed
    verdict.lost += lost.total()
    verdict.duplicated += doubled.total()
    verdict.findings["lost"] += [f"{key} {entry} of IN" for entry in given if entry.number in lost]
    place = {entry.number: i for i, entry in reversed(list(enumerate(given)))}
    reached, first = -1, dict[int, Entry]()
    for entry in copied:
        if entry.number in doubled and (entry.number in first or entry.number not in wanted):
            verdict.findings["duplicated"].append(f"{key} {entry} of OUT, first {first.get(entry.number, 'here')}")
        if entry.number in first or entry.number not in place:
            continue
        first[entry.number] = entry
        if place[entry.number] < reached:
            verdict.reordered += 1
            verdict.findings["out of order"].append(f"{key} {entry} of OUT, behind {given[reached]} of IN")
        reached = max(reached, place[entry.number])


def _with(given: list[Entry], more: list[Entry]) -> list[Entry]:
    """Put messages that are gone where they stood: before the first one with a higher number."""
    found = list(given)
    for entry in more:
        place = next((i for i, other in enumerate(found) if other.number > entry.number), len(found))
        found.insert(place, entry)
    return found


class Taken(NamedTuple):
    """A message that the worker took; `again` if it may be a second one: after an error, the query has gone on."""

    key: str
    entry: Entry
    again: bool


def judge_queue(given: Entries, taken: Sequence[Taken], acknowledged: Mapping[str, int] | None = None) -> Verdict:
    """Compare what was taken from a work queue, in its order, with IN: once each, unless it may have come again."""
    met, again = set[tuple[str, int]](), 0
    copied: dict[str, list[Entry]] = defaultdict(list)
    for each in taken:
        which = each.key, each.entry.number
        if each.again and which in met:
            again += 1
            continue
        met.add(which)
        copied[each.key].append(each.entry)
    verdict = judge(given, copied, acknowledged)
    verdict.again = again
    return verdict


def judge_bucket(given: Entries, values: Entries) -> Verdict:
    """Compare the value of each key of a bucket with its last message in IN: it is lost if another one is there."""
    verdict = judge({key: each[-1:] for key, each in given.items()}, values)
    verdict.messages = sum(map(len, given.values()))
    return verdict


Gap = tuple[float, float]
"""From when to when messages were missed, in seconds since 1970."""


def judge_core(published: Mapping[str, list[float]], copied: Entries, gaps: Sequence[Gap]) -> Verdict:
    """Compare OUT with what was published to core NATS.

    Args:
        published: of each key when its messages were published.
        copied: what OUT holds.
        gaps: where messages may be missing.
    """
    given = {}
    for key, times in published.items():
        found = {entry.number for entry in copied.get(key, [])}
        first = min(found, default=1)  # before it the query did not listen yet
        given[key] = [
            Entry(number, 0, f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f}")
            for number, at in enumerate(times, 1)
            if number in found or (number >= first and not any(begin <= at <= end for begin, end in gaps))
        ]
    verdict = judge(given, copied)
    verdict.missed = sum(map(len, published.values())) - verdict.messages
    return verdict
