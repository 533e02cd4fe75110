"""Tells whether a stream certainly still recognizes the ids of messages that it has stored.

A server holds message ids in memory, for the stream's ``duplicate_window``. When it starts, it reads the ids of the
messages that the stream still has. So it has forgotten the ids of removed messages: those that were consumed from a
work queue, purged, or evicted by a limit. A replica that caught up by a snapshot knows no more, and a restored stream
knows no id at all. Time alone does not tell: the process that stored the messages must still answer for the stream.
(Seen with nats-server 2.10 to 2.15.1.)

A process that starts may also miss ids of messages that the stream still has, where others were removed in between. One
that was killed knows no id at all if the last message had been deleted. Some versions search for the first message of
the window by halves, and take a removed one for an old one (2.11.10, 2.11.11, 2.12.1 to 2.12.3).
"""

from __future__ import annotations

from typing import NamedTuple

from spark_nats.jetstream.api import JetStream
from spark_nats.jetstream.streams import StreamInfo


class IdMemory(NamedTuple):
    """What holds a stream's message ids.

    Attributes:
        created: when the stream was created.
        process: identifies the process of a server that stores the stream's messages; empty if that is unknown.
        lifetime: seconds for which an id is certainly known, as long as the other two stay the same.
        misses_some: whether a process that has started since may miss ids of messages that the stream still has.
    """

    created: str
    process: str
    lifetime: float
    misses_some: bool = False

    def knows_ids_of_kept_messages(self, now: IdMemory, age: float) -> bool:
        """Tell whether ids stored since, at most ``age`` seconds ago, are known ``now`` if their messages remain."""
        if now.misses_some and (not self.process or self.process != now.process):
            return False
        return self.created == now.created and 0 <= age < min(self.lifetime, now.lifetime)

    def knows_all_ids(self, now: IdMemory, age: float) -> bool:
        """Tell whether every such id is certainly known, also those of messages that were removed."""
        return bool(self.process) and self.process == now.process and self.knows_ids_of_kept_messages(now, age)


def id_memory_of(js: JetStream, info: StreamInfo) -> IdMemory:
    """Return what holds a stream's message ids, from the state that its leader has just reported.

    A raft leader is identified by the time since when it leads. A stream with one replica has no such time. It is
    identified by the connected server's process, if that holds the stream and is in no cluster: there nothing tells
    whether the stream was moved away and back. Servers before 2.11 report no times, so that nothing identifies a raft
    leader there.
    """
    server, process = js.connection.info, ""
    if info.led_since:
        process = f"{info.leader} {info.led_since}"
    elif info.replicas == 1 and (info.leader, info.domain, "") == (server.server_name, server.domain, server.cluster):
        process = server.server_id
    return IdMemory(info.created, process, info.id_lifetime, bool(info.deleted))
