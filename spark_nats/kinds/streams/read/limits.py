"""How many of the new messages a micro-batch reads: a decision from what a look has found, and what it asks beyond."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from spark_nats.jetstream.messages import MessageAt
from spark_nats.jetstream.positions import Position, end_of
from spark_nats.jetstream.views import StateOf
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read.facts import Answers, Deciding, Facts, NeedFacts, SizesOf
from spark_nats.kinds.streams.read.losses import Loss, beginning_lost
from spark_nats.kinds.streams.read.positions import OffsetEntry, QueryOffset


class Limits(NamedTuple):
    """The limits of a micro-batch.

    Attributes:
        target: by stream, where the query ends, if it reads only what existed at its start; else None.
        min_new: fewest new sequences that make a micro-batch.
        max_offsets: most new sequences; None for all.
        max_bytes: most bytes of messages, approximately; None for all.
    """

    target: Mapping[str, Position] | None = None
    min_new: int = 0
    max_offsets: int | None = None
    max_bytes: int | None = None


def at_most(entry: OffsetEntry, bound: Position | None, begin: OffsetEntry | None) -> OffsetEntry | None:
    """Return a stream's part of a micro-batch, not beyond ``bound``.

    Without a bound, the stream does not advance: return ``begin``, None if the query has not begun to read the stream.
    """
    if bound is None:
        return begin
    if entry == begin or entry.end.next <= bound.next:
        return entry  # an unchanged entry stays, even beyond a target that a stale leader has reported
    begins_earlier = entry.first < bound.next  # if ``begin`` is at or after ``bound``, the stream has lost its end
    if begin and begin.end.next >= bound.next and not begins_earlier:
        return begin  # byte-identical, because Spark compares offsets as text
    return entry.up_to(bound._replace(created=entry.end.created, before=entry.end.before))


def limited(
    start: QueryOffset, reach: QueryOffset, limits: Limits, facts: Facts, options: ReadOptions
) -> Deciding[tuple[QueryOffset, list[Loss]]]:
    """Return the end of a micro-batch, up to ``reach`` and within the limits, and what is lost before it.

    An end that an earlier look has set as the target gets the time of the message that is there now, if there is one:
    since that look, the stream may have lost what it had after ``start``, and have stored other messages there.
    """
    new = {name: entry for name, entry in reach.items() if entry != start.get(name) and entry.size}
    most, max_bytes, infos, losses = limits.max_offsets, limits.max_bytes, facts.infos, list[Loss]()
    answers: Answers = {}
    if most is None or sum(entry.size for entry in new.values()) <= most:
        most = None
    if max_bytes is None or sum(infos[name].bytes for name in new) <= max_bytes:
        max_bytes = None
    if most is not None or max_bytes is not None:
        new, losses, answers = yield from _cut(start, new, most, max_bytes, facts, options)
    end = reach | new
    set_before = {
        name: MessageAt(name, bound.last)
        for name, bound in (limits.target or {}).items()
        if bound.fingerprint and name in end and end[name] != start.get(name)
        if end[name].end.fingerprint == bound.fingerprint != end_of(infos[name]).fingerprint
    }
    if lacking := [each for each in set_before.values() if each not in answers]:
        answers = yield NeedFacts(lacking)
    for name, question in set_before.items():
        message = answers[question]
        if message is not None and message.sequence == question.sequence:
            end[name] = end[name]._replace(end=end[name].end._replace(time=message.time))
    return end, losses


def _cut(
    start: QueryOffset, whole: QueryOffset, most: int | None, max_bytes: int | None, facts: Facts, options: ReadOptions
) -> Deciding[tuple[QueryOffset, list[Loss], Answers]]:
    """Return what is new within the limits, what is lost before it begins, and the answers so far.

    ``most`` or ``max_bytes`` is None where that limit is not exceeded. The limits count from the first existing
    message, so that a hole, or a long stretch without matching messages, costs no micro-batches without rows. Each
    stream with something new contributes at least one message.
    """
    filters, losses = options.filters or (">",), list[Loss]()
    firsts = {name: [MessageAt(name, entry.first, each) for each in filters] for name, entry in whole.items()}
    # Mostly there is no hole, and then the same round trip finds the end.
    probable = _last_messages(_shared(whole, most), whole, options) if most else {}
    answers = yield NeedFacts([*chain(*firsts.values()), *probable.values()])
    solid = dict[str, OffsetEntry]()
    for name, entry in whole.items():
        there = [message.sequence for message in map(answers.get, firsts[name]) if message]
        solid[name] = entry._replace(first=min([*there, entry.end.next]))

    ends = _shared(solid, most) if most else {name: entry.end.next for name, entry in solid.items()}
    if max_bytes:
        ranges = {name: SizesOf(name, entry.first, ends[name]) for name, entry in solid.items()}
        answers = yield NeedFacts([*ranges.values()])
        shares = share({name: answers[each].bytes_before(each.end) for name, each in ranges.items()}, max_bytes)
        ends = {name: answers[each].end_within(shares[name], each.end) for name, each in ranges.items()}

    passed = [
        name for name, entry in whole.items() if solid[name].first > entry.first and name not in facts.removal_normal
    ]
    holes = {name: StateOf(name, again=whole[name].first) for name in passed}
    lasts = _last_messages(ends, solid, options)
    answers = yield NeedFacts([each for each in (*holes.values(), *lasts.values()) if each not in answers])
    for name, question in holes.items():
        info, first = answers[question], whole[name].first
        if info.first_sequence > first:  # lost since the look
            may_go = name not in start or start[name].end.earliest
            losses += beginning_lost(info, first, min(solid[name].first, info.first_sequence), may_go)
    for name, place in lasts.items():
        # A micro-batch ends after a message that exists, so that it can be compared. If there is none just before the
        # end, the end moves over the hole and the first message after it.
        last, entry = answers[place], solid[name]
        if last is not None and last.sequence + 1 < entry.end.next:
            solid[name] = entry.up_to(entry.end._replace(next=last.sequence + 1, time=last.time))
    return solid, losses, answers


def _shared(wanted: QueryOffset, limit: int) -> dict[str, int]:
    """Return where each stream's part ends in a micro-batch with ``limit`` sequences in all, see :func:`share`."""
    shares = share({name: entry.size for name, entry in wanted.items()}, limit)
    return {name: entry.first + shares[name] for name, entry in wanted.items()}


