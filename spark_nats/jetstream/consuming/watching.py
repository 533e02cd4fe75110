"""Notices new messages in streams without polling.

A :class:`Watch` has a consumer on each stream, which delivers messages without payloads from a sequence on, its place
in the stream. The watch requests only one new message at a time, so a busy stream sends no more. The message only
signals that there is something new; the caller asks the stream's leader what there is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_nats import clock
from spark_nats.errors import NatsError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.consuming.consumers import create_ephemerals, delete_consumer_without_waiting
from spark_nats.protocol import deliveries
from spark_nats.protocol.api import Api
from spark_nats.protocol.headers import parse_status
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

HEARTBEAT = 5.0  # seconds after which a server sends a heartbeat when it has nothing to deliver
MANY = 256  # consumers; together, more of them send no more heartbeats than these
PULL_EXPIRES = 150.0  # seconds that a pull request lives
MAX_BEHIND = 1000  # sequences by which a new place may be after a consumer's next one; beyond, another one is created


class WatchLostError(Exception):
    """A watch may miss new messages."""


@dataclass(slots=True)
class _Watched:
    """The consumer of one stream."""

    stream: str
    name: str
    inbox: str  # where it delivers
    sid: int  # of the subscription to that
    next: int  # sequence after its last delivery
    deliveries: int = 0  # how many messages it has delivered
    asked: int = 0  # number of messages that open pull requests may still bring
    heard: float = 0.0  # when it last sent a message or status, or was last asked for more, by clock.monotonic()


class Watch:
    """Notices new messages in streams, in each from a place on.

    Attributes:
        js: the API over a connection that the creator of the watch closes.
        speakers: the streams whose consumers have passed their places, which means that there was a message.

    Args:
        js: that API.
        places: by stream, the first sequence that the caller does not know.
        filters: only subjects that match one of these; all when empty.

    Raises:
        JetStreamError: a stream refuses the consumer, or does not exist.
        NatsError: the connection failed, or a permission is missing.
    """

    def __init__(self, js: JetStream, places: Mapping[str, int], filters: Sequence[str]) -> None:
        self.js = js
        self.speakers: set[str] = set()
        self._filters = filters
        self._heartbeat = HEARTBEAT
        self._places: Mapping[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._by_sid: dict[int, _Watched] = {}
        self._arrived = js.connection.subscribe(later=True)
        self.move(places)

    def streams_needing_consumer(self, places: Mapping[str, int]) -> list[str]:
        """Return the streams that have no consumer, or one far behind the place, so that another one is created."""
        known = self._watched
        return [name for name, place in places.items() if name not in known or place - known[name].next > MAX_BEHIND]

    def is_ahead(self, places: Mapping[str, int]) -> bool:
        """Tell whether a consumer is past one of these places."""
        return any(each.next > places.get(each.stream, each.next) for each in self._watched.values())

    def move(self, places: Mapping[str, int]) -> None:
        """Continue in other streams or from other places; no consumer may be past its new place (:meth:`is_ahead`).

        Raises:
            JetStreamError, NatsError: as creating a watch does.
        """
        unheard = self.streams_needing_consumer(places)
        ended = [each for each in self._watched.values() if each.stream not in places] + [
            self._watched[name] for name in unheard if name in self._watched
        ]
        for each in ended:
            delete_consumer_without_waiting(self.js, each.stream, each.name)
            del self._watched[each.stream], self._by_sid[each.sid]
        if unheard or ended:
            self._create_consumers({name: places[name] for name in unheard}, [each.sid for each in ended])
        self._places = dict(places)
        self._heartbeat = max(self._heartbeat, HEARTBEAT * len(places) / MANY)
        self._send_missing_pulls()
        self.speakers = {name for name, each in self._watched.items() if each.next > places[name]}

    def _create_consumers(self, places: Mapping[str, int], ended: Sequence[int]) -> None:
        """Create consumers from places on, with subscriptions to their deliveries, and end other subscriptions."""
        found = create_ephemerals(self.js, places, self._filters, headers_only=True)
        made = {stream: each for stream, each in found.items() if not isinstance(each, NatsError)}
        inboxes = [self.js.connection.new_inbox() for _ in made]
        sids = self.js.connection.change_subjects(self._arrived, inboxes, ended)
        for (stream, each), inbox, sid in zip(made.items(), inboxes, sids, strict=True):
            # If a consumer begins after its place, a message was stored there and has been removed since.
            self._watched[stream] = self._by_sid[sid] = _Watched(stream, each.name, inbox, sid, each.begins)
        for one in found.values():
            if isinstance(one, NatsError):
                self.close()
                raise one

    def _send_missing_pulls(self) -> None:
        """Keep requests open for the messages before each place, which are passed over, and for one new message."""
        for each in self._watched.values():
            wanted = self._places[each.stream] - each.next + 1 - each.asked
            if wanted > 0:
                subject = f"{self.js.prefix}.{Api.CONSUMER_NEXT.with_names(each.stream, each.name)}"
                body = deliveries.encode_pull(wanted, None, PULL_EXPIRES, self._heartbeat)
                self.js.connection.publish(subject, body, each.inbox)
                each.asked += wanted
                each.heard = clock.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait for a new message, for ``seconds`` at most; tell whether one has come.

        Raises:
            WatchLostError: the watch may miss messages.
            NatsError: the connection failed.
        """
        until = clock.monotonic() + seconds
        while (arrived := self.js.connection.next(self._arrived, self._seconds_to_wait(until))) is not None:
            self._check_and_note_arrived(arrived)
        if self.js.connection.lame_duck:
            raise WatchLostError("its server is shutting down")
        now = clock.monotonic()
        for each in self._watched.values():  # also while others speak
            if each.asked and now - each.heard > 2 * self._heartbeat:
                raise WatchLostError(f"stream {each.stream}: no heartbeat for {now - each.heard:.0f} s")
        if not self.speakers and not all(each.asked for each in self._watched.values()):
            self._send_missing_pulls()
        return bool(self.speakers)

    def _seconds_to_wait(self, until: float) -> float:
        """Return how long to wait for a message: not at all once one has come."""
        return 0.0 if self.speakers else max(0.0, until - clock.monotonic())

    def _check_and_note_arrived(self, arrived: Messages) -> None:
        """Note what has arrived, and which consumers have passed their places."""
        sids, from_server = arrived.sids(), arrived.reply.start == arrived.reply.end  # deliveries have a reply subject
        for sid in np.unique(sids).tolist():  # mostly a few streams out of hundreds
            if (each := self._by_sid.get(sid)) is None:
                continue  # of a consumer that is given up
            of_it = sids == sid
            each.heard = clock.monotonic()
            if (delivered := of_it & ~from_server).any():
                messages = arrived.take(delivered)
                replies = deliveries.Deliveries(messages.gather(messages.reply))
                if (other := replies.find_reply_of_other(each.stream, each.name)) is not None:
                    raise WatchLostError(f"stream {each.stream}: a delivery is not of its consumer: {other}")
                last = replies.at(len(messages) - 1)
                each.next, each.deliveries = last.stream_sequence + 1, last.consumer_sequence
                each.asked = max(0, each.asked - len(messages))
                if each.next > self._places[each.stream]:
                    self.speakers.add(each.stream)
            for i in np.flatnonzero(of_it & from_server):
                _on_status(each, arrived.header_at(int(i)))

    def close(self) -> None:
        """Have the consumers deleted, without waiting."""
        try:
            for each in self._watched.values():
                delete_consumer_without_waiting(self.js, each.stream, each.name)
        except NatsError as error:
            logger.debug("consumers are left to the server: %s", error)


def _on_status(each: _Watched, header: bytes) -> None:
    """Act on a server's status about a pull request (ADR-13, ADR-37); raise if messages may be missed."""
    status = parse_status(header)
    match event := deliveries.interpret_pull_status(status) if status is not None else None:
        case deliveries.Heartbeat(delivered) if delivered is None or delivered <= each.deliveries:
            pass
        case deliveries.RequestEnded() | deliveries.RequestsForgotten():
            each.asked = 0
        case _:
            raise WatchLostError(f"stream {each.stream}: {event}")
