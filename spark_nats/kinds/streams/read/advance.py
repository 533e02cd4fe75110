"""How a streaming query advances: a decision from its offset and from the facts of a look.

The decision asks no server, reads no clock, and neither logs nor changes anything: its caller acts on the values. A
decision that lacks answers yields questions, and continues when the caller sends it the answers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

from spark_nats.jetstream.judgement import Judgement, has_only_skipped
from spark_nats.jetstream.matching import matches
from spark_nats.jetstream.messages import MessageAt
from spark_nats.jetstream.positions import Fingerprint, Position, end_of, latest_in
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import StateOf
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read import losses as lost
from spark_nats.kinds.streams.read.conditions import PATTERN_CHANGED, STREAM_MADE_AGAIN
from spark_nats.kinds.streams.read.facts import (
    Answers,
    Deciding,
    Facts,
    GapOf,
    IsAnother,
    NeedFacts,
    RestAfter,
    StreamFacts,
    together,
)
from spark_nats.kinds.streams.read.limits import Limits, at_most, limited
from spark_nats.kinds.streams.read.losses import Loss
from spark_nats.kinds.streams.read.positions import OffsetEntry, QueryOffset


class Advance(NamedTuple):
    """How a query advances.

    Attributes:
        end: end of the next micro-batch; the entry of a stream with nothing new is unchanged: Spark compares text.
        reach: how far the streams reach, up to the target if there is one.
        losses: the losses to report.
        releases: by stream, the sequence before which everything is processed and may be released.
        searched: by stream, the position up to which a search found nothing.
        size: number of sequences in the micro-batch.
        waits: whether the query waits because there are too few new sequences for a micro-batch.
    """

    end: QueryOffset
    reach: QueryOffset
    losses: Sequence[Loss]
    releases: dict[str, int]
    searched: dict[str, Position]
    size: int
    waits: bool


def advance(
    start: QueryOffset, facts: Facts, limits: Limits, options: ReadOptions
) -> Generator[NeedFacts | Advance, Answers]:
    """Decide how a query advances from ``start``: yield the questions that are open, and at last the decision."""
    pattern = options.pattern
    left = [name for name in start if pattern is not None and not matches(pattern, name)]
    losses = [Loss(PATTERN_CHANGED(stream=name, sequence=start[name].end.next - 1)) for name in left]
    steps = yield from together(
        {name: _step(stream, start.get(name), facts, options) for name, stream in facts.streams.items() if stream}
    )
    # The query waits for a named stream that is gone; a stream that was found by pattern leaves the query.
    found = dict(start) if pattern is None else {}
    for name, stream in facts.streams.items():
        if stream is None:
            losses += lost.stream_lost(name, facts.begins.get(name), name in facts.absence_logged, options)
            continue
        step, gone = steps[name]
        losses += gone
        if step.size or name in start or pattern is None:
            found[name] = step  # a stream found by pattern joins when it has something to read
    reach = dict(found)
    if limits.target is not None:
        target = {name: limits.target.get(name) for name in found}
        # A stream that was made again is read to its end: it has not reached where the former one ended.
        asked = {
            name: IsAnother(name, bound)
            for name, bound in target.items()
            if bound is not None and (it := facts.streams[name]) and it.info.created != bound.created
        }
        answers = (yield NeedFacts([*asked.values()])) if asked else {}
        former = {name for name, question in asked.items() if answers[question]}
        bounded = {
            name: entry if name in former else at_most(entry, target[name], start.get(name))
            for name, entry in found.items()
        }
        reach = {name: entry for name, entry in bounded.items() if entry is not None}
    # A loss is reported only once, so the micro-batch after it does not wait.
    new = sum(entry.size for name, entry in reach.items() if entry != start.get(name))
    waits = limits.target is None and not losses and new < limits.min_new
    if waits:
        end = start | {name: entry for name, entry in reach.items() if not entry.size}  # these only follow a stream
    else:
        end, gone = yield from limited(start, reach, limits, facts, options)
        losses += gone
    size = sum(entry.size for name, entry in end.items() if entry != start.get(name))
    # Spark asks for the next offset when its checkpoint has everything before ``start``.
    intact = {name for name, each in facts.streams.items() if each and each.judgement is Judgement.INTACT}
    releases = {name: begin.next for name, begin in facts.begins.items() if name in intact}
    searched = {name: end_of(info) for name, info in facts.infos.items() if found.get(name) == start.get(name)}
    yield Advance(end, reach, losses, releases, searched, size, waits)


def _step(
    stream: StreamFacts, start: OffsetEntry | None, facts: Facts, options: ReadOptions
) -> Generator[NeedFacts | tuple[OffsetEntry, list[Loss]], Answers]:
    """Decide how a query advances in one stream, and what is lost; if it does not advance, its entry is unchanged."""
    info, judgement, losses = stream.info, stream.judgement, list[Loss]()
    since = first = max(info.first_sequence, stream.searched)
    if start and judgement is Judgement.RECREATED:
        since = first = info.first_sequence
        last, old = start.end.next - 1, start.end.created
        losses.append(Loss(STREAM_MADE_AGAIN(stream=info.name, sequence=last, old=old, created=info.created)))
    elif start:
        since, gap, rest = start.end.next, GapOf(info.name), RestAfter(info.name)
        first = max(first, since)
        if options.consume and (what := (yield NeedFacts([gap]))[gap]) is not None:
            losses.append(Loss(what))
        if judgement.is_doubtful:
            first = (yield NeedFacts([rest]))[rest]
            losses.append(lost.history_lost(info, start.end, judgement, first))
    before = start.end.fingerprint if start and judgement is Judgement.INTACT else None
    noted = start.end.latest if start and judgement is not Judgement.RECREATED else None
    clock = max(stream.clock, noted or 0)
    early = facts.early if judgement is Judgement.INTACT else {}
    entry = yield from _through(info, since, first, options, early, clock, before)
    if start and judgement is Judgement.INTACT:
        unread, now, shared = max(since, stream.searched), info, info.name in facts.removal_normal
        if not entry.size and options.filters and first <= info.last_sequence and not shared:
            question = StateOf(info.name, again=first)
            again = (yield NeedFacts([question]))[question]
            if again.first_sequence > first:
                now = again  # a matching message may have been removed just before the search
        if unread < now.first_sequence and not shared and not has_only_skipped(start.end, now):
            losses += lost.beginning_lost(now, unread, now.first_sequence, start.end.earliest)
        if not entry.size and (shared or since >= now.first_sequence):
            entry = start
        elif not entry.size:
            # The stream now begins after the offset, and holds nothing that matches. The offset moves to its end: else
            # a restarted query would report a loss, for a second time or although nothing was lost.
            first = max(info.last_sequence + 1, now.first_sequence)
            time = next((each.last_time for each in (info, now) if each.last_sequence + 1 == first), 0)
            end = Position(info.created, first, time or None, latest=latest_in(info, clock), before=before)
            entry = OffsetEntry(since, first, end)
    yield entry, losses


def _through(
    info: StreamInfo,
    since: int,
    first: int,
    options: ReadOptions,
    early: Answers,
    clock: int,
    before: Fingerprint | None,
) -> Deciding[OffsetEntry]:
    """Advance past the stream's last message that matches, if its sequence is ``first`` or later; else to ``first``.

    Answers in ``early`` may be older than the state: they show that a message exists, but not that none does.
    """
    sequence, time = info.last_sequence, info.last_time
    if options.filters and sequence >= first:
        asked = [MessageAt(info.name, None, subject) for subject in options.filters]
        sequence, time = _last_of(asked, early)
        if sequence < first:
            sequence, time = _last_of(asked, (yield NeedFacts(asked)))
    if sequence < first:
        sequence, time = first - 1, info.last_time if first == info.last_sequence + 1 else 0
    end = Position(info.created, sequence + 1, time or None, latest=latest_in(info, clock), before=before)
    return OffsetEntry(since, first, end)


def _last_of(asked: Sequence[MessageAt], answers: Answers) -> tuple[int, int]:
    """Return the sequence and the time of the last of some messages, zeros when there is none."""
    found = [message for message in map(answers.get, asked) if message]
    return max(((each.sequence, each.time) for each in found), default=(0, 0))
