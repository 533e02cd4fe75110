"""How much of what there is a micro-batch has: functions of facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_nats.jetstream.messages import MessageAt
from spark_nats.jetstream.positions import Position, end_of
from spark_nats.jetstream.views import StateOf
from spark_nats.options.read import ReadOptions
from spark_nats.source.stream.facts import Facts, SizesOf
from spark_nats.source.stream.losses import Loss, beginning_lost
from spark_nats.source.stream.positions import Batch, QueryOffset


class Limits(NamedTuple):
    """How much a micro-batch has.

    Attributes:
        target: where the query ends, if it reads what there was at its start.
        least: fewest new sequences for which there is a micro-batch.
        most_offsets: most new sequences.
        most_bytes: most bytes of messages, or about so many.
    """

    target: Mapping[str, Position] | None = None
    least: int = 0
    most_offsets: int | None = None
    most_bytes: int | None = None


def at_most(latest: QueryOffset, target: Mapping[str, Position], start: QueryOffset) -> QueryOffset:
    """Return ``latest``, but no stream beyond ``target``. A stream that ``target`` lacks stays where it is."""
    found = dict[str, Batch]()
    for name, batch in latest.items():
        bound, begin = target.get(name), start.get(name)
        if bound is None:
            found |= {name: begin} if begin is not None else {}
        elif batch == begin or bound.created != batch.end.created or batch.end.next <= bound.next:
            found[name] = batch  # it may stay also where a leader that knew less has set the target
        else:
            found[name] = batch.up_to(bound)
            is_behind = batch.first < bound.next  # of a stream that has lost its end
            if begin and begin.end.created == bound.created and begin.end.next >= bound.next and not is_behind:
                found[name] = begin  # in the words of before, since Spark compares offsets as text
    return found


def limited(
    start: QueryOffset, latest: QueryOffset, limits: Limits, facts: Facts, options: ReadOptions
) -> tuple[QueryOffset, list[Loss]]:
    """Return an offset up to ``latest`` within the limits of sequences and bytes, and what is lost before it begins.

    They count from the first message that there is to read: neither a rare subject nor a hole is passed in
    micro-batches that have no rows. Of each stream that has something new there is one message at least.

    Raises:
        LackingError: more is to be asked.
    """
    whole = {name: batch for name, batch in latest.items() if batch != start.get(name) and batch.size}
    most, most_bytes, infos, losses = limits.most_offsets, limits.most_bytes, facts.infos, list[Loss]()
    is_long = most is not None and sum(batch.size for batch in whole.values()) > most
    is_heavy = most_bytes is not None and sum(infos[name].bytes for name in whole) > most_bytes
    if not is_long and not is_heavy:
        return latest, losses
    filters = options.filters or (">",)
    places = {name: [MessageAt(name, batch.first, each) for each in filters] for name, batch in whole.items()}
    # Mostly there is no hole, and then the same round trip tells where to end.
    probable = _places(_shared(whole, most), whole, options) if most and is_long else {}
    facts.answers_to(*(each for several in places.values() for each in several), *probable.values())
    firsts = {
        name: [found.sequence for found in facts.answers_to(*several) if found] for name, several in places.items()
    }
    solid = {name: batch._replace(first=min([*firsts[name], batch.end.next])) for name, batch in whole.items()}

    ends = {name: batch.end.next for name, batch in solid.items()}
    if most and is_long:
        ends = _shared(solid, most)
    if most_bytes and is_heavy:
        sizes = dict(
            zip(solid, facts.answers_to(*(SizesOf(n, b.first, ends[n]) for n, b in solid.items())), strict=True)
        )
        shares = share({name: sizes[name].before(end) for name, end in ends.items()}, most_bytes)
        ends = {name: sizes[name].end_within(shares[name], end) for name, end in ends.items()}

    holes = {name: StateOf(name, again=b.first) for name, b in whole.items() if solid[name].first > b.first}
    lasts = _places(ends, solid, options)
    facts.answers_to(*holes.values(), *lasts.values())
    for name, question in holes.items():
        (info,), first = facts.answers_to(question), whole[name].first
        if info.created == solid[name].end.created and info.first_sequence > first:  # the limits have made it just now
            may_go = name not in start or start[name].end.earliest
            losses += beginning_lost(info, first, min(solid[name].first, info.first_sequence), may_go, options)
    for name, place in lasts.items():
        # A micro-batch ends behind a message that exists, so that it can be compared. If it has to go on for that, it
        # passes a hole, and this one message.
        (last,), batch = facts.answers_to(place), solid[name]
        if last is not None and last.sequence + 1 < batch.end.next:
            solid[name] = batch.up_to(Position(batch.end.created, last.sequence + 1, last.time))
    return latest | solid, losses


def with_times_of_now(start: QueryOffset, end: QueryOffset, limits: Limits, facts: Facts) -> QueryOffset:
    """Return ``end`` with the times of what stands now at ends that an earlier look has set.

    A stream may have lost what it had behind ``start`` at that look, and others be there now.

    Raises:
        LackingError: more is to be asked.
    """
    ends = {n: b.end for n, b in end.items() if b != start.get(n) and b.end.fingerprint and n in (limits.target or {})}
    set_before = {
        name: MessageAt(name, stop.next - 1)
        for name, stop in ends.items()
        if stop.fingerprint == (limits.target or {})[name].fingerprint != end_of(facts.infos[name]).fingerprint
    }
    found = dict(end)
    for name, message in zip(set_before, facts.answers_to(*set_before.values()), strict=True):
        if message is not None and message.sequence == ends[name].next - 1:
            found[name] = end[name]._replace(end=ends[name]._replace(time=message.time))
    return found


def _shared(wanted: QueryOffset, limit: int) -> dict[str, int]:
    """Return where micro-batches end that have ``limit`` sequences together."""
    shares = share({name: batch.size for name, batch in wanted.items()}, limit)
    return {name: batch.first + shares[name] for name, batch in wanted.items()}


def _places(ends: Mapping[str, int], wanted: QueryOffset, options: ReadOptions) -> dict[str, MessageAt]:
    """Return what to ask for ends before those of what is wanted. What the query holds is not removed by others."""
    subject = options.filters[0] if options.consume and len(options.filters) == 1 else ">"
    return {name: MessageAt(name, end - 1, subject) for name, end in ends.items() if end < wanted[name].end.next}


def share(backlogs: dict[str, int], limit: int) -> dict[str, int]:
    """Share ``limit`` sequences among streams in proportion to what each has to offer, at least one each.

    Streams without backlog get none. The sum is ``limit`` unless the backlogs are smaller or there are more streams.
    """
    if sum(backlogs.values()) <= limit:
        return dict(backlogs)
    shares = {name: min(size, 1) for name, size in backlogs.items()}
    rest = {name: size - shares[name] for name, size in backlogs.items()}
    spare, total = max(0, limit - sum(shares.values())), sum(rest.values())
    for name, size in rest.items():
        shares[name] += size * spare // max(1, total)
    for name in sorted(rest, key=lambda name: shares[name] - backlogs[name]):  # what rounding down left over
        shares[name] += min(backlogs[name] - shares[name], max(0, limit - sum(shares.values())))
    return shares
