"""Reports what a stream's leader knows, and decides how far to believe it.

A leader that was cut off from the others of its cluster, or paused, answers as the leader until it notices. It knows
nothing of messages that were stored meanwhile, nor of streams that were created. So a state is believed at once where a
later request would correct it; or only when the leader repeats it; or only beyond doubt (:class:`Trust`). A leader has
to report a loss for several seconds: until then :class:`StreamView` raises a transient error.

:mod:`.judgement` decides what answers mean for a reader or writer at a position; :func:`ask_and_judge` asks for what
the decision lacks, and :class:`StreamView` tells when that is needed. Other modules ask for a stream's state by
:func:`ask_stream_info` or :class:`StateOf`; only :mod:`.listing`, for an account's streams and for subjects, does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

from spark_nats import clock
from spark_nats.conditions import Once
from spark_nats.conditions.jetstream import CLOCK_BEHIND, CREATED_OTHERWISE, LOSS_DOUBTFUL
from spark_nats.errors import JetStreamError, NatsError, StreamNotFoundError, answer_or_raise
from spark_nats.jetstream import messages
from spark_nats.jetstream.api import JetStream, Request
from spark_nats.jetstream.judgement import SKEW, Judgement, describe_loss, judge
from spark_nats.jetstream.positions import Fingerprint, Position
from spark_nats.jetstream.streams import StreamInfo, check_leader, parse_stream
from spark_nats.jetstream.times import ask_time_fall
from spark_nats.protocol.api import Api

CONFIRMATION = 12.0
"""Seconds for which a cluster has to report a loss. A leader without followers notices within ten (the server's
``lostQuorumInterval``)."""


@dataclass(frozen=True, slots=True)
class StateOf(messages.Asked[StreamInfo]):
    """Asks for a stream's state, see :func:`ask_stream_info`."""

    stream: str
    again: int = 0  # the sequence for which the state is requested again, which makes this a new question; 0 at first

    @property
    def request(self) -> Request:
        """The request to send."""
        return Request(Api.STREAM_INFO, (self.stream,))

    def parse_result(self, answer: dict[str, Any]) -> StreamInfo:
        """Return the state in an answer, or raise that the stream has no leader that can be believed."""
        check_leader(answer, self.stream)
        return parse_stream(answer, self.stream)


_OURS_AHEAD = 60_000_000_000
"""Nanoseconds by which this machine's clock may be ahead of a server's, and still counts for what that has shown."""
_IN_STEP = 500_000_000
"""Nanoseconds by which a server's clock may be behind without more doubt: less than it takes to exchange a volume."""

logger = logging.getLogger(__name__)


def ask_stream_info(js: JetStream, name: str) -> StreamInfo:
    """Return a stream's state as its leader knows it, see :func:`~spark_nats.jetstream.streams.check_leader`.

    Raises:
        StreamNotFoundError: there is no such stream.
        JetStreamError: it has no leader at the moment.
        NatsError: the request failed.
    """
    return messages.ask(js, [StateOf(name)])[0]


class Trust(Enum):
    """How far to believe a state that a leader has just reported."""

    AS_SAID = auto()
    TWICE = auto()  # a leader that has not heard from all others lately has to repeat it a moment later
    BEYOND_DOUBT = auto()  # after a wait that rules out a paused leader; in a cluster that takes CONFIRMATION seconds


def ask_again_if_doubted(js: JetStream, answered: StreamInfo, trust: Trust) -> StreamInfo:
    """Return a reported state of a stream, or a newer one where the report alone is not to be believed.

    Raises:
        NatsError: the newer state is not reported.
    """
    return answer_or_raise(ask_all_again_if_doubted(js, {answered.name: answered}, trust)[answered.name])


def ask_all_again_if_doubted(
    js: JetStream, answered: Mapping[str, StreamInfo], trust: Trust
) -> dict[str, StreamInfo | NatsError]:
    """Return the states of streams as :func:`ask_again_if_doubted` does, or the error in an answer, in one round trip.

    A leader that resumes after a pause first answers the requests that wait for it, and then hears that there is
    another leader. So of two leaders, the one that knows less was paused.
    """
    found: dict[str, StreamInfo | NatsError] = dict(answered)
    twice, beyond = trust is Trust.TWICE, trust is Trust.BEYOND_DOUBT and js.may_be_clustered
    doubted = [
        StateOf(name)
        for name, info in answered.items()
        if beyond or (twice and messages.may_be_former_leader(js, info))
    ]
    later = CONFIRMATION if beyond else messages.MOMENT
    for question, again in zip(doubted, messages.try_asking(js, doubted, later), strict=True):
        first = answered[question.stream]
        knows_less = isinstance(again, StreamInfo) and again.last_sequence < first.last_sequence
        if not (twice and knows_less and again.created == first.created):
            found[question.stream] = again
    return found


