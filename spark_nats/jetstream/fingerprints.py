"""What has become of a stream since somebody was at a position in it: asked of its leader, and when that is needed.

What is decided from the answers :mod:`.judgement` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.judgement import Judgement, judge
from spark_nats.jetstream.messages import FirstSince, MessageAt, Question, StoredMessage, ask, first_sequence_since
from spark_nats.jetstream.positions import Position
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.api import API_PREFIX


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
        elif isinstance(found, MessageAt):
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


class Witness:
    """Remembers what streams looked like when their histories were last found kept, and so when to compare again.

    That is at the first look, over another connection, under another leader, and when a stream's end has gone back. A
    stream of another server than ours may be put back and filled again while our connection stays: there a query that
    has something to do compares each time, in the round trip that it takes anyway.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

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


def _is_elsewhere(js: JetStream) -> bool:
    """Tell whether a stream may be on another server than the one that we are connected to."""
    return bool(js.connection.info.cluster) or js.prefix != API_PREFIX


def _connection(js: JetStream) -> tuple[str, int]:
    """Return what tells a connection from others: a server that is started again has another id."""
    info = js.connection.info
    return info.server_id, info.client_id
