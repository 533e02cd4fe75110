"""What a stream's leader says of it, and how far that is believed.

A leader that was cut off from the others of its cluster, or stopped for a while, goes on answering as the leader until
it notices. It knows nothing of what was stored meanwhile, nor of streams that were made. So a state is believed as it
is said, where a later look would set it right; or only when it was said twice; or beyond doubt. What is said to be gone
has to be said for a while: :class:`StreamView` raises an error that passes until it was.

What the answers mean for whoever has come to a position :mod:`.judgement` decides; :func:`judged` asks what it lacks,
and :class:`StreamView` says when that is needed. Nobody else asks for a stream's state, but for lists of an account's
streams and subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from spark_nats import clock
from spark_nats.conditions.jetstream import LOSS_DOUBTFUL
from spark_nats.errors import JetStreamError, NatsError, StreamNotFoundError
from spark_nats.jetstream.api import JetStream, Request
from spark_nats.jetstream.judgement import Judgement, contradiction, judge
from spark_nats.jetstream.messages import (
    Asked,
    FirstSince,
    MessageAt,
    Question,
    StoredMessage,
    ask,
    ask_each,
    first_sequence_since,
)
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import StreamInfo, check_leader, state_in
from spark_nats.protocol.api import API_PREFIX, Api

_MOMENT = 0.25  # seconds in which a leader that was stopped for a while hears that there is another one
CONFIRMATION = 12.0
"""Seconds for which a cluster has to say that something is gone. A leader without followers notices within ten (the
server's ``lostQuorumInterval``)."""


@dataclass(frozen=True, slots=True)
class StateOf(Asked[StreamInfo]):
    """Asks for a stream's state, see :func:`stream_info`."""

    stream: str
    again: int = 0  # the sequence for which it is asked again, which tells this answer from earlier ones; 0 at first

    @property
    def request(self) -> Request:
        """What is sent."""
        return Request(Api.STREAM_INFO, (self.stream,))

    def read(self, answer: dict[str, Any]) -> StreamInfo:
        """Return the state in an answer, or raise that the stream has no leader that can be believed."""
        check_leader(answer, self.stream)
        return state_in(answer, self.stream)


def stream_info(js: JetStream, name: str) -> StreamInfo:
    """Return a stream's state, as its leader knows it, see :func:`~spark_nats.jetstream.streams.check_leader`.

    Raises:
        StreamNotFoundError: there is no such stream.
        JetStreamError: it has no leader at the moment.
        NatsError: the request failed.
    """
    info: StreamInfo
    (info,) = ask(js, [StateOf(name)])
    return info


class Trust(Enum):
    """How far a state is believed that was just said."""

    AS_SAID = auto()
    TWICE = auto()  # a leader that has not heard of all others lately has to say it again, a moment later
    BEYOND_DOUBT = auto()  # as no leader says it that was stopped for a while; in a cluster that takes its time


def believed(js: JetStream, said: StreamInfo, trust: Trust) -> StreamInfo:
    """Return the state of a stream that was just said; as it is said again, where it is not to be believed.

    Raises:
        NatsError: it is not said again.
    """
    found = all_believed(js, {said.name: said}, trust)[said.name]
    if isinstance(found, NatsError):
        raise found
    return found


def all_believed(js: JetStream, said: Mapping[str, StreamInfo], trust: Trust) -> dict[str, StreamInfo | NatsError]:
    """Return the states of streams as :func:`believed` does, or the error that an answer is: in one round trip.

    A leader that goes on after it was stopped answers what waits for it, and then hears that there is another one: of
    two leaders the one that knows less was stopped.
    """
    found: dict[str, StreamInfo | NatsError] = dict(said)
    twice, beyond = trust is Trust.TWICE, trust is Trust.BEYOND_DOUBT and js.connection.info.cluster
    doubted = [StateOf(name) for name, info in said.items() if beyond or (twice and not info.undisputed)]
    if doubted:
        js.connection.wait(CONFIRMATION if beyond else _MOMENT)
    for question, again in zip(doubted, ask_each(js, doubted), strict=True):
        first = said[question.stream]
        knows_less = isinstance(again, StreamInfo) and again.last_sequence < first.last_sequence
        if not (twice and knows_less and again.created == first.created):
            found[question.stream] = again
    return found


def wait_a_moment(js: JetStream) -> None:
    """Wait until a leader that was stopped for a while has heard that there is another one."""
    js.connection.wait(_MOMENT)


def judged(
    js: JetStream,
    position: Position,
    info: StreamInfo,
    answers: Mapping[Question[Any], Any] = {},
    look: Callable[[], StoredMessage | None] | None = None,
) -> Judgement:
    """Return what has become of a stream; ask its leader what the answers that are known do not say.

    The message before the position is asked for by ``look``, unless that is None.

    Raises:
        NatsError: a request failed.
    """
    known = dict(answers)
    while not isinstance(found := judge(position, info, known), Judgement):
        if isinstance(found, FirstSince):
            known[found] = first_sequence_since(js, found.stream, found.time, found.start, found.end)
        else:
            (known[found],) = [look()] if look else ask(js, [found])
    return found


def first_new(js: JetStream, position: Position, info: StreamInfo) -> int:
    """Return the sequence of the first message that was stored after all before a position.

    That is the next one to come when none was, or when it is not known when those before it were stored.
    """
    behind = info.last_sequence + 1
    if position.time is None:
        return behind
    return first_sequence_since(js, info.name, position.time + 1, info.first_sequence, behind)


class _Seen(NamedTuple):
    connection: tuple[str, int]
    info: StreamInfo
    busy: bool


class StreamView:
    """Streams as somebody sees them who comes back to them: what they were when their histories were last found kept.

    What is said to be gone since is doubted for ``patience`` seconds at most. A server without a cluster is believed at
    once: it listens only when it has its streams.

    A history is compared at the first look, over another connection, under another leader, and when a stream's end has
    gone back. A stream of another server than ours may be put back and filled again while our connection stays: there a
    query that has something to do compares each time, in the round trip that it takes anyway.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[str, float] = {}  # since when something is doubted
        self._said: set[str] = set()
        self._seen: dict[str, _Seen] = {}

    # Whether it is there

    def state(self, js: JetStream, stream: str) -> StreamInfo:
        """Return the state of a stream that was there, and of which nothing else is doubted.

        Raises:
            StreamNotFoundError: that it is gone has been said for long enough.
            JetStreamError: that it is gone has to be said for longer (503); or it has no leader at the moment.
            NatsError: the request failed.
        """
        try:
            info = stream_info(js, stream)
        except StreamNotFoundError as error:
            self.confirm(js, stream, str(error))
            raise
        self.clear(stream)
        return info

    def confirm(self, js: JetStream, stream: str, what: str) -> None:
        """Return when a loss, of which ``what`` tells, has been said for long enough; else raise an error (503)."""
        since = self._since.setdefault(stream, clock.monotonic())
        if js.connection.info.cluster and clock.monotonic() - since < min(self._patience, CONFIRMATION):
            raise JetStreamError(LOSS_DOUBTFUL(what=what))

    def confirm_lost(self, js: JetStream, position: Position, info: StreamInfo | None, stream: str) -> None:
        """The same of what was before a position in a stream that is in such a state now, or does not exist."""
        self.confirm(js, stream, contradiction(position, info, stream))

    def clear(self, stream: str) -> None:
        """Note that all is there."""
        self._since.pop(stream, None)
        self._said.discard(stream)

    @property
    def said(self) -> frozenset[str]:
        """The streams of which the log was told something since all of them was there."""
        return frozenset(self._said)

    def mark_logged(self, stream: str) -> None:
        """Note that the log is told."""
        self._said.add(stream)

    # Whether it has its history

    def expects(self, js: JetStream, stream: str) -> bool:
        """Tell, before a stream is asked for its state, whether its history is to be asked for with it."""
        seen = self._seen.get(stream)
        return seen is None or seen.connection != _connection(js) or (seen.busy and _is_elsewhere(js))

    def doubts(self, js: JetStream, info: StreamInfo) -> bool:
        """Tell whether the history of a stream that is in such a state is to be compared."""
        seen = self._seen.get(info.name)
        return (
            seen is None
            or seen.connection != _connection(js)
            or (seen.info.leader, seen.info.led_since) != (info.leader, info.led_since)
            or info.last_sequence < seen.info.last_sequence
            or info.last_time < seen.info.last_time
            or (_is_elsewhere(js) and not info.led_since and info.last_time != seen.info.last_time)
        )

    def saw(self, js: JetStream, info: StreamInfo) -> None:
        """Note that a stream in such a state has its history."""
        seen = self._seen.get(info.name)
        busy = seen is None or seen.info.last_time != info.last_time
        self._seen[info.name] = _Seen(_connection(js), info, busy)

    def compared(
        self,
        js: JetStream,
        position: Position,
        info: StreamInfo,
        answers: Mapping[Question[Any], Any] = {},
        is_due: bool = False,
    ) -> Judgement:
        """Return what has become of a stream since somebody was at a position.

        Its history is compared if that ``is_due``, or was asked for with the state, or if there is a doubt.

        Raises:
            NatsError: a request failed.
        """
        found, is_known = judge(position, info, answers), MessageAt(info.name, position.last) in answers
        if isinstance(found, Judgement):
            return found
        if not (is_known or is_due or self.doubts(js, info)):
            return Judgement.INTACT
        found = judged(js, position, info, answers)
        if not is_known and found is Judgement.INTACT:
            self.saw(js, info)
        return found


def _is_elsewhere(js: JetStream) -> bool:
    """Tell whether a stream may be on another server than the one that we are connected to."""
    return bool(js.connection.info.cluster) or js.prefix != API_PREFIX


def _connection(js: JetStream) -> tuple[str, int]:
    """Return what tells a connection from others: a server that is started again has another id."""
    info = js.connection.info
    return info.server_id, info.client_id
