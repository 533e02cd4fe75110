"""Looking at the streams of a query: all that is to be known is asked first, in few round trips.

One round trip asks for the states of all streams, and, where it is due, for the message before the place to which the
query has come. What else a decision needs it names (:class:`~spark_nats.jetstream.messages.Question`), and all of that
goes in one round trip too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from spark_nats.conditions.streams import PATTERN_MATCHES_QUEUES, RETENTION_UNSUPPORTED
from spark_nats.conditions.warnings import STREAM_NOT_READY
from spark_nats.errors import NatsError, StreamNotFoundError, UnsupportedStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.buckets.keyvalue import naming_bucket
from spark_nats.jetstream.consuming.durables import DurableHandle, check_direct, default_name
from spark_nats.jetstream.consuming.progress import ProgressConsumer
from spark_nats.jetstream.judgement import Judgement, contradiction, judge
from spark_nats.jetstream.matching import Selection
from spark_nats.jetstream.messages import MessageAt, Question, StateOf, StoredMessage, ask, ask_each
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.reading.measuring import measure
from spark_nats.jetstream.streams import LIMITS, WORK_QUEUE, StreamInfo, create_stream
from spark_nats.jetstream.views import StaleReadGuard, Trust, Witness, all_believed, first_new, judged
from spark_nats.options.read import ReadOptions
from spark_nats.source.stream.facts import Facts, GapOf, RestAfter, SizesOf, StreamFacts
from spark_nats.source.stream.losses import say, stream_lost
from spark_nats.source.stream.noticing import notice_times_ahead

logger = logging.getLogger(__name__)


class Memory:
    """What a query remembers from one look to the next. Its patience is most seconds to doubt that something is gone.

    Attributes:
        selection: which streams are read, as far as is found out.
        guard: what was said to be gone.
        witness: what was seen of their histories.
        holds: by stream the durable consumers that hold messages for the query; none where it does not consume.
        progress: by stream the consumers that show how far the query is; none where nobody asks for that.
        searched: up to where they were searched in vain.
        expects_more: whether it is likely that streams have something new for the query.
        states: of all streams of the last look; none where one of them does not exist.
        sizes: of streams that allow batched direct gets, how many bytes a message takes on average.
    """

    def __init__(self, options: ReadOptions, patience: float) -> None:
        self.selection = Selection(options.streams, options.pattern)
        self.guard = StaleReadGuard(patience)
        self.witness = Witness()
        self.holds = {
            name: DurableHandle(
                name, options.consumer or default_name(name, options.filters), options.filters, patience
            )
            for name in (options.streams if options.consume else ())
        }
        self.progress: dict[str, ProgressConsumer] = {}
        self.searched: Mapping[str, Position] = {}
        self.expects_more = False
        self.states: Mapping[str, StreamInfo] = {}
        self.sizes: dict[str, float] = {}


class Look:
    """One look at the streams of a query, over one connection.

    Raises:
        NatsError: it could not be asked which streams match.
    """

    def __init__(self, js: JetStream, options: ReadOptions, memory: Memory) -> None:
        self.js = js
        self.options = options
        self.memory = memory
        memory.selection.look(js)

    def gather(
        self,
        names: Sequence[str],
        begins: Mapping[str, Position] = {},
        must_exist: bool = False,
        may_wait: bool = False,
        compares: bool = False,
    ) -> Facts:
        """Return what is to be known of streams first; see to it that the durable consumers of a query are there.

        Args:
            names: which streams.
            begins: to where the query has come in those where it is already.
            must_exist: whether one that is named and does not exist is an error, whatever ``failOnDataLoss`` says.
            may_wait: whether one that matches and has no leader yet keeps the query from no other one.
            compares: whether their histories are compared even where nothing tells that it is due.

        Raises:
            StreamNotFoundError: one does not exist, where the query was not yet.
            UnsupportedStreamError: one cannot be read by sequence, or not like this.
            ConsumerConflictError: the query cannot have its durable consumer.
            NatsError: a request failed.
        """
        pattern, streams = self.options.pattern, dict[str, StreamFacts | None]()
        early = self._last_ones(names, begins) if may_wait and self.memory.expects_more else []
        states, messages, last = self._states(names, begins, compares, early)
        for name, found in states.items():
            begin = begins.get(name)
            if isinstance(found, StreamNotFoundError):
                if begin is None and pattern is not None:
                    self.memory.selection.leave_out(name)  # it has gone since it was found to match
                elif begin is None and (must_exist or self.options.fail_on_data_loss):
                    bucket = self.options.bucket
                    with naming_bucket(self.js, bucket) if bucket else nullcontext():
                        raise found
                else:
                    streams[name] = None
            elif isinstance(found, NatsError):
                if not may_wait or pattern is None or begin is not None or not found.passes(established=True):
                    raise found
                logger.warning(STREAM_NOT_READY(stream=name, reason=found).coded)
                self.memory.selection.leave_out(name)
            else:
                if name in self.memory.holds:
                    self.memory.holds[name].adopt(self.js, found)
                elif found.retention != LIMITS:
                    self._check_may_be_read(found, states)
                if (consumer := self.options.progress_consumer) is not None:
                    shows = ProgressConsumer(name, consumer, self.options.filters)
                    self.memory.progress.setdefault(name, shows).take(self.js, found)
                self.memory.selection.see(self.js, found, self.options.filters)
                notice_times_ahead(found)
                self._note_size(found)
                searched, judgement = self._searched(found), Judgement.INTACT
                if begin is not None:
                    judgement = self.judge(found, begin, compares, messages)
                streams[name] = StreamFacts(found, judgement, searched)
        return Facts(streams, begins, self.memory.guard.said, last)

    def _states(
        self, names: Sequence[str], begins: Mapping[str, Position], compares: bool, early: Sequence[MessageAt]
    ) -> tuple[
        dict[str, StreamInfo | NatsError], dict[str, StoredMessage | None], dict[Question[Any], StoredMessage | None]
    ]:
        """Return the states of streams, and what stands where the query has come to if that is to be compared.

        The third are the answers to other questions, which go with them.
        """
        if config := self.options.create_stream:
            return {name: create_stream(self.js, config) for name in names}, {}, {}
        messages = {
            name: MessageAt(name, begins[name].last)
            for name in names
            if name in begins and begins[name].fingerprint
            if compares or self._releases(name, begins[name]) or self.memory.witness.expects(self.js, name)
        }
        asked: list[StateOf | MessageAt] = [*map(StateOf, names), *messages.values(), *early]
        answers = dict(zip(asked, ask_each(self.js, asked), strict=True))
        states = {name: answers[StateOf(name)] for name in names}
        new = {name: info for name, info in states.items() if name not in begins and isinstance(info, StreamInfo)}
        states |= all_believed(self.js, new, Trust.TWICE)
        there: dict[str, StoredMessage | None] = {}
        for name, question in messages.items():
            there[name] = answers[question]
            if isinstance(answers[question], NatsError) and not isinstance(states[name], NatsError):
                states[name] = answers[question]
        return states, there, {each: answers[each] for each in early if not isinstance(answers[each], NatsError)}

    def _last_ones(self, names: Sequence[str], begins: Mapping[str, Position]) -> list[MessageAt]:
        """Return the questions for the last messages that match, of streams where the query is already."""
        return [MessageAt(name, None, subject) for name in names if name in begins for subject in self.options.filters]

    def _releases(self, name: str, begin: Position) -> bool:
        """Tell whether what the query has read of a stream is to be released."""
        hold = self.memory.holds.get(name)
        return hold is not None and not hold.released(begin.created, begin.next)

    def judge(
        self, info: StreamInfo, begin: Position, compares: bool, there: Mapping[str, StoredMessage | None] = {}
    ) -> Judgement:
        """Return what has become of a stream since the query was there.

        Args:
            info: the stream's state.
            begin: where the query has come to.
            compares: whether it is compared even if nothing tells that it is due.
            there: by stream the first message from the one before that on, where it was asked for.

        Raises:
            NatsError: a request failed.
        """
        found = self._compared(info, begin, compares or self._releases(info.name, begin), there)
        if found is Judgement.INTACT:
            self.memory.guard.clear(info.name)
            self.memory.witness.saw(self.js, info)
        return found

    def _compared(
        self, info: StreamInfo, place: Position, is_due: bool, there: Mapping[str, StoredMessage | None]
    ) -> Judgement:
        answers: dict[Question[Any], Any] = {}
        if info.name in there:
            answers[MessageAt(info.name, place.last)] = there[info.name]
        found = judge(place, info, answers)
        if isinstance(found, Judgement):
            return found
        if not (answers or is_due or self.memory.witness.doubts(self.js, info)):
            return Judgement.INTACT
        found = judged(self.js, place, info, answers)
        if not answers and found is Judgement.INTACT:
            self.memory.witness.saw(self.js, info)
        return found

    def _note_size(self, info: StreamInfo) -> None:
        """Note how large messages are, where batches of them may be had by direct gets (ADR-31, from 2.11 on)."""
        if info.allows_direct_gets and not self.js.connection.info.is_older_than(2, 11):
            self.memory.sizes[info.name] = info.average_size
        else:
            self.memory.sizes.pop(info.name, None)

    def _searched(self, info: StreamInfo) -> int:
        """Return up to where a stream was searched in vain, if it still has the history that was searched; else 0."""
        place = self.memory.searched.get(info.name)
        if place is None or self._compared(info, place, False, {}) is not Judgement.INTACT:
            return 0
        return place.next

    def answers(self, facts: Facts, questions: Sequence[Question[Any]]) -> dict[Question[Any], Any]:
        """Return the answers to questions; those about messages and states are asked in one round trip.

        Raises:
            NatsError: a request failed.
        """
        together = [each for each in questions if isinstance(each, StateOf | MessageAt)]
        found: dict[Question[Any], Any] = dict(zip(together, ask(self.js, together), strict=True))
        infos, begins = facts.infos, facts.begins
        for each in questions:
            match each:
                case RestAfter(name):
                    found[each] = first_new(self.js, begins[name], infos[name])
                case GapOf(name):
                    found[each] = self.memory.holds[name].resumes(self.js, begins[name].next)
                case SizesOf(name, first, end):
                    found[each] = measure(self.js, infos[name], first, end, self.options.filters)
        return found

    def believe_gone(self, name: str, begin: Position | None) -> None:
        """Say that a stream does not exist any more, when that was said for a while.

        Raises:
            DataLossError: that is an error.
            JetStreamError: it has to be said for longer (503).
        """
        guard = self.memory.guard
        if begin is not None:
            guard.confirm(self.js, name, contradiction(begin, None, name))
        say(stream_lost(name, begin, name in guard.said, self.options), self.options)
        guard.say(name)

    def _check_may_be_read(self, info: StreamInfo, states: Mapping[str, StreamInfo | NatsError]) -> None:
        """Check that a stream whose messages go when they are acknowledged may be read without doing so."""
        if self.options.peek:
            if info.retention == WORK_QUEUE:
                check_direct(self.js, info)
            return
        is_streaming = self.options.ending is None
        if self.options.pattern is not None:  # all that match and cannot be read are named at once
            names = sorted(n for n, it in states.items() if isinstance(it, StreamInfo) and it.retention != LIMITS)
            way = "" if is_streaming else "; set the option 'peek' to true to read what they hold"
            begin = f"(?!({'|'.join(map(re.escape, names))})$)"
            raise UnsupportedStreamError(PATTERN_MATCHES_QUEUES(streams=", ".join(names), begin=begin, instead=way))
        way = "set the option 'peek' to true to read what it holds and remove nothing"
        if is_streaming:
            way = "set the option 'consume' to true, and what the query has processed is removed"
        raise UnsupportedStreamError(RETENTION_UNSUPPORTED(stream=info.name, retention=info.retention, instead=way))
