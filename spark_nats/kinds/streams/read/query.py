"""One run of a streaming query: what it remembers, and the steps that Spark asks of it, over offsets as values.

A look finds facts (:mod:`.looks`), :mod:`.advance` decides from them, and this module acts. Each step is a function of
a look; :class:`StreamingQuery` makes the look, and waits while no server can be reached.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import TypeVarTuple

from spark_nats import clock
from spark_nats.client.retrying import Result, run_with_retries
from spark_nats.errors import StreamNotFoundError
from spark_nats.jetstream.judgement import Judgement
from spark_nats.jetstream.listing import matches_stream_name, suggesting_names
from spark_nats.jetstream.messages import run_decision
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.jetstream.views import ask_first_new
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read import bounds
from spark_nats.kinds.streams.read.advance import Advance, Facts, Limits, decide_advance
from spark_nats.kinds.streams.read.conditions import CHECKPOINT_OF_OTHERS, STREAM_NOT_NAMED
from spark_nats.kinds.streams.read.idling import Idling
from spark_nats.kinds.streams.read.looks import Look, QueryMemory
from spark_nats.kinds.streams.read.losses import Loss, loss_of_history, raise_or_warn
from spark_nats.kinds.streams.read.planning import StreamRange, ranges_between
from spark_nats.kinds.streams.read.positions import QueryOffset, entry_beginning_at
from spark_nats.kinds.streams.read.traits import Traits
from spark_nats.kinds.task import TriggerPacing

logger = logging.getLogger(__name__)

Given = TypeVarTuple("Given")


class StreamingQuery:
    """One run of a streaming query.

    Attributes:
        memory: what it remembers of the streams between looks.
        pace: when its micro-batches are due.
        idling: waits while there is nothing new; lends the connection of each look.
        reach: how far the streams reached at the last look; None before the first.
    """

    def __init__(self, options: ReadOptions, traits: Traits) -> None:
        self._options = options
        self.memory = QueryMemory(options, options.retries.timeout, traits)
        self.pace = TriggerPacing(options)
        self.idling = Idling(options, self.memory)
        self.reach: QueryOffset | None = None
        self._target: dict[str, Position] | None = None  # where the query ends, if it reads only what existed
        self._established = False  # whether the server has answered this query before

    def prepare_and_ask_start(self) -> QueryOffset:
        """Return where a new query begins."""
        return {
            name: entry_beginning_at(place)
            for name, place in self._retry_with_look(bounds.prepare_and_ask_start).items()
        }

    def ask_and_note_target_ends(self) -> None:
        """Note how far the streams reach now, where the query will end."""
        self._target = self._retry_with_look(bounds.prepare_and_ask_ends)

    def raise_or_warn_added_subjects(self, start: QueryOffset, noted: Mapping[str, Sequence[str]]) -> None:
        """Report that a query reads more subjects than its checkpoint notes, if there is anything that it leaves out.

        Raises:
            DataLossError: there is, and ``failOnDataLoss`` is set.
            NatsError: a request failed.
        """
        self._established = True  # the offset shows that a server has answered before
        self._retry_with_look(bounds.raise_or_warn_added_subjects, start, noted)

    def wait_and_advance(self, start: QueryOffset, is_limited: bool) -> QueryOffset:
        """Return where the next micro-batch ends, ``start`` if none is due; wait a moment if the query is idle there.

        ``is_limited`` tells whether the options' limits count.
        """
        if self.idling.wait_and_tell_if_surely_idle(start):
            return start
        self._established = True
        limits, options = Limits(self._target), self._options
        if is_limited:
            limits = Limits(self._target, self.pace.min_new_now, options.max_offsets, options.max_bytes)
        asked = clock.monotonic()
        found = self._retry_with_look(advance_and_release, start, limits, self.idling.speakers)
        if found.size:
            self.pace.note_planned()
        self.reach = found.reach
        self.memory.expects_more = found.end != start
        took = clock.monotonic() - asked
        if self._target is None and found.end == start:
            until = self.pace.wait_ends_at if found.waits else math.inf
            self.idling.note_idle_and_listen(start, took, until, waits=found.reach != start)
        elif self._target is None and not found.waits:
            new = sum(entry.size for name, entry in found.reach.items() if entry != start.get(name))
            unread = {name for name, entry in found.reach.items() if entry != found.end.get(name)}
            self.idling.note_progress_and_listen(found.end, took, new, unread)
        return found.end

    def prepare_and_plan_ranges(self, start: QueryOffset, end: QueryOffset, replayed: bool) -> list[StreamRange]:
        """Return what a micro-batch reads; an earlier run of the query has begun it if it is ``replayed``."""
        # After a restart, a replayed micro-batch is planned before any look. An empty one needs no consumers.
        if start != end and not all(each.has_reader_begun for each in self.memory.holds.values()):
            self._established = True
            self._retry_with_look(create_or_resume_durables, start)
        rewritten_in: set[str] = set()
        if replayed:
            self._established = True
            rewritten_in = self._retry_with_look(ask_and_report_rewritten, start, end)
        return ranges_between(start, end, self._options.filters, rewritten_in)

    def release_messages_before(self, end: QueryOffset) -> None:
        """Release what is processed, if the query consumes."""
        if unreleased_positions(self.memory, end):
            self._retry_with_look(release_messages_before, end)

    def _retry_with_look(self, step: Callable[[Look, *Given], Result], *given: *Given) -> Result:
        """Take a step, and wait while the server cannot be reached."""
        options, memory = self._options, self.memory

        def once() -> Result:
            with self.idling.lend_jetstream() as js, suggesting_names(js, options.streams), memory.traits.naming(js):
                with contextlib.suppress(StreamNotFoundError):
                    return step(Look(js, options, memory), *given)
                # A stream may have been deleted during the look. Another look handles it as missing from its start.
                return step(Look(js, options, memory), *given)

        found = run_with_retries(once, options.retries, f"reading {memory.selection}", established=self._established)
        self._established = True
        return found


def advance_and_release(look: Look, start: QueryOffset, limits: Limits, speakers: Set[str] | None = None) -> Advance:
    """Return how a query advances; report what is lost, and release what is processed.

    With a filter, the query advances to the position after the last matching message, so that messages of other
    subjects do not make empty micro-batches. With ``speakers``, only these streams are asked, unless others have come
    or gone since the last look.

    Raises:
        DataLossError: some of what comes next is lost, and ``failOnDataLoss`` is set.
        JetStreamError: a stream contradicts what the query has read, but not for long enough yet.
        NatsError: a request failed.
    """
    pattern, memory = look.options.pattern, look.memory
    names = memory.selection.names
    if pattern is not None:  # a server that is not up to date may list too few streams
        names = tuple(sorted({*names, *(name for name in start if matches_stream_name(pattern, name))}))
    silent: Mapping[str, StreamInfo] = {}
    if speakers is not None and memory.states.keys() == set(names):
        silent = {name: state for name, state in memory.states.items() if name not in speakers}
        names = tuple(name for name in names if name in speakers)
    asked = look.ask_facts(names, {name: entry.end for name, entry in start.items()}, ahead=True)
    facts = look.ask_and_judge_all(look.check_streams_and_create_consumers(asked, may_wait=True))
    if pattern is None:
        _warn_of_abandoned_streams(look, facts)
    for name in facts.doubtful_streams:
        look.confirm_any_loss_or_raise(facts, name)
    found = run_decision(
        decide_advance(start, facts, limits, look.options), partial(look.ask_and_resume_durables, facts)
    )
    raise_or_warn(found.losses, look.options)
    for name, stream in facts.streams.items():
        if stream is None:
            memory.view.note_logged(name)
        elif hold := memory.holds.get(name):
            hold.update_durable_as_begun(look.js)
            if name in found.releases:
                hold.release_messages_before(look.js, stream.info, found.releases[name])
                hold.check_owner_if_due(look.js)
            elif stream.judgement.is_doubtful:
                hold.note_unowned()
        elif memory.traits.on_progress and name in found.releases:
            memory.traits.on_progress(look.js, stream.info, found.releases[name])
    kept = memory.searched if found.waits else {name: it for name, it in memory.searched.items() if name in silent}
    memory.searched = {**kept, **found.searched}
    memory.states = {**silent, **facts.infos}
    return found


def _warn_of_abandoned_streams(look: Look, facts: Facts) -> None:
    """Warn once of streams that the query has read and no longer reads. Their positions stay in the offset.

    If it reads no stream of the offset, the offset may belong to another source: Spark tells sources apart by order.
    """
    begins = facts.begins
    left = begins.keys() - look.memory.selection.names - look.memory.view.logged
    for name in sorted(left):
        look.memory.view.note_logged(name)
        following = begins[name].next
        logger.warning(STREAM_NOT_NAMED(stream=name, last=following - 1, next=following).with_code)
    if left and left == begins.keys():
        others = ", ".join(map(repr, sorted(left)))
        for name, info in facts.infos.items():
            logger.warning(CHECKPOINT_OF_OTHERS(others=others, stream=name, first=info.first_sequence).with_code)


def create_or_resume_durables(look: Look, start: QueryOffset) -> None:
    """Make sure that the durable consumers of a query that continues at ``start`` exist.

    Report what may be lost because one was missing; with ``failOnDataLoss``, that raises :class:`DataLossError`.
    """
    asked = look.ask_facts(tuple(look.memory.holds), {name: entry.end for name, entry in start.items()})
    facts = look.ask_and_judge_all(look.check_streams_and_create_consumers(asked))
    for name, stream in facts.streams.items():
        begin, held = facts.begins.get(name), look.memory.holds[name]
        if stream is None:
            look.require_gone_and_raise_or_warn(facts, name)
            continue
        resumed = stream.judgement is not Judgement.RECREATED
        if begin is not None and resumed and (what := held.resume_or_explain_loss(look.js, begin.next)):
            raise_or_warn([Loss(what)], look.options)
        held.update_durable_as_begun(look.js)


def unreleased_positions(memory: QueryMemory, end: QueryOffset) -> dict[str, Position]:
    """Return, by stream, the positions before which something is still to be released."""
    ends = {name: end[name].end for name in memory.holds if name in end}
    return {name: stop for name, stop in ends.items() if not memory.holds[name].may_skip_release(stop.next)}


def release_messages_before(look: Look, end: QueryOffset) -> None:
    """Release everything before ``end`` in the streams whose history the query has read, and in no others."""
    due = unreleased_positions(look.memory, end)
    facts = look.ask_and_judge_all(look.check_streams_and_create_consumers(look.ask_facts(tuple(due), due)))
    for name, stream in facts.streams.items():
        # Else the next look reports the loss.
        if stream and stream.judgement is not Judgement.RECREATED and not look.confirm_any_loss_or_raise(facts, name):
            look.memory.holds[name].release_messages_before(look.js, stream.info, due[name].next)


def ask_and_report_rewritten(look: Look, start: QueryOffset, end: QueryOffset) -> set[str]:
    """Return the streams that have lost the end of a replayed micro-batch: the replay cannot read the same there.

    Raises:
        DataLossError: there is such a stream, or a stream does not exist any more, and ``failOnDataLoss`` is set.
        JetStreamError: a loss was not reported for long enough yet.
        NatsError: a request failed.
    """
    ends = {name: stop.end for name, stop in end.items() if stop != start.get(name) and stop.end.fingerprint}
    found = set()
    facts = look.ask_and_judge_all(
        look.check_streams_and_create_consumers(look.ask_facts(tuple(ends), ends, compares=True)), compares=True
    )
    for name, stream in facts.streams.items():
        if stream is None:
            look.require_gone_and_raise_or_warn(facts, name)
        elif look.confirm_any_loss_or_raise(facts, name):  # not for a recreated stream: the tasks report that
            first = ask_first_new(look.js, ends[name], stream.info)
            raise_or_warn(
                [loss_of_history(stream.info, ends[name], stream.judgement, first, replayed=True)], look.options
            )
            found.add(name)
    return found
