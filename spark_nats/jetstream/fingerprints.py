"""Whether a stream still has the history that was read of it, or that was written to it.

A server may come back with less than it had acknowledged: after a power failure, or with a volume that was restored
from a snapshot. New messages then take sequences that were in use before. The stream has the same name and was made at
the same time; only the time at which each message was stored tells one history from another. So whoever has come to a
place notes the fingerprint of the last message before it, and compares it when it comes back.

:func:`judge` and :func:`judge_hidden` decide, from what the stream's leader says; they ask nothing. :func:`compare`
asks, and :class:`Witness` says when that is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.messages import StoredMessage, first_sequence_since, next_message
from spark_nats.jetstream.positions import Fingerprint, end_of
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.api import API_PREFIX

SKEW = 20_000_000
"""Nanoseconds by which the clocks of a cluster's servers may differ. A message that was stored before another one may
have a later time than that by so much, where the leader changed in between."""


class History(Enum):
    """What has become of the history that a fingerprint was taken of."""

    KEPT = auto()  # the stream still has it, or has removed it as streams do
    SHORTER = auto()  # the stream ends before the fingerprint's message: its end is lost
    REWRITTEN = auto()  # the stream's end is lost, and other messages have its sequences
    HIDDEN = auto()  # the fingerprint's message was deleted, so those before it have to be asked for


def judge(seen: Fingerprint, info: StreamInfo, there: StoredMessage | None) -> History:
    """Decide what has become of a history of which ``seen`` is the fingerprint, in a stream in such a state.

    ``there`` is the first message from the fingerprint's sequence on; None when there is none, or it is not known.
    """
    if info.last_sequence < seen.sequence:
        return History.SHORTER
    if end_of(info).fingerprint == seen or seen.sequence < info.first_sequence:
        return History.KEPT
    if there is None or there.sequence != seen.sequence:
        return History.HIDDEN
    return History.KEPT if there.time == seen.time else History.REWRITTEN


def judge_hidden(seen: Fingerprint, later: int) -> History:
    """Decide what has become of a history whose last message was deleted.

    Whatever was stored after the history was seen is later than it, so that a later message among its sequences is of
    another history. If there is none, nothing that is new has one of them. ``later`` is the first sequence with a
    message that was stored more than :data:`SKEW` after the fingerprint.
    """
    return History.REWRITTEN if later <= seen.sequence else History.KEPT


def compare(
    js: JetStream, seen: Fingerprint, info: StreamInfo, look: Callable[[], StoredMessage | None] | None = None
) -> History:
    """Ask the stream's leader what has become of a history; never :attr:`History.HIDDEN`.

    The message at the fingerprint's sequence is asked for by ``look``; of the leader when that is None.
    """
    found = judge(seen, info, None)
    if found is History.HIDDEN:
        there = look() if look else next_message(js, info.name, seen.sequence, (">",), whole=False)
        found = judge(seen, info, there)
    return unhide(js, seen, info, found)


def unhide(js: JetStream, seen: Fingerprint, info: StreamInfo, found: History) -> History:
    """Return what was found; where the message was deleted, ask for others."""
    if found is not History.HIDDEN:
        return found
    end = seen.sequence + 1
    later = first_sequence_since(js, info.name, seen.time + SKEW + 1, info.first_sequence, end)
    return judge_hidden(seen, later)


def first_after(js: JetStream, seen: Fingerprint, info: StreamInfo) -> int:
    """Return the sequence of the first message that was stored after a history; the next one to come when none was."""
    return first_sequence_since(js, info.name, seen.time + 1, info.first_sequence, info.last_sequence + 1)


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
