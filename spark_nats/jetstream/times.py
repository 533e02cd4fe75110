"""Finds where a time begins and ends in a stream, also where times fall because a clock was set back.

A stream's leader stamps each message by its own clock. That is set back by a time service, with a machine that is
resumed or moved, or by another leader. Then a message may have an earlier time than the one before it. What begins at a
time must leave out nothing stored at or after it, and what ends at a time nothing stored before it.

A server cannot say where times fall; its own search for a time finds any such place. So this module looks at some more
messages beside the place that a binary search has found. One of them may be on the wrong side of the time. Where the
times of two of them fall, it looks between these for the last message before the fall or the first one after it. It
looks at each of the nearest messages, and at fewer the farther away they are: where a clock was set back by some
seconds, only messages of some seconds before or after the place are on the wrong side. What may stay unseen are a few
messages far from the place, between two that are looked at and whose times rise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.messages import (
    MessageAt,
    StoredMessage,
    ask,
    ask_first_by_bisection,
    ask_first_message_from,
    ask_first_since,
)
from spark_nats.jetstream.streams import StreamInfo
from spark_nats.protocol.documents import EPOCH

_NEAR = 64
"""So many of the nearest messages are looked at, fewer where they are large: each request returns a payload."""
_MAX_BYTES = 4 << 20
"""Bytes that are requested in one round trip, by the stream's average."""
_MAX_FALLS = 16
"""So many falls are followed, one after the other; more are seen only where a server makes them up."""


class Found(NamedTuple):
    """Where a time begins or ends.

    Attributes:
        sequence: the first sequence from there on.
        astray: the message that has moved this place, as times fall after it or before it; None where they rise.
    """

    sequence: int
    astray: StoredMessage | None = None


def ask_first_at(js: JetStream, info: StreamInfo, time: datetime) -> Found:
    """Return the first sequence stored at or after a time with a zone, or the stream's next one when there is none.

    It considers nothing that was stored after the stream's state ``info``.
    """
    since, first, end = _nanoseconds(time), info.first_sequence, info.last_sequence + 1
    found = Found(ask_first_since(js, info.name, since, first, end))
    for _ in range(_MAX_FALLS):
        before = range(found.sequence - 1, first - 1, -1)
        early = _ask_farthest_astray(js, info, lambda message: message.time >= since, before)
        if early is None:
            break
        found = Found(ask_first_since(js, info.name, since, first, early.sequence + 1), early)
    return found


def ask_end_at(js: JetStream, info: StreamInfo, time: datetime, included: bool = False) -> Found:
    """Return the sequence after the last one stored before a time with a zone; or, if it is ``included``, at that time.

    A time counts in microseconds, as it does in a row. It considers nothing that was stored after the stream's state
    ``info``.
    """
    until, end = _nanoseconds(time) + included * 1000, info.last_sequence + 1
    found = Found(ask_first_since(js, info.name, until, info.first_sequence, end))
    for _ in range(_MAX_FALLS):
        late = _ask_farthest_astray(js, info, lambda message: message.time < until, range(found.sequence, end))
        if late is None:
            break
        found = Found(ask_first_since(js, info.name, until, late.sequence + 1, end), late)
    return found


def ask_time_fall(js: JetStream, info: StreamInfo, start: int, end: int, least: int) -> StoredMessage | None:
    """Return the first message of a range whose time is by ``least`` nanoseconds or more earlier than one before it.

    It is None where some messages, evenly spread over ``start <= sequence < end``, show no such fall.
    """
    count = min(max(2, int(_MAX_BYTES / max(1.0, info.average_size))), _NEAR)
    places = [*range(start, end, max(1, (end - start) // count)), end - 1]
    seen = sorted({each for each in ask(js, [MessageAt(info.name, place) for place in places]) if each})
    pairs = pairwise(each for each in seen if each.sequence < end)
    before, after = next((pair for pair in pairs if pair[0].time - pair[1].time >= least), (None, None))
    if before is None or after is None:
        return None
    fallen = before.time - least
    return (
        ask_first_by_bisection(js, info.name, before.sequence + 1, after.sequence, lambda it: it.time <= fallen)
        or after
    )


def _nanoseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1) * 1000


def _ask_farthest_astray(
    js: JetStream, info: StreamInfo, is_astray: Callable[[StoredMessage], bool], beside: range
) -> StoredMessage | None:
    """Return the message that is astray and, of those that are seen, the farthest from the beginning of ``beside``."""
    at_once = min(max(1, int(_MAX_BYTES / max(1.0, info.average_size))), _NEAR)
    questions = [MessageAt(info.name, sequence) for sequence in _sample_sequences(beside, at_once)]
    answers = (ask(js, questions[i : i + at_once]) for i in range(0, len(questions), at_once))
    seen = sorted({each for some in answers for each in some if each and each.sequence in beside})
    found = [each for each in seen if is_astray(each)]
    pairs = [(a, b) for a, b in pairwise(seen) if not is_astray(a) and not is_astray(b)]
    found += filter(None, (_ask_astray_if_times_fall(js, info.name, is_astray, *pair) for pair in pairs))
    return max(found, key=lambda each: beside.index(each.sequence), default=None)


def _sample_sequences(beside: range, near: int) -> Iterator[int]:
    """Yield the sequences to look at: each of the first ones, then ever fewer, and the last one."""
    place = 0
    while place < abs(beside.stop - beside.start) - 1:  # where a server makes it up, too long for len()
        yield beside[place]
        place += 1 + max(0, place - near) // 4
    yield from beside[-1:]


def _ask_astray_if_times_fall(
    js: JetStream, stream: str, is_astray: Callable[[StoredMessage], bool], a: StoredMessage, b: StoredMessage
) -> StoredMessage | None:
    """Return a message that is astray between two; None where times do not fall there, or fall without any such."""
    for _ in range(_MAX_FALLS):
        if a.time <= b.time:
            break
        low, high, after = a.sequence + 1, b.sequence, b
        while low < high:
            middle = (low + high) // 2
            message = ask_first_message_from(js, stream, middle, (">",), with_headers=False)
            if message is None or message.sequence >= high:
                high = middle
            elif is_astray(message):
                return message
            elif message.time < a.time:
                high, after = middle, message
            else:
                low = message.sequence + 1
        a = after  # the first message after the fall: times may fall again
    return None
