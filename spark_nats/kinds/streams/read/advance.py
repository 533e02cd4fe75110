"""How a streaming query advances: a decision from its offset and from the facts of a look.

The decision asks no server, reads no clock, and neither logs nor changes anything: its caller acts on the values. A
decision that lacks answers yields questions, and continues when the caller sends it the answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from spark_nats.conditions import ConditionText
from spark_nats.errors import NatsError
from spark_nats.jetstream.judgement import Judgement, is_empty_and_unchanged
from spark_nats.jetstream.listing import matches_stream_name
from spark_nats.jetstream.messages import Answers, Decision, MessageAt, Question, ask_in_decision, decide_together
from spark_nats.jetstream.positions import Fingerprint, Position, end_position_of, latest_time_if_it_matters
from spark_nats.jetstream.reading.sizes import Sizes
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import StateOf
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read.conditions import PATTERN_CHANGED, STREAM_MADE_AGAIN
from spark_nats.kinds.streams.read.losses import Loss, loss_of_beginning, loss_of_history, loss_of_stream
from spark_nats.kinds.streams.read.positions import OffsetEntry, QueryOffset


@dataclass(frozen=True, slots=True)
class RestAfter(Question[int]):
    """Asks a stream that lost its end for the first sequence stored after everything that the query has read."""

    stream: str


@dataclass(frozen=True, slots=True)
class IsAnother(Question[bool]):
    """Asks whether a stream is another one than that of a position."""

    stream: str
    position: Position


@dataclass(frozen=True, slots=True)
class GapOf(Question[ConditionText | None]):
    """Asks what may be lost because a durable consumer was missing; the answer is None if nothing may be lost."""

    stream: str


@dataclass(frozen=True, slots=True)
class SizesOf(Question[Sizes]):
    """Asks for the sizes of the messages from ``first`` to ``end`` (exclusive)."""

    stream: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What is known of a stream that exists.

    Attributes:
        info: its state.
        judgement: what has become of it since the query's position; intact where the query has no position.
        searched: the sequence before which earlier looks found nothing, and removals are no loss; 0 when unknown.
        clock: a time that none of its messages is later than, see :meth:`.StreamView.update_highest_clock`; 0 when it
            is unknown.
    """

    info: StreamInfo
    judgement: Judgement = Judgement.INTACT
    searched: int = 0
    clock: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What a look has found.

    Attributes:
        streams: by stream, what is known; None where the stream does not exist, or its state is unknown.
        begins: by stream, the query's position, where the query has one.
        absence_logged: streams whose absence was logged.
        early: answers to questions that were asked together with the states, and may be older than the states.
        errors: by stream, why nothing is known.
        removal_normal: streams where the removal of a message is never a loss: others may acknowledge it, or in a KV
            bucket or an object store a later message replaces it.
    """

    streams: Mapping[str, StreamFacts | None]
    begins: Mapping[str, Position] = field(default_factory=dict)
    absence_logged: Collection[str] = ()
    early: Answers = field(default_factory=dict)
    errors: Mapping[str, NatsError] = field(default_factory=dict)
    removal_normal: Collection[str] = ()

    @property
    def infos(self) -> dict[str, StreamInfo]:
        """The states of the streams that exist."""
        return {name: stream.info for name, stream in self.streams.items() if stream}

    @property
    def doubtful_streams(self) -> list[str]:
        """Streams that contradict what the query has read; this has to be confirmed before anything else counts."""
        some = ((name, stream) for name, stream in self.streams.items() if name in self.begins)
        return [name for name, stream in some if stream is None or stream.judgement.is_doubtful]


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


def decide_advance(start: QueryOffset, facts: Facts, limits: Limits, options: ReadOptions) -> Decision[Advance]:
    """Decide how a query advances from ``start``."""
    pattern = options.pattern
    left = [name for name in start if pattern is not None and not matches_stream_name(pattern, name)]
    losses = [Loss(PATTERN_CHANGED(stream=name, sequence=start[name].end.next - 1)) for name in left]
    there = {name: stream for name, stream in facts.streams.items() if stream}
    steps = yield from decide_together(
        {name: _decide_stream_advance(it, start.get(name), facts, options) for name, it in there.items()}
    )
    # The query waits for a named stream that is gone; a stream that was found by pattern leaves the query. One that the
    # look has not asked stays where it is.
    leaving = {*left, *(facts.streams if pattern is not None else ())}
    found = {name: entry for name, entry in start.items() if name not in leaving}
    for name, stream in facts.streams.items():
        if stream is None:
            losses += loss_of_stream(name, facts.begins.get(name), name in facts.absence_logged, options)
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
        answers = yield [*asked.values()]
        former = {name for name, question in asked.items() if answers[question]}
        bounded = {
            name: entry if name in former else entry_within_bound(entry, target[name], start.get(name))
            for name, entry in found.items()
        }
        reach = {name: entry for name, entry in bounded.items() if entry is not None}
    # A loss is reported only once, so the micro-batch after it does not wait.
    new = sum(entry.size for name, entry in reach.items() if entry != start.get(name))
    waits = limits.target is None and not losses and new < limits.min_new
    if waits:
        end = start | {name: entry for name, entry in reach.items() if not entry.size}  # these only follow a stream
    else:
        end, gone = yield from decide_end_within_limits(start, reach, limits, facts, options)
        losses += gone
    size = sum(entry.size for name, entry in end.items() if entry != start.get(name))
    # Spark asks for the next offset when its checkpoint has everything before ``start``.
    intact = {name for name, each in facts.streams.items() if each and each.judgement is Judgement.INTACT}
    releases = {name: begin.next for name, begin in facts.begins.items() if name in intact}
    searched = {name: end_position_of(info) for name, info in facts.infos.items() if found.get(name) == start.get(name)}
    return Advance(end, reach, losses, releases, searched, size, waits)


def _decide_stream_advance(
    stream: StreamFacts, start: OffsetEntry | None, facts: Facts, options: ReadOptions
) -> Decision[tuple[OffsetEntry, list[Loss]]]:
    """Decide how a query advances in one stream, and what is lost; if it does not advance, its entry is unchanged."""
    info, judgement, losses = stream.info, stream.judgement, list[Loss]()
    since = first = max(info.first_sequence, stream.searched)
    if start and judgement is Judgement.RECREATED:
        since = first = info.first_sequence
        last, old = start.end.next - 1, start.end.created
        losses.append(Loss(STREAM_MADE_AGAIN(stream=info.name, sequence=last, old=old, created=info.created)))
    elif start:
        since = start.end.next
        first = max(first, since)
        if options.consume and (what := (yield from ask_in_decision(GapOf(info.name)))) is not None:
            losses.append(Loss(what))
        if judgement.is_doubtful:
            first = yield from ask_in_decision(RestAfter(info.name))
            losses.append(loss_of_history(info, start.end, judgement, first))
    before = start.end.fingerprint if start and judgement is Judgement.INTACT else None
    noted = start.end.latest if start and judgement is not Judgement.RECREATED else None
    clock = max(stream.clock, noted or 0)
    early = facts.early if judgement is Judgement.INTACT else {}
    entry = yield from _entry_past_last_match(info, since, first, options, early, clock, before)
    if start and judgement is Judgement.INTACT:
        unread, now, shared = max(since, stream.searched), info, info.name in facts.removal_normal
        if not entry.size and options.filters and first <= info.last_sequence and not shared:
            again = yield from ask_in_decision(StateOf(info.name, again=first))
            if again.first_sequence > first:
                now = again  # a matching message may have been removed just before the search
        if unread < now.first_sequence and not shared and not is_empty_and_unchanged(start.end, now):
            losses += loss_of_beginning(now, unread, now.first_sequence, start.end.earliest)
        if not entry.size and (shared or since >= now.first_sequence):
            entry = start
        elif not entry.size:
            # The stream now begins after the offset, and holds nothing that matches. The offset moves to its end: else
            # a restarted query would report a loss, for a second time or although nothing was lost.
            first = max(info.last_sequence + 1, now.first_sequence)
            time = next((each.last_time for each in (info, now) if each.last_sequence + 1 == first), 0)
            end = Position(
                info.created, first, time or None, latest=latest_time_if_it_matters(info, clock), before=before
            )
            entry = OffsetEntry(since, first, end)
    return entry, losses


def _entry_past_last_match(
    info: StreamInfo,
    since: int,
    first: int,
    options: ReadOptions,
    early: Answers,
    clock: int,
    before: Fingerprint | None,
) -> Decision[OffsetEntry]:
    """Advance past the stream's last message that matches, if its sequence is ``first`` or later; else to ``first``.

    Answers in ``early`` may be older than the state: they show that a message exists, but not that none does.
    """
    sequence, time = info.last_sequence, info.last_time
    if options.filters and sequence >= first:
        asked = [MessageAt(info.name, None, subject) for subject in options.filters]
        sequence, time = _last_sequence_and_time(asked, early)
        if sequence < first:
            sequence, time = _last_sequence_and_time(asked, (yield asked))
    if sequence < first:
        sequence, time = first - 1, info.last_time if first == info.last_sequence + 1 else 0
    end = Position(
        info.created, sequence + 1, time or None, latest=latest_time_if_it_matters(info, clock), before=before
    )
    return OffsetEntry(since, first, end)


def _last_sequence_and_time(asked: Sequence[MessageAt], answers: Answers) -> tuple[int, int]:
    """Return the sequence and the time of the last of some messages, zeros when there is none."""
    found = [message for message in map(answers.get, asked) if message]
    return max(((each.sequence, each.time) for each in found), default=(0, 0))


# How many of the new messages a micro-batch reads


def entry_within_bound(entry: OffsetEntry, bound: Position | None, begin: OffsetEntry | None) -> OffsetEntry | None:
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
    return entry.shortened_to(bound._replace(created=entry.end.created, before=entry.end.before))


def decide_end_within_limits(
    start: QueryOffset, reach: QueryOffset, limits: Limits, facts: Facts, options: ReadOptions
) -> Decision[tuple[QueryOffset, list[Loss]]]:
    """Return the end of a micro-batch, up to ``reach`` and within the limits, and what is lost before it.

    An end that an earlier look has set as the target gets the time of the message that is there now, if there is one:
    since that look, the stream may have lost what it had after ``start``, and have stored other messages there.
    """
    new = {name: entry for name, entry in reach.items() if entry != start.get(name) and entry.size}
    most, max_bytes, infos, losses = limits.max_offsets, limits.max_bytes, facts.infos, list[Loss]()
    if most is None or sum(entry.size for entry in new.values()) <= most:
        most = None
    if max_bytes is None or sum(infos[name].bytes for name in new) <= max_bytes:
        max_bytes = None
    if most is not None or max_bytes is not None:
        new, losses = yield from _shorten_and_find_losses(start, new, most, max_bytes, facts, options)
    end = reach | new
    set_before = {
        name: MessageAt(name, bound.last)
        for name, bound in (limits.target or {}).items()
        if bound.fingerprint and name in end and end[name] != start.get(name)
        if end[name].end.fingerprint == bound.fingerprint != end_position_of(infos[name]).fingerprint
    }
    answers = yield [*set_before.values()]
    for name, question in set_before.items():
        message = answers[question]
        if message is not None and message.sequence == question.sequence:
            end[name] = end[name]._replace(end=end[name].end._replace(time=message.time))
    return end, losses


def _shorten_and_find_losses(
    start: QueryOffset, whole: QueryOffset, most: int | None, max_bytes: int | None, facts: Facts, options: ReadOptions
) -> Decision[tuple[QueryOffset, list[Loss]]]:
    """Return what is new within the limits, and what is lost before it begins.

    ``most`` or ``max_bytes`` is None where that limit is not exceeded. The limits count from the first existing
    message, so that a hole, or a long stretch without matching messages, costs no micro-batches without rows. Each
    stream with something new contributes at least one message.
    """
    filters, losses = options.filters or (">",), list[Loss]()
    firsts = {name: [MessageAt(name, entry.first, each) for each in filters] for name, entry in whole.items()}
    # Mostly there is no hole, and then the same round trip finds the end.
    probable = _last_message_questions(_ends_within_limit(whole, most), whole, options) if most else {}
    answers = yield [*chain(*firsts.values()), *probable.values()]
    solid = dict[str, OffsetEntry]()
    for name, entry in whole.items():
        there = [message.sequence for message in map(answers.get, firsts[name]) if message]
        solid[name] = entry._replace(first=min([*there, entry.end.next]))

    ends = _ends_within_limit(solid, most) if most else {name: entry.end.next for name, entry in solid.items()}
    if max_bytes:
        ranges = {name: SizesOf(name, entry.first, ends[name]) for name, entry in solid.items()}
        answers = yield [*ranges.values()]
        shares = share_limit_by_backlog(
            {name: answers[each].estimate_bytes_before(each.end) for name, each in ranges.items()}, max_bytes
        )
        ends = {name: answers[each].end_within(shares[name], each.end) for name, each in ranges.items()}

    passed = [
        name for name, entry in whole.items() if solid[name].first > entry.first and name not in facts.removal_normal
    ]
    holes = {name: StateOf(name, again=whole[name].first) for name in passed}
    lasts = _last_message_questions(ends, solid, options)
    answers = yield [*holes.values(), *lasts.values()]
    for name, question in holes.items():
        info, first = answers[question], whole[name].first
        if info.first_sequence > first:  # lost since the look
            expected = name not in start or start[name].end.earliest
            losses += loss_of_beginning(info, first, min(solid[name].first, info.first_sequence), expected)
    for name, place in lasts.items():
        # A micro-batch ends after a message that exists, so that it can be compared. If there is none just before the
        # end, the end moves over the hole and the first message after it.
        last, entry = answers[place], solid[name]
        if last is not None and last.sequence + 1 < entry.end.next:
            solid[name] = entry.shortened_to(entry.end._replace(next=last.sequence + 1, time=last.time))
    return solid, losses


def _ends_within_limit(wanted: QueryOffset, limit: int) -> dict[str, int]:
    """Return where each stream's part ends if a micro-batch has ``limit``, see :func:`share_limit_by_backlog`."""
    shares = share_limit_by_backlog({name: entry.size for name, entry in wanted.items()}, limit)
    return {name: entry.first + shares[name] for name, entry in wanted.items()}


def _last_message_questions(ends: Mapping[str, int], wanted: QueryOffset, options: ReadOptions) -> dict[str, MessageAt]:
    """Return, by stream, the question for the last message before its end, where ``wanted`` has more after that end.

    A query that consumes with one filter asks for messages that match: its durable keeps them from removal.
    """
    subject = options.filters[0] if options.consume and len(options.filters) == 1 else ">"
    return {name: MessageAt(name, end - 1, subject) for name, end in ends.items() if end < wanted[name].end.next}


def share_limit_by_backlog(backlogs: dict[str, int], limit: int) -> dict[str, int]:
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
