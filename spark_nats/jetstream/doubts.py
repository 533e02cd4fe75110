"""Losses that may be none, because a server that is not up to date speaks of them.

A leader that was cut off from the others of its cluster, or stopped for a while, goes on answering as the leader until
it notices. It knows nothing of what was stored meanwhile, nor of streams that were made; so what it says to be gone has
to be said for a while.
"""

from __future__ import annotations

import time

from spark_nats.errors import JetStreamError
from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import StreamInfo, stream_info
from spark_nats.protocol.statuses import NO_RESPONDERS

CONFIRMATION = 12.0
"""Seconds for which a cluster has to say that something is gone. A leader without followers notices within ten (the
server's ``lostQuorumInterval``)."""


class Doubts:
    """Since when streams, or their ends, are said to be gone.

    A server of its own, without a cluster, is believed at once: it listens only when it has its streams.

    Args:
        patience: most seconds to ask for.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[str, float] = {}
        self._said: set[str] = set()

    def confirm(self, js: JetStream, stream: str, what: str) -> None:
        """Return when a loss has been said for long enough.

        Args:
            js: where it is said.
            stream: of which stream.
            what: is said.

        Raises:
            JetStreamError: it has to be asked for again (503).
        """
        since = self._since.setdefault(stream, time.monotonic())
        if js.connection.info.cluster and time.monotonic() - since < min(self._patience, CONFIRMATION):
            raise JetStreamError(f"{what}, says a server that may not be up to date", NO_RESPONDERS)

    def is_news(self, stream: str) -> bool:
        """Tell whether this is the first time that it is asked about a stream since all of it was there."""
        news = stream not in self._said
        self._said.add(stream)
        return news

    def settle(self, stream: str) -> None:
        """Note that all is there."""
        self._since.pop(stream, None)
        self._said.discard(stream)


def state_beyond_doubt(js: JetStream, said: StreamInfo) -> StreamInfo:
    """Return a stream's state as no leader says it that was stopped for a while; in a cluster that takes its time.

    Args:
        js: where.
        said: its state as a server has just said it.

    Raises:
        NatsError: the stream could not be asked for.
    """
    if not js.connection.info.cluster:
        return said
    js.connection.wait(CONFIRMATION)
    return stream_info(js, said.name)
