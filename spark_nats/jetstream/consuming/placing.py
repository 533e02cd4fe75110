"""Decides by a stream's servers: which of them a client may connect to, and whether a consumer is made again.

A cluster places a consumer with one replica on any server of its stream by chance. What it delivers from another server
than the connected one goes through a route, and costs the servers twice as much. When the consumer is made again, it is
placed again. That takes a proposal to the meta group, so it must be worth that, and it ends. Rows do not depend on it.
"""

from __future__ import annotations

from spark_nats.jetstream.streams import LIMITS, StreamInfo
from spark_nats.protocol.consumers import ConsumerInfo
from spark_nats.protocol.control import ServerInfo

MAX_AGAIN = 6
"""Maximum number of times that the consumer of a range is made again. Of three servers, one range in 17 needs more."""
SAVED = 2e-6
"""Seconds, for each of its messages, that a consumer may take to be made again. Each saves the servers 3 to 4 µs."""


def peers_in_connected_cluster(stream: StreamInfo, here: ServerInfo) -> tuple[str, ...]:
    """Return the servers of a stream that are in the cluster of the connected one, the stream's leader first.

    There are none without a cluster, or where the stream is in another domain.
    """
    return stream.peers if here.cluster and here.domain == stream.domain else ()


def needs_nearer_consumer(
    made: ConsumerInfo, stream: StreamInfo, here: ServerInfo, again: int, seconds: float, left: float
) -> bool:
    """Tell whether to make another consumer instead of one that could live on the connected server, and does not.

    Args:
        made: the consumer.
        stream: the state of its stream.
        here: the connected server.
        again: how often it was made again already.
        seconds: how long it took to make consumers for the range, all together.
        left: maximum number of messages to be read through it.
    """
    near = here.server_name in peers_in_connected_cluster(stream, here)
    awaited = stream.retention != LIMITS or stream.max_consumers is not None  # its place is wanted by others
    if not near or awaited or made.leader in ("", here.server_name) or again >= MAX_AGAIN:
        return False
    return seconds < min(left, made.pending) * SAVED