def ask_and_judge(
    js: JetStream,
    position: Position,
    info: StreamInfo,
    ask: Callable[[messages.Questions], messages.Answers] | None = None,
) -> Judgement:
    """Return what has become of a stream; ``ask`` answers what the decision lacks, or else the stream's leader does.

    Raises:
        NatsError: a request failed.
    """
    return messages.run_decision(judge(position, info), ask or partial(messages.ask_all, js))


def ask_if_recreated(js: JetStream, position: Position, info: StreamInfo) -> bool:
    """Tell whether a stream is another one than that of a position; requests nothing where it was created as noted.

    Raises:
        NatsError: a request failed.
    """
    return info.created != position.created and ask_and_judge(js, position, info) is Judgement.RECREATED


def log_created_otherwise(position: Position, info: StreamInfo) -> None:
    """Log that a stream reports another time of its creation than a position notes, and is the same one."""
    logger.warning(CREATED_OTHERWISE(stream=info.name, created=info.created, old=position.created).with_code)


def ask_first_new(js: JetStream, position: Position, info: StreamInfo) -> int:
    """Return the sequence from which on a stream that has lost what was before a position may have new messages.

    That is the first message with a later time than the message before the position. Where the server's clock is
    behind, new messages may have earlier times. Then it is an earlier message, which may have been read before: one
    after an earlier place that the position notes, if the stream still has that; one that is so much earlier as the
    clock is behind; and where times fall by as much as that explains, the first one after they fall.

    The result is the stream's next sequence when there is no such message, or when the position has no time.

    Raises:
        NatsError: a request failed.
    """
    end = info.last_sequence + 1
    if position.time is None:
        return end
    start = info.first_sequence
    later = messages.ask_first_since(js, info.name, position.time + 1, start, end)
    behind = _ask_clock_lag(js, position, info.name)
    if not behind or later == start:
        return later
    if (before := position.before) is not None and start <= before.sequence < end:
        there = messages.ask(js, [messages.MessageAt(info.name, before.sequence)])[0]
        if there is not None and Fingerprint(there.sequence, there.time) == before:
            start = before.sequence + 1
    first = min(later, messages.ask_first_since(js, info.name, position.time - behind - _IN_STEP, start, end))
    if first < later and (fallen := ask_time_fall(js, info, first, later, behind // 2)) is not None:
        # The clock may also have been set back since, and then what was stored before that has later times.
        first = messages.ask_first_since(js, info.name, position.time + 1, first, fallen.sequence)
    if first < later:
        said = CLOCK_BEHIND(stream=info.name, seconds=behind / 1e9, first=first, last=later - 1)
        logger.warning(said.with_code)
    return first


def _ask_clock_lag(js: JetStream, position: Position, stream: str) -> int:
    """Return by how many nanoseconds the clock of a stream's leader is behind; 0 where it is about right.

    It is behind where it shows an earlier time than this machine's, or than was noted at a position.
    """
    at = max(clock.time_ns(), position.time or 0, position.latest or 0)
    now = ask_stream_info(js, stream).time
    return at - now if now and at - now > _IN_STEP else 0


class _Seen(NamedTuple):
    connection: tuple[str, int]
    info: StreamInfo
    busy: bool  # whether the stream was not seen before, or has stored a message since


class StreamView:
    """Remembers streams as they were when their histories were last found intact, and doubts reports of a loss since.

    Such a report is doubted for ``patience`` or :data:`CONFIRMATION` seconds, whichever is less. A standalone server is
    believed at once, because it accepts connections only after loading its streams.

    The view compares a history at the first request, over another connection, under another leader, and when a stream's
    end has moved back. A stream on another server than the connected one may be restored and filled again while the
    connection stays: there, a query with new messages compares each time, in the round trip that it takes anyway.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[str, float] = {}  # since when each loss is reported
        self._logged: set[str] = set()
        self._renamed = Once()  # streams that report another time of creation
        # By stream, see update_highest_clock, and when by clock.monotonic().
        self._clocks: dict[str, tuple[int, float]] = {}
        self._seen: dict[str, _Seen] = {}

    # Existence

    def request_state(self, js: JetStream, stream: str) -> StreamInfo:
        """Return the state of a stream that existed, and note that the stream has lost nothing.

        Raises:
            StreamNotFoundError: the leader has reported for long enough that the stream is gone.
            JetStreamError: the leader has not reported that for long enough, or there is no leader at the moment.
            NatsError: the request failed.
        """
        try:
            info = ask_stream_info(js, stream)
        except StreamNotFoundError as error:
            self.check_loss_confirmed(js, stream, str(error))
            raise
        self.note_nothing_lost(stream)
        return info

    def check_loss_confirmed(self, js: JetStream, stream: str, what: str) -> None:
        """Raise a transient error unless the loss ``what`` was reported for long enough, or outside a cluster."""
        since = self._since.setdefault(stream, clock.monotonic())
        if js.may_be_clustered and clock.monotonic() - since < min(self._patience, CONFIRMATION):
            raise JetStreamError(LOSS_DOUBTFUL(what=what))

    def check_loss_before_confirmed(
        self, js: JetStream, position: Position, info: StreamInfo | None, stream: str
    ) -> None:
        """As :meth:`check_loss_confirmed`, for a loss before a position; ``info`` is None if there is no stream."""
        self.check_loss_confirmed(js, stream, describe_loss(position, info, stream))

    def note_nothing_lost(self, stream: str) -> None:
        """Note that the stream has lost nothing."""
        self._since.pop(stream, None)
        self._logged.discard(stream)

    @property
    def logged(self) -> frozenset[str]:
        """The streams about which something was logged since they were last complete."""
        return frozenset(self._logged)

    def note_logged(self, stream: str) -> None:
        """Note that something is logged about a stream."""
        self._logged.add(stream)

    # History

    def needs_history_request(self, js: JetStream, stream: str) -> bool:
        """Tell, before a stream's state is requested, whether to request its history in the same round trip."""
        seen = self._seen.get(stream)
        return seen is None or seen.connection != _connection_identity(js) or (seen.busy and js.may_be_clustered)

    def needs_comparison(self, js: JetStream, info: StreamInfo) -> bool:
        """Tell whether the history of a stream in this state has to be compared."""
        seen = self._seen.get(info.name)
        return (
            seen is None
            or seen.connection != _connection_identity(js)
            or (seen.info.leader, seen.info.led_since) != (info.leader, info.led_since)
            or info.last_sequence < seen.info.last_sequence
            or info.last_time < seen.info.last_time
            or (js.may_be_clustered and not info.led_since and info.last_time != seen.info.last_time)
        )

    def note_intact(self, js: JetStream, info: StreamInfo) -> None:
        """Note that the history of a stream was found intact when the stream had this state."""
        seen = self._seen.get(info.name)
        busy = seen is None or seen.info.last_time != info.last_time
        self._seen[info.name] = _Seen(_connection_identity(js), info, busy)

    def ask_and_judge_history(
        self,
        js: JetStream,
        position: Position,
        info: StreamInfo,
        answers: Mapping[messages.Question[Any], Any] = {},
        is_due: bool = False,
    ) -> Judgement:
        """Return what has become of a stream since a position in it was noted.

        Its history is compared if that ``is_due``, if it was requested with the state, or if there is a doubt; else
        only the state counts.

        Raises:
            NatsError: a request failed.
        """
        place, asked = messages.MessageAt(info.name, position.last), list[messages.Question[Any]]()
        is_due = is_due or info.created != position.created

        def ask(questions: messages.Questions) -> messages.Answers:
            if not (asked or place in answers or is_due or self.needs_comparison(js, info)):
                return {place: messages.StoredMessage(position.last, position.time or 0)}  # taken for unchanged
            asked.extend(questions)
            return messages.ask_all(js, questions)

        found = messages.run_decision(judge(position, info), ask, answers)
        if place in asked and found is Judgement.INTACT:
            self.note_intact(js, info)
        if found is Judgement.INTACT and info.created != position.created and self._renamed.add_if_new(info.name):
            log_created_otherwise(position, info)
        return found

    def update_highest_clock(self, info: StreamInfo) -> int:
        """Return a time that no message is later than which a stream has now, in nanoseconds since 1970.

        It is the latest that the servers of the stream, or this machine, may have shown up to now: a clock that was set
        back has shown what it showed at an earlier look, and what has passed since.
        """
        now = clock.monotonic()
        before, at = self._clocks.get(info.name, (0, now))
        highest = max(info.time, info.last_time, min(clock.time_ns(), info.time + _OURS_AHEAD))
        passed = before + round((now - at) * 1e9)
        if passed > highest + 2 * SKEW:  # else the clocks only run at rates that differ a little
            highest = passed
        self._clocks[info.name] = highest, now
        return highest


def _connection_identity(js: JetStream) -> tuple[str, int]:
    """Return what distinguishes a connection from others: a restarted server has another id."""
    info = js.connection.info
    return info.server_id, info.client_id