def _last_messages(ends: Mapping[str, int], wanted: QueryOffset, options: ReadOptions) -> dict[str, MessageAt]:
    """Return, by stream, the question for the last message before its end, where ``wanted`` has more after that end.

    A query that consumes with one filter asks for messages that match: its durable keeps them from removal.
    """
    subject = options.filters[0] if options.consume and len(options.filters) == 1 else ">"
    return {name: MessageAt(name, end - 1, subject) for name, end in ends.items() if end < wanted[name].end.next}


def share(backlogs: dict[str, int], limit: int) -> dict[str, int]:
    """Share ``limit`` sequences or bytes among streams in proportion to their backlogs, at least one each.

    Streams without backlog get none. The sum is ``limit`` unless the backlogs are smaller or there are more streams.
    """
    if sum(backlogs.values()) <= limit:
        return dict(backlogs)
    shares = {name: min(size, 1) for name, size in backlogs.items()}
    rest = {name: size - shares[name] for name, size in backlogs.items()}
    spare, total = max(0, limit - sum(shares.values())), sum(rest.values())
    for name, size in rest.items():
        shares[name] += size * spare // max(1, total)
    for name in sorted(rest, key=lambda name: shares[name] - backlogs[name]):  # shares out what rounding down left
        shares[name] += min(backlogs[name] - shares[name], max(0, limit - sum(shares.values())))
    return shares
