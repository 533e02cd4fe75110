"""Losses that may be none, because a server that is not up to date speaks of them.

A leader that was cut off from the others of its cluster, or stopped for a while, goes on answering as the leader until
it notices. It knows nothing of what was stored meanwhile, nor of streams that were made; so what it says to be gone has
to be said for a while.
"""

from __future__ import annotations

from spark_nats import clock
from spark_nats.conditions.streams import LOSS_DOUBTFUL
from spark_nats.errors import JetStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import StreamInfo, stream_info

CONFIRMATION = 12.0
"""Seconds for which a cluster has to say that something is gone. A leader without followers notices within ten (the
server's ``lostQuorumInterval``)."""


class StaleReadGuard:
    """Since when streams, or their ends, are said to be gone; it is asked for ``patience`` seconds at most.

    A server of its own, without a cluster, is believed at once: it listens only when it has its streams.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[str, float] = {}
        self._said: set[str] = set()

    def confirm(self, js: JetStream, stream: str, what: str) -> None:
        """Return when a loss, of which ``what`` tells, has been said for long enough; else raise an error (503)."""
        since = self._since.setdefault(stream, clock.monotonic())
        if js.connection.info.cluster and clock.monotonic() - since < min(self._patience, CONFIRMATION):
            raise JetStreamError(LOSS_DOUBTFUL(what=what))

    @property
    def said(self) -> frozenset[str]:
        """The streams of which the log was told something since all of them was there."""
        return frozenset(self._said)

    def say(self, stream: str) -> None:
        """Note that the log is told."""
        self._said.add(stream)

    def clear(self, stream: str) -> None:
        """Note that all is there."""
        self._since.pop(stream, None)
        self._said.discard(stream)


def state_beyond_doubt(js: JetStream, said: StreamInfo) -> StreamInfo:
    """Return a stream's state as no leader says it that was stopped for a while; in a cluster that takes its time."""
    if not js.connection.info.cluster:
        return said
    js.connection.wait(CONFIRMATION)
    return stream_info(js, said.name)
