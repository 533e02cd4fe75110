"""Looks at the streams of a query: asks about all of them together, prepares what the query needs, and judges.

One round trip asks for the states of all streams and, where a history is to be compared, for the message before the
query's position. Of many streams, a list shows first which of them have changed. Asking changes nothing in the streams;
preparing may. A decision names its further questions (:class:`~spark_nats.jetstream.messages.Question`): those that are
one request each share a round trip.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_nats import clock
from spark_nats.errors import NatsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.durables import DurableHandle, check_direct_gets_possible, default_durable_name
from spark_nats.jetstream.consuming.placing import peers_in_connected_cluster
from spark_nats.jetstream.creating import create_stream_if_missing
from spark_nats.jetstream.judgement import Judgement
from spark_nats.jetstream.listing import Selection, ask_all_streams
from spark_nats.jetstream.messages import Answers, Asked, MessageAt, Question, Questions, ask_all, try_asking
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading.sizes import measure_sizes
from spark_nats.jetstream.streams import LIMITS, WORK_QUEUE, StreamInfo, parse_stream
from spark_nats.jetstream.views import (
    StateOf,
    StreamView,
    Trust,
    ask_all_again_if_doubted,
    ask_first_new,
    ask_if_recreated,
)
from spark_nats.kinds.streams.options import ReadOptions
from spark_nats.kinds.streams.read.advance import Facts, GapOf, IsAnother, RestAfter, SizesOf, StreamFacts
from spark_nats.kinds.streams.read.conditions import PATTERN_MATCHES_QUEUES, RETENTION_UNSUPPORTED, STREAM_NOT_READY
from spark_nats.kinds.streams.read.losses import loss_of_stream, raise_or_warn, removal_is_normal
from spark_nats.kinds.streams.read.row_warnings import warn_of_times_ahead
from spark_nats.kinds.streams.read.traits import PLAIN, Traits
from spark_nats.protocol.control import is_older

logger = logging.getLogger(__name__)

LISTED_FROM = 32
"""Minimum number of streams that a look lists first: a page of the list has the states of 256 streams."""
LARGE = 256
"""Minimum bytes of a message without whose payload it is read faster: the server copies what it leaves out, and adds a
header line."""
LIST_PAGE = 256  # streams on a page of the list
LIST_TIMEOUT = 1.0  # maximum seconds to wait for a page of the list; a list whose pages take longer is slow
_OTHERS = 4  # times as many streams as are asked for that the list may have
LISTS_AGAIN = 60.0  # seconds without a list after one that failed, was slow or had too many other streams


class QueryMemory:
    """What a query remembers between looks. A reported loss is doubted for ``patience`` seconds at most.

    Attributes:
        selection: the streams that are read, as far as they are known.
        view: how the streams were when last found intact, and which losses are in doubt.
        traits: how the kind that the query reads differs from streams.
        holds: by stream, the durable consumer that holds messages for the query; empty if the query does not consume.
        searched: by stream, the position up to which a look found nothing to read.
        expects_more: whether streams are likely to have something new for the query.
        states: by stream, the state at the last look.
        sizes: by stream, the average bytes of a message; only of streams that allow batched direct gets.
        servers: by stream, the names of its servers to which tasks may connect.
        large: the streams whose messages have at least :data:`LARGE` bytes on average.
        listed: by stream, the state that the last list reported again, and its entry there.
        lists_from: when the streams may be listed, by ``clock.monotonic()``.
    """

    def __init__(self, options: ReadOptions, patience: float, traits: Traits = PLAIN) -> None:
        self.selection = Selection(options.streams, options.pattern)
        self.view = StreamView(patience)
        self.traits = traits
        filters = options.filters
        self.holds = {
            name: DurableHandle(name, options.consumer or default_durable_name(name, filters), filters, patience)
            for name in (options.streams if options.consume else ())
        }
        self.searched: Mapping[str, Position] = {}
        self.expects_more = False
        self.states: Mapping[str, StreamInfo] = {}
        self.sizes: dict[str, float] = {}
        self.servers: dict[str, tuple[str, ...]] = {}
        self.large: set[str] = set()
        self.listed: Mapping[str, tuple[StreamInfo, dict[str, Any]]] = {}
        self.lists_from = -math.inf


class Look:
    """One look at the streams of a query over one connection: it asks, prepares what the query needs, and judges.

    It first creates the stream if the options say how and it does not exist.

    Raises:
        NatsError: a request failed, a name cannot be part of a subject, or the server refuses the stream.
    """

    def __init__(self, js: JetStream, options: ReadOptions, memory: QueryMemory) -> None:
        self.js = js
        self.options = options
        self.memory = memory
        memory.selection.list_names_if_due(js)
        config = options.requested_config
        self._made = {config["name"]: create_stream_if_missing(js, config)} if config else {}

    def ask_facts(
        self, names: Sequence[str], begins: Mapping[str, Position] = {}, compares: bool = False, ahead: bool = False
    ) -> Facts:
        """Ask the first questions, mostly in one round trip; their answers are neither judged nor acted upon.

        Args:
            names: the streams. The state of the stream in ``createStream`` is known already, and not asked for again.
            begins: by stream, the query's position, where the query has one.
            compares: whether to ask for the message before the position even where no comparison is due.
            ahead: whether to ask for the last matching messages too if something new is likely, and to rely on a list
                for streams that have not changed since the last look.

        Raises:
            NatsError: the requests could not be sent, or were not answered.
        """
        unknown = [name for name in names if name not in self._made]
        unchanged = self._ask_unchanged_states(unknown) if ahead else {}
        messages = {
            name: MessageAt(name, begins[name].last)
            for name in unknown
            if name in begins and begins[name].fingerprint
            if compares
            or self._has_unreleased_before(name, begins[name])
            or self.memory.view.needs_history_request(self.js, name)
        }
        last = [MessageAt(name, None, each) for name in unknown if name in begins for each in self.options.filters]
        asked: list[Asked[Any]] = [StateOf(name) for name in unknown if name not in unchanged]
        asked += [*messages.values(), *(last if ahead and self.memory.expects_more else ())]
        answers: dict[Question[Any], Any] = dict(zip(asked, try_asking(self.js, asked), strict=True))
        states = {name: unchanged[name] if name in unchanged else answers.pop(StateOf(name)) for name in unknown}
        new = {name: info for name, info in states.items() if name not in begins and isinstance(info, StreamInfo)}
        states |= self._made | ask_all_again_if_doubted(self.js, new, Trust.TWICE)
        there = {name: answers[question] for name, question in messages.items()}
        errors = {name: each for name, each in (*there.items(), *states.items()) if isinstance(each, NatsError)}
        streams = {name: None if name in errors else StreamFacts(states[name]) for name in names}
        early = {question: each for question, each in answers.items() if not isinstance(each, NatsError)}
        facts = Facts(streams, begins, self.memory.view.logged, early, errors)
        of_query = self.options.filters, self.options.peek, self.memory.traits.replaces
        some = {name for name, info in facts.infos.items() if removal_is_normal(info.retention, *of_query)}
        return replace(facts, removal_normal=some)

    def _ask_unchanged_states(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        """Return the last states of those of many streams that the account's list reports as they were.

        A list that fails, is slow or has too many other streams is not requested again for a while.
        """
        memory, began = self.memory, clock.monotonic()
        if len(names) < LISTED_FROM or not memory.states or began < memory.lists_from:
            return {}
        if _OTHERS * len(names) < len(memory.states):
            return {}  # these are only some of the query's streams
        last = {name: memory.states[name] for name in names if name in memory.states}
        memory.lists_from = began + LISTS_AGAIN
        try:
            listed = ask_all_streams(self.js, LIST_TIMEOUT, _OTHERS * len(names))
            entries = {each.name: each.entry for each in listed if each.entry and not each.problem}
            memory.listed = {
                name: (state, entry)
                for name, state in last.items()
                if (entry := entries.get(name)) and self._is_state_unchanged(entry, state)
            }
        except NatsError as error:  # single streams may answer all the same
            logger.debug("the streams cannot be listed: %s", error)
            return {}
        if listed and clock.monotonic() - began < LIST_TIMEOUT * max(1.0, len(listed) / LIST_PAGE):
            memory.lists_from = began
        return {name: state for name, (state, _) in memory.listed.items()}

    def _is_state_unchanged(self, entry: dict[str, Any], state: StreamInfo) -> bool:
        """Tell whether an entry of the list reports a state again; most are as the list before had them."""
        known, before = self.memory.listed.get(state.name, (None, entry))
        as_before = known is state and {**entry, "ts": None} == {**before, "ts": None}
        return as_before or state.is_same_as_listed(parse_stream(entry, state.name))

    def check_streams_and_create_consumers(
        self, facts: Facts, must_exist: bool = False, may_wait: bool = False
    ) -> Facts:
        """Check that the query may read the streams, make sure that its consumers exist, and log warnings.

        Args:
            facts: the states of the streams.
            must_exist: whether a named stream that does not exist is an error, whatever ``failOnDataLoss`` is.
            may_wait: whether a new stream that matches the pattern is left out as long as it has no leader.

        Returns:
            The facts without the streams that are left out.

        Raises:
            StreamNotFoundError: a named stream that the query has not begun to read does not exist, and ``must_exist``
                or ``failOnDataLoss`` is set.
            UnsupportedStreamError: a stream cannot be read by sequence, or not with these options.
            ConsumerConflictError: the query cannot have its durable consumer.
            NatsError: a request failed.
        """
        pattern, streams = self.options.pattern, dict(facts.streams)
        for name, stream in facts.streams.items():
            if stream is not None:
                self._check_stream_and_create_consumer(stream.info, facts)
                continue
            error, is_new = facts.errors[name], name not in facts.begins
            is_missing = isinstance(error, StreamNotFoundError)
            if pattern is not None and is_new and (is_missing or (may_wait and error.may_pass(established=True))):
                if not is_missing:  # else it was deleted after it was listed
                    logger.warning(STREAM_NOT_READY(stream=name, reason=error).with_code)
                self.memory.selection.leave_out_until_listed(name)
                del streams[name]
            elif not is_missing or (is_new and (must_exist or self.options.fail_on_data_loss)):
                raise error
        goes_on = self.options.ending is None
        self.memory.selection.note_and_warn_unmatched(self.js, facts.infos, self.options.filters, goes_on)
        return replace(facts, streams=streams)

    def _check_stream_and_create_consumer(self, info: StreamInfo, facts: Facts) -> None:
        """Check that a stream may be read, and prepare the query's durable and memory for it."""
        name, memory = info.name, self.memory
        if name in memory.holds:
            memory.holds[name].create_or_take_over(self.js, info)
        elif info.retention != LIMITS:
            self._check_queue_is_peeked(info, facts.infos)
        if memory.traits.on_look:
            memory.traits.on_look(self.js, info)
        warn_of_times_ahead(info)
        memory.servers[name] = peers_in_connected_cluster(info, self.js.connection.info)
        (memory.large.add if info.average_size >= LARGE else memory.large.discard)(name)
        # Direct gets return batches of messages (ADR-31) since nats-server 2.11.
        if info.allows_direct_gets and not is_older(info.server_version, 2, 11):
            memory.sizes[name] = info.average_size
        else:
            memory.sizes.pop(name, None)

    def ask_and_judge_all(self, facts: Facts, compares: bool = False) -> Facts:
        """Return the facts with a judgement on each stream: what has become of it since the query's position.

        Histories are compared where that is due; all of them if ``compares`` is set.

        Raises:
            NatsError: a request failed.
        """
        streams, begins, view = dict(facts.streams), facts.begins, self.memory.view
        for name, info in facts.infos.items():
            judgement, searched, place = Judgement.INTACT, 0, self.memory.searched.get(name)
            if place is not None and view.ask_and_judge_history(self.js, place, info) is Judgement.INTACT:
                searched = place.next  # the stream still has the history that was searched
            if name in begins:
                judgement = self.ask_and_judge_one(info, begins[name], compares, facts.early)
            streams[name] = StreamFacts(info, judgement, searched, view.update_highest_clock(info))
        return replace(facts, streams=streams, absence_logged=view.logged)

    def ask_and_judge_one(self, info: StreamInfo, begin: Position, compares: bool, answers: Answers) -> Judgement:
        """Return what has become of a stream since the query's position.

        Args:
            info: the stream's state.
            begin: the query's position.
            compares: whether to compare even if no comparison is due.
            answers: holds the answer about the message before ``begin``, if the look asked for it.

        Raises:
            NatsError: a request failed.
        """
        view = self.memory.view
        found = view.ask_and_judge_history(
            self.js, begin, info, answers, compares or self._has_unreleased_before(info.name, begin)
        )
        if found is Judgement.INTACT:
            view.note_nothing_lost(info.name)
            view.note_intact(self.js, info)
        return found

    def _has_unreleased_before(self, name: str, begin: Position) -> bool:
        """Tell whether messages before a position are still to be released."""
        hold = self.memory.holds.get(name)
        return hold is not None and not hold.may_skip_release(begin.next)

    def ask_and_resume_durables(self, facts: Facts, questions: Questions) -> dict[Question[Any], Any]:
        """Return the answers to questions; those that are one request each share a round trip.

        Raises:
            NatsError: a request failed.
        """
        infos, begins = facts.infos, facts.begins
        found = ask_all(self.js, questions, infos)
        for each in questions:
            match each:
                case RestAfter(name):
                    found[each] = ask_first_new(self.js, begins[name], infos[name])
                case IsAnother(name, position):
                    found[each] = ask_if_recreated(self.js, position, infos[name])
                case GapOf(name):
                    found[each] = self.memory.holds[name].resume_or_explain_loss(self.js, begins[name].next)
                case SizesOf(name, first, end):
                    found[each] = measure_sizes(self.js, infos[name], first, end, self.options.filters)
        return found

    def confirm_any_loss_or_raise(self, facts: Facts, name: str) -> bool:
        """Tell whether a stream contradicts what the query has read; while the contradiction is new, raise an error.

        Raises:
            JetStreamError: the contradiction has not lasted long enough.
        """
        if doubted := name in facts.doubtful_streams:
            self.memory.view.check_loss_before_confirmed(self.js, facts.begins[name], facts.infos.get(name), name)
        return doubted

    def require_gone_and_raise_or_warn(self, facts: Facts, name: str) -> None:
        """Report that a stream does not exist any more, once its absence has lasted long enough.

        Raises:
            DataLossError: ``failOnDataLoss`` is set.
            JetStreamError: the absence has not lasted long enough.
        """
        self.confirm_any_loss_or_raise(facts, name)
        view = self.memory.view
        raise_or_warn(loss_of_stream(name, facts.begins.get(name), name in view.logged, self.options), self.options)
        view.note_logged(name)

    def _check_queue_is_peeked(self, info: StreamInfo, infos: Mapping[str, StreamInfo]) -> None:
        """Check that a stream which removes acknowledged messages may be read without acknowledging them."""
        if self.options.peek:
            if info.retention == WORK_QUEUE:
                check_direct_gets_possible(info)
            return
        is_streaming = self.options.ending is None
        if self.options.pattern is not None:  # one error names all streams that match and cannot be read
            names = sorted(name for name, it in infos.items() if it.retention != LIMITS)
            way = "" if is_streaming else "; set the option 'peek' to true to read what they hold"
            begin = f"(?!({'|'.join(map(re.escape, names))})$)"
            raise UnsupportedStreamError(PATTERN_MATCHES_QUEUES(streams=", ".join(names), begin=begin, instead=way))
        way = "set the option 'peek' to true to read what it holds and remove nothing"
        if is_streaming:
            way = "set the option 'consume' to true, and what the query has processed is removed"
        raise UnsupportedStreamError(RETENTION_UNSUPPORTED(stream=info.name, retention=info.retention, instead=way))
