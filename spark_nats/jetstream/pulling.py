"""Pull requests as the server counts them. Arithmetic only: no connection.

A pull request is bounded in messages and in bytes. The server announces the end of one whose bytes did not suffice, or
whose time is over, but not the end of one that was used up to the last message or byte; so both sides count.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from spark_nats.protocol.bytecolumns import Positions
from spark_nats.protocol.messages import Messages

_ANY_BYTES = 1 << 62


@dataclass(slots=True)
class _Request:
    """What an open pull request may still bring."""

    messages: int
    bytes: int


class PullRequests:
    """The open pull requests of one consumer, oldest first."""

    def __init__(self) -> None:
        self._open: deque[_Request] = deque()
        self._ended = 0  # requests of which the end was counted, and is still to be announced

    def __len__(self) -> int:
        return len(self._open)

    @property
    def messages(self) -> int:
        """How many messages they may still bring."""
        return sum(request.messages for request in self._open)

    def add(self, messages: int, max_bytes: int | None) -> None:
        """Note that a request was sent; ``max_bytes`` is None where it is bounded in messages only."""
        self._open.append(_Request(messages, _ANY_BYTES if max_bytes is None else max_bytes))

    def count(self, sizes: Positions) -> None:
        """Take messages that were delivered off the requests that asked for them.

        Args:
            sizes: bytes of each message as the server counts them, see :func:`sizes_of`.
        """
        total = np.cumsum(sizes)
        done, used = 0, 0
        while done < len(total) and self._open:
            request = self._open[0]
            fitting = int(np.searchsorted(total, used + request.bytes, "right")) - done
            taken = min(fitting, request.messages)
            done += taken
            request.messages -= taken
            if taken:
                request.bytes -= int(total[done - 1]) - used
                used = int(total[done - 1])
            if request.messages == 0 or request.bytes == 0 or done < len(total):
                self._open.popleft()
                self._ended += request.bytes > 0

    def end(self) -> None:
        """Note that the server has announced the end of a request."""
        if self._ended:
            self._ended -= 1
        elif self._open:
            self._open.popleft()

    def forget(self) -> None:
        """Forget all of them, as when the server is silent and takes them for fulfilled."""
        self._open.clear()
        self._ended = 0


def sizes_of(messages: Messages) -> Positions:
    """Return how many bytes of a pull request each message takes: subject, reply, header and payload."""
    subject, reply = messages.subject, messages.reply
    sizes: Positions = (
        subject.end - subject.start + reply.end - reply.start + messages.payload.end - messages.header.start
    )
    return sizes
