"""How a streaming query goes on: a function of where it has come to and of what a look has found.

No server is asked here, no clock is read, and nothing is said or done: all of that follows from the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spark_nats.conditions.losses import PATTERN_CHANGED, STREAM_MADE_AGAIN
from spark_nats.jetstream.judgement import Judgement, contradiction
from spark_nats.jetstream.matching import matches
from spark_nats.jetstream.messages import MessageAt, Question, StoredMessage
from spark_nats.jetstream.positions import Position, end_of
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import StateOf
from spark_nats.options.read import ReadOptions
from spark_nats.source.stream import losses as lost
from spark_nats.source.stream.facts import Facts, GapOf, LackingError, RestAfter, StreamFacts
from spark_nats.source.stream.limits import Limits, at_most, limited, with_times_of_now
from spark_nats.source.stream.losses import Loss
from spark_nats.source.stream.positions import Batch, QueryOffset, new_in


class Advance(NamedTuple):
    """How a query goes on.

    Attributes:
        end: where the next micro-batch ends. A stream with nothing new stays, in the words of before.
        reach: how far the streams reach.
        losses: what is to be said to be gone.
        doubts: by stream what contradicts what the query has read: to be confirmed before anything else counts.
        releases: by stream the sequence before which all is processed, and may be released.
        searched: up to where streams were searched in vain.
        waits: whether there is not enough for a micro-batch, and the query waits for more.
        lacks: what is to be asked, to decide anew; nothing but the doubts counts then.
    """

    end: QueryOffset
    reach: QueryOffset
    losses: Sequence[Loss]
    doubts: dict[str, str]
    releases: dict[str, int]
    searched: dict[str, Position]
    waits: bool = False
    lacks: Sequence[Question[Any]] = ()


def advance(start: QueryOffset, facts: Facts, limits: Limits, options: ReadOptions) -> Advance:
    """Decide how a query goes on from ``start``."""
    pattern, lacks = options.pattern, list[Question[Any]]()
    # One that is named is waited for, where it is gone; one that was found leaves the query.
    found = Advance(dict(start) if pattern is None else {}, {}, losses := [], doubts := {}, releases := {}, {})
    if pattern is not None:
        losses += [
            Loss(PATTERN_CHANGED(stream=n, sequence=b.end.next - 1))
            for n, b in start.items()
            if not matches(pattern, n)
        ]
    for name, stream in facts.streams.items():
        begin = start[name].end if name in start else None
        judgement = stream.judgement if stream else Judgement.MISSING
        if begin is not None and judgement.is_doubtful:
            doubts[name] = contradiction(begin, stream.info if stream else None, name)
        elif begin is not None and judgement is Judgement.INTACT:
            releases[name] = begin.next  # Spark asks how to go on when all before is in its checkpoint
        if stream is None:
            losses += lost.stream_lost(name, begin, name in facts.said, options)
            continue
        try:
            step, gone = _step(stream, begin, facts, options)
        except LackingError as more:
            lacks += more.questions
            continue
        losses += gone
        if step is None and name in start:
            found.end[name] = start[name]
        elif step and (begin or step.size or pattern is None):
            found.end[name] = step  # one that is found begins when it has something to read
    if lacks:
        return found._replace(lacks=lacks)

    searched = {name: end_of(info) for name, info in facts.infos.items() if found.end.get(name) == start.get(name)}
    reach = found.end if limits.target is None else at_most(found.end, limits.target, start)
    # What was lost is said once, and so goes on into a micro-batch at once.
    if limits.target is None and not losses and new_in(start, reach) < limits.least:
        end = start | {name: batch for name, batch in reach.items() if not batch.size}  # one only follows its stream
        return found._replace(end=end, reach=reach, searched=searched, waits=True)
    try:
        end, gone = limited(start, reach, limits, facts, options)
        end = with_times_of_now(start, end, limits, facts)
    except LackingError as more:
        return found._replace(lacks=more.questions)
    return found._replace(end=end, reach=reach, losses=[*losses, *gone], searched=searched)


def _step(
    stream: StreamFacts, begin: Position | None, facts: Facts, options: ReadOptions
) -> tuple[Batch | None, list[Loss]]:
    """Return how a query goes on in one stream, and what is lost; None where it stays.

    Raises:
        LackingError: more is to be asked.
    """
    info = stream.info
    if begin is None:
        first = max(info.first_sequence, stream.searched)
        return _through(info, first, first, facts, options), []
    if stream.judgement is Judgement.RECREATED:
        first, old = info.first_sequence, begin.created
        made = STREAM_MADE_AGAIN(stream=info.name, sequence=begin.next - 1, old=old, created=info.created)
        return _through(info, first, first, facts, options), [Loss(made)]
    gaps = facts.answers_to(GapOf(info.name)) if options.consume else []
    losses = [Loss(what) for what in gaps if what is not None]
    if stream.judgement.is_doubtful:
        (first,) = facts.answers_to(RestAfter(info.name))
        loss = lost.history_lost(info, begin, stream.judgement, first)
        return _through(info, begin.next, first, facts, options), [*losses, loss]

    unread, now = max(begin.next, stream.searched), info
    first = max(unread, info.first_sequence)
    batch = _through(info, begin.next, first, facts, options, facts.early)
    shared = lost.others_remove(info, options)
    if not batch.size and options.filters and first <= info.last_sequence and not shared:
        (again,) = facts.answers_to(StateOf(info.name, again=first))
        if again.created == info.created and again.first_sequence > first:
            now = again  # what would have been found may have been removed just before
    if unread < now.first_sequence:
        losses += lost.beginning_lost(now, unread, now.first_sequence, begin.earliest, options)
    if batch.size:
        return batch, losses
    if shared or begin.next >= now.first_sequence:
        return None, losses
    # The stream's limits have passed the offset without taking anything that matches. The offset follows, or a restart
    # would not know that nothing was lost.
    first = max(info.last_sequence + 1, now.first_sequence)
    time = next((each.last_time for each in (info, now) if each.last_sequence + 1 == first), 0)
    return Batch(begin.next, first, Position(info.created, first, time or None)), losses


def _last_of(messages: Sequence[StoredMessage | None]) -> tuple[int, int]:
    """Return the sequence and the time of the last one of messages, zeros when there is none."""
    return max(((each.sequence, each.time) for each in messages if each), default=(0, 0))


def _through(
    info: StreamInfo,
    since: int,
    first: int,
    facts: Facts,
    options: ReadOptions,
    early: Mapping[Question[Any], StoredMessage | None] = {},
) -> Batch:
    """Go on behind the last message of the query, if that is ``first`` or later; else at ``first``.

    ``early`` are answers that may be from before the state: they tell of a message, but not that there is none.

    Raises:
        LackingError: more is to be asked.
    """
    sequence, time = info.last_sequence, info.last_time
    if options.filters and sequence >= first:
        asked = [MessageAt(info.name, None, subject) for subject in options.filters]
        sequence, time = _last_of([early.get(each) for each in asked])
        if sequence < first:
            sequence, time = _last_of(facts.answers_to(*asked))
    if sequence < first:
        sequence, time = first - 1, info.last_time if first == info.last_sequence + 1 else 0
    return Batch(since, first, Position(info.created, sequence + 1, time or None))
