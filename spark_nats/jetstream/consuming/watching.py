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
from spark_nats.jetstream.consuming.consumers import create_ephemerals, send_delete
from spark_nats.protocol import deliveries
from spark_nats.protocol.api import Api
from spark_nats.protocol.headers import parse_status
from spark_nats.protocol.messages import Messages

logger = logging.getLogger(__name__)

HEARTBEAT = 5.0  # seconds after which a server sends a heartbeat when it has nothing to deliver
PULL_EXPIRES = 150.0  # seconds that a pull request lives
MAX_BEHIND = 1000  # sequences by which a new place may be after a consumer's next one; beyond, a new watch is created


class WatchLostError(Exception):
    """A watch may miss new messages."""


@dataclass(slots=True)
class _Watched:
    """The consumer of one stream."""

    stream: str
    name: str
    next: int  # sequence after its last delivery
    deliveries: int = 0  # how many messages it has delivered
    asked: int = 0  # number of messages that open pull requests may still bring
    heard: float = 0.0  # when it last sent a message or status, or was last asked for more, by clock.monotonic()


class Watch:
    """Notices new messages in streams, in each from a place on.

    Args:
        js: the API over a connection that the creator of the watch closes.
        places: by stream, the first sequence that the caller does not know.
        filters: only subjects that match one of these; all when empty.

    Raises:
        JetStreamError: a stream refuses the consumer, or does not exist.
        NatsError: the connection failed, or a permission is missing.
    """

    def __init__(self, js: JetStream, places: Mapping[str, int], filters: Sequence[str]) -> None:
        self.js = js
        self._places = dict(places)
        found = create_ephemerals(js, places, filters, headers_only=True)
        made = {stream: each for stream, each in found.items() if not isinstance(each, NatsError)}
        # If a consumer begins after its place, a message was stored there and has been removed since.
        self._watched = [_Watched(stream, each.name, each.begins) for stream, each in made.items()]
        for each in found.values():
            if isinstance(each, NatsError):
                self.close()
                raise each
        self._inboxes = [js.connection.new_inbox() for _ in self._watched]
        self._arrived = js.connection.subscribe(*self._inboxes)
        self._by_sid = dict(zip(self._arrived.sids, self._watched, strict=True))
        self._send_missing_pulls()

    def can_move_to(self, places: Mapping[str, int]) -> bool:
        """Tell whether the watch can move to places in the same streams, none before its consumer or far after it."""
        return self._places.keys() == places.keys() and all(
            0 <= places[each.stream] - each.next <= MAX_BEHIND for each in self._watched
        )

    def is_ahead(self, places: Mapping[str, int]) -> bool:
        """Tell whether a consumer is past one of these places, which means that there was a message."""
        return any(each.next > places.get(each.stream, each.next) for each in self._watched)

    def move(self, places: Mapping[str, int]) -> None:
        """Continue from other places, for which :meth:`can_move_to` is true.

        Raises:
            NatsError: the connection failed.
        """
        self._places = dict(places)
        self._send_missing_pulls()

    def _send_missing_pulls(self) -> None:
        """Keep requests open for the messages before each place, which are passed over, and for one new message."""
        for inbox, each in zip(self._inboxes, self._watched, strict=True):
            wanted = self._places[each.stream] - each.next + 1 - each.asked
            if wanted > 0:
                subject = f"{self.js.prefix}.{Api.CONSUMER_NEXT.with_names(each.stream, each.name)}"
                body = deliveries.encode_pull(wanted, None, PULL_EXPIRES, HEARTBEAT)
                self.js.connection.publish(subject, body, inbox)
                each.asked += wanted
            each.heard = clock.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait for a new message, for ``seconds`` at most; tell whether one has come.

        Raises:
            WatchLostError: the watch may miss messages.
            NatsError: the connection failed.
        """
        until = clock.monotonic() + seconds
        if self.is_ahead(self._places):
            return True
        while (arrived := self.js.connection.next(self._arrived, max(0.0, until - clock.monotonic()))) is not None:
            if self._take_in(arrived):
                return True
        if self.js.connection.lame_duck:
            raise WatchLostError("its server is shutting down")
        now = clock.monotonic()
        for each in self._watched:
            if now - each.heard > 2 * HEARTBEAT:
                raise WatchLostError(f"stream {each.stream}: no heartbeat for {now - each.heard:.0f} s")
        if not all(each.asked for each in self._watched):
            self._send_missing_pulls()
        return False

    def _take_in(self, arrived: Messages) -> bool:
        """Note what has arrived; tell whether a consumer has passed its place."""
        sids, from_server = arrived.sids(), arrived.reply.start == arrived.reply.end  # deliveries have a reply subject
        for sid in np.unique(sids).tolist():  # mostly a few streams out of hundreds
            each, of_it = self._by_sid[sid], sids == sid
            each.heard = clock.monotonic()
            if (delivered := of_it & ~from_server).any():
                messages = arrived.take(delivered)
                replies = deliveries.Deliveries(messages.gather(messages.reply))
                if (other := replies.find_reply_of_other(each.stream, each.name)) is not None:
                    raise WatchLostError(f"stream {each.stream}: a delivery is not of its consumer: {other}")
                last = replies.at(len(messages) - 1)
                each.next, each.deliveries = last.stream_sequence + 1, last.consumer_sequence
                each.asked = max(0, each.asked - len(messages))
            for i in np.flatnonzero(of_it & from_server):
                _on_status(each, arrived.header_at(int(i)))
        return self.is_ahead(self._places)

    def close(self) -> None:
        """Have the consumers deleted, without waiting."""
        try:
            for each in self._watched:
                send_delete(self.js, each.stream, each.name)
        except NatsError as error:
            logger.debug("consumers are left to the server: %s", error)


def _on_status(each: _Watched, header: bytes) -> None:
    """Act on a server's status about a pull request (ADR-13, ADR-37); raise if messages may be missed."""
    status = parse_status(header)
    match event := deliveries.pull_event(status) if status is not None else None:
        case deliveries.Heartbeat(delivered) if delivered is None or delivered <= each.deliveries:
            pass
        case deliveries.RequestEnded() | deliveries.RequestsForgotten():
            each.asked = 0
        case _:
            raise WatchLostError(f"stream {each.stream}: {event}")
